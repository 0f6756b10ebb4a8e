/* gpu_phases.c: memory, copies and waiting of phases on a GPU, compared with their bars.
 *
 * Short runs through Warmup, Full, Predict and Correct; the planner chooses what a row leaves open.
 * Row a: a small model in 8 GiB and with the whole card; b: Predict and Correct together with and
 * without lookahead; c: memory of Predict on the device compared with Full; d: cycles of a 7B model
 * on a 64 GB PC with 16,303 MiB free on the card (bench/gpu_phases.sh holds the rest). Rows e, f
 * and g set no type and no place: 1.5B on that card, which the script compares with the whole card,
 * 3B and 7B on it in a PC of 32 GB. Each row prints its settings, figures, bar and verdict; the
 * exit code is 1 if a bar is missed. --set changes the settings of a row, which then has no bar.
 *   build/bench/gpu_phases [--row abc] [--device cuda|cpu] [--model NAME] [--set "key=value ..."]
 *       [--folder FOLDER]     row g: folder for state on disk, /tmp by default */
#include "gpu_heading.h"
#include "phase_run.h"

/* Weights without a master copy, gradients in 16 bits, m and v in 8 bits. */
#define SMALL_STATE                                                                                \
    "precision=bf16 precision_correct=same master_dtype=bf16 grad_dtype=bf16 optimizer=adamw8bit " \
    "predictor_dtype=bf16"

typedef struct row row;
typedef bool (*row_judge)(const phase_run runs[2]);

struct row {
    char name;
    const char *title, *model, *settings;
    const char *variants[2]; /* additional settings of each run; the second NULL: only one run */
    row_judge judge;         /* prints figures; true: the bar is reached */
    bool has_cycles;         /* all four phases must occur */
};

static const double gib = 0x1p-30;

/* ---- figures --------------------------------------------------------------------------------- */

static double rate_of(const phase_run *run) { return phase_run_rate(run, HY_FULL); }

static double waited_a_step(const phase_run *run, hy_phase phase) {
    const hy_phase_summary *p = &run->summary.phases[phase];
    return p->steps ? p->wait_seconds / (double)p->steps : NAN;
}

static void print_run(const phase_run *run) {
    uint64_t taken = phase_run_taken(run);
    printf("  %lld x %lld tokens x %lld; %s; ready after %.1f s\n", (long long)run->batch_size,
           (long long)run->seq_len, (long long)run->grad_accum, run->choices, run->seconds_to_open);
    printf(
        "  %.0f tokens/s in Full (planned %.0f), %.0f at the start of a window, %.0f over the run",
        rate_of(run), run->plan.tokens_per_second, phase_run_window_rate(run),
        run->summary.tokens_per_second);
    printf("; device: planned %.2f GiB, peak %.2f", (double)run->plan.vram_bytes * gib,
           (double)phase_run_peak(run) * gib);
    if (taken) printf(", peak reported by the driver %.2f", (double)taken * gib);
    printf("; pinned: planned %.2f GiB, peak %.2f\n", (double)run->plan.host_pinned_bytes * gib,
           (double)run->pinned_bytes * gib);
    for (int p = 0; p < RUN_PHASES; p++) {
        const hy_phase_summary *s = &run->summary.phases[p];
        printf("  %-8s %3lld steps, %8.1f ms each, %7.3f s waited (%.1f ms per step), copied %7.2f "
               "GB, in use %6.2f GiB of %6.2f planned\n",
               hy_phase_name((hy_phase)p), (long long)s->steps, 1e3 * run->step_seconds[p],
               s->wait_seconds, 1e3 * waited_a_step(run, (hy_phase)p),
               (double)s->bytes_moved * 1e-9, (double)s->vram_peak_bytes * gib,
               (double)s->vram_planned_bytes * gib);
    }
    fflush(stdout);
}

static bool has_all_phases(const phase_run *run) {
    for (int p = 0; p < RUN_PHASES; p++) {
        if (run->summary.phases[p].steps == 0) return false;
    }
    return true;
}

/* ---- bars ------------------------------------------------------------------------------------ */

#define ROOM (8.0 * 0x1p30)
#define SPEED_BAR 0.9

/* The slowest of three speeds counts, because windows are shorter here than in a long run. */
static bool judge_room(const phase_run runs[2]) {
    const phase_run *large = &runs[0], *small = &runs[1];
    double taken = (double)phase_run_taken(small), planned = (double)small->plan.vram_bytes;
    double plain = rate_of(small) / rate_of(large);
    double window = phase_run_window_rate(small) / phase_run_window_rate(large);
    double whole = small->summary.tokens_per_second / large->summary.tokens_per_second;
    double worst = fmin(plain, fmin(window, whole));
    printf("  peak %.3f GiB planned, %.3f GiB reported by the driver: bar below 8\n", planned * gib,
           taken * gib);
    printf("  speed relative to the whole card: %.3f in Full, %.3f at the start of a window, %.3f "
           "over the run: bar %.1f for each\n",
           plain, window, whole, SPEED_BAR);
    return planned < ROOM && taken < ROOM && (double)phase_run_peak(small) < ROOM &&
           worst >= SPEED_BAR;
}

#define TOGETHER_BAR 0.9

/* Time saved in one phase must not appear in the other. */
static bool judge_waiting(const phase_run runs[2]) {
    double at_once = waited_a_step(&runs[0], HY_CORRECT);
    double ahead = waited_a_step(&runs[1], HY_CORRECT);
    double with = runs[1].step_seconds[HY_PREDICT] + runs[1].step_seconds[HY_CORRECT];
    double without = runs[0].step_seconds[HY_PREDICT] + runs[0].step_seconds[HY_CORRECT];
    printf("  waiting in Correct: %.2f ms per step with lookahead, %.2f without\n", 1e3 * ahead,
           1e3 * at_once);
    printf("  a Predict and a Correct step together: %.1f ms with, %.1f without, ratio %.3f: bar "
           "%.1f; Predict alone %.1f and %.1f\n",
           1e3 * with, 1e3 * without, with / without, TOGETHER_BAR,
           1e3 * runs[1].step_seconds[HY_PREDICT], 1e3 * runs[0].step_seconds[HY_PREDICT]);
    return with <= TOGETHER_BAR * without;
}

#define PREDICT_BAR 0.6

static bool judge_predict(const phase_run runs[2]) {
    const hy_phase_summary *phases = runs[0].summary.phases;
    double predict = (double)phases[HY_PREDICT].vram_peak_bytes;
    double full = (double)phases[HY_FULL].vram_peak_bytes;
    printf("  in use on the device: Predict %.2f GiB, Full %.2f, ratio %.3f: bar %.1f\n",
           predict * gib, full * gib, predict / full, PREDICT_BAR);
    return full > 0 && predict <= PREDICT_BAR * full;
}

#define CYCLES_BAR 3
#define PINNED_BAR 56.0
#define PINNED_GOAL 50.0

/* Losses of optimizer steps in order. */
static double losses[PHASE_RUN_STEPS_MAX];
static int loss_count;

#define LOSS_STEPS 3

static double mean_loss(int from) {
    double sum = 0;
    for (int i = from; i < from + LOSS_STEPS; i++) sum += losses[i] / LOSS_STEPS;
    return sum;
}

static bool judge_cycles(const phase_run runs[2]) {
    const hy_summary *s = &runs[0].summary;
    bool has_losses = loss_count >= 2 * LOSS_STEPS;
    double first = has_losses ? mean_loss(0) : NAN;
    double last = has_losses ? mean_loss(loss_count - LOSS_STEPS) : NAN;
    int64_t cycles = s->phases[HY_PREDICT].steps;
    bool has_come_back = s->phases[HY_CORRECT].steps >= CYCLES_BAR || s->rejected_moves > 0;
    printf("  %lld jumps accepted and %lld rejected in %lld cycles: bar %d; mean loss of the first "
           "%d optimizer steps %.4f, of the last %.4f, held out %.4f: bar falling\n",
           (long long)s->moves, (long long)s->rejected_moves, (long long)cycles, CYCLES_BAR,
           LOSS_STEPS, first, last, runs[0].val_loss);
    double pinned = (double)runs[0].plan.host_pinned_bytes * gib;
    printf("  pinned: %.1f GiB: bar %.0f, goal %.0f\n", pinned, PINNED_BAR, PINNED_GOAL);
    return cycles >= CYCLES_BAR && s->moves >= CYCLES_BAR && has_come_back && last < first &&
           pinned <= PINNED_BAR;
}

/* gpu_phases.sh runs this on both cards and compares the speeds. */
static bool judge_nothing(const phase_run runs[2]) { return rate_of(&runs[0]) > 0; }

#define PC_BAR (28.0 * 0x1p30)
#define DISK_RATE_BAR 5000.0
#define DISK_RATE_GOAL 7000.0

static bool judge_pc(const phase_run runs[2]) {
    double host = (double)runs[0].plan.host_pinned_bytes + (double)runs[0].plan.data_host_bytes;
    printf("  %.0f tokens/s; host memory: planned %.2f GiB: bar 28\n", rate_of(&runs[0]),
           host * gib);
    return rate_of(&runs[0]) > 0 && host <= PC_BAR;
}

static bool judge_disk(const phase_run runs[2]) {
    bool is_in_pc = judge_pc(runs);
    printf("  on disk: planned %.2f GiB; bar %.0f tokens/s, goal %.0f\n",
           (double)runs[0].plan.disk_bytes * gib, DISK_RATE_BAR, DISK_RATE_GOAL);
    return is_in_pc && rate_of(&runs[0]) >= DISK_RATE_BAR;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* A Full window of the default length. */
#define AS_PLANNED                                                                                 \
    "profile=aggressive seq_len=1024 lr_warmup_steps=1 full_steps=20 dynamic_batch=on "            \
    "eval_batches=1"

/* m and v return before Predict ends if lookahead is set: row b measures this, row c excludes
 * it. */
static const row rows[] = {
    {'a',
     "Llama-3.2-1B, profile aggressive, 131,072 tokens per step: the whole card, and 8 GiB",
     "llama-3.2-1b",
     "profile=aggressive " SMALL_STATE
     " seq_len=1024 step_tokens=131072 steps=14 full_steps=4 correct_steps=1",
     {"max_gpu_mem=0", "max_gpu_mem=8GiB"},
     judge_room,
     true},
    {'b',
     "Qwen2.5-1.5B, m and v on the device in Full and pinned in Predict, with validation in "
     "Predict",
     "qwen2.5-1.5b",
     "precision=bf16 precision_correct=same seq_len=1024 batch_size=8 grad_accum_steps=2 steps=12 "
     "optim_place=device offload_strategy=pinned eval_every=1 eval_batches=8 eval_batch_size=8",
     {"lookahead=0", "lookahead=5"},
     judge_waiting,
     true},
    {'c',
     "Qwen2.5-1.5B, memory of Predict on the device, micro-batches of 4 x 1024",
     "qwen2.5-1.5b",
     SMALL_STATE " seq_len=1024 batch_size=4 eval_batch_size=4 recompute=norm steps=8 "
                 "offload_strategy=pinned",
     {"lookahead=0", NULL},
     judge_predict,
     true},
    {'d',
     "Qwen2.5-7B, cycles on a 64 GB PC as planned, 16,384 tokens per step",
     "qwen2.5-7b",
     "profile=aggressive cpu_mem=56GiB seq_len=1024 step_tokens=16384 dynamic_batch=on steps=16 "
     "correct_steps=1 eval_batches=1 data=builtin",
     {"lr=1e-4", NULL},
     judge_cycles,
     true},
    {'e',
     "Qwen2.5-1.5B as planned, 131,072 tokens per step",
     "qwen2.5-1.5b",
     AS_PLANNED " step_tokens=131072 steps=6",
     {"small_types=all", NULL},
     judge_nothing,
     false},
    {'f',
     "Qwen2.5-3B as planned for a PC of 32 GB, no disk, 32,768 tokens per step",
     "qwen2.5-3b",
     AS_PLANNED " step_tokens=32768 steps=6",
     {"cpu_mem=28GiB", NULL},
     judge_pc,
     false},
    {'g',
     "Qwen2.5-7B as planned for a PC of 32 GB with a disk, 262,144 tokens per step",
     "qwen2.5-7b",
     AS_PLANNED " step_tokens=262144 steps=3",
     {"cpu_mem=28GiB", NULL},
     judge_disk,
     false},
};
#define ROWS (sizeof rows / sizeof rows[0])

/* ---- measuring ------------------------------------------------------------------------------- */

static const char *given_device, *given_model, *given_settings, *given_folder;

static void show_step(const hy_step_info *info) {
    printf("  step %3lld %-8s loss %8.4f  %7.2f s, waited %6.3f s, copied %6.1f GB",
           (long long)info->step, hy_phase_name(info->phase), info->loss, info->seconds,
           info->wait_seconds, (double)info->bytes_moved * 1e-9);
    if (info->phase == HY_PREDICT) {
        printf(info->was_rejected ? ", refused" : ", %.1f steps predicted", info->predicted_steps);
    } else {
        losses[loss_count++] = info->loss;
    }
    printf("\n");
    fflush(stdout);
}

static hy_status configure(hy_config *config, const row *r, int variant) {
    HY_TRY(hy_config_set(config, "model", given_model ? given_model : r->model, HY_FROM_FLAG));
    HY_TRY(phase_run_make_short(config));
    HY_TRY(hy_config_set(config, "device", given_device, HY_FROM_FLAG));
    HY_TRY(phase_run_set_text(config, r->settings, HY_FROM_SET));
    HY_TRY(phase_run_set_text(config, r->variants[variant], HY_FROM_SET));
    if (r->judge == judge_disk) {
        HY_TRY(hy_config_set(config, "offload_folder", given_folder, HY_FROM_FLAG));
    }
    return given_settings ? phase_run_set_text(config, given_settings, HY_FROM_FLAG) : HY_OK;
}

static hy_status make_run(const row *r, int variant, phase_run *out) {
    hy_config *config;
    HY_TRY(hy_config_create(&config));
    loss_count = 0;
    printf("  %s\n", r->variants[variant]);
    fflush(stdout);
    hy_status status = configure(config, r, variant);
    if (status == HY_OK) {
        status = phase_run_make(config, r->judge == judge_cycles ? show_step : NULL, out);
    }
    hy_config_destroy(config);
    if (status == HY_OK) print_run(out);
    return status;
}

static hy_status measure_row(const row *r, bool *is_reached) {
    static phase_run runs[2]; /* too large for the stack */
    bool is_changed = given_model || given_settings || !gpu_is_asked(given_device);
    int count = r->variants[1] ? 2 : 1;
    printf("row %c: %s\n  %s\n", r->name, r->title, r->settings);
    if (given_settings) printf("  %s\n", given_settings);
    for (int i = 0; i < count; i++) HY_TRY(make_run(r, i, &runs[i]));
    bool is_good = r->judge(runs) && (!r->has_cycles || has_all_phases(&runs[count - 1]));
    *is_reached = is_changed || is_good;
    printf("  %s; %s\n", runs[0].device, runs[0].matmul);
    printf("  row %c: %s\n\n", r->name,
           is_changed ? "no bar, because its settings were changed"
           : is_good  ? "bar reached"
                      : "BELOW THE BAR");
    fflush(stdout);
    return HY_OK;
}

/* ---- the program ----------------------------------------------------------------------------- */

static bool are_rows(const char *wanted) {
    size_t known = 0;
    for (size_t i = 0; i < ROWS; i++) known += strchr(wanted, rows[i].name) != NULL;
    return known > 0 && known == strlen(wanted);
}

int main(int argc, char **argv) {
    const char *wanted = gpu_option(argc, argv, "--row", "abc");
    int missed = 0;
    given_device = gpu_option(argc, argv, "--device", "cuda");
    given_model = gpu_option(argc, argv, "--model", NULL);
    given_settings = gpu_option(argc, argv, "--set", NULL);
    given_folder = gpu_option(argc, argv, "--folder", "/tmp");
    if (!are_rows(wanted)) {
        fprintf(stderr, "gpu_phases: rows \"%s\"; accepted: a to g\n", wanted);
        return 2;
    }
    if (gpu_is_absent("gpu_phases", given_device)) return 0;
    bench_print_command(argc, argv);
    for (size_t i = 0; i < ROWS; i++) {
        bool is_reached = true;
        if (!strchr(wanted, rows[i].name)) continue;
        if (measure_row(&rows[i], &is_reached) != HY_OK) {
            fprintf(stderr, "gpu_phases: row %c: %s\n", rows[i].name, hy_error_message());
            return 1;
        }
        missed += !is_reached;
    }
    return missed ? 1 : 0;
}
