/* test_generate_text.c: what of an answer's text is shown while it grows.
 *
 * Texts of letters, two-byte and four-byte characters come token by token: as bytes, and with a
 * tokenizer that has tokens of several characters and of parts of one. Stop texts of the same
 * letters begin and end anywhere. */
#include "harness.h"

#include "base/rng.h"
#include "base/utf8.h"
#include "generate/answer_text.h"

static uint64_t drawn;

static uint64_t draw(uint64_t below) { return hy_rng_below(3, HY_RNG_TEST, drawn++, below); }

static void draw_text(hy_text *out, uint64_t characters) {
    static const char *const alphabet[] = {"a", "b", "\xc3\xa9", "\xf0\x9f\x98\x80"};
    hy_text_clear(out);
    for (uint64_t i = 0; i < characters; i++) hy_text_add(out, alphabet[draw(4)]);
    hy_text_add(out, "");
}

/* A byte-level tokenizer with the tokens ab, ba, aba, the first two bytes of the face, and <s>. */
static void open_tokenizer(hy_codec *codec) {
    static const char *const merges[][2] = {{"a", "b"}, {"b", "a"}, {"ab", "a"}};
    hy_text json = {0};
    hy_text_add(&json,
                "{\"added_tokens\": [{\"id\": 300, \"content\": \"<s>\", \"special\": true}],"
                " \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                "\"add_prefix_space\": false, \"use_regex\": false}, \"decoder\": {\"type\": "
                "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (int byte = 0; byte < 256; byte++) {
        char letter[5] = "";
        letter[hy_utf8_encode(hy_byte_spelling((uint8_t)byte), letter)] = 0;
        const char *escape = strchr("\"\\", letter[0]) ? "\\" : "";
        hy_text_addf(&json, "%s\"%s%s\": %d", byte ? ", " : "", escape, letter, byte);
    }
    char two[10] = "";
    int size = hy_utf8_encode(hy_byte_spelling(0xf0), two);
    two[size + hy_utf8_encode(hy_byte_spelling(0x9f), two + size)] = 0;
    char one[5] = "";
    one[hy_utf8_encode(hy_byte_spelling(0xf0), one)] = 0;
    hy_text_addf(&json, ", \"ab\": 256, \"ba\": 257, \"aba\": 258, \"%s\": 259}, \"merges\": [",
                 two);
    for (int i = 0; i < 3; i++) hy_text_addf(&json, "\"%s %s\", ", merges[i][0], merges[i][1]);
    hy_text_addf(&json, "\"%s %s\"]}}", one, two + strlen(one));
    must(hy_tokenizer_parse(json.data, json.size, "a test", &codec->tokenizer));
    codec->vocab = 301;
    hy_text_free(&json);
}

typedef struct case_of_text {
    hy_codec codec;
    hy_task task;
    hy_stop_text stops[3];
    hy_text whole, stop_texts[3], shown;
    hy_ids ids;
} case_of_text;

static void draw_case(case_of_text *c) {
    draw_text(&c->whole, draw(25));
    c->task.stops = c->stops;
    c->task.stop_count = draw(4);
    for (size_t i = 0; i < c->task.stop_count; i++) {
        draw_text(&c->stop_texts[i], 1 + draw(5));
        c->stops[i] = (hy_stop_text){c->stop_texts[i].data, c->stop_texts[i].size};
    }
    c->ids.count = 0;
    must(hy_encode_text(c->codec.tokenizer, c->whole.data, c->whole.size, 0, &c->ids));
    hy_text_clear(&c->shown);
}

/* Where the first stop text in `size` bytes begins; `size` if there is none. */
static size_t first_stop(const case_of_text *c, size_t size) {
    for (size_t at = 0; at < size; at++) {
        for (size_t i = 0; i < c->task.stop_count; i++) {
            size_t length = c->stops[i].size;
            bool is_here =
                at + length <= size && !memcmp(c->whole.data + at, c->stops[i].text, length);
            if (is_here) return at;
        }
    }
    return size;
}

/* The first position from which the rest of `size` bytes may become a stop text, or which is inside
 * a character that is not complete. */
static size_t first_open(const case_of_text *c, size_t size) {
    for (size_t at = 0; at < size; at++) {
        const uint8_t *text = (const uint8_t *)c->whole.data + at;
        bool is_begin = (*text & 0xC0) != 0x80;
        if (is_begin && hy_utf8_length(text, size - at) == 0) return at;
        for (size_t i = 0; i < c->task.stop_count; i++) {
            size_t left = size - at;
            if (left < c->stops[i].size && !memcmp(text, c->stops[i].text, left)) return at;
        }
    }
    return size;
}

/* Shows what may be shown; returns whether a stop text follows. */
static bool show(case_of_text *c, hy_answer_text *text, bool is_last, size_t *tokens) {
    hy_ready_text ready = hy_answer_text_shown(text, is_last);
    hy_text_add_bytes(&c->shown, hy_text_string(&text->text), ready.bytes);
    for (size_t i = 0; i < ready.tokens; i++) {
        ck_assert_int_eq(text->tokens.chosen[i].token, c->ids.data[*tokens + i]);
    }
    *tokens += ready.tokens;
    hy_answer_text_drop(text, &ready);
    return ready.is_stopped;
}

/* The number of tokens whose text begins before `bytes`. */
static size_t tokens_before(const case_of_text *c, size_t bytes) {
    size_t at = 0, count = 0;
    for (; count < c->ids.count && at < bytes; count++) {
        hy_text text = {0};
        must(hy_decode_text(c->codec.tokenizer, c->ids.data + count, 1, 0, &text));
        at += text.size;
        hy_text_free(&text);
    }
    return count;
}

static void follow(case_of_text *c) {
    hy_answer_text text;
    int32_t start = 'x';
    size_t known = 0, tokens = 0;
    bool is_stopped = false;
    c->task.prompt = (hy_ids){.data = &start, .count = 1};
    must(hy_answer_text_init(&text, &c->codec, &c->task));
    for (size_t i = 0; i < c->ids.count && !is_stopped; i++) {
        hy_text piece = {0};
        must(hy_decode_text(c->codec.tokenizer, c->ids.data + i, 1, 0, &piece));
        known += piece.size;
        hy_text_free(&piece);
        must(hy_answer_text_add(&text, (hy_token_score){c->ids.data[i], 0}, NULL));
        is_stopped = show(c, &text, false, &tokens);
        size_t stop = first_stop(c, known), expected = stop < known ? stop : first_open(c, known);
        ck_assert_int_eq(is_stopped, stop < known);
        ck_assert_uint_eq(c->shown.size, expected);
        ck_assert_uint_eq(tokens, tokens_before(c, expected));
    }
    if (!is_stopped) {
        show(c, &text, true, &tokens);
        ck_assert_uint_eq(c->shown.size, c->whole.size);
        ck_assert_uint_eq(tokens, c->ids.count);
    }
    ck_assert_mem_eq(hy_text_string(&c->shown), c->whole.data, c->shown.size);
    hy_answer_text_fini(&text);
}

START_TEST(shown_is_all_that_cannot_become_a_stop_text_or_a_character) {
    case_of_text *c = calloc(1, sizeof *c);
    int stopped = 0;
    c->codec.vocab = 256;
    if (_i) open_tokenizer(&c->codec);
    for (int i = 0; i < 3000; i++) {
        draw_case(c);
        follow(c);
        stopped += c->shown.size < c->whole.size;
    }
    ck_assert(stopped > 300 && stopped < 2700); /* both happen */
    hy_tokenizer_close(c->codec.tokenizer);
    hy_text_free(&c->whole);
    hy_text_free(&c->shown);
    hy_ids_free(&c->ids);
    for (int i = 0; i < 3; i++) hy_text_free(&c->stop_texts[i]);
    free(c);
}
END_TEST

/* Special tokens, and ids that the tokenizer does not have, come with the text before them. */
START_TEST(tokens_without_text_are_shown_too) {
    hy_codec codec = {0};
    int32_t start = 'x';
    hy_stop_text stop = {(char[]){"ab"}, 2};
    hy_task task = {.prompt = {.data = &start, .count = 1}, .stops = &stop, .stop_count = 1};
    static const int32_t ids[] = {'b', 300, 'a', 300, 999, 'c'};
    static const size_t shown[] = {1, 1, 0, 0, 0, 4};
    hy_answer_text text;
    open_tokenizer(&codec);
    must(hy_answer_text_init(&text, &codec, &task));
    for (int i = 0; i < 6; i++) {
        must(hy_answer_text_add(&text, (hy_token_score){ids[i], 0}, NULL));
        hy_ready_text ready = hy_answer_text_shown(&text, false);
        ck_assert_uint_eq(ready.tokens, shown[i]);
        hy_answer_text_drop(&text, &ready);
    }
    hy_answer_text_fini(&text);
    hy_tokenizer_close(codec.tokenizer);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("generate: text");
    TCase *all = tcase_create("text");
    tcase_add_loop_test(all, shown_is_all_that_cannot_become_a_stop_text_or_a_character, 0, 2);
    tcase_add_test(all, tokens_without_text_are_shown_too);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
