/* blas.c: finds, configures and tests OpenBLAS.
 *
 * OpenBLAS selects its kernels on loading, by CPU model. Version 0.3.21 (Debian 12) treats unknown
 * models as a Prescott and is then seven times too slow. So the core type is chosen here, by the
 * features of the CPU, and set in the environment only while the library loads; OPENBLAS_CORETYPE
 * of the user takes precedence. Then the library is timed against our own sgemm and dropped if it
 * is slower. */
#include "kernels/cpu/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define CORE_TYPE "OPENBLAS_CORETYPE"
#define NUM_THREADS "OPENBLAS_NUM_THREADS"

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

void hy_sgemm(const hy_blas *blas, const hy_gemm *g) {
    if (!blas->library) {
        hy_own_sgemm(g);
        return;
    }
    blas->library(ROW_MAJOR, g->trans_a ? TRANS : NO_TRANS, g->trans_b ? TRANS : NO_TRANS,
                  (int)g->m, (int)g->n, (int)g->k, g->alpha, g->a, (int)g->lda, g->b, (int)g->ldb,
                  g->beta, g->c, (int)g->ldc);
}

/* ---- core type ------------------------------------------------------------------------------- */

/* A core type to request, and why; name NULL: let OpenBLAS choose. */
typedef struct core_choice {
    const char *name;
    const char *reason;
} core_choice;

#if defined(__x86_64__)
static core_choice choose_core(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return (core_choice){"SkylakeX", "the CPU has AVX-512"};
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        bool is_amd = __builtin_cpu_is("amd");
        return (core_choice){is_amd ? "Zen" : "Haswell", "the CPU has AVX2"};
    }
    return (core_choice){0};
}
#elif defined(__aarch64__)
/* The main id register, if the kernel allows programs to read it. */
static unsigned main_id(void) {
    unsigned long id = 0;
    if (getauxval(AT_HWCAP) & HWCAP_CPUID) __asm__("mrs %0, MIDR_EL1" : "=r"(id));
    return (unsigned)id;
}

/* OpenBLAS 0.3.21 knows the Neoverse N1, V1 and N2 and treats their successors as a generic core.
 * The V1 and N2 kernels may use SVE; without SVE, the N1 kernels are the best. */
static core_choice choose_core(void) {
    unsigned id = main_id(), part = id >> 4 & 0xfff;
    bool is_arm = id >> 24 == 0x41, has_sve = getauxval(AT_HWCAP) & HWCAP_SVE;
    bool is_v_series = part == 0xd4f || part == 0xd83 || part == 0xd84; /* V2, V3AE, V3 */
    bool is_n_series = part == 0xd8e;                                   /* N3 */
    if (!is_arm || (!is_v_series && !is_n_series)) return (core_choice){0};
    if (!has_sve) return (core_choice){"NEOVERSEN1", "the CPU is a newer Neoverse without SVE"};
    return is_v_series ? (core_choice){"NEOVERSEV1", "the CPU is a newer Neoverse V"}
                       : (core_choice){"NEOVERSEN2", "the CPU is a newer Neoverse N"};
}
#else
static core_choice choose_core(void) { return (core_choice){0}; }
#endif

/* ---- loading --------------------------------------------------------------------------------- */

/* Sets a variable and returns its old value, to be restored; NULL: it was not set. */
static char *swap_environment(const char *name, const char *value) {
    const char *old = getenv(name);
    char *kept = old ? strdup(old) : NULL;
    /* Other kernels give other sums, so a failure for lack of memory is retried once. */
    if (setenv(name, value, 1) != 0) setenv(name, value, 1);
    return kept;
}

static void restore_environment(const char *name, char *old) {
    if (old) {
        setenv(name, old, 1);
        free(old);
    } else {
        unsetenv(name);
    }
}

/* Opens OpenBLAS with our core type in its environment, and with one thread, so that it starts no
 * thread pool. */
static void *load_library(core_choice choice) {
    char *old_threads = swap_environment(NUM_THREADS, "1");
    char *old_core = choice.name ? swap_environment(CORE_TYPE, choice.name) : NULL;
    void *handle = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!handle) handle = dlopen("libopenblas.so", RTLD_NOW | RTLD_LOCAL);
    if (choice.name) restore_environment(CORE_TYPE, old_core);
    restore_environment(NUM_THREADS, old_threads);
    return handle;
}

/* dlsym returns a data pointer; copying it through memory makes a function pointer, as POSIX
 * allows. */
static bool find_function(void *handle, const char *name, void *function) {
    void *symbol = dlsym(handle, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static void describe(void *handle, core_choice choice, bool is_users, hy_blas *blas) {
    char *(*get_config)(void), *(*get_core)(void);
    char version[32] = "of unknown version";
    const char *core = "unknown";
    if (find_function(handle, "openblas_get_config", &get_config)) {
        sscanf(get_config(), "OpenBLAS %31s", version);
    }
    if (find_function(handle, "openblas_get_corename", &get_core)) core = get_core();
    const char *who = is_users ? "set by " CORE_TYPE : "chosen by OpenBLAS";
    char ours[128];
    if (choice.name) {
        /* OpenBLAS ignores names that its version does not know. */
        bool was_taken = strcasecmp(core, choice.name) == 0;
        if (was_taken)
            snprintf(ours, sizeof ours, "set because %s", choice.reason);
        else
            snprintf(ours, sizeof ours, "chosen by OpenBLAS, which does not accept %s, although %s",
                     choice.name, choice.reason);
        who = ours;
    }
    snprintf(blas->detail, sizeof blas->detail, "OpenBLAS %s, core type %s (%s)", version, core,
             who);
}

/* ---- timing ---------------------------------------------------------------------------------- */

/* CPU time of this thread, so that other load on the machine does not affect the choice. */
static double thread_clock(void) {
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0
               ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec
               : hy_clock();
}

double hy_sgemm_rate(const hy_blas *blas, int64_t n, int calls, float *scratch) {
    hy_gemm g = {.alpha = 1, .trans_b = true};
    g.m = g.n = g.k = g.lda = g.ldb = g.ldc = n;
    g.a = scratch, g.b = scratch + n * n, g.c = scratch + 2 * n * n;
    double best = 0;
    for (int i = 0; i < calls; i++) {
        double start = thread_clock();
        hy_sgemm(blas, &g);
        double rate = 2.0 * (double)(n * n * n) / (thread_clock() - start);
        if (rate > best) best = rate;
    }
    return best;
}

/* Drops a library that is far slower than our own sgemm, because it misdetected the CPU. Small
 * differences do not count, and one bad timing is not enough: a resumed run must make the same
 * choice. */
static void drop_if_slow(hy_blas *blas) {
    enum { SIZE = 384, TRIES = 4 };
    const hy_blas own = {0};
    double library_rate = 0, own_rate = 0;
    float *scratch = malloc(3 * SIZE * SIZE * sizeof *scratch);
    if (!scratch) return;
    for (int64_t i = 0; i < 3 * SIZE * SIZE; i++) scratch[i] = (float)(i % 7) - 3;
    for (int i = 0; i < TRIES && library_rate <= own_rate; i++) {
        double rate = hy_sgemm_rate(blas, SIZE, 2, scratch);
        if (rate > library_rate) library_rate = rate;
        if (i == 0) own_rate = hy_sgemm_rate(&own, SIZE, 1, scratch);
    }
    free(scratch);
    if (library_rate >= 0.6 * own_rate) return;
    char lost[sizeof blas->detail];
    memcpy(lost, blas->detail, sizeof lost);
    snprintf(blas->warning, sizeof blas->warning,
             "%s reaches %.1f GFLOP/s on one thread and our own matmul %.1f, so our own is used; "
             "to use OpenBLAS, set the environment variable " CORE_TYPE
             " to your CPU's core type (for example Haswell, SkylakeX, Zen, NEOVERSEN1)",
             lost, library_rate * 1e-9, own_rate * 1e-9);
    snprintf(blas->detail, sizeof blas->detail, "our own matmul (OpenBLAS was slower)");
    blas->library = NULL;
}

/* ---- the BLAS of the process ----------------------------------------------------------------- */

/* OpenBLAS retries allocations forever, and libgfortran, which it loads, ends the process on
 * failure. So it is opened only if there is enough memory. It takes a buffer for each concurrent
 * matmul. */
hy_status hy_blas_check_memory(int threads) {
    const size_t library = (size_t)64 << 20, buffer = (size_t)128 << 20;
    static atomic_int known; /* number of threads that passed the check */
    if (threads <= atomic_load(&known)) return HY_OK;
    size_t size = library + (size_t)threads * buffer;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *small = malloc(4096);
    bool has_room = memory != MAP_FAILED && small;
    if (memory != MAP_FAILED) munmap(memory, size);
    free(small);
    HY_FAIL_IF(
        !has_room, HY_ERR_MEMORY,
        "not enough memory for matmuls: OpenBLAS reserves %s of address space for %d threads, but "
        "the system does not grant it (ulimit -v may limit it); use fewer threads",
        hy_bytes_as_text(size).text, threads);
    atomic_store(&known, threads);
    return HY_OK;
}

static hy_blas the_blas;

static void load_once(void) {
    hy_blas *blas = &the_blas;
    bool is_users = getenv(CORE_TYPE) != NULL;
    core_choice choice = is_users ? (core_choice){0} : choose_core();
    void *handle = load_library(choice);
    if (!handle || !find_function(handle, "cblas_sgemm", &blas->library)) {
        blas->library = NULL;
        snprintf(blas->detail, sizeof blas->detail, "our own matmul (no OpenBLAS found)");
        snprintf(blas->warning, sizeof blas->warning,
                 "libopenblas.so.0 was not found, so matmuls use our own slower code; on Debian "
                 "and Ubuntu, install the package libopenblas0");
        return;
    }
    void (*set_threads)(int);
    if (find_function(handle, "openblas_set_num_threads", &set_threads)) set_threads(1);
    describe(handle, choice, is_users, blas);
    drop_if_slow(blas);
}

const hy_blas *hy_blas_get(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_once);
    return &the_blas;
}
