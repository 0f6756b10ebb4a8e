/* test_memory_rates.c: measuring copy speeds on the CPU backend.
 *
 * The speed of a machine cannot be tested, but whether a figure belongs to this backend can. A
 * backend with copies that are slowed down on purpose, or fail, simulates a link of known speed. */
#include "harness.h"

#include <time.h>

#include "base/clock.h"
#include "memory/rates.h"

static hy_backend *cpu;
static hy_backend wrapped; /* the CPU's, with one function of ours */
static hy_status (*plain_copy)(hy_stream *s, void *dst, const void *src, size_t bytes);
static hy_status (*plain_alloc)(hy_backend *b, hy_place place, size_t bytes, void **out);
static void (*plain_release)(hy_backend *b, hy_place place, void *data, size_t bytes);
static int64_t taken[HY_PLACE_COUNT], most[HY_PLACE_COUNT];
static int ops;         /* enqueued */
static int allocs_left; /* before one fails; -1: none does */

static hy_status counting_alloc(hy_backend *b, hy_place place, size_t bytes, void **out) {
    *out = NULL;
    if (allocs_left == 0) return hy_fail(HY_ERR_MEMORY, "no memory, says the test");
    if (allocs_left > 0) allocs_left--;
    hy_status status = plain_alloc(b, place, bytes, out);
    if (status == HY_OK) taken[place] += (int64_t)bytes;
    if (taken[place] > most[place]) most[place] = taken[place];
    return status;
}

static void counting_release(hy_backend *b, hy_place place, void *data, size_t bytes) {
    taken[place] -= (int64_t)bytes;
    plain_release(b, place, data, bytes);
}

/* As a link of 2 GB/s at most would: enqueueing takes as long as the copy. */
static hy_status slow_copy(hy_stream *s, void *dst, const void *src, size_t bytes) {
    double seconds = (double)bytes / 2e9;
    struct timespec pause = {.tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&pause, NULL);
    return plain_copy(s, dst, src, bytes);
}

static hy_status failing_copy(hy_stream *s, void *dst, const void *src, size_t bytes) {
    (void)s, (void)dst, (void)src, (void)bytes;
    return hy_fail(HY_ERR_DEVICE, "the link is broken, says the test");
}

static hy_status counting_enqueue(hy_stream *s, const hy_op_call *call) {
    ops++;
    must(cpu->supports(cpu, call));
    return cpu->enqueue(s, call);
}

static void set_up(void) {
    must(hy_cpu_backend_create(&(hy_cpu_options){0}, &cpu));
    wrapped = *cpu;
    plain_copy = cpu->copy;
    plain_alloc = cpu->alloc;
    plain_release = cpu->release;
    wrapped.alloc = counting_alloc;
    wrapped.release = counting_release;
    allocs_left = -1;
    ops = 0;
    memset(taken, 0, sizeof taken);
    memset(most, 0, sizeof most);
}
static void tear_down(void) { cpu->destroy(cpu); }

static void expect_all_given_back(void) {
    for (int p = 0; p < HY_PLACE_COUNT; p++) ck_assert_int_eq(taken[p], 0);
}

START_TEST(every_rate_of_a_machine_is_found) {
    hy_rates r;
    double began = hy_clock();
    wrapped.facts.matmul_flops = 123e9;
    must(hy_rates_measure(&wrapped, &r));
    ck_assert_double_lt(hy_clock() - began, 20); /* short, also under a sanitizer */
    ck_assert_double_eq(r.gemm_flops, 123e9);
    ck_assert_double_gt(r.copy_up, 1e7);
    ck_assert_double_gt(r.copy_down, 1e7);
    ck_assert_double_gt(r.copy_both, 1e7);
    ck_assert_double_gt(r.host_bandwidth, 1e8);
    ck_assert_double_lt(r.host_bandwidth, 1e13);
    ck_assert_double_eq(r.device_bandwidth, r.host_bandwidth);
    ck_assert(r.disk_read == 0 && r.disk_write == 0);
    expect_all_given_back();
    ck_assert_int_gt(most[HY_DEVICE], 0);
    ck_assert_int_le(most[HY_DEVICE], 256 << 20);
    ck_assert_int_le(most[HY_PINNED], 128 << 20);
}
END_TEST

START_TEST(a_slow_link_is_measured_as_slow) {
    hy_rates r;
    wrapped.copy = slow_copy;
    must(hy_rates_measure(&wrapped, &r));
    ck_assert_double_lt(r.copy_up, 2e9);
    ck_assert_double_lt(r.copy_down, 2e9);
    ck_assert_double_lt(r.copy_both, 1.05e9); /* both ways through one sleeping thread */
    ck_assert_double_gt(r.copy_both, 1e7);
}
END_TEST

/* What a card does in addition: its own memory is measured by an op. */
START_TEST(the_memory_of_a_card_is_measured_by_an_op) {
    hy_rates r;
    wrapped.facts.is_gpu = true;
    wrapped.enqueue = counting_enqueue;
    must(hy_rates_measure(&wrapped, &r));
    ck_assert_int_ge(ops, 2);
    ck_assert_double_gt(r.device_bandwidth, 1e7);
    ck_assert_double_ne(r.device_bandwidth, r.host_bandwidth);
    ck_assert_int_le(most[HY_DEVICE], 256 << 20);
    expect_all_given_back();
}
END_TEST

START_TEST(a_failure_is_passed_on_and_nothing_stays_taken) {
    hy_rates r;
    wrapped.copy = failing_copy;
    must_fail(hy_rates_measure(&wrapped, &r), HY_ERR_DEVICE,
              "measuring copies: the link is broken");
    expect_all_given_back();
    wrapped.copy = plain_copy;
    for (int n = 0; n < 4; n++) { /* each of the four blocks that are taken */
        allocs_left = n;
        must_fail(hy_rates_measure(&wrapped, &r), HY_ERR_MEMORY, "says the test");
        expect_all_given_back();
    }
}
END_TEST

START_TEST(a_folder_s_speed_is_added) {
    char folder[256], **names;
    size_t count;
    hy_rates r = {.copy_up = 5};
    temp_folder(folder);
    must(hy_rates_disk(folder, &r));
    ck_assert_double_gt(r.disk_read, 1e5);
    ck_assert_double_gt(r.disk_write, 1e5);
    ck_assert_double_eq(r.copy_up, 5);
    must(hy_dir_list(folder, &names, &count));
    ck_assert_uint_eq(count, 0);
    hy_dir_list_free(names, count);
    remove_folder(folder);
    must_fail(hy_rates_disk(folder, &r), HY_ERR_INPUT, folder);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("memory: rates");
    TCase *all = tcase_create("rates");
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, every_rate_of_a_machine_is_found);
    tcase_add_test(all, a_slow_link_is_measured_as_slow);
    tcase_add_test(all, the_memory_of_a_card_is_measured_by_an_op);
    tcase_add_test(all, a_failure_is_passed_on_and_nothing_stays_taken);
    tcase_add_test(all, a_folder_s_speed_is_added);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
