/* test_families.c: folders of every model family, compared with transformers.
 *
 * Each folder of tests/golden/families is a small random model as transformers saves it
 * (make_families.py there). It is read as a run reads it, and logits, gradients, losses of 20 AdamW
 * steps and greedy tokens are compared in fp32; then it is written and compared with the original.
 * A new folder needs no code. HYBRID_EXPORTS=DIR keeps what is written in DIR, for
 * golden/check_exports.py; HYBRID_SHOW_DISTANCES=1 prints distances. */
#include "golden/families.h"

#define BOUND 1e-5
enum { STEPS = 20 };

static void show(const golden *g, const char *what, double far) {
    if (getenv("HYBRID_SHOW_DISTANCES")) printf("%s: %s %.1e\n", g->name, what, far);
}

/* ---- computing ------------------------------------------------------------------------------- */

START_TEST(logits_are_those_of_transformers) {
    golden g;
    open_family(&g, cases[_i], folder_of(cases[_i]));
    double far = logits_far(&g);
    show(&g, "logits", far);
    ck_assert_msg(far <= BOUND, "%s: the logits are off by %.2e", g.name, far);
    close_golden(&g);
}
END_TEST

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

START_TEST(greedy_tokens_are_those_of_transformers) {
    golden g;
    open_family(&g, cases[_i], folder_of(cases[_i]));
    check_greedy(&g);
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

/* With the folder that it came from, and without: then the text model of a multimodal folder is
 * written as that of another case. */
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
    check_written(&g, source, source, out);
    snprintf(out, sizeof out, "%s/%s.bare", kept ? kept : folder, g.name);
    check_written(&g, NULL, original, out);
    remove_folder(folder);
    close_golden(&g);
}
END_TEST

/* A run keeps the small files of the folder that it started from, but not the parts for images. */
START_TEST(without_the_parts_for_images_the_text_model_is_written) {
    static const char name[] = "qwen35-multimodal";
    golden g;
    char folder[256], out[300];
    open_family(&g, name, folder_of(name));
    snprintf(out, sizeof out, "%s/text", temp_folder(folder));
    must(write_store_from(&g, &g.weights, folder_of(name), folder, HY_BF16, out));
    models_are_the_same(folder_of("qwen35-grouped"), out);
    hy_json *json = config_of(out);
    const char *type = "";
    ck_assert(hy_json_as_string(hy_json_get(hy_json_root(json), "model_type"), &type, NULL));
    ck_assert_str_eq(type, "qwen3_5_text");
    hy_json_free(json);
    remove_folder(folder);
    close_golden(&g);
}
END_TEST

/* A copy of a golden folder with one tensor more. */
static void copy_with_tensor(const char *name, const char *folder, const char *tensor,
                             hy_dtype dtype) {
    static const float data[4] = {1, 2, 3, 4};
    char path[700];
    hy_hf_tensors *from;
    hy_safetensors_writer *out;
    hy_safetensors_entry entries[100];
    size_t count;
    must(hy_dir_make(folder));
    must(hy_hf_copy_side_files(folder_of(name), folder, NULL));
    snprintf(path, sizeof path, "%s/config.json", folder_of(name));
    must(hy_hf_copy_file(path, folder, "config.json"));
    must(hy_hf_tensors_open(folder_of(name), &from));
    count = hy_hf_tensors_count(from);
    ck_assert_uint_lt(count, 100);
    for (size_t i = 0; i < count; i++) entries[i] = *hy_hf_tensors_at(from, i).entry;
    entries[count] =
        (hy_safetensors_entry){.name = tensor, .dtype = dtype, .ndim = 1, .shape = {4}};
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    must(hy_safetensors_create(path, entries, count + 1, NULL, &out));
    for (size_t i = 0; i < count; i++) {
        void *bytes = read_found(hy_hf_tensors_at(from, i));
        must(hy_safetensors_put(out, bytes, entries[i].bytes));
        free(bytes);
    }
    must(hy_safetensors_put(out, data, 4 * hy_dtype_size(dtype)));
    must(hy_safetensors_finish(out, NULL, NULL));
    hy_hf_tensors_close(from);
}

static void keep_warning(void *text, hy_message_level level, const char *message) {
    if (level == HY_WARNING) snprintf(text, 600, "%s", message);
}

/* Tensors beside the text model stay in the folder, or a warning names the reason. */
START_TEST(what_is_left_out_is_named_with_its_reason) {
    static const struct {
        const char *name, *tensor;
        hy_dtype dtype;
        const char *type, *reason; /* NULL: the tensor is kept */
    } changes[] = {
        {"qwen35-grouped", "mtp.norm.weight", HY_BF16, NULL, NULL},
        {"qwen35-multimodal", "mtp.norm.weight", HY_BF16, NULL, NULL},
        {"qwen35-grouped", "mtp.norm.weight", HY_BF16, "nf4",
         " without mtp.norm.weight, because --type quantises it"},
        {"qwen35-grouped", "mtp.norm.weight", HY_I32, NULL,
         "tensor \"mtp.norm.weight\" is i32 and cannot be copied; accepted: fp32"},
        {"qwen35-multimodal", "mtp.norm.weight", HY_BF16, "int8", "because --type quantises it"},
        {"qwen35-multimodal", "model.visual.ids", HY_I32, NULL,
         "tensor \"model.visual.ids\" is i32 and cannot be copied"},
    };
    char folder[256], in[300], out[300], warning[600] = "";
    hy_observer observer = {.user = warning, .on_message = keep_warning};
    hy_export_options options = {.out = out, .type = changes[_i].type};
    const char *tensor = changes[_i].tensor, *reason = changes[_i].reason;
    hy_hf_tensors *tensors;
    snprintf(in, sizeof in, "%s/in", temp_folder(folder));
    snprintf(out, sizeof out, "%s/out", folder);
    copy_with_tensor(changes[_i].name, in, tensor, changes[_i].dtype);
    must(hy_export(in, &options, &observer));
    must(hy_hf_tensors_open(out, &tensors));
    ck_assert_int_eq(hy_hf_tensors_find(tensors, tensor).entry != NULL, reason == NULL);
    ck_assert_msg(strstr(warning, reason ? reason : "") && !warning[0] == !reason, "%s", warning);
    hy_hf_tensors_close(tensors);
    if (!reason) models_are_the_same(in, out);
    remove_folder(folder);
}
END_TEST

/* ---- published models ------------------------------------------------------------------------ */

static void check_count(const char *name, long long parameters, const char *json) {
    hy_hf_config config;
    hy_model *model;
    must(hy_hf_config_parse(json, strlen(json), name, &config));
    ck_assert_msg(config.has_images || config.notes.size == 0, "%s", config.notes.data);
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

/* A sparse config.json is refused, or it has the shape of the whole one. */
static void check_defaults(const char *sparse, const char *whole) {
    hy_hf_config a, b;
    hy_text one = {0}, other = {0};
    must(hy_hf_config_parse(whole, strlen(whole), "whole", &b));
    if (hy_hf_config_parse(sparse, strlen(sparse), "sparse", &a) == HY_OK) {
        must(hy_hf_config_write(&a.shape, HY_F32, NULL, NULL, &one));
        must(hy_hf_config_write(&b.shape, HY_F32, NULL, NULL, &other));
        bool is_same = strcmp(one.data, other.data) == 0;
        ck_assert_msg(is_same, "%s: read as %s, transformers reads %s", sparse, one.data,
                      other.data);
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

/* transformers gives all layers of these families the window, whatever layer_types says. */
START_TEST(a_pattern_of_windows_is_not_exported_where_transformers_has_none) {
    static const char *const names[] = {"phi3", "ministral3", "starcoder2"};
    hy_config *config;
    hy_shape shape;
    must(hy_config_create(&config));
    must(hy_config_set(config, "shape.architecture", names[_i], HY_FROM_CALLER));
    must(hy_config_set(config, "shape.sliding_window", "12", HY_FROM_CALLER));
    must(hy_shape_from_settings(hy_config_settings(config), &shape));
    must(hy_config_set(config, "shape.sliding_layers", "sf", HY_FROM_CALLER));
    ck_assert_int_eq(hy_shape_from_settings(hy_config_settings(config), &shape), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "uses its window in all layers"));
    hy_config_destroy(config);
}
END_TEST

START_TEST(layer_types_are_ignored_with_a_note_where_transformers_ignores_them) {
    static const char text[] =
        "{\"model_type\": \"starcoder2\", \"vocab_size\": 96, \"hidden_size\": 32,"
        " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
        " \"intermediate_size\": 20, \"max_position_embeddings\": 24, \"sliding_window\": 7,"
        " \"layer_types\": [\"sliding_attention\", \"full_attention\"]}";
    hy_hf_config config;
    must(hy_hf_config_parse(text, strlen(text), "config.json", &config));
    ck_assert_int_eq(hy_shape_window(&config.shape, 0), 7);
    ck_assert_int_eq(hy_shape_window(&config.shape, 1), 7);
    ck_assert_ptr_nonnull(strstr(hy_text_string(&config.notes), "\"layer_types\" is ignored"));
    hy_hf_config_free(&config);
}
END_TEST

static Suite *families_suite(void) {
    Suite *suite = suite_create("families");
    TCase *tc = tcase_create("transformers");
    if (hy_dir_list(folder_of(""), &cases, &case_count) != HY_OK) exit(EXIT_FAILURE);
    tcase_add_loop_test(tc, logits_are_those_of_transformers, 0, (int)case_count);
    tcase_add_loop_test(tc, loss_and_gradients_are_those_of_pytorch, 0, (int)case_count);
    tcase_add_loop_test(tc, twenty_adamw_steps_follow_pytorch, 0, (int)case_count);
    tcase_add_loop_test(tc, greedy_tokens_are_those_of_transformers, 0, (int)case_count);
    tcase_add_loop_test(tc, what_is_written_is_what_was_read, 0, (int)case_count);
    tcase_add_test(tc, without_the_parts_for_images_the_text_model_is_written);
    tcase_add_loop_test(tc, what_is_left_out_is_named_with_its_reason, 0, 6);
    tcase_add_test(tc, fields_left_out_have_the_defaults_of_transformers);
    tcase_add_test(tc, published_configs_have_the_published_number_of_parameters);
    tcase_add_loop_test(tc, a_pattern_of_windows_is_not_exported_where_transformers_has_none, 0, 3);
    tcase_add_test(tc, layer_types_are_ignored_with_a_note_where_transformers_ignores_them);
    suite_add_tcase(suite, tc);
    return suite;
}

HY_TEST_MAIN(families_suite)
