/* inference.c: the handle of a loaded model: create, query, close. See hybrid.h. */
#include "infer/inference.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sized.h"

#define LONGEST_CONTEXT 8192 /* default context: enough for a conversation */
#define SHORTEST_CONTEXT 127 /* not halved further */

/* ---- memory ---------------------------------------------------------------------------------- */

/* A default context is halved until keys and values use at most half of the device. Chunks are
 * short: memory for weights counts more than the speed of long prompts. */
static hy_status make_decoder(hy_inference *in, int32_t asked) {
    hy_used_model *m = in->model;
    int32_t context = m->engine->model->shape.context;
    uint64_t limit = hy_budget_device(&m->engine->request); /* 0: no limit */
    if (context > LONGEST_CONTEXT) context = LONGEST_CONTEXT;
    hy_batch_decoder_options options = {.context = asked > 0 ? asked : context,
                                        .chunk = HY_DECODE_CHUNK,
                                        .vocab = in->codec.vocab,
                                        .goes_back = true,
                                        .dtype = m->engine->plan->types.of[HY_FULL],
                                        .is_unprepared = !m->engine->device.backend->facts.is_gpu,
                                        .budget = limit};
    uint64_t most = asked > 0 || limit == 0 ? UINT64_MAX : limit / 2;
    return hy_solo_create(m->engine->model, m->engine->device.backend, &options, most,
                          SHORTEST_CONTEXT, &in->solo.decoder);
}

hy_status hy_inference_place(hy_inference *in) {
    hy_engine *e = in->model->engine;
    if (in->is_placed) return HY_OK;
    HY_TRY(hy_solo_place(&in->solo, e->device.compute, e->work->arena.data,
                         hy_store_of(e, HY_ROW_MASTER), NULL));
    in->is_placed = true;
    return HY_OK;
}

/* ---- the handle ------------------------------------------------------------------------------ */

static hy_status open_all(hy_inference *in, const hy_config *config,
                          const hy_inference_options *options, const hy_observer *observer) {
    HY_TRY(hy_model_open(config, observer, &in->model));
    HY_TRY(hy_codec_open(&in->codec, in->model, options));
    HY_TRY(make_decoder(in, options->context));
    uint64_t bytes = hy_batch_decoder_bytes(in->solo.decoder);
    HY_TRY(hy_model_load(in->model, bytes, in->weights_from));
    hy_engine *e = in->model->engine;
    HY_TRY(hy_arena_init(&e->work->arena, e->device.backend, &e->state->ledger, HY_DEVICE, bytes,
                         "keys and values"));
    return hy_inference_place(in);
}

hy_status hy_inference_open(const hy_config *config, const hy_inference_options *options,
                            const hy_observer *observer, hy_inference **out) {
    *out = NULL;
    hy_inference *in = calloc(1, sizeof *in);
    if (!in) return hy_fail(HY_ERR_MEMORY, "not enough memory for a model");
    hy_status status =
        open_all(in, config, options ? options : &(hy_inference_options){0}, observer);
    if (status == HY_OK)
        *out = in;
    else
        hy_inference_close(in);
    return status;
}

void hy_inference_close(hy_inference *in) {
    if (!in) return;
    if (in->model && in->model->engine->device.compute) {
        (void)in->model->engine->device.backend->stream_sync(
            in->model->engine->device.compute); /* a failure was reported */
    }
    hy_inference_forget(in);
    hy_ids_free(&in->known);
    hy_batch_decoder_destroy(in->solo.decoder);
    hy_model_close(in->model);
    hy_codec_close(&in->codec);
    free(in);
}

void hy_inference_describe_sized(const hy_inference *in, hy_inference_facts *out, size_t size) {
    const hy_used_model *m = in->model;
    const hy_batch_decoder_options *o = hy_batch_decoder_facts(in->solo.decoder);
    hy_inference_facts facts = {
        .model = m->settings.model,
        .weights = in->weights_from,
        .device = m->engine->device.backend->facts.name,
        .tokenizer = in->codec.tokenizer_path,
        .chat_template = hy_codec_template(&in->codec),
        .parameters = m->engine->model->params.elements,
        .vocab = m->engine->model->shape.vocab,
        .context = o->context,
        .dtype = o->dtype,
        .weights_place = hy_store_of(m->engine, HY_ROW_MASTER)->place,
        .weights_bytes = hy_store_of(m->engine, HY_ROW_MASTER)->layout.bytes,
        .cache_bytes = hy_batch_decoder_cache_bytes(in->solo.decoder) +
                       hy_batch_decoder_states(in->solo.decoder)->bytes,
        .message_format = in->codec.format,
        .is_trained_format = in->codec.is_trained_format,
    };
    hy_copy_sized(out, size, &facts, sizeof facts);
}

/* ---- adapters -------------------------------------------------------------------------------- */

const char *hy_inference_adapter(const hy_inference *in, size_t i) {
    const hy_adapters *a = &in->model->adapters;
    return i < (size_t)a->set.count ? a->set.list[i].name : NULL;
}

const char *hy_inference_adapter_used(const hy_inference *in) {
    return hy_adapters_name(&in->model->adapters, in->model->adapters.used);
}

static hy_status refuse_adapter(const hy_adapters *a, const char *name) {
    hy_text known = {0};
    for (int32_t i = 0; i < a->set.count; i++) hy_text_addf(&known, "%s, ", a->set.list[i].name);
    hy_status status = hy_fail(HY_ERR_INPUT, "adapter %.200s is not loaded; accepted: %snone", name,
                               hy_text_string(&known));
    hy_text_free(&known);
    return status;
}

hy_status hy_inference_use_adapter(hy_inference *in, const char *name) {
    hy_adapters *a = &in->model->adapters;
    HY_FAIL_IF(a->set.count == 0, HY_ERR_INPUT,
               "no adapter is loaded: name adapters when you open the model");
    bool is_none = !name || strcmp(name, "none") == 0;
    int32_t i = is_none ? HY_BASE_ALONE : hy_adapters_find(a, name);
    if (i == HY_NO_ADAPTER) return refuse_adapter(a, name);
    if (i == a->used) return HY_OK;
    HY_TRY(hy_solo_go_back(&in->solo, 0));
    return hy_adapters_use(a, in->model->engine, i);
}

/* ---- stopping -------------------------------------------------------------------------------- */

void hy_inference_request_stop(hy_inference *in) { atomic_store(&in->stop_requested, true); }
