/* settings.c: the table of every configuration key, and finding a row in it.
 *
 * A row ties a key to its field in hy_settings and says type, accepted values, default and help.
 * All that a user sees of a key comes from here: flags, files, --print-config, help, completion and
 * the table in docs/configuration.md. Always true: leaves (the part after the dot) and aliases are
 * unique among all names, rows of one group lie together, and every default passes its own check.
 * */
#include "config/settings.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "optim/optimizer.h"

/* A row begins with its field, after which the key is named, and its flag; then come range, default
 * and help; .is_local behind them is for what a machine has of its own. */
#define ROW(field, option, word, kind, range, default_text, sentence)                              \
    .type = HY_VALUE_##kind, .offset = offsetof(hy_settings, field),                               \
    .size = sizeof(((hy_settings *)NULL)->field), .info.key = #field, .info.flag = (option),       \
    .info.type = (word), .info.accepted = (range), .info.fallback = (default_text),                \
    .info.help = (sentence)
#define INTEGER(field, option, lo, hi, default_text, sentence)                                     \
    ROW(field, option, "integer", INTEGER, #lo " to " #hi, default_text, sentence), LIMITS(lo, hi)
#define NUMBER(field, option, lo, hi, default_text, sentence)                                      \
    ROW(field, option, "number", NUMBER, #lo " to " #hi, default_text, sentence), LIMITS(lo, hi)
#define NUMBER_BELOW(field, option, lo, hi, default_text, sentence)                                \
    ROW(field, option, "number", NUMBER, #lo " to below " #hi, default_text, sentence),            \
        LIMITS(lo, hi), .excludes_max = true
#define BYTES(field, option, range, lo, hi, default_text, sentence)                                \
    ROW(field, option, "bytes", BYTES, range, default_text, sentence), LIMITS(lo, hi)
#define LIMITS(lo, hi) .min = (lo), .max = (hi)
#define SWITCH(field, option, default_text, sentence)                                              \
    ROW(field, option, "switch", SWITCH, "true, false", default_text, sentence)
#define TEXT(field, option, range, default_text, sentence)                                         \
    ROW(field, option, "text", TEXT, range, default_text, sentence)
/* Its last arguments are the names and their values. */
#define CHOICE(field, option, default_text, sentence, ...)                                         \
    ROW(field, option, "choice", CHOICE, &EACH(NAME, __VA_ARGS__)[2], default_text, sentence),     \
        .choices = (const hy_named_value[]) {                                                      \
        EACH(PAIR, __VA_ARGS__) { NULL, 0 }                                                        \
    }

/* EACH(M, "name", VALUE, "name", VALUE, ...) is M("name", VALUE) M("name", VALUE) ... */
#define EACH(M, ...) JOIN(EACH_, PAIRS(__VA_ARGS__))(M, __VA_ARGS__)
#define EACH_1(M, name, value) M(name, value)
#define EACH_2(M, name, value, ...) M(name, value) EACH_1(M, __VA_ARGS__)
#define EACH_3(M, name, value, ...) M(name, value) EACH_2(M, __VA_ARGS__)
#define EACH_4(M, name, value, ...) M(name, value) EACH_3(M, __VA_ARGS__)
#define EACH_5(M, name, value, ...) M(name, value) EACH_4(M, __VA_ARGS__)
#define EACH_6(M, name, value, ...) M(name, value) EACH_5(M, __VA_ARGS__)
#define EACH_7(M, name, value, ...) M(name, value) EACH_6(M, __VA_ARGS__)
#define EACH_8(M, name, value, ...) M(name, value) EACH_7(M, __VA_ARGS__)
#define EACH_9(M, name, value, ...) M(name, value) EACH_8(M, __VA_ARGS__)
#define EACH_10(M, name, value, ...) M(name, value) EACH_9(M, __VA_ARGS__)
#define EACH_11(M, name, value, ...) M(name, value) EACH_10(M, __VA_ARGS__)
#define EACH_12(M, name, value, ...) M(name, value) EACH_11(M, __VA_ARGS__)
#define EACH_13(M, name, value, ...) M(name, value) EACH_12(M, __VA_ARGS__)
#define EACH_14(M, name, value, ...) M(name, value) EACH_13(M, __VA_ARGS__)
#define EACH_15(M, name, value, ...) M(name, value) EACH_14(M, __VA_ARGS__)
#define EACH_16(M, name, value, ...) M(name, value) EACH_15(M, __VA_ARGS__)
#define PAIRS(...)                                                                                 \
    THIRTY_THIRD(__VA_ARGS__, 16, 16, 15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8,  \
                 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1)
#define THIRTY_THIRD(a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17,   \
                     a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32,    \
                     count, ...)                                                                   \
    count
#define JOIN(a, b) JOIN_NOW(a, b)
#define JOIN_NOW(a, b) a##b
#define NAME(name, value) ", " name /* the first comma is left out by [2] */
#define PAIR(name, value) {name, value},

/* Lists that several keys have. */
#define AUTO_ON_OFF "auto", HY_AUTO, "on", HY_ON, "off", HY_OFF
#define FP32_BF16 "fp32", HY_F32, "bf16", HY_BF16
#define PHASE_TYPES                                                                                \
    "same", HY_DTYPE_SAME, "fp32", HY_F32, "16bit", HY_DTYPE_16BIT, "bf16", HY_BF16, "fp16",       \
        HY_F16, "fp8", HY_DTYPE_FP8
#define PLACES "auto", HY_PLACE_AUTO, "device", HY_DEVICE, "pinned", HY_PINNED, "disk", HY_DISK

static const char *const groups[] = {"shape", "train", "lora",   "optimizer", "input",
                                     "eval",  "save",  "phases", "memory",    "ranks"};

static const hy_setting table[] = {
    {CHOICE(profile, "--profile", "balanced",
            "How much to risk for speed: a set of preferences that files and flags override.",
            "conservative", HY_CONSERVATIVE, "balanced", HY_BALANCED, "aggressive", HY_AGGRESSIVE)},
    {TEXT(model, "--model",
          "a preset's name, a model's folder or name on the hub, or a .cfg file with a shape group",
          "nano",
          "What to train; brings its shape and its usual training values with it, a folder its "
          "weights too.")},
    {TEXT(init_from, "--init-from", "a checkpoint or run folder, or nothing", "",
          "Start from the weights of a checkpoint, with a new optimizer: fine-tuning.")},
    {TEXT(data, "--data",
          "builtin, a file or folder, - for standard input, or several with commas between them, "
          "as PATH or PATH:WEIGHT",
          "builtin",
          "Training data: text, token shards, rows of JSON or CSV, also packed by gzip or zstd, or "
          "the text source built into the program.")},
    {TEXT(val_data, "--val-data",
          "a file or folder, - for standard input, several with commas between them, or nothing",
          "", "Held-out data; without it the end of the training data is held out.")},
    {TEXT(out, "--out", "a folder, none, or nothing", "",
          "Folder of the run; empty means runs/MODEL-DATE-TIME, none writes nothing.")},
    {TEXT(name, "--name", "a few words, or nothing", "",
          "What the run is called in reports; without --out its folder, too.")},
    {TEXT(notes, "--notes", "any text, or nothing", "", "A remark that stands in the report.")},
    {CHOICE(device, "--device", "auto",
            "Where to compute; auto takes the GPU when there is one, cuda:1 the second card.",
            "auto", HY_USE_ANY, "cpu", HY_USE_CPU, "cuda", HY_USE_CUDA, "cuda:N", HY_USE_CARD),
     .is_local = true},
    {CHOICE(tune, "--tune", "fast",
            "GPU: time a few or many algorithms for each matmul, or take the library's guess.",
            "off", HY_TUNE_OFF, "fast", HY_TUNE_FAST, "max", HY_TUNE_MAX)},
    {TEXT(tune_cache, "--tune-cache", "auto, none, or a file", "auto",
          "GPU: file that keeps timed algorithms; auto: hybrid-train/ in the user's cache folder."),
     .is_local = true},
    {CHOICE(
        tf32, "--tf32", "auto",
        "GPU: matmuls of fp32 on tensor cores, 10 bits of mantissa; auto: where Full has 16 bits.",
        AUTO_ON_OFF)},
    {CHOICE(
        attention, "--attention", "auto",
        "GPU: attention in 16 bits by our own kernels or NVIDIA's cuDNN; auto: the faster, timed.",
        "auto", HY_ATTENTION_AUTO, "own", HY_ATTENTION_OWN, "cudnn", HY_ATTENTION_CUDNN)},
    {INTEGER(seed, "--seed", 0, 9007199254740991, "1",
             "Seed of initial weights, data order, the built-in text and samples.")},
    {INTEGER(threads, "--threads", 0, 1024, "0",
             "CPU threads; 0 takes all cores this process may use."),
     .is_local = true},
    {TEXT(card, "--card", "a card's name such as rtx5080, or nothing", "",
          "With --plan: plan for this card, which need not be here.")},

    {INTEGER(shape.layers, "--layers", 1, 1024, "4", "Transformer blocks.")},
    {INTEGER(shape.width, "--width", 1, 65536, "128", "Size of the residual stream.")},
    {INTEGER(shape.heads, "--heads", 1, 4096, "4", "Attention heads for queries.")},
    {INTEGER(shape.kv_heads, "--kv-heads", 0, 4096, "0",
             "Attention heads for keys and values; 0 means as many as heads.")},
    {INTEGER(shape.head_size, "--head-size", 0, 65536, "0",
             "Size of one head; 0 means width / heads.")},
    {INTEGER(shape.mlp_width, "--mlp-width", 0, 1048576, "0",
             "Inner size of the MLP; 0 means 4 x width.")},
    {INTEGER(shape.vocab, "--vocab", 2, 16777216, "256",
             "Token ids lie below this; 256 for plain bytes.")},
    {INTEGER(shape.context, "--context", 1, 16777216, "512",
             "Longest sequence the model is made for.")},
    {CHOICE(shape.norm, "--norm", "rmsnorm", "Normalisation before attention, MLP and head.",
            "layernorm", HY_LAYERNORM, "rmsnorm", HY_RMSNORM)},
    {CHOICE(shape.positions, "--positions", "rope",
            "How positions enter: a learned table, or rotation of queries and keys.", "learned",
            HY_POSITIONS_LEARNED, "rope", HY_POSITIONS_ROPE)},
    {CHOICE(shape.activation, "--activation", "swiglu",
            "The MLP's nonlinearity; swiglu has a gate, so three matrices.", "gelu",
            HY_ACTIVATION_GELU, "swiglu", HY_ACTIVATION_SWIGLU)},
    {SWITCH(shape.qkv_bias, "--qkv-bias", "false", "Biases on queries, keys and values.")},
    {SWITCH(shape.proj_bias, "--proj-bias", "false",
            "Biases on the attention output and in the MLP.")},
    {CHOICE(shape.proj_bias_in, "--proj-bias-in", "all",
            "What proj_bias reaches: both, or the attention output or the MLP alone.", "all",
            HY_BIAS_IN_ALL, "attention", HY_BIAS_IN_ATTENTION, "mlp", HY_BIAS_IN_MLP)},
    {SWITCH(shape.qk_norm, "--qk-norm", "false",
            "Normalise each head's queries and keys before the rotation (Qwen3).")},
    {SWITCH(shape.tied_head, "--tied-head", "true", "Use the embedding as the output matrix too.")},
    {NUMBER(shape.norm_eps, "--norm-eps", 1e-12, 0.1, "1e-5",
            "Added under the root when normalising.")},
    {NUMBER(shape.rope_theta, "--rope-theta", 1, 1000000000000, "10000",
            "Base of the rotation frequencies.")},
    {CHOICE(shape.rope_scaling, "--rope-scaling", "none",
            "Stretching of the rotations to a longer context.", "none", HY_ROPE_PLAIN, "llama3",
            HY_ROPE_LLAMA3)},
    {NUMBER(shape.rope_factor, "--rope-factor", 1, 1024, "8",
            "llama3 scaling: how many times slower the slow rotations turn.")},
    {NUMBER(
        shape.rope_low_freq, "--rope-low-freq", 0.001, 1024, "1",
        "llama3 scaling: rotations with fewer turns in the original context are slowed fully.")},
    {NUMBER(shape.rope_high_freq, "--rope-high-freq", 0.001, 1024, "4",
            "llama3 scaling: rotations with more turns in the original context stay as they are.")},
    {INTEGER(shape.rope_original_context, "--rope-original-context", 1, 16777216, "8192",
             "llama3 scaling: the context the frequencies were first made for.")},
    {INTEGER(shape.sliding_window, "--sliding-window", 0, 16777216, "0",
             "Each token sees this many tokens, itself included; 0 means all before it.")},
    {TEXT(shape.sliding_layers, "--sliding-layers", "all, or letters s and f", "all",
          "Layers that have the window: a letter for each, s (sliding) or f (full), repeated over "
          "the layers, as in ssf; or all.")},
    {NUMBER(shape.init_std, "--init-std", 0, 10, "0.02", "Standard deviation of initial weights.")},
    {CHOICE(
        shape.architecture, "--architecture", "auto",
        "Architecture of transformers that the model is exported as; auto: the one that has this "
        "shape.",
        "auto", HY_ARCH_NONE, "gpt2", HY_ARCH_GPT2, "llama", HY_ARCH_LLAMA, "mistral",
        HY_ARCH_MISTRAL, "ministral", HY_ARCH_MINISTRAL, "qwen2", HY_ARCH_QWEN2, "qwen3",
        HY_ARCH_QWEN3)},

    {INTEGER(train.steps, "--steps", 0, 1000000000, "0",
             "Compute of the run in full steps, guard passes and forks included; 0: from tokens or "
             "epochs.")},
    {INTEGER(train.tokens, "--tokens", 0, 1000000000000000, "0",
             "Length of the run in training tokens, instead of steps; 0 means not used.")},
    {NUMBER(train.epochs, "--epochs", 0, 1000000, "0",
            "Length of the run in passes over the data, instead of steps; 0 means not used.")},
    {INTEGER(train.batch_size, "--batch-size", 1, 65536, "4", "Sequences in one micro-batch.")},
    {INTEGER(train.seq_len, "--seq-len", 1, 1048576, "256", "Tokens in one sequence.")},
    {INTEGER(train.grad_accum_steps, "--grad-accum-steps", 1, 65536, "1",
             "Micro-batches whose gradients make one optimizer step.")},
    {SWITCH(train.normalize, "--normalize", "true",
            "Average over all tokens of a step; false sums the means of its micro-batches.")},
    {SWITCH(train.scale_lr, "--scale-lr", "false",
            "Multiply the learning rate by grad_accum_steps.")},
    {NUMBER(train.grad_clip, "--grad-clip", 0, 1000000, "1",
            "Largest norm of the whole gradient; longer ones are scaled down; 0 turns it off.")},
    {INTEGER(train.loss_chunks, "--loss-chunks", 0, 65536, "0",
             "Pieces in which logits and loss are computed, to save memory; 0 means chosen.")},
    {CHOICE(train.precision, "--precision", "auto",
            "Storage of weights and activations; auto is bf16 on a GPU (fp16 before sm_80), fp32 "
            "on a CPU; fp8 is bf16 with the blocks' matmuls in fp8 (sm_89 or newer).",
            "auto", HY_DTYPE_AUTO, FP32_BF16, "fp16", HY_F16, "fp8", HY_DTYPE_FP8)},
    {CHOICE(train.fp8, "--fp8", "auto",
            "With precision fp8: the matmuls that are faster so by measurement, or all of the "
            "blocks' (on a CPU always all).",
            "auto", HY_FP8_AUTO, "all", HY_FP8_ALL)},
    {CHOICE(
        train.fp8_grad, "--fp8-grad", "e4m3",
        "With precision fp8: the 8-bit type of gradients that go into matmuls: e4m3 has one bit "
        "of mantissa more, e5m2 reaches further down.",
        "e4m3", HY_E4M3, "e5m2", HY_E5M2)},
    {SWITCH(train.fp8_fast, "--fp8-fast", "true",
            "With precision fp8: forward matmuls may sum with fewer bits than fp32 has, which is "
            "faster on Ada and Hopper.")},
    {NUMBER(
        train.fp8_until, "--fp8-until", 0, 1, "1",
        "With precision fp8: the share of the run after which it goes on in bf16; 0.9 makes the "
        "last tenth bf16.")},
    {CHOICE(train.grad_dtype, "--grad-dtype", "auto",
            "Storage of gradients; micro-batches are added up in it; auto is fp32, or bf16 where "
            "small_types allows it and it pays.",
            "auto", HY_DTYPE_AUTO, FP32_BF16)},
    {TEXT(train.train, "--train", "all, last:N, or names with * and ?", "all",
          "Parameters that are trained; the others are frozen: all, the last N blocks with final "
          "norm "
          "and head (last:N), or names, as in blocks.3.attn.*; several with commas between.")},
    {CHOICE(
        train.frozen_dtype, "--frozen-dtype", "auto",
        "Storage of frozen weights; auto is that of passes, with lora and precision fp8 that is "
        "fp8 (a scale per matrix; matmuls of blocks read it as it is); int8 has a scale per row "
        "of each matrix, nf4 has 4 bits and a scale of 8 bits per 64 elements, as in QLoRA "
        "(double quantisation), nf4_single the same with scales in fp32; a folder that is "
        "quantised says which of the two.",
        "auto", HY_DTYPE_AUTO, "fp8", HY_DTYPE_FP8, "int8", HY_DTYPE_INT8, "nf4", HY_DTYPE_NF4,
        "nf4_single", HY_DTYPE_NF4_SINGLE)},
    {CHOICE(train.recompute, "--recompute", "auto",
            "What the backward pass computes again instead of keeping it in memory.", "auto",
            HY_RECOMPUTE_AUTO, "none", HY_RECOMPUTE_NONE, "norm", HY_RECOMPUTE_NORM, "attention",
            HY_RECOMPUTE_ATTENTION, "mlp", HY_RECOMPUTE_MLP, "all", HY_RECOMPUTE_ALL)},
    {INTEGER(train.recompute_layers, "--recompute-layers", 0, 1024, "0",
             "Layers that recompute, spread evenly; 0 means all of them.")},
    {INTEGER(train.step_tokens, "--step-tokens", 0, 1000000000000, "0",
             "Tokens of one optimizer step, instead of batch_size and grad_accum_steps, which are "
             "then chosen; 0 means not used.")},
    {CHOICE(
        train.micro_batch, "--micro-batch", "auto",
        "How a step is cut: given, as batch_size says if that fits; open, as it is fastest where "
        "state streams, with the same tokens per step; auto is given where batch_size or "
        "grad_accum_steps is said by a file or flag, else open.",
        "auto", HY_MICRO_AUTO, "given", HY_MICRO_GIVEN, "open", HY_MICRO_OPEN)},
    {CHOICE(train.dynamic_batch, "--dynamic-batch", "auto",
            "Smaller micro-batches and more of them when memory gets short, and back; auto: also "
            "find the fastest at the start where step_tokens leaves it open.",
            "off", HY_OFF, "on", HY_ON, "auto", HY_AUTO)},
    {INTEGER(train.min_batch_size, "--min-batch-size", 1, 65536, "1",
             "Micro-batches never shrink below this many sequences.")},
    {INTEGER(
        train.max_batch_size, "--max-batch-size", 0, 65536, "0",
        "Micro-batches never grow beyond this many sequences; 0: beyond what they began with.")},
    {INTEGER(train.batch_check_every, "--batch-check-every", 1, 1000000, "10",
             "Steps between two looks at whether the micro-batch should change.")},

    {SWITCH(lora.lora, "--lora", "false",
            "Train low-rank adapters beside frozen matrices instead of the weights (LoRA).")},
    {SWITCH(lora.qlora, "--qlora", "false",
            "The same with the frozen matrices quantised: frozen_dtype is then nf4 unless you say "
            "another.")},
    {TEXT(lora.adapter, "--adapter", "a folder that PEFT saved, a run, or nothing", "",
          "Begin with the adapter of this folder, which brings rank, alpha and targets with it; "
          "the model is the one it was trained beside. To look at or talk to: several with commas "
          "between.")},
    {TEXT(lora.base, "--base", "a model's folder or name on the hub, or nothing", "",
          "Of a run with adapters that goes on or is looked at: where the model that they stand "
          "beside is now, if it has moved; its weights must be those of then.")},
    {INTEGER(lora.lora_rank, "--lora-rank", 1, 1024, "16", "Rank of adapters.")},
    {NUMBER(lora.lora_alpha, "--lora-alpha", 0, 1000000, "0",
            "What adapters add is multiplied by alpha / rank; 0 means twice the rank.")},
    {SWITCH(lora.rslora, "--rslora", "false",
            "Multiply by alpha / sqrt(rank) instead, for large ranks.")},
    {TEXT(lora.lora_targets, "--lora-targets", "names of matrices, attention, mlp, or all", "all",
          "Which matrices of the blocks have adapters, commas between: q_proj, k_proj, v_proj, "
          "o_proj, gate_proj, up_proj, down_proj; GPT-2: c_attn, attn.c_proj, c_fc, mlp.c_proj.")},
    {NUMBER_BELOW(lora.lora_dropout, "--lora-dropout", 0, 1, "0",
                  "Share of an adapter's inputs that is left out in each pass of training.")},
    {TEXT(lora.lora_modules, "--lora-modules",
          "none, embed, head, norm, modules, or names with * and ?", "none",
          "What is trained whole beside the adapters, commas between; of the blocks norms, and "
          "modules that lora_targets leaves out.")},

    {CHOICE(optimizer.optimizer, "--optimizer", "adamw",
            "The update rule; auto: muon from scratch where it costs little, else adamw; muon "
            "moves matrices along their orthogonal factor and leaves the rest "
            "to adamw; 8bit stands for optim_dtype 8bit, paged_ keeps state in pinned host memory "
            "unless optim_place says otherwise; sgd has momentum.",
            "auto", HY_OPTIMIZER_AUTO, "adamw", HY_ADAMW, "adamw8bit", HY_ADAMW | HY_OPTIMIZER_8BIT,
            "paged_adamw", HY_ADAMW | HY_OPTIMIZER_PAGED, "paged_adamw8bit",
            HY_ADAMW | HY_OPTIMIZER_PAGED | HY_OPTIMIZER_8BIT, "sgd", HY_SGD, "muon", HY_MUON,
            "muon8bit", HY_MUON | HY_OPTIMIZER_8BIT, "paged_muon", HY_MUON | HY_OPTIMIZER_PAGED,
            "paged_muon8bit", HY_MUON | HY_OPTIMIZER_PAGED | HY_OPTIMIZER_8BIT, "lion", HY_LION,
            "lion8bit", HY_LION | HY_OPTIMIZER_8BIT, "paged_lion", HY_LION | HY_OPTIMIZER_PAGED,
            "paged_lion8bit", HY_LION | HY_OPTIMIZER_PAGED | HY_OPTIMIZER_8BIT, "adafactor",
            HY_ADAFACTOR)},
    {CHOICE(optimizer.optim_dtype, "--optim-dtype", "auto",
            "Storage of optimizer state; bf16 is rounded stochastically, 8bit has a scale for 256 "
            "elements; auto is fp32, or 8bit where the optimizer's name says it or small_types "
            "allows it and it "
            "pays.",
            "auto", HY_DTYPE_AUTO, FP32_BF16, "8bit", HY_U8)},
    {CHOICE(optimizer.master_dtype, "--master-dtype", "auto",
            "Storage of the weights that the optimizer updates; bf16 is rounded stochastically and "
            "is the only copy; auto is fp32, or bf16 where small_types allows it and it pays.",
            "auto", HY_DTYPE_AUTO, FP32_BF16)},
    {NUMBER(
        optimizer.lr, "--lr", 0, 10, "0.001",
        "Highest learning rate of the schedule; unless you set it, muon has four times and lion a "
        "tenth of a preset's, which are for adamw, sgd 0.1 and adafactor 0.01.")},
    {NUMBER_BELOW(
        optimizer.beta1, "--beta1", 0, 1, "0.9",
        "Decay of the running mean of gradients; lion, 0.9 unless you set it: how much of "
        "that mean is in a step.")},
    {NUMBER_BELOW(
        optimizer.beta2, "--beta2", 0, 1, "0.95",
        "Decay of the running mean of squared gradients; lion, unless you set it: 0.99, of "
        "gradients; 0.99 beside muon.")},
    {NUMBER(optimizer.adam_eps, "--adam-eps", 1e-16, 1, "1e-8",
            "Added to the root of the second moment.")},
    {NUMBER_BELOW(optimizer.momentum, "--momentum", 0, 1, "0.9",
                  "sgd: how much of the last step goes on; 0 needs no optimizer state.")},
    {SWITCH(optimizer.nesterov, "--nesterov", "false",
            "sgd: Nesterov's momentum, which looks one step ahead.")},
    {SWITCH(
        optimizer.adafactor_relative, "--adafactor-relative", "true",
        "adafactor: a step is a share of the parameter's own size, at most lr and 1 / sqrt(step) "
        "of it; false: lr is its length, and lr and decay are as for adamw unless you set them.")},
    {NUMBER_BELOW(optimizer.muon_momentum, "--muon-momentum", 0, 1, "0.95",
                  "muon: decay of the running mean of gradients of matrices.")},
    {SWITCH(optimizer.muon_nesterov, "--muon-nesterov", "true",
            "muon: look one step ahead, as Nesterov does.")},
    {INTEGER(optimizer.muon_momentum_warmup, "--muon-momentum-warmup", 0, 1000000000, "1000",
             "muon: steps in which its momentum rises to muon_momentum, from 0.1 below it.")},
    {INTEGER(optimizer.muon_steps, "--muon-steps", 1, 20, "5",
             "muon: steps of Newton and Schulz towards the orthogonal factor.")},
    {SWITCH(optimizer.cautious_decay, "--cautious-decay", "false",
            "muon: matrices decay only where their step makes a weight smaller too.")},
    {NUMBER(optimizer.adamw_lr, "--adamw-lr", 0, 10, "0",
            "muon: highest learning rate of what it leaves to adamw (embedding, head, norms, "
            "biases); 0: that of lr.")},
    {NUMBER(
        optimizer.weight_decay, "--weight-decay", 0, 10, "0.1",
        "Weight decay, on matrices only; sgd: part of the gradient, and 0.0001 unless you set it; "
        "others: apart from it; 1 with lion, 0 with adafactor.")},
    {CHOICE(optimizer.schedule, "--schedule", "auto",
            "Course of the learning rate after its warm-up; wsd is flat, then falls at the end; "
            "inverse_sqrt falls as sqrt(warm-up / step); auto: wsd from scratch, cosine in "
            "fine-tuning.",
            "auto", HY_SCHEDULE_AUTO, "constant", HY_SCHEDULE_CONSTANT, "linear",
            HY_SCHEDULE_LINEAR, "cosine", HY_SCHEDULE_COSINE, "wsd", HY_SCHEDULE_WSD,
            "inverse_sqrt", HY_SCHEDULE_INVERSE_SQRT)},
    {INTEGER(optimizer.lr_warmup_steps, "--lr-warmup-steps", -1, 1000000000, "-1",
             "Steps in which the learning rate rises from zero, taken as they are where a file or "
             "flag gives them; a preset's are a third of the run at the most; -1: by "
             "lr_warmup_ratio alone.")},
    {NUMBER(optimizer.lr_warmup_ratio, "--lr-warmup-ratio", 0, 1, "0.1",
            "The same as a share of the run; given by a file or flag it wins over a preset's "
            "steps.")},
    {NUMBER(optimizer.min_lr_ratio, "--min-lr-ratio", 0, 1, "0.1",
            "Last learning rate as a fraction of the highest; inverse_sqrt: the lowest; wsd has 0 "
            "unless you set it.")},
    {NUMBER(optimizer.cooldown, "--cooldown", 0, 1, "0.4",
            "wsd: fraction of the run in which the learning rate falls.")},
    {CHOICE(optimizer.cooldown_shape, "--cooldown-shape", "linear",
            "wsd: falls along a line, or as 1 - sqrt, fast at first.", "sqrt", HY_COOLDOWN_SQRT,
            "linear", HY_COOLDOWN_LINEAR)},
    {TEXT(optimizer.groups, "--groups", "NAMES: lr_scale X, decay X, optimizer NAME, frozen; ...",
          "",
          "Groups of parameters with values of their own, by patterns of their names: a share of "
          "the learning rate, a weight decay, an optimizer, or frozen.")},

    {CHOICE(input.data_format, "--data-format", "auto",
            "What files are taken for: auto looks at them, text is text whatever its name, bytes "
            "are bytes as they lie there, for byte-level models.",
            "auto", HY_FORMAT_AUTO, "text", HY_FORMAT_TEXT, "bytes", HY_FORMAT_BYTES)},
    {NUMBER(input.val_fraction, "--val-fraction", 0.000001, 0.5, "0.05",
            "Part of the data held out for validation when val_data is empty.")},
    {BYTES(input.builtin_bytes, "--builtin-bytes", "4KiB to 16GiB", 4096, 17179869184, "4M",
           "Size of the built-in text, held-out part included.")},
    {SWITCH(input.shuffle, "--shuffle", "true",
            "Read sequences in an order drawn anew each epoch.")},
    {INTEGER(input.prefetch, "--prefetch", 0, 4096, "2",
             "Micro-batches read ahead beyond one step.")},
    {TEXT(input.tokenizer, "--tokenizer", "auto, none, or a tokenizer.json or its folder", "auto",
          "Turns text and rows into tokens; auto takes the one in the model's folder, none reads "
          "bytes.")},
    {CHOICE(input.chat_template, "--chat-template", "auto",
            "How conversations are written for the model; auto renders the template in its folder.",
            "auto", HY_CHAT_AUTO, "chatml", HY_CHAT_CHATML, "llama2", HY_CHAT_LLAMA2, "llama3",
            HY_CHAT_LLAMA3, "mistral", HY_CHAT_MISTRAL, "alpaca", HY_CHAT_ALPACA)},
    {CHOICE(input.loss_on, "--loss-on", "answers",
            "Rows: learn the assistant's turns alone, or all tokens.", "answers",
            HY_LOSS_ON_ANSWERS, "all", HY_LOSS_ON_ALL)},
    {CHOICE(input.packing, "--packing", "auto",
            "Rows: several share a sequence without seeing each other; auto is on.", AUTO_ON_OFF)},
    {CHOICE(input.bad_rows, "--bad-rows", "skip",
            "A malformed row is reported and left out, or ends the program.", "skip",
            HY_BAD_ROWS_SKIP, "stop", HY_BAD_ROWS_STOP)},
    {INTEGER(input.num_workers, "--num-workers", 0, 256, "0",
             "Threads that turn data into tokens when it is opened; 0 takes all cores."),
     .is_local = true},
    {BYTES(input.buffer_size, "--buffer-size", "64KiB to 1GiB", 65536, 1073741824, "16Mi",
           "Bytes of data that these threads have in work at a time."),
     .is_local = true},

    {INTEGER(eval.eval_every, "--eval-every", -1, 1000000000, "-1",
             "Steps between validations; 0 validates only at the end, -1 about twenty times a run, "
             "in at most 3 % of its time.")},
    {INTEGER(eval.eval_batches, "--eval-batches", -1, 1000000000, "-1",
             "Batches of one validation, of batch_size sequences each; 0 takes all held-out data, "
             "-1 what takes little of the run's time.")},
    {INTEGER(eval.eval_batch_size, "--eval-batch-size", 0, 65536, "0",
             "Sequences in a validation batch; 0 means as batch_size.")},
    {INTEGER(eval.early_stop, "--early-stop", 0, 1000000, "0",
             "End the run after this many validations in a row without a lower loss; 0: never.")},
    {NUMBER(eval.early_stop_delta, "--early-stop-delta", 0, 1000, "0",
            "How much lower, in nats, a held-out loss must be to count as lower.")},
    {INTEGER(eval.sample_tokens, "--sample-tokens", 0, 1048576, "200",
             "Length of the text sampled at the end; 0 samples none.")},
    {NUMBER(eval.temperature, "--temperature", 0, 100, "0.8",
            "Of sampling; 0 always takes the likeliest token.")},
    {INTEGER(eval.top_k, "--top-k", 0, 16777216, "0",
             "Sample among this many likeliest tokens; 0 means all.")},
    {TEXT(eval.prompt, "--prompt", "any text", "",
          "Text the closing sample continues; empty begins freely.")},

    {INTEGER(save.save_every, "--save-every", 0, 1000000000, "0",
             "Steps between checkpoints; 0: by time alone (save_minutes).")},
    {NUMBER(save.save_minutes, "--save-minutes", 0, 1000000, "30",
            "A checkpoint is saved when so many minutes have passed since the last one, too; 0: by "
            "steps alone. Where saving takes long they are up to ten times as far apart, so that "
            "it takes "
            "1 % of the time. One is saved at the end and when the run is stopped in any case.")},
    {INTEGER(save.keep, "--keep", 0, 1000000, "2", "Newest checkpoints kept; 0 keeps all.")},
    {TEXT(save.resume, "--resume", "auto, or a checkpoint or run folder, or nothing", "",
          "Continue a run: auto takes the newest checkpoint of out.")},
    {SWITCH(save.overwrite, "--overwrite", "false",
            "Start anew in a folder that holds an earlier run.")},
    {SWITCH(save.save_model, "--save-model", "true",
            "At the end of the run write OUT/model, a folder that transformers loads.")},
    {CHOICE(save.model_dtype, "--model-dtype", "auto",
            "Type of the weights in it; auto: as in the folder the model came from, or as in the "
            "checkpoint.",
            "auto", HY_DTYPE_AUTO, FP32_BF16, "fp16", HY_F16)},
    {BYTES(save.max_shard_size, "--max-shard-size", "1M to 1024TiB", 1000000, 0x1p50, "5G",
           "Weights there are split into files of at most this size.")},
    {SWITCH(save.tensorboard, "--tensorboard", "true",
            "Write event files for TensorBoard into OUT/tensorboard.")},
    {SWITCH(save.report, "--report", "true",
            "Write OUT/report.html when the run ends or is stopped.")},

    {CHOICE(phases.predictor, "--predictor", "outer", "How Predict moves the weights.", "outer",
            HY_PREDICTOR_OUTER, "line", HY_PREDICTOR_LINE, "ema", HY_PREDICTOR_EMA, "none",
            HY_PREDICTOR_NONE)},
    {INTEGER(phases.full_steps, "--full-steps", 0, 1000000, "15",
             "Full steps of a window, after its Correct steps.")},
    {INTEGER(phases.correct_steps, "--correct-steps", 1, 1000000, "5",
             "Correct steps after a jump.")},
    {INTEGER(phases.max_predict_steps, "--max-predict-steps", 1, 1000000, "30",
             "Most predicted steps of one jump; longer ones are scaled.")},
    {INTEGER(
        phases.correction_interval, "--correction-interval", 1, 1000000, "10",
        "Most predicted steps before a Correct step, for line; outer and ema jump once, whole.")},
    {NUMBER(phases.confidence_threshold, "--confidence-threshold", 0, 1, "0.75",
            "Predict only when confidence that it pays is at least this.")},
    {CHOICE(phases.regime, "--regime", "auto",
            "What confidence begins with; auto: fine-tuning when weights are given.", "auto",
            HY_REGIME_AUTO, "scratch", HY_REGIME_SCRATCH, "fine-tuning", HY_REGIME_TUNING)},
    {NUMBER(phases.predict_from, "--predict-from", 0, 1, "0.1",
            "Share of the run's compute before which nothing is predicted.")},
    {NUMBER(phases.predict_until, "--predict-until", 0, 1, "0.75",
            "Share of the run's compute from which on nothing is predicted; unless you set it, not "
            "while wsd's rate falls.")},
    {NUMBER_BELOW(phases.outer_mu, "--outer-mu", 0, 1, "0.7",
                  "outer: how much velocity is kept from window to window.")},
    {NUMBER(phases.outer_eta, "--outer-eta", 0, 2, "0.7",
            "outer: step length along the velocity.")},
    {NUMBER_BELOW(phases.ema_beta, "--ema-beta", 0, 1, "0.5",
                  "ema: how far to look ahead, as a share of the mean displacement of windows.")},
    {NUMBER_BELOW(phases.ema_gamma, "--ema-gamma", 0, 1, "0.99",
                  "ema: how much of that mean an optimizer step leaves; a window of K steps leaves "
                  "its K-th power.")},
    {NUMBER(phases.guard_share, "--guard-share", 0.001, 4, "0.25",
            "Tokens of a guard pass, as a share of a step's; two passes check a jump.")},
    {NUMBER(phases.fork_budget, "--fork-budget", 0, 0.5, "0.03",
            "Share of the run's compute that paired forks may cost; 0 turns them off.")},
    {INTEGER(phases.fork_steps, "--fork-steps", 0, 100000, "0",
             "Optimizer steps that each arm of a paired fork makes; 0 means half a window.")},
    {SWITCH(phases.snapshot, "--snapshot", "true",
            "Keep the weights before a jump where memory has room, so that a divergence can undo "
            "it.")},
    {NUMBER(phases.tail_share, "--tail-share", 0, 0.9, "0",
            "Average the weights over this last share of the run; validation uses the average.")},
    {NUMBER(phases.loss_sigma, "--loss-sigma", 1, 1000, "6",
            "A loss this many deviations above its course is a divergence.")},
    {NUMBER(phases.grad_explosion, "--grad-explosion", 1, 1000000000, "100",
            "A gradient this many times its usual norm is a divergence.")},
    {NUMBER(phases.grad_vanishing, "--grad-vanishing", 0, 1, "0.01",
            "A gradient below this share of its usual norm is a divergence.")},
    {NUMBER(phases.divergence_factor, "--divergence-factor", 0, 1000000, "2",
            "A run ends with exit code 3 when its loss is not finite, or above this many times its "
            "first value and 2 nats above it, in 32 steps in a row; 0: a high loss ends no run.")},
    {INTEGER(phases.cooldown_steps, "--cooldown-steps", 1, 1000000, "40",
             "Optimizer steps without Predict after a rejected jump or a divergence; doubles each "
             "time.")},
    {CHOICE(phases.precision_warmup, "--precision-warmup", "same",
            "Precision of Warmup; same: train.precision.", PHASE_TYPES)},
    {CHOICE(phases.precision_full, "--precision-full", "same",
            "Precision of Full; same: train.precision.", PHASE_TYPES)},
    {CHOICE(phases.precision_predict, "--precision-predict", "same",
            "Precision of Predict; same: train.precision.", PHASE_TYPES)},
    {CHOICE(phases.precision_correct, "--precision-correct", "same",
            "Precision of Correct; same: train.precision.", PHASE_TYPES)},
    {CHOICE(phases.predictor_dtype, "--predictor-dtype", "auto",
            "Storage of what the predictor keeps; auto is as the weights that are updated, or 8bit "
            "where small_types allows it and memory is short; 8bit goes with master_dtype bf16, "
            "adamw, and outer or line.",
            "auto", HY_DTYPE_AUTO, FP32_BF16, "8bit", HY_U8)},

    {BYTES(memory.max_gpu_mem, "--max-gpu-mem", "0 to 1024TiB", 0, 0x1p50, "0",
           "Most bytes to use on the device; 0 means what it has."),
     .is_local = true},
    {BYTES(memory.cpu_mem, "--cpu-mem", "0 to 1024TiB", 0, 0x1p50, "0",
           "Most bytes to use of host memory; 0 means what is free."),
     .is_local = true},
    {TEXT(memory.offload_folder, "--offload-folder", "a folder, or nothing", "",
          "Folder on a fast disk for state that has room nowhere else."),
     .is_local = true},
    {BYTES(memory.offload_size, "--offload-size", "0 to 1024TiB", 0, 0x1p50, "0",
           "Most bytes to use in offload_folder; 0 means what is free there."),
     .is_local = true},
    {CHOICE(memory.weights_place, "--weights-place", "auto",
            "Where the weights that passes use live; from pinned host memory or disk they pass "
            "through the device unit by unit. No place changes a bit.",
            PLACES)},
    {CHOICE(memory.master_place, "--master-place", "auto",
            "Where the fp32 weights of a 16-bit run live.", PLACES)},
    {CHOICE(memory.grads_place, "--grads-place", "auto",
            "Where gradients live; sums come and go with units.", PLACES)},
    {CHOICE(memory.optim_place, "--optim-place", "auto", "Where optimizer state lives.", PLACES)},
    {CHOICE(memory.activations_place, "--activations-place", "auto",
            "Where what a layer keeps for the backward pass waits for it.", "auto", HY_PLACE_AUTO,
            "device", HY_DEVICE, "pinned", HY_PINNED)},
    {CHOICE(memory.predictor_place, "--predictor-place", "auto",
            "Where what the predictor keeps lives.", "auto", HY_PLACE_AUTO, "pinned", HY_PINNED,
            "disk", HY_DISK)},
    {CHOICE(memory.small_types, "--small-types", "optimizer",
            "Which types that are auto may be small where fp32 does not fit or is slower: none; "
            "optimizer: its state in 8 bits; all: also gradients and weights in bf16 and a "
            "predictor in 8 bits.",
            "none", HY_SMALL_NONE, "optimizer", HY_SMALL_OPTIMIZER, "all", HY_SMALL_ALL)},
    {CHOICE(memory.update, "--update", "auto",
            "When weights are updated: at the end of a step, or each unit when the next step "
            "brings it; auto: the latter where anything passes through. The result is the same.",
            "auto", HY_UPDATE_AUTO, "now", HY_UPDATE_NOW, "gather", HY_UPDATE_ON_GATHER)},
    {INTEGER(memory.ring_depth, "--ring-depth", 0, 8, "0",
             "Units of a class on the device at a time where it passes through, 2 at least; 0 "
             "means chosen.")},
    {INTEGER(memory.resident_units, "--resident-units", -1, 1024, "-1",
             "Layers whose state stays on the device although its class lives elsewhere; -1 means "
             "chosen.")},
    {CHOICE(memory.offload_strategy, "--offload-strategy", "none",
            "What becomes of optimizer state on the device during Predict: stay, move to the host, "
            "8 bits, "
            "forgotten.",
            "none", HY_OFFLOAD_NONE, "cpu", HY_OFFLOAD_CPU, "pinned", HY_OFFLOAD_PINNED, "compress",
            HY_OFFLOAD_COMPRESS, "drop", HY_OFFLOAD_DROP)},
    {SWITCH(memory.async_restore, "--async-restore", "true",
            "Bring the optimizer's state back on a stream of its own, beside the last passes.")},
    {INTEGER(memory.lookahead, "--lookahead", 0, 1000, "2",
             "Forward-only batches before the end of Predict at which the restore begins.")},
    {NUMBER(memory.target_usage, "--target-usage", 0.01, 1, "0.90",
            "Share of the memory budget that micro-batches may grow back into.")},
    {NUMBER(memory.warning_usage, "--warning-usage", 0.01, 1, "0.92",
            "Share of the budget from which the monitor warns.")},
    {NUMBER(memory.critical_usage, "--critical-usage", 0.01, 1, "0.95",
            "Share of the budget from which micro-batches shrink.")},
    {NUMBER(memory.emergency_usage, "--emergency-usage", 0.01, 1, "0.97",
            "Share of the budget from which a cheaper plan is taken.")},
    {CHOICE(memory.monitor, "--monitor", "on",
            "Watch memory while the run goes on; silent: in the metrics only.", "on", HY_MONITOR_ON,
            "silent", HY_MONITOR_SILENT, "off", HY_MONITOR_OFF)},
    {INTEGER(memory.monitor_every, "--monitor-every", 0, 1000000000, "100",
             "Steps between two lines of the monitor; 0: only when its status changes.")},
    {INTEGER(memory.recovery_tries, "--recovery-tries", 0, 100, "3",
             "How often in a row a step that ran out of memory is repeated with less, before the "
             "run saves and stops.")},
    {BYTES(memory.host_reserve, "--host-reserve", "0 to 1024TiB", 0, 0x1p50, "0",
           "Host memory left to the rest of the machine; 0: a sixteenth of it, at most 2 GiB."),
     .is_local = true},

    {CHOICE(ranks.zero_stage, "--zero-stage", "auto",
            "What each of several ranks keeps a part of instead of the whole: 1 optimizer state "
            "and master weights, 2 gradients too, 3 weights too; auto: what the planner chooses.",
            "auto", HY_ZERO_AUTO, "0", HY_ZERO_NONE, "1", HY_ZERO_OPTIMIZER, "2", HY_ZERO_GRADS,
            "3", HY_ZERO_WEIGHTS)},
    {CHOICE(ranks.transport, "--transport", "auto",
            "What moves data between ranks; auto: NCCL between cards, MPI where mpirun started "
            "ranks, else sockets.",
            "auto", HY_LINK_AUTO, "sockets", HY_LINK_SOCKETS, "mpi", HY_LINK_MPI, "nccl",
            HY_LINK_NCCL)},
    {CHOICE(ranks.link, "--link", "auto",
            "Of a plan (--plan): the wire between ranks; auto: PCIe 4 between cards.", "auto",
            HY_WIRE_AUTO, "nvlink", HY_WIRE_NVLINK, "pcie4", HY_WIRE_PCIE4, "pcie5", HY_WIRE_PCIE5,
            "ib200", HY_WIRE_IB200)},
    {NUMBER(ranks.rank_timeout, "--rank-timeout", 1, 86400, "60",
            "Seconds without a sign of life after which a rank is lost and all others end.")},
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

hy_status hy_setting_unknown(const char *where, const char *name) {
    const hy_setting *near = hy_setting_nearest(name);
    return hy_fail(HY_ERR_INPUT, "%sunknown key %s%s", where, name,
                   hy_did_you_mean(near ? near->info.key : NULL).text);
}
