/* link_checks.h: what must hold over every kind of link; run by each rank of a job. */
#ifndef HY_TESTS_LINK_CHECKS_H
#define HY_TESTS_LINK_CHECKS_H

#include "comm/link.h"
#include "comm_rig.h"

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
        hy_transfer sends[RIG_MOST * PIECES], receives[RIG_MOST * PIECES];
        int send_count = 0, receive_count = 0;
        uint64_t before = hy_link_bytes_sent(link), out = 0;
        for (int p = 0; p < n; p++) {
            for (int i = 0; i < piece_count(round, rank, p); i++) {
                uint64_t number = piece_number(round, rank, p, i),
                         bytes = piece_bytes(number, most);
                uint8_t *data = malloc(bytes + 1);
                fill_bytes(data, bytes, number);
                sends[send_count++] = (hy_transfer){.peer = p, .data = data, .bytes = bytes};
                out += p == rank ? 0 : bytes;
            }
            for (int i = 0; i < piece_count(round, p, rank); i++) {
                uint64_t bytes = piece_bytes(piece_number(round, p, rank, i), most);
                receives[receive_count++] =
                    (hy_transfer){.peer = p, .data = calloc(1, bytes + 1), .bytes = bytes};
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

#endif
