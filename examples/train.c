/* train.c: a model trained through the library, in thirty lines.
 *
 * Build it with `make examples`, or against an installed library:
 *   cc train.c $(pkg-config --cflags --libs hybrid) -o train */
#include <stdio.h>

#include "hybrid.h"

static void print_step(void *user, const hy_step_info *info) {
    (void)user;
    if (info->step % 10 == 0) printf("step %3lld  loss %.3f\n", (long long)info->step, info->loss);
}

static hy_status train(hy_config *config, hy_trainer **trainer) {
    hy_observer observer = {.on_step = print_step};
    hy_status status = hy_config_set(config, "model", "nano", HY_FROM_CALLER);
    if (status == HY_OK) status = hy_config_set(config, "steps", "60", HY_FROM_CALLER);
    if (status == HY_OK) status = hy_config_set(config, "out", "none", HY_FROM_CALLER);
    if (status == HY_OK) status = hy_trainer_create(config, &observer, trainer);
    return status == HY_OK ? hy_trainer_run(*trainer) : status;
}

int main(void) {
    hy_config *config = NULL;
    hy_trainer *trainer = NULL;
    hy_summary summary;
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = train(config, &trainer);
    if (status == HY_OK) {
        hy_trainer_summary(trainer, &summary);
        printf("held-out loss %.3f after %lld tokens\n", summary.val_loss,
               (long long)summary.tokens);
    } else {
        fprintf(stderr, "%s\n", hy_error_message());
    }
    hy_trainer_destroy(trainer);
    hy_config_destroy(config);
    return status == HY_OK ? 0 : 1;
}
