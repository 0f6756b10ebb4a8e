/* positions.cuh: the row of a position table for a place of the batch.
 *
 * It is the place's number in its sequence or, with documents, in its document. A document start
 * after the place counts as the place, and one before the sequence as its start, as in attention:
 * no row is outside the table. With `first`, a sequence's places begin at first[sequence], and those
 * of an idle sequence (below 0) have no row: -1. */
#pragma once

#include <stdint.h>

static __device__ __forceinline__ int
hy_position_of(int64_t place, int seq, const int32_t *doc_starts, const int32_t *first = NULL) {
    int t = (int)((uint32_t)place % (uint32_t)seq);
    if (first) {
        int begin = first[(uint32_t)place / (uint32_t)seq];
        return begin < 0 ? -1 : begin + t;
    }
    return doc_starts ? t - min(max(doc_starts[place], 0), t) : t;
}
