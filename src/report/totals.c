/* totals.c: adding up a run. See totals.h. */
#include "report/totals.h"

#include <math.h>
#include <string.h>

#include "report/planned.h"

#define LAST_STEPS 20 /* the final loss is their mean: one step alone is mostly noise */

static void keep_most(double *most, int64_t bytes) {
    if (bytes >= 0 && !((double)bytes <= *most)) *most = (double)bytes;
}

static void take_if_known(double *newest, double value) {
    if (!isnan(value)) *newest = value;
}

static void add_point(const hy_run_point *p, hy_run_totals *out) {
    hy_phase_totals *phase = &out->phases[p->phase];
    phase->steps++;
    if (!isnan(p->seconds)) phase->seconds += p->seconds;
    if (!isnan(p->wait_seconds)) phase->wait_seconds += p->wait_seconds;
    keep_most(&phase->planned_bytes, p->vram_planned_bytes);
    keep_most(&phase->peak_bytes, p->phase == HY_PREDICT ? p->vram_bytes : p->vram_peak_bytes);
    if (p->phase == HY_PREDICT) {
        if (p->was_rejected) {
            out->rejected_moves++;
        } else {
            out->moves++;
            if (p->predicted_steps > 0) out->predicted_steps += p->predicted_steps;
        }
    }
    if (p->was_skipped) out->skipped_steps++;
    out->steps = p->step;
    if (p->tokens >= 0) out->tokens = p->tokens;
    if (isnan(out->first_loss)) out->first_loss = p->loss;
    take_if_known(&out->seconds, p->elapsed);
    take_if_known(&out->val_loss, p->val_loss);
    take_if_known(&out->spent, p->spent);
    take_if_known(&out->confidence, p->confidence);
    take_if_known(&out->mfu, p->mfu);
    if (!isnan(p->val_loss) && !(p->val_loss >= out->best_val_loss)) {
        out->best_val_loss = p->val_loss;
    }
    keep_most(&out->planned_bytes, p->vram_planned_bytes);
    keep_most(&out->peak_bytes, p->vram_peak_bytes);
    keep_most(&out->pinned_bytes, p->host_pinned_bytes);
    keep_most(&out->resident_bytes, p->host_resident_bytes);
}

/* All tokens that were computed: lines count those that are trained on, which may be fewer. */
static double speed_of(const hy_run *run, const hy_run_totals *t) {
    double per_step = (double)run->facts.tokens_per_step;
    if (!(t->seconds > 0)) return NAN;
    return (per_step > 0 ? (double)t->steps * per_step : (double)t->tokens) / t->seconds;
}

/* ---- the summary knows better ------------------------------------------------------------------ */

static void read_double(const hy_json_node *object, const char *key, double *out) {
    hy_json_as_double(hy_json_get(object, key), out);
}

static void read_count(const hy_json_node *object, const char *key, int64_t *out) {
    hy_json_as_int(hy_json_get(object, key), out);
}

static void read_phases(const hy_json_node *phases, hy_run_totals *out) {
    for (int p = 0; p < HY_PHASE_COUNT; p++) {
        const hy_json_node *phase = hy_json_object_at(phases, hy_phase_name((hy_phase)p));
        if (!phase) continue;
        read_count(phase, "steps", &out->phases[p].steps);
        read_double(phase, "seconds", &out->phases[p].seconds);
        read_double(phase, "wait_seconds", &out->phases[p].wait_seconds);
        read_double(phase, "vram_planned_bytes", &out->phases[p].planned_bytes);
        read_double(phase, "vram_peak_bytes", &out->phases[p].peak_bytes);
    }
}

static void read_summary(const hy_json_node *summary, hy_run_totals *out) {
    read_double(summary, "seconds", &out->seconds);
    read_double(summary, "tokens_per_second", &out->tokens_per_second);
    read_double(summary, "final_loss", &out->final_loss);
    read_double(summary, "val_loss", &out->val_loss);
    read_double(summary, "confidence", &out->confidence);
    read_double(summary, "spent", &out->spent);
    read_double(summary, "mfu", &out->mfu);
    read_double(summary, "predicted_steps", &out->predicted_steps);
    read_count(summary, "tokens", &out->tokens);
    read_count(summary, "moves", &out->moves);
    read_count(summary, "rejected_moves", &out->rejected_moves);
    read_count(summary, "skipped_steps", &out->skipped_steps);
    if (hy_json_object_at(summary, "phases"))
        read_phases(hy_json_object_at(summary, "phases"), out);
}

void hy_run_total(const hy_run *run, hy_run_totals *out) {
    *out = (hy_run_totals){.tokens_per_second = NAN,
                           .seconds = NAN,
                           .first_loss = NAN,
                           .val_loss = NAN,
                           .best_val_loss = NAN,
                           .spent = NAN,
                           .confidence = NAN,
                           .mfu = NAN,
                           .planned_bytes = NAN,
                           .peak_bytes = NAN,
                           .pinned_bytes = NAN,
                           .resident_bytes = NAN};
    for (int p = 0; p < HY_PHASE_COUNT; p++) {
        out->phases[p].planned_bytes = out->phases[p].peak_bytes = NAN;
    }
    for (size_t i = 0; i < hy_run_points(run); i++) add_point(hy_run_point_at(run, i), out);
    for (size_t i = 0; i < hy_run_events(run); i++) {
        const char *kind = hy_run_event_at(run, i)->kind;
        if (strcmp(kind, "batch") == 0) out->batch_changes++;
        if (strcmp(kind, "recovery") == 0) out->recoveries++;
    }
    double sum = 0;
    int count = 0;
    for (size_t i = hy_run_points(run); i-- > 0 && count < LAST_STEPS;) {
        const hy_run_point *p = hy_run_point_at(run, i);
        if (p->phase == HY_PREDICT || isnan(p->loss)) continue;
        sum += p->loss;
        count++;
    }
    out->final_loss = count > 0 ? sum / count : NAN;
    out->tokens_per_second = speed_of(run, out);
    if (run->facts.is_finished) read_summary(hy_json_root(run->summary), out);
}
