/* tokenizer_llama2c.c: reads the tokenizer of llama2.c. See tokenizer_llama2c.h.
 *
 * The content of tokenizer.bin: int32 longest piece; for each id fp32 score, int32 length,
 * bytes. */
#include "tokenizer/tokenizer_llama2c.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "tokenizer/tokenizer_score_merges.h"

enum { UNKNOWN = 0, BOS = 1, EOS = 2, SPECIALS = 3 };
static const char *const specials[SPECIALS] = {"<unk>", "<s>", "</s>"};

enum { PIECE_MAX = 1 << 16, PIECES_BYTES_MAX = 64 << 20 };

/* ---- pieces ---------------------------------------------------------------------------------- */

typedef struct piece_list {
    hy_text texts; /* each zero-terminated */
    hy_scored_piece *by_id;
    hy_scored_piece **merged; /* pieces that take part in merges */
    int32_t count, merged_count;
} piece_list;

static void free_pieces(piece_list *list) {
    hy_text_free(&list->texts);
    free(list->by_id);
    free(list->merged);
}

static bool is_byte(const char *text) { return strlen(text) == 6 && strncmp(text, "<0x", 3) == 0; }

static hy_status add_piece(piece_list *list, const uint8_t *data, size_t size, size_t *at) {
    int32_t length = -1;
    if (size - *at >= 8) memcpy(&length, data + *at + 4, sizeof length);
    HY_FAIL_IF(length < 0 || length > PIECE_MAX || (size_t)length > size - *at - 8, HY_ERR_INPUT,
               "piece %d is truncated or has a wrong length", list->count);
    hy_scored_piece *p = &list->by_id[list->count];
    *p = (hy_scored_piece){.begin = list->texts.size, .id = list->count++};
    memcpy(&p->score, data + *at, sizeof p->score);
    for (*at += 8; length > 0; length--, ++*at) {
        bool is_space = data[*at] == ' ';
        hy_text_add_bytes(&list->texts, is_space ? (const void *)HY_BLANK : data + *at,
                          is_space ? strlen(HY_BLANK) : 1);
    }
    hy_text_add_bytes(&list->texts, "", 1);
    return HY_OK;
}

static hy_status add_pieces(piece_list *list, const hy_file_map *map) {
    size_t at = 4, most = map->size / 8; /* each piece has at least 8 bytes */
    HY_FAIL_IF(map->size > PIECES_BYTES_MAX, HY_ERR_INPUT, "%zu bytes are too many for a tokenizer",
               map->size);
    HY_FAIL_IF(map->size < 4, HY_ERR_INPUT, "%zu bytes are too few for a tokenizer", map->size);
    list->by_id = calloc(most + 1, sizeof *list->by_id);
    list->merged = calloc(most + 1, sizeof *list->merged);
    HY_FAIL_IF(!list->by_id || !list->merged, HY_ERR_MEMORY, "not enough memory for %zu pieces",
               most);
    while (at < map->size) HY_TRY(add_piece(list, map->data, map->size, &at));
    HY_TRY(hy_text_status(&list->texts));
    for (hy_scored_piece *p = list->by_id; p < list->by_id + list->count; p++) {
        p->text = list->texts.data + p->begin;
        if (p->id >= SPECIALS && !is_byte(p->text)) list->merged[list->merged_count++] = p;
    }
    return HY_OK;
}

/* Reads all pieces; the file must end exactly after the last one. Weights of other programs also
 * end in .bin, so the file is mapped: a large one is rejected without reading it all. */
static hy_status read_pieces(const char *path, piece_list *list) {
    hy_file_map map;
    *list = (piece_list){0};
    HY_TRY(hy_file_map_open(path, &map));
    hy_status status = add_pieces(list, &map);
    hy_file_map_close(&map);
    if (status == HY_OK) return HY_OK;
    free_pieces(list);
    return hy_fail_context(status, "%s", path);
}

/* ---- the text -------------------------------------------------------------------------------- */

static hy_status put_model(piece_list *list, hy_json_writer *w) {
    hy_json_open_object(w, "model");
    hy_json_put_string(w, "type", "BPE");
    hy_json_put_string(w, "unk_token", specials[UNKNOWN]);
    hy_json_put_bool(w, "fuse_unk", true);
    hy_json_put_bool(w, "byte_fallback", true);
    hy_json_open_object(w, "vocab");
    for (int32_t i = 0; i < list->count; i++) {
        hy_json_put_int(w, i < SPECIALS ? specials[i] : list->by_id[i].text, i);
    }
    hy_json_close_object(w);
    hy_status status = hy_put_score_merges(list->merged, list->merged_count, w);
    hy_json_close_object(w);
    return status;
}

/* Steps of the tokenizer: a space before the text, spaces as pieces spell them, BOS before a text,
 * and the decoder. */
static const char frame[] =
    "\"version\": \"1.0\", \"truncation\": null, \"padding\": null, "
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": ["
    "{\"type\": \"Prepend\", \"prepend\": \"" HY_BLANK "\"}, "
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" HY_BLANK "\"}]}, "
    "\"pre_tokenizer\": null, "
    "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
    "{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, "
    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], "
    "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [1], \"tokens\": [\"<s>\"]}}}, "
    "\"decoder\": {\"type\": \"Sequence\", \"decoders\": ["
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \"" HY_BLANK "\"}, \"content\": \" \"}, "
    "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, "
    "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}";

static hy_status write_json(piece_list *list, hy_text *out) {
    hy_json_writer w;
    hy_json_begin(&w, out, false);
    hy_json_open_object(&w, NULL);
    hy_text_add(out, frame); /* the members before the vocabulary */
    hy_text_add(out, ", ");
    static const char *const off[] = {"single_word", "lstrip", "rstrip", "normalized"};
    hy_json_open_array(&w, "added_tokens");
    for (int i = 0; i < SPECIALS; i++) {
        hy_json_open_object(&w, NULL);
        hy_json_put_int(&w, "id", i);
        hy_json_put_string(&w, "content", specials[i]);
        for (size_t k = 0; k < sizeof off / sizeof off[0]; k++) hy_json_put_bool(&w, off[k], false);
        hy_json_put_bool(&w, "special", true);
        hy_json_close_object(&w);
    }
    hy_json_close_array(&w);
    hy_status status = put_model(list, &w);
    hy_json_close_object(&w);
    return status == HY_OK ? hy_text_status(out) : status;
}

/* ---- opening and finding --------------------------------------------------------------------- */

bool hy_llama2c_tokenizer_is_named(const char *path) { return hy_has_ending(path, ".bin"); }

hy_status hy_llama2c_tokenizer_json(const char *path, hy_text *out) {
    piece_list list;
    HY_TRY(read_pieces(path, &list));
    hy_status status =
        list.count > SPECIALS
            ? write_json(&list, out)
            : hy_fail(HY_ERR_INPUT, "%s: %d pieces are too few for a tokenizer", path, list.count);
    free_pieces(&list);
    return status;
}

hy_status hy_llama2c_tokenizer_open(const char *path, hy_tokenizer **out) {
    hy_text json = {0};
    *out = NULL;
    hy_status status = hy_llama2c_tokenizer_json(path, &json);
    if (status == HY_OK) status = hy_tokenizer_parse(json.data, json.size, path, out);
    hy_text_free(&json);
    return status;
}

hy_status hy_llama2c_tokenizer_find(const char *folder, int32_t vocab, char *path, size_t size) {
    char **names;
    size_t count;
    bool is_found = false;
    hy_status status = HY_OK;
    HY_TRY(hy_dir_list(folder, &names, &count));
    for (size_t i = 0; i < count && status == HY_OK && !is_found; i++) {
        if (!hy_llama2c_tokenizer_is_named(names[i])) continue;
        status = hy_path_join(path, size, folder, names[i]);
        /* Weights of a model have the same ending, but no pieces up to the exact end. */
        piece_list list;
        if (status != HY_OK || read_pieces(path, &list) != HY_OK) continue;
        is_found = list.count == vocab && vocab > SPECIALS;
        free_pieces(&list);
    }
    hy_dir_list_free(names, count);
    if (!is_found) path[0] = 0;
    return status;
}
