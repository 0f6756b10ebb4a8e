/* probe.h: measures the losses of sequences, forward only: for validation, the guard and paired
 * tests.
 *
 * The caller describes the sequences in a hy_probe; hy_engine_probe fills in the results. */
#pragma once

#include <stdatomic.h>

#include "data/dataset.h"
#include "model/model.h"

typedef struct hy_engine hy_engine;

/* The counted targets of an example, or of a whole sequence. Doubles, because ranks exchange them. */
typedef struct hy_example_sum {
    double loss, counted;
    double misses; /* targets for which another token has a larger logit */
} hy_example_sum;

typedef struct hy_probe {
    hy_dataset *data;
    hy_split split;
    uint64_t first, count; /* sequences: first, first + stride, ... */
    uint64_t stride;       /* 0 counts as 1 */
    const uint64_t *list;  /* (count) these sequences instead; or NULL */
    hy_dtype dtype;        /* compute type; hy_engine_propose has set that of the candidate */
    bool of_candidate;     /* measures the candidate instead of the current weights */
    /* Set to true at any time: the probe ends after a batch with HY_STOPPED, on all ranks. NULL: it
     * cannot be stopped. */
    const atomic_bool *stop;
    /* Rows for evaluation: (examples of the data) results, one for each. NULL: other data. */
    hy_example_sum *examples;
    bool wants_misses; /* counts them, too; takes longer */
    /* Of pairs: the sums of each one's answers, by number (data/pair_reference.h); or NULL. The
     * loss is then not measured. */
    double (*pair_sums)[2];
    const char *what; /* for progress; NULL: "validating", in a probe of held-out data */
    double *each;     /* (count) result: mean loss of each sequence; may be NULL */
    double mean;      /* result: over all counted targets, or pairs of answers */
    double pair_stats[HY_PAIRS_STATS]; /* result: of pairs; else zeros */
    int64_t counted;                   /* result: how many */
    /* Result: rows were answered, and rewarded by this on average, with this standard error. */
    bool is_rewarded;
    double reward, reward_error;
    /* used inside: see probe.c */
    hy_example_sum *sums;
    struct hy_logit_reader *reader;
} hy_probe;
hy_status hy_engine_probe(hy_engine *e, hy_batch_plan *plan, hy_probe *probe);
/* Sends the first batch of a probe to the device, for a pass that the caller runs. */
hy_status hy_probe_send(hy_engine *e, const hy_batch_plan *plan, const hy_probe *probe);
/* The number of batches that this rank computes for so many sequences. */
int64_t hy_probe_batches(const hy_engine *e, const hy_batch_plan *plan, uint64_t count);
