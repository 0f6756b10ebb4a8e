/* collect.c: all-gather and reduce-scatter as groups of sends and receives. See collect.h. */
#include "dist/collect.h"

#include <string.h>

#include "base/error.h"
#include "kernels/half.h"

#define TILE 512 /* elements summed at a time: they stay in the first cache */

hy_status hy_all_gather(hy_link *link, void *whole, const uint64_t *offsets, const void *mine) {
    int32_t rank = hy_link_rank(link), count = hy_link_count(link), used = 0;
    hy_piece *sends = hy_link_pieces(link), *receives = sends + count;
    char *own = (char *)whole + offsets[rank];
    uint64_t own_bytes = offsets[rank + 1] - offsets[rank];
    if (mine && own_bytes) memmove(own, mine, (size_t)own_bytes);
    for (int32_t i = 1; i < count; i++) {
        /* Each rank begins with another one, so that not all talk to rank 0 first. */
        int32_t to = (rank + i) % count, from = (rank + count - i) % count;
        uint64_t bytes = offsets[from + 1] - offsets[from];
        sends[used] = (hy_piece){.peer = to, .data = own, .bytes = own_bytes};
        receives[used++] =
            (hy_piece){.peer = from, .data = (char *)whole + offsets[from], .bytes = bytes};
    }
    return hy_link_exchange(link, sends, used, receives, used);
}

/* ---- sums -------------------------------------------------------------------------------------- */

static void read_f32(float *to, const void *from, uint64_t at, uint64_t n, hy_dtype dtype) {
    const uint16_t *half = (const uint16_t *)from + at;
    if (dtype == HY_F32) {
        memcpy(to, (const float *)from + at, n * sizeof *to);
    } else if (dtype == HY_BF16) {
        for (uint64_t i = 0; i < n; i++) to[i] = hy_bf16_to_f32(half[i]);
    } else {
        for (uint64_t i = 0; i < n; i++) to[i] = hy_f16_to_f32(half[i]);
    }
}

static void write_f32(void *to, const float *from, uint64_t at, uint64_t n, hy_dtype dtype) {
    uint16_t *half = (uint16_t *)to + at;
    if (dtype == HY_F32) {
        memcpy((float *)to + at, from, n * sizeof *from);
    } else if (dtype == HY_BF16) {
        for (uint64_t i = 0; i < n; i++) half[i] = hy_f32_to_bf16(from[i]);
    } else {
        for (uint64_t i = 0; i < n; i++) half[i] = hy_f32_to_f16(from[i]);
    }
}

/* parts[r] is where rank r's numbers of this chunk are. */
typedef struct chunk {
    const hy_reduction *what;
    int32_t rank, count;
    uint64_t begin, elements; /* of this rank's part */
    const char *scratch;      /* others' numbers, one after the other by rank */
    uint64_t stride;          /* elements from one to the next there */
} chunk;

static const void *part_of(const chunk *k, int32_t r) {
    uint64_t size = hy_dtype_size(k->what->dtype);
    if (r == k->rank) return (const char *)k->what->whole + (k->what->offsets[r] + k->begin) * size;
    return k->scratch + (uint64_t)(r < k->rank ? r : r - 1) * k->stride * size;
}

static void sum_f32(const chunk *k) {
    float sum[TILE], next[TILE];
    const hy_reduction *w = k->what;
    for (uint64_t at = 0; at < k->elements; at += TILE) {
        uint64_t n = k->elements - at < TILE ? k->elements - at : TILE;
        read_f32(sum, part_of(k, 0), at, n, w->dtype);
        for (int32_t r = 1; r < k->count; r++) {
            read_f32(next, part_of(k, r), at, n, w->dtype);
            for (uint64_t i = 0; i < n; i++) sum[i] += next[i];
        }
        if (w->is_added) {
            read_f32(next, w->out, k->begin + at, n, w->out_dtype);
            for (uint64_t i = 0; i < n; i++) sum[i] = next[i] + sum[i];
        }
        write_f32(w->out, sum, k->begin + at, n, w->out_dtype);
    }
}

static void sum_f64(const chunk *k) {
    double *out = (double *)k->what->out + k->begin;
    for (uint64_t i = 0; i < k->elements; i++) {
        double sum = ((const double *)part_of(k, 0))[i];
        for (int32_t r = 1; r < k->count; r++) sum += ((const double *)part_of(k, r))[i];
        out[i] = k->what->is_added ? out[i] + sum : sum;
    }
}

/* ---- reduce-scatter ---------------------------------------------------------------------------- */

static uint64_t largest_part(const uint64_t *offsets, int32_t count) {
    uint64_t most = 0;
    for (int32_t r = 0; r < count; r++) {
        uint64_t part = offsets[r + 1] - offsets[r];
        if (part > most) most = part;
    }
    return most;
}

uint64_t hy_reduce_scatter_bytes(const hy_link *link, hy_dtype dtype, const uint64_t *offsets) {
    int32_t count = hy_link_count(link);
    return largest_part(offsets, count) * hy_dtype_size(dtype) * (uint64_t)(count - 1);
}

static hy_status check_types(const hy_reduction *w) {
    bool is_f64 = w->dtype == HY_F64;
    bool is_known = is_f64 || w->dtype == HY_F32 || w->dtype == HY_BF16 || w->dtype == HY_F16;
    bool is_out = w->out_dtype == w->dtype || (w->out_dtype == HY_F32 && !is_f64);
    HY_FAIL_IF(!is_known || !is_out, HY_ERR_INPUT,
               "a sum of %s into %s: expected fp32, bf16, fp16 or fp64 into the same or fp32",
               hy_dtype_name(w->dtype), hy_dtype_name(w->out_dtype));
    HY_FAIL_IF(w->is_added && w->out_dtype != HY_F32 && !is_f64, HY_ERR_INPUT,
               "a sum added to %s: expected fp32 or fp64", hy_dtype_name(w->out_dtype));
    return HY_OK;
}

/* Elements `begin` to `begin + most` of a part that has `part`: how many there are. */
static uint64_t elements_in(uint64_t part, uint64_t begin, uint64_t most) {
    uint64_t left = part > begin ? part - begin : 0;
    return left < most ? left : most;
}

static hy_status exchange_chunk(hy_link *link, const chunk *k) {
    const uint64_t *offsets = k->what->offsets;
    uint64_t size = hy_dtype_size(k->what->dtype);
    hy_piece *sends = hy_link_pieces(link), *receives = sends + k->count;
    int32_t send_count = 0, receive_count = 0;
    for (int32_t i = 1; i < k->count; i++) {
        int32_t to = (k->rank + i) % k->count, from = (k->rank + k->count - i) % k->count;
        uint64_t n = elements_in(offsets[to + 1] - offsets[to], k->begin, k->stride);
        char *theirs = (char *)(uintptr_t)k->what->whole + (offsets[to] + k->begin) * size;
        if (n) sends[send_count++] = (hy_piece){.peer = to, .data = theirs, .bytes = n * size};
        if (k->elements)
            receives[receive_count++] = (hy_piece){.peer = from,
                                                   .data = (char *)(uintptr_t)part_of(k, from),
                                                   .bytes = k->elements * size};
    }
    return hy_link_exchange(link, sends, send_count, receives, receive_count);
}

hy_status hy_reduce_scatter(hy_link *link, const hy_reduction *w) {
    HY_TRY(check_types(w));
    chunk k = {
        .what = w, .rank = hy_link_rank(link), .count = hy_link_count(link), .scratch = w->scratch};
    uint64_t most = largest_part(w->offsets, k.count);
    uint64_t part = w->offsets[k.rank + 1] - w->offsets[k.rank];
    uint64_t one = hy_dtype_size(w->dtype) * (uint64_t)(k.count - 1);
    k.stride = one == 0 || w->scratch_bytes / one > most ? most : w->scratch_bytes / one;
    HY_FAIL_IF(most > 0 && k.stride == 0, HY_ERR_INPUT,
               "%llu bytes to receive others' parts in: expected %llu or more",
               (unsigned long long)w->scratch_bytes, (unsigned long long)one);
    for (k.begin = 0; k.begin < most; k.begin += k.stride) {
        k.elements = elements_in(part, k.begin, k.stride);
        HY_TRY(exchange_chunk(link, &k));
        if (w->dtype == HY_F64)
            sum_f64(&k);
        else
            sum_f32(&k);
    }
    return HY_OK;
}
