/* sparse.h: which keys block-sparse attention sees, for the host and for kernels.
 *
 * A document is divided into blocks of 64 tokens, counted from its first token; so it has the same
 * pattern alone, packed behind others, and with a cache. A query sees, up to itself, `local`
 * blocks (its own and those before it) and the first `global` blocks of its document. What it does
 * not see of its document is thus one gap. Kernels go through tiles of keys and leave out those in
 * the gap of all queries of a tile; at its edges keys are masked. */
#pragma once

#include "kernels/half.h"

enum { HY_SPARSE_BLOCK = 64, HY_SPARSE_MOST = 1 << 18 }; /* tokens of a block; most blocks */

/* Positions [begin, end); empty if end <= begin. */
typedef struct hy_gap {
    int32_t begin, end;
} hy_gap;

HY_BOTH bool hy_gap_is_empty(hy_gap gap) { return gap.end <= gap.begin; }

/* The gap of a query of the document that begins at `document`. */
HY_BOTH hy_gap hy_sparse_gap(int32_t local, int32_t global, int32_t document, int32_t query) {
    int32_t first_local = (int32_t)((uint32_t)(query - document) / HY_SPARSE_BLOCK) - local + 1;
    hy_gap gap;
    gap.begin = document + global * HY_SPARSE_BLOCK;
    gap.end = document + first_local * HY_SPARSE_BLOCK;
    return gap;
}

/* What lies in both gaps. */
HY_BOTH hy_gap hy_gap_join(hy_gap a, hy_gap b) {
    if (b.begin > a.begin) a.begin = b.begin;
    if (b.end < a.end) a.end = b.end;
    return a;
}

/* Whether keys [key, key + count) lie in the gap. */
HY_BOTH bool hy_gap_hides(hy_gap gap, int32_t key, int32_t count) {
    return key >= gap.begin && key + count <= gap.end;
}

/* Whether one of them may. */
HY_BOTH bool hy_gap_touches(hy_gap gap, int32_t key, int32_t count) {
    return key < gap.end && key + count > gap.begin;
}

/* The gaps of some queries in a row: what lies in all of them, and what one of them reaches. */
typedef struct hy_gaps {
    hy_gap all, any;
} hy_gaps;

/* Of `count` queries from `query` on, in documents that begin between two positions. If these are
 * of several documents, nothing is known. */
HY_BOTH hy_gaps hy_gaps_of(int32_t local, int32_t global, int32_t first, int32_t last,
                           int32_t query, int32_t count) {
    hy_gaps gaps = {{0, 0}, {0, INT32_MAX}};
    if (first != last) return gaps;
    gaps.all = hy_sparse_gap(local, global, first, query);
    gaps.any = hy_sparse_gap(local, global, first, query + count - 1);
    return gaps;
}

/* The last query of a sequence of T that may see a key; documents that end before it are not
 * known here. */
HY_BOTH int32_t hy_sparse_last_query(int32_t local, int32_t global, int32_t document, int32_t key,
                                     int32_t T) {
    int32_t block = (key - document) / HY_SPARSE_BLOCK;
    int32_t after = T - document; /* tokens */
    if (block < global || after <= (block + local) * HY_SPARSE_BLOCK) return T - 1;
    return document + (block + local) * HY_SPARSE_BLOCK - 1;
}

/* The tiles of keys that lie in a gap are left out: those that remain are numbered from 0. */
typedef struct hy_left_out {
    int32_t first, count;
} hy_left_out;

HY_BOTH hy_left_out hy_left_out_of(hy_gap gap, int32_t tile) {
    hy_left_out out;
    out.first = (gap.begin + tile - 1) / tile;
    out.count = gap.end / tile - out.first;
    if (hy_gap_is_empty(gap) || out.count < 0) out.count = 0;
    return out;
}

/* The tile with this number. */
HY_BOTH int32_t hy_tile_behind(hy_left_out out, int32_t number) {
    return number < out.first ? number : number + out.count;
}
