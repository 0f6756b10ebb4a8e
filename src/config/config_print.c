/* config_print.c: the resulting configuration as a libconfig text.
 *
 * One line per key, grouped as in the table, with the value's origin as a comment. Loading the text
 * gives the same values again: strings are escaped the way libconfig reads them, and all values are
 * in their canonical spelling already. */
#include <string.h>

#include "base/text.h"
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

hy_status hy_config_print(const hy_config *config, char **out) {
    hy_text text = {0};
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
    return hy_text_take(&text, out);
}
