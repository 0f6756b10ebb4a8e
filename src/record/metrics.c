/* metrics.c: OUT/metrics.jsonl, one JSON object per line: one line per step, and lines for events
 * between steps.
 *
 * The file only grows during a run and is flushed about once a second. Lines stay in memory
 * until they are written; after a failed write the same bytes are written again at the same
 * place. A resumed run first drops the lines after its checkpoint, so every step occurs once;
 * then each session begins with its own line. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/say.h"
#include "record/record.h"

#define FLUSH_SECONDS 1.0
#define LINE_ROOM ((size_t)24 << 10)
#define WAITING_ROOM ((size_t)64 << 10)
#define MOST_WAITING ((size_t)16 << 20) /* bytes of lines that could not be written */

/* Is a line older than the checkpoint? A line cut by a crash is not. The compute spent is
 * compared, because a step and the jump after it have the same number. Events right after the
 * checkpoint's own step stay. Fails if memory runs out, because then the line cannot be read. */
static hy_status judge_line(const char *line, size_t size, double last_spent, bool *is_kept) {
    hy_json *json;
    double spent;
    *is_kept = false;
    hy_status status = hy_json_parse(line, size, "metrics.jsonl", &json);
    if (status != HY_OK) return status == HY_ERR_MEMORY ? status : HY_OK;
    *is_kept =
        hy_json_double(json, hy_json_root(json), "spent", &spent) == HY_OK && spent <= last_spent;
    hy_json_free(json);
    return HY_OK;
}

/* Checks each line by itself, because events during a paired test have higher step numbers than
 * the lines after them. The file is mapped, because it may be large, and rewritten only if a
 * line is dropped. */
static hy_status drop_later_lines(const char *path, double last_spent) {
    enum { LONGEST = 1 << 26 };
    hy_file_map map;
    HY_TRY(hy_file_map_open(path, &map));
    const char *text = (const char *)map.data;
    hy_writer *out = NULL; /* once a line was dropped */
    hy_status status = HY_OK;
    for (size_t at = 0, size; at < map.size && status == HY_OK; at += size) {
        size_t left = map.size - at, looked_at = left < LONGEST ? left : LONGEST;
        const char *newline = memchr(text + at, '\n', looked_at);
        if (!newline && left > LONGEST) {
            status =
                hy_fail(HY_ERR_INPUT, "%s has a line of more than %d MiB: it is not a metrics file",
                        path, LONGEST >> 20);
            break;
        }
        size = newline ? (size_t)(newline - (text + at)) + 1 : left;
        bool is_kept = false;
        if (newline) status = judge_line(text + at, size - 1, last_spent, &is_kept);
        if (status != HY_OK) break;
        if (!is_kept && !out) {
            status = hy_writer_replace(path, &out);
            if (status == HY_OK && at > 0) status = hy_writer_put(out, text, at);
        } else if (is_kept && out) {
            status = hy_writer_put(out, text + at, size);
        }
    }
    hy_file_map_close(&map);
    if (status == HY_OK) return hy_writer_close(out, true);
    hy_writer_abandon(out);
    return status;
}

static void open_line(hy_record *r, hy_json_writer *w) {
    hy_text_clear(&r->line);
    hy_json_begin(w, &r->line, false);
    hy_json_open_object(w, NULL);
}

static void open_event(hy_record *r, const char *event, const hy_moment *now, hy_json_writer *w) {
    open_line(r, w);
    hy_json_put_string(w, "event", event);
    hy_json_put_int(w, "step", now->step);
    hy_json_put_double(w, "spent", now->spent);
    hy_json_put_double(w, "elapsed", now->elapsed);
}

static hy_status write_waiting(hy_record *r) {
    char path[HY_PATH_MAX];
    hy_text *lines = &r->waiting;
    r->flushed = hy_clock();
    if (!r->has_metrics || lines->size == 0) return HY_OK;
    HY_TRY(hy_path_join(path, sizeof path, r->out, "metrics.jsonl"));
    /* If the folder was replaced, the file belongs to another run. */
    if (r->lock && !hy_lock_is_there(r->lock))
        return hy_fail(HY_ERR_IO, "cannot write %s: the folder was deleted or moved", path);
    HY_TRY(hy_file_put_at(path, &r->written, lines->data, lines->size));
    hy_text_clear(lines);
    return HY_OK;
}

void hy_record_flush(hy_record *r) {
    hy_tensorboard_flush(r);
    bool has_failed = write_waiting(r) != HY_OK;
    if (has_failed && r->waiting.size > MOST_WAITING) {
        hy_say_to(&r->observer, HY_WARNING, "%s; the run continues without metrics",
                  hy_error_message());
        r->has_metrics = false;
    } else if (has_failed && !r->has_write_failed) {
        hy_say_to(&r->observer, HY_WARNING,
                  "%s; the run continues and writes these lines later, when it can",
                  hy_error_message());
    }
    r->has_write_failed = has_failed;
}

/* Writes the finished line to the file, at once or within a second. */
static void close_line(hy_record *r, hy_json_writer *w, bool is_urgent) {
    hy_json_close_object(w);
    hy_text_add(&r->line, "\n");
    if (!hy_text_reserve(&r->waiting, r->line.size)) {
        r->waiting.has_failed =
            false; /* it holds whole lines, and becomes free when they are written */
        hy_record_flush(r);
    }
    hy_text_add_bytes(&r->waiting, r->line.data, r->line.size);
    if (r->line.has_failed || r->waiting.has_failed) {
        hy_say_to(&r->observer, HY_WARNING, "out of memory: a line of metrics.jsonl is missing");
        r->waiting.has_failed = false;
    }
    bool is_full = !r->has_write_failed && r->waiting.size >= WAITING_ROOM - LINE_ROOM;
    if (is_urgent || is_full || hy_clock() - r->flushed >= FLUSH_SECONDS) hy_record_flush(r);
}

hy_status hy_record_open(hy_record *r, const hy_settings *s, hy_start_line *start,
                         const hy_moment *now) {
    char path[HY_PATH_MAX];
    hy_json_writer w;
    HY_TRY(hy_path_join(path, sizeof path, r->out, "metrics.jsonl"));
    /* Large enough for all steps: no line is lost when memory is short, and nothing is allocated
     * during a run. */
    if (!hy_text_reserve(&r->line, LINE_ROOM) || !hy_text_reserve(&r->waiting, WAITING_ROOM))
        return hy_text_status(r->line.has_failed ? &r->line : &r->waiting);
    memset(r->line.data, 0, LINE_ROOM);
    memset(r->waiting.data, 0, WAITING_ROOM);
    bool goes_on = start->resumed && start->resumed[0] && hy_path_exists(path);
    if (goes_on) {
        HY_TRY(drop_later_lines(path, now->spent));
    } else {
        hy_writer *empty;
        HY_TRY(hy_writer_create(path, &empty));
        HY_TRY(hy_writer_close(empty, false));
    }
    r->written = goes_on ? HY_FILE_END : 0;
    r->has_metrics = true;
    hy_text_clear(&r->waiting);
    start->time = hy_clock_unix();
    start->version = HYBRID_VERSION;
    if (!start->grad_accum) start->grad_accum = s->train.grad_accum_steps;
    start->thresholds[0] = s->memory.target_usage;
    start->thresholds[1] = s->memory.warning_usage;
    start->thresholds[2] = s->memory.critical_usage;
    start->thresholds[3] = s->memory.emergency_usage;
    open_event(r, "start", now, &w);
    hy_fields_put(hy_start_fields, hy_start_field_count, start, 0, &w);
    close_line(r, &w, true);
    return HY_OK;
}

void hy_record_step(hy_record *r, hy_step_line *line, const hy_ledger *ledger) {
    hy_json_writer w;
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        line->device[cls] = ledger->most[cls][HY_DEVICE];
        line->pinned[cls] = ledger->most[cls][HY_PINNED];
    }
    hy_tensorboard_step(r, line, ledger);
    if (!r->has_metrics) return;
    unsigned holds = hy_step_conditions(&line->step) | r->conditions;
    open_line(r, &w);
    hy_fields_put(hy_step_fields, hy_step_field_count, line, holds, &w);
    close_line(r, &w, false);
}

static void put_text(hy_json_writer *w, const char *key, const char *text) {
    if (text) hy_json_put_string(w, key, text);
}

static void put_count(hy_json_writer *w, const char *key, int64_t count) {
    if (count > 0) hy_json_put_int(w, key, count);
}

void hy_record_event(hy_record *r, const hy_event_line *e, const hy_moment *now) {
    hy_json_writer w;
    if (!r->has_metrics) return;
    open_event(r, e->event, now, &w);
    put_count(&w, "batch_size", e->batch_size);
    put_count(&w, "grad_accum", e->grad_accum);
    put_count(&w, "old_batch_size", e->old_batch_size);
    put_count(&w, "old_grad_accum", e->old_grad_accum);
    put_text(&w, "reason", e->reason);
    put_text(&w, "status", e->status);
    put_text(&w, "old_status", e->old_status);
    if (e->status) hy_json_put_double(&w, "utilization", e->utilization);
    if (e->val_loss > 0) hy_json_put_double(&w, "val_loss", e->val_loss);
    if (e->rows) {
        hy_step_line line = {.rows = *e->rows};
        hy_fields_put(hy_score_fields, HY_SCORE_FIELDS, &line, 0, &w);
    }
    put_text(&w, "text", e->text);
    close_line(r, &w, true);
}

hy_status hy_record_close(hy_record *r) {
    hy_tensorboard_close(r);
    hy_status status = write_waiting(r);
    r->has_metrics = false;
    return status;
}

void hy_record_release(hy_record *r) {
    hy_tfevents_close(r->tensorboard, false);
    (void)write_waiting(r);
    hy_text_free(&r->waiting);
    hy_text_free(&r->line);
    free(r->config_text);
    free(r->command);
    hy_lock_release(r->lock);
    r->lock = NULL;
    r->tensorboard = NULL;
    r->has_metrics = false;
    r->config_text = r->command = NULL;
}
