/* store_rig.h: a store of small units, a host copy of what it must hold, and ways to use both.
 *
 * Every use of a unit is done to the store by ops on a stream and to the copy at once; sums that
 * the stream took are compared when it is idle. Numbers are small integers in fp32, so sums are
 * exact. The streams wait at random before each item, so an order that is not enforced does not
 * hold. */
#ifndef HY_TESTS_STORE_RIG_H
#define HY_TESTS_STORE_RIG_H

#include "harness.h"

#include "base/rng.h"
#include "memory/store.h"

#define RIG_UNITS 12
#define RIG_MOST 4096 /* elements of the largest tensor */
#define RIG_READS 4096
#define RIG_WORKSPACE (1 << 16)

typedef struct rig_machine {
    hy_backend *backend;
    hy_stream *compute, *up, *down;
    hy_ledger ledger;
    hy_arena backing, device, work;
    float *ramp;  /* (RIG_MOST) 0 1 2 .. 15 0 1 .. */
    double *sums; /* (RIG_READS) */
    char *workspace;
} rig_machine;

typedef struct store_rig {
    rig_machine *machine;
    hy_layout layout;
    hy_store store;
    float *expected[RIG_UNITS * 2]; /* by item */
    double wanted[RIG_READS];
    int reads, first_read, most_reads; /* where its sums lie in machine->sums */
} store_rig;

static inline void rig_machine_open(rig_machine *m, int delay, uint64_t seed, uint64_t backing,
                                    uint64_t device) {
    hy_cpu_options cpu = {.threads = 1, .delay_microseconds = delay, .delay_seed = seed};
    *m = (rig_machine){0};
    must(hy_cpu_backend_create(&cpu, &m->backend));
    must(m->backend->stream_create(m->backend, "compute", &m->compute));
    must(m->backend->stream_create(m->backend, "up", &m->up));
    must(m->backend->stream_create(m->backend, "down", &m->down));
    must(hy_arena_init(&m->backing, m->backend, &m->ledger, HY_PINNED, backing, "a test"));
    must(hy_arena_init(&m->device, m->backend, &m->ledger, HY_DEVICE, device, "a test"));
    uint64_t bytes = RIG_MOST * sizeof(float) + RIG_READS * sizeof(double) + RIG_WORKSPACE;
    must(hy_arena_init(&m->work, m->backend, &m->ledger, HY_DEVICE, bytes, "a test"));
    if (device) memset(m->device.data, 0xff, device);
    if (backing) memset(m->backing.data, 0xff, backing);
    must(hy_arena_push(&m->work, HY_DATA, RIG_MOST * sizeof(float), (void **)&m->ramp));
    must(hy_arena_push(&m->work, HY_DATA, RIG_READS * sizeof(double), (void **)&m->sums));
    must(hy_arena_push(&m->work, HY_DATA, RIG_WORKSPACE, (void **)&m->workspace));
    for (int i = 0; i < RIG_MOST; i++) m->ramp[i] = (float)(i % 16);
}

static inline void rig_machine_close(rig_machine *m) {
    m->backend->stream_destroy(m->compute);
    m->backend->stream_destroy(m->up);
    m->backend->stream_destroy(m->down);
    hy_arena_fini(&m->backing);
    hy_arena_fini(&m->device);
    hy_arena_fini(&m->work);
    m->backend->destroy(m->backend);
}

/* Two tensors a unit: `elements` and a small one; no elements, no tensors. */
static inline void rig_layout(hy_layout *layout, const int64_t *elements, int32_t units) {
    hy_layout_item items[RIG_UNITS * 2];
    int32_t count = 0;
    for (int32_t u = 0; u < units; u++) {
        if (elements[u] == 0) continue;
        items[count++] = (hy_layout_item){.unit = u, .dtype = HY_F32, .count = elements[u]};
        items[count++] = (hy_layout_item){.unit = u, .dtype = HY_F32, .count = 5};
    }
    must(hy_layout_init(layout, items, count, units));
}

/* Around a store that was just made; its backing store may hold anything. */
static inline void rig_begin(store_rig *r, rig_machine *m, int first_read, int most_reads) {
    r->machine = m;
    r->first_read = first_read;
    r->most_reads = most_reads;
    r->reads = 0;
    for (int32_t i = 0; i < r->layout.item_count; i++) {
        r->expected[i] = calloc((size_t)r->layout.items[i].count, sizeof(float));
    }
}

static inline void rig_end(store_rig *r) {
    hy_store_fini(&r->store);
    for (int32_t i = 0; i < r->layout.item_count; i++) free(r->expected[i]);
    hy_layout_fini(&r->layout);
}

/* ---- uses of a unit, between get and release ------------------------------------------------- */

static inline void rig_read(store_rig *r, int32_t unit) {
    rig_machine *m = r->machine;
    for (int32_t i = 0; i < r->layout.item_count; i++) {
        const hy_layout_item *item = &r->layout.items[i];
        if (item->unit != unit) continue;
        hy_op_call sum = {.kind = HY_OP_SUM};
        ck_assert_int_lt(r->reads, r->most_reads);
        sum.t[HY_REDUCE_X] = hy_tensor_1d(hy_store_device(&r->store, i), HY_F32, item->count);
        sum.t[HY_REDUCE_OUT] = hy_tensor_1d(m->sums + r->first_read + r->reads, HY_F64, 1);
        sum.workspace = hy_tensor_1d(m->workspace, HY_U8, RIG_WORKSPACE);
        must(m->backend->enqueue(m->compute, &sum));
        double wanted = 0;
        for (int64_t k = 0; k < item->count; k++) wanted += r->expected[i][k];
        r->wanted[r->reads++] = wanted;
    }
}

/* x = keep x + times ramp */
static inline void rig_write(store_rig *r, int32_t unit, float keep, float times) {
    rig_machine *m = r->machine;
    for (int32_t i = 0; i < r->layout.item_count; i++) {
        const hy_layout_item *item = &r->layout.items[i];
        if (item->unit != unit) continue;
        hy_op_call call = {.kind = HY_OP_COMBINE};
        call.t[HY_COMBINE_OUT] = hy_tensor_1d(hy_store_device(&r->store, i), HY_F32, item->count);
        if (keep != 0) call.t[HY_COMBINE_X0] = call.t[HY_COMBINE_OUT];
        call.t[HY_COMBINE_X1] = hy_tensor_1d(m->ramp, HY_F32, item->count);
        call.attr.combine.coefficient[0] = keep;
        call.attr.combine.coefficient[1] = times;
        must(m->backend->enqueue(m->compute, &call));
        for (int64_t k = 0; k < item->count; k++) {
            r->expected[i][k] = keep * r->expected[i][k] + times * (float)(k % 16);
        }
    }
}

/* Whole visits. */
static inline void rig_visit(store_rig *r, int32_t unit) {
    must(hy_store_get_read(&r->store, r->machine->compute, unit));
    rig_read(r, unit);
    must(hy_store_release(&r->store, r->machine->compute, unit));
}

static inline void rig_change(store_rig *r, int32_t unit, float times) {
    must(hy_store_get(&r->store, r->machine->compute, unit));
    rig_write(r, unit, 1, times);
    rig_read(r, unit);
    must(hy_store_release_changed(&r->store, r->machine->compute, unit));
}

static inline void rig_renew(store_rig *r, int32_t unit, float times) {
    must(hy_store_get_new(&r->store, r->machine->compute, unit));
    rig_write(r, unit, 0, times);
    rig_read(r, unit);
    must(hy_store_release_changed(&r->store, r->machine->compute, unit));
}

/* Gives every unit its first content. */
static inline void rig_fill(store_rig *r) {
    for (int32_t u = 0; u < r->layout.unit_count; u++) rig_renew(r, u, (float)(u + 1));
}

/* ---- what must be true ----------------------------------------------------------------------- */

/* All sums so far; the streams are idle afterwards. */
static inline void rig_check_reads(store_rig *r) {
    must(r->machine->backend->stream_sync(r->machine->compute));
    for (int i = 0; i < r->reads; i++) {
        ck_assert_msg(r->machine->sums[r->first_read + i] == r->wanted[i],
                      "read %d gave %g, expected %g", i, r->machine->sums[r->first_read + i],
                      r->wanted[i]);
    }
    r->reads = 0;
}

static inline void rig_check_backing(store_rig *r) {
    float backing[RIG_MOST];
    rig_check_reads(r);
    must(hy_store_settle(&r->store));
    for (int32_t i = 0; i < r->layout.item_count; i++) {
        size_t bytes = (size_t)r->layout.items[i].count * sizeof(float);
        uint64_t offset = hy_store_offset(&r->store, i);
        must(hy_store_read(&r->store, r->machine->compute, offset, backing, bytes));
        ck_assert_msg(memcmp(backing, r->expected[i], bytes) == 0,
                      "tensor %d of unit %d is not written back", i, r->layout.items[i].unit);
    }
}

#endif
