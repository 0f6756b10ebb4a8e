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

/* Enqueues norm and clip factor of the gradients; they are multiplied by grad_scale first. */
hy_status hy_adamw_clip(const hy_adamw *adamw, const hy_params *params, hy_backend *backend,
                        hy_stream *stream, const hy_adamw_state *state, double grad_scale);

/* Enqueues the update. `count` is how many updates were made before (0 at first): it sets the bias
 * correction. `seed` keys stochastic rounding. */
hy_status hy_adamw_update(const hy_adamw *adamw, const hy_params *params, hy_backend *backend,
                          hy_stream *stream, const hy_adamw_state *state, double lr, int64_t count,
                          uint64_t seed);

#endif
