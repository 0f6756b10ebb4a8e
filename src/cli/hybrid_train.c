/* hybrid_train.c: the program hybrid-train: reads the command line, runs the requested action and
 * returns the exit code.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 the loss diverged, 75 stopped by a signal
 * (and saved, if the run has a folder). Output for people goes to standard output (to standard
 * error with --json), errors and warnings to standard error. The program uses only hybrid.h and
 * hybrid_tools.h. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/inspect.h"
#include "cli/options.h"
#include "cli/plan_list.h"
#include "cli/program.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/summary.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "hybrid.h"
#include "hybrid_tools.h"

/* ---- the signal handler ---------------------------------------------------------------------- */

/* The handler uses only what POSIX allows in one: lock-free atomics, write(), clock_gettime(),
 * _exit() and hy_trainer_request_stop(), which hybrid.h declares safe. */

/* timeout(1) and some shells send one request twice, to the process and to its group. A second
 * signal within this time is the same request. */
#define SAME_REQUEST_NANOSECONDS 50000000LL

static _Atomic(hy_trainer *) guarded;
static atomic_bool is_over;
static atomic_llong first_signal_at; /* time of the first signal; 0: none yet */
static _Atomic(const char *) notice; /* printed when a signal arrives; NULL: print nothing */

static long long clock_nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (long long)time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void on_signal(int number) {
    int saved_errno = errno;
    long long now = clock_nanoseconds(), earlier = 0;
    if (atomic_load(&is_over)) _exit(128 + number);
    if (atomic_compare_exchange_strong(&first_signal_at, &earlier, now)) {
        hy_trainer *trainer = atomic_load(&guarded);
        const char *text = atomic_load(&notice);
        if (trainer != NULL) hy_trainer_request_stop(trainer);
        ssize_t ignored = text != NULL ? write(STDERR_FILENO, text, strlen(text)) : 0;
        (void)ignored; /* an error here cannot be reported */
    } else if (now - earlier >= SAME_REQUEST_NANOSECONDS) {
        _exit(128 + number);
    }
    errno = saved_errno;
}

/* ---- the program ----------------------------------------------------------------------------- */

typedef struct job {
    const char *program; /* argv[0] */
    const char *command; /* the whole command line, for the run's records */
    char *const *argv;
    const hy_cli_options *options;
    hy_cli_terminal terminal;
    hy_config *config;
    hy_trainer *trainer;
    hy_cli_progress progress;
    hy_rank_info who;   /* this process among the ranks; rank 0 if it is alone */
    bool shows_closing; /* rank 0 prints the results, and all ranks sample its text */
} job;

/* ---- training -------------------------------------------------------------------------------- */

static int run_trainer(job *it) {
    hy_summary summary;
    hy_trainer_summary(it->trainer, &summary);
    hy_cli_opening(&it->terminal, it->config, it->trainer);
    it->progress.checkpoint_bytes = summary.out[0] != '\0' ? summary.checkpoint_bytes : 0;
    it->progress.save_every = strtoll(hy_cli_value(it->config, "save_every"), NULL, 10);
    it->progress.saves_best = hy_cli_saves_best(it->config);
    it->progress.save_minutes = strtod(hy_cli_value(it->config, "save_minutes"), NULL);

    atomic_store(&guarded, it->trainer);
    if (atomic_load(&first_signal_at) != 0) hy_trainer_request_stop(it->trainer);
    hy_status ran = hy_trainer_run(it->trainer);
    atomic_store(&is_over, true);
    atomic_store(&guarded, NULL);
    hy_cli_progress_finish(&it->progress);
    if (ran != HY_OK && ran != HY_STOPPED) return hy_cli_fail_as(&it->who, ran);

    if (it->who.rank > 0 && it->shows_closing && ran == HY_OK) {
        hy_status closed = hy_cli_follow_closing(it->config, it->trainer);
        if (closed != HY_OK) return hy_cli_fail_as(&it->who, closed);
    }
    if (!it->terminal.is_quiet)
        hy_cli_closing(&it->terminal, it->config, it->trainer, it->program, ran == HY_STOPPED,
                       it->options->is_verbose);
    char *text = NULL;
    hy_status printed = HY_OK;
    if (it->options->wants_json && it->who.rank == 0)
        printed = hy_cli_print(stdout, hy_trainer_summary_json(it->trainer, &text), &text);
    return hy_cli_exit_code(printed != HY_OK ? printed : ran);
}

static int train(job *it) {
    hy_cli_progress_init(&it->progress, &it->terminal);
    hy_observer observer = hy_cli_progress_observer(&it->progress);
    /* On a terminal the newline ends the progress line, which may contain an echoed ^C. */
    const char *text =
        "\nstopping after this step (a validation is broken off); press Ctrl-C again "
        "to stop at once\n";
    atomic_store(&notice, it->terminal.is_quiet ? NULL : isatty(STDERR_FILENO) ? text : text + 1);
    hy_cli_handle(SIGINT, on_signal, SA_RESTART);
    hy_cli_handle(SIGTERM, on_signal, SA_RESTART);
    /* A hangup stops the run like SIGTERM, unless nohup(1) or a similar tool ignores it. */
    struct sigaction current;
    if (sigaction(SIGHUP, NULL, &current) == 0 && current.sa_handler != SIG_IGN)
        hy_cli_handle(SIGHUP, on_signal, SA_RESTART);
    hy_cli_handle(SIGPIPE, SIG_IGN, SA_RESTART);
    hy_status status = hy_config_set_command(it->config, it->command);
    if (status == HY_OK) status = hy_trainer_create(it->config, &observer, &it->trainer);
    if (status != HY_OK) {
        hy_cli_progress_finish(&it->progress);
        return hy_cli_fail_as(&it->who, status);
    }
    int code = run_trainer(it);
    hy_summary summary;
    hy_trainer_summary(it->trainer, &summary); /* the folder may have changed during the run */
    char *folder = strdup(summary.out);
    hy_trainer_destroy(it->trainer); /* completes the files in the run folder */
    bool wants_report = strcmp(hy_cli_value(it->config, "save.report"), "true") == 0;
    if (wants_report && it->who.rank == 0 && folder != NULL)
        hy_cli_write_report(&it->terminal, folder);
    free(folder);
    return code;
}

/* ---- --eval-only: measures the loss of a model on data --------------------------------------- */

static void print_one(FILE *out, const hy_evaluation *e) {
    if (e->adapter[0]) hy_cli_printf(out, "adapter         %s\n", e->adapter);
    bool has_pairs = e->row_scores.pairs > 0;
    fprintf(out, "%s%s, in %s sequence%s of %lld tokens\n",
            has_pairs ? "pairs           " : "tokens counted  ", hy_cli_count(e->tokens).text,
            hy_cli_count(e->sequences).text, e->sequences == 1 ? "" : "s", (long long)e->seq_len);
    bool is_scored = e->row_scores.choice_rows + e->row_scores.answer_rows > 0;
    fprintf(out, "loss            %.5f %s%s\n", e->loss, has_pairs ? "per pair" : "nats per token",
            is_scored ? " of the right answers" : "");
    if (has_pairs)
        fprintf(out, "margin          %.5f, mean reward of chosen minus rejected answers\n",
                e->row_scores.reward_margin);
    else
        fprintf(out, "perplexity      %.4f\n", e->perplexity);
    if (!isnan(e->bits_per_byte)) fprintf(out, "bits per byte   %.5f\n", e->bits_per_byte);
    fprintf(out, "speed           %s tokens/s on %s\n",
            hy_cli_count((int64_t)e->tokens_per_second).text, e->device);
}

/* One line per adapter of the same base. */
static void print_table(const hy_cli_terminal *terminal, const hy_evaluation *list, size_t count) {
    static const char *const alignments[] = {"lrrr", "lrrrr", "lrrrrr", "lrrrrrr"};
    hy_cli_table table;
    bool has_choices = list->row_scores.choice_rows > 0,
         has_answers = list->row_scores.answer_rows > 0;
    hy_cli_table_begin(&table, alignments[2 * has_choices + has_answers]);
    hy_cli_table_row(&table, "adapter", "loss", "perplexity", "tokens", NULL);
    if (has_choices) hy_cli_table_add(&table, "accuracy");
    if (has_choices) hy_cli_table_add(&table, "by length");
    if (has_answers) hy_cli_table_add(&table, "greedy accuracy");
    for (size_t i = 0; i < count; i++) {
        char loss[32], perplexity[32];
        const hy_row_scores *s = &list[i].row_scores;
        const hy_cli_figure shares[] = {hy_cli_share(s->accuracy, s->accuracy_error),
                                        hy_cli_share(s->accuracy_norm, s->accuracy_norm_error),
                                        hy_cli_share(s->greedy_accuracy, s->greedy_accuracy_error)};
        snprintf(loss, sizeof loss, "%.5f", list[i].loss);
        snprintf(perplexity, sizeof perplexity, "%.4f", list[i].perplexity);
        hy_cli_table_row(&table, list[i].adapter[0] ? list[i].adapter : "(none)", loss, perplexity,
                         hy_cli_count(list[i].tokens).text, NULL);
        for (int k = 0; k < 3; k++)
            if (k < 2 ? has_choices : has_answers) hy_cli_table_add(&table, shares[k].text);
    }
    hy_cli_table_print(&table, terminal, true);
}

static hy_status print_all(const hy_cli_terminal *terminal, const hy_evaluation *list, size_t count,
                           bool wants_json) {
    char *text = NULL;
    FILE *out = terminal->out;
    if (wants_json)
        return hy_cli_print(stdout,
                            count > 1 ? hy_evaluations_json(list, count, &text)
                                      : hy_evaluation_json(list, &text),
                            &text);
    hy_cli_printf(out, "model           %s\n", list->model);
    bool has_adapter = list[count - 1].adapter[0] != '\0';
    if (list->frozen_dtype[0] || has_adapter)
        fprintf(out, "frozen weights  %s\n",
                list->frozen_dtype[0] ? list->frozen_dtype : "as in the folder");
    hy_cli_printf(out, "data            %s\n", list->data);
    if (list->row_format[0]) hy_cli_printf(out, "rows            %s\n", list->row_format);
    if (count > 1)
        print_table(terminal, list, count);
    else
        print_one(out, list);
    if (count == 1) hy_cli_print_scores(terminal, &list->row_scores);
    return HY_OK;
}

/* A run and the model that it began from read the same rows only with the same sequence length and,
 * with --eval-batches, the same batch size: each has its own unless flags set them. */
static void say_same_rows(const hy_config *config, bool has_batches) {
    const char *const keys[] = {"train.seq_len", has_batches ? "train.batch_size" : NULL};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *value, *origin;
        if (!keys[i] || hy_config_get(config, keys[i], &value, &origin) != HY_OK) continue;
        if (hy_config_origin(config, keys[i]) < HY_FROM_SET)
            hy_cli_note("%s = %s is set by: %s; to compare with another model on the same rows, "
                        "use %s %s for both",
                        keys[i], value, origin, hy_config_find(keys[i])->flag, value);
    }
}

/* --model may also be a run or a checkpoint here. */
static hy_status eval_only(const hy_cli_terminal *terminal, const hy_cli_options *options) {
    hy_config *config = NULL;
    hy_cli_progress progress;
    hy_evaluation *found = NULL;
    size_t count = 0;
    hy_cli_progress_init(&progress, terminal);
    hy_observer observer = hy_cli_progress_observer(&progress);
    const char *model = NULL;
    hy_status status = hy_cli_configure(options, &model, &config);
    if (status == HY_OK && model != NULL)
        status = hy_cli_checked(hy_config_use_model(config, model));
    if (status == HY_OK) status = hy_cli_check_adapter_flags(options, config);
    if (status == HY_OK) {
        status = hy_evaluate_each(config, &observer, &found, &count);
        hy_cli_progress_finish(&progress);
        hy_cli_checked(status);
    }
    if (status == HY_OK) status = print_all(terminal, found, count, options->wants_json);
    if (status == HY_OK && !options->is_quiet)
        say_same_rows(config, atoll(hy_cli_value(config, "eval.eval_batches")) > 0);
    hy_free(found);
    hy_config_destroy(config);
    return status;
}

/* ---- --download: fetches a model folder from the hub ----------------------------------------- */

#define PLAIN_SECONDS 10

/* The text changes with every call, so plain lines are limited by time. */
static void on_download(void *user, const char *what, double fraction) {
    hy_cli_progress *progress = user;
    const hy_cli_terminal *terminal = progress->terminal;
    double now = 1e-9 * (double)clock_nanoseconds();
    if (terminal->is_tty) hy_cli_draw_work(progress, what, fraction);
    if (terminal->is_tty || now - progress->printed_at < PLAIN_SECONDS) return;
    progress->printed_at = now;
    fprintf(terminal->out, "%s\n", what);
    fflush(terminal->out);
}

static hy_status download(const hy_cli_terminal *terminal, const hy_cli_options *options) {
    const char *folder = "", *name = options->topic;
    for (size_t i = 0; i < options->setting_count; i++) {
        const hy_cli_setting *setting = &options->settings[i];
        if (setting->key == NULL || strcmp(setting->key, "out") != 0)
            return hy_cli_refuse(HY_ERR_INPUT,
                                 "--download can only be combined with --out FOLDER, but got %s",
                                 setting->key != NULL ? setting->key : setting->value);
        folder = setting->value;
    }
    hy_cli_progress progress;
    hy_cli_progress_init(&progress, terminal);
    progress.printed_at = 1e-9 * (double)clock_nanoseconds();
    hy_observer observer = hy_cli_progress_observer(&progress);
    if (!terminal->is_quiet) observer.on_progress = on_download;
    hy_downloaded found;
    hy_status status = hy_download(name, folder, &observer, &found);
    hy_cli_progress_finish(&progress);
    if (hy_cli_checked(status) != HY_OK) return status;
    char *text = NULL;
    if (options->wants_json) return hy_cli_print(stdout, hy_downloaded_json(&found, &text), &text);
    if (terminal->is_quiet) return HY_OK;
    hy_cli_printf(terminal->out, "%s is in %s: %s files, %s (%s downloaded now)\n", name,
                  found.folder, hy_cli_count(found.files).text, hy_cli_bytes(found.bytes).text,
                  hy_cli_bytes(found.fetched).text);
    bool is_by_name = folder[0] == '\0' && strchr(name, '@') == NULL;
    hy_cli_printf(terminal->out, "to use it:  hybrid-train --model %s --data FILE\n",
                  is_by_name ? name : found.folder);
    return HY_OK;
}

/* ---- other actions --------------------------------------------------------------------------- */

/* Without a model, lists what fits. A plan that does not fit is a result, not a failure; programs
 * read "fits". */
static int plan(job *it) {
    bool has_shapes = it->options->action == HY_CLI_IS_PLAN_SHAPES;
    bool has_model = has_shapes || hy_cli_is_set(it->config, "model");
    hy_status status = HY_OK;
    if (!hy_cli_check_ranks(it->options, it->config, has_model)) return HY_EXIT_USAGE;
    if (has_model) {
        if (!has_shapes) status = hy_cli_check_adapter_flags(it->options, it->config);
        if (status == HY_OK) status = hy_cli_plan(&it->terminal, it->options, it->config);
        return hy_cli_exit_code(status);
    }
    hy_machine machine;
    status = hy_machine_probe(".", &machine);
    if (status == HY_OK)
        status = it->options->wants_json
                     ? hy_cli_plan_list_json(it->config, &machine)
                     : hy_cli_plan_list(&it->terminal, it->options, it->config, &machine);
    return status == HY_OK ? HY_EXIT_DONE : hy_cli_fail(status);
}

/* Trains or runs the self-test, in one process alone, or as a rank that was started by another
 * program or by this one. Several ranks test their communication; so does a single rank with
 * NCCL. */
static int run_as_rank(job *it) {
    bool is_test = it->options->action == HY_CLI_IS_SELFTEST;
    hy_status status = is_test ? HY_OK : hy_cli_check_adapter_flags(it->options, it->config);
    if (status != HY_OK) return hy_cli_exit_code(status);
    int code = hy_cli_start_ranks(it->options, it->config, it->argv);
    if (code != HY_CLI_GO_ON) return code;
    it->shows_closing = !it->terminal.is_quiet;
    status = hy_cli_be_rank(&it->who, &it->terminal);
    if (status != HY_OK) return hy_cli_exit_code(status);
    if (!is_test) return train(it);
    bool has_nccl = strcmp(hy_cli_value(it->config, "transport"), "nccl") == 0;
    return it->who.count > 1 || has_nccl
               ? hy_cli_selftest_ranks(&it->terminal, it->config, &it->who)
               : hy_cli_selftest(&it->terminal, hy_cli_value(it->config, "device"));
}

static int with_config(job *it) {
    bool wants_json = it->options->wants_json;
    char *text = NULL;
    hy_status status = hy_cli_configure(it->options, NULL, &it->config);
    if (status != HY_OK) return hy_cli_exit_code(status);
    int code = HY_EXIT_DONE;
    switch (it->options->action) {
    case HY_CLI_IS_PRINT_CONFIG:
        code =
            wants_json
                ? hy_cli_config_json(it->config)
                : hy_cli_exit_code(hy_cli_print(stdout, hy_config_print(it->config, &text), &text));
        break;
    case HY_CLI_IS_DOCTOR:
        code = wants_json ? hy_cli_doctor_json(it->config)
                          : hy_cli_doctor(&it->terminal, it->options, it->config);
        break;
    case HY_CLI_IS_PLAN:
    case HY_CLI_IS_PLAN_SHAPES: code = plan(it); break;
    case HY_CLI_IS_SHOW_ROWS:
        code = hy_cli_exit_code(hy_cli_show_rows(&it->terminal, it->options, it->config));
        break;
    default: code = run_as_rank(it); break;
    }
    hy_config_destroy(it->config);
    return code;
}

/* --gpus and --ranks work with training and the self-test. --plan shows one of the ranks, and
 * --print-config the settings of all. */
static bool is_for_ranks(const hy_cli_options *options) {
    hy_cli_meaning action = options->action;
    bool is_set = options->gpus > 0 || options->ranks > 0;
    bool is_right = !is_set || action == HY_CLI_IS_KEY || action == HY_CLI_IS_PLAN ||
                    action == HY_CLI_IS_PRINT_CONFIG || action == HY_CLI_IS_HELP ||
                    action == HY_CLI_IS_SELFTEST;
    hy_cli_flag flag = {0};
    for (size_t i = 0; hy_cli_flag_at(i, &flag) && flag.meaning != action;) i++;
    if (!is_right)
        hy_cli_error("%s cannot be used with %s; it works with training, --plan, --print-config "
                     "and --selftest",
                     options->gpus > 0 ? "--gpus" : "--ranks", flag.flag);
    return is_right;
}

static int act(job *it) {
    if (!is_for_ranks(it->options)) return HY_EXIT_USAGE;
    switch (it->options->action) {
    case HY_CLI_IS_HELP: return hy_cli_help(&it->terminal, it->options->topic);
    case HY_CLI_IS_VERSION: puts("hybrid-train " HYBRID_VERSION); return HY_EXIT_DONE;
    case HY_CLI_IS_LIST_MODELS:
        return it->options->wants_json ? hy_cli_list_models_json()
                                       : hy_cli_list_models(&it->terminal);
    case HY_CLI_IS_COMPLETE: return hy_cli_complete(stdout);
    case HY_CLI_IS_DOWNLOAD: return hy_cli_exit_code(download(&it->terminal, it->options));
    case HY_CLI_IS_EVAL_ONLY: return hy_cli_exit_code(eval_only(&it->terminal, it->options));
    default: return with_config(it);
    }
}

int main(int argc, char **argv) {
    hy_cli_options options;
    int code = HY_EXIT_USAGE;
    hy_cli_open_streams();
    if (hy_cli_options_parse(argc, argv, &options)) {
        char *command = hy_cli_command_line(argc, argv);
        if (hy_cli_prints_warnings()) hy_cli_options_warn(&options);
        job it = {.program = argc > 0 ? argv[0] : "hybrid-train",
                  .command = command ? command : "",
                  .argv = argv,
                  .options = &options};
        bool is_run = options.action == HY_CLI_IS_KEY || options.action == HY_CLI_IS_EVAL_ONLY ||
                      options.action == HY_CLI_IS_DOWNLOAD;
        hy_cli_terminal_init(&it.terminal, options.wants_json && is_run ? stderr : stdout,
                             options.is_quiet, options.without_colour);
        code = hy_cli_flushed(act(&it));
        free(command);
    } else if (options.settings == NULL) {
        code = HY_EXIT_FAILED; /* no memory: the command line may be correct */
    }
    hy_cli_options_fini(&options);
    return code;
}
