/* launch.c: starts ranks and forwards their output and incoming signals. See launch.h. */
#include "comm/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "comm/net.h"
#include "comm/ranks.h"

#define STOPPED_ON_REQUEST 75
#define CODE_REFUSED 2
#define REFUSED_GRACE 2 /* seconds */
#define NO_SUCH_COMMAND 127
#define LINE_MOST ((size_t)64 << 10) /* bytes; a longer line is split */
#define NAP_MILLISECONDS 200

extern char **environ;

static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

typedef struct rank_process {
    pid_t pid;        /* 0: it has ended */
    bool was_asked;   /* the launcher has sent it a signal to end */
    bool was_stopped; /* a signal such as SIGSTOP has stopped it */
    int status;
    int pipe; /* its output; -1: rank 0, or closed */
    hy_text line;
} rank_process;

typedef enum stage { RUNNING, WAITING, TERMINATING, KILLING } stage;

typedef struct launcher {
    const hy_launch_options *options;
    rank_process *ranks;   /* (count) */
    struct pollfd *polled; /* (count + 1) */
    int signals;
    sigset_t before;
    int32_t first_failed; /* -1: none */
    stage stage;
    double deadline; /* of the stage */
    char address[64], job[24];
} launcher;

/* ---- output of ranks ------------------------------------------------------------------------- */

static void write_all(int fd, const char *data, size_t size) {
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* the reader is gone; ranks continue */
        data += n;
        size -= (size_t)n;
    }
}

static int errors_of(const launcher *l) {
    return l->options->errors ? l->options->errors : STDERR_FILENO;
}

/* One write per line, so that lines of several writers do not mix. */
static void print_line(const launcher *l, int32_t rank, const char *text, size_t size) {
    hy_text line = {0};
    hy_text_addf(&line, "rank %d: ", rank);
    hy_text_add_bytes(&line, text, size);
    hy_text_add(&line, "\n");
    write_all(errors_of(l), hy_text_string(&line), line.size);
    hy_text_free(&line);
}

static void print_lines(launcher *l, int32_t rank, bool is_over) {
    hy_text *text = &l->ranks[rank].line;
    size_t at = 0;
    for (const char *end; at < text->size; at = (size_t)(end - text->data) + 1) {
        end = memchr(text->data + at, '\n', text->size - at);
        if (!end) break;
        print_line(l, rank, text->data + at, (size_t)(end - text->data) - at);
    }
    size_t left = text->size - at;
    if (left > 0 && (is_over || left >= LINE_MOST)) {
        print_line(l, rank, text->data + at, left);
        left = 0;
    }
    if (left > 0) memmove(text->data, text->data + text->size - left, left);
    text->size = left;
}

static void read_rank(launcher *l, int32_t rank) {
    rank_process *p = &l->ranks[rank];
    char bytes[4096];
    while (p->pipe >= 0) {
        ssize_t n = read(p->pipe, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n > 0) hy_text_add_bytes(&p->line, bytes, (size_t)n);
        if (n <= 0) hy_net_close(&p->pipe);
        print_lines(l, rank, n <= 0);
    }
}

/* ---- starting -------------------------------------------------------------------------------- */

/* The environment of a rank: our variables, then the others. It is one block of memory, made before
 * the fork, because few functions may be called after it. */
static char **make_environment(const launcher *l, int32_t rank) {
    static const char *const names[] = {"HYBRID_RANK",        "HYBRID_RANKS",   "HYBRID_LOCAL_RANK",
                                        "HYBRID_LOCAL_RANKS", "HYBRID_ADDRESS", "HYBRID_JOB"};
    enum { OWN = sizeof names / sizeof names[0], ROOM = 128 };
    char own[12], all[12];
    const char *values[OWN] = {own, all, own, all, l->address, l->job};
    size_t count = 0, used = OWN;
    snprintf(own, sizeof own, "%d", rank);
    snprintf(all, sizeof all, "%d", l->options->count);
    while (environ[count]) count++;
    char **list = calloc(1, (OWN + count + 1) * sizeof *list + OWN * ROOM);
    if (!list) return NULL;
    for (int i = 0; i < OWN; i++) {
        list[i] = (char *)(list + OWN + count + 1) + i * ROOM;
        snprintf(list[i], ROOM, "%s=%s", names[i], values[i]);
    }
    for (size_t i = 0; i < count; i++) {
        bool is_own = false;
        for (int k = 0; k < OWN; k++) {
            size_t length = strlen(names[k]);
            is_own |= strncmp(environ[i], names[k], length) == 0 && environ[i][length] == '=';
        }
        if (!is_own) list[used++] = environ[i];
    }
    return list;
}

/* Runs in the new process. */
static void become_rank(const launcher *l, pid_t parent, int output, char **environment) {
    char *const *argv = l->options->argv;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* the launcher ended before the line above */
    setpgid(0, 0);
    if (output >= 0) {
        int nothing = open("/dev/null", O_RDONLY);
        if (nothing >= 0) dup2(nothing, STDIN_FILENO); /* only rank 0 reads standard input */
        dup2(output, STDOUT_FILENO);
        dup2(output, STDERR_FILENO);
    }
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    execvpe(argv[0], argv, environment);
    const char *why = errno == ENOENT ? ": command not found\n" : ": it cannot be started\n";
    const char *parts[] = {"cannot run ", argv[0], why};
    for (size_t i = 0; i < 3; i++) write_all(STDERR_FILENO, parts[i], strlen(parts[i]));
    _exit(NO_SUCH_COMMAND);
}

static hy_status start_rank(launcher *l, int32_t rank) {
    rank_process *p = &l->ranks[rank];
    int ends[2] = {-1, -1};
    char **environment = make_environment(l, rank);
    HY_FAIL_IF(!environment, HY_ERR_MEMORY, "no memory to start rank %d", rank);
    pid_t parent = getpid();
    bool is_ready = rank == 0 || pipe2(ends, O_CLOEXEC) == 0;
    p->pid = is_ready ? fork() : -1;
    if (p->pid == 0) become_rank(l, parent, ends[1], environment);
    int error = errno;
    hy_net_close(&ends[1]);
    free(environment);
    p->pipe = ends[0];
    if (p->pipe >= 0) fcntl(p->pipe, F_SETFL, O_NONBLOCK);
    bool is_started = p->pid > 0;
    if (!is_started) p->pid = 0;
    HY_FAIL_IF(!is_started, HY_ERR_IO, "cannot start rank %d: %s", rank, strerror(error));
    return HY_OK;
}

/* Chooses rank 0's port and the job's number. */
static hy_status choose_address(launcher *l) {
    int fd;
    bool is_taken;
    uint64_t number;
    HY_TRY(hy_net_listen("127.0.0.1", 0, &fd, &is_taken));
    snprintf(l->address, sizeof l->address, "127.0.0.1:%d", hy_net_port(fd));
    hy_net_close(&fd); /* if another process takes the port, rank 0 takes the next one */
    HY_FAIL_IF(getrandom(&number, sizeof number, 0) != sizeof number, HY_ERR_IO,
               "cannot read random bytes from the system");
    snprintf(l->job, sizeof l->job, "%016llx", (unsigned long long)number);
    return HY_OK;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void signal_all(const launcher *l, int number) {
    for (int32_t r = 0; r < l->options->count; r++) {
        if (l->ranks[r].pid > 0) kill(l->ranks[r].pid, number);
    }
}

static void forward_signals(launcher *l) {
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo != SIGCHLD) signal_all(l, (int)info.ssi_signo);
    }
}

static void enter_stage(launcher *l, stage next, double seconds) {
    l->stage = next;
    l->deadline = hy_clock() + seconds;
}

/* Records ranks that have ended; returns how many are left. */
static int32_t collect(launcher *l) {
    int32_t running = 0;
    for (int32_t r = 0; r < l->options->count; r++) {
        rank_process *p = &l->ranks[r];
        bool is_news = p->pid > 0 && waitpid(p->pid, &p->status, WNOHANG | WUNTRACED) == p->pid;
        if (is_news && WIFSTOPPED(p->status)) {
            p->was_stopped = true;
        } else if (is_news) {
            int code = WIFEXITED(p->status) ? WEXITSTATUS(p->status) : -1;
            double grace = l->options->grace > 0 ? l->options->grace : 90;
            /* A rank with wrong arguments may end before it has connected. The others would wait
             * for it forever. */
            if (code == CODE_REFUSED && grace > REFUSED_GRACE) grace = REFUSED_GRACE;
            p->pid = 0;
            if (code != 0 && l->first_failed < 0) l->first_failed = r;
            if (code != 0 && l->stage == RUNNING) enter_stage(l, WAITING, grace);
        }
        running += p->pid > 0;
    }
    return running;
}

/* After a failure: ends the ranks that have not ended in time. */
static void end_late_ranks(launcher *l) {
    if (l->stage == RUNNING) return;
    for (int32_t r = 0; r < l->options->count; r++) {
        rank_process *p = &l->ranks[r];
        /* A stopped rank is continued, so that it can notice the failure and end. */
        if (p->pid > 0 && p->was_stopped) kill(p->pid, SIGCONT);
        p->was_stopped = false;
    }
    if (l->stage == KILLING || hy_clock() < l->deadline) return;
    bool is_last = l->stage == TERMINATING;
    for (int32_t r = 0; r < l->options->count; r++) {
        if (l->ranks[r].pid == 0) continue;
        l->ranks[r].was_asked = true;
        dprintf(errors_of(l), "rank %d did not end by itself: %s\n", r,
                is_last ? "it gets killed" : "it gets a signal to end");
    }
    signal_all(l, is_last ? SIGKILL : SIGTERM);
    if (!is_last) signal_all(l, SIGCONT); /* a stopped process does not receive SIGTERM */
    enter_stage(l, is_last ? KILLING : TERMINATING,
                l->options->kill_after > 0 ? l->options->kill_after : 20);
}

static void wait_for_ranks(launcher *l) {
    int32_t n = l->options->count;
    while (collect(l) > 0) {
        for (int32_t r = 0; r < n; r++)
            l->polled[r] = (struct pollfd){.fd = l->ranks[r].pipe, .events = POLLIN};
        l->polled[n] = (struct pollfd){.fd = l->signals, .events = POLLIN};
        poll(l->polled, (nfds_t)n + 1, NAP_MILLISECONDS);
        forward_signals(l);
        for (int32_t r = 0; r < n; r++) {
            if (l->polled[r].revents) read_rank(l, r);
        }
        end_late_ranks(l);
    }
    for (int32_t r = 0; r < n; r++) {
        read_rank(l, r);
        print_lines(l, r, true); /* a grandchild may still hold the pipe */
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Names the rank that failed first and returns the launcher's exit code. */
static int report_end(const launcher *l) {
    int32_t r = l->first_failed;
    if (r < 0) return 0;
    int status = l->ranks[r].status, first = l->ranks[0].status;
    if (WIFSIGNALED(status))
        dprintf(errors_of(l), "rank %d was ended by signal %d (%s)\n", r, WTERMSIG(status),
                strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) != STOPPED_ON_REQUEST)
        dprintf(errors_of(l), "rank %d ended with exit code %d\n", r, WEXITSTATUS(status));
    bool by_itself = WIFEXITED(first) && !l->ranks[0].was_asked;
    return by_itself && WEXITSTATUS(first) != 0 ? WEXITSTATUS(first) : 1;
}

static hy_status start_all(launcher *l) {
    sigset_t heard;
    sigemptyset(&heard);
    sigaddset(&heard, SIGCHLD);
    for (size_t i = 0; i < sizeof passed_on / sizeof passed_on[0]; i++) {
        struct sigaction now;
        /* Under nohup(1) a hangup stays ignored, here and in the ranks. A shell also makes
         * background processes ignore SIGINT, but we handle it even then. */
        bool is_ignored = passed_on[i] == SIGHUP && sigaction(SIGHUP, NULL, &now) == 0 &&
                          now.sa_handler == SIG_IGN;
        if (!is_ignored) sigaddset(&heard, passed_on[i]);
    }
    sigprocmask(SIG_BLOCK, &heard, &l->before);
    l->signals = signalfd(-1, &heard, SFD_NONBLOCK | SFD_CLOEXEC);
    HY_FAIL_IF(l->signals < 0, HY_ERR_IO, "cannot open a descriptor for signals: %s",
               strerror(errno));
    HY_TRY(choose_address(l));
    for (int32_t r = 0; r < l->options->count; r++) HY_TRY(start_rank(l, r));
    return HY_OK;
}

static hy_status launch(launcher *l, int *exit_code) {
    sigprocmask(SIG_BLOCK, NULL, &l->before);
    for (int32_t r = 0; r < l->options->count; r++) l->ranks[r].pipe = -1;
    hy_status status = start_all(l);
    if (status == HY_OK) {
        wait_for_ranks(l);
        *exit_code = report_end(l);
    } else {
        signal_all(l, SIGKILL);
        while (collect(l) > 0) poll(NULL, 0, 1);
    }
    for (int32_t r = 0; r < l->options->count; r++) {
        hy_net_close(&l->ranks[r].pipe);
        hy_text_free(&l->ranks[r].line);
    }
    if (l->signals >= 0) forward_signals(l); /* a late signal must not be delivered again */
    hy_net_close(&l->signals);
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    return status;
}

hy_status hy_launch(const hy_launch_options *options, int *exit_code) {
    int32_t n = options->count;
    *exit_code = 1;
    HY_FAIL_IF(n < 1 || n > HY_RANKS_MOST, HY_ERR_INPUT, "%d ranks: expected 1 to %d", n,
               HY_RANKS_MOST);
    launcher l = {.options = options,
                  .ranks = calloc((size_t)n, sizeof *l.ranks),
                  .polled = calloc((size_t)n + 1, sizeof *l.polled),
                  .signals = -1,
                  .first_failed = -1};
    hy_status status = HY_ERR_MEMORY;
    if (l.ranks && l.polled)
        status = launch(&l, exit_code);
    else
        hy_fail(status, "no memory for %d ranks", n);
    free(l.ranks);
    free(l.polled);
    return status;
}
