/* dump.h: all that another program needs to train the same run: weights, tokens, settings. */
#ifndef BENCH_GPU_LOSS_DUMP_H
#define BENCH_GPU_LOSS_DUMP_H

#include "trainer/trainer.h"

/* Writes into a folder that exists:
 *   weights.safetensors  initial weights, fp32, our names
 *   train.i32, val.i32   rows of seq + 1 token ids, in the order they are used: inputs are all but the
 *                        last of a row, targets all but the first
 *   run.json             shape, batch, steps, learning rate and its course, optimizer
 * For runs without prediction from a GPT-2 shape; others are refused. */
hy_status gl_dump(hy_trainer *trainer, const char *folder);

#endif
