/* hf_rest.h: the tensors that a folder has beside the text model: the parts for images of a model
 * of text and images, and those that predict more tokens (mtp).
 *
 * An export copies them unchanged, so that the folder keeps its class. */
#pragma once

#include "hub/hf_names.h"
#include "hub/hf_tensors.h"

typedef struct hy_hf_rest {
    hy_hf_tensors *tensors; /* NULL: nothing is kept */
    hy_hf_found *list;
    int32_t count;
    const char *prefix; /* of the text model's tensors */
    bool is_any;        /* there are some, even if they cannot be copied */
} hy_hf_rest;

/* Lists them. In a folder of a text model, they are those whose names begin as the family says.
 * Leaves `out` empty if the folder has none. HY_ERR_INPUT names a tensor that cannot be copied, and
 * says why. */
hy_status hy_hf_rest_open(const char *folder, const hy_family *family, hy_hf_rest *out);
void hy_hf_rest_close(hy_hf_rest *rest);
/* The number of elements of a tensor. */
int64_t hy_hf_rest_elements(const hy_safetensors_entry *entry);
/* Copies the bytes of a tensor. `piece`: memory for that many bytes at a time. */
hy_status hy_hf_rest_copy(hy_hf_found found, void *piece, uint64_t size,
                          hy_safetensors_writer *out);
