/* engine_rows.h: the choices of the memory engine as a table, lists of them that cover all pairs,
 * and runs of them against a plain run: for the CPU's tests and the card's.
 *
 * A row is one value of every choice. The list is made greedily: every pair of values of different
 * choices occurs in some row. What is compared: engine_rig.h. */
#ifndef HY_TESTS_ENGINE_ROWS_H
#define HY_TESTS_ENGINE_ROWS_H

#include "engine_rig.h"

#include "base/rng.h"

typedef struct choice {
    const char *key;
    const char *values[6]; /* the first is the plain one; NULL ends them */
} choice;

/* The last two are about the run itself: see run_row. */
static const choice choices[] = {
    {"weights_place", {"device", "pinned", "disk"}},
    {"master_place", {"device", "pinned", "disk"}},
    {"grads_place", {"device", "pinned", "disk"}},
    {"optim_place", {"device", "pinned", "disk"}},
    {"activations_place", {"device", "pinned"}},
    {"predictor_place", {"pinned", "disk"}},
    {"ring_depth", {"3", "2", "4"}},
    {"resident_units", {"0", "1", "2"}},
    {"update", {"now", "gather"}},
    {"recompute", {"none", "norm", "attention", "mlp", "all"}},
    {"recompute_layers", {"0", "1", "2"}},
    {"lookahead", {"2", "0"}},
    {"offload_strategy", {"none", "cpu", "pinned"}},
    {"delays", {"0", "40"}},
    {"stopped", {"no", "yes"}},
};
enum {
    CHOICES = sizeof choices / sizeof choices[0],
    SETTINGS = CHOICES - 2,
    DELAYS = CHOICES - 2,
    STOPPED = CHOICES - 1,
    MOST_VALUES = 6,
    MOST_ROWS = 64
};

typedef struct row {
    int value[CHOICES];
} row;

static inline int value_count(int i) {
    int count = 0;
    while (count < MOST_VALUES && choices[i].values[count]) count++;
    return count;
}

/* ---- a list of rows that covers all pairs ---------------------------------------------------- */

typedef struct cover {
    bool is_seen[CHOICES][MOST_VALUES][CHOICES][MOST_VALUES];
    int left;
} cover;

static inline void cover_init(cover *c) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < CHOICES; i++) {
        for (int k = i + 1; k < CHOICES; k++) c->left += value_count(i) * value_count(k);
    }
}

/* Pairs of the row that no row before it had; `marks`: now they have been had. */
static inline int cover_new(cover *c, const row *r, bool marks) {
    int count = 0;
    for (int i = 0; i < CHOICES; i++) {
        for (int k = i + 1; k < CHOICES; k++) {
            bool *seen = &c->is_seen[i][r->value[i]][k][r->value[k]];
            count += !*seen;
            *seen |= marks;
        }
    }
    c->left -= marks ? count : 0;
    return count;
}

/* The best of some random rows, then each choice set to the value that brings the most. */
static inline row best_row(cover *c, uint64_t seed, uint64_t *counter) {
    row best = {{0}};
    int most = -1;
    for (int attempt = 0; attempt < 40; attempt++) {
        row r;
        for (int i = 0; i < CHOICES; i++) {
            r.value[i] =
                (int)hy_rng_below(seed, HY_RNG_TEST, (*counter)++, (uint64_t)value_count(i));
        }
        for (int i = 0; i < CHOICES; i++) {
            int kept = r.value[i], gain = cover_new(c, &r, false);
            for (int v = 0; v < value_count(i); v++) {
                r.value[i] = v;
                int found = cover_new(c, &r, false);
                if (found > gain) kept = v, gain = found;
            }
            r.value[i] = kept;
        }
        int found = cover_new(c, &r, false);
        if (found > most) best = r, most = found;
    }
    return best;
}

static inline int make_rows(uint64_t seed, row rows[MOST_ROWS]) {
    cover *c = malloc(sizeof *c);
    uint64_t counter = 0;
    int count = 0;
    cover_init(c);
    while (c->left > 0) {
        ck_assert_int_lt(count, MOST_ROWS);
        rows[count] = best_row(c, seed, &counter);
        cover_new(c, &rows[count++], true);
    }
    free(c);
    return count;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* The models, types and splits that every list is tried with: all of them together have each choice
 * in 16 and 32 bits, with tied and untied heads, with one and three micro-batches. */
#define ALL_BF16 "precision bf16 precision_correct bf16 "
static const struct {
    const char *name, *words;
} models[] = {
    {"llama, bf16, three micro-batches",
     ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA ALL_BF16 "grad_accum_steps 3 "},
    {"gpt2, fp32", ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 "precision fp32 grad_accum_steps 1 "},
    {"llama, bf16 with Warmup and Correct in fp32", ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA
     "precision bf16 precision_warmup fp32 precision_correct fp32 "},
    {"gpt2, weights, gradients, m and v in bf16, three micro-batches",
     ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 ALL_BF16
     "master_dtype bf16 grad_dtype bf16 optim_dtype bf16 grad_accum_steps 3 "},
    {"llama, 8-bit m, v and predictor, bf16 master", ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA ALL_BF16
     "width 64 mlp_width 96 master_dtype bf16 optimizer adamw8bit predictor_dtype 8bit "},
    {"gpt2, fp32, no moves, three micro-batches",
     ENGINE_RUN ENGINE_GPT2 "predictor none tail_share 0.5 precision fp32 grad_accum_steps 3 "},
    {"llama, the last block trained, the rest frozen in int8, two types",
     ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA
     "precision bf16 precision_correct fp32 tied_head false train last:1 "
     "frozen_dtype int8 "},
    {"llama, the last block trained, the rest frozen in nf4", ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA
     "width 64 mlp_width 128 precision bf16 precision_correct fp32 tied_head false train last:1 "
     "frozen_dtype nf4 "},
    {"llama, the last block trained, the rest frozen in nf4 with fp32 scales",
     ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA
     "width 64 mlp_width 128 precision bf16 tied_head false train last:1 frozen_dtype nf4_single "},
    {"gpt2, norms and a block trained, bf16, three micro-batches",
     ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 ALL_BF16 "train *norm*,blocks.1.* grad_accum_steps 3 "},
    {"llama, fp8 with Correct in bf16, three micro-batches", ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA
     "width 64 mlp_width 96 precision fp8 precision_correct bf16 grad_accum_steps 3 "},
    {"gpt2, fp8 with e5m2 and all state in bf16, the last part in bf16",
     ENGINE_RUN ENGINE_MOVES ENGINE_GPT2
     "precision fp8 precision_correct fp8 fp8_grad e5m2 fp8_until 0.6 master_dtype bf16 "
     "grad_dtype bf16 optim_dtype bf16 "},
    {"llama, muon, bf16, three micro-batches",
     ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA ALL_BF16 "optimizer muon grad_accum_steps 3 "},
    {"gpt2, muon in 8 bits, bf16 master and gradients", ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 ALL_BF16
     "width 64 mlp_width 96 optimizer muon8bit master_dtype bf16 grad_dtype bf16 "},
    {"llama, fp8, the last block trained, the rest frozen", ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA
     "width 64 mlp_width 96 precision fp8 precision_correct fp32 tied_head false train last:1 "},
    {"llama, lion with m in bf16",
     ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA ALL_BF16 "optimizer lion lr 3e-4 optim_dtype bf16 "},
    {"gpt2, windows of a step, all state in bf16", ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 ALL_BF16
     "full_steps 0 correct_steps 1 master_dtype bf16 grad_dtype bf16 "
     "optim_dtype bf16 "},
    {"gpt2, adafactor, three micro-batches",
     ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 "precision fp32 optimizer adafactor grad_accum_steps 3 "},
};
enum { MODELS = sizeof models / sizeof models[0] };

static const char *engine_device = "cpu";
static char plain_folder[256], folder[256], disk[256];
static engine_losses plain;

static inline void set_up(void) {
    temp_folder(plain_folder);
    temp_folder(folder);
    temp_folder(disk);
}

static inline void tear_down(void) {
    remove_folder(plain_folder);
    remove_folder(folder);
    remove_folder(disk);
}

static inline void words_of(const row *r, const char *pairs[ENGINE_WORDS]) {
    int n = 0;
    for (int i = 0; i < SETTINGS; i++) {
        pairs[n++] = choices[i].key;
        pairs[n++] = choices[i].values[r->value[i]];
    }
    pairs[n++] = "offload_folder";
    pairs[n++] = disk;
    pairs[n++] = "device";
    pairs[n++] = engine_device;
    pairs[n] = NULL;
}

static inline void describe(const row *r, char *out, size_t size) {
    size_t used = 0;
    for (int i = 0; i < CHOICES && used < size; i++) {
        if (r->value[i] == 0) continue;
        used += (size_t)snprintf(out + used, size - used, " %s=%s", choices[i].key,
                                 choices[i].values[r->value[i]]);
    }
}

static inline void check_disk(void) {
    char **names;
    size_t count;
    must(hy_dir_list(disk, &names, &count));
    hy_dir_list_free(names, count);
    ck_assert_msg(count == 0, "%zu files are left in the offload folder", count);
}

/* Runs a row; where it is to be stopped half-way it continues as `next`. */
static inline void run_row(int model, const row *r, const row *next, const char *out,
                           engine_losses *losses) {
    const char *pairs[ENGINE_WORDS], *later[ENGINE_WORDS];
    bool is_stopped = strcmp(choices[STOPPED].values[r->value[STOPPED]], "yes") == 0;
    words_of(r, pairs);
    words_of(next, later);
    engine_run(models[model].words, out, pairs, is_stopped ? later : NULL,
               atoi(choices[DELAYS].values[r->value[DELAYS]]), losses);
}

static inline void check_row(int model, const row *r, const row *next) {
    char text[512] = "", other[512] = "";
    engine_losses losses;
    run_row(model, r, next, folder, &losses);
    const char *difference = engine_difference(plain_folder, folder);
    bool is_same = memcmp(&losses, &plain, sizeof plain) == 0;
    describe(r, text, sizeof text);
    if (r->value[STOPPED]) describe(next, other, sizeof other);
    ck_assert_msg(is_same && !difference, "%s:%s (then%s) changed %s", models[model].name, text,
                  other, !is_same ? "a loss" : difference);
    check_disk();
}

static inline void run_plain(int model) {
    const row first = {{0}};
    run_row(model, &first, &first, plain_folder, &plain);
}

#endif
