/* own_loop_rig.h: custom loops over a logistic regression, with correct answers. */
#ifndef HY_TESTS_OWN_LOOP_RIG_H
#define HY_TESTS_OWN_LOOP_RIG_H

#include "own_rig.h"

#define BATCH 32

static char folder[256];

static inline void set_up(void) { temp_folder(folder); }
static inline void tear_down(void) { remove_folder(folder); }

/* A path below it, in one of a few buffers. */
static inline char *path_in(const char *name) {
    static char paths[8][400];
    static int at;
    char *path = paths[at++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static const hy_loop_options usual = {.parameters = {.list = parameters, .count = 2}};

static inline hy_loop *loop_with(const hy_loop_options *options, const char *const *pairs) {
    hy_config *config = config_with(pairs);
    hy_loop *loop;
    learned = nothing;
    gradient = nothing;
    must(hy_loop_create(config, options, NULL, &loop));
    hy_config_destroy(config);
    return loop;
}

static inline hy_loop *new_loop(const char *const *pairs) { return loop_with(&usual, pairs); }

/* ---- driving a loop -------------------------------------------------------------------------- */

typedef struct tally {
    int64_t updates, looks, accepted, rejected, rolled_back, evaluations;
    double last_residual;
} tally;

static inline double loss_of(const hy_loop_step *step) {
    bool wants = step->todo == HY_DO_GRADIENTS;
    int64_t first = step->batch * BATCH, count = step->count * BATCH;
    if (step->todo == HY_DO_EVALUATE) return held_out_loss(&learned);
    if (wants) gradient = nothing;
    return loss_sum(&learned, first, count, wants ? step->loss_scale / (double)count : 1,
                    wants ? &gradient : NULL) /
           (double)count;
}

static inline void note(hy_loop *loop, const hy_loop_step *step, tally *t) {
    hy_step_info last;
    t->updates += step->todo == HY_DO_GRADIENTS;
    t->looks += step->todo == HY_DO_LOSS;
    t->evaluations += step->todo == HY_DO_EVALUATE;
    if (!hy_loop_last(loop, &last)) return;
    if (!isnan(last.residual_cosine)) t->last_residual = last.residual_cosine;
}

static inline void honest_answer(hy_loop *loop, const hy_loop_step *step, tally *t) {
    must(hy_loop_answer(loop, loss_of(step), step->todo == HY_DO_EVALUATE ? 1 : BATCH));
    note(loop, step, t);
}

static inline hy_loop_step next_step(hy_loop *loop) {
    hy_loop_step step;
    must(hy_loop_next(loop, &step));
    return step;
}

static inline tally run_to_the_end(hy_loop *loop) {
    tally t = {.last_residual = NAN};
    for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop)) {
        honest_answer(loop, &step, &t);
    }
    return t;
}

/* Honest answers until one of this phase is asked for; it is left to the caller. */
static inline hy_loop_step run_until(hy_loop *loop, hy_phase phase) {
    tally t = {0};
    for (;;) {
        hy_loop_step step = next_step(loop);
        ck_assert(!step.is_over);
        if (step.phase == phase) return step;
        honest_answer(loop, &step, &t);
    }
}

static inline logistic learn(const hy_loop_options *options, const char *const *pairs) {
    hy_loop *loop = loop_with(options, pairs);
    run_to_the_end(loop);
    hy_loop_destroy(loop);
    return learned;
}

#endif
