/* journal.h: keeps the scores of rollouts, so that a run that was killed resumes to the same bits
 * though a program would score differently a second time.
 *
 * A file of JSON lines, one record for a rollout: its number, a hash of what was scored, the
 * values, and two answers to one prompt as an example for readers. A record is on the disk when
 * hy_journal_put returns; only then may an update use the values. Numbers increase from line to
 * line. A last line that a crash cut short is dropped on opening; any other damage is an error. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_journal hy_journal;

#define HY_JOURNAL_SCORES 500000 /* values of a record, at most */

/* Opens a journal. `goes_on`: a resumed run, which keeps the records of an existing file; otherwise
 * it begins empty. HY_ERR_INPUT names the file and the line of damage. */
hy_status hy_journal_open(const char *path, bool goes_on, hy_journal **out);
void hy_journal_close(hy_journal *journal); /* may be NULL */

/* Reads the values of a rollout if they were scored for the same hash and have the same count.
 * Without a journal (NULL) nothing is found. */
hy_status hy_journal_find(hy_journal *journal, int64_t rollout, uint64_t hash, double *values,
                          size_t count, bool *found);

typedef struct hy_journal_answer {
    const char *text;
    size_t size;
    double reward;
} hy_journal_answer;
typedef struct hy_journal_example {
    const char *prompt;
    size_t prompt_size;
    hy_journal_answer best, worst;
} hy_journal_example;

/* Adds a record, synced to the disk. Records of this rollout and of later ones are removed before:
 * they are of another course of the run. Values are finite. `example` may be NULL; its long texts
 * are cut. Without a journal (NULL) it does nothing. After a failure the same call can be
 * repeated. */
hy_status hy_journal_put(hy_journal *journal, int64_t rollout, uint64_t hash, const double *values,
                         size_t count, const hy_journal_example *example);
