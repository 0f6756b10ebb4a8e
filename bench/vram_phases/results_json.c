/* results_json.c: every run with its placement table as JSON. See results.h. */
#include "base/json.h"
#include "save_text.h"
#include "vram_phases/results.h"

static void put_classes(hy_json_writer *w, const hy_phase_summary *phase) {
    hy_json_open_object(w, "classes");
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_memory_cell *cell = &phase->memory[cls];
        hy_json_open_object(w, hy_class_name((hy_class)cls));
        hy_json_put_string(w, "place", hy_place_name(cell->place));
        hy_json_put_string(w, "dtype", hy_dtype_name(cell->dtype));
        hy_json_put_int(w, "planned_bytes", (int64_t)cell->planned_bytes);
        hy_json_put_int(w, "measured_bytes", (int64_t)cell->measured_bytes);
        hy_json_close_object(w);
    }
    hy_json_close_object(w);
}

/* One kind of memory in one phase. */
static void put_place(hy_json_writer *w, const char *name, uint64_t planned, uint64_t measured) {
    plan_error error = plan_error_of(planned, measured);
    hy_json_open_object(w, name);
    hy_json_put_int(w, "planned_bytes", (int64_t)planned);
    hy_json_put_int(w, "measured_bytes", (int64_t)measured);
    hy_json_put_double(w, "error_bytes", error.bytes);
    hy_json_put_double(w, "error_percent", error.percent);
    hy_json_put_bool(w, "is_within_bar", error.is_within);
    hy_json_close_object(w);
}

static void put_phase(hy_json_writer *w, const phase_run *run, hy_phase phase) {
    const hy_phase_summary *p = &run->summary.phases[phase];
    hy_json_open_object(w, hy_phase_name(phase));
    hy_json_put_int(w, "steps", p->steps);
    hy_json_put_double(w, "seconds", p->seconds);
    hy_json_put_double(w, "step_seconds", run->step_seconds[phase]);
    hy_json_put_double(w, "tokens_per_second", phase_run_rate(run, phase));
    hy_json_put_int(w, "bytes_moved", (int64_t)p->bytes_moved);
    hy_json_put_double(w, "wait_seconds", p->wait_seconds);
    put_place(w, "device", p->vram_planned_bytes, p->vram_peak_bytes);
    put_place(w, "pinned", phase_planned(p, HY_PINNED), phase_measured(p, HY_PINNED));
    put_place(w, "host", phase_planned(p, HY_HOST), phase_measured(p, HY_HOST));
    put_place(w, "disk", phase_planned(p, HY_DISK), phase_measured(p, HY_DISK));
    hy_json_open_object(w, "coming_back"); /* device bytes in addition to those of the classes */
    hy_json_put_int(w, "planned_bytes", vp_returning_planned(p));
    hy_json_put_int(w, "measured_bytes", vp_returning_measured(p));
    hy_json_close_object(w);
    put_classes(w, p);
    hy_json_close_object(w);
}

/* What the planner predicted and chose, and the result. */
static void put_plan(hy_json_writer *w, const phase_run *run) {
    const hy_plan_facts *plan = &run->plan;
    hy_json_open_object(w, "plan");
    hy_json_put_string(w, "types", run->types);
    hy_json_put_string(w, "choices", run->choices);
    hy_json_put_double(w, "tokens_per_second", plan->tokens_per_second);
    hy_json_put_double(w, "wait_seconds", plan->wait_seconds);
    put_place(w, "pinned", plan->host_pinned_bytes, run->pinned_bytes);
    put_place(w, "card", plan->vram_bytes,
              run->summary.is_gpu ? phase_run_taken(run) : plan->vram_bytes);
    hy_json_open_array(w, "reasons");
    for (int i = 0; i < plan->reason_count; i++) hy_json_put_string(w, NULL, plan->reasons[i]);
    hy_json_close_array(w);
    hy_json_close_object(w);
}

static void put_run(hy_json_writer *w, const vp_run *r) {
    const phase_run *run = &r->run;
    hy_json_open_object(w, NULL);
    hy_json_put_string(w, "model", r->model);
    hy_json_put_string(w, "profile", r->profile);
    hy_json_put_string(w, "types", r->types);
    hy_json_put_string(w, "way", r->way);
    hy_json_put_int(w, "parameters", run->summary.parameters);
    hy_json_put_int(w, "batch_size", run->batch_size);
    hy_json_put_int(w, "seq_len", run->seq_len);
    hy_json_put_int(w, "grad_accum_steps", run->grad_accum);
    hy_json_put_double(w, "seconds", run->summary.seconds);
    hy_json_put_double(w, "tokens_per_second", run->summary.tokens_per_second);
    hy_json_put_double(w, "window_tokens_per_second", phase_run_window_rate(run));
    hy_json_put_double(w, "val_loss", run->val_loss);
    if (run->card_bytes) {
        hy_json_put_int(w, "card_bytes", (int64_t)run->card_bytes);
        hy_json_put_int(w, "card_bytes_after", (int64_t)run->card_bytes_after);
    }
    hy_json_put_int(w, "resident_bytes", (int64_t)run->resident_bytes);
    put_plan(w, run);
    hy_json_open_object(w, "phases");
    for (int p = 0; p < RUN_PHASES; p++) put_phase(w, run, (hy_phase)p);
    hy_json_close_object(w);
    hy_json_close_object(w);
}

hy_status vp_json_write(const vp_results *results, const char *path) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "version", HYBRID_VERSION);
    hy_json_put_string(&w, "device", results->runs[0].run.device);
    hy_json_put_string(&w, "matmul", results->runs[0].run.matmul);
    hy_json_put_double(&w, "bar_percent", PLAN_BAR_PERCENT);
    hy_json_put_double(&w, "bar_bytes", PLAN_BAR_BYTES);
    hy_json_open_array(&w, "runs");
    for (int i = 0; i < results->count; i++) put_run(&w, &results->runs[i]);
    hy_json_close_array(&w);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    return save_text(path, &text);
}
