/* save_state.c: the time to write a checkpoint, compared with the disk's time for as many bytes.
 *
 * Creates a run. Each round writes a plain file of the size of its checkpoint (four threads, 8 MiB
 * at a time, without the page cache, synced), makes a step and saves. Weights and tokens are random
 * on a GPU; the planner places the state. The exit code is 1 if the median speed of saving is below
 * 0.8 of the disk's speed and the checkpoint has 8 GB or more.
 *   build/bench/save_state [--model NAME] [--device cpu|cuda] [--folder FOLDER] [--rounds N] [--set
 * KEY=VALUE] */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "gpu_heading.h"
#include "phase_run.h"

#define SAVE_BAR 0.8
#define LEAST_JUDGED                                                                               \
    8e9 /* bytes; below this, syncing and removing older checkpoints take as
                          * long */
enum { BLOCK = 8 << 20, WRITERS = 4, MOST_ROUNDS = 99 };

static bench_flag flags[] = {
    {"--model", "gpt2-124m", "preset, .cfg file or folder"},
    {"--device", "cpu", "cpu, cuda or cuda:N"},
    {"--folder", "/tmp", "folder on the disk to measure"},
    {"--rounds", "3", "rounds of writing a plain file and a checkpoint"},
};

typedef struct results {
    double plain[MOST_ROUNDS], saved[MOST_ROUNDS]; /* bytes a second */
    int count;
    uint64_t bytes;
} results;

/* ---- a plain file ---------------------------------------------------------------------------- */

typedef struct plain_file {
    int fd;
    int64_t blocks;
    atomic_llong next;
    atomic_int error;
} plain_file;

static void *write_blocks(void *argument) {
    plain_file *f = argument;
    uint64_t *block = aligned_alloc(4096, BLOCK), x = 88172645463325252u;
    if (!block) {
        f->error = ENOMEM;
        return NULL;
    }
    for (size_t i = 0; i < BLOCK / sizeof *block; i++) block[i] = x *= 0x9E3779B97F4A7C15u;
    for (int64_t at; (at = atomic_fetch_add(&f->next, 1)) < f->blocks;) {
        block[0] = (uint64_t)at;
        if (pwrite(f->fd, block, BLOCK, (off_t)at * BLOCK) != BLOCK) f->error = errno ? errno : EIO;
    }
    free(block);
    return NULL;
}

static hy_status write_plain(const char *path, uint64_t bytes, double *rate) {
    plain_file f = {.blocks = (int64_t)((bytes + BLOCK - 1) / BLOCK)};
    pthread_t thread[WRITERS];
    int started = 0;
    double begin = hy_clock();
    f.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    if (f.fd < 0) f.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600); /* such as a tmpfs */
    if (f.fd < 0) return hy_fail(HY_ERR_IO, "cannot write %s", path);
    (void)!fallocate(f.fd, 0, 0, (off_t)f.blocks * BLOCK);
    while (started < WRITERS && !pthread_create(&thread[started], NULL, write_blocks, &f))
        started++;
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    if (fsync(f.fd) != 0) f.error = errno;
    close(f.fd);
    *rate = (double)f.blocks * BLOCK / (hy_clock() - begin);
    unlink(path);
    return f.error || !started ? hy_fail(HY_ERR_IO, "cannot write %s", path) : HY_OK;
}

/* ---- a run that saves ------------------------------------------------------------------------ */

static hy_status make_rounds(hy_trainer *t, const char *folder, int rounds, results *r) {
    char path[128];
    snprintf(path, sizeof path, "%.100s/plain.bin", folder);
    for (; r->count < rounds; r->count++) {
        hy_summary summary;
        hy_step_info info;
        hy_trainer_summary(t, &summary);
        r->bytes = summary.checkpoint_bytes;
        HY_TRY(write_plain(path, r->bytes, &r->plain[r->count]));
        HY_TRY(hy_trainer_step(t, &info));
        double begin = hy_clock();
        HY_TRY(hy_trainer_save(t));
        r->saved[r->count] = (double)r->bytes / (hy_clock() - begin);
        printf("  disk %7.0f MB/s, checkpoint %7.0f MB/s: ratio %.3f\n", r->plain[r->count] * 1e-6,
               r->saved[r->count] * 1e-6, r->saved[r->count] / r->plain[r->count]);
        fflush(stdout);
    }
    return HY_OK;
}

static hy_status run(hy_config *config, const bench_command *command, const char *folder,
                     results *r) {
    char out[128], tokens[128];
    bool is_drawn = gpu_is_asked(bench_value(command, "--device"));
    hy_trainer *t;
    snprintf(out, sizeof out, "%.100s/run", folder);
    snprintf(tokens, sizeof tokens, "%.100s/tokens.bin", folder);
    const char *const given[][2] = {{"model", bench_value(command, "--model")},
                                    {"device", bench_value(command, "--device")}};
    const char *const fixed[][2] = {{"out", out},          {"keep", "1"},
                                    {"steps", "1000"},     {"seq_len", "64"},
                                    {"step_tokens", "64"}, {"eval_batches", "1"},
                                    {"predictor", "none"}, {"builtin_bytes", "60000"}};
    HY_TRY(phase_run_set(config, given, 2, HY_FROM_FLAG));
    HY_TRY(phase_run_set(config, fixed, sizeof fixed / sizeof fixed[0], HY_FROM_FILE));
    for (int i = 0; i < command->set_count; i++) {
        HY_TRY(phase_run_set_text(config, command->sets[i], HY_FROM_SET));
    }
    if (is_drawn) {
        int64_t vocab = strtoll(phase_run_text(config, "vocab"), NULL, 10);
        HY_TRY(drawn_tokens(tokens, 200000, vocab));
        HY_TRY(hy_config_set(config, "data", tokens, HY_FROM_FILE));
        HY_TRY(hy_config_set(config, "init_std", "0", HY_FROM_FILE));
    }
    HY_TRY(hy_trainer_create(config, NULL, &t));
    hy_status status = is_drawn ? drawn_weights(t) : HY_OK;
    printf("%s, %lld parameters; weights %s, m and v %s\n", bench_value(command, "--model"),
           (long long)t->engine->model->params.elements,
           hy_place_name(t->engine->plan->choice.state[HY_PLAN_WEIGHTS]),
           hy_place_name(t->engine->plan->choice.state[HY_PLAN_OPTIM]));
    int rounds = atoi(bench_value(command, "--rounds"));
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    if (status == HY_OK) status = make_rounds(t, folder, rounds, r);
    hy_trainer_destroy(t);
    return status;
}

static hy_status measure(const bench_command *command, void *context) {
    char folder[112];
    hy_config *config;
    if (gpu_is_absent("save_state", bench_value(command, "--device"))) return HY_OK;
    snprintf(folder, sizeof folder, "%.90s/save_state-XXXXXX", bench_value(command, "--folder"));
    if (!mkdtemp(folder)) return hy_fail(HY_ERR_INPUT, "cannot create a folder in %s", folder);
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = run(config, command, folder, context);
    if (config) hy_config_destroy(config);
    (void)hy_dir_remove(folder);
    return status;
}

static int check(const void *context) {
    results r = *(const results *)context;
    if (r.count == 0) return 0;
    double plain = phase_run_median(r.plain, r.count), saved = phase_run_median(r.saved, r.count);
    bool is_judged = (double)r.bytes >= LEAST_JUDGED, is_good = saved >= SAVE_BAR * plain;
    printf("%.2f GiB: %.0f MB/s of the disk's %.0f: ratio %.3f: bar %.1f: %s\n",
           (double)r.bytes * 0x1p-30, saved * 1e-6, plain * 1e-6, saved / plain, SAVE_BAR,
           is_good     ? "bar reached"
           : is_judged ? "BELOW THE BAR"
                       : "no bar, because it is for large models");
    return is_judged && !is_good;
}

int main(int argc, char **argv) {
    static results r;
    bench_command command = {.program = "save_state",
                             .about = "time to write a checkpoint, compared with the disk",
                             .flags = flags,
                             .flag_count = sizeof flags / sizeof flags[0]};
    bench_work work = {measure, check, &r};
    return bench_main(&command, argc, argv, &work);
}
