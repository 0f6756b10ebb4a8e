/* attention_choice.h: the choice between our attention and cuDNN's for a shape, as text.
 *
 * One choice per line, among the lines of matmul algorithms in a checkpoint's table and in the
 * cache file:
 *   <card>/cudnn-<version> attention-<pass>/<B>x<T>/<H>-<K>x<D>/<type> <own|cudnn> <us> <us>
 * Microseconds are those of our kernels, then of cuDNN; 0 if nothing was timed. The version is 0 if
 * there was no cuDNN. A choice is for one card and one version of cuDNN; a damaged line is ignored.
 * Both sides of cuda_link.h may include this. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

enum { HY_ATTENTION_CARD = 80, HY_ATTENTION_LINE = 256 };

typedef struct hy_attention_key {
    hy_op_kind kind; /* HY_OP_ATTENTION or its backward pass */
    hy_dtype dtype;  /* HY_BF16 or HY_F16 */
    int B, T, H, K, D;
} hy_attention_key;

typedef struct hy_attention_entry {
    char card[HY_ATTENTION_CARD]; /* a single word */
    int version;                  /* of cuDNN: 91900 is 9.19.0 */
    hy_attention_key key;
    bool is_cudnn;
    float own_us, cudnn_us;
} hy_attention_entry;

typedef struct hy_attention_entries {
    hy_attention_entry *items;
    int count, capacity;
} hy_attention_entries;

/* ---- one line -------------------------------------------------------------------------------- */

static inline int hy_attention_print(const hy_attention_entry *e, char *out, size_t size) {
    const hy_attention_key *k = &e->key;
    return snprintf(out, size, "%s/cudnn-%d attention-%s/%dx%d/%d-%dx%d/%s %s %.1f %.1f\n", e->card,
                    e->version, k->kind == HY_OP_ATTENTION ? "forward" : "backward", k->B, k->T,
                    k->H, k->K, k->D, k->dtype == HY_BF16 ? "bf16" : "fp16",
                    e->is_cudnn ? "cudnn" : "own", (double)e->own_us, (double)e->cudnn_us);
}

/* Which of two words it is; -1: neither. */
static inline int hy_attention_word(const char *word, const char *first, const char *second) {
    return strcmp(word, first) == 0 ? 0 : strcmp(word, second) == 0 ? 1 : -1;
}

/* Reads "card/cudnn-91900". */
static inline bool hy_attention_read_scope(const char *scope, hy_attention_entry *out) {
    const char *slash = strrchr(scope, '/');
    size_t length = slash ? (size_t)(slash - scope) : 0;
    char rest;
    if (length == 0 || length >= sizeof out->card) return false;
    memcpy(out->card, scope, length);
    return sscanf(slash, "/cudnn-%9d%c", &out->version, &rest) == 1 && out->version >= 0;
}

/* Numbers have at most nine digits, so they fit. */
static inline bool hy_attention_read(const char *line, hy_attention_entry *out) {
    char scope[112], way[12], type[8], choice[8], rest;
    hy_attention_key *k = &out->key;
    memset(out, 0, sizeof *out);
    int found = sscanf(line, "%111s attention-%11[a-z]/%9dx%9d/%9d-%9dx%9d/%7s %7s %15f %15f %c",
                       scope, way, &k->B, &k->T, &k->H, &k->K, &k->D, type, choice, &out->own_us,
                       &out->cudnn_us, &rest);
    if (found != 11 || !hy_attention_read_scope(scope, out)) return false;
    int is_backward = hy_attention_word(way, "forward", "backward");
    int is_half = hy_attention_word(type, "bf16", "fp16");
    int is_cudnn = hy_attention_word(choice, "own", "cudnn");
    if (is_backward < 0 || is_half < 0 || is_cudnn < 0) return false;
    k->kind = is_backward ? HY_OP_ATTENTION_BWD : HY_OP_ATTENTION;
    k->dtype = is_half ? HY_F16 : HY_BF16;
    out->is_cudnn = is_cudnn;
    return k->B > 0 && k->T > 0 && k->H > 0 && k->K > 0 && k->D > 0 && out->own_us >= 0 &&
           out->cudnn_us >= 0;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static inline bool hy_attention_key_equal(const hy_attention_key *a, const hy_attention_key *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->B == b->B && a->T == b->T &&
           a->H == b->H && a->K == b->K && a->D == b->D;
}

/* The entry for this shape, card and cuDNN; NULL: none. */
static inline hy_attention_entry *hy_attention_find(const hy_attention_entries *entries,
                                                    const hy_attention_entry *like) {
    for (int i = 0; i < entries->count; i++) {
        hy_attention_entry *e = &entries->items[i];
        if (hy_attention_key_equal(&e->key, &like->key) && e->version == like->version &&
            strcmp(e->card, like->card) == 0) {
            return e;
        }
    }
    return NULL;
}

/* Adds an entry or replaces an earlier one. False: not enough memory. */
static inline bool hy_attention_put(hy_attention_entries *entries, const hy_attention_entry *e) {
    hy_attention_entry *old = hy_attention_find(entries, e);
    if (old) {
        *old = *e;
        return true;
    }
    if (entries->count == entries->capacity) {
        int capacity = entries->capacity ? 2 * entries->capacity : 16;
        void *items = realloc(entries->items, (size_t)capacity * sizeof *entries->items);
        if (!items) return false;
        entries->items = (hy_attention_entry *)items;
        entries->capacity = capacity;
    }
    entries->items[entries->count++] = *e;
    return true;
}

static inline void hy_attention_clear(hy_attention_entries *entries) {
    free(entries->items);
    memset(entries, 0, sizeof *entries);
}

/* ---- the table of a checkpoint --------------------------------------------------------------- */

/* Reads the choices that are valid for a card and the cuDNN found there, and stores them under that
 * version. A choice of our own kernels is valid with any cuDNN, a choice of cuDNN only with the
 * same version. False: not enough memory. */
static inline bool hy_attention_read_table(hy_attention_entries *entries, const char *text,
                                           const char *card, int version) {
    while (text && *text) {
        hy_attention_entry e;
        const char *end = strchr(text, '\n');
        char line[HY_ATTENTION_LINE];
        size_t length = end ? (size_t)(end - text) : strlen(text);
        bool fits = length < sizeof line;
        snprintf(line, sizeof line, "%.*s", fits ? (int)length : 0, text);
        text = end ? end + 1 : NULL;
        if (!fits || !hy_attention_read(line, &e) || strcmp(e.card, card) != 0) continue;
        if (e.is_cudnn && e.version != version) continue;
        e.version = version;
        if (!hy_attention_put(entries, &e)) return false;
    }
    return true;
}
