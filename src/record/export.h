/* export.h: what the three exports share: of a run, of a checkpoint, and of an adapter.
 *
 * Each export checks its output folder, prepares a plan from the settings, and writes the folder
 * with a function that reads the weights. The folder appears only when it is complete. */
#pragma once

#include <limits.h>

#include "engine/engine.h"
#include "hub/hf_export.h"
#include "hub/rounding.h"

#define HY_DEFAULT_SHARD 5000000000u

/* How a model is written, from the settings that it was trained with. */
typedef struct hy_export_plan {
    char source[HY_HF_PATH_MAX];    /* folder of the model that the run started from; "": none */
    const char *prefix;             /* prefix of the tensor names; NULL: as in that folder */
    char weights[HY_HF_PATH_MAX];   /* folder of its weights, if it is another; "": none */
    char tokenizer[HY_HF_PATH_MAX]; /* a tokenizer other than the folder's; "": none */
    hy_dtype dtype;
    bool has_dtype;          /* the caller asked for this type */
    hy_prompt_format prompt; /* how the run wrote its rows */
    int threads;             /* 0: one per core */
} hy_export_plan;

/* An export as its caller asks for it. */
typedef struct hy_export_request {
    const hy_export_options *options;
    const hy_observer *observer;
    const hy_moments_source *moments; /* of a calibration; NULL: numbers are rounded to nearest */
    const char *asked; /* what the caller will rename the file or folder to; NULL: nothing */
} hy_export_request;

/* hy_export, also with a calibration. */
hy_status hy_export_checkpoint(const char *checkpoint, const hy_export_request *request);

/* The checkpoint that a name means: itself, or the newest of a run. The path is absolute. */
hy_status hy_export_find(const char *name, const hy_observer *observer, char path[PATH_MAX]);

/* Every export checks this first. HY_ERR_INPUT: the folder has no name, or exists and may not be
 * replaced. */
hy_status hy_export_check_out(const hy_export_options *options);
/* HY_ERR_INPUT if the export would replace `source`, a model or adapter that it reads; "": none. */
hy_status hy_export_check_apart(const hy_export_request *request, const char *source);
/* What the options and the observer say about the folder or file; the caller adds the rest. */
hy_hf_writing hy_export_writing(const hy_export_request *request);
hy_status hy_export_choose_dtype(const hy_export_options *options, hy_dtype_choice *out);
/* `prefix` lives as long as the settings. `held` is the type of the stored weights. */
hy_status hy_export_prepare(const hy_settings *settings, hy_dtype_choice asked, hy_dtype held,
                            hy_export_plan *out);

/* Writes the folder or the file. `writing`: everything except the values of the plan and of the
 * model, which are filled in here. */
hy_status hy_export_write(const hy_export_plan *plan, const hy_model *model, hy_hf_writing writing);

/* export_adapter.c: is this a model folder or file, which is not a checkpoint? */
bool hy_export_is_model(const char *name);
/* Writes such a model. */
hy_status hy_export_model(const char *name, const hy_export_request *request);

/* The base model's name in an adapter: an absolute path, or the name on the hub or of a preset. */
void hy_export_base_name(const char *model, char out[HY_PATH_MAX]);

/* Either a whole model with its adapters merged, or only the adapters. */
typedef enum hy_export_what { HY_EXPORT_MODEL, HY_EXPORT_ADAPTER } hy_export_what;

/* Writes the engine's model as a folder for transformers, or its adapters as a folder for PEFT:
 * the weights, or their average if there is one. */
hy_status hy_export_engine(hy_engine *e, hy_export_what what, hy_prompt_format prompt,
                           const char *folder);

/* exports.c: adds a measured export to the list in the run folder of the checkpoint, an absolute
 * path. `run` becomes that
 * folder; "": the checkpoint is not in one, and nothing is written. */
hy_status hy_exports_add(const char *checkpoint, const hy_export_options *options,
                         const hy_evaluation *list, int32_t count, char run[HY_PATH_MAX]);
