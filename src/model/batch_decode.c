/* batch_decode.c: chunks of prompts and steps of many sequences. See batch_decode.h.
 *
 * There are two batch plans. One is for a chunk: a batch of one sequence. The other is for a step:
 * a batch of sequences of one token each; it also computes the head of a chunk, whose last row is
 * such a step of one. Both serve any number of rows up to their own: slots stay at their addresses
 * but are shorter. Binding replaces attention by cached attention, and gives rope, embedding and
 * attention the positions, which are in device memory: so a captured step serves all positions.
 *
 * What the host gives to a chunk or step lies in a ring of pinned inputs until it was copied; what
 * comes back lies in a ring of pinned results until it was read. */
#include "model/batch_decode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/ops.h"
#include "model/batch_memory.h"
#include "model/graphs.h"
#include "model/visit.h"

#define RESULTS (HY_STEPS_AHEAD + 1)
#define INPUTS (2 * RESULTS)
#define GRAPHS 16 /* one for each power of two */

/* The head's list begins with its norm and the logits matmul; the loss is omitted. */
enum { HEAD_OPS = 2 };

/* The blocks of its device memory, in this order. */
typedef enum part {
    CACHE,                           /* one for each kind */
    TABLES = CACHE + HY_CACHE_KINDS, /* likewise: (streams, W) i32 */
    ROPE = TABLES + HY_CACHE_KINDS,  /* hy_shape_rope_tables for the context */
    FIRST,                           /* (streams) i32 */
    SAMPLING,                        /* (streams) hy_sampling */
    PROMPT,                          /* (chunk) i32 */
    NEXT,                            /* (streams) i32: the token that a slot takes next */
    SCORED,                          /* (streams) i32: tokens of hy_batch_decoder_score */
    LOGPROBS,                        /* (streams) fp32 */
    TOP_TOKENS,                      /* (streams, top) i32 */
    TOP_LOGPROBS,                    /* (streams, top) fp32 */
    SEEN,                            /* (streams, M) i32 */
    ACTIVATIONS,                     /* of both plans */
    PLAN_WORKSPACE,
    WORKSPACE, /* of cached attention and sampling */
    PARTS
} part;

typedef struct input {
    int32_t *first;        /* (streams) */
    hy_sampling *sampling; /* (streams) */
    int32_t *prompt;       /* (chunk) */
    hy_event *is_copied;
} input;

typedef struct result {
    int32_t *tokens, *top_tokens;
    float *logprobs, *top_logprobs;
    hy_event *is_there;
} result;

struct hy_batch_decoder {
    hy_model *model;
    hy_backend *backend;
    hy_batch_decoder_options options;
    hy_batch_plan *chunk, *step;
    hy_cache_kind kinds[HY_CACHE_KINDS];
    int32_t kind_count;
    int8_t *kind_of;     /* (L) */
    int32_t *index_of;   /* (L) number of a layer among those of its kind */
    int32_t table_width; /* W: blocks of a whole context */
    uint64_t workspace_bytes, bytes, part_bytes[PARTS];

    /* Placed: */
    hy_stream *stream;
    hy_store *weights, *frozen;
    char *parts[PARTS];
    void *pinned; /* inputs, results and the tables of the host */
    uint64_t pinned_bytes;
    int32_t *tables[HY_CACHE_KINDS]; /* (streams, W) pinned */
    int32_t *seen;                   /* (streams, M) pinned */
    input inputs[INPUTS];
    result results[RESULTS];
    uint64_t given, enqueued, read; /* inputs and results so far */
    int32_t chunk_rows;             /* whose residuals are there; 0: none */
    bool has_logits;                /* of the last row of that chunk */
    hy_graph *graphs[GRAPHS];
    bool was_run[GRAPHS];
    /* The pass that is being enqueued: */
    int32_t slot; /* of a chunk */
    bool is_step;
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static int32_t blocks_for(int64_t positions) {
    return (int32_t)((positions + HY_DECODE_BLOCK - 1) / HY_DECODE_BLOCK);
}

static int64_t cache_width(const hy_batch_decoder *d) {
    return 2 * (int64_t)d->model->shape.kv_heads * d->model->shape.head_size;
}

/* Words of a bit per token of the vocabulary, whose rows are padded. */
static int64_t seen_words(const hy_batch_decoder *d) {
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
    if (k->window > 0) {
        int32_t in_turn = blocks_for((int64_t)k->window + o->chunk) + 1;
        if (in_turn < k->most) k->most = in_turn;
        all += streams; /* the last block of a sequence may hold a single position */
    }
    k->blocks = (int32_t)(all < streams * k->most ? all : streams * k->most);
    k->bytes = hy_align((uint64_t)k->layers * (uint64_t)k->blocks * HY_DECODE_BLOCK *
                        (uint64_t)cache_width(d) * hy_dtype_size(o->dtype));
}

static hy_status make_kinds(hy_batch_decoder *d) {
    int32_t layers = d->model->shape.layers;
    d->kind_of = calloc((size_t)layers, sizeof *d->kind_of);
    d->index_of = calloc((size_t)layers, sizeof *d->index_of);
    HY_FAIL_IF(!d->kind_of || !d->index_of, HY_ERR_MEMORY, "not enough memory for a decoder");
    for (int32_t layer = 0; layer < layers; layer++) {
        int32_t kind = find_kind(d, hy_shape_window(&d->model->shape, layer));
        d->kind_of[layer] = (int8_t)kind;
        d->index_of[layer] = d->kinds[kind].layers++;
    }
    d->table_width = blocks_for(d->options.context);
    for (int32_t i = 0; i < d->kind_count; i++) size_kind(d, &d->kinds[i]);
    return HY_OK;
}

/* ---- binding --------------------------------------------------------------------------------- */

static hy_tensor rows_of(const hy_batch_decoder *d, part at, hy_dtype dtype, int64_t first,
                         int64_t rows, int64_t width) {
    char *begin = d->parts[at] + (uint64_t)(first * width) * hy_dtype_size(dtype);
    return hy_tensor_2d(begin, dtype, rows, width);
}

/* The positions of the pass's sequences: of slots [0, rows), or of the chunk's slot. */
static hy_tensor positions(const hy_batch_decoder *d, const hy_batch_plan *plan) {
    int32_t *first = (int32_t *)(void *)d->parts[FIRST];
    return hy_tensor_1d(first + (d->is_step ? 0 : d->slot), HY_I32, plan->size.batch);
}

static void use_blocks(const hy_batch_decoder *d, int32_t layer, const hy_batch_plan *plan,
                       hy_op_call *call) {
    int32_t kind = d->kind_of[layer];
    const hy_cache_kind *k = &d->kinds[kind];
    uint64_t bytes = (uint64_t)k->blocks * HY_DECODE_BLOCK * (uint64_t)cache_width(d) *
                     hy_dtype_size(d->options.dtype);
    hy_op_call cached = {.kind = HY_OP_ATTENTION_CACHED, .attr = call->attr};
    cached.t[HY_ATTENTION_CACHED_QKV] = call->t[HY_ATTENTION_QKV];
    cached.t[HY_ATTENTION_CACHED_CACHE] =
        (hy_tensor){.data = d->parts[CACHE + kind] + (uint64_t)d->index_of[layer] * bytes,
                    .shape = {k->blocks, HY_DECODE_BLOCK, cache_width(d)},
                    .ndim = 3,
                    .dtype = d->options.dtype};
    cached.t[HY_ATTENTION_CACHED_OUT] = call->t[HY_ATTENTION_OUT];
    cached.t[HY_ATTENTION_CACHED_SINKS] = call->t[HY_ATTENTION_SINKS];
    cached.t[HY_ATTENTION_CACHED_FIRST] = positions(d, plan);
    cached.t[HY_ATTENTION_CACHED_BLOCKS] =
        rows_of(d, (part)(TABLES + kind), HY_I32, d->is_step ? 0 : d->slot, plan->size.batch,
                d->table_width);
    cached.workspace = hy_tensor_1d(d->parts[WORKSPACE], HY_U8, (int64_t)d->workspace_bytes);
    *call = cached;
}

/* Makes a call fit the new tokens. In a step, matmuls are batch-invariant. */
static void adjust(const hy_frame *f, hy_op_call *call) {
    const hy_batch_decoder *d = f->context;
    bool is_step_plan = f->plan == d->step;
    bool is_full = f->plan->size.seq == f->plan->options.seq;
    if (is_step_plan || !is_full) call->plan = NULL; /* it was made for other rows */
    switch (call->kind) {
    case HY_OP_MATMUL: call->attr.matmul.is_batch_invariant = is_step_plan; break;
    case HY_OP_ATTENTION: use_blocks(d, f->unit_index - 1, f->plan, call); break;
    case HY_OP_EMBED: call->t[HY_EMBED_FIRST] = positions(d, f->plan); break;
    case HY_OP_ROPE:
        call->t[HY_ROPE_FIRST] = positions(d, f->plan);
        call->t[HY_ROPE_TABLE].shape[0] = d->options.context;
        if (call->t[HY_ROPE_QUERY].data) call->t[HY_ROPE_QUERY].shape[0] = d->options.context;
        break;
    default: break;
    }
}

/* Sets the step's plan to this many sequences. */
static void set_sequences(hy_batch_plan *plan, int32_t rows) {
    plan->size.batch = rows;
    for (int32_t i = 0; i < plan->model->kind_count; i++) plan->checkpointed[i].size.batch = rows;
}

/* Sets the chunk's plan to this many tokens. Its head is never used. */
static void set_tokens(hy_batch_plan *plan, int32_t rows) {
    plan->size.seq = rows;
    for (int32_t i = 0; i < plan->model->kind_count; i++) {
        if (plan->model->kinds[i].traits.part != HY_PART_HEAD)
            plan->checkpointed[i].size.seq = rows;
    }
}

/* Chooses tokens for slots [slot, slot + rows) from rows of logits. */
static hy_op_call sample_call(const hy_batch_decoder *d, int32_t slot, int32_t rows, part tokens) {
    const hy_shape *s = &d->model->shape;
    int32_t top = d->options.top;
    bool is_scoring = tokens == SCORED;
    hy_op_call call = {
        .kind = HY_OP_SAMPLE,
        .attr.sample = {.vocab = s->vocab,
                        .factor =
                            s->more.logit_divisor > 0 ? (float)(1 / s->more.logit_divisor) : 1,
                        .softcap = (float)s->more.logit_softcap},
        .t = {[HY_SAMPLE_LOGITS] =
                  hy_tensor_2d(d->step->logits, d->options.dtype, rows, hy_shape_vocab_rows(s)),
              [HY_SAMPLE_SAMPLING] = rows_of(d, SAMPLING, HY_U8, 0, rows, sizeof(hy_sampling)),
              [HY_SAMPLE_TOKENS] = rows_of(d, tokens, HY_I32, slot, rows, 1),
              [HY_SAMPLE_LOGPROBS] = rows_of(d, LOGPROBS, HY_F32, slot, rows, 1)}};
    call.t[HY_SAMPLE_SAMPLING].data = d->parts[SAMPLING] + (uint64_t)slot * sizeof(hy_sampling);
    if (top > 0) {
        call.t[HY_SAMPLE_TOP_TOKENS] = rows_of(d, TOP_TOKENS, HY_I32, slot, rows, top);
        call.t[HY_SAMPLE_TOP_LOGPROBS] = rows_of(d, TOP_LOGPROBS, HY_F32, slot, rows, top);
    }
    if (d->options.has_seen && !is_scoring)
        call.t[HY_SAMPLE_SEEN] = rows_of(d, SEEN, HY_I32, slot, rows, seen_words(d));
    call.workspace = hy_tensor_1d(d->parts[WORKSPACE], HY_U8, (int64_t)d->workspace_bytes);
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
        unit > d->model->shape.layers ? HEAD_OPS : frame.unit->pass[HY_PASS_EVAL].op_count;
    for (int32_t i = 0; i < ops; i++) {
        hy_op_call call;
        hy_frame_bind(&frame, i, 0, &call);
        adjust(&frame, &call);
        hy_status status = b->supports(b, &call);
        if (status != HY_OK)
            return hy_fail_context(status, "the model's %s", frame.unit->unit->name);
        bool is_attention = call.kind == HY_OP_ATTENTION_CACHED;
        raise_to(is_attention ? &d->workspace_bytes : &plan->op_workspace_bytes,
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
    for (int32_t i = 0; i < PARTS; i++) d->parts[i] = (char *)(uintptr_t)HY_ALIGNMENT;
    for (int32_t rows = 1; rows < d->options.chunk; rows++) {
        set_tokens(d->chunk, rows);
        HY_TRY(check_units(d, d->chunk, layers));
    }
    set_tokens(d->chunk, d->options.chunk);
    HY_TRY(check_units(d, d->chunk, layers));
    d->is_step = true;
    for (int32_t rows = 1, next; rows <= d->options.streams; rows = next) {
        next = 2 * rows > d->options.streams && rows < d->options.streams ? d->options.streams
                                                                          : 2 * rows;
        set_sequences(d->step, rows);
        d->step->logits = d->parts[WORKSPACE];
        HY_TRY(check_units(d, d->step, layers + 1));
        hy_op_call sample = sample_call(d, 0, rows, NEXT);
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
        bytes[CACHE + i] = d->kinds[i].bytes;
        bytes[TABLES + i] = streams * (uint64_t)d->table_width * word;
    }
    bytes[ROPE] = (uint64_t)hy_shape_rope_floats(&d->model->shape, o->context) * sizeof(float);
    bytes[FIRST] = bytes[NEXT] = bytes[SCORED] = bytes[LOGPROBS] = streams * word;
    bytes[SAMPLING] = streams * sizeof(hy_sampling);
    bytes[PROMPT] = (uint64_t)o->chunk * word;
    bytes[TOP_TOKENS] = bytes[TOP_LOGPROBS] = streams * (uint64_t)o->top * word;
    bytes[SEEN] = o->has_seen ? streams * (uint64_t)seen_words(d) * word : 0;
    for (int i = 0; i < 2; i++) {
        plans[i]->bytes.workspace =
            plans[i]->scratch_bytes + hy_align(plans[i]->op_workspace_bytes);
        raise_to(&bytes[ACTIVATIONS], plans[i]->bytes.activations);
        raise_to(&bytes[PLAN_WORKSPACE], plans[i]->bytes.workspace);
    }
    bytes[WORKSPACE] = d->workspace_bytes;
    for (int i = 0; i < PARTS; i++) d->bytes += bytes[i] = hy_align(bytes[i]);
}

static hy_status plan_all(hy_batch_decoder *d) {
    HY_TRY(make_kinds(d));
    HY_TRY(make_plan(d, 1, d->options.chunk, d->options.is_unprepared, &d->chunk));
    HY_TRY(make_plan(d, d->options.streams, 1, true, &d->step));
    HY_TRY(check_all(d));
    count_bytes(d);
    return HY_OK;
}

static hy_status complete_options(hy_batch_decoder_options *o, const hy_shape *s) {
    HY_FAIL_IF(o->context < 1 || o->context > s->context, HY_ERR_INPUT,
               "a context of %d tokens is not supported; accepted: 1 to %d", o->context,
               s->context);
    HY_FAIL_IF(o->streams < 1 || o->streams > HY_STREAMS_MOST, HY_ERR_INPUT,
               "%d sequences at once are not supported; accepted: 1 to %d", o->streams,
               HY_STREAMS_MOST);
    HY_FAIL_IF(o->top < 0 || o->top > HY_SAMPLE_TOP_MOST || o->top > s->vocab, HY_ERR_INPUT,
               "log-probabilities of %d tokens were requested; accepted: 0 to %d", o->top,
               s->vocab < HY_SAMPLE_TOP_MOST ? s->vocab : HY_SAMPLE_TOP_MOST);
    if (o->chunk < 1) o->chunk = HY_DECODE_CHUNK;
    if (o->chunk >= o->context) o->chunk = o->context;
    HY_FAIL_IF(o->chunk < o->context && o->chunk % HY_KEY_RANGE != 0, HY_ERR_INPUT,
               "prompt chunks of %d tokens are not supported; accepted: multiples of %d", o->chunk,
               HY_KEY_RANGE);
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
    hy_status status = complete_options(&d->options, &model->shape);
    if (status == HY_OK) status = plan_all(d);
    if (status == HY_OK)
        *out = d;
    else
        hy_batch_decoder_destroy(d);
    return status;
}

static void forget_graphs(hy_batch_decoder *d) {
    for (int i = 0; i < GRAPHS; i++) {
        if (d->graphs[i]) d->backend->graph_destroy(d->graphs[i]);
        d->graphs[i] = NULL;
        d->was_run[i] = false;
    }
}

void hy_batch_decoder_destroy(hy_batch_decoder *d) {
    if (!d) return;
    forget_graphs(d);
    for (int i = 0; i < INPUTS; i++) {
        if (d->inputs[i].is_copied) d->backend->event_destroy(d->inputs[i].is_copied);
    }
    for (int i = 0; i < RESULTS; i++) {
        if (d->results[i].is_there) d->backend->event_destroy(d->results[i].is_there);
    }
    if (d->pinned) d->backend->release(d->backend, HY_PINNED, d->pinned, (size_t)d->pinned_bytes);
    hy_batch_plan_destroy(d->chunk);
    hy_batch_plan_destroy(d->step);
    free(d->kind_of);
    free(d->index_of);
    free(d);
}

uint64_t hy_batch_decoder_bytes(const hy_batch_decoder *d) { return d->bytes; }

const hy_batch_decoder_options *hy_batch_decoder_facts(const hy_batch_decoder *d) {
    return &d->options;
}

int32_t hy_batch_decoder_kinds(const hy_batch_decoder *d, const hy_cache_kind **kinds) {
    *kinds = d->kinds;
    return d->kind_count;
}

/* ---- placing --------------------------------------------------------------------------------- */

/* Divides pinned memory; with `base` NULL it only counts. */
typedef struct divider {
    char *base;
    uint64_t used;
} divider;

static void *take(divider *all, uint64_t bytes) {
    char *begin = all->base ? all->base + all->used : NULL;
    all->used += hy_align(bytes);
    return begin;
}

static void divide_pinned(hy_batch_decoder *d, divider *all) {
    const hy_batch_decoder_options *o = &d->options;
    uint64_t streams = (uint64_t)o->streams, word = sizeof(int32_t);
    for (int32_t i = 0; i < d->kind_count; i++) d->tables[i] = take(all, d->part_bytes[TABLES + i]);
    d->seen = take(all, d->part_bytes[SEEN]);
    for (int i = 0; i < INPUTS; i++) {
        d->inputs[i].first = take(all, streams * word);
        d->inputs[i].sampling = take(all, streams * sizeof(hy_sampling));
        d->inputs[i].prompt =
            take(all, (uint64_t)(o->chunk > o->streams ? o->chunk : o->streams) * word);
    }
    for (int i = 0; i < RESULTS; i++) {
        d->results[i].tokens = take(all, streams * word);
        d->results[i].logprobs = take(all, streams * word);
        d->results[i].top_tokens = take(all, d->part_bytes[TOP_TOKENS]);
        d->results[i].top_logprobs = take(all, d->part_bytes[TOP_LOGPROBS]);
    }
}

static hy_status take_pinned(hy_batch_decoder *d) {
    hy_backend *b = d->backend;
    divider all = {0};
    if (d->pinned) return HY_OK;
    divide_pinned(d, &all);
    d->pinned_bytes = all.used;
    hy_status status = b->alloc(b, HY_PINNED, (size_t)all.used, &d->pinned);
    if (status != HY_OK) return hy_fail_context(status, "memory for tokens of a decoder");
    divide_pinned(d, &(divider){.base = d->pinned});
    for (int i = 0; i < INPUTS; i++) HY_TRY(b->event_create(b, &d->inputs[i].is_copied));
    for (int i = 0; i < RESULTS; i++) HY_TRY(b->event_create(b, &d->results[i].is_there));
    return HY_OK;
}

static hy_status copy_rope(hy_batch_decoder *d) {
    size_t bytes =
        (size_t)hy_shape_rope_floats(&d->model->shape, d->options.context) * sizeof(float);
    if (bytes == 0) return HY_OK;
    float *tables = malloc(bytes);
    HY_FAIL_IF(!tables, HY_ERR_MEMORY, "not enough memory for the rope table");
    hy_shape_rope_tables(&d->model->shape, d->options.context, tables);
    hy_status status = d->backend->copy(d->stream, d->parts[ROPE], tables, bytes);
    if (status == HY_OK) status = d->backend->stream_sync(d->stream);
    free(tables);
    return status;
}

hy_status hy_batch_decoder_place(hy_batch_decoder *d, hy_stream *stream, void *memory,
                                 hy_store *weights, hy_store *frozen) {
    char *at = memory;
    HY_TRY(take_pinned(d));
    forget_graphs(d);
    for (int i = 0; i < PARTS; at += d->part_bytes[i++]) d->parts[i] = at;
    d->stream = stream;
    d->weights = weights;
    d->frozen = frozen;
    d->given = d->enqueued = d->read = 0;
    d->chunk_rows = 0;
    d->has_logits = false;
    hy_batch_plan_place(d->chunk, d->parts[ACTIVATIONS], d->parts[PLAN_WORKSPACE]);
    hy_batch_plan_place(d->step, d->parts[ACTIVATIONS], d->parts[PLAN_WORKSPACE]);
    return copy_rope(d);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static hy_status check_slot(const hy_batch_decoder *d, int32_t slot) {
    HY_FAIL_IF(slot < 0 || slot >= d->options.streams, HY_ERR_INTERNAL,
               "slot %d of a decoder with %d", slot, d->options.streams);
    return HY_OK;
}

hy_status hy_batch_decoder_seat(hy_batch_decoder *d, int32_t slot, const int32_t *const *blocks,
                                const int32_t *counts) {
    HY_TRY(check_slot(d, slot));
    for (int32_t kind = 0; kind < d->kind_count; kind++) {
        int64_t begin = (int64_t)slot * d->table_width;
        int32_t *row = d->tables[kind] + begin;
        for (int32_t i = 0; i < d->table_width; i++) row[i] = blocks[kind][i % counts[kind]];
        HY_TRY(d->backend->copy(d->stream, d->parts[TABLES + kind] + (uint64_t)begin * sizeof *row,
                                row, (size_t)d->table_width * sizeof *row));
    }
    return HY_OK;
}

hy_status hy_batch_decoder_see(hy_batch_decoder *d, int32_t slot, const int32_t *tokens,
                               int32_t count) {
    int64_t words = seen_words(d);
    size_t bytes = (size_t)words * sizeof(int32_t);
    HY_TRY(check_slot(d, slot));
    HY_FAIL_IF(!d->options.has_seen, HY_ERR_INTERNAL, "this decoder has no repetition penalty");
    uint32_t *mask = (uint32_t *)d->seen + slot * words;
    memset(mask, 0, bytes);
    for (int32_t i = 0; i < count; i++) mask[tokens[i] / 32] |= 1u << tokens[i] % 32;
    return d->backend->copy(d->stream, d->parts[SEEN] + (size_t)slot * bytes, mask, bytes);
}

hy_status hy_batch_decoder_copy_block(hy_batch_decoder *d, int32_t kind, int32_t from, int32_t to) {
    const hy_cache_kind *k = &d->kinds[kind];
    uint64_t block = HY_DECODE_BLOCK * (uint64_t)cache_width(d) * hy_dtype_size(d->options.dtype);
    for (int32_t layer = 0; layer < k->layers; layer++) {
        char *pool = d->parts[CACHE + kind] + (uint64_t)layer * (uint64_t)k->blocks * block;
        HY_TRY(d->backend->copy(d->stream, pool + (uint64_t)to * block,
                                pool + (uint64_t)from * block, (size_t)block));
    }
    return HY_OK;
}

/* ---- inputs and results ---------------------------------------------------------------------- */

/* Waits until the input that was given so many inputs ago was copied. */
static hy_status next_input(hy_batch_decoder *d, input **out) {
    input *in = &d->inputs[d->given % INPUTS];
    if (d->given >= INPUTS) HY_TRY(d->backend->event_sync(in->is_copied));
    *out = in;
    return HY_OK;
}

static hy_status copy_words(hy_batch_decoder *d, part at, int64_t first, const void *from,
                            int64_t count, size_t each) {
    return d->backend->copy(d->stream, d->parts[at] + (size_t)first * each, from,
                            (size_t)count * each);
}

static hy_status end_input(hy_batch_decoder *d, input *in) {
    d->given++;
    return d->backend->event_record(in->is_copied, d->stream);
}

static hy_status check_room(const hy_batch_decoder *d) {
    HY_FAIL_IF(d->enqueued - d->read >= RESULTS, HY_ERR_INTERNAL,
               "%d results of a decoder wait to be read", RESULTS);
    return HY_OK;
}

/* Copies the results of slots [slot, slot + rows). */
static hy_status end_result(hy_batch_decoder *d, int32_t slot, int32_t rows, part tokens) {
    result *to = &d->results[d->enqueued % RESULTS];
    hy_backend *b = d->backend;
    size_t word = sizeof(int32_t), at = (size_t)slot * word, bytes = (size_t)rows * word;
    size_t top = (size_t)d->options.top;
    HY_TRY(b->copy(d->stream, to->tokens + slot, d->parts[tokens] + at, bytes));
    HY_TRY(b->copy(d->stream, to->logprobs + slot, d->parts[LOGPROBS] + at, bytes));
    if (top > 0) {
        HY_TRY(b->copy(d->stream, to->top_tokens + (size_t)slot * top,
                       d->parts[TOP_TOKENS] + at * top, bytes * top));
        HY_TRY(b->copy(d->stream, to->top_logprobs + (size_t)slot * top,
                       d->parts[TOP_LOGPROBS] + at * top, bytes * top));
    }
    d->enqueued++;
    return b->event_record(to->is_there, d->stream);
}

hy_status hy_batch_decoder_read(hy_batch_decoder *d, hy_step_result *out) {
    HY_FAIL_IF(d->read == d->enqueued, HY_ERR_INTERNAL, "no result of a decoder waits to be read");
    const result *from = &d->results[d->read % RESULTS];
    HY_TRY(d->backend->event_sync(from->is_there));
    d->read++;
    *out = (hy_step_result){.tokens = from->tokens,
                            .logprobs = from->logprobs,
                            .top_tokens = from->top_tokens,
                            .top_logprobs = from->top_logprobs};
    return HY_OK;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static hy_batch_input pass_input(const hy_batch_decoder *d, part tokens) {
    return (hy_batch_input){.stream = d->stream,
                            .weights = d->weights,
                            .frozen = d->frozen,
                            .tokens = (const int32_t *)(void *)d->parts[tokens],
                            .rope = (float *)(void *)d->parts[ROPE],
                            .rope_rows = d->options.context};
}

static hy_frame pass_frame(const hy_batch_decoder *d, hy_batch_plan *plan,
                           const hy_batch_input *in) {
    return (hy_frame){
        .plan = plan, .pass = HY_PASS_EVAL, .input = in, .adjust = adjust, .context = d};
}

/* The head on `rows` rows of the residual that enters it. */
static hy_status run_head(hy_batch_decoder *d, const hy_batch_input *in, char *residual,
                          int32_t rows) {
    hy_frame f = pass_frame(d, d->step, in);
    set_sequences(d->step, rows);
    f.residual_in = residual;
    f.op_limit = HEAD_OPS;
    return hy_run_unit(&f, d->model->shape.layers + 1, +1);
}

static char *chunk_row(const hy_batch_decoder *d, int32_t row) {
    uint64_t bytes = (uint64_t)d->model->shape.width * hy_dtype_size(d->options.dtype);
    char *residual = hy_batch_eval_residual(d->chunk, d->model->shape.layers % 2, 0);
    return residual + (uint64_t)row * bytes;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static hy_status check_chunk(const hy_batch_decoder *d, const int32_t *tokens, int32_t first,
                             int32_t count) {
    const hy_batch_decoder_options *o = &d->options;
    int32_t vocab = d->model->shape.vocab;
    HY_FAIL_IF(first < 0 || first % o->chunk != 0 || count < 1 || count > o->chunk ||
                   count > o->context - first,
               HY_ERR_INTERNAL,
               "a chunk of %d tokens at position %d; chunks have %d, the context %d", count, first,
               o->chunk, o->context);
    for (int32_t i = 0; i < count; i++) {
        HY_FAIL_IF(tokens[i] < 0 || tokens[i] >= vocab, HY_ERR_INPUT,
                   "token %d is %d, expected 0 to %d", first + i, tokens[i], vocab - 1);
    }
    return HY_OK;
}

static hy_status give_chunk(hy_batch_decoder *d, int32_t slot, const int32_t *tokens, int32_t first,
                            int32_t count, const hy_sampling *sampling) {
    input *in;
    HY_TRY(next_input(d, &in));
    memcpy(in->prompt, tokens, (size_t)count * sizeof *tokens);
    in->first[0] = first;
    HY_TRY(copy_words(d, PROMPT, 0, in->prompt, count, sizeof *tokens));
    HY_TRY(copy_words(d, FIRST, slot, in->first, 1, sizeof *in->first));
    if (sampling) {
        in->sampling[0] = *sampling;
        HY_TRY(copy_words(d, SAMPLING, slot, in->sampling, 1, sizeof *sampling));
    }
    return end_input(d, in);
}

static hy_status choose(hy_batch_decoder *d, int32_t slot) {
    hy_op_call call = sample_call(d, slot, 1, NEXT);
    HY_TRY(d->backend->enqueue(d->stream, &call));
    return end_result(d, slot, 1, NEXT);
}

hy_status hy_batch_decoder_chunk(hy_batch_decoder *d, int32_t slot, const int32_t *tokens,
                                 int32_t first, int32_t count, const hy_sampling *sampling) {
    HY_TRY(check_slot(d, slot));
    HY_TRY(check_chunk(d, tokens, first, count));
    HY_TRY(check_room(d));
    HY_TRY(give_chunk(d, slot, tokens, first, count, sampling));
    hy_batch_input in = pass_input(d, PROMPT);
    hy_frame f = pass_frame(d, d->chunk, &in);
    d->is_step = false;
    d->slot = slot;
    d->chunk_rows = 0;
    set_tokens(d->chunk, count);
    HY_TRY(hy_run_stack(&f));
    HY_TRY(run_head(d, &in, chunk_row(d, count - 1), 1));
    d->chunk_rows = count;
    d->has_logits = true;
    return sampling ? choose(d, slot) : HY_OK;
}

hy_status hy_batch_decoder_choose(hy_batch_decoder *d, int32_t slot, const hy_sampling *sampling) {
    input *in;
    HY_TRY(check_slot(d, slot));
    HY_TRY(check_room(d));
    HY_FAIL_IF(!d->has_logits, HY_ERR_INTERNAL, "the logits of the last chunk are gone");
    HY_TRY(next_input(d, &in));
    in->sampling[0] = *sampling;
    HY_TRY(copy_words(d, SAMPLING, slot, in->sampling, 1, sizeof *sampling));
    HY_TRY(end_input(d, in));
    return choose(d, slot);
}

/* Given tokens are chosen as forced ones. */
hy_status hy_batch_decoder_score(hy_batch_decoder *d, int32_t row, const int32_t *tokens,
                                 int32_t count) {
    input *in;
    HY_FAIL_IF(row < 0 || count < 1 || count > d->options.streams || row + count > d->chunk_rows,
               HY_ERR_INTERNAL, "rows %d to %d of a chunk with %d", row, row + count - 1,
               d->chunk_rows);
    HY_TRY(check_room(d));
    HY_TRY(next_input(d, &in));
    for (int32_t i = 0; i < count; i++) in->sampling[i] = (hy_sampling){.forced = tokens[i]};
    HY_TRY(copy_words(d, SAMPLING, 0, in->sampling, count, sizeof *in->sampling));
    HY_TRY(end_input(d, in));
    hy_batch_input pass = pass_input(d, PROMPT);
    hy_frame f = pass_frame(d, d->step, &pass);
    d->has_logits = false;
    HY_TRY(hy_visit_prepare(&f, d->model->shape.layers + 1));
    HY_TRY(run_head(d, &pass, chunk_row(d, row), count));
    hy_op_call call = sample_call(d, 0, count, SCORED);
    HY_TRY(d->backend->enqueue(d->stream, &call));
    return end_result(d, 0, count, SCORED);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static hy_status run_step(hy_batch_decoder *d, const hy_batch_input *in, int32_t rows) {
    hy_frame f = pass_frame(d, d->step, in);
    set_sequences(d->step, rows);
    HY_TRY(hy_run_stack(&f));
    HY_TRY(run_head(d, in, f.residual_in, rows));
    hy_op_call call = sample_call(d, 0, rows, NEXT);
    return d->backend->enqueue(d->stream, &call);
}

/* Captured steps have a power of two of sequences, or all slots. */
static int32_t graph_rows(const hy_batch_decoder *d, int32_t rows, int32_t *graph) {
    int32_t most = 1;
    for (*graph = 0; most < rows; (*graph)++) most *= 2;
    return most < d->options.streams ? most : d->options.streams;
}

static hy_status capture_step(hy_batch_decoder *d, const hy_batch_input *in, int32_t rows,
                              hy_graph **out) {
    hy_backend *b = d->backend;
    HY_TRY(b->capture_begin(d->stream));
    hy_status status = run_step(d, in, rows);
    hy_status ended = b->capture_end(d->stream, out);
    return status != HY_OK ? status : ended;
}

/* The first step of a size runs op by op, so that libraries load what they need. */
static hy_status run_step_fast(hy_batch_decoder *d, const hy_batch_input *in, int32_t rows) {
    int32_t graph;
    if (!hy_can_capture(d->step, in)) return run_step(d, in, rows);
    int32_t all = graph_rows(d, rows, &graph);
    bool was_run = d->was_run[graph];
    d->was_run[graph] = true;
    if (!was_run) return run_step(d, in, all);
    if (!d->graphs[graph]) HY_TRY(capture_step(d, in, all, &d->graphs[graph]));
    return d->backend->replay(d->stream, d->graphs[graph]);
}

hy_status hy_batch_decoder_step(hy_batch_decoder *d, int32_t rows, const int32_t *first,
                                const hy_sampling *sampling) {
    input *in;
    int32_t graph;
    HY_FAIL_IF(rows < 1 || rows > d->options.streams, HY_ERR_INTERNAL,
               "a step of %d sequences in a decoder with %d slots", rows, d->options.streams);
    HY_TRY(check_room(d));
    HY_TRY(next_input(d, &in));
    int32_t all = graph_rows(d, rows, &graph);
    for (int32_t i = 0; i < all; i++) {
        bool is_idle = i >= rows || first[i] < 0;
        in->first[i] = is_idle ? -1 : first[i];
        in->sampling[i] = is_idle ? (hy_sampling){.forced = 0} : sampling[i];
    }
    HY_TRY(copy_words(d, FIRST, 0, in->first, all, sizeof *in->first));
    HY_TRY(copy_words(d, SAMPLING, 0, in->sampling, all, sizeof *in->sampling));
    HY_TRY(end_input(d, in));
    hy_batch_input pass = pass_input(d, NEXT);
    d->is_step = true;
    d->chunk_rows = 0;
    d->has_logits = false;
    HY_TRY(run_step_fast(d, &pass, rows));
    return end_result(d, 0, rows, NEXT);
}
