/* custom.h: weights and gradients in a caller's memory: the engine's side of a custom model.
 *
 * Between hy_custom_lend and hy_custom_take_back the caller uses this memory; at all other times
 * the engine does. src/custom asks the caller for losses and gradients. */
#pragma once

#include "memory/store.h"
#include "model/param_list.h"
#include "plan/choose_types.h"

typedef struct hy_engine hy_engine;

/* The parameters of a custom model, and where their weights and gradients are. */
typedef struct hy_custom_side {
    hy_custom_types types;
    const hy_param_spec *params; /* the owner's */
    int32_t count;
    void *const *weights;   /* (count) addresses */
    void *const *grads;     /* (count) addresses, which may change from step to step */
    const int32_t *unit_of; /* (count) types.keeps_weights: unit of each parameter */
    int64_t *written;       /* (count) first elements of a frozen parameter that are written */
    bool *has_grads;        /* (units) the unit has gradients of this step */
    int32_t norm_from;      /* units from here on are in the norm of the gradients */
    bool is_last;           /* gradients are of the step's last micro-batch */
    int32_t *first_part; /* (count + 1) index of each parameter's first part in the model's list */
    void *stream_handle; /* the caller's CUDA stream */
    hy_stream *stream;   /* the same as a stream of the backend; NULL on a CPU */
    hy_event *is_lent;   /* recorded when our work on the caller's memory is done */
    hy_event *is_back;   /* recorded when the caller's work is done */
    int shown;           /* hy_shown: what the caller's memory of weights holds now */
    bool is_half;        /* the caller computes in fp16, so its losses are scaled */
    bool uses_in_turn;   /* the caller calls hy_custom_use before it uses a parameter */
} hy_custom_side;

hy_status hy_custom_make_model(hy_engine *e);
hy_status hy_custom_open(hy_engine *e); /* creates stream and events; the device is open */
void hy_custom_close(hy_engine *e);
/* Stores the caller's addresses in the rows: before the first step those of weights, and of
 * gradients if they are known; later those of gradients. HY_ERR_INPUT names a parameter that the
 * device cannot access. hy_custom_place does nothing for a model of ours. */
hy_status hy_custom_place(hy_engine *e);
hy_status hy_custom_place_grads(hy_engine *e);
/* Training begins with the caller's weights: copies them to the master row, if that is another. */
hy_status hy_custom_take_weights(hy_engine *e);
/* hy_custom_lend: from here on the caller may read weights and write gradients.
 * hy_custom_take_back: the caller has finished. On a card both are events between streams; on a CPU
 * hy_custom_lend waits for our work. */
hy_status hy_custom_lend(hy_engine *e);
hy_status hy_custom_take_back(hy_engine *e);
/* Begins a step in this type: the caller's memory then holds the weights. Applies a pending update,
 * unless the caller uses parameters in turn. */
hy_status hy_custom_begin_step(hy_engine *e, hy_dtype dtype);
/* The caller is about to use a parameter (-1: all): applies the pending update to it and to those
 * before it. Call it between hy_custom_lend and hy_custom_take_back. */
hy_status hy_custom_use(hy_engine *e, int32_t param);
/* ---- custom_units.c: weights that we keep, used in units (types.keeps_weights) --------------- */

/* Between both the caller may read the unit's weights, at these addresses of its parameters. The
 * pending update is applied before. */
hy_status hy_custom_hold(hy_engine *e, int32_t unit, void **weights);
hy_status hy_custom_release(hy_engine *e, int32_t unit);
hy_status hy_custom_fetch(hy_engine *e, int32_t unit); /* it will be held soon */
/* Whether the unit's weights have the same addresses in each hold, until the plan changes. */
bool hy_custom_stays(const hy_engine *e, int32_t unit);
/* Begins the gradients of a micro-batch. hy_custom_add_unit adds to those of the step: `grads` has an
 * address for each parameter of the unit, NULL for zero. hy_custom_end_units ends the step: units
 * without gradients get zeros, and the norm is complete. */
void hy_custom_begin_units(hy_engine *e, bool is_first, bool is_last);
hy_status hy_custom_add_unit(hy_engine *e, int32_t unit, void *const *grads, double scale);
hy_status hy_custom_end_units(hy_engine *e);
/* Elements of a parameter in the caller's type, to or from host memory, while no unit is held. A
 * quantised parameter is written as a whole, and its decoded values are read. */
hy_status hy_custom_write(hy_engine *e, int32_t param, int64_t first, int64_t count,
                          const void *from);
hy_status hy_custom_read(hy_engine *e, int32_t param, int64_t first, int64_t count, void *to);

/* ---- custom.c -------------------------------------------------------------------------------- */

/* Writes the weights, the proposed weights or the average to the caller's memory of weights. */
typedef enum hy_shown { HY_SHOWN_WEIGHTS, HY_SHOWN_CANDIDATE, HY_SHOWN_AVERAGE } hy_shown;
hy_status hy_custom_show(hy_engine *e, hy_shown shown);
/* While the average is shown, the weights are in the snapshot row. A snapshot that may still undo a
 * jump is therefore copied to host memory before, and back afterwards. `kept`: that memory; empty
 * if there is no such snapshot. hy_custom_return_snapshot frees it. */
hy_status hy_custom_keep_snapshot(hy_engine *e, hy_arena *kept);
hy_status hy_custom_return_snapshot(hy_engine *e, hy_arena *kept);
/* Writes `scale` times the gradients of one entry of the model's list to its sum, or adds them.
 * from: NULL for zero. The unit of `sums` is held. */
hy_status hy_custom_add_one(hy_engine *e, hy_store *sums, int32_t param, void *from, double scale,
                            bool is_first);
/* Adds the gradients at `at` (one address for each parameter, in the custom model's type), times
 * `scale`, to the sums of the step. With several ranks they are summed over all ranks; every rank
 * makes the same number of calls. is_first, is_last: of the step. */
hy_status hy_custom_add_grads(hy_engine *e, void *const *at, double scale, bool is_first,
                              bool is_last);
