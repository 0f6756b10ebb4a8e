/* test_selftest.c: the self-test on machines without a GPU: a second CPU backend takes the place of
 * the card, once unchanged and once with the faults that a self-test must find. */
#include "harness.h"

#include <math.h>

#include "hybrid_tools.h"
#include "kernels/coded.h"
#include "kernels/ops.h"
#include "selftest/selftest.h"

typedef struct seen {
    int ops, failed, rates;
    char failed_op[64], message[256];
} seen;

static void on_op(void *user, const hy_selftest_op *op) {
    seen *s = user;
    s->ops++;
    if (op->is_ok) return;
    s->failed++;
    snprintf(s->failed_op, sizeof s->failed_op, "%s", op->name);
    snprintf(s->message, sizeof s->message, "%s", op->message);
}

static void on_rate(void *user, const hy_selftest_rate *rate) {
    ck_assert_double_gt(rate->value, 0);
    ((seen *)user)->rates++;
}

/* ---- a backend that goes wrong --------------------------------------------------------------- */

static hy_status (*honest_enqueue)(hy_stream *, const hy_op_call *);
static hy_op_kind spoiled;
static int calls;
static bool is_fickle; /* wrong every second time only */

/* Runs the op, then changes one byte of its first output. */
static hy_status spoiling_enqueue(hy_stream *s, const hy_op_call *call) {
    hy_status status = honest_enqueue(s, call);
    if (status != HY_OK || call->kind != spoiled) return status;
    if (is_fickle && ++calls % 2) return HY_OK;
    hy_op_call fill = {.kind = HY_OP_FILL, .attr.fill.value = is_fickle ? 1e-30f : 3};
    int at = call->kind == HY_OP_MATMUL ? 2 : 1;
    fill.t[HY_FILL_DST] = hy_tensor_1d(call->t[at].data, call->t[at].dtype, 1);
    return honest_enqueue(s, &fill);
}

static hy_status refusing_supports(hy_backend *b, const hy_op_call *call) {
    (void)b;
    if (call->kind != HY_OP_ROPE) return hy_op_check(call);
    return hy_fail(HY_ERR_INPUT, "rope: not on this card");
}

static seen run_parity(void (*spoil)(hy_backend *)) {
    seen s = {0};
    hy_selftest_result result = {0};
    hy_selftest_observer observer = {.user = &s, .on_op = on_op};
    hy_selftest_run run = {.observer = &observer, .result = &result};
    hy_selftest_device *devices[] = {&run.cpu, &run.gpu};
    for (int i = 0; i < 2; i++) {
        must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 2}, &devices[i]->backend));
        must(devices[i]->backend->stream_create(devices[i]->backend, "test", &devices[i]->stream));
    }
    if (spoil) spoil(run.gpu.backend);
    must(hy_selftest_parity(&run));
    ck_assert_int_eq(result.ops, s.ops);
    ck_assert_int_eq(result.failures, s.failed);
    for (int i = 0; i < 2; i++) {
        devices[i]->backend->stream_destroy(devices[i]->stream);
        devices[i]->backend->destroy(devices[i]->backend);
    }
    return s;
}

START_TEST(two_devices_that_agree_pass_every_op) {
    bool has[HY_OP_COUNT] = {false};
    seen s = run_parity(NULL);
    ck_assert_msg(s.failed == 0, "%s: %s", s.failed_op, s.message);
    ck_assert_int_gt(s.ops, 60);
    for (int i = 0; hy_selftest_call_exists(i); i++) {
        hy_op_call call;
        ck_assert(hy_selftest_call_make(i, HY_F32, &call));
        has[call.kind] = true;
        hy_selftest_call_free(&call);
    }
    for (int kind = 0; kind < HY_OP_COUNT; kind++) {
        ck_assert_msg(has[kind], "%s is not tested", hy_op_name((hy_op_kind)kind));
    }
}
END_TEST

static void spoil_gelu(hy_backend *b) {
    honest_enqueue = b->enqueue;
    b->enqueue = spoiling_enqueue;
    spoiled = HY_OP_GELU;
    is_fickle = false;
}

START_TEST(one_wrong_number_is_found) {
    seen s = run_parity(spoil_gelu);
    ck_assert_int_eq(s.failed, 3); /* fp32, bf16, fp16 */
    ck_assert_str_eq(s.failed_op, "gelu");
    ck_assert_ptr_nonnull(strstr(s.message, "rounding"));
}
END_TEST

static void spoil_sometimes(hy_backend *b) {
    spoil_gelu(b);
    spoiled = HY_OP_BIAS_GRAD;
    is_fickle = true;
    calls = 0;
}

START_TEST(different_bits_are_found) {
    seen s = run_parity(spoil_sometimes);
    ck_assert_int_eq(s.failed, 3);
    ck_assert_str_eq(s.failed_op, "bias gradient");
}
END_TEST

/* Reads weights of codes with other scales: a few of the codes, which are there in any case. */
static hy_status misled_enqueue(hy_stream *s, const hy_op_call *call) {
    hy_op_call misled = *call;
    bool is_of_codes = call->kind == HY_OP_TO_FP8 || hy_is_fp8(call->t[0].dtype);
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (hy_is_coded(call->t[i].dtype) && !is_of_codes)
            misled.t[i].quant.scale = call->t[i].data;
    }
    return honest_enqueue(s, &misled);
}

static void mislead_scales(hy_backend *b) {
    honest_enqueue = b->enqueue;
    b->enqueue = misled_enqueue;
}

START_TEST(scales_of_coded_weights_are_tested) {
    seen s = run_parity(mislead_scales);
    /* two matmuls and the embedding by int8 and by nf4 with scales of one level and of two, a
     * batch-invariant matmul by nf4, two matmuls by fp8, and a cast from either nf4, in three
     * types */
    ck_assert_int_eq(s.failed, 45);
    ck_assert_str_eq(s.failed_op, "grouped matmul, nf4 weights");
}
END_TEST

static void refuse(hy_backend *b) { b->supports = refusing_supports; }

START_TEST(an_op_that_is_refused_fails_with_its_message) {
    seen s = run_parity(refuse);
    ck_assert_int_eq(s.failed, 6); /* with positions of each sequence, and without */
    ck_assert_str_eq(s.message, "rope: not on this card");
}
END_TEST

START_TEST(the_cpu_passes_the_self_test) {
    seen s = {0};
    hy_selftest_result result;
    hy_selftest_observer observer = {.user = &s, .on_op = on_op, .on_rate = on_rate};
    must(hy_selftest("cpu", &observer, &result));
    ck_assert_int_ge(s.ops, 10);
    ck_assert_msg(result.failures == 0, "%s: %s", s.failed_op, s.message);
    ck_assert_int_ge(s.rates, 3);
    ck_assert(!result.is_gpu && result.device[0]);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("self-test");
    TCase *all = tcase_create("self-test");
    tcase_set_timeout(all, 120);
    tcase_add_test(all, two_devices_that_agree_pass_every_op);
    tcase_add_test(all, one_wrong_number_is_found);
    tcase_add_test(all, different_bits_are_found);
    tcase_add_test(all, scales_of_coded_weights_are_tested);
    tcase_add_test(all, an_op_that_is_refused_fails_with_its_message);
    tcase_add_test(all, the_cpu_passes_the_self_test);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
