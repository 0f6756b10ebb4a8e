/* drawn_run.h: data and weights that are drawn, so that a run on a GPU begins at once.
 *
 * Tokens are drawn so that id i has a share near 1/i, as words have, because the embedding's backward
 * pass depends on how often a token repeats. Weights are drawn on the device with the usual deviation:
 * zeros would cost less power and run faster than a real model does, and drawing on the host, as a run
 * does it, takes long for large models. A run that is to get them is made with init_std = 0. */
#ifndef BENCH_DRAWN_RUN_H
#define BENCH_DRAWN_RUN_H

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/rng.h"
#include "formats/shard.h"
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

/* Matrices become normal numbers, made on the device unit by unit. */
static inline hy_status drawn_unit(hy_trainer *t, int32_t unit) {
    const hy_params *params = &t->engine.model->params;
    HY_TRY(hy_store_get(hy_store_of(&t->engine, HY_ROW_MASTER), t->engine.compute, unit));
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        if (p->unit != unit || p->ndim < 2) continue;
        hy_op_call call = {.kind = HY_OP_COMBINE};
        call.t[HY_COMBINE_OUT] =
            hy_store_tensor(hy_store_of(&t->engine, HY_ROW_MASTER), i,
                            hy_store_device(hy_store_of(&t->engine, HY_ROW_MASTER), i));
        call.t[HY_COMBINE_OUT] = hy_tensor_rows(&call.t[HY_COMBINE_OUT], 0, p->stored);
        call.attr.combine.noise = DRAWN_DEVIATION;
        call.attr.combine.seed = 1;
        call.attr.combine.first = (uint64_t)p->first;
        HY_TRY(t->engine.backend->enqueue(t->engine.compute, &call));
    }
    return hy_store_release_changed(hy_store_of(&t->engine, HY_ROW_MASTER), t->engine.compute,
                                    unit);
}

/* Before the first step. */
static inline hy_status drawn_weights(hy_trainer *t) {
    for (int32_t unit = 0; unit < t->engine.model->params.units; unit++)
        HY_TRY(drawn_unit(t, unit));
    hy_row_changed(&t->engine, HY_ROW_MASTER);
    return t->engine.backend->stream_sync(t->engine.compute);
}

#endif
