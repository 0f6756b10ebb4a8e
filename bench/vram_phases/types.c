/* types.c: precision levels, from the most precise to the smallest, and ways of training. See
 * results.h.
 *
 * Each includes the smaller types of those before it; the last also has fp8 matmuls. The planner
 * chooses among the same levels (src/plan/levels.c). Here they are settings, so that each can be
 * used whether it is needed or not. */
#include "vram_phases/results.h"

#define FP32_PREDICTOR "predictor_dtype=fp32 "
/* bf16 passes in every phase: needed by bf16 weights without another copy. */
#define STATE_IN(passes, optim, grads, master)                                                     \
    "precision=" passes " precision_warmup=same precision_full=same precision_predict=same "       \
    "precision_correct=same optimizer=adamw optim_dtype=" optim " grad_dtype=" grads               \
    " master_dtype=" master " "
#define STATE(optim, grads, master) STATE_IN("bf16", optim, grads, master)

typedef struct named {
    const char *name, *settings;
} named;

static const named levels[] = {
    {"fp32", STATE("fp32", "fp32", "fp32") FP32_PREDICTOR},
    {"optimizer", STATE("8bit", "fp32", "fp32") FP32_PREDICTOR},
    {"gradients", STATE("8bit", "bf16", "fp32") FP32_PREDICTOR},
    {"master", STATE("8bit", "bf16", "bf16") "predictor_dtype=bf16 "},
    {"predictor", STATE("8bit", "bf16", "bf16") "predictor_dtype=8bit "},
    {"fp8", STATE_IN("fp8", "8bit", "bf16", "bf16") "predictor_dtype=8bit "},
    {VP_TYPES_CHOSEN, ""},
};

/* "full" sets it explicitly: --set must not change it unnoticed. */
static const named ways[] = {{VP_WAY_FULL, "lora=false qlora=false"},
                             {"lora", "lora=true qlora=false"},
                             {"qlora", "qlora=true"}};

static const char *settings_of(const named *list, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i].name, name) == 0) return list[i].settings;
    }
    return NULL;
}

const char *vp_types_settings(const char *name) {
    return settings_of(levels, sizeof levels / sizeof levels[0], name);
}

const char *vp_types_all(void) { return "fp32,optimizer,gradients,master,predictor,fp8"; }

const char *vp_way_settings(const char *name) {
    return settings_of(ways, sizeof ways / sizeof ways[0], name);
}

const char *vp_ways_all(void) { return "full,lora,qlora"; }
