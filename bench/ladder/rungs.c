/* rungs.c: the table of rows, and the figures of a finished row. See rungs.h. */
#include "ladder/rungs.h"

/* The first row sets everything that a later row changes, so that no profile, preset or planner
 * affects it. Attention never keeps a matrix of scores. Validation batches have a fixed size: the
 * library would enlarge them if there is room, and sums in another order have other bits. */
static const rung rungs[] = {
    {"fp32", NULL, false, {{"precision", "fp32"},           {"precision_correct", "same"},
                           {"precision_predict", "same"},   {"recompute", "none"},
                           {"grad_accum_steps", "1"},       {"grad_dtype", "fp32"},
                           {"optimizer", "adamw"},          {"optim_dtype", "fp32"},
                           {"master_dtype", "fp32"},        {"predictor_dtype", "fp32"},
                           {"weights_place", "device"},     {"master_place", "device"},
                           {"grads_place", "device"},       {"optim_place", "device"},
                           {"activations_place", "device"}, {"update", "now"},
                           {"recompute_layers", "0"},       {"resident_units", "0"},
                           {"offload_strategy", "none"},    {"lookahead", "0"},
                           {"eval_batch_size", "1"}}},
    {"bf16", NULL, false, {{"precision", "bf16"}}},
    {"recompute norm", NULL, true, {{"recompute", "norm"}}},
    {"recompute attention", NULL, true, {{"recompute", "attention"}}},
    {"recompute mlp", NULL, true, {{"recompute", "mlp"}}},
    {"recompute all", NULL, true, {{"recompute", "all"}}},
    {"bf16 gradients", NULL, false, {{"grad_dtype", "bf16"}}},
    {"bf16 m and v", NULL, false, {{"optim_dtype", "bf16"}}},
    {"8-bit m and v", NULL, false, {{"optimizer", "adamw8bit"}, {"optim_dtype", "auto"}}},
    {"bf16 master", NULL, false, {{"master_dtype", "bf16"}}},
    {"8-bit predictor", NULL, false, {{"predictor_dtype", "8bit"}}},
    {"m and v pinned", NULL, true, {{"optim_place", "pinned"}}},
    {"gradients pinned", NULL, true, {{"grads_place", "pinned"}}},
    {"weights streamed", NULL, true, {{"weights_place", "pinned"}}},
    {"activations pinned", NULL, true, {{"activations_place", "pinned"}}},
    {"update on gather", NULL, true, {{"update", "gather"}}},
    {"fp8 matmuls", "recompute norm", false, {{"precision", "fp8"}}},
    {"fp8, recompute all", "fp8 matmuls", true, {{"recompute", "all"}}},
    {"fp8, streamed", "fp8, recompute all", true, {{"weights_place", "pinned"}}},
    {"LoRA", "bf16", false, {{"lora", "true"}}},
    {"QLoRA", NULL, false, {{"qlora", "true"}}},
    {"QLoRA, recompute all", NULL, true, {{"recompute", "all"}}},
    {"QLoRA, streamed", NULL, true, {{"weights_place", "pinned"}}},
    {"Predict: cpu", "recompute all", true, {{"offload_strategy", "cpu"}}},
    {"Predict: pinned", "recompute all", true, {{"offload_strategy", "pinned"}}},
    {"Predict: lookahead", "Predict: pinned", true, {{"lookahead", "2"}}},
    {"Predict: compress", "recompute all", false, {{"offload_strategy", "compress"}}},
    {"Predict: drop", "recompute all", false, {{"offload_strategy", "drop"}}},
    {"conservative", RUNG_GROUND, false, {{"profile", "conservative"}}},
    {"balanced", RUNG_GROUND, false, {{"profile", "balanced"}}},
    {"aggressive", RUNG_GROUND, false, {{"profile", "aggressive"}}},
};

enum { RUNG_COUNT = sizeof rungs / sizeof rungs[0] };
_Static_assert(RUNG_COUNT <= RUNGS_MAX, "a ladder has room for every rung");

bool rung_is_profile(const rung *r) {
    return r->stands_on && strcmp(r->stands_on, RUNG_GROUND) == 0;
}

const rung *rung_at(int i) { return i < RUNG_COUNT ? &rungs[i] : NULL; }

int rung_below(int i) {
    if (!rungs[i].stands_on) return i - 1;
    if (rung_is_profile(&rungs[i])) return -1;
    int below = i - 1;
    while (strcmp(rungs[below].name, rungs[i].stands_on) != 0) below--;
    return below;
}

hy_status rung_configure(hy_config *config, int i) {
    if (i < 0) return HY_OK;
    HY_TRY(rung_configure(config, rung_below(i)));
    for (int k = 0; k < RUNG_PAIRS_MAX && rungs[i].pairs[k][0]; k++) {
        HY_TRY(hy_config_set(config, rungs[i].pairs[k][0], rungs[i].pairs[k][1], HY_FROM_CALLER));
    }
    return HY_OK;
}

/* ---- reading results ------------------------------------------------------------------------- */

uint64_t climbed_most(const climbed *c, hy_place place) {
    uint64_t most = 0;
    for (int p = 0; p < HY_PHASE_COUNT; p++) {
        uint64_t bytes = phase_measured(&c->run.summary.phases[p], place);
        if (bytes > most) most = bytes;
    }
    return most;
}

bool climbed_has_same_loss(const ladder *l, const climbed *c) {
    return c->on >= 0 &&
           memcmp(&c->run.val_loss, &l->rungs[c->on].run.val_loss, sizeof c->run.val_loss) == 0;
}

bool climbed_is_planned(const climbed *c) {
    static const hy_phase phases[] = {HY_FULL, HY_PREDICT};
    for (int i = 0; i < 2; i++) {
        const hy_phase_summary *p = &c->run.summary.phases[phases[i]];
        plan_error device = plan_error_of(p->vram_planned_bytes, p->vram_peak_bytes);
        plan_error pinned =
            plan_error_of(phase_planned(p, HY_PINNED), phase_measured(p, HY_PINNED));
        plan_error host = plan_error_of(phase_planned(p, HY_HOST), phase_measured(p, HY_HOST));
        if (!device.is_within || !pinned.is_within || !host.is_within) return false;
    }
    return true;
}
