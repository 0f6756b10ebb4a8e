/* jinja.h: templates in the subset of Jinja that chat templates use.
 *
 * A template is parsed once and rendered any number of times, by any number of threads. Spaces,
 * scopes, undefined names and the printing of values follow Jinja 3 as transformers configures it
 * for chats: sandboxed, trim_blocks, lstrip_blocks, break and continue, {% generation %}, and a
 * tojson that does not escape HTML. An unsupported construct is an error with its name and line: at
 * parsing for statements, filters and tests, at rendering for methods.
 *
 * Templates are untrusted. Output, memory, steps and depth are limited, and exceeding a limit is an
 * error like any other.
 *
 * Every byte of the output knows its origin: strings carry marks through slicing, joining, trimming
 * and replacing. Text of the template itself has the mark 0. */
#pragma once

#include <stdbool.h>
#include <time.h>

#include "base/json.h"
#include "base/text.h"

typedef struct hy_jinja hy_jinja;         /* a template */
typedef struct hy_jinja_run hy_jinja_run; /* a parsing or a rendering of it */

/* HY_ERR_INPUT names the construct and its line. Messages call the template `name`. */
hy_status hy_jinja_parse(const char *text, size_t size, const char *name, hy_jinja **out);
void hy_jinja_free(hy_jinja *template); /* template may be NULL */
/* Whether the template marks answers with {% generation %}. */
bool hy_jinja_has_generation(const hy_jinja *template);

/* ---- values ---------------------------------------------------------------------------------- */

typedef enum hy_jinja_type {
    HY_JINJA_ABSENT, /* an argument that was not passed */
    HY_JINJA_UNDEFINED,
    HY_JINJA_NONE,
    HY_JINJA_BOOL,
    HY_JINJA_INT,
    HY_JINJA_FLOAT,
    HY_JINJA_BIG, /* an integer beyond 64 bits: its digits, which are only printed */
    HY_JINJA_STRING,
    HY_JINJA_LIST,
    HY_JINJA_TUPLE,
    HY_JINJA_RANGE, /* numbers; neither printed nor equal to a list */
    HY_JINJA_VIEW,  /* keys, values or items of a dict: a list without an index */
    HY_JINJA_LAZY,  /* result of map, select and similar: always true, read once */
    HY_JINJA_DICT,
    HY_JINJA_NAMESPACE,
    HY_JINJA_LOOP,
    HY_JINJA_MACRO,
    HY_JINJA_CALLABLE /* a function, or a method with its object */
} hy_jinja_type;

typedef struct hy_jinja_value {
    hy_jinja_type type;
    union {
        const char *name; /* name of an undefined value */
        bool truth;
        int64_t integer;
        double number;
        const struct hy_jinja_string *string;
        struct hy_jinja_list *list;
        struct hy_jinja_dict *dict; /* also for a namespace */
        struct hy_jinja_loop *loop;
        const struct hy_jinja_macro *macro;
        const struct hy_jinja_callable *callable;
    } as;
} hy_jinja_value;

/* A mark is a number chosen by the caller, plus a flag for bytes inside {% generation %}. */
#define HY_JINJA_GENERATED 0x8000u
#define HY_JINJA_MARKS 0x7FFFu /* largest number */

/* Create values, in the function that fills in the variables of a rendering. They may leave that
 * function by a jump, so it must not hold anything that needs freeing. Strings are not copied and
 * must outlive the rendering. */
hy_jinja_value hy_jinja_text(hy_jinja_run *run, const char *text, size_t size, unsigned mark);
/* Joins two strings; each keeps its mark. */
hy_jinja_value hy_jinja_joined(hy_jinja_run *run, hy_jinja_value a, hy_jinja_value b);
hy_jinja_value hy_jinja_bool(bool truth);
hy_jinja_value hy_jinja_none(void);
hy_jinja_value hy_jinja_list_new(hy_jinja_run *run);
void hy_jinja_append(hy_jinja_run *run, hy_jinja_value list, hy_jinja_value item);
hy_jinja_value hy_jinja_dict_new(hy_jinja_run *run);
void hy_jinja_put(hy_jinja_run *run, hy_jinja_value dict, const char *key, hy_jinja_value item);
hy_jinja_value hy_jinja_json(hy_jinja_run *run, const hy_json_node *node, unsigned mark);
void hy_jinja_define(hy_jinja_run *run, const char *name, hy_jinja_value value);

/* ---- rendering ------------------------------------------------------------------------------- */

/* The output; an empty one is all zeros. There is one mark per byte. */
typedef struct hy_jinja_output {
    hy_text text;
    uint16_t *marks;
    size_t room;
} hy_jinja_output;
void hy_jinja_output_free(hy_jinja_output *output);

/* Renders into `out`, replacing its content. `fill` defines the variables; `now` is the time for
 * strftime_now. HY_ERR_INPUT: the template raised an exception, cannot process a value, uses an
 * unsupported construct, or exceeded a limit; the message names the line. */
hy_status hy_jinja_render(const hy_jinja *template, void (*fill)(hy_jinja_run *run, void *user),
                          void *user, const struct tm *now, hy_jinja_output *out);
