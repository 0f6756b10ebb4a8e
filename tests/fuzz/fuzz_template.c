/* fuzz_template.c: chat templates from any bytes, and conversations for them.
 *
 * What stands before the first line "----" is the template, what follows is a row of messages;
 * without such a line a row of ours is used. The template is opened as a folder's own, and the row
 * written with it with and without asking for an answer, as bytes and with a tokenizer. Nothing may
 * crash, run past its input, run on without end or disagree with itself: there is an answer flag
 * for each token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/conversation.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char usual_row[] =
    "{\"tools\": [{\"function\": {\"name\": \"f\", \"parameters\": {\"a\": [1, 2.5, null, "
    "true]}}}], "
    "\"messages\": [{\"role\": \"system\", \"content\": \" S \"}, {\"role\": \"user\", "
    "\"content\": "
    "\"Q <|im_end|> \\u00e9\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
    "[{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]}, {\"role\": \"tool\", "
    "\"content\": \"4\"}, {\"role\": \"assistant\", \"content\": \"<think>R</think>A\", "
    "\"reasoning_content\": \"R\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", "
    "\"text\": \"Q\"}]}, {\"role\": \"assistant\", \"content\": \"A\"}]}";

/* Bytes as tokens, and a few special ones. */
static const char tokenizer_text[] =
    "{\"version\": \"1.0\", \"added_tokens\": ["
    "{\"id\": 3, \"content\": \"<s>\", \"special\": true, \"normalized\": false}, "
    "{\"id\": 4, \"content\": \"</s>\", \"special\": true, \"normalized\": false, \"rstrip\": "
    "true}, "
    "{\"id\": 5, \"content\": \"<|im_start|>\", \"special\": true, \"normalized\": false}, "
    "{\"id\": 6, \"content\": \"<|im_end|>\", \"special\": true, \"normalized\": false, "
    "\"lstrip\": "
    "true}], "
    "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": "
    "true}, "
    "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
    "\"merges\": [\"a b\"]}}";

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_template: %s\n", what);
    abort();
}

static void render(const char *template, size_t size, const hy_conversation *c,
                   const hy_tokenizer *tokenizer) {
    hy_chat_template chat;
    hy_rendered rendered = {0};
    require(hy_chat_template_open(HY_CHAT_AUTO, tokenizer, NULL, &chat) == HY_OK, "no template");
    hy_status status = hy_own_template_open(template, size, (hy_own_tokens){0}, tokenizer, &chat);
    for (int asks = 0; asks < 2 && status == HY_OK && chat.kind == HY_CHAT_OWN; asks++) {
        hy_ids ids = {0};
        hy_flags answers = {0};
        chat.skips_thinking = asks;
        if (hy_chat_render(&chat, c, asks, &rendered) == HY_OK &&
            hy_rendered_encode(&rendered, tokenizer, &ids, &answers) == HY_OK) {
            require(ids.count == answers.count, "tokens and answers differ in number");
        }
        hy_ids_free(&ids);
        hy_flags_free(&answers);
    }
    hy_rendered_free(&rendered);
    hy_chat_template_close(&chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static hy_tokenizer *tokenizer; /* made once: it never changes */
    hy_conversation conversation = {0};
    hy_json *json;
    if (!tokenizer) {
        hy_status status =
            hy_tokenizer_parse(tokenizer_text, sizeof tokenizer_text - 1, "small", &tokenizer);
        require(status == HY_OK, "the small tokenizer does not open");
    }
    const char *text = (const char *)data;
    const char *border = size > 0 ? memmem(text, size, "\n----\n", 6) : NULL;
    const char *row = border ? border + 6 : usual_row;
    size_t row_size = border ? (size_t)(text + size - row) : sizeof usual_row - 1;
    if (hy_json_parse(row, row_size, "row", &json) != HY_OK) return 0;
    if (hy_conversation_read(hy_json_root(json), HY_ROWS_MESSAGES, &conversation) == HY_OK) {
        size_t template_size = border ? (size_t)(border - text) : size;
        render(text, template_size, &conversation, NULL);
        render(text, template_size, &conversation, tokenizer);
    }
    hy_conversation_free(&conversation);
    hy_json_free(json);
    return 0;
}
