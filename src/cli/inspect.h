/* inspect.h: the actions of hybrid-train that print something and stop.
 *
 * hybrid_train.c calls them: help, plan, doctor, self-test, lists of models and flags. All output
 * goes to the terminal's stream; errors go to standard error. --plan and --doctor change the
 * configuration that they are given. */
#pragma once

#include "cli/options.h"
#include "cli/terminal.h"
#include "hybrid.h"
#include "hybrid_tools.h"

#define HY_CLI_MODELS_MAX 96

typedef struct hy_cli_model {
    const char *name; /* owned by the library */
    int64_t parameters;
} hy_cli_model;

/* Fills `models`, sorted by size, and returns their number. */
hy_status hy_cli_models_by_size(hy_cli_model models[HY_CLI_MODELS_MAX], size_t *count);

/* Prints a line with the name of a fact and the fact. */
void hy_cli_field(const hy_cli_terminal *terminal, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The name of the CPU, without the library's prefix "CPU: ". */
const char *hy_cli_cpu_name(const hy_machine *machine);

/* Each function prints to the terminal's stream and returns the exit code of the program. */
int hy_cli_help(const hy_cli_terminal *terminal, const char *topic);
int hy_cli_doctor(const hy_cli_terminal *terminal, const hy_cli_options *options,
                  hy_config *config); /* changes the configuration */
/* selftest.c: the ops of one device; or, as one of several ranks, their communication. Rank 0 then
 * writes OUT/selftest.txt if the setting `out` is given. */
int hy_cli_selftest(const hy_cli_terminal *terminal, const char *device);
int hy_cli_selftest_ranks(const hy_cli_terminal *terminal, const hy_config *config,
                          const hy_rank_info *who);
int hy_cli_list_models(const hy_cli_terminal *terminal);
/* The same actions with --json, and the configuration (inspect_json.c). */
int hy_cli_doctor_json(hy_config *config); /* changes the configuration */
int hy_cli_list_models_json(void);
int hy_cli_config_json(const hy_config *config);
int hy_cli_complete(FILE *out);

/* show_rows.c: the first rows of the data as they are trained; prints errors too. */
hy_status hy_cli_show_rows(const hy_cli_terminal *terminal, const hy_cli_options *options,
                           const hy_config *config);

/* ---- plan.c: places, speed and reasons of a plan --------------------------------------------- */

/* For --doctor: measures the machine with the disk of offload_folder, or of the current folder; and
 * chooses the profile with which most models fit, unless one is set. */
hy_status hy_cli_doctor_begin(hy_config *config, hy_machine *machine, char folder[512]);

/* Whether a flag, a file, --set or a resumed run sets a key. */
bool hy_cli_is_set(const hy_config *config, const char *key);

/* Prints the plan of one run, or of the shapes of --plan-shapes, as text or JSON; prints errors
 * too. A plan that does not fit is a result, not a failure. --plan-shapes changes the
 * configuration. */
hy_status hy_cli_plan(const hy_cli_terminal *terminal, const hy_cli_options *options,
                      hy_config *config);

/* plan_shapes.c: plans a custom model from a file with its shapes. Prints errors; changes the
 * configuration. The caller destroys *out. */
hy_status hy_cli_plan_shapes(hy_config *config, const char *path, hy_trainer **out);
