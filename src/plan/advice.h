/* advice.h: changed settings with which a run fits, is faster, or needs less memory.
 *
 * levels.c asks for changes when nothing fits; the trainer asks for savings while a run is short of
 * memory. Advice never changes a plan. */
#pragma once

#include "plan/request.h"

/* Finds small sets of changed settings with which the run fits, and writes them to facts->changes,
 * the fastest first. Each set was planned. */
hy_status hy_advise_fit(const hy_plan_request *request, const hy_plan *plan, const hy_rates *rates,
                        hy_plan_facts *facts);

/* If copies dominate a step: adds the speed with a longer step as a reason. */
hy_status hy_advise_tokens(const hy_plan_request *request, const hy_plan *plan,
                           const hy_rates *rates, hy_plan_facts *facts);

/* What `plan` would need with other settings and another choice, at its precision level. */
typedef struct hy_plan_bytes {
    int64_t device, host; /* host: without the device's bytes, even if both share one memory */
    double seconds;       /* estimated seconds of a step */
} hy_plan_bytes;
hy_status hy_advise_bytes(const hy_plan_request *request, const hy_plan *plan,
                          const hy_settings *settings, const hy_plan_choice *choice,
                          hy_plan_bytes *out);

/* One change that needs less memory, compared with the current plan. */
typedef struct hy_advice {
    char key[32], from[32], to[32];
    int64_t device_bytes, host_bytes; /* freed */
} hy_advice;
#define HY_ADVICE_MAX 16
/* Finds all such changes. Cheap ones come first: they keep all bits or cost little time. */
hy_status hy_advise_less(const hy_plan_request *request, const hy_plan *plan,
                         hy_advice out[HY_ADVICE_MAX], int32_t *count);
