/* variants.c: the table of rows, and the figures of a finished row. See variants.h. */
#include "ladder/variants.h"

/* The first row sets everything that a later row changes, so that no profile, preset or planner
 * affects it. Attention never keeps a matrix of scores. Validation batches have a fixed size: the
 * library would enlarge them if there is room, and sums in another order have other bits. */
static const variant variants[] = {
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
    {"conservative", VARIANT_ALONE, false, {{"profile", "conservative"}}},
    {"balanced", VARIANT_ALONE, false, {{"profile", "balanced"}}},
    {"aggressive", VARIANT_ALONE, false, {{"profile", "aggressive"}}},
};

enum { VARIANT_COUNT = sizeof variants / sizeof variants[0] };
_Static_assert(VARIANT_COUNT <= VARIANTS_MAX, "all variants fit into a ladder");

bool variant_is_profile(const variant *v) {
    return v->based_on && strcmp(v->based_on, VARIANT_ALONE) == 0;
}

const variant *variant_at(int i) { return i < VARIANT_COUNT ? &variants[i] : NULL; }

int variant_base(int i) {
    if (!variants[i].based_on) return i - 1;
    if (variant_is_profile(&variants[i])) return -1;
    int base = i - 1;
    while (strcmp(variants[base].name, variants[i].based_on) != 0) base--;
    return base;
}

hy_status variant_configure(hy_config *config, int i) {
    if (i < 0) return HY_OK;
    HY_TRY(variant_configure(config, variant_base(i)));
    for (int k = 0; k < VARIANT_PAIRS_MAX && variants[i].pairs[k][0]; k++) {
        HY_TRY(hy_config_set(config, variants[i].pairs[k][0], variants[i].pairs[k][1],
                             HY_FROM_CALLER));
    }
    return HY_OK;
}

/* ---- reading results ------------------------------------------------------------------------- */

uint64_t result_most(const result *c, hy_place place) {
    uint64_t most = 0;
    for (int p = 0; p < RUN_PHASES; p++) {
        uint64_t bytes = phase_measured(&c->run.summary.phases[p], place);
        if (bytes > most) most = bytes;
    }
    return most;
}

bool result_has_same_loss(const ladder *l, const result *c) {
    return c->base >= 0 &&
           memcmp(&c->run.val_loss, &l->results[c->base].run.val_loss, sizeof c->run.val_loss) == 0;
}

bool result_is_planned(const result *c) {
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
