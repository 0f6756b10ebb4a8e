/* input.h: the files behind a path, what each of them holds, and its bytes.
 *
 * A path is a file, a folder, or "-": standard input. What a file holds is seen by its first bytes, and by
 * its name where bytes do not say (text, rows). Files packed by gzip or zstd are taken for what they hold,
 * everywhere (unpack.h). What is not text is refused by the name of what it seems to be. */
#pragma once

#include "base/file.h"
#include "data/spool.h"
#include "data/unpack.h"

/* What files are taken for. */
typedef enum hy_data_format {
    HY_FORMAT_AUTO,
    HY_FORMAT_TEXT, /* text, whatever the name promises; packed files are unpacked */
    HY_FORMAT_BYTES /* as they are: nothing is unpacked or refused */
} hy_data_format;

typedef enum hy_file_kind { HY_DATA_TEXT, HY_DATA_SHARDS, HY_DATA_ROWS } hy_file_kind;

typedef struct hy_input_file {
    char *path;
    hy_file_kind kind;
    hy_packer packer;
    bool is_csv; /* of rows: else they are JSON */
} hy_input_file;

/* The files behind a path: itself, or what a folder holds at any depth, sorted by name. */
typedef struct hy_file_list {
    hy_input_file *files;
    size_t count, capacity;
    size_t skipped;    /* files of a folder that were not taken: hidden, empty or not text */
    char refused[512]; /* why the first of those that are not text was not taken */
} hy_file_list;

/* Finds the files and looks at them. HY_ERR_INPUT: the path is missing, is not text, or is a folder in which
 * nothing can be used or tables lie that cannot be read. Standard input is read to its end, and stays where
 * standard input is: it can be opened any number of times. */
hy_status hy_file_list_find(const char *path, hy_data_format format, hy_file_list *list);
void hy_file_list_free(hy_file_list *list);

/* The kind that all of them are; HY_ERR_INPUT names two that are not. What lies beside rows to be read by
 * people (README, LICENSE, .md) is taken off the list and counted as skipped. */
hy_status hy_file_list_kind(const char *path, hy_file_list *list, hy_file_kind *out);

/* The bytes of a file, unpacked: mapped, from the file itself or from one without a name (spool.h). */
typedef struct hy_input {
    const char *data; /* NULL for an empty one */
    size_t size;
    hy_file_map map; /* or: */
    hy_spool spool;
} hy_input;

hy_status hy_input_open(const hy_input_file *file, hy_input *out);
void hy_input_close(hy_input *input); /* a zeroed one too */
/* How many bytes they are, without keeping them. */
hy_status hy_input_measure(const hy_input_file *file, uint64_t *size);
