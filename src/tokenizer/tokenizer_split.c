/* tokenizer_split.c: hand-written splitters for the patterns of GPT-2, Llama 3 and Qwen.
 *
 * Each function returns the length of the word that the pattern matches at the beginning of a text;
 * alternatives are tried in the order of the pattern. All three patterns match at every position,
 * so a text is split by repeated calls. Invalid UTF-8 bytes count as punctuation. */

#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

const char hy_pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char pattern_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char pattern_qwen[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* ---- characters ------------------------------------------------------------------------------ */

static inline bool is_ascii_letter(uint8_t byte) { return (uint8_t)((byte | 32) - 'a') < 26; }

/* Class and length of the character at `at`, which must be inside the text. */
static inline hy_unicode_class class_at(const char *text, size_t size, size_t at, size_t *length) {
    uint8_t byte = (uint8_t)text[at];
    *length = 1;
    if (is_ascii_letter(byte)) return HY_UNICODE_LETTER;
    if ((uint8_t)(byte - '0') < 10) return HY_UNICODE_NUMBER;
    if (byte == ' ' || (uint8_t)(byte - 9) < 5) return HY_UNICODE_SPACE;
    if (byte < 0x80) return HY_UNICODE_OTHER;
    uint32_t code;
    *length = hy_unicode_next(text + at, size - at, &code);
    return hy_unicode_class_of(code);
}

/* The end of the run of characters of one class that begins at `at`. */
static inline size_t run_end(const char *text, size_t size, size_t at, hy_unicode_class class) {
    if (class == HY_UNICODE_LETTER) { /* most bytes of most texts are ASCII letters */
        while (at < size && is_ascii_letter((uint8_t)text[at])) at++;
    }
    for (size_t length; at < size; at += length) {
        if (class_at(text, size, at, &length) != class) break;
    }
    return at;
}

static inline bool is_newline(char c) { return c == '\n' || c == '\r'; }

/* ---- common parts of the patterns ------------------------------------------------------------ */

/* The length of 's 't 're 've 'm 'll 'd at an apostrophe; 0: none. */
static size_t contraction(const char *text, size_t size, bool any_case) {
    if (size < 2) return 0;
    uint8_t fold = any_case ? 32 : 0;
    char a = text[1];
    if (any_case && is_ascii_letter((uint8_t)a)) a = (char)(a | fold);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (size < 3) return 0;
    /* The long s is the only letter outside ASCII that equals one of these if case is ignored. */
    if (any_case && (uint8_t)text[1] == 0xC5 && (uint8_t)text[2] == 0xBF) return 3;
    char b = text[2];
    if (any_case && is_ascii_letter((uint8_t)b)) b = (char)(b | fold);
    bool is_long = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
    return is_long ? 3 : 0;
}

/* \s+(?!\S)|\s+: a run of blanks; the last one is left to the following word if there are
 * several. */
static size_t blanks(const char *text, size_t size, size_t end) {
    if (end == size) return end;
    uint32_t code;
    size_t last = hy_unicode_previous(text, end, &code);
    return end > last ? end - last : end;
}

/* ---- GPT-2 ----------------------------------------------------------------------------------- */

static size_t split_gpt2(const char *text, size_t size) {
    size_t length, at = 0;
    if (text[0] == '\'') {
        size_t bytes = contraction(text, size, false);
        if (bytes) return bytes;
    }
    if (text[0] == ' ' && size > 1) at = 1;
    hy_unicode_class class = class_at(text, size, at, &length);
    if (class != HY_UNICODE_SPACE) return run_end(text, size, at + length, class);
    return blanks(text, size, run_end(text, size, at + length, class));
}

/* ---- Llama 3 and Qwen ------------------------------------------------------------------------ */

static size_t numbers(const char *text, size_t size, int most) {
    size_t at = 0, length;
    for (int i = 0; i < most && at < size; i++, at += length) {
        if (class_at(text, size, at, &length) != HY_UNICODE_NUMBER) break;
    }
    return at;
}

/* [^\s\p{L}\p{N}]+[\r\n]* at `at`. */
static size_t punctuation(const char *text, size_t size, size_t at) {
    at = run_end(text, size, at, HY_UNICODE_OTHER);
    while (at < size && is_newline(text[at])) at++;
    return at;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t lines_or_blanks(const char *text, size_t size) {
    size_t end = run_end(text, size, 0, HY_UNICODE_SPACE);
    for (size_t i = end; i > 0; i--) {
        if (is_newline(text[i - 1])) return i;
    }
    return blanks(text, size, end);
}

static inline size_t split_modern(const char *text, size_t size, int digits) {
    if (text[0] == '\'') {
        size_t bytes = contraction(text, size, true);
        if (bytes) return bytes;
    }
    size_t length, more;
    hy_unicode_class class = class_at(text, size, 0, &length);
    if (class == HY_UNICODE_LETTER) return run_end(text, size, length, class);
    if (class == HY_UNICODE_NUMBER) return numbers(text, size, digits);
    if (length < size && !is_newline(text[0])) {
        hy_unicode_class following = class_at(text, size, length, &more);
        if (following == HY_UNICODE_LETTER) return run_end(text, size, length + more, following);
        if (text[0] == ' ' && following == HY_UNICODE_OTHER) return punctuation(text, size, 1);
    }
    return class == HY_UNICODE_OTHER ? punctuation(text, size, 0) : lines_or_blanks(text, size);
}

static size_t split_llama3(const char *text, size_t size) { return split_modern(text, size, 3); }
static size_t split_qwen(const char *text, size_t size) { return split_modern(text, size, 1); }

hy_splitter hy_splitter_of(const char *pattern) {
    if (strcmp(pattern, hy_pattern_gpt2) == 0) return split_gpt2;
    if (strcmp(pattern, pattern_llama3) == 0) return split_llama3;
    if (strcmp(pattern, pattern_qwen) == 0) return split_qwen;
    return NULL;
}
