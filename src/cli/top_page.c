/* top_page.c: assigns rows to the parts of a page by importance, then draws them in order.
 *
 * A small screen shows the first rows of the most important parts. A larger screen adds parts, then
 * more rows for them, as in the table below. The line of keys is always the last row. */
#include "cli/top_page.h"

#include <math.h>
#include <string.h>

#include "cli/progress.h"
#include "cli/table.h"
#include "cli/top_canvas.h"
#include "cli/top_panels.h"

/* In the order on the page. Gaps are empty rows. */
typedef enum part {
    TITLE,
    OVERVIEW,
    FACTS,
    GAP_STEP,
    STEP,
    PHASE,
    GAP_LOSS,
    LOSS,
    SPEED,
    RATE,
    GPU,
    RANKS,
    GAP_MEMORY,
    MEMORY,
    GAP_EVENTS,
    EVENTS,
    KEYS,
    PARTS
} part;

#define ALL HY_TOP_ROWS_MAX

/* The parts and how many rows they grow to, most important first. A part takes no more rows than it
 * can use. */
static const struct {
    part part;
    int rows;
} growth[] = {
    {TITLE, 1},    {STEP, 1},     {PHASE, 1},  {LOSS, 1},       {SPEED, 1},      {MEMORY, 1},
    {OVERVIEW, 3}, {MEMORY, 2},   {RATE, 1},   {RANKS, 1},      {EVENTS, 1},     {KEYS, 1},
    {STEP, 2},     {PHASE, 2},    {GPU, 1},    {LOSS, 2},       {SPEED, 2},      {FACTS, 1},
    {MEMORY, 5},   {RANKS, ALL},  {EVENTS, 3}, {OVERVIEW, 9},   {MEMORY, ALL},   {GAP_MEMORY, 1},
    {GAP_STEP, 1}, {GAP_LOSS, 1}, {LOSS, 3},   {GAP_EVENTS, 1}, {EVENTS, 5},     {LOSS, 4},
    {SPEED, 3},    {EVENTS, 10},  {LOSS, 8},   {SPEED, 4},      {OVERVIEW, ALL}, {EVENTS, 40},
};

/* ---- keys ------------------------------------------------------------------------------------ */

static const struct {
    const char *word;
    hy_cli_colour colour;
} states[HY_TOP_STATES] = {
    [HY_TOP_WAITING] = {"waiting", HY_CLI_YELLOW}, [HY_TOP_RUNNING] = {"running", HY_CLI_GREEN},
    [HY_TOP_LATE] = {"quiet", HY_CLI_YELLOW},      [HY_TOP_STALLED] = {"stalled", HY_CLI_RED},
    [HY_TOP_STOPPED] = {"stopped", HY_CLI_YELLOW}, [HY_TOP_FINISHED] = {"finished", HY_CLI_BLUE},
};

static void draw_title(const hy_top_box *box, const hy_top_view *view) {
    char text[HY_TOP_TEXT];
    hy_cli_colour colour = states[view->state].colour;
    hy_top_state_text(view, text, sizeof text);
    if (hy_top_width(text) + hy_top_width(view->folder) + 5 > box->columns)
        snprintf(text, sizeof text, "%s", states[view->state].word);
    const char *dot = box->canvas->terminal->is_utf8 ? "\u25cf" : "*";
    hy_top_print(box, 0, HY_TOP_RIGHT, colour, "%s %s", dot, text);
    hy_top_box left = hy_top_part(box, 0, 0, 1, box->columns - hy_top_width(text) - 4);
    bool has_room = hy_top_width(view->folder) <= left.columns;
    hy_top_sentence(&left, 0, 0, HY_CLI_BOLD, has_room ? view->folder : view->name);
}

static void draw_facts(const hy_top_box *box, const hy_top_view *view) {
    char text[4 * HY_TOP_TEXT] = "";
    const char *between = box->canvas->terminal->is_utf8 ? " \u00b7 " : " | ";
    size_t length = (size_t)snprintf(text, sizeof text, "%s", view->model);
    if (view->facts->parameters > 0)
        length += (size_t)snprintf(text + length, sizeof text - length, ", %s parameters",
                                   hy_cli_short_count((double)view->facts->parameters).text);
    const char *const more[] = {view->device, view->data};
    for (int i = 0; i < 2; i++) {
        if (more[i][0] == '\0') continue;
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s",
                                   length > 0 ? between : "", more[i]);
    }
    hy_top_sentence(box, 0, 0, HY_CLI_DIM, text);
}

static void draw_keys(const hy_top_box *box, const hy_top_page *page) {
    int column = 0;
    if (page->runs->problem[0] != '\0') {
        hy_top_sentence(box, 0, 0, HY_CLI_RED, page->runs->problem);
        return;
    }
    if (page->is_paused) column = hy_top_text(box, 0, column, HY_CLI_YELLOW, "paused   ");
    column =
        hy_top_print(box, 0, column, HY_CLI_DIM, "q quit   p %s   +/- every %s   ? help",
                     page->is_paused ? "continue" : "pause", hy_cli_duration(page->interval).text);
    if (page->runs->count > 1)
        hy_top_print(box, 0, column, HY_CLI_DIM, "   arrows or 1-9: another run");
}

/* ---- several runs ---------------------------------------------------------------------------- */

#define OVERVIEW_FIELDS 7
#define FIELD_BYTES 48

/* The fields of a run's line, most important first. */
static void describe_run(const hy_top_view *view, char fields[OVERVIEW_FIELDS][FIELD_BYTES]) {
    memset(fields, 0, OVERVIEW_FIELDS * sizeof fields[0]);
    snprintf(fields[0], FIELD_BYTES, "%s", states[view->state].word);
    if (view->last == NULL) return;
    if (isnan(view->share))
        snprintf(fields[1], FIELD_BYTES, "%s", hy_cli_count(view->last->step).text);
    else
        snprintf(fields[1], FIELD_BYTES, "%5.1f %%", floor(1000 * view->share) / 10);
    snprintf(fields[2], FIELD_BYTES, "%s", hy_phase_name(view->last->phase));
    snprintf(fields[3], FIELD_BYTES, "%s", hy_cli_loss(view->loss).text);
    snprintf(fields[4], FIELD_BYTES, "%s %s", hy_cli_short_count(hy_top_speed(view)).text,
             view->facts->has_tokens ? "tok/s" : "steps/s");
    if (view->last->vram_bytes >= 0)
        snprintf(fields[5], FIELD_BYTES, "%s", hy_cli_bytes((uint64_t)view->last->vram_bytes).text);
    if (view->state <= HY_TOP_STALLED && !isnan(view->remaining))
        snprintf(fields[6], FIELD_BYTES, "%s left", hy_cli_duration(view->remaining).text);
}

static void draw_overview_line(const hy_top_box *box, int row, const hy_top_view *view, int number,
                               bool is_chosen) {
    static const int widths[OVERVIEW_FIELDS] = {8, 10, 7, 8, 12, 10, 12};
    char fields[OVERVIEW_FIELDS][FIELD_BYTES];
    int taken = 0, shown = 0;
    /* The name gets at least a third of the line. */
    while (shown < OVERVIEW_FIELDS && taken + widths[shown] + 1 <= box->columns * 2 / 3 - 3)
        taken += widths[shown++] + 1;
    hy_top_box name = hy_top_part(box, row, 0, 1, box->columns - taken);
    hy_cli_colour colour = is_chosen ? HY_CLI_BOLD : HY_CLI_PLAIN;
    int column = hy_top_print(&name, 0, 0, colour, "%s%d ", is_chosen ? ">" : " ", number);
    hy_top_sentence(&name, 0, column, colour, view->name);
    describe_run(view, fields);
    column = box->columns - taken;
    for (int i = 0; i < shown; i++) {
        bool is_word = i == 0 || i == 2;
        hy_top_box field = hy_top_part(box, row, column + 1, 1, widths[i]);
        colour = i == 0                         ? states[view->state].colour
                 : i == 2 && view->last != NULL ? hy_cli_phase_colour(view->last->phase)
                                                : HY_CLI_PLAIN;
        hy_top_text(&field, 0, is_word ? 0 : HY_TOP_RIGHT, colour, fields[i]);
        column += widths[i] + 1;
    }
}

/* If not all runs fit, shows those around the selected one. */
static void draw_overview(const hy_top_box *box, const hy_top_page *page) {
    int first = page->chosen - box->rows / 2;
    if (first > page->runs->count - box->rows) first = page->runs->count - box->rows;
    if (first < 0) first = 0;
    for (int row = 0; row < box->rows && first + row < page->runs->count; row++)
        draw_overview_line(box, row, &page->runs->views[first + row], first + row + 1,
                           first + row == page->chosen);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static int smaller(int a, int b) { return a < b ? a : b; }

void hy_top_draw_page(hy_top_canvas *canvas, const hy_top_page *page) {
    /* A gap has no content; the line of keys has its own place. */
    static void (*const panels[PARTS])(const hy_top_box *box, const hy_top_view *view) = {
        [TITLE] = draw_title,         [FACTS] = draw_facts,          [STEP] = hy_top_panel_step,
        [PHASE] = hy_top_panel_phase, [LOSS] = hy_top_panel_loss,    [SPEED] = hy_top_panel_speed,
        [RATE] = hy_top_panel_rate,   [GPU] = hy_top_panel_gpu,      [MEMORY] = hy_top_panel_memory,
        [RANKS] = hy_top_panel_ranks, [EVENTS] = hy_top_panel_events};
    const hy_top_view *view = &page->runs->views[page->chosen];
    hy_top_box whole = hy_top_whole(canvas);
    int use[PARTS], given[PARTS] = {0}, row = 0;
    for (int i = 0; i < PARTS; i++) use[i] = 1;
    use[OVERVIEW] = page->runs->count > 1 ? page->runs->count : 0;
    use[FACTS] = view->model[0] != '\0' || view->device[0] != '\0' || view->data[0] != '\0';
    use[STEP] = use[PHASE] = view->last != NULL ? 2 : 1;
    use[LOSS] = use[SPEED] = view->last != NULL ? 8 : 1;
    use[GPU] = hy_top_knows_gpu(view);
    use[RANKS] = hy_top_ranks_rows(view);
    use[MEMORY] = hy_top_memory_rows(&whole, view);
    use[EVENTS] = ALL;
    use[KEYS] = page->is_live;
    int left = canvas->rows;
    for (size_t i = 0; i < sizeof growth / sizeof growth[0]; i++) {
        part who = growth[i].part;
        int more = smaller(smaller(growth[i].rows, use[who]) - given[who], left);
        if (more <= 0) continue;
        given[who] += more;
        left -= more;
    }
    for (int i = 0; i < PARTS; i++) {
        hy_top_box box = hy_top_part(&whole, row, 0, given[i], canvas->columns);
        if (given[i] > 0 && i == OVERVIEW) draw_overview(&box, page);
        if (given[i] > 0 && panels[i] != NULL) panels[i](&box, view);
        row += given[i];
    }
    hy_top_box last = hy_top_part(&whole, canvas->rows - 1, 0, given[KEYS], canvas->columns);
    if (given[KEYS] > 0) draw_keys(&last, page);
}

/* ---- help ------------------------------------------------------------------------------------ */

void hy_top_draw_help(hy_top_canvas *canvas, const hy_top_page *page) {
    static const char *const lines[] = {
        "q  Ctrl-C         quit; the run continues",
        "p  space          pause the view, not the run",
        "+  -              update less often, more often",
        "arrows  Tab  1-9  select another run",
        "?                 show this page, or go back",
        "",
        "Phase     ",
        "Loss      the chart covers the whole run; training: the loss of the latest step",
        "Speed     latest steps, one per column; waiting: for copies or data",
        "Ranks     latest steps; the slowest rank waits least, because others wait for it",
        "Memory    filled: in use now; shaded: planned; marks: target, warning,",
        "          critical and emergency, as shares of the budget; !: more than planned",
        "quiet     the next line is overdue: a validation, a checkpoint, or a problem",
        "stalled   no line for much longer than a step takes: check the job",
    };
    enum { PHASE_LINE = 6, MARGIN = 2 };
    int row = PHASE_LINE + MARGIN, column = MARGIN + (int)strlen(lines[PHASE_LINE]);
    hy_top_box whole = hy_top_whole(canvas);
    hy_top_text(&whole, 0, 0, HY_CLI_BOLD, "hybrid-top: keys and symbols");
    for (int i = 0; i < (int)(sizeof lines / sizeof lines[0]); i++)
        hy_top_sentence(&whole, i + MARGIN, MARGIN, HY_CLI_PLAIN, lines[i]);
    for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
        hy_top_draw_phase(&whole, row, column, (hy_phase)phase, false);
        column = hy_top_print(&whole, row, column + 2, HY_CLI_PLAIN, "%s   ",
                              hy_phase_name((hy_phase)phase));
    }
    hy_top_draw_phase(&whole, row, column, HY_PREDICT, true);
    hy_top_text(&whole, row, column + 2, HY_CLI_PLAIN, "rejected jump");
    hy_top_box last = hy_top_part(&whole, canvas->rows - 1, 0, 1, canvas->columns);
    if (canvas->rows > 1) draw_keys(&last, page);
}
