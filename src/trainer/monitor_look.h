/* monitor_look.h: the memory of a run as it is now. */
#pragma once

#include "base/host_memory.h"
#include "memory/monitor.h"
#include "trainer/trainer.h"

/* The memory in use, as read at one time. */
typedef struct hy_memory_look {
    hy_memory_pool device, host;
    uint64_t pinned, resident, process_device;
    double stalled;
} hy_memory_look;

typedef struct hy_monitor {
    hy_host_watch *watch;
    hy_memory_thresholds thresholds;
    hy_memory_gauge device, host;
    hy_memory_status reported;           /* the worse of both, as last reported */
    double device_planned, host_planned; /* planned shares of the budgets at the start */
    bool is_silent;
    int64_t said_step;   /* step of the latest line */
    size_t card_free;    /* from the backend, if NVML does not know it */
    double asked_at;     /* when the backend was asked for card_free */
    double seconds;      /* time spent in the monitor so far */
    hy_memory_look look; /* the latest figures */
    double looked_at;    /* when `look` was read; 0: never */
    hy_phase looked_phase;
} hy_monitor;

/* The newest figures; asks driver and system again if they must be fresh. */
hy_memory_look hy_monitor_look(const hy_trainer *t, bool is_fresh);
/* Planned device bytes of a phase. With lookahead, those of Predict include the optimizer's state,
 * which returns before Predict ends. */
uint64_t hy_monitor_planned(const hy_trainer *t, hy_phase phase);
/* Whether device or host memory is critical, so that the run should use less. */
bool hy_trainer_is_short(const hy_trainer *t);
/* The placement table with advice. */
hy_status hy_monitor_describe(const hy_trainer *t, hy_memory_state *out);
