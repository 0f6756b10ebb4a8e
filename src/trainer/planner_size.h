/* planner_size.h: what a choice needs, asked of the model, the layouts and the backend.
 *
 * A sizer stands for one model, one set of types and one device. Batch plans are made for sizing alone:
 * the backend is asked what ops need, and prepares none. What was asked once is kept. */
#ifndef HY_TRAINER_PLANNER_SIZE_H
#define HY_TRAINER_PLANNER_SIZE_H

#include "model/model.h"
#include "trainer/planner.h"

/* One class of the state. */
typedef struct hy_sized_class {
    bool is_there;
    int copies;          /* stores of this layout: one for each array of the optimizer */
    hy_layout layout;    /* of one of them */
    hy_ring_plan *rings; /* by depth and layers that stay; not asked for yet: no bytes */
    uint64_t on_disk,
        staging; /* of one of them, were it there: in the file, and pinned beside it */
} hy_sized_class;

#define HY_SIZED_TYPES 2
#define HY_SIZED_PASSES 1024

/* A batch plan that was asked for. */
typedef struct hy_sized_pass {
    int32_t batch, chunks, recompute_layers, ring_depth; /* as asked for */
    hy_recompute recompute;
    bool offloads, is_eval;
    hy_dtype dtype;
    hy_batch_bytes bytes;
    double forward, backward; /* seconds of embedding and layers */
    double head;
} hy_sized_pass;

/* How fast ops are. */
typedef struct hy_plan_speed {
    hy_rates rates;
    double few_tiles;  /* of results: a matmul with so many runs at half its rate */
    double op_seconds; /* that every op costs */
} hy_plan_speed;

typedef struct hy_sizer {
    hy_model *model;
    hy_backend *backend;
    hy_plan_speed speed;
    int32_t seq;
    bool has_doc_starts;            /* document masks are given with every batch */
    uint64_t budget;                /* of the device; 0: all it has */
    hy_dtype types[HY_SIZED_TYPES]; /* that training computes in; the first is Full's */
    int type_count;
    hy_dtype eval_types[HY_SIZED_TYPES]; /* that evaluation computes in */
    int eval_type_count;
    int32_t eval_batch; /* 0: as many training batches as there is room for */
    hy_dtype grad_dtype;
    uint64_t sums;  /* workspace of sums over the state */
    uint64_t rings; /* of the predictor: behind what evaluation uses of the work area */
    hy_sized_class state[HY_PLAN_STATES];
    uint64_t kept, kept_on_disk, kept_staging; /* by the predictor: pinned, or on disk */
    uint64_t
        moved_optim; /* host bytes for optimizer state in Predict, while it lives on the device */
    hy_sized_pass *passes;
    int32_t pass_count;
} hy_sizer;

/* What is not state is set by the caller before. The
 * three functions are those of a problem whose user is the sizer. */
hy_status hy_sizer_begin(hy_sizer *z);
hy_status hy_sizer_add_class(hy_sizer *z, int cls, hy_dtype dtype, int copies);
void hy_sizer_end(hy_sizer *z);
hy_status hy_sizer_work(void *sizer, const hy_plan_choice *choice, hy_plan_work *out);
void hy_sizer_state(void *sizer, const hy_plan_choice *choice, hy_plan_state *out);
int32_t hy_sizer_chunks(void *sizer, int32_t batch, uint64_t logits);

/* planner_ops.c: seconds that the ops of a pass compute, the head's chunked ops as often as they run. */
hy_plan_speed hy_plan_speed_of(const hy_backend *backend, const hy_rates *rates);
double hy_plan_pass_seconds(const hy_batch_plan *plan, const hy_unit_plan *unit, hy_pass pass,
                            const hy_plan_speed *speed);

#endif
