/* slurm.c: parses node lists and task counts in Slurm's compressed form. See slurm.h. */
#include "comm/slurm.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool is_of_host(char c) { return isalnum((unsigned char)c) || strchr("-_.:", c); }

/* The first number of "[01-04,07]" with its leading zeros, and the end of the brackets. */
static const char *first_of_brackets(const char *at, size_t *digits) {
    const char *end = strchr(at, ']');
    *digits = strspn(at + 1, "0123456789");
    if (!end || *digits == 0) return NULL;
    bool is_list = strspn(at + 1, "0123456789-,") == (size_t)(end - at - 1);
    return is_list && strchr("-,]", at[1 + *digits]) ? end + 1 : NULL;
}

bool hy_slurm_first_host(const char *list, char *out, size_t size) {
    size_t used = 0;
    while (*list && *list != ',') {
        const char *from = list, *next = list + 1;
        size_t length = 1;
        if (*list == '[') {
            from = list + 1;
            next = first_of_brackets(list, &length);
            if (!next) return false;
        } else if (!is_of_host(*list)) {
            return false;
        }
        if (used + length >= size) return false;
        memcpy(out + used, from, length);
        used += length;
        list = next;
    }
    if (size > 0) out[used] = 0;
    return used > 0;
}

bool hy_slurm_tasks_of_node(const char *list, int64_t node, int64_t *out) {
    while (isdigit((unsigned char)*list)) {
        char *end;
        int64_t tasks = strtoll(list, &end, 10), nodes = 1;
        if (end[0] == '(' && end[1] == 'x' && isdigit((unsigned char)end[2])) {
            nodes = strtoll(end + 2, &end, 10);
            if (*end++ != ')') return false;
        }
        if (*end && *end != ',') return false;
        *out = tasks;
        if (node < nodes) return tasks > 0;
        node -= nodes;
        if (!*end) return false;
        list = end + 1;
    }
    return false;
}
