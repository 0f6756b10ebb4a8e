/* probe.h: losses of sequences, forward only: for validation, the guard and paired tests. */
#pragma once

#include "data/dataset.h"
#include "model/model.h"

typedef struct hy_engine hy_engine;

typedef struct hy_probe {
    hy_dataset *data;
    hy_split split;
    uint64_t first, count; /* sequences: first, first + stride, ... */
    uint64_t stride;       /* 0: 1 */
    hy_dtype dtype;    /* of the current weights; the candidate's was said when it was proposed */
    bool of_candidate; /* under the candidate row instead */
    double *each;      /* (count) mean loss of each, may be NULL */
    double mean;       /* set: over all counted targets */
    double *sums;      /* set meanwhile, of several ranks: see probe.c */
    int64_t counted;   /* set */
} hy_probe;
hy_status hy_engine_probe(hy_engine *e, hy_batch_plan *plan, hy_probe *probe);
int64_t hy_probe_batches(const hy_engine *e, const hy_batch_plan *plan, uint64_t count); /* here */
