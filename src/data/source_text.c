/* source_text.c: text files as tokens, one per byte.
 *
 * Large files are mapped, so a text of any size costs no memory. Small ones next to each other are
 * gathered into one block: a folder of a hundred thousand notes would otherwise use up the
 * mappings a process may have. Where a file does not end its last line, a newline stands between
 * it and the next. */
#include "base/error.h"
#include "base/text.h"
#include "data/source.h"

#define SMALL_FILE (256 * 1024) /* bytes up to which a file is read, not mapped */
#define BYTE_VALUES 256

/* Text on its way into a source: small files wait in `gathered` until a large one comes. */
typedef struct gatherer {
    hy_source *source;
    hy_text gathered;
    bool wants_newline; /* what came last did not end its line */
} gatherer;

static hy_status finish_block(gatherer *g) {
    if (g->gathered.size == 0) return hy_text_status(&g->gathered);
    HY_TRY(hy_text_status(&g->gathered));
    hy_text block = g->gathered;
    g->gathered = (hy_text){0};
    return hy_source_add_block(g->source, (uint8_t *)block.data, block.size);
}

static void remember_end(gatherer *g, const hy_file_map *map) {
    g->wants_newline = map->data[map->size - 1] != '\n';
}

/* Takes over the map, also when it fails. */
static hy_status add_large(gatherer *g, hy_file_map *map) {
    hy_source_piece piece = {.count = map->size, .bytes = map->data, .map = *map};
    remember_end(g, map);
    hy_status status = finish_block(g);
    if (status == HY_OK) status = hy_source_add_piece(g->source, piece);
    if (status != HY_OK) hy_file_map_close(map);
    return status;
}

static hy_status add_small(gatherer *g, hy_file_map *map) {
    hy_text_add_bytes(&g->gathered, map->data, map->size);
    remember_end(g, map);
    hy_file_map_close(map);
    return hy_text_status(&g->gathered);
}

static hy_status add_file(gatherer *g, const char *path, bool is_alone) {
    hy_file_map map;
    HY_TRY(hy_file_map_open(path, &map));
    if (map.size == 0) return HY_OK; /* the source as a whole may not be empty; a file may */
    if (g->wants_newline) hy_text_add(&g->gathered, "\n");
    return is_alone || map.size > SMALL_FILE ? add_large(g, &map) : add_small(g, &map);
}

hy_status hy_source_add_texts(hy_source *source, const hy_file_list *list, int32_t vocab) {
    HY_FAIL_IF(vocab < BYTE_VALUES, HY_ERR_INPUT,
               "%s is text, read as bytes 0 to %d, but the model's vocabulary has only %d ids",
               list->paths[0], BYTE_VALUES - 1, vocab);
    gatherer g = {.source = source};
    hy_status status = HY_OK;
    for (size_t i = 0; status == HY_OK && i < list->count; i++) {
        status = add_file(&g, list->paths[i], list->count == 1);
    }
    if (status == HY_OK) status = finish_block(&g);
    hy_text_free(&g.gathered);
    return status;
}
