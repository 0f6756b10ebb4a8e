/* error.c: the calling thread's last failure message. See error.h. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char error_message[HY_ERROR_MESSAGE_MAX];

hy_status hy_fail(hy_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error_message, sizeof error_message, format, args);
    va_end(args);
    return status;
}

hy_status hy_fail_context(hy_status status, const char *format, ...) {
    char message[HY_ERROR_MESSAGE_MAX];
    memcpy(message, error_message, sizeof message);
    va_list args;
    va_start(args, format);
    int used = vsnprintf(error_message, sizeof error_message, format, args);
    va_end(args);
    size_t end = used < 0 ? 0 : (size_t)used;
    if (end < sizeof error_message) {
        snprintf(error_message + end, sizeof error_message - end, ": %s", message);
    }
    return status;
}

const char *hy_error_message(void) { return error_message; }
