/* requantise.c: reproduces the quantised weights that training computed with. See requantise.h.
 *
 * Export wraps its reader of weights with it. Parameters that were not quantised in training pass
 * unchanged. */
#include "hub/requantise.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "kernels/coded.h"
#include "model/coding.h"

hy_requantise hy_requantise_begin(const hy_params *params, hy_weight_reader read, void *context) {
    return (hy_requantise){.params = params, .read = read, .context = context, .held = -1};
}

void hy_requantise_end(hy_requantise *r) {
    free(r->codes);
    free(r->scales);
    r->codes = NULL;
    r->scales = NULL;
    r->held = -1;
}

typedef struct matrix {
    const hy_requantise *r;
    int32_t index;
} matrix;

static hy_status read_numbers(void *context, int64_t first, int64_t count, float *out) {
    const matrix *m = context;
    return m->r->read(m->r->context, m->index, first, count, out);
}

static hy_status hold(hy_requantise *r, int32_t index) {
    const hy_param *param = &r->params->list[index];
    hy_layout_item item =
        hy_params_item(r->params, index, hy_params_stored(r->params, index, HY_F32));
    int64_t blocks = item.count / item.block;
    if (r->held == index) return HY_OK;
    hy_requantise_end(r);
    r->codes = malloc(hy_layout_scales_at(&item) + hy_layout_scale_bytes(&item));
    r->scales = malloc((size_t)blocks * sizeof *r->scales);
    HY_FAIL_IF(!r->codes || !r->scales, HY_ERR_MEMORY, "not enough memory for the codes of %s",
               param->name);
    hy_coding_source from = {&(matrix){r, index}, read_numbers, 1};
    HY_TRY(hy_coding_run(param, &item, &from, &(hy_coding_target){.memory = r->codes}));
    hy_coded_open_scales(item.group, 0, blocks, r->codes + hy_layout_scales_at(&item), r->scales);
    r->held = index;
    return HY_OK;
}

hy_status hy_requantise_read(void *requantise, int32_t param, int64_t first, int64_t count,
                             float *out) {
    hy_requantise *r = requantise;
    hy_dtype dtype = hy_params_stored(r->params, param, HY_F32);
    if (!hy_is_coded(dtype)) return r->read(r->context, param, first, count, out);
    assert(first % 2 == 0); /* two may share a byte */
    HY_TRY(hold(r, param));
    int32_t block = hy_param_block(&r->params->list[param], dtype);
    hy_coded_decode(dtype, r->codes + hy_dtype_bytes(dtype, first), first, count, block,
                    r->scales + first / block, out);
    return HY_OK;
}
