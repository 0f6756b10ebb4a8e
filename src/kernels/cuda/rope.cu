/* rope.cu: rotary positions, in place on the query and key heads of packed qkv rows.
 *
 * Each pair (i, i + R/2) of the first R elements of a head is rotated by the angle in the table for
 * the row's position, in the backward pass by the opposite angle; rows of an idle sequence stay as
 * they are. A thread reads its part of the table once and applies it to several heads of the row;
 * it loads all their values before it stores any. If queries are multiplied by a factor of their
 * position, so is the rest of the head: its halves are pairs that are not rotated. */
#include "kernels/cuda/chunks.cuh"
#include "kernels/cuda/positions.cuh"

#define THREADS 256
#define HEADS 4 /* heads per thread */

typedef struct rope_shape {
    int64_t rows, row_width; /* N, (H+2K)D */
    int seq, heads;          /* T, H+K: values are not rotated */
    int D, half, rest;       /* head size, R/2, and half of the other elements */
    int chunks, groups;      /* of the pairs of a head; of HEADS heads */
    int rows_per_block;
    int queries;          /* H */
    const int32_t *first; /* positions of sequences; NULL: all begin at 0 */
    const float *query;   /* factor of queries by position; NULL: none */
    float direction;      /* 1, or -1 to rotate back */
} rope_shape;

/* cos and sin of `width` pairs from pair `first` on. */
template <int width>
static __device__ __forceinline__ void read_angles(const float *table, int first, float direction,
                                                   float *cosine, float *sine) {
    const float2 *pairs = (const float2 *)table + first;
    HY_EACH(j, width) {
        float2 pair = pairs[j];
        cosine[j] = pair.x;
        sine[j] = pair.y * direction;
    }
}

template <int width>
static __device__ __forceinline__ void turn(const float *cosine, const float *sine, float *a,
                                            float *b) {
    HY_EACH(j, width) {
        float first = a[j], second = b[j];
        a[j] = first * cosine[j] - second * sine[j];
        b[j] = first * sine[j] + second * cosine[j];
    }
}

/* Pairs from chunk `chunk` of a head on, on heads [head, head + HEADS) of a row. */
template <typename A, bool has_query>
static __device__ __forceinline__ void rope_heads(A qkv, const float *table, const rope_shape &s,
                                                  int64_t row, int head, int chunk) {
    float cosine[A::width], sine[A::width];
    typename A::chunk low[HEADS], high[HEADS];
    int position = hy_position_of(row, s.seq, NULL, s.first);
    if (position < 0) return;
    int first = chunk * A::width;
    bool is_turned = !has_query || first < s.half;
    int64_t at = row * s.row_width + first + (is_turned ? 0 : s.half), D = s.D;
    int apart = is_turned ? s.half : s.rest;
    HY_EACH(h, HEADS) {
        if (head + h >= s.heads) break;
        low[h] = qkv.fetch(at + (head + h) * D);
        high[h] = qkv.fetch(at + (head + h) * D + apart);
    }
    if (is_turned) {
        read_angles<A::width>(table + (int64_t)position * (2 * s.half), first, s.direction, cosine,
                              sine);
    }
    HY_EACH(h, HEADS) {
        float a[A::width], b[A::width];
        if (head + h >= s.heads) return;
        qkv.open(low[h], a);
        qkv.open(high[h], b);
        if (is_turned) turn<A::width>(cosine, sine, a, b);
        if (has_query && head + h < s.queries) {
            float factor = s.query[position];
            HY_EACH(j, A::width) a[j] *= factor, b[j] *= factor;
        }
        qkv.store(at + (head + h) * D, a);
        qkv.store(at + (head + h) * D + apart, b);
    }
}

template <typename A, bool has_query>
static __global__ void __launch_bounds__(THREADS) rope(A qkv, const float *table, rope_shape s) {
    int per_row = s.chunks * s.groups;
    hy_let_next_start();
    hy_wait_for_previous();
    for (int i = threadIdx.x; i < s.rows_per_block * per_row; i += THREADS) {
        int64_t row = (int64_t)blockIdx.x * s.rows_per_block + i / per_row;
        int rest = i % per_row;
        if (row >= s.rows) return;
        rope_heads<A, has_query>(qkv, table, s, row, rest / s.chunks * HEADS, rest % s.chunks);
    }
}

hy_status hy_cuda_rope(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *qkv = &call->t[HY_ROPE_QKV];
    rope_shape s = {};
    s.rows = hy_height(qkv);
    s.row_width = hy_width(qkv);
    s.seq = call->attr.heads.seq;
    s.heads = call->attr.heads.heads + call->attr.heads.kv_heads;
    s.D = call->attr.heads.head_dim;
    s.half = (call->attr.heads.rotary ? call->attr.heads.rotary : s.D) / 2;
    s.first = (const int32_t *)call->t[HY_ROPE_FIRST].data;
    s.query = (const float *)call->t[HY_ROPE_QUERY].data;
    s.queries = call->attr.heads.heads;
    s.rest = s.query ? s.D / 2 - s.half : 0;
    s.groups = (int)hy_ceil_div(s.heads, HEADS);
    s.direction = call->attr.heads.inverse ? -1.0f : 1.0f;
    hy_status status = HY_OK;
    /* Heads begin at multiples of D. */
    hy_by_chunks(s.half | s.rest | s.D, {qkv}, [&](auto access) {
        using A = decltype(access);
        auto kernel = s.query ? rope<A, true> : rope<A, false>;
        s.chunks = (s.half + s.rest) / A::width;
        s.rows_per_block = max(1, THREADS / (s.chunks * s.groups));
        unsigned blocks = (unsigned)hy_ceil_div(s.rows, s.rows_per_block);
        const float *table = (const float *)call->t[HY_ROPE_TABLE].data;
        if (s.first)
            status = hy_launch_early(run, kernel, 1, blocks, THREADS, 0, A::of(qkv), table, s);
        else
            kernel<<<blocks, THREADS, 0, run->stream>>>(A::of(qkv), table, s);
    });
    return status == HY_OK ? hy_cuda_launched(run) : status;
}
