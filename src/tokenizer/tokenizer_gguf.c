/* tokenizer_gguf.c: converts the tokenizer of a GGUF file. See tokenizer_gguf.h.
 *
 * Tokens must be UTF-8 without zeros, and those of a SentencePiece tokenizer short, so that the
 * search for merges takes limited time. What the texts mean is checked when they are opened. */
#include "tokenizer/tokenizer_gguf.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "formats/gguf.h"
#include "tokenizer/tokenizer_score_merges.h"
#include "tokenizer/tokenizer_sentencepiece.h"
#include "tokenizer/tokenizer_vocab_files.h"

#define PREFIX "tokenizer.ggml."
enum { PIECE_MAX = 512, PIECES_BYTES_MAX = 16 << 20 };

/* ---- splits ---------------------------------------------------------------------------------- */

#define LETTERS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASES(after)                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" after "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER   \
    "*" after
#define BLANKS "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SIGNS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SIGNS_SLASH "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
#define THREE_DIGITS "Split " SHORT_FORMS "|" LETTERS "|\\p{N}{1,3}" SIGNS BLANKS "\n"
#define ONE_DIGIT "Split " SHORT_FORMS "|" LETTERS "|\\p{N}" SIGNS BLANKS "\n"
#define MARKS                                                                                      \
    "Split " SHORT_FORMS                                                                           \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+"                    \
    "[\\r\\n]*" BLANKS "\n"

const hy_gguf_split hy_gguf_splits[] = {
    {"gpt-2", "ByteLevel\n", false, false},
    {"llama-bpe", THREE_DIGITS, true, false},
    {"dbrx", THREE_DIGITS, false, false},
    {"qwen2", ONE_DIGIT, false, true},
    {"qwen35", MARKS, false, true},
    {"smollm", "Digits\nByteLevel\n", false, false},
    {"tekken", "Split " CASES("") "|\\p{N}" SIGNS_SLASH BLANKS "\n", true, false},
    {"gpt-4o", "Split " CASES(SHORT_FORMS "?") "|\\p{N}{1,3}" SIGNS_SLASH BLANKS "\n", false,
     false},
    /* other names of the same splits */
    {"phi-2", "ByteLevel\n", false, false},
    {"olmo", "ByteLevel\n", false, true},
    {"mpt", "ByteLevel\n", false, true},
    {"exaone4", "ByteLevel\n", false, false},
    {"llama3", THREE_DIGITS, true, false},
    {"llama-v3", THREE_DIGITS, true, false},
    {"falcon3", THREE_DIGITS, true, false},
    {"pixtral", THREE_DIGITS, true, false},
    {"smaug-bpe", THREE_DIGITS, false, false},
    {"deepseek-r1-qwen", ONE_DIGIT, false, false},
    {"stablelm2", ONE_DIGIT, false, true},
    {"megrez", ONE_DIGIT, false, true},
    {"starcoder", "Digits\nByteLevel\n", false, false},
    {"refact", "Digits\nByteLevel\n", false, false},
    {"command-r", "Digits\nByteLevel\n", false, false},
    {"codeshell", "Digits\nByteLevel\n", false, false},
    {"llama4", "Split " CASES(SHORT_FORMS "?") "|\\p{N}{1,3}" SIGNS_SLASH BLANKS "\n", false,
     false},
    {0},
};

static hy_status find_split(const hy_gguf *file, const hy_gguf_split **out) {
    const char *name = "";
    hy_gguf_as_string(hy_gguf_get(file, PREFIX "pre"), 0, &name, NULL);
    hy_text known = {0};
    for (*out = hy_gguf_splits; (*out)->name; ++*out) {
        if (strcmp((*out)->name, name) == 0) break;
        hy_text_addf(&known, "%s%s", known.size ? ", " : "", (*out)->name);
    }
    hy_status status = HY_OK;
    if (!(*out)->name)
        status = hy_fail(HY_ERR_INPUT, "%s: " PREFIX "pre is %.60s; supported: %s",
                         hy_gguf_path(file), name[0] ? name : "missing", hy_text_string(&known));
    hy_text_free(&known);
    return status;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* tokenizer.ggml.model */
typedef enum vocabulary_kind { GPT2, LLAMA, T5, KINDS } vocabulary_kind;
static const char *const kinds[KINDS] = {"gpt2", "llama", "t5"};

/* The special tokens that have keys. */
enum { BOS, EOS, UNKNOWN, PADDING, ROLES };
static const struct {
    const char *key, *name; /* in the file, and in tokenizer_config.json */
    int32_t usual[KINDS];   /* without the key; -1: none */
} roles[ROLES] = {{PREFIX "bos_token_id", "bos_token", {-1, 1, -1}},
                  {PREFIX "eos_token_id", "eos_token", {-1, 2, 1}},
                  {PREFIX "unknown_token_id", "unk_token", {-1, 0, 2}},
                  {PREFIX "padding_token_id", "pad_token", {-1, -1, 0}}};

typedef struct vocabulary {
    const hy_gguf *file;
    const hy_gguf_value *tokens, *types, *scores;
    vocabulary_kind kind;
    const hy_gguf_split *split; /* of GPT2 */
    int32_t count;
    int32_t roles[ROLES]; /* ids; -1: none */
    bool adds_bos, adds_eos;
} vocabulary;

/* Checked by check_tokens. */
static const char *token(const vocabulary *v, int32_t id) {
    const char *text = "";
    hy_gguf_as_string(v->tokens, (size_t)id, &text, NULL);
    return text;
}

static hy_gguf_token_type type_of(const vocabulary *v, int32_t id) {
    int64_t type = HY_GGUF_TOKEN_NORMAL;
    hy_gguf_as_int(v->types, (size_t)id, &type);
    return (hy_gguf_token_type)type;
}

static hy_status check_tokens(const vocabulary *v) {
    const char *path = hy_gguf_path(v->file), *text;
    size_t size, bytes = 0;
    bool has_types = !v->types || hy_gguf_size(v->types) == (size_t)v->count;
    HY_FAIL_IF(v->count == 0 || !has_types, HY_ERR_INPUT,
               "%s: " PREFIX "tokens has %d tokens and " PREFIX "token_type %zu", path, v->count,
               hy_gguf_size(v->types));
    for (int32_t id = 0; id < v->count; id++) {
        int64_t type = HY_GGUF_TOKEN_NORMAL;
        bool is_text = hy_gguf_as_string(v->tokens, (size_t)id, &text, &size);
        HY_FAIL_IF(v->types && (!hy_gguf_as_int(v->types, (size_t)id, &type) ||
                                type < HY_GGUF_TOKEN_NORMAL || type > HY_GGUF_TOKEN_BYTE),
                   HY_ERR_INPUT, "%s: token %d has the type %lld; expected 1 to 6", path, id,
                   (long long)type);
        for (size_t at = 0, length; is_text && at < size; at += length) {
            length = (size_t)hy_utf8_length((const uint8_t *)text + at, size - at);
            is_text = length > 0 && text[at];
        }
        HY_FAIL_IF(!is_text, HY_ERR_INPUT, "%s: token %d is not UTF-8 text without zeros", path,
                   id);
        bytes += size;
        HY_FAIL_IF(!v->split && (size > PIECE_MAX || bytes > PIECES_BYTES_MAX), HY_ERR_INPUT,
                   "%s: token %d has %zu bytes, and those up to it %zu; the limits are %d and %d",
                   path, id, size, bytes, PIECE_MAX, PIECES_BYTES_MAX);
    }
    return HY_OK;
}

static hy_status read_roles(vocabulary *v) {
    for (int i = 0; i < ROLES; i++) {
        const hy_gguf_value *value = hy_gguf_get(v->file, roles[i].key);
        int64_t id = roles[i].usual[v->kind];
        bool is_id = !value || hy_gguf_as_int(value, 0, &id);
        if (!value && id >= v->count) id = -1;
        HY_FAIL_IF(!is_id || id >= v->count, HY_ERR_INPUT,
                   "%s: %s is %lld; expected an id below %d", hy_gguf_path(v->file), roles[i].key,
                   (long long)id, v->count);
        v->roles[i] = id < 0 || type_of(v, (int32_t)id) == HY_GGUF_TOKEN_UNUSED ? -1 : (int32_t)id;
    }
    v->adds_bos = v->kind == LLAMA || (v->split && v->split->ignores_merges);
    v->adds_eos = v->kind == T5;
    hy_gguf_as_bool(hy_gguf_get(v->file, PREFIX "add_bos_token"), 0, &v->adds_bos);
    hy_gguf_as_bool(hy_gguf_get(v->file, PREFIX "add_eos_token"), 0, &v->adds_eos);
    v->adds_bos &= v->roles[BOS] >= 0;
    v->adds_eos &= v->roles[EOS] >= 0;
    return HY_OK;
}

static hy_status read_vocabulary(const hy_gguf *file, vocabulary *v) {
    const char *name = "";
    *v = (vocabulary){.file = file,
                      .tokens = hy_gguf_get(file, PREFIX "tokens"),
                      .types = hy_gguf_get(file, PREFIX "token_type"),
                      .scores = hy_gguf_get(file, PREFIX "scores")};
    hy_gguf_as_string(hy_gguf_get(file, PREFIX "model"), 0, &name, NULL);
    while (v->kind < KINDS && strcmp(kinds[v->kind], name) != 0) v->kind++;
    HY_FAIL_IF(v->kind == KINDS, HY_ERR_INPUT,
               "%s: " PREFIX "model is %.40s; supported: gpt2, llama, t5", hy_gguf_path(file),
               name[0] ? name : "missing");
    if (v->kind == GPT2) HY_TRY(find_split(file, &v->split));
    v->count = (int32_t)hy_gguf_size(v->tokens); /* a header has fewer than 2^28 bytes */
    HY_TRY(check_tokens(v));
    return read_roles(v);
}

/* ---- tokenizer.json -------------------------------------------------------------------------- */

static void put_byte_level(hy_json_writer *w, const char *key, bool splits) {
    hy_json_open_object(w, key);
    hy_json_put_string(w, "type", "ByteLevel");
    hy_json_put_bool(w, "add_prefix_space", false);
    hy_json_put_bool(w, "trim_offsets", true);
    hy_json_put_bool(w, "use_regex", splits);
    hy_json_close_object(w);
}

static void put_split(const vocabulary *v, hy_json_writer *w) {
    bool splits = false;
    if (v->split->has_nfc)
        hy_text_add(w->text, ", \"normalizer\": {\"type\": \"NFC\"}");
    else
        hy_json_put_null(w, "normalizer");
    hy_json_open_object(w, "pre_tokenizer");
    hy_json_put_string(w, "type", "Sequence");
    hy_json_open_array(w, "pretokenizers");
    for (const char *step = v->split->steps; *step; step = strchr(step, '\n') + 1) {
        char regex[512];
        size_t size = (size_t)(strchr(step, '\n') - step);
        splits |= strncmp(step, "ByteLevel", size) == 0;
        if (strncmp(step, "Split ", 6) == 0) {
            memcpy(regex, step + 6, size - 6); /* steps are shorter */
            regex[size - 6] = 0;
            hy_json_open_object(w, NULL);
            hy_json_put_string(w, "type", "Split");
            hy_json_open_object(w, "pattern");
            hy_json_put_string(w, "Regex", regex);
            hy_json_close_object(w);
            hy_json_put_string(w, "behavior", "Isolated");
            hy_json_put_bool(w, "invert", false);
            hy_json_close_object(w);
        } else if (strncmp(step, "Digits", size) == 0) {
            hy_json_open_object(w, NULL);
            hy_json_put_string(w, "type", "Digits");
            hy_json_put_bool(w, "individual_digits", true);
            hy_json_close_object(w);
        }
    }
    put_byte_level(w, NULL, splits);
    hy_json_close_array(w);
    hy_json_close_object(w);
    put_byte_level(w, "decoder", true);
}

static void put_blanks(const vocabulary *v, hy_json_writer *w) {
    bool has_prefix = true;
    hy_gguf_as_bool(hy_gguf_get(v->file, PREFIX "add_space_prefix"), 0, &has_prefix);
    hy_text_addf(w->text,
                 ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [%s{\"type\": "
                 "\"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" HY_BLANK "\"}]}"
                 ", \"pre_tokenizer\": null"
                 ", \"decoder\": {\"type\": \"Sequence\", \"decoders\": ["
                 "{\"type\": \"Replace\", \"pattern\": {\"String\": \"" HY_BLANK
                 "\"}, \"content\": "
                 "\" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}%s]}",
                 has_prefix ? "{\"type\": \"Prepend\", \"prepend\": \"" HY_BLANK "\"}, " : "",
                 has_prefix ? ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, "
                              "\"stop\": 0}"
                            : "");
}

static void put_added(const vocabulary *v, hy_json_writer *w) {
    hy_json_open_array(w, "added_tokens");
    for (int32_t id = 0; id < v->count; id++) {
        hy_gguf_token_type type = type_of(v, id);
        bool is_special = type == HY_GGUF_TOKEN_CONTROL || type == HY_GGUF_TOKEN_UNKNOWN;
        if (is_special || type == HY_GGUF_TOKEN_USER_DEFINED)
            hy_tokenizer_put_added(w, id, token(v, id), NULL, is_special, false);
    }
    hy_json_close_array(w);
}

static void put_template_item(hy_json_writer *w, const char *kind, const char *id) {
    hy_json_open_object(w, NULL);
    hy_json_open_object(w, kind);
    hy_json_put_string(w, "id", id);
    hy_json_put_int(w, "type_id", 0);
    hy_json_close_object(w);
    hy_json_close_object(w);
}

/* The tokens before and after a text. */
static void put_post_processor(const vocabulary *v, hy_json_writer *w) {
    const bool adds[2] = {v->adds_bos, v->adds_eos};
    bool is_same = adds[0] && adds[1] && v->roles[BOS] == v->roles[EOS];
    if (!adds[0] && !adds[1]) {
        hy_json_put_null(w, "post_processor");
        return;
    }
    hy_json_open_object(w, "post_processor");
    hy_json_put_string(w, "type", "TemplateProcessing");
    hy_json_open_array(w, "single");
    if (adds[0]) put_template_item(w, "SpecialToken", token(v, v->roles[BOS]));
    put_template_item(w, "Sequence", "A");
    if (adds[1]) put_template_item(w, "SpecialToken", token(v, v->roles[EOS]));
    hy_json_close_array(w);
    hy_json_open_array(w, "pair");
    hy_json_close_array(w);
    hy_json_open_object(w, "special_tokens");
    for (int i = 0; i < 2; i++) {
        const char *text = token(v, v->roles[i] < 0 ? 0 : v->roles[i]);
        if (!adds[i] || (i == 1 && is_same)) continue;
        hy_json_open_object(w, text);
        hy_json_put_string(w, "id", text);
        hy_json_open_array(w, "ids");
        hy_json_put_int(w, NULL, v->roles[i]);
        hy_json_close_array(w);
        hy_json_open_array(w, "tokens");
        hy_json_put_string(w, NULL, text);
        hy_json_close_array(w);
        hy_json_close_object(w);
    }
    hy_json_close_object(w);
    hy_json_close_object(w);
}

static hy_status put_merges(const vocabulary *v, hy_json_writer *w) {
    const hy_gguf_value *merges = hy_gguf_get(v->file, PREFIX "merges");
    const char *text;
    HY_FAIL_IF(!merges, HY_ERR_INPUT, "%s: key " PREFIX "merges is missing", hy_gguf_path(v->file));
    hy_json_put_bool(w, "ignore_merges", v->split->ignores_merges);
    hy_json_open_array(w, "merges");
    for (size_t i = 0; hy_gguf_as_string(merges, i, &text, NULL); i++)
        hy_json_put_string(w, NULL, text);
    hy_json_close_array(w);
    return HY_OK;
}

static hy_status read_score(const vocabulary *v, int32_t id, double *out) {
    *out = 0;
    bool has_score = hy_gguf_as_real(v->scores, (size_t)id, out) && *out == *out;
    HY_FAIL_IF(!has_score, HY_ERR_INPUT, "%s: " PREFIX "scores has no number for token %d",
               hy_gguf_path(v->file), id);
    return HY_OK;
}

static hy_status put_pieces(const vocabulary *v, hy_json_writer *w) {
    hy_scored_piece *pieces = calloc((size_t)v->count + 1, sizeof *pieces);
    hy_scored_piece **merged = calloc((size_t)v->count + 1, sizeof *merged);
    int32_t count = 0, bytes = 0;
    hy_status status = HY_OK;
    if (!pieces || !merged) status = hy_fail(HY_ERR_MEMORY, "not enough memory for a tokenizer");
    for (int32_t id = 0; id < v->count && status == HY_OK; id++) {
        double score;
        status = read_score(v, id, &score);
        bytes += type_of(v, id) == HY_GGUF_TOKEN_BYTE;
        if (type_of(v, id) != HY_GGUF_TOKEN_NORMAL) continue;
        merged[count] = &pieces[count];
        pieces[count++] = (hy_scored_piece){.text = token(v, id), .score = (float)score, .id = id};
    }
    if (v->roles[UNKNOWN] >= 0) hy_json_put_string(w, "unk_token", token(v, v->roles[UNKNOWN]));
    hy_json_put_bool(w, "fuse_unk", true);
    hy_json_put_bool(w, "byte_fallback", bytes == 256);
    if (status == HY_OK) status = hy_put_score_merges(merged, count, w);
    free(pieces);
    free(merged);
    return status;
}

static hy_status put_tokenizer(const vocabulary *v, hy_json_writer *w) {
    hy_json_put_string(w, "version", "1.0");
    hy_json_put_null(w, "truncation");
    hy_json_put_null(w, "padding");
    if (v->split)
        put_split(v, w);
    else
        put_blanks(v, w);
    put_added(v, w);
    put_post_processor(v, w);
    hy_json_open_object(w, "model");
    hy_json_put_string(w, "type", "BPE");
    hy_json_open_object(w, "vocab");
    for (int32_t id = 0; id < v->count; id++) {
        if (type_of(v, id) != HY_GGUF_TOKEN_UNUSED) hy_json_put_int(w, token(v, id), id);
    }
    hy_json_close_object(w);
    hy_status status = v->split ? put_merges(v, w) : put_pieces(v, w);
    hy_json_close_object(w);
    return status;
}

/* ---- tokenizer.model ------------------------------------------------------------------------- */

static void put_varint(hy_text *out, uint64_t value) {
    for (; value >= 128; value >>= 7) hy_text_add_bytes(out, &(uint8_t){(uint8_t)(value | 128)}, 1);
    hy_text_add_bytes(out, &(uint8_t){(uint8_t)value}, 1);
}

/* Fields of a protobuf message: a number, and a string or message. */
static void put_number(hy_text *out, uint64_t field, uint64_t value) {
    put_varint(out, field << 3);
    put_varint(out, value);
}

static void put_bytes(hy_text *out, uint64_t field, const void *data, size_t size) {
    put_varint(out, field << 3 | 2);
    put_varint(out, size);
    hy_text_add_bytes(out, data, size);
}

/* How text becomes pieces: the map of characters, and what happens to blanks. With
 * remove_extra_whitespaces alone, llama.cpp also puts a blank before a text. */
static void put_spec(const vocabulary *v, hy_text *out) {
    const hy_gguf_value *map = hy_gguf_get(v->file, PREFIX "precompiled_charsmap");
    bool has_prefix = false, collapses = false;
    int64_t byte;
    hy_text bytes = {0};
    hy_gguf_as_bool(hy_gguf_get(v->file, PREFIX "add_space_prefix"), 0, &has_prefix);
    hy_gguf_as_bool(hy_gguf_get(v->file, PREFIX "remove_extra_whitespaces"), 0, &collapses);
    for (size_t i = 0; hy_gguf_as_int(map, i, &byte); i++)
        hy_text_add_bytes(&bytes, &(uint8_t){(uint8_t)byte}, 1);
    put_bytes(out, 2, hy_text_string(&bytes), bytes.size);
    put_number(out, 3, has_prefix || collapses);
    put_number(out, 4, collapses);
    hy_text_free(&bytes);
}

/* The message ModelProto of sentencepiece_model.proto. */
static hy_status put_model(const vocabulary *v, hy_text *out) {
    hy_text part = {0};
    hy_status status = HY_OK;
    for (int32_t id = 0; id < v->count && status == HY_OK; id++) {
        double score;
        status = read_score(v, id, &score);
        bool is_unknown = id == v->roles[UNKNOWN];
        hy_text_clear(&part);
        put_bytes(&part, 1, token(v, id), strlen(token(v, id)));
        put_varint(&part, 2 << 3 | 5);
        hy_text_add_bytes(&part, &(float){(float)score}, 4);
        put_number(&part, 3, is_unknown ? HY_GGUF_TOKEN_UNKNOWN : type_of(v, id));
        put_bytes(out, 1, part.data, part.size);
    }
    hy_text_clear(&part);
    put_number(&part, 3, 1); /* Unigram */
    put_bytes(out, 2, part.data, part.size);
    hy_text_clear(&part);
    put_spec(v, &part);
    put_bytes(out, 3, part.data, part.size);
    hy_text_free(&part);
    return status;
}

/* ---- the other files ------------------------------------------------------------------------- */

/* One template, or a list with the one for conversations with tools. */
static void put_templates(const vocabulary *v, hy_json_writer *w) {
    static const char *const names[] = {"default", "tool_use"};
    const char *texts[2] = {NULL, NULL};
    hy_gguf_as_string(hy_gguf_get(v->file, "tokenizer.chat_template"), 0, &texts[0], NULL);
    hy_gguf_as_string(hy_gguf_get(v->file, "tokenizer.chat_template.tool_use"), 0, &texts[1], NULL);
    if (!texts[0]) return;
    if (!texts[1]) {
        hy_json_put_string(w, "chat_template", texts[0]);
        return;
    }
    hy_json_open_array(w, "chat_template");
    for (int i = 0; i < 2; i++) {
        hy_json_open_object(w, NULL);
        hy_json_put_string(w, "name", names[i]);
        hy_json_put_string(w, "template", texts[i]);
        hy_json_close_object(w);
    }
    hy_json_close_array(w);
}

static void put_config(const vocabulary *v, hy_json_writer *w) {
    hy_json_put_string(w, "tokenizer_class", "PreTrainedTokenizerFast");
    for (int i = 0; i < ROLES; i++) {
        if (v->roles[i] >= 0)
            hy_json_put_string(w, roles[i].name, token(v, v->roles[i]));
        else
            hy_json_put_null(w, roles[i].name);
    }
    hy_json_put_bool(w, "clean_up_tokenization_spaces", false);
    if (v->kind == T5) {
        hy_json_put_string(w, HY_SOURCE_FILE, HY_SOURCE_NAME);
        hy_json_put_bool(w, "add_bos_token", v->adds_bos);
        hy_json_put_bool(w, "add_eos_token", v->adds_eos);
    }
    put_templates(v, w);
}

/* The tokens that end an answer: of a text, a turn, and a message. */
static void put_generation(const vocabulary *v, hy_json_writer *w) {
    static const char *const ends[] = {PREFIX "eos_token_id", PREFIX "eot_token_id",
                                       PREFIX "eom_token_id"};
    if (v->roles[BOS] >= 0) hy_json_put_int(w, "bos_token_id", v->roles[BOS]);
    if (v->roles[PADDING] >= 0) hy_json_put_int(w, "pad_token_id", v->roles[PADDING]);
    hy_json_open_array(w, "eos_token_id");
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        int64_t id = i == 0 ? v->roles[EOS] : -1;
        hy_gguf_as_int(hy_gguf_get(v->file, ends[i]), 0, &id);
        if (id >= 0 && id < v->count) hy_json_put_int(w, NULL, id);
    }
    hy_json_close_array(w);
}

static bool has_tokens(const hy_gguf *file) {
    const char *kind = "none";
    hy_gguf_as_string(hy_gguf_get(file, PREFIX "model"), 0, &kind, NULL);
    return strcmp(kind, "none") != 0 && strcmp(kind, "no_vocab") != 0;
}

hy_status hy_gguf_has_tokenizer(const char *path, bool *out) {
    hy_gguf *file;
    HY_TRY(hy_gguf_open(path, &file));
    *out = has_tokens(file);
    hy_gguf_close(file);
    return HY_OK;
}

static hy_status put_file(const hy_gguf *file, const char *name, hy_text *out) {
    vocabulary v;
    hy_json_writer w;
    bool is_tokenizer = strcmp(name, "tokenizer.json") == 0;
    bool is_model = strcmp(name, HY_SOURCE_NAME) == 0;
    bool is_config = strcmp(name, "tokenizer_config.json") == 0;
    bool is_generation = strcmp(name, "generation_config.json") == 0;
    bool is_known = is_tokenizer || is_model || is_config || is_generation;
    if (!has_tokens(file) || !is_known) return HY_OK;
    HY_TRY(read_vocabulary(file, &v));
    if (is_model && v.kind == T5) HY_TRY(put_model(&v, out));
    if (is_model || (is_tokenizer && v.kind == T5)) return hy_text_status(out);
    hy_json_begin(&w, out, !is_tokenizer);
    hy_json_open_object(&w, NULL);
    hy_status status = is_tokenizer ? put_tokenizer(&v, &w) : HY_OK;
    if (is_config) put_config(&v, &w);
    if (is_generation) put_generation(&v, &w);
    hy_json_close_object(&w);
    hy_text_add(out, "\n");
    return status == HY_OK ? hy_text_status(out) : status;
}

hy_status hy_gguf_tokenizer_json(const char *path, const char *name, hy_text *out) {
    hy_gguf *file;
    HY_TRY(hy_gguf_open(path, &file));
    hy_status status = put_file(file, name, out);
    hy_gguf_close(file);
    return status;
}
