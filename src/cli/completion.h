/* completion.h: what a program answers to --complete, for the shells' completion. */
#ifndef HY_CLI_COMPLETION_H
#define HY_CLI_COMPLETION_H

#include <stddef.h>
#include <stdio.h>

/* A flag, or what may stand alone (its name in capitals), and what belongs there: "accepted" is a list
 * of words separated by ", " for the types "choice" and "name", and for "file" (which takes other
 * files, too); "path" and "folder" say what belongs there; "action" and "switch" take no value; other
 * types are told to people only. */
typedef struct hy_cli_completion {
    const char *flag, *type, *accepted, *help;
} hy_cli_completion;

/* One line each: flag <TAB> type <TAB> accepted <TAB> help. */
void hy_cli_complete_rows(FILE *out, const hy_cli_completion *rows, size_t count);

#endif
