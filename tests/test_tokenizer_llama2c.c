/* test_tokenizer_llama2c.c: llama2.c's tokenizer wherever a tokenizer is asked for.
 *
 * The file is a small one of letters; ids are held against the way llama2.c itself encodes:
 * characters, else their bytes, and then always the pair whose piece has the highest score, the
 * first of equals. */
#include "base/rng.h"
#include "base/text.h"
#include "harness.h"
#include "hybrid.h"
#include "tokenizer/tokenizer.h"

static char folder[256], tokenizer_path[300], model_path[300];

/* ---- the files ------------------------------------------------------------------------------- */

static const char *const words[] = {" ",   "a",  "b",   "c",    "d",  "e",        "\n",  "\xC3\xA9",
                                    "ab",  " a", "abc", "cd",   "de", "bcd",      " ab", "ee",
                                    "eee", "da", "dab", " abc", "  ", "a\xC3\xA9"};
enum { WORDS = sizeof words / sizeof words[0], FIRST_WORD = 259, VOCAB = FIRST_WORD + WORDS };

static void add_piece(hy_text *out, float score, const char *text) {
    int32_t size = (int32_t)strlen(text);
    hy_text_add_bytes(out, &score, 4);
    hy_text_add_bytes(out, &size, 4);
    hy_text_add_bytes(out, text, (size_t)size);
}

/* Later words have lower scores, but for one. */
static float score_of(int word) { return word == 10 ? -0.5f : -(float)word; }

static void write_tokenizer(const char *path, int pieces) {
    static const char *const specials[] = {"<unk>", "\n<s>\n", "\n</s>\n"};
    hy_text out = {0};
    int32_t longest = 6;
    hy_text_add_bytes(&out, &longest, 4);
    for (int i = 0; i < pieces; i++) {
        char byte[8];
        snprintf(byte, sizeof byte, "<0x%02X>", (i - 3) & 255);
        int word = i - FIRST_WORD;
        add_piece(&out, word < 0 ? 0 : score_of(word),
                  i < 3      ? specials[i]
                  : word < 0 ? byte
                             : words[word]);
    }
    must(hy_text_status(&out));
    must(hy_file_write_atomic(path, out.data, out.size));
    hy_text_free(&out);
}

/* A model of one layer, eight wide. */
static void write_model(void) {
    enum { C = 8, F = 12, T = 32, D = 4 };
    int32_t header[7] = {C, F, 1, C / D, C / D, VOCAB, T};
    size_t floats = VOCAB * C + C + 4 * C * C + C + 3 * C * F + C + T * D;
    hy_text out = {0};
    hy_text_add_bytes(&out, header, sizeof header);
    for (size_t i = 0; i < floats; i++) {
        float value = (float)hy_rng_below(5, HY_RNG_TEST, i, 1000) / 1000 - 0.5f;
        hy_text_add_bytes(&out, &value, sizeof value);
    }
    must(hy_file_write_atomic(model_path, out.data, out.size));
    hy_text_free(&out);
}

static void make_files(void) {
    temp_folder(folder);
    snprintf(tokenizer_path, sizeof tokenizer_path, "%s/pieces.bin", folder);
    snprintf(model_path, sizeof model_path, "%s/model.bin", folder);
    write_tokenizer(tokenizer_path, VOCAB);
    write_model();
}

static void drop_files(void) { remove_folder(folder); }

/* ---- ids ------------------------------------------------------------------------------------- */

static int find_word(const char *text, size_t size) {
    for (int i = 0; i < WORDS; i++) {
        if (strlen(words[i]) == size && memcmp(words[i], text, size) == 0) return FIRST_WORD + i;
    }
    return -1;
}

static int pair_of(int left, int right) {
    char both[32];
    if (left < FIRST_WORD || right < FIRST_WORD) return -1;
    snprintf(both, sizeof both, "%s%s", words[left - FIRST_WORD], words[right - FIRST_WORD]);
    return find_word(both, strlen(both));
}

static size_t encode_plainly(const char *text, size_t size, int *ids) {
    size_t count = 0;
    ids[count++] = find_word(" ", 1);
    for (size_t at = 0; at < size;) {
        size_t length = (uint8_t)text[at] >= 0xE0 ? 3 : (uint8_t)text[at] >= 0xC0 ? 2 : 1;
        int id = find_word(text + at, length);
        if (id >= 0) ids[count++] = id;
        for (size_t i = 0; id < 0 && i < length; i++) ids[count++] = 3 + (uint8_t)text[at + i];
        at += length;
    }
    for (;;) {
        int best = -1;
        size_t where = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            int id = pair_of(ids[i], ids[i + 1]);
            if (id < 0 || (best >= 0 && score_of(id - FIRST_WORD) <= score_of(best - FIRST_WORD)))
                continue;
            best = id;
            where = i;
        }
        if (best < 0) return count;
        ids[where] = best;
        memmove(ids + where + 1, ids + where + 2, (count - where - 2) * sizeof *ids);
        count--;
    }
}

START_TEST(ids_are_those_of_llama2c_and_go_back) {
    static const char *const characters[] = {"a", "b", "c",  "d",        "e",           " ",
                                             "a", "b", "\n", "\xC3\xA9", "\xE4\xBD\xA0"};
    hy_tokenizer *tokenizer;
    must(hy_tokenizer_open(tokenizer_path, &tokenizer));
    ck_assert_int_eq(hy_tokenizer_vocab(tokenizer), VOCAB);
    ck_assert_int_eq(hy_tokenizer_bos(tokenizer), 1);
    ck_assert_int_eq(hy_tokenizer_eos(tokenizer), 2);
    for (uint64_t n = 0; n < 2000; n++) {
        char text[128] = "";
        uint64_t length = 1 + hy_rng_below(1, HY_RNG_TEST, n, 30);
        for (uint64_t i = 0; i < length; i++) {
            strcat(text, characters[hy_rng_below(n, HY_RNG_TEST, i, 11)]);
        }
        int expected[256];
        size_t count = encode_plainly(text, strlen(text), expected);
        hy_ids ids = {0};
        hy_text back = {0};
        must(hy_tokenizer_encode(tokenizer, text, strlen(text), 0, &ids));
        ck_assert_msg(ids.count == count, "\"%s\": %zu ids, expected %zu", text, ids.count, count);
        for (size_t i = 0; i < count; i++) ck_assert_int_eq(ids.data[i], expected[i]);
        must(hy_tokenizer_decode(tokenizer, ids.data, ids.count, 0, &back));
        ck_assert_str_eq(hy_text_string(&back), text);
        hy_ids_free(&ids);
        hy_text_free(&back);
    }
    hy_tokenizer_close(tokenizer);
}
END_TEST

START_TEST(files_that_are_none_are_named) {
    hy_tokenizer *tokenizer;
    char *data;
    size_t size;
    write_tokenizer(tokenizer_path, 3);
    must_fail(hy_tokenizer_open(tokenizer_path, &tokenizer), HY_ERR_INPUT, "3 pieces are too few");
    write_tokenizer(tokenizer_path, VOCAB);
    must(hy_file_read(tokenizer_path, &data, &size));
    must(hy_file_write_atomic(tokenizer_path, data, size - 1));
    free(data);
    must_fail(hy_tokenizer_open(tokenizer_path, &tokenizer), HY_ERR_INPUT, "is truncated");
    must_fail(hy_tokenizer_open("/no/such.bin", &tokenizer), HY_ERR_INPUT, "/no/such.bin");
}
END_TEST

/* ---- training, evaluating, writing ----------------------------------------------------------- */

static void write_text(char path[400]) {
    hy_text text = {0};
    for (int i = 0; i < 300; i++) hy_text_add(&text, i % 3 ? "abc dab " : "a cd eee\n");
    snprintf(path, 400, "%s/text.txt", folder);
    must(hy_file_write_atomic(path, text.data, text.size));
    hy_text_free(&text);
}

static hy_config *config_of(const char *data, const char *out) {
    const char *const values[][2] = {
        {"model", model_path}, {"data", data},    {"seq_len", "16"},     {"batch_size", "2"},
        {"steps", "2"},        {"device", "cpu"}, {"threads", "2"},      {"predictor", "none"},
        {"eval_batches", "1"}, {"out", out},      {"sample_tokens", "0"}};
    hy_config *config;
    must(hy_config_create(&config));
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        must(hy_config_set(config, values[i][0], values[i][1], HY_FROM_CALLER));
    }
    return config;
}

static hy_ids ids_with(const char *path, const char *text) {
    hy_tokenizer *tokenizer;
    hy_ids ids = {0};
    must(hy_tokenizer_open(path, &tokenizer));
    must(hy_tokenizer_encode(tokenizer, text, strlen(text), HY_TOKENS_SPECIAL, &ids));
    hy_tokenizer_close(tokenizer);
    return ids;
}

START_TEST(a_llama2c_model_reads_text_with_its_own_tokenizer_and_passes_it_on) {
    char data[400], out[400], model[500];
    hy_evaluation loss;
    hy_trainer *trainer;
    write_text(data);
    snprintf(out, sizeof out, "%s/run", folder);
    hy_config *config = config_of(data, out);
    must(hy_evaluate(config, NULL, &loss));
    ck_assert_ptr_nonnull(strstr(loss.data, "tokens"));
    ck_assert_double_gt(loss.bits_per_byte, 0);
    ck_assert_int_lt(loss.tokens, 300 * 6); /* words, not bytes, of which each line has 8 or 9 */
    must(hy_trainer_create(config, NULL, &trainer));
    must(hy_trainer_run(trainer));
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    snprintf(model, sizeof model, "%s/model", out);
    hy_ids before = ids_with(tokenizer_path, "abc eee\n"), after = ids_with(model, "abc eee\n");
    ck_assert_uint_eq(before.count, after.count);
    ck_assert_mem_eq(before.data, after.data, before.count * sizeof *before.data);
    hy_ids_free(&before);
    hy_ids_free(&after);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("tokenizer: llama2.c");
    TCase *cases = tcase_create("llama2.c");
    tcase_add_checked_fixture(cases, make_files, drop_files);
    tcase_add_test(cases, ids_are_those_of_llama2c_and_go_back);
    tcase_add_test(cases, files_that_are_none_are_named);
    tcase_add_test(cases, a_llama2c_model_reads_text_with_its_own_tokenizer_and_passes_it_on);
    suite_add_tcase(suite, cases);
    return suite;
}

HY_TEST_MAIN(make_suite)
