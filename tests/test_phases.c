/* test_phases.c: the phase machine by table and by random walks; divergence, guard, confidence. */
#include "harness.h"

#include <math.h>

#include "base/rng.h"
#include "phases/confidence.h"
#include "phases/divergence.h"
#include "phases/guard.h"
#include "phases/machine.h"
#include "phases/predictor.h"

static const hy_phase_rules rules = {.has_predictor = true,
                                     .warmup_steps = 3,
                                     .full_steps = 4,
                                     .correct_steps = 2,
                                     .predict_from = 0.1,
                                     .predict_until = 0.75,
                                     .confidence_threshold = 0.6,
                                     .cooldown_steps = 5};

static const hy_observation fine = {.started = 0.3, .spent = 0.3, .confidence = 0.8};

static hy_phase_state after(hy_phase_state s, hy_observation seen, int times) {
    for (int i = 0; i < times; i++) s = hy_phase_next(&rules, s, &seen);
    return s;
}

static hy_phase_state at_predict(void) { return after(hy_phase_begin(&rules), fine, 9); }

START_TEST(warm_up_full_predict_correct_full) {
    hy_phase_state s = hy_phase_begin(&rules);
    ck_assert_int_eq(s.phase, HY_WARMUP);
    ck_assert_int_eq(s.reason, HY_WHY_BEGIN);
    s = after(s, fine, 2);
    ck_assert_int_eq(s.phase, HY_WARMUP);
    s = after(s, fine, 1);
    ck_assert_int_eq(s.phase, HY_FULL);
    ck_assert_int_eq(s.reason, HY_WHY_WARM);
    s = after(s, fine, 6); /* a window: warm-up does not count */
    ck_assert_int_eq(s.phase, HY_PREDICT);
    ck_assert_int_eq(s.reason, HY_WHY_WINDOW_FULL);
    hy_observation accepted = fine;
    accepted.verdict = HY_ACCEPTED;
    s = hy_phase_next(&rules, s, &accepted);
    ck_assert_int_eq(s.phase, HY_CORRECT);
    ck_assert_int_eq(s.moves, 1);
    s = after(s, fine, 2);
    ck_assert_int_eq(s.phase, HY_FULL);
    ck_assert_int_eq(s.reason, HY_WHY_CORRECTED);
    s = after(s, fine, 4);
    ck_assert_int_eq(s.phase, HY_PREDICT);
}
END_TEST

START_TEST(a_window_may_be_a_single_step) {
    hy_phase_rules one = rules;
    one.full_steps = 0;
    one.correct_steps = 1;
    hy_phase_state s = hy_phase_begin(&one);
    hy_observation accepted = fine;
    accepted.verdict = HY_ACCEPTED;
    for (int i = 0; i < 4; i++) s = hy_phase_next(&one, s, &fine);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(s.phase, HY_PREDICT);
        ck_assert_int_eq(s.window, 1);
        s = hy_phase_next(&one, s, &accepted);
        ck_assert_int_eq(s.phase, HY_CORRECT);
        s = hy_phase_next(&one, s, &fine);
    }
    ck_assert_int_eq(s.moves, 5);
}
END_TEST

START_TEST(each_obstacle_keeps_predict_away) {
    hy_phase_state s = after(hy_phase_begin(&rules), fine, 8);
    struct {
        hy_observation seen;
        hy_phase_obstacle obstacle;
    } cases[] = {
        {{.started = 0.3, .spent = 0.05, .confidence = 0.9}, HY_PREDICT_TOO_EARLY},
        {{.started = 0.3, .spent = 0.75, .confidence = 0.9}, HY_PREDICT_TOO_LATE},
        {{.started = 0.3, .spent = 0.5, .confidence = 0.59}, HY_PREDICT_LOW_CONFIDENCE},
        {{.started = 0.3, .spent = 0.5, .confidence = NAN}, HY_PREDICT_LOW_CONFIDENCE},
        {{.started = 0.3, .spent = NAN, .confidence = 0.9}, HY_PREDICT_TOO_EARLY},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hy_phase_state next = hy_phase_next(&rules, s, &cases[i].seen);
        ck_assert_int_eq(next.phase, HY_FULL);
        ck_assert_int_eq(hy_phase_obstacle_now(&rules, &next, &cases[i].seen), cases[i].obstacle);
        ck_assert_str_ne(hy_phase_obstacle_text(cases[i].obstacle), "");
    }
    hy_phase_rules without = rules;
    without.has_predictor = false;
    ck_assert_int_eq(hy_phase_obstacle_now(&without, &s, &fine), HY_PREDICT_NO_PREDICTOR);
}
END_TEST

START_TEST(windows_begin_where_moves_may) {
    hy_observation early = {.started = 0.02, .spent = 0.03, .confidence = 0.9};
    hy_observation crossing = {.started = 0.09, .spent = 0.11, .confidence = 0.9};
    hy_phase_state s = after(hy_phase_begin(&rules), early, 40);
    ck_assert_int_eq(s.window, 0);
    s = after(s, crossing, 1); /* it began before predict_from: not of the window */
    ck_assert_int_eq(s.window, 0);
    s = after(s, fine, 5);
    ck_assert_int_eq(s.phase, HY_FULL);
    s = after(s, fine, 1);
    ck_assert_int_eq(s.phase, HY_PREDICT);
}
END_TEST

START_TEST(a_window_that_is_complete_in_vain_is_dropped) {
    hy_observation doubtful = {.started = 0.3, .spent = 0.3, .confidence = 0.1};
    hy_phase_state s = after(hy_phase_begin(&rules), doubtful, 3);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(hy_phase_step_in_window(&rules, &s), i % 6 + 1);
        s = after(s, doubtful, 1);
        ck_assert_int_eq(s.window, i % 6 + 1);
        ck_assert_int_eq(s.phase, HY_FULL);
    }
}
END_TEST

START_TEST(a_rejected_move_costs_a_cooldown_that_doubles) {
    hy_observation rejected = fine;
    rejected.verdict = HY_REJECTED;
    hy_phase_state s = hy_phase_next(&rules, at_predict(), &rejected);
    ck_assert_int_eq(s.phase, HY_FULL);
    ck_assert_int_eq(s.cooldown, 5);
    ck_assert_int_eq(s.next_cooldown, 10);
    s = after(s, fine, 6);
    ck_assert_int_eq(s.phase, HY_PREDICT);
    s = hy_phase_next(&rules, s, &rejected);
    ck_assert_int_eq(s.cooldown, 10);
    s = after(s, fine, 11); /* ten of cooldown, then the window that is running must be complete */
    ck_assert_int_eq(s.phase, HY_FULL);
    s = after(s, fine, 1);
    ck_assert_int_eq(s.phase, HY_PREDICT);
    for (int i = 0; i < 100; i++) {
        s.phase = HY_PREDICT;
        s = hy_phase_next(&rules, s, &rejected);
    }
    ck_assert_int_le(s.next_cooldown, 5 * 64);
}
END_TEST

START_TEST(a_divergence_in_correct_rolls_back_and_goes_to_full) {
    hy_observation accepted = fine, diverged = fine;
    accepted.verdict = HY_ACCEPTED;
    diverged.has_diverged = true;
    hy_phase_state s = hy_phase_next(&rules, at_predict(), &accepted);
    s = hy_phase_next(&rules, s, &diverged);
    ck_assert_int_eq(s.phase, HY_FULL);
    ck_assert(s.rolls_back);
    ck_assert_int_eq(s.divergences, 1);
    s = hy_phase_next(&rules, s, &fine);
    ck_assert(!s.rolls_back);
    s = hy_phase_next(&rules, s, &diverged); /* in Full there is no move to undo */
    ck_assert_int_eq(s.phase, HY_FULL);
    ck_assert(!s.rolls_back);
}
END_TEST

/* A random observation: most are healthy, some are absurd. */
static hy_observation random_observation(uint64_t seed, uint64_t i) {
    uint64_t word = hy_rng_u64(seed, HY_RNG_TEST, i);
    hy_observation seen = {.started = (double)(word / 7 % 1000) / 1000,
                           .spent = (double)(word % 1000) / 1000,
                           .confidence = (double)(word / 1000 % 100) / 100,
                           .has_diverged = word / 100000 % 17 == 0,
                           .verdict = (hy_verdict)(word / 10000000 % 3)};
    if (word >> 58 == 0) seen.confidence = NAN;
    if (word >> 58 == 1) seen.spent = NAN;
    return seen;
}

START_TEST(a_million_random_observations_break_no_invariant) {
    for (uint64_t walk = 0; walk < 20; walk++) {
        hy_phase_rules r = rules;
        r.warmup_steps = (int64_t)(walk % 4);
        r.full_steps = (int64_t)(walk % 5);
        r.correct_steps = (int64_t)(walk % 3);
        hy_phase_state s = hy_phase_begin(&r);
        bool moved_since_correct = false;
        for (uint64_t i = 0; i < 50000; i++) {
            hy_observation seen = random_observation(walk, i);
            hy_phase_state next = hy_phase_next(&r, s, &seen);
            if (next.phase == HY_PREDICT) {
                ck_assert(next.done >= r.warmup_steps);
                ck_assert(seen.spent >= r.predict_from && seen.spent < r.predict_until);
                ck_assert(seen.confidence >= r.confidence_threshold);
                ck_assert(!moved_since_correct);
                ck_assert(s.phase != HY_PREDICT && !seen.has_diverged);
                ck_assert_int_eq(next.cooldown, 0);
            }
            if (seen.has_diverged && s.phase != HY_WARMUP) ck_assert_int_eq(next.phase, HY_FULL);
            if (s.phase == HY_PREDICT) {
                bool is_accepted = seen.verdict == HY_ACCEPTED && !seen.has_diverged;
                ck_assert_int_eq(next.phase, is_accepted ? HY_CORRECT : HY_FULL);
                if (is_accepted) moved_since_correct = true;
                ck_assert_int_eq(next.done, s.done);
            } else {
                ck_assert_int_eq(next.done, s.done + 1);
            }
            if (s.phase == HY_CORRECT) moved_since_correct = false;
            if (next.rolls_back) ck_assert(s.phase == HY_CORRECT && seen.has_diverged);
            ck_assert(next.window >= 0 && next.cooldown >= 0 && next.correct_left >= 0);
            if (next.phase == HY_PREDICT) {
                ck_assert_int_le(next.window,
                                 r.full_steps + (r.correct_steps ? r.correct_steps : 1));
            }
            if (next.phase != s.phase) ck_assert_int_ne(next.reason, HY_WHY_SAME);
            s = next;
        }
    }
}
END_TEST

static const hy_divergence_limits limits = {
    .loss_sigma = 6, .grad_explosion = 100, .grad_vanishing = 0.01};

static hy_divergence learned(void) {
    hy_divergence d = {0};
    for (uint64_t i = 0; i < 100; i++) {
        double noise = 0.05 * hy_rng_normal(1, HY_RNG_TEST, i);
        ck_assert_int_eq(hy_divergence_observe(&d, &limits, 3 + noise, 1 + noise), HY_HEALTHY);
    }
    return d;
}

START_TEST(divergence_is_detected_and_does_not_change_the_averages) {
    hy_divergence d = learned(), before = d;
    ck_assert_int_eq(hy_divergence_observe(&d, &limits, NAN, 1), HY_NOT_FINITE);
    ck_assert_int_eq(hy_divergence_observe(&d, &limits, 3, INFINITY), HY_NOT_FINITE);
    ck_assert_int_eq(hy_divergence_observe(&d, &limits, 4, 1), HY_LOSS_TOO_HIGH);
    ck_assert_int_eq(hy_divergence_observe(&d, &limits, 3, 150), HY_GRAD_EXPLODED);
    ck_assert_int_eq(hy_divergence_observe(&d, &limits, 3, 0.005), HY_GRAD_VANISHED);
    ck_assert_mem_eq(&d, &before, sizeof d);
    ck_assert_int_eq(hy_divergence_observe(&d, &limits, 3.1, 2), HY_HEALTHY);
    ck_assert_int_eq(hy_divergence_observe(&d, &limits, 1, 1), HY_HEALTHY); /* lower is welcome */
}
END_TEST

START_TEST(a_young_run_may_still_jump_about) {
    hy_divergence d = {0};
    ck_assert_int_eq(hy_divergence_observe(&d, &limits, 10, 1), HY_HEALTHY);
    ck_assert_int_eq(hy_divergence_observe(&d, &limits, 14, 300), HY_HEALTHY);
    ck_assert_int_eq(hy_divergence_observe(&d, &limits, NAN, 1), HY_NOT_FINITE);
}
END_TEST

START_TEST(the_guard_rejects_only_outliers_of_its_history) {
    hy_guard g = {0};
    ck_assert_int_eq(hy_guard_judge(&g, 3, NAN, 0.01), HY_REJECTED);
    ck_assert_int_eq(hy_guard_judge(&g, 3, INFINITY, 0.01), HY_REJECTED);
    ck_assert_int_eq(hy_guard_judge(&g, 3, 3.4, 0.001),
                     HY_ACCEPTED); /* a little worse is no reason */
    ck_assert_int_eq(hy_guard_judge(&g, 3, 4, 0.001), HY_REJECTED);
    for (int i = 0; i < 10; i++) hy_guard_remember(&g, 0.01 + 0.002 * (i % 3));
    ck_assert_int_eq(hy_guard_judge(&g, 3, 3.015, 0.001), HY_ACCEPTED);
    ck_assert_int_eq(hy_guard_judge(&g, 3, 2.5, 0.001), HY_ACCEPTED);
    ck_assert_int_eq(hy_guard_judge(&g, 3, 3.1, 0.001), HY_REJECTED);
    ck_assert_int_eq(hy_guard_judge(&g, 3, 3.1, 0.05), HY_ACCEPTED); /* within its own noise */
}
END_TEST

START_TEST(confidence_begins_with_the_regime_and_changes_with_paired_tests) {
    hy_confidence scratch = hy_confidence_prior(HY_FROM_SCRATCH, 0.8);
    hy_confidence tuning = hy_confidence_prior(HY_FINE_TUNING, 0.8);
    ck_assert_double_eq_tol(hy_confidence_value(&scratch), 0.8, 1e-9);
    ck_assert_double_lt(hy_confidence_value(&tuning), 0.6); /* below every profile's threshold */
    hy_confidence_fork(&tuning, 0.02, 0.01);
    ck_assert_double_gt(hy_confidence_value(&tuning), 0.85);
    hy_confidence_fork(&scratch, -0.01, 0.01);
    ck_assert_double_lt(hy_confidence_value(&scratch), 0.6);
    double before = hy_confidence_value(&scratch);
    hy_confidence_fork(&scratch, 0, 0.01);
    ck_assert_double_eq(hy_confidence_value(&scratch), before);
    hy_confidence_fork(&scratch, NAN, 0.01);
    ck_assert_double_lt(hy_confidence_value(&scratch), 0.05);
    ck_assert_int_eq(scratch.forks, 3);
}
END_TEST

static Suite *phases_suite(void) {
    Suite *suite = suite_create("phases");
    TCase *tests = tcase_create("phases");
    tcase_add_test(tests, warm_up_full_predict_correct_full);
    tcase_add_test(tests, a_window_may_be_a_single_step);
    tcase_add_test(tests, each_obstacle_keeps_predict_away);
    tcase_add_test(tests, windows_begin_where_moves_may);
    tcase_add_test(tests, a_window_that_is_complete_in_vain_is_dropped);
    tcase_add_test(tests, a_rejected_move_costs_a_cooldown_that_doubles);
    tcase_add_test(tests, a_divergence_in_correct_rolls_back_and_goes_to_full);
    tcase_add_test(tests, a_million_random_observations_break_no_invariant);
    tcase_add_test(tests, divergence_is_detected_and_does_not_change_the_averages);
    tcase_add_test(tests, a_young_run_may_still_jump_about);
    tcase_add_test(tests, the_guard_rejects_only_outliers_of_its_history);
    tcase_add_test(tests, confidence_begins_with_the_regime_and_changes_with_paired_tests);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(phases_suite)
