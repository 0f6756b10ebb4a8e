/* test_ranks_same.c: several ranks train the same as one rank.
 *
 * Losses of N ranks equal those of one, except for the order of sums. ZeRO stages, and a repeated
 * run, agree in every bit of losses, norms and checkpoints. Fast tests use one number of ranks and
 * two stages for each way of training; tests/long/test_ranks_same_all.c uses 2, 3 and 4 ranks and
 * all stages. */
#include "ranks_variants.h"

#ifdef HY_ALL_RANKS
#define IS_LONG true
#else
#define IS_LONG false
#endif

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

static run_steps train_into(const char *out, const variant *v, int count, int stage,
                            const char *variable) {
    char words[1024];
    ranks_run run = {.count = count,
                     .stage = stage,
                     .words = RANKS_RUN,
                     .more = words_of(v, folder, words),
                     .out = out,
                     .variable = variable};
    return train(&run);
}

/* Stages in bits. */
static void check_stages(const variant *v, int count, unsigned stages, const run_steps *one) {
    char first[300] = "", out[300];
    run_steps expected = {0};
    for (int stage = 0; stage < stages_of(v); stage++) {
        if (!(stages >> stage & 1)) continue;
        snprintf(out, sizeof out, "%s/%d-%d", folder, count, stage);
        run_steps now = train_into(out, v, count, stage, NULL);
        distance far = apart(&now, one);
        ck_assert_msg(far.loss <= v->apart.loss && far.norm <= v->apart.norm,
                      "%s, %d ranks, stage %d: losses are %.2g away, norms %.2g", v->name, count,
                      stage, far.loss, far.norm);
        if (first[0]) {
            must_be_same(&now, &expected, v->name);
            must_have_same_checkpoint(out, first);
        } else {
            expected = now;
            strcpy(first, out);
        }
    }
}

START_TEST(ranks_train_what_one_does_and_stages_agree_to_the_bit) {
    const variant *v = &variants[_i];
    char out[300];
    snprintf(out, sizeof out, "%s/one", folder);
    run_steps one = train_into(out, v, 1, -1, NULL);
    ck_assert_msg(jumps_of(&one) >= v->jumps, "%s: %d jumps", v->name, jumps_of(&one));
    for (int count = 2; count <= 4; count++) {
        if (IS_LONG) {
            check_stages(v, count, 15, &one);
        } else if (count == 2 + _i % 3) {
            check_stages(v, count, _i == 0 ? 15 : 1u << _i % 3 | 8, &one);
        }
    }
}
END_TEST

/* Once more, and over a link so slow that everything waits for it. */
START_TEST(the_same_ranks_again_give_the_same_bits_however_slow_their_link_is) {
    static const char *const names[] = {"streaming", "outer", "muon"};
    static const char *const variables[] = {"HYBRID_TEST_LINK=0,0", "HYBRID_TEST_LINK=20e6,0.002"};
    const variant *v = variant_named(names[_i]);
    char out[3][300];
    run_steps first = {0};
    for (int i = 0; i < 3; i++) {
        snprintf(out[i], sizeof out[i], "%s/%d", folder, i);
        run_steps now = train_into(out[i], v, 3, 3 - _i, i > 0 ? variables[i - 1] : NULL);
        if (i == 0) first = now;
        must_be_same(&now, &first, v->name);
        must_have_same_checkpoint(out[i], out[0]);
    }
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_same");
    TCase *c = tcase_create("same");
    tcase_set_timeout(c, 580);
    tcase_add_checked_fixture(c, make_folder, drop_folder);
    for (int i = 0; i < VARIANT_COUNT; i++) {
        if (variants[i].is_for_long && !IS_LONG) continue;
        tcase_add_loop_test(c, ranks_train_what_one_does_and_stages_agree_to_the_bit, i, i + 1);
    }
    tcase_add_loop_test(c, the_same_ranks_again_give_the_same_bits_however_slow_their_link_is, 0,
                        IS_LONG ? 3 : 1);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
