/* monitor.c: tables of what passes need, and of what saved memory. See monitor.h.
 *
 * Rows of the second are what is on and saves something; what is off goes into one line, and
 * only where it would save a part of the device's memory that is worth a thought. */
#include "cli/monitor.h"

#include <string.h>

#include "cli/figures.h"
#include "cli/table.h"

#define WORTH_TELLING 0.02 /* of what the device holds */
#define MOST_TOLD 4

hy_cli_colour hy_cli_memory_colour(hy_memory_status status) {
    if (status == HY_MEMORY_NORMAL) return HY_CLI_PLAIN;
    return status == HY_MEMORY_WARNING ? HY_CLI_YELLOW : HY_CLI_RED;
}

/* "1.5 GiB", "-1.5 GiB" for what it costs, "" for nothing. */
static hy_cli_figure in_signed_bytes(int64_t bytes) {
    hy_cli_figure out = {""}, figure = hy_cli_bytes((uint64_t)(bytes < 0 ? -bytes : bytes));
    if (bytes != 0)
        snprintf(out.text, sizeof out.text, "%s%.30s", bytes < 0 ? "-" : "", figure.text);
    return out;
}

/* The time of an update on gather is all it saves; elsewhere time is the price, and --plan tells
 * it. */
static bool saves_time(const hy_saving *it) { return it->device_bytes == 0 && it->seconds > 0; }

static const char *when(const hy_saving *it) {
    if (saves_time(it)) return "every step";
    return it->phase == HY_PHASE_COUNT ? "always" : hy_phase_name(it->phase);
}

static void add_row(hy_cli_table *table, const hy_saving *it) {
    hy_cli_figure device = in_signed_bytes(it->device_bytes),
                  host = in_signed_bytes(it->host_bytes);
    if (!it->is_on || (it->device_bytes <= 0 && it->host_bytes <= 0 && !saves_time(it))) return;
    if (saves_time(it)) device = hy_cli_duration(it->seconds);
    hy_cli_table_row(table, it->name, it->now, when(it), device.text, host.text,
                     it->is_measured ? "measured" : "planned", NULL);
}

static void tell_what_else(FILE *out, const hy_savings *savings, uint64_t device) {
    int told = 0;
    for (int i = 0; i < savings->count && told < MOST_TOLD; i++) {
        const hy_saving *it = &savings->list[i];
        bool is_worth_it = (double)it->device_bytes >= WORTH_TELLING * (double)device;
        if (it->is_on || !is_worth_it) continue;
        fprintf(out, "%s%s = %s %s", told ? ", " : "  would save more: ", it->key, it->other,
                hy_cli_bytes((uint64_t)it->device_bytes).text);
        told++;
    }
    if (told) fputc('\n', out);
}

void hy_cli_closing_savings(const hy_cli_terminal *terminal, const hy_trainer *trainer) {
    hy_savings savings;
    hy_plan_facts facts;
    hy_cli_table table;
    if (hy_trainer_savings(trainer, &savings) != HY_OK) return; /* the run itself is done */
    hy_trainer_plan_facts(trainer, &facts);
    hy_cli_table_begin(&table, "lllrrl");
    hy_cli_table_row(&table, "what", "now", "when", "on device", "on host", "", NULL);
    for (int i = 0; i < savings.count; i++) add_row(&table, &savings.list[i]);
    if (table.rows == 1) return;
    fputc('\n', terminal->out);
    hy_cli_heading(terminal, "memory saved");
    hy_cli_table_print(&table, terminal, true);
    tell_what_else(terminal->out, &savings, facts.vram_bytes);
}

void hy_cli_planned_activations(const hy_cli_terminal *terminal, const hy_trainer *trainer) {
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
