/* fields.h: structs as JSON objects, by tables of their fields.
 *
 * A row says under which key a field stands, what it is, when it is left out, and where it lies: in
 * the struct that is written and in the one that it is read back into. Keys are written in the
 * table's order. Readers find them in any order, pass over keys that no row has, and take a value
 * of another type for absent. */
#pragma once

#include "base/json.h"

/* What is read and never comes stays unknown, as given here. */
typedef enum hy_field_kind {
    HY_FIELD_INTEGER, /* int64_t or uint64_t; -1 */
    HY_FIELD_NUMBER,  /* double; NaN */
    HY_FIELD_SHARE,   /* the same, of 1: shown as percent */
    HY_FIELD_BOOL,    /* false */
    HY_FIELD_TEXT,    /* const char *; "" */
    HY_FIELD_PHASE,   /* hy_phase, by name; HY_FULL */
    HY_FIELD_DTYPE,   /* hy_dtype, by name; only written */
    HY_FIELD_STATUS,  /* hy_memory_status, by name; -1 */
    HY_FIELD_CLASSES, /* int64_t[HY_CLASS_COUNT] of bytes, an object by name without zeros; 0 */
    HY_FIELD_LEVELS,  /* double[4]: target, warning, critical and emergency; NaN */
    HY_FIELD_LAYERS,  /* hy_layer_values, an array with four digits each; hy_values, none */
} hy_field_kind;

/* Conditions under which a field is written; all must hold. Higher bits are a table's own. */
#define HY_ALWAYS 0u      /* but for a text that is NULL */
#define HY_IF_KNOWN 1u    /* not NaN, not false, not "" */
#define HY_IF_POSITIVE 2u /* a count or a number above 0 */
#define HY_IF_TABLE 4u    /* the first of a table's own */

/* A value for each layer; none: it is left out. */
typedef struct hy_layer_values {
    int32_t count, stride; /* from one to the next, in doubles */
    const double *values;
} hy_layer_values;

#define HY_VALUES_MOST 256

/* An array that was read: what is no number in it is NaN. A longer one counts as absent. */
typedef struct hy_values {
    int32_t count;
    double values[HY_VALUES_MOST];
} hy_values;

#define HY_NO_FIELD SIZE_MAX /* not read */

typedef struct hy_field {
    const char *key;
    hy_field_kind kind;
    unsigned when;
    size_t from;                /* offset in the struct that is written */
    size_t into;                /* offset in the struct that is read */
    const char *tag, *jump_tag; /* in TensorBoard, of steps and of jumps; NULL: not shown there */
} hy_field;

/* Whether the row's condition holds; `holds` has the table's own conditions that do. */
bool hy_field_is_written(const hy_field *field, const void *from, unsigned holds);
/* A field as a number, at its offset in one of the structs; NaN where it is none or unknown. */
double hy_field_number(const hy_field *field, const void *at);
/* Adds the members to the object that is open. */
void hy_fields_put(const hy_field *table, size_t count, const void *from, unsigned holds,
                   hy_json_writer *w);
/* All fields that are read become unknown. */
void hy_fields_clear(const hy_field *table, size_t count, void *into);
/* Takes what the object says. `keep` gives a text that lives long enough, or NULL where memory is
 * out. */
hy_status hy_fields_take(const hy_field *table, size_t count, const hy_json_node *object,
                         void *into, const char *(*keep)(void *user, const char *text), void *user);
