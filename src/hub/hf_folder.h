/* hf_folder.h: finds the files of a model.
 *
 * A model is named by a folder (config.json, safetensors, tokenizer), by its hub name if it is
 * in the hub's cache ("Qwen/Qwen2.5-0.5B"), or by a llama2.c or GGUF file. Only names are read.
 * Where other code takes the folder of a model, it also takes the path of a GGUF file. */
#pragma once

#include <stdbool.h>

#include "base/text.h"

#define HY_HF_PATH_MAX 1024

typedef enum hy_model_files {
    HY_FILES_NONE,    /* nothing of that name */
    HY_FILES_HF,      /* a folder with config.json */
    HY_FILES_LLAMA2C, /* a llama2.c file */
    HY_FILES_GGUF,    /* a GGUF file */
    HY_FILES_COUNT
} hy_model_files;

/* Finds the folder or file of `name`. A folder without config.json but with one GGUF or llama2.c
 * file means that file. If nothing is found, *kind is HY_FILES_NONE. HY_ERR_INPUT: it exists but is
 * not usable: several revisions, or a folder without a model. */
hy_status hy_hf_find(const char *name, hy_model_files *kind, char path[HY_HF_PATH_MAX]);

/* Could this be a name on the hub: ORG/NAME or NAME? */
bool hy_hf_is_hub_name(const char *name);

/* The path of that model in the hub's cache, whether it exists or not: in the first cache that
 * the environment names. */
hy_status hy_hf_cache_folder(const char *name, char path[HY_HF_PATH_MAX]);

/* The end of a message that `name` was not found: how to download it if it may be a hub name,
 * else "". */
hy_hint hy_hf_how_to_fetch(const char *name);

/* Is this file copied when a model is written? Tokenizer, chat templates, generation settings,
 * licence. */
bool hy_hf_is_side_file(const char *name);

/* Whether `path` is a regular file of the model in `folder`: it lies there, or is a link to a file
 * there or where the hub's cache keeps the files of that model. A link to anywhere else is not
 * copied. */
bool hy_hf_holds_file(const char *folder, const char *path);
