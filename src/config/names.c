/* names.c: names that users of other trainers type: keys, values, and hints.
 *
 * A name with the same meaning is accepted everywhere (flags, files, --set). A name without an equal
 * here gets a hint. '-' equals '_' in all of them. The names come from transformers, TRL, PEFT,
 * Axolotl, Unsloth, LLaMA-Factory, torchtune, DeepSpeed, llama.cpp and nanoGPT. */
#include <assert.h>
#include <string.h>
#include <strings.h>

#include "config/settings.h"
#include "hybrid.h"

#define SWITCH_ALIAS(alias, option, target, on, off, sentence)                                     \
    .name = alias, .key = target, .when_true = on, .when_false = off, .info.key = alias,           \
    .info.flag = option, .info.type = "switch", .info.accepted = "true, false",                    \
    .info.fallback = "false", .info.help = sentence

/* Keys of the removed predictor ema, which every older run's file sets. */
#define REMOVED(old, option)                                                                       \
    .name = old, .key = "phases.predictor", .is_removed = true, .info.key = old,                   \
    .info.flag = option, .info.type = "number", .info.accepted = "any value", .info.fallback = "", \
    .info.help = "Ignored: the predictor ema was removed."

/* Accepted names, and removed keys. */
static const hy_setting_alias aliases[] = {
    {.name = "learning_rate", .key = "optimizer.lr"},
    {.name = "max_lr", .key = "optimizer.lr"},
    {.name = "max_steps", .key = "train.steps"},
    {.name = "max_iters", .key = "train.steps"},
    {.name = "num_train_epochs", .key = "train.epochs"},
    {.name = "micro_batch_size", .key = "train.batch_size"},
    {.name = "per_device_train_batch_size", .key = "train.batch_size"},
    {.name = "per_device_eval_batch_size", .key = "eval.eval_batch_size"},
    {.name = "gradient_accumulation_steps", .key = "train.grad_accum_steps"},
    {.name = "grad_accum", .key = "train.grad_accum_steps"},
    {.name = "max_grad_norm", .key = "train.grad_clip"},
    {.name = "prefetch_factor", .key = "input.prefetch"},
    {.name = "seq_length", .key = "train.seq_len"},
    {.name = "sequence_length", .key = "train.seq_len"},
    {.name = "max_seq_len", .key = "train.seq_len"},
    {.name = "block_size", .key = "train.seq_len"},
    {.name = "dtype", .key = "train.precision"},
    {.name = "warmup_steps", .key = "optimizer.lr_warmup_steps"},
    {.name = "warmup_ratio", .key = "optimizer.lr_warmup_ratio"},
    {.name = "lr_schedule", .key = "optimizer.schedule"},
    {.name = "lr_scheduler_type", .key = "optimizer.schedule"},
    {.name = "adam_beta1", .key = "optimizer.beta1"},
    {.name = "adam_beta2", .key = "optimizer.beta2"},
    {.name = "adam_epsilon", .key = "optimizer.adam_eps"},
    {.name = "output_dir", .key = "out"},
    {.name = "save_steps", .key = "save.save_every"},
    {.name = "save_total_limit", .key = "save.keep"},
    {.name = "eval_steps", .key = "eval.eval_every"},
    {.name = "n_layer", .key = "shape.layers"},
    {.name = "num_hidden_layers", .key = "shape.layers"},
    {.name = "n_embd", .key = "shape.width"},
    {.name = "hidden_size", .key = "shape.width"},
    {.name = "n_head", .key = "shape.heads"},
    {.name = "num_attention_heads", .key = "shape.heads"},
    {.name = "num_key_value_heads", .key = "shape.kv_heads"},
    {.name = "head_dim", .key = "shape.head_size"},
    {.name = "intermediate_size", .key = "shape.mlp_width"},
    {.name = "vocab_size", .key = "shape.vocab"},
    {.name = "tie_word_embeddings", .key = "shape.tied_head"},
    {.name = "random_seed", .key = "seed"},
    {.name = "n_threads", .key = "threads"},
    {.name = "num_threads", .key = "threads"},
    {.name = "model_name_or_path", .key = "model"},
    {.name = "model_name", .key = "model"},
    {.name = "base_model", .key = "model"},
    {.name = "pretrained_model_name_or_path", .key = "model"},
    {.name = "hf_model", .key = "model"},
    {.name = "train_file", .key = "data"},
    {.name = "train_data", .key = "data"},
    {.name = "train_data_path", .key = "data"},
    {.name = "data_path", .key = "data"},
    {.name = "dataset", .key = "data"},
    {.name = "dataset_path", .key = "data"},
    {.name = "validation_file", .key = "val_data"},
    {.name = "eval_file", .key = "val_data"},
    {.name = "eval_data", .key = "val_data"},
    {.name = "val_file", .key = "val_data"},
    {.name = "run_name", .key = "name"},
    {.name = "total_steps", .key = "train.steps"},
    {.name = "num_steps", .key = "train.steps"},
    {.name = "num_epochs", .key = "train.epochs"},
    {.name = "train_batch_size", .key = "train.batch_size"},
    {.name = "train_micro_batch_size_per_gpu", .key = "train.batch_size"},
    {.name = "gradient_accumulation", .key = "train.grad_accum_steps"},
    {.name = "accumulate_grad_batches", .key = "train.grad_accum_steps"},
    {.name = "gradient_clipping", .key = "train.grad_clip"},
    {.name = "clip_grad", .key = "train.grad_clip"},
    {.name = "clip_grad_norm", .key = "train.grad_clip"},
    {.name = "gradient_clip_val", .key = "train.grad_clip"},
    {.name = "max_seq_length", .key = "train.seq_len"},
    {.name = "max_length", .key = "train.seq_len"},
    {.name = "cutoff_len", .key = "train.seq_len"},
    {.name = "sequence_len", .key = "train.seq_len"},
    {.name = "mixed_precision", .key = "train.precision"},
    {.name = "torch_dtype", .key = "train.precision"},
    {.name = "compute_dtype", .key = "train.precision"},
    {.name = "bnb_4bit_compute_dtype", .key = "train.precision"},
    {.name = "normalize_gradients", .key = "train.normalize"},
    {.name = "use_lora", .key = "lora.lora"},
    {.name = "use_qlora", .key = "lora.qlora"},
    {.name = "lora_r", .key = "lora.lora_rank"},
    {.name = "use_rslora", .key = "lora.rslora"},
    {.name = "target_modules", .key = "lora.lora_targets"},
    {.name = "lora_target_modules", .key = "lora.lora_targets"},
    {.name = "lora_target", .key = "lora.lora_targets"},
    {.name = "adapter_name_or_path", .key = "lora.adapter"},
    {.name = "lora_model_dir", .key = "lora.adapter"},
    {.name = "optim", .key = "optimizer.optimizer"},
    {.name = "lr_scheduler", .key = "optimizer.schedule"},
    {.name = "warmup_iters", .key = "optimizer.lr_warmup_steps"},
    {.name = "num_warmup_steps", .key = "optimizer.lr_warmup_steps"},
    {.name = "tokenizer_name", .key = "input.tokenizer"},
    {.name = "tokenizer_name_or_path", .key = "input.tokenizer"},
    {.name = "template", .key = "input.chat_template"},
    {.name = "sample_packing", .key = "input.packing"},
    {.name = "val_set_size", .key = "input.val_fraction"},
    {.name = "val_size", .key = "input.val_fraction"},
    {.name = "val_split", .key = "input.val_fraction"},
    {.name = "dataloader_num_workers", .key = "input.num_workers"},
    {.name = "dataloader_prefetch_factor", .key = "input.prefetch"},
    {.name = "eval_interval", .key = "eval.eval_every"},
    {.name = "eval_iters", .key = "eval.eval_batches"},
    {.name = "early_stopping_patience", .key = "eval.early_stop"},
    {.name = "max_new_tokens", .key = "eval.sample_tokens"},
    {.name = "save_interval", .key = "save.save_every"},
    {.name = "checkpoint_every", .key = "save.save_every"},
    {.name = "resume_from_checkpoint", .key = "save.resume"},
    {.name = "overwrite_output_dir", .key = "save.overwrite"},
    {.name = "num_layers", .key = "shape.layers"},
    {.name = "num_heads", .key = "shape.heads"},
    {.name = "hidden_dim", .key = "shape.width"},
    {.name = "max_position_embeddings", .key = "shape.context"},
    {.name = "n_positions", .key = "shape.context"},
    {.name = "rms_norm_eps", .key = "shape.norm_eps"},
    {.name = "layer_norm_epsilon", .key = "shape.norm_eps"},
    {.name = "initializer_range", .key = "shape.init_std"},
    {.name = "target_utilization", .key = "memory.target_usage"},
    {.name = "target_memory_utilization", .key = "memory.target_usage"},
    {.name = "warning_threshold", .key = "memory.warning_usage"},
    {.name = "critical_threshold", .key = "memory.critical_usage"},
    {.name = "emergency_threshold", .key = "memory.emergency_usage"},
    {.name = "gpu_mem", .key = "memory.max_gpu_mem"},
    {.name = "gpu_memory", .key = "memory.max_gpu_mem"},
    {.name = "vram", .key = "memory.max_gpu_mem"},
    {.name = "ram", .key = "memory.cpu_mem"},
    {.name = "zero", .key = "ranks.zero_stage"},
    {SWITCH_ALIAS("checkpoint_every_layer", "--checkpoint-every-layer", "train.recompute", "all",
                  "auto", "Recompute every layer in the backward pass; same as recompute = all.")},
    {SWITCH_ALIAS("gradient_checkpointing", "--gradient-checkpointing", "train.recompute", "all",
                  "none", "true: recompute = all; false: recompute = none.")},
    {SWITCH_ALIAS("no_checkpointing", "--no-checkpointing", "train.recompute", "none", "auto",
                  "Keep all activations; same as recompute = none.")},
    {SWITCH_ALIAS("bf16", "--bf16", "train.precision", "bf16", NULL, "Same as precision = bf16.")},
    {SWITCH_ALIAS("use_bf16", "--use-bf16", "train.precision", "bf16", NULL,
                  "Same as precision = bf16.")},
    {SWITCH_ALIAS("fp16", "--fp16", "train.precision", "fp16", NULL, "Same as precision = fp16.")},
    {SWITCH_ALIAS("use_fp16", "--use-fp16", "train.precision", "fp16", NULL,
                  "Same as precision = fp16.")},
    {SWITCH_ALIAS("load_in_8bit", "--load-in-8bit", "train.frozen_dtype", "int8", NULL,
                  "Same as frozen_dtype = int8: keep frozen weights in 8 bits.")},
    {SWITCH_ALIAS("load_in_4bit", "--load-in-4bit", "train.frozen_dtype", "nf4", NULL,
                  "Same as frozen_dtype = nf4: keep frozen weights in 4 bits.")},
    {SWITCH_ALIAS("use_gradient_checkpointing", "--use-gradient-checkpointing", "train.recompute",
                  "all", "none", "true: recompute = all; false: recompute = none.")},
    {SWITCH_ALIAS("activation_checkpointing", "--activation-checkpointing", "train.recompute",
                  "all", "none", "true: recompute = all; false: recompute = none.")},
    {SWITCH_ALIAS("synthetic", "--synthetic", "data", "builtin", NULL,
                  "Train on the built-in text; same as data = builtin.")},
    {SWITCH_ALIAS("use_cpu", "--use-cpu", "device", "cpu", NULL, "Same as device = cpu.")},
    {SWITCH_ALIAS("use_flash_attention", "--use-flash-attention", "attention", "auto", NULL,
                  "No effect: attention never stores its matrix, whatever its value.")},
    {SWITCH_ALIAS("flash_attention", "--flash-attention", "attention", "auto", NULL,
                  "No effect: attention never stores its matrix, whatever its value.")},
    {SWITCH_ALIAS("train_on_inputs", "--train-on-inputs", "input.loss_on", "all", "answers",
                  "true: loss_on = all; false: loss_on = answers.")},
    {SWITCH_ALIAS("completion_only_loss", "--completion-only-loss", "input.loss_on", "answers",
                  "all", "true: loss_on = answers; false: loss_on = all.")},
    {SWITCH_ALIAS("assistant_only_loss", "--assistant-only-loss", "input.loss_on", "answers", "all",
                  "true: loss_on = answers; false: loss_on = all.")},
    {SWITCH_ALIAS("silent_mode", "--silent-mode", "memory.monitor", "silent", "on",
                  "true: monitor = silent; false: monitor = on.")},
    {SWITCH_ALIAS("dynamic_batching", "--dynamic-batching", "train.dynamic_batch", "on", "off",
                  "true: dynamic_batch = on; false: dynamic_batch = off.")},
    {REMOVED("ema_beta", "--ema-beta")},
    {REMOVED("ema_gamma", "--ema-gamma")},
};

enum { ALIASES = sizeof aliases / sizeof aliases[0] };
static_assert(ALIASES <= HY_ALIASES_MOST, "hy_setting_nearest has room for fewer names");

const hy_setting_alias *hy_setting_alias_at(size_t i) { return i < ALIASES ? &aliases[i] : NULL; }

/* Names without an equal here. */
static const struct {
    const char *name, *hint;
} hints[] = {
    {"dry_run", "use --plan to see what the run would do"},
    {"cpu", "use --device cpu"},
    {"no_cuda", "use --device cpu"},
    {"gpu", "use --device cuda, or cuda:1 for the second card; --gpus 4 for several"},
    {"num_gpus", "use --gpus on the command line"},
    {"nproc_per_node", "use --gpus, or --ranks for processes that share a card"},
    {"num_processes", "use --gpus, or --ranks for processes that share a card"},
    {"fsdp",
     "use --gpus N to train on several GPUs, and --zero-stage 3 to shard the weights as well"},
    {"ddp", "use --gpus N to train on several GPUs; with --zero-stage 0 each keeps everything"},
    {"deepspeed", "use --gpus N and --zero-stage; --plan shows where state is kept"},
    {"use_deepspeed", "use --gpus N and --zero-stage; --plan shows where state is kept"},
    {"device_map", "the planner places weights by itself (--plan shows where); --weights-place, "
                   "--optim-place and --offload-folder override it"},
    {"max_memory", "use --max-gpu-mem and --cpu-mem"},
    {"pool_size_gb", "use --max-gpu-mem, such as 24GiB"},
    {"gpu_memory_utilization", "use --target-usage, or --max-gpu-mem for bytes"},
    {"cpu_offload",
     "the planner moves state to host memory by itself; --optim-place pinned forces it"},
    {"enable_cpu_offload",
     "the planner moves state to host memory by itself; --optim-place pinned forces it"},
    {"nvme_offload", "use --offload-folder FOLDER"},
    {"global_batch_size", "use --step-tokens: sequences x seq_len"},
    {"total_batch_size", "use --step-tokens: sequences x seq_len"},
    {"max_tokens", "use --tokens for the length of the run, --seq-len for a sequence, or "
                   "--sample-tokens for the sample"},
    {"n_ctx", "use --seq-len for training, or --context for the shape of a new model"},
    {"ctx_size", "use --seq-len for training, or --context for the shape of a new model"},
    {"min_lr", "use --min-lr-ratio, a share of the learning rate"},
    {"lr_decay_iters", "the schedule ends with the run: use --steps"},
    {"betas", "use --beta1 and --beta2"},
    {"finetuning_type", "use --lora, --qlora, or neither to train all weights"},
    {"peft", "use --lora or --qlora"},
    {"use_peft", "use --lora or --qlora"},
    {"use_dora", "DoRA is not available; use --lora, or --rslora"},
    {"modules_to_save", "use --lora-modules"},
    {"lora_modules_to_save", "use --lora-modules"},
    {"attn_implementation",
     "attention never stores its matrix; --attention chooses between our kernels and cuDNN"},
    {"attention_type", "attention never stores its matrix; --sliding-window sets a window"},
    {"torch_compile", "not needed: kernels are compiled ahead of time, and --tune times them"},
    {"compile", "not needed: kernels are compiled ahead of time, and --tune times them"},
    {"evaluation_strategy", "use --eval-every N"},
    {"eval_strategy", "use --eval-every N"},
    {"save_strategy", "use --save-every N or --save-minutes N"},
    {"logging_steps", "every step is written to OUT/metrics.jsonl"},
    {"log_interval", "every step is written to OUT/metrics.jsonl"},
    {"logging_dir", "OUT/tensorboard and OUT/metrics.jsonl are always written"},
    {"report_to", "OUT/tensorboard and OUT/metrics.jsonl are always written; "
                  "examples/follow_metrics.py sends them to W&B or MLflow"},
    {"wandb", "OUT/tensorboard and OUT/metrics.jsonl are always written; "
              "examples/follow_metrics.py sends them to W&B or MLflow"},
    {"wandb_project", "examples/follow_metrics.py sends OUT/metrics.jsonl to W&B or MLflow"},
    {"wandb_log", "examples/follow_metrics.py sends OUT/metrics.jsonl to W&B or MLflow"},
    {"dataset_name", "name a file or folder: --data FILE (JSON lines, CSV or text)"},
    {"do_train", "training is the default"},
    {"do_eval", "use --eval-every N, or --eval-only"},
    {"persistent_workers", "not needed: data is read by threads; --num-workers sets their number"},
    {"pin_memory", "not needed: batches are always staged in pinned memory"},
    {"verbosity", "use --verbose, or --quiet"},
    {"log_level", "use --verbose, or --quiet"},
};

const char *hy_config_hint(const char *name) {
    if (!strncmp(name, "--", 2)) name += 2;
    const char *dot = strrchr(name, '.');
    if (dot) name = dot + 1;
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++)
        if (hy_setting_is_same_name(name, hints[i].name)) return hints[i].hint;
    return NULL;
}

/* Values; key NULL: of every choice that has the word. */
static const struct {
    const char *key, *typed, *word;
} words[] = {
    {"train.precision", "bfloat16", "bf16"},
    {"train.precision", "float16", "fp16"},
    {"train.precision", "half", "fp16"},
    {"train.precision", "float32", "fp32"},
    {"train.precision", "float", "fp32"},
    {"train.precision", "no", "fp32"},
    {"optimizer.optimizer", "adamw_torch", "adamw"},
    {"optimizer.optimizer", "adamw_torch_fused", "adamw"},
    {"optimizer.optimizer", "adamw_hf", "adamw"},
    {"optimizer.optimizer", "adamw_8bit", "adamw8bit"},
    {"optimizer.optimizer", "adamw_bnb_8bit", "adamw8bit"},
    {"optimizer.optimizer", "paged_adamw_8bit", "paged_adamw8bit"},
    {"optimizer.optimizer", "paged_adamw_32bit", "paged_adamw"},
    {"optimizer.optimizer", "lion_8bit", "lion8bit"},
    {"optimizer.optimizer", "lion_32bit", "lion"},
    {"optimizer.optimizer", "paged_lion_8bit", "paged_lion8bit"},
    {"optimizer.schedule", "constant_with_warmup", "constant"},
    {"optimizer.schedule", "warmup_stable_decay", "wsd"},
    {"device", "gpu", "cuda"},
    {"lora.lora_targets", "all-linear", "all"},
    {"save.resume", "true", "auto"},
    {"save.resume", "false", ""},
    {NULL, "true", "on"},
    {NULL, "false", "off"},
};

const char *hy_setting_word(const hy_setting *setting, const char *text) {
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        bool is_here = words[i].key ? !strcmp(words[i].key, setting->info.key) : false;
        for (const hy_named_value *c = setting->choices; !words[i].key && c && c->name; c++)
            is_here |= !strcmp(c->name, words[i].word);
        if (is_here && !strcasecmp(text, words[i].typed)) return words[i].word;
    }
    return text;
}
