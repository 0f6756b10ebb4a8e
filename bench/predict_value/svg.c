/* svg.c: OUT/curves.svg: held-out loss over compute spent, one line per arm. See results.h.
 *
 * Lines are means over seeds at each arm's best learning rate; dots at the end are the single
 * seeds. The loss axis begins at a quarter of the budget: earlier losses are the same in all arms,
 * and so high that differences would not be visible. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "results.h"
#include "save_text.h"
#include "svg.h"

enum { WIDTH = 860, HEIGHT = 520, LEFT = 74, RIGHT = 210, TOP = 48, BOTTOM = 60 };

typedef struct frame {
    double budget, low, high; /* of the axes */
} frame;

/* Colours that people with red-green blindness can distinguish. */
static const char *const colours[] = {"#111111", "#0072b2", "#e69f00", "#cc79a7",
                                      "#d55e00", "#009e73", "#56b4e9", "#7f7f7f"};

static const char *colour(int arm) {
    return colours[arm % (int)(sizeof colours / sizeof colours[0])];
}

static double x_of(const frame *f, double spent) {
    return LEFT + spent / f->budget * (WIDTH - LEFT - RIGHT);
}

static double y_of(const frame *f, double loss) {
    double share = (loss - f->low) / (f->high - f->low);
    return HEIGHT - BOTTOM - fmin(1.0, share) * (HEIGHT - TOP - BOTTOM);
}

/* ---- data ------------------------------------------------------------------------------------ */

static int shortest(const pv_row *row, int seeds) {
    int points = row->runs[0]->points;
    for (int s = 1; s < seeds; s++) {
        if (row->runs[s]->points < points) points = row->runs[s]->points;
    }
    return points;
}

/* Point i of the mean line; the last one is the end of every run. */
static pv_point mean_point(const pv_row *row, int seeds, int i, int points) {
    pv_point mean = {0, 0};
    for (int s = 0; s < seeds; s++) {
        const pv_run *run = row->runs[s];
        const pv_point *p = &run->curve[i == points - 1 ? run->points - 1 : i];
        mean.spent += p->spent / seeds;
        mean.loss += p->loss / seeds;
    }
    return mean;
}

static frame frame_of(const pv_results *r, const pv_options *o) {
    frame f = {.budget = (double)o->steps, .low = INFINITY, .high = -INFINITY};
    for (int a = 0; a < o->arm_count; a++) {
        if (r->rows[a].best < 0) continue;
        for (int s = 0; s < o->seed_count; s++) {
            const pv_run *run = r->rows[a].runs[s];
            for (int i = 0; i < run->points; i++) {
                if (run->curve[i].spent < 0.25 * f.budget || isnan(run->curve[i].loss)) continue;
                f.low = fmin(f.low, run->curve[i].loss);
                f.high = fmax(f.high, run->curve[i].loss);
            }
        }
    }
    if (!(f.high > f.low)) f = (frame){f.budget, isfinite(f.low) ? f.low - 0.5 : 0, f.low + 0.5};
    if (!isfinite(f.high)) f.high = 1;
    double margin = 0.05 * (f.high - f.low);
    f.low -= margin;
    f.high += margin;
    return f;
}

/* ---- drawing --------------------------------------------------------------------------------- */

static void draw_axes(hy_text *t, const frame *f) {
    char label[32];
    double x_step = svg_tick_step(f->budget, 5), y_step = svg_tick_step(f->high - f->low, 6);
    for (double y = ceil(f->low / y_step) * y_step; y <= f->high; y += y_step) {
        hy_text_addf(t, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#e3e3e3\"/>\n",
                     LEFT, y_of(f, y), WIDTH - RIGHT, y_of(f, y));
        snprintf(label, sizeof label, "%.*f", y_step < 0.01 ? 3 : 2, y);
        svg_text(t, LEFT - 8, y_of(f, y) + 4, "end", label);
    }
    for (double x = 0; x <= f->budget * 1.0001; x += x_step) {
        hy_text_addf(t, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#555555\"/>\n",
                     x_of(f, x), HEIGHT - BOTTOM, x_of(f, x), HEIGHT - BOTTOM + 5);
        snprintf(label, sizeof label, "%g", x);
        svg_text(t, x_of(f, x), HEIGHT - BOTTOM + 20, "middle", label);
    }
    hy_text_addf(t, "<path d=\"M%d %d V%d H%d\" fill=\"none\" stroke=\"#555555\"/>\n", LEFT, TOP,
                 HEIGHT - BOTTOM, WIDTH - RIGHT);
    svg_text(t, 0.5 * (LEFT + WIDTH - RIGHT), HEIGHT - 16, "middle",
             "compute spent, in full steps");
    hy_text_addf(t,
                 "<text transform=\"translate(20 %d) rotate(-90)\" text-anchor=\"middle\">"
                 "held-out loss, nats per token</text>\n",
                 (TOP + HEIGHT - BOTTOM) / 2);
}

static void draw_arm(hy_text *t, const frame *f, const pv_row *row, int arm, int seeds) {
    int points = shortest(row, seeds);
    hy_text_addf(
        t,
        "<polyline clip-path=\"url(#plot)\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\" "
        "points=\"",
        colour(arm));
    for (int i = 0; i < points; i++) {
        pv_point p = mean_point(row, seeds, i, points);
        double share = (p.loss - f->low) / (f->high - f->low);
        double y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM); /* may leave the plot */
        hy_text_addf(t, "%.1f,%.1f ", x_of(f, p.spent), y);
    }
    hy_text_add(t, "\"/>\n");
    for (int s = 0; s < seeds; s++) {
        hy_text_addf(t, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                     x_of(f, row->runs[s]->spent), y_of(f, row->runs[s]->loss), colour(arm));
    }
}

static void draw_legend(hy_text *t, const pv_row *row, const pv_options *o, int arm, int line) {
    double y = TOP + 12 + 36 * line;
    int x = WIDTH - RIGHT + 16;
    char figures[64];
    hy_text_addf(t,
                 "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\" "
                 "stroke-width=\"3\"/>\n",
                 x, y - 4, x + 20, y - 4, colour(arm));
    svg_text(t, x + 26, y, "start", o->arms[arm].label);
    snprintf(figures, sizeof figures, "lr %g: %.4f", o->lrs[row->best], row->last.loss.mean);
    svg_text(t, x + 26, y + 15, "start", figures);
}

static void draw(hy_text *t, const pv_results *r, const pv_options *o) {
    frame f = frame_of(r, o);
    svg_open(t, WIDTH, HEIGHT);
    hy_text_addf(
        t,
        "<clipPath id=\"plot\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath>\n",
        LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    hy_text_addf(t,
                 "<text x=\"%d\" y=\"26\" font-size=\"15\">Equal compute, size %s: each arm at its "
                 "best learning rate, mean of %d seed%s</text>\n",
                 LEFT, o->size->name, o->seed_count, o->seed_count == 1 ? "" : "s");
    draw_axes(t, &f);
    for (int a = o->arm_count - 1; a >= 0; a--) { /* the baseline on top */
        if (r->rows[a].best >= 0) draw_arm(t, &f, &r->rows[a], a, o->seed_count);
    }
    for (int a = 0, line = 0; a < o->arm_count; a++) {
        if (r->rows[a].best >= 0) draw_legend(t, &r->rows[a], o, a, line++);
    }
    hy_text_add(t, "</svg>\n");
}

hy_status pv_svg_write(const pv_results *r, const pv_options *o) {
    char path[1024];
    hy_text text = {0};
    HY_TRY(hy_path_join(path, sizeof path, o->out, "curves.svg"));
    draw(&text, r, o);
    return save_text(path, &text);
}
