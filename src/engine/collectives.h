/* collectives.h: what ranks exchange in a step: gradients and weights, unit by unit.
 *
 * The step, its hooks and all code that changes weights call these functions with any number of
 * ranks; with a single rank they do nothing. collectives.c says what is exchanged when;
 * comm/collectives.h moves it. */
#pragma once

#include "state/gather.h"

struct hy_engine;

/* Gradients of a unit whose reduce-scatter is on its way. */
typedef struct hy_reducing {
    bool is_begun;
    int32_t unit;
    bool is_first, is_last; /* micro-batch of the step */
    uint64_t own_begin;     /* of this rank's part in the unit */
    hy_reduction reduction;
} hy_reducing;

typedef struct hy_collectives {
    hy_exchange net; /* closed with a single rank */
    hy_arena arena;
    char *arriving[2]; /* in it, used in turn: parts of other ranks' gradients */
    hy_arena staging; /* pinned: what a card sends and receives passes through it; empty: nothing */
    int turn;
    bool is_first, is_last; /* micro-batch of the step, that runs now */
    hy_reducing reducing;
    hy_gathering *fetched, *frozen; /* (units) trained and frozen weights on their way */
    int source;                     /* row that is gathered for passes, -1: they read a whole row */
    int32_t fetching;    /* unit that a pass comes to next, while it is updated; -1: none */
    int32_t frozen_last; /* unit of frozen weights that was gathered last */
} hy_collectives;

/* Its memory; talks to no other rank. hy_exchange_connect follows when all ranks have theirs. */
hy_status hy_collectives_take(struct hy_engine *e);
void hy_collectives_release(struct hy_engine *e);
void hy_collectives_abandon(struct hy_engine *e); /* after a failure: nothing is on its way */

/* ---- gradients ------------------------------------------------------------------------------- */

/* A pass over a micro-batch begins, the first or last of the step: returns where it leaves its
 * gradients, and whether it adds to what is there. */
hy_store *hy_grads_begin_pass(struct hy_engine *e, bool is_first, bool is_last, bool *accumulates);
/* A hook of backward (hy_unit_hook): begins the reduce-scatter of the unit's gradients. */
hy_status hy_grads_reduce(void *engine, hy_stream *stream, int32_t unit);
hy_status hy_grads_reduce_end(struct hy_engine *e); /* after the last pass: all are summed */

/* ---- weights --------------------------------------------------------------------------------- */

/* The store that passes read this row from: its own, or the ring of gathered units. */
hy_store *hy_weights_for_passes(struct hy_engine *e, int row);
/* Hooks of a pass: a unit's weights are needed soon, or now. Trained weights, frozen ones, both. */
hy_status hy_trained_await(void *engine, hy_stream *stream, int32_t unit);
hy_status hy_frozen_fetch(void *engine, hy_stream *stream, int32_t unit);
hy_status hy_frozen_await(void *engine, hy_stream *stream, int32_t unit);
hy_status hy_weights_fetch(void *engine, hy_stream *stream, int32_t unit);
hy_status hy_weights_await(void *engine, hy_stream *stream, int32_t unit);

/* Whether each rank updates a part of this row, of which passes read the whole. */
bool hy_row_is_all_gathered(const struct hy_engine *e, int row);
/* This rank has updated its part of a unit: starts an all-gather if the stage needs one. */
hy_status hy_unit_updated(struct hy_engine *e, hy_stream *stream, int row, int32_t unit);
hy_status hy_weights_await_all(struct hy_engine *e); /* all that was updated is here */
/* Each rank has computed its part of a unit that it holds, or of all units of a row. */
hy_status hy_unit_all_gather(struct hy_engine *e, hy_stream *stream, hy_store *store, int32_t unit);
hy_status hy_row_all_gather(struct hy_engine *e, int row);
/* All ranks get the weights of rank 0's caller. */
hy_status hy_weights_broadcast(struct hy_engine *e);

/* This rank's slice of a parameter in a row with the unit held; absent where it has none. With one
 * rank all of it. */
hy_tensor hy_row_own_slice(const struct hy_engine *e, int row, int32_t param);
