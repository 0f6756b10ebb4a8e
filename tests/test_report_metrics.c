/* test_report_metrics.c: the table of metrics: what its rows say is written, left out and read
 * back. */
#include <math.h>

#include "harness.h"
#include "hybrid_report.h"
#include "report/metrics.h"

#define ALL_HOLD (~0u)

static const char *keep_as_is(void *user, const char *text) {
    (void)user;
    return text;
}

/* A value of its own for a row, `i` of them in all. */
static void fill(const hy_field *field, void *from, int i) {
    static const char *const words[] = {"one", "two", "three"};
    static const double layers[] = {1.23456, -1, 0.5, -1, 1e-9};
    void *at = (char *)from + field->from;
    switch (field->kind) {
    case HY_FIELD_INTEGER: *(int64_t *)at = 1000 + i; break;
    case HY_FIELD_NUMBER:
    case HY_FIELD_SHARE: *(double *)at = 0.25 + i; break;
    case HY_FIELD_BOOL: *(bool *)at = true; break;
    case HY_FIELD_TEXT: *(const char **)at = words[i % 3]; break;
    case HY_FIELD_PHASE: *(hy_phase *)at = HY_CORRECT; break;
    case HY_FIELD_DTYPE: *(hy_dtype *)at = HY_BF16; break;
    case HY_FIELD_STATUS: *(hy_memory_status *)at = HY_MEMORY_CRITICAL; break;
    case HY_FIELD_CLASSES:
        for (int cls = 0; cls < HY_CLASS_COUNT; cls++) ((int64_t *)at)[cls] = 100 * i + cls;
        break;
    case HY_FIELD_LAYERS: *(hy_layer_values *)at = (hy_layer_values){3, 2, layers}; break;
    case HY_FIELD_LEVELS:
        for (int level = 0; level < 4; level++) ((double *)at)[level] = i + 0.125 * level;
        break;
    }
}

static size_t bytes_of(hy_field_kind kind) {
    switch (kind) {
    case HY_FIELD_BOOL: return sizeof(bool);
    case HY_FIELD_TEXT: return 0;   /* compared as strings, */
    case HY_FIELD_LAYERS: return 0; /* and as numbers of four digits */
    case HY_FIELD_PHASE:
    case HY_FIELD_DTYPE:
    case HY_FIELD_STATUS: return sizeof(int);
    case HY_FIELD_CLASSES: return HY_CLASS_COUNT * sizeof(int64_t);
    case HY_FIELD_LEVELS: return 4 * sizeof(double);
    default: return 8;
    }
}

static void write_all(const hy_field *table, size_t count, const void *from, unsigned holds,
                      hy_text *text) {
    hy_json_writer w;
    hy_json_begin(&w, text, false);
    hy_json_open_object(&w, NULL);
    hy_fields_put(table, count, from, holds, &w);
    hy_json_close_object(&w);
    must(hy_text_status(text));
}

static void compare_values(const hy_field *field, const hy_values *read) {
    ck_assert_msg(read->count == 3 && read->values[0] == 1.235 && read->values[1] == 0.5 &&
                      read->values[2] == 1e-9,
                  "%s", field->key);
}

/* Every row has a value; all must be there, in order, and come back where they are read. */
static void go_round(const hy_field *table, size_t count, void *from, void *into) {
    hy_text text = {0};
    hy_json *json;
    for (size_t i = 0; i < count; i++) fill(&table[i], from, (int)i + 1);
    write_all(table, count, from, ALL_HOLD, &text);
    must(hy_json_parse(text.data, text.size, "line", &json));
    const hy_json_node *member = hy_json_first(hy_json_root(json));
    for (size_t i = 0; i < count; i++, member = hy_json_next(member)) {
        ck_assert_ptr_nonnull(member);
        ck_assert_str_eq(hy_json_key(member), table[i].key);
    }
    ck_assert_ptr_null(member);
    hy_fields_clear(table, count, into);
    must(hy_fields_take(table, count, hy_json_root(json), into, keep_as_is, NULL));
    for (size_t i = 0; i < count; i++) {
        const char *a = (char *)from + table[i].from, *b = (char *)into + table[i].into;
        if (table[i].into == HY_NO_FIELD) continue;
        if (table[i].kind == HY_FIELD_TEXT) {
            ck_assert_str_eq(*(char *const *)a, *(char *const *)b);
        }
        if (table[i].kind == HY_FIELD_LAYERS) compare_values(&table[i], (const void *)b);
        ck_assert_msg(memcmp(a, b, bytes_of(table[i].kind)) == 0, "%s", table[i].key);
    }
    hy_json_free(json);
    hy_text_free(&text);
}

START_TEST(every_metric_is_written_in_order_and_read_back) {
    hy_step_line line = {0};
    static hy_point_line point;
    hy_start_line start = {0};
    hy_run_facts facts = {0};
    go_round(hy_step_fields, hy_step_field_count, &line, &point);
    go_round(hy_start_fields, hy_start_field_count, &start, &facts);
}
END_TEST

START_TEST(what_does_not_apply_is_left_out) {
    hy_step_line line = {.val_loss = NAN, .step = {.reason = "", .obstacle = "because"}};
    hy_text text = {0};
    line.step.residual_cosine = line.step.residual_length = NAN;
    line.step.train_pair_accuracy = NAN;
    line.step.train_reward_chosen = line.step.train_reward_rejected = NAN;
    for (size_t i = 0; i < HY_SCORE_FIELDS; i++)
        *(double *)(void *)((char *)&line + hy_score_fields[i].from) = NAN;
    double *rewards = (double *)(void *)&line.step.rewards;
    for (size_t i = 0; i < sizeof line.step.rewards / sizeof *rewards; i++) rewards[i] = NAN;
    line.step.gpu.power_watts = 9; /* of a card that says nothing */
    write_all(hy_step_fields, hy_step_field_count, &line, hy_step_conditions(&line.step), &text);
    ck_assert_str_eq(
        text.data,
        "{\"step\":0,\"phase\":\"warmup\",\"loss\":0,\"lr\":0,\"grad_norm\":0,\"tokens\":0,"
        "\"tokens_per_second\":0,\"seconds\":0,\"elapsed\":0,\"confidence\":0,\"precision\":"
        "\"fp32\",\"grad_accum\":0,\"vram_bytes\":0,\"vram_peak_bytes\":0,\"host_pinned_bytes\":0,"
        "\"memory\":{},\"pinned\":{},\"wait_seconds\":0,\"bytes_moved\":0,\"spent\":0}");
    hy_text_clear(&text);
    line.step.phase = HY_PREDICT;
    line.step.loss = NAN;
    line.step.gpu = (hy_gpu_state){.is_known = true, .power_watts = NAN, .temperature_c = 60};
    line.step.mfu = 0.5;
    write_all(hy_step_fields, hy_step_field_count, &line, hy_step_conditions(&line.step), &text);
    ck_assert_ptr_nonnull(strstr(text.data, "\"loss\":null,"));
    ck_assert_ptr_nonnull(
        strstr(text.data, "\"spent\":0,\"mfu\":0.5,\"gpu_temperature_c\":60,\"gpu_sm_clock_mhz\":0,"
                          "\"gpu_utilization\":0,\"predicted_steps\":0,\"rejected\":false}"));
    hy_text_free(&text);
}
END_TEST

/* An array of so many numbers in a line, or of other things. */
static int32_t read_array(const char *array, double *first) {
    hy_text text = {0};
    hy_json *json;
    static hy_point_line line;
    hy_text_addf(&text, "{\"rank_seconds\":%s}", array);
    must(hy_json_parse(text.data, text.size, "line", &json));
    line.of_ranks[HY_RANK_SECONDS].count = 7; /* of the line before */
    hy_fields_clear(hy_step_fields, hy_step_field_count, &line);
    must(hy_fields_take(hy_step_fields, hy_step_field_count, hy_json_root(json), &line, keep_as_is,
                        NULL));
    *first = line.of_ranks[HY_RANK_SECONDS].values[0];
    hy_json_free(json);
    hy_text_free(&text);
    return line.of_ranks[HY_RANK_SECONDS].count;
}

START_TEST(arrays_are_read_as_far_as_there_is_room) {
    double first;
    ck_assert_int_eq(read_array("[0.25,3]", &first), 2);
    ck_assert(first == 0.25);
    ck_assert_int_eq(read_array("[null,\"1\",[2]]", &first), 3);
    ck_assert(isnan(first));
    static const char *const none[] = {"[]", "5", "null", "{\"a\":1}", "\"[1]\""};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        ck_assert_int_eq(read_array(none[i], &first), 0);
    char many[4 * HY_VALUES_MOST + 8] = "[";
    for (int i = 0; i < HY_VALUES_MOST; i++) strcat(many, i > 0 ? ",1" : "1");
    strcat(many, "]");
    ck_assert_int_eq(read_array(many, &first), HY_VALUES_MOST);
    many[strlen(many) - 1] = ',';
    strcat(many, "1]");
    ck_assert_int_eq(read_array(many, &first), 0);
}
END_TEST

static bool clash(const char *a, const char *b) { return a && b && strcmp(a, b) == 0; }

START_TEST(no_two_metrics_share_a_key_or_a_tag) {
    for (size_t i = 0; i < hy_step_field_count; i++) {
        const hy_field *a = &hy_step_fields[i];
        ck_assert_ptr_eq(hy_step_field(a->key), a); /* the first of that key */
        for (const hy_field *b = hy_step_fields; b < a; b++) {
            ck_assert_msg(!clash(a->tag, b->tag), "%s", a->key);
            ck_assert_msg(!clash(a->jump_tag, b->jump_tag), "%s", a->key);
        }
    }
    ck_assert_ptr_null(hy_step_field("nothing"));
}
END_TEST

static Suite *metrics_suite(void) {
    Suite *suite = suite_create("report_metrics");
    TCase *table = tcase_create("table");
    tcase_add_test(table, every_metric_is_written_in_order_and_read_back);
    tcase_add_test(table, what_does_not_apply_is_left_out);
    tcase_add_test(table, arrays_are_read_as_far_as_there_is_room);
    tcase_add_test(table, no_two_metrics_share_a_key_or_a_tag);
    suite_add_tcase(suite, table);
    return suite;
}

HY_TEST_MAIN(metrics_suite)
