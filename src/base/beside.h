/* beside.h: opens a shared object that belongs to this program. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Searches in this order: the path in the environment variable `variable`; next to the library or
 * program that contains this code (lib/ of a build or an installation, lib/hybrid-train of a
 * package); the search path of the loader. Opens the first file that exists. NULL: `why` says what
 * is wrong with that file, or is empty if there is none. */
void *hy_open_beside(const char *file, const char *variable, char *why, size_t size);

/* The path that hy_open_beside opens; the bare name of the file leaves the search to the loader. */
void hy_find_beside(const char *file, const char *variable, char *out, size_t size);

/* The folder of the file that contains this code: bin/ of a program, lib/ of the shared library. */
bool hy_own_folder(char *out, size_t size);
