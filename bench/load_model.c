/* load_model.c: how long a model's folder takes to load, beside what the disk takes to read its files.
 *
 *     load_model [--dtype bf16|fp32] [FOLDER]
 *
 * Without a folder one of 1.5B parameters in bf16 (Qwen2.5-1.5B's shape) is made in $TMPDIR and removed at
 * the end. The page cache is emptied of the files before each measurement, so both come from the disk.
 * Resident memory is what the process gained at its peak, over the size of the files. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "trainer/hf_export.h"
#include "trainer/hf_load.h"

enum { RUNS = 3, BLOCK = 8 << 20 };

static void stop(const char *what) {
    fprintf(stderr, "load_model: %s: %s\n", what, hy_error_message());
    exit(1);
}

#define need(call)                                                                                 \
    do {                                                                                           \
        if ((call) != HY_OK) stop(#call);                                                          \
    } while (0)

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

/* Any bytes do, but not such as a file system might leave out. */
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
                                      .shard_size = 5000000000u,
                                      .read = some_weights}));
    hy_model_destroy(model);
}

/* ---- the disk ---------------------------------------------------------------------------------- */

typedef uint64_t (*file_work)(const char *path);

static uint64_t forget_file(const char *path) {
    int fd = open(path, O_RDONLY);
    if (fd >= 0) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    return 0;
}

static uint64_t read_file(const char *path) {
    char *block = malloc(BLOCK);
    int fd = open(path, O_RDONLY);
    uint64_t bytes = 0;
    for (ssize_t got; fd >= 0 && (got = read(fd, block, BLOCK)) > 0;) bytes += (uint64_t)got;
    if (fd >= 0) close(fd);
    free(block);
    return bytes;
}

static uint64_t for_each_weight_file(const char *folder, file_work work) {
    char **names, path[HY_HF_PATH_MAX];
    size_t count;
    uint64_t sum = 0;
    need(hy_dir_list(folder, &names, &count));
    for (size_t i = 0; i < count; i++) {
        const char *dot = strrchr(names[i], '.');
        if (!dot || strcmp(dot, ".safetensors") != 0) continue;
        need(hy_path_join(path, sizeof path, folder, names[i]));
        sum += work(path);
    }
    hy_dir_list_free(names, count);
    return sum;
}

/* ---- loading ----------------------------------------------------------------------------------- */

static uint64_t peak_resident(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}

static double load_once(const char *folder, hy_dtype dtype) {
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
    need(hy_params_layout(&model->params, dtype, &layout));
    need(hy_arena_init(&arena, backend, &ledger, HY_DEVICE, layout.bytes + 4096, "weights"));
    need(hy_store_init(&store, &arena, HY_WEIGHTS, &layout));
    memset(arena.data, 0xff, layout.bytes); /* a run's memory is there before it is filled */
    double begin = hy_clock();
    need(hy_hf_load_weights(folder, model, &store, stream, NULL));
    double seconds = hy_clock() - begin;
    hy_store_fini(&store);
    hy_arena_fini(&arena);
    hy_layout_fini(&layout);
    hy_model_destroy(model);
    backend->stream_destroy(stream);
    backend->destroy(backend);
    return seconds;
}

static void measure(const char *folder, hy_dtype dtype) {
    uint64_t before = peak_resident(), bytes = 0;
    printf("%-6s %12s %12s %8s\n", "run", "read, s", "load, s", "ratio");
    for (int i = 0; i < RUNS; i++) {
        for_each_weight_file(folder, forget_file);
        double begin = hy_clock();
        bytes = for_each_weight_file(folder, read_file);
        double reading = hy_clock() - begin;
        for_each_weight_file(folder, forget_file);
        double loading = load_once(folder, dtype);
        printf("%-6d %12.2f %12.2f %8.2f\n", i + 1, reading, loading, loading / reading);
    }
    double gained = (double)(peak_resident() - before);
    printf("%.2f GB of files into %s; resident %.2f x the files\n", (double)bytes / 1e9,
           hy_dtype_name(dtype), gained / (double)bytes);
}

int main(int argc, char **argv) {
    const char *base = getenv("TMPDIR"), *folder = NULL;
    char parent[512], made[600];
    hy_dtype dtype = HY_BF16;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--dtype") == 0 && i + 1 < argc) {
            dtype = strcmp(argv[++i], "fp32") == 0 ? HY_F32 : HY_BF16;
        } else {
            folder = argv[i];
        }
    }
    if (folder) {
        measure(folder, dtype);
        return 0;
    }
    snprintf(parent, sizeof parent, "%s/hybrid-load-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(parent)) stop("no temporary folder");
    snprintf(made, sizeof made, "%s/model", parent);
    make_folder(made);
    measure(made, dtype);
    need(hy_dir_remove(parent));
    return 0;
}
