/* text.h: a string that grows, and the two questions asked of names: how near, and is it listed.
 *
 * A zeroed hy_text is an empty one. An allocation that fails marks the text as failed and later
 * additions do nothing; hy_text_status() tells at the end, so that building needs no checks. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_text {
    char *data; /* zero-terminated once anything was added; NULL before */
    size_t size, capacity;
    bool has_failed;
} hy_text;

void hy_text_add(hy_text *text, const char *string);
void hy_text_add_bytes(hy_text *text, const void *bytes, size_t size);
void hy_text_addf(hy_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Room for so many more bytes. False, and the text has failed, when there is none. */
bool hy_text_reserve(hy_text *text, size_t more);
void hy_text_clear(hy_text *text); /* empty, capacity kept */
void hy_text_free(hy_text *text);
hy_status hy_text_status(const hy_text *text);   /* HY_ERR_MEMORY once anything failed */
const char *hy_text_string(const hy_text *text); /* never NULL */
/* The string changes hands, to be freed by the caller; *out is NULL once anything failed. */
hy_status hy_text_take(hy_text *text, char **out);

/* "a.bin" ends with ".bin". */
bool hy_has_ending(const char *string, const char *ending);
/* Whether `word` is one of the list's, which stand between single blanks: " one two three ". */
bool hy_word_is_in(const char *list, const char *word);
/* The next entry of a list with commas between, without the spaces around it; returns where the one after it
 * begins, NULL: it was the last. */
const char *hy_next_entry(const char *at, const char **entry, size_t *length);
/* Whether such a list has this entry. */
bool hy_list_has(const char *list, const char *entry, size_t length);
/* The candidate nearest to `word` by edit distance (case-insensitive, '-' equals '_'), or NULL when
 * none is near enough to be a likely slip. */
const char *hy_nearest_word(const char *word, const char *const *candidates, size_t count);
/* "; did you mean WORD?" for the end of a message, or "" for NULL: hy_did_you_mean(near).text. */
typedef struct hy_hint {
    char text[96];
} hy_hint;
hy_hint hy_did_you_mean(const char *near);

/* Parses a whole number with an optional suffix k, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti; "GB"
 * counts as G, "GiB" as Gi; capital or not, one space before it is fine. False when anything
 * is left over or it does not fit. */
bool hy_parse_count(const char *string, int64_t *out);

/* Bytes for people: "1.9 GiB", "812 KiB", into a caller's buffer. Returns the buffer. */
char *hy_format_bytes(double bytes, char *buffer, size_t size);
/* The same by value, to stand in a list of arguments: hy_bytes_as_text(n).text. */
typedef struct hy_bytes_text {
    char text[32];
} hy_bytes_text;
hy_bytes_text hy_bytes_as_text(uint64_t bytes);
/* "45 s", "3 m 20 s", "2 h 05 m", "3 d 04 h"; "?" for what is no duration. */
char *hy_format_duration(double seconds, char *buffer, size_t size);
