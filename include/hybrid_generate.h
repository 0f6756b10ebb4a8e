/* hybrid_generate.h: generates answers to many prompts at once.
 *
 *     hy_config_use_model(config, "runs/mine");
 *     if (hy_generator_open(config, NULL, NULL, &generator) != HY_OK) ...
 *     hy_request request = {.text = "Once upon a time", .text_size = 16, .max_tokens = 100,
 *                           .on_piece = print};
 *     hy_generator_add(generator, &request, NULL);     // as many as you like
 *     hy_generator_run(generator);                     // until all are answered
 *     hy_generator_close(generator);
 *
 * Answers of different lengths join and leave; the memory for keys and values is taken when the
 * generator is opened. A request waits until there is room for its prompt and its longest answer,
 * so a running answer is never interrupted for want of memory. A request's tokens and
 * log-probabilities have the same bits whatever else is generated beside it.
 *
 * One thread calls hy_generator_run; callbacks come from it. hy_generator_add, _cancel, _now and
 * _request_stop may be called from any thread at any time, also from callbacks.
 *
 * `size` in structs: see hybrid_types.h. In hy_request and hy_generator_options it is not read. */
#ifndef HYBRID_GENERATE_H
#define HYBRID_GENERATE_H

#include "hybrid.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hy_generator hy_generator;

typedef struct hy_generator_options {
    size_t size;
    int32_t context; /* most tokens of prompt and answer; 0: the model's, at most 8192, or as many
                        as memory allows */
    int32_t streams; /* answers that are generated at once; 0: 64 on a GPU, 16 on a CPU, or as many
                        as memory allows */
    int32_t waiting; /* requests that may wait; one more is refused; 0: no limit */
    int32_t top_logprobs; /* most that a request may ask for, 0 to 20 */
    /* As in hy_inference_options. */
    const char *tokenizer, *chat_template;
    bool without_thinking;
} hy_generator_options;

/* Opens device and model as configured, like hy_inference_open. Options and observer may be NULL. */
static inline hy_status hy_generator_open(const hy_config *config,
                                          const hy_generator_options *options,
                                          const hy_observer *observer, hy_generator **out);
/* Requests that are not answered yet end without a callback. Not during hy_generator_run. */
void hy_generator_close(hy_generator *generator);

typedef struct hy_generator_facts {
    size_t size;
    const char *model, *weights, *device, *tokenizer, *chat_template; /* as in hy_inference_facts */
    const char *message_format;
    int64_t parameters;
    int32_t vocab, context, streams;
    hy_dtype dtype;
    hy_place weights_place;
    uint64_t weights_bytes, cache_bytes; /* cache: keys, values and states of all sequences */
    int64_t cache_tokens;                /* that fit into it */
} hy_generator_facts;
static inline void hy_generator_describe(const hy_generator *generator, hy_generator_facts *out);

/* Text to token ids and back. Allocated; free with hy_free. With is_prompt the ids are those of a
 * prompt: with the tokenizer's start tokens. */
hy_status hy_generator_encode(const hy_generator *generator, const char *text, size_t size,
                              bool is_prompt, int32_t **ids, size_t *count);
hy_status hy_generator_decode(const hy_generator *generator, const int32_t *ids, size_t count,
                              char **text, size_t *size);

/* ---- requests -------------------------------------------------------------------------------- */

typedef struct hy_token_score {
    int32_t token;
    float logprob; /* of the model, without temperature and penalty; NaN: not requested, or the
                      first token of a prompt */
} hy_token_score;

/* A token of an answer, or of a prompt. */
typedef struct hy_scored_token {
    hy_token_score chosen;
    const hy_token_score *top; /* the most likely tokens, most likely first */
    int32_t top_count;
} hy_scored_token;

/* A part of an answer. It is valid during the callback. */
typedef struct hy_piece {
    size_t size;
    int64_t request; /* from hy_generator_add */
    int32_t answer;  /* number of the answer, from 0, if the request wants several */
    bool is_prompt; /* all tokens of the prompt with their log-probabilities, without text; it comes
                       once, before the first answer */
    /* Whole characters; "" while one is not complete or a stop text may begin. An answer that ends
     * within a character has its bytes in the last piece. */
    const char *text;
    size_t text_size;
    const hy_scored_token *tokens; /* of this text; without the token that ends the answer */
    int32_t token_count;
    /* The last piece of the answer. */
    bool is_last;
    hy_end end;
    int32_t prompt_tokens, reused_tokens;         /* reused: they were in the cache already */
    int32_t answer_tokens;                        /* so far; with the token that ended it */
    double wait_seconds, prompt_seconds, seconds; /* in the queue; until the first token; in all */
    const hy_scored_token *end_token; /* with HY_END_MODEL the token that ended it; else NULL */
} hy_piece;

/* Called for each new token of an answer, and once more or with it at the end. */
typedef void (*hy_piece_callback)(void *user, const hy_piece *piece);

typedef struct hy_request {
    size_t size;
    /* One of three: a text to continue; these tokens and no others; a conversation as in
     * hy_inference_set_messages, written by the chat template. */
    const char *text;
    size_t text_size;
    const int32_t *tokens;
    size_t token_count;
    const char *messages;
    size_t messages_size;

    int32_t answers;    /* that many different answers; 0: 1. Answer i has seed + i */
    int32_t max_tokens; /* of an answer; 0: until the context is full */
    double temperature; /* 0: always the most likely token */
    double top_p;       /* sample from the most likely that sum to this share; 0 or 1: from all */
    double min_p;       /* and are at least this share of the most likely; 0: all */
    int32_t top_k;      /* sample from the k most likely; 0: from all */
    double
        repetition_penalty;  /* of tokens of prompt and answer, as in transformers; 0 or 1: none */
    uint64_t seed;           /* the same seed, model and prompt give the same answer */
    const char *const *stop; /* an answer ends before one of these texts */
    size_t stop_count;
    bool ignores_end; /* the model's end token does not end the answer (for measurements) */

    bool wants_logprobs, wants_prompt_logprobs;
    int32_t top_logprobs; /* of so many likeliest tokens at each position */

    hy_piece_callback on_piece; /* NULL: nothing is reported */
    void *user;
} hy_request;

/* Adds a request; the library copies what it needs. *id may be NULL. HY_ERR_INPUT: the prompt does
 * not fit, or a value is not accepted; HY_ERR_STATE: too many requests wait. */
static inline hy_status hy_generator_add(hy_generator *generator, const hy_request *request,
                                         int64_t *id);
/* Ends a request: its answers end with HY_END_STOPPED soon, unless they end by themselves before.
 * False: it has ended already. */
bool hy_generator_cancel(hy_generator *generator, int64_t id);

/* Generates until all requests are answered. HY_STOPPED: hy_generator_request_stop(). After a
 * failure of the device, requests in progress end with HY_END_STOPPED, and the call fails. */
hy_status hy_generator_run(hy_generator *generator);
/* As above, but waits for new requests until hy_generator_request_stop(). */
hy_status hy_generator_serve(hy_generator *generator);
/* Ends hy_generator_run and _serve after the current step; requests in progress stay, and a later
 * call goes on with them. If neither is running, or the last request ends at that moment, the next
 * call ends at once. Safe in a signal handler. */
void hy_generator_request_stop(hy_generator *generator);

typedef struct hy_generator_state {
    size_t size;
    int32_t running, waiting; /* answers; requests */
    int64_t finished, prompt_tokens,
        tokens; /* requests, and tokens of prompts and answers, so far */
    int64_t cache_tokens_used;
    double busy_seconds; /* in which there was something to generate */
} hy_generator_state;
static inline void hy_generator_now(const hy_generator *generator, hy_generator_state *out);

/* ---- files of prompts ------------------------------------------------------------------------ */

typedef struct hy_generate_file_state {
    size_t size;
    bool is_checking;     /* all rows are read once before the first is answered */
    double checked;       /* share of the data that was read by then */
    int64_t rows;         /* of the data; -1: not known */
    int64_t done;         /* rows written, with those of earlier calls */
    int64_t resumed;      /* of these, written by earlier calls */
    int64_t bad;          /* of `done`, written with "error" */
    int64_t answers, cut; /* answers of this call; of these, ended by max_tokens or the context */
    int64_t prompt_tokens, answer_tokens; /* of this call */
    int32_t running, waiting;             /* as in hy_generator_state */
    double seconds;                       /* of this call, since the first row was asked */
} hy_generate_file_state;

typedef void (*hy_generate_file_callback)(void *user, const hy_generate_file_state *state);

typedef struct hy_generate_file_options {
    size_t size;
    const char *data;    /* a file of rows: JSON lines, a JSON array or CSV; "-": lines of input */
    const char *out;     /* "-": standard output */
    const char *columns; /* other names of keys, as the key "columns"; NULL: none */
    const char *system;  /* system message of rows with messages or a prompt that have none */
    bool skips_bad;      /* a row that cannot be asked is written with "error" and counted */
    bool starts_over;    /* replaces `out`, and what an interrupted call has written */
    hy_generate_file_callback on_progress; /* at most ten times per second; or NULL */
    void *user;
} hy_generate_file_options;

/* Answers each row of a file as the request `each` says, which has no prompt.
 *
 * A row is {"prompt"}, {"messages"} or of another kind that training reads; its answer may be
 * missing and is not read. {"text"} is continued as it is; {"tokens"} are token ids. A row's keys
 * max_tokens, temperature, top_p, top_k, seed and stop replace the values of `each`. Row i without
 * a seed has the seed each.seed + i * each.answers.
 *
 * Rows are written in their order and as they are, each on one line, with "text" and "end" (model,
 * max_tokens, context, stop_text); with several answers these are lists, "texts" and "ends". If
 * `each` wants log-probabilities, "logprobs" has them. Keys of these names are replaced. If "text"
 * is the prompt, the answer is "answer"; if "texts" is, the answers are "answers".
 *
 * The rows of a file are checked before the first is answered; HY_ERR_INPUT names file and line.
 * Answers are written to OUT.part, which becomes OUT at the end. After an interruption the same
 * call continues after the last whole row, and the file gets the same bytes. HY_ERR_INPUT: OUT
 * exists, or OUT.part belongs to other settings, weights or data, which the message names. Standard
 * input is not checked beforehand; with it, or with standard output, nothing can be continued.
 *
 * The call generates like hy_generator_serve, so it fails while another thread does. Requests that
 * others add are answered, too. HY_STOPPED: hy_generator_request_stop() was called. `state` may be
 * NULL. */
static inline hy_status hy_generate_file(hy_generator *generator, const hy_request *each,
                                         const hy_generate_file_options *options,
                                         hy_generate_file_state *state);
/* The word for `end` in these files. */
const char *hy_end_name(hy_end end);

/* ---- with the size of structs ---------------------------------------------------------------- */

hy_status hy_generator_open_sized(const hy_config *config, const hy_generator_options *options,
                                  size_t size, const hy_observer *observer, hy_generator **out);
static inline hy_status hy_generator_open(const hy_config *config,
                                          const hy_generator_options *options,
                                          const hy_observer *observer, hy_generator **out) {
    return hy_generator_open_sized(config, options, sizeof *options, observer, out);
}
void hy_generator_describe_sized(const hy_generator *generator, hy_generator_facts *out,
                                 size_t size);
static inline void hy_generator_describe(const hy_generator *generator, hy_generator_facts *out) {
    hy_generator_describe_sized(generator, out, sizeof *out);
}
hy_status hy_generator_add_sized(hy_generator *generator, const hy_request *request, size_t size,
                                 int64_t *id);
static inline hy_status hy_generator_add(hy_generator *generator, const hy_request *request,
                                         int64_t *id) {
    return hy_generator_add_sized(generator, request, sizeof *request, id);
}
void hy_generator_now_sized(const hy_generator *generator, hy_generator_state *out, size_t size);
static inline void hy_generator_now(const hy_generator *generator, hy_generator_state *out) {
    hy_generator_now_sized(generator, out, sizeof *out);
}
hy_status hy_generate_file_sized(hy_generator *generator, const hy_request *each, size_t each_size,
                                 const hy_generate_file_options *options, size_t options_size,
                                 hy_generate_file_state *state, size_t state_size);
static inline hy_status hy_generate_file(hy_generator *generator, const hy_request *each,
                                         const hy_generate_file_options *options,
                                         hy_generate_file_state *state) {
    return hy_generate_file_sized(generator, each, sizeof *each, options, sizeof *options, state,
                                  sizeof *state);
}

#ifdef __cplusplus
}
#endif
#endif
