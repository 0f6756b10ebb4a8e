/* memory.c: memory that is freed all at once, limits, and the jump on failure. See parts.h.
 *
 * Every file of the module allocates here. Memory, steps and depth never exceed the constants
 * below; exceeding one is an error of the template. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "jinja/parts.h"

#define BYTES_MOST ((size_t)128 << 20)
#define STEPS_MOST 5000000 /* some tenths of a second; a conversation of 100 turns takes 50,000 */
#define DEPTH_MOST 500
#define BLOCK_BYTES ((size_t)16 << 10)

typedef struct hy_jinja_block {
    struct hy_jinja_block *next;
    size_t used, room;
    max_align_t data[];
} block;

void hy_jinja_fail(hy_jinja_run *run, const char *format, ...) {
    va_list list;
    va_start(list, format);
    hy_fail_list(HY_ERR_INPUT, format, list);
    va_end(list);
    run->status = hy_fail_context(HY_ERR_INPUT, "%s, line %u", run->name, run->line);
    longjmp(run->failed, 1);
}

void *hy_jinja_take(hy_jinja_run *run, size_t bytes) {
    size_t whole = sizeof(max_align_t);
    if (bytes > BYTES_MOST) hy_jinja_fail(run, "a value of %zu bytes is too large", bytes);
    bytes = (bytes + whole - 1) / whole * whole;
    block *b = run->blocks;
    if (!b || b->room - b->used < bytes) {
        size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        if (room > BYTES_MOST - run->bytes) {
            hy_jinja_fail(run, "the template needs more than %zu MiB of memory", BYTES_MOST >> 20);
        }
        b = malloc(sizeof *b + room);
        if (!b) {
            run->status = hy_fail(HY_ERR_MEMORY, "not enough memory for %s", run->name);
            longjmp(run->failed, 1);
        }
        *b = (block){.next = run->blocks, .room = room};
        run->blocks = b;
        run->bytes += room;
    }
    void *out = (char *)b->data + b->used;
    b->used += bytes;
    return memset(out, 0, bytes);
}

void *hy_jinja_grow(hy_jinja_run *run, const void *items, size_t count, size_t room, size_t size) {
    if (room > BYTES_MOST / size) hy_jinja_fail(run, "a value of %zu items is too large", room);
    void *out = hy_jinja_take(run, room * size);
    return count ? memcpy(out, items, count * size) : out;
}

void hy_jinja_release(hy_jinja_run *run) {
    while (run->blocks) {
        block *next = run->blocks->next;
        free(run->blocks);
        run->blocks = next;
    }
    run->bytes = 0;
}

void hy_jinja_spend(hy_jinja_run *run, size_t steps) {
    run->steps += steps;
    if (run->steps > STEPS_MOST)
        hy_jinja_fail(run, "the template takes more than %d steps", STEPS_MOST);
}

void hy_jinja_enter(hy_jinja_run *run) {
    hy_jinja_spend(run, 1);
    if (++run->depth > DEPTH_MOST) {
        hy_jinja_fail(run, "the template is nested more than %d levels deep", DEPTH_MOST);
    }
}

char *hy_jinja_copy(hy_jinja_run *run, const char *text, size_t size) {
    return hy_jinja_grow(run, text, size, size + 1, 1);
}
