/* shape.c: checks and completes a shape. See shape.h. */
#include "model/shape.h"

#include <string.h>

#include "base/error.h"
#include "kernels/sparse.h"
#include "model/arch/arch.h"

#define LARGEST_DIMENSION (1 << 24)

static hy_status check_positive(const char *key, int64_t value) {
    HY_FAIL_IF(value < 1 || value > LARGEST_DIMENSION, HY_ERR_INPUT,
               "shape.%s is %lld; it must be between 1 and %d", key, (long long)value,
               LARGEST_DIMENSION);
    return HY_OK;
}

static hy_status check_heads(hy_shape *s) {
    if (s->kv_heads == 0) s->kv_heads = s->heads;
    HY_FAIL_IF(s->head_size == 0 && s->width % s->heads != 0, HY_ERR_INPUT,
               "shape.heads is %d, which does not divide shape.width %d; choose a divisor or set "
               "shape.head_size",
               s->heads, s->width);
    if (s->head_size == 0) s->head_size = s->width / s->heads;
    HY_TRY(check_positive("kv_heads", s->kv_heads));
    HY_TRY(check_positive("head_size", s->head_size));
    HY_FAIL_IF(s->heads % s->kv_heads != 0, HY_ERR_INPUT,
               "shape.kv_heads is %d, which does not divide shape.heads %d", s->kv_heads, s->heads);
    HY_FAIL_IF(s->has_rope && s->head_size % 2 != 0, HY_ERR_INPUT,
               "the head size is %d; rope needs an even head size", s->head_size);
    HY_FAIL_IF(s->head_size > 256, HY_ERR_INPUT,
               "the head size is %d; attention supports at most 256", s->head_size);
    return HY_OK;
}

static hy_status check_rope_scaling(const hy_shape *s) {
    if (s->rope_scaling == HY_ROPE_UNSCALED) return HY_OK;
    HY_FAIL_IF(!s->has_rope, HY_ERR_INPUT,
               "shape.rope_scaling is set, but shape.positions is learned");
    if (s->rope_scaling != HY_ROPE_SCALED_LLAMA3) {
        HY_FAIL_IF(!(s->rope_factor > 0 && s->rope_original_context >= 1), HY_ERR_INPUT,
                   "rope scaling needs a factor above 0 and an original context; got factor %g, "
                   "original context %d",
                   s->rope_factor, s->rope_original_context);
        return HY_OK;
    }
    HY_FAIL_IF(!(s->rope_factor >= 1 && s->rope_low_freq > 0 &&
                 s->rope_high_freq > s->rope_low_freq && s->rope_original_context >= 1),
               HY_ERR_INPUT,
               "llama3 rope scaling needs factor >= 1, 0 < low_freq < high_freq and an original "
               "context; got factor %g, low %g, high %g, original context %d",
               s->rope_factor, s->rope_low_freq, s->rope_high_freq, s->rope_original_context);
    return HY_OK;
}

static hy_status check_linear(const hy_shape *s) {
    const hy_linear_options *l = &s->more.linear;
    size_t letters = strspn(l->layers, "lf");
    HY_FAIL_IF(l->layers[letters] || letters > (size_t)s->layers, HY_ERR_INPUT,
               "the layers with linear attention are %s; expected a letter for each of the %d "
               "layers or fewer, l (linear) or f (full)",
               l->layers, s->layers);
    HY_FAIL_IF(s->more.has_gates && !s->has_qk_norm, HY_ERR_INPUT,
               "gates of attention need qk-norm (shape.qk_norm)");
    if (letters == 0) return HY_OK;
    HY_FAIL_IF(l->key_heads < 1 || l->heads < 1 || l->heads % l->key_heads != 0, HY_ERR_INPUT,
               "linear attention has %d key heads and %d value heads; the number of value heads "
               "must be a multiple of that of key heads",
               l->key_heads, l->heads);
    HY_FAIL_IF(l->key_dim < 1 || l->key_dim > HY_DELTA_DIM_MAX || l->value_dim < 1 ||
                   l->value_dim > HY_DELTA_DIM_MAX,
               HY_ERR_INPUT,
               "linear attention has key heads of %d and value heads of %d numbers; supported: 1 "
               "to %d",
               l->key_dim, l->value_dim, HY_DELTA_DIM_MAX);
    HY_FAIL_IF(l->taps < 2 || l->taps > HY_CONV_TAPS_MAX, HY_ERR_INPUT,
               "the convolution of linear attention sees %d tokens; supported: 2 to %d", l->taps,
               HY_CONV_TAPS_MAX);
    HY_TRY(check_positive("arch_options: key heads times their size",
                          (int64_t)l->key_heads * l->key_dim));
    return check_positive("arch_options: value heads times their size",
                          (int64_t)l->heads * l->value_dim);
}

static hy_status check_sparse(const hy_shape *s) {
    HY_FAIL_IF(s->sparse_local < 0 || s->sparse_local > HY_SPARSE_MOST || s->sparse_global < 0 ||
                   s->sparse_global > HY_SPARSE_MOST,
               HY_ERR_INPUT,
               "shape.sparse_local is %d and shape.sparse_global %d; they must be between 0 and %d",
               s->sparse_local, s->sparse_global, HY_SPARSE_MOST);
    HY_FAIL_IF(s->sparse_local > 0 && s->sliding_window > 0, HY_ERR_INPUT,
               "shape.attention_type is sparse, but shape.sliding_window is %d; a model has one of "
               "both (sliding_window 0: none)",
               s->sliding_window);
    return HY_OK;
}

/* Removes the parts that the shape does not have. */
static hy_status check_adapter(hy_shape *s) {
    hy_adapter *a = &s->adapter;
    if (a->rank == 0) return HY_OK;
    HY_FAIL_IF(a->rank < 0 || a->rank > HY_ADAPTER_RANK_MAX, HY_ERR_INPUT,
               "the rank of adapters is %d; it must be between 1 and %d", a->rank,
               HY_ADAPTER_RANK_MAX);
    HY_FAIL_IF(!(a->dropout >= 0 && a->dropout < 1), HY_ERR_INPUT,
               "the dropout of adapters is %g; it must be 0 or more and below 1", a->dropout);
    const hy_family *family = hy_shape_family(s);
    static const struct {
        hy_param_kind matrix;
        int32_t parts;
    } packed[] = {{HY_P_QKV, HY_ADAPT_Q | HY_ADAPT_K | HY_ADAPT_V},
                  {HY_P_UP, HY_ADAPT_GATE | HY_ADAPT_UP}};
    for (int i = 0; i < 2; i++) {
        bool is_one = hy_family_packs(family, packed[i].matrix);
        if (is_one && a->parts & packed[i].parts) a->parts |= packed[i].parts;
    }
    a->parts &= hy_shape_adapter_parts(s);
    HY_FAIL_IF(a->parts == 0, HY_ERR_INPUT, "no matrix of this model gets an adapter");
    return HY_OK;
}

hy_status hy_shape_complete(hy_shape *s) {
    HY_TRY(check_positive("layers", s->layers));
    HY_TRY(check_positive("width", s->width));
    HY_TRY(check_positive("heads", s->heads));
    HY_TRY(check_positive("vocab", s->vocab));
    HY_TRY(check_positive("context", s->context));
    HY_TRY(check_heads(s));
    if (s->mlp_width == 0) s->mlp_width = 4 * s->width;
    HY_TRY(check_positive("mlp_width", s->mlp_width));
    HY_FAIL_IF(!(s->norm_eps > 0 && s->norm_eps < 1), HY_ERR_INPUT,
               "shape.norm_eps is %g; it must be above 0 and below 1", s->norm_eps);
    HY_FAIL_IF(s->has_rope && !(s->rope_theta > 1), HY_ERR_INPUT,
               "shape.rope_theta is %g; it must be above 1", s->rope_theta);
    HY_FAIL_IF(s->sliding_window < 0, HY_ERR_INPUT,
               "shape.sliding_window is %d; it must be 0 (off) or more", s->sliding_window);
    HY_TRY(check_sparse(s));
    size_t letters = strspn(s->sliding_layers, "sf");
    HY_FAIL_IF(s->sliding_layers[letters] || letters > (size_t)s->layers, HY_ERR_INPUT,
               "shape.sliding_layers is %s; it must be all, or a letter for each of the %d layers "
               "or fewer, s (sliding) or f (full)",
               s->sliding_layers, s->layers);
    HY_TRY(check_rope_scaling(s));
    HY_TRY(check_linear(s));
    const hy_family *family = hy_family_of(s->arch);
    if (family && family->finish) family->finish(s);
    s->arch = hy_arch_choose(s, s->arch);
    return check_adapter(s);
}

bool hy_shape_is_linear(const hy_shape *s, int32_t layer) {
    size_t letters = strlen(s->more.linear.layers);
    return letters > 0 && s->more.linear.layers[(size_t)layer % letters] == 'l';
}

static bool is_full(const hy_shape *s, int32_t layer) {
    size_t letters = strlen(s->sliding_layers);
    return letters > 0 && s->sliding_layers[(size_t)layer % letters] == 'f';
}

bool hy_shape_set_interval(hy_shape *s, int32_t interval) {
    char *letters = s->more.linear.layers;
    size_t linear = interval > s->layers ? 1 : (size_t)interval - 1;
    memset(letters, 0, sizeof s->more.linear.layers);
    if (linear + 1 > HY_INTERVAL_MAX) return false;
    memset(letters, 'l', linear);
    if (linear > 0 && interval <= s->layers) letters[linear] = 'f';
    return true;
}

int32_t hy_shape_interval(const hy_shape *s) {
    int32_t interval = 1;
    while (interval <= s->layers && hy_shape_is_linear(s, interval - 1)) interval++;
    for (int32_t l = 0; l < s->layers; l++)
        if (hy_shape_is_linear(s, l) != ((l + 1) % interval != 0)) return 0;
    return interval;
}

int32_t hy_shape_window(const hy_shape *s, int32_t layer) {
    return s->sliding_window > 0 && is_full(s, layer) ? 0 : s->sliding_window;
}

bool hy_shape_is_sparse(const hy_shape *s, int32_t layer) {
    return s->sparse_local > 0 && !is_full(s, layer);
}
