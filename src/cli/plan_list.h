/* plan_list.h: which built-in models a machine can train in each way: all parameters, adapters
 * (LoRA), and adapters with a quantised model (QLoRA).
 *
 * Every cell is a plan. --plan without a model and --doctor show the list; --json prints it as
 * JSON. */
#pragma once

#include "cli/inspect.h"
#include "hybrid_tools.h"

typedef enum hy_cli_way { HY_CLI_FULL, HY_CLI_LORA, HY_CLI_QLORA, HY_CLI_WAYS } hy_cli_way;

#define HY_CLI_STATE_TEXT 64

/* The plan of a model in one way of training. */
typedef struct hy_cli_planned {
    bool is_planned; /* false: the settings do not suit this model, and nothing below is set */
    bool fits;
    double tokens_per_second;
    uint64_t device_bytes, pinned_bytes, disk_bytes, host_limit;
    char types[HY_CLI_STATE_TEXT]; /* updated weights / gradients / optimizer */
    char state[HY_CLI_STATE_TEXT]; /* where they are, in words */
    bool predicts;                 /* false: prediction is disabled */
    char device[HY_PLAN_TEXT];     /* that the plan is for, in words */
    char change[HY_PLAN_TEXT];     /* a change that would make it fit; "": none was found */
} hy_cli_planned;

typedef struct hy_cli_plans {
    hy_cli_model models[HY_CLI_MODELS_MAX]; /* smallest first */
    hy_cli_planned plans[HY_CLI_MODELS_MAX][HY_CLI_WAYS];
    size_t count, presets;      /* models in the list, and all presets */
    bool has_way[HY_CLI_WAYS];  /* ways that the settings allow */
    hy_dtype base[HY_CLI_WAYS]; /* type of the frozen model's matrices */
    bool is_gpu;
} hy_cli_plans;

/* The name in JSON and flags: "full", "lora", "qlora". */
const char *hy_cli_way_name(hy_cli_way way);

/* Plans every built-in model with this configuration, which is changed in the process. */
hy_status hy_cli_plans_make(hy_config *config, const hy_machine *machine, hy_cli_plans *out);

/* The largest model that fits; NULL: none. */
const hy_cli_model *hy_cli_plans_largest(const hy_cli_plans *plans, hy_cli_way way);

/* Creates the list and shows it: what fits and how, the largest model in each way, and the
 * commands. */
hy_status hy_cli_plan_list(const hy_cli_terminal *terminal, const hy_cli_options *options,
                           hy_config *config, const hy_machine *machine);

/* inspect_json.c: the plan of the configured model, and the list as the key "models". */
hy_status hy_cli_plan_list_json(hy_config *config, const hy_machine *machine);
