/* uses.h: the uses of the library, each as the work of a scenario. See trial.h. */
#ifndef HY_TESTS_OOM_USES_H
#define HY_TESTS_OOM_USES_H

#include "trial.h"

/* A configuration from words ("key value key value"); its out and offload_folder lie in
 * `folder`. */
hy_status use_config(const char *words, const char *folder, hy_config **out);
/* A run to its end, in one sitting or two. */
hy_status use_training(const char *words, const char *folder, outcome *out);

hy_status use_replan(const char *folder, outcome *out); /* a plan that needs less during the run */
hy_status use_moves(const char *folder, outcome *out);
hy_status use_8bit(const char *folder, outcome *out); /* the predictor keeps 8 bits */
hy_status use_forks(const char *folder, outcome *out);
hy_status use_rings(const char *folder, outcome *out);
hy_status use_muon(const char *folder, outcome *out); /* updates made together, and fp8's codes */
hy_status use_disk(const char *folder, outcome *out);

/* A finished run in `folder`/run, for those that use a model. */
void prepare_run(const char *folder);

#endif
