/* faults.h: allocations of the code under test, counted, and made to fail.
 *
 * A test program linked with -Wl,--wrap=NAME for each call in faults.c passes through here whenever
 * the library asks for memory (or a thread, a mapping, a stream of a file: what a full machine
 * refuses). Shared libraries are not touched. Every block is remembered with the stack that asked
 * for it, so what is still live at the end is a leak with a place. Safe from several threads. */
#ifndef HY_TESTS_OOM_FAULTS_H
#define HY_TESTS_OOM_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAULT_STACK 24

/* What is asked for: memory of the host's code, a backend's arena, something else of the system's,
 * that a stream takes an op, a copy or an event (a card without memory may refuse that, too), or
 * room on a disk for a rank's part of a checkpoint. */
typedef enum fault_kind {
    FAULT_HEAP,
    FAULT_ARENA,
    FAULT_SYSTEM,
    FAULT_LAUNCH,
    FAULT_WRITE,
    FAULT_KINDS
} fault_kind;
#define FAULT_BIT(kind) (1u << (kind))
#define FAULT_ALLOCATIONS (FAULT_BIT(FAULT_HEAP) | FAULT_BIT(FAULT_ARENA) | FAULT_BIT(FAULT_SYSTEM))

/* How allocations fail. With no `at` and no `budget` none does. */
typedef struct fault_plan {
    unsigned kinds;  /* bits of those that count and fail */
    int64_t at;      /* the allocation of this number, from 1; 0: none */
    int64_t times;   /* so many from there on; 0 counts as 1 */
    uint64_t budget; /* bytes that may be live; 0: all */
    bool is_squeeze; /* the budget holds from allocation `at` on, counted from what is live then */
    int signal;      /* instead of failing, the process sends itself this one; 0: it fails */
} fault_plan;

/* A place in the code: return addresses, innermost first. */
typedef struct fault_stack {
    int depth;
    void *at[FAULT_STACK];
} fault_stack;

/* What came of it. */
typedef struct fault_counts {
    int64_t asked[FAULT_KINDS]; /* since arming */
    int64_t failed;
    uint64_t live_blocks, live_bytes, peak_bytes; /* of blocks taken since fault_arm */
    size_t first_failed_bytes;
    fault_stack first_failed;
    fault_stack first_live; /* who asked for a block that is still there */
    size_t first_live_bytes;
} fault_counts;

void fault_arm(const fault_plan *plan); /* counts from zero; blocks before it do not count */
void fault_spare(void);                 /* nothing fails from here on; counting continues */
void fault_read(fault_counts *out);
/* A line per address, as far as names are known. */
void fault_print_stack(const fault_stack *stack, const char *indent);

#endif
