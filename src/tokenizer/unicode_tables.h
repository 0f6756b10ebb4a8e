/* unicode_tables.h: the layout of the tables in unicode_tables.c; for unicode.h and unicode.c.
 *
 * A class has four bits per character (the low two are hy_unicode_class, the third says "part of a
 * word"), in blocks of 128 characters; equal blocks are stored once. The other tables are sorted by
 * their first character. */
#pragma once

#include <stdint.h>

#define HY_UNICODE_BLOCKS 8704       /* 0x110000 / 128 */
#define HY_UNICODE_CLASS_BYTES 14080 /* 64 for each different block */
#define HY_UNICODE_DECOMPOSITIONS 2060
#define HY_UNICODE_COMPOSITIONS 940
#define HY_UNICODE_COMBINING_RUNS 333
#define HY_UNICODE_LOWER_RUNS 184

typedef struct hy_unicode_pair {
    uint32_t code, first, second; /* code decomposes into these; second 0: only into first */
} hy_unicode_pair;

typedef struct hy_unicode_run {
    uint32_t first, last;
    uint8_t combining; /* canonical combining class, never 0 */
} hy_unicode_run;

typedef struct hy_unicode_case {
    uint32_t first, last;
    /* every step-th character of the run has its lower case at this distance */
    int32_t step, distance;
} hy_unicode_case;

extern const uint8_t hy_unicode_block[HY_UNICODE_BLOCKS];
extern const uint8_t hy_unicode_classes[HY_UNICODE_CLASS_BYTES];
extern const hy_unicode_pair hy_unicode_decomposition[HY_UNICODE_DECOMPOSITIONS];
/* Indices into the table above, sorted by (first, second), of pairs that compose. */
extern const uint16_t hy_unicode_composition[HY_UNICODE_COMPOSITIONS];
extern const hy_unicode_run hy_unicode_combining[HY_UNICODE_COMBINING_RUNS];
extern const hy_unicode_case hy_unicode_lower_run[HY_UNICODE_LOWER_RUNS];
