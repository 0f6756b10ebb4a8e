/* test_hf.c: models in Hugging Face's format, in and out.
 *
 * tests/golden/hf holds small random models as transformers saves them (make_hf.py there), with the
 * logits it computes. Here they are read, run and compared, written and read again.
 * test_hf_refusals.c has what must be refused. */
#include <errno.h>
#include <math.h>
#include <sys/stat.h>

#include "base/lock.h"
#include "config/derived.h"
#include "hf_rig.h"
#include "kernels/coded.h"
#include "kernels/half.h"
#include "model/coding.h"
#include "tokenizer/tokenizer.h"

/* ---- against transformers -------------------------------------------------------------------- */

static void check_logits(const char *name) {
    hf_rig rig = {0};
    open_hf(&rig, golden_folder(name), HY_F32);
    double far = logits_distance(&rig, golden_folder(name));
    ck_assert_msg(far <= 1e-5, "%s: the logits are off by %.2e", name, far);
    close_hf(&rig);
}

START_TEST(logits_are_those_of_transformers) {
    for (int i = 0; i < HF_CASES; i++) check_logits(hf_cases[i]);
}
END_TEST

/* Irregular: a norm takes away what is the same everywhere. */
static float change_of(int64_t k) { return 0.05f * (float)((uint32_t)k * 2654435761u >> 30); }

static void feels_every_tensor(const char *name) {
    hf_rig rig = {0};
    open_hf(&rig, golden_folder(name), HY_F32);
    for (int32_t i = 0; i < rig.m.model->params.count; i++) {
        float *weight = hy_store_backing(&rig.m.weights, i);
        int64_t count = rig.m.model->params.list[i].stored;
        for (int64_t k = 0; k < count; k++) weight[k] += change_of(k);
        double far = logits_distance(&rig, golden_folder(name));
        ck_assert_msg(far > 1e-3, "%s: the logits do not feel %s", name,
                      rig.m.model->params.list[i].name);
        for (int64_t k = 0; k < count; k++) weight[k] -= change_of(k);
    }
    close_hf(&rig);
}

/* A parameter's codes and scales are those of its numbers. */
static void check_codes(const hy_param *p, const hy_layout_item *item, const float *x,
                        const hy_tensor *found) {
    hy_coding coding;
    char *codes = malloc(hy_tensor_bytes(found));
    must(hy_coding_begin(&coding, p, item));
    if (hy_coding_looks_first(&coding)) hy_coding_look(&coding, x, p->count);
    hy_coding_rows(&coding, x, 0, p->count, codes);
    ck_assert_mem_eq(codes, found->data, hy_tensor_bytes(found));
    ck_assert_mem_eq(hy_coding_scales(&coding), found->quant.scale, hy_layout_scale_bytes(item));
    hy_coding_end(&coding);
    free(codes);
}

/* What is loaded as codes are the codes of the numbers that are loaded else; returns how many
 * matrices. */
static int check_coded(const char *folder, hy_dtype dtype, int64_t piece) {
    int coded = 0;
    hf_rig rig = {0};
    hy_model *model;
    hy_layout layout;
    hy_arena arena;
    hy_ledger ledger = {0};
    hy_store frozen;
    open_hf(&rig, folder, HY_F32);
    must(hy_model_create(&rig.shape, &model));
    must(hy_model_select(model, "last:1", dtype));
    must(hy_params_layout(&model->params, HY_SET_FROZEN, HY_F32, &layout));
    must(hy_arena_init(&arena, rig.m.backend, &ledger, HY_DEVICE, layout.bytes, "a test"));
    must(hy_store_init(&frozen, &arena, HY_WEIGHTS, &layout));
    memset(frozen.data, 0xff, layout.bytes);
    must(hy_hf_load_weights(folder, model, &frozen, rig.m.stream,
                            &(hy_load_options){.piece = piece}));
    for (int32_t i = 0; i < model->params.count; i++) {
        const hy_param *p = &model->params.list[i];
        const float *x = hy_store_backing(&rig.m.weights, i);
        int32_t item = hy_store_item_of(&frozen, i);
        if (item < 0) continue;
        hy_tensor t = hy_store_tensor(&frozen, item, hy_store_backing(&frozen, item));
        if (t.dtype == HY_F32) ck_assert_mem_eq(x, t.data, (size_t)p->count * sizeof *x);
        if (t.dtype == dtype) check_codes(p, &frozen.layout.items[item], x, &t);
        coded += t.dtype == dtype;
    }
    hy_store_fini(&frozen);
    hy_layout_fini(&layout);
    hy_arena_fini(&arena);
    hy_model_destroy(model);
    close_hf(&rig);
    return coded;
}

START_TEST(frozen_weights_are_loaded_as_int8) {
    for (int i = 0; i < HF_CASES; i++) {
        ck_assert_int_ge(check_coded(golden_folder(hf_cases[i]), HY_I8, 70), 4);
    }
}
END_TEST

/* One scale for all rows of a matrix, which many jobs read. */
START_TEST(frozen_weights_are_loaded_as_fp8) {
    for (int i = 0; i < HF_CASES; i++) {
        ck_assert_int_ge(check_coded(golden_folder(hf_cases[i]), HY_E4M3, 70), 4);
        ck_assert_int_ge(check_coded(golden_folder(hf_cases[i]), HY_E4M3, 0), 4);
    }
}
END_TEST

/* Rows as wide as it takes, in 16 bits, with padding behind the table and more jobs than
 * threads. */
START_TEST(frozen_weights_are_loaded_as_nf4) {
    static const int64_t pieces[] = {0, 70, 1000, 5000};
    hy_shape shape = {.layers = 3,
                      .width = 64,
                      .heads = 4,
                      .kv_heads = 2,
                      .mlp_width = 192,
                      .vocab = 1030,
                      .context = 12,
                      .is_rms = true,
                      .has_rope = true,
                      .is_gated = true,
                      .norm_eps = 1e-6,
                      .rope_theta = 10000,
                      .init_std = 0.1};
    hy_batch_options options = {
        .batch = 1, .seq = HF_TOKENS, .chunks = 1, .dtype = HY_F32, .grad_dtype = HY_F32};
    char folder[256], out[300];
    hf_rig rig = {0};
    snprintf(out, sizeof out, "%s/model", temp_folder(folder));
    rig_open(&rig.m, &shape, &options, 1);
    hy_hf_writing writing = writing_of(&rig, out, HY_BF16);
    must(hy_hf_write(&writing));
    for (int i = 0; i < 4; i++) ck_assert_int_eq(check_coded(out, HY_NF4, pieces[i]), 2 * 4);
    close_hf(&rig);
    remove_folder(folder);
}
END_TEST

START_TEST(one_wrong_tensor_is_detected) {
    for (int i = 0; i < HF_CASES; i++) feels_every_tensor(hf_cases[i]);
}
END_TEST

static void check_bf16(const char *name) {
    hf_rig exact = {0}, rounded = {0};
    open_hf(&exact, golden_folder(name), HY_F32);
    open_hf(&rounded, golden_folder(name), HY_BF16);
    for (int32_t i = 0; i < exact.m.model->params.count; i++) {
        const float *a = hy_store_backing(&exact.m.weights, i);
        const uint16_t *b = hy_store_backing(&rounded.m.weights, i);
        for (int64_t k = 0; k < exact.m.model->params.list[i].count; k++) {
            ck_assert_uint_eq(b[k], hy_f32_to_bf16(a[k]));
        }
    }
    close_hf(&exact);
    close_hf(&rounded);
}

START_TEST(weights_in_bf16_are_those_in_fp32_rounded) {
    for (int i = 0; i < HF_CASES; i++) check_bf16(hf_cases[i]);
}
END_TEST

static void check_pieces(const char *name) {
    static const int64_t pieces[] = {1, 33, 257};
    hf_rig whole = {0};
    open_hf(&whole, golden_folder(name), HY_F32);
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        hf_rig cut = {.piece = pieces[i]};
        open_hf(&cut, golden_folder(name), HY_F32);
        ck_assert_mem_eq(cut.m.weights.data, whole.m.weights.data, whole.m.weights.layout.bytes);
        close_hf(&cut);
    }
    close_hf(&whole);
}

START_TEST(pieces_of_any_size_make_the_same_weights) {
    for (int i = 0; i < HF_CASES; i++) check_pieces(hf_cases[i]);
}
END_TEST

/* ---- out again ------------------------------------------------------------------------------- */

static void write_and_read_again(const char *name, uint64_t shard_size, bool has_source) {
    char folder[256], out[300], golden[512];
    hf_rig rig = {0}, again = {0};
    hy_hf_config config;
    snprintf(golden, sizeof golden, "%s", golden_folder(name));
    snprintf(out, sizeof out, "%s/model", temp_folder(folder));
    must(hy_hf_config_read(golden, &config));
    open_hf(&rig, golden, HY_F32);
    hy_hf_writing writing = writing_of(&rig, out, config.dtype);
    writing.shard_size = shard_size;
    if (has_source) writing.source = golden;
    must(hy_hf_write(&writing));
    models_are_the_same(golden, out);
    open_hf(&again, out, HY_F32);
    ck_assert_double_le(logits_distance(&again, golden), 1e-5);
    must(hy_hf_write(&writing)); /* over itself */
    models_are_the_same(golden, out);
    close_hf(&again);
    close_hf(&rig);
    hy_hf_config_free(&config);
    remove_folder(folder);
}

static void check_written(const char *name) {
    write_and_read_again(name, 1u << 30, true);
    write_and_read_again(name, 4000, true); /* some tensors are larger */
    write_and_read_again(name, 1u << 30, false);
}

START_TEST(what_is_written_is_byte_identical) {
    for (int i = 0; i < HF_CASES; i++) check_written(hf_cases[i]);
}
END_TEST

START_TEST(rows_behind_the_vocabulary_are_zero_and_not_written) {
    char folder[256], out[300];
    hf_rig rig = {.shape = {.layers = 1,
                            .width = 8,
                            .heads = 2,
                            .vocab = 1030,
                            .context = 16,
                            .is_rms = true,
                            .has_rope = true,
                            .is_gated = true,
                            .norm_eps = 1e-5,
                            .rope_theta = 10000,
                            .init_std = 1}};
    hf_rig again = {0};
    hy_batch_options options = {.batch = 1, .seq = 8, .chunks = 1};
    snprintf(out, sizeof out, "%s/model", temp_folder(folder));
    rig_open(&rig.m, &rig.shape, &options, 3);
    hy_hf_writing writing = writing_of(&rig, out, HY_F32);
    must(hy_hf_write(&writing));
    open_hf(&again, out, HY_F32);
    int padded = 0;
    for (int32_t i = 0; i < again.m.model->params.count; i++) {
        const hy_param *p = &again.m.model->params.list[i];
        const float *a = hy_store_backing(&rig.m.weights, i),
                    *b = hy_store_backing(&again.m.weights, i);
        ck_assert_mem_eq(a, b, (size_t)p->stored * sizeof *a);
        for (int64_t k = p->stored; k < p->count; k++) {
            ck_assert_float_eq(b[k], 0);
            padded++;
        }
    }
    ck_assert_int_eq(padded, 2 * (1088 - 1030) * 8);
    close_hf(&again);
    close_hf(&rig);
    remove_folder(folder);
}
END_TEST

/* ---- what lies beside the weights ------------------------------------------------------------ */

START_TEST(files_beside_the_weights_are_copied) {
    static const struct {
        const char *name;
        bool is_copied;
    } files[] = {
        {"tokenizer.json", true},  {"chat_template.jinja", true}, {"generation_config.json", true},
        {"LICENSE.md", true},      {"merges.txt", true},          {"pytorch_model.bin", false},
        {"model.gguf", false},     {".gitattributes", false},     {"train.jsonl", false},
        {"tokenizer.model", true}, {"notes.txt", false},          {"id_rsa", false}};
    char folder[256], source[300], out[300];
    hf_rig rig = {0};
    snprintf(source, sizeof source, "%s/source", temp_folder(folder));
    snprintf(out, sizeof out, "%s/out", folder);
    copy_golden("qwen2", source);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        put_file(source, files[i].name, files[i].name, strlen(files[i].name));
    }
    open_hf(&rig, source, HY_F32);
    hy_hf_writing writing = writing_of(&rig, out, HY_F32);
    writing.source = source;
    must(hy_hf_write(&writing));
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", out, files[i].name);
        ck_assert_msg(hy_path_exists(path) == files[i].is_copied, "%s", files[i].name);
        if (!files[i].is_copied) continue;
        char *text;
        size_t size;
        must(hy_file_read(path, &text, &size));
        ck_assert_str_eq(text, files[i].name);
        free(text);
    }
    hy_hf_config config;
    must(hy_hf_config_read(out, &config));
    ck_assert_int_eq(config.dtype, HY_F32); /* the source says bf16 */
    hy_hf_config_free(&config);
    close_hf(&rig);
    remove_folder(folder);
}
END_TEST

static void count_warnings(void *user, hy_message_level level, const char *text) {
    if (level == HY_WARNING && strstr(text, "merges.txt is not copied")) ++*(int *)user;
}

/* A link is a file of the model only where it stays with the model; the hub's cache is made of
 * links. */
START_TEST(links_to_files_elsewhere_are_not_copied) {
    char folder[256], cache[300], source[400], blobs[400], out[300], path[500], other[500];
    int warnings = 0;
    hy_observer observer = {.on_message = count_warnings, .user = &warnings};
    hf_rig rig = {0};
    snprintf(cache, sizeof cache, "%s/models--a--b", temp_folder(folder));
    snprintf(source, sizeof source, "%s/snapshots/0123", cache);
    snprintf(blobs, sizeof blobs, "%s/blobs", cache);
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(path, sizeof path, "%s/snapshots", cache);
    must(hy_dir_make(path));
    must(hy_dir_make(blobs));
    copy_golden("qwen2", source);
    put_file(blobs, "77", "blob", 4);
    put_file(folder, "secret", "secret", 6);
    snprintf(path, sizeof path, "%s/tokenizer.json", source);
    ck_assert_int_eq(symlink("../../blobs/77", path), 0);
    snprintf(path, sizeof path, "%s/merges.txt", source);
    ck_assert_int_eq(symlink("../../../secret", path), 0);
    snprintf(path, sizeof path, "%s/vocab.txt", source);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    open_hf(&rig, source, HY_F32);
    hy_hf_writing writing = writing_of(&rig, out, HY_F32);
    writing.source = source;
    writing.observer = &observer;
    must(hy_hf_write(&writing));
    snprintf(path, sizeof path, "%s/tokenizer.json", out);
    snprintf(other, sizeof other, "%s/merges.txt", out);
    ck_assert(hy_path_exists(path) && !hy_path_is_link(path));
    ck_assert(!hy_path_exists(other) && !hy_path_is_link(other));
    ck_assert_int_eq(warnings, 1);
    close_hf(&rig);
    remove_folder(folder);
}
END_TEST

static void hear(void *user, hy_message_level level, const char *text) {
    ck_assert_int_eq(level, HY_WARNING);
    hy_text_add(user, text);
}

/* Writes a golden model with a window that it did not have, and reads what config.json then
 * says. */
static hy_status write_with_window(const char *name, int32_t window, hy_text *heard,
                                   hy_hf_config *config) {
    char folder[256], out[300], golden[512];
    hf_rig rig = {0};
    hy_observer observer = {.user = heard, .on_message = hear};
    snprintf(golden, sizeof golden, "%s", golden_folder(name));
    snprintf(out, sizeof out, "%s/model", temp_folder(folder));
    open_hf(&rig, golden, HY_F32);
    hy_shape shape = rig.m.model->shape;
    shape.sliding_window = window;
    hy_hf_writing writing = writing_of(&rig, out, HY_F32);
    writing.source = golden;
    writing.shape = &shape;
    writing.observer = &observer;
    hy_status status = hy_hf_write(&writing);
    ck_assert(hy_path_exists(out) == (status == HY_OK));
    if (status == HY_OK) must(hy_hf_config_read(out, config));
    close_hf(&rig);
    remove_folder(folder);
    return status;
}

/* A setting may give a model what its architecture does not have. */
START_TEST(a_window_that_the_architecture_lacks_is_written_as_another_or_refused) {
    hy_text heard = {0};
    hy_hf_config config;
    must(write_with_window("llama", 5, &heard, &config));
    ck_assert_int_eq(config.shape.arch, HY_ARCH_MISTRAL);
    ck_assert_int_eq(config.shape.sliding_window, 5);
    ck_assert_str_eq(heard.data, "LlamaForCausalLM has no sliding window: the model is written as "
                                 "MistralForCausalLM");
    hy_hf_config_free(&config);
    hy_text_clear(&heard);
    must(write_with_window("mistral", 0, &heard, &config)); /* it can do without */
    ck_assert_int_eq(config.shape.arch, HY_ARCH_MISTRAL);
    ck_assert_int_eq(config.shape.sliding_window, 0);
    hy_hf_config_free(&config);
    ck_assert_int_eq(write_with_window("llama-attention-bias", 5, &heard, &config), HY_ERR_INPUT);
    ck_assert_msg(
        strstr(hy_error_message(), "llama has no sliding window; mistral uses different biases"),
        "%s", hy_error_message());
    ck_assert_int_eq(write_with_window("gpt2", 5, &heard, &config), HY_ERR_INPUT);
    ck_assert_msg(strstr(hy_error_message(), "gpt2 has no sliding window"), "%s",
                  hy_error_message());
    ck_assert_str_eq(heard.data, "");
    hy_text_free(&heard);
}
END_TEST

/* The second removed what the first was writing, and the first published what the second had
 * begun. */
START_TEST(a_folder_that_another_process_writes_is_left_to_it) {
    char folder[256], out[300], partial[300], file[320];
    hf_rig rig = {0};
    hy_lock *theirs;
    snprintf(out, sizeof out, "%s/model", temp_folder(folder));
    snprintf(partial, sizeof partial, "%s/.model.partial", folder);
    snprintf(file, sizeof file, "%s/half", partial);
    open_hf(&rig, golden_folder("mistral"), HY_F32);
    hy_hf_writing writing = writing_of(&rig, out, HY_BF16);
    must(hy_dir_make(partial));
    must(hy_lock_take(partial, &theirs));
    must(hy_file_write_atomic(file, "x", 1));
    ck_assert_int_eq(hy_hf_write(&writing), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "is in use by process"));
    ck_assert(hy_path_exists(file) && !hy_path_exists(out));
    hy_lock_release(theirs);
    must(hy_hf_write(&writing)); /* it is gone: what it left is removed */
    snprintf(file, sizeof file, "%s/half", out);
    ck_assert(!hy_path_exists(file) && !hy_path_exists(partial));
    snprintf(file, sizeof file, "%s/" HY_LOCK_FILE, out);
    ck_assert(!hy_path_exists(file));
    close_hf(&rig);
    remove_folder(folder);
}
END_TEST

/* Whatever write fails, the folder that was there is whole, and nothing lies beside it; also where
 * two names cannot be swapped. */
START_TEST(a_failed_write_leaves_the_folder_as_it_was) {
    char folder[256], out[300];
    hf_rig rig = {0};
    snprintf(out, sizeof out, "%s/model", temp_folder(folder));
    open_hf(&rig, golden_folder("mistral"), HY_F32);
    hy_hf_writing writing = writing_of(&rig, out, HY_BF16);
    writing.shard_size = 12000;
    must(hy_hf_write(&writing));
    hy_fault_lack_exchange(_i);
    hy_fault_arm(1 << 20, ENOSPC, false);
    must(hy_hf_write(&writing));
    long calls = hy_fault_disarm();
    ck_assert_int_gt(calls, 10);
    for (long at = 0; at < calls; at++) {
        hy_fault_arm(at, ENOSPC, false);
        hy_status status = hy_hf_write(&writing);
        hy_fault_disarm();
        char **names;
        size_t count;
        models_are_the_same(golden_folder("mistral"), out);
        must(hy_dir_list(folder, &names, &count));
        /* Without a swap the older folder may wait beside it: the next write removes it. */
        size_t most = status == HY_OK || _i ? 2 : 1;
        ck_assert_msg(count <= most, "call %ld left %zu things", at, count);
        hy_dir_list_free(names, count);
    }
    hy_fault_lack_exchange(false);
    close_hf(&rig);
    remove_folder(folder);
}
END_TEST

/* ---- finding models -------------------------------------------------------------------------- */

static void put_revision(const char *cache, const char *model, const char *revision,
                         const char *golden) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s/snapshots/%s", cache, model, revision);
    must(hy_dir_make(path));
    must(hy_dir_remove(path));
    copy_golden(golden, path);
}

START_TEST(a_model_is_found_by_its_name_in_the_hubs_cache) {
    char cache[256], path[HY_HF_PATH_MAX], refs[400];
    hy_model_files kind;
    temp_folder(cache);
    must(hy_hf_find("Org/Some-Model.1", &kind, path));
    ck_assert_int_eq(kind, HY_FILES_NONE);
    setenv("HF_HUB_CACHE", cache, 1);
    put_revision(cache, "models--Org--Some-Model.1", "abc", "qwen2");
    must(hy_hf_find("Org/Some-Model.1", &kind, path));
    ck_assert_int_eq(kind, HY_FILES_HF);
    ck_assert_ptr_nonnull(strstr(path, "snapshots/abc"));

    put_revision(cache, "models--Org--Some-Model.1", "def", "llama");
    must_fail(hy_hf_find("Org/Some-Model.1", &kind, path), HY_ERR_INPUT, "2 revisions");
    snprintf(refs, sizeof refs, "%s/models--Org--Some-Model.1/refs", cache);
    must(hy_dir_make(refs));
    put_file(refs, "main", "def\n", 4);
    must(hy_hf_find("Org/Some-Model.1", &kind, path));
    ck_assert_ptr_nonnull(strstr(path, "snapshots/def"));
    put_file(refs, "main", "../../etc", 9);
    must_fail(hy_hf_find("Org/Some-Model.1", &kind, path), HY_ERR_INPUT, "refs/main");
    put_file(refs, "main", "gone", 4);
    must_fail(hy_hf_find("Org/Some-Model.1", &kind, path), HY_ERR_INPUT, "gone");
    must(hy_hf_find("Org/../x", &kind, path));
    ck_assert_int_eq(kind, HY_FILES_NONE);
    unsetenv("HF_HUB_CACHE");
    remove_folder(cache);
}
END_TEST

/* ---- a real model ---------------------------------------------------------------------------- */

enum { STORY = 200, BOS = 1 };

static const char *data_folder(char path[512]) {
    const char *base = getenv("HYBRID_DATA");
    snprintf(path, 512, "%s/weights/stories260K", base ? base : HY_SOURCE_DIR "/../shared/data");
    return hy_path_is_dir(path) ? path : NULL;
}

static int32_t likeliest(hf_rig *rig, int32_t at) {
    hy_batch_input input = rig_input(&rig->m, 1, false);
    must(batch_logits(rig->m.plan, &input, at, 1));
    rig_sync(&rig->m);
    const float *logits = (const float *)(void *)rig->m.plan->logits;
    int32_t best = 0;
    for (int32_t i = 1; i < rig->shape.vocab; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

START_TEST(a_trained_llama2c_model_generates_its_story) {
    char path[512], tokenizer[600];
    hf_rig rig = {0};
    hy_tokenizer *t;
    hy_text story = {0};
    if (!data_folder(path)) {
        printf("skipped: no weights/stories260K in HYBRID_DATA or ../shared/data\n");
        return;
    }
    snprintf(tokenizer, sizeof tokenizer, "%s/tok512.bin", path);
    must(hy_tokenizer_open(tokenizer, &t));
    ck_assert_int_eq(hy_tokenizer_vocab(t), 512);
    open_hf_seq(&rig, path, HY_F32, STORY);
    memset(rig.m.tokens, 0, STORY * sizeof(int32_t));
    memset(rig.m.targets, 0, STORY * sizeof(int32_t));
    rig.m.tokens[0] = BOS;
    for (int32_t i = 0; i < STORY; i++) {
        int32_t next = likeliest(&rig, i);
        rig.m.targets[i] = next;
        if (i + 1 < STORY) rig.m.tokens[i + 1] = next;
    }
    must(hy_tokenizer_decode(t, rig.m.targets, STORY, 0, &story));
    const char *begin = "Once upon a time, there was a little girl named Lily";
    ck_assert_msg(strncmp(hy_text_string(&story), begin, strlen(begin)) == 0, "%s",
                  hy_text_string(&story));
    hy_batch_input input = rig_input(&rig.m, 1, false);
    must(hy_batch_evaluate(rig.m.plan, &input));
    rig_sync(&rig.m);
    double loss = rig_loss_sum(&rig.m) / STORY;
    ck_assert_msg(loss > 0 && loss < 1, "%f nats a token", loss);
    hy_text_free(&story);
    hy_tokenizer_close(t);
    close_hf(&rig);
}
END_TEST

START_TEST(a_llama2c_model_is_the_same_in_pieces) {
    char path[512];
    hf_rig whole = {0}, cut = {.piece = 100};
    if (!data_folder(path)) return;
    open_hf_seq(&whole, path, HY_F32, 8);
    open_hf_seq(&cut, path, HY_F32, 8);
    ck_assert_mem_eq(cut.m.weights.data, whole.m.weights.data, whole.m.weights.layout.bytes);
    close_hf(&whole);
    close_hf(&cut);
}
END_TEST

START_TEST(configs_of_well_known_models_have_the_shapes_of_the_presets) {
    static const char *const pairs[][2] = {{"gpt2", "gpt2-124m"},
                                           {"llama-2-7b-hf", "llama-2-7b"},
                                           {"llama-3.1-8b-instruct", "llama-3.1-8b"},
                                           {"qwen2.5-0.5b-instruct", "qwen2.5-0.5b"},
                                           {"qwen2.5-1.5b-instruct", "qwen2.5-1.5b"},
                                           {"qwen2.5-7b-instruct", "qwen2.5-7b"}};
    const char *base = getenv("HYBRID_DATA");
    char path[600], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/configs/%s.config.json",
             base ? base : HY_SOURCE_DIR "/../shared/data", pairs[_i][0]);
    if (!hy_path_exists(path)) {
        printf("skipped: no configs in HYBRID_DATA or ../shared/data\n");
        return;
    }
    hy_hf_config file;
    hy_config *config;
    hy_shape preset;
    must(hy_file_read(path, &text, &size));
    must(hy_hf_config_parse(text, size, path, &file));
    free(text);
    must(hy_config_create(&config));
    must(hy_config_set(config, "model", pairs[_i][1], HY_FROM_CALLER));
    must(hy_shape_from_settings(hy_config_settings(config), &preset));
    file.shape.context = preset.context; /* some presets take less */
    shapes_are_the_same(&file.shape, &preset);
    hy_config_destroy(config);
    hy_hf_config_free(&file);
}
END_TEST

/* Llama and Mistral compute the same where there is no window; who names one gets it. */
START_TEST(the_named_architecture_is_kept_where_it_can_have_the_shape) {
    hy_config *config;
    hy_shape shape;
    must(hy_config_create(&config));
    must(hy_config_set(config, "model", "nano", HY_FROM_CALLER));
    must(hy_shape_from_settings(hy_config_settings(config), &shape));
    ck_assert_int_eq(shape.arch, HY_ARCH_LLAMA);
    must(hy_config_set(config, "shape.architecture", "mistral", HY_FROM_CALLER));
    must(hy_shape_from_settings(hy_config_settings(config), &shape));
    ck_assert_int_eq(shape.arch, HY_ARCH_MISTRAL);
    must(hy_config_set(config, "shape.architecture", "qwen3", HY_FROM_CALLER));
    must(hy_config_set(config, "shape.qk_norm", "false", HY_FROM_CALLER));
    must_fail(hy_shape_from_settings(hy_config_settings(config), &shape), HY_ERR_INPUT,
              "shape.architecture = qwen3 does not support this shape; supported by llama");
    must(hy_config_set(config, "shape.qk_norm", "true", HY_FROM_CALLER));
    must(hy_shape_from_settings(hy_config_settings(config), &shape));
    ck_assert_int_eq(shape.arch, HY_ARCH_QWEN3);
    must(hy_config_set(config, "shape.architecture", "llama", HY_FROM_CALLER));
    must(hy_config_set(config, "shape.qk_norm", "false", HY_FROM_CALLER));
    must(hy_config_set(config, "shape.sliding_window", "16", HY_FROM_CALLER));
    must(hy_shape_from_settings(hy_config_settings(config), &shape));
    ck_assert_int_eq(shape.arch, HY_ARCH_MISTRAL);
    hy_config_destroy(config);
}
END_TEST

/* A run takes its shape from settings that the folder's config was turned into. */
static void goes_through_settings(const char *name) {
    hy_hf_config file;
    hy_config *config;
    hy_shape shape;
    must(hy_hf_config_read(golden_folder(name), &file));
    must(hy_config_create(&config));
    must(hy_config_set(config, "model", golden_folder(name), HY_FROM_CALLER));
    must(hy_shape_from_settings(hy_config_settings(config), &shape));
    shapes_are_the_same(&file.shape, &shape);
    hy_config_destroy(config);
    hy_hf_config_free(&file);
}

START_TEST(settings_of_a_folder_have_the_shape_of_its_config) {
    for (int i = 0; i < HF_CASES; i++) goes_through_settings(hf_cases[i]);
}
END_TEST

static Suite *hf_suite(void) {
    Suite *suite = suite_create("hf");
    TCase *tc = tcase_create("hf");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, logits_are_those_of_transformers);
    tcase_add_test(tc, frozen_weights_are_loaded_as_int8);
    tcase_add_test(tc, frozen_weights_are_loaded_as_fp8);
    tcase_add_test(tc, frozen_weights_are_loaded_as_nf4);
    tcase_add_test(tc, one_wrong_tensor_is_detected);
    tcase_add_test(tc, settings_of_a_folder_have_the_shape_of_its_config);
    tcase_add_test(tc, the_named_architecture_is_kept_where_it_can_have_the_shape);
    tcase_add_test(tc, weights_in_bf16_are_those_in_fp32_rounded);
    tcase_add_test(tc, pieces_of_any_size_make_the_same_weights);
    tcase_add_test(tc, what_is_written_is_byte_identical);
    tcase_add_test(tc, rows_behind_the_vocabulary_are_zero_and_not_written);
    tcase_add_test(tc, files_beside_the_weights_are_copied);
    tcase_add_test(tc, links_to_files_elsewhere_are_not_copied);
    tcase_add_test(tc, a_window_that_the_architecture_lacks_is_written_as_another_or_refused);
    tcase_add_loop_test(tc, a_failed_write_leaves_the_folder_as_it_was, 0, 2);
    tcase_add_test(tc, a_folder_that_another_process_writes_is_left_to_it);
    tcase_add_test(tc, a_model_is_found_by_its_name_in_the_hubs_cache);
    tcase_add_test(tc, a_trained_llama2c_model_generates_its_story);
    tcase_add_test(tc, a_llama2c_model_is_the_same_in_pieces);
    tcase_add_loop_test(tc, configs_of_well_known_models_have_the_shapes_of_the_presets, 0, 6);
    suite_add_tcase(suite, tc);
    return suite;
}

HY_TEST_MAIN(hf_suite)
