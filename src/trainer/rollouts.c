/* rollouts.c: see rollouts.h. */
#include "trainer/rollouts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/rng.h"
#include "model/batch_decode.h"
#include "reward/journal.h"
#include "setup/setup.h"
#include "trainer/recovery.h"
#include "trainer/throughput.h"

#define JOURNAL "rewards.jsonl"
#define LEAST_DEVIATION 1e-4 /* added to the standard deviation of rewards, as in TRL */

/* Answers as they are scored. */
typedef struct scoring {
    hy_rollout_prompt *prompts; /* (rows) */
    hy_prompt_row *rows;        /* (rows) */
    hy_rollout_answer *answers; /* (rows, samples) */
    hy_reward_item *items;      /* (rows, samples) */
    double *scores;             /* (rows, samples) */
    hy_text text;               /* of prompts and answers, one after the other */
    size_t rows_room, items_room;
} scoring;

struct hy_rollouts {
    hy_codec codec;
    hy_rollout *rollout;
    hy_rewards *rewards;
    hy_journal *journal; /* NULL: the run has no folder */
    scoring training, held_out;
    hy_reward_figures figures;
};

/* ---- opening --------------------------------------------------------------------------------- */

hy_status hy_rollouts_check(const hy_trainer *t) {
    const hy_settings *s = t->settings;
    const char *list[HY_REWARD_PARTS_MOST];
    char *copy;
    size_t count;
    hy_status status = hy_rewards_split(s->grpo.reward, &copy, list, &count);
    for (size_t i = 0; i < count && status == HY_OK; i++) status = hy_reward_check(list[i]);
    free(copy);
    if (status != HY_OK) return hy_fail_context(status, "grpo.reward");
    HY_FAIL_IF(count == 0 && !s->grpo.reward_program[0], HY_ERR_INPUT,
               "task grpo learns from rewards, but there are none; name a check (--reward exact) "
               "or a program (--reward-program COMMAND)");
    HY_FAIL_IF(s->grpo.prompts * s->grpo.samples > HY_JOURNAL_SCORES, HY_ERR_INPUT,
               "grpo.prompts x grpo.samples are %lld answers of a step; at most %d are accepted",
               (long long)(s->grpo.prompts * s->grpo.samples), HY_JOURNAL_SCORES);
    HY_FAIL_IF(s->grpo.answer_tokens >= s->train.seq_len, HY_ERR_INPUT,
               "grpo.answer_tokens is %lld, but a sequence has %lld tokens and needs room for the "
               "prompt, too; choose fewer, or a larger --seq-len",
               (long long)s->grpo.answer_tokens, (long long)s->train.seq_len);
    return HY_OK;
}

static hy_status open_codec(hy_rollouts *r, const hy_trainer *t) {
    char folder[HY_PATH_MAX];
    hy_ids unused = {0};
    int32_t end = -1, vocab = t->engine->model->shape.vocab;
    r->codec.tokenizer = (hy_tokenizer *)hy_dataset_tokenizer(t->data.set);
    int32_t ids = r->codec.tokenizer ? hy_tokenizer_vocab(r->codec.tokenizer) : vocab;
    r->codec.vocab = ids < vocab ? ids : vocab;
    HY_TRY(hy_model_folder(t->settings, folder));
    HY_TRY(hy_end_tokens_read(folder, &r->codec.ends));
    hy_status status = hy_dataset_encode_question(t->data.set, "?", &unused, &end);
    hy_ids_free(&unused);
    HY_TRY(status);
    hy_end_tokens *ends = &r->codec.ends;
    bool is_new = end >= 0 && !hy_end_tokens_has(ends, end) && ends->count < HY_MOST_END_TOKENS;
    if (is_new) ends->ids[ends->count++] = end;
    return HY_OK;
}

static hy_status open_rewards(hy_rollouts *r, const hy_trainer *t) {
    const hy_settings *s = t->settings;
    const char *list[HY_REWARD_PARTS_MOST];
    hy_reward_options options = {.seconds = s->grpo.reward_seconds, .observer = &t->observer};
    char *copy;
    size_t count;
    hy_status status = hy_rewards_split(s->grpo.reward, &copy, list, &count);
    if (status == HY_OK)
        status = hy_rewards_open(list, count, s->grpo.reward_program, &options, &r->rewards);
    free(copy);
    return status;
}

/* A resumed run in another folder takes the rewards of the run that it goes on from. */
static hy_status open_journal(hy_rollouts *r, const hy_trainer *t) {
    char path[HY_PATH_MAX], run[HY_PATH_MAX], from[HY_PATH_MAX], *text;
    size_t size;
    if (!t->record->out[0]) return HY_OK;
    HY_TRY(hy_path_join(path, sizeof path, t->record->out, JOURNAL));
    HY_TRY(hy_path_parent(run, sizeof run, t->resumed));
    HY_TRY(hy_path_join(from, sizeof from, run, JOURNAL));
    if (t->resumed[0] && !hy_path_exists(path) && hy_path_exists(from)) {
        HY_TRY(hy_file_read(from, &text, &size));
        hy_status status = hy_file_write_atomic(path, text, size);
        free(text);
        HY_TRY(status);
    }
    return hy_journal_open(path, t->resumed[0] != 0, &r->journal);
}

static hy_status open_all(hy_rollouts *r, hy_trainer *t) {
    const hy_settings *s = t->settings;
    bool is_gpu = t->engine->device.backend->facts.is_gpu;
    int32_t most = t->engine->model->shape.context;
    hy_rollout_options options = {.context = hy_rollout_context(s, most),
                                  .streams = hy_rollout_streams(s, is_gpu),
                                  .codec = &r->codec};
    HY_TRY(open_codec(r, t));
    HY_TRY(hy_rollout_create(t->engine, &options, &r->rollout));
    HY_TRY(open_rewards(r, t));
    return open_journal(r, t);
}

hy_status hy_rollouts_open(hy_trainer *t, hy_rollouts **out) {
    hy_rollouts *r = calloc(1, sizeof *r);
    *out = NULL;
    HY_FAIL_IF(!r, HY_ERR_MEMORY, "not enough memory for rollouts");
    hy_status status = open_all(r, t);
    if (status == HY_OK)
        *out = r;
    else
        hy_rollouts_close(r);
    return status;
}

static void free_scoring(scoring *s) {
    free(s->prompts);
    free(s->rows);
    free(s->answers);
    free(s->items);
    free(s->scores);
    hy_text_free(&s->text);
}

void hy_rollouts_close(hy_rollouts *r) {
    if (!r) return;
    hy_rollout_destroy(r->rollout);
    hy_rewards_close(r->rewards);
    hy_journal_close(r->journal);
    free_scoring(&r->training);
    free_scoring(&r->held_out);
    free(r);
}

/* ---- prompts and answers --------------------------------------------------------------------- */

static hy_status reserve(scoring *s, size_t rows, size_t samples) {
    size_t count = rows * samples;
    if (rows > s->rows_room) {
        free(s->prompts);
        free(s->rows);
        s->prompts = malloc(rows * sizeof *s->prompts);
        s->rows = malloc(rows * sizeof *s->rows);
        s->rows_room = s->prompts && s->rows ? rows : 0;
    }
    if (count > s->items_room) {
        free(s->answers);
        free(s->items);
        free(s->scores);
        s->answers = malloc(count * sizeof *s->answers);
        s->items = malloc(count * sizeof *s->items);
        s->scores = malloc(count * sizeof *s->scores);
        s->items_room = s->answers && s->items && s->scores ? count : 0;
    }
    HY_FAIL_IF(s->rows_room < rows || s->items_room < count, HY_ERR_MEMORY,
               "not enough memory for %zu answers", count);
    return HY_OK;
}

/* Row `at` of a split becomes prompt i. */
static hy_status add_prompt(hy_trainer *t, scoring *s, size_t i, hy_split split, uint64_t at) {
    const hy_settings *set = t->settings;
    hy_prompt_row *row = &s->rows[i];
    HY_TRY(hy_dataset_prompt(t->data.set, split, at, row));
    bool is_training = split == HY_TRAIN;
    s->prompts[i] =
        (hy_rollout_prompt){.tokens = row->tokens,
                            .count = row->count,
                            .answers = is_training ? (int32_t)set->grpo.samples : 1,
                            .max_tokens = (int32_t)set->grpo.answer_tokens,
                            /* the head's logits are divided by the temperature already */
                            .temperature = is_training ? 1 : 0,
                            .seed = hy_rng_u64((uint64_t)set->seed, HY_RNG_ROLLOUT, at)};
    return HY_OK;
}

/* Appends the text of tokens; *offset is where it begins. */
static hy_status add_text(const hy_rollouts *r, scoring *s, const int32_t *tokens, int32_t count,
                          int flags, size_t *offset, size_t *size) {
    *offset = s->text.size;
    HY_TRY(hy_decode_text(r->codec.tokenizer, tokens, (size_t)count, flags, &s->text));
    *size = s->text.size - *offset;
    return hy_text_status(&s->text);
}

/* Fills in the items. Texts are offsets first, because s->text moves while it grows. */
static hy_status describe_answers(const hy_rollouts *r, scoring *s, size_t rows, size_t samples) {
    hy_text_clear(&s->text);
    for (size_t i = 0; i < rows * samples; i++) {
        const hy_rollout_answer *a = &s->answers[i];
        const hy_prompt_row *row = &s->rows[i / samples];
        hy_reward_item *item = &s->items[i];
        size_t at;
        *item = (hy_reward_item){.expected = row->expected,
                                 .expected_size = row->expected_size,
                                 .row_json = row->row,
                                 .row_size = row->row_size,
                                 .tokens = a->count,
                                 .ended = a->has_ended};
        HY_TRY(
            add_text(r, s, row->tokens, i % samples ? 0 : row->count, 0, &at, &item->prompt_size));
        item->prompt = (const char *)at;
        HY_TRY(add_text(r, s, a->tokens, a->count - a->has_ended, HY_TOKENS_SKIP_SPECIAL, &at,
                        &item->answer_size));
        item->answer = (const char *)at;
    }
    const char *text = hy_text_string(&s->text);
    for (size_t i = 0; i < rows * samples; i++) {
        hy_reward_item *item = &s->items[i];
        item->answer = text + (size_t)item->answer;
        item->prompt = text + (size_t)item->prompt;
        if (i % samples == 0) continue;
        item->prompt = s->items[i - 1].prompt;
        item->prompt_size = s->items[i - 1].prompt_size;
    }
    return HY_OK;
}

static hy_status generate(hy_rollouts *r, scoring *s, size_t rows, size_t samples,
                          const atomic_bool *stop) {
    HY_TRY(hy_rollout_run(r->rollout, s->prompts, rows, (int32_t)samples, stop, s->answers));
    return describe_answers(r, s, rows, samples);
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* The best and the worst answer to the first prompt whose answers differ. */
static hy_journal_example pick_example(const scoring *s, size_t rows, size_t samples) {
    size_t best = 0, worst = 0;
    for (size_t i = 0; i < rows && s->scores[best] == s->scores[worst]; i++) {
        best = worst = i * samples;
        for (size_t k = best; k < (i + 1) * samples; k++) {
            if (s->scores[k] > s->scores[best]) best = k;
            if (s->scores[k] < s->scores[worst]) worst = k;
        }
    }
    const hy_reward_item *good = &s->items[best], *bad = &s->items[worst];
    return (hy_journal_example){.prompt = good->prompt,
                                .prompt_size = good->prompt_size,
                                .best = {good->answer, good->answer_size, s->scores[best]},
                                .worst = {bad->answer, bad->answer_size, s->scores[worst]}};
}

/* From the journal, if these answers were scored before the run was interrupted. */
static hy_status score(hy_rollouts *r, hy_trainer *t, int64_t number, size_t rows, size_t samples) {
    scoring *s = &r->training;
    size_t count = rows * samples;
    uint64_t hash = hy_rewards_hash(r->rewards, s->items, count);
    bool is_found;
    HY_TRY(hy_journal_find(r->journal, number, hash, s->scores, count, &is_found));
    if (is_found) return HY_OK;
    HY_TRY(
        hy_rewards_score(r->rewards, s->items, count, &t->status.stop_requested, s->scores, NULL));
    hy_journal_example example = pick_example(s, rows, samples);
    return hy_journal_put(r->journal, number, hash, s->scores, count, &example);
}

/* Mean and standard deviation (of a sample) of `count` numbers. */
static void moments(const double *x, size_t count, double *mean, double *deviation) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++) sum += x[i];
    *mean = sum / (double)count;
    for (size_t i = 0; i < count; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *deviation = count > 1 ? sqrt(squares / (double)(count - 1)) : 0;
}

/* The reward less the mean of its group, over a standard deviation. */
static void find_advantages(hy_rollouts *r, const hy_trainer *t, hy_scored_answer *out) {
    const scoring *s = &r->training;
    size_t rows = (size_t)t->settings->grpo.prompts, samples = (size_t)t->settings->grpo.samples;
    hy_reward_scale scale = t->settings->grpo.reward_scale;
    hy_reward_figures *f = &r->figures;
    double all, batch, ended = 0, tokens = 0, equal = 0, deviations = 0;
    moments(s->scores, rows * samples, &all, &batch);
    for (size_t i = 0; i < rows; i++) {
        const double *group = s->scores + i * samples;
        double mean, deviation;
        moments(group, samples, &mean, &deviation);
        double divisor = scale == HY_SCALE_NONE
                             ? 1
                             : LEAST_DEVIATION + (scale == HY_SCALE_BATCH ? batch : deviation);
        bool is_equal = true;
        for (size_t k = 1; k < samples; k++) is_equal = is_equal && group[k] == group[0];
        for (size_t k = i * samples; k < (i + 1) * samples; k++) {
            out[k] =
                (hy_scored_answer){.prompt = s->rows[i].tokens,
                                   .prompt_count = s->rows[i].count,
                                   .tokens = s->answers[k],
                                   .reward = s->scores[k],
                                   .advantage = is_equal ? 0 : (s->scores[k] - mean) / divisor};
            ended += s->answers[k].has_ended;
            tokens += s->answers[k].count;
        }
        equal += is_equal;
        deviations += deviation;
    }
    double answers = (double)(rows * samples);
    f->reward = all;
    f->reward_deviation = deviations / (double)rows;
    f->answer_tokens = tokens / answers;
    f->answers_ended = ended / answers;
    f->groups_equal = equal / (double)rows;
}

/* ---- a rollout ------------------------------------------------------------------------------- */

static hy_status make(hy_rollouts *r, hy_trainer *t, int64_t number, hy_scored_answer *out) {
    size_t rows = (size_t)t->settings->grpo.prompts, samples = (size_t)t->settings->grpo.samples;
    const hy_rollout_facts *facts = hy_rollout_describe(r->rollout);
    int64_t tokens = facts->tokens;
    double begin = facts->seconds, copied = facts->copy_seconds, scored;
    HY_TRY(reserve(&r->training, rows, samples));
    for (size_t i = 0; i < rows; i++) {
        HY_TRY(add_prompt(t, &r->training, i, HY_TRAIN, (uint64_t)t->progress->sequences + i));
    }
    HY_TRY(generate(r, &r->training, rows, samples, &t->status.stop_requested));
    scored = hy_clock();
    HY_TRY(score(r, t, number, rows, samples));
    r->figures.reward_seconds = hy_clock() - scored;
    r->figures.rollout_seconds = facts->seconds - begin;
    r->figures.rollout_copy_seconds = facts->copy_seconds - copied;
    r->figures.rollout_speed = (double)(facts->tokens - tokens) / r->figures.rollout_seconds;
    find_advantages(r, t, out);
    return HY_OK;
}

hy_status hy_rollouts_make(hy_rollouts *r, hy_trainer *t, int64_t number, hy_scored_answer *out) {
    const hy_phase_row *before = hy_engine_phase(t->engine);
    hy_account account;
    hy_account_open(t, &account);
    HY_TRY(hy_engine_enter_phase(t->engine, &hy_phase_table[HY_ROLLOUT]));
    hy_status status;
    while ((status = make(r, t, number, out)) != HY_OK) {
        hy_error error;
        hy_error_save(&error, status);
        (void)hy_engine_settle(t->engine); /* the first failure is reported */
        status = hy_trainer_prepare_retry(t, hy_error_restore(&error));
        if (status != HY_OK) break;
    }
    if (status == HY_OK) t->engine->retries.in_a_row = 0;
    if (status == HY_OK) t->progress->phases.steps[HY_ROLLOUT]++;
    hy_account_close(t, &account);
    hy_status left = hy_engine_enter_phase(t->engine, before);
    return status != HY_OK ? status : left;
}

void hy_rollouts_describe(const hy_rollouts *r, hy_reward_figures *out) { *out = r->figures; }

hy_status hy_rollouts_measure(hy_rollouts *r, hy_trainer *t, const hy_probe *probe, double *mean,
                              double *error) {
    scoring *s = &r->held_out;
    size_t rows = (size_t)probe->count;
    double deviation;
    HY_TRY(reserve(s, rows, 1));
    for (size_t i = 0; i < rows; i++) {
        uint64_t stride = probe->stride ? probe->stride : 1;
        uint64_t at = probe->list ? probe->list[i] : probe->first + i * stride;
        HY_TRY(add_prompt(t, s, i, HY_VAL, at));
    }
    HY_TRY(generate(r, s, rows, 1, probe->stop));
    /* As many at a time as a step has: the time limit of a program is for these. */
    size_t most = (size_t)(t->settings->grpo.prompts * t->settings->grpo.samples);
    for (size_t at = 0; at < rows; at += most) {
        size_t count = rows - at < most ? rows - at : most;
        HY_TRY(
            hy_rewards_score(r->rewards, s->items + at, count, probe->stop, s->scores + at, NULL));
    }
    moments(s->scores, rows, mean, &deviation);
    *error = deviation / sqrt((double)rows);
    return HY_OK;
}
