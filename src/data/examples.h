/* examples.h: rows of JSON or CSV files as examples: tokens, and which of them count in the loss.
 *
 * All rows are encoded once, when the data is opened, by several threads into an unnamed temporary
 * file (spool.h). So the length of every example is known before the first step: packing and order
 * are pure functions of the seed, and resuming needs one number. Memory use does not grow with the
 * data; the disk holds 4 bytes per token and 8 per row.
 *
 * An example has 2 to T + 1 tokens. A longer conversation is cut at its end and counted. A pair of
 * answers is two examples that follow one another and fit into a sequence together. A longer text
 * becomes several examples that share one token at each border, so every token is predicted
 * once.
 *
 * A prompt for rewards is an example without targets. Its row and its expected answer are kept as
 * texts in a temporary file of their own (prompts.c). */
#pragma once

#include "data/conversation.h"
#include "data/csv_rows.h"
#include "data/json_rows.h"
#include "data/source.h"
#include "data/spool.h"

/* Why rows were dropped, or which keys were ignored, with their number. The last entry collects
 * all others. */
#define HY_MOST_REASONS 8
typedef struct hy_row_losses {
    struct {
        char reason[120];
        uint64_t count;
    } list[HY_MOST_REASONS];
    int count;
} hy_row_losses;
/* "3: the row has no assistant turn to learn from; 1: ..." */
void hy_row_losses_describe(const hy_row_losses *losses, hy_text *out);
void hy_row_losses_add(hy_row_losses *losses, const char *reason, uint64_t count);
void hy_row_losses_join(hy_row_losses *sum, const hy_row_losses *more);

/* The examples of rows for evaluation, in the order of the examples; else empty. */
typedef struct hy_scored_list {
    hy_scored *data;
    size_t count, room;
} hy_scored_list;

typedef struct hy_examples {
    hy_spool tokens; /* int32, see HY_COUNTS */
    hy_spool ends;   /* uint64: where example i ends; it begins where i - 1 ends */
    /* Prompts: the row of each as JSON, then its expected answer if it has one, each with a zero
     * byte; and uint64 (2 per prompt): where these end. Else empty. */
    hy_spool texts, text_ends;
    bool has_prompts;
    uint64_t count, token_count;
    uint64_t rows;     /* rows read, including malformed ones */
    uint64_t bad_rows; /* malformed */
    uint64_t cut;      /* longer than a sequence */
    uint64_t dropped;  /* cut rows that have no answer left */
    hy_unknown_text unknown;
    hy_scored_list scored;
    hy_row_losses losses;
    hy_row_losses ignored[2];    /* keys that are not used, of rows and of messages */
    char format[256];            /* example: "question and answer, the folder's chat template" */
    hy_prompt_format prompt;     /* of the first file that has answers */
    char first_reason[256 + 64]; /* why the first malformed row of a file was dropped */
} hy_examples;

/* Reads all files of the list. HY_ERR_INPUT names the file and line of a malformed row if these are
 * not skipped, or a file that has no usable row. */
hy_status hy_examples_open(const hy_file_list *files, const hy_encoding *encoding,
                           hy_examples *out);
void hy_examples_close(hy_examples *examples);

/* The format of the rows, and the keys that are not used. */
void hy_examples_describe(const hy_examples *examples, char *out, size_t size);

/* In parts, for streamed rows (row_stream.h): begin, add, end, and report. */
hy_status hy_examples_begin(hy_examples *examples);
hy_status hy_examples_end(hy_examples *examples);
/* Reports dropped and cut rows. More than half of the rows dropped is an error: something is wrong
 * with the data, or with how it is read. */
hy_status hy_examples_report(const hy_examples *examples, const hy_dataset_options *options);
hy_status hy_examples_check_dropped(const hy_examples *examples, const hy_dataset_options *options);
/* Fails, because no row of `path` gave an example. */
hy_status hy_examples_fail_unused(const hy_examples *examples, const hy_encoding *encoding,
                                  const char *path);

/* How the rows of a file are read. */
typedef struct hy_row_file {
    const hy_input_file *file;
    hy_row_kind kind;
    hy_csv csv;            /* the columns; empty for JSON */
    hy_chat_template chat; /* the template for this kind of row */
    hy_row_scan scan;      /* before the first row */
} hy_row_file;

/* Finds the kind of the rows in the first `size` bytes of a file. Close it also after an error. */
hy_status hy_row_file_open(const hy_input_file *file, const hy_encoding *encoding, const char *data,
                           size_t size, hy_row_file *out);
void hy_row_file_close(hy_row_file *file);
/* Encodes the rows of the scan. is_end: the file ends there. */
hy_status hy_examples_add(hy_examples *examples, const hy_encoding *encoding,
                          const hy_row_file *file, hy_row_scan scan, bool is_end);

/* The tokens of example i as stored; *count is their number. */
const int32_t *hy_examples_get(const hy_examples *examples, uint64_t i, uint32_t *count);

/* Example i as a prompt (prompts.c). */
void hy_examples_prompt(const hy_examples *examples, uint64_t i, hy_prompt_row *out);

/* Calls `show` for the first rows of the list, at most `most`; reads no further rows. An error of
 * `show` ends the reading. */
hy_status hy_examples_show(const hy_file_list *files, const hy_encoding *encoding, uint64_t most,
                           hy_show_row show, void *user);

/* ---- encoding a batch of rows ---------------------------------------------------------------- */

/* One thread uses a batch at a time. Its buffers are reused for later batches, so encoding soon
 * allocates only the JSON trees of the rows. */
#define HY_ROWS_OF_BATCH 512
#define HY_REASONS_KEPT 8
#define HY_REASON_MAX 256

typedef struct hy_bad_row {
    uint64_t line;
    char reason[HY_REASON_MAX];
} hy_bad_row;

typedef struct hy_batch_of_rows {
    hy_row rows[HY_ROWS_OF_BATCH];
    size_t row_count;
    double share; /* how much of the file is read up to the end of this batch */

    hy_ids tokens;  /* tokens of all examples, with HY_COUNTS */
    hy_ids lengths; /* length of each example */
    hy_scored_list scored;
    hy_text texts;     /* of prompts, as in hy_examples */
    hy_ids text_sizes; /* 2 per prompt; an answer that is not there has none */
    hy_bad_row bad[HY_REASONS_KEPT];
    size_t bad_count;
    hy_row_losses losses, ignored[2];
    uint64_t cut, dropped;
    bool is_cut[2]; /* the chosen and the rejected answer of the last pair */

    hy_conversation conversation;
    hy_rendered rendered;
    hy_ids ids;
    hy_flags answers;
} hy_batch_of_rows;

void hy_batch_free(hy_batch_of_rows *b); /* what it holds, not the batch */
/* Adds tokens [first, last) of b->ids as an example; b->answers says which of them count. */
hy_status hy_batch_add_example(hy_batch_of_rows *b, size_t first, size_t last, bool counts_all);
/* HY_ERR_STATE: a token of b->ids is not in the model's vocabulary. */
hy_status hy_batch_check_ids(const hy_batch_of_rows *b, const hy_encoding *encoding);
/* scored.c: encodes b->conversation, a row for evaluation, as one example for each choice: the
 * prompt, then the tokens of the choice, which count. All of them are added, or none. */
hy_status hy_batch_add_scored(hy_batch_of_rows *b, const hy_encoding *encoding,
                              const hy_chat_template *chat);
/* pairs.c: encodes b->conversation, a pair of answers, as two examples that follow one another: the
 * prompt with the chosen answer, then with the rejected one. Both are cut to fit into a sequence
 * together. */
hy_status hy_batch_add_pair(hy_batch_of_rows *b, const hy_encoding *encoding,
                            const hy_chat_template *chat);
int32_t hy_prompt_most(const hy_dataset_options *options); /* tokens of a prompt */
/* prompts.c: encodes b->conversation as a prompt, and keeps the texts of its row. */
hy_status hy_batch_add_prompt(hy_batch_of_rows *b, const hy_encoding *encoding,
                              const hy_chat_template *chat, const hy_row *row);
/* The expected answer of a batch of one prompt, or NULL. */
const char *hy_batch_expected(const hy_batch_of_rows *b);
hy_status hy_examples_put_texts(hy_examples *examples, const hy_batch_of_rows *b);
hy_status hy_scored_append(hy_scored_list *list, const hy_scored *more, size_t count);

/* The kind of a row. HY_ERR_INPUT: it is malformed or of no known kind. */
hy_status hy_row_kind_of(const hy_row *row, const hy_columns *columns, hy_row_kind *out);
/* Parses a row; HY_ERR_INPUT says why it is malformed, with the column. */
hy_status hy_row_parse(const hy_row *row, hy_json **out);
