/* test_ranks_card.c: ranks with a device whose memory the host cannot access (fake_card.h): timed
 * choices are those of rank 0, and each rank uses the planned memory. */
#include "fake_card.h"
#include "ranks_rig.h"

#include "plan/request.h"

#define CARD_RUN RANKS_RUN "device cuda precision fp32 tune_cache none predictor none steps 2 "

/* One trainer as one of several ranks, ready for its first step. */
static hy_trainer *trainer_of(const hy_ranks *ranks, int stage, const char *words,
                              const hy_observer *observer) {
    ranks_run run = {
        .count = ranks->count, .stage = stage, .words = CARD_RUN, .more = words, .out = "none"};
    hy_trainer *t = NULL;
    set_rank_variables(ranks);
    hy_config *config = config_of(&run);
    hy_status status = hy_trainer_create(config, observer, &t);
    if (status != HY_OK) fprintf(stderr, "rank %d: %s\n", ranks->rank, hy_error_message());
    require(status == HY_OK);
    hy_config_destroy(config);
    return t;
}

/* ---- what is timed --------------------------------------------------------------------------- */

static void load_table(const hy_ranks *ranks, rig_result *mine, const void *user) {
    (void)user, (void)mine;
    snprintf(card.table, sizeof card.table, "chosen by rank %d\n", ranks->rank);
    hy_trainer *t = trainer_of(ranks, 2, NULL, NULL);
    require(strcmp(card.loaded, ranks->rank == 0 ? "" : "chosen by rank 0\n") == 0);
    require((card.prepared_before_load > 0) == (ranks->rank == 0));
    hy_trainer_destroy(t);
}

START_TEST(matmuls_have_the_algorithms_of_rank_0_on_all_ranks) { rig_run(3, load_table, NULL); }
END_TEST

/* Rank 0 finds fp8 faster, and rank 1 would find it slower. */
static void agree_on_fp8(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const bool *has_other_card = user;
    hy_summary summary;
    card.fp8_seconds = ranks->rank == 0 ? 0.5 : 2;
    if (*has_other_card && ranks->rank == 1) snprintf(card.name, sizeof card.name, "another card");
    hy_trainer *t = trainer_of(ranks, 2, "precision fp8 width 64 mlp_width 64", NULL);
    hy_trainer_summary(t, &summary);
    mine->number = summary.fp8_matmuls;
    hy_trainer_destroy(t);
}

START_TEST(rank_0_chooses_fp8_matmuls_for_equal_cards) {
    bool has_other_card = _i == 1;
    rig it = rig_start(2, agree_on_fp8, &has_other_card);
    rig_wait(&it);
    for (int r = 0; r < 2; r++) ck_assert_int_eq(it.codes[r], 0);
    ck_assert_int_eq(it.results[0].number, 2 * 12);
    ck_assert_int_eq(it.results[1].number, has_other_card ? 0 : 2 * 12);
    rig_free(&it);
}
END_TEST

static void note_warning(void *user, hy_message_level level, const char *text) {
    if (level == HY_WARNING && strstr(text, "rank 1 computes on")) ++*(int *)user;
}

static void have_another_card(const hy_ranks *ranks, rig_result *mine, const void *user) {
    int warnings = 0;
    hy_observer observer = {.user = &warnings, .on_message = note_warning};
    (void)user, (void)mine;
    if (ranks->rank == 1) snprintf(card.name, sizeof card.name, "NVIDIA A100");
    hy_trainer_destroy(trainer_of(ranks, 2, NULL, &observer));
    require(warnings == (ranks->rank == 0));
}

START_TEST(a_rank_with_another_card_is_reported) { rig_run(2, have_another_card, NULL); }
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static const char *const optimizers[] = {"optimizer adamw", "optimizer muon",
                                         "optimizer adafactor tied_head false",
                                         "optimizer adamw8bit train final_norm.*"};
#define OPTIMIZERS ((int)(sizeof optimizers / sizeof optimizers[0]))

typedef struct memory_case {
    int stage;
    const char *words;
    const char *limit;      /* of the device's memory, of all ranks; NULL: none */
    const char *limit_of_1; /* of rank 1 alone; likewise */
} memory_case;

/* Bytes of its device. */
static uint64_t must_have_what_is_planned(const hy_trainer *t) {
    hy_memory_state memory;
    hy_plan_facts facts;
    hy_trainer_plan_facts(t, &facts);
    require(hy_trainer_memory(t, &memory) == HY_OK);
    require(memory.device.reserved == facts.vram_bytes);
    require(memory.host.reserved == facts.host_pinned_bytes);
    require(memory.host_pinned == facts.host_pinned_bytes); /* what passes through the host, too */
    require(facts.host_pinned_bytes > 0 && card.live >= facts.vram_bytes);
    return facts.vram_bytes;
}

static void take_memory(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const memory_case *c = user;
    char words[512];
    const char *limit = ranks->rank == 1 && c->limit_of_1 ? c->limit_of_1 : c->limit;
    snprintf(words, sizeof words, "%s%s%s", c->words, limit ? " max_gpu_mem " : "",
             limit ? limit : "");
    hy_trainer *t = trainer_of(ranks, c->stage, words, NULL);
    hy_summary summary;
    must_have_what_is_planned(t);
    require(hy_trainer_run(t) == HY_OK);
    mine->number = (int64_t)must_have_what_is_planned(t);
    hy_trainer_summary(t, &summary);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_memory_cell *cell = &summary.phases[HY_WARMUP].memory[cls];
        require(cell->measured_bytes == cell->planned_bytes);
    }
    hy_trainer_destroy(t);
}

START_TEST(each_rank_takes_what_was_planned_for_it) {
    memory_case c = {.stage = _i / OPTIMIZERS, .words = optimizers[_i % OPTIMIZERS]};
    rig_run(2 + _i % 2, take_memory, &c);
}
END_TEST

/* A plan that would be too large for another rank than 0: for its shard, or for its memory. */
START_TEST(the_plan_has_room_on_every_rank) {
    memory_case c = {.stage = 2, .words = optimizers[1]};
    char limit[32];
    rig it = rig_start(3, take_memory, &c);
    rig_wait(&it);
    int64_t first = it.results[0].number, second = it.results[1].number, most = first;
    for (int r = 1; r < 3; r++) {
        if (it.results[r].number > most) most = it.results[r].number;
    }
    rig_free(&it);
    ck_assert_msg(most > first, "rank 0 has the largest shard"); /* else it shows nothing */
    snprintf(limit, sizeof limit, "%lld", (long long)(_i == 0 ? most - 1 : second - 1));
    if (_i == 0) c.limit = limit;
    if (_i == 1) c.limit_of_1 = limit;
    rig_run(3, take_memory, &c);
}
END_TEST

/* Of what is free each rank of a machine has a part; what it holds already is all its own. */
START_TEST(a_rank_shares_what_is_free_and_not_what_it_holds) {
    const uint64_t held = (uint64_t)1 << 50; /* more than any machine has free */
    hy_config *config;
    must(hy_config_create(&config));
    hy_plan_request x = {.settings = hy_config_settings(config), .sharers = 4, .host_held = held};
    ck_assert_uint_ge(hy_budget_host(&x), held);
    x.host_held = 0;
    ck_assert_uint_lt(hy_budget_host(&x), held);
    hy_config_destroy(config);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_card");
    TCase *c = tcase_create("card");
    tcase_set_timeout(c, 300);
    tcase_add_test(c, matmuls_have_the_algorithms_of_rank_0_on_all_ranks);
    tcase_add_loop_test(c, rank_0_chooses_fp8_matmuls_for_equal_cards, 0, 2);
    tcase_add_test(c, a_rank_with_another_card_is_reported);
    tcase_add_loop_test(c, each_rank_takes_what_was_planned_for_it, 0, 4 * OPTIMIZERS);
    tcase_add_loop_test(c, the_plan_has_room_on_every_rank, 0, 2);
    tcase_add_test(c, a_rank_shares_what_is_free_and_not_what_it_holds);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
