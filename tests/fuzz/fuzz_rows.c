/* fuzz_rows.c: rows of JSON and CSV, and lists of paths from any bytes.
 *
 * Whatever comes in is cut into rows, parsed, read as every kind, written with every built-in
 * template and encoded as bytes and with a tokenizer; it is a list of paths, too. Nothing may
 * crash, run past its input or disagree with itself: there is an answer flag for each token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/conversation.h"
#include "data/csv_rows.h"
#include "data/examples.h"
#include "data/json_rows.h"
#include "data/mixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const hy_chat_kind templates[] = {HY_CHAT_PLAIN,  HY_CHAT_CHATML,  HY_CHAT_LLAMA2,
                                         HY_CHAT_LLAMA3, HY_CHAT_MISTRAL, HY_CHAT_ALPACA};
enum { TEMPLATES = sizeof templates / sizeof templates[0] };

/* Bytes as tokens, and a few special ones. */
static const char tokenizer_text[] =
    "{\"version\": \"1.0\", \"added_tokens\": ["
    "{\"id\": 3, \"content\": \"<s>\", \"special\": true, \"normalized\": false}, "
    "{\"id\": 4, \"content\": \"</s>\", \"special\": true, \"normalized\": false}, "
    "{\"id\": 5, \"content\": \"<|im_start|>\", \"special\": true, \"normalized\": false}, "
    "{\"id\": 6, \"content\": \"<|im_end|>\", \"special\": true, \"normalized\": false}], "
    "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": "
    "true}, "
    "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
    "\"merges\": [\"a b\"]}}";

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_rows: %s\n", what);
    abort();
}

static void encode(const hy_conversation *c, const hy_tokenizer *tokenizer) {
    hy_rendered rendered = {0};
    for (size_t i = 0; i < TEMPLATES; i++) {
        hy_chat_template chat;
        hy_ids ids = {0};
        hy_flags answers = {0};
        bool is_open = hy_chat_template_open(templates[i], tokenizer, NULL, &chat) == HY_OK;
        if (is_open && hy_chat_render(&chat, c, i % 2, &rendered) == HY_OK &&
            hy_rendered_encode(&rendered, tokenizer, &ids, &answers) == HY_OK) {
            require(ids.count == answers.count, "tokens and answers differ in number");
        }
        hy_ids_free(&ids);
        hy_flags_free(&answers);
    }
    hy_rendered_free(&rendered);
}

static const hy_columns pairs = {.pairs = true}, prompts = {.prompts = true};

static bool is_prompt(hy_row_kind kind) {
    return !hy_row_kind_is_pair(kind) && !hy_row_kind_is_scored(kind) && kind != HY_ROWS_TEXT;
}

/* The row as a prompt: the texts of a batch are its row in one line and its expected answer. */
static void read_prompt(const hy_row *row, const hy_json_node *root, hy_row_kind kind,
                        const hy_tokenizer *tokenizer) {
    hy_dataset_options options = {.prompts = true, .prompt_most = 64, .seq = 128, .vocab = 256};
    hy_encoding e = {.options = &options, .tokenizer = tokenizer, .columns = prompts};
    hy_batch_of_rows *b = calloc(1, sizeof *b);
    if (!b) return;
    b->conversation.columns = &prompts;
    bool is_open = hy_chat_template_open(HY_CHAT_PLAIN, tokenizer, NULL, &e.chat) == HY_OK;
    if (is_open && hy_conversation_read(root, kind, &b->conversation) == HY_OK &&
        hy_batch_add_prompt(b, &e, &e.chat, row) == HY_OK && b->lengths.count > 0) {
        hy_json *json;
        size_t size = (size_t)b->text_sizes.data[0] - 1;
        require(hy_json_parse(b->texts.data, size, "", &json) == HY_OK, "a row is no JSON");
        require(hy_json_size(hy_json_root(json)) == hy_json_size(root), "a row lost keys");
        require(!memchr(b->texts.data, '\n', size), "a row has several lines");
        hy_json_free(json);
    }
    hy_batch_free(b);
    free(b);
}

static void read_row(const hy_row *row, const hy_tokenizer *tokenizer) {
    hy_json *json;
    hy_row_kind kind;
    hy_conversation conversation = {0};
    if (hy_row_parse(row, &json) != HY_OK) return;
    const hy_json_node *root = hy_json_root(json);
    if (hy_row_recognise(root, NULL, &kind) == HY_OK) {
        require(kind >= HY_ROWS_ANSWER && kind <= HY_ROWS_TURNS, "a kind that there is not");
    }
    if (hy_row_recognise(root, &pairs, &kind) == HY_OK)
        require(hy_row_kind_is_pair(kind), "a pair that is none");
    if (hy_row_recognise(root, &prompts, &kind) == HY_OK)
        require(is_prompt(kind), "a prompt that is none");
    for (int k = HY_ROWS_ANSWER; k <= HY_ROWS_TURNS; k++) {
        if (is_prompt((hy_row_kind)k)) read_prompt(row, root, (hy_row_kind)k, tokenizer);
        if (hy_conversation_read(root, (hy_row_kind)k, &conversation) != HY_OK) continue;
        if (hy_row_kind_is_pair((hy_row_kind)k)) {
            require(conversation.choices > 0 && conversation.choices < conversation.rejected &&
                        conversation.rejected < conversation.count,
                    "a pair without a prompt or an answer");
        }
        encode(&conversation, NULL);
        encode(&conversation, tokenizer);
    }
    hy_conversation_free(&conversation);
    hy_json_free(json);
}

static void read_all(hy_row_scan *scan, const char *begin, size_t size,
                     const hy_tokenizer *tokenizer) {
    hy_row row;
    const char *last = begin;
    while (hy_rows_next(scan, &row)) {
        require(row.data >= last && row.data + row.size <= begin + size, "a row lies outside");
        last = row.data + row.size;
        read_row(&row, tokenizer);
    }
}

static void read_rows(const uint8_t *data, size_t size) {
    static hy_tokenizer *tokenizer; /* made once: it never changes */
    hy_row_scan scan;
    if (!tokenizer) {
        hy_status status =
            hy_tokenizer_parse(tokenizer_text, sizeof tokenizer_text - 1, "small", &tokenizer);
        require(status == HY_OK, "the small tokenizer does not open");
    }
    const char *begin = (const char *)data;
    hy_csv csv;
    hy_row_kind kind;
    hy_rows_begin(&scan, begin, size);
    read_all(&scan, begin, size, tokenizer);
    if (hy_csv_begin(&scan, begin, size, NULL, &csv, &kind) == HY_OK) {
        read_all(&scan, begin, size, tokenizer);
        hy_csv_close(&csv);
    }
    (void)hy_rows_are_there(begin, size);
    (void)hy_csv_is_header(begin, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hy_mixture mixture;
    char *text = malloc(size + 1);
    if (!text) return 0;
    if (size > 0) memcpy(text, data, size);
    text[size] = '\0';
    read_rows((const uint8_t *)text, size);
    if (hy_mixture_parse(text, &mixture) == HY_OK) hy_mixture_free(&mixture);
    free(text);
    return 0;
}
