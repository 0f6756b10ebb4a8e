/* tokenizer.c: opens and closes a tokenizer, and answers simple queries.
 *
 * tokenizer.json does not define bos and eos. tokenizer_config.json or special_tokens_map.json next
 * to it names them, or the SentencePiece file itself; otherwise the special tokens are searched for
 * the names that well-known models use. */
#include "tokenizer/tokenizer.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "tokenizer/tokenizer_gguf.h"
#include "tokenizer/tokenizer_llama2c.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/tokenizer_sentencepiece.h"
#include "tokenizer/tokenizer_vocab_files.h"

#define PATH_MAX_BYTES 4096

/* ---- creating and freeing -------------------------------------------------------------------- */

void hy_tokenizer_close(hy_tokenizer *t) {
    if (!t) return;
    while (t->workspaces && t->workspaces->idle) {
        hy_workspace *space = t->workspaces->idle;
        t->workspaces->idle = space->next;
        free(space->words);
        hy_text_free(&space->normal[0]);
        hy_text_free(&space->normal[1]);
        hy_text_free(&space->spelled);
        for (int i = 0; i < HY_STEPS_MAX; i++) {
            hy_text_free(&space->step[i]);
            if (space->state[i]) hy_pattern_state_free(space->state[i]);
        }
        hy_ids_free(&space->symbols);
        free(space->merge_memory.data);
        free(space->search[0].longest);
        free(space->search[1].longest);
        free(space);
    }
    if (t->workspaces) pthread_mutex_destroy(&t->workspaces->lock);
    free(t->workspaces);
    hy_steps_fini(&t->normalizer);
    hy_steps_fini(&t->splitting);
    hy_added_set_fini(&t->raw);
    hy_added_set_fini(&t->normalized);
    hy_added_set_fini(&t->special);
    hy_merges_fini(&t->merges);
    hy_unigram_fini(&t->unigram);
    hy_vocab_fini(&t->vocab);
    hy_ids_free(&t->before);
    hy_ids_free(&t->after);
    free(t->decoder.text.from);
    free(t->decoder.text.to);
    free(t->is_special);
    free(t->name);
    free(t);
}

/* ---- bos and eos ----------------------------------------------------------------------------- */

static const struct {
    const char *key;
    const char *usual[4]; /* names to try, in order, if no file names the token */
} roles[2] = {
    {"bos_token", {"<|begin_of_text|>", "<s>", "<|startoftext|>"}},
    {"eos_token", {"<|end_of_text|>", "</s>", "<|endoftext|>", "<|im_end|>"}},
};

static int32_t *role(hy_tokenizer *t, int i) { return i == 0 ? &t->bos : &t->eos; }

static hy_status read_roles(hy_tokenizer *t, const char *folder) {
    static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json"};
    bool is_said[2] = {false, false};
    for (int f = 0; f < 2; f++) {
        hy_json *json;
        HY_TRY(hy_tokenizer_read_beside(folder, files[f], &json));
        if (!json) continue;
        if (hy_json_get(hy_json_root(json), "add_bos_token")) t->guess = NULL;
        for (int i = 0; i < 2; i++) { /* "</s>" or {"content": "</s>", ...}; null: none */
            const hy_json_node *node = hy_json_get(hy_json_root(json), roles[i].key);
            const char *text;
            if (!node || is_said[i]) continue;
            is_said[i] = true;
            if (hy_json_type_of(node) == HY_JSON_OBJECT) node = hy_json_get(node, "content");
            *role(t, i) = hy_json_as_string(node, &text, NULL) ? hy_tokenizer_find(t, text) : -1;
        }
        hy_json_free(json);
    }
    return HY_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status fill(hy_tokenizer *t, const char *text, size_t size) {
    hy_json *json;
    HY_TRY(hy_json_parse(text, size, t->name, &json));
    hy_status status = hy_tokenizer_fill(t, json);
    hy_json_free(json);
    t->bos = t->eos = -1;
    for (int i = 0; i < 2; i++) {
        for (int k = 0; status == HY_OK && k < 4 && roles[i].usual[k]; k++) {
            int32_t id = hy_tokenizer_find(t, roles[i].usual[k]);
            if (hy_tokenizer_is_special(t, id) && *role(t, i) < 0) *role(t, i) = id;
        }
    }
    return status;
}

hy_status hy_tokenizer_parse(const char *text, size_t size, const char *name, hy_tokenizer **out) {
    hy_tokenizer *t = calloc(1, sizeof *t);
    if (t) t->name = strdup(name);
    if (t) t->workspaces = calloc(1, sizeof *t->workspaces);
    if (t && t->workspaces) pthread_mutex_init(&t->workspaces->lock, NULL);
    hy_status status = t && t->name && t->workspaces
                           ? fill(t, text, size)
                           : hy_fail(HY_ERR_MEMORY, "not enough memory for a tokenizer");
    if (status == HY_OK) *out = t;
    if (status != HY_OK) hy_tokenizer_close(t);
    return status;
}

/* The file of a tokenizer: `path`, or the one in that folder. */
static hy_status find_file(const char *path, char file[PATH_MAX_BYTES]) {
    if (!hy_path_is_dir(path)) return hy_path_join(file, PATH_MAX_BYTES, "", path);
    HY_TRY(hy_tokenizer_file(path, file, PATH_MAX_BYTES));
    HY_FAIL_IF(!file[0], HY_ERR_INPUT,
               "%s: this folder has no tokenizer.json and no tokenizer.model", path);
    return HY_OK;
}

/* A tokenizer.json: a file of this name as it is, or made from a file of another kind. */
typedef struct tokenizer_text {
    hy_file_map map;
    hy_sentencepiece pieces; /* of a SentencePiece file */
    hy_text made;
    const char *data;
    size_t size;
} tokenizer_text;

static hy_status make_json(const char *file, tokenizer_text *out) {
    if (hy_llama2c_tokenizer_is_named(file)) return hy_llama2c_tokenizer_json(file, &out->made);
    if (hy_vocab_files_are_named(file)) return hy_vocab_files_json(file, &out->made);
    if (hy_sentencepiece_is_named(file)) {
        hy_status status = hy_sentencepiece_json(file, &out->pieces);
        out->made = out->pieces.json;
        return status;
    }
    HY_TRY(hy_gguf_tokenizer_json(file, HY_SOURCE_NAME, &out->made));
    if (out->made.size > 0) {
        hy_text model = out->made;
        hy_status status =
            hy_sentencepiece_convert(model.data, model.size, file, file, &out->pieces);
        out->made = out->pieces.json;
        hy_text_free(&model);
        return status;
    }
    HY_TRY(hy_gguf_tokenizer_json(file, "tokenizer.json", &out->made));
    HY_FAIL_IF(out->made.size == 0, HY_ERR_INPUT, "%s has no tokenizer", file);
    return HY_OK;
}

/* Free it also after an error. */
static hy_status open_text(const char *file, tokenizer_text *out) {
    bool is_made = hy_llama2c_tokenizer_is_named(file) || hy_vocab_files_are_named(file) ||
                   hy_sentencepiece_is_named(file) || hy_gguf_is_file(file);
    HY_TRY(is_made ? make_json(file, out) : hy_file_map_open(file, &out->map));
    out->data = is_made ? hy_text_string(&out->made) : (const char *)out->map.data;
    out->size = is_made ? out->made.size : out->map.size;
    if (!out->data) out->data = "";
    return HY_OK;
}

static void close_text(tokenizer_text *text) {
    if (text->map.data) hy_file_map_close(&text->map);
    hy_text_free(&text->made);
}

hy_status hy_tokenizer_json(const char *path, hy_text *out) {
    char file[PATH_MAX_BYTES];
    tokenizer_text text = {0};
    HY_TRY(find_file(path, file));
    hy_status status = open_text(file, &text);
    if (status == HY_OK) hy_text_add_bytes(out, text.data, text.size);
    close_text(&text);
    return status == HY_OK ? hy_text_status(out) : status;
}

hy_status hy_tokenizer_open(const char *path, hy_tokenizer **out) {
    char file[PATH_MAX_BYTES], folder[PATH_MAX_BYTES];
    tokenizer_text text = {0};
    hy_tokenizer *t = NULL;
    HY_TRY(find_file(path, file));
    bool has_pieces = hy_sentencepiece_is_named(file);
    HY_TRY(hy_gguf_is_file(file) ? hy_path_join(folder, sizeof folder, "", file)
                                 : hy_path_parent(folder, sizeof folder, file));
    hy_status status = open_text(file, &text);
    if (status == HY_OK) status = hy_tokenizer_parse(text.data, text.size, file, &t);
    close_text(&text);
    HY_TRY(status);
    for (int i = 0; i < 2 && has_pieces; i++) *role(t, i) = text.pieces.ends[i];
    if (has_pieces) t->guess = text.pieces.class ? text.pieces.class : "sentencepiece";
    if (!hy_llama2c_tokenizer_is_named(file)) status = read_roles(t, folder);
    if (status == HY_OK) *out = t;
    if (status != HY_OK) hy_tokenizer_close(t);
    return status;
}

/* ---- queries --------------------------------------------------------------------------------- */

int32_t hy_tokenizer_vocab(const hy_tokenizer *t) { return t->vocab.ids; }

int32_t hy_tokenizer_find(const hy_tokenizer *t, const char *token) {
    return hy_vocab_find(&t->vocab, token, strlen(token));
}

const char *hy_tokenizer_token(const hy_tokenizer *t, int32_t id, size_t *size) {
    bool is_token = id >= 0 && id < t->vocab.ids && t->vocab.places[id].start != UINT32_MAX;
    if (size) *size = is_token ? t->vocab.places[id].size : 0;
    return is_token ? t->vocab.bytes + t->vocab.places[id].start : NULL;
}

bool hy_tokenizer_is_special(const hy_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->vocab.ids && t->is_special[id];
}

int32_t hy_tokenizer_bos(const hy_tokenizer *t) { return t->bos; }
const char *hy_tokenizer_guess(const hy_tokenizer *t) { return t->guess; }
int32_t hy_tokenizer_eos(const hy_tokenizer *t) { return t->eos; }
int32_t hy_tokenizer_unknown(const hy_tokenizer *t) { return t->unknown; }

/* ---- public functions ------------------------------------------------------------------------ */

hy_status hy_tokenize(const hy_tokenizer *t, const char *text, size_t size, int flags,
                      int32_t **ids, size_t *count) {
    hy_ids row = {0};
    hy_status status = hy_tokenizer_encode(t, text, size, flags, &row);
    if (status != HY_OK) hy_ids_free(&row);
    *ids = row.data;
    *count = row.count;
    return status;
}

hy_status hy_untokenize(const hy_tokenizer *t, const int32_t *ids, size_t count, int flags,
                        char **text, size_t *size) {
    hy_text out = {0};
    hy_status status = hy_tokenizer_decode(t, ids, count, flags, &out);
    hy_text_add(&out, ""); /* makes it a string even if it is empty */
    if (status == HY_OK) status = hy_text_status(&out);
    if (status != HY_OK) hy_text_free(&out);
    *text = out.data;
    *size = out.size;
    return status;
}
