/* mpi_rig.h: a test program that starts itself under mpirun, as "PROGRAM CASE".
 *
 * If mpirun or libhybrid_mpi.so is missing, such cases are skipped with a message. */
#ifndef HY_TESTS_MPI_RIG_H
#define HY_TESTS_MPI_RIG_H

#include <sys/wait.h>

#include "base/text.h"
#include "harness.h"

/* Called before any test runs, too: no assertion of Check's. */
static inline const char *own_program(void) {
    static char own[3000];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    own[length > 0 ? length : 0] = 0;
    return own;
}

/* Beside the tests of its build. */
static inline const char *mpi_library(void) {
    static char path[3100];
    const char *own = own_program(), *slash = strrchr(own, '/');
    int folder = slash ? (int)(slash - own) : 0;
    snprintf(path, sizeof path, "%.*s/../lib/libhybrid_mpi.so", folder, own);
    return path;
}

static inline bool has_mpi(void) {
    return system("command -v mpirun > /dev/null 2>&1") == 0 && access(mpi_library(), R_OK) == 0;
}

static inline void say_mpi_is_missing(void) {
    printf("passed over: mpirun or libhybrid_mpi.so is not here (Debian: libopenmpi-dev, "
           "openmpi-bin)\n");
}

/* Runs a command of the shell for at most 40 seconds; what it printed. */
static inline int shell(const char *command, hy_text *output) {
    char line[8192];
    snprintf(line, sizeof line, "timeout -k 1 40 %s 2>&1", command);
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    while (fgets(line, sizeof line, pipe)) hy_text_add(output, line);
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline int run_under_mpi(int count, const char *name, hy_text *output) {
    char command[4000];
    snprintf(
        command, sizeof command,
        "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 mpirun -n %d '%s' %s",
        count, own_program(), name);
    return shell(command, output);
}

#endif
