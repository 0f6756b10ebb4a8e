/* state_files.h: which store goes into which file of a checkpoint, under which names.
 *
 *   weights.safetensors    every parameter by name: fp32, or bf16 where these are their own master
 *   optimizer.safetensors  its arrays: m.<name> and v.<name> of AdamW, momentum.<name> of SGD; where
 *                          they have 8 bits, their scales m.<name>.scale; absent where there are none
 *   predictor.safetensors  slot0.<name>, slot1.<name>, tail.<name>, snapshot.<name>: where there are
 *   trainer.json           progress, cursor, what the run was made of
 *   config.cfg             the configuration as printed
 *   matmul-algorithms      on a GPU: which algorithm each matmul runs, as the backend writes it
 *
 * Saving and restoring walk a file's pieces in the same order; a piece is one tensor of the file. Pieces
 * pass through a staging block of the host, wherever their backing store is. fp32 and bf16 are converted
 * into each other when a run keeps the other one. */
#ifndef HY_TRAINER_STATE_FILES_H
#define HY_TRAINER_STATE_FILES_H

#include "formats/safetensors.h"
#include "trainer/trainer.h"

#define HY_ALGORITHMS_FILE "matmul-algorithms"
#define HY_STATE_NAME_MAX (HY_PARAM_NAME_MAX + 16)
#define HY_STATE_STAGING (8u << 20) /* bytes that pass between file and device at a time */

/* Stores of a state file; a tensor is named after its part and its parameter, "m.final_norm.weight", or
 * after the parameter alone where the part has no name. */
typedef struct hy_state_file {
    const char *name;
    int32_t part_count;
    struct {
        const char *name;
        hy_store *store;
    } part[4];
} hy_state_file;

#define HY_STATE_FILES_MAX 3
/* How many of them this run has. */
int hy_state_files(hy_trainer *t, hy_state_file files[HY_STATE_FILES_MAX]);

/* One tensor of a file: the elements that mean something, and where they are in their class. */
typedef struct hy_state_piece {
    char name[HY_STATE_NAME_MAX];
    hy_dtype dtype;
    int32_t ndim;
    int64_t shape[2];
    hy_store *store;
    uint64_t offset;   /* from the start of the class */
    int64_t count;     /* elements in the file */
    int64_t in_memory; /* with the padding behind them, which is zero */
} hy_state_piece;

/* Begin with {0}. */
typedef struct hy_state_cursor {
    int32_t part, item;
    bool is_at_scales;
} hy_state_cursor;

/* The next piece; false after the last. */
bool hy_state_next(const hy_trainer *t, const hy_state_file *file, hy_state_cursor *cursor,
                   hy_state_piece *out);
int32_t hy_state_pieces(const hy_trainer *t, const hy_state_file *file);

#endif
