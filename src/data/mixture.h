/* mixture.h: data from several paths, and the share of each.
 *
 * "a.jsonl" is one path. "a.jsonl,b.txt" is two, read as one: every sequence once per epoch.
 * "a.jsonl:2,b.txt:1" has weights: two of three sequences come from a, whatever the sizes, and each
 * part repeats its own data as often as needed. An existing path is used as written, including
 * commas and colons. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_MOST_PARTS 64

typedef struct hy_mixture_part {
    char *path;
    double weight; /* above 0; the default is 1 */
} hy_mixture_part;

typedef struct hy_mixture {
    hy_mixture_part parts[HY_MOST_PARTS];
    size_t count;
    bool has_weights; /* at least one path has an explicit weight */
} hy_mixture;

/* HY_ERR_INPUT says what is wrong with `text`. Paths are not opened. */
hy_status hy_mixture_parse(const char *text, hy_mixture *out);
void hy_mixture_free(hy_mixture *mixture);

#define HY_MOST_TURNS_OF_CYCLE 4096

/* The order of turns: a cycle in which each part appears as often as its weight says, spread
 * evenly. */
typedef struct hy_cycle {
    uint32_t length;
    uint32_t per_cycle[HY_MOST_PARTS];    /* turns of each part */
    uint8_t part[HY_MOST_TURNS_OF_CYCLE]; /* the part that takes this turn */
    uint16_t nth[HY_MOST_TURNS_OF_CYCLE]; /* its number among the turns of that part in the cycle */
} hy_cycle;

/* Integer weights that add up to at most 4096 are exact, others are exact to 1/4096. */
void hy_cycle_make(const double *weights, size_t count, hy_cycle *out);
/* Sequence number p of the mixture is sequence *n of part *part. */
void hy_cycle_find(const hy_cycle *cycle, uint64_t p, size_t *part, uint64_t *n);
