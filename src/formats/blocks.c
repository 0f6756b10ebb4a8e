/* blocks.c: the table of number types, plain numbers, and the loop that decodes all others. */
#include "formats/blocks.h"

#include <assert.h>
#include <string.h>

#include "formats/blocks_parts.h"

static void decode_f32(const uint8_t *in, int64_t elements, float *out) {
    memcpy(out, in, (size_t)elements * sizeof *out);
}

static void decode_f16(const uint8_t *in, int64_t elements, float *out) {
    for (int64_t i = 0; i < elements; i++) out[i] = hy_half_at(in + 2 * i);
}

static void decode_bf16(const uint8_t *in, int64_t elements, float *out) {
    for (int64_t i = 0; i < elements; i++) {
        out[i] = hy_bf16_to_f32((uint16_t)(in[2 * i] | in[2 * i + 1] << 8));
    }
}

static void encode_f32(const hy_block_row *row, uint8_t *out) {
    memcpy(out, row->x, (size_t)row->cols * sizeof *row->x);
}

static void encode_f16(const hy_block_row *row, uint8_t *out) {
    for (int64_t i = 0; i < row->cols; i++) hy_put_u16(out + 2 * i, hy_f32_to_f16(row->x[i]));
}

static void encode_bf16(const hy_block_row *row, uint8_t *out) {
    for (int64_t i = 0; i < row->cols; i++) hy_put_u16(out + 2 * i, hy_f32_to_bf16(row->x[i]));
}

/* A type has either `decode` or `unpack`, or neither. */
typedef struct type_row {
    hy_block_traits traits;
    void (*decode)(const uint8_t *in, int64_t elements, float *out);
    int group; /* numbers with the same scale */
    void (*unpack)(const uint8_t *in, hy_block_parts *parts);
    void (*encode)(const hy_block_row *row, uint8_t *out);
} type_row;

#define PLAIN(name, bytes, decode, encode)                                                         \
    { {name, 1, bytes, true, true}, decode, 1, NULL, encode }
#define CODED(name, elements, bytes, group, unpack, encode)                                        \
    { {name, elements, bytes, true, true}, NULL, group, unpack, encode }
#define DECODED(name, elements, bytes, group, unpack)                                              \
    { {name, elements, bytes, true, false}, NULL, group, unpack, NULL }
#define SIZE_ONLY(name, elements, bytes)                                                           \
    { {name, elements, bytes, false, false}, NULL, 1, NULL, NULL }

static const type_row types[HY_BLOCK_TYPES] = {
    [HY_BLOCK_F32] = PLAIN("f32", 4, decode_f32, encode_f32),
    [HY_BLOCK_F16] = PLAIN("f16", 2, decode_f16, encode_f16),
    [HY_BLOCK_Q4_0] = CODED("q4_0", 32, 18, 32, hy_unpack_q4_0, hy_encode_q4_0),
    [HY_BLOCK_Q4_1] = CODED("q4_1", 32, 20, 32, hy_unpack_q4_1, hy_encode_q4_1),
    [HY_BLOCK_Q5_0] = CODED("q5_0", 32, 22, 32, hy_unpack_q5_0, hy_encode_q5_0),
    [HY_BLOCK_Q5_1] = CODED("q5_1", 32, 24, 32, hy_unpack_q5_1, hy_encode_q5_1),
    [HY_BLOCK_Q8_0] = CODED("q8_0", 32, 34, 32, hy_unpack_q8_0, hy_encode_q8_0),
    [9] = SIZE_ONLY("q8_1", 32, 36),
    [HY_BLOCK_Q2_K] = DECODED("q2_K", 256, 84, 16, hy_unpack_q2_k),
    [HY_BLOCK_Q3_K] = DECODED("q3_K", 256, 110, 16, hy_unpack_q3_k),
    [HY_BLOCK_Q4_K] = CODED("q4_K", 256, 144, 32, hy_unpack_q4_k, hy_encode_q4_k),
    [HY_BLOCK_Q5_K] = CODED("q5_K", 256, 176, 32, hy_unpack_q5_k, hy_encode_q5_k),
    [HY_BLOCK_Q6_K] = CODED("q6_K", 256, 210, 16, hy_unpack_q6_k, hy_encode_q6_k),
    [15] = SIZE_ONLY("q8_K", 256, 292),
    [16] = SIZE_ONLY("iq2_xxs", 256, 66),
    [17] = SIZE_ONLY("iq2_xs", 256, 74),
    [18] = SIZE_ONLY("iq3_xxs", 256, 98),
    [19] = SIZE_ONLY("iq1_s", 256, 50),
    [HY_BLOCK_IQ4_NL] = DECODED("iq4_nl", 32, 18, 32, hy_unpack_iq4_nl),
    [21] = SIZE_ONLY("iq3_s", 256, 110),
    [22] = SIZE_ONLY("iq2_s", 256, 82),
    [HY_BLOCK_IQ4_XS] = DECODED("iq4_xs", 256, 136, 32, hy_unpack_iq4_xs),
    [24] = SIZE_ONLY("i8", 1, 1),
    [25] = SIZE_ONLY("i16", 1, 2),
    [26] = SIZE_ONLY("i32", 1, 4),
    [27] = SIZE_ONLY("i64", 1, 8),
    [28] = SIZE_ONLY("f64", 1, 8),
    [29] = SIZE_ONLY("iq1_m", 256, 56),
    [HY_BLOCK_BF16] = PLAIN("bf16", 2, decode_bf16, encode_bf16),
    [34] = SIZE_ONLY("tq1_0", 256, 54),
    [35] = SIZE_ONLY("tq2_0", 256, 66),
    [HY_BLOCK_MXFP4] = DECODED("mxfp4", 32, 17, 32, hy_unpack_mxfp4),
    [40] = SIZE_ONLY("nvfp4", 64, 36),
    [41] = SIZE_ONLY("q1_0", 128, 18),
    [42] = SIZE_ONLY("q2_0", 64, 18),
};

const hy_block_traits *hy_block_traits_of(uint32_t type) {
    return type < HY_BLOCK_TYPES && types[type].traits.name ? &types[type].traits : NULL;
}

uint64_t hy_blocks_bytes(hy_block_type type, int64_t elements) {
    const hy_block_traits *traits = &types[type].traits;
    assert(elements % traits->elements == 0);
    return (uint64_t)(elements / traits->elements) * (uint64_t)traits->bytes;
}

/* number = scale * q - min; a type without min leaves it 0, which changes no bit of the product. */
static void decode_blocks(const type_row *type, const uint8_t *in, int64_t blocks, float *out) {
    hy_block_parts parts = {0};
    for (int64_t b = 0; b < blocks; b++, in += type->traits.bytes) {
        type->unpack(in, &parts);
        for (int at = 0, g = 0; at < type->traits.elements; at += type->group, g++) {
            float scale = parts.scale[g], min = parts.min[g];
            for (int i = 0; i < type->group; i++) *out++ = scale * (float)parts.q[at + i] - min;
        }
    }
}

void hy_blocks_decode(hy_block_type type, const void *blocks, int64_t elements, float *out) {
    const type_row *row = &types[type];
    assert(row->traits.can_decode && elements % row->traits.elements == 0);
    if (row->decode) {
        row->decode(blocks, elements, out);
    } else {
        decode_blocks(row, blocks, elements / row->traits.elements, out);
    }
}

void hy_blocks_encode(hy_block_type type, const float *numbers, int64_t rows, int64_t cols,
                      const float *importance, void *out) {
    assert(types[type].traits.can_encode);
    uint64_t bytes = hy_blocks_bytes(type, cols);
    for (int64_t r = 0; r < rows; r++) {
        hy_block_row row = {numbers + r * cols, importance, cols};
        types[type].encode(&row, (uint8_t *)out + (uint64_t)r * bytes);
    }
}

/* ---- codes alone ----------------------------------------------------------------------------- */

/* The smallest and the largest integer of a type, and what stores them. */
typedef struct code_row {
    int first, last;
    void (*pack)(const uint8_t *codes, uint8_t *out);
} code_row;

static const code_row codes_of[HY_BLOCK_TYPES] = {
    [HY_BLOCK_Q4_0] = {-8, 7, hy_pack_q4_0},     [HY_BLOCK_Q4_1] = {0, 15, hy_pack_q4_1},
    [HY_BLOCK_Q5_0] = {-16, 15, hy_pack_q5_0},   [HY_BLOCK_Q5_1] = {0, 31, hy_pack_q5_1},
    [HY_BLOCK_Q8_0] = {-127, 127, hy_pack_q8_0}, [HY_BLOCK_Q4_K] = {0, 15, hy_pack_q4_k},
    [HY_BLOCK_Q5_K] = {0, 31, hy_pack_q5_k},     [HY_BLOCK_Q6_K] = {-32, 31, hy_pack_q6_k},
};

void hy_block_grid_of(hy_block_type type, const void *block, hy_block_grid *out) {
    const type_row *row = &types[type];
    const code_row *codes = &codes_of[type];
    hy_block_parts parts = {0};
    row->unpack(block, &parts);
    out->last = codes->last - codes->first;
    for (int i = 0; i < row->traits.elements; i++) {
        out->step[i] = parts.scale[i / row->group];
        out->low[i] = out->step[i] * (float)codes->first - parts.min[i / row->group];
    }
}

void hy_block_set_codes(hy_block_type type, const uint8_t *codes, void *block) {
    codes_of[type].pack(codes, block);
}

bool hy_blocks_are_finite(hy_block_type type, const void *blocks, int64_t elements) {
    enum { SOME = 256 }; /* whole blocks of every type */
    float x[SOME] = {0}, sum = 0;
    const uint8_t *in = blocks;
    for (int64_t at = 0; at < elements && sum == 0; at += SOME) {
        int64_t n = elements - at < SOME ? elements - at : SOME;
        hy_blocks_decode(type, in, n, x);
        for (int64_t i = 0; i < n; i++) sum += 0 * x[i]; /* 0, or NaN */
        in += hy_blocks_bytes(type, n);
    }
    return sum == 0;
}
