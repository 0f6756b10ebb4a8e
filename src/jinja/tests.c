/* tests.c: the tests, used after "is". See parts.h.
 *
 * The parser looks a test up by its name in the table at the end, and hy_jinja_apply (eval.c) calls
 * it. A test returns a boolean and changes nothing. */
#include "jinja/parts.h"

typedef const hy_jinja_call *call;

#define KIND(name) (1 << HY_JINJA_##name)

static value is_of_kind(hy_jinja_run *run, call c) {
    (void)run;
    return hy_jinja_bool(c->how >> c->self.type & 1);
}

static value is_truth(hy_jinja_run *run, call c) {
    (void)run;
    return hy_jinja_bool(c->self.type == HY_JINJA_BOOL && c->self.as.truth == c->how);
}

/* odd, even, divisibleby; `how`: the expected remainder of a division by two; -1: divide by the
 * argument and expect 0. */
static value leaves(hy_jinja_run *run, call c) {
    int64_t v = hy_jinja_as_int(run, c->self, "the value to test"), by = 2;
    if (c->how < 0) by = hy_jinja_as_int(run, c->given[0], "a divisor");
    if (by == 0) hy_jinja_fail(run, "division by zero");
    return hy_jinja_bool((by == -1 ? 0 : v % by != 0) == (c->how > 0));
}

static value is_in(hy_jinja_run *run, call c) {
    return hy_jinja_bool(hy_jinja_contains(run, c->given[0], c->self));
}

static value is_equal(hy_jinja_run *run, call c) {
    return hy_jinja_bool(hy_jinja_equal(run, c->self, c->given[0]) == c->how);
}

/* Whether both are the same object, which is certain only for none, true and false. */
static value is_same(hy_jinja_run *run, call c) {
    value a = c->self, b = c->given[0];
    bool is_single = b.type == HY_JINJA_NONE || b.type == HY_JINJA_BOOL;
    if (!is_single) {
        hy_jinja_fail(run, "the test \"sameas\" with %s is not supported", hy_jinja_type_name(b));
    }
    return hy_jinja_bool(a.type == b.type && hy_jinja_equal(run, a, b));
}

enum { LESS = 1, SAME = 2, MORE = 4 };

static value is_ordered(hy_jinja_run *run, call c) {
    int order = hy_jinja_order(run, c->self, c->given[0]);
    return hy_jinja_bool(c->how & (order < 0 ? LESS : order > 0 ? MORE : SAME));
}

static const hy_jinja_function tests[] = {
    {"defined", "", 0, is_of_kind, ~KIND(UNDEFINED)},
    {"undefined", "", 0, is_of_kind, KIND(UNDEFINED)},
    {"none", "", 0, is_of_kind, KIND(NONE)},
    {"boolean", "", 0, is_of_kind, KIND(BOOL)},
    {"integer", "", 0, is_of_kind, KIND(INT) | KIND(BIG)},
    {"float", "", 0, is_of_kind, KIND(FLOAT)},
    {"number", "", 0, is_of_kind, KIND(BOOL) | KIND(INT) | KIND(FLOAT) | KIND(BIG)},
    {"string", "", 0, is_of_kind, KIND(STRING)},
    {"mapping", "", 0, is_of_kind, KIND(DICT)},
    {"iterable", "", 0, is_of_kind,
     KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(RANGE) | KIND(VIEW) | KIND(LAZY) | KIND(DICT) |
         KIND(LOOP) | KIND(UNDEFINED)},
    {"sequence", "", 0, is_of_kind,
     KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(RANGE) | KIND(DICT) | KIND(UNDEFINED)},
    {"callable", "", 0, is_of_kind,
     KIND(MACRO) | KIND(CALLABLE) | KIND(LOOP) | KIND(UNDEFINED)}, /* calling it fails, of course */
    {"true", "", 0, is_truth, true},
    {"false", "", 0, is_truth, false},
    {"odd", "", 0, leaves, 1},
    {"even", "", 0, leaves, 0},
    {"divisibleby", "num", 1, leaves, -1},
    {"in", "seq", 1, is_in, 0},
    {"sameas", "other", 1, is_same, 0},
    {"eq", "b", 1, is_equal, true},
    {"equalto", "b", 1, is_equal, true},
    {"==", "b", 1, is_equal, true},
    {"ne", "b", 1, is_equal, false},
    {"!=", "b", 1, is_equal, false},
    {"lt", "b", 1, is_ordered, LESS},
    {"lessthan", "b", 1, is_ordered, LESS},
    {"<", "b", 1, is_ordered, LESS},
    {"le", "b", 1, is_ordered, LESS | SAME},
    {"<=", "b", 1, is_ordered, LESS | SAME},
    {"gt", "b", 1, is_ordered, MORE},
    {"greaterthan", "b", 1, is_ordered, MORE},
    {">", "b", 1, is_ordered, MORE},
    {"ge", "b", 1, is_ordered, MORE | SAME},
    {">=", "b", 1, is_ordered, MORE | SAME},
    {0},
};

const hy_jinja_function *hy_jinja_test(const char *name) { return hy_jinja_row(tests, name); }
