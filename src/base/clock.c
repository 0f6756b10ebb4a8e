/* clock.c: time. See clock.h. */
#include "base/clock.h"

#include <time.h>

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double hy_clock(void) { return seconds_of(CLOCK_MONOTONIC); }

double hy_clock_unix(void) { return seconds_of(CLOCK_REALTIME); }

void hy_clock_stamp(char *buffer, size_t size) {
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(buffer, size, "%Y%m%d-%H%M%S", &local);
}
