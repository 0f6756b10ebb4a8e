/* batch_decode.c: memory, slots, chunks and steps of a batched decoder. See batch_decode.h.
 *
 * What the host gives to a chunk or step lies in a ring of pinned inputs until it was copied; what
 * comes back lies in a ring of pinned results until it was read. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/batch_decode_parts.h"
#include "model/batch_memory.h"
#include "model/graphs.h"
#include "model/visit.h"

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
    for (int32_t i = 0; i < d->kind_count; i++)
        d->tables[i] = take(all, d->part_bytes[HY_DECODER_TABLES + i]);
    d->seen = take(all, d->part_bytes[HY_DECODER_SEEN]);
    for (int i = 0; i < HY_DECODER_INPUTS; i++) {
        d->inputs[i].first = take(all, streams * word);
        d->inputs[i].sampling = take(all, streams * sizeof(hy_sampling));
        d->inputs[i].prompt =
            take(all, (uint64_t)(o->chunk > o->streams ? o->chunk : o->streams) * word);
    }
    for (int i = 0; i < HY_DECODER_RESULTS; i++) {
        d->results[i].tokens = take(all, streams * word);
        d->results[i].logprobs = take(all, streams * word);
        d->results[i].top_tokens = take(all, d->part_bytes[HY_DECODER_TOP_TOKENS]);
        d->results[i].top_logprobs = take(all, d->part_bytes[HY_DECODER_TOP_LOGPROBS]);
    }
}

static hy_status take_pinned(hy_batch_decoder *d) {
    hy_backend *b = d->backend;
    divider all = {0};
    if (d->pinned) return HY_OK;
    d->is_given = calloc((size_t)d->options.streams, sizeof(hy_event *));
    HY_FAIL_IF(!d->is_given, HY_ERR_MEMORY, "not enough memory for a decoder");
    divide_pinned(d, &all);
    d->pinned_bytes = all.used;
    hy_status status = b->alloc(b, HY_PINNED, (size_t)all.used, &d->pinned);
    if (status != HY_OK) return hy_fail_context(status, "memory for tokens of a decoder");
    divide_pinned(d, &(divider){.base = d->pinned});
    for (int i = 0; i < HY_DECODER_INPUTS; i++) HY_TRY(b->event_create(b, &d->inputs[i].is_copied));
    for (int i = 0; i < HY_DECODER_RESULTS; i++)
        HY_TRY(b->event_create(b, &d->results[i].is_there));
    return HY_OK;
}

static void fill_table(const hy_batch_decoder *d, hy_decoder_part part, void *table) {
    if (part == HY_DECODER_ROPE)
        hy_shape_rope_tables(&d->model->shape, d->options.context, table);
    else
        hy_decoder_list_states(d, table);
}

/* A table that stays as it is: of rope, or where states are. */
static hy_status copy_table(hy_batch_decoder *d, hy_decoder_part part) {
    size_t bytes = (size_t)d->part_bytes[part];
    if (bytes == 0) return HY_OK;
    void *table = calloc(1, bytes);
    HY_FAIL_IF(!table, HY_ERR_MEMORY, "not enough memory for a table of a decoder");
    fill_table(d, part, table);
    hy_status status = d->backend->copy(d->stream, d->parts[part], table, bytes);
    if (status == HY_OK) status = d->backend->stream_sync(d->stream);
    free(table);
    return status;
}

hy_status hy_batch_decoder_place(hy_batch_decoder *d, hy_stream *stream, void *memory,
                                 hy_store *weights, hy_store *frozen) {
    char *at = memory;
    HY_TRY(take_pinned(d));
    hy_decoder_forget_graphs(d);
    for (int i = 0; i < HY_DECODER_PARTS; at += d->part_bytes[i++]) d->parts[i] = at;
    d->stream = stream;
    d->weights = weights;
    d->frozen = frozen;
    d->given = d->enqueued = d->read = 0;
    d->chunk_rows = 0;
    d->has_logits = false;
    for (int32_t i = 0; i < d->states.count; i++) d->state_at[i] = 0;
    hy_batch_plan_place(d->chunk, d->parts[HY_DECODER_ACTIVATIONS],
                        d->parts[HY_DECODER_PLAN_WORKSPACE]);
    hy_batch_plan_place(d->step, d->parts[HY_DECODER_ACTIVATIONS],
                        d->parts[HY_DECODER_PLAN_WORKSPACE]);
    HY_TRY(copy_table(d, HY_DECODER_ROPE));
    return copy_table(d, HY_DECODER_STATE_SLOTS);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static hy_status check_slot(const hy_batch_decoder *d, int32_t slot) {
    HY_FAIL_IF(slot < 0 || slot >= d->options.streams, HY_ERR_INTERNAL,
               "slot %d of a decoder with %d", slot, d->options.streams);
    return HY_OK;
}

/* Waits until what the host last gave to the slot was copied. Usually it was long ago. */
static hy_status begin_giving(hy_batch_decoder *d, int32_t slot) {
    hy_event **is_given = &d->is_given[slot];
    HY_TRY(check_slot(d, slot));
    return *is_given ? d->backend->event_sync(*is_given)
                     : d->backend->event_create(d->backend, is_given);
}

static hy_status end_giving(hy_batch_decoder *d, int32_t slot) {
    return d->backend->event_record(d->is_given[slot], d->stream);
}

hy_status hy_batch_decoder_seat(hy_batch_decoder *d, int32_t slot, const int32_t *const *blocks,
                                const int32_t *counts) {
    HY_TRY(begin_giving(d, slot));
    for (int32_t kind = 0; kind < d->kind_count; kind++) {
        int64_t begin = (int64_t)slot * d->table_width;
        int32_t *row = d->tables[kind] + begin;
        for (int32_t i = 0; i < d->table_width; i++) row[i] = blocks[kind][i % counts[kind]];
        HY_TRY(d->backend->copy(d->stream,
                                d->parts[HY_DECODER_TABLES + kind] + (uint64_t)begin * sizeof *row,
                                row, (size_t)d->table_width * sizeof *row));
    }
    return end_giving(d, slot);
}

hy_status hy_batch_decoder_see(hy_batch_decoder *d, int32_t slot, const int32_t *tokens,
                               int32_t count) {
    int64_t words = hy_decoder_seen_words(d);
    size_t bytes = (size_t)words * sizeof(int32_t);
    HY_FAIL_IF(!d->options.has_seen, HY_ERR_INTERNAL, "this decoder has no repetition penalty");
    HY_TRY(begin_giving(d, slot));
    uint32_t *mask = (uint32_t *)d->seen + slot * words;
    memset(mask, 0, bytes);
    for (int32_t i = 0; i < count; i++) mask[tokens[i] / 32] |= 1u << tokens[i] % 32;
    HY_TRY(
        d->backend->copy(d->stream, d->parts[HY_DECODER_SEEN] + (size_t)slot * bytes, mask, bytes));
    return end_giving(d, slot);
}

hy_status hy_batch_decoder_copy_block(hy_batch_decoder *d, int32_t kind, int32_t from, int32_t to) {
    const hy_cache_kind *k = &d->kinds[kind];
    uint64_t block =
        HY_DECODE_BLOCK * (uint64_t)hy_decoder_cache_width(d) * hy_dtype_size(d->options.dtype);
    for (int32_t layer = 0; layer < k->layers; layer++) {
        char *pool =
            d->parts[HY_DECODER_CACHE + kind] + (uint64_t)layer * (uint64_t)k->blocks * block;
        HY_TRY(d->backend->copy(d->stream, pool + (uint64_t)to * block,
                                pool + (uint64_t)from * block, (size_t)block));
    }
    return HY_OK;
}

/* ---- inputs and results ---------------------------------------------------------------------- */

/* Waits until the input that was given so many inputs ago was copied. */
static hy_status next_input(hy_batch_decoder *d, hy_decoder_input **out) {
    hy_decoder_input *in = &d->inputs[d->given % HY_DECODER_INPUTS];
    if (d->given >= HY_DECODER_INPUTS) HY_TRY(d->backend->event_sync(in->is_copied));
    *out = in;
    return HY_OK;
}

static hy_status copy_words(hy_batch_decoder *d, hy_decoder_part at, int64_t first,
                            const void *from, int64_t count, size_t each) {
    return d->backend->copy(d->stream, d->parts[at] + (size_t)first * each, from,
                            (size_t)count * each);
}

static hy_status end_input(hy_batch_decoder *d, hy_decoder_input *in) {
    d->given++;
    return d->backend->event_record(in->is_copied, d->stream);
}

static hy_status check_room(const hy_batch_decoder *d) {
    HY_FAIL_IF(d->enqueued - d->read >= HY_DECODER_RESULTS, HY_ERR_INTERNAL,
               "%d results of a decoder wait to be read", HY_DECODER_RESULTS);
    return HY_OK;
}

/* Copies the results of slots [slot, slot + rows). */
static hy_status end_result(hy_batch_decoder *d, int32_t slot, int32_t rows,
                            hy_decoder_part tokens) {
    hy_decoder_result *to = &d->results[d->enqueued % HY_DECODER_RESULTS];
    hy_backend *b = d->backend;
    size_t word = sizeof(int32_t), at = (size_t)slot * word, bytes = (size_t)rows * word;
    size_t top = (size_t)d->options.top;
    HY_TRY(b->copy(d->stream, to->tokens + slot, d->parts[tokens] + at, bytes));
    HY_TRY(b->copy(d->stream, to->logprobs + slot, d->parts[HY_DECODER_LOGPROBS] + at, bytes));
    if (top > 0) {
        HY_TRY(b->copy(d->stream, to->top_tokens + (size_t)slot * top,
                       d->parts[HY_DECODER_TOP_TOKENS] + at * top, bytes * top));
        HY_TRY(b->copy(d->stream, to->top_logprobs + (size_t)slot * top,
                       d->parts[HY_DECODER_TOP_LOGPROBS] + at * top, bytes * top));
    }
    d->enqueued++;
    return b->event_record(to->is_there, d->stream);
}

hy_status hy_batch_decoder_read(hy_batch_decoder *d, hy_step_tokens *out) {
    HY_FAIL_IF(d->read == d->enqueued, HY_ERR_INTERNAL, "no result of a decoder waits to be read");
    const hy_decoder_result *from = &d->results[d->read % HY_DECODER_RESULTS];
    HY_TRY(d->backend->event_sync(from->is_there));
    d->read++;
    *out = (hy_step_tokens){.tokens = from->tokens,
                            .logprobs = from->logprobs,
                            .top_tokens = from->top_tokens,
                            .top_logprobs = from->top_logprobs};
    return HY_OK;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static hy_batch_input pass_input(const hy_batch_decoder *d, hy_decoder_part tokens) {
    return (hy_batch_input){.stream = d->stream,
                            .weights = d->weights,
                            .frozen = d->frozen,
                            .tokens = (const int32_t *)(void *)d->parts[tokens],
                            .rope = (float *)(void *)d->parts[HY_DECODER_ROPE],
                            .rope_rows = d->options.context,
                            .hook = d->options.hook};
}

static hy_frame pass_frame(const hy_batch_decoder *d, hy_batch_plan *plan,
                           const hy_batch_input *in) {
    return (hy_frame){
        .plan = plan, .pass = HY_PASS_EVAL, .input = in, .adjust = hy_decoder_adjust, .context = d};
}

/* The head on `rows` rows of the residual that enters it. */
static hy_status run_head(hy_batch_decoder *d, const hy_batch_input *in, char *residual,
                          int32_t rows) {
    hy_frame f = pass_frame(d, d->step, in);
    hy_decoder_set_sequences(d->step, rows);
    f.residual_in = residual;
    f.op_limit = HY_HEAD_OPS;
    return hy_run_unit(&f, d->model->shape.layers + 1, +1);
}

static char *chunk_row(const hy_batch_decoder *d, int32_t row) {
    uint64_t bytes = (uint64_t)d->model->shape.width * hy_dtype_size(d->options.dtype);
    char *residual = hy_batch_eval_residual(d->chunk, d->model->shape.layers % 2, 0);
    return residual + (uint64_t)row * bytes;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static bool is_chunk_start(const hy_batch_decoder *d, int32_t position) {
    int32_t at = 0;
    while (at < position) at += hy_chunk_length(at, d->options.chunk);
    return at == position;
}

static hy_status check_tokens(const hy_batch_decoder *d, const int32_t *tokens, int32_t first,
                              int32_t count) {
    int32_t vocab = d->model->shape.vocab;
    for (int32_t i = 0; i < count; i++) {
        HY_FAIL_IF(tokens[i] < 0 || tokens[i] >= vocab, HY_ERR_INPUT,
                   "token %d is %d, expected 0 to %d", first + i, tokens[i], vocab - 1);
    }
    return HY_OK;
}

static hy_status check_chunk(const hy_batch_decoder *d, const int32_t *tokens, int32_t first,
                             int32_t count) {
    const hy_batch_decoder_options *o = &d->options;
    int32_t most = o->goes_back ? o->chunk : hy_chunk_length(first, o->chunk);
    bool begins_there = o->goes_back ? first >= 0 : is_chunk_start(d, first);
    HY_FAIL_IF(!begins_there || count < 1 || count > most || count > o->context - first,
               HY_ERR_INTERNAL,
               "a chunk of %d tokens at position %d; chunks have up to %d, the context %d", count,
               first, o->chunk, o->context);
    return check_tokens(d, tokens, first, count);
}

static hy_status give_chunk(hy_batch_decoder *d, int32_t slot, const int32_t *tokens, int32_t first,
                            int32_t count, const hy_sampling *sampling) {
    hy_decoder_input *in;
    HY_TRY(next_input(d, &in));
    memcpy(in->prompt, tokens, (size_t)count * sizeof *tokens);
    in->first[0] = first;
    HY_TRY(copy_words(d, HY_DECODER_PROMPT, 0, in->prompt, count, sizeof *tokens));
    HY_TRY(copy_words(d, HY_DECODER_FIRST, slot, in->first, 1, sizeof *in->first));
    if (sampling) {
        in->sampling[0] = *sampling;
        HY_TRY(copy_words(d, HY_DECODER_SAMPLING, slot, in->sampling, 1, sizeof *sampling));
    }
    return end_input(d, in);
}

static hy_status choose(hy_batch_decoder *d, int32_t slot) {
    hy_op_call call = hy_decoder_sample_call(d, slot, 1, HY_DECODER_NEXT);
    HY_TRY(d->backend->enqueue(d->stream, &call));
    return end_result(d, slot, 1, HY_DECODER_NEXT);
}

hy_status hy_batch_decoder_chunk(hy_batch_decoder *d, int32_t slot, const int32_t *tokens,
                                 int32_t first, int32_t count, const hy_sampling *sampling) {
    HY_TRY(check_slot(d, slot));
    HY_TRY(check_chunk(d, tokens, first, count));
    HY_TRY(check_room(d));
    HY_TRY(hy_decoder_advance(d, slot, first, count));
    HY_TRY(give_chunk(d, slot, tokens, first, count, sampling));
    hy_batch_input in = pass_input(d, HY_DECODER_PROMPT);
    hy_frame f = pass_frame(d, d->chunk, &in);
    d->is_step = false;
    d->slot = slot;
    d->chunk_rows = 0;
    hy_decoder_set_tokens(d->chunk, count);
    HY_TRY(hy_run_stack(&f));
    d->chunk_rows = count;
    d->has_logits = sampling != NULL;
    if (!sampling) return HY_OK;
    HY_TRY(run_head(d, &in, chunk_row(d, count - 1), 1));
    return choose(d, slot);
}

/* The head on rows [row, row + count) of the last chunk. */
static hy_status run_chunk_head(hy_batch_decoder *d, int32_t row, int32_t count) {
    hy_batch_input pass = pass_input(d, HY_DECODER_PROMPT);
    hy_frame f = pass_frame(d, d->step, &pass);
    HY_TRY(hy_visit_prepare(&f, d->model->shape.layers + 1));
    return run_head(d, &pass, chunk_row(d, row), count);
}

hy_status hy_batch_decoder_choose(hy_batch_decoder *d, int32_t slot, const hy_sampling *sampling) {
    hy_decoder_input *in;
    HY_TRY(check_slot(d, slot));
    HY_TRY(check_room(d));
    HY_FAIL_IF(d->chunk_rows == 0, HY_ERR_INTERNAL, "the last chunk is gone: a step followed it");
    if (!d->has_logits) HY_TRY(run_chunk_head(d, d->chunk_rows - 1, 1));
    d->has_logits = true;
    HY_TRY(next_input(d, &in));
    in->sampling[0] = *sampling;
    HY_TRY(copy_words(d, HY_DECODER_SAMPLING, slot, in->sampling, 1, sizeof *sampling));
    HY_TRY(end_input(d, in));
    return choose(d, slot);
}

/* Given tokens are chosen as forced ones. */
hy_status hy_batch_decoder_score(hy_batch_decoder *d, int32_t row, const int32_t *tokens,
                                 int32_t count) {
    hy_decoder_input *in;
    HY_FAIL_IF(row < 0 || count < 1 || count > d->options.streams || row + count > d->chunk_rows,
               HY_ERR_INTERNAL, "rows %d to %d of a chunk with %d", row, row + count - 1,
               d->chunk_rows);
    HY_TRY(check_room(d));
    HY_TRY(next_input(d, &in));
    for (int32_t i = 0; i < count; i++) in->sampling[i] = (hy_sampling){.forced = tokens[i]};
    HY_TRY(copy_words(d, HY_DECODER_SAMPLING, 0, in->sampling, count, sizeof *in->sampling));
    HY_TRY(end_input(d, in));
    d->has_logits = false;
    HY_TRY(run_chunk_head(d, row, count));
    hy_op_call call = hy_decoder_sample_call(d, 0, count, HY_DECODER_SCORED);
    HY_TRY(d->backend->enqueue(d->stream, &call));
    return end_result(d, 0, count, HY_DECODER_SCORED);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static hy_status run_step(hy_batch_decoder *d, const hy_batch_input *in, int32_t rows) {
    hy_frame f = pass_frame(d, d->step, in);
    hy_decoder_set_sequences(d->step, rows);
    HY_TRY(hy_run_stack(&f));
    HY_TRY(run_head(d, in, f.residual_in, rows));
    hy_op_call call = hy_decoder_sample_call(d, 0, rows, HY_DECODER_NEXT);
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
    int32_t all = graph_rows(d, rows, &graph);
    hy_decoder_set_sequences(d->step, all);
    if (!hy_can_capture(d->step, in)) return run_step(d, in, rows);
    bool was_run = d->was_run[graph];
    d->was_run[graph] = true;
    if (!was_run) return run_step(d, in, all);
    if (!d->graphs[graph]) HY_TRY(capture_step(d, in, all, &d->graphs[graph]));
    return d->backend->replay(d->stream, d->graphs[graph]);
}

hy_status hy_batch_decoder_give(hy_batch_decoder *d, int32_t slot, int32_t token) {
    hy_decoder_input *in;
    HY_TRY(check_slot(d, slot));
    HY_TRY(check_tokens(d, &token, 0, 1));
    HY_TRY(next_input(d, &in));
    in->first[0] = token;
    HY_TRY(copy_words(d, HY_DECODER_NEXT, slot, in->first, 1, sizeof token));
    return end_input(d, in);
}

hy_status hy_batch_decoder_step(hy_batch_decoder *d, int32_t rows, const int32_t *first,
                                const hy_sampling *sampling) {
    hy_decoder_input *in;
    int32_t graph;
    HY_FAIL_IF(rows < 1 || rows > d->options.streams, HY_ERR_INTERNAL,
               "a step of %d sequences in a decoder with %d slots", rows, d->options.streams);
    HY_TRY(check_room(d));
    HY_TRY(next_input(d, &in));
    int32_t all = graph_rows(d, rows, &graph);
    for (int32_t i = 0; i < all; i++) {
        bool is_idle = i >= rows || first[i] < 0;
        if (!is_idle) HY_TRY(hy_decoder_advance(d, i, first[i], 1));
        in->first[i] = is_idle ? -1 : first[i];
        in->sampling[i] = is_idle ? (hy_sampling){.forced = 0} : sampling[i];
    }
    HY_TRY(copy_words(d, HY_DECODER_FIRST, 0, in->first, all, sizeof *in->first));
    HY_TRY(copy_words(d, HY_DECODER_SAMPLING, 0, in->sampling, all, sizeof *in->sampling));
    HY_TRY(end_input(d, in));
    hy_batch_input pass = pass_input(d, HY_DECODER_NEXT);
    d->is_step = true;
    d->chunk_rows = 0;
    d->has_logits = false;
    HY_TRY(run_step_fast(d, &pass, rows));
    return end_result(d, 0, rows, HY_DECODER_NEXT);
}
