/* ladder.c: the savings and costs of each way to save memory.
 *
 * Trains one model several times from the same seed, each time with one more optimisation: fp32,
 * bf16, recomputation, smaller gradients, state and master weights; then m and v, gradients,
 * weights and activations leave the device one after the other, and updates wait for the next step;
 * then fp8 matmuls; then adapters with the model as it is and in NF4; then strategies for Predict;
 * then the profiles, with the planner's choices. For each row it prints device bytes in Full and
 * Predict, pinned bytes, speed, waiting and held-out loss, and the change from the row that it is
 * based on. The exit code is 1 if a plan is beyond its bar, or if a row that must not change any
 * bit changed the loss.
 *   build/bench/ladder [--model NAME] [--device cpu|cuda] [--steps N] [--batch-size N] [--json
 * FILE] */
#include "gpu_heading.h"
#include "ladder/variants.h"

static bench_flag flags[] = {
    {"--model", "nano", "preset or .cfg file"},
    {"--device", "cpu", "cpu, cuda or cuda:N"},
    {"--steps", "9", "steps of each row, including jumps"},
    {"--batch-size", "8", "sequences in a step"},
    {"--seq-len", "128", "tokens in a sequence"},
    {"--json", "", "file for all results"},
    {"--room", "", "bytes of the device that profiles may use (8GiB)"},
};

static hy_status run_variant(const bench_command *command, ladder *l, int i) {
    hy_config *config;
    result *c = &l->results[i];
    *c = (result){.variant = variant_at(i), .base = variant_base(i)};
    HY_TRY(hy_config_create(&config));
    hy_status status = hy_config_set(config, "model", l->model, HY_FROM_FLAG);
    if (status == HY_OK) status = phase_run_configure(config, command);
    if (status == HY_OK) status = variant_configure(config, i);
    if (status == HY_OK && variant_is_profile(c->variant) && bench_value(command, "--room")[0]) {
        status = hy_config_set(config, "max_gpu_mem", bench_value(command, "--room"), HY_FROM_FLAG);
    }
    if (status == HY_OK) status = phase_run_make(config, NULL, &c->run);
    hy_config_destroy(config);
    return status;
}

static hy_status run_all(const bench_command *command, void *context) {
    ladder *l = context;
    if (gpu_is_absent("ladder", bench_value(command, "--device"))) return HY_OK;
    l->model = bench_value(command, "--model");
    for (int i = 0; variant_at(i); i++) {
        hy_status status = run_variant(command, l, i);
        if (status != HY_OK) {
            fprintf(stderr, "ladder: row \"%s\" failed\n", variant_at(i)->name);
            return status;
        }
        l->count = i + 1;
        if (i == 0) ladder_print_heading(l);
        ladder_print_row(l, i);
    }
    const char *json = bench_value(command, "--json");
    return json[0] ? ladder_json_write(l, json) : HY_OK;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static const char *complaint(const ladder *l, const result *c) {
    const hy_phase_summary *phases = c->run.summary.phases;
    if (phases[HY_FULL].steps == 0 || (phases[HY_PREDICT].steps == 0 && !c->run.is_aside)) {
        return "Full or Predict did not occur; use more --steps";
    }
    if (!result_is_planned(c)) return "memory differed from its plan by more than 3 % and 128 MiB";
    if (c->variant->is_exact && !result_has_same_loss(l, c)) {
        return "the loss differs from that of the row that it is based on";
    }
    return NULL;
}

static int check(const void *context) {
    const ladder *l = context;
    int failures = 0, exact = 0;
    printf("\n");
    for (int i = 0; i < l->count; i++) {
        const char *wrong = complaint(l, &l->results[i]);
        exact += l->results[i].variant->is_exact;
        if (!wrong) continue;
        printf("FAIL  %s: %s\n", l->results[i].variant->name, wrong);
        failures++;
    }
    if (failures == 0 && l->count > 0) {
        printf("PASS  %d rows kept to their plans; %d rows that must not change any bit changed "
               "none\n",
               l->count, exact);
    }
    return failures;
}

int main(int argc, char **argv) {
    static ladder l; /* too large for the stack */
    bench_command command = {.program = "ladder",
                             .about = "what each way to save memory saves and costs",
                             .flags = flags,
                             .flag_count = sizeof flags / sizeof flags[0]};
    bench_work work = {run_all, check, &l};
    return bench_main(&command, argc, argv, &work);
}
