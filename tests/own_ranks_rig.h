/* own_ranks_rig.h: a custom model and a custom loop as ranks of ranks_rig.h.
 *
 * The model is linear over samples that use a few weights each, drawn by number, so that gradients
 * are cheap for any number of parameters. Parameters are placed at odd distances in memory.
 * Micro-batches have different numbers of samples. Ranks begin with different weights, and rank 0's
 * must be used. */
#ifndef HY_TESTS_OWN_RANKS_RIG_H
#define HY_TESTS_OWN_RANKS_RIG_H

#include "kernels/half.h"
#include "ranks_rig.h"

#define OWN_RUN                                                                                    \
    "grad_accum_steps 6 lr 0.03 lr_warmup_steps 2 threads 1 device cpu transport sockets "         \
    "rank_timeout 30 weight_decay 0.01 grad_clip 1 normalize true profile balanced "

#define OWN_MOST 6 /* parameters */
#define TOUCHED 24 /* weights of a sample, */
#define SPOTS 1999 /* of so many, so that each step sees what the one before has changed */
#define HELD_OUT 1000000
#define HELD_OUT_COUNT 96

typedef struct own_variant {
    const char *name, *words;
    int64_t size[OWN_MOST]; /* elements of each parameter; 0: no more */
    hy_dtype dtype, grad_dtype;
    bool is_loop;    /* a loop of its own, not callbacks */
    bool is_each;    /* sums_gradients */
    bool is_in_turn; /* uses_in_turn */
    distance apart;
    int jumps;
} own_variant;

/* What a rank has. */
typedef struct own_work {
    const own_variant *v;
    int rank;
    int32_t count;
    int64_t elements;
    void *weights[OWN_MOST], *grads[OWN_MOST];
    hy_parameter list[OWN_MOST];
    int64_t asked; /* questions for gradients */
    int loaded;    /* whose part of a checkpoint it was given; -1: none */
} own_work;

/* For tests of what goes wrong: what a rank does at its question of this number; NULL: nothing. */
typedef struct own_fault {
    int rank;
    int64_t at;
    hy_status status;            /* that its callback gives, */
    bool is_nan;                 /* or its loss is not finite, */
    bool dies;                   /* or it is killed, */
    bool stops, destroys, saves; /* or what its loop does; all save */
} own_fault;

typedef struct own_task {
    const own_variant *v;
    const own_fault *fault;
    int64_t *hashes; /* (RIG_MOST) of the weights at the end, shared; NULL: nobody wants them */
    bool is_other;   /* parameters of rank 1 have other names */
} own_task;

/* ---- numbers --------------------------------------------------------------------------------- */

static inline double own_get(const void *at, hy_dtype dtype, int64_t i) {
    if (dtype == HY_F32) return (double)((const float *)at)[i];
    uint16_t bits = ((const uint16_t *)at)[i];
    return (double)(dtype == HY_BF16 ? hy_bf16_to_f32(bits) : hy_f16_to_f32(bits));
}

static inline void own_put(void *at, hy_dtype dtype, int64_t i, double x) {
    if (dtype == HY_F32) ((float *)at)[i] = (float)x;
    if (dtype == HY_BF16) ((uint16_t *)at)[i] = hy_f32_to_bf16((float)x);
    if (dtype == HY_F16) ((uint16_t *)at)[i] = hy_f32_to_f16((float)x);
}

/* Weight number i of all: whose it is, and which. */
static inline int32_t own_find(const own_work *w, int64_t *i) {
    int32_t p = 0;
    while (*i >= w->v->size[p]) *i -= w->v->size[p++];
    return p;
}

/* The loss of a sample; adds scale times its gradient where it is not 0. */
static inline double own_sample(own_work *w, int64_t sample, double scale) {
    const own_variant *v = w->v;
    int32_t param[TOUCHED];
    int64_t at[TOUCHED];
    double x[TOUCHED], error = 0;
    int64_t spots = w->elements < SPOTS ? w->elements : SPOTS;
    for (int k = 0; k < TOUCHED; k++) {
        uint64_t number = (uint64_t)sample * TOUCHED + (uint64_t)k;
        uint64_t bits = hy_rng_u64(3, HY_RNG_TEST, number);
        at[k] = (int64_t)(bits % (uint64_t)spots) * (w->elements / spots);
        double truth = (double)(at[k] % 7) / 3 - 1;
        x[k] = 2 * hy_rng_uniform(4, HY_RNG_TEST, number) - 1;
        param[k] = own_find(w, &at[k]);
        error += x[k] * (own_get(w->weights[param[k]], v->dtype, at[k]) - truth);
    }
    error += hy_rng_uniform(5, HY_RNG_TEST, (uint64_t)sample) - 0.5;
    for (int k = 0; k < TOUCHED && scale != 0; k++) {
        void *grad = w->grads[param[k]];
        double sum = own_get(grad, v->grad_dtype, at[k]) + scale * error * x[k];
        own_put(grad, v->grad_dtype, at[k], sum);
    }
    return 0.5 * error * error;
}

static inline int64_t own_samples(int64_t batch) { return 8 + 4 * (batch % 3); }

static inline double own_batch(own_work *w, int64_t batch, double scale) {
    double sum = 0;
    for (int64_t i = 0; i < own_samples(batch); i++) sum += own_sample(w, batch * 16 + i, scale);
    return sum;
}

/* Each rank looks at its share of what is held out. */
static inline double own_held_out(own_work *w, int64_t *counted) {
    hy_rank_info who;
    double sum = 0;
    require(hy_find_rank(&who) == HY_OK);
    for (int64_t i = who.rank; i < HELD_OUT_COUNT; i += who.count) {
        sum += own_sample(w, HELD_OUT + i, 0);
        ++*counted;
    }
    return sum;
}

/* ---- as callbacks ---------------------------------------------------------------------------- */

static const own_fault *own_trouble; /* of this process */

static inline bool own_is_due(const own_work *w) {
    bool is_due = own_trouble && own_trouble->rank == w->rank && own_trouble->at == w->asked;
    if (is_due && own_trouble->dies) kill(getpid(), SIGKILL);
    return is_due;
}

static inline hy_status own_forward(void *user, int64_t batch, double *sum, int64_t *counted) {
    *sum = own_batch(user, batch, 0);
    *counted = own_samples(batch);
    return HY_OK;
}

static inline hy_status own_backward(void *user, int64_t batch, double scale, double *sum,
                                     int64_t *counted) {
    own_work *w = user;
    w->asked++;
    bool is_due = own_is_due(w);
    if (is_due && !own_trouble->is_nan) return own_trouble->status;
    *sum = is_due ? NAN : own_batch(w, batch, scale);
    *counted = own_samples(batch);
    return HY_OK;
}

static inline hy_status own_evaluate(void *user, double *sum, int64_t *counted) {
    *sum = own_held_out(user, counted);
    return HY_OK;
}

/* A part of the checkpoint that is the caller's: which rank gave it. */
static inline hy_status own_save(void *user, void **bytes, size_t *size) {
    const own_work *w = user;
    int *copy = malloc(sizeof *copy);
    *copy = w->rank;
    *bytes = copy;
    *size = sizeof *copy;
    return HY_OK;
}

static inline hy_status own_load(void *user, const void *bytes, size_t size) {
    own_work *w = user;
    require(size == sizeof(int));
    memcpy(&w->loaded, bytes, size);
    return HY_OK;
}

static inline hy_own_model own_model_of(own_work *w) {
    const own_variant *v = w->v;
    return (hy_own_model){.parameters = {.list = w->list,
                                         .count = w->count,
                                         .dtype = v->dtype,
                                         .grad_dtype = v->grad_dtype,
                                         .sums_gradients = v->is_each,
                                         .user = w,
                                         .save = own_save,
                                         .load = own_load},
                          .user = w,
                          .forward = own_forward,
                          .backward = own_backward,
                          .evaluate = own_evaluate};
}

static inline hy_status own_train_model(own_work *w, const hy_config *config,
                                        const hy_observer *observer) {
    hy_own_model model = own_model_of(w);
    hy_trainer *trainer;
    hy_status status = hy_trainer_create_own(config, &model, observer, &trainer);
    if (status == HY_OK) status = hy_trainer_run(trainer);
    hy_trainer_destroy(trainer);
    return status;
}

/* ---- as a loop ------------------------------------------------------------------------------- */

static inline void own_zero(own_work *w) {
    for (int32_t p = 0; p < w->count; p++) {
        memset(w->grads[p], 0, (size_t)w->v->size[p] * hy_dtype_size(w->v->grad_dtype));
    }
}

/* Means, and gradients of means, over the micro-batches that are asked for. */
static inline hy_status own_answer(own_work *w, hy_loop *loop, const hy_loop_step *step) {
    int64_t samples = 0;
    double sum = 0;
    if (step->todo == HY_DO_EVALUATE) {
        sum = own_held_out(w, &samples);
        return hy_loop_answer(loop, sum / (double)samples, samples);
    }
    for (int64_t i = 0; i < step->count; i++) samples += own_samples(step->batch + i);
    bool wants = step->todo == HY_DO_GRADIENTS;
    if (wants && w->v->is_in_turn) {
        for (int32_t p = 0; p < w->count; p += 2) require(hy_loop_use(loop, p) == HY_OK);
        require(hy_loop_use(loop, -1) == HY_OK);
    }
    if (wants) own_zero(w);
    double scale = wants ? step->loss_scale / (double)samples : 0;
    for (int64_t i = 0; i < step->count; i++) sum += own_batch(w, step->batch + i, scale);
    if (wants && own_trouble && own_trouble->is_nan && own_is_due(w)) sum = NAN;
    return hy_loop_answer(loop, sum / (double)samples, samples);
}

static inline hy_status own_train_loop(own_work *w, const hy_config *config,
                                       const hy_observer *observer) {
    const own_variant *v = w->v;
    hy_loop_options options = {.parameters = {.list = w->list,
                                              .count = w->count,
                                              .dtype = v->dtype,
                                              .grad_dtype = v->grad_dtype,
                                              .sums_gradients = v->is_each},
                               .uses_in_turn = v->is_in_turn,
                               .can_evaluate = true,
                               .can_rewind = true};
    hy_loop *loop;
    hy_loop_step step;
    hy_status status = hy_loop_create(config, &options, observer, &loop);
    while (status == HY_OK && (status = hy_loop_next(loop, &step)) == HY_OK && !step.is_over) {
        w->asked += step.todo == HY_DO_GRADIENTS;
        bool is_due = step.todo == HY_DO_GRADIENTS && own_is_due(w);
        if (is_due && own_trouble->destroys) break;
        if (is_due && own_trouble->stops) status = hy_loop_stop(loop);
        bool saves = own_trouble && own_trouble->saves && own_trouble->at == w->asked;
        if (saves && step.todo == HY_DO_GRADIENTS) status = hy_loop_save(loop);
        if (status == HY_OK && !(is_due && own_trouble->stops)) status = own_answer(w, loop, &step);
    }
    hy_loop_destroy(loop);
    return status;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

/* On odd borders: nothing is contiguous, and nothing is round. */
static inline void own_make(own_work *w, bool is_other) {
    static char names[OWN_MOST][32];
    const own_variant *v = w->v;
    for (int32_t p = 0; p < OWN_MOST && v->size[p] > 0; p++, w->count++) {
        size_t size = hy_dtype_size(v->dtype), grad_size = hy_dtype_size(v->grad_dtype);
        char *weights = calloc((size_t)v->size[p] + 9, size);
        char *grads = calloc((size_t)v->size[p] + 9, grad_size);
        require(weights && grads);
        w->weights[p] = weights + (size_t)(3 + p) * size;
        w->grads[p] = grads + (size_t)(8 - p) * grad_size;
        snprintf(names[p], sizeof names[p], "%s.%d.weight", is_other ? "other" : "layer", p);
        bool is_matrix = v->size[p] % 4 == 0;
        w->list[p] = (hy_parameter){.name = names[p],
                                    .weights = w->weights[p],
                                    .grads = w->grads[p],
                                    .ndim = is_matrix ? 2 : 1,
                                    .shape = {is_matrix ? 4 : v->size[p], v->size[p] / 4}};
        for (int64_t i = 0; i < v->size[p]; i++) {
            double first = (double)(i % 11) / 20 + w->rank;
            own_put(w->weights[p], v->dtype, i, first);
        }
        w->elements += v->size[p];
    }
}

static inline int64_t own_hash(const own_work *w) {
    uint64_t hash = 0;
    for (int32_t p = 0; p < w->count; p++) {
        const unsigned char *bytes = w->weights[p];
        size_t size = (size_t)w->v->size[p] * hy_dtype_size(w->v->dtype);
        for (size_t i = 0; i < size; i++) hash = hash * 1099511628211u + bytes[i] + 1;
    }
    return (int64_t)hash;
}

static inline void own_free(own_work *w) {
    for (int32_t p = 0; p < w->count; p++) {
        free((char *)w->weights[p] - (size_t)(3 + p) * hy_dtype_size(w->v->dtype));
        free((char *)w->grads[p] - (size_t)(8 - p) * hy_dtype_size(w->v->grad_dtype));
    }
}

static inline hy_status own_train(const ranks_run *run, int rank, const hy_config *config,
                                  const hy_observer *observer) {
    const own_task *task = run->user;
    own_work w = {.v = task->v, .rank = rank, .loaded = -1};
    own_make(&w, task->is_other && rank == 1);
    own_trouble = task->fault;
    hy_status status =
        w.v->is_loop ? own_train_loop(&w, config, observer) : own_train_model(&w, config, observer);
    if (task->hashes) task->hashes[rank] = own_hash(&w);
    if (run->is_resumed && !w.v->is_loop) require(w.loaded == 0);
    own_free(&w);
    return status;
}

#endif
