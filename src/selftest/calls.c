/* calls.c: one call of every op, as a table. See selftest.h.
 *
 * Shapes are small and odd: 130 rows (two sequences of 65), and widths that are multiples of 16
 * bytes or not. Numbers come from a counter, so that every machine tests the same values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/coded.h"
#include "kernels/fp8.h"
#include "kernels/half.h"
#include "kernels/ops.h"
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
    TAPS = 4,        /* of a convolution */
    SLOTS = 5,       /* states of sequences */
    ROOM = 400,      /* positions of tables */
    BLOCK_ROWS = 16, /* a cache in blocks: enough for sequences that begin at 17 and 57 */
    BLOCKS_EACH = 8,
    MOST_LIKELY = 5,
    SEEN = (V + 31) / 32,
    OPTIONS = sizeof(hy_sampling),
    COUNT = 5001,
    BLOCK = 256,
    BLOCKS = (COUNT + BLOCK - 1) / BLOCK,
    EXPERTS = 6,
    CHOSEN = 2,
    ROWS = N * CHOSEN,
    STRIDE = 5008 /* offset from one rank's numbers to the next */
};

/* Sizes by the letters used in the table below. */
static const struct {
    char letter;
    int32_t size;
} sizes[] = {{'1', 1},
             {'2', 2},
             {'3', 3},
             {'N', N},
             {'C', C},
             {'F', F},
             {'G', 2 * F},
             {'V', V},
             {'T', T},
             {'P', P},
             {'Q', Q},
             {'A', P + Q},
             {'H', H},
             {'g', 2 * H},
             {'J', TAPS},
             {'j', TAPS - 1},
             {'S', SLOTS},
             {'D', D},
             {'h', D / 2},
             {'M', H + K},
             {'L', N *H},
             {'W', 2 * K *D},
             {'B', B},
             {'R', ROOM},
             {'X', COUNT},
             {'Y', BLOCKS},
             {'E', N + C},
             {'Z', 3 * STRIDE},
             {'k', BLOCK_ROWS},
             {'e', BLOCKS_EACH},
             {'s', SEEN},
             {'l', MOST_LIKELY},
             {'p', B *BLOCKS_EACH},
             {'o', OPTIONS},
             {'4', HY_PAIRS_STATS},
             {'x', EXPERTS},
             {'y', CHOSEN},
             {'r', ROWS},
             {'v', EXPERTS + 1},
             {'8', HY_POLICY_STATS}};

/* One call. It has a word for each tensor in the op's order: type, numbers, dimensions; "-" is no
 * tensor. Types: a activation, b bf16, f fp32, d fp64, i i32, u u8, q int8 with a scale per row, k
 * nf4 with two levels of scales, l nf4 with fp32 scales, e and g fp8 (e4m3 and e5m2) with one
 * scale. Numbers: 0 none, n normal, w near 1, p positive, t token ids below VOCAB, s starts of
 * documents, f first positions of sequences, a their slots, b blocks of a cache in another order, o an
 * hy_sampling per row, m choices of experts, v where experts begin, j rows in another order, c
 * cosines and sines, u quantised values, 3 the number 3, which is a little below the
 * largest of the random numbers (n). */
typedef struct call_row {
    hy_op_kind kind;
    const char *tensors; /* without an activation: the op exists only in these types */
    hy_op_attr attr;
} call_row;

#define HEADS                                                                                      \
    .heads = {.batch = B,                                                                          \
              .seq = T,                                                                            \
              .heads = H,                                                                          \
              .kv_heads = K,                                                                       \
              .head_dim = D,                                                                       \
              .scale = 0.125f,                                                                     \
              .eps = 1e-6f}

#define DELTA                                                                                      \
    .delta = {.batch = B, .seq = T, .key_heads = K, .heads = H, .key_dim = D, .value_dim = D}
#define GATES .gate = {.heads = H, .head_dim = D, .column = 72, .stride = 96, .eps = 1e-6f}

#define CALL(op, words, ...)                                                                       \
    {                                                                                              \
        HY_OP_##op, words, { __VA_ARGS__ }                                                         \
    }

static const call_row rows[] = {
    CALL(MATMUL, "anNC anFC a0NF anF", .matmul = {.trans_b = true, .alpha = 0.25f}),
    CALL(MATMUL, "anNF anNC fnFC", .accumulate = true, .matmul = {.trans_a = true, .alpha = 0.25f}),
    CALL(MATMUL, "anNC qnFC a0NF", .matmul = {.trans_b = true, .alpha = 0.25f}),
    CALL(MATMUL, "anNF qnFC a0NC", .matmul.alpha = 0.25f),
    CALL(MATMUL, "enDP enQP a0DQ bnQ", .matmul = {.trans_b = true, .alpha = 0.25f}),
    CALL(MATMUL, "gnDP enQP a0DQ - anDQ",
         .matmul = {.trans_b = true, .alpha = 0.25f, .is_fast = true}),
    CALL(BIAS_GRAD, "anNC fnC", .accumulate = true),
    CALL(NORM, "anNC awC anC a0NC f0N f0N", .norm.eps = 1e-5f),
    CALL(NORM, "anNQ awQ - a0NQ - f0N f01", .norm = {.eps = 1e-5f, .is_rms = true}),
    CALL(NORM_BWD, "anNC anNC awC fnN fpN anNC a0NC fnC fnC", .accumulate = true,
         .norm.eps = 1e-5f),
    CALL(HEAD_NORM, "anNP awD awD a0NP f0NM", HEADS),
    CALL(HEAD_NORM_BWD, "anNP anNP awD awD fpNM a0NP fnD fnD", .accumulate = true, HEADS),
    CALL(ROPE, "anNP fcTh2", HEADS),
    CALL(ATTENTION, "anNP isN a0NQ f0L", HEADS),
    CALL(ATTENTION_BWD, "anNQ anNP isN a0NQ f0L a0NP", HEADS),
    CALL(HEAD_NORM, "anNA awD awD a0NP f0NM",
         .heads = {.batch = B,
                   .seq = T,
                   .heads = H,
                   .kv_heads = K,
                   .head_dim = D,
                   .eps = 1e-6f,
                   .has_gates = true}),
    CALL(HEAD_NORM_BWD, "anNP anNA awD awD fpNM anNA fnD fnD", .accumulate = true,
         .heads = {.batch = B,
                   .seq = T,
                   .heads = H,
                   .kv_heads = K,
                   .head_dim = D,
                   .eps = 1e-6f,
                   .has_gates = true}),
    CALL(CONV, "anNC anCJ isN a0NC", .conv.seq = T),
    CALL(CONV_BWD, "anNC anNC anCJ isN a0NC fnCJ", .accumulate = true, .conv.seq = T),
    CALL(CONV_CACHED, "anNC anCJ anSjC a0NC ifB iaB", .conv.seq = T),
    CALL(DELTA, "anNP anNg anH anH isN a0NQ", DELTA),
    CALL(DELTA_BWD, "anNQ anNP anNg anH anH isN a0NP a0Ng fnH fnH", .accumulate = true, DELTA),
    CALL(DELTA_CACHED, "anNP anNg anH anH fnSHDD a0NQ ifB iaB", DELTA),
    CALL(GATE, "anNQ anNP - a0NQ", GATES),
    CALL(GATE, "anNQ anNP awD a0NQ f0NH", GATES),
    CALL(GATE_BWD, "anNQ anNQ anNP - - a0NQ anNP", GATES),
    CALL(GATE_BWD, "anNQ anNQ anNP awD fpNH a0NQ anNP fnD", .accumulate = true, GATES),
    CALL(GELU, "anNC a0NC f01", 0),
    CALL(GELU_BWD, "anNC anNC a0NC f01", 0),
    CALL(SWIGLU, "anNG a0NF f01", 0),
    CALL(SWIGLU_BWD, "anNF anNG a0NG - f01", 0),
    CALL(EMBED, "itN anVC anTC a0NC", .embed.seq = T),
    CALL(EMBED, "itN qnVC anTC a0NC", .embed.seq = T),
    CALL(EMBED_BWD, "itN anNC fnVC fnTC", .accumulate = true, .embed.seq = T),
    CALL(CROSS_ENTROPY, "anNV itN f0N",
         .loss = {.vocab = VOCAB, .scale = 0.5f, .wants_grad = true}),
    CALL(CROSS_ENTROPY, "anNV itN f0N fnN",
         .loss = {.vocab = VOCAB, .scale = 0.5f, .wants_grad = true}),
    CALL(PREFERENCE, "fpN itN isN fpN f0N f0N dp4",
         .preference = {.of = {.kind = HY_LOSS_DPO, .beta = 0.1f, .likelihood = 1}, .seq = T}),
    CALL(PREFERENCE, "fpN itN isN - f0N f0N dp4",
         .preference = {.of = {.kind = HY_LOSS_ORPO, .beta = 0.1f, .likelihood = 1}, .seq = T}),
    CALL(POLICY, "fpN itN fnN4 fpN f0N f0N dp8",
         .policy = {.clip_low = 0.2f, .clip_high = 0.3f, .kl = 0.1f, .cap = 2}),
    CALL(POLICY, "fpN itN fnN4 - f0N f0N dp8", .policy = {.clip_low = 0.2f, .clip_high = 0.2f}),
    CALL(SUM, "fnX d01", 0),
    CALL(SQ_NORM, "anX dp1", .accumulate = true),
    CALL(CLIP, "dp1 f02", .clip = {.max_norm = 0.01f, .grad_scale = 1}),
    CALL(ADAMW, "anX anX fw2 fnX fnX fpX",
         .adamw = {.lr = 0.01f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-6f,
                   .weight_decay = 0.1f,
                   .correction1 = 0.271f,
                   .correction2 = 0.142625f}),
    CALL(SGD, "anX anX fw2 fnX fnX",
         .sgd = {.lr = 0.01f, .momentum = 0.9f, .weight_decay = 0.1f, .is_nesterov = true}),
    CALL(LION, "anX anX fw2 fnX fnX",
         .lion = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.1f}),
    CALL(ADAFACTOR, "anNC anNC fw2 fnNC fpE",
         .adafactor = {.lr = 0.01f,
                       .rate = 0.01f,
                       .mix = 0.4f,
                       .weight_decay = 0.1f,
                       .eps1 = 1e-7f,
                       .eps2 = 1e-3f,
                       .threshold = 1,
                       .is_factored = true,
                       .is_relative = true}),
    CALL(ADAFACTOR, "anX anX fw2 fnX fpX",
         .adafactor = {.lr = 0.01f, .rate = 0.01f, .mix = 0.4f, .eps1 = 1e-7f, .threshold = 1}),
    CALL(MUON_BLEND, "a0X anX fnX fw2", .muon = {.momentum = 0.9f, .is_nesterov = true}),
    CALL(TO_UNIT, "anNC a0NC", .to_unit.eps = 1e-7f),
    CALL(MUON, "anX anX fw2 fnX fnX - anX",
         .muon = {.lr = 0.01f,
                  .momentum = 0.9f,
                  .weight_decay = 0.1f,
                  .is_cautious = true,
                  .coefficient = {1.5f, 0.5f, 2.5f},
                  .ends = {7, 1000}}),
    CALL(CAST, "fnX a0X", 0),
    CALL(FILL, "a0X", .fill.value = 2.5f),
    CALL(COMBINE, "a0X anX fnX", .combine.coefficient = {1.5f, -0.75f}),
    CALL(DIFF_DOT, "anX anX anX - d03", 0),
    CALL(QUANTIZE, "fnX u0X f0Y", .quantize = {.block = BLOCK, .is_signed = true}),
    CALL(DEQUANTIZE, "uuX fpY f0X", .quantize = {.block = BLOCK, .is_signed = true}),
    CALL(WRAP, "bnX u0X", .grid.exponent = -8),
    CALL(UNWRAP, "uuX bnX b0X", .grid.exponent = -8),
    CALL(LARGEST, "anX f01", 0),
    CALL(TO_FP8, "anNC f31 e0NC", 0),
    CALL(TO_FP8, "anNC f31 g0NC g0CN d03", 0),
    CALL(TO_FP8, "anQP f31 e0QP e0PQ d03", 0),
    CALL(TO_FP8, "enQP - - e0PQ", 0),
    CALL(SPREAD, "anQh a0PD",
         .spread = {.count = 3, .rows = {200, Q, 56}, .is_there = {true, false, true}}),
    CALL(COLLECT, "anPD fnQh", .accumulate = true,
         .spread = {.count = 3, .rows = {200, Q, 56}, .is_there = {true, false, true}}),
    CALL(DROPOUT, "anNC it2 a0NC anNC", .dropout = {.rate = 0.25f, .first = 7}),
    CALL(MATMUL, "anNQ kuFQ a0NF", .matmul = {.trans_b = true, .alpha = 0.25f}),
    CALL(MATMUL, "anNF kuFQ a0NQ", .matmul.alpha = 0.25f),
    CALL(EMBED, "itN kuVQ anTQ a0NQ", .embed.seq = T),
    CALL(CAST, "kuVQ a0VQ", 0),
    CALL(MATMUL, "anNQ luFQ a0NF", .matmul = {.trans_b = true, .alpha = 0.25f}),
    CALL(MATMUL, "anNF luFQ a0NQ", .matmul.alpha = 0.25f),
    CALL(EMBED, "itN luVQ anTQ a0NQ", .embed.seq = T),
    CALL(CAST, "luVQ a0VQ", 0),
    CALL(MATMUL, "anNC anFC a0NF anF",
         .matmul = {.trans_b = true, .alpha = 0.25f, .is_batch_invariant = true}),
    CALL(MATMUL, "anNQ kuFQ a0NF - anNF",
         .matmul = {.trans_b = true, .alpha = 0.25f, .is_batch_invariant = true}),
    CALL(ROPE, "anNP fcRh2 - ifB", HEADS),
    CALL(ATTENTION_CACHED, "anNP anpkW a0NQ - ifB ibBe", HEADS),
    CALL(EMBED, "itN anVC anRC a0NC - ifB", .embed.seq = T),
    CALL(SAMPLE, "anNV uoNo i0N f0N i0Nl f0Nl itNs", .sample = {.vocab = VOCAB, .softcap = 30}),
    CALL(MATMUL, "anNC enFC a0NF", .matmul = {.trans_b = true, .alpha = 0.25f}),
    CALL(MATMUL, "anNF enFC a0NC", .matmul.alpha = 0.25f),
    CALL(ADD_PARTS, "anX anZ fnX", .accumulate = true,
         .add_parts = {.count = 4, .rank = 2, .stride = STRIDE}),
    CALL(ROUTE, "anNx - i0Ny f0Ny", .route.scale = 1),
    CALL(ROUTE, "anNx fnx i0Ny f0Ny f0N3",
         .route = {.score = HY_ROUTE_SIGMOID, .is_renormalised = true, .scale = 2.5f, .seq = T}),
    CALL(ROUTE_BWD, "fnNy anNx imNy a0Nx",
         .route = {.is_renormalised = true, .scale = 1, .z = 0.1f, .balance = 0.5f, .seq = T}),
    CALL(SORT_EXPERTS, "imNy i0r i0Ny i0v", 0),
    CALL(GROUPED_MATMUL, "anNQ anxFQ ivv a0rF ijr", .grouped = {.trans_b = true, .alpha = 0.25f}),
    CALL(GROUPED_MATMUL, "anrF anxFQ ivv a0rQ", .grouped.alpha = 0.25f),
    CALL(GROUPED_MATMUL, "anNC anxFC ivv a0rF ijr anxF",
         .grouped = {.trans_b = true, .alpha = 0.25f}),
    CALL(GROUPED_MATMUL, "anNQ kuxFQ ivv a0rF ijr", .grouped = {.trans_b = true, .alpha = 0.25f}),
    CALL(GROUPED_GRAD, "anrF anNQ ivv fnxFQ - ijr", .accumulate = true, .grouped.alpha = 0.25f),
    CALL(SUM_ROWS, "anrC ijNy anNC a0NC", 0),
    CALL(SWIGLU, "anrG a0rF - fnr ijr", 0),
    CALL(SWIGLU_BWD, "anrF anrG a0rG a0rF - fnr ijr f0r", 0),
};

/* ---- numbers --------------------------------------------------------------------------------- */

static double number(char fill, int64_t i, uint64_t seed) {
    double z = hy_rng_normal(seed, HY_RNG_TEST, (uint64_t)i);
    int64_t position = i / D, pair = i % D / 2, document = i % T / 20;
    static const double first_rows[EXPERTS + 1] = {0, 0, 17, 130, 130, 200, ROWS};
    double angle = (double)position * pow(100, -2.0 * (double)pair / D);
    switch (fill) {
    case 'n': return z;
    case 'w': return 1 + 0.3 * z;
    case 'p': return 0.1 + 0.1 * fabs(z);
    case 't': return (double)hy_rng_below(seed, HY_RNG_TEST, (uint64_t)i, VOCAB);
    case 's': return (double)(20 * document);
    case 'f': return (double)(17 + 40 * i);
    case 'a': return (double)((2 * i + 3) % SLOTS);
    case 'b': return (double)((5 * i + 3) % (B * BLOCKS_EACH)); /* each once */
    case 'c': return i % 2 ? sin(angle) : cos(angle);
    case 'm': return (double)((i / CHOSEN + 2 * (i % CHOSEN)) % EXPERTS);
    case 'v': return first_rows[i];
    case 'j': return (double)((7 * i + 3) % ROWS); /* each once */
    case 'u': return (double)(i * 37 % 256);
    case '3': return 3;
    default: return 0;
    }
}

static hy_dtype dtype_of(char type, hy_dtype activation) {
    static const char letters[] = "fbdiuqkleg";
    static const hy_dtype dtypes[] = {HY_F32, HY_BF16, HY_F64, HY_I32,  HY_U8,
                                      HY_I8,  HY_NF4,  HY_NF4, HY_E4M3, HY_E5M2};
    return type == 'a' ? activation : dtypes[strchr(letters, type) - letters];
}

static size_t scales_at(const hy_tensor *t) { return (hy_tensor_bytes(t) + 63) / 64 * 64; }

/* Elements of an nf4 group: few, so that a tensor has many groups. */
#define GROUP 4

/* How the scales are stored, without their address. The tensor says whether they have two
 * levels. */
static hy_quant quant_of(const hy_tensor *t) {
    return (hy_quant){.block = hy_is_coded(t->dtype) ? hy_coded_block(t->dtype, hy_tensor_height(t),
                                                                      hy_tensor_width(t))
                                                     : 0,
                      .group = t->quant.group};
}

static size_t scale_bytes(const hy_tensor *t) {
    hy_tensor quantised = *t;
    quantised.quant = quant_of(t);
    bool has_scales = hy_is_coded(t->dtype) || hy_is_fp8(t->dtype);
    return has_scales ? hy_tensor_scale_bytes(&quantised) : 0;
}

size_t hy_selftest_bytes(const hy_tensor *t) {
    return scale_bytes(t) == 0 ? hy_tensor_bytes(t) : scales_at(t) + scale_bytes(t);
}

void hy_selftest_place(hy_tensor *t, void *data) {
    t->data = data;
    if (scale_bytes(t) == 0) return;
    t->quant = quant_of(t);
    t->quant.scale = (float *)(void *)((char *)data + scales_at(t));
}

/* One scale for each row of int8 and each block of nf4, one for all of fp8. With two levels, nf4
 * has pairs of scale and offset, and uses all quantised values in turn. */
static void fill_scales(const hy_tensor *t) {
    if (t->quant.group > 0) {
        int64_t blocks = hy_tensor_count(t) / HY_NF4_BLOCK, pairs = blocks / GROUP;
        uint8_t *codes = (uint8_t *)(t->quant.scale + 2 * pairs);
        for (int64_t i = 0; i < pairs; i++) {
            t->quant.scale[2 * i] = 0.1f * (float)(1 + i % 3);
            t->quant.scale[2 * i + 1] = 0.7f;
        }
        for (int64_t i = 0; i < blocks; i++) codes[i] = (uint8_t)(i * 37 % 256);
        return;
    }
    for (size_t i = 0; i < scale_bytes(t) / sizeof(float); i++)
        t->quant.scale[i] = hy_is_fp8(t->dtype) ? 0.5f : 0.01f * (float)(1 + i % 3);
}

/* All options, and a forced token in some rows. */
static void fill_sampling(const hy_tensor *t) {
    for (int32_t i = 0; i < N; i++) {
        ((hy_sampling *)t->data)[i] = (hy_sampling){.temperature = i % 10 == 9 ? 0 : 0.8f,
                                                    .top_p = i % 2 ? 0.9f : 0,
                                                    .min_p = 0.01f,
                                                    .penalty = 1.2f,
                                                    .top_k = i % 3 ? 100 : 0,
                                                    .forced = i % 20 == 7 ? i : -1,
                                                    .seed = 5,
                                                    .position = (uint64_t)i};
    }
}

/* Creates the tensor of a word; false: no memory. */
static bool make_tensor(const char *word, hy_dtype activation, uint64_t seed, hy_tensor *out) {
    *out = (hy_tensor){.dtype = dtype_of(word[0], activation),
                       .quant.group = word[0] == 'k' ? GROUP : 0};
    for (const char *letter = word + 2; *letter && *letter != ' '; letter++) {
        size_t i = 0;
        while (sizes[i].letter != *letter) i++;
        out->shape[out->ndim++] = sizes[i].size;
    }
    void *data = calloc(1, hy_selftest_bytes(out));
    if (!data) return false;
    hy_selftest_place(out, data);
    fill_scales(out);
    if (word[1] == 'o') fill_sampling(out);
    int64_t units = out->dtype == HY_NF4 ? (int64_t)hy_tensor_bytes(out) : hy_tensor_count(out);
    for (int64_t i = 0; word[1] != '0' && word[1] != 'o' && i < units; i++) {
        double value = number(word[1], i, seed);
        switch (out->dtype) {
        case HY_F32: ((float *)out->data)[i] = (float)value; break;
        case HY_BF16: ((uint16_t *)out->data)[i] = hy_f32_to_bf16((float)value); break;
        case HY_F16: ((uint16_t *)out->data)[i] = hy_f32_to_f16((float)value); break;
        case HY_F64: ((double *)out->data)[i] = value; break;
        case HY_I32: ((int32_t *)out->data)[i] = (int32_t)value; break;
        case HY_I8: ((int8_t *)out->data)[i] = (int8_t)fmax(-127, fmin(127, 40 * value)); break;
        case HY_E4M3:
        case HY_E5M2: ((uint8_t *)out->data)[i] = hy_fp8_encode(out->dtype, (float)value); break;
        default: ((uint8_t *)out->data)[i] = (uint8_t)value; break;
        }
    }
    return true;
}

/* ---- calls ----------------------------------------------------------------------------------- */

bool hy_selftest_call_exists(int i) { return i >= 0 && i < (int)(sizeof rows / sizeof rows[0]); }

bool hy_selftest_call_make(int i, hy_dtype dtype, hy_op_call *call) {
    *call = (hy_op_call){0};
    if (!hy_selftest_call_exists(i)) return false;
    if (dtype != HY_F32 && !strchr(rows[i].tensors, 'a')) return false;
    call->kind = rows[i].kind;
    call->attr = rows[i].attr;
    const char *word = rows[i].tensors;
    for (int k = 0; word; k++) {
        if (*word != '-' && !make_tensor(word, dtype, (uint64_t)(100 * i + k), &call->t[k])) {
            hy_selftest_call_free(call);
            return false;
        }
        word = strchr(word, ' ');
        if (word) word++;
    }
    return true;
}

void hy_selftest_call_free(hy_op_call *call) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        free(call->t[i].data);
        call->t[i].data = NULL;
    }
}

/* Both sides round their result once. Attention also rounds its weights, and reads values that were
 * rounded before. fp8 values are equal on both sides. */
double hy_selftest_allowed(hy_op_kind kind, hy_dtype dtype) {
    if (hy_is_fp8(dtype)) return 0;
    double rounding = dtype == HY_BF16 ? 4e-3 : dtype == HY_F16 ? 5e-4 : 2e-6;
    if (kind == HY_OP_ATTENTION_BWD) return 5 * rounding;
    return kind == HY_OP_ATTENTION ? 3 * rounding : 2 * rounding;
}
