/* test_kernels_parts.c: the sum over ranks on the CPU, bit by bit, and what its check refuses. */
#include "kernels/cpu/blas.h"
#include "kernels/ops.h"
#include "parts_checks.h"

static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
static rig rigs[2];
static rig *at_work;

static void load(void) { hy_blas_get(); }
static void set_up(void) {
    rigs[0] = rig_create(1);
    rigs[1] = rig_create(3);
    at_work = &rigs[1];
}
static void tear_down(void) {
    for (int i = 0; i < 2; i++) rig_destroy(&rigs[i]);
}

static void run(const hy_op_call *call) { rig_run(at_work, call); }

START_TEST(the_sum_is_that_of_a_loop_over_ranks) {
    static const int64_t counts[] = {1, 7, 1000, 1025, 2049};
    for (int i = 0; i < 5; i++) {
        check_all_parts(run, reals[_i], counts[i], 0);
        check_all_parts(run, reals[_i], counts[i], 13);
    }
}
END_TEST

/* More than one task, and an odd end. */
START_TEST(threads_change_no_bit) {
    parts_case c = {.dtype = reals[_i],
                    .out = HY_F32,
                    .count = 3,
                    .rank = 1,
                    .n = 150001,
                    .stride = 150016,
                    .accumulate = true};
    for (int i = 0; i < 2; i++) {
        at_work = &rigs[i];
        check_parts(run, &c);
    }
}
END_TEST

/* 2^24 + 1 + 1 is 2^24 when it is taken from the left, and 2^24 + 2 from the right. */
START_TEST(the_order_is_that_of_ranks_on_every_rank) {
    const float all[3] = {16777216, 1, 1};
    for (int32_t rank = 0; rank < 3; rank++) {
        float own = all[rank], parts[2], out = 0;
        for (int i = 0, part = 0; i < 3; i++) {
            if (i != rank) parts[part++] = all[i];
        }
        hy_op_call call = {.kind = HY_OP_ADD_PARTS,
                           .attr.add_parts = {.count = 3, .rank = rank, .stride = 1}};
        call.t[HY_ADD_PARTS_OWN] = hy_tensor_1d(&own, HY_F32, 1);
        call.t[HY_ADD_PARTS_PARTS] = hy_tensor_1d(parts, HY_F32, 2);
        call.t[HY_ADD_PARTS_OUT] = hy_tensor_1d(&out, HY_F32, 1);
        run(&call);
        ck_assert_float_eq(out, 16777216);
    }
}
END_TEST

/* ---- the check ------------------------------------------------------------------------------- */

static float some[64];

static hy_op_call good_call(void) {
    hy_op_call call = {.kind = HY_OP_ADD_PARTS,
                       .attr.add_parts = {.count = 3, .rank = 1, .stride = 6}};
    call.t[HY_ADD_PARTS_OWN] = hy_tensor_1d(some, HY_BF16, 5);
    call.t[HY_ADD_PARTS_PARTS] = hy_tensor_1d(some + 8, HY_BF16, 12);
    call.t[HY_ADD_PARTS_OUT] = hy_tensor_1d(some + 32, HY_F32, 5);
    return call;
}

static void refused(const hy_op_call *call, const char *why) {
    must_fail(hy_op_check(call), HY_ERR_INPUT, why);
}

START_TEST(wrong_calls_are_refused_with_a_reason) {
    hy_op_call call = good_call();
    must(hy_op_check(&call));
    call.attr.add_parts.rank = 3;
    refused(&call, "sum over ranks: the rank is 3 of 3");
    call.attr.add_parts.rank = -1;
    refused(&call, "the rank is -1 of 3");
    call.attr.add_parts.count = call.attr.add_parts.rank = 0;
    refused(&call, "the rank is 0 of 0");
    call = good_call();
    call.attr.add_parts.stride = 4;
    refused(&call, "the stride is 4, expected at least 5");
    call = good_call();
    call.attr.add_parts.stride = 5;
    refused(&call, "parts has shape (12), expected 2 times 5 elements");
    call.t[HY_ADD_PARTS_PARTS].shape[0] = 11;
    refused(&call, "parts has shape (11), expected 2 times 5 elements");
    call = good_call();
    call.t[HY_ADD_PARTS_PARTS].dtype = HY_F32;
    refused(&call, "parts is fp32, expected bf16 (the type of own)");
    call = good_call();
    call.t[HY_ADD_PARTS_PARTS].data = NULL;
    refused(&call, "parts is missing; it is required with 3 ranks");
    call.attr.add_parts.count = 1;
    call.attr.add_parts.rank = 0;
    must(hy_op_check(&call));
    call = good_call();
    call.t[HY_ADD_PARTS_OUT].dtype = HY_F16;
    refused(&call, "out is fp16, expected fp32 or bf16 (the type of own)");
    call = good_call();
    call.t[HY_ADD_PARTS_OUT].shape[0] = 6;
    refused(&call, "out has shape (6), expected 5 elements, as in own");
    call = good_call();
    call.t[HY_ADD_PARTS_OUT].data = call.t[HY_ADD_PARTS_OWN].data;
    refused(&call, "own and out share memory but are bf16 and fp32");
}
END_TEST

START_TEST(additions_are_counted) {
    hy_op_call call = good_call();
    ck_assert_double_eq(hy_op_flops(&call), 10);
    call.attr.accumulate = true;
    ck_assert_double_eq(hy_op_flops(&call), 15);
    ck_assert_uint_eq(rigs[0].backend->workspace(rigs[0].backend, &call), 0);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: sums over ranks");
    TCase *all = tcase_create("parts");
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_loop_test(all, the_sum_is_that_of_a_loop_over_ranks, 0, PURE_TYPES);
    tcase_add_loop_test(all, threads_change_no_bit, 0, PURE_TYPES);
    tcase_add_test(all, the_order_is_that_of_ranks_on_every_rank);
    tcase_add_test(all, wrong_calls_are_refused_with_a_reason);
    tcase_add_test(all, additions_are_counted);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
