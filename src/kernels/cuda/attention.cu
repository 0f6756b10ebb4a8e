/* attention.cu: selects the kernels for an attention call, and launches the forward tiles.
 *
 * 16-bit types with the usual head sizes use tensor cores (attention_tiles.cuh forward,
 * attention_bwd.cu backward). fp32, other head sizes, mixed types and old cards use the plain
 * kernels of attention_generic.cu. Both directions choose in the same way. Head sizes over 256 are
 * rejected. */
#include "kernels/attention_layout.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_cudnn.cuh"
#include "kernels/cuda/attention_tiles.cuh"

enum { HY_ATTENTION_HEAD_LIMIT = 256 };

/* ---- choosing the kernels -------------------------------------------------------------------- */

/* Whether qkv, out and their gradients have the same 16-bit type. */
static bool is_one_narrow_type(const hy_op_call *call) {
    static const int forward[] = {HY_ATTENTION_QKV, HY_ATTENTION_OUT};
    static const int backward[] = {HY_ATTENTION_BWD_DOUT, HY_ATTENTION_BWD_QKV,
                                   HY_ATTENTION_BWD_OUT, HY_ATTENTION_BWD_DQKV};
    bool is_forward = call->kind == HY_OP_ATTENTION;
    const int *large = is_forward ? forward : backward;
    hy_dtype dtype = call->t[large[0]].dtype;
    for (int i = 1; i < (is_forward ? 2 : 4); i++) {
        if (call->t[large[i]].dtype != dtype) return false;
    }
    return dtype == HY_BF16 || dtype == HY_F16;
}

/* Tiles address rows of qkv by 32-bit numbers of 16-byte chunks. Maxima are taken before scaling,
 * so the scale must not be negative. */
bool hy_cuda_attention_is_fast(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_heads_attr *a = &call->attr.heads;
    int64_t rows = (int64_t)a->batch * a->seq, heads = a->heads + 2 * (int64_t)a->kv_heads;
    return cuda->card.capability >= 80 && hy_attention_has_tiles(a) && is_one_narrow_type(call) &&
           rows * heads * a->head_dim / 8 <= UINT32_MAX && a->scale > 0;
}

hy_status hy_cuda_attention_supports(const hy_cuda *cuda, const hy_op_call *call) {
    if (call->attr.heads.head_dim <= HY_ATTENTION_HEAD_LIMIT) return HY_OK;
    return hy_cuda_fail(cuda, HY_ERR_INPUT, "%s: head_dim is %d, expected at most %d on a GPU",
                        cuda->host.op_name(call->kind), (int)call->attr.heads.head_dim,
                        (int)HY_ATTENTION_HEAD_LIMIT);
}

/* ---- forward on tiles ------------------------------------------------------------------------ */

/* The number of heads that run together: enough to keep every multiprocessor busy many times over,
 * so that the long tiles of the last group begin well before its short ones end; but no more,
 * because heads that run together share keys and values in the L2 cache. */
static int heads_together(const hy_cuda *cuda, const hy_cuda_heads *a, int tiles, int blocks) {
    int64_t heads = (int64_t)a->B * a->H, wanted = (int64_t)cuda->card.multiprocessors * blocks * 8;
    int64_t groups = heads * tiles / (wanted > 0 ? wanted : 1);
    return (int)hy_ceil_div(heads, groups > 0 ? groups : 1);
}

template <typename S, typename T, bool IS_CAPPED = false, bool IS_SPARSE = false>
static hy_status launch_tiles(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t;
    hy_cuda_heads a = hy_cuda_heads_of(run->call);
    uint32_t width = (uint32_t)(a.H + 2 * a.K) * S::CHUNKS;
    hy_attention_grid grid = {};
    grid.tiles = (int)hy_ceil_div(a.T, S::BM);
    grid.group = heads_together(run->cuda, &a, grid.tiles, S::BLOCKS);
    grid.apart = S::ROWS_APART * width;
    grid.to_values = (uint32_t)a.K * S::CHUNKS;
    grid.to_tile = S::BN * width;
    grid.scale = (IS_CAPPED ? a.softcap : a.scale) * HY_LOG2E;
    grid.inner = IS_CAPPED ? a.scale / a.softcap : 0;
    return hy_launch_with_shared(run, hy_attention_kernel<S, T, IS_CAPPED, IS_SPARSE>,
                                 (int64_t)grid.tiles * a.B * a.H, S::THREADS,
                                 S::SHARED_BYTES + (IS_SPARSE ? sizeof(hy_sparse_keys<S>) : 0),
                                 (const T *)t[HY_ATTENTION_QKV].data, (T *)t[HY_ATTENTION_OUT].data,
                                 (float *)t[HY_ATTENTION_LSE].data, a, grid);
}

/* Shapes: head size, BM, BN, SN, warps, stages, blocks, steps of q in registers. The first of two
 * was fastest on an H200; the second allows several blocks to share the 100 KB of a smaller
 * multiprocessor. Capped scores take more registers, and so do gaps. */
template <typename T> static hy_status launch_capped(const hy_cuda_run *run, bool is_roomy) {
    if (run->call->attr.heads.head_dim == 128) {
        return is_roomy
                   ? launch_tiles<hy_attention_shape<128, 128, 64, 32, 4, 2, 2, 0>, T, true>(run)
                   : launch_tiles<hy_attention_shape<128, 64, 32, 32, 4, 2, 2, 8>, T, true>(run);
    }
    return is_roomy ? launch_tiles<hy_attention_shape<256, 64, 32, 32, 4, 2, 2, 0>, T, true>(run)
                    : launch_tiles<hy_attention_shape<256, 64, 16, 16, 4, 3, 2, 16>, T, true>(run);
}

template <typename T, bool SPARSE> static hy_status launch_head_size(const hy_cuda_run *run) {
    bool is_roomy = run->cuda->card.shared_bytes >= 200 * 1024;
    switch (run->call->attr.heads.head_dim) {
    case 64:
        return launch_tiles<hy_attention_shape<64, 128, 64, 32, 4, 2, 3, SPARSE ? 3 : 4>, T, false,
                            SPARSE>(run);
    case 80:
        return launch_tiles<hy_attention_shape<80, 128, 64, 64, 4, 2, 2, 5>, T, false, SPARSE>(run);
    case 96:
        return is_roomy ? launch_tiles<hy_attention_shape<96, 128, 64, 64, 4, 2, 2, 6>, T, false,
                                       SPARSE>(run)
                        : launch_tiles<hy_attention_shape<96, 128, 32, 32, 4, 3, 2, 6>, T, false,
                                       SPARSE>(run);
    case 128:
        return is_roomy ? launch_tiles<hy_attention_shape<128, 128, 64, 64, 4, 2, 2, 0>, T, false,
                                       SPARSE>(run)
                        : launch_tiles<hy_attention_shape<128, 64, 32, 32, 4, 2, 3, 8>, T, false,
                                       SPARSE>(run);
    default:
        return is_roomy ? launch_tiles<hy_attention_shape<256, 64, 32, 32, 4, 2, 2, 0>, T, false,
                                       SPARSE>(run)
                        : launch_tiles<hy_attention_shape<256, 64, 16, 16, 4, 3, 2, 16>, T, false,
                                       SPARSE>(run);
    }
}

template <typename T> static hy_status launch_type(const hy_cuda_run *run) {
    const hy_heads_attr *a = &run->call->attr.heads;
    if (a->softcap > 0) return launch_capped<T>(run, run->cuda->card.shared_bytes >= 200 * 1024);
    return hy_heads_are_sparse(a) ? launch_head_size<T, true>(run)
                                  : launch_head_size<T, false>(run);
}

hy_status hy_cuda_attention_tiles(const hy_cuda_run *run) {
    if (run->call->t[HY_ATTENTION_QKV].dtype == HY_BF16) return launch_type<__nv_bfloat16>(run);
    return launch_type<__half>(run);
}

/* ---- entries --------------------------------------------------------------------------------- */

hy_status hy_cuda_attention(const hy_cuda_run *run) {
    hy_status status = HY_OK;
    if (!hy_cuda_attention_is_fast(run->cuda, run->call)) return hy_cuda_attention_generic(run);
    return hy_cudnn_attention_runs(run, &status) ? status : hy_cuda_attention_tiles(run);
}

hy_status hy_cuda_attention_bwd(const hy_cuda_run *run) {
    hy_status status = HY_OK;
    if (!hy_cuda_attention_is_fast(run->cuda, run->call)) return hy_cuda_attention_bwd_generic(run);
    return hy_cudnn_attention_runs(run, &status) ? status : hy_cuda_attention_bwd_tiles(run);
}

/* If the choice is made by timing, room for either. */
size_t hy_cuda_attention_bwd_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    if (!hy_cuda_attention_is_fast(cuda, call)) {
        return hy_cuda_attention_bwd_generic_workspace(cuda, call);
    }
    size_t by_cudnn = hy_cudnn_attention_workspace(cuda, call);
    size_t own = hy_cuda_attention_bwd_tiles_workspace(cuda, call);
    bool is_own = by_cudnn == 0 || (cuda->options.attention == HY_ATTENTION_AUTO && own > by_cudnn);
    return is_own ? own : by_cudnn;
}
