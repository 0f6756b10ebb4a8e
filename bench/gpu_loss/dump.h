/* dump.h: everything that another program needs to train the same run: weights, tokens,
 * settings. */
#ifndef BENCH_GPU_LOSS_DUMP_H
#define BENCH_GPU_LOSS_DUMP_H

#include "trainer/trainer.h"

/* Writes into an existing folder:
 *   weights.safetensors  initial weights, fp32, with our names
 *   train.i32, val.i32   rows of seq + 1 token ids, in the order of use: all but the last of a row
 *                        are inputs, all but the first are targets
 *   run.json             shape, batch, steps, learning rate and its schedule, optimizer
 * Only for runs without prediction and with a GPT-2 shape; others are rejected. */
hy_status gl_dump(hy_trainer *trainer, const char *folder);

#endif
