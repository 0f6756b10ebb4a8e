/* tensorboard.c: a run's scalars for TensorBoard: OUT/tensorboard. See record.h.
 *
 * Each step writes one record with the numbers of its metrics.jsonl line that have a tag,
 * rounded to fp32. A jump has the number of the step before it, so phase, memory and waiting
 * occur twice at that step. A resumed session writes a new file, which first removes the steps
 * that it will repeat. */
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/say.h"
#include "record/record.h"

/* A full disk ends this record, not the run. */
static void end_record(hy_record *r) {
    hy_say_to(&r->observer, HY_WARNING, "%s; the run continues without event files for TensorBoard",
              hy_error_message());
    hy_tfevents_abandon(r->tensorboard);
    r->tensorboard = NULL;
}

static hy_status begin(hy_record *r, int64_t step) {
    char folder[HY_PATH_MAX];
    double now = hy_clock_unix();
    HY_TRY(hy_path_join(folder, sizeof folder, r->out, "tensorboard"));
    HY_TRY(hy_tfevents_open(folder, &r->tensorboard));
    HY_TRY(hy_tfevents_begin(r->tensorboard, step + 1, now));
    if (r->command[0]) hy_tfevents_add_text(r->tensorboard, "command", r->command);
    hy_tfevents_add_text(r->tensorboard, "config", r->config_text);
    HY_TRY(hy_tfevents_put(r->tensorboard, step, now));
    return hy_tfevents_flush(r->tensorboard);
}

void hy_tensorboard_open(hy_record *r, int64_t step) {
    if (begin(r, step) != HY_OK) end_record(r);
}

void hy_tensorboard_step(hy_record *r, const hy_step_line *line, const hy_ledger *ledger) {
    hy_tfevents *e = r->tensorboard;
    if (!e) return;
    unsigned holds = hy_step_conditions(&line->step) | r->conditions;
    for (size_t i = 0; i < hy_step_field_count; i++) {
        const hy_field *field = &hy_step_fields[i];
        const char *tag = line->step.phase == HY_PREDICT ? field->jump_tag : field->tag;
        if (!tag || !hy_field_is_written(field, line, holds)) continue;
        double value = hy_field_number(field, (const char *)line + field->from);
        bool is_nothing = field->kind == HY_FIELD_INTEGER && value == 0;
        if (isfinite(value) && !is_nothing) hy_tfevents_add_scalar(e, tag, value);
    }
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        char tag[64];
        bool is_used = ledger->cell[cls][HY_FULL].place == HY_DEVICE ||
                       line->device[cls] > 0; /* a class that no longer exists is drawn as 0 */
        snprintf(tag, sizeof tag, "memory/%s", hy_class_name((hy_class)cls));
        if (is_used) hy_tfevents_add_scalar(e, tag, (double)line->device[cls]);
    }
    if (hy_tfevents_put(e, line->step.step, hy_clock_unix()) != HY_OK) end_record(r);
}

void hy_tensorboard_flush(hy_record *r) {
    if (r->tensorboard && hy_tfevents_flush(r->tensorboard) != HY_OK) end_record(r);
}

void hy_tensorboard_close(hy_record *r) {
    hy_tfevents *events = r->tensorboard;
    r->tensorboard = NULL;
    if (hy_tfevents_close(events, true) == HY_OK) return;
    hy_say_to(&r->observer, HY_WARNING, "%s; the event files for TensorBoard end early",
              hy_error_message());
}
