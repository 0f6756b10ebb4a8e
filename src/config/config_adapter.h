/* config_adapter.h: how adapters affect a configuration.
 *
 * config.c reads the values in adapter folders here, asks for the defaults that lora and qlora
 * change, and checks that settings can be combined with adapters. */
#pragma once

#include "config/config_file.h"
#include "config/settings.h"

/* Passes rank, alpha and targets of one or more adapter folders to the sink, with line 0. `format`
 * becomes the format of the rows that the first one was trained on. */
hy_status hy_config_adapter_read(const char *names, hy_config_sink sink, void *user,
                                 hy_prompt_format *format);

/* The default of a key with lora or qlora; NULL: they do not change it. */
const char *hy_config_adapter_default(const hy_config *config, const char *key);
/* The factor for a preset's learning rate: `factor`, or a larger one with adapters; 0: no
 * change. */
double hy_config_adapter_rate(const hy_config *config, double factor);

/* Records in `settings` which adapter values the user set. */
void hy_config_adapter_resolve(const hy_config *config, hy_settings *settings);

/* HY_ERR_INPUT: the parameters to train cannot be combined with adapters, or the run names several
 * adapters. */
hy_status hy_settings_check_adapters(const hy_settings *settings);
/* HY_ERR_INPUT: the run would train weights that are stored quantised. */
hy_status hy_settings_check_base(const hy_settings *settings);
