/* collect.h: gathering and summing over a link, from exchanges alone.
 *
 * What a sum is does not depend on the kind of link: each rank receives the others' parts of its own share and adds them
 * in the order of ranks, ((x0 + x1) + x2) + ..., in fp32 (fp64 for fp64), and rounds once at the end. The same bits
 * come out however the work is cut into chunks. All ranks make the same calls with the same offsets. */
#pragma once

#include "dist/link.h"

/* Rank r's part of `whole` is bytes offsets[r] to offsets[r + 1]. Each rank gives its own part, at its place or in
 * `mine` (NULL: at its place), and gets the others'. offsets has count + 1 values. */
hy_status hy_all_gather(hy_link *link, void *whole, const uint64_t *offsets, const void *mine);

typedef struct hy_reduction {
    const void *whole; /* this rank's numbers, of all parts */
    hy_dtype dtype;    /* of them: fp32, bf16, fp16 or fp64 */
    const uint64_t
        *offsets;       /* (count + 1), in elements: rank r sums offsets[r] to offsets[r + 1] */
    void *out;          /* this rank's part; may be its place in `whole` where types are alike */
    hy_dtype out_dtype; /* dtype, or fp32 */
    bool is_added;      /* out = out + sum instead of out = sum; out_dtype fp32 or fp64 */
    /* Where others' parts arrive: alike on all ranks, at least one element of each other rank; with
     * hy_reduce_scatter_bytes() it goes in one exchange. */
    void *scratch;
    uint64_t scratch_bytes;
} hy_reduction;

hy_status hy_reduce_scatter(hy_link *link, const hy_reduction *what);
/* Scratch that makes one exchange of it: the largest part, from each other rank. */
uint64_t hy_reduce_scatter_bytes(const hy_link *link, hy_dtype dtype, const uint64_t *offsets);
