/* hybrid_top.c: hybrid-top: a live view of training runs in a terminal.
 *
 * It reads what runs write into their folders, through hybrid_report.h, and writes nothing. On a
 * terminal it draws page after page until q; elsewhere it prints one. Exit codes: 0 done, 1 it failed,
 * 2 wrong usage or input, 75 stopped by a signal. */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/exit_code.h"
#include "cli/terminal.h"
#include "cli/top_options.h"
#include "cli/top_page.h"
#include "cli/top_runs.h"
#include "cli/top_screen.h"
#include "hybrid.h"

#define ONCE_ROWS 30 /* of a page printed once; empty ones at its end are left out */

typedef struct viewer {
    hy_cli_terminal terminal;
    hy_top_runs runs;
    hy_top_page page;
    hy_top_canvas drawn, shown; /* being made; on the screen */
    bool is_known;              /* what the screen shows */
    bool shows_help;
    double next; /* look; monotonic seconds */
} viewer;

static double seconds_of(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void look(viewer *v) {
    hy_top_runs_look(&v->runs, seconds_of(CLOCK_REALTIME));
    v->page.views = v->runs.views;
    v->page.count = v->runs.count;
    v->page.problem = v->runs.problem;
}

static int fail_for_memory(void) {
    hy_cli_error("no memory for a page");
    return HY_EXIT_FAILED;
}

/* ---- one page -------------------------------------------------------------------------------- */

static int print_once(viewer *v, const hy_top_options *options) {
    int columns = options->width > 0 ? (int)options->width : hy_cli_terminal_columns(&v->terminal);
    int rows = options->height > 0 ? (int)options->height : ONCE_ROWS + v->runs.count;
    look(v);
    if (v->runs.problem[0] != '\0') {
        hy_cli_error("%s", v->runs.problem);
        return HY_EXIT_FAILED;
    }
    if (!hy_top_canvas_init(&v->drawn, columns, rows, v->terminal.is_utf8))
        return fail_for_memory();
    hy_top_draw_page(&v->drawn, &v->page);
    hy_top_write_lines(&v->drawn, hy_top_used_rows(&v->drawn), &v->terminal, stdout);
    return HY_EXIT_DONE;
}

/* ---- page after page ------------------------------------------------------------------------- */

/* One write for all that changed. False: nobody reads any more, or there is no memory. */
static bool show(viewer *v) {
    char *bytes = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&bytes, &size);
    if (out == NULL) return false;
    if (!v->is_known) fputs("\033[2J", out);
    hy_top_write_changes(&v->drawn, v->is_known ? &v->shown : NULL, &v->terminal, out);
    bool is_written = fclose(out) == 0 && (size == 0 || hy_top_screen_write(bytes, size));
    free(bytes);
    hy_top_canvas drawn = v->drawn;
    v->drawn = v->shown;
    v->shown = drawn;
    v->is_known = true;
    return is_written;
}

static bool draw(viewer *v) {
    int columns, rows;
    hy_top_screen_size(&columns, &rows);
    if (!hy_top_canvas_init(&v->drawn, columns, rows, v->terminal.is_utf8)) return false;
    if (v->drawn.columns != v->shown.columns || v->drawn.rows != v->shown.rows) v->is_known = false;
    if (v->shows_help)
        hy_top_draw_help(&v->drawn, &v->page);
    else
        hy_top_draw_page(&v->drawn, &v->page);
    return show(v);
}

/* Steps of the interval that people would type. */
static double stepped(double interval, int direction) {
    static const double steps[] = {0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600};
    enum { COUNT = sizeof steps / sizeof steps[0] };
    if (direction > 0) {
        for (int i = 0; i < COUNT; i++)
            if (steps[i] > interval * 1.001) return steps[i];
        return interval;
    }
    for (int i = COUNT - 1; i >= 0; i--)
        if (steps[i] < interval * 0.999) return steps[i];
    return interval;
}

static void choose(viewer *v, int which) {
    v->page.chosen = (which + v->runs.count) % v->runs.count;
    v->shows_help = false;
}

/* False: the key means to quit. */
static bool obey(viewer *v, int key) {
    switch (key) {
    case 'q':
    case 'Q': return false;
    case 'p':
    case ' ': v->page.is_paused = !v->page.is_paused; break;
    case '+':
    case '=': v->page.interval = stepped(v->page.interval, 1); break;
    case '-':
    case '_': v->page.interval = stepped(v->page.interval, -1); break;
    case '?':
    case 'h': v->shows_help = !v->shows_help; break;
    case HY_TOP_ESCAPE: v->shows_help = false; break;
    case HY_TOP_NEXT: choose(v, v->page.chosen + 1); break;
    case HY_TOP_PREVIOUS: choose(v, v->page.chosen - 1); break;
    case HY_TOP_RESIZED: v->is_known = false; break;
    default:
        if (key >= '1' && key <= '9' && key - '1' < v->runs.count) choose(v, key - '1');
        break;
    }
    return true;
}

static int watch(viewer *v) {
    look(v);
    v->next = seconds_of(CLOCK_MONOTONIC) + v->page.interval;
    while (draw(v)) {
        int key = hy_top_screen_wait(v->next - seconds_of(CLOCK_MONOTONIC));
        if (key == HY_TOP_END) return HY_EXIT_STOPPED;
        if (!obey(v, key)) return HY_EXIT_DONE;
        double now = seconds_of(CLOCK_MONOTONIC);
        if (v->next > now + v->page.interval) v->next = now + v->page.interval;
        if (now < v->next) continue;
        if (!v->page.is_paused) look(v);
        v->next = now + v->page.interval;
    }
    return HY_EXIT_STOPPED; /* the terminal is gone */
}

static int run_screen(viewer *v) {
    if (!hy_top_screen_enter()) {
        hy_cli_error("the terminal cannot be set: %s", strerror(errno));
        return HY_EXIT_FAILED;
    }
    int code = watch(v);
    hy_top_screen_leave();
    return code;
}

/* ---- main ------------------------------------------------------------------------------------ */

static int view_runs(const hy_top_options *options) {
    viewer v = {.page = {.interval = options->interval}};
    bool is_input;
    hy_cli_terminal_init(&v.terminal, stdout, false, options->without_colour);
    if (options->is_ascii) v.terminal.is_utf8 = false;
    v.page.has_colour = v.terminal.has_colour;
    v.page.is_live = v.terminal.is_tty && !options->is_once;
    int code = HY_EXIT_DONE;
    if (!hy_top_runs_open(&v.runs, options->runs, options->count, v.terminal.is_utf8, &is_input))
        code = is_input ? HY_EXIT_USAGE : HY_EXIT_FAILED;
    else
        code = v.page.is_live ? run_screen(&v) : print_once(&v, options);
    hy_top_runs_close(&v.runs);
    hy_top_canvas_fini(&v.drawn);
    hy_top_canvas_fini(&v.shown);
    return code;
}

static int act(const hy_top_options *options) {
    switch (options->action) {
    case HY_TOP_HELP: hy_top_help(stdout); return HY_EXIT_DONE;
    case HY_TOP_VERSION: puts("hybrid-top " HYBRID_VERSION); return HY_EXIT_DONE;
    case HY_TOP_COMPLETE: hy_top_complete(stdout); return HY_EXIT_DONE;
    default: return view_runs(options);
    }
}

int main(int argc, char **argv) {
    hy_top_options options;
    hy_cli_name_program("hybrid-top");
    setlocale(LC_CTYPE, "C.UTF-8"); /* for the widths of characters; see top_canvas.c */
    int code =
        hy_top_options_parse(argc, argv, &options) ? hy_cli_flushed(act(&options)) : HY_EXIT_USAGE;
    hy_top_options_fini(&options);
    return code;
}
