/* load_model.c: the time to load a model folder, compared with reading its files from disk.
 *     load_model [--dtype bf16|fp32] [--rounds N] [FOLDER]
 *
 * Without a folder, one with 1.5B parameters in bf16 (the shape of Qwen2.5-1.5B, in shards of 1 GB)
 * is created in $TMPDIR and removed at the end. A round reads all files, loads the model, and reads
 * the files again; before each of the three, the files are dropped from the page cache, which
 * mincore confirms. Reading uses as many threads as loading, 8 MiB at a time, with and without the
 * page cache (O_DIRECT); the faster one counts. A child process loads the model, so that its peak
 * memory is its own. The exit code is 1 if the median ratio is above 1.2 or memory is above 1.1
 * times the files. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "hub/hf_export.h"
#include "hub/hf_load.h"

enum { BLOCK = 8 << 20, MOST_FILES = 64, MOST_ROUNDS = 99 };
enum { LEAST_READERS = 4, MOST_READERS = 8 }; /* as in hf_load.c */
#define MOST_TIME 1.2
#define MOST_MEMORY 1.1

static void stop(const char *what) {
    fprintf(stderr, "load_model: %s: %s\n", what, hy_error_message());
    exit(1);
}

#define need(call)                                                                                 \
    do {                                                                                           \
        if ((call) != HY_OK) stop(#call);                                                          \
    } while (0)

/* ---- a folder -------------------------------------------------------------------------------- */

static const hy_shape qwen_1_5b = {.layers = 28,
                                   .width = 1536,
                                   .heads = 12,
                                   .kv_heads = 2,
                                   .mlp_width = 8960,
                                   .vocab = 151936,
                                   .context = 32768,
                                   .is_rms = true,
                                   .has_rope = true,
                                   .is_gated = true,
                                   .has_qkv_bias = true,
                                   .has_tied_head = true,
                                   .norm_eps = 1e-6,
                                   .rope_theta = 1000000,
                                   .init_std = 0.02};

/* Any bytes, except those that a file system might not store. */
static hy_status some_weights(void *context, int32_t param, int64_t first, int64_t count,
                              float *out) {
    (void)context;
    for (int64_t i = 0; i < count; i++) {
        uint64_t x = ((uint64_t)(first + i) + (uint64_t)param * 7919) * 0x9E3779B97F4A7C15u;
        out[i] = (float)((double)(x >> 40) * 0x1p-24 - 0.5);
    }
    return HY_OK;
}

static void make_folder(const char *folder) {
    hy_model *model;
    need(hy_model_create(&qwen_1_5b, &model));
    need(hy_hf_write(&(hy_hf_writing){.folder = folder,
                                      .shape = &model->shape,
                                      .params = &model->params,
                                      .dtype = HY_BF16,
                                      .shard_size = 1000000000u,
                                      .read = some_weights}));
    hy_model_destroy(model);
}

/* The weight files and their sizes. */
typedef struct file_list {
    char path[MOST_FILES][HY_HF_PATH_MAX];
    uint64_t size[MOST_FILES];
    int count;
    uint64_t bytes;
} file_list;

static void list_files(const char *folder, file_list *out) {
    char **names;
    size_t count;
    struct stat info;
    *out = (file_list){0};
    need(hy_dir_list(folder, &names, &count));
    for (size_t i = 0; i < count; i++) {
        const char *dot = strrchr(names[i], '.');
        if (!dot || strcmp(dot, ".safetensors") != 0 || out->count == MOST_FILES) continue;
        char *path = out->path[out->count];
        need(hy_path_join(path, HY_HF_PATH_MAX, folder, names[i]));
        if (stat(path, &info) != 0) stop(path);
        out->size[out->count++] = (uint64_t)info.st_size;
        out->bytes += (uint64_t)info.st_size;
    }
    hy_dir_list_free(names, count);
    if (out->count == 0) stop("the folder has no safetensors files");
}

/* ---- the page cache -------------------------------------------------------------------------- */

/* The number of pages of a file in memory. */
static uint64_t cached_pages(int fd, uint64_t size) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = (size + page - 1) / page, found = 0;
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *is_there = malloc(pages);
    if (map == MAP_FAILED || !is_there || mincore(map, size, is_there) != 0) stop("mincore");
    for (uint64_t i = 0; i < pages; i++) found += is_there[i] & 1;
    munmap(map, size);
    free(is_there);
    return found * page;
}

/* Drops the files from the page cache and checks it. */
static void cool(const file_list *files) {
    uint64_t left = 0;
    for (int i = 0; i < files->count; i++) {
        int fd = open(files->path[i], O_RDONLY);
        if (fd < 0 || fsync(fd) != 0) stop(files->path[i]);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        left += cached_pages(fd, files->size[i]);
        close(fd);
    }
    if (left > files->bytes / 100) {
        fprintf(stderr, "load_model: %.1f %% of the files stayed in the page cache\n",
                100.0 * (double)left / (double)files->bytes);
        exit(1);
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reading {
    const file_list *files;
    bool is_direct;
    atomic_llong next; /* position in all files together, in blocks */
} reading;

/* Block `at` of all files in a row; false past the last. A block never crosses files. */
static bool find_block(const file_list *files, int64_t number, int *file, uint64_t *offset) {
    for (*file = 0; *file < files->count; ++*file) {
        int64_t blocks = (int64_t)((files->size[*file] + BLOCK - 1) / BLOCK);
        *offset = (uint64_t)number * BLOCK;
        if (number < blocks) return true;
        number -= blocks;
    }
    return false;
}

static void *read_blocks(void *argument) {
    reading *r = argument;
    int fd[MOST_FILES], file, flags = O_RDONLY | (r->is_direct ? O_DIRECT : 0);
    uint64_t offset;
    void *block = NULL;
    if (posix_memalign(&block, 4096, BLOCK) != 0) stop("no memory");
    for (int i = 0; i < r->files->count; i++) {
        fd[i] = open(r->files->path[i], flags);
        if (fd[i] < 0) stop(r->files->path[i]);
    }
    while (find_block(r->files, atomic_fetch_add(&r->next, 1), &file, &offset)) {
        if (pread(fd[file], block, BLOCK, (off_t)offset) <= 0) stop(r->files->path[file]);
    }
    for (int i = 0; i < r->files->count; i++) close(fd[i]);
    free(block);
    return NULL;
}

static double read_once(const file_list *files, bool is_direct) {
    reading r = {.files = files, .is_direct = is_direct};
    pthread_t thread[MOST_READERS];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = cores > MOST_READERS ? MOST_READERS : (int)cores;
    if (threads < LEAST_READERS) threads = LEAST_READERS;
    cool(files);
    double begin = hy_clock();
    for (int i = 0; i < threads; i++) {
        if (pthread_create(&thread[i], NULL, read_blocks, &r) != 0) stop("no thread");
    }
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    return hy_clock() - begin;
}

/* ---- loading --------------------------------------------------------------------------------- */

typedef struct loaded {
    double seconds;
    double resident; /* bytes at the peak */
} loaded;

static double load(const char *folder, hy_dtype dtype) {
    hy_backend *backend;
    hy_stream *stream;
    hy_model *model;
    hy_layout layout;
    hy_ledger ledger = {0};
    hy_arena arena;
    hy_store store;
    hy_shape shape;
    need(hy_model_files_shape(HY_FILES_HF, folder, &shape));
    need(hy_cpu_backend_create(&(hy_cpu_options){0}, &backend));
    need(backend->stream_create(backend, "load", &stream));
    need(hy_model_create(&shape, &model));
    need(hy_params_layout(&model->params, HY_SET_ALL, dtype, &layout));
    need(hy_arena_init(&arena, backend, &ledger, HY_DEVICE, layout.bytes + 4096, "weights"));
    need(hy_store_init(&store, &arena, HY_WEIGHTS, &layout));
    memset(arena.data, 0xff, layout.bytes); /* a run allocates its memory before it is filled */
    double begin = hy_clock();
    need(hy_hf_load_weights(folder, model, &store, stream, NULL));
    return hy_clock() - begin;
}

/* Loads in a separate process, so that its memory is only that of loading. */
static loaded load_once(const char *folder, const file_list *files, hy_dtype dtype) {
    loaded result = {0};
    int ends[2], status = 1;
    cool(files);
    if (pipe(ends) != 0) stop("no pipe");
    pid_t child = fork();
    if (child == 0) {
        struct rusage usage;
        result.seconds = load(folder, dtype);
        getrusage(RUSAGE_SELF, &usage);
        result.resident = (double)usage.ru_maxrss * 1024;
        _exit(write(ends[1], &result, sizeof result) == sizeof result ? 0 : 1);
    }
    close(ends[1]);
    bool is_told = child > 0 && read(ends[0], &result, sizeof result) == sizeof result;
    close(ends[0]);
    if (!is_told || waitpid(child, &status, 0) != child || status != 0) stop("loading failed");
    return result;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static double smaller(double a, double b) { return a < b ? a : b; }

static int measure(const char *folder, hy_dtype dtype, int rounds) {
    double reads[MOST_ROUNDS], loads[MOST_ROUNDS], ratios[MOST_ROUNDS], resident = 0;
    static file_list files;
    list_files(folder, &files);
    printf("%.2f GB in %d files, into %s\n", (double)files.bytes / 1e9, files.count,
           hy_dtype_name(dtype));
    printf("%-6s %10s %10s %10s %10s %10s %8s\n", "round", "direct, s", "cached, s", "load, s",
           "cached, s", "direct, s", "ratio");
    for (int i = 0; i < rounds; i++) {
        double direct = read_once(&files, true), cached = read_once(&files, false);
        loaded one = load_once(folder, &files, dtype);
        double cached_after = read_once(&files, false), direct_after = read_once(&files, true);
        reads[i] = smaller((direct + direct_after) / 2, (cached + cached_after) / 2);
        loads[i] = one.seconds;
        ratios[i] = loads[i] / reads[i];
        if (one.resident > resident) resident = one.resident;
        printf("%-6d %10.2f %10.2f %10.2f %10.2f %10.2f %8.2f\n", i + 1, direct, cached, loads[i],
               cached_after, direct_after, ratios[i]);
        fflush(stdout);
    }
    double ratio = median(ratios, rounds), share = resident / (double)files.bytes;
    printf(
        "medians: reading %.2f s, loading %.2f s, ratio %.2f (at most %.1f); resident %.2f x the "
        "files (below %.1f for bf16)\n",
        median(reads, rounds), median(loads, rounds), ratio, MOST_TIME, share, MOST_MEMORY);
    bool fits = dtype != HY_BF16 || share < MOST_MEMORY;
    return ratio <= MOST_TIME && fits ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *base = getenv("TMPDIR"), *folder = NULL;
    char parent[512], made[600];
    hy_dtype dtype = HY_BF16;
    int rounds = 3;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--dtype") == 0 && i + 1 < argc) {
            dtype = strcmp(argv[++i], "fp32") == 0 ? HY_F32 : HY_BF16;
        } else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
            rounds = atoi(argv[++i]);
        } else {
            folder = argv[i];
        }
    }
    if (rounds < 1 || rounds > MOST_ROUNDS) rounds = 3;
    if (folder) return measure(folder, dtype, rounds);
    snprintf(parent, sizeof parent, "%s/hybrid-load-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(parent)) stop("no temporary folder");
    snprintf(made, sizeof made, "%s/model", parent);
    make_folder(made);
    int code = measure(made, dtype, rounds);
    need(hy_dir_remove(parent));
    return code;
}
