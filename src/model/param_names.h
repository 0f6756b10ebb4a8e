/* param_names.h: what our parameters are called, and which of them a list of names means.
 *
 * Names stand in checkpoints and never change. Settings (what is trained, groups of the optimizer)
 * name parameters by patterns. */
#pragma once

#include "model/params.h"

/* What a parameter of this kind is called within its unit: "attn.qkv.weight". */
const char *hy_param_kind_name(hy_param_kind kind, bool is_gated);
/* The kind of the weight in the same module: of a bias the kind before it, else the kind itself. */
hy_param_kind hy_param_weight_of(hy_param_kind kind);

/* Marks the parameters that a list of names means, commas between them: `*` stands for any letters
 * and `?` for one, as in "blocks.3.attn.*"; "all" for all parameters; "last:N" for the last N
 * blocks, the final norm and the head, but not for a head that is the embedding's table too:
 * training that would take a backward pass through all blocks. Other marks stay. HY_ERR_INPUT names
 * an entry that matches nothing. */
hy_status hy_params_match(const hy_params *params, const char *names, bool *is_meant);
/* Trains the parameters that `names` means and freezes the others; changes nothing if it fails. */
hy_status hy_params_select(hy_params *params, const char *names);
/* For a model with adapters: parameters that `names` means, adapters apart, are trained whole. */
hy_status hy_params_mark_beside(hy_params *params, const char *names);
