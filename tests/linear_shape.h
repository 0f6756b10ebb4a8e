/* linear_shape.h: a small model with linear attention in most layers, and gates of the attention in
 * the others, for tests of passes. No two of its sizes are equal. */
#ifndef HY_TESTS_LINEAR_SHAPE_H
#define HY_TESTS_LINEAR_SHAPE_H

#include "model/shape.h"

static inline hy_shape linear_shape(void) {
    return (hy_shape){.arch = HY_ARCH_QWEN35,
                      .layers = 5,
                      .width = 16,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_size = 8,
                      .mlp_width = 24,
                      .vocab = 701,
                      .context = 24,
                      .is_rms = true,
                      .has_rope = true,
                      .is_gated = true,
                      .has_qk_norm = true,
                      .norm_eps = 1e-6,
                      .rope_theta = 10000,
                      .init_std = 0.1,
                      .more = {.rope = {.share = 0.5},
                               .norm_offset = 1,
                               .has_gates = true,
                               .linear = {.key_heads = 3,
                                          .heads = 6,
                                          .key_dim = 7,
                                          .value_dim = 5,
                                          .taps = 3,
                                          .layers = "llf"}}};
}

#endif
