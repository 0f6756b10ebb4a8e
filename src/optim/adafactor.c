/* adafactor.c: Adafactor (Shazeer and Stern 2018), by the formulas of PyTorch's
 * torch.optim.Adafactor.
 *
 * For a matrix it keeps means of squared gradients by row and by column; their product approximates
 * the mean of each element: M + N numbers instead of M N. Vectors, and parameters of a custom model
 * that are cut into parts or have more dimensions, have one number per element; rms and clipping
 * are then those of the part. So has a convolution: PyTorch factors its (channels, 1, taps) over
 * the last two dimensions, which leaves each element its own mean. There is no first moment.
 * Padding rows, which are zero, are excluded: the result is that of the matrix without them. */
#include <float.h>
#include <math.h>

#include "optim/optimizer.h"

/* PyTorch's defaults. */
#define BETA2_DECAY (-0.8)
#define EPS1 FLT_EPSILON
#define EPS2 1e-3f
#define THRESHOLD 1.0f

static bool is_factored(const hy_param *param) {
    return param->ndim == 2 && param->part == 0 && param->kind != HY_P_CONV;
}

static hy_param_extent extent(const hy_optimizer *optimizer, const hy_param *param, int array) {
    (void)optimizer, (void)array;
    int64_t factors = hy_param_stored_rows(param) + hy_param_width(param);
    return (hy_param_extent){.count = is_factored(param) ? factors : param->count,
                             .is_exact = true};
}

/* The tensor in the shape of the parameter, without padding. */
static hy_tensor shaped(const hy_tensor *t, const hy_param *param) {
    if (!is_factored(param)) return hy_tensor_1d(t->data, t->dtype, param->count);
    return hy_tensor_2d(t->data, t->dtype, hy_param_stored_rows(param), hy_param_width(param));
}

static hy_adafactor_attr attr_of(const hy_optimizer *o, const hy_param *param, double lr,
                                 int64_t count) {
    double t = (double)(count + 1), rate = o->is_relative ? fmin(lr, 1 / sqrt(t)) : lr;
    return (hy_adafactor_attr){.lr = (float)lr,
                               .rate = (float)rate,
                               .mix = (float)pow(t, BETA2_DECAY),
                               .eps1 = EPS1,
                               .eps2 = EPS2,
                               .threshold = THRESHOLD,
                               .is_factored = is_factored(param),
                               .is_relative = o->is_relative};
}

static uint64_t workspace(const hy_optimizer *optimizer, const hy_param *const *params, int count,
                          hy_backend *backend) {
    (void)count; /* always one */
    hy_op_call call = {.kind = HY_OP_ADAFACTOR,
                       .attr.adafactor = attr_of(optimizer, params[0], 0, 0)};
    call.t[HY_UPDATE_PARAM] = shaped(&(hy_tensor){.dtype = HY_F32}, params[0]);
    return backend->workspace(backend, &call);
}

static hy_status update(const hy_param_update *u, hy_backend *backend, hy_stream *stream) {
    hy_op_call call = hy_optimizer_call(u, HY_OP_ADAFACTOR);
    call.attr.adafactor = attr_of(u->optimizer, u->param, (double)u->lr, u->count);
    call.attr.adafactor.weight_decay = u->weight_decay;
    call.t[HY_UPDATE_PARAM] = shaped(&u->weight, u->param);
    call.t[HY_UPDATE_GRAD] = shaped(&u->grad, u->param);
    if (hy_tensor_is_given(&u->master)) {
        call.t[HY_UPDATE_MASTER] = shaped(&u->master, u->param);
    }
    call.workspace = u->workspace;
    return backend->enqueue(stream, &call);
}

const hy_optimizer_kind hy_optimizer_adafactor = {
    .is_whole = true,
    .name = "adafactor",
    .prior = 0.50,
    .lr = "0.01",
    .weight_decay = "0",
    .is_exact = true,
    .arrays = {"v"},
    .extent = extent,
    .workspace = workspace,
    .update = update,
};
