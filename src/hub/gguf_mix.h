/* gguf_mix.h: which number type each tensor of a GGUF file gets, as llama.cpp decides it.
 *
 * A mix is what users ask for: q4_k_m stores most matrices as Q4_K, and those that suffer most from
 * rounding (the head, half of the value and down projections) as Q6_K. Norms, biases and position
 * embeddings stay fp32. A matrix with rows that a type cannot cut into blocks gets a type of
 * smaller blocks, or fp16. The result depends on the arguments alone. llama.cpp stores some matrices
 * larger if it has importances; here calibration measures which ones (hy_gguf_raise). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hub/rounding.h"

typedef struct hy_gguf_mix {
    const char *name;   /* "q4_k_m" */
    hy_block_type type; /* of most matrices */
    uint32_t file_type; /* the value of general.file_type */
    bool has_more_bits; /* some layers get Q6_K */
} hy_gguf_mix;

/* All mixes, from large to small; NULL after the last. */
const hy_gguf_mix *hy_gguf_mix_at(size_t i);
/* NULL: there is none of this name. */
const hy_gguf_mix *hy_gguf_mix_find(const char *name);

typedef struct hy_gguf_mix_model {
    const char *architecture; /* as in general.architecture */
    int32_t layers, heads, kv_heads;
    bool is_tied; /* there is no output.weight: the head is the embedding */
} hy_gguf_mix_model;

/* The type of the tensor with this name in the GGUF file, rows of `cols` numbers; rows is 1 for a
 * vector. */
hy_block_type hy_gguf_mix_type(const hy_gguf_mix *mix, const hy_gguf_mix_model *model,
                               const char *name, int64_t rows, int64_t cols);

/* Gives a larger type to the tensors that lose most by rounding, until `bytes` are added: one step
 * at a time (q4_0, q5_0, q8_0; q4_K, q5_K, q6_K, q8_0) to the tensor that has the largest expected
 * fall of error / signal for each byte. Each bit more is expected to divide the error by four.
 * Returns how many tensors became larger. */
int32_t hy_gguf_raise(hy_tensor_costs *costs, uint64_t bytes);
