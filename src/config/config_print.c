/* config_print.c: prints the resulting configuration as libconfig text.
 *
 * One line per key, grouped as in the table, with the value's origin as a comment. Loading the text
 * gives the same values again: strings are escaped as libconfig expects, and all values are in
 * canonical spelling. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "config/builtin.h"
#include "config/settings.h"

/* The number of bytes of a control character, 0 for others. Terminals also obey those of two
 * bytes. */
static int control_bytes(const unsigned char *c) {
    if (*c < 0x20 || *c == 0x7f) return 1;
    return c[0] == 0xC2 && c[1] >= 0x80 && c[1] < 0xA0 ? 2 : 0;
}

static void print_value(hy_text *out, const hy_setting *setting, const char *text) {
    bool is_words = setting->type == HY_VALUE_CHOICE || setting->type == HY_VALUE_TEXT;
    bool has_unit = setting->type == HY_VALUE_BYTES && strpbrk(text, "KMGT");
    if (is_words || has_unit) {
        hy_text_add(out, "\"");
        for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
            if (*c == '"' || *c == '\\') {
                hy_text_addf(out, "\\%c", *c);
            } else if (control_bytes(c)) {
                hy_text_addf(out, "\\x%02x", *c);
                if (control_bytes(c) == 2) hy_text_addf(out, "\\x%02x", *++c);
            } else {
                hy_text_add_bytes(out, c, 1);
            }
        }
        hy_text_add(out, "\"");
    } else {
        /* Some versions of libconfig read more than 32 bits only if the number ends in L. */
        bool is_long = strspn(text, "0123456789") == strlen(text) && strlen(text) > 9;
        hy_text_addf(out, "%s%s", text, is_long ? "L" : "");
    }
}

/* Resolves links in all parts of the path but the last: the ending of the last name may tell the
 * type of the file. */
static void add_absolute(hy_text *out, const char *path, size_t size) {
    char parent[PATH_MAX], folder[PATH_MAX];
    while (size > 1 && path[size - 1] == '/') size--;
    size_t name = size;
    while (name > 0 && path[name - 1] != '/') name--;
    snprintf(parent, sizeof parent, "%.*s", (int)name, path);
    bool is_whole = path[size - 1] == '.'; /* also "." and ".." */
    if (is_whole) snprintf(parent, sizeof parent, "%.*s", (int)size, path);
    bool is_known = realpath(parent[0] ? parent : ".", folder) != NULL;
    if (is_known && is_whole) {
        hy_text_add(out, folder);
    } else if (is_known) {
        hy_text_addf(out, "%s/%.*s", strcmp(folder, "/") ? folder : "", (int)(size - name),
                     path + name);
    } else { /* the folder does not exist yet */
        bool has_folder = path[0] != '/' && getcwd(folder, sizeof folder);
        hy_text_addf(out, "%s%s%.*s", has_folder ? folder : "", has_folder ? "/" : "", (int)size,
                     path);
    }
}

/* The value with absolute paths; NULL: the value is not a path, or the result is too long. In a
 * list, each path is made absolute and keeps its weight. */
static const char *as_absolute(const char *key, const char *value, hy_text *out) {
    static const char paths[] = " model init_from data val_data eval.eval_rows out input.tokenizer "
                                "save.resume lora.adapter lora.base ";
    static const char *const words[] = {"", "auto", "none", "builtin", NULL};
    bool is_path = hy_word_is_in(paths, key),
         is_data = hy_word_is_in(" data val_data eval.eval_rows ", key);
    for (size_t i = 0; words[i]; i++) is_path &= strcmp(value, words[i]) != 0;
    bool is_model = !strcmp(key, "model") || !strcmp(key, "lora.base");
    if (is_model && (hy_builtin_text("model", value) || !hy_path_exists(value))) is_path = false;
    if (!is_path) return NULL;
    out->size = 0;
    bool is_list = is_data && !hy_path_exists(value);
    for (const char *at = value; *at;) {
        size_t size = is_list ? strcspn(at, ",") : strlen(at);
        /* "-" is standard input, not a path */
        bool is_input = is_data && at[0] == '-' && (size == 1 || at[1] == ':');
        if (is_input) hy_text_add_bytes(out, at, size);
        if (size && !is_input) add_absolute(out, at, size);
        at += size;
        if (*at) hy_text_add_bytes(out, at++, 1);
    }
    size_t commas[2] = {0}; /* a comma in a folder's name would split the list differently */
    for (const char *c = value; *c; c++) commas[0] += *c == ',';
    for (const char *c = hy_text_string(out); *c; c++) commas[1] += *c == ',';
    bool fits = out->size < HY_TEXT_MAX && (!is_list || commas[0] == commas[1]);
    return fits ? hy_text_string(out) : NULL;
}

static hy_status print(const hy_config *config, bool is_absolute, char **out) {
    hy_text text = {0}, absolute = {0};
    size_t group = 0; /* length of the name of the open group; 0: none */
    hy_text_add(&text, "# Each value with its origin. Load this file with --config.\n");
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const hy_setting *setting = hy_setting_at(i);
        const char *key = setting->info.key, *dot = strchr(key, '.'), *value, *origin;
        if (dot && (!group || strncmp(key, hy_setting_at(i - 1)->info.key, group + 1) != 0)) {
            hy_text_addf(&text, "%s\n%.*s: {\n", group ? "};\n" : "", (int)(dot - key), key);
            group = (size_t)(dot - key);
        }
        /* cannot fail: the key is in the table */
        (void)hy_config_get(config, key, &value, &origin);
        const char *path = is_absolute ? as_absolute(key, value, &absolute) : NULL;
        if (path) value = path;
        hy_text_addf(&text, "%s%s = ", group ? "  " : "", hy_setting_leaf(setting));
        print_value(&text, setting, value);
        hy_text_add(&text, ";  # ");
        for (const char *c = origin; *c; c++) { /* the origin can be a path with line ends */
            int bytes = control_bytes((const unsigned char *)c);
            hy_text_addf(&text, "%c", bytes ? '?' : *c);
            if (bytes == 2) c++;
        }
        hy_text_add(&text, "\n");
    }
    hy_text_add(&text, "};\n"); /* closes the group of the last key */
    text.has_failed |= absolute.has_failed;
    hy_text_free(&absolute);
    return hy_text_take(&text, out);
}

hy_status hy_config_print(const hy_config *config, char **out) { return print(config, false, out); }

hy_status hy_config_print_absolute(const hy_config *config, char **out) {
    return print(config, true, out);
}
