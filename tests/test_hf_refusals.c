/* test_hf_refusals.c: configurations and model files that must be refused, and the messages. Every
 * message names the file and the field or tensor. test_hf.c has the supported cases. */
#include "hf_rig.h"
#include "mutate.h"

/* ---- config.json ----------------------------------------------------------------------------- */

#define LLAMA_SIZES                                                                                \
    "\"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "                  \
    "\"intermediate_size\": 20, \"vocab_size\": 96, \"max_position_embeddings\": 24"
#define LLAMA(more)                                                                                \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", " LLAMA_SIZES more "}"
#define QWEN2(more)                                                                                \
    "{\"architectures\": [\"Qwen2ForCausalLM\"], \"num_key_value_heads\": 2, " LLAMA_SIZES more "}"
#define MISTRAL(more)                                                                              \
    "{\"model_type\": \"mistral\", \"num_key_value_heads\": 2, " LLAMA_SIZES more "}"
#define QWEN3(more) "{\"model_type\": \"qwen3\", \"num_key_value_heads\": 2, " LLAMA_SIZES more "}"
#define STARCODER2(more)                                                                           \
    "{\"model_type\": \"starcoder2\", \"num_key_value_heads\": 2, " LLAMA_SIZES more "}"
#define QWEN35(more)                                                                               \
    "{\"model_type\": \"qwen3_5_text\", \"num_key_value_heads\": 2, " LLAMA_SIZES more "}"
#define GPT2(more)                                                                                 \
    "{\"model_type\": \"gpt2\", \"n_embd\": 32, \"n_layer\": 2, \"n_head\": 4, "                   \
    "\"n_positions\": 16, \"vocab_size\": 96" more "}"

static const struct {
    const char *text, *fragment;
} refused[] = {
    {"", "config.json"},
    {"[]", "is not a JSON object"},
    {"{}", "\"architectures\" is missing"},
    {"{\"architectures\": []}", "a list with one name"},
    {"{\"architectures\": [\"BertModel\"], \"model_type\": \"bert\"}", "BertModel"},
    {"{\"architectures\": [\"LlamaForSequenceClassification\"], \"model_type\": \"llama\"}",
     "LlamaForSequenceClassification"},
    {"{\"model_type\": \"mixtral\"}", "mixtral"},
    {"{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"gpt2\"}",
     "does not match LlamaForCausalLM"},
    {"{\"model_type\": \"llama\"}", "\"vocab_size\" is missing"},
    {LLAMA(", \"hidden_size\": 32"), "hidden_size"}, /* twice */
    {LLAMA(", \"num_key_value_heads\": 3"), "kv_heads is 3"},
    {LLAMA(", \"num_key_value_heads\": 0"), "num_key_value_heads"},
    {LLAMA(", \"num_key_value_heads\": 1e30"), "num_key_value_heads"},
    {LLAMA(", \"head_dim\": \"8\""), "\"head_dim\" is not a whole number"},
    {LLAMA(", \"head_dim\": 7"), "even"},
    {LLAMA(", \"rms_norm_eps\": 0"), "norm_eps"},
    {LLAMA(", \"rms_norm_eps\": true"), "\"rms_norm_eps\" is not a number"},
    {LLAMA(", \"hidden_act\": \"quick_gelu\""), "\"hidden_act\" quick_gelu"},
    {LLAMA(", \"tie_word_embeddings\": 1"), "true or false"},
    {STARCODER2(", \"use_bias\": 1"), "\"use_bias\" is not true or false"},
    {STARCODER2(", \"hidden_act\": \"silu\""), "supported: gelu_new, gelu_pytorch_tanh, gelu"},
    {LLAMA(", \"attention_bias\": \"yes\""), "attention_bias"},
    {LLAMA(", \"rope_scaling\": \"llama3\""), "\"rope_scaling\" is not an object"},
    {LLAMA(", \"rope_scaling\": {\"type\": \"mrope\", \"factor\": 2}"), "mrope"},
    {LLAMA(", \"rope_scaling\": {\"rope_type\": \"yarn\"}"), "rope_scaling.factor"},
    {LLAMA(", \"rope_scaling\": {\"rope_type\": \"longrope\"}"), "rope_scaling.short_factor"},
    {LLAMA(", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 4}"),
     "rope_scaling.original_max_position_embeddings"},
    {LLAMA(", \"rope_scaling\": {\"rope_type\": \"default\"}, \"rope_parameters\": "
           "{\"rope_type\": \"default\"}"),
     "both"},
    {LLAMA(", \"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}"),
     "rope_parameters.partial_rotary_factor"},
    {LLAMA(", \"partial_rotary_factor\": 0.5"), "partial_rotary_factor"},
    {LLAMA(", \"rope_theta\": 0.5"), "rope_theta"},
    {LLAMA(", \"rope_theta\": \"big\""), "rope_theta"},
    {LLAMA(", \"quantization_config\": {\"bits\": 4}"), "quantization_config"},
    {LLAMA(", \"quantization_config\": 4"), "quantization_config"},
    {LLAMA(", \"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}"),
     "method gptq is not supported; accepted: weights in 16 or 32 bits, or bitsandbytes"},
    {LLAMA(", \"quantization_config\": {\"quant_method\": \"fp8\"}"), "method fp8"},
    {LLAMA(", \"quantization_config\": {\"load_in_8bit\": true, \"load_in_4bit\": true}"),
     "both load_in_8bit and load_in_4bit"},
    {LLAMA(", \"quantization_config\": {\"quant_method\": \"bitsandbytes\"}"), "load_in_4bit"},
    {LLAMA(
         ", \"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}"),
     "type fp4"}, /* the default of transformers */
    {LLAMA(
         ", \"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true, "
         "\"bnb_4bit_quant_type\": \"fp4\"}"),
     "type fp4"},
    {LLAMA(", \"logits_scaling\": 8"), "logits_scaling"},
    {LLAMA(", \"is_encoder_decoder\": true"), "is_encoder_decoder"},
    {QWEN2(", \"layer_types\": [\"full_attention\"]"), "layer_types"},
    {QWEN2(", \"layer_types\": [\"full_attention\", \"linear_attention\"]"), "linear_attention"},
    {QWEN2(", \"use_sliding_window\": true, \"max_window_layers\": -1"), "max_window_layers"},
    {MISTRAL(", \"sliding_window\": -5"), "sliding_window"},
    {QWEN3(""), "\"head_dim\" is missing"},
    {QWEN35(", \"layer_types\": [\"linear_attention\"]"), "one word per layer"},
    {QWEN35(", \"layer_types\": [\"linear_attention\", \"sliding_attention\"]"),
     "has sliding_attention; supported: full_attention, linear_attention"},
    {QWEN35(", \"full_attention_interval\": 0"), "full_attention_interval"},
    {"{\"model_type\": \"qwen3_5_text\", \"hidden_size\": 32, \"num_hidden_layers\": 512, "
     "\"num_attention_heads\": 4, \"intermediate_size\": 20, \"vocab_size\": 96, "
     "\"num_key_value_heads\": 2, \"max_position_embeddings\": 24, "
     "\"full_attention_interval\": 512}",
     "is 512; supported: up to 511"},
    {QWEN35(", \"hidden_act\": \"gelu\""), "\"hidden_act\" gelu is not supported"},
    {QWEN35(", \"attn_output_gate\": false"), "\"attn_output_gate\" is supported only as 1"},
    {QWEN35(", \"linear_num_value_heads\": 24"), "16 key heads and 24 value heads"},
    {QWEN35(", \"linear_key_head_dim\": 257"), "key heads of 257"},
    {QWEN35(", \"linear_conv_kernel_dim\": 9"), "sees 9 tokens; supported: 2 to 8"},
    {"{\"model_type\": \"qwen3_5_moe_text\"}", "(a mixture of experts)"},
    {GPT2(", \"n_inner\": -1"), "n_inner"},
    {GPT2(", \"activation_function\": \"relu\""), "relu"},
    {GPT2(", \"scale_attn_weights\": false"), "scale_attn_weights"},
    {GPT2(", \"scale_attn_by_inverse_layer_idx\": true"), "scale_attn_by_inverse_layer_idx"},
    {GPT2(", \"add_cross_attention\": true"), "add_cross_attention"},
};

START_TEST(a_config_that_means_another_computation_is_refused_by_name) {
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        hy_hf_config config;
        const char *text = refused[i].text;
        must_fail(hy_hf_config_parse(text, strlen(text), "config.json", &config), HY_ERR_INPUT,
                  refused[i].fragment);
        ck_assert_ptr_nonnull(strstr(hy_error_message(), "config.json"));
    }
}
END_TEST

#define BNB(more)                                                                                  \
    LLAMA(", \"quantization_config\": {\"load_in_4bit\": true, \"bnb_4bit_quant_type\": "          \
          "\"nf4\"" more "}")

/* What is written of such a model is numbers, and says so. */
START_TEST(a_config_says_how_its_weights_are_quantised) {
    static const struct {
        const char *text;
        hy_hf_quant quant;
    } cases[] = {
        {LLAMA(""), HY_HF_PLAIN},
        {LLAMA(", \"quantization_config\": null"), HY_HF_PLAIN},
        {LLAMA(", \"quantization_config\": {}"), HY_HF_PLAIN},
        {BNB(""), HY_HF_NF4_SINGLE},
        {BNB(", \"bnb_4bit_use_double_quant\": false"), HY_HF_NF4_SINGLE},
        {LLAMA(", \"quantization_config\": {\"load_in_8bit\": true}"), HY_HF_INT8},
        {BNB(", \"bnb_4bit_use_double_quant\": true, \"quant_method\": \"bitsandbytes\""),
         HY_HF_NF4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hy_hf_config config;
        hy_json *json;
        hy_text copy = {0}, written = {0};
        const char *text = cases[i].text;
        must(hy_hf_config_parse(text, strlen(text), "config.json", &config));
        ck_assert_int_eq(config.quant, cases[i].quant);
        ck_assert_uint_eq(config.notes.size, 0);
        must(hy_json_parse(text, strlen(text), "config.json", &json));
        const hy_json_node *root = hy_json_root(json);
        must(hy_hf_config_copy(root, HY_BF16, NULL, &copy));
        must(hy_hf_config_write(&config.shape, HY_BF16, root, NULL, &written));
        ck_assert_ptr_null(strstr(copy.data, "quantization_config"));
        ck_assert_ptr_null(strstr(written.data, "quantization_config"));
        hy_text_free(&copy);
        hy_text_free(&written);
        hy_json_free(json);
        hy_hf_config_free(&config);
    }
}
END_TEST

static hy_hf_config parsed(const char *text) {
    hy_hf_config config;
    must(hy_hf_config_parse(text, strlen(text), "config.json", &config));
    return config;
}

START_TEST(windows_of_smollm3_are_in_the_layers_without_rope) {
    hy_hf_config c = parsed(
        "{\"model_type\": \"smollm3\", \"vocab_size\": 50, \"num_hidden_layers\": 4, "
        "\"hidden_size\": 32, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"intermediate_size\": 48, \"max_position_embeddings\": 24, "
        "\"no_rope_layers\": [1, 0, 1, 1], \"use_sliding_window\": true, \"sliding_window\": 8}");
    ck_assert_int_eq(c.shape.sliding_window, 8);
    ck_assert_str_eq(c.shape.sliding_layers, "fsf"); /* and again from the first */
    hy_hf_config_free(&c);
}
END_TEST

START_TEST(fields_are_what_transformers_takes_them_for) {
    hy_hf_config c = parsed(LLAMA(", \"attention_bias\": true, \"rope_scaling\": null"));
    ck_assert(c.shape.has_qkv_bias && hy_shape_out_bias(&c.shape) && !hy_shape_mlp_bias(&c.shape));
    ck_assert(!c.shape.has_tied_head && c.shape.kv_heads == 4 && c.shape.head_size == 8);
    ck_assert_double_eq(c.shape.norm_eps, 1e-6);
    ck_assert_uint_eq(c.notes.size, 0);
    hy_hf_config_free(&c);
    c = parsed(LLAMA(", \"mlp_bias\": true, \"rope_theta\": 5e5, \"sliding_window\": 7"));
    ck_assert(!c.shape.has_qkv_bias && !hy_shape_out_bias(&c.shape) && hy_shape_mlp_bias(&c.shape));
    ck_assert_double_eq(c.shape.rope_theta, 5e5);
    ck_assert_int_eq(c.shape.sliding_window, 0); /* a Llama has none */
    ck_assert_ptr_nonnull(strstr(hy_text_string(&c.notes), "unknown field \"sliding_window\""));
    hy_hf_config_free(&c);
    c = parsed(MISTRAL(""));
    ck_assert_int_eq(c.shape.sliding_window, 4096);
    hy_hf_config_free(&c);
    c = parsed(MISTRAL(", \"sliding_window\": null"));
    ck_assert_int_eq(c.shape.sliding_window, 0);
    hy_hf_config_free(&c);
    c = parsed(QWEN2(", \"sliding_window\": 8, \"use_sliding_window\": false"));
    ck_assert(c.shape.sliding_window == 0 && c.shape.has_qkv_bias && !c.shape.has_proj_bias);
    hy_hf_config_free(&c);
    /* A window as long as the context is none, wherever it is. */
    c = parsed(QWEN2(", \"use_sliding_window\": true, \"sliding_window\": 24, "
                     "\"max_window_layers\": 1"));
    ck_assert_int_eq(c.shape.sliding_window, 0);
    hy_hf_config_free(&c);
    /* Windows of some layers. */
    c = parsed(QWEN2(", \"use_sliding_window\": true, \"sliding_window\": 8, "
                     "\"max_window_layers\": 1"));
    ck_assert_int_eq(c.shape.sliding_window, 8);
    ck_assert_str_eq(c.shape.sliding_layers, "fs");
    hy_hf_config_free(&c);
    c = parsed(MISTRAL(", \"sliding_window\": 8, "
                       "\"layer_types\": [\"sliding_attention\", \"full_attention\"]"));
    ck_assert_int_eq(hy_shape_window(&c.shape, 0), 8);
    ck_assert_int_eq(hy_shape_window(&c.shape, 1), 0);
    hy_hf_config_free(&c);
    c = parsed(QWEN2(", \"use_sliding_window\": true, \"sliding_window\": 8, "
                     "\"layer_types\": [\"full_attention\", \"full_attention\"]"));
    ck_assert_int_eq(c.shape.sliding_window, 0);
    hy_hf_config_free(&c);
    c = parsed("{\"model_type\": \"qwen2\", \"hidden_size\": 32, \"num_hidden_layers\": 7, "
               "\"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"vocab_size\": 96, "
               "\"intermediate_size\": 20, \"max_position_embeddings\": 24, "
               "\"use_sliding_window\": true, \"sliding_window\": 8, \"layer_types\": ["
               "\"sliding_attention\", \"sliding_attention\", \"full_attention\", "
               "\"sliding_attention\", \"sliding_attention\", \"full_attention\", "
               "\"sliding_attention\"]}");
    ck_assert_str_eq(c.shape.sliding_layers, "ssf");
    hy_hf_config_free(&c);
    c = parsed(QWEN3(", \"head_dim\": 16, \"attention_dropout\": 0.1, \"what\": [1]"));
    ck_assert(c.shape.has_qk_norm && c.shape.head_size == 16 && !c.shape.has_qkv_bias);
    ck_assert_ptr_nonnull(strstr(hy_text_string(&c.notes), "dropout is not supported"));
    ck_assert_ptr_nonnull(strstr(hy_text_string(&c.notes), "unknown field \"what\" is ignored"));
    hy_hf_config_free(&c);
    c = parsed(GPT2(", \"torch_dtype\": \"float16\""));
    ck_assert(c.shape.has_tied_head && c.shape.mlp_width == 128 && c.has_dtype);
    ck_assert_int_eq(c.dtype, HY_F16);
    hy_hf_config_free(&c);
}
END_TEST

static void reads_back(const char *name) {
    hy_hf_config config, again;
    hy_text text = {0};
    must(hy_hf_config_read(golden_folder(name), &config));
    ck_assert_int_eq(hy_arch_choose(&config.shape, HY_ARCH_NONE), config.shape.arch);
    must(hy_hf_config_write(&config.shape, HY_F16, NULL, NULL, &text));
    must(hy_hf_config_parse(text.data, text.size, "config.json", &again));
    ck_assert_int_eq(again.shape.arch, config.shape.arch);
    ck_assert_int_eq(again.dtype, HY_F16);
    shapes_are_the_same(&again.shape, &config.shape);
    ck_assert_uint_eq(again.notes.size, 0);
    hy_text_free(&text);
    hy_hf_config_free(&config);
    hy_hf_config_free(&again);
}

START_TEST(a_written_config_reads_back_to_the_same_shape) {
    for (int i = 0; i < HF_CASES; i++) reads_back(hf_cases[i]);
}
END_TEST

/* ---- tensors --------------------------------------------------------------------------------- */

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

/* Writes the tensors of the golden llama again, one of them changed: left out (to NULL), renamed,
 * of another shape or type; or one more. */
typedef struct change {
    const char *tensor;
    const char *to;
    int64_t rows; /* 0: as it is */
    hy_dtype dtype;
} change;

static void write_changed(const char *path, const change *c, bool is_extra) {
    hy_hf_tensors *from;
    hy_safetensors_entry entries[64];
    hy_safetensors_writer *out;
    size_t count = 0;
    must(hy_hf_tensors_open(golden_folder("llama"), &from));
    for (size_t i = 0; i < hy_hf_tensors_count(from); i++) {
        hy_safetensors_entry e = *hy_hf_tensors_at(from, i).entry;
        bool is_it = strcmp(e.name, c->tensor) == 0;
        if (is_it && !is_extra) {
            if (!c->to) continue;
            e.name = c->to;
            if (c->rows) e.shape[0] = c->rows;
            e.dtype = c->dtype;
        }
        entries[count++] = e;
        if (is_it && is_extra) {
            e.name = c->to;
            e.dtype = c->dtype;
            entries[count++] = e;
        }
    }
    must(hy_safetensors_create(path, entries, count, NULL, &out));
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = hy_dtype_size(entries[i].dtype);
        for (int d = 0; d < entries[i].ndim; d++) bytes *= (uint64_t)entries[i].shape[d];
        char *zeros = calloc(1, bytes);
        must(hy_safetensors_put(out, zeros, bytes));
        free(zeros);
    }
    must(hy_safetensors_finish(out, NULL, NULL));
    hy_hf_tensors_close(from);
}

static hy_status load_folder(void) {
    hy_model *model;
    hy_hf_config config;
    hy_weight_files files;
    HY_TRY(hy_hf_config_read(folder, &config));
    hy_shape shape = config.shape;
    hy_hf_config_free(&config);
    HY_TRY(hy_model_create(&shape, &model));
    hy_status status = hy_weight_files_open(folder, model, &files);
    if (status == HY_OK) hy_weight_files_close(&files);
    hy_model_destroy(model);
    return status;
}

#define Q0 "model.layers.0.self_attn.q_proj.weight"

START_TEST(tensors_that_are_missing_more_or_of_another_shape_are_named) {
    char path[400];
    static const struct {
        change change;
        bool is_extra;
        const char *fragment, *second;
    } cases[] = {
        {{Q0, NULL, 0, HY_F32}, false, Q0, "missing"},
        {{Q0, "model.layers.0.self_attn.q.weight", 0, HY_F32}, false, Q0, "missing"},
        {{Q0, Q0, 17, HY_F32}, false, Q0 "\" has shape (17, 32)", "(16, 32)"},
        {{Q0, Q0, 0, HY_I32}, false, Q0, "supported: fp32"},
        {{Q0, "model.layers.0.self_attn.q_proj.weight2", 0, HY_F32},
         true,
         "q_proj.weight2",
         "does not belong"},
        {{Q0, "model.layers.2.self_attn.q_proj.weight", 0, HY_F32},
         true,
         "layers.2",
         "does not belong"},
        {{"lm_head.weight", NULL, 0, HY_F32}, false, "lm_head.weight", "missing"},
    };
    copy_golden("llama", folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    must(load_folder());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_changed(path, &cases[i].change, cases[i].is_extra);
        must_fail(load_folder(), HY_ERR_INPUT, cases[i].fragment);
        ck_assert_ptr_nonnull(strstr(hy_error_message(), cases[i].second));
    }
    /* What is known to mean nothing is no reason. */
    change frequencies = {"model.norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", 0,
                          HY_F32};
    write_changed(path, &frequencies, true);
    must(load_folder());
}
END_TEST

/* It was dropped without a word; versions of transformers disagree about it. */
START_TEST(a_tied_head_that_is_stored_as_something_else_is_refused) {
    char path[400], *text, *at;
    size_t size;
    copy_golden("llama", folder); /* which has a head of its own */
    snprintf(path, sizeof path, "%s/config.json", folder);
    must(hy_file_read(path, &text, &size));
    at = strstr(text, "\"tie_word_embeddings\": false");
    ck_assert_ptr_nonnull(at);
    memcpy(strstr(at, "false"), "true ", 5);
    must(hy_file_write_atomic(path, text, size));
    free(text);
    must_fail(load_folder(), HY_ERR_INPUT, "lm_head.weight differs from");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    change none = {"", NULL, 0, HY_F32}; /* all zero: stored twice, and the same */
    write_changed(path, &none, false);
    must(load_folder());
}
END_TEST

START_TEST(a_width_that_the_heads_do_not_divide_is_no_llama) {
    hy_hf_config config;
    must(hy_hf_config_read(golden_folder("llama"), &config));
    hy_shape shape = config.shape;
    hy_hf_config_free(&config);
    ck_assert_int_eq(hy_arch_choose(&shape, HY_ARCH_NONE), HY_ARCH_LLAMA);
    shape.width = shape.heads * shape.head_size + 1;
    ck_assert_int_eq(hy_arch_choose(&shape, HY_ARCH_NONE), HY_ARCH_MISTRAL);
    shape.has_qkv_bias = shape.has_proj_bias = true;
    ck_assert_int_eq(hy_arch_choose(&shape, HY_ARCH_NONE), HY_ARCH_NONE);
    shape.arch = HY_ARCH_NONE;
    must_fail(hy_arch_check(&shape), HY_ERR_INPUT, "divisible by the number of heads");
}
END_TEST

/* The one tensor of type F64 becomes one of I64: the writer makes none itself. */
static void make_whole_numbers(const char *path) {
    char *data;
    size_t size;
    must(hy_file_read(path, &data, &size));
    char *at = memmem(data, size, "F64", 3);
    ck_assert_ptr_nonnull(at);
    memcpy(at, "I64", 3);
    must(hy_file_write_atomic(path, data, size));
    free(data);
}

START_TEST(tensors_of_other_types_are_passed_by_or_named) {
    static const struct {
        change change;
        bool is_extra;
        const char *fragment; /* NULL: it loads */
    } cases[] = {
        {{"model.norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", 0, HY_F64},
         true,
         NULL},
        {{"model.norm.weight", "model.position_ids", 0, HY_F64}, true, "position_ids"},
        {{Q0, Q0, 0, HY_F64}, false, Q0 "\" is I64; supported: fp32"},
    };
    char path[400];
    copy_golden("llama", folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_changed(path, &cases[i].change, cases[i].is_extra);
        make_whole_numbers(path);
        if (cases[i].fragment) {
            must_fail(load_folder(), HY_ERR_INPUT, cases[i].fragment);
        } else {
            must(load_folder());
        }
    }
}
END_TEST

static void put_index(const char *text) {
    put_file(folder, "model.safetensors.index.json", text, strlen(text));
}

/* The index of the golden mistral with one word for another. */
static char *index_with(const char *word, const char *instead) {
    char path[600], *text;
    size_t size;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", golden_folder("mistral"));
    must(hy_file_read(path, &text, &size));
    char *at = strstr(text, word), *out = malloc(size + strlen(instead) + 1);
    ck_assert_ptr_nonnull(at);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, instead, at + strlen(word));
    free(text);
    return out;
}

START_TEST(an_index_and_its_shards_must_agree) {
    static const struct {
        const char *word, *instead, *fragment;
    } cases[] = {
        {"\"weight_map\"", "\"weights\"", "weight_map"},
        {"model-00002-of-00003.safetensors", "../model.safetensors",
         "not a file name in the same folder"},
        {"model-00002-of-00003.safetensors", "model-00009-of-00003.safetensors", "00009"},
        {"model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors", "is not in"},
        {"\"lm_head.weight\"", "\"no.such\"", "no.such"},
        {"\"lm_head.weight\": \"", "\"lm_head.weight\": [1], \"x\": \"", "not a string"},
    };
    copy_golden("mistral", folder);
    must(load_folder());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = index_with(cases[i].word, cases[i].instead);
        put_index(text);
        free(text);
        hy_status status = load_folder();
        ck_assert_int_ne(status, HY_OK);
        ck_assert_msg(strstr(hy_error_message(), cases[i].fragment) != NULL, "%s: %s",
                      cases[i].fragment, hy_error_message());
    }
    put_index("{");
    must_fail(load_folder(), HY_ERR_INPUT, "index.json");
}
END_TEST

START_TEST(a_tensor_in_two_shards_is_named) {
    char path[400], *data;
    size_t size;
    copy_golden("mistral", folder);
    snprintf(path, sizeof path, "%s/model-00001-of-00003.safetensors", folder);
    must(hy_file_read(path, &data, &size));
    put_file(folder, "model-00003-of-00003.safetensors", data, size);
    free(data);
    ck_assert_int_ne(load_folder(), HY_OK);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "model-00003"));
}
END_TEST

START_TEST(a_folder_without_weights_says_what_is_missing) {
    char path[400];
    copy_golden("llama", folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    ck_assert_int_eq(unlink(path), 0);
    must_fail(load_folder(), HY_ERR_INPUT, "model.safetensors.index.json");
    hy_model_files kind;
    char found[HY_HF_PATH_MAX];
    snprintf(path, sizeof path, "%s/config.json", folder);
    ck_assert_int_eq(unlink(path), 0);
    must_fail(hy_hf_find(folder, &kind, found), HY_ERR_INPUT, "has no config.json");
}
END_TEST

/* ---- damage ---------------------------------------------------------------------------------- */

/* Whatever the bytes: HY_OK or a message, and never a crash (the sanitizers look on). */
START_TEST(damaged_configs_and_headers_never_crash) {
    char path[600], *data;
    size_t size;
    snprintf(path, sizeof path, "%s/config.json", golden_folder("llama3-rope"));
    must(hy_file_read(path, &data, &size));
    uint8_t *damaged = malloc(size + MUTATION_GROWTH);
    int refusals = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        hy_hf_config config;
        size_t length = mutate(data, size, damaged, i);
        if (hy_hf_config_parse((char *)damaged, length, "config.json", &config) == HY_OK) {
            hy_hf_config_free(&config);
        } else {
            refusals++;
        }
    }
    ck_assert_int_gt(refusals, 1000);
    free(damaged);
    free(data);

    copy_golden("mistral", folder);
    snprintf(path, sizeof path, "%s/model-00002-of-00003.safetensors", golden_folder("mistral"));
    must(hy_file_read(path, &data, &size));
    damaged = malloc(size + MUTATION_GROWTH);
    refusals = 0;
    for (uint64_t i = 0; i < 300; i++) {
        size_t length = mutate(data, size, damaged, i);
        put_file(folder, "model-00002-of-00003.safetensors", damaged, length);
        if (load_folder() != HY_OK) refusals++;
    }
    ck_assert_int_gt(refusals, 100);
    free(damaged);
    free(data);
}
END_TEST

START_TEST(a_llama2c_file_must_have_the_length_its_sizes_make) {
    int32_t header[7] = {8, 16, 1, 2, 1, 12, 4};
    size_t elements = 12 * 8 + 8 + 64 + 32 + 32 + 64 + 8 + 3 * 128 + 8 + 2 * 4 * 2;
    char path[400], *data = calloc(1, 28 + elements * 4 + 4);
    hy_llama2c file;
    memcpy(data, header, sizeof header);
    put_file(folder, "m.bin", data, 28 + elements * 4);
    snprintf(path, sizeof path, "%s/m.bin", folder);
    must(hy_llama2c_open(path, &file));
    ck_assert(file.kv_heads == 1 && file.context == 4 && !file.has_own_head);
    hy_llama2c_close(&file);
    put_file(folder, "m.bin", data, 28 + elements * 4 + 4);
    must_fail(hy_llama2c_open(path, &file), HY_ERR_INPUT, "expected");
    put_file(folder, "m.bin", data, 28 + elements * 4 - 4);
    must_fail(hy_llama2c_open(path, &file), HY_ERR_INPUT, "fewer than");
    put_file(folder, "m.bin", data, 20);
    must_fail(hy_llama2c_open(path, &file), HY_ERR_INPUT, "too short");
    for (int i = 0; i < 7; i++) { /* sizes that no memory holds */
        int32_t absurd[7];
        memcpy(absurd, header, sizeof absurd);
        absurd[i] = i % 2 ? INT32_MIN : 1 << 24;
        memcpy(data, absurd, sizeof absurd);
        put_file(folder, "m.bin", data, 28 + elements * 4);
        ck_assert_int_eq(hy_llama2c_open(path, &file), HY_ERR_INPUT);
    }
    free(data);
}
END_TEST

static Suite *refusals_suite(void) {
    Suite *suite = suite_create("hf refusals");
    TCase *configs = tcase_create("configs"), *files = tcase_create("files");
    tcase_set_timeout(configs, 120);
    tcase_add_test(configs, a_config_that_means_another_computation_is_refused_by_name);
    tcase_add_test(configs, a_config_says_how_its_weights_are_quantised);
    tcase_add_test(configs, fields_are_what_transformers_takes_them_for);
    tcase_add_test(configs, windows_of_smollm3_are_in_the_layers_without_rope);
    tcase_add_test(configs, a_written_config_reads_back_to_the_same_shape);
    suite_add_tcase(suite, configs);
    tcase_set_timeout(files, 120);
    tcase_add_checked_fixture(files, make_folder, drop_folder);
    tcase_add_test(files, a_tied_head_that_is_stored_as_something_else_is_refused);
    tcase_add_test(files, a_width_that_the_heads_do_not_divide_is_no_llama);
    tcase_add_test(files, tensors_that_are_missing_more_or_of_another_shape_are_named);
    tcase_add_test(files, tensors_of_other_types_are_passed_by_or_named);
    tcase_add_test(files, an_index_and_its_shards_must_agree);
    tcase_add_test(files, a_tensor_in_two_shards_is_named);
    tcase_add_test(files, a_folder_without_weights_says_what_is_missing);
    tcase_add_test(files, damaged_configs_and_headers_never_crash);
    tcase_add_test(files, a_llama2c_file_must_have_the_length_its_sizes_make);
    suite_add_tcase(suite, files);
    return suite;
}

HY_TEST_MAIN(refusals_suite)
