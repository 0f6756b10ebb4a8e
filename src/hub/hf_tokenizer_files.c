/* hf_tokenizer_files.c: writes the files of a tokenizer that did not come with the model. See
 * hf_export.h.
 *
 * A model that started from a preset, or was trained with another tokenizer, needs the tokenizer
 * of its data. The tokenizer of llama2.c, and vocab.json with merges.txt, are converted to a
 * tokenizer.json. A SentencePiece file is copied, because llama.cpp and we read it, and gets a
 * tokenizer.json and a tokenizer_config.json with which transformers gives the same ids. */

#include <fcntl.h>

#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "hub/gguf_load.h"
#include "hub/hf_config.h"
#include "hub/hf_export.h"
#include "hub/hf_folder.h"
#include "tokenizer/tokenizer_llama2c.h"
#include "tokenizer/tokenizer_sentencepiece.h"
#include "tokenizer/tokenizer_vocab_files.h"

static const char llama2c_config[] =
    "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"bos_token\": \"<s>\", "
    "\"eos_token\": \"</s>\", \"unk_token\": \"<unk>\", \"clean_up_tokenization_spaces\": false}\n";

hy_status hy_hf_put_file(const char *folder, const char *name, const void *data, size_t size) {
    char path[HY_HF_PATH_MAX];
    HY_TRY(hy_path_join(path, sizeof path, folder, name));
    return hy_file_write_atomic(path, data, size);
}

hy_status hy_hf_copy_file(const char *from, const char *folder, const char *name) {
    hy_file_map map;
    HY_TRY(hy_file_map_open(from, &map));
    hy_status status = hy_hf_put_file(folder, name, map.data, map.size);
    hy_file_map_close(&map);
    return status;
}

/* Writes a tokenizer.json for files of another format. */
static hy_status convert(const char *path, const char *folder) {
    hy_text json = {0};
    bool is_llama2c = hy_llama2c_tokenizer_is_named(path);
    hy_status status =
        is_llama2c ? hy_llama2c_tokenizer_json(path, &json) : hy_vocab_files_json(path, &json);
    if (status == HY_OK) status = hy_hf_put_file(folder, "tokenizer.json", json.data, json.size);
    hy_text_free(&json);
    HY_TRY(status);
    if (!is_llama2c) return HY_OK;
    return hy_hf_put_file(folder, "tokenizer_config.json", llama2c_config,
                          sizeof llama2c_config - 1);
}

/* Removes the tokenizer that a folder has: some programs would prefer a file of it. */
static hy_status remove_tokenizer(const char *folder) {
    static const char *const names[] = {
        "tokenizer.json",    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
        "added_tokens.json", "vocab.json",      "merges.txt",   "vocab.txt",
        "tekken.json"};
    char path[HY_HF_PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        HY_TRY(hy_path_join(path, sizeof path, folder, names[i]));
        hy_disk_unlink_at(AT_FDCWD, path, 0); /* if there is one */
    }
    return HY_OK;
}

/* Adds members to tokenizer_config.json that it does not have. */
static hy_status add_settings(const char *folder, const hy_text *more) {
    char path[HY_HF_PATH_MAX];
    hy_json *config = NULL, *added;
    hy_text text = {0};
    HY_TRY(hy_path_join(path, sizeof path, folder, "tokenizer_config.json"));
    HY_TRY(hy_json_parse(more->data, more->size, "settings", &added));
    hy_status status = hy_path_exists(path) ? hy_json_read_file(path, &config) : HY_OK;
    if (status == HY_OK) {
        const hy_json_node *had = config ? hy_json_root(config) : NULL;
        status = hy_hf_json_merge(had, hy_json_root(added), &text);
    }
    if (status == HY_OK)
        status = hy_hf_put_file(folder, "tokenizer_config.json", text.data, text.size);
    hy_json_free(config);
    hy_json_free(added);
    hy_text_free(&text);
    return status;
}

/* The class, what it adds to a text, and the special tokens. */
static hy_status describe_pieces(const char *path, const char *class, hy_text *out) {
    hy_tokenizer *t;
    hy_json_writer w;
    HY_TRY(hy_tokenizer_open(path, &t));
    hy_json_begin(&w, out, false);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "tokenizer_class", class ? class : "PreTrainedTokenizerFast");
    if (!class) hy_json_put_string(&w, HY_SOURCE_FILE, HY_SOURCE_NAME);
    hy_json_put_bool(&w, "add_bos_token", false);
    hy_json_put_bool(&w, "add_eos_token", false);
    hy_json_put_string(&w, "bos_token", hy_tokenizer_token(t, hy_tokenizer_bos(t), NULL));
    hy_json_put_string(&w, "eos_token", hy_tokenizer_token(t, hy_tokenizer_eos(t), NULL));
    hy_json_put_string(&w, "unk_token", hy_tokenizer_token(t, hy_tokenizer_unknown(t), NULL));
    hy_json_put_bool(&w, "clean_up_tokenization_spaces", false);
    hy_json_close_object(&w);
    hy_tokenizer_close(t);
    return hy_text_status(out);
}

hy_status hy_hf_publish_pieces(const char *path, const char *folder) {
    hy_sentencepiece pieces = {.is_published = true};
    hy_text settings = {0};
    hy_status status = hy_sentencepiece_json(path, &pieces);
    if (status == HY_OK) status = describe_pieces(path, pieces.class, &settings);
    if (status == HY_OK) status = add_settings(folder, &settings);
    if (status == HY_OK && !pieces.class)
        status = hy_hf_put_file(folder, "tokenizer.json", pieces.json.data, pieces.json.size);
    hy_text_free(&pieces.json);
    hy_text_free(&settings);
    return status;
}

/* Of another tokenizer's tokenizer_config.json, only the chat template stays: the other settings
 * would change the meaning of a SentencePiece file. */
static hy_status keep_template(const char *folder) {
    char path[HY_HF_PATH_MAX];
    hy_json *json;
    hy_text text = {0};
    HY_TRY(hy_path_join(path, sizeof path, folder, "tokenizer_config.json"));
    if (!hy_path_exists(path)) return HY_OK;
    HY_TRY(hy_json_read_file(path, &json));
    hy_status status = hy_hf_json_filter(hy_json_root(json), "chat_template", true, &text);
    hy_json_free(json);
    if (status == HY_OK) {
        status = hy_hf_put_file(folder, "tokenizer_config.json", text.data, text.size);
    }
    hy_text_free(&text);
    return status;
}

hy_status hy_hf_write_tokenizer(const char *tokenizer, const char *folder) {
    char path[HY_HF_PATH_MAX], beside[HY_HF_PATH_MAX], original[HY_HF_PATH_MAX];
    HY_TRY(remove_tokenizer(folder));
    if (hy_llama2c_tokenizer_is_named(tokenizer)) return convert(tokenizer, folder);
    if (hy_gguf_is_file(tokenizer)) return hy_gguf_put_side_files(tokenizer, folder);
    if (hy_path_is_dir(tokenizer)) {
        HY_TRY(hy_tokenizer_file(tokenizer, path, sizeof path));
    } else {
        HY_TRY(hy_path_join(path, sizeof path, "", tokenizer));
    }
    HY_TRY(hy_path_join(original, sizeof original, "", path));
    HY_TRY(hy_path_parent(beside, sizeof beside, path));
    bool is_converted = hy_vocab_files_are_named(path),
         has_pieces = hy_sentencepiece_is_named(path);
    const char *name = has_pieces ? HY_SOURCE_NAME : "tokenizer.json";
    HY_TRY(is_converted ? convert(path, folder) : hy_hf_copy_file(path, folder, name));
    if (has_pieces) HY_TRY(keep_template(folder));
    /* The file that names bos and eos may be in the same folder. */
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                        "added_tokens.json"};
    for (int i = 0; i < (has_pieces ? 3 : 2); i++) {
        HY_TRY(hy_path_join(path, sizeof path, beside, names[i]));
        if (hy_hf_holds_file(beside, path)) HY_TRY(hy_hf_copy_file(path, folder, names[i]));
    }
    return has_pieces ? hy_hf_publish_pieces(original, folder) : HY_OK;
}
