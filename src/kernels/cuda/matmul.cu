/* matmul.cu: the matmul op: d = alpha op(a) op(b) + c + bias, with gelu if it is fused.
 *
 * Each call finds its plan, from prepare or by its key. A call without a plan gets the library's
 * first suggestion; prepare times algorithms if tuning is on. prepare does not know the final
 * pointers. A call with less aligned pointers, or with less workspace than its plan needs, gets
 * another plan, so every shape runs. a and b have the same type; d has it, too, or is fp32. A
 * stored b of another type is first cast to a's type, into the workspace; plan and key are those of
 * the matmul after the cast. Alternatively a and b are both fp8, with a scale each, in shapes that
 * the library supports: there is no fallback to our own matmul. A batch-invariant matmul has no
 * plan: it always runs in our own kernels (matmul_rows.cu). */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/matmul.cuh"

/* ---- supported calls ------------------------------------------------------------------------- */

static hy_status check_like_d(const hy_cuda *cuda, const hy_op_call *call, int position) {
    const hy_tensor *t = &call->t[position], *d = &call->t[HY_MATMUL_D];
    if (!hy_has(t) || t->dtype == d->dtype) return HY_OK;
    return hy_cuda_fail(cuda, HY_ERR_INPUT, "matmul: %s is %s, expected %s (the type of d)",
                        cuda->host.tensor_name(HY_OP_MATMUL, position), hy_dtype_name(t->dtype),
                        hy_dtype_name(d->dtype));
}

static hy_status check_types(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_tensor *t = call->t;
    hy_dtype in = t[HY_MATMUL_A].dtype, out = t[HY_MATMUL_D].dtype;
    bool is_fp8 = hy_is_fp8(in); /* the op table says which types can be combined */
    if (!is_fp8 && t[HY_MATMUL_B].dtype != in) {
        return hy_cuda_fail(cuda, HY_ERR_INPUT, "matmul: a is %s and b is %s, expected one type",
                            hy_dtype_name(in), hy_dtype_name(t[HY_MATMUL_B].dtype));
    }
    if (!is_fp8 && out != in && out != HY_F32) {
        return hy_cuda_fail(cuda, HY_ERR_INPUT,
                            "matmul: d is %s, expected %s (the type of a) or fp32",
                            hy_dtype_name(out), hy_dtype_name(in));
    }
    HY_TRY(check_like_d(cuda, call, HY_MATMUL_C));
    HY_TRY(check_like_d(cuda, call, HY_MATMUL_ACT));
    return check_like_d(cuda, call, HY_MATMUL_PRE);
}

/* gelu is fused only if the library supports it; callers use separate ops otherwise. */
static hy_status check_gelu(const hy_cuda *cuda, const hy_matmul_key *key) {
    hy_matmul_plan *plan;
    if (key->gelu == HY_GELU_NONE) return HY_OK;
    if (key->in == HY_F32 || key->out == HY_F32) {
        return hy_cuda_fail(
            cuda, HY_ERR_INPUT,
            "matmul: gelu can be fused only into bf16 and fp16 matmuls, not into %s -> %s",
            hy_dtype_name(key->in), hy_dtype_name(key->out));
    }
    HY_TRY(hy_matmul_plan_find(cuda, key, &plan));
    if (!plan->is_plain) return HY_OK;
    return hy_cuda_fail(cuda, HY_ERR_INPUT,
                        "matmul: cuBLASLt cannot fuse gelu into %lld x %lld x %lld (M x N x K) "
                        "in %s: N must be a multiple of 8, and tensors aligned to 16 bytes",
                        (long long)key->M, (long long)key->N, (long long)key->K,
                        hy_dtype_name(key->in));
}

/* Our own matmul does not support fp8, so shapes that the library does not support are rejected. */
static hy_status check_fp8(const hy_cuda *cuda, const hy_op_call *call, hy_matmul_key key) {
    hy_matmul_plan *plan;
    if (!hy_is_fp8(key.in)) return HY_OK;
    HY_TRY(cuda->host.check_fp8(call, cuda->backend.facts.name, cuda->card.capability));
    key.alignment = 16; /* addresses are known later */
    key.is_lean = false;
    HY_TRY(hy_matmul_plan_find(cuda, &key, &plan));
    if (!plan->is_plain) return HY_OK;
    return hy_cuda_fail(cuda, HY_ERR_INPUT,
                        "matmul: cuBLASLt does not support %lld x %lld x %lld, %s by %s into %s",
                        (long long)key.M, (long long)key.N, (long long)key.K, hy_dtype_name(key.in),
                        hy_dtype_name(key.in_b), hy_dtype_name(key.out));
}

hy_status hy_cuda_matmul_supports(const hy_cuda *cuda, const hy_op_call *given) {
    if (given->attr.matmul.is_batch_invariant) return hy_cuda_matmul_rows_supports(cuda, given);
    hy_op_call call = hy_matmul_behind_cast(given, true);
    HY_TRY(check_types(cuda, &call));
    hy_matmul_key key = hy_matmul_key_of(cuda, &call);
    HY_TRY(check_fp8(cuda, &call, key));
    return check_gelu(cuda, &key);
}

/* ---- creating and destroying ----------------------------------------------------------------- */

hy_status hy_cuda_matmul_init(hy_cuda *cuda) {
    cudaDeviceProp card;
    size_t version = cublasLtGetVersion();
    hy_matmul_plans *plans = (hy_matmul_plans *)calloc(1, sizeof *plans);
    if (!plans)
        return hy_cuda_fail(cuda, HY_ERR_MEMORY, "matmul: not enough memory for the list of plans");
    cuda->plans = plans; /* destroyed with the backend, even after a failure here */
    HY_TRY(hy_matmul_check(cuda, cublasLtCreate(&plans->handle), "starting the library"));
    HY_TRY(hy_cuda_check(cuda, cudaGetDeviceProperties(&card, cuda->options.device),
                         "querying the card's name"));
    snprintf(plans->library, sizeof plans->library, "cuBLASLt %zu.%zu.%zu", version / 10000,
             version / 100 % 100, version % 100);
    /* Card and library version in one word: the scope of an algorithm. */
    snprintf(plans->scope, sizeof plans->scope, "%.56s/sm_%d/%d/cublasLt-%zu", card.name,
             cuda->card.capability, cuda->card.multiprocessors, version);
    for (char *c = plans->scope; *c; c++) {
        if (*c == ' ' || *c == '\t') *c = '_';
    }
    hy_matmul_cache_read(cuda);
    return HY_OK;
}

void hy_cuda_matmul_fini(hy_cuda *cuda) {
    hy_matmul_plans *plans = cuda->plans;
    if (!plans) return;
    hy_matmul_cache_write(cuda);
    hy_matmul_cache_free(cuda);
    while (plans->first) {
        hy_matmul_plan *plan = plans->first;
        plans->first = plan->next;
        free(plan);
    }
    if (plans->handle) cublasLtDestroy(plans->handle);
    free(plans);
    cuda->plans = NULL;
}

/* ---- planning -------------------------------------------------------------------------------- */

hy_status hy_cuda_matmul_prepare(hy_cuda *cuda, hy_op_call *call) {
    hy_matmul_plan *plan;
    if (call->attr.matmul.is_batch_invariant) return HY_OK;
    hy_op_call plain = hy_matmul_behind_cast(call, true);
    hy_matmul_key key = hy_matmul_key_of(cuda, &plain);
    HY_TRY(check_types(cuda, &plain));
    HY_TRY(hy_matmul_plan_find(cuda, &key, &plan));
    bool is_better_known = plan->level >= (hy_matmul_level)cuda->options.tune;
    if (!plan->is_prepared && !plan->is_plain && !is_better_known) {
        HY_TRY(hy_matmul_tune(cuda, plan, cuda->options.tune));
        hy_matmul_cache_add(cuda, plan);
    }
    plan->is_prepared = true;
    call->plan = plan;
    return HY_OK;
}

/* The timing does not include the cast of a stored weight. */
double hy_cuda_matmul_seconds(const hy_op_call *call) {
    const hy_matmul_plan *plan = (const hy_matmul_plan *)call->plan;
    if (!plan || hy_matmul_cast_bytes(call, true) > 0) return 0;
    return (double)plan->microseconds * 1e-6;
}

/* Before prepare has chosen, any algorithm is possible: the maximum workspace. The addresses do not
 * matter: less aligned calls use no workspace. The same holds for a call with a plan for another
 * shape (a short last chunk) that brings too little. */
static size_t plain_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_matmul_plan *given = (const hy_matmul_plan *)call->plan;
    hy_matmul_key key = hy_matmul_key_of(cuda, call);
    if (given) return hy_matmul_key_equal(&given->key, &key) ? hy_matmul_plan_bytes(given) : 0;
    key.alignment = 16;
    key.is_lean = false;
    for (const hy_matmul_plan *plan = cuda->plans->first; plan; plan = plan->next) {
        if (plan->is_prepared && hy_matmul_key_equal(&plan->key, &key)) {
            return hy_matmul_plan_bytes(plan);
        }
    }
    size_t bias_bytes = key.has_bias ? (size_t)(key.N * 4 + 255) / 256 * 256 : 0;
    return hy_matmul_most_bytes(cuda) + bias_bytes;
}

size_t hy_cuda_matmul_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    if (call->attr.matmul.is_batch_invariant) return 0;
    hy_op_call plain = hy_matmul_behind_cast(call, true);
    return hy_matmul_cast_bytes(call, true) + plain_workspace(cuda, &plain);
}

/* ---- running --------------------------------------------------------------------------------- */

static hy_status find_plan(const hy_cuda *cuda, const hy_op_call *call, size_t workspace_bytes,
                           hy_matmul_plan **out) {
    hy_matmul_key key = hy_matmul_key_of(cuda, call);
    hy_matmul_plan *plan = (hy_matmul_plan *)call->plan;
    if (!plan || !hy_matmul_key_equal(&plan->key, &key)) {
        HY_TRY(hy_matmul_plan_find(cuda, &key, &plan));
    }
    if (hy_matmul_plan_bytes(plan) > workspace_bytes) {
        key.is_lean = true;
        HY_TRY(hy_matmul_plan_find(cuda, &key, &plan));
    }
    plan->is_prepared = true;
    *out = plan;
    return HY_OK;
}

hy_status hy_cuda_matmul(const hy_cuda_run *run) {
    if (run->call->attr.matmul.is_batch_invariant) return hy_cuda_matmul_rows(run);
    hy_op_call plain = hy_matmul_behind_cast(run->call, true);
    const hy_op_call *call = &plain;
    const hy_tensor *t = call->t;
    hy_matmul_plan *plan;
    hy_matmul_args args = {};
    HY_TRY(check_types(run->cuda, call));
    if (hy_matmul_cast_bytes(run->call, true) > 0) {
        hy_op_call cast = {};
        cast.kind = HY_OP_CAST;
        cast.t[HY_CAST_SRC] = run->call->t[HY_MATMUL_B], cast.t[HY_CAST_DST] = t[HY_MATMUL_B];
        hy_cuda_run before = {&cast, run->cuda, run->stream};
        HY_TRY(hy_cuda_cast(&before));
    }
    if (hy_has(&t[HY_MATMUL_PRE]) && t[HY_MATMUL_PRE].data == t[HY_MATMUL_D].data) {
        return hy_cuda_fail(
            run->cuda, HY_ERR_INPUT,
            "matmul: pre and d share memory; the library reads pre after writing d");
    }
    args.a = t[HY_MATMUL_A].data, args.b = t[HY_MATMUL_B].data, args.d = t[HY_MATMUL_D].data;
    args.a_scale = t[HY_MATMUL_A].quant.scale, args.b_scale = t[HY_MATMUL_B].quant.scale;
    args.bias = t[HY_MATMUL_BIAS].data;
    args.c = call->attr.accumulate ? t[HY_MATMUL_D].data : t[HY_MATMUL_C].data;
    args.act = t[HY_MATMUL_ACT].data, args.pre = t[HY_MATMUL_PRE].data;
    args.workspace = call->workspace.data;
    args.workspace_bytes = args.workspace ? (size_t)hy_tensor_count(&call->workspace) : 0;
    args.alpha = call->attr.matmul.alpha;
    args.beta = args.c ? 1.0f : 0.0f;
    args.batch = hy_matmul_batch(call);
    HY_TRY(find_plan(run->cuda, call, args.workspace_bytes, &plan));
    HY_TRY(hy_matmul_launch(run->cuda, plan, &args, run->stream));
    return hy_cuda_launched(run);
}
