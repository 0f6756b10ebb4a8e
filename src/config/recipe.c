/* recipe.c: what `auto` stands for. See recipe.h. */
#include "config/recipe.h"

#include "config/derived.h"
#include "model/params.h"
#include "optim/optimizer.h"

static bool pays_muon(const hy_settings *s) {
    hy_shape shape;
    hy_params params;
    hy_optimizer muon = hy_optimizer_from_settings(s);
    int64_t tokens = s->train.batch_size * s->train.grad_accum_steps * s->train.seq_len;
    if (s->train.step_tokens > 0) tokens = s->train.step_tokens;
    /* Whoever builds the model says what is wrong with it. */
    if (hy_shape_from_settings(s, &shape) != HY_OK) return false;
    if (hy_params_init(&params, &shape) != HY_OK) return false;
    muon.kind = hy_optimizer_kind_of(HY_MUON);
    double share = hy_optimizer_share(&muon, &params, tokens), most = hy_muon_share_most(&params);
    hy_params_fini(&params);
    return share > 0 && share <= most;
}

/* What goes with AdamW alone was asked for. */
static bool needs_adamw(const hy_settings *s) {
    return s->phases.predictor != HY_PREDICTOR_NONE && s->phases.predictor_dtype == HY_DTYPE_8BIT;
}

hy_recipe hy_recipe_of(const hy_settings *s, bool is_own, bool wants_optimizer) {
    bool is_from_scratch = !is_own && !hy_settings_bring_weights(s);
    bool may_be_muon = wants_optimizer && is_from_scratch && !needs_adamw(s) && !s->lora.lora;
    return (hy_recipe){.optimizer = may_be_muon && pays_muon(s) ? "muon" : "adamw",
                       .schedule = is_from_scratch ? "wsd" : "cosine"};
}
