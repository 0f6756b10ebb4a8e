/* saved_weights.h: the weights of a checkpoint, without an engine, a device or data: as they are,
 * or scaled away from the weights that the run began with. */
#pragma once

#include <limits.h>

#include "formats/safetensors.h"
#include "hub/hf_load.h"
#include "record/state_files.h"

typedef struct hy_saved_weights {
    char path[PATH_MAX]; /* of the checkpoint, absolute; the caller sets it */
    hy_saved_config config;
    hy_model *model;
    bool lacks_base; /* the checkpoint has only trained parameters, the base model has the others */
    hy_weight_files base; /* files of the base model */
    char base_path[HY_HF_PATH_MAX];
    /* private */
    hy_safetensors *weights, *sum; /* the sum; NULL: nothing was averaged */
    double sum_scale;
    char *raw;
    double scale;            /* 1: as they are */
    float *before;           /* weights that the run began with, one block */
    hy_safetensors *initial; /* the checkpoint that it began with; NULL: none */
} hy_saved_weights;

/* Begin with {.path = ...}. Needs only config.cfg and the files of weights. */
hy_status hy_saved_weights_open(hy_saved_weights *s);
/* Also after an error. */
void hy_saved_weights_close(hy_saved_weights *s);
/* Opens the files of the base model. `settings`: of the run; `kept` is read if it is not there. */
hy_status hy_saved_weights_open_base(hy_saved_weights *s, const hy_settings *settings);
/* From now on reads give start + scale x (trained - start). Opens the base if start is there.
 * HY_ERR_INPUT: the weights that the run began with are not known. */
hy_status hy_saved_weights_scale(hy_saved_weights *s, const hy_settings *settings, double scale);
/* Elements [first, first + count) of a parameter; the average if the run averaged its last part. */
hy_status hy_saved_weights_read(void *saved, int32_t param, int64_t first, int64_t count,
                                float *out);
/* The type that the trained weights have. */
hy_dtype hy_saved_weights_dtype(const hy_saved_weights *s);
