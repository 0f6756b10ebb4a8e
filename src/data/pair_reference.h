/* pair_reference.h: the pairs of a sequence, and the log-probabilities of their answers by the model
 * before training (the reference).
 *
 * What is kept of the reference is one number for each answer: the sum of the losses of its tokens.
 * In a batch it is at the answer's first token, and what fp32 rounds off at its last, with 0 at its
 * others, so that code that adds up the losses of tokens gets the same sum. */
#pragma once

#include "data/dataset.h"

/* The positions [first, end) of the targets that count in one document. */
typedef struct hy_answer_place {
    int32_t first, end;
} hy_answer_place;

/* Finds the next pair from position *at on, which moves behind it; false: there is none. */
bool hy_pairs_next(const int32_t *targets, const int32_t *doc_starts, int32_t seq, int32_t *at,
                   hy_answer_place answers[2]);
int64_t hy_pairs_count(const int32_t *targets, const int32_t *doc_starts, int32_t seq);

/* A sequence of pairs that hy_dataset_fill has filled in. */
typedef struct hy_pairs_of {
    const hy_dataset *data;
    hy_split split;
    uint64_t sequence;
    const int32_t *targets, *doc_starts;
} hy_pairs_of;

/* sums[number][side] of the sequence's pairs, from the losses (T) of its tokens. */
hy_status hy_pairs_sum(const hy_pairs_of *of, const float *losses, double (*sums)[2]);
/* Fills reference (T) from the sums. */
hy_status hy_pairs_place(const hy_pairs_of *of, const double (*sums)[2], float *reference);
