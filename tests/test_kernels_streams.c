/* test_kernels_streams.c: streams and events of the CPU backend, its memory, and its description.
 *
 * Random delays before every queued item make a missing ordering fail; the thread sanitizer also
 * runs these tests. */
#include "kernel_rig.h"
#include "kernels/cpu/blas.h"

static hy_backend *cpu;

static void load(void) { hy_blas_get(); }

static void set_up(void) {
    hy_cpu_options options = {.threads = 2, .delay_microseconds = 300, .delay_seed = 5};
    must(hy_cpu_backend_create(&options, &cpu));
}
static void tear_down(void) { cpu->destroy(cpu); }

static hy_stream *stream(const char *name) {
    hy_stream *s;
    must(cpu->stream_create(cpu, name, &s));
    return s;
}

static hy_event *event(void) {
    hy_event *e;
    must(cpu->event_create(cpu, &e));
    return e;
}

/* An op that writes `value` into one float. */
static void put(hy_stream *s, float *where, float value) {
    hy_op_call call = {.kind = HY_OP_FILL, .attr.fill.value = value};
    call.t[HY_FILL_DST] = hy_tensor_1d(where, HY_F32, 1);
    must(cpu->enqueue(s, &call));
}

/* An op that fails when it runs: its token is outside the vocabulary. */
static const int32_t bad_token = 5;
static float embedding[2], embedded;
static void put_failure(hy_stream *s) {
    hy_op_call call = {.kind = HY_OP_EMBED, .attr.embed.seq = 1};
    call.t[HY_EMBED_TOKENS] = hy_tensor_1d((void *)(uintptr_t)&bad_token, HY_I32, 1);
    call.t[HY_EMBED_WTE] = hy_tensor_2d(embedding, HY_F32, 2, 1);
    call.t[HY_EMBED_X] = hy_tensor_2d(&embedded, HY_F32, 1, 1);
    must(cpu->enqueue(s, &call));
}

/* ---- order ----------------------------------------------------------------------------------- */

START_TEST(a_stream_runs_its_items_in_order) {
    hy_stream *s = stream("order");
    float a = 0, copies[50];
    for (int i = 0; i < 50; i++) {
        put(s, &a, (float)i);
        must(cpu->copy(s, &copies[i], &a, sizeof a));
    }
    must(cpu->stream_sync(s));
    for (int i = 0; i < 50; i++) ck_assert_float_eq(copies[i], (float)i);
    cpu->stream_destroy(s);
}
END_TEST

START_TEST(a_stream_waits_for_an_event_of_another) {
    hy_stream *producer = stream("producer"), *consumer = stream("consumer");
    hy_event *full = event(), *empty = event();
    float box = 0, seen[40];
    for (int i = 0; i < 40; i++) {
        must(cpu->stream_wait(producer, empty)); /* never recorded at first: continues at once */
        put(producer, &box, (float)(i + 1));
        must(cpu->event_record(full, producer));
        must(cpu->stream_wait(consumer, full));
        must(cpu->copy(consumer, &seen[i], &box, sizeof box));
        must(cpu->event_record(empty, consumer));
    }
    must(cpu->stream_sync(consumer));
    must(cpu->stream_sync(producer));
    for (int i = 0; i < 40; i++) ck_assert_float_eq(seen[i], (float)(i + 1));
    cpu->event_destroy(full);
    cpu->event_destroy(empty);
    cpu->stream_destroy(producer);
    cpu->stream_destroy(consumer);
}
END_TEST

START_TEST(an_event_is_done_when_the_work_before_it_is) {
    hy_stream *s = stream("events");
    hy_event *e = event();
    float a = 0;
    ck_assert(cpu->event_is_done(e));
    must(cpu->event_sync(e)); /* never recorded: returns at once */
    for (int i = 1; i <= 20; i++) {
        put(s, &a, (float)i);
        must(cpu->event_record(e, s));
        must(cpu->event_sync(e));
        ck_assert_float_eq(a, (float)i);
        ck_assert(cpu->event_is_done(e));
    }
    cpu->event_destroy(e);
    cpu->stream_destroy(s);
}
END_TEST

START_TEST(an_event_is_not_done_while_its_stream_is_held_up) {
    hy_stream *first = stream("first"), *second = stream("second");
    hy_event *gate = event(), *e = event();
    float a = 0;
    for (int i = 0; i < 100; i++) put(first, &a, 1); /* some 15 ms of delays */
    must(cpu->event_record(gate, first));
    must(cpu->stream_wait(second, gate));
    must(cpu->event_record(e, second));
    ck_assert(!cpu->event_is_done(e));
    must(cpu->event_sync(e));
    ck_assert(cpu->event_is_done(e) && cpu->event_is_done(gate));
    cpu->stream_destroy(first);
    cpu->stream_destroy(second);
    cpu->event_destroy(gate);
    cpu->event_destroy(e);
}
END_TEST

/* Records of one event on two streams: a wait means the last record before it, on either. */
START_TEST(an_event_may_be_recorded_on_different_streams) {
    hy_stream *streams[2] = {stream("a"), stream("b")}, *reader = stream("reader");
    hy_event *e = event();
    float values[2] = {0, 0}, seen[30][2];
    for (int i = 0; i < 30; i++) {
        put(streams[i % 2], &values[i % 2], (float)(i + 1));
        must(cpu->event_record(e, streams[i % 2]));
        must(cpu->stream_wait(reader, e));
        must(cpu->copy(reader, seen[i], values, sizeof values));
        must(cpu->stream_sync(reader));
        ck_assert_float_eq(seen[i][i % 2], (float)(i + 1));
    }
    for (int i = 0; i < 2; i++) cpu->stream_destroy(streams[i]);
    cpu->stream_destroy(reader);
    cpu->event_destroy(e);
}
END_TEST

START_TEST(destroying_an_event_waits_for_those_who_use_it) {
    hy_stream *s = stream("user"), *waiter = stream("waiter");
    float a = 0;
    for (int i = 0; i < 10; i++) {
        hy_event *e = event();
        put(s, &a, (float)i);
        must(cpu->event_record(e, s));
        must(cpu->stream_wait(waiter, e));
        cpu->event_destroy(e);
        ck_assert_float_eq(a, (float)i);
    }
    cpu->stream_destroy(s);
    cpu->stream_destroy(waiter);
}
END_TEST

START_TEST(destroying_a_stream_runs_what_is_queued) {
    hy_stream *s = stream("last");
    float a = 0;
    for (int i = 0; i < 20; i++) put(s, &a, (float)i);
    cpu->stream_destroy(s);
    ck_assert_float_eq(a, 19);
}
END_TEST

START_TEST(a_full_queue_makes_the_caller_wait_and_loses_nothing) {
    hy_cpu_options options = {.threads = 1};
    hy_backend *quick;
    hy_stream *s;
    static float values[5000];
    float counter = 0;
    must(hy_cpu_backend_create(&options, &quick));
    must(quick->stream_create(quick, "full", &s));
    for (int i = 0; i < 5000; i++) {
        hy_op_call call = {.kind = HY_OP_FILL, .attr.fill.value = (float)i};
        call.t[HY_FILL_DST] = hy_tensor_1d(&counter, HY_F32, 1);
        must(quick->enqueue(s, &call));
        must(quick->copy(s, &values[i], &counter, sizeof counter));
    }
    must(quick->stream_sync(s));
    for (int i = 0; i < 5000; i++) ck_assert_float_eq(values[i], (float)i);
    quick->stream_destroy(s);
    quick->destroy(quick);
}
END_TEST

/* ---- functions of the host ------------------------------------------------------------------- */

/* A function that looks at a number, waits a little and writes another. */
typedef struct visit {
    float *box;
    float seen, leaves;
    int runs;
} visit;

static hy_status look_and_leave(void *argument) {
    visit *v = argument;
    v->seen = *v->box;
    usleep(500);
    *v->box = v->leaves;
    v->runs++;
    return HY_OK;
}

static hy_status fail_to_visit(void *argument) {
    return hy_fail(HY_ERR_IO, "%s is not at home", (const char *)argument);
}

START_TEST(a_function_runs_between_what_is_enqueued_before_and_after) {
    hy_stream *s = stream("calls");
    float box = 0, copies[30];
    visit visits[30];
    for (int i = 0; i < 30; i++) {
        visits[i] = (visit){.box = &box, .leaves = (float)(2 * i + 1)};
        put(s, &box, (float)(2 * i));
        must(cpu->call(s, look_and_leave, &visits[i]));
        must(cpu->copy(s, &copies[i], &box, sizeof box));
    }
    must(cpu->stream_sync(s));
    for (int i = 0; i < 30; i++) {
        ck_assert_int_eq(visits[i].runs, 1);
        ck_assert_float_eq(visits[i].seen, (float)(2 * i));
        ck_assert_float_eq(copies[i], (float)(2 * i + 1));
    }
    cpu->stream_destroy(s);
}
END_TEST

START_TEST(an_event_behind_a_function_fires_when_it_is_done) {
    hy_stream *s = stream("caller"), *other = stream("other");
    hy_event *e = event();
    float box = 0, seen = 0;
    for (int i = 1; i <= 20; i++) {
        visit v = {.box = &box, .leaves = (float)i};
        must(cpu->call(s, look_and_leave, &v));
        must(cpu->event_record(e, s));
        must(cpu->stream_wait(other, e));
        must(cpu->copy(other, &seen, &box, sizeof box));
        must(cpu->event_sync(e));
        ck_assert_int_eq(v.runs, 1);
        must(cpu->stream_sync(other));
        ck_assert_float_eq(seen, (float)i);
    }
    cpu->event_destroy(e);
    cpu->stream_destroy(s);
    cpu->stream_destroy(other);
}
END_TEST

START_TEST(a_function_that_fails_is_reported_like_an_op) {
    hy_stream *s = stream("fails"), *other = stream("other");
    hy_event *e = event();
    float box = 1, b = 1;
    visit late = {.box = &box, .leaves = 9};
    must(cpu->call(s, fail_to_visit, "rank 3"));
    must(cpu->call(s, fail_to_visit, "rank 4"));
    must(cpu->call(s, look_and_leave, &late));
    put(s, &box, 2);
    must(cpu->event_record(e, s)); /* fires all the same */
    must(cpu->stream_wait(other, e));
    put(other, &b, 3);
    must(cpu->stream_sync(other));
    ck_assert_float_eq(b, 3);
    must_fail(cpu->stream_sync(s), HY_ERR_IO, "rank 3 is not at home");
    ck_assert_int_eq(late.runs, 0);
    ck_assert_float_eq(box, 1);
    must(cpu->stream_sync(s)); /* reported once */
    must(cpu->call(s, look_and_leave, &late));
    must(cpu->stream_sync(s));
    ck_assert_int_eq(late.runs, 1);
    cpu->event_destroy(e);
    cpu->stream_destroy(s);
    cpu->stream_destroy(other);
}
END_TEST

START_TEST(a_function_behind_a_failed_op_is_skipped) {
    hy_stream *s = stream("fails");
    float box = 1;
    visit late = {.box = &box, .leaves = 9};
    put_failure(s);
    must(cpu->call(s, look_and_leave, &late));
    must_fail(cpu->stream_sync(s), HY_ERR_INPUT, "token 0 is 5");
    ck_assert_int_eq(late.runs, 0);
    cpu->stream_destroy(s);
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

START_TEST(a_failure_stays_on_its_stream_until_sync_reports_it) {
    hy_stream *s = stream("fails"), *other = stream("other");
    hy_event *e = event();
    float a = 1, b = 1;
    put_failure(s);
    put(s, &a, 2);
    must(cpu->copy(s, &a, &b, sizeof a));
    must(cpu->event_record(e, s)); /* fires all the same */
    must(cpu->stream_wait(other, e));
    put(other, &b, 3);
    must(cpu->stream_sync(other));
    ck_assert_float_eq(b, 3);
    must_fail(cpu->stream_sync(s), HY_ERR_INPUT, "token 0 is 5");
    ck_assert_float_eq(a, 1);
    must(cpu->stream_sync(s)); /* reported once */
    put(s, &a, 4);
    must(cpu->stream_sync(s));
    ck_assert_float_eq(a, 4);
    cpu->event_destroy(e);
    cpu->stream_destroy(s);
    cpu->stream_destroy(other);
}
END_TEST

START_TEST(the_first_of_two_failures_is_the_one_reported) {
    hy_stream *s = stream("fails");
    hy_op_call call = {.kind = HY_OP_SUM};
    double out = 7;
    call.t[HY_REDUCE_X] = hy_tensor_1d(embedding, HY_F32, 2);
    call.t[HY_REDUCE_OUT] = hy_tensor_1d(&out, HY_F64, 1);
    must(cpu->enqueue(s, &call)); /* lacks its workspace */
    put_failure(s);
    must_fail(cpu->stream_sync(s), HY_ERR_INTERNAL, "workspace has 0 bytes, expected 8");
    ck_assert_double_eq(out, 7);
    cpu->stream_destroy(s);
}
END_TEST

/* ---- memory and facts ------------------------------------------------------------------------ */

START_TEST(memory_is_aligned_and_apart_in_every_place) {
    static const hy_place places[] = {HY_DEVICE, HY_PINNED, HY_HOST};
    char *blocks[9];
    for (int i = 0; i < 9; i++) {
        void *data;
        must(cpu->alloc(cpu, places[i % 3], 1000, &data));
        ck_assert_uint_eq((uintptr_t)data % 256, 0);
        memset(data, i, 1000);
        blocks[i] = data;
    }
    for (int i = 0; i < 9; i++) {
        for (int k = 0; k < 1000; k++) ck_assert_int_eq(blocks[i][k], i);
        cpu->release(cpu, places[i % 3], blocks[i], 1000);
    }
}
END_TEST

START_TEST(memory_that_cannot_be_had_is_named) {
    void *data;
    must_fail(cpu->alloc(cpu, HY_DISK, 10, &data), HY_ERR_INPUT, "\"disk\"");
    must_fail(cpu->alloc(cpu, HY_NOWHERE, 10, &data), HY_ERR_INPUT, "\"none\"");
#if !defined(__SANITIZE_ADDRESS__) &&                                                              \
    !defined(__SANITIZE_THREAD__) /* they stop the program instead */
    must_fail(cpu->alloc(cpu, HY_PINNED, SIZE_MAX / 2, &data), HY_ERR_MEMORY,
              "9223372036854775807 bytes of pinned memory");
#endif
}
END_TEST

START_TEST(the_backend_describes_itself) {
    const hy_device_facts *facts = &cpu->facts;
    ck_assert_msg(strncmp(facts->name, "CPU: ", 5) == 0 && facts->name[5], "%s", facts->name);
    ck_assert_ptr_nonnull(strstr(facts->detail, hy_blas_get()->library ? "core type" : "our own"));
    ck_assert_int_eq(facts->threads, 2);
    ck_assert_uint_gt(facts->memory_total, 1 << 24);
    ck_assert_uint_le(facts->memory_free, facts->memory_total);
    ck_assert_double_gt(facts->matmul_flops, 1e7);
    /* Plans that are compared with each other have the same rate. */
    hy_cpu_options options = {.threads = 2};
    hy_backend *again;
    must(hy_cpu_backend_create(&options, &again));
    ck_assert_double_eq(again->facts.matmul_flops, facts->matmul_flops);
    again->destroy(again);
}
END_TEST

START_TEST(a_wrong_number_of_threads_is_refused) {
    hy_cpu_options options = {.threads = -1};
    hy_backend *none = NULL;
    must_fail(hy_cpu_backend_create(&options, &none), HY_ERR_INPUT, "the number of threads is -1");
}
END_TEST

START_TEST(no_options_means_all_cores) {
    hy_backend *all;
    must(hy_cpu_backend_create(NULL, &all));
    ck_assert_int_ge(all->facts.threads, 1);
    all->destroy(all);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: streams");
    TCase *all = tcase_create("streams");
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, a_stream_runs_its_items_in_order);
    tcase_add_test(all, a_stream_waits_for_an_event_of_another);
    tcase_add_test(all, an_event_is_done_when_the_work_before_it_is);
    tcase_add_test(all, an_event_is_not_done_while_its_stream_is_held_up);
    tcase_add_test(all, an_event_may_be_recorded_on_different_streams);
    tcase_add_test(all, destroying_an_event_waits_for_those_who_use_it);
    tcase_add_test(all, destroying_a_stream_runs_what_is_queued);
    tcase_add_test(all, a_full_queue_makes_the_caller_wait_and_loses_nothing);
    tcase_add_test(all, a_function_runs_between_what_is_enqueued_before_and_after);
    tcase_add_test(all, an_event_behind_a_function_fires_when_it_is_done);
    tcase_add_test(all, a_function_that_fails_is_reported_like_an_op);
    tcase_add_test(all, a_function_behind_a_failed_op_is_skipped);
    tcase_add_test(all, a_failure_stays_on_its_stream_until_sync_reports_it);
    tcase_add_test(all, the_first_of_two_failures_is_the_one_reported);
    tcase_add_test(all, memory_is_aligned_and_apart_in_every_place);
    tcase_add_test(all, memory_that_cannot_be_had_is_named);
    tcase_add_test(all, the_backend_describes_itself);
    tcase_add_test(all, a_wrong_number_of_threads_is_refused);
    tcase_add_test(all, no_options_means_all_cores);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
