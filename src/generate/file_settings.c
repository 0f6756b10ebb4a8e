/* file_settings.c: what the answers of a file depend on, as a list of named texts. See file.h.
 *
 * OUT.part.json has the list of the call that began the file. A call with another list would write
 * rows that do not belong to those before them. Streams, threads and memory are not in it: they
 * change no bit of an answer. Neither is the device. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "config/derived.h"
#include "data/fingerprint.h"
#include "generate/file.h"

#define FORMAT "hybrid-train answers"
#define VERSION 1

/* ---- hashes ---------------------------------------------------------------------------------- */

/* The weights in a file, or in the files of a folder. */
static hy_status add_weights(const char *path, hy_hash *hash) {
    char **names, file[HY_PATH_MAX];
    size_t count;
    if (!hy_path_is_dir(path)) return hy_fingerprint_file(path, hash);
    HY_TRY(hy_dir_list(path, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        bool is_weights =
            hy_has_ending(names[i], ".safetensors") || hy_has_ending(names[i], ".bin");
        if (is_weights) status = hy_path_join(file, sizeof file, path, names[i]);
        if (is_weights && status == HY_OK) status = hy_fingerprint_file(file, hash);
    }
    hy_dir_list_free(names, count);
    return status;
}

static void put_hash(hy_json_writer *w, const char *key, uint64_t hash) {
    char hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    hy_json_put_string(w, key, hex);
}

static hy_status put_weights(hy_json_writer *w, hy_generator *generator) {
    const hy_peft_set *adapters = hy_generator_look_inside(generator).adapters;
    hy_generator_facts facts;
    hy_hash hash, adapter_hash;
    hy_hash_init(&hash, 0);
    hy_hash_init(&adapter_hash, 0);
    hy_generator_describe(generator, &facts);
    HY_TRY(add_weights(facts.weights, &hash));
    for (int32_t i = 0; i < adapters->count; i++)
        HY_TRY(add_weights(adapters->list[i].folder, &adapter_hash));
    put_hash(w, "weights", hy_hash_value(&hash));
    put_hash(w, "adapters", hy_hash_value(&adapter_hash));
    return HY_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_whole(hy_json_writer *w, const char *key, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    hy_json_put_string(w, key, text);
}

static void put_number(hy_json_writer *w, const char *key, double value) {
    char text[HY_NUMBER_MAX];
    hy_json_put_string(w, key, hy_number_format(value, text));
}

static void put_request(hy_json_writer *w, const hy_asking *how) {
    const hy_request *each = &how->each;
    put_whole(w, "answers", how->answers);
    put_whole(w, "max_tokens", each->max_tokens);
    put_number(w, "temperature", each->temperature);
    put_number(w, "top_p", each->top_p);
    put_number(w, "min_p", each->min_p);
    put_whole(w, "top_k", each->top_k);
    put_number(w, "repetition_penalty", each->repetition_penalty);
    put_whole(w, "seed", (int64_t)each->seed);
    put_whole(w, "logprobs", each->wants_logprobs);
    put_whole(w, "top_logprobs", each->top_logprobs);
    for (size_t i = 0; i < each->stop_count; i++) {
        char key[32];
        snprintf(key, sizeof key, "stop %zu", i + 1);
        hy_json_put_string(w, key, each->stop[i]);
    }
}

static void put_model(hy_json_writer *w, hy_generator *generator) {
    hy_generator_parts parts = hy_generator_look_inside(generator);
    hy_generator_facts facts;
    hy_generator_describe(generator, &facts);
    hy_json_put_string(w, "type", hy_dtype_name(facts.dtype));
    hy_json_put_string(w, "frozen_dtype", hy_settings_frozen_name(parts.settings));
    hy_json_put_string(w, "tokenizer", facts.tokenizer);
    hy_json_put_string(w, "chat_template", facts.chat_template);
    hy_json_put_string(w, "message_format", facts.message_format);
    put_whole(w, "no_think", parts.codec->chat.skips_thinking);
    put_whole(w, "context", facts.context);
}

hy_status hy_file_settings_write(hy_generator *generator, const hy_asking *how, bool skips_bad,
                                 const hy_row_source *source, hy_text *out) {
    hy_json_writer w;
    hy_json_begin(&w, out, false);
    hy_json_open_object(&w, NULL);
    put_request(&w, how);
    hy_json_put_string(&w, "system", how->system ? how->system : "");
    for (int i = 0; i < how->columns.count; i++) {
        char key[48];
        snprintf(key, sizeof key, "column %s", how->columns.list[i].key);
        hy_json_put_string(&w, key, how->columns.list[i].name);
    }
    put_whole(&w, "skip_bad", skips_bad);
    put_model(&w, generator);
    HY_TRY(put_weights(&w, generator));
    put_hash(&w, "data", hy_hash_bytes(source->file.data, source->file.size, 0));
    hy_json_close_object(&w);
    return hy_text_status(out);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static const char *text_of(const hy_json_node *object, const char *key) {
    const char *text;
    return hy_json_as_string(hy_json_get(object, key), &text, NULL) ? text : NULL;
}

/* Appends "; KEY was A and is B" if the two values differ. */
static void compare(const char *key, const hy_json_node *before, const hy_json_node *now,
                    hy_text *out) {
    const char *was = text_of(before, key), *is = text_of(now, key);
    bool is_hash = !strcmp(key, "data") || !strcmp(key, "weights") || !strcmp(key, "adapters");
    if (was && is && strcmp(was, is) == 0) return;
    if (is_hash)
        hy_text_addf(out, "; the %s changed", key);
    else
        hy_text_addf(out, "; %s was %.100s and is %.100s", key, was ? was : "not set",
                     is ? is : "not set");
}

static hy_status compare_all(const char *path, const hy_json *json, const hy_json_node *now) {
    const hy_json_node *root = hy_json_root(json), *before = hy_json_get(root, "settings");
    hy_text differences = {0};
    for (const hy_json_node *n = hy_json_first(now); n; n = hy_json_next(n))
        compare(hy_json_key(n), before, now, &differences);
    for (const hy_json_node *n = hy_json_first(before); n; n = hy_json_next(n))
        if (!hy_json_get(now, hy_json_key(n))) compare(hy_json_key(n), before, now, &differences);
    hy_status status = hy_text_status(&differences);
    if (status == HY_OK && differences.size > 0)
        status =
            hy_fail(HY_ERR_INPUT,
                    "%s was begun with other settings: %s; to continue it, repeat its command; "
                    "--overwrite starts over",
                    path, differences.data + 2);
    hy_text_free(&differences);
    return status;
}

hy_status hy_file_settings_compare(const char *path, const hy_text *settings, int64_t *rows) {
    hy_json *before, *now;
    int64_t version;
    const char *format;
    HY_TRY(hy_json_read_file(path, &before));
    const hy_json_node *root = hy_json_root(before);
    hy_status status = hy_json_string(before, root, "format", &format, NULL);
    if (status == HY_OK) status = hy_json_int(before, root, "version", &version);
    if (status == HY_OK) status = hy_json_int(before, root, "rows", rows);
    if (status == HY_OK && (strcmp(format, FORMAT) != 0 || version != VERSION))
        status = hy_fail(HY_ERR_INPUT, "%s was not written by this program", path);
    if (status == HY_OK) status = hy_json_parse(settings->data, settings->size, path, &now);
    if (status == HY_OK) {
        status = compare_all(path, before, hy_json_root(now));
        hy_json_free(now);
    }
    hy_json_free(before);
    return status;
}

hy_status hy_file_settings_store(const char *path, const hy_text *settings, int64_t rows) {
    hy_text all = {0};
    hy_text_addf(&all,
                 "{\"format\":\"" FORMAT "\",\"version\":%d,\"rows\":%" PRId64 ",\"settings\":",
                 VERSION, rows);
    hy_text_add_bytes(&all, settings->data, settings->size);
    hy_text_add(&all, "}\n");
    hy_status status = hy_text_status(&all);
    if (status == HY_OK) status = hy_file_write_atomic(path, all.data, all.size);
    hy_text_free(&all);
    return status;
}
