/* options.h: what to measure: a size, the arms, learning rates, seeds and budgets.
 *
 * A size is a row of settings that fit together; a flag can replace each of them. Settings are
 * pairs of text for hy_config_set, so this code does not depend on the trainer. */
#ifndef PV_OPTIONS_H
#define PV_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define PV_LIST_MAX 16
#define PV_SETS_MAX 64
#define PV_ARM_PAIRS 6
#define PV_WORD_MAX 128

typedef struct pv_pair {
    char key[PV_WORD_MAX], value[2 * PV_WORD_MAX];
} pv_pair;

/* "outer:outer_mu=0.5:outer_eta=0.8" is the predictor `outer` with two changed settings; "paid" is
 * `outer` with settings that never change the weights. */
typedef struct pv_arm {
    char label[PV_WORD_MAX];
    char predictor[PV_WORD_MAX]; /* "none" for adamw and plain */
    pv_pair pairs[PV_ARM_PAIRS];
    int pair_count;
} pv_arm;

typedef struct pv_size {
    const char *name, *help;
    int64_t steps;
    const char *lrs, *seeds, *budgets;
    const char *data;         /* "builtin", or the name of a file to find */
    const char *const *pairs; /* key, value, ..., NULL */
} pv_size;

typedef struct pv_options {
    const pv_size *size;
    char out[512];
    char data[512], model[512], threads[16]; /* "": not set */
    int64_t steps;
    bool verifies, wants_help;
    pv_arm arms[PV_LIST_MAX]; /* the first is the baseline */
    int arm_count;
    int64_t seeds[PV_LIST_MAX];
    int seed_count;
    double lrs[PV_LIST_MAX];
    int lr_count;
    double budgets[PV_LIST_MAX]; /* longer and shorter budgets of the baseline, in units of steps */
    int budget_count;
    pv_pair sets[PV_SETS_MAX];
    int set_count;
} pv_options;

/* False, with a message on stderr, if the command line is wrong. */
bool pv_options_parse(int argc, char **argv, pv_options *out);
void pv_help(void);

#endif
