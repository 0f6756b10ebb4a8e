/* config_file.c: reads configuration files. See config_file.h.
 *
 * The syntax is libconfig's. Keys stand at the top or one level down, in the group the table gives them, and
 * each is handed over as soon as it is read. Values become text and are checked like values from anywhere
 * else; only what text cannot tell apart (a number where words belong, a group or list where one value
 * belongs) is refused here. Includes are refused. Time and memory are linear in the text: a name is known
 * and new, or the reading ends there. */
#include "config/config_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/number.h"

enum { NAME_SIZE = 128, MOST_GROUPS = 16 };

static const char digits[] = "0123456789";
static const char name_letters[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-*";
static const char number_letters[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._";

typedef struct reader {
    const char *name;
    hy_config_sink sink;
    void *user;
    const char *at;
    const char *counted; /* lines are counted up to here */
    unsigned line;
    hy_text seen;  /* keys so far, a line each; groups end in ":" */
    hy_text value; /* of the key that is read */
} reader;

/* Asked for places in their order. */
static unsigned line_of(reader *r, const char *place) {
    for (; r->counted < place; r->counted++) r->line += *r->counted == '\n';
    return r->line;
}

static hy_status refuse(reader *r, const char *place, const char *why) {
    return hy_fail(HY_ERR_INPUT, "%s:%u: %s", r->name, line_of(r, place), why);
}

static hy_status refuse_syntax(reader *r) {
    if (*r->at == '@') {
        return refuse(r, r->at, "@include is not accepted; load several files instead");
    }
    if (*r->at == '"') return refuse(r, r->at, "a string with no key and = in front of it");
    return refuse(r, r->at,
                  "syntax error (expected: KEY = VALUE; or GROUP: { ... }; with text in quotes)");
}

/* Goes on to what is neither blank nor comment. */
static hy_status skip(reader *r) {
    for (;;) {
        r->at += strspn(r->at, " \t\r\n\f");
        if (*r->at == '#' || (r->at[0] == '/' && r->at[1] == '/')) {
            r->at += strcspn(r->at, "\n");
        } else if (r->at[0] == '/' && r->at[1] == '*') {
            const char *end = strstr(r->at + 2, "*/");
            if (!end) return refuse(r, r->at, "the comment that begins here is never closed");
            r->at = end + 2;
        } else {
            return HY_OK;
        }
    }
}

static bool take(reader *r, const char *signs) {
    bool is_there = *r->at && strchr(signs, *r->at);
    r->at += is_there;
    return is_there;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* One string; a backslash before what is no escape stays. */
static hy_status read_string(reader *r) {
    static const char letters[] = "abfnrtv\\\"", meant[] = "\a\b\f\n\r\t\v\\\"";
    const char *begin = r->at++;
    while (*r->at != '"') {
        size_t plain = strcspn(r->at, "\"\\");
        hy_text_add_bytes(&r->value, r->at, plain);
        r->at += plain;
        if (!*r->at) return refuse(r, begin, "the string that begins here is never closed");
        if (*r->at == '"') break;
        char code = r->at[1];
        const char *letter = code ? strchr(letters, code) : NULL;
        char made = letter ? meant[letter - letters] : '\\';
        char hex[3] = {0};
        bool is_hex = code == 'x' || code == 'X';
        if (is_hex) memccpy(hex, r->at + 2, 0, 2);
        is_hex = is_hex && strspn(hex, "0123456789abcdefABCDEF") == 2;
        if (is_hex) made = (char)strtoul(hex, NULL, 16);
        if (!made) return refuse(r, r->at, "a zero byte in a string");
        hy_text_add_bytes(&r->value, &made, 1);
        r->at += is_hex ? 4 : letter ? 2 : 1;
    }
    r->at++;
    return HY_OK;
}

/* A number as text: whole ones of up to 64 bits digit by digit, others as the double they are. */
static hy_status read_number(reader *r) {
    const char *begin = r->at, *number = begin + (*begin == '-' || *begin == '+');
    bool is_hex = number[0] == '0' && (number[1] == 'x' || number[1] == 'X');
    size_t size = strspn(number, number_letters);
    bool ends_in_e = !is_hex && size > 0 && (number[size - 1] == 'e' || number[size - 1] == 'E');
    if (ends_in_e && (number[size] == '+' || number[size] == '-')) { /* "1e-5" */
        size += 1 + strspn(number + size + 1, digits);
    }
    char *end;
    errno = 0;
    unsigned long long value = strtoull(number, &end, is_hex ? 16 : 10);
    bool is_whole = strchr(digits, *number) && end + strspn(end, "L") == number + size;
    HY_FAIL_IF(is_whole && (errno == ERANGE || value > INT64_MAX), HY_ERR_INPUT,
               "%s:%u: %.*s is too large; accepted: at most %" PRId64, r->name, line_of(r, begin),
               (int)(size < 60 ? size : 60), number, INT64_MAX);
    r->at = number + size;
    if (is_whole) {
        hy_text_addf(&r->value, "%s%llu", *begin == '-' ? "-" : "", value);
        return HY_OK;
    }
    double real = 0;
    char text[HY_NUMBER_MAX];
    if (!hy_number_parse(begin, (size_t)(r->at - begin), &real) && !isinf(real)) {
        r->at = begin;
        return refuse_syntax(r);
    }
    hy_text_add(&r->value, hy_number_format(real, text));
    return HY_OK;
}

static hy_status read_value(reader *r, const char *key, unsigned line) {
    const hy_setting *row = hy_setting_find(key, NULL);
    if (!row) {
        char where[HY_TEXT_MAX + 32];
        snprintf(where, sizeof where, "%s:%u: ", r->name, line);
        return hy_setting_unknown(where, key);
    }
    HY_FAIL_IF(*r->at && strchr("{[(", *r->at), HY_ERR_INPUT,
               "%s:%u: %s takes one value, not a group or a list; accepted: %s", r->name, line,
               row->info.key, row->info.accepted);
    bool is_string = *r->at == '"';
    hy_text_clear(&r->value);
    if (is_string) {
        while (*r->at == '"') { /* strings that follow each other are one */
            HY_TRY(read_string(r));
            HY_TRY(skip(r));
        }
    } else if (*r->at && strchr("+-.0123456789", *r->at)) {
        HY_TRY(read_number(r));
    } else {
        size_t size = strspn(r->at, name_letters);
        bool is_true = size == 4 && !strncasecmp(r->at, "true", size);
        if (!is_true && (size != 5 || strncasecmp(r->at, "false", size))) return refuse_syntax(r);
        hy_text_add(&r->value, is_true ? "true" : "false");
        r->at += size;
    }
    HY_TRY(hy_text_status(&r->value));
    const char *value = hy_text_string(&r->value);
    HY_FAIL_IF(row->type == HY_VALUE_TEXT && !is_string, HY_ERR_INPUT,
               "%s:%u: %s = %s is not text; accepted: %s, in quotes", r->name, line, row->info.key,
               value, row->info.accepted);
    return r->sink(r->user, key, value, line);
}

/* ---- keys and groups --------------------------------------------------------------------------- */

/* Reads a name and what follows it: a key of `group` (NULL: at the top) with its value, or a group's name
 * with its brace; then *opened is that name and its keys follow. "optimizer" is a group and also a key of that group:
 * what stands there tells which is meant. */
static hy_status read_setting(reader *r, const char *group, const char **opened) {
    char name[NAME_SIZE], key[2 * NAME_SIZE];
    size_t size = strchr("0123456789_-", *r->at) ? 0 : strspn(r->at, name_letters);
    if (size == 0) return refuse_syntax(r);
    unsigned line = line_of(r, r->at);
    snprintf(name, sizeof name, "%.*s", (int)(size < NAME_SIZE ? size : NAME_SIZE), r->at);
    snprintf(key, sizeof key, "%s%s%s", group ? group : "", group ? "." : "", name);
    r->at += size;
    HY_TRY(skip(r));
    if (!take(r, "=:")) return refuse_syntax(r);
    HY_TRY(skip(r));
    bool is_group = *r->at == '{';
    if (!group) {
        const char *groups[MOST_GROUPS], *known = NULL;
        bool is_key = hy_setting_find(name, NULL) != NULL;
        size_t count = 0;
        for (const char *each; count < MOST_GROUPS && (each = hy_setting_group_at(count));) {
            if (strcmp(each, name) == 0) known = each;
            groups[count++] = each;
        }
        HY_FAIL_IF(!is_group && known && !is_key, HY_ERR_INPUT,
                   "%s:%u: %s is a group, not a value; accepted: %s: { KEY = VALUE; }", r->name,
                   line, name, name);
        if (is_group && !known && !is_key) {
            hy_text all = {0};
            for (size_t i = 0; i < count; i++) hy_text_addf(&all, "%s%s", i ? ", " : "", groups[i]);
            hy_status status = hy_fail(HY_ERR_INPUT, "%s:%u: unknown group %s; accepted: %s%s",
                                       r->name, line, name, hy_text_string(&all),
                                       hy_did_you_mean(hy_nearest_word(name, groups, count)).text);
            hy_text_free(&all);
            return status;
        }
        if (is_group) *opened = known;
    }
    char entry[2 * NAME_SIZE + 4];
    snprintf(entry, sizeof entry, "\n%s%s\n", key, *opened ? ":" : "");
    HY_FAIL_IF(strstr(hy_text_string(&r->seen), entry), HY_ERR_INPUT,
               "%s:%u: duplicate %s: it is set above", r->name, line, key);
    hy_text_add(&r->seen, entry);
    HY_TRY(hy_text_status(&r->seen));
    if (*opened) {
        r->at++;
        return HY_OK;
    }
    return read_value(r, key, line);
}

static hy_status read_all(reader *r) {
    const char *group = NULL;
    for (;;) {
        HY_TRY(skip(r));
        bool ends_group = group && *r->at == '}';
        if (!*r->at && !group) return HY_OK;
        const char *opened = NULL;
        if (ends_group) {
            group = NULL;
            r->at++;
        } else {
            HY_TRY(read_setting(r, group, &opened));
        }
        if (opened) {
            group = opened;
            continue;
        }
        HY_TRY(skip(r));
        take(r, ";,");
    }
}

hy_status hy_config_file_read(const char *text, size_t size, const char *name, hy_config_sink sink,
                              void *user) {
    reader r = {.name = name, .sink = sink, .user = user, .at = text, .counted = text, .line = 1};
    size_t length = strlen(text);
    hy_status status = HY_OK;
    if (length != size) status = refuse(&r, text + length, "a zero byte; expected a text file");
    if (status == HY_OK) status = read_all(&r);
    hy_text_free(&r.seen);
    hy_text_free(&r.value);
    return status;
}
