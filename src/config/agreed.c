/* agreed.c: a hash of the settings that all ranks of a run must share. See settings.h. */
#include <string.h>

#include "base/hash.h"
#include "config/settings.h"

uint64_t hy_settings_agreed(const hy_settings *settings) {
    hy_hash hash;
    hy_hash_init(&hash, 0);
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const hy_setting *setting = hy_setting_at(i);
        char text[HY_TEXT_MAX];
        if (setting->is_local) continue;
        hy_setting_format(setting, settings, text);
        /* The terminating zeros count too, so that no two lists of values give the same bytes. */
        hy_hash_add(&hash, setting->info.key, strlen(setting->info.key) + 1);
        hy_hash_add(&hash, text, strlen(text) + 1);
    }
    return hy_hash_value(&hash);
}
