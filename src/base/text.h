/* text.h: a growing string, and searches in lists of names.
 *
 * An empty hy_text is all zeros. A failed allocation marks the text as failed, and later additions
 * do nothing. hy_text_status() reports it at the end, so code that builds a text needs no
 * checks. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_text {
    char *data; /* zero-terminated; NULL before the first addition */
    size_t size, capacity;
    bool has_failed;
} hy_text;

void hy_text_add(hy_text *text, const char *string);
void hy_text_add_bytes(hy_text *text, const void *bytes, size_t size);
void hy_text_addf(hy_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Makes room for `more` bytes. False: not enough memory, and the text has failed. */
bool hy_text_reserve(hy_text *text, size_t more);
void hy_text_clear(hy_text *text); /* empties it, keeps the capacity */
void hy_text_free(hy_text *text);
hy_status hy_text_status(const hy_text *text);   /* HY_ERR_MEMORY if anything failed */
const char *hy_text_string(const hy_text *text); /* never NULL */
/* Passes the string to the caller, who frees it; *out is NULL if anything failed. */
hy_status hy_text_take(hy_text *text, char **out);

/* Example: "a.bin" ends with ".bin". */
bool hy_has_ending(const char *string, const char *ending);
/* Whether `word` is in the list, in which single blanks surround each word: " one two three ". */
bool hy_word_is_in(const char *list, const char *word);
/* Reads the next entry of a comma-separated list, without the spaces around it; returns where the
 * following entry begins, or NULL after the last. */
const char *hy_next_entry(const char *at, const char **entry, size_t *length);
/* Whether a comma-separated list has this entry. */
bool hy_list_has(const char *list, const char *entry, size_t length);
/* The candidate nearest to `word` by edit distance (case-insensitive, '-' equals '_'); NULL if none
 * is near enough to be a likely typing error. */
const char *hy_nearest_word(const char *word, const char *const *candidates, size_t count);
/* "; did you mean WORD?" for the end of a message, or "" for NULL: hy_did_you_mean(near).text. */
typedef struct hy_hint {
    char text[96];
} hy_hint;
hy_hint hy_did_you_mean(const char *near);

/* Parses an integer with an optional suffix k, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti; "GB"
 * counts as G, "GiB" as Gi. Case does not matter, and one space may precede the suffix. False if
 * anything is left over or the number does not fit. */
bool hy_parse_count(const char *string, int64_t *out);

/* Formats bytes for people: "1.9 GiB", "812 KiB". Returns the buffer. */
char *hy_format_bytes(double bytes, char *buffer, size_t size);
/* As above, by value, for use in an argument list: hy_bytes_as_text(n).text. */
typedef struct hy_bytes_text {
    char text[32];
} hy_bytes_text;
hy_bytes_text hy_bytes_as_text(uint64_t bytes);
/* Formats "45 s", "3 m 20 s", "2 h 05 m", "3 d 04 h"; "?" if it is not a valid duration. */
char *hy_format_duration(double seconds, char *buffer, size_t size);
