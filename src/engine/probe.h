/* probe.h: measures the losses of sequences, forward only: for validation, the guard and paired
 * tests.
 *
 * The caller describes the sequences in a hy_probe; hy_engine_probe fills in the results. */
#pragma once

#include "data/dataset.h"
#include "model/model.h"

typedef struct hy_engine hy_engine;

typedef struct hy_probe {
    hy_dataset *data;
    hy_split split;
    uint64_t first, count; /* sequences: first, first + stride, ... */
    uint64_t stride;       /* 0 counts as 1 */
    hy_dtype dtype;        /* compute type; hy_engine_propose has set that of the candidate */
    bool of_candidate;     /* measures the candidate instead of the current weights */
    double *each;          /* (count) result: mean loss of each sequence; may be NULL */
    double mean;           /* result: over all counted targets */
    int64_t counted;       /* result: how many */
    double *sums;          /* used inside, with several ranks: see probe.c */
} hy_probe;
hy_status hy_engine_probe(hy_engine *e, hy_batch_plan *plan, hy_probe *probe);
/* Sends the first batch of a probe to the device, for a pass that the caller runs. */
hy_status hy_probe_send(hy_engine *e, const hy_batch_plan *plan, const hy_probe *probe);
/* The number of batches that this rank computes for so many sequences. */
int64_t hy_probe_batches(const hy_engine *e, const hy_batch_plan *plan, uint64_t count);
