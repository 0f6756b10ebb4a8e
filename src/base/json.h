/* json.h: reading and writing JSON, strictly.
 *
 * The reader takes a whole text and gives a tree that lives until hy_json_free; it accepts RFC 8259
 * and nothing else: UTF-8 checked, no duplicate keys, no trailing text, depth at most 128, text
 * below 256 MiB. Errors name the source, the line and the column (in bytes, from 1). Integers that
 * fit int64 keep all their digits. */
#pragma once

#include "base/text.h"

typedef enum hy_json_type {
    HY_JSON_NULL,
    HY_JSON_BOOL,
    HY_JSON_NUMBER,
    HY_JSON_STRING,
    HY_JSON_ARRAY,
    HY_JSON_OBJECT
} hy_json_type;

typedef struct hy_json_node hy_json_node;
typedef struct hy_json hy_json; /* the tree: owns all nodes */

/* `name` is what errors call the text, usually its path. */
hy_status hy_json_parse(const char *text, size_t size, const char *name, hy_json **out);
hy_status hy_json_read_file(const char *path, hy_json **out);
void hy_json_free(hy_json *json);
const hy_json_node *hy_json_root(const hy_json *json);

/* A node that is absent (NULL) is null and has nothing in it. */
hy_json_type hy_json_type_of(const hy_json_node *node);
const hy_json_node *hy_json_get(const hy_json_node *object, const char *key); /* NULL: absent */
size_t hy_json_size(const hy_json_node *node);               /* members or elements */
const hy_json_node *hy_json_first(const hy_json_node *node); /* first member or element, or NULL */
const hy_json_node *hy_json_next(const hy_json_node *node);  /* its next sibling, or NULL */
const char *hy_json_key(const hy_json_node *member);
size_t hy_json_key_size(const hy_json_node *member); /* embedded zeros counted */

/* Typed access: HY_ERR_INPUT naming the source and the key when absent or of another type. */
hy_status hy_json_int(const hy_json *json, const hy_json_node *object, const char *key,
                      int64_t *out);
hy_status hy_json_double(const hy_json *json, const hy_json_node *object, const char *key,
                         double *out);
hy_status hy_json_bool(const hy_json *json, const hy_json_node *object, const char *key, bool *out);
/* The string lives in the tree, zero-terminated; *size (may be NULL) counts embedded zeros too. */
hy_status hy_json_string(const hy_json *json, const hy_json_node *object, const char *key,
                         const char **out, size_t *size);
/* Of a node itself (may be NULL); false when it is of another type or does not fit. A number like
 * 1e3 or 5.0 is a whole one too. */
bool hy_json_as_int(const hy_json_node *node, int64_t *out);
/* The same, brought to what a double holds exactly (2^53 either way): of such numbers, as strangers' files
 * may have them, a thousand can be added up. */
bool hy_json_as_count(const hy_json_node *node, int64_t *out);
bool hy_json_as_double(const hy_json_node *node, double *out);
/* Whether it is written as a whole number (5, not 5.0 or 5e0) and fits int64. */
bool hy_json_is_integer(const hy_json_node *node);
bool hy_json_as_bool(const hy_json_node *node, bool *out);
bool hy_json_as_string(const hy_json_node *node, const char **out, size_t *size);

/* Writing: a text with commas and quotes put in. Nesting (below 64) is the caller's; misuse is an
 * assert. */
typedef struct hy_json_writer {
    hy_text *text;
    int depth;
    uint64_t has_members; /* bit per depth */
    uint64_t is_object;   /* bit per depth: members carry keys */
    bool is_pretty;       /* two spaces a level */
} hy_json_writer;

void hy_json_begin(hy_json_writer *w, hy_text *text, bool is_pretty);
/* Each value stands under a key in an object, and with key NULL at the top or in an array. */
void hy_json_open_object(hy_json_writer *w, const char *key);
void hy_json_close_object(hy_json_writer *w);
void hy_json_open_array(hy_json_writer *w, const char *key);
void hy_json_close_array(hy_json_writer *w);
void hy_json_put_int(hy_json_writer *w, const char *key, int64_t value);
/* NaN and infinities become null; everything else reads back to the same bits. */
void hy_json_put_double(hy_json_writer *w, const char *key, double value);
void hy_json_put_bool(hy_json_writer *w, const char *key, bool value);
/* NULL becomes null; bytes that are no UTF-8 become U+FFFD. */
void hy_json_put_string(hy_json_writer *w, const char *key, const char *value);
void hy_json_put_null(hy_json_writer *w, const char *key);
