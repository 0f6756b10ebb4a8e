/* watch.c: inspects a run from inside and from outside.
 *
 * Without an argument it trains the built-in model in its own loop and prints between steps where
 * memory is used and what would need less. With a run folder, it prints what the run has written so
 * far, even if another program is still training it.
 *
 * Build it with `make examples`. */
#include <stdio.h>

#include "hybrid.h"
#include "hybrid_report.h"

#define STEPS 30
#define LOOK_AFTER 20

/* ---- inside ---------------------------------------------------------------------------------- */

static void print_memory(const hy_memory_state *state) {
    printf("memory is %s after step %lld\n", hy_memory_status_name(state->status),
           (long long)state->step);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_memory_class *c = &state->classes[cls];
        if (c->planned == 0) continue;
        printf("  %-12s %-7s %8.1f KiB live of %8.1f planned\n", hy_class_name(cls),
               hy_place_name(c->place), (double)c->live[c->place] / 1024,
               (double)c->planned / 1024);
    }
    for (int i = 0; i < state->advice_count; i++) printf("  %s\n", state->advice[i].text);
}

static hy_status train(hy_trainer *trainer) {
    hy_step_info info;
    hy_memory_state memory;
    for (int step = 1; step <= STEPS; step++) {
        hy_status status = hy_trainer_step(trainer, &info);
        if (status == HY_OK && step == LOOK_AFTER) {
            status = hy_trainer_memory(trainer, &memory);
            if (status == HY_OK) print_memory(&memory);
        }
        if (status != HY_OK) return status;
    }
    printf("step %lld  loss %.3f\n", (long long)info.step, info.loss);
    return HY_OK;
}

static hy_status train_and_look(void) {
    hy_config *config = NULL;
    hy_trainer *trainer = NULL;
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = hy_config_set(config, "out", "none", HY_FROM_CALLER);
    if (status == HY_OK) status = hy_trainer_create(config, NULL, &trainer);
    if (status == HY_OK) status = train(trainer);
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    return status;
}

/* ---- outside --------------------------------------------------------------------------------- */

static void print_run(const hy_run *run) {
    const hy_run_facts *facts = hy_run_describe(run);
    size_t points = hy_run_points(run);
    printf("%s: %s, %lld parameters, %s\n", facts->name, facts->model, (long long)facts->parameters,
           facts->is_finished ? "finished" : "running");
    for (size_t i = 0; i < hy_run_events(run); i++) {
        const hy_run_event *event = hy_run_event_at(run, i);
        printf("  %s at step %lld: %s\n", event->kind, (long long)event->step, event->text);
    }
    if (points == 0) return;
    const hy_run_point *last = hy_run_point_at(run, points - 1);
    printf("  step %lld, %s, loss %.3f, %.0f tokens/s\n", (long long)last->step,
           hy_phase_name(last->phase), last->loss, last->tokens_per_second);
}

static hy_status read_run(const char *folder) {
    hy_run *run = NULL;
    hy_status status = hy_run_open(folder, &run);
    if (status != HY_OK) return status;
    print_run(run);
    status = hy_report_write((const hy_run *const[]){run}, 1, "report.html");
    if (status == HY_OK) printf("  wrote report.html\n");
    hy_run_close(run);
    return status;
}

int main(int argc, char **argv) {
    hy_status status = argc > 1 ? read_run(argv[1]) : train_and_look();
    if (status != HY_OK) fprintf(stderr, "%s\n", hy_error_message());
    return status == HY_OK ? 0 : 1;
}
