/* thread.c: starts threads. See thread.h. */
#include "base/thread.h"

#include <signal.h>
#include <stddef.h>

int hy_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0 && name) pthread_setname_np(*thread, name);
    return error;
}
