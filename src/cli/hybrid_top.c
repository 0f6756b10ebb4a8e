/* hybrid_top.c: the program hybrid-top: a live view of training runs in a terminal.
 *
 * It reads the files in run folders through hybrid_report.h and writes nothing. On a terminal it
 * draws pages until q is pressed; otherwise it prints one page. Exit codes: 0 done, 1 failed, 2
 * wrong usage or input, 75 stopped by a signal. */
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/program.h"
#include "cli/terminal.h"
#include "cli/top_page.h"
#include "cli/top_screen.h"
#include "cli/top_view.h"

#define ONCE_ROWS 30 /* of a page that is printed once; empty rows at the end are left out */

typedef struct options {
    bool is_once, is_ascii, without_colour;
    double interval;
    int32_t width, height; /* 0: as the terminal */
} options;

#define AT(member) .offset = offsetof(options, member)

static const hy_cli_row rows[] = {
    {"--interval", "SECONDS", HY_CLI_NUMBER, AT(interval),
     "Seconds between two updates: 0.1 to 3600, default 1.", "0.1 to 3600 seconds", 0.1, 3600},
    {"--once", NULL, HY_CLI_SWITCH, AT(is_once),
     "Print one page and exit. This is the default if the output is not a terminal."},
    {"--width", "N", HY_CLI_INT32, AT(width), "Columns of the page with --once: 20 to 500.",
     "20 to 500 columns", 20, HY_TOP_COLUMNS_MAX},
    {"--height", "N", HY_CLI_INT32, AT(height),
     "Rows of the page with --once: 1 to 300. Default: as many as needed.", "1 to 300 rows", 1,
     HY_TOP_ROWS_MAX},
    {"--ascii", NULL, HY_CLI_SWITCH, AT(is_ascii),
     "Use ASCII characters only. This is the default if the locale is not UTF-8."},
    {"--no-color", NULL, HY_CLI_SWITCH, AT(without_colour),
     "Print without colours, as with the environment variable NO_COLOR."},
};

static const hy_cli_program program = {
    .name = "hybrid-top",
    .before =
        "Usage: hybrid-top [RUN ...] [options]\n\n"
        "Shows a training run live: phase, loss, speed, memory by class against plan and budget,\n"
        "time left, and whether the run is alive. It only reads the files in the run folder and\n"
        "does not disturb the run.\n\n"
        "  Watch the newest run in runs/\n"
        "    hybrid-top\n"
        "  Watch one run by its folder, also over ssh\n"
        "    hybrid-top runs/mine\n"
        "  Watch several: one line each, and one of them in full (choose with the arrow keys)\n"
        "    hybrid-top runs/a runs/b\n"
        "  Print one page for a log or a chat\n"
        "    hybrid-top runs/mine --once --width 100 > now.txt\n\n",
    .after =
        "\n"
        "Keys: q quit, p pause, + and - change the interval, arrows or 1-9 another run, ? help.\n"
        "A run is \"stalled\" if it has written no line for 90 seconds and for the time of 40 "
        "steps.\n"
        "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 75 stopped by a signal.\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof rows[0],
    .word = "RUN",
    .word_type = "folder",
    .word_help = "A run folder (the --out of hybrid-train) or its metrics.jsonl. If the run has no "
                 "step yet, hybrid-top waits for it.",
};

typedef struct viewer {
    hy_cli_terminal terminal;
    hy_top_runs runs;
    hy_top_page page;
    hy_top_canvas drawn, shown; /* the page being drawn, and the page on the screen */
    bool is_known;              /* what the screen shows */
    bool shows_help;
} viewer;

static double seconds_of(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void refresh(viewer *v) { hy_top_runs_refresh(&v->runs, seconds_of(CLOCK_REALTIME)); }

/* ---- one page -------------------------------------------------------------------------------- */

static int print_once(viewer *v, const options *o) {
    int columns = o->width > 0 ? o->width : hy_cli_terminal_columns(&v->terminal);
    int rows_wanted = o->height > 0 ? o->height : ONCE_ROWS + v->runs.count;
    refresh(v);
    if (v->runs.problem[0] != '\0') return hy_cli_refuse(HY_EXIT_FAILED, "%s", v->runs.problem);
    if (!hy_top_canvas_init(&v->drawn, &v->terminal, columns, rows_wanted))
        return hy_cli_refuse(HY_EXIT_FAILED, "no memory for the page");
    hy_top_draw_page(&v->drawn, &v->page);
    hy_top_write_lines(&v->drawn, hy_top_used_rows(&v->drawn), stdout);
    return HY_EXIT_DONE;
}

/* ---- page after page ------------------------------------------------------------------------- */

static bool draw(viewer *v) {
    int columns, lines;
    hy_top_screen_size(&columns, &lines);
    if (!hy_top_canvas_init(&v->drawn, &v->terminal, columns, lines)) return false;
    if (v->drawn.columns != v->shown.columns || v->drawn.rows != v->shown.rows) v->is_known = false;
    if (v->shows_help)
        hy_top_draw_help(&v->drawn, &v->page);
    else
        hy_top_draw_page(&v->drawn, &v->page);
    /* Writes all changes in one call. False: nobody reads the output any more, or memory is
     * short. */
    char *bytes = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&bytes, &size);
    if (out == NULL) return false;
    if (!v->is_known) fputs("\033[2J", out);
    hy_top_write_changes(&v->drawn, v->is_known ? &v->shown : NULL, out);
    bool is_written = fclose(out) == 0 && (size == 0 || hy_top_screen_write(bytes, size));
    free(bytes);
    hy_top_canvas drawn = v->drawn;
    v->drawn = v->shown;
    v->shown = drawn;
    v->is_known = true;
    return is_written;
}

/* Intervals that + and - select. */
static double stepped(double interval, int direction) {
    static const double steps[] = {0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600};
    double below = interval;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (steps[i] > interval * 1.001) return direction > 0 ? steps[i] : below;
        if (steps[i] < interval * 0.999) below = steps[i];
    }
    return direction > 0 ? interval : below;
}

static void choose(viewer *v, int which) {
    v->page.chosen = (which + v->runs.count) % v->runs.count;
    v->shows_help = false;
}

/* False: the key quits. */
static bool handle_key(viewer *v, int key) {
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
    bool is_quit = false;
    if (!hy_top_screen_enter())
        return hy_cli_refuse(HY_EXIT_FAILED, "cannot change the terminal mode: %s",
                             strerror(errno));
    refresh(v);
    double next = seconds_of(CLOCK_MONOTONIC) + v->page.interval; /* time of the next update */
    while (!is_quit && draw(v)) {
        int key = hy_top_screen_wait(next - seconds_of(CLOCK_MONOTONIC));
        if (key == HY_TOP_END) break;
        is_quit = !handle_key(v, key);
        double now = seconds_of(CLOCK_MONOTONIC);
        next = fmin(next, now + v->page.interval);
        if (is_quit || now < next) continue;
        if (!v->page.is_paused) refresh(v);
        next = now + v->page.interval;
    }
    hy_top_screen_leave();
    return is_quit ? HY_EXIT_DONE : HY_EXIT_STOPPED; /* stopped: by a signal, or no terminal */
}

/* ---- main ------------------------------------------------------------------------------------ */

int main(int argc, char **argv) {
    options o = {.interval = 1};
    viewer v = {.is_known = false};
    setlocale(LC_CTYPE, "C.UTF-8"); /* for the widths of characters; see top_canvas.c */
    int code = hy_cli_parse(&program, &argc, argv, &o);
    if (code != HY_CLI_GO_ON) return code;
    hy_cli_terminal_init(&v.terminal, stdout, false, o.without_colour);
    if (o.is_ascii) v.terminal.is_utf8 = false;
    v.page =
        (hy_top_page){&v.runs, .is_live = v.terminal.is_tty && !o.is_once, .interval = o.interval};
    code = hy_top_runs_open(&v.runs, (const char *const *)argv + 1, argc - 1, v.terminal.is_utf8);
    if (code == HY_EXIT_DONE) code = v.page.is_live ? watch(&v) : print_once(&v, &o);
    hy_top_runs_close(&v.runs);
    hy_top_canvas_fini(&v.drawn);
    hy_top_canvas_fini(&v.shown);
    return hy_cli_flushed(code);
}
