/* config_file.h: reads a configuration file as a list of settings: libconfig, or YAML or JSON if
 * its name ends in .yaml, .yml or .json.
 *
 * This code knows the syntax and the table of keys; the caller decides what to do with the
 * values. */
#pragma once

#include "base/text.h"
#include "config/settings.h"

/* Receives one value: `key` as the file names it ("train.batch_size", "lr", an alias), the value as
 * text and its line. */
typedef hy_status (*hy_config_sink)(void *user, const char *key, const char *value, unsigned line);

/* Parses `text`, then passes every value to the sink in the order of the file. Errors are
 * HY_ERR_INPUT and begin with "name:line: " ("name: " if the text is too long). Wrong keys and
 * values are all reported, a line for each; any other failure ends the reading. */
hy_status hy_config_file_read(const char *text, size_t size, const char *name, hy_config_sink sink,
                              void *user);

hy_status hy_config_check_size(size_t size, const char *name); /* at most 256 KiB */

/* For YAML and JSON (config_yaml.c): adds the same settings to `out` in libconfig syntax, on the
 * same lines. */
hy_status hy_config_from_yaml(const char *text, size_t size, const char *name, hy_text *out);

/* The next step (config_guard.c): adds to `out` a text with the same settings on the same lines
 * that is safe for libconfig: limited in size, without comments and '@', with an L after
 * integers. */
hy_status hy_config_guard(const char *text, size_t size, const char *name, hy_text *out);
