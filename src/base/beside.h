/* beside.h: opening a shared object of ours that belongs to this program. */
#pragma once

#include <stddef.h>

/* Looked for, in this order: the path that the environment's `variable` gives; beside the library or program that holds
 * this code (lib/ of a build or an installation, lib/hybrid-train of a package); where the loader looks. The
 * first file that is there is opened. NULL: `why` says what was wrong with a file that is there, or is empty where there
 * is none. */
void *hy_open_beside(const char *file, const char *variable, char *why, size_t size);
