/* provider_weights.h: which weights a provider finds in its own memory. */
#pragma once

#include "trainer/trainer.h"

/* Losses of training sequences, or of held-out ones (probe->split; these need no plan). With
 * probe->of_candidate they are losses of the proposed weights, or of the average for held-out
 * sequences. A provider with its own memory finds those weights there while it computes. */
hy_status hy_trainer_probe(hy_trainer *t, hy_batch_plan *plan, hy_probe *probe);
/* The last call before a public function returns `status`: writes the current weights to the
 * provider's memory, so that its program can read them. Does nothing after a failed update, or a
 * failure that ranks have not agreed on. Returns `status`, or the failure to write. */
hy_status hy_trainer_hand_back(hy_trainer *t, hy_status status);
/* At the end of a run: writes the weights after the last step to the provider's memory, and waits
 * until they are there. */
hy_status hy_trainer_show_last(hy_trainer *t);
