/* monitor_savings.c: what saves memory in this run, and what would. See hybrid.h.
 *
 * Each saving is compared with the same run without it: the code that plans a run's memory plans
 * both (plan/advice.c). Phase-dependent savings are measured after the phase has run. */
#include "trainer/monitor_savings.h"

#include <stdio.h>
#include <stdlib.h>

#include "plan/advice.h"

typedef struct savings {
    const hy_trainer *t;
    const hy_engine *engine;
    hy_plan_bytes now;     /* bytes of the run as it is */
    hy_settings *settings; /* settings of the same run with one saving turned on or off */
    hy_plan_choice choice; /* and its plan choice */
    hy_savings *out;
} savings;

static hy_saving *add(savings *s, const char *name, const char *key, const char *now, bool is_on) {
    hy_saving *it = &s->out->list[s->out->count++];
    *it =
        (hy_saving){.name = name, .key = key, .other = "", .is_on = is_on, .phase = HY_PHASE_COUNT};
    snprintf(it->now, sizeof it->now, "%.47s", now);
    *s->settings = *s->t->settings; /* the caller changes one of them */
    s->choice = s->engine->plan->choice;
    return it;
}

/* Fills in the difference between the run and the run with this saving turned on or off. */
static hy_status compare(savings *s, hy_saving *it, const char *other) {
    hy_plan_bytes bytes;
    HY_TRY(hy_advise_bytes(&s->engine->request, s->engine->plan, s->settings, &s->choice, &bytes));
    int sign = it->is_on ? 1 : -1;
    it->other = other;
    it->device_bytes = sign * (bytes.device - s->now.device);
    it->host_bytes = sign * (bytes.host - s->now.host);
    it->seconds = sign * (bytes.seconds - s->now.seconds);
    return HY_OK;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static hy_status add_recompute(savings *s) {
    const hy_plan_choice *now = &s->engine->plan->choice;
    bool is_on = now->recompute != HY_RECOMPUTE_NONE, is_part = is_on && now->recompute_layers > 0;
    const char *name = hy_choice_name("recompute", now->recompute);
    char text[64];
    snprintf(text, sizeof text, is_part ? "%.16s, in %d of %d layers" : "%.16s", name,
             now->recompute_layers, s->engine->model->shape.layers);
    hy_saving *it = add(s, "recompute", "recompute", text, is_on);
    s->choice.recompute = is_on ? HY_RECOMPUTE_NONE : HY_RECOMPUTE_ALL;
    return compare(s, it, is_on ? "none" : "all");
}

static hy_status add_loss_chunks(savings *s) {
    int32_t chunks =
        hy_plan_loss_chunks(&s->engine->request, s->engine->plan, &s->engine->plan->choice);
    bool is_on = chunks > 1;
    char text[48];
    snprintf(text, sizeof text, "%d chunks", chunks);
    hy_saving *it = add(s, "loss in chunks", "loss_chunks", text, is_on);
    s->choice.loss_chunks = is_on ? 1 : 8;
    return compare(s, it, is_on ? "1" : "8");
}

/* ---- state ----------------------------------------------------------------------------------- */

static hy_status add_place(savings *s, const char *name, const char *key, size_t offset) {
    hy_place now = *(hy_place *)((char *)&s->engine->plan->choice + offset);
    bool is_on = now != HY_DEVICE;
    if (now == HY_NOWHERE || (!is_on && !hy_request_streams(&s->engine->request))) return HY_OK;
    hy_saving *it = add(s, name, key, hy_place_name(now), is_on);
    *(hy_place *)((char *)&s->choice + offset) = is_on ? HY_DEVICE : HY_PINNED;
    return compare(s, it, is_on ? "device" : "pinned");
}

#define PLACE(member) offsetof(hy_plan_choice, member)

static hy_status add_places(savings *s) {
    static const struct {
        const char *name, *key;
        size_t offset;
    } places[] = {
        {"activations off the device", "activations_place", PLACE(activations)},
        {"weights off the device", "weights_place", PLACE(state[HY_PLAN_WEIGHTS])},
        {"gradients off the device", "grads_place", PLACE(state[HY_PLAN_GRADS])},
        {"optimizer state off the device", "optim_place", PLACE(state[HY_PLAN_OPTIM])},
        {"fp32 weights off the device", "master_place", PLACE(state[HY_PLAN_MASTER])},
    };
    const hy_custom_side *m = s->t->provider->memory;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        bool is_callers =
            m && !m->types.keeps_weights && (i < 2 || (i == 2 && !m->types.sums_grads));
        if (!is_callers) HY_TRY(add_place(s, places[i].name, places[i].key, places[i].offset));
    }
    return HY_OK;
}

static hy_status add_types(savings *s) {
    const hy_types *types = &s->engine->plan->types;
    bool is_on = types->optim != HY_F32;
    const char *now = types->optim == HY_U8 ? "8bit" : hy_dtype_name(types->optim);
    hy_saving *it;
    if (!s->engine->plan->optimizer.kind->is_exact) {
        it = add(s, "small optimizer state", "optim_dtype", now, is_on);
        s->settings->optimizer.optim_dtype = is_on ? HY_DTYPE_F32 : HY_DTYPE_8BIT;
        HY_TRY(compare(s, it, is_on ? "fp32" : "8bit"));
    }
    is_on = types->grads != HY_F32;
    if (is_on || types->of[HY_FULL] == HY_BF16) {
        it = add(s, "small gradients", "grad_dtype", hy_dtype_name(types->grads), is_on);
        s->settings->train.grad_dtype = is_on ? HY_DTYPE_F32 : HY_DTYPE_BF16;
        HY_TRY(compare(s, it, is_on ? "fp32" : "bf16"));
    }
    /* bf16 weights alone replace fp32 weights and their rounded copy, if every phase computes in
     * bf16. */
    is_on = types->master == HY_BF16;
    it = add(s, "bf16 weights alone", "master_dtype", hy_dtype_name(types->master), is_on);
    s->settings->optimizer.master_dtype = is_on ? HY_DTYPE_F32 : HY_DTYPE_BF16;
    hy_status status = compare(s, it, is_on ? "fp32" : "bf16");
    if (status != HY_ERR_INPUT) return status;
    s->out->count--; /* not possible with the run's precision */
    return HY_OK;
}

/* ---- phases ---------------------------------------------------------------------------------- */

static bool has_predicted(const savings *s) { return s->t->progress->phases.steps[HY_PREDICT] > 0; }

/* During Predict the optimizer's state is elsewhere, smaller or dropped. Its compressed size is
 * the planned one, because at the start of Predict the state is still complete. */
static void add_offload(savings *s) {
    const hy_cell *full = &s->engine->state->ledger.cell[HY_OPTIM][HY_FULL];
    const hy_cell *predict = &s->engine->state->ledger.cell[HY_OPTIM][HY_PREDICT];
    hy_offload strategy = s->engine->plan->offload;
    if (!s->t->schedule->rules.has_predictor || full->place != HY_DEVICE) return;
    bool is_on = strategy != HY_OFFLOAD_NONE, stays = strategy == HY_OFFLOAD_COMPRESS;
    hy_saving *it = add(s, "optimizer state off the device in Predict", "offload_strategy",
                        hy_choice_name("offload_strategy", (int)strategy), is_on);
    it->other = is_on ? "none" : "pinned";
    it->phase = HY_PREDICT;
    it->is_measured = is_on && !stays && has_predicted(s);
    it->device_bytes = (int64_t)(it->is_measured ? full->measured : full->planned) -
                       (stays ? (int64_t)predict->planned : 0);
    it->host_bytes = is_on && !hy_offload_moves(strategy)
                         ? 0
                         : -(int64_t)s->engine->plan->state.bytes[HY_PLAN_OPTIM];
}

/* Predict keeps no gradients and nothing for a backward pass. */
static void add_predict(savings *s) {
    const hy_ledger *l = &s->engine->state->ledger;
    if (!s->t->schedule->rules.has_predictor) return;
    hy_saving *it = add(s, "forward only in Predict", "", "on", true);
    it->phase = HY_PREDICT;
    it->is_measured = has_predicted(s);
    const hy_class dropped[] = {HY_GRADS, HY_ACTIVATIONS, HY_WORKSPACE};
    for (size_t i = 0; i < sizeof dropped / sizeof dropped[0]; i++) {
        const hy_cell *full = &l->cell[dropped[i]][HY_FULL];
        const hy_cell *predict = &l->cell[dropped[i]][HY_PREDICT];
        int64_t before = (int64_t)(it->is_measured ? full->measured : full->planned);
        int64_t after = (int64_t)(it->is_measured ? predict->measured : predict->planned);
        if (full->place == HY_DEVICE) it->device_bytes += before;
        if (predict->place == HY_DEVICE) it->device_bytes -= after;
    }
}

/* Evaluation and the predictor's rings use the memory of training's activations. */
static void add_sharing(savings *s) {
    const hy_plan_work *w = &s->engine->plan->work;
    uint64_t training = w->train.activations + w->train.workspace;
    uint64_t others = w->eval.activations + w->eval.workspace + s->engine->plan->state.work_rings;
    hy_saving *it = add(s, "one work area for all passes", "", "on", true);
    it->device_bytes = (int64_t)(training < others ? training : others);
}

/* ---- time ------------------------------------------------------------------------------------ */

static hy_status add_gather(savings *s) {
    const hy_plan_choice *now = &s->engine->plan->choice;
    bool is_on = now->keeps_update_pending;
    if (!is_on && !hy_choice_streams(now)) return HY_OK;
    hy_saving *it = add(s, "update on gather", "update", is_on ? "gather" : "now", is_on);
    s->choice.keeps_update_pending = !is_on;
    return compare(s, it, is_on ? "now" : "gather");
}

/* Without the engine's passes, only savings of the state count. */
static hy_status add_all(savings *s) {
    bool has_passes = s->t->provider->facts.has_passes;
    if (has_passes) HY_TRY(add_recompute(s));
    if (has_passes) HY_TRY(add_loss_chunks(s));
    HY_TRY(add_places(s));
    HY_TRY(add_types(s));
    add_offload(s);
    if (has_passes) add_predict(s);
    if (has_passes) add_sharing(s);
    return has_passes ? add_gather(s) : HY_OK;
}

hy_status hy_trainer_find_savings(const hy_trainer *t, hy_savings *out) {
    savings s = {.t = t, .engine = t->engine, .out = out, .settings = malloc(sizeof *s.settings)};
    *out = (hy_savings){0};
    if (!s.settings) return hy_fail(HY_ERR_MEMORY, "not enough memory for planning");
    hy_status status = hy_advise_bytes(&t->engine->request, t->engine->plan, t->settings,
                                       &t->engine->plan->choice, &s.now);
    if (status == HY_OK) status = add_all(&s);
    free(s.settings);
    return status;
}
