/* show_rows.c: --show-rows: rows as they are trained, for people or as JSON. See inspect.h.
 *
 * The parts that count in the loss are green, or between [[ and ]] without colours; so are the
 * tokens in the list below, where a star replaces the colour. */
#include <stdlib.h>
#include <string.h>

#include "cli/inspect.h"
#include "cli/progress.h"

typedef struct shown {
    const hy_cli_terminal *terminal;
    bool wants_json;
    int64_t rows;
    char format[256]; /* of the rows before */
} shown;

static const char *mark(const shown *s, bool is_begin) {
    if (!s->terminal->has_colour) return is_begin ? "[[" : "]]";
    return hy_cli_colour_code(s->terminal, is_begin ? HY_CLI_GREEN : HY_CLI_PLAIN);
}

/* What the tokens of rows of a new format mean. */
static void show_format(shown *s, const hy_row_view *row) {
    FILE *out = s->terminal->out;
    snprintf(s->format, sizeof s->format, "%s", row->format);
    hy_cli_printf(out, "%srows: %s\n", s->rows > 0 ? "\n" : "", row->format);
    if (row->is_prompt)
        fputs("nothing is counted in the loss: the model answers, and its answers are rewarded\n",
              out);
    else
        fprintf(out, "counted in the loss: %slike this%s\n", mark(s, true),
                s->terminal->has_colour ? mark(s, false) : "]], and tokens with *");
}

/* The texts of neighbours are written together, because a character can have several tokens. */
static void show_text(const shown *s, const hy_row_view *row) {
    FILE *out = s->terminal->out;
    for (size_t i = 0, last; i < row->token_count; i = last) {
        bool counts = row->tokens[i].counts;
        char *run = NULL;
        size_t size = 0;
        FILE *text = open_memstream(&run, &size);
        for (last = i; last < row->token_count && row->tokens[last].counts == counts; last++)
            if (text != NULL) fwrite(row->tokens[last].text, 1, row->tokens[last].text_size, text);
        if (text != NULL) fclose(text);
        if (counts) fputs(mark(s, true), out);
        if (run != NULL) hy_cli_write_safely(out, run, size, s->terminal->is_utf8);
        if (counts) fputs(mark(s, false), out);
        free(run);
    }
    fputc('\n', out);
}

/* Writes a token's text in quotes, on one line; returns its number of characters. */
static int put_quoted(const hy_cli_terminal *terminal, const hy_row_token *token) {
    int columns = 2;
    fputc('"', terminal->out);
    for (size_t i = 0; i < token->text_size;) {
        uint32_t value;
        const char *at = token->text + i;
        size_t size = hy_cli_decode(at, token->text_size - i, &value);
        bool is_plain =
            size > 0 && value >= 0x20 && value != 0x7f && (value < 0x80 || value > 0x9f);
        if (is_plain && (terminal->is_utf8 || value < 0x80)) {
            hy_cli_write_safely(terminal->out, at, size, terminal->is_utf8);
            columns++;
        } else if (*at == '\n') {
            columns += fprintf(terminal->out, "\\n");
        } else {
            size = 1;
            columns += fprintf(terminal->out, "\\x%02x", (unsigned char)*at);
        }
        i += size;
    }
    fputc('"', terminal->out);
    return columns;
}

static void show_tokens(const shown *s, const hy_row_view *row) {
    FILE *out = s->terminal->out;
    int width = hy_cli_terminal_columns(s->terminal) - 20, at = 0;
    for (size_t i = 0; i < row->token_count; i++) {
        const hy_row_token *token = &row->tokens[i];
        bool has_colour = s->terminal->has_colour && token->counts;
        fputs("  ", out);
        if (has_colour) fputs(mark(s, true), out);
        at += 3 + fprintf(out, "%s%d ", token->counts && !has_colour ? "*" : "", token->id);
        at += put_quoted(s->terminal, token);
        if (has_colour) fputs(mark(s, false), out);
        if (at >= width || i + 1 == row->token_count) fputc('\n', out);
        if (at >= width) at = 0;
    }
}

static void show_row(void *user, const hy_row_view *row) {
    shown *s = user;
    const hy_cli_terminal *terminal = s->terminal;
    bool is_pair = row->answer[0] != '\0';
    char *json = NULL, head[4400];
    size_t counted = 0;
    if (s->wants_json) {
        hy_cli_print(stdout, hy_row_view_json(row, &json), &json);
        return;
    }
    if (strcmp(s->format, row->format) != 0) show_format(s, row);
    if (row->part <= 1) s->rows++;
    for (size_t i = 0; i < row->token_count; i++) counted += row->tokens[i].counts;
    int used = snprintf(head, sizeof head, "row %lld, %.4000s:%lld%s%.20s: ", (long long)s->rows,
                        row->file, (long long)row->line, is_pair ? ", " : "", row->answer);
    if (row->dropped[0] != '\0')
        snprintf(head + used, sizeof head - (size_t)used, "dropped: %.200s", row->dropped);
    else if (row->is_prompt)
        snprintf(head + used, sizeof head - (size_t)used, "prompt of %zu tokens%s",
                 row->token_count, row->expected[0] != '\0' ? "" : "; no answer is expected");
    else
        used += snprintf(head + used, sizeof head - (size_t)used, "%zu tokens, %zu counted%s",
                         row->token_count, counted,
                         !row->is_cut ? ""
                         : is_pair    ? "; cut, because the pair is longer than a sequence"
                                      : "; cut, because it is longer than a sequence");
    if (row->parts > 1 && !is_pair)
        snprintf(head + used, sizeof head - (size_t)used, "; part %d of %d of the row", row->part,
                 row->parts);
    hy_cli_section(terminal, head);
    if (row->token_count == 0) return;
    show_text(s, row);
    if (row->expected[0] != '\0') {
        fputs("expected, not trained: ", terminal->out);
        hy_cli_write_safely(terminal->out, row->expected, strlen(row->expected), terminal->is_utf8);
        fputc('\n', terminal->out);
    }
    show_tokens(s, row);
}

hy_status hy_cli_show_rows(const hy_cli_terminal *terminal, const hy_cli_options *options,
                           const hy_config *config) {
    char *end;
    long long most = strtoll(options->topic, &end, 10);
    if (end == options->topic || *end != '\0' || most < 1)
        return hy_cli_refuse(HY_ERR_INPUT, "--show-rows is \"%s\"; accepted: 1 or more",
                             options->topic);
    shown s = {.terminal = terminal, .wants_json = options->wants_json};
    hy_cli_progress progress;
    hy_cli_progress_init(&progress, terminal);
    hy_observer observer = hy_cli_progress_observer(&progress);
    hy_status status = hy_show_rows(config, &observer, most, show_row, &s);
    hy_cli_progress_finish(&progress);
    return hy_cli_checked(status);
}
