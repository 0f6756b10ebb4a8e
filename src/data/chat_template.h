/* chat_template.h: how a conversation is written for a model.
 *
 * Five templates are known by name, as the models were trained with them:
 *   chatml   <|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n
 *   llama3   <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|>...
 *   llama2   <s>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] A </s>
 *   mistral  <s>[INST] Q [/INST] A</s>, or with [INST] and [/INST] as tokens where the tokenizer has them
 *   alpaca   a sentence, ### Instruction:\nQ\n\n### Input:\nI\n\n### Response:\nA and the end token
 * Qwen3's chatml has a place for what was thought: an answer behind the last question is written
 * <think>\nR\n</think>\n\nA, with nothing for R where nothing was thought, and earlier ones without.
 * "auto" reads the template that lies in the model's folder and recognises these by their marks. A
 * rendered conversation is a row of pieces, text or special tokens by id, so that a user's text can never
 * turn into a special token. Pieces say whether they are an answer: its text and the token that ends it. */
#pragma once

#include "base/text.h"
#include "tokenizer/tokenizer.h"

typedef enum hy_chat_kind {
    HY_CHAT_AUTO = 0, /* asked for: the one that the model's folder has */
    HY_CHAT_PLAIN,    /* question and answer one after the other, then the end token */
    HY_CHAT_CHATML,
    HY_CHAT_LLAMA2,
    HY_CHAT_LLAMA3,
    HY_CHAT_MISTRAL,
    HY_CHAT_ALPACA,
    HY_CHAT_UNKNOWN, /* the folder has one that is none of these */
    HY_CHAT_NONE     /* nothing says which */
} hy_chat_kind;

#define HY_CHAT_NAMES "chatml, llama2, llama3, mistral, alpaca"

typedef enum hy_role { HY_ROLE_SYSTEM, HY_ROLE_USER, HY_ROLE_INPUT, HY_ROLE_ASSISTANT } hy_role;

/* INPUT is what a user's instruction is about: it follows the USER turn it belongs to. */
typedef struct hy_turn {
    hy_role role;
    const char *text;
    size_t size;
    const char *thought; /* of an answer, where data has it apart; NULL: it may be in the text */
    size_t thought_size;
} hy_turn;

typedef struct hy_slice {
    const char *text;
    size_t size;
} hy_slice;

/* The special tokens that templates use; -1: the tokenizer has none. Without a tokenizer text is bytes
 * and the byte 0 ends an example. */
typedef struct hy_chat_tokens {
    int32_t opening[4]; /* what the tokenizer itself puts in front of a text */
    int32_t opening_count;
    int32_t eos;        /* ends a text */
    int32_t begin, end; /* llama2, mistral: <s> and </s> */
    int32_t text_begin; /* llama3: <|begin_of_text|> */
    int32_t im_start, im_end;
    int32_t header_start, header_end, turn_end;
    int32_t inst, inst_end;
} hy_chat_tokens;

typedef struct hy_chat_template {
    hy_chat_kind kind;
    hy_chat_tokens tokens;
    char
        default_system[512]; /* chatml: put in front when a conversation has none; "": nothing is */
    bool has_dates;          /* llama3: the system turn begins with the two dates of Llama 3.1 */
    bool has_thinking;       /* chatml: answers have a place for what was thought */
    bool opens_thinking;     /* the model is always made to think first */
    bool skips_thinking;     /* it is told that it has thought nothing; who renders sets it */
} hy_chat_template;

typedef struct hy_piece {
    int32_t token;      /* >= 0: this token, no text */
    size_t begin, size; /* of the text */
    bool is_answer;
} hy_piece;

/* A conversation as pieces. A zeroed one is empty; rendering into it begins anew. */
typedef struct hy_rendered {
    hy_text text;
    hy_piece *pieces;
    size_t count, room;
    bool has_failed;
} hy_rendered;

/* `kind` is one of those that have a name, or HY_CHAT_AUTO; tokenizer and folder may be NULL. Fails
 * when the tokenizer lacks a token that a template other than HY_CHAT_AUTO needs. */
hy_status hy_chat_template_open(hy_chat_kind kind, const hy_tokenizer *tokenizer,
                                const char *folder, hy_chat_template *out);
const char *hy_chat_kind_name(hy_chat_kind kind);
hy_status hy_chat_kind_parse(const char *name, hy_chat_kind *out); /* auto, plain, chatml, ... */
/* Whether the tokens that this template needs are there; HY_ERR_INPUT names the missing one. */
hy_status hy_chat_template_check(const hy_chat_template *chat);
/* Recognises a template's own text (Jinja); HY_CHAT_UNKNOWN when no marks are found. */
hy_chat_kind hy_chat_template_recognise(const char *text, hy_chat_template *out);
/* The token that ends an answer, -1: none. */
int32_t hy_chat_template_end(const hy_chat_template *chat);

/* Renders turns. With asks_for_answer it ends where the assistant would begin to write. Turns in an order
 * that the template cannot write are HY_ERR_INPUT. */
hy_status hy_chat_render(const hy_chat_template *chat, const hy_turn *turns, size_t count,
                         bool asks_for_answer, hy_rendered *out);
void hy_rendered_free(hy_rendered *rendered);

/* Appends the tokens of a rendered conversation, and whether each belongs to an answer (0 or 1) to
 * `answers`, which grows with it. Text between two special tokens is encoded in one piece; a token that
 * lies on the border of an answer belongs to it. tokenizer NULL: bytes. */
typedef struct hy_flags {
    uint8_t *data;
    size_t count, room;
} hy_flags;
hy_status hy_rendered_encode(const hy_rendered *rendered, const hy_tokenizer *tokenizer,
                             hy_ids *ids, hy_flags *answers);
void hy_flags_free(hy_flags *flags);
/* Text alone, appended; tokenizer NULL: bytes. */
hy_status hy_encode_text(const hy_tokenizer *tokenizer, const char *text, size_t size, int flags,
                         hy_ids *ids);
