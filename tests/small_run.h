/* small_run.h: configurations of runs that take a second: two small blocks on the built-in text. */
#ifndef HY_TESTS_SMALL_RUN_H
#define HY_TESTS_SMALL_RUN_H

#include "harness.h"
#include "hybrid.h"

#define PAIRS(...) ((const char *const[]){__VA_ARGS__, NULL})

#define SMALL_RUN                                                                                  \
    "model nano layers 2 width 32 heads 4 mlp_width 48 seq_len 32 batch_size 4 steps 12 "          \
    "grad_accum_steps 1 lr 3e-3 builtin_bytes 60000 lr_warmup_steps 3 eval_batches 2 "             \
    "sample_tokens 4 threads 2 device cpu predictor outer "

/* Sets the keys of `words` ("key value key value"), the folder, then pairs of key and value that
 * end with NULL; pairs may be NULL and are the strongest. */
static inline hy_config *small_run(const char *words, const char *out, const char *const *pairs) {
    char text[1024];
    hy_config *config;
    must(hy_config_create(&config));
    ck_assert_uint_lt(strlen(words), sizeof text);
    strcpy(text, words);
    for (char *rest = text, *key; (key = strtok_r(rest, " ", &rest)) != NULL;) {
        must(hy_config_set(config, key, strtok_r(rest, " ", &rest), HY_FROM_SET));
    }
    must(hy_config_set(config, "out", out, HY_FROM_SET));
    for (int i = 0; pairs && pairs[i]; i += 2) {
        must(hy_config_set(config, pairs[i], pairs[i + 1], HY_FROM_CALLER));
    }
    return config;
}

/* The plan of such a run, and its figures. */
static inline hy_trainer *plan_words(const char *words, const char *const *pairs) {
    hy_config *config = small_run(words, "none", pairs);
    hy_trainer *t;
    must(hy_trainer_plan(config, NULL, &t));
    hy_config_destroy(config);
    return t;
}

static inline hy_plan_facts facts_of(const hy_trainer *t) {
    hy_plan_facts facts;
    hy_trainer_plan_facts(t, &facts);
    return facts;
}

/* Adds suggested flags to the configuration: "--key value --key value". Those that name no key (a
 * folder, more memory) are left to the reader: false. */
static inline bool apply_change(hy_config *config, const char *flags) {
    char text[HY_PLAN_TEXT], *rest = NULL;
    snprintf(text, sizeof text, "%s", flags);
    for (char *flag = strtok_r(text, " ", &rest); flag; flag = strtok_r(NULL, " ", &rest)) {
        bool is_switch = strcmp(flag, "--lora") == 0 || strcmp(flag, "--qlora") == 0;
        const char *value = is_switch ? "true" : strtok_r(NULL, " ", &rest);
        if (strncmp(flag, "--", 2) != 0 || !value || strcmp(value, "FOLDER") == 0) return false;
        must(hy_config_set(config, flag, value, HY_FROM_CALLER));
    }
    return true;
}

/* Losses of the next `count` steps; none may be skipped. */
static inline void next_losses(hy_trainer *trainer, int count, double *losses) {
    for (int i = 0; i < count; i++) {
        hy_step_info info;
        must(hy_trainer_step(trainer, &info));
        ck_assert(!info.was_skipped);
        losses[i] = info.loss;
    }
}

/* As small_run, a trainer; on this device unless it is NULL. */
static inline hy_trainer *small_trainer(const char *words, const char *out, const char *device,
                                        const char *const *pairs) {
    hy_config *config = small_run(words, out, pairs);
    hy_trainer *trainer;
    if (device) must(hy_config_set(config, "device", device, HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &trainer));
    hy_config_destroy(config);
    return trainer;
}

/* Losses after a save, going on and starting afresh from it: the same bits. */
static inline void check_resume(const char *words, const char *device, const char *const *pairs,
                                int before, int after) {
    char folder[256];
    char again[1100];
    double straight[32], resumed[32];
    ck_assert(before <= 32 && after <= 32);
    temp_folder(folder);
    hy_trainer *t = small_trainer(words, folder, device, pairs);
    next_losses(t, before, straight);
    must(hy_trainer_save(t));
    next_losses(t, after, straight);
    hy_trainer_destroy(t);
    snprintf(again, sizeof again, "%s resume auto", words);
    t = small_trainer(again, folder, device, pairs);
    next_losses(t, after, resumed);
    ck_assert_mem_eq(straight, resumed, (size_t)after * sizeof(double));
    hy_trainer_destroy(t);
    remove_folder(folder);
}

#endif
