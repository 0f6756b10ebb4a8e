/* fields.c: writes and reads structs by a table. See fields.h.
 *
 * Writers (record) and readers (report) of metrics use it. A value that was written is read back to
 * the same field; a value of another type leaves its field unknown. */
#include "formats/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

_Static_assert(sizeof(hy_phase) == sizeof(int) && sizeof(hy_dtype) == sizeof(int) &&
                   sizeof(hy_memory_status) == sizeof(int),
               "enumerations are written and read as int");

#define UNNAMED "?" /* the functions below return it after the last name */

static const char *name_of(hy_field_kind kind, int i) {
    static const char *const levels[] = {"target", "warning", "critical", "emergency", UNNAMED};
    switch (kind) {
    case HY_FIELD_PHASE: return hy_phase_name((hy_phase)i);
    case HY_FIELD_DTYPE: return hy_dtype_name((hy_dtype)i);
    case HY_FIELD_STATUS: return hy_memory_status_name((hy_memory_status)i);
    case HY_FIELD_CLASSES: return hy_class_name((hy_class)i);
    case HY_FIELD_LEVELS: return levels[i];
    default: return UNNAMED;
    }
}

/* -1: nothing has that name. */
static int find_name(hy_field_kind kind, const char *text) {
    for (int i = 0; strcmp(name_of(kind, i), UNNAMED) != 0; i++) {
        if (strcmp(name_of(kind, i), text) == 0) return i;
    }
    return -1;
}

/* ---- writing --------------------------------------------------------------------------------- */

double hy_field_number(const hy_field *field, const void *at) {
    switch (field->kind) {
    case HY_FIELD_INTEGER: {
        int64_t count = *(const int64_t *)at;
        return count >= 0 ? (double)count : NAN;
    }
    case HY_FIELD_NUMBER:
    case HY_FIELD_SHARE: return *(const double *)at;
    case HY_FIELD_BOOL: return *(const bool *)at;
    case HY_FIELD_PHASE:
    case HY_FIELD_DTYPE:
    case HY_FIELD_STATUS: return *(const int *)at;
    default: return NAN;
    }
}

bool hy_field_is_written(const hy_field *field, const void *from, unsigned holds) {
    const void *at = (const char *)from + field->from;
    const char *text = field->kind == HY_FIELD_TEXT ? *(const char *const *)at : "";
    unsigned known = HY_IF_KNOWN | HY_IF_POSITIVE;
    if (field->when & ~known & ~holds || !text) return false;
    if (!(field->when & known)) return true;
    if (field->kind == HY_FIELD_TEXT) return text[0] != 0;
    double value = hy_field_number(field, at);
    return field->when & HY_IF_POSITIVE || field->kind == HY_FIELD_BOOL ? value > 0 : !isnan(value);
}

/* Four digits are enough for readers. */
static void put_layers(hy_json_writer *w, const char *key, const hy_layer_values *layers) {
    char text[32];
    if (layers->count == 0) return;
    hy_json_open_array(w, key);
    for (int32_t i = 0; i < layers->count; i++) {
        double value = layers->values[i * layers->stride];
        bool is_count = value == floor(value) && fabs(value) < 0x1p53;
        snprintf(text, sizeof text, "%.4g", value);
        if (is_count) hy_json_put_int(w, NULL, (int64_t)value);
        if (!is_count) hy_json_put_double(w, NULL, strtod(text, NULL));
    }
    hy_json_close_array(w);
}

/* The array at `at` as an object by name. */
static void put_members(hy_json_writer *w, const hy_field *field, const void *at) {
    const char *name;
    hy_json_open_object(w, field->key);
    for (int i = 0; strcmp(name = name_of(field->kind, i), UNNAMED) != 0; i++) {
        if (field->kind == HY_FIELD_LEVELS) {
            hy_json_put_double(w, name, ((const double *)at)[i]);
        } else if (((const int64_t *)at)[i] > 0) {
            hy_json_put_int(w, name, ((const int64_t *)at)[i]);
        }
    }
    hy_json_close_object(w);
}

void hy_fields_put(const hy_field *table, size_t count, const void *from, unsigned holds,
                   hy_json_writer *w) {
    for (const hy_field *field = table; field < table + count; field++) {
        if (!hy_field_is_written(field, from, holds)) continue;
        const void *at = (const char *)from + field->from;
        switch (field->kind) {
        case HY_FIELD_INTEGER: hy_json_put_int(w, field->key, *(const int64_t *)at); break;
        case HY_FIELD_NUMBER:
        case HY_FIELD_SHARE: hy_json_put_double(w, field->key, *(const double *)at); break;
        case HY_FIELD_BOOL: hy_json_put_bool(w, field->key, *(const bool *)at); break;
        case HY_FIELD_TEXT: hy_json_put_string(w, field->key, *(const char *const *)at); break;
        case HY_FIELD_PHASE:
        case HY_FIELD_DTYPE:
        case HY_FIELD_STATUS:
            hy_json_put_string(w, field->key, name_of(field->kind, *(const int *)at));
            break;
        case HY_FIELD_LAYERS: put_layers(w, field->key, at); break;
        case HY_FIELD_CLASSES:
        case HY_FIELD_LEVELS: put_members(w, field, at); break;
        }
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

void hy_fields_clear(const hy_field *table, size_t count, void *into) {
    for (const hy_field *field = table; field < table + count; field++) {
        if (field->into == HY_NO_FIELD) continue;
        void *at = (char *)into + field->into;
        switch (field->kind) {
        case HY_FIELD_INTEGER: *(int64_t *)at = -1; break;
        case HY_FIELD_NUMBER:
        case HY_FIELD_SHARE: *(double *)at = NAN; break;
        case HY_FIELD_BOOL: *(bool *)at = false; break;
        case HY_FIELD_TEXT: *(const char **)at = ""; break;
        case HY_FIELD_PHASE: *(hy_phase *)at = HY_FULL; break;
        case HY_FIELD_DTYPE:
        case HY_FIELD_STATUS: *(int *)at = -1; break;
        case HY_FIELD_CLASSES: memset(at, 0, HY_CLASS_COUNT * sizeof(int64_t)); break;
        case HY_FIELD_LAYERS: ((hy_values *)at)->count = 0; break;
        case HY_FIELD_LEVELS:
            for (int i = 0; i < 4; i++) ((double *)at)[i] = NAN;
            break;
        }
    }
}

/* Members of an object by name, into the array at `at`. */
static void take_members(const hy_field *field, const hy_json_node *object, void *at) {
    if (hy_json_type_of(object) != HY_JSON_OBJECT) return;
    for (const hy_json_node *m = hy_json_first(object); m; m = hy_json_next(m)) {
        int i = find_name(field->kind, hy_json_key(m));
        int64_t bytes;
        if (i < 0) continue;
        if (field->kind == HY_FIELD_LEVELS) {
            hy_json_as_double(m, (double *)at + i);
        } else if (hy_json_as_count(m, &bytes) && bytes >= 0) {
            ((int64_t *)at)[i] = bytes;
        }
    }
}

static void take_values(const hy_json_node *array, hy_values *into) {
    int32_t count = 0;
    into->count = 0;
    if (hy_json_type_of(array) != HY_JSON_ARRAY) return;
    for (const hy_json_node *n = hy_json_first(array); n; n = hy_json_next(n)) {
        if (count == HY_VALUES_MOST) return;
        into->values[count] = NAN;
        hy_json_as_double(n, &into->values[count++]);
    }
    into->count = count;
}

hy_status hy_fields_take(const hy_field *table, size_t count, const hy_json_node *object,
                         void *into, const char *(*keep)(void *user, const char *text),
                         void *user) {
    size_t next = 0; /* keys have the same order in every line, so the search starts there */
    for (const hy_json_node *m = hy_json_first(object); m; m = hy_json_next(m)) {
        const char *text;
        size_t i = next, tried = 0;
        while (tried < count && strcmp(table[i].key, hy_json_key(m)) != 0) {
            i = i + 1 < count ? i + 1 : 0;
            tried++;
        }
        if (tried == count) continue;
        next = i + 1 < count ? i + 1 : 0;
        const hy_field *field = &table[i];
        if (field->into == HY_NO_FIELD) continue;
        void *at = (char *)into + field->into;
        switch (field->kind) {
        case HY_FIELD_INTEGER: hy_json_as_count(m, at); break;
        case HY_FIELD_NUMBER:
        case HY_FIELD_SHARE: hy_json_as_double(m, at); break;
        case HY_FIELD_BOOL: hy_json_as_bool(m, at); break;
        case HY_FIELD_TEXT:
            if (!hy_json_as_string(m, &text, NULL)) break;
            text = keep(user, text);
            if (!text)
                return hy_fail(HY_ERR_MEMORY,
                               "not enough memory for the strings of a run's record");
            *(const char **)at = text;
            break;
        case HY_FIELD_PHASE:
        case HY_FIELD_DTYPE:
        case HY_FIELD_STATUS:
            if (!hy_json_as_string(m, &text, NULL)) break;
            if (find_name(field->kind, text) >= 0) *(int *)at = find_name(field->kind, text);
            break;
        case HY_FIELD_LAYERS: take_values(m, at); break;
        case HY_FIELD_CLASSES:
        case HY_FIELD_LEVELS: take_members(field, m, at); break;
        }
    }
    return HY_OK;
}
