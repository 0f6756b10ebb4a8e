/* evaluate.c: a run's held-out loss and its samples, between steps. See hybrid.h.
 *
 * Frequency and size follow only from the run's length and the tokens of a step, never from the
 * clock: a resumed run validates at the same steps. By default validations take at most a few
 * percent of the run: a forward pass costs a third of a step over the same tokens. The sequences
 * are spread evenly over the held-out data. */
#include <math.h>

#include "base/json.h"
#include "base/sized.h"
#include "infer/sample.h"
#include "trainer/adapt.h"
#include "trainer/advance.h"
#include "trainer/evaluate.h"
#include "trainer/make.h"
#include "trainer/ranks.h"
#include "trainer/trainer.h"

#define SHARE 0.03                     /* of the run's compute, for all but the closing one */
#define FORWARD (1.0 / 3)              /* compute of a token that is only looked at */
#define USUAL 20                       /* validations of a run, where that share allows them, */
#define MOST_STEPS 1000                /* and at most so many steps from one to the next */
#define LEAST_TOKENS 8192.0            /* fewer say little */
#define MOST_TOKENS 131072.0           /* more say little more */
#define CLOSING_SHARE 0.1              /* of the run's tokens, */
#define CLOSING_LEAST 65536.0          /* but so many at least */
#define CLOSING_MOST (1024.0 * 1024.0) /* and at most */

/* Held-out sequences: every stride-th, so many of them. */
typedef struct looked_at {
    uint64_t count, stride;
} looked_at;

/* Computed, whether they count in the loss or not. */
static double step_tokens(const hy_trainer *t) {
    return (double)hy_step_sequences(t->engine) * (double)t->settings->train.seq_len;
}

static uint64_t held_out(const hy_trainer *t) { return hy_trainer_data(t)->sequences[HY_VAL]; }

/* A run that was extended keeps its validation sequences, so that losses can be compared. If
 * only the closing validation existed, its sequences are too many: they have no stride. */
static bool keeps_sequences(const hy_trainer *t) {
    const hy_best *best = &t->progress->best;
    double each = (double)t->settings->train.seq_len, tokens = (double)best->sequences * each;
    return t->settings->eval.eval_batches < 0 && best->sequences > 0 && best->stride > 0 &&
           tokens < MOST_TOKENS + each;
}

/* The micro-batch at the start of the run; with several ranks, that of a single rank, so that
 * any number of ranks validates on the same sequences. */
static int64_t batch_of_one(const hy_trainer *t) {
    int64_t step = hy_step_sequences(t->engine), batch = t->settings->train.batch_size;
    if (!t->team) return t->first_batch;
    if (batch > step) batch = step;
    while (step % batch != 0) batch--;
    return batch;
}

/* eval_batches counts training micro-batches, so it does not depend on the plan. */
static looked_at choose(const hy_trainer *t, bool is_closing) {
    uint64_t all = held_out(t);
    int64_t batches = t->settings->eval.eval_batches, every = t->settings->eval.eval_every;
    if (batches >= 0) {
        uint64_t wanted = (uint64_t)(batches * batch_of_one(t));
        return (looked_at){wanted && wanted < all ? wanted : all, 1};
    }
    if (!is_closing && keeps_sequences(t)) {
        return (looked_at){(uint64_t)t->progress->best.sequences,
                           (uint64_t)t->progress->best.stride};
    }
    double steps = (double)t->loop->steps_total;
    double between = every > 0 ? (double)every : steps / USUAL;
    double tokens = SHARE / FORWARD * between * step_tokens(t);
    tokens = fmin(fmax(tokens, LEAST_TOKENS), MOST_TOKENS);
    double closing = fmax(CLOSING_SHARE * steps * step_tokens(t), CLOSING_LEAST);
    if (is_closing) tokens = fmax(tokens, fmin(closing, CLOSING_MOST));
    double wanted = ceil(tokens / (double)t->settings->train.seq_len);
    if (wanted >= (double)all) return (looked_at){all, 1};
    return (looked_at){(uint64_t)wanted, all / (uint64_t)wanted};
}

void hy_trainer_fit_best(hy_trainer *t, bool has_other_data) {
    hy_best *best = &t->progress->best;
    bool is_possible = best->stride > 0 && best->sequences > 0 && best->of > 0 &&
                       best->sequences <= best->of / best->stride;
    looked_at next = choose(t, false);
    if (is_possible && !has_other_data && (uint64_t)best->of == held_out(t) &&
        (uint64_t)best->sequences == next.count && (uint64_t)best->stride == next.stride)
        return;
    if (isfinite(best->loss)) {
        hy_say(t, HY_NOTE,
               "validation now uses other sequences than before: the lowest held-out loss and the "
               "count of early_stop start over");
    }
    *best = HY_NO_BEST;
}

uint64_t hy_trainer_val_sequences(const hy_trainer *t) { return choose(t, false).count; }

int64_t hy_trainer_eval_every(const hy_trainer *t) {
    if (t->settings->eval.eval_every >= 0) return t->settings->eval.eval_every;
    if (!t->provider->facts.has_passes) return 0; /* what it costs is not known */
    double steps = (double)t->loop->steps_total;
    double each = (double)choose(t, false).count * (double)t->settings->train.seq_len * FORWARD;
    double affordable = floor(SHARE * steps * step_tokens(t) / each);
    double wanted = fmin(affordable, fmax(USUAL, steps / MOST_STEPS));
    return wanted >= 1 ? (int64_t)ceil(steps / wanted) : 0;
}

/* Weights in a provider's memory are kept in the snapshot while the average is evaluated. While
 * a jump may still be undone from there, this needs a copy, which only hy_trainer_evaluate
 * makes. */
bool hy_trainer_can_validate(const hy_trainer *t) {
    const hy_engine_progress *p = &t->engine->progress;
    bool waits_there =
        t->engine->custom && !t->engine->plan->types.has_low && p->average_samples > 0;
    return !(waits_there && p->has_snapshot);
}

bool hy_trainer_is_stopped_early(const hy_trainer *t) {
    int64_t patience = t->settings->eval.early_stop;
    return patience > 0 && t->progress->best.stale >= patience;
}

bool hy_trainer_is_over(const hy_trainer *t) {
    return t->progress->spent >= (double)t->loop->steps_total - 0.5 ||
           hy_trainer_is_stopped_early(t);
}

/* Nothing changes, so a pass can be repeated when memory runs out. */
static hy_status look(hy_trainer *t, looked_at what, bool uses_average, hy_probe *probe) {
    hy_engine *e = t->engine;
    hy_dtype dtype = e->plan->types.of[HY_FULL];
    hy_status status;
    do {
        *probe = (hy_probe){.data = t->data.set,
                            .split = HY_VAL,
                            .count = what.count,
                            .stride = what.stride,
                            .dtype = dtype,
                            .of_candidate = uses_average};
        if (uses_average) hy_engine_propose(e, NULL, dtype);
        status = hy_trainer_probe_held_out(t, probe);
        if (status != HY_OK) HY_TRY(hy_trainer_retry_with_less(t, status));
    } while (status != HY_OK);
    e->retries.in_a_row = 0;
    return HY_OK;
}

static void note_sequences(hy_trainer *t, looked_at what) {
    t->progress->best.sequences = (int64_t)what.count;
    t->progress->best.stride = (int64_t)what.stride;
    t->progress->best.of = (int64_t)held_out(t);
}

/* `comparable`, if not NULL, is the loss of the sequences that all other validations use. */
static hy_status measure(hy_trainer *t, hy_eval_info *info, double *comparable) {
    double begin = hy_clock();
    bool is_final = hy_trainer_is_over(t);
    looked_at usual = choose(t, false), here = choose(t, is_final);
    hy_probe probe, again;
    /* The loss of the weights that a checkpoint would hold now. */
    bool uses_average =
        hy_has_row(t->engine, HY_ROW_AVERAGE) && t->engine->progress.average_samples > 0;
    if (is_final && uses_average) {
        HY_TRY(look(t, here, false, &probe));
        t->held_out.raw_val_loss = probe.mean;
    }
    HY_TRY(look(t, here, uses_average, &probe));
    bool is_other = here.count != usual.count && !isnan(t->progress->best.loss);
    if (comparable) *comparable = probe.mean;
    if (comparable && is_other) {
        HY_TRY(look(t, usual, uses_average, &again));
        *comparable = again.mean;
    }
    bool is_usual = is_other || here.count == usual.count;
    if (comparable) note_sequences(t, is_usual ? usual : (looked_at){here.count, 0});
    /* The next save was validated, but not compared with others. */
    if (!comparable && t->progress->val_step != t->progress->step) t->progress->best.last = NAN;
    t->progress->val_loss = probe.mean;
    t->progress->val_step = t->progress->step;
    t->held_out.val_tokens = probe.counted;
    t->loop->is_closed = is_final;
    *info = (hy_eval_info){.size = sizeof *info,
                           .step = t->progress->step,
                           .loss = probe.mean,
                           .tokens = probe.counted,
                           .seconds = hy_clock() - begin,
                           .is_final = is_final};
    return HY_OK;
}

/* Between steps this is the phase Evaluate; in Predict it is part of Predict. */
static hy_status evaluate(hy_trainer *t, hy_eval_info *info, double *comparable) {
    HY_TRY(hy_trainer_must_run(t));
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

hy_status hy_trainer_evaluate_sized(hy_trainer *t, hy_eval_info *info, size_t size) {
    hy_eval_info now;
    hy_status status = evaluate(t, &now, NULL);
    if (status == HY_OK) hy_copy_sized(info, size, &now, sizeof now);
    return hy_ranks_fail(t, status);
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

hy_status hy_trainer_validate(hy_trainer *t, hy_eval_info *info) {
    double comparable;
    HY_TRY(evaluate(t, info, &comparable));
    compare(t, comparable, info->is_final);
    if (t->observer.on_eval) t->observer.on_eval(t->observer.user, info);
    return HY_OK;
}

/* For the report. */
static void keep_sample(const hy_trainer *t, const char *prompt, const hy_text *sample) {
    hy_text json = {0};
    hy_json_writer w;
    if (!t->record->lock) return; /* nothing is written */
    hy_json_begin(&w, &json, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_int(&w, "step", t->progress->step);
    hy_json_put_string(&w, "prompt", prompt ? prompt : "");
    hy_json_put_string(&w, "text", hy_text_string(sample));
    hy_json_close_object(&w);
    hy_text_add(&json, "\n");
    hy_status status = hy_text_status(&json);
    if (status == HY_OK) status = hy_record_write(t->record, "sample.json", json.data);
    if (status != HY_OK) hy_say(t, HY_WARNING, "%s", hy_error_message());
    hy_text_free(&json);
}

hy_status hy_trainer_sample(hy_trainer *t, const hy_sample_options *options, char **text,
                            size_t *size) {
    hy_text out = {0};
    *text = NULL;
    HY_TRY(hy_trainer_must_run(t));
    HY_TRY(hy_trainer_must_have_passes(t, "samples of text"));
    HY_TRY(hy_team_fail(
        t->team, hy_engine_sample(t->engine, hy_dataset_tokenizer(t->data.set), options, &out)));
    keep_sample(t, options->prompt, &out);
    if (size) *size = out.size;
    *text = out.data;
    return HY_OK;
}
