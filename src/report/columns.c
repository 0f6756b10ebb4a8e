/* columns.c: filling the columns. See columns.h. */
#include "report/columns.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "formats/metrics.h"

static double share(double part, double whole) { return whole > 0 ? 100 * part / whole : NAN; }

/* Classes add up to the total; lines without classes have the total alone. */
static double class_bytes(const int64_t *bytes, hy_class cls) {
    int64_t all = 0;
    for (int c = 0; c < HY_CLASS_COUNT; c++) all += bytes[c];
    return all > 0 ? (double)bytes[cls] : NAN;
}

static double metric(const hy_field *field, const hy_run_point *p, hy_class cls) {
    const void *at = (const char *)p + field->into;
    if (field->kind == HY_FIELD_CLASSES) return class_bytes(at, cls);
    return (field->kind == HY_FIELD_SHARE ? 100 : 1) * hy_field_number(field, at);
}

void hy_column_fill(const hy_run *run, const hy_column *column, double *out) {
    bool is_undone = strcmp(column->key, "undone") == 0;
    bool is_waited = strcmp(column->key, "waited") == 0;
    const hy_field *field = hy_step_field(column->key);
    if (strcmp(column->key, "predicted") == 0) {
        double sum = 0;
        bool has_jumped = false;
        for (size_t i = 0; i < hy_run_points(run); i++) {
            const hy_run_point *p = hy_run_point_at(run, i);
            has_jumped |= p->phase == HY_PREDICT;
            if (p->phase == HY_PREDICT && !p->was_rejected && p->predicted_steps > 0) {
                sum += p->predicted_steps;
            }
            out[i] = has_jumped ? sum : NAN;
        }
        return;
    }
    assert(is_undone || is_waited || (field && field->into != HY_NO_FIELD));
    for (size_t i = 0; i < hy_run_points(run); i++) {
        const hy_run_point *p = hy_run_point_at(run, i);
        bool is_left_out = column->is_of_steps && p->phase == HY_PREDICT;
        out[i] = is_left_out ? NAN
                 : is_undone ? (p->was_rejected || p->was_rolled_back ? 1 : NAN)
                 : is_waited ? share(p->wait_seconds, p->seconds)
                             : metric(field, p, column->cls);
    }
}
