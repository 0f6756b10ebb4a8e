/* export.h: writing models out of a run or a checkpoint: what the two share. */
#ifndef HY_TRAINER_EXPORT_H
#define HY_TRAINER_EXPORT_H

#include "hub/hf_export.h"
#include "trainer/trainer.h"

#define HY_DEFAULT_SHARD 5000000000u

/* What a model is written with, from the settings it was trained with. */
typedef struct hy_export_plan {
    char source[HY_HF_PATH_MAX];    /* the folder it began as; "": none */
    char tokenizer[HY_HF_PATH_MAX]; /* another than the one there; "": none */
    hy_dtype dtype;
} hy_export_plan;

/* `held` is what the weights are kept in. */
hy_status hy_export_prepare(const hy_settings *settings, hy_dtype_choice asked, hy_dtype held,
                            hy_export_plan *out);

#endif
