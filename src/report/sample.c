/* sample.c: reduces columns and writes them as text. See sample.h.
 *
 * The charts and axes of the page use it. Columns are computed from the lines of a run each time;
 * only the buffers of the page are reused. */
#include "report/sample.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/number.h"
#include "report/metrics.h"

void hy_column_look(const double *column, size_t rows, hy_column_facts *out) {
    *out = (hy_column_facts){.min = NAN, .max = NAN, .last = NAN};
    for (size_t i = 0; i < rows; i++) {
        double value = column[i];
        if (!isfinite(value)) continue;
        if (out->count == 0 || value < out->min) out->min = value;
        if (out->count == 0 || value > out->max) out->max = value;
        out->last = value;
        out->count++;
    }
}

/* ---- reducing -------------------------------------------------------------------------------- */

/* Keeps the rows of the smallest and largest value among kept[begin .. end), and moves them to
 * kept[to ..]; returns how many are there. */
static size_t keep_extremes(const double *column, size_t *kept, size_t begin, size_t end,
                            size_t to) {
    size_t low = kept[begin], high = kept[begin];
    for (size_t k = begin; k < end; k++) {
        if (column[kept[k]] < column[low]) low = kept[k];
        if (column[kept[k]] > column[high]) high = kept[k];
    }
    kept[to] = low < high ? low : high;
    if (low == high) return 1;
    kept[to + 1] = low < high ? high : low;
    return 2;
}

size_t hy_column_thin(const double *column, size_t rows, size_t limit, size_t *kept) {
    size_t count = 0;
    for (size_t i = 0; i < rows; i++)
        if (isfinite(column[i])) kept[count++] = i;
    if (limit < 4) limit = 4;
    if (count <= limit) return count;
    size_t last = kept[count - 1], inner = count - 2, buckets = (limit - 2) / 2, to = 1;
    for (size_t b = 0; b < buckets; b++) {
        size_t begin = 1 + b * inner / buckets, end = 1 + (b + 1) * inner / buckets;
        if (begin < end) to += keep_extremes(column, kept, begin, end, to);
    }
    kept[to++] = last;
    return to;
}

/* ---- smoothing ------------------------------------------------------------------------------- */

/* Adds values to *sum, from `from` on in steps of `by`, until there are `most`; returns how
 * many. */
static size_t add_values(const double *column, size_t rows, size_t from, size_t by, size_t most,
                         double *sum) {
    size_t count = 0;
    for (size_t i = from; i < rows && count < most; i += by) { /* i wraps around below 0 */
        if (!isfinite(column[i])) continue;
        *sum += column[i];
        count++;
    }
    return count;
}

/* Half of the values are before the row. The start has fewer on both sides; the end has as many as
 * all others, on the side that exists. */
static double mean_around(const double *column, size_t rows, size_t at, size_t window) {
    double sum = 0, none = 0;
    size_t before = add_values(column, rows, at - 1, SIZE_MAX, window / 2, &none);
    bool is_start = before < window / 2;
    size_t after = add_values(column, rows, at, 1, is_start ? before + 1 : window - before, &sum);
    before = add_values(column, rows, at - 1, SIZE_MAX, is_start ? before : window - after, &sum);
    return before + after > 0 ? sum / (double)(before + after) : NAN;
}

void hy_column_smooth(const double *column, size_t rows, size_t window, size_t places,
                      double *out) {
    size_t stride = rows / places > 0 ? rows / places : 1;
    for (size_t i = 0; i < rows; i++) {
        bool is_place = i % stride == 0 || i == rows - 1;
        out[i] = is_place ? mean_around(column, rows, i, window) : NAN;
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Seven significant digits; integers keep all digits. */
static double rounded(double value) {
    if (value == 0 || value == floor(value)) return value;
    double scale = pow(10, 6 - floor(log10(fabs(value))));
    double result = round(value * scale) / scale;
    return isfinite(result) ? result : value;
}

void hy_put_number(hy_text *out, double value) {
    char digits[HY_NUMBER_MAX];
    if (!isfinite(value))
        hy_text_add(out, "null");
    else if (value == floor(value) && fabs(value) < 0x1p53)
        hy_text_addf(out, "%lld", (long long)value);
    else
        hy_text_add(out, hy_number_format(rounded(value), digits));
}

void hy_put_rows(hy_text *out, const size_t *kept, size_t count) {
    size_t before = 0, difference = SIZE_MAX;
    for (size_t k = 0; k < count; k++) {
        if (k > 0) hy_text_add(out, ",");
        if (kept[k] - before != difference) hy_text_addf(out, "%zu", kept[k] - before);
        difference = kept[k] - before;
        before = kept[k];
    }
}

void hy_put_values(hy_text *out, const double *column, const size_t *kept, size_t count) {
    for (size_t k = 0; k < count; k++) {
        if (k > 0) hy_text_add(out, ",");
        if (k > 0 && column[kept[k]] == column[kept[k - 1]]) continue;
        hy_put_number(out, column[kept[k]]);
    }
}

/* ---- filling columns ------------------------------------------------------------------------- */

static double metric(const hy_field *field, const hy_run_point *p, hy_class cls) {
    const void *at = (const char *)p + field->into;
    if (field->kind != HY_FIELD_CLASSES)
        return (field->kind == HY_FIELD_SHARE ? 100 : 1) * hy_field_number(field, at);
    /* Classes add up to the total; lines without classes have only the total. */
    const int64_t *bytes = at;
    int64_t all = 0;
    for (int c = 0; c < HY_CLASS_COUNT; c++) all += bytes[c];
    return all > 0 ? (double)bytes[cls] : NAN;
}

static void fill_predicted(const hy_run *run, double *out) {
    double sum = 0;
    bool has_jumped = false;
    for (size_t i = 0; i < hy_run_points(run); i++) {
        const hy_run_point *p = hy_run_point_at(run, i);
        has_jumped |= p->phase == HY_PREDICT;
        if (p->phase == HY_PREDICT && !p->was_rejected && p->predicted_steps > 0)
            sum += p->predicted_steps;
        out[i] = has_jumped ? sum : NAN;
    }
}

void hy_column_fill(const hy_run *run, const hy_column *column, double *out) {
    bool is_undone = strcmp(column->key, "undone") == 0;
    bool is_waited = strcmp(column->key, "waited") == 0;
    bool is_pace = strcmp(column->key, "steps_per_second") == 0;
    /* The speed of a run is in tokens, or in steps if tokens are not reported. */
    const char *other = hy_run_describe(run)->has_tokens ? "steps_per_second" : "tokens_per_second";
    bool is_other = strcmp(column->key, other) == 0;
    const hy_field *field = hy_step_field(column->key);
    if (strcmp(column->key, "predicted") == 0) {
        fill_predicted(run, out);
        return;
    }
    assert(is_undone || is_waited || is_pace || (field && field->into != HY_NO_FIELD));
    for (size_t i = 0; i < hy_run_points(run); i++) {
        const hy_run_point *p = hy_run_point_at(run, i);
        bool is_left_out = is_other || (column->is_of_steps && p->phase == HY_PREDICT);
        out[i] = is_left_out ? NAN
                 : is_undone ? (p->was_rejected || p->was_rolled_back ? 1 : NAN)
                 : is_pace   ? (p->seconds > 0 ? 1 / p->seconds : NAN)
                 : is_waited ? (p->seconds > 0 ? 100 * p->wait_seconds / p->seconds : NAN)
                             : metric(field, p, column->cls);
    }
}
