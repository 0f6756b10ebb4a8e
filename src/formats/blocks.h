/* blocks.h: the number types of GGUF files, decoded to fp32 and encoded from it.
 *
 * A row is cut into blocks of 32 or 256 numbers; a block holds small integers and the scales that
 * they are multiplied with. hy_blocks_encode gives the bytes that the `gguf` package writes (Q4_0
 * to Q8_0 without importance) or those of llama.cpp's ggml_quantize_chunk (all others), on every
 * machine: these files are compiled without contraction of multiply and add. Any bytes can be
 * decoded; a scale that is NaN or infinite gives such numbers. Nothing is allocated, and threads
 * may work on different rows at the same time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The values are those of GGUF files. */
typedef enum hy_block_type {
    HY_BLOCK_F32 = 0,
    HY_BLOCK_F16 = 1,
    HY_BLOCK_Q4_0 = 2,
    HY_BLOCK_Q4_1 = 3,
    HY_BLOCK_Q5_0 = 6,
    HY_BLOCK_Q5_1 = 7,
    HY_BLOCK_Q8_0 = 8,
    HY_BLOCK_Q2_K = 10,
    HY_BLOCK_Q3_K = 11,
    HY_BLOCK_Q4_K = 12,
    HY_BLOCK_Q5_K = 13,
    HY_BLOCK_Q6_K = 14,
    HY_BLOCK_IQ4_NL = 20,
    HY_BLOCK_IQ4_XS = 23,
    HY_BLOCK_BF16 = 30,
    HY_BLOCK_MXFP4 = 39,
    HY_BLOCK_TYPES = 43 /* above all types, also those that are not listed here */
} hy_block_type;

typedef struct hy_block_traits {
    const char *name;        /* as llama.cpp writes it: "f32", "q4_K", "iq2_xxs" */
    int32_t elements, bytes; /* of a block */
    bool can_decode, can_encode;
} hy_block_traits;

/* NULL: not a type of GGUF files. Sizes are known for all types of ggml. */
const hy_block_traits *hy_block_traits_of(uint32_t type);

/* Bytes of this many numbers, which are whole blocks. */
uint64_t hy_blocks_bytes(hy_block_type type, int64_t elements);

/* Whole blocks of a type with can_decode; `blocks` needs no alignment. */
void hy_blocks_decode(hy_block_type type, const void *blocks, int64_t elements, float *out);

/* Rows (rows,cols) for a type with can_encode; cols is whole blocks. importance: a weight >= 0 for
 * each column (cols), or NULL. F32, F16, BF16 and Q8_0 ignore it. Magnitudes must be at most 1e12:
 * larger or NaN, they give arbitrary numbers in types other than F32 and BF16. */
void hy_blocks_encode(hy_block_type type, const float *numbers, int64_t rows, int64_t cols,
                      const float *importance, void *out);

/* The numbers that an encoded block can hold with its scales: low[i] + step[i] * code, with codes 0
 * to last. For types in blocks with can_encode. */
typedef struct hy_block_grid {
    float step[256], low[256];
    int32_t last;
} hy_block_grid;
void hy_block_grid_of(hy_block_type type, const void *block, hy_block_grid *out);
/* Replaces the codes of a block; its scales stay. */
void hy_block_set_codes(hy_block_type type, const uint8_t *codes, void *block);

/* Whether all numbers are finite. They are not after encoding numbers that are too large for the
 * fp16 scale of a type. */
bool hy_blocks_are_finite(hy_block_type type, const void *blocks, int64_t elements);
