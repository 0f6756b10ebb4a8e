/* packing.h: which examples share a sequence.
 *
 * First fit: examples come in an order shuffled by the seed (or in file order). Each goes into the
 * first open sequence that has room; when too many are open, the oldest is closed. The packing is
 * computed once for all epochs; each epoch only shuffles the order of the sequences. This loses
 * nothing, because examples of a sequence do not attend to each other. Without packing, each
 * example has its own sequence.
 *
 * An example of n tokens takes n - 1 positions: its last token is only a target. The two examples
 * of a pair of answers are placed together, one directly after the other. A prompt for rewards is
 * alone in its sequence and counts as one target. */
#pragma once

#include "data/examples.h"

#define HY_OPEN_SEQUENCES 128

typedef struct hy_packing {
    const hy_examples *examples;
    hy_spool members; /* uint64: example numbers, sequence by sequence */
    hy_spool ends;    /* uint64: where the members of sequence i end */
    hy_pairs pairs;
    uint64_t sequences;
    uint64_t places;  /* positions that hold tokens, of sequences * T */
    uint64_t targets; /* targets that count, or pairs or prompts */
} hy_packing;

typedef struct hy_packing_options {
    uint64_t first, count; /* range of examples */
    int32_t seq;
    hy_pairs pairs; /* HY_NO_PAIRS, or the range is pairs of examples */
    bool prompts;   /* the examples are prompts for rewards */
    bool packs;     /* false: one example or pair per sequence */
    bool shuffles;  /* shuffle the examples or pairs before packing */
    uint64_t seed;
} hy_packing_options;

/* How many examples stay together: 2 for pairs, else 1. */
uint64_t hy_packing_unit(hy_pairs pairs);

hy_status hy_packing_make(const hy_examples *examples, const hy_packing_options *options,
                          hy_packing *out);
void hy_packing_close(hy_packing *packing);

/* Fills sequence i, below packing->sequences: tokens (T), targets (T), and doc_starts (T, or NULL),
 * the position at which each token's example begins. The rest of the sequence is token 0, does not
 * count, and is a separate document. Returns how many targets count, or the number of pairs. */
int64_t hy_packing_fill(const hy_packing *packing, uint64_t i, int32_t seq, int32_t *tokens,
                        int32_t *targets, int32_t *doc_starts);
