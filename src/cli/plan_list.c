/* plan_list.c: --plan without a model: what fits this machine, one line per built-in model. See plan.h.
 *
 * Every model is planned full-parameter with the configuration at hand. A card that is here is asked once
 * for its name and what it has free; then the models are planned by its data sheet, because opening it
 * for each of them would take seconds. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/configure.h"
#include "cli/figures.h"
#include "cli/models.h"
#include "cli/plan.h"
#include "cli/table.h"

/* ---- one model --------------------------------------------------------------------------------- */

/* Places of the state as the plan has them: "device", or the classes that are elsewhere. */
static void describe_places(const hy_summary *summary, char *out, size_t size) {
    static const hy_class classes[] = {HY_WEIGHTS, HY_MASTER, HY_GRADS, HY_OPTIM};
    size_t length = 0, count = 0, away = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        const hy_memory_cell *cell = &summary->phases[HY_FULL].memory[classes[i]];
        if (cell->planned_bytes == 0) continue;
        count++;
        if (cell->place == HY_DEVICE) continue;
        away++;
        length += (size_t)snprintf(out + length, length < size ? size - length : 0, "%s%s",
                                   length > 0 ? ", " : "", hy_class_name(classes[i]));
    }
    if (away == 0) snprintf(out, size, "on the device");
    if (away > 0 && away == count) snprintf(out, size, "on the host");
    if (away > 0 && away < count && length < size)
        snprintf(out + length, size - length, " on the host");
}

static void add_row(hy_cli_table *table, const hy_cli_model *model, const hy_summary *summary,
                    const hy_plan_facts *facts) {
    char state[HY_CLI_CELL_MAX];
    describe_places(summary, state, sizeof state);
    if (!facts->fits) {
        char with[HY_CLI_CELL_MAX];
        snprintf(with, sizeof with, "with %.58s", facts->changes[0]);
        hy_cli_table_row(table, model->name, hy_cli_short_count((double)model->parameters).text,
                         "no", "", "", "", facts->change_count > 0 ? with : "", NULL);
        return;
    }
    hy_cli_table_row(table, model->name, hy_cli_short_count((double)model->parameters).text, "yes",
                     hy_cli_count(facts->batch_size).text,
                     hy_cli_count((int64_t)facts->tokens_per_second).text,
                     hy_cli_bytes(facts->vram_bytes).text, state, NULL);
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

/* Whether the run would take a card that is here; says which and what it has free. */
static bool finds_card(const hy_config *config, hy_machine *machine) {
    const char *device = hy_cli_value(config, "device");
    if (strcmp(device, "cpu") == 0 || hy_cli_value(config, "card")[0] != '\0') return false;
    return hy_machine_probe(".", machine) == HY_OK && machine->has_cuda;
}

static hy_status set_card(hy_config *config, const char *name, uint64_t memory) {
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%" PRIu64, memory);
    hy_status status = hy_config_set(config, "card", name, HY_FROM_CALLER);
    return status != HY_OK ? status : hy_config_set(config, "max_gpu_mem", bytes, HY_FROM_CALLER);
}

/* The card that is here, by its data sheet. One that is not in the list of cards is opened for each
 * model. */
static hy_status stand_in(hy_config *config, const hy_cli_model *smallest) {
    hy_machine machine;
    hy_cli_table unused;
    uint64_t limit = strtoull(hy_cli_value(config, "max_gpu_mem"), NULL, 10);
    if (!finds_card(config, &machine)) return HY_OK;
    hy_status status = set_card(config, machine.gpu, limit > 0 ? limit : machine.vram_free);
    if (status != HY_OK) return status;
    hy_cli_table_begin(&unused, "lrlrrrl");
    if (plan_model(config, smallest, &unused) == HY_OK) return HY_OK;
    return set_card(config, "", limit);
}

hy_status hy_cli_plan_list(const hy_cli_terminal *terminal, hy_config *config) {
    hy_cli_table table;
    hy_cli_model models[HY_CLI_MODELS_MAX];
    size_t count = 0;
    hy_status status = hy_cli_models_by_size(models, &count);
    if (status == HY_OK && count > 0) status = stand_in(config, &models[0]);
    hy_cli_table_begin(&table, "lrlrrrl");
    hy_cli_table_row(&table, "model", "parameters", "fits", "micro-batch", "tokens/s", "device",
                     "state", NULL);
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        status = plan_model(config, &models[i], &table);
    }
    if (status != HY_OK) return status;
    hy_cli_heading(terminal, "what fits: full-parameter training with these settings");
    hy_cli_table_print(&table, terminal, true);
    fputs("  \"hybrid-train --plan --model NAME\" shows a plan and its reasons.\n", terminal->out);
    return HY_OK;
}
