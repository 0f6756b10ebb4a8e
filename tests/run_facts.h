/* run_facts.h: facts about a run for tests of places, types and progress: its plan as JSON, its
 * summary, and the files of its newest checkpoint. Nothing here uses internals of a trainer. */
#ifndef HY_TESTS_RUN_FACTS_H
#define HY_TESTS_RUN_FACTS_H

#include <math.h>

#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "harness.h"
#include "hybrid.h"

/* ---- JSON by path: "choices.batch_size" ------------------------------------------------------ */

static inline const hy_json_node *json_at(const hy_json *json, const char *path) {
    char copy[200], *rest = copy;
    snprintf(copy, sizeof copy, "%s", path);
    const hy_json_node *node = hy_json_root(json);
    for (char *key; node && (key = strtok_r(rest, ".", &rest));) node = hy_json_get(node, key);
    return node;
}

/* A number or a switch; NaN where there is none. */
static inline double json_number(const hy_json *json, const char *path) {
    const hy_json_node *node = json_at(json, path);
    double value = NAN;
    bool is_on;
    if (hy_json_as_bool(node, &is_on)) return is_on;
    return hy_json_as_double(node, &value) ? value : NAN;
}

/* A string; "" where there is none. */
static inline void json_text(const hy_json *json, const char *path, char out[64]) {
    const char *text = "";
    (void)hy_json_as_string(json_at(json, path), &text, NULL);
    snprintf(out, 64, "%s", text);
}

/* ---- the plan of a run or of hy_trainer_plan ------------------------------------------------- */

static inline hy_json *plan_of(const hy_trainer *t) {
    char *text;
    hy_json *json;
    must(hy_trainer_plan_json(t, &text));
    must(hy_json_parse(text, strlen(text), "plan", &json));
    hy_free(text);
    return json;
}

static inline int64_t plan_number(const hy_trainer *t, const char *path) {
    hy_json *json = plan_of(t);
    double value = json_number(json, path);
    ck_assert_msg(!isnan(value), "the plan has no number %s", path);
    hy_json_free(json);
    return (int64_t)value;
}

static inline bool plan_says(const hy_trainer *t, const char *path, const char *expected) {
    char found[64];
    hy_json *json = plan_of(t);
    json_text(json, path, found);
    hy_json_free(json);
    return strcmp(found, expected) == 0;
}

#define must_plan(t, path, expected)                                                               \
    ck_assert_msg(plan_says(t, path, expected), "%s is not %s", path, expected)

static inline hy_summary summary_of(const hy_trainer *t) {
    hy_summary summary;
    hy_trainer_summary(t, &summary);
    return summary;
}

static inline hy_memory_cell cell_of(const hy_trainer *t, hy_class cls, hy_phase phase) {
    return summary_of(t).phases[phase].memory[cls];
}

/* ---- the newest checkpoint of a run's folder ------------------------------------------------- */

static inline const char *saved_path(const char *out, const char *name, char path[512]) {
    char folder[400];
    int64_t step;
    must(hy_checkpoint_latest(out, folder, sizeof folder, &step, NULL));
    snprintf(path, 512, "%s/%s", folder, name);
    return path;
}

/* A number of trainer.json; NaN where there is none. */
static inline double saved_number(const char *out, const char *key) {
    char path[512];
    hy_json *json;
    must(hy_json_read_file(saved_path(out, "trainer.json", path), &json));
    double value = json_number(json, key);
    hy_json_free(json);
    return value;
}

static inline void saved_text(const char *out, const char *key, char text[64]) {
    char path[512];
    hy_json *json;
    must(hy_json_read_file(saved_path(out, "trainer.json", path), &json));
    json_text(json, key, text);
    hy_json_free(json);
}

static inline hy_safetensors *open_saved(const char *out, const char *name) {
    char path[512];
    hy_safetensors *file;
    must(hy_safetensors_open(saved_path(out, name, path), &file));
    return file;
}

/* The bytes of a tensor, which the caller frees. */
static inline void *read_tensor(const hy_safetensors *file, const char *name, uint64_t *bytes) {
    const hy_safetensors_entry *e = hy_safetensors_find(file, name);
    ck_assert_msg(e != NULL, "%s is not there", name);
    char *data = malloc(e->bytes);
    ck_assert_ptr_nonnull(data);
    must(hy_safetensors_read(file, e, 0, data, e->bytes));
    *bytes = e->bytes;
    return data;
}

static inline void *saved_tensor(const char *out, const char *file, const char *name,
                                 uint64_t *bytes) {
    hy_safetensors *open = open_saved(out, file);
    void *data = read_tensor(open, name, bytes);
    hy_safetensors_close(open);
    return data;
}

/* Writes the newest checkpoint again with file `name` changed to these bytes; the manifest goes
 * with it. */
static inline void replace_saved(const char *out, const char *name, const void *data, size_t size) {
    char folder[400], path[700], **names;
    int64_t step;
    size_t count;
    hy_checkpoint *c;
    must(hy_checkpoint_latest(out, folder, sizeof folder, &step, NULL));
    must(hy_dir_list(folder, &names, &count));
    must(hy_checkpoint_begin(out, step, &c));
    for (size_t i = 0; i < count; i++) {
        char *kept = NULL;
        size_t kept_size = 0;
        bool is_it = strcmp(names[i], name) == 0;
        if (strcmp(names[i], "manifest.json") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (!is_it) must(hy_file_read(path, &kept, &kept_size));
        must(hy_checkpoint_put(c, names[i], is_it ? data : kept, is_it ? size : kept_size));
        free(kept);
    }
    must(hy_checkpoint_commit(c));
    hy_dir_list_free(names, count);
}

/* Sets a member of trainer.json to this JSON: a number, true, a string in quotes. */
static inline void change_saved(const char *out, const char *key, const char *json) {
    char path[512], named[100], *text, *changed;
    size_t size;
    must(hy_file_read(saved_path(out, "trainer.json", path), &text, &size));
    snprintf(named, sizeof named, "\"%s\": ", key);
    char *at = strstr(text, named);
    ck_assert_msg(at != NULL, "trainer.json has no %s", key);
    at += strlen(named);
    int length =
        asprintf(&changed, "%.*s%s%s", (int)(at - text), text, json, at + strcspn(at, ",\n"));
    ck_assert_int_gt(length, 0);
    replace_saved(out, "trainer.json", changed, (size_t)length);
    free(changed);
    free(text);
}

/* Sets bytes of a tensor in a file of the checkpoint. */
static inline void change_tensor(const char *out, const char *file, const char *name,
                                 uint64_t offset, const void *bytes, size_t size) {
    char path[512], *data;
    size_t all;
    uint64_t header;
    hy_safetensors *open = open_saved(out, file);
    const hy_safetensors_entry *e = hy_safetensors_find(open, name);
    ck_assert_msg(e != NULL && offset + size <= e->bytes, "%s", name);
    must(hy_file_read(saved_path(out, file, path), &data, &all));
    memcpy(&header, data, sizeof header); /* the length of what stands before the bytes */
    memcpy(data + sizeof header + header + e->offset + offset, bytes, size);
    hy_safetensors_close(open);
    replace_saved(out, file, data, all);
    free(data);
}

#endif
