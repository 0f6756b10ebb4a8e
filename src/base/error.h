/* error.h: how a call fails.
 *
 * A function that can fail returns hy_status. The one that notices the failure leaves an error with
 * hy_fail(): a status, an origin and a text that names the thing, the value and what was expected.
 * Those above pass the status up with HY_TRY() and may add text with hy_fail_context() or
 * hy_fail_hint(). Each thread has one last error, kept until its next failure. Decisions read
 * status and origin; the text is for people. Nothing here prints or exits. */
#pragma once

#include <stdarg.h>

#include "hybrid_types.h"

#define HY_ERROR_MESSAGE_MAX 1024

/* Who knows about a failure. Ranks may only retry together. */
typedef enum hy_error_origin {
    HY_ERROR_LOCAL = 0, /* this process noticed it; other ranks may not know it */
    HY_ERROR_AGREED     /* every rank returns this error from the same call */
} hy_error_origin;

typedef struct hy_error {
    hy_status status; /* HY_OK: no error */
    hy_error_origin origin;
    char text[HY_ERROR_MESSAGE_MAX];
} hy_error;

/* Leaves a local error and returns `status`, so that callers write `return hy_fail(...)`. */
hy_status hy_fail(hy_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* As hy_fail, of a list of arguments. */
hy_status hy_fail_list(hy_status status, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
/* As hy_fail, with the origin HY_ERROR_AGREED. */
hy_status hy_fail_agreed(hy_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts "context: " before the text of the last error. The origin stays. Returns `status`. */
hy_status hy_fail_context(hy_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Appends "; hint" to the text of the last error, which is cut if both do not fit. The origin
 * stays. Returns `status`. */
hy_status hy_fail_hint(hy_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The last error of the calling thread; HY_OK and "" if nothing has failed yet. */
const hy_error *hy_error_last(void);
const char *hy_error_message(void); /* its text */
/* The origin of the last error; HY_ERROR_LOCAL if that error has another status, because then the
 * function that returned `status` left no error. */
hy_error_origin hy_error_origin_of(hy_status status);

/* Saves the error of a call that returned `status` while other calls may fail; {0} for HY_OK. */
void hy_error_save(hy_error *out, hy_status status);
/* Makes a saved error the last error of the calling thread again, unless it is HY_OK. Returns its
 * status. */
hy_status hy_error_restore(const hy_error *error);

/* Fails with a message if the condition holds: status, format and values as for hy_fail(). */
#define HY_FAIL_IF(condition, ...)                                                                 \
    do {                                                                                           \
        if (condition) return hy_fail(__VA_ARGS__);                                                \
    } while (0)

/* Returns a failure to the caller. */
#define HY_TRY(expression)                                                                         \
    do {                                                                                           \
        hy_status hy_try_status_ = (expression);                                                   \
        if (hy_try_status_ != HY_OK) return hy_try_status_;                                        \
    } while (0)

/* On failure, sets `status` and jumps to `label` for clean-up. */
#define HY_TRY_TO(label, status, expression)                                                       \
    do {                                                                                           \
        (status) = (expression);                                                                   \
        if ((status) != HY_OK) goto label;                                                         \
    } while (0)
