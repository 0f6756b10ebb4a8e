/* plan.c: the plan of one run: the placement table, speed, time, disk, and why. See inspect.h. */
#include "cli/inspect.h"

#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "cli/summary.h"
#include "cli/table.h"
#include "hybrid_tools.h"

#define SECONDS_PER_DAY 86400.0

bool hy_cli_names(const hy_config *config, const char *key) {
    const char *origin = NULL;
    if (hy_config_get(config, key, NULL, &origin) != HY_OK) return true;
    return strcmp(origin, "default") != 0;
}

/* Memory of a micro-batch's passes at each level of recomputation. */
static void planned_activations(const hy_cli_terminal *terminal, const hy_trainer *trainer) {
    hy_activation_estimate levels[HY_RECOMPUTE_LEVELS];
    hy_plan_facts facts;
    hy_summary summary;
    hy_cli_table table;
    char title[96];
    hy_trainer_plan_facts(trainer, &facts);
    hy_trainer_summary(trainer, &summary);
    int64_t ranks = facts.ranks > 1 ? facts.ranks : 1;
    int64_t tokens = summary.tokens_per_step / facts.grad_accum_steps / ranks;
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
    snprintf(title, sizeof title, "passes of a micro-batch, %lld x %lld tokens",
             (long long)facts.batch_size, (long long)(tokens / facts.batch_size));
    hy_cli_heading(terminal, title);
    hy_cli_table_print(&table, terminal, true);
}

/* ---- sentences --------------------------------------------------------------------------------- */

static void show_sentences(const hy_cli_terminal *terminal, const char *title,
                           const char list[][HY_PLAN_TEXT], int32_t count) {
    if (count == 0) return;
    hy_cli_section(terminal, title);
    for (int32_t i = 0; i < count; i++) hy_cli_printf(terminal->out, "  %s\n", list[i]);
}

/* All above is one rank's; this is what it has to do with the others. */
static void show_ranks(FILE *out, const hy_plan_facts *facts) {
    if (facts->ranks < 2) return;
    fprintf(out, "this is one of %d ranks; zero_stage %d, link %s\n", facts->ranks,
            facts->zero_stage, facts->link);
    fprintf(out, "a rank sends %s a step: %s of gradients, %s of weights\n",
            hy_cli_bytes(facts->link_bytes).text, hy_cli_bytes(facts->link_grads).text,
            hy_cli_bytes(facts->link_weights).text);
    if (facts->step_seconds <= 0) return;
    fprintf(out, "a step's compute takes %s, ", hy_cli_duration(facts->compute_seconds).text);
    fprintf(out, "bus %s, ", hy_cli_duration(facts->bus_seconds).text);
    fprintf(out, "link %s, beside each other: %s bounds it\n",
            hy_cli_duration(facts->link_seconds).text, facts->bound);
}

static void show_plan(const hy_cli_terminal *terminal, const hy_config *config,
                      const hy_trainer *trainer) {
    FILE *out = terminal->out;
    hy_summary summary;
    hy_plan_facts facts;
    hy_trainer_summary(trainer, &summary);
    hy_trainer_plan_facts(trainer, &facts);
    hy_cli_opening(terminal, config, trainer);
    hy_cli_planned_memory(terminal, &summary);
    planned_activations(terminal, trainer);
    show_sentences(terminal, "why", facts.reasons, facts.reason_count);
    fprintf(out, "\ntaken before step 0: %s on the device, %s pinned on the host",
            hy_cli_bytes(facts.vram_bytes).text, hy_cli_bytes(facts.host_pinned_bytes).text);
    if (facts.disk_bytes > 0) fprintf(out, ", %s on disk", hy_cli_bytes(facts.disk_bytes).text);
    fputc('\n', out);
    if (facts.host_fork_bytes > 0) {
        fprintf(out, "paired forks take %s more of host memory, where it has room\n",
                hy_cli_bytes(facts.host_fork_bytes).text);
    }
    bool is_read_ahead = facts.data_host_bytes > 0; /* not by a program of one's own */
    if (is_read_ahead) {
        fprintf(out, "data read ahead takes %s, pinned", hy_cli_bytes(facts.data_host_bytes).text);
    }
    if (facts.data_disk_bytes > 0) {
        fprintf(out, "; making tokens of it %s of host memory, and %s in a temporary file",
                hy_cli_bytes(facts.data_buffer_bytes).text,
                hy_cli_bytes(facts.data_disk_bytes).text);
    }
    if (is_read_ahead) fputc('\n', out);
    show_ranks(out, &facts);
    if (facts.tokens_per_second > 0) {
        fprintf(out, "predicted: %s tokens/s%s, %s a step",
                hy_cli_count((int64_t)facts.tokens_per_second).text,
                facts.ranks > 1 ? " of all ranks" : "", hy_cli_duration(facts.step_seconds).text);
        if (facts.bytes_up + facts.bytes_down > 0)
            fprintf(out, ", %.1f %% of it waiting for copies%s (%s up, %s down)",
                    100 * facts.wait_seconds / facts.step_seconds,
                    facts.ranks > 1 ? " and ranks" : "", hy_cli_bytes(facts.bytes_up).text,
                    hy_cli_bytes(facts.bytes_down).text);
        fprintf(out, "\nthe run: %s steps in about %s\n", hy_cli_count(summary.steps_total).text,
                hy_cli_duration(facts.step_seconds * (double)summary.steps_total).text);
    }
    /* Checkpoints as often as they are asked for, and state that lives on disk. */
    double steps = (double)summary.steps_total;
    double every = strtod(hy_cli_value(config, "save_every"), NULL);
    double minutes = strtod(hy_cli_value(config, "save_minutes"), NULL);
    double saves = 1 + (every > 0 ? steps / every : 0) +
                   (minutes > 0 ? facts.step_seconds * steps / 60 / minutes : 0);
    double days = facts.step_seconds * steps / SECONDS_PER_DAY;
    double written = saves * (double)summary.checkpoint_bytes + steps * (double)facts.disk_written;
    fprintf(out, "a checkpoint has %s", hy_cli_bytes(summary.checkpoint_bytes).text);
    if (facts.step_seconds > 0)
        fprintf(out, "; %s are written to disk %s",
                hy_cli_bytes((uint64_t)(days > 1 ? written / days : written)).text,
                days > 1 ? "a day" : "in all");
    fputs("\none is saved ", out);
    hy_cli_saves(out, config, trainer);
    if (facts.save_free > 0 && facts.save_free != UINT64_MAX) {
        fprintf(out, "the disk of the run's folder has %s free",
                hy_cli_bytes(facts.save_free).text);
        if (facts.model_bytes > 0)
            fprintf(out, "; the model at the end takes %s", hy_cli_bytes(facts.model_bytes).text);
        fputc('\n', out);
    }
    hy_cli_printf(out, "%s%s\n", facts.fits ? "it fits" : "it does not fit: ", facts.problem);
    if (!facts.fits)
        show_sentences(terminal, "it would fit with", facts.changes, facts.change_count);
}

hy_status hy_cli_show_plan(const hy_cli_terminal *terminal, const hy_config *config,
                           const hy_trainer *trainer, bool wants_json) {
    char *text = NULL;
    if (!wants_json) {
        show_plan(terminal, config, trainer);
        return HY_OK;
    }
    hy_status status = hy_trainer_plan_json(trainer, &text);
    hy_cli_print(terminal->out, status, text);
    return status;
}

hy_status hy_cli_plan(const hy_cli_terminal *terminal, const hy_cli_options *options,
                      const hy_config *config) {
    bool wants_json = options->wants_json, has_cards = options->gpus > 0;
    int32_t ranks = has_cards ? options->gpus : options->ranks;
    hy_trainer *trainer = NULL;
    hy_status status = ranks > 1 ? hy_trainer_plan_ranks(config, ranks, has_cards, NULL, &trainer)
                                 : hy_trainer_plan(config, NULL, &trainer);
    if (status == HY_OK) status = hy_cli_show_plan(terminal, config, trainer, wants_json);
    hy_trainer_destroy(trainer);
    return status;
}
