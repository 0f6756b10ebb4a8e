/* configure.c: from options to a configuration, and the one case that needs two tries at it.
 *
 * A resumed run is made again from the configuration in its folder. Which folder that is, the
 * options themselves say (--resume, --out, a file), so they are read once to find it and once
 * more on top of what it holds. */
#include "cli/configure.h"

#include <stdio.h>
#include <string.h>

#include "cli/terminal.h"

#define NAME_BYTES 512

const char *hy_cli_value(const hy_config *config, const char *key) {
    const char *value = NULL;
    return hy_config_get(config, key, &value, NULL) == HY_OK && value != NULL ? value : "";
}

/* Tells of a failure of the library, and passes it on. */
static hy_status said(hy_status status) {
    if (status != HY_OK) hy_cli_error("%s", hy_error_message());
    return status;
}

/* ---- putting the options in ------------------------------------------------------------------ */

/* "key=value"; the parser made sure of the sign. */
static hy_status apply_set(hy_config *config, const char *text) {
    char key[NAME_BYTES];
    const char *equals = strchr(text, '=');
    snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
    return hy_config_set(config, key, equals + 1, HY_FROM_SET);
}

static hy_status apply_one(hy_config *config, const hy_cli_setting *setting) {
    switch (setting->meaning) {
    case HY_CLI_IS_SET: return apply_set(config, setting->value);
    case HY_CLI_IS_CONFIG: return hy_config_load(config, setting->value);
    default: return hy_config_set(config, setting->key, setting->value, HY_FROM_FLAG);
    }
}

/* Files first, so that an error in one is told before a flag's. */
static hy_status apply(const hy_cli_options *options, hy_config *config) {
    static const hy_cli_meaning order[] = {HY_CLI_IS_CONFIG, HY_CLI_IS_SET, HY_CLI_IS_KEY};
    for (size_t pass = 0; pass < sizeof order / sizeof order[0]; pass++)
        for (size_t i = 0; i < options->setting_count; i++) {
            const hy_cli_setting *setting = &options->settings[i];
            if (setting->meaning != order[pass]) continue;
            hy_status status = said(apply_one(config, setting));
            if (status != HY_OK) return status;
        }
    return HY_OK;
}

/* ---- resuming -------------------------------------------------------------------------------- */

/* The folder whose run goes on; "" when none does. */
static const char *resumed_folder(const hy_config *config) {
    const char *resume = hy_cli_value(config, "resume"), *out = hy_cli_value(config, "out");
    bool has_out = out[0] != '\0' && strcmp(out, "none") != 0;
    return strcmp(resume, "auto") == 0 && has_out ? out : resume;
}

/* A model that was asked for by name must be the run's own: its shape would be taken from the run,
 * and the name would lie. */
static hy_status check_model(const hy_config *asked, const hy_config *run, const char *folder) {
    const char *wanted = hy_cli_value(asked, "model"), *own = hy_cli_value(run, "model");
    const char *origin = "";
    hy_config_get(asked, "model", NULL, &origin);
    if (strcmp(origin, "default") == 0 || strcmp(wanted, own) == 0) return HY_OK;
    hy_cli_error("cannot resume: %s is a run of another model: %s, and model %s was asked for (%s)",
                 folder, own, wanted, origin);
    return HY_ERR_INPUT;
}

static hy_status begin_from_run(const hy_config *asked, hy_config *run) {
    const char *folder = resumed_folder(asked);
    if (folder[0] == '\0') return HY_OK;
    hy_status status = said(hy_config_load_run(run, folder));
    return status == HY_OK ? check_model(asked, run, folder) : status;
}

hy_status hy_cli_configure(const hy_cli_options *options, hy_config **out) {
    hy_config *asked = NULL, *config = NULL;
    hy_status status = said(hy_config_create(&asked));
    if (status == HY_OK) status = apply(options, asked);
    if (status == HY_OK) status = said(hy_config_create(&config));
    if (status == HY_OK) status = begin_from_run(asked, config);
    if (status == HY_OK) status = apply(options, config);
    hy_config_destroy(asked);
    if (status == HY_OK)
        *out = config;
    else
        hy_config_destroy(config);
    return status;
}
