/* memory.c: memory that is freed all at once, limits, and the jump on failure. See parts.h. */
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

void hy_jinja_fail(hy_jinja_work *work, const char *format, ...) {
    va_list list;
    va_start(list, format);
    hy_fail_list(HY_ERR_INPUT, format, list);
    va_end(list);
    work->status = hy_fail_context(HY_ERR_INPUT, "%s, line %u", work->name, work->line);
    longjmp(work->failed, 1);
}

static block *add_block(hy_jinja_work *work, size_t bytes) {
    size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    if (room > BYTES_MOST - work->bytes) {
        hy_jinja_fail(work, "the template needs more than %zu MiB of memory", BYTES_MOST >> 20);
    }
    block *added = malloc(sizeof *added + room);
    if (!added) {
        work->status = hy_fail(HY_ERR_MEMORY, "not enough memory for %s", work->name);
        longjmp(work->failed, 1);
    }
    *added = (block){.next = work->blocks, .room = room};
    work->blocks = added;
    work->bytes += room;
    return added;
}

void *hy_jinja_take(hy_jinja_work *work, size_t bytes) {
    size_t whole = sizeof(max_align_t);
    if (bytes > BYTES_MOST) hy_jinja_fail(work, "a value of %zu bytes is too large", bytes);
    bytes = (bytes + whole - 1) / whole * whole;
    block *b = work->blocks;
    if (!b || b->room - b->used < bytes) b = add_block(work, bytes);
    void *out = (char *)b->data + b->used;
    b->used += bytes;
    return memset(out, 0, bytes);
}

void *hy_jinja_grow(hy_jinja_work *work, const void *items, size_t count, size_t room,
                    size_t size) {
    if (room > BYTES_MOST / size) hy_jinja_fail(work, "a value of %zu items is too large", room);
    void *out = hy_jinja_take(work, room * size);
    return count ? memcpy(out, items, count * size) : out;
}

void hy_jinja_release(hy_jinja_work *work) {
    while (work->blocks) {
        block *next = work->blocks->next;
        free(work->blocks);
        work->blocks = next;
    }
    work->bytes = 0;
}

void hy_jinja_spend(hy_jinja_work *work, size_t steps) {
    work->steps += steps;
    if (work->steps > STEPS_MOST)
        hy_jinja_fail(work, "the template takes more than %d steps", STEPS_MOST);
}

void hy_jinja_enter(hy_jinja_work *work) {
    hy_jinja_spend(work, 1);
    if (++work->depth > DEPTH_MOST) {
        hy_jinja_fail(work, "the template is nested more than %d levels deep", DEPTH_MOST);
    }
}

char *hy_jinja_copy(hy_jinja_work *work, const char *text, size_t size) {
    return hy_jinja_grow(work, text, size, size + 1, 1);
}
