/* thread.h: starts threads of the library. */
#pragma once

#include <pthread.h>

/* Starts a thread with all signals blocked, because the main thread handles them. `name` is what
 * the system shows, at most 15 characters; NULL: none. Returns 0 or an errno. */
int hy_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument);
