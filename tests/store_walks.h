/* store_walks.h: orders in which tests visit the units of a store: those of training, and unusual
 * ones. */
#ifndef HY_TESTS_STORE_WALKS_H
#define HY_TESTS_STORE_WALKS_H

#include "store_rig.h"

static inline bool is_last(const store_rig *r, int32_t unit) {
    return unit == r->layout.unit_count - 1;
}

/* A tied head works with unit 0 too. */
static inline void walk_enter(store_rig *r, int32_t unit, int32_t next, bool is_new, bool is_tied) {
    hy_stream *stream = r->machine->compute;
    bool borrows = is_tied && is_last(r, unit),
         was_written = is_tied && unit == 0; /* by the head */
    if (next >= 0 && next < r->layout.unit_count && !is_new) {
        must(hy_store_prefetch(&r->store, next));
    }
    if (borrows && is_new) must(hy_store_get_new(&r->store, stream, 0));
    if (borrows && !is_new) must(hy_store_get(&r->store, stream, 0));
    must(is_new && !was_written ? hy_store_get_new(&r->store, stream, unit)
                                : hy_store_get(&r->store, stream, unit));
}

static inline void walk_leave(store_rig *r, int32_t unit, bool is_changed, bool is_tied) {
    hy_status (*release)(hy_store *, hy_stream *, int32_t) =
        is_changed ? hy_store_release_changed : hy_store_release;
    if (is_tied && is_last(r, unit)) must(release(&r->store, r->machine->compute, 0));
    must(release(&r->store, r->machine->compute, unit));
}

/* A micro-batch: weights forward and backward, gradients backward. */
static inline void walk_train(store_rig *weights, store_rig *grads, bool is_first, bool is_tied) {
    int32_t units = weights->layout.unit_count;
    for (int32_t u = 0; u < units; u++) {
        must(hy_store_prefetch_chunk(&weights->store, units - 1));
        walk_enter(weights, u, u + 1, false, is_tied);
        rig_read(weights, u);
        walk_leave(weights, u, false, is_tied);
    }
    for (int32_t u = units - 1; u >= 0; u--) {
        walk_enter(weights, u, u - 1, false, is_tied);
        walk_enter(grads, u, u - 1, is_first, is_tied);
        rig_read(weights, u);
        if (is_tied && u == units - 1) rig_write(grads, 0, is_first ? 0 : 1, 2);
        rig_write(grads, u, is_first && !(is_tied && u == 0) ? 0 : 1, 1);
        walk_leave(grads, u, true, is_tied);
        walk_leave(weights, u, false, is_tied);
    }
}

static inline void walk_update(store_rig *weights, store_rig *grads) {
    hy_stream *stream = weights->machine->compute;
    int32_t units = weights->layout.unit_count;
    for (int32_t u = 0; u < units; u++) {
        must(hy_store_get(&weights->store, stream, u));
        must(hy_store_get_read(&grads->store, stream, u));
        if (u + 1 < units) must(hy_store_prefetch(&weights->store, u + 1));
        rig_read(grads, u);
        rig_write(weights, u, 1, 3);
        must(hy_store_release(&grads->store, stream, u));
        must(hy_store_release_changed(&weights->store, stream, u));
        rig_visit(weights, u); /* as the pass does that an update rides on */
    }
}

/* Two steps of two micro-batches, and what both stores must hold then. */
static inline void walk_steps(store_rig *weights, store_rig *grads, bool is_tied) {
    rig_fill(weights);
    for (int step = 0; step < 2; step++) {
        for (int micro = 0; micro < 2; micro++) walk_train(weights, grads, micro == 0, is_tied);
        walk_update(weights, grads);
    }
    rig_check_backing(weights);
    rig_check_backing(grads);
}

/* ---- anything -------------------------------------------------------------------------------- */

/* A head beside a block, as far as the buffers go. */
static inline void stray_pair(store_rig *r, int32_t unit, int32_t other, float times) {
    bool share =
        hy_store_has_own_buffer(&r->store, unit) == hy_store_has_own_buffer(&r->store, other);
    if (share) return;
    must(hy_store_get(&r->store, r->machine->compute, unit));
    rig_change(r, other, times);
    rig_read(r, unit);
    must(hy_store_release(&r->store, r->machine->compute, unit));
}

/* The host writes a unit of the backing store. */
static inline void stray_backing(store_rig *r, int32_t unit, float value) {
    char *backing;
    must(r->machine->backend->stream_sync(r->machine->compute));
    must(hy_store_open_unit(&r->store, unit, value == 0, &backing));
    for (int32_t i = 0; i < r->layout.item_count; i++) {
        const hy_layout_item *item = &r->layout.items[i];
        if (item->unit != unit) continue;
        float *x = (float *)(void *)(backing + item->offset);
        for (int64_t k = 0; k < item->count; k++) {
            x[k] = value == 0 ? 5 : x[k] + value;
            r->expected[i][k] = value == 0 ? 5 : r->expected[i][k] + value;
        }
    }
    hy_store_close_unit(&r->store, unit, true);
}

static inline void stray(store_rig *r, uint64_t seed, int count) {
    uint64_t units = (uint64_t)r->layout.unit_count;
    for (int i = 0; i < count; i++) {
        uint64_t at = (uint64_t)i * 4;
        int32_t unit = (int32_t)hy_rng_below(seed, HY_RNG_TEST, at, units);
        int32_t other = (int32_t)hy_rng_below(seed, HY_RNG_TEST, at + 1, units);
        float times = (float)hy_rng_below(seed, HY_RNG_TEST, at + 2, 3);
        switch (hy_rng_below(seed, HY_RNG_TEST, at + 3, 11)) {
        case 0: must(hy_store_prefetch(&r->store, unit)); break;
        case 1: must(hy_store_prefetch_chunk(&r->store, unit)); break;
        case 2:
        case 3: rig_visit(r, unit); break;
        case 4:
        case 5: rig_change(r, unit, times); break;
        case 6: rig_renew(r, unit, times); break;
        case 7: stray_pair(r, unit, other, times); break;
        case 8: must(hy_store_prefetch(&r->store, other)); break;
        case 9: stray_backing(r, unit, times); break;
        default:
            if (times == 0) rig_check_backing(r);
            if (times == 1) {
                must(hy_store_settle(&r->store));
                hy_store_forget(&r->store);
            }
        }
    }
    rig_check_backing(r);
}

#endif
