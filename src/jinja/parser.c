/* parser.c: builds a tree from the tokens. See parts.h.
 *
 * There is one function per level of precedence, from the lowest to the highest. Filters and tests
 * are looked up here, so a template with an unknown one fails before it is rendered. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "jinja/parts.h"

typedef hy_jinja_node node;

typedef struct parser {
    hy_jinja *template;
    hy_jinja_work *work;
    const hy_jinja_token *at;
    int loops, blocks; /* nesting of the current statement; break may not leave a block */
    int macros;
    /* inside an expression that may never be evaluated: an unknown filter fails only when it is */
    int choices;
} parser;

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool is_sign(const parser *p, const char *sign) {
    return p->at->type == HY_TOKEN_SIGN && strcmp(p->at->text, sign) == 0;
}

static bool is_word(const parser *p, const char *word) {
    return p->at->type == HY_TOKEN_NAME && strcmp(p->at->text, word) == 0;
}

static void next(parser *p) {
    p->at++;
    p->work->line = p->at->line;
}

static bool skip_sign(parser *p, const char *sign) {
    bool is_there = is_sign(p, sign);
    if (is_there) next(p);
    return is_there;
}

static bool skip_word(parser *p, const char *word) {
    bool is_there = is_word(p, word);
    if (is_there) next(p);
    return is_there;
}

_Noreturn static void fail_expected(parser *p, const char *what) {
    const char *found = p->at->type == HY_TOKEN_END ? "the end of the template"
                        : p->at->type == HY_TOKEN_BLOCK_END || p->at->type == HY_TOKEN_PRINT_END
                            ? "the end of the tag"
                            : p->at->text;
    hy_jinja_fail(p->work, "found %.60s, expected %s", found, what);
}

static void expect_sign(parser *p, const char *sign) {
    if (!skip_sign(p, sign)) fail_expected(p, sign);
}

static void expect_word(parser *p, const char *word) {
    if (!skip_word(p, word)) fail_expected(p, word);
}

static node *make(parser *p, hy_jinja_kind kind) {
    node *n = hy_jinja_take(p->work, sizeof *n);
    n->kind = kind;
    n->line = p->at->line;
    return n;
}

/* Appends a node to a list and returns the place for the next one. */
static node **append(node **last, node *added) {
    assert(added);
    *last = added;
    return &added->next;
}

/* Returns the unique pointer of a name. */
static const char *intern(parser *p, const char *name) {
    hy_jinja *t = p->template;
    hy_jinja_spend(p->work, t->name_count / 32);
    for (size_t i = 0; i < t->name_count; i++) {
        if (strcmp(t->names[i], name) == 0) return t->names[i];
    }
    if (t->name_count == t->name_room) {
        t->name_room = 2 * t->name_room + 32;
        t->names = hy_jinja_grow(p->work, t->names, t->name_count, t->name_room, sizeof *t->names);
    }
    return t->names[t->name_count++] = name;
}

static const char *take_name(parser *p) {
    if (p->at->type != HY_TOKEN_NAME) fail_expected(p, "a name");
    const char *name = intern(p, p->at->text);
    next(p);
    return name;
}

/* ---- expressions ----------------------------------------------------------------------------- */

static node *parse_expression(parser *p);
static node *parse_or(parser *p);
static node *parse_unary(parser *p, bool with_filter);
static node *parse_postfix(parser *p, node *n);

static node *constant(parser *p, value v) {
    node *n = make(p, HY_NODE_CONST);
    n->constant = v;
    return n;
}

static bool ends_tuple(const parser *p) {
    return p->at->type == HY_TOKEN_PRINT_END || p->at->type == HY_TOKEN_BLOCK_END ||
           is_sign(p, ")") || is_sign(p, "=") || is_word(p, "in") || is_word(p, "recursive");
}

/* Parses one expression, or several separated by commas, which form a tuple. */
static node *parse_tuple(parser *p, node *(*parse)(parser *), bool may_be_empty) {
    node *tuple = make(p, HY_NODE_TUPLE), **last = &tuple->a;
    bool has_comma = false;
    while (!ends_tuple(p)) {
        last = append(last, parse(p));
        if (!skip_sign(p, ",")) break;
        has_comma = true;
    }
    if (!tuple->a && !may_be_empty) fail_expected(p, "an expression");
    return has_comma || !tuple->a ? tuple : tuple->a;
}

static node *parse_list(parser *p, hy_jinja_kind kind, const char *end) {
    node *list = make(p, kind), **last = &list->a;
    next(p);
    while (!skip_sign(p, end)) {
        if (list->a) {
            expect_sign(p, ",");
            if (skip_sign(p, end)) break;
        }
        last = append(last, parse_expression(p));
        if (kind == HY_NODE_LIST) continue;
        expect_sign(p, ":");
        last = append(last, parse_expression(p));
    }
    return list;
}

static value number_of(parser *p) {
    errno = 0;
    if (p->at->type == HY_TOKEN_FLOAT) return hy_jinja_float(strtod(p->at->text, NULL));
    long long whole = strtoll(p->at->text, NULL, 10);
    if (errno) hy_jinja_fail(p->work, "the number %.40s is too large", p->at->text);
    return hy_jinja_int(whole);
}

/* Adjacent strings are joined. */
static node *parse_string(parser *p) {
    hy_jinja_builder b = {.work = p->work};
    node *n = make(p, HY_NODE_CONST);
    for (; p->at->type == HY_TOKEN_STRING; next(p)) hy_jinja_add(&b, p->at->text, p->at->size, 0);
    hy_jinja_string *s = hy_jinja_take(p->work, sizeof *s);
    *s = (hy_jinja_string){.data = b.data ? b.data : "", .size = b.size};
    n->constant = (value){HY_JINJA_STRING, {.string = s}};
    return n;
}

static node *parse_primary(parser *p) {
    node *n;
    if (p->at->type == HY_TOKEN_NAME) {
        const char *name = p->at->text;
        if (strcasecmp(name, "true") == 0 && strcmp(name + 1, "rue") == 0) {
            n = constant(p, hy_jinja_bool(true));
        } else if (strcasecmp(name, "false") == 0 && strcmp(name + 1, "alse") == 0) {
            n = constant(p, hy_jinja_bool(false));
        } else if (strcasecmp(name, "none") == 0 && strcmp(name + 1, "one") == 0) {
            n = constant(p, hy_jinja_none());
        } else {
            if (p->macros > 0 && hy_word_is_in(" varargs kwargs ", name)) {
                hy_jinja_fail(p->work, "%s in a macro is not supported", name);
            }
            n = make(p, HY_NODE_NAME);
            n->name = intern(p, name);
        }
        next(p);
    } else if (p->at->type == HY_TOKEN_STRING) {
        n = parse_string(p);
    } else if (p->at->type == HY_TOKEN_INT || p->at->type == HY_TOKEN_FLOAT) {
        n = constant(p, number_of(p));
        next(p);
    } else if (skip_sign(p, "(")) {
        n = parse_tuple(p, parse_expression, true);
        expect_sign(p, ")");
    } else if (is_sign(p, "[")) {
        n = parse_list(p, HY_NODE_LIST, "]");
    } else if (is_sign(p, "{")) {
        n = parse_list(p, HY_NODE_DICT, "}");
    } else {
        fail_expected(p, "an expression");
    }
    return n;
}

/* Parses arguments in brackets; named ones come last. */
static node *parse_arguments(parser *p) {
    node *first = NULL, **last = &first;
    bool has_named = false;
    expect_sign(p, "(");
    while (!skip_sign(p, ")")) {
        if (first) {
            expect_sign(p, ",");
            if (skip_sign(p, ")")) break;
        }
        if (is_sign(p, "**")) hy_jinja_fail(p->work, "** in a call is not supported");
        bool is_named = p->at->type == HY_TOKEN_NAME && p->at[1].type == HY_TOKEN_SIGN &&
                        strcmp(p->at[1].text, "=") == 0;
        node *argument;
        if (is_named) {
            argument = make(p, HY_NODE_NAMED);
            argument->name = take_name(p);
            next(p);
            argument->a = parse_expression(p);
        } else if (is_sign(p, "*")) {
            argument = make(p, HY_NODE_SPREAD);
            next(p);
            argument->a = parse_expression(p);
        } else {
            if (has_named) hy_jinja_fail(p->work, "an argument without a name follows a named one");
            argument = parse_expression(p);
        }
        has_named = is_named;
        last = append(last, argument);
    }
    return first;
}

static node *parse_subscript(parser *p, node *of) {
    node *n = make(p, HY_NODE_ITEM), *part[3] = {0};
    int colons = 0;
    expect_sign(p, "[");
    while (!is_sign(p, "]")) {
        if (is_sign(p, ",")) hy_jinja_fail(p->work, "several subscripts are not supported");
        if (is_sign(p, ":") && colons < 2) {
            colons++;
            next(p);
        } else if (!part[colons]) {
            part[colons] = parse_expression(p);
        } else {
            fail_expected(p, "]");
        }
    }
    next(p);
    n->a = of;
    n->b = part[0];
    n->c = part[1];
    n->d = part[2];
    if (colons) n->kind = HY_NODE_SLICE;
    if (!colons && !n->b) fail_expected(p, "a subscript");
    return n;
}

static node *parse_call(parser *p, node *of) {
    node *n = make(p, HY_NODE_CALL);
    n->a = of;
    n->b = parse_arguments(p);
    return n;
}

static node *parse_postfix(parser *p, node *n) {
    for (;;) {
        hy_jinja_spend(p->work, 1);
        if (skip_sign(p, ".")) {
            node *of = n;
            if (p->at->type == HY_TOKEN_INT) {
                n = make(p, HY_NODE_ITEM);
                n->b = constant(p, number_of(p));
                next(p);
            } else {
                n = make(p, HY_NODE_ATTRIBUTE);
                n->name = take_name(p);
            }
            n->a = of;
        } else if (is_sign(p, "[")) {
            n = parse_subscript(p, n);
        } else if (is_sign(p, "(")) {
            n = parse_call(p, n);
        } else {
            return n;
        }
    }
}

static node *parse_filter(parser *p, node *of) {
    node *n = make(p, HY_NODE_FILTER);
    const char *name = take_name(p);
    n->a = of;
    n->name = name;
    n->function = hy_jinja_filter(name);
    if (!n->function && !p->choices)
        hy_jinja_fail(p->work, "the filter \"%.60s\" is not supported", name);
    if (is_sign(p, "(")) n->b = parse_arguments(p);
    return n;
}

static node *parse_test(parser *p, node *of) {
    bool is_negated = skip_word(p, "not");
    node *n = make(p, HY_NODE_TEST);
    const char *name = take_name(p);
    n->a = of;
    n->name = name;
    n->function = hy_jinja_test(name);
    if (!n->function && !p->choices)
        hy_jinja_fail(p->work, "the test \"%.60s\" is not supported", name);
    hy_jinja_token_type type = p->at->type;
    bool is_value = type == HY_TOKEN_NAME || type == HY_TOKEN_STRING || type == HY_TOKEN_INT ||
                    type == HY_TOKEN_FLOAT || is_sign(p, "[") || is_sign(p, "{");
    if (is_sign(p, "(")) {
        n->b = parse_arguments(p);
    } else if (is_value && !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and")) {
        if (is_word(p, "is")) hy_jinja_fail(p->work, "a test cannot directly follow another test");
        /* Jinja takes "if" as a name here and fails at the next word. */
        if (is_word(p, "if")) hy_jinja_fail(p->work, "\"if\" directly after a test needs brackets");
        n->b = parse_postfix(p, parse_primary(p));
    }
    if (!is_negated) return n;
    node *outer = make(p, HY_NODE_NOT);
    outer->a = n;
    return outer;
}

static node *parse_unary(parser *p, bool with_filter) {
    node *n;
    hy_jinja_enter(p->work);
    if (is_sign(p, "-") || is_sign(p, "+")) {
        n = make(p, is_sign(p, "-") ? HY_NODE_MINUS : HY_NODE_PLUS);
        next(p);
        n->a = parse_unary(p, false);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        hy_jinja_spend(p->work, 1);
        if (skip_sign(p, "|"))
            n = parse_filter(p, n);
        else if (skip_word(p, "is"))
            n = parse_test(p, n);
        else if (is_sign(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    p->work->depth--;
    return n;
}

static void set_sign(char to[3], const char *sign) { memcpy(to, sign, strlen(sign) + 1); }

/* Operators of equal precedence, from left to right. */
static node *parse_chain(parser *p, int level) {
    static const char *const signs[][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    bool is_last = level + 1 == sizeof signs / sizeof signs[0];
    node *n = is_last ? parse_unary(p, true) : parse_chain(p, level + 1);
    for (int i = 0; signs[level][i];) {
        if (!is_sign(p, signs[level][i])) {
            i++;
            continue;
        }
        node *left = n;
        n = make(p, level == 1 ? HY_NODE_JOIN : HY_NODE_BINARY);
        set_sign(n->sign, signs[level][i]);
        next(p);
        n->a = left;
        n->b = is_last ? parse_unary(p, true) : parse_chain(p, level + 1);
        i = 0;
    }
    return n;
}

static bool take_comparison(parser *p, char sign[3]) {
    static const char *const signs[] = {"==", "!=", ">=", "<=", ">", "<"};
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        if (!skip_sign(p, signs[i])) continue;
        set_sign(sign, signs[i]);
        return true;
    }
    bool is_not =
        is_word(p, "not") && p->at[1].type == HY_TOKEN_NAME && strcmp(p->at[1].text, "in") == 0;
    if (is_not) next(p);
    if (!skip_word(p, "in")) return false;
    set_sign(sign, is_not ? "!i" : "i");
    return true;
}

static node *parse_compare(parser *p) {
    node *first = parse_chain(p, 0), *n = NULL, **last = NULL;
    char sign[3];
    while (take_comparison(p, sign)) {
        if (!n) {
            n = make(p, HY_NODE_COMPARE);
            n->a = first;
            last = &n->b;
        }
        node *other = make(p, HY_NODE_COMPARE);
        set_sign(other->sign, sign);
        other->a = parse_chain(p, 0);
        last = append(last, other);
    }
    return n ? n : first;
}

static node *parse_not(parser *p) {
    if (!is_word(p, "not")) return parse_compare(p);
    node *n = make(p, HY_NODE_NOT);
    next(p);
    hy_jinja_enter(p->work);
    n->a = parse_not(p);
    p->work->depth--;
    return n;
}

static node *parse_and(parser *p) {
    node *n = parse_not(p);
    while (is_word(p, "and")) {
        node *left = n;
        n = make(p, HY_NODE_AND);
        next(p);
        n->a = left;
        n->b = parse_not(p);
    }
    return n;
}

static node *parse_or(parser *p) {
    node *n = parse_and(p);
    while (is_word(p, "or")) {
        node *left = n;
        n = make(p, HY_NODE_OR);
        next(p);
        n->a = left;
        n->b = parse_and(p);
    }
    return n;
}

static node *parse_expression(parser *p) {
    hy_jinja_enter(p->work);
    node *n = parse_or(p);
    while (is_word(p, "if")) {
        node *choice = make(p, HY_NODE_CHOICE);
        next(p);
        choice->b = n;
        choice->a = parse_or(p);
        if (skip_word(p, "else")) choice->c = parse_expression(p);
        n = choice;
    }
    p->work->depth--;
    return n;
}

/* ---- statements ------------------------------------------------------------------------------ */

static node *parse_statements(parser *p, const char *ends);

static void end_tag(parser *p) {
    if (p->at->type != HY_TOKEN_BLOCK_END) fail_expected(p, "the end of the tag");
    next(p);
}

/* Parses statements up to one of the words, which is left for the caller. */
static node *parse_body(parser *p, const char *ends) {
    end_tag(p);
    return parse_statements(p, ends);
}

static node *parse_target_item(parser *p) {
    if (is_sign(p, "(")) {
        next(p);
        node *inner = parse_tuple(p, parse_target_item, false);
        expect_sign(p, ")");
        return inner;
    }
    node *n = make(p, HY_NODE_NAME);
    n->name = take_name(p);
    if (!skip_sign(p, ".")) return n;
    node *of = n;
    n = make(p, HY_NODE_ATTRIBUTE);
    n->a = of;
    n->name = take_name(p);
    return n;
}

static node *parse_target(parser *p) { return parse_tuple(p, parse_target_item, false); }

static node *parse_if(parser *p) {
    node *n = make(p, HY_NODE_IF);
    hy_jinja_enter(p->work);
    next(p);
    n->a = parse_tuple(p, parse_or, false);
    p->choices++;
    n->b = parse_body(p, " elif else endif ");
    if (is_word(p, "elif")) {
        n->c = parse_if(p);
    } else if (skip_word(p, "else")) {
        n->c = parse_body(p, " endif ");
        next(p);
    } else {
        next(p);
    }
    p->choices--;
    p->work->depth--;
    return n;
}

static node *parse_for(parser *p) {
    node *n = make(p, HY_NODE_FOR);
    n->name = intern(p, "loop");
    next(p);
    n->a = parse_target(p);
    expect_word(p, "in");
    n->b = parse_tuple(p, parse_or, false);
    if (skip_word(p, "if")) n->e = parse_expression(p);
    if (is_word(p, "recursive")) hy_jinja_fail(p->work, "a recursive loop is not supported");
    int blocks = p->blocks;
    p->blocks = 0;
    p->loops++;
    n->c = parse_body(p, " endfor else ");
    p->loops--;
    p->blocks = blocks;
    if (skip_word(p, "else")) n->d = parse_body(p, " endfor ");
    next(p);
    return n;
}

/* Parses a body that is rendered to a string. */
static node *parse_block(parser *p, const char *end) {
    p->blocks++;
    node *body = parse_body(p, end);
    p->blocks--;
    next(p);
    return body;
}

static node *parse_filters(parser *p) {
    node *n = make(p, HY_NODE_BLOCK);
    while (skip_sign(p, "|")) n = parse_filter(p, n);
    return n;
}

static node *parse_set(parser *p) {
    node *n = make(p, HY_NODE_SET);
    next(p);
    n->a = parse_target(p);
    if (skip_sign(p, "=")) {
        n->b = parse_tuple(p, parse_expression, false);
        return n;
    }
    n->kind = HY_NODE_SET_BLOCK;
    n->c = parse_filters(p);
    n->b = parse_block(p, " endset ");
    return n;
}

static node *parse_filter_block(parser *p) {
    node *n = make(p, HY_NODE_FILTERED);
    next(p);
    n->c = parse_filter(p, make(p, HY_NODE_BLOCK));
    while (skip_sign(p, "|")) n->c = parse_filter(p, n->c);
    n->b = parse_block(p, " endfilter ");
    return n;
}

static node *parse_with(parser *p) {
    node *n = make(p, HY_NODE_WITH), **last = &n->a;
    next(p);
    while (p->at->type != HY_TOKEN_BLOCK_END) {
        if (n->a) expect_sign(p, ",");
        node *set = make(p, HY_NODE_SET);
        set->a = parse_target_item(p);
        expect_sign(p, "=");
        set->b = parse_expression(p);
        last = append(last, set);
    }
    n->b = parse_body(p, " endwith ");
    next(p);
    return n;
}

static node *parse_macro(parser *p) {
    node *n = make(p, HY_NODE_MACRO), **last = &n->a;
    next(p);
    n->name = take_name(p);
    expect_sign(p, "(");
    while (!skip_sign(p, ")")) {
        if (n->a) expect_sign(p, ",");
        node *parameter = make(p, HY_NODE_NAME);
        parameter->name = take_name(p);
        if (skip_sign(p, "=")) parameter->a = parse_expression(p);
        last = append(last, parameter);
    }
    int loops = p->loops;
    p->loops = 0;
    p->macros++;
    n->b = parse_block(p, " endmacro ");
    p->macros--;
    p->loops = loops;
    return n;
}

static node *parse_generation(parser *p) {
    node *n = make(p, HY_NODE_GENERATION);
    next(p);
    n->b = parse_block(p, " endgeneration ");
    p->template->has_generation = true;
    return n;
}

static node *parse_leave(parser *p) {
    node *n = make(p, is_word(p, "break") ? HY_NODE_BREAK : HY_NODE_CONTINUE);
    if (p->loops == 0 || p->blocks > 0) {
        hy_jinja_fail(p->work, "%s is not inside a loop", p->at->text);
    }
    next(p);
    return n;
}

static node *parse_statement(parser *p) {
    static const struct {
        const char *word;
        node *(*parse)(parser *);
    } statements[] = {
        {"if", parse_if},       {"for", parse_for},        {"set", parse_set},
        {"macro", parse_macro}, {"with", parse_with},      {"generation", parse_generation},
        {"break", parse_leave}, {"continue", parse_leave}, {"filter", parse_filter_block},
    };
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        if (!is_word(p, statements[i].word)) continue;
        node *n = statements[i].parse(p);
        end_tag(p);
        return n;
    }
    if (p->at->type != HY_TOKEN_NAME) fail_expected(p, "a statement");
    hy_jinja_fail(p->work, "{%% %.60s %%} is not supported", p->at->text);
}

static node *parse_text(parser *p) {
    node *n = make(p, HY_NODE_TEXT);
    hy_jinja_string *s = hy_jinja_take(p->work, sizeof *s);
    *s = (hy_jinja_string){.data = p->at->text, .size = p->at->size};
    n->constant = (value){HY_JINJA_STRING, {.string = s}};
    next(p);
    return n;
}

static node *parse_statements(parser *p, const char *ends) {
    node *first = NULL, **last = &first;
    uint32_t begin = p->at->line;
    hy_jinja_enter(p->work);
    while (p->at->type != HY_TOKEN_END) {
        node *n;
        if (p->at->type == HY_TOKEN_TEXT) {
            n = parse_text(p);
        } else if (p->at->type == HY_TOKEN_PRINT) {
            n = make(p, HY_NODE_PRINT);
            next(p);
            n->a = parse_tuple(p, parse_expression, false);
            if (p->at->type != HY_TOKEN_PRINT_END) fail_expected(p, "the end of the tag");
            next(p);
        } else {
            next(p);
            if (ends && p->at->type == HY_TOKEN_NAME && hy_word_is_in(ends, p->at->text)) {
                p->work->depth--;
                return first;
            }
            n = parse_statement(p);
        }
        last = append(last, n);
    }
    if (ends) {
        p->work->line = begin;
        hy_jinja_fail(p->work, "a block has no end: expected%s", ends);
    }
    p->work->depth--;
    return first;
}

hy_status hy_jinja_parse(const char *text, size_t size, const char *name, hy_jinja **out) {
    *out = NULL;
    hy_jinja *t = calloc(1, sizeof *t);
    char *copy = strdup(name);
    if (!t || !copy) {
        free(copy);
        free(t);
        return hy_fail(HY_ERR_MEMORY, "not enough memory for %s", name);
    }
    t->work.name = copy;
    if (setjmp(t->work.failed)) {
        hy_status status = t->work.status;
        hy_jinja_free(t);
        return status;
    }
    parser p = {.template = t, .work = &t->work};
    p.at = hy_jinja_lex(&t->work, text, size);
    p.work->line = p.at->line;
    t->body = parse_statements(&p, NULL);
    *out = t;
    return HY_OK;
}

void hy_jinja_free(hy_jinja *template) {
    if (!template) return;
    hy_jinja_release(&template->work);
    free((char *)template->work.name);
    free(template);
}

bool hy_jinja_has_generation(const hy_jinja *template) { return template->has_generation; }
