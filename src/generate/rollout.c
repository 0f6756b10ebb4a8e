/* rollout.c: one queue and one schedule per rollout, on the decoder that all rollouts share. See
 * rollout.h.
 *
 * Every token reads all weights. Those that are kept in host memory or on disk are therefore copied
 * to the device for a rollout if they and keys and values of enough answers fit into the idle
 * memory. */
#include "generate/rollout.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/error.h"
#include "generate/fit.h"
#include "generate/schedule.h"

/* An answer that is being generated; its arrays are kept for later rollouts. */
typedef struct growing {
    hy_rollout_answer answer;
    size_t tokens_room, losses_room;
} growing;

enum { WEIGHTS, FROZEN, STORES };

struct hy_rollout {
    hy_engine *engine;
    hy_rollout_options options;
    hy_batch_decoder *decoder; /* NULL: made with the next rollout */
    uint64_t idle, weights;    /* bytes that were idle, and to copy, when it was made */
    bool copies;               /* weights are copied to idle memory, before the decoder's part */
    hy_store copied[STORES];   /* during a rollout */
    void *memory;              /* its own memory; NULL: it works in idle memory */
    hy_rollout_facts facts;
    growing *answers; /* (room) */
    size_t room;
    int32_t most_answers; /* of a prompt in this rollout */
    hy_status failed;     /* what a callback ran into */
    hy_error failure;
};

/* ---- the decoder ----------------------------------------------------------------------------- */

static void drop_decoder(hy_rollout *r) {
    hy_backend *b = r->engine->device.backend;
    if (!r->decoder) return;
    size_t bytes = (size_t)hy_batch_decoder_bytes(r->decoder);
    hy_batch_decoder_destroy(r->decoder);
    if (r->memory) b->release(b, HY_DEVICE, r->memory, bytes);
    r->decoder = NULL;
    r->memory = NULL;
}

/* Bytes of idle memory for a copy; 0: the store is on the device, or there is none. */
static uint64_t copy_bytes(const hy_store *store) {
    bool is_kept_elsewhere = store && store->place != HY_DEVICE && store->place != HY_NOWHERE;
    for (int32_t u = 0; is_kept_elsewhere && u < store->layout.unit_count; u++) {
        if (!hy_store_stays(store, u)) return hy_align(store->layout.bytes);
    }
    return 0;
}

static hy_status fit(hy_rollout *r, const hy_batch_decoder_options *wanted, uint64_t room) {
    drop_decoder(r);
    return hy_decoder_fit(r->engine->model, r->engine->device.backend, wanted, room, &r->decoder);
}

/* In idle memory: beside the weights if that leaves room for enough answers; else alone. If not even
 * one answer fits, in memory of its own. */
static hy_status make_decoder(hy_rollout *r, uint64_t idle, uint64_t weights) {
    hy_engine *e = r->engine;
    hy_backend *b = e->device.backend;
    hy_batch_decoder_options wanted = {.streams = r->options.streams,
                                       .context = r->options.context,
                                       .vocab = r->options.codec->vocab,
                                       .dtype = e->plan->types.of[HY_FULL],
                                       .is_unprepared = true};
    if (weights > 0 && weights < idle) HY_TRY(fit(r, &wanted, idle - weights));
    r->copies =
        r->decoder && hy_batch_decoder_facts(r->decoder)->streams * HY_COPY_GAIN >= wanted.streams;
    if (!r->copies) HY_TRY(fit(r, &wanted, idle));
    if (!r->decoder) {
        wanted.streams = 1;
        HY_TRY(hy_batch_decoder_create(e->model, b, &wanted, &r->decoder));
        size_t bytes = (size_t)hy_batch_decoder_bytes(r->decoder);
        hy_status status = b->alloc(b, HY_DEVICE, bytes, &r->memory);
        if (status != HY_OK) return hy_fail_context(status, "memory to generate answers");
    }
    const hy_batch_decoder_options *facts = hy_batch_decoder_facts(r->decoder);
    r->idle = idle;
    r->weights = weights;
    r->facts.streams = facts->streams;
    r->facts.cache_tokens = facts->tokens;
    r->facts.bytes = hy_batch_decoder_bytes(r->decoder);
    r->facts.extra = r->memory ? r->facts.bytes : 0;
    return HY_OK;
}

/* Puts copies at the start of `arena` instead of the stores that are not on the device. */
static hy_status copy_weights(hy_rollout *r, hy_arena *arena, hy_store *stores[STORES]) {
    hy_stream *compute = r->engine->device.compute;
    for (int i = 0; i < STORES; i++) {
        if (copy_bytes(stores[i]) > 0) HY_TRY(hy_store_settle(stores[i]));
    }
    HY_TRY(r->engine->device.backend->stream_sync(compute));
    double begin = hy_clock();
    for (int i = 0; i < STORES; i++) {
        hy_store *from = stores[i], *to = &r->copied[i];
        if (copy_bytes(from) == 0) continue;
        HY_TRY(hy_store_init(to, arena, from->cls, &from->layout));
        HY_TRY(hy_store_copy(to, from, compute));
        stores[i] = to;
    }
    HY_TRY(r->engine->device.backend->stream_sync(compute));
    r->facts.copy_seconds += hy_clock() - begin;
    return HY_OK;
}

static void drop_copies(hy_rollout *r) {
    for (int i = 0; i < STORES; i++) {
        if (r->copied[i].backend) hy_store_fini(&r->copied[i]);
        r->copied[i] = (hy_store){0};
    }
}

static hy_status try_to_place(hy_rollout *r) {
    hy_engine *e = r->engine;
    hy_store *stores[STORES] = {NULL, hy_engine_frozen(e)};
    hy_ledger unused = {0}; /* the phase counts the whole area */
    HY_TRY(hy_engine_return_rings(e));
    HY_TRY(hy_engine_weights(e, e->plan->types.of[HY_FULL], &stores[WEIGHTS]));
    uint64_t idle = e->work->passes.size;
    uint64_t weights = copy_bytes(stores[WEIGHTS]) + copy_bytes(stores[FROZEN]);
    if (r->decoder && (idle != r->idle || weights != r->weights)) drop_decoder(r);
    if (!r->decoder) HY_TRY(make_decoder(r, idle, weights));
    char *memory = r->memory ? r->memory : e->work->arena.data;
    if (r->copies) {
        hy_arena arena = {.backend = e->device.backend,
                          .ledger = &unused,
                          .place = HY_DEVICE,
                          .data = memory,
                          .size = weights};
        HY_TRY(copy_weights(r, &arena, stores));
        memory += weights;
    }
    return hy_batch_decoder_place(r->decoder, e->device.compute, memory, stores[WEIGHTS],
                                  stores[FROZEN]);
}

/* A decoder that was placed only in part is not used again. */
static hy_status place_decoder(hy_rollout *r) {
    hy_status status = try_to_place(r);
    if (status == HY_OK) return HY_OK;
    hy_error error;
    hy_error_save(&error, status);
    (void)r->engine->device.backend->stream_sync(r->engine->device.compute);
    drop_decoder(r);
    return hy_error_restore(&error);
}

/* ---- answers --------------------------------------------------------------------------------- */

static hy_status append(growing *a, const hy_scored_token *token) {
    hy_rollout_answer *out = &a->answer;
    size_t count = (size_t)out->count + 1;
    HY_TRY(hy_array_reserve(&out->tokens, &a->tokens_room, count, sizeof *out->tokens, "answers"));
    HY_TRY(hy_array_reserve(&out->losses, &a->losses_room, count, sizeof *out->losses, "answers"));
    out->tokens[out->count] = token->chosen.token;
    out->losses[out->count++] = -token->chosen.logprob;
    return HY_OK;
}

static void take_piece(void *user, const hy_piece *piece) {
    hy_rollout *r = user;
    /* Each rollout has its own queue, whose first request is number 1. */
    size_t prompt = (size_t)piece->request - 1;
    size_t i = prompt * (size_t)r->most_answers + (size_t)piece->answer;
    growing *a = &r->answers[i];
    hy_status status = HY_OK;
    for (int32_t k = 0; k < piece->token_count && status == HY_OK; k++)
        status = append(a, &piece->tokens[k]);
    if (piece->end_token && status == HY_OK) status = append(a, piece->end_token);
    if (piece->is_last && piece->end == HY_END_NOT_FINITE && status == HY_OK) {
        status = hy_fail(HY_ERR_NUMERIC, "a logit is not finite in token %d of an answer",
                         piece->answer_tokens);
    }
    a->answer.has_ended = piece->is_last && piece->end == HY_END_MODEL;
    if (status != HY_OK && r->failed == HY_OK) {
        r->failed = status;
        hy_error_save(&r->failure, status);
    }
}

static hy_status begin_answers(hy_rollout *r, size_t count) {
    size_t before = r->room;
    HY_TRY(hy_array_reserve(&r->answers, &r->room, count, sizeof *r->answers, "answers"));
    if (r->room > before) memset(r->answers + before, 0, (r->room - before) * sizeof *r->answers);
    for (size_t i = 0; i < count; i++) {
        r->answers[i].answer.count = 0;
        r->answers[i].answer.has_ended = false;
    }
    return HY_OK;
}

/* ---- a rollout ------------------------------------------------------------------------------- */

static hy_status add_prompts(hy_rollout *r, const hy_rollout_prompt *prompts, size_t count,
                             hy_queue *queue) {
    const hy_batch_decoder_options *o = hy_batch_decoder_facts(r->decoder);
    hy_task_limits limits = {.context = o->context, .vocab = o->vocab};
    for (size_t i = 0; i < count; i++) {
        const hy_rollout_prompt *p = &prompts[i];
        hy_request request = {.answers = p->answers,
                              .max_tokens = p->max_tokens,
                              .temperature = p->temperature,
                              .seed = p->seed,
                              .wants_logprobs = true,
                              .on_piece = take_piece,
                              .user = r};
        hy_ids ids = {0};
        hy_task *task;
        int64_t id;
        hy_status status = hy_ids_append(&ids, p->tokens, (size_t)p->count);
        if (status != HY_OK) hy_ids_free(&ids);
        HY_TRY(status);
        HY_TRY(hy_task_create(&request, &limits, &ids, &task));
        status = hy_queue_add(queue, task, &id);
        if (status != HY_OK) hy_task_destroy(task);
        HY_TRY(status);
    }
    return HY_OK;
}

static void tell_progress(const hy_rollout *r, hy_queue *queue, size_t count) {
    const hy_observer *o = r->engine->observer;
    hy_generator_state now;
    if (!o || !o->on_progress) return;
    hy_queue_read(queue, &now);
    o->on_progress(o->user, "generating answers", (double)now.finished / (double)count);
}

static hy_status run_rounds(hy_rollout *r, hy_schedule *schedule, hy_queue *queue, size_t count,
                            const atomic_bool *stop) {
    bool is_idle = false;
    while (!is_idle) {
        if (stop && atomic_load(stop)) return hy_fail(HY_STOPPED, "stopped on request");
        HY_TRY(hy_schedule_round(schedule, &is_idle));
        if (r->failed != HY_OK) return hy_error_restore(&r->failure);
        tell_progress(r, queue, count);
    }
    return HY_OK;
}

static hy_status generate(hy_rollout *r, const hy_rollout_prompt *prompts, size_t count,
                          const atomic_bool *stop) {
    hy_queue *queue;
    hy_schedule *schedule = NULL;
    HY_TRY(hy_queue_create(0, &queue));
    hy_status status = hy_schedule_create(r->decoder, r->options.codec, queue, &schedule);
    if (status == HY_OK) status = add_prompts(r, prompts, count, queue);
    if (status == HY_OK) status = run_rounds(r, schedule, queue, count, stop);
    /* Whatever is left: nothing may write to memory that training uses. */
    hy_status synced = r->engine->device.backend->stream_sync(r->engine->device.compute);
    hy_schedule_destroy(schedule);
    hy_queue_destroy(queue);
    return status != HY_OK ? status : synced;
}

hy_status hy_rollout_run(hy_rollout *r, const hy_rollout_prompt *prompts, size_t count,
                         int32_t most_answers, const atomic_bool *stop,
                         hy_rollout_answer *answers) {
    size_t all = count * (size_t)most_answers;
    double begin = hy_clock();
    HY_TRY(begin_answers(r, all));
    r->most_answers = most_answers;
    r->failed = HY_OK;
    hy_status status = place_decoder(r);
    if (status == HY_OK) status = generate(r, prompts, count, stop);
    drop_copies(r);
    HY_TRY(status);
    for (size_t i = 0; i < all; i++) {
        answers[i] = r->answers[i].answer;
        r->facts.tokens += answers[i].count;
    }
    r->facts.seconds += hy_clock() - begin;
    return HY_OK;
}

/* ---- creating -------------------------------------------------------------------------------- */

hy_status hy_rollout_create(hy_engine *engine, const hy_rollout_options *options,
                            hy_rollout **out) {
    hy_rollout *r = calloc(1, sizeof *r);
    *out = r;
    HY_FAIL_IF(!r, HY_ERR_MEMORY, "not enough memory to generate answers");
    r->engine = engine;
    r->options = *options;
    return HY_OK;
}

void hy_rollout_destroy(hy_rollout *r) {
    if (!r) return;
    drop_decoder(r);
    for (size_t i = 0; i < r->room; i++) {
        free(r->answers[i].answer.tokens);
        free(r->answers[i].answer.losses);
    }
    free(r->answers);
    free(r);
}

const hy_rollout_facts *hy_rollout_describe(const hy_rollout *r) { return &r->facts; }
