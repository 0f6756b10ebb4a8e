/* encode.c: what the library makes of rows, for compare.py.
 *
 *   encode FOLDER TEMPLATE < ROWS
 *
 * FOLDER has a tokenizer and perhaps a chat template; TEMPLATE is auto, plain or another value of
 * --chat-template. ROWS has a row of JSON per line, of any kind. For each a line comes back:
 * {"ids": [...], "counts": [...]}, a flag for each id, or {"error"}. Rows take the way of
 * training: a file of one row is opened as examples. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "data/examples.h"

enum { LONGEST = 100000 };

static hy_dataset_options options = {.seq = LONGEST, .stops_at_bad_row = true};
static hy_encoding encoding = {.options = &options, .workers = 1, .buffer = 1 << 20};

static void put_list(hy_json_writer *w, const char *key, const hy_examples *x, bool is_flags) {
    hy_json_open_array(w, key);
    for (uint64_t i = 0; i < x->count; i++) {
        uint32_t count;
        const int32_t *tokens = hy_examples_get(x, i, &count);
        for (uint32_t k = 0; k < count; k++) {
            hy_json_put_int(w, NULL, is_flags ? tokens[k] < 0 : tokens[k] & ~HY_COUNTS);
        }
    }
    hy_json_close_array(w);
}

static hy_status encode(const char *path, hy_examples *x) {
    hy_file_list list;
    HY_TRY(hy_file_list_find(path, HY_FORMAT_AUTO, &list));
    hy_file_kind kind;
    hy_status status = hy_file_list_kind(path, &list, &kind);
    if (status == HY_OK) status = hy_examples_open(&list, &encoding, x);
    hy_file_list_free(&list);
    return status;
}

static hy_status do_row(const char *path, const char *row, size_t size) {
    hy_examples x;
    hy_text line = {0};
    hy_json_writer w;
    HY_TRY(hy_file_write_atomic(path, row, size));
    hy_status status = encode(path, &x);
    hy_json_begin(&w, &line, false);
    hy_json_open_object(&w, NULL);
    if (status == HY_OK) {
        put_list(&w, "ids", &x, false);
        put_list(&w, "counts", &x, true);
        hy_examples_close(&x);
    } else {
        hy_json_put_string(&w, "error", hy_error_message());
    }
    hy_json_close_object(&w);
    puts(hy_text_string(&line));
    hy_text_free(&line);
    return HY_OK;
}

int main(int argc, char **argv) {
    char path[] = "/tmp/hy-row-XXXXXX.jsonl";
    hy_tokenizer *tokenizer = NULL;
    char *line = NULL;
    size_t room = 0;
    hy_status status = argc == 3 ? hy_tokenizer_open(argv[1], &tokenizer)
                                 : hy_fail(HY_ERR_INPUT, "usage: encode FOLDER TEMPLATE < ROWS");
    if (status == HY_OK) status = hy_chat_kind_parse(argv[2], &options.chat_template);
    if (status == HY_OK) {
        encoding.tokenizer = tokenizer;
        options.vocab = hy_tokenizer_vocab(tokenizer);
        status = hy_chat_template_open(options.chat_template, tokenizer, argv[1], &encoding.chat);
    }
    int file = mkstemps(path, 6);
    if (status == HY_OK && file < 0) status = hy_fail(HY_ERR_IO, "cannot write %s", path);
    for (ssize_t size; status == HY_OK && (size = getline(&line, &room, stdin)) > 0;) {
        status = do_row(path, line, (size_t)size);
    }
    if (status != HY_OK) fprintf(stderr, "%s\n", hy_error_message());
    remove(path);
    free(line);
    hy_chat_template_close(&encoding.chat);
    hy_tokenizer_close(tokenizer);
    return status != HY_OK;
}
