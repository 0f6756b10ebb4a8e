/* loop.h: phases, optimizer and predictor over arrays that the caller owns: inside this
 * module only.
 *
 * The state behind hy_loop_* (hybrid.h, section 5b), and the few calls that hy_train_own needs
 * beyond it. All memory is taken at creation. Always true between calls: `turn` names the only
 * call that may come next; weights hold a candidate only while it is hy_loop_judge's turn, and the
 * snapshot then holds what they were, bit for bit. */
#pragma once

#include "config/settings.h"
#include "hybrid.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "phases/confidence.h"
#include "phases/divergence.h"
#include "phases/guard.h"
#include "phases/machine.h"
#include "phases/predictor.h"

/* The call that comes next. */
typedef enum hy_loop_turn {
    HY_TURN_NEXT = 0,
    HY_TURN_UPDATE,
    HY_TURN_PROPOSE,
    HY_TURN_JUDGE,
    HY_TURN_OVER /* the compute is spent */
} hy_loop_turn;

struct hy_loop {
    hy_parameter *parameters; /* copied; names too */
    int32_t count;
    int64_t elements; /* of all parameters together */

    hy_schedule schedule;
    hy_optimizer adamw;
    hy_phase_rules rules;
    hy_divergence_limits limits;
    hy_predictor predictor;
    double budget;     /* in full steps */
    double guard_cost; /* of one guard pass, in full steps */

    float *memory; /* all of the following in one piece, (elements) each */
    float *m, *v;
    float *buffer[HY_PREDICTOR_BUFFERS]; /* NULL: the predictor has none */
    float *snapshot;                     /* weights before the last jump; NULL: there is none */

    hy_loop_turn turn;
    hy_phase_state state; /* of the step in progress, or of the last one while `has_news` */
    bool has_news;        /* `seen` is not in `state` yet: hy_loop_next takes it in */
    hy_observation seen;
    hy_divergence divergence;
    hy_health health; /* of the last optimizer step */
    hy_guard guard;
    hy_confidence confidence;
    double started; /* share of the budget that was spent when this step began */
    double spent;   /* in full steps */
    double lr;
    int64_t updates; /* the optimizer's clock: sets the bias correction */
    int skips_in_a_row;
    double scale, predicted_steps; /* of the jump in the making */
};

/* loop.c: whether the compute is spent. */
bool hy_loop_is_over(const hy_loop *loop);
/* hy_loop_update with the gradient multiplied by `grad_scale` first. may_overflow: a gradient that is not
 * finite is the fault of its loss scale; the update is skipped, but it is no divergence. */
hy_status hy_loop_update_scaled(hy_loop *loop, double loss, double grad_scale, bool may_overflow,
                                hy_loop_outcome *out);

/* loop_arrays.c. All weights in one array (elements), and back. */
void hy_loop_gather(const hy_loop *loop, float *flat);
void hy_loop_scatter(const hy_loop *loop, const float *flat);
double hy_loop_grad_norm(const hy_loop *loop,
                         double grad_scale); /* not finite when a gradient is not */
/* The update with gradients of that norm, clipped. */
void hy_loop_adamw_step(hy_loop *loop, double grad_scale, double norm);
void hy_loop_run(hy_loop *loop, const hy_formulas *formulas);
/* <jump, displacement> and |displacement|^2, of the window's displacement. */
void hy_loop_measure(const hy_loop *loop, const hy_formula *move, double *dot, double *square);
/* The way since the last jump against the jump itself: direction and length. NaN: unknown. */
void hy_loop_measure_residual(const hy_loop *loop, double *cosine, double *length);
