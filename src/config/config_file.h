/* config_file.h: a configuration file, in libconfig's syntax, as a list of settings.
 *
 * Reading knows the syntax and the table of keys; the caller decides what happens to the values. */
#pragma once

#include "base/text.h"
#include "config/settings.h"

/* Takes one value: `key` as the file names it ("train.batch_size", "lr", an alias), its value as
 * text and its line. */
typedef hy_status (*hy_config_sink)(void *user, const char *key, const char *value, unsigned line);

/* Parses all of `text`, then hands every value to the sink, in the file's order, stopping at the
 * first failure. Errors are HY_ERR_INPUT and begin with "name:line: " ("name: " for a text that is
 * too long). */
hy_status hy_config_file_read(const char *text, size_t size, const char *name, hy_config_sink sink,
                              void *user);

/* The first step (config_guard.c): adds to `out` a text with the same settings on the same lines
 * that is safe for libconfig: bounded, without comments, without an '@', with an L after whole
 * numbers. */
hy_status hy_config_guard(const char *text, size_t size, const char *name, hy_text *out);
