/* end_tokens.c: reads "eos_token_id" from the files of a model folder. See end_tokens.h.
 *
 * Inference calls it to know where an answer ends. Ids are between 0 and INT32_MAX, each listed
 * once. */
#include "hub/end_tokens.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "tokenizer/tokenizer_vocab_files.h"

#define KEY "eos_token_id"
enum { PATH_BYTES = 1024 };

/* Some files use an id below 0 for "none". */
static hy_status add(const char *path, const hy_json_node *node, hy_end_tokens *out) {
    int64_t id;
    HY_FAIL_IF(!hy_json_as_int(node, &id) || id > INT32_MAX, HY_ERR_INPUT,
               "%s: \"" KEY "\" is not a token id or a list of token ids", path);
    if (id < 0 || hy_end_tokens_has(out, (int32_t)id)) return HY_OK;
    HY_FAIL_IF(out->count == HY_MOST_END_TOKENS, HY_ERR_INPUT,
               "%s: \"" KEY "\" names more than %d tokens", path, HY_MOST_END_TOKENS);
    out->ids[out->count++] = (int32_t)id;
    return HY_OK;
}

static hy_status read_file(const char *folder, const char *name, hy_end_tokens *out) {
    char path[PATH_BYTES];
    hy_json *json;
    HY_TRY(hy_path_join(path, sizeof path, folder, name));
    HY_TRY(hy_tokenizer_read_beside(folder, name, &json));
    if (!json) return HY_OK;
    const hy_json_node *node = hy_json_get(hy_json_root(json), KEY), *n = hy_json_first(node);
    hy_json_type type = hy_json_type_of(node);
    hy_status status = HY_OK;
    if (type != HY_JSON_ARRAY && type != HY_JSON_NULL) status = add(path, node, out);
    for (; type == HY_JSON_ARRAY && n && status == HY_OK; n = hy_json_next(n)) {
        status = add(path, n, out);
    }
    hy_json_free(json);
    return status;
}

hy_status hy_end_tokens_read(const char *folder, hy_end_tokens *out) {
    out->count = 0;
    if (!folder[0]) return HY_OK;
    HY_TRY(read_file(folder, "generation_config.json", out));
    return out->count > 0 ? HY_OK : read_file(folder, "config.json", out);
}

bool hy_end_tokens_has(const hy_end_tokens *tokens, int32_t id) {
    for (int32_t i = 0; i < tokens->count; i++) {
        if (tokens->ids[i] == id) return true;
    }
    return false;
}
