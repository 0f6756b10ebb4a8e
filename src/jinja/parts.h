/* parts.h: shared by the files of the jinja module: memory, values, the tree of a template.
 *
 * Parsing and rendering each have one hy_jinja_run, which owns all their memory. On failure they
 * jump back to their start (hy_jinja_fail), so functions in between neither hold resources nor
 * check for errors. hy_jinja_parse and hy_jinja_render catch the jump; it never leaves the
 * module. */
#pragma once

#include <setjmp.h>

#include "jinja/jinja.h"

typedef hy_jinja_value value;

/* ---- memory and failing (memory.c) ----------------------------------------------------------- */

/* zeroed; fails instead of returning NULL */
void *hy_jinja_take(hy_jinja_run *run, size_t bytes);
/* Grows an array from `count` items to `room`; the old memory stays until the end. */
void *hy_jinja_grow(hy_jinja_run *run, const void *items, size_t count, size_t room, size_t size);
void hy_jinja_release(hy_jinja_run *run);
_Noreturn void hy_jinja_fail(hy_jinja_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void hy_jinja_spend(hy_jinja_run *run, size_t steps);
void hy_jinja_enter(hy_jinja_run *run); /* one level deeper; run->depth-- leaves it */
char *hy_jinja_copy(hy_jinja_run *run, const char *text, size_t size);

/* ---- strings and other values (values.c) ----------------------------------------------------- */

/* UTF-8; an invalid byte counts as a character. */
typedef struct hy_jinja_string {
    const char *data;
    size_t size;
    const uint16_t *marks; /* one per byte; NULL: `mark` for all */
    uint16_t mark;
    bool is_safe; /* marked by the filter safe: the operator + escapes HTML in text added to it */
} hy_jinja_string;

typedef struct hy_jinja_list {
    value *items;
    size_t count, room;
} hy_jinja_list;

typedef struct hy_jinja_dict {
    value *keys, *items;
    size_t count, room;
} hy_jinja_dict;

typedef struct hy_jinja_loop {
    const hy_jinja_list *items;
    size_t at;
} hy_jinja_loop;

/* A string that is being built. */
typedef struct hy_jinja_builder {
    hy_jinja_run *run;
    char *data;
    uint16_t *marks;
    size_t size, room;
} hy_jinja_builder;

static inline bool hy_jinja_is_list(value v) {
    return v.type >= HY_JINJA_LIST && v.type <= HY_JINJA_LAZY;
}
static inline bool hy_jinja_is_number(value v) {
    return v.type >= HY_JINJA_BOOL && v.type <= HY_JINJA_FLOAT;
}
static inline value hy_jinja_int(int64_t integer) {
    return (value){HY_JINJA_INT, {.integer = integer}};
}
static inline value hy_jinja_float(double number) {
    return (value){HY_JINJA_FLOAT, {.number = number}};
}
static inline value hy_jinja_undefined(const char *name) {
    return (value){HY_JINJA_UNDEFINED, {.name = name}};
}

void hy_jinja_need_defined(hy_jinja_run *run, value v); /* fails if v is undefined */
/* fails if v is not an integer */
int64_t hy_jinja_as_int(hy_jinja_run *run, value v, const char *what);
double hy_jinja_as_double(value v); /* v must be a number */
const hy_jinja_string *hy_jinja_as_string(hy_jinja_run *run, value v, const char *what);
/* NULL: v is absent or none */
const hy_jinja_string *hy_jinja_string_or_null(hy_jinja_run *run, value v, const char *what);
bool hy_jinja_is_true(value v);
bool hy_jinja_equal(hy_jinja_run *run, value a, value b);
int hy_jinja_order(hy_jinja_run *run, value a, value b); /* fails if Python cannot compare them */
const char *hy_jinja_type_name(value v);                 /* the name of the type in Python */

uint16_t hy_jinja_mark_at(const hy_jinja_string *s, size_t byte);
void hy_jinja_add(hy_jinja_builder *b, const char *text, size_t size, uint16_t mark);
void hy_jinja_add_part(hy_jinja_builder *b, const hy_jinja_string *s, size_t begin, size_t end);
value hy_jinja_built(hy_jinja_builder *b);
value hy_jinja_part(hy_jinja_run *run, const hy_jinja_string *s, size_t begin, size_t end);
value hy_jinja_new_string(hy_jinja_run *run, hy_jinja_string s);
value hy_jinja_string_of(hy_jinja_run *run, const char *text);
bool hy_jinja_is(const hy_jinja_string *s, const char *text);
size_t hy_jinja_length(const hy_jinja_string *s); /* in characters */
size_t hy_jinja_byte_of(const hy_jinja_string *s, size_t character);
/* The first `needle` in [from, s->size); SIZE_MAX: none. */
size_t hy_jinja_find(const hy_jinja_string *s, const hy_jinja_string *needle, size_t from);

value hy_jinja_new_list(hy_jinja_run *run, hy_jinja_type type, size_t room);
value hy_jinja_shift(hy_jinja_run *run, hy_jinja_list *list); /* removes and returns the first */
value hy_jinja_pair(hy_jinja_run *run, value a, value b);
bool hy_jinja_contains(hy_jinja_run *run, value in, value v);
value *hy_jinja_look_up(hy_jinja_run *run, const hy_jinja_dict *dict, value key); /* or NULL */
value *hy_jinja_look_up_text(hy_jinja_run *run, const hy_jinja_dict *dict, const char *key);
void hy_jinja_insert(hy_jinja_run *run, hy_jinja_dict *dict, value key, value item);
/* The items that a loop iterates over; fails if Python cannot iterate. */
const hy_jinja_list *hy_jinja_iterate(hy_jinja_run *run, value v);

/* ---- printing (print.c) ---------------------------------------------------------------------- */

void hy_jinja_print(hy_jinja_builder *b, value v); /* str() */
value hy_jinja_to_string(hy_jinja_run *run, value v);
typedef struct hy_jinja_json_style {
    bool ensures_ascii, sorts;
    const hy_jinja_string *indent; /* NULL: one line */
    const hy_jinja_string *comma, *colon;
} hy_jinja_json_style;
void hy_jinja_print_json(hy_jinja_builder *b, value v, const hy_jinja_json_style *style);

/* ---- functions: filters, tests, methods, globals --------------------------------------------- */

typedef struct hy_jinja_arguments {
    const value *items;
    size_t count;
    const char *const *names; /* names of the named arguments, and their values */
    const value *named;
    size_t named_count;
} hy_jinja_arguments;

enum { HY_JINJA_PARAMETERS = 4 };
typedef struct hy_jinja_call {
    value self;                       /* the value before the "|", "is" or "." */
    value given[HY_JINJA_PARAMETERS]; /* HY_JINJA_ABSENT: not passed */
    const hy_jinja_arguments *all;
    int how; /* from its row: selects one of several similar functions */
} hy_jinja_call;

typedef struct hy_jinja_function {
    const char *name;
    const char *parameters; /* their names, separated by blanks; "*": any, only in `all` */
    int needed;             /* how many are required */
    value (*code)(hy_jinja_run *run, const hy_jinja_call *call);
    int how;
} hy_jinja_function;

typedef struct hy_jinja_callable {
    const hy_jinja_function *function;
    value self;
} hy_jinja_callable;

const hy_jinja_function *hy_jinja_filter(const char *name);          /* filters.c; NULL: unknown */
const hy_jinja_function *hy_jinja_test(const char *name);            /* tests.c */
const hy_jinja_function *hy_jinja_global(const char *name);          /* methods.c */
value hy_jinja_method(hy_jinja_run *run, value v, const char *name); /* or ABSENT */
const hy_jinja_function *hy_jinja_row(const hy_jinja_function *table, const char *name);
_Noreturn void hy_jinja_fail_unknown(hy_jinja_run *run, const char *kind, const char *name);
value hy_jinja_apply(hy_jinja_run *run, const hy_jinja_function *f, value self,
                     const hy_jinja_arguments *all);
value hy_jinja_format(hy_jinja_run *run, const hy_jinja_string *s, const value *items,
                      size_t count); /* Python's % */

/* Whether Python's \s matches the character. */
bool hy_jinja_is_space(uint32_t code);
/* The end of the line that begins at `at`, and the beginning of the next: lines as in
 * splitlines(). */
size_t hy_jinja_line_end(const hy_jinja_string *s, size_t at, size_t *next);
/* The first character from `at` on that is not a blank; or, with blanks false, that is one. */
size_t hy_jinja_skip(const char *text, size_t size, size_t at, bool blanks);
value hy_jinja_replace(hy_jinja_run *run, const hy_jinja_string *s, const hy_jinja_string *from,
                       const hy_jinja_string *to, int64_t count);
typedef enum hy_jinja_case { HY_UPPER, HY_LOWER, HY_TITLE, HY_CAPITAL, HY_WORDS } hy_jinja_case;
/* Used as filters, which convert their value to a string, and as methods. `how` is a set of ends,
 * and a hy_jinja_case. */
enum { HY_LEFT = 1, HY_RIGHT = 2 };
value hy_jinja_strip(hy_jinja_run *run, const hy_jinja_call *call);
value hy_jinja_change_case(hy_jinja_run *run, const hy_jinja_call *call);

/* ---- tokens (lexer.c) ------------------------------------------------------------------------ */

typedef enum hy_jinja_token_type {
    HY_TOKEN_TEXT,
    HY_TOKEN_BLOCK, /* {% */
    HY_TOKEN_BLOCK_END,
    HY_TOKEN_PRINT, /* {{ */
    HY_TOKEN_PRINT_END,
    HY_TOKEN_NAME,
    HY_TOKEN_STRING, /* its text is decoded */
    HY_TOKEN_INT,
    HY_TOKEN_FLOAT,
    HY_TOKEN_SIGN, /* an operator, one or two characters in `text` */
    HY_TOKEN_END
} hy_jinja_token_type;

typedef struct hy_jinja_token {
    hy_jinja_token_type type;
    uint32_t line;
    const char *text; /* zero-terminated, except for TEXT */
    size_t size;
} hy_jinja_token;

hy_jinja_token *hy_jinja_lex(hy_jinja_run *run, const char *text, size_t size);

/* ---- the tree (parser.c) --------------------------------------------------------------------- */

typedef enum hy_jinja_kind {
    /* expressions */
    HY_NODE_CONST,
    HY_NODE_NAME,
    HY_NODE_LIST,  /* a: items */
    HY_NODE_TUPLE, /* a: items */
    HY_NODE_DICT,  /* a: key, value, key, ... */
    HY_NODE_ATTRIBUTE,
    HY_NODE_ITEM,   /* a[b] */
    HY_NODE_SLICE,  /* a[b:c:d] */
    HY_NODE_CALL,   /* a(b) */
    HY_NODE_NAMED,  /* an argument: name=a */
    HY_NODE_SPREAD, /* arguments: *a */
    HY_NODE_FILTER,
    HY_NODE_TEST, /* function of a with b */
    HY_NODE_NOT,
    HY_NODE_MINUS,
    HY_NODE_PLUS,
    HY_NODE_AND,
    HY_NODE_OR,
    HY_NODE_BINARY,  /* a sign b */
    HY_NODE_JOIN,    /* a ~ b */
    HY_NODE_COMPARE, /* a, and a list b of COMPARE nodes, each with sign and a */
    HY_NODE_CHOICE,  /* b if a else c */
    HY_NODE_BLOCK,   /* the text of the block that a filter is applied to */
    /* statements */
    HY_NODE_TEXT,
    HY_NODE_PRINT,      /* a */
    HY_NODE_IF,         /* a, then b, else c */
    HY_NODE_FOR,        /* a in b: c, else d; test e; name: "loop" */
    HY_NODE_SET,        /* a = b */
    HY_NODE_SET_BLOCK,  /* a = text of b, through the filters c */
    HY_NODE_FILTERED,   /* text of b through the filters c */
    HY_NODE_WITH,       /* a: SETs, then b */
    HY_NODE_MACRO,      /* name, a: NAMEs with defaults in a, b: body */
    HY_NODE_GENERATION, /* b */
    HY_NODE_BREAK,
    HY_NODE_CONTINUE
} hy_jinja_kind;

typedef struct hy_jinja_node {
    hy_jinja_kind kind;
    uint32_t line;
    char sign[3];
    struct hy_jinja_node *a, *b, *c, *d, *e;
    struct hy_jinja_node *next; /* in a list */
    const char *name;           /* for names: unique, so that pointers can be compared */
    const hy_jinja_function *function;
    value constant;
} hy_jinja_node;

/* ---- evaluation (eval.c, run.c) -------------------------------------------------------------- */

typedef struct hy_jinja_scope {
    struct hy_jinja_scope *parent;
    struct {
        const char *name;
        value is;
    } * items;
    size_t count, room;
} hy_jinja_scope;

typedef struct hy_jinja_macro {
    const hy_jinja_node *node;
    hy_jinja_scope *scope; /* where the macro was defined */
} hy_jinja_macro;

/* A parsing or a rendering. The second part is only for renderings. */
struct hy_jinja_run {
    struct hy_jinja_block *blocks; /* all memory */
    size_t bytes;                  /* in total */
    jmp_buf failed;
    hy_status status;
    const char *name;
    uint32_t line; /* current line of the template */
    uint32_t depth;
    uint64_t steps;

    const hy_jinja *template;
    hy_jinja_scope *scope;
    hy_jinja_builder *out;
    value block;          /* the value of HY_NODE_BLOCK */
    uint16_t generation;  /* HY_JINJA_GENERATED inside {% generation %} */
    hy_jinja_kind leaves; /* BREAK or CONTINUE until its loop is reached; otherwise CONST */
    const struct tm *now;
};

struct hy_jinja {
    hy_jinja_run run; /* of the parsing */
    hy_jinja_node *body;
    const char **names;
    size_t name_count, name_room;
    bool has_generation;
};

value hy_jinja_evaluate(hy_jinja_run *run, const hy_jinja_node *node);
value hy_jinja_attribute(hy_jinja_run *run, value v, const char *name);
value hy_jinja_item(hy_jinja_run *run, value v, value key);
/* Renders a macro in the current scope, where its names are bound. */
value hy_jinja_call_macro(hy_jinja_run *run, const hy_jinja_macro *macro);
void hy_jinja_set_name(hy_jinja_run *run, const char *name, value v);
