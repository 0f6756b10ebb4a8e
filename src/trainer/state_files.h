/* state_files.h: which store goes into which file of a checkpoint, under which names.
 *
 *   weights.safetensors    every parameter by name, fp32
 *   optimizer.safetensors  m.<name> and v.<name>
 *   predictor.safetensors  slot0.<name>, slot1.<name>, tail.<name>, snapshot.<name>: where there are
 *   trainer.json           progress, cursor, what the run was made of
 *   config.cfg             the configuration as printed
 *   matmul-algorithms      on a GPU: which algorithm each product runs, as the backend writes it */
#ifndef HY_TRAINER_STATE_FILES_H
#define HY_TRAINER_STATE_FILES_H

#include "formats/safetensors.h"
#include "trainer/trainer.h"

#define HY_ALGORITHMS_FILE "matmul-algorithms"
#define HY_STATE_NAME_MAX (HY_PARAM_NAME_MAX + 8)

/* One tensor of a state file: parameter `param` of `store`, named prefix + parameter name. */
typedef struct hy_state_file {
    const char *name;
    int32_t part_count;
    struct {
        const char *prefix;
        hy_store *store;
    } part[4];
} hy_state_file;

#define HY_STATE_FILES_MAX 3
/* How many of them this run has. */
int hy_state_files(hy_trainer *t, hy_state_file files[HY_STATE_FILES_MAX]);

static inline int32_t hy_state_tensors(const hy_trainer *t, const hy_state_file *file) {
    return file->part_count * t->model->params.count;
}

#endif
