/* table.c: the rows. See table.h. */
#include "phases/table.h"

#define STEP (HY_RUNS_FORWARD | HY_RUNS_BACKWARD | HY_RUNS_UPDATE)

const hy_phase_row hy_phase_table[HY_PHASE_COUNT] = {
    [HY_WARMUP] = {.phase = HY_WARMUP, .passes = STEP, .precision = HY_WARMUP},
    [HY_FULL] = {.phase = HY_FULL, .passes = STEP, .precision = HY_FULL},
    [HY_PREDICT] = {.phase = HY_PREDICT,
                    .passes = HY_RUNS_FORWARD | HY_RUNS_JUMP,
                    .precision = HY_PREDICT,
                    .borrower = HY_BORROWS_BATCH_JUMP,
                    .back = HY_RETURNS_AHEAD},
    [HY_CORRECT] = {.phase = HY_CORRECT, .passes = STEP, .precision = HY_CORRECT},
    [HY_EVALUATE] = {.phase = HY_EVALUATE,
                     .passes = HY_RUNS_FORWARD,
                     .precision = HY_FULL,
                     .borrower = HY_BORROWS_BATCH,
                     .back = HY_RETURNS_AT_END},
    [HY_REFERENCE] = {.phase = HY_REFERENCE,
                      .passes = HY_RUNS_FORWARD,
                      .precision = HY_FULL,
                      .borrower = HY_BORROWS_BATCH,
                      .back = HY_RETURNS_AT_END},
    [HY_ROLLOUT] = {.phase = HY_ROLLOUT,
                    .passes = HY_RUNS_FORWARD,
                    .precision = HY_FULL,
                    .borrower = HY_BORROWS_DECODER},
};
