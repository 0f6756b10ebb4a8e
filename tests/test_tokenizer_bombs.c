/* test_tokenizer_bombs.c: a malicious tokenizer cannot use up time or memory.
 *
 * Patterns with exponentially many matches, steps that multiply a text, thousands of tokens with a
 * common beginning: each ends soon, with the ids or with an error that names the file. Time limits
 * are wide: without the protection these cases took half a minute or more. */
#include <sys/resource.h>

#include "tokenizer_rig.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"

#define SPLIT(pattern)                                                                             \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"        \
    "\"" pattern "\"},\"behavior\":\"Isolated\",\"invert\":false},"                                \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}"

/* Encodes `size` bytes of 'a'; within `seconds` and 200 MB. */
static hy_status encode_as(const hy_tokenizer *t, size_t size, double seconds, size_t *count) {
    char *text = malloc(size);
    hy_ids ids = {0};
    struct rusage use;
    memset(text, 'a', size);
    double began = hy_clock();
    hy_status status = hy_tokenizer_encode(t, text, size, 0, &ids);
    double took = hy_clock() - began;
    ck_assert_msg(took < seconds, "%.2f s", took);
    getrusage(RUSAGE_SELF, &use);
    ck_assert_msg(use.ru_maxrss < 200 * 1024, "%ld KiB", use.ru_maxrss);
    *count = ids.count;
    hy_ids_free(&ids);
    free(text);
    return status;
}

#ifdef HY_HAS_PCRE2
START_TEST(nested_repetitions_end_with_an_error) {
    static const char *const patterns[] = {SPLIT("(a+)+(?:c|d)"), SPLIT("(a|aa)+$b"),
                                           SPLIT("(?:a*)*[cd]"), SPLIT("((a+)*)*\\\\1[cd]"),
                                           SPLIT("(?:(a+)(a+)(a+))+(?!a)[bc]")};
    hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){.pre_tokenizer = patterns[_i]});
    size_t count;
    ck_assert_int_eq(encode_as(t, 9000, 10, &count), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "t.json: splitting the text by the pattern"));
    hy_tokenizer_close(t);
}
END_TEST

START_TEST(verbs_in_a_pattern_are_refused) {
    static const char *const patterns[] = {SPLIT("(*NO_JIT)(a+)+c"),
                                           SPLIT("(*LIMIT_MATCH=4000000000)a|b"),
                                           SPLIT("a(*COMMIT)b"), SPLIT("\\\\((?:(*NUL)x)")};
    hy_tokenizer *t;
    ck_assert_int_eq(parse_parts(&(tokenizer_parts){.pre_tokenizer = patterns[_i]}, &t),
                     HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "t.json: the pattern of pre_tokenizer has a "
                                                     "verb (*...)"));
}
END_TEST

/* What looks like a verb and is none. */
START_TEST(brackets_and_escapes_are_no_verbs) {
    hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){.pre_tokenizer = SPLIT("\\\\(*x|[(*]+|a")});
    must_encode(t, "a((", "97 40 40");
    hy_tokenizer_close(t);
}
END_TEST

/* A match is sought in a window of the text first: the result is that of the whole text. */
START_TEST(matches_longer_than_a_window_are_found_whole) {
    static const struct {
        const char *pattern;
        size_t run; /* of 'y', then ten 'x' and a 'z' */
        size_t from, begin, end;
    } rows[] = {
        {"y+x", 5000, 0, 0, 5001},           {"x+|(?!y)", 256, 0, 256, 266},
        {"x+|(?!y)", 300, 0, 300, 310},      {"x+|(?!y)", 1024, 700, 1024, 1034},
        {"y{300}|x", 299, 0, 299, 300},      {"y{300}|x", 301, 0, 0, 300},
        {"y+(?=x)", 256, 0, 0, 256},         {"y+(?!x)", 256, 0, 0, 255},
        {"(?<=y{3})x", 1000, 0, 1000, 1001}, {"(?:yy)+x", 3000, 1, 2, 3001},
        {"z$", 4000, 0, 4010, 4011},         {"y*?x{10}z", 20000, 0, 0, 20011},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hy_pattern *pattern;
        size_t size = rows[i].run + 11, begin = 0, end = 0;
        char *text = malloc(size);
        bool found = false;
        memset(text, 'y', size);
        memset(text + rows[i].run, 'x', 10);
        text[size - 1] = 'z';
        must(hy_pattern_compile(rows[i].pattern, "t", &pattern));
        void *state = hy_pattern_state(pattern);
        uint64_t steps = hy_allowance_of("t", size).steps;
        must(hy_pattern_find(pattern, state, text, size, rows[i].from, &steps, &found, &begin,
                             &end));
        ck_assert_msg(found && begin == rows[i].begin && end == rows[i].end,
                      "%s: %zu .. %zu instead of %zu .. %zu", rows[i].pattern, begin, end,
                      rows[i].begin, rows[i].end);
        hy_pattern_state_free(state);
        hy_pattern_free(pattern);
        free(text);
    }
}
END_TEST
#endif

START_TEST(steps_that_multiply_a_text_end_with_an_error) {
    char many[10001];
    hy_text steps = {0};
    size_t count;
    memset(many, 'a', 10000);
    many[10000] = '\0';
    const char *const forms[] = {
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
        "\"a\"},"
        "\"content\":\"%1$s\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":"
        "\"%1$s\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"%1$s\"}]}",
        "{\"type\":\"Prepend\",\"prepend\":\"%1$s\"}",
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true}"
        ","
        "{\"type\":\"Metaspace\",\"replacement\":\"%1$s\",\"prepend_scheme\":\"always\"}]}"};
    hy_text_addf(&steps, forms[_i], many);
    tokenizer_parts parts = {.normalizer = _i < 2 ? steps.data : NULL,
                             .pre_tokenizer = _i == 2 ? steps.data : NULL};
    hy_tokenizer *t = tokenizer_of(&parts);
    ck_assert_int_eq(encode_as(t, 50, 2, &count), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "t.json: normalizer and pre_tokenizer write"));
    hy_tokenizer_close(t);
    hy_text_free(&steps);
}
END_TEST

START_TEST(a_decoder_may_not_multiply_a_token) {
    char many[10001];
    hy_text decoder = {0}, out = {0};
    memset(many, 'b', 10000);
    many[10000] = '\0';
    hy_text_addf(&decoder,
                 "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"%s\"}", many);
    hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){.decoder = decoder.data});
    ck_assert_int_eq(hy_tokenizer_decode(t, (int32_t[]){98, 97}, 2, 0, &out), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(
        strstr(hy_error_message(), "t.json: the decoder enlarges the text more than"));
    hy_tokenizer_close(t);
    hy_text_free(&decoder);
    hy_text_free(&out);
}
END_TEST

START_TEST(tokens_of_more_than_64_kib_are_refused) {
    hy_text added = {0};
    hy_tokenizer *t;
    hy_text_add(&added, "{\"id\":256,\"content\":\"");
    for (int i = 0; i < 65537; i++) hy_text_add(&added, "x");
    hy_text_add(&added, "\"}");
    ck_assert_int_eq(parse_parts(&(tokenizer_parts){.added = added.data}, &t), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "has 65537 bytes"));
    hy_text_free(&added);
}
END_TEST

/* "ab", "aab", "aaab", ...: each place of a text of 'a' begins all of them and ends none. */
START_TEST(thousands_of_added_tokens_cost_one_pass) {
    hy_text added = {0};
    char many[3001];
    size_t count;
    memset(many, 'a', 3000);
    for (int i = 0; i < 3000; i++) {
        hy_text_addf(&added, "%s{\"id\":%d,\"content\":\"%.*sb\",\"normalized\":%s}", i ? "," : "",
                     256 + i, i + 1, many, _i ? "true" : "false");
    }
    hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){
        .added = added.data,
        .pre_tokenizer =
            "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"});
    must(encode_as(t, 200000, 1, &count));
    ck_assert_uint_eq(count, 200000);
    hy_tokenizer_close(t);
    hy_text_free(&added);
}
END_TEST

/* The first place and there the longest, looked for plainly; of texts that hold parts of tokens. */
START_TEST(the_automaton_finds_what_a_plain_search_finds) {
    for (uint64_t n = 0; n < 3000; n++) {
        hy_added tokens[12];
        char bytes[12][8], text[600];
        uint64_t at = 0;
#define DRAW(range) (size_t)(hy_rng_u64(n, 7, at++) % (range))
        size_t count = 1 + DRAW(12), size = DRAW(sizeof text), letters = 2 + DRAW(2);
        for (size_t i = 0; i < count; i++) {
            tokens[i] = (hy_added){.text = bytes[i],
                                   .size = 1 + DRAW(n % 3 ? 8 : 3),
                                   .id = (int32_t)i,
                                   .is_special = DRAW(4) == 0};
            for (size_t k = 0; k < tokens[i].size; k++) bytes[i][k] = (char)('a' + DRAW(letters));
        }
        for (size_t i = 0; i < size; i++) text[i] = (char)('a' + DRAW(letters + 1));
        bool without_special = n % 2;
        hy_added_set set;
        hy_added_search search = {0};
        must(hy_added_set_init(&set, tokens, count, false));
        for (size_t from = 0;;) {
            const hy_added *expected = NULL;
            size_t place = from;
            for (; place < size && !expected; place++) {
                for (size_t i = 0; i < count; i++) {
                    bool is_here = tokens[i].size <= size - place &&
                                   memcmp(text + place, tokens[i].text, tokens[i].size) == 0;
                    if (!is_here || (expected && expected->size >= tokens[i].size)) continue;
                    expected = &tokens[i];
                }
                if (!expected || !(expected->is_special && without_special)) continue;
                place += expected->size - 1; /* it covers its text */
                expected = NULL;
            }
            hy_added_match match;
            must(hy_added_find(&set, &search, text, size, from, without_special, &match));
            ck_assert_msg(!match.token == !expected, "text %llu", (unsigned long long)n);
            if (!expected) break;
            ck_assert_uint_eq(match.begin, place - 1);
            ck_assert_int_eq(match.token->id, expected->id);
            from = match.end;
        }
        hy_added_set_fini(&set);
        free(search.longest);
    }
}
END_TEST

static Suite *bombs_suite(void) {
    Suite *suite = suite_create("tokenizer_bombs");
    TCase *bombs = tcase_create("bombs");
#ifdef HY_HAS_PCRE2
    tcase_add_loop_test(bombs, nested_repetitions_end_with_an_error, 0, 5);
    tcase_add_loop_test(bombs, verbs_in_a_pattern_are_refused, 0, 4);
    tcase_add_test(bombs, brackets_and_escapes_are_no_verbs);
    tcase_add_test(bombs, matches_longer_than_a_window_are_found_whole);
#endif
    tcase_add_loop_test(bombs, steps_that_multiply_a_text_end_with_an_error, 0, 3);
    tcase_add_test(bombs, a_decoder_may_not_multiply_a_token);
    tcase_add_test(bombs, tokens_of_more_than_64_kib_are_refused);
    tcase_add_loop_test(bombs, thousands_of_added_tokens_cost_one_pass, 0, 2);
    tcase_add_test(bombs, the_automaton_finds_what_a_plain_search_finds);
    suite_add_tcase(suite, bombs);
    return suite;
}

HY_TEST_MAIN(bombs_suite)
