/* hf_folder.c: finds a model by folder, hub name or file. See hf_folder.h.
 *
 * The hub's cache has models--ORG--NAME/refs/main, a text with a commit, and snapshots/COMMIT/
 * with the files. It is in $HF_HUB_CACHE, in $HF_HOME/hub, or in ~/.cache/huggingface/hub. */
#include "hub/hf_folder.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "data/chat_template.h"
#include "formats/gguf.h"
#include "hub/llama2c.h"

/* ---- the hub's cache ------------------------------------------------------------------------- */

/* "models--Qwen--Qwen2.5-0.5B" for "Qwen/Qwen2.5-0.5B"; false: not a hub name. */
static bool cache_name(const char *name, char *out, size_t size) {
    size_t at = (size_t)snprintf(out, size, "models--");
    int slashes = 0;
    if (!isalnum((unsigned char)name[0])) return false;
    for (const char *c = name; *c; c++) {
        if (at + 3 > size) return false;
        if (*c == '/') {
            if (++slashes > 1 || !isalnum((unsigned char)c[1])) return false;
            memcpy(out + at, "--", 2);
            at += 2;
        } else if (isalnum((unsigned char)*c) || strchr("-_.", *c)) {
            out[at++] = *c;
        } else {
            return false;
        }
    }
    out[at] = 0;
    return true;
}

/* The commit in refs/main; "": there is no such file. */
static hy_status main_revision(const char *folder, char out[128]) {
    char path[HY_HF_PATH_MAX], *text;
    size_t size;
    out[0] = 0;
    HY_TRY(hy_path_join(path, sizeof path, folder, "refs/main"));
    if (!hy_path_exists(path)) return HY_OK;
    HY_TRY(hy_file_read(path, &text, &size));
    size_t length = strcspn(text, " \t\r\n");
    bool is_plain = length > 0 && length < 128 && !memchr(text, '/', length) && text[0] != '.';
    if (is_plain) snprintf(out, 128, "%.*s", (int)length, text);
    free(text);
    return is_plain ? HY_OK : hy_fail(HY_ERR_INPUT, "%s does not contain a revision", path);
}

/* Without refs/main, the only snapshot is used. */
static hy_status only_revision(const char *snapshots, char out[128]) {
    char **names;
    size_t count;
    HY_TRY(hy_dir_list(snapshots, &names, &count));
    if (count == 1) snprintf(out, 128, "%.127s", names[0]);
    hy_dir_list_free(names, count);
    if (count == 1) return HY_OK;
    return hy_fail(
        HY_ERR_INPUT,
        "%s has %zu revisions and no refs/main to choose one; name the folder of a revision",
        snapshots, count);
}

static const struct {
    const char *variable, *below;
} caches[] = {{"HF_HUB_CACHE", ""}, {"HF_HOME", "/hub"}, {"HOME", "/.cache/huggingface/hub"}};

bool hy_hf_is_hub_name(const char *name) {
    char wanted[512];
    return cache_name(name, wanted, sizeof wanted);
}

hy_status hy_hf_cache_folder(const char *name, char path[HY_HF_PATH_MAX]) {
    char wanted[512];
    HY_FAIL_IF(!cache_name(name, wanted, sizeof wanted), HY_ERR_INPUT,
               "%.200s is not a model name on the hub; expected a name such as Qwen/Qwen2.5-0.5B",
               name);
    for (size_t i = 0; i < sizeof caches / sizeof caches[0]; i++) {
        const char *value = getenv(caches[i].variable);
        if (!value || !*value) continue;
        int size = snprintf(path, HY_HF_PATH_MAX, "%s%s/%s", value, caches[i].below, wanted);
        HY_FAIL_IF(size >= HY_HF_PATH_MAX, HY_ERR_INPUT, "%s=%.200s... is too long",
                   caches[i].variable, value);
        return HY_OK;
    }
    return hy_fail(
        HY_ERR_INPUT,
        "cannot find the folder of the hub's cache: HOME, HF_HOME and HF_HUB_CACHE are not set");
}

hy_hint hy_hf_how_to_fetch(const char *name) {
    hy_hint hint = {""};
    if (!strchr(name, '/') || !hy_hf_is_hub_name(name)) return hint;
    int size = snprintf(hint.text, sizeof hint.text,
                        "; to download it from the hub: hybrid-train --download %s", name);
    if (size >= (int)sizeof hint.text) hint.text[0] = 0;
    return hint;
}

static hy_status find_in_cache(const char *name, bool *is_found, char path[HY_HF_PATH_MAX]) {
    char wanted[512], folder[HY_HF_PATH_MAX];
    *is_found = false;
    if (!cache_name(name, wanted, sizeof wanted)) return HY_OK;
    for (size_t i = 0; i < sizeof caches / sizeof caches[0]; i++) {
        const char *value = getenv(caches[i].variable);
        if (!value || !*value) continue;
        int size = snprintf(folder, sizeof folder, "%s%s/%s", value, caches[i].below, wanted);
        if (size >= (int)sizeof folder || !hy_path_is_dir(folder)) continue;
        *is_found = true;
        char revision[128], snapshots[HY_HF_PATH_MAX];
        HY_TRY(hy_path_join(snapshots, sizeof snapshots, folder, "snapshots"));
        HY_TRY(main_revision(folder, revision));
        if (!revision[0]) HY_TRY(only_revision(snapshots, revision));
        HY_TRY(hy_path_join(path, HY_HF_PATH_MAX, snapshots, revision));
        if (hy_path_is_dir(path)) return HY_OK;
        return hy_fail(HY_ERR_INPUT, "%s: refs/main names revision %s, which is not in snapshots/",
                       folder, revision);
    }
    return HY_OK;
}

/* ---- folders and files ----------------------------------------------------------------------- */

static hy_model_files kind_of_file(const char *path) {
    if (hy_gguf_is_file(path)) return HY_FILES_GGUF;
    return hy_llama2c_is_file(path) ? HY_FILES_LLAMA2C : HY_FILES_NONE;
}

/* The only model file among these names of a folder. */
static hy_status find_file(const char *folder, char *const *names, size_t count,
                           hy_model_files *kind, char path[HY_HF_PATH_MAX]) {
    char each[HY_HF_PATH_MAX];
    hy_text found = {0};
    int files = 0;
    for (size_t i = 0; i < count; i++) {
        bool is_named = hy_has_ending(names[i], ".bin") || hy_has_ending(names[i], ".gguf");
        if (!is_named) continue;
        if (hy_path_join(each, sizeof each, folder, names[i]) != HY_OK) continue;
        hy_model_files of_it = kind_of_file(each);
        if (of_it == HY_FILES_NONE) continue;
        hy_text_addf(&found, "%s%s", files++ ? ", " : "", names[i]);
        *kind = of_it;
        snprintf(path, HY_HF_PATH_MAX, "%s", each);
    }
    hy_status status = HY_OK;
    if (files > 1)
        status = hy_fail(HY_ERR_INPUT, "%s contains %d model files; name one of them: %s", folder,
                         files, hy_text_string(&found));
    hy_text_free(&found);
    HY_FAIL_IF(
        files == 0, HY_ERR_INPUT,
        "%s has no config.json; a model folder contains config.json and model.safetensors, or "
        "one GGUF file",
        folder);
    return status;
}

static hy_status look_into(const char *folder, hy_model_files *kind, char path[HY_HF_PATH_MAX]) {
    char config[HY_HF_PATH_MAX];
    HY_TRY(hy_path_join(config, sizeof config, folder, "config.json"));
    if (hy_path_exists(config)) {
        *kind = HY_FILES_HF;
        return hy_path_join(path, HY_HF_PATH_MAX, "", folder);
    }
    char **names;
    size_t count;
    HY_TRY(hy_dir_list(folder, &names, &count));
    hy_status status = find_file(folder, names, count, kind, path);
    hy_dir_list_free(names, count);
    return status;
}

hy_status hy_hf_find(const char *name, hy_model_files *kind, char path[HY_HF_PATH_MAX]) {
    char snapshot[HY_HF_PATH_MAX];
    bool is_cached;
    *kind = HY_FILES_NONE;
    path[0] = 0;
    if (hy_path_is_dir(name)) return look_into(name, kind, path);
    if (hy_path_exists(name)) {
        *kind = kind_of_file(name);
        return hy_path_join(path, HY_HF_PATH_MAX, "", *kind == HY_FILES_NONE ? "" : name);
    }
    HY_TRY(find_in_cache(name, &is_cached, snapshot));
    return is_cached ? look_into(snapshot, kind, path) : HY_OK;
}

/* Only files that a model needs: a folder may hold anything else, even training data. */
bool hy_hf_is_side_file(const char *name) {
    static const char known[] =
        " tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json"
        " vocab.txt merges.txt tokenizer.model spiece.model sentencepiece.bpe.model tekken.json"
        " generation_config.json chat_template.json " HY_FORMAT_FILE " USE_POLICY.md ";
    static const char *const beginnings[] = {"LICENSE", "LICENCE", "NOTICE", "COPYING"};
    bool is_word = name[0] && !strchr(name, ' ');
    bool is_known = hy_has_ending(name, ".jinja") || (is_word && hy_word_is_in(known, name));
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++) {
        is_known |= strncmp(name, beginnings[i], strlen(beginnings[i])) == 0;
    }
    return is_known && name[0] != '.';
}

/* Snapshots in the hub's cache are links into blobs/, next to snapshots/. */
bool hy_hf_holds_file(const char *folder, const char *path) {
    char real[PATH_MAX];
    if (!realpath(folder, real)) return false;
    char *revision = strrchr(real, '/');
    if (revision) *revision = 0;
    char *snapshots = strrchr(real, '/');
    bool is_cached = snapshots && strcmp(snapshots, "/snapshots") == 0;
    if (is_cached) *snapshots = 0;
    return hy_path_is_file_below(path, is_cached ? real : folder);
}
