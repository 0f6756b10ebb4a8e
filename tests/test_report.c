/* test_report.c: reading runs: every field, unknown lines, files that grow, are replaced or end in
 * the middle of a line, and the facts about a whole run. */
#include <fcntl.h>
#include <time.h>

#include "base/text.h"
#include "mutate.h"
#include "report_rig.h"

#ifdef HY_POISON
#define LOAD_SECONDS 60.0 /* with a sanitizer inside */
#else
#define LOAD_SECONDS 2.0 /* of the processor; measured: 0.6 */
#endif

/* ---- fields ---------------------------------------------------------------------------------- */

START_TEST(every_field_of_a_step_is_read) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(
        &rig,
        "{\"step\":7,\"phase\":\"correct\",\"loss\":2.5,\"lr\":0.25,\"grad_norm\":1.5,\"tokens\":"
        "448,"
        "\"tokens_per_second\":64.5,\"seconds\":0.5,\"elapsed\":3.5,\"confidence\":0.75,"
        "\"precision\":\"bf16\",\"batch_size\":8,\"grad_accum\":4,\"vram_bytes\":100,"
        "\"vram_peak_bytes\":120,\"host_pinned_bytes\":30,\"wait_seconds\":0.125,\"bytes_moved\":"
        "40,"
        "\"spent\":7.25,\"mfu\":0.5,\"gpu_power_watts\":300.5,\"gpu_temperature_c\":61,"
        "\"gpu_utilization\":0.875,\"memory\":{\"weights\":50,\"data\":3,\"unheard\":9},"
        "\"pinned\":{\"optim\":20},\"memory_status\":\"critical\",\"vram_reserved_bytes\":130,"
        "\"vram_free_bytes\":9,\"host_resident_bytes\":77,\"vram_planned_bytes\":110,"
        "\"predicted_steps\":4.5,\"rejected\":true,\"residual_cosine\":0.375,\"rolled_back\":true,"
        "\"reason\":\"because\",\"skipped\":true,\"val_loss\":2.25,\"something_new\":[1,{}]}\n");
    hy_run *run = rig_open(&rig);
    ck_assert_uint_eq(hy_run_points(run), 1);
    const hy_run_point *p = hy_run_point_at(run, 0);
    ck_assert_int_eq(p->step, 7);
    ck_assert_int_eq(p->phase, HY_CORRECT);
    ck_assert(p->loss == 2.5 && p->lr == 0.25 && p->grad_norm == 1.5 && p->val_loss == 2.25);
    ck_assert_int_eq(p->tokens, 448);
    ck_assert(p->tokens_per_second == 64.5 && p->seconds == 0.5 && p->elapsed == 3.5);
    ck_assert(p->spent == 7.25 && p->wait_seconds == 0.125 && p->confidence == 0.75);
    ck_assert(p->predicted_steps == 4.5 && p->residual_cosine == 0.375 && p->mfu == 0.5);
    ck_assert(p->was_rejected && p->was_rolled_back && p->was_skipped);
    ck_assert(p->batch_size == 8 && p->grad_accum == 4 && p->bytes_moved == 40);
    ck_assert(p->vram_bytes == 100 && p->vram_peak_bytes == 120 && p->vram_planned_bytes == 110);
    ck_assert(p->vram_reserved_bytes == 130 && p->vram_free_bytes == 9);
    ck_assert(p->host_pinned_bytes == 30 && p->host_resident_bytes == 77);
    ck_assert(p->device[HY_WEIGHTS] == 50 && p->device[HY_DATA] == 3 && p->device[HY_OPTIM] == 0);
    ck_assert(p->pinned[HY_OPTIM] == 20 && p->pinned[HY_WEIGHTS] == 0);
    ck_assert_int_eq(p->memory_status, 2);
    ck_assert_str_eq(p->reason, "because");
    ck_assert(p->gpu_power_watts == 300.5 && p->gpu_temperature_c == 61);
    ck_assert(p->gpu_utilization == 0.875);
    ck_assert_uint_eq(hy_run_describe(run)->lines_unreadable, 0);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(what_a_line_does_not_say_is_unknown) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, "{\"step\":1,\"loss\":null,\"lr\":\"fast\",\"tokens\":[3],\"memory\":7}\n");
    hy_run *run = rig_open(&rig);
    const hy_run_point *p = hy_run_point_at(run, 0);
    ck_assert(isnan(p->loss) && isnan(p->lr) && isnan(p->val_loss) && isnan(p->confidence));
    ck_assert(isnan(p->elapsed) && isnan(p->mfu) && isnan(p->gpu_power_watts));
    ck_assert(p->tokens == -1 && p->batch_size == -1 && p->vram_bytes == -1);
    ck_assert(p->host_resident_bytes == -1 && p->memory_status == -1);
    ck_assert(!p->was_rejected && p->device[HY_WEIGHTS] == 0);
    ck_assert_str_eq(p->reason, "");
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(unknown_lines_are_counted_and_skipped) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, "{\"step\":1,\"loss\":3}\n"
                    "garbage\n"
                    "\n"
                    "[1,2]\n"
                    "{\"loss\":2}\n"
                    "{\"step\":-4}\n"
                    "{\"step\":2,\"loss\":2\n"
                    "{\"step\":2,\"loss\":2}\n"
                    "\xFF\xFE{}\n"
                    "{\"event\":\"comet\",\"step\":2}\n"
                    "{\"step\":3,\"loss\":1}\n");
    hy_run *run = rig_open(&rig);
    ck_assert_uint_eq(hy_run_points(run), 3);
    ck_assert_int_eq(hy_run_point_at(run, 2)->step, 3);
    ck_assert_uint_eq(hy_run_describe(run)->lines_unreadable, 7);
    ck_assert_uint_eq(hy_run_events(run), 1);
    ck_assert_str_eq(hy_run_event_at(run, 0)->kind, "comet");
    ck_assert_str_eq(hy_run_event_at(run, 0)->text, "");
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(damaged_files_never_break_the_reader) {
    static const char good[] =
        "{\"event\":\"start\",\"step\":0,\"time\":1,\"model\":\"m\",\"thresholds\":{\"target\":0.9}"
        "}\n"
        "{\"step\":1,\"phase\":\"full\",\"loss\":2.5,\"memory\":{\"weights\":5},\"reason\":\"r\"}\n"
        "{\"step\":1,\"rank_seconds\":[1,2],\"rank_waited\":[0,1],\"rank_exchanged\":[1,1],"
        "\"rank_bytes\":[7,8],\"rank_memory\":[9,10]}\n"
        "{\"event\":\"batch\",\"step\":1,\"batch_size\":4,\"old_batch_size\":8,\"reason\":\"x\"}\n"
        "{\"step\":2,\"phase\":\"predict\",\"predicted_steps\":3,\"rejected\":false}\n";
    run_rig rig;
    rig_make(&rig);
    for (uint64_t seed = 0; seed < 400; seed++) {
        uint8_t text[sizeof good + MUTATION_GROWTH];
        size_t size = mutate(good, sizeof good - 1, text, seed);
        rig_put_bytes(rig.lines, "w", text, size);
        hy_run *run = rig_open(&rig);
        ck_assert_uint_le(hy_run_points(run) + hy_run_events(run), size);
        hy_run_close(run);
    }
    rig_remove(&rig);
}
END_TEST

/* ---- ranks ----------------------------------------------------------------------------------- */

static void put_array(hy_text *line, const char *key, int count, double first) {
    hy_text_addf(line, ",\"%s\":[", key);
    for (int i = 0; i < count; i++) hy_text_addf(line, "%s%g", i > 0 ? "," : "", first + i);
    hy_text_add(line, "]");
}

/* A line of `count` ranks: of a step of 100 seconds and more, rank 0 waits least. */
static void add_ranks(const run_rig *rig, int step, const char *phase, int count, int waiting) {
    hy_text line = {0};
    hy_text_addf(&line, "{\"step\":%d,\"phase\":\"%s\",\"loss\":2", step, phase);
    put_array(&line, "rank_seconds", count, 100 * step);
    put_array(&line, "rank_waited", waiting, 3);
    hy_text_add(&line, ",\"rank_exchanged\":[");
    for (int i = 0; i < count; i++) hy_text_add(&line, i > 0 ? ",0.5" : "0.5");
    hy_text_add(&line, "]");
    put_array(&line, "rank_bytes", count, 1000);
    put_array(&line, "rank_memory", count, 5000 + step);
    hy_text_add(&line, "}\n");
    rig_add(rig, hy_text_string(&line));
    hy_text_free(&line);
}

static int ranks_of(const hy_run *run) {
    hy_rank_cost cost;
    int count = 0;
    while (hy_run_rank(run, count, false, &cost) && hy_run_rank(run, count, true, &cost)) count++;
    return count;
}

START_TEST(what_steps_cost_each_rank_is_read) {
    run_rig rig;
    hy_rank_cost cost;
    rig_make(&rig);
    rig_begin(&rig, "{\"event\":\"start\",\"step\":0,\"ranks\":2,\"zero_stage\":3,"
                    "\"transport\":\"MPI\"}\n");
    hy_run *run = rig_open(&rig);
    const hy_run_facts *facts = hy_run_describe(run);
    ck_assert(facts->ranks == 2 && facts->zero_stage == 3);
    ck_assert_str_eq(facts->transport, "MPI");
    ck_assert_int_eq(ranks_of(run), 0);
    for (int step = 1; step <= 101; step++) add_ranks(&rig, step, "full", 2, 2);
    add_ranks(&rig, 101, "predict", 2, 2); /* no step */
    add_ranks(&rig, 102, "full", 2, 1);    /* arrays of different lengths */
    ck_assert(rig_refresh(run));
    ck_assert_int_eq(ranks_of(run), 2);
    ck_assert(hy_run_rank(run, 1, false, &cost));
    ck_assert(cost.seconds == 5101 && cost.waited == 4 && cost.exchanged == 0.5);
    ck_assert(cost.bytes == 1001 && cost.memory == 5102 && cost.steps == 101);
    ck_assert(hy_run_rank(run, 1, true, &cost) && cost.seconds == 6951); /* of steps 38 to 101 */
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(another_number_of_ranks_begins_anew) {
    run_rig rig;
    hy_rank_cost cost;
    rig_make(&rig);
    rig_begin(&rig, "{\"event\":\"start\",\"step\":0,\"ranks\":2}\n");
    add_ranks(&rig, 1, "full", 2, 2);
    rig_add(&rig, "{\"event\":\"start\",\"step\":1,\"ranks\":256}\n");
    add_ranks(&rig, 2, "full", 256, 256);
    add_ranks(&rig, 3, "full", 257, 257); /* more than anybody counts */
    hy_run *run = rig_open(&rig);
    ck_assert_int_eq(ranks_of(run), 256);
    ck_assert(hy_run_rank(run, 255, false, &cost) && cost.steps == 1);
    rig_add(&rig, "{\"event\":\"start\",\"step\":3}\n");
    ck_assert(rig_refresh(run));
    ck_assert_int_eq(ranks_of(run), 0);
    ck_assert_int_eq(hy_run_describe(run)->ranks, -1);
    ck_assert_str_eq(hy_run_describe(run)->transport, "");
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

/* ---- events and facts ------------------------------------------------------------------------ */

static const char start_line[] =
    "{\"event\":\"start\",\"step\":0,\"spent\":0,\"elapsed\":0,\"time\":1763200000.5,"
    "\"version\":\"0.7.0\",\"command\":\"hybrid-train --out "
    "x\",\"model\":\"nano\",\"parameters\":99,"
    "\"device\":\"CPU\",\"data\":\"text\",\"predictor\":\"outer\",\"steps_total\":50,"
    "\"tokens_per_step\":64,\"seq_len\":32,\"vram_budget_bytes\":1000,\"host_budget_bytes\":2000,"
    "\"thresholds\":{\"target\":0.85,\"warning\":0.88,\"critical\":0.92,\"emergency\":0.95}}\n";

START_TEST(a_start_event_describes_the_run) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, start_line);
    rig_file(&rig, "config.cfg", "model = \"nano\";\n");
    hy_run *run = rig_open(&rig);
    const hy_run_facts *facts = hy_run_describe(run);
    ck_assert_str_eq(facts->folder, rig.folder);
    ck_assert_str_eq(facts->name, "mine");
    ck_assert_str_eq(facts->model, "nano");
    ck_assert_str_eq(facts->device, "CPU");
    ck_assert_str_eq(facts->data, "text");
    ck_assert_str_eq(facts->predictor, "outer");
    ck_assert_str_eq(facts->command, "hybrid-train --out x");
    ck_assert_str_eq(facts->version, "0.7.0");
    ck_assert_str_eq(facts->config, "model = \"nano\";\n");
    ck_assert(facts->parameters == 99 && facts->steps_total == 50 && facts->tokens_per_step == 64);
    ck_assert(facts->seq_len == 32 && facts->vram_budget_bytes == 1000);
    ck_assert(facts->host_budget_bytes == 2000 && facts->began == 1763200000.5);
    ck_assert(facts->thresholds[0] == 0.85 && facts->thresholds[3] == 0.95);
    ck_assert(!facts->is_finished && !facts->is_complete);
    ck_assert(fabs(facts->changed - (double)time(NULL)) < 100);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(of_no_run_nothing_is_known) {
    const hy_run_facts *facts = hy_run_describe(NULL);
    ck_assert_str_eq(facts->name, "");
    ck_assert_str_eq(facts->model, "");
    ck_assert(facts->parameters == -1 && facts->vram_budget_bytes == -1);
    ck_assert(isnan(facts->thresholds[0]) && isnan(facts->changed) && !facts->is_finished);
}
END_TEST

START_TEST(events_are_one_sentence_at_their_position) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, start_line);
    rig_step(&rig, 1, "full", 3);
    rig_add(&rig,
            "{\"event\":\"batch\",\"step\":1,\"spent\":1,\"elapsed\":9,\"batch_size\":6,"
            "\"grad_accum\":6,\"old_batch_size\":8,\"old_grad_accum\":4,\"reason\":\"tight\"}\n"
            "{\"event\":\"memory\",\"step\":1,\"elapsed\":9,\"status\":\"critical\","
            "\"old_status\":\"normal\",\"utilization\":0.96,\"text\":\"memory is critical\"}\n");
    rig_step(&rig, 2, "full", 3);
    rig_add(
        &rig,
        "{\"event\":\"recovery\",\"step\":2,\"elapsed\":10,\"text\":\"done again\"}\n"
        "{\"event\":\"memory\",\"step\":2,\"status\":\"normal\",\"old_status\":\"critical\"}\n");
    hy_run *run = rig_open(&rig);
    static const struct {
        const char *kind, *text;
        size_t before;
    } expected[] = {{"start", "hybrid-train --out x", 0},
                    {"batch", "4 micro-batches of 8 became 6 of 6: tight", 1},
                    {"memory", "memory is critical", 1},
                    {"recovery", "done again", 2},
                    {"memory", "memory normal (was critical)", 2}};
    ck_assert_uint_eq(hy_run_events(run), 5);
    for (size_t i = 0; i < 5; i++) {
        const hy_run_event *event = hy_run_event_at(run, i);
        ck_assert_str_eq(event->kind, expected[i].kind);
        ck_assert_str_eq(event->text, expected[i].text);
        ck_assert_uint_eq(event->points_before, expected[i].before);
    }
    ck_assert_int_eq(hy_run_event_at(run, 1)->step, 1);
    ck_assert(hy_run_event_at(run, 1)->elapsed == 9 && isnan(hy_run_event_at(run, 4)->elapsed));
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

static const char summary[] =
    "{\"program\":\"hybrid-train 0.1.0\",\"finished\":%s,\"model\":\"old\",\"parameters\":5,"
    "\"device\":\"card\",\"data\":\"d\",\"steps\":%d,\"steps_total\":%d,\"spent\":%d,"
    "\"predictor\":\"none\",\"tokens_per_step\":64,\"val_loss\":1.5}";

static void put_summary(const run_rig *rig, bool is_complete, int steps, int total) {
    char text[600];
    snprintf(text, sizeof text, summary, is_complete ? "true" : "false", steps, total, steps);
    rig_file(rig, "summary.json", text);
}

START_TEST(a_run_of_an_older_version_is_known_from_its_summary) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, "");
    rig_step(&rig, 1, "full", 3);
    rig_step(&rig, 2, "full", 2);
    put_summary(&rig, true, 2, 2);
    hy_run *run = rig_open(&rig);
    const hy_run_facts *facts = hy_run_describe(run);
    ck_assert_str_eq(facts->model, "old");
    ck_assert_str_eq(facts->version, "0.1.0");
    ck_assert(facts->parameters == 5 && facts->steps_total == 2 && isnan(facts->began));
    ck_assert(facts->is_finished && facts->is_complete);
    ck_assert(facts->vram_budget_bytes == -1 && isnan(facts->thresholds[0]));
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

/* Makes the metrics newer than anything else in the folder. */
static void touch_lines(const run_rig *rig) {
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) + 5}};
    ck_assert_int_eq(utimensat(AT_FDCWD, rig->lines, times, 0), 0);
}

START_TEST(finished_means_that_the_summary_is_of_the_newest_line) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, start_line);
    rig_step(&rig, 1, "full", 3);
    hy_run *run = rig_open(&rig);
    ck_assert(!hy_run_describe(run)->is_finished);
    put_summary(&rig, false, 1, 50); /* stopped by a signal */
    ck_assert(rig_refresh(run));
    ck_assert(hy_run_describe(run)->is_finished && !hy_run_describe(run)->is_complete);
    rig_add(&rig, start_line); /* resumed: nothing done yet */
    touch_lines(&rig);
    ck_assert(rig_refresh(run));
    ck_assert(!hy_run_describe(run)->is_finished);
    rig_step(&rig, 2, "full", 3);
    ck_assert(rig_refresh(run));
    ck_assert(!hy_run_describe(run)->is_finished);
    put_summary(&rig, true, 2, 2);
    ck_assert(rig_refresh(run));
    ck_assert(hy_run_describe(run)->is_finished && hy_run_describe(run)->is_complete);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(a_damaged_summary_counts_as_absent) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, "");
    rig_step(&rig, 1, "full", 3);
    static const char *const bad[] = {"{\"model\":", "[1]", "7", "{\"model\":5,\"steps\":[]}", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rig_file(&rig, "summary.json", bad[i]);
        rig_file(&rig, "plan.json", bad[i]);
        hy_run *run = rig_open(&rig);
        ck_assert_str_eq(hy_run_describe(run)->model, "");
        ck_assert(!hy_run_describe(run)->is_finished);
        hy_run_close(run);
    }
    rig_remove(&rig);
}
END_TEST

/* ---- files that change ----------------------------------------------------------------------- */

START_TEST(a_refresh_reads_what_was_added_and_a_cut_line_waits) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, "");
    rig_step(&rig, 1, "full", 3);
    hy_run *run = rig_open(&rig);
    ck_assert(!rig_refresh(run));
    rig_step(&rig, 2, "full", 2);
    rig_add(&rig, "{\"step\":3,\"lo");
    ck_assert(rig_refresh(run));
    ck_assert_uint_eq(hy_run_points(run), 2);
    ck_assert(!rig_refresh(run));
    rig_add(&rig, "ss\":1.5}\n");
    ck_assert(rig_refresh(run));
    ck_assert_uint_eq(hy_run_points(run), 3);
    ck_assert(hy_run_point_at(run, 2)->loss == 1.5);
    ck_assert_uint_eq(hy_run_describe(run)->lines_unreadable, 0);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(a_file_that_was_replaced_is_read_anew) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, "garbage\n");
    for (int i = 1; i <= 5; i++) rig_step(&rig, i, "full", i);
    hy_run *run = rig_open(&rig);
    ck_assert_uint_eq(hy_run_points(run), 5);
    ck_assert_uint_eq(hy_run_describe(run)->lines_unreadable, 1);
    static const char resumed[] = "{\"step\":1,\"loss\":9}\n{\"step\":2,\"loss\":8}\n";
    must(hy_file_write_atomic(rig.lines, resumed, strlen(resumed)));
    for (int i = 3; i <= 9; i++) rig_step(&rig, i, "correct", i); /* longer than before */
    ck_assert(rig_refresh(run));
    ck_assert_uint_eq(hy_run_points(run), 9);
    ck_assert(hy_run_point_at(run, 0)->loss == 9 && hy_run_point_at(run, 8)->loss == 9);
    ck_assert_uint_eq(hy_run_describe(run)->lines_unreadable, 0);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(a_file_written_anew_in_place_is_noticed) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":3}\n");
    hy_run *run = rig_open(&rig);
    rig_begin(&rig, "{\"step\":1,\"loss\":4}\n"); /* shorter */
    ck_assert(rig_refresh(run));
    ck_assert_uint_eq(hy_run_points(run), 1);
    ck_assert(hy_run_point_at(run, 0)->loss == 4);
    rig_begin(&rig, "{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":6}\n"); /* longer, other bytes */
    ck_assert(rig_refresh(run));
    ck_assert_uint_eq(hy_run_points(run), 2);
    ck_assert(hy_run_point_at(run, 0)->loss == 5);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(a_file_that_is_gone_for_a_moment_leaves_what_was_read) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, "");
    rig_step(&rig, 1, "full", 3);
    hy_run *run = rig_open(&rig);
    ck_assert_int_eq(unlink(rig.lines), 0);
    ck_assert(!rig_refresh(run));
    ck_assert_uint_eq(hy_run_points(run), 1);
    rig_begin(&rig, "");
    ck_assert(rig_refresh(run));
    ck_assert_uint_eq(hy_run_points(run), 0);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(lines_longer_than_a_block_are_read) {
    run_rig rig;
    rig_make(&rig);
    size_t size = (size_t)3 << 20;
    char *text = malloc(size + 1);
    ck_assert_ptr_nonnull(text);
    memset(text, ' ', size);
    memcpy(text, "{\"step\":4,", 10);
    memcpy(text + size - 12, "\"loss\":1.5}\n", 12);
    text[size] = 0;
    rig_begin(&rig, "");
    rig_step(&rig, 1, "full", 3);
    rig_add(&rig, text);
    free(text);
    hy_run *run = rig_open(&rig);
    ck_assert_uint_eq(hy_run_points(run), 2);
    ck_assert(hy_run_point_at(run, 1)->loss == 1.5);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

/* ---- opening --------------------------------------------------------------------------------- */

START_TEST(a_run_is_named_by_its_folder_or_its_metrics) {
    run_rig rig;
    char path[700];
    hy_run *run;
    rig_make(&rig);
    rig_begin(&rig, "{\"step\":1}\n");
    must(hy_run_open(rig.lines, &run));
    ck_assert_str_eq(hy_run_describe(run)->folder, rig.folder);
    ck_assert_str_eq(hy_run_describe(run)->name, "mine");
    hy_run_close(run);
    snprintf(path, sizeof path, "%s//", rig.folder);
    must(hy_run_open(path, &run));
    ck_assert_str_eq(hy_run_describe(run)->name, "mine");
    hy_run_close(run);
    snprintf(path, sizeof path, "%s/.", rig.folder);
    must(hy_run_open(path, &run));
    ck_assert_str_eq(hy_run_describe(run)->name, "mine");
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(what_is_no_run_is_refused_by_name) {
    run_rig rig;
    hy_run *run;
    char path[700];
    rig_make(&rig);
    snprintf(path, sizeof path, "%s/nowhere", rig.root);
    must_fail(hy_run_open(path, &run), HY_ERR_INPUT, "nowhere");
    ck_assert_ptr_null(run);
    must(hy_dir_make(rig.lines));
    must_fail(hy_run_open(rig.folder, &run), HY_ERR_INPUT, "not a regular file");
    hy_run_close(NULL);
    rig_remove(&rig);
}
END_TEST

START_TEST(a_run_that_has_only_begun_is_followed) {
    run_rig rig;
    rig_make(&rig);
    hy_run *run = rig_open(&rig); /* an empty folder */
    ck_assert_uint_eq(hy_run_points(run), 0);
    ck_assert(!rig_refresh(run));
    rig_begin(&rig, "{\"step\":1,\"loss\":3}\n");
    ck_assert(rig_refresh(run));
    ck_assert_uint_eq(hy_run_points(run), 1);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(planned_bytes_are_listed_by_phase_place_and_class) {
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig, "{\"step\":1,\"loss\":3}\n");
    hy_run *run = rig_open(&rig);
    ck_assert_int_eq(hy_run_planned_bytes(run, HY_FULL, HY_DEVICE, HY_OPTIM), -1);
    rig_file(&rig, "summary.json",
             "{\"phases\":{\"full\":{\"classes\":{\"optim\":{\"place\":\"device\","
             "\"planned_bytes\":5,\"measured_bytes\":6}}}}}");
    ck_assert(rig_refresh(run));
    ck_assert_int_eq(hy_run_planned_bytes(run, HY_FULL, HY_DEVICE, HY_OPTIM), 5);
    rig_file(&rig, "plan.json",
             "{\"phases\":{\"full\":{\"classes\":{\"optim\":{\"place\":\"pinned\","
             "\"dtype\":\"fp32\",\"bytes\":700}}}}}");
    ck_assert(rig_refresh(run));
    ck_assert_int_eq(hy_run_planned_bytes(run, HY_FULL, HY_PINNED, HY_OPTIM), 700);
    ck_assert_int_eq(hy_run_planned_bytes(run, HY_FULL, HY_DEVICE, HY_OPTIM), 0);
    ck_assert_int_eq(hy_run_planned_bytes(run, HY_PREDICT, HY_PINNED, HY_OPTIM), 0);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

/* Files of strangers: sums of such numbers overflowed in hybrid-top. */
START_TEST(numbers_beyond_reason_are_brought_to_what_can_be_added) {
    const int64_t most = INT64_C(1) << 53;
    run_rig rig;
    rig_make(&rig);
    rig_begin(&rig,
              "{\"step\":9223372036854775807,\"loss\":1,\"vram_bytes\":9223372036854775807,"
              "\"tokens\":-9223372036854775808,\"memory\":{\"weights\":9223372036854775807}}\n");
    rig_file(&rig, "plan.json",
             "{\"phases\":{\"full\":{\"classes\":{"
             "\"weights\":{\"place\":\"device\",\"bytes\":9223372036854775807},"
             "\"grads\":{\"place\":\"device\",\"bytes\":1e300}}}}}");
    hy_run *run = rig_open(&rig);
    const hy_run_point *p = hy_run_point_at(run, 0);
    ck_assert_int_eq(p->step, most);
    ck_assert_int_eq(p->vram_bytes, most);
    ck_assert_int_eq(p->tokens, -most);
    ck_assert_int_eq(p->device[HY_WEIGHTS], most);
    ck_assert_int_eq(hy_run_planned_bytes(run, HY_FULL, HY_DEVICE, HY_WEIGHTS), most);
    ck_assert_int_eq(hy_run_planned_bytes(run, HY_FULL, HY_DEVICE, HY_GRADS), most);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

START_TEST(a_hundred_thousand_steps_load_in_well_under_a_second) {
    run_rig rig;
    rig_make(&rig);
    rig_long_run(&rig, 100000, 54321);
    clock_t before = clock();
    hy_run *run = rig_open(&rig);
    double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
    ck_assert_msg(seconds < LOAD_SECONDS, "%.2f s", seconds);
    ck_assert_uint_eq(hy_run_points(run), 100000);
    ck_assert(hy_run_point_at(run, 54320)->loss == 77.25);
    ck_assert_uint_eq(hy_run_describe(run)->lines_unreadable, 0);
    hy_run_close(run);
    rig_remove(&rig);
}
END_TEST

static Suite *report_suite(void) {
    Suite *suite = suite_create("report");
    TCase *fields = tcase_create("fields"), *files = tcase_create("files");
    tcase_add_test(fields, every_field_of_a_step_is_read);
    tcase_add_test(fields, what_a_line_does_not_say_is_unknown);
    tcase_add_test(fields, unknown_lines_are_counted_and_skipped);
    tcase_add_test(fields, damaged_files_never_break_the_reader);
    tcase_add_test(fields, what_steps_cost_each_rank_is_read);
    tcase_add_test(fields, another_number_of_ranks_begins_anew);
    tcase_add_test(fields, a_start_event_describes_the_run);
    tcase_add_test(fields, of_no_run_nothing_is_known);
    tcase_add_test(fields, events_are_one_sentence_at_their_position);
    tcase_add_test(fields, a_run_of_an_older_version_is_known_from_its_summary);
    tcase_add_test(fields, finished_means_that_the_summary_is_of_the_newest_line);
    tcase_add_test(fields, a_damaged_summary_counts_as_absent);
    tcase_add_test(files, a_refresh_reads_what_was_added_and_a_cut_line_waits);
    tcase_add_test(files, a_file_that_was_replaced_is_read_anew);
    tcase_add_test(files, a_file_written_anew_in_place_is_noticed);
    tcase_add_test(files, a_file_that_is_gone_for_a_moment_leaves_what_was_read);
    tcase_add_test(files, lines_longer_than_a_block_are_read);
    tcase_add_test(files, a_run_is_named_by_its_folder_or_its_metrics);
    tcase_add_test(files, what_is_no_run_is_refused_by_name);
    tcase_add_test(files, a_run_that_has_only_begun_is_followed);
    tcase_add_test(files, planned_bytes_are_listed_by_phase_place_and_class);
    tcase_add_test(files, numbers_beyond_reason_are_brought_to_what_can_be_added);
    tcase_add_test(files, a_hundred_thousand_steps_load_in_well_under_a_second);
    suite_add_tcase(suite, fields);
    suite_add_tcase(suite, files);
    return suite;
}

HY_TEST_MAIN(report_suite)
