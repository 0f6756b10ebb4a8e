/* hf_folder.h: where the files of a model are.
 *
 * A model is named by a folder (config.json, safetensors, tokenizer), by its name on the hub when
 * the hub's cache has it ("Qwen/Qwen2.5-0.5B"), or by a llama2.c file. Finding reads names only. */
#pragma once

#include <stdbool.h>

#include "base/text.h"

#define HY_HF_PATH_MAX 1024

typedef enum hy_model_files {
    HY_FILES_NONE,   /* nothing of that name */
    HY_FILES_HF,     /* a folder with config.json */
    HY_FILES_LLAMA2C /* a llama2.c file */
} hy_model_files;

/* What `name` stands for, and the folder or file that it is. A folder without config.json that
 * holds one llama2.c file is that file. Not found is no failure: *kind is HY_FILES_NONE.
 * HY_ERR_INPUT when something is there but cannot be used: several revisions, a folder without a
 * model. */
hy_status hy_hf_find(const char *name, hy_model_files *kind, char path[HY_HF_PATH_MAX]);

/* Whether it may be a name on the hub: ORG/NAME or NAME. */
bool hy_hf_is_hub_name(const char *name);

/* Where the hub's cache keeps the model of that name, whether it is there or not: the first of the
 * caches that the environment names. */
hy_status hy_hf_cache_folder(const char *name, char path[HY_HF_PATH_MAX]);

/* For the end of a message that `name` was not found: how to fetch it where it may be one of the
 * hub's, else "". */
hy_hint hy_hf_how_to_fetch(const char *name);

/* A file that is copied along when a model is written: tokenizer, chat templates, generation
 * settings, licence. */
bool hy_hf_is_side_file(const char *name);

/* Whether `path` is a regular file of the model in `folder`: it lies there, or is a link to a file
 * there or where the hub's cache keeps the files of that model. A link to anywhere else is not
 * copied. */
bool hy_hf_holds_file(const char *folder, const char *path);
