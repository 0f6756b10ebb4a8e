/* origin.c: the copy that a run keeps of the model that it started from. See record.h.
 *
 * RUN/origin/files holds the model's other files (config.json, tokenizer, chat template,
 * generation settings), RUN/origin/tokenizer a tokenizer that was named, and origin.json lists
 * them with size and hash. So a run can be resumed, evaluated, used and exported when the
 * originals are gone. The folder is written once, before the first step, and gets its final name
 * when it is complete. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "config/builtin.h"
#include "config/derived.h"
#include "data/fingerprint.h"
#include "engine/engine.h"
#include "formats/checkpoint.h"
#include "hub/hf_config.h"
#include "hub/hf_export.h"
#include "hub/hf_load.h"
#include "record/record.h"
#include "record/state_files.h"
#include "setup/setup.h"
#include "tokenizer/tokenizer_llama2c.h"
#include "tokenizer/tokenizer_vocab_files.h"

#define FORMAT "hybrid-train origin"
#define VERSION 1
#define FILES "files"
#define TOKENIZER "tokenizer"

static const char *const kind_words[HY_FILES_COUNT] = {[HY_FILES_NONE] = "none",
                                                       [HY_FILES_HF] = "folder",
                                                       [HY_FILES_LLAMA2C] = "llama2c",
                                                       [HY_FILES_GGUF] = "gguf"};

static hy_status origin_path(const char *run, const char *name, char out[HY_PATH_MAX]) {
    char folder[HY_PATH_MAX];
    HY_TRY(hy_path_join(folder, sizeof folder, run, HY_ORIGIN_FOLDER));
    return hy_path_join(out, HY_PATH_MAX, folder, name);
}

static bool is_kept(const char *run) {
    char path[HY_PATH_MAX];
    return origin_path(run, "origin.json", path) == HY_OK && hy_path_exists(path);
}

/* The name is removed first, then the files: no reader finds a partial folder. */
hy_status hy_origin_drop(const char *run) {
    char path[HY_PATH_MAX], old[HY_PATH_MAX];
    HY_TRY(hy_path_join(path, sizeof path, run, HY_ORIGIN_FOLDER));
    HY_TRY(hy_path_join(old, sizeof old, run, HY_ORIGIN_OLD));
    HY_TRY(hy_dir_remove_ours(old));
    if (is_kept(run)) HY_TRY(hy_path_rename(path, old));
    return hy_dir_remove_ours(old);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* With a missing or changed file the export would be a different model, so that is an error. */
static hy_status check_file(const char *run, const hy_json *json, const hy_json_node *file) {
    const char *name, *hex;
    char path[HY_PATH_MAX];
    int64_t bytes;
    uint64_t hash = 0, size = 0;
    HY_TRY(hy_json_string(json, file, "name", &name, NULL));
    HY_TRY(hy_json_int(json, file, "bytes", &bytes));
    HY_TRY(hy_json_string(json, file, "xxh64", &hex, NULL));
    HY_FAIL_IF(name[0] == '/' || strstr(name, ".."), HY_ERR_INPUT,
               "%s/" HY_ORIGIN_FOLDER "/origin.json: \"%.100s\" is not a file in this folder", run,
               name);
    HY_TRY(origin_path(run, name, path));
    bool is_there = hy_path_exists(path);
    if (is_there) HY_TRY(hy_file_hash(path, &hash, &size));
    bool is_same = size == (uint64_t)bytes && hash == strtoull(hex, NULL, 16);
    HY_FAIL_IF(!is_there || !is_same, HY_ERR_IO,
               "%s %s; restore the file, or remove %s/" HY_ORIGIN_FOLDER
               " to use the model that the run started from, at its current path",
               path, is_there ? "is not the file that the run started with" : "is missing", run);
    return HY_OK;
}

static hy_status read_origin(const char *run, const hy_json *json, hy_kept_origin *out) {
    const hy_json_node *root = hy_json_root(json), *files = hy_json_get(root, "kept");
    const char *word, *prefix, *weights, *tokenizer;
    int64_t version;
    HY_TRY(hy_json_int(json, root, "version", &version));
    HY_TRY(hy_json_string(json, root, "files", &word, NULL));
    HY_TRY(hy_json_string(json, root, "prefix", &prefix, NULL));
    HY_TRY(hy_json_string(json, root, "weights", &weights, NULL));
    HY_TRY(hy_json_string(json, root, "tokenizer", &tokenizer, NULL));
    int kind = 0;
    while (kind < HY_FILES_COUNT && strcmp(word, kind_words[kind]) != 0) kind++;
    bool fits = strlen(prefix) < sizeof out->prefix && strlen(weights) < sizeof out->weights &&
                !strchr(tokenizer, '/');
    HY_FAIL_IF(version != VERSION || kind == HY_FILES_COUNT || !fits, HY_ERR_INPUT,
               "%s/" HY_ORIGIN_FOLDER "/origin.json was not written by this program", run);
    for (const hy_json_node *f = hy_json_first(files); f; f = hy_json_next(f))
        HY_TRY(check_file(run, json, f));
    out->kind = (hy_model_files)kind;
    strcpy(out->prefix, prefix);
    strcpy(out->weights, weights);
    HY_TRY(origin_path(run, FILES, out->folder));
    if (!tokenizer[0]) return HY_OK;
    char path[HY_PATH_MAX];
    HY_TRY(origin_path(run, TOKENIZER, path));
    return hy_path_join(out->tokenizer, sizeof out->tokenizer, path, tokenizer);
}

hy_status hy_origin_read(const char *run, hy_kept_origin *out) {
    char path[HY_PATH_MAX];
    hy_json *json;
    *out = (hy_kept_origin){0};
    if (!is_kept(run)) return HY_OK;
    HY_TRY(origin_path(run, "origin.json", path));
    HY_TRY(hy_json_read_file(path, &json));
    hy_status status = read_origin(run, json, out);
    hy_json_free(json);
    if (status != HY_OK) *out = (hy_kept_origin){0};
    return status;
}

/* ---- what there is to keep ------------------------------------------------------------------- */

/* The tensor names of a folder, and a hash of all weights. */
static hy_status look_at_weights(const char *path, hy_kept_origin *o) {
    hy_hash hash;
    char **names, file[HY_PATH_MAX];
    size_t count;
    hy_status status = HY_OK;
    hy_hash_init(&hash, 0);
    if (o->kind != HY_FILES_HF) {
        HY_TRY(hy_fingerprint_file(path, &hash));
    } else {
        hy_hf_config config;
        hy_hf_tensors *tensors;
        HY_TRY(hy_hf_config_look(path, &config));
        const hy_family *family = hy_shape_family(&config.shape);
        HY_TRY(hy_hf_tensors_open(path, &tensors));
        snprintf(o->prefix, sizeof o->prefix, "%s", hy_hf_prefix_in(tensors, family));
        hy_hf_tensors_close(tensors);
        HY_TRY(hy_dir_list(path, &names, &count));
        for (size_t i = 0; i < count && status == HY_OK; i++) {
            if (!hy_has_ending(names[i], ".safetensors")) continue;
            status = hy_path_join(file, sizeof file, path, names[i]);
            if (status == HY_OK) status = hy_fingerprint_file(file, &hash);
        }
        hy_dir_list_free(names, count);
    }
    snprintf(o->weights, sizeof o->weights, "%016" PRIx64, hy_hash_value(&hash));
    return status;
}

hy_status hy_origin_find_weights(const hy_settings *s, hy_model_files *kind,
                                 char path[HY_HF_PATH_MAX]) {
    hy_status status = hy_settings_base_files(s, kind, path);
    HY_FAIL_IF(status != HY_OK || *kind == HY_FILES_NONE, HY_ERR_INPUT,
               "the base model, %s, was not found; name its folder (--base FOLDER)",
               s->lora.base[0] ? s->lora.base : s->model);
    hy_kept_origin now = {.kind = *kind};
    HY_TRY(look_at_weights(path, &now));
    bool is_same = !s->kept.weights[0] || strcmp(now.weights, s->kept.weights) == 0;
    HY_FAIL_IF(!is_same, HY_ERR_INPUT,
               "the weights in %s are not the base weights that the run was trained with", path);
    return HY_OK;
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Copies the files into `partial`; returns the name of the tokenizer that the user named. */
static hy_status copy_files(const hy_settings *s, const hy_model *model, const hy_kept_origin *o,
                            const char *partial, char tokenizer[HY_PATH_MAX]) {
    char folder[HY_PATH_MAX], files[HY_PATH_MAX], path[HY_PATH_MAX];
    const char *asked = s->input.tokenizer;
    bool is_named = strcmp(asked, "auto") != 0 && strcmp(asked, "none") != 0;
    tokenizer[0] = 0;
    HY_TRY(hy_path_join(files, sizeof files, partial, FILES));
    HY_TRY(hy_dir_make(files));
    HY_TRY(hy_model_folder(s, folder));
    if (o->kind == HY_FILES_HF || o->kind == HY_FILES_GGUF) {
        HY_TRY(hy_hf_copy_side_files(folder, files, NULL));
        HY_TRY(hy_hf_copy_config(folder, files));
    }
    HY_TRY(hy_model_tokenizer(model, asked, folder, path));
    bool is_llama2c = path[0] && hy_llama2c_tokenizer_is_named(path);
    if (!is_named) return is_llama2c ? hy_hf_copy_file(path, files, last_name(path)) : HY_OK;
    HY_TRY(hy_path_join(files, sizeof files, partial, TOKENIZER));
    HY_TRY(hy_dir_make(files));
    snprintf(tokenizer, HY_PATH_MAX, "%s", last_name(path));
    if (is_llama2c) return hy_hf_copy_file(path, files, tokenizer);
    HY_TRY(hy_hf_write_tokenizer(path, files));
    HY_TRY(hy_tokenizer_file(files, path, sizeof path));
    snprintf(tokenizer, HY_PATH_MAX, "%s", last_name(path));
    return HY_OK;
}

/* Lists the files below PARTIAL/name; folders come in the order in which they are found. */
static hy_status list_files(const char *partial, const char *name, hy_json_writer *w) {
    char folder[HY_PATH_MAX], inside[HY_PATH_MAX], path[HY_PATH_MAX], hex[17], **names;
    size_t count;
    HY_TRY(hy_path_join(folder, sizeof folder, partial, name));
    if (!hy_path_is_dir(folder)) return HY_OK;
    HY_TRY(hy_dir_list(folder, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        uint64_t hash = 0, size = 0;
        status = hy_path_join(inside, sizeof inside, name, names[i]);
        if (status == HY_OK) status = hy_path_join(path, sizeof path, partial, inside);
        if (status == HY_OK && hy_path_is_dir(path)) {
            status = list_files(partial, inside, w);
            continue;
        }
        if (status == HY_OK) status = hy_file_hash(path, &hash, &size);
        snprintf(hex, sizeof hex, "%016" PRIx64, hash);
        hy_json_open_object(w, NULL);
        hy_json_put_string(w, "name", inside);
        hy_json_put_int(w, "bytes", (int64_t)size);
        hy_json_put_string(w, "xxh64", hex);
        hy_json_close_object(w);
    }
    hy_dir_list_free(names, count);
    return status;
}

static hy_status write_json(const hy_settings *s, const hy_kept_origin *o, const char *partial,
                            const char *tokenizer) {
    hy_text text = {0};
    hy_json_writer w;
    char model[PATH_MAX];
    bool is_name = hy_builtin_text("model", s->model) || !realpath(s->model, model);
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "format", FORMAT);
    hy_json_put_int(&w, "version", VERSION);
    hy_json_put_string(&w, "model", is_name ? s->model : model);
    hy_json_put_string(&w, "files", kind_words[o->kind]);
    hy_json_put_string(&w, "prefix", o->prefix);
    hy_json_put_string(&w, "weights", o->weights);
    hy_json_put_string(&w, "tokenizer", tokenizer);
    hy_json_open_array(&w, "kept");
    hy_status status = list_files(partial, FILES, &w);
    if (status == HY_OK) status = list_files(partial, TOKENIZER, &w);
    hy_json_close_array(&w);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    if (status == HY_OK) status = hy_text_status(&text);
    if (status == HY_OK) status = hy_hf_put_file(partial, "origin.json", text.data, text.size);
    hy_text_free(&text);
    return status;
}

/* ---- keeping it ------------------------------------------------------------------------------ */

static hy_status fill(const hy_record *r, const hy_settings *s, const hy_model *model,
                      const char *partial) {
    hy_kept_origin o = s->kept; /* of the run that this one resumes; empty: none */
    char path[HY_PATH_MAX], tokenizer[HY_PATH_MAX];
    HY_TRY(hy_dir_remove_ours(partial));
    if (!o.folder[0]) {
        HY_TRY(hy_settings_model_files(s, &o.kind, path));
        if (o.kind != HY_FILES_NONE) HY_TRY(look_at_weights(path, &o));
    }
    HY_TRY(copy_files(s, model, &o, partial, tokenizer));
    HY_TRY(write_json(s, &o, partial, tokenizer));
    HY_TRY(hy_dir_sync(partial));
    HY_TRY(hy_path_join(path, sizeof path, r->out, HY_ORIGIN_FOLDER));
    HY_FAIL_IF(hy_path_exists(path) && !is_kept(r->out), HY_ERR_INPUT,
               "%s already exists and was not written by a run; a run keeps configuration and "
               "tokenizer of its starting model there: choose another --out",
               path);
    HY_TRY(hy_origin_drop(r->out));
    HY_TRY(hy_path_rename(partial, path));
    return hy_dir_sync(r->out);
}

hy_status hy_origin_keep(const hy_record *r, hy_settings *s, const hy_model *model) {
    char partial[HY_PATH_MAX];
    const char *asked = s->input.tokenizer;
    bool has_tokenizer = strcmp(asked, "auto") != 0 && strcmp(asked, "none") != 0;
    if (hy_builtin_text("model", s->model) && !has_tokenizer) return HY_OK;
    bool is_there = s->save.resume[0] && is_kept(r->out);
    if (!is_there) {
        HY_TRY(hy_path_join(partial, sizeof partial, r->out, HY_ORIGIN_PARTIAL));
        hy_status status = fill(r, s, model, partial);
        if (status != HY_OK) {
            hy_error first; /* the one to report */
            hy_error_save(&first, status);
            (void)hy_dir_remove_ours(partial);
            return hy_error_restore(&first);
        }
    }
    HY_TRY(hy_origin_read(r->out, &s->kept));
    if (s->kept.tokenizer[0])
        memcpy(s->input.tokenizer, s->kept.tokenizer, sizeof s->input.tokenizer);
    return HY_OK;
}

/* An adapter fits the weights that it was trained with: quantised ones are other numbers. */
static void compare_frozen(const hy_observer *observer, const hy_settings *settings,
                           const char *adapter, const char *checkpoint) {
    hy_saved_config saved;
    const char *ours = hy_settings_frozen_name(settings);
    if (hy_checkpoint_read_config(checkpoint, &saved) != HY_OK) return;
    const char *theirs = hy_settings_frozen_name(hy_config_settings(saved.config));
    if (strcmp(ours, theirs) != 0)
        hy_say_to(
            observer, HY_NOTE,
            "the frozen weights are %s%s here, but %s was trained with %s%s; %s%s computes as "
            "in training",
            ours[0] ? "in " : "as in the folder", ours, adapter,
            theirs[0] ? "" : "the weights of the folder", theirs,
            theirs[0] ? "--frozen-dtype " : "leaving out --qlora and --frozen-dtype", theirs);
    hy_saved_config_free(&saved);
}

hy_status hy_origin_check_adapter(const hy_observer *observer, const hy_settings *settings,
                                  const char *adapter) {
    char run[HY_PATH_MAX], path[HY_HF_PATH_MAX];
    hy_settings s = *settings;
    hy_model_files kind;
    bool is_named = false;
    s.lora.base[0] = 0; /* it names the base of a resumed run, not of this adapter */
    if (s.init_from[0] || hy_path_parent(run, sizeof run, adapter) != HY_OK) return HY_OK;
    if (hy_checkpoint_peek(run, path, sizeof path) != HY_OK) return HY_OK;
    if (observer) compare_frozen(observer, settings, adapter, path);
    if (hy_checkpoint_lacks_base(path, &is_named) != HY_OK || !is_named) return HY_OK;
    if (hy_origin_read(run, &s.kept) != HY_OK || !s.kept.weights[0]) return HY_OK;
    return hy_origin_find_weights(&s, &kind, path);
}
