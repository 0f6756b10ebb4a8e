/* custom.h: weights and gradients in a caller's memory: the engine's side of a custom model.
 *
 * The caller lends its memory between hy_custom_lend and hy_custom_take_back; outside of that the
 * engine reads and writes it. src/custom sends the caller its requests. */
#pragma once

#include "memory/arena.h"
#include "model/param_list.h"
#include "plan/choose_types.h"

typedef struct hy_engine hy_engine;

/* Parameters of a provider, and where their weights and gradients are in its memory (custom.c). */
typedef struct hy_custom_side {
    hy_custom_types types;
    const hy_param_spec *params; /* the owner's */
    int32_t count;
    void *const *weights; /* (count) where they are */
    void *const *grads;   /* (count) likewise; entries may change from step to step */
    int32_t *first_part;  /* (count + 1) entries of the model's list that each of them is */
    void *stream_handle;  /* of the caller's CUDA stream */
    hy_stream *stream;    /* the same, adopted; NULL on a CPU */
    hy_event *is_lent;    /* our work on what the caller sees is done */
    hy_event *is_back;    /* the caller's is */
    int shown;            /* hy_shown: what stands where the caller's weights are */
    bool is_half;         /* the caller computes in fp16: its losses are scaled */
    bool uses_in_turn;    /* the caller says when it comes to a parameter (hy_custom_use) */
} hy_custom_side;

hy_status hy_custom_make_model(hy_engine *e);
hy_status hy_custom_open(hy_engine *e); /* its stream and events, once the device is open */
void hy_custom_close(hy_engine *e);
/* Before the first step the rows take over the addresses of weights and of gradients that are known
 * by then, and later those of gradients. HY_ERR_INPUT names a parameter that the device cannot
 * reach. The first does nothing without a provider's memory. */
hy_status hy_custom_place(hy_engine *e);
hy_status hy_custom_place_grads(hy_engine *e);
/* The caller's weights are those that training begins with. */
hy_status hy_custom_take_weights(hy_engine *e);
/* From here on the caller may read weights and write gradients; from there on no more. On a card
 * both are events between streams; on a CPU we are done when the first returns. */
hy_status hy_custom_lend(hy_engine *e);
hy_status hy_custom_take_back(hy_engine *e);
/* A step in this type begins: a pending update is applied, unless the caller uses weights in turn,
 * and the caller's memory holds the weights. */
hy_status hy_custom_begin_step(hy_engine *e, hy_dtype dtype);
/* What is pending is applied to one of the caller's parameters and those before it, and the caller
 * may read them; -1: to all. Between the two calls above. */
hy_status hy_custom_use(hy_engine *e, int32_t param);
/* What stands where the caller's weights are: they, what was proposed, or the average. */
typedef enum hy_shown { HY_SHOWN_WEIGHTS, HY_SHOWN_CANDIDATE, HY_SHOWN_AVERAGE } hy_shown;
hy_status hy_custom_show(hy_engine *e, hy_shown shown);
/* Before the average is shown: a snapshot that may still undo a jump goes to host memory, because
 * the weights wait in its row; and comes back. `kept` is empty if there is none to keep; the second
 * call gives it back. */
hy_status hy_custom_keep_snapshot(hy_engine *e, hy_arena *kept);
hy_status hy_custom_return_snapshot(hy_engine *e, hy_arena *kept);
/* The gradients at `at` (one for each parameter, of the custom model's type), added to those of
 * the step before; of several ranks to those of all, once all have come here as often. */
hy_status hy_custom_add_grads(hy_engine *e, void *const *at, double scale, bool is_first,
                              bool is_last);
