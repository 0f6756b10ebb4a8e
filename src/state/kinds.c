/* kinds.c: the table of row kinds. See kinds.h.
 *
 * Every kind has these columns, in order: what it holds, class, parameters, its place in a
 * choice, source, lifetime, need, sharding. Other columns are named, and 0 if omitted. */
#include "state/kinds.h"

#define NONE (-1)
#define TRAINED HY_SET_TRAINABLE
#define WEIGHTS "weights.safetensors"
#define OPTIMIZER "optimizer.safetensors"
#define PREDICTOR "predictor.safetensors"

const hy_state_kind hy_state_kinds[HY_KIND_COUNT] = {
    [HY_KIND_WEIGHTS] = {"weights", HY_WEIGHTS, TRAINED, HY_PLAN_WEIGHTS, NONE, HY_LASTING,
                         HY_NEEDED_ALWAYS, HY_SHARDED_WEIGHTS, .is_callers = true,
                         .is_restored = true, .file = WEIGHTS, .name = ""},
    [HY_KIND_MASTER] = {"master weights", HY_MASTER, TRAINED, HY_PLAN_MASTER, NONE, HY_LASTING,
                        HY_NEEDED_ALWAYS, HY_SHARDED_STATE, .is_restored = true, .file = WEIGHTS,
                        .name = ""},
    [HY_KIND_WORKING] = {"weights in 16 bits", HY_WEIGHTS, TRAINED, HY_PLAN_WEIGHTS, HY_ROW_MASTER,
                         HY_DERIVED, HY_NEEDED_ALWAYS, HY_SHARDED_WEIGHTS, .is_callers = true},
    [HY_KIND_FP8] = {"weights in fp8", HY_QUANTS, TRAINED, HY_PLAN_WEIGHTS, HY_ROW_MASTER,
                     HY_DERIVED, HY_NEEDED_ALWAYS, HY_WHOLE},
    [HY_KIND_FP8_GATHERED] = {"gathered weights in fp8", HY_WORKSPACE, TRAINED, NONE, HY_ROW_MASTER,
                              HY_EXCHANGED, HY_NEEDED_BY_STEPS, HY_WHOLE,
                              .ring_depth = HY_PARTIAL_DEPTH},
    [HY_KIND_FROZEN] = {"frozen weights", HY_WEIGHTS, HY_SET_FROZEN, HY_PLAN_WEIGHTS, NONE,
                        HY_LASTING, HY_NEEDED_ALWAYS, HY_SHARDED_BYTES, .file = WEIGHTS,
                        .name = ""},
    [HY_KIND_FROZEN_BASE] = {"frozen weights", HY_WEIGHTS, HY_SET_FROZEN, HY_PLAN_WEIGHTS, NONE,
                             HY_LASTING, HY_NEEDED_ALWAYS, HY_SHARDED_BYTES},
    [HY_KIND_GRADS] = {"gradients", HY_GRADS, TRAINED, HY_PLAN_GRADS, NONE, HY_PER_STEP,
                       HY_NEEDED_BY_STEPS, HY_SHARDED_STATE, .is_callers = true},
    [HY_KIND_OPTIM] = {"optimizer state", HY_OPTIM, TRAINED, HY_PLAN_OPTIM, NONE, HY_LASTING,
                       HY_NEEDED_BY_STEPS, HY_SHARDED_STATE, .is_restored = true,
                       .file = OPTIMIZER},
    [HY_KIND_SLOW] = {"buffers of the predictor", HY_PREDICTOR, TRAINED, NONE, NONE, HY_LASTING,
                      HY_NEEDED_BY_JUMPS, HY_WHOLE, .is_tiled = true, .is_restored = true,
                      .ring_depth = HY_TILE_RING_DEPTH, .file = PREDICTOR},
    [HY_KIND_SNAPSHOT] = {"the snapshot of the weights", HY_SNAPSHOT, TRAINED, NONE, NONE,
                          HY_LASTING, HY_NEEDED_BY_JUMPS, HY_WHOLE, .is_tiled = true,
                          .ring_depth = HY_TILE_RING_DEPTH, .file = PREDICTOR, .name = "snapshot"},
    [HY_KIND_AVERAGE] = {"the average of the weights", HY_PREDICTOR, TRAINED, NONE, NONE,
                         HY_LASTING, HY_NEEDED_ALWAYS, HY_WHOLE, .is_tiled = true,
                         .ring_depth = HY_TILE_RING_DEPTH, .file = PREDICTOR, .name = "tail"},
    [HY_KIND_CANDIDATE] = {"proposed weights", HY_WORKSPACE, TRAINED, NONE, HY_ROW_MASTER,
                           HY_ON_DEMAND, HY_NEEDED_BY_JUMPS, HY_WHOLE,
                           .ring_depth = HY_CANDIDATE_DEPTH},
    [HY_KIND_PARTIAL] = {"gradients of a micro-batch", HY_WORKSPACE, TRAINED, NONE, NONE,
                         HY_EXCHANGED, HY_NEEDED_BY_STEPS, HY_WHOLE,
                         .ring_depth = HY_PARTIAL_DEPTH},
    [HY_KIND_GATHERED] = {"gathered weights", HY_WORKSPACE, TRAINED, NONE, HY_ROW_MASTER,
                          HY_EXCHANGED, HY_NEEDED_ALWAYS, HY_WHOLE,
                          .ring_depth = HY_GATHERED_DEPTH},
    [HY_KIND_GATHERED_FROZEN] = {"gathered frozen weights", HY_WORKSPACE, HY_SET_FROZEN, NONE, NONE,
                                 HY_EXCHANGED, HY_NEEDED_ALWAYS, HY_WHOLE,
                                 .ring_depth = HY_FROZEN_DEPTH},
    [HY_KIND_DECODED] = {"decoded frozen weights", HY_WORKSPACE, HY_SET_FROZEN, NONE, NONE,
                         HY_EXCHANGED, HY_NEEDED_ALWAYS, HY_WHOLE, .ring_depth = HY_DECODED_DEPTH},
};
