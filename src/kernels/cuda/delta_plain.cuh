/* delta_plain.cuh: the gated delta rule token by token, for any types and sizes, and for one token.
 *
 * Eight lanes have a column of the state, each every eighth row, in registers; a block has 64
 * columns of a head. The backward pass goes back over blocks of 32 tokens: it first steps through
 * the block again, from a state that the forward pass kept, and stores the state before each
 * token. */
#pragma once

#include "kernels/cuda/delta_chunk.cuh"

#define HY_PLAIN_THREADS (HY_DELTA_COLUMNS * 8)
#define HY_PLAIN_WARPS (HY_PLAIN_THREADS / 32)
#define HY_DECODE_THREADS 128
#define HY_DECODE_COLUMNS 16

/* The arguments of the plain kernels; sizes and gates are in g, whose qkv and dout have a type. */
typedef struct hy_plain_args {
    hy_delta_args g;
    const void *qkv, *dout;
    void *out, *dqkv;
    hy_dtype type, dout_type, out_type, dqkv_type;
    float *kept, *steps, *gates; /* NULL: none */
} hy_plain_args;

/* What all columns of a head need of a token. */
struct hy_plain_token {
    int64_t q, k, v;  /* first element */
    float of_q, of_k; /* 1 / length; of_q also times scale */
    float
        loss; /* decay - 1: near 0, where the rounding of decay would be the same for many tokens */
    float strength;
    bool is_first; /* of its document */
};

/* Sums over the lanes of a column. */
__device__ __forceinline__ float hy_plain_sum(float x) {
    HY_EACH(i, 3) x += __shfl_xor_sync(0xffffffffu, x, 1 << i);
    return x;
}

template <int ROWS>
__device__ __forceinline__ hy_plain_token hy_plain_take(const hy_plain_args &p, int b, int h,
                                                        int t) {
    const hy_delta_args &g = p.g;
    hy_plain_token token;
    int64_t row = (int64_t)b * g.T + t, begin = row * hy_delta_width(g);
    float of_q = 0, of_k = 0;
    token.q = begin + (int64_t)(h / (g.H / g.K)) * g.Dk;
    token.k = token.q + (int64_t)g.K * g.Dk;
    token.v = begin + 2 * (int64_t)g.K * g.Dk + (int64_t)h * g.Dv;
    for (int i = threadIdx.x % 8; i < g.Dk; i += 8) {
        float q = hy_load_any(p.qkv, token.q + i, p.type);
        float k = hy_load_any(p.qkv, token.k + i, p.type);
        of_q += q * q;
        of_k += k * k;
    }
    token.of_q = g.scale / sqrtf(hy_plain_sum(of_q) + HY_DELTA_EPS);
    token.of_k = 1.0f / sqrtf(hy_plain_sum(of_k) + HY_DELTA_EPS);
    hy_delta_gate gate = hy_delta_gate_of(g, row, h);
    token.loss = expm1f(hy_delta_log_decay(gate.a, gate.a_log, gate.dt_bias));
    token.strength = hy_delta_sigmoid(gate.b);
    token.is_first = hy_delta_start(g, row, t) == t;
    return token;
}

/* One step of a column: what it writes to the state. */
template <int ROWS>
__device__ __forceinline__ float hy_plain_step(const hy_plain_args &p, const hy_plain_token &token,
                                               float (&state)[ROWS], float v) {
    float read = 0;
    int part = threadIdx.x % 8;
    HY_EACH(i, ROWS) {
        int key = part + 8 * i;
        state[i] = token.is_first ? 0.0f : state[i] + state[i] * token.loss;
        if (key < p.g.Dk) read += state[i] * hy_load_any(p.qkv, token.k + key, p.type);
    }
    float error = v - hy_plain_sum(read) * token.of_k, written = token.strength * error;
    HY_EACH(i, ROWS) {
        int key = part + 8 * i;
        if (key < p.g.Dk)
            state[i] += hy_load_any(p.qkv, token.k + key, p.type) * token.of_k * written;
    }
    return error;
}

/* A thread's states in the workspace: those of block or token `which`. */
template <int ROWS>
__device__ __forceinline__ float *hy_plain_place(const hy_plain_args &p, float *states, int which) {
    int64_t head = (int64_t)which * p.g.B * p.g.H + (int64_t)blockIdx.z * p.g.H + blockIdx.y;
    return states + (head * gridDim.x + blockIdx.x) * (HY_PLAIN_THREADS * ROWS) + threadIdx.x;
}

template <int ROWS>
__global__ void __launch_bounds__(HY_PLAIN_THREADS, 1) hy_plain_forward(hy_plain_args p) {
    const hy_delta_args &g = p.g;
    int h = blockIdx.y, b = blockIdx.z, part = threadIdx.x % 8;
    int column = blockIdx.x * HY_DELTA_COLUMNS + threadIdx.x / 8;
    bool is_there = column < g.Dv;
    int begin = g.first ? g.first[b] : 0;
    float state[ROWS], *own = NULL;
    if (begin < 0) return;
    if (g.first) own = g.state + ((int64_t)g.slots[b] * g.H + h) * g.Dk * g.Dv + column;
    HY_EACH(i, ROWS) {
        int key = part + 8 * i;
        bool is_kept = own && begin > 0 && is_there && key < g.Dk;
        state[i] = is_kept ? own[(int64_t)key * g.Dv] : 0.0f;
    }
    for (int t = 0; t < g.T; t++) {
        if (p.kept && t % HY_DELTA_STEPS == 0) {
            float *to = hy_plain_place<ROWS>(p, p.kept, t / HY_DELTA_STEPS);
            HY_EACH(i, ROWS) to[i * HY_PLAIN_THREADS] = state[i];
        }
        hy_plain_token token = hy_plain_take<ROWS>(p, b, h, t);
        float v = is_there ? hy_load_any(p.qkv, token.v + column, p.type) : 0.0f, out = 0;
        hy_plain_step<ROWS>(p, token, state, v);
        if (!p.out) continue;
        HY_EACH(i, ROWS) {
            int key = part + 8 * i;
            if (key < g.Dk) out += state[i] * hy_load_any(p.qkv, token.q + key, p.type);
        }
        out = hy_plain_sum(out) * token.of_q;
        int64_t row = (int64_t)b * g.T + t;
        if (part == 0 && is_there)
            hy_store_any(p.out, (row * g.H + h) * g.Dv + column, p.out_type, out);
    }
    if (!own || !is_there) return;
    HY_EACH(i, ROWS) {
        int key = part + 8 * i;
        if (key < g.Dk) own[(int64_t)key * g.Dv] = state[i];
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Sums over the four columns of a warp, then over the warps of the block. */
__device__ __forceinline__ float hy_plain_columns(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

/* Steps through a block of tokens again; stores the state before each. */
template <int ROWS>
__device__ __forceinline__ void hy_plain_again(const hy_plain_args &p, int first, int end,
                                               int column) {
    float state[ROWS];
    const float *kept = hy_plain_place<ROWS>(p, p.kept, first / HY_DELTA_STEPS);
    HY_EACH(i, ROWS) state[i] = kept[i * HY_PLAIN_THREADS];
    for (int t = first; t < end; t++) {
        float *to = hy_plain_place<ROWS>(p, p.steps, t - first);
        hy_plain_token token = hy_plain_take<ROWS>(p, blockIdx.z, blockIdx.y, t);
        float v = column < p.g.Dv ? hy_load_any(p.qkv, token.v + column, p.type) : 0.0f;
        HY_EACH(i, ROWS) to[i * HY_PLAIN_THREADS] = state[i];
        hy_plain_step<ROWS>(p, token, state, v);
    }
}

/* The gradients of a token, from the gradient of the state after it, which becomes that before it.
 * of_q and of_k are rows of sums of this warp, [0] to [Dk): gradients of the divided rows. */
template <int ROWS>
__device__ __forceinline__ void hy_plain_back(const hy_plain_args &p, const hy_plain_token &token,
                                              const float *before, float (&grad)[ROWS], float v,
                                              float dout, float *of_q, float *of_k, float *dv,
                                              float *of_gates) {
    const hy_delta_args &g = p.g;
    int lane = threadIdx.x % 32, part = lane % 8;
    float loss = token.is_first ? -1.0f : token.loss, read = 0, written = 0, of_decay = 0;
    HY_EACH(i, ROWS) {
        int key = part + 8 * i;
        if (key >= g.Dk) continue;
        float k = hy_load_any(p.qkv, token.k + key, p.type) * token.of_k;
        float state = before[i * HY_PLAIN_THREADS];
        read += (state + state * loss) * k;
        grad[i] += hy_load_any(p.qkv, token.q + key, p.type) * token.of_q * dout;
        written += grad[i] * k;
    }
    float error = v - hy_plain_sum(read), by = token.strength * error;
    float of_error = hy_plain_sum(written), back = token.strength * of_error;
    *dv = back;
    HY_EACH(i, ROWS) {
        int key = part + 8 * i;
        float state = before[i * HY_PLAIN_THREADS], q = 0, k = 0;
        state += state * loss;
        if (key < g.Dk) {
            k = hy_load_any(p.qkv, token.k + key, p.type) * token.of_k;
            q = (state + k * by) * dout;
            float sum = grad[i] * by - state * back;
            grad[i] -= k * back;
            of_decay += grad[i] * state;
            grad[i] += grad[i] * loss;
            k = sum;
        }
        q = hy_plain_columns(q) * token.of_q;
        k = hy_plain_columns(k) * token.of_k;
        if (lane < 8 && key < g.Dk) of_q[key] = q, of_k[key] = k;
    }
    of_decay = hy_plain_columns(hy_plain_sum(of_decay));
    float of_strength = hy_plain_columns(of_error * error);
    if (lane == 0) of_gates[0] = of_strength, of_gates[1] = of_decay;
}

/* Adds the warps' sums of a token, and stores them for this slice of columns. */
__device__ __forceinline__ void hy_plain_store(const hy_plain_args &p, const float *sums, int apart,
                                               int64_t row) {
    const hy_delta_args &g = p.g;
    int64_t at = ((int64_t)blockIdx.x * g.B * g.T + row) * g.H + blockIdx.y;
    for (int i = threadIdx.x; i < 2 * g.Dk + 2; i += HY_PLAIN_THREADS) {
        float sum = 0;
        for (int w = 0; w < HY_PLAIN_WARPS; w++) sum += sums[w * apart + i];
        if (i < 2 * g.Dk)
            g.heads[at * 2 * g.Dk + i] = sum;
        else
            p.gates[at * 2 + i - 2 * g.Dk] = sum;
    }
}

template <int ROWS>
__global__ void __launch_bounds__(HY_PLAIN_THREADS, 1) hy_plain_backward(hy_plain_args p) {
    extern __shared__ uint4 hy_delta_shared[];
    const hy_delta_args &g = p.g;
    int h = blockIdx.y, b = blockIdx.z, apart = 2 * g.Dk + 2;
    int column = blockIdx.x * HY_DELTA_COLUMNS + threadIdx.x / 8;
    bool is_there = column < g.Dv;
    float *sums = (float *)hy_delta_shared, *own = sums + threadIdx.x / 32 * apart;
    float grad[ROWS];
    HY_EACH(i, ROWS) grad[i] = 0;
    for (int first = (g.T - 1) / HY_DELTA_STEPS * HY_DELTA_STEPS; first >= 0;
         first -= HY_DELTA_STEPS) {
        int end = min(first + HY_DELTA_STEPS, g.T);
        hy_plain_again<ROWS>(p, first, end, column);
        for (int t = end - 1; t >= first; t--) {
            int64_t row = (int64_t)b * g.T + t, at = (row * g.H + h) * g.Dv + column;
            hy_plain_token token = hy_plain_take<ROWS>(p, b, h, t);
            float v = is_there ? hy_load_any(p.qkv, token.v + column, p.type) : 0.0f, dv;
            float dout = is_there ? hy_load_any(p.dout, at, p.dout_type) : 0.0f;
            hy_plain_back<ROWS>(p, token, hy_plain_place<ROWS>(p, p.steps, t - first), grad, v,
                                dout, own, own + g.Dk, &dv, own + 2 * g.Dk);
            if (threadIdx.x % 8 == 0 && is_there)
                hy_store_any(p.dqkv, token.v + column, p.dqkv_type, dv);
            __syncthreads();
            hy_plain_store(p, sums, apart, row);
            __syncthreads();
        }
    }
}

/* Gradients of b and a from those of strength and log decay, summed over slices of columns; and the
 * sums of those of the parameters over 64 tokens. A token per thread. */
static __global__ void __launch_bounds__(HY_DELTA_CHUNK)
    hy_plain_gates(hy_plain_args p, int slices) {
    __shared__ float sums[2];
    const hy_delta_args &g = p.g;
    int h = blockIdx.x, chunk = blockIdx.y, b = blockIdx.z;
    int t = chunk * HY_DELTA_CHUNK + threadIdx.x;
    int64_t row = (int64_t)b * g.T + t;
    float of_log = 0, of_bias = 0;
    if (t < g.T) {
        hy_delta_gate gate = hy_delta_gate_of(g, row, h);
        float strength = hy_delta_sigmoid(gate.b), of_strength = 0, of_decay = 0;
        for (int s = 0; s < slices; s++) {
            const float *two = p.gates + (((int64_t)s * g.B * g.T + row) * g.H + h) * 2;
            of_strength += two[0];
            of_decay += two[1];
        }
        of_bias = -expf(gate.a_log) * hy_delta_sigmoid(gate.a + gate.dt_bias) * of_decay;
        of_log = hy_delta_log_decay(gate.a, gate.a_log, gate.dt_bias) * of_decay;
        hy_store_any(g.dgates, row * 2 * g.H + h, g.dgates_type,
                     of_strength * strength * (1 - strength));
        hy_store_any(g.dgates, row * 2 * g.H + g.H + h, g.dgates_type, of_bias);
    }
    of_log = hy_warp_sum(of_log);
    of_bias = hy_warp_sum(of_bias);
    if (threadIdx.x == 32) sums[0] = of_log, sums[1] = of_bias;
    __syncthreads();
    if (threadIdx.x != 0) return;
    float *to = g.partial + ((int64_t)b * g.chunks + chunk) * 2 * g.H;
    to[h] = of_log + sums[0];
    to[g.H + h] = of_bias + sums[1];
}

/* Gradients of the queries (0) and keys (1) of a row, from those of value heads and slices of
 * columns: their sum, less its part along the row. A warp per head. */
static __global__ void __launch_bounds__(128) hy_delta_sum_heads(hy_plain_args p, int slices) {
    const hy_delta_args &g = p.g;
    int64_t index = ((int64_t)blockIdx.x * 128 + threadIdx.x) / 32, rows = (int64_t)g.B * g.T;
    int lane = threadIdx.x % 32, group = g.H / g.K;
    int which = (int)(index % 2), kh = (int)(index / 2 % g.K);
    int64_t row = index / 2 / g.K,
            at = row * hy_delta_width(g) + (int64_t)(which * g.K + kh) * g.Dk;
    float sum[HY_DELTA_DIM_MAX / 32], x[HY_DELTA_DIM_MAX / 32], square = 0, dot = 0;
    if (row >= rows) return;
    HY_EACH(i, HY_DELTA_DIM_MAX / 32) {
        int column = lane + 32 * i;
        sum[i] = x[i] = 0;
        if (column >= g.Dk) continue;
        x[i] = hy_load_any(p.qkv, at + column, p.type);
        for (int s = 0; s < slices; s++) {
            for (int h = 0; h < group; h++) {
                int64_t head = ((int64_t)s * rows + row) * g.H + kh * group + h;
                sum[i] += g.heads[(head * 2 + which) * g.Dk + column];
            }
        }
        square += x[i] * x[i];
        dot += x[i] * sum[i];
    }
    float along = hy_warp_sum(dot) / (hy_warp_sum(square) + HY_DELTA_EPS);
    HY_EACH(i, HY_DELTA_DIM_MAX / 32) {
        int column = lane + 32 * i;
        if (column < g.Dk) hy_store_any(p.dqkv, at + column, p.dqkv_type, sum[i] - along * x[i]);
    }
}

/* ---- one token ------------------------------------------------------------------------------- */

/* The next token of each sequence. The state is read and written once: a block has 16 columns, a
 * thread four of them of every 32nd row. S q after the step is decay S q before it, and (k q) times
 * what is written. */
template <int ROWS>
__global__ void __launch_bounds__(HY_DECODE_THREADS) hy_delta_decode(hy_plain_args p) {
    __shared__ float q[HY_DELTA_DIM_MAX], k[HY_DELTA_DIM_MAX], dots[4][3], parts[4][4][8];
    const hy_delta_args &g = p.g;
    int b = blockIdx.z, h = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int column = blockIdx.x * HY_DECODE_COLUMNS + threadIdx.x % 4 * 4, line = threadIdx.x / 4;
    int begin = g.first[b];
    bool is_there = column < g.Dv;
    if (begin < 0) return;
    float *own = g.state + ((int64_t)g.slots[b] * g.H + h) * g.Dk * g.Dv + column;
    float4 state[ROWS];
    HY_EACH(i, ROWS) {
        int key = line + 32 * i;
        bool is_kept = begin > 0 && is_there && key < g.Dk;
        state[i] = is_kept ? *(const float4 *)(own + (int64_t)key * g.Dv) : make_float4(0, 0, 0, 0);
    }
    int64_t at = (int64_t)b * hy_delta_width(g) + (int64_t)(h / (g.H / g.K)) * g.Dk;
    float of_q = 0, of_k = 0, both = 0;
    for (int i = threadIdx.x; i < g.Dk; i += HY_DECODE_THREADS) {
        q[i] = hy_load_any(p.qkv, at + i, p.type);
        k[i] = hy_load_any(p.qkv, at + (int64_t)g.K * g.Dk + i, p.type);
        of_q += q[i] * q[i];
        of_k += k[i] * k[i];
        both += q[i] * k[i];
    }
    of_q = hy_warp_sum(of_q), of_k = hy_warp_sum(of_k), both = hy_warp_sum(both);
    if (lane == 0) dots[warp][0] = of_q, dots[warp][1] = of_k, dots[warp][2] = both;
    hy_delta_gate gate = hy_delta_gate_of(g, b, h);
    float loss = expm1f(hy_delta_log_decay(gate.a, gate.a_log, gate.dt_bias));
    float strength = hy_delta_sigmoid(gate.b);
    __syncthreads();
    of_q = dots[0][0] + dots[1][0] + dots[2][0] + dots[3][0];
    of_k = dots[0][1] + dots[1][1] + dots[2][1] + dots[3][1];
    both = dots[0][2] + dots[1][2] + dots[2][2] + dots[3][2];
    of_q = g.scale / sqrtf(of_q + HY_DELTA_EPS);
    of_k = 1.0f / sqrtf(of_k + HY_DELTA_EPS);
    float sums[8] = {}; /* state' k and state' q, of four columns */
    HY_EACH(i, ROWS) {
        int key = line + 32 * i;
        float by_k = key < g.Dk ? k[key] : 0.0f, by_q = key < g.Dk ? q[key] : 0.0f;
        state[i].x += state[i].x * loss, state[i].y += state[i].y * loss;
        state[i].z += state[i].z * loss, state[i].w += state[i].w * loss;
        sums[0] += state[i].x * by_k, sums[1] += state[i].y * by_k;
        sums[2] += state[i].z * by_k, sums[3] += state[i].w * by_k;
        sums[4] += state[i].x * by_q, sums[5] += state[i].y * by_q;
        sums[6] += state[i].z * by_q, sums[7] += state[i].w * by_q;
    }
    HY_EACH(j, 8) {
        HY_EACH(d, 3) sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], 4 << d);
        if (lane < 4) parts[warp][lane][j] = sums[j];
    }
    __syncthreads();
    if (!is_there) return;
    float written[4], v[4];
    int64_t value = (int64_t)b * hy_delta_width(g) + 2 * (int64_t)g.K * g.Dk + (int64_t)h * g.Dv;
    HY_EACH(j, 8) {
        const float(*from)[4][8] = parts;
        int c = threadIdx.x % 4;
        sums[j] = from[0][c][j] + from[1][c][j] + from[2][c][j] + from[3][c][j];
    }
    HY_EACH(j, 4) {
        v[j] = hy_load_any(p.qkv, value + column + j, p.type);
        written[j] = strength * (v[j] - sums[j] * of_k) * of_k;
    }
    HY_EACH(i, ROWS) {
        int key = line + 32 * i;
        if (key >= g.Dk) continue;
        state[i].x += k[key] * written[0], state[i].y += k[key] * written[1];
        state[i].z += k[key] * written[2], state[i].w += k[key] * written[3];
        *(float4 *)(own + (int64_t)key * g.Dv) = state[i];
    }
    if (line != 0) return;
    HY_EACH(j, 4) {
        hy_store_any(p.out, ((int64_t)b * g.H + h) * g.Dv + column + j, p.out_type,
                     of_q * (sums[4 + j] + both * written[j]));
    }
}
