/* test_oom_all.c: the long form of tests/test_oom.c: every allocation of every use, one after the other,
 * refused once; some of them with all that follow; and shortages, in which what is given back can be had
 * again. */
#include "oom/rows.h"

#define ALLOCATIONS "allocations", FAULT_ALLOCATIONS
#define LAUNCHES "launches", FAULT_BIT(FAULT_LAUNCH)
#define SHORTAGE "shortage", FAULT_BIT(FAULT_HEAP) | FAULT_BIT(FAULT_ARENA)

int main(void) {
    static const refusals of_training[] = {
        {ALLOCATIONS, .every = 1},
        {ALLOCATIONS, .every = 17, .times = 1000000},
        {LAUNCHES, .every = 7},
        {LAUNCHES, .every = 101, .times = 4},
        {LAUNCHES, .every = 211, .times = 1000000},
        {SHORTAGE, .every = 11, .shortage = 4096},
        {SHORTAGE, .every = 31, .shortage = 1 << 20},
    };
    static const refusals of_uses[] = {
        {ALLOCATIONS, .first = 1000, .every = 37},
        {ALLOCATIONS, .every = 131, .times = 1000000},
    };
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
