/* models.c: the built-in models by size, and --list-models: each with its size and shape. */
#include "cli/models.h"

#include <stdlib.h>
#include <string.h>

#include "cli/configure.h"
#include "cli/figures.h"
#include "cli/inspect.h"
#include "cli/table.h"

static int compare_sizes(const void *a, const void *b) {
    const hy_cli_model *x = a, *y = b;
    if (x->parameters != y->parameters) return x->parameters < y->parameters ? -1 : 1;
    return strcmp(x->name, y->name);
}

hy_status hy_cli_models_by_size(hy_cli_model models[HY_CLI_MODELS_MAX], size_t *count) {
    size_t i = 0;
    const char *name;
    for (; i < HY_CLI_MODELS_MAX && (name = hy_builtin_name("model", i)) != NULL; i++) {
        models[i].name = name;
        hy_status status = hy_model_parameters(name, &models[i].parameters);
        if (status != HY_OK) return status;
    }
    qsort(models, i, sizeof models[0], compare_sizes);
    *count = i;
    return HY_OK;
}

/* 0 stands for "as many as heads". */
static const char *kv_heads_of(const hy_config *config) {
    const char *value = hy_cli_value(config, "kv_heads");
    return strcmp(value, "0") == 0 ? hy_cli_value(config, "heads") : value;
}

static hy_status add_model(hy_cli_table *table, const hy_cli_model *model) {
    hy_config *config = NULL;
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = hy_config_set(config, "model", model->name, HY_FROM_CALLER);
    if (status == HY_OK)
        hy_cli_table_row(table, model->name, hy_cli_count(model->parameters).text,
                         hy_cli_value(config, "layers"), hy_cli_value(config, "width"),
                         hy_cli_value(config, "heads"), kv_heads_of(config),
                         hy_cli_value(config, "vocab"), hy_cli_value(config, "context"), NULL);
    hy_config_destroy(config);
    return status;
}

int hy_cli_list_models(const hy_cli_terminal *terminal) {
    hy_cli_table table;
    hy_cli_model models[HY_CLI_MODELS_MAX];
    size_t count = 0;
    hy_status status = hy_cli_models_by_size(models, &count);
    hy_cli_table_begin(&table, "lrrrrrrr");
    hy_cli_table_row(&table, "model", "parameters", "layers", "width", "heads", "kv heads", "vocab",
                     "context", NULL);
    for (size_t i = 0; i < count && status == HY_OK; i++) status = add_model(&table, &models[i]);
    if (status != HY_OK) {
        hy_cli_error("%s", hy_error_message());
        return 1;
    }
    hy_cli_table_print(&table, terminal, true);
    return 0;
}
