/* gguf_config.c: the shape of a model from the keys of a GGUF file. See gguf_load.h.
 *
 * Before a key comes the name of the architecture and a dot. What no key says follows from the
 * tensors that are there (biases, an own head, a norm of q and k, the scaling of Llama 3) or is a
 * constant of llama.cpp for the architecture. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "hub/gguf_load.h"
#include "hub/hf_export.h"
#include "model/arch/config_parts.h"
#include "tokenizer/tokenizer_gguf.h"
#include "tokenizer/tokenizer_sentencepiece.h"

#define LARGEST_SIZE (1 << 24)
#define USUAL_THETA 10000

typedef struct key_reader {
    const hy_gguf *file;
    const char *path;
    const hy_family *family;
    hy_shape *shape;
    hy_text *notes;
} key_reader;

/* ---- single values --------------------------------------------------------------------------- */

#define KEY(key) hy_gguf_key_of(r->family, key).text

static const hy_gguf_value *value_of(const key_reader *r, const char *key) {
    return hy_gguf_get(r->file, KEY(key));
}

static hy_status refuse(const key_reader *r, const char *key, const char *expected) {
    return hy_fail(HY_ERR_INPUT, "%s: key %s %s %s", r->path, KEY(key),
                   value_of(r, key) ? "is not" : "is missing; expected", expected);
}

/* A list has a number for each layer: all must be equal. */
static hy_status read_size(const key_reader *r, const char *key, int32_t fallback, int32_t *out) {
    const hy_gguf_value *value = value_of(r, key);
    int64_t first, each;
    *out = fallback;
    if (!value && fallback != HY_REQUIRED) return HY_OK;
    if (!hy_gguf_as_int(value, 0, &first) || first < 1 || first > LARGEST_SIZE)
        return refuse(r, key, "a whole number from 1 to 16777216");
    for (size_t i = 1; i < hy_gguf_size(value); i++) {
        if (!hy_gguf_as_int(value, i, &each) || each != first)
            return hy_fail(HY_ERR_INPUT,
                           "%s: key %s has different numbers for different layers; only one number "
                           "for all layers is supported",
                           r->path, KEY(key));
    }
    *out = (int32_t)first;
    return HY_OK;
}

/* Files have fp32: the shortest decimal number that is the same in fp32 is what was meant. */
static double as_meant(double value) {
    char text[32];
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        double shorter = strtod(text, NULL);
        if ((float)shorter == (float)value) return shorter;
    }
    return value;
}

static hy_status read_number(const key_reader *r, const char *key, double fallback, double *out) {
    const hy_gguf_value *value = value_of(r, key);
    double number;
    *out = fallback;
    if (!value && fallback != HY_REQUIRED) return HY_OK;
    bool is_number = !hy_gguf_is_array(value) && hy_gguf_as_real(value, 0, &number);
    if (!is_number || !(number >= 0 && number < 1e30)) return refuse(r, key, "a number from 0 on");
    *out = as_meant(number);
    return HY_OK;
}

static hy_status read_field(const key_reader *r, const hy_config_field *f) {
    void *at = (char *)r->shape + f->at;
    int32_t size;
    double number;
    bool is_on = f->fallback != 0;
    switch (f->kind) {
    case HY_CONFIG_SIZE:
        HY_TRY(read_size(r, f->key, (int32_t)f->fallback, &size));
        int32_t other = *(int32_t *)at;
        HY_FAIL_IF(
            other > 0 && size > 0 && other != size, HY_ERR_INPUT,
            "%s: key %s is %d, but another key says %d for the same size; both must be equal",
            r->path, KEY(f->key), size, other);
        if (size > 0) memcpy(at, &size, sizeof size);
        return HY_OK;
    case HY_CONFIG_INTERVAL:
        HY_TRY(read_size(r, f->key, (int32_t)f->fallback, &size));
        HY_FAIL_IF(!hy_shape_set_interval(r->shape, size), HY_ERR_INPUT,
                   "%s: key %s is %d; supported: up to %d", r->path, KEY(f->key), size,
                   HY_INTERVAL_MAX);
        return HY_OK;
    case HY_CONFIG_SWITCH:
    case HY_CONFIG_POSITIONS:
        if (value_of(r, f->key) && !hy_gguf_as_bool(value_of(r, f->key), 0, &is_on))
            return refuse(r, f->key, "true or false");
        if (f->kind == HY_CONFIG_SWITCH)
            memcpy(at, &is_on, sizeof is_on);
        else
            strcpy(at, is_on ? "" : "n");
        return HY_OK;
    default:
        HY_TRY(read_number(r, f->key, f->fallback, &number));
        if (f->kind == HY_CONFIG_FACTOR && number == 1) number = 0;
        memcpy(at, &number, sizeof number);
        return HY_OK;
    }
}

/* ---- the family ------------------------------------------------------------------------------ */

static bool has_kind(const hy_family *family, hy_config_kind kind) {
    for (const hy_config_field *f = family->fields; f->key; f++) {
        if (f->kind == kind) return true;
    }
    return false;
}

static hy_status refuse_family(const key_reader *r, const char *name) {
    hy_text known = {0};
    for (int arch = HY_ARCH_NONE + 1; arch < HY_ARCH_COUNT; arch++) {
        const char *word = hy_family_of((hy_arch)arch)->gguf.name;
        bool is_new = word != NULL;
        for (int k = HY_ARCH_NONE + 1; k < arch && is_new; k++) {
            const char *other = hy_family_of((hy_arch)k)->gguf.name;
            is_new = !other || strcmp(other, word) != 0;
        }
        if (is_new) hy_text_addf(&known, "%s%s", known.size ? ", " : "", word);
    }
    hy_status status = hy_fail(HY_ERR_INPUT, "%s: general.architecture is %.60s; supported: %s",
                               r->path, name[0] ? name : "missing", hy_text_string(&known));
    hy_text_free(&known);
    return status;
}

/* Several families share an architecture: one with a window, and one without; Granite 4 has layers
 * without rope. */
static hy_status find_family(key_reader *r) {
    const char *name = "", *type = "model";
    hy_gguf_as_string(hy_gguf_get(r->file, "general.type"), 0, &type, NULL);
    hy_gguf_as_string(hy_gguf_get(r->file, "general.architecture"), 0, &name, NULL);
    HY_FAIL_IF(strcmp(type, "model") != 0, HY_ERR_INPUT,
               "%s: general.type is %.60s; a model is expected", r->path, type);
    for (int arch = HY_ARCH_NONE + 1; arch < HY_ARCH_COUNT; arch++) {
        const hy_family *family = hy_family_of((hy_arch)arch);
        key_reader of = {.file = r->file, .family = family};
        if (!family->gguf.name || strcmp(family->gguf.name, name) != 0) continue;
        int64_t window = 0;
        bool has_rope = true;
        hy_gguf_as_int(value_of(&of, "attention.sliding_window"), 0, &window);
        hy_gguf_as_bool(value_of(&of, "rope.scaling.finetuned"), 0, &has_rope);
        bool fits = (window <= 0 || has_kind(family, HY_CONFIG_WINDOW)) &&
                    (has_rope || has_kind(family, HY_CONFIG_POSITIONS));
        if (r->family && !fits) continue;
        r->family = family;
        r->shape->arch = (hy_arch)arch;
        if (fits) break;
    }
    return r->family ? HY_OK : refuse_family(r, name);
}

/* ---- rope ------------------------------------------------------------------------------------ */

static hy_status read_factors(const key_reader *r, const char *name, int32_t count, double *out) {
    const hy_gguf_tensor *t = hy_gguf_find(r->file, name);
    float values[HY_ROPE_PAIRS_MAX];
    uint64_t offset;
    bool fits = t && t->type == HY_BLOCK_F32 && t->ndim == 1 && t->shape[0] == count;
    HY_FAIL_IF(!fits || count > HY_ROPE_PAIRS_MAX, HY_ERR_INPUT,
               "%s: tensor %s is %s; expected %d numbers in f32, one for each rotated pair",
               r->path, name, t ? "of another shape or type" : "missing", count);
    const hy_reader *reader = hy_gguf_place(r->file, t, &offset);
    HY_TRY(hy_reader_get(reader, offset, values, (uint64_t)count * sizeof *values));
    for (int32_t i = 0; i < count; i++) {
        HY_FAIL_IF(!(values[i] > 0 && values[i] < 1e30f), HY_ERR_INPUT,
                   "%s: tensor %s has the number %g; expected numbers above 0", r->path, name,
                   values[i]);
        out[i] = as_meant(values[i]);
    }
    return HY_OK;
}

static bool divides(const hy_shape *s, const double *divisors, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        double ours = hy_shape_rope_divisor(s, s->rope_original_context, i);
        if (fabs(ours / divisors[i] - 1) > 1e-5) return false;
    }
    return true;
}

static hy_status refuse_factors(const key_reader *r) {
    return hy_fail(HY_ERR_INPUT,
                   "%s: rope_freqs.weight has other numbers than the rope scaling of Llama 3; no "
                   "others are supported",
                   r->path);
}

/* rope_freqs.weight divides the frequencies by 1 above high_freq turns in the original context, by
 * the factor below low_freq turns, and between them the inverse is a linear function of the
 * frequency: two pairs there give both limits. Only the limits divided by the original context
 * count, so low_freq is 1; the usual values are tried first. */
static hy_status read_llama3(const key_reader *r) {
    hy_shape *s = r->shape;
    int32_t count = hy_shape_rotary(s) / 2, inside[2] = {-1, -1};
    double divisors[HY_ROPE_PAIRS_MAX], blend[2], turns[2];
    HY_TRY(read_factors(r, "rope_freqs.weight", count, divisors));
    double factor = divisors[count - 1];
    bool is_plain = true;
    for (int32_t i = 0; i < count; i++) is_plain &= divisors[i] == 1;
    if (is_plain) return HY_OK;
    HY_FAIL_IF(s->rope_scaling != HY_ROPE_UNSCALED, HY_ERR_INPUT,
               "%s has both rope_freqs.weight and another rope scaling; only one of them is "
               "supported",
               r->path);
    if (factor == 1) return refuse_factors(r);
    s->rope_scaling = HY_ROPE_SCALED_LLAMA3;
    s->rope_factor = factor;
    s->rope_low_freq = 1;
    s->rope_high_freq = 4;
    for (s->rope_original_context = 8192; s->rope_original_context >= 16;
         s->rope_original_context /= 2) {
        if (divides(s, divisors, count)) return HY_OK;
    }
    for (int32_t i = 0; i < count; i++) {
        if (divisors[i] > 1 && divisors[i] < factor) inside[inside[0] < 0 ? 0 : 1] = i;
    }
    for (int k = 0; k < 2 && inside[1] >= 0; k++) {
        blend[k] = (1 / divisors[inside[k]] - 1 / factor) / (1 - 1 / factor);
        turns[k] = pow(s->rope_theta, -2.0 * inside[k] / (2.0 * count)) / (2 * M_PI);
    }
    if (inside[1] >= 0) { /* blend = slope * turns - low / (high - low) */
        double slope = (blend[1] - blend[0]) / (turns[1] - turns[0]);
        double width = 1 / (slope * turns[0] - blend[0]); /* high - low, with low = 1 */
        s->rope_high_freq = as_meant(1 + width);
        s->rope_original_context = (int32_t)fmin(fmax(round(slope * width), 1), LARGEST_SIZE);
        if (divides(s, divisors, count)) return HY_OK;
    }
    return refuse_factors(r);
}

/* llama.cpp derives a factor of cosine and sine; attn_factor multiplies it. Its converter stores
 * the whole factor in yarn_attn_factor, which llama.cpp does not read. */
static hy_status read_yarn(const key_reader *r) {
    hy_shape *s = r->shape;
    hy_rope_options *o = &s->more.rope;
    double factor, theirs;
    HY_TRY(read_number(r, "rope.scaling.yarn_beta_fast", 0, &o->beta_fast));
    HY_TRY(read_number(r, "rope.scaling.yarn_beta_slow", 0, &o->beta_slow));
    HY_TRY(read_number(r, "rope.scaling.yarn_log_multiplier", 0, &o->mscale_all_dim));
    HY_TRY(read_number(r, "rope.scaling.attn_factor", 1, &factor));
    theirs = hy_gguf_yarn_factor(s->rope_factor, o->mscale_all_dim);
    HY_TRY(read_number(r, "rope.scaling.yarn_attn_factor", factor * theirs, &theirs));
    if (fabs(hy_shape_rope_attention(s) / theirs - 1) > 1e-6)
        o->attention_factor = as_meant(theirs);
    return HY_OK;
}

static hy_status read_longrope(const key_reader *r) {
    hy_shape *s = r->shape;
    hy_rope_options *o = &s->more.rope;
    int32_t count = hy_shape_rotary(s) / 2;
    double factor;
    HY_TRY(read_factors(r, "rope_factors_short.weight", count, o->short_factors));
    HY_TRY(read_factors(r, "rope_factors_long.weight", count, o->long_factors));
    HY_TRY(read_number(r, "rope.scaling.attn_factor", 0, &factor));
    s->rope_factor = (double)s->context / s->rope_original_context;
    if (factor > 0 && fabs(hy_shape_rope_attention(s) / factor - 1) > 1e-6)
        o->attention_factor = factor;
    return HY_OK;
}

static hy_status read_scaling(const key_reader *r) {
    hy_shape *s = r->shape;
    const char *type = "none";
    double factor;
    HY_TRY(read_number(r, "rope.scaling.factor", 0, &factor));
    if (factor == 0) HY_TRY(read_number(r, "rope.scale_linear", 0, &factor)); /* its old name */
    if (factor > 0 && factor != 1) type = "linear";
    hy_gguf_as_string(value_of(r, "rope.scaling.type"), 0, &type, NULL);
    bool is_yarn = strcmp(type, "yarn") == 0, is_long = strcmp(type, "longrope") == 0;
    bool is_linear = strcmp(type, "linear") == 0, has_factors = false;
    HY_TRY(read_size(r, "rope.scaling.original_context_length", s->context,
                     &s->rope_original_context));
    has_factors = hy_gguf_find(r->file, "rope_factors_long.weight") != NULL;
    if (is_long || has_factors) s->rope_scaling = HY_ROPE_SCALED_LONGROPE;
    if (is_long || has_factors) return read_longrope(r);
    HY_FAIL_IF(!is_yarn && !is_linear && strcmp(type, "none") != 0, HY_ERR_INPUT,
               "%s: %s is %.40s; supported: none, linear, yarn, longrope", r->path,
               KEY("rope.scaling.type"), type);
    bool is_none = !is_yarn && !is_linear;
    if (is_none) s->rope_original_context = 0;
    if (is_none || factor <= 0 || (!is_yarn && factor == 1)) return HY_OK;
    s->rope_factor = factor;
    s->rope_scaling = is_yarn ? HY_ROPE_SCALED_YARN : HY_ROPE_SCALED_LINEAR;
    return is_yarn ? read_yarn(r) : HY_OK;
}

static hy_status read_rope(const key_reader *r) {
    hy_shape *s = r->shape;
    hy_rope_options *o = &s->more.rope;
    int32_t rotated, period = r->family->gguf.rope_period;
    bool has_local = r->family->gguf.rope & HY_GGUF_LOCAL_BASE, has_share = false;
    HY_TRY(read_number(r, "rope.freq_base", USUAL_THETA, &s->rope_theta));
    HY_TRY(read_number(r, "rope.freq_base_swa", has_local ? USUAL_THETA : 0, &o->local_theta));
    HY_TRY(read_size(r, "rope.dimension_count", s->head_size, &rotated));
    for (const hy_config_field *f = r->family->fields; f->key; f++)
        has_share |= f->at == HY_AT(more.rope.share);
    HY_FAIL_IF(rotated > s->head_size || (rotated < s->head_size && !has_share), HY_ERR_INPUT,
               "%s: %s is %d; %s rotates all %d elements of a head", r->path,
               KEY("rope.dimension_count"), rotated, r->family->name, s->head_size);
    if (rotated < s->head_size) o->share = (double)rotated / s->head_size;
    if (hy_shape_rotary(s) < rotated) o->share = nextafter(o->share, 1);
    if (period > 0 && period < HY_SLIDING_LAYERS_MAX && s->layers >= period) {
        memset(o->layers, 'r', (size_t)period);
        o->layers[period - 1] = 'n';
    }
    HY_TRY(read_scaling(r));
    return hy_gguf_find(r->file, "rope_freqs.weight") ? read_llama3(r) : HY_OK;
}

/* ---- windows --------------------------------------------------------------------------------- */

/* The pattern is a bool for each layer, or a period: then the last layer of each has no window. */
static hy_status read_windows(const key_reader *r) {
    hy_shape *s = r->shape;
    const hy_gguf_value *pattern = value_of(r, "attention.sliding_window_pattern");
    int32_t window, period = r->family->window_period;
    bool is_list = hy_gguf_is_array(pattern), is_sliding;
    int64_t given = 0;
    hy_gguf_as_int(value_of(r, "attention.sliding_window"), 0, &given); /* 0: none */
    if (given == 0 || !has_kind(r->family, HY_CONFIG_WINDOW)) return HY_OK;
    HY_TRY(read_size(r, "attention.sliding_window", 0, &window));
    if (pattern && !is_list)
        HY_TRY(read_size(r, "attention.sliding_window_pattern", HY_REQUIRED, &period));
    if (is_list && hy_gguf_size(pattern) != (size_t)s->layers)
        return refuse(r, "attention.sliding_window_pattern", "a list with a bool for each layer");
    char *letters = malloc((size_t)s->layers);
    HY_FAIL_IF(!letters, HY_ERR_MEMORY, "not enough memory for a list of %d layers", s->layers);
    for (int32_t l = 0; l < s->layers; l++) {
        is_sliding = period == 0 || (l + 1) % period != 0;
        hy_gguf_as_bool(pattern, (size_t)l, &is_sliding);
        letters[l] = is_sliding ? 's' : 'f';
    }
    bool has_full = memchr(letters, 'f', (size_t)s->layers);
    bool has_window = memchr(letters, 's', (size_t)s->layers);
    bool is_needed = window < s->context || hy_shape_rope_count(s) > 1;
    bool fits = true;
    if (has_window && (!has_full || is_needed)) {
        s->sliding_window = window;
        if (has_full)
            fits =
                hy_config_pattern(letters, s->layers, s->sliding_layers, sizeof s->sliding_layers);
    }
    free(letters);
    return fits ? HY_OK : refuse(r, "attention.sliding_window_pattern", "a short pattern");
}

/* ---- everything ------------------------------------------------------------------------------ */

static bool has_tensor(const key_reader *r, const char *name) {
    return hy_gguf_find(r->file, name) != NULL;
}

static hy_status read_tensors(const key_reader *r) {
    hy_shape *s = r->shape;
    const hy_gguf_tensor *table = hy_gguf_find(r->file, "token_embd.weight");
    bool has_out = has_tensor(r, "blk.0.attn_output.bias"),
         has_mlp = has_tensor(r, "blk.0.ffn_down.bias");
    HY_FAIL_IF(!table || table->ndim != 2 || table->shape[0] > LARGEST_SIZE, HY_ERR_INPUT,
               "%s: tensor token_embd.weight is %s", r->path,
               table ? "not a table of tokens" : "missing");
    HY_FAIL_IF(s->vocab > 0 && s->vocab != table->shape[0], HY_ERR_INPUT,
               "%s: %s is %d, but tensor token_embd.weight has %lld rows", r->path,
               KEY("vocab_size"), s->vocab, (long long)table->shape[0]);
    HY_FAIL_IF((size_t)s->layers > hy_gguf_count(r->file), HY_ERR_INPUT,
               "%s: %s is %d, but the file has only %zu tensors", r->path, KEY("block_count"),
               s->layers, hy_gguf_count(r->file));
    bool is_causal = true;
    hy_gguf_as_bool(value_of(r, "attention.causal"), 0, &is_causal);
    HY_FAIL_IF(!is_causal, HY_ERR_INPUT, "%s: %s is false; only causal attention is supported",
               r->path, KEY("attention.causal"));
    s->vocab = (int32_t)table->shape[0];
    s->has_tied_head = !has_tensor(r, "output.weight");
    s->has_qkv_bias = has_tensor(r, "blk.0.attn_q.bias") || has_tensor(r, "blk.0.attn_qkv.bias");
    s->has_proj_bias = has_out || has_mlp;
    s->lacks_out_bias = has_mlp && !has_out;
    s->lacks_mlp_bias = has_out && !has_mlp;
    return HY_OK;
}

/* Keys of parts that we do not have. Other keys that are not known do no harm: the tensors must
 * still be exactly those of the model. */
static hy_status check_others(const key_reader *r) {
    static const char known[] =
        " attention.layer_norm_epsilon attention.layer_norm_rms_epsilon rope.dimension_count"
        " rope.freq_base rope.freq_base_swa rope.scaling.type rope.scaling.factor"
        " rope.scaling.attn_factor rope.scaling.original_context_length rope.scaling.finetuned"
        " rope.scaling.yarn_attn_factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow "
        "rope.scaling.yarn_log_multiplier"
        " rope.dimension_sections rope.mrope_interleaved rope.scale_linear "
        "attention.sliding_window attention.sliding_window_pattern"
        " attention.key_length_swa attention.value_length_swa attention.causal ";
    static const char *const parts[] = {"expert_count", "lora_rank", "nextn_predict", "altup"};
    /* These change the numbers and not the tensors; 0 and 1 change nothing. */
    static const char *const changes[] = {"scale", "softcapping", "clamp", "alibi", "temperature"};
    size_t length = strlen(r->family->gguf.name);
    for (size_t i = 0; i < hy_gguf_key_count(r->file); i++) {
        const char *key;
        const hy_gguf_value *value = hy_gguf_key_at(r->file, i, &key);
        double number = 0;
        bool is_known = strncmp(key, r->family->gguf.name, length) != 0 || key[length] != '.';
        const char *name = is_known ? key : key + length + 1;
        for (const hy_config_field *f = hy_gguf_fields; f->key; f++)
            is_known |= strcmp(f->key, name) == 0;
        for (const hy_config_field *f = r->family->gguf.fields; f && f->key; f++)
            is_known |= strcmp(f->key, name) == 0;
        is_known |= hy_word_is_in(known, name);
        /* of Granite 4 without experts and Mamba layers */
        is_known |= strcmp(name, "expert_shared_feed_forward_length") == 0 ||
                    strcmp(name, "expert_used_count") == 0 || strncmp(name, "ssm.", 4) == 0;
        if (is_known) continue;
        bool is_zero = hy_gguf_as_real(value, 0, &number) && number == 0;
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
            HY_FAIL_IF(strstr(name, parts[k]) && !is_zero, HY_ERR_INPUT,
                       "%s: key %.100s says that the model has parts that are not supported",
                       r->path, key);
        }
        bool is_neutral = is_zero || number == 1;
        for (size_t k = 0; k < sizeof changes / sizeof changes[0]; k++) {
            HY_FAIL_IF(strstr(name, changes[k]) && !is_neutral, HY_ERR_INPUT,
                       "%s: key %.100s is %g, which models of architecture %s do not have here",
                       r->path, key, number, r->family->gguf.name);
        }
        if (!is_zero)
            hy_text_addf(r->notes, "%s: key %.100s is not known and was not used\n", r->path, key);
    }
    return HY_OK;
}

hy_status hy_gguf_read_shape(const hy_gguf *file, hy_shape *out, hy_text *notes) {
    key_reader r = {.file = file, .path = hy_gguf_path(file), .shape = out, .notes = notes};
    *out = (hy_shape){0};
    HY_TRY(find_family(&r));
    const hy_gguf_arch *arch = &r.family->gguf;
    hy_arch id = out->arch;
    *out = *r.family->base;
    out->arch = id;
    for (const hy_config_field *f = hy_gguf_fields; f->key; f++) HY_TRY(read_field(&r, f));
    for (const hy_config_field *f = arch->fields; f && f->key; f++) HY_TRY(read_field(&r, f));
    out->more.linear.value_dim = out->more.linear.key_dim; /* llama.cpp has one size */
    HY_TRY(read_number(&r, hy_gguf_norm_key(out), HY_REQUIRED, &out->norm_eps));
    HY_TRY(read_tensors(&r));
    if (out->kv_heads == 0) out->kv_heads = out->heads;
    if (out->head_size == 0) out->head_size = out->width / out->heads;
    if (out->head_size == 0) return refuse(&r, "attention.head_count", "at most the width");
    for (const hy_config_field *f = r.family->fields; f->key; f++) {
        bool is_largest = out->layers == arch->largest;
        if (f->kind == HY_CONFIG_STD) out->init_std = f->fallback;
        if (f->at == HY_AT(more.attention_divisor))
            out->more.attention_divisor = is_largest ? out->width / out->heads : out->head_size;
    }
    if (out->has_rope) HY_TRY(read_rope(&r));
    HY_TRY(read_windows(&r));
    HY_TRY(check_others(&r));
    hy_status status = hy_shape_complete(out);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "%s", r.path);
}

hy_status hy_gguf_config_read(const char *path, hy_hf_config *out) {
    hy_gguf *file;
    *out = (hy_hf_config){.has_dtype = true, .dtype = HY_BF16};
    HY_TRY(hy_gguf_open(path, &file));
    hy_status status = hy_gguf_read_shape(file, &out->shape, &out->notes);
    for (size_t i = 0; i < hy_gguf_count(file); i++) { /* the first matrix of a block */
        const hy_gguf_tensor *t = hy_gguf_at(file, i);
        if (t->ndim != 2 || strncmp(t->name, "blk.", 4) != 0) continue;
        if (t->type == HY_BLOCK_F32) out->dtype = HY_F32;
        if (t->type == HY_BLOCK_F16) out->dtype = HY_F16;
        break;
    }
    hy_gguf_close(file);
    if (status != HY_OK) hy_hf_config_free(out);
    return status;
}

/* ---- files of a folder ----------------------------------------------------------------------- */

hy_status hy_gguf_config_json(const char *path, hy_text *out) {
    hy_hf_config config;
    hy_gguf *file;
    int64_t ids[2] = {-1, -1};
    HY_TRY(hy_hf_config_look(path, &config));
    HY_TRY(hy_gguf_open(path, &file));
    hy_gguf_as_int(hy_gguf_get(file, "tokenizer.ggml.bos_token_id"), 0, &ids[0]);
    hy_gguf_as_int(hy_gguf_get(file, "tokenizer.ggml.eos_token_id"), 0, &ids[1]);
    hy_gguf_close(file);
    for (int i = 0; i < 2; i++) {
        if (ids[i] < 0 || ids[i] >= config.shape.vocab) ids[i] = -1;
    }
    hy_hf_tokens tokens = {.bos = (int32_t)ids[0], .eos = (int32_t)ids[1]};
    return hy_hf_config_write(&config.shape, config.dtype, NULL, &tokens, out);
}

hy_status hy_gguf_put_side_files(const char *path, const char *folder) {
    static const char *const names[] = {HY_SOURCE_NAME, "tokenizer.json", "tokenizer_config.json",
                                        "generation_config.json"};
    char pieces[HY_HF_PATH_MAX] = "";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        hy_text text = {0};
        hy_status status = hy_gguf_tokenizer_json(path, names[i], &text);
        if (status == HY_OK && text.size > 0)
            status = hy_hf_put_file(folder, names[i], text.data, text.size);
        if (status == HY_OK && text.size > 0 && i == 0)
            status = hy_path_join(pieces, sizeof pieces, folder, HY_SOURCE_NAME);
        hy_text_free(&text);
        HY_TRY(status);
    }
    return pieces[0] ? hy_hf_publish_pieces(pieces, folder) : HY_OK;
}
