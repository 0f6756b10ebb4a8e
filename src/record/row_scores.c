/* row_scores.c: accuracy on rows for evaluation. See row_scores.h.
 *
 * The arithmetic is that of lm-evaluation-harness: acc, acc_norm (by characters), is_greedy, and the
 * standard error of a mean. Of equal values the first is the largest. */
#include "record/row_scores.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "formats/fields.h"

#define FIELD(name, type)                                                                          \
    {                                                                                              \
        .key = #name, .kind = HY_FIELD_##type, .from = offsetof(hy_row_scores, name),              \
        .into = offsetof(hy_row_scores, name)                                                      \
    }
static const hy_field fields[] = {
    FIELD(choice_rows, INTEGER),
    FIELD(accuracy, NUMBER),
    FIELD(accuracy_error, NUMBER),
    FIELD(accuracy_norm, NUMBER),
    FIELD(accuracy_norm_error, NUMBER),
    FIELD(answer_rows, INTEGER),
    FIELD(greedy_accuracy, NUMBER),
    FIELD(greedy_accuracy_error, NUMBER),
    FIELD(answer_loss, NUMBER),
    FIELD(answer_tokens, INTEGER),
    FIELD(cut_rows, INTEGER),
    FIELD(dropped_rows, INTEGER),
    FIELD(pairs, INTEGER),
    FIELD(pair_accuracy, NUMBER),
    FIELD(pair_accuracy_error, NUMBER),
    FIELD(reward_margin, NUMBER),
    FIELD(rewarded_rows, INTEGER),
    FIELD(val_reward, NUMBER),
    FIELD(val_reward_error, NUMBER),
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

bool hy_row_scores_exist(const hy_row_scores *s) {
    return s->choice_rows + s->answer_rows + s->pairs + s->rewarded_rows > 0;
}

void hy_row_scores_put(const hy_row_scores *s, hy_json_writer *w) {
    if (!hy_row_scores_exist(s)) return;
    hy_json_open_object(w, "row_scores");
    hy_fields_put(fields, FIELDS, s, 0, w);
    hy_json_close_object(w);
}

hy_row_scores hy_row_scores_get(const hy_json_node *object) {
    hy_row_scores s = hy_row_scores_none();
    const hy_json_node *found = hy_json_get(object, "row_scores");
    if (found) (void)hy_fields_take(fields, FIELDS, found, &s, NULL, NULL); /* it has no texts */
    return s;
}

hy_status hy_row_probe_make(hy_dataset *data, hy_probe *out) {
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    *out = (hy_probe){.data = data,
                      .split = HY_VAL,
                      .count = facts->sequences[HY_VAL],
                      .examples = calloc((size_t)facts->scored, sizeof *out->examples)};
    HY_FAIL_IF(!out->examples, HY_ERR_MEMORY, "not enough memory for %llu answers",
               (unsigned long long)facts->scored);
    for (uint64_t i = 0; i < facts->scored && !out->wants_misses; i++)
        out->wants_misses = hy_dataset_scored(data, i)->choices == 1;
    return HY_OK;
}

/* Counts of right answers. */
typedef struct counts {
    int64_t right[2]; /* of rows with choices: by log-probability, and divided by characters */
    int64_t greedy;   /* of rows without */
    double loss, tokens;
} counts;

/* The share `right` of `rows`, and its standard error: NaN where there are too few rows. */
static void divide(int64_t right, int64_t rows, double *share, double *error) {
    double n = (double)rows, p = (double)right / n;
    *share = p;
    *error = n > 1 ? sqrt(p * (1 - p) / (n - 1)) : NAN;
}

static void finish(hy_row_scores *s, const counts *c) {
    divide(c->right[0], s->choice_rows, &s->accuracy, &s->accuracy_error);
    divide(c->right[1], s->choice_rows, &s->accuracy_norm, &s->accuracy_norm_error);
    divide(c->greedy, s->answer_rows, &s->greedy_accuracy, &s->greedy_accuracy_error);
    s->pair_accuracy = s->pair_accuracy_error = s->reward_margin = NAN;
    s->val_reward = s->val_reward_error = NAN;
    s->answer_loss = c->loss / c->tokens;
    s->answer_tokens = (int64_t)c->tokens;
}

hy_row_scores hy_row_scores_none(void) {
    hy_row_scores s = {0};
    finish(&s, &(counts){0});
    return s;
}

hy_row_scores hy_row_scores_of(const hy_dataset *data, const hy_example_sum *examples) {
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    hy_row_scores s = {.cut_rows = (int64_t)facts->cut_rows,
                       .dropped_rows = (int64_t)facts->dropped_rows};
    counts c = {0};
    bool is_best_right[2] = {false};
    double best[2] = {0};
    for (uint64_t i = 0; i < facts->scored; i++) {
        const hy_scored *it = hy_dataset_scored(data, i);
        double score[2] = {-examples[i].loss, -examples[i].loss / it->characters};
        for (int k = 0; k < 2; k++) {
            if (it->choice > 0 && !(score[k] > best[k])) continue;
            best[k] = score[k];
            is_best_right[k] = it->is_right;
        }
        c.loss += it->is_right ? examples[i].loss : 0;
        c.tokens += it->is_right ? examples[i].counted : 0;
        bool is_alone = it->choices == 1, is_last = it->choice + 1 == it->choices;
        s.answer_rows += is_alone;
        s.choice_rows += is_last && !is_alone;
        c.greedy += is_alone && examples[i].misses == 0;
        for (int k = 0; k < 2; k++) c.right[k] += is_last && !is_alone && is_best_right[k];
    }
    finish(&s, &c);
    return s;
}

void hy_row_scores_add_pairs(hy_row_scores *s, const double stats[HY_PAIRS_STATS]) {
    if (stats[HY_PAIRS_COUNT] == 0) return;
    s->pairs = (int64_t)stats[HY_PAIRS_COUNT];
    divide((int64_t)stats[HY_PAIRS_RIGHT], s->pairs, &s->pair_accuracy, &s->pair_accuracy_error);
    s->reward_margin = (stats[HY_PAIRS_CHOSEN] - stats[HY_PAIRS_REJECTED]) / stats[HY_PAIRS_COUNT];
}

void hy_row_scores_add_rewards(hy_row_scores *s, const hy_probe *probe) {
    if (!probe->is_rewarded) return;
    s->rewarded_rows = probe->counted;
    s->val_reward = probe->reward;
    s->val_reward_error = probe->reward_error;
}
