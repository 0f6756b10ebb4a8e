/* state.h: the rows' memory: allocate, move, count and free it.
 *
 * A row is on the device, or elsewhere and streams through a ring there, except for its resident
 * layers, which stay in the ring. Each row has its own memory, so it can move between steps
 * while the others stay. The ledger counts what rows have allocated: the functions here update
 * it, not their callers. The engine calls them between steps; none of them knows plans, settings
 * or ranks. */
#pragma once

#include "hybrid.h"
#include "memory/device.h"
#include "state/rows.h"

/* Where the optimizer's state is. Phases without updates do not need it (offload.c). */
typedef enum hy_optim_where {
    HY_OPTIM_HERE,       /* on the device, or at the row's place */
    HY_OPTIM_LEAVING,    /* on its way to the host */
    HY_OPTIM_AWAY,       /* on the host */
    HY_OPTIM_COMING,     /* on its way back */
    HY_OPTIM_COMPRESSED, /* in 8 bits, in the memory of the gradients */
    HY_OPTIM_DROPPED     /* discarded: it starts at zero again */
} hy_optim_where;

typedef struct hy_offload_state {
    hy_optim_where where;
    hy_arena host;     /* host memory for the state, if the strategy moves it */
    hy_event *is_back; /* recorded when the state is back on the device */
    /* the return starts this many forward passes before Predict ends; 0: when the first update
     * needs the state */
    int64_t lookahead;
    int64_t batches_left; /* forward passes left in this Predict step */
} hy_offload_state;

typedef struct hy_state {
    const hy_device *device;     /* the engine's */
    const hy_observer *observer; /* the owner's: gets messages */
    const char *folder;          /* the owner's: folder for the file of rows on disk */
    hy_rows *rows;
    hy_spill *spill; /* that file; NULL: no row is on disk */
    hy_ledger ledger;
    hy_offload_state offload;
    double host_waited;   /* seconds that this thread waited for copies while compute was idle */
    uint64_t bytes_moved; /* in addition to the stores' counts: by moves, and by freed stores */
} hy_state;

/* ---- state.c --------------------------------------------------------------------------------- */

/* Allocates rows for a choice: first those with their own rings, and `disk` bytes in the file;
 * then those with rings in a part of the work area. */
hy_status hy_state_take(hy_state *s, const hy_plan_choice *choice, uint64_t disk);
hy_status hy_state_take_in_work(hy_state *s, const hy_plan_choice *choice, hy_arena *work_rings);
/* Frees all memory; the device stays open. */
void hy_state_release(hy_state *s);

/* Changes to another choice, between steps: moves the rows that get another place or ring. After a
 * failure every row is complete, at its old or its new place. Then hy_state_move_in_work does the
 * same for rows with rings in the work area, which was allocated again. */
hy_status hy_state_move(hy_state *s, const hy_plan_choice *choice);
/* The most host memory that such moves need in addition to what is held before, and the row that
 * needs it: a row is in its old and its new place for a while. */
typedef struct hy_move_peak {
    uint64_t host;
    const char *holds;
} hy_move_peak;
hy_move_peak hy_state_move_peak(const hy_state *s, const hy_plan_choice *choice);
hy_status hy_state_move_in_work(hy_state *s, const hy_plan_choice *choice, hy_arena *work_rings);

/* Marks rows that only optimizer steps need as live, or as free. */
void hy_state_book_steps(hy_state *s, bool is_live);
/* Lends the device memory of a row that only steps need, outside of training: returns an arena that
 * books what is pushed there. Call hy_state_vacate before: it writes back what the row's ring
 * changed, and empties the ring. */
hy_arena hy_state_lent(hy_state *s, int row);
hy_status hy_state_vacate(hy_state *s, int row);
/* Writes back what rings in the work area changed, because other code will use that memory. */
hy_status hy_state_leave_work(hy_state *s);
/* After a failure, with idle streams: releases all units, and writes changes to the backing
 * store. */
hy_status hy_state_settle(hy_state *s);
/* Copies every row that a paired test restores to host memory (hy_rows_forked_bytes), or back.
 * Streams are idle. */
hy_status hy_state_copy_forked(hy_state *s, char *host, bool to_host);

uint64_t hy_state_moved(const hy_state *s); /* bytes between host and device so far */
uint64_t hy_state_reserved(const hy_state *s, hy_place place);

/* A row's values were changed: rows derived from it are stale. */
static inline void hy_row_changed(hy_state *s, int row) { s->rows->row[row].version++; }
/* A derived row now matches its source. */
static inline void hy_row_is_made(hy_state *s, int row) {
    hy_row *derived = &s->rows->row[row];
    derived->made_of = s->rows->row[derived->kind->source].version;
}
static inline bool hy_row_is_stale(const hy_state *s, int row) {
    const hy_row *derived = &s->rows->row[row];
    return derived->made_of != s->rows->row[derived->kind->source].version;
}
hy_status hy_row_zero(hy_state *s, int row); /* on the device: enqueued */

/* ---- offload.c: the optimizer's state in phases without updates ------------------------------ */

/* Allocates host memory for what the strategy moves; frees memory of another kind. */
hy_status hy_offload_take(hy_state *s, hy_offload strategy);
hy_status hy_offload_begin(hy_state *s, hy_offload strategy); /* the state starts to leave */
hy_status hy_offload_wait_away(hy_state *s);                  /* waits until it has left */
/* One forward pass of Predict is about to start: with lookahead, the return starts when few enough
 * are left. */
hy_status hy_offload_count_down(hy_state *s);
/* The phase ends: only with lookahead, the state returns while other work runs. */
hy_status hy_offload_return(hy_state *s);
/* Call before anything reads it: compute waits for it, and it is restored from 8 bits or zeros. */
hy_status hy_offload_await(hy_state *s);
/* May a step begin before it has returned? 8-bit values are in the memory of the next gradients. */
static inline bool hy_offload_is_ahead(const hy_offload_state *o) {
    return o->lookahead > 0 && o->where != HY_OPTIM_COMPRESSED;
}
/* A paired test has restored the rows: values outside the device are discarded. */
void hy_offload_forget(hy_state *s);
