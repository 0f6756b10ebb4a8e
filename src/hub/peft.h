/* peft.h: adapters in PEFT's format: a folder with adapter_config.json and
 * adapter_model.safetensors.
 *
 * The config has rank, alpha and module names; the tensors are lora_A (rank, in) and lora_B
 * (out, rank) of each module, with q, k and v separate, and whole tensors of modules that were
 * trained whole. Unsupported options are rejected by name. */
#pragma once

#include "hub/hf_load.h"

#define HY_PEFT_CONFIG "adapter_config.json"
#define HY_PEFT_TENSORS "adapter_model.safetensors"

typedef struct hy_peft_config {
    int64_t rank;
    double alpha, dropout;
    bool is_root_scaled;       /* rsLoRA: alpha / sqrt(rank) */
    char targets[HY_PATH_MAX]; /* as hy_adapter_parts_named takes them; "all" for all-linear */
    char modules[HY_PATH_MAX]; /* trained whole, commas between; "": none */
    char base[HY_PATH_MAX];    /* its base model; "": not named */
} hy_peft_config;

bool hy_peft_is_folder(const char *folder);
hy_status hy_peft_config_read(const char *folder, hy_peft_config *out);
/* `base` is the base model's name in the config; the shape has adapters. */
hy_status hy_peft_config_write(const hy_shape *shape, const hy_params *params, const char *base,
                               hy_text *text);

/* Opens the tensors of a folder and checks names and shapes against the model; unknown and
 * missing tensors are errors. */
typedef struct hy_peft_file {
    hy_safetensors *tensors;
    hy_hf_name *names;
    int32_t count;
} hy_peft_file;
hy_status hy_peft_open(const char *folder, const hy_model *model, hy_peft_file *out);
void hy_peft_close(hy_peft_file *file);
/* Rows [row, row + rows) of tensor i in our layout, in fp32. The tensor may be transposed in the
 * file, so reading thousands of rows at once is much faster. HY_ERR_INPUT names a tensor with a NaN
 * or an infinity. */
hy_status hy_peft_read(const hy_peft_file *file, int32_t i, int64_t row, int64_t rows, float *out);
/* The number of rows of a good piece: about a million elements. */
int64_t hy_peft_rows_at_once(const hy_peft_file *file, int32_t i);

/* Fills adapters, and parameters trained whole, in the store of trained parameters. Everything
 * is checked first. */
hy_status hy_peft_load(const char *folder, const hy_model *model, hy_store *store,
                       hy_stream *stream);

/* All tensors of such a file, in the order of our parameters; the caller frees the list. */
hy_status hy_peft_list_names(const hy_shape *shape, const hy_params *params, hy_hf_name **out,
                             int32_t *count);
/* If the file has the head under its name in the model's files (embed_out of GPT-NeoX, whose class
 * in transformers 4 uses it too), its name in the list becomes that one. */
void hy_peft_use_old_head(const hy_family *family, hy_peft_file *file);
/* If the base of the file was the class for text and images, the list gets the names that the text
 * model's modules have in it. */
void hy_peft_use_text_prefix(const hy_family *family, hy_peft_file *file);
