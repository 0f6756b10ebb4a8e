/* on_terminal.c: runs a program on a terminal of its own and plays a person in front of it.
 *
 *     on_terminal COLUMNSxROWS STEP ... -- PROGRAM [ARGUMENT ...]
 *
 * Steps, in order: wait=TEXT (until the screen holds it), gone=TEXT (until it does not), type=KEYS
 * ("\e" is Escape, "\z" Ctrl-Z), size=COLUMNSxROWS, signal=NUMBER, run=COMMAND (in a shell), screen
 * (prints what is shown), bytes (prints how many bytes come in one second), stopped (until the
 * program is suspended), end (until it ends). A wait of more than twenty seconds prints what is
 * shown and fails. `stopped` and `end` print in what state the terminal was left. It understands
 * the sequences that hybrid-top writes; any other is counted as unknown. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define COLUMNS_MAX 500
#define ROWS_MAX 200
#define PATIENCE 20.0

static struct {
    int columns, rows, row, column;
    char cells[ROWS_MAX][COLUMNS_MAX][5];
    bool is_alternate, is_cursor_hidden, does_not_wrap, is_coloured;
    bool is_resizing; /* what comes before the next clearing was drawn for another size */
    long overflow, unknown, bytes, colours;
} screen;

static int master, slave;
static pid_t child;
static struct termios before;

/* ---- the screen ------------------------------------------------------------------------------ */

static void erase(void) {
    for (int r = 0; r < ROWS_MAX; r++)
        for (int c = 0; c < COLUMNS_MAX; c++) strcpy(screen.cells[r][c], " ");
}

static void set_mode(const char *mode, bool is_on) {
    if (strcmp(mode, "?1049") == 0) {
        screen.is_alternate = is_on;
        erase();
    } else if (strcmp(mode, "?25") == 0) {
        screen.is_cursor_hidden = !is_on;
    } else if (strcmp(mode, "?7") == 0) {
        screen.does_not_wrap = !is_on;
    } else {
        screen.unknown++;
    }
}

static void obey(const char *parameters, char letter) {
    int row = 1, column = 1;
    switch (letter) {
    case 'H':
        sscanf(parameters, "%d;%d", &row, &column);
        screen.row = row - 1;
        screen.column = column - 1;
        break;
    case 'J':
        erase();
        screen.is_resizing = false;
        break;
    case 'm':
        screen.is_coloured = strcmp(parameters, "0") != 0;
        screen.colours += screen.is_coloured;
        break;
    case 'h':
    case 'l': set_mode(parameters, letter == 'h'); break;
    default: screen.unknown++; break;
    }
}

static void put(const char *character) {
    if (screen.row < 0 || screen.row >= screen.rows || screen.column >= screen.columns) {
        screen.overflow += !screen.is_resizing;
        return;
    }
    strcpy(screen.cells[screen.row][screen.column++], character);
}

/* One byte at a time, because sequences and characters may be cut anywhere. */
static void feed(unsigned char byte) {
    static enum { TEXT, ESCAPED, SEQUENCE } state;
    static char parameters[32], character[5];
    static size_t length, wanted;
    if (byte == 0x18) { /* CAN ends a sequence that was cut */
        state = TEXT;
        length = 0;
    } else if (state == ESCAPED) {
        state = byte == '[' ? SEQUENCE : TEXT;
        screen.unknown += byte != '[';
        length = 0;
    } else if (state == SEQUENCE) {
        if (byte >= 0x40) {
            parameters[length] = '\0';
            obey(parameters, (char)byte);
            state = TEXT;
            length = 0;
        } else if (length + 1 < sizeof parameters) {
            parameters[length++] = (char)byte;
        }
    } else if (byte == 033) {
        state = ESCAPED;
    } else if (byte >= 0x80) {
        if (byte >= 0xC0) {
            length = 0;
            wanted = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
        }
        character[length++] = (char)byte;
        if (length < wanted) return;
        character[length] = '\0';
        put(character);
        length = 0;
    } else if (byte >= ' ') {
        char plain[2] = {(char)byte, '\0'};
        put(plain);
    } else if (byte == '\r') {
        screen.column = 0;
    } else if (byte == '\n') {
        screen.row++;
    } else {
        screen.unknown++;
    }
}

static void row_text(int row, char *text) {
    *text = '\0';
    for (int c = 0; c < screen.columns; c++) text += sprintf(text, "%s", screen.cells[row][c]);
    while (text[-1] == ' ') *--text = '\0';
}

static void print_screen(void) {
    static char text[COLUMNS_MAX * 5];
    for (int r = 0; r < screen.rows; r++) {
        row_text(r, text);
        puts(text);
    }
}

static bool is_shown(const char *wanted) {
    static char text[COLUMNS_MAX * 5];
    for (int r = 0; r < screen.rows; r++) {
        row_text(r, text);
        if (strstr(text, wanted) != NULL) return true;
    }
    return false;
}

/* ---- time ------------------------------------------------------------------------------------ */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Takes what the program writes, for at most this long, and returns after each piece. */
static void listen_for(double seconds) {
    unsigned char bytes[65536];
    struct pollfd source = {master, POLLIN, 0};
    if (poll(&source, 1, (int)(seconds * 1000)) <= 0) return;
    ssize_t got = read(master, bytes, sizeof bytes);
    for (ssize_t i = 0; i < got; i++) feed(bytes[i]);
    if (got > 0) screen.bytes += got;
}

static void fail(const char *what, const char *detail) {
    printf("FAILED %s %s; the screen shows:\n", what, detail);
    print_screen();
    kill(child, SIGKILL);
    exit(1);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void wait_for(const char *text, bool is_wanted) {
    double end = now() + PATIENCE;
    while (is_shown(text) != is_wanted) {
        if (now() > end) fail(is_wanted ? "no" : "still", text);
        listen_for(0.05);
    }
}

/* All at once, as a terminal sends what a key stands for. */
static void type(const char *keys) {
    char bytes[64];
    size_t count = 0;
    for (; *keys != '\0' && count < sizeof bytes; keys++) {
        char key = *keys;
        if (key == '\\') key = *++keys == 'e' ? '\033' : 0x1A;
        bytes[count++] = key;
    }
    if (write(master, bytes, count) != (ssize_t)count) fail("cannot type", keys);
}

static void resize(const char *size) {
    if (sscanf(size, "%dx%d", &screen.columns, &screen.rows) != 2) exit(2);
    screen.is_resizing = child != 0;
    struct winsize window = {.ws_row = (unsigned short)screen.rows,
                             .ws_col = (unsigned short)screen.columns};
    ioctl(master, TIOCSWINSZ, &window);
}

static void report_terminal(void) {
    struct termios after;
    tcgetattr(slave, &after);
    bool is_same = after.c_lflag == before.c_lflag && after.c_iflag == before.c_iflag &&
                   after.c_oflag == before.c_oflag && after.c_cc[VMIN] == before.c_cc[VMIN];
    printf("keys %s\n", is_same ? "restored" : "changed");
    printf("screen %s\n", screen.is_alternate ? "kept" : "restored");
    printf("cursor %s\n", screen.is_cursor_hidden ? "hidden" : "shown");
    printf("wrap %s\n", screen.does_not_wrap ? "off" : "on");
    printf("colour %s\n", screen.is_coloured ? "on" : "off");
    printf("overflow %ld\nunknown %ld\n", screen.overflow, screen.unknown);
    printf("colours %s\n", screen.colours > 0 ? "used" : "none");
}

static void wait_for_state(bool is_end) {
    double end = now() + PATIENCE;
    int status;
    while (waitpid(child, &status, WNOHANG | (is_end ? 0 : WUNTRACED)) != child) {
        if (now() > end) fail(is_end ? "no end" : "no stop", "");
        listen_for(0.02);
    }
    for (int i = 0; i < 5; i++) listen_for(0.02); /* what it wrote last */
    if (!is_end && !WIFSTOPPED(status)) fail("no stop", "but an end");
    if (is_end && WIFEXITED(status)) printf("exit %d\n", WEXITSTATUS(status));
    if (is_end && WIFSIGNALED(status)) printf("signal %d\n", WTERMSIG(status));
    report_terminal();
}

static void print_bytes(void) {
    for (int i = 0; i < 5; i++) listen_for(0.02); /* what is still on its way */
    double end = now() + 1;
    screen.bytes = 0;
    while (now() < end) listen_for(0.05);
    printf("bytes %ld\n", screen.bytes);
}

static const char *value_of(const char *step, const char *name) {
    size_t length = strlen(name);
    return strncmp(step, name, length) == 0 ? step + length : NULL;
}

static void play(const char *step) {
    const char *value;
    if ((value = value_of(step, "wait=")) != NULL)
        wait_for(value, true);
    else if ((value = value_of(step, "gone=")) != NULL)
        wait_for(value, false);
    else if ((value = value_of(step, "type=")) != NULL)
        type(value);
    else if ((value = value_of(step, "size=")) != NULL)
        resize(value);
    else if ((value = value_of(step, "signal=")) != NULL)
        kill(child, atoi(value));
    else if ((value = value_of(step, "run=")) != NULL) {
        fflush(stdout);
        if (system(value) != 0) fail("failed", value);
    } else if (strcmp(step, "screen") == 0)
        print_screen();
    else if (strcmp(step, "bytes") == 0)
        print_bytes();
    else if (strcmp(step, "stopped") == 0)
        wait_for_state(false);
    else if (strcmp(step, "end") == 0)
        wait_for_state(true);
    else
        fail("unknown step", step);
}

static void start(char **command) {
    child = fork();
    if (child != 0) return;
    setsid();
    ioctl(slave, TIOCSCTTY, 0);
    for (int i = 0; i < 3; i++) dup2(slave, i);
    close(master);
    close(slave);
    execvp(command[0], command);
    _exit(127);
}

int main(int argc, char **argv) {
    int steps = 2;
    while (steps < argc && strcmp(argv[steps], "--") != 0) steps++;
    if (steps + 1 >= argc) return 2;
    master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) return 3;
    slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    if (slave < 0 || tcgetattr(slave, &before) != 0) return 3;
    erase();
    resize(argv[1]);
    start(argv + steps + 1);
    for (int i = 2; i < steps; i++) play(argv[i]);
    return 0;
}
