/* config_adapter.h: what adapters bring to a configuration: the values of their folders, what
 * follows from them where nobody says otherwise, and what does not go together with them. */
#pragma once

#include "config/config_file.h"
#include "config/settings.h"

/* Hands rank, alpha and targets of an adapter's folder, or of several, to the sink; its line is
 * 0. */
hy_status hy_config_adapter_read(const char *names, hy_config_sink sink, void *user);
/* The origin of values that came so: this, and the folder. */
#define HY_ADAPTER_ORIGIN "adapter "

/* What a key is by lora and qlora; NULL: they say nothing of it. */
const char *hy_config_adapter_default(const hy_config *config, const char *key);
/* What the learning rate of a preset is multiplied by: `factor`, or with adapters more; 0: it
 * counts as it is. */
double hy_config_adapter_rate(const hy_config *config, double factor);

/* Fills what settings know of where the values of adapters came from. */
void hy_config_adapter_settle(const hy_config *config, hy_settings *settings);

/* HY_ERR_INPUT: what a run would train does not go together with adapters, or it begins with
 * several. */
hy_status hy_settings_check_adapters(const hy_settings *settings);
/* HY_ERR_INPUT where the run would train weights that its model's files hold quantised. */
hy_status hy_settings_check_base(const hy_settings *settings);
