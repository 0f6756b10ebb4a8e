/* test_plan_value.c: a request gives a plan, and its decisions can be written, read and kept. */
#include "plan/plan_value.h"

#include "planner_rig.h"

/* 1.5B on a 16 GB card: something has to be small, and something streams. */
static const char *const words[][2] = {{"predictor", "outer"}, {"model", "qwen2.5-1.5b"},
                                       {"seq_len", "1024"},    {"step_tokens", "131072"},
                                       {"card", "rtx5080"},    {"cpu_mem", "16GiB"},
                                       {"small_types", "all"}};

typedef struct planned {
    hy_config *config;
    hy_plan_request request;
    hy_plan plan;
    hy_plan_facts facts;
} planned;

static void begin_with(planned *p, const char *const pairs[][2], size_t count) {
    hy_shape shape;
    *p = (planned){0};
    must(hy_config_create(&p->config));
    for (size_t i = 0; i < count; i++) {
        must(hy_config_set(p->config, pairs[i][0], pairs[i][1], HY_FROM_CALLER));
    }
    p->request.settings = hy_config_settings(p->config);
    p->request.is_plan = true;
    must(hy_shape_from_settings(p->request.settings, &shape));
    must(hy_model_create(&shape, &p->request.model));
    must(hy_card_backend_create("rtx5080", &p->request.backend));
    must(hy_plan_request_complete(&p->request));
    must(hy_plan_make(&p->request, &p->plan, &p->facts));
    ck_assert_msg(p->plan.fits, "%s", p->facts.problem);
}

static void begin(planned *p) { begin_with(p, words, sizeof words / sizeof words[0]); }

static void end(planned *p) {
    hy_model_destroy(p->request.model);
    p->request.backend->destroy(p->request.backend);
    hy_config_destroy(p->config);
}

static char *choices_of(const hy_plan *plan) {
    hy_text text = {0};
    hy_json_writer w;
    char *out;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_plan_write_choices(&plan->choice, &w);
    hy_json_close_object(&w);
    must(hy_text_take(&text, &out));
    return out;
}

/* As trainer.json has it. */
static hy_json *kept_of(const planned *p, int64_t first_batch) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json *json;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_plan_write_kept(&p->request, &p->plan, first_batch, &w);
    hy_json_close_object(&w);
    must(hy_json_parse(hy_text_string(&text), text.size, "a test", &json));
    hy_text_free(&text);
    return json;
}

static void must_be_level(const hy_precision_level *a, const hy_precision_level *b) {
    ck_assert_int_eq(a->master, b->master);
    ck_assert_int_eq(a->grads, b->grads);
    ck_assert_int_eq(a->optim, b->optim);
    ck_assert_int_eq(a->is_predictor_8bit, b->is_predictor_8bit);
    ck_assert_int_eq(a->predicts, b->predicts);
    ck_assert_int_eq(a->has_snapshot, b->has_snapshot);
}

START_TEST(what_is_written_is_read_as_it_was) {
    planned p;
    int64_t first_batch = 0;
    begin(&p);
    p.plan.choice.prediction_awaits_test = true;
    p.request.fixed.has_fp8 = true;
    p.request.fixed.fp8 = (hy_fp8_use){.weights = 5, .grads = 9};
    p.request.chunk_budget = 12345678901;
    p.plan.choice.mlp_chunks = 6;
    hy_json *json = kept_of(&p, 64);
    hy_plan_request read = {.settings = p.request.settings};
    must(hy_plan_read_kept(json, "a test", &read, &first_batch));
    hy_json_free(json);
    ck_assert(read.fixed.has_level && read.fixed.has_fp8);
    must_be_level(&read.fixed.level, &p.plan.level);
    ck_assert_int_ne(read.fixed.level.optim, HY_F32); /* else this would show nothing */
    ck_assert(read.fixed.prediction_awaits_test);
    ck_assert_uint_eq(read.fixed.fp8.weights, 5);
    ck_assert_uint_eq(read.fixed.fp8.grads, 9);
    ck_assert_uint_eq(read.chunk_budget, 12345678901);
    ck_assert_int_eq(read.fixed.split.batch, p.plan.choice.batch);
    ck_assert_int_eq(read.fixed.split.accum, p.plan.choice.accum);
    ck_assert_int_eq(read.fixed.split.loss_chunks, p.plan.choice.loss_chunks);
    ck_assert_int_eq(read.fixed.split.mlp_chunks, 6);
    ck_assert_int_eq(first_batch, 64);
    end(&p);
}
END_TEST

START_TEST(the_split_of_another_step_is_left_out) {
    planned p;
    int64_t first_batch = 0;
    begin(&p);
    p.plan.choice.accum++;
    hy_json *json = kept_of(&p, 1);
    hy_plan_request read = {.settings = p.request.settings};
    must(hy_plan_read_kept(json, "a test", &read, &first_batch));
    hy_json_free(json);
    ck_assert(read.fixed.has_level);
    ck_assert_int_eq(read.fixed.split.batch, 0);
    ck_assert_int_eq(first_batch, 0);
    end(&p);
}
END_TEST

START_TEST(a_checkpoint_without_decisions_kept_everything_in_fp32) {
    hy_plan_request read = {0};
    hy_precision_level finest = hy_precision_finest();
    int64_t first_batch = 0;
    hy_json *json;
    must(hy_json_parse("{}", 2, "a test", &json));
    must(hy_plan_read_kept(json, "a test", &read, &first_batch));
    hy_json_free(json);
    ck_assert(read.fixed.has_level && !read.fixed.has_fp8);
    must_be_level(&read.fixed.level, &finest);
    ck_assert_int_eq(read.fixed.split.batch, 0);
}
END_TEST

START_TEST(a_type_that_is_none_is_refused_by_its_name) {
    static const char text[] = "{\"kept\": {\"master\": \"fp33\"}}";
    hy_plan_request read = {0};
    int64_t first_batch = 0;
    hy_json *json;
    must(hy_json_parse(text, sizeof text - 1, "a test", &json));
    must_fail(hy_plan_read_kept(json, "a test", &read, &first_batch), HY_ERR_INPUT, "fp33");
    hy_json_free(json);
}
END_TEST

/* A run in progress: decisions that are fixed give the same plan again. */
START_TEST(fixed_decisions_give_the_same_plan) {
    planned p;
    hy_plan again;
    hy_plan_facts facts;
    begin(&p);
    hy_plan_request fixed = hy_plan_request_keeping(&p.request, &p.plan);
    const hy_plan_choice *c = &p.plan.choice;
    fixed.fixed.split = (hy_step_split){c->batch, c->accum, c->loss_chunks, c->mlp_chunks};
    must(hy_plan_make(&fixed, &again, &facts));
    char *a = choices_of(&p.plan), *b = choices_of(&again);
    ck_assert_str_eq(a, b);
    must_be_level(&again.level, &p.plan.level);
    ck_assert_int_eq(again.types.optim, p.plan.types.optim);
    ck_assert_uint_eq(again.device, p.plan.device);
    ck_assert_uint_eq(again.host, p.plan.host);
    free(a);
    free(b);
    end(&p);
}
END_TEST

/* The run was begun with whole mlps, on a larger card. */
START_TEST(mlps_of_a_resumed_run_become_chunks_only_where_nothing_fits_without) {
    static const char *const long_rows[][2] = {{"model", "llama-3.2-1b"}, {"seq_len", "131072"},
                                               {"batch_size", "1"},       {"predictor", "none"},
                                               {"cpu_mem", "20GiB"},      {"mlp_chunks", "0"}};
    planned p;
    hy_plan again;
    hy_plan_facts facts;
    begin_with(&p, long_rows, sizeof long_rows / sizeof long_rows[0]);
    hy_plan_request fixed = hy_plan_request_keeping(&p.request, &p.plan);
    hy_plan_choice c = p.plan.choice;
    ck_assert_int_gt(c.mlp_chunks, 1);
    fixed.fixed.split = (hy_step_split){c.batch, c.accum, c.loss_chunks, 1};
    must(hy_plan_make(&fixed, &again, &facts));
    ck_assert_msg(again.fits, "%s", facts.problem);
    ck_assert_int_eq(again.choice.mlp_chunks, c.mlp_chunks);
    fixed.fixed.split.mlp_chunks = 2 * c.mlp_chunks; /* fits, so the run keeps it */
    must(hy_plan_make(&fixed, &again, &facts));
    ck_assert_int_eq(again.choice.mlp_chunks, 2 * c.mlp_chunks);
    end(&p);
}
END_TEST

/* Types follow from the level that is fixed, whatever there is room for. */
START_TEST(a_fixed_level_is_kept_with_more_memory) {
    planned p;
    hy_plan again;
    hy_plan_facts facts;
    begin(&p);
    hy_plan_request fixed = hy_plan_request_keeping(&p.request, &p.plan);
    hy_settings roomy = *p.request.settings;
    roomy.memory.cpu_mem = (int64_t)(500 * GIB);
    fixed.settings = &roomy;
    must(hy_plan_make(&fixed, &again, &facts));
    must_be_level(&again.level, &p.plan.level);
    hy_plan_request open = p.request;
    open.settings = &roomy;
    must(hy_plan_make(&open, &again, &facts));
    ck_assert(again.level.has_snapshot && !p.plan.level.has_snapshot); /* which there is room for */
    end(&p);
}
END_TEST

static Suite *value_suite(void) {
    Suite *suite = suite_create("plan: its decisions as a value");
    TCase *c = tcase_create("value");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, what_is_written_is_read_as_it_was);
    tcase_add_test(c, the_split_of_another_step_is_left_out);
    tcase_add_test(c, a_checkpoint_without_decisions_kept_everything_in_fp32);
    tcase_add_test(c, a_type_that_is_none_is_refused_by_its_name);
    tcase_add_test(c, fixed_decisions_give_the_same_plan);
    tcase_add_test(c, mlps_of_a_resumed_run_become_chunks_only_where_nothing_fits_without);
    tcase_add_test(c, a_fixed_level_is_kept_with_more_memory);
    suite_add_tcase(suite, c);
    return suite;
}

HY_TEST_MAIN(value_suite)
