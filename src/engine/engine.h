/* engine.h: what runs a model: device and streams, state, the work area of passes, the pending
 * update.
 *
 * The engine is given a plan, a phase and batches. It knows neither data sets nor why a phase
 * begins nor folders: a run (src/trainer), evaluation and decoding (src/infer) stand on it. All
 * memory is taken before the first step; between steps the compute stream is idle. Everything that
 * lives from step to step is a row of the state (state/state.h). */
#pragma once

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "config/derived.h"
#include "data/loader.h"
#include "engine/collectives.h"
#include "hybrid.h"
#include "kernels/nvml.h"
#include "plan/request.h"
#include "state/state.h"

/* ---- its parts ------------------------------------------------------------------------------- */

/* Device buffers that every pass uses. */
typedef struct hy_pass_buffers {
    int32_t *tokens, *targets;  /* (B,T) of the largest micro-batch */
    int32_t *doc_starts;        /* (B,T), NULL when the data has no documents to keep apart */
    float *losses;              /* (B,T) */
    float *rope;                /* (T, D/2, 2), NULL without rope */
    double *loss_sum;           /* (1) f64 */
    double *square_sum;         /* (1) f64 */
    double *dots;               /* (3) f64: of HY_OP_DIFF_DOT */
    float *clip;                /* (2) fp32 */
    int32_t *dropout_seed;      /* (2), behind it */
    double *seen;               /* (units, HY_SEEN) f64, NULL where no step is in fp8 */
    float *largest;             /* (units, HY_LINEARS) fp32, likewise; unit 0: of weights */
    hy_tensor reduce_workspace; /* for sums and norms */
} hy_pass_buffers;

/* A forward-only batch on the host: pinned, so that copies run beside everything else. */
typedef struct hy_staging {
    int32_t *tokens, *targets; /* (B,T) of the largest micro-batch */
    int32_t *doc_starts;       /* (B,T) or NULL */
    float *losses;             /* (B,T) */
    hy_event *is_done;         /* its losses are back */
} hy_staging;

/* What comes back to the host after a step. */
typedef struct hy_step_result {
    double loss_sum;
    double dots[3];
    float clip[2];
} hy_step_result;

/* Where passes work. In optimizer steps the area is training's; in Predict it is evaluation's and
 * the rings' of what the predictor keeps. It holds nothing that outlives a step. */
typedef struct hy_work {
    hy_batch_plan *train[HY_PLAN_TYPES]; /* by hy_plan_index; NULL where no phase needs it */
    hy_batch_plan *eval[HY_PLAN_TYPES], *guard;
    hy_arena arena;  /* all of it, and its parts: */
    hy_arena passes; /* activations and workspace: what is pushed there changes with the phase */
    hy_arena data;   /* buffers */
    hy_arena
        lent[2]; /* in memory of rows: activations and workspace of a large forward-only batch */
    hy_arena ring_arena; /* in passes: rings of what the predictor keeps */
    char *scratch;       /* there: where its codes are decoded; NULL: it has none */
    bool rings_are_used; /* since training last worked there */
    hy_arena host_arena; /* pinned: what layers keep, where it waits there */
    hy_store activations;
    hy_pass_buffers buffers;
    hy_step_result *result; /* pinned */
    hy_staging staging[2];  /* one is filled while the other is computed */
    size_t staging_rows;
    double *seen;         /* pinned, (units, HY_SEEN): of the last step in fp8; NULL: none is */
    double *guard_losses; /* of the guard's sequences, before and after */
    bool is_gone;         /* it was given back and could not be taken again */
} hy_work;

/* How proposed weights are made: a formula over weights and slow weights, or the average. */
typedef struct hy_candidate {
    hy_formula formula;
    bool is_average;
} hy_candidate;

/* An update that is not applied to all units yet: kept until the next step comes to them. */
typedef struct hy_pending_update {
    bool is_pending;
    bool is_new; /* the gradients of a step are whole, and it was not begun yet */
    hy_optimizer_step step;
    hy_dtype pending_dtype; /* what the step computed with */
    hy_optimizer_cursor at; /* how far it has come */
    int32_t encoded;        /* steps in fp8: units before this have their codes */
    hy_dtype dtype;         /* what the present step computes with */
    double grad_scale;      /* its gradients are multiplied by it first */
    hy_unit_hook hook;
} hy_pending_update;

/* Dynamic loss scaling, for fp16. */
typedef struct hy_loss_scale {
    double scale;       /* 1 without fp16 */
    int64_t good_steps; /* since it last changed */
} hy_loss_scale;

/* What a checkpoint must know of the engine, beside the rows. */
typedef struct hy_engine_progress {
    int64_t updates; /* not skipped since the optimizer's state began: its own clock */
    int64_t skipped, skipped_in_a_row;
    int64_t backward_passes;
    int64_t average_samples; /* weights summed into the average */
    bool has_snapshot;       /* the snapshot row holds the weights before the last jump */
    int32_t slow_exponent;   /* slow weights in 8 bits: of their grid's step */
    hy_loss_scale loss_scale;
} hy_engine_progress;

/* A guest's side of the engine: whose weights and gradients lie in the caller's memory
 * (guest.c). */
typedef struct hy_guest_side {
    hy_guest_types types;
    const hy_param_spec *params; /* the owner's */
    int32_t count;
    int32_t *first_part; /* (count + 1) entries of the model's list that each of them is */
    void *stream_handle; /* of the caller's CUDA stream */
    hy_stream *stream;   /* the same, adopted; NULL on a CPU */
    hy_event *is_lent;   /* our work on what the caller sees is done */
    hy_event *is_back;   /* the caller's is */
    int shown;           /* hy_shown: what stands where the caller's weights are */
    bool is_half;        /* the caller computes in fp16: its losses are scaled */
    bool uses_in_turn;   /* the caller says when it comes to a parameter (hy_guest_use) */
} hy_guest_side;

/* Memory that ran out and was there again. */
typedef struct hy_retries {
    int in_a_row;
    int64_t count; /* since the engine began */
    /* Who hears of each, or NULL: of what went wrong, and how it is done again. */
    void *user;
    void (*on_retry)(void *user, const char *message, const char *how);
} hy_retries;

typedef struct hy_engine {
    /* What adapters stand beside is a model's files, and no part of checkpoints. */
    bool base_is_named;
    const hy_settings *settings; /* the owner's */
    const hy_observer *observer; /* the owner's: who hears of it */
    hy_device device;
    hy_nvml_watch *nvml;          /* GPU: its power and temperature; NULL: not known */
    char tune_cache[HY_PATH_MAX]; /* file of tuned matmul algorithms; "": none */
    hy_model *model;
    hy_guest_side *guest;    /* the owner's; NULL: the model is ours */
    hy_plan_request request; /* what the plan was made for */
    hy_plan plan;            /* the plan in force */
    hy_state state;
    hy_work work;
    const hy_phase_row *phase; /* whose column of the table is live; NULL: Full's */
    hy_candidate candidate;
    hy_pending_update update;
    hy_engine_progress progress;
    hy_retries retries;
    hy_team *team; /* the owner's; NULL: it is alone */
    hy_collectives collectives;
} hy_engine;

static inline hy_store *hy_store_of(const hy_engine *e, int row) {
    return (hy_store *)&e->state.rows.row[row].store;
}
static inline bool hy_has_row(const hy_engine *e, int row) { return e->state.rows.row[row].kind; }
/* Sequences of a step: of this rank, and of all. */
static inline int64_t hy_rank_sequences(const hy_engine *e) {
    return (int64_t)e->plan.choice.batch * e->plan.choice.accum;
}
static inline int32_t hy_engine_ranks(const hy_engine *e) {
    return e->request.ranks.count > 1 ? e->request.ranks.count : 1;
}
static inline int64_t hy_step_sequences(const hy_engine *e) {
    return hy_rank_sequences(e) * hy_engine_ranks(e);
}

/* ---- device.c: opening and closing ----------------------------------------------------------- */

/* The device that the settings name, and its streams; for a plan (request.is_plan) it may be a card
 * that is not here. */
hy_status hy_engine_open_device(hy_engine *e);
void hy_engine_tell_warning(hy_engine *e); /* the device's, if it has one: once */
hy_status hy_engine_sync(hy_engine *e);    /* all streams are idle */
/* Everything it has taken is given back, device and model included; {0} is closed. */
void hy_engine_close(hy_engine *e);

/* ---- setup_model.c: the model of the settings ------------------------------------------------ */

/* Which parameters of a model are trained, which stand whole beside adapters, and how frozen ones
 * are stored. Errors name the key. */
hy_status hy_settings_select(const hy_settings *settings, hy_model *model);
/* Only how frozen matrices are stored; HY_F32: as other weights. */
hy_status hy_settings_store_frozen(const hy_settings *settings, hy_model *model);
/* The model of the settings, with the parameters that they train. */
hy_status hy_engine_make_model(hy_engine *e);

/* ---- memory.c: the memory of state, exchanges and work area together ------------------------- */

hy_status hy_engine_lay_out(hy_engine *e); /* makes the rows of the plan */
/* Takes what e->plan needs. */
hy_status hy_engine_take(hy_engine *e);
void hy_engine_release(hy_engine *e); /* all memory; the device stays open */
/* Another plan for the same rows, between steps: the work area is given back, rows with another
 * place or ring move, and the area is taken anew. HY_ERR_MEMORY: there is no area now; rows are
 * whole, each at its old place or its new one, and another plan may be tried. */
hy_status hy_engine_change(hy_engine *e, const hy_plan *plan);
/* All weights, for engines without a plan, which only read them; `beside`: bytes that the device
 * needs besides. */
hy_status hy_engine_take_weights(hy_engine *e, uint64_t beside);
/* After a failure: streams are idle, nobody holds a unit any more, and what was changed is in its
 * backing store. */
hy_status hy_engine_settle(hy_engine *e);
/* Every row that a fork restores, to host memory of hy_rows_forked_bytes and back. */
hy_status hy_engine_copy_forked(hy_engine *e, char *host, bool to_host);
/* Predict begins: the optimizer's state leaves the device by the plan's strategy. */
hy_status hy_engine_begin_offload(hy_engine *e);
uint64_t hy_engine_moved(const hy_engine *e); /* bytes between host and device so far */
uint64_t hy_engine_reserved(const hy_engine *e, hy_place place);

/* ---- work.c: the work area ------------------------------------------------------------------- */

hy_status hy_work_prepare(hy_engine *e); /* prepares batch plans; hy_work_take calls it if needed */
hy_status hy_work_take(hy_engine *e);    /* for e->plan */
void hy_work_release(hy_engine *e);
hy_status hy_work_give_back(hy_engine *e); /* in a run that goes on, for optimizer steps */
/* What is live changes with the phase: gradients and training's area, or evaluation's and the rings. */
hy_status hy_engine_enter_phase(hy_engine *e, const hy_phase_row *phase);
const hy_phase_row *hy_engine_phase(const hy_engine *e);
/* Before training uses the area: what the rings changed goes to its backing store. */
hy_status hy_engine_return_rings(hy_engine *e);
/* The buffers that hy_work_close has counted, filled where they are constant; evaluation without a
 * plan takes them by itself. */
hy_status hy_work_take_buffers(hy_engine *e, hy_arena *arena, const hy_pass_spec *spec,
                               const hy_plan_work *work);

/* ---- algorithms.c: the same on all ranks ----------------------------------------------------- */

/* Before memory is taken: of several ranks, rank 0 prepares passes, and the others learn with which
 * algorithms. */
hy_status hy_engine_prepare_first(hy_engine *e);
hy_status hy_engine_share_algorithms(hy_engine *e); /* what rank 0 has prepared so far */

/* ---- update.c: derived rows ------------------------------------------------------------------ */

/* All of the master into the working copy, or a guest's working copy into the master: both agree
 * then. */
hy_status hy_row_cast(hy_engine *e, int from_row, int to_row);
/* The weights that a pass of this type uses; a rounded copy is made current first. */
hy_status hy_engine_weights(hy_engine *e, hy_dtype dtype, hy_store **out);
/* The same while an update may be pending: for the pass that applies it. */
hy_status hy_engine_weights_raw(hy_engine *e, hy_dtype dtype, hy_store **out);
/* For a step in fp8, after these: the blocks' codes; NULL for another step. */
hy_status hy_engine_fp8_raw(hy_engine *e, hy_dtype dtype, hy_store **out);
/* The frozen ones that go with them; NULL: there are none. */
static inline hy_store *hy_engine_frozen(const hy_engine *e) {
    if (hy_has_row(e, HY_ROW_GATHERED_FROZEN)) return hy_store_of(e, HY_ROW_GATHERED_FROZEN);
    return hy_has_row(e, HY_ROW_FROZEN) ? hy_store_of(e, HY_ROW_FROZEN) : NULL;
}

/* ---- step.c, update.c: an optimizer step ----------------------------------------------------- */

/* Forward and backward over the step's micro-batches, up to where its gradients are whole. May be
 * done again: nothing of the state has changed, but for a pending update, which knows how far it
 * is. */
hy_status hy_engine_gradients(hy_engine *e, hy_loader *loader, hy_dtype dtype, int64_t counted);
/* What follows: the update is begun and the results are fetched; waits. One that fails can be
 * called again: it goes on where it was. */
hy_status hy_engine_end_step(hy_engine *e, double lr, uint64_t seed); /* keys rounding */
/* What it came to. HY_ERR_NUMERIC: gradients were not finite too often in a row. */
typedef struct hy_step_outcome {
    double loss_sum, grad_norm;
    bool was_skipped; /* gradients were not finite: nothing changed */
} hy_step_outcome;
/* What fp8 made of a layer's numbers in the step, of inputs or of gradients: {largest magnitude,
 * share that became zero}. False: the step was not in fp8. */
bool hy_engine_seen(const hy_engine *e, int32_t layer, bool is_gradients, double out[2]);
hy_status hy_engine_count_step(hy_engine *e, int64_t step, hy_step_outcome *out);
/* Whether a step in this type has its loss scaled. */
static inline bool hy_engine_scales(const hy_engine *e, hy_dtype dtype) {
    return e->guest ? e->guest->is_half : dtype == HY_F16;
}
/* Halved when gradients overflowed, doubled after many good steps; never below 1. */
void hy_loss_scale_adapt(hy_loss_scale *scale, bool was_skipped);

hy_status hy_update_begin(hy_engine *e, hy_dtype dtype);
const hy_unit_hook *hy_update_hook(hy_engine *e, int32_t micro_batch); /* or NULL */
/* After the passes: norm and clip factor, of gradients times grad_scale. */
hy_status hy_update_sum_gradients(hy_engine *e, double grad_scale);
hy_status hy_update_gather(hy_engine *e); /* ahead: what the first units of the next update need */
/* Applies what is pending up to a unit, and brings what the next ones need. */
hy_status hy_update_upto(hy_engine *e, int32_t unit);
hy_status hy_update_enqueue(hy_engine *e, double lr, uint64_t seed);
/* Applies what is pending: before anyone but a training pass looks at weights, state or
 * gradients. */
hy_status hy_update_finish(hy_engine *e);

static inline bool hy_engine_has_ranks(const hy_engine *e) {
    return hy_rows_shard(&e->state.rows) != NULL;
}

/* ---- formulas.c: predictor formulas over rows ---------------------------------------------------------- */

hy_status hy_engine_apply(hy_engine *e, const hy_formulas *formulas);
/* HY_OP_DIFF_DOT over everything: rows a, b, c, d; -1: none. */
hy_status hy_engine_measure(hy_engine *e, int a, int b, int c, int d, double out[3]);
hy_status hy_engine_add_to_average(hy_engine *e);
/* All of the weights into a tiled row of their type, or back; of several ranks, this rank's
 * slices. */
hy_status hy_engine_copy_weights(hy_engine *e, int row, bool to_row);
/* What the candidate row is from now on: made by a formula over weights and slow weights, or (NULL)
 * the average; in which type. */
void hy_engine_propose(hy_engine *e, const hy_formula *formula, hy_dtype dtype);
/* The same for a guest: the whole of it, into the row that the caller sees. */
hy_status hy_engine_make_shown(hy_engine *e, bool is_average);
/* Makes a unit of the candidate row unless it is there: before a pass gets it (hy_unit_hook). */
hy_status hy_candidate_make(void *engine, hy_stream *stream, int32_t unit);

/* ---- guest.c: a caller's weights and gradients ----------------------------------------------- */

hy_status hy_guest_make_model(hy_engine *e);
hy_status hy_guest_open(hy_engine *e); /* its stream and events, once the device is open */
void hy_guest_close(hy_engine *e);
/* Where a parameter's numbers are. HY_ERR_INPUT names it: the device does not reach them there. */
hy_status hy_guest_place_weights(hy_engine *e, int32_t param, void *at);
hy_status hy_guest_place_grads(hy_engine *e, int32_t param, void *at);
/* The caller's weights are those that training begins with. */
hy_status hy_guest_take_weights(hy_engine *e);
/* From here on the caller may read weights and write gradients; from there on no more. On a card
 * both are events between streams; on a CPU we are done when the first returns. */
hy_status hy_guest_lend(hy_engine *e);
hy_status hy_guest_take_back(hy_engine *e);
/* What is pending is applied to one of the caller's parameters and those before it, and the caller
 * may read them; -1: to all. Between the two calls above. */
hy_status hy_guest_use(hy_engine *e, int32_t param);
/* What stands where the caller's weights are: they, what was proposed, or the average. */
typedef enum hy_shown { HY_SHOWN_WEIGHTS, HY_SHOWN_CANDIDATE, HY_SHOWN_AVERAGE } hy_shown;
hy_status hy_guest_show(hy_engine *e, hy_shown shown);
/* Before the average is shown: a snapshot that may still undo a jump goes to host memory, because
 * the weights wait in its row; and comes back. `kept` is empty if there is none to keep; the second
 * call gives it back. */
hy_status hy_guest_keep_snapshot(hy_engine *e, hy_arena *kept);
hy_status hy_guest_return_snapshot(hy_engine *e, hy_arena *kept);
/* The gradients at `at` (one for each parameter, of the guest's type), added to those of the step
 * before; of several ranks to those of all, once all have come here as often. */
hy_status hy_guest_add_grads(hy_engine *e, void *const *at, double scale, bool is_first,
                             bool is_last);

/* ---- probe.c: losses of sequences, forward only ---------------------------------------------- */

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

/* ---- retry.c --------------------------------------------------------------------------------- */

/* After work failed for want of memory: everything is put in order, so that it can be done again.
 * HY_OK: do it again. Else the status that was given. */
hy_status hy_engine_retry(hy_engine *e, hy_status status);
/* Its two halves, for who does it again with less: order, with the error that was met; and a pause,
 * after which it is reported. */
hy_status hy_engine_recover(hy_engine *e, hy_status status, hy_error *error);
void hy_engine_tell_retry(hy_engine *e, const char *message, const char *how);
hy_status hy_engine_settle_again(hy_engine *e); /* hy_engine_settle, until it succeeds */

/* ---- data.c ---------------------------------------------------------------------------------- */

/* keeps_rest: see dataset.h. */
hy_status hy_engine_open_data(const hy_engine *e, bool keeps_rest, hy_dataset **out);
/* The model's folder, "" where it has none: where its tokenizer and template lie. */
hy_status hy_model_folder(const hy_settings *settings, char folder[HY_PATH_MAX]);
/* The tokenizer that was asked for, or with "auto" the one in the folder: tokenizer.json, or
 * llama2.c's own file; "": tokens are bytes. */
hy_status hy_model_tokenizer(const hy_model *model, const char *asked, const char *folder,
                             char path[HY_PATH_MAX]);

/* ---- initial.c, load.c: weights to begin with ------------------------------------------------ */

hy_status hy_engine_initialise_weights(hy_engine *e);
/* Those of a folder of PEFT's, in place of what they were. */
hy_status hy_engine_load_adapter(hy_engine *e, const char *folder);
/* Adapters alone, where there are any: files of a model do not have them. */
hy_status hy_engine_initialise_adapters(hy_engine *e);
hy_status hy_engine_load_model(hy_engine *e, hy_model_files kind, const char *path);
