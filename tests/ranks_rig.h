/* ranks_rig.h: small runs of several ranks, each a forked process that trains through the public
 * interface.
 *
 * Each rank writes the results of its steps into memory that it shares with the test. All ranks of
 * a run must have the same results to the bit; every function that returns run_steps has checked
 * this. The test itself starts no thread, because it forks. */
#ifndef HY_TESTS_RANKS_RIG_H
#define HY_TESTS_RANKS_RIG_H

#include <math.h>

#include "rank_variables.h"

#include "base/text.h"
#include "formats/checkpoint.h"
#include "hybrid.h"

/* Twelve sequences in a step: 2, 3 and 4 ranks can share them. */
#define RANKS_RUN                                                                                  \
    "model nano layers 2 width 32 heads 4 mlp_width 48 seq_len 32 batch_size 12 "                  \
    "grad_accum_steps 1 lr 3e-3 builtin_bytes 60000 lr_warmup_steps 3 eval_batches 3 "             \
    "sample_tokens 4 threads 1 device cpu save_model false transport sockets "

#define PREDICTS                                                                                   \
    "full_steps 3 correct_steps 2 predict_from 0 predict_until 1 cooldown_steps 1 "                \
    "confidence_threshold 0 fork_budget 0 "

#define RUN_STEPS_MOST 96
#define RUN_SECONDS 200 /* of any run, sanitized on a busy machine */

typedef struct run_step {
    int64_t step, phase;
    double loss, norm;
    double val_loss; /* of a validation behind it; 0: there was none */
    int64_t was_rejected;
} run_step;

/* Optimizer steps and jumps, in their order. */
typedef struct run_steps {
    int64_t count;
    run_step step[RUN_STEPS_MOST];
} run_steps;

typedef struct ranks_run ranks_run;
struct ranks_run {
    int count;            /* ranks; 1: a process that nobody started as one of several */
    int stage;            /* of ZeRO; below 0: nobody says it */
    const char *words;    /* keys and values of its configuration */
    const char *more;     /* the same, stronger; NULL: none */
    const char *out;      /* its folder, */
    bool is_resumed;      /* which has a run that continues */
    const char *variable; /* of the environment, NAME=value; NULL: none */
    const char *own;      /* keys and values of the victim alone; NULL: none */
    int victim;           /* for those two: the rank that something happens to, */
    int64_t at;           /* and when */
    void (*begin)(const ranks_run *run, int rank); /* before its trainer is made; NULL: nothing */
    void (*after_step)(const ranks_run *run, int rank, const hy_step_info *info); /* likewise */
    void (*end)(const ranks_run *run, int rank); /* when its trainer is gone; likewise */
    /* Who trains in place of our own trainer, with what of its own; NULL: nobody. */
    hy_status (*train)(const ranks_run *run, int rank, const hy_config *config,
                       const hy_observer *observer);
    const void *user;
};

typedef struct ranks_job {
    rig it;
    run_steps *courses; /* (RIG_MOST), shared with the ranks */
} ranks_job;

/* What a rank needs to know, and where it stores its steps. */
typedef struct rank_task {
    const ranks_run *run;
    run_steps *courses;
} rank_task;

typedef struct rank_notes {
    const ranks_run *run;
    int rank;
    run_steps *mine;
} rank_notes;

/* ---- as a rank ------------------------------------------------------------------------------- */

static inline void note_step(void *user, const hy_step_info *info) {
    rank_notes *n = user;
    require(n->mine->count < RUN_STEPS_MOST);
    n->mine->step[n->mine->count++] = (run_step){.step = info->step,
                                                 .phase = info->phase,
                                                 .loss = info->loss,
                                                 .norm = info->grad_norm,
                                                 .was_rejected = info->was_rejected};
    if (n->run->after_step) n->run->after_step(n->run, n->rank, info);
}

static inline void note_eval(void *user, const hy_eval_info *info) {
    run_steps *mine = ((rank_notes *)user)->mine;
    if (mine->count > 0) mine->step[mine->count - 1].val_loss = info->loss;
}

static inline void set_words(hy_config *config, const char *words) {
    char text[2048];
    require(strlen(words) < sizeof text);
    strcpy(text, words);
    for (char *rest = text, *key; (key = strtok_r(rest, " ", &rest)) != NULL;) {
        require(hy_config_set(config, key, strtok_r(rest, " ", &rest), HY_FROM_SET) == HY_OK);
    }
}

static inline hy_config *config_of(const ranks_run *run) {
    static const char *const stages[] = {"0", "1", "2", "3"};
    hy_config *config;
    require(hy_config_create(&config) == HY_OK);
    set_words(config, run->words);
    if (run->more) set_words(config, run->more);
    require(hy_config_set(config, "out", run->out, HY_FROM_SET) == HY_OK);
    if (run->is_resumed) require(hy_config_set(config, "resume", "auto", HY_FROM_SET) == HY_OK);
    if (run->count > 1 && run->stage >= 0)
        require(hy_config_set(config, "zero_stage", stages[run->stage], HY_FROM_SET) == HY_OK);
    return config;
}

/* From the first step to the last; what came of it. */
static inline hy_status run_as_rank(const ranks_run *run, int rank, run_steps *mine) {
    rank_notes notes = {.run = run, .rank = rank, .mine = mine};
    hy_observer observer = {.user = &notes, .on_step = note_step, .on_eval = note_eval};
    hy_trainer *trainer = NULL;
    if (run->begin) run->begin(run, rank);
    hy_config *config = config_of(run);
    if (run->own && rank == run->victim) set_words(config, run->own);
    hy_status status = run->train ? run->train(run, rank, config, &observer)
                                  : hy_trainer_create(config, &observer, &trainer);
    hy_config_destroy(config);
    if (status != HY_OK) return status;
    if (!run->train) status = hy_trainer_run(trainer);
    hy_trainer_destroy(trainer); /* leaves the message */
    if (run->end) run->end(run, rank);
    return status;
}

static inline void rank_body(const hy_ranks *ranks, rig_result *mine, const void *user) {
    const rank_task *task = user;
    char variable[256];
    if (ranks->count > 1) set_rank_variables(ranks);
    if (task->run->variable) {
        snprintf(variable, sizeof variable, "%s", task->run->variable);
        require(putenv(variable) == 0);
    }
    rig_keep(mine, run_as_rank(task->run, ranks->rank, &task->courses[ranks->rank]));
}

/* ---- as a test ------------------------------------------------------------------------------- */

static inline ranks_job job_start(const ranks_run *run) {
    ranks_job job;
    job.courses = mmap(NULL, sizeof *job.courses * RIG_MOST, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(job.courses, MAP_FAILED);
    rank_task task = {.run = run, .courses = job.courses};
    job.it = rig_start(run->count, rank_body, &task);
    return job;
}

static inline void job_free(ranks_job *job) {
    munmap(job->courses, sizeof *job->courses * RIG_MOST);
    rig_free(&job->it);
}

static inline void must_be_same(const run_steps *a, const run_steps *b, const char *what) {
    ck_assert_msg(a->count == b->count, "%s: %lld steps against %lld", what, (long long)a->count,
                  (long long)b->count);
    for (int64_t i = 0; i < a->count; i++) {
        const run_step *x = &a->step[i], *y = &b->step[i];
        ck_assert_msg(memcmp(x, y, sizeof *x) == 0,
                      "%s: step %lld has loss %.17g, norm %.17g, held-out loss %.17g; against "
                      "step %lld: %.17g, %.17g, %.17g",
                      what, (long long)x->step, x->loss, x->norm, x->val_loss, (long long)y->step,
                      y->loss, y->norm, y->val_loss);
    }
}

/* Waits for a job that must end well. */
static inline void job_end(ranks_job *job, const char *what, run_steps *out) {
    rig_wait_except(&job->it, RUN_SECONDS, 0);
    for (int r = 0; r < job->it.count; r++) {
        const rig_result *result = &job->it.results[r];
        ck_assert_msg(job->it.codes[r] == 0 && result->status == HY_OK,
                      "%s: rank %d of %d ended with %d: %s", what, r, job->it.count,
                      job->it.codes[r], result->message);
        must_be_same(&job->courses[r], &job->courses[0], "ranks of a run");
    }
    *out = job->courses[0];
    job_free(job);
    ck_assert_msg(out->count > 0, "%s: no step was made", what);
}

static inline run_steps train(const ranks_run *run) {
    char what[64];
    run_steps out;
    ranks_job job = job_start(run);
    snprintf(what, sizeof what, "%d ranks, stage %d", run->count, run->stage);
    job_end(&job, what, &out);
    return out;
}

static inline double share_apart(double a, double b) {
    return isnan(a) && isnan(b) ? 0 : a == b ? 0 : fabs(a - b) / fabs(b);
}

/* The largest differences of losses and of gradient norms, as shares; the same steps in the same
 * phases. */
typedef struct distance {
    double loss, norm;
} distance;

static inline distance apart(const run_steps *a, const run_steps *b) {
    distance most = {0, 0};
    ck_assert_int_eq(a->count, b->count);
    for (int64_t i = 0; i < a->count; i++) {
        const run_step *x = &a->step[i], *y = &b->step[i];
        ck_assert_int_eq(x->step, y->step);
        ck_assert_int_eq(x->phase, y->phase);
        ck_assert_int_eq(x->was_rejected, y->was_rejected);
        double loss = share_apart(x->loss, y->loss), norm = share_apart(x->norm, y->norm);
        /* A run that is killed behind a step may not come to its validation. */
        double val_loss = x->val_loss == 0 ? 0 : share_apart(x->val_loss, y->val_loss);
        if (!(loss <= most.loss)) most.loss = loss; /* NaN is larger than all */
        if (!(val_loss <= most.loss)) most.loss = val_loss;
        if (!(norm <= most.norm)) most.norm = norm;
    }
    return most;
}

/* Where a sitting that began from a checkpoint is in the whole run; it must lie inside. */
static inline run_steps part_of(const run_steps *whole, const run_steps *sitting) {
    const run_step *first = &sitting->step[0];
    run_steps part = {.count = sitting->count};
    int64_t at = 0;
    while (at < whole->count &&
           (whole->step[at].step != first->step || whole->step[at].phase != first->phase))
        at++;
    ck_assert_msg(sitting->count > 0 && at + sitting->count <= whole->count,
                  "%lld steps from step %lld on are not in a run of %lld",
                  (long long)sitting->count, (long long)first->step, (long long)whole->count);
    memcpy(part.step, whole->step + at, (size_t)part.count * sizeof *part.step);
    return part;
}

/* Jumps that the guard accepted. */
static inline int jumps_of(const run_steps *c) {
    int count = 0;
    for (int64_t i = 0; i < c->count; i++) {
        count += c->step[i].phase == HY_PREDICT && !c->step[i].was_rejected;
    }
    return count;
}

/* ---- files ----------------------------------------------------------------------------------- */

static inline void must_have_same_file(const char *a, const char *b, const char *name) {
    char path[2][2700];
    char *data[2];
    size_t size[2];
    snprintf(path[0], sizeof path[0], "%s/%s", a, name);
    snprintf(path[1], sizeof path[1], "%s/%s", b, name);
    for (int i = 0; i < 2; i++) must(hy_file_read(path[i], &data[i], &size[i]));
    size_t at = 0;
    while (at < size[0] && at < size[1] && data[0][at] == data[1][at]) at++;
    ck_assert_msg(size[0] == size[1] && at == size[0], "%s and %s differ from byte %zu on", path[0],
                  path[1], at);
    free(data[0]);
    free(data[1]);
}

/* All files of this ending in two folders. */
static inline void must_have_same_files(const char *a, const char *b, const char *ending) {
    char **names[2];
    size_t count[2], checked = 0, length = strlen(ending);
    must(hy_dir_list(a, &names[0], &count[0]));
    must(hy_dir_list(b, &names[1], &count[1]));
    ck_assert_msg(count[0] == count[1], "%s has %zu files, %s %zu", a, count[0], b, count[1]);
    for (size_t i = 0; i < count[0]; i++) {
        const char *name = names[0][i];
        size_t size = strlen(name);
        ck_assert_str_eq(name, names[1][i]);
        if (size < length || strcmp(name + size - length, ending) != 0) continue;
        must_have_same_file(a, b, name);
        checked++;
    }
    ck_assert_msg(checked > 0, "%s has no file *%s", a, ending);
    for (int i = 0; i < 2; i++) hy_dir_list_free(names[i], count[i]);
}

/* The newest whole checkpoint of a run, and its step. */
static inline int64_t last_checkpoint(const char *out, char path[HY_PATH_MAX]) {
    int64_t step = -1;
    must(hy_checkpoint_latest(out, path, HY_PATH_MAX, &step, NULL));
    return step;
}

static inline void must_have_same_checkpoint(const char *a, const char *b) {
    char path[2][HY_PATH_MAX];
    int64_t step = last_checkpoint(a, path[0]);
    ck_assert_int_eq(step, last_checkpoint(b, path[1]));
    must_have_same_files(path[0], path[1], ".safetensors");
}

#endif
