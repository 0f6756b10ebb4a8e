/* calls.c: one call of every op, as a table. See selftest.h.
 *
 * Shapes are small and odd: 130 rows (two sequences of 65), widths that no pack of 16 bytes divides
 * beside some that it does. Numbers come from a counter, so that every machine tests the same. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/half.h"
#include "selftest/selftest.h"

enum {
    B = 2,
    T = 65,
    N = B * T,
    C = 99,
    F = 200,
    V = 1003,
    VOCAB = 1000,
    H = 4,
    K = 2,
    D = 64,
    P = (H + 2 * K) * D,
    Q = H * D,
    ROOM = 400, /* rows of the cache per sequence, of which OLD are there already */
    OLD = 300,
    COUNT = 5001,
    BLOCK = 256,
    BLOCKS = (COUNT + BLOCK - 1) / BLOCK
};

/* A tensor of a call. type: a activation, f fp32, d fp64, i i32, u u8. fill: 0 nothing, n normal, w near
 * 1, p positive, t token ids below VOCAB, s starts of documents, c cosines and sines, u codes. */
typedef struct piece {
    char type, fill;
    int32_t rows, cols; /* rows 0: one dimension */
} piece;

typedef struct call_row {
    hy_op_kind kind;
    bool accumulate;
    bool is_fp32_only;
    piece pieces[HY_OP_TENSORS]; /* type 0: absent */
} call_row;

static const call_row rows[] = {
    {HY_OP_MATMUL,
     false,
     false,
     {[HY_MATMUL_A] = {'a', 'n', N, C},
      [HY_MATMUL_B] = {'a', 'n', F, C},
      [HY_MATMUL_D] = {'a', 0, N, F},
      [HY_MATMUL_BIAS] = {'a', 'n', 0, F}}},
    {HY_OP_MATMUL,
     true,
     false,
     {[HY_MATMUL_A] = {'a', 'n', N, F},
      [HY_MATMUL_B] = {'a', 'n', N, C},
      [HY_MATMUL_D] = {'f', 'n', F, C}}},
    {HY_OP_BIAS_GRAD,
     true,
     false,
     {[HY_BIAS_GRAD_DY] = {'a', 'n', N, C}, [HY_BIAS_GRAD_DBIAS] = {'f', 'n', 0, C}}},
    {HY_OP_NORM,
     false,
     false,
     {[HY_NORM_X] = {'a', 'n', N, C},
      [HY_NORM_WEIGHT] = {'a', 'w', 0, C},
      [HY_NORM_BIAS] = {'a', 'n', 0, C},
      [HY_NORM_Y] = {'a', 0, N, C},
      [HY_NORM_MEAN] = {'f', 0, 0, N},
      [HY_NORM_RSTD] = {'f', 0, 0, N}}},
    {HY_OP_NORM_BWD,
     true,
     false,
     {[HY_NORM_BWD_DY] = {'a', 'n', N, C},
      [HY_NORM_BWD_X] = {'a', 'n', N, C},
      [HY_NORM_BWD_WEIGHT] = {'a', 'w', 0, C},
      [HY_NORM_BWD_MEAN] = {'f', 'n', 0, N},
      [HY_NORM_BWD_RSTD] = {'f', 'p', 0, N},
      [HY_NORM_BWD_RESIDUAL] = {'a', 'n', N, C},
      [HY_NORM_BWD_DX] = {'a', 0, N, C},
      [HY_NORM_BWD_DWEIGHT] = {'f', 'n', 0, C},
      [HY_NORM_BWD_DBIAS] = {'f', 'n', 0, C}}},
    {HY_OP_HEAD_NORM,
     false,
     false,
     {[HY_HEAD_NORM_QKV] = {'a', 'n', N, P},
      [HY_HEAD_NORM_WQ] = {'a', 'w', 0, D},
      [HY_HEAD_NORM_WK] = {'a', 'w', 0, D},
      [HY_HEAD_NORM_OUT] = {'a', 0, N, P},
      [HY_HEAD_NORM_RSTD] = {'f', 0, N, H + K}}},
    {HY_OP_HEAD_NORM_BWD,
     true,
     false,
     {[HY_HEAD_NORM_BWD_DOUT] = {'a', 'n', N, P},
      [HY_HEAD_NORM_BWD_QKV] = {'a', 'n', N, P},
      [HY_HEAD_NORM_BWD_WQ] = {'a', 'w', 0, D},
      [HY_HEAD_NORM_BWD_WK] = {'a', 'w', 0, D},
      [HY_HEAD_NORM_BWD_RSTD] = {'f', 'p', N, H + K},
      [HY_HEAD_NORM_BWD_DQKV] = {'a', 0, N, P},
      [HY_HEAD_NORM_BWD_DWQ] = {'f', 'n', 0, D},
      [HY_HEAD_NORM_BWD_DWK] = {'f', 'n', 0, D}}},
    {HY_OP_ROPE,
     false,
     false,
     {[HY_ROPE_QKV] = {'a', 'n', N, P}, [HY_ROPE_TABLE] = {'f', 'c', T, D}}},
    {HY_OP_ATTENTION,
     false,
     false,
     {[HY_ATTENTION_QKV] = {'a', 'n', N, P},
      [HY_ATTENTION_DOC_STARTS] = {'i', 's', 0, N},
      [HY_ATTENTION_OUT] = {'a', 0, N, Q},
      [HY_ATTENTION_LSE] = {'f', 0, 0, N *H}}},
    {HY_OP_ATTENTION_BWD,
     false,
     false,
     {[HY_ATTENTION_BWD_DOUT] = {'a', 'n', N, Q},
      [HY_ATTENTION_BWD_QKV] = {'a', 'n', N, P},
      [HY_ATTENTION_BWD_DOC_STARTS] = {'i', 's', 0, N},
      [HY_ATTENTION_BWD_OUT] = {'a', 0, N, Q},
      [HY_ATTENTION_BWD_LSE] = {'f', 0, 0, N *H},
      [HY_ATTENTION_BWD_DQKV] = {'a', 0, N, P}}},
    {HY_OP_ATTENTION_CACHED,
     false,
     false,
     {[HY_ATTENTION_CACHED_QKV] = {'a', 'n', N, P},
      [HY_ATTENTION_CACHED_CACHE] = {'a', 'n', B *ROOM, 2 * K *D},
      [HY_ATTENTION_CACHED_OUT] = {'a', 0, N, Q}}},
    {HY_OP_GELU, false, false, {[HY_GELU_X] = {'a', 'n', N, C}, [HY_GELU_Y] = {'a', 0, N, C}}},
    {HY_OP_GELU_BWD,
     false,
     false,
     {[HY_GELU_BWD_DY] = {'a', 'n', N, C},
      [HY_GELU_BWD_X] = {'a', 'n', N, C},
      [HY_GELU_BWD_DX] = {'a', 0, N, C}}},
    {HY_OP_SWIGLU,
     false,
     false,
     {[HY_SWIGLU_GATE_UP] = {'a', 'n', N, 2 * F}, [HY_SWIGLU_Y] = {'a', 0, N, F}}},
    {HY_OP_SWIGLU_BWD,
     false,
     false,
     {[HY_SWIGLU_BWD_DY] = {'a', 'n', N, F},
      [HY_SWIGLU_BWD_GATE_UP] = {'a', 'n', N, 2 * F},
      [HY_SWIGLU_BWD_DGATE_UP] = {'a', 0, N, 2 * F}}},
    {HY_OP_EMBED,
     false,
     false,
     {[HY_EMBED_TOKENS] = {'i', 't', 0, N},
      [HY_EMBED_WTE] = {'a', 'n', V, C},
      [HY_EMBED_WPE] = {'a', 'n', T, C},
      [HY_EMBED_X] = {'a', 0, N, C}}},
    {HY_OP_EMBED_BWD,
     true,
     false,
     {[HY_EMBED_BWD_TOKENS] = {'i', 't', 0, N},
      [HY_EMBED_BWD_DX] = {'a', 'n', N, C},
      [HY_EMBED_BWD_DWTE] = {'f', 'n', V, C},
      [HY_EMBED_BWD_DWPE] = {'f', 'n', T, C}}},
    {HY_OP_CROSS_ENTROPY,
     false,
     false,
     {[HY_CROSS_ENTROPY_LOGITS] = {'a', 'n', N, V},
      [HY_CROSS_ENTROPY_TARGETS] = {'i', 't', 0, N},
      [HY_CROSS_ENTROPY_LOSSES] = {'f', 0, 0, N}}},
    {HY_OP_SUM,
     false,
     true,
     {[HY_REDUCE_X] = {'f', 'n', 0, COUNT}, [HY_REDUCE_OUT] = {'d', 0, 0, 1}}},
    {HY_OP_SQ_NORM,
     true,
     false,
     {[HY_REDUCE_X] = {'a', 'n', 0, COUNT}, [HY_REDUCE_OUT] = {'d', 'p', 0, 1}}},
    {HY_OP_CLIP,
     false,
     true,
     {[HY_CLIP_TOTAL] = {'d', 'p', 0, 1}, [HY_CLIP_RESULT] = {'f', 0, 0, 2}}},
    {HY_OP_ADAMW,
     false,
     false,
     {[HY_ADAMW_PARAM] = {'a', 'n', 0, COUNT},
      [HY_ADAMW_GRAD] = {'a', 'n', 0, COUNT},
      [HY_ADAMW_M] = {'f', 'n', 0, COUNT},
      [HY_ADAMW_V] = {'f', 'p', 0, COUNT},
      [HY_ADAMW_CLIP] = {'f', 'w', 0, 2},
      [HY_ADAMW_MASTER] = {'f', 'n', 0, COUNT}}},
    {HY_OP_SGD,
     false,
     false,
     {[HY_SGD_PARAM] = {'a', 'n', 0, COUNT},
      [HY_SGD_GRAD] = {'a', 'n', 0, COUNT},
      [HY_SGD_MOMENTUM] = {'f', 'n', 0, COUNT},
      [HY_SGD_CLIP] = {'f', 'w', 0, 2},
      [HY_SGD_MASTER] = {'f', 'n', 0, COUNT}}},
    {HY_OP_CAST,
     false,
     false,
     {[HY_CAST_SRC] = {'f', 'n', 0, COUNT}, [HY_CAST_DST] = {'a', 0, 0, COUNT}}},
    {HY_OP_FILL, false, false, {[HY_FILL_DST] = {'a', 0, 0, COUNT}}},
    {HY_OP_COMBINE,
     false,
     false,
     {[HY_COMBINE_OUT] = {'a', 0, 0, COUNT},
      [HY_COMBINE_X0] = {'a', 'n', 0, COUNT},
      [HY_COMBINE_X1] = {'f', 'n', 0, COUNT}}},
    {HY_OP_DIFF_DOT,
     false,
     false,
     {[HY_DIFF_DOT_A] = {'a', 'n', 0, COUNT},
      [HY_DIFF_DOT_B] = {'a', 'n', 0, COUNT},
      [HY_DIFF_DOT_C] = {'a', 'n', 0, COUNT},
      [HY_DIFF_DOT_OUT] = {'d', 0, 0, 3}}},
    {HY_OP_QUANTIZE,
     false,
     true,
     {[HY_QUANTIZE_X] = {'f', 'n', 0, COUNT},
      [HY_QUANTIZE_CODES] = {'u', 0, 0, COUNT},
      [HY_QUANTIZE_SCALES] = {'f', 0, 0, BLOCKS}}},
    {HY_OP_DEQUANTIZE,
     false,
     true,
     {[HY_DEQUANTIZE_CODES] = {'u', 'u', 0, COUNT},
      [HY_DEQUANTIZE_SCALES] = {'f', 'p', 0, BLOCKS},
      [HY_DEQUANTIZE_X] = {'f', 0, 0, COUNT}}},
};

static hy_op_attr attr_of(const call_row *row, int number) {
    hy_op_attr attr = {.accumulate = row->accumulate};
    switch (row->kind) {
    case HY_OP_MATMUL:
        attr.matmul.trans_a = number % 2;
        attr.matmul.trans_b = !(number % 2);
        attr.matmul.alpha = 0.25f;
        break;
    case HY_OP_NORM:
    case HY_OP_NORM_BWD: attr.norm.eps = 1e-5f; break;
    case HY_OP_HEAD_NORM:
    case HY_OP_HEAD_NORM_BWD:
    case HY_OP_ROPE:
    case HY_OP_ATTENTION:
    case HY_OP_ATTENTION_BWD:
    case HY_OP_ATTENTION_CACHED:
        attr.heads.first = row->kind == HY_OP_ATTENTION_CACHED ? OLD : 0;
        attr.heads.batch = B;
        attr.heads.seq = T;
        attr.heads.heads = H;
        attr.heads.kv_heads = K;
        attr.heads.head_dim = D;
        attr.heads.scale = 0.125f;
        attr.heads.eps = 1e-6f;
        break;
    case HY_OP_EMBED:
    case HY_OP_EMBED_BWD: attr.embed.seq = T; break;
    case HY_OP_CROSS_ENTROPY:
        attr.loss.vocab = VOCAB;
        attr.loss.scale = 0.5f;
        attr.loss.wants_grad = true;
        break;
    case HY_OP_CLIP:
        attr.clip.max_norm = 0.01f;
        attr.clip.grad_scale = 1;
        break;
    case HY_OP_ADAMW:
        attr.adamw.lr = 0.01f;
        attr.adamw.beta1 = 0.9f;
        attr.adamw.beta2 = 0.95f;
        attr.adamw.eps = 1e-6f;
        attr.adamw.weight_decay = 0.1f;
        attr.adamw.correction1 = 0.271f;
        attr.adamw.correction2 = 0.142625f;
        break;
    case HY_OP_SGD:
        attr.sgd.lr = 0.01f;
        attr.sgd.momentum = 0.9f;
        attr.sgd.weight_decay = 0.1f;
        attr.sgd.is_nesterov = true;
        break;
    case HY_OP_FILL: attr.fill.value = 2.5f; break;
    case HY_OP_COMBINE:
        attr.combine.coefficient[0] = 1.5f;
        attr.combine.coefficient[1] = -0.75f;
        break;
    case HY_OP_QUANTIZE:
    case HY_OP_DEQUANTIZE:
        attr.quantize.block = BLOCK;
        attr.quantize.is_signed = true;
        break;
    default: break;
    }
    return attr;
}

/* ---- numbers ----------------------------------------------------------------------------------- */

static void put(const hy_tensor *t, int64_t i, double value) {
    switch (t->dtype) {
    case HY_F32: ((float *)t->data)[i] = (float)value; break;
    case HY_BF16: ((uint16_t *)t->data)[i] = hy_f32_to_bf16((float)value); break;
    case HY_F16: ((uint16_t *)t->data)[i] = hy_f32_to_f16((float)value); break;
    case HY_F64: ((double *)t->data)[i] = value; break;
    case HY_I32: ((int32_t *)t->data)[i] = (int32_t)value; break;
    default: ((uint8_t *)t->data)[i] = (uint8_t)value; break;
    }
}

static double number(char fill, int64_t i, uint64_t seed) {
    double z = hy_rng_normal(seed, HY_RNG_TEST, (uint64_t)i);
    int64_t position = i / D, pair = i % D / 2, document = i % T / 20;
    double angle = (double)position * pow(100, -2.0 * (double)pair / D);
    switch (fill) {
    case 'n': return z;
    case 'w': return 1 + 0.3 * z;
    case 'p': return 0.1 + 0.1 * fabs(z);
    case 't': return (double)hy_rng_below(seed, HY_RNG_TEST, (uint64_t)i, VOCAB);
    case 's': return (double)(20 * document);
    case 'c': return i % 2 ? sin(angle) : cos(angle);
    case 'u': return (double)(i * 37 % 256);
    default: return 0;
    }
}

static hy_dtype dtype_of(char type, hy_dtype activation) {
    switch (type) {
    case 'a': return activation;
    case 'd': return HY_F64;
    case 'i': return HY_I32;
    case 'u': return HY_U8;
    default: return HY_F32;
    }
}

static bool make_tensor(const piece *p, hy_dtype activation, uint64_t seed, hy_tensor *out) {
    hy_dtype dtype = dtype_of(p->type, activation);
    *out =
        p->rows ? hy_tensor_2d(NULL, dtype, p->rows, p->cols) : hy_tensor_1d(NULL, dtype, p->cols);
    out->data = calloc(1, hy_tensor_bytes(out));
    if (!out->data) return false;
    for (int64_t i = 0; p->fill && i < hy_tensor_count(out); i++)
        put(out, i, number(p->fill, i, seed));
    return true;
}

/* ---- calls ------------------------------------------------------------------------------------- */

bool hy_selftest_call_exists(int i) { return i >= 0 && i < (int)(sizeof rows / sizeof rows[0]); }

bool hy_selftest_call_make(int i, hy_dtype dtype, hy_op_call *call) {
    *call = (hy_op_call){0};
    if (!hy_selftest_call_exists(i) || (rows[i].is_fp32_only && dtype != HY_F32)) return false;
    const call_row *row = &rows[i];
    call->kind = row->kind;
    call->attr = attr_of(row, i);
    for (int k = 0; k < HY_OP_TENSORS; k++) {
        const piece *p = &row->pieces[k];
        if (p->type && !make_tensor(p, dtype, (uint64_t)(100 * i + k), &call->t[k])) {
            hy_selftest_call_free(call);
            return false;
        }
    }
    if (row->kind == HY_OP_ROPE) { /* (T, D/2, 2) */
        hy_tensor *table = &call->t[HY_ROPE_TABLE];
        table->ndim = 3;
        table->shape[1] = D / 2;
        table->shape[2] = 2;
    }
    if (row->kind == HY_OP_ATTENTION_CACHED) { /* (B, ROOM, 2 K D) */
        hy_tensor *cache = &call->t[HY_ATTENTION_CACHED_CACHE];
        cache->ndim = 3;
        cache->shape[0] = B;
        cache->shape[1] = ROOM;
        cache->shape[2] = 2 * K * D;
    }
    return true;
}

void hy_selftest_call_free(hy_op_call *call) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        free(call->t[i].data);
        call->t[i].data = NULL;
    }
}

/* Both sides round their result once; attention also its weights, and takes what was rounded before. */
double hy_selftest_allowed(hy_op_kind kind, hy_dtype dtype) {
    double rounding = dtype == HY_BF16 ? 4e-3 : dtype == HY_F16 ? 5e-4 : 2e-6;
    if (kind == HY_OP_ATTENTION_BWD) return 5 * rounding;
    return kind == HY_OP_ATTENTION ? 3 * rounding : 2 * rounding;
}
