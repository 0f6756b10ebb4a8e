/* input.h: the files of a path, the kind of each, and its bytes.
 *
 * A path is a file, a folder, or "-": standard input. The first bytes of a file decide its kind; if
 * they are not enough (text, rows), its name decides. gzip and zstd files are decompressed
 * everywhere, and their content decides (unpack.h). A file that is not text is an error that names
 * the detected format. */
#pragma once

#include "base/file.h"
#include "data/spool.h"
#include "data/unpack.h"

/* How files are read. */
typedef enum hy_data_format {
    HY_FORMAT_AUTO,
    HY_FORMAT_TEXT, /* text, whatever the name says; compressed files are decompressed */
    HY_FORMAT_BYTES /* unchanged: nothing is decompressed or rejected */
} hy_data_format;

/* Which rows are streamed (row_stream.h): those of large files, all, or none. */
typedef enum hy_stream_choice { HY_STREAM_AUTO, HY_STREAM_ON, HY_STREAM_OFF } hy_stream_choice;

typedef enum hy_file_kind { HY_DATA_TEXT, HY_DATA_SHARDS, HY_DATA_ROWS } hy_file_kind;

typedef struct hy_input_file {
    char *path;
    hy_file_kind kind;
    hy_packer packer;
    bool is_csv;          /* for rows: CSV; otherwise JSON */
    bool looks_like_rows; /* text by its name, but it begins like rows */
} hy_input_file;

/* The files of a path: the file itself, or all files of a folder at any depth, sorted by name. */
typedef struct hy_file_list {
    hy_input_file *files;
    size_t count, capacity;
    size_t skipped;    /* files of a folder that are hidden, empty or not text */
    char refused[512]; /* why the first file that is not text was skipped */
} hy_file_list;

/* Finds the files and detects their kinds. HY_ERR_INPUT: the path is missing or not text, or the
 * folder contains nothing usable or a table in an unsupported format. Standard input is read to its
 * end and copied; after that it can be opened any number of times. */
hy_status hy_file_list_find(const char *path, hy_data_format format, hy_file_list *list);
/* As above, but waits only until `least` bytes of standard input are there, or all. */
hy_status hy_file_list_find_soon(const char *path, hy_data_format format, uint64_t least,
                                 hy_file_list *list);
void hy_file_list_free(hy_file_list *list);
bool hy_is_standard_input(const char *path); /* "-" or /dev/stdin */
/* Whether a list of paths like "a.txt:0.5,-:0.5" contains standard input. */
bool hy_reads_input(const char *paths);

/* The kind of all files; HY_ERR_INPUT names two files of different kinds. Files for people next to
 * rows (README, LICENSE, .md) are removed from the list and counted as skipped. */
hy_status hy_file_list_kind(const char *path, hy_file_list *list, hy_file_kind *out);

/* The decompressed bytes of a file, mapped from the file itself or from an unnamed one
 * (spool.h). */
typedef struct hy_input {
    const char *data; /* NULL if the file is empty */
    size_t size;
    hy_file_map map; /* one of these holds the bytes */
    hy_spool spool;
} hy_input;

hy_status hy_input_open(const hy_input_file *file, hy_input *out);
void hy_input_close(hy_input *input); /* accepts all zeros */
/* Counts the decompressed bytes without storing them. */
hy_status hy_input_measure(const hy_input_file *file, uint64_t *size);
/* As above; the size of a large compressed file is estimated from its first 4 MiB. */
hy_status hy_input_estimate(const hy_input_file *file, uint64_t *size);
