/* choose_types.c: chooses the types of weights and activations in each phase, and of the state.
 * See choose_types.h. */
#include "plan/choose_types.h"

#include "base/error.h"
#include "config/derived.h"
#include "phases/table.h"

#define FIRST_WITH_BF16 80 /* compute capability from which tensor cores support bf16 */
#define FIRST_WITH_FP8 89  /* and fp8 */

/* The phases that use fp8 matmuls. Evaluation never does, and Predict only evaluates. */
static hy_status choose_fp8(const hy_settings *s, const hy_device_facts *facts, hy_types *p) {
    HY_FAIL_IF(s->phases.precision_predict == HY_DTYPE_FP8, HY_ERR_INPUT,
               "precision_predict is fp8: Predict only evaluates, and evaluation never uses fp8; "
               "accepted: same, fp32, 16bit, bf16 and fp16");
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        bool is_asked = hy_settings_precision(s, (hy_phase)i) == HY_DTYPE_FP8;
        p->is_fp8[i] = is_asked && hy_phase_trains(&hy_phase_table[i]) && s->train.fp8_until > 0;
    }
    if (!hy_types_have_fp8(p)) return HY_OK;
    HY_FAIL_IF(
        facts->is_gpu && facts->capability < FIRST_WITH_FP8, HY_ERR_INPUT,
        "a phase has precision fp8, but %s (sm_%d) does not support it: fp8 needs sm_89 or newer "
        "(Ada, Hopper, Blackwell); accepted here: %sfp16, fp32 and auto",
        facts->name, facts->capability, facts->capability >= FIRST_WITH_BF16 ? "bf16, " : "");
    HY_FAIL_IF(!p->is_fp8[HY_FULL], HY_ERR_INPUT,
               "precision_%s is fp8, but precision_full is not: Warmup and Correct cannot have a "
               "lower precision than Full",
               p->is_fp8[HY_WARMUP] ? "warmup" : "correct");
    return HY_OK;
}

bool hy_has_bf16(const hy_device_facts *facts) {
    return !facts->is_gpu || facts->capability >= FIRST_WITH_BF16;
}

/* 16 bits are a lower precision than fp32. Predict may be lower than Full, the others higher. */
static hy_status check_combination(const hy_types *p) {
    static const struct {
        hy_phase phase;
        const char *why;
    } rules[] = {
        {HY_CORRECT, "Correct checks a prediction with true gradients, so its precision cannot be "
                     "lower than Full's"},
        {HY_PREDICT, "the guard would test the weights at a higher precision than Full uses"},
        {HY_WARMUP, "the most sensitive steps of a run cannot have its lowest precision"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        hy_phase phase = rules[i].phase;
        hy_dtype finer = p->of[phase == HY_PREDICT ? HY_PREDICT : HY_FULL];
        hy_dtype coarser = p->of[phase == HY_PREDICT ? HY_FULL : phase];
        HY_FAIL_IF(finer == HY_F32 && coarser != HY_F32, HY_ERR_INPUT,
                   "precision_%s is %s, but precision_full is %s: %s", hy_phase_name(phase),
                   hy_dtype_name(p->of[phase]), hy_dtype_name(p->of[HY_FULL]), rules[i].why);
    }
    return HY_OK;
}

/* The requested type, or that of the level; some optimizers support only fp32. */
static hy_status choose_optim(const hy_settings *s, const hy_precision_level *level, hy_types *p) {
    const hy_optimizer_kind *kind = hy_settings_optimizer(s);
    bool is_8bit = s->optimizer.optimizer & HY_OPTIMIZER_8BIT;
    hy_dtype otherwise = kind->is_exact ? HY_F32 : is_8bit ? HY_U8 : level->optim;
    p->optim = hy_dtype_chosen(s->optimizer.optim_dtype, otherwise);
    HY_FAIL_IF(kind->is_exact && p->optim != HY_F32, HY_ERR_INPUT,
               "optim_dtype is %s, but the state of optimizer %s is small and is always fp32; "
               "accepted: optim_dtype = auto or fp32",
               p->optim == HY_U8 ? "8bit" : hy_dtype_name(p->optim), kind->name);
    HY_FAIL_IF(kind->is_exact && s->memory.offload_strategy == HY_OFFLOAD_COMPRESS, HY_ERR_INPUT,
               "offload_strategy is compress, but the state of optimizer %s is small and is never "
               "compressed; accepted: none, cpu, pinned and drop",
               kind->name);
    return HY_OK;
}

/* The requested type, or that of the level. bf16 weights are the only copy, so every phase
 * computes with them. */
static hy_status choose_state(const hy_settings *s, const hy_precision_level *level, hy_types *p) {
    HY_TRY(choose_optim(s, level, p));
    p->grads = hy_dtype_chosen(s->train.grad_dtype, level->grads);
    p->master = hy_dtype_chosen(s->optimizer.master_dtype, level->master);
    p->slow =
        hy_dtype_chosen(s->phases.predictor_dtype, level->is_predictor_8bit ? HY_U8 : p->master);
    if (p->master != HY_BF16) return HY_OK;
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        if (p->of[i] == HY_BF16) continue;
        return hy_fail(HY_ERR_INPUT,
                       "master_dtype is bf16, but the precision of %s is %s: the bf16 weights are "
                       "the only copy, so every phase must use bf16 (precision = bf16)",
                       hy_phase_name((hy_phase)i), hy_dtype_name(p->of[i]));
    }
    p->has_low = false;
    return HY_OK;
}

/* 8-bit predictor state works only with some weight types and optimizers. */
static hy_status check_slow(const hy_settings *s, const hy_types *p) {
    bool is_coded = p->slow == HY_U8;
    HY_FAIL_IF(
        is_coded && p->master != HY_BF16, HY_ERR_INPUT,
        "predictor_dtype is 8bit, but master_dtype is %s: the 8-bit form stores differences to "
        "bf16 weights; accepted: master_dtype = bf16, or predictor_dtype = auto, fp32 or bf16",
        hy_dtype_name(p->master));
    HY_FAIL_IF(is_coded && hy_settings_optimizer(s) != hy_optimizer_kind_of(HY_ADAMW), HY_ERR_INPUT,
               "predictor_dtype is 8bit, but optimizer is %s: the range of the 8-bit form is made "
               "for AdamW's steps; accepted: optimizer = adamw, adamw8bit, paged_adamw or "
               "paged_adamw8bit, or predictor_dtype = auto, fp32 or bf16",
               hy_settings_optimizer(s)->name);
    return HY_OK;
}

hy_status hy_types_choose(const hy_settings *s, const hy_precision_level *level,
                          const hy_device_facts *facts, hy_types *p) {
    bool has_predictor = level->predicts && s->phases.predictor != HY_PREDICTOR_NONE;
    *p = (hy_types){0};
    HY_TRY(choose_fp8(s, facts, p));
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        /* auto: 16 bits on a GPU; fp32 on a CPU, which computes in fp32 anyway. */
        hy_dtype_choice choice = hy_settings_precision(s, (hy_phase)i);
        if (choice == HY_DTYPE_FP8) choice = HY_DTYPE_BF16;
        hy_dtype low = hy_has_bf16(facts) ? HY_BF16 : HY_F16;
        bool is_low = choice == HY_DTYPE_16BIT || facts->is_gpu;
        p->of[i] = hy_dtype_chosen(choice, is_low ? low : HY_F32);
        if (p->of[i] == HY_F32) continue;
        HY_FAIL_IF(
            p->of[i] == HY_BF16 && !hy_has_bf16(facts), HY_ERR_INPUT,
            "a phase has precision bf16, but %s (sm_%d) does not support it; accepted here: fp16, "
            "fp32 and auto",
            facts->name, facts->capability);
        HY_FAIL_IF(p->has_low && p->low != p->of[i], HY_ERR_INPUT,
                   "some phases use bf16 and others fp16; a run can use only one 16-bit type");
        p->has_low = true;
        p->low = p->of[i];
    }
    HY_TRY(check_combination(p));
    if (!has_predictor) { /* no Predict and no Correct: no plan and no copy is made for them */
        p->of[HY_PREDICT] = p->of[HY_CORRECT] = p->of[HY_FULL];
        p->is_fp8[HY_CORRECT] = p->is_fp8[HY_FULL];
        p->has_low = p->of[HY_FULL] != HY_F32 || p->of[HY_WARMUP] != HY_F32;
    }
    HY_TRY(choose_state(s, level, p));
    return has_predictor ? check_slow(s, p) : HY_OK;
}

hy_status hy_types_choose_custom(const hy_settings *s, const hy_precision_level *level,
                                 const hy_custom_types *custom, hy_types *p) {
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        HY_FAIL_IF(hy_settings_precision(s, (hy_phase)i) == HY_DTYPE_FP8, HY_ERR_INPUT,
                   "the precision of %s is fp8, which only the library's own models support; "
                   "accepted for a custom model: auto, fp32, bf16 and fp16",
                   hy_phase_name((hy_phase)i));
    }
    *p = (hy_types){.low = custom->weights, .grads = custom->grads};
    for (int i = 0; i < HY_PHASE_COUNT; i++) p->of[i] = custom->weights;
    HY_TRY(choose_optim(s, level, p));
    p->master = hy_dtype_chosen(s->optimizer.master_dtype,
                                custom->weights == HY_BF16 ? level->master : HY_F32);
    HY_FAIL_IF(
        p->master != HY_F32 && p->master != custom->weights, HY_ERR_INPUT,
        "master_dtype is %s, but the weights are %s; accepted: fp32 and the type of the weights",
        hy_dtype_name(p->master), hy_dtype_name(custom->weights));
    p->has_low = p->master != custom->weights;
    p->slow =
        hy_dtype_chosen(s->phases.predictor_dtype, level->is_predictor_8bit ? HY_U8 : p->master);
    if (custom->sums_grads) p->grads = hy_dtype_chosen(s->train.grad_dtype, level->grads);
    return check_slow(s, p);
}

hy_dtype hy_types_for_use(const hy_settings *s, const hy_device_facts *facts) {
    hy_dtype_choice asked = s->train.precision;
    bool is_low = asked == HY_DTYPE_BF16 || (facts->is_gpu && asked != HY_DTYPE_F32);
    return is_low && hy_has_bf16(facts) ? HY_BF16 : HY_F32;
}
