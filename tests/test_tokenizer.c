/* test_tokenizer.c: ids against those of others: golden files, and the real tokenizers where they
 * are; and that every way to the ids gives the same ones.
 *
 * tests/golden/tokenizers.json holds small tokenizers of each family with ids and texts that
 * Hugging Face's tokenizers gave (make_tokenizers.py). Real ones are looked for in $HYBRID_DATA,
 * then in ../shared/data beside the sources. */
#include "tokenizer_rig.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/json.h"

/* ---- golden ---------------------------------------------------------------------------------- */

static bool is_row(const hy_json_node *row, const hy_ids *ids) {
    size_t i = 0;
    if (hy_json_size(row) != ids->count) return false;
    for (row = hy_json_first(row); row; row = hy_json_next(row), i++) {
        int64_t id;
        if (!hy_json_as_int(row, &id) || id != ids->data[i]) return false;
    }
    return true;
}

static void check_case(const hy_tokenizer *t, const char *name, const hy_json_node *text_node,
                       const hy_json_node *expected) {
    const char *text, *back;
    size_t size, back_size;
    hy_ids ids = {0};
    hy_text decoded = {0};
    ck_assert(hy_json_as_string(text_node, &text, &size));
    ck_assert(hy_json_as_string(hy_json_next(hy_json_first(expected)), &back, &back_size));
    must(hy_tokenizer_encode(t, text, size, 0, &ids));
    ck_assert_msg(is_row(hy_json_first(expected), &ids), "%s: other ids for \"%s\"", name, text);
    must(hy_tokenizer_decode(t, ids.data, ids.count, 0, &decoded));
    bool is_same =
        decoded.size == back_size && memcmp(hy_text_string(&decoded), back, back_size) == 0;
    ck_assert_msg(is_same, "%s: \"%s\" came back as \"%s\"", name, back, hy_text_string(&decoded));
    hy_ids_free(&ids);
    hy_text_free(&decoded);
}

START_TEST(every_family_gives_the_golden_ids_and_texts) {
    const char *path = HY_SOURCE_DIR "/tests/golden/tokenizers.json";
    char *file;
    size_t size, checked = 0;
    hy_json *json;
    must(hy_file_read(path, &file, &size));
    must(hy_json_parse(file, size, path, &json));
    const hy_json_node *texts = hy_json_get(hy_json_root(json), "texts");
    const hy_json_node *set = hy_json_first(hy_json_get(hy_json_root(json), "tokenizers"));
    const char *at = file;
    for (; set; set = hy_json_next(set)) {
        const char *name;
        hy_tokenizer *t = NULL;
        ck_assert(hy_json_as_string(hy_json_get(set, "name"), &name, NULL));
        at = strstr(at, "\"tokenizer\":{") + strlen("\"tokenizer\":");
        must(hy_tokenizer_parse(at, object_size(at), name, &t));
        const hy_json_node *text = hy_json_first(texts);
        const hy_json_node *expected = hy_json_first(hy_json_get(set, "cases"));
        for (; expected; expected = hy_json_next(expected), text = hy_json_next(text), checked++) {
            check_case(t, name, text, expected);
        }
        hy_ids around = {0};
        must(hy_tokenizer_encode(t, "a", 1, HY_TOKENS_SPECIAL, &around));
        ck_assert_msg(is_row(hy_json_get(set, "around"), &around), "%s: other template", name);
        hy_ids_free(&around);
        hy_tokenizer_close(t);
    }
    ck_assert_uint_ge(checked, 400);
    hy_json_free(json);
    free(file);
}
END_TEST

/* ---- real tokenizers ------------------------------------------------------------------------- */

static const struct {
    const char *tests, *tokenizer;
    int32_t vocab, bos, eos;
} real[] = {
    {"gpt-2", "gpt2", 50257, 50256, 50256},
    {"llama-bpe", "llama3", 128256, 128000, 128001},
    {"llama-spm", "llama2", 32001, 1, 2},
};

START_TEST(difficult_strings_give_the_expected_ids_and_come_back) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[1024], name[128];
    char *texts, *ids;
    size_t size;
    hy_tokenizer *t;
    snprintf(name, sizeof name, "tokenizers/%s", real[_i].tokenizer);
    if (!real_file(path, name)) return;
    must(hy_tokenizer_open(path, &t));
    ck_assert_int_eq(hy_tokenizer_vocab(t), real[_i].vocab);
    ck_assert_int_eq(hy_tokenizer_bos(t), real[_i].bos);
    ck_assert_int_eq(hy_tokenizer_eos(t), real[_i].eos);
    snprintf(name, sizeof name, "tokenizer-tests/ggml-vocab-%s.gguf.inp", real[_i].tests);
    ck_assert(real_file(path, name));
    must(hy_file_read(path, &texts, &size));
    memcpy(path + strlen(path) - 3, "out", 3);
    must(hy_file_read(path, &ids, &size));
    char *text = texts, *line = ids;
    int cases = 0;
    for (char *end; text; text = end ? end + strlen(separator) : NULL, cases++) {
        end = strstr(text, separator);
        size_t length = end ? (size_t)(end - text) : strlen(text);
        char *line_end = strchr(line, '\n');
        if (line_end) *line_end = '\0';
        while (*line == ' ') line++;
        ck_assert_str_eq(encoded(t, text, length, 0), line);
        must_come_back(t, text, length);
        line = line_end + 1;
    }
    ck_assert_int_eq(cases, 47);
    free(texts);
    free(ids);
    hy_tokenizer_close(t);
}
END_TEST

/* ---- one way or the other -------------------------------------------------------------------- */

#ifdef HY_HAS_PCRE2
static bool is_utf8(const char *text, size_t size) {
    for (size_t i = 0; i < size;) {
        int length = hy_utf8_length((const uint8_t *)text + i, size - i);
        if (length == 0) return false;
        i += (size_t)length;
    }
    return true;
}

START_TEST(hand_written_splitters_split_as_their_patterns_say) {
    static const char *const patterns[] = {
        hy_pattern_gpt2,
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"};
    hy_splitter splitter = hy_splitter_of(patterns[_i]);
    hy_pattern *pattern;
    ck_assert(splitter != NULL);
    must(hy_pattern_compile(patterns[_i], "t", &pattern));
    void *state = hy_pattern_state(pattern);
    for (uint64_t n = 0; n < 20000; n++) {
        char text[512];
        size_t size = random_text(text, sizeof text, n), at = 0;
        if (!is_utf8(text, size)) continue; /* the pattern never matches stray bytes */
        while (at < size) {
            size_t begin, end, length = splitter(text + at, size - at);
            bool found;
            uint64_t steps = UINT64_MAX;
            must(hy_pattern_find(pattern, state, text, size, at, &steps, &found, &begin, &end));
            ck_assert_msg(found && begin == at && end == at + length,
                          "text %llu at %zu: %zu bytes, the pattern says %zu",
                          (unsigned long long)n, at, length, end - begin);
            at = end;
        }
    }
    hy_pattern_state_free(state);
    hy_pattern_free(pattern);
}
END_TEST
#endif

/* Merging done the slow and plain way. */
static size_t merge_plainly(const hy_merges *merges, int32_t *ids, size_t count) {
    for (;;) {
        const hy_merge *best = NULL;
        size_t where = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            const hy_merge *m = hy_merges_find(merges, ids[i], ids[i + 1]);
            if (!m || (best && m->rank >= best->rank)) continue;
            best = m;
            where = i;
        }
        if (!best) return count;
        ids[where] = best->id;
        count--;
        memmove(ids + where + 1, ids + where + 2, (count - where - 1) * sizeof *ids);
    }
}

START_TEST(long_and_short_words_merge_as_the_plain_way_does) {
    enum { WORD = 300 };
    for (uint64_t n = 0; n < 300; n++) {
        hy_merges merges;
        hy_merge_memory memory = {0};
        must(hy_merges_init(&merges, 64));
        for (uint32_t rank = 0; rank < 40; rank++) {
            int32_t left = (int32_t)hy_rng_below(n, HY_RNG_TEST, rank * 2, 4 + rank / 2);
            int32_t right = (int32_t)hy_rng_below(n, HY_RNG_TEST, rank * 2 + 1, 4 + rank / 2);
            hy_merges_put(&merges, left, right, rank, 4 + (int32_t)rank);
        }
        int32_t fast[WORD], plain[WORD];
        size_t count = 1 + hy_rng_below(n, HY_RNG_TEST, 1000, WORD - 1), fast_count = count;
        for (size_t i = 0; i < count; i++) {
            fast[i] = plain[i] = (int32_t)hy_rng_below(n, HY_RNG_TEST, 2000 + i, 4);
        }
        must(hy_merges_apply(&merges, fast, &fast_count, &memory));
        ck_assert_uint_eq(fast_count, merge_plainly(&merges, plain, count));
        ck_assert(memcmp(fast, plain, fast_count * sizeof *fast) == 0);
        free(memory.data);
        hy_merges_fini(&merges);
    }
}
END_TEST

static const tokenizer_parts doubling = {.pre_tokenizer = BYTE_LEVEL,
                                         .decoder = BYTE_LEVEL,
                                         .vocab = ",\"aa\":256,\"aaaa\":257,\"aaaaaaaa\":258",
                                         .merges = "\"a a\",\"aa aa\",\"aaaa aaaa\""};

START_TEST(a_word_of_a_megabyte_takes_well_under_a_second) {
    enum { SIZE = 1 << 20 };
    hy_tokenizer *t = tokenizer_of(&doubling);
    char *text = malloc(SIZE);
    hy_ids ids = {0};
    memset(text, 'a', SIZE);
    double began = hy_clock();
    must(hy_tokenizer_encode(t, text, SIZE, 0, &ids));
    double seconds = hy_clock() - began;
    ck_assert_uint_eq(ids.count, SIZE / 8);
    ck_assert_int_eq(ids.data[SIZE / 8 - 1], 258);
    ck_assert_msg(seconds < 10, "%.2f s: a quadratic way would take minutes", seconds);
    hy_ids_free(&ids);
    free(text);
    hy_tokenizer_close(t);
}
END_TEST

START_TEST(any_bytes_come_back) {
    hy_tokenizer *t = tokenizer_of(&doubling);
    char all[256];
    for (int i = 0; i < 256; i++) all[i] = (char)i;
    must_come_back(t, all, sizeof all);
    for (uint64_t n = 0; n < 3000; n++) {
        char text[512];
        must_come_back(t, text, random_text(text, sizeof text, n));
    }
    must_come_back(t, "", 0);
    hy_tokenizer_close(t);
}
END_TEST

START_TEST(parts_cut_at_the_given_places_have_the_ids_of_the_whole) {
    hy_tokenizer *t = tokenizer_of(&doubling);
    size_t cuts = 0;
    for (uint64_t n = 0; n < 3000; n++) {
        char text[512];
        hy_ids whole = {0}, parts = {0};
        size_t size = random_text(text, sizeof text, n), at = 0;
        must(hy_tokenizer_encode(t, text, size, 0, &whole));
        while (at < size) {
            size_t end = hy_tokenizer_cut(t, text, size, at + 1);
            ck_assert(end > at && end <= size);
            must(hy_tokenizer_encode(t, text + at, end - at, 0, &parts));
            cuts += end < size;
            at = end;
        }
        ck_assert_uint_eq(parts.count, whole.count);
        if (whole.count) ck_assert(memcmp(parts.data, whole.data, whole.count * 4) == 0);
        hy_ids_free(&whole);
        hy_ids_free(&parts);
    }
    ck_assert_uint_gt(cuts, 100);
    hy_tokenizer_close(t);
}
END_TEST

typedef struct encoder {
    pthread_t thread;
    const hy_tokenizer *tokenizer;
    uint64_t sum;
} encoder;

static void *encode_much(void *user) {
    encoder *e = user;
    for (uint64_t n = 0; n < 2000; n++) {
        char text[512];
        hy_ids ids = {0};
        size_t size = random_text(text, sizeof text, n);
        if (hy_tokenizer_encode(e->tokenizer, text, size, 0, &ids) != HY_OK) return NULL;
        for (size_t i = 0; i < ids.count; i++) e->sum = e->sum * 31 + (uint64_t)ids.data[i];
        hy_ids_free(&ids);
    }
    return NULL;
}

START_TEST(threads_share_one_tokenizer) {
    hy_tokenizer *t = tokenizer_of(&doubling);
    encoder encoders[4];
    for (int i = 0; i < 4; i++) {
        encoders[i] = (encoder){.tokenizer = t};
        ck_assert_int_eq(pthread_create(&encoders[i].thread, NULL, encode_much, &encoders[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(encoders[i].thread, NULL);
    ck_assert_uint_ne(encoders[0].sum, 0);
    for (int i = 1; i < 4; i++) ck_assert_uint_eq(encoders[i].sum, encoders[0].sum);
    hy_tokenizer_close(t);
}
END_TEST

static Suite *tokenizer_suite(void) {
    Suite *suite = suite_create("tokenizer");
    TCase *golden = tcase_create("golden"), *ways = tcase_create("ways");
    tcase_add_test(golden, every_family_gives_the_golden_ids_and_texts);
    tcase_add_loop_test(golden, difficult_strings_give_the_expected_ids_and_come_back, 0, 3);
    suite_add_tcase(suite, golden);
#ifdef HY_HAS_PCRE2
    tcase_add_loop_test(ways, hand_written_splitters_split_as_their_patterns_say, 0, 3);
#endif
    tcase_add_test(ways, long_and_short_words_merge_as_the_plain_way_does);
    tcase_add_test(ways, a_word_of_a_megabyte_takes_well_under_a_second);
    tcase_add_test(ways, any_bytes_come_back);
    tcase_add_test(ways, parts_cut_at_the_given_places_have_the_ids_of_the_whole);
    tcase_add_test(ways, threads_share_one_tokenizer);
    suite_add_tcase(suite, ways);
    return suite;
}

HY_TEST_MAIN(tokenizer_suite)
