/* phase_run.h: a short run through all four phases, and its memory.
 *
 * Trains through hybrid.h; on a GPU, data and weights are random (drawn_run.h), so that it starts
 * at once. Settings make Warmup, Full, Predict and Correct follow each other within a few steps;
 * they have the origin of a file, so --set and flags override them. The bytes of a phase are those
 * of the library: planned before anything is allocated, measured as the peak. Figures of the driver
 * and the system are recorded too. */
#ifndef BENCH_PHASE_RUN_H
#define BENCH_PHASE_RUN_H

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "command_line.h"
#include "cuda_driver.h"
#include "drawn_run.h"
#include "hybrid.h"

#define PHASE_RUN_STEPS_MAX 1024
#define PHASE_RUN_SEQUENCES 2050 /* tokens in a random file; a run that needs more reads it again */

/* The plan's bar: within this share of what was measured, or within this many bytes. */
#define PLAN_BAR_PERCENT 3.0
#define PLAN_BAR_BYTES (128.0 * 0x1p20)

enum { RUN_PHASES = HY_EVALUATE + 1 }; /* these runs have no Reference, which is for pairs */

typedef struct phase_run {
    /* without its strings, which belonged to the trainer: all are "" */
    hy_summary summary;
    hy_plan_facts plan;              /* also without strings */
    char device[128], matmul[256];   /* as in the summary */
    char types[128];                 /* number types, in words */
    bool is_aside;                   /* prediction is disabled because memory is short */
    char choices[384];               /* the configured or chosen plan, in words */
    double step_seconds[RUN_PHASES]; /* median; NaN if the phase did not occur */
    double window_seconds;           /* the same for Full steps at the start of a window */
    double val_loss;                 /* held-out loss after the last step */
    double seconds_to_open;          /* data, device, memory, weights */
    uint64_t pinned_bytes;           /* peak of pinned memory */
    /* of the process, in addition to its memory before the run */
    uint64_t resident_bytes;
    uint64_t card_bytes, card_bytes_after; /* GPU: peak with the run, and memory after it; else 0 */
    int64_t batch_size, seq_len, grad_accum;
} phase_run;

/* An observer; may be NULL. */
typedef void (*phase_run_watch)(const hy_step_info *info);

/* ---- settings -------------------------------------------------------------------------------- */

static inline hy_status phase_run_set(hy_config *config, const char *const pairs[][2], int count,
                                      hy_origin origin) {
    for (int i = 0; i < count; i++) {
        HY_TRY(hy_config_set(config, pairs[i][0], pairs[i][1], origin));
    }
    return HY_OK;
}

/* "key=value key=value" */
static inline hy_status phase_run_set_text(hy_config *config, const char *text, hy_origin origin) {
    for (size_t length; *text; text += length) {
        char pair[2 * BENCH_WORD_MAX];
        length = strcspn(text, " ");
        if (length == 0) length = 1; /* a space */
        if (*text == ' ') continue;
        snprintf(pair, sizeof pair, "%.*s", (int)length, text);
        char *equals = strchr(pair, '=');
        if (!equals) return hy_fail(HY_ERR_INPUT, "\"%s\" is no KEY=VALUE", pair);
        *equals = 0;
        HY_TRY(hy_config_set(config, pair, equals + 1, origin));
    }
    return HY_OK;
}

/* Jumps are made as soon as a window is complete, whether they pay or not. No files are written,
 * and the text is short, because every run generates it. */
static inline hy_status phase_run_make_short(hy_config *config) {
    static const char *const often[][2] = {
        {"lr_warmup_steps", "2"}, {"full_steps", "2"},     {"correct_steps", "2"},
        {"predict_from", "0"},    {"predict_until", "1"},  {"confidence_threshold", "0"},
        {"fork_budget", "0"},     {"cooldown_steps", "1"}, {"builtin_bytes", "1M"},
        {"eval_batches", "4"},    {"sample_tokens", "0"},  {"out", "none"},
        {"predictor", "outer"}};
    return phase_run_set(config, often, sizeof often / sizeof often[0], HY_FROM_FILE);
}

/* Flags with the name of a key; "" does not change it. */
static inline hy_status phase_run_configure(hy_config *config, const bench_command *command) {
    static const char *const flags[][2] = {{"device", "--device"},
                                           {"steps", "--steps"},
                                           {"batch_size", "--batch-size"},
                                           {"seq_len", "--seq-len"},
                                           {"max_gpu_mem", "--max-gpu-mem"}};
    HY_TRY(phase_run_make_short(config));
    for (int i = 0; i < command->set_count; i++) {
        HY_TRY(phase_run_set_text(config, command->sets[i], HY_FROM_SET));
    }
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        const char *value = bench_value(command, flags[i][1]);
        if (value[0]) HY_TRY(hy_config_set(config, flags[i][0], value, HY_FROM_FLAG));
    }
    return HY_OK;
}

static inline const char *phase_run_text(const hy_config *config, const char *key) {
    const char *text = "0";
    (void)hy_config_get(config, key, &text, NULL);
    return text;
}

/* ---- running --------------------------------------------------------------------------------- */

static inline int phase_run_by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double phase_run_median(double *values, int count) {
    if (count == 0) return NAN;
    qsort(values, (size_t)count, sizeof *values, phase_run_by_size);
    return values[count / 2];
}

/* The peak of memory in use on the card, read after every step. */
static inline void phase_run_look(const hy_trainer *trainer, phase_run *out) {
    if (!trainer->engine->device.backend->facts.is_gpu) return;
    uint64_t now = cuda_driver_in_use();
    if (now > out->card_bytes) out->card_bytes = now;
}

/* Seconds of steps by kind. A Full step at the start of a window also writes the predictor's state.
 * Windows are short here, so such steps are frequent and count as a separate kind. */
typedef struct phase_times {
    double seconds[RUN_PHASES + 1][PHASE_RUN_STEPS_MAX];
    int counts[RUN_PHASES + 1];
} phase_times;

static inline void phase_times_add(phase_times *times, hy_phase before, const hy_step_info *info) {
    bool begins_window = info->phase == HY_FULL && before != HY_FULL;
    int kind = begins_window ? RUN_PHASES : (int)info->phase;
    times->seconds[kind][times->counts[kind]++] = info->seconds;
}

static inline double phase_times_median(phase_times *times, int kind) {
    return phase_run_median(times->seconds[kind], times->counts[kind]);
}

static inline hy_status phase_run_step(hy_trainer *trainer, int64_t steps, phase_run_watch watch,
                                       phase_run *out) {
    static phase_times times; /* too large for the stack */
    hy_phase before = HY_WARMUP;
    hy_eval_info eval;
    times = (phase_times){0};
    for (int64_t i = 0; i < steps; i++) {
        hy_step_info info;
        /* For the next Predict, as in a run that validates. */
        trainer->schedule->is_validation_due = trainer->settings->eval.eval_every > 0;
        HY_TRY(hy_trainer_step(trainer, &info));
        phase_times_add(&times, before, &info);
        before = info.phase;
        phase_run_look(trainer, out);
        if (watch) watch(&info);
        if (i == 0) HY_TRY(hy_trainer_evaluate(trainer, &eval)); /* between steps: Evaluate */
    }
    for (int p = 0; p < RUN_PHASES; p++) out->step_seconds[p] = phase_times_median(&times, p);
    out->window_seconds = phase_times_median(&times, RUN_PHASES);
    if (isnan(out->step_seconds[HY_FULL])) out->step_seconds[HY_FULL] = out->window_seconds;
    HY_TRY(hy_trainer_evaluate(trainer, &eval));
    out->step_seconds[HY_EVALUATE] = eval.seconds;
    out->val_loss = eval.loss;
    return HY_OK;
}

static inline const char *phase_run_type(hy_dtype type) {
    return type == HY_U8 ? "8-bit" : hy_dtype_name(type);
}

/* The types of the state, configured or chosen. */
static inline void phase_run_describe_types(const hy_trainer *t, phase_run *out) {
    const hy_types *types = &t->engine->plan->types;
    bool is_asked = t->settings->phases.predictor != HY_PREDICTOR_NONE;
    char low[48] = "", slow[48] = "";
    out->is_aside = is_asked && !hy_plan_predicts(t->engine->plan);
    if (types->has_low) {
        snprintf(low, sizeof low, " and a copy in %s", phase_run_type(types->low));
    }
    if (is_asked) {
        snprintf(slow, sizeof slow, ", predictor %s",
                 out->is_aside ? "aside" : phase_run_type(types->slow));
    }
    snprintf(out->types, sizeof out->types, "weights %s%s, gradients %s, m and v %s%s",
             phase_run_type(types->master), low, phase_run_type(types->grads),
             phase_run_type(types->optim), slow);
}

/* The plan, configured or chosen. */
static inline void phase_run_describe(const hy_trainer *t, phase_run *out) {
    const hy_plan_choice *c = &t->engine->plan->choice;
    char master[32] = "", layers[48] = "";
    if (t->engine->plan->types.has_low) {
        snprintf(master, sizeof master, "master %.12s, ", hy_place_name(c->state[HY_PLAN_MASTER]));
    }
    if (c->recompute_layers > 0) {
        snprintf(layers, sizeof layers, " in %d layers", c->recompute_layers);
    }
    snprintf(out->choices, sizeof out->choices,
             "weights %.12s, %sgradients %.12s, m and v %.12s, activations %.12s; recompute "
             "%.12s%s; loss in %d chunks; rings of %d, %d resident layers; updates %s",
             hy_place_name(c->state[HY_PLAN_WEIGHTS]), master,
             hy_place_name(c->state[HY_PLAN_GRADS]), hy_place_name(c->state[HY_PLAN_OPTIM]),
             hy_place_name(c->activations), hy_choice_name("recompute", c->recompute), layers,
             hy_plan_loss_chunks(&t->engine->request, t->engine->plan, c), c->ring_depth,
             c->resident_units, c->keeps_update_pending ? "on gather" : "at once");
}

/* As the system counts it: including pinned memory that was mapped before it was pinned. */
static inline uint64_t phase_run_resident(void) {
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "VmRSS: %llu", &kib) == 1) break;
    }
    if (file) fclose(file);
    return kib << 10;
}

static inline void phase_run_note(const hy_trainer *trainer, phase_run *out) {
    hy_summary *s = &out->summary;
    uint64_t before = out->resident_bytes, now = phase_run_resident();
    hy_trainer_summary(trainer, s);
    hy_trainer_plan_facts(trainer, &out->plan);
    snprintf(out->device, sizeof out->device, "%s", s->device);
    snprintf(out->matmul, sizeof out->matmul, "%s", s->matmul);
    s->model = s->device = s->matmul = s->data = s->out = s->predictor = s->why_not = "";
    out->plan.problem = "";
    out->batch_size = trainer->engine->plan->choice.batch;
    out->seq_len = trainer->settings->train.seq_len;
    out->grad_accum = trainer->engine->plan->choice.accum;
    out->pinned_bytes = trainer->engine->state->ledger.peak_in[HY_PINNED];
    out->resident_bytes = now > before ? now - before : 0;
    phase_run_describe_types(trainer, out);
    phase_run_describe(trainer, out);
    phase_run_look(trainer, out);
}

static inline hy_status phase_run_go(const hy_config *config, bool is_drawn, phase_run_watch watch,
                                     phase_run *out) {
    hy_trainer *trainer;
    double begin = hy_clock();
    int64_t steps = strtoll(phase_run_text(config, "steps"), NULL, 10);
    *out = (phase_run){.resident_bytes = phase_run_resident()};
    if (steps < 1 || steps > PHASE_RUN_STEPS_MAX) {
        return hy_fail(HY_ERR_INPUT, "--steps is %lld; accepted: 1 to %d", (long long)steps,
                       PHASE_RUN_STEPS_MAX);
    }
    HY_TRY(hy_trainer_create(config, NULL, &trainer));
    hy_status status = is_drawn ? drawn_weights(trainer) : HY_OK;
    out->seconds_to_open = hy_clock() - begin;
    if (status == HY_OK) status = phase_run_step(trainer, steps, watch, out);
    phase_run_note(trainer, out);
    hy_trainer_destroy(trainer);
    if (out->summary.is_gpu) out->card_bytes_after = cuda_driver_in_use();
    return status;
}

/* Tokens for a run on a GPU, in a separate folder. */
static inline hy_status phase_run_draw(hy_config *config, char folder[64]) {
    char path[96];
    const char *base = getenv("TMPDIR");
    int64_t seq = strtoll(phase_run_text(config, "seq_len"), NULL, 10);
    int64_t vocab = strtoll(phase_run_text(config, "vocab"), NULL, 10);
    snprintf(folder, 64, "%.40s/phase_run-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder)) return hy_fail(HY_ERR_IO, "cannot create a temporary folder %s", folder);
    snprintf(path, sizeof path, "%s/tokens.bin", folder);
    HY_TRY(drawn_tokens(path, (uint64_t)(PHASE_RUN_SEQUENCES * seq + 1), vocab));
    HY_TRY(hy_config_set(config, "init_std", "0", HY_FROM_FILE));
    /* few steps: nothing should diverge */
    HY_TRY(hy_config_set(config, "lr", "1e-4", HY_FROM_FILE));
    return hy_config_set(config, "data", path, HY_FROM_FILE);
}

static inline hy_status phase_run_make(hy_config *config, phase_run_watch watch, phase_run *out) {
    char folder[64] = "";
    bool is_drawn = hy_device_card(hy_config_settings(config)->device) >= 0;
    hy_status status = is_drawn ? phase_run_draw(config, folder) : HY_OK;
    if (status == HY_OK) status = phase_run_go(config, is_drawn, watch, out);
    if (folder[0]) (void)hy_dir_remove(folder);
    return status;
}

/* ---- the program ----------------------------------------------------------------------------- */

/* The steps of a measurement: runs and shows everything; then reports what is wrong, and how
 * much. */
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
    bench_print_command(argc, argv);
    hy_status status = work->measure(command, work->results);
    if (status != HY_OK) {
        fprintf(stderr, "%s: %s\n", command->program, hy_error_message());
        return status == HY_ERR_INPUT ? 2 : 1;
    }
    return work->check(work->results) == 0 ? 0 : 1;
}

/* ---- reading results ------------------------------------------------------------------------- */

/* Of Full steps at the start of a window. */
static inline double phase_run_window_rate(const phase_run *run) {
    return (double)run->summary.tokens_per_step / run->window_seconds;
}

/* Tokens per second of this phase; of Full without the first steps of windows; NaN for Predict,
 * which trains on none. */
static inline double phase_run_rate(const phase_run *run, hy_phase phase) {
    if (phase == HY_PREDICT) return NAN;
    return (double)run->summary.tokens_per_step / run->step_seconds[phase];
}

/* Memory of the run as reported by the driver, without its context and loaded code; 0 on a CPU. */
static inline uint64_t phase_run_taken(const phase_run *run) {
    return run->card_bytes > run->card_bytes_after ? run->card_bytes - run->card_bytes_after : 0;
}

/* The peak of all phases on the device. */
static inline uint64_t phase_run_peak(const phase_run *run) {
    uint64_t most = 0;
    for (int p = 0; p < RUN_PHASES; p++) {
        uint64_t peak = run->summary.phases[p].vram_peak_bytes;
        if (peak > most) most = peak;
    }
    return most;
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

/* The difference between measured and planned bytes. */
typedef struct plan_error {
    double bytes, percent; /* per cent of the measured bytes */
    bool is_within;        /* one of the two bars */
} plan_error;

static inline plan_error plan_error_of(uint64_t planned, uint64_t measured) {
    double bytes = (double)measured - (double)planned;
    double percent = measured ? 100 * bytes / (double)measured : planned ? -100 : 0;
    return (plan_error){bytes, percent,
                        fabs(percent) <= PLAN_BAR_PERCENT || fabs(bytes) <= PLAN_BAR_BYTES};
}

#endif
