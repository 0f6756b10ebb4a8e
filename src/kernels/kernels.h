/* kernels.h: the op table, and the interface of backends.
 *
 * An op is a kind, some scalars and a few tensors in fixed positions. It knows no tensor names and
 * no phases. For an op, a backend (cpu/, cuda/) says whether it supports these shapes and types and
 * how much workspace it needs. It can prepare the op once (a matmul plan) and then run it on a
 * stream. Streams are queues that run asynchronously, on the CPU as on a GPU; events order them.
 * Enqueueing never allocates. An op that fails leaves its message on the stream; the next
 * stream_sync reports it.
 *
 * All sums use fp32 or wider, whatever the storage type, in an order that depends only on the
 * shapes (not on the number of threads): the same call gives the same bits. */
#pragma once

#include "kernels/coded.h"
#include "kernels/fp8.h"
#include "kernels/preference.h"
#include "kernels/sampling.h"
#include "kernels/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ops ------------------------------------------------------------------------------------- */

/* After each kind, its tensors are listed in the order of their positions, which have names below.
 * `?`: may be absent. `+`: added to if attr.accumulate is set, otherwise overwritten. `*`: read and
 * written.
 *
 * `largest` (1) fp32 of an op is the largest magnitude of its stored result (amax); NaN counts as
 * larger than all numbers. */
typedef enum hy_op_kind {
    /* d = alpha op(a) op(b) + c + bias. a (M,K), or (K,M) if trans_a; b (K,N), or (N,K) if trans_b;
     * d (M,N) +; bias (N)?; c (M,N)? may be d itself. With accumulate: d += alpha op(a) op(b),
     * without bias and c.
     *
     * b may be a weight of another type: int8 with a scale per row, or another real type than a's.
     * int8 is converted to a's type as by HY_OP_CAST: the result has the bits of that cast and a
     * matmul.
     *
     * act (M,N)?: act = gelu(d) in addition to d, the input of the activation function. pre (M,N)?:
     * d = gelu'(pre) * (alpha op(a) op(b)), its backward; only without accumulate and other
     * options.
     *
     * a and b may both be fp8 (fp8.h), one of them E5M2: only with trans_b, without act and pre; d
     * is bf16, fp16 or fp32. is_fast: sums may have fewer bits than fp32.
     *
     * is_batch_invariant: a row of d depends on its row of a, on b and on K alone: it has the same
     * bits for any number of rows and whatever the others hold, because sums over K have one order.
     * Only with trans_b, and without trans_a, act, is_gelu, pre, batch and fp8 a. It is made for few
     * rows (a token of each sequence); b is read once for all of them, perhaps while the op before
     * runs: has_computed_b says that an op of the same pass writes b.
     *
     * batch: this many matmuls at once, of contiguous matrices, (batch M,K) and so on; only with c
     * and accumulate. The algorithm is chosen for `batch_most` of them, so each has the same bits
     * in any batch. */
    HY_OP_MATMUL,    /* a b d+ bias? c? act? pre? */
    HY_OP_BIAS_GRAD, /* dy (N,C)  dbias (C)+ : column sums */

    /* y = residual + (x - mean) rstd (offset + weight) + bias; with is_rms mean is 0. Statistics
     * are fp32, one per row. residual cannot be combined with largest. */
    HY_OP_NORM,     /* x (N,C)  weight (C)  bias (C)?  y (N,C) (may be residual)  mean (N)?
                       rstd (N)  largest?  residual (N,C)? */
    HY_OP_NORM_BWD, /* dy  x  weight  mean?  rstd  residual (N,C)?  dx (N,C)  dweight (C)?+
                       dbias (C)?+
                       dx = residual + d norm/dx; dx may be residual itself */

    /* rmsnorm of every q and k head of a packed qkv row, times norm_offset + weight; v is copied
     * (Qwen3). With is_whole, all q heads are normed together, and all k heads (OLMo 2): wq (H D),
     * wk (K D), rstd (N,2). With has_gates (Qwen3.5; excludes is_whole), qkv is (N,(2H+2K)D): each q
     * head is followed by its gate, D numbers that are left out; in dqkv they stay as they are. */
    HY_OP_HEAD_NORM,     /* qkv (N,(H+2K)D)  wq (D)  wk (D)  out (N,(H+2K)D)  rstd (N,H+K) */
    HY_OP_HEAD_NORM_BWD, /* dout  qkv  wq  wk  rstd  dqkv* (may be dout)  dwq?+  dwk?+ */

    /* Rotates pairs (i, i + R/2) of the first R elements of each q and k head in place; R is
     * heads.rotary, or D. query: q heads are then multiplied by query[position]. `inverse` rotates
     * back, for the backward pass, and multiplies all the same. Row n is at position n mod T, or
     * with `first` at first[n / T] + n mod T; a sequence with first < 0 is idle: its rows are left
     * as they are. */
    HY_OP_ROPE, /* qkv (N,(H+2K)D)*  table (Tmax, R/2, 2) fp32: cos, sin  query (Tmax) fp32?
                   first (B) i32? */

    /* Causal attention on packed qkv; stores only the log-sum-exp. doc_starts has for each token
     * the position in its sequence where its document begins; the token does not see earlier
     * ones. A score is scale q k, or with softcap c: c tanh(scale q k / c). exp(sinks[h]) is added
     * to the sum of weights of each row of head h, and so to lse; it has no value (gpt-oss). With
     * sparse_local a token sees some blocks of its document only (sparse.h). */
    HY_OP_ATTENTION,     /* qkv (N,(H+2K)D)  doc_starts (N) i32?  out (N,H D)  lse (B,H,T) fp32
                        sinks (H)? */
    HY_OP_ATTENTION_BWD, /* dout  qkv  doc_starts?  out  lse  dqkv (N,(H+2K)D)  sinks?
                            dsinks (H)?+ */
    /* As above for the next T tokens of sequences with cached keys and values: k and v of the rows
     * are written to the cache, sequence b from position first[b] on, and each row sees the cache up
     * to itself. A row of the cache holds its k heads, then its v heads. The cache is a pool of
     * blocks of X rows, a power of two that divides HY_KEY_RANGE: position p of sequence b is row
     * p mod X of block blocks[b][p / X]. Only blocks of positions that are seen are read. A sequence
     * with first < 0 is idle: nothing of it is written to the cache, and its rows of out are
     * undefined. Sums over keys are made for ranges of HY_KEY_RANGE positions, from multiples of it,
     * and then joined in order: so a sequence has the same bits whatever the others are. */
    HY_OP_ATTENTION_CACHED, /* qkv (B T,(H+2K)D)  cache (blocks,X,2K D)*  out (B T,H D)  sinks (H)?
                               first (B) i32  blocks (B,W) i32 */

    /* Causal convolution of each column over J tokens, the last one the row itself, then silu:
     * y = silu(sum over j of weight[c][j] x[n - J + 1 + j][c]). Tokens of other documents and other
     * sequences count as 0; doc_starts as for attention. */
    HY_OP_CONV,     /* x (N,C)  weight (C,J)  doc_starts (N) i32?  y (N,C) */
    HY_OP_CONV_BWD, /* dy  x  weight  doc_starts?  dx (N,C)  dweight (C,J)?+ */
    /* As above for the next T tokens of sequences whose last J - 1 rows of x are kept, the oldest
     * first: those of sequence b in state[slots[b]]. They count as 0 if first[b] is 0. A sequence
     * with first < 0 is idle: its state stays as it is, its rows of y are undefined. */
    HY_OP_CONV_CACHED, /* x (B T,C)  weight (C,J)  state (slots,J-1,C)*  y (B T,C)  first (B) i32
                          slots (B) i32 */

    /* The gated delta rule (Qwen3.5). A head has a state S (Dk,Dv), 0 before the first token of a
     * document; the tokens of a document are its steps:
     *     S = decay S + k (strength (v - (decay S)' k))'     out = S' q / sqrt(Dk)
     *     decay = exp(-exp(a_log) softplus(a + dt_bias))     strength = sigmoid(b)
     * A row of qkv has the Hk query heads (Dk each), the Hk key heads, then the H value heads (Dv);
     * H is a multiple of Hk, and value head h uses query and key h / (H / Hk). Each query and key is
     * first divided by sqrt(its square sum + HY_DELTA_EPS). A row of gates has b of all heads, then a
     * of all heads. doc_starts as for attention. */
    HY_OP_DELTA,     /* qkv (N,2 Hk Dk + H Dv)  gates (N,2H)  a_log (H)  dt_bias (H)
                        doc_starts (N) i32?  out (N,H Dv) */
    HY_OP_DELTA_BWD, /* dout  qkv  gates  a_log  dt_bias  doc_starts?  dqkv  dgates  da_log (H)?+
                        ddt_bias (H)?+ */
    /* As above for the next T tokens of sequences with states: that of sequence b is
     * state[slots[b]]. It counts as 0 if first[b] is 0. A sequence with first < 0 is idle: its state
     * stays as it is, its rows of out are undefined. A sequence has the same bits whatever the
     * others are. */
    HY_OP_DELTA_CACHED, /* qkv (B T,..)  gates (B T,2H)  a_log (H)  dt_bias (H)
                           state (slots,H,Dk,Dv) fp32*  out (B T,H Dv)  first (B) i32
                           slots (B) i32 */

    /* Gates H heads of D numbers: y = x sigmoid(gate), or with weight
     * y = x rstd weight silu(gate), rstd = 1 / rms of the head (attr.gate.eps). The gate of head h is
     * in columns [column + h stride, .. + D) of its rows; other columns of dgate stay as they are.
     * dx may be dy. */
    HY_OP_GATE,     /* x (N,H D)  gate (N,X)  weight (D)?  y (N,H D)  rstd (N,H)?: with weight */
    HY_OP_GATE_BWD, /* dy  x  gate  weight?  rstd?  dx (N,H D)  dgate (N,X)*  dweight (D)?+ */

    /* The activation function is attr.act.kind: by default gelu in its tanh form here, and silu for
     * the gate of swiglu. With weights, row n of y is multiplied by weights[order[n]], without order
     * by weights[n]; dweights gets the sum of dy times the row before that factor. */
    HY_OP_GELU,     /* x (N,F)  y (N,F)  largest? */
    HY_OP_GELU_BWD, /* dy  x  dx (may be dy)  largest? */
    HY_OP_SWIGLU,   /* gate_up (N,2F): gate first  y (N,F) = silu(gate) up  largest?
                       weights (N) fp32?  order (N) i32? */
    /* dy (N,F)  gate_up (N,2F)  dgate_up (N,2F, may be gate_up)  active (N,F)?  largest? : of
     * dgate_up. active: y again, if it was not stored; may be dy
     * weights (N) fp32?  order (N) i32?  dweights (N) fp32? */
    HY_OP_SWIGLU_BWD,

    /* x = scale wte[token] + wpe[position]. With doc_starts, as for attention, the positions of a
     * document begin at 0. wte may be int8 like b of a matmul; its rows are then converted to x's
     * type. With `first`, without doc_starts, row n is at position first[n / T] + n mod T; the rows
     * of an idle sequence (first < 0) are undefined, and their tokens are not read. */
    HY_OP_EMBED,     /* tokens (N) i32  wte (V,C)  wpe (Tmax,C)?  x (N,C)  doc_starts (N) i32?
                        first (B) i32? */
    HY_OP_EMBED_BWD, /* tokens (N) i32  dx (N,C)  dwte (V,C)?+  dwpe (Tmax,C)?+
                         doc_starts (N) i32? */

    /* Softmax cross-entropy over the first attr.loss.vocab columns, of factor * logit, or with
     * softcap c of c tanh(factor * logit / c). Target < 0: ignored, loss 0; but with reads_prompts,
     * a target below -1 is that of a prompt (hy_target_of). Writes the loss of each row; with
     * wants_grad, logits become d(scale * sum of weight * loss)/dlogits. */
    HY_OP_CROSS_ENTROPY, /* logits (N,V)*  targets (N) i32  losses (N) fp32  weights (N) fp32? */

    /* The losses of pairs of answers (preference.h). The documents of a sequence are pairs: a
     * chosen answer, then a rejected one, with their prompts. The tokens of an answer are those
     * with a target of at least 0, those of a prompt have one below -1, or none. A pair whose
     * answers both have tokens writes its loss at the first token of its first document, and the
     * weight of each token; all other losses and weights are 0. stats: HY_PAIRS_STATS sums. */
    HY_OP_PREFERENCE, /* token_losses (N) fp32  targets (N) i32  doc_starts (N) i32
                         reference (N) fp32?  losses (N) fp32  weights (N) fp32?  stats (4) f64* */

    /* The losses of tokens of answers with rewards (policy.h). policy: an hy_policy_token for each
     * token. A token counts if its target is at least 0 and its share is not 0; the losses and
     * weights of others are 0. reference: only with kl. stats: HY_POLICY_STATS statistics. */
    HY_OP_POLICY, /* token_losses (N) fp32  targets (N) i32  policy (N,4) fp32  reference (N) fp32?
                     losses (N) fp32  weights (N) fp32?  stats (8) f64* */

    /* Chooses a token per row, by the hy_sampling of the row (sampling.h), and gives its
     * log-probability and those of the E likeliest tokens, most likely first (equal: the lower id
     * first). Log-probabilities are of the model: of factor * logit, with softcap c of c tanh(factor
     * * logit / c), without penalty and temperature. seen has a bit per token of the vocabulary, in
     * ascending order: the tokens that the penalty applies to; the chosen token's is set. */
    HY_OP_SAMPLE, /* logits (N,V)  sampling (N, sizeof(hy_sampling)) u8  tokens (N) i32
                     logprobs (N) fp32  top_tokens (N,E) i32?  top_logprobs (N,E) fp32?
                     seen (N, (V+31)/32) i32?* */

    HY_OP_SUM,     /* x (any) fp32  out (1) f64+ */
    HY_OP_SQ_NORM, /* x (any)  out (1) f64+ : sum of squares */
    /* total (1) f64 = sum of squares of all gradients -> result (2) fp32: {norm, scale}; scale =
     * grad_scale * min(1, max_norm / (grad_scale * norm)), or 0 if the norm is not finite. */
    HY_OP_CLIP, /* total (1) f64  result (2) fp32 */
    /* One AdamW step with g = scale * grad. scale 0 changes nothing. Without master the parameter
     * itself is updated; with it, master is updated and the parameter is its rounding. 16-bit
     * parameters without master, and 16-bit m and v, are rounded stochastically. The noise of
     * logical element i = first + position is word w = hy_philox(seed, HY_RNG_ROUNDING, i / 4)[i %
     * 4]: 16 bits each, w & 0xffff for the parameter, w >> 16 for m, w * 0x9E3779B1 >> 16 for v. m
     * and v may be u8: quantised as by HY_OP_QUANTIZE (m signed, v unsigned) with fp32 scales at
     * quant.scale, one per quant.block elements: a power of two, 8 to 256. The step then
     * dequantises, updates, and quantises with the new largest magnitude of each block. */
    HY_OP_ADAMW, /* param*  grad  clip (2) fp32: {norm, scale}  master? fp32*  m*  v* */
    /* One step of SGD, by PyTorch's formula without dampening,
     * with g = scale * grad + weight_decay * param:
     *     momentum = attr.momentum * momentum + g
     *     param   -= lr * momentum, or with is_nesterov lr * (g + attr.momentum * momentum)
     * A momentum that begins as zero is g after the first step. Without the tensor:
     * param -= lr * g. Scale 0, master, rounding, its noise and 8 bits are as for AdamW, with
     * momentum in place of m. */
    HY_OP_SGD, /* param*  grad  clip (2) fp32: {norm, scale}  master? fp32*  momentum?* */
    /* One step of Lion with g = scale * grad; sign(0) is 0:
     *     param -= lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * param)
     *     m      = beta2 * m + (1 - beta2) * g
     * Scale 0, master, rounding, its noise and 8 bits are as for AdamW. */
    HY_OP_LION, /* param*  grad  clip (2) fp32: {norm, scale}  master? fp32*  m* */
    /* One step of Adafactor, by PyTorch's formulas, with g = scale * grad. With is_factored, param
     * is (M,N) and v has M + N numbers: r, the means of rows, then c, the means of columns;
     * otherwise one per element:
     *   r += mix * (mean of g^2 in the row - r), c likewise  variance = r c / max(mean of r, eps1)
     *   or v += mix * (g^2 - v)                              variance = v
     *   u = g / sqrt(max(variance, eps1^2))
     *   param = (1 - lr * weight_decay) * param - alpha / max(1, rms(u) / threshold) * u
     * with alpha = rate, or with is_relative rate * max(eps2, rms(param)) of the old param. Scale
     * 0, master, rounding of param and its noise are as for AdamW. */
    HY_OP_ADAFACTOR, /* param*  grad  clip (2) fp32: {norm, scale}  master? fp32*  v* fp32 */

    /* The matrix that Muon orthogonalizes, with g = scale * grad and the momentum after the step,
     * next = momentum * m + (1 - momentum) * g: next, or with is_nesterov momentum * next + (1 -
     * momentum) * g. m may have any type that it has in HY_OP_MUON. */
    HY_OP_MUON_BLEND, /* out  grad  m  clip (2) fp32: {norm, scale} */
    /* Scales each row to norm one: y = x / (norm + eps). */
    HY_OP_TO_UNIT, /* x (M,C)  y (M,C) (may be x); M at most 65,535 */
    /* One step along a given direction, and the momentum:
     *     m      = momentum * m + (1 - momentum) * scale * grad
     *     param  = param - lr * weight_decay * param - lr * coefficient[i] * direction
     * element by element, where i is the number of attr.muon.ends at or before the element. With
     * is_cautious, decay applies only if the direction also makes the weight smaller: direction *
     * param > 0. Scale 0, master, rounding, its noise and 8 bits are as for AdamW. */
    HY_OP_MUON, /* param*  grad  clip (2) fp32: {norm, scale}  master? fp32*  m*  -  direction */

    /* Same count, another type, rounded to nearest even. One of the two may be int8 with a scale
     * per row (int8.h); as dst it gets values and scales. */
    HY_OP_CAST, /* src  dst */
    HY_OP_FILL, /* dst : every element = attr.fill.value */

    /* out = sum of coefficient[i] x_i + noise z, with z a standard normal number of the logical
     * element. out may be one of the x. Predictors use it. */
    HY_OP_COMBINE, /* out  x0?  x1?  x2? : same count */
    /* Over the differences a - b and c - d (b, d absent: zero): {|a-b|^2, |c-d|^2, <a-b, c-d>}. */
    HY_OP_DIFF_DOT, /* a  b?  c  d?  out (3) f64+ */
    /* 8 bits per element and one fp32 scale per block: value = (|x| / largest)^(1/p) in 127 steps
     * and a sign (signed, p 3), or in 255 steps (unsigned, p 4). In the unsigned form, only zero
     * becomes zero, because it is used as a divisor. */
    HY_OP_QUANTIZE,   /* x (n) fp32  codes (n) u8  scales (n / block, rounded up) fp32 */
    HY_OP_DEQUANTIZE, /* codes  scales  x */
    /* Stores bf16 numbers in a byte each, and recovers them with the help of numbers near them
     * (grid.h). The step of the grid is 2^attr.grid.exponent. */
    HY_OP_WRAP,   /* x (n) bf16  codes (n) u8 */
    HY_OP_UNWRAP, /* codes (n) u8  near (n) bf16  x (n) bf16 */

    HY_OP_LARGEST, /* x (any)  out (1) fp32 : its largest magnitude, as for `largest` */
    /* Quantises x to fp8 (fp8.h) with its largest magnitude, in the same layout, transposed, or
     * both; each gets the scale. x may be fp8 itself: then it is transposed, and largest and codes
     * are absent. seen: statistics that are added to: {largest so far, numbers other than zero that
     * became zero, numbers}. */
    HY_OP_TO_FP8, /* x (M,C)  largest (1) fp32?  codes (M,C)?  transposed (C,M)?  seen (3) f64?* */

    /* Adapters of the pieces of one matrix as a block-diagonal matrix. `rows` are the rows of each
     * piece, M in total. A of the pieces have an adapter (is_there), and the rows of these are
     * contiguous in b. A row of `full` has the r columns of its piece from b and zeros for the
     * other pieces; all zeros if its piece has no adapter. */
    HY_OP_SPREAD,  /* b (R,r)  full (M, A r) */
    HY_OP_COLLECT, /* full (M, A r)  b (R,r)+ : the elements of full that come from b */
    /* y = c + x / (1 - rate), or c if the random number of the element is below rate: element i has
     * the number hy_philox(seed, HY_RNG_DROPOUT, attr.dropout.first + i / 4)[i % 4] / 2^32. With
     * rate 0, seed may be absent. */
    /* x (N,C)  seed (2) i32?: low and high word  y (N,C) (may be x or c)  c (N,C)? */
    HY_OP_DROPOUT,

    /* The sum of n numbers over ranks, in the order of ranks: out = x_0 + x_1 + .. in fp32, from
     * left to right, rounded once at the end. With accumulate, out is added last: out + (x_0 + x_1
     * + ..). own is x of rank attr.add_parts.rank; the others are in parts by rank, without this
     * one, each in the first n of `stride` elements. parts has own's type, and may be absent if
     * count is 1; out has own's type or is fp32. */
    HY_OP_ADD_PARTS, /* own (n)  parts ((count - 1) stride)?  out (n)+ (may be own) */

    /* Mixtures of experts. N tokens each choose k of E experts: R = N k rows, of which row n k + j is
     * token n's j-th choice. Sorted by expert, the rows of expert e have the positions
     * [offsets[e], offsets[e + 1]), known on the device alone.
     *
     * The scores of a token are softmax(logits) or sigmoid(logits). It chooses the k experts with the
     * largest score + bias, or without bias the largest logit, of equal ones the lower number, in
     * descending order. Their weights are scale times their scores, with is_renormalised divided by
     * the sum of the chosen scores. A token whose logits have no finite log-sum-exp (NaN) chooses
     * experts 0 to k - 1 with NaN weights.
     *
     * losses: per token {square of the log-sum-exp (the z loss), its share of the balancing loss,
     * entropy}. The share is E / (k T) times the sum over experts e of count p[e], where count is how
     * often the T tokens of its sequence chose e and p the scores, made to sum to 1; the entropy is
     * p's. The mean of the shares is 1 if all experts are chosen equally often. HY_OP_BIAS_GRAD sums
     * the columns. */
    HY_OP_ROUTE, /* logits (N,E)  bias (E) fp32?  choice (N,k) i32  weights (N,k) fp32
                    losses (N,3) fp32? */
    /* dlogits of sum(dweights weights) + sum over tokens of z losses[0] + balance losses[1], counts
     * being constants. A sum over tokens, so it does not depend on how a step is split. */
    HY_OP_ROUTE_BWD, /* dweights (N,k) fp32  logits  choice  dlogits (N,E) */
    /* order: the row at each sorted position, rows of an expert ascending; place: its inverse. */
    HY_OP_SORT_EXPERTS, /* choice (N,k) i32  order (R) i32  place (N,k) i32  offsets (E+1) i32 */
    /* d[p] = alpha a[p] op(b[e]) + bias[e] for the positions p of each expert e. b (E,K,N), or (E,N,K)
     * with trans_b, of any type that b of a matmul has; it is then decoded, some experts at a time.
     * With `rows`, a has X rows, and position p uses row rows[p] / (R / X): a token's, if rows is
     * order. With accumulate: d += alpha a op(b), without bias.
     *
     * is_batch_invariant: a row of d depends on its row of a, on b and on K alone, as for a matmul.
     * Only with trans_b. */
    HY_OP_GROUPED_MATMUL, /* a (R,K) or (X,K)  b  offsets (E+1) i32  d (R,N)+  rows (R) i32?
                             bias (E,N)? */
    /* d[e] = alpha times the sum over the positions p of expert e of a[p]' b[p]: a gradient of
     * experts. Without positions it is 0. rows_a, rows_b: as rows, for a and b. */
    HY_OP_GROUPED_GRAD, /* a (R,M)  b (R,N)  offsets (E+1) i32  d (E,M,N)+  rows_a (R) i32?
                           rows_b (R) i32? */
    /* out[n] = residual[n] + sum over j of y[place[n][j]], in this order in fp32: the results of a
     * token's experts, and the gradient of an input that was read through order. */
    HY_OP_SUM_ROWS, /* y (R,C)  place (N,k) i32  residual (N,C)?  out (N,C) (may be residual) */
    HY_OP_COUNT
} hy_op_kind;

/* Positions of the tensors of an op, as in call.t[HY_NORM_RSTD]; the lists above have the
 * shapes. */
enum {
    HY_MATMUL_A,
    HY_MATMUL_B,
    HY_MATMUL_D,
    HY_MATMUL_BIAS,
    HY_MATMUL_C,
    HY_MATMUL_ACT,
    HY_MATMUL_PRE
};
enum { HY_BIAS_GRAD_DY, HY_BIAS_GRAD_DBIAS };
enum {
    HY_NORM_X,
    HY_NORM_WEIGHT,
    HY_NORM_BIAS,
    HY_NORM_Y,
    HY_NORM_MEAN,
    HY_NORM_RSTD,
    HY_NORM_LARGEST,
    HY_NORM_RESIDUAL
};
enum {
    HY_NORM_BWD_DY,
    HY_NORM_BWD_X,
    HY_NORM_BWD_WEIGHT,
    HY_NORM_BWD_MEAN,
    HY_NORM_BWD_RSTD,
    HY_NORM_BWD_RESIDUAL,
    HY_NORM_BWD_DX,
    HY_NORM_BWD_DWEIGHT,
    HY_NORM_BWD_DBIAS
};
enum { HY_HEAD_NORM_QKV, HY_HEAD_NORM_WQ, HY_HEAD_NORM_WK, HY_HEAD_NORM_OUT, HY_HEAD_NORM_RSTD };
enum {
    HY_HEAD_NORM_BWD_DOUT,
    HY_HEAD_NORM_BWD_QKV,
    HY_HEAD_NORM_BWD_WQ,
    HY_HEAD_NORM_BWD_WK,
    HY_HEAD_NORM_BWD_RSTD,
    HY_HEAD_NORM_BWD_DQKV,
    HY_HEAD_NORM_BWD_DWQ,
    HY_HEAD_NORM_BWD_DWK
};
enum { HY_ROPE_QKV, HY_ROPE_TABLE, HY_ROPE_QUERY, HY_ROPE_FIRST };
enum {
    HY_ATTENTION_QKV,
    HY_ATTENTION_DOC_STARTS,
    HY_ATTENTION_OUT,
    HY_ATTENTION_LSE,
    HY_ATTENTION_SINKS
};
enum {
    HY_ATTENTION_BWD_DOUT,
    HY_ATTENTION_BWD_QKV,
    HY_ATTENTION_BWD_DOC_STARTS,
    HY_ATTENTION_BWD_OUT,
    HY_ATTENTION_BWD_LSE,
    HY_ATTENTION_BWD_DQKV,
    HY_ATTENTION_BWD_SINKS,
    HY_ATTENTION_BWD_DSINKS
};
enum {
    HY_ATTENTION_CACHED_QKV,
    HY_ATTENTION_CACHED_CACHE,
    HY_ATTENTION_CACHED_OUT,
    HY_ATTENTION_CACHED_SINKS,
    HY_ATTENTION_CACHED_FIRST,
    HY_ATTENTION_CACHED_BLOCKS
};
enum { HY_CONV_X, HY_CONV_WEIGHT, HY_CONV_DOC_STARTS, HY_CONV_Y };
enum {
    HY_CONV_BWD_DY,
    HY_CONV_BWD_X,
    HY_CONV_BWD_WEIGHT,
    HY_CONV_BWD_DOC_STARTS,
    HY_CONV_BWD_DX,
    HY_CONV_BWD_DWEIGHT
};
enum {
    HY_CONV_CACHED_X,
    HY_CONV_CACHED_WEIGHT,
    HY_CONV_CACHED_STATE,
    HY_CONV_CACHED_Y,
    HY_CONV_CACHED_FIRST,
    HY_CONV_CACHED_SLOTS
};
enum {
    HY_DELTA_QKV,
    HY_DELTA_GATES,
    HY_DELTA_A_LOG,
    HY_DELTA_DT_BIAS,
    HY_DELTA_DOC_STARTS,
    HY_DELTA_OUT
};
enum {
    HY_DELTA_BWD_DOUT,
    HY_DELTA_BWD_QKV,
    HY_DELTA_BWD_GATES,
    HY_DELTA_BWD_A_LOG,
    HY_DELTA_BWD_DT_BIAS,
    HY_DELTA_BWD_DOC_STARTS,
    HY_DELTA_BWD_DQKV,
    HY_DELTA_BWD_DGATES,
    HY_DELTA_BWD_DA_LOG,
    HY_DELTA_BWD_DDT_BIAS
};
enum {
    HY_DELTA_CACHED_QKV,
    HY_DELTA_CACHED_GATES,
    HY_DELTA_CACHED_A_LOG,
    HY_DELTA_CACHED_DT_BIAS,
    HY_DELTA_CACHED_STATE,
    HY_DELTA_CACHED_OUT,
    HY_DELTA_CACHED_FIRST,
    HY_DELTA_CACHED_SLOTS
};
enum { HY_GATE_X, HY_GATE_GATE, HY_GATE_WEIGHT, HY_GATE_Y, HY_GATE_RSTD };
enum {
    HY_GATE_BWD_DY,
    HY_GATE_BWD_X,
    HY_GATE_BWD_GATE,
    HY_GATE_BWD_WEIGHT,
    HY_GATE_BWD_RSTD,
    HY_GATE_BWD_DX,
    HY_GATE_BWD_DGATE,
    HY_GATE_BWD_DWEIGHT
};
enum { HY_GELU_X, HY_GELU_Y, HY_GELU_LARGEST };
enum { HY_GELU_BWD_DY, HY_GELU_BWD_X, HY_GELU_BWD_DX, HY_GELU_BWD_LARGEST };
enum { HY_SWIGLU_GATE_UP, HY_SWIGLU_Y, HY_SWIGLU_LARGEST, HY_SWIGLU_WEIGHTS, HY_SWIGLU_ORDER };
enum {
    HY_SWIGLU_BWD_DY,
    HY_SWIGLU_BWD_GATE_UP,
    HY_SWIGLU_BWD_DGATE_UP,
    HY_SWIGLU_BWD_ACTIVE,
    HY_SWIGLU_BWD_LARGEST,
    HY_SWIGLU_BWD_WEIGHTS,
    HY_SWIGLU_BWD_ORDER,
    HY_SWIGLU_BWD_DWEIGHTS
};
enum {
    HY_EMBED_TOKENS,
    HY_EMBED_WTE,
    HY_EMBED_WPE,
    HY_EMBED_X,
    HY_EMBED_DOC_STARTS,
    HY_EMBED_FIRST
};
enum {
    HY_EMBED_BWD_TOKENS = HY_EMBED_TOKENS,
    HY_EMBED_BWD_DX,
    HY_EMBED_BWD_DWTE,
    HY_EMBED_BWD_DWPE,
    HY_EMBED_BWD_DOC_STARTS = HY_EMBED_DOC_STARTS
};
enum {
    HY_CROSS_ENTROPY_LOGITS,
    HY_CROSS_ENTROPY_TARGETS,
    HY_CROSS_ENTROPY_LOSSES,
    HY_CROSS_ENTROPY_WEIGHTS
};
enum {
    HY_PREFERENCE_TOKEN_LOSSES,
    HY_PREFERENCE_TARGETS,
    HY_PREFERENCE_DOC_STARTS,
    HY_PREFERENCE_REFERENCE,
    HY_PREFERENCE_LOSSES,
    HY_PREFERENCE_WEIGHTS,
    HY_PREFERENCE_STATS
};
enum {
    HY_POLICY_TOKEN_LOSSES,
    HY_POLICY_TARGETS,
    HY_POLICY_POLICY,
    HY_POLICY_REFERENCE,
    HY_POLICY_LOSSES,
    HY_POLICY_WEIGHTS,
    HY_POLICY_STATISTICS
};
enum {
    HY_SAMPLE_LOGITS,
    HY_SAMPLE_SAMPLING,
    HY_SAMPLE_TOKENS,
    HY_SAMPLE_LOGPROBS,
    HY_SAMPLE_TOP_TOKENS,
    HY_SAMPLE_TOP_LOGPROBS,
    HY_SAMPLE_SEEN
};
enum { HY_REDUCE_X, HY_REDUCE_OUT }; /* HY_OP_SUM, HY_OP_SQ_NORM */
enum { HY_CLIP_TOTAL, HY_CLIP_RESULT };
/* HY_OP_ADAMW, _SGD, _LION, _ADAFACTOR, _MUON. M is the first array of state, whatever its name. */
enum {
    HY_UPDATE_PARAM,
    HY_UPDATE_GRAD,
    HY_UPDATE_CLIP,
    HY_UPDATE_MASTER,
    HY_UPDATE_M,
    HY_UPDATE_V,
    HY_UPDATE_DIRECTION
};
enum { HY_MUON_BLEND_OUT, HY_MUON_BLEND_GRAD, HY_MUON_BLEND_M, HY_MUON_BLEND_CLIP };
enum { HY_TO_UNIT_X, HY_TO_UNIT_Y };
enum { HY_CAST_SRC, HY_CAST_DST };
enum { HY_FILL_DST };
enum { HY_COMBINE_OUT, HY_COMBINE_X0, HY_COMBINE_X1, HY_COMBINE_X2 };
enum { HY_DIFF_DOT_A, HY_DIFF_DOT_B, HY_DIFF_DOT_C, HY_DIFF_DOT_D, HY_DIFF_DOT_OUT };
enum { HY_QUANTIZE_X, HY_QUANTIZE_CODES, HY_QUANTIZE_SCALES };
enum { HY_DEQUANTIZE_CODES, HY_DEQUANTIZE_SCALES, HY_DEQUANTIZE_X };
enum { HY_WRAP_X, HY_WRAP_CODES };
enum { HY_UNWRAP_CODES, HY_UNWRAP_NEAR, HY_UNWRAP_X };
enum { HY_LARGEST_X, HY_LARGEST_OUT };
enum { HY_TO_FP8_X, HY_TO_FP8_LARGEST, HY_TO_FP8_CODES, HY_TO_FP8_TRANSPOSED, HY_TO_FP8_SEEN };
enum { HY_SPREAD_B, HY_SPREAD_FULL };
enum { HY_COLLECT_FULL, HY_COLLECT_B };
enum { HY_DROPOUT_X, HY_DROPOUT_SEED, HY_DROPOUT_Y, HY_DROPOUT_C };
enum { HY_ADD_PARTS_OWN, HY_ADD_PARTS_PARTS, HY_ADD_PARTS_OUT };
enum { HY_ROUTE_LOGITS, HY_ROUTE_BIAS, HY_ROUTE_CHOICE, HY_ROUTE_WEIGHTS, HY_ROUTE_LOSSES };
enum { HY_ROUTE_BWD_DWEIGHTS, HY_ROUTE_BWD_LOGITS, HY_ROUTE_BWD_CHOICE, HY_ROUTE_BWD_DLOGITS };
enum {
    HY_SORT_EXPERTS_CHOICE,
    HY_SORT_EXPERTS_ORDER,
    HY_SORT_EXPERTS_PLACE,
    HY_SORT_EXPERTS_OFFSETS
};
enum {
    HY_GROUPED_MATMUL_A,
    HY_GROUPED_MATMUL_B,
    HY_GROUPED_MATMUL_OFFSETS,
    HY_GROUPED_MATMUL_D,
    HY_GROUPED_MATMUL_ROWS,
    HY_GROUPED_MATMUL_BIAS
};
enum {
    HY_GROUPED_GRAD_A,
    HY_GROUPED_GRAD_B,
    HY_GROUPED_GRAD_OFFSETS,
    HY_GROUPED_GRAD_D,
    HY_GROUPED_GRAD_ROWS_A,
    HY_GROUPED_GRAD_ROWS_B
};
enum { HY_SUM_ROWS_Y, HY_SUM_ROWS_PLACE, HY_SUM_ROWS_RESIDUAL, HY_SUM_ROWS_OUT };

#define HY_OP_TENSORS 10

/* Positions whose keys cached attention sums before it joins them. */
#define HY_KEY_RANGE 256

/* rope, attention, head norm: the layout of a row of qkv */
typedef struct hy_heads_attr {
    int32_t batch, seq, heads, kv_heads, head_dim;
    int32_t window;    /* attention: tokens that are visible, including itself; 0: all before */
    float scale;       /* attention: factor of q k, usually 1/sqrt(D) */
    float eps;         /* head norm */
    bool inverse;      /* rope: rotate back */
    bool is_whole;     /* head norm: over all heads together */
    int32_t rotary;    /* rope: elements of a head that are rotated, an even number; 0: all */
    float softcap;     /* attention; 0: none */
    float norm_offset; /* head norm: added to the weights */
    bool has_gates;    /* head norm: each q head is followed by its gate */
    /* attention: blocks of sparse.h; local 0: all keys. Only without a window. */
    int32_t sparse_local, sparse_global;
} hy_heads_attr;

/* Whether a sequence is longer than all blocks that a token sees. */
static inline bool hy_heads_are_sparse(const hy_heads_attr *a) {
    int64_t blocks = (int64_t)a->sparse_local + a->sparse_global;
    return a->sparse_local > 0 && blocks * HY_SPARSE_BLOCK < a->seq;
}

/* delta: the layout of a row */
typedef struct hy_delta_attr {
    int32_t batch, seq;
    int32_t key_heads, heads;   /* Hk, H */
    int32_t key_dim, value_dim; /* Dk, Dv: at most HY_DELTA_DIM_MAX */
} hy_delta_attr;

#define HY_DELTA_EPS 1e-6f
#define HY_DELTA_DIM_MAX 256
#define HY_CONV_TAPS_MAX 8

/* Scores of a router. */
typedef enum hy_route_score {
    HY_ROUTE_SOFTMAX,
    HY_ROUTE_SIGMOID,
    HY_ROUTE_SCORE_COUNT
} hy_route_score;

#define HY_ROUTE_EXPERTS_MAX 1024 /* E */
#define HY_ROUTE_CHOSEN_MAX 32    /* k */
#define HY_ROUTE_LOSSES_COUNT 3
/* Added to the sum of the chosen scores, which may be 0 if sigmoids are small. */
#define HY_ROUTE_EPS 1e-20f

typedef struct hy_route_attr {
    hy_route_score score;
    bool is_renormalised;
    float scale;      /* of the weights */
    float z, balance; /* backward: factors of the losses */
    int32_t seq;      /* T, for the balancing loss */
} hy_route_attr;

/* Activation functions. */
typedef enum hy_act {
    HY_ACT_DEFAULT,   /* the op's own */
    HY_ACT_GELU_TANH, /* x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) */
    HY_ACT_GELU,      /* x (1 + erf(x / sqrt(2))) / 2 */
    HY_ACT_RELU2,     /* max(x, 0)^2 */
    HY_ACT_SILU,      /* x sigmoid(x) */
    HY_ACT_COUNT
} hy_act;

typedef struct hy_adamw_attr {
    float lr, beta1, beta2, eps, weight_decay;
    float correction1, correction2; /* 1 - beta^t */
} hy_adamw_attr;

typedef struct hy_sgd_attr {
    float lr, momentum, weight_decay;
    bool is_nesterov;
} hy_sgd_attr;

typedef struct hy_lion_attr {
    float lr, beta1, beta2, weight_decay;
} hy_lion_attr;

typedef struct hy_adafactor_attr {
    float lr, weight_decay; /* of the decay */
    float rate;             /* of the step */
    float mix;              /* weight of this step's squares in the means */
    float eps1, eps2, threshold;
    bool is_factored, is_relative;
} hy_adafactor_attr;

#define HY_MUON_PIECES 3
typedef struct hy_muon_attr {
    float lr, momentum, weight_decay;
    bool is_nesterov; /* only for the blend */
    bool is_cautious;
    float coefficient[HY_MUON_PIECES];
    /* where the next piece begins, ascending; the count if there is none */
    int64_t ends[HY_MUON_PIECES - 1];
} hy_muon_attr;

#define HY_SPREAD_PIECES 3
typedef struct hy_spread_attr {
    int32_t count; /* pieces */
    int64_t rows[HY_SPREAD_PIECES];
    bool is_there[HY_SPREAD_PIECES];
} hy_spread_attr;

/* The row of b that row m of full comes from, -1: none; *column is its first column. */
HY_BOTH int64_t hy_spread_row(const hy_spread_attr *a, int64_t m, int64_t rank, int64_t *column) {
    int64_t row = 0, begin = 0;
    *column = 0;
    for (int32_t i = 0; i < a->count; i++) {
        if (m < begin + a->rows[i]) return a->is_there[i] ? row + m - begin : -1;
        begin += a->rows[i];
        if (!a->is_there[i]) continue;
        row += a->rows[i];
        *column += rank;
    }
    return -1;
}

typedef struct hy_op_attr {
    bool accumulate; /* for the tensors marked `+` */
    /* For noise (stochastic rounding of an update, or HY_OP_COMBINE): its key, and the logical
     * index of element 0. */
    uint64_t seed, first;
    union {
        struct {
            bool trans_a, trans_b;
            bool is_gelu; /* d = gelu of the result; the input of gelu is not stored */
            bool is_fast; /* fp8: fewer bits in sums */
            bool is_batch_invariant;
            bool has_computed_b;
            float alpha;
            int32_t batch, batch_most; /* 0: a single matmul */
        } matmul;
        struct {
            float eps;
            bool is_rms;
            float offset;      /* added to the weights (Gemma: 1) */
            bool has_few_rows; /* the time of a row counts; sums may have another order */
        } norm;
        hy_heads_attr heads;
        hy_delta_attr delta;
        struct {
            int32_t seq; /* T */
        } conv;
        struct {
            int32_t heads, head_dim; /* H, D */
            int32_t column, stride;  /* of the gates in a row */
            float eps;
        } gate;
        struct {
            int32_t seq; /* T: row n is at position n mod T of its sequence */
            float scale; /* of the rows of wte; 0: 1 */
        } embed;
        struct {
            hy_act kind;       /* gelu, swiglu */
            bool has_few_rows; /* swiglu: the time of a row counts */
        } act;
        struct {
            int32_t vocab;
            float scale;
            bool wants_grad, reads_prompts;
            float factor;  /* of the logits; 0: 1 */
            float softcap; /* 0: none */
        } loss;
        struct {
            hy_loss of;
            int32_t seq; /* T */
        } preference;
        hy_policy policy;
        struct {
            int32_t vocab;         /* tokens from this one on are never chosen */
            float factor, softcap; /* of the logits, as for the loss */
        } sample;
        struct {
            float max_norm;   /* 0: no clipping */
            float grad_scale; /* 1/loss scale; 1 without loss scaling */
        } clip;
        hy_adamw_attr adamw;
        hy_sgd_attr sgd;
        hy_lion_attr lion;
        hy_adafactor_attr adafactor;
        hy_muon_attr muon; /* also for its blend */
        struct {
            float eps;
        } to_unit;
        struct {
            float value;
        } fill;
        struct {
            float coefficient[3], noise;
        } combine;
        struct {
            int32_t block;
            bool is_signed;
        } quantize;
        hy_spread_attr spread; /* also for collect */
        struct {
            float rate;
            uint64_t first;
        } dropout;
        struct {
            int32_t count, rank; /* number of ranks, and the number of this one */
            int64_t stride;
        } add_parts;
        struct {
            int32_t exponent; /* HY_GRID_EXPONENT_MAX at most, of either sign */
        } grid;
        hy_route_attr route;
        struct {
            bool trans_b, is_batch_invariant;
            float alpha;
        } grouped; /* matmul and gradient */
    };
} hy_op_attr;

/* An op with its tensors. */
typedef struct hy_op_call {
    hy_op_kind kind;
    hy_op_attr attr;
    hy_tensor t[HY_OP_TENSORS];
    hy_tensor workspace; /* in bytes (u8), at least what the backend requires */
    /* The result of prepare; owned by the backend. NULL for our own attention on a GPU. */
    const void *plan;
} hy_op_call;

const char *hy_op_name(hy_op_kind kind);

/* The token that a row of the loss predicts; below 0: none. A token of a prompt that counts only
 * with reads_prompts is stored as -2 - token. */
HY_BOTH int32_t hy_target_of(int32_t target, bool reads_prompts) {
    return reads_prompts && target < -1 ? -2 - target : target;
}

/* The number of matmuls in a call. */
static inline int64_t hy_matmul_batch(const hy_op_call *call) {
    return call->attr.matmul.batch > 0 ? call->attr.matmul.batch : 1;
}

/* A matmul may first cast b, a stored weight, to a's type, into the first bytes of its workspace:
 * always if b is quantised, and for another real type if a backend multiplies only equal types
 * (is_uniform) and the result is as precise as a. 0: it does not. */
static inline size_t hy_matmul_cast_bytes(const hy_op_call *call, bool is_uniform) {
    const hy_tensor *b = &call->t[HY_MATMUL_B];
    hy_dtype in = call->t[HY_MATMUL_A].dtype, out = call->t[HY_MATMUL_D].dtype;
    bool is_other = is_uniform && b->dtype != in && (in == HY_F32 || out == in);
    /* two quantised operands are multiplied directly */
    bool is_coded = hy_is_coded(b->dtype) && !hy_is_fp8(in);
    if (!is_coded && !is_other) return 0;
    return ((size_t)hy_tensor_count(b) * hy_dtype_size(in) + 255) / 256 * 256;
}

/* The matmul after that cast: b in a's type, and the rest of the workspace. During planning, when
 * there is no workspace, b stays where it is. */
static inline hy_op_call hy_matmul_behind_cast(const hy_op_call *call, bool is_uniform) {
    hy_op_call plain = *call;
    size_t bytes = hy_matmul_cast_bytes(call, is_uniform);
    hy_tensor *b = &plain.t[HY_MATMUL_B], *w = &plain.workspace;
    if (bytes == 0) return plain;
    b->dtype = call->t[HY_MATMUL_A].dtype;
    b->quant = (hy_quant){0};
    if (!w->data) return plain;
    b->data = w->data;
    w->data = (char *)w->data + bytes;
    w->shape[0] -= (int64_t)bytes;
    return plain;
}

/* Floating-point operations of a call, for accounting (a multiply-add is two). */
double hy_op_flops(const hy_op_call *call);

/* ---- backend --------------------------------------------------------------------------------- */

typedef struct hy_stream hy_stream;
typedef struct hy_event hy_event;
typedef struct hy_graph hy_graph;
typedef struct hy_backend hy_backend;

/* Facts about the device, for people and for the planner. */
typedef struct hy_device_facts {
    char name[128];    /* "CPU: Neoverse-V1" */
    char detail[256];  /* how it computes matmuls: library, core type */
    char warning[512]; /* something the user should know; "": nothing */
    int threads;       /* worker threads of one op; 0 on a GPU */
    bool is_gpu;
    int capability;      /* GPU: 90 for sm_90 */
    size_t memory_total; /* bytes of memory of the device */
    size_t memory_free;
    double matmul_flops; /* measured at creation, operations per second: fp32, on a GPU bf16 */
    double peak_flops;   /* GPU: dense bf16 rate by its data sheet; 0: unknown */
} hy_device_facts;

struct hy_backend {
    hy_device_facts facts;
    void *self;

    /* Memory, aligned to at least 256 bytes. Not allocated inside a step. */
    hy_status (*alloc)(hy_backend *b, hy_place place, size_t bytes, void **out);
    void (*release)(hy_backend *b, hy_place place, void *data, size_t bytes);
    /* Whether the device can access this memory of the caller; HY_ERR_INPUT says where it is
     * instead. NULL: it always can. */
    hy_status (*check_memory)(hy_backend *b, const void *data);
    /* The device's free memory now, by its driver or the system; NULL if only facts are
     * available. */
    hy_status (*memory_now)(hy_backend *b, size_t *free, size_t *total);

    /* Streams run enqueued work in order. sync waits and reports the first failure since the last
     * sync. */
    hy_status (*stream_create)(hy_backend *b, const char *name, hy_stream **out);
    /* A stream of the caller, by the driver's handle (0: the default stream); it is used but not
     * destroyed with ours. NULL: not supported. */
    hy_status (*stream_adopt)(hy_backend *b, void *handle, hy_stream **out);
    void *(*stream_handle)(hy_stream *s); /* the driver's handle; NULL: none */
    void (*stream_destroy)(hy_stream *s);
    hy_status (*stream_sync)(hy_stream *s);
    double (*stream_waited)(hy_stream *s); /* seconds it has waited for events so far */

    /* An event is done when all work enqueued before its record is done. Waiting for an event that
     * was never recorded returns at once. */
    hy_status (*event_create)(hy_backend *b, hy_event **out);
    void (*event_destroy)(hy_event *e);
    hy_status (*event_record)(hy_event *e, hy_stream *s);
    hy_status (*stream_wait)(hy_stream *s, hy_event *e); /* s continues after e */
    hy_status (*event_sync)(hy_event *e);                /* the caller waits */
    bool (*event_is_done)(hy_event *e);

    hy_status (*copy)(hy_stream *s, void *dst, const void *src, size_t bytes);
    hy_status (*enqueue)(hy_stream *s, const hy_op_call *call);
    /* Calls `function` on the host in stream order: after work enqueued before it, before work
     * enqueued later. It may wait, but not for a function of another stream, because a GPU driver
     * may run all of them on one thread. It must not call the backend. If it fails, the stream
     * fails as by an op, with its message. */
    hy_status (*call)(hy_stream *s, hy_status (*function)(void *argument), void *argument);

    /* Work enqueued between begin and end is captured into a graph instead of run; replay enqueues
     * all of it, much faster than one op after another. Only ops are allowed, no plan may be made
     * meanwhile, and the tensors must keep their addresses. NULL if enqueueing is cheap. */
    hy_status (*capture_begin)(hy_stream *s);
    hy_status (*capture_end)(hy_stream *s, hy_graph **out);
    hy_status (*replay)(hy_stream *s, hy_graph *graph);
    void (*graph_destroy)(hy_graph *graph);

    /* Queries about an op, by shapes, types and attributes; data pointers matter only as present or
     * absent. supports fails with HY_ERR_INPUT and says what is wrong; prepare may set call->plan,
     * which lives as long as the backend. */
    hy_status (*supports)(hy_backend *b, const hy_op_call *call);
    size_t (*workspace)(hy_backend *b, const hy_op_call *call);
    hy_status (*prepare)(hy_backend *b, hy_op_call *call);
    /* The measured seconds of a prepared call: for a matmul from the choice of its algorithm, for
     * another op measured now, on its own memory. 0: unknown. NULL: nothing is measured. */
    double (*op_seconds)(hy_backend *b, const hy_op_call *call);

    /* The choices of prepare (matmul algorithms, attention kernels) as text (allocated with
     * malloc), and a call to make the same choices again: another algorithm means other bits. NULL
     * if there is no choice. Lines of another card are ignored. */
    hy_status (*matmul_table)(hy_backend *b, char **text);
    hy_status (*load_matmul_table)(hy_backend *b, const char *text);

    void (*destroy)(hy_backend *b);
};

typedef struct hy_cpu_options {
    int threads;            /* 0: all cores this process may use, at most 64 */
    int delay_microseconds; /* tests: each queued item first waits a random time up to this */
    uint64_t delay_seed;
} hy_cpu_options;

hy_status hy_cpu_backend_create(const hy_cpu_options *options, hy_backend **out);

/* How matmul algorithms are chosen: by the library's heuristic, by timing a few, or by timing
 * many. */
typedef enum hy_tune { HY_TUNE_OFF = 0, HY_TUNE_FAST = 1, HY_TUNE_MAX = 2 } hy_tune;

/* Which kernels compute 16-bit attention: our own; cuDNN's, or our own with a warning if cuDNN is
 * missing or does not support the shape; the faster of both, measured for each shape. */
typedef enum hy_attention_choice {
    HY_ATTENTION_OWN,
    HY_ATTENTION_CUDNN,
    HY_ATTENTION_AUTO
} hy_attention_choice;

typedef struct hy_cuda_options {
    int device; /* number of the card, from 0 */
    hy_tune tune;
    bool allow_tf32;     /* fp32 matmuls on tensor cores, with 10 bits of mantissa */
    size_t shared_limit; /* tests: limits the shared memory of blocks; 0: the card's own limit */
    hy_attention_choice attention;
    const char *cache; /* file for tuned algorithms; NULL or "": none */
    bool is_measuring; /* time a large matmul at creation: facts.matmul_flops */
    /* Called during tuning; may be NULL. */
    void (*on_tuning)(void *user, const char *what, int done, int total);
    void *user;
} hy_cuda_options;

/* Opens the CUDA backend (cuda_open.c). HY_ERR_DEVICE names what is missing: backend file, driver,
 * device or compute capability. */
hy_status hy_cuda_backend_create(const hy_cuda_options *options, hy_backend **out);

/* Whether NVIDIA's driver is present. No CUDA program runs without it, with or without a card. */
bool hy_cuda_has_driver(void);
/* Whether the file of our backend is present. Opening it shows whether both work together. */
bool hy_cuda_has_backend(void);
/* Cards that this process may use, as CUDA counts them (CUDA_VISIBLE_DEVICES); also 0 if the driver
 * does not start. It reserves no card, but starts the driver, which may take seconds and create
 * threads. */
int hy_cuda_card_count(void);

#ifdef __cplusplus
}
#endif
