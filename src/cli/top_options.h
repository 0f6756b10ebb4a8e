/* top_options.h: what the command line of hybrid-top asks for. */
#ifndef HY_CLI_TOP_OPTIONS_H
#define HY_CLI_TOP_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>

#define HY_TOP_INTERVAL_LEAST 0.1
#define HY_TOP_INTERVAL_MOST 3600.0

typedef enum hy_top_action {
    HY_TOP_WATCH = 0,
    HY_TOP_HELP,
    HY_TOP_VERSION,
    HY_TOP_COMPLETE
} hy_top_action;

typedef struct hy_top_options {
    hy_top_action action;
    bool is_once, is_ascii, without_colour;
    double interval, width, height; /* width and height: 0: as the terminal has */
    const char **runs;              /* as many as there are arguments; points into argv */
    int count;
} hy_top_options;

/* Reads argv. When it is wrong, says so on standard error and returns false. Either way
 * hy_top_options_fini must follow. */
bool hy_top_options_parse(int argc, char *const *argv, hy_top_options *options);
void hy_top_options_fini(hy_top_options *options);

void hy_top_help(FILE *out);
/* The flags for the shells' completion; see completion.h. */
void hy_top_complete(FILE *out);

#endif
