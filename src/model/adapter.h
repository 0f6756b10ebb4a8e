/* adapter.h: the names of the matrices that adapters stand beside, and of modules that are trained
 * whole beside them. See shape.h for what an adapter is. */
#pragma once

#include "model/params.h"

/* Which parts a list of names means in this shape, commas between them: the modules of its family
 * (q_proj ... down_proj; c_attn, attn.c_proj, c_fc, mlp.c_proj, and c_proj for both), short names
 * (q, k, v, o, gate, up, down), attention, mlp, all. HY_ERR_INPUT names an entry that means nothing
 * here, and what there is. */
hy_status hy_adapter_parts_named(const hy_shape *shape, const char *names, int32_t *parts);
/* The module of each part in its family's files, as in "q_proj"; one that parts share comes once.
 * Ends with NULL. */
#define HY_ADAPTER_MODULES 8
void hy_adapter_modules(const hy_shape *shape, int32_t parts, const char *out[HY_ADAPTER_MODULES]);

/* ---- trained whole --------------------------------------------------------------------------- */

/* What a module that is trained whole is called here, as a pattern of names: of "lm_head",
 * "model.norm", "model.layers.3.input_layernorm" or "q_proj", and of the words embed and head;
 * without a layer, of all layers. False: it is none of these. */
bool hy_adapter_module_params(const char *module, size_t length, char *out, size_t size);
/* Modules that are one matrix here (q_proj, k_proj, v_proj; gate_proj, up_proj) are trained
 * together: HY_ERR_INPUT names those that a list lacks. */
hy_status hy_adapter_check_modules(const char *names);
/* What is marked as trained whole (hy_params_mark_beside) can be kept as PEFT has it: whole
 * modules, none of which has an adapter too. HY_ERR_INPUT names a parameter that is not so, and
 * what is accepted. */
hy_status hy_adapter_check_beside(const hy_params *params);
