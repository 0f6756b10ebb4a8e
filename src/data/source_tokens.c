/* source_tokens.c: text files as tokens of a tokenizer.
 *
 * The text is encoded once, on opening, by several threads into an unnamed file, and then read like
 * a shard. Special tokens spelled in the text ("<|endoftext|>") become those tokens.
 *
 * The threads need the text in pieces. It is cut where a line begins with a letter or sign; a
 * tokenizer that splits text into words never joins text across such a place. A tokenizer that puts
 * a mark before every text (as that of Llama 2 does) adds one at every cut. Its pieces are large
 * and their size does not depend on the threads, so the mark is rare and the tokens are the same on
 * every machine. */
#include <ctype.h>
#include <string.h>

#include "base/error.h"
#include "base/in_order.h"
#include "data/source.h"

#define PIECE_BYTES ((size_t)1 << 20)
#define LARGE_PIECE_BYTES ((size_t)4 << 20)

typedef struct reading {
    const hy_encoding *encoding;
    hy_spool *spool;
    hy_unknown_text *unknown;
    const char *path;
    const char *begin, *at, *end;
    size_t piece;
} reading;

typedef struct slot {
    const char *text;
    size_t size;
    double share;
    hy_ids ids;
} slot;

static bool next_piece(void *context, void *place) {
    reading *r = context;
    slot *s = place;
    if (r->at == r->end) return false;
    s->text = r->at;
    /* A piece ends at a line end that no blank follows. */
    r->at = (size_t)(r->end - r->at) <= r->piece ? r->end : r->at + r->piece;
    while (r->at < r->end && (r->at[-1] != '\n' || isspace((unsigned char)*r->at))) r->at++;
    s->size = (size_t)(r->at - s->text);
    s->share = (double)(r->at - r->begin) / (double)(r->end - r->begin);
    return true;
}

static hy_status encode_piece(void *context, void *place) {
    const reading *r = context;
    slot *s = place;
    s->ids.count = 0;
    int flags = s->text == r->begin ? 0 : HY_TOKENS_INSIDE;
    HY_TRY(hy_tokenizer_encode(r->encoding->tokenizer, s->text, s->size, flags, &s->ids));
    for (size_t i = 0; i < s->ids.count; i++) {
        HY_FAIL_IF(s->ids.data[i] >= r->encoding->options->vocab, HY_ERR_INPUT,
                   "%s has the token %d, but the model's vocabulary has the ids 0 to %d; check "
                   "that the tokenizer belongs to the model",
                   r->path, s->ids.data[i], r->encoding->options->vocab - 1);
    }
    return HY_OK;
}

static hy_status write_piece(void *context, void *place, bool is_caller) {
    const reading *r = context;
    slot *s = place;
    const hy_dataset_options *o = r->encoding->options;
    HY_TRY(hy_spool_put(r->spool, s->ids.data, s->ids.count * sizeof *s->ids.data));
    hy_unknown_text_move(r->unknown, &s->ids.unknown);
    if (is_caller && o->on_progress) o->on_progress(o->user, "reading text", s->share);
    return HY_OK;
}

/* Checks whether two lines encoded separately give the same tokens as both together. */
static hy_status find_piece_size(reading *r) {
    const hy_tokenizer *t = r->encoding->tokenizer;
    hy_ids whole = {0}, parts = {0};
    hy_status status = hy_tokenizer_encode(t, "a\nb", 3, 0, &whole);
    if (status == HY_OK) status = hy_tokenizer_encode(t, "a\n", 2, 0, &parts);
    if (status == HY_OK) status = hy_tokenizer_encode(t, "b", 1, HY_TOKENS_INSIDE, &parts);
    bool is_same = whole.count == parts.count &&
                   memcmp(whole.data, parts.data, whole.count * sizeof *whole.data) == 0;
    size_t share = r->encoding->buffer / (size_t)r->encoding->workers;
    r->piece = is_same ? (share < PIECE_BYTES ? share + 1 : PIECE_BYTES) : LARGE_PIECE_BYTES;
    hy_ids_free(&whole);
    hy_ids_free(&parts);
    return status;
}

static hy_status encode_file(const hy_encoding *e, const hy_input_file *file, hy_spool *spool,
                             hy_unknown_text *unknown) {
    hy_input input;
    slot slots[HY_MOST_WORKERS] = {0};
    HY_TRY(hy_input_open(file, &input));
    const char *text = input.data;
    reading r = {.encoding = e,
                 .spool = spool,
                 .unknown = unknown,
                 .path = file->path,
                 .begin = text,
                 .at = text};
    r.end = text ? text + input.size : text;
    hy_in_order job = {.context = &r,
                       .next = next_piece,
                       .work = encode_piece,
                       .done = write_piece,
                       .slots = slots,
                       .slot_size = sizeof *slots,
                       .workers = e->workers};
    hy_status status = find_piece_size(&r);
    if (status == HY_OK && input.size > 0) status = hy_in_order_run(&job);
    for (int i = 0; i < HY_MOST_WORKERS; i++) hy_ids_free(&slots[i].ids);
    hy_input_close(&input);
    return status;
}

hy_status hy_source_add_encoded(hy_source *source, const hy_file_list *list,
                                const hy_encoding *encoding) {
    hy_spool spool;
    HY_TRY(hy_spool_open(&spool));
    hy_status status = HY_OK;
    for (size_t i = 0; status == HY_OK && i < list->count; i++) {
        /* A file is a document: if the tokenizer has an end token, it separates two files. */
        int32_t eos = encoding->chat.tokens.eos;
        bool has_end = i > 0 && eos >= 0 && eos < encoding->options->vocab;
        if (has_end) status = hy_spool_put(&spool, &eos, sizeof eos);
        if (status == HY_OK)
            status = encode_file(encoding, &list->files[i], &spool, &source->unknown);
    }
    if (status == HY_OK) status = hy_spool_map(&spool);
    if (status == HY_OK && spool.size > 0) {
        hy_source_piece piece = {
            .count = spool.size / sizeof(int32_t), .ids = spool.data, .spool = spool};
        status = hy_source_add_piece(source, piece);
        if (status == HY_OK) return HY_OK; /* owned by the source now */
    }
    hy_spool_close(&spool);
    return status;
}
