/* norm_bwd.cu: layernorm and rmsnorm of rows, backward.
 *
 * With xhat = (x - mean) rstd (rmsnorm: x rstd) and g = dy w, the gradient of a row is
 *   dx = residual + rstd (g - mean(g) - xhat mean(g xhat)), for rmsnorm without mean(g).
 * dw and db are column sums of dy xhat and dy. A team keeps its threads' columns of both sums in
 * registers while it walks over its rows; a block's teams add theirs up in order, and the
 * blocks' sums are folded at the end (columns.cuh). A row is read before it is written: dx may
 * be residual. */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/norm.cuh"

/* One call as the kernels see it; dy, x, residual and dx of type T, or of any type in the last
 * part. */
typedef struct norm_bwd_call {
    const void *dy, *x, *w, *residual; /* residual may be NULL */
    const float *mean, *rstd;          /* mean is NULL for rmsnorm */
    void *dx;
    float *partial; /* (blocks, 2, C): dw, then db; NULL: no gradients of weights wanted */
    bool wants_db;
    int64_t N;
    int C;
    hy_dtype dy_type, x_type, w_type, residual_type, dx_type;
} norm_bwd_call;

static norm_bwd_call norm_bwd_call_of(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    norm_bwd_call n = {};
    n.dy = t[0].data, n.x = t[1].data, n.w = t[2].data, n.residual = t[5].data, n.dx = t[6].data;
    n.dy_type = t[0].dtype, n.x_type = t[1].dtype, n.w_type = t[2].dtype;
    n.residual_type = t[5].dtype, n.dx_type = t[6].dtype;
    n.mean = call->attr.norm.is_rms ? NULL : (const float *)t[3].data;
    n.rstd = (const float *)t[4].data;
    n.partial = hy_has(&t[7]) || hy_has(&t[8]) ? (float *)call->workspace.data : NULL;
    n.wants_db = hy_has(&t[8]);
    n.N = hy_height(&t[1]);
    n.C = (int)hy_width(&t[1]);
    return n;
}

/* ---- how rows are shared out ----------------------------------------------------------------- */

/* Threads of a multiprocessor at once, by the packs a thread holds: its sums take 16 registers a
 * pack. */
static constexpr int resident(int pieces, bool is_wide) {
    return pieces > 1 ? 512 : is_wide ? 1024 : 768;
}
#define NARROW_THREADS 256
#define WIDE_THREADS 512 /* at most */
#define MOST_PIECES 3    /* packs a thread */

typedef struct bwd_plan {
    bool is_wide;
    int pieces; /* 0: too wide to hold */
    hy_team_launch launch;
} bwd_plan;

/* Shared memory of a block: weights, sums of its teams, and packs of three tensors on their way. */
static bwd_plan plan_of(const hy_cuda *cuda, int64_t N, int64_t C, hy_dtype dtype) {
    int64_t packs = C / (dtype == HY_F32 ? 4 : 8);
    bwd_plan p = {};
    p.is_wide = packs > 32 * MOST_PIECES;
    p.pieces = (int)hy_ceil_div(packs, p.is_wide ? WIDE_THREADS : 32);
    int threads = p.is_wide ? hy_wide_threads(packs, p.pieces) : NARROW_THREADS;
    size_t fixed = (HY_TEAM_FLOATS + (p.is_wide ? 1 : 3) * (size_t)C) * sizeof(float);
    if (p.pieces > MOST_PIECES || p.pieces == 0) return bwd_plan{};
    p.launch = hy_plan_teams(cuda, N, p.is_wide, threads, resident(p.pieces, p.is_wide), fixed,
                             (size_t)threads * (size_t)p.pieces * 3 * 16);
    return p.launch.bytes ? p : bwd_plan{};
}

/* ---- rows in shared memory ------------------------------------------------------------------- */

/* A thread's columns of dw and db, and what it needs to find its packs of a row. */
template <typename T, int pieces> struct own_columns {
    static constexpr int width = hy_pack<T>::count;
    float dw[pieces][width], db[pieces][width];
    hy_ahead<T, 3 * pieces> ahead; /* dy, x, residual */
    const float *w;
    int rank, size, packs;
};

template <typename T, int pieces>
static __device__ __forceinline__ void bring_row(const own_columns<T, pieces> &own, int stage,
                                                 const norm_bwd_call &n, int64_t row) {
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        int at = own.rank + p * own.size;
        int64_t i = row * n.C + at * hy_pack<T>::count;
        if (row >= n.N || at >= own.packs) break;
        own.ahead.bring(stage, 3 * p, (const T *)n.dy + i);
        own.ahead.bring(stage, 3 * p + 1, (const T *)n.x + i);
        if (n.residual) own.ahead.bring(stage, 3 * p + 2, (const T *)n.residual + i);
    }
    own.ahead.end_row();
}

/* {sum of g, sum of g xhat} over this thread's columns; adds dy xhat and dy to its sums. */
template <typename T, int pieces>
static __device__ __forceinline__ void add_row(own_columns<T, pieces> &own, float mean, float rstd,
                                               float (&sums)[2]) {
    constexpr int width = hy_pack<T>::count;
    sums[0] = sums[1] = 0;
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        float dy[width], x[width], weight[width];
        int at = own.rank + p * own.size;
        if (at >= own.packs) break;
        hy_unpack(*own.ahead.slot(own.ahead.stage, 3 * p), dy);
        hy_unpack(*own.ahead.slot(own.ahead.stage, 3 * p + 1), x);
        hy_read_weights<width>(own.w, at, own.packs, weight);
#pragma unroll
        for (int j = 0; j < width; j++) {
            float xhat = (x[j] - mean) * rstd, g = dy[j] * weight[j];
            sums[0] += g;
            sums[1] += g * xhat;
            own.dw[p][j] += dy[j] * xhat;
            own.db[p][j] += dy[j];
        }
    }
}

/* dx = residual + rstd (g - mean_g - xhat mean_gx), means = {mean_g, mean_gx}. */
template <typename T, int pieces>
static __device__ __forceinline__ void write_row(const own_columns<T, pieces> &own, float mean,
                                                 float rstd, const float (&means)[2],
                                                 bool has_residual, T *dx) {
    constexpr int width = hy_pack<T>::count;
#pragma unroll
    for (int p = 0; p < pieces; p++) {
        float dy[width], x[width], weight[width], out[width] = {0};
        int at = own.rank + p * own.size;
        if (at >= own.packs) break;
        hy_unpack(*own.ahead.slot(own.ahead.stage, 3 * p), dy);
        hy_unpack(*own.ahead.slot(own.ahead.stage, 3 * p + 1), x);
        if (has_residual) hy_unpack(*own.ahead.slot(own.ahead.stage, 3 * p + 2), out);
        hy_read_weights<width>(own.w, at, own.packs, weight);
#pragma unroll
        for (int j = 0; j < width; j++) {
            float xhat = (x[j] - mean) * rstd;
            out[j] += rstd * (dy[j] * weight[j] - means[0] - xhat * means[1]);
        }
        hy_store_pack(dx + at * width, hy_packed<T>(out));
    }
}

/* The teams of a block, one after the other, add their sums to `total` (2, C); the last one has the
 * block's. A wide block has one team. */
template <typename T, int pieces, bool is_wide>
static __device__ __forceinline__ void write_sums(const own_columns<T, pieces> &own, float *total,
                                                  float *out, int C, bool wants_db) {
    constexpr int width = hy_pack<T>::count;
    int teams = is_wide ? 1 : NARROW_THREADS / 32, mine = is_wide ? 0 : threadIdx.x / 32;
    for (int team = 0; team < teams; team++) {
#pragma unroll
        for (int p = 0; p < pieces; p++) {
            int column = (own.rank + p * own.size) * width;
            if (team != mine || column >= C) continue;
            float *to = team == teams - 1 ? out : total;
#pragma unroll
            for (int j = 0; j < width; j++) {
                to[column + j] = (team ? total[column + j] : 0.0f) + own.dw[p][j];
                if (!wants_db) continue;
                to[C + column + j] = (team ? total[C + column + j] : 0.0f) + own.db[p][j];
            }
        }
        __syncthreads();
    }
}

template <typename T, int pieces, bool is_wide>
static __global__ void __launch_bounds__(is_wide ? WIDE_THREADS : NARROW_THREADS,
                                         resident(pieces, is_wide) /
                                             (is_wide ? WIDE_THREADS : NARROW_THREADS))
    norm_bwd_rows(norm_bwd_call n, int stages) {
    constexpr int width = hy_pack<T>::count;
    extern __shared__ float4 shared[];
    float *buffer = (float *)shared, *w = buffer + HY_TEAM_FLOATS, *total = w + n.C;
    int turn = 0;
    hy_team<is_wide> team;
    own_columns<T, pieces> own = {
        {}, {}, {total + (is_wide ? 0 : 2 * n.C), stages}, w, team.rank, team.size, n.C / width};
    for (int s = 0; s < stages - 1; s++) bring_row(own, s, n, team.first + s * team.step);
    hy_keep_weights<width>(w, n.w, n.w_type, 1, n.C);
    __syncthreads();

    for (int64_t row = team.first; row < n.N; row += team.step) {
        bring_row(own, own.ahead.last_stage(), n, row + (stages - 1) * team.step);
        float mean = n.mean ? n.mean[row] : 0.0f, rstd = n.rstd[row], means[2];
        own.ahead.wait();
        add_row(own, mean, rstd, means);
        hy_team_sums<is_wide>(means, buffer, &turn);
        means[0] = n.mean ? means[0] / (float)n.C : 0.0f;
        means[1] /= (float)n.C;
        write_row(own, mean, rstd, means, n.residual != NULL, (T *)n.dx + row * n.C);
        own.ahead.move();
    }
    if (n.partial) {
        float *out = n.partial + (int64_t)blockIdx.x * 2 * n.C;
        write_sums<T, pieces, is_wide>(own, total, out, n.C, n.wants_db);
    }
}

template <typename T, int pieces, bool is_wide>
static hy_status launch_rows(const hy_cuda_run *run, const norm_bwd_call &n,
                             const hy_team_launch &plan) {
    HY_CUDA_TRY(
        hy_want_shared(run->cuda, (const void *)norm_bwd_rows<T, pieces, is_wide>, plan.bytes));
    norm_bwd_rows<T, pieces, is_wide>
        <<<(unsigned)plan.blocks, plan.threads, plan.bytes, run->stream>>>(n, plan.stages);
    return hy_cuda_launched(run);
}

template <typename T>
static hy_status norm_bwd_packed(const hy_cuda_run *run, const norm_bwd_call &n,
                                 const bwd_plan &p) {
    if (p.pieces == 1 && p.is_wide) return launch_rows<T, 1, true>(run, n, p.launch);
    if (p.pieces == 2 && p.is_wide) return launch_rows<T, 2, true>(run, n, p.launch);
    if (p.pieces == 3 && p.is_wide) return launch_rows<T, 3, true>(run, n, p.launch);
    if (p.pieces == 1) return launch_rows<T, 1, false>(run, n, p.launch);
    if (p.pieces == 2) return launch_rows<T, 2, false>(run, n, p.launch);
    return launch_rows<T, 3, false>(run, n, p.launch);
}

/* ---- any rows -------------------------------------------------------------------------------- */

#define ANY_THREADS 256

static __global__ void __launch_bounds__(ANY_THREADS) norm_bwd_any(norm_bwd_call n) {
    __shared__ float buffer[HY_TEAM_FLOATS];
    int64_t row = blockIdx.x, base = row * n.C;
    int turn = 0;
    float mean = n.mean ? n.mean[row] : 0.0f, rstd = n.rstd[row], means[2] = {0, 0};
    for (int c = threadIdx.x; c < n.C; c += ANY_THREADS) {
        float g = hy_load_any(n.dy, base + c, n.dy_type) * hy_load_any(n.w, c, n.w_type);
        means[0] += g;
        means[1] += g * ((hy_load_any(n.x, base + c, n.x_type) - mean) * rstd);
    }
    hy_team_sums<true>(means, buffer, &turn);
    means[0] = n.mean ? means[0] / (float)n.C : 0.0f;
    means[1] /= (float)n.C;
    for (int c = threadIdx.x; c < n.C; c += ANY_THREADS) {
        float g = hy_load_any(n.dy, base + c, n.dy_type) * hy_load_any(n.w, c, n.w_type);
        float xhat = (hy_load_any(n.x, base + c, n.x_type) - mean) * rstd;
        float out = n.residual ? hy_load_any(n.residual, base + c, n.residual_type) : 0.0f;
        out += rstd * (g - means[0] - xhat * means[1]);
        hy_store_any(n.dx, base + c, n.dx_type, out);
    }
}

/* Columns of dy xhat. */
struct weight_source {
    static constexpr int width = 1;
    typedef float piece;
    norm_bwd_call n;

    __device__ __forceinline__ piece fetch(int64_t row, int64_t column) const {
        float x = hy_load_any(n.x, row * n.C + column, n.x_type);
        float dy = hy_load_any(n.dy, row * n.C + column, n.dy_type);
        return dy * ((x - (n.mean ? n.mean[row] : 0.0f)) * n.rstd[row]);
    }
    __device__ __forceinline__ void add(piece p, float *sum) const { sum[0] += p; }
};

static hy_status norm_bwd_loose(const hy_cuda_run *run, const norm_bwd_call &n) {
    const hy_tensor *dy = &run->call->t[0], *dw = &run->call->t[7], *db = &run->call->t[8];
    norm_bwd_any<<<(unsigned)n.N, ANY_THREADS, 0, run->stream>>>(n);
    if (hy_has(dw)) hy_column_sums(run, weight_source{n}, n.N, dw, n.partial);
    if (hy_has(db)) {
        hy_matrix_source<hy_singles> source = {hy_singles::of(dy), n.C};
        hy_column_sums(run, source, n.N, db, n.partial);
    }
    return hy_cuda_launched(run);
}

/* ---- the op ---------------------------------------------------------------------------------- */

/* Room for either way: which one is taken depends on the tensors' addresses too. */
size_t hy_cuda_norm_bwd_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_tensor *x = &call->t[1];
    int64_t N = hy_height(x), C = hy_width(x);
    if (!hy_has(&call->t[7]) && !hy_has(&call->t[8])) return 0;
    size_t packed = (size_t)(plan_of(cuda, N, C, x->dtype).launch.blocks * 2 * C) * sizeof(float);
    size_t single = hy_column_bytes(cuda, N, C, 1);
    return packed > single ? packed : single;
}

hy_status hy_cuda_norm_bwd(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t;
    norm_bwd_call n = norm_bwd_call_of(run->call);
    bwd_plan p = plan_of(run->cuda, n.N, n.C, n.x_type);
    if (p.pieces == 0 || !hy_fit_packs(n.C, {&t[1], &t[0], &t[5], &t[6]})) {
        return norm_bwd_loose(run, n);
    }
    hy_status status = HY_OK;
    hy_by_type(n.x_type, [&](auto zero) { status = norm_bwd_packed<decltype(zero)>(run, n, p); });
    if (status != HY_OK || !n.partial) return status;
    hy_fold fold = {};
    fold.partial = n.partial;
    fold.blocks = p.launch.blocks;
    fold.stride = 2 * n.C;
    fold.target[0] = hy_fold_into(&t[7], 0);
    fold.target[1] = hy_fold_into(&t[8], n.C);
    fold.accumulate = run->call->attr.accumulate;
    hy_fold_columns(fold, run->stream);
    return hy_cuda_launched(run);
}
