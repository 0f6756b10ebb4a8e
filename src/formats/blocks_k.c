/* blocks_k.c: the types with blocks of 256 numbers in groups of 16 or 32, each group with a small
 * integer as scale.
 *
 * Layouts, in bytes (d and m are fp16 numbers, s and t the group's integers):
 *
 *   Q2_K    16: s and t, 4 bits each; 64: q, 2 bits; d, m           d * s * q - m * t
 *   Q3_K    32: third bits; 64: q, 2 bits; 12: s, 6 bits; d         d * (s - 32) * (q - 4)
 *   Q4_K    d, m; 12: s and t, 6 bits each; 128: q, 4 bits          d * s * q - m * t
 *   Q5_K    d, m; 12: s and t; 32: fifth bits; 128: q, 4 bits       d * s * q - m * t
 *   Q6_K    128: q, 4 bits; 64: upper 2 bits; 16: s; d              d * s * (q - 32)
 *   IQ4_XS  d; 2 and 4: s, 6 bits; 128: q, 4 bits                   d * (s - 32) * table[q]
 *
 * Groups have 16 numbers in Q2_K, Q3_K and Q6_K, 32 in the others. */
#include <math.h>

#include "formats/blocks_parts.h"

/* ---- unpacking ------------------------------------------------------------------------------- */

/* 64 bytes of 2-bit numbers: each 32 bytes hold 4 x 32 numbers. */
static void unpack_two_bits(const uint8_t *in, int8_t *q) {
    for (int at = 0; at < 256; at += 32) {
        const uint8_t *bytes = in + at / 128 * 32;
        for (int i = 0; i < 32; i++) q[at + i] = (int8_t)(bytes[i] >> at % 128 / 16 & 3);
    }
}

/* 128 bytes of 4-bit numbers: each 32 bytes hold 2 x 32 numbers. */
static void unpack_four_bits(const uint8_t *in, int8_t *q) {
    for (int at = 0; at < 256; at += 64, in += 32) {
        for (int i = 0; i < 32; i++) {
            q[at + i] = (int8_t)(in[i] & 15);
            q[at + 32 + i] = (int8_t)(in[i] >> 4);
        }
    }
}

/* Scales and mins of 8 groups, 6 bits each, in 12 bytes: the lower 6 bits of bytes 0..7 are those
 * of groups 0..3; groups 4..7 have their lower bits in bytes 8..11, the upper in bytes 0..7. */
static void unpack_six_bits(const uint8_t *in, uint8_t *scale, uint8_t *min) {
    for (int g = 0; g < 4; g++) {
        scale[g] = in[g] & 63;
        min[g] = in[4 + g] & 63;
        scale[4 + g] = (uint8_t)((in[8 + g] & 15) | in[g] >> 6 << 4);
        min[4 + g] = (uint8_t)(in[8 + g] >> 4 | in[4 + g] >> 6 << 4);
    }
}

void hy_unpack_q2_k(const uint8_t *in, hy_block_parts *parts) {
    float d = hy_half_at(in + 80), m = hy_half_at(in + 82);
    for (int g = 0; g < 16; g++) {
        parts->scale[g] = d * (float)(in[g] & 15);
        parts->min[g] = m * (float)(in[g] >> 4);
    }
    unpack_two_bits(in + 16, parts->q);
}

void hy_unpack_q3_k(const uint8_t *in, hy_block_parts *parts) {
    const uint8_t *s = in + 96;
    float d = hy_half_at(in + 108);
    for (int g = 0; g < 16; g++) {
        int low = s[g % 8] >> g / 8 * 4 & 15, high = s[8 + g % 4] >> g / 4 * 2 & 3;
        parts->scale[g] = d * (float)((low | high << 4) - 32);
    }
    unpack_two_bits(in + 32, parts->q);
    for (int at = 0; at < 256; at += 32) {
        for (int i = 0; i < 32; i++) {
            parts->q[at + i] = (int8_t)(parts->q[at + i] - (in[i] >> at / 32 & 1 ? 0 : 4));
        }
    }
}

static void unpack_scales(const uint8_t *in, hy_block_parts *parts) {
    uint8_t scale[8], min[8];
    float d = hy_half_at(in), m = hy_half_at(in + 2);
    unpack_six_bits(in + 4, scale, min);
    for (int g = 0; g < 8; g++) {
        parts->scale[g] = d * (float)scale[g];
        parts->min[g] = m * (float)min[g];
    }
}

void hy_unpack_q4_k(const uint8_t *in, hy_block_parts *parts) {
    unpack_scales(in, parts);
    unpack_four_bits(in + 16, parts->q);
}

void hy_unpack_q5_k(const uint8_t *in, hy_block_parts *parts) {
    unpack_scales(in, parts);
    unpack_four_bits(in + 48, parts->q);
    for (int at = 0; at < 256; at += 32) {
        for (int i = 0; i < 32; i++) {
            parts->q[at + i] = (int8_t)(parts->q[at + i] + ((in[16 + i] >> at / 32 & 1) << 4));
        }
    }
}

/* Within 128 numbers, the low nibbles of 64 bytes are the first 64 of them. */
void hy_unpack_q6_k(const uint8_t *in, hy_block_parts *parts) {
    float d = hy_half_at(in + 208);
    for (int g = 0; g < 16; g++) parts->scale[g] = d * (float)(int8_t)in[192 + g];
    unpack_two_bits(in + 128, parts->q);
    for (int at = 0; at < 256; at += 64) {
        const uint8_t *bytes = in + at / 128 * 64;
        for (int i = 0; i < 64; i++) {
            int low = bytes[i] >> at % 128 / 16 & 15;
            parts->q[at + i] = (int8_t)((low | parts->q[at + i] << 4) - 32);
        }
    }
}

void hy_unpack_iq4_xs(const uint8_t *in, hy_block_parts *parts) {
    float d = hy_half_at(in);
    for (int g = 0; g < 8; g++) {
        int low = in[4 + g / 2] >> g % 2 * 4 & 15, high = in[2 + g / 4] >> g % 4 * 2 & 3;
        parts->scale[g] = d * (float)((low | high << 4) - 32);
        hy_unpack_table(in + 8 + 16 * g, hy_iq4_values, parts->q + 32 * g);
    }
}

/* ---- scales of groups ------------------------------------------------------------------------ */

/* 8 scales as integers of 6 bits and the factor that they have in common. A negative scale, which
 * importance of 0 can cause, wraps around as in llama.cpp. */
typedef struct scale_set {
    uint8_t q[8];
    float factor;
} scale_set;

/* The largest becomes 63. */
static void round_scales(const float *x, scale_set *set) {
    float largest = 0;
    for (int g = 0; g < 8; g++) largest = x[g] > largest ? x[g] : largest;
    float inverse = largest > 0 ? 63 / largest : 0;
    for (int g = 0; g < 8; g++) {
        uint8_t q = (uint8_t)hy_nearest(inverse * x[g]);
        set->q[g] = q < 63 ? q : 63;
    }
    set->factor = largest / 63;
}

static float scale_error(const float *x, const float *weight, float inverse, bool is_first) {
    float factor = 1 / inverse, error = 0;
    for (int g = 0; g < 8; g++) {
        int near = hy_nearest(inverse * x[g]);
        int q = is_first ? (uint8_t)near : near < 63 ? near : 63;
        float miss = x[g] - factor * (float)q;
        error += weight[g] * miss * miss;
    }
    return error;
}

typedef struct scale_sums {
    float xq, qq; /* weighted sums; the best factor is xq / qq */
} scale_sums;

/* Moves single integers while this reduces the weighted error. */
static void improve_scales(const float *x, const float *weight, scale_set *set, scale_sums *sums) {
    bool has_changed = true;
    for (int round = 0; round < 5 && has_changed; round++) {
        has_changed = false;
        for (int g = 0; g < 8; g++) {
            float w = weight[g], old = set->q[g];
            float xq = sums->xq - w * x[g] * old, qq = sums->qq - w * old * old;
            if (!(xq > 0 && qq > 0)) continue;
            int q = hy_nearest(x[g] * qq / xq);
            q = q < 63 ? q : 63;
            if (q == set->q[g]) continue;
            xq += w * x[g] * (float)q;
            qq += w * (float)q * (float)q;
            if (!(xq * xq * sums->qq > sums->xq * sums->xq * qq)) continue;
            set->q[g] = (uint8_t)q;
            *sums = (scale_sums){xq, qq};
            has_changed = true;
        }
    }
}

/* The factor with the least weighted error. */
static void fit_scales(const float *x, const float *weight, scale_set *set) {
    *set = (scale_set){0};
    float largest = 0;
    for (int g = 0; g < 8; g++) largest = x[g] > largest ? x[g] : largest;
    if (largest < 1e-15f) return;
    float inverse = 63 / largest, best = scale_error(x, weight, inverse, true);
    for (int s = -4; s <= 4; s++) {
        float candidate = (0.1f * (float)s + 63) / largest;
        float error = s != 0 ? scale_error(x, weight, candidate, false) : best;
        if (error < best) {
            best = error;
            inverse = candidate;
        }
    }
    scale_sums sums = {0};
    for (int g = 0; g < 8; g++) {
        int near = hy_nearest(inverse * x[g]), q = near < 63 ? near : 63;
        set->q[g] = (uint8_t)q;
        sums.xq += weight[g] * x[g] * (float)q;
        sums.qq += weight[g] * (float)q * (float)q;
    }
    improve_scales(x, weight, set, &sums);
    set->factor = sums.qq > 0 ? sums.xq / sums.qq : 0;
}

/* ---- Q4_K and Q5_K --------------------------------------------------------------------------- */

static void pack_scales(const scale_set *scale, const scale_set *min, uint8_t *out) {
    hy_put_u16(out, hy_f32_to_f16(scale->factor));
    hy_put_u16(out + 2, hy_f32_to_f16(min->factor));
    for (int g = 0; g < 4; g++) {
        out[4 + g] = (uint8_t)(scale->q[g] | scale->q[4 + g] >> 4 << 6);
        out[8 + g] = (uint8_t)(min->q[g] | min->q[4 + g] >> 4 << 6);
        out[12 + g] = (uint8_t)((scale->q[4 + g] & 15) | min->q[4 + g] << 4);
    }
}

static void pack_four_bits(const uint8_t *q, uint8_t *out) {
    for (int at = 0; at < 256; at += 64, out += 32) {
        for (int i = 0; i < 32; i++) {
            out[i] = (uint8_t)((q[at + i] & 15) | q[at + 32 + i] << 4);
        }
    }
}

void hy_pack_q4_k(const uint8_t *codes, uint8_t *out) { pack_four_bits(codes, out + 16); }

void hy_pack_q5_k(const uint8_t *codes, uint8_t *out) {
    pack_four_bits(codes, out + 48);
    memset(out + 16, 0, 32);
    for (int i = 0; i < 256; i++) out[16 + i % 32] |= (uint8_t)(codes[i] >> 4 << i / 32);
}

/* Without importance, a number's weight is its magnitude plus the root mean square of its group. */
static void load_groups(const float *x, const float *importance, hy_groups *g) {
    float sum = 0;
    for (int i = 0; importance && i < 256; i++) sum += x[i] * x[i];
    float mean_square = 2 * sum / 256;
    for (int k = 0; k < 8; k++) {
        const float *group = x + 32 * k;
        float square = 0;
        for (int i = 0; !importance && i < 32; i++) square += group[i] * group[i];
        float mean = sqrtf(square / 32);
        for (int i = 0; i < 32; i++) {
            g->x[i][k] = group[i];
            g->weight[i][k] =
                importance ? importance[32 * k + i] * sqrtf(mean_square + group[i] * group[i])
                           : mean + fabsf(group[i]);
        }
    }
}

/* The integers of a block with the scales that its first 16 bytes hold. */
static void round_block(const float *x, const hy_groups *g, const uint8_t *block, int top,
                        uint8_t *q) {
    hy_block_parts parts;
    unpack_scales(block, &parts);
    for (int k = 0; k < 8; k++) {
        float scale = parts.scale[k], min = parts.min[k];
        for (int i = 0; i < 32; i++) {
            int near = hy_clamp(hy_nearest((x[32 * k + i] + min) / scale), 0, top);
            q[32 * k + i] = scale != 0 ? (uint8_t)near : g->q[i][k];
        }
    }
}

static void encode_block(const float *x, const float *importance, int top, uint8_t *out,
                         uint8_t *q) {
    hy_groups g = {.count = 32};
    scale_set scale, min;
    load_groups(x, importance, &g);
    if (importance) {
        float weight[8] = {0};
        for (int i = 0; i < 32; i++) {
            for (int k = 0; k < 8; k++) weight[k] += g.weight[i][k];
        }
        hy_fit_range(&g, top, -0.9f, 0.05f, 36);
        fit_scales(g.scale, weight, &scale);
        for (int k = 0; k < 8 && top == 31; k++) scale.q[k] = scale.q[k] < 63 ? scale.q[k] : 63;
        fit_scales(g.min, weight, &min);
    } else {
        hy_fit_range(&g, top, top == 15 ? -1 : -0.5f, 0.1f, top == 15 ? 20 : 15);
        round_scales(g.scale, &scale);
        round_scales(g.min, &min);
    }
    pack_scales(&scale, &min, out);
    round_block(x, &g, out, top, q);
}

void hy_encode_q4_k(const hy_block_row *row, uint8_t *out) {
    for (int64_t at = 0; at < row->cols; at += 256, out += 144) {
        uint8_t q[256];
        encode_block(row->x + at, row->importance ? row->importance + at : NULL, 15, out, q);
        hy_pack_q4_k(q, out);
    }
}

void hy_encode_q5_k(const hy_block_row *row, uint8_t *out) {
    for (int64_t at = 0; at < row->cols; at += 256, out += 176) {
        uint8_t q[256];
        encode_block(row->x + at, row->importance ? row->importance + at : NULL, 31, out, q);
        hy_pack_q5_k(q, out);
    }
}

/* ---- Q6_K ------------------------------------------------------------------------------------ */

/* Without importance, a number's weight is its square. */
static void fit_sixteen(const float *x, const float *importance, uint8_t *q, float *scale) {
    hy_groups g = {.count = 16};
    for (int half = 0; half < 2; half++) {
        for (int k = 0; k < 8; k++) {
            for (int i = 0; i < 16; i++) {
                int at = 128 * half + 16 * k + i;
                g.x[i][k] = x[at];
                g.weight[i][k] = importance ? importance[at] : x[at] * x[at];
            }
        }
        hy_fit_signed(&g, 32);
        memcpy(scale + 8 * half, g.scale, sizeof g.scale);
        for (int k = 0; k < 8; k++) {
            for (int i = 0; i < 16; i++) q[128 * half + 16 * k + i] = g.q[i][k];
        }
    }
}

void hy_pack_q6_k(const uint8_t *q, uint8_t *out) {
    for (int at = 0; at < 256; at += 128) {
        for (int i = 0; i < 64; i++) {
            out[at / 2 + i] = (uint8_t)((q[at + i] & 15) | q[at + 64 + i] << 4);
        }
        for (int i = 0; i < 32; i++) {
            const uint8_t *p = q + at + i;
            out[128 + at / 4 + i] =
                (uint8_t)(p[0] >> 4 | p[32] >> 4 << 2 | p[64] >> 4 << 4 | p[96] >> 4 << 6);
        }
    }
}

static void encode_q6_block(const float *x, const float *importance, uint8_t *out) {
    uint8_t q[256];
    float scale[16], extreme = 0;
    fit_sixteen(x, importance, q, scale);
    for (int g = 0; g < 16; g++) {
        if (fabsf(scale[g]) > fabsf(extreme)) extreme = scale[g];
    }
    memset(out, 0, 210);
    if (fabsf(extreme) < 1e-15f) return;
    float inverse = -128 / extreme;
    hy_put_u16(out + 208, hy_f32_to_f16(1 / inverse));
    float d = hy_half_at(out + 208);
    for (int g = 0; g < 16; g++) {
        int s = hy_nearest(inverse * scale[g]);
        out[192 + g] = (uint8_t)(s < 127 ? s : 127);
        float by = d * (float)(int8_t)out[192 + g];
        if (by == 0) continue;
        for (int i = 0; i < 16; i++) {
            q[16 * g + i] = (uint8_t)(hy_clamp(hy_nearest(x[16 * g + i] / by), -32, 31) + 32);
        }
    }
    hy_pack_q6_k(q, out);
}

void hy_encode_q6_k(const hy_block_row *row, uint8_t *out) {
    for (int64_t at = 0; at < row->cols; at += 256, out += 210) {
        encode_q6_block(row->x + at, row->importance ? row->importance + at : NULL, out);
    }
}
