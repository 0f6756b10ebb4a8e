/* dataset.h: token sequences by number.
 *
 * A dataset has a training split and a held-out split. Training is an endless row of sequences:
 * number p is window p mod W of epoch p / W, in an order shuffled anew each epoch by the seed. So
 * the whole state of reading is one number, the count of sequences used, and it does not depend on
 * how they are grouped into micro-batches. Filling is thread-safe and gives the same answer each
 * time.
 *
 * Sources: the built-in grammar; a text file or a folder of them (bytes as tokens); shards. */
#ifndef HY_DATA_DATASET_H
#define HY_DATA_DATASET_H

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_dataset hy_dataset;

typedef struct hy_dataset_options {
    const char *path;      /* NULL, "" or "builtin": the grammar; else a file or folder */
    const char *val_path;  /* NULL or "": hold out a part of the data */
    double val_fraction;   /* held out from the end of the data, in (0, 0.5] */
    int64_t builtin_bytes; /* size of the grammar's text, held-out part included */
    int32_t seq;           /* T: tokens of a sequence */
    int32_t vocab;         /* ids must lie below this */
    uint64_t seed;         /* shuffling, and the grammar's text */
    bool shuffle;
} hy_dataset_options;

typedef enum hy_split { HY_TRAIN = 0, HY_VAL = 1 } hy_split;

typedef struct hy_dataset_facts {
    int32_t seq;           /* T, as asked for */
    char description[256]; /* "built-in grammar, 4.0 MB", "3 shards, 120.5 M tokens" */
    uint64_t tokens[2];    /* per split */
    uint64_t sequences[2]; /* whole windows per split; a training epoch has sequences[HY_TRAIN] */
    bool is_bytes;         /* tokens are bytes: losses are nats per byte */
    bool knows_entropy;    /* the source's true entropy is known */
    double entropy;        /* nats per token of the source, exact */
    double val_optimum;    /* mean nats the true source gives the targets of all HY_VAL sequences */
} hy_dataset_facts;

/* Opens and checks everything (headers, lengths, ids below vocab, at least one window per split).
 * Errors are HY_ERR_INPUT and name the file. */
hy_status hy_dataset_open(const hy_dataset_options *options, hy_dataset **out);
void hy_dataset_close(hy_dataset *data);
const hy_dataset_facts *hy_dataset_describe(const hy_dataset *data);

/* Sequence number `p`: tokens (T) and targets (T, the next token; -1 where the loss does not
 * count). HY_VAL: p below sequences[HY_VAL], in order. Returns how many targets count. */
int64_t hy_dataset_fill(const hy_dataset *data, hy_split split, uint64_t p, int32_t *tokens,
                        int32_t *targets);

/* The bytes of a split when is_bytes and they lie in one piece, as those of the grammar, a file
 * and a folder of small files do (for the n-gram baseline); NULL otherwise. */
const uint8_t *hy_dataset_bytes(const hy_dataset *data, hy_split split, uint64_t *size);

#endif
