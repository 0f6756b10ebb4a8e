/* llama2c.c: reads the header of a llama2.c file and its tokenizer. See llama2c.h. */
#include "formats/llama2c.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { HEADER_BYTES = 28, LARGEST = 1 << 24, PIECE_MAX = 1 << 16 };
enum { PIECES_BYTES_MAX = 64 << 20 };

static int32_t int32_at(const uint8_t *bytes) {
    uint32_t u = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
                 (uint32_t)bytes[3] << 24;
    int32_t value;
    memcpy(&value, &u, sizeof value);
    return value;
}

static hy_status read_header(hy_llama2c *f, const char *path) {
    uint8_t raw[HEADER_BYTES];
    int32_t *const sizes[] = {&f->width,    &f->mlp_width, &f->layers, &f->heads,
                              &f->kv_heads, &f->vocab,     &f->context};
    HY_FAIL_IF(hy_reader_size(f->reader) < HEADER_BYTES, HY_ERR_INPUT,
               "%s: too short for a llama2.c file", path);
    HY_TRY(hy_reader_get(f->reader, 0, raw, sizeof raw));
    bool is_model = true;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int32_t value = int32_at(raw + 4 * i);
        if (sizes[i] == &f->vocab) f->has_own_head = value < 0;
        *sizes[i] = sizes[i] == &f->vocab && value < 0 && value > INT32_MIN ? -value : value;
        is_model = is_model && *sizes[i] >= 1 && *sizes[i] <= LARGEST;
    }
    is_model = is_model && f->width % f->heads == 0 && f->heads % f->kv_heads == 0 &&
               f->width / f->heads % 2 == 0;
    HY_FAIL_IF(!is_model, HY_ERR_INPUT,
               "%s: its first numbers are not the sizes of a llama2.c model", path);
    return HY_OK;
}

/* Below 2^63: no more than 2^24 x 2^24 numbers of 4 bytes, in at most 2^24 layers only if the file is so
 * long, which the running sum shows first. */
static hy_status place_tensors(hy_llama2c *f, const char *path) {
    uint64_t C = (uint64_t)f->width, F = (uint64_t)f->mlp_width, V = (uint64_t)f->vocab;
    uint64_t D = C / (uint64_t)f->heads, kv = D * (uint64_t)f->kv_heads, L = (uint64_t)f->layers;
    uint64_t turns = (uint64_t)f->context * (D / 2);
    const struct {
        uint64_t elements, layers;
    } parts[HY_L2C_KINDS] = {
        [HY_L2C_TOKENS] = {V * C, 1}, [HY_L2C_NORM1] = {C, L},
        [HY_L2C_WQ] = {C * C, L},     [HY_L2C_WK] = {C * kv, L},
        [HY_L2C_WV] = {C * kv, L},    [HY_L2C_WO] = {C * C, L},
        [HY_L2C_NORM2] = {C, L},      [HY_L2C_GATE] = {F * C, L},
        [HY_L2C_DOWN] = {F * C, L},   [HY_L2C_UP] = {F * C, L},
        [HY_L2C_FINAL_NORM] = {C, 1}, [HY_L2C_COS] = {turns, 1},
        [HY_L2C_SIN] = {turns, 1},    [HY_L2C_HEAD] = {f->has_own_head ? V * C : 0, 1},
    };
    uint64_t size = hy_reader_size(f->reader), at = HEADER_BYTES;
    for (int i = 0; i < HY_L2C_KINDS; i++) {
        uint64_t bytes = 4 * parts[i].elements, all;
        f->offset[i] = at;
        f->layer[i] = bytes;
        HY_FAIL_IF(__builtin_mul_overflow(bytes, parts[i].layers, &all) || all > size - at,
                   HY_ERR_INPUT, "%s: %llu bytes are too few for the model it begins with", path,
                   (unsigned long long)size);
        at += all;
    }
    if (at == size) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%s: %llu bytes, expected %llu for a llama2.c model of its sizes",
                   path, (unsigned long long)size, (unsigned long long)at);
}

hy_status hy_llama2c_open(const char *path, hy_llama2c *out) {
    *out = (hy_llama2c){0};
    HY_TRY(hy_reader_open(path, &out->reader));
    hy_status status = read_header(out, path);
    if (status == HY_OK) status = place_tensors(out, path);
    if (status != HY_OK) hy_llama2c_close(out);
    return status;
}

void hy_llama2c_close(hy_llama2c *file) {
    hy_reader_close(file->reader);
    *file = (hy_llama2c){0};
}

bool hy_llama2c_is_file(const char *path) {
    hy_llama2c file;
    if (hy_llama2c_open(path, &file) != HY_OK) return false;
    hy_llama2c_close(&file);
    return true;
}

/* ---- the tokenizer ----------------------------------------------------------------------------- */

static hy_status add_piece(hy_llama2c_pieces *p, const uint8_t *data, size_t size, size_t *at) {
    int32_t length = size - *at >= 8 ? int32_at(data + *at + 4) : -1;
    HY_FAIL_IF(length < 0 || length > PIECE_MAX || (size_t)length > size - *at - 8, HY_ERR_INPUT,
               "piece %d is cut off or has a wrong length", p->count);
    memcpy(&p->scores[p->count], data + *at, sizeof(float));
    hy_text_add_bytes(&p->bytes, data + *at + 8, (size_t)length);
    p->begin[++p->count] = (uint32_t)p->bytes.size;
    *at += 8 + (size_t)length;
    return HY_OK;
}

static hy_status read_pieces(hy_llama2c_pieces *out, const hy_file_map *map) {
    size_t at = 4, most = map->size / 8; /* each piece has at least that many bytes */
    HY_FAIL_IF(map->size > PIECES_BYTES_MAX, HY_ERR_INPUT,
               "%zu bytes are too many for the pieces of a tokenizer", map->size);
    HY_FAIL_IF(map->size < 4, HY_ERR_INPUT, "%zu bytes are too few", map->size);
    out->begin = calloc(most + 1, sizeof *out->begin);
    out->scores = calloc(most + 1, sizeof *out->scores);
    HY_FAIL_IF(!out->begin || !out->scores, HY_ERR_MEMORY, "no memory for %zu pieces", most);
    while (at < map->size) HY_TRY(add_piece(out, map->data, map->size, &at));
    return hy_text_status(&out->bytes);
}

/* Weights of other programs end in .bin, too: mapped, they are not read in to be refused. */
hy_status hy_llama2c_pieces_read(const char *path, hy_llama2c_pieces *out) {
    hy_file_map map;
    *out = (hy_llama2c_pieces){0};
    HY_TRY(hy_file_map_open(path, &map));
    hy_status status = read_pieces(out, &map);
    hy_file_map_close(&map);
    if (status == HY_OK) return HY_OK;
    hy_llama2c_pieces_free(out);
    return hy_fail_context(status, "%s", path);
}

void hy_llama2c_pieces_free(hy_llama2c_pieces *pieces) {
    hy_text_free(&pieces->bytes);
    free(pieces->begin);
    free(pieces->scores);
    *pieces = (hy_llama2c_pieces){0};
}
