/* batch_decode_plan.c: sizes, memory and calls of a batched decoder. See batch_decode_parts.h.
 *
 * There are two batch plans. One is for a chunk: a batch of one sequence. The other is for a step:
 * a batch of sequences of one token each; it also computes the head of a chunk, whose last row is
 * such a step of one. Both serve any number of rows up to their own: slots stay at their addresses
 * but are shorter. Binding replaces attention by cached attention, and convolution and delta rule by
 * those that continue states; it gives them, rope and embedding the positions, which are in device
 * memory: so a captured step serves all positions. */
#include "model/batch_decode_parts.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "kernels/ops.h"

/* ---- shapes ---------------------------------------------------------------------------------- */

static int32_t blocks_for(int64_t positions) {
    return (int32_t)((positions + HY_DECODE_BLOCK - 1) / HY_DECODE_BLOCK);
}

int64_t hy_decoder_cache_width(const hy_batch_decoder *d) {
    return 2 * (int64_t)d->model->shape.kv_heads * d->model->shape.head_size;
}

int64_t hy_decoder_seen_words(const hy_batch_decoder *d) {
    return ((int64_t)hy_shape_vocab_rows(&d->model->shape) + 31) / 32;
}

/* The kind of layers with this window. A window no shorter than the context is none. */
static int32_t find_kind(hy_batch_decoder *d, int32_t window) {
    if (window >= d->options.context) window = 0;
    for (int32_t i = 0; i < d->kind_count; i++) {
        if (d->kinds[i].window == window) return i;
    }
    assert(d->kind_count < HY_CACHE_KINDS);
    d->kinds[d->kind_count] = (hy_cache_kind){.window = window};
    return d->kind_count++;
}

/* A window of a chunk's first row begins up to `window` positions before the chunk, anywhere in a
 * block. */
static void size_kind(const hy_batch_decoder *d, hy_cache_kind *k) {
    const hy_batch_decoder_options *o = &d->options;
    int64_t all = blocks_for(o->tokens), streams = o->streams;
    k->most = d->table_width;
    if (k->window > 0 && !o->goes_back) {
        int32_t in_turn = blocks_for((int64_t)k->window + o->chunk) + 1;
        if (in_turn < k->most) k->most = in_turn;
        all += streams; /* the last block of a sequence may hold a single position */
    }
    k->blocks = (int32_t)(all < streams * k->most ? all : streams * k->most);
    k->bytes = hy_align((uint64_t)k->layers * (uint64_t)k->blocks * HY_DECODE_BLOCK *
                        (uint64_t)hy_decoder_cache_width(d) * hy_dtype_size(o->dtype));
}

static hy_status make_kinds(hy_batch_decoder *d) {
    int32_t layers = d->model->shape.layers;
    d->kind_of = calloc((size_t)layers, sizeof *d->kind_of);
    d->index_of = calloc((size_t)layers, sizeof *d->index_of);
    HY_FAIL_IF(!d->kind_of || !d->index_of, HY_ERR_MEMORY, "not enough memory for a decoder");
    for (int32_t layer = 0; layer < layers; layer++) {
        d->kind_of[layer] = -1;
        if (!hy_decoder_layer_has(d, layer, HY_OP_ATTENTION)) continue;
        int32_t kind = find_kind(d, hy_shape_window(&d->model->shape, layer));
        d->kind_of[layer] = (int8_t)kind;
        d->index_of[layer] = d->kinds[kind].layers++;
    }
    if (d->kind_count == 0) (void)find_kind(d, 0); /* blocks count positions, in no bytes */
    d->table_width = blocks_for(d->options.context);
    for (int32_t i = 0; i < d->kind_count; i++) size_kind(d, &d->kinds[i]);
    return hy_decoder_make_states(d);
}

/* ---- binding --------------------------------------------------------------------------------- */

static hy_tensor rows_of(const hy_batch_decoder *d, hy_decoder_part at, hy_dtype dtype,
                         int64_t first, int64_t rows, int64_t width) {
    char *begin = d->parts[at] + (uint64_t)(first * width) * hy_dtype_size(dtype);
    return hy_tensor_2d(begin, dtype, rows, width);
}

/* The positions of the pass's sequences: of slots [0, rows), or of the chunk's slot. */
static hy_tensor positions(const hy_batch_decoder *d, const hy_batch_plan *plan) {
    int32_t *first = (int32_t *)(void *)d->parts[HY_DECODER_FIRST];
    return hy_tensor_1d(first + (d->is_step ? 0 : d->slot), HY_I32, plan->size.batch);
}

static void use_blocks(const hy_batch_decoder *d, int32_t layer, const hy_batch_plan *plan,
                       hy_op_call *call) {
    int32_t kind = d->kind_of[layer];
    const hy_cache_kind *k = &d->kinds[kind];
    uint64_t bytes = (uint64_t)k->blocks * HY_DECODE_BLOCK * (uint64_t)hy_decoder_cache_width(d) *
                     hy_dtype_size(d->options.dtype);
    hy_op_call cached = {.kind = HY_OP_ATTENTION_CACHED, .attr = call->attr};
    cached.t[HY_ATTENTION_CACHED_QKV] = call->t[HY_ATTENTION_QKV];
    cached.t[HY_ATTENTION_CACHED_CACHE] = (hy_tensor){
        .data = d->parts[HY_DECODER_CACHE + kind] + (uint64_t)d->index_of[layer] * bytes,
        .shape = {k->blocks, HY_DECODE_BLOCK, hy_decoder_cache_width(d)},
        .ndim = 3,
        .dtype = d->options.dtype};
    cached.t[HY_ATTENTION_CACHED_OUT] = call->t[HY_ATTENTION_OUT];
    cached.t[HY_ATTENTION_CACHED_SINKS] = call->t[HY_ATTENTION_SINKS];
    cached.t[HY_ATTENTION_CACHED_FIRST] = positions(d, plan);
    cached.t[HY_ATTENTION_CACHED_BLOCKS] =
        rows_of(d, (hy_decoder_part)(HY_DECODER_TABLES + kind), HY_I32, d->is_step ? 0 : d->slot,
                plan->size.batch, d->table_width);
    *call = cached;
}

/* Ops that read what earlier passes left have their workspace apart from those of a plan. */
static bool continues(hy_op_kind kind) {
    return kind == HY_OP_ATTENTION_CACHED || kind == HY_OP_CONV_CACHED ||
           kind == HY_OP_DELTA_CACHED;
}

/* In a step, matmuls are batch-invariant. */
void hy_decoder_adjust(const hy_frame *f, hy_op_call *call) {
    const hy_batch_decoder *d = f->context;
    bool is_step_plan = f->plan == d->step;
    bool is_full = f->plan->size.seq == f->plan->options.seq;
    hy_tensor first = positions(d, f->plan);
    if (is_step_plan || !is_full) call->plan = NULL; /* it was made for other rows */
    switch (call->kind) {
    case HY_OP_MATMUL: call->attr.matmul.is_batch_invariant = is_step_plan; break;
    case HY_OP_NORM: call->attr.norm.has_few_rows = is_step_plan; break;
    case HY_OP_SWIGLU: call->attr.act.has_few_rows = is_step_plan; break;
    case HY_OP_ATTENTION: use_blocks(d, f->unit_index - 1, f->plan, call); break;
    case HY_OP_CONV: hy_decoder_use_conv_state(d, f->unit_index - 1, &first, call); break;
    case HY_OP_DELTA: hy_decoder_use_delta_state(d, f->unit_index - 1, &first, call); break;
    case HY_OP_EMBED: call->t[HY_EMBED_FIRST] = first; break;
    case HY_OP_ROPE:
        call->t[HY_ROPE_FIRST] = first;
        call->t[HY_ROPE_TABLE].shape[0] = d->options.context;
        if (call->t[HY_ROPE_QUERY].data) call->t[HY_ROPE_QUERY].shape[0] = d->options.context;
        break;
    default: break;
    }
    if (continues(call->kind))
        call->workspace =
            hy_tensor_1d(d->parts[HY_DECODER_WORKSPACE], HY_U8, (int64_t)d->workspace_bytes);
}

void hy_decoder_set_sequences(hy_batch_plan *plan, int32_t rows) {
    plan->size.batch = rows;
    for (int32_t i = 0; i < plan->model->kind_count; i++) plan->checkpointed[i].size.batch = rows;
}

/* Its head is never used. */
void hy_decoder_set_tokens(hy_batch_plan *plan, int32_t rows) {
    plan->size.seq = rows;
    for (int32_t i = 0; i < plan->model->kind_count; i++) {
        if (plan->model->kinds[i].traits.part != HY_PART_HEAD)
            plan->checkpointed[i].size.seq = rows;
    }
}

hy_op_call hy_decoder_sample_call(const hy_batch_decoder *d, int32_t slot, int32_t rows,
                                  hy_decoder_part tokens) {
    const hy_shape *s = &d->model->shape;
    int32_t top = d->options.top;
    bool is_scoring = tokens == HY_DECODER_SCORED;
    hy_head_logits logits = hy_head_logits_of(s, &d->model->loss);
    hy_op_call call = {
        .kind = HY_OP_SAMPLE,
        .attr.sample = {.vocab = d->options.vocab,
                        .factor = logits.factor,
                        .softcap = logits.softcap},
        .t = {[HY_SAMPLE_LOGITS] =
                  hy_tensor_2d(d->step->logits, d->options.dtype, rows, hy_shape_vocab_rows(s)),
              [HY_SAMPLE_SAMPLING] =
                  rows_of(d, HY_DECODER_SAMPLING, HY_U8, 0, rows, sizeof(hy_sampling)),
              [HY_SAMPLE_TOKENS] = rows_of(d, tokens, HY_I32, slot, rows, 1),
              [HY_SAMPLE_LOGPROBS] = rows_of(d, HY_DECODER_LOGPROBS, HY_F32, slot, rows, 1)}};
    call.t[HY_SAMPLE_SAMPLING].data =
        d->parts[HY_DECODER_SAMPLING] + (uint64_t)slot * sizeof(hy_sampling);
    if (top > 0) {
        call.t[HY_SAMPLE_TOP_TOKENS] = rows_of(d, HY_DECODER_TOP_TOKENS, HY_I32, slot, rows, top);
        call.t[HY_SAMPLE_TOP_LOGPROBS] =
            rows_of(d, HY_DECODER_TOP_LOGPROBS, HY_F32, slot, rows, top);
    }
    if (d->options.has_seen && !is_scoring)
        call.t[HY_SAMPLE_SEEN] =
            rows_of(d, HY_DECODER_SEEN, HY_I32, slot, rows, hy_decoder_seen_words(d));
    call.workspace =
        hy_tensor_1d(d->parts[HY_DECODER_WORKSPACE], HY_U8, (int64_t)d->workspace_bytes);
    return call;
}

/* ---- planning -------------------------------------------------------------------------------- */

static hy_status make_plan(hy_batch_decoder *d, int32_t batch, int32_t seq, bool is_sizing,
                           hy_batch_plan **out) {
    hy_batch_options options = {.batch = batch,
                                .seq = seq,
                                .chunks = seq, /* a chunk: one row of logits, which is not used */
                                .dtype = d->options.dtype,
                                .grad_dtype = d->options.dtype,
                                .frozen_dtype = d->options.dtype,
                                .has_any_rows = true,
                                .is_sizing = is_sizing,
                                .budget = d->options.budget};
    return hy_batch_plan_create(d->model, d->backend, &options, out);
}

static void raise_to(uint64_t *most, uint64_t bytes) {
    if (bytes > *most) *most = bytes;
}

/* Checks the ops of a unit with the plan's present rows, and counts their workspace. */
static hy_status check_unit(hy_batch_decoder *d, hy_batch_plan *plan, int32_t unit) {
    hy_backend *b = d->backend;
    hy_frame frame = hy_frame_for_planning(plan, unit, HY_PASS_EVAL);
    frame.context = d;
    int32_t ops =
        unit > d->model->shape.layers ? HY_HEAD_OPS : frame.unit->pass[HY_PASS_EVAL].op_count;
    for (int32_t i = 0; i < ops; i++) {
        hy_op_call call;
        hy_frame_bind(&frame, i, 0, &call);
        hy_decoder_adjust(&frame, &call);
        hy_status status = b->supports(b, &call);
        if (status != HY_OK)
            return hy_fail_context(status, "the model's %s", frame.unit->unit->name);
        raise_to(continues(call.kind) ? &d->workspace_bytes : &plan->op_workspace_bytes,
                 b->workspace(b, &call));
    }
    return HY_OK;
}

static hy_status check_units(hy_batch_decoder *d, hy_batch_plan *plan, int32_t last) {
    for (int32_t unit = 0; unit <= last; unit++) {
        if (hy_batch_alike(plan, unit)) HY_TRY(check_unit(d, plan, unit));
    }
    return HY_OK;
}

/* While planning, parts are somewhere. */
static hy_status check_all(hy_batch_decoder *d) {
    int32_t layers = d->model->shape.layers;
    for (int32_t i = 0; i < HY_DECODER_PARTS; i++) d->parts[i] = (char *)(uintptr_t)HY_ALIGNMENT;
    for (int32_t rows = 1; rows < d->options.chunk; rows++) {
        hy_decoder_set_tokens(d->chunk, rows);
        HY_TRY(check_units(d, d->chunk, layers));
    }
    hy_decoder_set_tokens(d->chunk, d->options.chunk);
    HY_TRY(check_units(d, d->chunk, layers));
    d->is_step = true;
    for (int32_t rows = 1, next; rows <= d->options.streams; rows = next) {
        next = 2 * rows > d->options.streams && rows < d->options.streams ? d->options.streams
                                                                          : 2 * rows;
        hy_decoder_set_sequences(d->step, rows);
        d->step->logits = d->parts[HY_DECODER_WORKSPACE];
        HY_TRY(check_units(d, d->step, layers + 1));
        hy_op_call sample = hy_decoder_sample_call(d, 0, rows, HY_DECODER_NEXT);
        HY_TRY(d->backend->supports(d->backend, &sample));
        raise_to(&d->workspace_bytes, d->backend->workspace(d->backend, &sample));
    }
    return HY_OK;
}

static void count_bytes(hy_batch_decoder *d) {
    const hy_batch_decoder_options *o = &d->options;
    uint64_t streams = (uint64_t)o->streams, *bytes = d->part_bytes, word = sizeof(int32_t);
    hy_batch_plan *plans[] = {d->chunk, d->step};
    for (int32_t i = 0; i < d->kind_count; i++) {
        bytes[HY_DECODER_CACHE + i] = d->kinds[i].bytes;
        bytes[HY_DECODER_TABLES + i] = streams * (uint64_t)d->table_width * word;
    }
    if (d->states.layers > 0) {
        bytes[HY_DECODER_CONV_STATES] = hy_tensor_bytes(&d->conv_state);
        bytes[HY_DECODER_DELTA_STATES] = hy_tensor_bytes(&d->delta_state);
        bytes[HY_DECODER_STATE_SLOTS] = (uint64_t)d->states.layers * streams * word;
    }
    bytes[HY_DECODER_ROPE] =
        (uint64_t)hy_shape_rope_floats(&d->model->shape, o->context) * sizeof(float);
    bytes[HY_DECODER_FIRST] = bytes[HY_DECODER_NEXT] = bytes[HY_DECODER_SCORED] =
        bytes[HY_DECODER_LOGPROBS] = streams * word;
    bytes[HY_DECODER_SAMPLING] = streams * sizeof(hy_sampling);
    bytes[HY_DECODER_PROMPT] = (uint64_t)o->chunk * word;
    bytes[HY_DECODER_TOP_TOKENS] = bytes[HY_DECODER_TOP_LOGPROBS] =
        streams * (uint64_t)o->top * word;
    bytes[HY_DECODER_SEEN] = o->has_seen ? streams * (uint64_t)hy_decoder_seen_words(d) * word : 0;
    for (int i = 0; i < 2; i++) {
        plans[i]->bytes.workspace =
            plans[i]->scratch_bytes + hy_align(plans[i]->op_workspace_bytes);
        raise_to(&bytes[HY_DECODER_ACTIVATIONS], plans[i]->bytes.activations);
        raise_to(&bytes[HY_DECODER_PLAN_WORKSPACE], plans[i]->bytes.workspace);
    }
    bytes[HY_DECODER_WORKSPACE] = d->workspace_bytes;
    for (int i = 0; i < HY_DECODER_PARTS; i++) d->bytes += bytes[i] = hy_align(bytes[i]);
}

static hy_status plan_all(hy_batch_decoder *d) {
    HY_TRY(make_kinds(d));
    HY_TRY(make_plan(d, 1, d->options.chunk, d->options.is_unprepared, &d->chunk));
    HY_TRY(make_plan(d, d->options.streams, 1, true, &d->step));
    HY_TRY(check_all(d));
    count_bytes(d);
    return HY_OK;
}

/* Layers with a window have blocks for the window and a chunk, so long chunks are for long windows. */
static int32_t default_chunk(const hy_shape *s, bool is_gpu) {
    int32_t window = 0, chunk = HY_DECODE_CHUNK;
    for (int32_t layer = 0; layer < s->layers; layer++) {
        int32_t of_layer = hy_shape_window(s, layer);
        if (of_layer > window) window = of_layer;
    }
    if (!is_gpu) return chunk;
    while (chunk < HY_DECODE_CHUNK_GPU && (window == 0 || chunk < window)) chunk *= 2;
    return chunk;
}

static hy_status complete_options(hy_batch_decoder_options *o, const hy_shape *s, bool is_gpu) {
    HY_FAIL_IF(o->context < 1 || o->context > s->context, HY_ERR_INPUT,
               "a context of %d tokens is not supported; accepted: 1 to %d", o->context,
               s->context);
    HY_FAIL_IF(o->streams < 1 || o->streams > HY_STREAMS_MOST, HY_ERR_INPUT,
               "%d sequences at once are not supported; accepted: 1 to %d", o->streams,
               HY_STREAMS_MOST);
    HY_FAIL_IF(o->top < 0 || o->top > HY_SAMPLE_TOP_MOST || o->top > s->vocab, HY_ERR_INPUT,
               "log-probabilities of %d tokens were requested; accepted: 0 to %d", o->top,
               s->vocab < HY_SAMPLE_TOP_MOST ? s->vocab : HY_SAMPLE_TOP_MOST);
    if (o->chunk < 1) o->chunk = default_chunk(s, is_gpu);
    if (o->chunk >= o->context) o->chunk = o->context;
    HY_FAIL_IF(o->chunk < o->context && o->chunk % HY_KEY_RANGE != 0, HY_ERR_INPUT,
               "prompt chunks of %d tokens are not supported; accepted: multiples of %d", o->chunk,
               HY_KEY_RANGE);
    if (o->vocab < 1 || o->vocab > s->vocab) o->vocab = s->vocab;
    if (o->tokens < 1) o->tokens = (int64_t)o->streams * o->context;
    HY_FAIL_IF(o->tokens < o->context, HY_ERR_INPUT,
               "a cache of %lld tokens is too small for a sequence of %d", (long long)o->tokens,
               o->context);
    return HY_OK;
}

hy_status hy_batch_decoder_create(hy_model *model, hy_backend *backend,
                                  const hy_batch_decoder_options *options, hy_batch_decoder **out) {
    *out = NULL;
    hy_batch_decoder *d = calloc(1, sizeof *d);
    if (!d) return hy_fail(HY_ERR_MEMORY, "not enough memory for a decoder");
    d->model = model;
    d->backend = backend;
    d->options = *options;
    hy_status status = complete_options(&d->options, &model->shape, backend->facts.is_gpu);
    if (status == HY_OK) status = plan_all(d);
    if (status == HY_OK)
        *out = d;
    else
        hy_batch_decoder_destroy(d);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

void hy_decoder_forget_graphs(hy_batch_decoder *d) {
    for (int i = 0; i < HY_DECODER_GRAPHS; i++) {
        if (d->graphs[i]) d->backend->graph_destroy(d->graphs[i]);
        d->graphs[i] = NULL;
        d->was_run[i] = false;
    }
}

void hy_batch_decoder_destroy(hy_batch_decoder *d) {
    if (!d) return;
    hy_decoder_forget_graphs(d);
    for (int i = 0; i < HY_DECODER_INPUTS; i++) {
        if (d->inputs[i].is_copied) d->backend->event_destroy(d->inputs[i].is_copied);
    }
    for (int i = 0; i < HY_DECODER_RESULTS; i++) {
        if (d->results[i].is_there) d->backend->event_destroy(d->results[i].is_there);
    }
    for (int32_t i = 0; d->is_given && i < d->options.streams; i++) {
        if (d->is_given[i]) d->backend->event_destroy(d->is_given[i]);
    }
    free(d->is_given);
    if (d->pinned) d->backend->release(d->backend, HY_PINNED, d->pinned, (size_t)d->pinned_bytes);
    hy_batch_plan_destroy(d->chunk);
    hy_batch_plan_destroy(d->step);
    free(d->kind_of);
    free(d->index_of);
    free(d->state_at);
    free(d);
}

uint64_t hy_batch_decoder_bytes(const hy_batch_decoder *d) { return d->bytes; }

uint64_t hy_batch_decoder_cache_bytes(const hy_batch_decoder *d) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < d->kind_count; i++) bytes += d->kinds[i].bytes;
    return bytes;
}

const hy_batch_decoder_options *hy_batch_decoder_facts(const hy_batch_decoder *d) {
    return &d->options;
}

int32_t hy_batch_decoder_kinds(const hy_batch_decoder *d, const hy_cache_kind **kinds) {
    *kinds = d->kinds;
    return d->kind_count;
}
