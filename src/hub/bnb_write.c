/* bnb_write.c: quantises matrices and writes them as bitsandbytes does. See bnb.h.
 *
 * Codes are written while the numbers are read; scales stay in memory until the matrix is complete.
 * Without calibration the bytes are those of bitsandbytes on the CPU, except that the offset of
 * two-level scales is rounded once (kernels/nf4.h), that a last block of fewer than 64 numbers is
 * multiplied by the inverse of its scale like all others, and that quant_state ends in blanks: a
 * file begins with the sizes of all tensors, before the offset is known. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "hub/bnb.h"
#include "kernels/coded.h"

#define STATE_BYTES 208 /* the longest has about 190 */

static bool is_int8(const hy_bnb_writing *w) { return w->quant == HY_HF_INT8; }
static bool is_nested(const hy_bnb_writing *w) { return w->quant == HY_HF_NF4; }

/* Blocks or rows that have a scale. */
static int64_t scales_of(const hy_bnb_writing *w) {
    return is_int8(w) ? w->rows : (w->rows * w->cols + HY_NF4_BLOCK - 1) / HY_NF4_BLOCK;
}

static int64_t nested_of(const hy_bnb_writing *w) {
    return (scales_of(w) + HY_NF4_NESTED - 1) / HY_NF4_NESTED;
}

/* ---- names and sizes ------------------------------------------------------------------------- */

static hy_safetensors_entry *add(hy_bnb_tensors *t, const char *name, const char *ending,
                                 hy_dtype dtype, int64_t count) {
    hy_safetensors_entry *entry = &t->list[t->count];
    hy_bnb_name(name, ending, t->names[t->count]);
    *entry = (hy_safetensors_entry){
        .name = t->names[t->count], .dtype = dtype, .ndim = 1, .shape = {count, 1}};
    t->count++;
    return entry;
}

void hy_bnb_list(const hy_bnb_writing *w, hy_bnb_tensors *out) {
    out->count = 0;
    if (is_int8(w)) {
        hy_safetensors_entry *codes = add(out, w->name, "", HY_I8, w->rows);
        codes->ndim = 2;
        codes->shape[1] = w->cols;
        add(out, w->name, HY_BNB_SCB, HY_F32, w->rows);
        add(out, w->name, HY_BNB_FORMAT, HY_U8, 1)->ndim = 0;
        return;
    }
    add(out, w->name, "", HY_U8, (w->rows * w->cols + 1) / 2)->ndim = 2;
    add(out, w->name, HY_BNB_MAP, HY_F32, 16);
    add(out, w->name, HY_BNB_STATE, HY_U8, STATE_BYTES);
    if (is_nested(w)) {
        add(out, w->name, HY_BNB_NESTED_MAP, HY_F32, 256);
        add(out, w->name, HY_BNB_NESTED, HY_F32, nested_of(w));
    }
    add(out, w->name, HY_BNB_ABSMAX, is_nested(w) ? HY_U8 : HY_F32, scales_of(w));
}

/* ---- codes ----------------------------------------------------------------------------------- */

hy_status hy_bnb_begin(hy_bnb_writing *w) {
    w->scales = malloc((size_t)scales_of(w) * sizeof *w->scales);
    HY_FAIL_IF(!w->scales, HY_ERR_MEMORY, "not enough memory for the scales of %s", w->name);
    return HY_OK;
}

void hy_bnb_end(hy_bnb_writing *w) {
    free(w->scales);
    w->scales = NULL;
}

static bool is_calibrated(const hy_bnb_writing *w) {
    return w->moments && w->moments->size == w->cols && w->cols % HY_NF4_BLOCK == 0 && !is_int8(w);
}

int64_t hy_bnb_piece(const hy_bnb_writing *w, int64_t most) {
    int64_t unit = is_int8(w) || is_calibrated(w) ? w->cols : HY_NF4_BLOCK;
    return most < unit ? unit : most / unit * unit;
}

/* A row of int8. bitsandbytes rounds to fp16 first. Codes may overwrite the numbers. */
static hy_status put_row(hy_bnb_writing *w, int64_t row, float *x, int8_t *codes) {
    hy_bnb_round(HY_F16, x, w->cols);
    float largest = hy_int8_largest(x, w->cols), inverse = 1 / largest;
    float factor = inverse * HY_INT8_LARGEST; /* rounded twice, as in PyTorch */
    HY_FAIL_IF(!isfinite(largest), HY_ERR_NUMERIC,
               "%s contains a number that is too large for int8, which passes through fp16; use "
               "nf4",
               w->name);
    w->scales[row] = largest;
    for (int64_t i = 0; i < w->cols; i++)
        codes[i] = (int8_t)(largest > 0 ? rintf(x[i] * factor) : 0);
    return HY_OK;
}

static hy_status put_calibrated(hy_bnb_writing *w, int64_t first, int64_t count, float *x,
                                hy_safetensors_writer *out) {
    const int64_t bytes = HY_NF4_BLOCK / 2, blocks = count / HY_NF4_BLOCK;
    hy_rounding_cost cost = {0};
    char *made = malloc((size_t)blocks * HY_ROUND_NF4_BYTES), *codes = (char *)x;
    hy_status status =
        made ? hy_round_rows(HY_ROUND_NF4, x, count / w->cols, w->moments, made, &cost)
             : hy_fail(HY_ERR_MEMORY, "not enough memory to round %s", w->name);
    for (int64_t i = 0; i < blocks && status == HY_OK; i++) {
        const char *block = made + i * HY_ROUND_NF4_BYTES;
        memcpy(codes + i * bytes, block, (size_t)bytes);
        memcpy(&w->scales[first / HY_NF4_BLOCK + i], block + bytes, sizeof *w->scales);
    }
    free(made);
    return status == HY_OK ? hy_safetensors_put(out, codes, (uint64_t)(blocks * bytes)) : status;
}

hy_status hy_bnb_put(hy_bnb_writing *w, int64_t first, int64_t count, float *x,
                     hy_safetensors_writer *out) {
    hy_bnb_round(w->dtype, x, count);
    if (is_int8(w)) {
        int8_t *codes = (int8_t *)x;
        for (int64_t at = 0; at < count; at += w->cols)
            HY_TRY(put_row(w, (first + at) / w->cols, x + at, codes + at));
        return hy_safetensors_put(out, codes, (uint64_t)count);
    }
    if (is_calibrated(w)) return put_calibrated(w, first, count, x, out);
    int64_t whole = (count + HY_NF4_BLOCK - 1) / HY_NF4_BLOCK * HY_NF4_BLOCK;
    for (int64_t i = count; i < whole; i++) x[i] = 0;
    hy_coded_encode(HY_NF4, x, whole, HY_NF4_BLOCK, x, w->scales + first / HY_NF4_BLOCK);
    return hy_safetensors_put(out, x, hy_dtype_bytes(HY_NF4, count));
}

/* ---- the other tensors ----------------------------------------------------------------------- */

static hy_status put_floats(hy_safetensors_writer *out, const float *x, int64_t count) {
    return hy_safetensors_put(out, x, (uint64_t)count * sizeof *x);
}

static hy_status put_state(const hy_bnb_writing *w, float offset, hy_safetensors_writer *out) {
    char text[STATE_BYTES + 1], digits[HY_NUMBER_MAX], nested[128] = "";
    if (is_nested(w))
        snprintf(nested, sizeof nested,
                 ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", "
                 "\"nested_offset\": %s",
                 HY_NF4_NESTED, hy_number_format(offset, digits));
    int size = snprintf(text, sizeof text,
                        "{\"quant_type\": \"nf4\", \"blocksize\": %d, \"dtype\": \"%s\", "
                        "\"shape\": [%lld, %lld]%s}",
                        HY_NF4_BLOCK, hy_hf_dtype_word(w->dtype), (long long)w->rows,
                        (long long)w->cols, nested);
    HY_FAIL_IF(size > STATE_BYTES, HY_ERR_INPUT, "%s is too large for quant_state", w->name);
    memset(text + size, ' ', (size_t)(STATE_BYTES - size));
    return hy_safetensors_put(out, text, STATE_BYTES);
}

/* Two-level scales. */
static hy_status put_nested(const hy_bnb_writing *w, float offset, float *pairs, uint8_t *codes,
                            hy_safetensors_writer *out) {
    float map[256];
    int64_t blocks = scales_of(w), nested = nested_of(w);
    for (int i = 0; i < 256; i++) map[i] = hy_nf4_map((uint8_t)i);
    hy_nf4_put_scales(w->scales, blocks, offset, 1, pairs, codes); /* a pair for each block */
    for (int64_t i = 0; i < nested; i++) pairs[i] = pairs[2 * HY_NF4_NESTED * i];
    HY_TRY(put_floats(out, map, 256));
    HY_TRY(put_floats(out, pairs, nested));
    return hy_safetensors_put(out, codes, (uint64_t)blocks);
}

hy_status hy_bnb_finish(const hy_bnb_writing *w, hy_safetensors_writer *out) {
    static const float levels[16] = {HY_NF4_LEVELS};
    int64_t count = scales_of(w);
    if (is_int8(w)) return put_floats(out, w->scales, count);
    float offset = is_nested(w) ? hy_nf4_offset(w->scales, count) : 0;
    HY_TRY(put_floats(out, levels, 16));
    HY_TRY(put_state(w, offset, out));
    if (!is_nested(w)) return put_floats(out, w->scales, count);
    float *pairs = malloc((size_t)count * 2 * sizeof *pairs);
    uint8_t *codes = malloc((size_t)count);
    hy_status status =
        pairs && codes ? put_nested(w, offset, pairs, codes, out)
                       : hy_fail(HY_ERR_MEMORY, "not enough memory for the scales of %s", w->name);
    free(pairs);
    free(codes);
    return status;
}

/* ---- config.json ----------------------------------------------------------------------------- */

/* The head stays as it is: without llm_int8_skip_modules, transformers finds it by itself, under
 * the name that it has in that version. A list replaces that, so it names the head too. */
static void put_skipped(const hy_shape *shape, hy_json_writer *w) {
    const hy_modules *modules = hy_shape_family(shape)->modules;
    const char *const *rates = modules[HY_P_LINEAR_BA].part;
    if (!shape->more.linear.layers[0]) {
        hy_json_put_null(w, "llm_int8_skip_modules");
        return;
    }
    hy_json_open_array(w, "llm_int8_skip_modules");
    hy_json_put_string(w, NULL, hy_module_last_name(modules[HY_P_HEAD].part[0]));
    for (int i = 0; i < HY_MODULE_PARTS && rates[i]; i++)
        hy_json_put_string(w, NULL, hy_module_last_name(rates[i]));
    hy_json_close_array(w);
}

static hy_status make_config(const hy_shape *shape, hy_hf_quant quant, hy_dtype dtype,
                             hy_text *out) {
    hy_json_writer w;
    bool is_8bit = quant == HY_HF_INT8;
    hy_json_begin(&w, out, true);
    hy_json_open_object(&w, NULL);
    hy_json_open_object(&w, "quantization_config");
    hy_json_put_string(&w, "quant_method", "bitsandbytes");
    hy_json_put_bool(&w, "load_in_8bit", is_8bit);
    hy_json_put_bool(&w, "load_in_4bit", !is_8bit);
    if (is_8bit) {
        hy_json_put_real(&w, "llm_int8_threshold", 6);
    } else {
        hy_json_put_string(&w, "bnb_4bit_quant_type", "nf4");
        hy_json_put_bool(&w, "bnb_4bit_use_double_quant", quant == HY_HF_NF4);
        hy_json_put_string(&w, "bnb_4bit_compute_dtype", hy_hf_dtype_word(dtype));
        hy_json_put_string(&w, "bnb_4bit_quant_storage", "uint8");
    }
    put_skipped(shape, &w);
    hy_json_close_object(&w);
    hy_json_close_object(&w);
    return hy_text_status(out);
}

hy_status hy_bnb_put_config(const hy_shape *shape, hy_hf_quant quant, hy_dtype dtype,
                            hy_text *config) {
    hy_text more = {0}, both = {0};
    hy_json *old = NULL, *new = NULL;
    hy_status status = make_config(shape, quant, dtype, &more);
    if (status == HY_OK) status = hy_json_parse(config->data, config->size, "config.json", &old);
    if (status == HY_OK) status = hy_json_parse(more.data, more.size, "config.json", &new);
    if (status == HY_OK) status = hy_hf_json_merge(hy_json_root(old), hy_json_root(new), &both);
    hy_json_free(old);
    hy_json_free(new);
    hy_text_free(&more);
    hy_text_free(config);
    *config = both;
    return status;
}
