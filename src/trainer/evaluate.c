/* evaluate.c: measures the held-out loss of a run. See evaluate.h.
 *
 * eval_schedule.c chooses the steps and the sequences. A validation of the run updates its
 * lowest losses and early_stop; a measurement that the caller asks for does not. */
#include "trainer/evaluate.h"

#include <math.h>
#include <stdlib.h>

#include "record/row_scores.h"
#include "trainer/eval_schedule.h"
#include "trainer/provider_weights.h"
#include "trainer/recovery.h"
#include "trainer/reference.h"
#include "trainer/throughput.h"

#define FEW_TOKENS 500 /* the error of their mean loss is about 0.1 nats */
#define FEW_ANSWERS 50 /* the error of their accuracy is up to 0.07 */

/* Nothing changes, so a pass can be repeated when memory runs out. */
static hy_status look_at(hy_trainer *t, const hy_probe *what, bool uses_average, bool can_stop,
                         hy_probe *probe) {
    hy_engine *e = t->engine;
    hy_dtype dtype = e->plan->types.of[HY_FULL];
    hy_status status;
    do {
        *probe = *what;
        probe->split = HY_VAL;
        probe->dtype = dtype;
        probe->of_candidate = uses_average;
        probe->stop = can_stop ? &t->status.stop_requested : NULL;
        if (uses_average) hy_engine_propose(e, NULL, dtype);
        status = hy_trainer_probe(t, NULL, probe);
        if (status != HY_OK) HY_TRY(hy_trainer_prepare_retry(t, status));
    } while (status != HY_OK);
    e->retries.in_a_row = 0;
    return HY_OK;
}

static hy_status look(hy_trainer *t, hy_held_out what, bool uses_average, bool can_stop,
                      hy_probe *probe) {
    hy_probe held_out = {.data = t->data.set, .count = what.count, .stride = what.stride};
    return look_at(t, &held_out, uses_average, can_stop, probe);
}

/* Answers the rows of eval.eval_rows. */
static hy_status score_rows(hy_trainer *t, bool uses_average, bool can_stop, hy_row_scores *out) {
    if (!t->data.rows) *out = hy_row_scores_none(); /* a resumed run may have had rows before */
    if (!t->data.rows) return HY_OK;
    hy_probe probe, all;
    HY_TRY(hy_row_probe_make(t->data.rows, &all));
    hy_status status = look_at(t, &all, uses_average, can_stop, &probe);
    if (status == HY_OK) *out = hy_row_scores_of(t->data.rows, all.examples);
    free(all.examples);
    return status;
}

/* See hy_trainer_measure_held_out. */
static hy_status measure(hy_trainer *t, hy_eval_info *info, double *comparable) {
    double begin = hy_clock();
    bool is_final = hy_trainer_is_over(t);
    hy_held_out usual = hy_trainer_held_out(t, false), here = hy_trainer_held_out(t, is_final);
    hy_probe probe, again;
    /* The weights that OUT/model would get: the average if there is one. */
    bool uses_average =
        hy_has_row(t->engine, HY_ROW_AVERAGE) && t->engine->progress.average_samples > 0;
    if (is_final && uses_average) {
        HY_TRY(look(t, here, false, comparable, &probe));
        t->held_out.raw_val_loss = probe.mean;
    }
    HY_TRY(look(t, here, uses_average, comparable, &probe));
    bool is_other = here.count != usual.count && !isnan(t->progress->best.loss);
    if (comparable) *comparable = probe.mean;
    if (comparable && is_other) {
        HY_TRY(look(t, usual, uses_average, true, &again));
        *comparable = again.mean;
    }
    HY_TRY(score_rows(t, uses_average, comparable, &t->progress->row_scores));
    hy_row_scores_add_pairs(&t->progress->row_scores, probe.pair_stats);
    hy_row_scores_add_rewards(&t->progress->row_scores, &probe);
    if (comparable) {
        bool is_usual = is_other || here.count == usual.count;
        t->progress->best.sequences = (int64_t)(is_usual ? usual.count : here.count);
        t->progress->best.stride = is_usual ? (int64_t)usual.stride : 0;
        t->progress->best.of = (int64_t)hy_trainer_data(t)->sequences[HY_VAL];
    }
    /* The weights were measured, but not on the sequences of validations. */
    if (!comparable && t->progress->val_step != t->progress->step) t->progress->best.last = NAN;
    t->progress->val_loss = probe.mean;
    t->progress->val_step = t->progress->step;
    t->held_out.val_tokens = probe.counted;
    t->schedule->is_closed = is_final;
    *info = (hy_eval_info){.size = sizeof *info,
                           .step = t->progress->step,
                           .loss = probe.mean,
                           .tokens = probe.counted,
                           .seconds = hy_clock() - begin,
                           .is_final = is_final,
                           .row_scores = t->progress->row_scores};
    return HY_OK;
}

/* Between steps this is the phase Evaluate; during Predict it stays in Predict. */
hy_status hy_trainer_measure_held_out(hy_trainer *t, hy_eval_info *info, double *comparable) {
    HY_TRY(hy_trainer_must_run(t));
    HY_FAIL_IF(hy_trainer_data(t)->sequences[HY_VAL] == 0, HY_ERR_INPUT,
               "there is no held-out data to evaluate: set val_data, or val_fraction above 0");
    HY_TRY(hy_reference_measure(t));
    const hy_phase_row *before = hy_engine_phase(t->engine);
    hy_account account;
    if (!hy_phase_trains(before)) return measure(t, info, comparable);
    hy_account_open(t, &account);
    HY_TRY(hy_engine_enter_phase(t->engine, &hy_phase_table[HY_EVALUATE]));
    hy_status status = measure(t, info, comparable);
    if (status == HY_OK) t->progress->phases.steps[HY_EVALUATE]++;
    hy_account_close(t, &account);
    hy_status left = hy_engine_enter_phase(t->engine, before);
    return status != HY_OK ? status : left;
}

/* A loss that is not finite is never lower. */
static void compare(hy_trainer *t, double loss, bool is_final) {
    hy_best *best = &t->progress->best;
    best->last = loss;
    if (isfinite(loss) && !(best->loss <= loss)) {
        best->loss = loss;
        best->step = t->progress->step;
    }
    bool is_lower = isfinite(loss) && !(best->mark - t->settings->eval.early_stop_delta <= loss);
    if (is_lower) best->mark = loss;
    if (!is_final) best->stale = is_lower ? 0 : best->stale + 1;
}

hy_status hy_trainer_validate(hy_trainer *t, double *loss) {
    hy_eval_info info;
    double comparable;
    *loss = NAN;
    bool has_data = hy_trainer_data(t)->sequences[HY_VAL] > 0;
    if (!t->provider->facts.can_evaluate || !has_data) return HY_OK;
    hy_status status = hy_trainer_measure_held_out(t, &info, &comparable);
    bool can_go_on = !t->engine->work->is_gone && !t->team; /* else the error is returned */
    if (status == HY_ERR_MEMORY && can_go_on) {
        hy_say(t, HY_WARNING,
               "validation at step %lld was skipped: %s; a smaller eval_batch_size needs less "
               "memory",
               (long long)t->progress->step, hy_error_message());
        t->engine->retries.in_a_row = 0;
        return HY_OK;
    }
    HY_TRY(status);
    bool is_first = isnan(t->progress->best.loss) && !info.is_final;
    hy_loss_kind task = t->engine->model->loss.kind;
    bool has_answers = task != HY_LOSS_NEXT_TOKEN;
    if (is_first && info.tokens < (has_answers ? FEW_ANSWERS : FEW_TOKENS)) {
        bool is_part = t->progress->best.sequences < t->progress->best.of;
        hy_say(t, HY_NOTE,
               "only %lld held-out %s count, so the held-out %s varies by chance, and the best "
               "checkpoint with it; %s",
               (long long)info.tokens,
               task == HY_LOSS_POLICY ? "rows"
               : has_answers          ? "pairs"
                                      : "tokens",
               task == HY_LOSS_POLICY ? "reward" : "loss",
               is_part && task == HY_LOSS_POLICY ? "--eval-prompts 0 answers all of them"
               : is_part                         ? "--eval-batches 0 measures all held-out data"
                                                 : "--val-fraction or --val-data holds out more");
    }
    compare(t, comparable, info.is_final);
    if (t->observer.on_eval) t->observer.on_eval(t->observer.user, &info);
    *loss = info.loss;
    return HY_OK;
}

void hy_trainer_note_validation(hy_trainer *t, hy_status status) {
    t->schedule->is_validation_cut = hy_trainer_is_interrupted(t, status);
    t->schedule->is_validation_due = t->schedule->is_validation_cut;
}
