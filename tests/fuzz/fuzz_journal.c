/* fuzz_journal.c: a journal of rewards of any bytes.
 *
 * Whatever the file holds, it opens or is refused as input. If it opens, each rollout that is found
 * has finite values, a record can be added, and the file then opens again and has it. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "reward/journal.h"
#include "scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ROLLOUT 3
#define VALUES 2

static char folder[128], path[256];

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_journal: %s: %s\n", what, hy_error_message());
    abort();
}

static void remove_folder(void) { (void)hy_dir_remove(folder); }

static void check_added(void) {
    static const double values[VALUES] = {0.1, -2};
    double again[VALUES];
    bool is_found;
    hy_journal *journal;
    require(hy_journal_open(path, true, &journal) == HY_OK, "it does not open again");
    require(hy_journal_put(journal, ROLLOUT, 1, values, VALUES, NULL) == HY_OK,
            "no record can be added");
    hy_journal_close(journal);
    require(hy_journal_open(path, true, &journal) == HY_OK, "it does not open after a record");
    require(hy_journal_find(journal, ROLLOUT, 1, again, VALUES, &is_found) == HY_OK && is_found &&
                again[0] == values[0] && again[1] == values[1],
            "the record is lost");
    hy_journal_close(journal);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hy_journal *journal;
    if (!folder[0]) {
        make_scratch(folder, sizeof folder);
        snprintf(path, sizeof path, "%s/rewards.jsonl", folder);
        atexit(remove_folder);
    }
    put_scratch(path, data, size);
    hy_status status = hy_journal_open(path, true, &journal);
    require(status == HY_OK || status == HY_ERR_INPUT, "another failure");
    if (status != HY_OK) return 0;
    for (int64_t rollout = 0; rollout < 8; rollout++) {
        double values[VALUES] = {0};
        bool is_found;
        require(hy_journal_find(journal, rollout, 0x0123456789abcdef, values, VALUES, &is_found) ==
                    HY_OK,
                "a record that was read cannot be read again");
        require(isfinite(values[0]) && isfinite(values[1]), "a value is not finite");
    }
    hy_journal_close(journal);
    check_added();
    return 0;
}
