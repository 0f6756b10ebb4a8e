/* blocks.c: the table of types, and the types that need no search: fp32, fp16, bf16 and Q8_0. */
#include "formats/blocks.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/half.h"

static void decode_f32(const uint8_t *in, int64_t blocks, float *out) {
    memcpy(out, in, (size_t)blocks * sizeof *out);
}

static uint16_t u16_at(const uint8_t *in) {
    uint16_t value;
    memcpy(&value, in, sizeof value);
    return value;
}

static void put_u16(uint8_t *out, uint16_t value) { memcpy(out, &value, sizeof value); }

static void decode_f16(const uint8_t *in, int64_t blocks, float *out) {
    for (int64_t i = 0; i < blocks; i++) out[i] = hy_f16_to_f32(u16_at(in + 2 * i));
}

static void decode_bf16(const uint8_t *in, int64_t blocks, float *out) {
    for (int64_t i = 0; i < blocks; i++) out[i] = hy_bf16_to_f32(u16_at(in + 2 * i));
}

static void decode_q8_0(const uint8_t *in, int64_t blocks, float *out) {
    for (int64_t b = 0; b < blocks; b++, in += 34, out += 32) {
        float scale = hy_f16_to_f32(u16_at(in));
        for (int i = 0; i < 32; i++) out[i] = (float)(int8_t)in[2 + i] * scale;
    }
}

static void encode_f32(const float *in, int64_t blocks, uint8_t *out) {
    memcpy(out, in, (size_t)blocks * sizeof *in);
}

static void encode_f16(const float *in, int64_t blocks, uint8_t *out) {
    for (int64_t i = 0; i < blocks; i++) put_u16(out + 2 * i, hy_f32_to_f16(in[i]));
}

static void encode_bf16(const float *in, int64_t blocks, uint8_t *out) {
    for (int64_t i = 0; i < blocks; i++) put_u16(out + 2 * i, hy_f32_to_bf16(in[i]));
}

/* To nearest, ties away from zero; 0 where a tiny scale has no finite inverse. */
static int8_t rounded(float x) {
    float magnitude = fabsf(x);
    if (!(magnitude <= 127.5f)) return 0;
    int whole = (int)magnitude;
    whole += magnitude - (float)whole >= 0.5f;
    return (int8_t)(x < 0 ? -whole : whole);
}

static void encode_q8_0(const float *in, int64_t blocks, uint8_t *out) {
    for (int64_t b = 0; b < blocks; b++, in += 32, out += 34) {
        float largest = 0;
        for (int i = 0; i < 32; i++) largest = fmaxf(largest, fabsf(in[i]));
        float scale = largest / 127;
        float inverse = scale != 0 ? 1 / scale : 0;
        put_u16(out, hy_f32_to_f16(scale));
        for (int i = 0; i < 32; i++) out[2 + i] = (uint8_t)rounded(in[i] * inverse);
    }
}

typedef struct type_row {
    hy_block_traits traits;
    void (*decode)(const uint8_t *in, int64_t blocks, float *out);
    void (*encode)(const float *in, int64_t blocks, uint8_t *out);
} type_row;

#define ROW(name, elements, bytes, decode, encode)                                                 \
    { {name, elements, bytes, (decode) != NULL, (encode) != NULL}, decode, encode }
#define SIZE_ONLY(name, elements, bytes) ROW(name, elements, bytes, NULL, NULL)

static const type_row types[HY_BLOCK_TYPES] = {
    [HY_BLOCK_F32] = ROW("f32", 1, 4, decode_f32, encode_f32),
    [HY_BLOCK_F16] = ROW("f16", 1, 2, decode_f16, encode_f16),
    [HY_BLOCK_Q4_0] = SIZE_ONLY("q4_0", 32, 18),
    [HY_BLOCK_Q4_1] = SIZE_ONLY("q4_1", 32, 20),
    [HY_BLOCK_Q5_0] = SIZE_ONLY("q5_0", 32, 22),
    [HY_BLOCK_Q5_1] = SIZE_ONLY("q5_1", 32, 24),
    [HY_BLOCK_Q8_0] = ROW("q8_0", 32, 34, decode_q8_0, encode_q8_0),
    [9] = SIZE_ONLY("q8_1", 32, 36),
    [HY_BLOCK_Q2_K] = SIZE_ONLY("q2_K", 256, 84),
    [HY_BLOCK_Q3_K] = SIZE_ONLY("q3_K", 256, 110),
    [HY_BLOCK_Q4_K] = SIZE_ONLY("q4_K", 256, 144),
    [HY_BLOCK_Q5_K] = SIZE_ONLY("q5_K", 256, 176),
    [HY_BLOCK_Q6_K] = SIZE_ONLY("q6_K", 256, 210),
    [15] = SIZE_ONLY("q8_K", 256, 292),
    [16] = SIZE_ONLY("iq2_xxs", 256, 66),
    [17] = SIZE_ONLY("iq2_xs", 256, 74),
    [18] = SIZE_ONLY("iq3_xxs", 256, 98),
    [19] = SIZE_ONLY("iq1_s", 256, 50),
    [HY_BLOCK_IQ4_NL] = SIZE_ONLY("iq4_nl", 32, 18),
    [21] = SIZE_ONLY("iq3_s", 256, 110),
    [22] = SIZE_ONLY("iq2_s", 256, 82),
    [HY_BLOCK_IQ4_XS] = SIZE_ONLY("iq4_xs", 256, 136),
    [24] = SIZE_ONLY("i8", 1, 1),
    [25] = SIZE_ONLY("i16", 1, 2),
    [26] = SIZE_ONLY("i32", 1, 4),
    [27] = SIZE_ONLY("i64", 1, 8),
    [28] = SIZE_ONLY("f64", 1, 8),
    [29] = SIZE_ONLY("iq1_m", 256, 56),
    [HY_BLOCK_BF16] = ROW("bf16", 1, 2, decode_bf16, encode_bf16),
    [34] = SIZE_ONLY("tq1_0", 256, 54),
    [35] = SIZE_ONLY("tq2_0", 256, 66),
    [HY_BLOCK_MXFP4] = SIZE_ONLY("mxfp4", 32, 17),
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

void hy_blocks_decode(hy_block_type type, const void *blocks, int64_t elements, float *out) {
    types[type].decode(blocks, elements / types[type].traits.elements, out);
}

void hy_blocks_encode(hy_block_type type, const float *numbers, int64_t rows, int64_t cols,
                      const float *importance, void *out) {
    (void)importance;
    types[type].encode(numbers, rows * (cols / types[type].traits.elements), out);
}
