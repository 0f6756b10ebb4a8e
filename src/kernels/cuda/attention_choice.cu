/* attention_choice.cu: chooses between our own attention and cuDNN's. See attention_choice.cuh.
 *
 * The order of precedence: an earlier choice for the shape in this run; the options; the table of a
 * checkpoint; the cache file; a timing. Without tuning, nothing is timed and the cache is not used:
 * our own. A choice is recorded even if cuDNN does not support the shape, so that the run stays
 * with our own if it continues where cuDNN does. */
#include "kernels/cuda/attention_choice.cuh"

#include "kernels/cuda/matmul.cuh"

/* cuDNN must be faster than this times ours, because ours needs no extra memory and no library. */
#define CLEARLY 0.98f

/* ---- the key of a choice --------------------------------------------------------------------- */

/* Documents, windows, sparse blocks, capped scores, sinks, and other types and head sizes always use our own. */
static bool has_choice(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_heads_attr *a = &call->attr.heads;
    bool has_window = a->window > 0 && a->window < a->seq;
    return hy_cuda_attention_is_fast(cuda, call) && !hy_has(hy_attention_doc_starts(call)) &&
           !has_window && !hy_heads_are_sparse(a) && a->softcap == 0 &&
           !hy_has(hy_attention_sinks(call));
}

static hy_attention_entry entry_for(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_heads_attr *a = &call->attr.heads;
    hy_attention_entry e = {};
    memcpy(e.card, cuda->choices->card, sizeof e.card);
    e.version = cuda->cudnn ? cuda->cudnn->version : 0;
    e.key = {call->kind, hy_attention_qkv(call)->dtype, a->batch, a->seq, a->heads, a->kv_heads,
             a->head_dim};
    return e;
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* Chooses for the call; a timed result is added to the cache. */
static void choose_anew(hy_cuda *cuda, const hy_op_call *call, const hy_cudnn_attention *offer,
                        hy_attention_entry *e) {
    const hy_attention_entry *known = hy_attention_find(&cuda->choices->table, e);
    bool may_time = cuda->options.tune != HY_TUNE_OFF;
    if (!known && may_time) known = hy_attention_find(&cuda->choices->cache, e);
    if (known) {
        *e = *known;
    } else if (may_time && hy_attention_time(cuda, call, offer, &e->own_us, &e->cudnn_us)) {
        e->is_cudnn = e->cudnn_us < CLEARLY * e->own_us;
        hy_matmul_cache_add_attention(cuda, e);
    }
}

static bool find_made(const hy_cuda *cuda, hy_attention_entry *e) {
    pthread_mutex_lock(&cuda->choices->lock);
    const hy_attention_entry *made = hy_attention_find(&cuda->choices->made, e);
    if (made) *e = *made;
    pthread_mutex_unlock(&cuda->choices->lock);
    return made != NULL;
}

bool hy_attention_choose(hy_cuda *cuda, const hy_op_call *call, const hy_cudnn_attention *offer) {
    if (!has_choice(cuda, call)) return false;
    hy_attention_entry e = entry_for(cuda, call);
    if (find_made(cuda, &e)) return e.is_cudnn && offer;
    if (cuda->captures > 0) return false; /* nothing can be timed now, so nothing is decided */
    if (cuda->options.attention == HY_ATTENTION_CUDNN) {
        e.is_cudnn = offer != NULL;
    } else if (cuda->options.attention == HY_ATTENTION_AUTO && offer) {
        choose_anew(cuda, call, offer, &e);
    }
    pthread_mutex_lock(&cuda->choices->lock);
    /* If there is no memory to remember the choice, it is made again next time. */
    hy_attention_put(&cuda->choices->made, &e);
    pthread_mutex_unlock(&cuda->choices->lock);
    return e.is_cudnn;
}

bool hy_attention_is_cudnn(const hy_cuda *cuda, const hy_op_call *call) {
    hy_attention_entry e = entry_for(cuda, call);
    return find_made(cuda, &e) && e.is_cudnn;
}

bool hy_attention_was_cudnn(const hy_cuda *cuda, const hy_op_call *call) {
    hy_attention_entry e = entry_for(cuda, call);
    const hy_attention_entry *known = hy_attention_find(&cuda->choices->table, &e);
    return known && known->is_cudnn;
}

/* ---- creating and destroying ----------------------------------------------------------------- */

hy_status hy_attention_choices_init(hy_cuda *cuda) {
    hy_attention_choices *choices = (hy_attention_choices *)calloc(1, sizeof *choices);
    if (!choices)
        return hy_cuda_fail(cuda, HY_ERR_MEMORY, "attention: not enough memory for its choices");
    pthread_mutex_init(&choices->lock, NULL);
    snprintf(choices->card, sizeof choices->card, "%.48s/sm_%d/%d", cuda->backend.facts.name,
             cuda->card.capability, cuda->card.multiprocessors);
    for (char *c = choices->card; *c; c++) {
        if (*c == ' ' || *c == '\t') *c = '_';
    }
    cuda->choices = choices;
    return HY_OK;
}

void hy_attention_choices_fini(hy_cuda *cuda) {
    hy_attention_choices *choices = cuda->choices;
    if (!choices) return;
    hy_attention_clear(&choices->made);
    hy_attention_clear(&choices->table);
    hy_attention_clear(&choices->cache);
    pthread_mutex_destroy(&choices->lock);
    free(choices);
    cuda->choices = NULL;
}
