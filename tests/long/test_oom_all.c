/* test_oom_all.c: the long form of tests/test_oom.c. In every use, each allocation is refused once;
 * then with some or all of the allocations after it; then memory is short, and freed memory can be
 * allocated again. */
#include "oom/rows.h"

#define ALLOCATIONS .what = "allocations", .kinds = FAULT_ALLOCATIONS
#define LAUNCHES .what = "launches", .kinds = FAULT_BIT(FAULT_LAUNCH)
#define SHORTAGE .what = "shortage", .kinds = FAULT_BIT(FAULT_HEAP) | FAULT_BIT(FAULT_ARENA)
#define FOREVER 1000000

/* A run has about a thousand allocations and some thousand launches; with these it is some minutes
 * in all. */
static const refusals of_training[] = {
    {ALLOCATIONS, .every = 5, .must_go_on = true},
    {ALLOCATIONS, .every = 41, .times = FOREVER, .cannot_save = true},
    {LAUNCHES, .every = 31, .must_go_on = true},
    {LAUNCHES, .every = 307, .times = 3},
    {LAUNCHES, .every = 607, .times = FOREVER, .cannot_save = true},
    {SHORTAGE, .every = 41, .shortage = 1 << 18},
    {SHORTAGE, .every = 97, .shortage = 1 << 20},
};
static const refusals of_uses[] = {
    {ALLOCATIONS, .first = 60, .every = 1, .most = 150},
    {ALLOCATIONS, .every = 1, .most = 20, .times = FOREVER},
};

int main(void) {
    int good = 0, bad = 0;
    rows_open();
    for (int i = 0; i < oom_scenario_count; i++) {
        const scenario *s = &oom_scenarios[i];
        int count = s->is_training ? (int)(sizeof of_training / sizeof *of_training)
                                   : (int)(sizeof of_uses / sizeof *of_uses);
        rows_of(s->name, s->is_training ? of_training : of_uses, count, &good, &bad);
    }
    return rows_close(good, bad);
}
