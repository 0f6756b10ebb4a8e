/* closing.c: the tables after a run.
 *
 * All figures come from hy_summary; phases that never ran are left out. Two phases with the
 * same memory table share one. */
#include "cli/closing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/configure.h"
#include "cli/figures.h"
#include "cli/safe_text.h"
#include "cli/table.h"

/* ---- phases ---------------------------------------------------------------------------------- */

static double phase_speed(const hy_summary *summary, hy_phase phase) {
    const hy_phase_summary *it = &summary->phases[phase];
    if (phase == HY_PREDICT || !(it->seconds > 0)) return NAN; /* predicting trains on no tokens */
    return (double)it->steps * (double)summary->tokens_per_step / it->seconds;
}

/* Against what the card promises, and against what it was seen to do. */
static void show_utilisation(FILE *out, const hy_summary *summary) {
    if (summary->mfu > 0)
        fprintf(out, "  model FLOP utilisation %.1f %% of the card's %.0f TFLOP/s (data sheet)\n",
                100 * summary->mfu, 1e-12 * summary->peak_flops);
    if (summary->sol > 0)
        fprintf(out,
                "  speed of light %.1f %% of the %.0f TFLOP/s of a product timed at the start\n",
                100 * summary->sol, 1e-12 * summary->matmul_flops);
}

void hy_cli_closing_phases(const hy_cli_terminal *terminal, const hy_summary *summary) {
    hy_cli_table table;
    hy_cli_table_begin(&table, "lrrrrrr");
    hy_cli_table_row(&table, "phase", "steps", "time", "tokens/s", "planned", "peak", "waited",
                     NULL);
    for (int p = 0; p < HY_PHASE_COUNT; p++) {
        const hy_phase_summary *phase = &summary->phases[p];
        if (phase->steps == 0) continue;
        hy_cli_table_row(&table, hy_phase_name((hy_phase)p), hy_cli_count(phase->steps).text,
                         hy_cli_duration(phase->seconds).text,
                         hy_cli_short_count(phase_speed(summary, (hy_phase)p)).text,
                         hy_cli_bytes(phase->vram_planned_bytes).text,
                         hy_cli_bytes(phase->vram_peak_bytes).text,
                         hy_cli_duration(phase->wait_seconds).text, NULL);
    }
    hy_cli_table_row(&table, "all", hy_cli_count(summary->steps).text,
                     hy_cli_duration(summary->seconds).text,
                     hy_cli_short_count(summary->tokens_per_second).text, NULL);
    fputc('\n', terminal->out);
    hy_cli_heading(terminal, "phases");
    hy_cli_table_print(&table, terminal, true);
    show_utilisation(terminal->out, summary);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool is_empty_cell(const hy_memory_cell *cell) {
    return cell->planned_bytes == 0 && cell->measured_bytes == 0;
}

static bool has_same_memory(const hy_phase_summary *a, const hy_phase_summary *b) {
    for (int c = 0; c < HY_CLASS_COUNT; c++) {
        const hy_memory_cell *x = &a->memory[c], *y = &b->memory[c];
        if (is_empty_cell(x) && is_empty_cell(y)) continue;
        if (x->place != y->place || x->dtype != y->dtype || x->planned_bytes != y->planned_bytes ||
            x->measured_bytes != y->measured_bytes)
            return false;
    }
    return true;
}

/* Which phases a table shows: those that ran, or all of a plan. */
typedef struct memory_view {
    const hy_summary *summary;
    bool is_plan;
} memory_view;

static bool is_shown(const memory_view *view, int phase) {
    return view->is_plan || view->summary->phases[phase].steps > 0;
}

/* The first phase shown with the same table as this one; itself when it is the first. */
static int memory_shown_by(const memory_view *view, int phase) {
    const hy_phase_summary *phases = view->summary->phases;
    for (int p = 0; p < phase; p++)
        if (is_shown(view, p) && has_same_memory(&phases[p], &phases[phase])) return p;
    return phase;
}

static void name_sharing_phases(const memory_view *view, int phase, char *names, size_t size) {
    snprintf(names, size, "%s", hy_phase_name((hy_phase)phase));
    for (int p = phase + 1; p < HY_PHASE_COUNT; p++) {
        size_t length = strlen(names);
        if (is_shown(view, p) && memory_shown_by(view, p) == phase)
            snprintf(names + length, size - length, ", %s", hy_phase_name((hy_phase)p));
    }
}

static void add_memory_rows(hy_cli_table *table, const memory_view *view, int phase) {
    char names[64];
    const char *label = names;
    name_sharing_phases(view, phase, names, sizeof names);
    for (int c = 0; c < HY_CLASS_COUNT; c++) {
        const hy_memory_cell *cell = &view->summary->phases[phase].memory[c];
        if (is_empty_cell(cell)) continue;
        hy_cli_table_row(table, label, hy_class_name((hy_class)c), hy_place_name(cell->place),
                         hy_dtype_name(cell->dtype), hy_cli_bytes(cell->planned_bytes).text,
                         view->is_plan ? NULL : hy_cli_bytes(cell->measured_bytes).text, NULL);
        label = "";
    }
    if (!view->is_plan) return;
    uint64_t device = view->summary->phases[phase].vram_planned_bytes;
    hy_cli_table_row(table, "", "in all", "device", "", hy_cli_bytes(device).text, NULL);
}

static void show_memory(const hy_cli_terminal *terminal, const memory_view *view) {
    hy_cli_table table;
    hy_cli_table_begin(&table, view->is_plan ? "llllr" : "llllrr");
    hy_cli_table_row(&table, "phase", "class", "place", "type", "planned",
                     view->is_plan ? NULL : "measured", NULL);
    for (int p = 0; p < HY_PHASE_COUNT; p++)
        if (is_shown(view, p) && memory_shown_by(view, p) == p) add_memory_rows(&table, view, p);
    if (table.rows == 1) return;
    fputc('\n', terminal->out);
    hy_cli_heading(terminal, "memory");
    hy_cli_table_print(&table, terminal, true);
}

void hy_cli_closing_memory(const hy_cli_terminal *terminal, const hy_summary *summary) {
    show_memory(terminal, &(memory_view){summary, false});
}

void hy_cli_planned_memory(const hy_cli_terminal *terminal, const hy_summary *summary) {
    show_memory(terminal, &(memory_view){summary, true});
}

/* ---- prediction -------------------------------------------------------------------------------- */

void hy_cli_closing_prediction(const hy_cli_terminal *terminal, const hy_summary *summary) {
    FILE *out = terminal->out;
    if (strcmp(summary->predictor, "none") == 0) return;
    fputc('\n', out);
    hy_cli_heading(terminal, "prediction");
    fprintf(out,
            "  %s: %lld moves kept, %lld rejected; they stand for %lld predicted steps beside %lld "
            "true ones\n",
            summary->predictor, (long long)summary->moves, (long long)summary->rejected_moves,
            (long long)summary->predicted_steps, (long long)summary->steps);
    fprintf(out, "  compute spent %.1f of %lld full steps, guard passes and forks included\n",
            summary->spent, (long long)summary->steps_total);
    fprintf(out, "  confidence that it pays %.2f, from %s", summary->confidence,
            summary->forks ? "" : "the prior alone: no fork was run");
    if (summary->forks) {
        fprintf(out, "%lld paired forks: %+.4f nats, %+.1f true steps", (long long)summary->forks,
                summary->fork_gain, summary->fork_gain_steps);
    }
    fputc('\n', out);
    if (summary->moves == 0) fprintf(out, "  no move was made: %s\n", summary->why_not);
}

/* ---- losses ---------------------------------------------------------------------------------- */

static void add_loss(hy_cli_table *table, const char *what, double nats) {
    if (!isnan(nats)) hy_cli_table_row(table, what, hy_cli_loss(nats).text, NULL);
}

void hy_cli_closing_losses(const hy_cli_terminal *terminal, const hy_summary *summary) {
    hy_cli_table table;
    hy_cli_table_begin(&table, "lr");
    add_loss(&table, "training, last steps", summary->final_loss);
    if (summary->knows_entropy) {
        add_loss(&table, "true entropy of the source", summary->source_entropy);
        add_loss(&table, "the source itself on the held-out text", summary->val_optimum);
        add_loss(&table, "5-gram counted on the same bytes", summary->ngram_loss);
    }
    add_loss(&table, summary->knows_entropy ? "this model on the held-out text" : "held-out",
             summary->val_loss);
    if (summary->knows_entropy) {
        add_loss(&table, "above the true entropy", summary->val_loss - summary->source_entropy);
        add_loss(&table, "above the optimum on this text",
                 summary->val_loss - summary->val_optimum);
        add_loss(&table, "better than the 5-gram", summary->ngram_loss - summary->val_loss);
    }
    if (table.rows == 0) return;
    fputc('\n', terminal->out);
    hy_cli_heading(terminal,
                   summary->knows_entropy ? "loss, nats per byte" : "loss, nats per token");
    hy_cli_table_print(&table, terminal, false);
}

/* ---- sample ---------------------------------------------------------------------------------- */

void hy_cli_closing_sample(const hy_cli_terminal *terminal, const hy_config *config,
                           hy_trainer *trainer) {
    hy_sample_options options = {
        .prompt = hy_cli_value(config, "prompt"),
        .tokens = (int32_t)strtol(hy_cli_value(config, "sample_tokens"), NULL, 10),
        .temperature = strtod(hy_cli_value(config, "temperature"), NULL),
        .top_k = (int32_t)strtol(hy_cli_value(config, "top_k"), NULL, 10),
        .seed = strtoull(hy_cli_value(config, "seed"), NULL, 10),
    };
    char *text = NULL;
    size_t size = 0;
    if (options.tokens <= 0) return;
    hy_status status = hy_trainer_sample(trainer, &options, &text, &size);
    if (status != HY_OK) { /* the run is done and saved: a sample is no reason to fail it */
        hy_cli_warning("there is no sample: %s", hy_error_message());
        return;
    }
    fputc('\n', terminal->out);
    hy_cli_heading(terminal, "sample");
    if (options.prompt[0] != '\0') {
        fputs(hy_cli_colour_code(terminal, HY_CLI_DIM), terminal->out);
        hy_cli_write_safely(terminal->out, options.prompt, strlen(options.prompt),
                            terminal->is_utf8);
        fputs(hy_cli_colour_code(terminal, HY_CLI_PLAIN), terminal->out);
    }
    hy_cli_write_safely(terminal->out, text, size, terminal->is_utf8);
    if (size == 0 || text[size - 1] != '\n') fputc('\n', terminal->out);
    hy_free(text);
}

/* ---- files and how to go on ------------------------------------------------------------------ */

void hy_cli_closing_files(const hy_cli_terminal *terminal, const hy_summary *summary,
                          const char *program, bool was_stopped) {
    FILE *out = terminal->out;
    bool is_saved = summary->out[0] != '\0';
    if (!was_stopped && !is_saved) return;
    fputc('\n', out);
    if (was_stopped)
        fprintf(out, "stopped after step %s of %s; %s%s\n", hy_cli_count(summary->steps).text,
                hy_cli_count(summary->steps_total).text,
                is_saved ? "everything so far is in " : "nothing was saved, as out is none",
                summary->out);
    else
        fprintf(out, "everything is in %s: metrics.jsonl, summary.json, checkpoints\n",
                summary->out);
    if (!is_saved) return;
    fprintf(out, was_stopped ? "go on with:  " : "train longer with:  ");
    hy_cli_write_resume_command(out, program, summary->out,
                                was_stopped ? 0 : 2 * summary->steps_total);
    fputc('\n', out);
}
