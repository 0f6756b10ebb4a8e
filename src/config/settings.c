/* settings.c: the table of all configuration keys, and lookup by name.
 *
 * A row connects a key to its field in hy_settings and holds type, accepted values, default and
 * help. Everything that a user sees of a key comes from here: flags, files, --print-config, help,
 * completion and the table in docs/configuration.md. Always true: leaves (the part after the dot)
 * and aliases are unique among all names, rows of one group are adjacent, and every default passes
 * its own check. */
#include "config/settings.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "optim/optimizer.h"

/* A row starts with its field, which also gives the key its name, and its flag. Range, default and
 * help follow. .is_local at the end marks settings of one machine or process. */
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
/* The last arguments are pairs of a name and its value. */
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
#define EACH_17(M, name, value, ...) M(name, value) EACH_16(M, __VA_ARGS__)
#define EACH_18(M, name, value, ...) M(name, value) EACH_17(M, __VA_ARGS__)
#define EACH_19(M, name, value, ...) M(name, value) EACH_18(M, __VA_ARGS__)
#define EACH_20(M, name, value, ...) M(name, value) EACH_19(M, __VA_ARGS__)
#define EACH_21(M, name, value, ...) M(name, value) EACH_20(M, __VA_ARGS__)
#define EACH_22(M, name, value, ...) M(name, value) EACH_21(M, __VA_ARGS__)
#define EACH_23(M, name, value, ...) M(name, value) EACH_22(M, __VA_ARGS__)
#define EACH_24(M, name, value, ...) M(name, value) EACH_23(M, __VA_ARGS__)
#define PAIRS(...)                                                                                 \
    BEHIND_ALL(__VA_ARGS__, 24, 24, 23, 23, 22, 22, 21, 21, 20, 20, 19, 19, 18, 18, 17, 17, 16,    \
               16, 15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5,   \
               4, 4, 3, 3, 2, 2, 1, 1)
#define BEHIND_ALL(a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17,     \
                   a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32, a33, \
                   a34, a35, a36, a37, a38, a39, a40, a41, a42, a43, a44, a45, a46, a47, a48,      \
                   count, ...)                                                                     \
    count
#define JOIN(a, b) JOIN_NOW(a, b)
#define JOIN_NOW(a, b) a##b
#define NAME(name, value) ", " name /* [2] skips the first comma */
#define PAIR(name, value) {name, value},

/* Choices that several keys share. */
#define AUTO_ON_OFF "auto", HY_AUTO, "on", HY_ON, "off", HY_OFF
#define FP32_BF16 "fp32", HY_F32, "bf16", HY_BF16
#define PHASE_TYPES                                                                                \
    "same", HY_DTYPE_SAME, "fp32", HY_F32, "16bit", HY_DTYPE_16BIT, "bf16", HY_BF16, "fp16",       \
        HY_F16, "fp8", HY_DTYPE_FP8
#define PLACES "auto", HY_PLACE_AUTO, "device", HY_DEVICE, "pinned", HY_PINNED, "disk", HY_DISK

static const char *const groups[] = {"shape", "train", "lora", "optimizer", "input",  "preference",
                                     "grpo",  "eval",  "save", "phases",    "memory", "ranks"};

static const hy_setting table[] = {
    {CHOICE(profile, "--profile", "balanced",
            "How much risk to take for speed: a set of defaults. Files and flags override it.",
            "conservative", HY_CONSERVATIVE, "balanced", HY_BALANCED, "aggressive", HY_AGGRESSIVE)},
    {TEXT(
        model, "--model",
        "a preset, a model folder or hub name, a GGUF file, a finished run, or a .cfg file with a "
        "shape group",
        "nano",
        "The model to train. It sets the shape and the usual training values; a model folder "
        "also brings its weights.")},
    {TEXT(init_from, "--init-from", "a checkpoint or run folder, or empty", "",
          "Start a new run with the weights of a checkpoint and fresh optimizer state.")},
    {CHOICE(
        task, "--task", "next-token",
        "What to learn. next-token: text, or answers to rows. dpo, ipo, orpo, simpo: to prefer one "
        "answer to another, from rows with prompt, chosen and rejected. grpo: from rewards of "
        "answers "
        "that the model generates to prompts.",
        "next-token", HY_LOSS_NEXT_TOKEN, "dpo", HY_LOSS_DPO, "ipo", HY_LOSS_IPO, "orpo",
        HY_LOSS_ORPO, "simpo", HY_LOSS_SIMPO, "grpo", HY_LOSS_POLICY)},
    {TEXT(data, "--data",
          "builtin, a file or folder, - for standard input, or a comma-separated list of PATH or "
          "PATH:WEIGHT",
          "builtin",
          "Training data: text, token shards, rows of JSON or CSV (also compressed with gzip or "
          "zstd), or the built-in text.")},
    {TEXT(val_data, "--val-data",
          "a file or folder, - for standard input, a comma-separated list, or empty", "",
          "Validation data. If empty, the end of the training data is held out.")},
    {TEXT(out, "--out", "a folder, none, or empty", "",
          "Run folder. Empty: runs/NAME-DATE-TIME, with the model's name if name is empty; none: "
          "write no files.")},
    {TEXT(name, "--name", "a few words, or empty", "",
          "Name of the run in reports. Without --out, the run folder is runs/NAME-DATE-TIME.")},
    {TEXT(notes, "--notes", "any text, or empty", "", "A note that appears in the report.")},
    {CHOICE(device, "--device", "auto",
            "Device to compute on. auto: the GPU if there is one; cuda:1: the second card.", "auto",
            HY_USE_ANY, "cpu", HY_USE_CPU, "cuda", HY_USE_CUDA, "cuda:N", HY_USE_CARD),
     .is_local = true},
    {CHOICE(
        tune, "--tune", "fast",
        "GPU: time a few (fast) or many (max) algorithms for each matmul; off: use the choice of "
        "cuBLASLt.",
        "off", HY_TUNE_OFF, "fast", HY_TUNE_FAST, "max", HY_TUNE_MAX)},
    {TEXT(tune_cache, "--tune-cache", "auto, none, or a file", "auto",
          "GPU: cache file for timed algorithms. auto: in hybrid-train/ of the user's cache "
          "folder."),
     .is_local = true},
    {CHOICE(tf32, "--tf32", "auto",
            "GPU: run fp32 matmuls on tensor cores with 10 bits of mantissa. auto: if Full uses 16 "
            "bits.",
            AUTO_ON_OFF)},
    {CHOICE(attention, "--attention", "auto",
            "GPU: kernels for 16-bit attention, ours or NVIDIA's cuDNN. auto: time both, use the "
            "faster.",
            "auto", HY_ATTENTION_AUTO, "own", HY_ATTENTION_OWN, "cudnn", HY_ATTENTION_CUDNN)},
    {INTEGER(
        seed, "--seed", 0, 9007199254740991, "1",
        "Random seed for initial weights, data order, dropout, stochastic rounding, the built-in "
        "text and samples.")},
    {INTEGER(threads, "--threads", 0, 1024, "0",
             "CPU threads; 0: all cores that this process may use."),
     .is_local = true},
    {TEXT(card, "--card", "a card name such as rtx5080 (an unknown name lists all), or empty", "",
          "With --plan: plan for this card. It need not be in this machine.")},

    {INTEGER(shape.layers, "--layers", 1, 1024, "4", "Transformer blocks.")},
    {INTEGER(shape.width, "--width", 1, 65536, "128", "Width of the residual stream.")},
    {INTEGER(shape.heads, "--heads", 1, 4096, "4", "Number of query heads.")},
    {INTEGER(shape.kv_heads, "--kv-heads", 0, 4096, "0",
             "Number of key and value heads; 0: same as heads.")},
    {INTEGER(shape.head_size, "--head-size", 0, 65536, "0",
             "Size of one attention head; 0: width / heads.")},
    {INTEGER(shape.mlp_width, "--mlp-width", 0, 1048576, "0",
             "Hidden size of the MLP; 0: 4 x width.")},
    {INTEGER(shape.vocab, "--vocab", 2, 16777216, "256", "Vocabulary size; 256 for plain bytes.")},
    {INTEGER(shape.context, "--context", 1, 16777216, "512",
             "Longest sequence that the model supports.")},
    {CHOICE(shape.norm, "--norm", "rmsnorm", "Normalisation before attention, MLP and head.",
            "layernorm", HY_LAYERNORM, "rmsnorm", HY_RMSNORM)},
    {CHOICE(shape.positions, "--positions", "rope",
            "Position encoding: learned is a table, rope rotates queries and keys.", "learned",
            HY_POSITIONS_LEARNED, "rope", HY_POSITIONS_ROPE)},
    {CHOICE(shape.activation, "--activation", "swiglu",
            "Activation function of the MLP; swiglu has a gate and needs a third matrix. Some "
            "architectures use another function: see arch_options.",
            "gelu", HY_ACTIVATION_GELU, "swiglu", HY_ACTIVATION_SWIGLU)},
    {SWITCH(shape.qkv_bias, "--qkv-bias", "false", "Add biases to queries, keys and values.")},
    {SWITCH(shape.proj_bias, "--proj-bias", "false",
            "Add biases to the attention output and the MLP.")},
    {CHOICE(shape.proj_bias_in, "--proj-bias-in", "all",
            "Where proj_bias applies: attention output, MLP, or both (all).", "all", HY_BIAS_IN_ALL,
            "attention", HY_BIAS_IN_ATTENTION, "mlp", HY_BIAS_IN_MLP)},
    {SWITCH(shape.qk_norm, "--qk-norm", "false",
            "Normalise the queries and keys of each head before the rotation (Qwen3).")},
    {SWITCH(shape.tied_head, "--tied-head", "true",
            "Use the embedding as the output matrix as well.")},
    {NUMBER(shape.norm_eps, "--norm-eps", 1e-12, 0.1, "1e-5",
            "Epsilon of the normalisation, added under the square root.")},
    {NUMBER(shape.rope_theta, "--rope-theta", 1, 1000000000000, "10000",
            "Base of the rotary frequencies (theta).")},
    {CHOICE(shape.rope_scaling, "--rope-scaling", "none",
            "Scaling of the rotary frequencies for a longer context. Further values of yarn and "
            "longrope are in arch_options.",
            "none", HY_ROPE_UNSCALED, "llama3", HY_ROPE_SCALED_LLAMA3, "linear",
            HY_ROPE_SCALED_LINEAR, "dynamic", HY_ROPE_SCALED_DYNAMIC, "yarn", HY_ROPE_SCALED_YARN,
            "longrope", HY_ROPE_SCALED_LONGROPE)},
    {NUMBER(shape.rope_factor, "--rope-factor", 0.001, 1024, "8",
            "Rope scaling: frequencies are divided by this factor, with llama3 and yarn only the "
            "low ones.")},
    {NUMBER(shape.rope_low_freq, "--rope-low-freq", 0.001, 1024, "1",
            "llama3 scaling: frequencies with fewer than this many turns in the original context "
            "are divided by the whole factor.")},
    {NUMBER(shape.rope_high_freq, "--rope-high-freq", 0.001, 1024, "4",
            "llama3 scaling: frequencies with more than this many turns in the original context "
            "stay unchanged.")},
    {INTEGER(shape.rope_original_context, "--rope-original-context", 1, 16777216, "8192",
             "Rope scaling: the context length before scaling.")},
    {INTEGER(shape.sliding_window, "--sliding-window", 0, 16777216, "0",
             "Attention window: each token attends to this many tokens, itself included; 0: to all "
             "before it.")},
    {TEXT(
        shape.sliding_layers, "--sliding-layers", "all, or letters s and f", "all",
        "Layers that use the window, or block-sparse attention: all, or a pattern such as ssf, one "
        "letter per layer and repeated. s: these layers, f: full attention. With --architecture, a "
        "new model of Gemma or OLMo 3 has its family's pattern unless you set it.")},
    {CHOICE(
        shape.attention_type, "--attention-type", "full",
        "full: tokens attend to all before them, or to those in the window. sparse: to local and "
        "global blocks of 64 tokens of their document (the two settings below), so that the cost "
        "grows with the length, not with its square. Transformers has no such models: the run "
        "keeps checkpoints, but writes no model folder.",
        "full", HY_FULL_ATTENTION, "sparse", HY_SPARSE_ATTENTION)},
    {INTEGER(
        shape.sparse_local, "--sparse-local", 1, 262144, "4",
        "Sparse attention: a token sees its own block of 64 tokens, up to itself, and the blocks "
        "before it; this many together.")},
    {INTEGER(
        shape.sparse_global, "--sparse-global", 0, 262144, "1",
        "Sparse attention: a token also sees this many blocks at the beginning of its document.")},
    {NUMBER(
        shape.init_std, "--init-std", 0, 10, "0.02",
        "Standard deviation of the initial weights; that of the output matrices of attention and "
        "MLP is divided by sqrt(2 x layers).")},
    {CHOICE(
        shape.architecture, "--architecture", "auto",
        "Transformers architecture of the model. It sets norm, positions, activation, qk_norm and "
        "biases, unless a file or flag does. auto: the one that matches this shape.",
        "auto", HY_ARCH_NONE, "gpt2", HY_ARCH_GPT2, "llama", HY_ARCH_LLAMA, "mistral",
        HY_ARCH_MISTRAL, "ministral", HY_ARCH_MINISTRAL, "qwen2", HY_ARCH_QWEN2, "qwen3",
        HY_ARCH_QWEN3, "gemma2", HY_ARCH_GEMMA2, "gemma3_text", HY_ARCH_GEMMA3, "olmo2",
        HY_ARCH_OLMO2, "olmo3", HY_ARCH_OLMO3, "gpt_neox", HY_ARCH_NEOX, "phi3", HY_ARCH_PHI3,
        "smollm3", HY_ARCH_SMOLLM3, "granite", HY_ARCH_GRANITE, "granitemoehybrid",
        HY_ARCH_GRANITE4, "ministral3", HY_ARCH_MINISTRAL3, "starcoder2", HY_ARCH_STARCODER2,
        "qwen3_5_text", HY_ARCH_QWEN35)},
    {TEXT(shape.arch_options, "--arch-options",
          "a JSON object such as {\"attn_logit_softcapping\": 50}", "",
          "Options of the architecture beyond these settings, with the names that config.json uses "
          "for them. With --architecture, a new model has the head size as query_pre_attn_scalar "
          "(Gemma) and 1 / head size as attention_multiplier (Granite) unless you set them.")},

    {INTEGER(train.steps, "--steps", 0, 1000000000, "0",
             "Compute budget of the run in full steps; guard passes and paired tests count too. 0: "
             "set by tokens or epochs, or one pass over the data.")},
    {INTEGER(train.tokens, "--tokens", 0, 1000000000000000, "0",
             "Length of the run in training tokens, instead of steps; 0: not used.")},
    {NUMBER(train.epochs, "--epochs", 0, 1000000, "0",
            "Length of the run in passes over the data, instead of steps; 0: not used.")},
    {INTEGER(train.batch_size, "--batch-size", 1, 65536, "4", "Sequences in one micro-batch.")},
    {INTEGER(train.seq_len, "--seq-len", 1, 1048576, "256", "Tokens in one sequence.")},
    {INTEGER(train.grad_accum_steps, "--grad-accum-steps", 1, 65536, "1",
             "Micro-batches per optimizer step; their gradients are added.")},
    {SWITCH(train.normalize, "--normalize", "true",
            "Average the gradient over all tokens of a step; false: add the averages of the "
            "micro-batches.")},
    {SWITCH(train.scale_lr, "--scale-lr", "false",
            "Multiply the learning rate by grad_accum_steps.")},
    {NUMBER(train.grad_clip, "--grad-clip", 0, 1000000, "1",
            "Clip the global norm of the gradient to this value; 0: no clipping.")},
    {INTEGER(
        train.loss_chunks, "--loss-chunks", 0, 65536, "0",
        "Compute logits and loss in this many chunks to save memory; 0: chosen by the planner.")},
    {INTEGER(train.mlp_chunks, "--mlp-chunks", 0, 65536, "1",
             "Compute each mlp in this many chunks of tokens to save memory with long sequences; "
             "backward computes their activations again, and their matmuls are not in fp8. 0: "
             "chosen by the planner, more than 1 only if the same number types do not fit "
             "otherwise.")},
    {CHOICE(train.precision, "--precision", "auto",
            "Number type of weights and activations. auto: bf16 on a GPU (fp16 before sm_80), fp32 "
            "on a CPU. fp8: bf16, with the matmuls of the blocks in fp8 (sm_89 or newer).",
            "auto", HY_DTYPE_AUTO, FP32_BF16, "fp16", HY_F16, "fp8", HY_DTYPE_FP8)},
    {CHOICE(train.fp8, "--fp8", "auto",
            "With precision fp8: which block matmuls use it. auto: those measured to be faster; "
            "all: every one. On a CPU always all.",
            "auto", HY_FP8_AUTO, "all", HY_FP8_ALL)},
    {CHOICE(train.fp8_grad, "--fp8-grad", "e4m3",
            "With precision fp8: 8-bit type of the gradients in matmuls. e4m3 has one more bit of "
            "mantissa, e5m2 a larger range.",
            "e4m3", HY_E4M3, "e5m2", HY_E5M2)},
    {SWITCH(train.fp8_fast, "--fp8-fast", "true",
            "With precision fp8: allow forward matmuls to accumulate with less than fp32 "
            "precision. This is faster on Ada and Hopper.")},
    {NUMBER(train.fp8_until, "--fp8-until", 0, 1, "1",
            "With precision fp8: switch to bf16 after this share of the run; 0.9 runs the last "
            "tenth in bf16.")},
    {CHOICE(train.grad_dtype, "--grad-dtype", "auto",
            "Number type of gradients and their sums. auto: fp32, or bf16 if small_types allows it "
            "and it helps.",
            "auto", HY_DTYPE_AUTO, FP32_BF16)},
    {TEXT(train.train, "--train", "all, last:N, or names with * and ?", "all",
          "Parameters to train; all others are frozen. all; last:N for the last N blocks with "
          "final norm and head; or a list of name patterns, such as blocks.3.attn.*, separated by "
          "commas.")},
    {CHOICE(
        train.frozen_dtype, "--frozen-dtype", "auto",
        "Number type of frozen weights. auto: the type in which the run computes; with lora and "
        "precision fp8: fp8. fp8: one scale per matrix. int8: one scale per matrix row. nf4: 4 "
        "bits and an 8-bit scale per 64 elements (QLoRA's double quantisation). nf4_single: the "
        "same with fp32 scales. A quantised folder sets its own type.",
        "auto", HY_DTYPE_AUTO, "fp8", HY_DTYPE_FP8, "int8", HY_DTYPE_INT8, "nf4", HY_DTYPE_NF4,
        "nf4_single", HY_DTYPE_NF4_SINGLE)},
    {CHOICE(
        train.recompute, "--recompute", "auto",
        "Which activations to recompute in the backward pass instead of keeping them in memory.",
        "auto", HY_RECOMPUTE_AUTO, "none", HY_RECOMPUTE_NONE, "norm", HY_RECOMPUTE_NORM,
        "attention", HY_RECOMPUTE_ATTENTION, "mlp", HY_RECOMPUTE_MLP, "all", HY_RECOMPUTE_ALL)},
    {INTEGER(train.recompute_layers, "--recompute-layers", 0, 1024, "0",
             "Number of layers that recompute, evenly spread; 0: all.")},
    {INTEGER(train.step_tokens, "--step-tokens", 0, 1000000000000, "0",
             "Tokens per optimizer step; 0: not set. If set, batch_size and grad_accum_steps are "
             "chosen automatically.")},
    {CHOICE(train.micro_batch, "--micro-batch", "auto",
            "How a step is split into micro-batches. given: use batch_size if it fits. open: the "
            "fastest split when state is streamed, with the same tokens per step. auto: given if a "
            "file or flag sets batch_size or grad_accum_steps, else open.",
            "auto", HY_MICRO_AUTO, "given", HY_MICRO_GIVEN, "open", HY_MICRO_OPEN)},
    {CHOICE(train.dynamic_batch, "--dynamic-batch", "auto",
            "Use smaller micro-batches while memory is short; needs the monitor. auto: on one GPU "
            "also find the fastest size at the start if step_tokens leaves it open.",
            "off", HY_OFF, "on", HY_ON, "auto", HY_AUTO)},
    {INTEGER(train.min_batch_size, "--min-batch-size", 1, 65536, "1",
             "Smallest micro-batch that the planner and dynamic_batch use, in sequences.")},
    {INTEGER(
        train.max_batch_size, "--max-batch-size", 0, 65536, "0",
        "Largest micro-batch that the planner and dynamic_batch use, in sequences; 0: no limit for "
        "the planner, the size at the start for dynamic_batch.")},
    {INTEGER(train.batch_check_every, "--batch-check-every", 1, 1000000, "10",
             "Steps between two checks of the micro-batch size.")},

    {SWITCH(lora.lora, "--lora", "false",
            "Train low-rank adapters (LoRA) and freeze the weights.")},
    {SWITCH(lora.qlora, "--qlora", "false",
            "LoRA with quantised frozen weights (QLoRA): frozen_dtype is nf4 unless you set it.")},
    {TEXT(lora.adapter, "--adapter", "a folder saved by PEFT, a run, or empty", "",
          "Start from the adapter in this folder. It sets rank, alpha and targets; use the base "
          "model that it was trained with. For --eval-only and hybrid-chat: a comma-separated "
          "list.")},
    {TEXT(lora.base, "--base", "a model folder or hub name, or empty", "",
          "For a resumed or opened run with adapters: the new location of its base model if that "
          "has moved. The weights must be the same.")},
    {INTEGER(lora.lora_rank, "--lora-rank", 1, 1024, "16", "Rank of the adapters.")},
    {NUMBER(lora.lora_alpha, "--lora-alpha", 0, 1000000, "0",
            "The output of adapters is multiplied by alpha / rank; 0: alpha is twice the rank.")},
    {SWITCH(lora.rslora, "--rslora", "false",
            "Multiply the output of adapters by alpha / sqrt(rank) instead of alpha / rank "
            "(rsLoRA), for large ranks.")},
    {TEXT(lora.lora_targets, "--lora-targets", "names of matrices, attention, mlp, or all", "all",
          "Matrices of the blocks that get adapters, comma-separated: q_proj, k_proj, v_proj, "
          "o_proj, gate_proj, up_proj, down_proj; GPT-2: c_attn, attn.c_proj, c_fc, mlp.c_proj; "
          "linear attention: in_proj_qkv, in_proj_z, in_proj_b, in_proj_a, out_proj. all: each of "
          "these.")},
    {NUMBER_BELOW(lora.lora_dropout, "--lora-dropout", 0, 1, "0",
                  "Dropout of the adapters' inputs in training.")},
    {TEXT(lora.lora_modules, "--lora-modules",
          "none, embed, head, norm, modules, or names with * and ?", "none",
          "Parameters that are trained in full besides the adapters, comma-separated. In the "
          "blocks: norms, and modules that lora_targets does not name.")},

    {CHOICE(optimizer.optimizer, "--optimizer", "adamw",
            "Optimizer. auto: muon from scratch if it costs little extra, else adamw. muon "
            "orthogonalises the updates of matrices and uses adamw for other parameters. 8bit in a "
            "name sets optim_dtype = 8bit; paged_ keeps optimizer state in pinned host memory "
            "unless optim_place is set. sgd uses momentum.",
            "auto", HY_OPTIMIZER_AUTO, "adamw", HY_ADAMW, "adamw8bit", HY_ADAMW | HY_OPTIMIZER_8BIT,
            "paged_adamw", HY_ADAMW | HY_OPTIMIZER_PAGED, "paged_adamw8bit",
            HY_ADAMW | HY_OPTIMIZER_PAGED | HY_OPTIMIZER_8BIT, "sgd", HY_SGD, "muon", HY_MUON,
            "muon8bit", HY_MUON | HY_OPTIMIZER_8BIT, "paged_muon", HY_MUON | HY_OPTIMIZER_PAGED,
            "paged_muon8bit", HY_MUON | HY_OPTIMIZER_PAGED | HY_OPTIMIZER_8BIT, "lion", HY_LION,
            "lion8bit", HY_LION | HY_OPTIMIZER_8BIT, "paged_lion", HY_LION | HY_OPTIMIZER_PAGED,
            "paged_lion8bit", HY_LION | HY_OPTIMIZER_PAGED | HY_OPTIMIZER_8BIT, "adafactor",
            HY_ADAFACTOR)},
    {CHOICE(optimizer.optim_dtype, "--optim-dtype", "auto",
            "Number type of optimizer state. bf16: stochastic rounding; 8bit: one scale per 256 "
            "elements. auto: fp32, or 8bit if the optimizer's name contains it or small_types "
            "allows it and it helps.",
            "auto", HY_DTYPE_AUTO, FP32_BF16, "8bit", HY_U8)},
    {CHOICE(optimizer.master_dtype, "--master-dtype", "auto",
            "Number type of the weights that the optimizer updates. bf16: stochastic rounding, no "
            "other copy of the weights. auto: fp32, or bf16 if small_types allows it and it helps.",
            "auto", HY_DTYPE_AUTO, FP32_BF16)},
    {NUMBER(optimizer.lr, "--lr", 0, 10, "0.001",
            "Peak learning rate. A preset's value is for adamw. Unless you set it, muon uses four "
            "times that value, lion a tenth, sgd 0.1 and adafactor 0.01.")},
    {NUMBER_BELOW(optimizer.beta1, "--beta1", 0, 1, "0.9",
                  "Decay of the running mean of gradients. lion: share of that mean in an update, "
                  "0.9 unless you set it.")},
    {NUMBER_BELOW(optimizer.beta2, "--beta2", 0, 1, "0.95",
                  "Decay of the running mean of squared gradients; 0.99 with muon unless you set "
                  "it. lion: decay of the running mean of gradients, 0.99 unless you set it.")},
    {NUMBER(optimizer.adam_eps, "--adam-eps", 1e-16, 1, "1e-8",
            "Epsilon, added to the square root of the second moment.")},
    {NUMBER_BELOW(optimizer.momentum, "--momentum", 0, 1, "0.9",
                  "sgd: momentum; 0 needs no optimizer state.")},
    {SWITCH(optimizer.nesterov, "--nesterov", "false", "sgd: use Nesterov momentum.")},
    {SWITCH(optimizer.adafactor_relative, "--adafactor-relative", "true",
            "adafactor: scale each update by the size of its parameter, limited by lr and 1 / "
            "sqrt(step). false: lr sets the size of an update; lr and weight_decay default to the "
            "values for adamw.")},
    {NUMBER_BELOW(optimizer.muon_momentum, "--muon-momentum", 0, 1, "0.95",
                  "muon: momentum, the decay of the running mean of matrix gradients.")},
    {SWITCH(optimizer.muon_nesterov, "--muon-nesterov", "true", "muon: use Nesterov momentum.")},
    {INTEGER(optimizer.muon_momentum_warmup, "--muon-momentum-warmup", 0, 1000000000, "1000",
             "muon: steps in which the momentum rises from muon_momentum - 0.1 to muon_momentum.")},
    {INTEGER(optimizer.muon_steps, "--muon-steps", 1, 20, "5",
             "muon: Newton-Schulz iterations per update.")},
    {SWITCH(optimizer.cautious_decay, "--cautious-decay", "false",
            "muon: apply weight decay only where the update also shrinks the weight.")},
    {NUMBER(optimizer.adamw_lr, "--adamw-lr", 0, 10, "0",
            "muon: peak learning rate of the parameters that use adamw (embedding, head, norms, "
            "biases); 0: same as lr.")},
    {NUMBER(optimizer.weight_decay, "--weight-decay", 0, 10, "0.1",
            "Weight decay of matrices. sgd: added to the gradient, 0.0001 unless you set it. Other "
            "optimizers decouple it; unless you set it, lion uses 1 and adafactor 0.")},
    {CHOICE(optimizer.schedule, "--schedule", "auto",
            "Learning rate schedule after the warm-up. wsd: constant, then a decay at the end. "
            "inverse_sqrt: proportional to sqrt(warm-up / step). auto: wsd from scratch, cosine in "
            "fine-tuning.",
            "auto", HY_SCHEDULE_AUTO, "constant", HY_SCHEDULE_CONSTANT, "linear",
            HY_SCHEDULE_LINEAR, "cosine", HY_SCHEDULE_COSINE, "wsd", HY_SCHEDULE_WSD,
            "inverse_sqrt", HY_SCHEDULE_INVERSE_SQRT)},
    {INTEGER(
        optimizer.lr_warmup_steps, "--lr-warmup-steps", -1, 1000000000, "-1",
        "Steps in which the learning rate rises from zero. A preset's value is limited to a third "
        "of the run; a value from a file or flag is not limited. -1: use lr_warmup_ratio.")},
    {NUMBER(optimizer.lr_warmup_ratio, "--lr-warmup-ratio", 0, 1, "0.1",
            "Warm-up as a share of the run. Set in a file or flag, it replaces a preset's "
            "lr_warmup_steps.")},
    {NUMBER(optimizer.min_lr_ratio, "--min-lr-ratio", 0, 1, "0.1",
            "Final learning rate as a fraction of the peak; inverse_sqrt: the minimum. wsd uses 0 "
            "unless you set it.")},
    {NUMBER(optimizer.cooldown, "--cooldown", 0, 1, "0.4",
            "wsd: fraction of the run in which the learning rate decays.")},
    {CHOICE(optimizer.cooldown_shape, "--cooldown-shape", "linear",
            "wsd: shape of the decay. sqrt: 1 - sqrt(share of the decay), fast at first.", "sqrt",
            HY_COOLDOWN_SQRT, "linear", HY_COOLDOWN_LINEAR)},
    {TEXT(optimizer.groups, "--groups",
          "NAMES: lr_scale X, decay X, optimizer NAME, frozen, place P, ...; ...", "",
          "Parameter groups, by patterns of names. A group can set a factor for the learning rate, "
          "a weight decay, an optimizer, places and number types, or be frozen.")},

    {CHOICE(input.data_format, "--data-format", "auto",
            "How to read data files. auto: detect the format; text: always text; bytes: raw bytes, "
            "for byte-level models.",
            "auto", HY_FORMAT_AUTO, "text", HY_FORMAT_TEXT, "bytes", HY_FORMAT_BYTES)},
    {NUMBER(input.val_fraction, "--val-fraction", 0, 0.5, "0.05",
            "Share of the data that is held out for validation if val_data is empty; 0: train on "
            "all of it, without validation.")},
    {BYTES(input.builtin_bytes, "--builtin-bytes", "4KiB to 16GiB", 4096, 17179869184, "4M",
           "Size of the built-in text, including its held-out part.")},
    {SWITCH(input.shuffle, "--shuffle", "true",
            "Read sequences in a new random order each epoch.")},
    {INTEGER(input.prefetch, "--prefetch", 0, 4096, "2",
             "Micro-batches to read ahead, beyond one step; on a GPU at least those of the next "
             "step, up to 64.")},
    {TEXT(input.tokenizer, "--tokenizer",
          "auto, none, a tokenizer.json, tokenizer.model or GGUF file, or a folder", "auto",
          "Tokenizer for text and rows. auto: the one in the model folder; none: read bytes.")},
    {CHOICE(
        input.chat_template, "--chat-template", "auto",
        "Chat template for rows; with an adapter or init_from, its template is the default. auto: "
        "the template in the model folder; a prompt and its completion are plain if it has "
        "none. plain: no template. lines: a line end between question and answer. "
        "conversations: as auto, but a prompt and its completion are plain.",
        "auto", HY_CHAT_AUTO, "plain", HY_CHAT_PLAIN, "lines", HY_CHAT_LINES, "conversations",
        HY_CHAT_CONVERSATIONS, "chatml", HY_CHAT_CHATML, "llama2", HY_CHAT_LLAMA2, "llama3",
        HY_CHAT_LLAMA3, "mistral", HY_CHAT_MISTRAL, "alpaca", HY_CHAT_ALPACA)},
    {CHOICE(input.loss_on, "--loss-on", "answers",
            "Rows: which tokens are trained, only the assistant's turns or all.", "answers",
            HY_LOSS_ON_ANSWERS, "all", HY_LOSS_ON_ALL)},
    {CHOICE(input.packing, "--packing", "auto",
            "Rows: pack several into one sequence; they do not attend to each other. auto: on.",
            AUTO_ON_OFF)},
    {CHOICE(input.bad_rows, "--bad-rows", "skip",
            "What to do with a malformed row: skip it with a warning, or stop with an error. skip: "
            "if more than half of the rows is dropped, stop; skip-any: never stop.",
            "skip", HY_BAD_ROWS_SKIP, "stop", HY_BAD_ROWS_STOP, "skip-any", HY_BAD_ROWS_SKIP_ANY)},
    {TEXT(input.columns, "--columns", "KEY=NAME,...", "",
          "Rows: names of keys in the data, for example prompt=question,completion=answer.")},
    {INTEGER(input.num_workers, "--num-workers", 0, 256, "0",
             "Threads that tokenize data when it is opened; 0: all cores."),
     .is_local = true},
    {BYTES(input.buffer_size, "--buffer-size", "64KiB to 1GiB", 65536, 1073741824, "16Mi",
           "Bytes of data that the threads of num_workers process at a time."),
     .is_local = true},
    {CHOICE(input.stream_rows, "--stream-rows", "auto",
            "Rows: begin to train before all of them are read, and shuffle within windows. auto: "
            "if there are at least 256 MiB of them.",
            "auto", HY_STREAM_AUTO, "on", HY_STREAM_ON, "off", HY_STREAM_OFF)},
    {BYTES(input.stream_window, "--stream-window", "4KiB to 1GiB", 4096, 1073741824, "16Mi",
           "Streamed rows: bytes of a window. Rows are shuffled and packed within a window.")},

    {NUMBER(preference.beta, "--beta", 0, 1000, "0",
            "Pairs of answers: how much a difference between two answers counts (dpo, ipo, orpo, "
            "simpo). 0: 0.1, and 2 for simpo.")},
    {NUMBER(preference.simpo_margin, "--simpo-margin", -1, 1000, "-1",
            "simpo: by how much the reward of the chosen answer should be larger; -1: half of "
            "beta.")},
    {NUMBER(preference.likelihood, "--likelihood", -1, 1000, "-1",
            "Pairs of answers: the loss also has this many times the mean loss of the chosen "
            "answer's tokens (orpo: and of its prompt's); -1: 1 for orpo, else 0.")},
    {CHOICE(preference.reference, "--reference", "auto",
            "dpo, ipo: when the log-probabilities of the model before training are computed. "
            "inline: with each micro-batch, with the adapters off. once: before the first step, "
            "kept in the run's folder. auto: inline if only new adapters are trained, else once.",
            "auto", HY_REFERENCE_AUTO, "inline", HY_REFERENCE_INLINE, "once", HY_REFERENCE_ONCE)},

    {TEXT(grpo.reward, "--reward", "KIND[*WEIGHT][:ARGUMENT]; ...", "",
          "grpo: what an answer is rewarded for, for example exact, or number*2; length:200. "
          "docs/rewards.md lists the kinds.")},
    {TEXT(grpo.reward_program, "--reward-program", "a command, or empty", "",
          "grpo: a program that reads a line of JSON for each answer and writes its reward."),
     .is_local = true},
    {NUMBER(grpo.reward_seconds, "--reward-seconds", 0.1, 86400, "60",
            "grpo: seconds that the program may take for the answers of a step."),
     .is_local = true},
    {INTEGER(grpo.prompts, "--prompts", 1, 65536, "8", "grpo: rows that a step answers.")},
    {INTEGER(grpo.samples, "--samples", 2, 4096, "8",
             "grpo: answers to each row; their rewards are compared.")},
    {INTEGER(grpo.answer_tokens, "--answer-tokens", 1, 1048576, "256",
             "grpo: most tokens of an answer.")},
    {NUMBER(grpo.rollout_temperature, "--rollout-temperature", 0.01, 100, "1",
            "grpo: temperature of sampling; log-probabilities are those at this temperature.")},
    {INTEGER(grpo.iterations, "--iterations", 1, 1000, "1",
             "grpo: optimizer steps with the same answers.")},
    {CHOICE(grpo.grpo_loss, "--grpo-loss", "dapo",
            "grpo: what the loss of a token is divided by. dapo: the tokens of all answers. grpo: "
            "the tokens of its answer, then answers. dr-grpo: answer_tokens, then answers.",
            "dapo", HY_GRPO_DAPO, "grpo", HY_GRPO_PLAIN, "dr-grpo", HY_GRPO_DR)},
    {CHOICE(grpo.reward_scale, "--reward-scale", "group",
            "grpo: rewards less the mean of their group are divided by the standard deviation of "
            "the group, of all answers of the step (batch), or not at all (none).",
            "group", HY_SCALE_GROUP, "batch", HY_SCALE_BATCH, "none", HY_SCALE_NONE)},
    {NUMBER(grpo.clip, "--clip", 0, 1, "0.2",
            "grpo: ratios of probabilities below 1 - clip or above 1 + clip_high are clipped.")},
    {NUMBER(grpo.clip_high, "--clip-high", -1, 1000, "-1", "grpo: see clip; -1: the same value.")},
    {NUMBER(grpo.kl, "--kl", 0, 1000, "0",
            "grpo: weight of the divergence from the model before training; above 0 it needs "
            "adapters.")},
    {NUMBER(grpo.importance_cap, "--importance-cap", 0, 1000, "3",
            "grpo: most that a token counts because the decoder's probability of it differs from "
            "that of training; 0: all tokens count once.")},
    {SWITCH(grpo.skip_cut, "--skip-cut", "false",
            "grpo: answers that reach answer_tokens are not trained.")},
    {INTEGER(grpo.rollout_streams, "--rollout-streams", 0, 1024, "0",
             "grpo: most answers that are generated at once; 0: as many as there is room for."),
     .is_local = true},
    {INTEGER(grpo.eval_prompts, "--eval-prompts", -1, 1000000000, "-1",
             "grpo: held-out rows that a validation answers. 0: all; -1: as many as take little of "
             "the run's time, at most 256, and at most 1024 at the end.")},

    {INTEGER(
        eval.eval_every, "--eval-every", -1, 1000000000, "-1",
        "Steps between validations. 0: only at the end; -1: about twenty per run, at most 1000 "
        "steps apart, using at most 3 % of its compute (without eval_rows).")},
    {INTEGER(eval.eval_batches, "--eval-batches", -1, 1000000000, "-1",
             "Length of a validation, in micro-batches of training. 0: all held-out data; -1: as "
             "many as take little of the run's time, and more at the end.")},
    {INTEGER(eval.eval_batch_size, "--eval-batch-size", 0, 65536, "0",
             "Sequences per validation batch; 0: chosen by the planner.")},
    {TEXT(eval.eval_rows, "--eval-rows", "a file or folder, a comma-separated list, or empty", "",
          "Rows with a known answer (prompt, choices and answer, only as JSON; or prompt and "
          "answer, as JSON or CSV): each validation also reports the accuracy on all of them.")},
    {INTEGER(eval.early_stop, "--early-stop", 0, 1000000, "0",
             "Stop after this many validations in a row without a lower loss; 0: never.")},
    {NUMBER(eval.early_stop_delta, "--early-stop-delta", 0, 1000, "0",
            "Minimum decrease of the validation loss, in nats, that counts as lower.")},
    {INTEGER(eval.sample_tokens, "--sample-tokens", 0, 1048576, "200",
             "Tokens of the text sampled at the end; 0: no sample.")},
    {NUMBER(eval.temperature, "--temperature", 0, 100, "0.8",
            "Temperature of the sample at the end; 0: always the most likely token. The answer to "
            "a held-out row always uses 0.")},
    {INTEGER(eval.top_k, "--top-k", 0, 16777216, "0",
             "Sample from this many most likely tokens; 0: all.")},
    {TEXT(eval.prompt, "--prompt", "any text", "",
          "Prompt of the sample at the end, asked in the format of the rows if there are any; "
          "empty: none, or with rows the question of a held-out row.")},

    {INTEGER(save.save_every, "--save-every", 0, 1000000000, "0",
             "Steps between checkpoints; 0: use save_minutes only.")},
    {NUMBER(save.save_minutes, "--save-minutes", 0, 1000000, "30",
            "Minutes between checkpoints; 0: use save_every only. If saving is slow, the interval "
            "grows up to ten times, so that saving takes less of the time. A checkpoint is always "
            "saved at the end and when the run is stopped.")},
    {INTEGER(save.keep, "--keep", 0, 1000000, "2",
             "Number of newest checkpoints to keep, besides the best; 0: all.")},
    {TEXT(save.resume, "--resume", "auto, a checkpoint or run folder, or empty", "",
          "Continue a run from a checkpoint; auto: the newest one in --out, or without --out in "
          "the newest run in runs/.")},
    {SWITCH(save.overwrite, "--overwrite", "false",
            "Start over in a folder that contains an earlier run.")},
    {SWITCH(
        save.save_model, "--save-model", "true",
        "Write OUT/model at the end of the run, a folder that transformers can load. With lora: "
        "OUT/adapter, for PEFT.")},
    {CHOICE(save.model_dtype, "--model-dtype", "auto",
            "Number type of the weights in OUT/model. auto: as in the original model folder, or as "
            "in the checkpoint.",
            "auto", HY_DTYPE_AUTO, FP32_BF16, "fp16", HY_F16)},
    {BYTES(save.max_shard_size, "--max-shard-size", "1M to 1024TiB", 1000000, 0x1p50, "5G",
           "Largest size of one weight file in OUT/model.")},
    {SWITCH(save.tensorboard, "--tensorboard", "true",
            "Write TensorBoard event files to OUT/tensorboard.")},
    {SWITCH(save.report, "--report", "true",
            "Write OUT/report.html when the run ends or is stopped.")},

    {CHOICE(phases.predictor, "--predictor", "auto",
            "How Predict extrapolates the weights; none: no prediction. auto: outer where it was "
            "measured to pay (from scratch with AdamW, at least 3000 steps of 32768 tokens), else "
            "none.",
            "auto", HY_PREDICTOR_AUTO, "outer", HY_PREDICTOR_OUTER, "line", HY_PREDICTOR_LINE,
            "none", HY_PREDICTOR_NONE)},
    {INTEGER(phases.full_steps, "--full-steps", 0, 1000000, "15",
             "Full steps per window, after its Correct steps.")},
    {INTEGER(phases.correct_steps, "--correct-steps", 1, 1000000, "5",
             "Correct steps after each jump (the change of the weights in Predict).")},
    {INTEGER(phases.max_predict_steps, "--max-predict-steps", 1, 1000000, "30",
             "Longest jump, in optimizer steps; longer jumps are scaled down.")},
    {INTEGER(phases.correction_interval, "--correction-interval", 1, 1000000, "10",
             "line: longest jump in optimizer steps, if max_predict_steps is longer. Not used by "
             "outer.")},
    {NUMBER(phases.confidence_threshold, "--confidence-threshold", 0, 1, "0.75",
            "Predict only if the confidence that it saves compute is at least this.")},
    {CHOICE(phases.regime, "--regime", "auto",
            "Starting value of the confidence. auto: fine-tuning if the run starts from trained "
            "weights.",
            "auto", HY_REGIME_AUTO, "scratch", HY_REGIME_SCRATCH, "fine-tuning", HY_REGIME_TUNING)},
    {NUMBER(phases.predict_from, "--predict-from", 0, 1, "0.1",
            "Share of the compute budget at which prediction starts.")},
    {NUMBER(phases.predict_until, "--predict-until", 0, 1, "0.75",
            "Share of the compute budget at which prediction stops. Unless you set it, it also "
            "stops when the learning rate of wsd starts to decay.")},
    {NUMBER_BELOW(phases.outer_mu, "--outer-mu", 0, 1, "0.7",
                  "outer: share of the velocity that is kept from one window to the next.")},
    {NUMBER(phases.outer_eta, "--outer-eta", 0, 2, "0.7", "outer: step size along the velocity.")},
    {NUMBER(phases.guard_share, "--guard-share", 0.001, 4, "0.25",
            "Sequences of one guard pass, as a share of a step's sequences; at least two. outer "
            "checks a jump with two guard passes, line with four.")},
    {NUMBER(phases.fork_budget, "--fork-budget", 0, 0.5, "0.03",
            "Share of the compute budget for paired tests, which compare training with and without "
            "jumps; 0: none.")},
    {INTEGER(phases.fork_steps, "--fork-steps", 0, 100000, "0",
             "Optimizer steps in each half of a paired test; 0: half a window.")},
    {SWITCH(phases.snapshot, "--snapshot", "true",
            "Keep the weights before a jump if memory allows, so that the jump can be undone after "
            "a divergence.")},
    {NUMBER(phases.tail_share, "--tail-share", 0, 0.9, "0",
            "Average the weights over this last share of the run, every fourth step (every step if "
            "these are fewer than 16); validation uses the average.")},
    {NUMBER(phases.loss_sigma, "--loss-sigma", 1, 1000, "6",
            "A loss this many standard deviations above its trend is a divergence.")},
    {NUMBER(phases.grad_explosion, "--grad-explosion", 1, 1000000000, "100",
            "A gradient norm this many times its usual value is a divergence.")},
    {NUMBER(phases.grad_vanishing, "--grad-vanishing", 0, 1, "0.01",
            "A gradient norm below this share of its usual value is a divergence.")},
    {NUMBER(phases.divergence_factor, "--divergence-factor", 0, 1000000, "2",
            "Stop with exit code 3 if in 32 steps in a row the loss is not finite, or exceeds that "
            "of the first steps by this factor and by 2 nats; 0: a high loss never stops the "
            "run.")},
    {INTEGER(phases.cooldown_steps, "--cooldown-steps", 1, 1000000, "40",
             "Optimizer steps without prediction after a rejected jump or a divergence. Doubles "
             "each time, up to 64 times the value; an accepted jump resets it.")},
    {CHOICE(phases.precision_warmup, "--precision-warmup", "same",
            "Precision of Warmup; same: as train.precision.", PHASE_TYPES)},
    {CHOICE(phases.precision_full, "--precision-full", "same",
            "Precision in the Full phase; same: as train.precision.", PHASE_TYPES)},
    {CHOICE(phases.precision_predict, "--precision-predict", "same",
            "Precision of Predict; same: as train.precision.", PHASE_TYPES)},
    {CHOICE(phases.precision_correct, "--precision-correct", "same",
            "Precision of Correct; same: as train.precision.", PHASE_TYPES)},
    {CHOICE(phases.predictor_dtype, "--predictor-dtype", "auto",
            "Number type of the predictor's state. auto: as the updated weights, or 8bit if "
            "small_types allows it and memory is short. 8bit needs master_dtype bf16, adamw, and "
            "outer or line.",
            "auto", HY_DTYPE_AUTO, FP32_BF16, "8bit", HY_U8)},

    {BYTES(memory.max_gpu_mem, "--max-gpu-mem", "0, or 1k to 1024TiB", 0, 0x1p50, "0",
           "Most bytes to use on the device; 0: all free memory of the card, less 256 MiB."),
     .least = 1000, .is_local = true},
    {BYTES(memory.cpu_mem, "--cpu-mem", "0, or 1k to 1024TiB", 0, 0x1p50, "0",
           "Most bytes to use of host memory; 0: all that is free, less host_reserve."),
     .least = 1000, .is_local = true},
    {TEXT(memory.offload_folder, "--offload-folder", "a folder, or empty", "",
          "Folder on a fast disk for state that fits neither on the device nor in host memory."),
     .is_local = true},
    {BYTES(memory.offload_size, "--offload-size", "0, or 1k to 1024TiB", 0, 0x1p50, "0",
           "Most bytes to use in offload_folder; 0: all that is free there."),
     .least = 1000, .is_local = true},
    {CHOICE(memory.weights_place, "--weights-place", "auto",
            "Place of the working weights. From pinned host memory or disk they are streamed to "
            "the device unit by unit. Places never change the results.",
            PLACES)},
    {CHOICE(memory.master_place, "--master-place", "auto",
            "Place of the fp32 master weights in 16-bit training.", PLACES)},
    {CHOICE(
        memory.grads_place, "--grads-place", "auto",
        "Place of gradients. From pinned host memory or disk they are streamed with their units.",
        PLACES)},
    {CHOICE(memory.optim_place, "--optim-place", "auto", "Place of optimizer state.", PLACES)},
    {CHOICE(memory.activations_place, "--activations-place", "auto",
            "Place of the activations that layers keep for the backward pass.", "auto",
            HY_PLACE_AUTO, "device", HY_DEVICE, "pinned", HY_PINNED)},
    {CHOICE(memory.predictor_place, "--predictor-place", "auto", "Place of the predictor's state.",
            "auto", HY_PLACE_AUTO, "pinned", HY_PINNED, "disk", HY_DISK)},
    {CHOICE(memory.small_types, "--small-types", "optimizer",
            "Which types set to auto may become smaller if fp32 does not fit or is slower. "
            "optimizer: its state in 8 bits; all: also gradients and weights in bf16 and predictor "
            "state in 8 bits.",
            "none", HY_SMALL_NONE, "optimizer", HY_SMALL_OPTIMIZER, "all", HY_SMALL_ALL)},
    {CHOICE(memory.update, "--update", "auto",
            "When to update weights. now: at the end of a step; gather: each unit when the next "
            "step loads it; auto: gather if state is streamed. The result is the same.",
            "auto", HY_UPDATE_AUTO, "now", HY_UPDATE_NOW, "gather", HY_UPDATE_ON_GATHER)},
    {INTEGER(memory.ring_depth, "--ring-depth", 0, 8, "0",
             "Layers of each kind of streamed state that are on the device at a time, at least 2; "
             "0: chosen by the planner.")},
    {INTEGER(memory.resident_units, "--resident-units", -1, 1024, "-1",
             "Layers that keep their state on the device while other layers stream it; -1: chosen "
             "by the planner.")},
    {CHOICE(memory.offload_strategy, "--offload-strategy", "none",
            "What to do with optimizer state on the device during Predict. none: keep it; cpu, "
            "pinned: move it to host memory; compress: store it in 8 bits; drop: discard it.",
            "none", HY_OFFLOAD_NONE, "cpu", HY_OFFLOAD_CPU, "pinned", HY_OFFLOAD_PINNED, "compress",
            HY_OFFLOAD_COMPRESS, "drop", HY_OFFLOAD_DROP)},
    {SWITCH(memory.async_restore, "--async-restore", "true",
            "Restore optimizer state on a separate stream, in parallel with the last passes of "
            "Predict.")},
    {INTEGER(
        memory.lookahead, "--lookahead", 0, 1000, "2",
        "Start the restore this many forward passes before the end of Predict; 0: at its end.")},
    {NUMBER(memory.target_usage, "--target-usage", 0.01, 1, "0.90",
            "Share of the budget that memory usage should not exceed when micro-batches change.")},
    {NUMBER(memory.warning_usage, "--warning-usage", 0.01, 1, "0.92",
            "The monitor warns when memory usage reaches this share of the budget.")},
    {NUMBER(memory.critical_usage, "--critical-usage", 0.01, 1, "0.95",
            "Micro-batches shrink when memory usage reaches this share of the budget.")},
    {NUMBER(
        memory.emergency_usage, "--emergency-usage", 0.01, 1, "0.97",
        "When memory usage reaches this share of the budget and no smaller micro-batch helps, a "
        "plan with less memory is chosen.")},
    {CHOICE(
        memory.monitor, "--monitor", "on",
        "Monitor memory during the run. silent: only write it to the metrics. off: micro-batches "
        "do not change either.",
        "on", HY_MONITOR_ON, "silent", HY_MONITOR_SILENT, "off", HY_MONITOR_OFF)},
    {INTEGER(memory.monitor_every, "--monitor-every", 0, 1000000000, "100",
             "Steps between two lines of the monitor; 0: print only status changes.")},
    {INTEGER(memory.recovery_tries, "--recovery-tries", 0, 100, "3",
             "How many times in a row to retry a step that ran out of memory, first unchanged, "
             "then with less memory, before the run saves and stops.")},
    {BYTES(memory.host_reserve, "--host-reserve", "0 to 1024TiB", 0, 0x1p50, "0",
           "Host memory to leave for other programs; 0: a sixteenth of all memory, at most 2 GiB."),
     .is_local = true},

    {CHOICE(ranks.zero_stage, "--zero-stage", "auto",
            "ZeRO stage: what is sharded over the ranks. 1: optimizer state and master weights; 2: "
            "also gradients; 3: also weights. auto: chosen by the planner.",
            "auto", HY_ZERO_AUTO, "0", HY_ZERO_NONE, "1", HY_ZERO_OPTIMIZER, "2", HY_ZERO_GRADS,
            "3", HY_ZERO_WEIGHTS)},
    {CHOICE(ranks.transport, "--transport", "auto",
            "Transport between ranks. auto: NCCL between cards, MPI if mpirun started the ranks, "
            "else sockets.",
            "auto", HY_LINK_AUTO, "sockets", HY_LINK_SOCKETS, "mpi", HY_LINK_MPI, "nccl",
            HY_LINK_NCCL)},
    {CHOICE(ranks.link, "--link", "auto",
            "With --plan: the link between ranks. auto: PCIe 4 between cards.", "auto",
            HY_WIRE_AUTO, "nvlink", HY_WIRE_NVLINK, "pcie4", HY_WIRE_PCIE4, "pcie5", HY_WIRE_PCIE5,
            "ib200", HY_WIRE_IB200)},
    {NUMBER(ranks.rank_timeout, "--rank-timeout", 1, 86400, "60",
            "A rank that is silent for this many seconds is considered lost, and all other ranks "
            "stop.")},
    {TEXT(ranks.rank_secret_file, "--rank-secret-file", "a file, or empty", "",
          "File with a secret that every rank must know to join, for ranks on several machines. "
          "Mode 0600; made if it does not exist. HYBRID_SECRET overrides it. Empty: under mpirun, "
          "MPI distributes one; else ~/.config/hybrid-train/rank-secret."),
     .is_local = true},
};

enum { SETTINGS = sizeof table / sizeof table[0], GROUPS = sizeof groups / sizeof groups[0] };

size_t hy_setting_count(void) { return SETTINGS; }

const hy_setting *hy_setting_at(size_t i) { return i < SETTINGS ? &table[i] : NULL; }

size_t hy_setting_index(const hy_setting *setting) { return (size_t)(setting - table); }

const char *hy_setting_leaf(const hy_setting *setting) {
    const char *dot = strchr(setting->info.key, '.');
    return dot ? dot + 1 : setting->info.key;
}

const char *hy_setting_group_at(size_t i) { return i < GROUPS ? groups[i] : NULL; }

bool hy_setting_is_same_name(const char *a, const char *b) {
    for (; *a && *b; a++, b++)
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b)) return false;
    return *a == *b;
}

static const hy_setting *find_key(const char *name) {
    bool has_group = strchr(name, '.') != NULL;
    for (size_t i = 0; i < SETTINGS; i++) {
        const char *key = has_group ? table[i].info.key : hy_setting_leaf(&table[i]);
        if (hy_setting_is_same_name(name, key)) return &table[i];
    }
    return NULL;
}

/* `name` is the alias alone, or the group of its key, a dot and the alias. */
static bool names_alias(const char *name, const hy_setting_alias *alias) {
    if (hy_setting_is_same_name(name, alias->name)) return true;
    const char *dot = strchr(name, '.');
    const char *target_dot = strchr(alias->key, '.');
    if (!dot || !target_dot || dot - name != target_dot - alias->key) return false;
    return !strncmp(name, alias->key, (size_t)(dot - name)) &&
           hy_setting_is_same_name(dot + 1, alias->name);
}

const hy_setting *hy_setting_find(const char *name, const hy_setting_alias **alias) {
    if (alias) *alias = NULL;
    if (!strncmp(name, "--", 2)) name += 2;
    const hy_setting *setting = find_key(name);
    const hy_setting_alias *each;
    for (size_t i = 0; !setting && (each = hy_setting_alias_at(i)); i++) {
        if (!names_alias(name, each)) continue;
        setting = find_key(each->key);
        if (alias && each->info.key) *alias = each;
    }
    return setting;
}

/* Most likely mistakes first: a right leaf in a wrong group, a misspelt full key, a misspelt leaf
 * or alias. */
const hy_setting *hy_setting_nearest(const char *name) {
    if (!strncmp(name, "--", 2)) name += 2;
    const char *dot = strrchr(name, '.');
    const char *leaf = dot ? dot + 1 : name;
    const hy_setting *same_leaf = hy_setting_find(leaf, NULL);
    if (same_leaf) return same_leaf;

    const char *keys[SETTINGS], *leaves[SETTINGS + HY_ALIASES_MOST];
    size_t count = SETTINGS;
    for (size_t i = 0; i < SETTINGS; i++) {
        keys[i] = table[i].info.key;
        leaves[i] = hy_setting_leaf(&table[i]);
    }
    for (size_t i = 0; hy_setting_alias_at(i); i++) leaves[count++] = hy_setting_alias_at(i)->name;
    const char *near = hy_nearest_word(name, keys, SETTINGS);
    if (!near) near = hy_nearest_word(leaf, leaves, count);
    return near ? hy_setting_find(near, NULL) : NULL;
}

hy_status hy_setting_unknown(const char *where, const char *name) {
    const char *hint = hy_config_hint(name);
    if (hint) return hy_fail(HY_ERR_INPUT, "%sunknown key %s; %s", where, name, hint);
    const hy_setting *near = hy_setting_nearest(name);
    const char *all = "; \"hybrid-train --help all\" lists every key";
    return hy_fail(HY_ERR_INPUT, "%sunknown key %s%s", where, name,
                   near ? hy_did_you_mean(near->info.key).text : all);
}
