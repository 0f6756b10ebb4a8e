/* harness.h: what every test program needs around Check.
 *
 * A test file writes its tests, adds them to a suite and ends with HY_TEST_MAIN(suite_function).
 * Temporary folders are made under $TMPDIR and removed with all they hold. */
#ifndef HY_TESTS_HARNESS_H
#define HY_TESTS_HARNESS_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

/* Where a list of cases is long, the fast tests take every n-th. tests/long/test_NAME_all.c, which
 * defines HY_ALL_CASES and includes tests/test_NAME.c, takes all of them. COUNT_EVERY: how many of
 * `count`. */
#ifdef HY_ALL_CASES
#define EVERY(n) 1
#else
#define EVERY(n) (n)
#endif
#define COUNT_EVERY(count, n) (((count) + EVERY(n) - 1) / EVERY(n))

/* A call that must succeed; prints the library's message when it does not. */
#define must(call)                                                                                 \
    do {                                                                                           \
        hy_status must_status_ = (call);                                                           \
        ck_assert_msg(must_status_ == HY_OK, "%s: %s", #call, hy_error_message());                 \
    } while (0)

/* A call that must fail with `expected`, its message holding `fragment`. */
#define must_fail(call, expected, fragment)                                                        \
    do {                                                                                           \
        hy_status must_status_ = (call);                                                           \
        ck_assert_msg(must_status_ == (expected), "%s gave %s", #call,                             \
                      hy_status_name(must_status_));                                               \
        ck_assert_msg(strstr(hy_error_message(), (fragment)) != NULL,                              \
                      "%s: the message lacks \"%s\": %s", #call, (fragment), hy_error_message());  \
    } while (0)

/* Makes a fresh folder; returns its path in a static buffer of the caller's. */
static inline const char *temp_folder(char path[256]) {
    const char *base = getenv("TMPDIR");
    snprintf(path, 256, "%s/hybrid-test-XXXXXX", base && *base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(path));
    return path;
}

static inline void remove_folder(const char *path) { must(hy_dir_remove(path)); }

/* Check ends a test after four seconds by default; busy machines need more. It reads the variable
 * when a suite is made, so the variable is set before main. */
__attribute__((constructor)) static void allow_busy_machines(void) {
    setenv("CK_DEFAULT_TIMEOUT", "120", 0);
}

static inline int run_suite(Suite *suite) {
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#define HY_TEST_MAIN(make_suite)                                                                   \
    int main(void) { return run_suite(make_suite()); }

#endif
