/* examples.h: rows of JSON or CSV files as examples: tokens, and which of them count in the loss.
 *
 * All rows are encoded once, when the data is opened, by as many threads as wanted, into a file without a
 * name (spool.h). So the length of every example is known before the first step: packing and order are
 * pure functions of the seed, resuming needs one number, and memory stays bounded whatever the size of the
 * data: 4 bytes a token and 8 a row on disk.
 *
 * An example has 2 to T + 1 tokens. Longer conversations are cut at their end and counted; a longer text
 * becomes several examples that share one token at each border, so that every token is predicted once. */
#pragma once

#include "data/conversation.h"
#include "data/encoding.h"
#include "data/json_rows.h"
#include "data/source.h"
#include "data/spool.h"

/* A stored token: its id, and in the sign bit whether it counts as a target. */
#define HY_COUNTS INT32_MIN

typedef struct hy_examples {
    hy_spool tokens; /* int32, see HY_COUNTS */
    hy_spool ends;   /* uint64: where example i ends; it begins where i - 1 ended */
    uint64_t count, token_count;
    uint64_t rows;     /* read, malformed ones among them */
    uint64_t bad_rows; /* malformed */
    uint64_t cut;      /* longer than a sequence */
    uint64_t dropped;  /* of these, with no answer left */
} hy_examples;

/* Reads all files of the list. HY_ERR_INPUT names file and line of a malformed row when those are not
 * skipped, and a file in which no row could be used. */
hy_status hy_examples_open(const hy_file_list *files, const hy_encoding *encoding,
                           hy_examples *out);
void hy_examples_close(hy_examples *examples);

/* Example i: its tokens as stored, *count of them. */
const int32_t *hy_examples_get(const hy_examples *examples, uint64_t i, uint32_t *count);

/* ---- a batch of rows on its way to tokens ---- */

/* One thread has it at a time. All that encoding needs is kept from batch to batch, so it soon allocates
 * nothing but the rows' own trees. */
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
    double share; /* of the file, up to its end */

    hy_ids tokens;  /* of all examples, with HY_COUNTS */
    hy_ids lengths; /* of each */
    hy_bad_row bad[HY_REASONS_KEPT];
    size_t bad_count;
    uint64_t cut, dropped;

    hy_conversation conversation;
    hy_rendered rendered;
    hy_ids ids;
    hy_flags answers;
} hy_batch_of_rows;

/* The tree of a row; HY_ERR_INPUT says why it is none, with the column. */
hy_status hy_row_parse(const hy_row *row, hy_json **out);
