/* sets_rig.h: a model with some frozen parameters, its weights and gradients in stores at places
 * that a test chooses, for comparing passes bit for bit.
 *
 * All memory holds NaN at first, so a value that is read before it was written is found. */
#ifndef HY_TESTS_SETS_RIG_H
#define HY_TESTS_SETS_RIG_H

#include "base/rng.h"
#include "harness.h"
#include "kernels/coded.h"
#include "model/coding.h"
#include "model/model.h"

#define SETS_BATCH 2
#ifndef SETS_SEQ
#define SETS_SEQ 9
#endif
#define SETS_ROWS (SETS_BATCH * SETS_SEQ)
#define SETS_MICRO_BATCHES 2

enum { SETS_WEIGHTS, SETS_FROZEN, SETS_GRADS, SETS_STORES };

typedef struct sets_choice {
    hy_shape shape;
    const char *trained;   /* NULL: all */
    hy_dtype frozen_dtype; /* of frozen weights; HY_F32: as options.dtype has it */
    hy_dtype codes;        /* frozen matrices are stored as these; HY_F32: they are not coded */
    hy_dtype
        rounded; /* they are stored as they are else, with the numbers that these codes would have */
    hy_place place[SETS_STORES];
    hy_batch_options options; /* sizes are filled in */
    int delay;                /* microseconds */
} sets_choice;

typedef struct sets_rig {
    hy_backend *backend;
    hy_stream *compute, *up, *down;
    hy_ledger ledger;
    hy_arena host, device;
    hy_spill *spill;
    char folder[256];
    hy_model *model;
    hy_batch_plan *plan;
    hy_store stores[SETS_STORES], activations;
    bool has_store[SETS_STORES], offloads;
    int32_t *tokens, *targets, *dropout_seed;
    float *losses, *rope;
} sets_rig;

static inline hy_param_set sets_set(int store) {
    return store == SETS_FROZEN ? HY_SET_FROZEN : HY_SET_TRAINABLE;
}

static inline void *sets_push(sets_rig *r, hy_class cls, uint64_t bytes) {
    void *at;
    must(hy_arena_push(&r->device, cls, bytes, &at));
    return at;
}

static inline void sets_take_store(sets_rig *r, const sets_choice *c, int i, uint64_t *on_disk) {
    static const hy_class classes[] = {HY_WEIGHTS, HY_WEIGHTS, HY_GRADS};
    hy_layout layout;
    hy_ring_options ring = {.depth = 3, .copies = {r->up, r->down}};
    hy_dtype dtype = i == SETS_GRADS    ? c->options.grad_dtype
                     : i == SETS_FROZEN ? c->options.frozen_dtype
                                        : c->options.dtype;
    must(hy_params_layout(&r->model->params, sets_set(i), dtype, &layout));
    r->has_store[i] = layout.bytes > 0;
    if (r->has_store[i] && c->place[i] == HY_DEVICE) {
        must(hy_store_init(&r->stores[i], &r->device, classes[i], &layout));
    } else if (r->has_store[i] && c->place[i] == HY_DISK) {
        hy_disk_backing backing = {
            .spill = r->spill, .offset = *on_disk, .staging = &r->host, .buffers = 2};
        must(hy_store_init_disk(&r->stores[i], &backing, &r->device, classes[i], &layout, &ring));
        *on_disk += r->stores[i].ring.disk_bytes;
    } else if (r->has_store[i]) {
        must(hy_store_init_ring(&r->stores[i], &r->host, &r->device, classes[i], &layout, &ring));
    }
    hy_layout_fini(&layout);
}

/* Codes of these numbers and their scales, as a store has them: to be freed. */
static inline char *sets_code(const hy_param *p, const hy_layout_item *item, const float *values) {
    hy_coding coding;
    char *stored = calloc(1, hy_layout_item_bytes(item));
    must(hy_coding_begin(&coding, p, item));
    if (hy_coding_looks_first(&coding)) hy_coding_look(&coding, values, p->count);
    hy_coding_rows(&coding, values, 0, p->count, stored);
    memcpy(stored + hy_layout_scales_at(item), hy_coding_scales(&coding),
           hy_layout_scale_bytes(item));
    hy_coding_end(&coding);
    return stored;
}

/* The numbers that codes have in place of these. */
static inline void sets_round(const hy_param *p, hy_dtype dtype, float *values) {
    hy_layout_item item = {.dtype = dtype,
                           .count = p->count,
                           .block = hy_param_block(p, dtype),
                           .group = hy_param_group(p, dtype)};
    int64_t blocks = p->count / item.block;
    float *scales = malloc((size_t)blocks * sizeof *scales);
    char *stored = sets_code(p, &item, values);
    hy_coded_open_scales(item.group, 0, blocks, stored + hy_layout_scales_at(&item), scales);
    hy_coded_decode(dtype, stored, 0, p->count, item.block, scales, values);
    free(stored);
    free(scales);
}

/* Values of a parameter as a store has them, by a cast where that is not codes: to be freed. */
static inline char *sets_stored(sets_rig *r, const hy_param *p, const hy_store *store, int32_t item,
                                float *values) {
    const hy_layout_item *entry = &store->layout.items[item];
    if (hy_is_coded(entry->dtype)) return sets_code(p, entry, values);
    char *stored = calloc(1, hy_layout_item_bytes(entry));
    int64_t cols = p->ndim == 2 ? p->shape[1] : 1;
    hy_op_call cast = {.kind = HY_OP_CAST};
    cast.t[HY_CAST_SRC] = hy_tensor_2d(values, HY_F32, p->shape[0], cols);
    cast.t[HY_CAST_DST] = hy_tensor_2d(stored, entry->dtype, p->shape[0], cols);
    must(r->backend->enqueue(r->compute, &cast));
    must(r->backend->stream_sync(r->compute));
    return stored;
}

/* Initial weights, in whichever of the two stores a parameter is and as it has them. */
static inline void sets_fill(sets_rig *r, const sets_choice *c) {
    hy_dtype before = r->model->params.frozen_codes;
    for (int32_t i = 0; i < r->model->params.count; i++) {
        const hy_param *p = &r->model->params.list[i];
        hy_store *store = &r->stores[p->is_trainable ? SETS_WEIGHTS : SETS_FROZEN];
        int32_t item = hy_store_item_of(store, i);
        float *values = malloc((size_t)p->count * sizeof *values);
        hy_param_initial(p, 3, 0, p->count, values);
        r->model->params.frozen_codes = c->rounded;
        hy_dtype codes = hy_params_stored(&r->model->params, i, HY_F32);
        if (hy_is_coded(codes)) sets_round(p, codes, values);
        r->model->params.frozen_codes = before;
        char *stored = sets_stored(r, p, store, item, values);
        must(hy_store_write(store, r->compute, hy_store_offset(store, item), stored,
                            hy_layout_item_bytes(&store->layout.items[item])));
        free(values);
        free(stored);
    }
}

static inline void sets_open(sets_rig *r, const sets_choice *choice) {
    sets_choice c = *choice;
    hy_layout all, activations;
    uint64_t on_disk = 0;
    *r = (sets_rig){0};
    c.options.batch = SETS_BATCH;
    c.options.seq = SETS_SEQ;
    c.options.is_training = true;
    c.options.frozen_dtype = c.frozen_dtype ? c.frozen_dtype : c.options.dtype;
    if (!c.options.chunks) c.options.chunks = 2;
    hy_cpu_options cpu = {.threads = 1, .delay_microseconds = c.delay, .delay_seed = 9};
    must(hy_cpu_backend_create(&cpu, &r->backend));
    must(r->backend->stream_create(r->backend, "compute", &r->compute));
    must(r->backend->stream_create(r->backend, "up", &r->up));
    must(r->backend->stream_create(r->backend, "down", &r->down));
    must(hy_model_create(&c.shape, &r->model));
    if (c.trained) must(hy_model_select(r->model, c.trained, c.codes));
    must(hy_batch_plan_create(r->model, r->backend, &c.options, &r->plan));
    must(hy_params_layout(&r->model->params, HY_SET_ALL, HY_F32, &all));
    const hy_batch_bytes *b = &r->plan->bytes;
    uint64_t size = 12 * all.bytes + b->activations + b->workspace + (1 << 16);
    must(hy_arena_init(&r->device, r->backend, &r->ledger, HY_DEVICE, size, "a test"));
    must(hy_arena_init(&r->host, r->backend, &r->ledger, HY_PINNED, size + b->host, "a test"));
    memset(r->device.data, 0xff, r->device.size);
    memset(r->host.data, 0xff, r->host.size);
    temp_folder(r->folder);
    uint64_t disk = hy_store_plan_ring(&all, 3, 0).disk_bytes;
    must(hy_spill_open(r->folder, 4 * disk, NULL, &r->spill));
    for (int i = 0; i < SETS_STORES; i++) sets_take_store(r, &c, i, &on_disk);
    hy_batch_plan_place(r->plan, sets_push(r, HY_ACTIVATIONS, b->activations - b->ring),
                        sets_push(r, HY_WORKSPACE, b->workspace));
    if (c.options.offloads) {
        must(hy_batch_offload_layout(r->plan, &activations));
        must(hy_store_init_streamed(&r->activations, &r->host, &r->device, HY_ACTIVATIONS,
                                    &activations, HY_OFFLOAD_DEPTH, &(hy_copies){r->up, r->down}));
        hy_layout_fini(&activations);
        hy_batch_plan_offload(r->plan, &r->activations);
        r->offloads = true;
    }
    r->tokens = sets_push(r, HY_DATA, SETS_ROWS * 4);
    r->targets = sets_push(r, HY_DATA, SETS_ROWS * 4);
    r->dropout_seed = sets_push(r, HY_DATA, 8);
    r->dropout_seed[0] = r->dropout_seed[1] = 11;
    r->losses = sets_push(r, HY_DATA, SETS_ROWS * 4);
    r->rope = sets_push(r, HY_DATA, SETS_SEQ * 64 * 4);
    if (r->model->shape.has_rope) hy_shape_rope_tables(&r->model->shape, SETS_SEQ, r->rope);
    sets_fill(r, &c);
    hy_layout_fini(&all);
}

static inline void sets_close(sets_rig *r) {
    for (int i = 0; i < SETS_STORES; i++) {
        if (r->has_store[i]) hy_store_fini(&r->stores[i]);
    }
    if (r->offloads) hy_store_fini(&r->activations);
    hy_batch_plan_destroy(r->plan);
    hy_model_destroy(r->model);
    r->backend->stream_destroy(r->compute);
    r->backend->stream_destroy(r->up);
    r->backend->stream_destroy(r->down);
    must(hy_spill_close(r->spill));
    remove_folder(r->folder);
    hy_arena_fini(&r->host);
    hy_arena_fini(&r->device);
    r->backend->destroy(r->backend);
}

static inline hy_store *sets_store(sets_rig *r, int i) {
    return r->has_store[i] ? &r->stores[i] : NULL;
}

static inline hy_batch_input sets_input(sets_rig *r, uint64_t number, bool accumulate) {
    for (uint64_t i = 0; i < SETS_ROWS; i++) {
        uint64_t at = number * SETS_ROWS + i, vocab = (uint64_t)r->model->shape.vocab;
        r->tokens[i] = (int32_t)hy_rng_below(5, HY_RNG_TEST, at, vocab);
        r->targets[i] = (int32_t)hy_rng_below(6, HY_RNG_TEST, at, vocab);
    }
    return (hy_batch_input){.stream = r->compute,
                            .weights = sets_store(r, SETS_WEIGHTS),
                            .frozen = sets_store(r, SETS_FROZEN),
                            .grads = sets_store(r, SETS_GRADS),
                            .tokens = r->tokens,
                            .targets = r->targets,
                            .rope = r->model->shape.has_rope ? r->rope : NULL,
                            .losses = r->losses,
                            .dropout_seed = r->dropout_seed,
                            .loss_scale = 1.0f / SETS_ROWS,
                            .accumulate = accumulate};
}

/* A step of micro-batches: the first overwrites the gradients, the others add to them. */
static inline void sets_train(sets_rig *r) {
    for (uint64_t micro = 0; micro < SETS_MICRO_BATCHES; micro++) {
        hy_batch_input input = sets_input(r, micro, micro > 0);
        must(hy_batch_train(r->plan, &input));
        must(r->backend->stream_sync(r->compute));
    }
    must(hy_store_settle(&r->stores[SETS_GRADS]));
}

/* The values of a parameter in one of the stores; to be freed. */
static inline float *sets_read(sets_rig *r, int store, int32_t param) {
    hy_store *from = &r->stores[store];
    size_t bytes = (size_t)r->model->params.list[param].count * sizeof(float);
    float *values = malloc(bytes);
    must(hy_store_read(from, r->compute, hy_store_offset(from, hy_store_item_of(from, param)),
                       values, bytes));
    return values;
}

/* Losses, and gradients of what `some` trains, are those of `full`. */
static inline void sets_compare(sets_rig *full, sets_rig *some, const char *what) {
    ck_assert_msg(memcmp(full->losses, some->losses, SETS_ROWS * 4) == 0, "losses: %s", what);
    for (int32_t i = 0; i < some->model->params.count; i++) {
        const hy_param *p = &some->model->params.list[i];
        if (!p->is_trainable) continue;
        float *a = sets_read(full, SETS_GRADS, i), *b = sets_read(some, SETS_GRADS, i);
        ck_assert_msg(memcmp(a, b, (size_t)p->count * sizeof *a) == 0, "the gradient of %s: %s",
                      p->name, what);
        free(a);
        free(b);
    }
}

#endif
