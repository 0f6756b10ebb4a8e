/* signals.c: the signal handler and the little it shares with the program.
 *
 * The handler uses only what POSIX allows there: lock-free atomics, write(), clock_gettime(),
 * _exit() and hy_trainer_request_stop(), which hybrid.h declares safe. */
#include "cli/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/program.h"

/* timeout(1) and some shells deliver one request twice, to the process and to its group. What
 * comes this soon after the first signal is the same request. */
#define SAME_REQUEST_NANOSECONDS 50000000LL

static _Atomic(hy_trainer *) guarded;
static atomic_bool is_over;
static atomic_llong asked_at;        /* clock of the first signal; 0: none yet */
static _Atomic(const char *) notice; /* NULL: say nothing */

static long long clock_nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (long long)time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void ask_to_stop(void) {
    hy_trainer *trainer = atomic_load(&guarded);
    const char *text = atomic_load(&notice);
    if (trainer != NULL) hy_trainer_request_stop(trainer);
    if (text == NULL) return;
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored; /* nobody is there to be told */
}

static void on_signal(int number) {
    int saved_errno = errno;
    long long now = clock_nanoseconds(), earlier = 0;
    if (atomic_load(&is_over)) _exit(128 + number);
    if (atomic_compare_exchange_strong(&asked_at, &earlier, now))
        ask_to_stop();
    else if (now - earlier >= SAME_REQUEST_NANOSECONDS)
        _exit(128 + number);
    errno = saved_errno;
}

void hy_cli_signals_install(bool is_quiet) {
    /* On a terminal the drawn line and the echoed ^C are left behind first. */
    const char *text = "\nstopping after this step; again to end at once\n";
    atomic_store(&notice, is_quiet ? NULL : isatty(STDERR_FILENO) ? text : text + 1);
    hy_cli_handle(SIGINT, on_signal, SA_RESTART);
    hy_cli_handle(SIGTERM, on_signal, SA_RESTART);
    /* A hangup stops like SIGTERM, unless nohup(1) or its like had it ignored. */
    struct sigaction current;
    if (sigaction(SIGHUP, NULL, &current) == 0 && current.sa_handler != SIG_IGN)
        hy_cli_handle(SIGHUP, on_signal, SA_RESTART);
    hy_cli_handle(SIGPIPE, SIG_IGN, SA_RESTART);
}

void hy_cli_signals_guard(hy_trainer *trainer) {
    atomic_store(&guarded, trainer);
    if (atomic_load(&asked_at) != 0) hy_trainer_request_stop(trainer);
}

void hy_cli_signals_release(void) {
    atomic_store(&is_over, true);
    atomic_store(&guarded, NULL);
}
