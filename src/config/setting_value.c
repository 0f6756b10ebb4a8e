/* setting_value.c: converts a configuration value from text to its field and back.
 *
 * hy_setting_check takes the text of a user and returns its canonical spelling, which is the
 * spelling of the field's value. A canonical text stays the same when it is checked again, so the
 * output of --print-config loads as the same values. Nothing here depends on the locale. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/number.h"
#include "base/text.h"
#include "config/settings.h"
#include "model/arch/arch.h"

enum { MAX_CHOICES = 16, SHOWN_MAX = 80 };

/* ---- from text ------------------------------------------------------------------------------- */

/* An integer: "10k", "8GiB", and also "1.5G" or "1e6" if the product is an exact integer. */
static bool parse_whole(const char *text, int64_t *out) {
    if (hy_parse_count(text, out)) return true;
    size_t digits = strspn(text, "+-.0123456789eE");
    double value;
    if (!hy_number_parse(text, digits, &value)) return false;
    char unit_text[16];
    int64_t unit;
    if (strlen(text + digits) > sizeof unit_text - 2) return false;
    snprintf(unit_text, sizeof unit_text, "1%s", text + digits);
    if (!hy_parse_count(unit_text, &unit)) return false;
    value *= (double)unit;
    if (value != floor(value) || fabs(value) > 0x1p53) return false;
    *out = (int64_t)value;
    return true;
}

bool hy_parse_switch(const char *text, bool *out) {
    static const char *const yes[] = {"true", "on", "yes", "1"};
    static const char *const no[] = {"false", "off", "no", "0"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        bool is_yes = !strcasecmp(text, yes[i]);
        if (!is_yes && strcasecmp(text, no[i])) continue;
        *out = is_yes;
        return true;
    }
    return false;
}

/* The length of the prefix before the number in a choice like "cuda:N"; 0 for a plain word. */
static size_t numbered_stem(const char *choice) {
    const char *mark = strstr(choice, ":N");
    return mark ? (size_t)(mark + 1 - choice) : 0;
}

static bool parse_choice(const hy_setting *setting, const char *text, int *out) {
    for (const hy_named_value *c = setting->choices; c->name; c++) {
        size_t stem = numbered_stem(c->name);
        if (stem ? strncasecmp(text, c->name, stem) : strcasecmp(text, c->name)) continue;
        size_t digits = stem ? strspn(text + stem, "0123456789") : 0;
        if (stem && (digits < 1 || digits > 3 || text[stem + digits])) continue;
        *out = c->value + (stem ? atoi(text + stem) : 0);
        return true;
    }
    return false;
}

static bool is_in_range(const hy_setting *setting, double value) {
    return value >= setting->min && (value <= 0 || value >= setting->least) &&
           (setting->excludes_max ? value < setting->max : value <= setting->max);
}

/* The value of a field that is not text. Fields are copied as bytes, because the compiler chooses
 * the type of an enum. */
typedef union field_value {
    int64_t whole;
    double number;
    bool is_on;
    int choice;
} field_value;

/* Stores the value in its field of `settings`; false: the text is not accepted. */
static bool parse(const hy_setting *setting, const char *text, hy_settings *settings) {
    char *field = (char *)settings + setting->offset;
    field_value v = {0};
    bool is_accepted = false;
    switch (setting->type) {
    case HY_VALUE_INTEGER:
    case HY_VALUE_BYTES:
        is_accepted = parse_whole(text, &v.whole) && is_in_range(setting, (double)v.whole);
        break;
    case HY_VALUE_NUMBER:
        is_accepted =
            hy_number_parse(text, strlen(text), &v.number) && is_in_range(setting, v.number);
        if (v.number == 0) v.number = 0; /* avoids "-0" */
        break;
    case HY_VALUE_SWITCH: is_accepted = hy_parse_switch(text, &v.is_on); break;
    case HY_VALUE_CHOICE: is_accepted = parse_choice(setting, text, &v.choice); break;
    case HY_VALUE_TEXT:
        if (strlen(text) >= setting->size) return false;
        memcpy(field, text, strlen(text) + 1);
        return true;
    }
    if (is_accepted) memcpy(field, &v, setting->size);
    return is_accepted;
}

void hy_setting_store(const hy_setting *setting, const char *text, hy_settings *settings) {
    bool is_accepted = parse(setting, text, settings);
    assert(is_accepted);
    (void)is_accepted;
}

bool hy_choice_value(const char *key, const char *name, int *out) {
    return parse_choice(hy_setting_find(key, NULL), name, out);
}

/* ---- to text --------------------------------------------------------------------------------- */

/* Bytes in the largest unit that divides them: "15GiB", "4M", "1234". */
static void format_byte_count(int64_t bytes, char text[HY_VALUE_MAX]) {
    static const struct {
        int64_t bytes;
        const char *name;
    } units[] = {
        {INT64_C(1) << 40, "TiB"},  {INT64_C(1) << 30, "GiB"}, {INT64_C(1) << 20, "MiB"},
        {INT64_C(1000000000), "G"}, {INT64_C(1000000), "M"},   {1, ""},
    };
    size_t i = 0;
    while (bytes ? bytes % units[i].bytes != 0 : units[i].bytes != 1) i++;
    snprintf(text, HY_VALUE_MAX, "%" PRId64 "%s", bytes / units[i].bytes, units[i].name);
}

/* The choice for a value. A choice with a number covers all values from its own upwards. */
static const hy_named_value *choice_of(const hy_setting *setting, int value) {
    const hy_named_value *c = setting->choices;
    while (c->name && c->value != value && !(numbered_stem(c->name) && value > c->value)) c++;
    assert(c->name);
    return c;
}

const char *hy_choice_name(const char *key, int value) {
    return choice_of(hy_setting_find(key, NULL), value)->name;
}

const char *hy_setting_format(const hy_setting *setting, const hy_settings *settings,
                              char text[HY_VALUE_MAX]) {
    const char *field = (const char *)settings + setting->offset;
    field_value v = {0};
    if (setting->type != HY_VALUE_TEXT) memcpy(&v, field, setting->size);
    switch (setting->type) {
    case HY_VALUE_INTEGER: snprintf(text, HY_VALUE_MAX, "%" PRId64, v.whole); break;
    case HY_VALUE_BYTES: format_byte_count(v.whole, text); break;
    case HY_VALUE_NUMBER: hy_number_format(v.number, text); break;
    case HY_VALUE_SWITCH: snprintf(text, HY_VALUE_MAX, "%s", v.is_on ? "true" : "false"); break;
    case HY_VALUE_CHOICE: {
        const hy_named_value *c = choice_of(setting, v.choice);
        size_t stem = numbered_stem(c->name);
        snprintf(text, HY_VALUE_MAX, "%s", c->name);
        if (stem) snprintf(text + stem, HY_VALUE_MAX - stem, "%d", v.choice - c->value);
        break;
    }
    case HY_VALUE_TEXT: snprintf(text, HY_VALUE_MAX, "%s", field); break;
    }
    return text;
}

uint64_t hy_settings_agreed(const hy_settings *settings) {
    hy_hash hash;
    hy_hash_init(&hash, 0);
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const hy_setting *setting = hy_setting_at(i);
        char text[HY_VALUE_MAX];
        if (setting->is_local) continue;
        hy_setting_format(setting, settings, text);
        /* The terminating zeros count too, so that no two lists of values give the same bytes. */
        hy_hash_add(&hash, setting->info.key, strlen(setting->info.key) + 1);
        hy_hash_add(&hash, text, strlen(text) + 1);
    }
    return hy_hash_value(&hash);
}

/* ---- checking -------------------------------------------------------------------------------- */

static const char *const type_in_words[] = {
    [HY_VALUE_INTEGER] = "a whole number such as 64 or 10k, ",
    [HY_VALUE_NUMBER] = "a number, ",
    [HY_VALUE_BYTES] = "bytes such as 8GiB or 500M, ", /* other types need no hint */
};

static hy_status refuse(const hy_setting *setting, const char *text, const char *origin) {
    HY_FAIL_IF(setting->type == HY_VALUE_TEXT, HY_ERR_INPUT,
               "%s: %s is %zu bytes long; accepted: at most %zu", origin, setting->info.key,
               strlen(text), setting->size - 1);
    const char *words[MAX_CHOICES];
    size_t count = 0;
    for (const hy_named_value *c = setting->choices; c && c->name && count < MAX_CHOICES; c++)
        words[count++] = c->name;
    /* Short words are all similar: "gpu" is not a misspelt "cpu". */
    const char *near = strlen(text) > 3 ? hy_nearest_word(text, words, count) : NULL;
    bool is_arch = strcmp(setting->info.key, "shape.architecture") == 0;
    const char *why = is_arch ? hy_arch_why_not(text) : "";
    /* A pattern such as cuda:N is not a suggestion, and another known model is not misspelt. */
    if (near && (numbered_stem(near) || why[0])) near = NULL;
    char size[16]; /* "32GiB" for a bare 32 */
    size_t length = strlen(text);
    if (setting->least > 0 && length > 0 && length < 8 && strspn(text, "0123456789.") == length) {
        snprintf(size, sizeof size, "%.8sGiB", text);
        near = size;
    }
    const char *type = type_in_words[setting->type], *end = strlen(text) > SHOWN_MAX ? "..." : "";
    return hy_fail(HY_ERR_INPUT, "%s: %s = %.*s%s is not accepted%s; accepted: %s%s%s", origin,
                   setting->info.key, SHOWN_MAX, *text ? text : "\"\"", end, why, type ? type : "",
                   setting->info.accepted, hy_did_you_mean(near).text);
}

hy_status hy_setting_check(const hy_setting *setting, const char *text, const char *origin,
                           char canonical[HY_VALUE_MAX]) {
    hy_settings settings;
    if (!parse(setting, text, &settings)) return refuse(setting, text, origin);
    hy_setting_format(setting, &settings, canonical);
    return HY_OK;
}
