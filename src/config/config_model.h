/* config_model.h: what a model's files bring to a configuration: their shape, as a preset would. */
#pragma once

#include "config/config_file.h"
#include "hub/hf_folder.h"

/* Adds to the message of a failure what a folder that is no model may be instead: a run, an
 * adapter. */
void hy_config_hint_model(const char *folder);

/* Hands the shape of these files and values that suit going on with their training to the sink; its
 * line is 0. `path` as hy_hf_find gave it. */
hy_status hy_config_model_read(hy_model_files kind, const char *path, hy_config_sink sink,
                               void *user);
