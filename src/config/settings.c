/* settings.c: the table of every configuration key, and finding a row in it.
 *
 * A row ties a key to its field in hy_settings and says type, accepted values, default and help.
 * All that a user sees of a key comes from here: flags, files, --print-config, help, completion and
 * the table in docs/configuration.md. Always true: leaves (the part after the dot) and aliases are
 * unique among all names, rows of one group lie together, and every default passes its own check.
 * */
#include "config/settings.h"

#include <string.h>

#include "base/text.h"

#define KEY(name, option, field)                                                                   \
    .info.key = (name), .info.flag = (option), .offset = offsetof(hy_settings, field)
#define RANGE(lo, hi) .min = (lo), .max = (hi), .info.accepted = #lo " to " #hi
#define INTEGER(lo, hi, fallback_text)                                                             \
    .type = HY_VALUE_INTEGER, .info.type = "integer", RANGE(lo, hi), .info.fallback = fallback_text
#define NUMBER(lo, hi, fallback_text)                                                              \
    .type = HY_VALUE_NUMBER, .info.type = "number", RANGE(lo, hi), .info.fallback = fallback_text
#define NUMBER_BELOW(lo, hi, fallback_text)                                                        \
    .type = HY_VALUE_NUMBER, .info.type = "number", .min = (lo), .max = (hi),                      \
    .excludes_max = true, .info.accepted = #lo " to below " #hi, .info.fallback = fallback_text
#define SWITCH(fallback_text)                                                                      \
    .type = HY_VALUE_SWITCH, .info.type = "switch", .info.accepted = "true, false",                \
    .info.fallback = fallback_text
#define CHOICE(choices, fallback_text)                                                             \
    .type = HY_VALUE_CHOICE, .info.type = "choice", .info.accepted = choices,                      \
    .info.fallback = fallback_text
#define TEXT(what, fallback_text)                                                                  \
    .type = HY_VALUE_TEXT, .info.type = "text", .info.accepted = what,                             \
    .info.fallback = fallback_text
#define BYTES(range_text, lo, hi, fallback_text)                                                   \
    .type = HY_VALUE_BYTES, .info.type = "bytes", .min = (lo), .max = (hi),                        \
    .info.accepted = range_text, .info.fallback = fallback_text
#define HELP(sentence) .info.help = sentence

static const char *const groups[] = {"shape", "train", "optimizer", "input",
                                     "eval",  "save",  "phases",    "memory"};

static const hy_setting table[] = {
    {KEY("profile", "--profile", profile), CHOICE("conservative, balanced, aggressive", "balanced"),
     HELP("How much to risk for speed: a set of preferences that files and flags override.")},
    {KEY("model", "--model", model),
     TEXT("a preset's name, a model's folder or name on the hub, or a .cfg file with a shape group",
          "nano"),
     HELP("What to train; brings its shape and its usual training values with it, a folder its "
          "weights "
          "too.")},
    {KEY("init_from", "--init-from", init_from), TEXT("a checkpoint or run folder, or nothing", ""),
     HELP("Start from the weights of a checkpoint, with a new optimizer: fine-tuning.")},
    {KEY("data", "--data", data),
     TEXT("builtin, a file or folder, or several with commas between them, as PATH or PATH:WEIGHT",
          "builtin"),
     HELP("Training data: text, token shards, rows of JSON, or the text source built into the "
          "program.")},
    {KEY("val_data", "--val-data", val_data),
     TEXT("a file or folder, several with commas between them, or nothing", ""),
     HELP("Held-out data; without it the end of the training data is held out.")},
    {KEY("out", "--out", out), TEXT("a folder, none, or nothing", ""),
     HELP("Folder of the run; empty means runs/MODEL-DATE-TIME, none writes nothing.")},
    {KEY("device", "--device", device), CHOICE("auto, cpu, cuda, cuda:N", "auto"),
     HELP("Where to compute; auto takes the GPU when there is one, cuda:1 the second card.")},
    {KEY("tune", "--tune", tune), CHOICE("off, fast, max", "fast"),
     HELP("GPU: time a few or many algorithms for each matrix product, or take the library's "
          "guess.")},
    {KEY("tune_cache", "--tune-cache", tune_cache), TEXT("auto, none, or a file", "auto"),
     HELP(
         "GPU: file that keeps timed algorithms; auto: hybrid-train/ in the user's cache folder.")},
    {KEY("tf32", "--tf32", tf32), CHOICE("auto, on, off", "auto"),
     HELP("GPU: products of fp32 on tensor cores, 10 bits of mantissa; auto: where Full has 16 "
          "bits.")},
    {KEY("attention", "--attention", attention), CHOICE("own, cudnn", "own"),
     HELP("GPU: attention in 16 bits by our own kernels, or by NVIDIA's cuDNN where it is found.")},
    {KEY("seed", "--seed", seed), INTEGER(0, 9007199254740991, "1"),
     HELP("Seed of initial weights, data order, the built-in text and samples.")},
    {KEY("threads", "--threads", threads), INTEGER(0, 1024, "0"),
     HELP("CPU threads; 0 takes all cores this process may use.")},
    {KEY("card", "--card", card), TEXT("a card's name such as rtx5080, or nothing", ""),
     HELP("With --plan: plan for this card, which need not be here.")},

    {KEY("shape.layers", "--layers", shape.layers), INTEGER(1, 1024, "4"),
     HELP("Transformer blocks.")},
    {KEY("shape.width", "--width", shape.width), INTEGER(1, 65536, "128"),
     HELP("Size of the residual stream.")},
    {KEY("shape.heads", "--heads", shape.heads), INTEGER(1, 4096, "4"),
     HELP("Attention heads for queries.")},
    {KEY("shape.kv_heads", "--kv-heads", shape.kv_heads), INTEGER(0, 4096, "0"),
     HELP("Attention heads for keys and values; 0 means as many as heads.")},
    {KEY("shape.head_size", "--head-size", shape.head_size), INTEGER(0, 65536, "0"),
     HELP("Size of one head; 0 means width / heads.")},
    {KEY("shape.mlp_width", "--mlp-width", shape.mlp_width), INTEGER(0, 1048576, "0"),
     HELP("Inner size of the MLP; 0 means 4 x width.")},
    {KEY("shape.vocab", "--vocab", shape.vocab), INTEGER(2, 16777216, "256"),
     HELP("Token ids lie below this; 256 for plain bytes.")},
    {KEY("shape.context", "--context", shape.context), INTEGER(1, 16777216, "512"),
     HELP("Longest sequence the model is made for.")},
    {KEY("shape.norm", "--norm", shape.norm), CHOICE("layernorm, rmsnorm", "rmsnorm"),
     HELP("Normalisation before attention, MLP and head.")},
    {KEY("shape.positions", "--positions", shape.positions), CHOICE("learned, rope", "rope"),
     HELP("How positions enter: a learned table, or rotation of queries and keys.")},
    {KEY("shape.activation", "--activation", shape.activation), CHOICE("gelu, swiglu", "swiglu"),
     HELP("The MLP's nonlinearity; swiglu has a gate, so three matrices.")},
    {KEY("shape.qkv_bias", "--qkv-bias", shape.qkv_bias), SWITCH("false"),
     HELP("Biases on queries, keys and values.")},
    {KEY("shape.proj_bias", "--proj-bias", shape.proj_bias), SWITCH("false"),
     HELP("Biases on the attention output and in the MLP.")},
    {KEY("shape.proj_bias_in", "--proj-bias-in", shape.proj_bias_in),
     CHOICE("all, attention, mlp", "all"),
     HELP("What proj_bias reaches: both, or the attention output or the MLP alone.")},
    {KEY("shape.qk_norm", "--qk-norm", shape.qk_norm), SWITCH("false"),
     HELP("Normalise each head's queries and keys before the rotation (Qwen3).")},
    {KEY("shape.tied_head", "--tied-head", shape.tied_head), SWITCH("true"),
     HELP("Use the embedding as the output matrix too.")},
    {KEY("shape.norm_eps", "--norm-eps", shape.norm_eps), NUMBER(1e-12, 0.1, "1e-5"),
     HELP("Added under the root when normalising.")},
    {KEY("shape.rope_theta", "--rope-theta", shape.rope_theta), NUMBER(1, 1000000000000, "10000"),
     HELP("Base of the rotation frequencies.")},
    {KEY("shape.rope_scaling", "--rope-scaling", shape.rope_scaling),
     CHOICE("none, llama3", "none"), HELP("Stretching of the rotations to a longer context.")},
    {KEY("shape.rope_factor", "--rope-factor", shape.rope_factor), NUMBER(1, 1024, "8"),
     HELP("llama3 scaling: how many times slower the slow rotations turn.")},
    {KEY("shape.rope_low_freq", "--rope-low-freq", shape.rope_low_freq), NUMBER(0.001, 1024, "1"),
     HELP("llama3 scaling: rotations with fewer turns in the original context are slowed fully.")},
    {KEY("shape.rope_high_freq", "--rope-high-freq", shape.rope_high_freq),
     NUMBER(0.001, 1024, "4"),
     HELP("llama3 scaling: rotations with more turns in the original context stay as they are.")},
    {KEY("shape.rope_original_context", "--rope-original-context", shape.rope_original_context),
     INTEGER(1, 16777216, "8192"),
     HELP("llama3 scaling: the context the frequencies were first made for.")},
    {KEY("shape.sliding_window", "--sliding-window", shape.sliding_window),
     INTEGER(0, 16777216, "0"),
     HELP("Each token sees this many tokens, itself included; 0 means all before it.")},
    {KEY("shape.init_std", "--init-std", shape.init_std), NUMBER(0, 10, "0.02"),
     HELP("Standard deviation of initial weights.")},

    {KEY("train.steps", "--steps", train.steps), INTEGER(0, 1000000000, "0"),
     HELP("Compute of the run in full steps, guard passes and forks included; 0: from tokens or "
          "epochs.")},
    {KEY("train.tokens", "--tokens", train.tokens), INTEGER(0, 1000000000000000, "0"),
     HELP("Length of the run in training tokens, instead of steps; 0 means not used.")},
    {KEY("train.epochs", "--epochs", train.epochs), NUMBER(0, 1000000, "0"),
     HELP("Length of the run in passes over the data, instead of steps; 0 means not used.")},
    {KEY("train.batch_size", "--batch-size", train.batch_size), INTEGER(1, 65536, "4"),
     HELP("Sequences in one micro-batch.")},
    {KEY("train.seq_len", "--seq-len", train.seq_len), INTEGER(1, 1048576, "256"),
     HELP("Tokens in one sequence.")},
    {KEY("train.grad_accum_steps", "--grad-accum-steps", train.grad_accum_steps),
     INTEGER(1, 65536, "1"), HELP("Micro-batches whose gradients make one optimizer step.")},
    {KEY("train.normalize", "--normalize", train.normalize), SWITCH("true"),
     HELP("Average over all tokens of a step; false sums the means of its micro-batches.")},
    {KEY("train.scale_lr", "--scale-lr", train.scale_lr), SWITCH("false"),
     HELP("Multiply the learning rate by grad_accum_steps.")},
    {KEY("train.grad_clip", "--grad-clip", train.grad_clip), NUMBER(0, 1000000, "1"),
     HELP("Largest norm of the whole gradient; longer ones are scaled down; 0 turns it off.")},
    {KEY("train.loss_chunks", "--loss-chunks", train.loss_chunks), INTEGER(0, 65536, "0"),
     HELP("Pieces in which logits and loss are computed, to save memory; 0 means chosen.")},
    {KEY("train.precision", "--precision", train.precision),
     CHOICE("auto, fp32, bf16, fp16", "auto"),
     HELP("Storage of weights and activations; auto is bf16 on a GPU (fp16 before sm_80), fp32 on "
          "a CPU.")},
    {KEY("train.grad_dtype", "--grad-dtype", train.grad_dtype), CHOICE("fp32, bf16", "fp32"),
     HELP("Storage of gradients; micro-batches are added up in it.")},
    {KEY("train.recompute", "--recompute", train.recompute),
     CHOICE("auto, none, norm, attention, mlp, all", "auto"),
     HELP("What the backward pass computes again instead of keeping it in memory.")},
    {KEY("train.recompute_layers", "--recompute-layers", train.recompute_layers),
     INTEGER(0, 1024, "0"), HELP("Layers that recompute, spread evenly; 0 means all of them.")},
    {KEY("train.step_tokens", "--step-tokens", train.step_tokens), INTEGER(0, 1000000000000, "0"),
     HELP(
         "Tokens of one optimizer step, instead of batch_size and grad_accum_steps, which are then "
         "chosen; 0 means not used.")},
    {KEY("train.dynamic_batch", "--dynamic-batch", train.dynamic_batch),
     CHOICE("off, on, auto", "auto"),
     HELP(
         "Smaller micro-batches and more of them when memory gets short, and back; auto: also find "
         "the fastest at the start where step_tokens leaves it open.")},
    {KEY("train.min_batch_size", "--min-batch-size", train.min_batch_size), INTEGER(1, 65536, "1"),
     HELP("Micro-batches never shrink below this many sequences.")},
    {KEY("train.max_batch_size", "--max-batch-size", train.max_batch_size), INTEGER(0, 65536, "0"),
     HELP("Micro-batches never grow beyond this many sequences; 0: beyond what they began with.")},
    {KEY("train.batch_check_every", "--batch-check-every", train.batch_check_every),
     INTEGER(1, 1000000, "10"),
     HELP("Steps between two looks at whether the micro-batch should change.")},

    {KEY("optimizer.optimizer", "--optimizer", optimizer.optimizer),
     CHOICE("adamw, adamw8bit, paged_adamw, paged_adamw8bit", "adamw"),
     HELP("The update rule; adamw8bit is adamw with optim_dtype 8bit, paged_ keeps m and v in "
          "pinned "
          "host memory unless optim_place says otherwise.")},
    {KEY("optimizer.optim_dtype", "--optim-dtype", optimizer.optim_dtype),
     CHOICE("auto, fp32, bf16, 8bit", "auto"),
     HELP("Storage of m and v; bf16 is rounded stochastically, 8bit has a scale for 256 elements; "
          "auto is fp32, or 8bit with adamw8bit.")},
    {KEY("optimizer.master_dtype", "--master-dtype", optimizer.master_dtype),
     CHOICE("auto, fp32, bf16", "auto"),
     HELP("Storage of the weights that the optimizer updates; bf16 is rounded stochastically and "
          "is the only copy; auto is fp32.")},
    {KEY("optimizer.lr", "--lr", optimizer.lr), NUMBER(0, 10, "0.001"),
     HELP("Highest learning rate of the schedule.")},
    {KEY("optimizer.beta1", "--beta1", optimizer.beta1), NUMBER_BELOW(0, 1, "0.9"),
     HELP("Decay of the running mean of gradients.")},
    {KEY("optimizer.beta2", "--beta2", optimizer.beta2), NUMBER_BELOW(0, 1, "0.95"),
     HELP("Decay of the running mean of squared gradients.")},
    {KEY("optimizer.adam_eps", "--adam-eps", optimizer.adam_eps), NUMBER(1e-16, 1, "1e-8"),
     HELP("Added to the root of the second moment.")},
    {KEY("optimizer.weight_decay", "--weight-decay", optimizer.weight_decay), NUMBER(0, 10, "0.1"),
     HELP("Decoupled decay, on matrices only.")},
    {KEY("optimizer.schedule", "--schedule", optimizer.schedule),
     CHOICE("constant, linear, cosine, wsd", "cosine"),
     HELP("Course of the learning rate after its warm-up; wsd is flat, then falls at the end.")},
    {KEY("optimizer.lr_warmup_steps", "--lr-warmup-steps", optimizer.lr_warmup_steps),
     INTEGER(0, 1000000000, "0"), HELP("Steps in which the learning rate rises from zero.")},
    {KEY("optimizer.min_lr_ratio", "--min-lr-ratio", optimizer.min_lr_ratio), NUMBER(0, 1, "0.1"),
     HELP("Last learning rate as a fraction of the highest.")},
    {KEY("optimizer.cooldown", "--cooldown", optimizer.cooldown), NUMBER(0, 1, "0.2"),
     HELP("wsd: fraction of the run in which the learning rate falls.")},

    {KEY("input.val_fraction", "--val-fraction", input.val_fraction), NUMBER(0.000001, 0.5, "0.05"),
     HELP("Part of the data held out for validation when val_data is empty.")},
    {KEY("input.builtin_bytes", "--builtin-bytes", input.builtin_bytes),
     BYTES("4KiB to 16GiB", 4096, 17179869184, "4M"),
     HELP("Size of the built-in text, held-out part included.")},
    {KEY("input.shuffle", "--shuffle", input.shuffle), SWITCH("true"),
     HELP("Read sequences in an order drawn anew each epoch.")},
    {KEY("input.prefetch", "--prefetch", input.prefetch), INTEGER(0, 4096, "2"),
     HELP("Micro-batches read ahead beyond one step.")},
    {KEY("input.tokenizer", "--tokenizer", input.tokenizer),
     TEXT("auto, none, or a tokenizer.json or its folder", "auto"),
     HELP("Turns text and rows into tokens; auto takes the one in the model's folder, none reads "
          "bytes.")},
    {KEY("input.chat_template", "--chat-template", input.chat_template),
     CHOICE("auto, chatml, llama2, llama3, mistral, alpaca", "auto"),
     HELP("How conversations are written for the model; auto recognises the one in its folder.")},
    {KEY("input.loss_on", "--loss-on", input.loss_on), CHOICE("answers, all", "answers"),
     HELP("Rows: learn the assistant's turns alone, or all tokens.")},
    {KEY("input.packing", "--packing", input.packing), CHOICE("auto, on, off", "auto"),
     HELP("Rows: several share a sequence without seeing each other; auto is on.")},
    {KEY("input.bad_rows", "--bad-rows", input.bad_rows), CHOICE("skip, stop", "skip"),
     HELP("A malformed row is told and left out, or ends the program.")},
    {KEY("input.num_workers", "--num-workers", input.num_workers), INTEGER(0, 256, "0"),
     HELP("Threads that turn data into tokens when it is opened; 0 takes all cores.")},
    {KEY("input.buffer_size", "--buffer-size", input.buffer_size),
     BYTES("64KiB to 1GiB", 65536, 1073741824, "16Mi"),
     HELP("Bytes of data that these threads have in work at a time.")},

    {KEY("eval.eval_every", "--eval-every", eval.eval_every), INTEGER(0, 1000000000, "0"),
     HELP("Steps between validations; 0 validates only at the end.")},
    {KEY("eval.eval_batches", "--eval-batches", eval.eval_batches), INTEGER(0, 1000000000, "0"),
     HELP("Batches of one validation; 0 takes all held-out data.")},
    {KEY("eval.eval_batch_size", "--eval-batch-size", eval.eval_batch_size), INTEGER(0, 65536, "0"),
     HELP("Sequences in a validation batch; 0 means as batch_size.")},
    {KEY("eval.sample_tokens", "--sample-tokens", eval.sample_tokens), INTEGER(0, 1048576, "200"),
     HELP("Length of the text sampled at the end; 0 samples none.")},
    {KEY("eval.temperature", "--temperature", eval.temperature), NUMBER(0, 100, "0.8"),
     HELP("Of sampling; 0 always takes the likeliest token.")},
    {KEY("eval.top_k", "--top-k", eval.top_k), INTEGER(0, 16777216, "0"),
     HELP("Sample among this many likeliest tokens; 0 means all.")},
    {KEY("eval.prompt", "--prompt", eval.prompt), TEXT("any text", ""),
     HELP("Text the closing sample continues; empty begins freely.")},

    {KEY("save.save_every", "--save-every", save.save_every), INTEGER(0, 1000000000, "0"),
     HELP("Steps between checkpoints; 0 saves at the end and when stopped.")},
    {KEY("save.keep", "--keep", save.keep), INTEGER(0, 1000000, "2"),
     HELP("Newest checkpoints kept; 0 keeps all.")},
    {KEY("save.resume", "--resume", save.resume),
     TEXT("auto, or a checkpoint or run folder, or nothing", ""),
     HELP("Continue a run: auto takes the newest checkpoint of out.")},
    {KEY("save.overwrite", "--overwrite", save.overwrite), SWITCH("false"),
     HELP("Start anew in a folder that holds an earlier run.")},
    {KEY("save.save_model", "--save-model", save.save_model), SWITCH("true"),
     HELP("At the end of the run write OUT/model, a folder that transformers loads.")},
    {KEY("save.model_dtype", "--model-dtype", save.model_dtype),
     CHOICE("auto, fp32, bf16, fp16", "auto"),
     HELP("Type of the weights in it; auto: as in the folder the model came from, or as in the "
          "checkpoint.")},
    {KEY("save.max_shard_size", "--max-shard-size", save.max_shard_size),
     BYTES("1M to 1024TiB", 1000000, 0x1p50, "5G"),
     HELP("Weights there are split into files of at most this size.")},
    {KEY("save.tensorboard", "--tensorboard", save.tensorboard), SWITCH("true"),
     HELP("Write event files for TensorBoard into OUT/tensorboard.")},
    {KEY("save.report", "--report", save.report), SWITCH("true"),
     HELP("Write OUT/report.html when the run ends or is stopped.")},

    {KEY("phases.predictor", "--predictor", phases.predictor),
     CHOICE("outer, line, lsq, none, frozen, random, paid", "outer"),
     HELP("How Predict moves the weights; frozen, random and paid are controls for measurements.")},
    {KEY("phases.full_steps", "--full-steps", phases.full_steps), INTEGER(0, 1000000, "15"),
     HELP("Full steps of a window, after its Correct steps.")},
    {KEY("phases.correct_steps", "--correct-steps", phases.correct_steps), INTEGER(1, 1000000, "5"),
     HELP("Correct steps after a move.")},
    {KEY("phases.max_predict_steps", "--max-predict-steps", phases.max_predict_steps),
     INTEGER(1, 1000000, "30"), HELP("Most predicted steps of one move; longer ones are scaled.")},
    {KEY("phases.correction_interval", "--correction-interval", phases.correction_interval),
     INTEGER(1, 1000000, "10"),
     HELP(
         "Most predicted steps before a Correct step, for line and lsq; outer moves once, whole.")},
    {KEY("phases.confidence_threshold", "--confidence-threshold", phases.confidence_threshold),
     NUMBER(0, 1, "0.75"), HELP("Predict only when confidence that it pays is at least this.")},
    {KEY("phases.regime", "--regime", phases.regime), CHOICE("auto, scratch, fine-tuning", "auto"),
     HELP("What confidence begins with; auto: fine-tuning when weights are given.")},
    {KEY("phases.predict_from", "--predict-from", phases.predict_from), NUMBER(0, 1, "0.1"),
     HELP("Share of the run's compute before which nothing is predicted.")},
    {KEY("phases.predict_until", "--predict-until", phases.predict_until), NUMBER(0, 1, "0.75"),
     HELP("Share of the run's compute from which on nothing is predicted.")},
    {KEY("phases.outer_mu", "--outer-mu", phases.outer_mu), NUMBER_BELOW(0, 1, "0.7"),
     HELP("outer: how much velocity is kept from window to window.")},
    {KEY("phases.outer_eta", "--outer-eta", phases.outer_eta), NUMBER(0, 2, "0.7"),
     HELP("outer: step length along the velocity.")},
    {KEY("phases.guard_share", "--guard-share", phases.guard_share), NUMBER(0.001, 4, "0.25"),
     HELP("Tokens of a guard pass, as a share of a step's; two passes check a move.")},
    {KEY("phases.fork_budget", "--fork-budget", phases.fork_budget), NUMBER(0, 0.5, "0.03"),
     HELP("Share of the run's compute that paired forks may cost; 0 turns them off.")},
    {KEY("phases.fork_steps", "--fork-steps", phases.fork_steps), INTEGER(0, 100000, "0"),
     HELP("True steps that each arm of a paired fork makes; 0 means half a window.")},
    {KEY("phases.snapshot", "--snapshot", phases.snapshot), SWITCH("true"),
     HELP("Keep the weights before a move in host memory, so that a divergence can undo it.")},
    {KEY("phases.tail_share", "--tail-share", phases.tail_share), NUMBER(0, 0.9, "0"),
     HELP("Average the weights over this last share of the run; validation uses the average.")},
    {KEY("phases.loss_sigma", "--loss-sigma", phases.loss_sigma), NUMBER(1, 1000, "6"),
     HELP("A loss this many deviations above its course is a divergence.")},
    {KEY("phases.grad_explosion", "--grad-explosion", phases.grad_explosion),
     NUMBER(1, 1000000000, "100"),
     HELP("A gradient this many times its usual norm is a divergence.")},
    {KEY("phases.grad_vanishing", "--grad-vanishing", phases.grad_vanishing), NUMBER(0, 1, "0.01"),
     HELP("A gradient below this share of its usual norm is a divergence.")},
    {KEY("phases.cooldown_steps", "--cooldown-steps", phases.cooldown_steps),
     INTEGER(1, 1000000, "40"),
     HELP("True steps without Predict after a rejected move or a divergence; doubles each time.")},
    {KEY("phases.precision_warmup", "--precision-warmup", phases.precision_warmup),
     CHOICE("same, fp32, 16bit, bf16, fp16", "same"),
     HELP("Precision of Warmup; same: train.precision.")},
    {KEY("phases.precision_full", "--precision-full", phases.precision_full),
     CHOICE("same, fp32, 16bit, bf16, fp16", "same"),
     HELP("Precision of Full; same: train.precision.")},
    {KEY("phases.precision_predict", "--precision-predict", phases.precision_predict),
     CHOICE("same, fp32, 16bit, bf16, fp16", "same"),
     HELP("Precision of Predict; same: train.precision.")},
    {KEY("phases.precision_correct", "--precision-correct", phases.precision_correct),
     CHOICE("same, fp32, 16bit, bf16, fp16", "same"),
     HELP("Precision of Correct; same: train.precision.")},
    {KEY("phases.predictor_dtype", "--predictor-dtype", phases.predictor_dtype),
     CHOICE("auto, fp32, bf16", "auto"),
     HELP("Storage of what the predictor keeps; auto is as the weights that are updated.")},

    {KEY("memory.max_gpu_mem", "--max-gpu-mem", memory.max_gpu_mem),
     BYTES("0 to 1024TiB", 0, 0x1p50, "0"),
     HELP("Most bytes to use on the device; 0 means what it has.")},
    {KEY("memory.cpu_mem", "--cpu-mem", memory.cpu_mem), BYTES("0 to 1024TiB", 0, 0x1p50, "0"),
     HELP("Most bytes to use of host memory; 0 means what is free.")},
    {KEY("memory.offload_folder", "--offload-folder", memory.offload_folder),
     TEXT("a folder, or nothing", ""),
     HELP("Folder on a fast disk for state that has room nowhere else.")},
    {KEY("memory.offload_size", "--offload-size", memory.offload_size),
     BYTES("0 to 1024TiB", 0, 0x1p50, "0"),
     HELP("Most bytes to use in offload_folder; 0 means what is free there.")},
    {KEY("memory.weights_place", "--weights-place", memory.weights_place),
     CHOICE("auto, device, pinned, disk", "auto"),
     HELP("Where the weights that passes use live; from pinned host memory or disk they pass "
          "through the device unit by unit. No place changes a bit.")},
    {KEY("memory.master_place", "--master-place", memory.master_place),
     CHOICE("auto, device, pinned, disk", "auto"),
     HELP("Where the fp32 weights of a 16-bit run live.")},
    {KEY("memory.grads_place", "--grads-place", memory.grads_place),
     CHOICE("auto, device, pinned, disk", "auto"),
     HELP("Where gradients live; sums come and go with units.")},
    {KEY("memory.optim_place", "--optim-place", memory.optim_place),
     CHOICE("auto, device, pinned, disk", "auto"), HELP("Where m and v live.")},
    {KEY("memory.activations_place", "--activations-place", memory.activations_place),
     CHOICE("auto, device, pinned", "auto"),
     HELP("Where what a layer keeps for the backward pass waits for it.")},
    {KEY("memory.predictor_place", "--predictor-place", memory.predictor_place),
     CHOICE("auto, pinned, disk", "auto"), HELP("Where what the predictor keeps lives.")},
    {KEY("memory.update", "--update", memory.update), CHOICE("auto, now, gather", "auto"),
     HELP("When weights are updated: at the end of a step, or each unit when the next step brings "
          "it; auto: the latter where anything passes through. The result is the same.")},
    {KEY("memory.ring_depth", "--ring-depth", memory.ring_depth), INTEGER(0, 8, "0"),
     HELP("Units of a class on the device at a time where it passes through, 2 at least; 0 means "
          "chosen.")},
    {KEY("memory.resident_units", "--resident-units", memory.resident_units),
     INTEGER(-1, 1024, "-1"),
     HELP("Layers whose state stays on the device although its class lives elsewhere; -1 means "
          "chosen.")},
    {KEY("memory.offload_strategy", "--offload-strategy", memory.offload_strategy),
     CHOICE("none, cpu, pinned, compress, drop", "none"),
     HELP("What becomes of m and v on the device during Predict: stay, move to the host, 8 bits, "
          "forgotten.")},
    {KEY("memory.async_restore", "--async-restore", memory.async_restore), SWITCH("true"),
     HELP("Bring the optimizer's state back on a stream of its own, beside the last passes.")},
    {KEY("memory.lookahead", "--lookahead", memory.lookahead), INTEGER(0, 1000, "2"),
     HELP("Forward-only batches before the end of Predict at which the restore begins.")},
    {KEY("memory.target_usage", "--target-usage", memory.target_usage), NUMBER(0.01, 1, "0.90"),
     HELP("Share of the memory budget that micro-batches may grow back into.")},
    {KEY("memory.warning_usage", "--warning-usage", memory.warning_usage), NUMBER(0.01, 1, "0.92"),
     HELP("Share of the budget from which the monitor warns.")},
    {KEY("memory.critical_usage", "--critical-usage", memory.critical_usage),
     NUMBER(0.01, 1, "0.95"), HELP("Share of the budget from which micro-batches shrink.")},
    {KEY("memory.emergency_usage", "--emergency-usage", memory.emergency_usage),
     NUMBER(0.01, 1, "0.97"), HELP("Share of the budget from which a cheaper plan is taken.")},
    {KEY("memory.monitor", "--monitor", memory.monitor), CHOICE("on, silent, off", "on"),
     HELP("Watch memory while the run goes on; silent: in the metrics only.")},
    {KEY("memory.monitor_every", "--monitor-every", memory.monitor_every),
     INTEGER(0, 1000000000, "100"),
     HELP("Steps between two lines of the monitor; 0: only when its status changes.")},
    {KEY("memory.recovery_tries", "--recovery-tries", memory.recovery_tries), INTEGER(0, 100, "3"),
     HELP("How often in a row a step that ran out of memory is repeated with less, before the run "
          "saves and stops.")},
    {KEY("memory.host_reserve", "--host-reserve", memory.host_reserve),
     BYTES("0 to 1024TiB", 0, 0x1p50, "0"),
     HELP("Host memory left to the rest of the machine; 0: a sixteenth of it, at most 2 GiB.")},
};

#define SWITCH_ALIAS(alias, option, target, on, off, sentence)                                     \
    .name = alias, .key = target, .when_true = on, .when_false = off, .info.key = alias,           \
    .info.flag = option, .info.type = "switch", .info.accepted = "true, false",                    \
    .info.fallback = "false", .info.help = sentence

/* Names that users of other trainers type first. */
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
    {SWITCH_ALIAS("checkpoint_every_layer", "--checkpoint-every-layer", "train.recompute", "all",
                  "auto", "Recompute every layer in the backward pass: recompute = all.")},
    {SWITCH_ALIAS("gradient_checkpointing", "--gradient-checkpointing", "train.recompute", "all",
                  "none", "True is recompute = all, false recompute = none.")},
    {SWITCH_ALIAS("no_checkpointing", "--no-checkpointing", "train.recompute", "none", "auto",
                  "Keep all activations: recompute = none.")},
};

enum {
    SETTINGS = sizeof table / sizeof table[0],
    ALIASES = sizeof aliases / sizeof aliases[0],
    GROUPS = sizeof groups / sizeof groups[0]
};

size_t hy_setting_count(void) { return SETTINGS; }

const hy_setting *hy_setting_at(size_t i) { return i < SETTINGS ? &table[i] : NULL; }

const hy_setting_alias *hy_setting_alias_at(size_t i) { return i < ALIASES ? &aliases[i] : NULL; }

size_t hy_setting_index(const hy_setting *setting) { return (size_t)(setting - table); }

const char *hy_setting_leaf(const hy_setting *setting) {
    const char *dot = strchr(setting->info.key, '.');
    return dot ? dot + 1 : setting->info.key;
}

const char *hy_setting_group_at(size_t i) { return i < GROUPS ? groups[i] : NULL; }

static bool is_same_name(const char *a, const char *b) {
    for (; *a && *b; a++, b++) {
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b)) return false;
    }
    return *a == *b;
}

static const hy_setting *find_key(const char *name) {
    for (size_t i = 0; i < SETTINGS; i++) {
        if (is_same_name(name, table[i].info.key)) return &table[i];
        if (is_same_name(name, hy_setting_leaf(&table[i]))) return &table[i];
    }
    return NULL;
}

/* An alias alone, or in front of it the group of the key it stands for. */
static bool names_alias(const char *name, const hy_setting_alias *alias) {
    if (is_same_name(name, alias->name)) return true;
    const char *dot = strchr(name, '.');
    const char *target_dot = strchr(alias->key, '.');
    if (!dot || !target_dot || dot - name != target_dot - alias->key) return false;
    return !strncmp(name, alias->key, (size_t)(dot - name)) && is_same_name(dot + 1, alias->name);
}

const hy_setting *hy_setting_find(const char *name, const hy_setting_alias **alias) {
    if (alias) *alias = NULL;
    if (!strncmp(name, "--", 2)) name += 2;
    const hy_setting *setting = find_key(name);
    for (size_t i = 0; !setting && i < ALIASES; i++) {
        if (!names_alias(name, &aliases[i])) continue;
        setting = find_key(aliases[i].key);
        if (alias && aliases[i].when_true) *alias = &aliases[i];
    }
    return setting;
}

/* A right leaf in a wrong group is the likeliest slip, then a misspelt full key, then a misspelt
 * leaf or alias. */
const hy_setting *hy_setting_nearest(const char *name) {
    if (!strncmp(name, "--", 2)) name += 2;
    const char *dot = strrchr(name, '.');
    const char *leaf = dot ? dot + 1 : name;
    const hy_setting *same_leaf = hy_setting_find(leaf, NULL);
    if (same_leaf) return same_leaf;

    const char *keys[SETTINGS], *leaves[SETTINGS + ALIASES];
    for (size_t i = 0; i < SETTINGS; i++) {
        keys[i] = table[i].info.key;
        leaves[i] = hy_setting_leaf(&table[i]);
    }
    for (size_t i = 0; i < ALIASES; i++) leaves[SETTINGS + i] = aliases[i].name;
    const char *near = hy_nearest_word(name, keys, SETTINGS);
    if (!near) near = hy_nearest_word(leaf, leaves, SETTINGS + ALIASES);
    return near ? hy_setting_find(near, NULL) : NULL;
}

bool hy_setting_is_group(const char *name) {
    for (size_t i = 0; i < GROUPS; i++) {
        if (!strcmp(groups[i], name)) return true;
    }
    return false;
}

const char *hy_setting_nearest_group(const char *name) {
    return hy_nearest_word(name, groups, GROUPS);
}
