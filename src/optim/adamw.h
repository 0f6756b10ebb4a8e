/* adamw.h: one optimizer step over all parameters.
 *
 * Global norm, clipping and AdamW (Loshchilov and Hutter: decay decoupled, on matrices only; Adam's bias
 * correction) are enqueued on a stream; the host is not waited for: the clip factor stays on the device,
 * and is 0 when the norm is not finite, which leaves weights, m and v as they were. */
#ifndef HY_OPTIM_ADAMW_H
#define HY_OPTIM_ADAMW_H

#include "memory/store.h"
#include "model/params.h"

typedef struct hy_adamw {
    double beta1, beta2, eps, weight_decay;
    double max_norm; /* 0: no clipping */
} hy_adamw;

/* What a step works on; all on the device. master: NULL when weights are fp32 themselves. */
typedef struct hy_adamw_state {
    hy_store *weights, *grads, *m, *v, *master;
    double *square_sum;  /* (1) f64: the gradients' sum of squares */
    float *clip;         /* (2) fp32: {norm, factor} */
    hy_tensor workspace; /* at least hy_adamw_workspace() bytes */
} hy_adamw_state;

/* Bytes of workspace that the ops of a step need, gradients being of type `grad_dtype`. */
uint64_t hy_adamw_workspace(const hy_params *params, hy_backend *backend, hy_dtype grad_dtype);

/* The global norm is summed unit by unit, from the last to the first, as backward leaves them: begin,
 * add each unit while its gradients are on the device, end. Summing later, over gradients that passes
 * have left behind, goes through the units in the same order and gives the same bits. */
hy_status hy_adamw_norm_begin(hy_backend *backend, hy_stream *stream, const hy_adamw_state *state);
hy_status hy_adamw_norm_add(const hy_params *params, hy_backend *backend, hy_stream *stream,
                            const hy_adamw_state *state, int32_t unit);
/* Norm and clip factor; gradients are multiplied by grad_scale first. */
hy_status hy_adamw_norm_end(const hy_adamw *adamw, hy_backend *backend, hy_stream *stream,
                            const hy_adamw_state *state, double grad_scale);
/* All of it at once. */
hy_status hy_adamw_clip(const hy_adamw *adamw, const hy_params *params, hy_backend *backend,
                        hy_stream *stream, const hy_adamw_state *state, double grad_scale);

/* One update. */
typedef struct hy_adamw_step {
    double lr;
    int64_t count; /* updates made before, 0 at first: sets the bias correction */
    uint64_t seed; /* keys stochastic rounding */
} hy_adamw_step;

/* Brings what the update of a unit needs, ahead of it. */
hy_status hy_adamw_gather(const hy_adamw_state *state, int32_t unit);
/* The same long before, by and by: a large unit comes a chunk with each call. */
hy_status hy_adamw_gather_chunk(const hy_adamw_state *state, int32_t unit);
/* How far an update has come: what lies before is updated. Begins as zero. */
typedef struct hy_adamw_cursor {
    int32_t unit, param;
} hy_adamw_cursor;

/* Enqueues the update of the unit at the cursor. One that fails half-way can be gone on with: the cursor
 * stands where it came to, and what it changed is kept. */
hy_status hy_adamw_update_unit(const hy_adamw *adamw, const hy_params *params, hy_backend *backend,
                               hy_stream *stream, const hy_adamw_state *state,
                               const hy_adamw_step *step, hy_adamw_cursor *at);
/* All units from the cursor on, in rising order. */
hy_status hy_adamw_update(const hy_adamw *adamw, const hy_params *params, hy_backend *backend,
                          hy_stream *stream, const hy_adamw_state *state, const hy_adamw_step *step,
                          hy_adamw_cursor *at);

#endif
