/* custom.h: weights and gradients in a caller's memory: the engine's side of a custom model.
 *
 * The caller lends its memory between hy_guest_lend and hy_guest_take_back; outside of that the
 * engine reads and writes it. See trainer/guest.h for who asks the caller. */
#pragma once

#include "model/param_list.h"
#include "plan/choose_types.h"

typedef struct hy_engine hy_engine;

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
