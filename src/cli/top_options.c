/* top_options.c: the flags of hybrid-top as a table: parsing and completion both read it. */
#include "cli/top_options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cli/completion.h"
#include "cli/flag_names.h"
#include "cli/terminal.h"
#include "cli/top_canvas.h"
#include "hybrid.h"

static const char help[] =
    "Usage: hybrid-top [RUN ...] [options]\n"
    "\n"
    "Shows what a training run is doing, while it goes on: phase, loss, speed, memory by class\n"
    "against its plan and budget, time left, and whether it is alive. It only reads the files\n"
    "that the run writes into its folder; the run is not disturbed and need not be asked.\n"
    "\n"
    "  Watch the newest run below runs/\n"
    "    hybrid-top\n"
    "  Watch one by its folder, also over ssh\n"
    "    hybrid-top runs/mine\n"
    "  Several: a line each, and one of them in full (arrows choose)\n"
    "    hybrid-top runs/a runs/b\n"
    "  One picture for a log or a chat\n"
    "    hybrid-top runs/mine --once --width 100 > now.txt\n"
    "\n"
    "  RUN                 a run's folder (hybrid-train's --out) or its metrics.jsonl;\n"
    "                      one that has no step yet is waited for\n"
    "  --interval SECONDS  how often to look: 0.1 to 3600, default 1\n"
    "  --once              print one page and exit; so it does where output is no terminal\n"
    "  --width N           columns of the page with --once: 20 to 500\n"
    "  --height N          rows of the page with --once: 1 to 300, default as many as it needs\n"
    "  --ascii             no block characters; so it does where the locale is not UTF-8\n"
    "  --no-color          no colours; so does the variable NO_COLOR\n"
    "  --help, --version\n"
    "\n"
    "Keys: q quit, p pause, + and - look less or more often, arrows or 1-9 another run, ? help.\n"
    "\"stalled\" is judged by the run's own steps: no line for 40 of them, and for 90 seconds.\n"
    "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 75 stopped by a signal.\n";

typedef struct top_flag {
    const char *name;
    const char *type; /* for completion: "action" takes no value */
    const char *accepted, *help;
    size_t offset;    /* of a bool or a double */
    double low, high; /* of a number */
    hy_top_action action;
} top_flag;

#define AT(member) .offset = offsetof(hy_top_options, member)

static const top_flag flags[] = {
    {"--interval", "number", "0.1 to 3600 seconds", "How often to look.", AT(interval),
     .low = HY_TOP_INTERVAL_LEAST, .high = HY_TOP_INTERVAL_MOST},
    {"--once", "action", "", "Print one page and exit.", AT(is_once)},
    {"--width", "integer", "20 to 500 columns", "Columns of the page with --once.", AT(width),
     .low = 20, .high = HY_TOP_COLUMNS_MAX},
    {"--height", "integer", "1 to 300 rows", "Rows of the page with --once.", AT(height), .low = 1,
     .high = HY_TOP_ROWS_MAX},
    {"--ascii", "action", "", "No block characters.", AT(is_ascii)},
    {"--no-color", "action", "", "No colours.", AT(without_colour)},
    {"--help", "action", "", "Show help.", .action = HY_TOP_HELP},
    {"--version", "action", "", "Print the version.", .action = HY_TOP_VERSION},
    {"--complete", "action", NULL, NULL, .action = HY_TOP_COMPLETE}, /* for shells */
};

enum { FLAGS = sizeof flags / sizeof flags[0] };

void hy_top_help(FILE *out) { fputs(help, out); }

void hy_top_complete(FILE *out) {
    static const hy_cli_completion run = {"RUN", "folder", "", "A run's folder."};
    for (int i = 0; i < FLAGS; i++) {
        hy_cli_completion row = {flags[i].name, flags[i].type, flags[i].accepted, flags[i].help};
        if (flags[i].help != NULL) hy_cli_complete_rows(out, &row, 1);
    }
    hy_cli_complete_rows(out, &run, 1);
}

static hy_cli_flag_name name_of(size_t i) {
    if (i >= FLAGS) return (hy_cli_flag_name){0};
    return (hy_cli_flag_name){flags[i].name, .is_hidden = flags[i].help == NULL};
}

static bool take_number(const top_flag *flag, const char *value, hy_top_options *options) {
    char *end;
    double number = value != NULL ? strtod(value, &end) : 0;
    bool is_whole = strcmp(flag->type, "integer") != 0 || number == (double)(int)number;
    bool is_right = value != NULL && end != value && *end == '\0' && number >= flag->low &&
                    number <= flag->high && is_whole;
    if (!is_right) {
        hy_cli_error("%s is \"%s\"; accepted are %s", flag->name, value != NULL ? value : "",
                     flag->accepted);
        return false;
    }
    *(double *)(void *)((char *)options + flag->offset) = number;
    return true;
}

/* `argv[*i]` is the argument in hand; a value that follows it is taken along. */
static bool take_flag(int argc, char *const *argv, int *i, hy_top_options *options) {
    const char *argument = argv[*i];
    size_t length = strcspn(argument, "=");
    const char *value = argument[length] == '=' ? argument + length + 1 : NULL;
    int found = hy_cli_find_flag(name_of, argument, length);
    if (found < 0) {
        hy_cli_unknown_flag(name_of, argument, length, "\"hybrid-top --help\" lists them");
        return false;
    }
    const top_flag *flag = &flags[found];
    if (strcmp(flag->type, "action") != 0) {
        if (value == NULL && *i + 1 < argc) value = argv[++*i];
        return take_number(flag, value, options);
    }
    if (value != NULL) {
        hy_cli_error("%s takes no value, but got \"%s\"", flag->name, value);
        return false;
    }
    if (flag->action != HY_TOP_WATCH)
        options->action = flag->action;
    else
        *(bool *)((char *)options + flag->offset) = true;
    return true;
}

bool hy_top_options_parse(int argc, char *const *argv, hy_top_options *options) {
    bool ends_flags = false;
    *options = (hy_top_options){.interval = 1};
    options->runs = calloc((size_t)argc + 1, sizeof *options->runs);
    if (options->runs == NULL) {
        hy_cli_error("no memory for %d arguments", argc);
        return false;
    }
    for (int i = 1; i < argc; i++) {
        if (ends_flags || argv[i][0] != '-')
            options->runs[options->count++] = argv[i];
        else if (strcmp(argv[i], "--") == 0)
            ends_flags = true;
        else if (!take_flag(argc, argv, &i, options))
            return false;
        if (options->action != HY_TOP_WATCH) return true;
    }
    return true;
}

void hy_top_options_fini(hy_top_options *options) {
    free(options->runs);
    options->runs = NULL;
}
