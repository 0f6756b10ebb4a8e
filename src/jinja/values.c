/* values.c: strings with marks, lists, dicts, and their behaviour in Python. See parts.h.
 *
 * All other files of the module use it; callers of the module create their values here. Values are
 * never freed one by one: they live until the rendering ends. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "jinja/parts.h"
#include "tokenizer/unicode.h"

/* ---- kinds ----------------------------------------------------------------------------------- */

const char *hy_jinja_type_name(value v) {
    static const char *const names[] = {[HY_JINJA_ABSENT] = "nothing",
                                        [HY_JINJA_UNDEFINED] = "an undefined value",
                                        [HY_JINJA_NONE] = "none",
                                        [HY_JINJA_BOOL] = "a boolean",
                                        [HY_JINJA_INT] = "an integer",
                                        [HY_JINJA_FLOAT] = "a number",
                                        [HY_JINJA_BIG] = "an integer beyond 64 bits",
                                        [HY_JINJA_STRING] = "a string",
                                        [HY_JINJA_LIST] = "a list",
                                        [HY_JINJA_TUPLE] = "a tuple",
                                        [HY_JINJA_RANGE] = "a range",
                                        [HY_JINJA_VIEW] = "a view of a mapping",
                                        [HY_JINJA_LAZY] = "a generator",
                                        [HY_JINJA_DICT] = "a mapping",
                                        [HY_JINJA_NAMESPACE] = "a namespace",
                                        [HY_JINJA_LOOP] = "the loop",
                                        [HY_JINJA_MACRO] = "a macro",
                                        [HY_JINJA_CALLABLE] = "a function"};
    return names[v.type];
}

void hy_jinja_need_defined(hy_jinja_run *run, value v) {
    if (v.type == HY_JINJA_UNDEFINED) hy_jinja_fail(run, "\"%.200s\" is undefined", v.as.name);
}

int64_t hy_jinja_as_int(hy_jinja_run *run, value v, const char *what) {
    if (v.type == HY_JINJA_BOOL) return v.as.truth;
    if (v.type == HY_JINJA_INT) return v.as.integer;
    hy_jinja_fail(run, "%s is %s; expected an integer", what, hy_jinja_type_name(v));
}

double hy_jinja_as_double(value v) {
    if (v.type == HY_JINJA_BOOL) return v.as.truth;
    return v.type == HY_JINJA_INT ? (double)v.as.integer : v.as.number;
}

const hy_jinja_string *hy_jinja_as_string(hy_jinja_run *run, value v, const char *what) {
    if (v.type == HY_JINJA_STRING) return v.as.string;
    hy_jinja_need_defined(run, v);
    hy_jinja_fail(run, "%s is %s; expected a string", what, hy_jinja_type_name(v));
}

const hy_jinja_string *hy_jinja_string_or_null(hy_jinja_run *run, value v, const char *what) {
    bool is_none = v.type == HY_JINJA_ABSENT || v.type == HY_JINJA_NONE;
    return is_none ? NULL : hy_jinja_as_string(run, v, what);
}

bool hy_jinja_is_true(value v) {
    switch (v.type) {
    case HY_JINJA_ABSENT:
    case HY_JINJA_UNDEFINED:
    case HY_JINJA_NONE: return false;
    case HY_JINJA_BOOL: return v.as.truth;
    case HY_JINJA_INT: return v.as.integer != 0;
    case HY_JINJA_FLOAT: return v.as.number != 0;
    case HY_JINJA_STRING: return v.as.string->size > 0;
    case HY_JINJA_LIST:
    case HY_JINJA_TUPLE:
    case HY_JINJA_RANGE:
    case HY_JINJA_VIEW: return v.as.list->count > 0;
    case HY_JINJA_DICT: return v.as.dict->count > 0;
    default: return true;
    }
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool equal_lists(hy_jinja_run *run, const hy_jinja_list *a, const hy_jinja_list *b) {
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++) {
        same = hy_jinja_equal(run, a->items[i], b->items[i]);
    }
    return same;
}

static bool equal_dicts(hy_jinja_run *run, const hy_jinja_dict *a, const hy_jinja_dict *b) {
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++) {
        const value *other = hy_jinja_look_up(run, b, a->keys[i]);
        same = other && hy_jinja_equal(run, a->items[i], *other);
    }
    return same;
}

bool hy_jinja_equal(hy_jinja_run *run, value a, value b) {
    bool same;
    if (hy_jinja_is_number(a) && hy_jinja_is_number(b)) {
        if (a.type != HY_JINJA_FLOAT && b.type != HY_JINJA_FLOAT) {
            return hy_jinja_as_int(run, a, "") == hy_jinja_as_int(run, b, "");
        }
        return hy_jinja_as_double(a) == hy_jinja_as_double(b);
    }
    if (a.type != b.type) return false;
    hy_jinja_enter(run);
    switch (a.type) {
    case HY_JINJA_BIG:
    case HY_JINJA_STRING:
        hy_jinja_spend(run, a.as.string->size / 256);
        same = a.as.string->size == b.as.string->size &&
               memcmp(a.as.string->data, b.as.string->data, a.as.string->size) == 0;
        break;
    case HY_JINJA_LIST:
    case HY_JINJA_TUPLE:
    case HY_JINJA_RANGE:
    case HY_JINJA_VIEW: same = equal_lists(run, a.as.list, b.as.list); break;
    case HY_JINJA_DICT: same = equal_dicts(run, a.as.dict, b.as.dict); break;
    case HY_JINJA_UNDEFINED:
    case HY_JINJA_NONE: same = true; break;
    case HY_JINJA_CALLABLE: same = a.as.callable->function == b.as.callable->function; break;
    default: same = a.as.dict == b.as.dict; break;
    }
    run->depth--;
    return same;
}

int hy_jinja_order(hy_jinja_run *run, value a, value b) {
    if (hy_jinja_is_number(a) && hy_jinja_is_number(b)) {
        if (a.type != HY_JINJA_FLOAT && b.type != HY_JINJA_FLOAT) {
            int64_t x = hy_jinja_as_int(run, a, ""), y = hy_jinja_as_int(run, b, "");
            return (x > y) - (x < y);
        }
        double x = hy_jinja_as_double(a), y = hy_jinja_as_double(b);
        return (x > y) - (x < y);
    }
    if (a.type == HY_JINJA_STRING && b.type == HY_JINJA_STRING) {
        const hy_jinja_string *x = a.as.string, *y = b.as.string;
        size_t both = x->size < y->size ? x->size : y->size;
        hy_jinja_spend(run, both / 256);
        /* bytes have the same order as code points */
        int order = both ? memcmp(x->data, y->data, both) : 0;
        return order ? order : (x->size > y->size) - (x->size < y->size);
    }
    bool are_lists = a.type == b.type && (a.type == HY_JINJA_LIST || a.type == HY_JINJA_TUPLE);
    if (!are_lists) {
        hy_jinja_fail(run, "cannot compare %s and %s", hy_jinja_type_name(a),
                      hy_jinja_type_name(b));
    }
    hy_jinja_enter(run);
    int order = 0;
    const hy_jinja_list *x = a.as.list, *y = b.as.list;
    for (size_t i = 0; !order && i < x->count && i < y->count; i++) {
        if (!hy_jinja_equal(run, x->items[i], y->items[i])) {
            order = hy_jinja_order(run, x->items[i], y->items[i]);
        }
    }
    run->depth--;
    return order ? order : (x->count > y->count) - (x->count < y->count);
}

/* ---- strings --------------------------------------------------------------------------------- */

value hy_jinja_new_string(hy_jinja_run *run, hy_jinja_string s) {
    hy_jinja_string *out = hy_jinja_take(run, sizeof *out);
    *out = s;
    return (value){HY_JINJA_STRING, {.string = out}};
}

uint16_t hy_jinja_mark_at(const hy_jinja_string *s, size_t byte) {
    return s->marks ? s->marks[byte] : s->mark;
}

void hy_jinja_add(hy_jinja_builder *b, const char *text, size_t size, uint16_t mark) {
    if (size == 0) return;
    hy_jinja_spend(b->run, size / 256);
    if (b->room - b->size < size) {
        b->room = 2 * b->room + size + 64;
        b->data = hy_jinja_grow(b->run, b->data, b->size, b->room, 1);
        b->marks = hy_jinja_grow(b->run, b->marks, b->size, b->room, sizeof *b->marks);
    }
    memcpy(b->data + b->size, text, size);
    for (size_t i = 0; i < size; i++) b->marks[b->size + i] = mark;
    b->size += size;
}

void hy_jinja_add_part(hy_jinja_builder *b, const hy_jinja_string *s, size_t begin, size_t end) {
    hy_jinja_add(b, s->data + begin, end - begin, s->mark);
    if (!s->marks || end == begin) return;
    memcpy(b->marks + b->size - (end - begin), s->marks + begin, (end - begin) * sizeof *s->marks);
}

value hy_jinja_built(hy_jinja_builder *b) {
    return hy_jinja_new_string(
        b->run,
        (hy_jinja_string){.data = b->data ? b->data : "", .size = b->size, .marks = b->marks});
}

value hy_jinja_part(hy_jinja_run *run, const hy_jinja_string *s, size_t begin, size_t end) {
    hy_jinja_string part = *s;
    part.data += begin;
    part.size = end - begin;
    if (part.marks) part.marks += begin;
    return hy_jinja_new_string(run, part);
}

value hy_jinja_string_of(hy_jinja_run *run, const char *text) {
    return hy_jinja_new_string(run, (hy_jinja_string){.data = text, .size = strlen(text)});
}

bool hy_jinja_is(const hy_jinja_string *s, const char *text) {
    return s->size == strlen(text) && memcmp(s->data, text, s->size) == 0;
}

size_t hy_jinja_length(const hy_jinja_string *s) {
    size_t count = 0;
    for (size_t i = 0; i < s->size; i++) count += ((uint8_t)s->data[i] & 0xC0) != 0x80;
    return count;
}

size_t hy_jinja_byte_of(const hy_jinja_string *s, size_t character) {
    size_t i = 0;
    for (; i < s->size; i++) {
        if (((uint8_t)s->data[i] & 0xC0) != 0x80 && character-- == 0) break;
    }
    return i;
}

size_t hy_jinja_find(const hy_jinja_string *s, const hy_jinja_string *needle, size_t from) {
    if (from > s->size) return SIZE_MAX;
    if (needle->size == 0) return from;
    const char *at = memmem(s->data + from, s->size - from, needle->data, needle->size);
    return at ? (size_t)(at - s->data) : SIZE_MAX;
}

/* ---- lists and dicts ------------------------------------------------------------------------- */

value hy_jinja_new_list(hy_jinja_run *run, hy_jinja_type type, size_t room) {
    hy_jinja_list *list = hy_jinja_take(run, sizeof *list);
    if (room) list->items = hy_jinja_grow(run, NULL, 0, room, sizeof *list->items);
    list->room = room;
    return (value){type, {.list = list}};
}

value hy_jinja_pair(hy_jinja_run *run, value a, value b) {
    value pair = hy_jinja_new_list(run, HY_JINJA_TUPLE, 2);
    hy_jinja_append(run, pair, a);
    hy_jinja_append(run, pair, b);
    return pair;
}

void hy_jinja_append(hy_jinja_run *run, value list, value item) {
    hy_jinja_list *to = list.as.list;
    hy_jinja_spend(run, 1);
    if (to->count == to->room) {
        to->room = to->room ? 2 * to->room : 4;
        to->items = hy_jinja_grow(run, to->items, to->count, to->room, sizeof *to->items);
    }
    to->items[to->count++] = item;
}

value hy_jinja_shift(hy_jinja_run *run, hy_jinja_list *list) {
    hy_jinja_spend(run, 1);
    list->count--;
    return *list->items++;
}

value *hy_jinja_look_up_text(hy_jinja_run *run, const hy_jinja_dict *dict, const char *key) {
    hy_jinja_spend(run, dict->count / 8);
    for (size_t i = 0; i < dict->count; i++) {
        value k = dict->keys[i];
        if (k.type == HY_JINJA_STRING && hy_jinja_is(k.as.string, key)) return &dict->items[i];
    }
    return NULL;
}

value *hy_jinja_look_up(hy_jinja_run *run, const hy_jinja_dict *dict, value key) {
    hy_jinja_spend(run, dict->count / 8);
    if (key.type == HY_JINJA_LIST || key.type == HY_JINJA_DICT) {
        hy_jinja_fail(run, "%s cannot be a key of a mapping", hy_jinja_type_name(key));
    }
    for (size_t i = 0; i < dict->count; i++) {
        if (hy_jinja_equal(run, dict->keys[i], key)) return &dict->items[i];
    }
    return NULL;
}

void hy_jinja_insert(hy_jinja_run *run, hy_jinja_dict *dict, value key, value item) {
    value *old = hy_jinja_look_up(run, dict, key);
    if (old) {
        *old = item;
        return;
    }
    if (dict->count == dict->room) {
        dict->room = dict->room ? 2 * dict->room : 8;
        dict->keys = hy_jinja_grow(run, dict->keys, dict->count, dict->room, sizeof *dict->keys);
        dict->items = hy_jinja_grow(run, dict->items, dict->count, dict->room, sizeof *dict->items);
    }
    assert(dict->keys && dict->items);
    dict->keys[dict->count] = key;
    dict->items[dict->count++] = item;
}

static const hy_jinja_list *characters(hy_jinja_run *run, const hy_jinja_string *s) {
    value list = hy_jinja_new_list(run, HY_JINJA_LIST, 0);
    hy_jinja_string plain = *s; /* iterating a safe string gives plain characters */
    uint32_t code;
    plain.is_safe = false;
    for (size_t i = 0, length; i < s->size; i += length) {
        length = hy_unicode_next(s->data + i, s->size - i, &code);
        hy_jinja_append(run, list, hy_jinja_part(run, &plain, i, i + length));
    }
    return list.as.list;
}

const hy_jinja_list *hy_jinja_iterate(hy_jinja_run *run, value v) {
    hy_jinja_list *list;
    switch (v.type) {
    case HY_JINJA_LIST:
    case HY_JINJA_TUPLE:
    case HY_JINJA_RANGE:
    case HY_JINJA_VIEW: return v.as.list;
    case HY_JINJA_LAZY: /* read once: it is empty afterwards */
        list = hy_jinja_take(run, sizeof *list);
        *list = *v.as.list;
        v.as.list->count = 0;
        return list;
    case HY_JINJA_STRING: return characters(run, v.as.string);
    case HY_JINJA_DICT:
        list = hy_jinja_take(run, sizeof *list);
        *list = (hy_jinja_list){.items = v.as.dict->keys, .count = v.as.dict->count};
        return list;
    case HY_JINJA_UNDEFINED: return hy_jinja_take(run, sizeof *list);
    default: hy_jinja_fail(run, "cannot iterate over %s", hy_jinja_type_name(v));
    }
}

bool hy_jinja_contains(hy_jinja_run *run, value in, value v) {
    if (in.type == HY_JINJA_STRING) {
        const hy_jinja_string *s = hy_jinja_as_string(run, v, "the string to find");
        hy_jinja_spend(run, in.as.string->size / 64);
        return hy_jinja_find(in.as.string, s, 0) != SIZE_MAX;
    }
    if (in.type == HY_JINJA_DICT) return hy_jinja_look_up(run, in.as.dict, v) != NULL;
    if (in.type == HY_JINJA_LAZY) { /* the items that were read are gone */
        while (in.as.list->count > 0) {
            if (hy_jinja_equal(run, hy_jinja_shift(run, in.as.list), v)) return true;
        }
        return false;
    }
    const hy_jinja_list *list = hy_jinja_iterate(run, in);
    bool is_there = false;
    for (size_t i = 0; i < list->count && !is_there; i++) {
        hy_jinja_spend(run, 1);
        is_there = hy_jinja_equal(run, list->items[i], v);
    }
    return is_there;
}

/* ---- made by callers ------------------------------------------------------------------------- */

value hy_jinja_text(hy_jinja_run *run, const char *text, size_t size, unsigned mark) {
    return hy_jinja_new_string(
        run, (hy_jinja_string){.data = text, .size = size, .mark = (uint16_t)mark});
}

value hy_jinja_joined(hy_jinja_run *run, value a, value b) {
    hy_jinja_builder out = {.run = run};
    hy_jinja_print(&out, a);
    hy_jinja_print(&out, b);
    return hy_jinja_built(&out);
}

value hy_jinja_bool(bool truth) { return (value){HY_JINJA_BOOL, {.truth = truth}}; }
value hy_jinja_none(void) { return (value){HY_JINJA_NONE, {0}}; }

value hy_jinja_list_new(hy_jinja_run *run) { return hy_jinja_new_list(run, HY_JINJA_LIST, 0); }

value hy_jinja_dict_new(hy_jinja_run *run) {
    return (value){HY_JINJA_DICT, {.dict = hy_jinja_take(run, sizeof(hy_jinja_dict))}};
}

void hy_jinja_put(hy_jinja_run *run, value dict, const char *key, value item) {
    hy_jinja_insert(run, dict.as.dict, hy_jinja_string_of(run, key), item);
}

static value number_of(hy_jinja_run *run, const hy_json_node *node) {
    int64_t whole;
    double number = 0;
    const char *digits;
    size_t size;
    if (hy_json_is_integer(node) && hy_json_as_int(node, &whole)) return hy_jinja_int(whole);
    if (hy_json_as_digits(node, &digits, &size)) {
        value big = hy_jinja_text(run, digits, size, 0);
        big.type = HY_JINJA_BIG;
        return strncmp(digits, "-0", 2) == 0 ? hy_jinja_int(0) : big; /* as in Python */
    }
    (void)hy_json_as_double(node, &number);
    return hy_jinja_float(number);
}

value hy_jinja_json(hy_jinja_run *run, const hy_json_node *node, unsigned mark) {
    const char *text;
    size_t size;
    bool truth = false;
    value out = hy_jinja_none();
    switch (hy_json_type_of(node)) {
    case HY_JSON_NULL: break;
    case HY_JSON_BOOL: (void)hy_json_as_bool(node, &truth); return hy_jinja_bool(truth);
    case HY_JSON_NUMBER: return number_of(run, node);
    case HY_JSON_STRING:
        (void)hy_json_as_string(node, &text, &size);
        return hy_jinja_text(run, text, size, mark);
    case HY_JSON_ARRAY:
        out = hy_jinja_list_new(run);
        for (const hy_json_node *n = hy_json_first(node); n; n = hy_json_next(n)) {
            hy_jinja_append(run, out, hy_jinja_json(run, n, mark));
        }
        break;
    case HY_JSON_OBJECT:
        out = hy_jinja_dict_new(run);
        for (const hy_json_node *n = hy_json_first(node); n; n = hy_json_next(n)) {
            value key = hy_jinja_text(run, hy_json_key(n), hy_json_key_size(n), mark);
            hy_jinja_insert(run, out.as.dict, key, hy_jinja_json(run, n, mark));
        }
        break;
    }
    return out;
}
