/* inspect.h: the actions that show something and stop; the built-in models, smallest first. */
#pragma once

#include "cli/options.h"
#include "cli/terminal.h"
#include "hybrid.h"

#define HY_CLI_MODELS_MAX 48 /* as many as a table shows on a screen or two */

typedef struct hy_cli_model {
    const char *name; /* the library's string */
    int64_t parameters;
} hy_cli_model;

/* Fills `models` by size and says how many there are. */
hy_status hy_cli_models_by_size(hy_cli_model models[HY_CLI_MODELS_MAX], size_t *count);

/* Each prints to the terminal's stream and returns the program's exit code. */
int hy_cli_help(const hy_cli_terminal *terminal, const char *topic);
int hy_cli_doctor(const hy_cli_terminal *terminal, const hy_cli_options *options,
                  hy_config *config); /* which is changed */
int hy_cli_selftest(const hy_cli_terminal *terminal, const char *device);
/* As one of several ranks; rank 0 writes OUT/selftest.txt where `out` was set (selftest_ranks.c). */
int hy_cli_selftest_ranks(const hy_cli_terminal *terminal, const hy_config *config,
                          const hy_rank_info *who);
int hy_cli_list_models(const hy_cli_terminal *terminal);
/* The same with --json, and the configuration (inspect_json.c). */
int hy_cli_doctor_json(const char *folder, hy_config *config); /* which is changed */
int hy_cli_list_models_json(void);
int hy_cli_config_json(const hy_config *config);
int hy_cli_complete(FILE *out);

/* ---- plan.c: what a run would keep where, how fast it would be, and why ---- */

/* The profile of what --doctor plans, where none is named: the one with which most fits. */
hy_status hy_cli_doctor_profile(hy_config *config);

/* Whether a key was set: by a flag, a file, --set or a run that is resumed. */
bool hy_cli_names(const hy_config *config, const char *key);

/* The plan of one run, as text or as JSON on the terminal's stream. A plan that does not fit is an
 * answer, not a failure. */
hy_status hy_cli_plan(const hy_cli_terminal *terminal, const hy_cli_options *options,
                      const hy_config *config);

/* A plan that was made, in the same ways. */
hy_status hy_cli_show_plan(const hy_cli_terminal *terminal, const hy_config *config,
                           const hy_trainer *trainer, bool wants_json);

/* plan_shapes.c: of a model of one's own, whose shapes are listed in a file; the configuration is changed. It has
 * said what was wrong. */
hy_status hy_cli_plan_shapes(const hy_cli_terminal *terminal, hy_config *config, const char *path,
                             bool wants_json);
