/* pair_reference.c: the answers of a sequence of pairs, and what the reference says about them. See
 * dataset.h. */
#include "data/pair_reference.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Where the document that begins at `at` ends. Its answer is from the first target that counts to
 * behind the last one. */
static int32_t read_document(const int32_t *targets, const int32_t *doc_starts, int32_t seq,
                             int32_t at, hy_answer_place *answer) {
    int32_t begin = doc_starts[at];
    *answer = (hy_answer_place){-1, -1};
    for (; at < seq && doc_starts[at] == begin; at++) {
        if (targets[at] < 0) continue;
        if (answer->first < 0) answer->first = at;
        answer->end = at + 1;
    }
    return at;
}

bool hy_pairs_next(const int32_t *targets, const int32_t *doc_starts, int32_t seq, int32_t *at,
                   hy_answer_place answers[2]) {
    while (*at < seq) {
        *at = read_document(targets, doc_starts, seq, *at, &answers[0]);
        if (*at == seq) return false;
        *at = read_document(targets, doc_starts, seq, *at, &answers[1]);
        if (answers[0].first >= 0 && answers[1].first >= 0) return true;
    }
    return false;
}

int64_t hy_pairs_count(const int32_t *targets, const int32_t *doc_starts, int32_t seq) {
    hy_answer_place answers[2];
    int64_t count = 0;
    for (int32_t at = 0; hy_pairs_next(targets, doc_starts, seq, &at, answers);) count++;
    return count;
}

/* Calls `use` for both answers of each pair of sequence p, with the pair's sums. */
static hy_status for_answers(const hy_pairs_of *of, double (*sums)[2], float *array,
                             void (*use)(const hy_answer_place *answer, double *sum,
                                         float *array)) {
    int32_t seq = hy_dataset_describe(of->data)->seq, count, at = 0;
    uint64_t *numbers = malloc((size_t)seq * sizeof *numbers);
    HY_FAIL_IF(!numbers, HY_ERR_MEMORY, "not enough memory for the numbers of %d pairs", seq / 2);
    hy_answer_place answers[2];
    hy_status status = hy_dataset_pairs_in(of->data, of->split, of->sequence, numbers, &count);
    for (int32_t k = 0; status == HY_OK && k < count; k++) {
        if (!hy_pairs_next(of->targets, of->doc_starts, seq, &at, answers)) break;
        for (int side = 0; side < 2; side++) use(&answers[side], &sums[numbers[k]][side], array);
    }
    free(numbers);
    return status;
}

static void add_up(const hy_answer_place *answer, double *sum, float *losses) {
    *sum = 0;
    for (int32_t i = answer->first; i < answer->end; i++) *sum += (double)losses[i];
}

hy_status hy_pairs_sum(const hy_pairs_of *of, const float *losses, double (*sums)[2]) {
    return for_answers(of, sums, (float *)losses, add_up);
}

/* What fp32 rounds off the sum is at the last token. */
static void place_sum(const hy_answer_place *answer, double *sum, float *reference) {
    reference[answer->first] = (float)*sum;
    if (answer->end - 1 > answer->first)
        reference[answer->end - 1] = (float)(*sum - (double)reference[answer->first]);
}

hy_status hy_pairs_place(const hy_pairs_of *of, const double (*sums)[2], float *reference) {
    memset(reference, 0, (size_t)hy_dataset_describe(of->data)->seq * sizeof *reference);
    return for_answers(of, (double(*)[2])sums, reference, place_sum);
}
