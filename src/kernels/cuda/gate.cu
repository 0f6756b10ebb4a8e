/* gate.cu: gates of heads: x sigmoid(gate), or the norm of each head times silu(gate), and the
 * backward pass.
 *
 * A warp takes one head of a row at a time, each lane up to eight quads of it. Sums for the weight
 * stay in registers over all heads of a warp; those of blocks are added in order (columns.cuh). */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/quad.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define BLOCKS_MAX 1056 /* a function of shapes alone; eight per multiprocessor of a large card */

typedef struct gate_args {
    hy_view x, gate, y; /* backward: y is dy */
    hy_view dx, dgate;
    const void *weight; /* NULL: sigmoid */
    hy_dtype weight_type;
    float *rstd, *partial; /* partial: (blocks, D); NULL: dweight is not wanted */
    int64_t heads, X;      /* of all rows */
    int H, D, column, stride;
    float eps;
} gate_args;

/* The first elements of a head in x and in the gates. */
static __device__ __forceinline__ int64_t gate_at(const gate_args &g, int64_t head) {
    int64_t row = head / g.H;
    return row * g.X + g.column + (head - row * g.H) * g.stride;
}

static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

/* A lane's columns of the weight; 0 past the head. */
template <int QUADS>
static __device__ __forceinline__ void load_weight(const gate_args &g,
                                                   float (&weight)[QUADS][HY_QUAD]) {
    HY_EACH(i, QUADS) {
        HY_EACH(j, HY_QUAD) {
            int column = (i * 32 + threadIdx.x % 32) * HY_QUAD + j;
            bool is_there = g.weight && column < g.D;
            weight[i][j] = is_there ? hy_load_any(g.weight, column, g.weight_type) : 0.0f;
        }
    }
}

template <int QUADS>
static __device__ __forceinline__ void load_head(const hy_view &t, int64_t at, int D,
                                                 hy_quad_bits (&bits)[QUADS]) {
    HY_EACH(i, QUADS) {
        int column = (i * 32 + threadIdx.x % 32) * HY_QUAD;
        bits[i] = hy_quad_bits{};
        if (column < D) bits[i] = hy_fetch(t, at + column, hy_quad_length(column, D));
    }
}

template <int QUADS> static __global__ void __launch_bounds__(THREADS) gate_forward(gate_args g) {
    int lane = threadIdx.x % 32;
    float weight[QUADS][HY_QUAD];
    load_weight(g, weight);
    int64_t step = (int64_t)gridDim.x * WARPS;
    for (int64_t head = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; head < g.heads;
         head += step) {
        hy_quad_bits x_bits[QUADS], gate_bits[QUADS];
        float x[QUADS][HY_QUAD], square = 0;
        load_head(g.x, head * g.D, g.D, x_bits);
        load_head(g.gate, gate_at(g, head), g.D, gate_bits);
        HY_EACH(i, QUADS) {
            hy_widen(x_bits[i], g.x.dtype, x[i]);
            HY_EACH(j, HY_QUAD) square += x[i][j] * x[i][j];
        }
        float rstd = 1;
        if (g.weight) {
            rstd = 1.0f / sqrtf(hy_warp_sum(square) / (float)g.D + g.eps);
            if (lane == 0) g.rstd[head] = rstd;
        }
        HY_EACH(i, QUADS) {
            int column = (i * 32 + lane) * HY_QUAD;
            float gate[HY_QUAD];
            hy_widen(gate_bits[i], g.gate.dtype, gate);
            HY_EACH(j, HY_QUAD) {
                float s = sigmoid(gate[j]);
                x[i][j] *= g.weight ? rstd * weight[i][j] * (gate[j] * s) : s;
            }
            if (column < g.D)
                hy_store(g.y, head * g.D + column, hy_quad_length(column, g.D),
                         hy_narrow(x[i], g.y.dtype));
        }
    }
}

/* The warps' sums of a block, column by column. */
template <int QUADS>
static __device__ __forceinline__ void
write_sums(const gate_args &g, const float (&sum)[QUADS][HY_QUAD], float *shared) {
    int width = QUADS * 32 * HY_QUAD;
    float *own = shared + threadIdx.x / 32 * width;
    HY_EACH(i, QUADS) {
        HY_EACH(j, HY_QUAD) own[(i * 32 + threadIdx.x % 32) * HY_QUAD + j] = sum[i][j];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < g.D; c += THREADS) {
        float total = 0;
        for (int w = 0; w < WARPS; w++) total += shared[w * width + c];
        g.partial[(int64_t)blockIdx.x * g.D + c] = total;
    }
}

/* A lane's four columns: x becomes x rstd, dy the gradient of that, gate its gradient, and sum that
 * of the weight. Without weight dy becomes dx. */
static __device__ __forceinline__ void step_back(const gate_args &g, const float *weight,
                                                 float rstd, float *x, float *dy, float *gate,
                                                 float *sum) {
    HY_EACH(j, HY_QUAD) {
        float s = sigmoid(gate[j]), silu = gate[j] * s;
        if (!g.weight) {
            gate[j] = dy[j] * x[j] * s * (1.0f - s);
            dy[j] *= s;
            continue;
        }
        x[j] *= rstd;
        float of_norm = dy[j] * silu;
        gate[j] = dy[j] * x[j] * weight[j] * (s + silu * (1.0f - s));
        sum[j] += of_norm * x[j];
        dy[j] = of_norm * weight[j];
    }
}

template <int QUADS> static __global__ void __launch_bounds__(THREADS) gate_backward(gate_args g) {
    extern __shared__ float shared[];
    int lane = threadIdx.x % 32;
    float weight[QUADS][HY_QUAD], sum[QUADS][HY_QUAD] = {};
    load_weight(g, weight);
    int64_t step = (int64_t)gridDim.x * WARPS;
    for (int64_t head = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; head < g.heads;
         head += step) {
        hy_quad_bits x_bits[QUADS], dy_bits[QUADS], gate_bits[QUADS];
        float x[QUADS][HY_QUAD], dy[QUADS][HY_QUAD], along = 0;
        int64_t at = gate_at(g, head);
        load_head(g.x, head * g.D, g.D, x_bits);
        load_head(g.y, head * g.D, g.D, dy_bits);
        load_head(g.gate, at, g.D, gate_bits);
        float rstd = g.weight ? g.rstd[head] : 1.0f;
        HY_EACH(i, QUADS) {
            int column = (i * 32 + lane) * HY_QUAD;
            float gate[HY_QUAD];
            hy_widen(x_bits[i], g.x.dtype, x[i]);
            hy_widen(dy_bits[i], g.y.dtype, dy[i]);
            hy_widen(gate_bits[i], g.gate.dtype, gate);
            step_back(g, weight[i], rstd, x[i], dy[i], gate, sum[i]);
            HY_EACH(j, HY_QUAD) along += dy[i][j] * x[i][j];
            if (column < g.D)
                hy_store(g.dgate, at + column, hy_quad_length(column, g.D),
                         hy_narrow(gate, g.dgate.dtype));
        }
        along = g.weight ? hy_warp_sum(along) / (float)g.D : 0.0f;
        HY_EACH(i, QUADS) {
            int column = (i * 32 + lane) * HY_QUAD;
            HY_EACH(j, HY_QUAD) {
                if (g.weight) dy[i][j] = rstd * (dy[i][j] - x[i][j] * along);
            }
            if (column < g.D)
                hy_store(g.dx, head * g.D + column, hy_quad_length(column, g.D),
                         hy_narrow(dy[i], g.dx.dtype));
        }
    }
    if (g.partial) write_sums(g, sum, shared);
}

/* ---- the ops --------------------------------------------------------------------------------- */

/* A tensor whose heads begin at quads. */
static hy_view heads_of(const hy_op_call *call, const hy_tensor *t, bool is_gate) {
    hy_view view = hy_view_of(t);
    int64_t D = call->attr.gate.head_dim, begins = call->attr.gate.column | call->attr.gate.stride;
    if (D % HY_QUAD != 0) view.is_packed = false;
    if (is_gate && (begins | hy_width(t)) % HY_QUAD != 0) view.is_packed = false;
    return view;
}

static gate_args args_of(const hy_op_call *call, const hy_tensor *x, const hy_tensor *gate) {
    gate_args g = {};
    g.x = heads_of(call, x, false);
    g.gate = heads_of(call, gate, true);
    g.H = call->attr.gate.heads;
    g.D = call->attr.gate.head_dim;
    g.column = call->attr.gate.column;
    g.stride = call->attr.gate.stride;
    g.eps = call->attr.gate.eps;
    g.X = hy_width(gate);
    g.heads = hy_tensor_count(x) / g.D;
    return g;
}

static int64_t blocks_of(const gate_args &g) {
    int64_t all = hy_ceil_div(g.heads, WARPS);
    return all < BLOCKS_MAX ? all : BLOCKS_MAX;
}

/* Calls f with the number of quads of a lane, as a type. */
template <int QUADS> struct quads { static constexpr int value = QUADS; };
template <typename F> static void by_quads(int D, F f) {
    if (D <= 128)
        f(quads<1>{});
    else if (D <= 256)
        f(quads<2>{});
    else
        f(quads<8>{});
}

hy_status hy_cuda_gate(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t, *weight = &t[HY_GATE_WEIGHT];
    gate_args g = args_of(run->call, &t[HY_GATE_X], &t[HY_GATE_GATE]);
    g.y = heads_of(run->call, &t[HY_GATE_Y], false);
    g.weight = weight->data, g.weight_type = weight->dtype;
    g.rstd = (float *)t[HY_GATE_RSTD].data;
    by_quads(g.D, [&](auto count) {
        constexpr int QUADS = decltype(count)::value;
        unsigned blocks = (unsigned)blocks_of(g);
        gate_forward<QUADS><<<blocks, THREADS, 0, run->stream>>>(g);
    });
    return hy_cuda_launched(run);
}

size_t hy_cuda_gate_bwd_workspace(const hy_cuda *, const hy_op_call *call) {
    if (!hy_has(&call->t[HY_GATE_BWD_DWEIGHT])) return 0;
    gate_args g = args_of(call, &call->t[HY_GATE_BWD_X], &call->t[HY_GATE_BWD_GATE]);
    return (size_t)(blocks_of(g) * g.D) * sizeof(float);
}

hy_status hy_cuda_gate_bwd(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t, *weight = &t[HY_GATE_BWD_WEIGHT],
                    *dweight = &t[HY_GATE_BWD_DWEIGHT];
    gate_args g = args_of(run->call, &t[HY_GATE_BWD_X], &t[HY_GATE_BWD_GATE]);
    hy_tensor none = {};
    g.y = heads_of(run->call, &t[HY_GATE_BWD_DY], false);
    g.dx = heads_of(run->call, &t[HY_GATE_BWD_DX], false);
    g.dgate = heads_of(run->call, &t[HY_GATE_BWD_DGATE], true);
    g.weight = weight->data, g.weight_type = weight->dtype;
    g.rstd = (float *)t[HY_GATE_BWD_RSTD].data;
    if (hy_has(dweight)) g.partial = (float *)run->call->workspace.data;
    by_quads(g.D, [&](auto count) {
        constexpr int QUADS = decltype(count)::value;
        size_t bytes = g.partial ? (size_t)WARPS * QUADS * 32 * HY_QUAD * sizeof(float) : 0;
        unsigned blocks = (unsigned)blocks_of(g);
        gate_backward<QUADS><<<blocks, THREADS, bytes, run->stream>>>(g);
    });
    if (g.partial) hy_fold_columns(run, g.partial, blocks_of(g), g.D, dweight, &none);
    return hy_cuda_launched(run);
}
