/* hf_config_fields.c: the fields of config.json that do not describe the shape. See hf_config.h.
 *
 * There are three kinds: fields that are read elsewhere or never change the computation, fields
 * that are accepted with only one value, and fields for training only, which get a note. Unknown
 * fields also get a note: the supported classes do not compute with them. */
#include <string.h>

#include "base/error.h"
#include "hub/hf_config.h"

/* Read by hf_config.c or written by hf_config_write.c, in addition to the keys of the family. */
static const char used[] = " architectures model_type torch_dtype dtype quantization_config ";

/* Names, tokens, generation, classification heads, runtime options: they do not change the
 * computation. */
static const char harmless[] =
    " _name_or_path name_or_path transformers_version use_cache _commit_hash bos_token_id"
    " eos_token_id pad_token_id sep_token_id unk_token_id cls_token_id mask_token_id"
    " decoder_start_token_id bos_token eos_token pad_token tokenizer_class prefix"
    " task_specific_params n_ctx pretraining_tp reorder_and_upcast_attn gradient_checkpointing"
    " output_attentions output_hidden_states return_dict id2label label2id num_labels problem_type"
    " finetuning_task chunk_size_feed_forward is_decoder tie_encoder_decoder torchscript"
    " use_bfloat16 tf_legacy_loss attn_implementation _attn_implementation"
    " _attn_implementation_autoset use_flash_attn use_flash_attention summary_activation"
    " summary_first_dropout summary_proj_to_labels summary_type summary_use_proj max_length"
    " min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature"
    " top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size"
    " encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores"
    " return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values"
    " exponential_decay_length_penalty suppress_tokens begin_suppress_tokens is_llama_config"
    " unsloth_version unsloth_fixed cross_attention_hidden_size max_seq_len seq_length"
    " _sliding_window_pattern classifier_dropout cache_implementation hidden_act attention_bias"
    " mlp_bias max_window_layers normalization_function norm_type mlp_type ";

/* Granite 4 describes Mamba layers and experts even if it has none; layers of these kinds are
 * refused. Qwen3.5 has layers that predict further tokens, which transformers does not load. */
static const char of_other_layers[] =
    " num_experts_per_tok output_router_logits router_aux_loss_coef time_step_limit"
    " time_step_min time_step_max ";

static bool is_harmless(const char *key) {
    return hy_word_is_in(harmless, key) || hy_word_is_in(of_other_layers, key) ||
           strncmp(key, "mamba_", 6) == 0 || strncmp(key, "mtp_", 4) == 0;
}

/* Accepted with this value (or null); another value would change the result. */
static const struct {
    const char *key;
    double value;       /* true is 1, false is 0 */
    bool must_be_empty; /* instead of a value: null, or an empty list or object */
} fixed[] = {
    {.key = "scale_attn_weights", .value = 1},
    {.key = "scale_attn_by_inverse_layer_idx", .value = 0},
    {.key = "add_cross_attention", .value = 0},
    {.key = "is_encoder_decoder", .value = 0},
    {.key = "partial_rotary_factor", .value = 1},
    {.key = "rotary_pct", .value = 1},
    {.key = "rope_interleaved", .value = 0},
    {.key = "attention_multiplier", .must_be_empty = true},
    {.key = "embedding_multiplier", .value = 1},
    {.key = "residual_multiplier", .value = 1},
    {.key = "logits_scaling", .value = 1},
    {.key = "logit_scale", .value = 1},
    {.key = "attn_logit_softcapping", .must_be_empty = true},
    {.key = "final_logit_softcapping", .must_be_empty = true},
    {.key = "clip_qkv", .must_be_empty = true},
    {.key = "num_experts", .value = 0},
    {.key = "num_local_experts", .value = 0},
    {.key = "no_rope_layers", .must_be_empty = true},
    {.key = "pruned_heads", .must_be_empty = true},
    {.key = "compression_config", .must_be_empty = true},
    {.key = "use_bidirectional_attention", .value = 0},
    {.key = "lm_head_bias", .value = 0},
    {.key = "full_attn_mod", .value = 1},
    {.key = "attn_output_gate", .value = 1},
    {.key = "mlp_only_layers", .must_be_empty = true},
    {.key = "interpolate_factor", .value = 1},
    {.key = "attention_chunk_size", .must_be_empty = true},
};

/* Dropout changes only training, and we train without it. */
static const char dropouts[] =
    " attention_dropout resid_pdrop embd_pdrop attn_pdrop hidden_dropout dropout"
    " residual_dropout embedding_dropout ";

bool hy_hf_is_used(const hy_family *family, const char *key) {
    return hy_word_is_in(used, key) || hy_family_has_key(family, key);
}

/* null, false, zero, or an empty list or object */
static bool is_empty(const hy_json_node *node) {
    double number;
    bool is_on;
    switch (hy_json_type_of(node)) {
    case HY_JSON_NULL: return true;
    case HY_JSON_BOOL: return hy_json_as_bool(node, &is_on) && !is_on;
    case HY_JSON_NUMBER: return hy_json_as_double(node, &number) && number == 0;
    case HY_JSON_STRING: return false;
    default: return hy_json_size(node) == 0;
    }
}

static bool has_value(const hy_json_node *node, double value) {
    double number;
    bool is_on;
    if (hy_json_type_of(node) == HY_JSON_NULL) return true;
    if (hy_json_as_bool(node, &is_on)) return is_on == (value != 0);
    return hy_json_as_double(node, &number) && number == value;
}

/* is_known: the field is in the list of fixed ones. */
static hy_status check_fixed(const hy_json_node *member, const char *name, bool *is_known) {
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        if (strcmp(fixed[i].key, hy_json_key(member)) != 0) continue;
        *is_known = true;
        bool is_fine =
            fixed[i].must_be_empty ? is_empty(member) : has_value(member, fixed[i].value);
        if (is_fine) return HY_OK;
        HY_FAIL_IF(fixed[i].must_be_empty, HY_ERR_INPUT,
                   "%s: \"%s\" is not supported; expected null", name, fixed[i].key);
        return hy_fail(HY_ERR_INPUT, "%s: \"%s\" is supported only as %g", name, fixed[i].key,
                       fixed[i].value);
    }
    *is_known = false;
    return HY_OK;
}

hy_status hy_hf_check_fields(const hy_family *family, const hy_json_node *root, const char *name,
                             hy_text *notes) {
    for (const hy_json_node *m = hy_json_first(root); m; m = hy_json_next(m)) {
        const char *key = hy_json_key(m);
        bool is_known;
        if (hy_hf_is_used(family, key) || is_harmless(key)) continue;
        HY_TRY(check_fixed(m, name, &is_known));
        if (is_known) continue;
        if (!hy_word_is_in(dropouts, key)) {
            hy_text_addf(notes, "%s: the unknown field \"%.80s\" is ignored\n", name, key);
        } else if (!is_empty(m)) {
            hy_text_addf(notes,
                         "%s: \"%s\" is not 0, but dropout is not supported and is ignored\n", name,
                         key);
        }
    }
    return hy_text_status(notes);
}
