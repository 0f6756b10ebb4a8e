/* record_cost.c: the cost of writing a step's record: its line in metrics.jsonl and its TensorBoard
 * values.
 *
 * Trains the nano model on the CPU for some steps, then writes the record of the last step many
 * times, as a run does, with a flush about once per second; compares the mean with the median step.
 *   build/bench/record_cost [--steps N] [--lines N] [--set KEY=VALUE] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "command_line.h"
#include "trainer/recording.h"
#include "trainer/trainer.h"

#define STEPS_MAX 1000

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static hy_status median_step(hy_trainer *t, int steps, hy_step_info *info, double *out) {
    double seconds[STEPS_MAX];
    for (int i = 0; i < steps; i++) {
        HY_TRY(hy_trainer_step(t, info));
        seconds[i] = info->seconds;
    }
    qsort(seconds, (size_t)steps, sizeof *seconds, by_value);
    *out = seconds[steps / 2];
    return HY_OK;
}

static hy_status mean_record(hy_trainer *t, const hy_step_info *info, int lines, double *out) {
    double begin = hy_clock();
    for (int i = 0; i < lines; i++) hy_trainer_record_step(t, info, NAN);
    *out = (hy_clock() - begin) / lines;
    return HY_OK;
}

static hy_status configure(const bench_command *c, const char *out, const char *tensorboard,
                           hy_config **config) {
    HY_TRY(hy_config_create(config));
    HY_TRY(hy_config_set(*config, "model", "nano", HY_FROM_SET));
    HY_TRY(hy_config_set(*config, "device", "cpu", HY_FROM_SET));
    HY_TRY(hy_config_set(*config, "steps", "1000", HY_FROM_SET));
    HY_TRY(hy_config_set(*config, "predictor", "none", HY_FROM_SET));
    for (int i = 0; i < c->set_count; i++) {
        char key[BENCH_WORD_MAX];
        const char *equals = strchr(c->sets[i], '=');
        snprintf(key, sizeof key, "%.*s", (int)(equals - c->sets[i]), c->sets[i]);
        HY_TRY(hy_config_set(*config, key, equals + 1, HY_FROM_FLAG));
    }
    HY_TRY(hy_config_set(*config, "tensorboard", tensorboard, HY_FROM_CALLER));
    return hy_config_set(*config, "out", out, HY_FROM_CALLER);
}

static hy_status measure(hy_trainer *t, int steps, int lines, const char *name) {
    hy_step_info info;
    double step, record;
    HY_TRY(median_step(t, steps, &info, &step));
    HY_TRY(mean_record(t, &info, lines, &record));
    printf("%-30s %10.1f us %12.1f us %9.4f %%\n", name, 1e6 * record, 1e6 * step,
           100 * record / step);
    return HY_OK;
}

static hy_status measure_with(const bench_command *c, const char *tensorboard, const char *name) {
    char out[] = "/tmp/hybrid-record-XXXXXX";
    hy_config *config = NULL;
    hy_trainer *t = NULL;
    int steps = atoi(bench_value(c, "--steps")), lines = atoi(bench_value(c, "--lines"));
    if (steps < 1 || steps > STEPS_MAX || lines < 1) {
        return hy_fail(HY_ERR_INPUT, "--steps must be 1 to %d, --lines at least 1", STEPS_MAX);
    }
    if (!mkdtemp(out)) return hy_fail(HY_ERR_IO, "cannot create a folder in /tmp");
    hy_status status = configure(c, out, tensorboard, &config);
    if (status == HY_OK) status = hy_trainer_create(config, NULL, &t);
    if (status == HY_OK) status = measure(t, steps, lines, name);
    hy_trainer_destroy(t);
    hy_config_destroy(config);
    hy_status removed = hy_dir_remove(out);
    return status != HY_OK ? status : removed;
}

int main(int argc, char **argv) {
    bench_flag flags[] = {{"--steps", "30", "to train"}, {"--lines", "20000", "to write"}};
    bench_command command = {.program = "record_cost",
                             .about = "cost of writing a step's record",
                             .flags = flags,
                             .flag_count = 2};
    if (!bench_command_parse(&command, argc, argv)) return 2;
    if (command.wants_help) {
        bench_help(&command);
        return 0;
    }
    bench_print_command(argc, argv);
    printf("%-30s %13s %15s %11s\n", "record", "a step's", "median step", "share");
    hy_status status = measure_with(&command, "false", "metrics.jsonl");
    if (status == HY_OK) status = measure_with(&command, "true", "metrics.jsonl, TensorBoard");
    if (status == HY_OK) return 0;
    fprintf(stderr, "record_cost: %s\n", hy_error_message());
    return 1;
}
