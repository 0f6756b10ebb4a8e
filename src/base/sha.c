/* sha.c: SHA-256, SHA-1 and HMAC, written from FIPS 180-4 and RFC 2104. See sha.h.
 *
 * Both process blocks of 64 bytes as sixteen big-endian words, which are then expanded. The rest of
 * the last block stays in `block`: total % 64 bytes. */
#include "base/sha.h"

#include <assert.h>
#include <endian.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 64

static uint32_t left(uint32_t x, int bits) { return x << bits | x >> (32 - bits); }
static uint32_t right(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void read_words(const uint8_t *block, uint32_t *words) {
    memcpy(words, block, BLOCK);
    for (int i = 0; i < 16; i++) words[i] = be32toh(words[i]);
}

static void eat_sha1(uint32_t *state, const uint8_t *block) {
    uint32_t w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    read_words(block, w);
    for (int i = 16; i < 80; i++) w[i] = left(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        uint32_t mixed = i < 20   ? ((b & c) | (~b & d)) + 0x5A827999u
                         : i < 40 ? (b ^ c ^ d) + 0x6ED9EBA1u
                         : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8F1BBCDCu
                                  : (b ^ c ^ d) + 0xCA62C1D6u;
        uint32_t next = left(a, 5) + mixed + e + w[i];
        e = d, d = c, c = left(b, 30), b = a, a = next;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
}

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static void eat_sha256(uint32_t *state, const uint8_t *block) {
    uint32_t w[64], v[8];
    read_words(block, w);
    for (int i = 16; i < 64; i++) {
        uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (right(x, 7) ^ right(x, 18) ^ x >> 3) +
               (right(y, 17) ^ right(y, 19) ^ y >> 10);
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t choice = (e & v[5]) ^ (~e & v[6]);
        uint32_t majority = (a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]);
        uint32_t first =
            v[7] + (right(e, 6) ^ right(e, 11) ^ right(e, 25)) + choice + round_constants[i] + w[i];
        uint32_t second = (right(a, 2) ^ right(a, 13) ^ right(a, 22)) + majority;
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += first;
        v[0] = first + second;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
}

static void eat(hy_sha *sha, const uint8_t *block) {
    if (sha->kind == HY_SHA1)
        eat_sha1(sha->state, block);
    else
        eat_sha256(sha->state, block);
}

void hy_sha_init(hy_sha *sha, hy_sha_kind kind) {
    static const uint32_t starts[2][8] = {
        {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0},
        {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
         0x5be0cd19}};
    *sha = (hy_sha){.kind = kind};
    memcpy(sha->state, starts[kind], sizeof sha->state);
}

void hy_sha_add(hy_sha *sha, const void *data, size_t size) {
    const uint8_t *p = data;
    while (size > 0) {
        size_t held = sha->total % BLOCK, taken = BLOCK - held < size ? BLOCK - held : size;
        if (taken == BLOCK) {
            eat(sha, p);
        } else {
            memcpy(sha->block + held, p, taken);
            if (held + taken == BLOCK) eat(sha, sha->block);
        }
        sha->total += taken;
        p += taken;
        size -= taken;
    }
}

/* Adds a one bit, zeros up to eight bytes before the end of a block, and the number of bits. */
static hy_sha padded(const hy_sha *sha) {
    static const uint8_t padding[BLOCK] = {0x80};
    hy_sha end = *sha;
    uint64_t bits = htobe64(sha->total * 8);
    size_t held = sha->total % BLOCK;
    hy_sha_add(&end, padding, held < 56 ? 56 - held : 120 - held);
    hy_sha_add(&end, &bits, sizeof bits);
    return end;
}

void hy_sha_text(const hy_sha *sha, char out[HY_SHA_HEX]) {
    hy_sha end = padded(sha);
    for (int i = 0; i < (sha->kind == HY_SHA1 ? 5 : 8); i++)
        snprintf(out + (size_t)8 * (size_t)i, 9, "%08x", end.state[i]);
}

void hy_sha256_bytes(const hy_sha *sha, uint8_t out[HY_SHA256_BYTES]) {
    hy_sha end = padded(sha);
    for (int i = 0; i < 8; i++) end.state[i] = htobe32(end.state[i]);
    memcpy(out, end.state, HY_SHA256_BYTES);
}

/* ---- HMAC ------------------------------------------------------------------------------------ */

void hy_hmac(const void *key, size_t key_size, const void *data, size_t size,
             uint8_t out[HY_SHA256_BYTES]) {
    static const uint8_t masks[2] = {0x36, 0x5c}; /* of the inner and the outer hash */
    assert(key_size <= BLOCK);
    for (int pass = 0; pass < 2; pass++) {
        uint8_t block[BLOCK] = {0};
        hy_sha sha;
        memcpy(block, key, key_size);
        for (int i = 0; i < BLOCK; i++) block[i] ^= masks[pass];
        hy_sha_init(&sha, HY_SHA256);
        hy_sha_add(&sha, block, BLOCK);
        hy_sha_add(&sha, pass == 0 ? data : out, pass == 0 ? size : HY_SHA256_BYTES);
        hy_sha256_bytes(&sha, out);
    }
}

bool hy_hmac_is_equal(const uint8_t a[HY_SHA256_BYTES], const uint8_t b[HY_SHA256_BYTES]) {
    uint8_t differing = 0;
    for (int i = 0; i < HY_SHA256_BYTES; i++) differing |= (uint8_t)(a[i] ^ b[i]);
    return differing == 0;
}
