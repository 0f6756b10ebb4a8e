/* fuzz_metrics.c: a run's record of any bytes, read back.
 *
 * Whatever metrics.jsonl holds, a run opens: it has no more points and events than bytes, texts
 * that are there, and of each rank figures that can be asked for. The same bytes are summary.json
 * and plan.json, too. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "hybrid_report.h"
#include "scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define RANKS_MOST 256

static char folder[128];

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_metrics: %s: %s\n", what, hy_error_message());
    abort();
}

static void remove_folder(void) { (void)hy_dir_remove(folder); }

static void put(const char *name, const uint8_t *data, size_t size) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    put_scratch(path, data, size);
}

static void ask_ranks(const hy_run *run) {
    hy_rank_cost all, latest;
    int32_t rank = 0;
    for (; hy_run_rank(run, rank, false, &all); rank++) {
        require(hy_run_rank(run, rank, true, &latest), "a rank of all steps and not of the latest");
        require(all.steps > 0 && all.slowest >= 0 && all.slowest <= all.steps,
                "slowest in more steps than there were");
        require(all.steps == latest.steps, "other steps");
    }
    require(rank != 1 && rank <= RANKS_MOST, "one rank, or more than are counted");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hy_run *run;
    if (!folder[0]) {
        make_scratch(folder, sizeof folder);
        atexit(remove_folder);
    }
    put("metrics.jsonl", data, size);
    put("summary.json", data, size);
    put("plan.json", data, size);
    require(hy_run_open(folder, &run) == HY_OK, "a run that does not open");
    size_t points = hy_run_points(run), events = hy_run_events(run), length = 0;
    require(points + events <= size, "more lines than bytes");
    for (size_t i = 0; i < points; i++) length += strlen(hy_run_point_at(run, i)->reason);
    for (size_t i = 0; i < events; i++) length += strlen(hy_run_event_at(run, i)->text);
    const hy_run_facts *facts = hy_run_describe(run);
    length += strlen(facts->model) + strlen(facts->transport) + strlen(facts->command);
    require(length <= 64 * (size + 64) * (size + 64), "texts of another file");
    for (int phase = 0; phase < HY_PHASE_COUNT; phase++)
        (void)hy_run_planned_bytes(run, (hy_phase)phase, HY_DEVICE, HY_WEIGHTS);
    ask_ranks(run);
    hy_run_close(run);
    return 0;
}
