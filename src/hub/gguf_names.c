/* gguf_names.c: the tables of gguf_names.h.
 *
 * llama.cpp has one fixed function per architecture and ignores keys that it does not know, so a
 * shape that would be computed differently is refused here. */
#include "hub/gguf_names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/say.h"
#include "model/param_names.h"

const hy_config_field hy_gguf_fields[] = {
    {"block_count", HY_CONFIG_SIZE, HY_AT(layers), HY_REQUIRED},
    {"context_length", HY_CONFIG_SIZE, HY_AT(context), HY_REQUIRED},
    {"embedding_length", HY_CONFIG_SIZE, HY_AT(width), HY_REQUIRED},
    {"feed_forward_length", HY_CONFIG_SIZE, HY_AT(mlp_width), HY_REQUIRED},
    {"attention.head_count", HY_CONFIG_SIZE, HY_AT(heads), HY_REQUIRED},
    {"attention.head_count_kv", HY_CONFIG_SIZE, HY_AT(kv_heads), 0},
    {"attention.key_length", HY_CONFIG_SIZE, HY_AT(head_size), 0},
    {"attention.value_length", HY_CONFIG_SIZE, HY_AT(head_size), 0},
    {"vocab_size", HY_CONFIG_SIZE, HY_AT(vocab), 0},
    {0},
};

const char *hy_gguf_norm_key(const hy_shape *s) {
    return s->is_rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
}

static double number_at(const hy_shape *s, const hy_config_field *f) {
    double number;
    memcpy(&number, (const char *)s + f->at, sizeof number);
    return number;
}

/* ---- what llama.cpp cannot run --------------------------------------------------------------- */

static const char *lacks_in_matrices(const hy_shape *s, const hy_family *family) {
    const hy_gguf_arch *arch = &family->gguf;
    hy_mlp_function function = s->more.function, usual = family->base->more.function;
    bool is_gelu = !s->is_gated && (function == HY_MLP_USUAL || function == HY_MLP_GELU);
    bool has_out = hy_shape_out_bias(s), has_mlp = hy_shape_mlp_bias(s);
    if (function != usual && !is_gelu) return "has another activation function";
    if (arch->biases == HY_GGUF_NO_BIASES && (has_out || has_mlp))
        return "has no biases of the attention output and of the mlp";
    if (arch->biases == HY_GGUF_ALL_BIASES && !(has_out && has_mlp && s->has_qkv_bias))
        return "needs the biases of all matrices";
    if (arch->lacks_head && !s->has_tied_head) return "has no head of its own";
    if (arch->is_square && s->heads * s->head_size != s->width)
        return "needs heads x head size = width";
    double divisor = s->more.attention_divisor > 0 ? s->more.attention_divisor : s->head_size;
    double theirs = s->layers == arch->largest ? s->width / s->heads : s->head_size;
    if (s->more.attention_scale <= 0 && divisor != theirs) return "scales attention differently";
    for (const hy_config_field *f = arch->fields; f && f->key; f++) {
        if (f->kind == HY_CONFIG_NUMBER && number_at(s, f) <= 0)
            return "always caps scores and logits";
    }
    return NULL;
}

static const char *lacks_in_rope(const hy_shape *s, const hy_gguf_arch *arch) {
    const hy_rope_options *o = &s->more.rope;
    bool has_yarn = s->rope_scaling == HY_ROPE_SCALED_YARN;
    bool has_limits = o->beta_fast > 0 || o->beta_slow > 0;
    bool is_default = (o->beta_fast <= 0 || o->beta_fast == 32) && o->beta_slow <= 1;
    bool has_switch = false; /* rope in all layers, or in none */
    for (const hy_config_field *f = arch->fields; f && f->key; f++)
        has_switch |= f->kind == HY_CONFIG_POSITIONS;
    for (int32_t l = 0; l < s->layers && s->has_rope; l++) {
        bool is_absent = hy_shape_rope(s, l) == HY_ROPE_ABSENT;
        bool is_theirs = arch->rope_period > 0 && (l + 1) % arch->rope_period == 0;
        if (has_switch ? is_absent != (hy_shape_rope(s, 0) == HY_ROPE_ABSENT)
                       : is_absent != is_theirs)
            return "has rope in other layers";
    }
    if (s->rope_scaling == HY_ROPE_SCALED_LLAMA3 && !(arch->rope & HY_GGUF_LLAMA3))
        return "has no rope scaling of type llama3";
    if (s->rope_scaling == HY_ROPE_SCALED_LONGROPE && !(arch->rope & HY_GGUF_LONGROPE))
        return "has no rope scaling of type longrope";
    if (has_yarn && o->is_untruncated) return "has no yarn without truncation";
    if (has_yarn && has_limits && !is_default && !(arch->rope & HY_GGUF_YARN_LIMITS))
        return "has fixed limits of yarn: beta_fast 32, beta_slow 1";
    if (has_yarn && (arch->rope & HY_GGUF_LOCAL_BASE)) return "has no rope scaling of type yarn";
    bool is_other = o->local_theta > 0 && o->local_theta != s->rope_theta;
    if (is_other && !(arch->rope & HY_GGUF_LOCAL_BASE))
        return "has the same rope base in all layers";
    return NULL;
}

/* Linear attention in all but one of so many layers, with heads of one size. */
static const char *lacks_in_linear(const hy_shape *s) {
    const hy_linear_options *l = &s->more.linear;
    if (!l->layers[0]) return NULL;
    if (hy_shape_interval(s) == 0) return "has full attention in other layers";
    if (l->key_dim != l->value_dim) return "has keys and values of the same size";
    return NULL;
}

static bool is_known(const hy_family *family) { return family && family->gguf.name; }

/* "gpt2, llama, ...": the families that llama.cpp runs. */
static void list_families(hy_text *text) {
    for (int arch = HY_ARCH_NONE + 1; arch < HY_ARCH_COUNT; arch++) {
        const hy_family *family = hy_family_of((hy_arch)arch);
        if (is_known(family)) hy_text_addf(text, "%s%s", text->size ? ", " : "", family->name);
    }
}

hy_status hy_gguf_check(const hy_shape *s, const hy_observer *observer) {
    const hy_family *family = hy_family_of(s->arch);
    if (!is_known(family)) {
        hy_text known = {0};
        list_families(&known);
        hy_status status =
            hy_fail(HY_ERR_INPUT,
                    "llama.cpp cannot run this model: it has no architecture for %s; it has %s",
                    family ? family->name : "such a shape", hy_text_string(&known));
        hy_text_free(&known);
        return status;
    }
    const hy_gguf_arch *arch = &family->gguf;
    const char *lacking = lacks_in_matrices(s, family);
    if (!lacking) lacking = lacks_in_rope(s, arch);
    if (!lacking) lacking = lacks_in_linear(s);
    HY_FAIL_IF(lacking, HY_ERR_INPUT,
               "llama.cpp cannot run this model: its architecture %s for %s %s", arch->name,
               family->name, lacking);
    bool has_window = s->sliding_window > 0 && s->sliding_window < s->context;
    if (has_window && !arch->has_windows)
        hy_say_to(observer, HY_WARNING,
                  "llama.cpp has no sliding window for %s: beyond %d tokens it computes something "
                  "else",
                  family->name, s->sliding_window);
    if (!s->is_gated && s->more.function == HY_MLP_GELU)
        hy_say_to(
            observer, HY_WARNING,
            "llama.cpp computes gelu of %s by its tanh form, and the model has the exact one: "
            "logits differ a little",
            family->name);
    if (s->rope_scaling == HY_ROPE_SCALED_DYNAMIC)
        hy_say_to(observer, HY_WARNING,
                  "llama.cpp has no dynamic rope scaling: the file's context is the original one, "
                  "%d tokens",
                  s->rope_original_context);
    return HY_OK;
}

/* ---- keys ------------------------------------------------------------------------------------ */

hy_gguf_key_name hy_gguf_key_of(const hy_family *family, const char *key) {
    hy_gguf_key_name name;
    snprintf(name.text, sizeof name.text, "%s.%s", family->gguf.name, key);
    return name;
}
#define KEY(key) hy_gguf_key_of(hy_family_of(s->arch), key).text

static void put_field(const hy_shape *s, const hy_config_field *f, hy_gguf_keys *keys) {
    int32_t size;
    double number;
    bool is_on;
    switch (f->kind) {
    case HY_CONFIG_SIZE:
        memcpy(&size, (const char *)s + f->at, sizeof size);
        if (f->at == HY_AT(context) && s->rope_scaling == HY_ROPE_SCALED_DYNAMIC)
            size = s->rope_original_context;
        hy_gguf_put_int(keys, KEY(f->key), HY_GGUF_U32, size);
        break;
    case HY_CONFIG_SWITCH:
        memcpy(&is_on, (const char *)s + f->at, sizeof is_on);
        hy_gguf_put_bool(keys, KEY(f->key), is_on);
        break;
    case HY_CONFIG_INTERVAL:
        hy_gguf_put_int(keys, KEY(f->key), HY_GGUF_U32, hy_shape_interval(s));
        break;
    case HY_CONFIG_POSITIONS:
        hy_gguf_put_bool(keys, KEY(f->key), hy_shape_rope(s, 0) != HY_ROPE_ABSENT);
        break;
    default:
        number = number_at(s, f);
        if (number == 0 && f->kind == HY_CONFIG_FACTOR) number = 1;
        if (number != 0) hy_gguf_put_f32(keys, KEY(f->key), number);
    }
}

static double yarn_mscale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

double hy_gguf_yarn_factor(double factor, double multiplier) {
    double whole = yarn_mscale(factor, 1);
    return multiplier > 0 ? whole / yarn_mscale(factor, multiplier) : whole;
}

static void put_yarn(const hy_shape *s, hy_gguf_keys *keys) {
    const hy_rope_options *o = &s->more.rope;
    bool has_limits = hy_family_of(s->arch)->gguf.rope & HY_GGUF_YARN_LIMITS;
    if (has_limits) {
        if (o->beta_fast > 0)
            hy_gguf_put_f32(keys, KEY("rope.scaling.yarn_beta_fast"), o->beta_fast);
        if (o->beta_slow > 0)
            hy_gguf_put_f32(keys, KEY("rope.scaling.yarn_beta_slow"), o->beta_slow);
        if (o->mscale_all_dim > 0)
            hy_gguf_put_f32(keys, KEY("rope.scaling.yarn_log_multiplier"), o->mscale_all_dim);
    }
    double theirs = hy_gguf_yarn_factor(s->rope_factor, has_limits ? o->mscale_all_dim : 0);
    double missing = hy_shape_rope_attention(s) / theirs;
    if (fabs(missing - 1) > 1e-9) hy_gguf_put_f32(keys, KEY("rope.scaling.attn_factor"), missing);
}

static void put_rope(const hy_shape *s, hy_gguf_keys *keys) {
    static const char *const words[] = {[HY_ROPE_SCALED_LINEAR] = "linear",
                                        [HY_ROPE_SCALED_YARN] = "yarn",
                                        [HY_ROPE_SCALED_LONGROPE] = "longrope"};
    bool has_yarn = s->rope_scaling == HY_ROPE_SCALED_YARN;
    bool has_longrope = s->rope_scaling == HY_ROPE_SCALED_LONGROPE;
    bool has_linear = s->rope_scaling == HY_ROPE_SCALED_LINEAR;
    hy_gguf_put_int(keys, KEY("rope.dimension_count"), HY_GGUF_U32, hy_shape_rotary(s));
    hy_gguf_put_f32(keys, KEY("rope.freq_base"), s->rope_theta);
    if (s->more.rope.local_theta > 0)
        hy_gguf_put_f32(keys, KEY("rope.freq_base_swa"), s->more.rope.local_theta);
    if (!has_yarn && !has_linear && !has_longrope) return;
    hy_gguf_put_string(keys, KEY("rope.scaling.type"), words[s->rope_scaling]);
    if (!has_longrope) hy_gguf_put_f32(keys, KEY("rope.scaling.factor"), s->rope_factor);
    if (!has_linear)
        hy_gguf_put_int(keys, KEY("rope.scaling.original_context_length"), HY_GGUF_U32,
                        s->rope_original_context);
    if (has_yarn) put_yarn(s, keys);
    if (has_longrope)
        hy_gguf_put_f32(keys, KEY("rope.scaling.attn_factor"), hy_shape_rope_attention(s));
}

/* The rope of Qwen3.5 has positions in time, height and width, which are equal in a text. */
static void put_linear(const hy_shape *s, hy_gguf_keys *keys) {
    int32_t pairs = hy_shape_rotary(s) / 2;
    hy_gguf_put_int(keys, KEY("ssm.inner_size"), HY_GGUF_U32, hy_shape_linear_out(s));
    hy_gguf_open_array(keys, KEY("rope.dimension_sections"), HY_GGUF_I32, 4);
    for (int32_t more = 2; more >= 0; more--)
        hy_gguf_put_int(keys, NULL, HY_GGUF_I32, (pairs + more) / 3);
    hy_gguf_put_int(keys, NULL, HY_GGUF_I32, 0);
}

void hy_gguf_put_shape(const hy_shape *s, hy_gguf_keys *keys) {
    const hy_gguf_arch *arch = &hy_family_of(s->arch)->gguf;
    for (const hy_config_field *f = hy_gguf_fields; f->key; f++) put_field(s, f, keys);
    hy_gguf_put_f32(keys, KEY(hy_gguf_norm_key(s)), s->norm_eps);
    if (s->has_rope) put_rope(s, keys);
    for (const hy_config_field *f = arch->fields; f && f->key; f++) put_field(s, f, keys);
    if (s->more.linear.layers[0]) put_linear(s, keys);
    if (!arch->has_windows) return;
    if (s->sliding_window > 0)
        hy_gguf_put_int(keys, KEY("attention.sliding_window"), HY_GGUF_U32, s->sliding_window);
    hy_gguf_open_array(keys, KEY("attention.sliding_window_pattern"), HY_GGUF_BOOL,
                       (uint64_t)s->layers);
    for (int32_t l = 0; l < s->layers; l++) hy_gguf_put_bool(keys, NULL, hy_shape_window(s, l) > 0);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static hy_hf_tiles tiles_of(const hy_shape *s, hy_param_kind kind) {
    const hy_linear_options *l = &s->more.linear;
    int32_t keys = 2 * l->key_heads * l->key_dim;
    hy_hf_tiles of_rows = {l->key_heads, l->heads / l->key_heads, l->value_dim, 0, false};
    hy_hf_tiles of_heads = of_rows, of_qkv = of_rows, of_columns = of_rows;
    of_heads.size = 1;
    of_qkv.from = keys;
    of_columns.are_columns = true;
    switch (kind) {
    case HY_P_LINEAR_QKV:
    case HY_P_CONV: return of_qkv;
    case HY_P_LINEAR_Z: return of_rows;
    case HY_P_LINEAR_BA:
    case HY_P_A_LOG:
    case HY_P_DT_BIAS: return of_heads;
    case HY_P_LINEAR_OUT: return of_columns;
    default: return (hy_hf_tiles){0};
    }
}

hy_status hy_gguf_list_names(const hy_shape *s, const hy_params *params, hy_hf_name **out,
                             int32_t *count) {
    hy_family family = *hy_family_of(s->arch);
    int32_t table = hy_params_tied_table(params);
    family.modules = family.gguf.modules;
    HY_TRY(hy_hf_list_names(&family, "", s, params, out, count));
    for (int32_t i = 0; i < *count && family.gguf.is_paired; i++) {
        hy_hf_name *name = &(*out)[i];
        bool is_paired = strstr(name->name, ".attn_q.") || strstr(name->name, ".attn_k.");
        if (is_paired) name->head_size = s->head_size;
    }
    const hy_linear_options *l = &s->more.linear;
    for (int32_t i = 0; i < *count && l->layers[0] && l->heads > l->key_heads; i++)
        (*out)[i].tiles = tiles_of(s, params->list[(*out)[i].param].kind);
    if (table < 0 || !family.gguf.needs_head) return HY_OK;
    /* the list has room for three names per parameter, and an embedding has one */
    hy_hf_name *head = &(*out)[(*count)++];
    for (int32_t i = 0; i < *count - 1; i++) {
        if ((*out)[i].param == table) *head = (*out)[i];
    }
    snprintf(head->name, sizeof head->name, "%s.weight", family.modules[HY_P_HEAD].part[0]);
    return HY_OK;
}

void hy_gguf_pair(const float *ours, int64_t rows, int64_t cols, int32_t head_size, float *out) {
    int32_t half = head_size / 2;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = row % head_size;
        int64_t from = row - at + at % 2 * half + at / 2;
        memcpy(out + row * cols, ours + from * cols, (size_t)cols * sizeof *out);
    }
}

static int32_t tiled_head(const hy_hf_tiles *t, int32_t in_file) {
    return in_file % t->groups * t->in_group + in_file / t->groups;
}

int64_t hy_gguf_row_of_ours(const hy_hf_name *name, int64_t in_file, int64_t *run) {
    const hy_hf_tiles *t = &name->tiles;
    bool is_tiled = t->groups > 0 && !t->are_columns && in_file >= t->from;
    int64_t end = t->groups > 0 && !t->are_columns && !is_tiled ? t->from : name->rows;
    *run = end - in_file;
    if (!is_tiled) return in_file;
    int64_t at = in_file - t->from, in_head = at % t->size;
    *run = t->size - in_head;
    return t->from + (int64_t)tiled_head(t, (int32_t)(at / t->size)) * t->size + in_head;
}

void hy_gguf_tile_columns(const hy_hf_tiles *t, const void *from, int64_t rows, int64_t cols,
                          size_t size, bool to_file, void *out) {
    size_t head_bytes = (size_t)t->size * size, row_bytes = (size_t)cols * size;
    for (int64_t row = 0; row < rows; row++) {
        const char *ours = (const char *)from + (size_t)row * row_bytes;
        char *to = (char *)out + (size_t)row * row_bytes;
        for (int32_t head = 0; head < t->groups * t->in_group; head++) {
            size_t file_at = (size_t)head * head_bytes;
            size_t our_at = (size_t)tiled_head(t, head) * head_bytes;
            memcpy(to + (to_file ? file_at : our_at), ours + (to_file ? our_at : file_at),
                   head_bytes);
        }
    }
}

float hy_gguf_surplus(const hy_shape *s, const hy_hf_name *name, hy_param_kind kind) {
    bool is_own = kind == HY_P_A_LOG || kind == HY_P_DT_BIAS || kind == HY_P_LINEAR_NORM;
    bool is_norm = name->ndim == 1 && hy_param_weight_of(kind) == kind && !is_own;
    return is_norm ? (float)s->more.norm_offset : 0;
}

static void add_divisors(const hy_shape *s, const char *name, int32_t seq,
                         hy_gguf_shape_tensor *out) {
    out->name = name;
    out->count = hy_shape_rotary(s) / 2;
    for (int32_t i = 0; i < out->count; i++)
        out->values[i] = (float)hy_shape_rope_divisor(s, seq, i);
}

int hy_gguf_shape_tensors(const hy_shape *s, hy_gguf_shape_tensor out[HY_GGUF_SHAPE_TENSORS]) {
    if (!s->has_rope) return 0;
    int32_t original = s->rope_original_context;
    if (s->rope_scaling == HY_ROPE_SCALED_LLAMA3) {
        add_divisors(s, "rope_freqs.weight", original, &out[0]);
        return 1;
    }
    if (s->rope_scaling != HY_ROPE_SCALED_LONGROPE) return 0;
    add_divisors(s, "rope_factors_long.weight", original + 1, &out[0]);
    add_divisors(s, "rope_factors_short.weight", original, &out[1]);
    return 2;
}
