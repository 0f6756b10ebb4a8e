/* test_tokenizer_files.c: what a tokenizer.json may say, what is refused and how, and shards made
 * from text files. */
#include "tokenizer_rig.h"

#include "formats/shard.h"
#include "mutate.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

/* ---- what is understood ---------------------------------------------------------------------- */

#define TOKEN(id, text, rest) "{\"id\":" #id ",\"content\":\"" text "\"" rest "}"

START_TEST(merges_are_read_in_both_forms) {
    static const char *const forms[] = {"\"a b\",\"ab c\"", "[\"a\",\"b\"],[\"ab\",\"c\"]"};
    for (int i = 0; i < 2; i++) {
        hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){
            .pre_tokenizer = BYTE_LEVEL, .vocab = ",\"ab\":256,\"abc\":257", .merges = forms[i]});
        must_encode(t, "abc ab", "257 32 256");
        hy_tokenizer_close(t);
    }
}
END_TEST

START_TEST(the_first_and_longest_added_token_is_taken) {
    hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){
        .pre_tokenizer = BYTE_LEVEL,
        .added = TOKEN(256, "<a", ",\"special\":true") "," TOKEN(
            257, "<ab>",
            ",\"normalized\":false") "," TOKEN(258, "b>",
                                               ",\"special\":true,\"normalized\":true")});
    must_encode(t, "<ab>", "257");
    must_encode(t, "<a<ab>b>", "256 257 258");
    must_encode(t, "<ab", "256 98");
    ck_assert_str_eq(encoded(t, "<ab>b>", 6, HY_TOKENS_PLAIN), "257 98 62");
    ck_assert(hy_tokenizer_is_special(t, 256) && !hy_tokenizer_is_special(t, 257));
    ck_assert(!hy_tokenizer_is_special(t, -1) && !hy_tokenizer_is_special(t, 1000));
    hy_tokenizer_close(t);
}
END_TEST

START_TEST(added_tokens_strip_blanks_and_match_whole_words_if_set) {
    hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){
        .pre_tokenizer = BYTE_LEVEL,
        .added = TOKEN(256, "<l>", ",\"lstrip\":true") "," TOKEN(
            257, "<r>", ",\"rstrip\":true") "," TOKEN(258, "one", ",\"single_word\":true")});
    must_encode(t, "a \t\xE3\x80\x80<l> b", "97 256 32 98");
    must_encode(t, "a <r> \n b", "97 32 257 98");
    must_encode(t, "<r>  <l>", "257 256");
    must_encode(t, "one", "258");
    must_encode(t, "one.", "258 46");
    must_encode(t, "one\xC3\xA9", "111 110 101 195 169");
    must_encode(t, "_one", "95 111 110 101");
    hy_tokenizer_close(t);
}
END_TEST

START_TEST(text_is_normalised_before_normalised_tokens_are_sought) {
    hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){
        .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"},{\"type\":"
                      "\"Replace\",\"pattern\":{\"String\":\"xx\"},\"content\":\"y\"}]}",
        .pre_tokenizer = BYTE_LEVEL,
        .added = TOKEN(256, "AXX", ",\"normalized\":true") "," TOKEN(257, "B!",
                                                                     ",\"normalized\":"
                                                                     "false")});
    must_encode(t, "axX", "256");
    must_encode(t, "aY", "256");
    must_encode(t, "B!b", "257 98");
    must_encode(t, "b!", "98 33");
    must_encode(t, "XXX", "121 120");
    hy_tokenizer_close(t);
}
END_TEST

START_TEST(templates_surround_the_text) {
    hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){
        .pre_tokenizer = BYTE_LEVEL,
        .added = TOKEN(256, "<s>", ",\"special\":true"),
        .post_processor =
            "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
            "\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"e\"}"
            "}],\"special_tokens\":{\"<s>\":{\"ids\":[256]},\"e\":{\"ids\":[1,2]}}}"});
    ck_assert_str_eq(encoded(t, "a", 1, HY_TOKENS_SPECIAL), "256 97 1 2");
    ck_assert_str_eq(encoded(t, "", 0, HY_TOKENS_SPECIAL), "256 1 2");
    ck_assert_str_eq(encoded(t, "a", 1, 0), "97");
    ck_assert_int_eq(hy_tokenizer_bos(t), 256);
    ck_assert_int_eq(hy_tokenizer_find(t, "<s>"), 256);
    ck_assert_int_eq(hy_tokenizer_find(t, "nothing"), -1);
    ck_assert_str_eq(hy_tokenizer_token(t, 256, NULL), "<s>");
    ck_assert_ptr_null(hy_tokenizer_token(t, 257, NULL));
    hy_tokenizer_close(t);
}
END_TEST

START_TEST(ids_that_are_no_token_are_refused_when_decoding) {
    hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){.pre_tokenizer = BYTE_LEVEL});
    hy_text text = {0};
    must_fail(hy_tokenizer_decode(t, &(int32_t){256}, 1, 0, &text), HY_ERR_INPUT,
              "expected 0 to 255");
    must_fail(hy_tokenizer_decode(t, &(int32_t){-1}, 1, 0, &text), HY_ERR_INPUT, "token id -1");
    hy_text_free(&text);
    hy_tokenizer_close(t);
}
END_TEST

START_TEST(a_folder_says_what_bos_eos_and_pad_are) {
    char folder[256], path[512];
    hy_tokenizer *t;
    hy_text json = {0};
    static const char config[] =
        "{\"bos_token\":null,\"eos_token\":{\"content\":\"<e>\"},\"pad_token\":"
        "\"<p>\"}";
    temp_folder(folder);
    must_fail(hy_tokenizer_open(folder, &t), HY_ERR_INPUT, "no tokenizer.json");
    write_byte_level(&json,
                     &(tokenizer_parts){.pre_tokenizer = BYTE_LEVEL,
                                        .added = TOKEN(256, "<s>", ",\"special\":true") "," TOKEN(
                                            257, "<e>", "") "," TOKEN(258, "<p>", "")});
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    must(hy_file_write_atomic(path, json.data, json.size));
    must(hy_tokenizer_open(folder, &t));
    ck_assert_int_eq(hy_tokenizer_bos(t), 256); /* by its name */
    ck_assert_int_eq(hy_tokenizer_eos(t), -1);
    hy_tokenizer_close(t);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    must(hy_file_write_atomic(path, config, strlen(config)));
    must(hy_tokenizer_open(folder, &t));
    ck_assert_int_eq(hy_tokenizer_bos(t), -1);
    ck_assert_int_eq(hy_tokenizer_eos(t), 257);
    hy_tokenizer_close(t);
    hy_text_free(&json);
    remove_folder(folder);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

static const struct {
    tokenizer_parts parts;
    const char *fragment;
} refused[] = {
    {{.normalizer = "{\"type\":\"Precompiled\"}"}, "normalizer \"Precompiled\""},
    {{.normalizer = "{\"type\":\"Prepend\"}"}, "needs the string \"prepend\""},
    {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}"},
     "has an empty pattern"},
    {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"\"}"},
     "has a Regex"},
    {{.pre_tokenizer = "{\"type\":\"BertPreTokenizer\"}"}, "pre_tokenizer \"BertPreTokenizer\""},
    {{.pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Odd\"}"},
     "behavior \"Odd\""},
    {{.pre_tokenizer =
          "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTE_LEVEL ",{\"type\":\"Digits\"}]}"},
     "ByteLevel must be the last"},
    {{.pre_tokenizer = "{\"type\":\"Metaspace\",\"replacement\":\"\"}"}, "Metaspace is empty"},
    {{.pre_tokenizer = "{\"type\":\"Digits\",\"individual_digits\":1}"}, "individual_digits"},
    {{.decoder = "{\"type\":\"WordPiece\"}"}, "decoder \"WordPiece\""},
    {{.decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Strip\"}]}"},
     "is not supported in this position"},
    {{.post_processor = "{\"type\":\"BertProcessing\"}"}, "post_processor \"BertProcessing\""},
    {{.post_processor = "{\"type\":\"TemplateProcessing\",\"single\":[]}"}, "lacks Sequence A"},
    {{.settings = ",\"dropout\":0.1"}, "model has the key \"dropout\""},
    {{.settings = ",\"continuing_subword_prefix\":\"##\""}, "continuing_subword_prefix"},
    {{.settings = ",\"unk_token\":\"<none>\""}, "<none>"},
    {{.settings = ",\"byte_fallback\":3"}, "byte_fallback"},
    {{.members = ",\"extra\":{}"}, "\"extra\" is unknown"},
    {{.merges = "\"a\""}, "merge number 1: expected"},
    {{.merges = "\"a b c\""}, "merge number 1: expected"},
    {{.merges = "[\"a\"]"}, "merge number 1: expected"},
    {{.merges = "7"}, "merge number 1: expected"},
    {{.merges = "\" a\""}, "one of its parts is empty"},
    {{.vocab = ",\"\":256", .merges = "[\"\",\"a\"]"}, "one of its parts is empty"},
    {{.vocab = ",\"ab\":256", .merges = "\"a b\",\"a c\""}, "merge number 2: both parts"},
    {{.merges = "\"a zz\""}, "must be in the vocabulary"},
    {{.vocab = ",\"ab\":255"}, "has the id 255"},
    {{.vocab = ",\"ab\":-1"}, "must be an integer"},
    {{.vocab = ",\"ab\":1.5"}, "must be an integer"},
    {{.vocab = ",\"ab\":2000000000"}, "id 2000000000 is too large for a vocabulary of 257 tokens"},
    {{.vocab = ",\"a\":256"}, "duplicate"},
    {{.added = "{\"id\":300}"}, "no content"},
    {{.added = "{\"content\":\"x\"}"}, "must be an integer"},
    {{.added = "{\"content\":\"a\",\"id\":300}"}, "has the id 300"},
};

START_TEST(what_would_change_the_ids_is_refused_by_name) {
    hy_tokenizer *t = NULL;
    must_fail(parse_parts(&refused[_i].parts, &t), HY_ERR_INPUT, refused[_i].fragment);
    ck_assert_ptr_null(t);
}
END_TEST

START_TEST(broken_files_are_named_errors) {
    static const char *const texts[] = {"",  "[]",        "{}",  "{\"model\":{}}", "{\"model\":3}",
                                        "{", "\xFF\xFE{", "null"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        hy_tokenizer *t;
        must_fail(hy_tokenizer_parse(texts[i], strlen(texts[i]), "bad.json", &t), HY_ERR_INPUT,
                  "bad.json");
    }
}
END_TEST

START_TEST(damaged_files_never_crash) {
    hy_text json = {0};
    write_byte_level(&json, &(tokenizer_parts){.normalizer = "{\"type\":\"NFC\"}",
                                               .pre_tokenizer = BYTE_LEVEL,
                                               .decoder = BYTE_LEVEL,
                                               .vocab = ",\"ab\":256,\"abc\":257",
                                               .merges = "\"a b\",\"ab c\"",
                                               .added = TOKEN(258, "<e>", ",\"lstrip\":true")});
    uint8_t *damaged = malloc(json.size + MUTATION_GROWTH);
    int opened = 0;
    for (uint64_t n = 0; n < 3000; n++) {
        size_t size = mutate(json.data, json.size, damaged, n);
        hy_tokenizer *t;
        if (hy_tokenizer_parse((char *)damaged, size, "t", &t) != HY_OK) continue;
        hy_ids ids = {0};
        must(hy_tokenizer_encode(t, "abc <e>\xFFq", 10, 0, &ids));
        hy_ids_free(&ids);
        hy_tokenizer_close(t);
        opened++;
    }
    ck_assert_int_gt(opened, 10);
    free(damaged);
    hy_text_free(&json);
}
END_TEST

/* ---- characters ------------------------------------------------------------------------------ */

START_TEST(normal_form_c_of_known_texts) {
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"e\xCC\x81x", "\xC3\xA9x"},                   /* e + acute */
        {"\xC3\xA9\xCC\xA3", "\xE1\xBA\xB9\xCC\x81"},  /* e acute + dot below: the dot goes first */
        {"e\xCC\xA3\xCC\x81", "\xE1\xBA\xB9\xCC\x81"}, /* the same in order */
        {"\xE2\x84\xAB", "\xC3\x85"},                  /* angstrom sign */
        {"\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"}, /* Hangul of three parts */
        {"\xEA\xB0\x80\xE1\x86\xA8", "\xEA\xB0\x81"},             /* of two */
        {"\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC"}, /* one that is not composed again */
        {"\xEF\xA4\x80", "\xE8\xB1\x88"},             /* compatibility ideograph */
        {"\xFF"
         "e\xCC\x81\xCC",
         "\xFF\xC3\xA9\xCC"}, /* stray bytes stay */
        {"\xCC\x81"
         "e",
         "\xCC\x81"
         "e"}, /* a mark with nothing before it */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hy_text out = {0};
        hy_unicode_add_nfc(&out, cases[i].from, strlen(cases[i].from));
        ck_assert_str_eq(hy_text_string(&out), cases[i].to);
        hy_text_free(&out);
    }
}
END_TEST

START_TEST(a_million_marks_are_ordered_in_good_time) {
    enum { MARKS = 1 << 20 };
    char *text = malloc(2 * MARKS);
    hy_text out = {0};
    for (int i = 0; i < MARKS; i++) memcpy(text + 2 * i, i % 2 ? "\xCC\xA3" : "\xCC\x81", 2);
    hy_unicode_add_nfc(&out, text, 2 * MARKS);
    ck_assert_uint_eq(out.size, 2 * MARKS);
    ck_assert(memcmp(out.data, "\xCC\xA3", 2) == 0);
    ck_assert(memcmp(out.data + out.size - 2, "\xCC\x81", 2) == 0);
    hy_text_free(&out);
    free(text);
}
END_TEST

START_TEST(classes_of_characters) {
    ck_assert_int_eq(hy_unicode_class_of('a'), HY_UNICODE_LETTER);
    ck_assert_int_eq(hy_unicode_class_of(0x4E00), HY_UNICODE_LETTER);
    ck_assert_int_eq(hy_unicode_class_of('7'), HY_UNICODE_NUMBER);
    ck_assert_int_eq(hy_unicode_class_of(0xBD), HY_UNICODE_NUMBER);
    ck_assert_int_eq(hy_unicode_class_of(0x3000), HY_UNICODE_SPACE);
    ck_assert_int_eq(hy_unicode_class_of(0x180E), HY_UNICODE_OTHER);
    ck_assert_int_eq(hy_unicode_class_of(0x10FFFF), HY_UNICODE_OTHER);
    ck_assert_int_eq(hy_unicode_class_of(HY_UNICODE_STRAY), HY_UNICODE_OTHER);
    ck_assert(hy_unicode_is_word('_') && hy_unicode_is_word(0x301) && !hy_unicode_is_word('-'));
}
END_TEST

/* ---- shards ---------------------------------------------------------------------------------- */

static void put_file(const char *folder, const char *name, const char *text) {
    char path[512];
    must(hy_path_join(path, sizeof path, folder, name));
    must(hy_file_write_atomic(path, text, strlen(text)));
}

static void shard_ids(const char *folder, const char *name, char line[512]) {
    char path[512];
    hy_shard *shard;
    size_t used = 0;
    int32_t ids[64];
    must(hy_path_join(path, sizeof path, folder, name));
    must(hy_shard_open(path, &shard));
    ck_assert_uint_eq(hy_shard_vocab(shard), 257);
    uint64_t count = hy_shard_count(shard);
    ck_assert_uint_le(count, 64);
    must(hy_shard_read(shard, 0, count, ids));
    for (uint64_t i = 0; i < count; i++) {
        used += (size_t)sprintf(line + used, "%s%d", i ? " " : "", (int)ids[i]);
    }
    hy_shard_close(shard);
}

START_TEST(files_become_shards_with_documents_apart) {
    char folder[256], text[512], out[512], line[512];
    hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){
        .pre_tokenizer = BYTE_LEVEL, .added = TOKEN(256, "</s>", ",\"special\":true")});
    temp_folder(folder);
    snprintf(text, sizeof text, "%s/text", folder);
    must(hy_dir_make(text));
    put_file(text, "1.txt", "ab</s>c</s>");
    put_file(text, "2.txt", "");
    put_file(text, "3.txt", "dddd");
    for (int threads = 1; threads <= 3; threads += 2) {
        hy_tokenize_result result;
        snprintf(out, sizeof out, "%s/out%d", folder, threads);
        hy_tokenize_options options = {.tokenizer = t,
                                       .paths = &(const char *){text},
                                       .path_count = 1,
                                       .out = out,
                                       .val_fraction = 0.3,
                                       .threads = threads};
        must(hy_tokenize_files(&options, &result));
        ck_assert_uint_eq(result.documents, 3);
        ck_assert_uint_eq(result.skipped, 1);
        ck_assert_uint_eq(result.tokens[0], 5);
        ck_assert_uint_eq(result.tokens[1], 5);
        shard_ids(out, "train/000000.bin", line);
        ck_assert_str_eq(line, "97 98 256 99 256");
        shard_ids(out, "val/000000.bin", line);
        ck_assert_str_eq(line, "100 100 100 100 256");
        must_fail(hy_tokenize_files(&options, &result), HY_ERR_INPUT, "already exists");
        options.paths = &(const char *){out};
        options.out = folder;
        must_fail(hy_tokenize_files(&options, &result), HY_ERR_INPUT, "already a shard of tokens");
    }
    hy_tokenizer_close(t);
    remove_folder(folder);
}
END_TEST

START_TEST(large_files_give_the_same_shards_on_any_number_of_threads) {
    enum { SIZE = 3 << 20 };
    char folder[256], path[512], out[2][512], names[2][600];
    hy_tokenizer *t = tokenizer_of(&(tokenizer_parts){
        .pre_tokenizer = BYTE_LEVEL, .vocab = ",\"ab\":256", .merges = "\"a b\""});
    char *text = malloc(SIZE);
    hy_ids whole = {0};
    for (int i = 0; i < SIZE; i++)
        text[i] = "ab .\nz\t'"[hy_rng_below(1, HY_RNG_TEST, (uint64_t)i, 8)];
    temp_folder(folder);
    snprintf(path, sizeof path, "%s/text", folder);
    must(hy_file_write_atomic(path, text, SIZE));
    must(hy_tokenizer_encode(t, text, SIZE, 0, &whole));
    for (int i = 0; i < 2; i++) {
        hy_tokenize_result result;
        snprintf(out[i], sizeof out[i], "%s/out%d", folder, i);
        must(hy_path_join(names[i], sizeof names[i], out[i], "train/000001.bin"));
        hy_tokenize_options options = {.tokenizer = t,
                                       .paths = &(const char *){path},
                                       .path_count = 1,
                                       .out = out[i],
                                       .threads = 1 + 3 * i,
                                       .shard_tokens = 1 << 20};
        must(hy_tokenize_files(&options, &result));
        ck_assert_uint_eq(result.tokens[0], whole.count);
        ck_assert_uint_ge(result.shards[0], 2);
    }
    hy_shard *a, *b;
    must(hy_shard_open(names[0], &a));
    must(hy_shard_open(names[1], &b));
    ck_assert_uint_eq(hy_shard_count(a), hy_shard_count(b));
    for (uint64_t i = 0; i < hy_shard_count(a); i++) {
        int32_t x, y;
        must(hy_shard_read(a, i, 1, &x));
        must(hy_shard_read(b, i, 1, &y));
        ck_assert(x == y && x == whole.data[(1 << 20) + i]);
    }
    hy_shard_close(a);
    hy_shard_close(b);
    hy_ids_free(&whole);
    free(text);
    hy_tokenizer_close(t);
    remove_folder(folder);
}
END_TEST

static Suite *files_suite(void) {
    Suite *suite = suite_create("tokenizer_files");
    TCase *files = tcase_create("files"), *refusals = tcase_create("refusals");
    TCase *characters = tcase_create("characters"), *shards = tcase_create("shards");
    tcase_add_test(files, merges_are_read_in_both_forms);
    tcase_add_test(files, the_first_and_longest_added_token_is_taken);
    tcase_add_test(files, added_tokens_strip_blanks_and_match_whole_words_if_set);
    tcase_add_test(files, text_is_normalised_before_normalised_tokens_are_sought);
    tcase_add_test(files, templates_surround_the_text);
    tcase_add_test(files, ids_that_are_no_token_are_refused_when_decoding);
    tcase_add_test(files, a_folder_says_what_bos_eos_and_pad_are);
    suite_add_tcase(suite, files);
    tcase_add_loop_test(refusals, what_would_change_the_ids_is_refused_by_name, 0,
                        sizeof refused / sizeof refused[0]);
    tcase_add_test(refusals, broken_files_are_named_errors);
    tcase_add_test(refusals, damaged_files_never_crash);
    suite_add_tcase(suite, refusals);
    tcase_add_test(characters, normal_form_c_of_known_texts);
    tcase_add_test(characters, a_million_marks_are_ordered_in_good_time);
    tcase_add_test(characters, classes_of_characters);
    suite_add_tcase(suite, characters);
    tcase_add_test(shards, files_become_shards_with_documents_apart);
    tcase_add_test(shards, large_files_give_the_same_shards_on_any_number_of_threads);
    suite_add_tcase(suite, shards);
    return suite;
}

HY_TEST_MAIN(files_suite)
