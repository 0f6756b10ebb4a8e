/* test_ranks_alike.c: what ranks could find out differently, and must not: what rank 0 finds is everybody's. */
#include "ranks_rig.h"

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

static void path_of(char out[300], const char *name) { snprintf(out, 300, "%s/%s", folder, name); }

/* ---- the checkpoint that weights begin as ---------------------------------------------------------- */

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
    course expected = {0};
    make_weights("early", "2");
    make_weights("later", "4"); /* has the one of step 2, too, and a newer one */
    for (int victim = 2; victim >= 1; victim--) {
        path_of(out, victim == 2 ? "alike" : "apart");
        course now = train(&(ranks_run){.count = 2,
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

static Suite *suite(void) {
    Suite *s = suite_create("ranks_alike");
    TCase *c = tcase_create("alike");
    tcase_set_timeout(c, 580);
    tcase_add_checked_fixture(c, make_folder, drop_folder);
    tcase_add_test(c, all_ranks_begin_with_the_checkpoint_that_rank_0_finds);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
