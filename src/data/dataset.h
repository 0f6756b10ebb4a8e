/* dataset.h: token sequences by number.
 *
 * A dataset has a training split and a held-out split. Training is an endless list of sequences:
 * number p is window p mod W of epoch p / W, and the seed shuffles each epoch differently. So the
 * whole reading state is one number, the count of sequences used. It does not depend on how
 * sequences are grouped into micro-batches. Filling is thread-safe and always gives the same
 * result.
 *
 * Sources: the built-in grammar; text (bytes as tokens, or encoded with a tokenizer); shards; rows
 * of JSON or CSV (conversation.h), cut or packed into sequences (packing.h); folders with one of
 * these kinds; and mixtures of several paths, with or without weights (mixture.h).
 *
 * Pairs of answers: every row has a chosen and a rejected answer, and becomes two examples, the
 * prompt with the chosen answer and the prompt with the rejected one. They are documents that do
 * not attend to each other, and a sequence has these documents: chosen, rejected, chosen, rejected,
 * ..., the rest. The tokens of the answers count, and their end tokens. If the two are too long
 * together, each is cut at its end to T / 2 positions, or to what the other leaves.
 *
 * Prompts (prompts.c): rows are questions that the model answers itself. A row is one sequence, and
 * hy_dataset_prompt has its tokens, so splits, order and epochs are those of other rows without
 * packing. hy_dataset_fill finds no targets in it. */
#pragma once

#include "base/json.h"
#include "data/chat_template.h"
#include "data/input.h"
#include "hybrid_types.h"
#include "tokenizer/tokenizer.h"

typedef struct hy_dataset hy_dataset;

/* Whether the data is pairs of answers, and what targets say about the tokens of prompts. */
typedef enum hy_pairs {
    HY_NO_PAIRS,
    HY_PAIRS,             /* a target that does not count is -1 */
    HY_PAIRS_WITH_PROMPTS /* it is -2 - id; in the rest of a sequence, it is -1 */
} hy_pairs;

typedef struct hy_dataset_options {
    const char *path; /* NULL, "" or "builtin": the grammar; otherwise a file, folder or mixture */
    const char *val_path;  /* NULL or "": hold out a part of the data */
    hy_data_format format; /* how to read both */
    double val_fraction;   /* fraction held out from the end of the data, 0 to 0.5; 0: none */
    bool keeps_rest;       /* held-out text: the rest at the end is a shorter sequence */
    int64_t builtin_bytes; /* size of the grammar's text, including the held-out part */
    int32_t seq;           /* T: tokens per sequence */
    int32_t vocab;         /* ids must be below this */
    uint64_t seed;         /* for shuffling and for the grammar's text */
    bool shuffle;

    const char *tokenizer;    /* its file or folder; NULL or "": tokens are bytes */
    const char *model_folder; /* may contain a chat template; NULL or "": none */
    hy_chat_kind chat_template;
    bool counts_all; /* rows: all tokens count in the loss, not only answers */
    hy_pairs pairs;  /* all data is pairs of answers; other rows are refused */
    bool prompts;    /* rows are prompts that the model answers (hy_dataset_prompt); other data is
                     refused, and neither packing nor streaming is used */
    int32_t prompt_most; /* prompts with more tokens are dropped, and those with more than T */
    /* Prompts: checks the expected answer of a row (NULL: it has none), in any thread; after
     * HY_ERR_INPUT the row is malformed. NULL: all are accepted. */
    hy_status (*check_expected)(const void *needs, const char *expected, size_t size);
    const void *needs;
    bool packs;            /* rows: several share a sequence and do not attend to each other */
    bool stops_at_bad_row; /* otherwise malformed rows are skipped and counted */
    bool drops_any;        /* more than half of the rows may be dropped */
    hy_scoring scores;     /* an evaluation, in which no rows stream */
    const char *columns;   /* rows: names of keys in the data, see hy_columns_parse; NULL or "" */
    const char *no_bytes;  /* why text must not be read as bytes; NULL: it may */
    int32_t workers;       /* threads that encode while data is opened; 0: all cores */
    hy_stream_choice streams; /* rows: encode them while the run trains (row_stream.h) */
    int64_t stream_window;    /* bytes of streamed rows that are shuffled together; 0: 16 MiB */
    bool needs_size;          /* the length of the run follows from the size of the data */
    int64_t buffer_bytes;     /* text that is being encoded at a time; 0: 16 MiB */
    void *user;
    void (*on_progress)(void *user, const char *what, double share); /* may be NULL */
    void (*on_warning)(void *user, const char *text);
} hy_dataset_options;

typedef enum hy_split { HY_TRAIN = 0, HY_VAL = 1 } hy_split;

typedef struct hy_dataset_facts {
    int32_t seq;            /* T, as requested */
    char description[256];  /* examples: "built-in grammar, 4.0 MB", "3 shards, 120.5 M tokens" */
    uint64_t tokens[2];     /* per split */
    uint64_t sequences[2];  /* per split; a training epoch has sequences[HY_TRAIN] */
    uint64_t targets[2];    /* targets that count, or pairs or prompts, per split */
    double epoch_sequences; /* training sequences of an epoch: estimated for a stream; 0: unknown */
    /* Bytes of a window if rows are streamed; tokens, sequences and targets are then those of the
     * first window. 0: they are not streamed. */
    uint64_t stream_window;
    uint64_t rows;         /* rows of JSON or CSV, including malformed ones; 0: other data */
    uint64_t bad_rows;     /* malformed and skipped */
    uint64_t cut_rows;     /* longer than a sequence */
    uint64_t scored;       /* examples of rows for evaluation; 0: other data */
    uint64_t pair_count;   /* of both splits, see hy_dataset_pairs_in; 0: they have no numbers */
    uint64_t dropped_rows; /* malformed, or nothing to learn is left after cutting */
    char row_format[256];  /* kind of rows, template, what counts in the loss, ignored keys; "": no
                              rows */
    hy_prompt_format prompt; /* of the first rows that have answers */
    char row_losses[640];    /* rows dropped and cut, with reasons, unknown tokens; "": none */
    hy_unknown_text unknown; /* encoded text, training and held out */
    uint64_t disk_bytes;     /* temporary files: encoded tokens, and the packing */
    bool has_doc_starts;     /* sequences hold documents that must not attend to each other */
    bool is_bytes;           /* tokens are bytes: losses are nats per byte */
    bool knows_entropy;      /* the true entropy of the source is known */
    double entropy;          /* exact entropy of the source in nats per token */
    double val_optimum;      /* mean nats that the true source assigns to the targets of HY_VAL */
} hy_dataset_facts;

/* Opens and checks all data (headers, lengths, rows, ids below vocab, at least one sequence per
 * split). Errors are HY_ERR_INPUT and name the file, and for a row its line. */
hy_status hy_dataset_open(const hy_dataset_options *options, hy_dataset **out);
void hy_dataset_close(hy_dataset *data);

/* A stored token of a row is its id; the sign bit says that it counts as a target. */
#define HY_COUNTS INT32_MIN

/* A row as it is trained: an example, or one of the examples of a long text or of a pair. */
typedef struct hy_shown_row {
    const char *path;
    uint64_t line;
    const char *format;            /* as row_format in the facts */
    const char *answer;            /* of a pair: "chosen" or "rejected"; else NULL */
    const char *dropped;           /* why the row is not trained; NULL: it is */
    const char *expected;          /* of a prompt: the row's own answer, or NULL; else NULL */
    bool is_cut;                   /* it is longer than a sequence, or its pair is */
    uint32_t part, parts;          /* example number of the row's examples, from 1 */
    const hy_tokenizer *tokenizer; /* NULL: bytes */
    const int32_t *tokens;         /* as stored, see HY_COUNTS */
    uint32_t count;
} hy_shown_row;
typedef hy_status (*hy_show_row)(void *user, const hy_shown_row *row);
/* Shows the first `most` rows of each training path as they are trained, and reads no further rows.
 * An error of `show` ends the reading. HY_ERR_INPUT names a path that has no rows. */
hy_status hy_dataset_show_rows(const hy_dataset_options *options, uint64_t most, hy_show_row show,
                               void *user);

const hy_dataset_facts *hy_dataset_describe(const hy_dataset *data);
const hy_tokenizer *hy_dataset_tokenizer(const hy_dataset *data); /* NULL: there is none */

/* Fills in sequence number `p`: tokens (T), targets (T, the next token; -1: does not count in the
 * loss, see also hy_pairs) and doc_starts (T, may be NULL: where each token's document begins). For
 * HY_VAL, p must be below sequences[HY_VAL], and the order is fixed. Returns how many targets
 * count, or how many pairs the sequence has, or -1 with an error message if another program changed
 * a file so that it can no longer be read. */
int64_t hy_dataset_fill(const hy_dataset *data, hy_split split, uint64_t p, int32_t *tokens,
                        int32_t *targets, int32_t *doc_starts);

/* The numbers of the pairs of sequence p, in order; `numbers` has room for T / 2. A pair's number
 * is below facts.pair_count and says which of the kept rows it is, the training paths first. So it
 * depends on the data and on T, but not on the seed, the packing or the weights of a mixture. If
 * the held-out data is the training data, a pair has the same number in both splits. The sequences
 * below facts.sequences have each pair of a split once; of a mixture with weights, they may have
 * some pairs more than once and others not, which are in later sequences. HY_ERR_INPUT: the data
 * has no pairs, or it is streamed and its rows are not numbered. */
hy_status hy_dataset_pairs_in(const hy_dataset *data, hy_split split, uint64_t p, uint64_t *numbers,
                              int32_t *count);
/* A prompt. The pointers stay valid while the data is open; the texts end with a zero byte. */
typedef struct hy_prompt_row {
    const int32_t
        *tokens; /* up to where the answer begins, with the template's generation prompt */
    int32_t count;
    const char *expected; /* the row's own answer; NULL: it has none */
    size_t expected_size;
    const char *row; /* the whole row as a JSON object in one line */
    size_t row_size;
} hy_prompt_row;
/* Sequence number p as a prompt; p is as for hy_dataset_fill. HY_ERR_INPUT: the data was not opened
 * with `prompts`. */
hy_status hy_dataset_prompt(const hy_dataset *data, hy_split split, uint64_t p, hy_prompt_row *out);

/* What the model before training says of each pair (pair_reference.h), by number: the sum of the
 * losses of the tokens of its chosen answer, and of its rejected one. Owned by the caller; set it
 * before a loader reads the data. NULL: it is not known. */
void hy_dataset_set_reference(hy_dataset *data, const double (*sums)[2]);
const double (*hy_dataset_reference(const hy_dataset *data))[2];

/* An example of a row for evaluation: its prompt with one possible answer, whose tokens count. The
 * examples of a row follow one another. */
typedef struct hy_scored {
    uint32_t choice, choices; /* number of the answer in its row, from 0; how many the row has */
    uint32_t characters;      /* of the answer */
    bool is_right;
    bool is_joined; /* its first word continues the last word of the prompt, without a blank */
} hy_scored;
/* Example number i, below facts.scored. */
const hy_scored *hy_dataset_scored(const hy_dataset *data, uint64_t i);
/* The number of the example that is number k in held-out sequence p. */
uint64_t hy_dataset_example_in(const hy_dataset *data, uint64_t p, uint64_t k);

/* Appends the tokens of a held-out row up to its first answer, and the answer (of a pair: the
 * chosen one; of a prompt: the expected one) with its end token: the first row that is shorter than
 * a sequence. Appends nothing if
 * there is none, or if all tokens of rows count. */
hy_status hy_dataset_held_out_row(const hy_dataset *data, hy_ids *question, hy_ids *answer);

/* Appends the tokens of a question in the format of the rows, up to where the answer begins; *end
 * is the token that ends an answer (-1: none). Appends nothing if rows have no answers. */
hy_status hy_dataset_encode_question(const hy_dataset *data, const char *question, hy_ids *ids,
                                     int32_t *end);

/* ---- streamed rows (row_stream.h) ------------------------------------------------------------ */

/* Updates the counts of rows, and reports malformed rows that were read since the last call. Only
 * the thread that reads the facts may call it. */
void hy_dataset_refresh(hy_dataset *data, void (*warn)(void *user, const char *text), void *user);
double hy_dataset_epochs(const hy_dataset *data, uint64_t sequences); /* NaN: not known */
void hy_dataset_stop(hy_dataset *data); /* before closing: calls of fill no longer wait for rows */
bool hy_dataset_awaits_input(const hy_dataset *data); /* standard input has not ended yet */
/* Stores streamed standard input in the run's folder when it ends, so that the run can resume. */
hy_status hy_dataset_keep_input(const hy_dataset *data, const char *folder);
/* What a checkpoint stores to find its place again, as a member of an open object; nothing if no
 * rows are streamed. HY_ERR_INPUT: the rows are not those of the checkpoint. */
void hy_dataset_write_streams(const hy_dataset *data, hy_json_writer *w);
hy_status hy_dataset_read_streams(const hy_dataset *data, const hy_json_node *object);

/* Whether hy_dataset_fill has returned -1. */
bool hy_dataset_has_failed(const hy_dataset *data);

/* The bytes of a split, for the n-gram baseline. *out is NULL unless is_bytes is set, the bytes are
 * contiguous (the grammar, a file, a folder of small files) and there are at most `most` of them.
 * The caller frees *out. */
hy_status hy_dataset_bytes(const hy_dataset *data, hy_split split, uint64_t most, uint8_t **out,
                           uint64_t *size);
