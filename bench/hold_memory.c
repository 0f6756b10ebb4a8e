/* hold_memory.c: holds memory of a card, so that a large card behaves like a smaller one.
 *
 * Allocates all free memory except --leave MiB, large pieces first, prints one line when it is
 * done, and waits. It releases the memory on SIGTERM or SIGINT, or when a pipe or terminal at its
 * standard input is closed. Other programs pay for their own CUDA context from the rest, as on a
 * real card.
 *   build/bench/hold_memory --leave 16303 [--device N] &
 *
 * Without --leave it allocates nothing and prints its usage. */
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
#define SMALLEST_PIECE (2 * MIB) /* the driver allocates memory in pages of this size */
#define PIECES_MAX 4096

typedef struct held {
    uint64_t pieces[PIECES_MAX];
    int count;
    size_t bytes;
} held;

/* ---- allocating ------------------------------------------------------------------------------ */

static size_t free_bytes(const cuda_driver *d) {
    size_t now = 0, total = 0;
    return d->mem_info(&now, &total) == 0 ? now : 0;
}

/* A piece that is refused, or would leave too little, is tried again at half its size. Free memory
 * is read before each piece, because other programs allocate and free memory too. */
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

/* A shell gives background jobs /dev/null as standard input; its end is not a request to stop. */
static bool has_someone_at_stdin(void) {
    struct stat s;
    bool is_pipe = fstat(STDIN_FILENO, &s) == 0 && (S_ISFIFO(s.st_mode) || S_ISSOCK(s.st_mode));
    return is_pipe || isatty(STDIN_FILENO);
}

/* Polls for one second at a time: a signal between the check of was_asked and poll is only late. */
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
    fprintf(to, "usage: hold_memory --leave MIB [--device N]\n"
                "Allocates all free memory of a card except MIB mebibytes. Holds it until SIGTERM, "
                "or until\n"
                "a pipe or terminal at standard input is closed.\n");
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
    static held h; /* too large for the stack */
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
