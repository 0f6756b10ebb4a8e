/* gguf_load.h: a GGUF file as the files of a model: shape, weights, and what else a model folder
 * would have.
 *
 * gguf_config.c reads the shape from the keys, gguf_load.c finds the weights. The tables of
 * gguf_names.h, which the export uses, too, say how llama.cpp names them. A key or tensor that
 * would change the model is used or refused by name. */
#pragma once

#include "hub/gguf_names.h"
#include "hub/hf_load.h"

/* The shape of the model in an open file. Notes for the user are added to `notes`, one per line. */
hy_status hy_gguf_read_shape(const hy_gguf *file, hy_shape *out, hy_text *notes);

/* As hy_hf_config_read, for a file: its type is that of its matrices, bf16 for quantised ones. */
hy_status hy_gguf_config_read(const char *path, hy_hf_config *out);

/* A config.json for the file's model. */
hy_status hy_gguf_config_json(const char *path, hy_text *out);

/* Writes what a model folder has beside config.json and weights: tokenizer.json,
 * tokenizer_config.json with the chat template, generation_config.json. */
hy_status hy_gguf_put_side_files(const char *path, const char *folder);

/* Opens the file and lists the parts of the model's parameters in it. HY_ERR_INPUT names a tensor
 * that is missing, unknown, or of another shape or type. */
hy_status hy_gguf_open_weights(const char *path, const hy_model *model, hy_weight_files *out);
