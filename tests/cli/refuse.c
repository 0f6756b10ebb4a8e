/* refuse.c: preloaded, it refuses the n-th allocation of a program, n being $REFUSE_AT; with
 * $REFUSE_ALL all after it, too. hostile.sh looks how the program ends. Allocations of libconfig
 * are left out: it ends the process when memory is refused while it parses
 * (docs/troubleshooting.md). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

static atomic_long left = -1; /* allocations until the one that is refused; before main: none is */
static bool refuses_all;
static _Thread_local int parsing; /* depth of calls inside libconfig: one calls the other */

__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("REFUSE_AT");
    refuses_all = getenv("REFUSE_ALL") != NULL;
    if (at) atomic_store(&left, atol(at) + 1);
}

static bool is_refused(void) {
    if (atomic_load(&left) < 0 || parsing) return false;
    long now = atomic_fetch_sub(&left, 1);
    bool is_due = now == 1 || (now < 1 && refuses_all);
    if (now <= 1 && refuses_all) atomic_store(&left, 1);
    if (is_due) errno = ENOMEM;
    return is_due;
}

void *malloc(size_t size) { return is_refused() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return is_refused() ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return is_refused() ? NULL : __libc_realloc(old, size); }

void config_init(void *config) {
    parsing++;
    ((void (*)(void *))dlsym(RTLD_NEXT, "config_init"))(config);
    parsing--;
}

int config_read_string(void *config, const char *text) {
    parsing++;
    int is_read =
        ((int (*)(void *, const char *))dlsym(RTLD_NEXT, "config_read_string"))(config, text);
    parsing--;
    return is_read;
}
