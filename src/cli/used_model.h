/* used_model.h: which model a program uses (hybrid-chat, hybrid-generate, hybrid-serve): its flags,
 * and the configuration that they give. */
#pragma once

#include "cli/table.h"
#include "hybrid.h"

typedef struct hy_cli_used_model {
    const char *model; /* NULL: the newest run */
    const char *adapter, *base, *frozen_dtype, *device, *precision, *threads, *max_gpu_mem;
} hy_cli_used_model;

/* Rows of a program's table; its struct `options` has the member `used`. */
#define HY_CLI_USED(member) .offset = offsetof(options, used.member)

#define HY_CLI_MODEL_FLAG                                                                          \
    {                                                                                              \
        "--model", "FOLDER", HY_CLI_TEXT, HY_CLI_USED(model),                                      \
            "The model: a run folder, a checkpoint, a model folder (config.json, safetensors, "    \
            "tokenizer.json), a GGUF file, or a model name in the hub cache. Default: the newest " \
            "run in "                                                                              \
            "runs/."                                                                               \
    }

#define HY_CLI_BASE_FLAGS                                                                          \
    {"--base", "FOLDER", HY_CLI_TEXT, HY_CLI_USED(base),                                           \
     "For a run with adapters: the new location of its base model if that has moved."},            \
    {                                                                                              \
        "--frozen-dtype", "TYPE", HY_CLI_TEXT, HY_CLI_USED(frozen_dtype),                          \
            "Number type of the base model's weights. Default: as in training if --model is a "    \
            "run "                                                                                 \
            "with adapters, else as stored in the folder. auto: the type of --precision.",         \
            "auto, fp8, int8, nf4, nf4_single"                                                     \
    }

#define HY_CLI_DEVICE_FLAGS                                                                        \
    {"--device",                                                                                   \
     "NAME",                                                                                       \
     HY_CLI_TEXT,                                                                                  \
     HY_CLI_USED(device),                                                                          \
     "Device: auto, cpu, cuda, cuda:1. Default auto.",                                             \
     "auto, cpu, cuda"},                                                                           \
        {"--precision",                                                                            \
         "TYPE",                                                                                   \
         HY_CLI_TEXT,                                                                              \
         HY_CLI_USED(precision),                                                                   \
         "Precision: auto, fp32, bf16. Default auto: bf16 on a GPU, fp32 on a CPU.",               \
         "auto, fp32, bf16"},                                                                      \
        {"--threads", "N", HY_CLI_TEXT, HY_CLI_USED(threads), "Worker threads; 0: all cores."}, {  \
        "--max-gpu-mem", "BYTES", HY_CLI_TEXT, HY_CLI_USED(max_gpu_mem),                           \
            "Use at most this much GPU memory; weights that do not fit are streamed from host "    \
            "memory."                                                                              \
    }

/* A configuration of this model. Ends the program if --base is given without need. */
hy_status hy_cli_configure_model(const hy_cli_used_model *used, hy_config **out);
