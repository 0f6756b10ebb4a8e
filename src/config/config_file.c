/* config_file.c: reads libconfig texts. See config_file.h.
 *
 * Keys stand at the top or one level down, in the group the table gives them. Values become text
 * and are checked like values from anywhere else; only what text cannot tell apart (a number where
 * words belong, a group or list where one value belongs) is refused here. */
#include "config/config_file.h"

#include <libconfig.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"

enum { NAME_SIZE = 256, MOST_GROUPS = 16 };

typedef struct reader {
    const char *name;
    hy_config_sink sink;
    void *user;
} reader;

/* The value as text in `buffer`, or libconfig's own string. NULL for what is not a single value. */
static const char *value_as_text(const config_setting_t *setting, char buffer[HY_NUMBER_MAX]) {
    switch (config_setting_type(setting)) {
    case CONFIG_TYPE_INT:
    case CONFIG_TYPE_INT64:
        snprintf(buffer, HY_NUMBER_MAX, "%lld", config_setting_get_int64(setting));
        return buffer;
    case CONFIG_TYPE_FLOAT: return hy_number_format(config_setting_get_float(setting), buffer);
    case CONFIG_TYPE_BOOL: return config_setting_get_bool(setting) ? "true" : "false";
    case CONFIG_TYPE_STRING: return config_setting_get_string(setting);
    default: return NULL;
    }
}

static hy_status read_value(const reader *r, const config_setting_t *setting, const char *key) {
    unsigned line = config_setting_source_line(setting);
    const hy_setting *row = hy_setting_find(key, NULL);
    if (!row) {
        char where[HY_TEXT_MAX + 32];
        snprintf(where, sizeof where, "%s:%u: ", r->name, line);
        return hy_setting_unknown(where, key);
    }

    char buffer[HY_NUMBER_MAX];
    const char *value = value_as_text(setting, buffer);
    HY_FAIL_IF(!value, HY_ERR_INPUT,
               "%s:%u: %s takes one value, not a group or a list; accepted: %s", r->name, line,
               row->info.key, row->info.accepted);
    HY_FAIL_IF(row->type == HY_VALUE_TEXT && config_setting_type(setting) != CONFIG_TYPE_STRING,
               HY_ERR_INPUT, "%s:%u: %s = %s is not text; accepted: %s, in quotes", r->name, line,
               row->info.key, value, row->info.accepted);
    return r->sink(r->user, key, value, line);
}

static hy_status read_group(const reader *r, const config_setting_t *group) {
    int count = config_setting_length(group);
    for (int i = 0; i < count; i++) {
        const config_setting_t *member = config_setting_get_elem(group, (unsigned)i);
        char key[NAME_SIZE];
        snprintf(key, sizeof key, "%s.%s", config_setting_name(group), config_setting_name(member));
        HY_TRY(read_value(r, member, key));
    }
    return HY_OK;
}

/* "optimizer" is a group and also a key of that group: what stands there tells which is meant. */
static hy_status read_top(const reader *r, const config_setting_t *setting) {
    const char *name = config_setting_name(setting);
    unsigned line = config_setting_source_line(setting);
    bool is_group = config_setting_is_group(setting), is_key = hy_setting_find(name, NULL) != NULL;
    bool is_known_group = false;
    const char *groups[MOST_GROUPS];
    size_t count = 0;
    for (const char *group; (group = hy_setting_group_at(count)) && count < MOST_GROUPS;) {
        is_known_group |= strcmp(group, name) == 0;
        groups[count++] = group;
    }
    if (is_group && is_known_group) return read_group(r, setting);
    HY_FAIL_IF(!is_group && is_known_group && !is_key, HY_ERR_INPUT,
               "%s:%u: %s is a group, not a value; accepted: %s: { KEY = VALUE; }", r->name, line,
               name, name);
    if (!is_group || is_key) return read_value(r, setting, name);
    hy_text all = {0};
    for (size_t i = 0; i < count; i++) hy_text_addf(&all, "%s%s", i ? ", " : "", groups[i]);
    hy_status status =
        hy_fail(HY_ERR_INPUT, "%s:%u: unknown group %s; accepted: %s%s", r->name, line, name,
                hy_text_string(&all), hy_did_you_mean(hy_nearest_word(name, groups, count)).text);
    hy_text_free(&all);
    return status;
}

static hy_status parse(config_t *file, const char *text, const char *name) {
    if (config_read_string(file, text)) return HY_OK;
    const char *reason = config_error_text(file) ? config_error_text(file) : "syntax error";
    const char *hint = " (expected: KEY = VALUE; or GROUP: { ... }; with text in quotes)";
    return hy_fail(HY_ERR_INPUT, "%s:%d: %s%s", name, config_error_line(file), reason,
                   strcmp(reason, "syntax error") ? "" : hint);
}

hy_status hy_config_file_read(const char *text, size_t size, const char *name, hy_config_sink sink,
                              void *user) {
    reader r = {.name = name, .sink = sink, .user = user};
    hy_text safe = {0};
    config_t file;
    config_init(&file);
    hy_status status = hy_config_file_prepare(text, size, name, &safe);
    if (status == HY_OK) status = parse(&file, hy_text_string(&safe), name);
    if (status == HY_OK) {
        const config_setting_t *root = config_root_setting(&file);
        int count = config_setting_length(root);
        for (int i = 0; status == HY_OK && i < count; i++) {
            status = read_top(&r, config_setting_get_elem(root, (unsigned)i));
        }
    }
    config_destroy(&file);
    hy_text_free(&safe);
    return status;
}
