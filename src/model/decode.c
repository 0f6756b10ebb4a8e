/* decode.c: runs the units' lists on new tokens only. See decode.h.
 *
 * There are two batch plans: one for a single token, with matmuls prepared for it, and one for
 * many. The second serves any number of rows up to its own: its slots stay at their addresses
 * but are shorter; the backend looks up matmuls of other sizes. Positions are set by advancing
 * the position tables, and binding replaces attention by cached attention. */
#include "model/decode.h"

#include <stdlib.h>

#include "base/error.h"
#include "kernels/half.h"
#include "kernels/ops.h"
#include "model/batch_memory.h"
#include "model/visit.h"

/* ---- planning -------------------------------------------------------------------------------- */

static hy_status make_plan(hy_decoder *d, int32_t rows, hy_batch_plan **out) {
    hy_batch_options options = {.batch = 1,
                                .seq = rows,
                                .chunks = rows, /* one row of logits */
                                .dtype = d->options.dtype,
                                .grad_dtype = d->options.dtype,
                                .frozen_dtype = d->options.frozen_dtype,
                                .has_any_rows = true,
                                .is_sizing = d->options.is_unprepared,
                                .budget = d->options.budget};
    return hy_batch_plan_create(d->model, d->backend, &options, out);
}

/* Sets the plan to this many rows. */
static void set_rows(hy_batch_plan *plan, int32_t rows) {
    plan->size.seq = rows;
    for (int32_t kind = 0; kind < plan->model->kind_count; kind++) {
        if (plan->model->kinds[kind].traits.part != HY_PART_HEAD) {
            plan->checkpointed[kind].size.seq = rows;
        }
    }
}

/* Turns a layer's attention into cached attention at position `first`. */
static void make_cached(const hy_decoder *d, int32_t layer, int32_t first, hy_op_call *call) {
    int64_t width = 2 * (int64_t)d->model->shape.kv_heads * d->model->shape.head_size;
    hy_op_call cached = {.kind = HY_OP_ATTENTION_CACHED, .attr = call->attr};
    cached.attr.heads.first = first;
    cached.t[HY_ATTENTION_CACHED_QKV] = call->t[HY_ATTENTION_QKV];
    cached.t[HY_ATTENTION_CACHED_CACHE] =
        (hy_tensor){.data = d->cache + (uint64_t)layer * d->layer_bytes,
                    .shape = {1, d->options.context, width},
                    .ndim = 3,
                    .dtype = d->options.dtype};
    cached.t[HY_ATTENTION_CACHED_OUT] = call->t[HY_ATTENTION_OUT];
    cached.workspace = hy_tensor_1d(d->workspace, HY_U8, (int64_t)d->workspace_bytes);
    *call = cached;
}

static void raise_to(uint64_t *most, uint64_t bytes) {
    if (bytes > *most) *most = bytes;
}

/* Workspace of a block's ops for this many rows, at the end of the context. */
static hy_status count_workspace(hy_decoder *d, hy_batch_plan *plan, int32_t unit, int32_t rows) {
    hy_backend *b = d->backend;
    set_rows(plan, rows);
    hy_frame frame = hy_frame_for_planning(plan, unit, HY_PASS_EVAL);
    for (int32_t i = 0; i < frame.unit->pass[HY_PASS_EVAL].op_count; i++) {
        hy_op_call call;
        hy_frame_bind(&frame, i, 0, &call);
        bool is_attention = call.kind == HY_OP_ATTENTION;
        if (is_attention) {
            make_cached(d, 0, d->options.context - rows, &call);
            call.t[HY_ATTENTION_CACHED_CACHE].data = call.t[HY_ATTENTION_CACHED_QKV].data; /* any */
            HY_TRY(b->supports(b, &call));
        }
        if (plan->size.seq != plan->options.seq) call.plan = NULL;
        raise_to(is_attention ? &d->workspace_bytes : &plan->op_workspace_bytes,
                 b->workspace(b, &call));
    }
    return HY_OK;
}

static uint64_t rope_bytes(const hy_decoder *d) {
    const hy_shape *s = &d->model->shape;
    return s->has_rope ? hy_align((uint64_t)d->options.context * (uint64_t)s->head_size * 4) : 0;
}

static uint64_t token_bytes(const hy_decoder *d) {
    return hy_align((uint64_t)d->options.rows * sizeof(int32_t));
}

static void count_bytes(hy_decoder *d) {
    const hy_shape *s = &d->model->shape;
    hy_batch_plan *plans[] = {d->many, d->one};
    uint64_t width = 2 * (uint64_t)s->kv_heads * (uint64_t)s->head_size;
    d->layer_bytes =
        hy_align((uint64_t)d->options.context * width * hy_dtype_size(d->options.dtype));
    for (int i = 0; i < 2; i++) {
        plans[i]->bytes.workspace =
            plans[i]->scratch_bytes + hy_align(plans[i]->op_workspace_bytes);
        raise_to(&d->activation_bytes, hy_align(plans[i]->bytes.activations));
        raise_to(&d->plan_workspace_bytes, hy_align(plans[i]->bytes.workspace));
    }
    d->bytes = (uint64_t)s->layers * d->layer_bytes + rope_bytes(d) + token_bytes(d) +
               d->activation_bytes + d->plan_workspace_bytes + hy_align(d->workspace_bytes);
}

static hy_status plan_decoder(hy_decoder *d) {
    HY_TRY(make_plan(d, d->options.rows, &d->many));
    HY_TRY(make_plan(d, 1, &d->one));
    for (int32_t unit = 1; unit <= d->model->shape.layers; unit++) {
        if (!hy_batch_alike(d->one, unit)) continue;
        for (int32_t rows = 1; rows <= d->options.rows; rows++) {
            HY_TRY(count_workspace(d, rows == 1 ? d->one : d->many, unit, rows));
        }
    }
    count_bytes(d);
    d->staged = malloc((size_t)hy_shape_vocab_rows(&d->model->shape) * sizeof(float));
    return d->staged ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory for logits");
}

hy_status hy_decoder_create(hy_model *model, hy_backend *backend, const hy_decoder_options *options,
                            hy_decoder **out) {
    int32_t most = model->shape.context;
    *out = NULL;
    HY_FAIL_IF(options->context < 1 || options->context > most, HY_ERR_INPUT,
               "a context of %d tokens is not supported; accepted: 1 to %d", options->context,
               most);
    hy_decoder *d = calloc(1, sizeof *d);
    if (!d) return hy_fail(HY_ERR_MEMORY, "no memory for a decoder");
    d->model = model;
    d->backend = backend;
    d->options = *options;
    if (d->options.rows < 1) d->options.rows = HY_DECODE_ROWS;
    if (d->options.rows > options->context) d->options.rows = options->context;
    hy_status status = plan_decoder(d);
    if (status != HY_OK) {
        hy_decoder_destroy(d);
        return status;
    }
    *out = d;
    return HY_OK;
}

void hy_decoder_destroy(hy_decoder *d) {
    if (!d) return;
    hy_batch_plan_destroy(d->many);
    hy_batch_plan_destroy(d->one);
    free(d->staged);
    free(d);
}

/* ---- placing --------------------------------------------------------------------------------- */

static void *cut(char **at, uint64_t bytes) {
    char *block = *at;
    *at += bytes;
    return bytes ? block : NULL;
}

hy_status hy_decoder_place(hy_decoder *d, hy_stream *stream, void *memory) {
    char *at = memory;
    d->cache = cut(&at, (uint64_t)d->model->shape.layers * d->layer_bytes);
    d->rope = cut(&at, rope_bytes(d));
    d->tokens = cut(&at, token_bytes(d));
    char *activations = cut(&at, d->activation_bytes);
    char *workspace = cut(&at, d->plan_workspace_bytes);
    d->workspace = cut(&at, hy_align(d->workspace_bytes));
    hy_batch_plan_place(d->many, activations, workspace);
    hy_batch_plan_place(d->one, activations, workspace);
    d->logits = d->one->logits;
    d->length = 0;
    if (!d->rope) return HY_OK;
    float *table = malloc((size_t)rope_bytes(d));
    if (!table) return hy_fail(HY_ERR_MEMORY, "no memory for the rope table");
    hy_shape_rope_table(&d->model->shape, d->options.context, table);
    size_t bytes = (size_t)d->options.context * (size_t)d->model->shape.head_size * sizeof(float);
    hy_status status = d->backend->copy(stream, d->rope, table, bytes);
    if (status == HY_OK) status = d->backend->stream_sync(stream);
    free(table);
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

/* The head's list begins with its norm and the logits matmul; the loss is omitted. */
enum { HEAD_OPS = 2 };

static hy_status run_unit(const hy_decoder *d, hy_frame *f, int32_t unit) {
    f->unit = hy_batch_unit(f->plan, unit);
    f->unit_index = unit;
    bool is_head = f->unit->unit->traits.part == HY_PART_HEAD;
    int32_t ops = is_head ? HEAD_OPS : f->unit->pass[HY_PASS_EVAL].op_count;
    HY_TRY(hy_visit_enter(f, +1));
    for (int32_t i = 0; i < ops; i++) {
        hy_op_call call;
        hy_frame_bind(f, i, 0, &call);
        if (f->plan->size.seq != f->plan->options.seq) call.plan = NULL; /* made for more rows */
        if (call.kind == HY_OP_ATTENTION) make_cached(d, unit - 1, d->length, &call);
        hy_tensor *positions = &call.t[HY_EMBED_WPE];
        if (call.kind == HY_OP_EMBED && positions->data) {
            int64_t left = hy_tensor_height(positions) - d->length;
            *positions = hy_tensor_rows(positions, d->length, left);
        }
        HY_TRY(d->backend->enqueue(f->input->stream, &call));
    }
    return hy_visit_leave(f);
}

/* Runs `rows` tokens on the device, and computes the logits of the last. */
static hy_status run_rows(hy_decoder *d, hy_batch_input *input, int32_t rows) {
    const hy_shape *s = &d->model->shape;
    hy_batch_plan *plan = rows == 1 ? d->one : d->many;
    input->rope = d->rope ? d->rope + (int64_t)d->length * s->head_size : NULL;
    set_rows(plan, rows);
    hy_frame f = {.plan = plan,
                  .pass = HY_PASS_EVAL,
                  .input = input,
                  .residual_out = hy_batch_eval_residual(plan, 0, 0),
                  .scratch = hy_batch_scratch(plan, HY_PASS_EVAL)};
    HY_TRY(hy_visit_begin(&f, 0));
    HY_TRY(run_unit(d, &f, 0));
    for (int32_t layer = 0; layer < s->layers; layer++) {
        f.residual_in = hy_batch_eval_residual(plan, layer % 2, 0);
        f.residual_out = hy_batch_eval_residual(plan, (layer + 1) % 2, 0);
        HY_TRY(run_unit(d, &f, layer + 1));
    }
    uint64_t row_bytes = (uint64_t)s->width * hy_dtype_size(d->options.dtype);
    f.residual_in =
        hy_batch_eval_residual(plan, s->layers % 2, 0) + (uint64_t)(rows - 1) * row_bytes;
    f.plan = d->one;
    f.scratch = hy_batch_scratch(d->one, HY_PASS_EVAL);
    return run_unit(d, &f, s->layers + 1);
}

/* ---- taking tokens --------------------------------------------------------------------------- */

static hy_status check_tokens(const hy_decoder *d, const int32_t *tokens, int32_t count) {
    int32_t left = d->options.context - d->length, vocab = d->model->shape.vocab;
    HY_FAIL_IF(count < 1 || count > left, HY_ERR_INPUT,
               "%d more tokens do not fit after the %d in the context; accepted: 1 to %d", count,
               d->length, left);
    for (int32_t i = 0; i < count; i++) {
        HY_FAIL_IF(tokens[i] < 0 || tokens[i] >= vocab, HY_ERR_INPUT,
                   "token %d is %d, expected 0 to %d", i, tokens[i], vocab - 1);
    }
    return HY_OK;
}

hy_status hy_decoder_take(hy_decoder *d, hy_stream *stream, hy_store *weights, hy_store *frozen,
                          const int32_t *tokens, int32_t count, float *logits) {
    hy_batch_input input = {.stream = stream,
                            .weights = weights,
                            .frozen = frozen,
                            .tokens = d->tokens,
                            .hook = d->hook};
    HY_TRY(check_tokens(d, tokens, count));
    int32_t before = d->length;
    hy_status status = HY_OK;
    for (int32_t at = 0, rows; at < count && status == HY_OK; at += rows) {
        rows = count - at < d->options.rows ? count - at : d->options.rows;
        size_t bytes = (size_t)rows * sizeof *tokens;
        status = d->backend->copy(stream, d->tokens, tokens + at, bytes);
        if (status == HY_OK) status = run_rows(d, &input, rows);
        d->length += rows;
    }
    int32_t vocab = d->model->shape.vocab;
    hy_dtype dtype = d->options.dtype;
    size_t bytes = (size_t)vocab * hy_dtype_size(dtype);
    if (status == HY_OK) status = d->backend->copy(stream, d->staged, d->logits, bytes);
    if (status == HY_OK) status = d->backend->stream_sync(stream);
    if (status != HY_OK) d->length = before;
    const uint16_t *narrow = d->staged;
    for (int32_t i = 0; i < vocab && status == HY_OK; i++) {
        logits[i] = dtype == HY_F32    ? ((const float *)d->staged)[i]
                    : dtype == HY_BF16 ? hy_bf16_to_f32(narrow[i])
                                       : hy_f16_to_f32(narrow[i]);
    }
    return status;
}

void hy_decoder_rewind(hy_decoder *d, int32_t length) {
    if (length >= 0 && length < d->length) d->length = length;
}
