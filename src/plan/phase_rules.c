/* phase_rules.c: from settings to the rules of phases. See phase_rules.h. */
#include "plan/phase_rules.h"

hy_status hy_rules_from_settings(const hy_settings *s, int64_t warmup, hy_predictor *predictor,
                                 hy_phase_rules *rules, hy_divergence_limits *limits) {
    *predictor = (hy_predictor){.kind = s->phases.predictor,
                                .mu = s->phases.outer_mu,
                                .eta = s->phases.outer_eta,
                                .max_steps = s->phases.max_predict_steps};
    if (predictor->kind == HY_PREDICTOR_LINE &&
        s->phases.correction_interval < predictor->max_steps) {
        predictor->max_steps =
            s->phases.correction_interval; /* a Correct step follows every jump */
    }
    *rules = (hy_phase_rules){.has_predictor = predictor->kind != HY_PREDICTOR_NONE,
                              .warmup_steps = warmup,
                              .full_steps = s->phases.full_steps,
                              .correct_steps = s->phases.correct_steps,
                              .predict_from = s->phases.predict_from,
                              .predict_until = s->phases.predict_until,
                              .confidence_threshold = s->phases.confidence_threshold,
                              .cooldown_steps = s->phases.cooldown_steps};
    *limits = (hy_divergence_limits){.loss_sigma = s->phases.loss_sigma,
                                     .grad_explosion = s->phases.grad_explosion,
                                     .grad_vanishing = s->phases.grad_vanishing};
    return HY_OK;
}
