/* plan.c: prints the plan of one run: placement, speed, time, disk and reasons. See inspect.h.
 *
 * The library makes the plan without starting the run; this file only prints its figures. With
 * several ranks, the plan is that of one rank. */
#include "cli/inspect.h"

#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "cli/summary.h"
#include "cli/table.h"
#include "hybrid_tools.h"

#define SECONDS_PER_DAY 86400.0

bool hy_cli_is_set(const hy_config *config, const char *key) {
    return hy_config_origin(config, key) != HY_FROM_DEFAULT;
}

/* The memory of the passes of a micro-batch, for each choice of recomputation. */
static void planned_activations(const hy_cli_terminal *terminal, const hy_trainer *trainer,
                                const hy_plan_facts *facts, int64_t tokens_per_step) {
    hy_activation_estimate levels[HY_RECOMPUTE_LEVELS];
    hy_cli_table table;
    char title[96];
    int64_t ranks = facts->ranks > 1 ? facts->ranks : 1;
    int64_t tokens = tokens_per_step / facts->grad_accum_steps / ranks;
    if (hy_trainer_estimate_activations(trainer, 0, 0, levels) != HY_OK) return;
    hy_cli_table_begin(&table, "lrrrr");
    hy_cli_table_row(&table, "recompute", "activations", "workspace", "if pinned: device", "host",
                     NULL);
    for (int i = 0; i < HY_RECOMPUTE_LEVELS; i++) {
        const hy_activation_estimate *it = &levels[i];
        hy_cli_table_row(&table, it->recompute, hy_cli_bytes(it->activations).text,
                         hy_cli_bytes(it->workspace).text, hy_cli_bytes(it->offload_device).text,
                         hy_cli_bytes(it->offloaded).text, NULL);
    }
    fputc('\n', terminal->out);
    snprintf(title, sizeof title,
             "memory for forward and backward in Full, micro-batches of %lld x %lld tokens",
             (long long)facts->batch_size, (long long)(tokens / facts->batch_size));
    hy_cli_heading(terminal, title);
    hy_cli_table_print(&table, terminal, true);
}

/* ---- sentences ------------------------------------------------------------------------------- */

static void show_sentences(const hy_cli_terminal *terminal, const char *title,
                           const char list[][HY_PLAN_TEXT], int32_t count) {
    if (count == 0) return;
    hy_cli_section(terminal, title);
    for (int32_t i = 0; i < count; i++) hy_cli_printf(terminal->out, "  %s\n", list[i]);
}

/* Changes with which the run would fit, the fastest first, with their speed and memory. */
static void show_changes(const hy_cli_terminal *terminal, const hy_plan_facts *facts) {
    if (facts->change_count == 0) return;
    hy_cli_section(terminal, "it would fit with");
    for (int32_t i = 0; i < facts->change_count; i++) {
        const hy_plan_change *cost = &facts->change_costs[i];
        hy_cli_printf(terminal->out, "  %s", facts->changes[i]);
        if (strncmp(facts->changes[i], "--", 2) == 0 && cost->tokens_per_second > 0) {
            fprintf(terminal->out, ": %s tokens/s, %s of device and %s of host memory",
                    hy_cli_count((int64_t)cost->tokens_per_second).text,
                    hy_cli_bytes(cost->vram_bytes).text,
                    hy_cli_bytes(cost->host_pinned_bytes).text);
            if (cost->disk_bytes > 0)
                fprintf(terminal->out, ", %s on disk", hy_cli_bytes(cost->disk_bytes).text);
        }
        fputc('\n', terminal->out);
    }
}

/* The traffic between ranks; the rest of a plan is about one of them. */
static void show_ranks(FILE *out, const hy_plan_facts *facts) {
    if (facts->ranks < 2) return;
    fprintf(out, "plan of one of %d ranks; zero_stage %d, link %s\n", facts->ranks,
            facts->zero_stage, facts->link);
    fprintf(out, "a rank sends %s per step: %s of gradients, %s of weights\n",
            hy_cli_bytes(facts->link_bytes).text, hy_cli_bytes(facts->link_grads).text,
            hy_cli_bytes(facts->link_weights).text);
    if (facts->step_seconds <= 0) return;
    fprintf(out, "time per step: compute %s, bus %s, link %s, in parallel; limited by %s\n",
            hy_cli_duration(facts->compute_seconds).text, hy_cli_duration(facts->bus_seconds).text,
            hy_cli_duration(facts->link_seconds).text, facts->bound);
}

static void show_allocations(FILE *out, const hy_plan_facts *facts) {
    fprintf(out, "\nallocated before the first step: %s on the device, %s of pinned host memory",
            hy_cli_bytes(facts->vram_bytes - facts->caller_bytes).text,
            hy_cli_bytes(facts->host_pinned_bytes).text);
    if (facts->disk_bytes > 0) fprintf(out, ", %s on disk", hy_cli_bytes(facts->disk_bytes).text);
    fputc('\n', out);
    if (facts->host_fork_bytes > 0)
        fprintf(out, "paired tests use %s more of host memory if it is free\n",
                hy_cli_bytes(facts->host_fork_bytes).text);
    if (facts->data_host_bytes == 0) return; /* a custom model reads its own data */
    fprintf(out, "data read ahead: %s, pinned", hy_cli_bytes(facts->data_host_bytes).text);
    if (facts->data_disk_bytes > 0)
        fprintf(out, "; tokenizing it needs %s of host memory and a temporary file of %s",
                hy_cli_bytes(facts->data_buffer_bytes).text,
                hy_cli_bytes(facts->data_disk_bytes).text);
    fputc('\n', out);
}

/* Seconds of a step, with the answers that it learns from. */
static double step_time(const hy_plan_facts *facts) {
    return facts->step_seconds + facts->rollout_seconds;
}

static void show_speed(FILE *out, const hy_plan_facts *facts, int64_t steps) {
    if (facts->tokens_per_second <= 0) return;
    bool has_ranks = facts->ranks > 1;
    fprintf(out, "planned speed: %s tokens/s%s, %s per step",
            hy_cli_count((int64_t)facts->tokens_per_second).text,
            has_ranks ? " on all ranks together" : "", hy_cli_duration(facts->step_seconds).text);
    if (facts->bytes_up + facts->bytes_down > 0)
        fprintf(out, ", %.1f %% of it waiting for copies%s (%s up, %s down)",
                100 * facts->wait_seconds / facts->step_seconds, has_ranks ? " and ranks" : "",
                hy_cli_bytes(facts->bytes_up).text, hy_cli_bytes(facts->bytes_down).text);
    if (facts->rollout_seconds > 0)
        fprintf(out, "; answers take %s per step", hy_cli_duration(facts->rollout_seconds).text);
    fprintf(out, "\nlength of the run: %s steps in about %s\n", hy_cli_count(steps).text,
            hy_cli_duration(step_time(facts) * (double)steps).text);
}

/* Bytes written: checkpoints, and state that is kept on disk. */
static void show_saves(FILE *out, const hy_config *config, const hy_trainer *trainer,
                       const hy_plan_facts *facts, const hy_summary *summary) {
    double steps = (double)summary->steps_total;
    double every = strtod(hy_cli_value(config, "save_every"), NULL);
    double minutes = strtod(hy_cli_value(config, "save_minutes"), NULL);
    double saves = 1 + (every > 0 ? steps / every : 0) +
                   (minutes > 0 ? step_time(facts) * steps / 60 / minutes : 0);
    double days = step_time(facts) * steps / SECONDS_PER_DAY;
    double written =
        saves * (double)summary->checkpoint_bytes + steps * (double)facts->disk_written;
    hy_cli_checkpoint_size(out, config, summary);
    if (facts->step_seconds > 0)
        fprintf(out, "; written to disk: %s %s%s",
                hy_cli_bytes((uint64_t)(days > 1 ? written / days : written)).text,
                days > 1 ? "per day" : "in total",
                hy_cli_saves_best(config) ? ", and more at new lowest held-out losses" : "");
    fputs("\ncheckpoints are saved ", out);
    hy_cli_saves(out, config, trainer);
    if (facts->save_free == 0 || facts->save_free == UINT64_MAX) return;
    fprintf(out, "free on the disk of the run folder: %s", hy_cli_bytes(facts->save_free).text);
    if (facts->model_bytes > 0)
        fprintf(out, "; size of the model at the end: %s", hy_cli_bytes(facts->model_bytes).text);
    fputc('\n', out);
}

static void show_plan(const hy_cli_terminal *terminal, const hy_config *config,
                      const hy_trainer *trainer) {
    FILE *out = terminal->out;
    hy_summary summary;
    hy_plan_facts facts;
    hy_trainer_summary(trainer, &summary);
    hy_trainer_plan_facts(trainer, &facts);
    hy_cli_opening(terminal, config, trainer);
    hy_cli_show_memory(terminal, &summary, true);
    planned_activations(terminal, trainer, &facts, summary.tokens_per_step);
    show_sentences(terminal, "why", facts.reasons, facts.reason_count);
    show_allocations(out, &facts);
    show_ranks(out, &facts);
    show_speed(out, &facts, summary.steps_total);
    show_saves(out, config, trainer, &facts, &summary);
    hy_cli_printf(out, "%s%s\n", facts.fits ? "it fits" : "it does not fit: ", facts.problem);
    if (!facts.fits) show_changes(terminal, &facts);
}

static void on_warning(void *user, hy_message_level level, const char *text) {
    (void)user;
    if (level == HY_WARNING) hy_cli_warning("%s", text);
}

hy_status hy_cli_plan(const hy_cli_terminal *terminal, const hy_cli_options *options,
                      hy_config *config) {
    int32_t ranks = options->gpus > 0 ? options->gpus : options->ranks;
    hy_trainer *trainer = NULL;
    char *text = NULL;
    hy_status status;
    hy_observer observer = {.on_message = on_warning};
    if (options->action == HY_CLI_IS_PLAN_SHAPES)
        status = hy_cli_plan_shapes(config, options->topic, &trainer);
    else
        status = hy_cli_checked(
            ranks > 1 ? hy_trainer_plan_ranks(config, ranks, options->gpus > 0, &observer, &trainer)
                      : hy_trainer_plan(config, &observer, &trainer));
    if (status == HY_OK && options->wants_json)
        status = hy_cli_print(terminal->out, hy_trainer_plan_json(trainer, &text), &text);
    else if (status == HY_OK)
        show_plan(terminal, config, trainer);
    hy_trainer_destroy(trainer);
    return status;
}
