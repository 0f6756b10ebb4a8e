/* peft_set.c: several adapters that are used together. See peft_set.h.
 *
 * Inference switches between them by name. Each adapter has a name that no other one has. */
#include "hub/peft_set.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

#define OF_RUN "/adapter" /* the adapter folder of a run */
#define NO_NAME "none"    /* this name selects no adapter */

int32_t hy_peft_count(const char *names) {
    int32_t count = names[0] != 0;
    if (hy_path_is_dir(names)) return 1;
    for (const char *comma = strchr(names, ','); comma; comma = strchr(comma + 1, ',')) count++;
    return count;
}

/* ---- typed names ----------------------------------------------------------------------------- */

/* A run folder is replaced by its adapter folder. */
static void add_folder(hy_text *out, const char *name, size_t length) {
    char folder[HY_PATH_MAX], inside[HY_PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", (int)length, name);
    bool is_run = length < sizeof folder && !hy_peft_is_folder(folder) &&
                  hy_path_join(inside, sizeof inside, folder, &OF_RUN[1]) == HY_OK &&
                  hy_peft_is_folder(inside);
    if (is_run)
        hy_text_add(out, inside);
    else
        hy_text_add_bytes(out, name, length);
}

void hy_peft_find_folders(char *names, size_t size) {
    int32_t count = hy_peft_count(names);
    hy_text found = {0};
    const char *at = names;
    for (int32_t i = 0; i < count; i++) {
        size_t all = count == 1 ? strlen(at) : strcspn(at, ","), length = all;
        bool is_there = count == 1 && hy_path_is_dir(at); /* spaces may be part of its name */
        size_t before = is_there ? 0 : strspn(at, " ");
        while (!is_there && length > before && at[length - 1] == ' ') length--;
        if (i > 0) hy_text_add(&found, ",");
        add_folder(&found, at + before, length > before ? length - before : 0);
        at += all + (at[all] == ',');
    }
    if (hy_text_status(&found) == HY_OK && found.size > 0 && found.size < size)
        memcpy(names, hy_text_string(&found), found.size + 1);
    hy_text_free(&found);
}

/* ---- folders --------------------------------------------------------------------------------- */

static hy_status set_member(hy_peft_member *member, const char *name, size_t length) {
    char typed[PATH_MAX], path[PATH_MAX];
    HY_FAIL_IF(length == 0 || length >= sizeof typed, HY_ERR_INPUT,
               "adapter: a name between commas is empty or too long");
    snprintf(typed, sizeof typed, "%.*s", (int)length, name);
    HY_FAIL_IF(
        !hy_path_is_dir(typed) || !realpath(typed, path), HY_ERR_INPUT,
        "adapter %s was not found; expected a folder saved by PEFT, or several separated by commas",
        typed);
    HY_TRY(hy_peft_config_read(typed, &member->config)); /* messages use the name as it was typed */
    member->folder = strdup(path);
    size_t size = strlen(path), run = size - (size > strlen(OF_RUN) ? strlen(OF_RUN) : 0);
    if (strcmp(path + run, OF_RUN) == 0) path[run] = 0;
    member->called = strdup(path);
    HY_FAIL_IF(!member->folder || !member->called, HY_ERR_MEMORY,
               "not enough memory for the name of %s", typed);
    HY_TRY(hy_prompt_format_read(typed, &member->format));
    if (member->format.chat != HY_CHAT_AUTO) return HY_OK;
    return hy_prompt_format_read_run(member->called, &member->format);
}

static hy_status check_twice(const hy_peft_set *set) {
    for (int32_t i = 0; i < set->count; i++) {
        for (int32_t k = 0; k < i; k++) {
            HY_FAIL_IF(strcmp(set->list[i].folder, set->list[k].folder) == 0, HY_ERR_INPUT,
                       "adapter %s is named twice", set->list[i].folder);
        }
    }
    return HY_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The end of a path that starts one folder above `name`; the whole path if there is none. */
static const char *longer(const char *folder, const char *name) {
    const char *at = name - 1;
    if (name <= folder + 1) return folder;
    while (at > folder && at[-1] != '/') at--;
    return at;
}

static bool is_end_of(const char *folder, const char *name) {
    size_t size = strlen(folder), length = strlen(name);
    bool ends = length <= size && strcmp(folder + size - length, name) == 0;
    return ends && (length == size || folder[size - length - 1] == '/');
}

static bool is_alone(const hy_peft_set *set, int32_t member, const char *name) {
    if (strcmp(name, NO_NAME) == 0) return false;
    for (int32_t i = 0; i < set->count; i++) {
        if (i != member && is_end_of(set->list[i].called, name)) return false;
    }
    return true;
}

/* The shortest path ends that distinguish the folders. */
static void set_names(hy_peft_set *set) {
    for (int32_t i = 0; i < set->count; i++) {
        const char *called = set->list[i].called, *slash = strrchr(called, '/');
        const char *name = slash ? slash + 1 : called;
        while (name > called && !is_alone(set, i, name)) name = longer(called, name);
        set->list[i].name = is_alone(set, i, name) ? name : set->list[i].folder;
    }
}

hy_status hy_peft_set_read(const char *names, hy_peft_set *out) {
    int32_t count = hy_peft_count(names);
    *out = (hy_peft_set){.list = calloc((size_t)count + 1, sizeof *out->list)};
    hy_status status = out->list ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for adapters");
    for (const char *at = names; out->count < count && status == HY_OK;) {
        size_t length = count == 1 ? strlen(at) : strcspn(at, ",");
        status = set_member(&out->list[out->count++], at, length);
        at += length + (at[length] == ',');
    }
    if (status == HY_OK) status = check_twice(out);
    if (status == HY_OK) set_names(out);
    if (status != HY_OK) hy_peft_set_free(out);
    return status;
}

void hy_peft_set_free(hy_peft_set *set) {
    for (int32_t i = 0; i < set->count; i++) {
        free(set->list[i].folder);
        free(set->list[i].called);
    }
    free(set->list);
    *set = (hy_peft_set){0};
}

/* ---- a config for all of them ---------------------------------------------------------------- */

/* Adds the entries of `more` that `names` lacks. */
static hy_status add_names(char names[HY_PATH_MAX], const char *more) {
    for (const char *at = more, *name; at;) {
        size_t length, used = strlen(names);
        at = hy_next_entry(at, &name, &length);
        if (length == 0 || hy_list_has(names, name, length)) continue;
        HY_FAIL_IF(used + length + 2 > HY_PATH_MAX, HY_ERR_INPUT,
                   "adapters: the combined list of module names is too long");
        snprintf(names + used, HY_PATH_MAX - used, "%s%.*s", used ? "," : "", (int)length, name);
    }
    return HY_OK;
}

hy_status hy_peft_set_union(const hy_peft_set *set, hy_peft_config *out) {
    *out = set->list[0].config;
    if (set->count == 1) return HY_OK;
    double root = out->is_root_scaled ? sqrt((double)out->rank) : (double)out->rank;
    double scale = out->alpha / root;
    for (int32_t i = 1; i < set->count; i++) {
        const hy_peft_config *config = &set->list[i].config;
        if (config->rank > out->rank) out->rank = config->rank;
        HY_TRY(add_names(out->targets, config->targets));
        HY_TRY(add_names(out->modules, config->modules));
    }
    out->is_root_scaled = false;
    out->alpha = scale * (double)out->rank;
    return HY_OK;
}
