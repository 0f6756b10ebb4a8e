/* tokenizer_charsmap.c: normalises a text as SentencePiece does.
 *
 * The longest sequence of characters that the map knows becomes another text; user-defined tokens
 * and all other characters stay as they are. Then blanks become U+2581. The map is a double array of
 * Darts, from a file that may be damaged, so every access is checked. */
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

static const char blank[] = HY_BLANK;
#define BLANK_SIZE 3

/* ---- reading --------------------------------------------------------------------------------- */

static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *text, size_t size, uint8_t *out) {
    for (size_t i = 0; i < size; i += 2) {
        int high = digit_of(text[i]), low = digit_of(text[i + 1]);
        if (high < 0 || low < 0) return false;
        out[i / 2] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* The content: uint32 bytes of the trie, the trie, the texts. */
static hy_status read_map(const hy_tokenizer *t, const uint8_t *data, size_t size,
                          hy_charsmap *map) {
    uint32_t bytes = 0;
    if (size > 4) memcpy(&bytes, data, 4);
    HY_FAIL_IF(size <= 4 || bytes % 4 || bytes == 0 || bytes > size - 4, HY_ERR_INPUT,
               "%s: precompiled_charsmap is damaged", t->name);
    map->count = bytes / 4;
    map->texts_size = size - 4 - bytes;
    map->units = malloc(bytes);
    map->texts = malloc(map->texts_size + 1);
    if (!map->units || !map->texts) return hy_fail(HY_ERR_MEMORY, "not enough memory for a map");
    memcpy(map->units, data + 4, bytes);
    memcpy(map->texts, data + 4 + bytes, map->texts_size);
    map->texts[map->texts_size] = 0;
    return HY_OK;
}

hy_status hy_charsmap_read(hy_tokenizer *t, const hy_json_node *node, hy_charsmap **out) {
    const char *hex = "";
    size_t size = 0;
    hy_charsmap *map = *out = calloc(1, sizeof *map);
    if (!map) return hy_fail(HY_ERR_MEMORY, "not enough memory for a normalizer");
    HY_TRY(hy_tokenizer_read_bool(t, node, "add_dummy_prefix", true, &map->has_prefix));
    HY_TRY(hy_tokenizer_read_bool(t, node, "remove_extra_whitespaces", true, &map->collapses));
    hy_json_as_string(hy_json_get(node, "precompiled_charsmap"), &hex, &size);
    if (size == 0) return HY_OK;
    uint8_t *data = malloc(size / 2 + 1);
    if (!data) return hy_fail(HY_ERR_MEMORY, "not enough memory for a normalizer");
    hy_status status = size % 2 == 0 && read_hex(hex, size, data)
                           ? read_map(t, data, size / 2, map)
                           : hy_fail(HY_ERR_INPUT, "%s: precompiled_charsmap is damaged", t->name);
    free(data);
    return status;
}

void hy_charsmap_free(hy_charsmap *map) {
    if (!map) return;
    free(map->units);
    free(map->texts);
    free(map);
}

/* ---- applying -------------------------------------------------------------------------------- */

typedef struct reader {
    const hy_charsmap *map;
    hy_workspace *space;
    const char *text;
    size_t size, at;
    hy_added_match kept;       /* the next token that stays as it is */
    const char *piece;         /* what the text at `at` becomes */
    size_t piece_size, length; /* length: bytes of the text */
} reader;

/* The bytes of the longest entry that begins the text; 0: none. */
static size_t find_entry(const hy_charsmap *map, const char *text, size_t size, size_t *value) {
    size_t longest = 0, at = 0;
    if (map->count == 0) return 0;
    for (size_t i = 0; i <= size; i++) {
        uint32_t unit = map->units[at];
        if (i > 0 && (unit & 0x800000FFu) != (uint8_t)text[i - 1]) break;
        at ^= (size_t)(unit >> 10) << ((unit & 512) >> 6);
        if (at >= map->count) break;
        if (i > 0 && (unit & 256)) { /* a leaf follows */
            longest = i;
            *value = map->units[at] & 0x7FFFFFFF;
        }
        if (i < size) at ^= (uint8_t)text[i];
        if (at >= map->count) break;
    }
    return longest;
}

static hy_status read_prefix(reader *r) {
    const char *text = r->text + r->at;
    size_t left = r->size - r->at, value = 0;
    uint32_t code;
    if (r->map->kept && r->kept.token && r->kept.begin < r->at) {
        HY_TRY(hy_added_find(r->map->kept, &r->space->search[1], r->text, r->size, r->at, false,
                             &r->kept));
    }
    r->piece = text;
    if (r->kept.token && r->kept.begin == r->at) {
        r->piece_size = r->length = r->kept.end - r->kept.begin;
        return HY_OK;
    }
    r->length = find_entry(r->map, text, left, &value);
    if (r->length == 0) {
        r->piece_size = r->length = hy_unicode_next(text, left, &code);
        return HY_OK;
    }
    HY_FAIL_IF(value > r->map->texts_size, HY_ERR_INPUT, "%s: precompiled_charsmap is damaged",
               r->space->left.name);
    r->piece = r->map->texts + value;
    r->piece_size = strlen(r->piece);
    return HY_OK;
}

static bool is_blank(const reader *r) { return r->piece_size == 1 && r->piece[0] == ' '; }

/* Adds a piece without its first blanks if a blank comes before it. */
static void add_piece(reader *r, hy_text *to, bool *is_after_blank) {
    const char *piece = r->piece;
    size_t size = r->piece_size;
    while (*is_after_blank && size > 0 && *piece == ' ') {
        piece++;
        size--;
    }
    if (size == 0) return;
    hy_replacement by = {" ", (char *)blank, 1, BLANK_SIZE};
    hy_add_replaced(to, piece, size, &by, r->space->left.bytes);
    *is_after_blank = r->map->collapses && piece[size - 1] == ' ';
}

hy_status hy_charsmap_apply(const hy_charsmap *map, hy_workspace *space, const char *text,
                            size_t size, hy_text *to) {
    reader r = {.map = map, .space = space, .text = text, .size = size};
    bool is_after_blank = map->collapses;
    space->search[1].begin = space->search[1].end = 0;
    if (map->kept) {
        HY_TRY(hy_added_find(map->kept, &space->search[1], text, size, 0, false, &r.kept));
    }
    do {
        HY_TRY(read_prefix(&r));
    } while (map->collapses && is_blank(&r) && (r.at += r.length) < size);
    if (r.at >= size) return HY_OK;
    if (map->has_prefix) hy_text_add_bytes(to, blank, BLANK_SIZE);
    for (; r.at < size && to->size <= space->left.bytes; r.at += r.length) {
        HY_TRY(read_prefix(&r));
        add_piece(&r, to, &is_after_blank);
    }
    while (map->collapses && to->size >= BLANK_SIZE && !to->has_failed &&
           memcmp(to->data + to->size - BLANK_SIZE, blank, BLANK_SIZE) == 0) {
        to->size -= BLANK_SIZE;
        to->data[to->size] = 0;
    }
    return HY_OK;
}
