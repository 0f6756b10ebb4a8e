/* program.c: exit codes, and parsing of command lines with a table of flags. See program.h.
 *
 * Every program begins in hy_cli_parse, except hybrid-train, which has its own parser (options.c)
 * and uses the other functions. A wrong command line is reported, with the flag, the value and what
 * is accepted, before the program does anything. */
#include "cli/program.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/terminal.h"
#include "hybrid.h"
#include "hybrid_report.h"

#define NAME_MAX_BYTES 48 /* longer than any flag */
#define NAME_COLUMNS 24
#define HELP_COLUMNS 80

/* A new file gets the lowest free descriptor: if standard error is closed, messages would go into
 * that file. A file that exceeds the system's size limit is a failed write, which is reported, and
 * not the end of the program. */
void hy_cli_open_streams(void) {
    int fd;
    hy_cli_handle(SIGXFSZ, SIG_IGN, SA_RESTART);
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

int hy_cli_exit_code(hy_status status) {
    switch (status) {
    case HY_OK: return HY_EXIT_DONE;
    case HY_ERR_INPUT: return HY_EXIT_USAGE;
    case HY_ERR_NUMERIC: return HY_EXIT_DIVERGED;
    case HY_STOPPED: return HY_EXIT_STOPPED;
    default: return HY_EXIT_FAILED;
    }
}

int hy_cli_take_newest(char path[HY_CLI_RUN_BYTES], bool is_quiet) {
    hy_status status = hy_run_newest(HY_CLI_RUNS, path, HY_CLI_RUN_BYTES);
    if (status != HY_OK) return hy_cli_fail(status);
    if (!is_quiet) hy_cli_note("using %s, the newest run in " HY_CLI_RUNS "/", path);
    return HY_EXIT_DONE;
}

int hy_cli_fail(hy_status status) {
    return hy_cli_refuse(hy_cli_exit_code(status), "%s", hy_error_message());
}

int hy_cli_flushed(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    if (errno == EPIPE || code != HY_EXIT_DONE) return code;
    return hy_cli_refuse(HY_EXIT_FAILED, "cannot write to standard output: %s", strerror(errno));
}

int hy_cli_wrong_usage(const char *what, const char *value) {
    return hy_cli_refuse(HY_EXIT_USAGE, "%s%s; see \"%s --help\"", what, value,
                         hy_cli_program_name());
}

void hy_cli_handle(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_flags = flags};
    action.sa_handler = handler;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

void hy_cli_write_wrapped(FILE *out, const char *text, int indent, int columns) {
    int at = indent;
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");
        if (at > indent && at + 1 + length > columns) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
        } else if (at > indent) {
            fputc(' ', out);
            at++;
        }
        fwrite(text, 1, (size_t)length, out);
        at += length;
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

char *hy_cli_read_all(FILE *file, size_t most, size_t *size) {
    size_t room = 1 << 16, got;
    char *text = malloc(room);
    *size = 0;
    while (text && (got = fread(text + *size, 1, room - *size - 1, file)) > 0) {
        *size += got;
        if (*size + 1 < room) continue;
        char *larger = *size > most ? NULL : realloc(text, room *= 2);
        if (!larger) free(text);
        if (*size > most) errno = EFBIG;
        text = larger;
    }
    if (text && !ferror(file)) {
        text[*size] = '\0';
        return text;
    }
    free(text);
    return NULL;
}

/* ---- mistyped names -------------------------------------------------------------------------- */

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

size_t hy_cli_distance(const char *typed, size_t length, const char *name) {
    size_t rows[3][NAME_MAX_BYTES + 1]; /* rows of the usual table; three are enough for swaps */
    size_t *before = rows[0], *above = rows[1], *row = rows[2], columns = strlen(name);
    if (columns > NAME_MAX_BYTES || length > NAME_MAX_BYTES) return SIZE_MAX;
    /* People often type only the beginning: --batch for --batch-size counts as one error. */
    if (length > 2 && length < columns && memcmp(name, typed, length) == 0) return 1;
    for (size_t j = 0; j <= columns; j++) above[j] = j;
    for (size_t i = 1; i <= length; i++) {
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t replaced = above[j - 1] + (typed[i - 1] != name[j - 1]);
            row[j] = smaller(replaced, smaller(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && typed[i - 1] == name[j - 2] && typed[i - 2] == name[j - 1])
                row[j] = smaller(row[j], before[j - 2] + 1);
        }
        size_t *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    return above[columns] <= (length / 3 > 2 ? length / 3 : 2) ? above[columns] : SIZE_MAX;
}

/* ---- help and completion --------------------------------------------------------------------- */

static const hy_cli_row common[] = {
    {"--version", NULL, HY_CLI_SWITCH, .help = "Print the version."},
    {"--help", NULL, HY_CLI_SWITCH, .help = "Show this page."},
};
enum { COMMON = sizeof common / sizeof common[0] };

/* The program's rows, then the rows that all programs share. */
static const hy_cli_row *row_at(const hy_cli_program *program, size_t i) {
    if (i < program->row_count) return &program->rows[i];
    return i < program->row_count + COMMON ? &common[i - program->row_count] : NULL;
}

static void write_row(const char *name, const char *value, const char *help) {
    int at = printf("  %s%s%s", name, value ? " " : "", value ? value : "");
    printf("%*s", at < NAME_COLUMNS ? NAME_COLUMNS - at : 1, "");
    hy_cli_write_wrapped(stdout, help, NAME_COLUMNS, HELP_COLUMNS);
}

static const char *completion_type(const hy_cli_row *row) {
    if (row->kind == HY_CLI_SWITCH) return "action";
    if (row->kind == HY_CLI_NUMBER) return "number";
    if (row->kind != HY_CLI_TEXT && row->kind != HY_CLI_TEXTS) return "integer";
    if (row->accepted) return "choice";
    if (strcmp(row->value, "FOLDER") == 0) return "folder";
    return strcmp(row->value, "FILE") == 0 ? "path" : "text";
}

/* For shell completion, one line per flag: flag <TAB> type <TAB> accepted <TAB> help. "accepted" is
 * a list of words separated by ", " for a choice. Positional arguments have a name in capitals. */
static void write_completion(const hy_cli_program *program) {
    const hy_cli_row *row;
    for (size_t i = 0; (row = row_at(program, i)) != NULL; i++)
        printf("%s\t%s\t%s\t%s\n", row->name, completion_type(row),
               row->accepted ? row->accepted : "", row->help);
    if (program->word)
        printf("%s\t%s\t\t%s\n", program->word, program->word_type, program->word_help);
}

/* Whether the argument is a flag of all programs; prints what it asks for. */
static bool answers(const hy_cli_program *program, const char *argument) {
    const hy_cli_row *row;
    if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
        fputs(program->before, stdout);
        if (program->word) write_row(program->word, NULL, program->word_help);
        for (size_t i = 0; (row = row_at(program, i)) != NULL; i++)
            write_row(row->name, row->value, row->help);
        fputs(program->after, stdout);
    } else if (strcmp(argument, "--version") == 0) {
        printf("%s " HYBRID_VERSION "\n", program->name);
    } else if (strcmp(argument, "--complete") == 0) {
        write_completion(program);
    } else {
        return false;
    }
    return true;
}

/* ---- parsing --------------------------------------------------------------------------------- */

static const hy_cli_row *find_row(const hy_cli_program *program, const char *typed, size_t length) {
    const hy_cli_row *row, *nearest = NULL;
    size_t least = SIZE_MAX;
    if (strcmp(typed, "-q") == 0) return find_row(program, "--quiet", 7);
    for (size_t i = 0; (row = row_at(program, i)) != NULL; i++) {
        size_t distance = hy_cli_distance(typed, length, row->name);
        if (strlen(row->name) == length && strncmp(row->name, typed, length) == 0) return row;
        if (distance < least) nearest = row;
        if (distance < least) least = distance;
    }
    if (nearest)
        hy_cli_error("unknown flag %.*s; did you mean %s?", (int)length, typed, nearest->name);
    else
        hy_cli_error("unknown flag %.*s; \"%s --help\" lists all flags", (int)length, typed,
                     program->name);
    return NULL;
}

static bool add_text(const hy_cli_row *row, const char *value, hy_cli_texts *texts) {
    if (texts->count == HY_CLI_TEXTS_MOST)
        return hy_cli_refuse(false, "%s is given more than %d times", row->name, HY_CLI_TEXTS_MOST);
    texts->list[texts->count++] = value;
    return true;
}

static bool take_value(const hy_cli_row *row, const char *value, void *options) {
    void *at = (char *)options + row->offset;
    char *end;
    if (row->kind == HY_CLI_TEXT) {
        *(const char **)at = value;
        return true;
    }
    if (row->kind == HY_CLI_TEXTS) return add_text(row, value, at);
    errno = 0;
    double number = strtod(value, &end);
    bool is_right = end != value && *end == '\0' && number >= row->low &&
                    (number <= row->high || row->high == 0);
    if (row->kind != HY_CLI_NUMBER) is_right = is_right && number == floor(number);
    if (row->kind == HY_CLI_COUNT) { /* more digits than a double needs */
        uint64_t count = strtoull(value, &end, 10);
        is_right = is_right && errno == 0 && *end == '\0' && value[0] != '-';
        if (is_right) *(uint64_t *)at = count;
    } else if (is_right && row->kind == HY_CLI_INT32) {
        *(int32_t *)at = (int32_t)number;
    } else if (is_right) {
        *(double *)at = number;
    }
    if (!is_right) hy_cli_error("%s is \"%s\"; accepted: %s", row->name, value, row->accepted);
    return is_right;
}

int hy_cli_parse(const hy_cli_program *program, int *argc, char **argv, void *options) {
    int words = 1;
    bool ends_flags = false;
    hy_cli_open_streams();
    hy_cli_name_program(program->name);
    for (int i = 1; i < *argc; i++) {
        const char *argument = argv[i];
        if (ends_flags || argument[0] != '-' || argument[1] == '\0') {
            if (!program->word)
                return hy_cli_refuse(
                    HY_EXIT_USAGE, "unexpected argument \"%s\"; a value must follow a flag: %s %s",
                    argument, program->rows[0].name, argument);
            argv[words++] = argv[i];
            continue;
        }
        if (answers(program, argument)) return hy_cli_flushed(HY_EXIT_DONE);
        ends_flags = strcmp(argument, "--") == 0;
        if (ends_flags) continue;
        size_t length = strcspn(argument, "=");
        const char *value = argument[length] == '=' ? argument + length + 1 : NULL;
        const hy_cli_row *row = find_row(program, argument, length);
        if (!row) return HY_EXIT_USAGE;
        if (row->kind == HY_CLI_SWITCH) {
            if (value) hy_cli_error("%s takes no value, but got \"%s\"", row->name, value);
            if (value) return HY_EXIT_USAGE;
            *(bool *)((char *)options + row->offset) = true;
            continue;
        }
        if (!value && i + 1 < *argc) value = argv[++i];
        if (!value)
            hy_cli_error("%s needs a value%s %s", row->name, row->accepted ? "; accepted:" : ":",
                         row->accepted ? row->accepted : row->value);
        if (!value || !take_value(row, value, options)) return HY_EXIT_USAGE;
    }
    *argc = words;
    return HY_CLI_GO_ON;
}
