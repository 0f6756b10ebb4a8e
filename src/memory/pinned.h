/* pinned.h: how much memory this machine lets a program pin, and in which words it refuses.
 *
 * Pinned memory stays where it is: what is taken is gone for every other program, and taking too much
 * ends in the system killing someone. So it is asked beforehand. Limits come from /proc and /sys, whose
 * roots are parameters, so that tests bring their own. What cannot be read does not limit. */
#pragma once

#include "kernels/kernels.h"

#define HY_PIN_NO_LIMIT UINT64_MAX

/* What the likely limit comes from. */
typedef enum hy_pin_cause {
    HY_PIN_UNKNOWN = 0, /* nothing could be read: no limit */
    HY_PIN_RAM = 1,     /* free memory */
    HY_PIN_CGROUP = 2,  /* the control group's limit: containers, batch systems, systemd */
    HY_PIN_WSL2 = 3     /* Windows lets a card map about half of the memory */
} hy_pin_cause;

typedef struct hy_pin_limits {
    uint64_t ram_total, ram_available; /* 0: not known */
    uint64_t cgroup_limit;             /* the closest one of this process's group and those above */
    uint64_t cgroup_left;              /* of it, less what is in use; files in cache are not use */
    uint64_t memlock; /* RLIMIT_MEMLOCK. NVIDIA's driver on Linux does not heed it, so it limits
                         nothing here; it is reported when the driver refuses */
    bool is_wsl2;
    uint64_t likely_limit; /* what can be pinned now, something left for the system */
    hy_pin_cause which;
} hy_pin_limits;

/* Roots are "/proc" and "/sys". */
void hy_pin_probe(const char *proc, const char *sys, hy_pin_limits *out);

/* Where the limit comes from, in words that follow it: "free memory less 1.5 GiB for the system". */
char *hy_pin_reason(const hy_pin_limits *limits, char *buffer, size_t size);

/* May `bytes` be pinned? HY_ERR_MEMORY says by how much it is too much, why, and what to do. */
hy_status hy_pin_allows(const hy_pin_limits *limits, uint64_t bytes);
/* The same for this machine as it is now; to be asked before anything is taken. */
hy_status hy_pin_check(uint64_t bytes);

/* After the backend has refused to pin `bytes`: adds what may have been the cause to its message and
 * returns `status`. */
hy_status hy_pin_refused(const hy_pin_limits *limits, hy_status status, uint64_t bytes);

/* Pinned memory from a backend, asked for first where it is a card's and explained when refused. Give
 * back with the backend's release. */
hy_status hy_pin_take(hy_backend *b, uint64_t bytes, void **out);
