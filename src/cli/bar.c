/* bar.c: composes progress lines.
 *
 * The bar itself takes what the fields leave, between 8 and 30 columns. Everything but the bar
 * is ASCII, so its columns are its bytes. */
#include "cli/bar.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/figures.h"
#include "cli/monitor.h"

#define BAR_MIN 8
#define BAR_MAX 30
#define FIELDS_MAX 8
#define FIELD_BYTES 48

typedef struct field_list {
    size_t count;
    char text[FIELDS_MAX][FIELD_BYTES];
    hy_cli_colour colour[FIELDS_MAX];
} field_list;

/* Text being written into a buffer that is large enough by construction; never past its end. */
typedef struct writer {
    char *at, *end;
} writer;

static void put(writer *to, const char *text) {
    size_t room = (size_t)(to->end - to->at), length = strlen(text);
    if (length >= room) return;
    memcpy(to->at, text, length + 1);
    to->at += length;
}

static void put_times(writer *to, const char *text, int times) {
    for (int i = 0; i < times; i++) put(to, text);
}

__attribute__((format(printf, 3, 4))) static void
add_field(field_list *fields, hy_cli_colour colour, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fields->text[fields->count], FIELD_BYTES, format, arguments);
    va_end(arguments);
    fields->colour[fields->count++] = colour;
}

static int field_columns(const field_list *fields) {
    int columns = 0;
    for (size_t i = 0; i < fields->count; i++) columns += 2 + (int)strlen(fields->text[i]);
    return columns;
}

static void put_coloured(writer *to, const hy_cli_terminal *terminal, hy_cli_colour colour,
                         const char *text) {
    if (colour != HY_CLI_PLAIN) put(to, hy_cli_colour_code(terminal, colour));
    put(to, text);
    if (colour != HY_CLI_PLAIN) put(to, hy_cli_colour_code(terminal, HY_CLI_PLAIN));
}

static void put_bar(writer *to, const hy_cli_terminal *terminal, double fraction, int width,
                    hy_cli_colour colour) {
    int inside = terminal->is_utf8 ? width : width - 2;
    if (!(fraction > 0)) fraction = 0;
    if (fraction > 1) fraction = 1;
    int done = (int)(fraction * inside);
    if (!terminal->is_utf8) put(to, "[");
    put(to, hy_cli_colour_code(terminal, colour));
    put_times(to, terminal->is_utf8 ? "\u2501" : "#", done); /* heavy line */
    put(to, hy_cli_colour_code(terminal, HY_CLI_PLAIN));
    put(to, hy_cli_colour_code(terminal, HY_CLI_DIM));
    put_times(to, terminal->is_utf8 ? "\u2500" : "-", inside - done); /* light line */
    put(to, hy_cli_colour_code(terminal, HY_CLI_PLAIN));
    if (!terminal->is_utf8) put(to, "]");
}

static int compose(const hy_cli_terminal *terminal, field_list *fields, double fraction,
                   hy_cli_colour colour, int columns, char *line) {
    writer to = {line, line + HY_CLI_LINE_BYTES};
    while (fields->count > 1 && field_columns(fields) + BAR_MIN > columns) fields->count--;
    int taken = field_columns(fields);
    int width = columns - taken < BAR_MAX ? columns - taken : BAR_MAX;
    *line = '\0';
    if (width >= BAR_MIN)
        put_bar(&to, terminal, fraction, width, colour);
    else
        width = 0;
    if (width + taken > columns) return 0; /* not even the first field fits */
    for (size_t i = 0; i < fields->count; i++) {
        put(&to, "  ");
        put_coloured(&to, terminal, fields->colour[i], fields->text[i]);
    }
    return width + taken;
}

hy_cli_colour hy_cli_phase_colour(hy_phase phase) {
    switch (phase) {
    case HY_WARMUP: return HY_CLI_YELLOW;
    case HY_PREDICT: return HY_CLI_BLUE;
    case HY_CORRECT: return HY_CLI_MAGENTA;
    default: return HY_CLI_GREEN;
    }
}

int hy_cli_bar_of_step(const hy_cli_terminal *terminal, const hy_step_info *info, double loss,
                       int columns, char line[HY_CLI_LINE_BYTES]) {
    field_list fields = {0};
    hy_cli_colour colour = hy_cli_phase_colour(info->phase);
    double fraction = (double)info->step / (double)(info->steps_total > 0 ? info->steps_total : 1);
    int digits = snprintf(NULL, 0, "%" PRId64, info->steps_total);
    add_field(&fields, HY_CLI_PLAIN, "%*" PRId64 "/%" PRId64, digits, info->step,
              info->steps_total);
    add_field(&fields, colour, "%-7s", hy_phase_name(info->phase));
    add_field(&fields, HY_CLI_PLAIN, "loss %s", hy_cli_loss(loss).text);
    add_field(&fields, HY_CLI_PLAIN, "%5s tok/s", hy_cli_short_count(info->tokens_per_second).text);
    if (info->mfu > 0)
        add_field(&fields, HY_CLI_PLAIN, "mfu %2.0f %%", 100 * info->mfu);
    else if (info->sol > 0)
        add_field(&fields, HY_CLI_PLAIN, "sol %2.0f %%", 100 * info->sol);
    add_field(&fields, hy_cli_memory_colour(info->memory_status), "%8s",
              hy_cli_bytes(info->vram_bytes).text);
    if (info->step < info->steps_total)
        add_field(&fields, HY_CLI_PLAIN, "%6s left", hy_cli_duration(info->remaining).text);
    else
        add_field(&fields, HY_CLI_PLAIN, "took %s", hy_cli_duration(info->elapsed).text);
    add_field(&fields, HY_CLI_DIM, "lr %s", hy_cli_learning_rate(info->lr).text);
    return compose(terminal, &fields, fraction, colour, columns, line);
}

int hy_cli_bar_of_work(const hy_cli_terminal *terminal, const char *what, double fraction,
                       int columns, char line[HY_CLI_LINE_BYTES]) {
    field_list fields = {0};
    double percent = fraction > 0 ? fraction < 1 ? 100 * fraction : 100 : 0;
    add_field(&fields, HY_CLI_PLAIN, "%3.0f %%", percent);
    add_field(&fields, HY_CLI_PLAIN, "%s", what);
    return compose(terminal, &fields, fraction, HY_CLI_BLUE, columns, line);
}
