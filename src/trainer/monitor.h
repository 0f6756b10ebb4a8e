/* monitor.h: watches the placement table during a run; only inside the trainer module.
 *
 * monitor_look.c collects figures from the ledger, the driver and the system; monitor.c checks
 * once a step and reports changes; monitor_state.c makes the whole table for hybrid.h, with
 * advice; monitor_savings.c reports what the run saves. A step never waits for the driver. */
#pragma once

#include "base/host_memory.h"
#include "memory/monitor.h"
#include "trainer/trainer.h"

/* What one look sees. */
typedef struct hy_memory_look {
    hy_memory_pool device, host; /* but for their status */
    uint64_t pinned, resident, process_device;
    double stalled;
} hy_memory_look;

typedef struct hy_monitor {
    hy_host_watch *watch;
    hy_memory_thresholds thresholds;
    hy_memory_gauge device, host;
    hy_memory_status reported;           /* the worse of both, as it was last reported */
    double device_planned, host_planned; /* shares of the budgets as they were at the start */
    bool is_silent;
    int64_t said_step;   /* of the latest line */
    size_t card_free;    /* asked of the backend where the driver's library does not tell, */
    double asked_at;     /* at this time */
    double seconds;      /* spent here so far */
    hy_memory_look look; /* the latest, */
    double looked_at;    /* when that was; 0: never */
    hy_phase looked_phase;
} hy_monitor;

/* After memory was taken, and at the end; t->monitor is NULL with memory.monitor = off. */
hy_status hy_monitor_open(hy_trainer *t);
void hy_monitor_close(hy_trainer *t);

/* After each step or jump, before its metrics line is written: checks memory, fills the memory
 * fields of `info`, reports a change to on_memory and the record, and prints a line when one is
 * due. */
void hy_monitor_step(hy_trainer *t, hy_step_info *info);

/* For who steers, after hy_monitor_step. */
hy_memory_status hy_monitor_device_status(const hy_trainer *t);
hy_memory_status hy_monitor_host_status(const hy_trainer *t);
/* How close the machine is to running out of memory; 1: it has. Reads again if the last figures
 * are old. */
double hy_monitor_host_pressure(const hy_trainer *t);
/* After memory was reallocated (another micro-batch, another plan): resets the status. */
void hy_monitor_reset(hy_trainer *t);

/* monitor_look.c: the newest figures; asks driver and system again if they must be fresh. */
hy_memory_look hy_monitor_look(const hy_trainer *t, bool is_fresh);
/* Device bytes that a phase was planned to need, what comes back early included. */
uint64_t hy_monitor_planned(const hy_trainer *t, hy_phase phase);
