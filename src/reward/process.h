/* process.h: a shell command in its own process group, with pipes to its three streams.
 *
 * Our ends of the pipes are non-blocking and closed by exec; the command inherits no other
 * descriptor. It stays a zombie until hy_process_stop, so that its group cannot be mistaken for
 * another one. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "hybrid_types.h"

typedef struct hy_process {
    pid_t pid;                 /* 0: not started, or stopped */
    int input, output, errors; /* our ends; -1: closed */
} hy_process;

#define HY_NO_PROCESS ((hy_process){.input = -1, .output = -1, .errors = -1})

/* How a process ended, as the end of a sentence: "ended with exit status 1". */
typedef struct hy_process_end {
    char text[96];
} hy_process_end;

/* Runs `sh -c COMMAND`. All signals have their default action and are unblocked in it. */
hy_status hy_process_start(const char *command, hy_process *out);
/* Whether the shell has ended; `end` (may be NULL) says how. */
bool hy_process_has_ended(const hy_process *process, hy_process_end *end);
/* Writes what the pipe takes, without SIGPIPE; returns the number of bytes. A program that does not
 * read any more has its input closed. */
size_t hy_process_write(hy_process *process, const char *data, size_t size);
/* Reads what is there from *fd, once; returns the number of bytes. *fd is closed at its end. */
size_t hy_process_read(int *fd, char *buffer, size_t size);
void hy_process_close_input(hy_process *process);
/* Closes the pipes, kills the process group and waits for the shell. */
void hy_process_stop(hy_process *process);
