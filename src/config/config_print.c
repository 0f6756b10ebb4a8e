/* config_print.c: the resulting configuration as a libconfig text.
 *
 * One line per key, grouped as in the table, with the value's origin as a comment. Loading the text
 * gives the same values again: strings are escaped the way libconfig reads them, and all values are
 * in their canonical spelling already. */
#include <string.h>

#include "base/text.h"
#include "config/settings.h"

static void print_string(hy_text *out, const char *text) {
    hy_text_add(out, "\"");
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\') {
            hy_text_addf(out, "\\%c", *c);
        } else if (*c < 0x20 || *c == 0x7f) {
            hy_text_addf(out, "\\x%02x", *c);
        } else {
            hy_text_add_bytes(out, c, 1);
        }
    }
    hy_text_add(out, "\"");
}

static void print_value(hy_text *out, const hy_setting *setting, const char *text) {
    bool is_words = setting->type == HY_VALUE_CHOICE || setting->type == HY_VALUE_TEXT;
    bool has_unit = setting->type == HY_VALUE_BYTES && strpbrk(text, "KMGT");
    if (is_words || has_unit) {
        print_string(out, text);
    } else {
        /* Some versions of libconfig read more than 32 bits only from a number marked as long. */
        bool is_long = strspn(text, "0123456789") == strlen(text) && strlen(text) > 9;
        hy_text_addf(out, "%s%s", text, is_long ? "L" : "");
    }
}

/* A path may hold anything; a comment ends with its line. */
static void print_comment(hy_text *out, const char *text) {
    hy_text_add(out, "  # ");
    for (const char *c = text; *c; c++) {
        hy_text_addf(out, "%c", (unsigned char)*c < 0x20 ? '?' : *c);
    }
    hy_text_add(out, "\n");
}

/* Letters of the key's group; 0 for a key of none. */
static size_t group_size(const hy_setting *setting) {
    const char *dot = strchr(setting->info.key, '.');
    return dot ? (size_t)(dot - setting->info.key) : 0;
}

static bool opens_group(size_t i) {
    const hy_setting *setting = hy_setting_at(i);
    size_t size = group_size(setting);
    if (!size) return false;
    return i == 0 || strncmp(setting->info.key, hy_setting_at(i - 1)->info.key, size + 1) != 0;
}

static bool closes_group(size_t i) {
    return group_size(hy_setting_at(i)) && (!hy_setting_at(i + 1) || opens_group(i + 1));
}

static hy_status print_setting(hy_text *out, const hy_config *config, const hy_setting *setting) {
    const char *text, *origin;
    hy_status status = hy_config_get(config, setting->info.key, &text, &origin);
    if (status != HY_OK) return status;
    hy_text_addf(out, "%s%s = ", group_size(setting) ? "  " : "", hy_setting_leaf(setting));
    print_value(out, setting, text);
    hy_text_add(out, ";");
    print_comment(out, origin);
    return HY_OK;
}

hy_status hy_config_print(const hy_config *config, char **out) {
    hy_text text = {0};
    hy_status status = HY_OK;
    hy_text_add(&text, "# Each value with where it came from. Loads again with --config.\n");
    for (size_t i = 0; status == HY_OK && i < hy_setting_count(); i++) {
        const hy_setting *setting = hy_setting_at(i);
        if (opens_group(i)) {
            hy_text_addf(&text, "\n%.*s: {\n", (int)group_size(setting), setting->info.key);
        }
        status = print_setting(&text, config, setting);
        if (closes_group(i)) hy_text_add(&text, "};\n");
    }
    if (status == HY_OK) status = hy_text_status(&text);
    if (status != HY_OK) {
        hy_text_free(&text);
        return status;
    }
    *out = text.data;
    return HY_OK;
}
