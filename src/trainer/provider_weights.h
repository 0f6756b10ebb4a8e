/* provider_weights.h: which weights a provider finds in its own memory. */
#pragma once

#include "trainer/trainer.h"

/* Losses of training sequences, or of held-out ones (probe->split; these need no plan). With
 * probe->of_candidate they are losses of the proposed weights, or of the average for held-out
 * sequences. A provider with its own memory finds those weights there while it computes. */
hy_status hy_trainer_probe(hy_trainer *t, hy_batch_plan *plan, hy_probe *probe);
/* Before a public call returns with this status: updates the weights in the provider's memory,
 * where a 16-bit copy may be stale. Does nothing after a failure that ranks have not agreed on. */
hy_status hy_trainer_hand_back(hy_trainer *t, hy_status status);
/* At the end of a run: the provider's memory gets the weights after the last step. */
hy_status hy_trainer_show_last(hy_trainer *t);
