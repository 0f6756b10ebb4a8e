/* ranks.c: starts ranks, or runs as one. See ranks.h.
 *
 * The process that starts the ranks only waits for them and returns their exit code; with
 * --restarts it starts them again with the same command. A rank that another program started finds
 * its number in the environment. */
#include "cli/ranks.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/program.h"

static bool is_by_us(const hy_rank_info *who) { return strcmp(who->launcher, "hybrid-train") == 0; }

/* ---- starting ranks -------------------------------------------------------------------------- */

/* Rank i uses card i, so the device must be auto or cuda. */
static bool take_cards(int32_t gpus, hy_config *config) {
    const char *device = hy_cli_value(config, "device");
    bool is_cpu = strcmp(device, "cpu") == 0, is_one_card = strncmp(device, "cuda:", 5) == 0;
    if (is_cpu)
        hy_cli_error(
            "--gpus %d needs GPUs, but device is cpu; use --ranks %d to start ranks on the CPU",
            gpus, gpus);
    if (is_one_card)
        hy_cli_error("--gpus %d uses one card per rank, starting with the first, but device is %s; "
                     "expected auto or cuda (CUDA_VISIBLE_DEVICES selects cards)",
                     gpus, device);
    if (is_cpu || is_one_card) return false;
    return hy_cli_checked(hy_config_set(config, "device", "cuda", HY_FROM_FLAG)) == HY_OK;
}

static bool is_one_flag(const hy_cli_options *options) {
    if (options->gpus == 0 || options->ranks == 0) return true;
    return hy_cli_refuse(
        false,
        "--gpus %d and --ranks %d cannot be combined: --gpus uses one card per rank; "
        "--ranks uses the CPU or shares a card",
        options->gpus, options->ranks);
}

bool hy_cli_check_ranks(const hy_cli_options *options, hy_config *config, bool has_model) {
    if (options->gpus == 0 && options->ranks == 0) return true;
    if (!is_one_flag(options)) return false;
    if (!has_model)
        return hy_cli_refuse(false, "--plan with several ranks needs a model: add --model NAME");
    /* a card that is not in this machine */
    bool is_named = hy_cli_value(config, "card")[0] != '\0';
    return options->gpus == 0 || is_named || take_cards(options->gpus, config);
}

/* ---- restarts -------------------------------------------------------------------------------- */

static bool can_restart(const hy_cli_options *options, const hy_config *config, int32_t count) {
    const char *out = hy_cli_value(config, "out");
    bool has_folder = strcmp(out, "none") != 0 && (out[0] || hy_cli_value(config, "resume")[0]);
    const char *problem = options->action == HY_CLI_IS_SELFTEST
                              ? "cannot be used with --selftest, which saves no checkpoints"
                          : count == 0
                              ? "needs ranks that this command starts: add --gpus or --ranks"
                          : !has_folder ? "needs a run folder to continue in: add --out FOLDER"
                                        : NULL;
    if (options->restarts == 0 || problem == NULL) return true;
    return hy_cli_refuse(false, "--restarts %d %s", options->restarts, problem);
}

/* A checkpoint saved by this run: with --overwrite, the folder may also contain checkpoints of an
 * earlier run that are to be deleted. */
static bool has_saved(const char *out, time_t since) {
    DIR *folder = opendir(out);
    bool is_there = false;
    for (struct dirent *entry; folder && (entry = readdir(folder)) && !is_there;) {
        struct stat facts;
        is_there = strncmp(entry->d_name, "checkpoint-", 11) == 0 &&
                   fstatat(dirfd(folder), entry->d_name, &facts, 0) == 0 && facts.st_mtime >= since;
    }
    if (folder) closedir(folder);
    return is_there;
}

static bool is_flag(const char *text, const char *flag) {
    size_t length = strlen(flag);
    return strncmp(text, flag, length) == 0 && (text[length] == 0 || text[length] == '=');
}

/* The same command, continuing from the run's newest checkpoint, or starting over if there is none.
 * Its texts are those of argv; a checkpoint's name is replaced by that of its run. */
static char **command_again(char *const *argv, const char *out, time_t since) {
    static char resume[] = "--resume=auto", overwrite[] = "--overwrite";
    int count = 0, used = 0;
    bool resumes = false;
    while (argv[count]) count++;
    char **again = calloc((size_t)count + 2, sizeof *again);
    if (!again) return NULL;
    for (int i = 0; i < count; i++) {
        bool is_named =
            is_flag(argv[i], "--resume") || (i > 0 && strcmp(argv[i - 1], "--resume") == 0);
        char *name = is_named ? strstr(argv[i], "/checkpoint-") : NULL;
        if (name) *name = 0;
        resumes |= is_named;
        if (!is_flag(argv[i], "--overwrite")) again[used++] = argv[i];
    }
    if (!resumes) again[used] = has_saved(out, since) ? resume : overwrite;
    return again;
}

/* Runs until the ranks succeed, are stopped, or have failed too many times. */
static hy_status start_and_restart(const hy_cli_options *options, const hy_config *config,
                                   hy_start_options start, bool *has_started, int *code) {
    char *const *argv = start.argv;
    char **again = NULL;
    time_t since = time(NULL);
    hy_status status = hy_start_ranks(&start, has_started, code);
    for (int32_t i = 1; i <= options->restarts; i++) {
        bool is_over = status != HY_OK || !*has_started || *code != HY_EXIT_FAILED;
        if (is_over) break;
        free(again);
        again = command_again(argv, hy_cli_value(config, "out"), since);
        if (!again) break;
        hy_cli_note("restarting all ranks (%d of %d)", i, options->restarts);
        sleep(1); /* by then the system has released what the ranks held */
        start.argv = again;
        status = hy_start_ranks(&start, has_started, code);
    }
    free(again);
    return status;
}

int hy_cli_start_ranks(const hy_cli_options *options, hy_config *config, char *const *argv) {
    int32_t gpus = options->gpus, count = gpus ? gpus : options->ranks;
    hy_start_options start = {.count = count, .argv = argv, .uses_cards = gpus > 0};
    const char *flag = gpus ? "--gpus" : "--ranks";
    bool has_started = false;
    int code = HY_EXIT_FAILED;
    if (!can_restart(options, config, count)) return HY_EXIT_USAGE;
    if (count == 0) return HY_CLI_GO_ON;
    if (!is_one_flag(options)) return HY_EXIT_USAGE;
    if (gpus > 0 && !take_cards(gpus, config)) return HY_EXIT_USAGE;
    sscanf(hy_cli_value(config, "rank_timeout"), "%lf", &start.rank_timeout);
    hy_status status = start_and_restart(options, config, start, &has_started, &code);
    if (status != HY_OK)
        return hy_cli_refuse(hy_cli_exit_code(status), "%s %d: %s", flag, count,
                             hy_error_message());
    return has_started ? code : HY_CLI_GO_ON;
}

/* ---- running as a rank ----------------------------------------------------------------------- */

hy_status hy_cli_be_rank(hy_rank_info *who, hy_cli_terminal *terminal) {
    static char name[64];
    hy_status status = hy_cli_checked(hy_find_rank(who));
    if (status != HY_OK || who->rank == 0) return status;
    terminal->is_quiet = true;
    if (is_by_us(who)) return HY_OK;
    snprintf(name, sizeof name, "hybrid-train, rank %d", who->rank);
    hy_cli_name_program(name);
    return HY_OK;
}

bool hy_cli_prints_warnings(void) {
    hy_rank_info who;
    return hy_find_rank(&who) != HY_OK || (who.rank == 0 && !is_by_us(&who));
}

int hy_cli_fail_as(const hy_rank_info *who, hy_status status) {
    /* Whether the message is about another rank: "rank 2 (host, pid 77): its last error" or "rank 2
     * (host, pid 77) is gone". */
    const char *message = hy_error_message(), *end = strchr(message, ')');
    int whose = -1;
    bool names_rank = sscanf(message, "rank %d (", &whose) == 1 && end != NULL;
    bool has_message = names_rank && end[1] == ':';
    bool is_printed = !names_rank || who->rank == 0 || whose == who->rank;
    /* printed for rank 0 if rank 0 is gone */
    if (whose == 0 && !has_message) is_printed |= who->rank == 1;
    return is_printed ? hy_cli_fail(status) : hy_cli_exit_code(status);
}
