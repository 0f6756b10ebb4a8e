/* loop_formula.c: linear combinations of arrays, some elements at a time. See loop_formula.h. */
#include "own/loop_formula.h"

#define RUN 256 /* elements in one go: three buffers of doubles stay in the first cache */

static int64_t run_length(const hy_formula_block *block, int64_t at) {
    return block->count - at < RUN ? block->count - at : RUN;
}

static void add_term(double *out, double by, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] += by * (double)from[i];
}

/* out = the formula's sum for elements [at, at + n). */
static void evaluate(const hy_formula *f, const hy_formula_block *block, int64_t at, int64_t n,
                     double *out) {
    for (int64_t i = 0; i < n; i++) out[i] = 0;
    if (f->theta != 0) add_term(out, f->theta, block->theta + at, n);
    for (int s = 0; s < HY_PREDICTOR_SLOTS; s++) {
        if (f->slot[s] != 0) add_term(out, f->slot[s], block->slot[s] + at, n);
    }
}

void hy_formula_run(const hy_formula *f, const hy_formula_block *block) {
    float *target = f->target < 0 ? block->theta : block->slot[f->target];
    double sum[RUN];
    for (int64_t at = 0; at < block->count; at += RUN) {
        int64_t n = run_length(block, at);
        evaluate(f, block, at, n, sum);
        for (int64_t i = 0; i < n; i++) target[at + i] = (float)sum[i];
    }
}

void hy_formula_measure(const hy_formula *move, const hy_formula *displacement,
                        const hy_formula_block *block, hy_move_sums *sums) {
    double moved[RUN], displaced[RUN];
    for (int64_t at = 0; at < block->count; at += RUN) {
        int64_t n = run_length(block, at);
        hy_move_sums part = {0};
        evaluate(move, block, at, n, moved);
        evaluate(displacement, block, at, n, displaced);
        for (int64_t i = 0; i < n; i++) {
            part.dot += moved[i] * displaced[i];
            part.square += displaced[i] * displaced[i];
        }
        sums->dot += part.dot;
        sums->square += part.square;
    }
}
