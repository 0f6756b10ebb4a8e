/* secret.h: the secret that the ranks of a job share and prove to each other.
 *
 * It comes from the first of these that exists:
 *   HYBRID_SECRET  a variable, which our launcher sets, or the user;
 *   a file         that the user names (--rank-secret-file);
 *   MPI            which sends a secret of rank 0 to all ranks (link_mpi.h);
 *   the user's own file, ~/.config/hybrid-train/rank-secret, if ranks may be on several machines.
 * A file must not be readable by other users. One that does not exist is made, with mode 0600, by
 * the first rank that needs it. Ranks of one machine need no secret: see control_open.c. */
#pragma once

#include <stdbool.h>

#include "base/sha.h"
#include "hybrid_types.h"

typedef struct hy_secret {
    uint8_t bytes[HY_SHA256_BYTES];
    char from[256]; /* where it comes from, for messages; "": there is no secret */
} hy_secret;

/* Reads HYBRID_SECRET, or else `file` unless it is NULL or empty. */
hy_status hy_secret_find_given(const char *file, hy_secret *out);
/* Reads the user's own file. HY_ERR_INPUT: it cannot be read or made; says what to set. */
hy_status hy_secret_find_own(hy_secret *out);
hy_status hy_secret_make(hy_secret *out);
hy_status hy_random_bytes(void *out, size_t size);
/* A secret as text, for HYBRID_SECRET or a file. */
hy_status hy_secret_make_text(char out[HY_SHA_HEX]);
