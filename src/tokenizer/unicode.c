/* unicode.c: normal form C and lower case. See unicode.h.
 *
 * Only stretches with a character from U+0300 on are normalised, each with the one character before
 * it: nothing below U+0300 combines with the character before it. A stretch is decomposed, its
 * marks are put in canonical order, and it is composed again (Unicode Standard, section 3.11). The
 * work is linear, except for sorting a run of marks, which takes n log n. */
#include "tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

#define PLAIN_END 0x300u
#define MARK_SHIFT 24 /* the top byte of a character holds its combining class */
#define CODE_MASK 0x1FFFFFu

/* Hangul syllables are composed by a formula. */
enum {
    HANGUL = 0xAC00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11A7,
    HANGUL_LS = 19,
    HANGUL_VS = 21,
    HANGUL_TS = 28
};

size_t hy_unicode_previous(const char *text, size_t size, uint32_t *code) {
    for (size_t length = 1; length <= 4 && length <= size; length++) {
        const char *p = text + size - length;
        if (((uint8_t)*p & 0xC0) == 0x80) continue;
        if (hy_unicode_next(p, length, code) == length) return length;
        break;
    }
    *code = HY_UNICODE_STRAY;
    return 1;
}

bool hy_unicode_is_plain(const char *text, size_t size) {
    /* U+0300 is CC 80; larger lead bytes begin larger characters or are invalid. */
    for (size_t i = 0; i < size; i++) {
        if ((uint8_t)text[i] >= 0xCC) return false;
    }
    return true;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* The last row that begins at or before `code`, in a table sorted by the first members of its rows;
 * NULL: none. */
static inline const void *row_of(const void *table, size_t rows, size_t size, uint32_t code) {
    size_t low = 0, high = rows;
    while (low < high) {
        size_t middle = (low + high) / 2;
        uint32_t first;
        memcpy(&first, (const char *)table + middle * size, sizeof first);
        if (first <= code) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 ? (const char *)table + (low - 1) * size : NULL;
}

/* The syllable of two Hangul parts; 0: none. */
static uint32_t compose_hangul(uint32_t first, uint32_t second) {
    uint32_t l = first - HANGUL_L, v = second - HANGUL_V, t = second - HANGUL_T;
    if (l < HANGUL_LS && v < HANGUL_VS) return HANGUL + (l * HANGUL_VS + v) * HANGUL_TS;
    uint32_t syllable = first - HANGUL;
    bool takes_tail = syllable < HANGUL_LS * HANGUL_VS * HANGUL_TS && syllable % HANGUL_TS == 0;
    return takes_tail && t > 0 && t < HANGUL_TS ? first + t : 0;
}

/* The character composed of two; 0: none. */
static uint32_t compose(uint32_t first, uint32_t second) {
    uint32_t syllable = compose_hangul(first, second);
    if (syllable) return syllable;
    int low = 0, high = HY_UNICODE_COMPOSITIONS - 1;
    while (low <= high) {
        int middle = (low + high) / 2;
        const hy_unicode_pair *pair = &hy_unicode_decomposition[hy_unicode_composition[middle]];
        if (first == pair->first && second == pair->second) return pair->code;
        if (first < pair->first || (first == pair->first && second < pair->second)) {
            high = middle - 1;
        } else {
            low = middle + 1;
        }
    }
    return 0;
}

/* ---- a stretch ------------------------------------------------------------------------------- */

typedef struct stretch {
    uint32_t *codes; /* combining class << MARK_SHIFT | character */
    size_t count, room;
    bool has_failed;
} stretch;

static void push(stretch *s, uint32_t code) {
    const hy_unicode_run *run =
        row_of(hy_unicode_combining, HY_UNICODE_COMBINING_RUNS, sizeof *run, code);
    uint32_t class = run && code <= run->last ? run->combining : 0;
    if (hy_array_reserve(&s->codes, &s->room, s->count + 1, sizeof code, "a text") == HY_OK) {
        s->codes[s->count++] = class << MARK_SHIFT | code;
    } else {
        s->has_failed = true;
    }
}

static void push_decomposed(stretch *s, uint32_t code) {
    uint32_t syllable = code - HANGUL;
    if (syllable < HANGUL_LS * HANGUL_VS * HANGUL_TS) {
        push(s, HANGUL_L + syllable / (HANGUL_VS * HANGUL_TS));
        push(s, HANGUL_V + syllable / HANGUL_TS % HANGUL_VS);
        if (syllable % HANGUL_TS) push(s, HANGUL_T + syllable % HANGUL_TS);
        return;
    }
    const hy_unicode_pair *pair =
        row_of(hy_unicode_decomposition, HY_UNICODE_DECOMPOSITIONS, sizeof *pair, code);
    if (!pair || pair->code != code) {
        push(s, code);
        return;
    }
    push_decomposed(s, pair->first); /* second parts do not decompose further, except marks */
    if (pair->second) push_decomposed(s, pair->second);
}

/* A stable merge sort by combining class, so that a million marks in a row do not take quadratic
 * time. `room` has as many entries as there are codes. */
static void sort_marks(uint32_t *codes, size_t count, uint32_t *room) {
    if (count < 2) return;
    size_t half = count / 2, i = 0, j = half, k = 0;
    sort_marks(codes, half, room);
    sort_marks(codes + half, count - half, room);
    while (i < half && j < count) {
        bool takes_second = codes[j] >> MARK_SHIFT < codes[i] >> MARK_SHIFT;
        room[k++] = takes_second ? codes[j++] : codes[i++];
    }
    while (i < half) room[k++] = codes[i++];
    memcpy(codes, room, k * sizeof *codes);
}

static bool order_marks(stretch *s) {
    uint32_t *room = NULL;
    for (size_t i = 0; i < s->count;) {
        size_t end = i + 1;
        bool is_mark = s->codes[i] >> MARK_SHIFT;
        while (is_mark && end < s->count && s->codes[end] >> MARK_SHIFT) end++;
        if (end - i > 1) {
            if (!room) room = malloc(s->count * sizeof *room);
            if (!room) return false;
            sort_marks(s->codes + i, end - i, room);
        }
        i = end;
    }
    free(room);
    return true;
}

static void add_code(hy_text *out, uint32_t code) {
    char bytes[4];
    hy_text_add_bytes(out, bytes, (size_t)hy_utf8_encode(code, bytes));
}

/* Adds well-formed text, normalised; s is empty before and after. */
static void add_stretch(hy_text *out, stretch *s, const char *text, size_t size) {
    for (size_t i = 0; i < size;) {
        uint32_t code;
        i += hy_unicode_next(text + i, size - i, &code);
        push_decomposed(s, code);
    }
    if (s->has_failed || !order_marks(s)) {
        out->has_failed = true;
        return;
    }
    /* Join each character with the starter before it unless something between them blocks it: a
     * starter, or a mark of the same or a higher class. */
    size_t kept = 0, starter = SIZE_MAX;
    uint32_t last_class = 0; /* class of the last kept character after the starter */
    for (size_t i = 0; i < s->count; i++) {
        uint32_t code = s->codes[i] & CODE_MASK, class = s->codes[i] >> MARK_SHIFT;
        bool touches = starter != SIZE_MAX && starter + 1 == kept;
        bool is_open = starter != SIZE_MAX && (touches || (last_class != 0 && last_class < class));
        uint32_t made = is_open ? compose(s->codes[starter] & CODE_MASK, code) : 0;
        if (made) {
            s->codes[starter] = made; /* a character composed with a starter is a starter */
            continue;
        }
        if (class == 0) starter = kept;
        last_class = class;
        s->codes[kept++] = s->codes[i];
    }
    s->count = kept;
    for (size_t i = 0; i < s->count; i++) add_code(out, s->codes[i] & CODE_MASK);
    s->count = 0;
}

void hy_unicode_add_nfc(hy_text *out, const char *text, size_t size) {
    stretch s = {0};
    size_t done = 0,
           before = 0; /* text before `done` is written; `before`: start of the last character */
    for (size_t i = 0; i < size;) {
        uint32_t code;
        size_t length = hy_unicode_next(text + i, size - i, &code);
        if (code < PLAIN_END || code == HY_UNICODE_STRAY) {
            /* nothing combines with an invalid byte */
            before = code == HY_UNICODE_STRAY ? i + 1 : i;
            i += length;
            continue;
        }
        size_t from = before > done ? before : done, end = i;
        while (end < size) {
            size_t more = hy_unicode_next(text + end, size - end, &code);
            if (code < PLAIN_END || code == HY_UNICODE_STRAY) break;
            end += more;
        }
        hy_text_add_bytes(out, text + done, from - done);
        add_stretch(out, &s, text + from, end - from);
        done = before = i = end;
    }
    hy_text_add_bytes(out, text + done, size - done);
    free(s.codes);
}

/* ---- lower case ------------------------------------------------------------------------------ */

static uint32_t lower_of(uint32_t code) {
    if (code < 0x80) return code >= 'A' && code <= 'Z' ? code + 32 : code;
    const hy_unicode_case *run =
        row_of(hy_unicode_lower_run, HY_UNICODE_LOWER_RUNS, sizeof *run, code);
    bool is_hit = run && code <= run->last && (code - run->first) % (uint32_t)run->step == 0;
    return is_hit ? (uint32_t)((int32_t)code + run->distance) : code;
}

void hy_unicode_add_lower(hy_text *out, const char *text, size_t size) {
    for (size_t i = 0; i < size;) {
        uint32_t code;
        size_t length = hy_unicode_next(text + i, size - i, &code);
        if (code == HY_UNICODE_STRAY) {
            hy_text_add_bytes(out, text + i, 1);
        } else if (code == 0x130) { /* capital I with a dot: the only one that becomes two */
            hy_text_add(out, "i\xCC\x87");
        } else {
            add_code(out, lower_of(code));
        }
        i += length;
    }
}
