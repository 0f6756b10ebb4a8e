/* host_memory.h: the memory that is left on the machine, as a process in a container sees it.
 *
 * Available memory, the limits of the control groups of this process, the time the machine loses
 * waiting for memory, and the memory of this process. A watch keeps the files open and reads them
 * again on request, but uses at most a thousandth of the time. The roots of /proc and /sys are
 * parameters, so tests can use their own. A value that cannot be read is 0 and limits nothing. */
#pragma once

#include <stdint.h>

#define HY_HOST_NO_LIMIT UINT64_MAX

typedef struct hy_host_memory {
    uint64_t ram_total, ram_available; /* of the machine; 0: unknown */
    uint64_t group_limit; /* tightest limit of this process's control group and those above */
    /* unused part of it, where cached files count as unused; HY_HOST_NO_LIMIT: no limit */
    uint64_t group_left;
    uint64_t total;     /* most this process can ever have: the machine's or the group's */
    uint64_t available; /* what it could still allocate now */
    uint64_t resident;  /* memory of this process */
    double stalled;     /* share of the last ten seconds in which all tasks waited for memory */
} hy_host_memory;

/* Reads everything once. Roots are "/proc" and "/sys". */
void hy_host_memory_read(const char *proc, const char *sys, hy_host_memory *out);

typedef struct hy_host_watch hy_host_watch;

/* NULL: not enough memory. */
hy_host_watch *hy_host_watch_open(const char *proc, const char *sys);
void hy_host_watch_close(hy_host_watch *watch); /* watch may be NULL */
/* The values, read again if the last read is old enough. NULL watch: all zero. */
const hy_host_memory *hy_host_watch_look(hy_host_watch *watch);
/* As above, always read again. */
const hy_host_memory *hy_host_watch_read(hy_host_watch *watch);

/* Bytes left for the rest of the machine: `asked`, or for 0 a sixteenth of `total`, at most 2
 * GiB. */
uint64_t hy_host_reserve(uint64_t total, int64_t asked);

/* The memory a run may use in total: `ours`, which it already has, plus what is available beyond
 * the reserve; `limit` (0: none) caps it. 0: unknown. */
uint64_t hy_host_budget(const hy_host_memory *host, uint64_t ours, uint64_t limit,
                        uint64_t reserve);

/* Memory pressure: `ours` as a share of the budget; 1 or more if the reserve itself is in use, or
 * if little is left and tasks stall for memory. */
double hy_host_pressure(const hy_host_memory *host, uint64_t ours, uint64_t limit,
                        uint64_t reserve);
