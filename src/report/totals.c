/* totals.c: computes the totals of a run. See totals.h.
 *
 * All lines are added first. If the summary describes the newest line, its values replace those of
 * the lines. */
#include "report/totals.h"

#include <math.h>

#include "report/run.h"

static void keep_most(double *most, int64_t bytes) {
    if (bytes >= 0) *most = fmax(*most, (double)bytes);
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
        out->rejected_moves += p->was_rejected;
        out->moves += !p->was_rejected;
        if (!p->was_rejected && p->predicted_steps > 0) out->predicted_steps += p->predicted_steps;
    }
    out->steps = (double)p->step;
    if (p->tokens >= 0) out->tokens = (double)p->tokens;
    if (isnan(out->first_loss)) out->first_loss = p->loss;
    take_if_known(&out->seconds, p->elapsed);
    take_if_known(&out->val_loss, p->val_loss);
    take_if_known(&out->accuracy, 100 * p->accuracy);
    take_if_known(&out->accuracy_error, 100 * p->accuracy_error);
    take_if_known(&out->accuracy_norm, 100 * p->accuracy_norm);
    take_if_known(&out->greedy_accuracy, 100 * p->greedy_accuracy);
    take_if_known(&out->greedy_error, 100 * p->greedy_accuracy_error);
    take_if_known(&out->pair_accuracy, 100 * p->pair_accuracy);
    take_if_known(&out->pair_error, 100 * p->pair_accuracy_error);
    take_if_known(&out->reward_margin, p->reward_margin);
    take_if_known(&out->val_reward, p->val_reward);
    take_if_known(&out->spent, p->spent);
    take_if_known(&out->confidence, p->confidence);
    out->best_val_loss = fmin(out->best_val_loss, p->val_loss);
    keep_most(&out->planned_bytes, p->vram_planned_bytes);
    keep_most(&out->peak_bytes, p->vram_peak_bytes);
    keep_most(&out->pinned_bytes, p->host_pinned_bytes);
    keep_most(&out->resident_bytes, p->host_resident_bytes);
}

/* ---- values of the summary ------------------------------------------------------------------- */

typedef struct figure {
    const char *key;
    size_t at; /* offset of a double */
} figure;

static void read_figures(const hy_json_node *object, const figure *figures, size_t count,
                         void *out) {
    for (size_t i = 0; i < count; i++)
        hy_json_as_double(hy_json_get(object, figures[i].key),
                          (double *)(void *)((char *)out + figures[i].at));
}

#define OF_RUN(member)                                                                             \
    { #member, offsetof(hy_run_totals, member) }
#define OF_PHASE(member)                                                                           \
    { #member, offsetof(hy_phase_totals, member) }

static void read_summary(const hy_json_node *summary, hy_run_totals *out) {
    static const figure of_run[] = {
        OF_RUN(seconds),         OF_RUN(tokens_per_second),
        OF_RUN(final_loss),      OF_RUN(val_loss),
        OF_RUN(confidence),      OF_RUN(spent),
        OF_RUN(predicted_steps), OF_RUN(tokens),
        OF_RUN(moves),           OF_RUN(rejected_moves),
    };
    static const figure of_phase[] = {
        OF_PHASE(steps),
        OF_PHASE(seconds),
        OF_PHASE(wait_seconds),
        {"vram_planned_bytes", offsetof(hy_phase_totals, planned_bytes)},
        {"vram_peak_bytes", offsetof(hy_phase_totals, peak_bytes)},
    };
    const hy_json_node *phases = hy_json_get(summary, "phases");
    read_figures(summary, of_run, sizeof of_run / sizeof of_run[0], out);
    for (int p = 0; p < HY_PHASE_COUNT; p++)
        read_figures(hy_json_get(phases, hy_phase_name((hy_phase)p)), of_phase,
                     sizeof of_phase / sizeof of_phase[0], &out->phases[p]);
}

void hy_run_total(const hy_run *run, hy_run_totals *out) {
    *out = (hy_run_totals){.tokens_per_second = NAN,
                           .steps_per_second = NAN,
                           .seconds = NAN,
                           .first_loss = NAN,
                           .val_loss = NAN,
                           .best_val_loss = NAN,
                           .accuracy = NAN,
                           .accuracy_error = NAN,
                           .accuracy_norm = NAN,
                           .greedy_accuracy = NAN,
                           .pair_accuracy = NAN,
                           .pair_error = NAN,
                           .reward_margin = NAN,
                           .val_reward = NAN,
                           .greedy_error = NAN,
                           .spent = NAN,
                           .confidence = NAN,
                           .planned_bytes = NAN,
                           .peak_bytes = NAN,
                           .pinned_bytes = NAN,
                           .resident_bytes = NAN};
    for (int p = 0; p < HY_PHASE_COUNT; p++)
        out->phases[p].planned_bytes = out->phases[p].peak_bytes = NAN;
    for (size_t i = 0; i < hy_run_points(run); i++) add_point(hy_run_point_at(run, i), out);
    double sum = 0;
    int count = 0;
    for (size_t i = hy_run_points(run); i-- > 0 && count < HY_LAST_STEPS;) {
        const hy_run_point *p = hy_run_point_at(run, i);
        if (p->phase == HY_PREDICT || isnan(p->loss)) continue;
        sum += p->loss;
        count++;
    }
    out->final_loss = count > 0 ? sum / count : NAN;
    /* All tokens that were computed; lines count only those that are trained on, which may be
     * fewer. */
    double per_step = (double)run->facts.tokens_per_step;
    if (out->seconds > 0)
        out->tokens_per_second =
            (per_step > 0 ? out->steps * per_step : out->tokens) / out->seconds;
    if (run->facts.is_finished) read_summary(hy_json_root(run->summary), out);
    if (run->facts.is_custom && out->seconds > 0) out->steps_per_second = out->steps / out->seconds;
    if (!run->facts.has_tokens) out->tokens = out->tokens_per_second = NAN;
}
