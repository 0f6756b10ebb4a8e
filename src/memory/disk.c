/* disk.c: transfers: callers begin them, an engine executes them in chunks, callers wait for them.
 * See disk.h.
 *
 * A transfer is a slot of a fixed table. It is in at most one list: unused, or waiting for its
 * chunks to be issued. Only the first transfer of a waiting list is issued, alternating between
 * reads and writes, so a long write does not delay the read that compute needs next. After its
 * first failure, no more chunks of a transfer are issued; it is done when its chunks in flight have
 * ended. A slot with an unreported failure is not reused. */
#include "memory/disk.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/text.h"
#include "memory/disk_engine.h"

/* Calls in a row that move nothing before a request fails: interrupted, less than a block, or
 * rejected because the kernel has no memory (which is retried after a pause). */
#define IDLE_TRIES 1000
#define NO_MEMORY_PAUSE_NS 2000000

/* ---- lists ----------------------------------------------------------------------------------- */

static void list_put(hy_spill *s, hy_spill_list *list, uint32_t slot) {
    s->transfers[slot].next = HY_SPILL_NONE;
    if (list->first == HY_SPILL_NONE) {
        list->first = slot;
    } else {
        s->transfers[list->last].next = slot;
    }
    list->last = slot;
}

static uint32_t list_pop(hy_spill *s, hy_spill_list *list) {
    uint32_t slot = list->first;
    if (slot != HY_SPILL_NONE) list->first = s->transfers[slot].next;
    return slot;
}

/* ---- calls of the engine --------------------------------------------------------------------- */

/* Takes the next chunk: whole blocks first; a rest smaller than a block is a separate chunk. */
bool hy_spill_take(hy_spill *s, hy_spill_request *r) {
    int kind = s->waiting[s->turn].first != HY_SPILL_NONE ? s->turn : !s->turn;
    uint32_t slot = s->waiting[kind].first;
    if (slot == HY_SPILL_NONE) return false;
    hy_spill_transfer *t = &s->transfers[slot];
    uint64_t left = t->bytes - t->handed, whole = left / HY_SPILL_BLOCK * HY_SPILL_BLOCK;
    bool is_tail = whole == 0;
    if (whole > s->options.chunk_bytes) whole = s->options.chunk_bytes;
    *r = (hy_spill_request){.transfer = slot,
                            .is_write = t->is_write,
                            .is_tail = is_tail,
                            .offset = t->offset + t->handed,
                            .data = t->data + t->handed,
                            .bytes = is_tail ? left : whole,
                            .bounce = r->bounce};
    t->handed += r->bytes;
    t->open++;
    if (t->handed == t->bytes) list_pop(s, &s->waiting[kind]);
    s->turn = !kind;
    return true;
}

/* The next system call of a request, with the faults that a test has set. With O_DIRECT only whole
 * blocks can be requested, but a test may report fewer bytes. */
hy_spill_call hy_spill_next_call(hy_spill *s, hy_spill_request *r) {
    hy_spill_call call = {r->data + r->moved, r->bytes - r->moved, r->offset + r->moved};
    if (r->is_tail) {
        call = (hy_spill_call){r->bounce, HY_SPILL_BLOCK, r->offset};
        memset(r->bounce, 0, HY_SPILL_BLOCK);
        if (r->is_write) memcpy(r->bounce, r->data, r->bytes);
    }
    const hy_spill_fault *f = &s->options.fault;
    int64_t number = atomic_fetch_add(&s->requests, 1) + 1;
    bool is_due = f->at > 0 && (number == f->at || (f->is_lasting && number > f->at));
    r->doomed = is_due ? f->error : 0;
    r->most = call.bytes;
    bool is_short = f->short_every > 0 && number % f->short_every == 0;
    uint64_t less = f->short_bytes ? f->short_bytes : call.bytes / 2;
    if (is_short && less < call.bytes) {
        r->most = less;
        call.bytes = s->file.is_direct ? hy_spill_room(less) : less;
    }
    return call;
}

/* A request that moved too little continues at the last whole block, because O_DIRECT requires
 * it. */
bool hy_spill_accept(hy_spill *s, hy_spill_request *r, int64_t result) {
    if (r->doomed) result = -r->doomed;
    bool is_again = result == -EINTR || result == -EAGAIN || result == -ENOMEM;
    if (result == -ENOMEM) nanosleep(&(struct timespec){.tv_nsec = NO_MEMORY_PAUSE_NS}, NULL);
    if (result < 0 && !is_again) {
        r->error = (int)-result;
        return true;
    }
    uint64_t moved = result < 0 ? 0 : (uint64_t)result < r->most ? (uint64_t)result : r->most;
    moved = moved / HY_SPILL_BLOCK * HY_SPILL_BLOCK;
    if (r->is_tail && moved) {
        if (!r->is_write) memcpy(r->data, r->bounce, r->bytes);
        r->moved = r->bytes;
    } else {
        r->moved += moved;
    }
    if (r->moved == r->bytes) {
        if (!s->file.is_direct) {
            r->error =
                hy_spill_file_drop(&s->file, r->is_write, r->offset, hy_spill_room(r->bytes));
        }
        return true;
    }
    r->idle_tries = moved ? 0 : r->idle_tries + 1;
    if (r->idle_tries < IDLE_TRIES) return false;
    r->error = is_again ? (int)-result : EIO;
    return true;
}

void hy_spill_end(hy_spill *s, const hy_spill_request *r) {
    hy_spill_transfer *t = &s->transfers[r->transfer];
    if (!r->error) {
        *(r->is_write ? &s->stats.bytes_written : &s->stats.bytes_read) += r->bytes;
    } else if (!t->error) {
        t->error = r->error;
        t->error_offset = r->offset + r->moved;
        t->error_bytes = r->bytes - r->moved;
        if (t->handed < t->bytes) { /* then it is the first of its list: drop the rest */
            uint32_t slot = list_pop(s, &s->waiting[t->is_write]);
            assert(slot == r->transfer);
            (void)slot;
        }
    }
    t->open--;
    if (t->open > 0 || (!t->error && t->handed < t->bytes)) return;
    t->is_busy = false; /* none of it is in flight any more */
    s->busy--;
    if (t->error) {
        s->untold++;
    } else {
        list_put(s, &s->unused, r->transfer);
    }
    pthread_cond_broadcast(&s->is_done);
}

/* ---- calls of users -------------------------------------------------------------------------- */

static hy_status fail_transfer(const hy_spill *s, const hy_spill_transfer *t) {
    char reason[128];
    return hy_fail(HY_ERR_IO, "offload folder %s: %s %s failed at byte %llu of the file: %s",
                   s->file.folder, t->is_write ? "writing" : "reading",
                   hy_bytes_as_text(t->error_bytes).text, (unsigned long long)t->error_offset,
                   strerror_r(t->error, reason, sizeof reason));
}

static hy_status check_transfer(const hy_spill *s, const hy_spill_transfer *t) {
    const char *what = t->is_write ? "write" : "read";
    HY_FAIL_IF(t->offset % HY_SPILL_BLOCK || (uintptr_t)t->data % HY_SPILL_BLOCK, HY_ERR_INTERNAL,
               "offload folder %s: cannot %s at byte %llu of the file with a buffer at %p: both "
               "must be multiples of %u",
               s->file.folder, what, (unsigned long long)t->offset, (void *)t->data,
               HY_SPILL_BLOCK);
    HY_FAIL_IF(t->offset > s->file.bytes || t->bytes > s->file.bytes - t->offset, HY_ERR_INTERNAL,
               "offload folder %s: cannot %s %llu bytes at byte %llu of a file of %llu bytes",
               s->file.folder, what, (unsigned long long)t->bytes, (unsigned long long)t->offset,
               (unsigned long long)s->file.bytes);
    return HY_OK;
}

/* The first failed transfer that nobody has waited for; NULL: none. Locked. */
static hy_spill_transfer *first_untold(hy_spill *s) {
    hy_spill_transfer *first = NULL;
    for (int32_t i = 0; i < s->options.transfers; i++) {
        hy_spill_transfer *t = &s->transfers[i];
        bool is_unreported = t->error && !t->is_busy && !t->is_reported;
        if (is_unreported && (!first || t->ticket < first->ticket)) first = t;
    }
    return first;
}

/* Waits for a slot if all are busy. */
static hy_status begin(hy_spill *s, const hy_spill_transfer *asked, hy_spill_ticket *ticket) {
    *ticket = 0;
    HY_TRY(check_transfer(s, asked));
    if (asked->bytes == 0) return HY_OK;
    hy_status status = HY_OK;
    pthread_mutex_lock(&s->lock);
    while (s->unused.first == HY_SPILL_NONE && s->untold < s->options.transfers) {
        pthread_cond_wait(&s->is_done, &s->lock);
    }
    uint32_t slot = list_pop(s, &s->unused);
    if (slot == HY_SPILL_NONE) {
        status = hy_fail_context(fail_transfer(s, first_untold(s)),
                                 "%d transfers have failed without being waited for; the first",
                                 s->options.transfers);
    } else {
        s->transfers[slot] = *asked;
        s->transfers[slot].is_busy = true;
        /* The serial number is in the high bits, so a later ticket is a larger number. */
        *ticket = ++s->serial * (uint64_t)s->options.transfers + slot;
        s->transfers[slot].ticket = *ticket;
        s->busy++;
        list_put(s, &s->waiting[asked->is_write], slot);
        s->engine->wake(s->engine_state);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

hy_status hy_spill_read(hy_spill *s, uint64_t offset, uint64_t bytes, void *buffer,
                        hy_spill_ticket *ticket) {
    hy_spill_transfer asked = {.data = buffer, .offset = offset, .bytes = bytes};
    return begin(s, &asked, ticket);
}

hy_status hy_spill_write(hy_spill *s, uint64_t offset, uint64_t bytes, const void *buffer,
                         hy_spill_ticket *ticket) {
    hy_spill_transfer asked = {
        .is_write = true, .data = (char *)buffer, .offset = offset, .bytes = bytes};
    return begin(s, &asked, ticket);
}

/* The transfer of a ticket; NULL if its slot was reused. Locked. */
static hy_spill_transfer *find(hy_spill *s, hy_spill_ticket ticket) {
    hy_spill_transfer *t = &s->transfers[ticket % (uint64_t)s->options.transfers];
    return t->ticket == ticket ? t : NULL;
}

hy_status hy_spill_wait(hy_spill *s, hy_spill_ticket ticket) {
    if (ticket == 0) return HY_OK;
    pthread_mutex_lock(&s->lock);
    hy_spill_transfer *t;
    while ((t = find(s, ticket)) && t->is_busy) pthread_cond_wait(&s->is_done, &s->lock);
    hy_status status = t && t->error ? fail_transfer(s, t) : HY_OK;
    if (status != HY_OK && !t->is_reported) {
        t->is_reported = true;
        s->untold--;
        list_put(s, &s->unused, (uint32_t)(t - s->transfers));
        pthread_cond_broadcast(&s->is_done); /* another thread may wait for the slot */
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

bool hy_spill_is_done(hy_spill *s, hy_spill_ticket ticket) {
    if (ticket == 0) return true;
    pthread_mutex_lock(&s->lock);
    const hy_spill_transfer *t = find(s, ticket);
    bool is_done = !t || !t->is_busy;
    pthread_mutex_unlock(&s->lock);
    return is_done;
}

void hy_spill_settle(hy_spill *s) {
    pthread_mutex_lock(&s->lock);
    while (s->busy > 0) pthread_cond_wait(&s->is_done, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void hy_spill_get_stats(hy_spill *s, hy_spill_stats *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
    out->requests = (uint64_t)atomic_load(&s->requests);
}

const char *hy_spill_describe(const hy_spill *s) { return s->description; }
bool hy_spill_is_direct(const hy_spill *s) { return s->file.is_direct; }
hy_spill_path hy_spill_path_used(const hy_spill *s) {
    return s->engine == &hy_spill_uring ? HY_SPILL_URING : HY_SPILL_THREADS;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static hy_status fill_options(hy_spill_options *o) {
    if (o->depth == 0) o->depth = 32;
    if (o->chunk_bytes == 0) o->chunk_bytes = (uint64_t)4 << 20;
    if (o->transfers == 0) o->transfers = 1024;
    bool is_right = o->depth >= 1 && o->depth <= 1024 && o->transfers >= 1 &&
                    o->transfers <= 65536 && o->chunk_bytes % HY_SPILL_BLOCK == 0 &&
                    o->chunk_bytes <= (uint64_t)1 << 30; /* one call moves less than 2 GiB */
    HY_FAIL_IF(!is_right, HY_ERR_INTERNAL,
               "offload: %d requests in flight (1 to 1024), %d transfers (1 to 65536), chunks of "
               "%llu bytes (multiples of %u up to 1 GiB)",
               o->depth, o->transfers, (unsigned long long)o->chunk_bytes, HY_SPILL_BLOCK);
    return HY_OK;
}

static void describe(hy_spill *s, const char *why) {
    snprintf(s->description, sizeof s->description,
             "%s%s%s%s, %s%s, %s in requests of %s, %d at a time%s%s", s->engine->name,
             why[0] ? " (" : "", why, why[0] ? ")" : "",
             s->file.is_direct ? "O_DIRECT" : "through the page cache",
             s->file.is_direct ? "" : ": the file system does not support O_DIRECT",
             hy_bytes_as_text(s->file.bytes).text, hy_bytes_as_text(s->options.chunk_bytes).text,
             s->options.depth,
             s->file.is_reserved ? "" : ", space not reserved: the file system does not support it",
             s->file.name[0] ? ", removed at the end" : "");
}

static hy_status start_engine(hy_spill *s) {
    hy_spill_path path = s->options.path;
    const char *why = "";
    s->engine = &hy_spill_uring;
    if (path == HY_SPILL_AUTO && !s->file.is_direct) {
        /* With the page cache, io_uring would use kernel threads, so our threads are as good. */
        path = HY_SPILL_THREADS;
        why = "io_uring is useful only with O_DIRECT";
    }
    if (path != HY_SPILL_THREADS) {
        hy_status status = s->engine->start(s, &s->engine_state);
        if (status != HY_OK && path == HY_SPILL_URING) {
            return hy_fail_context(status, "offload folder %s", s->file.folder);
        }
        if (status != HY_OK) path = HY_SPILL_THREADS, why = hy_error_message();
    }
    if (path == HY_SPILL_THREADS) {
        s->engine = &hy_spill_threads;
        if (s->options.depth > HY_SPILL_THREADS_MAX) s->options.depth = HY_SPILL_THREADS_MAX;
    }
    describe(s, why);
    return path == HY_SPILL_THREADS ? s->engine->start(s, &s->engine_state) : HY_OK;
}

static void dispose(hy_spill *s) {
    if (s->engine_state) {
        pthread_mutex_lock(&s->lock);
        s->is_stopping = true;
        s->engine->wake(s->engine_state);
        pthread_mutex_unlock(&s->lock);
        s->engine->stop(s->engine_state);
    }
    hy_spill_file_close(&s->file);
    pthread_cond_destroy(&s->is_done);
    pthread_mutex_destroy(&s->lock);
    free(s->transfers);
    free(s);
}

hy_status hy_spill_open(const char *folder, uint64_t bytes, const hy_spill_options *options,
                        hy_spill **out) {
    hy_spill_options chosen = options ? *options : (hy_spill_options){0};
    HY_TRY(fill_options(&chosen));
    hy_spill *s = calloc(1, sizeof *s);
    if (!s) return hy_fail(HY_ERR_MEMORY, "not enough memory for the offload file");
    s->options = chosen;
    s->file.fd = -1;
    s->unused.first = s->waiting[0].first = s->waiting[1].first = HY_SPILL_NONE;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->is_done, NULL);
    hy_status status = HY_OK;
    size_t count = (size_t)chosen.transfers;
    s->transfers = calloc(count, sizeof *s->transfers);
    if (!s->transfers)
        status = hy_fail(HY_ERR_MEMORY, "not enough memory for %zu transfers", count);
    for (uint32_t i = 0; i < count && status == HY_OK; i++) list_put(s, &s->unused, i);
    if (status == HY_OK) status = hy_spill_file_open(&s->file, folder, bytes, chosen.fault.lacks);
    if (status == HY_OK) status = start_engine(s);
    if (status != HY_OK) {
        dispose(s);
        return status;
    }
    *out = s;
    return HY_OK;
}

hy_status hy_spill_grow(hy_spill *s, uint64_t bytes) { return hy_spill_file_grow(&s->file, bytes); }

hy_status hy_spill_close(hy_spill *s) {
    if (!s) return HY_OK;
    hy_spill_settle(s);
    pthread_mutex_lock(&s->lock);
    const hy_spill_transfer *t = first_untold(s);
    assert((s->untold > 0) == (t != NULL));
    hy_status status = t ? fail_transfer(s, t) : HY_OK;
    pthread_mutex_unlock(&s->lock);
    dispose(s);
    return status;
}
