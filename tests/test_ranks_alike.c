/* test_ranks_alike.c: decisions that ranks could make differently and must not: all ranks use those
 * of rank 0. */
#include "ranks_rig.h"

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

static void path_of(char out[300], const char *name) { snprintf(out, 300, "%s/%s", folder, name); }

/* ---- the checkpoint that weights begin as ---------------------------------------------------- */

/* A name that is alike on all ranks and leads each to where it stands. */
#define WHERE_IT_STANDS "/proc/self/cwd/run"
#define KEEPS_ALL "schedule constant lr_warmup_steps 0 save_every 2 keep 9 predictor none "

/* Runs whose steps are the same as far as they go. */
static void make_weights(const char *name, const char *steps) {
    char out[300], words[200];
    snprintf(out, sizeof out, "%s/%s/run", folder, name);
    snprintf(words, sizeof words, KEEPS_ALL "steps %s", steps);
    (void)train(
        &(ranks_run){.count = 1, .stage = -1, .words = RANKS_RUN, .more = words, .out = out});
}

static void stand_apart(const ranks_run *run, int rank) {
    char path[300];
    path_of(path, rank == run->victim ? "later" : "early");
    require(chdir(path) == 0);
}

START_TEST(all_ranks_begin_with_the_checkpoint_that_rank_0_finds) {
    char out[300];
    run_steps expected = {0};
    make_weights("early", "2");
    make_weights("later", "4"); /* has the one of step 2, too, and a newer one */
    for (int victim = 2; victim >= 1; victim--) {
        path_of(out, victim == 2 ? "alike" : "apart");
        run_steps now =
            train(&(ranks_run){.count = 2,
                               .stage = 0,
                               .words = RANKS_RUN,
                               .more = "predictor none steps 2 init_from " WHERE_IT_STANDS,
                               .out = out,
                               .victim = victim,
                               .begin = stand_apart});
        if (victim == 2) expected = now;
        must_be_same(&now, &expected, "a rank that would find another checkpoint");
    }
}
END_TEST

/* ---- validation ------------------------------------------------------------------------------ */

/* More sequences than fit into one message. */
START_TEST(ranks_validate_as_many_sequences_as_one) {
    char out[300];
    run_steps one = {0};
    for (int count = 1; count <= 3; count += 2) {
        path_of(out, count == 1 ? "one" : "three");
        run_steps now = train(&(ranks_run){.count = count,
                                           .stage = 1,
                                           .words = RANKS_RUN,
                                           .more = "predictor none steps 2 seq_len 8 eval_every 1 "
                                                   "eval_batches 0 builtin_bytes 120000",
                                           .out = out});
        if (count == 1) one = now;
        ck_assert(one.step[0].val_loss > 0);
        ck_assert(apart(&now, &one).loss < 1e-5);
    }
}
END_TEST

/* ---- samples --------------------------------------------------------------------------------- */

typedef struct sample_case {
    int stage;
    uint64_t seed; /* that rank 1 draws with; rank 0 has 1 */
    bool fails;    /* on rank 1: files of its model are others by then */
} sample_case;

static const sample_case sample_cases[] = {{0, 2, false}, {3, 2, false}, {3, 1, true}};

/* A rank that trains a little and then writes a text that is longer than any context. */
static void sample_as_rank(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const sample_case *c = user;
    char out[300], *text = NULL;
    path_of(out, "run");
    ranks_run run = {.count = 2,
                     .stage = c->stage,
                     .words = RANKS_RUN,
                     .more = c->fails ? "predictor none steps 1 model " WHERE_IT_STANDS "/model"
                                      : "predictor none steps 1",
                     .out = out};
    hy_trainer *t = NULL;
    hy_sample_options options = {.prompt = "to", .tokens = 60, .temperature = 1, .seed = 1};
    set_rank_variables(ranks);
    if (c->fails) {
        char good[300];
        path_of(good, "good");
        require(chdir(good) == 0);
    }
    hy_config *config = config_of(&run);
    require(hy_trainer_create(config, NULL, &t) == HY_OK && hy_trainer_run(t) == HY_OK);
    hy_config_destroy(config);
    if (ranks->rank == 1) options.seed = c->seed;
    if (ranks->rank == 1 && c->fails) {
        path_of(out, "bad");
        require(chdir(out) == 0);
    }
    hy_status status = hy_trainer_sample(t, &options, &text, NULL);
    rig_keep(mine, status);
    if (status == HY_OK) snprintf(mine->message, sizeof mine->message, "%s", text);
    hy_summary summary;
    hy_trainer_summary(t, &summary);
    mine->seconds = summary.ngram_loss;
    hy_free(text);
    hy_trainer_destroy(t);
}

/* A model in `good`, and in `bad` a folder where it should be. */
static void make_models(void) {
    char path[300];
    make_weights("good", "2 save_model true");
    path_of(path, "bad/run/model");
    must(hy_dir_make(path));
}

START_TEST(a_sample_is_that_of_rank_0) {
    const sample_case *c = &sample_cases[_i];
    if (c->fails) make_models();
    rig it = rig_start(2, sample_as_rank, c);
    rig_wait_except(&it, RUN_SECONDS, 0);
    for (int r = 0; r < 2; r++) {
        ck_assert_int_eq(it.codes[r], 0);
        ck_assert_msg((it.results[r].status == HY_OK) != c->fails, "%s", it.results[r].message);
        ck_assert(it.results[r].seconds > 0 && it.results[r].seconds == it.results[0].seconds);
    }
    ck_assert_str_eq(it.results[1].message, it.results[0].message);
    if (c->fails) must_mention(&it, 0, "has no config.json");
    if (!c->fails) ck_assert_uint_ge(strlen(it.results[0].message), 20);
    rig_free(&it);
}
END_TEST

/* ---- what ranks have differently ------------------------------------------------------------- */

#define FORKS                                                                                      \
    "steps 20 predictor outer regime fine-tuning fork_budget 0.5 fork_steps 2 schedule constant "  \
    "full_steps 2 correct_steps 1 predict_from 0 predict_until 1 confidence_threshold 0.75 "       \
    "update gather "

/* One rank has room for a fork and the other has none: then nobody makes one, and the run goes
 * on. */
START_TEST(a_paired_test_is_made_by_all_ranks_or_none) {
    char out[300];
    for (int victim = 2; victim >= 0; victim--) {
        snprintf(out, sizeof out, "%s/%d", folder, victim);
        run_steps now = train(&(ranks_run){.count = 2,
                                           .stage = 2,
                                           .words = RANKS_RUN,
                                           .more = FORKS,
                                           .out = out,
                                           .own = "cpu_mem 1800000",
                                           .victim = victim});
        ck_assert_int_eq(jumps_of(&now) > 0, victim == 2);
        if (victim < 2) ck_assert_int_eq(now.step[now.count - 1].step, 20);
    }
}
END_TEST

/* Rings of two units with a table that the head works with, too; and so little that is trained that
 * a rank may have nothing of it. */
START_TEST(small_rings_and_empty_shards_give_the_bits_of_other_stages) {
    static const char *const words[] = {
        "predictor none steps 4 layers 4 tied_head true weights_place pinned grads_place pinned "
        "optim_place pinned max_gpu_mem 64MiB ring_depth 2",
        "predictor none steps 4 train final_norm.*",
    };
    static const int most[] = {2, 4};
    char out[300];
    run_steps first = {0}, one = {0};
    for (int count = 1; count <= most[_i]; count *= 2) {
        for (int stage = count == 1 ? 3 : 0; stage < 4; stage++) {
            snprintf(out, sizeof out, "%s/%d-%d", folder, count, stage);
            run_steps now = train(&(ranks_run){
                .count = count, .stage = stage, .words = RANKS_RUN, .more = words[_i], .out = out});
            if (count == 1) one = now;
            if (count > 1 && stage == 0) first = now;
            if (count > 1) must_be_same(&now, &first, "another stage");
            ck_assert(apart(&now, &one).loss < 2e-6);
        }
    }
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_alike");
    TCase *c = tcase_create("alike");
    tcase_set_timeout(c, 580);
    tcase_add_checked_fixture(c, make_folder, drop_folder);
    tcase_add_test(c, all_ranks_begin_with_the_checkpoint_that_rank_0_finds);
    tcase_add_test(c, ranks_validate_as_many_sequences_as_one);
    tcase_add_loop_test(c, a_sample_is_that_of_rank_0, 0,
                        sizeof sample_cases / sizeof sample_cases[0]);
    tcase_add_test(c, a_paired_test_is_made_by_all_ranks_or_none);
    tcase_add_loop_test(c, small_rings_and_empty_shards_give_the_bits_of_other_stages, 0, 2);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
