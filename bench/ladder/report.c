/* report.c: prints the ladder on standard output, row by row, and as JSON. See variants.h. */
#include "base/json.h"
#include "base/text.h"
#include "ladder/variants.h"
#include "save_text.h"

/* The change from the row that this one is based on. */
typedef struct change {
    double full_bytes, predict_bytes, pinned_bytes; /* measured */
    double speed;                                   /* ratio of tokens per second */
    double loss;                                    /* nats */
} change;

static double peak(const result *c, hy_phase phase) {
    return (double)c->run.summary.phases[phase].vram_peak_bytes;
}

static change change_of(const ladder *l, const result *c) {
    const result *base = &l->results[c->base];
    return (change){.full_bytes = peak(c, HY_FULL) - peak(base, HY_FULL),
                    .predict_bytes = peak(c, HY_PREDICT) - peak(base, HY_PREDICT),
                    .pinned_bytes =
                        (double)result_most(c, HY_PINNED) - (double)result_most(base, HY_PINNED),
                    .speed = phase_run_rate(&c->run, HY_FULL) / phase_run_rate(&base->run, HY_FULL),
                    .loss = c->run.val_loss - base->run.val_loss};
}

/* ---- standard output ------------------------------------------------------------------------- */

void ladder_print_heading(const ladder *l) {
    const phase_run *run = &l->results[0].run;
    printf("%s; %s\n"
           "%s, %lld parameters, %lld x %lld tokens per step; MiB on the device, planned and "
           "measured\n\n",
           run->device, run->matmul, l->model, (long long)run->summary.parameters,
           (long long)run->batch_size, (long long)run->seq_len);
    printf("%-20s %19s %19s %9s %9s %7s %9s   %s\n", "", "Full", "Predict", "pinned", "tokens/s",
           "waited", "loss", "change: Full, Predict, speed, loss");
}

static void print_change(const ladder *l, const result *c) {
    change d = change_of(l, c);
    printf("   %+9.2f %+9.2f  x%.2f  ", d.full_bytes * 0x1p-20, d.predict_bytes * 0x1p-20, d.speed);
    if (result_has_same_loss(l, c)) {
        printf("%-8s", "same");
    } else {
        printf("%+.5f", d.loss);
    }
    if (c->variant->based_on) printf("  from %s", c->variant->based_on);
}

void ladder_print_row(const ladder *l, int i) {
    const result *c = &l->results[i];
    const hy_phase_summary *full = &c->run.summary.phases[HY_FULL];
    const hy_phase_summary *predict = &c->run.summary.phases[HY_PREDICT];
    printf("%-20s %9.2f %9.2f %9.2f %9.2f %9.2f %9.0f %5.1f %% %9.5f", c->variant->name,
           (double)full->vram_planned_bytes * 0x1p-20, (double)full->vram_peak_bytes * 0x1p-20,
           (double)predict->vram_planned_bytes * 0x1p-20,
           (double)predict->vram_peak_bytes * 0x1p-20, (double)result_most(c, HY_PINNED) * 0x1p-20,
           phase_run_rate(&c->run, HY_FULL),
           full->seconds > 0 ? 100 * full->wait_seconds / full->seconds : 0, c->run.val_loss);
    if (c->base >= 0) print_change(l, c);
    printf("\n");
    if (variant_is_profile(c->variant)) {
        printf("  %s; %s\n", c->run.types, c->run.choices);
        for (int k = 0; k < c->run.plan.reason_count; k++) {
            printf("    %s\n", c->run.plan.reasons[k]);
        }
    }
    fflush(stdout);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_settings(hy_json_writer *w, const variant *v) {
    hy_json_open_object(w, "settings");
    for (int k = 0; k < VARIANT_PAIRS_MAX && v->pairs[k][0]; k++) {
        hy_json_put_string(w, v->pairs[k][0], v->pairs[k][1]);
    }
    hy_json_close_object(w);
}

static void put_phase(hy_json_writer *w, const result *c, hy_phase phase) {
    const hy_phase_summary *p = &c->run.summary.phases[phase];
    hy_json_open_object(w, hy_phase_name(phase));
    hy_json_put_int(w, "steps", p->steps);
    hy_json_put_int(w, "planned_bytes", (int64_t)p->vram_planned_bytes);
    hy_json_put_int(w, "measured_bytes", (int64_t)p->vram_peak_bytes);
    hy_json_put_int(w, "pinned_bytes", (int64_t)phase_measured(p, HY_PINNED));
    hy_json_put_int(w, "bytes_moved", (int64_t)p->bytes_moved);
    hy_json_put_double(w, "wait_seconds", p->wait_seconds);
    hy_json_put_double(w, "step_seconds", c->run.step_seconds[phase]);
    hy_json_close_object(w);
}

static void put_change(hy_json_writer *w, const ladder *l, const result *c) {
    change d = change_of(l, c);
    hy_json_put_string(w, "based_on", l->results[c->base].variant->name);
    hy_json_put_bool(w, "is_exact", c->variant->is_exact);
    hy_json_put_bool(w, "has_same_loss", result_has_same_loss(l, c));
    hy_json_open_object(w, "change");
    hy_json_put_double(w, "full_bytes", d.full_bytes);
    hy_json_put_double(w, "predict_bytes", d.predict_bytes);
    hy_json_put_double(w, "pinned_bytes", d.pinned_bytes);
    hy_json_put_double(w, "speed", d.speed);
    hy_json_put_double(w, "loss", d.loss);
    hy_json_close_object(w);
}

static void put_row(hy_json_writer *w, const ladder *l, const result *c) {
    hy_json_open_object(w, NULL);
    hy_json_put_string(w, "name", c->variant->name);
    hy_json_put_string(w, "types", c->run.types);
    hy_json_put_string(w, "choices", c->run.choices);
    put_settings(w, c->variant);
    put_phase(w, c, HY_FULL);
    put_phase(w, c, HY_PREDICT);
    hy_json_put_int(w, "pinned_bytes", (int64_t)result_most(c, HY_PINNED));
    hy_json_put_int(w, "host_bytes", (int64_t)result_most(c, HY_HOST));
    if (c->run.card_bytes) hy_json_put_int(w, "card_bytes", (int64_t)c->run.card_bytes);
    hy_json_put_double(w, "tokens_per_second", phase_run_rate(&c->run, HY_FULL));
    hy_json_put_double(w, "val_loss", c->run.val_loss);
    if (c->base >= 0) put_change(w, l, c);
    hy_json_close_object(w);
}

hy_status ladder_json_write(const ladder *l, const char *path) {
    const phase_run *run = &l->results[0].run;
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "version", HYBRID_VERSION);
    hy_json_put_string(&w, "model", l->model);
    hy_json_put_int(&w, "parameters", run->summary.parameters);
    hy_json_put_string(&w, "device", run->device);
    hy_json_put_string(&w, "matmul", run->matmul);
    hy_json_put_int(&w, "batch_size", run->batch_size);
    hy_json_put_int(&w, "seq_len", run->seq_len);
    hy_json_open_array(&w, "rows");
    for (int i = 0; i < l->count; i++) put_row(&w, l, &l->results[i]);
    hy_json_close_array(&w);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    return save_text(path, &text);
}
