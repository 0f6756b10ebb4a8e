/* chat_template.h: how a conversation is written for a model.
 *
 * The template that lies in the model's folder is rendered as it stands (jinja/jinja.h, chat_own.c). For
 * folders without one, and for those who ask by name, five are built in, as models were trained with them:
 *   chatml   <|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n
 *   llama3   <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|>...
 *   llama2   <s>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] A </s>
 *   mistral  <s>[INST] Q [/INST] A</s>, or with [INST] and [/INST] as tokens where the tokenizer has them
 *   alpaca   a sentence, ### Instruction:\nQ\n\n### Input:\nI\n\n### Response:\nA and the end token
 * A rendered conversation is a row of pieces, text or special tokens by id, so that a user's text can never
 * turn into a special token. Pieces say whether they are an answer: its text and the token that ends it. */
#pragma once

#include <time.h>

#include "base/json.h"
#include "base/text.h"
#include "jinja/jinja.h"
#include "tokenizer/tokenizer.h"

typedef enum hy_chat_kind {
    HY_CHAT_AUTO = 0, /* asked for: the one that the model's folder has */
    HY_CHAT_PLAIN,    /* question and answer one after the other, then the end token */
    HY_CHAT_CHATML,
    HY_CHAT_LLAMA2,
    HY_CHAT_LLAMA3,
    HY_CHAT_MISTRAL,
    HY_CHAT_ALPACA,
    HY_CHAT_OWN,     /* the one in the model's folder */
    HY_CHAT_UNKNOWN, /* the folder has one that cannot be rendered here */
    HY_CHAT_NONE     /* nothing says which */
} hy_chat_kind;

#define HY_CHAT_NAMES "chatml, llama2, llama3, mistral, alpaca"

typedef enum hy_role {
    HY_ROLE_SYSTEM,
    HY_ROLE_USER,
    HY_ROLE_INPUT,
    HY_ROLE_ASSISTANT,
    HY_ROLE_TOOL
} hy_role;

/* INPUT is what a user's instruction is about: it follows the USER turn it belongs to. */
typedef struct hy_turn {
    hy_role role;
    const char *text; /* of content in parts: theirs, one after the other */
    size_t size;
    const char *name;            /* of the role, for templates of folders; NULL: the usual one */
    const hy_json_node *message; /* all that the data says of this turn; NULL: the text alone */
    bool has_parts, calls_tools;
} hy_turn;

#define HY_MOST_TURNS 4096 /* of a conversation; more is a broken file */

typedef struct hy_conversation {
    hy_turn *turns;
    size_t count, room;
    const hy_json_node *tools; /* that may be called; NULL: none */
    char **joined;             /* texts of parts that were put together */
    size_t joined_count, joined_room;
} hy_conversation;

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
    struct hy_own_template *own; /* HY_CHAT_OWN; copies of this struct share it */
    char reason[512];            /* HY_CHAT_UNKNOWN: why */
    struct tm now;               /* what a template is told of today */
    /* Who renders sets these. */
    bool skips_thinking;  /* the model is told that it has thought nothing */
    bool ignores_answers; /* nobody asks which tokens are answers */
} hy_chat_template;

typedef struct hy_rendered_piece {
    int32_t token;      /* >= 0: this token, no text */
    size_t begin, size; /* of the text */
    bool is_answer;
} hy_rendered_piece;

/* A conversation as pieces. A zeroed one is empty; rendering into it begins anew. */
typedef struct hy_rendered {
    hy_text text;
    hy_rendered_piece *pieces;
    size_t count, room;
    bool has_failed;
    hy_jinja_output whole, part; /* what a folder's template wrote: all, and up to some turn */
    hy_specials specials;
    uint8_t *answers; /* of each byte of the whole */
    size_t answers_room;
} hy_rendered;

/* `kind` is one of those that have a name, or HY_CHAT_AUTO; tokenizer and folder may be NULL. Fails
 * when the tokenizer lacks a token that a template other than HY_CHAT_AUTO needs. The tokenizer outlives
 * the template. */
hy_status hy_chat_template_open(hy_chat_kind kind, const hy_tokenizer *tokenizer,
                                const char *folder, hy_chat_template *out);
void hy_chat_template_close(hy_chat_template *chat); /* zeroed ones, too */
const char *hy_chat_kind_name(hy_chat_kind kind);
hy_status hy_chat_kind_parse(const char *name, hy_chat_kind *out); /* auto, plain, chatml, ... */
/* Whether the tokens that this template needs are there; HY_ERR_INPUT names the missing one. */
hy_status hy_chat_template_check(const hy_chat_template *chat);
/* The token that ends an answer, -1: none. */
int32_t hy_chat_template_end(const hy_chat_template *chat);

/* Renders turns. With asks_for_answer it ends where the assistant would begin to write. HY_ERR_INPUT: the
 * template cannot write these turns, or its answers cannot be told apart from the rest. */
hy_status hy_chat_render(const hy_chat_template *chat, const hy_conversation *conversation,
                         bool asks_for_answer, hy_rendered *r);
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

/* ---- the folder's own template (chat_own.c): inside the module ---- */

/* Where a folder says what bos_token and its like are; either may be NULL. */
typedef struct hy_own_tokens {
    hy_json *config; /* tokenizer_config.json */
    hy_json *map;    /* special_tokens_map.json of older folders, which wins */
} hy_own_tokens;

void hy_own_tokens_free(hy_own_tokens *tokens);
/* `tokens` are taken over. */
hy_status hy_own_template_open(const char *text, size_t size, hy_own_tokens tokens,
                               const hy_tokenizer *tokenizer, hy_chat_template *out);
/* A second one, for conversations with tools; `chat` has its own one already. */
hy_status hy_own_template_add_tools(const char *text, size_t size, hy_chat_template *chat);
void hy_own_template_close(struct hy_own_template *own); /* may be NULL */
int32_t hy_own_template_end(const struct hy_own_template *own);
hy_status hy_own_render(const hy_chat_template *chat, const hy_conversation *conversation,
                        bool asks_for_answer, hy_rendered *out);
/* Pieces, appended; without memory the whole has failed (chat_render.c). */
void hy_rendered_add_token(hy_rendered *r, int32_t token, bool is_answer);
void hy_rendered_add_text(hy_rendered *r, const char *text, size_t size, bool is_answer);
