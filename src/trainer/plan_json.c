/* plan_json.c: a plan as JSON, for --plan --json. See hybrid.h. */
#include "base/json.h"
#include "base/text.h"
#include "trainer/trainer.h"

static void put_classes(const hy_phase_summary *phase, hy_json_writer *w) {
    hy_json_open_object(w, "classes");
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_memory_cell *cell = &phase->memory[cls];
        if (cell->place == HY_NOWHERE) continue;
        hy_json_open_object(w, hy_class_name((hy_class)cls));
        hy_json_put_string(w, "place", hy_place_name(cell->place));
        hy_json_put_string(w, "dtype", hy_dtype_name(cell->dtype));
        hy_json_put_int(w, "bytes", (int64_t)cell->planned_bytes);
        hy_json_close_object(w);
    }
    hy_json_close_object(w);
}

static void put_plan(const hy_trainer *t, hy_json_writer *w) {
    hy_summary s;
    hy_plan_facts facts;
    hy_trainer_summary(t, &s);
    hy_trainer_plan_facts(t, &facts);
    hy_json_put_bool(w, "fits", facts.fits);
    if (!facts.fits) hy_json_put_string(w, "problem", facts.problem);
    hy_json_put_string(w, "model", s.model);
    hy_json_put_int(w, "parameters", s.parameters);
    hy_json_put_string(w, "device", s.device);
    hy_json_put_int(w, "vram_peak_bytes", (int64_t)facts.vram_bytes);
    hy_json_put_int(w, "host_pinned_bytes", (int64_t)facts.host_pinned_bytes);
    hy_json_put_int(w, "disk_bytes", 0);
    hy_json_put_int(w, "checkpoint_bytes", (int64_t)s.checkpoint_bytes);
    hy_json_open_object(w, "phases");
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        hy_json_open_object(w, hy_phase_name((hy_phase)i));
        hy_json_put_int(w, "vram_bytes", (int64_t)s.phases[i].vram_planned_bytes);
        put_classes(&s.phases[i], w);
        hy_json_close_object(w);
    }
    hy_json_close_object(w);
}

hy_status hy_trainer_plan_json(const hy_trainer *t, char **out) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    put_plan(t, &w);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    hy_status status = hy_text_status(&text);
    if (status != HY_OK) hy_text_free(&text);
    *out = text.data;
    return status;
}
