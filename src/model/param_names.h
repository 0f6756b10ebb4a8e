/* param_names.h: the names of our parameters, and the parameters that a list of names means.
 *
 * Names are stored in checkpoints and never change. Settings (trained parameters, optimizer
 * groups) use name patterns. */
#pragma once

#include "model/params.h"

/* What a parameter of this kind is called within its unit: "attn.qkv.weight". */
const char *hy_param_kind_name(hy_param_kind kind, bool is_gated);
/* The kind of the weight in the same module: for a bias the kind before it, else the kind
 * itself. */
hy_param_kind hy_param_weight_of(hy_param_kind kind);

/* Marks the parameters that a comma-separated list means: `*` matches any letters, `?` one and
 * `2-5` a number, as in "blocks.3.attn.*" and "blocks.0-3.*"; "all" means all parameters; "last:N"
 * the last N blocks, the final norm and the head, but not a head that shares the embedding's table:
 * training that would need a backward pass through all blocks. Other marks stay. HY_ERR_INPUT names
 * an entry that matches nothing. */
hy_status hy_params_match(const hy_params *params, const char *names, bool *is_meant);
/* Trains the parameters that `names` means and freezes the others; unchanged after a failure. */
hy_status hy_params_select(hy_params *params, const char *names);
/* For a model with adapters: parameters that `names` means, except adapters, are trained whole. */
hy_status hy_params_mark_beside(hy_params *params, const char *names);
