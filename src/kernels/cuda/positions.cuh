/* positions.cuh: the row of a position table for a place of the batch.
 *
 * It is the place's number in its sequence or, with documents, in its document. A document start
 * after the place counts as the place, and one before the sequence as its start, as in attention:
 * no row is outside the table. */
#pragma once

#include <stdint.h>

static __device__ __forceinline__ int hy_position_of(int64_t place, int seq,
                                                     const int32_t *doc_starts) {
    int t = (int)((uint32_t)place % (uint32_t)seq);
    return doc_starts ? t - min(max(doc_starts[place], 0), t) : t;
}
