/* clock.h: monotonic time and the calendar. */
#pragma once

#include <stddef.h>

double hy_clock(void);      /* monotonic seconds from an arbitrary origin */
double hy_clock_unix(void); /* seconds since 1970 by the system clock */

/* Local time as "20260131-235959". */
void hy_clock_stamp(char *buffer, size_t size);
