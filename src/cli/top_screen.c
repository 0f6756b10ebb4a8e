/* top_screen.c: keys, the alternate screen, and signals.
 *
 * Signal handlers use only what POSIX allows: write(), tcsetattr(), lock-free atomics and raise().
 * A handler sets a flag and writes a byte into a pipe that the main loop waits on, so that no
 * signal is lost between checking and waiting. A second request to end stops the program at
 * once. */
#include "cli/top_screen.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "cli/program.h"

#define ENTER "\033[?1049h\033[?25l\033[?7l\033[2J\033[H"
#define LEAVE "\030\033[0m\033[?7h\033[?25h\033[?1049l"
#define ESCAPE_MILLISECONDS 200 /* the rest of a key's escape sequence arrives within this time */

static struct termios as_found;
static atomic_bool has_keys; /* standard input is a terminal and its mode was changed */
static atomic_bool is_entered;
static atomic_bool wants_end, wants_suspend, wants_redraw;
static int wake[2] = {-1, -1};
static char typed[64]; /* read but not yet returned */
static size_t typed_count;

/* ---- restoring the terminal ------------------------------------------------------------------ */

/* Also called in signal handlers. */
void hy_top_screen_leave(void) {
    if (!atomic_exchange(&is_entered, false)) return;
    ssize_t ignored = write(STDOUT_FILENO, LEAVE, sizeof LEAVE - 1);
    (void)ignored; /* an error here cannot be reported */
    if (!atomic_load(&has_keys)) return;
    tcflush(STDIN_FILENO, TCIFLUSH);
    tcsetattr(STDIN_FILENO, TCSANOW, &as_found); /* without waiting: output may be suspended */
}

static bool take(void) {
    if (atomic_load(&has_keys)) {
        struct termios raw = as_found;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        if (tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw) != 0) return false;
    }
    atomic_store(&is_entered, true);
    return hy_top_screen_write(ENTER, sizeof ENTER - 1);
}

/* ---- signals --------------------------------------------------------------------------------- */

static void wake_up(void) {
    ssize_t ignored = write(wake[1], "!", 1);
    (void)ignored; /* a full pipe also wakes the reader */
}

static void on_end(int number) {
    int saved_errno = errno;
    if (atomic_exchange(&wants_end, true)) {
        hy_top_screen_leave();
        _exit(128 + number);
    }
    wake_up();
    errno = saved_errno;
}

static void on_request(int number) {
    int saved_errno = errno;
    atomic_store(number == SIGTSTP ? &wants_suspend : &wants_redraw, true);
    wake_up();
    errno = saved_errno;
}

/* The handler was removed before it was called: raising the signal again ends the program as
 * usual. */
static void on_crash(int number) {
    hy_top_screen_leave();
    raise(number);
}

/* ---- the screen ------------------------------------------------------------------------------ */

bool hy_top_screen_enter(void) {
    if (pipe2(wake, O_NONBLOCK | O_CLOEXEC) != 0) return false;
    atomic_store(&has_keys, isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &as_found) == 0);
    atexit(hy_top_screen_leave);
    enum { ONCE = (int)(SA_RESETHAND | SA_NODEFER) };
    static const struct {
        int number;
        void (*handler)(int);
        int flags;
    } signals[] = {{SIGINT, on_end, 0},       {SIGTERM, on_end, 0},      {SIGHUP, on_end, 0},
                   {SIGWINCH, on_request, 0}, {SIGCONT, on_request, 0},  {SIGTSTP, on_request, 0},
                   {SIGSEGV, on_crash, ONCE}, {SIGBUS, on_crash, ONCE},  {SIGFPE, on_crash, ONCE},
                   {SIGILL, on_crash, ONCE},  {SIGABRT, on_crash, ONCE}, {SIGQUIT, on_crash, ONCE},
                   {SIGPIPE, SIG_IGN, 0}};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        hy_cli_handle(signals[i].number, signals[i].handler, signals[i].flags);
    return take();
}

void hy_top_screen_size(int *columns, int *rows) {
    struct winsize size;
    *columns = 80;
    *rows = 24;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return;
    if (size.ws_col > 0) *columns = size.ws_col;
    if (size.ws_row > 0) *rows = size.ws_row;
}

/* A suspended terminal blocks the write; a signal ends the waiting. */
bool hy_top_screen_write(const char *bytes, size_t size) {
    while (size > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, size);
        if (written < 0 && errno == EINTR && !atomic_load(&wants_end)) continue;
        if (written <= 0) return false;
        bytes += written;
        size -= (size_t)written;
    }
    return true;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Appends typed bytes; false: the terminal is gone. */
static bool read_keys(void) {
    ssize_t got = read(STDIN_FILENO, typed + typed_count, sizeof typed - typed_count);
    if (got < 0) return errno == EINTR || errno == EAGAIN;
    typed_count += (size_t)got;
    return got > 0;
}

static void drop_typed(size_t count) {
    typed_count -= count;
    memmove(typed, typed + count, typed_count);
}

/* A sequence is ESC [ parameters letter, or ESC O letter. Returns its length, 0 while it is
 * incomplete. Any other ESC is a key of its own. */
static size_t end_of_sequence(void) {
    if (typed_count < 2) return 0;
    if (typed[1] == 'O') return typed_count > 2 ? 3 : 0;
    if (typed[1] != '[') return 1;
    for (size_t i = 2; i < typed_count; i++)
        if (typed[i] < 0x20 || typed[i] >= 0x40) return i + 1;
    return 0;
}

/* Decodes a sequence that starts with ESC. A single ESC is the key itself; an incomplete sequence
 * is ignored. */
static int take_sequence(void) {
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    while (end_of_sequence() == 0 && typed_count < sizeof typed &&
           poll(&input, 1, ESCAPE_MILLISECONDS) > 0 && read_keys())
        continue;
    size_t end = end_of_sequence();
    bool is_alone = typed_count == 1 || end == 1;
    char letter = end > 0 ? typed[end - 1] : '\0'; /* up, down, right and left are A, B, C and D */
    drop_typed(is_alone ? 1 : end > 0 ? end : typed_count);
    if (is_alone) return HY_TOP_ESCAPE;
    if (letter == 'A' || letter == 'D') return HY_TOP_PREVIOUS;
    return letter == 'B' || letter == 'C' ? HY_TOP_NEXT : HY_TOP_OTHER;
}

static int take_key(void) {
    char first = typed[0];
    if (first == '\033') return take_sequence();
    drop_typed(1);
    if (first == '\t') return HY_TOP_NEXT;
    if (first == '\f') return HY_TOP_RESIZED; /* Ctrl-L */
    return first >= ' ' && first < 0x7F ? first : HY_TOP_OTHER;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* What signals have requested since the last call. */
static int take_request(void) {
    char bytes[64];
    while (read(wake[0], bytes, sizeof bytes) > 0) continue;
    if (atomic_load(&wants_end)) return HY_TOP_END;
    if (atomic_exchange(&wants_suspend, false)) {
        /* Ctrl-Z: restores the terminal first; the shell's fg sends SIGCONT and the screen
         * returns. */
        hy_top_screen_leave();
        raise(SIGSTOP);
        atomic_store(&wants_redraw, true);
    }
    if (!atomic_exchange(&wants_redraw, false)) return HY_TOP_NO_KEY;
    if (!atomic_load(&is_entered) && !take()) return HY_TOP_END;
    return HY_TOP_RESIZED;
}

int hy_top_screen_wait(double seconds) {
    bool listens = atomic_load(&has_keys);
    struct pollfd sources[2] = {{wake[0], POLLIN, 0}, {listens ? STDIN_FILENO : -1, POLLIN, 0}};
    int request = take_request(), milliseconds = (int)fmin(fmax(ceil(seconds * 1000), 0), 1e9);
    if (request != HY_TOP_NO_KEY) return request;
    if (typed_count > 0) return take_key();
    if (poll(sources, 2, milliseconds) < 0 && errno != EINTR) return HY_TOP_END;
    request = take_request();
    if (request != HY_TOP_NO_KEY) return request;
    if (sources[1].revents == 0) return HY_TOP_NO_KEY;
    if (!read_keys()) return HY_TOP_END;
    return typed_count > 0 ? take_key() : HY_TOP_NO_KEY;
}
