/* models.h: the built-in models, smallest first. */
#ifndef HY_CLI_MODELS_H
#define HY_CLI_MODELS_H

#include "hybrid.h"

#define HY_CLI_MODELS_MAX 48 /* as many as a table shows on a screen or two */

typedef struct hy_cli_model {
    const char *name; /* the library's string */
    int64_t parameters;
} hy_cli_model;

/* Fills `models` by size and says how many there are. */
hy_status hy_cli_models_by_size(hy_cli_model models[HY_CLI_MODELS_MAX], size_t *count);

#endif
