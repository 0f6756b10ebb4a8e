/* test_report_page.c: the report page: its numbers are those of the run, spikes stay visible, text
 * from files never becomes markup, nothing is fetched from a network, it stays small, and it is
 * never written incompletely. */
#include <errno.h>

#include "base/json.h"
#include "report/html.h"
#include "report/sample.h"
#include "report_rig.h"

#define PAGE_MAX (3u << 20)

/* ---- rig ------------------------------------------------------------------------------------- */

/* The page about some runs, as text; freed by the caller. */
static char *page_of(const hy_run *const *runs, int count, const run_rig *rig, size_t *size) {
    char path[700], *text;
    snprintf(path, sizeof path, "%s/report.html", rig->folder);
    must(hy_report_write(runs, count, path));
    must(hy_file_read(path, &text, size));
    return text;
}

static size_t count_of(const char *text, const char *word) {
    size_t count = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) count++;
    return count;
}

/* The data that the script draws. */
static hy_json *data_of(const char *page) {
    static const char mark[] = "<script type=\"application/json\" id=\"data\">";
    const char *begin = strstr(page, mark);
    ck_assert_ptr_nonnull(begin);
    begin += strlen(mark);
    const char *end = strstr(begin, "</script>");
    ck_assert_ptr_nonnull(end);
    hy_json *json;
    must(hy_json_parse(begin, (size_t)(end - begin), "data", &json));
    return json;
}

static const char *text_of(const hy_json_node *object, const char *key) {
    const char *text = NULL;
    ck_assert(hy_json_as_string(hy_json_get(object, key), &text, NULL));
    return text;
}

static const hy_json_node *named(const hy_json_node *list, const char *key, const char *name) {
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        if (strcmp(text_of(n, key), name) == 0) return n;
    }
    return NULL;
}

static const hy_json_node *curve_of(const hy_json *json, const char *chart, const char *curve) {
    const hy_json_node *found = named(hy_json_get(hy_json_root(json), "charts"), "id", chart);
    return found ? named(hy_json_get(found, "curves"), "name", curve) : NULL;
}

/* "1,,4" with nothing standing for what was before; returns how many. */
static size_t unpack(const char *text, double *out, size_t room) {
    size_t count = 0;
    double before = NAN;
    if (!*text) return 0;
    for (;;) {
        if (*text && *text != ',') before = strtod(text, (char **)&text);
        ck_assert_uint_lt(count, room);
        out[count++] = before;
        if (!*text) return count;
        ck_assert_int_eq(*text++, ',');
    }
}

/* Rows and values of a curve; returns how many. */
static size_t unpack_curve(const hy_json_node *curve, double *rows, double *values, size_t room) {
    size_t count = unpack(text_of(curve, "rows"), rows, room);
    ck_assert_uint_eq(unpack(text_of(curve, "values"), values, room), count);
    for (size_t i = 1; i < count; i++) rows[i] += rows[i - 1];
    return count;
}

static bool is_near(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

/* ---- numbers --------------------------------------------------------------------------------- */

START_TEST(the_numbers_in_the_page_are_the_runs) {
    run_rig rig;
    size_t size;
    rig_make(&rig);
    rig_long_run(&rig, 50, 20);
    hy_run *run = rig_open(&rig);
    char *page = page_of((const hy_run *const[]){run}, 1, &rig, &size);
    hy_json *json = data_of(page);
    static const struct {
        const char *chart, *curve;
        size_t offset;
        bool is_int;
    } curves[] = {{"loss", "training", offsetof(hy_run_point, loss), false},
                  {"lr", "learning rate", offsetof(hy_run_point, lr), false},
                  {"speed", "speed", offsetof(hy_run_point, tokens_per_second), false},
                  {"memory", "activations", offsetof(hy_run_point, device[HY_ACTIVATIONS]), true},
                  {"memory", "peak within the step", offsetof(hy_run_point, vram_peak_bytes), true},
                  {"memory", "plan of the phase", offsetof(hy_run_point, vram_planned_bytes), true},
                  {"host", "master", offsetof(hy_run_point, pinned[HY_MASTER]), true},
                  {"moved", "copied", offsetof(hy_run_point, bytes_moved), true}};
    for (size_t c = 0; c < sizeof curves / sizeof curves[0]; c++) {
        double rows[64], values[64];
        const hy_json_node *curve = curve_of(json, curves[c].chart, curves[c].curve);
        ck_assert_msg(curve != NULL, "%s: %s", curves[c].chart, curves[c].curve);
        ck_assert_uint_eq(unpack_curve(curve, rows, values, 64), 50);
        for (size_t i = 0; i < 50; i++) {
            const char *at = (const char *)hy_run_point_at(run, i) + curves[c].offset;
            double expected = curves[c].is_int ? (double)*(const int64_t *)at : *(const double *)at;
            ck_assert(rows[i] == (double)i);
            ck_assert_msg(curves[c].is_int ? values[i] == expected : is_near(values[i], expected),
                          "%s %s row %zu: %.17g instead of %.17g", curves[c].chart, curves[c].curve,
                          i, values[i], expected);
        }
    }
    hy_json_free(json);
    free(page);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

/* Where nobody tells tokens, a run of the caller's own is counted in steps: here two micro-batches
 * in one of 0.5 s. */
START_TEST(a_custom_run_is_counted_in_steps) {
    run_rig rig;
    size_t size;
    int tokens = _i ? 1000 : 1; /* told for a micro-batch */
    double rows[64], values[64];
    rig_make(&rig);
    rig_begin(&rig, "{\"event\":\"start\",\"step\":0,\"model\":\"own\",\"parameters\":99}\n");
    for (int i = 1; i <= 20; i++) {
        char line[300];
        snprintf(line, sizeof line,
                 "{\"step\":%d,\"phase\":\"full\",\"loss\":2,\"tokens\":%d,\"grad_accum\":2,"
                 "\"tokens_per_second\":%d,\"seconds\":0.5,\"elapsed\":%g,\"spent\":%d}\n",
                 i, 2 * tokens * i, 4 * tokens, 0.5 * i, i);
        rig_add(&rig, line);
    }
    hy_run *run = rig_open(&rig);
    ck_assert(hy_run_describe(run)->is_custom);
    ck_assert_int_eq(hy_run_describe(run)->has_tokens, _i);
    char *page = page_of((const hy_run *const[]){run}, 1, &rig, &size);
    hy_json *json = data_of(page);
    const hy_json_node *curve = curve_of(json, _i ? "speed" : "steps", "speed");
    ck_assert_ptr_nonnull(curve);
    ck_assert_uint_eq(unpack_curve(curve, rows, values, 64), 20);
    for (int i = 0; i < 20; i++) ck_assert_double_eq(values[i], _i ? 4000 : 2);
    ck_assert_ptr_null(curve_of(json, _i ? "steps" : "speed", "speed"));
    ck_assert(strstr(page, "<dt>Steps per second</dt><dd>2"));
    ck_assert(strstr(page, "<th scope=\"col\">steps/s"));
    ck_assert_int_eq(strstr(page, "<dt>Tokens per second</dt>") != NULL, _i);
    hy_json_free(json);
    free(page);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(axes_show_the_position_of_every_row) {
    run_rig rig;
    size_t size;
    rig_make(&rig);
    rig_begin(&rig, "{\"step\":1,\"phase\":\"warmup\",\"tokens\":64,\"elapsed\":0.5}\n"
                    "{\"step\":2,\"phase\":\"full\",\"tokens\":128,\"elapsed\":1.25}\n"
                    "{\"step\":2,\"phase\":\"predict\",\"tokens\":128,\"elapsed\":1.5}\n"
                    "{\"step\":3,\"phase\":\"correct\",\"tokens\":192,\"elapsed\":2.5}\n"
                    "{\"step\":4,\"phase\":\"correct\",\"tokens\":256,\"elapsed\":3.5}\n");
    hy_run *run = rig_open(&rig);
    char *page = page_of((const hy_run *const[]){run}, 1, &rig, &size);
    hy_json *json = data_of(page);
    const hy_json_node *first = hy_json_first(hy_json_get(hy_json_root(json), "runs"));
    ck_assert_str_eq(text_of(hy_json_get(first, "steps"), "stretches"), "2:1,0,2:1");
    ck_assert_str_eq(text_of(hy_json_get(first, "tokens"), "stretches"), "2:64,0,2:64");
    ck_assert_str_eq(text_of(hy_json_get(first, "time"), "knots"), "0.5,1.25,1.5,2.5,3.5,3.5");
    ck_assert_str_eq(text_of(first, "phases"), "0,1,2,2:3");
    hy_json_free(json);
    free(page);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(a_hundred_thousand_steps_stay_small_and_keep_their_spike) {
    run_rig rig;
    size_t size;
    static double rows[8192], values[8192];
    rig_make(&rig);
    rig_long_run(&rig, 100000, 54321);
    hy_run *run = rig_open(&rig);
    char *page = page_of((const hy_run *const[]){run}, 1, &rig, &size);
    ck_assert_uint_lt(size, PAGE_MAX);
    hy_json *json = data_of(page);
    size_t count = unpack_curve(curve_of(json, "loss", "training"), rows, values, 8192);
    bool has_spike = false;
    for (size_t i = 0; i < count; i++) has_spike |= rows[i] == 54320 && values[i] == 77.25;
    ck_assert(has_spike);
    ck_assert(rows[0] == 0 && rows[count - 1] == 99999);
    ck_assert(is_near(values[count - 1], hy_run_point_at(run, 99999)->loss));
    ck_assert_uint_gt(count, 2000);
    ck_assert_uint_le(count, 3000);
    hy_json_free(json);
    free(page);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(a_run_without_a_line_has_a_page_too) {
    run_rig rig;
    size_t size;
    rig_make(&rig);
    rig_begin(&rig, "");
    hy_run *run = rig_open(&rig);
    char *page = page_of((const hy_run *const[]){run}, 1, &rig, &size);
    hy_json *json = data_of(page);
    ck_assert_uint_eq(hy_json_size(hy_json_get(hy_json_root(json), "charts")), 0);
    ck_assert_ptr_nonnull(strstr(page, "in progress"));
    hy_json_free(json);
    free(page);
    hy_run_close(run);
    must_fail(hy_report_write(NULL, 0, rig.lines), HY_ERR_INPUT, "at least one run");
    rig_remove(&rig);
}
END_TEST

/* ---- tables ---------------------------------------------------------------------------------- */

START_TEST(the_final_tables_are_those_of_the_summary) {
    run_rig rig;
    size_t size;
    rig_make(&rig);
    rig_begin(&rig, "");
    rig_step(&rig, 1, "full", 3);
    rig_step(&rig, 2, "full", 2);
    rig_file(
        &rig, "summary.json",
        "{\"finished\":true,\"model\":\"m\",\"steps\":2,\"steps_total\":2,\"spent\":2.5,"
        "\"seconds\":7384,\"tokens\":1234567,\"final_loss\":2.03125,\"val_loss\":2.0625,"
        "\"predictor\":\"outer\",\"moves\":11,\"rejected_moves\":4,\"predicted_steps\":4321,"
        "\"forks\":2,\"fork_gain\":0.0125,\"confidence\":0.8125,\"phases\":{\"full\":{\"steps\":2,"
        "\"seconds\":61,\"vram_planned_bytes\":3221225472,\"vram_peak_bytes\":3758096384,"
        "\"wait_seconds\":0.25,\"classes\":{\"optim\":{\"place\":\"pinned\",\"dtype\":\"bf16\","
        "\"planned_bytes\":1610612736,\"measured_bytes\":1879048192}}}},\"savings\":[{\"name\":"
        "\"small m and v\",\"value\":\"u8\","
        "\"on\":true,\"measured\":true,\"device_bytes\":1181116006,\"host_bytes\":-2469606195},"
        "{\"name\":\"never shown\",\"on\":false,\"device_bytes\":5},7]}");
    rig_file(&rig, "config.cfg", "train: { batch_size = 8; };\n");
    hy_run *run = rig_open(&rig);
    char *page = page_of((const hy_run *const[]){run}, 1, &rig, &size);
    static const char *const expected[] = {">finished<", "2.0625",  "2.0312",   "2 h 03 m",
                                           "4,321",      "3.0 GiB", "3.5 GiB",  "0.2 s",
                                           "1.5 GiB",    "1.8 GiB", "0.0125",   "0.81",
                                           "outer",      "<td>4\n", "<td>11\n", "batch_size = 8"};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        ck_assert_msg(strstr(page, expected[i]) != NULL, "the page lacks %s", expected[i]);
    }
    ck_assert_ptr_nonnull(strstr(page, "small m and v<td class=\"text\">u8<td>1.1 GiB<td>2.3 GiB"
                                       "<td>measured\n"));
    ck_assert_ptr_null(strstr(page, "never shown"));
    ck_assert_ptr_nonnull(strstr(page, "<td class=\"text\">pinned<td class=\"text\">bf16"));
    free(page);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(ranks_have_a_row_each_and_who_was_the_slowest) {
    run_rig rig;
    size_t size;
    rig_make(&rig);
    rig_begin(&rig, "{\"event\":\"start\",\"step\":0,\"ranks\":2,\"zero_stage\":2,"
                    "\"transport\":\"<sockets>\"}\n");
    rig_step(&rig, 1, "full", 3);
    hy_run *run = rig_open(&rig);
    char *page = page_of((const hy_run *const[]){run}, 1, &rig, &size);
    ck_assert_ptr_null(strstr(page, "Ranks"));
    free(page);
    for (int step = 2; step < 5; step++)
        rig_add(&rig,
                "{\"step\":2,\"phase\":\"full\",\"loss\":2,\"rank_seconds\":[0.212,0.213],"
                "\"rank_waited\":[0.125,0.0625],\"rank_exchanged\":[0.15,null],"
                "\"rank_bytes\":[3145728,2097152],\"rank_memory\":[1610612736,1073741824]}\n");
    ck_assert(rig_refresh(run));
    page = page_of((const hy_run *const[]){run}, 1, &rig, &size);
    ck_assert_ptr_nonnull(strstr(page, "<span>2 ranks</span>"));
    ck_assert_ptr_nonnull(strstr(page, "<th scope=\"row\">0<td>0.212 s<td>0.125 s<td>0.15 s<td>3.0 "
                                       "MiB<td>1.5 GiB<td>0\n"));
    ck_assert_ptr_nonnull(
        strstr(page, "<th scope=\"row\">1<td>0.213 s<td>0.0625 s<td>\xE2\x80\x93<td>2.0 "
                     "MiB<td>1.0 GiB<td>3\n"));
    ck_assert_ptr_nonnull(strstr(page, "ZeRO stage 2, over &lt;sockets&gt;. "));
    ck_assert_ptr_nonnull(strstr(page, "Steps counted: 3.<"));
    free(page);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(a_run_in_progress_shows_its_plan) {
    run_rig rig;
    size_t size;
    rig_make(&rig);
    rig_begin(&rig, "");
    rig_step(&rig, 1, "full", 3);
    rig_file(
        &rig, "plan.json",
        "{\"phases\":{\"full\":{\"vram_bytes\":9,\"classes\":{\"logits\":{\"place\":\"device\","
        "\"dtype\":\"fp32\",\"bytes\":2147483648}}}}}");
    hy_run *run = rig_open(&rig);
    char *page = page_of((const hy_run *const[]){run}, 1, &rig, &size);
    ck_assert_ptr_nonnull(strstr(page, "Memory, planned<"));
    ck_assert_ptr_nonnull(strstr(page, "2.0 GiB"));
    ck_assert_ptr_nonnull(strstr(page, "in progress"));
    free(page);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(several_runs_are_compared_and_laid_over_each_other) {
    run_rig a, b;
    size_t size;
    rig_make_named(&a, "first");
    rig_make_named(&b, "second");
    rig_long_run(&a, 120, 0);
    rig_long_run(&b, 80, 0);
    hy_run *runs[] = {rig_open(&a), rig_open(&b)};
    char *page = page_of((const hy_run *const *)runs, 2, &a, &size);
    ck_assert_ptr_nonnull(strstr(page, "Side by side"));
    ck_assert_ptr_nonnull(strstr(page, "<th scope=\"row\">steps<td>120<td>80"));
    hy_json *json = data_of(page);
    int64_t of_run[2] = {0, 0}, r;
    const hy_json_node *loss = named(hy_json_get(hy_json_root(json), "charts"), "id", "loss");
    const hy_json_node *curves = hy_json_get(loss, "curves");
    for (const hy_json_node *n = hy_json_first(curves); n; n = hy_json_next(n)) {
        ck_assert(hy_json_as_int(hy_json_get(n, "run"), &r) && r >= 0 && r < 2);
        of_run[r] += strcmp(text_of(n, "name"), "training") == 0;
    }
    ck_assert(of_run[0] == 1 && of_run[1] == 1);
    /* Stacks of several runs would hide each other: totals are drawn instead. */
    ck_assert_ptr_null(curve_of(json, "memory", "activations"));
    ck_assert_ptr_nonnull(curve_of(json, "memory", "in use at the end of the step"));
    hy_json_free(json);
    free(page);
    hy_run_close(runs[0]);
    hy_run_close(runs[1]);
    rig_remove(&a);
    rig_remove(&b);
}
END_TEST

START_TEST(names_notes_samples_and_differing_settings_are_shown) {
    run_rig a, b;
    size_t size;
    rig_make_named(&a, "first");
    rig_make_named(&b, "second");
    rig_long_run(&a, 20, 5);
    rig_long_run(&b, 20, 5);
    rig_file(&a, "config.cfg",
             "name = \"slow \\\"one\\\"\";  # flag --name\nnotes = \"why\\x0anot\";  # flag\n"
             "out = \"x\";\nseed = 1;  # default\n\ntrain: {\n  steps = 20;  # flag\n"
             "  grad_clip = 1;\n};\n");
    rig_file(&b, "config.cfg",
             "name = \"\";  # default\nout = \"y\";\nseed = 1;  # default\n\ntrain: {\n"
             "  steps = 40;  # flag\n};\noptimizer: {\n  steps = 20;\n};\n");
    rig_file(&a, "sample.json", "{\"prompt\": \"Once \", \"text\": \"upon <a> time\"}\n");
    hy_run *runs[] = {rig_open(&a), rig_open(&b)};
    char *page = page_of((const hy_run *const *)runs, 2, &a, &size);
    ck_assert_str_eq(hy_run_describe(runs[0])->name, "slow \"one\"");
    ck_assert_str_eq(hy_run_describe(runs[1])->name, "second");
    ck_assert_ptr_nonnull(strstr(page, "<th scope=\"row\">train.steps<td>20<td>40\n"));
    ck_assert_ptr_nonnull(strstr(page, "<th scope=\"row\">train.grad_clip<td>1<td>"));
    ck_assert_ptr_nonnull(strstr(page, "<th scope=\"row\">optimizer.steps<td>\xE2\x80\x93<td>20"));
    ck_assert_ptr_null(strstr(page, "<th scope=\"row\">seed"));
    ck_assert_ptr_null(strstr(page, "<th scope=\"row\">out"));
    ck_assert_ptr_nonnull(strstr(page, "<p>why\nnot</p>"));
    ck_assert_ptr_nonnull(strstr(page, "<pre>Once upon &lt;a&gt; time</pre>"));
    free(page);
    hy_run_close(runs[0]);
    hy_run_close(runs[1]);
    rig_remove(&a);
    rig_remove(&b);
}
END_TEST

/* ---- safety ---------------------------------------------------------------------------------- */

#define HOSTILE "</script><script>alert(1)</script><img src=x onerror=alert(2)>\\\"'&<!--"
#define HOSTILE_JSON "</script><script>alert(1)</script><img src=x onerror=alert(2)>\\\\\\\"'&<!--"

START_TEST(measured_exports_are_a_table) {
    run_rig a;
    size_t size;
    rig_make(&a);
    rig_long_run(&a, 20, 5);
    rig_file(&a, "exports.json",
             "[\n{\"file\":\"<x>.gguf\",\"type\":\"q4_0\",\"data\":\"own.txt\",\"tokens\":33461,"
             "\"results\":[{\"rounding\":\"before\",\"loss\":1.5,\"increase\":0},"
             "{\"rounding\":\"nearest\",\"bytes\":2097152,\"loss\":1.5032,\"increase\":0.0032,"
             "\"written\":true}]},\n{\"results\":3},\n7\n]\n");
    hy_run *run = rig_open(&a);
    char *page = page_of((const hy_run *const *)&run, 1, &a, &size);
    ck_assert_ptr_nonnull(strstr(page, "<th scope=\"row\">&lt;x&gt;.gguf<td class=\"text\">q4_0"));
    ck_assert_ptr_nonnull(strstr(page, "33,461 tokens of own.txt<td class=\"text\">before"));
    ck_assert_ptr_nonnull(strstr(page, "nearest<td class=\"text\">written<td>2.0 MiB<td>1.5032"
                                       "<td>+0.0032\n"));
    free(page);
    rig_file(&a, "exports.json", "[{");
    bool has_changed;
    must(hy_run_refresh(run, &has_changed));
    page = page_of((const hy_run *const *)&run, 1, &a, &size);
    ck_assert_ptr_null(strstr(page, "Exports, measured"));
    free(page);
    hy_run_close(run);
    rig_remove(&a);
}
END_TEST

START_TEST(nothing_from_a_file_becomes_markup) {
    run_rig rig;
    size_t size;
    rig_make_named(&rig, "<img src=x onerror=alert(3)>\"'&<script>");
    rig_begin(&rig, "{\"event\":\"start\",\"step\":0,\"version\":\"" HOSTILE_JSON
                    "\",\"command\":\"" HOSTILE_JSON "\",\"model\":\"" HOSTILE_JSON
                    "\",\"device\":\"" HOSTILE_JSON "\",\"data\":\"" HOSTILE_JSON
                    "\",\"predictor\":\"" HOSTILE_JSON "\"}\n");
    rig_step(&rig, 1, "full", 3);
    rig_add(&rig, "{\"event\":\"" HOSTILE_JSON "\",\"step\":1,\"text\":\"" HOSTILE_JSON "\"}\n"
                  "{\"event\":\"batch\",\"step\":1,\"reason\":\"" HOSTILE_JSON "\"}\n");
    rig_step(&rig, 2, "full", 3);
    rig_file(&rig, "config.cfg", HOSTILE "\n\xFF\x01\n");
    rig_file(&rig, "summary.json",
             "{\"steps\":2,\"spent\":2,\"phases\":{\"full\":{\"steps\":2,\"classes\":{\"optim\":{"
             "\"place\":\"" HOSTILE_JSON "\",\"dtype\":\"" HOSTILE_JSON
             "\",\"planned_bytes\":5,\"measured_bytes\":6}}}}}");
    hy_run *run = rig_open(&rig);
    const hy_run *const both[] = {run, run};
    for (int count = 1; count <= 2; count++) {
        char *page = page_of(both, count, &rig, &size);
        ck_assert_uint_eq(strlen(page), size);
        ck_assert_uint_eq(count_of(page, "<script"), 2);
        ck_assert_uint_eq(count_of(page, "</script"), 2);
        ck_assert_uint_eq(count_of(page, "<img"), 0);
        ck_assert_uint_eq(count_of(page, "<!--"), 0);
        ck_assert_uint_eq(count_of(page, "\xFF"), 0);
        ck_assert_uint_eq(count_of(page, "\x01"), 0);
        ck_assert_uint_ge(count_of(page, "&lt;img src=x onerror=alert(2)&gt;\\&quot;&#39;&amp;"),
                          5);
        hy_json *json = data_of(page);
        const hy_json_node *events = hy_json_get(hy_json_root(json), "events");
        ck_assert_str_eq(text_of(hy_json_first(events), "text"), HOSTILE);
        hy_json_free(json);
        free(page);
    }
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(the_page_can_fetch_nothing) {
    run_rig rig;
    size_t size;
    rig_make(&rig);
    rig_long_run(&rig, 70, 0);
    hy_run *run = rig_open(&rig);
    char *page = page_of((const hy_run *const[]){run}, 1, &rig, &size);
    ck_assert_ptr_nonnull(strstr(page, "http-equiv=\"Content-Security-Policy\" "
                                       "content=\"default-src 'none'; script-src 'sha256-"));
    ck_assert_ptr_null(strstr(page, "unsafe-inline"));
    ck_assert_ptr_null(strstr(page, " src="));
    ck_assert_ptr_null(strstr(page, "https:"));
    ck_assert_ptr_null(strstr(page, "@import"));
    ck_assert_uint_eq(count_of(page, "http://"), 1); /* the name of SVG, which is no address */
    ck_assert_ptr_nonnull(strstr(page, "'http://www.w3.org/2000/svg'"));
    ck_assert_uint_eq(count_of(page, "href="), 1);
    ck_assert_ptr_nonnull(strstr(page, "href=\"data:,\""));
    free(page);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(the_page_is_written_whole_or_not_at_all) {
    run_rig rig;
    char path[700];
    rig_make(&rig);
    rig_long_run(&rig, 70, 0);
    hy_run *run = rig_open(&rig);
    snprintf(path, sizeof path, "%s/report.html", rig.folder);
    rig_put(path, "w", "the old page");
    for (long at = 0;; at++) {
        char *text;
        size_t size;
        hy_fault_arm(at, ENOSPC, true);
        hy_status status = hy_report_write((const hy_run *const[]){run}, 1, path);
        long calls = hy_fault_disarm();
        must(hy_file_read(path, &text, &size));
        bool is_old = strcmp(text, "the old page") == 0;
        bool is_whole = size > 16 && strcmp(text + size - 8, "</html>\n") == 0;
        ck_assert_msg(is_old || is_whole, "half a page after a failure at call %ld", at);
        ck_assert(status != HY_OK || is_whole);
        free(text);
        if (at >= calls) break;
        ck_assert_int_ne(status, HY_OK);
    }
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

/* ---- parts ----------------------------------------------------------------------------------- */

START_TEST(thinning_keeps_ends_and_extremes) {
    enum { ROWS = 5000 };
    static double column[ROWS];
    static size_t kept[ROWS];
    for (int i = 0; i < ROWS; i++) column[i] = i % 7 == 3 ? NAN : sin(i * 0.01);
    column[1234] = 50;
    column[4321] = -60;
    column[0] = NAN;
    for (size_t limit = 4; limit <= 6000; limit += 499) {
        size_t count = hy_column_thin(column, ROWS, limit, kept);
        bool has_high = false, has_low = false;
        ck_assert_uint_le(count, limit);
        ck_assert(kept[0] == 1 && kept[count - 1] == ROWS - 1);
        for (size_t k = 0; k < count; k++) {
            ck_assert(isfinite(column[kept[k]]));
            ck_assert(k == 0 || kept[k] > kept[k - 1]);
            has_high |= kept[k] == 1234;
            has_low |= kept[k] == 4321;
        }
        ck_assert(has_high && has_low);
    }
    ck_assert_uint_eq(hy_column_thin(column, 0, 100, kept), 0);
    ck_assert_uint_eq(hy_column_thin(column, 1, 100, kept), 0); /* its value is none */
    ck_assert_uint_eq(hy_column_thin(column, 2, 100, kept), 1);
}
END_TEST

START_TEST(means_are_of_both_sides) {
    enum { ROWS = 100 };
    double column[ROWS], mean[ROWS];
    for (int i = 0; i < ROWS; i++) column[i] = i == 50 ? NAN : 2.0 * i;
    hy_column_smooth(column, ROWS, 10, ROWS, mean);
    for (int i = 0; i < ROWS - 5; i++) { /* a straight line stays one */
        bool sees_hole = i >= 40 && i <= 60;
        ck_assert(sees_hole || fabs(mean[i] - 2.0 * i) <= 1 + 1e-9);
    }
    ck_assert(fabs(mean[50] - 100) < 1e-9 && mean[0] == 0);
    hy_column_smooth(column, ROWS, 10, 10, mean);
    ck_assert(isnan(mean[1]) && mean[10] == 19);
}
END_TEST

START_TEST(the_last_mean_is_of_as_many_values_as_the_others) {
    enum { ROWS = 100, WINDOW = 10 };
    double column[ROWS], mean[ROWS], last = 0;
    int count = 0;
    for (int i = 0; i < ROWS; i++) column[i] = i % 7 == 0 ? NAN : i % 2 ? 3 : 1; /* noise */
    for (int i = ROWS - 1; count < WINDOW; i--) {
        if (isnan(column[i])) continue;
        last += column[i] / WINDOW;
        count++;
    }
    hy_column_smooth(column, ROWS, WINDOW, ROWS, mean);
    ck_assert(fabs(mean[ROWS - 1] - last) < 1e-12);
}
END_TEST

START_TEST(numbers_are_short_and_read_back) {
    static const struct {
        double value;
        const char *text;
    } numbers[] = {{2.0247937822, "2.024794"},
                   {17179869184.0, "17179869184"},
                   {-3, "-3"},
                   {0, "0"},
                   {0.000299997, "0.000299997"},
                   {1.5e-300, "1.5e-300"},
                   {NAN, "null"},
                   {INFINITY, "null"},
                   {0.1, "0.1"}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        hy_text text = {0};
        hy_put_number(&text, numbers[i].value);
        ck_assert_str_eq(hy_text_string(&text), numbers[i].text);
        hy_text_free(&text);
    }
    hy_text text = {0};
    hy_put_rows(&text, (const size_t[]){3, 4, 5, 6, 9}, 5);
    hy_text_add(&text, ";");
    hy_put_values(&text, (const double[]){7, 7, 7.5, 7}, (const size_t[]){0, 1, 2, 3}, 4);
    ck_assert_str_eq(hy_text_string(&text), "3,1,,,3;7,,7.5,7");
    hy_text_free(&text);
}
END_TEST

START_TEST(figures_read_as_people_write_them) {
    static const struct {
        hy_figure figure;
        double value;
        const char *text;
    } figures[] = {
        {HY_FIGURE_COUNT, 1234567, "1,234,567"}, {HY_FIGURE_COUNT, -1234, "-1,234"},
        {HY_FIGURE_COUNT, 999, "999"},           {HY_FIGURE_SHORT, 7620000000.0, "7.62B"},
        {HY_FIGURE_SHORT, 999.6, "1.00k"},       {HY_FIGURE_SHORT, 53412, "53.4k"},
        {HY_FIGURE_TIME, 0.25, "0.2 s"},         {HY_FIGURE_TIME, 0.0123, "0.012 s"},
        {HY_FIGURE_TIME, 1e-5, "0 s"},           {HY_FIGURE_TIME, 7384, "2 h 03 m"},
        {HY_FIGURE_LOSS, 2.03125, "2.0312"},     {HY_FIGURE_PERCENT, 4.06, "4.1 %"},
        {HY_FIGURE_LOSS, NAN, "\xE2\x80\x93"},   {HY_FIGURE_SMALL, 0.0003, "3.00e-04"}};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        hy_text text = {0};
        hy_html_figure(&text, figures[i].figure, figures[i].value);
        ck_assert_str_eq(hy_text_string(&text), figures[i].text);
        hy_text_free(&text);
    }
}
END_TEST

static Suite *page_suite(void) {
    Suite *suite = suite_create("report_page");
    TCase *page = tcase_create("page"), *parts = tcase_create("parts");
    tcase_add_test(page, the_numbers_in_the_page_are_the_runs);
    tcase_add_loop_test(page, a_custom_run_is_counted_in_steps, 0, 2);
    tcase_add_test(page, axes_show_the_position_of_every_row);
    tcase_add_test(page, a_hundred_thousand_steps_stay_small_and_keep_their_spike);
    tcase_add_test(page, a_run_without_a_line_has_a_page_too);
    tcase_add_test(page, the_final_tables_are_those_of_the_summary);
    tcase_add_test(page, ranks_have_a_row_each_and_who_was_the_slowest);
    tcase_add_test(page, a_run_in_progress_shows_its_plan);
    tcase_add_test(page, names_notes_samples_and_differing_settings_are_shown);
    tcase_add_test(page, several_runs_are_compared_and_laid_over_each_other);
    tcase_add_test(page, measured_exports_are_a_table);
    tcase_add_test(page, nothing_from_a_file_becomes_markup);
    tcase_add_test(page, the_page_can_fetch_nothing);
    tcase_add_test(page, the_page_is_written_whole_or_not_at_all);
    tcase_add_test(parts, thinning_keeps_ends_and_extremes);
    tcase_add_test(parts, means_are_of_both_sides);
    tcase_add_test(parts, the_last_mean_is_of_as_many_values_as_the_others);
    tcase_add_test(parts, numbers_are_short_and_read_back);
    tcase_add_test(parts, figures_read_as_people_write_them);
    suite_add_tcase(suite, page);
    suite_add_tcase(suite, parts);
    return suite;
}

HY_TEST_MAIN(page_suite)
