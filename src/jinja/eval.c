/* eval.c: evaluates expressions. See parts.h.
 *
 * run.c calls hy_jinja_evaluate for every expression of a statement. Each evaluation is one step
 * and one level of depth, so nested and repeated expressions reach the limits of memory.c. */
#include <math.h>
#include <string.h>

#include "jinja/parts.h"

typedef hy_jinja_node node;

/* ---- names ----------------------------------------------------------------------------------- */

static value look_up_name(hy_jinja_run *run, const char *name) {
    for (const hy_jinja_scope *s = run->scope; s; s = s->parent) {
        hy_jinja_spend(run, s->count / 32);
        for (size_t i = 0; i < s->count; i++) {
            if (s->items[i].name == name) return s->items[i].is;
        }
    }
    const hy_jinja_function *function = hy_jinja_global(name);
    if (!function &&
        strcmp(name, "self") == 0) { /* `self` has the blocks of the template; there are none */
        return (value){HY_JINJA_NAMESPACE, hy_jinja_dict_new(run).as};
    }
    if (!function) return hy_jinja_undefined(name);
    hy_jinja_callable *callable = hy_jinja_take(run, sizeof *callable);
    callable->function = function;
    return (value){HY_JINJA_CALLABLE, {.callable = callable}};
}

/* ---- attributes and items -------------------------------------------------------------------- */

static value loop_attribute(hy_jinja_run *run, const hy_jinja_loop *loop, const char *name) {
    size_t at = loop->at, count = loop->items->count;
    const struct {
        const char *name;
        value is;
    } all[] = {
        {"index", hy_jinja_int((int64_t)at + 1)},
        {"index0", hy_jinja_int((int64_t)at)},
        {"revindex", hy_jinja_int((int64_t)(count - at))},
        {"revindex0", hy_jinja_int((int64_t)(count - at) - 1)},
        {"first", hy_jinja_bool(at == 0)},
        {"last", hy_jinja_bool(at + 1 == count)},
        {"length", hy_jinja_int((int64_t)count)},
        {"depth", hy_jinja_int(1)}, /* only recursive loops have more */
        {"depth0", hy_jinja_int(0)},
        {"previtem", at > 0 ? loop->items->items[at - 1] : hy_jinja_undefined("previtem")},
        {"nextitem", at + 1 < count ? loop->items->items[at + 1] : hy_jinja_undefined("nextitem")},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(all[i].name, name) == 0) return all[i].is;
    }
    hy_jinja_fail(run, "loop.%.40s is not supported", name);
}

value hy_jinja_attribute(hy_jinja_run *run, value v, const char *name) {
    hy_jinja_need_defined(run, v);
    if (v.type == HY_JINJA_LOOP) return loop_attribute(run, v.as.loop, name);
    value method = hy_jinja_method(run, v, name);
    if (method.type != HY_JINJA_ABSENT) return method;
    bool has_items = v.type == HY_JINJA_DICT || v.type == HY_JINJA_NAMESPACE;
    const value *found = has_items ? hy_jinja_look_up_text(run, v.as.dict, name) : NULL;
    return found ? *found : hy_jinja_undefined(name);
}

/* Converts a Python index into `count` items (negative: from the end) to a position; false:
 * outside. */
static bool find_place(int64_t index, size_t count, size_t *out) {
    if (index < 0) index += (int64_t)count;
    *out = (size_t)index;
    return index >= 0 && (size_t)index < count;
}

static bool has_places(value v) {
    return v.type == HY_JINJA_LIST || v.type == HY_JINJA_TUPLE || v.type == HY_JINJA_RANGE;
}

value hy_jinja_item(hy_jinja_run *run, value v, value key) {
    size_t at;
    bool is_index = key.type == HY_JINJA_INT || key.type == HY_JINJA_BOOL;
    hy_jinja_need_defined(run, v);
    if (v.type == HY_JINJA_DICT && key.type != HY_JINJA_LIST && key.type != HY_JINJA_DICT) {
        const value *found = hy_jinja_look_up(run, v.as.dict, key);
        if (found) return *found;
    }
    if (is_index && has_places(v)) {
        bool is_inside = find_place(hy_jinja_as_int(run, key, ""), v.as.list->count, &at);
        return is_inside ? v.as.list->items[at] : hy_jinja_undefined("the index is out of range");
    }
    if (is_index && v.type == HY_JINJA_STRING) {
        const hy_jinja_string *s = v.as.string;
        hy_jinja_spend(run, s->size / 64);
        if (!find_place(hy_jinja_as_int(run, key, ""), hy_jinja_length(s), &at)) {
            return hy_jinja_undefined("the index is out of range");
        }
        size_t begin = hy_jinja_byte_of(s, at), end = begin + 1;
        while (end < s->size && ((uint8_t)s->data[end] & 0xC0) == 0x80) end++;
        return hy_jinja_part(run, s, begin, end);
    }
    if (key.type != HY_JINJA_STRING) return hy_jinja_undefined("an index");
    const char *name = hy_jinja_copy(run, key.as.string->data, key.as.string->size);
    return hy_jinja_attribute(run, v, name);
}

/* A bound of a slice, clamped to 0 .. count (or -1 .. count - 1 for a negative step). */
static int64_t border(hy_jinja_run *run, const node *n, int64_t count, int64_t step,
                      int64_t fallback) {
    value v = n ? hy_jinja_evaluate(run, n) : hy_jinja_none();
    if (v.type == HY_JINJA_NONE) return fallback;
    int64_t at = hy_jinja_as_int(run, v, "the bound of a slice");
    if (at < 0) at = at < -count ? -1 - (step > 0 ? -1 : 0) : at + count;
    int64_t most = step > 0 ? count : count - 1;
    return at > most ? most : at;
}

static value slice(hy_jinja_run *run, const node *n) {
    value v = hy_jinja_evaluate(run, n->a),
          by = n->d ? hy_jinja_evaluate(run, n->d) : hy_jinja_none();
    bool is_string = v.type == HY_JINJA_STRING;
    hy_jinja_need_defined(run, v);
    if (!is_string && !has_places(v)) {
        hy_jinja_fail(run, "cannot slice %s", hy_jinja_type_name(v));
    }
    int64_t step = by.type == HY_JINJA_NONE ? 1 : hy_jinja_as_int(run, by, "the step of a slice");
    if (step == 0) hy_jinja_fail(run, "the step of a slice is 0");
    int64_t count = (int64_t)(is_string ? hy_jinja_length(v.as.string) : v.as.list->count);
    int64_t begin = border(run, n->b, count, step, step > 0 ? 0 : count - 1);
    int64_t end = border(run, n->c, count, step, step > 0 ? count : -1);
    if (is_string && step == 1) {
        hy_jinja_spend(run, v.as.string->size / 64);
        if (begin >= end) return hy_jinja_part(run, v.as.string, 0, 0);
        return hy_jinja_part(run, v.as.string, hy_jinja_byte_of(v.as.string, (size_t)begin),
                             hy_jinja_byte_of(v.as.string, (size_t)end));
    }
    const hy_jinja_list *all = hy_jinja_iterate(run, v);
    value out = hy_jinja_new_list(run, is_string ? HY_JINJA_LIST : v.type, 0);
    for (int64_t i = begin; step > 0 ? i < end : i > end;) {
        hy_jinja_append(run, out, all->items[i]);
        if (step > 0 ? step > end - i : step < end - i) break; /* avoids overflow of i */
        i += step;
    }
    if (!is_string) return out;
    hy_jinja_builder b = {.run = run};
    for (size_t i = 0; i < out.as.list->count; i++) hy_jinja_print(&b, out.as.list->items[i]);
    return hy_jinja_built(&b);
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

_Noreturn static void fail_operands(hy_jinja_run *run, const char *sign, value a, value b) {
    hy_jinja_need_defined(run, a);
    hy_jinja_need_defined(run, b);
    hy_jinja_fail(run, "%s %s %s cannot be computed", hy_jinja_type_name(a), sign,
                  hy_jinja_type_name(b));
}

/* A safe string stays safe: a string added to it is escaped. */
static value add_texts(hy_jinja_run *run, value a, value b) {
    static const char signs[5] = {'&', '<', '>', '\'', '"'};
    static const char *const escapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const hy_jinja_string *texts[] = {a.as.string, b.as.string};
    if (!texts[0]->is_safe && !texts[1]->is_safe) return hy_jinja_joined(run, a, b);
    hy_jinja_builder out = {.run = run};
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < texts[t]->size; i++) {
            const char *sign =
                texts[t]->is_safe ? NULL : memchr(signs, texts[t]->data[i], sizeof signs);
            const char *escape = sign ? escapes[sign - signs] : "";
            if (sign)
                hy_jinja_add(&out, escape, strlen(escape), hy_jinja_mark_at(texts[t], i));
            else
                hy_jinja_add_part(&out, texts[t], i, i + 1);
        }
    }
    hy_jinja_string safe = *hy_jinja_built(&out).as.string;
    safe.is_safe = true;
    return hy_jinja_new_string(run, safe);
}

static value add_lists(hy_jinja_run *run, value a, value b) {
    size_t count = a.as.list->count + b.as.list->count;
    value out = hy_jinja_new_list(run, a.type, count);
    for (size_t i = 0; i < count; i++) {
        const hy_jinja_list *from = i < a.as.list->count ? a.as.list : b.as.list;
        hy_jinja_append(run, out, from->items[from == a.as.list ? i : i - a.as.list->count]);
    }
    return out;
}

static value repeat(hy_jinja_run *run, value v, int64_t times) {
    hy_jinja_builder out = {.run = run};
    value list = hy_jinja_new_list(run, HY_JINJA_LIST, 0);
    list.type = v.type == HY_JINJA_STRING ? HY_JINJA_LIST : v.type;
    bool is_empty = !hy_jinja_is_true(v);
    for (int64_t i = 0; i < times && !is_empty; i++) {
        hy_jinja_spend(run, 1);
        if (v.type == HY_JINJA_STRING) {
            hy_jinja_add_part(&out, v.as.string, 0, v.as.string->size);
            continue;
        }
        for (size_t k = 0; k < v.as.list->count; k++) {
            hy_jinja_append(run, list, v.as.list->items[k]);
        }
    }
    return v.type == HY_JINJA_STRING ? hy_jinja_built(&out) : list;
}

static int64_t floor_divide(int64_t a, int64_t b) {
    int64_t out = a / b;
    return out - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static value power(hy_jinja_run *run, double a, double b) {
    double out = pow(a, b);
    if (!isfinite(out) && isfinite(a) && isfinite(b)) {
        hy_jinja_fail(run, "%g ** %g is not a number", a, b);
    }
    return hy_jinja_float(out);
}

static value whole_arithmetic(hy_jinja_run *run, const char *sign, int64_t a, int64_t b) {
    int64_t out = 1;
    bool overflows = false;
    if (strchr("/%", sign[0]) && b == 0) hy_jinja_fail(run, "division by zero");
    if (strchr("/%", sign[0]) && a == INT64_MIN && b == -1) overflows = true;
    switch (overflows ? 0 : sign[0]) {
    case '+': overflows = __builtin_add_overflow(a, b, &out); break;
    case '-': overflows = __builtin_sub_overflow(a, b, &out); break;
    case '/':
        if (!sign[1]) return hy_jinja_float((double)a / (double)b);
        out = floor_divide(a, b);
        break;
    case '%': out = a - b * floor_divide(a, b); break;
    case '*':
        if (!sign[1]) {
            overflows = __builtin_mul_overflow(a, b, &out);
            break;
        }
        if (b < 0) return power(run, (double)a, (double)b);
        for (int64_t i = 0; i < b && !overflows && out != 0 && (a != 1); i++) {
            hy_jinja_spend(run, 1);
            overflows = __builtin_mul_overflow(out, a, &out);
        }
        break;
    default: break;
    }
    if (overflows) hy_jinja_fail(run, "a number has more than 63 bits");
    return hy_jinja_int(out);
}

static value arithmetic(hy_jinja_run *run, const char *sign, double a, double b) {
    if (strchr("/%", sign[0]) && b == 0) hy_jinja_fail(run, "division by zero");
    /* The remainder has the sign of b, and the quotient is an integer. */
    double left = fmod(a, b);
    left = left == 0 ? copysign(0, b) : (left < 0) != (b < 0) ? left + b : left;
    switch (sign[0]) {
    case '+': return hy_jinja_float(a + b);
    case '-': return hy_jinja_float(a - b);
    case '/': return hy_jinja_float(sign[1] ? rint((a - left) / b) : a / b);
    case '%': return hy_jinja_float(left);
    default: return sign[1] ? power(run, a, b) : hy_jinja_float(a * b);
    }
}

static value binary(hy_jinja_run *run, const char *sign, value a, value b) {
    bool is_times = strcmp(sign, "*") == 0,
         has_list = a.type == HY_JINJA_LIST || a.type == HY_JINJA_TUPLE;
    if (hy_jinja_is_number(a) && hy_jinja_is_number(b)) {
        if (a.type != HY_JINJA_FLOAT && b.type != HY_JINJA_FLOAT) {
            return whole_arithmetic(run, sign, hy_jinja_as_int(run, a, ""),
                                    hy_jinja_as_int(run, b, ""));
        }
        return arithmetic(run, sign, hy_jinja_as_double(a), hy_jinja_as_double(b));
    }
    if (sign[0] == '+' && a.type == HY_JINJA_STRING && b.type == HY_JINJA_STRING) {
        return add_texts(run, a, b);
    }
    if (sign[0] == '+' && has_list && a.type == b.type) return add_lists(run, a, b);
    if (sign[0] == '%' && a.type == HY_JINJA_STRING) {
        bool is_tuple = b.type == HY_JINJA_TUPLE;
        return hy_jinja_format(run, a.as.string, is_tuple ? b.as.list->items : &b,
                               is_tuple ? b.as.list->count : 1);
    }
    if (is_times && (has_list || a.type == HY_JINJA_STRING) &&
        (b.type == HY_JINJA_INT || b.type == HY_JINJA_BOOL)) {
        return repeat(run, a, hy_jinja_as_int(run, b, ""));
    }
    if (is_times && (a.type == HY_JINJA_INT || a.type == HY_JINJA_BOOL) &&
        (b.type == HY_JINJA_STRING || b.type == HY_JINJA_LIST || b.type == HY_JINJA_TUPLE)) {
        return repeat(run, b, hy_jinja_as_int(run, a, ""));
    }
    fail_operands(run, sign, a, b);
}

static value negative(hy_jinja_run *run, const node *n) {
    value v = hy_jinja_evaluate(run, n->a);
    int sign = n->kind == HY_NODE_MINUS ? -1 : 1;
    if (v.type == HY_JINJA_FLOAT) return hy_jinja_float(sign * v.as.number);
    if (!hy_jinja_is_number(v)) fail_operands(run, "-", hy_jinja_int(0), v);
    return whole_arithmetic(run, "*", hy_jinja_as_int(run, v, ""), sign);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool compare(hy_jinja_run *run, const char *sign, value a, value b) {
    switch (sign[0]) {
    case '=': return hy_jinja_equal(run, a, b);
    case '!': return sign[1] == '=' ? !hy_jinja_equal(run, a, b) : !hy_jinja_contains(run, b, a);
    case 'i': return hy_jinja_contains(run, b, a);
    default: break;
    }
    if (a.type == HY_JINJA_UNDEFINED || b.type == HY_JINJA_UNDEFINED) {
        fail_operands(run, sign, a, b);
    }
    int order = hy_jinja_order(run, a, b);
    bool has_nan = (a.type == HY_JINJA_FLOAT && isnan(a.as.number)) ||
                   (b.type == HY_JINJA_FLOAT && isnan(b.as.number));
    if (has_nan) return false;
    if (order == 0) return sign[1] == '=';
    return sign[0] == '<' ? order < 0 : order > 0;
}

static value compare_all(hy_jinja_run *run, const node *n) {
    value left = hy_jinja_evaluate(run, n->a);
    for (const node *other = n->b; other; other = other->next) {
        value right = hy_jinja_evaluate(run, other->a);
        if (!compare(run, other->sign, left, right)) return hy_jinja_bool(false);
        left = right;
    }
    return hy_jinja_bool(true);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static hy_jinja_arguments arguments_of(hy_jinja_run *run, const node *first) {
    value items = hy_jinja_new_list(run, HY_JINJA_LIST, 0);
    value named = hy_jinja_new_list(run, HY_JINJA_LIST, 0);
    size_t count = 0;
    for (const node *n = first; n; n = n->next) count++;
    const char **names = hy_jinja_take(run, (count + 1) * sizeof *names);
    for (const node *n = first; n; n = n->next) {
        bool is_single = n->kind != HY_NODE_NAMED && n->kind != HY_NODE_SPREAD;
        value v = hy_jinja_evaluate(run, is_single ? n : n->a);
        if (n->kind == HY_NODE_NAMED) names[named.as.list->count] = n->name;
        if (n->kind != HY_NODE_SPREAD) {
            hy_jinja_append(run, is_single ? items : named, v);
            continue;
        }
        const hy_jinja_list *all = hy_jinja_iterate(run, v);
        for (size_t i = 0; i < all->count; i++) hy_jinja_append(run, items, all->items[i]);
    }
    return (hy_jinja_arguments){items.as.list->items, items.as.list->count, names,
                                named.as.list->items, named.as.list->count};
}

/* The value of a parameter, by position or by name. */
static value argument(const hy_jinja_arguments *all, size_t place, const char *name,
                      size_t length) {
    if (place < all->count) return all->items[place];
    for (size_t i = 0; i < all->named_count; i++) {
        bool is_it = strlen(all->names[i]) == length && memcmp(all->names[i], name, length) == 0;
        if (is_it) return all->named[i];
    }
    return (value){0};
}

const hy_jinja_function *hy_jinja_row(const hy_jinja_function *table, const char *name) {
    while (table->name && strcmp(table->name, name) != 0) table++;
    return table->name ? table : NULL;
}

void hy_jinja_fail_unknown(hy_jinja_run *run, const char *kind, const char *name) {
    hy_jinja_fail(run, "the %s \"%.60s\" is not supported", kind, name);
}

value hy_jinja_apply(hy_jinja_run *run, const hy_jinja_function *f, value self,
                     const hy_jinja_arguments *all) {
    hy_jinja_call call = {.self = self, .all = all, .how = f->how};
    size_t count = 0, used = 0;
    const char *at = f->parameters;
    if (at[0] == '*') return f->code(run, &call);
    while (*(at += strspn(at, " "))) {
        size_t length = strcspn(at, " ");
        call.given[count] = argument(all, count, at, length);
        bool is_given = call.given[count].type != HY_JINJA_ABSENT;
        if (!is_given && count < (size_t)f->needed) {
            hy_jinja_fail(run, "%s needs \"%.*s\"", f->name, (int)length, at);
        }
        used += is_given;
        count++;
        at += length;
    }
    if (used < all->count + all->named_count) {
        hy_jinja_fail(run, "%s has an argument that is not supported; supported are (%s)", f->name,
                      f->parameters);
    }
    return f->code(run, &call);
}

static value call_node(hy_jinja_run *run, const node *n) {
    value of = hy_jinja_evaluate(run, n->a);
    hy_jinja_arguments all = arguments_of(run, n->b);
    run->line = n->line;
    if (of.type == HY_JINJA_MACRO) {
        hy_jinja_scope *outer = run->scope;
        run->scope = hy_jinja_take(run, sizeof *run->scope);
        run->scope->parent = of.as.macro->scope;
        size_t place = 0, used = 0;
        for (const node *p = of.as.macro->node->a; p; p = p->next, place++) {
            value v = argument(&all, place, p->name, strlen(p->name));
            used += v.type != HY_JINJA_ABSENT;
            if (v.type == HY_JINJA_ABSENT) {
                v = p->a ? hy_jinja_evaluate(run, p->a) : hy_jinja_undefined(p->name);
            }
            hy_jinja_set_name(run, p->name, v);
        }
        if (used < all.count + all.named_count) {
            hy_jinja_fail(run, "the macro %s does not have the argument it is called with",
                          of.as.macro->node->name);
        }
        value out = hy_jinja_call_macro(run, of.as.macro);
        run->scope = outer;
        return out;
    }
    if (of.type == HY_JINJA_CALLABLE) {
        return hy_jinja_apply(run, of.as.callable->function, of.as.callable->self, &all);
    }
    hy_jinja_need_defined(run, of);
    hy_jinja_fail(run, "%s cannot be called", hy_jinja_type_name(of));
}

/* ---- expressions ----------------------------------------------------------------------------- */

static value container(hy_jinja_run *run, const node *n) {
    bool is_dict = n->kind == HY_NODE_DICT;
    value out =
        is_dict
            ? hy_jinja_dict_new(run)
            : hy_jinja_new_list(run, n->kind == HY_NODE_LIST ? HY_JINJA_LIST : HY_JINJA_TUPLE, 0);
    for (const node *item = n->a; item; item = item->next) {
        value v = hy_jinja_evaluate(run, item);
        if (is_dict) {
            item = item->next;
            hy_jinja_insert(run, out.as.dict, v, hy_jinja_evaluate(run, item));
        } else {
            hy_jinja_append(run, out, v);
        }
    }
    return out;
}

static value apply(hy_jinja_run *run, const node *n) {
    value self = hy_jinja_evaluate(run, n->a);
    hy_jinja_arguments all = arguments_of(run, n->b);
    run->line = n->line;
    bool is_filter = n->kind == HY_NODE_FILTER;
    if (!n->function) hy_jinja_fail_unknown(run, is_filter ? "filter" : "test", n->name);
    return hy_jinja_apply(run, n->function, self, &all);
}

static value evaluate(hy_jinja_run *run, const node *n) {
    value v;
    switch (n->kind) {
    case HY_NODE_CONST: return n->constant;
    case HY_NODE_NAME: return look_up_name(run, n->name);
    case HY_NODE_LIST:
    case HY_NODE_TUPLE:
    case HY_NODE_DICT: return container(run, n);
    case HY_NODE_ATTRIBUTE: return hy_jinja_attribute(run, hy_jinja_evaluate(run, n->a), n->name);
    case HY_NODE_ITEM:
        v = hy_jinja_evaluate(run, n->a);
        return hy_jinja_item(run, v, hy_jinja_evaluate(run, n->b));
    case HY_NODE_SLICE: return slice(run, n);
    case HY_NODE_CALL: return call_node(run, n);
    case HY_NODE_FILTER:
    case HY_NODE_TEST: return apply(run, n);
    case HY_NODE_NOT: return hy_jinja_bool(!hy_jinja_is_true(hy_jinja_evaluate(run, n->a)));
    case HY_NODE_MINUS:
    case HY_NODE_PLUS: return negative(run, n);
    case HY_NODE_AND:
        v = hy_jinja_evaluate(run, n->a);
        return hy_jinja_is_true(v) ? hy_jinja_evaluate(run, n->b) : v;
    case HY_NODE_OR:
        v = hy_jinja_evaluate(run, n->a);
        return hy_jinja_is_true(v) ? v : hy_jinja_evaluate(run, n->b);
    case HY_NODE_BINARY:
        v = hy_jinja_evaluate(run, n->a);
        return binary(run, n->sign, v, hy_jinja_evaluate(run, n->b));
    case HY_NODE_JOIN:
        v = hy_jinja_evaluate(run, n->a);
        return hy_jinja_joined(run, v, hy_jinja_evaluate(run, n->b));
    case HY_NODE_COMPARE: return compare_all(run, n);
    case HY_NODE_CHOICE:
        if (hy_jinja_is_true(hy_jinja_evaluate(run, n->a))) return hy_jinja_evaluate(run, n->b);
        return n->c ? hy_jinja_evaluate(run, n->c)
                    : hy_jinja_undefined("an if expression without else");
    case HY_NODE_BLOCK: return run->block;
    default: hy_jinja_fail(run, "found a statement, expected a value");
    }
}

value hy_jinja_evaluate(hy_jinja_run *run, const node *n) {
    hy_jinja_enter(run);
    run->line = n->line;
    value out = evaluate(run, n);
    run->line = n->line;
    run->depth--;
    return out;
}
