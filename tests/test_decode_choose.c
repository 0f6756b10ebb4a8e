/* test_decode_choose.c: which token is chosen from given logits. */
#include "harness.h"

#include <math.h>

#include "infer/choose.h"

#define VOCAB 200
#define DRAWS 4000

static float logits[VOCAB];
static int32_t order[VOCAB];

/* Shares that fall by a tenth from id to id, in an order that is not that of ids. */
static void set_up(void) {
    for (int i = 0; i < VOCAB; i++) logits[i * 73 % VOCAB] = (float)(i * log(0.9));
}

static int rank_of(int32_t token) {
    for (int i = 0; i < VOCAB; i++) {
        if (i * 73 % VOCAB == token) return i;
    }
    return -1;
}

/* How often each rank is drawn; returns the largest. */
static int draw(const hy_choice *choice, int *drawn) {
    int last = 0;
    for (int i = 0; i < VOCAB; i++) drawn[i] = 0;
    for (int i = 0; i < DRAWS; i++) {
        int rank = rank_of(hy_choose_token(choice, logits, VOCAB, (uint64_t)i, order));
        drawn[rank]++;
        if (rank > last) last = rank;
    }
    return last;
}

START_TEST(without_temperature_the_likeliest_is_taken) {
    hy_choice choice = {.top_k = 5, .top_p = 0.5};
    logits[17] = logits[90] = 3; /* of equals the first */
    for (uint64_t i = 0; i < 20; i++) {
        ck_assert_int_eq(hy_choose_token(&choice, logits, VOCAB, i, order), 17);
    }
}
END_TEST

START_TEST(tokens_come_as_often_as_their_share_says) {
    int drawn[VOCAB];
    draw(&(hy_choice){.temperature = 1, .seed = 4}, drawn);
    for (int i = 0; i < 20; i++) {
        double expected = DRAWS * 0.1 * pow(0.9, i);
        ck_assert_double_lt(fabs(drawn[i] - expected), 5 * sqrt(expected));
    }
}
END_TEST

START_TEST(temperature_flattens_and_sharpens) {
    int cold[VOCAB], hot[VOCAB];
    draw(&(hy_choice){.temperature = 0.5, .seed = 4}, cold);
    draw(&(hy_choice){.temperature = 2, .seed = 4}, hot);
    double expected = DRAWS * (1 - 0.81); /* squares of the shares */
    ck_assert_double_lt(fabs(cold[0] - expected), 5 * sqrt(expected));
    expected = DRAWS * (1 - sqrt(0.9));
    ck_assert_double_lt(fabs(hot[0] - expected), 5 * sqrt(expected));
}
END_TEST

START_TEST(top_k_leaves_k_of_them_in_their_proportions) {
    int drawn[VOCAB];
    ck_assert_int_eq(draw(&(hy_choice){.temperature = 1, .top_k = 7, .seed = 1}, drawn), 6);
    double expected = DRAWS * 0.1 / (1 - pow(0.9, 7));
    ck_assert_double_lt(fabs(drawn[0] - expected), 5 * sqrt(expected));
    ck_assert_int_eq(draw(&(hy_choice){.temperature = 1, .top_k = 1, .seed = 1}, drawn), 0);
}
END_TEST

/* 1 - 0.9^n reaches 0.5 at n = 7 and 0.95 at n = 29. */
START_TEST(top_p_leaves_the_fewest_that_make_up_the_share) {
    int drawn[VOCAB];
    ck_assert_int_eq(draw(&(hy_choice){.temperature = 1, .top_p = 0.5, .seed = 1}, drawn), 6);
    ck_assert_int_eq(draw(&(hy_choice){.temperature = 1, .top_p = 0.95, .seed = 1}, drawn), 28);
    ck_assert_int_eq(
        draw(&(hy_choice){.temperature = 1, .top_k = 3, .top_p = 0.95, .seed = 1}, drawn), 2);
    ck_assert_int_eq(draw(&(hy_choice){.temperature = 1, .top_p = 0.01, .seed = 1}, drawn), 0);
}
END_TEST

START_TEST(the_same_seed_and_position_choose_the_same) {
    hy_choice choice = {.temperature = 1, .top_p = 0.9, .seed = 12};
    int differing = 0;
    for (uint64_t i = 0; i < 100; i++) {
        int32_t token = hy_choose_token(&choice, logits, VOCAB, i, order);
        ck_assert_int_eq(hy_choose_token(&choice, logits, VOCAB, i, order), token);
        hy_choice other = choice;
        other.seed = 13;
        differing += hy_choose_token(&other, logits, VOCAB, i, order) != token;
    }
    ck_assert_int_gt(differing, 50);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("decode: choice");
    TCase *all = tcase_create("choice");
    tcase_add_checked_fixture(all, set_up, NULL);
    tcase_add_test(all, without_temperature_the_likeliest_is_taken);
    tcase_add_test(all, tokens_come_as_often_as_their_share_says);
    tcase_add_test(all, temperature_flattens_and_sharpens);
    tcase_add_test(all, top_k_leaves_k_of_them_in_their_proportions);
    tcase_add_test(all, top_p_leaves_the_fewest_that_make_up_the_share);
    tcase_add_test(all, the_same_seed_and_position_choose_the_same);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
