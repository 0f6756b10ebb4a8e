/* ops.c: the op table as data, and the check that uses it.
 *
 * Each tensor of each op has a name, the accepted types, its shape in letters, and whether it is
 * read or written. A letter represents one length; the first tensor that has it sets it, unless an
 * attribute does. Rules that letters cannot express (tensors that must not alias, ranges of
 * attributes) are in code. */
#include "kernels/ops.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/grid.h"
#include "kernels/grouped.h"

/* Accepted types of a tensor, as bits. */
enum {
    REAL = 1 << HY_F32 | 1 << HY_BF16 | 1 << HY_F16,
    F32 = 1 << HY_F32,
    F64 = 1 << HY_F64,
    I32 = 1 << HY_I32,
    U8 = 1 << HY_U8,
    BF16 = 1 << HY_BF16,
    WEIGHT = REAL | 1 << HY_I8 | 1 << HY_NF4,
    FP8 = 1 << HY_E4M3 | 1 << HY_E5M2,
    STATE = 1 << HY_F32 | 1 << HY_BF16 | 1 << HY_U8,
    FILLABLE = REAL | 1 << HY_F64 | 1 << HY_I32
};

/* Shapes: one letter is the number of elements; two are rows (all leading dimensions) and columns.
 * "*" accepts any shape; "=" the same number of elements as the first tensor. Letters set by
 * attributes: P (H+2K)D, Q H D, H heads, U and W the weights of the norm of q and k, I the
 * statistics of a row, L B H T, R B T, B the sequences, Z two gates per head; A the columns of qkv
 * that head norm reads. Others are as in tensor.h; G is 2F, X the
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
#define IN_OPT(name, shape, dtypes) RULE(name, shape, dtypes, HY_ACCESS_READ, true)
#define OUT(name, shape, dtypes) RULE(name, shape, dtypes, HY_ACCESS_WRITE, false)
#define OUT_OPT(name, shape, dtypes) RULE(name, shape, dtypes, HY_ACCESS_WRITE, true)
#define INOUT(name, shape, dtypes) RULE(name, shape, dtypes, HY_ACCESS_BOTH, false)
#define INOUT_OPT(name, shape, dtypes) RULE(name, shape, dtypes, HY_ACCESS_BOTH, true)

/* The first tensors of every update. */
#define UPDATE                                                                                     \
    INOUT("param", "*", REAL), IN("grad", "=", REAL), IN("clip", "2", F32),                        \
        INOUT_OPT("master", "=", F32)

/* A gradient that may be accumulated counts as written: the caller owns the sum. */
static const op_rule rules[HY_OP_COUNT] = {
    [HY_OP_MATMUL] = {"matmul",
                      {IN("a", "MK", REAL | FP8), IN("b", "KN", WEIGHT | FP8), OUT("d", "MN", REAL),
                       IN_OPT("bias", "N", REAL), IN_OPT("c", "MN", REAL),
                       OUT_OPT("act", "MN", REAL), IN_OPT("pre", "MN", REAL)}},
    [HY_OP_BIAS_GRAD] = {"bias gradient", {IN("dy", "NC", REAL), OUT("dbias", "C", REAL)}},
    [HY_OP_NORM] = {"norm",
                    {IN("x", "NC", REAL), IN("weight", "C", REAL), IN_OPT("bias", "C", REAL),
                     OUT("y", "NC", REAL), OUT_OPT("mean", "N", F32), OUT("rstd", "N", F32),
                     OUT_OPT("largest", "1", F32), IN_OPT("residual", "NC", REAL)}},
    [HY_OP_NORM_BWD] = {"norm backward",
                        {IN("dy", "NC", REAL), IN("x", "NC", REAL), IN("weight", "C", REAL),
                         IN_OPT("mean", "N", F32), IN("rstd", "N", F32),
                         IN_OPT("residual", "NC", REAL), OUT("dx", "NC", REAL),
                         OUT_OPT("dweight", "C", REAL), OUT_OPT("dbias", "C", REAL)}},
    [HY_OP_HEAD_NORM] = {"head norm",
                         {IN("qkv", "NA", REAL), IN("wq", "U", REAL), IN("wk", "W", REAL),
                          OUT("out", "NP", REAL), OUT("rstd", "NI", F32)}},
    [HY_OP_HEAD_NORM_BWD] = {"head norm backward",
                             {IN("dout", "NP", REAL), IN("qkv", "NA", REAL), IN("wq", "U", REAL),
                              IN("wk", "W", REAL), IN("rstd", "NI", F32), INOUT("dqkv", "NA", REAL),
                              OUT_OPT("dwq", "U", REAL), OUT_OPT("dwk", "W", REAL)}},
    [HY_OP_ROPE] = {"rope",
                    {INOUT("qkv", "NP", REAL), IN("table", "*", F32), IN_OPT("query", "X", F32),
                     IN_OPT("first", "B", I32)}},
    [HY_OP_ATTENTION] = {"attention",
                         {IN("qkv", "RP", REAL), IN_OPT("doc_starts", "R", I32),
                          OUT("out", "RQ", REAL), OUT("lse", "L", F32),
                          IN_OPT("sinks", "H", REAL)}},
    [HY_OP_ATTENTION_BWD] = {"attention backward",
                             {IN("dout", "RQ", REAL), IN("qkv", "RP", REAL),
                              IN_OPT("doc_starts", "R", I32), IN("out", "RQ", REAL),
                              IN("lse", "L", F32), OUT("dqkv", "RP", REAL),
                              IN_OPT("sinks", "H", REAL), OUT_OPT("dsinks", "H", REAL)}},
    [HY_OP_ATTENTION_CACHED] = {"cached attention",
                                {IN("qkv", "RP", REAL), INOUT("cache", "*", REAL),
                                 OUT("out", "RQ", REAL), IN_OPT("sinks", "H", REAL),
                                 IN("first", "B", I32), IN("blocks", "BY", I32)}},
    [HY_OP_CONV] = {"convolution",
                    {IN("x", "NC", REAL), IN("weight", "CJ", REAL), IN_OPT("doc_starts", "N", I32),
                     OUT("y", "NC", REAL)}},
    [HY_OP_CONV_BWD] = {"convolution backward",
                        {IN("dy", "NC", REAL), IN("x", "NC", REAL), IN("weight", "CJ", REAL),
                         IN_OPT("doc_starts", "N", I32), OUT("dx", "NC", REAL),
                         OUT_OPT("dweight", "CJ", REAL)}},
    [HY_OP_CONV_CACHED] = {"cached convolution",
                           {IN("x", "NC", REAL), IN("weight", "CJ", REAL),
                            INOUT("state", "*", REAL), OUT("y", "NC", REAL), IN("first", "B", I32),
                            IN("slots", "B", I32)}},
    [HY_OP_DELTA] = {"delta rule",
                     {IN("qkv", "RP", REAL), IN("gates", "RZ", REAL), IN("a_log", "H", REAL),
                      IN("dt_bias", "H", REAL), IN_OPT("doc_starts", "R", I32),
                      OUT("out", "RQ", REAL)}},
    [HY_OP_DELTA_BWD] = {"delta rule backward",
                         {IN("dout", "RQ", REAL), IN("qkv", "RP", REAL), IN("gates", "RZ", REAL),
                          IN("a_log", "H", REAL), IN("dt_bias", "H", REAL),
                          IN_OPT("doc_starts", "R", I32), OUT("dqkv", "RP", REAL),
                          OUT("dgates", "RZ", REAL), OUT_OPT("da_log", "H", REAL),
                          OUT_OPT("ddt_bias", "H", REAL)}},
    [HY_OP_DELTA_CACHED] = {"cached delta rule",
                            {IN("qkv", "RP", REAL), IN("gates", "RZ", REAL), IN("a_log", "H", REAL),
                             IN("dt_bias", "H", REAL), INOUT("state", "*", F32),
                             OUT("out", "RQ", REAL), IN("first", "B", I32), IN("slots", "B", I32)}},
    [HY_OP_GATE] = {"gate",
                    {IN("x", "NQ", REAL), IN("gate", "NX", REAL), IN_OPT("weight", "D", REAL),
                     OUT("y", "NQ", REAL), OUT_OPT("rstd", "NH", F32)}},
    [HY_OP_GATE_BWD] = {"gate backward",
                        {IN("dy", "NQ", REAL), IN("x", "NQ", REAL), IN("gate", "NX", REAL),
                         IN_OPT("weight", "D", REAL), IN_OPT("rstd", "NH", F32),
                         OUT("dx", "NQ", REAL), INOUT("dgate", "NX", REAL),
                         OUT_OPT("dweight", "D", REAL)}},
    [HY_OP_GELU] = {"gelu",
                    {IN("x", "NF", REAL), OUT("y", "NF", REAL), OUT_OPT("largest", "1", F32)}},
    [HY_OP_GELU_BWD] = {"gelu backward",
                        {IN("dy", "NF", REAL), IN("x", "NF", REAL), OUT("dx", "NF", REAL),
                         OUT_OPT("largest", "1", F32)}},
    [HY_OP_SWIGLU] = {"swiglu",
                      {IN("gate_up", "NG", REAL), OUT("y", "NF", REAL),
                       OUT_OPT("largest", "1", F32), IN_OPT("weights", "N", F32),
                       IN_OPT("order", "N", I32)}},
    [HY_OP_SWIGLU_BWD] = {"swiglu backward",
                          {IN("dy", "NF", REAL), IN("gate_up", "NG", REAL),
                           OUT("dgate_up", "NG", REAL), OUT_OPT("active", "NF", REAL),
                           OUT_OPT("largest", "1", F32), IN_OPT("weights", "N", F32),
                           IN_OPT("order", "N", I32), OUT_OPT("dweights", "N", F32)}},
    [HY_OP_EMBED] = {"embedding",
                     {IN("tokens", "N", I32), IN("wte", "VC", WEIGHT), IN_OPT("wpe", "XC", REAL),
                      OUT("x", "NC", REAL), IN_OPT("doc_starts", "N", I32),
                      IN_OPT("first", "B", I32)}},
    [HY_OP_EMBED_BWD] = {"embedding backward",
                         {IN("tokens", "N", I32), IN("dx", "NC", REAL), OUT_OPT("dwte", "VC", REAL),
                          OUT_OPT("dwpe", "XC", REAL), IN_OPT("doc_starts", "N", I32)}},
    [HY_OP_CROSS_ENTROPY] = {"cross-entropy",
                             {INOUT("logits", "NV", REAL), IN("targets", "N", I32),
                              OUT("losses", "N", F32), IN_OPT("weights", "N", F32)}},
    [HY_OP_PREFERENCE] = {"preference loss",
                          {IN("token_losses", "N", F32), IN("targets", "N", I32),
                           IN("doc_starts", "N", I32), IN_OPT("reference", "N", F32),
                           OUT("losses", "N", F32), OUT_OPT("weights", "N", F32),
                           INOUT("stats", "4", F64)}},
    [HY_OP_POLICY] = {"policy loss",
                      {IN("token_losses", "N", F32), IN("targets", "N", I32),
                       IN("policy", "N4", F32), IN_OPT("reference", "N", F32),
                       OUT("losses", "N", F32), OUT_OPT("weights", "N", F32),
                       INOUT("stats", "8", F64)}},
    [HY_OP_SAMPLE] = {"sampling",
                      {IN("logits", "NV", REAL), IN("sampling", "NS", U8), OUT("tokens", "N", I32),
                       OUT("logprobs", "N", F32), OUT_OPT("top_tokens", "NE", I32),
                       OUT_OPT("top_logprobs", "NE", F32), INOUT_OPT("seen", "NM", I32)}},
    [HY_OP_SUM] = {"sum", {IN("x", "*", F32), OUT("out", "1", F64)}},
    [HY_OP_SQ_NORM] = {"squared norm", {IN("x", "*", REAL), OUT("out", "1", F64)}},
    [HY_OP_CLIP] = {"clip", {IN("total", "1", F64), OUT("result", "2", F32)}},
    [HY_OP_ADAMW] = {"adamw", {UPDATE, INOUT("m", "=", STATE), INOUT("v", "=", STATE)}},
    [HY_OP_SGD] = {"sgd", {UPDATE, INOUT_OPT("momentum", "=", STATE)}},
    [HY_OP_LION] = {"lion", {UPDATE, INOUT("m", "=", STATE)}},
    [HY_OP_ADAFACTOR] = {"adafactor", {UPDATE, INOUT("v", "*", F32)}},
    [HY_OP_MUON] = {"muon",
                    {UPDATE,
                     INOUT("m", "=", STATE), [HY_UPDATE_DIRECTION] = IN("direction", "=", REAL)}},
    [HY_OP_MUON_BLEND] = {"muon blend",
                          {OUT("out", "*", REAL), IN("grad", "=", REAL), IN("m", "=", STATE),
                           IN("clip", "2", F32)}},
    [HY_OP_TO_UNIT] = {"scaling to one", {IN("x", "MC", REAL), OUT("y", "MC", REAL)}},
    [HY_OP_CAST] = {"cast", {IN("src", "*", WEIGHT | 1 << HY_E4M3), OUT("dst", "=", WEIGHT)}},
    [HY_OP_FILL] = {"fill", {OUT("dst", "*", FILLABLE)}},
    [HY_OP_COMBINE] = {"combination",
                       {OUT("out", "*", REAL), IN_OPT("x0", "=", REAL), IN_OPT("x1", "=", REAL),
                        IN_OPT("x2", "=", REAL)}},
    [HY_OP_DIFF_DOT] = {"dot product",
                        {IN("a", "*", REAL), IN_OPT("b", "=", REAL), IN("c", "=", REAL),
                         IN_OPT("d", "=", REAL), OUT("out", "3", F64)}},
    [HY_OP_QUANTIZE] = {"quantisation",
                        {IN("x", "*", F32), OUT("codes", "=", U8), OUT("scales", "*", F32)}},
    [HY_OP_DEQUANTIZE] = {"dequantisation",
                          {IN("codes", "*", U8), IN("scales", "*", F32), OUT("x", "=", F32)}},
    [HY_OP_WRAP] = {"wrapping", {IN("x", "*", BF16), OUT("codes", "=", U8)}},
    [HY_OP_UNWRAP] = {"unwrapping",
                      {IN("codes", "*", U8), IN("near", "=", BF16), OUT("x", "=", BF16)}},
    [HY_OP_LARGEST] = {"largest magnitude", {IN("x", "*", REAL), OUT("out", "1", F32)}},
    [HY_OP_TO_FP8] = {"to fp8",
                      {IN("x", "MC", REAL | FP8), IN_OPT("largest", "1", F32),
                       OUT_OPT("codes", "MC", FP8), OUT_OPT("transposed", "CM", FP8),
                       INOUT_OPT("seen", "3", F64)}},
    [HY_OP_SPREAD] = {"spreading", {IN("b", "RK", REAL), OUT("full", "MC", REAL)}},
    [HY_OP_COLLECT] = {"collecting", {IN("full", "MC", REAL), OUT("b", "RK", REAL)}},
    [HY_OP_DROPOUT] = {"dropout",
                       {IN("x", "*", REAL), IN_OPT("seed", "2", I32), OUT("y", "=", REAL),
                        IN_OPT("c", "=", REAL)}},
    [HY_OP_ADD_PARTS] = {"sum over ranks",
                         {IN("own", "*", REAL), IN_OPT("parts", "*", REAL), OUT("out", "=", REAL)}},
    [HY_OP_ROUTE] = {"routing",
                     {IN("logits", "NE", REAL), IN_OPT("bias", "E", F32), OUT("choice", "NK", I32),
                      OUT("weights", "NK", F32), OUT_OPT("losses", "N3", F32)}},
    [HY_OP_ROUTE_BWD] = {"routing backward",
                         {IN("dweights", "NK", F32), IN("logits", "NE", REAL),
                          IN("choice", "NK", I32), OUT("dlogits", "NE", REAL)}},
    [HY_OP_SORT_EXPERTS] = {"sorting by expert",
                            {IN("choice", "NK", I32), OUT("order", "R", I32),
                             OUT("place", "NK", I32), OUT("offsets", "*", I32)}},
    [HY_OP_GROUPED_MATMUL] = {"grouped matmul",
                              {IN("a", "XK", REAL), IN("b", "*", WEIGHT | 1 << HY_E4M3),
                               IN("offsets", "O", I32), OUT("d", "RN", REAL),
                               IN_OPT("rows", "R", I32), IN_OPT("bias", "EN", REAL)}},
    [HY_OP_GROUPED_GRAD] = {"grouped gradient",
                            {IN("a", "XM", REAL), IN("b", "YN", REAL), IN("offsets", "O", I32),
                             OUT("d", "*", REAL), IN_OPT("rows_a", "R", I32),
                             IN_OPT("rows_b", "R", I32)}},
    [HY_OP_SUM_ROWS] = {"sum of rows",
                        {IN("y", "RC", REAL), IN("place", "NK", I32),
                         IN_OPT("residual", "NC", REAL), OUT("out", "NC", REAL)}},
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

int hy_op_largest(hy_op_kind kind, int *of) {
    static const int8_t places[HY_OP_COUNT][2] = {
        [HY_OP_NORM] = {HY_NORM_LARGEST, HY_NORM_Y},
        [HY_OP_GELU] = {HY_GELU_LARGEST, HY_GELU_Y},
        [HY_OP_GELU_BWD] = {HY_GELU_BWD_LARGEST, HY_GELU_BWD_DX},
        [HY_OP_SWIGLU] = {HY_SWIGLU_LARGEST, HY_SWIGLU_Y},
        [HY_OP_SWIGLU_BWD] = {HY_SWIGLU_BWD_LARGEST, HY_SWIGLU_BWD_DGATE_UP},
    };
    int at = (unsigned)kind < HY_OP_COUNT ? places[kind][0] : 0;
    if (at > 0) *of = places[kind][1];
    return at > 0 ? at : -1;
}

/* n (n + 1) / 2 below `most`, then `most` for each further one. */
static int64_t sum_up_to(int64_t n, int64_t most) {
    return n <= most ? n * (n + 1) / 2 : most * (most + 1) / 2 + (n - most) * most;
}

int64_t hy_attention_pairs(const hy_heads_attr *a, int64_t seq) {
    enum { BLOCK = HY_SPARSE_BLOCK };
    if (a->sparse_local <= 0) return sum_up_to(seq, a->window > 0 ? a->window : seq);
    /* A token sees its own block up to itself, and whole ones before it. */
    int64_t most = (int64_t)a->sparse_local + a->sparse_global - 1, n = seq / BLOCK;
    int64_t whole =
        (n > 0 ? sum_up_to(n - 1, most) : 0) * BLOCK + (n < most ? n : most) * (seq % BLOCK);
    return whole * BLOCK + n * sum_up_to(BLOCK, BLOCK) + sum_up_to(seq % BLOCK, BLOCK);
}

/* ---- the check ------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static hy_status refuse(const hy_op_call *call, int position,
                                                              const char *format, ...) {
    char problem[224];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    return hy_fail(HY_ERR_INPUT, "%s: %s %s", hy_op_name(call->kind),
                   hy_op_tensor_name(call->kind, position), problem);
}

__attribute__((format(printf, 3, 4))) static hy_status
wrong_shape(const hy_op_call *call, int position, const char *format, ...) {
    const hy_tensor *t = &call->t[position];
    char shape[96] = "", expected[96];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(expected, sizeof expected, format, arguments);
    va_end(arguments);
    for (int i = 0, used = 0; i < t->ndim; i++) {
        used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%lld", i ? ", " : "",
                         (long long)t->shape[i]);
    }
    return refuse(call, position, "has shape (%s), expected %s", shape, expected);
}

/* Whether a length agrees with its letter. The first length sets the letter. */
static bool bind_length(int64_t *known, char letter, int64_t length) {
    int64_t *slot = &known[(unsigned char)letter];
    if (*slot == 0) *slot = length;
    return *slot == length;
}

/* A length, or its letter if the length is not set. */
static const char *length_text(int64_t length, char letter, char out[24]) {
    if (length > 0) {
        snprintf(out, 24, "%lld", (long long)length);
    } else {
        snprintf(out, 24, "%c", letter);
    }
    return out;
}

static hy_status check_shape(const hy_op_call *call, int position, int64_t *known) {
    const hy_tensor *t = &call->t[position];
    const char *pattern = rules[call->kind].tensors[position].shape;
    bool is_matmul = call->kind == HY_OP_MATMUL;
    if (is_matmul && position == HY_MATMUL_A && call->attr.matmul.trans_a) pattern = "KM";
    if (is_matmul && position == HY_MATMUL_B && call->attr.matmul.trans_b) pattern = "NK";
    if (pattern[0] == '*') return HY_OK;
    if (pattern[0] == '=') {
        int64_t count = hy_tensor_count(call->t);
        if (hy_tensor_count(t) == count) return HY_OK;
        return wrong_shape(call, position, "%lld elements, as in %s", (long long)count,
                           hy_op_tensor_name(call->kind, 0));
    }
    /* The letters' lengths before this tensor, for the message. */
    int64_t rows = known[(unsigned char)pattern[0]], cols = known[(unsigned char)pattern[1]];
    char a[24], b[24];
    if (pattern[1] == 0) {
        if (bind_length(known, pattern[0], hy_tensor_count(t))) return HY_OK;
        return wrong_shape(call, position, "(%s)", length_text(rows, pattern[0], a));
    }
    int64_t batch = is_matmul ? hy_matmul_batch(call) : 1;
    bool rows_agree = hy_tensor_height(t) % batch == 0 &&
                      bind_length(known, pattern[0], hy_tensor_height(t) / batch);
    bool cols_agree = bind_length(known, pattern[1], hy_tensor_width(t));
    if (t->ndim >= 2 && rows_agree && cols_agree) return HY_OK;
    length_text(rows, pattern[0], a);
    length_text(cols, pattern[1], b);
    if (batch == 1) return wrong_shape(call, position, "(%s, %s)", a, b);
    return wrong_shape(call, position, "(%lld times %s, %s)", (long long)batch, a, b);
}

/* Quantised values have a scale per block; a block of 8-bit optimizer state fits into a warp of a
 * GPU. */
static hy_status check_scales(const hy_op_call *call, int position) {
    const hy_tensor *t = &call->t[position];
    int32_t block = t->quant.block;
    int32_t expected = hy_coded_block(t->dtype, hy_tensor_height(t), hy_tensor_width(t));
    bool has_blocks = hy_is_coded(t->dtype) && !hy_coded_as_one(t->dtype);
    if (has_blocks && (!t->quant.scale || expected == 0 || block != expected)) {
        return refuse(
            call, position, "is %s with %s, expected a scale for each %d elements of a row of %lld",
            hy_dtype_name(t->dtype), t->quant.scale ? "blocks of another length" : "no scales",
            expected, (long long)hy_tensor_width(t));
    }
    bool is_grouped =
        !has_blocks || hy_coded_group_fits(t->dtype, hy_tensor_count(t) / block, t->quant.group);
    if (!is_grouped) {
        return refuse(call, position,
                      "is %s with groups of %d blocks, expected a power of two up to %d that "
                      "divides the number of blocks, %lld",
                      hy_dtype_name(t->dtype), t->quant.group, hy_coded_most(t->dtype),
                      (long long)(hy_tensor_count(t) / block));
    }
    if (hy_is_fp8(t->dtype) && !t->quant.scale) {
        return refuse(call, position, "is %s but has no scale", hy_dtype_name(t->dtype));
    }
    if (t->dtype != HY_U8 || rules[call->kind].tensors[position].dtypes != STATE) return HY_OK;
    if (!t->quant.scale) return refuse(call, position, "is u8 but has no scales");
    if (block >= 8 && block <= 256 && (block & (block - 1)) == 0) return HY_OK;
    return refuse(call, position,
                  "has blocks of %d elements, expected a power of two from 8 to 256", block);
}

static hy_status check_tensor(const hy_op_call *call, int position, int64_t *known) {
    const tensor_rule *rule = &rules[call->kind].tensors[position];
    const hy_tensor *t = &call->t[position];
    if (!hy_tensor_is_given(t)) {
        return rule->is_optional || !rule->name ? HY_OK : refuse(call, position, "is missing");
    }
    HY_FAIL_IF(!rule->name, HY_ERR_INPUT,
               "%s: there is a tensor at position %d, but the op does not have this position",
               hy_op_name(call->kind), position);
    if (t->ndim < 1 || t->ndim > HY_MAX_DIMS) {
        return refuse(call, position, "has %d dimensions, expected 1 to %d", t->ndim, HY_MAX_DIMS);
    }
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 1) return wrong_shape(call, position, "lengths of at least 1");
    }
    if ((unsigned)t->dtype >= HY_DTYPE_COUNT || !(rule->dtypes >> t->dtype & 1)) {
        char accepted[96];
        for (int d = 0, used = 0; d < HY_DTYPE_COUNT; d++) {
            if (!(rule->dtypes >> d & 1)) continue;
            used += snprintf(accepted + used, sizeof accepted - (size_t)used, "%s%s",
                             used ? " or " : "", hy_dtype_name((hy_dtype)d));
        }
        return refuse(call, position, "is %s, expected %s", hy_dtype_name(t->dtype), accepted);
    }
    HY_TRY(check_shape(call, position, known));
    return check_scales(call, position);
}

/* Heads must be valid before lengths can be derived from them. */
static hy_status bind_heads(const hy_op_call *call, int64_t *known) {
    const hy_heads_attr *a = &call->attr.heads;
    int64_t B = a->batch, T = a->seq, H = a->heads, K = a->kv_heads, D = a->head_dim;
    HY_FAIL_IF(B < 1 || T < 1 || H < 1 || K < 1 || D < 1 || D > 1024 || H % K != 0, HY_ERR_INPUT,
               "%s: batch %d, seq %d, heads %d, kv_heads %d, head_dim %d; expected positive "
               "numbers, heads a multiple of kv_heads, head_dim at most 1024",
               hy_op_name(call->kind), a->batch, a->seq, a->heads, a->kv_heads, a->head_dim);
    HY_FAIL_IF(a->has_gates && a->is_whole, HY_ERR_INPUT,
               "%s: has_gates and is_whole cannot be combined", hy_op_name(call->kind));
    known['P'] = (H + 2 * K) * D;
    known['A'] = known['P'] + (a->has_gates ? H * D : 0);
    known['Q'] = H * D;
    known['H'] = H;
    known['U'] = a->is_whole ? H * D : D;
    known['W'] = a->is_whole ? K * D : D;
    known['I'] = a->is_whole ? 2 : H + K;
    known['L'] = B * H * T;
    known['R'] = B * T;
    known['B'] = B;
    return HY_OK;
}

static hy_status bind_delta(const hy_op_call *call, int64_t *known) {
    const hy_delta_attr *a = &call->attr.delta;
    int64_t B = a->batch, T = a->seq, K = a->key_heads, H = a->heads;
    int64_t most = HY_DELTA_DIM_MAX, Dk = a->key_dim, Dv = a->value_dim;
    bool are_positive = B > 0 && T > 0 && K > 0 && H > 0 && Dk > 0 && Dv > 0;
    HY_FAIL_IF(!are_positive || H % K != 0 || Dk > most || Dv > most, HY_ERR_INPUT,
               "%s: batch %d, seq %d, key_heads %d, heads %d, key_dim %d, value_dim %d; expected "
               "positive numbers, heads a multiple of key_heads, key_dim and value_dim at most %d",
               hy_op_name(call->kind), a->batch, a->seq, a->key_heads, a->heads, a->key_dim,
               a->value_dim, HY_DELTA_DIM_MAX);
    known['P'] = 2 * K * Dk + H * Dv;
    known['Q'] = H * Dv;
    known['H'] = H;
    known['Z'] = 2 * H;
    known['R'] = B * T;
    known['B'] = B;
    return HY_OK;
}

static hy_status bind_gate(const hy_op_call *call, int64_t *known) {
    int64_t H = call->attr.gate.heads, D = call->attr.gate.head_dim;
    HY_FAIL_IF(H < 1 || D < 1 || D > 1024, HY_ERR_INPUT,
               "%s: heads %d, head_dim %d; expected positive numbers, head_dim at most 1024",
               hy_op_name(call->kind), call->attr.gate.heads, call->attr.gate.head_dim);
    known['Q'] = H * D;
    known['H'] = H;
    known['D'] = D;
    return HY_OK;
}

/* The experts are the first of three dimensions of b, or of d. */
static void bind_experts(const hy_op_call *call, int position, char rows, char cols,
                         int64_t *known) {
    const hy_tensor *t = &call->t[position];
    if (!hy_tensor_is_given(t) || t->ndim != 3) return; /* refused later */
    known['E'] = t->shape[0];
    known['O'] = t->shape[0] + 1;
    known[(unsigned char)rows] = t->shape[1];
    known[(unsigned char)cols] = t->shape[2];
}

/* The lengths that attributes set, or a tensor with more than two dimensions. */
static hy_status bind_attributes(const hy_op_call *call, int64_t *known) {
    switch (call->kind) {
    case HY_OP_HEAD_NORM:
    case HY_OP_HEAD_NORM_BWD:
    case HY_OP_ROPE:
    case HY_OP_ATTENTION:
    case HY_OP_ATTENTION_BWD:
    case HY_OP_ATTENTION_CACHED: return bind_heads(call, known);
    case HY_OP_DELTA:
    case HY_OP_DELTA_BWD:
    case HY_OP_DELTA_CACHED: return bind_delta(call, known);
    case HY_OP_GATE:
    case HY_OP_GATE_BWD: return bind_gate(call, known);
    case HY_OP_GROUPED_MATMUL: {
        bool trans_b = call->attr.grouped.trans_b;
        bind_experts(call, HY_GROUPED_MATMUL_B, trans_b ? 'N' : 'K', trans_b ? 'K' : 'N', known);
        return HY_OK;
    }
    case HY_OP_GROUPED_GRAD: bind_experts(call, HY_GROUPED_GRAD_D, 'M', 'N', known); return HY_OK;
    default: return HY_OK;
    }
}

/* If a tensor shares memory with another, both must have the same type. */
static hy_status check_alias(const hy_op_call *call, int one, int other) {
    const hy_tensor *a = &call->t[one], *b = &call->t[other];
    HY_FAIL_IF(a->data && a->data == b->data && a->dtype != b->dtype, HY_ERR_INPUT,
               "%s: %s and %s share memory but are %s and %s", hy_op_name(call->kind),
               hy_op_tensor_name(call->kind, one), hy_op_tensor_name(call->kind, other),
               hy_dtype_name(a->dtype), hy_dtype_name(b->dtype));
    return HY_OK;
}

static hy_status check_head_norm_bwd(const hy_op_call *call) {
    const hy_tensor *dout = &call->t[HY_HEAD_NORM_BWD_DOUT],
                    *dqkv = &call->t[HY_HEAD_NORM_BWD_DQKV];
    HY_FAIL_IF(call->attr.heads.has_gates && dout->data && dout->data == dqkv->data, HY_ERR_INPUT,
               "head norm backward: with has_gates dqkv cannot be dout; its rows are longer");
    return check_alias(call, HY_HEAD_NORM_BWD_DOUT, HY_HEAD_NORM_BWD_DQKV);
}

static hy_status check_batch(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    int32_t batch = call->attr.matmul.batch, most = call->attr.matmul.batch_most;
    bool is_plain = !t[HY_MATMUL_BIAS].data && !t[HY_MATMUL_ACT].data && !t[HY_MATMUL_PRE].data &&
                    !call->attr.matmul.is_gelu && !hy_is_fp8(t[HY_MATMUL_A].dtype) &&
                    t[HY_MATMUL_B].dtype == t[HY_MATMUL_A].dtype;
    HY_FAIL_IF(batch < 0 || (batch > 0) != (most > 0) || most < 0, HY_ERR_INPUT,
               "matmul: batch is %d and batch_most is %d; expected both above zero, or both zero",
               batch, most);
    HY_FAIL_IF(batch > 0 && !is_plain, HY_ERR_INPUT,
               "matmul: a batch supports only c, and a and b of one type other than fp8");
    return HY_OK;
}

static hy_status check_matmul(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    bool accumulate = call->attr.accumulate, is_gelu = call->attr.matmul.is_gelu;
    bool has_bias = t[HY_MATMUL_BIAS].data, has_c = t[HY_MATMUL_C].data;
    bool has_act = t[HY_MATMUL_ACT].data, has_pre = t[HY_MATMUL_PRE].data;
    HY_FAIL_IF(accumulate && (has_bias || has_c), HY_ERR_INPUT,
               "matmul: accumulate cannot be combined with bias or c");
    HY_FAIL_IF((has_act || is_gelu) && (accumulate || has_c || has_pre), HY_ERR_INPUT,
               "matmul: gelu cannot be combined with accumulate, c or pre");
    HY_FAIL_IF(has_act && is_gelu, HY_ERR_INPUT, "matmul: is_gelu and act cannot be combined");
    HY_FAIL_IF(has_pre && (accumulate || has_bias || has_c), HY_ERR_INPUT,
               "matmul: pre cannot be combined with accumulate, bias or c");
    hy_dtype a = t[HY_MATMUL_A].dtype, b = t[HY_MATMUL_B].dtype;
    bool is_stored = !hy_is_fp8(a) && b == HY_E4M3; /* a weight that is cast first */
    HY_FAIL_IF((hy_is_fp8(a) != hy_is_fp8(b) && !is_stored) || (a == HY_E5M2 && b == HY_E5M2),
               HY_ERR_INPUT,
               "matmul: a is %s and b is %s; in fp8 both must be fp8, and at least one e4m3",
               hy_dtype_name(a), hy_dtype_name(b));
    HY_FAIL_IF(hy_is_fp8(a) && (call->attr.matmul.trans_a || !call->attr.matmul.trans_b ||
                                has_act || has_pre || is_gelu),
               HY_ERR_INPUT,
               "matmul: in fp8 both operands must have the summed dimension last (only trans_b), "
               "without gelu");
    HY_TRY(check_batch(call));
    bool is_simple = call->attr.matmul.trans_b && !call->attr.matmul.trans_a && !has_act &&
                     !is_gelu && !has_pre && call->attr.matmul.batch == 0 && !hy_is_fp8(a);
    HY_FAIL_IF(call->attr.matmul.is_batch_invariant && !is_simple, HY_ERR_INPUT,
               "matmul: a batch-invariant matmul needs trans_b and an a that is not fp8, and "
               "excludes trans_a, gelu, pre and batch");
    return check_alias(call, HY_MATMUL_C, HY_MATMUL_D);
}

static hy_status check_to_fp8(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    bool has_codes = t[HY_TO_FP8_CODES].data, has_transposed = t[HY_TO_FP8_TRANSPOSED].data;
    bool is_transposing = hy_is_fp8(t[HY_TO_FP8_X].dtype);
    HY_FAIL_IF(!has_codes && !has_transposed, HY_ERR_INPUT,
               "to fp8: both codes and transposed are missing");
    HY_FAIL_IF(is_transposing && (has_codes || t[HY_TO_FP8_LARGEST].data || t[HY_TO_FP8_SEEN].data),
               HY_ERR_INPUT, "to fp8: x is %s; expected only transposed",
               hy_dtype_name(t[HY_TO_FP8_X].dtype));
    if (!is_transposing && !t[HY_TO_FP8_LARGEST].data) {
        return refuse(call, HY_TO_FP8_LARGEST, "is missing; it is required if x is not fp8");
    }
    hy_dtype one = is_transposing ? t[HY_TO_FP8_X].dtype : t[HY_TO_FP8_CODES].dtype;
    HY_FAIL_IF((is_transposing || has_codes) && has_transposed &&
                   t[HY_TO_FP8_TRANSPOSED].dtype != one,
               HY_ERR_INPUT, "to fp8: transposed is %s, expected %s",
               hy_dtype_name(t[HY_TO_FP8_TRANSPOSED].dtype), hy_dtype_name(one));
    return HY_OK;
}

static hy_status check_rope(const hy_op_call *call) {
    int64_t T = call->attr.heads.seq, D = call->attr.heads.head_dim;
    int32_t rotary = call->attr.heads.rotary;
    int64_t turned = rotary ? rotary : D;
    const hy_tensor *table = &call->t[HY_ROPE_TABLE], *query = &call->t[HY_ROPE_QUERY];
    HY_FAIL_IF(
        rotary != 0 && (rotary < 2 || rotary > D || rotary % 2 != 0), HY_ERR_INPUT,
        "rope: rotary is %d, expected an even number from 2 to %lld (head_dim), or 0 for all",
        rotary, (long long)D);
    HY_FAIL_IF(D % 2 != 0, HY_ERR_INPUT, "rope: head_dim is %lld, expected an even number",
               (long long)D);
    int64_t rows = hy_tensor_height(&call->t[HY_ROPE_QKV]), B = call->attr.heads.batch;
    HY_FAIL_IF(call->t[HY_ROPE_FIRST].data && rows != B * T, HY_ERR_INPUT,
               "rope: qkv has %lld rows, expected %lld sequences of %lld", (long long)rows,
               (long long)B, (long long)T);
    if (query->data && hy_tensor_count(query) < T) {
        return wrong_shape(call, HY_ROPE_QUERY, "(at least %lld)", (long long)T);
    }
    if (table->shape[0] >= T && hy_tensor_count(table) == table->shape[0] * turned) return HY_OK;
    return wrong_shape(call, HY_ROPE_TABLE, "(at least %lld, %lld, 2)", (long long)T,
                       (long long)(turned / 2));
}

/* Scores or logits that are capped: 0 means that they are not. */
static hy_status check_softcap(const hy_op_call *call, float softcap) {
    HY_FAIL_IF(!(softcap >= 0 && softcap < INFINITY), HY_ERR_INPUT,
               "%s: softcap is %g, expected a number above 0, or 0 for none",
               hy_op_name(call->kind), (double)softcap);
    return HY_OK;
}

static hy_status check_scores(const hy_op_call *call) {
    const hy_heads_attr *a = &call->attr.heads;
    HY_FAIL_IF(a->sparse_local < 0 || a->sparse_local > HY_SPARSE_MOST || a->sparse_global < 0 ||
                   a->sparse_global > HY_SPARSE_MOST,
               HY_ERR_INPUT, "%s: %d local and %d global blocks, expected 0 to %d of each",
               hy_op_name(call->kind), a->sparse_local, a->sparse_global, HY_SPARSE_MOST);
    HY_FAIL_IF(a->sparse_local > 0 && a->window > 0, HY_ERR_INPUT,
               "%s: block-sparse attention cannot be combined with a window of %d",
               hy_op_name(call->kind), a->window);
    return check_softcap(call, a->softcap);
}

static hy_status check_attention_bwd(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    if (t[HY_ATTENTION_BWD_DSINKS].data && !t[HY_ATTENTION_BWD_SINKS].data) {
        return refuse(call, HY_ATTENTION_BWD_SINKS, "is missing; it is required for dsinks");
    }
    return check_scores(call);
}

static hy_status check_act(const hy_op_call *call) {
    HY_FAIL_IF((unsigned)call->attr.act.kind >= HY_ACT_COUNT, HY_ERR_INPUT,
               "%s: activation function %d does not exist, expected 0 to %d",
               hy_op_name(call->kind), (int)call->attr.act.kind, HY_ACT_COUNT - 1);
    return HY_OK;
}

static hy_status check_norm(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    HY_FAIL_IF(t[HY_NORM_RESIDUAL].data && t[HY_NORM_LARGEST].data, HY_ERR_INPUT,
               "norm: residual and largest cannot be combined");
    return check_alias(call, HY_NORM_RESIDUAL, HY_NORM_Y);
}

static hy_status check_loss(const hy_op_call *call) {
    int64_t vocab = call->attr.loss.vocab;
    int64_t V = hy_tensor_width(&call->t[HY_CROSS_ENTROPY_LOGITS]);
    HY_FAIL_IF(vocab < 1 || vocab > V, HY_ERR_INPUT,
               "cross-entropy: vocab is %lld, expected 1 to %lld (columns of logits)",
               (long long)vocab, (long long)V);
    HY_FAIL_IF(!isfinite(call->attr.loss.factor), HY_ERR_INPUT,
               "cross-entropy: factor is %g, expected a finite number",
               (double)call->attr.loss.factor);
    return check_softcap(call, call->attr.loss.softcap);
}

static hy_status check_preference(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    int64_t N = hy_tensor_count(&t[HY_PREFERENCE_LOSSES]), seq = call->attr.preference.seq;
    const hy_loss *p = &call->attr.preference.of;
    HY_FAIL_IF(!hy_loss_is_of_pairs(p->kind), HY_ERR_INPUT,
               "preference loss: kind %d does not exist, expected %d to %d", (int)p->kind,
               HY_LOSS_DPO, HY_LOSS_SIMPO);
    HY_FAIL_IF(!(p->beta > 0) || !isfinite(p->beta), HY_ERR_INPUT,
               "preference loss: beta is %g, expected a number above 0", (double)p->beta);
    HY_FAIL_IF(seq < 1 || N % seq != 0, HY_ERR_INPUT,
               "preference loss: %lld tokens are no sequences of %lld", (long long)N,
               (long long)seq);
    HY_FAIL_IF(hy_preference_has_reference(p->kind) && !t[HY_PREFERENCE_REFERENCE].data,
               HY_ERR_INPUT, "preference loss: reference is missing");
    return HY_OK;
}

static bool is_at_least_0(float x) { return x >= 0 && isfinite(x); }

static hy_status check_policy(const hy_op_call *call) {
    const hy_policy *p = &call->attr.policy;
    HY_FAIL_IF(!is_at_least_0(p->clip_low) || !is_at_least_0(p->clip_high) || p->clip_low > 1,
               HY_ERR_INPUT,
               "policy loss: the ratio is clipped to [1 - %g, 1 + %g], expected 0 to 1, and 0 and "
               "more",
               (double)p->clip_low, (double)p->clip_high);
    HY_FAIL_IF(!is_at_least_0(p->kl) || !is_at_least_0(p->cap), HY_ERR_INPUT,
               "policy loss: kl is %g and cap is %g, expected 0 and more", (double)p->kl,
               (double)p->cap);
    HY_FAIL_IF(p->kl > 0 && !call->t[HY_POLICY_REFERENCE].data, HY_ERR_INPUT,
               "policy loss: reference is missing");
    return HY_OK;
}

static hy_status check_sample(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    int64_t V = hy_tensor_width(&t[HY_SAMPLE_LOGITS]), vocab = call->attr.sample.vocab;
    const hy_tensor *top = &t[HY_SAMPLE_TOP_TOKENS], *seen = &t[HY_SAMPLE_SEEN];
    HY_FAIL_IF(vocab < 1 || vocab > V, HY_ERR_INPUT,
               "sampling: vocab is %lld, expected 1 to %lld (columns of logits)", (long long)vocab,
               (long long)V);
    HY_FAIL_IF(hy_tensor_width(&t[HY_SAMPLE_SAMPLING]) != (int64_t)sizeof(hy_sampling),
               HY_ERR_INPUT, "sampling: a row of sampling has %lld bytes, expected %zu",
               (long long)hy_tensor_width(&t[HY_SAMPLE_SAMPLING]), sizeof(hy_sampling));
    HY_FAIL_IF(!top->data != !t[HY_SAMPLE_TOP_LOGPROBS].data, HY_ERR_INPUT,
               "sampling: top_tokens and top_logprobs are needed together");
    int64_t most = vocab < HY_SAMPLE_TOP_MOST ? vocab : HY_SAMPLE_TOP_MOST;
    HY_FAIL_IF(top->data && hy_tensor_width(top) > most, HY_ERR_INPUT,
               "sampling: top_tokens has %lld columns, expected at most %lld",
               (long long)hy_tensor_width(top), (long long)most);
    if (seen->data && hy_tensor_width(seen) != (V + 31) / 32) {
        return wrong_shape(call, HY_SAMPLE_SEEN, "(rows, %lld)", (long long)((V + 31) / 32));
    }
    HY_FAIL_IF(!isfinite(call->attr.sample.factor), HY_ERR_INPUT,
               "sampling: factor is %g, expected a finite number",
               (double)call->attr.sample.factor);
    return check_softcap(call, call->attr.sample.softcap);
}

static hy_status check_cache(const hy_op_call *call) {
    const hy_heads_attr *a = &call->attr.heads;
    const hy_tensor *cache = &call->t[HY_ATTENTION_CACHED_CACHE];
    int64_t width = 2 * (int64_t)a->kv_heads * a->head_dim, rows = cache->shape[1];
    HY_TRY(check_scores(call));
    bool divides = rows > 0 && rows <= HY_KEY_RANGE && HY_KEY_RANGE % rows == 0;
    if (cache->ndim == 3 && divides && cache->shape[2] == width) return HY_OK;
    return wrong_shape(call, HY_ATTENTION_CACHED_CACHE, "(blocks, a divisor of %d, %lld)",
                       HY_KEY_RANGE, (long long)width);
}

/* Tokens of a convolution: its sequences are whole, and a column has few taps. */
static hy_status check_conv(const hy_op_call *call, int weight) {
    int64_t N = hy_tensor_height(&call->t[0]), T = call->attr.conv.seq;
    int64_t taps = hy_tensor_width(&call->t[weight]);
    HY_FAIL_IF(T < 1 || N % T != 0, HY_ERR_INPUT, "%s: %lld tokens are no sequences of %lld",
               hy_op_name(call->kind), (long long)N, (long long)T);
    HY_FAIL_IF(taps < 2 || taps > HY_CONV_TAPS_MAX, HY_ERR_INPUT,
               "%s: weight has %lld numbers per column, expected 2 to %d", hy_op_name(call->kind),
               (long long)taps, HY_CONV_TAPS_MAX);
    return HY_OK;
}

static hy_status check_conv_cached(const hy_op_call *call) {
    const hy_tensor *t = call->t, *state = &t[HY_CONV_CACHED_STATE];
    int64_t C = hy_tensor_width(&t[HY_CONV_CACHED_X]);
    int64_t kept = hy_tensor_width(&t[HY_CONV_CACHED_WEIGHT]) - 1;
    int64_t B = hy_tensor_count(&t[HY_CONV_CACHED_FIRST]), T = call->attr.conv.seq;
    HY_TRY(check_conv(call, HY_CONV_CACHED_WEIGHT));
    HY_FAIL_IF(hy_tensor_height(&t[HY_CONV_CACHED_X]) != B * T, HY_ERR_INPUT,
               "cached convolution: x has %lld rows, expected %lld sequences of %lld",
               (long long)hy_tensor_height(&t[HY_CONV_CACHED_X]), (long long)B, (long long)T);
    if (state->ndim == 3 && state->shape[1] == kept && state->shape[2] == C) return HY_OK;
    return wrong_shape(call, HY_CONV_CACHED_STATE, "(slots, %lld, %lld)", (long long)kept,
                       (long long)C);
}

static hy_status check_delta_cached(const hy_op_call *call) {
    const hy_delta_attr *a = &call->attr.delta;
    const hy_tensor *s = &call->t[HY_DELTA_CACHED_STATE];
    if (s->ndim == 4 && s->shape[1] == a->heads && s->shape[2] == a->key_dim &&
        s->shape[3] == a->value_dim) {
        return HY_OK;
    }
    return wrong_shape(call, HY_DELTA_CACHED_STATE, "(slots, %d, %d, %d)", a->heads, a->key_dim,
                       a->value_dim);
}

static hy_status check_gate(const hy_op_call *call, int gate, int weight, int rstd) {
    int64_t H = call->attr.gate.heads, D = call->attr.gate.head_dim;
    int64_t column = call->attr.gate.column, stride = call->attr.gate.stride;
    int64_t X = hy_tensor_width(&call->t[gate]);
    HY_FAIL_IF(column < 0 || stride < D || column + (H - 1) * stride + D > X, HY_ERR_INPUT,
               "%s: gates of %lld heads of %lld numbers from column %lld on, %lld apart, are not "
               "in a row of %lld",
               hy_op_name(call->kind), (long long)H, (long long)D, (long long)column,
               (long long)stride, (long long)X);
    if (!call->t[weight].data || call->t[rstd].data) return HY_OK;
    return refuse(call, rstd, "is missing; it is required with weight");
}

static hy_status check_gate_bwd(const hy_op_call *call) {
    HY_TRY(check_alias(call, HY_GATE_BWD_DY, HY_GATE_BWD_DX));
    if (call->t[HY_GATE_BWD_DWEIGHT].data && !call->t[HY_GATE_BWD_WEIGHT].data)
        return refuse(call, HY_GATE_BWD_WEIGHT, "is missing; it is required for dweight");
    return check_gate(call, HY_GATE_BWD_GATE, HY_GATE_BWD_WEIGHT, HY_GATE_BWD_RSTD);
}

static hy_status check_swiglu(const hy_op_call *call, int gate_up, int y, int weights) {
    int64_t F = hy_tensor_width(&call->t[y]);
    HY_TRY(check_act(call));
    bool needs_weights = call->t[weights + 1].data || call->t[weights + 2].data;
    if (needs_weights && !call->t[weights].data) {
        return refuse(call, weights, "is missing; it is required with order or dweights");
    }
    if (hy_tensor_width(&call->t[gate_up]) == 2 * F) return HY_OK;
    return wrong_shape(call, gate_up, "(rows, %lld): gate and up", (long long)(2 * F));
}

static hy_status check_embed(const hy_op_call *call, int wpe) {
    int32_t T = call->attr.embed.seq;
    HY_FAIL_IF(!isfinite(call->attr.embed.scale), HY_ERR_INPUT,
               "%s: scale is %g, expected a finite number", hy_op_name(call->kind),
               (double)call->attr.embed.scale);
    const hy_tensor *first = &call->t[HY_EMBED_FIRST];
    bool has_first = call->kind == HY_OP_EMBED && first->data;
    HY_FAIL_IF(has_first && call->t[HY_EMBED_DOC_STARTS].data, HY_ERR_INPUT,
               "embedding: first and doc_starts cannot be combined");
    int64_t tokens = hy_tensor_count(&call->t[HY_EMBED_TOKENS]);
    HY_FAIL_IF(has_first && (T < 1 || hy_tensor_count(first) * T != tokens), HY_ERR_INPUT,
               "embedding: first has %lld elements for %lld tokens, %d each",
               (long long)hy_tensor_count(first), (long long)tokens, T);
    if (!call->t[wpe].data) return HY_OK;
    HY_FAIL_IF(T < 1, HY_ERR_INPUT, "%s: seq is %d, expected at least 1", hy_op_name(call->kind),
               T);
    if (hy_tensor_height(&call->t[wpe]) >= T) return HY_OK;
    return wrong_shape(call, wpe, "at least %d rows", T);
}

static hy_status check_adafactor(const hy_op_call *call) {
    const hy_tensor *param = &call->t[HY_UPDATE_PARAM];
    bool is_factored = call->attr.adafactor.is_factored;
    int64_t rows = hy_tensor_height(param), columns = hy_tensor_width(param);
    HY_FAIL_IF(is_factored && param->ndim != 2, HY_ERR_INPUT,
               "adafactor: param has %d dimensions; is_factored needs a matrix", param->ndim);
    int64_t expected = is_factored ? rows + columns : rows * columns;
    if (hy_tensor_count(&call->t[HY_UPDATE_M]) == expected) return HY_OK;
    return wrong_shape(call, HY_UPDATE_M, "%lld elements", (long long)expected);
}

static hy_status check_spread(const hy_op_call *call, int b, int full) {
    const hy_spread_attr *a = &call->attr.spread;
    int64_t rows = 0, given = 0, adapted = 0, rank = hy_tensor_width(&call->t[b]);
    HY_FAIL_IF(a->count < 1 || a->count > HY_SPREAD_PIECES, HY_ERR_INPUT,
               "%s: the number of pieces is %d, expected 1 to %d", hy_op_name(call->kind), a->count,
               HY_SPREAD_PIECES);
    for (int32_t i = 0; i < a->count; i++) {
        rows += a->rows[i];
        given += a->is_there[i] ? a->rows[i] : 0;
        adapted += a->is_there[i];
    }
    if (hy_tensor_height(&call->t[b]) != given) {
        return wrong_shape(call, b, "(%lld, %lld)", (long long)given, (long long)rank);
    }
    const hy_tensor *f = &call->t[full];
    if (hy_tensor_height(f) == rows && hy_tensor_width(f) == adapted * rank) return HY_OK;
    return wrong_shape(call, full, "(%lld, %lld)", (long long)rows, (long long)(adapted * rank));
}

static hy_status check_parts(const hy_op_call *call) {
    const hy_tensor *own = &call->t[HY_ADD_PARTS_OWN], *parts = &call->t[HY_ADD_PARTS_PARTS],
                    *out = &call->t[HY_ADD_PARTS_OUT];
    int32_t count = call->attr.add_parts.count, rank = call->attr.add_parts.rank;
    int64_t stride = call->attr.add_parts.stride, n = hy_tensor_count(own);
    HY_FAIL_IF(
        count < 1 || rank < 0 || rank >= count, HY_ERR_INPUT,
        "sum over ranks: the rank is %d of %d, expected 0 or more and below the number of ranks",
        rank, count);
    if (out->dtype != HY_F32 && out->dtype != own->dtype) {
        return refuse(call, HY_ADD_PARTS_OUT, "is %s, expected fp32 or %s (the type of own)",
                      hy_dtype_name(out->dtype), hy_dtype_name(own->dtype));
    }
    HY_TRY(check_alias(call, HY_ADD_PARTS_OWN, HY_ADD_PARTS_OUT));
    if (count == 1) return HY_OK;
    if (!parts->data)
        return refuse(call, HY_ADD_PARTS_PARTS, "is missing; it is required with %d ranks", count);
    if (parts->dtype != own->dtype) {
        return refuse(call, HY_ADD_PARTS_PARTS, "is %s, expected %s (the type of own)",
                      hy_dtype_name(parts->dtype), hy_dtype_name(own->dtype));
    }
    HY_FAIL_IF(stride < n, HY_ERR_INPUT,
               "sum over ranks: the stride is %lld, expected at least %lld", (long long)stride,
               (long long)n);
    int64_t others = count - 1, elements = hy_tensor_count(parts);
    if (elements % others == 0 && elements / others == stride) return HY_OK;
    return wrong_shape(call, HY_ADD_PARTS_PARTS, "%lld times %lld elements", (long long)others,
                       (long long)stride);
}

static hy_status check_dropout(const hy_op_call *call) {
    float rate = call->attr.dropout.rate;
    HY_FAIL_IF(!(rate >= 0 && rate < 1), HY_ERR_INPUT,
               "dropout: the rate is %g, expected 0 or more and below 1", (double)rate);
    if (rate > 0 && !call->t[HY_DROPOUT_SEED].data) {
        return refuse(call, HY_DROPOUT_SEED, "is missing; it is required if the rate is above 0");
    }
    HY_TRY(check_alias(call, HY_DROPOUT_C, HY_DROPOUT_Y));
    return check_alias(call, HY_DROPOUT_X, HY_DROPOUT_Y);
}

static hy_status check_cast(hy_dtype src, hy_dtype dst) {
    HY_FAIL_IF(hy_is_coded(src) && hy_is_coded(dst), HY_ERR_INPUT,
               "cast: src is %s and dst is %s; at least one must be a real type",
               hy_dtype_name(src), hy_dtype_name(dst));
    HY_FAIL_IF(dst == HY_NF4, HY_ERR_INPUT,
               "cast: dst is %s; its scales need the whole matrix (model/coding.h)",
               hy_dtype_name(dst));
    return HY_OK;
}

static hy_status check_route(const hy_op_call *call, int logits, int choice) {
    const hy_route_attr *a = &call->attr.route;
    int64_t N = hy_tensor_height(&call->t[logits]), E = hy_tensor_width(&call->t[logits]);
    int64_t k = hy_tensor_width(&call->t[choice]);
    HY_FAIL_IF(E > HY_ROUTE_EXPERTS_MAX || k > HY_ROUTE_CHOSEN_MAX || k > E, HY_ERR_INPUT,
               "%s: %lld of %lld experts are chosen, expected at most %d, of at most %d",
               hy_op_name(call->kind), (long long)k, (long long)E, HY_ROUTE_CHOSEN_MAX,
               HY_ROUTE_EXPERTS_MAX);
    HY_FAIL_IF((unsigned)a->score >= HY_ROUTE_SCORE_COUNT, HY_ERR_INPUT,
               "%s: score %d does not exist, expected 0 to %d", hy_op_name(call->kind),
               (int)a->score, HY_ROUTE_SCORE_COUNT - 1);
    HY_FAIL_IF(!isfinite(a->scale) || !isfinite(a->z) || !isfinite(a->balance), HY_ERR_INPUT,
               "%s: scale is %g, z %g and balance %g, expected finite numbers",
               hy_op_name(call->kind), (double)a->scale, (double)a->z, (double)a->balance);
    bool is_forward = call->kind == HY_OP_ROUTE;
    bool needs_seq = is_forward ? hy_tensor_is_given(&call->t[HY_ROUTE_LOSSES]) : a->balance != 0;
    HY_FAIL_IF(needs_seq && (a->seq < 1 || N % a->seq != 0), HY_ERR_INPUT,
               "%s: %lld tokens are no sequences of %d", hy_op_name(call->kind), (long long)N,
               a->seq);
    return HY_OK;
}

static hy_status check_sort_experts(const hy_op_call *call) {
    const hy_tensor *choice = &call->t[HY_SORT_EXPERTS_CHOICE];
    const hy_tensor *order = &call->t[HY_SORT_EXPERTS_ORDER];
    int64_t rows = hy_tensor_count(choice);
    int64_t E = hy_tensor_count(&call->t[HY_SORT_EXPERTS_OFFSETS]) - 1;
    HY_FAIL_IF(E < 1 || E > HY_ROUTE_EXPERTS_MAX, HY_ERR_INPUT,
               "sorting by expert: offsets are those of %lld experts, expected 1 to %d",
               (long long)E, HY_ROUTE_EXPERTS_MAX);
    HY_FAIL_IF(rows > INT32_MAX, HY_ERR_INPUT,
               "sorting by expert: choice has %lld elements, expected at most %d", (long long)rows,
               INT32_MAX);
    if (hy_tensor_count(order) == rows) return HY_OK;
    return wrong_shape(call, HY_SORT_EXPERTS_ORDER, "(%lld)", (long long)rows);
}

/* An operand with R rows, or with `rows` as many tokens: R is a multiple. */
static hy_status check_operand(const hy_op_call *call, int operand, int rows, int64_t R) {
    int64_t X = hy_tensor_height(&call->t[operand]);
    bool fits = call->t[rows].data ? R % X == 0 : R == X;
    if (fits) return HY_OK;
    return refuse(call, operand, "has %lld rows, expected %s%lld", (long long)X,
                  call->t[rows].data ? "a divisor of " : "", (long long)R);
}

static hy_status check_experts(const hy_op_call *call, int position) {
    const hy_tensor *t = &call->t[position];
    HY_FAIL_IF(!isfinite(call->attr.grouped.alpha), HY_ERR_INPUT,
               "%s: alpha is %g, expected a finite number", hy_op_name(call->kind),
               (double)call->attr.grouped.alpha);
    if (t->ndim != 3) return wrong_shape(call, position, "three dimensions, experts first");
    if (t->shape[0] <= HY_ROUTE_EXPERTS_MAX) return HY_OK;
    return refuse(call, position, "has %lld experts, expected at most %d", (long long)t->shape[0],
                  HY_ROUTE_EXPERTS_MAX);
}

static hy_status check_grouped_matmul(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    HY_TRY(check_experts(call, HY_GROUPED_MATMUL_B));
    HY_FAIL_IF(call->attr.accumulate && t[HY_GROUPED_MATMUL_BIAS].data, HY_ERR_INPUT,
               "grouped matmul: accumulate and bias cannot be combined");
    HY_FAIL_IF(call->attr.grouped.is_batch_invariant && !call->attr.grouped.trans_b, HY_ERR_INPUT,
               "grouped matmul: a batch-invariant one needs trans_b");
    return check_operand(call, HY_GROUPED_MATMUL_A, HY_GROUPED_MATMUL_ROWS,
                         hy_tensor_height(&t[HY_GROUPED_MATMUL_D]));
}

static hy_status check_grouped_grad(const hy_op_call *call) {
    HY_TRY(check_experts(call, HY_GROUPED_GRAD_D));
    int64_t R = hy_grouped_rows(call);
    HY_TRY(check_operand(call, HY_GROUPED_GRAD_A, HY_GROUPED_GRAD_ROWS_A, R));
    return check_operand(call, HY_GROUPED_GRAD_B, HY_GROUPED_GRAD_ROWS_B, R);
}

static hy_status check_sum_rows(const hy_op_call *call) {
    int64_t places = hy_tensor_count(&call->t[HY_SUM_ROWS_PLACE]);
    HY_FAIL_IF(hy_tensor_height(&call->t[HY_SUM_ROWS_Y]) != places, HY_ERR_INPUT,
               "sum of rows: y has %lld rows, expected one for each of the %lld places",
               (long long)hy_tensor_height(&call->t[HY_SUM_ROWS_Y]), (long long)places);
    return check_alias(call, HY_SUM_ROWS_RESIDUAL, HY_SUM_ROWS_OUT);
}

static hy_status check_rules_of_kind(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    switch (call->kind) {
    case HY_OP_ROUTE: return check_route(call, HY_ROUTE_LOGITS, HY_ROUTE_CHOICE);
    case HY_OP_ROUTE_BWD: return check_route(call, HY_ROUTE_BWD_LOGITS, HY_ROUTE_BWD_CHOICE);
    case HY_OP_SORT_EXPERTS: return check_sort_experts(call);
    case HY_OP_GROUPED_MATMUL: return check_grouped_matmul(call);
    case HY_OP_GROUPED_GRAD: return check_grouped_grad(call);
    case HY_OP_SUM_ROWS: return check_sum_rows(call);
    case HY_OP_MATMUL: return check_matmul(call);
    case HY_OP_TO_FP8: return check_to_fp8(call);
    case HY_OP_NORM: return check_norm(call);
    case HY_OP_NORM_BWD:
        HY_FAIL_IF(!call->attr.norm.is_rms && !t[HY_NORM_BWD_MEAN].data, HY_ERR_INPUT,
                   "norm backward: mean is missing; only rmsnorm does not need it");
        return check_alias(call, HY_NORM_BWD_RESIDUAL, HY_NORM_BWD_DX);
    case HY_OP_HEAD_NORM_BWD: return check_head_norm_bwd(call);
    case HY_OP_ROPE: return check_rope(call);
    case HY_OP_ATTENTION: return check_scores(call);
    case HY_OP_ATTENTION_BWD: return check_attention_bwd(call);
    case HY_OP_ATTENTION_CACHED: return check_cache(call);
    case HY_OP_CONV: return check_conv(call, HY_CONV_WEIGHT);
    case HY_OP_CONV_BWD: return check_conv(call, HY_CONV_BWD_WEIGHT);
    case HY_OP_CONV_CACHED: return check_conv_cached(call);
    case HY_OP_DELTA_CACHED: return check_delta_cached(call);
    case HY_OP_GATE: return check_gate(call, HY_GATE_GATE, HY_GATE_WEIGHT, HY_GATE_RSTD);
    case HY_OP_GATE_BWD: return check_gate_bwd(call);
    case HY_OP_GELU: HY_TRY(check_act(call)); return check_alias(call, HY_GELU_X, HY_GELU_Y);
    case HY_OP_GELU_BWD:
        HY_TRY(check_act(call));
        return check_alias(call, HY_GELU_BWD_DY, HY_GELU_BWD_DX);
    case HY_OP_SWIGLU: return check_swiglu(call, HY_SWIGLU_GATE_UP, HY_SWIGLU_Y, HY_SWIGLU_WEIGHTS);
    case HY_OP_SWIGLU_BWD:
        HY_TRY(check_alias(call, HY_SWIGLU_BWD_GATE_UP, HY_SWIGLU_BWD_DGATE_UP));
        HY_TRY(check_alias(call, HY_SWIGLU_BWD_DY, HY_SWIGLU_BWD_ACTIVE));
        return check_swiglu(call, HY_SWIGLU_BWD_GATE_UP, HY_SWIGLU_BWD_DY, HY_SWIGLU_BWD_WEIGHTS);
    case HY_OP_ADAFACTOR: return check_adafactor(call);
    case HY_OP_SPREAD: return check_spread(call, HY_SPREAD_B, HY_SPREAD_FULL);
    case HY_OP_COLLECT: return check_spread(call, HY_COLLECT_B, HY_COLLECT_FULL);
    case HY_OP_DROPOUT: return check_dropout(call);
    case HY_OP_ADD_PARTS: return check_parts(call);
    case HY_OP_EMBED: return check_embed(call, HY_EMBED_WPE);
    case HY_OP_EMBED_BWD: return check_embed(call, HY_EMBED_BWD_DWPE);
    case HY_OP_CAST: return check_cast(t[HY_CAST_SRC].dtype, t[HY_CAST_DST].dtype);
    case HY_OP_CROSS_ENTROPY: return check_loss(call);
    case HY_OP_PREFERENCE: return check_preference(call);
    case HY_OP_POLICY: return check_policy(call);
    case HY_OP_SAMPLE: return check_sample(call);
    case HY_OP_QUANTIZE:
    case HY_OP_DEQUANTIZE:
        HY_FAIL_IF(call->attr.quantize.block < 1, HY_ERR_INPUT,
                   "the quantisation block has %d elements, expected at least 1",
                   call->attr.quantize.block);
        return HY_OK;
    case HY_OP_WRAP:
    case HY_OP_UNWRAP: {
        int32_t exponent = call->attr.grid.exponent, most = HY_GRID_EXPONENT_MAX;
        HY_FAIL_IF(exponent < -most || exponent > most, HY_ERR_INPUT,
                   "%s: the exponent of the grid step is %d, expected %d to %d",
                   hy_op_name(call->kind), exponent, -most, most);
        return HY_OK;
    }
    default: return HY_OK;
    }
}

hy_status hy_op_check(const hy_op_call *call) {
    /* lengths of letters; 0: not set */
    int64_t known[128] = {['1'] = 1, ['2'] = 2, ['3'] = 3, ['4'] = 4, ['8'] = 8};
    HY_FAIL_IF((unsigned)call->kind >= HY_OP_COUNT, HY_ERR_INPUT,
               "op kind %d does not exist, expected 0 to %d", (int)call->kind, HY_OP_COUNT - 1);
    HY_TRY(bind_attributes(call, known));
    for (int i = 0; i < HY_OP_TENSORS; i++) HY_TRY(check_tensor(call, i, known));
    return check_rules_of_kind(call);
}

hy_status hy_op_check_fp8(const hy_op_call *call, const char *card, int capability) {
    enum { FIRST_WITH_FP8 = 89 };
    const hy_tensor *a = &call->t[HY_MATMUL_A], *d = &call->t[HY_MATMUL_D];
    const hy_tensor *bias = &call->t[HY_MATMUL_BIAS];
    int64_t M = hy_tensor_height(d), N = hy_tensor_width(d), K = hy_tensor_width(a);
    if (!hy_is_fp8(a->dtype)) return HY_OK;
    HY_FAIL_IF(capability < FIRST_WITH_FP8, HY_ERR_INPUT,
               "matmul: %s is sm_%d; fp8 needs sm_%d or newer (RTX 40, L4, H100 or later)", card,
               capability, FIRST_WITH_FP8);
    HY_FAIL_IF(
        M % 16 != 0 || N % 16 != 0 || K % 16 != 0, HY_ERR_INPUT,
        "matmul: the sizes %lld x %lld x %lld are not supported in fp8; expected multiples of 16",
        (long long)M, (long long)N, (long long)K);
    HY_FAIL_IF(bias->data && d->dtype == HY_F32 && bias->dtype != HY_BF16, HY_ERR_INPUT,
               "matmul: with fp8 inputs and an fp32 result, the bias must be bf16, not %s",
               hy_dtype_name(bias->dtype));
    return HY_OK;
}

/* ---- accounting ------------------------------------------------------------------------------ */

/* The first position of the rows of cached attention. Only the device knows it: the last one that
 * the table has room for. */
static int64_t cached_first(const hy_op_call *call) {
    const hy_tensor *blocks = &call->t[HY_ATTENTION_CACHED_BLOCKS];
    int64_t room = hy_tensor_width(blocks) * call->t[HY_ATTENTION_CACHED_CACHE].shape[1];
    return room > call->attr.heads.seq ? room - call->attr.heads.seq : 0;
}

/* Elements of states, once for each token. A step of the plain recurrence costs 7 operations for
 * each: the decay, k of the state, the update and q of the state. Backward costs 5 for the state
 * again and 15 for gradients. */
static double delta_steps(const hy_delta_attr *a) {
    return (double)a->batch * a->seq * a->heads * a->key_dim * a->value_dim;
}

double hy_op_flops(const hy_op_call *call) {
    /* For ops with a fixed cost per element of the first tensor. */
    static const int per_element[HY_OP_COUNT] = {
        [HY_OP_BIAS_GRAD] = 1,      [HY_OP_NORM] = 8,           [HY_OP_NORM_BWD] = 14,
        [HY_OP_HEAD_NORM] = 5,      [HY_OP_HEAD_NORM_BWD] = 10, [HY_OP_ROPE] = 3,
        [HY_OP_GATE] = 10,          [HY_OP_GATE_BWD] = 20,      [HY_OP_GELU] = 20,
        [HY_OP_GELU_BWD] = 30,      [HY_OP_SWIGLU] = 10,        [HY_OP_SWIGLU_BWD] = 40,
        [HY_OP_CROSS_ENTROPY] = 20, [HY_OP_SAMPLE] = 20,        [HY_OP_SUM] = 1,
        [HY_OP_SQ_NORM] = 2,        [HY_OP_ADAMW] = 16,         [HY_OP_SGD] = 7,
        [HY_OP_LION] = 9,           [HY_OP_ADAFACTOR] = 24,     [HY_OP_LARGEST] = 1,
        [HY_OP_TO_FP8] = 4,         [HY_OP_DROPOUT] = 10,       [HY_OP_ROUTE] = 40,
        [HY_OP_SORT_EXPERTS] = 4,   [HY_OP_SUM_ROWS] = 1};
    const hy_tensor *t = call->t;
    const hy_heads_attr *heads = &call->attr.heads;
    double pair_flops = (double)heads->batch * heads->heads * heads->head_dim;
    switch (call->kind) {
    case HY_OP_MATMUL: {
        const hy_tensor *a = &t[HY_MATMUL_A];
        int64_t inner = call->attr.matmul.trans_a ? hy_tensor_height(a) / hy_matmul_batch(call)
                                                  : hy_tensor_width(a);
        return 2.0 * (double)inner * (double)hy_tensor_count(&t[HY_MATMUL_D]);
    }
    case HY_OP_ATTENTION: /* q k and p v */
        return 4.0 * pair_flops * (double)hy_attention_pairs(heads, heads->seq);
    case HY_OP_ATTENTION_BWD: /* q k again, dp, dq, dk, dv */
        return 10.0 * pair_flops * (double)hy_attention_pairs(heads, heads->seq);
    case HY_OP_ATTENTION_CACHED: { /* the pairs of all positions minus those of the earlier ones */
        int64_t first = cached_first(call), end = first + heads->seq;
        int64_t before = hy_attention_pairs(heads, first);
        return 4.0 * pair_flops * (double)(hy_attention_pairs(heads, end) - before);
    }
    case HY_OP_ROUTE_BWD: return 40.0 * (double)hy_tensor_count(&t[HY_ROUTE_BWD_LOGITS]);
    case HY_OP_CONV:
    case HY_OP_CONV_CACHED: /* a multiply-add for each tap, and silu */
        return (double)hy_tensor_count(t) * (double)(2 * hy_tensor_width(&t[1]) + 6);
    case HY_OP_CONV_BWD: /* the sum again, dx, dweight */
        return (double)hy_tensor_count(t) * (double)(6 * hy_tensor_width(&t[2]) + 8);
    case HY_OP_DELTA:
    case HY_OP_DELTA_CACHED: return 7 * delta_steps(&call->attr.delta);
    case HY_OP_DELTA_BWD: return 20 * delta_steps(&call->attr.delta);
    case HY_OP_GROUPED_MATMUL: /* every position has one expert */
        return 2.0 * (double)hy_tensor_width(&t[HY_GROUPED_MATMUL_A]) *
               (double)hy_tensor_count(&t[HY_GROUPED_MATMUL_D]);
    case HY_OP_GROUPED_GRAD: {
        int64_t R = hy_grouped_rows(call);
        return 2.0 * (double)R * (double)hy_tensor_width(&t[HY_GROUPED_GRAD_A]) *
               (double)hy_tensor_width(&t[HY_GROUPED_GRAD_B]);
    }
    case HY_OP_ADD_PARTS:
        return (double)(call->attr.add_parts.count - 1 + call->attr.accumulate) *
               (double)hy_tensor_count(t);
    case HY_OP_EMBED: return (double)hy_tensor_count(&t[HY_EMBED_X]);
    case HY_OP_EMBED_BWD: return 2 * (double)hy_tensor_count(&t[HY_EMBED_BWD_DX]);
    default: return per_element[call->kind] * (double)hy_tensor_count(t);
    }
}
