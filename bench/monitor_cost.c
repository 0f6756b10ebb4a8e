/* monitor_cost.c: the cost of the memory monitor, and its figures compared with the driver's.
 *
 * One run, step by step: the time inside the monitor is compared with the time of the steps, so
 * that other load on the machine affects both. On a card its figures are compared with
 * cudaMemGetInfo, NVML and nvidia-smi; on any machine, those of the process with /proc/self/status.
 * The exit code is 1 if a bar is missed: half a per cent of a step's time, one per cent of a
 * figure.
 *
 *   build/bench/monitor_cost [--model NAME] [--device cpu|cuda] [--steps N] [--set KEY=VALUE] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command_line.h"
#include "trainer/monitor.h"

#define MOST_COST 0.005
#define MOST_ERROR 0.01

static bench_flag flags[] = {
    {"--model", "nano", "preset"},
    {"--device", "auto", "cpu or cuda"},
    {"--steps", "200", "steps that are timed, after ten warm-up steps"},
    {"--batch-size", "", "sequences of a micro-batch"},
    {"--seq-len", "", "tokens of a sequence"},
    {"--max-gpu-mem", "", "memory budget on the device"},
};
#define FLAGS ((int)(sizeof flags / sizeof flags[0]))
#define WARM_UP 10

/* ---- the run --------------------------------------------------------------------------------- */

static hy_status set_flags(const bench_command *c, hy_config *config) {
    for (int i = 0; i < c->flag_count; i++) {
        const bench_flag *f = &c->flags[i];
        if (!f->value[0] || strcmp(f->name, "--steps") == 0) continue;
        const hy_config_key_info *key = hy_config_find(f->name);
        HY_TRY(hy_config_set(config, key ? key->key : f->name, f->value, HY_FROM_FLAG));
    }
    for (int i = 0; i < c->set_count; i++) {
        char key[BENCH_WORD_MAX];
        const char *value = strchr(c->sets[i], '=') + 1;
        snprintf(key, sizeof key, "%.*s", (int)(value - 1 - c->sets[i]), c->sets[i]);
        HY_TRY(hy_config_set(config, key, value, HY_FROM_SET));
    }
    return HY_OK;
}

static hy_status make_run(const bench_command *c, hy_trainer **out) {
    hy_config *config;
    HY_TRY(hy_config_create(&config));
    hy_status status = hy_config_set(config, "out", "none", HY_FROM_CALLER);
    if (status == HY_OK) status = hy_config_set(config, "steps", "1000000", HY_FROM_CALLER);
    if (status == HY_OK) status = hy_config_set(config, "predictor", "none", HY_FROM_CALLER);
    if (status == HY_OK) status = hy_config_set(config, "sample_tokens", "0", HY_FROM_CALLER);
    if (status == HY_OK) status = set_flags(c, config);
    if (status == HY_OK) status = hy_trainer_create(config, NULL, out);
    hy_config_destroy(config);
    return status;
}

static hy_status take_steps(hy_trainer *t, long count) {
    for (long i = 0; i < count; i++) HY_TRY(hy_trainer_step(t, NULL));
    return HY_OK;
}

/* ---- cost ------------------------------------------------------------------------------------ */

static bool print_cost(const hy_trainer *t, long steps, double step_seconds, double seconds) {
    double share = seconds / step_seconds;
    printf("%-28s %12.3f ms\n", "a step", 1e3 * step_seconds / (double)steps);
    printf("%-28s %12.3f us\n", "the monitor in a step", 1e6 * seconds / (double)steps);
    printf("%-28s %12.4f %%   bar %.1f %%: %s\n", "share", 100 * share, 100 * MOST_COST,
           share < MOST_COST ? "reached" : "MISSED");
    double begin = hy_clock();
    (void)hy_monitor_look(t, true);
    printf("%-28s %12.3f us\n", "a check that queries all sources", 1e6 * (hy_clock() - begin));
    return share < MOST_COST;
}

/* ---- figures --------------------------------------------------------------------------------- */

static bool print_figure(const char *what, double ours, double theirs) {
    double error = theirs > 0 ? fabs(ours - theirs) / theirs : 0;
    printf("%-44s %10.1f MiB %10.1f MiB   %.3f %% off: %s\n", what, ours / 0x1p20, theirs / 0x1p20,
           100 * error, error <= MOST_ERROR ? "reached" : "MISSED");
    return error <= MOST_ERROR;
}

static double status_resident(void) {
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "VmRSS:", 6) == 0) kib = strtod(line + 6, NULL);
    }
    if (file) fclose(file);
    return kib * 1024;
}

/* A column of nvidia-smi for the card, in bytes; NaN if nvidia-smi is missing. */
static double smi(const char *column) {
    char command[256], line[128] = "";
    snprintf(command, sizeof command,
             "nvidia-smi --query-gpu=%s --format=csv,noheader,nounits 2>/dev/null", column);
    FILE *pipe = popen(command, "r");
    bool is_read = pipe && fgets(line, sizeof line, pipe);
    if (pipe) pclose(pipe);
    return is_read ? strtod(line, NULL) * 0x1p20 : NAN;
}

static bool compare_card(const hy_trainer *t, const hy_memory_state *s) {
    hy_nvml_sample sample = hy_nvml_ask(t->engine->nvml);
    bool is_ok = true;
    size_t free_bytes = 0, total = 0;
    if (t->engine->device.backend->memory_now(t->engine->device.backend, &free_bytes, &total) !=
        HY_OK)
        return false;
    is_ok &=
        print_figure("free: monitor, cudaMemGetInfo", (double)s->device.free, (double)free_bytes);
    if (sample.memory_total) {
        is_ok &=
            print_figure("free: monitor, NVML", (double)s->device.free, (double)sample.memory_free);
    }
    double smi_free = smi("memory.free"), smi_total = smi("memory.total");
    if (!isnan(smi_free)) {
        is_ok &= print_figure("free: monitor, nvidia-smi", (double)s->device.free, smi_free);
        is_ok &= print_figure("total: monitor, nvidia-smi", (double)s->device.total, smi_total);
    }
    /* Memory used since the card was opened: arenas and what the driver loads. It has no bar,
     * because the driver's part dominates for small models. */
    double gone = (double)t->engine->device.backend->facts.memory_free - (double)free_bytes;
    printf("%-44s %10.1f MiB %10.1f MiB\n", "allocated since the start: reserved, driver",
           (double)s->device.reserved / 0x1p20, gone / 0x1p20);
    if (s->process_device) {
        printf("%-44s %10.1f MiB\n", "this process: reported by the driver, with its context",
               (double)s->process_device / 0x1p20);
    }
    return is_ok;
}

static hy_status compare(const hy_trainer *t, bool *is_ok) {
    hy_memory_state s;
    HY_TRY(hy_trainer_memory(t, &s));
    printf("\n%-44s %14s %14s\n", "figure", "ours", "theirs");
    double resident = (double)hy_monitor_look(t, true).resident;
    *is_ok &= print_figure("resident: monitor, /proc/self/status", resident, status_resident());
    *is_ok &= print_figure("in use on the device: measured, planned", (double)s.device.used,
                           (double)s.device.planned);
    if (t->engine->device.backend->facts.is_gpu) *is_ok &= compare_card(t, &s);
    return HY_OK;
}

static hy_status measure(hy_trainer *t, long steps, bool *is_ok) {
    HY_TRY(take_steps(t, WARM_UP));
    double begin = hy_clock(), spent = t->monitor->seconds;
    HY_TRY(take_steps(t, steps));
    *is_ok = print_cost(t, steps, hy_clock() - begin, t->monitor->seconds - spent);
    return compare(t, is_ok);
}

int main(int argc, char **argv) {
    bench_command c = {.program = "monitor_cost",
                       .about =
                           "cost of the memory monitor, and its figures compared with the driver's",
                       .flags = flags,
                       .flag_count = FLAGS};
    hy_trainer *t = NULL;
    bool is_ok = true;
    if (!bench_command_parse(&c, argc, argv)) return 2;
    if (c.wants_help) {
        bench_help(&c);
        return 0;
    }
    long steps = strtol(bench_value(&c, "--steps"), NULL, 10);
    bench_print_command(argc, argv);
    hy_status status = make_run(&c, &t);
    if (status == HY_OK) {
        printf("%s\n\n", t->engine->device.backend->facts.name);
        status = measure(t, steps < 1 ? 1 : steps, &is_ok);
    }
    if (status != HY_OK) fprintf(stderr, "monitor_cost: %s\n", hy_error_message());
    hy_trainer_destroy(t);
    return status != HY_OK || !is_ok;
}
