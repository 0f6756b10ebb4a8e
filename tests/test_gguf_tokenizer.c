/* test_gguf_tokenizer.c: tokenizers in GGUF files give the ids of the tokenizers that they were
 * made of; wrong ones are refused by name. */
#include "tokenizer_rig.h"

#include "base/json.h"
#include "data/chat_template.h"
#include "hub/end_tokens.h"
#include "hub/gguf_load.h"
#include "hub/gguf_tokenizer.h"

static char folder[256], path[300], source[300];
static char said[2000]; /* messages of the last export */

static void keep_message(void *user, hy_message_level level, const char *text) {
    (void)user, (void)level;
    size_t used = strlen(said);
    snprintf(said + used, sizeof said - used, "%s\n", text);
}
static const hy_observer listener = {.on_message = keep_message};

static void make_folder(void) {
    temp_folder(folder);
    snprintf(path, sizeof path, "%s/vocabulary.gguf", folder);
    snprintf(source, sizeof source, "%s/tokenizer.json", folder);
}

static void drop_folder(void) { remove_folder(folder); }

static void put_keys(hy_gguf_keys *keys) {
    hy_gguf_writer *w;
    must(hy_gguf_create(path, keys, NULL, 0, &w));
    must(hy_gguf_finish(w));
    hy_gguf_keys_free(keys);
}

/* Writes a tokenizer as a GGUF file without tensors; false: llama.cpp does not compute its ids. */
static bool write_vocabulary(const char *tokenizer, int32_t vocab) {
    hy_gguf_keys keys = {0};
    hy_hf_writing writing = {.tokenizer = tokenizer, .observer = &listener};
    said[0] = 0;
    hy_status status = hy_gguf_put_tokenizer(&writing, vocab, &keys);
    if (status == HY_OK) put_keys(&keys);
    hy_gguf_keys_free(&keys);
    ck_assert(status == HY_OK || status == HY_ERR_INPUT);
    return status == HY_OK;
}

static bool gives_the_same(const hy_tokenizer *a, const hy_tokenizer *b, const char *text,
                           size_t size, int flags) {
    hy_ids one = {0}, other = {0};
    hy_text decoded[2] = {{0}, {0}};
    must(hy_tokenizer_encode(a, text, size, flags, &one));
    must(hy_tokenizer_encode(b, text, size, flags, &other));
    bool is_same = one.count == other.count &&
                   (one.count == 0 || memcmp(one.data, other.data, 4 * one.count) == 0);
    must(hy_tokenizer_decode(a, one.data, one.count, 0, &decoded[0]));
    must(hy_tokenizer_decode(b, one.data, one.count, 0, &decoded[1]));
    is_same &= strcmp(hy_text_string(&decoded[0]), hy_text_string(&decoded[1])) == 0;
    for (int i = 0; i < 2; i++) hy_text_free(&decoded[i]);
    hy_ids_free(&one);
    hy_ids_free(&other);
    return is_same;
}

/* ---- tokenizers of every family -------------------------------------------------------------- */

static void compare_texts(const char *name, const hy_json_node *texts) {
    hy_tokenizer *folder_s, *file_s;
    must(hy_tokenizer_open(source, &folder_s));
    hy_status status = hy_tokenizer_open(path, &file_s);
    ck_assert_msg(status == HY_OK, "%s: %s", name, hy_error_message());
    for (const hy_json_node *n = hy_json_first(texts); n; n = hy_json_next(n)) {
        const char *text;
        size_t size;
        ck_assert(hy_json_as_string(n, &text, &size));
        ck_assert_msg(gives_the_same(folder_s, file_s, text, size, 0), "%s: \"%s\"", name, text);
    }
    ck_assert_int_eq(hy_tokenizer_bos(folder_s), hy_tokenizer_bos(file_s));
    ck_assert_int_eq(hy_tokenizer_eos(folder_s), hy_tokenizer_eos(file_s));
    hy_tokenizer_close(folder_s);
    hy_tokenizer_close(file_s);
}

START_TEST(a_file_gives_the_ids_of_the_golden_tokenizers) {
    const char *golden = HY_SOURCE_DIR "/tests/golden/tokenizers.json";
    char *file;
    size_t size;
    int compared = 0;
    hy_json *json;
    must(hy_file_read(golden, &file, &size));
    must(hy_json_parse(file, size, golden, &json));
    const hy_json_node *texts = hy_json_get(hy_json_root(json), "texts");
    const hy_json_node *set = hy_json_first(hy_json_get(hy_json_root(json), "tokenizers"));
    for (const char *at = file; set; set = hy_json_next(set)) {
        const char *name;
        hy_tokenizer *t;
        ck_assert(hy_json_as_string(hy_json_get(set, "name"), &name, NULL));
        at = strstr(at, "\"tokenizer\":{") + strlen("\"tokenizer\":");
        must(hy_file_write_atomic(source, at, object_size(at)));
        const char *stripped = strstr(at, "\"lstrip\":true"); /* files cannot say it */
        if (stripped && stripped < at + object_size(at)) continue;
        must(hy_tokenizer_open(source, &t));
        int32_t vocab = hy_tokenizer_vocab(t);
        hy_tokenizer_close(t);
        if (!write_vocabulary(source, vocab + 5)) continue; /* five ids are not used */
        compare_texts(name, texts);
        compared++;
    }
    ck_assert_int_ge(compared, 2);
    hy_json_free(json);
    free(file);
}
END_TEST

/* ---- real tokenizers ------------------------------------------------------------------------- */

static const struct {
    const char *tests, *tokenizer;
    int32_t vocab;
} real[] = {
    {"gpt-2", "gpt2", 50304}, {"llama-bpe", "llama3", 128256}, {"llama-spm", "llama2", 32064}};

/* The expected ids are llama.cpp's. */
static void compare_difficult(const hy_tokenizer *t, char *texts, char *ids) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char *text = texts, *line = ids;
    int cases = 0;
    for (char *end; text; text = end ? end + strlen(separator) : NULL, cases++) {
        end = strstr(text, separator);
        char *line_end = strchr(line, '\n');
        if (line_end) *line_end = '\0';
        while (*line == ' ') line++;
        size_t length = end ? (size_t)(end - text) : strlen(text);
        ck_assert_str_eq(encoded(t, text, length, 0), line);
        must_come_back(t, text, length);
        line = line_end + 1;
    }
    ck_assert_int_eq(cases, 47);
}

START_TEST(a_file_gives_the_ids_of_real_tokenizers) {
    char tokenizer[1024], tests[1024], name[128], text[512], *texts, *ids;
    hy_tokenizer *of_folder, *of_file;
    size_t size;
    snprintf(name, sizeof name, "tokenizers/%s", real[_i].tokenizer);
    if (!real_file(tokenizer, name)) return;
    ck_assert_msg(write_vocabulary(tokenizer, real[_i].vocab), "%s", hy_error_message());
    must(hy_tokenizer_open(tokenizer, &of_folder));
    must(hy_tokenizer_open(path, &of_file));
    snprintf(name, sizeof name, "tokenizer-tests/ggml-vocab-%s.gguf.inp", real[_i].tests);
    ck_assert(real_file(tests, name));
    must(hy_file_read(tests, &texts, &size));
    memcpy(tests + strlen(tests) - 3, "out", 3);
    must(hy_file_read(tests, &ids, &size));
    compare_difficult(of_file, texts, ids);
    for (uint64_t i = 0; i < 2000; i += EVERY(4)) {
        size = random_text(text, sizeof text, i);
        bool is_same = gives_the_same(of_folder, of_file, text, size, HY_TOKENS_SPECIAL);
        ck_assert_msg(is_same, "%s: text %d has other ids", name, (int)i);
    }
    hy_tokenizer_close(of_folder);
    hy_tokenizer_close(of_file);
    free(texts);
    free(ids);
}
END_TEST

/* ---- Unigram --------------------------------------------------------------------------------- */

#define GOLDEN_PIECES HY_SOURCE_DIR "/tests/golden/sentencepiece/"

/* The 300 golden texts and random ones. */
static void compare_pieces(const char *from, const char *to) {
    hy_tokenizer *one, *other;
    hy_json *json;
    char text[512];
    must(hy_tokenizer_open(from, &one));
    hy_status status = hy_tokenizer_open(to, &other);
    ck_assert_msg(status == HY_OK, "%s: %s", to, hy_error_message());
    must(hy_json_read_file(GOLDEN_PIECES "expected.json", &json));
    const hy_json_node *n = hy_json_first(hy_json_get(hy_json_root(json), "texts"));
    for (; n; n = hy_json_next(n)) {
        const char *golden = "";
        size_t size = 0;
        hy_json_as_string(n, &golden, &size);
        ck_assert_msg(gives_the_same(one, other, golden, size, HY_TOKENS_SPECIAL), "%s", golden);
    }
    for (uint64_t i = 0; i < 2000; i++) {
        size_t size = random_text(text, sizeof text, i);
        ck_assert_msg(gives_the_same(one, other, text, size, HY_TOKENS_SPECIAL), "text %d", (int)i);
    }
    ck_assert_int_eq(hy_tokenizer_eos(one), hy_tokenizer_eos(other));
    ck_assert_int_eq(hy_tokenizer_unknown(one), hy_tokenizer_unknown(other));
    hy_json_free(json);
    hy_tokenizer_close(one);
    hy_tokenizer_close(other);
}

START_TEST(unigram_tokenizers_are_read_back_and_become_files_of_a_folder) {
    static const char pieces[] = GOLDEN_PIECES "unigram.model";
    char out[300];
    hy_tokenizer *t;
    must(hy_tokenizer_open(pieces, &t));
    int32_t vocab = hy_tokenizer_vocab(t);
    hy_tokenizer_close(t);
    ck_assert_msg(write_vocabulary(pieces, vocab + 5), "%s", hy_error_message());
    compare_pieces(pieces, path);
    snprintf(out, sizeof out, "%s/out", folder);
    must(hy_dir_make(out));
    must(hy_gguf_put_side_files(path, out));
    compare_pieces(pieces, out);
    /* an export of that folder, and of the file itself */
    ck_assert_msg(write_vocabulary(out, vocab + 5), "%s", hy_error_message());
    compare_pieces(pieces, path);
    snprintf(out, sizeof out, "%s/first.gguf", folder);
    must(hy_path_rename(path, out));
    ck_assert_msg(write_vocabulary(out, vocab + 5), "%s", hy_error_message());
    compare_pieces(pieces, path);
}
END_TEST

/* Appends fields to the golden Unigram file: protobuf joins messages. */
static void extend_pieces(const char *fields, size_t size, const char *to) {
    char *data;
    size_t had;
    must(hy_file_read(GOLDEN_PIECES "unigram.model", &data, &had));
    data = realloc(data, had + size);
    memcpy(data + had, fields, size);
    must(hy_file_write_atomic(to, data, had + size));
    free(data);
}

static int64_t type_in_file(const char *token) {
    hy_gguf *file;
    int64_t type = -1;
    const char *text;
    must(hy_gguf_open(path, &file));
    const hy_gguf_value *tokens = hy_gguf_get(file, "tokenizer.ggml.tokens");
    for (size_t i = 0; hy_gguf_as_string(tokens, i, &text, NULL); i++) {
        if (strcmp(text, token) == 0)
            hy_gguf_as_int(hy_gguf_get(file, "tokenizer.ggml.token_type"), i, &type);
    }
    hy_gguf_close(file);
    return type;
}

/* Gemma's runs of blanks are user-defined pieces. */
START_TEST(blanks_of_user_defined_pieces_are_those_of_the_text) {
    static const char pieces[] = GOLDEN_PIECES "gemma.model";
    hy_tokenizer *one, *other;
    char text[512];
    must(hy_tokenizer_open(pieces, &one));
    ck_assert_msg(write_vocabulary(pieces, hy_tokenizer_vocab(one)), "%s", hy_error_message());
    ck_assert_int_eq(type_in_file("  "), HY_GGUF_TOKEN_USER_DEFINED);
    must(hy_tokenizer_open(path, &other));
    for (uint64_t i = 0; i < 2000; i++) {
        size_t size = random_text(text, sizeof text, i);
        if (memmem(text, size, BLANK, 3)) continue; /* the character itself, beside a blank */
        ck_assert_msg(gives_the_same(one, other, text, size, 0), "text %d", (int)i);
    }
    hy_tokenizer_close(one);
    hy_tokenizer_close(other);
}
END_TEST

START_TEST(user_defined_and_unused_pieces_of_unigram_keep_their_meaning) {
    static const char fields[] = "\x0A\x0C\x0A\x03<u>\x15\0\0\0\0\x18\x04"
                                 "\x0A\x0C\x0A\x03<U>\x15\0\0\0\0\x18\x04"
                                 "\x0A\x0B\x0A\x02zq\x15\0\0\0\0\x18\x05";
    char pieces[300];
    hy_tokenizer *one, *other;
    snprintf(pieces, sizeof pieces, "%s/more.model", folder);
    extend_pieces(fields, sizeof fields - 1, pieces);
    must(hy_tokenizer_open(pieces, &one));
    ck_assert_msg(write_vocabulary(pieces, hy_tokenizer_vocab(one)), "%s", hy_error_message());
    must(hy_tokenizer_open(path, &other));
    ck_assert_int_eq(type_in_file("<u>"), HY_GGUF_TOKEN_NORMAL);
    ck_assert_int_eq(type_in_file("<U>"), HY_GGUF_TOKEN_USER_DEFINED);
    ck_assert_int_eq(type_in_file("zq"), HY_GGUF_TOKEN_UNUSED);
    ck_assert_str_eq(said,
                     "llama.cpp puts a blank after 1 added token (<U>); the tokenizer does not\n");
    ck_assert(gives_the_same(one, other, "a<u>b <U>zq", 11, 0));
    hy_tokenizer_close(one);
    hy_tokenizer_close(other);
    extend_pieces("\x1A\x02\x18\0", 4, pieces); /* add_dummy_prefix: false */
    ck_assert(!write_vocabulary(pieces, 400));
    ck_assert_ptr_nonnull(
        strstr(hy_error_message(), "remove_extra_whitespaces needs add_dummy_prefix"));
}
END_TEST

/* ---- what llama.cpp reads otherwise ---------------------------------------------------------- */

/* Pieces with bytes, one added token, and these steps. */
static bool write_blanks(const char *normalizer, const char *pre_tokenizer) {
    hy_text json = {0};
    hy_text_addf(
        &json,
        "{\"added_tokens\": [{\"id\": 259, \"content\": \"<u>\", \"special\": false, "
        "\"normalized\": true}, {\"id\": 260, \"content\": \"<v>\", \"normalized\": true}], "
        "\"normalizer\": %s, \"pre_tokenizer\": %s, \"model\": "
        "{\"type\": \"BPE\", \"byte_fallback\": true, \"unk_token\": \"<unk>\", "
        "\"merges\": [], \"vocab\": {\"<unk>\": 256, \"" BLANK "\": 257, \"a\": 258",
        normalizer, pre_tokenizer);
    for (int i = 0; i < 256; i++) hy_text_addf(&json, ", \"<0x%02X>\": %d", (unsigned)i, i);
    hy_text_add(&json, "}}}");
    must(hy_file_write_atomic(source, json.data, json.size));
    hy_text_free(&json);
    return write_vocabulary(source, 261);
}

#define METASPACE(scheme)                                                                          \
    "{\"type\": \"Metaspace\", \"replacement\": \"" BLANK "\", \"prepend_scheme\": \"" scheme "\"" \
    "}"

START_TEST(blanks_that_llama_cpp_adds_are_warned_of) {
    static const char prepend[] =
        "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"" BLANK
        "\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" BLANK
        "\"}]}";
    static const char before[] = "llama.cpp puts a blank before every text";
    static const char after[] = "after every special token";
    ck_assert(write_blanks("null", METASPACE("never")));
    ck_assert_str_eq(said, "");
    ck_assert(write_blanks("null", METASPACE("always")));
    ck_assert(strstr(said, before) && !strstr(said, after));
    ck_assert(write_blanks("null", METASPACE("first")));
    ck_assert(strstr(said, before) && strstr(said, after));
    ck_assert(write_blanks(prepend, "null"));
    ck_assert_str_eq(said, "llama.cpp puts a blank after 2 added tokens (<u> and others); the "
                           "tokenizer does not\n");
}
END_TEST

static bool write_split(const char *split, const char *normalizer, const char *settings) {
    char pre[2000];
    hy_text json = {0};
    if (split[0])
        snprintf(pre, sizeof pre,
                 "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
                 "{\"Regex\": \"%s\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": "
                 "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}",
                 split);
    write_byte_level(&json, &(tokenizer_parts){.normalizer = normalizer,
                                               .pre_tokenizer = split[0] ? pre : BYTE_LEVEL,
                                               .decoder = BYTE_LEVEL,
                                               .settings = settings});
    must(hy_file_write_atomic(source, json.data, json.size));
    hy_text_free(&json);
    return write_vocabulary(source, 256);
}

static void must_be_named(const char *name) {
    hy_gguf *file;
    const char *pre = "";
    must(hy_gguf_open(path, &file));
    hy_gguf_as_string(hy_gguf_get(file, "tokenizer.ggml.pre"), 0, &pre, NULL);
    ck_assert_str_eq(pre, name);
    hy_gguf_close(file);
}

START_TEST(the_name_of_a_split_says_whether_text_becomes_nfc) {
    static const char digit[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
        "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+";
    static const char marks[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}| "
        "?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|"
        "\\\\s+";
    static const struct {
        const char *split, *normalizer, *name;
    } cases[] = {{digit, "{\"type\": \"NFC\"}", "qwen2"},
                 {marks, "{\"type\": \"NFC\"}", "qwen35"},
                 {digit, NULL, "deepseek-r1-qwen"},
                 {"", "{\"type\": \"NFC\"}", "olmo"},
                 {"", NULL, "gpt-2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hy_tokenizer *one, *other;
        bool is_written = write_split(cases[i].split, cases[i].normalizer, NULL);
        ck_assert_msg(is_written, "%s", hy_error_message());
        ck_assert_int_eq(strstr(said, "NFC") != NULL, cases[i].normalizer != NULL);
        must_be_named(cases[i].name);
        must(hy_tokenizer_open(source, &one));
        must(hy_tokenizer_open(path, &other));
        ck_assert_msg(gives_the_same(one, other, "e\xCC\x81 1", 5, 0), "%s", cases[i].name);
        hy_tokenizer_close(one);
        hy_tokenizer_close(other);
    }
    ck_assert(!write_split(digit, NULL, ",\"ignore_merges\": true"));
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "has ignore_merges true, but llama.cpp has"));
}
END_TEST

/* ---- files made by hand ---------------------------------------------------------------------- */

typedef struct vocabulary {
    const char *model, *pre, *tokens[4];
    int32_t types[4], bos;
    bool lacks_scores, lacks_merges;
} vocabulary;

static void write_made(const vocabulary *v) {
    hy_gguf_keys keys = {0};
    if (v->model) hy_gguf_put_string(&keys, "tokenizer.ggml.model", v->model);
    if (v->pre) hy_gguf_put_string(&keys, "tokenizer.ggml.pre", v->pre);
    hy_gguf_open_array(&keys, "tokenizer.ggml.tokens", HY_GGUF_STRING, 4);
    for (int i = 0; i < 4; i++) hy_gguf_put_string(&keys, NULL, v->tokens[i]);
    hy_gguf_open_array(&keys, "tokenizer.ggml.token_type", HY_GGUF_I32, 4);
    for (int i = 0; i < 4; i++) hy_gguf_put_int(&keys, NULL, HY_GGUF_I32, v->types[i]);
    if (!v->lacks_scores) {
        hy_gguf_open_array(&keys, "tokenizer.ggml.scores", HY_GGUF_F32, 4);
        for (int i = 0; i < 4; i++) hy_gguf_put_f32(&keys, NULL, -i);
    }
    if (!v->lacks_merges) {
        hy_gguf_open_array(&keys, "tokenizer.ggml.merges", HY_GGUF_STRING, 1);
        hy_gguf_put_string(&keys, NULL, "a b");
    }
    hy_gguf_put_int(&keys, "tokenizer.ggml.bos_token_id", HY_GGUF_U32, v->bos);
    hy_gguf_put_int(&keys, "tokenizer.ggml.eos_token_id", HY_GGUF_U32, 0);
    hy_gguf_put_int(&keys, "tokenizer.ggml.eot_token_id", HY_GGUF_U32, 3);
    hy_gguf_put_string(&keys, "tokenizer.chat_template", "{{ messages[0]['content'] }}");
    put_keys(&keys);
}

static const vocabulary usual = {
    "gpt2", "gpt-2", {"<e>", "a", "b", "ab"}, {HY_GGUF_TOKEN_CONTROL, 1, 1, 1}, 0, false, false};

START_TEST(keys_give_merges_special_tokens_template_and_ends) {
    hy_tokenizer *t;
    hy_chat_template chat;
    hy_end_tokens ends;
    write_made(&usual);
    must(hy_tokenizer_open(path, &t));
    must_encode(t, "abba<e>", "3 2 1 0");
    ck_assert_int_eq(hy_tokenizer_eos(t), 0);
    ck_assert(hy_tokenizer_is_special(t, 0) && !hy_tokenizer_is_special(t, 1));
    must(hy_chat_template_open(HY_CHAT_AUTO, t, path, &chat));
    ck_assert_int_eq(chat.kind, HY_CHAT_OWN);
    hy_chat_template_close(&chat);
    must(hy_end_tokens_read(path, &ends));
    ck_assert(ends.count == 2 && hy_end_tokens_has(&ends, 0) && hy_end_tokens_has(&ends, 3));
    hy_tokenizer_close(t);
}
END_TEST

/* Ids 0 to 2 are special, 3 to 258 bytes; then come pieces, the first with the highest score. */
START_TEST(pieces_with_scores_merge_as_in_sentencepiece) {
    static const char *const pieces[] = {BLANK, "a", "b", "ab", BLANK "a", "<u>", BLANK "ab"};
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    enum { BYTES = 3, PIECES = 259, COUNT = PIECES + 7 };
    hy_gguf_keys keys = {0};
    hy_tokenizer *t;
    hy_gguf_put_string(&keys, "tokenizer.ggml.model", "llama");
    hy_gguf_open_array(&keys, "tokenizer.ggml.tokens", HY_GGUF_STRING, COUNT);
    for (int i = 0; i < COUNT; i++) {
        char byte[8];
        snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)(i - BYTES) & 255);
        hy_gguf_put_string(&keys, NULL,
                           i < BYTES    ? special[i]
                           : i < PIECES ? byte
                                        : pieces[i - PIECES]);
    }
    hy_gguf_open_array(&keys, "tokenizer.ggml.scores", HY_GGUF_F32, COUNT);
    for (int i = 0; i < COUNT; i++) hy_gguf_put_f32(&keys, NULL, i < PIECES ? 0 : PIECES - i);
    hy_gguf_open_array(&keys, "tokenizer.ggml.token_type", HY_GGUF_I32, COUNT);
    for (int i = 0; i < COUNT; i++) {
        int32_t type = i == 0            ? HY_GGUF_TOKEN_UNKNOWN
                       : i < BYTES       ? HY_GGUF_TOKEN_CONTROL
                       : i < PIECES      ? HY_GGUF_TOKEN_BYTE
                       : i == PIECES + 5 ? HY_GGUF_TOKEN_USER_DEFINED
                                         : HY_GGUF_TOKEN_NORMAL;
        hy_gguf_put_int(&keys, NULL, HY_GGUF_I32, type);
    }
    put_keys(&keys);
    must(hy_tokenizer_open(path, &t));
    must_encode(t, "ab", "265");
    must_encode(t, "ba b", "259 261 260 259 261");
    must_encode(t, "\xC3\xA9", "259 198 172");
    must_encode(t, "b<u>a</s>", "259 261 264 263 2");
    ck_assert_str_eq(encoded(t, "ab", 2, HY_TOKENS_SPECIAL), "1 265");
    must_come_back(t, "a ab  \xC3\xA9", 8);
    hy_tokenizer_close(t);
}
END_TEST

static void refuse(const vocabulary *v, const char *fragment) {
    hy_tokenizer *t;
    write_made(v);
    must_fail(hy_tokenizer_open(path, &t), HY_ERR_INPUT, fragment);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "vocabulary.gguf"));
}

START_TEST(wrong_tokenizers_are_refused_by_name) {
    vocabulary v = usual;
    v.model = "bert";
    refuse(&v, "tokenizer.ggml.model is bert; supported: gpt2, llama, t5");
    v.model = NULL;
    refuse(&v, "has no tokenizer");
    v = usual;
    v.pre = "future";
    refuse(&v, "tokenizer.ggml.pre is future; supported: gpt-2, llama-bpe");
    v.pre = NULL;
    refuse(&v, "tokenizer.ggml.pre is missing");
    v = usual;
    v.types[2] = 9;
    refuse(&v, "token 2 has the type 9");
    v = usual;
    v.tokens[1] = "\xC3(";
    refuse(&v, "token 1 is not UTF-8");
    v = usual;
    v.tokens[1] = "b";
    refuse(&v, "\"b\"");
    v = usual;
    v.bos = 4;
    refuse(&v, "tokenizer.ggml.bos_token_id is 4; expected an id below 4");
    v = usual;
    v.lacks_merges = true;
    refuse(&v, "tokenizer.ggml.merges is missing");
    v.model = "llama";
    v.lacks_scores = true;
    refuse(&v, "tokenizer.ggml.scores has no number for token 0");
}
END_TEST

static Suite *gguf_tokenizer_suite(void) {
    Suite *suite = suite_create("gguf_tokenizer");
    TCase *tc = tcase_create("tokenizer");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, make_folder, drop_folder);
    tcase_add_test(tc, a_file_gives_the_ids_of_the_golden_tokenizers);
    tcase_add_loop_test(tc, a_file_gives_the_ids_of_real_tokenizers, 0, 3);
    tcase_add_test(tc, unigram_tokenizers_are_read_back_and_become_files_of_a_folder);
    tcase_add_test(tc, blanks_of_user_defined_pieces_are_those_of_the_text);
    tcase_add_test(tc, user_defined_and_unused_pieces_of_unigram_keep_their_meaning);
    tcase_add_test(tc, blanks_that_llama_cpp_adds_are_warned_of);
    tcase_add_test(tc, the_name_of_a_split_says_whether_text_becomes_nfc);
    tcase_add_test(tc, keys_give_merges_special_tokens_template_and_ends);
    tcase_add_test(tc, pieces_with_scores_merge_as_in_sentencepiece);
    tcase_add_test(tc, wrong_tokenizers_are_refused_by_name);
    suite_add_tcase(suite, tc);
    return suite;
}

HY_TEST_MAIN(gguf_tokenizer_suite)
