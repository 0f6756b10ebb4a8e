/* engine_growth.h: a long streamed run whose process must not grow; the short and the long test
 * share it. State is on the host, m and v on disk. Jumps, validations and checkpoints are repeated,
 * so memory that is not freed would show. */
#ifndef HY_TESTS_ENGINE_GROWTH_H
#define HY_TESTS_ENGINE_GROWTH_H

#include "engine_rig.h"
#include "process_figures.h"

/* A period holds moves, a validation and a checkpoint; figures are taken where one ends. */
enum { GROWTH_PERIOD = 50 };

/* From here on everything that was taken at the start has been touched; the tail begins at a tenth
 * of the run. */
static inline int growth_settled(int steps) { return steps < 800 ? 100 : steps / 8; }

/* Allocators keep what they were given back in other places each time; a leak of one small block
 * for each step would be more than this in 2,000 steps. */
#define GROWTH_SLACK (64 << 10)

static inline void growth_period(hy_trainer *t) {
    hy_eval_info info;
    double losses[GROWTH_PERIOD];
    next_losses(t, GROWTH_PERIOD, losses);
    must(hy_trainer_evaluate(t, &info));
    must(hy_trainer_save(t));
}

/* As much of every class in every place, and no more than ever before. */
static inline void must_hold_the_same(const hy_memory_state *before, const hy_memory_state *after) {
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        ck_assert_mem_eq(after->classes[cls].live, before->classes[cls].live,
                         sizeof before->classes[cls].live);
    }
    ck_assert_uint_eq(after->device.peak, before->device.peak);
    ck_assert_uint_eq(after->host.peak, before->host.peak);
}

static inline void check_growth(int steps) {
    char out[256], disk[256], length[32];
    hy_memory_state before = {0}, after;
    process_figures settled = {0};
    temp_folder(out);
    temp_folder(disk);
    snprintf(length, sizeof length, "%d", steps);
    hy_trainer *t =
        small_trainer(ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA, out, NULL,
                      PAIRS("steps", length, "tail_share", "0.9", "precision", "bf16",
                            "grad_accum_steps", "2", "weights_place", "pinned", "master_place",
                            "pinned", "grads_place", "pinned", "activations_place", "pinned",
                            "optim_place", "disk", "update", "gather", "offload_folder", disk));
    for (int done = 0; done < steps; done += GROWTH_PERIOD) {
        if (done == growth_settled(steps)) {
            must(hy_trainer_memory(t, &before));
            settled = process_now();
        }
        growth_period(t);
    }
    process_figures end = process_now();
    must(hy_trainer_memory(t, &after));
    ck_assert_int_ne(after.phase, HY_PREDICT);
    must_hold_the_same(&before, &after);
    ck_assert_int_eq(end.files, settled.files);
    printf("steps %d: rss %+ld bytes, files %+d, mappings %+d\n", steps, end.rss - settled.rss,
           end.files - settled.files, end.mappings - settled.mappings);
#ifndef HY_POISON /* sanitizers keep what was freed, on purpose */
    ck_assert_int_le(end.mappings, settled.mappings + 2);
    ck_assert_int_le(end.rss - settled.rss, GROWTH_SLACK);
#endif
    hy_trainer_destroy(t);
    remove_folder(out);
    remove_folder(disk);
}

#endif
