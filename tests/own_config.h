/* own_config.h: a configuration for short runs of custom loops and models. */
#ifndef HY_TESTS_OWN_CONFIG_H
#define HY_TESTS_OWN_CONFIG_H

#include "harness.h"

#include "hybrid.h"

/* A configuration for short runs that no preset or profile shines through; `pairs` are further
 * keys and values, ended by NULL. */
static hy_config *config_with(const char *const *pairs) {
    static const char *const usual[][2] = {
        {"steps", "200"},
        {"lr", "0.05"},
        {"lr_warmup_steps", "10"},
        {"weight_decay", "0.01"},
        {"grad_clip", "1"},
        {"grad_accum_steps", "1"},
        {"normalize", "true"},
        {"full_steps", "6"},
        {"correct_steps", "2"},
        {"predictor", "outer"},
        {"predict_from", "0.1"},
        {"predict_until", "0.9"},
        {"cooldown_steps", "10"},
        {"guard_share", "0.25"},
        {"confidence_threshold", "0.75"},
        {"regime", "scratch"},
        {"max_predict_steps", "30"},
        {"correction_interval", "10"},
        {"outer_mu", "0.7"},
        {"outer_eta", "0.7"},
        {"precision", "fp32"},
        {"precision_warmup", "same"},
        {"precision_full", "same"},
        {"precision_predict", "same"},
        {"precision_correct", "same"},
        {"offload_strategy", "none"},
        {"fork_budget", "0"},
        {"device", "cpu"},
        {"threads", "2"},
        {"out", "none"},
    };
    hy_config *config;
    must(hy_config_create(&config));
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        must(hy_config_set(config, usual[i][0], usual[i][1], HY_FROM_CALLER));
    }
    for (; *pairs; pairs += 2) must(hy_config_set(config, pairs[0], pairs[1], HY_FROM_CALLER));
    return config;
}

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
