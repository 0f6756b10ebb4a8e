/* vram_phases.c: memory of each phase by place, planned and measured.
 *
 * For models x profiles (x precision levels, x ways of training: all parameters, LoRA, QLoRA): a
 * short run through all four phases, and its placement table, planned and measured: bytes per class
 * and phase, the peak on the device, pinned memory, the error of the plan, the planner's choice and
 * predicted speed, tokens per second, bytes copied and time waited. On a CPU the arenas replace the
 * device, so the table is the same on any machine, and --max-gpu-mem sets its size. The exit code
 * is 1 if a plan is off by more than 3 % and 128 MiB, or if a phase did not occur.
 *   build/bench/vram_phases [--model LIST] [--profiles LIST] [--device cpu|cuda] [--json FILE]
 * ... */
#include "gpu_heading.h"
#include "vram_phases/results.h"

static bench_flag flags[] = {
    {"--model", "nano,tiny-gpt2", "presets or .cfg files, comma-separated"},
    {"--profiles", "conservative,balanced,aggressive", "comma-separated"},
    {"--types", VP_TYPES_CHOSEN,
     "types of the state, comma-separated: chosen (by the planner), fp32, optimizer (8 bits), "
     "gradients (also bf16), master (also bf16), predictor (also 8 bits), fp8 (also matmuls); or "
     "all"},
    {"--ways", VP_WAY_FULL,
     "what is trained, comma-separated: full (all parameters), lora (adapters), qlora (adapters "
     "with a model in NF4); or all"},
    {"--device", "cpu", "cpu, cuda or cuda:N"},
    {"--steps", "12", "steps of each run, including jumps"},
    {"--batch-size", "1", "sequences in a micro-batch"},
    {"--seq-len", "128", "tokens in a sequence"},
    {"--max-gpu-mem", "", "bytes of the device that may be used (8GiB)"},
    {"--json", "", "file for all results"},
    {"--svg", "", "file for a chart of device bytes per phase"},
};

static hy_status configure(hy_config *config, const bench_command *command, const vp_run *r) {
    const char *const given[][2] = {{"profile", r->profile}, {"model", r->model}};
    HY_TRY(phase_run_set(config, given, 2, HY_FROM_FLAG));
    HY_TRY(phase_run_configure(config, command));
    const char *types = vp_types_settings(r->types);
    if (!types) {
        return hy_fail(HY_ERR_INPUT, "--types \"%s\"; accepted: %s, %s and all", r->types,
                       VP_TYPES_CHOSEN, vp_types_all());
    }
    HY_TRY(phase_run_set_text(config, types, HY_FROM_FLAG));
    const char *way = vp_way_settings(r->way);
    if (!way) {
        return hy_fail(HY_ERR_INPUT, "--ways \"%s\"; accepted: %s and all", r->way, vp_ways_all());
    }
    return phase_run_set_text(config, way, HY_FROM_FLAG);
}

static hy_status make_run(const bench_command *command, vp_run *r) {
    hy_config *config;
    HY_TRY(hy_config_create(&config));
    hy_status status = configure(config, command, r);
    if (status == HY_OK) status = phase_run_make(config, NULL, &r->run);
    hy_config_destroy(config);
    return status;
}

static hy_status add_run(const bench_command *command, const vp_run *asked, vp_results *results) {
    if (results->count == VP_RUNS_MAX) {
        return hy_fail(HY_ERR_INPUT,
                       "more than %d runs; use fewer --model, --profiles, --types or --ways",
                       VP_RUNS_MAX);
    }
    vp_run *r = &results->runs[results->count];
    *r = *asked;
    HY_TRY(make_run(command, r));
    if (results->count++ == 0) printf("%s; %s\n\n", r->run.device, r->run.matmul);
    vp_table_print(r);
    fflush(stdout);
    return HY_OK;
}

static hy_status make_model(const bench_command *command, const char *model, vp_results *results) {
    static vp_run asked; /* too large for the stack */
    const char *profiles = bench_value(command, "--profiles");
    snprintf(asked.model, sizeof asked.model, "%s", model);
    while (bench_next_word(&profiles, asked.profile)) {
        const char *types = bench_value(command, "--types");
        if (strcmp(types, "all") == 0) types = vp_types_all();
        while (bench_next_word(&types, asked.types)) {
            const char *ways = bench_value(command, "--ways");
            if (strcmp(ways, "all") == 0) ways = vp_ways_all();
            while (bench_next_word(&ways, asked.way)) HY_TRY(add_run(command, &asked, results));
        }
    }
    return HY_OK;
}

static hy_status write_files(const bench_command *command, const vp_results *results) {
    const char *json = bench_value(command, "--json"), *svg = bench_value(command, "--svg");
    if (json[0]) HY_TRY(vp_json_write(results, json));
    return svg[0] ? vp_svg_write(results, svg) : HY_OK;
}

static hy_status measure(const bench_command *command, void *context) {
    vp_results *results = context;
    if (gpu_is_absent("vram_phases", bench_value(command, "--device"))) return HY_OK;
    const char *models = bench_value(command, "--model");
    char model[BENCH_WORD_MAX];
    while (bench_next_word(&models, model)) HY_TRY(make_model(command, model, results));
    if (results->count == 0)
        return hy_fail(HY_ERR_INPUT, "--model, --profiles, --types or --ways is empty");
    vp_lines_print(results);
    vp_ways_print(results);
    return write_files(command, results);
}

int main(int argc, char **argv) {
    static vp_results results; /* too large for the stack */
    bench_command command = {.program = "vram_phases",
                             .about = "memory of each phase by place, planned and measured",
                             .flags = flags,
                             .flag_count = sizeof flags / sizeof flags[0]};
    bench_work work = {measure, vp_check, &results};
    return bench_main(&command, argc, argv, &work);
}
