/* pair_rows.h: a file of pairs of answers that a model of a few thousand weights learns: the right
 * sum before a wrong one. */
#ifndef HY_TESTS_PAIR_ROWS_H
#define HY_TESTS_PAIR_ROWS_H

#include "base/text.h"
#include "harness.h"

static char pair_folder[256], pair_rows[512];

static inline void write_rows(void) {
    hy_text text = {0};
    temp_folder(pair_folder);
    for (int i = 0; i < 120; i++) {
        int sum = i % 10 + i % 7;
        hy_text_addf(&text,
                     "{\"prompt\": \"%d+%d?\", \"chosen\": \"%d\", \"rejected\": \"no: %d\"}\n",
                     i % 10, i % 7, sum, sum + 1 + i % 3);
    }
    snprintf(pair_rows, sizeof pair_rows, "%s/pairs.jsonl", pair_folder);
    must(hy_file_write_atomic(pair_rows, text.data, text.size));
    hy_text_free(&text);
}

static inline void drop_rows(void) { remove_folder(pair_folder); }

#endif
