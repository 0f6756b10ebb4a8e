/* plan.c: the plan of one run: the placement table, speed, time, disk, and why. See plan.h. */
#include "cli/inspect.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "cli/summary.h"
#include "cli/table.h"

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
    int64_t tokens = summary.tokens_per_step / facts.grad_accum_steps;
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
    if (facts.tokens_per_second > 0) {
        fprintf(out, "predicted: %s tokens/s, %s a step",
                hy_cli_count((int64_t)facts.tokens_per_second).text,
                hy_cli_duration(facts.step_seconds).text);
        if (facts.bytes_up + facts.bytes_down > 0)
            fprintf(out, ", %.1f %% of it waiting for copies (%s up, %s down)",
                    100 * facts.wait_seconds / facts.step_seconds,
                    hy_cli_bytes(facts.bytes_up).text, hy_cli_bytes(facts.bytes_down).text);
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

hy_status hy_cli_plan(const hy_cli_terminal *terminal, const hy_config *config, bool wants_json) {
    hy_trainer *trainer = NULL;
    hy_status status = hy_trainer_plan(config, NULL, &trainer);
    if (status == HY_OK) status = hy_cli_show_plan(terminal, config, trainer, wants_json);
    hy_trainer_destroy(trainer);
    return status;
}

/* ---- every model ----------------------------------------------------------------------------- */

/* Every model is planned full-parameter with the configuration at hand. A card that is here is asked once for
 * its name and what it has free; then the models are planned by its data sheet, because opening it for each
 * of them would take seconds. */

/* ---- one model --------------------------------------------------------------------------------- */

/* Places of the state as the plan has them: "on the device", or the classes that are elsewhere. */
static void describe_state(const hy_summary *summary, char state[HY_CLI_CELL_MAX]) {
    static const hy_class classes[] = {HY_WEIGHTS, HY_MASTER, HY_GRADS, HY_OPTIM};
    char away[HY_CLI_CELL_MAX - 16] = "";
    bool is_any_here = false;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        const hy_memory_cell *cell = &summary->phases[HY_FULL].memory[classes[i]];
        size_t length = strlen(away);
        if (cell->planned_bytes == 0) continue;
        if (cell->place == HY_DEVICE)
            is_any_here = true;
        else
            snprintf(away + length, sizeof away - length, "%s%s", length > 0 ? ", " : "",
                     hy_class_name(classes[i]));
    }
    if (away[0] == '\0')
        snprintf(state, HY_CLI_CELL_MAX, "on the device");
    else
        snprintf(state, HY_CLI_CELL_MAX, "%s%son the host", is_any_here ? away : "",
                 is_any_here ? " " : "");
}

/* Of weights that are updated, gradients and optimizer state: "bf16 / bf16 / 8bit". */
static void describe_types(const hy_summary *summary, char types[HY_CLI_CELL_MAX]) {
    const hy_memory_cell *cell = summary->phases[HY_FULL].memory;
    const hy_memory_cell *updated = &cell[HY_MASTER];
    if (updated->planned_bytes == 0) updated = &cell[HY_WEIGHTS];
    hy_dtype optim = cell[HY_OPTIM].dtype;
    snprintf(types, HY_CLI_CELL_MAX, "%s / %s / %s", hy_dtype_name(updated->dtype),
             hy_dtype_name(cell[HY_GRADS].dtype), optim == HY_U8 ? "8bit" : hy_dtype_name(optim));
}

static void add_row(hy_cli_table *table, const hy_cli_model *model, const hy_summary *summary,
                    const hy_plan_facts *facts) {
    char state[HY_CLI_CELL_MAX], types[HY_CLI_CELL_MAX], with[HY_CLI_CELL_MAX];
    hy_cli_figure parameters = hy_cli_short_count((double)model->parameters);
    bool predicts = summary->phases[HY_PREDICT].memory[HY_PREDICTOR].planned_bytes > 0;
    describe_state(summary, state);
    describe_types(summary, types);
    snprintf(with, sizeof with, "with %.58s", facts->changes[0]);
    if (facts->fits)
        hy_cli_table_row(table, model->name, parameters.text,
                         hy_cli_count((int64_t)facts->tokens_per_second).text,
                         hy_cli_bytes(facts->vram_bytes).text,
                         hy_cli_bytes(facts->host_pinned_bytes).text, types,
                         predicts ? "yes" : "aside", state, NULL);
    else
        hy_cli_table_row(table, model->name, parameters.text, "no", "", "", "", "",
                         facts->change_count > 0 ? with : "", NULL);
}

static hy_status plan_model(hy_config *config, const hy_cli_model *model, hy_cli_table *table) {
    hy_trainer *trainer = NULL;
    hy_summary summary;
    hy_plan_facts facts;
    hy_status status = hy_config_set(config, "model", model->name, HY_FROM_CALLER);
    if (status == HY_OK) status = hy_trainer_plan(config, NULL, &trainer);
    if (status != HY_OK) return status;
    hy_trainer_summary(trainer, &summary);
    hy_trainer_plan_facts(trainer, &facts);
    add_row(table, model, &summary, &facts);
    hy_trainer_destroy(trainer);
    return HY_OK;
}

/* ---- all of them ------------------------------------------------------------------------------- */

#define COLUMNS "lrrrrlll"

static hy_status set_card(hy_config *config, const char *name, uint64_t memory) {
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%" PRIu64, memory);
    hy_status status = hy_config_set(config, "card", name, HY_FROM_CALLER);
    return status != HY_OK ? status : hy_config_set(config, "max_gpu_mem", bytes, HY_FROM_CALLER);
}

/* The card that is here and would be taken, by its data sheet. One that is not in the list of cards is opened for each
 * model. */
static hy_status stand_in(hy_config *config, const hy_machine *machine,
                          const hy_cli_model *smallest) {
    hy_cli_table unused;
    uint64_t limit = strtoull(hy_cli_value(config, "max_gpu_mem"), NULL, 10);
    if (strcmp(hy_cli_value(config, "device"), "cpu") == 0 || hy_cli_value(config, "card")[0])
        return HY_OK;
    if (!machine->has_cuda) return HY_OK;
    hy_status status = set_card(config, machine->gpu, limit > 0 ? limit : machine->vram_free);
    if (status != HY_OK) return status;
    hy_cli_table_begin(&unused, COLUMNS);
    if (plan_model(config, smallest, &unused) == HY_OK) return HY_OK;
    return set_card(config, "", limit);
}

hy_status hy_cli_plan_list(const hy_cli_terminal *terminal, hy_config *config,
                           const hy_machine *machine) {
    hy_cli_table table;
    hy_cli_model models[HY_CLI_MODELS_MAX];
    size_t count = 0;
    hy_status status = hy_cli_models_by_size(models, &count);
    if (status == HY_OK && count > 0) status = stand_in(config, machine, &models[0]);
    hy_cli_table_begin(&table, COLUMNS);
    hy_cli_table_row(&table, "model", "parameters", "tokens/s", "device", "pinned",
                     "weights / grads / optim", "predicts", "state", NULL);
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        status = plan_model(config, &models[i], &table);
    }
    if (status != HY_OK) return status;
    char heading[128];
    snprintf(heading, sizeof heading, "what fits: full-parameter training, profile %s",
             hy_cli_value(config, "profile"));
    hy_cli_section(terminal, heading);
    hy_cli_table_print(&table, terminal, true);
    fputs(
        "  Each was planned. \"hybrid-train --plan --model NAME\" shows a plan and its reasons.\n",
        terminal->out);
    return HY_OK;
}
