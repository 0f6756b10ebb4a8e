/* collectives.h: exchanges gradients and weights between ranks during a step, unit by unit.
 *
 * The step, its hooks and all code that changes weights call these functions with any number of
 * ranks; without exchanges (hy_rank_spec.count 0) they do nothing. collectives.c explains what is
 * exchanged when; comm/collectives.h does the transfers. */
#pragma once

#include "state/gather.h"

struct hy_engine;

/* A reduce-scatter of a unit's gradients that has begun. */
typedef struct hy_reducing {
    bool is_begun;
    int32_t unit;
    bool is_first, is_last; /* its micro-batch is the first or last of the step */
    uint64_t own_begin;     /* where this rank's part begins in the unit */
    hy_reduction reduction;
} hy_reducing;

typedef struct hy_collectives {
    hy_exchange net; /* not open without exchanges */
    hy_arena arena;
    char *arriving[2];      /* in the arena: two buffers for gradients received from other ranks */
    int turn;               /* which of the two the next reduce-scatter uses */
    hy_arena staging;       /* pinned buffer between card and network; empty: not used */
    bool is_first, is_last; /* the current micro-batch is the first or last of the step */
    hy_reducing reducing;
    hy_gathering *fetched, *frozen; /* (units) started all-gathers of trained, frozen weights */
    int source;          /* the sharded row that passes gather; -1: passes read a whole row */
    int32_t fetching;    /* the unit that the pass fetches next; -1: none */
    int32_t frozen_last; /* the last unit of frozen weights that was gathered */
} hy_collectives;

/* Allocates memory for exchanges, without contacting other ranks. When all ranks have allocated
 * theirs, hy_exchange_connect connects them. */
hy_status hy_collectives_take(struct hy_engine *e);
void hy_collectives_release(struct hy_engine *e);
/* After a failure: forgets unfinished exchanges. */
void hy_collectives_abandon(struct hy_engine *e);

/* ---- gradients ------------------------------------------------------------------------------- */

/* Begins a pass over a micro-batch. Returns the store that the pass writes gradients to;
 * accumulates: it adds to the values there. is_first, is_last: the micro-batch's place in the
 * step. */
hy_store *hy_grads_begin_pass(struct hy_engine *e, bool is_first, bool is_last, bool *accumulates);
/* A hook of backward (hy_unit_hook): begins the reduce-scatter of the unit's gradients. */
hy_status hy_grads_reduce(void *engine, hy_stream *stream, int32_t unit);
hy_status hy_grads_reduce_end(struct hy_engine *e); /* after the last pass: completes the sums */

/* ---- weights --------------------------------------------------------------------------------- */

/* The store that passes read this row from: its own, or the ring of gathered units. */
hy_store *hy_weights_for_passes(struct hy_engine *e, int row);
/* Hooks of a pass (hy_unit_hook). fetch: the unit is needed soon; await: it is needed now. trained,
 * frozen: only these weights; weights: both. */
hy_status hy_trained_await(void *engine, hy_stream *stream, int32_t unit);
hy_status hy_frozen_fetch(void *engine, hy_stream *stream, int32_t unit);
hy_status hy_frozen_await(void *engine, hy_stream *stream, int32_t unit);
hy_status hy_weights_fetch(void *engine, hy_stream *stream, int32_t unit);
hy_status hy_weights_await(void *engine, hy_stream *stream, int32_t unit);

/* Does each rank update a part of this row, while passes read all of it? */
bool hy_row_is_all_gathered(const struct hy_engine *e, int row);
/* Call when this rank has updated its part of a unit: starts an all-gather if the stage needs
 * one. */
hy_status hy_unit_updated(struct hy_engine *e, hy_stream *stream, int row, int32_t unit);
hy_status hy_weights_await_all(struct hy_engine *e); /* waits for these all-gathers */
/* Each rank has computed its part of a unit, or of all units of a row: gathers the other parts. */
hy_status hy_unit_all_gather(struct hy_engine *e, hy_stream *stream, hy_store *store, int32_t unit);
hy_status hy_row_all_gather(struct hy_engine *e, int row);
/* Copies the custom model's weights of rank 0 to all ranks. */
hy_status hy_weights_broadcast(struct hy_engine *e);

/* This rank's slice of a parameter in a row, while the unit is held. Empty if this rank has no part
 * of it; with one rank the whole parameter. */
hy_tensor hy_row_own_slice(const struct hy_engine *e, int row, int32_t param);
