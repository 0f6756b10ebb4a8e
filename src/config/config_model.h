/* config_model.h: what a model's files bring to a configuration: their shape, as a preset would. */
#pragma once

#include "config/config_file.h"
#include "formats/hf_folder.h"

/* Hands the shape of these files and values that suit going on with their training to the sink; its line
 * is 0. `path` as hy_hf_find gave it. */
hy_status hy_config_model_read(hy_model_files kind, const char *path, hy_config_sink sink,
                               void *user);
