/* trial.h: runs a piece of work in a separate process, with one of its allocations refused.
 *
 * The child works on a scenario in a fresh folder and writes its results to memory that it shares
 * with the parent, which judges and counts. The parent calls no library function that starts a
 * thread, so that it may fork. A child that does not end in time or dies by a signal is a crash of
 * the library. */
#ifndef HY_TESTS_OOM_TRIAL_H
#define HY_TESTS_OOM_TRIAL_H

#include "faults.h"
#include "hybrid.h"

#define TRIAL_LOSSES 64
#define TRIAL_MESSAGE 1024

/* What a child leaves behind. */
typedef struct outcome {
    bool has_ended; /* it came to its end, whatever the status */
    hy_status status;
    char message[TRIAL_MESSAGE];
    char warning[TRIAL_MESSAGE]; /* the last one of the run */
    int steps;                   /* losses noted: of optimizer steps and of jumps, in order */
    double loss[TRIAL_LOSSES], val_loss;
    int64_t batch_size[TRIAL_LOSSES]; /* micro-batch of each */
    int sampled;                      /* first byte of the text sampled after the run */
    int sittings;                     /* times the run was begun */
    bool was_broken_off;              /* it had made a step and did not come to its end */
    bool is_spoiled;      /* what it left cannot be gone on with, or is half of something */
    int handles, threads; /* open at the end beyond those at the beginning */
    fault_counts counts;
} outcome;

/* The work begins: allocations count from here on. */
void trial_arm(void);

/* Does its work in `folder`, which is its own, and notes losses; calls trial_arm once. */
typedef struct scenario {
    const char *name;
    hy_status (*work)(const char *folder, outcome *out);
    bool is_training;
} scenario;

extern const scenario oom_scenarios[];
extern const int oom_scenario_count;

/* Where trials have their folders, and where prepare_run has put a run. */
extern char oom_folder[256], oom_prepared[300];

typedef enum verdict {
    TRIAL_UNTOUCHED, /* nothing was refused: the plan lies past the end */
    TRIAL_SURVIVED,  /* the results are those of the undisturbed run */
    TRIAL_STOPPED,   /* HY_ERR_MEMORY with a message; what was done can be gone on from */
    TRIAL_OTHER,     /* stopped with another status than HY_ERR_MEMORY */
    TRIAL_WRONG,     /* results differ, something leaked, nothing can be gone on from */
    TRIAL_CRASHED,   /* died */
    TRIAL_HUNG,
    TRIAL_VERDICTS
} verdict;

typedef struct trial {
    const scenario *scenario;
    fault_plan plan;
    verdict verdict;
    char why[256]; /* for all but the first three */
    outcome result;
    bool is_running;
    int child;       /* process */
    double began;    /* monotonic seconds */
    outcome *shared; /* where the child notes */
} trial;

/* Starts the child that does the work of t->scenario under t->plan. */
void trial_begin(trial *t);
/* True once it has ended and is judged by the undisturbed outcome (NULL while that is what is
 * wanted); one that takes longer than `seconds` is killed. */
bool trial_has_ended(trial *t, const outcome *reference, double seconds);
const char *trial_verdict_name(verdict v);

#endif
