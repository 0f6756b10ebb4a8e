/* checks.h: what must hold of an opened golden file, on any backend: each is one test, but for
 * opening and closing. The bounds are the caller's. */
#ifndef HY_TESTS_GOLDEN_CHECKS_H
#define HY_TESTS_GOLDEN_CHECKS_H

#include "golden/compare.h"

/* Norm of the difference over norm of PyTorch's, for tensors; relative, for numbers. */
typedef struct golden_bounds {
    double tensor, loss, norm;
} golden_bounds;

static const char *const golden_cases[] = {"gpt2",  "llama", "llama3-rope",
                                           "qwen2", "qwen3", "mistral"};
static const char *const golden_curves[] = {"gpt2", "llama", "qwen2", "qwen3"};
static const int32_t golden_chunkings[] = {1, 2, 5};
enum { GOLDEN_CASES = 6, GOLDEN_CURVES = 4, GOLDEN_CHUNKINGS = 3 };

static inline void check_logits(golden *g, const golden_bounds *bounds) {
    for (int c = 0; c < GOLDEN_CHUNKINGS; c++) {
        trial t;
        open_trial(&t, g, 0, golden_chunkings[c], false);
        double far = logits_distance(&t);
        ck_assert_msg(far <= bounds->tensor, "%s, %d chunks: the logits are off by %.2e", g->name,
                      golden_chunkings[c], far);
        close_trial(&t);
    }
}

static inline void check_loss_and_gradients(const golden *g, const golden_bounds *bounds,
                                            int recompute, int32_t chunks) {
    const char *name = "";
    double loss = loss_distance(g), gradient = worst_gradient(g, &name);
    ck_assert_msg(loss <= bounds->loss, "%s, recompute %d, %d chunks: the loss is off by %.2e",
                  g->name, recompute, chunks, loss);
    ck_assert_msg(gradient <= bounds->tensor,
                  "%s, recompute %d, %d chunks: the gradient of %s is off by %.2e", g->name,
                  recompute, chunks, name, gradient);
}

static inline void check_training(golden *g, const golden_bounds *bounds, int recompute,
                                  int32_t chunks) {
    trial t;
    open_trial(&t, g, recompute, chunks, true);
    train(&t);
    check_loss_and_gradients(g, bounds, recompute, chunks);
    close_trial(&t);
}

/* Recompute settings 0 to settings - 1 give the same bits of losses and gradients. */
static inline void check_recomputation(golden *g, int settings) {
    size_t rows = (size_t)g->batch * (size_t)g->seq;
    float *losses = NULL, *grads = NULL;
    for (int recompute = 0; recompute < settings; recompute++) {
        trial t;
        open_trial(&t, g, recompute, 2, true);
        train(&t);
        float *new_losses = from_device(g, g->losses, 4 * rows);
        float *new_grads = from_device(g, g->grads.data, g->grads.layout.bytes);
        if (recompute > 0) {
            ck_assert_mem_eq(new_losses, losses, 4 * rows);
            ck_assert_mem_eq(new_grads, grads, g->grads.layout.bytes);
        }
        free(losses);
        free(grads);
        losses = new_losses;
        grads = new_grads;
        close_trial(&t);
    }
    free(losses);
    free(grads);
}

/* Two passes of half the loss accumulate to the gradients of one. */
static inline void check_half_passes(golden *g, const golden_bounds *bounds) {
    trial t;
    open_trial(&t, g, 0, 2, true);
    spoil_results(g);
    for (int pass = 0; pass < 2; pass++) {
        hy_batch_input input = input_of(g, 0.5 / (double)g->counted, pass > 0);
        must(hy_batch_train(t.plan, &input));
    }
    must(g->backend->stream_sync(g->stream));
    check_loss_and_gradients(g, bounds, 0, 2);
    close_trial(&t);
}

static inline void check_ten_steps(golden *g, const golden_bounds *bounds) {
    trial t;
    open_trial(&t, g, 0, 1, true);
    hy_optimizer adamw = adamw_of(g);
    int32_t steps = int_of(g, "steps");
    float *losses = bytes_of(g, entry_of(g, "losses"));
    float *norms = bytes_of(g, entry_of(g, "norms"));
    clear_moments(g);
    ck_assert_int_eq(steps, 10);
    for (int32_t step = 0; step < steps; step++) {
        double norm = adamw_step(&t, &adamw, double_of(g, "lr"), step), loss = mean_loss(g);
        ck_assert_msg(relative(loss, losses[step]) <= bounds->loss,
                      "%s, step %d: the loss is %.8g, PyTorch's %.8g", g->name, step, loss,
                      losses[step]);
        ck_assert_msg(relative(norm, norms[step]) <= bounds->norm,
                      "%s, step %d: the norm is %.8g, PyTorch's %.8g", g->name, step, norm,
                      norms[step]);
    }
    free(losses);
    free(norms);
    close_trial(&t);
}

/* Fifty steps within `bound` of PyTorch's losses; how far the worst is. */
static inline double check_curve(golden *g, double bound) {
    trial t;
    open_trial(&t, g, 0, 2, true);
    double far = curve_distance(&t);
    ck_assert_msg(far <= bound, "%s in %s: a loss of fifty is off by %.2e", g->name,
                  hy_dtype_name(g->dtype), far);
    close_trial(&t);
    return far;
}

#endif
