/* config_file.c: reads configuration files with libconfig. See config_file.h.
 *
 * Every text passes config_guard.c first. Keys are at the top level or one level down, in the group
 * that the table gives them. Values become text and are checked like values from any other origin.
 * Only what text cannot distinguish is rejected here: a number where a string is expected, or a
 * list where one value is expected. Files are parsed before anything else of a run is allocated. */
#include "config/config_file.h"

#include <libconfig.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/number.h"

enum { NAME_SIZE = 128, GROUPS_MAX = 16 };

typedef struct reader {
    const char *name;
    hy_config_sink sink;
    void *user;
    hy_text mistakes; /* messages about keys and values, one line each */
    int left_out;     /* mistakes beyond HY_ERROR_MESSAGE_MAX */
} reader;

/* Keeps the message of a wrong key or value, so that a file's mistakes are all reported at once.
 * Other failures end the reading. */
static hy_status collect(reader *r, hy_status status) {
    enum { ROOM = HY_ERROR_MESSAGE_MAX - 32 };
    if (status != HY_ERR_INPUT) return status;
    const char *message = hy_error_message();
    bool fits = !r->left_out && r->mistakes.size + strlen(message) < ROOM;
    if (fits || !r->mistakes.size)
        hy_text_addf(&r->mistakes, "%s%s", r->mistakes.size ? "\n" : "", message);
    else
        r->left_out++;
    return HY_OK;
}

static hy_status report_mistakes(const reader *r) {
    HY_TRY(hy_text_status(&r->mistakes));
    if (!r->mistakes.size) return HY_OK;
    char more[32] = "";
    if (r->left_out) snprintf(more, sizeof more, "\nand %d more", r->left_out);
    return hy_fail(HY_ERR_INPUT, "%s%s", hy_text_string(&r->mistakes), more);
}

/* The value as text, in `buffer` unless it is a string. NULL: a group, a list or an array. */
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
    bool is_string = config_setting_type(setting) == CONFIG_TYPE_STRING;
    HY_FAIL_IF(row->type == HY_VALUE_TEXT && !is_string, HY_ERR_INPUT,
               "%s:%u: %s = %s is not text; accepted: %s, in quotes", r->name, line, row->info.key,
               value, row->info.accepted);
    return r->sink(r->user, key, value, line);
}

static hy_status read_group(reader *r, const config_setting_t *group) {
    for (int i = 0; i < config_setting_length(group); i++) {
        const config_setting_t *member = config_setting_get_elem(group, (unsigned)i);
        char key[2 * NAME_SIZE];
        snprintf(key, sizeof key, "%s.%.*s", config_setting_name(group), NAME_SIZE - 1,
                 config_setting_name(member));
        HY_TRY(collect(r, read_value(r, member, key)));
    }
    return HY_OK;
}

/* Reads a setting outside any group. "optimizer" is both a group and a key of that group: the type
 * of its value decides. */
static hy_status read_top(reader *r, const config_setting_t *setting) {
    const char *groups[GROUPS_MAX];
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "%s", config_setting_name(setting));
    unsigned line = config_setting_source_line(setting);
    bool is_group = config_setting_is_group(setting), is_known_group = false;
    size_t count = 0;
    for (const char *each; count < GROUPS_MAX && (each = hy_setting_group_at(count));) {
        is_known_group |= strcmp(each, name) == 0;
        groups[count++] = each;
    }
    if (is_group && is_known_group) return read_group(r, setting);
    bool is_key = hy_setting_find(name, NULL) != NULL;
    HY_FAIL_IF(is_known_group && !is_key, HY_ERR_INPUT,
               "%s:%u: %s is a group, not a value; accepted: %s: { KEY = VALUE; }", r->name, line,
               name, name);
    if (!is_group || is_key || hy_config_hint(name)) return read_value(r, setting, name);
    hy_text all = {0};
    for (size_t i = 0; i < count; i++) hy_text_addf(&all, "%s%s", i ? ", " : "", groups[i]);
    hy_status status =
        hy_fail(HY_ERR_INPUT, "%s:%u: unknown group %s; accepted: %s%s", r->name, line, name,
                hy_text_string(&all), hy_did_you_mean(hy_nearest_word(name, groups, count)).text);
    hy_text_free(&all);
    return status;
}

/* libconfig ends the process if an allocation fails while it parses. It needs at most about 50
 * bytes for each byte of text, so we allocate and free more than that first. */
static hy_status ensure_memory(size_t text_size) {
    size_t bytes = 64 * text_size + (64 << 10);
    void *volatile block = malloc(bytes); /* volatile: the compiler would remove malloc and free */
    HY_FAIL_IF(!block, HY_ERR_MEMORY,
               "not enough memory to parse a configuration: %zu bytes needed", bytes);
    free(block);
    return HY_OK;
}

static hy_status parse(config_t *file, const char *text, const char *name) {
    if (config_read_string(file, text)) return HY_OK;
    const char *said = config_error_text(file), *expected = "";
    if (!said) said = "syntax error";
    if (!strcmp(said, "syntax error"))
        expected = " (expected: KEY = VALUE; or GROUP: { ... }; with text in quotes)";
    else if (!strncmp(said, "duplicate", 9))
        expected = ": a file can set a key only once and have a group only once";
    return hy_fail(HY_ERR_INPUT, "%s:%d: %s%s", name, config_error_line(file), said, expected);
}

static bool is_yaml(const char *name) {
    static const char *const endings[] = {".yaml", ".yml", ".json"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t ending = strlen(endings[i]);
        if (length > ending && !strcasecmp(name + length - ending, endings[i])) return true;
    }
    return false;
}

hy_status hy_config_file_read(const char *text, size_t size, const char *name, hy_config_sink sink,
                              void *user) {
    reader r = {.name = name, .sink = sink, .user = user};
    hy_text safe = {0}, rewritten = {0};
    hy_status status = hy_config_check_size(size, name);
    if (status == HY_OK && is_yaml(name)) {
        status = hy_config_from_yaml(text, size, name, &rewritten);
        text = hy_text_string(&rewritten);
        size = rewritten.size;
    }
    if (status == HY_OK) status = hy_config_guard(text, size, name, &safe);
    if (status == HY_OK) status = ensure_memory(safe.size);
    if (status == HY_OK) {
        config_t file;
        config_init(&file);
        status = parse(&file, hy_text_string(&safe), name);
        const config_setting_t *root = config_root_setting(&file);
        for (int i = 0; status == HY_OK && i < config_setting_length(root); i++)
            status = collect(&r, read_top(&r, config_setting_get_elem(root, (unsigned)i)));
        config_destroy(&file);
    }
    if (status == HY_OK) status = report_mistakes(&r);
    hy_text_free(&r.mistakes);
    hy_text_free(&safe);
    hy_text_free(&rewritten);
    return status;
}
