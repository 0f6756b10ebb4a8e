/* embed.c: token and position embeddings, and their gradients.
 *
 * The gradient of a token's row is the sum over all positions of the batch that have this token
 * (places). Places are first sorted by token (a stable radix sort of N small numbers), so that each
 * row is summed at once, in the order of the places, in fp32, and rounded once. Tasks are stripes
 * of columns: no two of them access the same number. Positions that restart with each document are
 * summed in the same way; otherwise the places of a position are known without a sort. */
#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/softmax.h"

/* Where each sequence begins; NULL: at position 0. */
static const int32_t *first_of(const hy_op_call *call) {
    return call->kind == HY_OP_EMBED ? call->t[HY_EMBED_FIRST].data : NULL;
}

static bool is_idle(const hy_op_call *call, int64_t place) {
    const int32_t *first = first_of(call);
    return first && first[place / call->attr.embed.seq] < 0;
}

static hy_status check_tokens(const hy_op_call *call, int64_t vocabulary) {
    const int32_t *tokens = call->t[HY_EMBED_TOKENS].data;
    int64_t N = hy_tensor_count(&call->t[HY_EMBED_TOKENS]);
    for (int64_t i = 0; i < N; i++) {
        if (is_idle(call, i)) continue;
        if (tokens[i] >= 0 && tokens[i] < vocabulary) continue;
        return hy_fail(HY_ERR_INPUT, "%s: token %lld is %d, expected 0 to %lld",
                       hy_op_name(call->kind), (long long)i, tokens[i],
                       (long long)(vocabulary - 1));
    }
    return HY_OK;
}

static hy_status check_doc_starts(const hy_op_call *call) {
    return hy_check_doc_starts(call, call->t[HY_EMBED_DOC_STARTS].data,
                               hy_tensor_count(&call->t[HY_EMBED_TOKENS]), call->attr.embed.seq);
}

/* Positions are below the rows of the position table. */
static hy_status check_first(const hy_op_call *call) {
    const int32_t *first = first_of(call);
    int64_t T = call->attr.embed.seq, rows = hy_tensor_height(&call->t[HY_EMBED_WPE]);
    for (int64_t b = 0; first && b < hy_tensor_count(&call->t[HY_EMBED_FIRST]); b++) {
        HY_FAIL_IF(first[b] >= 0 && first[b] + T > rows, HY_ERR_INPUT,
                   "embedding: sequence %lld ends at position %lld, but wpe has %lld rows",
                   (long long)b, (long long)(first[b] + T), (long long)rows);
    }
    return HY_OK;
}

/* The row of the position table for a place. */
static int64_t position_of(const hy_op_call *call, int64_t place) {
    const int32_t *doc_starts = call->t[HY_EMBED_DOC_STARTS].data, *first = first_of(call);
    int64_t T = call->attr.embed.seq;
    return place % T - (doc_starts ? doc_starts[place] : 0) + (first ? first[place / T] : 0);
}

/* The factor of the rows of the token table. */
static float scale_of(const hy_op_call *call) {
    return call->attr.embed.scale != 0 ? call->attr.embed.scale : 1;
}

/* ---- forward --------------------------------------------------------------------------------- */

static void embed_row(const hy_op_call *call, int64_t row) {
    const hy_tensor *wte = &call->t[HY_EMBED_WTE], *wpe = &call->t[HY_EMBED_WPE],
                    *x = &call->t[HY_EMBED_X];
    int64_t C = hy_tensor_width(x), token = ((const int32_t *)call->t[HY_EMBED_TOKENS].data)[row];
    float a[HY_CPU_RUN], b[HY_CPU_RUN], out[HY_CPU_RUN];
    for (int64_t at = 0; at < C; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, C - at);
        const float *values = a;
        if (hy_is_coded(wte->dtype)) {
            hy_cpu_read_coded(wte, token * C + at, n, x->dtype, a);
        } else {
            values = hy_read(wte, token * C + at, n, a);
        }
        if (scale_of(call) != 1) {
            if (values != a) memcpy(a, values, (size_t)n * sizeof *a);
            hy_cpu_scale(a, scale_of(call), n);
            values = a;
        }
        if (hy_tensor_is_given(wpe)) {
            int64_t position = position_of(call, row);
            float *sum = hy_target(x, row * C + at, out);
            hy_cpu_add(values, hy_read(wpe, position * C + at, n, b), sum, n);
            hy_write(x, row * C + at, n, sum);
        } else {
            hy_cpu_narrow(x->dtype, values, hy_element(x, row * C + at), n);
        }
    }
}

static void embed_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    for (int64_t row = first; row < first + rows; row++) {
        if (!is_idle(call, row)) embed_row(call, row);
    }
}

hy_status hy_cpu_embed(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    HY_TRY(check_tokens(call, hy_tensor_height(&call->t[HY_EMBED_WTE])));
    if (hy_tensor_is_given(&call->t[HY_EMBED_WPE])) {
        HY_TRY(check_doc_starts(call));
        HY_TRY(check_first(call));
    }
    return hy_cpu_for_rows(run, hy_tensor_count(&call->t[HY_EMBED_TOKENS]),
                           hy_max64(1, 16 * 1024 / hy_tensor_width(&call->t[HY_EMBED_X])),
                           embed_rows);
}

/* ---- places sorted by token, or by position -------------------------------------------------- */

/* Arrays of N numbers: places, which the sort moves between two arrays, and positions as keys. */
enum { PLACES, OTHER_PLACES, POSITIONS };

static bool has_documents(const hy_op_call *call) {
    return hy_tensor_is_given(&call->t[HY_EMBED_BWD_DWPE]) &&
           hy_tensor_is_given(&call->t[HY_EMBED_BWD_DOC_STARTS]);
}

static size_t array_bytes(const hy_op_call *call) {
    return hy_cpu_aligned((size_t)hy_tensor_count(&call->t[HY_EMBED_BWD_TOKENS]) * sizeof(int32_t));
}

static int32_t *array_of(const hy_op_call *call, int which) {
    return (int32_t *)((char *)call->workspace.data + (size_t)which * array_bytes(call));
}

size_t hy_cpu_embed_bwd_workspace(const hy_op_call *call, int threads) {
    (void)threads;
    return (has_documents(call) ? 3 : 2) * array_bytes(call);
}

/* One pass of the radix sort: by 8 bits of the key, stable. */
static void sort_pass(const int32_t *keys, int shift, const int32_t *in, int32_t *out, int64_t n) {
    int64_t start[257] = {0};
    for (int64_t i = 0; i < n; i++) start[(keys[in[i]] >> shift & 255) + 1]++;
    for (int d = 0; d < 256; d++) start[d + 1] += start[d];
    for (int64_t i = 0; i < n; i++) out[start[keys[in[i]] >> shift & 255]++] = in[i];
}

/* After four passes the result is in the first array again. */
static void sort_places(const hy_op_call *call, const int32_t *keys) {
    int64_t N = hy_tensor_count(&call->t[HY_EMBED_BWD_TOKENS]);
    int32_t *one = array_of(call, PLACES), *other = array_of(call, OTHER_PLACES);
    for (int64_t i = 0; i < N; i++) one[i] = (int32_t)i;
    for (int shift = 0; shift < 32; shift += 16) {
        sort_pass(keys, shift, one, other, N);
        sort_pass(keys, shift + 8, other, one, N);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

#define STRIPE 64

/* out[row] (+)= sum of dx over `count` places, on columns [col, col + n), times the scale of the
 * token table. */
static void sum_places(const hy_op_call *call, const hy_tensor *out, int64_t row,
                       const int32_t *places, int64_t count, int64_t step, int64_t col, int64_t n) {
    const hy_tensor *dx = &call->t[HY_EMBED_BWD_DX];
    int64_t C = hy_tensor_width(dx);
    float sum[STRIPE] = {0}, buffer[STRIPE];
    for (int64_t i = 0; i < count; i++) {
        int64_t place = places ? places[i] : row + i * step;
        hy_cpu_add(sum, hy_read(dx, place * C + col, n, buffer), sum, n);
    }
    if (out == &call->t[HY_EMBED_BWD_DWTE] && scale_of(call) != 1) {
        hy_cpu_scale(sum, scale_of(call), n);
    }
    if (call->attr.accumulate) hy_cpu_add(sum, hy_read(out, row * C + col, n, buffer), sum, n);
    hy_cpu_narrow(out->dtype, sum, hy_element(out, row * C + col), n);
}

/* Some columns of a table: sums the places of each key into its row. */
static void sum_columns(const hy_op_call *call, const int32_t *keys, const hy_tensor *out,
                        int64_t col, int64_t n) {
    const int32_t *places = array_of(call, PLACES);
    int64_t N = hy_tensor_count(&call->t[HY_EMBED_BWD_TOKENS]);
    for (int64_t i = 0, end; i < N; i = end) {
        int32_t key = keys[places[i]];
        for (end = i + 1; end < N && keys[places[end]] == key;) end++;
        sum_places(call, out, key, places + i, end - i, 0, col, n);
    }
}

static void token_columns(const hy_op_call *call, int64_t col, int64_t n) {
    sum_columns(call, call->t[HY_EMBED_BWD_TOKENS].data, &call->t[HY_EMBED_BWD_DWTE], col, n);
}

static void document_position_columns(const hy_op_call *call, int64_t col, int64_t n) {
    sum_columns(call, array_of(call, POSITIONS), &call->t[HY_EMBED_BWD_DWPE], col, n);
}

/* Row t of the position table is used by places t, t + T, t + 2 T, ... */
static void position_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    int64_t N = hy_tensor_count(&call->t[HY_EMBED_BWD_TOKENS]);
    int64_t C = hy_tensor_width(&call->t[HY_EMBED_BWD_DX]), T = call->attr.embed.seq;
    for (int64_t t = first; t < first + rows; t++) {
        int64_t count = t < N ? (N - t - 1) / T + 1 : 0;
        for (int64_t col = 0; col < C; col += STRIPE) {
            sum_places(call, &call->t[HY_EMBED_BWD_DWPE], t, NULL, count, T, col,
                       hy_min64(STRIPE, C - col));
        }
    }
}

/* Clears the rows of a table from `first` on, unless they are added to. */
static hy_status clear_rows(const hy_cpu_run *run, const hy_tensor *table, int64_t first) {
    int64_t rows = hy_tensor_height(table) - first;
    hy_op_call fill = {.kind = HY_OP_FILL, .t[HY_FILL_DST] = hy_tensor_rows(table, first, rows)};
    hy_cpu_run filling = *run;
    filling.call = &fill;
    return run->call->attr.accumulate || rows == 0 ? HY_OK : hy_cpu_fill(&filling);
}

static hy_status token_gradient(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *dwte = &call->t[HY_EMBED_BWD_DWTE];
    HY_TRY(check_tokens(call, hy_tensor_height(dwte)));
    sort_places(call, call->t[HY_EMBED_BWD_TOKENS].data);
    HY_TRY(clear_rows(run, dwte, 0));
    return hy_cpu_for_rows(run, hy_tensor_width(dwte), STRIPE, token_columns);
}

/* Without documents, the first T rows are all written. */
static hy_status position_gradient(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *dwpe = &call->t[HY_EMBED_BWD_DWPE];
    int64_t T = call->attr.embed.seq, N = hy_tensor_count(&call->t[HY_EMBED_BWD_TOKENS]);
    HY_TRY(check_doc_starts(call));
    HY_TRY(clear_rows(run, dwpe, has_documents(call) ? 0 : T));
    if (!has_documents(call)) return hy_cpu_for_rows(run, T, 1, position_rows);
    int32_t *positions = array_of(call, POSITIONS);
    for (int64_t n = 0; n < N; n++) positions[n] = (int32_t)position_of(call, n);
    sort_places(call, positions);
    return hy_cpu_for_rows(run, hy_tensor_width(dwpe), STRIPE, document_position_columns);
}

hy_status hy_cpu_embed_bwd(const hy_cpu_run *run) {
    if (hy_tensor_is_given(&run->call->t[HY_EMBED_BWD_DWTE])) HY_TRY(token_gradient(run));
    return hy_tensor_is_given(&run->call->t[HY_EMBED_BWD_DWPE]) ? position_gradient(run) : HY_OK;
}
