/* json_node.h: the tree in memory, for the two files that build and walk it.
 *
 * All nodes of a text are in one array in the order of the text, 16 bytes each. The children of a
 * container follow it; `next` is the distance to the next sibling, so the array may move while it
 * grows. The node before a member holds its key. Strings point into a copy of the text. They are
 * decoded in place (a decoded string is never longer than its source) and end with a zero in place
 * of the quote. */
#pragma once

#include "base/json.h"

#define HY_JSON_TEXT_MAX ((size_t)1 << 28) /* texts are shorter, so `next` always fits */
#define HY_JSON_NODES_MOST                                                                         \
    ((size_t)1 << 25)    /* limits a text of "[1,1,..." to half a gigabyte instead of four */
#define HY_JSON_SMALL 16 /* objects with more members get an index */

/* The members of a large object: open addressing by XXH64 of the key. */
typedef struct hy_json_index {
    struct hy_json_index *following; /* list of all indexes of a tree, for freeing */
    uint32_t mask;                   /* slots - 1; the number of slots is a power of two */
    uint32_t slot[];                 /* distance from the object to a member; 0: empty */
} hy_json_index;

struct hy_json_node {
    union {
        int64_t integer; /* also 0 or 1 for a boolean */
        double number;
        const char *string;   /* also the digits of an integer that does not fit int64 */
        hy_json_index *index; /* of an object; NULL if it is small */
    } value;
    uint32_t size; /* bytes of a string, members of a container, or digits of a large integer */
    uint32_t next : 27, type : 3, is_integer : 1, is_member : 1;
};

struct hy_json {
    char *name;
    char *strings;
    hy_json_node *nodes;
    size_t count, capacity;
    hy_json_index *indexes;
};

/* The slot of `key` in an index, or the empty slot where it belongs. */
uint32_t *hy_json_index_slot(const hy_json_node *object, const char *key, size_t size);
