/* html.c: escaping, and figures for people. See html.h.
 *
 * The script of the page formats its figures itself (page/figures.js), under the names of
 * hy_figure_name: a new kind of figure is added in both. */
#include "report/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

void hy_html_text(hy_text *out, const char *text) {
    static const char marks[] = "&<>\"'";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (size_t left = strlen(text), used; left > 0; text += used, left -= used) {
        int length = hy_utf8_length((const uint8_t *)text, left);
        const char *mark = strchr(marks, *text);
        unsigned char c = (unsigned char)*text;
        bool is_control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
        used = length > 0 ? (size_t)length : 1;
        if (mark)
            hy_text_add(out, entities[mark - marks]);
        else if (length == 0 || is_control)
            hy_text_add(out, REPLACEMENT);
        else
            hy_text_add_bytes(out, text, used);
    }
}

void hy_html_put(hy_text *out, const char *before, const char *text, const char *after) {
    hy_text_add(out, before);
    hy_html_text(out, text);
    hy_text_add(out, after);
}

void hy_html_count(hy_text *out, int64_t count) {
    char digits[32];
    int size = snprintf(digits, sizeof digits, "%lld", (long long)count);
    for (int i = 0; i < size; i++) {
        bool is_group_end = i > 0 && (size - i) % 3 == 0 && digits[i - 1] != '-';
        if (is_group_end) hy_text_add(out, ",");
        hy_text_add_bytes(out, &digits[i], 1);
    }
}

/* "812", "12.3k", "124.4M", "7.62B". */
static void add_short(hy_text *out, double value) {
    static const char *const units[] = {"", "k", "M", "B", "T"};
    size_t unit = 0;
    for (; fabs(value) >= 999.5 && unit < 4; unit++) value /= 1000;
    int digits = unit == 0 ? (fabs(value) < 10 && value != floor(value)) : fabs(value) < 10 ? 2 : 1;
    hy_text_addf(out, "%.*f%s", digits, value, units[unit]);
}

/* Short times keep a decimal digit, because waits are mostly below a second. */
static void add_duration(hy_text *out, double seconds) {
    char buffer[32];
    if (seconds >= 0.0005 && seconds < 9.95)
        hy_text_addf(out, "%.*f s", seconds < 0.095 ? 3 : 1, seconds);
    else
        hy_text_add(out, hy_format_duration(seconds, buffer, sizeof buffer));
}

const char *hy_figure_name(hy_figure figure) {
    static const char *const names[HY_FIGURE_COUNT_OF] = {"loss",  "small",   "count",  "short",
                                                          "bytes", "percent", "number", "time"};
    return names[figure];
}

void hy_html_figure(hy_text *out, hy_figure figure, double value) {
    char buffer[32];
    if (!isfinite(value)) {
        hy_text_add(out, "\xE2\x80\x93");
        return;
    }
    switch (figure) {
    case HY_FIGURE_LOSS: hy_text_addf(out, "%.4f", value); break;
    case HY_FIGURE_SMALL: hy_text_addf(out, "%.2e", value); break;
    case HY_FIGURE_COUNT: hy_html_count(out, llround(fmax(fmin(value, 0x1p53), -0x1p53))); break;
    case HY_FIGURE_SHORT: add_short(out, value); break;
    case HY_FIGURE_BYTES: hy_text_add(out, hy_format_bytes(value, buffer, sizeof buffer)); break;
    case HY_FIGURE_PERCENT: hy_text_addf(out, "%.1f %%", value); break;
    case HY_FIGURE_TIME: add_duration(out, value); break;
    default: hy_text_addf(out, "%.*f", fabs(value) < 100 ? 2 : 1, value); break;
    }
}

void hy_html_cell(hy_text *out, hy_figure figure, double value) {
    hy_text_add(out, "<td>");
    hy_html_figure(out, figure, value);
}

void hy_html_open_table(hy_text *html, const char *title, const char *const *columns,
                        int numbers_from) {
    hy_text_addf(html, "<h3>%s</h3>\n<div class=\"scroll\"><table>\n<thead><tr>", title);
    for (int i = 0; columns[i]; i++)
        hy_text_addf(html, "<th scope=\"col\"%s>%s", i < numbers_from ? " class=\"text\"" : "",
                     columns[i]);
    hy_text_add(html, "</thead>\n<tbody>\n");
}

void hy_html_close_table(hy_text *html) { hy_text_add(html, "</tbody></table></div>\n"); }
