/* hash.h: XXH64 of memory (algorithm by Y. Collet), incremental.
 *
 * It is fast and detects damage well, but an attacker can construct collisions. The same bytes give
 * the same value, however they are split, on every machine. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct hy_hash {
    uint64_t lane[4], total;
    uint8_t buffer[32];
    uint32_t buffered;
    uint64_t seed;
} hy_hash;

void hy_hash_init(hy_hash *h, uint64_t seed);
void hy_hash_add(hy_hash *h, const void *data, size_t size);
uint64_t hy_hash_value(const hy_hash *h); /* of all bytes so far; more may be added */
uint64_t hy_hash_bytes(const void *data, size_t size, uint64_t seed);
