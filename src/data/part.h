/* part.h: data behind one path, cut into sequences for training and for holding out.
 *
 * Inside the room only. A part is a row of tokens (text, shards, the grammar) cut into windows, or rows of
 * JSON packed into sequences. It may give its end as held-out data. After opening nothing changes. */
#pragma once

#include "data/dataset.h"
#include "data/packing.h"
#include "data/source.h"

/* Window w of a range holds tokens w T .. w T + T of it, the last one only as a target. */
typedef struct hy_token_range {
    const hy_source *source;
    uint64_t first, count; /* its tokens in the source */
} hy_token_range;

typedef struct hy_part {
    hy_source source;   /* windows are cut from it */
    hy_source held_out; /* the grammar's: a text of its own */
    hy_token_range ranges[2];
    hy_examples *examples; /* or: rows */
    hy_packing packs[2];
    uint64_t sequences[2];
    uint64_t tokens[2];
    uint64_t places[2];  /* of its sequences that hold tokens */
    uint64_t targets[2]; /* that count */
    double weight;
    bool is_bytes;
    char name[160];     /* "built-in grammar", "notes.txt", "3 shards" */
    double val_optimum; /* the grammar: what its true source loses on what is held out */
} hy_part;

/* Which splits a part serves. */
typedef enum hy_part_use {
    HY_PART_TRAINS,
    HY_PART_HOLDS_OUT,
    HY_PART_DOES_BOTH, /* divided */
    HY_PART_IS_BOTH    /* all of it is in both: someone wants to see how well it was learnt */
} hy_part_use;

hy_status hy_part_open(const char *path, hy_part_use use, const hy_dataset_options *options,
                       const hy_encoding *encoding, hy_part *out);
hy_status hy_part_open_grammar(hy_part_use use, const hy_dataset_options *options, hy_part *out);
void hy_part_close(hy_part *part);

/* Sequence number i of a split, below part->sequences[split]; doc_starts may be NULL. Returns how many
 * targets count; -1 with a message: a file could not be read. */
int64_t hy_part_fill(const hy_part *part, hy_split split, uint64_t i, int32_t seq, int32_t *tokens,
                     int32_t *targets, int32_t *doc_starts);
