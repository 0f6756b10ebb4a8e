/* sample.c: text continued by the model. See hybrid.h.
 *
 * Tokens are bytes. Each new one costs a forward pass over the window before it; past the window's length
 * the oldest half is let go. The choice is a pure function of the seed and the position. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "kernels/half.h"
#include "trainer/trainer.h"

typedef struct sampler {
    hy_trainer *trainer;
    const hy_sample_options *options;
    int32_t *window; /* (T): tokens so far, from the first kept one */
    int32_t length, capacity;
    float *logits;  /* (V) */
    int32_t *order; /* (V): candidates, likeliest first */
    void *raw;      /* (V) in the plan's type */
} sampler;

static float logit_at(const void *raw, hy_dtype dtype, int64_t i) {
    if (dtype == HY_F32) return ((const float *)raw)[i];
    uint16_t half = ((const uint16_t *)raw)[i];
    return dtype == HY_BF16 ? hy_bf16_to_f32(half) : hy_f16_to_f32(half);
}

static hy_status next_logits(sampler *s) {
    hy_trainer *t = s->trainer;
    hy_batch_plan *plan = t->sample_plan;
    int64_t vocab = t->model->shape.vocab;
    hy_store *weights;
    for (int32_t i = s->length; i < s->capacity; i++) s->window[i] = 0; /* not seen: causal */
    HY_TRY(hy_trainer_weights(t, plan->size.dtype, &weights));
    size_t bytes = (size_t)plan->size.seq * sizeof(int32_t);
    HY_TRY(t->backend->copy(t->compute, t->buffers.tokens, s->window, bytes));
    hy_batch_input input = {.stream = t->compute,
                            .weights = weights,
                            .tokens = t->buffers.tokens,
                            .targets = t->buffers.targets,
                            .rope = t->buffers.rope,
                            .losses = t->buffers.losses};
    HY_TRY(hy_batch_logits(plan, &input, s->length - 1, 1));
    size_t size = (size_t)vocab * hy_dtype_size(plan->size.dtype);
    HY_TRY(t->backend->copy(t->compute, s->raw, plan->logits, size));
    HY_TRY(t->backend->stream_sync(t->compute));
    for (int64_t i = 0; i < vocab; i++) {
        s->logits[i] = logit_at(s->raw, plan->size.dtype, i);
    }
    return HY_OK;
}

/* Puts the `count` likeliest tokens in front, in order. */
static void rank_candidates(sampler *s, int32_t vocab, int32_t count) {
    for (int32_t i = 0; i < vocab; i++) s->order[i] = i;
    for (int32_t i = 0; i < count; i++) {
        int32_t best = i;
        for (int32_t j = i + 1; j < vocab; j++) {
            if (s->logits[s->order[j]] > s->logits[s->order[best]]) best = j;
        }
        int32_t swap = s->order[i];
        s->order[i] = s->order[best];
        s->order[best] = swap;
    }
}

static int32_t choose(sampler *s, int64_t position) {
    int32_t vocab = s->trainer->model->shape.vocab;
    const hy_sample_options *o = s->options;
    int32_t count = o->temperature <= 0 ? 1 : o->top_k > 0 && o->top_k < vocab ? o->top_k : vocab;
    rank_candidates(s, vocab, count < vocab ? count : 1);
    if (count == 1) return s->order[0];
    double top = s->logits[s->order[0]], sum = 0;
    for (int32_t i = 0; i < count; i++) {
        sum += exp((s->logits[s->order[i]] - top) / o->temperature);
    }
    double point = sum * hy_rng_uniform(o->seed, HY_RNG_SAMPLE, (uint64_t)position);
    for (int32_t i = 0; i < count; i++) {
        point -= exp((s->logits[s->order[i]] - top) / o->temperature);
        if (point < 0) return s->order[i];
    }
    return s->order[count - 1];
}

static void append(sampler *s, int32_t token) {
    if (s->length == s->capacity) {
        int32_t kept = s->capacity / 2;
        memmove(s->window, s->window + s->length - kept, (size_t)kept * sizeof *s->window);
        s->length = kept;
    }
    s->window[s->length++] = token;
}

static hy_status continue_text(sampler *s, hy_text *out) {
    const char *prompt = s->options->prompt && s->options->prompt[0] ? s->options->prompt : "\n";
    for (const char *c = prompt; *c; c++) append(s, (unsigned char)*c);
    for (int32_t i = 0; i < s->options->tokens; i++) {
        HY_TRY(next_logits(s));
        int32_t token = choose(s, i);
        char byte = token < 256 ? (char)token : '?';
        hy_text_add_bytes(out, &byte, 1);
        append(s, token);
    }
    return hy_text_status(out);
}

hy_status hy_trainer_sample(hy_trainer *t, const hy_sample_options *options, char **text,
                            size_t *size) {
    *text = NULL;
    HY_TRY(hy_trainer_must_run(t));
    if (t->model->shape.vocab < 256) {
        return hy_fail(HY_ERR_INPUT, "the model's vocabulary of %d tokens does not hold all bytes",
                       t->model->shape.vocab);
    }
    size_t vocab = (size_t)t->model->shape.vocab;
    sampler s = {.trainer = t, .options = options, .capacity = t->sample_plan->size.seq};
    s.window = malloc((size_t)s.capacity * sizeof *s.window);
    s.logits = malloc(vocab * sizeof *s.logits);
    s.order = malloc(vocab * sizeof *s.order);
    s.raw = malloc(vocab * sizeof(float));
    hy_text out = {0};
    hy_status status = s.window && s.logits && s.order && s.raw
                           ? continue_text(&s, &out)
                           : hy_fail(HY_ERR_MEMORY, "no memory to sample text");
    free(s.window);
    free(s.logits);
    free(s.order);
    free(s.raw);
    if (status != HY_OK) {
        hy_text_free(&out);
        return status;
    }
    hy_text_add(&out, ""); /* a string even when empty */
    if (size) *size = out.size;
    *text = out.data;
    return HY_OK;
}
