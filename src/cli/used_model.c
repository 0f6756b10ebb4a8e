/* used_model.c: from flags to a configuration. See used_model.h. */
#include "cli/used_model.h"

#include <stdlib.h>

#include "cli/program.h"
#include "cli/terminal.h"

static hy_status set_all(const hy_cli_used_model *u, hy_config *config) {
    const char *const pairs[][2] = {{"device", u->device},
                                    {"precision", u->precision},
                                    {"threads", u->threads},
                                    {"max_gpu_mem", u->max_gpu_mem},
                                    {"frozen_dtype", u->frozen_dtype},
                                    {"adapter", u->adapter},
                                    {"base", u->base}};
    hy_status status = HY_OK;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0] && status == HY_OK; i++) {
        if (pairs[i][1] != NULL)
            status = hy_config_set(config, pairs[i][0], pairs[i][1], HY_FROM_FLAG);
    }
    return status == HY_OK ? hy_config_use_model(config, u->model) : status;
}

hy_status hy_cli_configure_model(const hy_cli_used_model *u, hy_config **out) {
    const char *run = "";
    hy_status status = hy_config_create(out);
    if (status == HY_OK) status = set_all(u, *out);
    if (status == HY_OK) status = hy_config_get(*out, "init_from", &run, NULL);
    if (status == HY_OK && u->base != NULL && run[0] == '\0') {
        hy_cli_error("--base is only for a run with adapters; --model %s is not one", u->model);
        exit(HY_EXIT_USAGE);
    }
    return status;
}
