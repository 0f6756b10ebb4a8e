/* scale.c: see scale.h.
 *
 * Opens the run as for resuming it, with its task, data and memory, but saves nothing. Scales rise
 * from 1 until two in a row are no better; if none above 1 is better, they fall from 1. */
#include "cli/scale.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/program.h"
#include "cli/table.h"
#include "cli/terminal.h"

static const double upwards[] = {1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10};
static const double downwards[] = {0.75, 0.5, 0.25};

enum { MOST = 16, PATIENCE = 2 };

typedef struct trial {
    double scale;
    hy_eval_info info;
} trial;

typedef struct trials {
    hy_trainer *trainer;
    trial list[MOST];
    int count, best;
} trials;

/* ---- measuring ------------------------------------------------------------------------------- */

/* Preferences and rewards are what a run wants; the loss decides between equal ones. A change within
 * the standard error is no reason to leave scale 1. */
static double error_of(const hy_eval_info *info) {
    const hy_row_scores *rows = &info->row_scores;
    return rows->rewarded_rows > 0 ? rows->val_reward_error
           : rows->pairs > 0       ? rows->pair_accuracy_error
                                   : 0;
}

static double merit(const hy_eval_info *info) {
    const hy_row_scores *rows = &info->row_scores;
    return rows->rewarded_rows > 0 ? rows->val_reward
           : rows->pairs > 0       ? rows->pair_accuracy
                                   : -info->loss;
}

static bool is_better(const hy_eval_info *a, const hy_eval_info *b) {
    double more = merit(a) - merit(b);
    return isfinite(a->loss) && (more > 0 || (more == 0 && a->loss < b->loss));
}

static hy_status measure(trials *t, double scale) {
    trial *now = &t->list[t->count];
    *now = (trial){.scale = scale, .info.size = sizeof now->info};
    hy_status status = hy_trainer_scale(t->trainer, scale);
    if (status == HY_OK) status = hy_trainer_evaluate(t->trainer, &now->info);
    if (status != HY_OK) return status;
    if (is_better(&now->info, &t->list[t->best].info)) t->best = t->count;
    t->count++;
    return HY_OK;
}

static hy_status go(trials *t, const double *scales, size_t count) {
    int worse = 0;
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && worse < PATIENCE && status == HY_OK; i++) {
        status = measure(t, scales[i]);
        worse = t->best == t->count - 1 ? 0 : worse + 1;
    }
    return status;
}

static hy_status measure_all(trials *t) {
    hy_status status = measure(t, 1);
    if (status == HY_OK) status = go(t, upwards, sizeof upwards / sizeof upwards[0]);
    if (status != HY_OK || t->best > 0) return status;
    return go(t, downwards, sizeof downwards / sizeof downwards[0]);
}

static hy_status configure(const hy_cli_scale_request *r, hy_config **out) {
    char batches[32];
    snprintf(batches, sizeof batches, "%lld", (long long)r->eval_batches);
    const char *task = "", *program = "";
    hy_status status = hy_config_create(out);
    if (status == HY_OK) status = hy_config_load_run(*out, r->checkpoint);
    if (status == HY_OK) status = hy_config_get(*out, "task", &task, NULL);
    if (status == HY_OK) status = hy_config_get(*out, "reward_program", &program, NULL);
    if (status == HY_OK && program[0]) hy_cli_note("starts the run's reward program: %s", program);
    const char *key = strcmp(task, "grpo") == 0 ? "eval_prompts" : "eval_batches";
    const char *const pairs[][2] = {{"resume", r->checkpoint},
                                    {"device", r->device},
                                    {"base", r->base},
                                    {key, r->eval_batches >= 0 ? batches : NULL}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0] && status == HY_OK; i++) {
        if (pairs[i][1]) status = hy_config_set(*out, pairs[i][0], pairs[i][1], HY_FROM_CALLER);
    }
    return status == HY_OK ? hy_config_set(*out, "out", "none", HY_FROM_CALLER) : status;
}

static void pass_message(void *user, hy_message_level level, const char *text) {
    const hy_observer *to = user;
    if (level == HY_WARNING && to->on_message) to->on_message(to->user, level, text);
}

static void pass_progress(void *user, const char *what, double fraction) {
    const hy_observer *to = user;
    if (to->on_progress) to->on_progress(to->user, what, fraction);
}

static hy_status run(trials *t, const hy_cli_scale_request *r) {
    hy_config *config = NULL;
    hy_observer observer = {
        .user = (void *)r->observer, .on_message = pass_message, .on_progress = pass_progress};
    hy_status status = configure(r, &config);
    if (status == HY_OK) status = hy_trainer_create(config, &observer, &t->trainer);
    if (status == HY_OK) status = measure_all(t);
    hy_trainer_destroy(t->trainer);
    hy_config_destroy(config);
    return status;
}

/* ---- showing --------------------------------------------------------------------------------- */

static void print(const trials *t, int chosen) {
    hy_cli_table table;
    hy_cli_terminal terminal;
    const hy_row_scores *first = &t->list[0].info.row_scores;
    const char *what = first->rewarded_rows > 0 ? "held-out reward"
                       : first->pairs > 0       ? "chosen before rejected"
                                                : "";
    hy_cli_terminal_init(&terminal, stdout, false, false);
    hy_cli_table_begin(&table, "rrrl");
    hy_cli_table_row(&table, "scale", first->rewarded_rows > 0 ? "" : "held-out loss", what, "",
                     NULL);
    for (int i = 0; i < t->count; i++) {
        const hy_row_scores *rows = &t->list[i].info.row_scores;
        char scale[16], value[48] = "";
        snprintf(scale, sizeof scale, "%g", t->list[i].scale);
        if (rows->rewarded_rows > 0)
            snprintf(value, sizeof value, "%.4f +- %.4f", rows->val_reward, rows->val_reward_error);
        else if (rows->pairs > 0)
            snprintf(value, sizeof value, "%.4f +- %.4f", rows->pair_accuracy,
                     rows->pair_accuracy_error);
        hy_cli_figure loss = hy_cli_loss(t->list[i].info.loss); /* of rewards: minus their mean */
        hy_cli_table_row(&table, scale, rows->rewarded_rows > 0 ? "" : loss.text, value,
                         i == chosen ? "written" : "", NULL);
    }
    hy_cli_table_print(&table, &terminal, true);
}

int hy_cli_choose_scale(const char *text, const hy_cli_scale_request *request, double *out) {
    char *end;
    trials t = {0};
    if (strcmp(text, "auto") != 0) {
        *out = strtod(text, &end);
        if (end != text && *end == 0 && *out > 0 && *out <= 100) return HY_EXIT_DONE;
        return hy_cli_wrong_usage(
            "--scale accepts auto, or a number above 0 and up to 100, but got ", text);
    }
    hy_status status = run(&t, request);
    if (status != HY_OK) return hy_cli_fail(status);
    double gain = merit(&t.list[t.best].info) - merit(&t.list[0].info);
    bool is_noise = t.best > 0 && gain < error_of(&t.list[0].info);
    int chosen = is_noise ? 0 : t.best;
    *out = t.list[chosen].scale;
    if (request->is_quiet) return HY_EXIT_DONE;
    print(&t, chosen);
    if (is_noise)
        printf("no scale is better than 1 by more than its standard error; more held-out rows make "
               "that smaller\n");
    return HY_EXIT_DONE;
}
