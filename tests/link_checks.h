/* link_checks.h: what must hold over every kind of link; run by each rank of a job. */
#ifndef HY_TESTS_LINK_CHECKS_H
#define HY_TESTS_LINK_CHECKS_H

#include "dist/collect.h"
#include "dist/link.h"
#include "dist_rig.h"
#include "kernels/half.h"

#define PIECES 6 /* at most, from one rank to another in an exchange */

/* Sizes and bytes follow from (round, from, to, which) alone, so that both sides know them. */
static inline uint64_t piece_number(int round, int from, int to, int which) {
    return (((uint64_t)round * 16 + (uint64_t)from) * 16 + (uint64_t)to) * 16 + (uint64_t)which;
}

static inline uint64_t piece_bytes(uint64_t number, uint64_t most) {
    uint64_t kind = hy_rng_below(1, HY_RNG_TEST, number, 4);
    return kind == 0   ? 0
           : kind == 1 ? kind + number % 7
                       : hy_rng_below(2, HY_RNG_TEST, number, most);
}

static inline int piece_count(int round, int from, int to) {
    return (int)hy_rng_below(3, HY_RNG_TEST, piece_number(round, from, to, 0), PIECES);
}

static inline void fill_bytes(uint8_t *data, uint64_t bytes, uint64_t number) {
    for (uint64_t i = 0; i < bytes; i++) data[i] = (uint8_t)((i + number) * 2654435761u >> 13);
}

static inline bool has_bytes(const uint8_t *data, uint64_t bytes, uint64_t number) {
    for (uint64_t i = 0; i < bytes; i++) {
        if (data[i] != (uint8_t)((i + number) * 2654435761u >> 13)) return false;
    }
    return true;
}

/* Every rank sends every rank, itself too, a random number of pieces of random sizes. */
static inline void check_exchanges(hy_link *link, int rounds, uint64_t most) {
    int rank = hy_link_rank(link), n = hy_link_count(link);
    for (int round = 0; round < rounds; round++) {
        hy_piece sends[RIG_MOST * PIECES], receives[RIG_MOST * PIECES];
        int send_count = 0, receive_count = 0;
        uint64_t before = hy_link_bytes_sent(link), out = 0;
        for (int p = 0; p < n; p++) {
            for (int i = 0; i < piece_count(round, rank, p); i++) {
                uint64_t number = piece_number(round, rank, p, i),
                         bytes = piece_bytes(number, most);
                uint8_t *data = malloc(bytes + 1);
                fill_bytes(data, bytes, number);
                sends[send_count++] = (hy_piece){.peer = p, .data = data, .bytes = bytes};
                out += p == rank ? 0 : bytes;
            }
            for (int i = 0; i < piece_count(round, p, rank); i++) {
                uint64_t bytes = piece_bytes(piece_number(round, p, rank, i), most);
                receives[receive_count++] =
                    (hy_piece){.peer = p, .data = calloc(1, bytes + 1), .bytes = bytes};
            }
        }
        require(hy_link_exchange(link, sends, send_count, receives, receive_count) == HY_OK);
        require(hy_link_bytes_sent(link) - before == out);
        for (int p = 0, at = 0; p < n; p++) {
            for (int i = 0; i < piece_count(round, p, rank); i++, at++)
                require(has_bytes(receives[at].data, receives[at].bytes,
                                  piece_number(round, p, rank, i)));
        }
        for (int i = 0; i < send_count; i++) free(sends[i].data);
        for (int i = 0; i < receive_count; i++) free(receives[i].data);
    }
}

/* ---- sums, to the bit ---------------------------------------------------------------------------- */

static inline float test_number(int rank, uint64_t i) {
    double size = i % 11 == 0 ? 1e4 : 1;
    return (float)(size * hy_rng_normal((uint64_t)rank + 20, HY_RNG_TEST, i));
}

static inline void put_number(void *to, uint64_t i, hy_dtype dtype, float value) {
    if (dtype == HY_F64) ((double *)to)[i] = value;
    if (dtype == HY_F32) ((float *)to)[i] = value;
    if (dtype == HY_BF16) ((uint16_t *)to)[i] = hy_f32_to_bf16(value);
    if (dtype == HY_F16) ((uint16_t *)to)[i] = hy_f32_to_f16(value);
}

static inline double number_at(const void *from, uint64_t i, hy_dtype dtype) {
    if (dtype == HY_F64) return ((const double *)from)[i];
    if (dtype == HY_F32) return ((const float *)from)[i];
    uint16_t half = ((const uint16_t *)from)[i];
    return dtype == HY_BF16 ? hy_bf16_to_f32(half) : hy_f16_to_f32(half);
}

/* The sum by the rule, one element at a time. */
static inline void put_expected(void *out, uint64_t i, uint64_t element, int n,
                                const hy_reduction *w, float before) {
    uint64_t one[1];
    double wide = 0;
    float narrow = 0;
    for (int r = 0; r < n; r++) {
        put_number(one, 0, w->dtype, test_number(r, element));
        double x = number_at(one, 0, w->dtype);
        wide = r ? wide + x : x;
        narrow = r ? narrow + (float)x : (float)x;
    }
    if (w->is_added) {
        wide = before + wide;
        narrow = before + narrow;
    }
    if (w->dtype == HY_F64)
        ((double *)out)[i] = wide;
    else
        put_number(out, i, w->out_dtype, narrow);
}

static inline void check_one_sum(hy_link *link, hy_reduction w, uint64_t chunk) {
    int rank = hy_link_rank(link), n = hy_link_count(link);
    uint64_t total = w.offsets[n], part = w.offsets[rank + 1] - w.offsets[rank];
    uint64_t size = hy_dtype_size(w.dtype), out_size = hy_dtype_size(w.out_dtype);
    char *whole = malloc(total * size + 1), *out = malloc(part * out_size + 1);
    char *expected = malloc(part * out_size + 1);
    w.scratch_bytes = chunk ? chunk * size * (uint64_t)(n - 1)
                            : hy_reduce_scatter_bytes(link, w.dtype, w.offsets);
    w.scratch = malloc(w.scratch_bytes + 1);
    for (uint64_t i = 0; i < total; i++) put_number(whole, i, w.dtype, test_number(rank, i));
    for (uint64_t i = 0; i < part; i++) {
        put_number(out, i, w.out_dtype, test_number(77, i));
        put_expected(expected, i, w.offsets[rank] + i, n, &w, test_number(77, i));
    }
    w.whole = whole;
    w.out = out;
    require(hy_reduce_scatter(link, &w) == HY_OK);
    require(memcmp(out, expected, part * out_size) == 0);
    if (w.out_dtype == w.dtype && !w.is_added) { /* in place */
        w.out = whole + w.offsets[rank] * size;
        require(hy_reduce_scatter(link, &w) == HY_OK);
        require(memcmp(w.out, expected, part * size) == 0);
    }
    free(whole);
    free(out);
    free(expected);
    free(w.scratch);
}

static inline void check_sums(hy_link *link) {
    static const hy_reduction kinds[] = {{.dtype = HY_F32, .out_dtype = HY_F32},
                                         {.dtype = HY_F32, .out_dtype = HY_F32, .is_added = true},
                                         {.dtype = HY_BF16, .out_dtype = HY_BF16},
                                         {.dtype = HY_BF16, .out_dtype = HY_F32},
                                         {.dtype = HY_BF16, .out_dtype = HY_F32, .is_added = true},
                                         {.dtype = HY_F16, .out_dtype = HY_F16},
                                         {.dtype = HY_F16, .out_dtype = HY_F32},
                                         {.dtype = HY_F16, .out_dtype = HY_F32, .is_added = true},
                                         {.dtype = HY_F64, .out_dtype = HY_F64},
                                         {.dtype = HY_F64, .out_dtype = HY_F64, .is_added = true}};
    static const uint64_t chunks[] = {0, 1000, 37};
    uint64_t offsets[RIG_MOST + 1] = {0};
    int n = hy_link_count(link);
    for (int r = 0; r < n; r++) /* uneven, one empty */
        offsets[r + 1] = offsets[r] + (r == 1 ? 0 : 1500 + 977 * (uint64_t)((r * 5) % 3));
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (size_t c = 0; c < 3; c++) {
            hy_reduction w = kinds[k];
            w.offsets = offsets;
            check_one_sum(link, w, chunks[c]);
        }
    }
}

static inline void check_gathers(hy_link *link) {
    int rank = hy_link_rank(link), n = hy_link_count(link);
    uint64_t offsets[RIG_MOST + 1] = {0};
    for (int r = 0; r < n; r++)
        offsets[r + 1] = offsets[r] + (r == 2 ? 0 : 100001 * (uint64_t)(r + 1));
    uint8_t *whole = malloc(offsets[n]), *mine = malloc(offsets[rank + 1] - offsets[rank] + 1);
    for (int way = 0; way < 2; way++) {
        uint64_t own = offsets[rank + 1] - offsets[rank];
        memset(whole, 0, offsets[n]);
        fill_bytes(way ? mine : whole + offsets[rank], own, (uint64_t)rank + 9);
        require(hy_all_gather(link, whole, offsets, way ? mine : NULL) == HY_OK);
        for (int r = 0; r < n; r++)
            require(has_bytes(whole + offsets[r], offsets[r + 1] - offsets[r], (uint64_t)r + 9));
    }
    free(whole);
    free(mine);
}

#endif
