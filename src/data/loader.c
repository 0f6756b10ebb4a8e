/* loader.c: a thread that fills a ring of micro-batches ahead of the training loop.
 *
 * Batches are numbered from 0. Batch n is in slot n mod depth and holds the sequences from first +
 * n B; with several ranks, those of its share of a step. filled - popped batches are ready, never
 * more than depth. The thread owns a slot while it fills it, then the caller owns it until it pops
 * the batch. The lock protects the counts; the slots do not need it. */
#include "data/loader.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "data/pair_reference.h"

struct hy_loader {
    const hy_dataset *data;
    hy_backend *backend; /* owner of the pinned memory of the batches; NULL: plain memory */
    int32_t batch, depth, seq;
    uint64_t first;
    hy_loader_share share;
    int32_t *tokens;     /* (depth,B,T) */
    int32_t *targets;    /* (depth,B,T) */
    int32_t *doc_starts; /* (depth,B,T), NULL when the data has none */
    int32_t *reference;  /* (depth,B,T) fp32, NULL when the data has none */
    bool has_doc_starts, has_reference;
    int64_t *counted; /* (depth,2): hy_batch.counted and targets_counted */
    size_t bytes;
    double waited; /* used only by the caller */

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t is_filled, is_popped;
    uint64_t filled, popped;
    bool is_stopping;
    hy_error failure; /* why the thread ended early; HY_OK: it did not */
};

static size_t slot_offset(const hy_loader *l, uint64_t number) {
    return (size_t)(number % (uint64_t)l->depth) * (size_t)l->batch * (size_t)l->seq;
}

static uint64_t first_of(const hy_loader *l, uint64_t number) {
    const hy_loader_share *s = &l->share;
    uint64_t step = number / (uint64_t)s->run, in_step = number % (uint64_t)s->run;
    uint64_t batches = (step * (uint64_t)s->count + (uint64_t)s->rank) * (uint64_t)s->run + in_step;
    return l->first + batches * (uint64_t)l->batch;
}

/* Fills batch `number`. False: its data could not be read. */
static bool fill_batch(hy_loader *l, uint64_t number) {
    size_t begin = slot_offset(l, number), seq = (size_t)l->seq;
    int64_t *counted = l->counted + number % (uint64_t)l->depth * 2;
    counted[0] = counted[1] = 0;
    for (int32_t row = 0; row < l->batch; row++) {
        uint64_t p = first_of(l, number) + (uint64_t)row;
        size_t at = begin + (size_t)row * seq;
        int32_t *targets = l->targets + at, *starts = l->doc_starts ? l->doc_starts + at : NULL;
        int64_t here = hy_dataset_fill(l->data, HY_TRAIN, p, l->tokens + at, targets, starts);
        if (here < 0) return false;
        counted[0] += here;
        for (size_t i = 0; i < seq; i++) counted[1] += targets[i] >= 0;
        if (!l->reference) continue;
        hy_pairs_of pairs = {l->data, HY_TRAIN, p, targets, starts};
        const double(*sums)[2] = hy_dataset_reference(l->data);
        if (hy_pairs_place(&pairs, sums, (float *)(void *)(l->reference + at)) != HY_OK)
            return false;
    }
    return true;
}

static void *run(void *argument) {
    hy_loader *l = argument;
    pthread_mutex_lock(&l->lock);
    while (!l->is_stopping && l->failure.status == HY_OK) {
        if (l->filled - l->popped == (uint64_t)l->depth) {
            pthread_cond_wait(&l->is_popped, &l->lock);
            continue;
        }
        uint64_t number = l->filled;
        pthread_mutex_unlock(&l->lock);
        bool is_filled = fill_batch(l, number);
        pthread_mutex_lock(&l->lock);
        if (!is_filled) {
            hy_error_save(&l->failure, HY_ERR_IO);
        } else {
            l->filled++;
        }
        pthread_cond_signal(&l->is_filled);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static int32_t *take(hy_loader *l, size_t bytes) {
    void *data = NULL;
    if (!l->backend) return malloc(bytes);
    return l->backend->alloc(l->backend, HY_PINNED, bytes, &data) == HY_OK ? data : NULL;
}

static void give(hy_loader *l, int32_t *data, size_t bytes) {
    if (!l->backend) {
        free(data);
    } else if (data) {
        l->backend->release(l->backend, HY_PINNED, data, bytes);
    }
}

static hy_status take_memory(hy_loader *l) {
    size_t slots = (size_t)l->depth, arrays = 2u + l->has_doc_starts + l->has_reference, count;
    size_t ints;
    bool is_too_large = __builtin_mul_overflow((size_t)l->batch * (size_t)l->seq, slots, &count) ||
                        __builtin_mul_overflow(count, arrays * sizeof(int32_t), &ints);
    if (!is_too_large) {
        l->tokens = take(l, count * sizeof *l->tokens);
        l->targets = take(l, count * sizeof *l->targets);
        if (l->has_doc_starts) l->doc_starts = take(l, count * sizeof *l->doc_starts);
        if (l->has_reference) l->reference = take(l, count * sizeof *l->reference);
        l->counted = malloc(2 * slots * sizeof *l->counted);
        l->bytes = ints + 2 * slots * sizeof *l->counted;
    }
    bool has_all = l->tokens && l->targets && l->counted && (l->doc_starts || !l->has_doc_starts) &&
                   (l->reference || !l->has_reference);
    if (has_all) return HY_OK;
    return hy_fail(HY_ERR_MEMORY,
                   "not enough memory to read ahead %d batches of %d sequences of %d tokens",
                   l->depth, l->batch, l->seq);
}

/* The main thread handles signals, so the loader's thread starts with all signals blocked. */
static hy_status start_thread(hy_loader *l) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&l->thread, NULL, run, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) return HY_OK;
    return hy_fail(HY_ERR_MEMORY, "cannot start the thread that reads data: %s", strerror(error));
}

static void free_memory(hy_loader *l) {
    size_t bytes = (size_t)l->batch * (size_t)l->seq * (size_t)l->depth * sizeof *l->tokens;
    pthread_cond_destroy(&l->is_popped);
    pthread_cond_destroy(&l->is_filled);
    pthread_mutex_destroy(&l->lock);
    give(l, l->tokens, bytes);
    give(l, l->targets, bytes);
    give(l, l->doc_starts, bytes);
    give(l, l->reference, bytes);
    free(l->counted);
    free(l);
}

hy_status hy_loader_create(const hy_dataset *data, int32_t batch, int32_t depth, uint64_t first,
                           const hy_loader_share *share, hy_backend *backend, hy_loader **out) {
    *out = NULL;
    HY_FAIL_IF(
        batch < 1 || depth < 1, HY_ERR_INPUT,
        "the batch size is %d and the number of batches read ahead is %d; expected 1 or more",
        batch, depth);
    hy_loader *l = calloc(1, sizeof *l);
    if (!l) return hy_fail(HY_ERR_MEMORY, "not enough memory for a loader");
    *l = (hy_loader){.data = data,
                     .backend = backend,
                     .batch = batch,
                     .depth = depth,
                     .seq = hy_dataset_describe(data)->seq,
                     .has_doc_starts = hy_dataset_describe(data)->has_doc_starts,
                     .has_reference = hy_dataset_reference(data) != NULL,
                     .first = first,
                     .share = share ? *share : (hy_loader_share){.count = 1, .run = 1}};
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->is_filled, NULL);
    pthread_cond_init(&l->is_popped, NULL);
    hy_status status = take_memory(l);
    if (status == HY_OK) status = start_thread(l);
    if (status == HY_OK) *out = l;
    if (status != HY_OK) free_memory(l);
    return status;
}

void hy_loader_destroy(hy_loader *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->is_stopping = true;
    pthread_cond_signal(&l->is_popped);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    free_memory(l);
}

size_t hy_loader_bytes(const hy_loader *l) { return l->bytes; }

/* Waits until `ahead` + 1 batches are ready and returns the number of the last one. */
static hy_status wait_for(hy_loader *l, int32_t ahead, uint64_t *number) {
    pthread_mutex_lock(&l->lock);
    *number = l->popped + (uint64_t)ahead;
    if (l->filled <= *number) {
        double begin = hy_clock();
        while (l->filled <= *number && l->failure.status == HY_OK) {
            pthread_cond_wait(&l->is_filled, &l->lock);
        }
        l->waited += hy_clock() - begin;
    }
    bool is_there = l->filled > *number;
    pthread_mutex_unlock(&l->lock);
    return is_there ? HY_OK : hy_error_restore(&l->failure);
}

bool hy_loader_is_ready(hy_loader *l, int32_t ahead, double seconds) {
    double begin = hy_clock();
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t nanoseconds = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    pthread_mutex_lock(&l->lock);
    uint64_t number = l->popped + (uint64_t)ahead;
    int error = 0;
    while (l->filled <= number && l->failure.status == HY_OK && error == 0)
        error = pthread_cond_timedwait(&l->is_filled, &l->lock, &until);
    bool is_ready = l->filled > number || l->failure.status != HY_OK;
    pthread_mutex_unlock(&l->lock);
    l->waited += hy_clock() - begin;
    return is_ready;
}

hy_status hy_loader_peek(hy_loader *l, int32_t ahead, hy_batch *out) {
    HY_FAIL_IF(ahead < 0 || ahead >= l->depth, HY_ERR_STATE,
               "batch %d was requested, but only %d batches are read ahead", ahead, l->depth);
    uint64_t number;
    HY_TRY(wait_for(l, ahead, &number));
    size_t at = slot_offset(l, number);
    const int64_t *counted = l->counted + number % (uint64_t)l->depth * 2;
    *out = (hy_batch){.tokens = l->tokens + at,
                      .targets = l->targets + at,
                      .doc_starts = l->doc_starts ? l->doc_starts + at : NULL,
                      .reference = l->reference ? (float *)(void *)(l->reference + at) : NULL,
                      .first = first_of(l, number),
                      .counted = counted[0],
                      .targets_counted = counted[1]};
    return HY_OK;
}

void hy_loader_pop(hy_loader *l) {
    uint64_t number;
    (void)wait_for(l, 0, &number); /* on failure, the next peek reports it again */
    pthread_mutex_lock(&l->lock);
    l->popped++;
    pthread_cond_signal(&l->is_popped);
    pthread_mutex_unlock(&l->lock);
}

/* Only this caller and hy_loader_pop access `popped`. */
uint64_t hy_loader_cursor(const hy_loader *l) {
    uint64_t batches = l->popped * (uint64_t)l->share.count; /* valid between steps */
    return l->first + batches * (uint64_t)l->batch;
}

double hy_loader_waited(const hy_loader *l) { return l->waited; }
