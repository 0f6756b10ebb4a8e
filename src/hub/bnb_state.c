/* bnb_state.c: reads the JSON of a matrix quantised by bitsandbytes. See bnb.h. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "hub/bnb.h"
#include "hub/hf_config.h"
#include "kernels/nf4.h"

#define MOST_BLOCK 4096         /* the largest that bitsandbytes makes */
#define MOST_LENGTH (1LL << 31) /* of a side, so that products fit */

static hy_status read_shape(const hy_json *json, const char *name, hy_bnb_state *out) {
    const hy_json_node *shape = hy_json_get(hy_json_root(json), "shape");
    const hy_json_node *rows = hy_json_first(shape), *cols = rows ? hy_json_next(rows) : NULL;
    bool is_matrix = hy_json_type_of(shape) == HY_JSON_ARRAY && hy_json_size(shape) == 2 &&
                     hy_json_as_int(rows, &out->rows) && hy_json_as_int(cols, &out->cols);
    HY_FAIL_IF(!is_matrix || out->rows < 1 || out->cols < 1 || out->rows >= MOST_LENGTH ||
                   out->cols >= MOST_LENGTH,
               HY_ERR_INPUT, "%s: \"shape\" is not the shape of a matrix", name);
    return HY_OK;
}

static hy_status read_dtype(const hy_json *json, const char *name, hy_bnb_state *out) {
    const char *word;
    HY_TRY(hy_json_string(json, hy_json_root(json), "dtype", &word, NULL));
    HY_FAIL_IF(!hy_hf_dtype_named(word, &out->dtype), HY_ERR_INPUT,
               "%s: \"dtype\" %.40s is not supported; supported: float32, bfloat16, float16", name,
               word);
    return HY_OK;
}

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
    const hy_json_node *root = hy_json_root(json);
    const char *type;
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
    HY_TRY(read_shape(json, name, out));
    HY_TRY(read_dtype(json, name, out));
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
