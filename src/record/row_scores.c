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
    FIELD(choice_rows, INTEGER),        FIELD(accuracy, NUMBER),
    FIELD(accuracy_error, NUMBER),      FIELD(accuracy_norm, NUMBER),
    FIELD(accuracy_norm_error, NUMBER), FIELD(answer_rows, INTEGER),
    FIELD(greedy_accuracy, NUMBER),     FIELD(greedy_accuracy_error, NUMBER),
    FIELD(answer_loss, NUMBER),         FIELD(answer_tokens, INTEGER),
    FIELD(cut_rows, INTEGER),           FIELD(dropped_rows, INTEGER),
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

hy_row_scores hy_row_scores_none(void) {
    return (hy_row_scores){.accuracy = NAN,
                           .accuracy_error = NAN,
                           .accuracy_norm = NAN,
                           .accuracy_norm_error = NAN,
                           .greedy_accuracy = NAN,
                           .greedy_accuracy_error = NAN,
                           .answer_loss = NAN};
}

bool hy_row_scores_exist(const hy_row_scores *s) { return s->choice_rows + s->answer_rows > 0; }

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

/* The share `right` of `rows`, and its standard error; NaN: not known. */
static void divide(int64_t right, int64_t rows, double *share, double *error) {
    double p = (double)right / (double)rows;
    if (rows > 0) *share = p;
    if (rows > 1) *error = sqrt(p * (1 - p) / (double)(rows - 1));
}

hy_row_scores hy_row_scores_of(const hy_dataset *data, const hy_example_sum *examples) {
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    hy_row_scores s = hy_row_scores_none();
    int64_t right[2] = {0}, greedy = 0; /* by log-probability, and divided by characters */
    bool is_best_right[2] = {false};
    double best[2] = {0}, loss = 0, tokens = 0;
    for (uint64_t i = 0; i < facts->scored; i++) {
        const hy_scored *it = hy_dataset_scored(data, i);
        double score[2] = {-examples[i].loss, -examples[i].loss / it->characters};
        for (int k = 0; k < 2; k++) {
            if (it->choice > 0 && !(score[k] > best[k])) continue;
            best[k] = score[k];
            is_best_right[k] = it->is_right;
        }
        loss += it->is_right ? examples[i].loss : 0;
        tokens += it->is_right ? examples[i].counted : 0;
        if (it->choices == 1) {
            s.answer_rows++;
            greedy += examples[i].misses == 0;
        } else if (it->choice + 1 == it->choices) {
            s.choice_rows++;
            for (int k = 0; k < 2; k++) right[k] += is_best_right[k];
        }
    }
    divide(right[0], s.choice_rows, &s.accuracy, &s.accuracy_error);
    divide(right[1], s.choice_rows, &s.accuracy_norm, &s.accuracy_norm_error);
    divide(greedy, s.answer_rows, &s.greedy_accuracy, &s.greedy_accuracy_error);
    s.answer_loss = loss / tokens;
    s.answer_tokens = (int64_t)tokens;
    s.cut_rows = (int64_t)facts->cut_rows;
    s.dropped_rows = (int64_t)facts->dropped_rows;
    return s;
}
