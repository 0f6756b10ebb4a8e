/* delta.cu: selects the kernels for a call of the gated delta rule, and launches them.
 *
 * 16-bit types with head sizes of up to 128 use tensor cores (delta_chunk.cuh, delta_steps.cuh,
 * delta_grads.cuh), other calls and old cards the plain kernels (delta_plain.cuh). fp16 is converted
 * to bf16 first: only results are rounded to fp16. Results do not depend on how many warps a block
 * has, because warps share nothing but loads. */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/delta_grads.cuh"
#include "kernels/cuda/delta_plain.cuh"
#include "kernels/cuda/delta_steps.cuh"

/* ---- arguments ------------------------------------------------------------------------------- */

/* The positions of a kind's tensors; -1: none. */
typedef struct delta_places {
    int qkv, gates, a_log, dt_bias, doc_starts, out, dout, dqkv, dgates, state, first, slots;
} delta_places;

static delta_places places_of(hy_op_kind kind) {
    if (kind == HY_OP_DELTA)
        return {HY_DELTA_QKV,
                HY_DELTA_GATES,
                HY_DELTA_A_LOG,
                HY_DELTA_DT_BIAS,
                HY_DELTA_DOC_STARTS,
                HY_DELTA_OUT,
                -1,
                -1,
                -1,
                -1,
                -1,
                -1};
    if (kind == HY_OP_DELTA_BWD)
        return {HY_DELTA_BWD_QKV,
                HY_DELTA_BWD_GATES,
                HY_DELTA_BWD_A_LOG,
                HY_DELTA_BWD_DT_BIAS,
                HY_DELTA_BWD_DOC_STARTS,
                -1,
                HY_DELTA_BWD_DOUT,
                HY_DELTA_BWD_DQKV,
                HY_DELTA_BWD_DGATES,
                -1,
                -1,
                -1};
    return {HY_DELTA_CACHED_QKV,
            HY_DELTA_CACHED_GATES,
            HY_DELTA_CACHED_A_LOG,
            HY_DELTA_CACHED_DT_BIAS,
            -1,
            HY_DELTA_CACHED_OUT,
            -1,
            -1,
            -1,
            HY_DELTA_CACHED_STATE,
            HY_DELTA_CACHED_FIRST,
            HY_DELTA_CACHED_SLOTS};
}

static hy_plain_args args_of(const hy_op_call *call, const hy_delta_layout *l) {
    const hy_delta_attr *a = &call->attr.delta;
    delta_places at = places_of(call->kind);
    char *room = (char *)call->workspace.data;
    auto tensor = [&](int place) { return place < 0 ? hy_tensor{} : call->t[place]; };
    hy_plain_args p = {};
    hy_delta_args &g = p.g;
    g.B = a->batch, g.T = a->seq, g.K = a->key_heads, g.H = a->heads;
    g.Dk = a->key_dim, g.Dv = a->value_dim;
    g.chunks = (int)l->chunks;
    g.scale = 1.0f / sqrtf((float)a->key_dim);
    p.qkv = tensor(at.qkv).data, p.type = tensor(at.qkv).dtype;
    p.out = g.out = tensor(at.out).data, p.out_type = tensor(at.out).dtype;
    p.dout = tensor(at.dout).data, p.dout_type = tensor(at.dout).dtype;
    p.dqkv = g.dqkv = tensor(at.dqkv).data, p.dqkv_type = tensor(at.dqkv).dtype;
    g.gates = tensor(at.gates).data, g.gates_type = tensor(at.gates).dtype;
    g.a_log = tensor(at.a_log).data, g.a_log_type = tensor(at.a_log).dtype;
    g.dt_bias = tensor(at.dt_bias).data, g.dt_bias_type = tensor(at.dt_bias).dtype;
    g.dgates = tensor(at.dgates).data, g.dgates_type = tensor(at.dgates).dtype;
    g.doc_starts = (const int32_t *)tensor(at.doc_starts).data;
    g.first = (const int32_t *)tensor(at.first).data;
    g.slots = (const int32_t *)tensor(at.slots).data;
    g.state = (float *)tensor(at.state).data;
    if (!room) return p;
    g.numbers = (float *)(room + l->numbers);
    g.inverse = (hy_delta_half *)(room + l->inverse);
    g.scores = (hy_delta_half *)(room + l->scores);
    g.states = (hy_delta_half *)(room + l->states);
    g.dstates = (hy_delta_half *)(room + l->dstates);
    g.values = (hy_delta_half *)(room + l->values);
    g.dvalues = (hy_delta_half *)(room + l->dvalues);
    g.products = (float *)(room + l->products);
    g.heads = (float *)(room + l->heads);
    g.partial = (float *)(room + l->partial);
    p.gates = (float *)(room + l->gates);
    p.steps = (float *)(room + l->steps);
    if (l->kept != l->steps) p.kept = (float *)(room + l->kept);
    return p;
}

/* ---- tensor cores ---------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(256)
    to_bf16(const __half *from, hy_delta_half *to, int64_t packs) {
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    float v[8];
    if (i >= packs) return;
    hy_unpack(hy_load_pack(from + i * 8), v);
    hy_store_pack(to + i * 8, hy_packed<hy_delta_half>(v));
}

/* A 16-bit tensor as bf16: itself, or a copy at `room`. */
static const hy_delta_half *as_bf16(const hy_cuda_run *run, const hy_tensor *t, size_t room) {
    if (t->dtype == HY_BF16) return (const hy_delta_half *)t->data;
    hy_delta_half *to = (hy_delta_half *)((char *)run->call->workspace.data + room);
    int64_t packs = hy_tensor_count(t) / 8;
    to_bf16<<<(unsigned)hy_ceil_div(packs, 256), 256, 0, run->stream>>>((const __half *)t->data, to,
                                                                        packs);
    return to;
}

/* Fewer columns in a block, if there are too few blocks for the card. */
static bool is_narrow(const hy_cuda_run *run, const hy_delta_args &g, int D) {
    return (int64_t)g.B * g.H * (D / 64) <= run->cuda->card.multiprocessors;
}

template <int D> static hy_status launch_prepare(const hy_cuda_run *run, const hy_delta_args &g) {
    dim3 cells((unsigned)g.H, (unsigned)g.chunks, (unsigned)g.B);
    return hy_launch_with_shared(run, hy_delta_prepare<D>, cells, HY_DELTA_PREPARE_THREADS,
                                 hy_delta_prepare_shared<D>::BYTES, g);
}

template <typename O, int D, hy_delta_pass PASS>
static hy_status launch_forward(const hy_cuda_run *run, const hy_delta_args &g) {
    typedef hy_delta_steps_shared<D, 4> wide;
    typedef hy_delta_steps_shared<D, 2> narrow;
    bool has_late = PASS != HY_DELTA_AGAIN;
    if (is_narrow(run, g, D))
        return hy_launch_with_shared(run, hy_delta_forward<O, D, 2, PASS>,
                                     dim3(D / narrow::COLUMNS, (unsigned)g.H, (unsigned)g.B),
                                     narrow::THREADS,
                                     has_late ? narrow::BYTES : narrow::BYTES_WITHOUT_LATE, g);
    return hy_launch_with_shared(
        run, hy_delta_forward<O, D, 4, PASS>, dim3(D / wide::COLUMNS, (unsigned)g.H, (unsigned)g.B),
        wide::THREADS, has_late ? wide::BYTES : wide::BYTES_WITHOUT_LATE, g);
}

template <int D> static hy_status launch_back(const hy_cuda_run *run, const hy_delta_args &g) {
    typedef hy_delta_steps_shared<D, 4> wide;
    typedef hy_delta_steps_shared<D, 2> narrow;
    if (is_narrow(run, g, D))
        return hy_launch_with_shared(run, hy_delta_back<D, 2>,
                                     dim3(D / narrow::COLUMNS, (unsigned)g.H, (unsigned)g.B),
                                     narrow::THREADS, narrow::BYTES, g);
    return hy_launch_with_shared(run, hy_delta_back<D, 4>,
                                 dim3(D / wide::COLUMNS, (unsigned)g.H, (unsigned)g.B),
                                 wide::THREADS, wide::BYTES, g);
}

/* Calls f with the type of results and the size of tiles, as types. */
template <int D> struct tile_size { static constexpr int value = D; };
template <typename F> static hy_status by_tiles(hy_dtype dtype, int D, F f) {
    if (dtype == HY_BF16)
        return D == 64 ? f(__nv_bfloat16{}, tile_size<64>{}) : f(__nv_bfloat16{}, tile_size<128>{});
    return D == 64 ? f(__half{}, tile_size<64>{}) : f(__half{}, tile_size<128>{});
}

static hy_status forward_on_tiles(const hy_cuda_run *run, const hy_delta_layout *l,
                                  hy_delta_args g) {
    const hy_tensor *qkv = &run->call->t[places_of(run->call->kind).qkv];
    g.qkv = as_bf16(run, qkv, l->qkv);
    return by_tiles(qkv->dtype, l->D, [&](auto zero, auto size) {
        using O = decltype(zero);
        constexpr int D = decltype(size)::value;
        HY_TRY(launch_prepare<D>(run, g));
        if (g.first) return launch_forward<O, D, HY_DELTA_PROMPT>(run, g);
        return launch_forward<O, D, HY_DELTA_FORWARD>(run, g);
    });
}

static hy_status backward_on_tiles(const hy_cuda_run *run, const hy_delta_layout *l,
                                   hy_delta_args g) {
    const hy_tensor *qkv = &run->call->t[HY_DELTA_BWD_QKV];
    g.qkv = as_bf16(run, qkv, l->qkv);
    g.dout = as_bf16(run, &run->call->t[HY_DELTA_BWD_DOUT], l->dout);
    return by_tiles(qkv->dtype, l->D, [&](auto zero, auto size) {
        using O = decltype(zero);
        constexpr int D = decltype(size)::value;
        dim3 cells((unsigned)g.H, (unsigned)g.chunks, (unsigned)g.B);
        HY_TRY(launch_prepare<D>(run, g));
        HY_TRY((launch_forward<hy_delta_half, D, HY_DELTA_AGAIN>(run, g)));
        HY_TRY(launch_back<D>(run, g));
        return hy_launch_with_shared(run, hy_delta_grads<O, D>, cells, HY_DELTA_GRADS_THREADS,
                                     hy_delta_grads_shared<D>::BYTES, g);
    });
}

/* ---- plain ----------------------------------------------------------------------------------- */

static dim3 plain_blocks(const hy_delta_args &g) {
    return dim3((unsigned)hy_ceil_div(g.Dv, HY_DELTA_COLUMNS), (unsigned)g.H, (unsigned)g.B);
}

static hy_status plain_forward(const hy_cuda_run *run, const hy_plain_args &p) {
    auto kernel = p.g.Dk <= 128 ? hy_plain_forward<16> : hy_plain_forward<32>;
    kernel<<<plain_blocks(p.g), HY_PLAIN_THREADS, 0, run->stream>>>(p);
    return hy_cuda_launched(run);
}

static hy_status plain_backward(const hy_cuda_run *run, const hy_plain_args &p) {
    const hy_delta_args &g = p.g;
    int slices = (int)plain_blocks(g).x;
    size_t bytes = (size_t)HY_PLAIN_WARPS * (2 * (size_t)g.Dk + 2) * sizeof(float);
    auto kernel = g.Dk <= 128 ? hy_plain_backward<16> : hy_plain_backward<32>;
    dim3 cells((unsigned)g.H, (unsigned)g.chunks, (unsigned)g.B);
    HY_TRY(plain_forward(run, p)); /* keeps states */
    kernel<<<plain_blocks(g), HY_PLAIN_THREADS, bytes, run->stream>>>(p);
    HY_TRY(hy_cuda_launched(run));
    hy_plain_gates<<<cells, HY_DELTA_CHUNK, 0, run->stream>>>(p, slices);
    return hy_cuda_launched(run);
}

static hy_status sum_heads(const hy_cuda_run *run, const hy_plain_args &p, int slices) {
    int64_t warps = (int64_t)p.g.B * p.g.T * p.g.K * 2;
    hy_delta_sum_heads<<<(unsigned)hy_ceil_div(warps, 4), 128, 0, run->stream>>>(p, slices);
    return hy_cuda_launched(run);
}

static hy_status decode(const hy_cuda_run *run, const hy_plain_args &p) {
    dim3 blocks((unsigned)hy_ceil_div(p.g.Dv, HY_DECODE_COLUMNS), (unsigned)p.g.H, (unsigned)p.g.B);
    auto kernel = p.g.Dk <= 128 ? hy_delta_decode<4> : hy_delta_decode<8>;
    kernel<<<blocks, HY_DECODE_THREADS, 0, run->stream>>>(p);
    return hy_cuda_launched(run);
}

/* ---- the ops --------------------------------------------------------------------------------- */

size_t hy_cuda_delta_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    return hy_delta_layout_of(call, cuda->card.capability).bytes;
}

hy_status hy_cuda_delta(const hy_cuda_run *run) {
    hy_delta_layout l = hy_delta_layout_of(run->call, run->cuda->card.capability);
    hy_plain_args p = args_of(run->call, &l);
    if (l.has_tiles) return forward_on_tiles(run, &l, p.g);
    if (p.g.first && p.g.T == 1 && p.g.Dv % 4 == 0) return decode(run, p);
    return plain_forward(run, p);
}

hy_status hy_cuda_delta_bwd(const hy_cuda_run *run) {
    hy_delta_layout l = hy_delta_layout_of(run->call, run->cuda->card.capability);
    const hy_tensor *t = run->call->t;
    const hy_tensor *da_log = &t[HY_DELTA_BWD_DA_LOG], *ddt_bias = &t[HY_DELTA_BWD_DDT_BIAS];
    hy_plain_args p = args_of(run->call, &l);
    int64_t H = p.g.H, parts = (int64_t)p.g.B * p.g.chunks;
    HY_TRY(l.has_tiles ? backward_on_tiles(run, &l, p.g) : plain_backward(run, p));
    int slices = l.has_tiles ? 1 : (int)plain_blocks(p.g).x;
    if (!l.has_tiles || p.g.H > p.g.K) HY_TRY(sum_heads(run, p, slices));
    if (hy_has(da_log) || hy_has(ddt_bias))
        hy_fold_columns(run, p.g.partial, parts, 2 * H, da_log, ddt_bias);
    return hy_cuda_launched(run);
}
