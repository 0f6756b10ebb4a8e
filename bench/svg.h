/* svg.h: what charts of measurements share: the frame, text, and steps of an axis.
 *
 * A chart is text that grows; the caller opens it, adds shapes and ends it with </svg>. */
#ifndef BENCH_SVG_H
#define BENCH_SVG_H

#include <math.h>

#include "base/text.h"

/* 1, 2 or 5 times a power of ten, so that about `wanted` steps cover the range. */
static inline double svg_tick_step(double range, int wanted) {
    double rough = range / wanted, power = pow(10, floor(log10(rough))), share = rough / power;
    return power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
}

/* A white sheet of this size; shapes and text on it are dark. */
static inline void svg_open(hy_text *t, int width, int height) {
    hy_text_addf(t,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                 "height=\"%d\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
                 "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
                 width, height, width, height, width, height);
}

/* Names may come from a command line, so XML markup in them is escaped. */
static inline void svg_text(hy_text *t, double x, double y, const char *anchor, const char *text) {
    hy_text_addf(t, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (; *text; text++) {
        switch (*text) {
        case '&': hy_text_add(t, "&amp;"); break;
        case '<': hy_text_add(t, "&lt;"); break;
        case '>': hy_text_add(t, "&gt;"); break;
        default: hy_text_add_bytes(t, text, 1);
        }
    }
    hy_text_add(t, "</text>\n");
}

#endif
