/* evaluate.c: a run's held-out loss and its samples, between steps. See hybrid.h. */
#include "infer/sample.h"
#include "trainer/trainer.h"

/* eval_batches is in micro-batches of training, so that it does not depend on the plan. */
uint64_t hy_trainer_val_sequences(const hy_trainer *t) {
    uint64_t all = hy_dataset_describe(t->data.set)->sequences[HY_VAL];
    int64_t batches = t->settings.eval.eval_batches;
    uint64_t wanted = batches > 0 ? (uint64_t)(batches * t->first_batch) : all;
    return wanted < all ? wanted : all;
}

/* Nothing changes, so that a pass that meets a shortage can be made again. */
static hy_status validate(hy_trainer *t, bool uses_average, hy_probe *probe) {
    hy_engine *e = &t->engine;
    hy_dtype dtype = e->types.of[HY_FULL];
    hy_status status;
    do {
        *probe = (hy_probe){.data = t->data.set,
                            .split = HY_VAL,
                            .count = hy_trainer_val_sequences(t),
                            .dtype = dtype,
                            .of_candidate = uses_average};
        if (uses_average) hy_engine_propose(e, NULL, dtype);
        status = hy_engine_probe(e, e->work.eval[hy_plan_index(dtype)], probe);
        if (status != HY_OK) HY_TRY(hy_trainer_retry_with_less(t, status));
    } while (status != HY_OK);
    e->retries.in_a_row = 0;
    return HY_OK;
}

hy_status hy_trainer_evaluate(hy_trainer *t, hy_eval_info *info) {
    HY_TRY(hy_trainer_must_run(t));
    double begin = hy_clock();
    bool is_final = t->progress.spent >= (double)t->course.steps_total - 0.5;
    hy_probe probe;
    HY_TRY(validate(t, false, &probe));
    bool has_average = hy_has_row(&t->engine, HY_ROW_AVERAGE);
    if (is_final && has_average && t->engine.progress.average_samples > 0) {
        t->raw_val_loss = probe.mean;
        HY_TRY(validate(t, true, &probe));
    }
    t->progress.val_loss = probe.mean;
    t->progress.val_step = t->progress.step;
    if (info) {
        *info = (hy_eval_info){.step = t->progress.step,
                               .loss = probe.mean,
                               .tokens = probe.counted,
                               .seconds = hy_clock() - begin,
                               .is_final = is_final};
    }
    return HY_OK;
}

/* For the report. */
static void keep_sample(const hy_trainer *t, const char *prompt, const hy_text *sample) {
    hy_text json = {0};
    hy_json_writer w;
    if (!t->record.lock) return; /* nothing is written */
    hy_json_begin(&w, &json, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_int(&w, "step", t->progress.step);
    hy_json_put_string(&w, "prompt", prompt ? prompt : "");
    hy_json_put_string(&w, "text", hy_text_string(sample));
    hy_json_close_object(&w);
    hy_text_add(&json, "\n");
    hy_status status = hy_text_status(&json);
    if (status == HY_OK) status = hy_record_write(&t->record, "sample.json", json.data);
    if (status != HY_OK) hy_say(t, HY_WARNING, "%s", hy_error_message());
    hy_text_free(&json);
}

hy_status hy_trainer_sample(hy_trainer *t, const hy_sample_options *options, char **text,
                            size_t *size) {
    hy_text out = {0};
    *text = NULL;
    HY_TRY(hy_trainer_must_run(t));
    HY_TRY(hy_engine_sample(&t->engine, hy_dataset_tokenizer(t->data.set), options, &out));
    keep_sample(t, options->prompt, &out);
    if (size) *size = out.size;
    *text = out.data;
    return HY_OK;
}
