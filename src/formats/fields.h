/* fields.h: structs as JSON objects, by tables of their fields.
 *
 * A row has a field's key, its type, when it is omitted, and its offset: in the struct that is
 * written and in the one that is read. Keys are written in the table's order. Readers find them
 * in any order, skip unknown keys, and treat a value of another type as absent. */
#pragma once

#include "base/json.h"

/* A field that is never read keeps the unknown value given here. */
typedef enum hy_field_kind {
    HY_FIELD_INTEGER, /* int64_t or uint64_t; -1 */
    HY_FIELD_NUMBER,  /* double; NaN */
    HY_FIELD_SHARE,   /* as above, from 0 to 1; shown as percent */
    HY_FIELD_BOOL,    /* false */
    HY_FIELD_TEXT,    /* const char *; "" */
    HY_FIELD_PHASE,   /* hy_phase, by name; HY_FULL */
    HY_FIELD_DTYPE,   /* hy_dtype, by name; only written */
    HY_FIELD_STATUS,  /* hy_memory_status, by name; -1 */
    HY_FIELD_CLASSES, /* int64_t[HY_CLASS_COUNT] of bytes, an object by name without zeros; 0 */
    HY_FIELD_LEVELS,  /* double[4]: target, warning, critical and emergency; NaN */
    HY_FIELD_LAYERS,  /* hy_layer_values, an array with four digits each; hy_values, none */
} hy_field_kind;

/* Conditions for writing a field; all must hold. The table defines the higher bits. */
#define HY_ALWAYS 0u      /* except a text that is NULL */
#define HY_IF_KNOWN 1u    /* not NaN, not false, not "" */
#define HY_IF_POSITIVE 2u /* a count or a number above 0 */
#define HY_IF_TABLE 4u    /* the first condition that a table defines */

/* One value per layer; a field without values is omitted. */
typedef struct hy_layer_values {
    int32_t count, stride; /* distance from one value to the next, in doubles */
    const double *values;
} hy_layer_values;

#define HY_VALUES_MOST 256

/* An array that was read: entries that are not numbers are NaN. A longer one counts as absent. */
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
    const char *tag, *jump_tag; /* TensorBoard tags for steps and jumps; NULL: not shown there */
} hy_field;

/* Does the row's condition hold? `holds` has the conditions of the table that are met. */
bool hy_field_is_written(const hy_field *field, const void *from, unsigned holds);
/* A field as a number, at its offset in one of the structs; NaN: not a number, or unknown. */
double hy_field_number(const hy_field *field, const void *at);
/* Adds the members to the open object. */
void hy_fields_put(const hy_field *table, size_t count, const void *from, unsigned holds,
                   hy_json_writer *w);
/* All fields that are read become unknown. */
void hy_fields_clear(const hy_field *table, size_t count, void *into);
/* Reads the object's values. `keep` returns a text that lives long enough, or NULL if memory
 * runs out. */
hy_status hy_fields_take(const hy_field *table, size_t count, const hy_json_node *object,
                         void *into, const char *(*keep)(void *user, const char *text), void *user);
