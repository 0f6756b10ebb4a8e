/* test_gpu_backend.c: the CUDA backend as a device: streams, events, memory, copies, refusals.
 *
 * Work that takes milliseconds (fills of a large block) holds a stream up, so that an order that
 * only happens to hold fails. A kernel that faults ends the process's CUDA context; that is looked
 * at in a separate process, this program started with --fault. */
#include "gpu_rig.h"

#include <stdatomic.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "memory/rates.h"

enum { LARGE = 64 << 20 }; /* floats of the block that takes time to fill */

static hy_backend *cuda;
static float *device, *large; /* a page of floats, and the large block */
static float *host;           /* pinned */
static const char *program;

static void set_up(void) {
    cuda = gpu.backend;
    must(cuda->alloc(cuda, HY_DEVICE, 4096 * sizeof(float), (void **)&device));
    must(cuda->alloc(cuda, HY_DEVICE, (size_t)LARGE * sizeof(float), (void **)&large));
    must(cuda->alloc(cuda, HY_PINNED, 4096 * sizeof(float), (void **)&host));
}

static void tear_down(void) {
    cuda->release(cuda, HY_DEVICE, device, 4096 * sizeof(float));
    cuda->release(cuda, HY_DEVICE, large, (size_t)LARGE * sizeof(float));
    cuda->release(cuda, HY_PINNED, host, 4096 * sizeof(float));
}

static hy_stream *stream(const char *name) {
    hy_stream *s;
    must(cuda->stream_create(cuda, name, &s));
    return s;
}

static hy_event *event(void) {
    hy_event *e;
    must(cuda->event_create(cuda, &e));
    return e;
}

static void fill(hy_stream *s, float *where, int64_t count, float value) {
    hy_op_call call = {.kind = HY_OP_FILL, .attr.fill.value = value};
    call.t[HY_FILL_DST] = hy_tensor_1d(where, HY_F32, count);
    must(cuda->enqueue(s, &call));
}

/* Keeps a stream busy for some milliseconds. */
static void hold_up(hy_stream *s) {
    for (int i = 0; i < 50; i++) fill(s, large, LARGE, (float)i);
}

/* ---- order ----------------------------------------------------------------------------------- */

START_TEST(a_stream_runs_its_items_in_order) {
    hy_stream *s = stream("order");
    hold_up(s);
    for (int i = 0; i < 500; i++) {
        fill(s, device, 1, (float)i);
        must(cuda->copy(s, &host[i], device, sizeof(float)));
    }
    must(cuda->stream_sync(s));
    for (int i = 0; i < 500; i++) ck_assert_float_eq(host[i], (float)i);
    cuda->stream_destroy(s);
}
END_TEST

START_TEST(a_stream_waits_for_an_event_of_another) {
    hy_stream *producer = stream("producer"), *consumer = stream("consumer");
    hy_event *full = event(), *empty = event();
    for (int i = 0; i < 40; i++) {
        must(cuda->stream_wait(producer, empty)); /* never recorded at first: continues at once */
        if (i % 8 == 0) hold_up(producer);
        fill(producer, device, 1, (float)(i + 1));
        must(cuda->event_record(full, producer));
        must(cuda->stream_wait(consumer, full));
        must(cuda->copy(consumer, &host[i], device, sizeof(float)));
        must(cuda->event_record(empty, consumer));
    }
    must(cuda->stream_sync(consumer));
    must(cuda->stream_sync(producer));
    for (int i = 0; i < 40; i++) ck_assert_float_eq(host[i], (float)(i + 1));
    cuda->event_destroy(full);
    cuda->event_destroy(empty);
    cuda->stream_destroy(producer);
    cuda->stream_destroy(consumer);
}
END_TEST

START_TEST(an_event_is_done_when_the_work_before_it_is) {
    hy_stream *s = stream("events");
    hy_event *e = event();
    ck_assert(cuda->event_is_done(e));
    must(cuda->event_sync(e)); /* never recorded: returns at once */
    hold_up(s);
    must(cuda->event_record(e, s));
    ck_assert(!cuda->event_is_done(e));
    must(cuda->event_sync(e));
    ck_assert(cuda->event_is_done(e));
    for (int i = 1; i <= 20; i++) {
        fill(s, device, 1, (float)i);
        must(cuda->copy(s, host, device, sizeof(float)));
        must(cuda->event_record(e, s));
        must(cuda->event_sync(e));
        ck_assert_float_eq(host[0], (float)i);
    }
    cuda->event_destroy(e);
    cuda->stream_destroy(s);
}
END_TEST

/* Records of one event on two streams: a wait means the last record before it, on either. */
START_TEST(an_event_may_be_recorded_on_different_streams) {
    hy_stream *streams[2] = {stream("a"), stream("b")}, *reader = stream("reader");
    hy_event *e = event();
    for (int i = 0; i < 30; i++) {
        if (i % 10 == 0) hold_up(streams[i % 2]);
        fill(streams[i % 2], device + i % 2, 1, (float)(i + 1));
        must(cuda->event_record(e, streams[i % 2]));
        must(cuda->stream_wait(reader, e));
        must(cuda->copy(reader, host, device, 2 * sizeof(float)));
        must(cuda->stream_sync(reader));
        ck_assert_float_eq(host[i % 2], (float)(i + 1));
    }
    for (int i = 0; i < 2; i++) cuda->stream_destroy(streams[i]);
    cuda->stream_destroy(reader);
    cuda->event_destroy(e);
}
END_TEST

START_TEST(destroying_a_stream_runs_what_is_queued) {
    hy_stream *s = stream("last");
    hold_up(s);
    fill(s, device, 1, 19);
    cuda->stream_destroy(s);
    must(cuda->copy(gpu.stream, host, device, sizeof(float)));
    must(cuda->stream_sync(gpu.stream));
    ck_assert_float_eq(host[0], 19);
}
END_TEST

/* ---- functions of the host ------------------------------------------------------------------- */

/* A function that looks at a number, waits a little and writes another. */
typedef struct visit {
    float *box;
    float seen, leaves;
    int microseconds, runs;
} visit;

static hy_status look_and_leave(void *argument) {
    visit *v = argument;
    v->seen = *v->box;
    if (v->microseconds > 0) usleep((useconds_t)v->microseconds);
    *v->box = v->leaves;
    v->runs++;
    return HY_OK;
}

static hy_status wait_at_gate(void *argument) {
    atomic_bool *is_open = argument;
    while (!atomic_load(is_open)) usleep(100);
    return HY_OK;
}

static hy_status fail_to_visit(void *argument) {
    return hy_fail(HY_ERR_IO, "%s is not at home", (const char *)argument);
}

/* From the card to the function, and from it back: host[0] is its box. */
START_TEST(a_function_runs_between_what_is_enqueued_before_and_after) {
    hy_stream *s = stream("calls");
    visit visits[30];
    hold_up(s);
    for (int i = 0; i < 30; i++) {
        visits[i] = (visit){.box = host, .leaves = (float)(2 * i + 1), .microseconds = 300};
        fill(s, device, 1, (float)(2 * i));
        must(cuda->copy(s, host, device, sizeof(float)));
        must(cuda->call(s, look_and_leave, &visits[i]));
        must(cuda->copy(s, device + 1 + i, host, sizeof(float)));
    }
    must(cuda->copy(s, host + 1, device + 1, 30 * sizeof(float)));
    must(cuda->stream_sync(s));
    for (int i = 0; i < 30; i++) {
        ck_assert_int_eq(visits[i].runs, 1);
        ck_assert_float_eq(visits[i].seen, (float)(2 * i));
        ck_assert_float_eq(host[1 + i], (float)(2 * i + 1));
    }
    cuda->stream_destroy(s);
}
END_TEST

START_TEST(an_event_behind_a_function_fires_when_it_is_done) {
    hy_stream *s = stream("caller"), *other = stream("other");
    hy_event *e = event();
    for (int i = 1; i <= 20; i++) {
        atomic_bool is_open = false;
        visit v = {.box = host, .leaves = (float)i, .microseconds = 300};
        must(cuda->call(s, wait_at_gate, &is_open));
        must(cuda->call(s, look_and_leave, &v));
        must(cuda->event_record(e, s));
        must(cuda->stream_wait(other, e));
        must(cuda->copy(other, device, host, sizeof(float)));
        must(cuda->copy(other, host + 1, device, sizeof(float)));
        bool is_early = cuda->event_is_done(e);
        atomic_store(&is_open, true);
        ck_assert(!is_early);
        must(cuda->event_sync(e));
        ck_assert_int_eq(v.runs, 1);
        must(cuda->stream_sync(other));
        ck_assert_float_eq(host[1], (float)i);
    }
    cuda->event_destroy(e);
    cuda->stream_destroy(s);
    cuda->stream_destroy(other);
}
END_TEST

START_TEST(a_function_that_fails_is_reported_at_the_sync) {
    hy_stream *s = stream("fails"), *other = stream("other");
    hy_event *e = event();
    visit late = {.box = host, .leaves = 9};
    must(cuda->call(s, fail_to_visit, "rank 3"));
    must(cuda->call(s, fail_to_visit, "rank 4"));
    must(cuda->call(s, look_and_leave, &late));
    must(cuda->event_record(e, s)); /* fires all the same */
    must(cuda->stream_wait(other, e));
    must(cuda->stream_sync(other));
    must_fail(cuda->stream_sync(s), HY_ERR_IO, "rank 3 is not at home");
    ck_assert_int_eq(late.runs, 0);
    must(cuda->stream_sync(s)); /* reported once */
    must(cuda->call(s, look_and_leave, &late));
    must(cuda->stream_sync(s));
    ck_assert_int_eq(late.runs, 1);
    cuda->event_destroy(e);
    cuda->stream_destroy(s);
    cuda->stream_destroy(other);
}
END_TEST

START_TEST(more_functions_than_a_ring_holds_all_run) {
    enum { MANY = 5000 };
    hy_stream *s = stream("many");
    visit *visits = calloc(MANY, sizeof *visits);
    ck_assert_ptr_nonnull(visits);
    host[0] = -1;
    hold_up(s);
    for (int i = 0; i < MANY; i++) {
        visits[i] = (visit){.box = host, .leaves = (float)i};
        must(cuda->call(s, look_and_leave, &visits[i]));
    }
    must(cuda->stream_sync(s));
    for (int i = 0; i < MANY; i++) {
        ck_assert_int_eq(visits[i].runs, 1);
        ck_assert_float_eq(visits[i].seen, (float)(i - 1));
    }
    free(visits);
    cuda->stream_destroy(s);
}
END_TEST

/* The default stream of the driver stands for the caller's. */
START_TEST(a_stream_of_the_callers_waits_for_its_functions_when_it_is_let_go) {
    hy_stream *s;
    visit v = {.box = host, .leaves = 7, .microseconds = 20000};
    if (!cuda->stream_adopt) return; /* these tests on the CPU */
    must(cuda->stream_adopt(cuda, NULL, &s));
    must(cuda->call(s, look_and_leave, &v));
    cuda->stream_destroy(s);
    ck_assert_int_eq(v.runs, 1);
    must(cuda->stream_adopt(cuda, NULL, &s));
    must(cuda->call(s, fail_to_visit, "rank 5"));
    must_fail(cuda->stream_sync(s), HY_ERR_IO, "rank 5 is not at home");
    cuda->stream_destroy(s);
}
END_TEST

/* ---- waiting --------------------------------------------------------------------------------- */

START_TEST(seconds_waited_for_events_are_counted) {
    hy_stream *busy = stream("busy"), *waiter = stream("waiter");
    hy_event *e = event();
    ck_assert_double_eq(cuda->stream_waited(waiter), 0);
    hold_up(busy);
    must(cuda->event_record(e, busy));
    must(cuda->stream_wait(waiter, e));
    fill(waiter, device, 1, 1);
    must(cuda->stream_sync(waiter));
    double waited = cuda->stream_waited(waiter);
    ck_assert_double_gt(waited, 1e-3);
    ck_assert_double_lt(waited, 5);
    must(cuda->stream_wait(waiter, e)); /* done long ago */
    must(cuda->stream_sync(waiter));
    ck_assert_double_lt(cuda->stream_waited(waiter), waited + 1e-3);
    for (int i = 0; i < 300; i++) { /* more waits under way than any ring of timers holds */
        if (i % 50 == 0) hold_up(busy);
        must(cuda->event_record(e, busy));
        must(cuda->stream_wait(waiter, e));
    }
    must(cuda->stream_sync(waiter));
    ck_assert_double_gt(cuda->stream_waited(waiter), waited);
    cuda->event_destroy(e);
    cuda->stream_destroy(busy);
    cuda->stream_destroy(waiter);
}
END_TEST

static void copy_up(hy_stream *s, const void *from) {
    for (int i = 0; i < 4; i++) must(cuda->copy(s, large, from, (size_t)LARGE * sizeof(float)));
}

/* Compute that waits for copies and has nothing else to do waits as long as they take. */
START_TEST(waiting_for_a_copy_is_as_long_as_the_copy) {
    size_t bytes = (size_t)LARGE * sizeof(float);
    hy_stream *copies = stream("copies"), *compute = stream("compute");
    hy_event *is_here = event();
    void *pinned;
    must(cuda->alloc(cuda, HY_PINNED, bytes, &pinned));
    copy_up(copies, pinned);
    must(cuda->stream_sync(copies));
    double began = hy_clock();
    copy_up(copies, pinned);
    must(cuda->stream_sync(copies));
    double seconds = hy_clock() - began, before = cuda->stream_waited(compute);
    copy_up(copies, pinned);
    must(cuda->event_record(is_here, copies));
    must(cuda->stream_wait(compute, is_here));
    fill(compute, device, 1, 1);
    must(cuda->stream_sync(compute));
    double waited = cuda->stream_waited(compute) - before;
    ck_assert_double_gt(waited, 0.6 * seconds);
    ck_assert_double_lt(waited, 1.5 * seconds + 2e-3);
    cuda->release(cuda, HY_PINNED, pinned, bytes);
    cuda->event_destroy(is_here);
    cuda->stream_destroy(copies);
    cuda->stream_destroy(compute);
}
END_TEST

/* A copy that is done before compute gets to it costs nothing, though it was under way when the
 * wait was enqueued. */
START_TEST(a_copy_that_compute_covers_is_not_waited_for) {
    size_t bytes = (size_t)128 << 20;
    hy_stream *copies = stream("copies"), *compute = stream("compute");
    hy_event *is_here = event();
    void *pinned, *there;
    must(cuda->alloc(cuda, HY_PINNED, bytes, &pinned));
    must(cuda->alloc(cuda, HY_DEVICE, bytes, &there));
    for (int i = 0; i < 10; i++) hold_up(compute);
    must(cuda->copy(copies, there, pinned, bytes));
    must(cuda->event_record(is_here, copies));
    must(cuda->stream_wait(compute, is_here));
    ck_assert(!cuda->event_is_done(is_here));
    fill(compute, device, 1, 1);
    must(cuda->stream_sync(compute));
    ck_assert_double_lt(cuda->stream_waited(compute), 1e-3);
    cuda->event_destroy(is_here);
    cuda->stream_destroy(copies);
    cuda->stream_destroy(compute);
    cuda->release(cuda, HY_PINNED, pinned, bytes);
    cuda->release(cuda, HY_DEVICE, there, bytes);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(memory_is_aligned_and_apart_in_every_place) {
    static const hy_place places[] = {HY_DEVICE, HY_PINNED, HY_HOST};
    unsigned char *blocks[9], *page = (unsigned char *)host;
    for (int i = 0; i < 9; i++) {
        void *data;
        must(cuda->alloc(cuda, places[i % 3], 1000, &data));
        ck_assert_uint_eq((uintptr_t)data % 256, 0);
        memset(page, i, 1000);
        must(cuda->copy(gpu.stream, data, page, 1000));
        must(cuda->stream_sync(gpu.stream));
        blocks[i] = data;
    }
    for (int i = 0; i < 9; i++) {
        must(cuda->copy(gpu.stream, page, blocks[i], 1000));
        must(cuda->stream_sync(gpu.stream));
        for (int k = 0; k < 1000; k++) {
            if (page[k] != i) ck_abort_msg("block %d, byte %d", i, k);
        }
        cuda->release(cuda, places[i % 3], blocks[i], 1000);
    }
}
END_TEST

static size_t resident_bytes(void) {
    unsigned long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%lu %lu", &total, &resident) != 2) resident = 0;
    if (file) fclose(file);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* Large blocks are taken another way than small ones: on a page, whole, and given back. */
START_TEST(large_pinned_memory_holds_every_byte_and_is_given_back) {
    size_t bytes = ((size_t)200 << 20) + 7, before = resident_bytes();
    for (int round = 0; round < 4; round++) {
        unsigned char *data;
        must(cuda->alloc(cuda, HY_PINNED, bytes, (void **)&data));
        ck_assert_uint_eq((uintptr_t)data % 4096, 0);
        for (size_t k = 0; k < bytes; k += 4095) data[k] = (unsigned char)(k * 31 + (size_t)round);
        data[bytes - 1] = 77;
        must(cuda->copy(gpu.stream, large, data, bytes));
        must(cuda->stream_sync(gpu.stream));
        memset(data, 0, bytes);
        must(cuda->copy(gpu.stream, data, large, bytes));
        must(cuda->stream_sync(gpu.stream));
        ck_assert_int_eq(data[bytes - 1], 77);
        for (size_t k = 0; k < bytes - 4095; k += 4095) {
            if (data[k] != (unsigned char)(k * 31 + (size_t)round)) ck_abort_msg("byte %zu", k);
        }
        cuda->release(cuda, HY_PINNED, data, bytes);
    }
    ck_assert_uint_lt(resident_bytes(), before + ((size_t)100 << 20));
}
END_TEST

/* Pageable memory would hold the caller up until the copy is done. */
START_TEST(copies_of_pinned_memory_do_not_hold_the_caller_up) {
    static const size_t sizes[] = {1 << 20, (size_t)128 << 20}; /* the driver's, and ours */
    hy_stream *s = stream("copies");
    hy_event *is_done = event();
    for (int i = 0; i < 4; i++) {
        void *data;
        must(cuda->alloc(cuda, HY_PINNED, sizes[i / 2], &data));
        hold_up(s);
        must(i % 2 ? cuda->copy(s, data, large, sizes[i / 2])
                   : cuda->copy(s, large, data, sizes[i / 2]));
        must(cuda->event_record(is_done, s));
        ck_assert(!cuda->event_is_done(is_done));
        must(cuda->stream_sync(s));
        cuda->release(cuda, HY_PINNED, data, sizes[i / 2]);
    }
    cuda->event_destroy(is_done);
    cuda->stream_destroy(s);
}
END_TEST

START_TEST(memory_that_cannot_be_had_is_named_and_nothing_breaks) {
    static const hy_place places[] = {HY_DEVICE, HY_PINNED, HY_HOST};
    void *data = &data;
    for (int i = 0; i < 3; i++) {
        must_fail(cuda->alloc(cuda, places[i], SIZE_MAX / 4, &data), HY_ERR_MEMORY,
                  hy_place_name(places[i]));
        ck_assert_ptr_null(data);
    }
    must_fail(cuda->alloc(cuda, HY_DEVICE, cuda->facts.memory_total + 1, &data), HY_ERR_MEMORY,
              "free");
    must_fail(cuda->alloc(cuda, HY_DISK, 10, &data), HY_ERR_INPUT, "place");
    fill(gpu.stream, device, 1, 5);
    must(cuda->copy(gpu.stream, host, device, sizeof(float)));
    must(cuda->stream_sync(gpu.stream));
    ck_assert_float_eq(host[0], 5);
}
END_TEST

START_TEST(what_is_released_can_be_had_again) {
    size_t bytes = cuda->facts.memory_free / 3;
    for (int i = 0; i < 8; i++) {
        void *data;
        must(cuda->alloc(cuda, HY_DEVICE, bytes, &data));
        cuda->release(cuda, HY_DEVICE, data, bytes);
    }
}
END_TEST

/* ---- copies ---------------------------------------------------------------------------------- */

START_TEST(copies_go_every_way) {
    static const hy_place places[] = {HY_DEVICE, HY_PINNED, HY_HOST};
    static const size_t sizes[] = {1, 3, 4097, 1 << 20, (5 << 20) + 7};
    for (int i = 0; i < 45; i++) {
        size_t bytes = sizes[i / 9];
        void *from, *to;
        unsigned char *made = malloc(bytes), *found = calloc(1, bytes);
        for (size_t k = 0; k < bytes; k++) made[k] = (unsigned char)(k * 31 + (size_t)i);
        must(cuda->alloc(cuda, places[i % 3], bytes, &from));
        must(cuda->alloc(cuda, places[i / 3 % 3], bytes, &to));
        must(cuda->copy(gpu.stream, from, made, bytes));
        must(cuda->copy(gpu.stream, to, from, bytes));
        must(cuda->copy(gpu.stream, found, to, bytes));
        must(cuda->stream_sync(gpu.stream));
        ck_assert_mem_eq(made, found, bytes);
        cuda->release(cuda, places[i % 3], from, bytes);
        cuda->release(cuda, places[i / 3 % 3], to, bytes);
        free(made);
        free(found);
    }
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

START_TEST(wrong_calls_are_refused_in_words) {
    hy_op_call matmul = {.kind = HY_OP_MATMUL, .attr.matmul = {.alpha = 1}};
    matmul.t[HY_MATMUL_A] = hy_tensor_2d(device, HY_F32, 4, 5);
    matmul.t[HY_MATMUL_B] = hy_tensor_2d(device, HY_F32, 6, 7);
    matmul.t[HY_MATMUL_D] = hy_tensor_2d(device, HY_F32, 4, 7);
    must_fail(cuda->supports(cuda, &matmul), HY_ERR_INPUT, "matmul: b has shape (6, 7)");
    matmul.t[HY_MATMUL_B] = hy_tensor_2d(device, HY_I32, 5, 7);
    must_fail(cuda->supports(cuda, &matmul), HY_ERR_INPUT, "b is i32");
    must_fail(cuda->prepare(cuda, &matmul), HY_ERR_INPUT, "b is i32");
    hy_op_call norm = {.kind = HY_OP_NORM};
    norm.t[HY_NORM_X] = hy_tensor_2d(device, HY_F32, 4, 5);
    must_fail(cuda->supports(cuda, &norm), HY_ERR_INPUT, "norm: weight is missing");
    hy_op_call attention = {.kind = HY_OP_ATTENTION};
    must_fail(cuda->supports(cuda, &attention), HY_ERR_INPUT, "attention");
    hy_op_call unknown = {.kind = HY_OP_COUNT};
    must_fail(cuda->supports(cuda, &unknown), HY_ERR_INPUT, "op kind");
}
END_TEST

/* At the latest at the sync, and the stream is usable afterwards. */
START_TEST(an_op_without_its_workspace_is_an_error_and_not_a_crash) {
    hy_op_call sum = {.kind = HY_OP_SUM};
    sum.t[HY_REDUCE_X] = hy_tensor_1d(large, HY_F32, LARGE);
    sum.t[HY_REDUCE_OUT] = hy_tensor_1d(device, HY_F64, 1);
    ck_assert_uint_gt(cuda->workspace(cuda, &sum), 0);
    hy_status status = cuda->enqueue(gpu.stream, &sum);
    if (status == HY_OK) status = cuda->stream_sync(gpu.stream);
    ck_assert_int_eq(status, HY_ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "workspace"));
    fill(gpu.stream, device, 1, 6);
    must(cuda->copy(gpu.stream, host, device, sizeof(float)));
    must(cuda->stream_sync(gpu.stream));
    ck_assert_float_eq(host[0], 6);
}
END_TEST

/* Started with --fault: a kernel writes where there is no memory. 0 when it was reported in
 * words. */
static int fault(void) {
    hy_backend *b = gpu_backend();
    hy_stream *s;
    if (!b || b->stream_create(b, "fault", &s) != HY_OK) return 1;
    hy_op_call call = {.kind = HY_OP_FILL};
    call.t[HY_FILL_DST] = hy_tensor_1d((void *)(uintptr_t)4096, HY_F32, 1000);
    hy_status status = b->enqueue(s, &call);
    if (status == HY_OK) status = b->stream_sync(s);
    return status == HY_ERR_DEVICE && strlen(hy_error_message()) > 20 ? 0 : 1;
}

START_TEST(a_kernel_that_faults_is_reported_at_the_sync) {
    char command[1200];
    snprintf(command, sizeof command, "'%s' --fault", program);
    int status = system(command);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

/* ---- facts ----------------------------------------------------------------------------------- */

START_TEST(the_backend_describes_itself) {
    const hy_device_facts *facts = &cuda->facts;
    ck_assert(facts->is_gpu && facts->name[0] && facts->detail[0]);
    ck_assert_int_eq(facts->threads, 0);
    ck_assert_int_ge(facts->capability, 75);
    ck_assert_uint_gt(facts->memory_total, (size_t)1 << 30);
    ck_assert_uint_le(facts->memory_free, facts->memory_total);
}
END_TEST

START_TEST(a_device_that_is_not_there_is_named) {
    hy_cuda_options options = {.device = 99};
    hy_backend *none = NULL;
    must_fail(hy_cuda_backend_create(&options, &none), HY_ERR_DEVICE, "99");
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(a_large_matmul_is_timed_when_asked_for) {
    hy_cuda_options options = {.is_measuring = true};
    hy_backend *other;
    must(hy_cuda_backend_create(&options, &other));
    ck_assert_double_gt(other->facts.matmul_flops, 1e12);
    if (other->facts.peak_flops > 0) {
        ck_assert_double_lt(other->facts.matmul_flops, 1.1 * other->facts.peak_flops);
    }
    other->destroy(other);
}
END_TEST

/* No card that trains copies or reads its memory more slowly than this. */
START_TEST(how_fast_bytes_move_is_measured) {
    hy_rates r;
    must(hy_rates_measure(cuda, &r));
    ck_assert_double_gt(r.copy_up, 5e8);
    ck_assert_double_gt(r.copy_down, 5e8);
    ck_assert_double_gt(r.copy_both, 3e8);
    ck_assert_double_lt(r.copy_both, 1.2 * (r.copy_up > r.copy_down ? r.copy_up : r.copy_down));
    ck_assert_double_gt(r.device_bandwidth, 5e10);
    ck_assert_double_lt(r.device_bandwidth, 5e13);
    ck_assert_double_gt(r.host_bandwidth, 1e9);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: backend");
    TCase *all = tcase_create("backend");
    tcase_add_unchecked_fixture(all, set_up, tear_down);
    tcase_add_test(all, a_stream_runs_its_items_in_order);
    tcase_add_test(all, a_stream_waits_for_an_event_of_another);
    tcase_add_test(all, an_event_is_done_when_the_work_before_it_is);
    tcase_add_test(all, an_event_may_be_recorded_on_different_streams);
    tcase_add_test(all, destroying_a_stream_runs_what_is_queued);
    tcase_add_test(all, a_function_runs_between_what_is_enqueued_before_and_after);
    tcase_add_test(all, an_event_behind_a_function_fires_when_it_is_done);
    tcase_add_test(all, a_function_that_fails_is_reported_at_the_sync);
    tcase_add_test(all, more_functions_than_a_ring_holds_all_run);
    tcase_add_test(all, a_stream_of_the_callers_waits_for_its_functions_when_it_is_let_go);
    tcase_add_test(all, seconds_waited_for_events_are_counted);
    tcase_add_test(all, waiting_for_a_copy_is_as_long_as_the_copy);
    tcase_add_test(all, a_copy_that_compute_covers_is_not_waited_for);
    tcase_add_test(all, memory_is_aligned_and_apart_in_every_place);
    tcase_add_test(all, large_pinned_memory_holds_every_byte_and_is_given_back);
    tcase_add_test(all, copies_of_pinned_memory_do_not_hold_the_caller_up);
    tcase_add_test(all, memory_that_cannot_be_had_is_named_and_nothing_breaks);
    tcase_add_test(all, what_is_released_can_be_had_again);
    tcase_add_test(all, copies_go_every_way);
    tcase_add_test(all, wrong_calls_are_refused_in_words);
    tcase_add_test(all, an_op_without_its_workspace_is_an_error_and_not_a_crash);
    tcase_add_test(all, a_kernel_that_faults_is_reported_at_the_sync);
    tcase_add_test(all, the_backend_describes_itself);
    tcase_add_test(all, a_device_that_is_not_there_is_named);
    tcase_add_test(all, a_large_matmul_is_timed_when_asked_for);
    tcase_add_test(all, how_fast_bytes_move_is_measured);
    suite_add_tcase(suite, all);
    return suite;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--fault") == 0) return fault();
    if (argc > 1 && strcmp(argv[1], "--probe") == 0) { /* is there anything to test? */
        if (gpu_backend()) return EXIT_SUCCESS;
        fprintf(stderr, "test-gpu needs a CUDA device: %s\n", hy_error_message());
        return EXIT_FAILURE;
    }
    program = argv[0];
    return gpu_main(make_suite(), argv[0]);
}
