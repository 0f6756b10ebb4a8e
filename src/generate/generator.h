/* generator.h: what a file of prompts (file.h) needs of a generator. */
#pragma once

#include <stdatomic.h>

#include "config/settings.h"
#include "generate/task.h"
#include "hub/peft_set.h"
#include "infer/codec.h"

typedef struct hy_generator_parts {
    const hy_codec *codec;
    const hy_settings *settings;
    const hy_peft_set *adapters;
    hy_task_limits limits;
    int32_t waiting;             /* requests that may wait; 0: no limit */
    atomic_bool *stop_requested; /* by hy_generator_request_stop; who obeys it clears it */
} hy_generator_parts;
hy_generator_parts hy_generator_look_inside(hy_generator *generator);

/* Between begin and end only the caller's thread generates; HY_ERR_STATE: another one does. */
hy_status hy_generator_begin(hy_generator *generator);
void hy_generator_end(hy_generator *generator);
/* After begin. hy_generator_serve; and one round, which first ends the requests that are
 * cancelled. */
hy_status hy_generator_serve_begun(hy_generator *generator);
hy_status hy_generator_round(hy_generator *generator);
