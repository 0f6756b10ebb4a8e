/* test_bnb_export.c: folders that hybrid-export quantises: their bytes are those of bitsandbytes,
 * and we read them back. nf4/check_exports.py made the digests, and compares with bitsandbytes and
 * transformers themselves. */
#include <errno.h>

#include "base/sha.h"
#include "formats/shard.h"
#include "hf_rig.h"
#include "hub/bnb.h"
#include "small_run.h"

static const char *const types[] = {"nf4", "nf4_single", "int8"};
static const char *const cases[] = {"hf/llama",
                                    "hf/qwen2",
                                    "hf/gpt2",
                                    "families/gemma3-dual",
                                    "families/phi3-short",
                                    "families/neox-parallel"};
enum { TYPES = 3, CASES = sizeof cases / sizeof cases[0] };

static char folder[256], out[300];

static void make_folder(void) {
    temp_folder(folder);
    must(hy_path_join(out, sizeof out, folder, "out"));
}

static void drop_folder(void) { remove_folder(folder); }

static const char *case_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s", HY_SOURCE_DIR, name);
    return path;
}

static hy_export_options options_of(const char *type) {
    return (hy_export_options){.out = out, .type = type, .overwrite = true};
}

static hy_hf_tensors *exported(const char *model, const hy_export_options *options) {
    hy_hf_tensors *tensors;
    must(hy_export(model, options, NULL));
    must(hy_hf_tensors_open(out, &tensors));
    return tensors;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void check_digest(const char *name, const char *what, hy_sha *sha) {
    char line[256], found[HY_SHA_HEX], *text;
    size_t size;
    hy_sha_text(sha, found);
    snprintf(line, sizeof line, "%s %s %s\n", name, what, found);
    must(hy_file_read(case_folder("bnb/exports.txt"), &text, &size));
    ck_assert_msg(strstr(text, line) != NULL, "%s %s is not that of bitsandbytes", name, what);
    free(text);
}

static void add_tensor(hy_sha *sha, hy_hf_found found) {
    uint64_t bytes = found.entry->bytes;
    char *data = malloc(bytes);
    must(hy_safetensors_read(found.file, found.entry, 0, data, bytes));
    while (hy_has_ending(found.entry->name, HY_BNB_STATE) && data[bytes - 1] == ' ') bytes--;
    hy_sha_add(sha, found.entry->name, strlen(found.entry->name));
    hy_sha_add(sha, data, bytes);
    free(data);
}

/* The numbers of an int8 matrix. */
static void add_decoded(hy_sha *sha, const hy_hf_tensors *tensors, hy_hf_found found) {
    hy_bnb_matrix matrix;
    int64_t rows = found.entry->shape[0], cols = found.entry->shape[1], count = rows * cols;
    float *numbers = malloc((size_t)count * sizeof *numbers);
    must(hy_bnb_open(tensors, found, rows, cols, &matrix));
    for (int64_t at = 0, n = 1; at < count; at += n, n = n * 3 + 1) { /* pieces begin anywhere */
        if (n > count - at) n = count - at;
        must(hy_bnb_read(&matrix, at, n, numbers + at));
    }
    hy_sha_add(sha, found.entry->name, strlen(found.entry->name));
    hy_sha_add(sha, numbers, (size_t)count * sizeof *numbers);
    free(numbers);
}

START_TEST(exports_have_the_bytes_of_bitsandbytes) {
    const char *name = cases[_i / TYPES], *type = types[_i % TYPES];
    hy_export_options options = options_of(type);
    hy_hf_tensors *tensors = exported(case_folder(name), &options);
    hy_sha all, decoded;
    hy_sha_init(&all, HY_SHA256);
    hy_sha_init(&decoded, HY_SHA256);
    for (size_t i = 0; i < hy_hf_tensors_count(tensors); i++) {
        hy_hf_found found = hy_hf_tensors_at(tensors, i);
        add_tensor(&all, found);
        if (found.entry->dtype == HY_I8) add_decoded(&decoded, tensors, found);
    }
    check_digest(name, type, &all);
    if (strcmp(type, "int8") == 0) check_digest(name, "decoded", &decoded);
    hy_hf_tensors_close(tensors);
}
END_TEST

/* One tensor in each file; the reader compares index and files. */
START_TEST(shards_hold_the_same_tensors) {
    hy_export_options options = options_of(types[_i]), cut = options;
    cut.max_shard_size = 1;
    hy_hf_tensors *whole = exported(case_folder("hf/llama"), &options), *parts;
    char path[300];
    must(hy_path_join(path, sizeof path, folder, "parts"));
    cut.out = path;
    must(hy_export(case_folder("hf/llama"), &cut, NULL));
    must(hy_hf_tensors_open(path, &parts));
    ck_assert_uint_eq(hy_hf_tensors_count(whole), hy_hf_tensors_count(parts));
    for (size_t i = 0; i < hy_hf_tensors_count(whole); i++) {
        hy_hf_found a = hy_hf_tensors_at(whole, i), b = hy_hf_tensors_at(parts, i);
        bool is_same;
        must(hy_safetensors_compare(a.file, a.entry, b.file, b.entry, &is_same));
        ck_assert_msg(is_same, "%s", a.entry->name);
    }
    hy_hf_tensors_close(whole);
    hy_hf_tensors_close(parts);
}
END_TEST

/* ---- using them ------------------------------------------------------------------------------ */

#define RUN                                                                                        \
    "tokenizer none seq_len 16 batch_size 2 grad_accum_steps 1 steps 3 threads 2 device cpu "      \
    "eval_every 0 sample_tokens 0 precision fp32 predictor none save_model false "

static void run_losses(const char *model, const char *const *pairs, double losses[3]) {
    int32_t tokens[3000];
    char data[300];
    hy_trainer *t;
    for (int i = 0; i < 3000; i++) tokens[i] = i * i % 61;
    must(hy_path_join(data, sizeof data, folder, "data.bin"));
    must(hy_shard_write(data, tokens, 3000, 96, 2));
    hy_config *config = small_run(RUN, "none", pairs);
    must(hy_config_set(config, "model", model, HY_FROM_SET));
    must(hy_config_set(config, "data", data, HY_FROM_SET));
    must(hy_trainer_create(config, NULL, &t));
    hy_config_destroy(config);
    next_losses(t, 3, losses);
    hy_trainer_destroy(t);
}

/* The folder gives the type of the frozen base, and its numbers are those of the codes. */
START_TEST(adapters_train_beside_an_exported_folder) {
    hy_export_options options = options_of(types[_i]);
    double coded[3], decoded[3];
    options.dtype = "fp32"; /* decoded numbers are not rounded */
    must(hy_export(case_folder("bnb/llama-double"), &options, NULL));
    run_losses(out, PAIRS("qlora", "true"), coded);
    run_losses(out, PAIRS("lora", "true", "frozen_dtype", "auto"), decoded);
    for (int i = 0; i < 3; i++) ck_assert_double_eq_tol(coded[i], decoded[i], 1e-6);
    ck_assert_double_ne(coded[0], coded[2]);
}
END_TEST

/* Quantising what was quantised changes nothing. */
START_TEST(an_int8_folder_is_exported_as_it_was) {
    hy_export_options options = options_of("int8"), again = options;
    char path[300];
    hy_hf_tensors *first, *second;
    must(hy_path_join(path, sizeof path, folder, "again"));
    again.out = path;
    first = exported(case_folder("families/neox-parallel"), &options);
    must(hy_export(out, &again, NULL));
    must(hy_hf_tensors_open(path, &second));
    for (size_t i = 0; i < hy_hf_tensors_count(first); i++) {
        hy_hf_found a = hy_hf_tensors_at(first, i), b = hy_hf_tensors_at(second, i);
        bool is_same;
        must(hy_safetensors_compare(a.file, a.entry, b.file, b.entry, &is_same));
        if (a.entry->dtype == HY_I8) ck_assert_msg(is_same, "%s", a.entry->name);
    }
    hy_hf_tensors_close(first);
    hy_hf_tensors_close(second);
}
END_TEST

static void train_small(const char *words, const char *run) {
    hy_trainer *t = small_trainer(words, run, NULL, NULL);
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
}

/* A run's weights are fp32; what is not quantised gets 16 bits unless the user asks for more. */
START_TEST(a_run_is_exported_with_the_rest_in_16_bits) {
    char run[300];
    hy_hf_config config;
    must(hy_path_join(run, sizeof run, folder, "run"));
    train_small(SMALL_RUN "save_every 2 steps 2 architecture llama ", run);
    hy_export_options options = options_of(types[_i]);
    must(hy_export(run, &options, NULL));
    must(hy_hf_config_look(out, &config));
    ck_assert_int_eq(config.dtype, HY_BF16);
    ck_assert_str_eq(hy_hf_quant_name(config.quant), types[_i]);
    options.dtype = "fp32";
    must(hy_export(run, &options, NULL));
    must(hy_hf_config_look(out, &config));
    ck_assert_int_eq(config.dtype, HY_F32);
}
END_TEST

/* Is it a matrix of a Linear whose numbers are stored as they are? */
static bool is_real_linear(const hy_hf_tensors *tensors, const hy_safetensors_entry *entry) {
    return entry->ndim == 2 && !strstr(entry->name, "embed_tokens") &&
           hy_has_ending(entry->name, ".weight") && !hy_bnb_is_coded(tensors, entry->name);
}

/* transformers quantises every Linear that the list does not name, also one whose numbers the file
 * has; a list replaces its own choice of the head. */
START_TEST(modules_that_stay_real_are_listed_for_transformers) {
    static const char list[] = "lm_head in_proj_b in_proj_a ";
    char path[400], words[200] = "", module[100];
    double losses[3];
    const char *word;
    hy_json *json;
    hy_export_options options = options_of(types[_i]);
    hy_hf_tensors *tensors = exported(case_folder("families/qwen35-grouped"), &options);
    must(hy_path_join(path, sizeof path, out, "config.json"));
    must(hy_json_read_file(path, &json));
    const hy_json_node *node = hy_json_get(hy_json_root(json), "quantization_config");
    node = hy_json_first(hy_json_get(node, "llm_int8_skip_modules"));
    for (; node && hy_json_as_string(node, &word, NULL); node = hy_json_next(node))
        strcat(strcat(words, word), " ");
    ck_assert_str_eq(words, list);
    int real = 0;
    for (size_t i = 0; i < hy_hf_tensors_count(tensors); i++) {
        const hy_safetensors_entry *entry = hy_hf_tensors_at(tensors, i).entry;
        if (!is_real_linear(tensors, entry)) continue;
        const char *end = strrchr(entry->name, '.'), *begin = end;
        while (begin[-1] != '.') begin--;
        snprintf(module, sizeof module, "%.*s ", (int)(end - begin), begin);
        ck_assert_msg(strstr(words, module) != NULL, "%s", entry->name);
        real++;
    }
    ck_assert_int_eq(real, 4); /* b and a of two layers; the head is tied */
    hy_json_free(json);
    hy_hf_tensors_close(tensors);
    run_losses(out, PAIRS("qlora", "true"), losses);
}
END_TEST

/* ---- refusals and failures ------------------------------------------------------------------- */

START_TEST(wrong_types_are_named) {
    const char *model = case_folder("hf/llama");
    hy_export_options options = options_of("q4_k_m");
    must_fail(hy_export(model, &options, NULL), HY_ERR_INPUT,
              "type q4_k_m is not accepted for a folder; accepted: nf4, nf4_single, int8");
    options = (hy_export_options){.gguf = out, .type = "nf4"};
    must_fail(hy_export(model, &options, NULL), HY_ERR_INPUT,
              "type nf4 is not accepted; accepted: f32");
    ck_assert(!hy_path_exists(out));
}
END_TEST

/* bitsandbytes computes int8 from fp16. */
START_TEST(a_number_that_int8_cannot_have_is_refused) {
    hf_rig rig = {0};
    open_hf(&rig, case_folder("hf/llama"), HY_F32);
    hy_hf_writing writing = {.folder = out,
                             .source = case_folder("hf/llama"),
                             .shape = &rig.m.model->shape,
                             .params = &rig.m.model->params,
                             .dtype = HY_BF16,
                             .type = "int8",
                             .shard_size = 1 << 30,
                             .read = read_rig,
                             .context = &rig};
    must(hy_hf_write(&writing));
    int32_t down = hy_params_find(&rig.m.model->params, 1, HY_P_DOWN);
    ((float *)hy_store_backing(&rig.m.weights, down))[70] = 1e6f;
    must_fail(hy_hf_write(&writing), HY_ERR_NUMERIC,
              "down_proj.weight contains a number that is "
              "too large for int8");
    writing.type = "nf4";
    must(hy_hf_write(&writing));
    writing.dtype = HY_F16;
    for (int i = 0; i < 2; i++) {
        must_fail(hy_hf_write(&writing), HY_ERR_NUMERIC,
                  "down_proj.weight contains 1e+06, which is too large for fp16; use --dtype bf16");
        writing.type = NULL;
    }
    close_hf(&rig);
}
END_TEST

/* With --overwrite, too. */
START_TEST(a_model_is_not_replaced_by_its_own_export) {
    hy_export_options options = options_of("nf4");
    hy_merge_options losses = {.data = "unused", .device = "cpu"};
    hy_evaluation *list;
    size_t count;
    char file[400], inside[400];
    must(hy_export(case_folder("hf/llama"), &(hy_export_options){.out = out}, NULL));
    must_fail(hy_export(out, &options, NULL), HY_ERR_INPUT, "so it is not replaced");
    options.type = NULL;
    must_fail(hy_export(out, &options, NULL), HY_ERR_INPUT, "so it is not replaced");
    options.type = "nf4";
    must_fail(hy_export_evaluate(out, &options, &losses, NULL, &list, &count), HY_ERR_INPUT,
              "so it is not replaced");
    must(hy_path_join(inside, sizeof inside, out, "model.safetensors"));
    options = (hy_export_options){.gguf = inside, .overwrite = true};
    must_fail(hy_export(out, &options, NULL), HY_ERR_INPUT, "so it is not replaced");
    must(hy_path_join(file, sizeof file, out, "model.gguf"));
    options.gguf = file;
    must(hy_export(out, &options, NULL));
    must(hy_export(out, &options, NULL));
    must_fail(hy_export(file, &options, NULL), HY_ERR_INPUT, "so it is not replaced");
    options = (hy_export_options){.out = out, .overwrite = true, .base = out};
    must_fail(hy_merge_adapter(case_folder("peft/llama"), &options, NULL), HY_ERR_INPUT,
              "so it is not replaced");
}
END_TEST

static char newest[300], hidden[300];

static void show_newest(void *user, const char *what, double fraction) {
    (void)user, (void)what, (void)fraction;
    if (hy_path_exists(hidden)) must(hy_path_rename(hidden, newest));
}

START_TEST(a_run_that_goes_on_is_measured_and_written_at_one_checkpoint) {
    char run[300], path[400], *text;
    hy_observer observer = {.on_progress = show_newest};
    hy_evaluation *list;
    size_t count, size;
    must(hy_path_join(run, sizeof run, folder, "run"));
    must(hy_path_join(newest, sizeof newest, run, "checkpoint-4"));
    must(hy_path_join(hidden, sizeof hidden, folder, "later"));
    train_small(SMALL_RUN "save_every 2 steps 4 architecture llama ", run);
    must(hy_path_rename(newest, hidden));
    hy_export_options options = options_of("nf4");
    must(hy_export_evaluate(run, &options, NULL, &observer, &list, &count));
    ck_assert(hy_path_exists(newest));
    hy_free(list);
    must(hy_path_join(path, sizeof path, run, "exports.json"));
    must(hy_file_read(path, &text, &size));
    ck_assert_ptr_nonnull(strstr(text, "run/checkpoint-2\""));
    ck_assert_ptr_nonnull(strstr(text, out)); /* a whole path */
    free(text);
}
END_TEST

START_TEST(a_disk_without_space_is_reported_before_writing) {
    hy_export_options options = options_of("nf4");
    hy_fault_limit_disk(1000);
    hy_status status = hy_export(case_folder("hf/llama"), &options, NULL);
    hy_fault_limit_disk(0);
    ck_assert_int_eq(status, HY_ERR_IO);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "the disk has only"));
    ck_assert(!hy_path_exists(out));
}
END_TEST

START_TEST(a_failing_disk_leaves_no_folder) {
    hy_export_options options = options_of(types[_i]);
    hy_fault_arm(1 << 20, ENOSPC, false);
    must(hy_export(case_folder("hf/llama"), &options, NULL));
    long calls = hy_fault_disarm();
    for (long at = 0; at < calls; at++) {
        remove_folder(out);
        hy_fault_arm(at, ENOSPC, false);
        (void)hy_export(case_folder("hf/llama"), &options, NULL);
        hy_fault_disarm();
        hy_hf_tensors *tensors;
        if (!hy_path_exists(out)) continue;
        must(hy_hf_tensors_open(out, &tensors));
        hy_hf_tensors_close(tensors);
    }
}
END_TEST

static hy_status export_either(const char *run, const hy_export_options *options,
                               bool is_measured) {
    hy_merge_options losses = {.eval_batches = 1};
    hy_evaluation *list = NULL;
    size_t count;
    if (!is_measured) return hy_export(run, options, NULL);
    hy_status status = hy_export_evaluate(run, options, &losses, NULL, &list, &count);
    hy_free(list);
    return status;
}

/* Wherever it fails: at the latest, the next export moves them back. */
START_TEST(files_of_the_user_survive_a_failing_disk) {
    bool is_measured = _i % 2;
    hy_export_options options = options_of("nf4");
    char notes[400], run[300];
    must(hy_path_join(run, sizeof run, folder, "run"));
    must(hy_path_join(notes, sizeof notes, out, "notes.txt"));
    train_small(SMALL_RUN "layers 1 save_every 1 steps 1 batch_size 1 architecture llama ", run);
    must(export_either(run, &options, is_measured));
    must(hy_file_write_atomic(notes, "mine", 4));
    hy_fault_lack_exchange(_i / 2);
    for (long at = 0, calls = 1; at < calls; at++) {
        hy_fault_arm(at, EIO, false);
        (void)export_either(run, &options, is_measured);
        calls = hy_fault_disarm();
        if (!hy_path_exists(notes)) must(export_either(run, &options, is_measured));
        ck_assert_msg(hy_path_exists(notes), "call %ld", at);
    }
    hy_fault_lack_exchange(false);
}
END_TEST

/* The exported int8 folder with one tensor replaced. */
static void check_refused(const char *tensor, const void *data, uint64_t size, const char *text) {
    char path[400];
    hy_hf_tensors *tensors;
    hy_hf_found found;
    hf_rig rig = {0};
    uint64_t offset;
    hy_export_options options = options_of("int8");
    must(hy_export(case_folder("hf/llama"), &options, NULL));
    must(hy_hf_tensors_open(out, &tensors));
    found = hy_hf_tensors_find(tensors, tensor);
    ck_assert_ptr_nonnull(found.entry);
    (void)hy_safetensors_place(found.file, found.entry, &offset);
    hy_hf_tensors_close(tensors);
    snprintf(path, sizeof path, "%s/model.safetensors", out);
    FILE *file = fopen(path, "r+b");
    ck_assert(file && fseek(file, (long)offset, SEEK_SET) == 0);
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    fclose(file);
    must(hy_model_files_shape(HY_FILES_HF, out, &rig.shape));
    hy_batch_options batch = {.batch = 1, .seq = 4, .chunks = 1, .dtype = HY_F32};
    rig_open(&rig.m, &rig.shape, &batch, 1);
    must_fail(hy_hf_load_weights(out, rig.m.model, &rig.m.weights, rig.m.stream, NULL),
              HY_ERR_INPUT, text);
    close_hf(&rig);
}

START_TEST(an_int8_folder_that_cannot_be_is_named) {
#define MODULE "model.layers.0.mlp.down_proj"
    float scale = NAN;
    check_refused(MODULE ".weight_format", "\1", 1, "supported: 0 (row by row)");
    check_refused(MODULE ".SCB", &scale, sizeof scale, MODULE ".SCB\": number 0 is not finite");
}
END_TEST

static Suite *bnb_export_suite(void) {
    Suite *suite = suite_create("exports for bitsandbytes");
    TCase *all = tcase_create("all");
    tcase_set_timeout(all, 120);
    tcase_add_checked_fixture(all, make_folder, drop_folder);
    tcase_add_loop_test(all, exports_have_the_bytes_of_bitsandbytes, 0, TYPES * CASES);
    tcase_add_loop_test(all, shards_hold_the_same_tensors, 0, TYPES);
    tcase_add_loop_test(all, adapters_train_beside_an_exported_folder, 0, TYPES);
    tcase_add_loop_test(all, modules_that_stay_real_are_listed_for_transformers, 0, TYPES);
    tcase_add_test(all, an_int8_folder_is_exported_as_it_was);
    tcase_add_loop_test(all, a_run_is_exported_with_the_rest_in_16_bits, 0, TYPES);
    tcase_add_test(all, wrong_types_are_named);
    tcase_add_test(all, a_number_that_int8_cannot_have_is_refused);
    tcase_add_test(all, a_model_is_not_replaced_by_its_own_export);
    tcase_add_test(all, a_run_that_goes_on_is_measured_and_written_at_one_checkpoint);
    tcase_add_test(all, a_disk_without_space_is_reported_before_writing);
    tcase_add_loop_test(all, a_failing_disk_leaves_no_folder, 0, TYPES);
    tcase_add_loop_test(all, files_of_the_user_survive_a_failing_disk, 0, 4);
    tcase_add_test(all, an_int8_folder_that_cannot_be_is_named);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(bnb_export_suite)
