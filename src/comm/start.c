/* start.c: the rank functions of the public header: the rank of this process, and starting more
 * on this machine. */
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/sized.h"
#include "comm/launch.h"
#include "comm/ranks.h"
#include "hybrid.h"
#include "kernels/kernels.h"

#define GRACE_SECONDS 15 /* added to the timeout after which ranks notice a lost rank */
#define MOST_CARDS 250   /* an exit code holds no larger number */

hy_status hy_find_rank_sized(hy_rank_info *out, size_t size) {
    hy_ranks who;
    HY_TRY(hy_ranks_find(&who));
    hy_rank_info info = {.rank = who.rank,
                         .count = who.count,
                         .local_rank = who.local_rank,
                         .local_count = who.local_count,
                         .launcher = hy_ranks_source_name(who.source)};
    hy_copy_sized(out, size, &info, sizeof info);
    return HY_OK;
}

/* Should this process start ranks? Not if it is one of several ranks. A single Slurm task may
 * start them: an allocation is often one task with all cards of a machine. */
static hy_status must_start(const hy_start_options *options, bool *out) {
    hy_ranks who;
    HY_TRY(hy_ranks_find(&who));
    bool is_free = who.count == 1 && (who.source == HY_RANKS_ALONE || who.source == HY_RANKS_SLURM);
    *out = is_free && options->count > 1;
    HY_FAIL_IF(!is_free && who.count != options->count, HY_ERR_INPUT,
               "%d ranks were requested, but %s started %d (%s is %d): request the same number, "
               "omit it, or unset the variables of %s",
               options->count, hy_ranks_source_name(who.source), who.count,
               hy_ranks_count_variable(who.source), who.count, hy_ranks_source_name(who.source));
    return HY_OK;
}

/* Counts them in a child process: the driver's threads would receive the launcher's signals. */
static int count_cards(void) {
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        int count = hy_cuda_card_count();
        _exit(count < MOST_CARDS ? count : MOST_CARDS);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return 0;
    return WEXITSTATUS(status);
}

static hy_status check_cards(int32_t wanted) {
    HY_FAIL_IF(!hy_cuda_has_driver(), HY_ERR_INPUT,
               "each rank needs a card, but this machine has no NVIDIA driver (libcuda.so.1 was "
               "not found); --ranks %d starts ranks on the CPU",
               wanted);
    int found = count_cards();
    HY_FAIL_IF(found < wanted, HY_ERR_INPUT,
               "each rank needs a card, but CUDA finds only %d (nvidia-smi lists all cards, "
               "CUDA_VISIBLE_DEVICES may hide some); --ranks %d starts ranks that share a card or "
               "use the CPU",
               found, wanted);
    return HY_OK;
}

hy_status hy_start_ranks(const hy_start_options *options, bool *has_started, int *exit_code) {
    double timeout = options->rank_timeout > 0 ? options->rank_timeout : 60;
    hy_launch_options launch = {
        .count = options->count, .argv = options->argv, .grace = timeout + GRACE_SECONDS};
    bool is_wanted;
    *exit_code = 1;
    *has_started = false;
    HY_TRY(must_start(options, &is_wanted));
    if (!is_wanted) return HY_OK;
    if (options->uses_cards) HY_TRY(check_cards(options->count));
    HY_TRY(hy_launch(&launch, exit_code));
    *has_started = true;
    return HY_OK;
}
