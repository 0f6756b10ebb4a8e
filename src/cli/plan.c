/* plan.c: the plan of one run: the placement table, speed, time, disk, and why. See plan.h. */
#include "cli/plan.h"

#include <stdlib.h>
#include <string.h>

#include "cli/closing.h"
#include "cli/configure.h"
#include "cli/figures.h"
#include "cli/monitor.h"
#include "cli/opening.h"

#define SECONDS_PER_DAY 86400.0

bool hy_cli_names_model(const hy_config *config) {
    const char *origin = NULL;
    if (hy_config_get(config, "model", NULL, &origin) != HY_OK) return true;
    return strcmp(origin, "default") != 0;
}

/* ---- sentences --------------------------------------------------------------------------------- */

static void show_sentences(const hy_cli_terminal *terminal, const char *title,
                           const char list[][HY_PLAN_TEXT], int32_t count) {
    if (count == 0) return;
    fputc('\n', terminal->out);
    hy_cli_heading(terminal, title);
    for (int32_t i = 0; i < count; i++) fprintf(terminal->out, "  %s\n", list[i]);
}

static void show_speed(FILE *out, const hy_summary *summary, const hy_plan_facts *facts) {
    if (!(facts->tokens_per_second > 0)) return;
    fprintf(out, "predicted: %s tokens/s, %s a step",
            hy_cli_count((int64_t)facts->tokens_per_second).text,
            hy_cli_duration(facts->step_seconds).text);
    if (facts->bytes_up + facts->bytes_down > 0)
        fprintf(out, ", %.1f %% of it waiting for copies (%s up, %s down)",
                100 * facts->wait_seconds / facts->step_seconds, hy_cli_bytes(facts->bytes_up).text,
                hy_cli_bytes(facts->bytes_down).text);
    fprintf(out, "\nthe run: %s steps in about %s\n", hy_cli_count(summary->steps_total).text,
            hy_cli_duration(facts->step_seconds * (double)summary->steps_total).text);
}

/* Checkpoints as often as they are asked for, and state that lives on disk. */
static void show_disk(FILE *out, const hy_config *config, const hy_summary *summary,
                      const hy_plan_facts *facts) {
    double steps = (double)summary->steps_total;
    double every = strtod(hy_cli_value(config, "save_every"), NULL);
    double saves = every > 0 ? steps / every : 1;
    double days = facts->step_seconds * steps / SECONDS_PER_DAY;
    double written =
        saves * (double)summary->checkpoint_bytes + steps * (double)facts->disk_written;
    fprintf(out, "a checkpoint has %s", hy_cli_bytes(summary->checkpoint_bytes).text);
    if (facts->step_seconds > 0)
        fprintf(out, "; %s are written to disk %s",
                hy_cli_bytes((uint64_t)(days > 1 ? written / days : written)).text,
                days > 1 ? "a day" : "in all");
    fputc('\n', out);
}

static void show_plan(const hy_cli_terminal *terminal, const hy_config *config,
                      const hy_trainer *trainer) {
    FILE *out = terminal->out;
    hy_summary summary;
    hy_plan_facts facts;
    hy_trainer_summary(trainer, &summary);
    hy_trainer_plan_facts(trainer, &facts);
    hy_cli_opening(terminal, &summary);
    hy_cli_planned_memory(terminal, &summary);
    hy_cli_planned_activations(terminal, trainer);
    show_sentences(terminal, "why", facts.reasons, facts.reason_count);
    fprintf(out, "\ntaken before step 0: %s on the device, %s pinned on the host",
            hy_cli_bytes(facts.vram_bytes).text, hy_cli_bytes(facts.host_pinned_bytes).text);
    if (facts.disk_bytes > 0) fprintf(out, ", %s on disk", hy_cli_bytes(facts.disk_bytes).text);
    fputc('\n', out);
    if (facts.host_fork_bytes > 0) {
        fprintf(out, "paired forks take %s more of host memory, where it has room\n",
                hy_cli_bytes(facts.host_fork_bytes).text);
    }
    fprintf(out, "data read ahead takes %s, pinned", hy_cli_bytes(facts.data_host_bytes).text);
    if (facts.data_disk_bytes > 0) {
        fprintf(out, "; making tokens of it %s of host memory, and %s in a temporary file",
                hy_cli_bytes(facts.data_buffer_bytes).text,
                hy_cli_bytes(facts.data_disk_bytes).text);
    }
    fputc('\n', out);
    show_speed(out, &summary, &facts);
    show_disk(out, config, &summary, &facts);
    fprintf(out, "%s%s\n", facts.fits ? "it fits" : "it does not fit: ", facts.problem);
    if (!facts.fits)
        show_sentences(terminal, "it would fit with", facts.changes, facts.change_count);
}

static hy_status print_json(const hy_cli_terminal *terminal, const hy_trainer *trainer) {
    char *text;
    hy_status status = hy_trainer_plan_json(trainer, &text);
    if (status != HY_OK) return status;
    fputs(text, terminal->out);
    hy_free(text);
    return HY_OK;
}

hy_status hy_cli_plan(const hy_cli_terminal *terminal, const hy_config *config, bool wants_json) {
    hy_trainer *trainer = NULL;
    hy_status status = hy_trainer_plan(config, NULL, &trainer);
    if (status == HY_OK && wants_json) {
        status = print_json(terminal, trainer);
    } else if (status == HY_OK) {
        show_plan(terminal, config, trainer);
    }
    hy_trainer_destroy(trainer);
    return status;
}
