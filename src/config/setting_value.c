/* setting_value.c: one configuration value, from text to field and back.
 *
 * Values travel as text: hy_setting_check takes what a user wrote and gives the one canonical
 * spelling, and only canonical texts are stored. A canonical text checked again stays as it is,
 * which is what makes --print-config load back to the same values. Nothing here depends on the
 * locale. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"
#include "config/settings.h"

enum { MAX_CHOICES = 16, SHOWN_MAX = 80 };

static bool parse_number(const char *text, double *out) {
    return hy_number_parse(text, strlen(text), out);
}

/* A whole number: "10k", "8GiB", and also "1.5G" or "1e6" where the product is whole and exact. */
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

/* Bytes in the largest unit that divides them: "15GiB", "4M", "1234". */
static void format_byte_count(int64_t bytes, char *buffer, size_t size) {
    static const struct {
        int64_t bytes;
        const char *name;
    } units[] = {
        {INT64_C(1) << 40, "TiB"},  {INT64_C(1) << 30, "GiB"}, {INT64_C(1) << 20, "MiB"},
        {INT64_C(1000000000), "G"}, {INT64_C(1000000), "M"},
    };
    for (size_t i = 0; bytes && i < sizeof units / sizeof units[0]; i++) {
        if (bytes % units[i].bytes) continue;
        snprintf(buffer, size, "%" PRId64 "%s", bytes / units[i].bytes, units[i].name);
        return;
    }
    snprintf(buffer, size, "%" PRId64, bytes);
}

/* Splits a copy of "auto, cpu, cuda". */
static size_t split_choices(const char *accepted, char copy[HY_TEXT_MAX],
                            const char *choices[MAX_CHOICES]) {
    snprintf(copy, HY_TEXT_MAX, "%s", accepted);
    size_t count = 0;
    char *state = NULL;
    for (char *word = strtok_r(copy, ", ", &state); word; word = strtok_r(NULL, ", ", &state)) {
        assert(count < MAX_CHOICES);
        choices[count++] = word;
    }
    return count;
}

static const char *type_in_words(hy_value_type type) {
    static const char *const words[] = {
        [HY_VALUE_INTEGER] = "a whole number such as 64 or 10k, ",
        [HY_VALUE_NUMBER] = "a number, ",
        [HY_VALUE_SWITCH] = "",
        [HY_VALUE_CHOICE] = "",
        [HY_VALUE_TEXT] = "",
        [HY_VALUE_BYTES] = "bytes such as 8GiB or 500M, ",
    };
    return words[type];
}

static hy_status refuse(const hy_setting *setting, const char *text, const char *origin) {
    const char *near = NULL;
    char copy[HY_TEXT_MAX];
    const char *choices[MAX_CHOICES];
    /* Words of three letters are all near each other: "gpu" is no slip for "cpu". */
    if (setting->type == HY_VALUE_CHOICE && strlen(text) > 3) {
        near = hy_nearest_word(text, choices, split_choices(setting->info.accepted, copy, choices));
        if (near && strstr(near, ":N")) near = NULL; /* a pattern is no word to write */
    }
    bool is_long = strlen(text) > SHOWN_MAX;
    return hy_fail(HY_ERR_INPUT, "%s: %s = %.*s%s is not accepted; accepted: %s%s%s%s%s", origin,
                   setting->info.key, SHOWN_MAX, *text ? text : "\"\"", is_long ? "..." : "",
                   type_in_words(setting->type), setting->info.accepted,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static bool is_in_range(const hy_setting *setting, double value) {
    return value >= setting->min &&
           (setting->excludes_max ? value < setting->max : value <= setting->max);
}

static bool check_whole(const hy_setting *setting, const char *text, char *canonical) {
    int64_t value;
    if (!parse_whole(text, &value) || !is_in_range(setting, (double)value)) return false;
    if (setting->type == HY_VALUE_BYTES) {
        format_byte_count(value, canonical, HY_TEXT_MAX);
    } else {
        snprintf(canonical, HY_TEXT_MAX, "%" PRId64, value);
    }
    return true;
}

static bool check_number(const hy_setting *setting, const char *text, char *canonical) {
    double value;
    if (!parse_number(text, &value) || !is_in_range(setting, value)) return false;
    hy_number_format(value == 0 ? 0.0 : value, canonical); /* no "-0" */
    return true;
}

static bool check_switch(const char *text, char *canonical) {
    bool value;
    if (!hy_parse_switch(text, &value)) return false;
    snprintf(canonical, HY_TEXT_MAX, "%s", value ? "true" : "false");
    return true;
}

/* "cuda:1" for the choice "cuda:N"; the number is kept as a plain one. */
static bool is_numbered_choice(const char *text, const char *choice, char *canonical) {
    size_t stem = strlen(choice) - 1;
    size_t digits = strlen(text) > stem ? strspn(text + stem, "0123456789") : 0;
    bool is_numbered = stem > 1 && choice[stem - 1] == ':' && choice[stem] == 'N';
    if (!is_numbered || digits < 1 || digits > 3 || text[stem + digits]) return false;
    if (strncasecmp(text, choice, stem)) return false;
    snprintf(canonical, HY_TEXT_MAX, "%.*s%d", (int)stem, choice, atoi(text + stem));
    return true;
}

static bool check_choice(const hy_setting *setting, const char *text, char *canonical) {
    char copy[HY_TEXT_MAX];
    const char *choices[MAX_CHOICES];
    size_t count = split_choices(setting->info.accepted, copy, choices);
    for (size_t i = 0; i < count; i++) {
        if (is_numbered_choice(text, choices[i], canonical)) return true;
        if (strcasecmp(text, choices[i]) || strstr(choices[i], ":N")) continue;
        snprintf(canonical, HY_TEXT_MAX, "%s", choices[i]);
        return true;
    }
    return false;
}

hy_status hy_setting_check(const hy_setting *setting, const char *text, const char *origin,
                           char canonical[HY_TEXT_MAX]) {
    bool is_accepted = false;
    switch (setting->type) {
    case HY_VALUE_INTEGER:
    case HY_VALUE_BYTES: is_accepted = check_whole(setting, text, canonical); break;
    case HY_VALUE_NUMBER: is_accepted = check_number(setting, text, canonical); break;
    case HY_VALUE_SWITCH: is_accepted = check_switch(text, canonical); break;
    case HY_VALUE_CHOICE: is_accepted = check_choice(setting, text, canonical); break;
    case HY_VALUE_TEXT:
        if (strlen(text) >= HY_TEXT_MAX) {
            return hy_fail(HY_ERR_INPUT, "%s: %s is %zu bytes long; accepted: at most %d", origin,
                           setting->info.key, strlen(text), HY_TEXT_MAX - 1);
        }
        snprintf(canonical, HY_TEXT_MAX, "%s", text);
        return HY_OK;
    }
    return is_accepted ? HY_OK : refuse(setting, text, origin);
}

void hy_setting_store(const hy_setting *setting, const char *canonical, hy_settings *settings) {
    void *field = (char *)settings + setting->offset;
    bool is_valid = true;
    switch (setting->type) {
    case HY_VALUE_INTEGER:
    case HY_VALUE_BYTES: is_valid = parse_whole(canonical, field); break;
    case HY_VALUE_NUMBER: is_valid = parse_number(canonical, field); break;
    case HY_VALUE_SWITCH: is_valid = hy_parse_switch(canonical, field); break;
    case HY_VALUE_CHOICE:
    case HY_VALUE_TEXT: snprintf(field, HY_TEXT_MAX, "%s", canonical); break;
    }
    assert(is_valid);
    (void)is_valid;
}
