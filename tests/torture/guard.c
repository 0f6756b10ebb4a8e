/* guard.c: runs a program under limits and writes down how it ended.
 *
 *   guard REPORT [OPTION ...] PROGRAM ARGUMENT ...
 *
 * REPORT gets "CODE SIGNAL KIB MILLISECONDS": exit code, signal that ended it (0: none), largest
 * resident memory, time. A program that takes longer than 20 s is killed. Options: -n FILES
 * (RLIMIT_NOFILE), -a MIB (RLIMIT_AS), -f KIB (RLIMIT_FSIZE), -u UMASK (octal), -c FD (closed), -s
 * SIGNAL:MILLISECONDS (sent after that time), -g (the folder it starts in is removed first). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECONDS_MAX 20

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void limit(int which, rlim_t value) {
    struct rlimit both = {value, value};
    if (setrlimit(which, &both) != 0) perror("guard: setrlimit");
}

int main(int argc, char **argv) {
    int option, signal_number = 0, status = 0;
    double signal_after = 0;
    const char *report = argc > 1 ? argv[1] : "";
    optind = 2;
    pid_t child = fork();
    if (child < 0) return EXIT_FAILURE;
    while ((option = getopt(argc, argv, "+n:a:f:u:c:s:g")) != -1) {
        if (option == 's') {
            long ms = 0;
            sscanf(optarg, "%d:%ld", &signal_number, &ms);
            signal_after = (double)ms * 1e-3;
        }
        if (child > 0) continue;
        long value = optarg ? strtol(optarg, NULL, option == 'u' ? 8 : 10) : 0;
        switch (option) {
        case 'n': limit(RLIMIT_NOFILE, (rlim_t)value); break;
        case 'a': limit(RLIMIT_AS, (rlim_t)value << 20); break;
        case 'f': limit(RLIMIT_FSIZE, (rlim_t)value << 10); break;
        case 'u': umask((mode_t)value); break;
        case 'c': close((int)value); break;
        case 'g': {
            char folder[] = "gone-XXXXXX", above[32];
            if (!mkdtemp(folder) || chdir(folder) != 0) break;
            snprintf(above, sizeof above, "../%s", folder);
            if (rmdir(above) != 0) perror("guard: rmdir");
            break;
        }
        default: break;
        }
    }
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        execvp(argv[optind], argv + optind);
        _exit(127);
    }
    double began = now();
    struct rusage use = {0};
    while (wait4(child, &status, WNOHANG, &use) == 0) {
        double spent = now() - began;
        if (signal_number && spent >= signal_after) {
            kill(child, signal_number);
            signal_number = 0;
        }
        if (spent > SECONDS_MAX) kill(child, SIGKILL);
        usleep(2000);
    }
    FILE *file = fopen(report, "w");
    if (!file) return EXIT_FAILURE;
    fprintf(file, "%d %d %ld %.0f\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            WIFSIGNALED(status) ? WTERMSIG(status) : 0, use.ru_maxrss, (now() - began) * 1e3);
    return fclose(file) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
