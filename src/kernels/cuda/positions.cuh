/* positions.cuh: which row of a position table a place of the batch sees.
 *
 * Its number in its sequence, or, with documents, in its document. A document said to begin after the
 * place begins at it, and one before its sequence with it, as in attention: no row is outside the table. */
#pragma once

#include <stdint.h>

static __device__ __forceinline__ int hy_position_of(int64_t place, int seq,
                                                     const int32_t *doc_starts) {
    int t = (int)((uint32_t)place % (uint32_t)seq);
    return doc_starts ? t - min(max(doc_starts[place], 0), t) : t;
}
