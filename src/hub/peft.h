/* peft.h: adapters as PEFT keeps them: a folder with adapter_config.json and
 * adapter_model.safetensors.
 *
 * The config says rank, alpha and the names of modules; the tensors are lora_A (rank, in) and
 * lora_B (out, rank) of each module, q, k and v apart, and whole tensors of modules that were
 * trained beside them. What it says that we do not compute is refused by name. */
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
    char base[HY_PATH_MAX];    /* the model it stands beside; "": not said */
} hy_peft_config;

bool hy_peft_is_folder(const char *folder);
hy_status hy_peft_config_read(const char *folder, hy_peft_config *out);
/* `base` is what the config names as the model; the shape has adapters. */
hy_status hy_peft_config_write(const hy_shape *shape, const hy_params *params, const char *base,
                               hy_text *text);

/* The tensors of a folder, checked against the model: names and shapes; one that has no place there
 * is an error, and so is one that is missing. */
typedef struct hy_peft_file {
    hy_safetensors *tensors;
    hy_hf_name *names;
    int32_t count;
} hy_peft_file;
hy_status hy_peft_open(const char *folder, const hy_model *model, hy_peft_file *out);
void hy_peft_close(hy_peft_file *file);
/* Rows [row, row + rows) of tensor i as ours lie, in fp32: it may lie transposed in the file, so
 * that some thousands at once are read much faster than one by one. HY_ERR_INPUT names a tensor
 * that holds a NaN or an infinity. */
hy_status hy_peft_read(const hy_peft_file *file, int32_t i, int64_t row, int64_t rows, float *out);
/* How many rows are a good piece of work: about a million elements. */
int64_t hy_peft_rows_at_once(const hy_peft_file *file, int32_t i);

/* Fills adapters, and parameters that are trained whole, of the store that holds what is trained.
 * Everything is checked first. */
hy_status hy_peft_load(const char *folder, const hy_model *model, hy_store *store,
                       hy_stream *stream);

/* All tensors of such a file, in the order of our parameters; the caller frees the list. */
hy_status hy_peft_list_names(const hy_shape *shape, const hy_params *params, hy_hf_name **out,
                             int32_t *count);
