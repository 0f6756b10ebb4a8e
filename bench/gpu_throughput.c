/* gpu_throughput.c: tokens per second of training on a GPU, compared with other programs.
 *
 * Trains a preset for a few optimizer steps on random tokens, without validation, checkpoints and
 * prediction, and prints the median step, model FLOP/s (6 operations per block and head weight and
 * token, plus causal attention; recomputation does not count), its share of the card's nominal peak
 * and of a large bf16 matmul timed at the start. Rows a to g are those of the tables in
 * docs/performance.md. Row d is a forward-only pass over as many tokens, as in Predict. Rows e to g
 * are for a card with 16,303 MiB free (bench/gpu_capped.sh), and also print the time that compute
 * waited for copies, and the pinned host memory. --set changes settings of the run. --estimate
 * compares the planned step with the measured one.
 *   build/bench/gpu_throughput [--row a..l|all] [--steps N] [--warmup N] [--breakdown] [--estimate]
 *       [--batch-size N] [--seq-len N] [--tokens N] [--model NAME] [--device cuda|cpu]
 *       [--precision bf16] [--recompute none] [--loss-chunks N] [--tune off|fast|max]
 *       [--tune-cache FILE] [--attention own|cudnn|auto] [--host-init] [--set "key=value
 * key=value"] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gpu_heading.h"
#include "gpu_throughput/breakdown.h"
#include "gpu_throughput/work.h"

typedef enum measure { TOKENS_PER_SECOND, SHARE_OF_GEMM, FORWARD_OVER_STEP } measure;

typedef struct peer {
    const char *who;
    double tokens_per_second;
} peer;

typedef struct row {
    char name;
    const char *title, *model;
    int64_t batch, seq, tokens;
    measure measure;
    double bar, goal;
    peer peers[3];
    const char *settings; /* additional settings; NULL: none */
} row;

/* bf16 weights without a master copy, bf16 gradients, 8-bit m and v; the planner chooses the
 * rest. */
#define SMALL_STATE "master_dtype=bf16 grad_dtype=bf16 optimizer=adamw8bit cpu_mem=50GiB"

static const row rows[] = {
    {'a',
     "GPT-2 124M, 64 x 1024, 524,288 tokens per step",
     "gpt2-124m",
     64,
     1024,
     524288,
     TOKENS_PER_SECOND,
     540000,
     620000,
     {{"llm.c, H200", 388000},
      {"llm.c with cuDNN, H200", 572800},
      {"PyTorch compiled, H200", 464400}},
     NULL},
    {'b',
     "GPT-2 1558M, 16 x 1024, 131,072 tokens per step",
     "gpt2-1558m",
     16,
     1024,
     131072,
     SHARE_OF_GEMM,
     0.55,
     0.65,
     {{0}},
     NULL},
    {'c',
     "Qwen2.5-1.5B, 8 x 1024, 131,072 tokens per step",
     "qwen2.5-1.5b",
     8,
     1024,
     131072,
     TOKENS_PER_SECOND,
     57000,
     62000,
     {{"LLMQ, as published, H100", 59000}},
     NULL},
    {'d',
     "forward-only pass over a full step, GPT-2 124M, 524,288 tokens each",
     "gpt2-124m",
     64,
     1024,
     524288,
     FORWARD_OVER_STEP,
     0.33,
     0.30,
     {{0}},
     NULL},
    {'e',
     "Qwen2.5-7B in 16,303 MiB, 262,144 tokens per step",
     "qwen2.5-7b",
     0,
     1024,
     262144,
     TOKENS_PER_SECOND,
     11000,
     12000,
     {{"LLMQ in 62.3 GiB pinned, H200", 10070}},
     SMALL_STATE},
    {'f',
     "Qwen2.5-7B in 16,303 MiB, 16,384 tokens per step",
     "qwen2.5-7b",
     0,
     1024,
     16384,
     TOKENS_PER_SECOND,
     7600,
     8800,
     {{0}},
     SMALL_STATE},
    {'g',
     "Qwen2.5-1.5B in 16,303 MiB, 131,072 tokens per step",
     "qwen2.5-1.5b",
     0,
     1024,
     131072,
     TOKENS_PER_SECOND,
     52000,
     56000,
     {{"LLMQ, H200", 50300}},
     SMALL_STATE},
    {'h',
     "LoRA r16 on all matrices, bf16 base, Qwen3-8B, 2 x 2048, 16,384 tokens per step",
     "qwen3-8b",
     2,
     2048,
     16384,
     TOKENS_PER_SECOND,
     12000,
     14000,
     {{"Unsloth, H200", 9100}, {"Surogate, as published, H100", 10200}},
     "lora=true lora_rank=16"},
    {'i',
     "QLoRA NF4, the same work in 9 GiB",
     "qwen3-8b",
     2,
     2048,
     16384,
     TOKENS_PER_SECOND,
     9600,
     10500,
     {{"Unsloth, H200", 8400}, {"Surogate, as published, H100", 9400}},
     "qlora=true lora_rank=16 max_gpu_mem=9GiB"},
    {'j',
     "QLoRA NF4, the same work in 16,303 MiB",
     "qwen3-8b",
     2,
     2048,
     16384,
     TOKENS_PER_SECOND,
     9600,
     12000,
     {{"Unsloth, H200", 8400}, {"Surogate, as published, H100", 9400}},
     "qlora=true lora_rank=16"},
    {'m',
     "LoRA r16 on all matrices, base and matmuls in fp8, the work of row h",
     "qwen3-8b",
     2,
     2048,
     16384,
     TOKENS_PER_SECOND,
     14000,
     17000,
     {{"Unsloth, H200", 9100}, {"Surogate, as published, H100", 10200}},
     "lora=true lora_rank=16 precision=fp8"},
    {'k',
     "LoRA r16, Qwen2.5-32B, bf16 base from 62 GiB, in 16,303 MiB",
     "qwen2.5-32b",
     0,
     2048,
     32768,
     TOKENS_PER_SECOND,
     0,
     0,
     {{0}},
     "lora=true lora_rank=16 cpu_mem=62GiB"},
    {'l',
     "QLoRA NF4, Qwen2.5-32B, from 20 GiB, in 16,303 MiB",
     "qwen2.5-32b",
     0,
     2048,
     32768,
     TOKENS_PER_SECOND,
     0,
     0,
     {{0}},
     "qlora=true lora_rank=16 cpu_mem=20GiB"},
};
#define ROWS (sizeof rows / sizeof rows[0])

typedef struct bench {
    int argc;
    char **argv;
    bool has_heading, is_changed; /* is_changed: the settings differ from the table */
} bench;

static const char *option(const bench *b, const char *name, const char *fallback) {
    return gpu_option(b->argc, b->argv, name, fallback);
}

static int64_t number(const bench *b, const char *name, int64_t fallback) {
    const char *text = option(b, name, NULL);
    return text ? strtoll(text, NULL, 10) : fallback;
}

static gt_options options_of(bench *b, const row *r) {
    gt_options o = {.device = option(b, "--device", "cuda"),
                    .model = option(b, "--model", r->model),
                    .precision = option(b, "--precision", "bf16"),
                    .recompute = option(b, "--recompute", r->settings ? NULL : "none"),
                    .tune = option(b, "--tune", "fast"),
                    .tune_cache = option(b, "--tune-cache", "auto"),
                    .attention = option(b, "--attention", "own"),
                    .loss_chunks = option(b, "--loss-chunks", "0"),
                    .settings = {r->settings, option(b, "--set", NULL)},
                    .batch = number(b, "--batch-size", r->batch),
                    .seq = number(b, "--seq-len", r->seq),
                    .tokens = number(b, "--tokens", r->tokens),
                    .warmup = (int)number(b, "--warmup", 2),
                    .steps = (int)number(b, "--steps", 5),
                    .has_host_init = gpu_flag(b->argc, b->argv, "--host-init")};
    if (o.steps < 1) o.steps = 1;
    if (o.steps > GT_STEPS_MAX) o.steps = GT_STEPS_MAX;
    b->is_changed = !gpu_is_asked(o.device) || strcmp(o.model, r->model) != 0 ||
                    strcmp(o.precision, "bf16") != 0 || o.seq != r->seq || o.tokens != r->tokens;
    return o;
}

/* ---- printing -------------------------------------------------------------------------------- */

/* 579200 as "579,200". */
static const char *grouped(double value, char text[32]) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%.0f", value), out = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) text[out++] = ',';
        text[out++] = digits[i];
    }
    text[out] = 0;
    return text;
}

static void print_seconds(const char *what, const gt_options *o, const gt_seconds *s) {
    printf("  %s: median %.1f ms (%.1f to %.1f; %d after %d warm-up rounds)\n", what,
           s->median * 1e3, s->least * 1e3, s->most * 1e3, o->steps, o->warmup);
}

static void print_rates(const gt_work *w, double seconds) {
    const hy_device_facts *facts = &w->trainer->engine->device.backend->facts;
    char rate[32];
    double flops = w->summary.flops_per_token * (double)w->options.tokens / seconds;
    printf("  %s tokens/s, %.1f model TFLOP/s", grouped((double)w->options.tokens / seconds, rate),
           flops * 1e-12);
    if (facts->peak_flops > 0) {
        printf(": MFU %.1f %% of the nominal %.0f", 100 * flops / facts->peak_flops,
               facts->peak_flops * 1e-12);
    }
    if (facts->matmul_flops > 0) {
        printf(", %.1f %% of the measured GEMM rate %.1f", 100 * flops / facts->matmul_flops,
               facts->matmul_flops * 1e-12);
    }
    printf("\n");
}

static void print_memory(const gt_work *w) {
    hy_summary now;
    hy_trainer_summary(w->trainer, &now);
    const hy_phase_summary *full = &now.phases[HY_FULL], *warmup = &now.phases[HY_WARMUP];
    const double gib = 0x1p-30;
    uint64_t peak = full->vram_peak_bytes > warmup->vram_peak_bytes ? full->vram_peak_bytes
                                                                    : warmup->vram_peak_bytes;
    printf("  memory: planned %.2f GiB, peak %.2f GiB, in use on the card %.2f GiB\n",
           (double)full->vram_planned_bytes * gib, (double)peak * gib,
           (double)gt_card_bytes() * gib);
    uint64_t pinned = w->trainer->engine->state->ledger.peak_in[HY_PINNED];
    if (pinned) printf("  pinned on the host: %.2f GiB\n", (double)pinned * gib);
}

static void print_waiting(const gt_work *w) {
    if (w->bytes_moved == 0) return;
    printf("  copies per step: %.2f GB, compute waited %.1f ms for them: %.1f %%\n",
           (double)w->bytes_moved * 1e-9, w->waited * 1e3, 100 * w->waited / w->seconds);
}

static const char *verdict(const row *r, double value) {
    bool is_less_better = r->measure == FORWARD_OVER_STEP;
    if (is_less_better ? value <= r->goal : value >= r->goal) return "goal reached";
    return (is_less_better ? value <= r->bar : value >= r->bar) ? "bar reached" : "BELOW THE BAR";
}

static void print_verdict(const bench *b, const row *r, double value) {
    char ours[32], theirs[32], bar[32], goal[32];
    if (b->is_changed) {
        printf("  not a row of the table, because its settings were changed\n");
        return;
    }
    for (int i = 0; i < 3 && r->peers[i].who; i++) {
        printf("  compared with %s: %s to %s tokens/s, ratio %.3f\n", r->peers[i].who,
               grouped(value, ours), grouped(r->peers[i].tokens_per_second, theirs),
               value / r->peers[i].tokens_per_second);
    }
    if (r->measure == TOKENS_PER_SECOND) {
        printf("  bar %s, goal %s: %s\n", grouped(r->bar, bar), grouped(r->goal, goal),
               verdict(r, value));
    } else {
        printf("  %.3f; bar %.2f, goal %.2f: %s\n", value, r->bar, r->goal, verdict(r, value));
    }
}

/* What the planner chose, if it had a choice. */
static void print_plan(const gt_work *w) {
    char rate[32];
    hy_plan_facts plan;
    hy_trainer_plan_facts(w->trainer, &plan);
    if (!w->options.settings[0]) return;
    for (int i = 0; i < plan.reason_count; i++) printf("    %s\n", plan.reasons[i]);
    printf("  predicted: %s tokens/s\n", grouped(plan.tokens_per_second, rate));
}

/* One line of numbers for bench/planned_speed.sh: tokens per second and the step, planned and
 * measured. */
static void print_estimate(const gt_work *w, double seconds) {
    const hy_plan_cost *c = &w->trainer->engine->plan->cost;
    double measured = (double)w->options.tokens / seconds;
    hy_plan_facts facts;
    hy_trainer_plan_facts(w->trainer, &facts);
    printf("  estimate: planned %.0f measured %.0f ratio %.3f bound %s step %.2f of %.2f ms: "
           "computing %.2f wait %.2f (measured %.2f) bus %.2f\n",
           facts.tokens_per_second, measured, facts.tokens_per_second / measured, facts.bound,
           1e3 * c->seconds, 1e3 * seconds, 1e3 * c->compute, 1e3 * c->wait, 1e3 * w->waited,
           1e3 * c->bus);
}

static void print_opening(bench *b, const row *r, const gt_work *w) {
    const gt_options *o = &w->options;
    if (!b->has_heading) gpu_heading(b->argc, b->argv, &w->trainer->engine->device.backend->facts);
    b->has_heading = true;
    printf("row %c: %s\n", r->name, r->title);
    printf(
        "  %s, %lld parameters, %s, recompute %s, %lld x %lld tokens x %lld micro-batches; ready "
        "after %.1f s\n",
        o->model, (long long)w->summary.parameters, o->precision,
        hy_choice_name("recompute", w->trainer->engine->plan->choice.recompute),
        (long long)w->trainer->engine->plan->choice.batch, (long long)o->seq,
        (long long)w->trainer->engine->plan->choice.accum, w->seconds_to_open);
    for (int i = 0; i < 2; i++) {
        if (o->settings[i]) printf("  %s\n", o->settings[i]);
    }
    print_plan(w);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static hy_status measure_work(bench *b, const row *r, gt_work *w) {
    gt_seconds step, forward;
    const hy_device_facts *facts = &w->trainer->engine->device.backend->facts;
    HY_TRY(gt_time_steps(w, &step));
    print_seconds("optimizer step", &w->options, &step);
    print_rates(w, step.median);
    print_memory(w);
    print_waiting(w);
    if (gpu_flag(b->argc, b->argv, "--estimate")) print_estimate(w, step.median);
    double rate = (double)w->options.tokens / step.median;
    if (r->measure == TOKENS_PER_SECOND) print_verdict(b, r, rate);
    if (r->measure == SHARE_OF_GEMM && facts->matmul_flops > 0) {
        print_verdict(b, r, rate * w->summary.flops_per_token / facts->matmul_flops);
    }
    if (r->measure == FORWARD_OVER_STEP) {
        HY_TRY(gt_time_forward(w, &forward));
        print_seconds("forward only", &w->options, &forward);
        print_verdict(b, r, forward.median / step.median);
    }
    return gpu_flag(b->argc, b->argv, "--breakdown") ? gt_breakdown(w, step.median) : HY_OK;
}

static hy_status measure_row(bench *b, const row *r) {
    gt_work work;
    gt_options options = options_of(b, r);
    hy_status status = gt_work_open(&work, &options);
    if (status == HY_OK) {
        print_opening(b, r, &work);
        status = measure_work(b, r, &work);
    }
    gt_work_close(&work);
    fflush(stdout);
    return status;
}

int main(int argc, char **argv) {
    bench b = {.argc = argc, .argv = argv};
    const char *wanted = option(&b, "--row", "a");
    bool is_known = strcmp(wanted, "all") == 0;
    if (gpu_is_absent("gpu_throughput", option(&b, "--device", "cuda"))) return 0;
    for (size_t i = 0; i < ROWS; i++) {
        bool is_wanted =
            strcmp(wanted, "all") == 0 ? !rows[i].settings : strchr(wanted, rows[i].name) != NULL;
        if (!is_wanted) continue; /* all: the rows for a whole card */
        is_known = true;
        if (measure_row(&b, &rows[i]) != HY_OK) {
            fprintf(stderr, "gpu_throughput: row %c: %s\n", rows[i].name, hy_error_message());
            return 1;
        }
    }
    if (!is_known)
        fprintf(stderr, "gpu_throughput: row \"%s\"; accepted: a to g and all\n", wanted);
    return is_known ? 0 : 2;
}
