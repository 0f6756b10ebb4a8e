/* table.c: a run on standard output: the placement table, and the results of each phase.
 *
 * A cell of the upper part has place, planned and measured bytes. */
#include "base/text.h"
#include "vram_phases/results.h"

#define CELL "  %-6s %9s %9s"

typedef const char *(*phase_text)(const phase_run *run, hy_phase phase, char text[32]);

static const char *bytes_text(uint64_t bytes, char text[32]) {
    return hy_format_bytes((double)bytes, text, 32);
}

/* ---- the placement table --------------------------------------------------------------------- */

static void print_cell(const char *place, int64_t planned, int64_t measured) {
    char a[32], b[32];
    if (planned == 0 && measured == 0) {
        printf(CELL, "-", "", "");
        return;
    }
    printf(CELL, place, bytes_text((uint64_t)planned, a), bytes_text((uint64_t)measured, b));
}

static void print_class(const phase_run *run, hy_class cls) {
    printf("  %-11s", hy_class_name(cls));
    for (int p = 0; p < RUN_PHASES; p++) {
        const hy_memory_cell *cell = &run->summary.phases[p].memory[cls];
        print_cell(hy_place_name(cell->place), (int64_t)cell->planned_bytes,
                   (int64_t)cell->measured_bytes);
    }
    printf("\n");
}

static void print_returning(const phase_run *run) {
    bool is_there = false;
    for (int p = 0; p < RUN_PHASES; p++) {
        const hy_phase_summary *phase = &run->summary.phases[p];
        is_there |= vp_returning_planned(phase) != 0 || vp_returning_measured(phase) != 0;
    }
    if (!is_there) return;
    printf("  %-11s", "coming back");
    for (int p = 0; p < RUN_PHASES; p++) {
        const hy_phase_summary *phase = &run->summary.phases[p];
        print_cell("device", vp_returning_planned(phase), vp_returning_measured(phase));
    }
    printf("\n");
}

static void print_place(const phase_run *run, hy_place place) {
    printf("  all %-7s", hy_place_name(place));
    for (int p = 0; p < RUN_PHASES; p++) {
        const hy_phase_summary *phase = &run->summary.phases[p];
        bool is_device = place == HY_DEVICE;
        print_cell(is_device ? "peak" : "",
                   (int64_t)(is_device ? phase->vram_planned_bytes : phase_planned(phase, place)),
                   (int64_t)(is_device ? phase->vram_peak_bytes : phase_measured(phase, place)));
    }
    printf("\n");
}

/* ---- results of each phase ------------------------------------------------------------------- */

static const char *error_text(const phase_run *run, hy_phase phase, char text[32]) {
    plan_error error = vp_device_error(&run->summary.phases[phase]);
    snprintf(text, 32, "%.0f B, %.2f %%", error.bytes, error.percent);
    return run->summary.phases[phase].steps ? text : "-";
}

static const char *steps_text(const phase_run *run, hy_phase phase, char text[32]) {
    snprintf(text, 32, "%lld", (long long)run->summary.phases[phase].steps);
    return text;
}

static const char *seconds_text(const phase_run *run, hy_phase phase, char text[32]) {
    snprintf(text, 32, "%.1f", 1e3 * run->step_seconds[phase]);
    return run->summary.phases[phase].steps ? text : "-";
}

static const char *rate_text(const phase_run *run, hy_phase phase, char text[32]) {
    double rate = phase_run_rate(run, phase);
    snprintf(text, 32, "%.0f", rate);
    return isnan(rate) ? "-" : text;
}

static const char *moved_text(const phase_run *run, hy_phase phase, char text[32]) {
    return bytes_text(run->summary.phases[phase].bytes_moved, text);
}

static const char *waited_text(const phase_run *run, hy_phase phase, char text[32]) {
    const hy_phase_summary *p = &run->summary.phases[phase];
    double share = p->seconds > 0 ? 100 * p->wait_seconds / p->seconds : 0;
    snprintf(text, 32, "%.4f s, %.1f %%", p->wait_seconds, share);
    return text;
}

static void print_figures(const phase_run *run) {
    static const struct {
        const char *name;
        phase_text text;
    } rows[] = {{"plan's error", error_text}, {"steps", steps_text}, {"ms a step", seconds_text},
                {"tokens/s", rate_text},      {"moved", moved_text}, {"waited", waited_text}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        printf("  %-12s", rows[i].name);
        for (int p = 0; p < RUN_PHASES; p++) {
            char text[32];
            printf("%*s%26s", p ? 2 : 1, "", rows[i].text(run, (hy_phase)p, text));
        }
        printf("\n");
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

static void print_line(const char *what, uint64_t planned, uint64_t measured) {
    char a[32], b[32];
    plan_error error = plan_error_of(planned, measured);
    printf("  %s: planned %s, measured %s: %.0f B, %.2f %% off\n", what, bytes_text(planned, a),
           bytes_text(measured, b), error.bytes, error.percent);
}

/* Memory allocated before the first step, and as reported by driver and system. */
static void print_taken(const phase_run *run) {
    char with[32], without[32], resident[32];
    if (run->plan.host_pinned_bytes) {
        print_line("pinned on the host", run->plan.host_pinned_bytes, run->pinned_bytes);
    }
    if (run->card_bytes) {
        print_line("on the card, by the driver's count", run->plan.vram_bytes,
                   phase_run_taken(run));
        printf("  reported by the card: %s in use with the run, %s after it\n",
               bytes_text(run->card_bytes, with), bytes_text(run->card_bytes_after, without));
    }
    printf("  reported by the system: %s more resident memory than before the run\n",
           bytes_text(run->resident_bytes, resident));
}

static void print_choices(const phase_run *run) {
    double rate = phase_run_rate(run, HY_FULL);
    printf("  types: %s\n  plan: %s\n", run->types, run->choices);
    for (int i = 0; i < run->plan.reason_count; i++) printf("    %s\n", run->plan.reasons[i]);
    if (run->plan.tokens_per_second > 0) {
        printf("  predicted %.0f tokens/s in Full, measured %.0f: ratio %.2f; %.0f at the start of "
               "a window\n",
               run->plan.tokens_per_second, rate, rate / run->plan.tokens_per_second,
               phase_run_window_rate(run));
    }
}

static void print_heading(const vp_run *r) {
    const phase_run *run = &r->run;
    printf("%s, profile %s, %s: %lld parameters, %lld x %lld tokens x %lld; %.0f tokens/s over the "
           "run, held-out loss %.4f; ready after %.1f s\n",
           r->model, r->profile, r->way, (long long)run->summary.parameters,
           (long long)run->batch_size, (long long)run->seq_len, (long long)run->grad_accum,
           run->summary.tokens_per_second, run->val_loss, run->seconds_to_open);
    print_choices(run);
    print_taken(run);
    printf("  %-11s", "class");
    for (int p = 0; p < RUN_PHASES; p++) {
        printf("  %-6s %9s %9s", hy_phase_name((hy_phase)p), "planned", "measured");
    }
    printf("\n");
}

void vp_table_print(const vp_run *r) {
    static const hy_place elsewhere[] = {HY_PINNED, HY_HOST, HY_DISK};
    print_heading(r);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        if (vp_is_class_used(&r->run, (hy_class)cls)) print_class(&r->run, (hy_class)cls);
    }
    print_returning(&r->run);
    print_place(&r->run, HY_DEVICE);
    for (int i = 0; i < 3; i++) {
        if (vp_is_place_used(&r->run, elsewhere[i])) print_place(&r->run, elsewhere[i]);
    }
    print_figures(&r->run);
    printf("\n");
}

/* ---- all runs -------------------------------------------------------------------------------- */

/* Which figure of the device counts: the driver's includes memory that is allocated but not in
 * use. */
static uint64_t taken_of(const phase_run *run) {
    return run->card_bytes ? phase_run_taken(run) : phase_run_peak(run);
}

void vp_lines_print(const vp_results *results) {
    if (results->count < 2) return;
    printf("%-14s %-13s %-10s %-5s %9s %9s %8s %9s %9s %9s  %s\n", "model", "profile", "types",
           "way", "planned", results->runs[0].run.card_bytes ? "driver" : "live", "off", "pinned",
           "predict", "tokens/s", "what is kept");
    for (int i = 0; i < results->count; i++) {
        const vp_run *r = &results->runs[i];
        const hy_phase_summary *predict = &r->run.summary.phases[HY_PREDICT];
        char a[32], b[32], c[32], d[32];
        uint64_t taken = taken_of(&r->run);
        printf("%-14s %-13s %-10s %-5s %9s %9s %6.2f %% %9s %9s %9.0f  %s\n", r->model, r->profile,
               r->types, r->way, bytes_text(r->run.plan.vram_bytes, a), bytes_text(taken, b),
               plan_error_of(r->run.plan.vram_bytes, taken).percent,
               bytes_text(r->run.pinned_bytes, c),
               predict->steps ? bytes_text(predict->vram_peak_bytes, d) : "-",
               phase_run_rate(&r->run, HY_FULL), r->run.types);
    }
    printf("\n");
}

/* ---- ways of training side by side ----------------------------------------------------------- */

static bool has_several_ways(const vp_results *results) {
    for (int i = 1; i < results->count; i++) {
        if (strcmp(results->runs[i].way, results->runs[0].way) != 0) return true;
    }
    return false;
}

void vp_ways_print(const vp_results *results) {
    char text[32];
    if (!has_several_ways(results)) return;
    printf("in use on the device by phase\n%-14s %-13s %-10s %-5s", "model", "profile", "types",
           "way");
    for (int p = 0; p < RUN_PHASES; p++) printf(" %9s", hy_phase_name((hy_phase)p));
    printf(" %9s %9s\n", "pinned", "tokens/s");
    for (int i = 0; i < results->count; i++) {
        const vp_run *r = &results->runs[i];
        printf("%-14s %-13s %-10s %-5s", r->model, r->profile, r->types, r->way);
        for (int p = 0; p < RUN_PHASES; p++) {
            const hy_phase_summary *phase = &r->run.summary.phases[p];
            printf(" %9s", phase->steps ? bytes_text(phase->vram_peak_bytes, text) : "-");
        }
        printf(" %9s %9.0f\n", bytes_text(r->run.pinned_bytes, text),
               phase_run_rate(&r->run, HY_FULL));
    }
    printf("\n");
}
