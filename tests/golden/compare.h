/* compare.h: how far what our code makes of a golden file is from what PyTorch makes of it. */
#ifndef HY_TESTS_GOLDEN_COMPARE_H
#define HY_TESTS_GOLDEN_COMPARE_H

#include <math.h>

#include "batch_logits.h"
#include "golden/golden.h"
#include "update_all.h"

/* |a - b| / |b|; infinity when a has a NaN, so that no comparison lets it pass. */
static inline double distance(const float *a, const float *b, int64_t count) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    double far = sqrt(difference / norm);
    return isnan(far) ? INFINITY : far;
}

static inline double relative(double a, double b) {
    double far = fabs(a - b) / fabs(b);
    return isnan(far) ? INFINITY : far;
}

/* How far a tensor of a store is from the one the file keeps under prefix.name. */
static inline double store_distance(const golden *g, const hy_store *store, int32_t index,
                                    const char *prefix) {
    const hy_safetensors_entry *entry = entry_of(g, "%s.%s", prefix, param_at(g, index)->name);
    float *expected = bytes_of(g, entry);
    float *ours = from_device(g, hy_store_backing(store, index), entry->bytes);
    double far = distance(ours, expected, param_at(g, index)->count);
    free(expected);
    free(ours);
    return far;
}

static inline double worst_gradient(const golden *g, const char **name) {
    double worst = 0;
    for (int32_t i = 0; i < g->model->params.count; i++) {
        double far = store_distance(g, &g->grads, i, "grad");
        if (far < worst) continue;
        worst = far;
        *name = param_at(g, i)->name;
    }
    return worst;
}

static inline double loss_distance(const golden *g) {
    float *expected = bytes_of(g, entry_of(g, "loss"));
    double far = relative(mean_loss(g), *expected);
    free(expected);
    return far;
}

static inline double logits_distance(trial *t) {
    golden *g = t->g;
    const hy_safetensors_entry *entry = entry_of(g, "logits");
    int64_t rows = (int64_t)g->batch * g->seq, vocab = g->model->shape.vocab;
    ck_assert_uint_eq(entry->bytes, (uint64_t)(rows * vocab) * sizeof(float));
    float *ours = malloc(entry->bytes);
    ck_assert_ptr_nonnull(ours);
    hy_batch_input input = input_of(g, 1, false);
    int64_t most = t->plan->size.tile_rows[HY_RANGE_LOSS];
    for (int64_t first = 0; first < rows; first += most) {
        int64_t count = rows - first < most ? rows - first : most;
        must(batch_logits(t->plan, &input, first, count));
        float *piece = from_device(g, t->plan->logits, (size_t)(count * vocab) * sizeof(float));
        for (int64_t i = 0; i < count * vocab; i++) {
            ours[first * vocab + i] = shaped_logit(&g->model->shape, piece[i]);
        }
        free(piece);
    }
    float *expected = bytes_of(g, entry);
    double far = distance(ours, expected, rows * vocab);
    free(expected);
    free(ours);
    return far;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static inline hy_optimizer adamw_of(const golden *g) {
    return (hy_optimizer){.kind = hy_optimizer_kind_of(HY_ADAMW),
                          .beta1 = double_of(g, "beta1"),
                          .beta2 = double_of(g, "beta2"),
                          .eps = double_of(g, "eps"),
                          .weight_decay = double_of(g, "weight_decay"),
                          .max_norm = double_of(g, "grad_clip")};
}

static inline void clear_moments(golden *g) {
    void *zeros = calloc(1, g->m.layout.bytes);
    ck_assert_ptr_nonnull(zeros);
    to_device(g, g->m.data, zeros, g->m.layout.bytes);
    to_device(g, g->v.data, zeros, g->v.layout.bytes);
    free(zeros);
}

/* One step; returns the gradient's norm. */
static inline double adamw_step(trial *t, const hy_optimizer *adamw, double lr, int64_t step) {
    golden *g = t->g;
    hy_optimizer_state state = {.optimizer = adamw,
                                .params = &g->model->params,
                                .backend = g->backend,
                                .weights = &g->weights,
                                .grads = &g->grads,
                                .arrays = {&g->m, &g->v},
                                .master = g->dtype == HY_F32 ? NULL : &g->master,
                                .square_sum = g->square_sum,
                                .clip = g->clip,
                                .workspace = g->workspace};
    train(t);
    must(hy_optimizer_clip(&state, g->stream, 1));
    update_all(&state, g->stream, (hy_optimizer_step){.lr = lr, .count = step});
    must(g->backend->stream_sync(g->stream));
    float *clip = from_device(g, g->clip, 2 * sizeof(float));
    double norm = clip[0];
    free(clip);
    return norm;
}

/* ---- curves ---------------------------------------------------------------------------------- */

enum { CURVE_STEPS = 50, CURVE_BATCHES = 4, CURVE_SHIFT = 5 };

/* PyTorch's losses of fifty steps: curves.safetensors, by make_curves.py. */
static inline void read_curve(const char *name, float losses[CURVE_STEPS]) {
    char path[1024];
    hy_safetensors *file;
    golden_path(path, "curves");
    must(hy_safetensors_open(path, &file));
    const hy_safetensors_entry *entry = hy_safetensors_find(file, name);
    ck_assert_msg(entry && entry->bytes == CURVE_STEPS * sizeof(float), "no curve of %s", name);
    must(hy_safetensors_read(file, entry, 0, losses, entry->bytes));
    hy_safetensors_close(file);
}

/* The file's tokens or targets, moved on by `shift` in the vocabulary. */
static inline void load_moved(const golden *g, const char *what, int32_t *device, int32_t shift) {
    int32_t *values = bytes_of(g, entry_of(g, "%s", what));
    int64_t rows = (int64_t)g->batch * g->seq;
    for (int64_t i = 0; i < rows; i++) {
        if (values[i] >= 0) values[i] = (values[i] + shift) % g->model->shape.vocab;
    }
    to_device(g, device, values, (size_t)rows * sizeof *values);
    free(values);
}

/* Fifty steps; returns how far the worst loss is from PyTorch's, relative. */
static inline double curve_distance(trial *t) {
    golden *g = t->g;
    hy_optimizer adamw = adamw_of(g);
    float expected[CURVE_STEPS];
    double worst = 0;
    read_curve(g->name, expected);
    clear_moments(g);
    for (int step = 0; step < CURVE_STEPS; step++) {
        load_moved(g, "tokens", g->tokens, CURVE_SHIFT * (step % CURVE_BATCHES));
        load_moved(g, "targets", g->targets, CURVE_SHIFT * (step % CURVE_BATCHES));
        adamw_step(t, &adamw, double_of(g, "lr"), step);
        worst = fmax(worst, relative(mean_loss(g), expected[step]));
    }
    return worst;
}

#endif
