/* engine.h: runs a model: device and streams, state, the work area of passes, the pending update.
 *
 * The engine gets a plan, a phase and batches. It does not know data sets, folders, or why a
 * phase begins. Training (src/trainer), evaluation and decoding (src/infer) use it. All memory
 * is allocated before the first step; between steps the compute stream is idle. Everything that
 * lives from step to step is a row of the state (state/state.h). */
#pragma once

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "engine/collectives.h"
#include "engine/custom.h"
#include "engine/formulas.h"
#include "engine/probe.h"
#include "engine/update.h"
#include "engine/work.h"
#include "kernels/nvml.h"
#include "plan/request.h"
#include "state/state.h"

/* Memory that ran out and was there again. */
typedef struct hy_retries {
    int in_a_row;
    int64_t count; /* since the engine began */
    /* Informed of each retry, or NULL: the error, and how the work is repeated. */
    void *user;
    void (*on_retry)(void *user, const char *message, const char *how);
} hy_retries;

struct hy_engine {
    /* The base weights of the adapters stay in a model's files, not in checkpoints. */
    bool base_is_named;
    bool has_drawn_weights;      /* all weights were drawn at random, none was read */
    const hy_settings *settings; /* the owner's */
    const hy_observer *observer; /* the owner's: who hears of it */
    hy_device device;
    hy_nvml_watch *nvml;          /* GPU: its power and temperature; NULL: not known */
    char tune_cache[HY_PATH_MAX]; /* file of tuned matmul algorithms; "": none */
    hy_model *model;
    hy_custom_side *custom;  /* the owner's; NULL: the model is ours */
    hy_plan_request request; /* what the plan was made for */
    hy_plan *plan;           /* the plan in force */
    hy_state *state;
    hy_work *work;
    const hy_phase_row *phase; /* whose column of the table is live; NULL: Full's */
    hy_candidate candidate;
    hy_pending_update update;
    hy_engine_progress progress;
    hy_retries retries;
    hy_team *team; /* the owner's; NULL: it is alone */
    hy_collectives *collectives;
};

static inline hy_store *hy_store_of(const hy_engine *e, int row) {
    return (hy_store *)&e->state->rows->row[row].store;
}
static inline bool hy_has_row(const hy_engine *e, int row) { return e->state->rows->row[row].kind; }
/* Sequences of a step: of this rank, and of all. */
static inline int64_t hy_rank_sequences(const hy_engine *e) {
    return (int64_t)e->plan->choice.batch * e->plan->choice.accum;
}
static inline int32_t hy_engine_ranks(const hy_engine *e) {
    return e->request.ranks.count > 1 ? e->request.ranks.count : 1;
}
static inline int64_t hy_step_sequences(const hy_engine *e) {
    return hy_rank_sequences(e) * hy_engine_ranks(e);
}

/* The frozen ones that go with them; NULL: there are none. */
static inline hy_store *hy_engine_frozen(const hy_engine *e) {
    if (hy_has_row(e, HY_ROW_GATHERED_FROZEN)) return hy_store_of(e, HY_ROW_GATHERED_FROZEN);
    return hy_has_row(e, HY_ROW_FROZEN) ? hy_store_of(e, HY_ROW_FROZEN) : NULL;
}

/* Whether a step in this type has its loss scaled. */
static inline bool hy_engine_scales(const hy_engine *e, hy_dtype dtype) {
    return e->custom ? e->custom->is_half : dtype == HY_F16;
}

static inline bool hy_engine_has_ranks(const hy_engine *e) {
    return hy_rows_shard(e->state->rows) != NULL;
}

/* ---- device.c: creating, waiting and closing -------------------------------------------------- */

hy_status hy_engine_create(hy_engine **out); /* its device is closed */
void hy_engine_destroy(hy_engine *e);        /* closes it; NULL is allowed */
hy_status hy_engine_sync(hy_engine *e);      /* all streams are idle */
/* Frees device, model and all memory: the engine is as new, and may be opened again. */
void hy_engine_close(hy_engine *e);

/* ---- memory.c: the memory of state, exchanges and work area together ------------------------- */

hy_status hy_engine_lay_out(hy_engine *e); /* makes the rows of the plan */
/* Takes what e->plan needs. */
hy_status hy_engine_take(hy_engine *e);
void hy_engine_release(hy_engine *e); /* all memory; the device stays open */
/* Another plan for the same rows, between steps: the work area is freed, rows with another place
 * or ring move, and the area is allocated again. HY_ERR_MEMORY: there is no area now; each row
 * is complete at its old or new place, and another plan may be tried. */
hy_status hy_engine_change(hy_engine *e, const hy_plan *plan);
/* All weights, for engines without a plan, which only read them; `beside`: bytes that the device
 * needs besides. */
hy_status hy_engine_take_weights(hy_engine *e, uint64_t beside);
/* After a failure: streams are idle, no unit is held, and changes are in the backing store. */
hy_status hy_engine_settle(hy_engine *e);
/* Copies every row that a paired test restores to host memory (hy_rows_forked_bytes), or back. */
hy_status hy_engine_copy_forked(hy_engine *e, char *host, bool to_host);
/* Predict begins: the optimizer's state leaves the device by the plan's strategy. */
hy_status hy_engine_begin_offload(hy_engine *e);
uint64_t hy_engine_moved(const hy_engine *e); /* bytes between host and device so far */
uint64_t hy_engine_reserved(const hy_engine *e, hy_place place);

/* ---- algorithms.c: the same on all ranks ----------------------------------------------------- */

/* Before memory is taken: of several ranks, rank 0 prepares passes, and the others learn with which
 * algorithms. */
hy_status hy_engine_prepare_first(hy_engine *e);
hy_status hy_engine_share_algorithms(hy_engine *e); /* what rank 0 has prepared so far */

/* ---- retry.c --------------------------------------------------------------------------------- */

/* After work ran out of memory: restores a consistent state, so that it can be repeated. HY_OK:
 * repeat it. Otherwise the given status. */
hy_status hy_engine_retry(hy_engine *e, hy_status status);
/* Its two halves, for code that repeats with less memory: restoring the state; and a pause,
 * which is reported. */
hy_status hy_engine_recover(hy_engine *e, hy_status status, hy_error *error);
void hy_engine_tell_retry(hy_engine *e, const char *message, const char *how);
hy_status hy_engine_settle_again(hy_engine *e); /* hy_engine_settle, until it succeeds */
