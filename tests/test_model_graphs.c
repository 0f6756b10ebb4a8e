/* test_model_graphs.c: passes that are captured and replayed. The CPU backend captures nothing, so
 * a recorder stands in front of it here: it keeps the calls that are enqueued during a capture. */
#include "model_rig.h"

#include "base/rng.h"
#include "model/graphs.h"

#define MOST_CALLS 512

struct hy_graph {
    hy_op_call calls[MOST_CALLS];
    int count;
};

/* The hooks of a backend carry no context, so the recorder is the test file's own. */
static struct {
    hy_status (*enqueue)(hy_stream *s, const hy_op_call *call);
    hy_graph *current;
    int replayed, destroyed;
    bool refuses;
} recorder;

static hy_status record_or_enqueue(hy_stream *s, const hy_op_call *call) {
    if (!recorder.current) return recorder.enqueue(s, call);
    ck_assert_int_lt(recorder.current->count, MOST_CALLS);
    recorder.current->calls[recorder.current->count++] = *call;
    return HY_OK;
}

static hy_status begin(hy_stream *s) {
    (void)s;
    if (recorder.refuses) return HY_ERR_DEVICE;
    ck_assert_ptr_null(recorder.current);
    recorder.current = calloc(1, sizeof *recorder.current);
    return HY_OK;
}

static hy_status end(hy_stream *s, hy_graph **out) {
    (void)s;
    *out = recorder.current;
    recorder.current = NULL;
    return HY_OK;
}

static hy_status replay(hy_stream *s, hy_graph *r) {
    for (int i = 0; i < r->count; i++) must(recorder.enqueue(s, &r->calls[i]));
    recorder.replayed++;
    return HY_OK;
}

static void destroy(hy_graph *r) {
    recorder.destroyed++;
    free(r);
}

static void put_recorder_before(hy_backend *b) {
    memset(&recorder, 0, sizeof recorder);
    recorder.enqueue = b->enqueue;
    b->enqueue = record_or_enqueue;
    b->capture_begin = begin;
    b->capture_end = end;
    b->replay = replay;
    b->graph_destroy = destroy;
}

static void open_rig(model_rig *rig) {
    hy_shape shape = {.layers = 2,
                      .width = 16,
                      .heads = 2,
                      .vocab = 37,
                      .context = 8,
                      .has_qkv_bias = true,
                      .has_proj_bias = true,
                      .has_tied_head = true,
                      .norm_eps = 1e-5,
                      .init_std = 0.1};
    hy_batch_options options = {.batch = 2,
                                .seq = 8,
                                .chunks = 2,
                                .dtype = HY_F32,
                                .grad_dtype = HY_F32,
                                .is_training = true};
    rig_open(rig, &shape, &options, 11);
}

static void new_tokens(model_rig *rig, uint64_t step) {
    for (uint64_t i = 0; i < 16; i++) {
        rig->tokens[i] = (int32_t)hy_rng_below(step, HY_RNG_TEST, i, 37);
        rig->targets[i] = (int32_t)hy_rng_below(step + 100, HY_RNG_TEST, i, 37);
    }
}

static void train(model_rig *rig, uint64_t step, float scale) {
    hy_batch_input input = rig_input(rig, scale, false);
    new_tokens(rig, step);
    must(hy_batch_train(rig->plan, &input));
    rig_sync(rig);
}

START_TEST(a_pass_that_comes_again_is_played_and_gives_the_same_bits) {
    model_rig plain, captured;
    open_rig(&plain);
    open_rig(&captured);
    put_recorder_before(captured.backend);
    for (uint64_t step = 0; step < 6; step++) {
        train(&plain, step, 0.5f);
        train(&captured, step, 0.5f);
        ck_assert_mem_eq(plain.losses, captured.losses, 16 * sizeof(float));
        ck_assert_mem_eq(plain.grads.data, captured.grads.data, plain.grads.layout.bytes);
    }
    ck_assert_int_eq(recorder.replayed, 4); /* the third and on */
    rig_close(&plain);
    rig_close(&captured);
    ck_assert_int_eq(recorder.destroyed, 1);
}
END_TEST

START_TEST(another_input_is_another_graph) {
    model_rig rig, plain;
    open_rig(&rig);
    open_rig(&plain);
    put_recorder_before(rig.backend);
    for (int i = 0; i < 4; i++) train(&rig, 1, 0.5f);
    ck_assert_int_eq(recorder.replayed, 2);
    train(&rig, 1, 0.25f); /* the scale is part of what was captured */
    train(&plain, 1, 0.25f);
    ck_assert_int_eq(recorder.replayed, 2);
    ck_assert_mem_eq(plain.grads.data, rig.grads.data, plain.grads.layout.bytes);
    train(&rig, 1, 0.5f);
    ck_assert_int_eq(recorder.replayed, 3);
    rig_close(&rig);
    rig_close(&plain);
}
END_TEST

START_TEST(inputs_that_keep_changing_are_no_longer_captured) {
    model_rig rig;
    open_rig(&rig);
    put_recorder_before(rig.backend);
    for (int i = 1; i <= 80; i++) train(&rig, 1, (float)i);
    for (int i = 0; i < 5; i++) train(&rig, 1, 0.5f);
    ck_assert_int_eq(recorder.replayed, 0);
    rig_close(&rig);
}
END_TEST

START_TEST(a_backend_that_refuses_to_record_runs_op_by_op) {
    model_rig rig;
    open_rig(&rig);
    put_recorder_before(rig.backend);
    recorder.refuses = true;
    for (int i = 0; i < 5; i++) train(&rig, 1, 0.5f);
    ck_assert_int_eq(recorder.replayed, 0);
    ck_assert(rig.plan->is_uncapturable);
    ck_assert_double_gt(rig_loss_sum(&rig), 0);
    rig_close(&rig);
}
END_TEST

START_TEST(a_pass_with_a_hook_is_not_captured) {
    model_rig rig;
    hy_unit_hook hook = {0};
    open_rig(&rig);
    put_recorder_before(rig.backend);
    hy_batch_input input = rig_input(&rig, 0.5f, false);
    input.hook = &hook;
    new_tokens(&rig, 1);
    for (int i = 0; i < 5; i++) must(hy_batch_train(rig.plan, &input));
    rig_sync(&rig);
    ck_assert_int_eq(recorder.replayed, 0);
    for (int i = 0; i < 5; i++) train(&rig, 1, 0.5f);
    ck_assert_int_eq(recorder.replayed, 3);
    rig_close(&rig);
}
END_TEST

static Suite *graphs_suite(void) {
    Suite *suite = suite_create("graphs");
    TCase *tests = tcase_create("graphs");
    tcase_add_test(tests, a_pass_that_comes_again_is_played_and_gives_the_same_bits);
    tcase_add_test(tests, another_input_is_another_graph);
    tcase_add_test(tests, inputs_that_keep_changing_are_no_longer_captured);
    tcase_add_test(tests, a_pass_with_a_hook_is_not_captured);
    tcase_add_test(tests, a_backend_that_refuses_to_record_runs_op_by_op);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(graphs_suite)
