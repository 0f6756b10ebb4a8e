/* file.h: a file of prompts and the file of their answers: the parts of hy_generate_file.
 *
 * file.c asks the rows and writes their answers in order; file_row.c turns a row into a request;
 * file_source.c finds rows; file_check.c reads all of them once; file_settings.c says what the
 * answers depend on; file_part.c keeps OUT.part. Row i is the same request in every call, so an
 * interrupted call can be continued after any whole row. */
#pragma once

#include <stdatomic.h>

#include "data/csv_rows.h"
#include "data/input.h"
#include "generate/generator.h"

/* ---- where rows come from (file_source.c) ---------------------------------------------------- */

typedef struct hy_row_source {
    const char *name; /* for messages */
    bool is_input;    /* standard input: lines, which can be read once */
    hy_file_list list;
    hy_input file;
    hy_csv csv;
    hy_row_scan scan;
    hy_text lines; /* of standard input */
    size_t taken;  /* bytes of them that were returned */
    uint64_t line;
    bool has_ended;
} hy_row_source;

/* HY_ERR_INPUT: there is no such file, or it has no rows. */
hy_status hy_row_source_open(const char *data, const hy_columns *columns, hy_row_source *out);
void hy_row_source_close(hy_row_source *source); /* accepts all zeros */
/* The next row, valid until the next call; false at the end. HY_STOPPED: *is_stopped became true
 * while standard input had no row. */
hy_status hy_row_source_next(hy_row_source *source, const atomic_bool *is_stopped, hy_row *row,
                             bool *has_row);

/* ---- a row as a request (file_row.c) --------------------------------------------------------- */

/* What is the same for all rows. */
typedef struct hy_asking {
    const hy_codec *codec;
    hy_task_limits limits;
    hy_request each; /* without a prompt */
    hy_columns columns;
    const char *system; /* NULL: none */
    const char *data;   /* name of the data, for messages */
    int32_t answers;    /* of a row, at least 1 */
} hy_asking;

typedef struct hy_asked_row {
    hy_request request; /* with prompt.data as its tokens */
    hy_ids prompt;
    hy_text head;    /* the row as JSON on one line, without the keys of answers and the last } */
    const char *key; /* of the answer: "text" */
    hy_json *json;
    hy_conversation turns;
    const char **stops;
    size_t stop_room;
} hy_asked_row;

/* Reads row `number`, from 0. HY_ERR_INPUT says what is wrong with it, with file and line; then the
 * head is still the row as far as it can be read. */
hy_status hy_asked_row_read(hy_asked_row *asked, const hy_asking *how, const hy_row *row,
                            int64_t number);
void hy_asked_row_free(hy_asked_row *asked); /* accepts all zeros */

/* ---- reading all rows once (file_check.c) ---------------------------------------------------- */

typedef struct hy_file_check {
    const hy_asking *how;
    hy_generator *generator; /* its stop request ends the check with HY_STOPPED */
    const hy_generate_file_options *options;
    hy_generate_file_state *state; /* `rows` becomes their number */
} hy_file_check;

/* The source stays where it is. HY_ERR_INPUT: the first bad row, unless these are skipped. */
hy_status hy_file_check_rows(const hy_file_check *check, const hy_row_source *source);

/* ---- what answers depend on (file_settings.c) ------------------------------------------------ */

/* Appends an object of texts: settings, model and data. */
hy_status hy_file_settings_write(hy_generator *generator, const hy_asking *how, bool skips_bad,
                                 const hy_row_source *source, hy_text *out);
hy_status hy_file_settings_store(const char *path, const hy_text *settings, int64_t rows);
/* Compares with what is stored in `path`; HY_ERR_INPUT names the differences. *rows: the number of
 * rows that is stored there. */
hy_status hy_file_settings_compare(const char *path, const hy_text *settings, int64_t *rows);

/* ---- OUT.part (file_part.c) ------------------------------------------------------------------ */

typedef struct hy_file_part {
    char out[HY_PATH_MAX], path[HY_PATH_MAX], settings[HY_PATH_MAX]; /* OUT, .part, .part.json */
    int fd;         /* locked; standard output if out is "-"; -1: none */
    bool is_output; /* standard output: there are no files */
    bool has_rows;  /* of an earlier call */
    uint64_t size;  /* bytes of whole rows */
    int64_t rows;   /* whole rows, */
    int64_t bad;    /* and how many of these have "error" */
} hy_file_part;

/* Checks that OUT can be written, and takes OUT.part for this process. Close it also after a
 * failure. */
hy_status hy_file_part_open(hy_file_part *part, const char *out, bool starts_over);
/* Counts the whole rows of an earlier call, and cuts off what is behind them. */
hy_status hy_file_part_recover(hy_file_part *part);
hy_status hy_file_part_empty(hy_file_part *part);
/* Appends whole rows. */
hy_status hy_file_part_put(hy_file_part *part, const void *data, size_t size);
hy_status hy_file_part_finish(hy_file_part *part); /* OUT.part becomes OUT */
/* Nothing stays of a file without rows. */
void hy_file_part_close(hy_file_part *part);
