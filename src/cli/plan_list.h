/* plan_list.h: which of the built-in models a machine can train, in each way: full-parameter, with adapters
 * beside the model (LoRA), and with adapters beside a quantised one (QLoRA).
 *
 * Every cell was planned. --plan without a model and --doctor show the list; with --json programs get it. */
#pragma once

#include "cli/inspect.h"
#include "hybrid_tools.h"

typedef enum hy_cli_way { HY_CLI_FULL, HY_CLI_LORA, HY_CLI_QLORA, HY_CLI_WAYS } hy_cli_way;

#define HY_CLI_STATE_TEXT 64

/* A model trained in one way, by its plan. */
typedef struct hy_cli_planned {
    bool is_planned; /* false: the settings are not for this model, and nothing below is set */
    bool fits;
    double tokens_per_second;
    uint64_t device_bytes, pinned_bytes, disk_bytes;
    char types[HY_CLI_STATE_TEXT]; /* weights that are updated / gradients / optimizer */
    char state[HY_CLI_STATE_TEXT]; /* where they are, in words */
    bool predicts;                 /* false: prediction stands aside */
    char change[HY_PLAN_TEXT];     /* what would make it fit; "": nothing that was tried */
} hy_cli_planned;

typedef struct hy_cli_plans {
    hy_cli_model models[HY_CLI_MODELS_MAX]; /* smallest first */
    hy_cli_planned plans[HY_CLI_MODELS_MAX][HY_CLI_WAYS];
    size_t count;
    bool has_way[HY_CLI_WAYS];  /* the settings may ask for one of them alone */
    hy_dtype base[HY_CLI_WAYS]; /* of the frozen model's matrices */
    bool is_gpu;
} hy_cli_plans;

/* In JSON and in flags: "full", "lora", "qlora". */
const char *hy_cli_way_name(hy_cli_way way);

/* Plans every built-in model by this configuration, which is changed on the way. */
hy_status hy_cli_plans_make(hy_config *config, const hy_machine *machine, hy_cli_plans *out);

/* The largest model that fits; NULL: none does. */
const hy_cli_model *hy_cli_plans_largest(const hy_cli_plans *plans, hy_cli_way way);

/* Makes the list and shows it: what fits and how, the largest of each way, and the commands to type. */
hy_status hy_cli_plan_list(const hy_cli_terminal *terminal, const hy_cli_options *options,
                           hy_config *config, const hy_machine *machine);

/* inspect_json.c: the plan of the configuration's own model, and the list as its key "models". */
hy_status hy_cli_plan_list_json(hy_config *config, const hy_machine *machine);
