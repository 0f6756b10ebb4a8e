/* blocks_parts.h: what the files of blocks.h share.
 *
 * Each type has a function that unpacks one block into integers and scales, so that decoding is one
 * loop for all types. Encoding chooses scales and integers for groups of numbers: eight groups at a
 * time, one in each lane of a vector, because the sums of a group must be taken in the order of
 * its numbers to give llama.cpp's bytes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/half.h"

#define HY_GROUPS_MAX 16

/* One block: a number q of group g stands for scale[g] * q - min[g]. */
typedef struct hy_block_parts {
    float scale[HY_GROUPS_MAX], min[HY_GROUPS_MAX];
    int8_t q[256];
} hy_block_parts;

static inline float hy_half_at(const uint8_t *in) {
    return hy_f16_to_f32((uint16_t)(in[0] | in[1] << 8));
}

static inline void hy_put_u16(uint8_t *out, uint16_t value) {
    out[0] = (uint8_t)value;
    out[1] = (uint8_t)(value >> 8);
}

/* To nearest, ties to even. A value outside of +-2^22 gives an arbitrary integer of 23 bits, the
 * same as in llama.cpp. */
static inline int hy_nearest(float x) {
    return (int)(hy_float_bits(x + 12582912.f) & 0x7fffffu) - 0x400000;
}

static inline int hy_clamp(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

#define HY_LANES 8
typedef float hy_lanes[HY_LANES];

/* Groups of `count` numbers with the weights of their errors: x[i][k] is number i of group k. */
typedef struct hy_groups {
    int count; /* at most 32 */
    hy_lanes x[32], weight[32];
    hy_lanes scale, min; /* the result; min only of hy_fit_range */
    uint8_t q[32][HY_LANES];
} hy_groups;

/* x ~ scale * q - min with q in 0..top, min >= 0: of 1 + steps inverse scales
 * (first + i * step + top) / range and the plain one, the best. */
void hy_fit_range(hy_groups *groups, int top, float first, float step, int steps);
/* x ~ scale * (q - top) with q in 0..2*top-1. A group of zeros has q = 0 and scale = 0. */
void hy_fit_signed(hy_groups *groups, int top);

/* One row for encoding; importance may be NULL. */
typedef struct hy_block_row {
    const float *x, *importance; /* (cols) */
    int64_t cols;
} hy_block_row;

/* Values of IQ4_NL and IQ4_XS; 16 bytes of nibbles, each an index into such a table. */
extern const int8_t hy_iq4_values[16];
void hy_unpack_table(const uint8_t *in, const int8_t table[16], int8_t *q);

void hy_unpack_q4_0(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_q4_1(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_q5_0(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_q5_1(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_q8_0(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_iq4_nl(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_mxfp4(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_q2_k(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_q3_k(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_q4_k(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_q5_k(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_q6_k(const uint8_t *in, hy_block_parts *parts);
void hy_unpack_iq4_xs(const uint8_t *in, hy_block_parts *parts);

void hy_encode_q4_0(const hy_block_row *row, uint8_t *out);
void hy_encode_q4_1(const hy_block_row *row, uint8_t *out);
void hy_encode_q5_0(const hy_block_row *row, uint8_t *out);
void hy_encode_q5_1(const hy_block_row *row, uint8_t *out);
void hy_encode_q8_0(const hy_block_row *row, uint8_t *out);
void hy_encode_q4_k(const hy_block_row *row, uint8_t *out);
void hy_encode_q5_k(const hy_block_row *row, uint8_t *out);
void hy_encode_q6_k(const hy_block_row *row, uint8_t *out);

/* Store the integers of a block, counted from the type's smallest one, and leave its scales. */
void hy_pack_q4_0(const uint8_t *codes, uint8_t *out);
void hy_pack_q4_1(const uint8_t *codes, uint8_t *out);
void hy_pack_q5_0(const uint8_t *codes, uint8_t *out);
void hy_pack_q5_1(const uint8_t *codes, uint8_t *out);
void hy_pack_q8_0(const uint8_t *codes, uint8_t *out);
void hy_pack_q4_k(const uint8_t *codes, uint8_t *out);
void hy_pack_q5_k(const uint8_t *codes, uint8_t *out);
void hy_pack_q6_k(const uint8_t *codes, uint8_t *out);
