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
    hy_jinja_run *run;
    const hy_jinja_token *at;
    int loops, blocks; /* nesting of the current statement; break may not leave a block */
    int macros;
    /* inside an expression that may never be evaluated: an unknown filter fails only when it is */
    int choices;
} parser;

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Whether the token is this name or operator. */
static bool is(const hy_jinja_token *token, const char *text) {
    bool is_fixed = token->type == HY_TOKEN_NAME || token->type == HY_TOKEN_SIGN;
    return is_fixed && strcmp(token->text, text) == 0;
}

static void next(parser *p) {
    p->at++;
    p->run->line = p->at->line;
}

static bool skip(parser *p, const char *text) {
    bool is_there = is(p->at, text);
    if (is_there) next(p);
    return is_there;
}

_Noreturn static void fail_expected(parser *p, const char *what) {
    const char *found = p->at->type == HY_TOKEN_END ? "the end of the template"
                        : p->at->type == HY_TOKEN_BLOCK_END || p->at->type == HY_TOKEN_PRINT_END
                            ? "the end of the tag"
                            : p->at->text;
    hy_jinja_fail(p->run, "found %.60s, expected %s", found, what);
}

static void expect(parser *p, const char *text) {
    if (!skip(p, text)) fail_expected(p, text);
}

static node *make(parser *p, hy_jinja_kind kind) {
    node *n = hy_jinja_take(p->run, sizeof *n);
    n->kind = kind;
    n->line = p->at->line;
    return n;
}

/* As above, for a node that begins with the current token, which is skipped. */
static node *make_after(parser *p, hy_jinja_kind kind, node *a) {
    node *n = make(p, kind);
    n->a = a;
    next(p);
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
    hy_jinja_spend(p->run, t->name_count / 32);
    for (size_t i = 0; i < t->name_count; i++) {
        if (strcmp(t->names[i], name) == 0) return t->names[i];
    }
    if (t->name_count == t->name_room) {
        t->name_room = 2 * t->name_room + 32;
        t->names = hy_jinja_grow(p->run, t->names, t->name_count, t->name_room, sizeof *t->names);
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

/* Parses one expression, or several separated by commas, which form a tuple. */
static node *parse_tuple(parser *p, node *(*parse)(parser *), bool may_be_empty) {
    node *tuple = make(p, HY_NODE_TUPLE), **last = &tuple->a;
    bool has_comma = false;
    while (p->at->type != HY_TOKEN_PRINT_END && p->at->type != HY_TOKEN_BLOCK_END &&
           !is(p->at, ")") && !is(p->at, "=") && !is(p->at, "in") && !is(p->at, "recursive")) {
        last = append(last, parse(p));
        if (!skip(p, ",")) break;
        has_comma = true;
    }
    if (!tuple->a && !may_be_empty) fail_expected(p, "an expression");
    return has_comma || !tuple->a ? tuple : tuple->a;
}

static node *parse_list(parser *p, hy_jinja_kind kind, const char *end) {
    node *list = make_after(p, kind, NULL), **last = &list->a;
    while (!skip(p, end)) {
        if (list->a) {
            expect(p, ",");
            if (skip(p, end)) break;
        }
        last = append(last, parse_expression(p));
        if (kind == HY_NODE_LIST) continue;
        expect(p, ":");
        last = append(last, parse_expression(p));
    }
    return list;
}

static value number_of(parser *p) {
    errno = 0;
    if (p->at->type == HY_TOKEN_FLOAT) return hy_jinja_float(strtod(p->at->text, NULL));
    long long whole = strtoll(p->at->text, NULL, 10);
    if (errno) hy_jinja_fail(p->run, "the number %.40s is too large", p->at->text);
    return hy_jinja_int(whole);
}

static node *parse_primary(parser *p) {
    node *n;
    if (p->at->type == HY_TOKEN_NAME) {
        const char *name = p->at->text;
        if (hy_word_is_in(" true True false False ", name)) {
            n = constant(p, hy_jinja_bool(strcmp(name + 1, "rue") == 0));
        } else if (hy_word_is_in(" none None ", name)) {
            n = constant(p, hy_jinja_none());
        } else {
            if (p->macros > 0 && hy_word_is_in(" varargs kwargs ", name)) {
                hy_jinja_fail(p->run, "%s in a macro is not supported", name);
            }
            n = make(p, HY_NODE_NAME);
            n->name = intern(p, name);
        }
        next(p);
    } else if (p->at->type == HY_TOKEN_STRING) {
        hy_jinja_builder b = {.run = p->run}; /* adjacent strings are joined */
        n = make(p, HY_NODE_CONST);
        for (; p->at->type == HY_TOKEN_STRING; next(p)) {
            hy_jinja_add(&b, p->at->text, p->at->size, 0);
        }
        n->constant = hy_jinja_text(p->run, b.data ? b.data : "", b.size, 0);
    } else if (p->at->type == HY_TOKEN_INT || p->at->type == HY_TOKEN_FLOAT) {
        n = constant(p, number_of(p));
        next(p);
    } else if (skip(p, "(")) {
        n = parse_tuple(p, parse_expression, true);
        expect(p, ")");
    } else if (is(p->at, "[")) {
        n = parse_list(p, HY_NODE_LIST, "]");
    } else if (is(p->at, "{")) {
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
    expect(p, "(");
    while (!skip(p, ")")) {
        if (first) {
            expect(p, ",");
            if (skip(p, ")")) break;
        }
        if (is(p->at, "**")) hy_jinja_fail(p->run, "** in a call is not supported");
        bool is_named = p->at->type == HY_TOKEN_NAME && is(p->at + 1, "=");
        node *argument;
        if (is_named) {
            argument = make(p, HY_NODE_NAMED);
            argument->name = take_name(p);
            next(p);
            argument->a = parse_expression(p);
        } else if (is(p->at, "*")) {
            argument = make_after(p, HY_NODE_SPREAD, NULL);
            argument->a = parse_expression(p);
        } else {
            if (has_named) hy_jinja_fail(p->run, "an argument without a name follows a named one");
            argument = parse_expression(p);
        }
        has_named = is_named;
        last = append(last, argument);
    }
    return first;
}

static node *parse_subscript(parser *p, node *of) {
    node *n = make_after(p, HY_NODE_ITEM, of), *part[3] = {0};
    int colons = 0;
    while (!is(p->at, "]")) {
        if (is(p->at, ",")) hy_jinja_fail(p->run, "several subscripts are not supported");
        if (is(p->at, ":") && colons < 2) {
            colons++;
            next(p);
        } else if (!part[colons]) {
            part[colons] = parse_expression(p);
        } else {
            fail_expected(p, "]");
        }
    }
    next(p);
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
        hy_jinja_spend(p->run, 1);
        if (skip(p, ".")) {
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
        } else if (is(p->at, "[")) {
            n = parse_subscript(p, n);
        } else if (is(p->at, "(")) {
            n = parse_call(p, n);
        } else {
            return n;
        }
    }
}

/* A filter or a test of `of`, by its name. */
static node *parse_function(parser *p, hy_jinja_kind kind, node *of) {
    node *n = make(p, kind);
    n->a = of;
    n->name = take_name(p);
    n->function = kind == HY_NODE_FILTER ? hy_jinja_filter(n->name) : hy_jinja_test(n->name);
    if (!n->function && !p->choices) {
        hy_jinja_fail_unknown(p->run, kind == HY_NODE_FILTER ? "filter" : "test", n->name);
    }
    if (is(p->at, "(")) n->b = parse_arguments(p);
    return n;
}

static node *parse_filters(parser *p, node *n) {
    while (skip(p, "|")) n = parse_function(p, HY_NODE_FILTER, n);
    return n;
}

static node *parse_test(parser *p, node *of) {
    bool is_negated = skip(p, "not");
    node *n = parse_function(p, HY_NODE_TEST, of);
    hy_jinja_token_type type = p->at->type;
    bool is_value = type == HY_TOKEN_NAME || type == HY_TOKEN_STRING || type == HY_TOKEN_INT ||
                    type == HY_TOKEN_FLOAT || is(p->at, "[") || is(p->at, "{");
    bool has_brackets = p->at[-1].type == HY_TOKEN_SIGN;
    if (!has_brackets && is_value && !is(p->at, "else") && !is(p->at, "or") && !is(p->at, "and")) {
        if (is(p->at, "is")) hy_jinja_fail(p->run, "a test cannot directly follow another test");
        /* Jinja takes "if" as a name here and fails at the next word. */
        if (is(p->at, "if")) hy_jinja_fail(p->run, "\"if\" directly after a test needs brackets");
        n->b = parse_postfix(p, parse_primary(p));
    }
    if (!is_negated) return n;
    node *outer = make(p, HY_NODE_NOT);
    outer->a = n;
    return outer;
}

static node *parse_unary(parser *p, bool with_filter) {
    node *n;
    hy_jinja_enter(p->run);
    if (is(p->at, "-") || is(p->at, "+")) {
        n = make_after(p, is(p->at, "-") ? HY_NODE_MINUS : HY_NODE_PLUS, NULL);
        n->a = parse_unary(p, false);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (with_filter) {
        hy_jinja_spend(p->run, 1);
        if (is(p->at, "|"))
            n = parse_filters(p, n);
        else if (skip(p, "is"))
            n = parse_test(p, n);
        else if (is(p->at, "("))
            n = parse_call(p, n);
        else
            break;
    }
    p->run->depth--;
    return n;
}

static void set_sign(char to[3], const char *sign) { memcpy(to, sign, strlen(sign) + 1); }

static node *parse_not(parser *p);
static node *parse_factor(parser *p) { return parse_unary(p, true); }

/* The binary operators from the lowest precedence to the highest. An operand is an expression of
 * the next row, or what `operand` parses. */
static const struct level {
    const char *signs[5];
    hy_jinja_kind kind;
    node *(*operand)(parser *);
} levels[] = {{{"or"}, HY_NODE_OR, NULL},
              {{"and"}, HY_NODE_AND, parse_not},
              {{"+", "-"}, HY_NODE_BINARY, NULL},
              {{"~"}, HY_NODE_JOIN, NULL},
              {{"*", "/", "//", "%"}, HY_NODE_BINARY, NULL},
              {{"**"}, HY_NODE_BINARY, parse_factor}};
enum { LEVEL_OR = 0, LEVEL_SUM = 2 };

/* Operators of one row are applied from left to right. */
static node *parse_chain(parser *p, int at) {
    const struct level *level = &levels[at];
    node *n = level->operand ? level->operand(p) : parse_chain(p, at + 1);
    for (int i = 0; level->signs[i];) {
        if (!is(p->at, level->signs[i])) {
            i++;
            continue;
        }
        n = make_after(p, level->kind, n);
        set_sign(n->sign, level->signs[i]);
        n->b = level->operand ? level->operand(p) : parse_chain(p, at + 1);
        i = 0;
    }
    return n;
}

static bool take_comparison(parser *p, char sign[3]) {
    static const char *const signs[] = {"==", "!=", ">=", "<=", ">", "<"};
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        if (!skip(p, signs[i])) continue;
        set_sign(sign, signs[i]);
        return true;
    }
    bool is_not = is(p->at, "not") && is(p->at + 1, "in");
    if (is_not) next(p);
    if (!skip(p, "in")) return false;
    set_sign(sign, is_not ? "!i" : "i");
    return true;
}

static node *parse_compare(parser *p) {
    node *first = parse_chain(p, LEVEL_SUM), *n = NULL, **last = NULL;
    char sign[3];
    while (take_comparison(p, sign)) {
        if (!n) {
            n = make(p, HY_NODE_COMPARE);
            n->a = first;
            last = &n->b;
        }
        node *other = make(p, HY_NODE_COMPARE);
        set_sign(other->sign, sign);
        other->a = parse_chain(p, LEVEL_SUM);
        last = append(last, other);
    }
    return n ? n : first;
}

static node *parse_not(parser *p) {
    if (!is(p->at, "not")) return parse_compare(p);
    node *n = make_after(p, HY_NODE_NOT, NULL);
    hy_jinja_enter(p->run);
    n->a = parse_not(p);
    p->run->depth--;
    return n;
}

static node *parse_or(parser *p) { return parse_chain(p, LEVEL_OR); }

static node *parse_expression(parser *p) {
    hy_jinja_enter(p->run);
    node *n = parse_or(p);
    while (is(p->at, "if")) {
        node *choice = make_after(p, HY_NODE_CHOICE, NULL);
        choice->b = n;
        choice->a = parse_or(p);
        if (skip(p, "else")) choice->c = parse_expression(p);
        n = choice;
    }
    p->run->depth--;
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
    if (is(p->at, "(")) {
        next(p);
        node *inner = parse_tuple(p, parse_target_item, false);
        expect(p, ")");
        return inner;
    }
    node *n = make(p, HY_NODE_NAME);
    n->name = take_name(p);
    if (!skip(p, ".")) return n;
    node *of = n;
    n = make(p, HY_NODE_ATTRIBUTE);
    n->a = of;
    n->name = take_name(p);
    return n;
}

static node *parse_target(parser *p) { return parse_tuple(p, parse_target_item, false); }

static node *parse_if(parser *p) {
    node *n = make_after(p, HY_NODE_IF, NULL);
    hy_jinja_enter(p->run);
    n->a = parse_tuple(p, parse_or, false);
    p->choices++;
    n->b = parse_body(p, " elif else endif ");
    if (is(p->at, "elif")) {
        n->c = parse_if(p);
    } else if (skip(p, "else")) {
        n->c = parse_body(p, " endif ");
        next(p);
    } else {
        next(p);
    }
    p->choices--;
    p->run->depth--;
    return n;
}

static node *parse_for(parser *p) {
    node *n = make_after(p, HY_NODE_FOR, NULL);
    n->name = intern(p, "loop");
    n->a = parse_target(p);
    expect(p, "in");
    n->b = parse_tuple(p, parse_or, false);
    if (skip(p, "if")) n->e = parse_expression(p);
    if (is(p->at, "recursive")) hy_jinja_fail(p->run, "a recursive loop is not supported");
    int blocks = p->blocks;
    p->blocks = 0;
    p->loops++;
    n->c = parse_body(p, " endfor else ");
    p->loops--;
    p->blocks = blocks;
    if (skip(p, "else")) n->d = parse_body(p, " endfor ");
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

static node *parse_set(parser *p) {
    node *n = make_after(p, HY_NODE_SET, NULL);
    n->a = parse_target(p);
    if (skip(p, "=")) {
        n->b = parse_tuple(p, parse_expression, false);
        return n;
    }
    n->kind = HY_NODE_SET_BLOCK;
    n->c = parse_filters(p, make(p, HY_NODE_BLOCK));
    n->b = parse_block(p, " endset ");
    return n;
}

static node *parse_filter_block(parser *p) {
    node *n = make_after(p, HY_NODE_FILTERED, NULL);
    n->c = parse_filters(p, parse_function(p, HY_NODE_FILTER, make(p, HY_NODE_BLOCK)));
    n->b = parse_block(p, " endfilter ");
    return n;
}

static node *parse_with(parser *p) {
    node *n = make_after(p, HY_NODE_WITH, NULL), **last = &n->a;
    while (p->at->type != HY_TOKEN_BLOCK_END) {
        if (n->a) expect(p, ",");
        node *set = make(p, HY_NODE_SET);
        set->a = parse_target_item(p);
        expect(p, "=");
        set->b = parse_expression(p);
        last = append(last, set);
    }
    n->b = parse_body(p, " endwith ");
    next(p);
    return n;
}

static node *parse_macro(parser *p) {
    node *n = make_after(p, HY_NODE_MACRO, NULL), **last = &n->a;
    n->name = take_name(p);
    expect(p, "(");
    while (!skip(p, ")")) {
        if (n->a) expect(p, ",");
        node *parameter = make(p, HY_NODE_NAME);
        parameter->name = take_name(p);
        if (skip(p, "=")) parameter->a = parse_expression(p);
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
    node *n = make_after(p, HY_NODE_GENERATION, NULL);
    n->b = parse_block(p, " endgeneration ");
    p->template->has_generation = true;
    return n;
}

static node *parse_leave(parser *p) {
    node *n = make(p, is(p->at, "break") ? HY_NODE_BREAK : HY_NODE_CONTINUE);
    if (p->loops == 0 || p->blocks > 0) {
        hy_jinja_fail(p->run, "%s is not inside a loop", p->at->text);
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
        if (!is(p->at, statements[i].word)) continue;
        node *n = statements[i].parse(p);
        end_tag(p);
        return n;
    }
    if (p->at->type != HY_TOKEN_NAME) fail_expected(p, "a statement");
    hy_jinja_fail(p->run, "{%% %.60s %%} is not supported", p->at->text);
}

static node *parse_statements(parser *p, const char *ends) {
    node *first = NULL, **last = &first;
    uint32_t begin = p->at->line;
    hy_jinja_enter(p->run);
    while (p->at->type != HY_TOKEN_END) {
        node *n;
        if (p->at->type == HY_TOKEN_TEXT) {
            n = make(p, HY_NODE_TEXT);
            n->constant = hy_jinja_text(p->run, p->at->text, p->at->size, 0);
            next(p);
        } else if (p->at->type == HY_TOKEN_PRINT) {
            n = make_after(p, HY_NODE_PRINT, NULL);
            n->a = parse_tuple(p, parse_expression, false);
            if (p->at->type != HY_TOKEN_PRINT_END) fail_expected(p, "the end of the tag");
            next(p);
        } else {
            next(p);
            if (ends && p->at->type == HY_TOKEN_NAME && hy_word_is_in(ends, p->at->text)) {
                p->run->depth--;
                return first;
            }
            n = parse_statement(p);
        }
        last = append(last, n);
    }
    if (ends) {
        p->run->line = begin;
        hy_jinja_fail(p->run, "a block has no end: expected%s", ends);
    }
    p->run->depth--;
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
    t->run.name = copy;
    if (setjmp(t->run.failed)) {
        hy_status status = t->run.status;
        hy_jinja_free(t);
        return status;
    }
    parser p = {.template = t, .run = &t->run};
    p.at = hy_jinja_lex(&t->run, text, size);
    p.run->line = p.at->line;
    t->body = parse_statements(&p, NULL);
    *out = t;
    return HY_OK;
}

void hy_jinja_free(hy_jinja *template) {
    if (!template) return;
    hy_jinja_release(&template->run);
    free((char *)template->run.name);
    free(template);
}

bool hy_jinja_has_generation(const hy_jinja *template) { return template->has_generation; }
