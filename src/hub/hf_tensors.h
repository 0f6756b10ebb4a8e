/* hf_tensors.h: the weights of a model folder as one set of named tensors.
 *
 * They are in model.safetensors, or in the shards that model.safetensors.index.json lists.
 * Opening checks every header, and that each tensor is in exactly the file that the index names. */
#pragma once

#include "formats/safetensors.h"

#define HY_HF_SINGLE "model.safetensors"
#define HY_HF_INDEX "model.safetensors.index.json"

/* A tensor and its file. */
typedef struct hy_hf_found {
    const hy_safetensors *file;
    const hy_safetensors_entry *entry;
} hy_hf_found;

typedef struct hy_hf_tensors hy_hf_tensors;

hy_status hy_hf_tensors_open(const char *folder, hy_hf_tensors **out);
void hy_hf_tensors_close(hy_hf_tensors *tensors);
size_t hy_hf_tensors_count(const hy_hf_tensors *tensors);
hy_hf_found hy_hf_tensors_at(const hy_hf_tensors *tensors, size_t i);           /* by name */
hy_hf_found hy_hf_tensors_find(const hy_hf_tensors *tensors, const char *name); /* {0}: none */
