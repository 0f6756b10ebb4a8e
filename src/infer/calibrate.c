/* calibrate.c: second moments of the inputs of a unit's matrices. See calibrate.h. */
#include "infer/calibrate.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/say.h"

/* A matrix of the current unit. */
typedef struct watched {
    int32_t param;
    hy_tensor moments; /* (columns, columns) fp32 on the device */
} watched;

struct hy_calibration {
    hy_used_model *model;
    hy_batch_plan *plan;
    hy_batch_input input;
    hy_watch watch;
    int32_t unit; /* the last one that ran; -1: none */
    watched matrices[HY_LINEARS];
    int count;
    hy_tensor workspace; /* of the matmuls that add moments */
    int64_t tokens;
};

/* ---- memory ---------------------------------------------------------------------------------- */

static hy_backend *backend_of(const hy_calibration *c) { return c->model->engine->device.backend; }

static void release(const hy_calibration *c, hy_tensor *t) {
    hy_backend *b = backend_of(c);
    if (t->data) b->release(b, HY_DEVICE, t->data, hy_tensor_bytes(t));
    *t = (hy_tensor){0};
}

static hy_status take(const hy_calibration *c, hy_tensor like, hy_tensor *out) {
    hy_backend *b = backend_of(c);
    HY_TRY(b->alloc(b, HY_DEVICE, hy_tensor_bytes(&like), &like.data));
    *out = like;
    return HY_OK;
}

static void forget_unit(hy_calibration *c) {
    for (int i = 0; i < c->count; i++) release(c, &c->matrices[i].moments);
    c->count = 0;
}

/* ---- a unit ---------------------------------------------------------------------------------- */

/* moments = input^T input / tokens, added to what is there. */
static hy_op_call adding(const hy_calibration *c, const watched *m, const hy_tensor *input,
                         bool is_first) {
    int64_t cols = m->moments.shape[1];
    hy_op_call call = {.kind = HY_OP_MATMUL,
                       .attr.matmul = {.trans_a = true, .alpha = 1 / (float)c->tokens}};
    call.t[HY_MATMUL_A] =
        hy_tensor_2d(input->data, input->dtype, hy_tensor_count(input) / cols, cols);
    call.t[HY_MATMUL_B] = call.t[HY_MATMUL_A];
    if (!is_first) call.t[HY_MATMUL_C] = m->moments;
    call.t[HY_MATMUL_D] = m->moments;
    return call;
}

static hy_status grow_workspace(hy_calibration *c, const hy_op_call *call) {
    hy_backend *b = backend_of(c);
    size_t bytes = b->workspace(b, call);
    if (bytes <= hy_tensor_bytes(&c->workspace)) return HY_OK;
    HY_TRY(b->stream_sync(c->input.stream));
    release(c, &c->workspace);
    return take(c, hy_tensor_1d(NULL, HY_U8, (int64_t)bytes), &c->workspace);
}

static hy_status see(void *context, hy_stream *stream, int32_t param, const hy_tensor *input) {
    hy_calibration *c = context;
    hy_backend *b = backend_of(c);
    int at = 0;
    while (at < c->count && c->matrices[at].param != param) at++;
    bool is_first = at == c->count;
    if (is_first) {
        int64_t cols = hy_param_width(&c->model->engine->model->params.list[param]);
        watched *m = &c->matrices[c->count];
        HY_TRY(take(c, hy_tensor_2d(NULL, HY_F32, cols, cols), &m->moments));
        m->param = param;
        c->count++;
    }
    hy_op_call call = adding(c, &c->matrices[at], input, is_first);
    HY_TRY(grow_workspace(c, &call));
    call.workspace = c->workspace;
    HY_TRY(b->prepare(b, &call));
    return b->enqueue(stream, &call);
}

static hy_status run_until(hy_calibration *c, int32_t unit) {
    const hy_observer *observer = &c->model->observer;
    while (c->unit < unit) {
        forget_unit(c);
        HY_TRY(hy_batch_evaluate_unit(c->plan, &c->input, ++c->unit));
        HY_TRY(backend_of(c)->stream_sync(c->input.stream));
        if (observer->on_progress)
            observer->on_progress(observer->user, "calibrating",
                                  (double)c->unit / c->model->engine->model->shape.layers);
    }
    return HY_OK;
}

/* The parameter is one of an export's model, which may have other parameters beside it. */
static hy_status measure(void *context, const hy_param *of, hy_moments *out) {
    hy_calibration *c = context;
    hy_backend *b = backend_of(c);
    *out = (hy_moments){0};
    if (!hy_linear_bit(of->kind)) return HY_OK;
    HY_FAIL_IF(of->unit < c->unit, HY_ERR_STATE, "calibration has passed unit %d", (int)of->unit);
    HY_TRY(run_until(c, of->unit));
    int32_t param = hy_params_find(&c->model->engine->model->params, of->unit, of->kind);
    for (int i = 0; i < c->count; i++) {
        const hy_tensor *from = &c->matrices[i].moments;
        if (c->matrices[i].param != param) continue;
        HY_TRY(hy_moments_init(out, from->shape[1]));
        HY_TRY(b->copy(c->input.stream, out->u, from->data, hy_tensor_bytes(from)));
        return b->stream_sync(c->input.stream);
    }
    return hy_fail(HY_ERR_STATE, "no matmul with %s was computed", of->name);
}

hy_moments_source hy_calibration_source(hy_calibration *c) {
    return (hy_moments_source){.context = c, .measure = measure};
}

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status open_text(hy_calibration *c, int64_t tokens) {
    hy_engine *e = c->model->engine;
    char from[HY_PATH_MAX];
    hy_store *weights;
    c->model->settings.task = HY_LOSS_NEXT_TOKEN; /* whatever a run learns from */
    HY_TRY(hy_model_prepare(c->model, tokens, &c->plan, from));
    hy_dtype dtype = e->plan->types.of[HY_FULL];
    hy_probe all = {.data = c->model->data,
                    .split = HY_VAL,
                    .count = hy_dataset_describe(c->model->data)->sequences[HY_VAL],
                    .dtype = dtype};
    HY_TRY(hy_probe_send(e, c->plan, &all));
    HY_TRY(hy_engine_weights(e, dtype, &weights));
    c->input = hy_work_input(e, weights);
    c->watch = (hy_watch){.context = c, .see = see};
    c->input.watch = &c->watch;
    c->tokens = (int64_t)hy_batch_sequences(c->plan) * c->plan->size.seq;
    return HY_OK;
}

hy_status hy_calibration_open(const hy_config *config, const hy_observer *observer, int64_t tokens,
                              hy_calibration **out) {
    *out = NULL;
    hy_calibration *c = calloc(1, sizeof *c);
    if (!c) return hy_fail(HY_ERR_MEMORY, "not enough memory for calibration");
    c->unit = -1;
    hy_status status = hy_model_open(config, observer, &c->model);
    if (status == HY_OK) status = open_text(c, tokens);
    if (status == HY_OK)
        *out = c;
    else
        hy_calibration_close(c);
    return status;
}

void hy_calibration_close(hy_calibration *c) {
    if (!c) return;
    if (c->model) {
        forget_unit(c);
        release(c, &c->workspace);
    }
    hy_model_close(c->model);
    free(c);
}
