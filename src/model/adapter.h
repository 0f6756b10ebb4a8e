/* adapter.h: the names of the matrices that adapters belong to, and of modules that are trained
 * whole in addition to adapters. shape.h defines an adapter. */
#pragma once

#include "model/params.h"

/* The parts that a comma-separated list means in this shape: the modules of its family (q_proj
 * ... down_proj; c_attn, attn.c_proj, c_fc, mlp.c_proj, and c_proj for both), short names (q, k,
 * v, o, gate, up, down), attention, mlp, all. HY_ERR_INPUT names an unknown entry and the
 * accepted names. */
hy_status hy_adapter_parts_named(const hy_shape *shape, const char *names, int32_t *parts);
/* The module of each part in its family's files, as in "q_proj"; a module of several parts
 * occurs once. Ends with NULL. */
#define HY_ADAPTER_MODULES 16
void hy_adapter_modules(const hy_shape *shape, int32_t parts, const char *out[HY_ADAPTER_MODULES]);

/* ---- trained whole --------------------------------------------------------------------------- */

/* Our name pattern for a module that is trained whole: "lm_head", "model.norm",
 * "model.layers.3.input_layernorm" or "q_proj", or the words embed and head; without a layer, in
 * all layers. A name means what it does in the model's own family, else in the first other one
 * that has it: post_attention_layernorm is before the mlp in Llama, after attention in Gemma.
 * False: it is none of these. */
bool hy_adapter_module_params(hy_arch own, const char *module, size_t length, char *out,
                              size_t size);
/* Modules that share one matrix here (q_proj, k_proj, v_proj; gate_proj, up_proj) are trained
 * together: HY_ERR_INPUT names those that the list lacks. */
hy_status hy_adapter_check_modules(const char *names);
/* Checks that PEFT's format can store what is marked as trained whole (hy_params_mark_beside):
 * whole modules that have no adapter. HY_ERR_INPUT names a wrong parameter and what is accepted. */
hy_status hy_adapter_check_beside(const hy_params *params);
