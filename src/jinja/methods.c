/* methods.c: methods of strings, mappings and lists, and the global functions of templates.
 *
 * eval.c looks them up in the tables when an attribute or a name is used, and hy_jinja_apply calls
 * them. A method of Python that is not supported is an error, never an undefined value. */
#include <string.h>

#include "jinja/parts.h"
#include "tokenizer/unicode.h"

#define RANGE_MOST 100000 /* the limit of Jinja's sandbox */

typedef const hy_jinja_call *call;

/* ---- texts ----------------------------------------------------------------------------------- */

static int64_t count_or(hy_jinja_run *run, value v, int64_t fallback) {
    return v.type == HY_JINJA_ABSENT ? fallback : hy_jinja_as_int(run, v, "a count");
}

/* Splits at runs of blanks, at most `most` times; negative: no limit. */
static value split_blanks(hy_jinja_run *run, const hy_jinja_string *s, int64_t most) {
    value out = hy_jinja_new_list(run, HY_JINJA_LIST, 0);
    for (size_t at = hy_jinja_skip(s->data, s->size, 0, true), end; at < s->size;) {
        end = most-- == 0 ? s->size : hy_jinja_skip(s->data, s->size, at, false);
        hy_jinja_append(run, out, hy_jinja_part(run, s, at, end));
        at = hy_jinja_skip(s->data, s->size, end, true);
    }
    return out;
}

/* The last position of `needle` before `end`; SIZE_MAX: none. */
static size_t find_last(hy_jinja_run *run, const hy_jinja_string *s, const hy_jinja_string *needle,
                        size_t end) {
    for (size_t at = needle->size > end ? 0 : end - needle->size + 1; at-- > 0;) {
        if (needle->size > 0 && s->data[at] != needle->data[0]) continue;
        hy_jinja_spend(run, needle->size / 64);
        if (memcmp(s->data + at, needle->data, needle->size) == 0) return at;
    }
    return SIZE_MAX;
}

static value split(hy_jinja_run *run, call c) {
    const hy_jinja_string *s = c->self.as.string;
    const hy_jinja_string *by = hy_jinja_string_or_null(run, c->given[0], "the separator");
    int64_t most = count_or(run, c->given[1], -1);
    hy_jinja_spend(run, s->size / 8);
    if (!by && c->how == HY_LEFT) return split_blanks(run, s, most);
    if (!by || by->size == 0) hy_jinja_fail(run, "split by an empty string is not supported");
    value out = hy_jinja_new_list(run, HY_JINJA_LIST, 0);
    size_t at = 0, end = s->size, found;
    if (c->how == HY_RIGHT &&
        most >= 0) { /* only the last ones split, so the first piece is longer */
        for (at = end; most > 0 && (found = find_last(run, s, by, at)) != SIZE_MAX; most--)
            at = found;
        if (at < end) hy_jinja_append(run, out, hy_jinja_part(run, s, 0, at));
        at = at < end ? at + by->size : 0;
        most = at ? -1 : 0;
    }
    for (; most != 0 && (found = hy_jinja_find(s, by, at)) != SIZE_MAX; most--) {
        hy_jinja_append(run, out, hy_jinja_part(run, s, at, found));
        at = found + by->size;
    }
    hy_jinja_append(run, out, hy_jinja_part(run, s, at, end));
    return out;
}

static bool has_end(hy_jinja_run *run, const hy_jinja_string *s, value v, bool is_start) {
    const hy_jinja_string *part = hy_jinja_as_string(run, v, "the end of a string");
    hy_jinja_spend(run, 1 + part->size / 256);
    return part->size <= s->size &&
           memcmp(is_start ? s->data : s->data + s->size - part->size, part->data, part->size) == 0;
}

static value ends_with(hy_jinja_run *run, call c) {
    value v = c->given[0];
    bool is_tuple = v.type == HY_JINJA_TUPLE, has_any = false;
    for (size_t i = 0; i < (is_tuple ? v.as.list->count : 1) && !has_any; i++) {
        value end = is_tuple ? v.as.list->items[i] : v;
        has_any = has_end(run, c->self.as.string, end, c->how == HY_LEFT);
    }
    return hy_jinja_bool(has_any);
}

static value remove_end(hy_jinja_run *run, call c) {
    const hy_jinja_string *s = c->self.as.string;
    const hy_jinja_string *part = hy_jinja_as_string(run, c->given[0], "the string to remove");
    size_t cut = has_end(run, s, c->given[0], c->how == HY_LEFT) ? part->size : 0;
    return c->how == HY_LEFT ? hy_jinja_part(run, s, cut, s->size)
                             : hy_jinja_part(run, s, 0, s->size - cut);
}

static value replace(hy_jinja_run *run, call c) {
    return hy_jinja_replace(
        run, c->self.as.string, hy_jinja_as_string(run, c->given[0], "the string to replace"),
        hy_jinja_as_string(run, c->given[1], "the replacement"), count_or(run, c->given[2], -1));
}

/* The first or last position, in characters; -1: none. */
static value find(hy_jinja_run *run, call c) {
    const hy_jinja_string *s = c->self.as.string;
    const hy_jinja_string *part = hy_jinja_as_string(run, c->given[0], "the string to find");
    hy_jinja_spend(run, s->size / 8);
    size_t at = c->how == HY_LEFT ? hy_jinja_find(s, part, 0) : find_last(run, s, part, s->size);
    if (at == SIZE_MAX) return hy_jinja_int(-1);
    return hy_jinja_int((int64_t)hy_jinja_length(&(hy_jinja_string){.data = s->data, .size = at}));
}

static value count(hy_jinja_run *run, call c) {
    const hy_jinja_string *part = hy_jinja_as_string(run, c->given[0], "the string to count");
    int64_t found = 0;
    hy_jinja_spend(run, c->self.as.string->size / 64);
    if (part->size == 0) hy_jinja_fail(run, "counting an empty string is not supported");
    for (size_t at = 0; (at = hy_jinja_find(c->self.as.string, part, at)) != SIZE_MAX; found++) {
        at += part->size;
    }
    return hy_jinja_int(found);
}

/* Whether there is a character, and all are of the class. */
static value all_are(hy_jinja_run *run, call c) {
    const hy_jinja_string *s = c->self.as.string;
    bool are = s->size > 0;
    uint32_t code;
    for (size_t i = 0; i < s->size && are;) {
        i += hy_unicode_next(s->data + i, s->size - i, &code);
        are = c->how == HY_UNICODE_SPACE ? hy_jinja_is_space(code)
                                         : (int)hy_unicode_class_of(code) == c->how;
        if (are && c->how == HY_UNICODE_NUMBER && code >= 0x80) {
            hy_jinja_fail(run, "digits outside ASCII are not supported");
        }
    }
    hy_jinja_spend(run, s->size / 64);
    return hy_jinja_bool(are);
}

static value split_lines(hy_jinja_run *run, call c) {
    const hy_jinja_string *s = c->self.as.string;
    value out = hy_jinja_new_list(run, HY_JINJA_LIST, 0);
    bool keeps_ends = hy_jinja_is_true(c->given[0]);
    hy_jinja_spend(run, s->size / 8);
    for (size_t at = 0, end, next; at < s->size; at = next) {
        end = hy_jinja_line_end(s, at, &next);
        hy_jinja_append(run, out, hy_jinja_part(run, s, at, keeps_ends ? next : end));
    }
    return out;
}

static value join(hy_jinja_run *run, call c) {
    const hy_jinja_list *items = hy_jinja_iterate(run, c->given[0]);
    hy_jinja_builder b = {.run = run};
    for (size_t i = 0; i < items->count; i++) {
        if (i) hy_jinja_print(&b, c->self);
        (void)hy_jinja_as_string(run, items->items[i], "the value to join");
        hy_jinja_print(&b, items->items[i]);
    }
    return hy_jinja_built(&b);
}

/* The value of a replacement field: {} in order, {0}, {name}. */
static const value *format_place(const hy_jinja_arguments *all, const char *name, size_t length,
                                 size_t *turn) {
    size_t place = all->count;
    if (length == 0) place = (*turn)++;
    if (length == 1 && name[0] >= '0' && name[0] <= '9') place = (size_t)(name[0] - '0');
    if (place < all->count) return &all->items[place];
    for (size_t i = 0; length > 0 && i < all->named_count; i++) {
        bool is_it = strlen(all->names[i]) == length && !memcmp(all->names[i], name, length);
        if (is_it) return &all->named[i];
    }
    return NULL;
}

static value format(hy_jinja_run *run, call c) {
    const hy_jinja_string *s = c->self.as.string;
    hy_jinja_builder b = {.run = run};
    size_t turn = 0;
    for (size_t i = 0; i < s->size; i++) {
        char sign = s->data[i];
        bool is_brace = sign == '{' || sign == '}';
        bool is_double = is_brace && i + 1 < s->size && s->data[i + 1] == sign;
        if (!is_brace || is_double) {
            hy_jinja_add_part(&b, s, i, i + 1);
            i += is_double;
            continue;
        }
        const char *end = sign == '{' ? memchr(s->data + i, '}', s->size - i) : NULL;
        size_t length = end ? (size_t)(end - s->data) - i - 1 : 0;
        const value *v = end ? format_place(c->all, s->data + i + 1, length, &turn) : NULL;
        if (!v) hy_jinja_fail(run, "a format has a replacement field that is not supported");
        hy_jinja_print(&b, *v);
        i += length + 1;
    }
    return hy_jinja_built(&b);
}

static const hy_jinja_function text_methods[] = {
    {"strip", "chars", 0, hy_jinja_strip, HY_LEFT | HY_RIGHT},
    {"lstrip", "chars", 0, hy_jinja_strip, HY_LEFT},
    {"rstrip", "chars", 0, hy_jinja_strip, HY_RIGHT},
    {"split", "sep maxsplit", 0, split, HY_LEFT},
    {"rsplit", "sep maxsplit", 1, split, HY_RIGHT},
    {"startswith", "prefix", 1, ends_with, HY_LEFT},
    {"endswith", "suffix", 1, ends_with, HY_RIGHT},
    {"removeprefix", "prefix", 1, remove_end, HY_LEFT},
    {"removesuffix", "suffix", 1, remove_end, HY_RIGHT},
    {"replace", "old new count", 2, replace, 0},
    {"upper", "", 0, hy_jinja_change_case, HY_UPPER},
    {"lower", "", 0, hy_jinja_change_case, HY_LOWER},
    {"title", "", 0, hy_jinja_change_case, HY_TITLE},
    {"capitalize", "", 0, hy_jinja_change_case, HY_CAPITAL},
    {"find", "sub", 1, find, HY_LEFT},
    {"rfind", "sub", 1, find, HY_RIGHT},
    {"count", "sub", 1, count, 0},
    {"isdigit", "", 0, all_are, HY_UNICODE_NUMBER},
    {"isalpha", "", 0, all_are, HY_UNICODE_LETTER},
    {"isspace", "", 0, all_are, HY_UNICODE_SPACE},
    {"splitlines", "keepends", 0, split_lines, 0},
    {"join", "iterable", 1, join, 0},
    {"format", "*", 0, format, 0},
    {0},
};

/* ---- mappings -------------------------------------------------------------------------------- */

enum { KEYS = 1, VALUES = 2 };

static value get(hy_jinja_run *run, call c) {
    const value *found = hy_jinja_look_up(run, c->self.as.dict, c->given[0]);
    if (found) return *found;
    return c->given[1].type == HY_JINJA_ABSENT ? hy_jinja_none() : c->given[1];
}

static value view(hy_jinja_run *run, call c) {
    const hy_jinja_dict *d = c->self.as.dict;
    value out = hy_jinja_new_list(run, HY_JINJA_VIEW, d->count);
    for (size_t i = 0; i < d->count; i++) {
        value v = c->how == KEYS     ? d->keys[i]
                  : c->how == VALUES ? d->items[i]
                                     : hy_jinja_pair(run, d->keys[i], d->items[i]);
        hy_jinja_append(run, out, v);
    }
    return out;
}

static const hy_jinja_function dict_methods[] = {
    {"get", "key default", 1, get, 0},
    {"items", "", 0, view, KEYS | VALUES},
    {"keys", "", 0, view, KEYS},
    {"values", "", 0, view, VALUES},
    {0},
};
static const hy_jinja_function no_methods[] = {{0}};

/* Other methods of Python's values: using one is an error, so that it is not taken as undefined. */
static const char text_others[] =
    " casefold center encode expandtabs format_map index isalnum isascii isdecimal isidentifier "
    "islower isnumeric isprintable istitle isupper ljust maketrans partition rindex rjust "
    "rpartition swapcase translate zfill ";
static const char dict_others[] = " clear copy fromkeys pop popitem setdefault update ";
static const char list_others[] =
    " append clear copy count extend index insert pop remove reverse sort ";

value hy_jinja_method(hy_jinja_run *run, value v, const char *name) {
    bool is_text = v.type == HY_JINJA_STRING, is_dict = v.type == HY_JINJA_DICT;
    bool is_list = v.type == HY_JINJA_LIST || v.type == HY_JINJA_TUPLE || v.type == HY_JINJA_RANGE;
    if (!is_text && !is_dict && !is_list) return (value){0};
    const hy_jinja_function *f = hy_jinja_row(is_text   ? text_methods
                                              : is_dict ? dict_methods
                                                        : no_methods,
                                              name);
    const char *others = is_text ? text_others : is_dict ? dict_others : list_others;
    if (!f && hy_word_is_in(others, name)) {
        hy_jinja_fail(run, "the method %s of %s is not supported", name, hy_jinja_type_name(v));
    }
    if (!f) return (value){0};
    hy_jinja_callable *callable = hy_jinja_take(run, sizeof *callable);
    *callable = (hy_jinja_callable){f, v};
    return (value){HY_JINJA_CALLABLE, {.callable = callable}};
}

/* ---- functions ------------------------------------------------------------------------------- */

static value raise_exception(hy_jinja_run *run, call c) {
    const hy_jinja_string *s = hy_jinja_to_string(run, c->given[0]).as.string;
    hy_jinja_fail(run, "the template raised an exception: %.*s",
                  (int)(s->size < 400 ? s->size : 400), s->data);
}

static value strftime_now(hy_jinja_run *run, call c) {
    const hy_jinja_string *s = hy_jinja_as_string(run, c->given[0], "the format of a date");
    const char *format = hy_jinja_copy(run, s->data, s->size);
    char text[256] = "";
    for (const char *at = strchr(format, '%'); at && at[1]; at = strchr(at + 2, '%')) {
        if (strchr("fzZ", at[1])) { /* these parts of the clock do not exist */
            hy_jinja_fail(run, "%%%c in a date is not supported", at[1]);
        }
    }
    size_t size = strftime(text, sizeof text, format, run->now);
    if (size == 0 && s->size > 0) hy_jinja_fail(run, "a date has more than 255 bytes");
    return hy_jinja_string_of(run, hy_jinja_copy(run, text, size));
}

static value range(hy_jinja_run *run, call c) {
    bool has_begin = c->given[1].type != HY_JINJA_ABSENT;
    int64_t begin = has_begin ? hy_jinja_as_int(run, c->given[0], "the begin of a range") : 0;
    int64_t end = hy_jinja_as_int(run, c->given[has_begin], "the end of a range");
    int64_t step = count_or(run, c->given[2], 1);
    if (step == 0) hy_jinja_fail(run, "the step of a range is 0");
    value out = hy_jinja_new_list(run, HY_JINJA_RANGE, 0);
    for (__int128 i = begin; step > 0 ? i < end : i > end; i += step) {
        if (out.as.list->count == RANGE_MOST) {
            hy_jinja_fail(run, "a range has more than %d numbers", RANGE_MOST);
        }
        hy_jinja_append(run, out, hy_jinja_int((int64_t)i));
    }
    return out;
}

static value make_dict(hy_jinja_run *run, call c) {
    value out = hy_jinja_dict_new(run);
    for (size_t i = 0; i < c->all->count; i++) {
        value from = c->all->items[i];
        if (from.type != HY_JINJA_DICT) {
            hy_jinja_fail(run, "cannot make a mapping from %s", hy_jinja_type_name(from));
        }
        for (size_t k = 0; k < from.as.dict->count; k++) {
            hy_jinja_insert(run, out.as.dict, from.as.dict->keys[k], from.as.dict->items[k]);
        }
    }
    for (size_t i = 0; i < c->all->named_count; i++) {
        hy_jinja_put(run, out, c->all->names[i], c->all->named[i]);
    }
    out.type = (hy_jinja_type)c->how;
    return out;
}

static const hy_jinja_function globals[] = {
    {"raise_exception", "message", 1, raise_exception, 0},
    {"strftime_now", "format", 1, strftime_now, 0},
    {"range", "begin end step", 1, range, 0},
    {"dict", "*", 0, make_dict, HY_JINJA_DICT},
    {"namespace", "*", 0, make_dict, HY_JINJA_NAMESPACE},
    {0},
};

const hy_jinja_function *hy_jinja_global(const char *name) { return hy_jinja_row(globals, name); }
