/* tokenizer_vocab_files.c: converts vocab.json and merges.txt. See tokenizer_vocab_files.h.
 *
 * The tokenizer's class decides the steps before the merges. tokenizer_config.json names it; a
 * folder without that name is GPT-2 if its config.json has no other model type. */
#include "tokenizer/tokenizer_vocab_files.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "tokenizer/tokenizer_gguf.h"
#include "tokenizer/tokenizer_sentencepiece.h"

#define PATH_MAX_BYTES 4096

/* ---- the file of a folder -------------------------------------------------------------------- */

static hy_status holds(const char *folder, const char *name, char *path, size_t size, bool *out) {
    HY_TRY(hy_path_join(path, size, folder, name));
    *out = hy_path_exists(path);
    return HY_OK;
}

hy_status hy_tokenizer_file(const char *folder, char *path, size_t size) {
    static const char *const others[] = {"sentencepiece.bpe.model", "tekken.json", "vocab.txt",
                                         "vocab.json"};
    bool has_file, has_merges;
    if (hy_gguf_is_file(folder)) {
        HY_TRY(hy_gguf_has_tokenizer(folder, &has_file));
        return hy_path_join(path, size, "", has_file ? folder : "");
    }
    HY_TRY(holds(folder, "tokenizer.json", path, size, &has_file));
    if (has_file) {
        hy_json *config;
        HY_TRY(hy_tokenizer_read_beside(folder, "tokenizer_config.json", &config));
        const hy_json_node *root = config ? hy_json_root(config) : NULL;
        const char *source = "";
        bool is_published = hy_json_as_string(hy_json_get(root, HY_SOURCE_FILE), &source, NULL) &&
                            !strchr(source, '/');
        hy_status status = is_published ? holds(folder, source, path, size, &is_published) : HY_OK;
        hy_json_free(config);
        HY_TRY(status);
        if (!is_published) return holds(folder, "tokenizer.json", path, size, &has_file);
    }
    HY_TRY(holds(folder, "merges.txt", path, size, &has_merges));
    HY_TRY(holds(folder, "vocab.json", path, size, &has_file));
    if (has_file && has_merges) return HY_OK;
    HY_TRY(holds(folder, HY_SOURCE_NAME, path, size, &has_file));
    if (has_file) return HY_OK;
    HY_TRY(holds(folder, "spiece.model", path, size, &has_file));
    if (has_file) return HY_OK;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        HY_TRY(holds(folder, others[i], path, size, &has_file));
        HY_FAIL_IF(has_file, HY_ERR_INPUT,
                   "%s has the tokenizer file %s, which is not supported, and no tokenizer.json; "
                   "write one with: python3 -c \"from transformers import AutoTokenizer as T; "
                   "T.from_pretrained('%s').save_pretrained('%s')\"",
                   folder, others[i], folder, folder);
    }
    path[0] = 0;
    return HY_OK;
}

/* ---- classes --------------------------------------------------------------------------------- */

typedef struct tokenizer_class {
    const char *name, *model; /* as tokenizer_config.json and config.json name it */
    const char *steps;        /* members of tokenizer.json; %s is the prefix space */
} tokenizer_class;

#define BYTES(prefix, regex)                                                                       \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": " prefix                                      \
    ", \"trim_offsets\": false, \"use_regex\": " regex "}"

static const tokenizer_class classes[] = {
    {"GPT2Tokenizer", "gpt2", "\"normalizer\": null, \"pre_tokenizer\": " BYTES("%s", "true") ", "},
    {"Qwen2Tokenizer", "qwen2",
     "\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
     "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?i:'s|'t|'re|'ve|'m|"
     "'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r"
     "\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, \"behavior\": \"Isolated\", "
     "\"invert\": false}, " BYTES("%s", "false") "]}, "},
};

hy_status hy_tokenizer_read_beside(const char *folder, const char *name, hy_json **out) {
    char path[PATH_MAX_BYTES];
    bool has_file;
    hy_text text = {0};
    *out = NULL;
    HY_TRY(holds(folder, name, path, sizeof path, &has_file));
    if (has_file) return hy_json_read_file(path, out);
    if (!hy_gguf_is_file(folder)) return HY_OK;
    hy_status status = hy_gguf_tokenizer_json(folder, name, &text);
    if (status == HY_OK && text.size > 0) status = hy_json_parse(text.data, text.size, folder, out);
    hy_text_free(&text);
    return status;
}

bool hy_tokenizer_is_class(const char *name, const char *class) {
    size_t size = strlen(class);
    return strncmp(name, class, size) == 0 && (!name[size] || strcmp(name + size, "Fast") == 0);
}

static hy_status find_class(const char *folder, const hy_json_node *config,
                            const tokenizer_class **out) {
    const char *name = NULL, *model = "gpt2";
    hy_json *file = NULL;
    *out = NULL;
    if (!hy_json_as_string(hy_json_get(config, "tokenizer_class"), &name, NULL)) {
        HY_TRY(hy_tokenizer_read_beside(folder, "config.json", &file));
        (void)hy_json_as_string(hy_json_get(file ? hy_json_root(file) : NULL, "model_type"), &model,
                                NULL);
    }
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        bool is_it = name ? hy_tokenizer_is_class(name, classes[i].name)
                          : strcmp(model, classes[i].model) == 0;
        if (is_it) *out = &classes[i];
    }
    hy_status status = HY_OK;
    if (!*out) {
        status = hy_fail(HY_ERR_INPUT,
                         "%s has vocab.json and merges.txt of the tokenizer %s; without a "
                         "tokenizer.json, only GPT2Tokenizer and Qwen2Tokenizer are supported",
                         folder, name ? name : model);
    }
    hy_json_free(file);
    return status;
}

/* ---- the text -------------------------------------------------------------------------------- */

void hy_tokenizer_put_added(hy_json_writer *w, int64_t id, const char *text,
                            const hy_json_node *flags, bool is_special, bool is_normalized) {
    static const char *const names[] = {"single_word", "lstrip", "rstrip", "normalized"};
    hy_json_open_object(w, NULL);
    hy_json_put_int(w, "id", id);
    hy_json_put_string(w, "content", text);
    for (int i = 0; i < 4; i++) {
        bool value = i == 3 && is_normalized;
        (void)hy_json_as_bool(hy_json_get(flags, names[i]), &value);
        hy_json_put_bool(w, names[i], value);
    }
    hy_json_put_bool(w, "special", is_special);
    hy_json_close_object(w);
}

/* Added tokens: those that the configuration lists, those of added_tokens.json, or else the end of
 * a text, which both classes have. */
static void put_all_added(hy_json_writer *w, const hy_json_node *vocab, const hy_json_node *config,
                          const hy_json_node *file) {
    static const char end[] = "<|endoftext|>";
    const hy_json_node *list = hy_json_get(config, "added_tokens_decoder");
    bool has_end = false;
    const char *text;
    int64_t id;
    hy_json_open_array(w, "added_tokens");
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        if (!hy_json_as_string(hy_json_get(n, "content"), &text, NULL)) continue;
        bool is_special = true;
        (void)hy_json_as_bool(hy_json_get(n, "special"), &is_special);
        hy_tokenizer_put_added(w, strtoll(hy_json_key(n), NULL, 10), text, n, is_special, false);
        has_end |= strcmp(text, end) == 0;
    }
    for (const hy_json_node *n = hy_json_first(list ? NULL : file); n; n = hy_json_next(n)) {
        if (hy_json_as_int(n, &id))
            hy_tokenizer_put_added(w, id, hy_json_key(n), NULL, true, false);
        has_end |= strcmp(hy_json_key(n), end) == 0;
    }
    if (!has_end && hy_json_as_int(hy_json_get(vocab, end), &id)) {
        hy_tokenizer_put_added(w, id, end, NULL, true, false);
    }
    hy_json_close_array(w);
}

/* Every line of merges.txt after its head is a pair. */
static void put_merges(hy_json_writer *w, char *text) {
    char *rest = text;
    hy_json_open_array(w, "merges");
    for (char *line; (line = strsep(&rest, "\n"));) {
        size_t size = strlen(line);
        if (size > 0 && line[size - 1] == '\r') line[size - 1] = 0;
        bool is_head = line == text && strncmp(line, "#version", 8) == 0;
        if (line[0] && !is_head) hy_json_put_string(w, NULL, line);
    }
    hy_json_close_array(w);
}

typedef struct files {
    hy_json *vocab, *config, *added;
    char *vocab_text, *merges;
    size_t vocab_size, merges_size;
} files;

static hy_status read_files(const char *path, const char *folder, files *f) {
    char merges[PATH_MAX_BYTES];
    HY_TRY(hy_path_join(merges, sizeof merges, folder, "merges.txt"));
    HY_TRY(hy_file_read(path, &f->vocab_text, &f->vocab_size));
    HY_TRY(hy_json_parse(f->vocab_text, f->vocab_size, path, &f->vocab));
    HY_TRY(hy_file_read(merges, &f->merges, &f->merges_size));
    HY_TRY(hy_tokenizer_read_beside(folder, "tokenizer_config.json", &f->config));
    return hy_tokenizer_read_beside(folder, "added_tokens.json", &f->added);
}

static hy_status write_json(const char *folder, const files *f, hy_text *out) {
    const hy_json_node *config = f->config ? hy_json_root(f->config) : NULL;
    const tokenizer_class *class;
    hy_json_writer w;
    bool has_prefix = false;
    HY_TRY(find_class(folder, config, &class));
    (void)hy_json_as_bool(hy_json_get(config, "add_prefix_space"), &has_prefix);
    hy_json_begin(&w, out, false);
    hy_json_open_object(&w, NULL);
    hy_text_addf(out, class->steps, has_prefix ? "true" : "false");
    hy_text_add(out, "\"decoder\": " BYTES("true", "true") ", ");
    put_all_added(&w, hy_json_root(f->vocab), config, f->added ? hy_json_root(f->added) : NULL);
    hy_json_open_object(&w, "model");
    hy_text_addf(out, "\"type\": \"BPE\", \"vocab\": %s, ", f->vocab_text);
    put_merges(&w, f->merges);
    hy_json_close_object(&w);
    hy_json_close_object(&w);
    return hy_text_status(out);
}

bool hy_vocab_files_are_named(const char *path) {
    const char *slash = strrchr(path, '/');
    return strcmp(slash ? slash + 1 : path, "vocab.json") == 0;
}

hy_status hy_vocab_files_json(const char *path, hy_text *out) {
    char folder[PATH_MAX_BYTES];
    files f = {0};
    HY_TRY(hy_path_parent(folder, sizeof folder, path));
    hy_status status = read_files(path, folder, &f);
    if (status == HY_OK) status = write_json(folder, &f, out);
    hy_json_free(f.vocab);
    hy_json_free(f.config);
    hy_json_free(f.added);
    free(f.vocab_text);
    free(f.merges);
    return status;
}
