/* planned.c: reads memory by phase and class. See planned.h and hybrid_report.h. */
#include "report/planned.h"

#include <math.h>
#include <string.h>

static bool has_phases(const hy_json *json, hy_planned *out) {
    out->phases = json ? hy_json_get(hy_json_root(json), "phases") : NULL;
    return out->phases && hy_json_type_of(out->phases) == HY_JSON_OBJECT;
}

bool hy_planned_of_plan(const hy_run *run, hy_planned *out) {
    *out = (hy_planned){.bytes_key = "bytes"};
    return has_phases(run->plan, out);
}

bool hy_planned_of_summary(const hy_run *run, hy_planned *out) {
    *out = (hy_planned){.bytes_key = "planned_bytes", .has_measured = true};
    return has_phases(run->summary, out);
}

bool hy_planned_read(const hy_planned *from, int phase, int cls, hy_planned_cell *out) {
    const hy_json_node *of_phase = hy_json_get(from->phases, hy_phase_name((hy_phase)phase));
    const hy_json_node *classes = hy_json_get(of_phase, "classes");
    const hy_json_node *node = hy_json_get(classes, hy_class_name((hy_class)cls));
    *out = (hy_planned_cell){"", "", NAN, NAN};
    hy_json_as_string(hy_json_get(node, "place"), &out->place, NULL);
    hy_json_as_string(hy_json_get(node, "dtype"), &out->dtype, NULL);
    hy_json_as_double(hy_json_get(node, from->bytes_key), &out->planned);
    hy_json_as_double(hy_json_get(node, "measured_bytes"), &out->measured);
    return out->planned > 0 || out->measured > 0;
}

int64_t hy_run_planned_bytes(const hy_run *run, hy_phase phase, hy_place place, hy_class cls) {
    hy_planned from;
    hy_planned_cell cell;
    if (!hy_planned_of_plan(run, &from) && !hy_planned_of_summary(run, &from)) return -1;
    if (!hy_planned_read(&from, (int)phase, (int)cls, &cell)) return 0;
    bool is_there = strcmp(cell.place, hy_place_name(place)) == 0;
    return is_there && cell.planned > 0 ? (int64_t)fmin(cell.planned, 0x1p53) : 0;
}
