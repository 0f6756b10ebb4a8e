/* config_values.h: the values of a configuration as its origins have them: inside the config module
 * only.
 *
 * What a key comes to may follow from others (config.c); this is what was said, by the strongest
 * origin. */
#pragma once

#include <string.h>

#include "config/settings.h"

/* The text of the strongest origin that says this key, which origin that is (hy_origin, a caller's
 * as a flag's), and what it is called. */
const char *hy_config_said(const hy_config *config, const char *key);
int hy_config_said_rank(const hy_config *config, const char *key);
const char *hy_config_said_origin(const hy_config *config, const char *key);

static inline bool hy_config_says(const hy_config *config, const char *key, const char *text) {
    return strcmp(hy_config_said(config, key), text) == 0;
}
