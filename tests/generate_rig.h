/* generate_rig.h: small random models in use by a generator, and what their answers are.
 *
 * A model is a run of one step with large initial weights, so its logits are far apart. Tokens are
 * bytes. */
#ifndef HY_TESTS_GENERATE_RIG_H
#define HY_TESTS_GENERATE_RIG_H

#include "harness.h"

#include "base/rng.h"
#include "base/text.h"
#include "hybrid_generate.h"

enum { CONTEXT = 600, MOST_HEARD = 640 };

#define PAIRS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Layers with linear attention, by a list of types as config.json has them. */
#define LINEAR_OPTIONS(types)                                                                      \
    "architecture", "qwen3_5_text", "layers", "3", "arch_options",                                 \
        "{\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, \"linear_key_head_dim\": "   \
        "12, "                                                                                     \
        "\"linear_value_head_dim\": 10, \"layer_types\": [" types "]}"
#define SOME_LINEAR LINEAR_OPTIONS("\"linear_attention\", \"full_attention\", \"linear_attention\"")
#define ALL_LINEAR                                                                                 \
    LINEAR_OPTIONS("\"linear_attention\", \"linear_attention\", \"linear_attention\"")

static char rig_folder[256];

static inline void set_pairs(hy_config *config, const char *const *pairs) {
    for (int i = 0; pairs && pairs[i]; i += 2) {
        must(hy_config_set(config, pairs[i], pairs[i + 1], HY_FROM_CALLER));
    }
}

/* Makes a run in rig_folder; pairs of key and value change the model. */
static inline void make_run(const char *name, const char *const *pairs) {
    char out[300];
    hy_config *config;
    hy_trainer *trainer;
    snprintf(out, sizeof out, "%s/%s", rig_folder, name);
    must(hy_config_create(&config));
    set_pairs(config, PAIRS("model", "nano", "layers", "3", "width", "32", "heads", "4", "kv_heads",
                            "2", "seq_len", "32", "context", "600", "batch_size", "1", "steps", "1",
                            "vocab", "258", "threads", "2", "builtin_bytes", "60000", "device",
                            "cpu", "eval_batches", "0", "sample_tokens", "0", "init_std", "0.2",
                            "predictor", "none"));
    set_pairs(config, pairs);
    must(hy_config_set(config, "out", out, HY_FROM_CALLER));
    must(hy_trainer_create(config, NULL, &trainer));
    must(hy_trainer_run(trainer));
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
}

static inline hy_config *config_of_run(const char *name, const char *const *pairs) {
    char path[300];
    hy_config *config;
    snprintf(path, sizeof path, "%s/%s", rig_folder, name);
    must(hy_config_create(&config));
    must(hy_config_use_model(config, path));
    must(hy_config_set(config, "device", "cpu", HY_FROM_CALLER));
    must(hy_config_set(config, "threads", "2", HY_FROM_CALLER));
    set_pairs(config, pairs);
    return config;
}

static inline hy_generator *open_run(const char *name, const char *const *pairs,
                                     hy_generator_options options) {
    hy_config *config = config_of_run(name, pairs);
    hy_generator *generator;
    must(hy_generator_open(config, &options, NULL, &generator));
    hy_config_destroy(config);
    return generator;
}

/* ---- answers --------------------------------------------------------------------------------- */

typedef struct heard {
    hy_generator *generator; /* for callbacks that do something */
    int64_t id;
    int32_t tokens[MOST_HEARD], top[MOST_HEARD];
    float logprobs[MOST_HEARD], top_logprobs[MOST_HEARD];
    int32_t count, pieces, ends;
    hy_text text;
    hy_end end;
    hy_piece last;
    int32_t stop_at; /* the generator is stopped at this piece; 0: never */
    int32_t cancel_at;
    float prompt[MOST_HEARD];
    int32_t prompt_count;
} heard;

static inline void hear(void *user, const hy_piece *piece) {
    heard *h = user;
    ck_assert_int_eq(h->ends, 0);
    if (piece->is_prompt) {
        for (; h->prompt_count < piece->token_count; h->prompt_count++) {
            h->prompt[h->prompt_count] = piece->tokens[h->prompt_count].chosen.logprob;
        }
        return;
    }
    for (int32_t i = 0; i < piece->token_count; i++, h->count++) {
        const hy_scored_token *t = &piece->tokens[i];
        ck_assert_int_lt(h->count, MOST_HEARD);
        h->tokens[h->count] = t->chosen.token;
        h->logprobs[h->count] = t->chosen.logprob;
        h->top[h->count] = t->top_count > 0 ? t->top[0].token : -1;
        h->top_logprobs[h->count] = t->top_count > 1 ? t->top[1].logprob : 0;
    }
    hy_text_add_bytes(&h->text, piece->text, piece->text_size);
    h->ends += piece->is_last;
    h->end = piece->end;
    h->last = *piece;
    if (++h->pieces == h->stop_at) hy_generator_request_stop(h->generator);
    if (h->pieces == h->cancel_at)
        ck_assert_int_eq(hy_generator_cancel(h->generator, h->id), !piece->is_last);
}

/* Asks; the answer is in `h`, which the caller frees with unhear. */
static inline void ask(hy_generator *generator, hy_request request, heard *h) {
    h->generator = generator;
    request.on_piece = hear;
    request.user = h;
    request.wants_logprobs = true;
    must(hy_generator_add(generator, &request, &h->id));
}

/* The same with several answers. */
typedef struct heard_answers {
    heard answers[8];
} heard_answers;

static inline void hear_several(void *user, const hy_piece *piece) {
    heard_answers *h = user;
    hear(&h->answers[piece->answer], piece);
}

static inline void ask_several(hy_generator *generator, hy_request request, int32_t answers,
                               heard_answers *h) {
    request.answers = answers;
    request.on_piece = hear_several;
    request.user = h;
    request.wants_logprobs = true;
    must(hy_generator_add(generator, &request, NULL));
}

static inline void unhear(heard *h) {
    hy_text_free(&h->text);
    *h = (heard){0};
}

/* Random bytes of text number `stream`. */
static inline void draw_prompt(uint64_t stream, int32_t count, int32_t *out) {
    for (int32_t i = 0; i < count; i++) {
        out[i] = 1 + (int32_t)hy_rng_below(stream, HY_RNG_TEST, (uint64_t)i, 255);
    }
}

/* A request that depends on its number only; every third is long, every fourth has a penalty. */
static inline hy_request numbered(int number, int32_t prompt[CONTEXT]) {
    int32_t count = number % 3 == 0 ? 250 + 37 * (number % 7) : 3 + 11 * (number % 5);
    draw_prompt(40 + (uint64_t)number % 4, count, prompt); /* some prompts begin alike */
    prompt[count - 1] = 1 + number;
    return (hy_request){.tokens = prompt,
                        .token_count = (size_t)count,
                        .max_tokens = 10 + 5 * (number % 6),
                        .temperature = number % 5 ? 0.8 : 0,
                        .top_p = number % 2 ? 0.9 : 0,
                        .top_k = number % 7 == 2 ? 40 : 0,
                        .min_p = number % 7 == 3 ? 0.01 : 0,
                        .repetition_penalty = number % 4 == 1 ? 1.3 : 0,
                        .seed = (uint64_t)number,
                        .ignores_end = number % 2};
}

static inline void check_same(const heard *a, const heard *b) {
    ck_assert_int_eq(a->ends, 1);
    ck_assert_int_eq(b->ends, 1);
    ck_assert_int_eq(a->count, b->count);
    ck_assert_mem_eq(a->tokens, b->tokens, (size_t)a->count * sizeof *a->tokens);
    ck_assert_mem_eq(a->logprobs, b->logprobs, (size_t)a->count * sizeof *a->logprobs);
    ck_assert_str_eq(hy_text_string(&a->text), hy_text_string(&b->text));
    ck_assert_int_eq(a->end, b->end);
}

#endif
