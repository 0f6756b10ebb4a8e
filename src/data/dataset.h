/* dataset.h: token sequences by number.
 *
 * A dataset has a training split and a held-out split. Training is an endless row of sequences:
 * number p is window p mod W of epoch p / W, in an order shuffled anew each epoch by the seed. So
 * the whole state of reading is one number, the count of sequences used, and it does not depend on
 * how they are grouped into micro-batches. Filling is thread-safe and gives the same answer each
 * time.
 *
 * Sources: the built-in grammar; text (bytes as tokens, or encoded with a tokenizer); shards; rows of
 * JSON or CSV (conversation.h), cut or packed into sequences (packing.h); folders of one of them; and
 * mixtures of several paths, with or without weights (mixture.h). */
#pragma once

#include "data/chat_template.h"
#include "data/input.h"
#include "hybrid_types.h"
#include "tokenizer/tokenizer.h"

typedef struct hy_dataset hy_dataset;

typedef struct hy_dataset_options {
    const char *path;      /* NULL, "" or "builtin": the grammar; else a file, folder or mixture */
    const char *val_path;  /* NULL or "": hold out a part of the data */
    hy_data_format format; /* what both are taken for */
    double val_fraction;   /* held out from the end of the data, in (0, 0.5] */
    bool keeps_rest; /* of held-out text: what is left at its end is a sequence too, not filled */
    int64_t builtin_bytes; /* size of the grammar's text, held-out part included */
    int32_t seq;           /* T: tokens of a sequence */
    int32_t vocab;         /* ids must lie below this */
    uint64_t seed;         /* shuffling, and the grammar's text */
    bool shuffle;

    const char *tokenizer;    /* NULL or "": tokens are bytes; else its file or folder */
    const char *model_folder; /* NULL or "", or where a chat template may lie */
    hy_chat_kind chat_template;
    bool counts_all;       /* rows: the loss is of all tokens, not of answers alone */
    bool packs;            /* rows: several share a sequence and do not see each other */
    bool stops_at_bad_row; /* else malformed rows are left out and counted */
    int32_t workers;       /* threads that encode when data is opened; 0: all cores */
    int64_t buffer_bytes;  /* text they have in work at a time; 0: 16 MiB */
    void *user;
    void (*on_progress)(void *user, const char *what, double share); /* NULL: nobody is told */
    void (*on_warning)(void *user, const char *text);
} hy_dataset_options;

typedef enum hy_split { HY_TRAIN = 0, HY_VAL = 1 } hy_split;

typedef struct hy_dataset_facts {
    int32_t seq;           /* T, as asked for */
    char description[256]; /* "built-in grammar, 4.0 MB", "3 shards, 120.5 M tokens" */
    uint64_t tokens[2];    /* per split */
    uint64_t sequences[2]; /* per split; a training epoch has sequences[HY_TRAIN] */
    uint64_t targets[2];   /* that count, per split */
    uint64_t rows;         /* of JSON, malformed ones among them; 0: it is no rows */
    uint64_t bad_rows;     /* malformed and left out */
    uint64_t cut_rows;     /* longer than a sequence */
    uint64_t disk_bytes;   /* temporary files: encoded tokens and who shares a sequence */
    bool has_doc_starts;   /* sequences hold documents that must not see each other */
    bool is_bytes;         /* tokens are bytes: losses are nats per byte */
    bool knows_entropy;    /* the source's true entropy is known */
    double entropy;        /* nats per token of the source, exact */
    double val_optimum;    /* mean nats the true source gives the targets of all HY_VAL sequences */
} hy_dataset_facts;

/* Opens and checks everything (headers, lengths, rows, ids below vocab, at least one sequence per
 * split). Errors are HY_ERR_INPUT and name the file, and of a row its line. */
hy_status hy_dataset_open(const hy_dataset_options *options, hy_dataset **out);
void hy_dataset_close(hy_dataset *data);
const hy_dataset_facts *hy_dataset_describe(const hy_dataset *data);
const hy_tokenizer *hy_dataset_tokenizer(const hy_dataset *data); /* NULL: tokens are as given */

/* Sequence number `p`: tokens (T) and targets (T, the next token; -1 where the loss does not
 * count), and in doc_starts (T; NULL: not wanted) where each token's document begins. HY_VAL: p below
 * sequences[HY_VAL], in order. Returns how many targets count; -1 with a message: a file was changed by
 * others and can no longer be read. */
int64_t hy_dataset_fill(const hy_dataset *data, hy_split split, uint64_t p, int32_t *tokens,
                        int32_t *targets, int32_t *doc_starts);

/* Whether that has happened. */
bool hy_dataset_has_failed(const hy_dataset *data);

/* The bytes of a split when is_bytes, they lie in one piece, as those of the grammar, a file and a folder
 * of small files do, and are no more than `most` (for the n-gram baseline); else *out is NULL. The caller
 * frees it. */
hy_status hy_dataset_bytes(const hy_dataset *data, hy_split split, uint64_t most, uint8_t **out,
                           uint64_t *size);
