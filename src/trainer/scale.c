/* scale.c: see scale.h.
 *
 * Every change reads the checkpoint and the beginning again, so the weights at a scale do not depend
 * on the scales before it. Optimizer state stays as it is: a scaled run is measured, not trained. */
#include "trainer/scale.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "record/saved_weights.h"

#define BLOCK (1 << 20) /* elements that are written at a time */

static hy_status check(const hy_trainer *t) {
    HY_TRY(hy_trainer_must_run(t));
    HY_TRY(hy_trainer_must_have_passes(t, "scaling"));
    HY_FAIL_IF(t->team, HY_ERR_STATE,
               "weights are scaled by one process; this run has several ranks");
    HY_FAIL_IF(!t->provider->facts.has_model_files, HY_ERR_STATE,
               "only models of this program are scaled, not custom ones");
    HY_FAIL_IF(!t->resumed[0], HY_ERR_STATE,
               "only a run that was resumed from a checkpoint (resume) has weights to scale");
    return HY_OK;
}

static hy_status write_param(const hy_trainer *t, hy_saved_weights *from, int32_t param,
                             float *numbers, char *raw) {
    hy_engine *e = t->engine;
    hy_store *store = hy_store_of(e, HY_ROW_MASTER);
    int32_t item = hy_store_item_of(store, param);
    const hy_layout_item *entry = &store->layout.items[item];
    for (int64_t first = 0; first < entry->count; first += BLOCK) {
        int64_t count = entry->count - first < BLOCK ? entry->count - first : BLOCK;
        HY_TRY(hy_saved_weights_read(from, param, first, count, numbers));
        hy_convert(numbers, HY_F32, count, raw, entry->dtype);
        HY_TRY(hy_store_put(store, e->device.compute, item, first, count, raw));
    }
    return HY_OK;
}

static hy_status write_weights(const hy_trainer *t, hy_saved_weights *from) {
    const hy_params *params = &t->engine->model->params;
    float *numbers = malloc(BLOCK * sizeof *numbers);
    char *raw = malloc(BLOCK * sizeof(float));
    hy_status status =
        numbers && raw ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory to scale weights");
    for (int32_t i = 0; i < params->count && status == HY_OK; i++) {
        if (params->list[i].is_trainable) status = write_param(t, from, i, numbers, raw);
    }
    free(numbers);
    free(raw);
    return status;
}

/* The average of the run's last part is scaled like the weights, and becomes them. */
static hy_status scale_weights(hy_trainer *t, hy_saved_weights *from, double scale) {
    HY_FAIL_IF(!realpath(t->resumed, from->path), HY_ERR_IO, "cannot read %s: %s", t->resumed,
               strerror(errno));
    HY_TRY(hy_saved_weights_open(from));
    HY_TRY(hy_saved_weights_scale(from, t->settings, scale));
    t->status.life = HY_LIFE_CHANGING;
    t->engine->progress.average_samples = 0;
    hy_row_changed(t->engine->state, HY_ROW_MASTER);
    HY_TRY(write_weights(t, from));
    t->status.life = HY_LIFE_READY;
    return HY_OK;
}

hy_status hy_trainer_set_scale(hy_trainer *t, double scale) {
    hy_saved_weights from = {0};
    HY_TRY(check(t));
    hy_status status = scale_weights(t, &from, scale);
    hy_saved_weights_close(&from);
    if (status == HY_OK) t->is_scaled = true;
    return status;
}
