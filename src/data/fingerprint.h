/* fingerprint.h: whether files hold what they held before, wherever they lie now. */
#pragma once

#include "base/hash.h"
#include "data/input.h"

/* Adds a file's size and content: all of it up to 64 MiB, of a larger one 64 pieces of 1 MiB, spread evenly
 * from the first byte to the last. */
hy_status hy_fingerprint_file(const char *path, hy_hash *hash);
/* Of all files that `data` names (dataset.h), in the order in which they are read, and the weights of a
 * mixture; names and folders are no part of it, and packed files count as they are. 0 for the built-in grammar. */
hy_status hy_fingerprint_data(const char *data, hy_data_format format, uint64_t *out);
