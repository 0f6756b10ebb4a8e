/* requantise.c: weights as training had them. See requantise.h. */
#include "hub/requantise.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/coded.h"
#include "model/coding.h"

#define SOME_ELEMENTS (1 << 20) /* read at a time */

hy_requantise hy_requantise_begin(const hy_shape *shape, const hy_params *params,
                                  hy_weight_reader read, void *context) {
    return (hy_requantise){
        .shape = shape, .params = params, .read = read, .context = context, .held = -1};
}

void hy_requantise_end(hy_requantise *r) {
    free(r->codes);
    free(r->scales);
    r->codes = r->scales = NULL;
    r->held = -1;
}

/* Rows go into codes some at a time. GPT-2's files have its matrices transposed, and of such the whole is read at
 * once. Rows of padding are zero. */
static hy_status code_rows(hy_requantise *r, int32_t index, hy_coding *coding, bool is_looking) {
    const hy_param *param = &r->params->list[index];
    int64_t width = param->shape[1], rows = SOME_ELEMENTS / width > 0 ? SOME_ELEMENTS / width : 1;
    int64_t most = r->shape->has_rope ? rows * width : param->stored;
    float *numbers = malloc((size_t)most * sizeof *numbers);
    hy_status status = numbers ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory to quantise a matrix");
    for (int64_t at = 0, some; at < param->stored && status == HY_OK; at += some) {
        some = param->stored - at < most ? param->stored - at : most;
        status = r->read(r->context, index, at, some, numbers);
        if (status != HY_OK) break;
        char *codes = (char *)r->codes + hy_dtype_bytes(coding->item.dtype, at);
        if (is_looking)
            hy_coding_look(coding, numbers, some);
        else
            hy_coding_rows(coding, numbers, at, some, codes);
    }
    free(numbers);
    return status;
}

static hy_status hold(hy_requantise *r, int32_t index) {
    hy_layout_item item =
        hy_params_item(r->params, index, hy_params_stored(r->params, index, HY_F32));
    int64_t blocks = item.count / item.block;
    hy_coding coding;
    if (r->held == index) return HY_OK;
    hy_requantise_end(r);
    r->codes = malloc(hy_dtype_bytes(item.dtype, item.count));
    r->scales = malloc((size_t)blocks * sizeof *r->scales);
    HY_FAIL_IF(!r->codes || !r->scales, HY_ERR_MEMORY, "no memory for the codes of %s",
               r->params->list[index].name);
    hy_status status = hy_coding_begin(&coding, &r->params->list[index], &item);
    if (status == HY_OK && hy_coding_looks_first(&coding)) {
        status = code_rows(r, index, &coding, true);
    }
    if (status == HY_OK) status = code_rows(r, index, &coding, false);
    if (status == HY_OK) {
        hy_coded_open_scales(item.group, 0, blocks, hy_coding_scales(&coding), r->scales);
        r->held = index;
    }
    hy_coding_end(&coding);
    return status;
}

hy_status hy_requantise_read(void *requantise, int32_t param, int64_t first, int64_t count,
                             float *out) {
    hy_requantise *r = requantise;
    hy_dtype dtype = hy_params_stored(r->params, param, HY_F32);
    if (!hy_is_coded(dtype)) return r->read(r->context, param, first, count, out);
    assert(first % 2 == 0); /* two may share a byte */
    HY_TRY(hold(r, param));
    int32_t block = hy_param_block(&r->params->list[param], dtype);
    hy_coded_decode(dtype, (const char *)r->codes + hy_dtype_bytes(dtype, first), first, count,
                    block, r->scales + first / block, out);
    return HY_OK;
}
