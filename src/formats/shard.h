/* shard.h: files of tokens.
 *
 * Two formats are read, ours and llm.c's, which differ in their first bytes.
 *   ours:   1024 bytes of header: "HYTOKENS" (8 bytes), u32 version 1, u32 bytes per token (2 or
 *           4), u64 token count, u32 vocabulary size (0: unknown), zeros; then the tokens,
 *           little-endian; the file ends exactly there.
 *   llm.c:  256 int32 of header: 20240520, 1, token count, zeros; then uint16 tokens; the file size
 *           is exactly 1024 + 2 x count. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_shard hy_shard;

bool hy_shard_has_magic(const char *path);                 /* looks like one of the two formats */
hy_status hy_shard_open(const char *path, hy_shard **out); /* checks header and length */
void hy_shard_close(hy_shard *shard);
uint64_t hy_shard_count(const hy_shard *shard);
const char *hy_shard_path(const hy_shard *shard);
uint32_t hy_shard_vocab(const hy_shard *shard); /* 0: unknown */
/* Tokens [first, first + count), which must be inside. An id that does not fit int32 becomes
 * INT32_MAX. */
hy_status hy_shard_read(const hy_shard *shard, uint64_t first, uint64_t count, int32_t *out);
/* Scans all tokens: the largest id (-1: no tokens) and its first position (may be NULL). */
hy_status hy_shard_max_token(const hy_shard *shard, int32_t *largest, uint64_t *where);

/* Writes a shard in our format (2 or 4 bytes per token) under another name, then renames it. */
hy_status hy_shard_write(const char *path, const int32_t *tokens, uint64_t count, uint32_t vocab,
                         int bytes_per_token);
