/* json.h: strict reading and writing of JSON.
 *
 * The reader parses a whole text into a tree that lives until hy_json_free. It accepts exactly RFC
 * 8259, with limits: valid UTF-8, no duplicate keys, no trailing text, depth at most 128, text
 * below 256 MiB. Errors name the source, the line and the column (in bytes, from 1). Integers keep
 * all digits. */
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
typedef struct hy_json hy_json; /* the tree; owns all nodes */

/* Errors call the text `name`, usually its path. */
hy_status hy_json_parse(const char *text, size_t size, const char *name, hy_json **out);
hy_status hy_json_read_file(const char *path, hy_json **out);
void hy_json_free(hy_json *json);
const hy_json_node *hy_json_root(const hy_json *json);

/* A missing node (NULL) counts as null and is empty. */
hy_json_type hy_json_type_of(const hy_json_node *node);
const hy_json_node *hy_json_get(const hy_json_node *object, const char *key); /* NULL: absent */
size_t hy_json_size(const hy_json_node *node);               /* members or elements */
const hy_json_node *hy_json_first(const hy_json_node *node); /* first member or element, or NULL */
const hy_json_node *hy_json_next(const hy_json_node *node);  /* its next sibling, or NULL */
const char *hy_json_key(const hy_json_node *member);
size_t hy_json_key_size(const hy_json_node *member); /* including embedded zeros */

/* Typed access: HY_ERR_INPUT names the source and the key if it is missing or of another type. */
hy_status hy_json_int(const hy_json *json, const hy_json_node *object, const char *key,
                      int64_t *out);
hy_status hy_json_double(const hy_json *json, const hy_json_node *object, const char *key,
                         double *out);
hy_status hy_json_bool(const hy_json *json, const hy_json_node *object, const char *key, bool *out);
/* The string is zero-terminated and owned by the tree; *size (may be NULL) includes embedded
 * zeros. */
hy_status hy_json_string(const hy_json *json, const hy_json_node *object, const char *key,
                         const char **out, size_t *size);
/* The value of a node (may be NULL); false if it has another type or does not fit. Numbers such as
 * 1e3 or 5.0 count as integers. */
bool hy_json_as_int(const hy_json_node *node, int64_t *out);
/* As above, limited to the integers a double holds exactly (up to 2^53 either way), so a thousand
 * of them from an untrusted file can be added without overflow. */
bool hy_json_as_count(const hy_json_node *node, int64_t *out);
bool hy_json_as_double(const hy_json_node *node, double *out);
/* Whether it is written as an integer (5, not 5.0 or 5e0) and fits int64. */
bool hy_json_is_integer(const hy_json_node *node);
/* As written, for an integer that does not fit int64, and for -0; not zero-terminated. */
bool hy_json_as_digits(const hy_json_node *node, const char **out, size_t *size);
bool hy_json_as_bool(const hy_json_node *node, bool *out);
bool hy_json_as_string(const hy_json_node *node, const char **out, size_t *size);

/* Writing: adds commas and quotes. The caller balances the nesting (below 64); misuse is an
 * assert. */
typedef struct hy_json_writer {
    hy_text *text;
    int depth;
    uint64_t has_members; /* one bit per depth */
    uint64_t is_object;   /* one bit per depth: members have keys */
    bool is_pretty;       /* two spaces per level */
} hy_json_writer;

void hy_json_begin(hy_json_writer *w, hy_text *text, bool is_pretty);
/* A value in an object has a key; at the top or in an array, key is NULL. */
void hy_json_open_object(hy_json_writer *w, const char *key);
void hy_json_close_object(hy_json_writer *w);
void hy_json_open_array(hy_json_writer *w, const char *key);
void hy_json_close_array(hy_json_writer *w);
void hy_json_put_int(hy_json_writer *w, const char *key, int64_t value);
/* NaN and infinities become null; every other value reads back to the same bits. */
void hy_json_put_double(hy_json_writer *w, const char *key, double value);
/* As above, with a point in whole numbers too: 2.0. */
void hy_json_put_real(hy_json_writer *w, const char *key, double value);
void hy_json_put_bool(hy_json_writer *w, const char *key, bool value);
/* NULL becomes null; invalid UTF-8 bytes become U+FFFD. */
void hy_json_put_string(hy_json_writer *w, const char *key, const char *value);
/* As above, of `size` bytes, which may include zeros. */
void hy_json_put_bytes(hy_json_writer *w, const char *key, const char *value, size_t size);
void hy_json_put_null(hy_json_writer *w, const char *key);
