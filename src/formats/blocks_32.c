/* blocks_32.c: the types with blocks of 32 numbers and one scale.
 *
 * Layouts, in bytes; `half` is an fp16 number, and the low nibbles of 16 bytes are numbers 0..15,
 * the high ones 16..31:
 *
 *   Q4_0    half scale, 16 nibbles         scale * (q - 8)
 *   Q4_1    half scale, half min, 16       scale * q + min
 *   Q5_0    half scale, 4 of fifth bits, 16   scale * (q - 16)
 *   Q5_1    half scale, half min, 4, 16    scale * q + min
 *   Q8_0    half scale, 32 signed bytes    scale * q
 *   IQ4_NL  half scale, 16                 scale * table[q]
 *   MXFP4   exponent, 16                   2^(exponent - 127) * table[q] / 2 */
#include <math.h>

#include "formats/blocks_parts.h"

/* ---- unpacking ------------------------------------------------------------------------------- */

static void unpack_nibbles(const uint8_t *in, int8_t *q, int offset) {
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)((in[i] & 15) - offset);
        q[16 + i] = (int8_t)((in[i] >> 4) - offset);
    }
}

static void unpack_five_bits(const uint8_t *in, int8_t *q, int offset) {
    unpack_nibbles(in + 4, q, offset);
    for (int i = 0; i < 32; i++) q[i] = (int8_t)(q[i] + ((in[i / 8] >> i % 8 & 1) << 4));
}

void hy_unpack_q4_0(const uint8_t *in, hy_block_parts *parts) {
    *parts->scale = hy_half_at(in);
    unpack_nibbles(in + 2, parts->q, 8);
}

void hy_unpack_q4_1(const uint8_t *in, hy_block_parts *parts) {
    *parts->scale = hy_half_at(in);
    *parts->min = -hy_half_at(in + 2);
    unpack_nibbles(in + 4, parts->q, 0);
}

void hy_unpack_q5_0(const uint8_t *in, hy_block_parts *parts) {
    *parts->scale = hy_half_at(in);
    unpack_five_bits(in + 2, parts->q, 16);
}

void hy_unpack_q5_1(const uint8_t *in, hy_block_parts *parts) {
    *parts->scale = hy_half_at(in);
    *parts->min = -hy_half_at(in + 2);
    unpack_five_bits(in + 4, parts->q, 0);
}

void hy_unpack_q8_0(const uint8_t *in, hy_block_parts *parts) {
    *parts->scale = hy_half_at(in);
    memcpy(parts->q, in + 2, 32);
}

const int8_t hy_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

void hy_unpack_table(const uint8_t *in, const int8_t table[16], int8_t *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = table[in[i] & 15];
        q[16 + i] = table[in[i] >> 4];
    }
}

void hy_unpack_iq4_nl(const uint8_t *in, hy_block_parts *parts) {
    *parts->scale = hy_half_at(in);
    hy_unpack_table(in + 2, hy_iq4_values, parts->q);
}

void hy_unpack_mxfp4(const uint8_t *in, hy_block_parts *parts) {
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    /* 2^(exponent - 128); the two smallest are subnormal. */
    *parts->scale = hy_bits_float(in[0] < 2 ? 0x200000u << in[0] : (uint32_t)(in[0] - 1) << 23);
    hy_unpack_table(in + 1, doubled, parts->q);
}

/* ---- packing --------------------------------------------------------------------------------- */

static void pack_nibbles(const uint8_t *q, uint8_t *out) {
    for (int i = 0; i < 16; i++) out[i] = (uint8_t)((q[i] & 15) | q[16 + i] << 4);
}

static void pack_five_bits(const uint8_t *q, uint8_t *out) {
    uint32_t fifth = 0;
    for (int i = 0; i < 32; i++) fifth |= (uint32_t)(q[i] >> 4 & 1) << i;
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(fifth >> 8 * i);
    pack_nibbles(q, out + 4);
}

void hy_pack_q4_0(const uint8_t *codes, uint8_t *out) { pack_nibbles(codes, out + 2); }
void hy_pack_q4_1(const uint8_t *codes, uint8_t *out) { pack_nibbles(codes, out + 4); }
void hy_pack_q5_0(const uint8_t *codes, uint8_t *out) { pack_five_bits(codes, out + 2); }
void hy_pack_q5_1(const uint8_t *codes, uint8_t *out) { pack_five_bits(codes, out + 4); }

void hy_pack_q8_0(const uint8_t *codes, uint8_t *out) {
    for (int i = 0; i < 32; i++) out[2 + i] = (uint8_t)(codes[i] - 127);
}

/* A kind of 4 or 5 bits: Q4_0, Q4_1, Q5_0, Q5_1. */
typedef struct kind {
    int bits;
    bool has_min;
} kind;

static int bytes_of(kind type) { return 2 + 2 * type.has_min + (type.bits == 5 ? 20 : 16); }

static void pack(kind type, float scale, float min, const uint8_t *q, uint8_t *out) {
    hy_put_u16(out, hy_f32_to_f16(scale));
    if (type.has_min) hy_put_u16(out + 2, hy_f32_to_f16(min));
    (type.bits == 5 ? pack_five_bits : pack_nibbles)(q, out + 2 + 2 * type.has_min);
}

/* ---- rounding to nearest --------------------------------------------------------------------- */

/* The magnitude of 0 or more, without its fraction, at most top. A tiny scale has an infinite
 * inverse, which gives 0. */
static uint8_t cut(float x, int top) {
    int whole = x > 0 && x < (float)(top + 2) ? (int)x : 0;
    return (uint8_t)(whole < top ? whole : top);
}

static float largest_magnitude(const float *x) {
    float largest = 0;
    for (int i = 0; i < 32; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    return largest;
}

/* The number of largest magnitude becomes -half: the first one, if both signs occur. */
static void round_signed(kind type, const float *x, uint8_t *out) {
    float half = (float)(1 << (type.bits - 1)), largest = largest_magnitude(x);
    int first = 0;
    while (first < 31 && fabsf(x[first]) != largest) first++;
    float scale = x[first] / -half;
    float inverse = scale != 0 ? 1 / scale : 0;
    uint8_t q[32];
    for (int i = 0; i < 32; i++) q[i] = cut(x[i] * inverse + (half + 0.5f), (1 << type.bits) - 1);
    pack(type, scale, 0, q, out);
}

static void round_range(kind type, const float *x, uint8_t *out) {
    int top = (1 << type.bits) - 1;
    float low = x[0], high = x[0];
    for (int i = 1; i < 32; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float scale = (high - low) / (float)top;
    float inverse = scale != 0 ? 1 / scale : 0;
    uint8_t q[32];
    for (int i = 0; i < 32; i++) q[i] = cut((x[i] - low) * inverse + 0.5f, top);
    pack(type, scale, low, q, out);
}

/* To nearest, ties away from zero. */
static uint8_t rounded(float x) {
    float magnitude = fabsf(x);
    int whole = magnitude < 128 ? (int)magnitude : 0;
    whole += magnitude < 128 && magnitude - (float)whole >= 0.5f;
    return (uint8_t)(x < 0 ? -whole : whole);
}

void hy_encode_q8_0(const hy_block_row *row, uint8_t *out) {
    const float *x = row->x;
    for (int64_t at = 0; at < row->cols; at += 32, x += 32, out += 34) {
        float scale = largest_magnitude(x) / 127;
        float inverse = scale != 0 ? 1 / scale : 0;
        hy_put_u16(out, hy_f32_to_f16(scale));
        for (int i = 0; i < 32; i++) out[2 + i] = rounded(x[i] * inverse);
    }
}

/* ---- with importance ------------------------------------------------------------------------- */

/* Blocks [first, first + n) of a row become groups; missing ones are zero. */
static void load_blocks(const hy_block_row *row, int64_t first, int n, float mean_square,
                        hy_groups *g) {
    for (int k = 0; k < HY_LANES; k++) {
        int64_t at = 32 * (first + (k < n ? k : 0));
        const float *x = row->x + at, *importance = row->importance + at;
        for (int i = 0; i < 32; i++) {
            g->x[i][k] = k < n ? x[i] : 0;
            g->weight[i][k] = k < n ? importance[i] * sqrtf(mean_square + x[i] * x[i]) : 0;
        }
    }
}

static void fit_row(kind type, const hy_block_row *row, uint8_t *out) {
    float sum = 0;
    for (int64_t i = 0; i < row->cols; i++) sum += row->x[i] * row->x[i];
    float mean_square = sum / (float)row->cols;
    hy_groups g = {.count = 32};
    int64_t blocks = row->cols / 32;
    for (int64_t at = 0; at < blocks; at += HY_LANES) {
        int n = blocks - at < HY_LANES ? (int)(blocks - at) : HY_LANES;
        load_blocks(row, at, n, mean_square, &g);
        if (type.has_min) {
            hy_fit_range(&g, (1 << type.bits) - 1, -0.9f, 0.05f, 36);
        } else {
            hy_fit_signed(&g, 1 << (type.bits - 1));
        }
        for (int k = 0; k < n; k++, out += bytes_of(type)) {
            uint8_t q[32];
            for (int i = 0; i < 32; i++) q[i] = g.q[i][k];
            pack(type, g.scale[k], type.has_min ? -g.min[k] : 0, q, out);
        }
    }
}

static void encode(kind type, const hy_block_row *row, uint8_t *out) {
    if (row->importance) {
        fit_row(type, row, out);
        return;
    }
    for (int64_t at = 0; at < row->cols; at += 32, out += bytes_of(type)) {
        (type.has_min ? round_range : round_signed)(type, row->x + at, out);
    }
}

void hy_encode_q4_0(const hy_block_row *row, uint8_t *out) { encode((kind){4, false}, row, out); }
void hy_encode_q4_1(const hy_block_row *row, uint8_t *out) { encode((kind){4, true}, row, out); }
void hy_encode_q5_0(const hy_block_row *row, uint8_t *out) { encode((kind){5, false}, row, out); }
void hy_encode_q5_1(const hy_block_row *row, uint8_t *out) { encode((kind){5, true}, row, out); }
