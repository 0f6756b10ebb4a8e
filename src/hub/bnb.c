/* bnb.c: reads the tensors of a matrix quantised by bitsandbytes. See bnb.h.
 *
 * hf_parts.c opens such matrices, hf_load.c and part_read.c read them. Everything is checked
 * against the model before anything is read. */
#include "hub/bnb.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "hub/hf_load.h"
#include "kernels/cpu/rows.h"
#include "kernels/int8.h"
#include "kernels/nf4.h"

#define MOST_STATE 4096 /* bytes of JSON; real files have about 170 */
#define WEIGHT ".weight"

/* Those of int8 belong to the module: they replace ".weight". */
static const char *const endings[] = {HY_BNB_SCB,   HY_BNB_FORMAT,   HY_BNB_ABSMAX,
                                      HY_BNB_MAP,   HY_BNB_NESTED,   HY_BNB_NESTED_MAP,
                                      HY_BNB_STATE, HY_BNB_STATE_FP4};
enum { ENDINGS = sizeof endings / sizeof endings[0], OF_MODULE = 2 };

/* ---- finding --------------------------------------------------------------------------------- */

bool hy_bnb_owner(const char *name, char owner[HY_BNB_NAME_MAX]) {
    for (int i = 0; i < ENDINGS; i++) { /* .nested_absmax does not end in .absmax */
        if (!hy_has_ending(name, endings[i])) continue;
        snprintf(owner, HY_BNB_NAME_MAX, "%.*s%s", (int)(strlen(name) - strlen(endings[i])), name,
                 i < OF_MODULE ? WEIGHT : "");
        return true;
    }
    return false;
}

void hy_bnb_name(const char *matrix, const char *ending, char out[HY_BNB_NAME_MAX]) {
    size_t length = strlen(matrix);
    for (int i = 0; i < OF_MODULE; i++) {
        if (strcmp(ending, endings[i]) == 0 && hy_has_ending(matrix, WEIGHT))
            length -= strlen(WEIGHT);
    }
    snprintf(out, HY_BNB_NAME_MAX, "%.*s%s", (int)length, matrix, ending);
}

static hy_hf_found find(const hy_hf_tensors *tensors, const char *name, const char *ending) {
    char full[HY_BNB_NAME_MAX];
    hy_bnb_name(name, ending, full);
    return hy_hf_tensors_find(tensors, full);
}

bool hy_bnb_is_coded(const hy_hf_tensors *tensors, const char *name) {
    for (int i = 0; i < ENDINGS; i++) {
        if (find(tensors, name, endings[i]).entry) return true;
    }
    hy_hf_found found = hy_hf_tensors_find(tensors, name);
    return found.entry && (found.entry->dtype == HY_U8 || found.entry->dtype == HY_I8);
}

/* The tensor with the name of `codes` and this ending: `count` numbers of a type. */
static hy_status find_beside(const hy_hf_tensors *tensors, hy_hf_found codes, const char *ending,
                             hy_dtype dtype, int64_t count, hy_hf_found *out) {
    const char *name = codes.entry->name, *path = hy_safetensors_path(codes.file);
    char full[HY_BNB_NAME_MAX];
    hy_bnb_name(name, ending, full);
    *out = hy_hf_tensors_find(tensors, full);
    HY_FAIL_IF(!out->entry, HY_ERR_INPUT, "%s: tensor \"%s\" is quantised, but \"%s\" is missing",
               path, name, full);
    const hy_safetensors_entry *e = out->entry;
    HY_FAIL_IF(e->dtype != dtype || e->bytes != hy_dtype_bytes(dtype, count), HY_ERR_INPUT,
               "%s: tensor \"%s\" has %llu bytes of %s; expected %lld numbers of %s",
               hy_safetensors_path(out->file), e->name, (unsigned long long)e->bytes,
               hy_safetensors_type(e), (long long)count, hy_dtype_name(dtype));
    return HY_OK;
}

/* ---- the state ------------------------------------------------------------------------------- */

#define MOST_BLOCK 4096         /* the largest block of bitsandbytes */
#define MOST_LENGTH (1LL << 31) /* of a side, so that products fit 64 bits */

/* Scales that are quantised themselves, with one common offset. */
static hy_status read_nested(const hy_json *json, const char *name, hy_bnb_state *out) {
    const hy_json_node *root = hy_json_root(json);
    int64_t block;
    double offset;
    out->is_nested = hy_json_type_of(hy_json_get(root, "nested_blocksize")) != HY_JSON_NULL;
    if (!out->is_nested) return HY_OK;
    HY_TRY(hy_json_int(json, root, "nested_blocksize", &block));
    HY_FAIL_IF(block != HY_NF4_NESTED, HY_ERR_INPUT,
               "%s: \"nested_blocksize\" %lld is not supported; supported: %d", name,
               (long long)block, HY_NF4_NESTED);
    HY_TRY(hy_json_double(json, root, "nested_offset", &offset));
    out->offset = (float)offset;
    HY_FAIL_IF(!isfinite(out->offset), HY_ERR_INPUT,
               "%s: \"nested_offset\" %g is not a finite fp32 number", name, offset);
    return HY_OK;
}

static hy_status read_state(const hy_json *json, const char *name, hy_bnb_state *out) {
    const hy_json_node *root = hy_json_root(json), *shape = hy_json_get(root, "shape");
    const hy_json_node *rows = hy_json_first(shape), *cols = rows ? hy_json_next(rows) : NULL;
    const char *type, *dtype;
    int64_t block;
    HY_TRY(hy_json_string(json, root, "quant_type", &type, NULL));
    HY_FAIL_IF(strcmp(type, "nf4") != 0, HY_ERR_INPUT,
               "%s: \"quant_type\" %.40s is not supported; supported: nf4", name, type);
    HY_TRY(hy_json_int(json, root, "blocksize", &block));
    HY_FAIL_IF(block < HY_NF4_BLOCK || block > MOST_BLOCK || block % HY_NF4_BLOCK != 0,
               HY_ERR_INPUT,
               "%s: \"blocksize\" %lld is not supported; supported: multiples of %d up to %d", name,
               (long long)block, HY_NF4_BLOCK, MOST_BLOCK);
    out->repeat = (int32_t)(block / HY_NF4_BLOCK);
    bool is_matrix = hy_json_type_of(shape) == HY_JSON_ARRAY && hy_json_size(shape) == 2 &&
                     hy_json_as_int(rows, &out->rows) && hy_json_as_int(cols, &out->cols);
    HY_FAIL_IF(!is_matrix || out->rows < 1 || out->cols < 1 || out->rows >= MOST_LENGTH ||
                   out->cols >= MOST_LENGTH,
               HY_ERR_INPUT, "%s: \"shape\" is not the shape of a matrix", name);
    HY_TRY(hy_json_string(json, root, "dtype", &dtype, NULL));
    HY_FAIL_IF(!hy_hf_dtype_named(dtype, &out->dtype), HY_ERR_INPUT,
               "%s: \"dtype\" %.40s is not supported; supported: float32, bfloat16, float16", name,
               dtype);
    return read_nested(json, name, out);
}

hy_status hy_bnb_state_parse(const char *text, size_t size, const char *name, hy_bnb_state *out) {
    hy_json *json;
    *out = (hy_bnb_state){0};
    HY_TRY(hy_json_parse(text, size, name, &json));
    bool is_object = hy_json_type_of(hy_json_root(json)) == HY_JSON_OBJECT;
    hy_status status = is_object ? read_state(json, name, out)
                                 : hy_fail(HY_ERR_INPUT, "%s is not a JSON object", name);
    hy_json_free(json);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int64_t blocks_of(const hy_bnb_state *s) { /* blocks of bitsandbytes */
    int64_t block = (int64_t)s->repeat * HY_NF4_BLOCK;
    return (s->rows * s->cols + block - 1) / block;
}

static hy_status open_state(const hy_hf_tensors *tensors, hy_bnb_matrix *m) {
    const char *name = m->codes.entry->name, *path = hy_safetensors_path(m->codes.file);
    char text[MOST_STATE], where[1536];
    HY_FAIL_IF(find(tensors, name, HY_BNB_STATE_FP4).entry, HY_ERR_INPUT,
               "%s: tensor \"%s\" is quantised as fp4; supported: nf4", path, name);
    hy_hf_found state = find(tensors, name, HY_BNB_STATE);
    HY_FAIL_IF(!state.entry, HY_ERR_INPUT,
               "%s: tensor \"%s\" is quantised, but \"%s" HY_BNB_STATE "\" is missing", path, name,
               name);
    HY_FAIL_IF(state.entry->dtype != HY_U8 || state.entry->bytes > sizeof text, HY_ERR_INPUT,
               "%s: tensor \"%s\" is not a text of at most %d bytes",
               hy_safetensors_path(state.file), state.entry->name, MOST_STATE);
    HY_TRY(hy_safetensors_read(state.file, state.entry, 0, text, state.entry->bytes));
    snprintf(where, sizeof where, "%s: tensor \"%s\"", hy_safetensors_path(state.file),
             state.entry->name);
    return hy_bnb_state_parse(text, state.entry->bytes, where, &m->state);
}

static hy_status open_nested(const hy_hf_tensors *tensors, hy_bnb_matrix *m) {
    hy_hf_found map;
    int64_t nested = (blocks_of(&m->state) + HY_NF4_NESTED - 1) / HY_NF4_NESTED;
    HY_TRY(find_beside(tensors, m->codes, HY_BNB_NESTED, HY_F32, nested, &m->nested));
    HY_TRY(find_beside(tensors, m->codes, HY_BNB_NESTED_MAP, HY_F32, 256, &map));
    HY_TRY(hy_safetensors_read(map.file, map.entry, 0, m->map, sizeof m->map));
    m->has_our_map = true;
    for (int i = 0; i < 256; i++) {
        m->has_our_map &= m->map[i] == hy_nf4_map((uint8_t)i);
        HY_FAIL_IF(!isfinite(m->map[i]), HY_ERR_INPUT, "%s: tensor \"%s\": number %d is not finite",
                   hy_safetensors_path(map.file), map.entry->name, i);
    }
    return HY_OK;
}

/* Int8 codes and the largest magnitude of each row. */
static hy_status open_int8(const hy_hf_tensors *tensors, int64_t rows, int64_t cols,
                           hy_bnb_matrix *m) {
    const hy_safetensors_entry *e = m->codes.entry;
    const char *path = hy_safetensors_path(m->codes.file);
    bool is_matrix = e->ndim == 2 && e->shape[0] == rows && e->shape[1] == cols;
    HY_FAIL_IF(e->dtype != HY_I8 || !is_matrix, HY_ERR_INPUT,
               "%s: tensor \"%s\" is %s %s; expected int8 (%lld, %lld)", path, e->name,
               hy_safetensors_type(e), hy_dims_to_text(e->shape, e->ndim).text, (long long)rows,
               (long long)cols);
    uint8_t format = 0; /* old files have none */
    hy_hf_found found = find(tensors, e->name, HY_BNB_FORMAT);
    if (found.entry) {
        HY_TRY(find_beside(tensors, m->codes, HY_BNB_FORMAT, HY_U8, 1, &found));
        HY_TRY(hy_safetensors_read(found.file, found.entry, 0, &format, 1));
    }
    HY_FAIL_IF(format != 0, HY_ERR_INPUT,
               "%s: tensor \"%s\" is %d, an order of int8 codes that is not supported; supported: "
               "0 (row by row)",
               path, found.entry->name, format);
    m->type = HY_I8;
    m->state = (hy_bnb_state){.rows = rows, .cols = cols, .dtype = HY_F32};
    return find_beside(tensors, m->codes, HY_BNB_SCB, HY_F32, rows, &m->absmax);
}

hy_status hy_bnb_open(const hy_hf_tensors *tensors, hy_hf_found codes, int64_t rows, int64_t cols,
                      hy_bnb_matrix *m) {
    const hy_bnb_state *s = &m->state;
    *m = (hy_bnb_matrix){.type = HY_NF4, .codes = codes};
    if (find(tensors, codes.entry->name, HY_BNB_SCB).entry)
        return open_int8(tensors, rows, cols, m);
    HY_TRY(open_state(tensors, m));
    const char *name = codes.entry->name, *path = hy_safetensors_path(codes.file);
    HY_FAIL_IF(s->rows != rows || s->cols != cols, HY_ERR_INPUT,
               "%s: tensor \"%s\" has shape (%lld, %lld) in its quant_state, but (%lld, %lld) in "
               "the model",
               path, name, (long long)s->rows, (long long)s->cols, (long long)rows,
               (long long)cols);
    HY_FAIL_IF(codes.entry->bytes != hy_dtype_bytes(HY_NF4, rows * cols), HY_ERR_INPUT,
               "%s: tensor \"%s\" has %llu bytes; the codes of a (%lld, %lld) matrix need %llu",
               path, name, (unsigned long long)codes.entry->bytes, (long long)rows, (long long)cols,
               (unsigned long long)hy_dtype_bytes(HY_NF4, rows * cols));
    static const float ours[16] = {HY_NF4_LEVELS};
    float theirs[16];
    hy_hf_found levels;
    HY_TRY(find_beside(tensors, codes, HY_BNB_MAP, HY_F32, 16, &levels));
    HY_TRY(hy_safetensors_read(levels.file, levels.entry, 0, theirs, sizeof theirs));
    HY_FAIL_IF(memcmp(ours, theirs, sizeof ours) != 0, HY_ERR_INPUT,
               "%s: tensor \"%s\" does not contain the levels of nf4",
               hy_safetensors_path(levels.file), levels.entry->name);
    hy_dtype scales = s->is_nested ? HY_U8 : HY_F32;
    HY_TRY(find_beside(tensors, codes, HY_BNB_ABSMAX, scales, blocks_of(s), &m->absmax));
    return s->is_nested ? open_nested(tensors, m) : HY_OK;
}

/* ---- scales ---------------------------------------------------------------------------------- */

static hy_status read_floats(hy_hf_found from, int64_t first, int64_t count, float *out) {
    HY_TRY(hy_safetensors_read(from.file, from.entry, (uint64_t)first * sizeof *out, out,
                               (uint64_t)count * sizeof *out));
    for (int64_t i = 0; i < count; i++) {
        HY_FAIL_IF(!isfinite(out[i]), HY_ERR_INPUT, "%s: tensor \"%s\": number %lld is not finite",
                   hy_safetensors_path(from.file), from.entry->name, (long long)(first + i));
    }
    return HY_OK;
}

#define SCALES 1024 /* read at a time */

/* The fp32 scales of up to SCALES blocks of bitsandbytes. */
static hy_status open_scales(const hy_bnb_matrix *m, int64_t first, int64_t count, float *out) {
    uint8_t codes[SCALES];
    float nested[SCALES / HY_NF4_NESTED + 1];
    if (!m->state.is_nested) return read_floats(m->absmax, first, count, out);
    int64_t begin = first / HY_NF4_NESTED, end = (first + count - 1) / HY_NF4_NESTED + 1;
    HY_TRY(hy_safetensors_read(m->absmax.file, m->absmax.entry, (uint64_t)first, codes,
                               (uint64_t)count));
    HY_TRY(read_floats(m->nested, begin, end - begin, nested));
    for (int64_t i = 0; i < count; i++) {
        float above = m->map[codes[i]] * nested[(first + i) / HY_NF4_NESTED - begin];
        out[i] = above + m->state.offset; /* rounded twice, as in bitsandbytes */
    }
    return HY_OK;
}

/* The scales of our blocks [first, first + count). */
static hy_status read_scales(const hy_bnb_matrix *m, int64_t first, int64_t count, float *out) {
    float theirs[SCALES];
    int64_t repeat = m->state.repeat, end = (first + count - 1) / repeat + 1;
    for (int64_t at = first; at < first + count;) {
        int64_t begin = at / repeat, some = end - begin < SCALES ? end - begin : SCALES;
        HY_TRY(open_scales(m, begin, some, theirs));
        for (; at < first + count && at / repeat < begin + some; at++) {
            out[at - first] = theirs[at / repeat - begin];
        }
    }
    return HY_OK;
}

/* The codes of scales and their parameters are copied unchanged. */
static hy_status keep_scales(const hy_bnb_matrix *m, int64_t first, hy_coding *coding) {
    int64_t blocks = blocks_of(&m->state), nested = (blocks - 1) / HY_NF4_NESTED + 1;
    uint8_t *codes = malloc((size_t)blocks);
    float *scales = malloc((size_t)nested * sizeof *scales);
    hy_status status = codes && scales ? HY_OK
                                       : hy_fail(HY_ERR_MEMORY, "not enough memory for %lld scales",
                                                 (long long)blocks);
    if (status == HY_OK) {
        status = hy_safetensors_read(m->absmax.file, m->absmax.entry, 0, codes, (uint64_t)blocks);
    }
    if (status == HY_OK) status = read_floats(m->nested, 0, nested, scales);
    if (status == HY_OK) {
        hy_coding_keep(coding, first, m->state.rows * m->state.cols / HY_NF4_BLOCK,
                       &(hy_kept_scales){codes, scales, m->state.offset, m->state.repeat});
    }
    free(codes);
    free(scales);
    return status;
}

hy_status hy_bnb_put_scales(const hy_bnb_matrix *m, int64_t first, hy_coding *coding) {
    const char *name = m->codes.entry->name, *path = hy_safetensors_path(m->codes.file);
    int64_t blocks = m->state.rows * m->state.cols / HY_NF4_BLOCK;
    if (coding->item.group == 0) return read_scales(m, 0, blocks, coding->scales + first);
    HY_FAIL_IF(!m->state.is_nested, HY_ERR_INPUT,
               "%s: tensor \"%s\" has fp32 scales (single quantisation), but nf4 needs 8-bit "
               "scales; use frozen_dtype nf4_single, which keeps fp32 scales",
               path, name);
    HY_FAIL_IF(!m->has_our_map, HY_ERR_INPUT,
               "%s: tensor \"%s.nested_quant_map\" is not the standard map of nf4; use "
               "frozen_dtype nf4_single, which keeps the exact numbers",
               path, name);
    return keep_scales(m, first, coding);
}

/* ---- elements -------------------------------------------------------------------------------- */

enum { BATCH = 8192 };

void hy_bnb_round(hy_dtype dtype, float *x, int64_t count) {
    uint16_t halves[BATCH];
    if (dtype == HY_F32) return;
    for (int64_t at = 0; at < count; at += BATCH) {
        int64_t some = count - at < BATCH ? count - at : BATCH;
        hy_cpu_narrow(dtype, x + at, halves, some);
        hy_cpu_widen(dtype, halves, x + at, some);
    }
}

static hy_status read_int8(const hy_bnb_matrix *m, int64_t first, int64_t count, float *out) {
    int8_t codes[BATCH];
    float largest;
    for (int64_t end = first + count, some; first < end; first += some) {
        int64_t row = first / m->state.cols, left = (row + 1) * m->state.cols - first;
        if (left > end - first) left = end - first;
        some = left < BATCH ? left : BATCH;
        HY_TRY(hy_safetensors_read(m->codes.file, m->codes.entry, (uint64_t)first, codes,
                                   (uint64_t)some));
        HY_TRY(read_floats(m->absmax, row, 1, &largest));
        for (int64_t i = 0; i < some; i++) {
            float product = (float)codes[i] * largest; /* rounded twice, as in bitsandbytes */
            *out++ = product * (1 / HY_INT8_LARGEST);
        }
    }
    return HY_OK;
}

hy_status hy_bnb_read(const hy_bnb_matrix *m, int64_t first, int64_t count, float *out) {
    if (m->type == HY_I8) return read_int8(m, first, count, out);
    uint8_t codes[BATCH / 2];
    float scales[BATCH / HY_NF4_BLOCK + 1], x[BATCH];
    for (int64_t end = first + count, some; first < end; first += some) {
        int64_t skipped = first % 2, at = first - skipped; /* two share a byte */
        int64_t n = end - at < BATCH ? end - at : BATCH;
        int64_t block = at / HY_NF4_BLOCK, blocks = (at + n - 1) / HY_NF4_BLOCK - block + 1;
        some = n - skipped;
        HY_TRY(hy_safetensors_read(m->codes.file, m->codes.entry, (uint64_t)at / 2, codes,
                                   hy_dtype_bytes(HY_NF4, n)));
        HY_TRY(read_scales(m, block, blocks, scales));
        hy_nf4_decode(codes, at, n, scales, x);
        hy_bnb_round(m->state.dtype, x, n);
        memcpy(out, x + skipped, (size_t)some * sizeof *out);
        out += some;
    }
    return HY_OK;
}

/* ---- skipped matrices ------------------------------------------------------------------------ */

hy_status hy_bnb_mark_skipped(const char *folder, const hy_shape *shape, hy_params *params) {
    hy_hf_config config;
    hy_hf_tensors *tensors;
    hy_hf_name *names = NULL;
    int32_t count;
    HY_TRY(hy_hf_config_look(folder, &config));
    const hy_family *family = hy_shape_family(&config.shape);
    bool is_int8 = config.quant == HY_HF_INT8;
    if (config.quant == HY_HF_PLAIN || params->frozen_codes != (is_int8 ? HY_I8 : HY_NF4))
        return HY_OK;
    HY_TRY(hy_hf_tensors_open(folder, &tensors));
    const char *prefix = hy_hf_prefix_in(tensors, family);
    hy_status status = hy_hf_list_names(family, prefix, shape, params, &names, &count);
    if (status != HY_OK) count = 0;
    for (int32_t i = 0; status == HY_OK && i < params->count; i++) {
        params->list[i].stays_real = false;
    }
    /* One skipped module is enough to mark a packed matrix: the others can be decoded, but the
     * skipped one cannot be quantised without changing its numbers. Nor can one that files store
     * head by head: scales of two levels belong to groups of the file's rows. */
    for (int32_t i = 0; i < count; i++) {
        hy_param *param = &params->list[names[i].param];
        bool is_coded = hy_bnb_is_coded(tensors, names[i].name) && (!names[i].head_size || is_int8);
        bool can_be = hy_linear_bit(param->kind) || (is_int8 && param->kind == HY_P_TOKENS);
        param->stays_real |= can_be && !is_coded;
    }
    free(names);
    hy_hf_tensors_close(tensors);
    return status;
}
