/* monitor.h: watches the placement table during a run.
 *
 * monitor_look.c collects figures from the ledger, the driver and the system; monitor.c checks
 * once a step and reports changes; monitor_savings.c reports what the run saves. A step never waits
 * for the driver. */
#pragma once

#include "trainer/monitor_look.h"

/* After memory was taken, and at the end; t->monitor is NULL with memory.monitor = off. */
hy_status hy_monitor_open(hy_trainer *t);
void hy_monitor_close(hy_trainer *t);

/* After each step or jump, before its metrics line is written: checks memory, fills the memory
 * fields of `info`, reports a change to on_memory and the record, and prints a line when one is
 * due. */
void hy_monitor_step(hy_trainer *t, hy_step_info *info);

/* After memory was reallocated (another micro-batch, another plan): resets the status. */
void hy_monitor_reset(hy_trainer *t);
