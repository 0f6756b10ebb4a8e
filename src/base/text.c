/* text.c: growing strings, similar names, and numbers for people. See text.h.
 *
 * A text always has one byte beyond `size` for its terminating zero, so `data` can be read as a C
 * string at any time. */
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"

/* ---- growing strings ------------------------------------------------------------------------- */

bool hy_text_reserve(hy_text *text, size_t more) {
    size_t needed = more < SIZE_MAX - text->size ? text->size + more + 1 : SIZE_MAX;
    text->has_failed = text->has_failed ||
                       hy_array_reserve(&text->data, &text->capacity, needed, 1, "a text") != HY_OK;
    return !text->has_failed;
}

void hy_text_add_bytes(hy_text *text, const void *bytes, size_t size) {
    if (!hy_text_reserve(text, size)) return;
    if (size) memcpy(text->data + text->size, bytes, size);
    text->size += size;
    text->data[text->size] = '\0';
}

void hy_text_add(hy_text *text, const char *string) {
    hy_text_add_bytes(text, string, strlen(string));
}

void hy_text_addf(hy_text *text, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (size < 0) {
        text->has_failed = true;
    } else if (hy_text_reserve(text, (size_t)size)) {
        vsnprintf(text->data + text->size, (size_t)size + 1, format, again);
        text->size += (size_t)size;
    }
    va_end(again);
}

void hy_text_clear(hy_text *text) {
    text->size = 0;
    text->has_failed = false;
    if (text->data) text->data[0] = '\0';
}

void hy_text_free(hy_text *text) {
    free(text->data);
    *text = (hy_text){0};
}

hy_status hy_text_status(const hy_text *text) {
    if (!text->has_failed) return HY_OK;
    return hy_fail(HY_ERR_MEMORY, "out of memory while adding to a text of %zu bytes", text->size);
}

hy_status hy_text_take(hy_text *text, char **out) {
    hy_status status = hy_text_status(text);
    if (status != HY_OK) hy_text_free(text);
    *out = text->data;
    *text = (hy_text){0};
    return status;
}

const char *hy_text_string(const hy_text *text) { return text->data ? text->data : ""; }

/* ---- names ----------------------------------------------------------------------------------- */

bool hy_has_ending(const char *string, const char *ending) {
    size_t length = strlen(string), size = strlen(ending);
    return length >= size && strcmp(string + length - size, ending) == 0;
}

bool hy_word_is_in(const char *list, const char *word) {
    size_t length = strlen(word);
    if (length == 0 || strchr(word, ' ')) return false;
    for (const char *at = list + 1; (at = strstr(at, word)); at++) {
        if (at[-1] == ' ' && at[length] == ' ') return true;
    }
    return false;
}

const char *hy_next_entry(const char *at, const char **entry, size_t *length) {
    at += strspn(at, " ");
    size_t all = strcspn(at, ",");
    *entry = at;
    *length = all;
    while (*length > 0 && at[*length - 1] == ' ') --*length;
    return at[all] == ',' ? at + all + 1 : NULL;
}

bool hy_list_has(const char *list, const char *entry, size_t length) {
    const char *other;
    size_t size;
    while (list) {
        list = hy_next_entry(list, &other, &size);
        if (size == length && strncmp(entry, other, size) == 0) return true;
    }
    return false;
}

#define WORD_MAX 64 /* longer words are not compared: no name is that long */

static int fold(char c) { return c == '-' ? '_' : tolower((unsigned char)c); }

static int least(int a, int b) { return a < b ? a : b; }

/* Edits from a to b: insert, remove, replace, swap two neighbours (Damerau-Levenshtein, each
 * position edited once). Three rows of the table are enough. */
static int edit_distance(const char *a, int a_size, const char *b, int b_size) {
    int rows[3][WORD_MAX + 1];
    int *before = rows[0], *above = rows[1], *row = rows[2];
    for (int j = 0; j <= b_size; j++) above[j] = j;
    for (int i = 1; i <= a_size; i++) {
        row[0] = i;
        for (int j = 1; j <= b_size; j++) {
            int is_other = fold(a[i - 1]) != fold(b[j - 1]);
            int best = least(above[j - 1] + is_other, least(above[j], row[j - 1]) + 1);
            bool is_swap = i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                           fold(a[i - 2]) == fold(b[j - 1]);
            row[j] = is_swap ? least(best, before[j - 2] + 1) : best;
        }
        int *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    return above[b_size];
}

const char *hy_nearest_word(const char *word, const char *const *candidates, size_t count) {
    size_t size = strlen(word);
    if (size == 0 || size > WORD_MAX) return NULL;
    const char *nearest = NULL;
    int nearest_distance = 0;
    for (size_t i = 0; i < count; i++) {
        size_t other = strlen(candidates[i]);
        if (other == 0 || other > WORD_MAX) continue;
        /* A third of the letters may differ, but never all of them. */
        int longest = (int)(size > other ? size : other);
        int limit = least(longest < 6 ? 1 : longest / 3, least(4, longest - 1));
        int distance = edit_distance(word, (int)size, candidates[i], (int)other);
        /* A word without its ending, such as gemma3 for gemma3_text, is nearer than all others. */
        bool is_begun = size >= 4 && size < other && ispunct((unsigned char)candidates[i][size]);
        if (is_begun && edit_distance(word, (int)size, candidates[i], (int)size) == 0)
            return candidates[i];
        if (distance > limit || (nearest && distance >= nearest_distance)) continue;
        nearest = candidates[i];
        nearest_distance = distance;
    }
    return nearest;
}

hy_hint hy_did_you_mean(const char *near) {
    hy_hint hint = {""};
    if (near) snprintf(hint.text, sizeof hint.text, "; did you mean %.64s?", near);
    return hint;
}

/* ---- numbers as people write them ------------------------------------------------------------ */

/* The factor of a suffix that is the whole rest of the string; 0: unknown suffix. */
static int64_t suffix_factor(const char *suffix) {
    if (*suffix == '\0') return 1;
    const char *letters = "kmgt";
    const char *letter = strchr(letters, tolower((unsigned char)*suffix++));
    if (!letter) return 0;
    bool is_binary = *suffix == 'i' || *suffix == 'I';
    if (is_binary) suffix++;
    if (*suffix == 'B' || *suffix == 'b') suffix++;
    if (*suffix) return 0;
    int64_t factor = 1;
    for (long power = 0; power <= letter - letters; power++) factor *= is_binary ? 1024 : 1000;
    return factor;
}

bool hy_parse_count(const char *string, int64_t *out) {
    if (!isdigit((unsigned char)string[*string == '-'])) return false;
    char *end;
    errno = 0;
    int64_t value = strtoll(string, &end, 10);
    if (errno == ERANGE) return false;
    if (end[0] == ' ' && end[1]) end++; /* example: "15 GiB" */
    int64_t factor = suffix_factor(end);
    if (factor == 0 || __builtin_mul_overflow(value, factor, &value)) return false;
    *out = value;
    return true;
}

char *hy_format_bytes(double bytes, char *buffer, size_t size) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (!isfinite(bytes)) {
        snprintf(buffer, size, "?");
        return buffer;
    }
    double value = fabs(bytes);
    size_t unit = 0;
    /* Compare the rounded value: 1023.7 KiB is printed as 1.0 MiB. */
    for (; value >= 1023.5 && unit + 1 < sizeof units / sizeof units[0]; unit++) value /= 1024;
    int decimals = unit > 0 && value < 99.95 ? 1 : 0;
    snprintf(buffer, size, "%s%.*f %s", bytes < 0 ? "-" : "", decimals, value, units[unit]);
    return buffer;
}

hy_bytes_text hy_bytes_as_text(uint64_t bytes) {
    hy_bytes_text out;
    hy_format_bytes((double)bytes, out.text, sizeof out.text);
    return out;
}

char *hy_format_duration(double seconds, char *buffer, size_t size) {
    if (!(seconds >= 0) || seconds > 1e15) {
        snprintf(buffer, size, "?");
        return buffer;
    }
    long long s = llround(seconds);
    if (s < 60) {
        snprintf(buffer, size, "%lld s", s);
    } else if (s < 3600) {
        snprintf(buffer, size, "%lld m %02lld s", s / 60, s % 60);
    } else if (s < 86400) {
        snprintf(buffer, size, "%lld h %02lld m", s / 3600, s / 60 % 60);
    } else {
        snprintf(buffer, size, "%lld d %02lld h", s / 86400, s / 3600 % 24);
    }
    return buffer;
}
