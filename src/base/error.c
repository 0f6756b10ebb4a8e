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

/* Copies as much of `text` as fits behind the first `used` characters. */
static size_t append(size_t used, const char *text) {
    while (*text && used + 1 < sizeof error_message) error_message[used++] = *text++;
    error_message[used] = 0;
    return used;
}

hy_status hy_fail_context(hy_status status, const char *format, ...) {
    char tail[HY_ERROR_MESSAGE_MAX], head[HY_ERROR_MESSAGE_MAX];
    memcpy(tail, error_message, sizeof tail);
    va_list args;
    va_start(args, format);
    vsnprintf(head, sizeof head, format, args);
    va_end(args);
    append(append(append(0, head), ": "), tail);
    return status;
}

const char *hy_error_message(void) { return error_message; }
