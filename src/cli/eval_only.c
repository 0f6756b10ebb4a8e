/* eval_only.c: see eval_only.h. Nothing is written but the answer. */
#include "cli/eval_only.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/configure.h"
#include "cli/figures.h"
#include "cli/progress.h"

static hy_status said(hy_status status) {
    if (status != HY_OK) hy_cli_error("%s", hy_error_message());
    return status;
}

/* Leaves --model out, because a run's folder is no value of that key; gives what it was last. */
static const char *take_model(hy_cli_options *options) {
    const char *model = NULL;
    size_t kept = 0;
    for (size_t i = 0; i < options->setting_count; i++) {
        hy_cli_setting *setting = &options->settings[i];
        bool is_model = setting->meaning == HY_CLI_IS_KEY && strcmp(setting->key, "model") == 0;
        if (is_model)
            model = setting->value;
        else
            options->settings[kept++] = *setting;
    }
    options->setting_count = kept;
    return model;
}

static hy_status configure(const hy_cli_options *options, hy_config **config) {
    hy_cli_options rest = *options;
    rest.settings = calloc(options->setting_count + 1, sizeof *rest.settings);
    if (rest.settings == NULL) {
        hy_cli_error("no memory for the options");
        return HY_ERR_MEMORY;
    }
    for (size_t i = 0; i < options->setting_count; i++) rest.settings[i] = options->settings[i];
    const char *model = take_model(&rest);
    hy_status status = hy_cli_configure(&rest, config);
    free(rest.settings);
    if (status == HY_OK && model != NULL) status = said(hy_config_use_model(*config, model));
    return status;
}

static void print_result(const hy_cli_terminal *terminal, const hy_evaluation *e) {
    FILE *out = terminal->out;
    fprintf(out, "model           %s\n", e->model);
    fprintf(out, "data            %s\n", e->data);
    fprintf(out, "tokens counted  %s, in %s sequences\n", hy_cli_count(e->tokens).text,
            hy_cli_count(e->sequences).text);
    fprintf(out, "loss            %.5f nats per token\n", e->loss);
    fprintf(out, "perplexity      %.4f\n", e->perplexity);
    if (!isnan(e->bits_per_byte)) fprintf(out, "bits per byte   %.5f\n", e->bits_per_byte);
    fprintf(out, "speed           %s tokens/s on %s\n",
            hy_cli_count((int64_t)e->tokens_per_second).text, e->device);
}

static hy_status print_json(const hy_evaluation *e) {
    char *text;
    hy_status status = said(hy_evaluation_json(e, &text));
    if (status != HY_OK) return status;
    fputs(text, stdout);
    hy_free(text);
    return HY_OK;
}

hy_status hy_cli_eval_only(const hy_cli_terminal *terminal, const hy_cli_options *options) {
    hy_config *config = NULL;
    hy_cli_progress progress;
    hy_evaluation found;
    hy_cli_progress_init(&progress, terminal);
    hy_observer observer = hy_cli_progress_observer(&progress);
    hy_status status = configure(options, &config);
    if (status == HY_OK) {
        status = hy_evaluate(config, &observer, &found);
        hy_cli_progress_finish(&progress);
        said(status);
    }
    if (status == HY_OK && options->wants_json) status = print_json(&found);
    if (status == HY_OK && !options->wants_json) print_result(terminal, &found);
    hy_config_destroy(config);
    return status;
}
