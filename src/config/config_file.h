/* config_file.h: a configuration file, in libconfig's syntax, as a row of settings.
 *
 * Reading knows the syntax and the table of keys; what happens to the values is the caller's. */
#pragma once

#include "config/settings.h"

/* Takes one value: `key` as the file names it ("train.batch_size", "lr", an alias), its value as
 * text and the line it stands on. */
typedef hy_status (*hy_config_sink)(void *user, const char *key, const char *value, unsigned line);

/* Hands every value of `text` to the sink, in the file's order, stopping at the first failure.
 * Errors are HY_ERR_INPUT and begin with "name:line: ". */
hy_status hy_config_file_read(const char *text, size_t size, const char *name, hy_config_sink sink,
                              void *user);
