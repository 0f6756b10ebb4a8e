/* growing.c: files, decompressed text and pipes as text that may still grow. See growing.h.
 *
 * A thread writes the text of a compressed file or of standard input to an unnamed file. `size`
 * says how much of it is there; the lock protects size, is_whole and failure. */
#include "data/growing.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/error.h"
#include "base/shared_file.h"
#include "base/thread.h"

#define BLOCK ((size_t)256 << 10)
#define WAIT_NANOSECONDS 100000000 /* between two looks at is_stopped */

struct hy_growing {
    hy_shared_file *file; /* a plain file; or a thread's text: */
    hy_spool spool;
    hy_unpacker *unpacker; /* where the text comes from; NULL: standard input */
    int pipe;              /* standard input as it was */
    char *keep;            /* where standard input is stored when it ends; NULL: nowhere */
    hy_growing *before;    /* the copy of an earlier standard input of this process */
    bool is_input;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t has_grown;
    uint64_t size;
    bool is_whole;
    hy_error failure;
    atomic_bool is_closing;
};

/* Standard input, once it is copied. Only here, because the process has one. */
static hy_growing *standard_input;
static pthread_mutex_t standard_lock = PTHREAD_MUTEX_INITIALIZER;

/* The copy of what is standard input now; NULL: it was not copied. */
static hy_growing *copy_of_input(void) {
    struct stat ours, now;
    bool is_ours = standard_input && fstat(standard_input->spool.fd, &ours) == 0 &&
                   fstat(STDIN_FILENO, &now) == 0 && ours.st_dev == now.st_dev &&
                   ours.st_ino == now.st_ino;
    return is_ours ? standard_input : NULL;
}

/* ---- the thread that writes the text --------------------------------------------------------- */

static hy_status keep_copy(hy_growing *g, const char *path) {
    hy_writer *writer;
    char *block = malloc(BLOCK);
    HY_FAIL_IF(!block, HY_ERR_MEMORY, "not enough memory to store standard input");
    hy_status status = hy_writer_replace(path, &writer);
    for (uint64_t at = 0; status == HY_OK && at < g->size;) {
        ssize_t got = pread(g->spool.fd, block, BLOCK, (off_t)at);
        if (got <= 0) status = hy_fail_path("cannot read the copy of", "standard input");
        if (got > 0) status = hy_writer_put(writer, block, (size_t)got);
        at += got > 0 ? (uint64_t)got : 0;
        if (status != HY_OK) hy_writer_abandon(writer);
    }
    free(block);
    if (status == HY_OK) status = hy_writer_close(writer, true);
    /* From now on the stored file is read; the space of the unnamed one becomes free. */
    int fd = status == HY_OK ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return status;
    (void)dup2(fd, STDIN_FILENO);
    (void)dup3(fd, g->spool.fd, O_CLOEXEC);
    (void)hy_disk_close(fd);
    return HY_OK;
}

/* Reads some bytes of the source; *got is 0 at its end. */
static hy_status read_some(hy_growing *g, char *block, size_t *got) {
    *got = 0;
    if (g->unpacker) return hy_unpacker_read(g->unpacker, block, BLOCK, got);
    for (;;) {
        ssize_t here = read(g->pipe, block, BLOCK);
        if (here < 0 && errno == EINTR) continue;
        /* A non-blocking pipe that is empty. */
        struct pollfd wait = {.fd = g->pipe, .events = POLLIN};
        if (here < 0 && errno == EAGAIN && poll(&wait, 1, -1) >= 0) continue;
        if (here < 0) return hy_fail_path("cannot read", "standard input");
        *got = (size_t)here;
        return HY_OK;
    }
}

static void *write_text(void *argument) {
    hy_growing *g = argument;
    char *block = malloc(BLOCK);
    hy_status status = block ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory to read rows");
    for (size_t got = 1; got > 0 && !atomic_load(&g->is_closing);) {
        if (status == HY_OK) status = read_some(g, block, &got);
        if (status == HY_OK && hy_disk_write_at(g->spool.fd, block, got, g->size) != 0)
            status = hy_fail_path("cannot write the text of", "rows to a temporary file");
        pthread_mutex_lock(&g->lock);
        if (status == HY_OK) g->size += got;
        g->is_whole = status == HY_OK && got == 0;
        if (status != HY_OK) hy_error_save(&g->failure, status);
        pthread_cond_broadcast(&g->has_grown);
        pthread_mutex_unlock(&g->lock);
        if (status != HY_OK) break;
    }
    free(block);
    return NULL;
}

static void *copy_standard_input(void *argument) {
    hy_growing *g = argument;
    pthread_detach(pthread_self()); /* nobody waits for it */
    write_text(g);
    (void)hy_disk_close(g->pipe); /* if it goes on writing, the other program gets SIGPIPE */
    pthread_mutex_lock(&g->lock);
    g->pipe = -1;
    const char *keep = g->is_whole ? g->keep : NULL;
    pthread_mutex_unlock(&g->lock);
    hy_status status = keep ? keep_copy(g, keep) : HY_OK;
    pthread_mutex_lock(&g->lock);
    if (status != HY_OK) hy_error_save(&g->failure, status);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static hy_status start(hy_growing *g, void *(*run)(void *)) {
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->has_grown, NULL);
    HY_TRY(hy_spool_open(&g->spool));
    if (run == copy_standard_input && dup2(g->spool.fd, STDIN_FILENO) < 0)
        return hy_fail_path("cannot replace", "standard input");
    int error = hy_thread_start(&g->thread, "hybrid-rows", run, g);
    HY_FAIL_IF(error, HY_ERR_MEMORY, "cannot start the thread that reads rows: %s",
               strerror(error));
    return HY_OK;
}

/* ---- opening and reading --------------------------------------------------------------------- */

static void destroy(hy_growing *g) {
    hy_unpacker_close(g->unpacker);
    hy_shared_file_close(g->file);
    hy_spool_close(&g->spool);
    free(g);
}

hy_status hy_growing_open(const hy_input_file *file, hy_growing **out) {
    *out = NULL;
    hy_growing *copied = strcmp(file->path, HY_STANDARD_INPUT) == 0 ? copy_of_input() : NULL;
    bool is_whole;
    uint64_t size;
    if (copied && !file->packer) {
        *out = copied;
        return HY_OK;
    }
    if (copied) HY_TRY(hy_standard_input_copy(UINT64_MAX, &size, &is_whole));
    hy_growing *g = calloc(1, sizeof *g);
    HY_FAIL_IF(!g, HY_ERR_MEMORY, "not enough memory to read %s", file->path);
    g->spool.fd = g->pipe = -1;
    hy_status status = file->packer ? hy_unpacker_open(file->path, file->packer, &g->unpacker)
                                    : hy_shared_file_open(file->path, &g->file);
    if (status == HY_OK && file->packer) status = start(g, write_text);
    if (status != HY_OK) destroy(g);
    if (status == HY_OK) *out = g;
    return status;
}

void hy_growing_close(hy_growing *g) {
    if (!g || g->is_input) return;
    atomic_store(&g->is_closing, true);
    if (g->unpacker) pthread_join(g->thread, NULL);
    destroy(g);
}

/* Waits until `end` bytes are there, the text is whole, or its thread has failed. Called with the
 * lock. */
static hy_status wait_for(hy_growing *g, uint64_t end, const atomic_bool *is_stopped) {
    while (g->size < end && !g->is_whole && g->failure.status == HY_OK) {
        if (is_stopped && atomic_load(is_stopped)) return HY_STOPPED;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WAIT_NANOSECONDS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&g->has_grown, &g->lock, &until);
    }
    return g->size < end && !g->is_whole ? hy_error_restore(&g->failure) : HY_OK;
}

hy_status hy_growing_read(hy_growing *g, const hy_growing_place *place, void *dst, size_t *got,
                          bool *is_end) {
    uint64_t have = g->file ? hy_shared_file_size(g->file) : 0, offset = place->offset;
    *got = 0;
    *is_end = true;
    if (!g->file) {
        pthread_mutex_lock(&g->lock);
        hy_status status = wait_for(g, offset + place->least, place->is_stopped);
        have = g->size;
        *is_end = g->is_whole;
        pthread_mutex_unlock(&g->lock);
        HY_TRY(status);
    }
    size_t size = place->size;
    if (offset >= have) return HY_OK;
    if (size > have - offset) size = (size_t)(have - offset);
    *is_end = *is_end && offset + size == have;
    if (g->file) HY_TRY(hy_shared_file_read(g->file, offset, dst, size));
    for (ssize_t here; !g->file && *got < size; *got += (size_t)here) {
        here = pread(g->spool.fd, (char *)dst + *got, size - *got, (off_t)(offset + *got));
        if (here <= 0) return hy_fail_path("cannot read", "the temporary file of rows");
    }
    *got = size;
    return HY_OK;
}

/* ---- standard input -------------------------------------------------------------------------- */

static hy_status start_copy(void) {
    HY_FAIL_IF(isatty(STDIN_FILENO), HY_ERR_INPUT,
               "cannot read data from standard input (-): it is a terminal; expected a file or a "
               "pipe, for example: zcat a.gz | hybrid-train --data -");
    hy_growing *g = calloc(1, sizeof *g);
    HY_FAIL_IF(!g, HY_ERR_MEMORY, "not enough memory to read standard input");
    g->spool.fd = -1;
    g->pipe = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    hy_status status = g->pipe >= 0 ? start(g, copy_standard_input)
                                    : hy_fail_path("cannot read", "standard input");
    if (status != HY_OK && g->pipe >= 0) (void)hy_disk_close(g->pipe);
    if (status != HY_OK) destroy(g);
    if (status != HY_OK) return status;
    g->is_input = true;
    g->before = standard_input;
    standard_input = g;
    return HY_OK;
}

hy_status hy_standard_input_copy(uint64_t least, uint64_t *size, bool *is_whole) {
    struct stat info;
    hy_status status = HY_OK;
    pthread_mutex_lock(&standard_lock);
    bool is_open = fstat(STDIN_FILENO, &info) == 0, is_pipe = is_open && !S_ISREG(info.st_mode);
    if (!is_open)
        status = hy_fail(HY_ERR_INPUT, "cannot read data from standard input (-): it is closed");
    if (status == HY_OK && is_pipe) status = start_copy();
    hy_growing *g = copy_of_input();
    pthread_mutex_unlock(&standard_lock);
    HY_TRY(status);
    *size = (uint64_t)info.st_size;
    *is_whole = true;
    if (!g) return HY_OK;
    pthread_mutex_lock(&g->lock);
    status = wait_for(g, least, NULL);
    *size = g->size;
    *is_whole = g->is_whole;
    pthread_mutex_unlock(&g->lock);
    return status;
}

const char *hy_standard_input_name(bool is_csv) {
    return is_csv ? "standard-input.csv" : "standard-input.jsonl";
}

hy_status hy_standard_input_keep(const char *path) {
    hy_growing *g = copy_of_input();
    if (!g) return HY_OK;
    pthread_mutex_lock(&g->lock);
    bool is_ended = g->pipe < 0 && g->is_whole, is_kept = g->keep;
    if (!is_kept) g->keep = strdup(path);
    bool is_lost = !g->keep;
    pthread_mutex_unlock(&g->lock);
    HY_FAIL_IF(is_lost, HY_ERR_MEMORY, "not enough memory to store standard input");
    return is_ended && !is_kept ? keep_copy(g, path) : HY_OK;
}

void hy_standard_input_report(hy_text *warnings) {
    hy_growing *g = copy_of_input();
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    /* The text is whole, so the failure is that of storing it. */
    if (g->is_whole && g->failure.status != HY_OK) {
        hy_text_addf(warnings, "%s; --resume needs the same data on standard input again\n",
                     g->failure.text);
        g->failure = (hy_error){0};
    }
    pthread_mutex_unlock(&g->lock);
}
