/* sha.h: SHA-256 and SHA-1 of bytes that come in pieces (FIPS 180-4), to check downloaded files,
 * and HMAC-SHA-256, with which ranks prove that they know a secret.
 *
 * SHA-1 is needed because git names files by it. It shows that the bytes are those that were
 * listed, not who wrote them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HY_SHA_HEX 65 /* room for the longest hash as text */
#define HY_SHA256_BYTES 32

typedef enum hy_sha_kind { HY_SHA1, HY_SHA256 } hy_sha_kind;

typedef struct hy_sha {
    hy_sha_kind kind;
    uint32_t state[8];
    uint64_t total; /* bytes added */
    uint8_t block[64];
} hy_sha;

void hy_sha_init(hy_sha *sha, hy_sha_kind kind);
void hy_sha_add(hy_sha *sha, const void *data, size_t size);
/* The hash of all bytes so far, in lower-case hexadecimal; more may be added. */
void hy_sha_text(const hy_sha *sha, char out[HY_SHA_HEX]);

/* The keyed hash of RFC 2104 with SHA-256. A key has at most 64 bytes. */
void hy_hmac(const void *key, size_t key_size, const void *data, size_t size,
             uint8_t out[HY_SHA256_BYTES]);
/* Compares two hashes in a time that does not depend on where they differ. */
bool hy_hmac_is_equal(const uint8_t a[HY_SHA256_BYTES], const uint8_t b[HY_SHA256_BYTES]);
/* The SHA-256 of all bytes so far; more may be added. */
void hy_sha256_bytes(const hy_sha *sha, uint8_t out[HY_SHA256_BYTES]);
