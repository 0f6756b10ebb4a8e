/* progress.c: shows the library's callbacks as a progress line or as plain lines.
 *
 * A progress line is written in one piece and padded to cover the line before, so it does not
 * flicker and needs no escape code. Other output first clears the line. The loss is that of the
 * step, as in metrics.jsonl. */
#include "cli/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/table.h"

/* ---- lines that fit a width ------------------------------------------------------------------ */

/* Pure functions: no clock, no terminal calls. A line is a bar and fields in order of importance.
 * Fields are dropped from the right until the rest fits. The bar gets the remaining columns,
 * between 8 and 30. Everything but the bar is ASCII, so columns equal bytes. */

#define BAR_MIN 8
#define BAR_MAX 30
#define FIELDS_MAX 8
#define FIELD_BYTES 48
#define LINE_BYTES 2048 /* enough for a line of 500 columns with colours */

typedef struct field_list {
    size_t count;
    char text[FIELDS_MAX][FIELD_BYTES];
    hy_cli_colour colour[FIELDS_MAX];
} field_list;

/* Appends to a line. The buffer is large enough by construction; never writes past its end. */
static void put(char *line, const char *text, int times) {
    for (int i = 0; i < times; i++) strncat(line, text, LINE_BYTES - 1 - strlen(line));
}

__attribute__((format(printf, 3, 4))) static void
add_field(field_list *fields, hy_cli_colour colour, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fields->text[fields->count], FIELD_BYTES, format, arguments);
    va_end(arguments);
    fields->colour[fields->count++] = colour;
}

static int field_columns(const field_list *fields) {
    int columns = 0;
    for (size_t i = 0; i < fields->count; i++) columns += 2 + (int)strlen(fields->text[i]);
    return columns;
}

static void put_coloured(char *line, const hy_cli_terminal *terminal, hy_cli_colour colour,
                         const char *text, int times) {
    if (colour != HY_CLI_PLAIN) put(line, hy_cli_colour_code(terminal, colour), 1);
    put(line, text, times);
    if (colour != HY_CLI_PLAIN) put(line, hy_cli_colour_code(terminal, HY_CLI_PLAIN), 1);
}

/* Returns the width of the line, at most `columns`. */
static int compose(const hy_cli_terminal *terminal, field_list *fields, double fraction,
                   hy_cli_colour colour, int columns, char *line) {
    bool is_utf8 = terminal->is_utf8;
    while (fields->count > 1 && field_columns(fields) + BAR_MIN > columns) fields->count--;
    int taken = field_columns(fields);
    int width = columns - taken < BAR_MAX ? columns - taken : BAR_MAX;
    *line = '\0';
    if (width >= BAR_MIN) {
        int inside = is_utf8 ? width : width - 2;
        int done = (int)(fmin(fmax(fraction, 0), 1) * inside);
        if (!is_utf8) put(line, "[", 1);
        put_coloured(line, terminal, colour, is_utf8 ? "\u2501" : "#", done); /* heavy line */
        put_coloured(line, terminal, HY_CLI_DIM, is_utf8 ? "\u2500" : "-",
                     inside - done); /* light */
        if (!is_utf8) put(line, "]", 1);
    } else {
        width = 0;
    }
    if (width + taken > columns) return 0; /* not even the first field fits */
    for (size_t i = 0; i < fields->count; i++) {
        put(line, "  ", 1);
        put_coloured(line, terminal, fields->colour[i], fields->text[i], 1);
    }
    return width + taken;
}

hy_cli_colour hy_cli_phase_colour(hy_phase phase) {
    static const hy_cli_colour colours[HY_PHASE_COUNT] = {[HY_WARMUP] = HY_CLI_YELLOW,
                                                          [HY_FULL] = HY_CLI_GREEN,
                                                          [HY_PREDICT] = HY_CLI_BLUE,
                                                          [HY_CORRECT] = HY_CLI_MAGENTA};
    return colours[phase];
}

/* ---- during a run ---------------------------------------------------------------------------- */

#define REDRAW_SECONDS 0.1
#define PLAIN_SECONDS 10.0    /* plain lines: at least this many seconds apart, */
#define PLAIN_FRACTION 0.02   /* and this share of the run, */
#define PLAIN_SILENCE 300.0   /* but at most this many seconds apart */
#define OUTLOOK_STEPS 5       /* the estimate of the time left is shown from here on */
#define OUTLOOK_SECONDS 600.0 /* shorter runs show no expected time */
#define SECONDS_PER_DAY 86400.0

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- the progress line ----------------------------------------------------------------------- */

static void wipe(hy_cli_progress *progress) {
    if (progress->drawn_columns == 0) return;
    fprintf(progress->terminal->out, "\r%*s\r", progress->drawn_columns, "");
    fflush(progress->terminal->out);
    progress->drawn_columns = 0;
}

/* Draws a bar and fields. One column stays free, because some terminals wrap when the last column
 * is filled. */
static void draw(hy_cli_progress *progress, field_list *fields, double fraction,
                 hy_cli_colour colour) {
    char line[LINE_BYTES];
    int columns = compose(progress->terminal, fields, fraction, colour,
                          hy_cli_terminal_columns(progress->terminal) - 1, line);
    int stale = progress->drawn_columns > columns ? progress->drawn_columns - columns : 0;
    fprintf(progress->terminal->out, "\r%s%*s", line, stale, "");
    fflush(progress->terminal->out);
    progress->drawn_columns = columns;
    progress->drawn_at = now();
}

/* The line of a step: bar, step, phase, loss, speed, memory, time left, learning rate. */
static void draw_step(hy_cli_progress *progress) {
    static const hy_cli_colour memory_colours[] = {HY_CLI_PLAIN, HY_CLI_YELLOW, HY_CLI_RED,
                                                   HY_CLI_RED};
    const hy_step_info *info = &progress->step;
    field_list fields = {0};
    hy_cli_colour colour = hy_cli_phase_colour(info->phase);
    double fraction = (double)info->step / (double)(info->steps_total > 0 ? info->steps_total : 1);
    int digits = snprintf(NULL, 0, "%" PRId64, info->steps_total);
    add_field(&fields, HY_CLI_PLAIN, "%*" PRId64 "/%" PRId64, digits, info->step,
              info->steps_total);
    add_field(&fields, colour, "%-7s", hy_phase_name(info->phase));
    if (isnan(info->rewards.reward))
        add_field(&fields, HY_CLI_PLAIN, "loss %s", hy_cli_loss(info->loss).text);
    else
        add_field(&fields, HY_CLI_PLAIN, "reward %.4f", info->rewards.reward);
    add_field(&fields, HY_CLI_PLAIN, "%5s tok/s", hy_cli_short_count(info->tokens_per_second).text);
    if (info->mfu > 0)
        add_field(&fields, HY_CLI_PLAIN, "mfu %2.0f %%", 100 * info->mfu);
    else if (info->sol > 0)
        add_field(&fields, HY_CLI_PLAIN, "sol %2.0f %%", 100 * info->sol);
    add_field(&fields, memory_colours[info->memory_status], "%8s",
              hy_cli_bytes(info->vram_bytes).text);
    if (info->step < info->steps_total)
        add_field(&fields, HY_CLI_PLAIN, "%6s left", hy_cli_duration(info->remaining).text);
    else
        add_field(&fields, HY_CLI_PLAIN, "took %s", hy_cli_duration(info->elapsed).text);
    add_field(&fields, HY_CLI_DIM, "lr %s", hy_cli_learning_rate(info->lr).text);
    if (!isnan(info->epoch)) add_field(&fields, HY_CLI_DIM, "epoch %.2f", info->epoch);
    draw(progress, &fields, fraction, colour);
}

void hy_cli_draw_work(hy_cli_progress *progress, const char *what, double fraction) {
    field_list fields = {0};
    add_field(&fields, HY_CLI_PLAIN, "%3.0f %%", 100 * fmin(fmax(fraction, 0), 1));
    add_field(&fields, HY_CLI_PLAIN, "%s", what);
    draw(progress, &fields, fraction, HY_CLI_BLUE);
}

/* ---- plain lines ----------------------------------------------------------------------------- */

static void print_step(hy_cli_progress *progress) {
    const hy_step_info *info = &progress->step;
    FILE *out = progress->terminal->out;
    const hy_reward_figures *r = &info->rewards;
    fprintf(out, "step %" PRId64 "/%" PRId64 "  %s  ", info->step, info->steps_total,
            hy_phase_name(info->phase));
    if (isnan(r->reward))
        fprintf(out, "loss %s  ", hy_cli_loss(info->loss).text);
    else
        fprintf(out, "reward %.4f  answers %.0f tokens, %.0f %% ended, %s tok/s  ", r->reward,
                r->answer_tokens, 100 * r->answers_ended,
                hy_cli_short_count(r->rollout_speed).text);
    fprintf(out, "lr %s  %s tok/s", hy_cli_learning_rate(info->lr).text,
            hy_cli_short_count(info->tokens_per_second).text);
    if (!isnan(info->epoch)) fprintf(out, "  epoch %.2f", info->epoch);
    /* Memory use of the card, and its cost. */
    if (info->mfu > 0) fprintf(out, "  mfu %.1f %%", 100 * info->mfu);
    if (info->sol > 0) fprintf(out, "  sol %.1f %%", 100 * info->sol);
    if (info->gpu.is_known && !isnan(info->gpu.power_watts))
        fprintf(out, "  %.0f W", info->gpu.power_watts);
    fprintf(out, "  mem %s", hy_cli_bytes(info->vram_bytes).text);
    if (info->memory_status != HY_MEMORY_NORMAL)
        fprintf(out, " (%s)", hy_memory_status_name(info->memory_status));
    fprintf(out, "  %s left\n", hy_cli_duration(info->remaining).text);
    fflush(out);
    progress->printed_step = info->step;
    progress->printed_at = now();
}

static bool is_plain_line_due(const hy_cli_progress *progress) {
    const hy_step_info *info = &progress->step;
    double silence = now() - progress->printed_at;
    double part = (double)(info->step - progress->printed_step) /
                  (double)(info->steps_total > 0 ? info->steps_total : 1);
    if (info->step == progress->first_step || info->step >= info->steps_total) return true;
    return (silence >= PLAIN_SECONDS && part >= PLAIN_FRACTION) || silence >= PLAIN_SILENCE;
}

/* ---- other lines ----------------------------------------------------------------------------- */

/* Clears the progress line for a line of text; end_line must follow. */
static FILE *begin_line(hy_cli_progress *progress) {
    wipe(progress);
    return progress->terminal->out;
}

static void end_line(hy_cli_progress *progress) {
    fflush(progress->terminal->out);
    if (progress->terminal->is_tty && progress->has_step) draw_step(progress);
}

/* Whether a text is new; remembers it. */
static bool is_new_text(hy_cli_progress *progress, const char *text) {
    for (int i = 0; i < progress->shown_count; i++)
        if (strcmp(progress->shown[i], text) == 0) return false;
    if (progress->shown_count < HY_CLI_SHOWN_MAX) progress->shown[progress->shown_count++] = text;
    return true;
}

/* A cycle of phases is reported once; problems are reported each time. */
static void print_phase(hy_cli_progress *progress, const hy_step_info *info) {
    const hy_cli_terminal *terminal = progress->terminal;
    bool is_wrong = info->was_rejected || info->was_rolled_back;
    if (!is_wrong && !is_new_text(progress, info->reason)) return;
    fprintf(begin_line(progress), "step %" PRId64 ": %s%s%s, %s\n", info->step,
            hy_cli_colour_code(terminal, hy_cli_phase_colour(info->phase)),
            hy_phase_name(info->phase), hy_cli_colour_code(terminal, HY_CLI_PLAIN), info->reason);
    if (info->phase == HY_PREDICT && !info->was_rejected)
        fprintf(terminal->out,
                "step %" PRId64 ": accepted a jump of %.1f predicted steps; confidence %.2f\n",
                info->step, info->predicted_steps, info->confidence);
}

/* Printed once in long runs: the expected time and the disk traffic of checkpoints. */
static void print_expected_time(hy_cli_progress *progress) {
    const hy_step_info *info = &progress->step;
    int64_t steps = info->step - progress->first_step + 1;
    if (progress->has_shown_time || steps < OUTLOOK_STEPS) return;
    progress->has_shown_time = true;
    if (!(info->remaining >= OUTLOOK_SECONDS)) return;
    FILE *out = begin_line(progress);
    fprintf(out, "expected time to the end: %s", hy_cli_duration(info->remaining).text);
    if (progress->checkpoint_bytes > 0) {
        double step_seconds = info->remaining / (double)(info->steps_total - info->step);
        double saves_per_day = 0;
        if (progress->save_every > 0)
            saves_per_day += SECONDS_PER_DAY / (step_seconds * (double)progress->save_every);
        if (progress->save_minutes > 0)
            saves_per_day += SECONDS_PER_DAY / 60 / progress->save_minutes;
        double per_day = saves_per_day * (double)progress->checkpoint_bytes;
        if (per_day > 0 && per_day < 1e18)
            fprintf(out, "; checkpoints write %s per day%s", hy_cli_bytes((uint64_t)per_day).text,
                    progress->saves_best ? ", and more at new lowest held-out losses" : "");
    }
    fputc('\n', out);
}

/* ---- the observer ---------------------------------------------------------------------------- */

static void on_step(void *user, const hy_step_info *info) {
    hy_cli_progress *progress = user;
    bool is_last = info->step >= info->steps_total;
    if (!progress->has_step) progress->first_step = info->step;
    progress->has_step = true;
    progress->step = *info;
    progress->step.reason = progress->step.obstacle = "";
    progress->work[0] = '\0';
    if (info->reason != NULL && info->reason[0] != '\0') print_phase(progress, info);
    /* Why there is no prediction; each reason once. Not during Warmup, which never predicts. */
    bool is_plain = info->phase == HY_WARMUP || info->obstacle == NULL || !info->obstacle[0];
    if (!is_plain && is_new_text(progress, info->obstacle))
        fprintf(begin_line(progress), "step %" PRId64 ": no prediction now: %s (confidence %.2f)\n",
                info->step, info->obstacle, info->confidence);
    if (info->was_skipped)
        fprintf(begin_line(progress),
                "step %" PRId64 ": skipped the update, because the gradient was not finite\n",
                info->step);
    print_expected_time(progress);
    if (!progress->terminal->is_tty) {
        if (is_plain_line_due(progress)) print_step(progress);
    } else if (is_last || progress->drawn_columns == 0 ||
               now() - progress->drawn_at >= REDRAW_SECONDS) {
        draw_step(progress);
    }
}

static void on_eval(void *user, const hy_eval_info *info) {
    hy_cli_progress *progress = user;
    const hy_row_scores *s = &info->row_scores;
    FILE *out = begin_line(progress);
    if (s->rewarded_rows > 0)
        fprintf(out, "step %" PRId64 ": held-out reward %.4f +- %.4f on %s rows", info->step,
                s->val_reward, s->val_reward_error, hy_cli_count(s->rewarded_rows).text);
    else
        fprintf(out, "step %" PRId64 ": held-out loss %s on %s %s", info->step,
                hy_cli_loss(info->loss).text, hy_cli_count(info->tokens).text,
                s->pairs > 0 ? "pairs" : "tokens");
    if (s->pairs > 0)
        fprintf(out, ", accuracy %s, margin %.3f",
                hy_cli_share(s->pair_accuracy, s->pair_accuracy_error).text, s->reward_margin);
    if (s->choice_rows > 0)
        fprintf(out, ", accuracy %s, by length %s",
                hy_cli_share(s->accuracy, s->accuracy_error).text,
                hy_cli_share(s->accuracy_norm, s->accuracy_norm_error).text);
    if (s->answer_rows > 0)
        fprintf(out, ", greedy accuracy %s",
                hy_cli_share(s->greedy_accuracy, s->greedy_accuracy_error).text);
    fprintf(out, ", %s\n", hy_cli_duration(info->seconds).text);
    end_line(progress);
}

static void on_save(void *user, const char *path, double seconds, uint64_t bytes) {
    hy_cli_progress *progress = user;
    hy_cli_printf(begin_line(progress), "saved %s (%s, %s)\n", path, hy_cli_bytes(bytes).text,
                  hy_cli_duration(seconds).text);
    end_line(progress);
}

static void on_message(void *user, hy_message_level level, const char *text) {
    hy_cli_progress *progress = user;
    FILE *out = begin_line(progress);
    if (level == HY_WARNING)
        hy_cli_warning("%s", text);
    else
        hy_cli_printf(out, "%s\n", text);
    end_line(progress);
}

/* Plain lines show other work only after it has taken a while. */
static void on_progress(void *user, const char *what, double fraction) {
    hy_cli_progress *progress = user;
    bool is_new = strncmp(progress->work, what, sizeof progress->work - 1) != 0;
    if (is_new) {
        snprintf(progress->work, sizeof progress->work, "%s", what);
        progress->work_shown_at = now();
    }
    if (progress->terminal->is_tty) {
        if (fraction >= 1)
            wipe(progress);
        else if (is_new || now() - progress->drawn_at >= REDRAW_SECONDS)
            hy_cli_draw_work(progress, what, fraction);
    } else if (now() - progress->work_shown_at >= PLAIN_SECONDS) {
        fprintf(progress->terminal->out, "%s: %.0f %%\n", what, 100 * fraction);
        fflush(progress->terminal->out);
        progress->work_shown_at = now();
    }
    if (fraction >= 1) progress->work[0] = '\0';
}

void hy_cli_progress_init(hy_cli_progress *progress, const hy_cli_terminal *terminal) {
    *progress = (hy_cli_progress){.terminal = terminal};
}

hy_observer hy_cli_progress_observer(hy_cli_progress *progress) {
    if (progress->terminal->is_quiet) return (hy_observer){.user = progress};
    return (hy_observer){.user = progress,
                         .on_message = on_message,
                         .on_step = on_step,
                         .on_eval = on_eval,
                         .on_progress = on_progress,
                         .on_save = on_save};
}

void hy_cli_progress_finish(hy_cli_progress *progress) {
    if (progress->terminal->is_quiet || !progress->has_step) {
        wipe(progress);
        return;
    }
    if (progress->terminal->is_tty) {
        draw_step(progress);
        fputc('\n', progress->terminal->out);
        progress->drawn_columns = 0;
    } else if (progress->printed_step != progress->step.step) {
        print_step(progress);
    }
    fflush(progress->terminal->out);
}
