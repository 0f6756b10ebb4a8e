/* lanes.h: sums over the lanes of vectors, for code that is written once with vector types and
 * compiled for each vector width of the machine. */
#pragma once

#define HY_UNROLLED _Pragma("GCC unroll 16")

/* Elements 0, 2, 4, .. of two vectors of 4, 8 or 16 numbers, and 1, 3, 5, .. */
#define HY_EVEN_4 0, 2, 4, 6
#define HY_ODD_4 1, 3, 5, 7
#define HY_EVEN_8 HY_EVEN_4, 8, 10, 12, 14
#define HY_ODD_8 HY_ODD_4, 9, 11, 13, 15
#define HY_EVEN_16 HY_EVEN_8, 16, 18, 20, 22, 24, 26, 28, 30
#define HY_ODD_16 HY_ODD_8, 17, 19, 21, 23, 25, 27, 29, 31
#if defined(__clang__)
#define HY_SHUFFLE(index, x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define HY_SHUFFLE(index, x, y, ...) __builtin_shuffle(x, y, (index){__VA_ARGS__})
#endif

/* The sums of neighbours of two vectors: x0 + x1, x2 + x3, .., y0 + y1, .. */
#define HY_ADD_NEIGHBOURS(index, x, y, LANES)                                                      \
    (HY_SHUFFLE(index, x, y, HY_EVEN_##LANES) + HY_SHUFFLE(index, x, y, HY_ODD_##LANES))
