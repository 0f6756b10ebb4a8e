/* test_wire.c: the bytes that ranks send in a step: the planner's dry run equals the transport's
 * count. */
#include "comm_rig.h"
#include "rank_variables.h"

#include <math.h>

#include "hybrid.h"
#include "inside.h"

enum { STEPS = 3, LAYERS = 7 }; /* more units than a ring of gathered weights holds */

typedef struct wire_case {
    int ranks, stage, accum;
    const char *precision, *is_tied;
    const char *key, *value; /* one more setting, or NULL */
} wire_case;

static void set(hy_config *config, const char *key, const char *value) {
    require(hy_config_set(config, key, value, HY_FROM_SET) == HY_OK);
}

static void set_int(hy_config *config, const char *key, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    set(config, key, text);
}

/* All micro-batches have two sequences. */
static hy_config *config_of(const wire_case *c) {
    static const char *const words[][2] = {
        {"model", "nano"},     {"width", "32"},        {"heads", "4"},
        {"mlp_width", "48"},   {"seq_len", "16"},      {"batch_size", "2"},
        {"threads", "1"},      {"device", "cpu"},      {"builtin_bytes", "60000"},
        {"eval_every", "0"},   {"sample_tokens", "0"}, {"out", "none"},
        {"predictor", "none"}, {"rank_timeout", "30"}};
    hy_config *config;
    require(hy_config_create(&config) == HY_OK);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        set(config, words[i][0], words[i][1]);
    }
    set_int(config, "steps", STEPS);
    set_int(config, "layers", LAYERS);
    set_int(config, "zero_stage", c->stage);
    set_int(config, "grad_accum_steps", c->accum * c->ranks);
    set(config, "precision", c->precision);
    set(config, "tied_head", c->is_tied);
    if (c->key) set(config, c->key, c->value);
    bool is_coded = c->key && (strcmp(c->key, "qlora") == 0 || strcmp(c->key, "fp8") == 0);
    if (is_coded) set_int(config, "width", 64); /* rows that can be codes */
    if (is_coded) set_int(config, "mlp_width", 64);
    return config;
}

static hy_plan_facts facts_of(const hy_trainer *t) {
    hy_plan_facts facts;
    hy_trainer_plan_facts(t, &facts);
    return facts;
}

/* The first step makes copies of weights, which later ones have. */
static void train(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const wire_case *c = user;
    hy_config *config = config_of(c);
    hy_trainer *t = NULL;
    hy_step_info info;
    set_rank_variables(ranks);
    require(hy_trainer_create(config, NULL, &t) == HY_OK);
    require(facts_of(t).grad_accum_steps == c->accum);
    uint64_t expected = facts_of(t).link_bytes, before = 0, now;
    mine->number = (int64_t)expected;
    for (int step = 0; step < STEPS; step++) {
        require(hy_trainer_step(t, &info) == HY_OK);
        require(inside_bytes_sent(t, &now) == HY_OK);
        if (step > 0 && now - before != expected) {
            fprintf(stderr, "rank %d of %d, stage %d, step %d: %llu bytes, expected %llu\n",
                    ranks->rank, ranks->count, c->stage, step, (unsigned long long)(now - before),
                    (unsigned long long)expected);
            mine->status = HY_ERR_INTERNAL;
        }
        before = now;
    }
    hy_trainer_destroy(t);
    hy_config_destroy(config);
}

/* Each rank sends what its plan says, and the plan of ranks that nobody has started says it,
 * too. */
static void must_be_as_planned(const wire_case *c) {
    rig it = rig_start(c->ranks, train, c);
    rig_wait(&it);
    for (int r = 0; r < c->ranks; r++) {
        ck_assert_int_eq(it.codes[r], 0);
        ck_assert_int_eq(it.results[r].status, HY_OK);
    }
    hy_config *config = config_of(c);
    hy_trainer *t;
    must(hy_trainer_plan_ranks(config, c->ranks, false, NULL, &t));
    hy_plan_facts facts = facts_of(t);
    ck_assert_int_eq(facts.ranks, c->ranks);
    ck_assert_int_eq(facts.zero_stage, c->stage);
    ck_assert_str_eq(facts.link, "sockets");
    /* Of the rank with the largest shard, for which such a plan is. */
    bool is_one = false;
    for (int r = 0; r < c->ranks; r++) {
        is_one |= facts.link_bytes == (uint64_t)it.results[r].number;
    }
    ck_assert_msg(is_one, "planned are %llu bytes", (unsigned long long)facts.link_bytes);
    ck_assert_uint_eq(facts.link_bytes,
                      facts.link_grads + facts.link_weights + 16 * (uint64_t)(c->ranks - 1));
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    rig_free(&it);
}

/* Some of each kind; tests/long/test_wire_all.c has every case. */
#ifdef HY_ALL_RANKS
enum { STRIDE = 1 };
#else
enum { STRIDE = 11 };
#endif
enum { CASES = 3 * 4 * 2 * 2 * 2, CASES_TRIED = (CASES + STRIDE - 1) / STRIDE };

START_TEST(ranks_send_what_the_plan_says_to_the_byte) {
    int i = _i * STRIDE;
    wire_case c = {.ranks = 2 + i % 3,
                   .stage = i / 3 % 4,
                   .accum = i / 12 % 2 ? 3 : 1,
                   .precision = i / 24 % 2 ? "bf16" : "fp32",
                   .is_tied = i / 48 % 2 ? "true" : "false"};
    must_be_as_planned(&c);
}
END_TEST

/* Matrices that are not cut, small trained sets, an update that comes with the passes, state that
 * streams. */
static const wire_case others[] = {
    {2, 1, 1, "bf16", "true", "optimizer", "muon"},
    {3, 3, 2, "bf16", "true", "optimizer", "muon"},
    {2, 3, 2, "fp32", "false", "update", "gather"},
    {2, 2, 2, "bf16", "false", "update", "gather"},
    {2, 3, 2, "bf16", "true", "lora", "true"},
    {3, 2, 1, "bf16", "false", "lora", "true"},
    {3, 3, 1, "bf16", "false", "lora", "true"},
    {2, 3, 1, "bf16", "true", "qlora", "true"},
    {3, 3, 3, "bf16", "false", "qlora", "true"},
    {2, 2, 1, "bf16", "true", "qlora", "true"},
    {4, 3, 2, "fp32", "true", "train", "last:2"},
    {2, 3, 1, "bf16", "false", "train", "*norm*"},
    {2, 3, 2, "fp8", "true", "fp8", "all"},
    {3, 2, 1, "fp8", "false", "fp8", "all"},
    {2, 2, 2, "bf16", "false", "weights_place", "pinned"},
    {2, 3, 1, "bf16", "true", "weights_place", "pinned"},
};

START_TEST(so_they_do_with_other_optimizers_updates_and_places) { must_be_as_planned(&others[_i]); }
END_TEST

/* ---- plans of machines that are not here ----------------------------------------------------- */

/* Pairs of key and value, ended by NULL. */
static hy_plan_facts planned(int ranks, bool has_cards, const char *const *pairs) {
    hy_config *config;
    hy_trainer *t;
    hy_plan_facts facts;
    must(hy_config_create(&config));
    for (int i = 0; pairs[i]; i += 2) {
        must(hy_config_set(config, pairs[i], pairs[i + 1], HY_FROM_CALLER));
    }
    must(hy_config_set(config, "out", "none", HY_FROM_CALLER));
    must(hy_trainer_plan_ranks(config, ranks, has_cards, NULL, &t));
    facts = facts_of(t);
    facts.problem = ""; /* it was the trainer's */
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    return facts;
}

#define PAIRS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define EIGHT_H100                                                                                 \
    "card", "h100-80", "model", "qwen2.5-1.5b", "seq_len", "1024", "batch_size", "64", "cpu_mem",  \
        "100GB"

START_TEST(a_slower_wire_gives_a_slower_plan_and_is_what_bounds_it) {
    static const char *const links[] = {"ib200", "pcie4", "pcie5", "nvlink"};
    hy_plan_facts at[4];
    for (int i = 0; i < 4; i++) {
        at[i] = planned(8, true, PAIRS(EIGHT_H100, "link", links[i]));
        ck_assert(at[i].fits);
        ck_assert_int_eq(at[i].ranks, 8);
        ck_assert_str_eq(at[i].link, links[i]);
        ck_assert(at[i].link_seconds > 0 && at[i].step_seconds >= at[i].link_seconds);
        ck_assert_uint_eq(at[i].link_bytes, at[0].link_bytes);
        if (i > 0) ck_assert(at[i].tokens_per_second > at[i - 1].tokens_per_second);
        double tokens = 8.0 * 1024 * (double)(at[i].batch_size * at[i].grad_accum_steps);
        ck_assert(fabs(at[i].tokens_per_second * at[i].step_seconds - tokens) < 1e-6 * tokens);
    }
    ck_assert_str_eq(at[0].bound, "link");
    ck_assert_str_eq(at[3].bound, "compute");
    hy_plan_facts open = planned(8, true, PAIRS(EIGHT_H100));
    ck_assert_str_eq(open.link, "pcie4");
    ck_assert(open.tokens_per_second == at[1].tokens_per_second);
    /* What passes through the host is slower than any wire between cards. */
    hy_plan_facts shared = planned(8, false, PAIRS(EIGHT_H100));
    ck_assert_str_eq(shared.link, "sockets");
    ck_assert(shared.tokens_per_second < at[0].tokens_per_second);
}
END_TEST

/* Gradients and weights of a unit but for the own part, in both ways: 2 (N - 1) / N of the model in
 * their types. */
START_TEST(bytes_are_those_of_the_textbook) {
    hy_plan_facts two = planned(8, true, PAIRS(EIGHT_H100, "zero_stage", "2"));
    hy_plan_facts three = planned(8, true, PAIRS(EIGHT_H100, "zero_stage", "3"));
    double parameters = 1543714304, share = 7.0 / 8;
    ck_assert_int_eq(two.grad_accum_steps, 1);
    ck_assert(fabs((double)two.link_grads / (4 * share * parameters) - 1) < 0.001);
    ck_assert(fabs((double)two.link_weights / (2 * share * parameters) - 1) < 0.001);
    ck_assert_uint_eq(three.link_grads, two.link_grads);
    /* Twice, less what the ring still holds at the turn. */
    ck_assert_uint_lt(three.link_weights, 2 * two.link_weights);
    ck_assert_uint_gt(three.link_weights, two.link_weights * 3 / 2);
}
END_TEST

START_TEST(weights_are_shared_where_nothing_else_fits) {
    const char *const *small =
        PAIRS("card", "rtx4090", "model", "qwen2.5-7b", "seq_len", "1024", "batch_size", "8",
              "small_types", "none", "cpu_mem", "8GB", "predictor", "none");
    hy_plan_facts facts = planned(8, true, small);
    ck_assert(facts.fits);
    ck_assert_int_eq(facts.zero_stage, 3);
    ck_assert_int_eq(planned(8, true, PAIRS(EIGHT_H100)).zero_stage, 2);
}
END_TEST

/* A base that one card does not hold: two hold it together, and each gets the other's half for
 * every pass. */
START_TEST(so_is_what_is_not_trained) {
#define TWO_SMALL                                                                                  \
    "card", "rtx5080", "max_gpu_mem", "12GB", "model", "qwen2.5-7b", "lora", "true", "seq_len",    \
        "512", "batch_size", "2", "cpu_mem", "2GB"
    hy_plan_facts whole = planned(2, true, PAIRS(TWO_SMALL, "zero_stage", "2"));
    hy_plan_facts parts = planned(2, true, PAIRS(TWO_SMALL));
    ck_assert(!whole.fits);
    ck_assert(parts.fits);
    ck_assert_int_eq(parts.zero_stage, 3);
    ck_assert_int_eq(parts.grad_accum_steps, 1);
    double blocks = 6.5e9; /* parameters, of 7.6e9; backward needs no table of tokens */
    ck_assert_uint_gt(parts.link_weights, (uint64_t)(2 * blocks / 2 * 1.7));
    ck_assert_uint_lt(parts.link_weights, (uint64_t)(2 * 7.7e9 / 2 * 2));
}
END_TEST

START_TEST(a_plan_for_one_rank_is_that_of_a_run_alone) {
    hy_plan_facts facts = planned(1, true, PAIRS(EIGHT_H100));
    ck_assert_int_eq(facts.ranks, 1);
    ck_assert_uint_eq(facts.link_bytes, 0);
    ck_assert_str_eq(facts.link, "");
    hy_config *config;
    hy_trainer *t;
    must(hy_config_create(&config));
    must_fail(hy_trainer_plan_ranks(config, 0, true, NULL, &t), HY_ERR_INPUT, "1 to 256");
    ck_assert_ptr_eq(t, NULL);
    hy_config_destroy(config);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("wire");
    TCase *c = tcase_create("wire");
    tcase_add_loop_test(c, ranks_send_what_the_plan_says_to_the_byte, 0, CASES_TRIED);
    tcase_add_loop_test(c, so_they_do_with_other_optimizers_updates_and_places, 0,
                        sizeof others / sizeof others[0]);
    tcase_add_test(c, a_slower_wire_gives_a_slower_plan_and_is_what_bounds_it);
    tcase_add_test(c, bytes_are_those_of_the_textbook);
    tcase_add_test(c, weights_are_shared_where_nothing_else_fits);
    tcase_add_test(c, so_is_what_is_not_trained);
    tcase_add_test(c, a_plan_for_one_rank_is_that_of_a_run_alone);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
