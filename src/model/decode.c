/* decode.c: runs the units' lists on new tokens only. See decode.h.
 *
 * There are two batch plans: one for a single token, with matmuls prepared for it, and one for
 * many. The second serves any number of rows up to its own: its slots stay at their addresses
 * but are shorter; the backend looks up matmuls of other sizes. Positions are set by advancing
 * the position tables, and binding replaces attention by cached attention. */
#include "model/decode.h"

#include <assert.h>
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
                                .frozen_dtype = d->options.dtype,
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
    cached.t[HY_ATTENTION_CACHED_SINKS] = call->t[HY_ATTENTION_SINKS];
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
            call.t[HY_ATTENTION_CACHED_CACHE].data =
                call.t[HY_ATTENTION_CACHED_QKV].data; /* any address */
            HY_TRY(b->supports(b, &call));
        }
        if (plan->size.seq != plan->options.seq) call.plan = NULL;
        raise_to(is_attention ? &d->workspace_bytes : &plan->op_workspace_bytes,
                 b->workspace(b, &call));
    }
    return HY_OK;
}

/* The blocks of a decoder's memory, in this order. */
enum { CACHE, ROPE, TOKENS, ACTIVATIONS, PLAN_WORKSPACE, WORKSPACE = HY_DECODER_PARTS - 1 };

static void count_bytes(hy_decoder *d) {
    const hy_shape *s = &d->model->shape;
    hy_batch_plan *plans[] = {d->many, d->one};
    uint64_t context = (uint64_t)d->options.context, head = (uint64_t)s->head_size;
    uint64_t width = 2 * (uint64_t)s->kv_heads * head, *bytes = d->part_bytes;
    d->layer_bytes = hy_align(context * width * hy_dtype_size(d->options.dtype));
    bytes[CACHE] = (uint64_t)s->layers * d->layer_bytes;
    bytes[ROPE] = hy_align((uint64_t)hy_shape_rope_floats(s, d->options.context) * sizeof(float));
    bytes[TOKENS] = hy_align((uint64_t)d->options.rows * sizeof(int32_t));
    for (int i = 0; i < 2; i++) {
        plans[i]->bytes.workspace =
            plans[i]->scratch_bytes + hy_align(plans[i]->op_workspace_bytes);
        raise_to(&bytes[ACTIVATIONS], hy_align(plans[i]->bytes.activations));
        raise_to(&bytes[PLAN_WORKSPACE], hy_align(plans[i]->bytes.workspace));
    }
    bytes[WORKSPACE] = hy_align(d->workspace_bytes);
    for (int i = 0; i < HY_DECODER_PARTS; i++) d->bytes += bytes[i];
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
    return d->staged ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for logits");
}

hy_status hy_decoder_create(hy_model *model, hy_backend *backend, const hy_decoder_options *options,
                            hy_decoder **out) {
    int32_t most = model->shape.context;
    *out = NULL;
    HY_FAIL_IF(options->context < 1 || options->context > most, HY_ERR_INPUT,
               "a context of %d tokens is not supported; accepted: 1 to %d", options->context,
               most);
    hy_decoder *d = calloc(1, sizeof *d);
    if (!d) return hy_fail(HY_ERR_MEMORY, "not enough memory for a decoder");
    d->model = model;
    d->backend = backend;
    d->options = *options;
    if (d->options.rows < 1) d->options.rows = HY_DECODE_ROWS;
    if (d->options.rows > options->context) d->options.rows = options->context;
    hy_status status = plan_decoder(d);
    if (status == HY_OK)
        *out = d;
    else
        hy_decoder_destroy(d);
    return status;
}

hy_status hy_decoder_create_within(hy_model *model, hy_backend *backend,
                                   hy_decoder_options *options, uint64_t limit, int32_t shortest,
                                   hy_decoder **out) {
    for (;; options->context /= 2) {
        HY_TRY(hy_decoder_create(model, backend, options, out));
        assert(*out);
        if ((*out)->bytes <= limit || options->context <= shortest) return HY_OK;
        hy_decoder_destroy(*out);
    }
}

void hy_decoder_destroy(hy_decoder *d) {
    if (!d) return;
    hy_batch_plan_destroy(d->many);
    hy_batch_plan_destroy(d->one);
    free(d->staged);
    free(d);
}

/* ---- placing --------------------------------------------------------------------------------- */

hy_status hy_decoder_place(hy_decoder *d, hy_stream *stream, void *memory) {
    char *parts[HY_DECODER_PARTS], *at = memory;
    for (int i = 0; i < HY_DECODER_PARTS; at += d->part_bytes[i++]) parts[i] = at;
    d->cache = parts[CACHE];
    d->rope = d->part_bytes[ROPE] ? (float *)(void *)parts[ROPE] : NULL;
    d->tokens = (int32_t *)(void *)parts[TOKENS];
    d->workspace = parts[WORKSPACE];
    hy_batch_plan_place(d->many, parts[ACTIVATIONS], parts[PLAN_WORKSPACE]);
    hy_batch_plan_place(d->one, parts[ACTIVATIONS], parts[PLAN_WORKSPACE]);
    d->logits = d->one->logits;
    d->length = 0;
    if (!d->rope) return HY_OK;
    int32_t context = d->options.context;
    size_t bytes = (size_t)hy_shape_rope_floats(&d->model->shape, context) * sizeof(float);
    float *table = malloc(bytes);
    HY_FAIL_IF(!table, HY_ERR_MEMORY, "not enough memory for the rope table");
    hy_shape_rope_tables(&d->model->shape, context, table);
    hy_status status = d->backend->copy(stream, d->rope, table, bytes);
    if (status == HY_OK) status = d->backend->stream_sync(stream);
    free(table);
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

/* The head's list begins with its norm and the logits matmul; the loss is omitted. */
enum { HEAD_OPS = 2 };

/* Makes a call fit the new tokens: their number, and the positions at which they begin. */
static void adjust(const hy_frame *f, hy_op_call *call) {
    const hy_decoder *d = f->context;
    if (f->plan->size.seq != f->plan->options.seq) call->plan = NULL; /* made for more rows */
    if (call->kind == HY_OP_ATTENTION) make_cached(d, f->unit_index - 1, d->length, call);
    hy_tensor *positions = &call->t[HY_EMBED_WPE];
    if (call->kind != HY_OP_EMBED || !positions->data) return;
    *positions = hy_tensor_rows(positions, d->length, hy_tensor_height(positions) - d->length);
}

/* Runs `rows` tokens on the device, and computes the logits of the last. */
static hy_status run_rows(hy_decoder *d, hy_batch_input *input, int32_t rows) {
    const hy_shape *s = &d->model->shape;
    hy_batch_plan *plan = rows == 1 ? d->one : d->many;
    input->rope = d->rope;
    input->rope_rows = d->options.context;
    input->rope_first = d->length;
    set_rows(plan, rows);
    hy_frame f = {
        .plan = plan, .pass = HY_PASS_EVAL, .input = input, .adjust = adjust, .context = d};
    HY_TRY(hy_run_stack(&f));
    uint64_t row_bytes = (uint64_t)s->width * hy_dtype_size(d->options.dtype);
    f.residual_in = (char *)f.residual_in + (uint64_t)(rows - 1) * row_bytes;
    f.plan = d->one;
    f.op_limit = HEAD_OPS;
    return hy_run_unit(&f, s->layers + 1, +1);
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
        logits[i] = hy_shape_logit(&d->model->shape, logits[i]);
    }
    return status;
}

void hy_decoder_rewind(hy_decoder *d, int32_t length) {
    if (length >= 0 && length < d->length) d->length = length;
}
