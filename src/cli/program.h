/* program.h: what the programs share: exit codes, and a command line that is read by a table of flags.
 *
 * Parsing, help and completion all follow from the table. hybrid-train alone has a list of its own
 * (options.h), because most of its flags are keys of the configuration. */
#pragma once

#include <stdio.h>

#include "hybrid_types.h"

enum {
    HY_EXIT_DONE = 0,
    HY_EXIT_FAILED = 1,
    HY_EXIT_USAGE = 2,    /* wrong usage or input */
    HY_EXIT_DIVERGED = 3, /* numbers that are not finite, or a loss that went far up */
    HY_EXIT_STOPPED = 75  /* by a signal, in order */
};

/* /dev/null in the place of standard streams that are closed, so that no file is taken for one of them.
 * The first thing a program does; hy_cli_parse does it by itself. */
void hy_cli_open_streams(void);

int hy_cli_exit_code(hy_status status);

/* Says the library's last error; its exit code. */
int hy_cli_fail(hy_status status);

/* What was asked for on standard output must have arrived there: `code`, or HY_EXIT_FAILED with an error
 * where it did not. A reader that left early (head, less) is no error. */
int hy_cli_flushed(int code);

/* Calls `handler` (or SIG_IGN, SIG_DFL) for a signal, with the flags of sigaction(). */
void hy_cli_handle(int number, void (*handler)(int), int flags);

/* Text in lines of at most `columns`, each after the first indented; breaks at blanks only, ends the line. */
void hy_cli_write_wrapped(FILE *out, const char *text, int indent, int columns);

/* Errors between what was typed (`length` bytes) and a name: insertions, deletions, replacements and swaps
 * of neighbours. SIZE_MAX when there are too many for it to have been meant. */
size_t hy_cli_distance(const char *typed, size_t length, const char *name);

/* ---- the flags of a small program -------------------------------------------------------------- */

typedef enum hy_cli_kind {
    HY_CLI_TEXT,   /* a const char * at `offset` of the options */
    HY_CLI_NUMBER, /* a double, from `low` to `high` */
    HY_CLI_INT32,  /* an int32_t */
    HY_CLI_COUNT,  /* a uint64_t; high 0: any */
    HY_CLI_SWITCH  /* a bool; takes no value */
} hy_cli_kind;

typedef struct hy_cli_row {
    const char *name;  /* "--top-p" */
    const char *value; /* "P"; NULL for a switch */
    hy_cli_kind kind;
    size_t offset;
    const char *help;
    const char
        *accepted; /* of a number, in words; of a text, the words that complete it; NULL: any */
    double low, high;
} hy_cli_row;

typedef struct hy_cli_program {
    const char *name;
    const char *before, *after; /* of the flags in --help */
    const hy_cli_row *rows;     /* --help, --version and --complete are understood */
    size_t row_count;
    /* What may stand alone: its name ("RUN"), "folder" or "path", and what it is; NULL: nothing. */
    const char *word, *word_type, *word_help;
} hy_cli_program;

#define HY_CLI_GO_ON (-1)

/* Reads argv into `options`; the words that stand alone move to argv[1] and on, and *argc counts them with
 * the program's name. Returns HY_CLI_GO_ON, or the exit code to end with: a question was answered, or what
 * is wrong was said. */
int hy_cli_parse(const hy_cli_program *program, int *argc, char **argv, void *options);

/* Says what is wrong, with the value it was found in behind it, and where to read on. HY_EXIT_USAGE. */
int hy_cli_wrong_usage(const char *what, const char *value);
