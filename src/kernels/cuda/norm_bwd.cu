/* norm_bwd.cu: layernorm and rmsnorm of rows, backward.
 *
 * With xhat = (x - mean) rstd (rmsnorm: x rstd) and g = dy (offset + w), the gradient of a row is
 *     dx = residual + rstd (g - mean(g) - xhat mean(g xhat)), for rmsnorm without mean(g).
 * dw and db are column sums of dy xhat and dy. A team keeps its threads' columns of both sums in
 * registers while it iterates over its rows; the teams of a block add theirs in order, and the sums
 * of blocks are added at the end (columns.cuh). A row is read before it is written: dx may be
 * residual, or dy. */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/norm.cuh"

/* One call as the kernels see it; dy, x, residual and dx of type T, or of any type in the last
 * part. */
typedef struct norm_bwd_call {
    const void *dy, *x, *w, *residual; /* residual may be NULL */
    const float *mean, *rstd;          /* mean is NULL for rmsnorm */
    void *dx;
    float *partial; /* (blocks, 2, C): dw, then db; NULL: no gradients of weights */
    bool wants_db;
    int64_t N, apart;  /* rows, and elements from one to the next */
    int C, statistics; /* the latter: numbers from the rstd of a row to the next */
    float offset;
    hy_dtype dy_type, x_type, w_type, residual_type, dx_type;
} norm_bwd_call;

static norm_bwd_call norm_bwd_call_of(const hy_op_call *call, int64_t apart, int statistics) {
    const hy_tensor *t = call->t;
    norm_bwd_call n = {};
    n.dy = t[HY_NORM_BWD_DY].data, n.x = t[HY_NORM_BWD_X].data, n.w = t[HY_NORM_BWD_WEIGHT].data,
    n.residual = t[HY_NORM_BWD_RESIDUAL].data, n.dx = t[HY_NORM_BWD_DX].data;
    n.dy_type = t[HY_NORM_BWD_DY].dtype, n.x_type = t[HY_NORM_BWD_X].dtype,
    n.w_type = t[HY_NORM_BWD_WEIGHT].dtype;
    n.residual_type = t[HY_NORM_BWD_RESIDUAL].dtype, n.dx_type = t[HY_NORM_BWD_DX].dtype;
    n.mean = call->attr.norm.is_rms ? NULL : (const float *)t[HY_NORM_BWD_MEAN].data;
    n.rstd = (const float *)t[HY_NORM_BWD_RSTD].data;
    n.wants_db = hy_has(&t[HY_NORM_BWD_DBIAS]);
    bool has_sums = hy_has(&t[HY_NORM_BWD_DWEIGHT]) || n.wants_db;
    n.partial = has_sums ? (float *)call->workspace.data : NULL;
    n.N = hy_height(&t[HY_NORM_BWD_X]);
    n.C = (int)hy_width(&t[HY_NORM_BWD_X]);
    n.apart = apart;
    n.statistics = statistics;
    n.offset = call->attr.norm.offset;
    return n;
}

/* ---- dividing rows --------------------------------------------------------------------------- */

/* The sums of a thread take 16 registers per pack, its packs of the current rows 36 to 48: 128 in
 * total. */
#define RESIDENT 512 /* threads per multiprocessor */
#define NARROW_THREADS 256
#define WIDE_THREADS 512 /* at most */
#define MOST_CHUNKS 3    /* packs per thread */
/* A wide team with one pack per thread loads its next rows while it processes the current ones: too
 * few blocks share a multiprocessor to hide the latency. */
#define IS_AHEAD(chunks, is_wide) ((is_wide) && (chunks) == 1)
/* Rows a team takes at a time. */
#define ROWS(chunks, is_wide) ((chunks) == 3 ? 1 : 2 / ((is_wide) ? 1 : (chunks)))

typedef struct bwd_plan {
    bool is_wide;
    int chunks; /* 0: too wide to hold */
    int threads;
    int64_t blocks;
    size_t bytes; /* of shared memory: weights, and for narrow rows the sums of the block */
} bwd_plan;

/* There are as many blocks as the card holds at once, and they iterate over the rows. Wide rows get
 * up to 256 threads, more only if three packs per thread are not enough. */
static bwd_plan plan_of(const hy_cuda *cuda, int64_t N, int64_t C, hy_dtype dtype) {
    int64_t packs = C / (dtype == HY_F32 ? 4 : 8);
    bwd_plan p = {};
    p.is_wide = packs > 32 * MOST_CHUNKS;
    p.chunks = (int)hy_ceil_div(packs, p.is_wide ? 256 : 32);
    if (p.chunks > MOST_CHUNKS) p.chunks = MOST_CHUNKS;
    p.threads = p.is_wide ? hy_wide_threads(packs, MOST_CHUNKS) : NARROW_THREADS;
    if (packs == 0 || p.threads > WIDE_THREADS) return bwd_plan{};
    if (p.is_wide) p.threads = hy_wide_threads(packs, p.chunks);
    p.bytes = (HY_TEAM_FLOATS + (p.is_wide ? 1 : 3) * (size_t)C) * sizeof(float);
    if (p.bytes > 48 * 1024) return bwd_plan{}; /* available on every card without an attribute */
    int64_t most = (int64_t)cuda->card.multiprocessors * (RESIDENT / p.threads);
    int64_t teams = hy_ceil_div(N, ROWS(p.chunks, p.is_wide));
    if (!p.is_wide) teams = hy_ceil_div(teams, NARROW_THREADS / 32);
    p.blocks = most < teams ? most : teams;
    return p;
}

/* ---- rows in registers ----------------------------------------------------------------------- */

/* The columns of dw and db of a thread. */
template <typename T, int chunks> struct own_columns {
    static constexpr int width = hy_pack<T>::count;
    float dw[chunks][width], db[chunks][width];
    const float *w;
    int rank, size, packs;
};

/* The packs of a thread for a few rows, and the statistics of those rows; zeros past the last
 * row. */
template <typename T, int chunks, bool is_wide> struct held_rows {
    static constexpr int rows = ROWS(chunks, is_wide);
    hy_pack<T> dy[rows][chunks], x[rows][chunks], residual[rows][chunks];
    float mean[rows], rstd[rows];
};

template <typename T, int chunks, bool is_wide>
static __device__ __forceinline__ void fetch_rows(held_rows<T, chunks, is_wide> &held,
                                                  const own_columns<T, chunks> &own,
                                                  const norm_bwd_call &n, int64_t row) {
    HY_EACH(r, held.rows) {
        HY_EACH(p, chunks) {
            int at = own.rank + p * own.size;
            int64_t i = (row + r) * n.apart + at * own.width;
            if (row + r >= n.N || at >= own.packs) break;
            held.dy[r][p] = hy_load_pack((const T *)n.dy + i);
            held.x[r][p] = hy_load_pack((const T *)n.x + i);
            if (n.residual) held.residual[r][p] = hy_load_pack((const T *)n.residual + i);
        }
    }
    HY_EACH(r, held.rows) {
        bool is_there = row + r < n.N;
        held.mean[r] = is_there && n.mean ? n.mean[row + r] : 0.0f;
        held.rstd[r] = is_there ? n.rstd[(row + r) * n.statistics] : 0.0f;
    }
}

/* {sum of g, sum of g xhat} of each row over this thread's columns; adds dy xhat and dy to its sums
 * over rows. */
template <typename T, int chunks, bool is_wide>
static __device__ __forceinline__ void add_rows(own_columns<T, chunks> &own,
                                                held_rows<T, chunks, is_wide> &held,
                                                const norm_bwd_call &n, int64_t row, float *sums) {
    constexpr int width = hy_pack<T>::count, rows = ROWS(chunks, is_wide);
    HY_EACH(r, 2 * rows) sums[r] = 0;
    HY_EACH(p, chunks) {
        float weight[width];
        int at = own.rank + p * own.size;
        if (at >= own.packs) break;
        hy_read_weights<width>(own.w, at, own.packs, weight);
        HY_EACH(r, rows) {
            float dy[width], x[width];
            if (row + r >= n.N) break;
            hy_unpack(held.dy[r][p], dy);
            hy_unpack(held.x[r][p], x);
            HY_EACH(j, width) {
                float xhat = (x[j] - held.mean[r]) * held.rstd[r], g = dy[j] * weight[j];
                sums[2 * r] += g;
                sums[2 * r + 1] += g * xhat;
                own.dw[p][j] += dy[j] * xhat;
                own.db[p][j] += dy[j];
            }
            hy_stay_packed(held.dy[r][p]);
            hy_stay_packed(held.x[r][p]);
        }
    }
}

/* dx = residual + rstd (g - mean_g - xhat mean_gx), means = {mean_g, mean_gx} of each row. */
template <typename T, int chunks, bool is_wide>
static __device__ __forceinline__ void
write_rows(const own_columns<T, chunks> &own, const held_rows<T, chunks, is_wide> &held,
           const norm_bwd_call &n, int64_t row, const float *means) {
    constexpr int width = hy_pack<T>::count, rows = ROWS(chunks, is_wide);
    HY_EACH(p, chunks) {
        float weight[width];
        int at = own.rank + p * own.size;
        if (at >= own.packs) break;
        hy_read_weights<width>(own.w, at, own.packs, weight);
        HY_EACH(r, rows) {
            float dy[width], x[width], out[width] = {0};
            if (row + r >= n.N) break;
            hy_unpack(held.dy[r][p], dy);
            hy_unpack(held.x[r][p], x);
            if (n.residual) hy_unpack(held.residual[r][p], out);
            HY_EACH(j, width) {
                float xhat = (x[j] - held.mean[r]) * held.rstd[r];
                out[j] +=
                    held.rstd[r] * (dy[j] * weight[j] - means[2 * r] - xhat * means[2 * r + 1]);
            }
            hy_store_pack((T *)n.dx + (row + r) * n.apart + at * width, hy_packed<T>(out));
        }
    }
}

/* Adds four sums of a thread to those of the earlier teams, and stores them at `to`. */
static __device__ __forceinline__ void put_four(float4 *to, const float4 *before,
                                                const float *own) {
    float4 sum = before ? *before : make_float4(0, 0, 0, 0);
    *to = make_float4(sum.x + own[0], sum.y + own[1], sum.z + own[2], sum.w + own[3]);
}

/* The teams of a block, one after another, add their sums to `total` (2, C); after the last one it
 * has the sums of the block. A wide block has one team. */
template <typename T, int chunks, bool is_wide>
static __device__ __forceinline__ void write_sums(const own_columns<T, chunks> &own, float *total,
                                                  float *out, int C, bool wants_db) {
    constexpr int width = hy_pack<T>::count;
    int teams = is_wide ? 1 : NARROW_THREADS / 32, mine = is_wide ? 0 : threadIdx.x / 32;
    for (int team = 0; team < teams; team++) {
        float *to = team == teams - 1 ? out : total;
        HY_EACH(i, chunks * width / 4) {
            int p = i * 4 / width, j = i * 4 % width;
            int column = (own.rank + p * own.size) * width + j;
            if (team != mine || column >= C) continue;
            float4 *dw = (float4 *)(total + column), *db = (float4 *)(total + C + column);
            put_four((float4 *)(to + column), team ? dw : NULL, &own.dw[p][j]);
            if (wants_db) put_four((float4 *)(to + C + column), team ? db : NULL, &own.db[p][j]);
        }
        __syncthreads();
    }
}

template <typename T, int chunks, bool is_wide>
static __global__ void __launch_bounds__(is_wide &&chunks == MOST_CHUNKS ? WIDE_THREADS : 256,
                                         is_wide &&chunks == MOST_CHUNKS ? 1 : RESIDENT / 256)
    norm_bwd_rows(norm_bwd_call n) {
    constexpr int width = hy_pack<T>::count, rows = ROWS(chunks, is_wide);
    constexpr bool is_ahead = IS_AHEAD(chunks, is_wide);
    extern __shared__ float4 shared[];
    float *buffer = (float *)shared, *w = buffer + HY_TEAM_FLOATS, *total = w + n.C;
    int turn = 0;
    hy_team<is_wide> team;
    own_columns<T, chunks> own;
    held_rows<T, chunks, is_wide> held, next;
    own.w = w, own.rank = team.rank, own.size = team.size, own.packs = n.C / width;
    HY_EACH(i, chunks * width) own.dw[i / width][i % width] = 0;
    HY_EACH(i, chunks * width) own.db[i / width][i % width] = 0;
    hy_keep_weights<width>(w, n.w, n.w_type, n.offset, n.C);
    __syncthreads();

    int64_t row = team.index * rows, step = team.count * rows;
    if (is_ahead) fetch_rows(next, own, n, row);
    for (; row < n.N; row += step) {
        float means[2 * rows];
        if (is_ahead) held = next;
        fetch_rows(is_ahead ? next : held, own, n, is_ahead ? row + step : row);
        add_rows(own, held, n, row, means);
        hy_team_sums<is_wide>(means, buffer, &turn);
        HY_EACH(r, rows) {
            means[2 * r] = n.mean ? means[2 * r] / (float)n.C : 0.0f;
            means[2 * r + 1] /= (float)n.C;
        }
        write_rows(own, held, n, row, means);
    }
    if (n.partial) {
        float *out = n.partial + (int64_t)blockIdx.x * 2 * n.C;
        write_sums<T, chunks, is_wide>(own, total, out, n.C, n.wants_db);
    }
}

template <typename T>
static void norm_bwd_packed(const hy_cuda_run *run, const norm_bwd_call &n, const bwd_plan &p) {
    void (*kernel)(norm_bwd_call) = p.is_wide ? (p.chunks == 1   ? norm_bwd_rows<T, 1, true>
                                                 : p.chunks == 2 ? norm_bwd_rows<T, 2, true>
                                                                 : norm_bwd_rows<T, 3, true>)
                                              : (p.chunks == 1   ? norm_bwd_rows<T, 1, false>
                                                 : p.chunks == 2 ? norm_bwd_rows<T, 2, false>
                                                                 : norm_bwd_rows<T, 3, false>);
    kernel<<<(unsigned)p.blocks, p.threads, p.bytes, run->stream>>>(n);
}

/* ---- any rows -------------------------------------------------------------------------------- */

#define ANY_THREADS 256

static __global__ void __launch_bounds__(ANY_THREADS) norm_bwd_any(norm_bwd_call n) {
    __shared__ float buffer[HY_TEAM_FLOATS];
    int64_t row = blockIdx.x, base = row * n.apart;
    int turn = 0;
    float mean = n.mean ? n.mean[row] : 0.0f, rstd = n.rstd[row * n.statistics], means[2] = {0, 0};
    for (int c = threadIdx.x; c < n.C; c += ANY_THREADS) {
        float w = n.offset + hy_load_any(n.w, c, n.w_type);
        float g = hy_load_any(n.dy, base + c, n.dy_type) * w;
        means[0] += g;
        means[1] += g * ((hy_load_any(n.x, base + c, n.x_type) - mean) * rstd);
    }
    hy_team_sums<true>(means, buffer, &turn);
    means[0] = n.mean ? means[0] / (float)n.C : 0.0f;
    means[1] /= (float)n.C;
    for (int c = threadIdx.x; c < n.C; c += ANY_THREADS) {
        float w = n.offset + hy_load_any(n.w, c, n.w_type);
        float g = hy_load_any(n.dy, base + c, n.dy_type) * w;
        float xhat = (hy_load_any(n.x, base + c, n.x_type) - mean) * rstd;
        float out = n.residual ? hy_load_any(n.residual, base + c, n.residual_type) : 0.0f;
        out += rstd * (g - means[0] - xhat * means[1]);
        hy_store_any(n.dx, base + c, n.dx_type, out);
    }
}

/* Columns of dy xhat. */
struct weight_source {
    static constexpr int width = 1;
    typedef float chunk;
    norm_bwd_call n;

    __device__ __forceinline__ chunk fetch(int64_t row, int64_t column) const {
        float x = hy_load_any(n.x, row * n.apart + column, n.x_type);
        float dy = hy_load_any(n.dy, row * n.apart + column, n.dy_type);
        return dy * ((x - (n.mean ? n.mean[row] : 0.0f)) * n.rstd[row * n.statistics]);
    }
    __device__ __forceinline__ void add(chunk p, float *sum) const { sum[0] += p; }
};

/* ---- the op ---------------------------------------------------------------------------------- */

/* Room for either way: the choice also depends on the addresses of the tensors. */
size_t hy_cuda_norm_bwd_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_tensor *x = &call->t[HY_NORM_BWD_X];
    int64_t N = hy_height(x), C = hy_width(x);
    if (!hy_has(&call->t[HY_NORM_BWD_DWEIGHT]) && !hy_has(&call->t[HY_NORM_BWD_DBIAS])) return 0;
    size_t packed = (size_t)(plan_of(cuda, N, C, x->dtype).blocks * 2 * C) * sizeof(float);
    size_t single = hy_column_bytes(cuda, N, C, 1);
    return packed > single ? packed : single;
}

hy_status hy_cuda_norm_bwd_apart(const hy_cuda_run *run, int64_t apart, int statistics) {
    const hy_tensor *t = run->call->t;
    const hy_tensor *dw = &t[HY_NORM_BWD_DWEIGHT], *db = &t[HY_NORM_BWD_DBIAS];
    norm_bwd_call n = norm_bwd_call_of(run->call, apart, statistics);
    bwd_plan p = plan_of(run->cuda, n.N, n.C, n.x_type);
    if (p.chunks == 0 ||
        !hy_fit_packs(n.C | apart, {&t[HY_NORM_BWD_X], &t[HY_NORM_BWD_DY], &t[HY_NORM_BWD_RESIDUAL],
                                    &t[HY_NORM_BWD_DX]})) {
        hy_matrix_source<hy_singles> source = {hy_singles::of(&t[HY_NORM_BWD_DY]), n.C};
        if (hy_has(dw)) hy_column_sums(run, weight_source{n}, n.N, dw, n.partial);
        if (hy_has(db)) hy_column_sums(run, source, n.N, db, n.partial);
        norm_bwd_any<<<(unsigned)n.N, ANY_THREADS, 0, run->stream>>>(n); /* may write over dy */
        return hy_cuda_launched(run);
    }
    hy_by_type(n.x_type, [&](auto zero) { norm_bwd_packed<decltype(zero)>(run, n, p); });
    if (n.partial) hy_fold_columns(run, n.partial, p.blocks, 2 * n.C, dw, db);
    return hy_cuda_launched(run);
}

hy_status hy_cuda_norm_bwd(const hy_cuda_run *run) {
    return hy_cuda_norm_bwd_apart(run, hy_width(&run->call->t[HY_NORM_BWD_X]), 1);
}
