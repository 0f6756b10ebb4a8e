/* pinned.h: how much memory this machine allows a program to pin, and the error messages.
 *
 * Pinned memory cannot be swapped: it is lost to every other program, and pinning too much makes
 * the system kill processes. So the limit is checked first. Limits come from /proc and /sys; their
 * roots are parameters, so tests can use their own. A value that cannot be read does not limit. */
#pragma once

#include "kernels/kernels.h"

#define HY_PIN_NO_LIMIT UINT64_MAX

/* The origin of the likely limit. */
typedef enum hy_pin_cause {
    HY_PIN_UNKNOWN = 0, /* nothing could be read: no limit */
    HY_PIN_RAM = 1,     /* free memory */
    HY_PIN_CGROUP = 2,  /* the limit of the control group: containers, batch systems, systemd */
    HY_PIN_WSL2 = 3     /* Windows allows a card to map about half of the memory */
} hy_pin_cause;

typedef struct hy_pin_limits {
    uint64_t ram_total, ram_available; /* 0: unknown */
    uint64_t cgroup_limit;             /* tightest limit of this process's group and those above */
    uint64_t cgroup_left;              /* unused part of it; cached files count as unused */
    /* RLIMIT_MEMLOCK. NVIDIA's driver on Linux ignores it, so it does not limit here; it is
     * mentioned when the driver fails to pin. */
    uint64_t memlock;
    bool is_wsl2;
    uint64_t likely_limit; /* what can be pinned now, with some memory left for the system */
    hy_pin_cause which;
} hy_pin_limits;

/* Roots are "/proc" and "/sys". */
void hy_pin_probe(const char *proc, const char *sys, hy_pin_limits *out);

/* What can be pinned in all by a process that has pinned `held` bytes already. */
uint64_t hy_pin_most(const hy_pin_limits *limits, uint64_t held);

/* The origin of the limit as a phrase: "free memory less 1.5 GiB for the system". */
char *hy_pin_reason(const hy_pin_limits *limits, char *buffer, size_t size);

/* Checks whether `bytes` may be pinned. HY_ERR_MEMORY names the limit, its origin, and what to
 * do. */
hy_status hy_pin_allows(const hy_pin_limits *limits, uint64_t bytes);
/* As above, for this machine now; call it before any allocation. */
hy_status hy_pin_check(uint64_t bytes);

/* After the backend failed to pin `bytes`: adds the possible cause to its message and returns
 * `status`. */
hy_status hy_pin_refused(const hy_pin_limits *limits, hy_status status, uint64_t bytes);

/* Allocates pinned memory from a backend; for a card, checks the limit first and explains a
 * failure. Free it with the backend's release. */
hy_status hy_pin_take(hy_backend *b, uint64_t bytes, void **out);
