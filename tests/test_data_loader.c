/* test_data_loader.c: micro-batches read ahead: the right ones, in order, from any position. */
#include <pthread.h>
#include <unistd.h>

#include "data/loader.h"
#include "harness.h"

enum { SEQ = 16 };

static hy_dataset *data;

static void open_data(void) {
    hy_dataset_options options = {.path = "builtin",
                                  .val_fraction = 0.1,
                                  .builtin_bytes = 5000,
                                  .seq = SEQ,
                                  .vocab = 256,
                                  .seed = 4,
                                  .shuffle = true};
    must(hy_dataset_open(&options, &data));
}

static void close_data(void) { hy_dataset_close(data); }

static hy_loader *create(int32_t batch, int32_t depth, uint64_t first) {
    hy_loader *loader;
    must(hy_loader_create(data, batch, depth, first, NULL, NULL, &loader));
    return loader;
}

/* The batch must hold exactly the sequences first .. first + batch - 1. */
static void check_batch(const hy_batch *batch, uint64_t first, int32_t size) {
    int32_t tokens[SEQ], targets[SEQ];
    ck_assert_uint_eq(batch->first, first);
    ck_assert_int_eq(batch->counted, size * SEQ);
    for (int32_t row = 0; row < size; row++) {
        hy_dataset_fill(data, HY_TRAIN, first + (uint64_t)row, tokens, targets, NULL);
        ck_assert_mem_eq(batch->tokens + row * SEQ, tokens, sizeof tokens);
        ck_assert_mem_eq(batch->targets + row * SEQ, targets, sizeof targets);
    }
}

/* The cursor is the number of sequences used: starting there gives what comes there, whatever the
 * grouping. */
START_TEST(batches_continue_at_any_sequence_in_any_grouping) {
    const int32_t sizes[] = {1, 2, 3, 8};
    const uint64_t starts[] = {0, 1, 17, 280, 281, 100000};
    for (int s = 0; s < 4; s++) {
        for (int f = 0; f < 6; f++) {
            hy_loader *loader = create(sizes[s], 1 + s, starts[f]);
            for (uint64_t n = 0; n < 400; n += (uint64_t)sizes[s]) {
                hy_batch batch;
                must(hy_loader_peek(loader, 0, &batch));
                check_batch(&batch, starts[f] + n, sizes[s]);
                hy_loader_pop(loader);
            }
            hy_loader_destroy(loader);
        }
    }
}
END_TEST

START_TEST(a_whole_step_can_be_looked_at_before_it_is_taken) {
    enum { BATCH = 2, DEPTH = 4 };
    hy_loader *loader = create(BATCH, DEPTH, 10);
    for (uint64_t step = 0; step < 20; step++) {
        hy_batch batches[DEPTH], again;
        for (int i = 0; i < DEPTH; i++) must(hy_loader_peek(loader, i, &batches[i]));
        for (int i = 0; i < DEPTH; i++) {
            check_batch(&batches[i], 10 + (step * DEPTH + (uint64_t)i) * BATCH, BATCH);
        }
        must(hy_loader_peek(loader, 1, &again));
        ck_assert_ptr_eq(again.tokens, batches[1].tokens);
        for (int i = 0; i < DEPTH; i++) hy_loader_pop(loader);
    }
    hy_loader_destroy(loader);
}
END_TEST

/* Batches not yet given back must not change under the caller's eyes. */
START_TEST(what_was_peeked_stays_until_it_is_popped) {
    hy_loader *loader = create(1, 3, 0);
    hy_batch oldest;
    must(hy_loader_peek(loader, 0, &oldest));
    for (int i = 0; i < 3; i++) {
        hy_batch later;
        must(hy_loader_peek(loader, i, &later));
    }
    usleep(20000);
    check_batch(&oldest, 0, 1);
    hy_loader_destroy(loader);
}
END_TEST

START_TEST(batches_can_be_skipped_without_a_look) {
    hy_loader *loader = create(2, 2, 0);
    for (int i = 0; i < 50; i++) hy_loader_pop(loader);
    hy_batch batch;
    must(hy_loader_peek(loader, 0, &batch));
    check_batch(&batch, 100, 2);
    hy_loader_destroy(loader);
}
END_TEST

START_TEST(a_loader_can_be_destroyed_at_any_time) {
    hy_loader_destroy(NULL);
    for (int i = 0; i < 200; i++) {
        hy_loader *loader = create(1 + i % 3, 1 + i % 4, (uint64_t)i);
        hy_batch batch;
        for (int k = 0; k < i % 5; k++) {
            must(hy_loader_peek(loader, 0, &batch));
            if (i % 2) hy_loader_pop(loader);
        }
        hy_loader_destroy(loader);
    }
}
END_TEST

START_TEST(memory_is_known_and_taken_at_creation) {
    hy_loader *loader = create(3, 5, 0);
    ck_assert_uint_eq(hy_loader_bytes(loader),
                      5 * (3 * SEQ * 2 * sizeof(int32_t) + 2 * sizeof(int64_t)));
    hy_loader_destroy(loader);
}
END_TEST

START_TEST(waiting_is_counted) {
    hy_loader *loader = create(8, 1, 0);
    for (int i = 0; i < 2000; i++) hy_loader_pop(loader); /* faster than anyone can fill */
    double waited = hy_loader_waited(loader);
    ck_assert_double_gt(waited, 0);
    hy_batch batch;
    must(hy_loader_peek(loader, 0, &batch));
    waited = hy_loader_waited(loader);
    must(hy_loader_peek(loader, 0, &batch)); /* there already */
    ck_assert_double_eq(hy_loader_waited(loader), waited);
    hy_loader_destroy(loader);
}
END_TEST

START_TEST(wrong_sizes_are_refused) {
    hy_loader *loader;
    must_fail(hy_loader_create(data, 0, 1, 0, NULL, NULL, &loader), HY_ERR_INPUT,
              "batch size is 0");
    ck_assert_ptr_null(loader);
    must_fail(hy_loader_create(data, 1, 0, 0, NULL, NULL, &loader), HY_ERR_INPUT,
              "read ahead is 0");
    must_fail(hy_loader_create(data, INT32_MAX, INT32_MAX, 0, NULL, NULL, &loader), HY_ERR_MEMORY,
              "not enough memory");
    loader = create(1, 2, 0);
    hy_batch batch;
    must_fail(hy_loader_peek(loader, 2, &batch), HY_ERR_STATE, "only 2 batches are read ahead");
    must_fail(hy_loader_peek(loader, -1, &batch), HY_ERR_STATE, "batch -1");
    hy_loader_destroy(loader);
}
END_TEST

/* What was read ahead is handed out; then the error comes, again and again, and nobody hangs. */
START_TEST(data_that_can_no_longer_be_read_is_an_error_of_peek) {
    char folder[256], path[512];
    hy_dataset *shared;
    hy_loader *loader;
    hy_batch batch;
    temp_folder(folder);
    snprintf(path, sizeof path, "%s/a.txt", folder);
    FILE *file = fopen(path, "wb");
    for (int i = 0; i < 100000; i++) fputc('a' + i % 26, file);
    ck_assert_int_eq(fclose(file), 0);
    must(hy_dataset_open(
        &(hy_dataset_options){
            .path = path, .val_fraction = 0.1, .seq = SEQ, .vocab = 256, .seed = 4},
        &shared));
    must(hy_loader_create(shared, 2, 3, 0, NULL, NULL, &loader));
    must(hy_loader_peek(loader, 2, &batch));
    ck_assert_int_eq(truncate(path, 64), 0);
    hy_status status = HY_OK;
    int handed_out = 0;
    for (; handed_out < 100; handed_out++) {
        status = hy_loader_peek(loader, 0, &batch);
        if (status != HY_OK) break;
        hy_loader_pop(loader);
    }
    ck_assert_int_eq(status, HY_ERR_IO);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "a.txt has become shorter"));
    ck_assert_int_ge(handed_out, 3);
    ck_assert_int_eq(hy_loader_peek(loader, 2, &batch), HY_ERR_IO);
    hy_loader_destroy(loader);
    hy_dataset_close(shared);
    remove_folder(folder);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("data: loader");
    TCase *tests = tcase_create("loader");
    tcase_add_checked_fixture(tests, open_data, close_data);
    tcase_add_test(tests, batches_continue_at_any_sequence_in_any_grouping);
    tcase_add_test(tests, a_whole_step_can_be_looked_at_before_it_is_taken);
    tcase_add_test(tests, what_was_peeked_stays_until_it_is_popped);
    tcase_add_test(tests, batches_can_be_skipped_without_a_look);
    tcase_add_test(tests, a_loader_can_be_destroyed_at_any_time);
    tcase_add_test(tests, memory_is_known_and_taken_at_creation);
    tcase_add_test(tests, waiting_is_counted);
    tcase_add_test(tests, wrong_sizes_are_refused);
    tcase_add_test(tests, data_that_can_no_longer_be_read_is_an_error_of_peek);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
