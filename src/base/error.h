/* error.h: how a call fails.
 *
 * A function that can fail returns hy_status. The one that notices the failure leaves a message with
 * hy_fail(), naming the thing, the value and what was expected; those above pass the status up with
 * HY_TRY() and may put their own context in front with hy_fail_context(). One message per thread,
 * kept until the next failure. Nothing here prints or exits. */
#pragma once

#include "hybrid_types.h"

#define HY_ERROR_MESSAGE_MAX 1024

/* Records a message and returns `status`, so that callers write `return hy_fail(...)`. */
hy_status hy_fail(hy_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "context: " in front of the current message and returns `status` unchanged. */
hy_status hy_fail_context(hy_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The calling thread's last message; "" when nothing failed yet. */
const char *hy_error_message(void);

/* Fails with a message where the condition holds: status, format and values as for hy_fail(). */
#define HY_FAIL_IF(condition, ...)                                                                 \
    do {                                                                                           \
        if (condition) return hy_fail(__VA_ARGS__);                                                \
    } while (0)

/* Passes a failure up. */
#define HY_TRY(expression)                                                                         \
    do {                                                                                           \
        hy_status hy_try_status_ = (expression);                                                   \
        if (hy_try_status_ != HY_OK) return hy_try_status_;                                        \
    } while (0)

/* Passes a failure up after cleaning: sets `status` and jumps to `label`. */
#define HY_TRY_TO(label, status, expression)                                                       \
    do {                                                                                           \
        (status) = (expression);                                                                   \
        if ((status) != HY_OK) goto label;                                                         \
    } while (0)
