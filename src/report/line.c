/* line.c: turns a line of metrics.jsonl into a point or an event. See run.h.
 *
 * The table of report/metrics.h maps keys to members. A line that is not an object with a step is
 * counted as unreadable; the rest stays readable, whether a newer version or a broken disk wrote
 * the line. */
#include <math.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "report/metrics.h"
#include "report/run.h"

static const char *share_reason(void *run, const char *text) {
    return hy_words_share(&((hy_run *)run)->reasons, text);
}

static const char *keep_word(void *run, const char *text) {
    return hy_words_keep(&((hy_run *)run)->words, text);
}

/* ---- points ---------------------------------------------------------------------------------- */

static hy_status take_point(hy_run *run, const hy_json_node *object) {
    HY_TRY(hy_array_reserve(&run->points, &run->point_capacity, run->point_count + 1,
                            sizeof *run->points, "lines of a run"));
    hy_point_line *line = &run->read;
    hy_fields_clear(hy_step_fields, hy_step_field_count, line);
    HY_TRY(hy_fields_take(hy_step_fields, hy_step_field_count, object, line, share_reason, run));
    if (line->point.step < 0) {
        run->facts.lines_unreadable++;
        return HY_OK;
    }
    HY_TRY(hy_run_take_ranks(run, line));
    line->point.size = sizeof line->point;
    run->points[run->point_count++] = line->point;
    run->is_start_last = false;
    return HY_OK;
}

/* ---- events ---------------------------------------------------------------------------------- */

static const char *text_of(const hy_json_node *object, const char *key) {
    const char *text = "";
    hy_json_as_string(hy_json_get(object, key), &text, NULL);
    return text;
}

static int64_t count_of(const hy_json_node *object, const char *key) {
    int64_t count = -1;
    hy_json_as_count(hy_json_get(object, key), &count);
    return count;
}

static void describe_event(const char *kind, const hy_json_node *object, hy_text *out) {
    const char *text = text_of(object, "text");
    hy_text_add(out, "");
    if (strcmp(kind, "start") == 0) {
        hy_text_add(out, text_of(object, "command"));
    } else if (text[0]) {
        hy_text_add(out, text);
    } else if (strcmp(kind, "batch") == 0) {
        /* "4 micro-batches of 8 became 6 of 6: REASON". */
        const char *reason = text_of(object, "reason");
        hy_text_addf(out, "%lld micro-batches of %lld became %lld of %lld",
                     (long long)count_of(object, "old_grad_accum"),
                     (long long)count_of(object, "old_batch_size"),
                     (long long)count_of(object, "grad_accum"),
                     (long long)count_of(object, "batch_size"));
        if (reason[0]) hy_text_addf(out, ": %s", reason);
    } else if (strcmp(kind, "memory") == 0) {
        hy_text_addf(out, "memory %s (was %s)", text_of(object, "status"),
                     text_of(object, "old_status"));
    }
}

/* A session starts and describes the run again; the first session has the start time of the run. */
static hy_status take_start(hy_run *run, const hy_json_node *object) {
    double began = run->started.began;
    run->started = *hy_run_describe(NULL);
    HY_TRY(hy_fields_take(hy_start_fields, hy_start_field_count, object, &run->started, keep_word,
                          run));
    if (!isnan(began)) run->started.began = began;
    if (run->started.ranks != run->ranks.ranks) hy_run_forget_ranks(run);
    run->is_start_last = true;
    return HY_OK;
}

static hy_status take_event(hy_run *run, const char *kind, const hy_json_node *object) {
    HY_TRY(hy_array_reserve(&run->events, &run->event_capacity, run->event_count + 1,
                            sizeof *run->events, "events of a run"));
    hy_text text = {0};
    describe_event(kind, object, &text);
    hy_run_event event = {.size = sizeof event,
                          .kind = hy_words_share(&run->reasons, kind),
                          .text = hy_words_keep(&run->words, hy_text_string(&text)),
                          .step = count_of(object, "step"),
                          .elapsed = NAN,
                          .points_before = run->point_count};
    bool has_failed = text.has_failed || !event.kind || !event.text;
    hy_text_free(&text);
    if (has_failed) return hy_fail(HY_ERR_MEMORY, "out of memory reading %s", run->lines.path);
    hy_json_as_double(hy_json_get(object, "elapsed"), &event.elapsed);
    /* A validation that was repeated after a resume belongs to the step before. */
    hy_run_point *last = run->point_count ? &run->points[run->point_count - 1] : NULL;
    if (last && last->step == event.step && strcmp(kind, "validation") == 0) {
        hy_json_as_double(hy_json_get(object, "val_loss"), &last->val_loss);
        /* These fields are no texts. */
        HY_TRY(hy_fields_take(hy_score_fields, HY_SCORE_FIELDS, object, last, NULL, NULL));
    }
    run->events[run->event_count++] = event;
    run->is_start_last = false;
    return strcmp(kind, "start") == 0 ? take_start(run, object) : HY_OK;
}

hy_status hy_run_take_line(void *user, const char *line, size_t size) {
    hy_run *run = user;
    hy_json *json;
    const char *kind;
    run->line_count++;
    hy_status status = hy_json_parse(line, size, "metrics.jsonl", &json);
    if (status == HY_ERR_MEMORY) return status;
    const hy_json_node *root = status == HY_OK ? hy_json_root(json) : NULL;
    if (hy_json_type_of(root) != HY_JSON_OBJECT) {
        run->facts.lines_unreadable++;
        status = HY_OK;
    } else if (hy_json_as_string(hy_json_get(root, "event"), &kind, NULL)) {
        status = take_event(run, kind, root);
    } else {
        status = take_point(run, root);
    }
    if (root) hy_json_free(json);
    return status;
}
