/* monitor_look.h: the memory of a run as it is now. */
#pragma once

#include "base/host_memory.h"
#include "memory/monitor.h"
#include "trainer/trainer.h"

/* The figures of one look. */
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
    size_t card_free;    /* from the backend, if the driver's library does not know it */
    double asked_at;     /* time of that question to the backend */
    double seconds;      /* time spent in the monitor so far */
    hy_memory_look look; /* the latest figures */
    double looked_at;    /* their time; 0: never */
    hy_phase looked_phase;
} hy_monitor;

/* The newest figures; asks driver and system again if they must be fresh. */
hy_memory_look hy_monitor_look(const hy_trainer *t, bool is_fresh);
/* Device bytes that a phase was planned to need, including what comes back early. */
uint64_t hy_monitor_planned(const hy_trainer *t, hy_phase phase);
bool hy_trainer_is_short(const hy_trainer *t); /* of memory, so that less of it should be used */
/* The placement table with advice. */
hy_status hy_monitor_describe(const hy_trainer *t, hy_memory_state *out);
