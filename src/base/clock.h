/* clock.h: seconds that only go forward, and the calendar. */
#ifndef HY_BASE_CLOCK_H
#define HY_BASE_CLOCK_H

#include <stddef.h>

double hy_clock(void); /* monotonic seconds from an arbitrary origin */

/* Local time as "20260131-235959". */
void hy_clock_stamp(char *buffer, size_t size);

#endif
