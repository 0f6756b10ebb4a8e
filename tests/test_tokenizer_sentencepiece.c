/* test_tokenizer_sentencepiece.c: SentencePiece files: ids against those of sentencepiece and
 * transformers, what is refused and how, and what an export writes.
 *
 * tests/golden/sentencepiece holds small files with 300 texts and their ids (make_sentencepiece.py).
 * Other files are written here, field by field. */
#include "tokenizer_rig.h"

#include "base/json.h"
#include "hub/hf_export.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_sentencepiece.h"
#include "tokenizer/tokenizer_vocab_files.h"

#define GOLDEN HY_SOURCE_DIR "/tests/golden/sentencepiece/"

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

static const char *in_folder(const char *name) {
    static char path[1000];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put_file(const char *name, const char *text) {
    must(hy_file_write_atomic(in_folder(name), text, strlen(text)));
}

static void copy_golden(const char *model, const char *name) {
    char path[600], *data;
    size_t size;
    snprintf(path, sizeof path, GOLDEN "%s.model", model);
    must(hy_file_read(path, &data, &size));
    must(hy_file_write_atomic(in_folder(name), data, size));
    free(data);
}

/* ---- golden ---------------------------------------------------------------------------------- */

static void put_value(hy_json_writer *w, const char *key, const hy_json_node *node) {
    const char *text;
    int64_t number;
    bool is_set;
    if (hy_json_as_string(node, &text, NULL)) {
        hy_json_put_string(w, key, text);
    } else if (hy_json_as_bool(node, &is_set)) {
        hy_json_put_bool(w, key, is_set);
    } else if (hy_json_as_int(node, &number)) {
        hy_json_put_int(w, key, number);
    } else if (hy_json_type_of(node) == HY_JSON_NULL) {
        hy_json_put_null(w, key);
    } else {
        bool is_object = hy_json_type_of(node) == HY_JSON_OBJECT;
        is_object ? hy_json_open_object(w, key) : hy_json_open_array(w, key);
        for (const hy_json_node *n = hy_json_first(node); n; n = hy_json_next(n)) {
            put_value(w, is_object ? hy_json_key(n) : NULL, n);
        }
        is_object ? hy_json_close_object(w) : hy_json_close_array(w);
    }
}

static void check_texts(const char *name, const hy_json_node *texts, const hy_json_node *rows,
                        int flags) {
    hy_tokenizer *t;
    must(hy_tokenizer_open(folder, &t));
    const hy_json_node *text_node = hy_json_first(texts), *row = hy_json_first(rows);
    for (; text_node; text_node = hy_json_next(text_node), row = hy_json_next(row)) {
        const char *text;
        size_t size;
        hy_ids ids = {0};
        ck_assert(hy_json_as_string(text_node, &text, &size));
        must(hy_tokenizer_encode(t, text, size, flags, &ids));
        bool is_same = hy_json_size(row) == ids.count;
        const hy_json_node *id_node = hy_json_first(row);
        for (size_t i = 0; is_same && i < ids.count; i++, id_node = hy_json_next(id_node)) {
            int64_t id = -1;
            is_same = hy_json_as_int(id_node, &id) && id == ids.data[i];
        }
        ck_assert_msg(is_same, "%s: other ids for \"%s\": %s", name, text,
                      encoded(t, text, size, flags));
        hy_ids_free(&ids);
    }
    hy_tokenizer_close(t);
}

START_TEST(ids_are_those_of_sentencepiece_and_transformers) {
    hy_json *json;
    int checked = 0;
    must(hy_json_read_file(GOLDEN "expected.json", &json));
    const hy_json_node *texts = hy_json_get(hy_json_root(json), "texts");
    const hy_json_node *c = hy_json_first(hy_json_get(hy_json_root(json), "cases"));
    for (; c; c = hy_json_next(c), checked++) {
        const char *name, *model;
        ck_assert(hy_json_as_string(hy_json_get(c, "name"), &name, NULL));
        ck_assert(hy_json_as_string(hy_json_get(c, "model"), &model, NULL));
        const hy_json_node *files = hy_json_get(c, "files");
        remove_folder(folder);
        temp_folder(folder);
        copy_golden(model, "tokenizer.model");
        for (const hy_json_node *n = hy_json_first(files); n; n = hy_json_next(n)) {
            hy_json_writer w;
            hy_text text = {0};
            hy_json_begin(&w, &text, false);
            put_value(&w, NULL, n);
            put_file(hy_json_key(n), hy_text_string(&text));
            hy_text_free(&text);
        }
        /* sentencepiece finds no special tokens in a text */
        int flags = hy_json_size(files) ? HY_TOKENS_SPECIAL : HY_TOKENS_PLAIN;
        check_texts(name, texts, hy_json_get(c, "ids"), flags);
    }
    ck_assert_int_eq(checked, 11);
    ck_assert_uint_eq(hy_json_size(texts), 300);
    hy_json_free(json);
}
END_TEST

START_TEST(texts_come_back_even_if_they_are_not_valid) {
    hy_tokenizer *t;
    char text[512];
    for (int i = 0; i < 512; i++) text[i] = (char)(i * 7 + i / 256);
    text[0] = 'x';
    copy_golden("llama", "some.model");
    must(hy_tokenizer_open(in_folder("some.model"), &t));
    must_come_back(t, text, sizeof text);
    must_come_back(t, "  two blanks ", 13);
    ck_assert_int_eq(hy_tokenizer_bos(t), 1);
    ck_assert_int_eq(hy_tokenizer_eos(t), 2);
    hy_tokenizer_close(t);
    copy_golden("gemma", "some.model");
    must(hy_tokenizer_open(in_folder("some.model"), &t));
    must_come_back(t, text, sizeof text);
    ck_assert_int_eq(hy_tokenizer_bos(t), 2);
    ck_assert_int_eq(hy_tokenizer_eos(t), 1);
    hy_tokenizer_close(t);
}
END_TEST

/* ---- files of a few pieces ------------------------------------------------------------------- */

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };
enum { UNIGRAM = 1, BPE, WORD };

static void add_varint(hy_text *out, unsigned value) {
    for (; value > 127; value >>= 7) hy_text_add_bytes(out, &(char){(char)(value | 128)}, 1);
    hy_text_add_bytes(out, &(char){(char)value}, 1);
}

static void add_number(hy_text *out, unsigned field, unsigned value) {
    add_varint(out, field << 3);
    add_varint(out, value);
}

static void add_bytes(hy_text *out, unsigned field, const char *data, size_t size) {
    add_varint(out, field << 3 | 2);
    add_varint(out, (unsigned)size);
    hy_text_add_bytes(out, data, size);
}

static void add_piece(hy_text *out, const char *text, float score, int type) {
    hy_text piece = {0};
    add_bytes(&piece, 1, text, strlen(text));
    hy_text_add_bytes(&piece, "\x15", 1);
    hy_text_add_bytes(&piece, &score, 4);
    add_number(&piece, 3, (unsigned)type);
    add_bytes(out, 1, piece.data, piece.size);
    hy_text_free(&piece);
}

/* A message of one number. */
static void add_setting(hy_text *out, unsigned message, unsigned field, unsigned value) {
    hy_text inner = {0};
    add_number(&inner, field, value);
    add_bytes(out, message, inner.data, inner.size);
    hy_text_free(&inner);
}

/* A BPE file of single letters, without changes to blanks; the caller adds to it. */
static hy_text begin_file(int model_type) {
    hy_text out = {0};
    add_setting(&out, 2, 3, (unsigned)model_type);
    add_setting(&out, 3, 3, 0);
    add_setting(&out, 3, 4, 0);
    add_piece(&out, "<unk>", 0, UNKNOWN);
    for (const char *c = "abc"; *c; c++) add_piece(&out, (char[]){*c, 0}, -9, NORMAL);
    return out;
}

static void end_file(hy_text *out) {
    must(hy_text_status(out));
    must(hy_file_write_atomic(in_folder("tokenizer.model"), out->data, out->size));
    hy_text_free(out);
}

static void must_refuse(hy_text *out, const char *fragment) {
    hy_tokenizer *t;
    end_file(out);
    must_fail(hy_tokenizer_open(folder, &t), HY_ERR_INPUT, fragment);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "tokenizer.model"));
}

START_TEST(of_equal_scores_the_left_pair_merges_first) {
    hy_tokenizer *t;
    hy_text out = begin_file(BPE); /* ids 1 to 3 are the letters */
    add_piece(&out, "bc", 0, NORMAL);
    add_piece(&out, "ab", 0, NORMAL);
    add_piece(&out, "cb", -1, NORMAL);
    end_file(&out);
    must(hy_tokenizer_open(folder, &t));
    must_encode(t, "abc", "5 3");
    must_encode(t, "abbcb", "5 4 2");
    must_encode(t, "acbx?ca", "1 6 0 3 1"); /* two unknown characters are one token */
    hy_tokenizer_close(t);
    put_file("tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
    must(hy_tokenizer_open(folder, &t)); /* transformers: in the order of ids */
    must_encode(t, "abbcb", "5 4 2");
    must_encode(t, "abc", "1 4");
    hy_tokenizer_close(t);
}
END_TEST

START_TEST(user_defined_pieces_stay_whole_and_merge_with_nothing) {
    hy_tokenizer *t;
    hy_text out = begin_file(BPE);
    add_piece(&out, "ab", -1, NORMAL);
    add_piece(&out, "bc", 0, USER_DEFINED);
    add_piece(&out, "bcab", 0, USER_DEFINED);
    end_file(&out);
    must(hy_tokenizer_open(folder, &t));
    must_encode(t, "abc", "1 5");
    must_encode(t, "abcab", "1 6");
    must_encode(t, "aba", "4 1");
    ck_assert(!hy_tokenizer_is_special(t, 5) && hy_tokenizer_is_special(t, 0));
    hy_tokenizer_close(t);
}
END_TEST

START_TEST(what_is_not_supported_is_refused_by_name) {
    hy_text out = begin_file(WORD);
    must_refuse(&out, "model type word");
    out = begin_file(9);
    must_refuse(&out, "unknown model type");
    out = begin_file(BPE);
    add_setting(&out, 2, 24, 1);
    must_refuse(&out, "treat_whitespace_as_suffix");
    out = begin_file(BPE);
    add_setting(&out, 3, 5, 0);
    must_refuse(&out, "escape_whitespaces");
    out = begin_file(BPE);
    add_bytes(&out, 5, "\x12\x01x", 3);
    must_refuse(&out, "denormalizer_spec");
    out = begin_file(BPE);
    add_piece(&out, "ab", 0, UNUSED);
    must_refuse(&out, "unused pieces");
    out = begin_file(BPE);
    add_piece(&out, "<0x41>", 0, BYTE);
    must_refuse(&out, "byte pieces without byte_fallback");
    out = begin_file(BPE);
    add_setting(&out, 2, 35, 1);
    must_refuse(&out, "byte_fallback needs the byte piece <0x00>");
    out = begin_file(BPE);
    add_piece(&out, "?", 0, UNKNOWN);
    must_refuse(&out, "two unknown pieces");
    out = begin_file(BPE);
    add_piece(&out, "ax", 0, NORMAL);
    must_refuse(&out, "\"ax\" begins or ends with a character that is not a piece");
}
END_TEST

START_TEST(damaged_files_are_named) {
    hy_tokenizer *t;
    hy_text out = begin_file(BPE);
    add_piece(&out, "a", 0, NORMAL);
    must_refuse(&out, "piece 4 has the same text as another piece");
    out = begin_file(BPE);
    add_piece(&out, "\xFF", 0, NORMAL);
    must_refuse(&out, "piece 4 must be valid UTF-8");
    out = begin_file(BPE);
    add_piece(&out, "d", 0, 7);
    must_refuse(&out, "piece 4 has the type 7");
    out = begin_file(UNIGRAM);
    add_bytes(&out, 3, "\x12\x03xyz", 5);
    must_refuse(&out, "precompiled_charsmap is damaged");
    out = begin_file(BPE);
    out.size -= 3;
    must_refuse(&out, "is damaged or not a SentencePiece file");
    put_file("tokenizer.model", "IQ== 0\nIg== 1\n");
    must_fail(hy_tokenizer_open(folder, &t), HY_ERR_INPUT, "is a tiktoken file");
    put_file("tokenizer.model", "");
    must_fail(hy_tokenizer_open(folder, &t), HY_ERR_INPUT, "not a SentencePiece file");
    must_fail(hy_tokenizer_open("/no/such.model", &t), HY_ERR_INPUT, "/no/such.model");
}
END_TEST

START_TEST(classes_that_are_not_supported_are_named) {
    hy_tokenizer *t;
    copy_golden("unigram", "tokenizer.model");
    put_file("tokenizer_config.json", "{\"tokenizer_class\": \"T5Tokenizer\"}");
    must_fail(hy_tokenizer_open(folder, &t), HY_ERR_INPUT, "T5Tokenizer");
    put_file("tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
    must_fail(hy_tokenizer_open(folder, &t), HY_ERR_INPUT, "with BPE pieces are supported");
    copy_golden("llama", "tokenizer.model");
    put_file("tokenizer_config.json",
             "{\"tokenizer_class\": \"LlamaTokenizer\", \"add_bos_token\": true, "
             "\"bos_token\": \"<none>\"}");
    must_fail(hy_tokenizer_open(folder, &t), HY_ERR_INPUT, "the bos_token is not a piece");
}
END_TEST

START_TEST(a_piece_that_is_long_or_has_an_extreme_score_takes_bounded_time) {
    hy_tokenizer *t;
    hy_ids ids = {0};
    hy_text text = {0};
    char piece[120];
    hy_text out = begin_file(UNIGRAM);
    memset(piece, 'a', sizeof piece);
    piece[sizeof piece - 1] = 0;
    add_piece(&out, piece, -3e38f, NORMAL);
    end_file(&out);
    must(hy_tokenizer_open(folder, &t));
    for (int i = 0; i < 20000; i++) hy_text_add(&text, "aab?");
    must(hy_tokenizer_encode(t, text.data, text.size, 0, &ids));
    ck_assert_uint_eq(ids.count, 80000);
    hy_ids_free(&ids);
    hy_text_free(&text);
    hy_tokenizer_close(t);
}
END_TEST

/* ---- exports --------------------------------------------------------------------------------- */

/* Writes the tokenizer `name` of the folder to folder/out. */
static const char *export_of(const char *name) {
    static char target[300];
    char source[400];
    snprintf(source, sizeof source, "%s/%s", folder, name);
    snprintf(target, sizeof target, "%s/out", folder);
    must(hy_dir_make(target));
    must(hy_hf_write_tokenizer(source, target));
    return target;
}

static void must_contain(const char *name, const char *fragment) {
    char *text;
    size_t size;
    must(hy_file_read(in_folder(name), &text, &size));
    ck_assert_msg(memmem(text, size, fragment, strlen(fragment)), "%s lacks %s: %.400s", name,
                  fragment, text);
    free(text);
}

START_TEST(an_export_has_the_file_and_nothing_of_the_old_tokenizer) {
    static const char *const old[] = {"spiece.model", "vocab.json", "merges.txt"};
    char path[600], expected[4096];
    hy_tokenizer *t;
    copy_golden("unigram", "pieces.model");
    must(hy_dir_make(in_folder("out")));
    put_file("out/tokenizer.json", "old");
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "out/%s", old[i]);
        put_file(path, "old");
    }
    put_file("out/tokenizer_config.json",
             "{\"tokenizer_class\": \"Qwen2Tokenizer\", \"chat_template\": \"x\", "
             "\"eos_token\": \"<|im_end|>\"}");
    const char *target = export_of("pieces.model");
    must(hy_tokenizer_file(target, path, sizeof path));
    ck_assert_str_eq(strrchr(path, '/'), "/tokenizer.model");
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", target, old[i]);
        ck_assert(!hy_path_exists(path));
    }
    must_contain("out/tokenizer_config.json", "\"chat_template\": \"x\"");
    must(hy_tokenizer_open(in_folder("pieces.model"), &t));
    snprintf(expected, sizeof expected, "%s", encoded(t, "What say you?", 13, 0));
    hy_tokenizer_close(t);
    must(hy_tokenizer_open(target, &t));
    must_encode(t, "What say you?", expected);
    ck_assert_int_eq(hy_tokenizer_eos(t), 2);
    hy_tokenizer_close(t);
}
END_TEST

/* What transformers 5.23 reads; it gave the ids of sentencepiece for the golden texts, except
 * beside user-defined pieces of files with a blank before the text. */
START_TEST(an_export_tells_transformers_how_sentencepiece_reads_the_file) {
    static const char *const names[] = {"unigram", "unigram_bytes", "bpe", "char"};
    for (int i = 0; i < 4; i++) {
        copy_golden(names[i], "pieces.model");
        export_of("pieces.model");
        must_contain("out/tokenizer.json", i < 2 ? "\"type\":\"Unigram\"" : "\"type\":\"BPE\"");
        must_contain("out/tokenizer.json", i < 2 ? "\"unk_id\":0" : "\"unk_token\":\"<unk>\"");
        must_contain("out/tokenizer.json", i == 1 ? "\"byte_fallback\":true" : "_fallback\":false");
        if (i < 3)
            must_contain("out/tokenizer.json", "{\"type\": \"Precompiled\", "
                                               "\"precompiled_charsmap\": \"AAQAAAAYAAAHDQAA");
        must_contain("out/tokenizer.json",
                     "{\"Regex\": \"\\\\A *(?=[^ ])\"}, \"content\": \"" BLANK);
        must_contain("out/tokenizer_config.json",
                     "\"tokenizer_class\": \"PreTrainedTokenizerFast\"");
        must_contain("out/tokenizer_config.json", "\"add_bos_token\": false");
        must_contain("out/tokenizer_config.json", "\"bos_token\": \"<s>\"");
        must_contain("out/tokenizer_config.json", "\"unk_token\": \"<unk>\"");
        /* other tools save the folder without the SentencePiece file */
        char path[600];
        ck_assert_int_eq(unlink(in_folder("out/tokenizer.model")), 0);
        must(hy_tokenizer_file(in_folder("out"), path, sizeof path));
        ck_assert_str_eq(strrchr(path, '/'), "/tokenizer.json");
    }
}
END_TEST

/* Without normalisation, our own reader can open the tokenizer.json, too. */
START_TEST(the_tokenizer_json_of_an_export_gives_the_ids_of_sentencepiece) {
    static const char *const names[] = {"llama", "gemma"};
    hy_json *json;
    must(hy_json_read_file(GOLDEN "expected.json", &json));
    const hy_json_node *texts = hy_json_get(hy_json_root(json), "texts");
    for (int i = 0; i < 2; i++) {
        hy_tokenizer *pieces, *written;
        copy_golden(names[i], "pieces.model");
        export_of("pieces.model");
        must(hy_tokenizer_open(in_folder("pieces.model"), &pieces));
        must(hy_tokenizer_open(in_folder("out/tokenizer.json"), &written));
        for (const hy_json_node *n = hy_json_first(texts); n; n = hy_json_next(n)) {
            static char expected[65536];
            const char *text;
            size_t size;
            ck_assert(hy_json_as_string(n, &text, &size));
            snprintf(expected, sizeof expected, "%s", encoded(pieces, text, size, 0));
            ck_assert_str_eq(encoded(written, text, size, 0), expected);
        }
        ck_assert_int_eq(hy_tokenizer_bos(written), hy_tokenizer_bos(pieces));
        ck_assert_int_eq(hy_tokenizer_eos(written), hy_tokenizer_eos(pieces));
        hy_tokenizer_close(pieces);
        hy_tokenizer_close(written);
    }
    hy_json_free(json);
}
END_TEST

/* ---- what begins a text ---------------------------------------------------------------------- */

START_TEST(bos_and_eos_are_added_as_the_configuration_says_also_without_a_class) {
    hy_tokenizer *t;
    copy_golden("unigram", "tokenizer.model");
    must(hy_tokenizer_open(folder, &t));
    ck_assert_str_eq(encoded(t, "a", 1, HY_TOKENS_SPECIAL), encoded(t, "a", 1, 0));
    ck_assert_str_eq(hy_tokenizer_guess(t), "sentencepiece");
    hy_tokenizer_close(t);
    put_file("tokenizer_config.json", "{\"add_bos_token\": true, \"add_eos_token\": true}");
    must(hy_tokenizer_open(folder, &t));
    ck_assert_str_eq(encoded(t, "a", 1, HY_TOKENS_SPECIAL), "1 25 2");
    ck_assert_ptr_null(hy_tokenizer_guess(t));
    hy_tokenizer_close(t);
    export_of("tokenizer.model");
    must(hy_tokenizer_open(in_folder("out"), &t));
    ck_assert_str_eq(encoded(t, "a", 1, HY_TOKENS_SPECIAL), "1 25 2");
    hy_tokenizer_close(t);
    must_contain("out/tokenizer_config.json", "\"add_bos_token\": true");
    must_contain("out/tokenizer.json", "\"bos\": {\"id\": \"bos\", \"ids\": [1]");
}
END_TEST

START_TEST(a_model_type_of_gemma_has_its_class_and_the_export_names_it) {
    hy_tokenizer *t;
    copy_golden("gemma", "tokenizer.model");
    put_file("config.json", "{\"model_type\": \"gemma3_text\"}");
    must(hy_tokenizer_open(folder, &t));
    ck_assert_str_eq(hy_tokenizer_guess(t), "GemmaTokenizer");
    ck_assert_int_eq(hy_tokenizer_bos(t), 2);
    hy_tokenizer_close(t);
    export_of("tokenizer.model");
    must_contain("out/tokenizer_config.json", "\"tokenizer_class\": \"GemmaTokenizer\"");
    must_contain("out/tokenizer_config.json", "\"add_bos_token\": false");
    ck_assert(!hy_path_exists(in_folder("out/tokenizer.json")));
    put_file("config.json", "{\"model_type\": \"llama\"}");
    must(hy_tokenizer_open(folder, &t));
    ck_assert_str_eq(hy_tokenizer_guess(t), "sentencepiece");
    hy_tokenizer_close(t);
}
END_TEST

/* ---- text without tokens --------------------------------------------------------------------- */

static void must_count(const hy_tokenizer *t, const char *text, uint64_t count, const char *says) {
    hy_ids ids = {0};
    hy_text out = {0};
    must(hy_tokenizer_encode(t, text, strlen(text), 0, &ids));
    ck_assert_uint_eq(ids.unknown.count, count);
    ck_assert_uint_eq(ids.unknown.tokens, ids.count);
    hy_unknown_text_describe(&ids.unknown, t, &out);
    ck_assert_str_eq(hy_text_string(&out), says);
    hy_text_free(&out);
    hy_ids_free(&ids);
}

START_TEST(text_without_tokens_is_counted_with_an_example) {
    hy_tokenizer *t;
    hy_text out = begin_file(BPE);
    end_file(&out);
    must(hy_tokenizer_open(folder, &t));
    must_count(t, "abcabc", 0, "");
    must_count(t, "abcabcabcabc\xE2\x89\xA0 bca\nabc", 2,
               "2 of 20 tokens are <unk>: the tokenizer has no pieces for this text, for example "
               "\"\xE2\x89\xA0 bca\"");
    must_count(t,
               "ab\x01"
               "c",
               1,
               "1 of 4 tokens are <unk>, more than a tenth: the tokenizer has no pieces for this "
               "text, for example byte 0x01");
    must_count(t, "ab<unk>c", 0, ""); /* the text itself spells it */
    hy_tokenizer_close(t);
    copy_golden("llama", "tokenizer.model"); /* has all bytes */
    must(hy_tokenizer_open(folder, &t));
    must_count(t, "\xE2\x89\xA0 \xE4\xBD\xA0 \xFF", 0, "");
    hy_tokenizer_close(t);
}
END_TEST

/* The template's own token is not text, and "ab" becomes a character without a token. */
START_TEST(unknown_tokens_are_those_of_the_text_and_have_an_example_once) {
    static const char json[] =
        "{\"added_tokens\": [], \"pre_tokenizer\": null, \"decoder\": null, \"normalizer\": "
        "{\"type\": \"Replace\", \"pattern\": {\"String\": \"ab\"}, \"content\": \"x\"}, "
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": "
        "{\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"<e>\", \"type_id\": "
        "0}}], \"pair\": [], \"special_tokens\": {\"<e>\": {\"id\": \"<e>\", \"ids\": [0], "
        "\"tokens\": [\"<e>\"]}}}, \"model\": {\"type\": \"BPE\", \"unk_token\": \"<e>\", "
        "\"vocab\": {\"<e>\": 0, \"a\": 1, \"b\": 2}, \"merges\": []}}";
    hy_tokenizer *t;
    hy_ids ids = {0};
    must(hy_tokenizer_parse(json, sizeof json - 1, "t.json", &t));
    must(hy_tokenizer_encode(t, "ba", 2, HY_TOKENS_SPECIAL, &ids));
    ck_assert_uint_eq(ids.count, 3);
    ck_assert_uint_eq(ids.unknown.count, 0);
    must(hy_tokenizer_encode(t, "aab", 3, HY_TOKENS_SPECIAL, &ids));
    ck_assert_uint_eq(ids.unknown.count, 1);
    ck_assert_str_eq(ids.unknown.example, "\"aab\"");
    hy_ids_free(&ids);
    hy_tokenizer_close(t);
}
END_TEST

START_TEST(a_bos_that_is_no_piece_counts_only_with_a_class) {
    hy_tokenizer *t;
    copy_golden("llama", "tokenizer.model");
    put_file("tokenizer_config.json", "{\"add_bos_token\": true, \"bos_token\": \"<none>\"}");
    must(hy_tokenizer_open(folder, &t));
    char plain[100];
    snprintf(plain, sizeof plain, "%s", encoded(t, "a", 1, 0));
    ck_assert_str_eq(encoded(t, "a", 1, HY_TOKENS_SPECIAL), plain);
    hy_tokenizer_close(t);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("tokenizer: SentencePiece");
    TCase *golden = tcase_create("golden"), *files = tcase_create("files");
    tcase_add_checked_fixture(golden, make_folder, drop_folder);
    tcase_add_test(golden, ids_are_those_of_sentencepiece_and_transformers);
    tcase_add_test(golden, texts_come_back_even_if_they_are_not_valid);
    tcase_add_checked_fixture(files, make_folder, drop_folder);
    tcase_add_test(files, of_equal_scores_the_left_pair_merges_first);
    tcase_add_test(files, user_defined_pieces_stay_whole_and_merge_with_nothing);
    tcase_add_test(files, what_is_not_supported_is_refused_by_name);
    tcase_add_test(files, damaged_files_are_named);
    tcase_add_test(files, classes_that_are_not_supported_are_named);
    tcase_add_test(files, a_piece_that_is_long_or_has_an_extreme_score_takes_bounded_time);
    tcase_add_test(files, an_export_has_the_file_and_nothing_of_the_old_tokenizer);
    tcase_add_test(files, an_export_tells_transformers_how_sentencepiece_reads_the_file);
    tcase_add_test(files, the_tokenizer_json_of_an_export_gives_the_ids_of_sentencepiece);
    tcase_add_test(files, bos_and_eos_are_added_as_the_configuration_says_also_without_a_class);
    tcase_add_test(files, a_model_type_of_gemma_has_its_class_and_the_export_names_it);
    tcase_add_test(files, text_without_tokens_is_counted_with_an_example);
    tcase_add_test(files, unknown_tokens_are_those_of_the_text_and_have_an_example_once);
    tcase_add_test(files, a_bos_that_is_no_piece_counts_only_with_a_class);
    suite_add_tcase(suite, golden);
    suite_add_tcase(suite, files);
    return suite;
}

HY_TEST_MAIN(make_suite)
