/* reasons.c: the reasons for a plan, one sentence per decision. See plan.h.
 *
 * A reason is found by undoing one decision: how much memory the plan would need then, and how
 * long a step would take if it fitted. levels.c calls this for the plan that it has chosen; it adds
 * its own reasons for number types and prediction. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"
#include "base/text.h"
#include "config/settings.h"
#include "plan/plan.h"

/* Names of the classes of HY_PLAN_WEIGHTS and so on. */
static const char *const class_names[HY_PLAN_STATES] = {"weights", "fp32 weights", "gradients",
                                                        "optimizer state"};

void hy_plan_reason(hy_plan_facts *facts, const char *format, ...) {
    va_list args;
    if (facts->reason_count == HY_PLAN_REASONS) return;
    va_start(args, format);
    vsnprintf(facts->reasons[facts->reason_count++], HY_PLAN_TEXT, format, args);
    va_end(args);
}

/* Additional device memory that the other plan needs. */
static hy_bytes_text beyond(const hy_plan *other, const hy_plan *plan) {
    return hy_bytes_as_text(other->device > plan->device ? other->device - plan->device : 0);
}

/* The cost of a decision compared with the plan without it, in percent of a step. */
static double cost_over(const hy_plan *plan, const hy_plan *without) {
    return 100 * (plan->cost.seconds - without->cost.seconds) / plan->cost.seconds;
}

/* What a sentence is about: the problem, the chosen plan, and where the sentence goes. */
typedef struct explained {
    const hy_plan_problem *p;
    const hy_plan *plan;
    hy_plan_facts *out;
} explained;

static hy_status explain_state(const explained *s, int cls) {
    hy_plan_choice here = s->plan->choice;
    hy_plan without;
    if (here.state[cls] == HY_DEVICE || here.state[cls] == HY_NOWHERE) return HY_OK;
    const char *where = here.state[cls] == HY_DISK ? "on disk" : "in pinned memory";
    if (!s->p->open.state[cls]) {
        const hy_plan_state *state = &s->plan->state;
        bool is_part = s->p->has_places && state->streamed[cls] < state->bytes[cls];
        char part[96] = "requested";
        if (is_part)
            snprintf(part, sizeof part, "%s of %s; groups place layers",
                     hy_bytes_as_text(state->streamed[cls]).text,
                     hy_bytes_as_text(state->bytes[cls]).text);
        hy_plan_reason(s->out, "%s %s: %s", class_names[cls], where, part);
        return HY_OK;
    }
    here.state[cls] = HY_DEVICE;
    HY_TRY(hy_plan_evaluate(s->p, &here, &without));
    double cost = cost_over(s->plan, &without);
    hy_bytes_text bytes = hy_bytes_as_text(s->plan->state.bytes[cls]);
    bool runs_beside = cls == HY_PLAN_OPTIM && here.keeps_update_pending;
    if (without.device_short == 0 && cost < 0.05) {
        hy_plan_reason(s->out, "%s %s: its %s would fit on the device, but no step would be faster",
                       class_names[cls], where, bytes.text);
        return HY_OK;
    }
    hy_plan_reason(
        s->out, "%s %s: with its %s on the device, %s would not fit; costs %.1f %% of a step%s",
        class_names[cls], where, bytes.text, hy_bytes_as_text(without.device_short).text,
        cost < 0 ? 0 : cost, runs_beside ? ", because updates run with the next forward" : "");
    return HY_OK;
}

static hy_status explain_recompute(const explained *s) {
    hy_plan_choice kept = s->plan->choice;
    hy_plan without;
    if (kept.recompute == HY_RECOMPUTE_NONE) return HY_OK;
    const char *name = hy_choice_name("recompute", kept.recompute);
    int32_t all = s->p->layers, layers = kept.recompute_layers ? kept.recompute_layers : all;
    if (!s->p->open.recompute) {
        hy_plan_reason(s->out, "recompute %s: requested", name);
        return HY_OK;
    }
    kept.recompute = HY_RECOMPUTE_NONE;
    kept.recompute_layers = 0;
    HY_TRY(hy_plan_evaluate(s->p, &kept, &without));
    double cost = cost_over(s->plan, &without);
    hy_plan_reason(s->out,
                   "recompute %s in %d of %d layers: keeping activations would need %s more%s%.0f "
                   "%% of a step",
                   name, layers, all, beyond(&without, s->plan).text,
                   cost < 0 ? " and cost " : "; recomputing costs ", fabs(cost));
    return HY_OK;
}

static hy_status explain_activations(const explained *s) {
    hy_plan_choice here = s->plan->choice;
    hy_plan without;
    if (here.activations == HY_DEVICE) return HY_OK;
    here.activations = HY_DEVICE;
    HY_TRY(hy_plan_evaluate(s->p, &here, &without));
    hy_plan_reason(s->out,
                   "activations are kept in pinned memory (%s): on the device they would need %s "
                   "more",
                   hy_bytes_as_text(s->plan->work.train.host).text, beyond(&without, s->plan).text);
    return HY_OK;
}

static hy_status explain_chunks(const explained *s) {
    hy_plan_choice fewer = s->plan->choice;
    hy_plan without;
    int32_t chunks = fewer.loss_chunks;
    fewer.loss_chunks = s->p->base.loss_chunks;
    if (!s->p->open.loss_chunks || fewer.loss_chunks == chunks) return HY_OK;
    HY_TRY(hy_plan_evaluate(s->p, &fewer, &without));
    if (without.device <= s->plan->device) return HY_OK;
    hy_plan_reason(s->out, "loss in %d chunks: fewer chunks would need %s more for logits", chunks,
                   beyond(&without, s->plan).text);
    return HY_OK;
}

static hy_status explain_streaming(const explained *s) {
    const hy_plan_choice *c = &s->plan->choice;
    hy_plan_choice now = *c;
    hy_plan without;
    char share[48] = "";
    if (!hy_choice_streams(c)) return HY_OK;
    if (c->keeps_update_pending) {
        now.keeps_update_pending = false;
        HY_TRY(hy_plan_evaluate(s->p, &now, &without));
        double saved = -cost_over(s->plan, &without);
        if (saved >= 0.05) snprintf(share, sizeof share, ": saves %.1f %% of a step", saved);
        hy_plan_reason(s->out, "a layer is updated when the next step gathers it%s", share);
    }
    if (c->resident_units > s->p->layers) {
        hy_plan_reason(s->out, "the layers that no group places stay on the device: there is room "
                               "for them");
    } else if (c->resident_units > 0) {
        hy_plan_reason(s->out, "%d of %d layers stay on the device: there is room for them",
                       c->resident_units, s->p->layers);
    }
    hy_plan_reason(s->out,
                   "rings of %d layers: copies overlap with computing; waiting takes %.1f %% of a "
                   "step",
                   c->ring_depth, 100 * s->plan->cost.wait / s->plan->cost.seconds);
    return HY_OK;
}

hy_status hy_plan_explain(const hy_plan_problem *p, const hy_plan *plan, hy_plan_facts *out) {
    const explained s = {p, plan, out};
    const hy_plan_choice *c = &plan->choice;
    const hy_plan_work *w = &plan->work;
    bool is_as_given = c->batch == p->base.batch;
    if (p->open.batch && !p->keeps_batch && !(p->prefers_batch && is_as_given)) {
        hy_plan_reason(out, "micro-batch of %d x %d tokens, %d in a step: the fastest that fits",
                       c->batch, p->seq, c->accum);
    } else if (p->open.batch && !is_as_given) {
        hy_plan_reason(
            out, "micro-batch of %d instead of %d sequence%s, %d in a step: nothing else fits",
            c->batch, p->base.batch, p->base.batch == 1 ? "" : "s", c->accum);
    }
    for (int cls = 0; cls < HY_PLAN_STATES; cls++) HY_TRY(explain_state(&s, cls));
    if (c->predictor == HY_DISK && plan->state.kept > 0) {
        hy_plan_reason(out, "the predictor's state (%s) is on disk: %s",
                       hy_bytes_as_text(plan->state.kept).text,
                       p->open.predictor ? "the host has no room for it" : "requested");
    }
    if (p->update_share >= 0.001) {
        hy_plan_reason(out, "muon's matmuls take %.1f %% of the compute of forward and backward",
                       100 * p->update_share);
    }
    HY_TRY(explain_recompute(&s));
    HY_TRY(explain_activations(&s));
    HY_TRY(explain_chunks(&s));
    HY_TRY(explain_streaming(&s));
    if (w->loan[1]) {
        int32_t batch = 0;
        for (int i = 0; i < HY_PLAN_TYPES; i++) {
            if (w->eval_batch[i] > batch) batch = w->eval_batch[i];
        }
        hy_plan_reason(
            out, "evaluation uses batches of %d x %d tokens: it borrows %s of idle training memory",
            batch * w->slices, p->seq,
            hy_bytes_as_text(w->lent.activations + w->lent.workspace).text);
    }
    if (hy_choice_is_plain(c) && c->recompute == HY_RECOMPUTE_NONE && plan->fits) {
        hy_plan_reason(out, "everything fits on the device: no streaming and no recomputing");
    }
    return HY_OK;
}
