/* hold_memory.c: takes memory of a card and keeps it, so that a large card behaves as a smaller
 * one.
 *
 * Takes all that is free but --leave MiB, in large pieces first and smaller ones for the rest,
 * prints one line when it holds them, and waits. It lets go when it gets SIGTERM or SIGINT, or when
 * its standard input, where that is a pipe or a terminal, is closed. Whoever computes meanwhile
 * pays for its own context out of what is left, as on a real card.
 *   build/bench/hold_memory --leave 16303 [--device N] &
 *
 * Without --leave it takes nothing and says how it is used. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda_driver.h"

#define MIB ((size_t)1 << 20)
#define LARGEST_PIECE (4096 * MIB)
#define SMALLEST_PIECE (2 * MIB) /* the driver gives memory in pages of this size */
#define PIECES_MAX 4096

typedef struct held {
    uint64_t pieces[PIECES_MAX];
    int count;
    size_t bytes;
} held;

/* ---- taking ---------------------------------------------------------------------------------- */

static size_t free_bytes(const cuda_driver *d) {
    size_t now = 0, total = 0;
    return d->mem_info(&now, &total) == 0 ? now : 0;
}

/* A piece that is refused, or that would leave too little, is tried at half its size. What is free
 * is asked again before each: others take and give memory too. */
static void take(const cuda_driver *d, size_t leave, held *h) {
    for (size_t piece = LARGEST_PIECE; piece >= SMALLEST_PIECE && h->count < PIECES_MAX;) {
        bool has_room = free_bytes(d) >= leave + piece;
        if (has_room && d->alloc(&h->pieces[h->count], piece) == 0) {
            h->count++;
            h->bytes += piece;
        } else {
            piece /= 2;
        }
    }
}

static void give_back(const cuda_driver *d, held *h) {
    while (h->count > 0) d->release(h->pieces[--h->count]);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static volatile sig_atomic_t was_asked;

static void on_signal(int number) {
    (void)number;
    was_asked = 1;
}

static void listen_to_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

/* A shell gives what it starts in the background /dev/null, whose end is no wish of anybody. */
static bool has_someone_at_stdin(void) {
    struct stat s;
    bool is_pipe = fstat(STDIN_FILENO, &s) == 0 && (S_ISFIFO(s.st_mode) || S_ISSOCK(s.st_mode));
    return is_pipe || isatty(STDIN_FILENO);
}

/* A second at a time, so that a signal between the look at was_asked and poll is only late. */
static void wait_for_end(void) {
    struct pollfd in = {.fd = has_someone_at_stdin() ? STDIN_FILENO : -1, .events = POLLIN};
    while (!was_asked) {
        char text[256];
        if (poll(&in, 1, 1000) <= 0) continue;
        ssize_t size = read(STDIN_FILENO, text, sizeof text);
        if (size == 0 || (size < 0 && errno != EINTR)) return;
    }
}

/* ---- the command line ------------------------------------------------------------------------ */

static int usage(FILE *to) {
    fprintf(to, "usage: hold_memory --leave MIB [--device N]\nAllocates all free memory of a card "
                "except MIB mebibytes. Holds it until SIGTERM, or until\na pipe or terminal at "
                "standard input is closed.\n");
    return to == stderr ? 2 : 0;
}

static bool parse(int argc, char **argv, long *leave, long *device) {
    *leave = -1;
    *device = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        char *end;
        long value = strtol(argv[i + 1], &end, 10);
        bool is_leave = strcmp(argv[i], "--leave") == 0;
        if (!is_leave && strcmp(argv[i], "--device") != 0) return false;
        if (*end || end == argv[i + 1] || value < 0 || value > 1 << 24) return false;
        *(is_leave ? leave : device) = value;
    }
    return argc % 2 == 1 && *leave >= 0;
}

static int fail(const char *what, int error) {
    fprintf(stderr, "hold_memory: %s (driver error %d)\n", what, error);
    return 1;
}

static int use_card(const cuda_driver *d, int ordinal) {
    int device, error;
    void *context;
    if ((error = d->init(0)) != 0) return fail("the driver cannot be initialised", error);
    if ((error = d->device_get(&device, ordinal)) != 0)
        return fail("there is no card with this number", error);
    if ((error = d->retain_context(&context, device)) != 0) return fail("no context", error);
    return (error = d->set_context(context)) == 0 ? 0 : fail("no context", error);
}

int main(int argc, char **argv) {
    static held h; /* large for a stack */
    cuda_driver d;
    long leave, device;
    bool wants_help = argc == 1 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
    if (wants_help) return usage(stdout);
    if (!parse(argc, argv, &leave, &device)) return usage(stderr);
    if (!cuda_driver_open(&d)) {
        fprintf(stderr, "hold_memory: no NVIDIA driver found\n");
        return 1;
    }
    if (use_card(&d, (int)device) != 0) return 1;
    listen_to_signals();
    take(&d, (size_t)leave * MIB, &h);
    printf("holding %zu MiB, %zu MiB left\n", h.bytes / MIB, free_bytes(&d) / MIB);
    fflush(stdout);
    wait_for_end();
    give_back(&d, &h);
    return 0;
}
