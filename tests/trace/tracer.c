/* tracer.c: which functions the main thread enters during one step. Linked into the program that
 * scripts/step-trace.sh builds with -finstrument-functions, where the compiler calls the two
 * functions below on every entry and return. This file itself is compiled without that.
 *
 * The environment says what to record:
 *   TRACE_BEGIN, TRACE_END   addresses of two functions, in hexadecimal
 *   TRACE_CALL               recording begins when TRACE_BEGIN is entered for the TRACE_CALL-th time
 *   TRACE_OUT                file to write when TRACE_END returns: a line "DEPTH ADDRESS" for each entry
 *
 * The program must be linked at fixed addresses (-no-pie). Nothing is written when TRACE_END does
 * not return while it records, or when the record is full. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

void __cyg_profile_func_enter(void *function, void *caller);
void __cyg_profile_func_exit(void *function, void *caller);

#define MOST_ENTRIES 1000000

typedef struct entry {
    int depth; /* 0: TRACE_BEGIN */
    uintptr_t function;
} entry;

static struct tracer {
    uintptr_t begin, end;
    long calls_left; /* until recording begins; 0: it has begun */
    int depth;
    long count;
    entry entries[MOST_ENTRIES];
} tracer;

static _Thread_local bool is_main;

static uintptr_t address_in(const char *variable) {
    const char *text = getenv(variable);
    return text ? (uintptr_t)strtoull(text, NULL, 16) : 0;
}

__attribute__((constructor)) static void set_up(void) {
    const char *call = getenv("TRACE_CALL");
    is_main = syscall(SYS_gettid) == getpid();
    tracer.begin = address_in("TRACE_BEGIN");
    tracer.end = address_in("TRACE_END");
    tracer.calls_left = call ? atol(call) : 1;
}

/* Ends the program: what comes after the step is of no interest. */
static void finish(void) {
    const char *path = getenv("TRACE_OUT");
    FILE *file = path ? fopen(path, "w") : NULL;
    for (long i = 0; file && i < tracer.count; i++) {
        fprintf(file, "%d %jx\n", tracer.entries[i].depth, (uintmax_t)tracer.entries[i].function);
    }
    _exit(file && fclose(file) == 0 ? 0 : 1);
}

void __cyg_profile_func_enter(void *function, void *caller) {
    (void)caller;
    if (!is_main) return;
    if (tracer.calls_left > 0) {
        if ((uintptr_t)function != tracer.begin || --tracer.calls_left > 0) return;
    }
    if (tracer.count == MOST_ENTRIES) _exit(1);
    tracer.entries[tracer.count++] = (entry){tracer.depth++, (uintptr_t)function};
}

void __cyg_profile_func_exit(void *function, void *caller) {
    (void)caller;
    if (!is_main || tracer.calls_left > 0) return;
    tracer.depth--;
    if ((uintptr_t)function == tracer.end) finish();
}
