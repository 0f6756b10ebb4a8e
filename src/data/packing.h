/* packing.h: which examples share a sequence.
 *
 * First fit: examples come in an order shuffled by the seed (or as they lie), and each goes into the first
 * of the open sequences that has room; when too many are open, the oldest is closed. Who shares a sequence
 * is settled once for all epochs; the order of sequences is drawn anew each epoch by whoever reads them.
 * That is free: examples of a sequence do not see each other. Without packing each has its own sequence.
 *
 * An example of n tokens takes n - 1 places: its last token is only a target. */
#pragma once

#include "data/examples.h"

#define HY_OPEN_SEQUENCES 128

typedef struct hy_packing {
    const hy_examples *examples;
    hy_spool members; /* uint64: examples, sequence by sequence */
    hy_spool ends;    /* uint64: where the members of sequence i end */
    uint64_t sequences;
    uint64_t places;  /* taken by tokens, of sequences * T */
    uint64_t targets; /* that count */
} hy_packing;

typedef struct hy_packing_options {
    uint64_t first, count; /* of the examples */
    int32_t seq;
    bool packs;    /* false: one example a sequence */
    bool shuffles; /* before packing */
    uint64_t seed;
} hy_packing_options;

hy_status hy_packing_make(const hy_examples *examples, const hy_packing_options *options,
                          hy_packing *out);
void hy_packing_close(hy_packing *packing);

/* Sequence i, below packing->sequences: tokens (T), targets (T), and in doc_starts (T, or NULL) the
 * position at which each token's example begins. What is left over at the end is filled up with token 0,
 * counts nothing and is a document of its own. Returns how many targets count. */
int64_t hy_packing_fill(const hy_packing *packing, uint64_t i, int32_t seq, int32_t *tokens,
                        int32_t *targets, int32_t *doc_starts);
