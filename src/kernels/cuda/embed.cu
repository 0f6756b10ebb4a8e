/* embed.cu: token and position embeddings.
 *
 * x[n] = scale wte[token n] + wpe[position of n]. A token outside the vocabulary has no row: its x
 * becomes NaN, so that the loss shows it, because a kernel cannot return an error; so do rows of
 * idle sequences. Quantised rows are read as numbers of x's type. */
#include "kernels/cuda/chunks.cuh"
#include "kernels/cuda/nf4.cuh"
#include "kernels/cuda/positions.cuh"

/* Where rows are. */
typedef struct embed_places {
    int seq;                           /* T; 0: there are no positions */
    bool has_table;                    /* wpe */
    const int32_t *doc_starts, *first; /* or NULL */

    /* The position of a row; -1: its sequence is idle. */
    __device__ __forceinline__ int of(int64_t row) const {
        return seq ? hy_position_of(row, seq, doc_starts, first) : 0;
    }
} embed_places;

static embed_places places_of(const hy_op_call *call) {
    bool has_table = hy_has(&call->t[HY_EMBED_WPE]);
    const int32_t *first = (const int32_t *)call->t[HY_EMBED_FIRST].data;
    int seq = has_table || first ? call->attr.embed.seq : 0;
    return {seq, has_table, (const int32_t *)call->t[HY_EMBED_DOC_STARTS].data, first};
}

template <typename A> struct embed_call {
    const int32_t *tokens;
    A wte, wpe, x;
    int64_t vocabulary, chunks, per_row; /* chunks of x, and of one of its rows */
    embed_places places;
    float scale;
};

template <typename A>
static __global__ void __launch_bounds__(HY_STEP_THREADS) embed(embed_call<A> e) {
    int64_t first = hy_step_first();
    typename A::chunk word[HY_STEPS], place[HY_STEPS];
    bool is_known[HY_STEPS];
    hy_walk at(first, e.per_row);
    HY_EACH(k, HY_STEPS) {
        if (first + k * HY_STEP_THREADS >= e.chunks) break;
        int64_t C = e.per_row * A::width, column = at.chunk * A::width;
        int64_t position = e.places.of(at.row), token = position < 0 ? -1 : e.tokens[at.row];
        is_known[k] = token >= 0 && token < e.vocabulary;
        word[k] = e.wte.fetch((is_known[k] ? token : 0) * C + column);
        if (e.places.has_table) place[k] = e.wpe.fetch(max(position, (int64_t)0) * C + column);
        at.move(HY_STEP_THREADS, e.per_row);
    }
    HY_EACH(k, HY_STEPS) {
        int64_t i = first + k * HY_STEP_THREADS;
        float v[A::width], shift[A::width];
        if (i >= e.chunks) return;
        e.wte.open(word[k], v);
        if (e.places.has_table) e.wpe.open(place[k], shift);
        HY_EACH(j, A::width) {
            float sum = v[j] * e.scale + (e.places.has_table ? shift[j] : 0.0f);
            v[j] = is_known[k] ? sum : __int_as_float(0x7fc00000);
        }
        e.x.store(i * A::width, v);
    }
}

/* Quantised tables. */
struct int8_table {
    const int8_t *codes;
    const float *scales;
    int64_t width;

    static int8_table of(const hy_tensor *t) {
        return {(const int8_t *)t->data, t->quant.scale, t->quant.block};
    }
    __device__ __forceinline__ float at(int64_t row, int64_t column) const {
        return __fmul_rn(scales[row], (float)codes[row * width + column]);
    }
};
struct nf4_table {
    hy_nf4_codes codes;
    int64_t width;

    static nf4_table of(const hy_tensor *t) { return {hy_nf4_codes_of(t), hy_width(t)}; }
    __device__ __forceinline__ float at(int64_t row, int64_t column) const {
        return hy_nf4_at(codes, row * width + column);
    }
};

/* One element per thread: few rows of the table are read, at most a byte per element. */
template <typename T, typename Table>
static __global__ void __launch_bounds__(HY_STEP_THREADS)
    embed_coded(const int32_t *tokens, Table wte, int64_t vocabulary, hy_tensor wpe, T *x,
                int64_t count, embed_places places, float scale) {
    int64_t i = (int64_t)blockIdx.x * HY_STEP_THREADS + threadIdx.x;
    if (i >= count) return;
    int64_t C = wte.width, row = i / C, column = i % C, position = places.of(row);
    int64_t token = position < 0 ? -1 : tokens[row];
    if (token < 0 || token >= vocabulary) {
        x[i] = hy_from_float<T>(__int_as_float(0x7fc00000));
        return;
    }
    /* Rounded before a position is added, as after a cast. 0 is added as well, as for other tables,
     * which turns a negative zero into zero. */
    float v = hy_to_float(hy_from_float<T>(wte.at(token, column))), place = 0;
    if (places.has_table) place = hy_load_any(wpe.data, position * C + column, wpe.dtype);
    x[i] = hy_from_float<T>(v * scale + place);
}

static float scale_of(const hy_op_call *call) {
    return call->attr.embed.scale != 0 ? call->attr.embed.scale : 1.0f;
}

template <typename Table> static hy_status run_coded(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t, *x = &t[HY_EMBED_X];
    int64_t count = hy_tensor_count(x);
    unsigned blocks = (unsigned)hy_ceil_div(count, HY_STEP_THREADS);
    hy_by_type(x->dtype, [&](auto zero) {
        using T = decltype(zero);
        embed_coded<T, Table><<<blocks, HY_STEP_THREADS, 0, run->stream>>>(
            (const int32_t *)t[HY_EMBED_TOKENS].data, Table::of(&t[HY_EMBED_WTE]),
            hy_height(&t[HY_EMBED_WTE]), t[HY_EMBED_WPE], (T *)x->data, count, places_of(run->call),
            scale_of(run->call));
    });
    return hy_cuda_launched(run);
}

hy_status hy_cuda_embed(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *wte = &call->t[HY_EMBED_WTE], *wpe = &call->t[HY_EMBED_WPE],
                    *x = &call->t[HY_EMBED_X];
    if (wte->dtype == HY_I8) return run_coded<int8_table>(run);
    if (wte->dtype == HY_NF4) return run_coded<nf4_table>(run);
    hy_by_chunks(hy_width(x), {x, wte, wpe}, [&](auto access) {
        using A = decltype(access);
        embed_call<A> e = {};
        e.tokens = (const int32_t *)call->t[HY_EMBED_TOKENS].data;
        e.wte = A::of(wte), e.wpe = A::of(wpe), e.x = A::of(x);
        e.vocabulary = hy_height(wte);
        e.per_row = hy_width(x) / A::width;
        e.chunks = hy_height(x) * e.per_row;
        e.places = places_of(call);
        e.scale = scale_of(call);
        embed<<<hy_step_blocks(e.chunks), HY_STEP_THREADS, 0, run->stream>>>(e);
    });
    return hy_cuda_launched(run);
}
