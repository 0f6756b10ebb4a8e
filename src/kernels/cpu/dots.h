/* dots.h: dot products of a few rows with many, and weighted sums of rows, each in the same order.
 *
 * A dot product over `depth` elements is summed in `lanes` lanes, element i in lane i mod lanes, in
 * ascending order; then neighbours among the lanes are added until one is left. The order depends
 * on depth alone, so a product has the same bits beside any others. lanes is that of the machine's
 * widest vectors. A weighted sum adds one row after the other. */
#pragma once

#include <stdint.h>

/* Most columns of a tile, and most floats of its sums while they are computed. */
#define HY_DOTS_COLS 6
#define HY_DOTS_TILE 416

typedef struct hy_dots {
    int rows, cols; /* of the largest tile, which is kept in registers */
    int lanes;
    /* sums[r * cols + c] = a[r] b[c], for 1 to `rows` rows and always `cols` columns; sums has
     * HY_DOTS_TILE floats. a is packed (hy_dots_pack). */
    void (*run)(int rows, int64_t depth, const float *a, const float *const *b, float *sums);
    /* out[r] += the sum of weights[r][i] x[i] for i from 0 to n - 1, for 1 to `rows` rows; x[i] and
     * a row of out have `width` floats, a row of weights and of out begins each ld floats. */
    void (*weigh)(int rows, int64_t n, const float *weights, int64_t weights_ld,
                  const float *const *x, int64_t width, float *out, int64_t out_ld);
} hy_dots;

/* The fastest of this machine. */
const hy_dots *hy_dots_get(void);

/* The length of a packed row. */
static inline int64_t hy_dots_padded(const hy_dots *dots, int64_t depth) {
    return (depth + dots->lanes - 1) / dots->lanes * dots->lanes;
}

/* Packs elements [at, at + n) of row r of a tile of `rows` rows, with zeros up to whole lanes; `at`
 * is a multiple of lanes. Elements from k on of all rows begin at packed + k * rows. */
void hy_dots_pack(const hy_dots *dots, const float *x, int64_t at, int64_t n, int rows, int r,
                  float *packed);
