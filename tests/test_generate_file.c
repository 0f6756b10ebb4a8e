/* test_generate_file.c: files of prompts when something goes wrong: a process that is killed, a disk
 * or a device that fails, a call that is stopped. Whatever happens, the same call ends with the same
 * bytes. The rows themselves are tested with the program (tests/generate).
 *
 * This program intercepts hy_batch_decoder_step (make/tests.mk). */
#include "generate_rig.h"

#include <errno.h>
#include <sys/wait.h>

#include "model/batch_decode.h"

enum { ROWS = 12 };

/* ---- a device that fails --------------------------------------------------------------------- */

static int steps_until_failure; /* 0: none fails */

hy_status __real_hy_batch_decoder_step(hy_batch_decoder *decoder, int32_t rows,
                                       const int32_t *first, const hy_sampling *sampling);
hy_status __wrap_hy_batch_decoder_step(hy_batch_decoder *decoder, int32_t rows,
                                       const int32_t *first, const hy_sampling *sampling);

hy_status __wrap_hy_batch_decoder_step(hy_batch_decoder *decoder, int32_t rows,
                                       const int32_t *first, const hy_sampling *sampling) {
    if (steps_until_failure > 0 && --steps_until_failure == 0)
        return hy_fail(HY_ERR_DEVICE, "the device has fallen over");
    return __real_hy_batch_decoder_step(decoder, rows, first, sampling);
}

/* ---- files ----------------------------------------------------------------------------------- */

static char data[300], out[300], part[310], settings[320], *expected;
static size_t expected_size;

static hy_generator *open_plain(void) {
    return open_run("plain", NULL, (hy_generator_options){.streams = 3});
}

static hy_status answer(hy_generator *g, hy_generate_file_options options,
                        hy_generate_file_state *state) {
    hy_request each = {.max_tokens = 20, .temperature = 1, .seed = 5};
    options.data = data;
    options.out = out;
    return hy_generate_file(g, &each, &options, state);
}

static void expect_answers(void) {
    char *found;
    size_t size;
    must(hy_file_read(out, &found, &size));
    ck_assert_uint_eq(size, expected_size);
    ck_assert(memcmp(found, expected, size) == 0);
    ck_assert(!hy_path_exists(part) && !hy_path_exists(settings));
    free(found);
    remove(out);
}

static void make_files(void) {
    hy_text rows = {0};
    temp_folder(rig_folder);
    make_run("plain", NULL);
    snprintf(data, sizeof data, "%s/rows.jsonl", rig_folder);
    snprintf(out, sizeof out, "%s/answers.jsonl", rig_folder);
    snprintf(part, sizeof part, "%s.part", out);
    snprintf(settings, sizeof settings, "%s.json", part);
    for (int i = 0; i < ROWS; i++)
        hy_text_addf(&rows, "{\"prompt\": \"row %d\", \"max_tokens\": %d}\n", i, 1 + i * 7 % 20);
    must(hy_file_write_atomic(data, rows.data, rows.size));
    hy_text_free(&rows);
    hy_generator *g = open_plain();
    must(answer(g, (hy_generate_file_options){0}, NULL));
    hy_generator_close(g);
    must(hy_file_read(out, &expected, &expected_size));
    remove(out);
}

static void remove_files(void) {
    free(expected);
    remove_folder(rig_folder);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static long count_calls(void) {
    hy_generator *g = open_plain();
    hy_fault_arm(1 << 20, ENOSPC, false);
    must(answer(g, (hy_generate_file_options){0}, NULL));
    long calls = hy_fault_disarm();
    hy_generator_close(g);
    expect_answers();
    ck_assert_int_gt(calls, ROWS);
    return calls;
}

/* The answers of a child that is killed at call `at` of those that change the disk. */
static void answer_and_die(long at) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        hy_generator *g = open_plain();
        hy_fault_arm_kill(at, 9);
        (void)answer(g, (hy_generate_file_options){0}, NULL);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 9);
}

START_TEST(after_a_death_at_any_write_the_same_call_continues) {
    hy_generate_file_state state;
    int64_t most = 0;
    long calls = count_calls();
    for (long at = 0; at < calls; at++) {
        answer_and_die(at);
        hy_generator *g = open_plain();
        if (hy_path_exists(out)) { /* it died when all was done */
            must_fail(answer(g, (hy_generate_file_options){0}, NULL), HY_ERR_INPUT,
                      "exists already; --overwrite replaces it");
            must(answer(g, (hy_generate_file_options){.starts_over = true}, &state));
        } else {
            must(answer(g, (hy_generate_file_options){0}, &state));
        }
        ck_assert_int_eq(state.rows, ROWS);
        ck_assert_int_eq(state.done, ROWS);
        ck_assert_int_eq(state.answers, ROWS - state.resumed);
        if (state.resumed > most) most = state.resumed;
        hy_generator_close(g);
        expect_answers();
    }
    ck_assert_int_gt(most, ROWS - 3);
}
END_TEST

START_TEST(after_a_failure_at_any_write_the_same_call_continues) {
    long calls = count_calls();
    hy_generator *g = open_plain(); /* which stays in use */
    for (long at = 0; at < calls; at++) {
        hy_fault_arm(at, ENOSPC, true);
        hy_status status = answer(g, (hy_generate_file_options){0}, NULL);
        hy_fault_disarm();
        if (hy_path_exists(out)) { /* only the last steps failed */
            remove(settings);
            expect_answers();
            continue;
        }
        ck_assert_int_eq(status, HY_ERR_IO);
        must(answer(g, (hy_generate_file_options){0}, NULL));
        expect_answers();
    }
    hy_generator_close(g);
}
END_TEST

START_TEST(after_a_failure_of_the_device_the_same_call_continues) {
    hy_generate_file_state state;
    hy_generator *g = open_plain();
    for (int step = 1; step < 32; step += 5) {
        steps_until_failure = step;
        must_fail(answer(g, (hy_generate_file_options){0}, NULL), HY_ERR_DEVICE,
                  "the device has fallen over");
        must(answer(g, (hy_generate_file_options){0}, &state));
        ck_assert(step < 20 || state.resumed > 0);
        expect_answers();
    }
    hy_generator_close(g);
}
END_TEST

typedef struct stopper {
    hy_generator *generator;
    int pieces_left;
} stopper;

static void stop_later(void *user, const hy_piece *piece) {
    stopper *s = user;
    (void)piece;
    if (--s->pieces_left == 0) hy_generator_request_stop(s->generator);
}

/* The request of another user of the generator stops it, and goes on in the next call. */
START_TEST(a_stopped_call_continues_and_others_are_not_disturbed) {
    static heard other;
    hy_generate_file_state state;
    hy_generator *g = open_plain();
    for (int pieces = 1; pieces < 60; pieces += 7) {
        stopper s = {g, pieces};
        hy_request request = {.text = "ab", .text_size = 2, .max_tokens = 150, .ignores_end = true};
        ask(g, request, &other);
        request.on_piece = stop_later;
        request.user = &s;
        must(hy_generator_add(g, &request, NULL));
        must_fail(answer(g, (hy_generate_file_options){0}, &state), HY_STOPPED,
                  "rows.jsonl was interrupted");
        ck_assert_int_lt(state.done, ROWS);
        must(answer(g, (hy_generate_file_options){0}, &state));
        expect_answers();
        must(hy_generator_run(g));
        ck_assert_int_eq(other.end, HY_END_MAX_TOKENS);
        ck_assert_int_eq(other.count, 150);
        unhear(&other);
    }
    hy_generator_close(g);
}
END_TEST

START_TEST(a_stop_ends_the_check_of_rows) {
    hy_generator *g = open_plain();
    hy_generator_request_stop(g);
    must_fail(answer(g, (hy_generate_file_options){0}, NULL), HY_STOPPED, "rows.jsonl was stopped");
    ck_assert(!hy_path_exists(part) && !hy_path_exists(settings));
    must(answer(g, (hy_generate_file_options){0}, NULL));
    expect_answers();
    hy_generator_close(g);
}
END_TEST

static void watch(void *user, const hy_generate_file_state *state) {
    hy_generate_file_state *last = user;
    ck_assert(state->is_checking || state->rows == ROWS);
    ck_assert_int_ge(state->done, last->done);
    ck_assert_int_ge(state->answer_tokens, last->answer_tokens);
    *last = *state;
}

START_TEST(progress_is_reported) {
    hy_generate_file_state last = {0}, state;
    hy_generator *g = open_plain();
    must(answer(g, (hy_generate_file_options){.on_progress = watch, .user = &last}, &state));
    ck_assert_uint_eq(last.size, sizeof last); /* there was a call */
    ck_assert_int_eq(state.done, ROWS);
    ck_assert_int_eq(state.running, 0);
    ck_assert(state.answer_tokens > 0 && state.prompt_tokens >= 5 * ROWS);
    expect_answers();
    hy_generator_close(g);
}
END_TEST

START_TEST(logits_that_are_not_finite_fail_the_call_or_the_row) {
    char path[340], model[300], *bytes;
    size_t size;
    hy_config *config;
    hy_generator *g;
    hy_generate_file_state state;
    snprintf(model, sizeof model, "%s/plain/model", rig_folder);
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    must(hy_file_read(path, &bytes, &size));
    memset(bytes + size - 512, 0xff, 512); /* NaN */
    must(hy_file_write_atomic(path, bytes, size));
    free(bytes);
    must(hy_config_create(&config));
    set_pairs(config, PAIRS("model", model, "device", "cpu", "threads", "2"));
    must(hy_generator_open(config, NULL, NULL, &g));
    hy_config_destroy(config);
    must_fail(answer(g, (hy_generate_file_options){0}, NULL), HY_ERR_NUMERIC,
              "rows.jsonl:1: the model's logits are not finite");
    must(answer(g, (hy_generate_file_options){.skips_bad = true}, &state));
    ck_assert_int_eq(state.bad, ROWS);
    must(hy_file_read(out, &bytes, &size));
    ck_assert_ptr_nonnull(strstr(bytes, "rows.jsonl:12: the model's logits are not finite\"}\n"));
    free(bytes);
    remove(out);
    hy_generator_close(g);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("generate: files");
    TCase *all = tcase_create("files");
    tcase_add_unchecked_fixture(all, make_files, remove_files);
    tcase_add_test(all, after_a_death_at_any_write_the_same_call_continues);
    tcase_add_test(all, after_a_failure_at_any_write_the_same_call_continues);
    tcase_add_test(all, after_a_failure_of_the_device_the_same_call_continues);
    tcase_add_test(all, a_stopped_call_continues_and_others_are_not_disturbed);
    tcase_add_test(all, a_stop_ends_the_check_of_rows);
    tcase_add_test(all, progress_is_reported);
    tcase_add_test(all, logits_that_are_not_finite_fail_the_call_or_the_row);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
