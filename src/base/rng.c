/* rng.c: Philox4x32-10 and the distributions drawn from it. See rng.h. */
#include "base/rng.h"

#include <assert.h>
#include <math.h>

void hy_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t hy_rng_u64(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t word[4];
    hy_philox(seed, stream, index, word);
    return (uint64_t)word[1] << 32 | word[0];
}

double hy_rng_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(hy_rng_u64(seed, stream, index) >> 11) * 0x1p-53;
}

double hy_rng_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t word[4];
    hy_philox(seed, stream, index, word);
    /* Box-Muller on two 53-bit uniforms; the first is in (0, 1] so that the logarithm is finite. */
    uint64_t a = (uint64_t)word[1] << 32 | word[0];
    uint64_t b = (uint64_t)word[3] << 32 | word[2];
    double u = ((double)(a >> 11) + 1.0) * 0x1p-53;
    double v = (double)(b >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

uint64_t hy_rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n) {
    assert(n > 0);
    /* Multiply-shift: the bias is below n / 2^64. */
    return (uint64_t)((unsigned __int128)hy_rng_u64(seed, stream, index) * n >> 64);
}

uint64_t hy_rng_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t index) {
    assert(n > 0 && index < n);
    int half = 1;
    while (half < 32 && (uint64_t)1 << (2 * half) < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t x = index;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t mixed = hy_rng_u64(seed, stream, round << 60 ^ right);
            uint64_t next = left ^ (mixed & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= n); /* cycle walking: repeat until it is in range */
    return x;
}
