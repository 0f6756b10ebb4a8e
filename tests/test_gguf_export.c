/* test_gguf_export.c: files for llama.cpp: their structure, names, order of rows, tokenizers and
 * refusals, and that a failure leaves nothing. tests/gguf compares them with llama.cpp itself. */
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>

#include "formats/gguf.h"
#include "hf_rig.h"
#include "hub/gguf_export.h"
#include "hub/gguf_names.h"
#include "hybrid.h"
#include "linear_shape.h"

static char folder[256], path[300];

static void make_folder(void) {
    temp_folder(folder);
    must(hy_path_join(path, sizeof path, folder, "x.gguf"));
}

static void drop_folder(void) { remove_folder(folder); }

static hy_export_options options_of(const char *type) {
    return (hy_export_options){.gguf = path, .type = type, .overwrite = true};
}

static const char *family_folder(const char *name) {
    static char out[512];
    snprintf(out, sizeof out, "%s/tests/golden/families/%s", HY_SOURCE_DIR, name);
    return out;
}

static const char *string_of(const hy_gguf *file, const char *key) {
    const char *text = NULL;
    ck_assert_msg(hy_gguf_as_string(hy_gguf_get(file, key), 0, &text, NULL), "%s is missing", key);
    return text;
}

static int64_t int_of(const hy_gguf *file, const char *key) {
    int64_t value = -1;
    ck_assert_msg(hy_gguf_as_int(hy_gguf_get(file, key), 0, &value), "%s is missing", key);
    return value;
}

static hy_gguf *exported(const char *model, const char *type) {
    hy_export_options options = options_of(type);
    hy_gguf *file;
    must(hy_export(model, &options, NULL));
    must(hy_gguf_open(path, &file));
    return file;
}

/* The numbers of a tensor. */
static float *numbers_of(const hy_gguf *file, const char *name, int64_t *count) {
    const hy_gguf_tensor *tensor = hy_gguf_find(file, name);
    uint64_t offset;
    ck_assert_msg(tensor != NULL, "%s is missing", name);
    *count = 1;
    for (int i = 0; i < tensor->ndim; i++) *count *= tensor->shape[i];
    char *bytes = malloc(tensor->bytes);
    float *out = malloc((size_t)*count * sizeof *out);
    const hy_reader *reader = hy_gguf_place(file, tensor, &offset);
    must(hy_reader_get(reader, offset, bytes, tensor->bytes));
    hy_blocks_decode(tensor->type, bytes, *count, out);
    free(bytes);
    return out;
}

/* ---- structure ------------------------------------------------------------------------------- */

START_TEST(a_file_has_every_weight_of_the_model) {
    static const char *const types[] = {"f32",  "f16",    "bf16",   "q8_0", "q4_0",
                                        "q5_0", "q4_k_m", "q5_k_m", "q6_k"};
    const char *name = hf_cases[_i];
    /* llama.cpp has no ministral, and these have other sizes of heads or biases */
    if (hy_word_is_in(" ministral qwen2-window qwen2-mixed qwen3-bias ", name)) return;
    hf_rig rig = {0};
    open_hf(&rig, golden_folder(name), HY_F32);
    int64_t stored = 0;
    for (int32_t i = 0; i < rig.m.model->params.count; i++)
        stored += rig.m.model->params.list[i].stored;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        hy_gguf *file = exported(golden_folder(name), types[t]);
        int64_t found = 0;
        for (size_t i = 0; i < hy_gguf_count(file); i++) {
            const hy_gguf_tensor *tensor = hy_gguf_at(file, i);
            if (strncmp(tensor->name, "rope_", 5) == 0) continue;
            found += tensor->shape[0] * (tensor->ndim > 1 ? tensor->shape[1] : 1);
            ck_assert_uint_eq(tensor->offset % HY_GGUF_ALIGNMENT, 0);
        }
        ck_assert_int_eq(found, stored);
        hy_gguf_close(file);
    }
    close_hf(&rig);
}
END_TEST

/* Any thread that encodes also reads. */
typedef struct readers {
    pthread_t caller;
    int others;
} readers;

static hy_status read_zeros(void *context, int32_t param, int64_t first, int64_t count,
                            float *out) {
    readers *r = context;
    (void)param;
    (void)first;
    r->others += !pthread_equal(pthread_self(), r->caller);
    memset(out, 0, (size_t)count * sizeof *out);
    return HY_OK;
}

START_TEST(one_thread_encodes_if_the_setting_is_one) {
    hf_rig rig = {0};
    readers r = {.caller = pthread_self()};
    open_hf(&rig, golden_folder("llama"), HY_F32);
    must(hy_gguf_write(&(hy_hf_writing){.folder = path,
                                        .source = golden_folder("llama"),
                                        .shape = &rig.m.model->shape,
                                        .params = &rig.m.model->params,
                                        .dtype = HY_F32,
                                        .read = read_zeros,
                                        .context = &r,
                                        .is_gguf = true,
                                        .threads = 1,
                                        .observer = &(hy_observer){0}}));
    ck_assert_int_eq(r.others, 0);
    close_hf(&rig);
}
END_TEST

START_TEST(llamas_rows_of_q_and_k_are_paired) {
    hf_rig rig = {0};
    open_hf(&rig, golden_folder("llama"), HY_F32);
    const hy_shape *s = &rig.m.model->shape;
    hy_gguf *file = exported(golden_folder("llama"), "f32");
    const hy_params *params = &rig.m.model->params;
    const float *qkv = hy_store_backing(&rig.m.weights, hy_params_find(params, 1, HY_P_QKV));
    int64_t count, cols = s->width, half = s->head_size / 2;
    float *q = numbers_of(file, "blk.0.attn_q.weight", &count);
    ck_assert_int_eq(count, s->heads * s->head_size * cols);
    for (int64_t row = 0; row < s->heads * s->head_size; row++) {
        int64_t at = row % s->head_size, ours = row - at + at / 2 + at % 2 * half;
        ck_assert_mem_eq(q + row * cols, qkv + ours * cols, (size_t)cols * sizeof *q);
    }
    free(q);
    float *v = numbers_of(file, "blk.0.attn_v.weight", &count);
    int64_t before = (int64_t)(s->heads + s->kv_heads) * s->head_size * cols;
    ck_assert_mem_eq(v, qkv + before, (size_t)count * sizeof *v);
    free(v);
    ck_assert_str_eq(string_of(file, "general.architecture"), "llama");
    ck_assert_int_eq(int_of(file, "llama.block_count"), s->layers);
    hy_gguf_close(file);
    close_hf(&rig);
}
END_TEST

START_TEST(gemmas_norms_are_stored_with_one_added) {
    hf_rig rig = {0};
    open_hf(&rig, family_folder("gemma3-old"), HY_F32);
    hy_gguf *file = exported(family_folder("gemma3-old"), "q8_0");
    const hy_params *params = &rig.m.model->params;
    const float *ours = hy_store_backing(&rig.m.weights, hy_params_find(params, 1, HY_P_NORM1));
    int64_t count;
    float *norm = numbers_of(file, "blk.0.attn_norm.weight", &count);
    for (int64_t i = 0; i < count; i++) ck_assert_float_eq(norm[i], ours[i] + 1);
    free(norm);
    ck_assert_ptr_null(hy_gguf_find(file, "output.weight")); /* the head is tied */
    hy_gguf_close(file);
    close_hf(&rig);
}
END_TEST

/* Value heads of llama.cpp are in the order 0, 3, 1, 4, 2, 5 of ours: here, 2 groups of 3 with 8
 * numbers each. */
START_TEST(value_heads_of_linear_attention_are_in_tiles) {
    enum { KEYS = 32, HEADS = 6, SIZE = 8, WIDTH = 24, TAPS = 4 };
    static const int of_ours[HEADS] = {0, 3, 1, 4, 2, 5};
    hf_rig rig = {0};
    int64_t count;
    open_hf(&rig, family_folder("qwen35-square"), HY_F32);
    const hy_params *params = &rig.m.model->params;
#define OURS(kind)                                                                                 \
    ((const float *)hy_store_backing(&rig.m.weights, hy_params_find(params, 1, kind)))
    hy_gguf *file = exported(family_folder("qwen35-square"), "f32");
    float *conv = numbers_of(file, "blk.0.ssm_conv1d.weight", &count);
    ck_assert_int_eq(count, (KEYS + HEADS * SIZE) * TAPS);
    ck_assert_mem_eq(conv, OURS(HY_P_CONV), KEYS * TAPS * sizeof *conv);
    float *rate = numbers_of(file, "blk.0.ssm_a", &count);
    float *bias = numbers_of(file, "blk.0.ssm_dt.bias", &count);
    float *decay = numbers_of(file, "blk.0.ssm_alpha.weight", &count);
    float *out = numbers_of(file, "blk.0.ssm_out.weight", &count);
    ck_assert_int_eq(count, WIDTH * HEADS * SIZE);
    for (int head = 0; head < HEADS; head++) {
        int ours = of_ours[head];
        ck_assert_float_eq_tol(rate[head], -expf(OURS(HY_P_A_LOG)[ours]), 1e-6);
        ck_assert_float_eq(bias[head], OURS(HY_P_DT_BIAS)[ours]);
        ck_assert_mem_eq(decay + head * WIDTH, OURS(HY_P_LINEAR_BA) + (HEADS + ours) * WIDTH,
                         WIDTH * sizeof *decay);
        ck_assert_mem_eq(conv + (KEYS + head * SIZE) * TAPS,
                         OURS(HY_P_CONV) + (KEYS + ours * SIZE) * TAPS, SIZE * TAPS * sizeof *conv);
        for (int row = 0; row < WIDTH; row++)
            ck_assert_mem_eq(out + (row * HEADS + head) * SIZE,
                             OURS(HY_P_LINEAR_OUT) + (row * HEADS + ours) * SIZE,
                             SIZE * sizeof *out);
    }
    float *norm = numbers_of(file, "blk.0.ssm_norm.weight", &count);
    ck_assert_mem_eq(norm, OURS(HY_P_LINEAR_NORM), SIZE * sizeof *norm);
    ck_assert_int_eq(int_of(file, "qwen35.ssm.inner_size"), HEADS * SIZE);
    ck_assert_int_eq(int_of(file, "qwen35.full_attention_interval"), 2);
    float *all[] = {conv, rate, bias, decay, out, norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    hy_gguf_close(file);
    close_hf(&rig);
}
END_TEST

/* Ours are the logarithms of the rates' sizes. */
START_TEST(a_rate_that_is_not_negative_is_refused_with_its_tensor) {
    static const float wrong[] = {0.5f, 0, NAN, -INFINITY};
    static const char *const messages[] = {"holds 0.5; accepted: finite numbers below 0",
                                           "holds 0;", "holds nan", "holds -inf"};
    hf_rig rig = {0};
    uint64_t offset;
    hy_gguf *file = exported(family_folder("qwen35-square"), "f32");
    (void)hy_gguf_place(file, hy_gguf_find(file, "blk.0.ssm_a"), &offset);
    hy_gguf_close(file);
    FILE *raw = fopen(path, "r+b");
    ck_assert(raw && fseek(raw, (long)offset + 2 * (long)sizeof *wrong, SEEK_SET) == 0);
    ck_assert_uint_eq(fwrite(&wrong[_i], sizeof *wrong, 1, raw), 1);
    fclose(raw);
    must(hy_model_files_shape(HY_FILES_GGUF, path, &rig.shape));
    hy_batch_options batch = {.batch = 1, .seq = 4, .chunks = 1, .dtype = HY_F32};
    rig_open(&rig.m, &rig.shape, &batch, 1);
    must_fail(hy_hf_load_weights(path, rig.m.model, &rig.m.weights, rig.m.stream, NULL),
              HY_ERR_INPUT, messages[_i]);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "tensor \"blk.0.ssm_a\""));
    close_hf(&rig);
}
END_TEST

/* They are not checked, and the sanitizers look on. */
START_TEST(sizes_of_linear_attention_count_only_with_its_layers) {
    hy_shape shape = linear_shape();
    hy_params params;
    hy_hf_name *names;
    int32_t count;
    shape.more.linear = (hy_linear_options){
        .key_heads = 1 << 20, .heads = 1 << 21, .key_dim = 1 << 20, .value_dim = 1 << 20};
    must(hy_shape_complete(&shape));
    must(hy_params_init(&params, &shape));
    must(hy_gguf_list_names(&shape, &params, &names, &count));
    for (int32_t i = 0; i < count; i++) ck_assert_int_eq(names[i].tiles.groups, 0);
    free(names);
    hy_params_fini(&params);
}
END_TEST

START_TEST(scaled_rope_is_a_tensor) {
    hy_gguf *file = exported(family_folder("llama-llama3"), "f16");
    int64_t count;
    float *divisors = numbers_of(file, "rope_freqs.weight", &count);
    ck_assert_int_eq(count, 4);
    ck_assert_float_gt(divisors[0], 1); /* between both limits */
    ck_assert_float_lt(divisors[0], 8);
    ck_assert_float_eq_tol(divisors[3], 8, 1e-6);
    free(divisors);
    hy_gguf_close(file);
    file = exported(family_folder("phi3-long"), "f16");
    ck_assert_ptr_nonnull(hy_gguf_find(file, "rope_factors_long.weight"));
    ck_assert_ptr_nonnull(hy_gguf_find(file, "rope_factors_short.weight"));
    ck_assert_str_eq(string_of(file, "phi3.rope.scaling.type"), "longrope");
    hy_gguf_close(file);
}
END_TEST

START_TEST(a_head_that_llama_cpp_needs_is_written_although_it_is_tied) {
    hy_gguf *file = exported(family_folder("olmo2-dynamic"), "f32");
    int64_t count, other;
    float *head = numbers_of(file, "output.weight", &count);
    float *table = numbers_of(file, "token_embd.weight", &other);
    ck_assert_int_eq(count, other);
    ck_assert_mem_eq(head, table, (size_t)count * sizeof *head);
    free(head);
    free(table);
    hy_gguf_close(file);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct {
    const char *name, *why;
} refused[] = {
    {"gemma2-bias", "another activation function"},
    {"gemma2-caps", "scales attention differently"},
    {"gemma2-old", "always caps"},
    {"llama-yarn", "fixed limits of yarn"},
    {"ministral3-mscale", "without truncation"},
    {"olmo3-bases", "the same rope base"},
    {"olmo3-old", "no biases"},
    {"smollm3-nope", "rope in other layers"},
    {"qwen35-grouped", "keys and values of the same size"},
    {"qwen35-odd", "no biases of the attention output"},
    {"starcoder2-old", "needs the biases"},
};

START_TEST(a_model_that_llama_cpp_cannot_run_is_refused_with_the_reason) {
    hy_export_options options = options_of("f16");
    must_fail(hy_export(family_folder(refused[_i].name), &options, NULL), HY_ERR_INPUT,
              refused[_i].why);
    ck_assert(!hy_path_exists(path));
}
END_TEST

START_TEST(a_family_that_llama_cpp_lacks_is_refused_with_those_it_has) {
    hy_export_options options = options_of("f16");
    must_fail(hy_export(golden_folder("ministral"), &options, NULL), HY_ERR_INPUT,
              "no architecture for ministral; it has gpt2, llama");
}
END_TEST

START_TEST(wrong_options_are_named) {
    const char *model = golden_folder("llama");
    hy_export_options options = options_of("q3");
    must_fail(hy_export(model, &options, NULL), HY_ERR_INPUT, "q3 is not accepted; accepted: f32");
    options = options_of("f16");
    options.out = folder;
    must_fail(hy_export(model, &options, NULL), HY_ERR_INPUT, "use one of them");
    options = options_of("f16");
    options.dtype = "bf16";
    must_fail(hy_export(model, &options, NULL), HY_ERR_INPUT, "--type");
    options = (hy_export_options){.out = path, .type = "f16"};
    must_fail(hy_export(model, &options, NULL), HY_ERR_INPUT, "--gguf FILE");
    options = options_of("f16");
    options.gguf = folder;
    must_fail(hy_export(model, &options, NULL), HY_ERR_INPUT, "is a folder");
    options = options_of("f16");
    must(hy_export(model, &options, NULL));
    options.overwrite = false;
    must_fail(hy_export(model, &options, NULL), HY_ERR_INPUT, "--overwrite");
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

START_TEST(a_failing_disk_leaves_no_file) {
    hy_export_options options = options_of("q8_0");
    hy_fault_arm(1 << 20, ENOSPC, false);
    must(hy_export(golden_folder("llama"), &options, NULL));
    long calls = hy_fault_disarm();
    for (long at = 0; at < calls; at++) {
        remove(path);
        hy_fault_arm(at, ENOSPC, false);
        hy_status status = hy_export(golden_folder("llama"), &options, NULL);
        hy_fault_disarm();
        char **names;
        size_t count;
        must(hy_dir_list(folder, &names, &count));
        bool has_file = hy_path_exists(path);
        if (status != HY_OK && at < calls - 2)
            ck_assert_msg(!has_file, "call %ld of %ld", at, calls);
        hy_gguf *file;
        if (has_file) must(hy_gguf_open(path, &file));
        if (has_file) hy_gguf_close(file);
        hy_dir_list_free(names, count);
    }
}
END_TEST

START_TEST(a_killed_export_leaves_no_file_of_that_name) {
    hy_export_options options = options_of("q8_0");
    hy_fault_arm(1 << 20, ENOSPC, false);
    must(hy_export(golden_folder("llama"), &options, NULL));
    long calls = hy_fault_disarm();
    for (long at = 0; at < calls; at++) {
        int status;
        hy_gguf *file;
        remove(path);
        pid_t child = fork();
        if (child == 0) {
            hy_fault_arm_kill(at, 9);
            hy_export(golden_folder("llama"), &options, NULL);
            _exit(0);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 9);
        if (!hy_path_exists(path)) continue; /* else it was complete */
        must(hy_gguf_open(path, &file));
        hy_gguf_close(file);
    }
    must(hy_export(golden_folder("llama"), &options, NULL)); /* what is left does no harm */
}
END_TEST

START_TEST(a_disk_without_space_is_reported_before_writing) {
    hy_export_options options = options_of("f32");
    hy_fault_limit_disk(1000);
    hy_status status = hy_export(golden_folder("llama"), &options, NULL);
    hy_fault_limit_disk(0);
    ck_assert_int_eq(status, HY_ERR_IO);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "the disk has only"));
    ck_assert(!hy_path_exists(path));
}
END_TEST

/* ---- tokenizers ------------------------------------------------------------------------------ */

/* A copy of a golden folder with a tokenizer.json. */
static const char *with_tokenizer(const char *json) {
    static char model[300];
    char from[600];
    must(hy_path_join(model, sizeof model, folder, "model"));
    must(hy_dir_make(model));
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, "%s/%s", golden_folder("llama"), names[i]);
        must(hy_hf_copy_file(from, model, names[i]));
    }
    put_file(model, "tokenizer.json", json, strlen(json));
    return model;
}

#define BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}"
#define TOKENIZER(steps, model)                                                                    \
    "{\"added_tokens\": [{\"id\": 3, \"content\": \"<e>\", \"special\": true}], "                  \
    "\"normalizer\": null, \"pre_tokenizer\": " steps ", \"decoder\": {\"type\": \"ByteLevel\"}, " \
    "\"model\": {\"type\": \"BPE\", " model "}}"
#define PAIRS "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]"

START_TEST(a_byte_level_tokenizer_is_written_with_merges_and_types) {
    hy_gguf *file = exported(with_tokenizer(TOKENIZER(BYTE_LEVEL, PAIRS)), "f16");
    static const int64_t types[] = {1, 1, 1, 3, 5};
    const char *text;
    int64_t type;
    ck_assert_str_eq(string_of(file, "tokenizer.ggml.model"), "gpt2");
    ck_assert_str_eq(string_of(file, "tokenizer.ggml.pre"), "gpt-2");
    const hy_gguf_value *tokens = hy_gguf_get(file, "tokenizer.ggml.tokens");
    ck_assert_uint_eq(hy_gguf_size(tokens), (size_t)int_of(file, "llama.vocab_size"));
    ck_assert(hy_gguf_as_string(tokens, 4, &text, NULL));
    ck_assert_str_eq(text, "[PAD4]");
    for (size_t i = 0; i < 5; i++) {
        ck_assert(hy_gguf_as_int(hy_gguf_get(file, "tokenizer.ggml.token_type"), i, &type));
        ck_assert_int_eq(type, types[i]);
    }
    ck_assert_str_eq(string_of(file, "tokenizer.ggml.merges"), "a b");
    hy_gguf_close(file);
}
END_TEST

START_TEST(an_unknown_split_is_refused_with_what_was_found) {
    hy_export_options options = options_of("f16");
    const char *json =
        TOKENIZER("{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
                  "{\"Regex\": "
                  "\"x+\"}, \"behavior\": \"Isolated\", \"invert\": false}, " BYTE_LEVEL "]}",
                  PAIRS);
    must_fail(hy_export(with_tokenizer(json), &options, NULL), HY_ERR_INPUT,
              "the pre_tokenizer has Split x+, ByteLevel; accepted are those of gpt-2, llama-bpe");
    ck_assert(!hy_path_exists(path));
}
END_TEST

START_TEST(a_model_of_bytes_has_a_vocabulary_of_bytes) {
    hy_gguf *file = exported(golden_folder("llama"), "f16");
    const char *text;
    const hy_gguf_value *tokens = hy_gguf_get(file, "tokenizer.ggml.tokens");
    ck_assert(hy_gguf_as_string(tokens, 'a', &text, NULL) || hy_gguf_size(tokens) <= 'a');
    ck_assert(hy_gguf_as_string(tokens, ' ', &text, NULL));
    ck_assert_str_eq(text, "\xC4\xA0"); /* as byte-level BPE spells a blank */
    ck_assert_int_eq(int_of(file, "tokenizer.ggml.eos_token_id"), 0);
    hy_gguf_close(file);
}
END_TEST

static void keep_warning(void *user, hy_message_level level, const char *text) {
    if (level == HY_WARNING) snprintf(user, 400, "%s", text);
}

START_TEST(added_tokens_that_the_model_lacks_are_left_out) {
    const char *json =
        "{\"added_tokens\": [{\"id\": 96, \"content\": \"<pad>\", \"special\": "
        "true}], \"pre_tokenizer\": " BYTE_LEVEL
        ", \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", " PAIRS "}}";
    const char *model = with_tokenizer(json);
    hy_gguf *file = exported(model, "f16");
    const hy_gguf_value *tokens = hy_gguf_get(file, "tokenizer.ggml.tokens");
    ck_assert_uint_eq(hy_gguf_size(tokens), 96);
    hy_gguf_close(file);
    char said[400] = "";
    hy_export_options options = options_of("f16");
    options.overwrite = true;
    must(hy_export(model, &options, &(hy_observer){.user = said, .on_message = keep_warning}));
    ck_assert_str_eq(said,
                     "the model has 96 ids, so 1 added token of the tokenizer is left out: <pad>");
}
END_TEST

START_TEST(the_folders_chat_template_is_written) {
    static const char text[] = "{{ bos_token }}{{ messages[0].content }}";
    const char *model = with_tokenizer(TOKENIZER(BYTE_LEVEL, PAIRS));
    put_file(model, "chat_template.jinja", text, sizeof text - 1);
    hy_gguf *file = exported(model, "bf16");
    ck_assert_str_eq(string_of(file, "tokenizer.chat_template"), text);
    hy_gguf_close(file);
}
END_TEST

/* ---- adapters -------------------------------------------------------------------------------- */

START_TEST(an_adapter_becomes_a_lora_file) {
    char adapter[512];
    snprintf(adapter, sizeof adapter, "%s/tests/golden/peft/%s", HY_SOURCE_DIR, "llama");
    hy_export_options options = options_of("f32");
    options.base = golden_folder("llama");
    must(hy_merge_adapter(adapter, &options, NULL));
    hy_gguf *file;
    must(hy_gguf_open(path, &file));
    ck_assert_str_eq(string_of(file, "general.type"), "adapter");
    ck_assert_str_eq(string_of(file, "adapter.type"), "lora");
    double alpha = 0;
    ck_assert(hy_gguf_as_real(hy_gguf_get(file, "adapter.lora.alpha"), 0, &alpha) && alpha > 0);
    const hy_gguf_tensor *a = hy_gguf_find(file, "blk.0.attn_q.weight.lora_a");
    const hy_gguf_tensor *b = hy_gguf_find(file, "blk.0.attn_q.weight.lora_b");
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_nonnull(b);
    ck_assert_int_eq(a->shape[0], b->shape[1]); /* the rank */
    hy_gguf_close(file);
    must_fail(hy_export(adapter, &options, NULL), HY_ERR_INPUT, "--adapter");
    options.type = "q4_0";
    must_fail(hy_merge_adapter(adapter, &options, NULL), HY_ERR_INPUT, "for adapters");
}
END_TEST

static Suite *suite(void) {
    Suite *all = suite_create("gguf_export");
    TCase *t = tcase_create("files");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, make_folder, drop_folder);
    tcase_add_loop_test(t, a_file_has_every_weight_of_the_model, 0, HF_CASES);
    tcase_add_test(t, one_thread_encodes_if_the_setting_is_one);
    tcase_add_test(t, llamas_rows_of_q_and_k_are_paired);
    tcase_add_test(t, value_heads_of_linear_attention_are_in_tiles);
    tcase_add_loop_test(t, a_rate_that_is_not_negative_is_refused_with_its_tensor, 0, 4);
    tcase_add_test(t, sizes_of_linear_attention_count_only_with_its_layers);
    tcase_add_test(t, gemmas_norms_are_stored_with_one_added);
    tcase_add_test(t, scaled_rope_is_a_tensor);
    tcase_add_test(t, a_head_that_llama_cpp_needs_is_written_although_it_is_tied);
    tcase_add_loop_test(t, a_model_that_llama_cpp_cannot_run_is_refused_with_the_reason, 0,
                        (int)(sizeof refused / sizeof *refused));
    tcase_add_test(t, a_family_that_llama_cpp_lacks_is_refused_with_those_it_has);
    tcase_add_test(t, wrong_options_are_named);
    tcase_add_test(t, a_failing_disk_leaves_no_file);
    tcase_add_test(t, a_killed_export_leaves_no_file_of_that_name);
    tcase_add_test(t, a_disk_without_space_is_reported_before_writing);
    tcase_add_test(t, a_byte_level_tokenizer_is_written_with_merges_and_types);
    tcase_add_test(t, an_unknown_split_is_refused_with_what_was_found);
    tcase_add_test(t, a_model_of_bytes_has_a_vocabulary_of_bytes);
    tcase_add_test(t, added_tokens_that_the_model_lacks_are_left_out);
    tcase_add_test(t, the_folders_chat_template_is_written);
    tcase_add_test(t, an_adapter_becomes_a_lora_file);
    suite_add_tcase(all, t);
    return all;
}

HY_TEST_MAIN(suite)
