/* test_oom.c: refuses memory everywhere in a training run.
 *
 * A short run is repeated, each time with another of its allocations refused: each of the first 60,
 * each of the CPU's arenas, some later ones, and launches of ops and copies. Each time it must end
 * with the losses of the undisturbed run, or stop with a message and a checkpoint that continues to
 * the same losses. Nothing may crash, hang, leak, or leave a file or a thread. The rest of the
 * library is tested with fewer cases; tests/long/test_oom_all.c has all. See oom/trial.h. */
#include "oom/rows.h"

/* One refusal is always survived once a step is made. */
#define ALLOCATIONS .what = "allocations", .kinds = FAULT_ALLOCATIONS, .must_go_on = true
#define ARENAS .what = "arenas", .kinds = FAULT_BIT(FAULT_ARENA), .must_go_on = true
#define LAUNCHES .what = "launches", .kinds = FAULT_BIT(FAULT_LAUNCH), .must_go_on = true
#define SHORTAGE .what = "shortage", .kinds = FAULT_BIT(FAULT_HEAP) | FAULT_BIT(FAULT_ARENA)
#define ROWS(...)                                                                                  \
    (const refusals[]){__VA_ARGS__}, sizeof((refusals[]){__VA_ARGS__}) / sizeof(refusals)

int main(void) {
    int good = 0, bad = 0;
    rows_open();
    rows_of("a run with rewards",
            ROWS({ALLOCATIONS, .first = 60, .every = 41}, {ARENAS, .first = 200},
                 {LAUNCHES, .every = 83}, {SHORTAGE, .every = 211, .shortage = 1 << 18}),
            &good, &bad);
    rows_of("a run with moves",
            ROWS({ALLOCATIONS, .first = 60, .every = 41}, {ARENAS, .first = 200},
                 {LAUNCHES, .every = 83}, {SHORTAGE, .every = 211, .shortage = 1 << 18}),
            &good, &bad);
    rows_of("a run with muon in fp8", ROWS({LAUNCHES, .every = 401}), &good, &bad);
    rows_of("a run through rings", ROWS({ARENAS, .first = 200}, {LAUNCHES, .every = 997}), &good,
            &bad);
    rows_of("a predictor in 8 bits", ROWS({LAUNCHES, .every = 61}), &good, &bad);
    rows_of("a run with state on disk", ROWS({LAUNCHES, .every = 997}), &good, &bad);
    rows_of("a run with forks", ROWS({LAUNCHES, .every = 401}), &good, &bad);
    rows_of("a run planned anew", ROWS({ALLOCATIONS, .every = 83}), &good, &bad);
    rows_of("talking to a model", ROWS({ALLOCATIONS, .every = 997}), &good, &bad);
    rows_of("exporting a model", ROWS({ALLOCATIONS, .every = 29989}), &good, &bad);
    rows_of("exporting a quantised model", ROWS({ALLOCATIONS, .every = 29989}), &good, &bad);
    rows_of("tokenizers", ROWS({ALLOCATIONS, .every = 197}), &good, &bad);
    rows_of("a model of one's own", ROWS({ALLOCATIONS, .first = 40, .every = 17}), &good, &bad);
    rows_of("a loop of one's own",
            ROWS({ALLOCATIONS, .first = 40, .every = 197}, {LAUNCHES, .every = 197}), &good, &bad);
    rows_of("a loop with forks", ROWS({LAUNCHES, .every = 23}), &good, &bad);
    rows_of("a loop with units",
            ROWS({.what = "launches", .kinds = FAULT_BIT(FAULT_LAUNCH), .every = 61},
                 {.what = "allocations", .kinds = FAULT_ALLOCATIONS, .every = 97}),
            &good, &bad);
    rows_of("a report", ROWS({ALLOCATIONS, .every = 13}), &good, &bad);
    rows_of("a record that goes on", ROWS({ALLOCATIONS, .first = 200}), &good, &bad);
    return rows_close(good, bad);
}
