/* recipe.c: replaces `auto` in optimizer and schedule. See recipe.h. */
#include "config/recipe.h"

#include "base/error.h"
#include "config/derived.h"
#include "model/params.h"
#include "optim/optimizer.h"

/* Fails only if memory is short: a wrong shape is reported where the model is built. */
static hy_status pays_muon(const hy_settings *s, bool *out) {
    hy_shape shape;
    hy_params params;
    hy_optimizer muon = hy_optimizer_from_settings(s);
    int64_t tokens = s->train.batch_size * s->train.grad_accum_steps * s->train.seq_len;
    if (s->train.step_tokens > 0) tokens = s->train.step_tokens;
    if (hy_shape_from_settings(s, &shape) != HY_OK) return HY_OK;
    hy_status status = hy_params_init(&params, &shape);
    if (status != HY_OK) return status == HY_ERR_MEMORY ? status : HY_OK;
    muon.kind = hy_optimizer_kind_of(HY_MUON);
    double share = hy_optimizer_share(&muon, &params, tokens), most = hy_muon_share_most(&params);
    hy_params_fini(&params);
    *out = share > 0 && share <= most;
    return HY_OK;
}

/* Settings that only AdamW supports. */
static bool needs_adamw(const hy_settings *s) {
    return s->phases.predictor != HY_PREDICTOR_NONE && s->phases.predictor_dtype == HY_DTYPE_8BIT;
}

hy_status hy_recipe_of(const hy_settings *s, bool is_own, bool wants_optimizer, hy_recipe *out) {
    bool is_from_scratch = !is_own && !hy_settings_bring_weights(s), is_muon = false;
    bool may_be_muon = wants_optimizer && is_from_scratch && !needs_adamw(s) && !s->lora.lora;
    if (may_be_muon) HY_TRY(pays_muon(s, &is_muon));
    out->optimizer = is_muon ? "muon" : "adamw";
    out->schedule = is_from_scratch ? "wsd" : "cosine";
    return HY_OK;
}
