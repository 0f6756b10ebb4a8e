/* config_arch.h: what a new model of an architecture has because of its shape.
 *
 * Published models of some families derive a value from their shape, but the class in transformers
 * has a constant as its default. A new model that flags or files describe gets the derived value,
 * unless they name another. */
#pragma once

#include "config/settings.h"

/* The value of shape.arch_options with what follows from the shape; "": it stays as it is. */
void hy_config_arch_options(const hy_config *config, char out[HY_VALUE_MAX]);
/* The layers of the family that have the window; NULL: all, or there is no window. */
const char *hy_config_arch_windows(const hy_config *config);
