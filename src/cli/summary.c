/* summary.c: describes a run before its first step, and its results at the end. See summary.h.
 *
 * All figures come from the trainer's summary and plan; nothing is measured here. Phases that did
 * not run and figures that are not known are left out. */
#include "cli/summary.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "hybrid.h"
#include "hybrid_report.h"
#include "hybrid_tools.h"

/* ---- command lines for the shell ------------------------------------------------------------- */

static void write_quoted(FILE *out, const char *word) {
    const char *plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+@%";
    if (*word != '\0' && word[strspn(word, plain)] == '\0') {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    while (*word != '\0') {
        size_t plain_bytes = strcspn(word, "'");
        hy_cli_write_safely(out, word, plain_bytes, true);
        word += plain_bytes;
        if (*word == '\0') break;
        fputs("'\\''", out);
        word++;
    }
    fputc('\'', out);
}

char *hy_cli_command_line(int argc, char *const *argv) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    for (int i = 0; i < argc; i++) {
        if (i > 0) fputc(' ', out);
        write_quoted(out, argv[i]);
    }
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}

/* ---- before the first step ------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void
print_field(const hy_cli_terminal *terminal, const char *what, const char *format, ...) {
    va_list arguments;
    fprintf(terminal->out, "%s%-8s%s  ", hy_cli_colour_code(terminal, HY_CLI_DIM), what,
            hy_cli_colour_code(terminal, HY_CLI_PLAIN));
    va_start(arguments, format);
    hy_cli_vprintf(terminal->out, format, arguments);
    va_end(arguments);
}

static bool is_true(const hy_config *config, const char *key) {
    return strcmp(hy_cli_value(config, key), "true") == 0;
}

bool hy_cli_saves_best(const hy_config *config) {
    bool has_held_out = strtod(hy_cli_value(config, "val_fraction"), NULL) > 0 ||
                        hy_cli_value(config, "val_data")[0] != '\0';
    return has_held_out && strcmp(hy_cli_value(config, "eval_every"), "0") != 0 &&
           (strtod(hy_cli_value(config, "save_every"), NULL) > 0 ||
            strtod(hy_cli_value(config, "save_minutes"), NULL) > 0 ||
            strtod(hy_cli_value(config, "early_stop"), NULL) > 0);
}

void hy_cli_saves(FILE *out, const hy_config *config, const hy_trainer *trainer) {
    hy_plan_facts facts;
    hy_summary summary;
    double steps = strtod(hy_cli_value(config, "save_every"), NULL);
    double minutes = strtod(hy_cli_value(config, "save_minutes"), NULL);
    hy_trainer_plan_facts(trainer, &facts);
    hy_trainer_summary(trainer, &summary);
    if (steps > 0) fprintf(out, "every %s steps, ", hy_cli_count((int64_t)steps).text);
    if (minutes > 0) fprintf(out, "every %g minutes, ", minutes);
    double rate =
        facts.save_seconds > 0 ? (double)summary.checkpoint_bytes / facts.save_seconds : 0;
    fprintf(out,
            "at the end and when stopped%s; each takes about %s if the disk writes %.1f GB/s\n",
            !hy_cli_saves_best(config) ? ""
            : strcmp(hy_cli_value(config, "early_stop"), "0") != 0
                ? ", and at each new lowest held-out loss"
                : ", and at new lowest held-out losses (at most 1 % of the time)",
            hy_cli_duration(facts.save_seconds).text, 1e-9 * rate);
}

/* "adapters rank 16, alpha 32, in all matrices of the blocks" "trained 43,646,976 of 8,234,382,336
 * parameters, lr up to 2e-4; the frozen blocks are in nf4" */
static void opening_trained(const hy_cli_terminal *terminal, const hy_config *config,
                            const hy_summary *summary) {
    if (summary->trained == summary->parameters) return;
    double rank = strtod(hy_cli_value(config, "lora_rank"), NULL);
    double alpha = strtod(hy_cli_value(config, "lora_alpha"), NULL);
    const char *targets = hy_cli_value(config, "lora_targets");
    const char *modules = hy_cli_value(config, "lora_modules");
    const char *stored = hy_cli_value(config, "frozen_dtype");
    bool is_own =
        strcmp(stored, "auto") != 0; /* otherwise frozen weights have the type of passes */
    if (is_true(config, "lora"))
        print_field(terminal, "adapters", "rank %g, alpha %g%s, in %s%s%s\n", rank,
                    alpha > 0 ? alpha : 2 * rank, is_true(config, "rslora") ? " (rsLoRA)" : "",
                    strcmp(targets, "all") == 0 ? "all matrices of the blocks" : targets,
                    strcmp(modules, "none") == 0 ? "" : "; also trained: ",
                    strcmp(modules, "none") == 0 ? "" : modules);
    print_field(terminal, "trained", "%s of %s parameters, lr up to %s%s%s\n",
                hy_cli_count(summary->trained).text, hy_cli_count(summary->parameters).text,
                hy_cli_value(config, "lr"), is_own ? "; the frozen blocks are in " : "",
                is_own ? stored : "");
}

/* A plan for another machine's card still uses the memory of this one. */
static void opening_host(const hy_cli_terminal *terminal, const hy_config *config,
                         const hy_trainer *trainer) {
    hy_plan_facts facts;
    hy_trainer_plan_facts(trainer, &facts);
    char text[HY_PLAN_TEXT];
    if (hy_cli_host_of_plan(config, facts.host_limit, text, sizeof text))
        print_field(terminal, "host", "%s\n", text);
}

bool hy_cli_host_of_plan(const hy_config *config, uint64_t limit, char *text, size_t size) {
    bool is_given = strcmp(hy_cli_value(config, "cpu_mem"), "0") != 0;
    if (hy_cli_value(config, "card")[0] == '\0' || is_given || limit == 0) return false;
    snprintf(text, size, "%s of memory, as on this machine; --cpu-mem sets another size",
             hy_cli_bytes(limit).text);
    return true;
}

/* Frozen weights that a checkpoint holds because no model folder does. */
void hy_cli_checkpoint_size(FILE *out, const hy_config *config, const hy_summary *summary) {
    fprintf(out, "checkpoint size: %s", hy_cli_bytes(summary->checkpoint_bytes).text);
    if (summary->checkpoint_frozen_bytes == 0) return;
    fprintf(out, ", %s of it frozen weights", hy_cli_bytes(summary->checkpoint_frozen_bytes).text);
    if (is_true(config, "lora")) fputs("; a run with --model FOLDER does not save them", out);
}

#define BYTE_VOCAB 512 /* a larger vocabulary is meant for the tokens of a tokenizer */

static void opening_model(const hy_cli_terminal *terminal, const hy_config *config,
                          const hy_summary *summary) {
    const char *family = hy_cli_value(config, "architecture");
    bool is_named = family[0] != '\0' && strcmp(family, "auto") != 0;
    print_field(terminal, "model", "%s, %s parameters%s%s\n", summary->model,
                hy_cli_count(summary->parameters).text, is_named ? ", " : "",
                is_named ? family : "");
    if (summary->vocab > BYTE_VOCAB && summary->is_drawn)
        print_field(terminal, "weights",
                    "drawn at random: %s is a shape without weights; --model FOLDER starts from "
                    "trained ones\n",
                    summary->model);
}

void hy_cli_opening(const hy_cli_terminal *terminal, const hy_config *config,
                    const hy_trainer *trainer) {
    FILE *out = terminal->out;
    hy_summary facts, *summary = &facts;
    hy_group_info group;
    hy_ranks_info ranks;
    hy_trainer_summary(trainer, summary);
    if (terminal->is_quiet) return;
    opening_model(terminal, config, summary);
    /* "groups    embed.*: decay 0, 1 parameter of 32,768 numbers" */
    for (int32_t i = 0; hy_trainer_group(trainer, i, &group); i++)
        print_field(terminal, i == 0 ? "groups" : "", "%s: %s, %s parameter%s of %s numbers\n",
                    group.names, group.changes, hy_cli_count(group.parameters).text,
                    group.parameters == 1 ? "" : "s", hy_cli_count(group.elements).text);
    opening_trained(terminal, config, summary);
    hy_dtype dtype = summary->phases[HY_FULL].memory[HY_ACTIVATIONS].dtype;
    bool is_usual = dtype == (summary->is_gpu ? HY_BF16 : HY_F32);
    print_field(terminal, "device", "%s, %s%s%s\n", summary->device, summary->matmul,
                is_usual ? "" : "; computes in ", is_usual ? "" : hy_dtype_name(dtype));
    opening_host(terminal, config, trainer);
    if (hy_trainer_ranks(trainer, &ranks))
        print_field(terminal, "ranks", "%d (ZeRO stage %d, over %s)\n", ranks.count,
                    ranks.zero_stage, ranks.transport);
    print_field(terminal, "data", "%s\n", summary->data);
    if (summary->vocab > BYTE_VOCAB && summary->has_byte_tokens)
        print_field(terminal, "tokens",
                    "bytes, 256 of the vocabulary's %s entries: there is no tokenizer; name one "
                    "with --tokenizer\n",
                    hy_cli_count(summary->vocab).text);
    if (summary->row_format[0]) print_field(terminal, "rows", "%s\n", summary->row_format);
    if (summary->row_losses[0]) print_field(terminal, "", "%s\n", summary->row_losses);
    if (summary->task[0]) print_field(terminal, "task", "%s\n", summary->task);
    print_field(terminal, "steps", "%s", hy_cli_count(summary->steps_total).text);
    if (summary->tokens_per_step > 0 && !summary->generates_answers)
        fprintf(out, " of %s tokens", hy_cli_count(summary->tokens_per_step).text);
    if (summary->steps > 0) fprintf(out, ", %s already done", hy_cli_count(summary->steps).text);
    fputc('\n', out);
    const char *predictor = "", *origin = "";
    (void)hy_config_get(config, "predictor", &predictor, &origin);
    if (!strcmp(predictor, "none") && !strcmp(origin, "auto") && !summary->generates_answers)
        print_field(terminal, "predict",
                    "off: it pays only in long AdamW runs from random weights; --predictor outer "
                    "turns it on\n");
    if (summary->out[0] == '\0') {
        print_field(terminal, "out", "no files are written\n");
    } else {
        print_field(terminal, "out", "%s, ", summary->out);
        hy_cli_checkpoint_size(out, config, summary);
        fputc('\n', out);
        print_field(terminal, "saves", "%s", "");
        hy_cli_saves(out, config, trainer);
        print_field(terminal, "watch it", "hybrid-top %s\n", summary->out);
    }
    fflush(out);
}

/* ---- phases ---------------------------------------------------------------------------------- */

/* All figures come from hy_summary; phases that did not run are not shown. */

static void closing_phases(const hy_cli_terminal *terminal, const hy_summary *summary) {
    hy_cli_table table;
    hy_cli_table_begin(&table, "lrrrrrr");
    hy_cli_table_row(&table, "phase", "steps", "time", "tokens/s", "planned", "peak", "waited",
                     NULL);
    for (int p = 0; p < HY_PHASE_COUNT; p++) {
        const hy_phase_summary *phase = &summary->phases[p];
        if (phase->steps == 0) continue;
        double tokens = (double)phase->steps * (double)summary->tokens_per_step;
        /* Predict, Evaluate and Reference train on no tokens. */
        bool trains = p != HY_PREDICT && p < HY_EVALUATE && phase->seconds > 0 &&
                      !summary->generates_answers; /* steps are then of different lengths */
        /* Jumps and measurements are not steps. */
        char count[48];
        snprintf(count, sizeof count, "%s%s", hy_cli_count(phase->steps).text,
                 p == HY_PREDICT    ? phase->steps == 1 ? " jump" : " jumps"
                 : p >= HY_EVALUATE ? phase->steps == 1 ? " time" : " times"
                                    : "");
        hy_cli_table_row(
            &table, hy_phase_name((hy_phase)p), count, hy_cli_duration(phase->seconds).text,
            hy_cli_short_count(trains ? tokens / phase->seconds : NAN).text,
            hy_cli_bytes(phase->vram_planned_bytes).text, hy_cli_bytes(phase->vram_peak_bytes).text,
            hy_cli_duration(phase->wait_seconds).text, NULL);
    }
    hy_cli_table_row(&table, "all", hy_cli_count(summary->steps).text,
                     hy_cli_duration(summary->seconds).text,
                     hy_cli_short_count(summary->tokens_per_second).text, NULL);
    hy_cli_section(terminal, "phases");
    hy_cli_table_print(&table, terminal, true);
    /* compared with the data sheet, and with a measured matmul */
    FILE *out = terminal->out;
    if (summary->fp8_matmuls > 0)
        print_field(
            terminal, "fp8", "%s of the %s block matmuls of a micro-batch; the others in bf16\n",
            hy_cli_count(summary->fp8_matmuls).text, hy_cli_count(summary->block_matmuls).text);
    if (summary->mfu > 0)
        fprintf(out, "  model FLOP utilisation %.1f %% of the card's %.0f TFLOP/s (data sheet)\n",
                100 * summary->mfu, 1e-12 * summary->peak_flops);
    if (summary->sol > 0)
        fprintf(out,
                "  speed of light %.1f %% of the %.0f TFLOP/s of a matmul timed at the start\n",
                100 * summary->sol, 1e-12 * summary->matmul_flops);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* "18.1 MiB", "24.5 MiB to 24.6 MiB". */
typedef struct byte_range {
    char text[2 * sizeof(hy_cli_figure) + 4];
} byte_range;

static byte_range in_bytes(double least, double most) {
    byte_range out;
    hy_cli_figure low = hy_cli_bytes((uint64_t)fmax(0, least)),
                  high = hy_cli_bytes((uint64_t)fmax(0, most));
    bool are_same = strcmp(low.text, high.text) == 0;
    snprintf(out.text, sizeof out.text, "%s%s%s", low.text, are_same ? "" : " to ",
             are_same ? "" : high.text);
    return out;
}

/* The exchange time of the slowest rank counts: on other ranks it includes waiting for the
 * slowest. */
static void closing_ranks(const hy_cli_terminal *terminal, const hy_trainer *trainer) {
    hy_rank_cost slowest, one;
    hy_ranks_info ranks;
    int32_t found = 0;
    if (!hy_trainer_ranks(trainer, &ranks) || !hy_trainer_rank(trainer, 0, &slowest)) return;
    double sent[2] = {slowest.bytes, slowest.bytes}, memory[2] = {slowest.memory, slowest.memory};
    for (int32_t r = 1; hy_trainer_rank(trainer, r, &one); r++) {
        sent[0] = fmin(sent[0], one.bytes);
        sent[1] = fmax(sent[1], one.bytes);
        memory[0] = fmin(memory[0], one.memory);
        memory[1] = fmax(memory[1], one.memory);
        if (one.slowest <= slowest.slowest) continue;
        slowest = one;
        found = r;
    }
    char link[64] = ""; /* NCCL's exchanges are not timed */
    if (slowest.seconds > 0 && !isnan(slowest.exchanged))
        snprintf(link, sizeof link, "; its link was in use %.0f %% of the time",
                 100 * slowest.exchanged / slowest.seconds);
    print_field(terminal, "ranks",
                "%d; rank %d was the slowest in %s of %s steps (median %.3g s, waited %.3g s)%s; "
                "each rank sends %s per step and uses %s\n",
                ranks.count, found, hy_cli_count(slowest.slowest).text,
                hy_cli_count(slowest.steps).text, slowest.seconds, slowest.waited, link,
                in_bytes(sent[0], sent[1]).text, in_bytes(memory[0], memory[1]).text);
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

static void add_memory_rows(hy_cli_table *table, const hy_phase_summary *phase, const char *label,
                            bool is_plan) {
    for (int c = 0; c < HY_CLASS_COUNT; c++) {
        const hy_memory_cell *cell = &phase->memory[c];
        if (is_empty_cell(cell)) continue;
        hy_cli_table_row(table, label, hy_class_name((hy_class)c), hy_place_name(cell->place),
                         hy_dtype_name(cell->dtype), hy_cli_bytes(cell->planned_bytes).text,
                         is_plan ? NULL : hy_cli_bytes(cell->measured_bytes).text, NULL);
        label = "";
    }
    if (is_plan)
        hy_cli_table_row(table, "", "total", "device", "",
                         hy_cli_bytes(phase->vram_planned_bytes).text, NULL);
}

/* A plan shows every phase that a run can reach; the closing shows those that ran. */
static bool is_phase_shown(const hy_summary *summary, int phase, bool is_plan) {
    bool needs_prediction = phase == HY_PREDICT || phase == HY_CORRECT;
    if (!is_plan) return summary->phases[phase].steps > 0;
    if (phase == HY_REFERENCE) return summary->measures_reference;
    if (phase == HY_ROLLOUT) return summary->generates_answers;
    return !needs_prediction || strcmp(summary->predictor, "none") != 0;
}

/* Phases with the same memory share their rows; the first row names all of them. */
void hy_cli_show_memory(const hy_cli_terminal *terminal, const hy_summary *summary, bool is_plan) {
    const hy_phase_summary *phases = summary->phases;
    bool is_done[HY_PHASE_COUNT] = {false};
    hy_cli_table table;
    hy_cli_table_begin(&table, is_plan ? "llllr" : "llllrr");
    hy_cli_table_row(&table, "phase", "class", "place", "type", "planned",
                     is_plan ? NULL : "measured", NULL);
    for (int p = 0; p < HY_PHASE_COUNT; p++) {
        char names[64] = "";
        for (int other = p; other < HY_PHASE_COUNT && !is_done[p]; other++) {
            size_t length = strlen(names);
            bool is_shown = is_phase_shown(summary, other, is_plan);
            if (other == p && !is_shown) break;
            if (!is_shown || !has_same_memory(&phases[p], &phases[other])) continue;
            snprintf(names + length, sizeof names - length, "%s%s", length > 0 ? ", " : "",
                     hy_phase_name((hy_phase)other));
            is_done[other] = other > p;
        }
        if (names[0] != '\0') add_memory_rows(&table, &phases[p], names, is_plan);
    }
    if (table.rows == 1) return;
    hy_cli_section(terminal, "memory");
    hy_cli_table_print(&table, terminal, true);
}

/* ---- memory savings -------------------------------------------------------------------------- */

/* Rows show savings that are on. Those that are off are listed in one line, if they would save a
 * noticeable part of the device memory. */
#define WORTH_SHOWING 0.02 /* share of the device memory in use */
#define MOST_SHOWN 4

/* "1.5 GiB", "-1.5 GiB" for a cost, "" for nothing. */
static hy_cli_figure in_signed_bytes(int64_t bytes) {
    hy_cli_figure out = {""}, figure = hy_cli_bytes((uint64_t)(bytes < 0 ? -bytes : bytes));
    if (bytes != 0)
        snprintf(out.text, sizeof out.text, "%s%.30s", bytes < 0 ? "-" : "", figure.text);
    return out;
}

static void add_saving(hy_cli_table *table, const hy_saving *it) {
    /* An update on gather saves only time. For others, time is the cost, which --plan shows. */
    bool saves_time = it->device_bytes == 0 && it->seconds > 0;
    if (!it->is_on || (it->device_bytes <= 0 && it->host_bytes <= 0 && !saves_time)) return;
    const char *when = saves_time                    ? "every step"
                       : it->phase == HY_PHASE_COUNT ? "always"
                                                     : hy_phase_name(it->phase);
    hy_cli_table_row(
        table, it->name, it->now, when,
        saves_time ? hy_cli_duration(it->seconds).text : in_signed_bytes(it->device_bytes).text,
        in_signed_bytes(it->host_bytes).text, it->is_measured ? "measured" : "planned", NULL);
}

static void closing_savings(const hy_cli_terminal *terminal, const hy_trainer *trainer) {
    hy_savings savings;
    hy_plan_facts facts;
    hy_cli_table table;
    if (hy_trainer_savings(trainer, &savings) != HY_OK) return; /* not an error of the run */
    hy_trainer_plan_facts(trainer, &facts);
    hy_cli_table_begin(&table, "lllrrl");
    hy_cli_table_row(&table, "what", "now", "when", "on device", "on host", "", NULL);
    for (int i = 0; i < savings.count; i++) add_saving(&table, &savings.list[i]);
    if (table.rows == 1) return;
    hy_cli_section(terminal, "memory saved");
    hy_cli_table_print(&table, terminal, true);
    FILE *out = terminal->out;
    int shown = 0;
    for (int i = 0; i < savings.count && shown < MOST_SHOWN; i++) {
        const hy_saving *it = &savings.list[i];
        bool is_worth_it = (double)it->device_bytes >= WORTH_SHOWING * (double)facts.vram_bytes;
        if (it->is_on || !is_worth_it) continue;
        fprintf(out, "%s%s = %s (%s)", shown ? ", " : "  would also save memory: ", it->key,
                it->other, hy_cli_bytes((uint64_t)it->device_bytes).text);
        shown++;
    }
    if (shown) fputc('\n', out);
}

/* ---- prediction ------------------------------------------------------------------------------ */

static void closing_prediction(const hy_cli_terminal *terminal, const hy_summary *summary,
                               bool is_verbose) {
    FILE *out = terminal->out;
    if (strcmp(summary->predictor, "none") == 0) return;
    hy_cli_section(terminal, "prediction");
    fprintf(out,
            "  %s: %lld jumps accepted, %lld rejected; %lld optimizer steps, and jumps that "
            "replaced about "
            "%lld more\n",
            summary->predictor, (long long)summary->moves, (long long)summary->rejected_moves,
            (long long)summary->steps, (long long)summary->predicted_steps);
    if (summary->moves == 0 && summary->rejected_moves == 0 && summary->why_not[0])
        hy_cli_printf(out, "  no jumps: %s\n", summary->why_not);
    if (!is_verbose) return;
    fprintf(out,
            "  compute spent: %.1f of %lld full steps, including guard passes and paired tests\n",
            summary->spent, (long long)summary->steps_total);
    fprintf(out, "  confidence that prediction pays: %.2f, from %s", summary->confidence,
            summary->forks ? "" : "the prior only, because no paired test was run");
    if (summary->forks)
        fprintf(out, "%lld paired tests (sum of gains: %+.4f nats, %+.1f optimizer steps)",
                (long long)summary->forks, summary->fork_gain, summary->fork_gain_steps);
    fputc('\n', out);
}

/* ---- losses ---------------------------------------------------------------------------------- */

static void closing_losses(const hy_cli_terminal *terminal, const hy_summary *s) {
    bool is_made = s->knows_entropy; /* the entropy of the source is known */
    const struct {
        const char *what;
        double nats;
        bool is_of_made;
    } losses[] = {
        {"training, mean of the last steps (at most 32)", s->final_loss, false},
        {"true entropy of the source", s->source_entropy, true},
        {"the source itself on the held-out text", s->val_optimum, true},
        {"5-gram model counted on the same bytes", s->ngram_loss, true},
        {is_made ? "this model on the held-out text" : "held-out", s->val_loss, false},
    };
    hy_cli_table table;
    if (s->generates_answers) return; /* near 0 by construction: rewards are shown */
    hy_cli_table_begin(&table, "lr");
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++)
        if (!isnan(losses[i].nats) && (is_made || !losses[i].is_of_made))
            hy_cli_table_row(&table, losses[i].what, hy_cli_loss(losses[i].nats).text, NULL);
    const char *const others[] = {"the true entropy", "the optimum on this text", "the 5-gram"};
    const double theirs[] = {s->source_entropy, s->val_optimum, s->ngram_loss};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        double above = s->val_loss - theirs[i];
        char what[64];
        snprintf(what, sizeof what, "%s %s", above < 0 ? "below" : "above", others[i]);
        if (is_made && !isnan(above))
            hy_cli_table_row(&table, what, hy_cli_loss(fabs(above)).text, NULL);
    }
    if (table.rows == 0) return;
    hy_cli_section(terminal, is_made      ? "loss, nats per byte"
                             : s->task[0] ? "loss, per pair"
                                          : "loss, nats per token");
    hy_cli_table_print(&table, terminal, false);
}

void hy_cli_print_scores(const hy_cli_terminal *terminal, const hy_row_scores *s) {
    const struct {
        const char *what;
        double share, error;
        int64_t rows;
        const char *unit;
    } list[] = {
        {"right choice", s->accuracy, s->accuracy_error, s->choice_rows, "rows"},
        {"right choice, by length", s->accuracy_norm, s->accuracy_norm_error, s->choice_rows,
         "rows"},
        {"right answer, greedy", s->greedy_accuracy, s->greedy_accuracy_error, s->answer_rows,
         "rows"},
        {"chosen before rejected", s->pair_accuracy, s->pair_accuracy_error, s->pairs, "pairs"},
    };
    hy_cli_table table;
    if (s->rewarded_rows > 0) {
        char rows[48], reward[64];
        hy_cli_table_begin(&table, "lrr");
        snprintf(rows, sizeof rows, "of %s rows", hy_cli_count(s->rewarded_rows).text);
        snprintf(reward, sizeof reward, "%.4f +- %.4f", s->val_reward, s->val_reward_error);
        hy_cli_table_row(&table, "held-out", reward, rows, NULL);
        hy_cli_section(terminal, "reward, with standard error");
        hy_cli_table_print(&table, terminal, false);
    }
    if (s->choice_rows + s->answer_rows + s->pairs == 0) return;
    hy_cli_table_begin(&table, "lrr");
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        char rows[48];
        snprintf(rows, sizeof rows, "of %s %s", hy_cli_count(list[i].rows).text, list[i].unit);
        if (list[i].rows > 0)
            hy_cli_table_row(&table, list[i].what, hy_cli_share(list[i].share, list[i].error).text,
                             rows, NULL);
    }
    hy_cli_section(terminal, "accuracy, with standard error");
    hy_cli_table_print(&table, terminal, false);
}

/* ---- sample ---------------------------------------------------------------------------------- */

/* Fills the text that the model continues, and its text: the answer to the prompt in the format of
 * the rows, or to a held-out row's question; of other data, the continued prompt. found->answer is
 * NULL if no sample is wanted. A sample may contain zero bytes; *size counts its bytes. */
static hy_status sample(const hy_config *config, hy_trainer *trainer, hy_row_answer *found,
                        size_t *size) {
    hy_sample_options options = {
        .prompt = hy_cli_value(config, "prompt"),
        .tokens = (int32_t)strtol(hy_cli_value(config, "sample_tokens"), NULL, 10),
        .temperature = strtod(hy_cli_value(config, "temperature"), NULL),
        .top_k = (int32_t)strtol(hy_cli_value(config, "top_k"), NULL, 10),
        .seed = strtoull(hy_cli_value(config, "seed"), NULL, 10),
    };
    hy_sample_options of_row = options; /* it is compared with the answer in the data */
    if (options.prompt[0] == '\0') of_row.temperature = 0;
    *found = (hy_row_answer){0};
    if (options.tokens <= 0) return HY_OK;
    hy_status status = hy_trainer_answer(trainer, &of_row, found);
    if (status != HY_OK) return status;
    if (found->answer == NULL) return hy_trainer_sample(trainer, &options, &found->answer, size);
    *size = strlen(found->answer);
    return HY_OK;
}

static void free_sample(hy_row_answer *found) {
    hy_free(found->question);
    hy_free(found->reference);
    hy_free(found->answer);
}

hy_status hy_cli_follow_closing(const hy_config *config, hy_trainer *trainer) {
    hy_row_answer found;
    size_t size;
    hy_status status = sample(config, trainer, &found, &size);
    free_sample(&found);
    return status;
}

static void write_ended(const hy_cli_terminal *terminal, const char *text, size_t size) {
    hy_cli_write_safely(terminal->out, text, size, terminal->is_utf8);
    if (size == 0 || text[size - 1] != '\n') fputc('\n', terminal->out);
}

static void closing_sample(const hy_cli_terminal *terminal, const hy_config *config,
                           hy_trainer *trainer) {
    hy_row_answer found;
    size_t size = 0;
    if (sample(config, trainer, &found, &size) != HY_OK) /* the run is done and saved */
        hy_cli_warning("could not sample text: %s", hy_error_message());
    bool is_row = found.reference != NULL, is_asked = found.question != NULL;
    const char *prompt = is_asked ? found.question : hy_cli_value(config, "prompt");
    if (found.answer != NULL) {
        hy_cli_section(terminal, is_row     ? "answer to a held-out row"
                                 : is_asked ? "answer to the prompt, in the format of the rows"
                                            : "sample");
        fputs(hy_cli_colour_code(terminal, HY_CLI_DIM), terminal->out);
        hy_cli_write_safely(terminal->out, prompt, strlen(prompt), terminal->is_utf8);
        fputs(hy_cli_colour_code(terminal, HY_CLI_PLAIN), terminal->out);
        write_ended(terminal, found.answer, size);
    }
    if (is_row) {
        hy_cli_section(terminal, "answer in the data");
        write_ended(terminal, found.reference, strlen(found.reference));
    }
    free_sample(&found);
}

/* ---- files and next commands ----------------------------------------------------------------- */

static void print_command(FILE *out, const char *what, const char *program, const char *flag,
                          const char *folder) {
    fprintf(out, "%-19s", what);
    write_quoted(out, program);
    fprintf(out, " %s ", flag);
    write_quoted(out, folder);
}

static void closing_files(FILE *out, const hy_summary *summary, const char *program,
                          bool was_stopped) {
    char chat[4096];
    bool is_saved = summary->out[0] != '\0';
    if (!was_stopped && !is_saved) return;
    fputc('\n', out);
    int64_t end = hy_steps_at_end(summary->steps, summary->spent, summary->steps_total);
    if (was_stopped)
        hy_cli_printf(out, "stopped %s step %s of %s; %s%s\n",
                      summary->steps < end ? "after" : "in the validation after the last",
                      hy_cli_count(summary->steps).text, hy_cli_count(end).text,
                      is_saved ? "everything so far is in "
                               : "nothing was saved, because out is none",
                      summary->out);
    else
        hy_cli_printf(out, "everything is in %s: checkpoints, metrics.jsonl, summary.json\n",
                      summary->out);
    if (!is_saved) return;
    if (!was_stopped) {
        /* the other programs are in the folder that this program was started from */
        const char *slash = strrchr(program, '/');
        snprintf(chat, sizeof chat, "%.*shybrid-chat", slash ? (int)(slash + 1 - program) : 0,
                 program);
        print_command(out, "talk to it:", chat, "--model", summary->out);
        fputc('\n', out);
    }
    print_command(out, was_stopped ? "continue with:" : "train longer with:", program, "--resume",
                  summary->out);
    double budget = fmax((double)summary->steps_total, summary->spent);
    if (!was_stopped) fprintf(out, " --steps %.0f", 2 * ceil(budget));
    fputc('\n', out);
}

void hy_cli_closing(const hy_cli_terminal *terminal, const hy_config *config, hy_trainer *trainer,
                    const char *program, bool was_stopped, bool is_verbose) {
    hy_summary summary;
    hy_trainer_summary(trainer, &summary);
    closing_phases(terminal, &summary);
    closing_ranks(terminal, trainer);
    if (!was_stopped) {
        if (is_verbose) {
            hy_cli_show_memory(terminal, &summary, false);
            closing_savings(terminal, trainer);
        }
        closing_prediction(terminal, &summary, is_verbose);
        closing_losses(terminal, &summary);
        hy_cli_print_scores(terminal, &summary.row_scores);
        closing_sample(terminal, config, trainer);
    }
    closing_files(terminal->out, &summary, program, was_stopped);
}

/* ---- OUT/report.html ------------------------------------------------------------------------- */

/* Created from the files in the folder, exactly as hybrid-report does. */

void hy_cli_write_report(const hy_cli_terminal *terminal, const char *folder) {
    char *path;
    hy_run *run;
    if (folder[0] == '\0') return;
    /* A run that failed before it wrote anything has no report. */
    hy_status status = hy_run_open(folder, &run);
    if (status == HY_ERR_INPUT) return;
    bool has_lines = status == HY_OK && (hy_run_points(run) > 0 || hy_run_events(run) > 0);
    if (asprintf(&path, "%s/report.html", folder) < 0) path = NULL;
    if (has_lines && path != NULL) status = hy_report_write((const hy_run *const[]){run}, 1, path);
    if (status != HY_OK || path == NULL)
        hy_cli_warning("could not write the report: %s",
                       path ? hy_error_message() : "out of memory");
    else if (has_lines && !terminal->is_quiet)
        hy_cli_printf(terminal->out, "report:            %s\n", path);
    hy_run_close(run);
    free(path);
}
