/* attention_cudnn.cu: attention by cuDNN, an alternative to our own tiles. See attention_cudnn.cuh.
 *
 * cuDNN takes attention as a graph of small operations and runs the whole graph as one kernel, or a
 * few. This file builds the graphs, one per direction. A plan is made once per shape and kept, and
 * so is the result that there is none. In the backward pass, dq is requested as one matmul over
 * stored dS, which sums in a fixed order; cuDNN's other form adds to dq in the order of arrival,
 * and two runs would differ. */
#include "kernels/cuda/attention_choice.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ids of the tensors and numbers of a plan. */
enum { Q = 1, K, V, OUT, LSE, DOUT, DQ, DK, DV, DELTA, SCALE, HIDDEN, ONE };

struct hy_cudnn_attention {
    struct hy_cudnn_attention *next;
    hy_op_kind kind;
    hy_dtype dtype;
    int B, T, H, K, D;
    hy_cudnn_graph graph;
    hy_cudnn_descriptor plan;            /* NULL: not supported */
    size_t delta_bytes, workspace_bytes; /* row sums of the backward pass; in total */
};

/* ---- graphs ---------------------------------------------------------------------------------- */

/* The query, key or value heads of packed qkv rows. */
static hy_cudnn_shape packed_heads(const hy_cuda_heads *a, int heads) {
    int64_t width = (int64_t)(a->H + 2 * a->K) * a->D;
    return {{a->B, heads, a->T, a->D}, {a->T * width, a->D, width, 1}};
}

/* out and its gradient: (B, T, H, D). */
static hy_cudnn_shape out_heads(const hy_cuda_heads *a) {
    int64_t width = (int64_t)a->H * a->D;
    return {{a->B, a->H, a->T, a->D}, {a->T * width, a->D, width, 1}};
}

/* P = softmax(mask(scale q k)), O = P v, lse = max + log(sum). */
static void write_forward(hy_cudnn_graph *g, const hy_cuda_heads *a, hy_cudnn_type type) {
    hy_cudnn_shape scores = hy_cudnn_packed(a->B, a->H, a->T, a->T);
    hy_cudnn_shape row = hy_cudnn_packed(a->B, a->H, a->T, 1), key = packed_heads(a, a->K);
    hy_cudnn_descriptor q = hy_cudnn_tensor(g, Q, type, packed_heads(a, a->H));
    hy_cudnn_descriptor k = hy_cudnn_tensor(g, K, type, hy_cudnn_transposed(key));
    hy_cudnn_descriptor v = hy_cudnn_tensor(g, V, type, key);
    hy_cudnn_descriptor out = hy_cudnn_tensor(g, OUT, type, out_heads(a));
    hy_cudnn_descriptor lse = hy_cudnn_tensor(g, LSE, HY_CUDNN_FLOAT, row);
    hy_cudnn_descriptor scale = hy_cudnn_number(g, SCALE), hidden = hy_cudnn_number(g, HIDDEN);
    hy_cudnn_descriptor s[5], r[3];
    for (int i = 0; i < 5; i++) s[i] = hy_cudnn_inside(g, HY_CUDNN_FLOAT, scores);
    for (int i = 0; i < 3; i++) r[i] = hy_cudnn_inside(g, HY_CUDNN_FLOAT, row);
    hy_cudnn_descriptor p = hy_cudnn_inside(g, type, scores);
    hy_cudnn_matmul(g, q, k, s[0]);
    hy_cudnn_pointwise(g, HY_CUDNN_MUL, s[0], scale, s[1]);
    hy_cudnn_causal(g, scores, s[1], hidden, s[2]);
    hy_cudnn_reduce(g, HY_CUDNN_MAX, s[2], r[0]);
    hy_cudnn_pointwise(g, HY_CUDNN_SUB, s[2], r[0], s[3]);
    hy_cudnn_pointwise(g, HY_CUDNN_EXP, s[3], NULL, s[4]);
    hy_cudnn_reduce(g, HY_CUDNN_SUM, s[4], r[1]);
    hy_cudnn_pointwise(g, HY_CUDNN_LOG, r[1], NULL, r[2]);
    hy_cudnn_pointwise(g, HY_CUDNN_ADD, r[0], r[2], lse);
    hy_cudnn_pointwise(g, HY_CUDNN_DIV, s[4], r[1], p);
    hy_cudnn_matmul(g, p, v, out);
}

/* What the backward pass writes for keys or values: with grouped heads, the sum over a group. */
static void write_key_gradient(hy_cudnn_graph *g, const hy_cuda_heads *a, hy_cudnn_type type,
                               hy_cudnn_descriptor scores, hy_cudnn_descriptor rows, int64_t id) {
    hy_cudnn_shape transposed = hy_cudnn_transposed(hy_cudnn_packed(a->B, a->H, a->T, a->T));
    hy_cudnn_descriptor turned = hy_cudnn_inside(g, type, transposed);
    hy_cudnn_descriptor out = hy_cudnn_tensor(g, id, type, packed_heads(a, a->K));
    hy_cudnn_reshape(g, scores, turned);
    if (a->H == a->K) {
        hy_cudnn_matmul(g, turned, rows, out);
        return;
    }
    hy_cudnn_descriptor each = hy_cudnn_inside(g, type, hy_cudnn_packed(a->B, a->H, a->T, a->D));
    hy_cudnn_matmul(g, turned, rows, each);
    hy_cudnn_reduce(g, HY_CUDNN_SUM, each, out);
}

/* delta = sum over columns of dout out; P = exp(mask(scale q k - lse)); dv = P^T dout;
 * dS = scale P (dout v^T - delta); dk = dS^T q; dq = dS k. */
static void write_backward(hy_cudnn_graph *g, const hy_cuda_heads *a, hy_cudnn_type type) {
    hy_cudnn_shape scores = hy_cudnn_packed(a->B, a->H, a->T, a->T);
    hy_cudnn_shape row = hy_cudnn_packed(a->B, a->H, a->T, 1), key = packed_heads(a, a->K);
    hy_cudnn_descriptor q = hy_cudnn_tensor(g, Q, type, packed_heads(a, a->H));
    hy_cudnn_descriptor k = hy_cudnn_tensor(g, K, type, hy_cudnn_transposed(key));
    hy_cudnn_descriptor v = hy_cudnn_tensor(g, V, type, hy_cudnn_transposed(key));
    hy_cudnn_descriptor out = hy_cudnn_tensor(g, OUT, type, out_heads(a));
    hy_cudnn_descriptor dout = hy_cudnn_tensor(g, DOUT, type, out_heads(a));
    hy_cudnn_descriptor lse = hy_cudnn_tensor(g, LSE, HY_CUDNN_FLOAT, row);
    hy_cudnn_descriptor delta = hy_cudnn_tensor(g, DELTA, HY_CUDNN_FLOAT, row);
    hy_cudnn_descriptor dq = hy_cudnn_tensor(g, DQ, type, packed_heads(a, a->H));
    hy_cudnn_descriptor scale = hy_cudnn_number(g, SCALE), hidden = hy_cudnn_number(g, HIDDEN);
    hy_cudnn_descriptor one = hy_cudnn_number(g, ONE);
    hy_cudnn_descriptor product =
        hy_cudnn_inside(g, HY_CUDNN_FLOAT, hy_cudnn_packed(a->B, a->H, a->T, a->D));
    hy_cudnn_descriptor sum = hy_cudnn_inside(g, HY_CUDNN_FLOAT, row), s[9];
    for (int i = 0; i < 9; i++) s[i] = hy_cudnn_inside(g, HY_CUDNN_FLOAT, scores);
    hy_cudnn_descriptor k_back = hy_cudnn_inside(g, type, key);

    hy_cudnn_pointwise(g, HY_CUDNN_MUL, dout, out, product);
    hy_cudnn_reduce(g, HY_CUDNN_SUM, product, sum);
    hy_cudnn_pointwise(g, HY_CUDNN_MUL, sum, one, delta);

    hy_cudnn_matmul(g, q, k, s[0]);
    hy_cudnn_pointwise(g, HY_CUDNN_MUL, s[0], scale, s[1]);
    hy_cudnn_pointwise(g, HY_CUDNN_SUB, s[1], lse, s[2]);
    hy_cudnn_causal(g, scores, s[2], hidden, s[3]);
    hy_cudnn_pointwise(g, HY_CUDNN_EXP, s[3], NULL, s[4]);
    write_key_gradient(g, a, type, s[4], dout, DV);

    hy_cudnn_matmul(g, dout, v, s[5]);
    hy_cudnn_pointwise(g, HY_CUDNN_SUB, s[5], delta, s[6]);
    hy_cudnn_pointwise(g, HY_CUDNN_MUL, s[6], s[4], s[7]);
    hy_cudnn_pointwise(g, HY_CUDNN_MUL, s[7], scale, s[8]);
    write_key_gradient(g, a, type, s[8], q, DK);

    hy_cudnn_reshape(g, k, k_back);
    hy_cudnn_matmul(g, s[8], k_back, dq);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static bool is_same(const hy_cudnn_attention *p, const hy_op_call *call) {
    return p->kind == call->kind && p->dtype == hy_attention_qkv(call)->dtype &&
           p->B == call->attr.heads.batch && p->T == call->attr.heads.seq &&
           p->H == call->attr.heads.heads && p->K == call->attr.heads.kv_heads &&
           p->D == call->attr.heads.head_dim;
}

static hy_cudnn_attention *build(hy_cudnn *cudnn, const hy_op_call *call) {
    hy_cudnn_attention *p = (hy_cudnn_attention *)calloc(1, sizeof *p);
    if (!p) return NULL;
    hy_cuda_heads a = hy_cuda_heads_of(call);
    hy_cudnn_type type =
        hy_attention_qkv(call)->dtype == HY_BF16 ? HY_CUDNN_BFLOAT16 : HY_CUDNN_HALF;
    p->kind = call->kind;
    p->dtype = hy_attention_qkv(call)->dtype;
    p->B = a.B, p->T = a.T, p->H = a.H, p->K = a.K, p->D = a.D;
    hy_cudnn_graph_init(&p->graph, cudnn);
    if (p->kind == HY_OP_ATTENTION) {
        write_forward(&p->graph, &a, type);
    } else {
        write_backward(&p->graph, &a, type);
        p->delta_bytes = ((size_t)a.B * a.H * a.T * sizeof(float) + 255) / 256 * 256;
    }
    p->plan = hy_cudnn_plan(&p->graph, &p->workspace_bytes);
    p->workspace_bytes += p->delta_bytes;
    return p;
}

static const hy_cudnn_attention *find_or_build(hy_cudnn *cudnn, const hy_op_call *call) {
    pthread_mutex_lock(&cudnn->lock);
    hy_cudnn_attention *p = cudnn->plans;
    while (p && !is_same(p, call)) p = p->next;
    if (!p && (p = build(cudnn, call)) != NULL) {
        p->next = cudnn->plans;
        cudnn->plans = p;
    }
    pthread_mutex_unlock(&cudnn->lock);
    return p;
}

/* ---- choosing a plan ------------------------------------------------------------------------- */

/* The backward pass stores dS: two bytes for each pair of tokens and head. More than this share of
 * the card's memory is not worth it; under `auto` less, because it is unused if our own kernels are
 * faster. */
enum { SHARE_OF_MEMORY = 16, SHARE_UNDER_AUTO = 64 };

static bool is_auto(const hy_cuda *cuda) { return cuda->options.attention == HY_ATTENTION_AUTO; }

/* A run that used cuDNN continues with it. */
static size_t most_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    bool may_lie_idle = is_auto(cuda) && !hy_attention_was_cudnn(cuda, call);
    return cuda->backend.facts.memory_total / (may_lie_idle ? SHARE_UNDER_AUTO : SHARE_OF_MEMORY);
}

/* Before 9.16, cuDNN's own frontend does not use its backward pass if the last tile is not full. */
static bool has_sure_ends(const hy_cudnn *cudnn, const hy_op_call *call) {
    enum { WHOLE = 128, SURE_SINCE = 91600 };
    return call->kind == HY_OP_ATTENTION || call->attr.heads.seq % WHOLE == 0 ||
           cudnn->version >= SURE_SINCE;
}

/* The plan, or NULL and the reason. */
static const hy_cudnn_attention *serving(const hy_cuda *cuda, const hy_op_call *call, char *why,
                                         size_t why_bytes) {
    int32_t window = call->attr.heads.window;
    const hy_cudnn_attention *p = NULL;
    if (!hy_cuda_attention_is_fast(cuda, call)) {
        snprintf(why, why_bytes,
                 "it needs a single 16-bit type and heads of 64, 80, 96, 128 or 256");
    } else if (hy_has(hy_attention_doc_starts(call))) {
        snprintf(why, why_bytes, "it does not support documents");
    } else if (window > 0 && window < call->attr.heads.seq) {
        snprintf(why, why_bytes, "it does not support a window of %d tokens", (int)window);
    } else if (hy_heads_are_sparse(&call->attr.heads)) {
        snprintf(why, why_bytes, "it does not support block-sparse attention");
    } else if (call->attr.heads.softcap > 0 || hy_has(hy_attention_sinks(call))) {
        snprintf(why, why_bytes, "it does not support %s",
                 call->attr.heads.softcap > 0 ? "capped scores" : "sinks");
    } else if (!has_sure_ends(cuda->cudnn, call)) {
        snprintf(why, why_bytes, "sequences of %d tokens need cuDNN 9.16",
                 (int)call->attr.heads.seq);
    } else if ((p = find_or_build(cuda->cudnn, call)) == NULL) {
        snprintf(why, why_bytes, "not enough memory for cuDNN's execution plan");
    } else if (!p->plan) {
        snprintf(why, why_bytes, "it does not support %s", p->graph.failed);
    } else if (p->workspace_bytes > most_workspace(cuda, call)) {
        snprintf(why, why_bytes, "it would need %.1f GiB of workspace",
                 (double)p->workspace_bytes / 0x1p30);
    } else {
        return p;
    }
    return NULL;
}

const hy_cudnn_attention *hy_cudnn_attention_of(const hy_cuda *cuda, const hy_op_call *call) {
    char why[128];
    if (!cuda->cudnn) return NULL;
    const hy_cudnn_attention *prepared = (const hy_cudnn_attention *)call->plan;
    if (prepared && is_same(prepared, call)) return prepared;
    if (is_auto(cuda) && !hy_attention_is_cudnn(cuda, call)) return NULL;
    return serving(cuda, call, why, sizeof why);
}

void hy_cudnn_attention_prepare(hy_cuda *cuda, hy_op_call *call) {
    hy_device_facts *facts = &cuda->backend.facts;
    char why[128];
    if (hy_attention_qkv(call)->dtype == HY_F32) return;
    const hy_cudnn_attention *offer = cuda->cudnn ? serving(cuda, call, why, sizeof why) : NULL;
    if (hy_attention_choose(cuda, call, offer)) call->plan = offer;
    if (call->plan || !cuda->cudnn || is_auto(cuda) || facts->warning[0]) return;
    snprintf(facts->warning, sizeof facts->warning,
             "%s with heads of %d uses our own kernels instead of cuDNN: %s",
             cuda->host.op_name(call->kind), (int)call->attr.heads.head_dim, why);
}

size_t hy_cudnn_attention_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    char why[128];
    const hy_cudnn_attention *p = cuda->cudnn && is_auto(cuda)
                                      ? serving(cuda, call, why, sizeof why)
                                      : hy_cudnn_attention_of(cuda, call);
    return p ? p->workspace_bytes : 0;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Tensors and numbers bound to a plan. */
typedef struct bindings {
    int64_t id[ONE];
    void *data[ONE];
    int count;
} bindings;

static void bind(bindings *b, int64_t id, const void *data) {
    b->id[b->count] = id;
    b->data[b->count++] = (void *)data;
}

/* Binds the three parts of packed 16-bit rows. */
static void bind_packed(bindings *b, int64_t first, const hy_cudnn_attention *p, const void *rows) {
    const uint16_t *data = (const uint16_t *)rows;
    bind(b, first, data);
    bind(b, first + 1, data + (int64_t)p->H * p->D);
    bind(b, first + 2, data + (int64_t)(p->H + p->K) * p->D);
}

/* A failed allocation on the host or the card is reported as out of memory, whatever cuDNN calls
 * it. */
static hy_status failure(const hy_cuda_run *run, int code) {
    enum { HOST_ALLOCATION_FAILED = 4003, DEVICE_ALLOCATION_FAILED = 4004 };
    const char *name = run->cuda->host.op_name(run->call->kind);
    cudaError_t behind = cudaPeekAtLastError();
    bool is_memory = code == HOST_ALLOCATION_FAILED || code == DEVICE_ALLOCATION_FAILED ||
                     behind == cudaErrorMemoryAllocation;
    hy_cuda_check(run->cuda, is_memory ? cudaErrorMemoryAllocation : behind, name);
    return hy_cuda_fail(run->cuda, is_memory ? HY_ERR_MEMORY : HY_ERR_DEVICE, "%s: cuDNN: %s", name,
                        run->cuda->cudnn->call.error_string(code));
}

bool hy_cudnn_attention_runs(const hy_cuda_run *run, hy_status *status) {
    static const float hidden = -INFINITY, one = 1;
    const hy_op_call *call = run->call;
    const hy_cudnn_attention *p = hy_cudnn_attention_of(run->cuda, call);
    if (!p) return false;
    bindings b = {};
    bind(&b, SCALE, &call->attr.heads.scale);
    bind(&b, HIDDEN, &hidden);
    if (p->kind == HY_OP_ATTENTION) {
        bind_packed(&b, Q, p, call->t[HY_ATTENTION_QKV].data);
        bind(&b, OUT, call->t[HY_ATTENTION_OUT].data);
        bind(&b, LSE, call->t[HY_ATTENTION_LSE].data);
    } else {
        bind(&b, DOUT, call->t[HY_ATTENTION_BWD_DOUT].data);
        bind_packed(&b, Q, p, call->t[HY_ATTENTION_BWD_QKV].data);
        bind(&b, OUT, call->t[HY_ATTENTION_BWD_OUT].data);
        bind(&b, LSE, call->t[HY_ATTENTION_BWD_LSE].data);
        bind_packed(&b, DQ, p, call->t[HY_ATTENTION_BWD_DQKV].data);
        bind(&b, DELTA, call->workspace.data);
        bind(&b, ONE, &one);
    }
    hy_cudnn *cudnn = run->cuda->cudnn;
    void *workspace = (char *)call->workspace.data + p->delta_bytes;
    pthread_mutex_lock(&cudnn->lock);
    int code = hy_cudnn_run(cudnn, p->plan, b.count, b.id, b.data, workspace, run->stream);
    pthread_mutex_unlock(&cudnn->lock);
    *status = code == 0 ? HY_OK : failure(run, code);
    return true;
}

/* ---- creating and destroying ----------------------------------------------------------------- */

void hy_cudnn_attention_init(hy_cuda *cuda) {
    hy_device_facts *facts = &cuda->backend.facts;
    size_t end = strlen(facts->detail);
    char why[256] = "no memory";
    bool is_wanted = cuda->options.attention != HY_ATTENTION_OWN;
    if (!is_wanted || hy_cudnn_create(&cuda->cudnn, why, sizeof why) != HY_OK) {
        snprintf(facts->detail + end, sizeof facts->detail - end, ", attention by our own kernels");
        if (!is_wanted || is_auto(cuda)) return;
        snprintf(facts->warning, sizeof facts->warning,
                 "cuDNN was requested but is not available, so attention uses our own kernels: %s",
                 why);
        return;
    }
    int version = cuda->cudnn->version;
    snprintf(facts->detail + end, sizeof facts->detail - end, ", attention %s cuDNN %d.%d.%d%s",
             is_auto(cuda) ? "by our own kernels or" : "by", version / 10000, version / 100 % 100,
             version % 100, is_auto(cuda) ? ", whichever is faster" : "");
}

void hy_cudnn_attention_fini(hy_cuda *cuda) {
    while (cuda->cudnn && cuda->cudnn->plans) {
        hy_cudnn_attention *p = cuda->cudnn->plans;
        cuda->cudnn->plans = p->next;
        hy_cudnn_graph_fini(&p->graph);
        free(p);
    }
    hy_cudnn_destroy(cuda->cudnn);
    cuda->cudnn = NULL;
}
