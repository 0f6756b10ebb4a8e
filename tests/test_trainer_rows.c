/* test_trainer_rows.c: fine-tuning runs on rows: masks and document masks on their way through a
 * step, exact resume, and what a run refuses. */
#include "base/text.h"
#include "small_run.h"

#define ROWS_RUN                                                                                   \
    "model nano layers 2 width 32 heads 4 mlp_width 48 seq_len 64 batch_size 2 steps 40 "          \
    "grad_accum_steps 2 lr 3e-3 lr_warmup_steps 3 sample_tokens 0 threads 2 device cpu "           \
    "predictor none "

static char folder[256], rows[512];

/* Sums of small numbers: a model of a few thousand weights learns how they are written. */
static void write_rows(void) {
    hy_text text = {0};
    temp_folder(folder);
    for (int i = 0; i < 120; i++) {
        hy_text_addf(&text, "{\"question\": \"%d+%d?\", \"answer\": \"it is %d\"}\n", i % 10, i % 7,
                     i % 10 + i % 7);
    }
    snprintf(rows, sizeof rows, "%s/rows.jsonl", folder);
    must(hy_file_write_atomic(rows, text.data, text.size));
    hy_text_free(&text);
}

static void drop_rows(void) { remove_folder(folder); }

START_TEST(a_run_on_packed_rows_resumes_bit_for_bit) {
    check_resume(ROWS_RUN, NULL, PAIRS("data", rows, "packing", "on"), 7, 9);
    check_resume(ROWS_RUN, NULL, PAIRS("data", rows, "packing", "off", "loss_on", "all"), 3, 5);
}
END_TEST

START_TEST(packing_leaves_the_held_out_loss_as_it_is) {
    double losses[2];
    for (int i = 0; i < 2; i++) {
        hy_eval_info info;
        hy_trainer *t = small_trainer(
            ROWS_RUN, "none", NULL,
            PAIRS("data", rows, "positions", _i ? "learned" : "rope", "packing", i ? "on" : "off"));
        must(hy_trainer_evaluate(t, &info));
        losses[i] = info.loss;
        hy_trainer_destroy(t);
    }
    ck_assert_double_eq_tol(losses[0], losses[1], 1e-5 * losses[0]);
}
END_TEST

START_TEST(places_and_recompute_change_no_bit_of_a_packed_run) {
    double plain[4], other[4];
    hy_trainer *t = small_trainer(ROWS_RUN, "none", NULL, PAIRS("data", rows));
    next_losses(t, 4, plain);
    hy_trainer_destroy(t);
    t = small_trainer(ROWS_RUN, "none", NULL,
                      PAIRS("data", rows, "recompute", "all", "weights_place", "pinned",
                            "optim_place", "pinned", "grads_place", "pinned"));
    next_losses(t, 4, other);
    hy_trainer_destroy(t);
    ck_assert_mem_eq(plain, other, sizeof plain);
}
END_TEST

START_TEST(a_run_on_rows_learns_the_answers) {
    double losses[40];
    hy_trainer *t = small_trainer(ROWS_RUN, "none", NULL, PAIRS("data", rows));
    next_losses(t, 40, losses);
    hy_trainer_destroy(t);
    ck_assert_double_lt(losses[39], 0.6 * losses[0]);
}
END_TEST

/* ---- asking in the format of the rows -------------------------------------------------------- */

/* Opens the run in `out` for inference. */
static hy_inference *open_run(const char *out, const char *template) {
    hy_inference_options options = {.chat_template = template};
    hy_inference *in;
    hy_config *config;
    must(hy_config_create(&config));
    must(hy_config_use_model(config, out));
    must(hy_inference_open(config, &options, NULL, &in));
    hy_config_destroy(config);
    return in;
}

static int32_t prompt_of(hy_inference *in, const char *question) {
    hy_generate_options options = {.max_tokens = 2};
    hy_generated info;
    must(hy_inference_say(in, question, &options, NULL, NULL, &info));
    return info.prompt_tokens;
}

START_TEST(a_run_is_asked_in_the_format_of_its_rows) {
    static const struct {
        const char *row, *template, *format;
        int32_t around; /* bytes before and after the question */
    } cases[] = {
        {"{\"question\": \"2+%d?\", \"answer\": \"it is it\"}\n", "lines",
         "as in training, the question and a line end; each message is asked alone", 1},
        {"{\"prompt\": \"2+%d?\", \"completion\": \"it is it\"}\n", "plain",
         "as in training, the text alone, without a chat template; each message is asked alone", 0},
        {"{\"instruction\": \"2+%d?\", \"output\": \"it\"}\n", "alpaca",
         "as in training, chat template alpaca; each message is asked alone",
         (int32_t)strlen("Below is an instruction that describes a task. Write a response that "
                         "appropriately completes the request.\n\n### Instruction:\n"
                         "\n\n### Response:\n")},
    };
    char out[600];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hy_text text = {0};
        double loss;
        hy_inference_facts facts;
        for (int k = 0; k < 40; k++) hy_text_addf(&text, cases[i].row, k % 10);
        must(hy_file_write_atomic(rows, text.data, text.size));
        hy_text_free(&text);
        snprintf(out, sizeof out, "%s/run%zu", folder, i);
        hy_trainer *t =
            small_trainer(ROWS_RUN, out, NULL, PAIRS("data", rows, "seq_len", "256", "steps", "1"));
        next_losses(t, 1, &loss);
        must(hy_trainer_save(t));
        hy_row_answer found;
        must(hy_trainer_answer(t, &(hy_sample_options){.prompt = "2+2?", .tokens = 3}, &found));
        ck_assert_int_eq((int32_t)strlen(found.question), 4 + cases[i].around);
        ck_assert_ptr_null(found.reference);
        hy_free(found.question);
        hy_free(found.answer);
        hy_trainer_destroy(t);
        hy_inference *in = open_run(out, NULL);
        hy_inference_describe(in, &facts);
        ck_assert_str_eq(facts.chat_template, cases[i].template);
        ck_assert_str_eq(facts.message_format, cases[i].format);
        /* the second question too: the rows were single questions */
        for (int k = 0; k < 2; k++) ck_assert_int_eq(prompt_of(in, "2+2?"), 4 + cases[i].around);
        hy_inference_close(in);
        in = open_run(out, "lines"); /* the user decides */
        ck_assert_int_eq(prompt_of(in, "2+2?"), 5);
        ck_assert_int_gt(prompt_of(in, "2+2?"), 10);
        hy_inference_close(in);
    }
}
END_TEST

/* ---- small data ------------------------------------------------------------------------------ */

#define DEFAULT_STEP                                                                               \
    "model tiny-gpt2 layers 1 width 32 heads 4 mlp_width 48 seq_len 64 sample_tokens 0 threads 2 " \
    "device cpu predictor none steps 0 "

/* The steps of a run on the rows, and the tokens of a step. */
static void check_steps(const char *const *pairs, const char *out, int64_t steps, int64_t tokens) {
    hy_summary summary;
    hy_trainer *t = small_trainer(DEFAULT_STEP, out, NULL, pairs);
    hy_trainer_summary(t, &summary);
    ck_assert_int_eq(summary.steps_total, steps);
    ck_assert_int_eq(summary.tokens_per_step, tokens);
    if (strcmp(out, "none") != 0) must(hy_trainer_save(t));
    hy_trainer_destroy(t);
}

START_TEST(few_rows_make_several_smaller_steps) {
    char out[600];
    snprintf(out, sizeof out, "%s/run", folder);
    hy_text text = {0};
    for (int i = 0; i < 36; i++)
        hy_text_addf(&text, "{\"question\": \"%02d+%02d?\", \"answer\": \"it is %02d\"}\n", i, i,
                     2 * i);
    must(hy_file_write_atomic(rows, text.data, text.size));
    hy_text_free(&text);
    /* 34 rows of 15 bytes are 9 sequences of 64, and the preset's step would take 8 */
    check_steps(PAIRS("data", rows), out, 9, 64);
    check_steps(PAIRS("data", rows, "epochs", "3"), "none", 27, 64);
    check_steps(PAIRS("data", rows, "resume", "auto"), out, 9, 64);
    check_steps(PAIRS("data", rows, "resume", "auto", "epochs", "2"), out, 18, 64);
    /* what the user sets stays */
    check_steps(PAIRS("data", rows, "batch_size", "4"), "none", 2, 512);
    check_steps(PAIRS("data", rows, "step_tokens", "128"), "none", 5, 128);
    check_steps(PAIRS("data", rows, "steps", "5"), "none", 5, 512);
}
END_TEST

START_TEST(another_way_of_reading_rows_cannot_be_resumed) {
    char out[600];
    double loss;
    snprintf(out, sizeof out, "%s/run", folder);
    hy_trainer *t = small_trainer(ROWS_RUN, out, NULL, PAIRS("data", rows, "packing", "on"));
    next_losses(t, 1, &loss);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    static const char *const others[][2] = {{"packing", "off"}, {"loss_on", "all"}};
    for (int i = 0; i < 2; i++) {
        hy_config *config = small_run(
            ROWS_RUN, out, PAIRS("data", rows, "resume", "auto", others[i][0], others[i][1]));
        must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT,
                  i ? "the number of target tokens was" : "the number of training sequences was");
        hy_config_destroy(config);
    }
}
END_TEST

static void rows_losses(const char *const *pairs, double losses[2]) {
    hy_trainer *t = small_trainer(ROWS_RUN, "none", NULL, pairs);
    next_losses(t, 2, losses);
    hy_trainer_destroy(t);
}

START_TEST(packing_is_left_on_unless_it_is_switched_off) {
    static const char *const positions[] = {"rope", "learned"};
    for (int i = 0; i < 2; i++) {
        double unsaid[2], on[2], off[2];
        rows_losses(PAIRS("data", rows, "positions", positions[i]), unsaid);
        rows_losses(PAIRS("data", rows, "positions", positions[i], "packing", "on"), on);
        rows_losses(PAIRS("data", rows, "positions", positions[i], "packing", "off"), off);
        ck_assert_mem_eq(unsaid, on, sizeof on);
        ck_assert_double_ne(unsaid[0], off[0]);
    }
}
END_TEST

START_TEST(what_is_read_ahead_is_part_of_the_memory_a_run_needs) {
    char limit[32];
    hy_plan_facts facts;
    hy_trainer *t = small_trainer(ROWS_RUN, "none", NULL, PAIRS("data", rows));
    hy_trainer_plan_facts(t, &facts);
    hy_trainer_destroy(t);
    snprintf(limit, sizeof limit, "%llu",
             (unsigned long long)(facts.vram_bytes + facts.host_pinned_bytes + (1 << 20)));
    t = small_trainer(ROWS_RUN, "none", NULL, PAIRS("data", rows, "cpu_mem", limit));
    hy_trainer_destroy(t);
    hy_config *config = small_run(ROWS_RUN, "none",
                                  PAIRS("data", rows, "cpu_mem", limit, "prefetch_factor", "4000"));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "cpu_mem");
    hy_config_destroy(config);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("trainer: rows");
    TCase *cases = tcase_create("rows");
    tcase_set_timeout(cases, 120);
    tcase_add_checked_fixture(cases, write_rows, drop_rows);
    tcase_add_test(cases, a_run_on_packed_rows_resumes_bit_for_bit);
    tcase_add_loop_test(cases, packing_leaves_the_held_out_loss_as_it_is, 0, 2);
    tcase_add_test(cases, places_and_recompute_change_no_bit_of_a_packed_run);
    tcase_add_test(cases, a_run_on_rows_learns_the_answers);
    tcase_add_test(cases, a_run_is_asked_in_the_format_of_its_rows);
    tcase_add_test(cases, few_rows_make_several_smaller_steps);
    tcase_add_test(cases, another_way_of_reading_rows_cannot_be_resumed);
    tcase_add_test(cases, packing_is_left_on_unless_it_is_switched_off);
    tcase_add_test(cases, what_is_read_ahead_is_part_of_the_memory_a_run_needs);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
