/* sample.c: the model in training continues a text. See sample.h.
 *
 * Tokens are those of the run's data: its tokenizer's, or bytes. A decoder works in the memory that
 * is idle between steps, with the longest context that fits, so a token costs one pass over the
 * weights. When the context is full, the older half is dropped. Nothing is timed. Only a run that
 * is too small for a decoder allocates memory for it, and frees it after the text.
 *
 * Several ranks make the same passes, because none may have all weights; context and tokens come
 * from rank 0. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "data/chat_template.h"
#include "hub/end_tokens.h"
#include "infer/inference.h"
#include "infer/sample.h"
#include "infer/solo.h"
#include "setup/setup.h"

#define SHORTEST_CONTEXT 8

/* A held-out row, or a question: the tokens before the answer, and of a row the answer without its
 * end token. */
typedef struct held_out_row {
    hy_ids question, answer; /* empty: there is no such row */
    int32_t end;             /* the token that ends the answer; -1: not known */
} held_out_row;

typedef struct sampler {
    hy_engine *e;
    const hy_sample_options *options;
    const held_out_row *row;       /* NULL: the prompt of the options */
    const hy_tokenizer *tokenizer; /* NULL: bytes */
    int32_t vocab;                 /* sampled token ids are below this */
    hy_end_tokens ends;            /* of a model from a folder; a sample ends with one of them */
    hy_solo solo;
    hy_unit_hook brings_weights; /* from other ranks */
    void *memory;                /* its own memory; NULL: it works in idle memory */
    int32_t *window;             /* (context): the latest tokens */
    int32_t length, context;
} sampler;

/* ---- ranks ----------------------------------------------------------------------------------- */

/* All ranks get rank 0's number. */
static hy_status share_number(sampler *s, int32_t *number) {
    hy_team *team = s->e->team;
    return team ? hy_control_share(team->control, number, sizeof *number, 0) : HY_OK;
}

/* ---- the decoder ----------------------------------------------------------------------------- */

static hy_status open_decoder(sampler *s) {
    hy_engine *e = s->e;
    hy_store *weights;
    const hy_unit_hook *hook = hy_engine_exchanges(e) ? &s->brings_weights : NULL;
    hy_batch_decoder_options options = {.context = (int32_t)e->request.settings->train.seq_len,
                                        .chunk = HY_DECODE_CHUNK,
                                        .vocab = s->vocab,
                                        .dtype = e->plan->types.of[HY_FULL],
                                        .is_unprepared = true,
                                        .hook = hook};
    hy_batch_decoder **decoder = &s->solo.decoder;
    if (options.context > e->model->shape.context) options.context = e->model->shape.context;
    HY_TRY(hy_engine_return_rings(e));    /* they use the same memory */
    uint64_t idle = e->work->passes.size; /* activations and workspace of a step */
    if (!e->team || e->team->who.rank == 0)
        HY_TRY(
            hy_solo_create(e->model, e->device.backend, &options, idle, SHORTEST_CONTEXT, decoder));
    HY_TRY(share_number(s, &options.context));
    if (!*decoder)
        HY_TRY(hy_solo_create(e->model, e->device.backend, &options, UINT64_MAX, 0, decoder));
    void *memory = e->work->arena.data;
    uint64_t bytes = hy_batch_decoder_bytes(*decoder);
    if (bytes > idle) { /* even the shortest context, or rank 0's, does not fit */
        hy_status status =
            e->device.backend->alloc(e->device.backend, HY_DEVICE, bytes, &s->memory);
        if (status != HY_OK) return hy_fail_context(status, "memory to sample text");
        memory = s->memory;
    }
    s->context = options.context;
    HY_TRY(hy_engine_weights(e, options.dtype, &weights));
    return hy_solo_place(&s->solo, e->device.compute, memory, weights, hy_engine_frozen(e));
}

/* ---- text ------------------------------------------------------------------------------------ */

static hy_status append(sampler *s, int32_t token) {
    if (s->length == s->context) {
        int32_t kept = s->context / 2;
        memmove(s->window, s->window + s->length - kept, (size_t)kept * sizeof *s->window);
        s->length = kept;
        HY_TRY(hy_solo_go_back(&s->solo, 0));
    }
    s->window[s->length++] = token;
    return HY_OK;
}

static hy_status next_token(sampler *s, int32_t number, int32_t *token) {
    const hy_sample_options *o = s->options;
    hy_generate_options options = {
        .temperature = o->temperature, .top_k = o->top_k, .seed = o->seed};
    hy_sampling sampling = hy_solo_sampling(&options, (uint64_t)number);
    int32_t known = s->solo.length;
    HY_TRY(hy_solo_take(&s->solo, s->window + known, s->length - known, &sampling));
    HY_TRY(hy_solo_read(&s->solo));
    *token = s->solo.next;
    return share_number(s, token);
}

/* Text without a prompt starts after an end token, or after a new line. */
static hy_status encode_prompt(const sampler *s, hy_ids *out) {
    const char *prompt = s->options->prompt ? s->options->prompt : "";
    int32_t eos = s->tokenizer ? hy_tokenizer_eos(s->tokenizer) : -1;
    if (s->row) return hy_ids_append(out, s->row->question.data, s->row->question.count);
    HY_TRY(hy_encode_text(s->tokenizer, prompt, strlen(prompt), 0, out));
    if (out->count > 0) return HY_OK;
    if (eos < 0) return hy_encode_text(s->tokenizer, "\n", 1, 0, out);
    return hy_ids_append(out, &eos, 1);
}

static hy_status continue_tokens(sampler *s, const hy_ids *prompt, hy_ids *out) {
    for (size_t i = 0; i < prompt->count; i++) HY_TRY(append(s, prompt->data[i]));
    for (int32_t i = 0; i < s->options->tokens; i++) {
        int32_t token;
        HY_TRY(next_token(s, i, &token));
        if (hy_end_tokens_has(&s->ends, token) || (s->row && token == s->row->end)) break;
        HY_TRY(hy_ids_append(out, &token, 1));
        HY_TRY(append(s, token));
    }
    return HY_OK;
}

static hy_status sample(sampler *s, hy_text *out) {
    hy_ids prompt = {0}, ids = {0};
    HY_TRY(open_decoder(s));
    s->window = malloc((size_t)s->context * sizeof *s->window);
    HY_FAIL_IF(!s->window, HY_ERR_MEMORY, "not enough memory to sample text");
    hy_status status = encode_prompt(s, &prompt);
    if (status == HY_OK) status = continue_tokens(s, &prompt, &ids);
    int flags = s->row ? HY_TOKENS_SKIP_SPECIAL : 0;
    if (status == HY_OK) status = hy_decode_text(s->tokenizer, ids.data, ids.count, flags, out);
    hy_text_add(out, ""); /* an empty text is a string too, not NULL */
    hy_ids_free(&prompt);
    hy_ids_free(&ids);
    return status == HY_OK ? hy_text_status(out) : status;
}

/* One attempt, with its own decoder and memory. `as` has the fields that all attempts share. */
static hy_status try_to_sample(const sampler *as, hy_text *out) {
    sampler s = *as;
    hy_backend *b = s.e->device.backend;
    /* The other ranks learn of a failure at once: they may wait for this rank. */
    hy_status status = hy_team_fail(s.e->team, sample(&s, out));
    size_t bytes = s.solo.decoder ? (size_t)hy_batch_decoder_bytes(s.solo.decoder) : 0;
    (void)b->stream_sync(s.e->device.compute); /* before its memory is freed */
    hy_batch_decoder_destroy(s.solo.decoder);
    if (s.memory) b->release(b, HY_DEVICE, s.memory, bytes);
    free(s.window);
    if (status != HY_OK) hy_text_free(out);
    return status;
}

static hy_status continue_text(hy_engine *e, const hy_tokenizer *tokenizer,
                               const hy_sample_options *options, const held_out_row *row,
                               hy_text *out) {
    hy_status status;
    int32_t ids = tokenizer ? hy_tokenizer_vocab(tokenizer) : INT32_MAX;
    int32_t vocab = e->model->shape.vocab;
    sampler s = {
        .e = e,
        .tokenizer = tokenizer,
        .options = options,
        .row = row,
        .vocab = ids < vocab ? ids : vocab,
        .brings_weights = {.context = e, .fetch = hy_weights_fetch, .await = hy_weights_await}};
    char folder[HY_PATH_MAX];
    HY_FAIL_IF(!tokenizer && vocab < 256, HY_ERR_INPUT,
               "the model's vocabulary of %d tokens cannot represent all bytes", vocab);
    HY_TRY(hy_model_folder(e->request.settings, folder));
    HY_TRY(hy_end_tokens_read(folder, &s.ends));
    while ((status = try_to_sample(&s, out)) != HY_OK) HY_TRY(hy_engine_prepare_retry(e, status));
    e->retries.in_a_row = 0;
    return HY_OK;
}

hy_status hy_engine_sample(hy_engine *e, const hy_tokenizer *tokenizer,
                           const hy_sample_options *options, hy_text *out) {
    return continue_text(e, tokenizer, options, NULL, out);
}

/* ---- a held-out row -------------------------------------------------------------------------- */

static hy_status find_row(const hy_dataset *data, held_out_row *out) {
    const hy_tokenizer *tokenizer = hy_dataset_tokenizer(data);
    HY_TRY(hy_dataset_held_out_row(data, &out->question, &out->answer));
    if (out->answer.count == 0) return HY_OK;
    int32_t last = out->answer.data[out->answer.count - 1];
    bool has_end = tokenizer ? hy_tokenizer_is_special(tokenizer, last) : last == 0;
    if (has_end) out->end = last;
    out->answer.count -= has_end;
    return HY_OK;
}

/* The text of tokens as a string that the caller frees. */
static hy_status text_of(const hy_tokenizer *tokenizer, const hy_ids *ids, int flags, char **out) {
    hy_text text = {0};
    hy_status status = hy_decode_text(tokenizer, ids->data, ids->count, flags, &text);
    hy_text_add(&text, ""); /* an empty text is a string too, not NULL */
    if (status == HY_OK) status = hy_text_take(&text, out);
    hy_text_free(&text);
    return status;
}

hy_status hy_engine_answer(hy_engine *e, const hy_dataset *data, const hy_sample_options *options,
                           hy_row_answer *out) {
    const hy_tokenizer *tokenizer = hy_dataset_tokenizer(data);
    held_out_row row = {.end = -1};
    hy_text answer = {0};
    const char *prompt = options->prompt;
    bool is_asked = prompt && prompt[0];
    hy_status status = is_asked ? hy_dataset_encode_question(data, prompt, &row.question, &row.end)
                                : find_row(data, &row);
    if (status == HY_OK && (is_asked ? row.question.count : row.answer.count) > 0) {
        status = text_of(tokenizer, &row.question, 0, &out->question);
        if (status == HY_OK && !is_asked)
            status = text_of(tokenizer, &row.answer, HY_TOKENS_SKIP_SPECIAL, &out->reference);
        if (status == HY_OK) status = continue_text(e, tokenizer, options, &row, &answer);
        if (status == HY_OK) status = hy_text_take(&answer, &out->answer);
    }
    hy_ids_free(&row.question);
    hy_ids_free(&row.answer);
    return status;
}
