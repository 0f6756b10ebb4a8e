/* test_families.c: folders of every model family, compared with transformers.
 *
 * Each folder of tests/golden/families is a small random model as transformers saves it
 * (make_families.py there). It is read as a run reads it, and logits, gradients, losses of 20 AdamW
 * steps and greedy tokens are compared in fp32; then it is written and compared with the original.
 * A new folder needs no code. HYBRID_EXPORTS=DIR keeps what is written in DIR, for
 * golden/check_exports.py; HYBRID_SHOW_DISTANCES=1 prints distances. */
#include "config/derived.h"
#include "golden/compare.h"
#include "hf_folders.h"
#include "hub/hf_export.h"
#include "hub/hf_load.h"
#include "model/decode.h"

#define BOUND 1e-5
enum { GREEDY = 40, STEPS = 20 };

static char **cases;
static size_t case_count;

static const char *folder_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/families/%s", HY_SOURCE_DIR, name);
    return path;
}

static void show(const golden *g, const char *what, double far) {
    if (getenv("HYBRID_SHOW_DISTANCES")) printf("%s: %s %.1e\n", g->name, what, far);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The shape through the settings, as a run finds it. A run may set a longer context. */
static hy_status find_shape(const char *folder, int32_t seq, hy_shape *shape) {
    hy_config *config;
    must(hy_config_create(&config));
    hy_status status = hy_config_set(config, "model", folder, HY_FROM_CALLER);
    if (status == HY_OK) status = hy_shape_from_settings(hy_config_settings(config), shape);
    if (status == HY_OK && shape->context < seq) shape->context = seq;
    hy_config_destroy(config);
    return status;
}

static void open_expected(golden *g, const char *name) {
    char path[600];
    *g = (golden){.name = name, .dtype = HY_F32, .owns_backend = true};
    snprintf(path, sizeof path, "%s/expected.safetensors", folder_of(name));
    must(hy_safetensors_open(path, &g->file));
    g->batch = (int32_t)entry_of(g, "tokens")->shape[0];
    g->seq = (int32_t)entry_of(g, "tokens")->shape[1];
}

static void open_family(golden *g, const char *name, const char *folder) {
    hy_shape shape;
    open_expected(g, name);
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 2}, &g->backend));
    must(g->backend->stream_create(g->backend, "families", &g->stream));
    must(find_shape(folder, g->seq, &shape));
    must(hy_model_create(&shape, &g->model));
    take_memory(g);
    load_batch(g);
    spoil(g, g->weights.data, g->weights.layout.bytes);
    must(hy_hf_load_weights(folder, g->model, &g->weights, g->stream, &(hy_load_options){0}));
}

/* ---- computing ------------------------------------------------------------------------------- */

static double logits_far(golden *g) {
    trial t;
    open_trial(&t, g, 0, 1, false);
    double far = logits_distance(&t);
    close_trial(&t);
    return far;
}

START_TEST(logits_are_those_of_transformers) {
    golden g;
    open_family(&g, cases[_i], folder_of(cases[_i]));
    double far = logits_far(&g);
    show(&g, "logits", far);
    ck_assert_msg(far <= BOUND, "%s: the logits are off by %.2e", g.name, far);
    close_golden(&g);
}
END_TEST

static hy_status read_store(void *context, int32_t param, int64_t first, int64_t count,
                            float *out) {
    const float *values = hy_store_backing(context, param);
    memcpy(out, values + first, (size_t)count * sizeof *out);
    return HY_OK;
}

/* Writes a store as a model folder: so tensors have the names and the layout of the family. */
static hy_status write_store(const golden *g, hy_store *store, const char *source, hy_dtype dtype,
                             const char *folder) {
    static const hy_observer nobody = {0};
    return hy_hf_write(&(hy_hf_writing){.folder = folder,
                                        .source = source,
                                        .shape = &g->model->shape,
                                        .params = &g->model->params,
                                        .dtype = dtype,
                                        .shard_size = 1u << 30,
                                        .read = read_store,
                                        .context = store,
                                        .observer = &nobody});
}

static void *read_found(hy_hf_found found) {
    void *data = malloc(found.entry->bytes);
    ck_assert_ptr_nonnull(data);
    must(hy_safetensors_read(found.file, found.entry, 0, data, found.entry->bytes));
    return data;
}

/* The worst gradient: each tensor of the folder that PyTorch has a gradient of. */
static double gradients_far(const golden *g, const char *folder, char worst[HY_HF_NAME_MAX]) {
    hy_hf_tensors *ours;
    double far = 0;
    size_t compared = 0, expected = 0;
    must(hy_hf_tensors_open(folder, &ours));
    for (size_t i = 0; i < hy_safetensors_count(g->file); i++) {
        expected += strncmp(hy_safetensors_at(g->file, i)->name, "grad.", 5) == 0;
    }
    for (size_t i = 0; i < hy_hf_tensors_count(ours); i++) {
        hy_hf_found found = hy_hf_tensors_at(ours, i);
        char name[HY_HF_NAME_MAX + 8];
        snprintf(name, sizeof name, "grad.%s", found.entry->name);
        const hy_safetensors_entry *entry = hy_safetensors_find(g->file, name);
        if (!entry) continue; /* zero but for rounding */
        ck_assert_uint_eq(entry->bytes, found.entry->bytes);
        float *a = read_found(found), *b = bytes_of(g, entry);
        double here = distance(a, b, (int64_t)(entry->bytes / sizeof *a));
        if (here >= far) snprintf(worst, HY_HF_NAME_MAX, "%s", found.entry->name);
        far = fmax(far, here);
        compared++;
        free(a);
        free(b);
    }
    ck_assert_msg(compared == expected, "%s: %zu of %zu gradients have a tensor", g->name, compared,
                  expected);
    hy_hf_tensors_close(ours);
    return far;
}

START_TEST(loss_and_gradients_are_those_of_pytorch) {
    golden g;
    trial t;
    char folder[256], out[300], worst[HY_HF_NAME_MAX] = "";
    open_family(&g, cases[_i], folder_of(cases[_i]));
    snprintf(out, sizeof out, "%s/gradients", temp_folder(folder));
    for (int recompute = 0; recompute <= HY_KEEP_ALL; recompute += HY_KEEP_ALL) {
        open_trial(&t, &g, recompute, 2, true);
        train(&t);
        double loss = loss_distance(&g);
        ck_assert_msg(loss <= BOUND, "%s: the loss is off by %.2e", g.name, loss);
        must(write_store(&g, &g.grads, NULL, HY_F32, out));
        double far = gradients_far(&g, out, worst);
        show(&g, "gradients", far);
        ck_assert_msg(far <= BOUND, "%s, recompute %d: the gradient of %s is off by %.2e", g.name,
                      recompute, worst, far);
        close_trial(&t);
    }
    remove_folder(folder);
    close_golden(&g);
}
END_TEST

START_TEST(twenty_adamw_steps_follow_pytorch) {
    golden g;
    trial t;
    double worst = 0;
    open_family(&g, cases[_i], folder_of(cases[_i]));
    if (hy_safetensors_find(g.file, "losses")) {
        float *losses = bytes_of(&g, entry_of(&g, "losses"));
        hy_optimizer adamw = adamw_of(&g);
        ck_assert_uint_eq(entry_of(&g, "losses")->bytes, STEPS * sizeof *losses);
        open_trial(&t, &g, 0, 1, true);
        clear_moments(&g);
        for (int step = 0; step < STEPS; step++) {
            adamw_step(&t, &adamw, double_of(&g, "lr"), step);
            double loss = mean_loss(&g), far = relative(loss, losses[step]);
            ck_assert_msg(far <= BOUND, "%s, step %d: the loss is %.8g, PyTorch's %.8g", g.name,
                          step, loss, losses[step]);
            worst = fmax(worst, far);
        }
        show(&g, "losses", worst);
        close_trial(&t);
        free(losses);
    }
    close_golden(&g);
}
END_TEST

/* ---- decoding -------------------------------------------------------------------------------- */

static int32_t best_of(const float *logits, int32_t vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

static void check_greedy(golden *g, hy_decoder *decoder) {
    int32_t prompt = int_of(g, "prompt"), vocab = g->model->shape.vocab, next;
    int32_t *tokens = bytes_of(g, entry_of(g, "tokens"));
    int32_t *expected = bytes_of(g, entry_of(g, "greedy"));
    float *logits = malloc((size_t)vocab * sizeof *logits);
    ck_assert_uint_eq(entry_of(g, "greedy")->bytes, GREEDY * sizeof *expected);
    must(hy_decoder_take(decoder, g->stream, &g->weights, NULL, tokens, prompt, logits));
    for (int i = 0; i < GREEDY; i++) {
        next = best_of(logits, vocab);
        ck_assert_msg(next == expected[i], "%s: token %d is %d, transformers has %d", g->name, i,
                      next, expected[i]);
        must(hy_decoder_take(decoder, g->stream, &g->weights, NULL, &next, 1, logits));
    }
    free(tokens);
    free(expected);
    free(logits);
}

START_TEST(greedy_tokens_are_those_of_transformers) {
    golden g;
    hy_decoder *decoder;
    void *memory;
    open_family(&g, cases[_i], folder_of(cases[_i]));
    hy_decoder_options options = {.context = int_of(&g, "prompt") + GREEDY, .dtype = HY_F32};
    must(hy_decoder_create(g.model, g.backend, &options, &decoder));
    must(g.backend->alloc(g.backend, HY_DEVICE, decoder->bytes, &memory));
    memset(memory, 0xff, decoder->bytes);
    must(hy_decoder_place(decoder, g.stream, memory));
    check_greedy(&g, decoder);
    hy_decoder_destroy(decoder);
    g.backend->release(g.backend, HY_DEVICE, memory, 0);
    close_golden(&g);
}
END_TEST

/* ---- writing --------------------------------------------------------------------------------- */

static bool same_json(const hy_json_node *a, const hy_json_node *b);

/* Every member of `a` is in `b` with the same value. */
static bool has_members(const hy_json_node *a, const hy_json_node *b) {
    for (const hy_json_node *m = hy_json_first(a); m; m = hy_json_next(m)) {
        const char *key = hy_json_key(m);
        if (strcmp(key, "transformers_version") == 0) continue;
        if (!hy_json_get(b, key) || !same_json(m, hy_json_get(b, key))) {
            printf("config.json: %s differs\n", key);
            return false;
        }
    }
    return true;
}

static bool same_json(const hy_json_node *a, const hy_json_node *b) {
    const char *s, *t;
    size_t m, n;
    double x, y;
    bool p, q;
    if (hy_json_type_of(a) != hy_json_type_of(b)) return false;
    if (hy_json_type_of(a) == HY_JSON_OBJECT) return has_members(a, b) && has_members(b, a);
    if (hy_json_as_double(a, &x) && hy_json_as_double(b, &y)) return x == y;
    if (hy_json_as_bool(a, &p) && hy_json_as_bool(b, &q)) return p == q;
    if (hy_json_as_string(a, &s, &m) && hy_json_as_string(b, &t, &n)) {
        return m == n && memcmp(s, t, n) == 0;
    }
    if (hy_json_size(a) != hy_json_size(b)) return false;
    for (a = hy_json_first(a), b = hy_json_first(b); a; a = hy_json_next(a), b = hy_json_next(b)) {
        if (!same_json(a, b)) return false;
    }
    return true;
}

static hy_json *config_of(const char *folder) {
    char path[700];
    hy_json *json;
    snprintf(path, sizeof path, "%s/config.json", folder);
    must(hy_json_read_file(path, &json));
    return json;
}

/* A config.json of an older transformers may be written in today's form. */
static void configs_are_the_same(const char *golden_path_of, const char *out) {
    hy_json *a = config_of(golden_path_of), *b = config_of(out);
    bool is_old = hy_json_get(hy_json_root(a), "torch_dtype");
    ck_assert_msg(is_old || same_json(hy_json_root(a), hy_json_root(b)), "%s/config.json", out);
    hy_json_free(a);
    hy_json_free(b);
}

/* What is written is the original, and computes the same. */
static void check_written(golden *g, const char *source, const char *original, const char *out) {
    golden again;
    hy_hf_config config;
    must(hy_hf_config_look(original, &config));
    must(write_store(g, &g->weights, source, config.dtype, out));
    models_are_the_same(original, out);
    if (source == original) configs_are_the_same(original, out);
    open_family(&again, g->name, out);
    shapes_are_the_same(&g->model->shape, &again.model->shape);
    double far = logits_far(&again);
    ck_assert_msg(far <= BOUND, "%s: logits of what is written are off by %.2e", g->name, far);
    close_golden(&again);
}

/* With the folder that it came from, and without. The text model of a multimodal folder is written
 * as that of another case. */
START_TEST(what_is_written_is_what_was_read) {
    golden g;
    char folder[256], out[600], source[512], original[512];
    const char *kept = getenv("HYBRID_EXPORTS");
    snprintf(source, sizeof source, "%s", folder_of(cases[_i]));
    open_family(&g, cases[_i], source);
    const char *text = hy_safetensors_metadata(g.file, "text");
    snprintf(original, sizeof original, "%s", folder_of(text ? text : g.name));
    temp_folder(folder);
    snprintf(out, sizeof out, "%s/%s", kept ? kept : folder, g.name);
    check_written(&g, text ? source : original, original, out);
    snprintf(out, sizeof out, "%s/%s.bare", kept ? kept : folder, g.name);
    check_written(&g, NULL, original, out);
    remove_folder(folder);
    close_golden(&g);
}
END_TEST

/* ---- published models ------------------------------------------------------------------------ */

/* Their config.json leaves out what the class of transformers has as default, which is not read
 * yet. */
static bool needs_defaults(const char *name) {
    return strcmp(name, "gemma-3-4b") == 0 || strcmp(name, "gemma-3-12b") == 0 ||
           strcmp(name, "gemma-3-27b") == 0;
}

static void check_count(const char *name, long long parameters, const char *json) {
    hy_hf_config config;
    hy_model *model;
    hy_status status = hy_hf_config_parse(json, strlen(json), name, &config);
    ck_assert_msg((status == HY_OK) != needs_defaults(name), "%s: %s", name,
                  status == HY_OK ? "it is read: change needs_defaults" : hy_error_message());
    if (status != HY_OK) return;
    must(hy_model_create(&config.shape, &model));
    int64_t stored = 0; /* without padding */
    for (int32_t i = 0; i < model->params.count; i++) stored += model->params.list[i].stored;
    ck_assert_msg(stored == parameters, "%s has %lld parameters, published are %lld", name,
                  (long long)stored, parameters);
    hy_model_destroy(model);
    hy_hf_config_free(&config);
}

START_TEST(published_configs_have_the_published_number_of_parameters) {
    char *text, name[64];
    size_t size;
    int count = 0, json;
    long long parameters;
    must(hy_file_read(HY_SOURCE_DIR "/tests/golden/published.txt", &text, &size));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), count++) {
        ck_assert_int_eq(sscanf(line, "%63s %lld %n", name, &parameters, &json), 2);
        check_count(name, parameters, line + json);
    }
    ck_assert_int_ge(count, 30);
    free(text);
}
END_TEST

/* Families with defaults that are not read yet: caps of Gemma 2, rope of OLMo 3 and Ministral 3. */
static bool differs_in_defaults(const char *sparse) {
    return strstr(sparse, "\"gemma2\"") || strstr(sparse, "\"olmo3\"") ||
           strstr(sparse, "\"ministral3\"");
}

/* A sparse config.json is refused, or it has the shape of the whole one. */
static void check_defaults(const char *sparse, const char *whole) {
    hy_hf_config a, b;
    hy_text one = {0}, other = {0};
    must(hy_hf_config_parse(whole, strlen(whole), "whole", &b));
    if (hy_hf_config_parse(sparse, strlen(sparse), "sparse", &a) == HY_OK) {
        must(hy_hf_config_write(&a.shape, HY_F32, NULL, NULL, &one));
        must(hy_hf_config_write(&b.shape, HY_F32, NULL, NULL, &other));
        bool is_same = strcmp(one.data, other.data) == 0;
        ck_assert_msg(is_same != differs_in_defaults(sparse),
                      "%s: read as %s, transformers reads %s", sparse, one.data, other.data);
        hy_hf_config_free(&a);
    }
    hy_hf_config_free(&b);
    hy_text_free(&one);
    hy_text_free(&other);
}

START_TEST(fields_left_out_have_the_defaults_of_transformers) {
    char *text, *tab;
    size_t size;
    int count = 0;
    must(hy_file_read(HY_SOURCE_DIR "/tests/golden/defaults.txt", &text, &size));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), count++) {
        ck_assert_ptr_nonnull(tab = strchr(line, '\t'));
        *tab = 0;
        check_defaults(line, tab + 1);
    }
    ck_assert_int_ge(count, 10);
    free(text);
}
END_TEST

static Suite *families_suite(void) {
    Suite *suite = suite_create("families");
    TCase *tc = tcase_create("transformers");
    if (hy_dir_list(folder_of(""), &cases, &case_count) != HY_OK) exit(EXIT_FAILURE);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, logits_are_those_of_transformers, 0, (int)case_count);
    tcase_add_loop_test(tc, loss_and_gradients_are_those_of_pytorch, 0, (int)case_count);
    tcase_add_loop_test(tc, twenty_adamw_steps_follow_pytorch, 0, (int)case_count);
    tcase_add_loop_test(tc, greedy_tokens_are_those_of_transformers, 0, (int)case_count);
    tcase_add_loop_test(tc, what_is_written_is_what_was_read, 0, (int)case_count);
    tcase_add_test(tc, fields_left_out_have_the_defaults_of_transformers);
    tcase_add_test(tc, published_configs_have_the_published_number_of_parameters);
    suite_add_tcase(suite, tc);
    return suite;
}

HY_TEST_MAIN(families_suite)
