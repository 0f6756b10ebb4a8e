/* unicode_tables.h: how the tables of unicode_tables.c are laid out; for unicode.h and unicode.c.
 *
 * Classes are four bits a character (the low two are hy_unicode_class, the third says "part of a
 * word"), in blocks of 128 characters; equal blocks are stored once. The other tables are sorted by
 * their first character. */
#pragma once

#include <stdint.h>

#define HY_UNICODE_BLOCKS 8704       /* 0x110000 / 128 */
#define HY_UNICODE_CLASS_BYTES 14080 /* 64 of each different block */
#define HY_UNICODE_DECOMPOSITIONS 2060
#define HY_UNICODE_COMPOSITIONS 940
#define HY_UNICODE_COMBINING_RUNS 333
#define HY_UNICODE_LOWER_RUNS 184

typedef struct hy_unicode_pair {
    uint32_t code, first, second; /* code decomposes into these; second 0: into first alone */
} hy_unicode_pair;

typedef struct hy_unicode_run {
    uint32_t first, last;
    uint8_t combining; /* canonical combining class, never 0 */
} hy_unicode_run;

typedef struct hy_unicode_case {
    uint32_t first, last;
    int32_t step, distance; /* every step-th character of the run has its small letter so far off */
} hy_unicode_case;

extern const uint8_t hy_unicode_block[HY_UNICODE_BLOCKS];
extern const uint8_t hy_unicode_classes[HY_UNICODE_CLASS_BYTES];
extern const hy_unicode_pair hy_unicode_decomposition[HY_UNICODE_DECOMPOSITIONS];
/* Places in the table above, sorted by (first, second), of those that are composed again. */
extern const uint16_t hy_unicode_composition[HY_UNICODE_COMPOSITIONS];
extern const hy_unicode_run hy_unicode_combining[HY_UNICODE_COMBINING_RUNS];
extern const hy_unicode_case hy_unicode_lower_run[HY_UNICODE_LOWER_RUNS];
