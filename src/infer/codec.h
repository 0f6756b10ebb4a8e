/* codec.h: text and conversations as a model's tokens, and its tokens as text.
 *
 * A codec is the tokenizer, the chat template and the end tokens of a model in use. After
 * hy_codec_open nothing changes it, so several threads may encode at once. hy_inference has one,
 * and so has the generator (generate/). */
#pragma once

#include "base/file.h"
#include "data/conversation.h"
#include "hub/end_tokens.h"
#include "hybrid.h"
#include "tokenizer/tokenizer.h"

struct hy_used_model;

typedef struct hy_codec {
    hy_tokenizer *tokenizer; /* NULL: tokens are bytes */
    int32_t vocab;           /* ids below this have a text, and the model knows them */
    hy_chat_template chat;
    bool has_template;
    bool is_single;   /* each message is asked alone, as the rows of the run were */
    char format[160]; /* how messages are written, for people */
    bool is_trained_format;
    hy_end_tokens ends; /* from the model's folder */
    char tokenizer_path[HY_PATH_MAX];
} hy_codec;

/* The model's, or what the options name: the context is not used. The model need not be loaded. */
hy_status hy_codec_open(hy_codec *codec, const struct hy_used_model *model,
                        const hy_inference_options *options);
void hy_codec_close(hy_codec *codec); /* accepts all zeros */
/* The template's name, or "plain". */
const char *hy_codec_template(const hy_codec *codec);

/* ---- to tokens ------------------------------------------------------------------------------- */

/* The functions append. hy_codec_encode: only the tokens of the text. */
hy_status hy_codec_encode(const hy_codec *codec, const char *text, size_t size, hy_ids *out);
/* A text to continue, with the tokenizer's start tokens. An empty text begins after the start token
 * alone, or after a new line. */
hy_status hy_codec_encode_prompt(const hy_codec *codec, const char *text, size_t size, hy_ids *out);
/* A conversation up to where the answer begins: by the template, or without one as joined texts. */
hy_status hy_codec_encode_turns(const hy_codec *codec, const hy_conversation *turns, hy_ids *out);

/* Reads messages as hy_inference_set_messages has them. The turns point into *json: free both,
 * also after a failure. */
hy_status hy_messages_parse(const char *text, size_t size, hy_json **json, hy_conversation *out);
/* HY_ERR_INPUT: there is no turn that can be answered. */
hy_status hy_messages_check(const hy_conversation *turns);

/* ---- to text --------------------------------------------------------------------------------- */

/* Does this token end an answer? */
bool hy_codec_is_end(const hy_codec *codec, int32_t token);

/* Appends the text of tokens; tokenizer NULL: bytes, with '?' for ids that are not bytes. */
hy_status hy_decode_text(const hy_tokenizer *tokenizer, const int32_t *ids, size_t count, int flags,
                         hy_text *out);

/* Which tokens of an answer are shown already. New tokens are decoded together with the tokens
 * [first, next), which contain text if there is any: the first token of a decoded text loses its
 * blank. */
typedef struct hy_decode_window {
    size_t first, next;
} hy_decode_window;
/* Appends the text of the tokens that are not shown yet. */
hy_status hy_decode_more(const hy_tokenizer *tokenizer, const hy_ids *known,
                         hy_decode_window *window, hy_text *out);
/* The number of bytes at the end that belong to an incomplete character. */
size_t hy_incomplete_bytes(const char *text, size_t size);
