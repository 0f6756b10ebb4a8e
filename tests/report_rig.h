/* report_rig.h: folders of runs for the tests of src/report, written as hybrid-train writes
 * them. */
#ifndef HY_TESTS_REPORT_RIG_H
#define HY_TESTS_REPORT_RIG_H

#include <math.h>
#include <stdarg.h>
#include <sys/stat.h>

#include "harness.h"
#include "hybrid_report.h"

typedef struct run_rig {
    char root[256], folder[512], lines[600];
} run_rig;

static inline void rig_make_named(run_rig *rig, const char *name) {
    temp_folder(rig->root);
    snprintf(rig->folder, sizeof rig->folder, "%s/%s", rig->root, name);
    must(hy_dir_make(rig->folder));
    snprintf(rig->lines, sizeof rig->lines, "%s/metrics.jsonl", rig->folder);
}

static inline void rig_make(run_rig *rig) { rig_make_named(rig, "mine"); }
static inline void rig_remove(run_rig *rig) { remove_folder(rig->root); }

static inline void rig_put_bytes(const char *path, const char *mode, const void *data,
                                 size_t size) {
    FILE *file = fopen(path, mode);
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

static inline void rig_put(const char *path, const char *mode, const char *text) {
    rig_put_bytes(path, mode, text, strlen(text));
}

/* Writes a file beside the metrics. */
static inline void rig_file(const run_rig *rig, const char *name, const char *text) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", rig->folder, name);
    rig_put(path, "w", text);
}

static inline void rig_begin(const run_rig *rig, const char *text) {
    rig_put(rig->lines, "w", text);
}
static inline void rig_add(const run_rig *rig, const char *text) { rig_put(rig->lines, "a", text); }

/* A line of a step with what every step has. */
static inline void rig_step(const run_rig *rig, int step, const char *phase, double loss) {
    char line[400];
    snprintf(line, sizeof line,
             "{\"step\":%d,\"phase\":\"%s\",\"loss\":%.9g,\"lr\":0.001,\"tokens\":%d,"
             "\"elapsed\":%d,\"seconds\":1,\"tokens_per_second\":64,\"spent\":%d}\n",
             step, phase, loss, 64 * step, step, step);
    rig_add(rig, line);
}

/* `rows` lines with everything a card's run has; the loss falls, with a spike at `spike`. */
static inline void rig_long_run(const run_rig *rig, int rows, int spike) {
    FILE *file = fopen(rig->lines, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file,
            "{\"event\":\"start\",\"step\":0,\"spent\":0,\"elapsed\":0,\"time\":1763200000,"
            "\"model\":\"nano\",\"vram_budget_bytes\":%lld,\"thresholds\":{\"target\":0.92,"
            "\"warning\":0.94,\"critical\":0.96,\"emergency\":0.98}}\n",
            16LL << 30);
    for (int i = 1; i <= rows; i++) {
        double noise = (double)((unsigned)i * 2654435761u % 1000u) / 1000;
        double loss = i == spike ? 77.25 : 2 + 4 * exp(-i / 9000.0) + 0.1 * noise;
        fprintf(file,
                "{\"step\":%d,\"phase\":\"%s\",\"loss\":%.16g,\"lr\":%.17g,\"grad_norm\":%.9g,"
                "\"tokens\":%lld,\"tokens_per_second\":%.16g,\"seconds\":%.17g,\"elapsed\":%.17g,"
                "\"confidence\":0.75,\"precision\":\"bf16\",\"batch_size\":8,\"grad_accum\":4,"
                "\"vram_bytes\":%lld,\"vram_peak_bytes\":%lld,\"vram_planned_bytes\":15032385536,"
                "\"vram_reserved_bytes\":16106127360,\"vram_free_bytes\":1073741824,"
                "\"host_pinned_bytes\":3221225472,\"host_resident_bytes\":%lld,"
                "\"memory_status\":\"normal\",\"memory\":{\"weights\":%d,\"grads\":%d,\"optim\":%d,"
                "\"activations\":%d,\"logits\":%d,\"workspace\":%d},\"pinned\":{\"master\":%d,"
                "\"optim\":1073741824},\"wait_seconds\":%.17g,\"bytes_moved\":%d,\"spent\":%d,"
                "\"mfu\":0.41,\"gpu_power_watts\":%.9g,\"gpu_temperature_c\":61,"
                "\"gpu_utilization\":0.99%s}\n",
                i, i % 20 < 15 ? "full" : "correct", loss, 3e-4 * (1 - (double)i / rows), noise,
                4096LL * i, 9000 + 1000 * noise, 0.4 + 0.1 * noise, 0.45 * i + 0.01 * noise,
                (9LL << 30) + i, (14LL << 30) + i % 977, (5LL << 30) + i, 1000000000 + i % 13,
                900000000 + i % 101, 800000000 + i % 11, 700000000 + i % 997, 60000000 + i % 7,
                50000000 + i % 3, 536870912 + i % 5, 0.01 * noise, 123456789 + i % 1001, i,
                300 + 10 * noise, i % 500 == 0 ? ",\"val_loss\":2.125" : "");
    }
    ck_assert_int_eq(fclose(file), 0);
}

static inline hy_run *rig_open(const run_rig *rig) {
    hy_run *run;
    must(hy_run_open(rig->folder, &run));
    return run;
}

static inline bool rig_refresh(hy_run *run) {
    bool has_changed;
    must(hy_run_refresh(run, &has_changed));
    return has_changed;
}

#endif
