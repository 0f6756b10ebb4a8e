/* config_values.h: the values of a configuration by origin, for the config module only.
 *
 * The resulting value of a key may depend on other keys (config.c). These functions return the
 * value that the strongest origin gives. */
#pragma once

#include <string.h>

#include "config/settings.h"

/* The text that the strongest origin gives, the rank of that origin (hy_origin; a caller ranks as a
 * flag), and whether it was found in the folder of an adapter or of a run. */
const char *hy_config_raw(const hy_config *config, const char *key);
int hy_config_raw_rank(const hy_config *config, const char *key);
bool hy_config_raw_is_found(const hy_config *config, const char *key);

static inline bool hy_config_is(const hy_config *config, const char *key, const char *text) {
    return strcmp(hy_config_raw(config, key), text) == 0;
}
