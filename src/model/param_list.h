/* param_list.h: the parameters of a custom model, which its caller lists.
 *
 * All of them are trained. Neighbours share a unit as long as it stays small, and large parameters
 * are cut into parts, so that what travels to and from the device stays small. */
#pragma once

#include "model/params.h"

typedef struct hy_param_spec {
    const char *name;
    int32_t ndim;
    const int64_t *shape;
    double lr_scale;
    double decay; /* below 0: the run's, for parameters of two dimensions or more */
} hy_param_spec;

/* A list instead of a shape's parameters; `at` is NULL. HY_ERR_INPUT names the parameter that is
 * wrong. */
hy_status hy_params_init_list(hy_params *params, const hy_param_spec *list, int32_t count);

/* Elements of the caller's parameter that an entry of the list is, or is a part of. */
int64_t hy_param_whole_count(const hy_param *param);
