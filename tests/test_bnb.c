/* test_bnb.c: folders quantised by bitsandbytes, kept quantised or decoded: every number equals
 * that of bitsandbytes, and logits equal those of transformers. golden/make_bnb.py made the
 * folders. A wrong folder is refused with a message that names the problem.
 *
 * HYBRID_BNB_CASES names a folder with other cases (tests/nf4/run.sh). */
#include "base/sha.h"
#include "formats/shard.h"
#include "hf_rig.h"
#include "kernels/coded.h"
#include "kernels/cpu/rows.h"
#include "small_run.h"

static const char *const cases[] = {
    "llama-double", "llama-single", "gpt2-double",   "qwen2-skipped",   "qwen3-long-blocks",
    "llama-some",   "phi3-double",  "gemma3-double", "granite4-double", "neox-double"};
enum { CASES = sizeof cases / sizeof cases[0] };

static const char *case_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/bnb/%s", HY_SOURCE_DIR, name);
    return path;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* The numbers, in this type, have the hash that a folder's expected.safetensors has under
 * NAME.WHAT. */
static void check_hash(const char *folder, const char *name, const char *what, const float *x,
                       int64_t count, hy_dtype dtype) {
    char path[600], key[256], found[HY_SHA_HEX], theirs[HY_SHA_HEX] = "";
    hy_safetensors *file;
    hy_sha sha;
    char *raw = malloc((size_t)count * sizeof *x);
    hy_cpu_narrow(dtype, x, raw, count);
    hy_sha_init(&sha, HY_SHA256);
    hy_sha_add(&sha, raw, hy_dtype_bytes(dtype, count));
    hy_sha_text(&sha, found);
    free(raw);
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    snprintf(key, sizeof key, "%s.%s", name, what);
    must(hy_safetensors_open(path, &file));
    const hy_safetensors_entry *entry = hy_safetensors_find(file, key);
    ck_assert_msg(entry && entry->bytes == 64, "%s has no %s", path, key);
    must(hy_safetensors_read(file, entry, 0, theirs, 64));
    hy_safetensors_close(file);
    ck_assert_msg(strcmp(theirs, found) == 0, "%s: %s is not %s", folder, name, what);
}

/* The numbers of a part's tensor in the order of the file, from those of the parameter; to be
 * freed. */
static float *in_file_order(const hy_weight_files *files, const hy_weight_part *p, const float *x,
                            int64_t *count) {
    *count = p->coded->state.rows * p->cols;
    float *out = malloc((size_t)*count * sizeof *out);
    for (const hy_weight_part *q = files->parts; q < files->parts + files->count; q++) {
        if (q->coded != p->coded) continue;
        memcpy(out + q->tensor_row * q->cols, x + q->row * q->cols,
               (size_t)(q->rows * q->cols) * sizeof *out);
    }
    return out;
}

/* What a model that is only used has, and what is read to be merged, in pieces that begin
 * anywhere. */
static void check_decoded(const char *folder, hf_rig *rig) {
    hy_weight_files files;
    int coded = 0;
    must(hy_weight_files_open(folder, rig->m.model, &files));
    for (int32_t i = 0; i < files.count; i++) {
        const hy_weight_part *p = &files.parts[i];
        if (!p->coded) continue;
        int64_t count, first = p->row * p->cols;
        const float *all = (const float *)hy_store_backing(&rig->m.weights, p->param);
        float *x = in_file_order(&files, p, all, &count);
        check_hash(folder, p->coded->codes.entry->name, "rounded", x, count, p->coded->state.dtype);
        free(x);
        count = p->rows * p->cols;
        float *some = malloc((size_t)count * sizeof *some);
        for (int64_t at = 0, n = 1; at < count; at += n, n = n * 3 + 1) {
            if (n > count - at) n = count - at;
            must(hy_weight_files_read(&files, p->param, first + at, n, some + at));
        }
        ck_assert_mem_eq(some, all + first, (size_t)count * sizeof *some);
        free(some);
        coded++;
    }
    ck_assert_int_ge(coded, 4);
    hy_weight_files_close(&files);
}

static void check_used(const char *folder, int64_t piece) {
    hf_rig rig = {.piece = piece};
    open_hf(&rig, folder, HY_F32);
    check_decoded(folder, &rig);
    double far = logits_distance(&rig, folder);
    ck_assert_msg(far <= 1e-5, "%s: the logits are off by %.2e", folder, far);
    close_hf(&rig);
}

START_TEST(decoded_numbers_and_logits_are_those_of_bitsandbytes) {
    check_used(case_folder(cases[_i]), 0);
    check_used(case_folder(cases[_i]), 70);
}
END_TEST

/* ---- codes that stay as they are ------------------------------------------------------------- */

typedef struct frozen_rig {
    hy_backend *backend;
    hy_stream *stream;
    hy_model *model;
    hy_arena arena;
    hy_ledger ledger;
    hy_store store;
    hy_load_counts counts;
    hy_status status; /* of loading */
} frozen_rig;

/* All but the final norm is frozen; NaN is where nothing is put. */
static void open_frozen(frozen_rig *r, const char *folder, bool has_plain_scales, int64_t piece) {
    hy_layout layout;
    hy_shape shape;
    *r = (frozen_rig){0};
    must(hy_model_files_shape(HY_FILES_HF, folder, &shape));
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 2}, &r->backend));
    must(r->backend->stream_create(r->backend, "test", &r->stream));
    must(hy_model_create(&shape, &r->model));
    must(hy_model_select(r->model, "final_norm.weight", HY_NF4));
    r->model->params.has_plain_scales = has_plain_scales;
    must(hy_bnb_mark_skipped(folder, &shape, &r->model->params));
    must(hy_params_layout(&r->model->params, HY_SET_FROZEN, HY_F32, &layout));
    must(hy_arena_init(&r->arena, r->backend, &r->ledger, HY_DEVICE, layout.bytes, "a test"));
    must(hy_store_init(&r->store, &r->arena, HY_WEIGHTS, &layout));
    hy_layout_fini(&layout);
    memset(r->store.data, 0xff, r->store.layout.bytes);
    r->status = hy_hf_load_weights(folder, r->model, &r->store, r->stream,
                                   &(hy_load_options){.piece = piece, .counts = &r->counts});
}

static void close_frozen(frozen_rig *r) {
    hy_store_fini(&r->store);
    hy_arena_fini(&r->arena);
    hy_model_destroy(r->model);
    r->backend->stream_destroy(r->stream);
    r->backend->destroy(r->backend);
}

/* What a part's parameter is in the store, as fp32; to be freed. */
static float *stored_numbers(frozen_rig *r, const hy_weight_part *p) {
    int32_t item = hy_store_item_of(&r->store, p->param);
    hy_tensor t = hy_store_tensor(&r->store, item, hy_store_backing(&r->store, item));
    int64_t count = r->model->params.list[p->param].stored;
    float *x = malloc((size_t)count * sizeof *x);
    if (t.dtype == HY_NF4) {
        hy_cpu_read_coded(&t, 0, count, HY_F32, x);
    } else {
        memcpy(x, t.data, (size_t)count * sizeof *x);
    }
    return x;
}

/* Codes that stay stand for the numbers before they are rounded. Returns how many do. */
static int check_kept(const char *folder, bool has_plain_scales, int64_t piece) {
    frozen_rig r;
    hy_weight_files files;
    hy_load_counts seen = {0};
    open_frozen(&r, folder, has_plain_scales, piece);
    must(r.status);
    must(hy_weight_files_open(folder, r.model, &files));
    for (int32_t i = 0; i < files.count; i++) {
        const hy_weight_part *p = &files.parts[i];
        int32_t item = hy_store_item_of(&r.store, p->param);
        bool is_kept = item >= 0 && r.store.layout.items[item].dtype == HY_NF4;
        if (p->tensor_row > 0) continue; /* its tensor was seen with the part that begins it */
        seen.kept += p->coded && is_kept;
        seen.decoded += p->coded && !is_kept;
        seen.real += r.model->params.list[p->param].stays_real && !p->coded;
        ck_assert(p->coded || !is_kept); /* nothing is quantised here that was not */
        if (!p->coded) continue;
        int64_t count;
        float *stored = stored_numbers(&r, p), *x = in_file_order(&files, p, stored, &count);
        check_hash(folder, p->coded->codes.entry->name, is_kept ? "exact" : "rounded", x, count,
                   is_kept ? HY_F32 : p->coded->state.dtype);
        free(stored);
        free(x);
    }
    ck_assert_mem_eq(&seen, &r.counts, sizeof seen);
    hy_weight_files_close(&files);
    close_frozen(&r);
    return seen.kept;
}

START_TEST(quantised_values_are_kept_and_decode_to_the_same_numbers) {
    static const int64_t pieces[] = {0, 70, 1000};
    const char *folder = case_folder(cases[_i]);
    hy_hf_quant quant;
    must(hy_model_files_quant(HY_FILES_HF, folder, &quant));
    for (int i = 0; i < 3; i++) {
        ck_assert_int_ge(check_kept(folder, true, pieces[i]), 4);
        if (quant == HY_HF_NF4) ck_assert_int_ge(check_kept(folder, false, pieces[i]), 4);
    }
}
END_TEST

/* Scales of two levels would be others than those in fp32: nobody is to get these unasked. */
START_TEST(fp32_scales_do_not_become_scales_of_two_levels) {
    frozen_rig r;
    open_frozen(&r, case_folder("llama-single"), false, 0);
    must_fail(r.status, HY_ERR_INPUT, "frozen_dtype nf4_single");
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "_proj.weight"));
    close_frozen(&r);
}
END_TEST

static hy_dtype type_of(const frozen_rig *r, int32_t unit, hy_param_kind kind) {
    int32_t param = hy_params_find(&r->model->params, unit, kind);
    return r->store.layout.items[hy_store_item_of(&r->store, param)].dtype;
}

/* q is left in 16 bits by the quantiser; it lies with k and v, which are decoded. */
START_TEST(what_the_quantiser_skipped_stays_as_it_was) {
    frozen_rig r;
    open_frozen(&r, case_folder("qwen2-skipped"), false, 0);
    must(r.status);
    ck_assert_int_eq(r.counts.real, 1);
    ck_assert_int_eq(r.counts.kept, 4);
    ck_assert_int_eq(r.counts.decoded, 2);
    ck_assert_int_eq(type_of(&r, 1, HY_P_QKV), HY_F32);
    ck_assert_int_eq(type_of(&r, 1, HY_P_OUT), HY_NF4);
    close_frozen(&r);
}
END_TEST

/* Its codes cannot be reordered with their scales, so they are decoded; others stay codes. */
START_TEST(a_matrix_that_is_stored_head_by_head_is_decoded) {
    frozen_rig r;
    open_frozen(&r, case_folder("neox-double"), false, 0);
    must(r.status);
    ck_assert_int_eq(r.counts.real, 0);
    ck_assert_int_eq(r.counts.kept, 2 * 3);
    ck_assert_int_eq(r.counts.decoded, 2);
    ck_assert_int_eq(type_of(&r, 1, HY_P_QKV), HY_F32);
    ck_assert_int_eq(type_of(&r, 1, HY_P_OUT), HY_NF4);
    close_frozen(&r);
}
END_TEST

/* Of the first layer the mlp, of the second the output of attention: blocks that compute
 * differently. */
START_TEST(layers_may_differ_in_what_was_skipped) {
    frozen_rig r;
    open_frozen(&r, case_folder("llama-some"), false, 0);
    must(r.status);
    ck_assert_int_eq(r.counts.real, 4);
    ck_assert_int_eq(r.counts.kept, 10);
    ck_assert_int_eq(r.counts.decoded, 0);
    ck_assert_int_eq(type_of(&r, 1, HY_P_UP), HY_F32);
    ck_assert_int_eq(type_of(&r, 1, HY_P_OUT), HY_NF4);
    ck_assert_int_eq(type_of(&r, 2, HY_P_UP), HY_NF4);
    ck_assert_int_eq(type_of(&r, 2, HY_P_OUT), HY_F32);
    hy_model_settle(r.model);
    ck_assert_int_ne(r.model->kind_of[1], r.model->kind_of[2]);
    close_frozen(&r);
}
END_TEST

/* ---- what is wrong with a folder ------------------------------------------------------------- */

#define K0 "model.layers.0.self_attn.k_proj.weight"
#define STATE ".quant_state.bitsandbytes__nf4"

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

/* Another content for one tensor, or none. */
typedef struct change {
    const char *tensor;
    const char *name; /* that it gets; NULL: it is left out */
    hy_dtype dtype;
    const void *data; /* NULL: so many zeros */
    int64_t count;
} change;

static void write_changed(const char *from, const change *c) {
    char path[400];
    hy_hf_tensors *source;
    hy_safetensors_entry entries[96];
    hy_hf_found found[96];
    hy_safetensors_writer *out;
    size_t count = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    must(hy_hf_tensors_open(from, &source));
    for (size_t i = 0; i < hy_hf_tensors_count(source); i++) {
        found[count] = hy_hf_tensors_at(source, i);
        entries[count] = *found[count].entry;
        bool is_it = strcmp(entries[count].name, c->tensor) == 0;
        if (is_it && !c->name) continue;
        if (is_it) {
            entries[count] = (hy_safetensors_entry){
                .name = c->name, .dtype = c->dtype, .ndim = 1, .shape = {c->count}};
            found[count].entry = NULL;
        }
        count++;
    }
    must(hy_safetensors_create(path, entries, count, NULL, &out));
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes =
            found[i].entry ? found[i].entry->bytes : hy_dtype_bytes(c->dtype, c->count);
        char *data = calloc(1, bytes);
        if (found[i].entry)
            must(hy_safetensors_read(found[i].file, found[i].entry, 0, data, bytes));
        if (!found[i].entry && c->data) memcpy(data, c->data, bytes);
        must(hy_safetensors_put(out, data, bytes));
        free(data);
    }
    must(hy_safetensors_finish(out, NULL, NULL));
    hy_hf_tensors_close(source);
}

/* A changed copy is refused with these words, and with the names of file and tensor. */
static void check_refused(const char *golden, const change *c, const char *fragment) {
    frozen_rig r;
    write_changed(case_folder(golden), c);
    open_frozen(&r, folder, strstr(golden, "single") != NULL, 0);
    must_fail(r.status, HY_ERR_INPUT, fragment);
    ck_assert_msg(strstr(hy_error_message(), K0) && strstr(hy_error_message(), "safetensors"), "%s",
                  hy_error_message());
    close_frozen(&r);
}

static void copy_config(const char *golden) {
    char path[600], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/config.json", case_folder(golden));
    must(hy_file_read(path, &text, &size));
    put_file(folder, "config.json", text, size);
    free(text);
}

START_TEST(tensors_that_do_not_belong_together_are_named) {
    static const struct {
        const char *beside, *name;
        hy_dtype dtype;
        int64_t count;
        const char *fragment;
    } wrong[] = {
        {STATE, NULL, HY_U8, 0, "is missing"},
        {STATE, K0 ".quant_state.bitsandbytes__fp4", HY_U8, 10, "quantised as fp4"},
        {STATE, K0 STATE, HY_F32, 10, "not a text"},
        {STATE, K0 STATE, HY_U8, 5000, "not a text"},
        {".absmax", NULL, HY_U8, 0, "\"" K0 ".absmax\" is missing"},
        {".absmax", K0 ".absmax", HY_U8, 31, "expected 32 numbers of u8"},
        {".absmax", K0 ".absmax", HY_F32, 32, "expected 32 numbers of u8"},
        {".quant_map", NULL, HY_F32, 0, "is missing"},
        {".quant_map", K0 ".quant_map", HY_F32, 16, "levels of nf4"},
        {".nested_absmax", NULL, HY_F32, 0, "is missing"},
        {".nested_absmax", K0 ".nested_absmax", HY_F32, 2, "expected 1 numbers of fp32"},
        {".nested_quant_map", K0 ".nested_quant_map", HY_F32, 255, "expected 256"},
        {".nested_quant_map", K0 ".nested_quant_map", HY_F32, 256, "frozen_dtype nf4_single"},
        {"", K0, HY_U8, 1023, "has 1023 bytes"},
    };
    copy_config("llama-double");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char tensor[128];
        snprintf(tensor, sizeof tensor, K0 "%s", wrong[i].beside);
        change c = {tensor, wrong[i].name, wrong[i].dtype, NULL, wrong[i].count};
        check_refused("llama-double", &c, wrong[i].fragment);
    }
}
END_TEST

#define STATE_WITH(type, block, shape, dtype, nested)                                              \
    "{\"quant_type\": \"" type "\", \"blocksize\": " block ", \"dtype\": \"" dtype                 \
    "\", \"shape\": " shape nested "}"
#define NESTED(block, offset)                                                                      \
    ", \"nested_blocksize\": " block ", \"nested_dtype\": \"float32\", \"nested_offset\": " offset

START_TEST(a_state_that_cannot_be_is_named) {
    static const struct {
        const char *text, *fragment;
    } wrong[] = {
        {"", "found the end of the text"},
        {"[]", "not a JSON object"},
        {"{\"quant_type\": \"nf4\", \"blocksi", ""},
        {"{\"quant_type\": \"nf4\"}", "blocksize"},
        {STATE_WITH("fp4", "64", "[32, 64]", "bfloat16", NESTED("256", "0.1")), "quant_type"},
        {STATE_WITH("nf4", "32", "[32, 64]", "bfloat16", NESTED("256", "0.1")), "multiples of 64"},
        {STATE_WITH("nf4", "0", "[32, 64]", "bfloat16", NESTED("256", "0.1")), "multiples of 64"},
        {STATE_WITH("nf4", "-64", "[32, 64]", "bfloat16", NESTED("256", "0.1")), "blocksize"},
        {STATE_WITH("nf4", "8192", "[32, 64]", "bfloat16", NESTED("256", "0.1")), "up to 4096"},
        {STATE_WITH("nf4", "128", "[32, 64]", "bfloat16", NESTED("256", "0.1")),
         "expected 16 numbers"},
        {STATE_WITH("nf4", "64", "[64, 32]", "bfloat16", NESTED("256", "0.1")), "(64, 32)"},
        {STATE_WITH("nf4", "64", "[2048]", "bfloat16", NESTED("256", "0.1")), "shape"},
        {STATE_WITH("nf4", "64", "null", "bfloat16", NESTED("256", "0.1")), "shape"},
        {STATE_WITH("nf4", "64", "[1e300, 64]", "bfloat16", NESTED("256", "0.1")), "shape"},
        {STATE_WITH("nf4", "64", "[4294967296, 4294967296]", "bfloat16", NESTED("256", "0.1")),
         "shape"},
        {STATE_WITH("nf4", "64", "[32, 64]", "int8", NESTED("256", "0.1")), "dtype"},
        {STATE_WITH("nf4", "64", "[32, 64]", "bfloat16", NESTED("128", "0.1")), "nested_blocksize"},
        {STATE_WITH("nf4", "64", "[32, 64]", "bfloat16", NESTED("256", "NaN")), ""},
        {STATE_WITH("nf4", "64", "[32, 64]", "bfloat16", NESTED("256", "1e300")), "nested_offset"},
        {STATE_WITH("nf4", "64", "[32, 64]", "bfloat16", NESTED("256", "null")), "nested_offset"},
        {STATE_WITH("nf4", "64", "[32, 64]", "bfloat16", ""), "expected 32 numbers of fp32"},
    };
    copy_config("llama-double");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        change c = {K0 STATE, K0 STATE, HY_U8, wrong[i].text, (int64_t)strlen(wrong[i].text)};
        check_refused("llama-double", &c, wrong[i].fragment);
    }
}
END_TEST

START_TEST(scales_that_are_no_numbers_are_named) {
    float scales[32] = {[5] = NAN}, nested = INFINITY;
    copy_config("llama-double");
    change wide = {K0 ".nested_absmax", K0 ".nested_absmax", HY_F32, &nested, 1};
    check_refused("llama-double", &wide, "number 0 is not finite");
    copy_config("llama-single");
    change one = {K0 ".absmax", K0 ".absmax", HY_F32, scales, 32};
    check_refused("llama-single", &one, "number 5 is not finite");
}
END_TEST

/* ---- runs ------------------------------------------------------------------------------------ */

#define RUN                                                                                        \
    "tokenizer none seq_len 16 batch_size 2 grad_accum_steps 1 steps 3 threads 2 device cpu "      \
    "eval_every 0 sample_tokens 0 precision fp32 predictor none save_model false "

static const char *data_path(void) {
    static char path[300];
    int32_t tokens[3000];
    for (int i = 0; i < 3000; i++) tokens[i] = i * i % 90;
    snprintf(path, sizeof path, "%s/data.bin", folder);
    must(hy_shard_write(path, tokens, 3000, 96, 2));
    return path;
}

static hy_config *run_config(const char *model, const char *const *pairs) {
    hy_config *config = small_run(RUN, "none", pairs);
    must(hy_config_set(config, "model", case_folder(model), HY_FROM_SET));
    must(hy_config_set(config, "data", data_path(), HY_FROM_SET));
    return config;
}

typedef struct heard {
    char text[4096];
} heard;

static void hear(void *user, hy_message_level level, const char *text) {
    heard *h = user;
    (void)level;
    size_t used = strlen(h->text);
    snprintf(h->text + used, sizeof h->text - used, "%s\n", text);
}

static void run_losses(const char *model, const char *const *pairs, heard *h, double losses[3]) {
    hy_trainer *t;
    hy_config *config = run_config(model, pairs);
    hy_observer observer = {.user = h, .on_message = hear};
    must(hy_trainer_create(config, &observer, &t));
    hy_config_destroy(config);
    next_losses(t, 3, losses);
    hy_trainer_destroy(t);
}

/* A folder in fp32 loses nothing where it is decoded: then both ways have the same bits. */
START_TEST(a_run_beside_codes_has_the_losses_of_one_beside_their_numbers) {
    static heard kept, decoded;
    double with_codes[3], with_numbers[3];
    run_losses("llama-single", PAIRS("qlora", "true"), &kept, with_codes);
    run_losses("llama-single", PAIRS("lora", "true", "frozen_dtype", "auto"), &decoded,
               with_numbers);
    ck_assert_mem_eq(with_codes, with_numbers, sizeof with_codes);
    ck_assert_ptr_nonnull(
        strstr(kept.text, "keep their codes from bitsandbytes, with scales in fp32"));
    ck_assert_ptr_nonnull(strstr(decoded.text, "were decoded"));
}
END_TEST

/* The numbers that both have are those of the folder: nothing is quantised on the way. */
START_TEST(a_run_says_what_stays_as_it_was) {
    static heard h, decoded;
    double losses[3], with_numbers[3];
    run_losses("qwen2-skipped", PAIRS("lora", "true"), &h, losses);
    ck_assert_ptr_nonnull(strstr(h.text, "4 matrices of "));
    ck_assert_ptr_nonnull(strstr(h.text, "with scales in 8 bits"));
    ck_assert_ptr_nonnull(strstr(h.text, "has 1 matrices in its blocks that are not quantised"));
    run_losses("neox-double", PAIRS("lora", "true"), &h, losses);
    ck_assert_ptr_nonnull(strstr(h.text, "6 matrices of "));
    ck_assert_ptr_nonnull(strstr(h.text, "2 quantised matrices of "));
    run_losses("llama-some", PAIRS("lora", "true", "frozen_dtype", "nf4_single"), &h, losses);
    run_losses("llama-some", PAIRS("lora", "true", "frozen_dtype", "auto"), &decoded, with_numbers);
    ck_assert_mem_eq(losses, with_numbers, sizeof losses);
}
END_TEST

static const char *frozen_type(const char *model, const char *const *pairs) {
    static char text[64];
    const char *value, *origin;
    hy_config *config = run_config(model, pairs);
    must(hy_config_get(config, "train.frozen_dtype", &value, &origin));
    snprintf(text, sizeof text, "%s", value);
    hy_config_destroy(config);
    return text;
}

START_TEST(a_folder_says_how_frozen_weights_are_stored_unless_the_user_does) {
    ck_assert_str_eq(frozen_type("llama-double", PAIRS("lora", "true")), "nf4");
    ck_assert_str_eq(frozen_type("llama-double", PAIRS("qlora", "true")), "nf4");
    ck_assert_str_eq(frozen_type("llama-single", PAIRS("lora", "true")), "nf4_single");
    ck_assert_str_eq(frozen_type("llama-single", PAIRS("qlora", "true")), "nf4_single");
    ck_assert_str_eq(frozen_type("llama-double", PAIRS("qlora", "true", "frozen_dtype", "int8")),
                     "int8");
}
END_TEST

START_TEST(weights_that_are_quantised_are_not_trained) {
    hy_trainer *t;
    hy_config *config = run_config("llama-double", NULL);
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "add --lora");
    must_fail(hy_trainer_plan(config, NULL, &t), HY_ERR_INPUT, "add --lora");
    must(hy_config_set(config, "train", "last:1", HY_FROM_CALLER));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "add --lora");
    hy_config_destroy(config);
    config = run_config("llama-double", PAIRS("lora", "true"));
    must(hy_trainer_plan(config, NULL, &t));
    hy_trainer_destroy(t);
    hy_config_destroy(config);
}
END_TEST

/* ---- other cases ----------------------------------------------------------------------------- */

/* How far transformers' own run of the quantised model is, by the type that it computes in. */
static void check_run(const char *path) {
    char file_path[700];
    float theirs[HF_TOKENS * 96];
    hy_safetensors *file;
    hf_rig rig = {0};
    snprintf(file_path, sizeof file_path, "%s/expected.safetensors", path);
    must(hy_safetensors_open(file_path, &file));
    const char *dtype = hy_safetensors_metadata(file, "dtype");
    double allowed = strcmp(dtype, "float32") == 0   ? 1e-5
                     : strcmp(dtype, "float16") == 0 ? 1e-2
                                                     : 1e-1;
    must(hy_safetensors_read(file, hy_safetensors_find(file, "run"), 0, theirs, sizeof theirs));
    hy_safetensors_close(file);
    open_hf(&rig, path, HY_F32);
    (void)logits_distance(&rig, path);
    const float *ours = (const float *)(void *)rig.m.plan->logits;
    double difference = 0, norm = 0;
    for (int i = 0; i < HF_TOKENS * 96; i++) {
        difference += pow((double)ours[i] - theirs[i], 2);
        norm += pow(theirs[i], 2);
    }
    ck_assert_msg(sqrt(difference / norm) <= allowed, "%s: off by %.2e", path,
                  sqrt(difference / norm));
    close_hf(&rig);
}

START_TEST(transformers_computes_the_same_with_the_quantised_model) {
    check_run(case_folder(cases[_i]));
}
END_TEST

START_TEST(other_cases_are_those_of_bitsandbytes_too) {
    const char *others = getenv("HYBRID_BNB_CASES");
    char **names, path[700];
    size_t count;
    int kept = 0;
    hy_hf_quant quant;
    if (!others) return;
    must(hy_dir_list(others, &names, &count));
    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", others, names[i]);
        check_used(path, i % 2 ? 0 : 300);
        check_run(path);
        must(hy_model_files_quant(HY_FILES_HF, path, &quant));
        int here = check_kept(path, true, 500);
        if (quant == HY_HF_NF4) ck_assert_int_eq(check_kept(path, false, 0), here);
        kept += here;
    }
    ck_assert_int_gt(kept, 0);
    printf("%zu models, %d matrices stayed as they were\n", count, kept);
    hy_dir_list_free(names, count);
}
END_TEST

static Suite *bnb_suite(void) {
    Suite *suite = suite_create("folders of bitsandbytes");
    TCase *numbers = tcase_create("numbers"), *folders = tcase_create("folders");
    tcase_set_timeout(numbers, 120);
    tcase_set_timeout(folders, 120);
    tcase_add_checked_fixture(folders, make_folder, drop_folder);
    tcase_add_loop_test(numbers, decoded_numbers_and_logits_are_those_of_bitsandbytes, 0, CASES);
    tcase_add_loop_test(numbers, quantised_values_are_kept_and_decode_to_the_same_numbers, 0,
                        CASES);
    tcase_add_loop_test(numbers, transformers_computes_the_same_with_the_quantised_model, 0, CASES);
    tcase_add_test(numbers, fp32_scales_do_not_become_scales_of_two_levels);
    tcase_add_test(numbers, what_the_quantiser_skipped_stays_as_it_was);
    tcase_add_test(numbers, a_matrix_that_is_stored_head_by_head_is_decoded);
    tcase_add_test(numbers, layers_may_differ_in_what_was_skipped);
    tcase_add_test(numbers, other_cases_are_those_of_bitsandbytes_too);
    tcase_add_test(folders, tensors_that_do_not_belong_together_are_named);
    tcase_add_test(folders, a_state_that_cannot_be_is_named);
    tcase_add_test(folders, scales_that_are_no_numbers_are_named);
    tcase_add_test(folders, a_run_beside_codes_has_the_losses_of_one_beside_their_numbers);
    tcase_add_test(folders, a_run_says_what_stays_as_it_was);
    tcase_add_test(folders, a_folder_says_how_frozen_weights_are_stored_unless_the_user_does);
    tcase_add_test(folders, weights_that_are_quantised_are_not_trained);
    suite_add_tcase(suite, numbers);
    suite_add_tcase(suite, folders);
    return suite;
}

HY_TEST_MAIN(bnb_suite)
