/* setup.h: from settings to device, model, data and initial weights, before anything computes.
 *
 * A run, evaluation and decoding call it. It knows settings, folders and files of models; the engine
 * knows neither. */
#pragma once

#include "config/derived.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "hub/hf_load.h"

/* ---- device.c -------------------------------------------------------------------------------- */

/* The device that the settings name, and its streams; for a plan (request.is_plan) it may be a card
 * that is not here. */
hy_status hy_engine_open_device(hy_engine *e);
void hy_engine_tell_warning(hy_engine *e); /* the device's, if it has one: once */

/* ---- setup_model.c: the model ----------------------------------------------------------------- */

/* Which parameters of a model are trained, which stand whole beside adapters, and how frozen ones
 * are stored. Errors name the key. */
hy_status hy_settings_select(const hy_settings *settings, hy_model *model);
/* Only how frozen matrices are stored; HY_F32: as other weights. */
hy_status hy_settings_store_frozen(const hy_settings *settings, hy_model *model);
/* The model of the settings, with the parameters that they train. */
hy_status hy_engine_make_model(hy_engine *e);

/* ---- data.c: the data set and the tokenizer ---------------------------------------------------- */

/* keeps_rest: see dataset.h. */
hy_status hy_engine_open_data(const hy_engine *e, bool keeps_rest, hy_dataset **out);
/* The model's folder, "" where it has none: where its tokenizer and template lie. */
hy_status hy_model_folder(const hy_settings *settings, char folder[HY_PATH_MAX]);
/* The tokenizer that was asked for, or with "auto" the one in the folder: tokenizer.json, or
 * llama2.c's own file; "": tokens are bytes. */
hy_status hy_model_tokenizer(const hy_model *model, const char *asked, const char *folder,
                             char path[HY_PATH_MAX]);

/* ---- initial.c, load.c: initial weights -------------------------------------------------------- */

hy_status hy_engine_initialise_weights(hy_engine *e);
/* Those of a folder of PEFT's, in place of what they were. */
hy_status hy_engine_load_adapter(hy_engine *e, const char *folder);
/* Adapters alone, where there are any: files of a model do not have them. */
hy_status hy_engine_initialise_adapters(hy_engine *e);
hy_status hy_engine_load_model(hy_engine *e, hy_model_files kind, const char *path);
