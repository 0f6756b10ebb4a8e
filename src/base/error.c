/* error.c: the last error of the calling thread. See error.h.
 *
 * A text is formatted into a temporary buffer first, because its arguments may point into the last
 * error. */
#include "base/error.h"

#include <stdio.h>
#include <string.h>

static _Thread_local hy_error last;

hy_status hy_fail_list(hy_status status, const char *format, va_list arguments) {
    char text[HY_ERROR_MESSAGE_MAX] = "";
    vsnprintf(text, sizeof text, format, arguments);
    memcpy(last.text, text, sizeof text);
    last.origin = HY_ERROR_LOCAL;
    last.status = status;
    return status;
}

hy_status hy_fail(hy_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    hy_fail_list(status, format, arguments);
    va_end(arguments);
    return status;
}

hy_status hy_fail_agreed(hy_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    hy_fail_list(status, format, arguments);
    va_end(arguments);
    last.origin = HY_ERROR_AGREED;
    return status;
}

/* Joins "front" and "behind" with `between`; a text that is too long loses its end. */
static void join(const char *front, size_t front_size, const char *between, const char *behind) {
    char whole[2 * HY_ERROR_MESSAGE_MAX + 8] = "";
    snprintf(whole, sizeof whole, "%.*s%s%s", (int)front_size, front, between, behind);
    memcpy(last.text, whole, sizeof last.text - 1);
}

hy_status hy_fail_context(hy_status status, const char *format, ...) {
    hy_error before = last;
    char context[HY_ERROR_MESSAGE_MAX] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(context, sizeof context, format, arguments);
    va_end(arguments);
    join(context, sizeof context, ": ", before.text);
    return last.status = status;
}

hy_status hy_fail_hint(hy_status status, const char *format, ...) {
    hy_error before = last;
    char hint[HY_ERROR_MESSAGE_MAX] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(hint, sizeof hint, format, arguments);
    va_end(arguments);
    size_t needed = strlen("; ") + strlen(hint) + 1;
    join(before.text, needed < sizeof hint ? sizeof hint - needed : 0, "; ", hint);
    return last.status = status;
}

const hy_error *hy_error_last(void) { return &last; }

const char *hy_error_message(void) { return last.text; }

hy_error_origin hy_error_origin_of(hy_status status) {
    return status == last.status ? last.origin : HY_ERROR_LOCAL;
}

void hy_error_save(hy_error *out, hy_status status) {
    hy_error_origin origin = hy_error_origin_of(status);
    *out = status == HY_OK ? (hy_error){.status = HY_OK} : last;
    out->status = status;
    out->origin = origin;
}

hy_status hy_error_restore(const hy_error *error) {
    if (error->status != HY_OK) last = *error;
    return error->status;
}
