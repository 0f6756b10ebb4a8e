/* matmul_plan.cu: plans of the matmul: key, descriptors of cuBLASLt, algorithm, launch.
 *
 * The library is column-major. A row-major (rows, cols) is a column-major (cols, rows), so d =
 * op(a) op(b) is requested as d' = op(b)' op(a)': b is the left operand, a the right one, and the
 * bias along N follows the columns of the result, as the library requires. Alpha and beta are
 * passed at launch, so one plan serves overwriting and accumulating.
 *
 * Bits: an algorithm with its own workspace always sums in one order. Split-K algorithms may reduce
 * only in fp32: "in place" and, for 16-bit results, "output type" round each partial sum to the
 * type of d. There is one more rounding than in our own matmul, only for 16-bit results: the
 * library may round the product before it adds a c that is d itself, and in odd shapes before it
 * adds both c and bias. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/matmul.cuh"

enum { ALIGNMENT = 16 }; /* bytes; required by vector loads and TMA, more never helps */

/* The library may report a launch without memory as an internal error or a failed execution; the
 * runtime has the real error. */
hy_status hy_matmul_check(const hy_cuda *cuda, cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return HY_OK;
    cudaError_t behind = cudaPeekAtLastError();
    bool is_memory = status == CUBLAS_STATUS_ALLOC_FAILED || behind == cudaErrorMemoryAllocation;
    /* this also clears the error */
    hy_cuda_check(cuda, is_memory ? cudaErrorMemoryAllocation : behind, what);
    return hy_cuda_fail(cuda, is_memory ? HY_ERR_MEMORY : HY_ERR_DEVICE, "cuBLASLt: %s: %s", what,
                        cublasLtGetStatusString(status));
}

/* ---- keys ------------------------------------------------------------------------------------ */

hy_matmul_key hy_matmul_key_of(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_tensor *t = call->t;
    hy_matmul_key key = {};
    int64_t batch = hy_matmul_batch(call);
    key.batch = call->attr.matmul.batch_most;
    key.M = hy_height(&t[HY_MATMUL_D]) / batch, key.N = hy_width(&t[HY_MATMUL_D]);
    key.trans_a = call->attr.matmul.trans_a, key.trans_b = call->attr.matmul.trans_b;
    key.K = key.trans_a ? hy_height(&t[HY_MATMUL_A]) / batch : hy_width(&t[HY_MATMUL_A]);
    key.in = t[HY_MATMUL_A].dtype, key.in_b = t[HY_MATMUL_B].dtype, key.out = t[HY_MATMUL_D].dtype;
    key.has_bias = hy_has(&t[HY_MATMUL_BIAS]), key.has_c = hy_has(&t[HY_MATMUL_C]);
    key.bias = key.has_bias ? t[HY_MATMUL_BIAS].dtype : key.out;
    key.gelu = hy_has(&t[HY_MATMUL_ACT])   ? HY_GELU_KEEP
               : hy_has(&t[HY_MATMUL_PRE]) ? HY_GELU_BACK
               : call->attr.matmul.is_gelu ? HY_GELU_ONLY
                                           : HY_GELU_NONE;
    uintptr_t bits = ALIGNMENT;
    for (int i = 0; i <= HY_MATMUL_PRE; i++) bits |= (uintptr_t)t[i].data;
    if (key.batch > 0) { /* the distance of matrices, even if there is only one */
        bits |= (uintptr_t)(key.M * key.K * (int64_t)hy_dtype_size(key.in));
        bits |= (uintptr_t)(key.K * key.N * (int64_t)hy_dtype_size(key.in_b));
        bits |= (uintptr_t)(key.M * key.N * (int64_t)hy_dtype_size(key.out));
    }
    key.alignment = (int)(bits & (~bits + 1)); /* the lowest set bit */
    /* cuBLASLt accepts only an aligned bias. Alignment 1 stands for one that is not aligned. */
    if ((uintptr_t)t[HY_MATMUL_BIAS].data % ALIGNMENT != 0) key.alignment = 1;
    key.is_lean = key.alignment < ALIGNMENT; /* workspace is requested before pointers are known */
    key.is_tf32 = key.in == HY_F32 && cuda->options.allow_tf32;
    key.is_fast = hy_is_fp8(key.in) && call->attr.matmul.is_fast;
    return key;
}

bool hy_matmul_key_equal(const hy_matmul_key *a, const hy_matmul_key *b) {
    return a->M == b->M && a->N == b->N && a->K == b->K && a->trans_a == b->trans_a &&
           a->trans_b == b->trans_b && a->in == b->in && a->in_b == b->in_b && a->out == b->out &&
           a->has_bias == b->has_bias && a->has_c == b->has_c && a->bias == b->bias &&
           a->gelu == b->gelu && a->alignment == b->alignment && a->is_tf32 == b->is_tf32 &&
           a->is_fast == b->is_fast && a->is_lean == b->is_lean && a->batch == b->batch;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static cudaDataType_t cuda_type(hy_dtype dtype) {
    switch (dtype) {
    case HY_F32: return CUDA_R_32F;
    case HY_BF16: return CUDA_R_16BF;
    case HY_E4M3: return CUDA_R_8F_E4M3;
    case HY_E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_16F;
    }
}

/* The type of d; in fp8, an fp32 d has a bf16 bias. */
hy_dtype hy_matmul_bias_type(const hy_matmul_key *key) {
    return hy_is_fp8(key->in) && key->out == HY_F32 ? HY_BF16 : key->out;
}

static bool has_aux(const hy_matmul_key *key) {
    return key->gelu == HY_GELU_KEEP || key->gelu == HY_GELU_BACK;
}

/* The key for the library. */
static hy_matmul_key library_key(const hy_matmul_plan *plan) {
    hy_matmul_key key = plan->key;
    if (plan->is_apart) key.gelu = HY_GELU_NONE;
    return key;
}

static cublasLtEpilogue_t epilogue_of(const hy_matmul_key *key) {
    switch (key->gelu) {
    case HY_GELU_ONLY: return key->has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case HY_GELU_KEEP:
        return key->has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case HY_GELU_BACK: return CUBLASLT_EPILOGUE_DGELU;
    default: return key->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

template <typename T>
static cublasStatus_t set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                          T value) {
    return cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value);
}

static cublasStatus_t describe_batch(cublasLtMatrixLayoutOpaque_t *matrix, int32_t batch) {
    return cublasLtMatrixLayoutSetAttribute(matrix, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                            sizeof batch);
}

static cublasStatus_t describe_matrix(cublasLtMatrixLayoutOpaque_t *out, hy_dtype dtype,
                                      int64_t rows, int64_t cols, int32_t batch) {
    int64_t apart = rows * cols;
    cublasStatus_t s =
        cublasLtMatrixLayoutInit(out, cuda_type(dtype), (uint64_t)cols, (uint64_t)rows, cols);
    if (s || batch == 0) return s;
    s = cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &apart,
                                         sizeof apart);
    return s ? s : describe_batch(out, batch);
}

/* A scale for each operand, in device memory. */
static cublasStatus_t describe_scales(cublasLtMatmulDesc_t operation, const void *left,
                                      const void *right) {
    cublasStatus_t s = set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, left);
    return s ? s : set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, right);
}

static cublasStatus_t describe_fp8(cublasLtMatmulDesc_t operation, bool is_fast,
                                   const void *somewhere) {
    cublasStatus_t s = set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, (int8_t)is_fast);
    return s ? s : describe_scales(operation, somewhere, somewhere);
}

static hy_status describe(const hy_cuda *cuda, hy_matmul_plan *plan) {
    const hy_matmul_key own = library_key(plan), *key = &own;
    /* Only the place matters for the search of algorithms; launch sets the real address. */
    const void *somewhere = (const void *)(uintptr_t)256;
    cublasLtMatmulDesc_t operation = &plan->operation;
    cublasStatus_t s = cublasLtMatmulDescInit(
        operation, key->is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasOperation_t left = key->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t right = key->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (!s) s = set(operation, CUBLASLT_MATMUL_DESC_TRANSA, left);
    if (!s) s = set(operation, CUBLASLT_MATMUL_DESC_TRANSB, right);
    if (!s) s = set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key));
    if (!s && key->has_bias) {
        int32_t type = (int32_t)cuda_type(hy_matmul_bias_type(key));
        s = set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
        if (!s) s = set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere);
    }
    if (!s && has_aux(key)) {
        s = set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)key->N);
        if (!s) s = set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, somewhere);
    }
    if (!s && hy_is_fp8(key->in)) s = describe_fp8(operation, key->is_fast, somewhere);
    int64_t M = key->M, N = key->N, K = key->K;
    int64_t left_rows = key->trans_b ? N : K, right_rows = key->trans_a ? K : M;
    int32_t batch = key->batch;
    if (!s) s = describe_matrix(&plan->left, key->in_b, left_rows, K * N / left_rows, batch);
    if (!s) s = describe_matrix(&plan->right, key->in, right_rows, M * K / right_rows, batch);
    if (!s) s = describe_matrix(&plan->result, key->out, M, N, batch);
    return hy_matmul_check(cuda, s, "describing a matmul");
}

/* ---- algorithms ------------------------------------------------------------------------------ */

/* Kernels for Hopper and later use it for split-K of long sums; earlier ones need little. */
size_t hy_matmul_most_bytes(const hy_cuda *cuda) {
    return cuda->card.capability >= 90 ? (size_t)32 << 20 : (size_t)8 << 20;
}

/* Split-K applies bias and gelu in a separate step, after the sum was rounded to the type of d. */
static uint32_t reductions_of(const hy_matmul_key *key) {
    /* bits must not depend on the number */
    if (key->batch > 0) return CUBLASLT_REDUCTION_SCHEME_NONE;
    if (key->out == HY_F32) {
        return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    }
    bool has_more_to_do = key->has_bias || key->gelu != HY_GELU_NONE;
    return has_more_to_do ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/* The preference is already a filter; an algorithm from a file has not passed it. */
static bool is_allowed(const hy_matmul_key *key, const cublasLtMatmulAlgo_t *algorithm) {
    uint32_t reduction = 0;
    size_t written;
    if (cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                             &reduction, sizeof reduction, &written)) {
        return false;
    }
    if (reduction & ~reductions_of(key)) return false;
    if (!key->has_c) return true;
    int32_t takes_other_c = 1;
    cublasLtMatmulAlgoCapGetAttribute(algorithm, CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT,
                                      &takes_other_c, sizeof takes_other_c, &written);
    return takes_other_c;
}

template <typename T>
static cublasStatus_t prefer(cublasLtMatmulPreference_t preference,
                             cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
}

static cublasStatus_t state_preference(const hy_cuda *cuda, const hy_matmul_key *key,
                                       cublasLtMatmulPreference_t preference) {
    uint32_t alignment = (uint32_t)key->alignment;
    uint64_t bytes = key->is_lean ? 0 : hy_matmul_most_bytes(cuda);
    cublasStatus_t s = cublasLtMatmulPreferenceInit(preference);
    if (!s) s = prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes);
    if (!s) s = prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions_of(key));
    if (!s) s = prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    if (!s) s = prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment);
    if (!s) s = prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment);
    if (!s) s = prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment);
    return s;
}

int hy_matmul_guess(const hy_cuda *cuda, const hy_matmul_plan *plan,
                    cublasLtMatmulHeuristicResult_t *out, int most) {
    hy_matmul_plan p = *plan; /* the library takes descriptors without const */
    cublasLtMatmulPreferenceOpaque_t preference;
    int found = 0, kept = 0;
    if (state_preference(cuda, &p.key, &preference) ||
        cublasLtMatmulAlgoGetHeuristic(cuda->plans->handle, &p.operation, &p.left, &p.right,
                                       &p.result, &p.result, &preference, most, out, &found)) {
        return 0;
    }
    for (int i = 0; i < found; i++) {
        if (out[i].state == CUBLAS_STATUS_SUCCESS && is_allowed(&p.key, &out[i].algo)) {
            out[kept++] = out[i];
        }
    }
    return kept;
}

bool hy_matmul_fits(const hy_cuda *cuda, const hy_matmul_plan *plan,
                    const cublasLtMatmulAlgo_t *algorithm, size_t *bytes) {
    hy_matmul_plan p = *plan;
    cublasLtMatmulHeuristicResult_t result = {};
    if (cublasLtMatmulAlgoCheck(cuda->plans->handle, &p.operation, &p.left, &p.right, &p.result,
                                &p.result, algorithm, &result)) {
        return false;
    }
    *bytes = result.workspaceSize;
    return is_allowed(&p.key, algorithm) &&
           *bytes <= (p.key.is_lean ? 0 : hy_matmul_most_bytes(cuda));
}

/* Checks an algorithm that was stored as text: is it valid, and does it fit? */
static bool take_recalled(const hy_cuda *cuda, hy_matmul_plan *plan) {
    const hy_matmul_entry *entry = hy_matmul_recall(cuda, &plan->key);
    hy_matmul_plan apart;
    if (entry && entry->is_apart) {
        if (!hy_matmul_plan_apart(cuda, plan, &apart)) return false;
        if (!hy_matmul_fits(cuda, &apart, &entry->algorithm, &apart.algorithm_bytes)) return false;
        *plan = apart;
    } else if (!entry || !hy_matmul_fits(cuda, plan, &entry->algorithm, &plan->algorithm_bytes)) {
        plan->algorithm_bytes = 0;
        return false;
    }
    plan->algorithm = entry->algorithm;
    plan->level = entry->level;
    plan->microseconds = entry->microseconds;
    return true;
}

hy_status hy_matmul_plan_make(const hy_cuda *cuda, const hy_matmul_key *key, hy_matmul_plan *plan) {
    cublasLtMatmulHeuristicResult_t guess;
    memset(plan, 0, sizeof *plan);
    plan->key = *key;
    /* The library needs a bias of its own type; another type is first converted into the
     * workspace. */
    hy_dtype bias_type = hy_matmul_bias_type(key);
    if (key->has_bias && key->bias != bias_type) {
        plan->bias_bytes = ((size_t)key->N * hy_dtype_size(bias_type) + 255) / 256 * 256;
    }
    /* Cases that always use our own matmul: the library's gelu needs aligned rows, and a bias of
     * another type needs workspace, which a lean plan does not have. */
    plan->is_plain = key->alignment == 1 || (key->is_lean && plan->bias_bytes > 0) ||
                     (has_aux(key) && (key->N % 8 != 0 || key->alignment < ALIGNMENT));
    if (!plan->is_plain) HY_TRY(describe(cuda, plan));
    if (!plan->is_plain && !take_recalled(cuda, plan)) {
        plan->is_plain = hy_matmul_guess(cuda, plan, &guess, 1) == 0;
        if (!plan->is_plain) {
            plan->algorithm = guess.algo;
            plan->algorithm_bytes = guess.workspaceSize;
        }
    }
    if (plan->is_plain) plan->bias_bytes = 0;
    return HY_OK;
}

bool hy_matmul_plan_apart(const hy_cuda *cuda, const hy_matmul_plan *fused, hy_matmul_plan *out) {
    cublasLtMatmulHeuristicResult_t guess;
    *out = *fused;
    out->is_apart = true;
    if (describe(cuda, out) != HY_OK || hy_matmul_guess(cuda, out, &guess, 1) == 0) return false;
    out->algorithm = guess.algo;
    out->algorithm_bytes = guess.workspaceSize;
    return true;
}

size_t hy_matmul_plan_bytes(const hy_matmul_plan *plan) {
    return plan->bias_bytes + plan->algorithm_bytes;
}

/* ---- the list -------------------------------------------------------------------------------- */

hy_status hy_matmul_plan_find(const hy_cuda *cuda, const hy_matmul_key *key, hy_matmul_plan **out) {
    hy_matmul_plan **at = &cuda->plans->first;
    while (*at && !hy_matmul_key_equal(&(*at)->key, key)) at = &(*at)->next;
    if (!*at) {
        hy_matmul_plan *plan = (hy_matmul_plan *)malloc(sizeof *plan);
        if (!plan) return hy_cuda_fail(cuda, HY_ERR_MEMORY, "matmul: not enough memory for a plan");
        hy_status status = hy_matmul_plan_make(cuda, key, plan);
        if (status != HY_OK) {
            free(plan);
            return status;
        }
        *at = plan;
    }
    hy_matmul_plan *found = *at; /* becomes the first: prompts of many lengths leave many plans */
    *at = found->next;
    found->next = cuda->plans->first;
    *out = cuda->plans->first = found;
    return HY_OK;
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* d = gelu'(pre) d */
static hy_status launch_gelu_back(const hy_cuda *cuda, const hy_matmul_key *key,
                                  const hy_matmul_args *args, cudaStream_t stream) {
    hy_op_call call = {};
    call.kind = HY_OP_GELU_BWD;
    hy_tensor d = hy_tensor_2d(args->d, key->out, key->M, key->N);
    call.t[HY_GELU_BWD_DY] = call.t[HY_GELU_BWD_DX] = d;
    call.t[HY_GELU_BWD_X] = hy_tensor_2d((void *)args->pre, key->out, key->M, key->N);
    hy_cuda_run run = {&call, (hy_cuda *)cuda, stream};
    return hy_cuda_gelu_bwd(&run);
}

/* One launch, with at most the batch of its key. With act, the library's result is act, and its
 * input is the auxiliary output: d. */
static hy_status launch(const hy_cuda *cuda, const hy_matmul_plan *plan, const hy_matmul_args *args,
                        cudaStream_t stream) {
    const hy_matmul_key own = library_key(plan), *key = &own;
    if (plan->is_plain && hy_is_fp8(key->in)) {
        return hy_cuda_fail(cuda, HY_ERR_INPUT,
                            "matmul: cuBLASLt does not support %lld x %lld x %lld in fp8 with this "
                            "alignment and workspace",
                            (long long)key->M, (long long)key->N, (long long)key->K);
    }
    if (plan->is_plain) {
        hy_matmul_plain(key, args, stream);
        return HY_OK;
    }
    hy_matmul_plan p = *plan; /* a copy of the descriptors, to set pointers in */
    char *workspace = (char *)args->workspace;
    const void *bias = args->bias;
    if (plan->bias_bytes > 0) {
        hy_matmul_convert_bias(bias, key->bias, workspace, hy_matmul_bias_type(key), key->N,
                               stream);
        bias = workspace;
        workspace += plan->bias_bytes;
    }
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    if (bias) s = set(&p.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (!s && has_aux(key)) {
        const void *aux = key->gelu == HY_GELU_KEEP ? args->d : args->pre;
        s = set(&p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    }
    if (!s && hy_is_fp8(key->in)) s = describe_scales(&p.operation, args->b_scale, args->a_scale);
    cublasLtMatrixLayoutOpaque_t *const matrices[] = {&p.left, &p.right, &p.result};
    for (int i = 0; i < 3 && !s && key->batch > 0; i++) {
        s = describe_batch(matrices[i], (int32_t)args->batch);
    }
    void *result = key->gelu == HY_GELU_KEEP ? args->act : args->d;
    const void *c = args->beta != 0 ? args->c : result;
    if (!s) {
        s = cublasLtMatmul(cuda->plans->handle, &p.operation, &args->alpha, args->b, &p.left,
                           args->a, &p.right, &args->beta, c, &p.result, result, &p.result,
                           &p.algorithm, plan->algorithm_bytes ? workspace : NULL,
                           plan->algorithm_bytes, stream);
    }
    HY_TRY(hy_matmul_check(cuda, s, "running a matmul"));
    return plan->is_apart ? launch_gelu_back(cuda, key, args, stream) : HY_OK;
}

/* Advances to the next matrices of a batch. */
static void skip_matrices(const hy_matmul_key *key, hy_matmul_args *args, int64_t count) {
    int64_t a = count * key->M * key->K * (int64_t)hy_dtype_size(key->in);
    int64_t b = count * key->K * key->N * (int64_t)hy_dtype_size(key->in_b);
    int64_t d = count * key->M * key->N * (int64_t)hy_dtype_size(key->out);
    args->a = (const char *)args->a + a;
    args->b = (const char *)args->b + b;
    args->d = (char *)args->d + d;
    if (args->c) args->c = (const char *)args->c + d;
}

hy_status hy_matmul_launch(const hy_cuda *cuda, const hy_matmul_plan *plan,
                           const hy_matmul_args *args, cudaStream_t stream) {
    hy_matmul_args part = *args;
    int64_t most = plan->is_plain ? 1 : plan->key.batch;
    if (plan->key.batch == 0) return launch(cuda, plan, args, stream);
    for (int64_t left = args->batch; left > 0; left -= part.batch) {
        part.batch = left < most ? left : most;
        HY_TRY(launch(cuda, plan, &part, stream));
        skip_matrices(&plan->key, &part, part.batch);
    }
    return HY_OK;
}
