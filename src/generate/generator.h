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
    atomic_bool *stop_requested; /* by hy_generator_request_stop; who obeys it clears it */
} hy_generator_parts;
hy_generator_parts hy_generator_look_inside(hy_generator *generator);
