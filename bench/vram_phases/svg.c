/* svg.c: device bytes as stacked bars, one bar per profile and phase, one panel per model. See
 * results.h.
 *
 * Filled pieces are measured, one colour per class; outlines are planned. If a plan holds, outlines
 * and pieces have the same heights. Each model has its own scale. */
#include "svg.h"

#include "save_text.h"
#include "vram_phases/results.h"

enum {
    LEFT = 76,
    RIGHT = 150,
    TOP = 44,
    PANEL = 300, /* one model: title, bars, names below them */
    HEAD = 30,   /* of a panel */
    FOOT = 50,
    BAR = 40,
    BAR_STEP = 52,
    GROUP_GAP = 28
};

/* The pieces of a bar: the classes, then returning state. Colours that people with red-green
 * blindness can distinguish. */
enum { PIECES = HY_CLASS_COUNT + 1 };
static const char *const colours[PIECES] = {
    [HY_WEIGHTS] = "#0072b2",     [HY_MASTER] = "#56b4e9",     [HY_GRADS] = "#e69f00",
    [HY_OPTIM] = "#d55e00",       [HY_PREDICTOR] = "#cc79a7",  [HY_SNAPSHOT] = "#8c6bb1",
    [HY_ACTIVATIONS] = "#009e73", [HY_WORKSPACE] = "#bdbdbd",  [HY_QUANTS] = "#f0e442",
    [HY_DATA] = "#525252",        [HY_CLASS_COUNT] = "#f4b6a0"};

typedef struct panel {
    double base, unit, most; /* y of zero; bytes of a unit of the axis; top of the axis in bytes */
    double height;           /* of the axis, in pixels */
    const char *unit_name;
} panel;

static const char *piece_name(int piece) {
    return piece < HY_CLASS_COUNT ? hy_class_name((hy_class)piece) : "coming back";
}

/* Device bytes of a piece; memory elsewhere has no height. */
static double piece_bytes(const hy_phase_summary *p, int piece, bool is_planned) {
    if (piece == HY_CLASS_COUNT) {
        return (double)(is_planned ? vp_returning_planned(p) : vp_returning_measured(p));
    }
    const hy_memory_cell *cell = &p->memory[piece];
    if (cell->place != HY_DEVICE) return 0;
    return (double)(is_planned ? cell->planned_bytes : cell->measured_bytes);
}

static double y_of(const panel *p, double bytes) { return p->base - bytes / p->most * p->height; }

/* ---- one bar --------------------------------------------------------------------------------- */

static void draw_stack(hy_text *t, const panel *p, const hy_phase_summary *phase, double x,
                       bool is_planned) {
    double below = 0;
    for (int i = 0; i < PIECES; i++) {
        double bytes = piece_bytes(phase, i, is_planned);
        if (bytes <= 0) continue;
        hy_text_addf(t, "<rect x=\"%.1f\" y=\"%.2f\" width=\"%d\" height=\"%.2f\" ", x,
                     y_of(p, below + bytes), BAR, bytes / p->most * p->height);
        if (is_planned) {
            hy_text_add(t, "class=\"planned\" fill=\"none\" stroke=\"#111111\" "
                           "stroke-width=\"0.8\"/>\n");
        } else {
            hy_text_addf(t, "class=\"measured\" fill=\"%s\"><title>%s: %.0f bytes</title></rect>\n",
                         colours[i], piece_name(i), bytes);
        }
        below += bytes;
    }
}

static void draw_bar(hy_text *t, const panel *p, const hy_phase_summary *phase, double x,
                     const char *name) {
    char label[32];
    draw_stack(t, p, phase, x, false);
    draw_stack(t, p, phase, x, true);
    snprintf(label, sizeof label, "%.3g", (double)phase->vram_peak_bytes / p->unit);
    svg_text(t, x + BAR / 2.0, y_of(p, (double)phase->vram_peak_bytes) - 5, "middle", label);
    svg_text(t, x + BAR / 2.0, p->base + 16, "middle", name);
}

/* ---- a model's panel ------------------------------------------------------------------------- */

static double most_bytes(const vp_run *runs, int count) {
    double most = 1;
    for (int i = 0; i < count; i++) {
        for (int p = 0; p < RUN_PHASES; p++) {
            const hy_phase_summary *phase = &runs[i].run.summary.phases[p];
            most =
                fmax(most, fmax((double)phase->vram_planned_bytes, (double)phase->vram_peak_bytes));
        }
    }
    return most;
}

static panel panel_of(const vp_run *runs, int count, int row) {
    double most = 1.08 * most_bytes(runs, count); /* room for the figure above a bar */
    bool is_large = most >= 0x1p30;
    return (panel){.base = TOP + PANEL * (row + 1) - FOOT,
                   .unit = is_large ? 0x1p30 : 0x1p20,
                   .most = most,
                   .height = PANEL - HEAD - FOOT,
                   .unit_name = is_large ? "GiB" : "MiB"};
}

static void draw_axis(hy_text *t, const panel *p, int width) {
    double top = p->most / p->unit, step = svg_tick_step(top, 5);
    for (int i = 0; i * step <= top; i++) {
        char label[32];
        double y = y_of(p, i * step * p->unit);
        hy_text_addf(t, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#e3e3e3\"/>\n",
                     LEFT, y, width - RIGHT, y);
        snprintf(label, sizeof label, "%g %s", i * step, p->unit_name);
        svg_text(t, LEFT - 8, y + 4, "end", label);
    }
}

static double group_x(int group) {
    return LEFT + GROUP_GAP / 2.0 + group * (RUN_PHASES * BAR_STEP + GROUP_GAP);
}

static void draw_panel(hy_text *t, const vp_run *runs, int count, int row, int width) {
    panel p = panel_of(runs, count, row);
    char title[BENCH_WORD_MAX + 64];
    snprintf(title, sizeof title, "%s, %lld parameters, %lld x %lld tokens", runs[0].model,
             (long long)runs[0].run.summary.parameters, (long long)runs[0].run.batch_size,
             (long long)runs[0].run.seq_len);
    svg_text(t, LEFT, p.base - p.height - 10, "start", title);
    draw_axis(t, &p, width);
    for (int i = 0; i < count; i++) {
        for (int phase = 0; phase < RUN_PHASES; phase++) {
            draw_bar(t, &p, &runs[i].run.summary.phases[phase], group_x(i) + phase * BAR_STEP,
                     hy_phase_name((hy_phase)phase));
        }
        char group[2 * BENCH_WORD_MAX + 2];
        bool is_full = strcmp(runs[i].way, VP_WAY_FULL) == 0;
        snprintf(group, sizeof group, "%s%s%s", runs[i].profile, is_full ? "" : ", ",
                 is_full ? "" : runs[i].way);
        svg_text(t, group_x(i) + 0.5 * RUN_PHASES * BAR_STEP, p.base + 34, "middle", group);
    }
}

/* ---- the sheet ------------------------------------------------------------------------------- */

static bool is_piece_used(const vp_results *r, int piece) {
    for (int i = 0; i < r->count; i++) {
        for (int p = 0; p < RUN_PHASES; p++) {
            const hy_phase_summary *phase = &r->runs[i].run.summary.phases[p];
            if (piece_bytes(phase, piece, true) > 0 || piece_bytes(phase, piece, false) > 0) {
                return true;
            }
        }
    }
    return false;
}

/* From the top of a bar down, in the order of the pieces. */
static void draw_legend(hy_text *t, const vp_results *r, int width) {
    double x = width - RIGHT + 20, y = TOP + HEAD;
    for (int i = PIECES - 1; i >= 0; i--) {
        if (!is_piece_used(r, i)) continue;
        hy_text_addf(t, "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"14\" fill=\"%s\"/>\n", x,
                     y, colours[i]);
        svg_text(t, x + 21, y + 11, "start", piece_name(i));
        y += 21;
    }
    hy_text_addf(t,
                 "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"14\" fill=\"none\" "
                 "stroke=\"#111111\"/>\n",
                 x, y);
    svg_text(t, x + 21, y + 11, "start", "planned");
}

/* The number of runs of the same model, from `first`. */
static int same_model(const vp_results *r, int first) {
    int count = 1;
    while (first + count < r->count &&
           strcmp(r->runs[first].model, r->runs[first + count].model) == 0) {
        count++;
    }
    return count;
}

hy_status vp_svg_write(const vp_results *r, const char *path) {
    hy_text t = {0};
    int panels = 0, most = 0;
    for (int i = 0; i < r->count; i += same_model(r, i), panels++) {
        if (same_model(r, i) > most) most = same_model(r, i);
    }
    int width = (int)group_x(most) + RIGHT;
    svg_open(&t, width, TOP + panels * PANEL);
    hy_text_addf(&t,
                 "<text x=\"%d\" y=\"26\" font-size=\"15\">Device memory by phase: measured "
                 "(filled) and planned (outlined)</text>\n",
                 LEFT);
    for (int i = 0, row = 0; i < r->count; i += same_model(r, i), row++) {
        draw_panel(&t, &r->runs[i], same_model(r, i), row, width);
    }
    draw_legend(&t, r, width);
    hy_text_add(&t, "</svg>\n");
    return save_text(path, &t);
}
