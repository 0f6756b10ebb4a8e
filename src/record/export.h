/* export.h: writing models out of a run or a checkpoint: what the two share. */
#pragma once

#include "engine/engine.h"
#include "hub/hf_export.h"

#define HY_DEFAULT_SHARD 5000000000u

/* What a model is written with, from the settings it was trained with. */
typedef struct hy_export_plan {
    char source[HY_HF_PATH_MAX];    /* the folder it began as; "": none */
    const char *prefix;             /* of the tensors' names there; NULL: see there */
    char tokenizer[HY_HF_PATH_MAX]; /* another than the one there; "": none */
    hy_dtype dtype;
} hy_export_plan;

/* What every export asks first: HY_ERR_INPUT where the folder has no name, or is there and may not be replaced. */
hy_status hy_export_check_out(const hy_export_options *options);
hy_status hy_export_choose_dtype(const hy_export_options *options, hy_dtype_choice *out);
/* `prefix` lives as long as the settings. `held` is what the weights are kept in. */
hy_status hy_export_prepare(const hy_settings *settings, hy_dtype_choice asked, hy_dtype held,
                            hy_export_plan *out);

/* What an adapter names as its model: a path as it is from any folder, a name on the hub or of a preset as it is. */
void hy_export_base_name(const char *model, char out[HY_PATH_MAX]);

/* A whole model, with adapters merged into it; or the adapters alone. */
typedef enum hy_export_what { HY_EXPORT_MODEL, HY_EXPORT_ADAPTER } hy_export_what;

/* The engine's model as a folder that transformers loads, or its adapters as one that PEFT loads: weights, or
 * their average where there is one. */
hy_status hy_export_engine(hy_engine *e, hy_export_what what, const char *folder);
