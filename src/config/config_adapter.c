/* config_adapter.c: how adapters change a configuration. See config_adapter.h.
 *
 * config.c asks for the values of an adapter's folder and for the defaults that lora and qlora
 * change. A value that a file or flag sets always wins. */
#include "config/config_adapter.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "config/config_values.h"
#include "config/derived.h"
#include "hub/hf_load.h"
#include "hub/peft_set.h"

/* The learning rate for adapters relative to full fine-tuning. "LoRA Without Regret" (Thinking
 * Machines, 2025) found ten; not measured here yet. */
#define ADAPTER_RATE 10

/* ---- values ---------------------------------------------------------------------------------- */

/* Dropout is not read from the adapter: it stays as configured. */
hy_status hy_config_adapter_read(const char *names, hy_config_sink sink, void *user,
                                 hy_prompt_format *format) {
    hy_peft_config c;
    hy_peft_set set;
    char rank[32], alpha[32];
    HY_TRY(hy_peft_set_read(names, &set));
    hy_status status = hy_peft_set_union(&set, &c);
    *format = set.list[0].format;
    hy_peft_set_free(&set);
    HY_TRY(status);
    snprintf(rank, sizeof rank, "%lld", (long long)c.rank);
    snprintf(alpha, sizeof alpha, "%.17g", c.alpha);
    const char *values[][2] = {{"lora.lora", "true"},
                               {"lora.lora_rank", rank},
                               {"lora.lora_alpha", alpha},
                               {"lora.rslora", c.is_root_scaled ? "true" : "false"},
                               {"lora.lora_targets", c.targets},
                               {"lora.lora_modules", c.modules[0] ? c.modules : "none"}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        HY_TRY(sink(user, values[i][0], values[i][1], 0));
    return HY_OK;
}

static bool is_true(const hy_config *config, const char *key) {
    return hy_config_is(config, key, "true");
}

/* The type of the frozen base: nf4 with qlora, fp8 where the matmuls use fp8. */
static const char *frozen_default(const hy_config *config, bool is_qlora, bool is_lora) {
    const char *key = "train.frozen_dtype";
    int rank = hy_config_raw_rank(config, key);
    bool is_set = rank >= HY_FROM_FILE;
    /* set by a quantised folder or by the user */
    if (!hy_config_is(config, key, "auto")) return NULL;
    /* An opened run's file sets every key, to auto if the user did not. A qlora from a stronger
     * origin may still change it. */
    bool is_open = hy_config_raw_rank(config, "lora.qlora") > rank;
    if (is_set && !is_open) return NULL;
    bool is_fp8 = hy_config_is(config, "train.precision", "fp8");
    return is_qlora ? "nf4" : is_lora && is_fp8 && !is_set ? "fp8" : NULL;
}

/* qlora is lora with a quantised base. The predictor is `line`, which tests the length of a jump:
 * other predictors would extrapolate the product of A and B. */
const char *hy_config_adapter_default(const hy_config *config, const char *key) {
    bool is_qlora = is_true(config, "lora.qlora"), is_lora = is_true(config, "lora.lora");
    if (!strcmp(key, "lora.lora")) return is_qlora ? "true" : NULL;
    if (!strcmp(key, "train.frozen_dtype")) return frozen_default(config, is_qlora, is_lora);
    if (strcmp(key, "phases.predictor") || !(is_lora || is_qlora)) return NULL;
    bool is_set = hy_config_raw_rank(config, key) >= HY_FROM_FILE;
    return is_set || hy_config_is(config, key, "none") ? NULL : "line";
}

double hy_config_adapter_rate(const hy_config *config, double factor) {
    bool is_lora = is_true(config, "lora.lora") || is_true(config, "lora.qlora");
    return is_lora ? ADAPTER_RATE * (factor > 0 ? factor : 1) : factor;
}

static bool is_set(const hy_config *config, const char *key) {
    return !hy_config_raw_is_found(config, key) && hy_config_raw_rank(config, key) >= HY_FROM_FILE;
}

void hy_config_adapter_resolve(const hy_config *config, hy_settings *s) {
    if (!s->lora.adapter[0]) return;
    s->adapter_said.alpha = is_set(config, "lora.lora_alpha");
    s->adapter_said.rslora = is_set(config, "lora.rslora");
}

/* ---- checks ---------------------------------------------------------------------------------- */

hy_status hy_settings_check_adapters(const hy_settings *s) {
    HY_FAIL_IF(s->lora.lora && strcmp(s->train.train, "all") != 0, HY_ERR_INPUT,
               "train.train = %s cannot be combined with lora, which trains the adapters; use "
               "lora_modules to name parameters that are trained as well",
               s->train.train);
    HY_FAIL_IF(hy_peft_count(s->lora.adapter) > 1, HY_ERR_INPUT,
               "lora.adapter = %s: training starts from one adapter; only --eval-only and "
               "hybrid-chat accept several",
               s->lora.adapter);
    return HY_OK;
}

hy_status hy_settings_check_base(const hy_settings *s) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    hy_hf_quant quant;
    if (s->lora.lora || s->init_from[0]) return HY_OK;
    if (hy_settings_model_files(s, &kind, path) != HY_OK || kind == HY_FILES_NONE) return HY_OK;
    HY_TRY(hy_model_files_quant(kind, path, &quant));
    HY_FAIL_IF(quant != HY_HF_PLAIN, HY_ERR_INPUT,
               "%s is quantised (bitsandbytes, %s), so its weights cannot be trained; add --lora "
               "to train adapters, or use the original model",
               s->model, hy_hf_quant_name(quant));
    return HY_OK;
}
