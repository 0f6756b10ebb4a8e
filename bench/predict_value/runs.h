/* runs.h: a run is one training of one arm with one learning rate, seed and budget.
 *
 * The key of a run is a hash of every setting, of the data and of the library's version; its result
 * is a line of OUT/runs.jsonl. Numbers are written so that they read back with the same bits. */
#ifndef PV_RUNS_H
#define PV_RUNS_H

#include "base/json.h"
#include "hybrid.h"
#include "options.h"

#define PV_POINTS_MAX 64

typedef struct pv_point {
    double spent, loss;
} pv_point;

typedef struct pv_run {
    int arm; /* indices in the options */
    double lr;
    int64_t seed;
    int64_t steps; /* the budget, in full steps */
    uint64_t key;
    bool is_done;
    bool has_diverged;     /* ended early: its losses are NaN */
    double loss;           /* held-out loss of the last weights */
    double average;        /* held-out loss of the tail average; NaN if there is none */
    double spent, seconds; /* seconds of training and jumps, without validation */
    int64_t true_steps, moves, rejected_moves, predicted_steps;
    char device[128];
    pv_point curve[PV_POINTS_MAX]; /* held-out losses during the run; the last one at the end */
    int points;
} pv_run;

/* All runs planned so far, in the order of execution. */
typedef struct pv_runs {
    pv_run *list;
    int count, capacity;
} pv_runs;

/* Adds a run unless one with the same settings exists; *index is its position. */
hy_status pv_runs_add(pv_runs *runs, const pv_options *o, int arm, double lr, int64_t seed,
                      int64_t steps, uint64_t data_hash, int *index);
void pv_runs_free(pv_runs *runs);
const pv_run *pv_runs_find(const pv_runs *runs, int arm, double lr, int64_t seed, int64_t steps);

/* Trains. HY_STOPPED if a signal requested it. `title` precedes the progress on a terminal. */
hy_status pv_run_make(pv_run *run, const pv_options *o, const char *title);

/* ---- journal.c: OUT/runs.jsonl ---- */

/* Marks the runs with a line as done. An incomplete last line is dropped. */
hy_status pv_journal_load(const char *out, pv_runs *runs);
void pv_run_put_json(hy_json_writer *w, const pv_run *run, const pv_options *o);
hy_status pv_journal_add(const char *out, const pv_run *run, const pv_options *o);

/* ---- stop.c: signals ---- */

void pv_stop_install(void);
void pv_stop_guard(hy_trainer *trainer); /* the trainer that a signal stops; NULL: none */
bool pv_stop_asked(void);

#endif
