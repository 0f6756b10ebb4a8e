/* jinja.h: templates in the part of Jinja that chat templates are written in.
 *
 * A template is parsed once and rendered with values as often as wanted, by any number of threads. Spaces,
 * scopes, undefined names and the printing of values follow Jinja 3 as transformers sets it up for chats:
 * sandboxed, blocks trimmed and stripped on the left, break and continue, {% generation %}, a tojson that
 * escapes no HTML. What is not known here is refused by name with its line: when the template is parsed
 * where that can be seen (statements, filters, tests), else when it is reached (methods).
 *
 * Templates come from strangers. Output, memory, steps and depth are bounded, and passing a bound is an
 * error like any other.
 *
 * Every byte that is written knows where it came from: strings carry marks through slicing, joining,
 * trimming and replacing. What stands in the template itself has the mark 0. */
#pragma once

#include <stdbool.h>
#include <time.h>

#include "base/json.h"
#include "base/text.h"

typedef struct hy_jinja hy_jinja;         /* a template */
typedef struct hy_jinja_run hy_jinja_run; /* one rendering of it */

/* HY_ERR_INPUT names the construct and its line. `name` is what messages call the template. */
hy_status hy_jinja_parse(const char *text, size_t size, const char *name, hy_jinja **out);
void hy_jinja_free(hy_jinja *template); /* may be NULL */
/* Whether it says by {% generation %} what a model writes. */
bool hy_jinja_has_generation(const hy_jinja *template);

/* ---- values ------------------------------------------------------------------------------------ */

typedef enum hy_jinja_type {
    HY_JINJA_ABSENT, /* of an argument: it was not given */
    HY_JINJA_UNDEFINED,
    HY_JINJA_NONE,
    HY_JINJA_BOOL,
    HY_JINJA_INT,
    HY_JINJA_FLOAT,
    HY_JINJA_STRING,
    HY_JINJA_LIST,
    HY_JINJA_TUPLE,
    HY_JINJA_RANGE, /* numbers; neither printed nor equal to a list */
    HY_JINJA_VIEW,  /* keys, values or items of a dict: a list without places */
    HY_JINJA_LAZY,  /* what map, select and their like give: true whatever is in it, read once */
    HY_JINJA_DICT,
    HY_JINJA_NAMESPACE,
    HY_JINJA_LOOP,
    HY_JINJA_MACRO,
    HY_JINJA_CALLABLE /* a function, or a method with its object */
} hy_jinja_type;

typedef struct hy_jinja_value {
    hy_jinja_type type;
    union {
        const char *name; /* of what is undefined */
        bool truth;
        int64_t integer;
        double number;
        const struct hy_jinja_string *string;
        struct hy_jinja_list *list;
        struct hy_jinja_dict *dict; /* of a namespace, too */
        struct hy_jinja_loop *loop;
        const struct hy_jinja_macro *macro;
        const struct hy_jinja_callable *callable;
    } as;
} hy_jinja_value;

/* Marks: a number of the caller's, and whether the byte stands in {% generation %}. */
#define HY_JINJA_GENERATED 0x8000u
#define HY_JINJA_MARKS 0x7FFFu /* numbers up to this */

/* Makers of values, for use in the function that fills in a rendering's variables. They may leave it by a
 * jump: it must hold nothing that needs freeing. Texts are not copied and outlive the rendering. */
hy_jinja_value hy_jinja_text(hy_jinja_run *run, const char *text, size_t size, unsigned mark);
/* Two texts as one; each keeps its mark. */
hy_jinja_value hy_jinja_joined(hy_jinja_run *run, hy_jinja_value a, hy_jinja_value b);
hy_jinja_value hy_jinja_bool(bool truth);
hy_jinja_value hy_jinja_none(void);
hy_jinja_value hy_jinja_list_new(hy_jinja_run *run);
void hy_jinja_append(hy_jinja_run *run, hy_jinja_value list, hy_jinja_value item);
hy_jinja_value hy_jinja_dict_new(hy_jinja_run *run);
void hy_jinja_put(hy_jinja_run *run, hy_jinja_value dict, const char *key, hy_jinja_value item);
hy_jinja_value hy_jinja_json(hy_jinja_run *run, const hy_json_node *node, unsigned mark);
void hy_jinja_define(hy_jinja_run *run, const char *name, hy_jinja_value value);

/* ---- rendering --------------------------------------------------------------------------------- */

/* What was written; a zeroed one is empty. Marks are one for each byte. */
typedef struct hy_jinja_output {
    hy_text text;
    uint16_t *marks;
    size_t room;
} hy_jinja_output;
void hy_jinja_output_free(hy_jinja_output *output);

/* Renders into `out`, which begins anew. `fill` defines the variables; `now` is what strftime_now tells.
 * HY_ERR_INPUT: the template refused (raise_exception), met a value it cannot work with, uses something
 * unknown, or passed a bound; the message names the line. */
hy_status hy_jinja_render(const hy_jinja *template, void (*fill)(hy_jinja_run *run, void *user),
                          void *user, const struct tm *now, hy_jinja_output *out);
