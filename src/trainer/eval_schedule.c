/* eval_schedule.c: how often a run validates, and on which held-out sequences. See eval_schedule.h.
 *
 * Frequency and size follow only from the run's length and the tokens of a step, never from the
 * clock: a resumed run validates at the same steps. By default validations take at most a few
 * percent of the run: a forward pass costs a third of a step over the same tokens. The sequences
 * are spread evenly over the held-out data. Rows of eval_rows change neither: the run reports their
 * cost. Task grpo counts in answers instead of tokens, because generating them takes the time. */
#include "trainer/eval_schedule.h"

#include <math.h>

#define SHARE 0.03          /* share of the run's compute for all validations but the closing one */
#define FORWARD (1.0 / 3)   /* compute of a token in a forward pass, in tokens of a step */
#define USUAL 20            /* validations of a run, if SHARE allows them */
#define MOST_STEPS 1000     /* most steps between two validations */
#define LEAST_TOKENS 8192.0 /* fewer tokens are too noisy */
#define MOST_TOKENS 131072.0  /* more tokens add little */
#define CLOSING_SHARE 0.1     /* tokens of the closing validation, as a share of the run's tokens */
#define CLOSING_LEAST 65536.0 /* least tokens of that validation */
#define CLOSING_MOST (1024.0 * 1024.0) /* most tokens of it */

/* Task grpo, as above, in rows. */
#define LEAST_ROWS 64.0
#define MOST_ROWS 256.0
#define CLOSING_MOST_ROWS 1024.0

/* Tokens that a step computes, counted in the loss or not. */
static double step_tokens(const hy_trainer *t) {
    return (double)hy_step_sequences(t->engine) * (double)t->settings->train.seq_len;
}

static uint64_t held_out(const hy_trainer *t) { return hy_trainer_data(t)->sequences[HY_VAL]; }

static bool is_rewarded(const hy_trainer *t) { return t->settings->task == HY_LOSS_POLICY; }

/* Answers that a step generates. */
static double step_answers(const hy_trainer *t) {
    return (double)(t->settings->grpo.prompts * t->settings->grpo.samples) /
           (double)t->settings->grpo.iterations;
}

static hy_held_out spread(double wanted, uint64_t all) {
    if (wanted >= (double)all) return (hy_held_out){all, 1};
    return (hy_held_out){(uint64_t)wanted, all / (uint64_t)wanted};
}

/* A run that was extended keeps its validation sequences, so that losses can be compared. Stride 0
 * marks the sequences of a closing validation: too many to reuse. */
static bool keeps_sequences(const hy_trainer *t) {
    const hy_best *best = &t->progress->best;
    double each = (double)t->settings->train.seq_len, tokens = (double)best->sequences * each;
    if (is_rewarded(t)) /* its number of rows is a setting */
        return t->settings->grpo.eval_prompts < 0 && best->sequences > 0 && best->stride > 0 &&
               (double)best->sequences <= MOST_ROWS;
    return t->settings->eval.eval_batches < 0 && best->sequences > 0 && best->stride > 0 &&
           tokens < MOST_TOKENS + each;
}

/* The micro-batch at the start of the run; with several ranks, the one that a single rank would
 * use, so that any number of ranks validates on the same sequences. */
static int64_t batch_of_one(const hy_trainer *t) {
    int64_t step = hy_step_sequences(t->engine), batch = t->settings->train.batch_size;
    if (!t->team) return t->first_batch;
    if (batch > step) batch = step;
    while (step % batch != 0) batch--;
    return batch;
}

/* Between validations of a run, `between` steps apart. */
static double wanted_rows(const hy_trainer *t, double between, bool is_closing) {
    double answers = step_answers(t), all = (double)t->schedule->steps_total * answers;
    double rows = fmin(fmax(SHARE * between * answers, LEAST_ROWS), MOST_ROWS);
    if (is_closing) rows = fmax(rows, fmin(CLOSING_SHARE * all, CLOSING_MOST_ROWS));
    return ceil(rows);
}

/* eval_batches counts training micro-batches, so it does not depend on the plan. */
hy_held_out hy_trainer_held_out(const hy_trainer *t, bool is_closing) {
    uint64_t all = held_out(t);
    int64_t batches = t->settings->eval.eval_batches, every = t->settings->eval.eval_every;
    int64_t rows = is_rewarded(t) ? t->settings->grpo.eval_prompts : -1;
    if (rows >= 0) return spread(rows ? (double)rows : (double)all, all);
    if (batches >= 0) {
        uint64_t wanted = (uint64_t)(batches * batch_of_one(t));
        return (hy_held_out){wanted && wanted < all ? wanted : all, 1};
    }
    if (!is_closing && keeps_sequences(t)) {
        return (hy_held_out){(uint64_t)t->progress->best.sequences,
                             (uint64_t)t->progress->best.stride};
    }
    double steps = (double)t->schedule->steps_total;
    double between = every > 0 ? (double)every : steps / USUAL;
    if (is_rewarded(t)) return spread(wanted_rows(t, between, is_closing), all);
    double tokens = SHARE / FORWARD * between * step_tokens(t);
    tokens = fmin(fmax(tokens, LEAST_TOKENS), MOST_TOKENS);
    double closing = fmax(CLOSING_SHARE * steps * step_tokens(t), CLOSING_LEAST);
    if (is_closing) tokens = fmax(tokens, fmin(closing, CLOSING_MOST));
    return spread(ceil(tokens / (double)t->settings->train.seq_len), all);
}

void hy_trainer_fit_best(hy_trainer *t, bool has_other_data) {
    hy_best *best = &t->progress->best;
    bool is_possible = best->stride > 0 && best->sequences > 0 && best->of > 0 &&
                       best->sequences <= best->of / best->stride;
    hy_held_out next = hy_trainer_held_out(t, false);
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

uint64_t hy_trainer_row_sequences(const hy_trainer *t) {
    return t->data.rows ? hy_dataset_describe(t->data.rows)->sequences[HY_VAL] : 0;
}

int64_t hy_trainer_eval_every(const hy_trainer *t) {
    if (held_out(t) == 0) return 0;
    if (t->settings->eval.eval_every >= 0) return t->settings->eval.eval_every;
    if (!t->provider->facts.has_passes) return 0; /* the cost of a validation is not known */
    double steps = (double)t->schedule->steps_total;
    double sequences = (double)hy_trainer_held_out(t, false).count;
    double each = sequences * (double)t->settings->train.seq_len * FORWARD;
    double affordable = floor(SHARE * steps * step_tokens(t) / each);
    if (is_rewarded(t)) affordable = floor(SHARE * steps * step_answers(t) / sequences);
    double wanted = fmin(affordable, fmax(USUAL, steps / MOST_STEPS));
    return wanted >= 1 ? (int64_t)ceil(steps / wanted) : 0;
}

void hy_trainer_say_row_cost(const hy_trainer *t) {
    double tokens = (double)hy_trainer_row_sequences(t) * (double)t->settings->train.seq_len;
    double each = tokens * FORWARD / step_tokens(t), steps = (double)t->schedule->steps_total;
    int64_t every = hy_trainer_eval_every(t);
    double all = each * (every > 0 ? ceil(steps / (double)every) : 1);
    if (!(all > SHARE * steps)) return;
    hy_say(t, HY_NOTE,
           "each validation also answers the rows of eval_rows, which takes about as long as %.3g "
           "steps (%.3g of %.0f in the whole run); --eval-every N sets how often",
           each, all, steps);
}

/* While the average is evaluated, the snapshot row holds the weights of a provider with its own
 * memory. If a jump may still be undone, the snapshot is in use, so validation waits. A
 * hy_trainer_evaluate of the caller does not wait: it copies the snapshot (provider_weights.c). */
bool hy_trainer_can_validate(const hy_trainer *t) {
    const hy_engine_progress *p = &t->engine->progress;
    bool waits_there =
        t->engine->custom && !t->engine->plan->types.has_low && p->average_samples > 0;
    return !(waits_there && p->has_snapshot);
}
