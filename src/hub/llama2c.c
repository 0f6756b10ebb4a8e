/* llama2c.c: reads the header of a llama2.c file and finds its tensors. See llama2c.h.
 *
 * hf_folder.c recognises such files with it, and hf_parts.c reads their weights. After HY_OK all
 * tensors lie inside the file and end exactly at its end. */
#include "hub/llama2c.h"

#include "base/error.h"

enum { LARGEST = 1 << 24, SIZES = 7, HEADER_BYTES = SIZES * 4 };

static hy_status read_header(hy_llama2c *f, const char *path) {
    int32_t header[SIZES];
    int32_t *const sizes[SIZES] = {&f->width,    &f->mlp_width, &f->layers, &f->heads,
                                   &f->kv_heads, &f->vocab,     &f->context};
    HY_FAIL_IF(hy_reader_size(f->reader) < HEADER_BYTES, HY_ERR_INPUT,
               "%s: too short for a llama2.c file", path);
    HY_TRY(hy_reader_get(f->reader, 0, header, sizeof header));
    bool is_model = true;
    for (int i = 0; i < SIZES; i++) {
        int32_t value = header[i];
        if (sizes[i] == &f->vocab) f->has_own_head = value < 0;
        *sizes[i] = sizes[i] == &f->vocab && value < 0 && value > INT32_MIN ? -value : value;
        is_model = is_model && *sizes[i] >= 1 && *sizes[i] <= LARGEST;
    }
    is_model = is_model && f->width % f->heads == 0 && f->heads % f->kv_heads == 0 &&
               f->width / f->heads % 2 == 0;
    HY_FAIL_IF(!is_model, HY_ERR_INPUT,
               "%s: the header does not contain the sizes of a llama2.c model", path);
    return HY_OK;
}

/* Below 2^63: each tensor has at most 2^24 x 2^24 numbers of 4 bytes, and the running sum is
 * checked against the file's length first. */
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
                   HY_ERR_INPUT,
                   "%s has only %llu bytes, fewer than the model in its header needs; it may be "
                   "incomplete",
                   path, (unsigned long long)size);
        at += all;
    }
    if (at == size) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "%s: %llu bytes, expected %llu for a llama2.c model of these sizes", path,
                   (unsigned long long)size, (unsigned long long)at);
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
