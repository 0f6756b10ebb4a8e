/* process.c: see process.h.
 *
 * posix_spawn does not copy the memory map as fork does, which matters in a process with hundreds
 * of gigabytes and page-locked memory. */
#include "reward/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

extern char **environ;

static void close_end(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* ---- starting -------------------------------------------------------------------------------- */

typedef struct pipes {
    int theirs[3], ours[3]; /* by the number of the stream */
} pipes;

static void close_pipes(pipes *p) {
    for (int i = 0; i < 3; i++) {
        close_end(&p->theirs[i]);
        close_end(&p->ours[i]);
    }
}

/* Moves a descriptor behind the standard streams. If those are closed in this process, a message to
 * stderr must not end up in a pipe. */
static bool move_up(int *fd) {
    if (*fd > STDERR_FILENO) return true;
    int moved = fcntl(*fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(*fd);
    *fd = moved;
    return moved >= 0;
}

static bool open_pipes(pipes *p) {
    *p = (pipes){{-1, -1, -1}, {-1, -1, -1}};
    for (int i = 0; i < 3; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) return false;
        p->theirs[i] = ends[i == 0 ? 0 : 1];
        p->ours[i] = ends[i == 0 ? 1 : 0];
        if (!move_up(&p->theirs[i]) || !move_up(&p->ours[i])) return false;
        if (fcntl(p->ours[i], F_SETFL, O_NONBLOCK) != 0) return false;
    }
    return true;
}

/* Closes in the child whatever is open here without close-on-exec: other libraries open files, and
 * some descriptors come from our own parent. */
static int close_others(posix_spawn_file_actions_t *actions) {
    DIR *folder = opendir("/proc/self/fd");
    int error = 0;
    if (!folder) return 0;
    for (struct dirent *entry; error == 0 && (entry = readdir(folder));) {
        int fd = atoi(entry->d_name); /* 0 for "." and ".." */
        bool is_other = fd > STDERR_FILENO && fcntl(fd, F_GETFD) == 0;
        if (is_other) error = posix_spawn_file_actions_addclose(actions, fd);
    }
    closedir(folder);
    return error;
}

static int set_actions(posix_spawn_file_actions_t *actions, const pipes *p) {
    int error = 0;
    for (int i = 0; i < 3 && error == 0; i++)
        error = posix_spawn_file_actions_adddup2(actions, p->theirs[i], i);
    return error ? error : close_others(actions);
}

static int set_attributes(posix_spawnattr_t *attributes) {
    short flags = POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int error = posix_spawnattr_setflags(attributes, flags);
    if (error == 0) error = posix_spawnattr_setpgroup(attributes, 0);
    if (error == 0) error = posix_spawnattr_setsigmask(attributes, &none);
    return error ? error : posix_spawnattr_setsigdefault(attributes, &all);
}

/* Returns 0 or an errno. */
static int spawn(const char *command, const pipes *p, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char *argv[] = {"sh", "-c", (char *)command, NULL};
    int error = posix_spawn_file_actions_init(&actions);
    if (error) return error;
    error = posix_spawnattr_init(&attributes);
    if (error == 0) {
        error = set_actions(&actions, p);
        if (error == 0) error = set_attributes(&attributes);
        if (error == 0) error = posix_spawn(pid, "/bin/sh", &actions, &attributes, argv, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

hy_status hy_process_start(const char *command, hy_process *out) {
    pipes p;
    char reason[128];
    *out = HY_NO_PROCESS;
    int error = open_pipes(&p) ? spawn(command, &p, &out->pid) : errno;
    if (error) {
        close_pipes(&p);
        out->pid = 0;
        return hy_fail(error == ENOMEM ? HY_ERR_MEMORY : HY_ERR_IO, "cannot start \"%.200s\": %s",
                       command, strerror_r(error, reason, sizeof reason));
    }
    out->input = p.ours[0];
    out->output = p.ours[1];
    out->errors = p.ours[2];
    p.ours[0] = p.ours[1] = p.ours[2] = -1;
    close_pipes(&p);
    return HY_OK;
}

/* ---- reading and writing --------------------------------------------------------------------- */

/* As write(), but returns EPIPE without raising the signal, whatever its action is. */
static ssize_t write_quietly(int fd, const char *data, size_t size) {
    const struct timespec at_once = {0};
    sigset_t ours, before, pending;
    sigemptyset(&ours);
    sigaddset(&ours, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &ours, &before);
    ssize_t done = write(fd, data, size);
    int error = errno;
    if (done < 0 && error == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&ours, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return done;
}

size_t hy_process_write(hy_process *process, const char *data, size_t size) {
    if (process->input < 0 || size == 0) return 0;
    ssize_t done = write_quietly(process->input, data, size);
    if (done < 0 && errno != EAGAIN && errno != EINTR) close_end(&process->input);
    return done > 0 ? (size_t)done : 0;
}

size_t hy_process_read(int *fd, char *buffer, size_t size) {
    if (*fd < 0) return 0;
    ssize_t got = read(*fd, buffer, size);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) close_end(fd);
    return got > 0 ? (size_t)got : 0;
}

void hy_process_close_input(hy_process *process) { close_end(&process->input); }

/* ---- the end --------------------------------------------------------------------------------- */

static hy_process_end describe_end(const siginfo_t *info) {
    hy_process_end end;
    const char *why = info->si_status == 127   ? " (the shell did not find the command)"
                      : info->si_status == 126 ? " (the shell could not run the command)"
                                               : "";
    if (info->si_code == CLD_EXITED)
        snprintf(end.text, sizeof end.text, "ended with exit status %d%s", info->si_status, why);
    else
        snprintf(end.text, sizeof end.text, "was ended by signal %d (%s)", info->si_status,
                 strsignal(info->si_status));
    return end;
}

bool hy_process_has_ended(const hy_process *process, hy_process_end *end) {
    siginfo_t info = {0};
    if (process->pid == 0) return true;
    int result = waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    if (result == 0 && info.si_pid == 0) return false;
    if (!end) return true;
    /* It was not waited for here: SIGCHLD is ignored, so the system has removed it. */
    *end = result == 0 ? describe_end(&info) : (hy_process_end){"ended"};
    return true;
}

void hy_process_stop(hy_process *process) {
    close_end(&process->input);
    close_end(&process->output);
    close_end(&process->errors);
    if (process->pid == 0) return;
    kill(-process->pid, SIGKILL);
    while (waitpid(process->pid, NULL, 0) < 0 && errno == EINTR) {}
    process->pid = 0;
}
