/* small_run.h: configurations of runs that take a second: two small blocks on the built-in text. */
#ifndef HY_TESTS_SMALL_RUN_H
#define HY_TESTS_SMALL_RUN_H

#include "harness.h"
#include "hybrid.h"

#define PAIRS(...) ((const char *const[]){__VA_ARGS__, NULL})

#define SMALL_RUN                                                                                  \
    "model nano layers 2 width 32 heads 4 mlp_width 48 seq_len 32 batch_size 4 steps 12 "          \
    "grad_accum_steps 1 lr 3e-3 builtin_bytes 60000 lr_warmup_steps 3 eval_batches 2 "             \
    "sample_tokens 4 threads 2 device cpu "

/* Sets the keys of `words` ("key value key value"), the folder, then pairs of key and value that end
 * with NULL; pairs may be NULL and are the strongest. */
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

#endif
