/* fingerprint.h: hashes that show whether files still have the same content, wherever they are.
 *
 * A run stores the hashes of its data and of the weights it started from. On resuming, other hashes
 * mean that someone has changed the files. */
#pragma once

#include "base/hash.h"
#include "data/input.h"

/* Adds the size and content of a file: all of it up to 64 MiB; for a larger file 64 pieces of 1
 * MiB, spread evenly from the first byte to the last. */
hy_status hy_fingerprint_file(const char *path, hy_hash *hash);
/* The hash of all files that `data` names (dataset.h), in reading order, and of the weights of a
 * mixture. File names and folders do not count; compressed files are hashed as they are. 0 for the
 * built-in grammar. */
hy_status hy_fingerprint_data(const char *data, hy_data_format format, uint64_t *out);
