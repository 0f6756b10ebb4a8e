/* tokenizer_rig.h: small tokenizers for tests, written as JSON with parts that can be replaced. */
#ifndef HY_TESTS_TOKENIZER_RIG_H
#define HY_TESTS_TOKENIZER_RIG_H

#include "harness.h"

#include "base/rng.h"
#include "base/text.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer_parts.h"

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define BLANK "\xE2\x96\x81"

typedef struct tokenizer_parts {
    const char *normalizer, *pre_tokenizer, *decoder, *post_processor; /* NULL: null */
    const char *added;    /* elements of added_tokens; NULL: none */
    const char *vocab;    /* further members of vocab, each begun by a comma */
    const char *merges;   /* elements */
    const char *settings; /* further members of model, each begun by a comma */
    const char *members;  /* further members of the whole, each begun by a comma */
} tokenizer_parts;

/* Bytes in the printable alphabet are ids 0 to 255; then come the tokens of `vocab`. */
static inline void write_byte_level(hy_text *out, const tokenizer_parts *p) {
    hy_text_addf(out, "{\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,",
                 p->added ? p->added : "", p->normalizer ? p->normalizer : "null",
                 p->pre_tokenizer ? p->pre_tokenizer : "null");
    hy_text_addf(out, "\"decoder\":%s,\"post_processor\":%s,\"model\":{\"type\":\"BPE\"%s,",
                 p->decoder ? p->decoder : "null", p->post_processor ? p->post_processor : "null",
                 p->settings ? p->settings : "");
    hy_text_add(out, "\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        char spelled[5] = "";
        hy_utf8_encode(hy_byte_spelling((uint8_t)i), spelled);
        bool is_escaped = i == '"' || i == '\\';
        hy_text_addf(out, "%s\"%s%s\":%d", i ? "," : "", is_escaped ? "\\" : "", spelled, i);
    }
    hy_text_addf(out, "%s},\"merges\":[%s]}%s}", p->vocab ? p->vocab : "",
                 p->merges ? p->merges : "", p->members ? p->members : "");
}

static inline hy_status parse_parts(const tokenizer_parts *p, hy_tokenizer **out) {
    hy_text json = {0};
    write_byte_level(&json, p);
    hy_status status = hy_tokenizer_parse(json.data, json.size, "t.json", out);
    hy_text_free(&json);
    return status;
}

static inline hy_tokenizer *tokenizer_of(const tokenizer_parts *p) {
    hy_tokenizer *t = NULL;
    must(parse_parts(p, &t));
    return t;
}

/* Ids as "1 2 3". */
static inline const char *encoded(const hy_tokenizer *t, const char *text, size_t size, int flags) {
    static char line[65536];
    hy_ids ids = {0};
    size_t used = 0;
    line[0] = '\0';
    must(hy_tokenizer_encode(t, text, size, flags, &ids));
    for (size_t i = 0; i < ids.count && used + 16 < sizeof line; i++) {
        used += (size_t)sprintf(line + used, "%s%d", i ? " " : "", (int)ids.data[i]);
    }
    hy_ids_free(&ids);
    return line;
}

#define must_encode(t, text, expected) ck_assert_str_eq(encoded(t, text, strlen(text), 0), expected)

/* Encodes, decodes, and demands the same bytes. */
static inline void must_come_back(const hy_tokenizer *t, const char *text, size_t size) {
    hy_ids ids = {0};
    hy_text back = {0};
    must(hy_tokenizer_encode(t, text, size, 0, &ids));
    must(hy_tokenizer_decode(t, ids.data, ids.count, 0, &back));
    ck_assert_uint_eq(back.size, size);
    ck_assert(memcmp(hy_text_string(&back), text, size) == 0);
    hy_ids_free(&ids);
    hy_text_free(&back);
}

/* Where the tree of one tokenizer stands in the file: an object is written whole, so it ends where
 * its braces close outside strings. */
static inline size_t object_size(const char *text) {
    size_t depth = 0, i = 0;
    bool is_string = false;
    do {
        if (is_string && text[i] == '\\') {
            i += 2;
            continue;
        }
        if (text[i] == '"') is_string = !is_string;
        if (!is_string) depth += (text[i] == '{') - (text[i] == '}');
        i++;
    } while (depth > 0);
    return i;
}

/* Text of pieces that patterns treat differently. */
static inline size_t random_text(char *out, size_t room, uint64_t number) {
    static const char *const pieces[] = {"a",
                                         "Zz",
                                         " ",
                                         "  ",
                                         "\n",
                                         "\r\n",
                                         "\t",
                                         "1",
                                         "23",
                                         "4567",
                                         "'s",
                                         "'LL",
                                         "'ve",
                                         "'\xC5\xBF",
                                         "'",
                                         "!?",
                                         "_",
                                         "\xC3\xA9",
                                         "e\xCC\x81",
                                         "\xE6\x97\xA5",
                                         "\xC2\xA0",
                                         "\xE3\x80\x80",
                                         "\xC2\xBD",
                                         "\xF0\x9F\xA6\x99",
                                         "\xE2\x96\x81",
                                         "don't",
                                         " the",
                                         "\x80",
                                         "\xE2\x96",
                                         "...\n",
                                         "\xE1\xA0\x8E",
                                         "\xD0\x96"};
    size_t size = 0, count = hy_rng_below(number, HY_RNG_TEST, 0, 40);
    for (size_t i = 0; i < count; i++) {
        const char *piece =
            pieces[hy_rng_below(number, HY_RNG_TEST, i + 1, sizeof pieces / sizeof pieces[0])];
        if (size + strlen(piece) > room) break;
        memcpy(out + size, piece, strlen(piece));
        size += strlen(piece);
    }
    return size;
}

/* A file of the real tokenizers and their tests. */
static inline bool real_file(char path[1024], const char *name) {
    const char *data = getenv("HYBRID_DATA");
    if (data && *data) {
        snprintf(path, 1024, "%s/%s", data, name);
    } else {
        snprintf(path, 1024, HY_SOURCE_DIR "/../shared/data/%s", name);
    }
    if (hy_path_exists(path)) return true;
    printf("skipped: no %s in HYBRID_DATA or ../shared/data\n", name);
    return false;
}

#endif
