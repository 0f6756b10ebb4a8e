/* host_memory.h: what the machine has left, as a process in a container sees it.
 *
 * Memory that is available, the limits of the control groups this process is in, how much time
 * the machine loses waiting for memory, and what this process holds. A watch keeps the files
 * open and reads them again when asked, at most so often that it costs a thousandth of the time.
 * Roots of /proc and /sys are parameters, so that tests bring their own. What cannot be read is
 * 0 and limits nothing. */
#pragma once

#include <stdint.h>

#define HY_HOST_NO_LIMIT UINT64_MAX

typedef struct hy_host_memory {
    uint64_t ram_total, ram_available; /* of the machine; 0: not known */
    uint64_t group_limit; /* the closest one of this process's control group and those above; */
    uint64_t group_left;  /* of it, not in use, as cached files are not. HY_HOST_NO_LIMIT: none */
    uint64_t total;     /* that this process could ever have: the machine's, or the group's limit */
    uint64_t available; /* that it could have more now */
    uint64_t resident;  /* this process holds */
    double stalled;     /* share of the last ten seconds in which all work waited for memory */
} hy_host_memory;

/* Reads everything once. Roots are "/proc" and "/sys". */
void hy_host_memory_read(const char *proc, const char *sys, hy_host_memory *out);

typedef struct hy_host_watch hy_host_watch;

/* NULL when there is no memory for it. */
hy_host_watch *hy_host_watch_open(const char *proc, const char *sys);
void hy_host_watch_close(hy_host_watch *watch); /* NULL is accepted */
/* The figures, read again when the last look is long enough ago. NULL watch: all zero. */
const hy_host_memory *hy_host_watch_look(hy_host_watch *watch);
/* The same, read now. */
const hy_host_memory *hy_host_watch_read(hy_host_watch *watch);

/* Bytes that the rest of the machine keeps: `asked`, or with 0 a sixteenth of `total` and 2 GiB at
 * most. */
uint64_t hy_host_reserve(uint64_t total, int64_t asked);

/* What a run may use in all: what it has, `ours`, and what is available beyond the reserve;
 * `limit` (0: none) caps it. 0: not known. */
uint64_t hy_host_budget(const hy_host_memory *host, uint64_t ours, uint64_t limit,
                        uint64_t reserve);

/* How near the machine is to trouble: `ours` as a share of that budget; 1 and more when the
 * reserve itself is being used, or when little is left and the machine stands still for want of
 * it. */
double hy_host_pressure(const hy_host_memory *host, uint64_t ours, uint64_t limit,
                        uint64_t reserve);
