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
#include "plan/plan_value.h"

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

hy_plan_lack hy_plan_lacks(const hy_plan *plan) {
    if (plan->device_short) return (hy_plan_lack){plan->device_short, "device memory"};
    if (plan->host_short) return (hy_plan_lack){plan->host_short, "host memory"};
    return (hy_plan_lack){plan->disk_short, "disk"};
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
            snprintf(part, sizeof part, "%s of %s, in layers that groups place",
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
    hy_plan_lack lack = hy_plan_lacks(&without);
    if (lack.bytes == 0) {
        hy_plan_reason(s->out,
                       "%s %s: the device has room for these %s, but steps would not be faster",
                       class_names[cls], where, bytes.text);
        return HY_OK;
    }
    hy_plan_reason(s->out,
                   "%s %s: with %s on the device, %s of %s would be missing; the copies cost %.1f "
                   "%% of a step%s",
                   class_names[cls], where, bytes.text, hy_bytes_as_text(lack.bytes).text, lack.of,
                   cost < 0 ? 0 : cost,
                   runs_beside ? "; most of them overlap with the next forward pass" : "");
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
    bool is_same = strcmp(beyond(&without, s->plan).text, "0 B") == 0 && fabs(cost) < 0.5;
    if (is_same) return HY_OK; /* the model has nothing to recompute at this level */
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
    if (!s->p->open.activations) {
        hy_plan_reason(s->out, "activations in pinned memory: requested");
        return HY_OK;
    }
    here.activations = HY_DEVICE;
    HY_TRY(hy_plan_evaluate(s->p, &here, &without));
    hy_plan_reason(s->out,
                   "activations in pinned memory (%s): the device would need %s more for them",
                   hy_bytes_as_text(s->plan->work.train.host).text, beyond(&without, s->plan).text);
    return HY_OK;
}

/* Warmup or Correct may compute in a larger type than Full, which decides the size of the area. */
static hy_status explain_types(const explained *s) {
    const hy_types *types = &s->plan->types;
    const hy_batch_bytes *most = &s->plan->work.train;
    hy_dtype widest = hy_plan_widest_step(s->plan);
    hy_sized_pass full;
    if (widest == types->of[HY_FULL] || most->activations == 0) return HY_OK;
    HY_TRY(hy_sizer_step(s->p->sizer, &s->plan->choice, hy_types_step(types, HY_FULL), &full));
    bool is_warmup = types->of[HY_WARMUP] == widest;
    bool is_both = is_warmup && types->of[HY_CORRECT] == widest && hy_plan_jumps(s->plan);
    hy_plan_reason(s->out, "activations need %s, because %s %s; Full in %s needs %s",
                   hy_bytes_as_text(most->activations + most->host).text,
                   is_both     ? "precision_warmup and precision_correct are"
                   : is_warmup ? "precision_warmup is"
                               : "precision_correct is",
                   hy_dtype_name(widest), hy_dtype_name(types->of[HY_FULL]),
                   hy_bytes_as_text(full.bytes.activations + full.bytes.host).text);
    return HY_OK;
}

/* What the same plan would need with fewer chunks. */
static hy_status explain_chunks(const explained *s, const hy_plan_choice *fewer, int32_t chunks,
                                const char *what, const char *instead, const char *of) {
    hy_plan without;
    HY_TRY(hy_plan_evaluate(s->p, fewer, &without));
    if (without.device <= s->plan->device) return HY_OK;
    hy_plan_reason(s->out, "%s in %d chunks: %s would need %s more for %s", what, chunks, instead,
                   beyond(&without, s->plan).text, of);
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
        hy_plan_reason(s->out, "all layers%s stay on the device: %s",
                       s->p->has_places ? " without a place from a group" : "",
                       s->p->open.resident_units ? "there is room for them" : "requested");
    } else if (c->resident_units > 0) {
        hy_plan_reason(s->out, "%d of %d layers stay on the device: %s", c->resident_units,
                       s->p->layers,
                       s->p->open.resident_units ? "there is room for them" : "requested");
    }
    hy_plan_reason(s->out,
                   "rings of %d layers: copies overlap with computing; waiting takes %.1f %% of a "
                   "step",
                   c->ring_depth, 100 * s->plan->cost.wait / s->plan->cost.seconds);
    return HY_OK;
}

static void explain_batch(const explained *s) {
    const hy_plan_problem *p = s->p;
    const hy_plan_choice *c = &s->plan->choice;
    const char *none = s->plan->fits ? NULL : "nothing fits, and this lacks the least memory";
    bool is_as_given = c->batch == p->base.batch;
    if (p->open.batch && !p->keeps_batch && !(p->prefers_batch && is_as_given)) {
        hy_plan_reason(s->out, "micro-batches of %d x %d tokens, %d of them in a step: %s",
                       c->batch, p->seq, c->accum, none ? none : "the fastest that fits");
    } else if (p->open.batch && !is_as_given) {
        hy_plan_reason(
            s->out, "micro-batches of %d instead of %d sequences, %d of them in a step: %s",
            c->batch, p->base.batch, c->accum, none ? none : "the given size does not fit");
    }
}

hy_status hy_plan_explain(const hy_plan_problem *p, const hy_plan *plan, hy_plan_facts *out) {
    const explained s = {p, plan, out};
    const hy_plan_choice *c = &plan->choice;
    const hy_plan_work *w = &plan->work;
    explain_batch(&s);
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
    HY_TRY(explain_types(&s));
    hy_plan_choice fewer = *c, whole = *c;
    fewer.loss_chunks = p->base.loss_chunks;
    whole.mlp_chunks = 1;
    if (p->open.loss_chunks && fewer.loss_chunks != c->loss_chunks)
        HY_TRY(explain_chunks(&s, &fewer, c->loss_chunks, "loss", "fewer chunks", "logits"));
    int32_t tiles = hy_choice_as_run(c, p->seq).mlp_chunks;
    if (tiles > 1) HY_TRY(explain_chunks(&s, &whole, tiles, "mlps", "whole mlps", "activations"));
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
