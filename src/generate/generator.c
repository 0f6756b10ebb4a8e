/* generator.c: the handle of hybrid_generate.h.
 *
 * A generator is a used model (infer/inference.h) with a batched decoder, a queue that any thread
 * may add to, and a schedule that one thread runs. */
#include "hybrid_generate.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sized.h"
#include "generate/fit.h"
#include "generate/generator.h"
#include "generate/schedule.h"

struct hy_generator {
    hy_used_model *model;
    hy_codec codec;
    hy_batch_decoder *decoder;
    hy_queue *queue;
    hy_schedule *schedule;
    int32_t waiting; /* requests that may wait; 0: no limit */
    hy_task_limits limits;
    bool is_placed; /* the decoder has its memory, and nothing has failed since */
    atomic_bool is_running, stop_requested;
    char weights_from[HY_PATH_MAX];
};

/* ---- opening and closing --------------------------------------------------------------------- */

static hy_status check_options(const hy_generator_options *o) {
    HY_FAIL_IF(o->waiting < 0, HY_ERR_INPUT, "waiting is %d; accepted: 0 (no limit) or more",
               o->waiting);
    HY_FAIL_IF(o->top_logprobs < 0 || o->top_logprobs > HY_SAMPLE_TOP_MOST, HY_ERR_INPUT,
               "top_logprobs is %d; accepted: 0 to %d", o->top_logprobs, HY_SAMPLE_TOP_MOST);
    return HY_OK;
}

static hy_status place(hy_generator *g) {
    hy_engine *e = g->model->engine;
    if (g->is_placed) return HY_OK;
    HY_TRY(hy_batch_decoder_place(g->decoder, e->device.compute, e->work->arena.data,
                                  hy_store_of(e, HY_ROW_MASTER), NULL));
    g->is_placed = true;
    return HY_OK;
}

static hy_status open_all(hy_generator *g, const hy_config *config, const hy_generator_options *o,
                          const hy_observer *observer) {
    hy_inference_options text = {.tokenizer = o->tokenizer,
                                 .chat_template = o->chat_template,
                                 .without_thinking = o->without_thinking};
    HY_TRY(check_options(o));
    HY_TRY(hy_model_open(config, observer, &g->model));
    HY_TRY(hy_codec_open(&g->codec, g->model, &text));
    HY_TRY(hy_generator_fit(g->model, o, &g->decoder));
    g->waiting = o->waiting;
    HY_TRY(hy_queue_create(o->waiting, &g->queue));
    HY_TRY(hy_schedule_create(g->decoder, &g->codec, g->queue, &g->schedule));
    uint64_t bytes = hy_batch_decoder_bytes(g->decoder);
    HY_TRY(hy_model_load(g->model, bytes, g->weights_from));
    hy_engine *e = g->model->engine;
    HY_TRY(hy_arena_init(&e->work->arena, e->device.backend, &e->state->ledger, HY_DEVICE, bytes,
                         "keys and values"));
    g->limits = (hy_task_limits){.context = hy_batch_decoder_facts(g->decoder)->context,
                                 .vocab = e->model->shape.vocab,
                                 .top_logprobs = o->top_logprobs};
    return place(g);
}

hy_status hy_generator_open_sized(const hy_config *config, const hy_generator_options *options,
                                  size_t size, const hy_observer *observer, hy_generator **out) {
    hy_generator_options all = {0};
    hy_generator *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g) return hy_fail(HY_ERR_MEMORY, "not enough memory for a generator");
    if (options) hy_copy_sized(&all, sizeof all, options, size);
    hy_status status = open_all(g, config, &all, observer);
    if (status == HY_OK)
        *out = g;
    else
        hy_generator_close(g);
    return status;
}

void hy_generator_close(hy_generator *g) {
    if (!g) return;
    if (g->model && g->model->engine->device.compute) {
        (void)g->model->engine->device.backend->stream_sync(
            g->model->engine->device.compute); /* a failure was reported */
    }
    hy_schedule_destroy(g->schedule);
    hy_queue_destroy(g->queue);
    hy_batch_decoder_destroy(g->decoder);
    hy_model_close(g->model);
    hy_codec_close(&g->codec);
    free(g);
}

hy_generator_parts hy_generator_look_inside(hy_generator *g) {
    return (hy_generator_parts){.codec = &g->codec,
                                .settings = &g->model->settings,
                                .adapters = &g->model->adapters.set,
                                .limits = g->limits,
                                .stop_requested = &g->stop_requested,
                                .waiting = g->waiting};
}

/* ---- queries --------------------------------------------------------------------------------- */

void hy_generator_describe_sized(const hy_generator *g, hy_generator_facts *out, size_t size) {
    const hy_engine *e = g->model->engine;
    const hy_batch_decoder_options *o = hy_batch_decoder_facts(g->decoder);
    const hy_store *weights = hy_store_of(e, HY_ROW_MASTER);
    hy_generator_facts facts = {.model = g->model->settings.model,
                                .weights = g->weights_from,
                                .device = e->device.backend->facts.name,
                                .tokenizer = g->codec.tokenizer_path,
                                .chat_template = hy_codec_template(&g->codec),
                                .message_format = g->codec.format,
                                .parameters = e->model->params.elements,
                                .vocab = e->model->shape.vocab,
                                .context = o->context,
                                .streams = o->streams,
                                .dtype = o->dtype,
                                .weights_place = weights->place,
                                .weights_bytes = weights->layout.bytes,
                                .cache_bytes = hy_batch_decoder_cache_bytes(g->decoder) +
                                               hy_batch_decoder_states(g->decoder)->bytes,
                                .cache_tokens = o->tokens};
    hy_copy_sized(out, size, &facts, sizeof facts);
}

void hy_generator_now_sized(const hy_generator *g, hy_generator_state *out, size_t size) {
    hy_generator_state state;
    hy_queue_read(g->queue, &state);
    hy_copy_sized(out, size, &state, sizeof state);
}

hy_status hy_generator_encode(const hy_generator *g, const char *text, size_t size, bool is_prompt,
                              int32_t **ids, size_t *count) {
    hy_ids found = {0};
    hy_status status = is_prompt ? hy_codec_encode_prompt(&g->codec, text, size, &found)
                                 : hy_codec_encode(&g->codec, text, size, &found);
    if (status != HY_OK) hy_ids_free(&found);
    *ids = found.data;
    *count = found.count;
    return status;
}

/* Ids that the tokenizer does not have give no text. */
static hy_status keep_known(const hy_generator *g, const int32_t *ids, size_t count, hy_ids *out) {
    for (size_t i = 0; i < count; i++) {
        HY_FAIL_IF(ids[i] < 0 || ids[i] >= g->limits.vocab, HY_ERR_INPUT,
                   "token %zu is %d, expected 0 to %d", i, ids[i], g->limits.vocab - 1);
        if (ids[i] < g->codec.vocab) HY_TRY(hy_ids_append(out, &ids[i], 1));
    }
    return HY_OK;
}

hy_status hy_generator_decode(const hy_generator *g, const int32_t *ids, size_t count, char **text,
                              size_t *size) {
    hy_ids known = {0};
    hy_text out = {0};
    *text = NULL;
    hy_status status = keep_known(g, ids, count, &known);
    if (status == HY_OK) {
        status = hy_decode_text(g->codec.tokenizer, known.data, known.count, 0, &out);
    }
    hy_ids_free(&known);
    hy_text_add(&out, ""); /* an empty text is a string too, not NULL */
    if (status != HY_OK) hy_text_free(&out);
    if (size) *size = out.size;
    return status != HY_OK ? status : hy_text_take(&out, text);
}

/* ---- requests -------------------------------------------------------------------------------- */

static hy_status encode_messages(const hy_generator *g, const hy_request *r, hy_ids *out) {
    hy_conversation turns = {0};
    hy_json *json = NULL;
    hy_status status = hy_messages_parse(r->messages, r->messages_size, &json, &turns);
    if (status == HY_OK) status = hy_messages_check(&turns);
    if (status == HY_OK) status = hy_codec_encode_turns(&g->codec, &turns, out);
    hy_conversation_free(&turns);
    hy_json_free(json);
    return status;
}

static hy_status make_prompt(const hy_generator *g, const hy_request *r, hy_ids *out) {
    int kinds = !!r->text + !!r->tokens + !!r->messages;
    HY_FAIL_IF(kinds != 1, HY_ERR_INPUT,
               "a request has one of text, tokens and messages, but this has %s",
               kinds == 0 ? "none" : "several");
    if (r->text) return hy_codec_encode_prompt(&g->codec, r->text, r->text_size, out);
    if (r->tokens) return hy_ids_append(out, r->tokens, r->token_count);
    return encode_messages(g, r, out);
}

hy_status hy_generator_add_sized(hy_generator *g, const hy_request *request, size_t size,
                                 int64_t *id) {
    hy_request r = {0};
    hy_ids prompt = {0};
    hy_task *task;
    hy_copy_sized(&r, sizeof r, request, size);
    hy_status status = make_prompt(g, &r, &prompt);
    if (status != HY_OK) {
        hy_ids_free(&prompt);
        return status;
    }
    HY_TRY(hy_task_create(&r, &g->limits, &prompt, &task));
    status = hy_queue_add(g->queue, task, id);
    if (status != HY_OK) hy_task_destroy(task);
    return status;
}

bool hy_generator_cancel(hy_generator *g, int64_t id) { return hy_queue_cancel(g->queue, id); }

/* ---- running --------------------------------------------------------------------------------- */

/* Takes rounds until everything is answered and no more is waited for, or until it is stopped. */
static hy_status run_rounds(hy_generator *g, bool waits) {
    HY_TRY(place(g));
    for (;;) {
        bool is_idle;
        if (atomic_exchange(&g->stop_requested, false)) {
            HY_TRY(hy_schedule_drain(g->schedule));
            return HY_STOPPED;
        }
        HY_TRY(hy_schedule_round(g->schedule, &is_idle));
        if (is_idle && !waits) return HY_OK;
        if (is_idle) hy_queue_wait(g->queue);
    }
}

/* Nothing of the device's work is left, and the weights are as before it. */
static hy_status recover(hy_generator *g, hy_status status) {
    hy_error error;
    hy_error_save(&error, status);
    g->is_placed = false;
    (void)hy_engine_settle(g->model->engine); /* the first failure is reported */
    hy_schedule_abandon(g->schedule);
    return hy_error_restore(&error);
}

hy_status hy_generator_begin(hy_generator *g) {
    HY_FAIL_IF(atomic_exchange(&g->is_running, true), HY_ERR_STATE,
               "the generator is running already: in another thread, or this is its callback");
    return HY_OK;
}

void hy_generator_end(hy_generator *g) { atomic_store(&g->is_running, false); }

static hy_status rounds_or_recovery(hy_generator *g, bool waits) {
    hy_status status = run_rounds(g, waits);
    return status != HY_OK && status != HY_STOPPED ? recover(g, status) : status;
}

hy_status hy_generator_serve_begun(hy_generator *g) { return rounds_or_recovery(g, true); }

hy_status hy_generator_round(hy_generator *g) {
    bool is_idle;
    hy_status status = place(g);
    if (status == HY_OK) status = hy_schedule_round(g->schedule, &is_idle);
    return status != HY_OK ? recover(g, status) : HY_OK;
}

static hy_status run(hy_generator *g, bool waits) {
    HY_TRY(hy_generator_begin(g));
    hy_status status = rounds_or_recovery(g, waits);
    hy_generator_end(g);
    return status;
}

hy_status hy_generator_run(hy_generator *g) { return run(g, false); }
hy_status hy_generator_serve(hy_generator *g) { return run(g, true); }

void hy_generator_request_stop(hy_generator *g) {
    atomic_store(&g->stop_requested, true);
    hy_queue_wake(g->queue);
}
