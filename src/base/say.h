/* say.h: messages for the observer of a run. */
#pragma once

#include <stdarg.h>

#include "hybrid.h"

/* Does nothing if the observer takes no messages. Long messages are cut. */
void hy_say_to(const hy_observer *observer, hy_message_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void hy_say_list(const hy_observer *observer, hy_message_level level, const char *format,
                 va_list args) __attribute__((format(printf, 3, 0)));
