/* param_list.h: the parameters of a custom model, listed by its caller.
 *
 * At least one of them is trained. Unless the caller names units, neighbours share a unit while it is
 * small, and large parameters are divided into parts, so that transfers to and from the device stay
 * small. */
#pragma once

#include "model/params.h"

typedef struct hy_param_spec {
    const char *name;
    int32_t ndim;
    const int64_t *shape;
    double lr_scale;
    double decay; /* below 0: the run's, for parameters with two or more dimensions */
    bool is_frozen;
    hy_dtype dtype; /* frozen: the type in which the caller uses it */
} hy_param_spec;

/* Replaces a shape's parameters by a list; `at` is NULL. unit_of: the unit of each parameter, which
 * is then not divided; NULL: units by size. HY_ERR_INPUT names the wrong parameter. */
hy_status hy_params_init_list(hy_params *params, const hy_param_spec *list, int32_t count,
                              const int32_t *unit_of);

/* Elements of the caller's parameter that this entry is, or is a part of. */
int64_t hy_param_whole_count(const hy_param *param);
