/* phase_rules.c: from settings to the rules of phases. See phase_rules.h. */
#include "plan/phase_rules.h"

#include "base/error.h"

static hy_status set_predictor(const hy_settings *s, hy_predictor *p) {
    p->kind = s->phases.predictor;
    p->mu = s->phases.outer_mu;
    p->eta = s->phases.outer_eta;
    p->max_steps = s->phases.max_predict_steps;
    if (p->kind == HY_PREDICTOR_LINE && s->phases.correction_interval < p->max_steps) {
        p->max_steps = s->phases.correction_interval; /* a Correct step follows every jump */
    }
    return HY_OK;
}

hy_status hy_rules_from_settings(const hy_settings *s, int64_t warmup, hy_predictor *predictor,
                                 hy_phase_rules *rules, hy_divergence_limits *limits) {
    HY_TRY(set_predictor(s, predictor));
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
