/* branches.c: reads and writes the branches of a run. See branches.h.
 *
 * Only checkpoint.c calls it. The parent of a branch is always an earlier branch, so the history of
 * a branch ends. */
#include "formats/branches.h"

#include <limits.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

#define MOST_BRANCHES 1000000

static hy_status take_list(const hy_json *json, const char *path, hy_branches *out) {
    const hy_json_node *root = hy_json_root(json), *list = hy_json_get(root, "branches");
    size_t count = hy_json_size(list);
    HY_TRY(hy_json_int(json, root, "current", &out->current));
    HY_FAIL_IF(hy_json_type_of(list) != HY_JSON_ARRAY || count > MOST_BRANCHES, HY_ERR_INPUT,
               "%s: \"branches\" is missing or not a list of branches", path);
    out->list = calloc(count + 1, sizeof *out->list);
    if (!out->list)
        return hy_fail(HY_ERR_MEMORY, "not enough memory to list the branches of run %s", path);
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        hy_branch *b = &out->list[out->count++];
        HY_TRY(hy_json_int(json, n, "parent", &b->parent));
        HY_TRY(hy_json_int(json, n, "from", &b->from));
        HY_FAIL_IF(b->parent < -1 || b->parent >= (int64_t)out->count, HY_ERR_INPUT,
                   "%s: branch %zu has parent %lld; expected an earlier branch", path, out->count,
                   (long long)b->parent);
    }
    HY_FAIL_IF(out->current < 0 || out->current > (int64_t)out->count, HY_ERR_INPUT,
               "%s: there is no branch %lld", path, (long long)out->current);
    return HY_OK;
}

hy_status hy_branches_read(const char *run, hy_branches *out) {
    char path[HY_PATH_MAX];
    hy_json *json;
    *out = (hy_branches){0};
    HY_TRY(hy_path_join(path, sizeof path, run, HY_BRANCHES_FILE));
    if (!hy_path_exists(path)) return HY_OK;
    HY_TRY(hy_json_read_file(path, &json));
    hy_status status = take_list(json, path, out);
    hy_json_free(json);
    if (status != HY_OK) hy_branches_free(out);
    return status;
}

void hy_branches_free(hy_branches *branches) {
    free(branches->list);
    *branches = (hy_branches){0};
}

bool hy_branches_hold(const hy_branches *branches, int64_t branch, int64_t step) {
    int64_t at = branches->current, limit = INT64_MAX;
    while (at > 0 && at != branch) {
        const hy_branch *b = &branches->list[at - 1];
        if (b->from < limit) limit = b->from;
        at = b->parent;
    }
    return at == branch && step <= limit;
}

hy_status hy_branches_begin(const char *run, hy_branches *branches, hy_branch branch) {
    char path[HY_PATH_MAX];
    hy_text text = {0};
    hy_json_writer w;
    HY_TRY(hy_path_join(path, sizeof path, run, HY_BRANCHES_FILE));
    hy_branch *list = realloc(branches->list, (branches->count + 1) * sizeof *list);
    if (!list)
        return hy_fail(HY_ERR_MEMORY, "not enough memory to list the branches of run %s", run);
    branches->list = list;
    list[branches->count++] = branch;
    branches->current = (int64_t)branches->count;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_int(&w, "current", branches->current);
    hy_json_open_array(&w, "branches");
    for (size_t i = 0; i < branches->count; i++) {
        hy_json_open_object(&w, NULL);
        hy_json_put_int(&w, "parent", list[i].parent);
        hy_json_put_int(&w, "from", list[i].from);
        hy_json_close_object(&w);
    }
    hy_json_close_array(&w);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    hy_status status = hy_text_status(&text);
    if (status == HY_OK) status = hy_file_write_atomic(path, text.data, text.size);
    hy_text_free(&text);
    return status;
}
