/* ops.c: the op table written down as data, and the check that reads it.
 *
 * Each tensor of each op has a name, the types it may have, its shape in letters, and is read or written. A letter
 * stands for one length; the first tensor that shows it sets it, unless the attributes do. An op's
 * rules that letters cannot say (which tensors must alias nothing, ranges of attributes) follow in
 * code. */
#include "kernels/ops.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"

/* Types a tensor may have, as bits. */
enum {
    ANY_REAL = 1 << HY_F32 | 1 << HY_BF16 | 1 << HY_F16,
    ONLY_F32 = 1 << HY_F32,
    ONLY_F64 = 1 << HY_F64,
    ONLY_I32 = 1 << HY_I32,
    ONLY_U8 = 1 << HY_U8,
    WEIGHT = ANY_REAL | 1 << HY_I8,
    OPTIMIZER_STATE = 1 << HY_F32 | 1 << HY_BF16 | 1 << HY_U8,
    FILLABLE = ANY_REAL | 1 << HY_F64 | 1 << HY_I32
};

/* Shapes: one letter, the number of elements; two, rows (all leading dimensions) and columns. "*"
 * takes any shape; "=" the same number of elements as the first tensor. Letters set by attributes: P
 * (H+2K)D, Q H D, D head size, I H+K, L B H T, R B T. Others are as in tensor.h; G is 2F, X the
 * rows of a table of positions. */
typedef struct tensor_rule {
    const char *name;
    const char *shape;
    int dtypes;
    int access;
    bool is_optional;
} tensor_rule;

typedef struct op_rule {
    const char *name;
    tensor_rule tensors[HY_OP_TENSORS];
} op_rule;

#define RULE(name, shape, dtypes, access, is_optional)                                             \
    { name, shape, dtypes, access, is_optional }
#define IN(name, shape, dtypes) RULE(name, shape, dtypes, HY_ACCESS_READ, false)
#define IN_MAYBE(name, shape, dtypes) RULE(name, shape, dtypes, HY_ACCESS_READ, true)
#define OUT(name, shape, dtypes) RULE(name, shape, dtypes, HY_ACCESS_WRITE, false)
#define OUT_MAYBE(name, shape, dtypes) RULE(name, shape, dtypes, HY_ACCESS_WRITE, true)
#define INOUT(name, shape, dtypes) RULE(name, shape, dtypes, HY_ACCESS_BOTH, false)
#define INOUT_MAYBE(name, shape, dtypes) RULE(name, shape, dtypes, HY_ACCESS_BOTH, true)

/* A gradient that may be added to counts as written: the sum belongs to whoever asked for it. */
static const op_rule rules[HY_OP_COUNT] = {
    [HY_OP_MATMUL] = {"matmul",
                      {IN("a", "MK", ANY_REAL), IN("b", "KN", WEIGHT), OUT("d", "MN", ANY_REAL),
                       IN_MAYBE("bias", "N", ANY_REAL), IN_MAYBE("c", "MN", ANY_REAL),
                       OUT_MAYBE("act", "MN", ANY_REAL), IN_MAYBE("pre", "MN", ANY_REAL)}},
    [HY_OP_BIAS_GRAD] = {"bias gradient", {IN("dy", "NC", ANY_REAL), OUT("dbias", "C", ANY_REAL)}},
    [HY_OP_NORM] = {"norm",
                    {IN("x", "NC", ANY_REAL), IN("weight", "C", ANY_REAL),
                     IN_MAYBE("bias", "C", ANY_REAL), OUT("y", "NC", ANY_REAL),
                     OUT_MAYBE("mean", "N", ONLY_F32), OUT("rstd", "N", ONLY_F32)}},
    [HY_OP_NORM_BWD] = {"norm backward",
                        {IN("dy", "NC", ANY_REAL), IN("x", "NC", ANY_REAL),
                         IN("weight", "C", ANY_REAL), IN_MAYBE("mean", "N", ONLY_F32),
                         IN("rstd", "N", ONLY_F32), IN_MAYBE("residual", "NC", ANY_REAL),
                         OUT("dx", "NC", ANY_REAL), OUT_MAYBE("dweight", "C", ANY_REAL),
                         OUT_MAYBE("dbias", "C", ANY_REAL)}},
    [HY_OP_HEAD_NORM] = {"head norm",
                         {IN("qkv", "NP", ANY_REAL), IN("wq", "D", ANY_REAL),
                          IN("wk", "D", ANY_REAL), OUT("out", "NP", ANY_REAL),
                          OUT("rstd", "NI", ONLY_F32)}},
    [HY_OP_HEAD_NORM_BWD] = {"head norm backward",
                             {IN("dout", "NP", ANY_REAL), IN("qkv", "NP", ANY_REAL),
                              IN("wq", "D", ANY_REAL), IN("wk", "D", ANY_REAL),
                              IN("rstd", "NI", ONLY_F32), OUT("dqkv", "NP", ANY_REAL),
                              OUT_MAYBE("dwq", "D", ANY_REAL), OUT_MAYBE("dwk", "D", ANY_REAL)}},
    [HY_OP_ROPE] = {"rope", {INOUT("qkv", "NP", ANY_REAL), IN("table", "*", ONLY_F32)}},
    [HY_OP_ATTENTION] = {"attention",
                         {IN("qkv", "RP", ANY_REAL), IN_MAYBE("doc_starts", "R", ONLY_I32),
                          OUT("out", "RQ", ANY_REAL), OUT("lse", "L", ONLY_F32)}},
    [HY_OP_ATTENTION_BWD] = {"attention backward",
                             {IN("dout", "RQ", ANY_REAL), IN("qkv", "RP", ANY_REAL),
                              IN_MAYBE("doc_starts", "R", ONLY_I32), IN("out", "RQ", ANY_REAL),
                              IN("lse", "L", ONLY_F32), OUT("dqkv", "RP", ANY_REAL)}},
    [HY_OP_ATTENTION_CACHED] = {"cached attention",
                                {IN("qkv", "RP", ANY_REAL), INOUT("cache", "*", ANY_REAL),
                                 OUT("out", "RQ", ANY_REAL)}},
    [HY_OP_GELU] = {"gelu", {IN("x", "NF", ANY_REAL), OUT("y", "NF", ANY_REAL)}},
    [HY_OP_GELU_BWD] = {"gelu backward",
                        {IN("dy", "NF", ANY_REAL), IN("x", "NF", ANY_REAL),
                         OUT("dx", "NF", ANY_REAL)}},
    [HY_OP_SWIGLU] = {"swiglu", {IN("gate_up", "NG", ANY_REAL), OUT("y", "NF", ANY_REAL)}},
    [HY_OP_SWIGLU_BWD] = {"swiglu backward",
                          {IN("dy", "NF", ANY_REAL), IN("gate_up", "NG", ANY_REAL),
                           OUT("dgate_up", "NG", ANY_REAL), OUT_MAYBE("active", "NF", ANY_REAL)}},
    [HY_OP_EMBED] = {"embedding",
                     {IN("tokens", "N", ONLY_I32), IN("wte", "VC", WEIGHT),
                      IN_MAYBE("wpe", "XC", ANY_REAL), OUT("x", "NC", ANY_REAL),
                      IN_MAYBE("doc_starts", "N", ONLY_I32)}},
    [HY_OP_EMBED_BWD] = {"embedding backward",
                         {IN("tokens", "N", ONLY_I32), IN("dx", "NC", ANY_REAL),
                          OUT_MAYBE("dwte", "VC", ANY_REAL), OUT_MAYBE("dwpe", "XC", ANY_REAL),
                          IN_MAYBE("doc_starts", "N", ONLY_I32)}},
    [HY_OP_CROSS_ENTROPY] = {"cross-entropy",
                             {INOUT("logits", "NV", ANY_REAL), IN("targets", "N", ONLY_I32),
                              OUT("losses", "N", ONLY_F32)}},
    [HY_OP_SUM] = {"sum", {IN("x", "*", ONLY_F32), OUT("out", "1", ONLY_F64)}},
    [HY_OP_SQ_NORM] = {"squared norm", {IN("x", "*", ANY_REAL), OUT("out", "1", ONLY_F64)}},
    [HY_OP_CLIP] = {"clip", {IN("total", "1", ONLY_F64), OUT("result", "2", ONLY_F32)}},
    [HY_OP_ADAMW] = {"adamw",
                     {INOUT("param", "*", ANY_REAL), IN("grad", "=", ANY_REAL),
                      INOUT("m", "=", OPTIMIZER_STATE), INOUT("v", "=", OPTIMIZER_STATE),
                      IN("clip", "2", ONLY_F32), INOUT_MAYBE("master", "=", ONLY_F32)}},
    [HY_OP_SGD] = {"sgd",
                   {INOUT("param", "*", ANY_REAL), IN("grad", "=", ANY_REAL),
                    INOUT_MAYBE("momentum", "=", OPTIMIZER_STATE), IN("clip", "2", ONLY_F32),
                    INOUT_MAYBE("master", "=", ONLY_F32)}},
    [HY_OP_CAST] = {"cast", {IN("src", "*", WEIGHT), OUT("dst", "=", WEIGHT)}},
    [HY_OP_FILL] = {"fill", {OUT("dst", "*", FILLABLE)}},
    [HY_OP_COMBINE] = {"combination",
                       {OUT("out", "*", ANY_REAL), IN_MAYBE("x0", "=", ANY_REAL),
                        IN_MAYBE("x1", "=", ANY_REAL), IN_MAYBE("x2", "=", ANY_REAL)}},
    [HY_OP_DIFF_DOT] = {"dot product",
                        {IN("a", "*", ANY_REAL), IN_MAYBE("b", "=", ANY_REAL),
                         IN("c", "=", ANY_REAL), IN_MAYBE("d", "=", ANY_REAL),
                         OUT("out", "3", ONLY_F64)}},
    [HY_OP_QUANTIZE] = {"quantisation",
                        {IN("x", "*", ONLY_F32), OUT("codes", "=", ONLY_U8),
                         OUT("scales", "*", ONLY_F32)}},
    [HY_OP_DEQUANTIZE] = {"dequantisation",
                          {IN("codes", "*", ONLY_U8), IN("scales", "*", ONLY_F32),
                           OUT("x", "=", ONLY_F32)}},
};

const char *hy_op_name(hy_op_kind kind) {
    return (unsigned)kind < HY_OP_COUNT ? rules[kind].name : "?";
}

const char *hy_op_tensor_name(hy_op_kind kind, int position) {
    if ((unsigned)kind >= HY_OP_COUNT || position < 0 || position >= HY_OP_TENSORS) return "";
    const char *name = rules[kind].tensors[position].name;
    return name ? name : "";
}

int hy_op_access(hy_op_kind kind, int position) {
    assert((unsigned)kind < HY_OP_COUNT && position >= 0);
    return position < HY_OP_TENSORS ? rules[kind].tensors[position].access : HY_ACCESS_NONE;
}

int64_t hy_attention_pairs(int64_t seq, int64_t window) {
    if (window <= 0 || window > seq) window = seq;
    return window * (window + 1) / 2 + (seq - window) * window;
}

/* ---- the check ------------------------------------------------------------------------------- */

/* Lengths that letters stand for; 0: not yet known. */
typedef struct lengths {
    int64_t of[128];
} lengths;

static void print_shape(const hy_tensor *t, char *out, size_t size) {
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < t->ndim && i < HY_MAX_DIMS && used < size; i++) {
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? ", " : "",
                                 (long long)t->shape[i]);
    }
}

static void print_dtypes(int dtypes, char *out, size_t size) {
    size_t used = 0;
    out[0] = 0;
    for (int d = 0; d < HY_DTYPE_COUNT && used < size; d++) {
        if (!(dtypes >> d & 1)) continue;
        used += (size_t)snprintf(out + used, size - used, "%s%s", used ? " or " : "",
                                 hy_dtype_name((hy_dtype)d));
    }
}

__attribute__((format(printf, 3, 4))) static hy_status
wrong_shape(const hy_op_call *call, int position, const char *format, ...) {
    char shape[96], expected[96];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(expected, sizeof expected, format, arguments);
    va_end(arguments);
    print_shape(&call->t[position], shape, sizeof shape);
    return hy_fail(HY_ERR_INPUT, "%s: %s has shape (%s), expected %s", hy_op_name(call->kind),
                   hy_op_tensor_name(call->kind, position), shape, expected);
}

static bool bind_length(lengths *known, char letter, int64_t length) {
    if (letter >= '1' && letter <= '9') return length == letter - '0';
    int64_t *slot = &known->of[(unsigned char)letter];
    if (*slot == 0) *slot = length;
    return *slot == length;
}

static void print_letter(const lengths *known, char letter, char *out, size_t size) {
    int64_t length =
        letter >= '1' && letter <= '9' ? letter - '0' : known->of[(unsigned char)letter];
    if (length > 0) {
        snprintf(out, size, "%lld", (long long)length);
    } else {
        snprintf(out, size, "%c", letter);
    }
}

static hy_status check_shape(const hy_op_call *call, int position, const char *pattern,
                             lengths *known) {
    const hy_tensor *t = &call->t[position];
    char rows[32], cols[32];
    if (pattern[0] == '*') return HY_OK;
    if (pattern[0] == '=') {
        int64_t count = hy_tensor_count(call->t);
        if (hy_tensor_count(t) == count) return HY_OK;
        return wrong_shape(call, position, "%lld elements like %s", (long long)count,
                           rules[call->kind].tensors->name);
    }
    print_letter(known, pattern[0], rows, sizeof rows);
    if (pattern[1] == 0) {
        if (bind_length(known, pattern[0], hy_tensor_count(t))) return HY_OK;
        return wrong_shape(call, position, "(%s)", rows);
    }
    print_letter(known, pattern[1], cols, sizeof cols);
    bool rows_agree = bind_length(known, pattern[0], hy_tensor_height(t));
    bool cols_agree = bind_length(known, pattern[1], hy_tensor_width(t));
    if (t->ndim >= 2 && rows_agree && cols_agree) return HY_OK;
    return wrong_shape(call, position, "(%s, %s)", rows, cols);
}

static hy_status check_tensor(const hy_op_call *call, int position, const char *pattern,
                              lengths *known) {
    const tensor_rule *rule = &rules[call->kind].tensors[position];
    const hy_tensor *t = &call->t[position];
    if (!hy_tensor_is_given(t)) {
        if (rule->is_optional) return HY_OK;
        return hy_fail(HY_ERR_INPUT, "%s: %s is absent; it is not optional", hy_op_name(call->kind),
                       rule->name);
    }
    if (t->ndim < 1 || t->ndim > HY_MAX_DIMS) {
        return hy_fail(HY_ERR_INPUT, "%s: %s has %d dimensions, expected 1 to %d",
                       hy_op_name(call->kind), rule->name, t->ndim, HY_MAX_DIMS);
    }
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 1) return wrong_shape(call, position, "lengths of at least 1");
    }
    if ((unsigned)t->dtype >= HY_DTYPE_COUNT || !(rule->dtypes >> t->dtype & 1)) {
        char accepted[96];
        print_dtypes(rule->dtypes, accepted, sizeof accepted);
        return hy_fail(HY_ERR_INPUT, "%s: %s is %s, expected %s", hy_op_name(call->kind),
                       rule->name, hy_dtype_name(t->dtype), accepted);
    }
    return check_shape(call, position, pattern, known);
}

/* Heads must make sense before lengths can be derived from them. */
static hy_status bind_heads(const hy_op_call *call, lengths *known) {
    int64_t B = call->attr.heads.batch, T = call->attr.heads.seq, H = call->attr.heads.heads;
    int64_t K = call->attr.heads.kv_heads, D = call->attr.heads.head_dim;
    if (B < 1 || T < 1 || H < 1 || K < 1 || D < 1 || D > 1024 || H % K != 0) {
        return hy_fail(
            HY_ERR_INPUT,
            "%s: batch %lld, seq %lld, heads %lld, kv_heads %lld, head_dim %lld; expected "
            "positive numbers, heads a multiple of kv_heads, head_dim at most 1024",
            hy_op_name(call->kind), (long long)B, (long long)T, (long long)H, (long long)K,
            (long long)D);
    }
    known->of['P'] = (H + 2 * K) * D;
    known->of['Q'] = H * D;
    known->of['D'] = D;
    known->of['I'] = H + K;
    known->of['L'] = B * H * T;
    known->of['R'] = B * T;
    return HY_OK;
}

static bool has_heads(hy_op_kind kind) {
    return kind >= HY_OP_HEAD_NORM && kind <= HY_OP_ATTENTION_CACHED;
}

/* A tensor that may share memory with another must then have its type: it is the same memory. */
static hy_status check_alias(const hy_op_call *call, int one, int other) {
    const hy_tensor *a = &call->t[one], *b = &call->t[other];
    if (!a->data || a->data != b->data || a->dtype == b->dtype) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%s: %s and %s share memory but are %s and %s",
                   hy_op_name(call->kind), hy_op_tensor_name(call->kind, one),
                   hy_op_tensor_name(call->kind, other), hy_dtype_name(a->dtype),
                   hy_dtype_name(b->dtype));
}

static hy_status check_matmul(const hy_op_call *call) {
    if (call->attr.accumulate && (call->t[HY_MATMUL_BIAS].data || call->t[HY_MATMUL_C].data)) {
        return hy_fail(HY_ERR_INPUT, "matmul: accumulate goes with neither bias nor c");
    }
    bool has_gelu = call->t[HY_MATMUL_ACT].data || call->attr.matmul.is_gelu;
    if (has_gelu &&
        (call->attr.accumulate || call->t[HY_MATMUL_C].data || call->t[HY_MATMUL_PRE].data)) {
        return hy_fail(HY_ERR_INPUT, "matmul: gelu goes with neither accumulate, c nor pre");
    }
    if (call->t[HY_MATMUL_ACT].data && call->attr.matmul.is_gelu) {
        return hy_fail(HY_ERR_INPUT, "matmul: is_gelu and act exclude each other");
    }
    if (call->t[HY_MATMUL_PRE].data &&
        (call->attr.accumulate || call->t[HY_MATMUL_BIAS].data || call->t[HY_MATMUL_C].data)) {
        return hy_fail(HY_ERR_INPUT, "matmul: pre goes with neither accumulate, bias nor c");
    }
    return check_alias(call, HY_MATMUL_C, HY_MATMUL_D);
}

static hy_status check_norm_backward(const hy_op_call *call) {
    if (!call->attr.norm.is_rms && !call->t[HY_NORM_BWD_MEAN].data) {
        return hy_fail(HY_ERR_INPUT, "norm backward: mean is absent; only rmsnorm goes without");
    }
    return check_alias(call, HY_NORM_BWD_RESIDUAL, HY_NORM_BWD_DX);
}

static hy_status check_rope(const hy_op_call *call) {
    int64_t T = call->attr.heads.seq, D = call->attr.heads.head_dim;
    const hy_tensor *table = &call->t[HY_ROPE_TABLE];
    if (D % 2 != 0) {
        return hy_fail(HY_ERR_INPUT, "rope: head_dim is %lld, expected an even number",
                       (long long)D);
    }
    if (table->shape[0] >= T && hy_tensor_count(table) == table->shape[0] * D) return HY_OK;
    return wrong_shape(call, HY_ROPE_TABLE, "(at least %lld, %lld, 2)", (long long)T,
                       (long long)(D / 2));
}

static hy_status check_cache(const hy_op_call *call) {
    int64_t width = 2 * (int64_t)call->attr.heads.kv_heads * call->attr.heads.head_dim;
    int64_t first = call->attr.heads.first, end = first + call->attr.heads.seq;
    const hy_tensor *cache = &call->t[HY_ATTENTION_CACHED_CACHE];
    if (first < 0) {
        return hy_fail(HY_ERR_INPUT, "cached attention: first is %lld, expected 0 or more",
                       (long long)first);
    }
    if (cache->ndim == 3 && cache->shape[0] == call->attr.heads.batch && cache->shape[1] >= end &&
        cache->shape[2] == width)
        return HY_OK;
    return wrong_shape(call, HY_ATTENTION_CACHED_CACHE, "(%d, at least %lld, %lld)",
                       (int)call->attr.heads.batch, (long long)end, (long long)width);
}

static hy_status check_swiglu(const hy_op_call *call, int gate_up, int y) {
    int64_t F = hy_tensor_width(&call->t[y]);
    if (hy_tensor_width(&call->t[gate_up]) == 2 * F) return HY_OK;
    return wrong_shape(call, gate_up, "(rows, %lld): gate and up", (long long)(2 * F));
}

static hy_status check_positions(const hy_op_call *call, int wpe) {
    int64_t T = call->attr.embed.seq;
    if (!call->t[wpe].data) return HY_OK;
    if (T < 1)
        return hy_fail(HY_ERR_INPUT, "%s: seq is %lld, expected at least 1", hy_op_name(call->kind),
                       (long long)T);
    if (hy_tensor_height(&call->t[wpe]) >= T) return HY_OK;
    return wrong_shape(call, wpe, "at least %lld rows", (long long)T);
}

static hy_status check_loss(const hy_op_call *call) {
    int64_t vocab = call->attr.loss.vocab, V = hy_tensor_width(&call->t[HY_CROSS_ENTROPY_LOGITS]);
    if (vocab >= 1 && vocab <= V) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "cross-entropy: vocab is %lld, expected 1 to %lld (columns of logits)",
                   (long long)vocab, (long long)V);
}

/* 8-bit optimizer state needs scales; a block is what a warp of a GPU holds, or less. */
static hy_status check_codes(const hy_op_call *call, int position) {
    const hy_tensor *t = &call->t[position];
    int32_t block = t->quant.block;
    if (t->dtype != HY_U8) return HY_OK;
    if (!t->quant.scale) {
        return hy_fail(HY_ERR_INPUT, "%s: %s is u8 but has no scales", hy_op_name(call->kind),
                       hy_op_tensor_name(call->kind, position));
    }
    if (block >= 8 && block <= 256 && (block & (block - 1)) == 0) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "%s: %s has blocks of %d elements, expected a power of two from 8 to 256",
                   hy_op_name(call->kind), hy_op_tensor_name(call->kind, position), block);
}

/* Codes have a scale for each block. */
static hy_status check_stored(const hy_op_call *call, int position) {
    const hy_tensor *t = &call->t[position];
    int32_t block = hy_coded_block(t->dtype, hy_tensor_width(t));
    if (!hy_is_coded(t->dtype) || (t->quant.scale && block && t->quant.block == block)) {
        return HY_OK;
    }
    return hy_fail(HY_ERR_INPUT,
                   "%s: %s is %s with %s, expected a scale for each %d elements of a row of %lld",
                   hy_op_name(call->kind), hy_op_tensor_name(call->kind, position),
                   hy_dtype_name(t->dtype),
                   t->quant.scale ? "blocks of another length" : "no scales", block,
                   (long long)hy_tensor_width(t));
}

static hy_status check_cast(const hy_op_call *call) {
    hy_dtype from = call->t[HY_CAST_SRC].dtype, to = call->t[HY_CAST_DST].dtype;
    if (hy_is_coded(from) && hy_is_coded(to)) {
        return hy_fail(HY_ERR_INPUT, "cast: src is %s and dst %s, expected one real type",
                       hy_dtype_name(from), hy_dtype_name(to));
    }
    HY_TRY(check_stored(call, HY_CAST_SRC));
    return check_stored(call, HY_CAST_DST);
}

static hy_status check_rules_of_kind(const hy_op_call *call) {
    switch (call->kind) {
    case HY_OP_MATMUL: HY_TRY(check_stored(call, HY_MATMUL_B)); return check_matmul(call);
    case HY_OP_NORM_BWD: return check_norm_backward(call);
    case HY_OP_HEAD_NORM_BWD:
        return check_alias(call, HY_HEAD_NORM_BWD_DOUT, HY_HEAD_NORM_BWD_DQKV);
    case HY_OP_ROPE: return check_rope(call);
    case HY_OP_ATTENTION_CACHED: return check_cache(call);
    case HY_OP_GELU: return check_alias(call, HY_GELU_X, HY_GELU_Y);
    case HY_OP_GELU_BWD: return check_alias(call, HY_GELU_BWD_DY, HY_GELU_BWD_DX);
    case HY_OP_SWIGLU: return check_swiglu(call, HY_SWIGLU_GATE_UP, HY_SWIGLU_Y);
    case HY_OP_SWIGLU_BWD:
        HY_TRY(check_alias(call, HY_SWIGLU_BWD_GATE_UP, HY_SWIGLU_BWD_DGATE_UP));
        HY_TRY(check_alias(call, HY_SWIGLU_BWD_DY, HY_SWIGLU_BWD_ACTIVE));
        return check_swiglu(call, HY_SWIGLU_BWD_GATE_UP, HY_SWIGLU_BWD_DY);
    case HY_OP_EMBED:
        HY_TRY(check_stored(call, HY_EMBED_WTE));
        return check_positions(call, HY_EMBED_WPE);
    case HY_OP_CAST: return check_cast(call);
    case HY_OP_EMBED_BWD: return check_positions(call, HY_EMBED_BWD_DWPE);
    case HY_OP_CROSS_ENTROPY: return check_loss(call);
    case HY_OP_ADAMW: HY_TRY(check_codes(call, HY_ADAMW_M)); return check_codes(call, HY_ADAMW_V);
    case HY_OP_SGD: return check_codes(call, HY_SGD_MOMENTUM);
    default: return HY_OK;
    }
}

static const char *pattern_of(const hy_op_call *call, int position) {
    bool is_matmul = call->kind == HY_OP_MATMUL;
    if (is_matmul && position == HY_MATMUL_A && call->attr.matmul.trans_a) return "KM";
    if (is_matmul && position == HY_MATMUL_B && call->attr.matmul.trans_b) return "NK";
    return rules[call->kind].tensors[position].shape;
}

hy_status hy_op_check(const hy_op_call *call) {
    if ((unsigned)call->kind >= HY_OP_COUNT) {
        return hy_fail(HY_ERR_INPUT, "op kind %d does not exist, expected 0 to %d", (int)call->kind,
                       HY_OP_COUNT - 1);
    }
    lengths known = {0};
    if (has_heads(call->kind)) HY_TRY(bind_heads(call, &known));
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (rules[call->kind].tensors[i].name) {
            HY_TRY(check_tensor(call, i, pattern_of(call, i), &known));
        } else if (call->t[i].data) {
            return hy_fail(HY_ERR_INPUT,
                           "%s: a tensor is given at position %d, which it does not have",
                           hy_op_name(call->kind), i);
        }
    }
    return check_rules_of_kind(call);
}

/* ---- accounting ------------------------------------------------------------------------------ */

double hy_op_flops(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    double B = call->attr.heads.batch, H = call->attr.heads.heads, D = call->attr.heads.head_dim;
    double elements = (double)hy_tensor_count(t); /* of the first */
    switch (call->kind) {
    case HY_OP_MATMUL: {
        const hy_tensor *a = &t[HY_MATMUL_A];
        int64_t inner = call->attr.matmul.trans_a ? hy_tensor_height(a) : hy_tensor_width(a);
        return 2.0 * (double)inner * (double)hy_tensor_count(&t[HY_MATMUL_D]);
    }
    case HY_OP_ATTENTION:       /* q k and p v */
    case HY_OP_ATTENTION_BWD: { /* q k again, dp, dq, dk, dv */
        double matmuls = call->kind == HY_OP_ATTENTION ? 2 : 5;
        double pairs = (double)hy_attention_pairs(call->attr.heads.seq, call->attr.heads.window);
        return matmuls * 2.0 * B * H * D * pairs;
    }
    case HY_OP_ATTENTION_CACHED: { /* the pairs of all positions, less those of the ones before */
        int64_t first = call->attr.heads.first, window = call->attr.heads.window;
        int64_t pairs = hy_attention_pairs(first + call->attr.heads.seq, window) -
                        hy_attention_pairs(first, window);
        return 4.0 * B * H * D * (double)pairs;
    }
    case HY_OP_NORM: return 8 * elements;
    case HY_OP_NORM_BWD: return 14 * elements;
    case HY_OP_HEAD_NORM: return 5 * elements;
    case HY_OP_HEAD_NORM_BWD: return 10 * elements;
    case HY_OP_ROPE: return 3 * elements;
    case HY_OP_GELU: return 20 * elements;
    case HY_OP_GELU_BWD: return 30 * elements;
    case HY_OP_SWIGLU: return 10 * elements;
    case HY_OP_SWIGLU_BWD: return 40 * elements;
    case HY_OP_EMBED: return (double)hy_tensor_count(&t[HY_EMBED_X]);
    case HY_OP_EMBED_BWD: return 2 * (double)hy_tensor_count(&t[HY_EMBED_BWD_DX]);
    case HY_OP_CROSS_ENTROPY: return 20 * elements;
    case HY_OP_SQ_NORM: return 2 * elements;
    case HY_OP_ADAMW: return 16 * elements;
    case HY_OP_SGD: return 7 * elements;
    case HY_OP_BIAS_GRAD:
    case HY_OP_SUM: return elements;
    default: return 0;
    }
}
