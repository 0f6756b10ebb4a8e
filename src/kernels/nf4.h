/* nf4.h: 4 bits per element, the smallest storage type of frozen weights.
 *
 * A value is the nearest of 16 levels, quantiles of a normal distribution, after division by the
 * largest magnitude of its block of 64; even elements are in the high half of a byte. These
 * magnitudes, the scales of blocks, are quantised as well: their mean over the matrix (the offset)
 * is subtracted, and the rest has 8 bits, from a map that is fine near 0, in blocks of 256 with an
 * fp32 scale each. A number is then
 *     level[value] * (map[byte of its block] * scale + offset), each operation rounded to fp32.
 * Levels, map and roundings are those of bitsandbytes (NF4 with double quantisation, on the CPU),
 * and so are all bits, except that its mean is an fp32 sum in its own order, and ours is an fp64
 * sum.
 *
 * Stored (hy_quant): a pair of scale and offset for each `group` blocks, then the bytes of blocks.
 * A matrix that consists of several, one below the other, has an offset and blocks of 256 for each;
 * groups are small enough that none crosses a border. With group 0 (single quantisation), the scale
 * of a block is its magnitude in fp32. */
#pragma once

#include <stdint.h>

#define HY_NF4_BLOCK 64
#define HY_NF4_NESTED 256     /* scales that share a scale */
#define HY_NF4_ZERO 0x77      /* two zeros */
#define HY_NF4_LEAST 1e-38f   /* lower limit of the divisor of a block */
#define HY_NF4_STEPS 65535.0f /* of the grid in which the map is looked up */

#define HY_NF4_LEVELS                                                                              \
    -1.0f, -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f,      \
        0.0f, 0.0795803f, 0.1609302f, 0.2461123f, 0.33791524f, 0.44070983f, 0.562617f,             \
        0.72295684f, 1.0f

/* Entries 128 to 254 of the map. 255 is 1 and 127 is 0; 126 to 0 are these with a minus sign. */
#define HY_NF4_MAP                                                                                 \
    5.5000004e-7f, 3.2500002e-6f, 7.75e-6f, 2.1249998e-5f, 4.375e-5f, 6.625e-5f, 8.875e-5f,        \
        0.00015625001f, 0.00026875004f, 0.00038125002f, 0.00049375003f, 0.0006062501f,             \
        0.00071875006f, 0.00083125f, 0.0009437501f, 0.0012812499f, 0.00184375f, 0.00240625f,       \
        0.00296875f, 0.0035312497f, 0.00409375f, 0.0046562497f, 0.0052187503f, 0.00578125f,        \
        0.00634375f, 0.00690625f, 0.00746875f, 0.00803125f, 0.00859375f, 0.009156249f,             \
        0.00971875f, 0.01140625f, 0.01421875f, 0.01703125f, 0.019843752f, 0.02265625f,             \
        0.02546875f, 0.028281251f, 0.03109375f, 0.03390625f, 0.036718752f, 0.03953125f,            \
        0.042343747f, 0.04515625f, 0.04796875f, 0.05078125f, 0.05359375f, 0.05640625f,             \
        0.059218753f, 0.06203125f, 0.06484375f, 0.067656256f, 0.070468746f, 0.07328125f,           \
        0.07609375f, 0.07890625f, 0.08171876f, 0.08453125f, 0.08734375f, 0.09015625f,              \
        0.092968754f, 0.09578126f, 0.09859375f, 0.107031256f, 0.12109375f, 0.13515624f,            \
        0.14921875f, 0.16328125f, 0.17734376f, 0.19140625f, 0.20546874f, 0.21953125f, 0.23359375f, \
        0.24765624f, 0.26171875f, 0.27578127f, 0.28984374f, 0.30390626f, 0.31796873f, 0.33203125f, \
        0.34609374f, 0.36015624f, 0.37421876f, 0.38828123f, 0.40234375f, 0.41640624f, 0.43046874f, \
        0.44453126f, 0.45859373f, 0.47265625f, 0.4867187f, 0.50078124f, 0.5148437f, 0.5289062f,    \
        0.54296875f, 0.5570313f, 0.5710938f, 0.58515626f, 0.5992187f, 0.61328125f, 0.6273438f,     \
        0.6414063f, 0.65546876f, 0.6695312f, 0.68359375f, 0.6976563f, 0.7117188f, 0.72578126f,     \
        0.7398437f, 0.75390625f, 0.7679688f, 0.78203124f, 0.79609376f, 0.8101562f, 0.82421875f,    \
        0.8382813f, 0.85234374f, 0.86640626f, 0.8804687f, 0.89453125f, 0.9085938f, 0.92265624f,    \
        0.93671876f, 0.9507812f, 0.96484375f, 0.9789063f, 0.99296874f

/* Quantises the elements of a block; returns the largest magnitude. */
float hy_nf4_encode(const float *x, uint8_t codes[HY_NF4_BLOCK / 2]);

/* The level nearest to x, which is divided by the scale, and its number. */
float hy_nf4_nearest(float x, uint8_t *code);

/* The mean of the scales of a matrix, rounded once. */
float hy_nf4_offset(const float *scales, int64_t blocks);
/* Quantises the scales of a matrix; pairs and codes begin at its first block. */
void hy_nf4_put_scales(const float *scales, int64_t blocks, float offset, int32_t group,
                       float *pairs, uint8_t *codes);
/* The number that the byte of a scale represents. */
float hy_nf4_map(uint8_t code);
/* The scale of a block, from the pair of its group. */
float hy_nf4_scale(const float pair[2], uint8_t code);

/* Dequantises elements [first, first + n); codes begin at `first`, which is even, scales at its
 * block. */
void hy_nf4_decode(const uint8_t *codes, int64_t first, int64_t n, const float *scales, float *out);
