/* setup.h: creates device, model, data and initial weights from the settings, before anything is
 * computed.
 *
 * Training, evaluation and decoding call it, after they have set e->request.settings and
 * e->observer. Set-up knows settings, folders and model files. The engine does not: set-up gives it
 * the values that it needs. */
#pragma once

#include "config/derived.h"
#include "data/dataset.h"
#include "engine/engine.h"
#include "hub/hf_load.h"
#include "reward/reward.h"

/* ---- device.c -------------------------------------------------------------------------------- */

/* Opens the device that the settings name, with its streams. For a plan (request.is_plan) it may be
 * a card that is not in this machine. */
hy_status hy_engine_open_device(hy_engine *e);
void hy_engine_tell_warning(hy_engine *e); /* reports the device's warning, if it has one, once */

/* ---- model.c: the model ---------------------------------------------------------------------- */

/* Sets which parameters are trained, which are trained whole besides adapters, how frozen ones are
 * stored, and what groups say about them. Errors name the key. */
hy_status hy_settings_select(const hy_settings *settings, hy_model *model);
/* Sets only how frozen matrices are stored; HY_F32: like other weights. */
hy_status hy_settings_store_frozen(const hy_settings *settings, hy_model *model);
/* Creates the model of the settings, with its trained parameters. The caller destroys it, also
 * after an error if it is not NULL. */
hy_status hy_settings_make_model(const hy_settings *settings, hy_model **out);
/* As above, as the engine's model, or the model of a custom run. */
hy_status hy_engine_make_model(hy_engine *e);

/* ---- data.c: the data set and the tokenizer -------------------------------------------------- */

/* What the settings ask of a data set; the options point into this struct. */
typedef struct hy_data_request {
    char data[HY_TEXT_MAX];
    char folder[HY_PATH_MAX], tokenizer[HY_PATH_MAX], no_bytes[HY_PATH_MAX + 256];
    hy_reward_needs needs; /* of the rewards of task grpo */
    hy_dataset_options options;
} hy_data_request;
/* Needs settings, observer and model of the engine. keeps_rest: see dataset.h. */
hy_status hy_engine_data_request(const hy_engine *e, bool keeps_rest, hy_data_request *out);
/* Opens the data set that the settings name. keeps_rest: see dataset.h. */
hy_status hy_engine_open_data(const hy_engine *e, bool keeps_rest, hy_dataset **out);
/* Opens the rows of eval.eval_rows. They are written and share sequences like the training data. */
hy_status hy_engine_open_rows(const hy_engine *e, const hy_dataset_facts *trained,
                              hy_dataset **out);
/* The path of the data: the run's copy of standard input if a resumed run has one. */
hy_status hy_data_path(const hy_settings *settings, char path[HY_TEXT_MAX]);
/* The model's folder, which has its tokenizer and template; "": none. */
hy_status hy_model_folder(const hy_settings *settings, char folder[HY_PATH_MAX]);
/* The requested tokenizer, or with "auto" the one in the folder (see hy_tokenizer_file), or the
 * file of llama2.c; "": tokens are bytes. */
hy_status hy_model_tokenizer(const hy_model *model, const char *asked, const char *folder,
                             char path[HY_PATH_MAX]);

/* Warns if `used`, the tokenizer that the user named, has other tokens than the one in the model's
 * folder: the model knows its own tokens by their ids. */
hy_status hy_model_compare_tokenizer(const hy_engine *e, const char *asked, const char *folder,
                                     const hy_tokenizer *used);

/* ---- initial.c: initial weights -------------------------------------------------------------- */

hy_status hy_engine_initialise_weights(hy_engine *e); /* random, from the seed */
/* Replaces the adapters by those of a PEFT folder. */
hy_status hy_engine_load_adapter(hy_engine *e, const char *folder);
/* Initialises only the adapters, if there are any: model files do not have them. */
hy_status hy_engine_initialise_adapters(hy_engine *e);
/* Reads the weights of a model's files. */
hy_status hy_engine_load_model(hy_engine *e, hy_model_files kind, const char *path);
