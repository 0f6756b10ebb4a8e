/* dump.c: writes a run for another program. See dump.h. */
#include "gpu_loss/dump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "formats/safetensors.h"

/* ---- weights --------------------------------------------------------------------------------- */

static hy_status put_weights(hy_trainer *t, hy_safetensors_writer *writer) {
    const hy_params *params = &t->engine->model->params;
    for (int32_t i = 0; i < params->count; i++) {
        size_t bytes = (size_t)params->list[i].stored * sizeof(float);
        float *host = malloc(bytes);
        if (!host) return hy_fail(HY_ERR_MEMORY, "no memory for %s", params->list[i].name);
        hy_status status = t->engine->device.backend->copy(
            t->engine->device.compute, host,
            hy_store_backing(hy_store_of(t->engine, HY_ROW_MASTER), i), bytes);
        if (status == HY_OK)
            status = t->engine->device.backend->stream_sync(t->engine->device.compute);
        if (status == HY_OK) status = hy_safetensors_put(writer, host, bytes);
        free(host);
        HY_TRY(status);
    }
    return HY_OK;
}

static hy_status write_weights(hy_trainer *t, const char *path) {
    const hy_params *params = &t->engine->model->params;
    hy_safetensors_writer *writer = NULL;
    hy_safetensors_entry *entries = calloc((size_t)params->count, sizeof *entries);
    if (!entries) return hy_fail(HY_ERR_MEMORY, "no memory to list %d tensors", params->count);
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *p = &params->list[i];
        entries[i] = (hy_safetensors_entry){.name = p->name,
                                            .dtype = HY_F32,
                                            .ndim = p->ndim,
                                            .shape = {hy_param_stored_rows(p), p->shape[1]}};
    }
    hy_status status = hy_safetensors_create(path, entries, (size_t)params->count, NULL, &writer);
    if (status == HY_OK) status = put_weights(t, writer);
    if (status == HY_OK) {
        status = hy_safetensors_finish(writer, NULL, NULL);
    } else {
        hy_safetensors_abandon(writer);
    }
    free(entries);
    return status;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static hy_status write_rows(const hy_trainer *t, hy_split split, uint64_t count, const char *path) {
    size_t seq = (size_t)t->settings->train.seq_len;
    int32_t *tokens = malloc((seq + 1) * sizeof *tokens), *targets = malloc(seq * sizeof *targets);
    FILE *file = tokens && targets ? fopen(path, "wb") : NULL;
    bool is_written = file != NULL;
    for (uint64_t i = 0; i < count && is_written; i++) {
        hy_dataset_fill(t->data.set, split, i, tokens, targets, NULL);
        tokens[seq] = targets[seq - 1];
        is_written = fwrite(tokens, sizeof *tokens, seq + 1, file) == seq + 1;
    }
    if (file && fclose(file) != 0) is_written = false;
    free(tokens);
    free(targets);
    return is_written ? HY_OK : hy_fail(HY_ERR_IO, "could not write %s", path);
}

/* As validation counts them (evaluate.c). */
static uint64_t held_out_rows(const hy_trainer *t) {
    uint64_t all = hy_dataset_describe(t->data.set)->sequences[HY_VAL];
    uint64_t wanted = (uint64_t)(t->settings->eval.eval_batches * t->engine->plan->choice.batch);
    return wanted && wanted < all ? wanted : all;
}

/* ---- settings -------------------------------------------------------------------------------- */

static void add_number(hy_text *json, const char *key, double value) {
    char text[HY_NUMBER_MAX];
    hy_text_addf(json, "%s\n  \"%s\": %s", json->size > 1 ? "," : "", key,
                 hy_number_format(value, text));
}

static hy_status write_settings(const hy_trainer *t, const char *path) {
    const hy_settings *s = t->settings;
    const hy_shape *shape = &t->engine->model->shape;
    hy_text json = {0};
    hy_text_add(&json, "{");
    add_number(&json, "vocab", shape->vocab);
    add_number(&json, "layers", shape->layers);
    add_number(&json, "width", shape->width);
    add_number(&json, "heads", shape->heads);
    add_number(&json, "norm_eps", shape->norm_eps);
    add_number(&json, "seq", (double)s->train.seq_len);
    add_number(&json, "micro_batch", (double)s->train.batch_size);
    add_number(&json, "micro_batches", (double)s->train.grad_accum_steps);
    add_number(&json, "steps", (double)t->loop->steps_total);
    add_number(&json, "lr", t->loop->schedule.lr);
    add_number(&json, "min_lr_ratio", t->loop->schedule.min_ratio);
    add_number(&json, "warmup_steps", (double)t->loop->schedule.warmup);
    add_number(&json, "cooldown", t->loop->schedule.cooldown);
    hy_text_addf(&json, ",\n  \"schedule\": \"%s\"",
                 hy_choice_name("schedule", (int)t->loop->schedule.kind));
    hy_text_addf(&json, ",\n  \"cooldown_shape\": \"%s\"",
                 hy_choice_name("cooldown_shape", (int)t->loop->schedule.cooldown_shape));
    add_number(&json, "beta1", t->engine->plan->optimizer.beta1);
    add_number(&json, "beta2", t->engine->plan->optimizer.beta2);
    add_number(&json, "eps", t->engine->plan->optimizer.eps);
    add_number(&json, "weight_decay", t->engine->plan->optimizer.weight_decay);
    add_number(&json, "grad_clip", t->engine->plan->optimizer.max_norm);
    hy_text_add(&json, "\n}\n");
    hy_status status = hy_text_status(&json);
    if (status == HY_OK) status = hy_file_write_atomic(path, json.data, json.size);
    hy_text_free(&json);
    return status;
}

static hy_status check(const hy_trainer *t) {
    const hy_shape *s = &t->engine->model->shape;
    bool is_gpt2 = !s->is_rms && !s->has_rope && !s->is_gated && s->has_qkv_bias &&
                   s->has_proj_bias && s->has_tied_head && s->kv_heads == s->heads;
    if (!is_gpt2) return hy_fail(HY_ERR_INPUT, "only GPT-2 shapes can be written for the peer");
    if (t->engine->plan->predictor.kind != HY_PREDICTOR_NONE) {
        return hy_fail(HY_ERR_INPUT, "the peer knows predictor = none alone");
    }
    return HY_OK;
}

hy_status gl_dump(hy_trainer *t, const char *folder) {
    char path[4][HY_PATH_MAX];
    static const char *const names[] = {"weights.safetensors", "train.i32", "val.i32", "run.json"};
    uint64_t rows = (uint64_t)(t->loop->steps_total * t->engine->plan->choice.batch *
                               t->engine->plan->choice.accum);
    HY_TRY(check(t));
    for (int i = 0; i < 4; i++) HY_TRY(hy_path_join(path[i], sizeof path[i], folder, names[i]));
    HY_TRY(write_weights(t, path[0]));
    HY_TRY(write_rows(t, HY_TRAIN, rows, path[1]));
    HY_TRY(write_rows(t, HY_VAL, held_out_rows(t), path[2]));
    return write_settings(t, path[3]);
}
