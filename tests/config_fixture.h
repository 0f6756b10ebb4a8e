/* config_fixture.h: what the two test programs of the configuration share: a fresh configuration
 * and folder around every test, and short words for looking at values and refusals. */
#ifndef HY_TESTS_CONFIG_FIXTURE_H
#define HY_TESTS_CONFIG_FIXTURE_H

#include "config/settings.h"
#include "harness.h"

static hy_config *config; /* fresh for every test */
static char folder[256];

static void setup(void) {
    must(hy_config_create(&config));
    temp_folder(folder);
}

static void teardown(void) {
    hy_config_destroy(config);
    remove_folder(folder);
}

/* Writes a file into the test's folder; the path lives until the next call. */
static const char *file_with(const char *name, const char *text) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    must(hy_file_write_atomic(path, text, strlen(text)));
    return path;
}

static const char *value_of(const char *key) {
    const char *text;
    must(hy_config_get(config, key, &text, NULL));
    return text;
}

static const char *origin_of(const char *key) {
    const char *origin;
    must(hy_config_get(config, key, NULL, &origin));
    return origin;
}

static char *printed(const hy_config *c) {
    char *text;
    must(hy_config_print(c, &text));
    return text;
}

#define set(key, text, origin) must(hy_config_set(config, key, text, origin))
#define is_value(key, expected) ck_assert_str_eq(value_of(key), expected)
#define is_origin(key, expected) ck_assert_str_eq(origin_of(key), expected)

/* A call that must fail, with a message holding each of the fragments and the configuration as it
 * was before. */
#define must_refuse(call, ...)                                                                     \
    do {                                                                                           \
        const char *fragments_[] = {__VA_ARGS__};                                                  \
        char *before_ = printed(config);                                                           \
        ck_assert_int_eq((call), HY_ERR_INPUT);                                                    \
        for (size_t i_ = 0; i_ < sizeof fragments_ / sizeof fragments_[0]; i_++) {                 \
            ck_assert_msg(strstr(hy_error_message(), fragments_[i_]) != NULL,                      \
                          "the message lacks \"%s\": %s", fragments_[i_], hy_error_message());     \
        }                                                                                          \
        char *after_ = printed(config);                                                            \
        ck_assert_str_eq(before_, after_);                                                         \
        hy_free(before_);                                                                          \
        hy_free(after_);                                                                           \
    } while (0)

#endif
