/* mixture.h: data named by several paths, and in which shares they are read.
 *
 * "a.jsonl" is one path. "a.jsonl,b.txt" is two, read as if they were one: every sequence once an epoch.
 * "a.jsonl:2,b.txt:1" gives weights: of three sequences two come from a, whatever their sizes, and each
 * goes round its own data as often as that takes. A path that exists is taken as it is written, commas
 * and colons included. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_MOST_PARTS 64

typedef struct hy_mixture_part {
    char *path;
    double weight; /* above 0; 1 where none was written */
} hy_mixture_part;

typedef struct hy_mixture {
    hy_mixture_part parts[HY_MOST_PARTS];
    size_t count;
    bool has_weights; /* at least one was written */
} hy_mixture;

/* HY_ERR_INPUT names what is wrong with `text`. Paths are not opened. */
hy_status hy_mixture_parse(const char *text, hy_mixture *out);
void hy_mixture_free(hy_mixture *mixture);

#define HY_MOST_TURNS_OF_CYCLE 4096

/* Whose turn it is: a cycle in which each part comes up as often as its weight says, spread evenly. */
typedef struct hy_cycle {
    uint32_t length;
    uint32_t per_cycle[HY_MOST_PARTS];    /* turns of each part */
    uint8_t part[HY_MOST_TURNS_OF_CYCLE]; /* whose turn */
    uint16_t nth[HY_MOST_TURNS_OF_CYCLE]; /* the how-manieth of that part in the cycle */
} hy_cycle;

/* Whole weights that add up to at most 4096 are met exactly, others to a part in 4096. */
void hy_cycle_make(const double *weights, size_t count, hy_cycle *out);
/* Sequence number p of the mixture is number *n of part *part. */
void hy_cycle_find(const hy_cycle *cycle, uint64_t p, size_t *part, uint64_t *n);
