/* filters.c: the filters, used after "|". See parts.h.
 *
 * The parser looks a filter up by its name in the table at the end, and hy_jinja_apply (eval.c)
 * calls it. Loops over values count steps, so no filter runs without limit. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jinja/parts.h"

typedef const hy_jinja_call *call;

static bool is_given(value v) { return v.type != HY_JINJA_ABSENT && v.type != HY_JINJA_NONE; }
static value or_else(value v, value other) { return v.type == HY_JINJA_ABSENT ? other : v; }

static const hy_jinja_string *text_of(hy_jinja_run *run, value v) {
    return hy_jinja_to_string(run, v).as.string;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static value string(hy_jinja_run *run, call c) { return hy_jinja_to_string(run, c->self); }

static value safe(hy_jinja_run *run, call c) {
    hy_jinja_string s = *text_of(run, c->self);
    s.is_safe = true;
    return hy_jinja_new_string(run, s);
}

static value replace(hy_jinja_run *run, call c) {
    int64_t count = is_given(c->given[2]) ? hy_jinja_as_int(run, c->given[2], "count") : -1;
    return hy_jinja_replace(run, text_of(run, c->self), text_of(run, c->given[0]),
                            text_of(run, c->given[1]), count);
}

/* An indentation: a number of blanks, or the string itself. */
static const hy_jinja_string *blanks_of(hy_jinja_run *run, value v) {
    if (v.type == HY_JINJA_STRING) return v.as.string;
    hy_jinja_builder b = {.run = run};
    int64_t width = hy_jinja_as_int(run, v, "a width");
    for (int64_t i = 0; i < width; i++) hy_jinja_add(&b, " ", 1, 0);
    hy_jinja_spend(run, b.size);
    return hy_jinja_built(&b).as.string;
}

/* Indents every line except the first and empty ones. */
static value indent(hy_jinja_run *run, call c) {
    const hy_jinja_string *s = hy_jinja_as_string(run, c->self, "the value to indent");
    const hy_jinja_string *by =
        blanks_of(run, is_given(c->given[0]) ? c->given[0] : hy_jinja_int(4));
    hy_jinja_builder b = {.run = run};
    size_t at = 0, end, next;
    if (hy_jinja_is_true(c->given[1])) hy_jinja_add_part(&b, by, 0, by->size);
    do {
        bool is_empty = (end = hy_jinja_line_end(s, at, &next)) == at;
        if (at > 0 && (hy_jinja_is_true(c->given[2]) || !is_empty))
            hy_jinja_add_part(&b, by, 0, by->size);
        hy_jinja_add_part(&b, s, at, end);
        if (next > end) hy_jinja_add(&b, "\n", 1, hy_jinja_mark_at(s, end));
        hy_jinja_spend(run, 1);
        at = next;
    } while (next > end); /* the last line end is followed by a line, even if it is empty */
    return hy_jinja_built(&b);
}

static value format(hy_jinja_run *run, call c) {
    return hy_jinja_format(run, text_of(run, c->self), c->all->items, c->all->count);
}

static value tojson(hy_jinja_run *run, call c) {
    hy_jinja_builder b = {.run = run};
    bool has_indent = is_given(c->given[1]);
    hy_jinja_json_style style = {.ensures_ascii = hy_jinja_is_true(c->given[0]),
                                 .sorts = hy_jinja_is_true(c->given[3]),
                                 .indent = has_indent ? blanks_of(run, c->given[1]) : NULL,
                                 .comma =
                                     hy_jinja_string_of(run, has_indent ? "," : ", ").as.string,
                                 .colon = hy_jinja_string_of(run, ": ").as.string};
    if (is_given(c->given[2])) {
        const hy_jinja_list *pair = hy_jinja_iterate(run, c->given[2]);
        if (pair->count != 2) hy_jinja_fail(run, "separators must be a pair");
        style.comma = hy_jinja_as_string(run, pair->items[0], "a separator");
        style.colon = hy_jinja_as_string(run, pair->items[1], "a separator");
    }
    hy_jinja_print_json(&b, c->self, &style);
    return hy_jinja_built(&b);
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Reads a string as Python reads a number: digits with single _ between them, inf and nan, nothing
 * else. Returns a copy for strtod(); NULL: it is not a number. */
static const char *number_text(hy_jinja_run *run, value text, bool *is_whole) {
    hy_jinja_call strip = {.self = text, .how = HY_LEFT | HY_RIGHT};
    const hy_jinja_string *s = hy_jinja_strip(run, &strip).as.string;
    char *out = hy_jinja_copy(run, s->data, s->size);
    size_t size = 0, digits = 0;
    for (size_t i = 0; i < s->size; i++) {
        char c = s->data[i];
        bool next_is = i + 1 < s->size && is_digit(s->data[i + 1]);
        if (c == '_' && (i == 0 || !is_digit(s->data[i - 1]) || !next_is)) return NULL;
        if (c != '_') out[size++] = c;
        digits += is_digit(c);
    }
    out[size] = 0;
    *is_whole = size > 0 && digits + (out[0] == '-' || out[0] == '+') == size;
    static const char *const words[] = {"inf", "infinity", "nan"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcasecmp(out + (out[0] == '-' || out[0] == '+'), words[i]) == 0) return out;
    }
    return digits > 0 && strspn(out, "0123456789+-.eE") == size ? out : NULL;
}

/* Whether a value is a number or a string that spells one. */
static bool read_number(hy_jinja_run *run, value v, double *out) {
    bool is_whole;
    char *end;
    hy_jinja_need_defined(run, v);
    if (hy_jinja_is_number(v)) {
        *out = hy_jinja_as_double(v);
        return true;
    }
    const char *text = v.type == HY_JINJA_STRING ? number_text(run, v, &is_whole) : NULL;
    if (!text) return false;
    *out = strtod(text, &end);
    return *end == 0;
}

static value to_int(hy_jinja_run *run, call c) {
    bool is_whole = false;
    double number;
    const char *text = NULL;
    if (c->self.type == HY_JINJA_INT) return c->self;
    if (c->self.type == HY_JINJA_STRING) text = number_text(run, c->self, &is_whole);
    if (text && is_whole) {
        errno = 0;
        long long whole = strtoll(text, NULL, 10);
        if (errno) hy_jinja_fail(run, "the number %.40s is too large", text);
        return hy_jinja_int(whole);
    }
    if (!read_number(run, c->self, &number) || !isfinite(number)) {
        return or_else(c->given[0], hy_jinja_int(0));
    }
    if (fabs(number) >= 0x1p63) hy_jinja_fail(run, "the number %g is too large", number);
    return hy_jinja_int((int64_t)number);
}

static value to_float(hy_jinja_run *run, call c) {
    double number;
    if (read_number(run, c->self, &number)) return hy_jinja_float(number);
    return or_else(c->given[0], hy_jinja_float(0));
}

/* ---- any value ------------------------------------------------------------------------------- */

static value fallback(hy_jinja_run *run, call c) {
    bool is_missing = c->self.type == HY_JINJA_UNDEFINED ||
                      (hy_jinja_is_true(c->given[1]) && !hy_jinja_is_true(c->self));
    if (!is_missing) return c->self;
    return or_else(c->given[0], hy_jinja_string_of(run, ""));
}

static value length(hy_jinja_run *run, call c) {
    value v = c->self;
    size_t count = 0;
    if (v.type == HY_JINJA_STRING) {
        hy_jinja_spend(run, v.as.string->size / 64);
        count = hy_jinja_length(v.as.string);
    } else if (v.type == HY_JINJA_DICT)
        count = v.as.dict->count;
    else if (hy_jinja_is_list(v) && v.type != HY_JINJA_LAZY)
        count = v.as.list->count;
    else if (v.type != HY_JINJA_UNDEFINED)
        hy_jinja_fail(run, "%s has no length", hy_jinja_type_name(v));
    return hy_jinja_int((int64_t)count);
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* The part of a value at a path of attributes, or the value itself; `otherwise` if it is
 * undefined. */
static value part_or(hy_jinja_run *run, value v, value path, value otherwise) {
    if (!is_given(path)) return v;
    if (path.type == HY_JINJA_INT) return hy_jinja_item(run, v, path);
    const hy_jinja_string *s = hy_jinja_as_string(run, path, "an attribute");
    for (size_t at = 0; at <= s->size;) {
        const char *dot = memchr(s->data + at, '.', s->size - at);
        size_t end = dot ? (size_t)(dot - s->data) : s->size;
        value name = hy_jinja_part(run, s, at, end);
        const char *text = hy_jinja_copy(run, s->data + at, end - at);
        bool is_index = end > at && end - at < 9 && strspn(text, "0123456789") == end - at;
        v = hy_jinja_item(run, v, is_index ? hy_jinja_int(atoi(text)) : name);
        if (v.type == HY_JINJA_UNDEFINED && is_given(otherwise)) v = otherwise;
        at = end + 1;
    }
    return v;
}

static value copy_list(hy_jinja_run *run, value from, hy_jinja_type type) {
    const hy_jinja_list *items = hy_jinja_iterate(run, from);
    value out = hy_jinja_new_list(run, type, items->count);
    for (size_t i = 0; i < items->count; i++) hy_jinja_append(run, out, items->items[i]);
    return out;
}

static value list(hy_jinja_run *run, call c) { return copy_list(run, c->self, HY_JINJA_LIST); }

static value first(hy_jinja_run *run, call c) {
    bool is_lazy = c->self.type == HY_JINJA_LAZY; /* the other items stay in it */
    if (is_lazy && c->self.as.list->count > 0) return hy_jinja_shift(run, c->self.as.list);
    const hy_jinja_list *items = hy_jinja_iterate(run, c->self);
    return items->count ? items->items[0]
                        : hy_jinja_undefined("the first item of an empty sequence");
}

static value last(hy_jinja_run *run, call c) {
    if (c->self.type == HY_JINJA_LAZY) hy_jinja_fail(run, "a generator has no last item");
    const hy_jinja_list *items = hy_jinja_iterate(run, c->self);
    return items->count ? items->items[items->count - 1]
                        : hy_jinja_undefined("the last item of an empty sequence");
}

static value items_of(hy_jinja_run *run, value v, hy_jinja_type type) {
    value out = hy_jinja_new_list(run, type, 0);
    if (v.type == HY_JINJA_UNDEFINED) return out;
    if (v.type != HY_JINJA_DICT) {
        hy_jinja_fail(run, "cannot list the items of %s; expected a mapping",
                      hy_jinja_type_name(v));
    }
    for (size_t i = 0; i < v.as.dict->count; i++) {
        hy_jinja_append(run, out, hy_jinja_pair(run, v.as.dict->keys[i], v.as.dict->items[i]));
    }
    return out;
}

static value items(hy_jinja_run *run, call c) { return items_of(run, c->self, HY_JINJA_LAZY); }

static value join(hy_jinja_run *run, call c) {
    const hy_jinja_list *all = hy_jinja_iterate(run, c->self);
    hy_jinja_builder b = {.run = run};
    for (size_t i = 0; i < all->count; i++) {
        if (i && is_given(c->given[0])) hy_jinja_print(&b, c->given[0]);
        hy_jinja_print(&b, part_or(run, all->items[i], c->given[1], (value){0}));
    }
    return hy_jinja_built(&b);
}

static value reverse(hy_jinja_run *run, call c) {
    const hy_jinja_list *all = hy_jinja_iterate(run, c->self);
    bool is_text = c->self.type == HY_JINJA_STRING;
    hy_jinja_builder b = {.run = run};
    hy_jinja_type type = c->self.type == HY_JINJA_LAZY ? HY_JINJA_LIST : HY_JINJA_LAZY;
    value out = hy_jinja_new_list(run, type, all->count);
    for (size_t i = all->count; i-- > 0;) {
        if (is_text)
            hy_jinja_print(&b, all->items[i]);
        else
            hy_jinja_append(run, out, all->items[i]);
    }
    return is_text ? hy_jinja_built(&b) : out;
}

/* The value to compare: strings in lower case unless case_sensitive is set. */
static value sort_key(hy_jinja_run *run, value v, value path, value is_case_sensitive) {
    v = part_or(run, v, path, (value){0});
    if (v.type != HY_JINJA_STRING || hy_jinja_is_true(is_case_sensitive)) return v;
    return hy_jinja_change_case(run, &(hy_jinja_call){.self = v, .how = HY_LOWER});
}

/* A stable sort of `out` by `keys`. */
static value sort_by(hy_jinja_run *run, value out, value *keys, bool is_reversed) {
    value *all = out.as.list->items;
    for (size_t i = 1; i < out.as.list->count; i++) {
        value item = all[i], key = keys[i];
        size_t to = i;
        for (; to > 0; to--) {
            hy_jinja_spend(run, 1);
            int order = hy_jinja_order(run, key, keys[to - 1]);
            if (is_reversed ? order <= 0 : order >= 0) break;
            all[to] = all[to - 1];
            keys[to] = keys[to - 1];
        }
        all[to] = item;
        keys[to] = key;
    }
    return out;
}

static value sort(hy_jinja_run *run, call c) { /* reverse, case_sensitive, attribute */
    value out = copy_list(run, c->self, HY_JINJA_LIST);
    value *keys = hy_jinja_take(run, (out.as.list->count + 1) * sizeof *keys);
    for (size_t i = 0; i < out.as.list->count; i++) {
        keys[i] = sort_key(run, out.as.list->items[i], c->given[2], c->given[1]);
    }
    value down = or_else(c->given[0], hy_jinja_bool(false));
    return sort_by(run, out, keys, hy_jinja_as_int(run, down, "reverse") != 0);
}

static value dictsort(hy_jinja_run *run, call c) { /* case_sensitive, by, reverse */
    hy_jinja_need_defined(run, c->self);
    value out = items_of(run, c->self, HY_JINJA_LIST);
    bool by_value = is_given(c->given[1]) && hy_jinja_is(text_of(run, c->given[1]), "value");
    value *keys = hy_jinja_take(run, (out.as.list->count + 1) * sizeof *keys);
    for (size_t i = 0; i < out.as.list->count; i++) {
        value key = out.as.list->items[i].as.list->items[by_value];
        keys[i] = sort_key(run, key, (value){0}, c->given[0]);
    }
    return sort_by(run, out, keys, hy_jinja_is_true(c->given[2]));
}

static value unique(hy_jinja_run *run, call c) { /* case_sensitive, attribute */
    const hy_jinja_list *all = hy_jinja_iterate(run, c->self);
    value out = hy_jinja_new_list(run, HY_JINJA_LAZY, 0);
    value seen = hy_jinja_new_list(run, HY_JINJA_LIST, 0);
    for (size_t i = 0; i < all->count; i++) {
        value key = sort_key(run, all->items[i], c->given[1], c->given[0]);
        if (hy_jinja_contains(run, seen, key)) continue;
        hy_jinja_append(run, seen, key);
        hy_jinja_append(run, out, all->items[i]);
    }
    return out;
}

static value extreme(hy_jinja_run *run, call c) { /* case_sensitive, attribute */
    const hy_jinja_list *all = hy_jinja_iterate(run, c->self);
    value best = hy_jinja_undefined("the extreme of an empty sequence"), best_key = best;
    for (size_t i = 0; i < all->count; i++) {
        value key = sort_key(run, all->items[i], c->given[1], c->given[0]);
        int order = i ? hy_jinja_order(run, key, best_key) : c->how;
        hy_jinja_spend(run, 1);
        if ((order > 0) - (order < 0) != c->how) continue;
        best = all->items[i];
        best_key = key;
    }
    return best;
}

/* ---- map, select and similar ----------------------------------------------------------------- */

static value named(const hy_jinja_arguments *all, const char *name) {
    for (size_t i = 0; i < all->named_count; i++) {
        if (strcmp(all->names[i], name) == 0) return all->named[i];
    }
    return (value){0};
}

/* The arguments after the first `used` ones. */
static hy_jinja_arguments behind(const hy_jinja_arguments *all, size_t used) {
    used = used < all->count ? used : all->count;
    const value *items = used ? all->items + used : all->items; /* items may be NULL */
    return (hy_jinja_arguments){items, all->count - used, all->names, all->named, all->named_count};
}

static const hy_jinja_function *function_of(hy_jinja_run *run, value v,
                                            const hy_jinja_function *(*look_up)(const char *),
                                            const char *what) {
    const hy_jinja_string *name = hy_jinja_as_string(run, v, what);
    const char *text = hy_jinja_copy(run, name->data, name->size);
    const hy_jinja_function *f = look_up(text);
    if (!f) hy_jinja_fail_unknown(run, what, text);
    return f;
}

/* The items that map and similar filters iterate over: a false value has none. */
static const hy_jinja_list *items_or_none(hy_jinja_run *run, value v) {
    return hy_jinja_iterate(run, hy_jinja_is_true(v) ? v : hy_jinja_undefined("nothing"));
}

static value map(hy_jinja_run *run, call c) {
    const hy_jinja_list *all = items_or_none(run, c->self);
    value path = named(c->all, "attribute"), otherwise = named(c->all, "default");
    value out = hy_jinja_new_list(run, HY_JINJA_LAZY, all->count);
    hy_jinja_arguments rest = behind(c->all, 1);
    if (!is_given(path) && c->all->count == 0) hy_jinja_fail(run, "map needs a filter");
    const hy_jinja_function *f =
        is_given(path) ? NULL : function_of(run, c->all->items[0], hy_jinja_filter, "filter");
    for (size_t i = 0; i < all->count; i++) {
        hy_jinja_append(run, out,
                        f ? hy_jinja_apply(run, f, all->items[i], &rest)
                          : part_or(run, all->items[i], path, otherwise));
    }
    return out;
}

enum { PASSING = 1, BY_PATH = 2 };

/* Selects items that pass a test, or that fail it; without a test, items that are true. */
static value choose(hy_jinja_run *run, call c) {
    const hy_jinja_list *all = items_or_none(run, c->self);
    size_t used = c->how & BY_PATH ? 1 : 0;
    value out = hy_jinja_new_list(run, HY_JINJA_LAZY, 0);
    if (c->all->count < used) hy_jinja_fail(run, "the name of an attribute is missing");
    value path = used ? c->all->items[0] : (value){0};
    hy_jinja_arguments rest = behind(c->all, used + 1);
    const hy_jinja_function *test =
        c->all->count > used ? function_of(run, c->all->items[used], hy_jinja_test, "test") : NULL;
    for (size_t i = 0; i < all->count; i++) {
        value v = part_or(run, all->items[i], path, (value){0});
        hy_jinja_spend(run, 1);
        if (test) v = hy_jinja_apply(run, test, v, &rest);
        if (hy_jinja_is_true(v) == (c->how & PASSING)) hy_jinja_append(run, out, all->items[i]);
    }
    return out;
}

static const hy_jinja_function filters[] = {
    {"trim", "chars", 0, hy_jinja_strip, HY_LEFT | HY_RIGHT},
    {"upper", "", 0, hy_jinja_change_case, HY_UPPER},
    {"lower", "", 0, hy_jinja_change_case, HY_LOWER},
    {"title", "", 0, hy_jinja_change_case, HY_WORDS},
    {"capitalize", "", 0, hy_jinja_change_case, HY_CAPITAL},
    {"string", "", 0, string, 0},
    {"safe", "", 0, safe, 0},
    {"replace", "old new count", 2, replace, 0},
    {"indent", "width first blank", 0, indent, 0},
    {"format", "*", 0, format, 0},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, tojson, 0},
    {"int", "default", 0, to_int, 0},
    {"float", "default", 0, to_float, 0},
    {"default", "default_value boolean", 0, fallback, 0},
    {"d", "default_value boolean", 0, fallback, 0},
    {"length", "", 0, length, 0},
    {"count", "", 0, length, 0},
    {"list", "", 0, list, 0},
    {"first", "", 0, first, 0},
    {"last", "", 0, last, 0},
    {"items", "", 0, items, 0},
    {"join", "d attribute", 0, join, 0},
    {"reverse", "", 0, reverse, 0},
    {"sort", "reverse case_sensitive attribute", 0, sort, 0},
    {"dictsort", "case_sensitive by reverse", 0, dictsort, 0},
    {"unique", "case_sensitive attribute", 0, unique, 0},
    {"min", "case_sensitive attribute", 0, extreme, -1},
    {"max", "case_sensitive attribute", 0, extreme, 1},
    {"map", "*", 0, map, 0},
    {"select", "*", 0, choose, PASSING},
    {"reject", "*", 0, choose, 0},
    {"selectattr", "*", 0, choose, PASSING | BY_PATH},
    {"rejectattr", "*", 0, choose, BY_PATH},
    {0},
};

const hy_jinja_function *hy_jinja_filter(const char *name) { return hy_jinja_row(filters, name); }
