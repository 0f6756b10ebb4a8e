/* activation.cu: gelu and swiglu, forward and backward, and with other activation functions.
 *
 * gelu in its tanh form is x times a sigmoid: (1 + tanh u) / 2 = sigmoid(2 u), as on the CPU. The
 * default of an op is known when its kernel is compiled (is_plain); other functions are chosen when
 * it runs.
 * Everything is elementwise: a thread fetches all its chunks before it stores any, so results may
 * overwrite inputs. For 16-bit tensors, the exponential and the quotient are the hardware's: their
 * relative error, below 2^-15 for normal results, vanishes in the rounding. Kernels have two forms:
 * those with `largest` (largest.cuh) also compute the largest stored magnitude. */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/largest.cuh"

/* ---- gelu ------------------------------------------------------------------------------------ */

template <typename A, bool has_largest, bool is_plain>
static __global__ void __launch_bounds__(HY_STEP_THREADS)
    gelu(A x, A y, uint32_t *out, int64_t chunks, hy_act kind) {
    int64_t first = hy_step_first();
    uint32_t largest = 0;
    typename A::chunk in[HY_STEPS];
    HY_EACH(k, HY_STEPS) {
        int64_t i = first + k * HY_STEP_THREADS;
        if (i < chunks) in[k] = x.fetch(i * A::width);
    }
    HY_EACH(k, HY_STEPS) {
        int64_t i = first + k * HY_STEP_THREADS;
        float v[A::width];
        if (i >= chunks) break;
        x.open(in[k], v);
        HY_EACH(j, A::width) {
            if (is_plain)
                v[j] *= sigmoid<is_fast<A>>(v[j] * (GELU_A + GELU_B * v[j] * v[j]));
            else
                v[j] = act<is_fast<A>>(kind, v[j]);
        }
        y.store(i * A::width, v);
        if (has_largest) largest = hy_largest_of<A::width>(largest, v);
    }
    if (has_largest) hy_keep_largest(y, largest, out);
}

template <typename A, bool has_largest, bool is_plain>
static __global__ void __launch_bounds__(HY_STEP_THREADS)
    gelu_bwd(A dy, A x, A dx, uint32_t *out, int64_t chunks, hy_act kind) {
    int64_t first = hy_step_first();
    uint32_t largest = 0;
    typename A::chunk slope[HY_STEPS], in[HY_STEPS];
    HY_EACH(k, HY_STEPS) {
        int64_t i = first + k * HY_STEP_THREADS;
        if (i >= chunks) break;
        slope[k] = dy.fetch(i * A::width);
        in[k] = x.fetch(i * A::width);
    }
    HY_EACH(k, HY_STEPS) {
        int64_t i = first + k * HY_STEP_THREADS;
        float d[A::width], v[A::width];
        if (i >= chunks) break;
        dy.open(slope[k], d);
        x.open(in[k], v);
        HY_EACH(j, A::width) {
            d[j] *= act_slope<is_fast<A>>(is_plain ? HY_ACT_GELU_TANH : kind, v[j]);
        }
        dx.store(i * A::width, d);
        if (has_largest) largest = hy_largest_of<A::width>(largest, d);
    }
    if (has_largest) hy_keep_largest(dx, largest, out);
}

static bool is_plain_gelu(hy_act kind) {
    return kind == HY_ACT_DEFAULT || kind == HY_ACT_GELU_TANH;
}

hy_status hy_cuda_gelu(const hy_cuda_run *run) {
    const hy_tensor *x = &run->call->t[HY_GELU_X], *y = &run->call->t[HY_GELU_Y];
    int64_t count = hy_tensor_count(x);
    hy_act kind = run->call->attr.act.kind;
    uint32_t *largest;
    HY_TRY(hy_begin_largest(run, HY_GELU_LARGEST, &largest));
    hy_by_chunks(count, {x, y}, [&](auto access) {
        using A = decltype(access);
        int64_t chunks = count / A::width;
        auto plain = largest ? gelu<A, true, true> : gelu<A, false, true>;
        auto other = largest ? gelu<A, true, false> : gelu<A, false, false>;
        auto kernel = is_plain_gelu(kind) ? plain : other;
        kernel<<<hy_step_blocks(chunks), HY_STEP_THREADS, 0, run->stream>>>(A::of(x), A::of(y),
                                                                            largest, chunks, kind);
    });
    return hy_cuda_launched(run);
}

hy_status hy_cuda_gelu_bwd(const hy_cuda_run *run) {
    const hy_tensor *dy = &run->call->t[HY_GELU_BWD_DY], *x = &run->call->t[HY_GELU_BWD_X],
                    *dx = &run->call->t[HY_GELU_BWD_DX];
    int64_t count = hy_tensor_count(x);
    hy_act kind = run->call->attr.act.kind;
    uint32_t *largest;
    HY_TRY(hy_begin_largest(run, HY_GELU_BWD_LARGEST, &largest));
    hy_by_chunks(count, {dy, x, dx}, [&](auto access) {
        using A = decltype(access);
        int64_t chunks = count / A::width;
        auto plain = largest ? gelu_bwd<A, true, true> : gelu_bwd<A, false, true>;
        auto other = largest ? gelu_bwd<A, true, false> : gelu_bwd<A, false, false>;
        auto kernel = is_plain_gelu(kind) ? plain : other;
        kernel<<<hy_step_blocks(chunks), HY_STEP_THREADS, 0, run->stream>>>(
            A::of(dy), A::of(x), A::of(dx), largest, chunks, kind);
    });
    return hy_cuda_launched(run);
}

/* ---- swiglu ---------------------------------------------------------------------------------- */

/* Rows of gate_up are twice as long as those of y: gate first, then up. per_row: chunks of a row of
 * y. */
template <typename A, bool has_largest, bool is_plain>
static __global__ void __launch_bounds__(HY_STEP_THREADS)
    swiglu(A gate_up, A y, uint32_t *out, int64_t chunks, int64_t per_row, hy_act kind) {
    int64_t first = hy_step_first(), F = per_row * A::width;
    uint32_t largest = 0;
    typename A::chunk gate[HY_STEPS], up[HY_STEPS];
    hy_walk at(first, per_row);
    hy_let_next_start();
    hy_wait_for_previous(); /* returns at once in a kernel that was not launched early */
    HY_EACH(k, HY_STEPS) {
        if (first + k * HY_STEP_THREADS >= chunks) break;
        int64_t i = at.row * 2 * F + at.chunk * A::width;
        gate[k] = gate_up.fetch(i);
        up[k] = gate_up.fetch(i + F);
        at.move(HY_STEP_THREADS, per_row);
    }
    HY_EACH(k, HY_STEPS) {
        int64_t i = first + k * HY_STEP_THREADS;
        float g[A::width], u[A::width];
        if (i >= chunks) break;
        gate_up.open(gate[k], g);
        gate_up.open(up[k], u);
        HY_EACH(j, A::width) {
            if (is_plain)
                g[j] *= sigmoid<is_fast<A>>(g[j]) * u[j];
            else
                g[j] = act<is_fast<A>>(kind, g[j]) * u[j];
        }
        y.store(i * A::width, g);
        if (has_largest) largest = hy_largest_of<A::width>(largest, g);
    }
    if (has_largest) hy_keep_largest(y, largest, out);
}

/* dgate = dy up s (1 + gate (1 - s)), dup = dy gate s, s = sigmoid(gate), in place of g and u; and
 * y, rounded as in the forward pass, in place of d. */
template <bool is_fast, int width>
static __device__ __forceinline__ void swiglu_gradient(float *d, float *g, float *u) {
    HY_EACH(j, width) {
        float s = sigmoid<is_fast>(g[j]), dup = d[j] * g[j] * s, y = g[j] * (s * u[j]);
        g[j] = d[j] * u[j] * s * (1.0f + g[j] * (1.0f - s));
        u[j] = dup;
        d[j] = y;
    }
}

/* Each step loads and stores two chunks in addition to dy, so half as many steps save registers. */
#define BWD_STEPS (HY_STEPS / 2)

template <typename A, bool has_active, bool has_largest, bool is_plain>
static __global__ void __launch_bounds__(HY_STEP_THREADS)
    swiglu_bwd(A dy, A gate_up, A dgate_up, A active, uint32_t *out, int64_t chunks,
               int64_t per_row, hy_act kind) {
    uint32_t largest = 0;
    int64_t first = (int64_t)blockIdx.x * (BWD_STEPS * HY_STEP_THREADS) + threadIdx.x;
    int64_t F = per_row * A::width, place[BWD_STEPS];
    typename A::chunk slope[BWD_STEPS], gate[BWD_STEPS], up[BWD_STEPS];
    hy_walk at(first, per_row);
    HY_EACH(k, BWD_STEPS) {
        int64_t i = first + k * HY_STEP_THREADS;
        if (i >= chunks) break;
        place[k] = at.row * 2 * F + at.chunk * A::width;
        slope[k] = dy.fetch(i * A::width);
        gate[k] = gate_up.fetch(place[k]);
        up[k] = gate_up.fetch(place[k] + F);
        at.move(HY_STEP_THREADS, per_row);
    }
    HY_EACH(k, BWD_STEPS) {
        float d[A::width], g[A::width], u[A::width];
        if (first + k * HY_STEP_THREADS >= chunks) break;
        dy.open(slope[k], d);
        gate_up.open(gate[k], g);
        gate_up.open(up[k], u);
        if (is_plain)
            swiglu_gradient<is_fast<A>, A::width>(d, g, u);
        else
            gate_gradient<is_fast<A>, A::width>(kind, d, g, u);
        dgate_up.store(place[k], g);
        dgate_up.store(place[k] + F, u);
        if (has_active) active.store((first + k * HY_STEP_THREADS) * A::width, d);
        if (has_largest) {
            largest = hy_largest_of<A::width>(largest, g);
            largest = hy_largest_of<A::width>(largest, u);
        }
    }
    if (has_largest) hy_keep_largest(dgate_up, largest, out);
}

static bool is_plain_gate(hy_act kind) { return kind == HY_ACT_DEFAULT || kind == HY_ACT_SILU; }

hy_status hy_cuda_swiglu(const hy_cuda_run *run) {
    const hy_tensor *gate_up = &run->call->t[HY_SWIGLU_GATE_UP], *y = &run->call->t[HY_SWIGLU_Y];
    hy_act kind = run->call->attr.act.kind;
    uint32_t *largest;
    hy_status status = HY_OK;
    if (hy_has(&run->call->t[HY_SWIGLU_WEIGHTS])) return hy_cuda_weighted_swiglu(run);
    HY_TRY(hy_begin_largest(run, HY_SWIGLU_LARGEST, &largest));
    hy_by_chunks(hy_width(y), {y, gate_up}, [&](auto access) {
        using A = decltype(access);
        int64_t per_row = hy_width(y) / A::width, chunks = hy_height(y) * per_row;
        auto plain = largest ? swiglu<A, true, true> : swiglu<A, false, true>;
        auto other = largest ? swiglu<A, true, false> : swiglu<A, false, false>;
        auto kernel = is_plain_gate(kind) ? plain : other;
        unsigned blocks = hy_step_blocks(chunks);
        if (run->call->attr.act.has_few_rows)
            status = hy_launch_early(run, kernel, 1, blocks, HY_STEP_THREADS, 0, A::of(gate_up),
                                     A::of(y), largest, chunks, per_row, kind);
        else
            kernel<<<blocks, HY_STEP_THREADS, 0, run->stream>>>(A::of(gate_up), A::of(y), largest,
                                                                chunks, per_row, kind);
    });
    return status == HY_OK ? hy_cuda_launched(run) : status;
}

/* The kernel for the tensors that are given. */
template <typename A, bool is_plain> static auto swiglu_bwd_kernel(bool has_active, bool largest) {
    auto kernel =
        has_active ? swiglu_bwd<A, true, false, is_plain> : swiglu_bwd<A, false, false, is_plain>;
    auto comparing =
        has_active ? swiglu_bwd<A, true, true, is_plain> : swiglu_bwd<A, false, true, is_plain>;
    return largest ? comparing : kernel;
}

hy_status hy_cuda_swiglu_bwd(const hy_cuda_run *run) {
    const hy_tensor *dy = &run->call->t[HY_SWIGLU_BWD_DY],
                    *gate_up = &run->call->t[HY_SWIGLU_BWD_GATE_UP],
                    *dgate_up = &run->call->t[HY_SWIGLU_BWD_DGATE_UP],
                    *active = &run->call->t[HY_SWIGLU_BWD_ACTIVE];
    hy_act kind = run->call->attr.act.kind;
    uint32_t *largest;
    if (hy_has(&run->call->t[HY_SWIGLU_BWD_WEIGHTS])) return hy_cuda_weighted_swiglu_bwd(run);
    HY_TRY(hy_begin_largest(run, HY_SWIGLU_BWD_LARGEST, &largest));
    hy_by_chunks(hy_width(dy), {dy, gate_up, dgate_up, active}, [&](auto access) {
        using A = decltype(access);
        int64_t per_row = hy_width(dy) / A::width, chunks = hy_height(dy) * per_row;
        unsigned blocks = (unsigned)hy_ceil_div(chunks, BWD_STEPS * HY_STEP_THREADS);
        auto kernel = is_plain_gate(kind) ? swiglu_bwd_kernel<A, true>(hy_has(active), largest)
                                          : swiglu_bwd_kernel<A, false>(hy_has(active), largest);
        kernel<<<blocks, HY_STEP_THREADS, 0, run->stream>>>(A::of(dy), A::of(gate_up),
                                                            A::of(dgate_up), A::of(active), largest,
                                                            chunks, per_row, kind);
    });
    return hy_cuda_launched(run);
}
