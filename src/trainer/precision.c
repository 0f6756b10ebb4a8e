/* precision.c: the type of weights and activations in each phase. See trainer.h.
 *
 * The weights that are updated are the truth: fp32, or bf16 rounded stochastically. A phase in another
 * type computes with a rounded copy, made when it is first asked for after the truth changed elsewhere,
 * and kept current by the optimizer afterwards. */

#include "base/error.h"
#include "trainer/trainer.h"

#define FIRST_WITH_BF16 80 /* compute capability from which tensor cores take bf16 */

static bool has_bf16(const hy_device_facts *facts) {
    return !facts->is_gpu || facts->capability >= FIRST_WITH_BF16;
}

/* auto: 16 bits on a GPU; fp32 on a CPU, whose arithmetic is fp32 anyway. */
static hy_dtype dtype_of(hy_dtype_choice asked, const hy_device_facts *facts) {
    bool is_low = asked == HY_DTYPE_16BIT || facts->is_gpu;
    return hy_dtype_chosen(asked, !is_low ? HY_F32 : has_bf16(facts) ? HY_BF16 : HY_F16);
}

static bool is_finer(hy_dtype a, hy_dtype b) { return a == HY_F32 && b != HY_F32; }

static hy_status check_combination(const hy_precisions *p) {
    hy_dtype full = p->of[HY_FULL];
    if (is_finer(full, p->of[HY_CORRECT])) {
        return hy_fail(
            HY_ERR_INPUT,
            "precision_correct is %s and precision_full %s: Correct measures a prediction "
            "by true gradients, so it cannot be coarser than Full",
            hy_dtype_name(p->of[HY_CORRECT]), hy_dtype_name(full));
    }
    if (is_finer(p->of[HY_PREDICT], full)) {
        return hy_fail(
            HY_ERR_INPUT,
            "precision_predict is %s and precision_full %s: the guard would judge weights "
            "finer than Full ever computes with",
            hy_dtype_name(p->of[HY_PREDICT]), hy_dtype_name(full));
    }
    if (is_finer(full, p->of[HY_WARMUP])) {
        return hy_fail(
            HY_ERR_INPUT,
            "precision_warmup is %s and precision_full %s: the most delicate steps of a run "
            "cannot be its coarsest",
            hy_dtype_name(p->of[HY_WARMUP]), hy_dtype_name(full));
    }
    return HY_OK;
}

/* Without a predictor there is neither Predict nor Correct: no plan and no copy is made for them. */
static void forget_unused_phases(hy_precisions *p) {
    p->of[HY_PREDICT] = p->of[HY_CORRECT] = p->of[HY_FULL];
    p->has_low = p->of[HY_FULL] != HY_F32 || p->of[HY_WARMUP] != HY_F32;
}

static hy_status lacks_bf16(const hy_device_facts *facts) {
    return hy_fail(HY_ERR_INPUT,
                   "bf16 was asked for, but %s (sm_%d) has none; accepted here are fp16, fp32 and "
                   "auto",
                   facts->name, facts->capability);
}

/* bf16 weights are the only copy there is, so every phase computes with them. */
static hy_status choose_master(hy_trainer *t) {
    hy_precisions *p = &t->engine.types;
    p->master = hy_settings_master_dtype(&t->settings);
    p->slots = hy_settings_predictor_dtype(&t->settings);
    if (p->master != HY_BF16) return HY_OK;
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        if (p->of[i] == HY_BF16) continue;
        return hy_fail(HY_ERR_INPUT,
                       "master_dtype is bf16 and the precision of %s is %s: bf16 weights are the "
                       "only copy, so every phase must be bf16 (precision = bf16)",
                       hy_phase_name((hy_phase)i), hy_dtype_name(p->of[i]));
    }
    p->has_low = false;
    return HY_OK;
}

hy_status hy_trainer_choose_precision(hy_trainer *t) {
    hy_precisions *p = &t->engine.types;
    const hy_device_facts *facts = &t->engine.backend->facts;
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        p->of[i] = dtype_of(hy_settings_precision(&t->settings, (hy_phase)i), facts);
        if (p->of[i] == HY_F32) continue;
        if (p->of[i] == HY_BF16 && !has_bf16(facts)) return lacks_bf16(facts);
        if (p->has_low && p->low != p->of[i]) {
            return hy_fail(HY_ERR_INPUT,
                           "phases ask for both bf16 and fp16; a run has one 16-bit type");
        }
        p->has_low = true;
        p->low = p->of[i];
    }
    HY_TRY(check_combination(p));
    if (!t->course.rules.has_predictor) forget_unused_phases(p);
    return choose_master(t);
}

static hy_status round_unit(hy_trainer *t, int32_t unit, int32_t *item) {
    const hy_params *params = &t->engine.model->params;
    HY_TRY(hy_store_get(hy_store_of(&t->engine, HY_ROW_MASTER), t->engine.compute, unit));
    HY_TRY(hy_store_get(hy_store_of(&t->engine, HY_ROW_WORKING), t->engine.compute, unit));
    for (; *item < params->count && params->list[*item].unit == unit; ++*item) {
        hy_op_call cast = {.kind = HY_OP_CAST};
        cast.t[HY_CAST_SRC] =
            hy_store_tensor(hy_store_of(&t->engine, HY_ROW_MASTER), *item,
                            hy_store_device(hy_store_of(&t->engine, HY_ROW_MASTER), *item));
        cast.t[HY_CAST_DST] =
            hy_store_tensor(hy_store_of(&t->engine, HY_ROW_WORKING), *item,
                            hy_store_device(hy_store_of(&t->engine, HY_ROW_WORKING), *item));
        HY_TRY(t->engine.backend->enqueue(t->engine.compute, &cast));
    }
    HY_TRY(hy_store_release(hy_store_of(&t->engine, HY_ROW_MASTER), t->engine.compute, unit));
    return hy_store_release_changed(hy_store_of(&t->engine, HY_ROW_WORKING), t->engine.compute,
                                    unit);
}

static hy_status round_weights(hy_trainer *t) {
    int32_t item = 0;
    for (int32_t unit = 0; unit < t->engine.model->params.units; unit++) {
        HY_TRY(round_unit(t, unit, &item));
    }
    t->engine.is_low_current = true;
    return HY_OK;
}

hy_status hy_trainer_weights_raw(hy_trainer *t, hy_dtype dtype, hy_store **out) {
    bool has_copy = dtype != t->engine.types.master;
    *out =
        has_copy ? hy_store_of(&t->engine, HY_ROW_WORKING) : hy_store_of(&t->engine, HY_ROW_MASTER);
    if (has_copy && !t->engine.is_low_current) HY_TRY(round_weights(t));
    return HY_OK;
}

hy_status hy_trainer_weights(hy_trainer *t, hy_dtype dtype, hy_store **out) {
    HY_TRY(hy_trainer_finish_update(t));
    return hy_trainer_weights_raw(t, dtype, out);
}
