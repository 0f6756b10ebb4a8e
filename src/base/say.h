/* say.h: messages for whoever observes a run. */
#pragma once

#include <stdarg.h>

#include "hybrid.h"

/* Nothing happens where the observer takes no messages. Long ones are cut. */
void hy_say_to(const hy_observer *observer, hy_message_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void hy_say_list(const hy_observer *observer, hy_message_level level, const char *format,
                 va_list args) __attribute__((format(printf, 3, 0)));
