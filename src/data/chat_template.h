/* chat_template.h: how a conversation is written for a model.
 *
 * A template in the model's folder is rendered unchanged (jinja/jinja.h, chat_own.c). A folder
 * that we wrote may name a built-in template instead, which writes rows as in training. Six
 * templates are built in, for folders without one and for users who choose one by name:
 *     chatml   <|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n
 *     llama3   <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|>...
 *     llama2   <s>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] A </s>
 *     mistral  <s>[INST] Q [/INST] A</s>; [INST] and [/INST] are tokens if the tokenizer has them
 *     alpaca   a sentence, ### Instruction:\nQ\n\n### Input:\nI\n\n### Response:\nA, the end token
 *     lines    Q\nA, the end token; plain without the line end
 * A rendered conversation is a list of pieces: text, or special tokens by id. So the text of a user
 * can never become a special token. In plain and lines, text is encoded as in text files: special
 * tokens that are spelled in it are tokens. Each piece says whether it belongs to an answer: the
 * answer's text and the token that ends it. */
#pragma once

#include <time.h>

#include "base/json.h"
#include "base/text.h"
#include "jinja/jinja.h"
#include "tokenizer/tokenizer.h"

typedef enum hy_chat_kind {
    HY_CHAT_AUTO = 0, /* a request: the template in the model's folder */
    HY_CHAT_PLAIN,    /* the question, the answer and the end token, one after the other */
    HY_CHAT_CHATML,
    HY_CHAT_LLAMA2,
    HY_CHAT_LLAMA3,
    HY_CHAT_MISTRAL,
    HY_CHAT_ALPACA,
    HY_CHAT_OWN,     /* the template in the model's folder */
    HY_CHAT_UNKNOWN, /* the folder has a template that cannot be rendered */
    HY_CHAT_NONE,    /* no template is known */
    /* a request: as AUTO for conversations, PLAIN for a prompt and its completion; runs that began
     * before version 0.2 resume with it */
    HY_CHAT_CONVERSATIONS,
    HY_CHAT_LINES /* as PLAIN, with a line end after the question */
} hy_chat_kind;

#define HY_CHAT_NAMES "chatml, llama2, llama3, mistral, alpaca, lines, plain"

/* How rows were written, so that a question can be asked in the same way. A run stores it in its
 * checkpoints, in its adapter folder and in its model folder. */
typedef struct hy_prompt_format {
    hy_chat_kind chat; /* HY_CHAT_OWN: the folder's; HY_CHAT_AUTO: not known, or rows are texts */
    bool is_single;    /* each row was one question and its answer, and nothing marks turns */
    bool is_mixed;     /* other rows had another format; this is the format of the first */
} hy_prompt_format;

#define HY_FORMAT_FILE "hybrid_format.json"
/* Reads the format that a folder stores; HY_CHAT_AUTO: none. */
hy_status hy_prompt_format_read(const char *folder, hy_prompt_format *out);
/* The same for a checkpoint, or the newest checkpoint of a run. Older runs, and runs without rows,
 * store none. */
hy_status hy_prompt_format_read_run(const char *from, hy_prompt_format *out);
/* Members of a JSON object. An unknown name, of a newer program, is HY_CHAT_AUTO. */
void hy_prompt_format_get(const hy_json_node *object, hy_prompt_format *out);
void hy_prompt_format_put(hy_json_writer *w, hy_prompt_format format);
/* Adds the format of further rows. */
void hy_prompt_format_join(hy_prompt_format *all, hy_prompt_format more);
bool hy_prompt_format_is_built_in(const hy_prompt_format *format);

typedef enum hy_role {
    HY_ROLE_SYSTEM,
    HY_ROLE_USER,
    HY_ROLE_INPUT,
    HY_ROLE_ASSISTANT,
    HY_ROLE_TOOL
} hy_role;
const char *hy_role_name(hy_role role); /* as templates write it */

/* INPUT is the text that a user's instruction refers to; it follows the USER turn it belongs to. */
typedef struct hy_turn {
    hy_role role;
    const char *text; /* if the content has parts: their texts, joined */
    size_t size;
    const char *name; /* the role's name, for templates of folders; NULL: the usual name */
    const hy_json_node *message; /* the whole message in the data; NULL: only the text */
    bool has_parts, calls_tools;
    bool is_masked; /* an answer that does not count in the loss */
    bool is_owned;  /* whoever added the turn frees the text */
} hy_turn;

#define HY_MOST_TURNS 4096 /* in a conversation; a file with more is malformed */

/* Whether rows for evaluation (conversation.h) are recognised. */
typedef enum hy_scoring {
    HY_SCORES_NONE,
    HY_SCORES_TOO,  /* as rows of training are */
    HY_SCORES_FIRST /* before rows of training: the columns of these have other names */
} hy_scoring;

/* Keys of rows that have other names in the data. */
#define HY_MOST_COLUMNS 8
typedef struct hy_columns {
    struct {
        char key[32], name[96]; /* our key, and its name in the data */
    } list[HY_MOST_COLUMNS];
    int count;
    hy_scoring scores;
    bool asks;    /* only questions are read: the keys of answers may be missing */
    bool pairs;   /* only pairs of answers are recognised, else no pairs */
    bool prompts; /* only prompts are recognised, with or without an answer */
} hy_columns;

typedef struct hy_conversation {
    /* Set by the caller before reading rows. */
    const hy_columns *columns; /* NULL: the usual keys */
    bool skips_system;         /* the template has no turn for the row's "system" */
    bool has_system;           /* the row's "system" is used */
    hy_turn *turns;
    size_t count, room;
    /* Rows for evaluation: the turns from `choices` on are possible answers, of which number
     * `right` is the right one. */
    size_t choices, right;
    /* Pairs: the turns before `choices` are the prompt, those before `rejected` the chosen answer,
     * the others the rejected one. has_prompt: the row's "prompt" is used. */
    size_t rejected;
    bool has_prompt;
    /* Prompts: the turn `choices`, if there is one, is the expected answer. `expected` is the value
     * of the row that it was read from; NULL: it is the last turn of a list. */
    const hy_json_node *expected;
    const hy_json_node *tools; /* tools that may be called; NULL: none */
    char **joined;             /* joined texts of parts */
    size_t joined_count, joined_room;
} hy_conversation;

/* The special tokens that templates use; -1: the tokenizer does not have it. Without a tokenizer,
 * text is bytes and byte 0 ends an example. */
typedef struct hy_chat_tokens {
    int32_t opening[4]; /* tokens that the tokenizer puts before a text */
    int32_t opening_count;
    int32_t eos;        /* the end of a text */
    int32_t begin, end; /* llama2, mistral: <s> and </s> */
    int32_t text_begin; /* llama3: <|begin_of_text|> */
    int32_t im_start, im_end;
    int32_t header_start, header_end, turn_end;
    int32_t inst, inst_end;
} hy_chat_tokens;

typedef struct hy_chat_template {
    hy_chat_kind kind;
    hy_chat_tokens tokens;
    struct hy_own_template *own; /* for HY_CHAT_OWN; copies of this struct share it */
    bool is_of_folder;           /* the model's folder has or names it */
    char reason[512];            /* for HY_CHAT_UNKNOWN: why it cannot be rendered */
    struct tm now;               /* the date that templates may write */
    /* The caller sets these before rendering. */
    bool skips_thinking;  /* the prompt contains empty thoughts */
    bool ignores_answers; /* the caller does not need to know which tokens are answers */
    bool skips_system;    /* rows: "system" beside the other keys is not written */
} hy_chat_template;

typedef struct hy_rendered_piece {
    int32_t token;      /* >= 0: a special token; otherwise text */
    size_t begin, size; /* position in the text */
    bool is_answer;
} hy_rendered_piece;

/* A conversation as pieces. An empty one is all zeros; rendering replaces the old content. */
typedef struct hy_rendered {
    hy_text text;
    hy_rendered_piece *pieces;
    size_t count, room;
    size_t opening;       /* pieces at the start that the tokenizer puts before a text */
    bool spells_specials; /* special tokens that are spelled in the text are tokens */
    bool has_failed;
    /* output of the folder's template: all turns; only the first turns */
    hy_jinja_output whole, part;
    hy_specials specials;
    uint8_t *answers; /* for each byte of `whole`: whether it is an answer */
    size_t answers_room;
} hy_rendered;

/* `kind` is a kind with a name, HY_CHAT_AUTO or HY_CHAT_CONVERSATIONS; tokenizer and folder may be
 * NULL. Fails if the tokenizer does not have a token that the template needs (HY_CHAT_AUTO chooses
 * another template). The tokenizer must outlive the template. */
hy_status hy_chat_template_open(hy_chat_kind kind, const hy_tokenizer *tokenizer,
                                const char *folder, hy_chat_template *out);
void hy_chat_template_close(hy_chat_template *chat); /* accepts all zeros */
const char *hy_chat_kind_name(hy_chat_kind kind);
hy_status hy_chat_kind_parse(const char *name, hy_chat_kind *out); /* auto, plain, chatml, ... */
bool hy_chat_kind_is_plain(hy_chat_kind kind);                     /* plain or lines */
/* The names of the built-in templates that the tokenizer has the tokens for, with commas. */
#define HY_CHAT_NAMES_MAX 80
void hy_chat_template_offer(const hy_chat_template *chat, char out[HY_CHAT_NAMES_MAX]);
/* Appends a built-in template in Jinja, for other programs; nothing for llama2 and mistral, which
 * join the system turn and the first question. */
hy_status hy_chat_template_jinja(const hy_chat_template *chat, const hy_tokenizer *tokenizer,
                                 hy_text *out);
/* Checks that the tokenizer has the tokens of this template; HY_ERR_INPUT names the missing
 * token. */
hy_status hy_chat_template_check(const hy_chat_template *chat);
/* Whether the template writes a system turn and marks it as such. */
bool hy_chat_template_has_system(const hy_chat_template *chat);
/* Whether the template may read this key of a message: its text has the word. */
bool hy_chat_template_reads(const hy_chat_template *chat, const char *key);
/* The token that ends an answer; -1: none. */
int32_t hy_chat_template_end(const hy_chat_template *chat);

/* Renders turns. With asks_for_answer, the text ends where the assistant's answer begins.
 * HY_ERR_INPUT: the template cannot render these turns, or the answers cannot be located in the
 * text. */
hy_status hy_chat_render(const hy_chat_template *chat, const hy_conversation *conversation,
                         bool asks_for_answer, hy_rendered *r);
void hy_rendered_free(hy_rendered *rendered);

/* Appends which special tokens begin and end a row: "; begins with <s>, ends with </s>". Nothing if
 * the template writes them itself, or without a tokenizer. */
void hy_chat_template_describe_ends(const hy_chat_template *chat, const hy_tokenizer *tokenizer,
                                    hy_text *out);

/* Appends the tokens of a rendered conversation to `ids`, and a flag for each (1: belongs to an
 * answer) to `answers`. Text between two special tokens is encoded in one piece; a token that
 * crosses the border of an answer belongs to the answer. tokenizer NULL: bytes. */
typedef struct hy_flags {
    uint8_t *data;
    size_t count, room;
} hy_flags;
hy_status hy_rendered_encode(const hy_rendered *rendered, const hy_tokenizer *tokenizer,
                             hy_ids *ids, hy_flags *answers);
void hy_flags_free(hy_flags *flags);
/* Appends the tokens of a plain text; tokenizer NULL: bytes. */
hy_status hy_encode_text(const hy_tokenizer *tokenizer, const char *text, size_t size, int flags,
                         hy_ids *ids);

/* ---- the folder's own template (chat_own.c): inside the module ------------------------------- */

/* The files of a folder that define bos_token and the other special tokens; either may be NULL. */
typedef struct hy_own_tokens {
    hy_json *config; /* tokenizer_config.json */
    hy_json *map;    /* special_tokens_map.json of older folders; it takes precedence */
} hy_own_tokens;

void hy_own_tokens_free(hy_own_tokens *tokens);
/* Takes over `tokens`. */
hy_status hy_own_template_open(const char *text, size_t size, hy_own_tokens tokens,
                               const hy_tokenizer *tokenizer, hy_chat_template *out);
/* Adds a second template for conversations with tools; `chat` already has its main template. */
hy_status hy_own_template_add_tools(const char *text, size_t size, hy_chat_template *chat);
void hy_own_template_close(struct hy_own_template *own); /* own may be NULL */
int32_t hy_own_template_end(const struct hy_own_template *own);
hy_status hy_own_render(const hy_chat_template *chat, const hy_conversation *conversation,
                        bool asks_for_answer, hy_rendered *out);
/* The length of the special token that is spelled at `text`, and its id; 0: the tokenizer has none
 * of this spelling (chat_template.c). */
size_t hy_chat_mark_at(const hy_chat_tokens *tokens, const char *text, int32_t *token);
/* Append a piece. If memory runs out, they set has_failed, which rendering reports
 * (chat_render.c). */
void hy_rendered_add_token(hy_rendered *r, int32_t token, bool is_answer);
void hy_rendered_add_text(hy_rendered *r, const char *text, size_t size, bool is_answer);
