/* skipped_time.h: skips time. A program that includes this file is linked with --wrap=hy_clock
 * (make/tests.mk): skip_time() advances every later reading of the clock, as if the test had
 * slept. */
#ifndef HY_TESTS_SKIPPED_TIME_H
#define HY_TESTS_SKIPPED_TIME_H

#include <stdatomic.h>

#include "base/clock.h"

double __real_hy_clock(void);
double __wrap_hy_clock(void);

static _Atomic double skipped_seconds;

double __wrap_hy_clock(void) { return __real_hy_clock() + skipped_seconds; }

static inline void skip_time(double seconds) { skipped_seconds = skipped_seconds + seconds; }

#endif
