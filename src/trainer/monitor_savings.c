/* monitor_savings.c: what saves memory on this run, and what would. See hybrid.h.
 *
 * Each is held against the same run with that one thing turned round: both are planned by the
 * code that takes a run's memory. What depends on the phase is measured once the phase has run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trainer/memory_plan.h"
#include "trainer/monitor.h"

typedef struct savings {
    const hy_trainer *t;
    hy_monitor_bytes now; /* of the run as it is */
    hy_settings *other;   /* of the run turned round */
    hy_savings *out;
} savings;

static hy_saving *add(savings *s, const char *name, const char *key, const char *now, bool is_on) {
    hy_saving *it = &s->out->list[s->out->count++];
    *it =
        (hy_saving){.name = name, .key = key, .other = "", .is_on = is_on, .phase = HY_PHASE_COUNT};
    snprintf(it->now, sizeof it->now, "%.47s", now);
    return it;
}

/* Fills in what turning it round changes; s->other says how. */
static hy_status compare(savings *s, hy_saving *it) {
    hy_monitor_bytes other;
    HY_TRY(hy_monitor_plan(s->t, s->other, &other));
    int sign = it->is_on ? 1 : -1;
    it->device_bytes = sign * (other.device - s->now.device);
    it->host_bytes = sign * (other.host - s->now.host);
    it->seconds = sign * (other.seconds - s->now.seconds);
    return HY_OK;
}

static hy_settings *turn_round(savings *s) {
    *s->other = s->t->settings;
    return s->other;
}

/* Something that a choice turns on and off. */
typedef struct subject {
    const char *name, *key;
    const char *off, *on; /* values; on: the one that saves most */
} subject;

static hy_status turn(savings *s, const subject *x, const char *now, bool is_on) {
    hy_saving *it = add(s, x->name, x->key, now, is_on);
    it->other = is_on ? x->off : x->on;
    hy_setting_store(hy_setting_find(x->key, NULL), it->other, turn_round(s));
    return compare(s, it);
}

static bool may_stream(const hy_trainer *t) {
    return t->engine.backend->facts.is_gpu || t->settings.memory.max_gpu_mem > 0;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static hy_status add_recompute(savings *s) {
    static const subject all = {"recompute", "recompute", "none", "all"};
    const hy_settings *now = &s->t->settings;
    bool is_on = now->train.recompute != HY_RECOMPUTE_NONE;
    bool is_part = is_on && now->train.recompute_layers > 0;
    char text[64];
    snprintf(text, sizeof text, is_part ? "%.16s, in %lld of %d layers" : "%.16s",
             hy_choice_name("recompute", now->train.recompute),
             (long long)now->train.recompute_layers, s->t->engine.model->shape.layers);
    return turn(s, &all, text, is_on);
}

static hy_status add_loss_chunks(savings *s) {
    const hy_batch_plan *plan =
        s->t->engine.work.train[hy_plan_index(s->t->engine.types.of[HY_FULL])];
    char text[48];
    if (!plan) return HY_OK;
    snprintf(text, sizeof text, "%d pieces", plan->chunk_count);
    bool is_on = plan->chunk_count > 1;
    hy_saving *it = add(s, "loss in pieces", "loss_chunks", text, is_on);
    it->other = is_on ? "1" : "8";
    turn_round(s)->train.loss_chunks = is_on ? 1 : 8;
    return compare(s, it);
}

/* ---- state ----------------------------------------------------------------------------------- */

static hy_status add_place(savings *s, const subject *x) {
    char now[HY_TEXT_MAX];
    hy_setting_format(hy_setting_find(x->key, NULL), &s->t->settings, now);
    bool is_on = strcmp(now, "auto") != 0 && strcmp(now, x->off) != 0;
    return is_on || may_stream(s->t) ? turn(s, x, now, is_on) : HY_OK;
}

static hy_status add_places(savings *s) {
    static const subject places[] = {
        {"activations off the device", "activations_place", "device", "pinned"},
        {"weights off the device", "weights_place", "device", "pinned"},
        {"gradients off the device", "grads_place", "device", "pinned"},
        {"optimizer state off the device", "optim_place", "device", "pinned"},
        {"fp32 weights off the device", "master_place", "device", "pinned"},
    };
    int count = s->t->engine.types.has_low ? 5 : 4; /* the last is of runs with both */
    for (int i = 0; i < count; i++) HY_TRY(add_place(s, &places[i]));
    return HY_OK;
}

static hy_status add_small_state(savings *s) {
    static const subject state = {"small optimizer state", "optim_dtype", "fp32", "8bit"};
    static const subject gradients = {"small gradients", "grad_dtype", "fp32", "bf16"};
    hy_dtype optim = hy_settings_optim_dtype(&s->t->settings);
    hy_dtype grads = s->t->settings.train.grad_dtype;
    const char *now = optim == HY_U8 ? "8bit" : hy_dtype_name(optim);
    HY_TRY(turn(s, &state, now, optim != HY_F32));
    bool may_be_small = grads != HY_F32 || s->t->engine.types.of[HY_FULL] == HY_BF16;
    return may_be_small ? turn(s, &gradients, hy_dtype_name(grads), grads != HY_F32) : HY_OK;
}

/* Every phase that the run has computes in bf16: the weights that are updated may be bf16 alone. */
static bool may_have_bf16_master(const hy_trainer *t) {
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        bool is_used = t->course.rules.has_predictor || i == HY_FULL || i == HY_WARMUP;
        if (is_used && t->engine.types.of[i] != HY_BF16) return false;
    }
    return true;
}

/* fp32 weights and their rounded copy, or bf16 alone: 6 bytes a parameter, or 2. */
static hy_status add_master(savings *s) {
    const hy_trainer *t = s->t;
    hy_layout wide;
    bool is_on = t->engine.types.master == HY_BF16;
    if (!is_on && !may_have_bf16_master(t)) return HY_OK;
    HY_TRY(hy_params_layout(&t->engine.model->params, HY_F32, &wide));
    int64_t bytes = (int64_t)wide.bytes; /* the bf16 copy is there either way */
    hy_layout_fini(&wide);
    hy_place lies = hy_place_setting(is_on ? t->settings.memory.weights_place
                                           : t->settings.memory.master_place);
    hy_saving *it =
        add(s, "bf16 weights alone", "master_dtype", hy_dtype_name(t->engine.types.master), is_on);
    it->other = is_on ? "fp32" : "bf16";
    it->device_bytes = lies == HY_DEVICE ? bytes : 0;
    it->host_bytes = lies == HY_PINNED ? bytes : 0;
    return HY_OK;
}

/* ---- phases ---------------------------------------------------------------------------------- */

static bool has_predicted(const hy_trainer *t) { return t->progress.phase_steps[HY_PREDICT] > 0; }

/* Optimizer state is away, smaller or forgotten while Predict runs. What compressing leaves is planned:
 * at the beginning of Predict it is still there in full. */
static void add_offload(savings *s) {
    const hy_trainer *t = s->t;
    const hy_cell *full = &t->engine.ledger.cell[HY_OPTIM][HY_FULL];
    const hy_cell *predict = &t->engine.ledger.cell[HY_OPTIM][HY_PREDICT];
    if (!t->course.rules.has_predictor || full->place != HY_DEVICE) return;
    bool is_on = t->engine.optim.strategy != HY_OFFLOAD_NONE;
    bool moves =
        t->engine.optim.strategy == HY_OFFLOAD_CPU || t->engine.optim.strategy == HY_OFFLOAD_PINNED;
    bool stays = t->engine.optim.strategy == HY_OFFLOAD_COMPRESS;
    hy_saving *it = add(s, "optimizer state away in Predict", "offload_strategy",
                        hy_choice_name("offload_strategy", t->engine.optim.strategy), is_on);
    it->other = is_on ? "none" : "pinned";
    it->phase = HY_PREDICT;
    it->is_measured = is_on && !stays && has_predicted(t);
    it->device_bytes = (int64_t)(it->is_measured ? full->measured : full->planned) -
                       (stays ? (int64_t)predict->planned : 0);
    it->host_bytes = is_on && !moves ? 0 : -(int64_t)t->engine.optim.bytes;
}

/* Predict keeps no gradients and nothing for a way back. */
static void add_predict(savings *s) {
    const hy_ledger *l = &s->t->engine.ledger;
    if (!s->t->course.rules.has_predictor) return;
    hy_saving *it = add(s, "forward only in Predict", "", "on", true);
    it->phase = HY_PREDICT;
    it->is_measured = has_predicted(s->t);
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

/* Evaluation and the predictor's rings work where training's activations lie in steps. */
static void add_sharing(savings *s) {
    const hy_trainer *t = s->t;
    uint64_t activations = 0, workspace = 0;
    uint64_t others = t->engine.work.eval_bytes.activations + t->engine.work.eval_bytes.workspace +
                      t->engine.work.ring_bytes;
    for (int i = 0; i < 2; i++) {
        const hy_batch_plan *plan = t->engine.work.train[i];
        if (plan && plan->bytes.activations > activations) activations = plan->bytes.activations;
        if (plan && plan->bytes.workspace > workspace) workspace = plan->bytes.workspace;
    }
    uint64_t training = activations + workspace;
    hy_saving *it = add(s, "one work area for all passes", "", "on", true);
    it->device_bytes = (int64_t)(training < others ? training : others);
}

/* ---- time ------------------------------------------------------------------------------------ */

static hy_status add_gather(savings *s) {
    const hy_trainer *t = s->t;
    const hy_state_choice c = hy_state_choice_of(&t->settings);
    bool streams = c.weights != HY_DEVICE || c.grads != HY_DEVICE || c.optim != HY_DEVICE;
    if (!streams && !t->engine.update.is_on_gather) return HY_OK;
    static const subject gather = {"update on gather", "update", "now", "gather"};
    return turn(s, &gather, t->engine.update.is_on_gather ? "gather" : "now",
                t->engine.update.is_on_gather);
}

static hy_status add_all(savings *s) {
    HY_TRY(add_recompute(s));
    HY_TRY(add_loss_chunks(s));
    HY_TRY(add_places(s));
    HY_TRY(add_small_state(s));
    HY_TRY(add_master(s));
    add_offload(s);
    add_predict(s);
    add_sharing(s);
    return add_gather(s);
}

hy_status hy_trainer_savings(const hy_trainer *t, hy_savings *out) {
    HY_TRY(hy_trainer_must_have_plan(t));
    savings s = {.t = t, .out = out, .other = malloc(sizeof *s.other)};
    *out = (hy_savings){0};
    if (!s.other) return hy_fail(HY_ERR_MEMORY, "no memory for planning");
    hy_status status = hy_monitor_plan(t, &t->settings, &s.now);
    if (status == HY_OK) status = add_all(&s);
    free(s.other);
    return status;
}
