/* test_peft.c: adapters that PEFT saved are read, run, trained, written and merged: logits,
 * gradients and losses equal PEFT's. golden/make_peft.py made the files. A wrong folder is refused
 * with a message that names the problem. */
#include "sets_rig.h"

#include "config/derived.h"
#include "hf_rig.h"
#include "hub/merge.h"
#include "hub/peft.h"
#include "hub/requantise.h"
#include "kernels/coded.h"
#include "model/adapter.h"
#include "model/coding.h"
#include "update_all.h"

#define VOCAB 96 /* the largest */
#define STEPS 50
#define TOLERANCE 1e-5
#define CURVE_TOLERANCE 1e-4
enum { CURVE_BATCHES = 4, CURVE_SHIFT = 5 }; /* as in golden/make_curves.py */

static const char *const cases[] = {
    "gpt2",  "gpt2-untied-wte", "llama",     "llama-whole", "mistral",    "qwen2",  "qwen2-tied",
    "qwen3", "qwen3-one",       "phi3",      "neox",        "neox-whole", "gemma3", "granite4",
    "olmo2", "starcoder2",      "neox-head", "qwen35",      "qwen35-some"};
enum { CASES = sizeof cases / sizeof cases[0] };

/* A base with an adapter beside it, and what PEFT makes of the two. */
typedef struct peft_rig {
    const char *name;
    char adapter[512], base[512];
    char trained[2 * HY_TEXT_MAX];
    hy_safetensors *expected;
    sets_choice choice;
    sets_rig r;
} peft_rig;

/* ---- opening --------------------------------------------------------------------------------- */

/* Shape and trained names, through the settings, as a run finds them. */
static hy_status find_adapted(const char *base, const char *adapter, hy_shape *shape,
                              char trained[2 * HY_TEXT_MAX]) {
    hy_config *config;
    must(hy_config_create(&config));
    must(hy_config_set(config, "model", base, HY_FROM_CALLER));
    hy_status status = hy_config_set(config, "lora.adapter", adapter, HY_FROM_CALLER);
    if (status == HY_OK) status = hy_shape_from_settings(hy_config_settings(config), shape);
    if (status == HY_OK) hy_settings_trained(hy_config_settings(config), trained, 2 * HY_TEXT_MAX);
    hy_config_destroy(config);
    return status;
}

/* The base alone where p->trained is empty. */
static void open_model(peft_rig *p) {
    p->choice.trained = p->trained[0] ? p->trained : NULL;
    sets_open(&p->r, &p->choice);
    if (p->trained[0]) must(hy_params_mark_beside(&p->r.model->params, p->trained));
    for (int i = 0; i < SETS_GRADS; i++) {
        hy_load_options options = {0};
        if (!p->r.has_store[i]) continue;
        must(hy_hf_load_weights(p->base, p->r.model, &p->r.stores[i], p->r.compute, &options));
    }
}

static void open_expected(peft_rig *p, const char *name) {
    char path[600];
    *p = (peft_rig){.name = name};
    snprintf(p->adapter, sizeof p->adapter, "%s/tests/golden/peft/%s", HY_SOURCE_DIR, name);
    snprintf(path, sizeof path, "%s/expected.safetensors", p->adapter);
    must(hy_safetensors_open(path, &p->expected));
    const char *base = hy_safetensors_metadata(p->expected, "base");
    ck_assert_ptr_nonnull(base);
    snprintf(p->base, sizeof p->base, "%s", golden_folder(base));
}

static void open_peft(peft_rig *p, const char *name, int recompute) {
    open_expected(p, name);
    must(find_adapted(p->base, p->adapter, &p->choice.shape, p->trained));
    p->choice.options.recompute = recompute;
    open_model(p);
    must(hy_peft_load(p->adapter, p->r.model, &p->r.stores[SETS_WEIGHTS], p->r.compute));
}

static void close_peft(peft_rig *p) {
    sets_close(&p->r);
    hy_safetensors_close(p->expected);
}

static void *read_expected(const peft_rig *p, const char *name, size_t bytes) {
    const hy_safetensors_entry *entry = hy_safetensors_find(p->expected, name);
    ck_assert_msg(entry && entry->bytes == bytes, "%s: %s is missing or of another size", p->name,
                  name);
    void *data = malloc(bytes);
    must(hy_safetensors_read(p->expected, entry, 0, data, bytes));
    return data;
}

static double number_of(const peft_rig *p, const char *key) {
    const char *text = hy_safetensors_metadata(p->expected, key);
    ck_assert_msg(text != NULL, "%s: the metadata lacks %s", p->name, key);
    return strtod(text, NULL);
}

static int vocab_of(const peft_rig *p) { return p->r.model->shape.vocab; }

/* The batch of a step; how many targets count. */
static int load_batch(peft_rig *p, int step) {
    size_t bytes = SETS_ROWS * sizeof(int32_t);
    int32_t *tokens = read_expected(p, "tokens", bytes),
            *targets = read_expected(p, "targets", bytes);
    int shift = CURVE_SHIFT * (step % CURVE_BATCHES), counted = 0, vocab = vocab_of(p);
    for (int i = 0; i < SETS_ROWS; i++) {
        p->r.tokens[i] = (tokens[i] + shift) % vocab;
        p->r.targets[i] = targets[i] < 0 ? -1 : (targets[i] + shift) % vocab;
        counted += targets[i] >= 0;
    }
    free(tokens);
    free(targets);
    return counted;
}

static hy_batch_input input_of(peft_rig *p, int counted) {
    return (hy_batch_input){.stream = p->r.compute,
                            .weights = sets_store(&p->r, SETS_WEIGHTS),
                            .frozen = sets_store(&p->r, SETS_FROZEN),
                            .grads = sets_store(&p->r, SETS_GRADS),
                            .tokens = p->r.tokens,
                            .targets = p->r.targets,
                            .rope = p->r.model->shape.has_rope ? p->r.rope : NULL,
                            .losses = p->r.losses,
                            .dropout_seed = p->r.dropout_seed,
                            .loss_scale = 1.0f / (float)counted};
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void compute_logits(peft_rig *p, float out[SETS_ROWS * VOCAB]) {
    hy_batch_input input = input_of(p, load_batch(p, 0));
    int64_t rows = p->r.plan->size.tile_rows[HY_RANGE_LOSS], vocab = vocab_of(p);
    for (int64_t first = 0; first < SETS_ROWS; first += rows) {
        int64_t count = SETS_ROWS - first < rows ? SETS_ROWS - first : rows;
        must(batch_logits(p->r.plan, &input, first, count));
        must(p->r.backend->stream_sync(p->r.compute));
        const float *logits = (const float *)p->r.plan->logits;
        for (int64_t i = 0; i < count * vocab; i++) {
            out[first * vocab + i] = shaped_logit(&p->r.model->shape, logits[i]);
        }
    }
}

/* The largest difference over the largest number; infinity where there is a NaN. */
static double worst_difference(const float *a, const float *b, int64_t count) {
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)a[i] - b[i]);
        if (isnan(difference)) return INFINITY;
        worst = fmax(worst, difference);
        largest = fmax(largest, fabs(b[i]));
    }
    return worst / largest;
}

static double norm_distance(const float *a, const float *b, int64_t count) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    double far = sqrt(difference / norm);
    return isnan(far) ? INFINITY : far;
}

static double train(peft_rig *p, int step) {
    int counted = load_batch(p, step);
    hy_batch_input input = input_of(p, counted);
    double sum = 0;
    must(hy_batch_train(p->r.plan, &input));
    must(p->r.backend->stream_sync(p->r.compute));
    for (int i = 0; i < SETS_ROWS; i++) sum += p->r.losses[i];
    return sum / counted;
}

static const int recomputed[] = {0, HY_KEEP_ALL};

START_TEST(logits_are_those_of_peft) {
    peft_rig p;
    static float ours[SETS_ROWS * VOCAB];
    open_peft(&p, cases[_i / 2], recomputed[_i % 2]);
    compute_logits(&p, ours);
    int count = SETS_ROWS * vocab_of(&p);
    float *theirs = read_expected(&p, "logits", (size_t)count * sizeof *theirs);
    double far = worst_difference(ours, theirs, count);
    ck_assert_msg(far <= TOLERANCE, "%s: the logits are off by %.2e", p.name, far);
    if (getenv("HYBRID_SHOW_DISTANCES")) printf("%s: logits %.1e\n", p.name, far);
    free(theirs);
    close_peft(&p);
}
END_TEST

/* The gradient of a tensor of the file, in the order of its rows there. */
static float *gradient_of(peft_rig *p, const hy_hf_name *name) {
    float *all = sets_read(&p->r, SETS_GRADS, name->param);
    float *out = malloc((size_t)(name->rows * name->cols) * sizeof *out);
    for (int64_t row = 0, run; row < name->rows; row += run) {
        int64_t from = name->row + hy_hf_row_of_ours(name, row, &run);
        memcpy(out + row * name->cols, all + from * name->cols,
               (size_t)(run * name->cols) * sizeof *out);
    }
    free(all);
    return out;
}

/* Each tensor of the file by itself: a piece of a gradient of ours. */
START_TEST(gradients_are_those_of_peft) {
    peft_rig p;
    hy_hf_name *names;
    int32_t count;
    double worst = 0;
    open_peft(&p, cases[_i / 2], recomputed[_i % 2]);
    train(&p, 0);
    must(hy_peft_list_names(&p.r.model->shape, &p.r.model->params, &names, &count));
    ck_assert_int_gt(count, 0);
    for (int32_t i = 0; i < count; i++) {
        char name[HY_HF_NAME_MAX + 8];
        int64_t elements = names[i].rows * names[i].cols;
        snprintf(name, sizeof name, "grad.%s", names[i].name);
        float *theirs = read_expected(&p, name, (size_t)elements * sizeof *theirs);
        float *ours = gradient_of(&p, &names[i]);
        double far = norm_distance(ours, theirs, elements);
        ck_assert_msg(far <= TOLERANCE, "%s: the gradient of %s is off by %.2e", p.name,
                      names[i].name, far);
        worst = fmax(worst, far);
        free(theirs);
        free(ours);
    }
    if (getenv("HYBRID_SHOW_DISTANCES")) printf("%s: gradients %.1e\n", p.name, worst);
    free(names);
    close_peft(&p);
}
END_TEST

/* ---- fifty steps ----------------------------------------------------------------------------- */

typedef struct adamw {
    hy_optimizer optimizer;
    hy_optimizer_state state;
    hy_store m, v;
} adamw;

static void open_adamw(adamw *a, peft_rig *p) {
    hy_layout layout;
    const hy_params *params = &p->r.model->params;
    *a = (adamw){.optimizer = {.kind = hy_optimizer_kind_of(HY_ADAMW),
                               .beta1 = number_of(p, "beta1"),
                               .beta2 = number_of(p, "beta2"),
                               .eps = number_of(p, "eps"),
                               .weight_decay = number_of(p, "weight_decay"),
                               .max_norm = number_of(p, "grad_clip")}};
    uint64_t bytes = hy_optimizer_workspace(&a->optimizer, params, p->r.backend, HY_F32);
    must(hy_params_layout(params, HY_SET_TRAINABLE, HY_F32, &layout));
    must(hy_store_init(&a->m, &p->r.device, HY_OPTIM, &layout));
    must(hy_store_init(&a->v, &p->r.device, HY_OPTIM, &layout));
    memset(a->m.data, 0, layout.bytes);
    memset(a->v.data, 0, layout.bytes);
    hy_layout_fini(&layout);
    void *workspace = sets_push(&p->r, HY_WORKSPACE, bytes);
    a->state = (hy_optimizer_state){.optimizer = &a->optimizer,
                                    .params = params,
                                    .backend = p->r.backend,
                                    .weights = sets_store(&p->r, SETS_WEIGHTS),
                                    .grads = sets_store(&p->r, SETS_GRADS),
                                    .arrays = {&a->m, &a->v},
                                    .square_sum = sets_push(&p->r, HY_WORKSPACE, sizeof(double)),
                                    .clip = sets_push(&p->r, HY_WORKSPACE, 2 * sizeof(float)),
                                    .workspace = hy_tensor_1d(workspace, HY_U8, (int64_t)bytes)};
}

static void close_adamw(adamw *a) {
    hy_store_fini(&a->m);
    hy_store_fini(&a->v);
}

START_TEST(fifty_losses_are_those_of_peft) {
    peft_rig p;
    adamw a;
    double worst = 0;
    open_peft(&p, cases[_i / 2], recomputed[_i % 2]);
    open_adamw(&a, &p);
    float *theirs = read_expected(&p, "losses", STEPS * sizeof *theirs);
    for (int step = 0; step < STEPS; step++) {
        double loss = train(&p, step), far = fabs(loss - theirs[step]);
        ck_assert_msg(far <= CURVE_TOLERANCE, "%s, step %d: the loss is %.8g, PEFT's %.8g", p.name,
                      step, loss, theirs[step]);
        worst = fmax(worst, far);
        must(hy_optimizer_clip(&a.state, p.r.compute, 1));
        update_all(&a.state, p.r.compute,
                   (hy_optimizer_step){.lr = number_of(&p, "lr"), .count = step});
        must(p.r.backend->stream_sync(p.r.compute));
    }
    if (getenv("HYBRID_SHOW_DISTANCES")) printf("%s: losses %.1e\n", p.name, worst);
    free(theirs);
    close_adamw(&a);
    close_peft(&p);
}
END_TEST

/* ---- writing --------------------------------------------------------------------------------- */

static hy_status read_either(void *context, int32_t param, int64_t first, int64_t count,
                             float *out) {
    sets_rig *r = context;
    bool is_trained = r->model->params.list[param].is_trainable;
    hy_store *store = &r->stores[is_trained ? SETS_WEIGHTS : SETS_FROZEN];
    uint64_t at = hy_store_offset(store, hy_store_item_of(store, param));
    return hy_store_read(store, r->compute, at + (uint64_t)first * sizeof *out, out,
                         (uint64_t)count * sizeof *out);
}

static hy_hf_writing writing(peft_rig *p, const char *folder, hy_dtype dtype) {
    static const hy_observer nobody = {0};
    return (hy_hf_writing){.folder = folder,
                           .shape = &p->r.model->shape,
                           .params = &p->r.model->params,
                           .dtype = dtype,
                           .shard_size = 1u << 30,
                           .read = read_either,
                           .context = &p->r,
                           .base = p->base,
                           .observer = &nobody};
}

static void open_tensors(const char *folder, hy_safetensors **out) {
    char path[700];
    snprintf(path, sizeof path, "%s/" HY_PEFT_TENSORS, folder);
    must(hy_safetensors_open(path, out));
}

static void adapters_are_the_same(const char *one, const char *other) {
    hy_safetensors *a, *b;
    open_tensors(one, &a);
    open_tensors(other, &b);
    ck_assert_uint_eq(hy_safetensors_count(a), hy_safetensors_count(b));
    for (size_t i = 0; i < hy_safetensors_count(a); i++) {
        const hy_safetensors_entry *x = hy_safetensors_at(a, i), *y;
        y = hy_safetensors_find(b, x->name);
        ck_assert_msg(y != NULL, "%s is not written", x->name);
        ck_assert_int_eq(x->dtype, y->dtype);
        ck_assert_int_eq(x->ndim, y->ndim);
        ck_assert_mem_eq(x->shape, y->shape, (size_t)x->ndim * sizeof x->shape[0]);
        char *left = malloc(x->bytes), *right = malloc(y->bytes);
        must(hy_safetensors_read(a, x, 0, left, x->bytes));
        must(hy_safetensors_read(b, y, 0, right, y->bytes));
        ck_assert_msg(memcmp(left, right, x->bytes) == 0, "%s is other bits", x->name);
        free(left);
        free(right);
    }
    hy_safetensors_close(a);
    hy_safetensors_close(b);
}

static void json_of(const char *folder, hy_json **out) {
    char path[700];
    snprintf(path, sizeof path, "%s/" HY_PEFT_CONFIG, folder);
    must(hy_json_read_file(path, out));
}

/* What PEFT would do with the two is the same. */
static void configs_are_the_same(const char *one, const char *other) {
    static const char *const fields[] = {"use_rslora", "fan_in_fan_out", "use_dora"};
    hy_json *a, *b;
    hy_peft_config x, y;
    must(hy_peft_config_read(one, &x));
    must(hy_peft_config_read(other, &y));
    ck_assert_int_eq(x.rank, y.rank);
    ck_assert_double_eq(x.alpha, y.alpha);
    ck_assert_double_eq(x.dropout, y.dropout);
    json_of(one, &a);
    json_of(other, &b);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        bool left, right;
        must(hy_json_bool(a, hy_json_root(a), fields[i], &left));
        must(hy_json_bool(b, hy_json_root(b), fields[i], &right));
        ck_assert_msg(left == right, "%s differs", fields[i]);
    }
    const char *type, *bias;
    must(hy_json_string(b, hy_json_root(b), "task_type", &type, NULL));
    must(hy_json_string(b, hy_json_root(b), "bias", &bias, NULL));
    ck_assert_str_eq(type, "CAUSAL_LM");
    ck_assert_str_eq(bias, "none");
    hy_json_free(a);
    hy_json_free(b);
}

START_TEST(what_is_written_is_what_was_read) {
    peft_rig p, again;
    char folder[256], written[300];
    hy_safetensors *file;
    hy_peft_config config;
    open_peft(&p, cases[_i], 0);
    temp_folder(folder);
    snprintf(written, sizeof written, "%s/adapter", folder);
    open_tensors(p.adapter, &file);
    hy_hf_writing w = writing(&p, written, hy_safetensors_at(file, 0)->dtype);
    hy_safetensors_close(file);
    w.is_adapter = true;
    must(hy_hf_write(&w));
    adapters_are_the_same(p.adapter, written);
    configs_are_the_same(p.adapter, written);
    must(hy_peft_config_read(written, &config));
    ck_assert_str_eq(config.base, p.base);
    /* and the settings find the same model in it */
    again = (peft_rig){0};
    must(find_adapted(p.base, written, &again.choice.shape, again.trained));
    ck_assert_int_eq(again.choice.shape.adapter.parts, p.choice.shape.adapter.parts);
    ck_assert_double_eq(again.choice.shape.adapter.scale, p.choice.shape.adapter.scale);
    sets_close(&p.r);
    p.choice.shape = again.choice.shape;
    memcpy(p.trained, again.trained, sizeof p.trained);
    open_model(&p);
    must(hy_peft_load(written, p.r.model, &p.r.stores[SETS_WEIGHTS], p.r.compute));
    remove_folder(folder);
    close_peft(&p);
}
END_TEST

/* A list of all layers' paths would be longer than a setting may be. */
START_TEST(modules_of_all_layers_are_named_once) {
    hy_shape shape = {.layers = 40,
                      .width = 16,
                      .heads = 2,
                      .vocab = 20,
                      .context = 8,
                      .has_qkv_bias = true,
                      .has_proj_bias = true,
                      .norm_eps = 1e-5,
                      .adapter = {.rank = 1, .alpha = 1, .scale = 1, .parts = HY_ADAPT_O}};
    hy_model *model;
    hy_json *json;
    hy_text text = {0};
    const char *names[] = {"ln_1", "transformer.h.3.ln_2", "transformer.ln_f"}, *found;
    must(hy_model_create(&shape, &model));
    must(hy_params_mark_beside(&model->params, "*.norm1.*,blocks.3.norm2.*,final_norm.*"));
    must(hy_peft_config_write(&model->shape, &model->params, NULL, &text));
    must(hy_json_parse(text.data, text.size, "a config", &json));
    const hy_json_node *list = hy_json_get(hy_json_root(json), "modules_to_save");
    ck_assert_uint_eq(hy_json_size(list), 3);
    const hy_json_node *node = hy_json_first(list);
    for (int i = 0; i < 3; i++, node = hy_json_next(node)) {
        ck_assert(hy_json_as_string(node, &found, NULL));
        ck_assert_str_eq(found, names[i]);
    }
    hy_json_free(json);
    hy_text_free(&text);
    hy_model_destroy(model);
}
END_TEST

/* Numbers by their place; how many were asked for at a time. */
static hy_status read_made(void *context, int32_t param, int64_t first, int64_t count, float *out) {
    int64_t *most = context;
    if (count > *most) *most = count;
    for (int64_t i = 0; i < count; i++) {
        out[i] = (float)hy_rng_normal(3, HY_RNG_TEST, (uint64_t)(param * 10000000ll + first + i));
    }
    return HY_OK;
}

/* All of a matrix coded at once, and decoded. */
static float *code_whole(const hy_params *params, int32_t index) {
    const hy_param *p = &params->list[index];
    hy_dtype dtype = params->frozen_codes;
    hy_layout_item item = {.dtype = dtype,
                           .count = p->count,
                           .block = hy_param_block(p, dtype),
                           .group = hy_param_group(p, dtype)};
    int64_t blocks = p->count / item.block, most = 0;
    float *numbers = malloc((size_t)p->count * sizeof *numbers),
          *scales = malloc((size_t)blocks * sizeof *scales);
    void *codes = malloc(hy_dtype_bytes(dtype, p->count));
    hy_coding coding;
    must(read_made(&most, index, 0, p->count, numbers));
    must(hy_coding_begin(&coding, p, &item));
    if (hy_coding_looks_first(&coding)) hy_coding_look(&coding, numbers, p->count);
    hy_coding_rows(&coding, numbers, 0, p->count, codes);
    hy_coded_open_scales(item.group, 0, blocks, hy_coding_scales(&coding), scales);
    hy_coded_decode(dtype, codes, 0, p->count, item.block, scales, numbers);
    hy_coding_end(&coding);
    free(codes);
    free(scales);
    return numbers;
}

/* A matrix of more elements than are read at a time, in slices that begin anywhere. */
START_TEST(a_large_matrix_is_quantised_as_a_whole) {
    static const hy_dtype types[] = {HY_NF4, HY_I8, HY_E4M3};
    hy_shape shape = {.layers = 1,
                      .width = 512,
                      .heads = 8,
                      .mlp_width = 2112,
                      .vocab = 96,
                      .context = 8,
                      .is_rms = true,
                      .has_rope = _i < 3,
                      .is_gated = true,
                      .norm_eps = 1e-5,
                      .rope_theta = 10000};
    hy_model *model;
    int64_t most = 0;
    must(hy_model_create(&shape, &model));
    must(hy_model_select(model, "final_norm.weight", types[_i % 3]));
    int32_t up = hy_params_find(&model->params, 1, HY_P_UP), norm = model->params.count - 1;
    float *expected = code_whole(&model->params, up);
    static float some[70000];
    hy_requantise r = hy_requantise_begin(&model->params, read_made, &most);
    int64_t count = model->params.list[up].count;
    for (int64_t at = 0, n = 62; at < count; at += n, n = (n * 7 + 1002) % 69999 / 2 * 2 + 2) {
        if (n > count - at) n = count - at;
        must(hy_requantise_read(&r, up, at, n, some));
        ck_assert_mem_eq(some, expected + at, (size_t)n * sizeof *some);
    }
    ck_assert_int_le(most, 1 << 20);
    must(hy_requantise_read(&r, norm, 0, 4, some)); /* what was not quantised stays */
    float as_they_are[4];
    must(read_made(&most, norm, 0, 4, as_they_are));
    ck_assert_mem_eq(some, as_they_are, sizeof as_they_are);
    hy_requantise_end(&r);
    free(expected);
    hy_model_destroy(model);
}
END_TEST

START_TEST(merged_it_computes_the_same) {
    peft_rig p;
    char folder[256];
    static float beside[SETS_ROWS * VOCAB], merged[SETS_ROWS * VOCAB];
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    open_peft(&p, cases[_i], 0);
    compute_logits(&p, beside);
    temp_folder(folder);
    hy_merge merge = hy_merge_begin(&p.r.model->shape, &p.r.model->params, read_either, &p.r);
    hy_hf_writing w = writing(&p, folder, HY_F32);
    w.read = hy_merge_read;
    w.context = &merge;
    must(hy_hf_write(&w));
    hy_merge_end(&merge);
    sets_close(&p.r);
    snprintf(p.base, sizeof p.base, "%s", folder);
    must(hy_hf_find(folder, &kind, path));
    must(hy_model_files_shape(kind, path, &p.choice.shape));
    p.trained[0] = 0;
    open_model(&p);
    compute_logits(&p, merged);
    double far = worst_difference(merged, beside, SETS_ROWS * vocab_of(&p));
    ck_assert_msg(far <= TOLERANCE, "%s: merged, the logits are off by %.2e", p.name, far);
    remove_folder(folder);
    close_peft(&p);
}
END_TEST

/* ---- folders that are wrong ------------------------------------------------------------------ */

static char spoilt[256];

static void make_spoilt(void) { temp_folder(spoilt); }
static void drop_spoilt(void) { remove_folder(spoilt); }

static void read_part(const char *name, const char *file, char **data, size_t *size) {
    char path[700];
    snprintf(path, sizeof path, "%s/tests/golden/peft/%s/%s", HY_SOURCE_DIR, name, file);
    must(hy_file_read(path, data, size));
}

/* A copy of the file with one text in place of another, the first time it comes. */
static void copy_with(const char *name, const char *file, const char *from, const char *to) {
    char *data;
    size_t size, length = strlen(from), other = strlen(to);
    read_part(name, file, &data, &size);
    char *at = memmem(data, size, from, length);
    ck_assert_msg(at != NULL, "%s/%s has no %s", name, file, from);
    char *made = malloc(size + other);
    size_t before = (size_t)(at - data);
    memcpy(made, data, before);
    memcpy(made + before, to, other);
    memcpy(made + before + other, at + length, size - before - length);
    put_file(spoilt, file, made, size - length + other);
    free(data);
    free(made);
}

static void copy_whole(const char *name, const char *file) { copy_with(name, file, "", ""); }

/* Whether the model has what is to be trained, which sets_open takes for granted. */
static hy_status match_trained(const peft_rig *p) {
    hy_model *model;
    must(hy_model_create(&p->choice.shape, &model));
    hy_status status = hy_model_select(model, p->trained, HY_F32);
    hy_model_destroy(model);
    return status;
}

/* As a run would load it; a folder that is right in all passes. */
static hy_status load_spoilt(const char *base) {
    peft_rig p = {.name = base};
    snprintf(p.base, sizeof p.base, "%s", golden_folder(base));
    HY_TRY(find_adapted(p.base, spoilt, &p.choice.shape, p.trained));
    p.choice.trained = p.trained;
    HY_TRY(match_trained(&p));
    sets_open(&p.r, &p.choice);
    hy_status status = hy_params_mark_beside(&p.r.model->params, p.trained);
    if (status == HY_OK) {
        status = hy_peft_load(spoilt, p.r.model, &p.r.stores[SETS_WEIGHTS], p.r.compute);
    }
    sets_close(&p.r);
    return status;
}

static const struct {
    const char *from, *to, *message;
} configs[] = {
    {"\"peft_type\": \"LORA\"", "\"peft_type\": \"LOHA\"",
     "adapter_config.json: peft_type is \"LOHA\"; accepted: LORA"},
    {"\"peft_type\": \"LORA\",", "", "peft_type is \"\"; accepted: LORA"},
    {"\"r\": 4,", "\"r\": 0,", "r is 0; accepted are 1 to 1024"},
    {"\"r\": 4,", "\"r\": -4,", "r is -4"},
    {"\"r\": 4,", "\"r\": 100000000000,", "r is 100000000000; accepted are 1 to 1024"},
    {"\"r\": 4,", "", "\"r\""},
    {"\"r\": 4,", "\"r\": \"4\",", "\"r\""},
    {"\"r\": 4,", "\"r\": 5,", "lora_A.weight is (4, 32), but this model needs (5, 32)"},
    {"\"lora_alpha\": 8", "\"lora_alpha\": 0", "lora_alpha is 0"},
    {"\"lora_alpha\": 8,", "", "lora_alpha"},
    {"\"use_dora\": false", "\"use_dora\": true", "use_dora is set (DoRA), which is not supported"},
    {"\"bias\": \"none\"", "\"bias\": \"all\"", "bias is \"all\"; accepted: none"},
    {"\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 2}", "rank_pattern is set"},
    {"\"alpha_pattern\": {}", "\"alpha_pattern\": {\"q_proj\": 2}", "alpha_pattern is set"},
    {"\"layers_to_transform\": null", "\"layers_to_transform\": [0]", "layers_to_transform is set"},
    {"\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"",
     "init_lora_weights is \"pissa\""},
    {"\"init_lora_weights\": true", "\"init_lora_weights\": \"olora\"",
     "init_lora_weights is \"olora\""},
    {"\"kasa_config\": null", "\"kasa_config\": {\"a\": 1}", "kasa_config is set"},
    {"\"use_bdlora\": null", "\"use_bdlora\": {\"a\": 1}", "use_bdlora is set"},
    {"\"up_proj\"", "\"c_fc\"",
     "\"c_fc\" is not a matrix of this model; accepted: q_proj, k_proj, v_proj, o_proj, gate_proj, "
     "up_proj, down_proj"},
    {"\"up_proj\"", "\"lm_head\"", "\"lm_head\" is not a matrix of this model"},
    {"\"target_modules\": [", "\"target_modules\": \".*_proj\", \"other\": [",
     "target_modules is the pattern \".*_proj\""},
    {"\"target_modules\": [", "\"target_modules\": [], \"other\": [", "target_modules is empty"},
    {"\"target_modules\": [", "\"target_modules\": [3], \"other\": [",
     "target_modules contains entries that are not names"},
    {"\"modules_to_save\": null", "\"modules_to_save\": [\"score\"]",
     "\"score\" matches no parameter"},
    {"\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]",
     "tensor \"base_model.model.lm_head.weight\" is missing"},
    {"{", "", "adapter_config.json"},
};
enum { CONFIGS = sizeof configs / sizeof configs[0] };

START_TEST(a_config_that_we_do_not_compute_is_refused_by_name) {
    copy_with("llama", HY_PEFT_CONFIG, configs[_i].from, configs[_i].to);
    copy_whole("llama", HY_PEFT_TENSORS);
    must_fail(load_spoilt("llama"), HY_ERR_INPUT, configs[_i].message);
}
END_TEST

START_TEST(what_changes_nothing_is_read) {
    static const char *const harmless[][2] = {
        {"\"init_lora_weights\": true", "\"init_lora_weights\": \"gaussian\""},
        {"\"init_lora_weights\": true", "\"init_lora_weights\": false"},
        {"\"eva_config\": null", "\"eva_config\": {\"rho\": 1.0}"},
        {"\"peft_version\"", "\"a_field_of_tomorrow\": null, \"peft_version\""},
        {"\"target_modules\": [", "\"target_modules\": \"all-linear\", \"other\": ["},
        {"\"up_proj\"", "\"mlp.up_proj\""},
        {"\"base_model_name_or_path\": \"llama\"", "\"base_model_name_or_path\": null"},
    };
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
        copy_with("llama", HY_PEFT_CONFIG, harmless[i][0], harmless[i][1]);
        copy_whole("llama", HY_PEFT_TENSORS);
        must(load_spoilt("llama"));
    }
}
END_TEST

static const struct {
    const char *from, *to, *message;
} tensors[] = {
    {"layers.0.mlp.up_proj.lora_A", "layers.7.mlp.up_proj.lora_A",
     "tensor \"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight\" is missing"},
    {"F32", "I32", "is i32; accepted are fp32, bf16 and fp16"},
    {"[4,32]", "[32,4]", "is (32, 4), but this model needs (4, 32)"},
    {"\"dtype\"", "\"dtyqe\"", "adapter_model.safetensors"},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0] };

START_TEST(tensors_that_are_wrong_are_named) {
    copy_whole("llama", HY_PEFT_CONFIG);
    copy_with("llama", HY_PEFT_TENSORS, tensors[_i].from, tensors[_i].to);
    must_fail(load_spoilt("llama"), HY_ERR_INPUT, tensors[_i].message);
}
END_TEST

START_TEST(tensors_are_those_that_the_config_names) {
    copy_with("llama", HY_PEFT_CONFIG, "\"up_proj\"", "\"down_proj\"");
    copy_whole("llama", HY_PEFT_TENSORS);
    must_fail(load_spoilt("llama"), HY_ERR_INPUT,
              "up_proj.lora_A.weight\" does not match this model");
    copy_with("mistral", HY_PEFT_CONFIG, "\"v_proj\"", "\"v_proj\", \"k_proj\"");
    copy_whole("mistral", HY_PEFT_TENSORS);
    must_fail(load_spoilt("mistral"), HY_ERR_INPUT,
              "layers.0.self_attn.k_proj.lora_A.weight\" is missing");
    copy_with("qwen3", HY_PEFT_CONFIG, "\"model.layers.0.self_attn.o_proj\",", "");
    copy_with("qwen3", HY_PEFT_TENSORS, "layers.0.self_attn.o_proj", "layers.9.self_attn.o_proj");
    must_fail(load_spoilt("qwen3"), HY_ERR_INPUT,
              "layers.0.self_attn.o_proj.lora_A.weight\" is missing");
}
END_TEST

/* Where the file has the numbers of a tensor. */
static size_t place_in_file(const char *data, size_t size, const char *name) {
    char *at = memmem(data, size, name, strlen(name));
    uint64_t header;
    unsigned long long begin;
    memcpy(&header, data, sizeof header);
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "data_offsets");
    ck_assert_int_eq(sscanf(strchr(at, '['), "[%llu", &begin), 1);
    return sizeof header + (size_t)header + (size_t)begin;
}

START_TEST(a_value_that_is_not_a_number_is_reported_with_its_tensor) {
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    static const char *const words[] = {"holds nan", "holds inf", "holds -inf"};
    char *data;
    size_t size;
    copy_whole("llama", HY_PEFT_CONFIG);
    read_part("llama", HY_PEFT_TENSORS, &data, &size);
    size_t at = place_in_file(data, size, "layers.1.mlp.up_proj.lora_B");
    memcpy(data + at + 5 * sizeof *wrong, &wrong[_i], sizeof *wrong); /* rank 4: row 1, column 1 */
    put_file(spoilt, HY_PEFT_TENSORS, data, size);
    must_fail(load_spoilt("llama"), HY_ERR_INPUT, words[_i]);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "layers.1.mlp.up_proj.lora_B.weight"));
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "(row 1, column 1)"));
    ck_assert_ptr_nonnull(strstr(hy_error_message(), HY_PEFT_TENSORS));
    free(data);
}
END_TEST

/* PEFT trains embedding and head separately by default; a tied model cannot. */
START_TEST(a_table_for_two_is_there_twice_and_the_same) {
    static const char table[] = "base_model.model.model.embed_tokens.weight",
                      head[] = "base_model.model.lm_head.weight";
    char *data;
    size_t size;
    uint64_t header; /* its bytes, which stand first */
    copy_with("qwen2-tied", HY_PEFT_CONFIG, "\"modules_to_save\": [",
              "\"modules_to_save\": [\"lm_head\", ");
    copy_whole("qwen2-tied", HY_PEFT_TENSORS);
    must(load_spoilt("qwen2"));
    read_part("qwen2-tied", HY_PEFT_TENSORS, &data, &size);
    memcpy(&header, data, sizeof header);
    data[sizeof header + header] ^= 0x10; /* the first tensor is the head */
    put_file(spoilt, HY_PEFT_TENSORS, data, size);
    must_fail(load_spoilt("qwen2"), HY_ERR_INPUT, "differ, but in this model they share one table");
    free(data);
    copy_with("qwen2-tied", HY_PEFT_TENSORS, head, "base_model.model.lm_heat.weight");
    must_fail(
        load_spoilt("qwen2"), HY_ERR_INPUT,
        "lm_head.weight\" is missing: the adapter belongs to another model or to other modules "
        "(in this model the embedding and the head share one table)");
    copy_with("qwen2-tied", HY_PEFT_TENSORS, table, "base_model.model.model.embed_tokenz.weight");
    must_fail(load_spoilt("qwen2"), HY_ERR_INPUT, "(in this model the embedding");
}
END_TEST

/* transformers 4 calls it embed_out, as its files still do; 5 calls it lm_head. */
START_TEST(the_head_of_gpt_neox_is_read_under_both_names) {
    static const char head[] = "lm_head", old[] = "embed_out", type[] = "pt\"}";
    char *data;
    size_t size;
    copy_with("neox-head", HY_PEFT_CONFIG, head, old);
    copy_whole("neox-head", HY_PEFT_TENSORS);
    must(load_spoilt("../families/neox-old"));
    read_part("neox-head", HY_PEFT_TENSORS, &data, &size);
    char *at = memmem(data, size, head, strlen(head)),
         *room = memmem(data, size, type, strlen(type)); /* "pt" makes room for the longer name */
    memmove(room, room + 2, (size_t)(at - room) - 2);
    memcpy(at - 2, old, strlen(old));
    put_file(spoilt, HY_PEFT_TENSORS, data, size);
    free(data);
    must(load_spoilt("../families/neox-old"));
}
END_TEST

/* Its base was the class for text and images, which has the text model one level deeper. */
START_TEST(an_adapter_of_the_multimodal_class_is_read) {
    static const char own[] = "base_model.model.model.", deeper[] = "language_model.";
    char *data, *to;
    size_t size;
    uint64_t header, padded;
    copy_whole("qwen35", HY_PEFT_CONFIG);
    read_part("qwen35", HY_PEFT_TENSORS, &data, &size);
    memcpy(&header, data, sizeof header);
    char *begin = data + sizeof header, *end = begin + header, *out = calloc(3, size);
    ck_assert_ptr_nonnull(out);
    to = out + sizeof header;
    for (const char *at = begin, *next; at < end; at = next) {
        const char *name = memmem(at, (size_t)(end - at), own, strlen(own));
        next = name ? name + strlen(own) : end;
        memcpy(to, at, (size_t)(next - at));
        to += next - at;
        if (name) to = stpcpy(to, deeper);
    }
    while ((to - out) % 8) *to++ = ' ';
    padded = (uint64_t)(to - out) - sizeof header;
    memcpy(out, &padded, sizeof padded);
    memcpy(to, end, size - sizeof header - header);
    put_file(spoilt, HY_PEFT_TENSORS, out, (size_t)(to - out) + size - sizeof header - header);
    must(load_spoilt("../families/qwen35-grouped"));
    free(out);
    free(data);
}
END_TEST

START_TEST(an_adapter_of_another_model_is_refused) {
    copy_whole("gpt2", HY_PEFT_CONFIG);
    copy_whole("gpt2", HY_PEFT_TENSORS);
    must(load_spoilt("gpt2"));
    must_fail(load_spoilt("gpt2-untied"), HY_ERR_INPUT,
              "c_fc.lora_B.weight is (40, 3), but this model needs (24, 3)");
    must_fail(load_spoilt("llama"), HY_ERR_INPUT,
              "is not a matrix of this model; accepted: q_proj");
    copy_whole("llama", HY_PEFT_CONFIG);
    copy_whole("llama", HY_PEFT_TENSORS);
    must_fail(load_spoilt("ministral"), HY_ERR_INPUT, "layers.2.self_attn.q_proj.lora_A.weight");
}
END_TEST

START_TEST(incomplete_files_are_reported_with_their_path) {
    char *data;
    size_t size;
    must_fail(load_spoilt("llama"), HY_ERR_INPUT, "it has no adapter_config.json");
    copy_whole("llama", HY_PEFT_CONFIG);
    ck_assert_int_ne(load_spoilt("llama"), HY_OK); /* nothing else is there */
    ck_assert_ptr_nonnull(strstr(hy_error_message(), HY_PEFT_TENSORS));
    put_file(spoilt, "adapter_model.bin", "x", 1);
    must_fail(load_spoilt("llama"), HY_ERR_INPUT, "adapter_model.bin is not read");
    read_part("llama", HY_PEFT_TENSORS, &data, &size);
    const size_t lengths[] = {0, 7, 8, 100, size / 2, size - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        put_file(spoilt, HY_PEFT_TENSORS, data, lengths[i]);
        must_fail(load_spoilt("llama"), HY_ERR_INPUT, HY_PEFT_TENSORS);
    }
    put_file(spoilt, HY_PEFT_TENSORS, data, size);
    must(load_spoilt("llama"));
    put_file(spoilt, HY_PEFT_CONFIG, "", 0);
    must_fail(load_spoilt("llama"), HY_ERR_INPUT, HY_PEFT_CONFIG);
    free(data);
}
END_TEST

static Suite *peft_suite(void) {
    Suite *suite = suite_create("PEFT");
    TCase *same = tcase_create("the same as PEFT"), *wrong = tcase_create("refusals");
    tcase_set_timeout(same, 120);
    tcase_add_loop_test(same, logits_are_those_of_peft, 0, 2 * CASES);
    tcase_add_loop_test(same, gradients_are_those_of_peft, 0, 2 * CASES);
    tcase_add_loop_test(same, fifty_losses_are_those_of_peft, 0, 2 * CASES);
    tcase_add_loop_test(same, what_is_written_is_what_was_read, 0, CASES);
    tcase_add_test(same, modules_of_all_layers_are_named_once);
    tcase_add_loop_test(same, merged_it_computes_the_same, 0, CASES);
    tcase_add_loop_test(same, a_large_matrix_is_quantised_as_a_whole, 0, 6);
    tcase_add_checked_fixture(wrong, make_spoilt, drop_spoilt);
    tcase_add_loop_test(wrong, a_config_that_we_do_not_compute_is_refused_by_name, 0, CONFIGS);
    tcase_add_test(wrong, what_changes_nothing_is_read);
    tcase_add_loop_test(wrong, tensors_that_are_wrong_are_named, 0, TENSORS);
    tcase_add_test(wrong, tensors_are_those_that_the_config_names);
    tcase_add_loop_test(wrong, a_value_that_is_not_a_number_is_reported_with_its_tensor, 0, 3);
    tcase_add_test(wrong, a_table_for_two_is_there_twice_and_the_same);
    tcase_add_test(wrong, the_head_of_gpt_neox_is_read_under_both_names);
    tcase_add_test(wrong, an_adapter_of_the_multimodal_class_is_read);
    tcase_add_test(wrong, an_adapter_of_another_model_is_refused);
    tcase_add_test(wrong, incomplete_files_are_reported_with_their_path);
    suite_add_tcase(suite, same);
    suite_add_tcase(suite, wrong);
    return suite;
}

HY_TEST_MAIN(peft_suite)
