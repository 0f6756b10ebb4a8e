/* say.c: formats messages and passes them on. See say.h. */
#include "base/say.h"

#include <stdio.h>

#include "base/error.h"

void hy_say_list(const hy_observer *observer, hy_message_level level, const char *format,
                 va_list args) {
    char text[2 * HY_ERROR_MESSAGE_MAX];
    if (!observer->on_message) return;
    vsnprintf(text, sizeof text, format, args);
    observer->on_message(observer->user, level, text);
}

void hy_say_to(const hy_observer *observer, hy_message_level level, const char *format, ...) {
    va_list args;
    va_start(args, format);
    hy_say_list(observer, level, format, args);
    va_end(args);
}
