/* json_tree.c: walks a JSON tree and reads typed values. See json.h.
 *
 * Nothing here changes the tree, so several threads may read it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_node.h"
#include "base/number.h"

void hy_json_free(hy_json *json) {
    if (!json) return;
    while (json->indexes) {
        hy_json_index *index = json->indexes;
        json->indexes = index->following;
        free(index);
    }
    free(json->nodes);
    free(json->strings);
    free(json->name);
    free(json);
}

const hy_json_node *hy_json_root(const hy_json *json) { return json->nodes; }

hy_json_type hy_json_type_of(const hy_json_node *node) {
    return node ? (hy_json_type)node->type : HY_JSON_NULL;
}

size_t hy_json_size(const hy_json_node *node) {
    return node && (node->type == HY_JSON_ARRAY || node->type == HY_JSON_OBJECT) ? node->size : 0;
}

const hy_json_node *hy_json_first(const hy_json_node *node) {
    if (hy_json_size(node) == 0) return NULL;
    return node + (node->type == HY_JSON_OBJECT ? 2 : 1); /* a key comes before a member */
}

const hy_json_node *hy_json_next(const hy_json_node *node) {
    return node->next ? node + node->next : NULL;
}

const char *hy_json_key(const hy_json_node *member) {
    return member->is_member ? member[-1].value.string : NULL;
}

size_t hy_json_key_size(const hy_json_node *member) {
    return member->is_member ? member[-1].size : 0;
}

static bool has_key(const hy_json_node *member, const char *key, size_t size) {
    return member[-1].size == size && memcmp(member[-1].value.string, key, size) == 0;
}

uint32_t *hy_json_index_slot(const hy_json_node *object, const char *key, size_t size) {
    hy_json_index *index = object->value.index;
    uint32_t at = (uint32_t)hy_hash_bytes(key, size, 0) & index->mask;
    while (index->slot[at] && !has_key(object + index->slot[at], key, size)) {
        at = (at + 1) & index->mask;
    }
    return &index->slot[at];
}

const hy_json_node *hy_json_get(const hy_json_node *object, const char *key) {
    if (!object || object->type != HY_JSON_OBJECT) return NULL;
    size_t size = strlen(key);
    if (object->value.index) {
        uint32_t distance = *hy_json_index_slot(object, key, size);
        return distance ? object + distance : NULL;
    }
    const hy_json_node *member = hy_json_first(object);
    while (member && !has_key(member, key, size)) member = hy_json_next(member);
    return member;
}

/* ---- a node's own value ---------------------------------------------------------------------- */

bool hy_json_as_int(const hy_json_node *node, int64_t *out) {
    if (!node || node->type != HY_JSON_NUMBER) return false;
    if (node->is_integer) {
        *out = node->value.integer;
        return true;
    }
    /* 1e3 and 5.0 count as integers if a double holds them exactly. */
    double number = 0;
    (void)hy_json_as_double(node, &number);
    if (!(fabs(number) <= 0x1p53) || number != floor(number)) return false;
    *out = (int64_t)number;
    return true;
}

bool hy_json_as_count(const hy_json_node *node, int64_t *out) {
    const int64_t most = INT64_C(1) << 53;
    bool is_whole = hy_json_as_int(node, out);
    if (is_whole) *out = *out > most ? most : *out < -most ? -most : *out;
    return is_whole;
}

bool hy_json_as_double(const hy_json_node *node, double *out) {
    if (!node || node->type != HY_JSON_NUMBER) return false;
    if (node->size > 0) return hy_number_parse(node->value.string, node->size, out);
    *out = node->is_integer ? (double)node->value.integer : node->value.number;
    return true;
}

bool hy_json_as_digits(const hy_json_node *node, const char **out, size_t *size) {
    if (!node || node->type != HY_JSON_NUMBER || node->size == 0) return false;
    *out = node->value.string;
    *size = node->size;
    return true;
}

bool hy_json_is_integer(const hy_json_node *node) {
    return node && node->type == HY_JSON_NUMBER && node->is_integer;
}

bool hy_json_as_string(const hy_json_node *node, const char **out, size_t *size) {
    if (!node || node->type != HY_JSON_STRING) return false;
    *out = node->value.string;
    if (size) *size = node->size;
    return true;
}

/* ---- typed members --------------------------------------------------------------------------- */

static hy_status fail_member(const hy_json *json, const hy_json_node *node, const char *key,
                             const char *expected) {
    if (!node) return hy_fail(HY_ERR_INPUT, "%s: \"%s\" is missing", json->name, key);
    int64_t whole;
    static const char *const names[] = {"null",     "true or false", "a number",
                                        "a string", "an array",      "an object"};
    const char *found = names[node->type];
    if (node->type == HY_JSON_NUMBER && !hy_json_as_int(node, &whole)) {
        found = "a number with a fraction or beyond 64 bits";
    }
    return hy_fail(HY_ERR_INPUT, "%s: \"%s\" is %s; expected %s", json->name, key, found, expected);
}

hy_status hy_json_int(const hy_json *json, const hy_json_node *object, const char *key,
                      int64_t *out) {
    const hy_json_node *node = hy_json_get(object, key);
    return hy_json_as_int(node, out) ? HY_OK : fail_member(json, node, key, "a whole number");
}

hy_status hy_json_double(const hy_json *json, const hy_json_node *object, const char *key,
                         double *out) {
    const hy_json_node *node = hy_json_get(object, key);
    return hy_json_as_double(node, out) ? HY_OK : fail_member(json, node, key, "a number");
}

bool hy_json_as_bool(const hy_json_node *node, bool *out) {
    if (!node || node->type != HY_JSON_BOOL) return false;
    *out = node->value.integer != 0;
    return true;
}

hy_status hy_json_bool(const hy_json *json, const hy_json_node *object, const char *key,
                       bool *out) {
    const hy_json_node *node = hy_json_get(object, key);
    return hy_json_as_bool(node, out) ? HY_OK : fail_member(json, node, key, "true or false");
}

hy_status hy_json_string(const hy_json *json, const hy_json_node *object, const char *key,
                         const char **out, size_t *size) {
    const hy_json_node *node = hy_json_get(object, key);
    return hy_json_as_string(node, out, size) ? HY_OK : fail_member(json, node, key, "a string");
}
