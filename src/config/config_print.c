/* config_print.c: the resulting configuration as a libconfig text.
 *
 * One line per key, grouped as in the table, with the value's origin as a comment. Loading the text
 * gives the same values again: strings are escaped the way libconfig reads them, and all values are
 * in their canonical spelling already. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "config/builtin.h"
#include "config/settings.h"

/* Bytes of a control character here, 0 for any other: a terminal obeys those of two bytes, too. */
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
        /* Some versions of libconfig read more than 32 bits only from a number marked as long. */
        bool is_long = strspn(text, "0123456789") == strlen(text) && strlen(text) > 9;
        hy_text_addf(out, "%s%s", text, is_long ? "L" : "");
    }
}

/* Links before the last name are resolved; that one stays, because its ending may say what the file
 * is. */
static void add_absolute(hy_text *out, const char *path, size_t size) {
    char parent[PATH_MAX], folder[PATH_MAX];
    while (size > 1 && path[size - 1] == '/') size--;
    size_t name = size;
    while (name > 0 && path[name - 1] != '/') name--;
    snprintf(parent, sizeof parent, "%.*s", (int)name, path);
    bool is_whole = path[size - 1] == '.'; /* "." and "..", too */
    if (is_whole) snprintf(parent, sizeof parent, "%.*s", (int)size, path);
    bool is_known = realpath(parent[0] ? parent : ".", folder) != NULL;
    if (is_known && is_whole) {
        hy_text_add(out, folder);
    } else if (is_known) {
        hy_text_addf(out, "%s/%.*s", strcmp(folder, "/") ? folder : "", (int)(size - name),
                     path + name);
    } else { /* a folder that is yet to be made */
        bool has_folder = path[0] != '/' && getcwd(folder, sizeof folder);
        hy_text_addf(out, "%s%s%.*s", has_folder ? folder : "", has_folder ? "/" : "", (int)size,
                     path);
    }
}

/* Paths as they are from any folder; NULL: the value is no path, or too long as one. Several with
 * commas between them are made absolute one by one: a weight behind a name stays there. */
static const char *as_absolute(const char *key, const char *value, hy_text *out) {
    static const char paths[] = " model init_from data val_data out input.tokenizer save.resume "
                                "lora.adapter lora.base ";
    static const char *const words[] = {"", "auto", "none", "builtin", NULL};
    bool is_path = hy_word_is_in(paths, key), is_data = hy_has_ending(key, "data");
    for (size_t i = 0; words[i]; i++) is_path &= strcmp(value, words[i]) != 0;
    bool is_model = !strcmp(key, "model") || !strcmp(key, "lora.base");
    if (is_model && (hy_builtin_text("model", value) || !hy_path_exists(value))) is_path = false;
    if (!is_path) return NULL;
    out->size = 0;
    bool is_list = is_data && !hy_path_exists(value);
    for (const char *at = value; *at;) {
        size_t size = is_list ? strcspn(at, ",") : strlen(at);
        /* Standard input has no folder. */
        bool is_input = is_data && at[0] == '-' && (size == 1 || at[1] == ':');
        if (is_input) hy_text_add_bytes(out, at, size);
        if (size && !is_input) add_absolute(out, at, size);
        at += size;
        if (*at) hy_text_add_bytes(out, at++, 1);
    }
    size_t commas[2] = {0}; /* a folder with one in its name would cut the list anew */
    for (const char *c = value; *c; c++) commas[0] += *c == ',';
    for (const char *c = hy_text_string(out); *c; c++) commas[1] += *c == ',';
    bool fits = out->size < HY_TEXT_MAX && (!is_list || commas[0] == commas[1]);
    return fits ? hy_text_string(out) : NULL;
}

static hy_status print(const hy_config *config, bool is_absolute, char **out) {
    hy_text text = {0}, absolute = {0};
    size_t group = 0; /* letters of the group that is open; 0: none */
    hy_text_add(&text, "# Each value with where it came from. Loads again with --config.\n");
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const hy_setting *setting = hy_setting_at(i);
        const char *key = setting->info.key, *dot = strchr(key, '.'), *value, *origin;
        if (dot && (!group || strncmp(key, hy_setting_at(i - 1)->info.key, group + 1) != 0)) {
            hy_text_addf(&text, "%s\n%.*s: {\n", group ? "};\n" : "", (int)(dot - key), key);
            group = (size_t)(dot - key);
        }
        (void)hy_config_get(config, key, &value, &origin); /* the key is in the table */
        const char *path = is_absolute ? as_absolute(key, value, &absolute) : NULL;
        if (path) value = path;
        hy_text_addf(&text, "%s%s = ", group ? "  " : "", hy_setting_leaf(setting));
        print_value(&text, setting, value);
        hy_text_add(&text, ";  # ");
        for (const char *c = origin; *c; c++) { /* of a path: a comment has no new line */
            int bytes = control_bytes((const unsigned char *)c);
            hy_text_addf(&text, "%c", bytes ? '?' : *c);
            if (bytes == 2) c++;
        }
        hy_text_add(&text, "\n");
    }
    hy_text_add(&text, "};\n"); /* the last key has a group */
    text.has_failed |= absolute.has_failed;
    hy_text_free(&absolute);
    return hy_text_take(&text, out);
}

hy_status hy_config_print(const hy_config *config, char **out) { return print(config, false, out); }

hy_status hy_config_print_absolute(const hy_config *config, char **out) {
    return print(config, true, out);
}
