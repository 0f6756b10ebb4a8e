/* config_model.h: reads the shape of a model's files into a configuration, as a preset would.
 *
 * config.c calls it when `model` names a model folder or a checkpoint of llama2.c instead of a
 * preset. */
#pragma once

#include "config/config_file.h"
#include "hub/hf_folder.h"

/* Replaces the folder of a finished run by its model, in place; other names stay unchanged. */
void hy_config_find_model(char *name, size_t size);
/* If `folder` is a run or an adapter instead of a model, adds a hint to the error message. */
void hy_config_hint_model(const char *folder);

/* Passes the shape of these files, and values that suit fine-tuning, to the sink with line 0.
 * `path` is the result of hy_hf_find. */
hy_status hy_config_model_read(hy_model_files kind, const char *path, hy_config_sink sink,
                               void *user);
