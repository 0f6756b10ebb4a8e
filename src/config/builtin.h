/* builtin.h: the configuration files that are compiled into the library.
 *
 * scripts/embed.sh turns configs/ into one C file at build time. Kinds are "profile" (configs),
 * "model" (configs/models) and "gpu" (configs/gpu). Names are file names without ".cfg"; texts are
 * the files byte for byte. The lookup functions are public: hy_builtin_name, hy_builtin_text. */
#pragma once

#include "base/text.h"
#include "hybrid.h"

typedef struct hy_builtin_file {
    const char *kind, *name, *text;
} hy_builtin_file;

extern const hy_builtin_file hy_builtin_files[]; /* generated; ends with a row of NULL */

/* Adds all names of a kind: "a, b, c". */
void hy_builtin_list(const char *kind, hy_text *out);

/* The name of this kind that is most similar to a wrong one, or NULL. */
const char *hy_builtin_nearest(const char *kind, const char *name);
