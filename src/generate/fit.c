/* fit.c: sizes the decoder of a generator. See fit.h. */
#include "generate/fit.h"

#include "base/error.h"
#include "base/text.h"

#define LONGEST_CONTEXT 8192 /* default context */
#define SHORTEST_CONTEXT 127 /* one that is not longer is not halved */
#define STREAMS_GPU 64
#define STREAMS_CPU 16
#define CPU_SHARE 2 /* one part in so many of the memory that weights leave */
#define STEP 16     /* a pool that is too large shrinks by at least one part in so many */

typedef struct fitting {
    hy_model *model;
    hy_backend *backend;
    hy_batch_decoder_options wanted, options; /* options: what is tried */
    bool has_context, has_streams;            /* the caller fixed them */
    uint64_t room;                            /* bytes for the decoder; 0: no limit */
    uint64_t needed, cache;                   /* by the last that was tried; its pool */
    hy_states states;                         /* of the last that was tried */
} fitting;

/* ---- the memory ------------------------------------------------------------------------------ */

/* Bytes that a decoder may have beside the weights: if they are on the device, and if they stream
 * through it. 0: no limit; 1: none. */
static hy_status find_room(const hy_used_model *m, uint64_t *beside_weights,
                           uint64_t *beside_ring) {
    const hy_engine *e = m->engine;
    bool is_gpu = e->device.backend->facts.is_gpu;
    uint64_t limit = hy_budget_device(&e->request);
    bool is_shared = limit == 0 && !is_gpu; /* the CPU's memory serves everything */
    hy_layout layout;
    if (is_shared) limit = hy_budget_host(&e->request);
    HY_TRY(hy_params_layout(&e->model->params, HY_SET_ALL, e->plan->types.master, &layout));
    uint64_t ring = hy_store_ring_bytes(&layout, HY_TILE_RING_DEPTH), weights = layout.bytes;
    hy_layout_fini(&layout);
    if (m->settings.memory.weights_place == HY_PINNED) weights = ring;
    *beside_weights = limit == 0 ? 0 : limit > weights ? limit - weights : 1;
    *beside_ring = limit == 0 ? 0 : limit > ring ? limit - ring : 1;
    if (is_shared && *beside_weights > 1) *beside_weights /= CPU_SHARE;
    return HY_OK;
}

/* ---- one size -------------------------------------------------------------------------------- */

/* The pool that would fit if all of it shrank alike. */
static int64_t smaller_pool(const fitting *f, const hy_batch_decoder *decoder, int64_t tokens) {
    double cache = (double)hy_batch_decoder_cache_bytes(decoder),
           over = (double)(f->needed - f->room);
    int64_t fits = cache > over ? (int64_t)((double)tokens * (1 - over / cache)) : 0;
    int64_t most = tokens - tokens / STEP;
    if (fits > most) fits = most;
    return fits > f->options.context ? fits : f->options.context;
}

/* Creates a decoder with these streams and this context, with the largest pool that fits; *out is
 * NULL if none does. */
static hy_status try_pools(fitting *f, int64_t *tokens, hy_batch_decoder **out) {
    for (;;) {
        f->options.tokens = *tokens;
        HY_TRY(hy_batch_decoder_create(f->model, f->backend, &f->options, out));
        f->needed = hy_batch_decoder_bytes(*out);
        f->cache = hy_batch_decoder_cache_bytes(*out);
        f->states = *hy_batch_decoder_states(*out);
        if (f->room == 0 || f->needed <= f->room) return HY_OK;
        bool is_least = *tokens <= f->options.context;
        *tokens = smaller_pool(f, *out, *tokens);
        hy_batch_decoder_destroy(*out);
        *out = NULL;
        if (is_least) return HY_OK;
    }
}

/* ---- all sizes ------------------------------------------------------------------------------- */

/* Are states the reason that it does not fit: more than a context, and too many? */
static bool has_large_states(const fitting *f) {
    uint64_t without = f->needed - f->states.bytes;
    return f->states.bytes > f->cache && without + f->states.each <= f->room;
}

/* Makes the decoder smaller. False: it is as small as it may be. Shorter chunks come last, because
 * they can give a prompt other bits. */
static bool shrink(fitting *f) {
    hy_batch_decoder_options *o = &f->options;
    bool has_fewer_streams = !f->has_streams && o->streams > 1;
    if (has_fewer_streams && has_large_states(f))
        o->streams /= 2;
    else if (!f->has_context && o->context > SHORTEST_CONTEXT)
        o->context /= 2;
    else if (has_fewer_streams)
        o->streams /= 2;
    else if (o->chunk == 0 && f->backend->facts.is_gpu)
        o->chunk = HY_DECODE_CHUNK;
    else
        return false;
    return true;
}

/* The size is found without timing anything. A decoder that is prepared may need a little more. */
static hy_status try_sizes(fitting *f, uint64_t room, hy_batch_decoder **out) {
    f->options = f->wanted;
    f->room = f->options.budget = room;
    *out = NULL;
    do {
        int64_t tokens = (int64_t)f->options.streams * f->options.context;
        f->options.is_unprepared = true;
        HY_TRY(try_pools(f, &tokens, out));
        if (!*out || f->wanted.is_unprepared) continue;
        hy_batch_decoder_destroy(*out);
        f->options.is_unprepared = false;
        HY_TRY(try_pools(f, &tokens, out));
    } while (!*out && shrink(f));
    return HY_OK;
}

static hy_status complete(const hy_used_model *m, const hy_generator_options *o, fitting *f) {
    const hy_engine *e = m->engine;
    int32_t context = e->model->shape.context;
    bool is_gpu = e->device.backend->facts.is_gpu;
    HY_FAIL_IF(o->context < 0 || o->context > context, HY_ERR_INPUT,
               "a context of %d tokens is not supported; accepted: 1 to %d, or 0 for the default",
               o->context, context);
    HY_FAIL_IF(o->streams < 0 || o->streams > HY_STREAMS_MOST, HY_ERR_INPUT,
               "%d streams are not supported; accepted: 1 to %d, or 0 for the default", o->streams,
               HY_STREAMS_MOST);
    if (context > LONGEST_CONTEXT) context = LONGEST_CONTEXT;
    *f = (fitting){.model = e->model,
                   .backend = e->device.backend,
                   .has_context = o->context > 0,
                   .has_streams = o->streams > 0,
                   .wanted = {.streams = is_gpu ? STREAMS_GPU : STREAMS_CPU,
                              .context = context,
                              .top = o->top_logprobs,
                              .has_seen = true,
                              .dtype = e->plan->types.of[HY_FULL],
                              .is_unprepared = !is_gpu}};
    if (f->has_context) f->wanted.context = o->context;
    if (f->has_streams) f->wanted.streams = o->streams;
    return HY_OK;
}

static hy_status refuse(const fitting *f) {
    hy_text states = {0};
    if (f->states.layers > 0) {
        hy_text_addf(&states, " (of it %s for the states of %d layers, %s for each stream)",
                     hy_bytes_as_text(f->states.bytes).text, f->states.layers,
                     hy_bytes_as_text(f->states.each).text);
    }
    hy_status status = hy_fail(
        HY_ERR_INPUT,
        "generation with %d streams and a context of %d tokens needs %s beside the weights%s, "
        "but only %s of memory are left; choose fewer streams or a shorter context",
        f->options.streams, f->options.context, hy_bytes_as_text(f->needed).text,
        hy_text_string(&states), hy_bytes_as_text(f->room).text);
    hy_text_free(&states);
    return status;
}

hy_status hy_generator_fit(hy_used_model *m, const hy_generator_options *options,
                           hy_batch_decoder **out) {
    fitting f;
    uint64_t beside_weights, beside_ring;
    HY_TRY(complete(m, options, &f));
    HY_TRY(find_room(m, &beside_weights, &beside_ring));
    HY_TRY(try_sizes(&f, beside_weights, out));
    if (!*out) HY_TRY(try_sizes(&f, beside_ring, out));
    return *out ? HY_OK : refuse(&f);
}

hy_status hy_decoder_fit(hy_model *model, hy_backend *backend,
                         const hy_batch_decoder_options *wanted, uint64_t room,
                         hy_batch_decoder **out) {
    fitting f = {.model = model, .backend = backend, .wanted = *wanted, .has_context = true};
    return try_sizes(&f, room, out);
}
