/* engine.h: runs a model on a device: optimizer steps, losses, jumps, by a plan.
 *
 * The engine gets a plan, a phase and batches. It does not know folders, model files, or why a
 * phase begins; settings reach it only through the plan request and set-up (src/setup). Training
 * (src/trainer), evaluation and decoding (src/infer) use it. All memory is allocated before the
 * first step, except that of paired tests. Everything that lives from step to step is a row of the
 * state (state/rows.h). */
#pragma once

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "config/derived.h"
#include "engine/collectives.h"
#include "engine/custom.h"
#include "engine/formulas.h"
#include "engine/probe.h"
#include "engine/update.h"
#include "engine/work.h"
#include "kernels/nvml.h"
#include "plan/request.h"
#include "state/state.h"

/* How a step runs (trainer/step.c calls the parts; the provider of gradients calls part 1):
 *
 * 1. hy_engine_gradients (step.c) runs forward and backward over the micro-batches of the step. If
 *    the update of the step before is still pending, the first forward pass applies it to each unit
 *    just before it uses the unit (update.c). With several ranks, gradients are summed over ranks
 *    while backward goes on (collectives.c). At the end the gradient norm is on the device.
 * 2. hy_engine_end_step starts the update of the weights, or leaves it pending, and waits for loss
 *    and norm.
 * 3. hy_engine_count_step reads them and counts the step as an update, or as skipped: if the
 *    gradient was not finite, the clip factor is 0 and the update changes nothing.
 *
 * How a run restarts: a checkpoint holds the rows that have a file (state/kinds.c), the numbers of
 * hy_engine_progress, and the decisions that must stay the same (plan/plan_value.h). A resumed run
 * plans with these decisions, allocates its rows, and reads them (record/checkpoint_read.c). Rows
 * that are derived from others are stale then, and are computed when a pass needs them. So the run
 * continues with the same bits, even if rows are at other places now. The bits differ only if the
 * micro-batch of the checkpoint no longer fits and a step is split further.
 *
 * If memory runs out during a step, hy_engine_prepare_retry restores a consistent state and the
 * caller repeats the work (retry.c). */

/* Work that is repeated because memory ran out (retry.c). */
typedef struct hy_retries {
    int64_t most;  /* retries in a row before the error is returned */
    int in_a_row;  /* retries in the current step or jump */
    int64_t count; /* retries since the engine began */
    /* Called at each retry with the error and how the work is repeated; NULL: nobody. */
    void *user;
    void (*on_retry)(void *user, const char *message, const char *how);
} hy_retries;

struct hy_engine {
    /* Checkpoints name the base model of the adapters instead of storing its weights. */
    bool base_is_named;
    bool has_drawn_weights;      /* all weights were drawn at random, none was read */
    const hy_observer *observer; /* the owner's; gets messages and progress */
    hy_device device;
    hy_nvml_watch *nvml;          /* reads power and temperature of a GPU; NULL: not available */
    char tune_cache[HY_PATH_MAX]; /* file of tuned matmul algorithms; "": none */
    hy_model *model;
    hy_custom_side *custom;  /* the owner's; NULL: the model is ours, not a custom one */
    hy_plan_request request; /* what the plan was made for */
    hy_plan *plan;           /* the current plan */
    hy_state *state;
    hy_work *work;
    const hy_phase_row *phase; /* the current phase; NULL: Full */
    hy_candidate candidate;
    hy_pending_update update;
    hy_engine_progress progress;
    hy_retries retries;
    hy_team *team; /* the owner's; NULL: there is one rank */
    hy_collectives *collectives;
};

static inline hy_store *hy_store_of(const hy_engine *e, int row) {
    return (hy_store *)&e->state->rows->row[row].store;
}
static inline bool hy_has_row(const hy_engine *e, int row) { return e->state->rows->row[row].kind; }
/* The number of sequences in a step: of this rank, and below of all ranks. */
static inline int64_t hy_rank_sequences(const hy_engine *e) {
    return (int64_t)e->plan->choice.batch * e->plan->choice.accum;
}
static inline int32_t hy_engine_ranks(const hy_engine *e) {
    return e->request.ranks.count > 1 ? e->request.ranks.count : 1;
}
static inline int64_t hy_step_sequences(const hy_engine *e) {
    return hy_rank_sequences(e) * hy_engine_ranks(e);
}

/* The store that passes read frozen weights from; NULL: the model has none. */
static inline hy_store *hy_engine_frozen(const hy_engine *e) {
    if (hy_has_row(e, HY_ROW_GATHERED_FROZEN)) return hy_store_of(e, HY_ROW_GATHERED_FROZEN);
    return hy_has_row(e, HY_ROW_FROZEN) ? hy_store_of(e, HY_ROW_FROZEN) : NULL;
}

/* Does a step in this type scale its loss? Only fp16 does. */
static inline bool hy_engine_scales(const hy_engine *e, hy_dtype dtype) {
    return e->custom ? e->custom->is_half : dtype == HY_F16;
}

/* Do passes over answers compute their reference first? Otherwise it is in the data. */
static inline bool hy_engine_has_reference_pass(const hy_engine *e) {
    return e->work->buffers.reference && hy_request_has_reference_pass(&e->request);
}

/* Do units pass through exchanges? True with several ranks, and for one rank that exchanges with
 * itself (hy_rank_spec.count 1). */
static inline bool hy_engine_exchanges(const hy_engine *e) {
    return hy_rows_shard(e->state->rows) != NULL;
}

/* ---- engine.c: creating, waiting and closing ------------------------------------------------- */

hy_status hy_engine_create(hy_engine **out); /* without a device: setup/device.c opens one */
void hy_engine_destroy(hy_engine *e);        /* closes it first; NULL is allowed */
hy_status hy_engine_sync(hy_engine *e);      /* waits until all streams are idle */
/* Frees device, model and all memory. The engine is as new, and a device may be opened again. */
void hy_engine_close(hy_engine *e);

/* ---- engine.c: the memory of state, exchanges and work area together ------------------------- */

hy_status hy_engine_lay_out(hy_engine *e); /* makes the rows of e->plan, without memory */
hy_status hy_engine_take(hy_engine *e);    /* allocates everything that e->plan needs */
void hy_engine_release(hy_engine *e);      /* frees all memory; the device stays open */
/* Changes to another plan for the same rows, between steps: frees the work area, moves the rows
 * that get another place or ring, and allocates the area again. HY_ERR_MEMORY: if e->work->is_gone,
 * there is no work area now; each row is complete at its old or new place, and another plan may be
 * tried. */
hy_status hy_engine_change(hy_engine *e, const hy_plan *plan);
/* Allocates the weights for inference, which has no plan: on the device if `asked` allows it and
 * they fit with `beside` other bytes; otherwise in pinned memory, from where they stream through a
 * ring in every pass. */
hy_status hy_engine_take_weights(hy_engine *e, hy_place asked, uint64_t beside);
/* After a failure: waits for all streams, releases all units, and writes changed units to their
 * backing store. */
hy_status hy_engine_settle(hy_engine *e);
/* Copies every row that a paired test restores to host memory (hy_rows_forked_bytes), or back. */
hy_status hy_engine_copy_forked(hy_engine *e, char *host, bool to_host);
/* Predict begins: moves the optimizer's state off the device by the plan's strategy. */
hy_status hy_engine_begin_offload(hy_engine *e);
/* Bytes that were copied between host and device so far; bytes that are allocated at a place. */
uint64_t hy_engine_moved(const hy_engine *e);
uint64_t hy_engine_reserved(const hy_engine *e, hy_place place);

/* ---- algorithms.c: the same on all ranks ----------------------------------------------------- */

/* With several ranks, rank 0 prepares its passes before memory is allocated. Then all ranks get the
 * matmul algorithms that rank 0 has chosen. With one rank both do nothing. */
hy_status hy_engine_prepare_first(hy_engine *e);
hy_status hy_engine_share_algorithms(hy_engine *e);

/* ---- retry.c --------------------------------------------------------------------------------- */

/* After work failed with `status`: if memory ran out, restores a consistent state, waits a moment
 * and returns HY_OK, so that the caller repeats the work. Otherwise returns the given status. */
hy_status hy_engine_prepare_retry(hy_engine *e, hy_status status);
/* The two halves of hy_engine_prepare_retry, for code that repeats work with less memory: restoring
 * the state; waiting, and reporting the retry. */
hy_status hy_engine_recover(hy_engine *e, hy_status status, hy_error *error);
void hy_engine_pause_and_report(hy_engine *e, const char *message, const char *how);
hy_status hy_engine_settle_again(hy_engine *e); /* repeats hy_engine_settle until it succeeds */
