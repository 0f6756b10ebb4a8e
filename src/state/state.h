/* state.h: the rows' memory: taking it, moving it, counting it, giving it back.
 *
 * A row lives on the device, or elsewhere and passes through a ring there, except for its
 * resident layers, which live in the ring. A row's memory is its own, so that it can move
 * between steps while the others stay. The ledger counts what rows have taken: functions here
 * book it, callers do not. The engine calls these functions between steps; none of them knows
 * plans, settings or ranks. */
#pragma once

#include "hybrid.h"
#include "memory/device.h"
#include "state/rows.h"

/* Where the optimizer's state is. Predict does without it (offload.c). */
typedef enum hy_optim_where {
    HY_OPTIM_HERE,       /* on the device, or wherever its row lives */
    HY_OPTIM_LEAVING,    /* on its way to the host */
    HY_OPTIM_AWAY,       /* on the host */
    HY_OPTIM_COMING,     /* on its way back */
    HY_OPTIM_COMPRESSED, /* in 8 bits, in the memory of the gradients */
    HY_OPTIM_DROPPED     /* forgotten: it begins anew as zeros */
} hy_optim_where;

typedef struct hy_offload_state {
    hy_optim_where where;
    hy_arena host;     /* memory that it goes to, if the strategy moves it */
    hy_event *is_back; /* it is on the device again */
    int64_t lookahead; /* it comes back this many forward passes before Predict ends; 0: after it */
    int64_t batches_left; /* forward passes still to come in this Predict step */
} hy_offload_state;

typedef struct hy_state {
    const hy_device *device;     /* the engine's */
    const hy_observer *observer; /* the owner's: gets messages */
    const char *folder;          /* the owner's: where rows on disk have their file */
    hy_rows rows;
    hy_spill *spill; /* that file; NULL: no row is on disk */
    hy_ledger ledger;
    hy_offload_state offload;
    double host_waited;   /* seconds that this thread waited for copies while compute was idle */
    uint64_t bytes_moved; /* besides what stores count: by moves, and by stores that are gone */
} hy_state;

/* ---- state.c --------------------------------------------------------------------------------- */

/* Takes the memory of rows by a choice: first of those with rings of their own, and room for `disk`
 * bytes in the file; then of those with rings in a part of the work area. */
hy_status hy_state_take(hy_state *s, const hy_plan_choice *choice, uint64_t disk);
hy_status hy_state_take_in_work(hy_state *s, const hy_plan_choice *choice, hy_arena *work_rings);
/* Gives all memory back; the device stays open. */
void hy_state_release(hy_state *s);

/* Another choice, between steps: rows whose place or ring changes move there. If one fails, every
 * row is whole, at its old place or its new one. Then the same for rows with rings in the work
 * area, which is another one now. */
hy_status hy_state_move(hy_state *s, const hy_plan_choice *choice);
hy_status hy_state_move_in_work(hy_state *s, const hy_plan_choice *choice, hy_arena *work_rings);

/* Rows that Predict does without count as live, or no longer. */
void hy_state_book_steps(hy_state *s, bool is_live);
/* Device memory of a row that only steps need, while nothing trains: an arena that books what is pushed.
 * hy_state_vacate goes before: what the row's ring changed is written back, and forgotten. */
hy_arena hy_state_lent(hy_state *s, int row);
hy_status hy_state_vacate(hy_state *s, int row);
/* Writes back what rings in the work area changed, because others will use that memory. */
hy_status hy_state_leave_work(hy_state *s);
/* After a failure, with idle streams: nobody holds a unit any more, and what was changed is in its
 * backing store. */
hy_status hy_state_settle(hy_state *s);
/* Every row that a fork restores, to host memory of hy_rows_forked_bytes and back. Streams are
 * idle. */
hy_status hy_state_copy_forked(hy_state *s, char *host, bool to_host);

uint64_t hy_state_moved(const hy_state *s); /* bytes between host and device so far */
uint64_t hy_state_reserved(const hy_state *s, hy_place place);

/* A row's numbers were changed: rows derived from it are stale. */
static inline void hy_row_changed(hy_state *s, int row) { s->rows.row[row].version++; }
/* A derived row was made from what its source is now. */
static inline void hy_row_is_made(hy_state *s, int row) {
    hy_row *derived = &s->rows.row[row];
    derived->made_of = s->rows.row[derived->kind->source].version;
}
static inline bool hy_row_is_stale(const hy_state *s, int row) {
    const hy_row *derived = &s->rows.row[row];
    return derived->made_of != s->rows.row[derived->kind->source].version;
}
hy_status hy_row_zero(hy_state *s, int row); /* on the device: enqueued */

/* ---- offload.c: the optimizer's state in Predict --------------------------------------------- */

/* Host memory for what the strategy moves; gives back memory of another kind. */
hy_status hy_offload_take(hy_state *s, hy_offload strategy);
hy_status hy_offload_begin(hy_state *s, hy_offload strategy); /* Predict begins: it leaves */
hy_status hy_offload_wait_away(hy_state *s);                  /* waits until it has left */
/* One forward pass of Predict is done: the way back begins when few enough are left. */
hy_status hy_offload_count_down(hy_state *s);
hy_status hy_offload_return(hy_state *s); /* Predict ends: it comes back beside what follows */
/* Before anything reads it: compute waits for it, and it is restored from 8 bits or zeros. */
hy_status hy_offload_await(hy_state *s);
/* Whether a step may begin before it is back. 8 bits lie where the next gradients go. */
static inline bool hy_offload_is_ahead(const hy_offload_state *o) {
    return o->lookahead > 0 && o->where != HY_OPTIM_COMPRESSED;
}
/* A fork has written the rows: whatever was away no longer counts. */
void hy_offload_forget(hy_state *s);
