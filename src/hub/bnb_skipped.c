/* bnb_skipped.c: finds the matrices that a quantiser skipped. See bnb.h. */
#include <stdlib.h>

#include "base/error.h"
#include "hub/bnb.h"
#include "hub/hf_load.h"
#include "hub/hf_names.h"

/* One skipped module is enough to mark a packed matrix: the others can be decoded, but the
 * skipped one cannot be quantised without changing its numbers. */
static void mark(const hy_hf_tensors *tensors, const hy_hf_name *names, int32_t count,
                 hy_params *params) {
    for (int32_t i = 0; i < params->count; i++) params->list[i].stays_real = false;
    for (int32_t i = 0; i < count; i++) {
        hy_param *param = &params->list[names[i].param];
        bool is_skipped = hy_linear_bit(param->kind) && !hy_bnb_is_coded(tensors, names[i].name);
        param->stays_real |= is_skipped;
    }
}

hy_status hy_bnb_mark_skipped(const char *folder, const hy_shape *shape, hy_params *params) {
    hy_hf_config config;
    hy_hf_tensors *tensors;
    hy_hf_name *names = NULL;
    int32_t count;
    HY_TRY(hy_hf_config_look(folder, &config));
    const hy_family *family = hy_shape_family(&config.shape);
    if (config.quant == HY_HF_PLAIN) return HY_OK;
    HY_TRY(hy_hf_tensors_open(folder, &tensors));
    const char *prefix = hy_hf_prefix_in(tensors, family);
    hy_status status = hy_hf_list_names(family, prefix, shape, params, &names, &count);
    if (status == HY_OK) mark(tensors, names, count, params);
    free(names);
    hy_hf_tensors_close(tensors);
    return status;
}
