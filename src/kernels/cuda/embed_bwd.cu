/* embed_bwd.cu: gradients of token and position embeddings.
 *
 * The gradient of a token's row is the sum of dx over all positions of the batch that have this
 * token (places), in ascending order. Places are sorted by token (places.cuh) and divided into
 * windows of WINDOW; a block sums the runs of equal tokens in its window. A run inside a window is
 * complete. A run that crosses a border leaves its part in the workspace: `tail` in the window
 * where it begins, `head` in later windows; the block of the first window combines them. So no
 * block sums more than WINDOW rows, however frequent a token is, and no number is added twice.
 * Positions that restart with each document are found by such a sort, too; others are T places
 * apart. */
#include "kernels/cuda/chunks.cuh"
#include "kernels/cuda/places.cuh"

#define WINDOW 32
#define BATCH 8 /* rows a thread loads at once */

/* ---- numbers of the gradient ----------------------------------------------------------------- */

/* out[i ..] (+)= v, `width` numbers; packs if the type allows it. */
template <typename T, int width>
static __device__ __forceinline__ void put_typed(T *out, float *v, bool accumulate) {
    constexpr int count = hy_pack<T>::count;
    if (width % count == 0) {
        HY_EACH(p, width / count) {
            float old[count] = {0};
            if (accumulate) hy_unpack(hy_load_pack(out + p * count), old);
            HY_EACH(j, count) old[j] += v[p * count + j];
            hy_store_pack(out + p * count, hy_packed<T>(old));
        }
    } else {
        HY_EACH(j, width) {
            float old = accumulate ? hy_to_float(out[j]) : 0.0f;
            out[j] = hy_from_float<T>(old + v[j]);
        }
    }
}

template <int width>
static __device__ __forceinline__ void put(void *out, hy_dtype dtype, int64_t i, float *v,
                                           bool accumulate) {
    if (dtype == HY_F32)
        put_typed<float, width>((float *)out + i, v, accumulate);
    else if (dtype == HY_BF16)
        put_typed<__nv_bfloat16, width>((__nv_bfloat16 *)out + i, v, accumulate);
    else
        put_typed<__half, width>((__half *)out + i, v, accumulate);
}

/* ---- windows --------------------------------------------------------------------------------- */

/* One call; scratch memory is in the workspace. */
typedef struct embed_bwd_call {
    hy_token_keys keys;
    const int32_t *places; /* (N) sorted by token */
    int32_t *is_through;   /* (windows): one run fills the window and continues after it */
    float *parts;          /* (windows, 2, C): head, tail */
    void *table;           /* the gradient: of tokens or of positions */
    hy_dtype dtype;
    bool accumulate;
    float scale; /* factor of the sums */
    int N, windows;
    int64_t C;
} embed_bwd_call;

/* The keys of a block's window and of its neighbours on both sides (-1: none). */
typedef struct window_keys {
    int place[WINDOW], key[WINDOW + 2];
} window_keys;

static __device__ __forceinline__ int read_window(const embed_bwd_call &c, window_keys *w) {
    int first = blockIdx.x * WINDOW, count = min(WINDOW, c.N - first);
    for (int i = threadIdx.x; i < count + 2; i += blockDim.x) {
        int at = first + i - 1, place = at >= 0 && at < c.N ? c.places[at] : -1;
        w->key[i] = place >= 0 ? c.keys[place] : -1;
        if (i > 0 && i <= count) w->place[i - 1] = place;
    }
    __syncthreads();
    return count;
}

/* Writes the sum of the run that ends at row i of the window to its place. */
template <int width>
static __device__ __forceinline__ void put_run(const embed_bwd_call &c, const window_keys &w, int i,
                                               int begin, int count, int64_t column, float *sum) {
    int key = w.key[i + 1];
    bool comes_in = begin == 0 && w.key[0] == key, goes_on = i == count - 1 && w.key[i + 2] == key;
    if (key == c.keys.vocabulary) return;
    if (comes_in || goes_on) {
        float *part = c.parts + ((int64_t)blockIdx.x * 2 + (comes_in ? 0 : 1)) * c.C + column;
        put_typed<float, width>(part, sum, false);
    } else {
        HY_EACH(j, width) sum[j] *= c.scale;
        put<width>(c.table, c.dtype, key * c.C + column, sum, c.accumulate);
    }
}

template <typename A> static __global__ void sum_windows(embed_bwd_call c, A dx) {
    constexpr int width = A::width;
    __shared__ window_keys w;
    int count = read_window(c, &w), begin = 0;
    int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * width;
    if (blockIdx.y == 0 && threadIdx.x == 0) {
        c.is_through[blockIdx.x] = w.key[0] == w.key[count] && w.key[1] == w.key[count + 1];
    }
    if (column >= c.C) return;
    float sum[width] = {0};
    for (int first = 0; first < count; first += BATCH) {
        typename A::chunk row[BATCH];
        HY_EACH(k, BATCH) {
            if (first + k < count) row[k] = dx.fetch(w.place[first + k] * c.C + column);
        }
        HY_EACH(k, BATCH) {
            float v[width];
            int i = first + k;
            if (i >= count) break;
            dx.open(row[k], v);
            HY_EACH(j, width) sum[j] += v[j];
            if (i < count - 1 && w.key[i + 2] == w.key[i + 1]) continue;
            put_run<width>(c, w, i, begin, count, column, sum);
            HY_EACH(j, width) sum[j] = 0;
            begin = i + 1;
        }
    }
}

/* The number of later windows that a run reaches: those it fills, and one more. */
static __device__ __forceinline__ int windows_reached(const embed_bwd_call &c, int window) {
    int lane = threadIdx.x % 32, reached = 1;
    for (;; reached += 32) {
        int at = window + reached + lane;
        unsigned through = __ballot_sync(0xffffffffu, at < c.windows && c.is_through[at] != 0);
        if (through != 0xffffffffu) return reached + __ffs(~through) - 1;
    }
}

template <int width>
static __device__ __forceinline__ void add_part(const float *part, float *sum) {
    if (width % 4 == 0) {
        HY_EACH(q, width / 4) {
            hy_pack<float> four = hy_load_pack(part + 4 * q);
            HY_EACH(j, 4) sum[4 * q + j] += four.v[j];
        }
    } else {
        HY_EACH(j, width) sum[j] += part[j];
    }
}

/* Combines the parts of the run that begins in this window and continues after it. */
template <int width>
static __global__ void __launch_bounds__(128, 4) join_windows(embed_bwd_call c) {
    int window = blockIdx.x, last = (window + 1) * WINDOW - 1, first = window * WINDOW;
    int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * width;
    if (last + 1 >= c.N) return;
    int key = c.keys[c.places[last]];
    if (c.keys[c.places[last + 1]] != key || key == c.keys.vocabulary) return;
    bool is_older = first > 0 && c.keys[c.places[first - 1]] == key;
    if (is_older) return;
    int reached = windows_reached(c, window);
    if (column >= c.C) return;
    const float *part = c.parts + ((int64_t)window * 2 + 1) * c.C + column;
    float sum[width] = {0};
    add_part<width>(part, sum);
    part += c.C; /* the head of the next window */
#pragma unroll 8
    for (int i = 0; i < reached; i++) add_part<width>(part + (int64_t)i * 2 * c.C, sum);
    HY_EACH(j, width) sum[j] *= c.scale;
    put<width>(c.table, c.dtype, key * c.C + column, sum, c.accumulate);
}

/* ---- positions ------------------------------------------------------------------------------- */

/* Row t of the position table is used by places t, t + T, t + 2 T, ...; rows from T on by none. */
template <typename A>
static __global__ void sum_positions(A dx, void *dwpe, hy_dtype dtype, int64_t N, int64_t C, int T,
                                     bool accumulate) {
    constexpr int width = A::width;
    int64_t t = blockIdx.x, column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * width;
    if (column >= C) return;
    float sum[width] = {0};
    for (int64_t n = t; n < N; n += (int64_t)BATCH * T) {
        typename A::chunk row[BATCH];
        HY_EACH(k, BATCH) {
            if (n + (int64_t)k * T < N) row[k] = dx.fetch((n + (int64_t)k * T) * C + column);
        }
        HY_EACH(k, BATCH) {
            float v[width];
            if (n + (int64_t)k * T >= N) break;
            dx.open(row[k], v);
            HY_EACH(j, width) sum[j] += v[j];
        }
    }
    put<width>(dwpe, dtype, t * C + column, sum, accumulate);
}

/* ---- the op ---------------------------------------------------------------------------------- */

/* The workspace divided into parts; with base NULL only the size counts. */
typedef struct scratch {
    int32_t *room[2], *counts, *is_through;
    float *parts;
    size_t bytes;
} scratch;

static scratch cut_scratch(char *base, int64_t N, int64_t C) {
    int64_t windows = hy_ceil_div(N, WINDOW);
    size_t sizes[5] = {(size_t)N * 4, (size_t)N * 4, (size_t)hy_sort_tiles(N) * 256 * 4,
                       (size_t)windows * 4, (size_t)(windows * 2 * C) * 4};
    char *at[5];
    scratch s = {};
    for (int i = 0; i < 5; i++) {
        at[i] = base + s.bytes;
        s.bytes += (sizes[i] + 255) / 256 * 256;
    }
    s.room[0] = (int32_t *)at[0], s.room[1] = (int32_t *)at[1];
    s.counts = (int32_t *)at[2], s.is_through = (int32_t *)at[3];
    s.parts = (float *)at[4];
    return s;
}

size_t hy_cuda_embed_bwd_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    (void)cuda;
    if (!hy_has(&call->t[HY_EMBED_BWD_DWTE]) && !hy_has(&call->t[HY_EMBED_BWD_DOC_STARTS]))
        return 0;
    int64_t N = hy_tensor_count(&call->t[HY_EMBED_BWD_TOKENS]);
    return cut_scratch(NULL, N, hy_width(&call->t[HY_EMBED_BWD_DX])).bytes;
}

/* The grid, and the threads of a block, with one chunk of columns per thread. All blocks have the
 * same number of threads, in whole warps. */
static dim3 grid_of(int64_t rows, int64_t chunks) {
    return dim3((unsigned)rows, (unsigned)hy_ceil_div(chunks, 128));
}
static int threads_of(int64_t chunks) {
    return (int)hy_ceil_div(hy_ceil_div(chunks, hy_ceil_div(chunks, 128)), 32) * 32;
}

/* Clears the rows of a tensor from `row` on; zero bits are zero in every type. */
static hy_status clear_rows(const hy_cuda_run *run, const hy_tensor *t, int64_t row) {
    size_t skipped = (size_t)(row * hy_width(t)) * hy_dtype_size(t->dtype);
    size_t bytes = hy_tensor_bytes(t) - skipped;
    if (bytes == 0) return HY_OK;
    return hy_cuda_check(run->cuda,
                         cudaMemsetAsync((char *)t->data + skipped, 0, bytes, run->stream),
                         "clearing the gradient of an embedding");
}

/* Sums dx into the rows of a table, by tokens or, with seq, by positions in documents. */
static hy_status sum_by_keys(const hy_cuda_run *run, int keys, const hy_tensor *table, int seq) {
    const hy_op_call *call = run->call;
    const hy_tensor *dx = &call->t[HY_EMBED_BWD_DX];
    int64_t N = hy_tensor_count(&call->t[HY_EMBED_BWD_TOKENS]), C = hy_width(dx);
    scratch s = cut_scratch((char *)call->workspace.data, N, C);
    embed_bwd_call c = {};
    c.keys = {(const int32_t *)call->t[keys].data, (int32_t)hy_height(table), seq};
    c.places = hy_sort_places(c.keys, (int)N, s.room, s.counts, run->stream);
    c.is_through = s.is_through;
    c.parts = s.parts;
    c.table = table->data;
    c.dtype = table->dtype;
    c.accumulate = call->attr.accumulate;
    c.scale = seq == 0 && call->attr.embed.scale != 0 ? call->attr.embed.scale : 1.0f;
    c.N = (int)N;
    c.windows = (int)hy_ceil_div(N, WINDOW);
    c.C = C;
    if (!c.accumulate) HY_TRY(clear_rows(run, table, 0));
    hy_by_chunks(C, {dx}, [&](auto access) {
        using A = decltype(access);
        dim3 grid = grid_of(c.windows, C / A::width);
        int threads = threads_of(C / A::width);
        sum_windows<<<grid, threads, 0, run->stream>>>(c, A::of(dx));
        join_windows<A::width><<<grid, threads, 0, run->stream>>>(c);
    });
    return hy_cuda_launched(run);
}

static hy_status position_gradient(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *dx = &call->t[HY_EMBED_BWD_DX], *dwpe = &call->t[HY_EMBED_BWD_DWPE];
    int64_t N = hy_tensor_count(&call->t[HY_EMBED_BWD_TOKENS]), C = hy_width(dx);
    int T = call->attr.embed.seq;
    if (hy_has(&call->t[HY_EMBED_BWD_DOC_STARTS])) {
        return sum_by_keys(run, HY_EMBED_BWD_DOC_STARTS, dwpe, T);
    }
    if (!call->attr.accumulate) HY_TRY(clear_rows(run, dwpe, T));
    hy_by_chunks(C, {dx}, [&](auto access) {
        using A = decltype(access);
        int64_t chunks = C / A::width;
        sum_positions<<<grid_of(T, chunks), threads_of(chunks), 0, run->stream>>>(
            A::of(dx), dwpe->data, dwpe->dtype, N, C, T, call->attr.accumulate);
    });
    return hy_cuda_launched(run);
}

hy_status hy_cuda_embed_bwd(const hy_cuda_run *run) {
    const hy_tensor *dwte = &run->call->t[HY_EMBED_BWD_DWTE];
    if (hy_has(dwte)) HY_TRY(sum_by_keys(run, HY_EMBED_BWD_TOKENS, dwte, 0));
    if (hy_has(&run->call->t[HY_EMBED_BWD_DWPE])) HY_TRY(position_gradient(run));
    return HY_OK;
}
