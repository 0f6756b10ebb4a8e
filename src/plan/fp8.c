/* fp8.c: finds the matmuls of the blocks that are faster in fp8. See request.h.
 *
 * For each matrix of a block the matmuls are timed in bf16 and in fp8, including the extra work
 * of fp8: quantising the input, the incoming gradient and the transposed weight, and finding the
 * largest magnitude. Quantised values serve several matmuls, so the matmuls with the weight and
 * with its gradient are chosen together, as the fastest of four combinations. A shape without an
 * fp8 algorithm stays in bf16. A frozen matrix has no gradient; if it is stored in fp8, the bf16
 * matmul includes decoding. */
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "config/derived.h"
#include "plan/request.h"

#define SOMEWHERE ((void *)(uintptr_t)256)
#define USUAL_TOKENS 8192  /* tokens, while the micro-batch is open */
#define TOKENS_MULTIPLE 16 /* fp8 matmuls need a multiple of it */
#define CLEARLY 0.98       /* fp8 must take less than this share of bf16's time */

typedef struct linear {
    hy_param_kind kind;
    int64_t N, in, out; /* rows; widths of input and output */
    hy_dtype gradient, grads;
    hy_dtype stored; /* type of the stored matrix, if matmuls use bf16 */
    bool is_trained, is_fast;
    hy_backend *backend;
    bool is_timed; /* false: only checks what the device supports */
} linear;

static hy_tensor matrix(hy_dtype dtype, int64_t rows, int64_t cols) {
    hy_tensor t = hy_tensor_2d(SOMEWHERE, dtype, rows, cols);
    if (hy_is_fp8(dtype)) t.quant.scale = SOMEWHERE;
    return t;
}

static hy_tensor one(void) { return hy_tensor_1d(SOMEWHERE, HY_F32, 1); }

/* INFINITY: not supported; NAN: the time is not known; 1: it was not measured. */
static double seconds_of(const linear *l, hy_op_call *call) {
    hy_backend *b = l->backend;
    if (b->supports(b, call) != HY_OK) return INFINITY;
    if (!l->is_timed) return 1;
    if (b->prepare(b, call) != HY_OK) return NAN;
    double seconds = b->op_seconds(b, call);
    return seconds > 0 ? seconds : NAN;
}

/* Computes the output, the gradient of the input, or the gradient of the weight. */
typedef enum matmul { FORWARD, BACK, GRAD } matmul;

/* In bf16 as in the op lists. In fp8 both operands are stored so that the matmul sums over their
 * last dimension. */
static double matmul_seconds(const linear *l, matmul which, bool is_fp8) {
    hy_dtype x = is_fp8 ? HY_E4M3 : HY_BF16, dy = is_fp8 ? l->gradient : HY_BF16;
    hy_dtype weight = is_fp8 ? HY_E4M3 : l->stored;
    hy_op_call call = {.kind = HY_OP_MATMUL,
                       .attr.matmul = {.trans_a = which == GRAD && !is_fp8,
                                       .trans_b = which == FORWARD || is_fp8,
                                       .is_fast = which == FORWARD && is_fp8 && l->is_fast,
                                       .alpha = 1}};
    hy_tensor *a = &call.t[HY_MATMUL_A], *b = &call.t[HY_MATMUL_B], *d = &call.t[HY_MATMUL_D];
    if (which == FORWARD) {
        *a = matrix(x, l->N, l->in);
        *b = matrix(weight, l->out, l->in);
        *d = matrix(HY_BF16, l->N, l->out);
    } else if (which == BACK) {
        *a = matrix(dy, l->N, l->out);
        *b = is_fp8 ? matrix(weight, l->in, l->out) : matrix(weight, l->out, l->in);
        *d = matrix(HY_BF16, l->N, l->in);
    } else {
        *a = is_fp8 ? matrix(dy, l->out, l->N) : matrix(dy, l->N, l->out);
        *b = is_fp8 ? matrix(x, l->in, l->N) : matrix(x, l->N, l->in);
        *d = matrix(l->grads, l->out, l->in);
    }
    return which == GRAD && !l->is_trained ? 0 : seconds_of(l, &call);
}

/* Quantises x: its values, their transpose or both. A weight in fp8 is only transposed. */
static double quantise_seconds(const linear *l, hy_tensor x, hy_dtype dtype, bool has_codes,
                               bool has_transposed) {
    hy_op_call call = {.kind = HY_OP_TO_FP8};
    if (!has_codes && !has_transposed) return 0;
    call.t[HY_TO_FP8_X] = x;
    if (!hy_is_fp8(x.dtype)) call.t[HY_TO_FP8_LARGEST] = one();
    if (has_codes) call.t[HY_TO_FP8_CODES] = matrix(dtype, x.shape[0], x.shape[1]);
    if (has_transposed) call.t[HY_TO_FP8_TRANSPOSED] = matrix(dtype, x.shape[1], x.shape[0]);
    return seconds_of(l, &call);
}

/* Seconds to find the largest magnitude, where no other op finds it: for the attention's output,
 * and the gradients of the residual and of qkv. */
static double largest_seconds(const linear *l) {
    hy_op_call call = {.kind = HY_OP_LARGEST};
    bool is_out = l->kind == HY_P_OUT || l->kind == HY_P_LINEAR_OUT;
    if (l->kind == HY_P_UP) return 0;
    call.t[HY_LARGEST_X] = matrix(HY_BF16, l->N, is_out ? l->in + l->out : l->out);
    call.t[HY_LARGEST_OUT] = one();
    return seconds_of(l, &call);
}

/* Sets the bits of the matrix to all that the device supports. */
static void choose_possible(const linear *l, hy_fp8_use *use) {
    bool has_weights = isfinite(matmul_seconds(l, FORWARD, true) + matmul_seconds(l, BACK, true));
    bool has_grads = l->is_trained && isfinite(matmul_seconds(l, GRAD, true));
    if (has_weights) use->weights |= hy_linear_bit(l->kind);
    if (has_grads) use->grads |= hy_linear_bit(l->kind);
}

/* Sets the bits of the matrix to the fastest of the four combinations. HY_ERR_STATE: times are
 * not known. */
static hy_status choose_linear(const linear *l, hy_fp8_use *use) {
    hy_tensor x = matrix(HY_BF16, l->N, l->in), dy = matrix(HY_BF16, l->N, l->out);
    double with_weight[2], of_grad[2], best = INFINITY;
    int chosen = 0;
    for (int fp8 = 0; fp8 < 2; fp8++) {
        with_weight[fp8] = matmul_seconds(l, FORWARD, fp8) + matmul_seconds(l, BACK, fp8);
        of_grad[fp8] = matmul_seconds(l, GRAD, fp8);
    }
    with_weight[1] += quantise_seconds(l, matrix(HY_E4M3, l->out, l->in), HY_E4M3, false, true);
    for (int way = 0; way < (l->is_trained ? 4 : 2); way++) {
        bool weights = way & 1, grads = way & 2;
        double seconds = with_weight[weights] + of_grad[grads];
        if (way) {
            seconds += quantise_seconds(l, x, HY_E4M3, weights, grads) +
                       quantise_seconds(l, dy, l->gradient, weights, grads) + largest_seconds(l);
        }
        if (isnan(seconds)) return HY_ERR_STATE;
        if (seconds < (way ? CLEARLY : 1) * best) {
            best = seconds;
            chosen = way;
        }
    }
    if (chosen & 1) use->weights |= hy_linear_bit(l->kind);
    if (chosen & 2) use->grads |= hy_linear_bit(l->kind);
    return HY_OK;
}

static const char *const names[HY_LINEARS] = {"qkv",       "attention out", "mlp up",
                                              "mlp down",  "linear qkv",    "linear z",
                                              "linear ba", "linear out"};

/* The first parameter of a kind; -1: the model has none. */
static int32_t find_kind(const hy_params *params, hy_param_kind kind) {
    int32_t found = -1;
    for (int32_t unit = 1; unit < params->units && found < 0; unit++)
        found = hy_params_find(params, unit, kind);
    return found;
}

/* The matrices that blocks of the model have, but for those that are never in fp8. */
static uint32_t linears_of(const hy_params *params) {
    uint32_t bits = 0;
    for (int i = 0; i < HY_LINEARS; i++) {
        hy_param_kind kind = hy_linear_kind(i);
        bool may_be_fp8 = !hy_kind_stays_real(kind) && find_kind(params, kind) >= 0;
        bits |= may_be_fp8 ? 1u << i : 0;
    }
    return bits;
}

static int matmuls_of(uint32_t weights, uint32_t grads) {
    int count = 0;
    for (int i = 0; i < HY_LINEARS; i++) {
        uint32_t bit = 1u << i;
        count += 2 * ((weights & bit) != 0) + ((grads & bit) != 0);
    }
    return count;
}

/* Has the model a matrix in which both widths are multiples of 16? */
static bool has_even_widths(const hy_params *params) {
    bool is_any = false;
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        is_any |= hy_linear_bit(p->kind) && p->shape[0] % 16 == 0 && p->shape[1] % 16 == 0;
    }
    return is_any;
}

const char *hy_fp8_why_none(const hy_plan_request *r, const hy_types *types) {
    const hy_settings *s = r->settings;
    bool is_asked = hy_settings_precision(s, HY_FULL) == HY_DTYPE_FP8; /* never of a custom model */
    if (!is_asked || hy_types_have_fp8(types)) return NULL;
    if (s->train.fp8_until == 0) return "fp8 is not used: fp8_until is 0";
    if (!hy_params_fp8_possible(&r->model->params).weights) {
        return "fp8 is not used, because all matrices are frozen and frozen_dtype is not fp8: the "
               "run uses bf16";
    }
    return s->train.seq_len % TOKENS_MULTIPLE
               ? "fp8 is not used, because seq_len is not a multiple of 16: the run uses bf16"
           : !has_even_widths(&r->model->params)
               ? "fp8 is not used, because no matrix has rows and columns in multiples of 16: the "
                 "run uses bf16"
               : "fp8 is not used, because bf16 is faster here: the run uses bf16";
}

void hy_fp8_describe(const hy_params *params, const hy_fp8_use *use, char *out, size_t size) {
    hy_fp8_use could = hy_params_fp8_possible(params);
    uint32_t all = linears_of(params);
    hy_text text = {0};
    int left = 0;
    hy_text_addf(&text, "fp8 in %d of the %d kinds of matmuls in blocks",
                 matmuls_of(use->weights, use->grads), matmuls_of(all, could.grads & all));
    for (int i = 0; i < HY_LINEARS; i++) {
        uint32_t bit = 1u << i;
        bool weights = use->weights & bit, grads = use->grads & bit || !(could.grads & bit);
        if (!(all & bit) || (weights && grads)) continue;
        hy_text_addf(&text, "%s%s%s",
                     left++ ? ", " : "; in bf16, because it is faster or required: ", names[i],
                     weights ? " (gradient)"
                     : grads ? " (forward and back)"
                             : "");
    }
    snprintf(out, size, "%s", text.has_failed ? "fp8" : hy_text_string(&text));
    hy_text_free(&text);
}

/* Micro-batches may later be split down to one sequence, so a sequence must have a multiple
 * of 16 tokens. */
static int64_t tokens_of(const hy_plan_request *r) {
    const hy_settings *s = r->settings;
    int64_t seq = s->train.seq_len, batch = r->fixed.split.batch;
    if (!batch && s->train.micro_batch == HY_MICRO_GIVEN) batch = s->train.batch_size;
    if (!batch) batch = seq < USUAL_TOKENS ? USUAL_TOKENS / seq : 1;
    return seq % TOKENS_MULTIPLE == 0 ? batch * seq : seq;
}

hy_fp8_use hy_fp8_choose(const hy_plan_request *r, const hy_types *types) {
    const hy_params *params = &r->model->params;
    hy_fp8_use use = {0}, possible = {0}, could = hy_params_fp8_possible(params);
    bool is_timed = r->settings->train.fp8 == HY_FP8_AUTO && r->backend->op_seconds;
    for (int i = 0; i < HY_LINEARS; i++) {
        uint32_t bit = 1u << i;
        bool is_trained = could.grads & bit;
        if (!(could.weights & bit)) continue;
        hy_param_kind kind = hy_linear_kind(i);
        const hy_param *matrix = &params->list[find_kind(params, kind)];
        linear l = {.kind = kind,
                    .is_trained = is_trained,
                    .stored = is_trained ? HY_BF16 : HY_E4M3,
                    .N = tokens_of(r),
                    .in = matrix->shape[1],
                    .out = matrix->shape[0],
                    .gradient = types->fp8.gradient,
                    .is_fast = types->fp8.is_fast,
                    .grads = types->grads,
                    .backend = r->backend};
        choose_possible(&l, &possible);
        l.is_timed = is_timed = is_timed && !r->fixed.has_fp8;
        if (is_timed && choose_linear(&l, &use) != HY_OK) is_timed = false;
    }
    if (!r->fixed.has_fp8) return is_timed ? use : possible;
    use = r->fixed.fp8; /* from a checkpoint, perhaps of another device */
    use.weights &= possible.weights;
    use.grads &= possible.grads;
    return use;
}
