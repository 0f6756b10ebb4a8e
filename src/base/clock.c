/* clock.c: time. See clock.h. */
#include "base/clock.h"

#include <time.h>

double hy_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void hy_clock_stamp(char *buffer, size_t size) {
    time_t now = time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    strftime(buffer, size, "%Y%m%d-%H%M%S", &local);
}
