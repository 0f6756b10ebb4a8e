/* hash.c: XXH64, written from its specification (xxhash_spec.md, version 0.1.1). See hash.h.
 *
 * Input is processed in stripes of 32 bytes, eight for each of four lanes; the rest of the last
 * stripe stays in the buffer. `buffered` is always below 32. */
#include "base/hash.h"

#include <endian.h>
#include <string.h>

#define PRIME_1 0x9E3779B185EBCA87u
#define PRIME_2 0xC2B2AE3D27D4EB4Fu
#define PRIME_3 0x165667B19E3779F9u
#define PRIME_4 0x85EBCA77C2B2AE63u
#define PRIME_5 0x27D4EB2F165667C5u

#define STRIPE 32

static uint64_t rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static uint64_t read_u64(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return le64toh(x);
}

static uint32_t read_u32(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return le32toh(x);
}

static uint64_t mix(uint64_t lane, uint64_t word) {
    return rotate(lane + word * PRIME_2, 31) * PRIME_1;
}

/* Processes whole stripes; returns where they end. */
static const uint8_t *eat_stripes(hy_hash *h, const uint8_t *p, size_t stripes) {
    uint64_t a = h->lane[0], b = h->lane[1], c = h->lane[2], d = h->lane[3];
    for (size_t i = 0; i < stripes; i++, p += STRIPE) {
        a = mix(a, read_u64(p));
        b = mix(b, read_u64(p + 8));
        c = mix(c, read_u64(p + 16));
        d = mix(d, read_u64(p + 24));
    }
    h->lane[0] = a;
    h->lane[1] = b;
    h->lane[2] = c;
    h->lane[3] = d;
    return p;
}

void hy_hash_init(hy_hash *h, uint64_t seed) {
    *h = (hy_hash){.seed = seed,
                   .lane = {seed + PRIME_1 + PRIME_2, seed + PRIME_2, seed, seed - PRIME_1}};
}

void hy_hash_add(hy_hash *h, const void *data, size_t size) {
    const uint8_t *p = data;
    if (size == 0) return;
    h->total += size;
    if (h->buffered) {
        size_t room = STRIPE - h->buffered;
        size_t taken = size < room ? size : room;
        memcpy(h->buffer + h->buffered, p, taken);
        h->buffered += (uint32_t)taken;
        if (h->buffered < STRIPE) return;
        eat_stripes(h, h->buffer, 1);
        p += taken;
        size -= taken;
    }
    p = eat_stripes(h, p, size / STRIPE);
    h->buffered = (uint32_t)(size % STRIPE);
    memcpy(h->buffer, p, h->buffered);
}

uint64_t hy_hash_value(const hy_hash *h) {
    uint64_t sum = h->seed + PRIME_5;
    if (h->total >= STRIPE) {
        sum = rotate(h->lane[0], 1) + rotate(h->lane[1], 7) + rotate(h->lane[2], 12) +
              rotate(h->lane[3], 18);
        for (int i = 0; i < 4; i++) sum = (sum ^ mix(0, h->lane[i])) * PRIME_1 + PRIME_4;
    }
    sum += h->total;

    const uint8_t *p = h->buffer, *end = h->buffer + h->buffered;
    for (; end - p >= 8; p += 8) {
        sum = rotate(sum ^ mix(0, read_u64(p)), 27) * PRIME_1 + PRIME_4;
    }
    if (end - p >= 4) {
        sum = rotate(sum ^ read_u32(p) * PRIME_1, 23) * PRIME_2 + PRIME_3;
        p += 4;
    }
    for (; p < end; p++) sum = rotate(sum ^ *p * PRIME_5, 11) * PRIME_1;

    sum = (sum ^ sum >> 33) * PRIME_2;
    sum = (sum ^ sum >> 29) * PRIME_3;
    return sum ^ sum >> 32;
}

uint64_t hy_hash_bytes(const void *data, size_t size, uint64_t seed) {
    hy_hash h;
    hy_hash_init(&h, seed);
    hy_hash_add(&h, data, size);
    return hy_hash_value(&h);
}
