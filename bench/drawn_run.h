/* drawn_run.h: random data and weights, so that a run on a GPU starts at once.
 *
 * Token i has a share near 1/i, like words, because the embedding's backward pass depends on how
 * often a token repeats. Weights are drawn on the device with the usual deviation: zeros would use
 * less power and run faster than a real model, and drawing on the host takes long for large models.
 * A run that gets them is created with init_std = 0. */
#ifndef BENCH_DRAWN_RUN_H
#define BENCH_DRAWN_RUN_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "formats/shard.h"
#include "kernels/coded.h"
#include "trainer/trainer.h"

#define DRAWN_DEVIATION 0.02

static inline hy_status drawn_tokens(const char *path, uint64_t count, int64_t vocab) {
    int32_t *tokens = malloc(count * sizeof *tokens);
    if (!tokens)
        return hy_fail(HY_ERR_MEMORY, "no memory for %llu tokens", (unsigned long long)count);
    for (uint64_t i = 0; i < count; i++) {
        double u = hy_rng_uniform(1, HY_RNG_TEST, i);
        int64_t id = (int64_t)exp(u * log((double)vocab)) - 1;
        tokens[i] = (int32_t)(id < vocab ? id : vocab - 1);
    }
    hy_status status = hy_shard_write(path, tokens, count, (uint32_t)vocab, vocab > 65536 ? 4 : 2);
    free(tokens);
    return status;
}

/* A matrix of normal numbers, created on the device. */
static inline hy_status drawn_matrix(hy_trainer *t, hy_store *store, int32_t item,
                                     const hy_param *p) {
    hy_op_call call = {.kind = HY_OP_COMBINE};
    call.t[HY_COMBINE_OUT] = hy_store_tensor(store, item, hy_store_device(store, item));
    call.t[HY_COMBINE_OUT] = hy_tensor_rows(&call.t[HY_COMBINE_OUT], 0, p->stored);
    call.attr.combine.noise = DRAWN_DEVIATION;
    call.attr.seed = 1;
    call.attr.first = (uint64_t)p->first;
    return t->engine->device.backend->enqueue(t->engine->device.compute, &call);
}

/* Quantised normal numbers; in most types, any byte is a number of the usual size. */
static inline void drawn_bytes(hy_dtype dtype, uint8_t *bytes, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        bytes[i] = dtype == HY_E4M3
                       ? hy_fp8_encode(dtype, (float)(50 * hy_rng_normal(1, HY_RNG_TEST, i)))
                       : (uint8_t)hy_rng_u64(1, HY_RNG_TEST, i);
    }
}

/* The quantised values of a frozen matrix, with scales that give numbers of the usual size. */
static inline hy_status drawn_codes(hy_trainer *t, hy_store *store, int32_t item) {
    enum { BYTES = 1 << 20 };
    const hy_layout_item *entry = &store->layout.items[item];
    uint64_t at = hy_store_offset(store, item), codes = hy_dtype_bytes(entry->dtype, entry->count);
    uint64_t scales = hy_layout_scale_bytes(entry), pairs = 0;
    float *numbers = malloc(scales + BYTES);
    if (!numbers) return hy_fail(HY_ERR_MEMORY, "no memory for quantised values");
    uint8_t *random = (uint8_t *)numbers + scales;
    drawn_bytes(entry->dtype, random, BYTES);
    if (entry->group) pairs = (uint64_t)(entry->count / entry->block / entry->group) * 2;
    memset(numbers, 0, scales); /* quantised scales: only the offset counts */
    for (uint64_t i = 0; i < pairs; i++) numbers[i] = i % 2 ? 2.5f * (float)DRAWN_DEVIATION : 1e-3f;
    for (uint64_t i = 0; !entry->group && i < scales / sizeof *numbers; i++)
        numbers[i] = (float)DRAWN_DEVIATION / (entry->dtype == HY_E4M3 ? 50 : 70);
    hy_status status = HY_OK;
    for (uint64_t done = 0; done < codes && status == HY_OK; done += BYTES) {
        uint64_t some = codes - done < BYTES ? codes - done : BYTES;
        status = hy_store_write(store, t->engine->device.compute, at + done, random, some);
    }
    if (status == HY_OK) {
        status = hy_store_write(store, t->engine->device.compute, at + hy_layout_scales_at(entry),
                                numbers, scales);
    }
    free(numbers);
    return status;
}

/* The matrices of a unit in one of the rows. */
static inline hy_status drawn_unit(hy_trainer *t, int row, int32_t unit) {
    const hy_params *params = &t->engine->model->params;
    hy_store *store = hy_store_of(t->engine, row);
    /* Quantised values depend on the backing store (pass 0), numbers on the device (pass 1). */
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) HY_TRY(hy_store_get(store, t->engine->device.compute, unit));
        for (int32_t i = 0; i < params->count; i++) {
            const hy_param *p = &params->list[i];
            int32_t item = p->unit == unit && p->ndim == 2 ? hy_store_item_of(store, i) : -1;
            if (item < 0) continue;
            bool is_coded = hy_is_coded(store->layout.items[item].dtype);
            if (is_coded && pass == 0) HY_TRY(drawn_codes(t, store, item));
            if (!is_coded && pass == 1) HY_TRY(drawn_matrix(t, store, item, p));
        }
    }
    return hy_store_release_changed(store, t->engine->device.compute, unit);
}

/* Call it before the first step. */
static inline hy_status drawn_weights(hy_trainer *t) {
    for (int32_t unit = 0; unit < t->engine->model->params.units; unit++) {
        HY_TRY(drawn_unit(t, HY_ROW_MASTER, unit));
        if (hy_has_row(t->engine, HY_ROW_FROZEN)) HY_TRY(drawn_unit(t, HY_ROW_FROZEN, unit));
    }
    hy_row_changed(t->engine->state, HY_ROW_MASTER);
    return t->engine->device.backend->stream_sync(t->engine->device.compute);
}

#endif
