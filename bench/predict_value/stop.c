/* stop.c: Ctrl-C ends the run in progress after its step; a second one ends the program at once.
 *
 * The handler uses only what POSIX allows: lock-free atomics, _exit and hy_trainer_request_stop. */
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "runs.h"

static _Atomic(hy_trainer *) guarded;
static atomic_bool was_asked;

static void on_signal(int number) {
    hy_trainer *trainer = atomic_load(&guarded);
    if (atomic_exchange(&was_asked, true)) _exit(128 + number);
    if (trainer) hy_trainer_request_stop(trainer);
}

void pv_stop_install(void) {
    struct sigaction action = {.sa_flags = SA_RESTART};
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void pv_stop_guard(hy_trainer *trainer) {
    atomic_store(&guarded, trainer);
    if (trainer && atomic_load(&was_asked)) hy_trainer_request_stop(trainer);
}

bool pv_stop_asked(void) { return atomic_load(&was_asked); }
