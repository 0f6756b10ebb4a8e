/* state_files.h: which row goes into which file of a checkpoint, under which names.
 *
 *   weights.safetensors    every parameter by name: fp32, or bf16 if bf16 is the master; frozen ones
 *                          as in the run; quantised ones with their scales <name>.scale: fp32, or
 *                          the bytes of two-level scales. If adapters train on a base model in a
 *                          folder: only the trained parameters
 *   optimizer.safetensors  its arrays, as m.<name> and v.<name>; if 8-bit, also m.<name>.scale
 *   predictor.safetensors  slot0.<name>, slot1.<name>, tail.<name>, snapshot.<name>, if they exist;
 *                          if 8-bit, slot0 relative to the weights (kernels/grid.h) and
 *                          slot1.<name>.scale
 *   trainer.json           progress, data position, inputs of the run
 *   config.cfg             the configuration as printed
 *   caller.bin             the bytes that the program of a custom model or loop saves, if any
 *   matmul-algorithms      on a GPU: the algorithm of each matmul, as the backend writes it
 *
 * Saving and restoring visit a file's tensors in the same order. Tensors pass through a staging
 * block on the host, wherever their backing store is. fp32, 16-bit and quantised values are converted
 * into each other if a run uses another type. */
#pragma once

#include "base/json.h"
#include "base/text.h"
#include "engine/engine.h"
#include "formats/safetensors.h"

#define HY_ALGORITHMS_FILE "matmul-algorithms"
#define HY_STATE_NAME_MAX (HY_PARAM_NAME_MAX + 16)
#define HY_STATE_STAGING (8u << 20) /* bytes copied between file and device at a time */

/* Names and number of the files that hold rows of this engine. */
#define HY_STATE_FILES_MAX 3
int hy_state_files(const hy_engine *e, const char *names[HY_STATE_FILES_MAX]);

/* One tensor of a file: its elements without padding, and their position in their class. */
typedef struct hy_state_tensor {
    char name[HY_STATE_NAME_MAX];
    hy_dtype dtype;
    int32_t ndim;
    int64_t shape[HY_PARAM_DIMS];
    int32_t param;
    int32_t row, item; /* its first item there; -1: other ranks hold all of it */
    int64_t run;       /* elements of each item: tiles, or all elements */
    int32_t block;     /* quantised, in a sharded row: elements that share a scale */
    uint64_t scales;   /* quantised: position of the scales, from the start of the class */
    bool is_scale;     /* the tensor holds the scales of the tensor before it */
    hy_dtype codes;    /* scales: the type of the tensor before it */
    int64_t count;     /* elements in the file */
    int64_t in_memory; /* elements in memory: those of the file and padding of zeros */
    int zero;          /* the byte that encodes zero */
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
/* The position of element `first` in its class; *count is reduced to the elements that follow
 * without a gap. False: they belong to another rank. */
bool hy_state_find(const hy_engine *e, const hy_state_tensor *tensor, int64_t first, int64_t *count,
                   uint64_t *offset);

/* ---- checkpoint_save.c, checkpoint_read.c ---------------------------------------------------- */

/* With several ranks, one rank creates the files of the checkpoint, all write their parts, and
 * that rank completes it. */
struct hy_checkpoint;
hy_status hy_checkpoint_make_files(hy_engine *e, struct hy_checkpoint *checkpoint);
hy_status hy_checkpoint_write_parts(hy_engine *e, const char *folder);
/* Adds rows, algorithms and the given trainer.json and config.cfg to a checkpoint that was
 * begun. */
hy_status hy_checkpoint_write_state(hy_engine *e, struct hy_checkpoint *checkpoint,
                                    const hy_text *progress, const char *config);

/* Reads the config.cfg of a checkpoint. The names of the starting model and adapter are returned
 * separately, because their files may be gone. */
typedef struct hy_saved_config {
    hy_config *config;
    char model[HY_TEXT_MAX], adapter[HY_TEXT_MAX]; /* "": not in the file */
} hy_saved_config;
hy_status hy_checkpoint_read_config(const char *checkpoint, hy_saved_config *out);
void hy_saved_config_free(hy_saved_config *saved); /* {0} too */

/* The checkpoint that `from` names: itself, or the newest complete one of a run folder. */
hy_status hy_checkpoint_find(const hy_observer *observer, const char *from, char path[HY_PATH_MAX]);
/* Names, shapes and types are checked against this engine's model before the first tensor is
 * loaded. */
hy_status hy_checkpoint_read_rows(hy_engine *e, const char *path);
hy_status hy_checkpoint_read_weights(hy_engine *e, const char *path);
/* Whether the checkpoint holds only trained parameters, because its base model is in files. Its
 * trainer.json says so; for older checkpoints the tensor names decide. */
#define HY_LACKS_BASE "lacks_base"
hy_status hy_checkpoint_lacks_base(const char *path, bool *out);
/* Whether the checkpoint belongs to a run that trains adapters. */
hy_status hy_checkpoint_has_adapters(const char *path, bool *out);
/* The weights as in OUT/model: their average if the run has one. */
hy_status hy_checkpoint_read_model(hy_engine *e, const char *path);
/* HY_ERR_INPUT if its trainer.json belongs to a custom model, which only its own program can
 * compute. */
hy_status hy_checkpoint_must_be_ours(const hy_json_node *progress, const char *path);
/* The sum of the weights that a run averages, and the factor that gives the average; *sum is
 * NULL if there is none. The caller closes it. */
hy_status hy_checkpoint_open_sum(const char *path, hy_safetensors **sum, double *scale);
/* The scales of a coded tensor in a file, or NULL. */
const hy_safetensors_entry *hy_scales_of(const hy_safetensors *file, const char *name);
/* Elements [first, first + count) of a parameter's tensor of any type as fp32; `raw` needs room
 * for as many. */
hy_status hy_read_floats(const hy_safetensors *file, const hy_safetensors_entry *entry,
                         const hy_param *param, int64_t first, int64_t count, float *out,
                         char *raw);
/* Loads the matmul algorithms of the checkpoint, if it has any; call it before plans are made. */
hy_status hy_checkpoint_read_algorithms(hy_engine *e, const char *path);
