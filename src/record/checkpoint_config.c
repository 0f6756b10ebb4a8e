/* checkpoint_config.c: what a checkpoint's config.cfg says. See state_files.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "config/config_file.h"
#include "record/state_files.h"

static hy_status take_value(void *user, const char *key, const char *value, unsigned line) {
    hy_saved_config *c = user;
    (void)line;
    char *name = strcmp(key, "model") == 0          ? c->model
                 : strcmp(key, "lora.adapter") == 0 ? c->adapter
                                                    : NULL;
    if (!name) return hy_config_set(c->config, key, value, HY_FROM_FILE);
    snprintf(name, HY_TEXT_MAX, "%s", value);
    return HY_OK;
}

hy_status hy_checkpoint_read_config(const char *checkpoint, hy_saved_config *out) {
    char path[HY_PATH_MAX], *text;
    size_t size;
    *out = (hy_saved_config){0};
    HY_TRY(hy_path_join(path, sizeof path, checkpoint, "config.cfg"));
    HY_TRY(hy_file_read(path, &text, &size));
    hy_status status = hy_config_create(&out->config);
    if (status == HY_OK) status = hy_config_file_read(text, size, path, take_value, out);
    free(text);
    if (status != HY_OK) hy_saved_config_free(out);
    return status;
}

void hy_saved_config_free(hy_saved_config *saved) {
    hy_config_destroy(saved->config);
    *saved = (hy_saved_config){0};
}
