/* ranks_variants.h: the ways of training that several ranks go through in tests. */
#ifndef HY_TESTS_RANKS_VARIANTS_H
#define HY_TESTS_RANKS_VARIANTS_H

#include "ranks_rig.h"

#define NONE "predictor none "
#define PINNED "weights_place pinned grads_place pinned optim_place pinned max_gpu_mem 64MiB "

/* How far losses and gradient norms of several ranks may be from those of one, as shares. */
#define IN_FP32 .apart = {2e-6, 2e-5}
#define IN_16_BITS .apart = {2e-3, 2e-2}

typedef struct variant {
    const char *name, *words;
    distance apart;
    int stages;       /* of ZeRO that it has, from 0 on; 0: all four */
    int jumps;        /* that the guard accepts, at least */
    bool has_rows;    /* it is trained on rows, of answers that differ in length */
    bool is_for_long; /* the fast tests leave it out */
} variant;

static const variant variants[] = {
    {.name = "plain", .words = NONE "steps 6", IN_FP32},
    {.name = "untied", .words = NONE "steps 6 tied_head false", IN_FP32},
    {.name = "accumulation", .words = NONE "steps 5 batch_size 3 grad_accum_steps 8", IN_FP32},
    {.name = "streaming",
     .words = NONE PINNED "steps 5 layers 4 ring_depth 2 grad_accum_steps 2 tied_head false",
     IN_FP32},
    {.name = "resident",
     .words = NONE PINNED "steps 5 layers 4 resident_units 1 master_place pinned precision bf16",
     IN_16_BITS,
     .is_for_long = true},
    {.name = "8bit", .words = NONE "steps 6 optim_dtype 8bit", IN_FP32},
    {.name = "muon", .words = NONE "steps 6 optimizer muon", IN_FP32},
    {.name = "muon untied",
     .words = NONE PINNED "steps 5 optimizer muon tied_head false precision bf16",
     IN_16_BITS,
     .is_for_long = true},
    {.name = "adafactor", .words = NONE "steps 6 optimizer adafactor", IN_FP32},
    {.name = "lion", .words = NONE "steps 6 optimizer lion lr 3e-4", IN_FP32, .is_for_long = true},
    {.name = "sgd", .words = NONE "steps 6 optimizer sgd lr 1e-2", IN_FP32, .is_for_long = true},
    {.name = "bf16", .words = NONE "steps 6 precision bf16", IN_16_BITS},
    {.name = "bf16 alone",
     .words =
         NONE "steps 6 precision bf16 precision_correct same master_dtype bf16 grad_dtype bf16",
     IN_16_BITS,
     .is_for_long = true},
    {.name = "fp16", .words = NONE "steps 6 precision fp16", IN_16_BITS, .is_for_long = true},
    {.name = "fp8",
     .words = NONE "steps 6 layers 4 precision fp8 fp8 all width 64 mlp_width 64",
     IN_16_BITS},
    {.name = "lora", .words = NONE "steps 6 lora true", IN_FP32},
    {.name = "qlora",
     .words = NONE "steps 6 qlora true width 64 mlp_width 64 precision bf16",
     IN_16_BITS,
     .is_for_long = true},
    {.name = "last block",
     .words = NONE "steps 6 train last:1 tied_head false",
     IN_FP32,
     .is_for_long = true},
    {.name = "groups",
     .words = NONE "steps 6 optimizer muon groups *attn*:optimizer=adamw",
     IN_FP32,
     .is_for_long = true},
    {.name = "places by name",
     .words = NONE "steps 6 layers 4 groups "
                   "blocks.1-2.*:place=pinned,optim_dtype=bf16;embed.*:optim_place=pinned",
     IN_FP32},
    {.name = "recomputation",
     .words = NONE "steps 5 recompute all eval_every 2",
     IN_FP32,
     .is_for_long = true},
    {.name = "outer", .words = PREDICTS "steps 18 predictor outer", IN_FP32, .jumps = 2},
    {.name = "outer in 8 bits",
     .words = PREDICTS "steps 18 predictor outer predictor_dtype 8bit precision bf16 "
                       "precision_correct same master_dtype bf16",
     IN_16_BITS,
     .jumps = 1,
     .is_for_long = true},
    {.name = "line",
     .words = PREDICTS "steps 18 predictor line tail_share 0.4 eval_every 5",
     IN_FP32,
     .jumps = 2},
    {.name = "forks",
     .words = "steps 24 predictor outer regime fine-tuning fork_budget 0.5 fork_steps 2 "
              "schedule constant full_steps 2 correct_steps 1 predict_from 0 predict_until 1 "
              "confidence_threshold 0.75 eval_every 4",
     IN_FP32,
     .jumps = 2,
     .is_for_long = true},
    {.name = "moved state",
     .words = PREDICTS "steps 18 predictor outer offload_strategy pinned precision bf16 "
                       "precision_correct same",
     IN_16_BITS,
     .jumps = 2,
     .is_for_long = true},
    {.name = "correct in fp32",
     .words = PREDICTS "steps 18 predictor outer precision bf16 precision_correct fp32",
     IN_16_BITS,
     .jumps = 2},
    {.name = "rows", .words = NONE "steps 6 seq_len 64", IN_FP32, .has_rows = true},
    {.name = "packed rows",
     .words = NONE "steps 6 seq_len 64 packing on precision bf16",
     IN_16_BITS,
     .has_rows = true,
     .is_for_long = true},
};
#define VARIANT_COUNT ((int)(sizeof variants / sizeof variants[0]))

/* Sums, some of them with many words. */
static inline void write_rows(const char *path) {
    hy_text text = {0};
    for (int i = 0; i < 150; i++) {
        hy_text_addf(&text, "{\"question\": \"%d+%d?\", \"answer\": \"%s%d\"}\n", i % 10, i % 7,
                     i % 5 == 0 ? "let me see, that makes exactly " : "", i % 10 + i % 7);
    }
    must(hy_file_write_atomic(path, text.data, text.size));
    hy_text_free(&text);
}

/* The words of a variant, with its data in `folder`. */
static inline const char *words_of(const variant *v, const char *folder, char out[1024]) {
    char path[600];
    snprintf(path, sizeof path, "%s/rows.jsonl", folder);
    snprintf(out, 1024, "%s %s%s", v->words, v->has_rows ? "data " : "", v->has_rows ? path : "");
    if (v->has_rows && !hy_path_exists(path)) write_rows(path);
    return out;
}

static inline const variant *variant_named(const char *name) {
    for (int i = 0; i < VARIANT_COUNT; i++) {
        if (strcmp(variants[i].name, name) == 0) return &variants[i];
    }
    ck_abort_msg("there is no variant %s", name);
    return NULL;
}

static inline int stages_of(const variant *v) { return v->stages > 0 ? v->stages : 4; }

#endif
