/* program.h: what the programs share: exit codes, and parsing of command lines with a table of
 * flags.
 *
 * Parsing, help and completion use the table. hybrid-train has its own list (options.h), because
 * most of its flags are configuration keys. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "hybrid_types.h"

enum {
    HY_EXIT_DONE = 0,
    HY_EXIT_FAILED = 1,
    HY_EXIT_USAGE = 2,    /* wrong usage or input */
    HY_EXIT_DIVERGED = 3, /* the loss is not finite, or rose far above its start */
    HY_EXIT_STOPPED = 75  /* stopped by a signal after saving */
};

/* Opens /dev/null for closed standard streams, so that no other file gets their descriptor. Call
 * this first; hy_cli_parse does it. */
void hy_cli_open_streams(void);

int hy_cli_exit_code(hy_status status);

/* Prints the library's last error and returns its exit code. */
int hy_cli_fail(hy_status status);

/* Flushes standard output: returns `code`, or HY_EXIT_FAILED with an error message if writing
 * failed. A reader that left early (head, less) is not an error. */
int hy_cli_flushed(int code);

/* Calls `handler` (or SIG_IGN, SIG_DFL) for a signal, with the flags of sigaction(). */
void hy_cli_handle(int number, void (*handler)(int), int flags);

/* Reads the rest of a file and adds a zero byte. The caller frees the text. NULL, with errno: it
 * cannot be read, memory is short, or it has more than `most` bytes (EFBIG). */
char *hy_cli_read_all(FILE *file, size_t most, size_t *size);

/* Prints text in lines of at most `columns`; all lines after the first are indented. Breaks only at
 * blanks and ends the last line. */
void hy_cli_write_wrapped(FILE *out, const char *text, int indent, int columns);

/* The number of typing errors between `typed` (`length` bytes) and a name: insertions, deletions,
 * replacements and swaps of neighbours. SIZE_MAX if there are too many for a match. */
size_t hy_cli_distance(const char *typed, size_t length, const char *name);

/* The newest run (hy_run_newest), for a program that was given none. A note names it. HY_EXIT_DONE,
 * or the exit code after an error message. */
#define HY_CLI_RUNS "runs" /* where hybrid-train puts runs without --out */
#define HY_CLI_RUN_BYTES 4096
int hy_cli_take_newest(char path[HY_CLI_RUN_BYTES], bool is_quiet);

/* ---- the flags of a small program ------------------------------------------------------------ */

typedef enum hy_cli_kind {
    HY_CLI_TEXT,   /* a const char * at `offset` of the options */
    HY_CLI_NUMBER, /* a double, from `low` to `high` */
    HY_CLI_INT32,  /* an int32_t */
    HY_CLI_COUNT,  /* a uint64_t; high 0: any */
    HY_CLI_SWITCH, /* a bool; takes no value */
    HY_CLI_TEXTS   /* hy_cli_texts: the flag can be given several times */
} hy_cli_kind;

#define HY_CLI_TEXTS_MOST 64
typedef struct hy_cli_texts {
    const char *list[HY_CLI_TEXTS_MOST];
    size_t count;
} hy_cli_texts;

typedef struct hy_cli_row {
    const char *name;  /* "--top-p" */
    const char *value; /* "P"; NULL for a switch */
    hy_cli_kind kind;
    size_t offset;
    const char *help;
    const char *accepted; /* the range of a number, or the words of a text; NULL: any */
    double low, high;
} hy_cli_row;

typedef struct hy_cli_program {
    const char *name;
    const char *before, *after; /* texts before and after the flags in --help */
    const hy_cli_row *rows;     /* --help, --version and --complete are always accepted */
    size_t row_count;
    /* Positional arguments: their name ("RUN"), "folder" or "path", and a description; NULL:
     * none. */
    const char *word, *word_type, *word_help;
} hy_cli_program;

#define HY_CLI_GO_ON (-1) /* not an exit code: the program continues */

/* Parses argv into `options`. Positional arguments move to argv[1] and following; *argc counts them
 * and the program name. Returns HY_CLI_GO_ON, or the exit code if help was printed or an error was
 * reported. */
int hy_cli_parse(const hy_cli_program *program, int *argc, char **argv, void *options);

/* Prints an error message, followed by the wrong value and a hint to --help. Returns
 * HY_EXIT_USAGE. */
int hy_cli_wrong_usage(const char *what, const char *value);
