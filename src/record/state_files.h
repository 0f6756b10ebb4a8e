/* state_files.h: which row goes into which file of a checkpoint, under which names.
 *
 *   weights.safetensors    every parameter by name: fp32, or bf16 where these are their own master; frozen
 *                          ones as the run has them, of codes with their scales <name>.scale: fp32, or
 *                          the bytes of scales of two levels
 *   optimizer.safetensors  its arrays, as m.<name> and v.<name>; of 8 bits, their scales m.<name>.scale
 *   predictor.safetensors  slot0.<name>, slot1.<name>, tail.<name>, snapshot.<name>: where there are; of 8
 *                          bits, slot0 beside the weights (kernels/grid.h) and slot1.<name>.scale
 *   trainer.json           progress, cursor, what the run was made of
 *   config.cfg             the configuration as printed
 *   matmul-algorithms      on a GPU: which algorithm each matmul runs, as the backend writes it
 *
 * Saving and restoring walk a file's tensors in the same order. They
 * pass through a staging block of the host, wherever their backing store is. fp32, 16 bits and codes are
 * converted into each other when a run keeps another one. */
#pragma once

#include "base/json.h"
#include "base/text.h"
#include "engine/engine.h"
#include "formats/safetensors.h"

#define HY_ALGORITHMS_FILE "matmul-algorithms"
#define HY_STATE_NAME_MAX (HY_PARAM_NAME_MAX + 16)
#define HY_STATE_STAGING (8u << 20) /* bytes that pass between file and device at a time */

/* The files that hold rows of this engine now: names, how many. */
#define HY_STATE_FILES_MAX 3
int hy_state_files(const hy_engine *e, const char *names[HY_STATE_FILES_MAX]);

/* One tensor of a file: the elements that mean something, and where they are in their class. */
typedef struct hy_state_tensor {
    char name[HY_STATE_NAME_MAX];
    hy_dtype dtype;
    int32_t ndim;
    int64_t shape[HY_PARAM_DIMS];
    int32_t param;
    int32_t row, item; /* the first of its items there; -1: other ranks have all of it */
    int64_t run;       /* each of so many elements: tiles, or all that there are */
    int32_t block;     /* of codes in a row of shards: elements that share a scale */
    uint64_t scales;   /* of codes: where those are, from the start of the class */
    bool is_scale;     /* it is the scales of the tensor before it, */
    hy_dtype codes;    /* which has this type */
    int64_t count;     /* elements in the file */
    int64_t in_memory; /* with the padding behind them, which is zero */
    int zero;          /* the byte of which a zero is made */
} hy_state_tensor;

/* Begin with {.file = name}. */
typedef struct hy_state_cursor {
    const char *file;
    int32_t row, param;
    bool is_at_scales;
} hy_state_cursor;

/* The next tensor of the file; false after the last. */
bool hy_state_next(const hy_engine *e, hy_state_cursor *cursor, hy_state_tensor *out);
int32_t hy_state_tensors(const hy_engine *e, const char *file);
/* Where element `first` is in its class; *count is cut to those that lie behind it without a gap. False: another rank
 * has those. */
bool hy_state_find(const hy_engine *e, const hy_state_tensor *tensor, int64_t first, int64_t *count,
                   uint64_t *offset);

/* ---- checkpoint_save.c, checkpoint_read.c ---- */

/* Several ranks: one makes the files of a checkpoint that it has begun; all write their parts into its folder; then the
 * one goes on as if it were alone. */
struct hy_checkpoint;
hy_status hy_checkpoint_make_files(hy_engine *e, struct hy_checkpoint *checkpoint);
hy_status hy_checkpoint_write_parts(hy_engine *e, const char *folder);
/* Puts rows, algorithms and the given trainer.json and config.cfg into a checkpoint that was begun. */
hy_status hy_checkpoint_write_state(hy_engine *e, struct hy_checkpoint *checkpoint,
                                    const hy_text *progress, const char *config);

/* What its config.cfg says. The names of the model and of the adapter that the run began as stand beside the
 * configuration, not in it: their files may be gone. */
typedef struct hy_saved_config {
    hy_config *config;
    char model[HY_TEXT_MAX], adapter[HY_TEXT_MAX]; /* "": not said */
} hy_saved_config;
hy_status hy_checkpoint_read_config(const char *checkpoint, hy_saved_config *out);
void hy_saved_config_free(hy_saved_config *saved); /* {0} too */

/* The checkpoint that `from` names: itself, or the newest whole one of a run's folder. */
hy_status hy_checkpoint_find(const hy_observer *observer, const char *from, char path[HY_PATH_MAX]);
/* Names, shapes and types are all held against this engine's model before the first tensor is loaded. */
hy_status hy_checkpoint_read_rows(hy_engine *e, const char *path);
hy_status hy_checkpoint_read_weights(hy_engine *e, const char *path);
/* It is of a run whose adapters stand beside a model's files: it has what is trained alone. Its trainer.json says
 * so; of one from before it did, the tensors' names. */
#define HY_LACKS_BASE "lacks_base"
hy_status hy_checkpoint_lacks_base(const char *path, bool *out);
/* It is of a run that trains adapters. */
hy_status hy_checkpoint_has_adapters(const char *path, bool *out);
/* The weights as OUT/model has them: their average where the run has one. */
hy_status hy_checkpoint_read_model(hy_engine *e, const char *path);
/* HY_ERR_INPUT, by its trainer.json: it is of a caller's own model, which nobody else computes with. */
hy_status hy_checkpoint_must_be_ours(const hy_json_node *progress, const char *path);
/* The sum of the weights that a run averages, and what makes the average of it; *sum is NULL where there is
 * none. The caller closes it. */
hy_status hy_checkpoint_open_sum(const char *path, hy_safetensors **sum, double *scale);
/* The scales of a coded tensor in a file, or NULL. */
const hy_safetensors_entry *hy_scales_of(const hy_safetensors *file, const char *name);
/* Elements [first, first + count) of a parameter's tensor of any type as fp32; `raw` has room for as many of
 * them. */
hy_status hy_read_floats(const hy_safetensors *file, const hy_safetensors_entry *entry,
                         const hy_param *param, int64_t first, int64_t count, float *out,
                         char *raw);
/* The matmul algorithms it was made with, where there are any: before plans are made. */
hy_status hy_checkpoint_read_algorithms(hy_engine *e, const char *path);
