/* phase_run.h: a short run that passes through all four phases, and what it kept in memory.
 *
 * Trains through hybrid.h alone. Settings make Warmup, Full, Predict and Correct follow each other
 * within a few steps: they are as strong as a file's, so --set and flags win over them. Bytes are the
 * library's own account: planned before anything was taken, measured as the most that was live. */
#ifndef BENCH_PHASE_RUN_H
#define BENCH_PHASE_RUN_H

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "command_line.h"
#include "cuda_driver.h"
#include "hybrid.h"

#define PHASE_RUN_STEPS_MAX 1024

/* The plan's bar: within this share of what was measured, or within this many bytes. */
#define PLAN_BAR_PERCENT 3.0
#define PLAN_BAR_BYTES (128.0 * 0x1p20)

typedef struct phase_run {
    hy_summary summary;                    /* its strings went with the trainer: all are "" */
    char device[128], matmul[256];         /* as in the summary */
    double step_seconds[HY_PHASE_COUNT];   /* median; NaN where the phase did not occur */
    double val_loss;                       /* held out, after the last step */
    uint64_t card_bytes, card_bytes_after; /* GPU: in use with the run, and without it; else 0 */
    int64_t batch_size, seq_len, grad_accum;
} phase_run;

/* ---- settings ---------------------------------------------------------------------------------- */

static inline hy_status phase_run_set(hy_config *config, const char *const pairs[][2], int count,
                                      hy_origin origin) {
    for (int i = 0; i < count; i++) {
        HY_TRY(hy_config_set(config, pairs[i][0], pairs[i][1], origin));
    }
    return HY_OK;
}

static inline hy_status phase_run_set_given(hy_config *config, const bench_command *command) {
    for (int i = 0; i < command->set_count; i++) {
        char key[BENCH_WORD_MAX];
        const char *equals = strchr(command->sets[i], '=');
        snprintf(key, sizeof key, "%.*s", (int)(equals - command->sets[i]), command->sets[i]);
        HY_TRY(hy_config_set(config, key, equals + 1, HY_FROM_SET));
    }
    return HY_OK;
}

/* Moves are made as soon as a window of true steps is there, whether they would pay or not. Nothing is
 * written, and the text is short: it is made anew for every run. */
static inline hy_status phase_run_configure(hy_config *config, const bench_command *command) {
    static const char *const often[][2] = {
        {"lr_warmup_steps", "2"}, {"full_steps", "2"},     {"correct_steps", "2"},
        {"predict_from", "0"},    {"predict_until", "1"},  {"confidence_threshold", "0"},
        {"fork_budget", "0"},     {"cooldown_steps", "1"}, {"builtin_bytes", "1M"},
        {"eval_batches", "4"},    {"sample_tokens", "0"}};
    const char *const given[][2] = {{"device", bench_value(command, "--device")},
                                    {"steps", bench_value(command, "--steps")},
                                    {"batch_size", bench_value(command, "--batch-size")},
                                    {"seq_len", bench_value(command, "--seq-len")},
                                    {"out", "none"}};
    HY_TRY(phase_run_set(config, often, sizeof often / sizeof often[0], HY_FROM_FILE));
    HY_TRY(phase_run_set_given(config, command));
    return phase_run_set(config, given, sizeof given / sizeof given[0], HY_FROM_FLAG);
}

static inline int64_t phase_run_number(const hy_config *config, const char *key) {
    const char *text = "0";
    (void)hy_config_get(config, key, &text, NULL);
    return strtoll(text, NULL, 10);
}

/* ---- running ----------------------------------------------------------------------------------- */

static inline int phase_run_by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double phase_run_median(double *values, int count) {
    if (count == 0) return NAN;
    qsort(values, (size_t)count, sizeof *values, phase_run_by_size);
    return values[count / 2];
}

static inline hy_status phase_run_step(hy_trainer *trainer, int64_t steps, phase_run *out) {
    double seconds[HY_PHASE_COUNT][PHASE_RUN_STEPS_MAX];
    int counts[HY_PHASE_COUNT] = {0};
    hy_eval_info eval;
    for (int64_t i = 0; i < steps; i++) {
        hy_step_info info;
        HY_TRY(hy_trainer_step(trainer, &info));
        seconds[info.phase][counts[info.phase]++] = info.seconds;
    }
    for (int p = 0; p < HY_PHASE_COUNT; p++) {
        out->step_seconds[p] = phase_run_median(seconds[p], counts[p]);
    }
    HY_TRY(hy_trainer_evaluate(trainer, &eval));
    out->val_loss = eval.loss;
    return HY_OK;
}

static inline void phase_run_note(const hy_trainer *trainer, phase_run *out) {
    hy_summary *s = &out->summary;
    hy_trainer_summary(trainer, s);
    snprintf(out->device, sizeof out->device, "%s", s->device);
    snprintf(out->matmul, sizeof out->matmul, "%s", s->matmul);
    s->model = s->device = s->matmul = s->data = s->out = s->predictor = s->why_not = "";
}

static inline hy_status phase_run_make(const hy_config *config, phase_run *out) {
    hy_trainer *trainer;
    int64_t steps = phase_run_number(config, "steps");
    *out = (phase_run){.batch_size = phase_run_number(config, "batch_size"),
                       .seq_len = phase_run_number(config, "seq_len"),
                       .grad_accum = phase_run_number(config, "grad_accum_steps")};
    if (steps < 1 || steps > PHASE_RUN_STEPS_MAX) {
        return hy_fail(HY_ERR_INPUT, "--steps is %lld; accepted are 1 to %d", (long long)steps,
                       PHASE_RUN_STEPS_MAX);
    }
    HY_TRY(hy_trainer_create(config, NULL, &trainer));
    hy_status status = phase_run_step(trainer, steps, out);
    phase_run_note(trainer, out);
    if (out->summary.is_gpu) out->card_bytes = cuda_driver_in_use();
    hy_trainer_destroy(trainer);
    if (out->summary.is_gpu) out->card_bytes_after = cuda_driver_in_use();
    return status;
}

/* ---- the program ------------------------------------------------------------------------------- */

/* What a measurement does: runs and shows all; then says what is wrong, and how much. */
typedef struct bench_work {
    hy_status (*measure)(const bench_command *command, void *results);
    int (*check)(const void *results);
    void *results;
} bench_work;

/* The exit code: 0 all is well, 1 a check or a run failed, 2 wrong usage or input. */
static inline int bench_main(bench_command *command, int argc, char **argv,
                             const bench_work *work) {
    if (!bench_command_parse(command, argc, argv)) return 2;
    if (command->wants_help) {
        bench_help(command);
        return 0;
    }
    hy_status status = work->measure(command, work->results);
    if (status != HY_OK) {
        fprintf(stderr, "%s: %s\n", command->program, hy_error_message());
        return status == HY_ERR_INPUT ? 2 : 1;
    }
    return work->check(work->results) == 0 ? 0 : 1;
}

/* ---- looking ----------------------------------------------------------------------------------- */

/* Tokens that a second of this phase trains on; NaN for Predict, which trains on none. */
static inline double phase_run_rate(const phase_run *run, hy_phase phase) {
    if (phase == HY_PREDICT) return NAN;
    return (double)run->summary.tokens_per_step / run->step_seconds[phase];
}

/* Sums over classes in one place. */
static inline uint64_t phase_planned(const hy_phase_summary *p, hy_place place) {
    uint64_t sum = 0;
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        if (p->memory[cls].place == place) sum += p->memory[cls].planned_bytes;
    }
    return sum;
}

static inline uint64_t phase_measured(const hy_phase_summary *p, hy_place place) {
    uint64_t sum = 0;
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        if (p->memory[cls].place == place) sum += p->memory[cls].measured_bytes;
    }
    return sum;
}

/* How far a plan is from what was measured: what was measured less what was planned. */
typedef struct plan_error {
    double bytes, percent; /* percent of what was measured */
    bool is_within;        /* one of the two bars */
} plan_error;

static inline plan_error plan_error_of(uint64_t planned, uint64_t measured) {
    double bytes = (double)measured - (double)planned;
    double percent = measured ? 100 * bytes / (double)measured : planned ? -100 : 0;
    return (plan_error){bytes, percent,
                        fabs(percent) <= PLAN_BAR_PERCENT || fabs(bytes) <= PLAN_BAR_BYTES};
}

#endif
