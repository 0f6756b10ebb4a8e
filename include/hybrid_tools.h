/* hybrid_tools.h: memory savings, estimates, facts about the machine, and self-tests.
 *
 * Training needs only hybrid.h. Until version 0.3 hybrid.h includes this file, so that older
 * programs compile; new programs include it themselves.
 *
 * `size` in structs: see hybrid_types.h. */
#ifndef HYBRID_TOOLS_H
#define HYBRID_TOOLS_H

#include "hybrid.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory savings -------------------------------------------------------------------------- */

/* A technique that saves memory in this run, or could. */
typedef struct hy_saving {
    const char *name;  /* "recompute" */
    const char *key;   /* the setting that turns it on or off; "": there is none */
    const char *other; /* the value it is compared with; if it is off: the value that saves */
    char now[48];      /* its value in this run: "all, in 12 of 28 layers" */
    bool is_on;
    bool is_measured;                 /* from bytes in use; else from plans with and without it */
    int64_t device_bytes, host_bytes; /* that it saves or would save; negative: it costs memory */
    double
        seconds; /* of a step that it saves, by the planner's estimate; negative: it costs time */
    hy_phase phase; /* in which it saves the bytes; HY_PHASE_COUNT: in all */
} hy_saving;

#define HY_SAVINGS 16
typedef struct hy_savings {
    size_t size;
    int32_t count;
    hy_saving list[HY_SAVINGS];
} hy_savings;

/* Each technique is compared with the current run. If two techniques save the same bytes, their sum
 * is more than they save together. */
static inline hy_status hy_trainer_savings(const hy_trainer *trainer, hy_savings *out);

/* ---- estimates ------------------------------------------------------------------------------- */

/* Memory for forward and backward of one micro-batch. */
typedef struct hy_activation_estimate {
    size_t size;
    const char *recompute;   /* "none", "norm", "attention", "mlp", "all" */
    uint64_t activations;    /* kept from forward to backward */
    uint64_t workspace;      /* temporary memory of one unit, and its logits */
    uint64_t offloaded;      /* with activations_place = pinned: bytes on the host */
    uint64_t offload_device; /* and bytes of activations that remain on the device */
} hy_activation_estimate;

#define HY_RECOMPUTE_LEVELS 5
/* For the configured model and device (or card), at each level of recomputation in all layers.
 * batch or seq 0: as configured. Allocates nothing for the passes. */
static inline hy_status hy_estimate_activations(const hy_config *config, int64_t batch, int64_t seq,
                                                hy_activation_estimate out[HY_RECOMPUTE_LEVELS]);
/* As above, for a run or a plan. */
static inline hy_status
hy_trainer_estimate_activations(const hy_trainer *trainer, int64_t batch, int64_t seq,
                                hy_activation_estimate out[HY_RECOMPUTE_LEVELS]);

/* ---- rows as they are trained ---------------------------------------------------------------- */

typedef struct hy_row_token {
    int32_t id;
    bool counts;      /* in the loss */
    const char *text; /* may hold a part of a character; text_size bytes and a zero byte */
    size_t text_size;
} hy_row_token;

typedef struct hy_row_view {
    size_t size;
    const char *file; /* the row begins in this line of it, counted from 1 */
    int64_t line;
    const char *format;  /* kind of rows, chat template, and what counts */
    const char *dropped; /* why the row is not trained; "": it is */
    bool is_cut; /* the row, or its pair, is longer than a sequence; its end is not trained */
    int32_t part, parts; /* a long text or a pair becomes several: the number of this one, from 1 */
    const hy_row_token *tokens;
    size_t token_count;
    const char *answer;   /* of a pair: "chosen" or "rejected"; else "" */
    bool is_prompt;       /* the model answers it, and no token of it counts */
    const char *expected; /* of a prompt: the row's own answer, which is not trained; else "" */
} hy_row_view;
typedef void (*hy_row_callback)(void *user, const hy_row_view *row);

/* Calls on_row with the first `most` rows of each path of the configured data, as they are trained.
 * Rows that share a sequence are shown one by one. Reads no weights, no further rows, and writes
 * nothing. Structs and strings are valid during the call; observer may be NULL. HY_ERR_INPUT: the
 * data has no rows, or cannot be read. */
hy_status hy_show_rows(const hy_config *config, const hy_observer *observer, int64_t most,
                       hy_row_callback on_row, void *user);
/* A row as a JSON object in one line. Allocated; free with hy_free. */
hy_status hy_row_view_json(const hy_row_view *row, char **out);

/* ---- the machine ----------------------------------------------------------------------------- */

typedef struct hy_machine {
    size_t size;
    char cpu[128];
    int cores;              /* usable by this process */
    char blas[256];         /* library, version, core type */
    char blas_warning[512]; /* "" when there is none */
    double sgemm_gflops;    /* measured */
    uint64_t ram_total, ram_available;
    double host_copy_bytes_per_second; /* all cores copying: bytes read plus bytes written */
    uint64_t pin_limit;                /* bytes that can be pinned now; UINT64_MAX: all */
    char pin_reason[160];              /* where that limit comes from */
    uint64_t disk_free;                /* on the disk of the folder */
    double disk_read_bytes_per_second, disk_write_bytes_per_second;
    char disk_problem[512]; /* why the disk was not measured; "" when it was */
    bool is_wsl, is_container;
    char cuda[1024]; /* "found", or whether driver, device or backend is missing */
    bool has_cuda;   /* false: of what follows only driver, cuda_backend and cublas may be set */
    char driver[128];
    char gpu[128], gpu_detail[256];
    int gpu_capability; /* 90 for sm_90 */
    uint64_t vram_total, vram_free;
    double gpu_peak_flops, gpu_matmul_flops; /* bf16: data sheet (0: not known), measured */
    double gpu_memory_bytes_per_second;      /* bytes read plus bytes written */
    double upload_bytes_per_second;          /* from pinned memory, alone */
    double download_bytes_per_second;        /* to pinned memory, alone */
    double both_ways_bytes_per_second;       /* each way, when both run */
    char cuda_backend[512];                  /* path of libhybrid_cuda.so; "": not found */
    char cublas[1024]; /* version and path, or why it cannot be used; "": no backend */
} hy_machine;

/* Measures this machine, in about a second. `folder` chooses the disk: 64 MiB are written there and
 * removed again. */
static inline hy_status hy_machine_probe(const char *folder, hy_machine *out);

/* ---- self-test of a device ------------------------------------------------------------------- */

/* The self-test checks that a device computes correctly and measures its speed. On a GPU every op
 * is compared with the CPU at small shapes, in fp32, bf16 and fp16; on a CPU a few ops are compared
 * with known results. Then matmuls, attention and copies are timed. This takes some seconds. */
typedef struct hy_selftest_op {
    size_t size;
    const char *name;    /* "attention backward" */
    const char *dtype;   /* "bf16" */
    const char *tensor;  /* the output with the largest error */
    double error;        /* norm of the difference divided by the norm of the expected result */
    double allowed;      /* largest error that rounding to the type explains */
    bool is_ok;          /* the error is allowed, two runs had equal bits, the op was not refused */
    const char *message; /* what was wrong; "": nothing */
} hy_selftest_op;

typedef struct hy_selftest_rate {
    size_t size;
    const char *name; /* "matmul, bf16, 4096 x 4096 x 4096" */
    double value;
    const char *unit; /* "TFLOP/s", "GB/s" */
} hy_selftest_rate;

/* Called with each result. Structs and strings are valid during the call. Callbacks may be NULL. */
typedef struct hy_selftest_observer {
    void *user;
    void (*on_op)(void *user, const hy_selftest_op *op);
    void (*on_rate)(void *user, const hy_selftest_rate *rate);
} hy_selftest_observer;

typedef struct hy_selftest_result {
    size_t size;
    char device[128], detail[256];
    bool is_gpu;
    int capability; /* GPU: 90 for sm_90 */
    int ops, failures;
} hy_selftest_result;

/* `device` is "auto", "cpu", "cuda" or "cuda:N", as in the key of that name. HY_OK: the test ran to
 * its end; the result counts failures. observer may be NULL. */
static inline hy_status hy_selftest(const char *device, const hy_selftest_observer *observer,
                                    hy_selftest_result *out);

/* ---- self-test of ranks ---------------------------------------------------------------------- */

typedef enum hy_check_verdict {
    HY_CHECK_REPORTED = 0, /* information: it cannot pass or fail */
    HY_CHECK_PASSED = 1,
    HY_CHECK_FAILED = 2
} hy_check_verdict;

typedef struct hy_selftest_check {
    size_t size;
    const char *part; /* the group it belongs to: "exchanges over NCCL" */
    const char *name; /* "all-gather, 64 MiB" */
    const char *text; /* what was found or measured */
    hy_check_verdict verdict;
    const char *message; /* on failure: which rank, and what was wrong; else "" */
} hy_selftest_check;

/* Called on rank 0 with each result. Structs and strings are valid during the call. Callbacks may
 * be NULL. */
typedef struct hy_ranks_observer {
    void *user;
    void (*on_check)(void *user, const hy_selftest_check *check);
    void (*on_progress)(void *user, const char *what, double fraction); /* of the whole test */
} hy_ranks_observer;

typedef struct hy_ranks_result {
    size_t size;
    int32_t ranks;        /* 1: there is one rank, and nothing was tested */
    char transport[16];   /* that training would use: "NCCL", "MPI", "sockets" */
    int checks, failures; /* the same on all ranks */
} hy_ranks_result;

/* Tests whether several ranks work together on these machines. It lists the ranks and their links;
 * compares the collectives of training bit for bit with a local computation and times them, alone
 * and during matmuls; and makes short runs of a small model in each ZeRO stage, which it compares
 * with each other, with a single rank and with the plan. This takes about a minute.
 *
 * Every rank calls the function, started as for training. It reads device, threads, transport and
 * rank_timeout from the configuration. HY_OK: the test ran to its end; the result counts failures.
 * A single rank is tested only if transport is nccl; it then sends to itself. observer may be
 * NULL. */
static inline hy_status hy_selftest_ranks(const hy_config *config,
                                          const hy_ranks_observer *observer, hy_ranks_result *out);

/* ---- calls that pass the size of your struct: see hybrid_types.h ----------------------------- */

hy_status hy_trainer_savings_sized(const hy_trainer *trainer, hy_savings *out, size_t size);
static inline hy_status hy_trainer_savings(const hy_trainer *trainer, hy_savings *out) {
    return hy_trainer_savings_sized(trainer, out, sizeof *out);
}

hy_status hy_estimate_activations_sized(const hy_config *config, int64_t batch, int64_t seq,
                                        hy_activation_estimate *out, size_t size);
static inline hy_status hy_estimate_activations(const hy_config *config, int64_t batch, int64_t seq,
                                                hy_activation_estimate out[HY_RECOMPUTE_LEVELS]) {
    return hy_estimate_activations_sized(config, batch, seq, out, sizeof *out);
}

hy_status hy_trainer_estimate_activations_sized(const hy_trainer *trainer, int64_t batch,
                                                int64_t seq, hy_activation_estimate *out,
                                                size_t size);
static inline hy_status
hy_trainer_estimate_activations(const hy_trainer *trainer, int64_t batch, int64_t seq,
                                hy_activation_estimate out[HY_RECOMPUTE_LEVELS]) {
    return hy_trainer_estimate_activations_sized(trainer, batch, seq, out, sizeof *out);
}

hy_status hy_machine_probe_sized(const char *folder, hy_machine *out, size_t size);
static inline hy_status hy_machine_probe(const char *folder, hy_machine *out) {
    return hy_machine_probe_sized(folder, out, sizeof *out);
}

hy_status hy_selftest_sized(const char *device, const hy_selftest_observer *observer,
                            hy_selftest_result *out, size_t size);
static inline hy_status hy_selftest(const char *device, const hy_selftest_observer *observer,
                                    hy_selftest_result *out) {
    return hy_selftest_sized(device, observer, out, sizeof *out);
}

hy_status hy_selftest_ranks_sized(const hy_config *config, const hy_ranks_observer *observer,
                                  hy_ranks_result *out, size_t size);
static inline hy_status hy_selftest_ranks(const hy_config *config,
                                          const hy_ranks_observer *observer, hy_ranks_result *out) {
    return hy_selftest_ranks_sized(config, observer, out, sizeof *out);
}

#ifdef __cplusplus
}
#endif
#endif
