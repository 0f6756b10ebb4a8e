/* sha.h: SHA-256 and SHA-1 of bytes that come in pieces (FIPS 180-4), to check downloaded files.
 *
 * SHA-1 is needed because git names files by it. It shows that the bytes are those that were
 * listed, not who wrote them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define HY_SHA_HEX 65 /* room for the longest hash as text */

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
