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

/* A key is spelled like its field. */
#define KEY(field, option)                                                                         \
    .info.key = #field, .info.flag = (option), .offset = offsetof(hy_settings, field),             \
    .size = sizeof(((hy_settings *)NULL)->field)
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
#define CHOICE(fallback_text, ...)                                                                 \
    .type = HY_VALUE_CHOICE, .info.type = "choice", .info.fallback = fallback_text,                \
    .info.accepted = &EACH(NAME, __VA_ARGS__)[2], .choices = CHOICES(__VA_ARGS__)
#define CHOICES(...)                                                                               \
    (const hy_named_value[]) {                                                                     \
        EACH(ROW, __VA_ARGS__) { NULL, 0 }                                                         \
    }
#define TEXT(what, fallback_text)                                                                  \
    .type = HY_VALUE_TEXT, .info.type = "text", .info.accepted = what,                             \
    .info.fallback = fallback_text
#define BYTES(range_text, lo, hi, fallback_text)                                                   \
    .type = HY_VALUE_BYTES, .info.type = "bytes", .min = (lo), .max = (hi),                        \
    .info.accepted = range_text, .info.fallback = fallback_text
#define HELP(sentence) .info.help = sentence

/* EACH(M, "name", VALUE, "name", VALUE, ...) is M("name", VALUE) M("name", VALUE) ... */
#define EACH(M, ...) JOIN(EACH_, PAIRS(__VA_ARGS__))(M, __VA_ARGS__)
#define EACH_1(M, name, value) M(name, value)
#define EACH_2(M, name, value, ...) M(name, value) EACH_1(M, __VA_ARGS__)
#define EACH_3(M, name, value, ...) M(name, value) EACH_2(M, __VA_ARGS__)
#define EACH_4(M, name, value, ...) M(name, value) EACH_3(M, __VA_ARGS__)
#define EACH_5(M, name, value, ...) M(name, value) EACH_4(M, __VA_ARGS__)
#define EACH_6(M, name, value, ...) M(name, value) EACH_5(M, __VA_ARGS__)
#define EACH_7(M, name, value, ...) M(name, value) EACH_6(M, __VA_ARGS__)
#define PAIRS(...) FIFTEENTH(__VA_ARGS__, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1)
#define FIFTEENTH(a, b, c, d, e, f, g, h, i, j, k, l, m, n, count, ...) count
#define JOIN(a, b) JOIN_NOW(a, b)
#define JOIN_NOW(a, b) a##b
#define NAME(name, value) ", " name /* the first comma is left out by [2] */
#define ROW(name, value) {name, value},

/* Lists that several keys have. */
#define AUTO_ON_OFF "auto", HY_AUTO, "on", HY_ON, "off", HY_OFF
#define FP32_BF16 "fp32", HY_F32, "bf16", HY_BF16
#define PHASE_TYPES                                                                                \
    "same", HY_DTYPE_SAME, "fp32", HY_F32, "16bit", HY_DTYPE_16BIT, "bf16", HY_BF16, "fp16", HY_F16
#define PLACES "auto", HY_PLACE_AUTO, "device", HY_DEVICE, "pinned", HY_PINNED, "disk", HY_DISK

static const char *const groups[] = {"shape", "train", "optimizer", "input",
                                     "eval",  "save",  "phases",    "memory"};

static const hy_setting table[] = {
    {KEY(profile, "--profile"),
     CHOICE("balanced", "conservative", HY_CONSERVATIVE, "balanced", HY_BALANCED, "aggressive",
            HY_AGGRESSIVE),
     HELP("How much to risk for speed: a set of preferences that files and flags override.")},
    {KEY(model, "--model"),
     TEXT("a preset's name, a model's folder or name on the hub, or a .cfg file with a shape group",
          "nano"),
     HELP("What to train; brings its shape and its usual training values with it, a folder its "
          "weights "
          "too.")},
    {KEY(init_from, "--init-from"), TEXT("a checkpoint or run folder, or nothing", ""),
     HELP("Start from the weights of a checkpoint, with a new optimizer: fine-tuning.")},
    {KEY(data, "--data"),
     TEXT("builtin, a file or folder, or several with commas between them, as PATH or PATH:WEIGHT",
          "builtin"),
     HELP("Training data: text, token shards, rows of JSON, or the text source built into the "
          "program.")},
    {KEY(val_data, "--val-data"),
     TEXT("a file or folder, several with commas between them, or nothing", ""),
     HELP("Held-out data; without it the end of the training data is held out.")},
    {KEY(out, "--out"), TEXT("a folder, none, or nothing", ""),
     HELP("Folder of the run; empty means runs/MODEL-DATE-TIME, none writes nothing.")},
    {KEY(device, "--device"),
     CHOICE("auto", "auto", HY_USE_ANY, "cpu", HY_USE_CPU, "cuda", HY_USE_CUDA, "cuda:N",
            HY_USE_CARD),
     HELP("Where to compute; auto takes the GPU when there is one, cuda:1 the second card.")},
    {KEY(tune, "--tune"),
     CHOICE("fast", "off", HY_TUNE_OFF, "fast", HY_TUNE_FAST, "max", HY_TUNE_MAX),
     HELP("GPU: time a few or many algorithms for each matmul, or take the library's "
          "guess.")},
    {KEY(tune_cache, "--tune-cache"), TEXT("auto, none, or a file", "auto"),
     HELP(
         "GPU: file that keeps timed algorithms; auto: hybrid-train/ in the user's cache folder.")},
    {KEY(tf32, "--tf32"), CHOICE("auto", AUTO_ON_OFF),
     HELP("GPU: matmuls of fp32 on tensor cores, 10 bits of mantissa; auto: where Full has 16 "
          "bits.")},
    {KEY(attention, "--attention"),
     CHOICE("own", "own", HY_ATTENTION_OWN, "cudnn", HY_ATTENTION_CUDNN),
     HELP("GPU: attention in 16 bits by our own kernels, or by NVIDIA's cuDNN where it is found.")},
    {KEY(seed, "--seed"), INTEGER(0, 9007199254740991, "1"),
     HELP("Seed of initial weights, data order, the built-in text and samples.")},
    {KEY(threads, "--threads"), INTEGER(0, 1024, "0"),
     HELP("CPU threads; 0 takes all cores this process may use.")},
    {KEY(card, "--card"), TEXT("a card's name such as rtx5080, or nothing", ""),
     HELP("With --plan: plan for this card, which need not be here.")},

    {KEY(shape.layers, "--layers"), INTEGER(1, 1024, "4"), HELP("Transformer blocks.")},
    {KEY(shape.width, "--width"), INTEGER(1, 65536, "128"), HELP("Size of the residual stream.")},
    {KEY(shape.heads, "--heads"), INTEGER(1, 4096, "4"), HELP("Attention heads for queries.")},
    {KEY(shape.kv_heads, "--kv-heads"), INTEGER(0, 4096, "0"),
     HELP("Attention heads for keys and values; 0 means as many as heads.")},
    {KEY(shape.head_size, "--head-size"), INTEGER(0, 65536, "0"),
     HELP("Size of one head; 0 means width / heads.")},
    {KEY(shape.mlp_width, "--mlp-width"), INTEGER(0, 1048576, "0"),
     HELP("Inner size of the MLP; 0 means 4 x width.")},
    {KEY(shape.vocab, "--vocab"), INTEGER(2, 16777216, "256"),
     HELP("Token ids lie below this; 256 for plain bytes.")},
    {KEY(shape.context, "--context"), INTEGER(1, 16777216, "512"),
     HELP("Longest sequence the model is made for.")},
    {KEY(shape.norm, "--norm"), CHOICE("rmsnorm", "layernorm", HY_LAYERNORM, "rmsnorm", HY_RMSNORM),
     HELP("Normalisation before attention, MLP and head.")},
    {KEY(shape.positions, "--positions"),
     CHOICE("rope", "learned", HY_POSITIONS_LEARNED, "rope", HY_POSITIONS_ROPE),
     HELP("How positions enter: a learned table, or rotation of queries and keys.")},
    {KEY(shape.activation, "--activation"),
     CHOICE("swiglu", "gelu", HY_ACTIVATION_GELU, "swiglu", HY_ACTIVATION_SWIGLU),
     HELP("The MLP's nonlinearity; swiglu has a gate, so three matrices.")},
    {KEY(shape.qkv_bias, "--qkv-bias"), SWITCH("false"),
     HELP("Biases on queries, keys and values.")},
    {KEY(shape.proj_bias, "--proj-bias"), SWITCH("false"),
     HELP("Biases on the attention output and in the MLP.")},
    {KEY(shape.proj_bias_in, "--proj-bias-in"),
     CHOICE("all", "all", HY_BIAS_IN_ALL, "attention", HY_BIAS_IN_ATTENTION, "mlp", HY_BIAS_IN_MLP),
     HELP("What proj_bias reaches: both, or the attention output or the MLP alone.")},
    {KEY(shape.qk_norm, "--qk-norm"), SWITCH("false"),
     HELP("Normalise each head's queries and keys before the rotation (Qwen3).")},
    {KEY(shape.tied_head, "--tied-head"), SWITCH("true"),
     HELP("Use the embedding as the output matrix too.")},
    {KEY(shape.norm_eps, "--norm-eps"), NUMBER(1e-12, 0.1, "1e-5"),
     HELP("Added under the root when normalising.")},
    {KEY(shape.rope_theta, "--rope-theta"), NUMBER(1, 1000000000000, "10000"),
     HELP("Base of the rotation frequencies.")},
    {KEY(shape.rope_scaling, "--rope-scaling"),
     CHOICE("none", "none", HY_ROPE_PLAIN, "llama3", HY_ROPE_LLAMA3),
     HELP("Stretching of the rotations to a longer context.")},
    {KEY(shape.rope_factor, "--rope-factor"), NUMBER(1, 1024, "8"),
     HELP("llama3 scaling: how many times slower the slow rotations turn.")},
    {KEY(shape.rope_low_freq, "--rope-low-freq"), NUMBER(0.001, 1024, "1"),
     HELP("llama3 scaling: rotations with fewer turns in the original context are slowed fully.")},
    {KEY(shape.rope_high_freq, "--rope-high-freq"), NUMBER(0.001, 1024, "4"),
     HELP("llama3 scaling: rotations with more turns in the original context stay as they are.")},
    {KEY(shape.rope_original_context, "--rope-original-context"), INTEGER(1, 16777216, "8192"),
     HELP("llama3 scaling: the context the frequencies were first made for.")},
    {KEY(shape.sliding_window, "--sliding-window"), INTEGER(0, 16777216, "0"),
     HELP("Each token sees this many tokens, itself included; 0 means all before it.")},
    {KEY(shape.init_std, "--init-std"), NUMBER(0, 10, "0.02"),
     HELP("Standard deviation of initial weights.")},

    {KEY(train.steps, "--steps"), INTEGER(0, 1000000000, "0"),
     HELP("Compute of the run in full steps, guard passes and forks included; 0: from tokens or "
          "epochs.")},
    {KEY(train.tokens, "--tokens"), INTEGER(0, 1000000000000000, "0"),
     HELP("Length of the run in training tokens, instead of steps; 0 means not used.")},
    {KEY(train.epochs, "--epochs"), NUMBER(0, 1000000, "0"),
     HELP("Length of the run in passes over the data, instead of steps; 0 means not used.")},
    {KEY(train.batch_size, "--batch-size"), INTEGER(1, 65536, "4"),
     HELP("Sequences in one micro-batch.")},
    {KEY(train.seq_len, "--seq-len"), INTEGER(1, 1048576, "256"), HELP("Tokens in one sequence.")},
    {KEY(train.grad_accum_steps, "--grad-accum-steps"), INTEGER(1, 65536, "1"),
     HELP("Micro-batches whose gradients make one optimizer step.")},
    {KEY(train.normalize, "--normalize"), SWITCH("true"),
     HELP("Average over all tokens of a step; false sums the means of its micro-batches.")},
    {KEY(train.scale_lr, "--scale-lr"), SWITCH("false"),
     HELP("Multiply the learning rate by grad_accum_steps.")},
    {KEY(train.grad_clip, "--grad-clip"), NUMBER(0, 1000000, "1"),
     HELP("Largest norm of the whole gradient; longer ones are scaled down; 0 turns it off.")},
    {KEY(train.loss_chunks, "--loss-chunks"), INTEGER(0, 65536, "0"),
     HELP("Pieces in which logits and loss are computed, to save memory; 0 means chosen.")},
    {KEY(train.precision, "--precision"),
     CHOICE("auto", "auto", HY_DTYPE_AUTO, FP32_BF16, "fp16", HY_F16),
     HELP("Storage of weights and activations; auto is bf16 on a GPU (fp16 before sm_80), fp32 on "
          "a CPU.")},
    {KEY(train.grad_dtype, "--grad-dtype"), CHOICE("fp32", FP32_BF16),
     HELP("Storage of gradients; micro-batches are added up in it.")},
    {KEY(train.recompute, "--recompute"),
     CHOICE("auto", "auto", HY_RECOMPUTE_AUTO, "none", HY_RECOMPUTE_NONE, "norm", HY_RECOMPUTE_NORM,
            "attention", HY_RECOMPUTE_ATTENTION, "mlp", HY_RECOMPUTE_MLP, "all", HY_RECOMPUTE_ALL),
     HELP("What the backward pass computes again instead of keeping it in memory.")},
    {KEY(train.recompute_layers, "--recompute-layers"), INTEGER(0, 1024, "0"),
     HELP("Layers that recompute, spread evenly; 0 means all of them.")},
    {KEY(train.step_tokens, "--step-tokens"), INTEGER(0, 1000000000000, "0"),
     HELP(
         "Tokens of one optimizer step, instead of batch_size and grad_accum_steps, which are then "
         "chosen; 0 means not used.")},
    {KEY(train.dynamic_batch, "--dynamic-batch"),
     CHOICE("auto", "off", HY_OFF, "on", HY_ON, "auto", HY_AUTO),
     HELP(
         "Smaller micro-batches and more of them when memory gets short, and back; auto: also find "
         "the fastest at the start where step_tokens leaves it open.")},
    {KEY(train.min_batch_size, "--min-batch-size"), INTEGER(1, 65536, "1"),
     HELP("Micro-batches never shrink below this many sequences.")},
    {KEY(train.max_batch_size, "--max-batch-size"), INTEGER(0, 65536, "0"),
     HELP("Micro-batches never grow beyond this many sequences; 0: beyond what they began with.")},
    {KEY(train.batch_check_every, "--batch-check-every"), INTEGER(1, 1000000, "10"),
     HELP("Steps between two looks at whether the micro-batch should change.")},

    {KEY(optimizer.optimizer, "--optimizer"),
     CHOICE("adamw", "adamw", HY_ADAMW, "adamw8bit", HY_OPTIMIZER_8BIT, "paged_adamw",
            HY_OPTIMIZER_PAGED, "paged_adamw8bit", HY_OPTIMIZER_PAGED | HY_OPTIMIZER_8BIT),
     HELP("The update rule; adamw8bit is adamw with optim_dtype 8bit, paged_ keeps m and v in "
          "pinned "
          "host memory unless optim_place says otherwise.")},
    {KEY(optimizer.optim_dtype, "--optim-dtype"),
     CHOICE("auto", "auto", HY_DTYPE_AUTO, FP32_BF16, "8bit", HY_U8),
     HELP("Storage of m and v; bf16 is rounded stochastically, 8bit has a scale for 256 elements; "
          "auto is fp32, or 8bit with adamw8bit.")},
    {KEY(optimizer.master_dtype, "--master-dtype"),
     CHOICE("auto", "auto", HY_DTYPE_AUTO, FP32_BF16),
     HELP("Storage of the weights that the optimizer updates; bf16 is rounded stochastically and "
          "is the only copy; auto is fp32.")},
    {KEY(optimizer.lr, "--lr"), NUMBER(0, 10, "0.001"),
     HELP("Highest learning rate of the schedule.")},
    {KEY(optimizer.beta1, "--beta1"), NUMBER_BELOW(0, 1, "0.9"),
     HELP("Decay of the running mean of gradients.")},
    {KEY(optimizer.beta2, "--beta2"), NUMBER_BELOW(0, 1, "0.95"),
     HELP("Decay of the running mean of squared gradients.")},
    {KEY(optimizer.adam_eps, "--adam-eps"), NUMBER(1e-16, 1, "1e-8"),
     HELP("Added to the root of the second moment.")},
    {KEY(optimizer.weight_decay, "--weight-decay"), NUMBER(0, 10, "0.1"),
     HELP("Decoupled decay, on matrices only.")},
    {KEY(optimizer.schedule, "--schedule"),
     CHOICE("cosine", "constant", HY_SCHEDULE_CONSTANT, "linear", HY_SCHEDULE_LINEAR, "cosine",
            HY_SCHEDULE_COSINE, "wsd", HY_SCHEDULE_WSD),
     HELP("Course of the learning rate after its warm-up; wsd is flat, then falls at the end.")},
    {KEY(optimizer.lr_warmup_steps, "--lr-warmup-steps"), INTEGER(0, 1000000000, "0"),
     HELP("Steps in which the learning rate rises from zero.")},
    {KEY(optimizer.min_lr_ratio, "--min-lr-ratio"), NUMBER(0, 1, "0.1"),
     HELP("Last learning rate as a fraction of the highest.")},
    {KEY(optimizer.cooldown, "--cooldown"), NUMBER(0, 1, "0.2"),
     HELP("wsd: fraction of the run in which the learning rate falls.")},

    {KEY(input.val_fraction, "--val-fraction"), NUMBER(0.000001, 0.5, "0.05"),
     HELP("Part of the data held out for validation when val_data is empty.")},
    {KEY(input.builtin_bytes, "--builtin-bytes"), BYTES("4KiB to 16GiB", 4096, 17179869184, "4M"),
     HELP("Size of the built-in text, held-out part included.")},
    {KEY(input.shuffle, "--shuffle"), SWITCH("true"),
     HELP("Read sequences in an order drawn anew each epoch.")},
    {KEY(input.prefetch, "--prefetch"), INTEGER(0, 4096, "2"),
     HELP("Micro-batches read ahead beyond one step.")},
    {KEY(input.tokenizer, "--tokenizer"),
     TEXT("auto, none, or a tokenizer.json or its folder", "auto"),
     HELP("Turns text and rows into tokens; auto takes the one in the model's folder, none reads "
          "bytes.")},
    {KEY(input.chat_template, "--chat-template"),
     CHOICE("auto", "auto", HY_CHAT_AUTO, "chatml", HY_CHAT_CHATML, "llama2", HY_CHAT_LLAMA2,
            "llama3", HY_CHAT_LLAMA3, "mistral", HY_CHAT_MISTRAL, "alpaca", HY_CHAT_ALPACA),
     HELP("How conversations are written for the model; auto recognises the one in its folder.")},
    {KEY(input.loss_on, "--loss-on"),
     CHOICE("answers", "answers", HY_LOSS_ON_ANSWERS, "all", HY_LOSS_ON_ALL),
     HELP("Rows: learn the assistant's turns alone, or all tokens.")},
    {KEY(input.packing, "--packing"), CHOICE("auto", AUTO_ON_OFF),
     HELP("Rows: several share a sequence without seeing each other; auto is on.")},
    {KEY(input.bad_rows, "--bad-rows"),
     CHOICE("skip", "skip", HY_BAD_ROWS_SKIP, "stop", HY_BAD_ROWS_STOP),
     HELP("A malformed row is told and left out, or ends the program.")},
    {KEY(input.num_workers, "--num-workers"), INTEGER(0, 256, "0"),
     HELP("Threads that turn data into tokens when it is opened; 0 takes all cores.")},
    {KEY(input.buffer_size, "--buffer-size"), BYTES("64KiB to 1GiB", 65536, 1073741824, "16Mi"),
     HELP("Bytes of data that these threads have in work at a time.")},

    {KEY(eval.eval_every, "--eval-every"), INTEGER(0, 1000000000, "0"),
     HELP("Steps between validations; 0 validates only at the end.")},
    {KEY(eval.eval_batches, "--eval-batches"), INTEGER(0, 1000000000, "0"),
     HELP("Batches of one validation; 0 takes all held-out data.")},
    {KEY(eval.eval_batch_size, "--eval-batch-size"), INTEGER(0, 65536, "0"),
     HELP("Sequences in a validation batch; 0 means as batch_size.")},
    {KEY(eval.sample_tokens, "--sample-tokens"), INTEGER(0, 1048576, "200"),
     HELP("Length of the text sampled at the end; 0 samples none.")},
    {KEY(eval.temperature, "--temperature"), NUMBER(0, 100, "0.8"),
     HELP("Of sampling; 0 always takes the likeliest token.")},
    {KEY(eval.top_k, "--top-k"), INTEGER(0, 16777216, "0"),
     HELP("Sample among this many likeliest tokens; 0 means all.")},
    {KEY(eval.prompt, "--prompt"), TEXT("any text", ""),
     HELP("Text the closing sample continues; empty begins freely.")},

    {KEY(save.save_every, "--save-every"), INTEGER(0, 1000000000, "0"),
     HELP("Steps between checkpoints; 0 saves at the end and when stopped.")},
    {KEY(save.keep, "--keep"), INTEGER(0, 1000000, "2"),
     HELP("Newest checkpoints kept; 0 keeps all.")},
    {KEY(save.resume, "--resume"), TEXT("auto, or a checkpoint or run folder, or nothing", ""),
     HELP("Continue a run: auto takes the newest checkpoint of out.")},
    {KEY(save.overwrite, "--overwrite"), SWITCH("false"),
     HELP("Start anew in a folder that holds an earlier run.")},
    {KEY(save.save_model, "--save-model"), SWITCH("true"),
     HELP("At the end of the run write OUT/model, a folder that transformers loads.")},
    {KEY(save.model_dtype, "--model-dtype"),
     CHOICE("auto", "auto", HY_DTYPE_AUTO, FP32_BF16, "fp16", HY_F16),
     HELP("Type of the weights in it; auto: as in the folder the model came from, or as in the "
          "checkpoint.")},
    {KEY(save.max_shard_size, "--max-shard-size"), BYTES("1M to 1024TiB", 1000000, 0x1p50, "5G"),
     HELP("Weights there are split into files of at most this size.")},
    {KEY(save.tensorboard, "--tensorboard"), SWITCH("true"),
     HELP("Write event files for TensorBoard into OUT/tensorboard.")},
    {KEY(save.report, "--report"), SWITCH("true"),
     HELP("Write OUT/report.html when the run ends or is stopped.")},

    {KEY(phases.predictor, "--predictor"),
     CHOICE("outer", "outer", HY_PREDICTOR_OUTER, "line", HY_PREDICTOR_LINE, "none",
            HY_PREDICTOR_NONE),
     HELP("How Predict moves the weights.")},
    {KEY(phases.full_steps, "--full-steps"), INTEGER(0, 1000000, "15"),
     HELP("Full steps of a window, after its Correct steps.")},
    {KEY(phases.correct_steps, "--correct-steps"), INTEGER(1, 1000000, "5"),
     HELP("Correct steps after a move.")},
    {KEY(phases.max_predict_steps, "--max-predict-steps"), INTEGER(1, 1000000, "30"),
     HELP("Most predicted steps of one move; longer ones are scaled.")},
    {KEY(phases.correction_interval, "--correction-interval"), INTEGER(1, 1000000, "10"),
     HELP("Most predicted steps before a Correct step, for line; outer moves once, whole.")},
    {KEY(phases.confidence_threshold, "--confidence-threshold"), NUMBER(0, 1, "0.75"),
     HELP("Predict only when confidence that it pays is at least this.")},
    {KEY(phases.regime, "--regime"),
     CHOICE("auto", "auto", HY_REGIME_AUTO, "scratch", HY_REGIME_SCRATCH, "fine-tuning",
            HY_REGIME_TUNING),
     HELP("What confidence begins with; auto: fine-tuning when weights are given.")},
    {KEY(phases.predict_from, "--predict-from"), NUMBER(0, 1, "0.1"),
     HELP("Share of the run's compute before which nothing is predicted.")},
    {KEY(phases.predict_until, "--predict-until"), NUMBER(0, 1, "0.75"),
     HELP("Share of the run's compute from which on nothing is predicted.")},
    {KEY(phases.outer_mu, "--outer-mu"), NUMBER_BELOW(0, 1, "0.7"),
     HELP("outer: how much velocity is kept from window to window.")},
    {KEY(phases.outer_eta, "--outer-eta"), NUMBER(0, 2, "0.7"),
     HELP("outer: step length along the velocity.")},
    {KEY(phases.guard_share, "--guard-share"), NUMBER(0.001, 4, "0.25"),
     HELP("Tokens of a guard pass, as a share of a step's; two passes check a move.")},
    {KEY(phases.fork_budget, "--fork-budget"), NUMBER(0, 0.5, "0.03"),
     HELP("Share of the run's compute that paired forks may cost; 0 turns them off.")},
    {KEY(phases.fork_steps, "--fork-steps"), INTEGER(0, 100000, "0"),
     HELP("True steps that each arm of a paired fork makes; 0 means half a window.")},
    {KEY(phases.snapshot, "--snapshot"), SWITCH("true"),
     HELP("Keep the weights before a move in host memory, so that a divergence can undo it.")},
    {KEY(phases.tail_share, "--tail-share"), NUMBER(0, 0.9, "0"),
     HELP("Average the weights over this last share of the run; validation uses the average.")},
    {KEY(phases.loss_sigma, "--loss-sigma"), NUMBER(1, 1000, "6"),
     HELP("A loss this many deviations above its course is a divergence.")},
    {KEY(phases.grad_explosion, "--grad-explosion"), NUMBER(1, 1000000000, "100"),
     HELP("A gradient this many times its usual norm is a divergence.")},
    {KEY(phases.grad_vanishing, "--grad-vanishing"), NUMBER(0, 1, "0.01"),
     HELP("A gradient below this share of its usual norm is a divergence.")},
    {KEY(phases.cooldown_steps, "--cooldown-steps"), INTEGER(1, 1000000, "40"),
     HELP("True steps without Predict after a rejected move or a divergence; doubles each time.")},
    {KEY(phases.precision_warmup, "--precision-warmup"), CHOICE("same", PHASE_TYPES),
     HELP("Precision of Warmup; same: train.precision.")},
    {KEY(phases.precision_full, "--precision-full"), CHOICE("same", PHASE_TYPES),
     HELP("Precision of Full; same: train.precision.")},
    {KEY(phases.precision_predict, "--precision-predict"), CHOICE("same", PHASE_TYPES),
     HELP("Precision of Predict; same: train.precision.")},
    {KEY(phases.precision_correct, "--precision-correct"), CHOICE("same", PHASE_TYPES),
     HELP("Precision of Correct; same: train.precision.")},
    {KEY(phases.predictor_dtype, "--predictor-dtype"),
     CHOICE("auto", "auto", HY_DTYPE_AUTO, FP32_BF16),
     HELP("Storage of what the predictor keeps; auto is as the weights that are updated.")},

    {KEY(memory.max_gpu_mem, "--max-gpu-mem"), BYTES("0 to 1024TiB", 0, 0x1p50, "0"),
     HELP("Most bytes to use on the device; 0 means what it has.")},
    {KEY(memory.cpu_mem, "--cpu-mem"), BYTES("0 to 1024TiB", 0, 0x1p50, "0"),
     HELP("Most bytes to use of host memory; 0 means what is free.")},
    {KEY(memory.offload_folder, "--offload-folder"), TEXT("a folder, or nothing", ""),
     HELP("Folder on a fast disk for state that has room nowhere else.")},
    {KEY(memory.offload_size, "--offload-size"), BYTES("0 to 1024TiB", 0, 0x1p50, "0"),
     HELP("Most bytes to use in offload_folder; 0 means what is free there.")},
    {KEY(memory.weights_place, "--weights-place"), CHOICE("auto", PLACES),
     HELP("Where the weights that passes use live; from pinned host memory or disk they pass "
          "through the device unit by unit. No place changes a bit.")},
    {KEY(memory.master_place, "--master-place"), CHOICE("auto", PLACES),
     HELP("Where the fp32 weights of a 16-bit run live.")},
    {KEY(memory.grads_place, "--grads-place"), CHOICE("auto", PLACES),
     HELP("Where gradients live; sums come and go with units.")},
    {KEY(memory.optim_place, "--optim-place"), CHOICE("auto", PLACES), HELP("Where m and v live.")},
    {KEY(memory.activations_place, "--activations-place"),
     CHOICE("auto", "auto", HY_PLACE_AUTO, "device", HY_DEVICE, "pinned", HY_PINNED),
     HELP("Where what a layer keeps for the backward pass waits for it.")},
    {KEY(memory.predictor_place, "--predictor-place"),
     CHOICE("auto", "auto", HY_PLACE_AUTO, "pinned", HY_PINNED, "disk", HY_DISK),
     HELP("Where what the predictor keeps lives.")},
    {KEY(memory.update, "--update"),
     CHOICE("auto", "auto", HY_UPDATE_AUTO, "now", HY_UPDATE_NOW, "gather", HY_UPDATE_ON_GATHER),
     HELP("When weights are updated: at the end of a step, or each unit when the next step brings "
          "it; auto: the latter where anything passes through. The result is the same.")},
    {KEY(memory.ring_depth, "--ring-depth"), INTEGER(0, 8, "0"),
     HELP("Units of a class on the device at a time where it passes through, 2 at least; 0 means "
          "chosen.")},
    {KEY(memory.resident_units, "--resident-units"), INTEGER(-1, 1024, "-1"),
     HELP("Layers whose state stays on the device although its class lives elsewhere; -1 means "
          "chosen.")},
    {KEY(memory.offload_strategy, "--offload-strategy"),
     CHOICE("none", "none", HY_OFFLOAD_NONE, "cpu", HY_OFFLOAD_CPU, "pinned", HY_OFFLOAD_PINNED,
            "compress", HY_OFFLOAD_COMPRESS, "drop", HY_OFFLOAD_DROP),
     HELP("What becomes of m and v on the device during Predict: stay, move to the host, 8 bits, "
          "forgotten.")},
    {KEY(memory.async_restore, "--async-restore"), SWITCH("true"),
     HELP("Bring the optimizer's state back on a stream of its own, beside the last passes.")},
    {KEY(memory.lookahead, "--lookahead"), INTEGER(0, 1000, "2"),
     HELP("Forward-only batches before the end of Predict at which the restore begins.")},
    {KEY(memory.target_usage, "--target-usage"), NUMBER(0.01, 1, "0.90"),
     HELP("Share of the memory budget that micro-batches may grow back into.")},
    {KEY(memory.warning_usage, "--warning-usage"), NUMBER(0.01, 1, "0.92"),
     HELP("Share of the budget from which the monitor warns.")},
    {KEY(memory.critical_usage, "--critical-usage"), NUMBER(0.01, 1, "0.95"),
     HELP("Share of the budget from which micro-batches shrink.")},
    {KEY(memory.emergency_usage, "--emergency-usage"), NUMBER(0.01, 1, "0.97"),
     HELP("Share of the budget from which a cheaper plan is taken.")},
    {KEY(memory.monitor, "--monitor"),
     CHOICE("on", "on", HY_MONITOR_ON, "silent", HY_MONITOR_SILENT, "off", HY_MONITOR_OFF),
     HELP("Watch memory while the run goes on; silent: in the metrics only.")},
    {KEY(memory.monitor_every, "--monitor-every"), INTEGER(0, 1000000000, "100"),
     HELP("Steps between two lines of the monitor; 0: only when its status changes.")},
    {KEY(memory.recovery_tries, "--recovery-tries"), INTEGER(0, 100, "3"),
     HELP("How often in a row a step that ran out of memory is repeated with less, before the run "
          "saves and stops.")},
    {KEY(memory.host_reserve, "--host-reserve"), BYTES("0 to 1024TiB", 0, 0x1p50, "0"),
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

hy_status hy_setting_unknown(const char *where, const char *name) {
    const hy_setting *near = hy_setting_nearest(name);
    return hy_fail(HY_ERR_INPUT, "%sunknown key %s%s", where, name,
                   hy_did_you_mean(near ? near->info.key : NULL).text);
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
