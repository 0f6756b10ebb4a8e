/* part.h: data from one path, cut into sequences for training and for holding out.
 *
 * Used only inside this module. A part is a list of tokens (text, shards, the grammar) cut into
 * windows, or rows packed into sequences. Its end may be held out. Nothing changes after
 * opening. */
#pragma once

#include "data/dataset.h"
#include "data/packing.h"
#include "data/row_stream.h"
#include "data/source.h"

/* Window w of a range holds its tokens w T .. w T + T; the last one is only a target. */
typedef struct hy_token_range {
    const hy_source *source;
    uint64_t first, count; /* tokens of the source */
} hy_token_range;

typedef struct hy_part {
    hy_source source;   /* the source of the windows */
    hy_source held_out; /* grammar: its separate held-out text */
    hy_token_range ranges[2];
    hy_examples *examples; /* rows, instead of a source */
    hy_packing packs[2];
    hy_row_stream *stream; /* streamed rows: examples, packs and counts are of the first window */
    uint64_t sequences[2];
    uint64_t tokens[2];
    uint64_t places[2];  /* positions of its sequences that hold tokens */
    uint64_t targets[2]; /* targets that count, or pairs or prompts */
    double epoch;        /* training sequences of an epoch; estimated for a stream, 0: not known */
    double weight;
    bool is_bytes;
    char name[160];     /* examples: "built-in grammar", "notes.txt", "3 shards" */
    double val_optimum; /* grammar: loss of the true source on the held-out text */
} hy_part;

/* The splits a part is used for. */
typedef enum hy_part_use {
    HY_PART_TRAINS,
    HY_PART_HOLDS_OUT,
    HY_PART_DOES_BOTH, /* split into both */
    HY_PART_IS_BOTH    /* all of it is in both, to measure how well it was learnt */
} hy_part_use;

hy_status hy_part_open(const char *path, hy_part_use use, const hy_encoding *encoding,
                       hy_part *out);
hy_status hy_part_open_grammar(hy_part_use use, const hy_dataset_options *options, hy_part *out);
void hy_part_close(hy_part *part);

/* Fills sequence number i of a split, below part->sequences[split]; streamed training sequences
 * have an endless order of their own. doc_starts may be NULL. Returns how many targets count, or
 * the number of pairs, or -1 with an error message if a file could not be read. */
int64_t hy_part_fill(const hy_part *part, hy_split split, uint64_t i, int32_t seq, int32_t *tokens,
                     int32_t *targets, int32_t *doc_starts);
