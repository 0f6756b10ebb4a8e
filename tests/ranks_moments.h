/* ranks_moments.h: disturbs one of several ranks at an exact launch, allocation or write of a
 * checkpoint (oom/faults.h), and checks the result.
 *
 * In every case the other ranks end within a time limit, with an error that names the disturbed
 * rank. Saved files are complete, and when all ranks are started again they continue to the bits of
 * an undisturbed run. */
#ifndef HY_TESTS_RANKS_MOMENTS_H
#define HY_TESTS_RANKS_MOMENTS_H

#include "ranks_rig.h"

#include "oom/faults.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 5
#else
#define SLOWER 1
#endif

#define RANK_COUNT 3
#define RANK_TIMEOUT 2
#define BOUND (RANK_TIMEOUT + 5 * SLOWER) /* last words, too, are given two seconds */
#define BEGIN_SECONDS (30 * SLOWER)       /* until something has happened */

/* Jumps, validations and an average; a checkpoint after each third step. */
#define FAULTS_RUN                                                                                 \
    RANKS_RUN PREDICTS "steps 9 predictor outer tail_share 0.4 eval_every 4 save_every 3 keep 0 "  \
                       "rank_timeout 2 "
/* Forks that ask whether jumps pay. */
#define FORKS_RUN                                                                                  \
    RANKS_RUN "steps 24 predictor outer regime fine-tuning fork_budget 0.5 fork_steps 2 "          \
              "schedule constant full_steps 2 correct_steps 1 predict_from 0 predict_until 1 "     \
              "confidence_threshold 0.75 save_every 5 keep 0 rank_timeout 2 "

/* ---- moments --------------------------------------------------------------------------------- */

typedef struct moment {
    const char *what; /* is counted; NULL: milliseconds after the first step */
    fault_kind kind;
    int64_t at; /* which of them */
    int victim;
    int signal; /* 0: it is refused */
} moment;

#define LAUNCH .what = "launch", .kind = FAULT_LAUNCH
#define WRITE .what = "write", .kind = FAULT_WRITE
#define ARENA .what = "arena", .kind = FAULT_ARENA
#define HEAP .what = "allocation in its steps", .kind = FAULT_HEAP

/* Ranks have to find each other first: of heap memory, what is asked for in steps counts. */
static inline bool is_for_steps(const moment *m) { return m->kind == FAULT_HEAP; }

static inline void describe(const moment *m, char out[160]) {
    const char *happens = m->signal == SIGKILL   ? "killed"
                          : m->signal == SIGSTOP ? "stopped"
                                                 : "refused";
    snprintf(out, 160, "rank %d is %s at %s %lld", m->victim, happens, m->what ? m->what : "ms",
             (long long)m->at);
}

/* ---- as a rank ------------------------------------------------------------------------------- */

static moment now; /* what happens, for the ranks that are forked next */

/* What each rank asks for: in all, and in its first step and before. */
typedef struct asked {
    int64_t in_all[FAULT_KINDS], before[FAULT_KINDS];
} asked;

static asked *totals; /* (RIG_MOST), shared with the ranks */

static inline void arm(const ranks_run *run, int rank) {
    bool is_it = rank == run->victim && now.what;
    fault_arm(&(fault_plan){
        .kinds = is_it ? FAULT_BIT(now.kind) : 0, .at = is_it ? now.at : 0, .signal = now.signal});
}

static inline void begin_rank(const ranks_run *run, int rank) {
    if (!is_for_steps(&now)) arm(run, rank);
}

static inline void see_step(const ranks_run *run, int rank, const hy_step_info *info) {
    fault_counts counts;
    if (info->step != 1) return;
    if (is_for_steps(&now)) arm(run, rank);
    fault_read(&counts);
    memcpy(totals[rank].before, counts.asked, sizeof counts.asked);
}

static inline void end_rank(const ranks_run *run, int rank) {
    fault_counts counts;
    (void)run;
    fault_read(&counts);
    memcpy(totals[rank].in_all, counts.asked, sizeof counts.asked);
}

/* ---- the run that nobody disturbs ------------------------------------------------------------ */

static const char *run_words; /* FAULTS_RUN, or another that a fixture chooses */
static char folder[256], whole_out[300];
static run_steps whole;

static inline ranks_run run_into(const char *out, int victim) {
    return (ranks_run){.count = RANK_COUNT,
                       .stage = 3,
                       .words = run_words,
                       .out = out,
                       .victim = victim,
                       .begin = begin_rank,
                       .after_step = see_step};
}

static inline void make_whole_of(const char *words) {
    run_words = words;
    temp_folder(folder);
    snprintf(whole_out, sizeof whole_out, "%s/whole", folder);
    totals = mmap(NULL, sizeof *totals * RIG_MOST, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(totals, MAP_FAILED);
    now = (moment){LAUNCH};
    ranks_run run = run_into(whole_out, -1);
    run.end = end_rank;
    whole = train(&run);
    ck_assert_int_ge(jumps_of(&whole), 1);
}

static inline void make_whole(void) { make_whole_of(FAULTS_RUN); }
static inline void make_whole_with_forks(void) { make_whole_of(FORKS_RUN); }

static inline void drop_whole(void) {
    munmap(totals, sizeof *totals * RIG_MOST);
    remove_folder(folder);
}

/* How many of a kind there are to choose from. */
static inline int64_t total_of(const moment *m) {
    const asked *a = &totals[m->victim];
    int64_t count = a->in_all[m->kind] - (is_for_steps(m) ? a->before[m->kind] : 0);
    ck_assert_int_gt(count, 0);
    return count;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Whether a rank has ended, or is stopped; to be asked as often as one likes. */
static inline bool is_out(const rig *it, int rank) {
    siginfo_t info = {0};
    if (it->pids[rank] == 0) return true;
    int how = WEXITED | WSTOPPED | WNOHANG | WNOWAIT;
    return waitid(P_PID, (id_t)it->pids[rank], &info, how) == 0 && info.si_pid != 0;
}

/* Until so many are. */
static inline void wait_for_out(rig *it, int count, double seconds, const char *what) {
    double deadline = hy_clock() + seconds;
    for (;;) {
        int out = 0;
        for (int r = 0; r < it->count; r++) out += is_out(it, r);
        if (out >= count) return;
        if (hy_clock() > deadline) break;
        rig_sleep(0.002);
    }
    for (int r = 0; r < it->count; r++) {
        if (it->pids[r] > 0) kill(it->pids[r], SIGKILL);
    }
    ck_abort_msg("%s: fewer than %d ranks ended in %.0f s", what, count, seconds);
}

static inline void kill_by_clock(const ranks_job *job, const moment *m) {
    double deadline = hy_clock() + BEGIN_SECONDS;
    while (job->courses[m->victim].count == 0 && hy_clock() < deadline) rig_sleep(0.0005);
    rig_sleep(1e-3 * (double)m->at);
    kill(job->it.pids[m->victim], m->signal);
}

/* Starts the ranks and waits until all are gone. One that was stopped continues when the others
 * are. */
static inline ranks_job let_it_happen(const moment *m, const char *out, const char *what) {
    now = *m;
    ranks_run run = run_into(out, m->victim);
    /* Else all plan again with less, and sums have another order: tests/test_ranks_steering.c. */
    if (m->kind == FAULT_ARENA) run.more = "recovery_tries 0";
    ranks_job job = job_start(&run);
    if (!m->what) kill_by_clock(&job, m);
    wait_for_out(&job.it, 1, BEGIN_SECONDS, what);
    wait_for_out(&job.it, RANK_COUNT, BOUND, what);
    pid_t victim = job.it.pids[m->victim];
    if (m->signal == SIGSTOP && victim > 0) kill(victim, SIGCONT);
    rig_wait_except(&job.it, BOUND, 0);
    return job;
}

/* ---- judging --------------------------------------------------------------------------------- */

static inline bool is_complete(const run_steps *c) {
    return c->count == whole.count &&
           memcmp(c->step, whole.step, (size_t)c->count * sizeof *c->step) == 0;
}

/* Either it came to the end of the run, or it says whose fault it was. */
static inline void judge_rank(const ranks_job *job, int rank, const moment *m, const char *what) {
    const rig_result *result = &job->it.results[rank];
    char name[24];
    snprintf(name, sizeof name, "rank %d (", m->victim);
    ck_assert_msg(job->it.codes[rank] == 0, "%s: rank %d ended with %d", what, rank,
                  job->it.codes[rank]);
    if (result->status == HY_OK) {
        ck_assert_msg(is_complete(&job->courses[rank]), "%s: rank %d ended well, but not as whole",
                      what, rank);
        return;
    }
    bool is_exit_1 = result->status == HY_ERR_IO || result->status == HY_ERR_MEMORY;
    ck_assert_msg(is_exit_1, "%s: rank %d ended with %s: %s", what, rank,
                  hy_status_name(result->status), result->message);
    bool was_woken = rank == m->victim && m->signal == SIGSTOP; /* it has lost the others */
    ck_assert_msg(was_woken || strncmp(result->message, name, strlen(name)) == 0,
                  "%s: rank %d does not name it: %s", what, rank, result->message);
}

static inline bool all_ended_well(const ranks_job *job) {
    bool is_well = true;
    for (int r = 0; r < RANK_COUNT; r++) {
        is_well &= job->it.codes[r] == 0 && job->it.results[r].status == HY_OK;
    }
    return is_well;
}

/* Nothing that looks like a checkpoint is damaged; whether there is one. */
static inline bool has_checkpoint(const char *out, const char *what) {
    char path[HY_PATH_MAX];
    hy_text notes = {0};
    int64_t step;
    hy_status status = hy_checkpoint_latest(out, path, sizeof path, &step, &notes);
    ck_assert_msg(status == HY_OK || status == HY_ERR_INPUT, "%s: %s", what, hy_error_message());
    ck_assert_msg(notes.size == 0, "%s: %s", what, hy_text_string(&notes));
    hy_text_free(&notes);
    return status == HY_OK;
}

static inline void must_go_on(const char *out, const char *what) {
    bool is_saved = has_checkpoint(out, what);
    ranks_run again = {.count = RANK_COUNT,
                       .stage = 3,
                       .words = run_words,
                       .more = is_saved ? NULL : "overwrite true",
                       .out = out,
                       .is_resumed = is_saved};
    ranks_job job = job_start(&again);
    rig_wait_except(&job.it, RUN_SECONDS, 0);
    for (int r = 0; r < RANK_COUNT; r++) {
        ck_assert_msg(job.it.codes[r] == 0 && job.it.results[r].status == HY_OK,
                      "%s, then resumed: rank %d: %s", what, r, job.it.results[r].message);
        if (job.courses[r].count == 0) continue; /* it was at its end */
        run_steps expected = part_of(&whole, &job.courses[r]);
        must_be_same(&job.courses[r], &expected, what);
    }
    job_free(&job);
    must_have_same_checkpoint(out, whole_out);
}

/* Whether the ranks came to their end all the same. */
static inline bool survive(const moment *m) {
    char out[300], what[160];
    snprintf(out, sizeof out, "%s/run", folder);
    describe(m, what);
    if (hy_path_exists(out)) remove_folder(out); /* of a test that failed */
    ranks_job job = let_it_happen(m, out, what);
    for (int r = 0; r < RANK_COUNT; r++) {
        if (r != m->victim || m->signal != SIGKILL) judge_rank(&job, r, m, what);
    }
    bool is_well = all_ended_well(&job);
    job_free(&job);
    must_go_on(out, what);
    remove_folder(out);
    return is_well;
}

/* Of this victim and kind, one that the index chooses. */
static inline moment random_moment(moment m, int index) {
    uint64_t count = m.what ? (uint64_t)total_of(&m) : 250;
    uint64_t key = (uint64_t)(1000 * m.victim + index);
    m.at = 1 + (int64_t)(hy_rng_u64(21, (uint64_t)m.kind, key) % count);
    return m;
}

static inline void try_many(moment m, int count) {
    for (int i = 0; i < count; i++) {
        moment at = random_moment(m, i);
        (void)survive(&at);
    }
}

#endif
