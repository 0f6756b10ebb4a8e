/* strangers.c: strangers at the rendezvous and at the links of a job, until it gets a signal.
 *
 *   strangers SEED PORT
 *
 * Up to 200 connections at a time to the sixteen ports from PORT on, and to all Unix sockets of
 * ranks. Each stranger is silent, sends garbage at once or byte by byte, leaves at once, or answers
 * a greeting as a rank would, without the secret. Sometimes it has rank 0's first port before rank
 * 0 does, and greets the ranks that come there. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "comm/wire.h"

#define STRANGERS 200
#define PORTS 16
#define GREETING_BODY 72 /* bytes after the head: see control_open.c */
#define ANSWER_BODY 192

typedef struct stranger {
    int fd; /* -1: none */
    int kind;
    int left; /* rounds until it hangs up */
} stranger;

static uint64_t state;

static unsigned draw(unsigned below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % below;
}

static int open_socket(int family) {
    return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

static struct sockaddr_in at_port(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int call_port(int port) {
    struct sockaddr_in to = at_port(port);
    int fd = open_socket(AF_INET);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 || errno == EINPROGRESS) return fd;
    close(fd);
    return -1;
}

/* A random one of the sockets that ranks have in this network namespace. */
static int call_name(void) {
    char line[512], name[108] = "";
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    unsigned found = 0;
    FILE *list = fopen("/proc/net/unix", "r");
    while (list && fgets(line, sizeof line, list)) {
        const char *at = strstr(line, "@hybrid-train-");
        if (at && draw(++found) == 0) sscanf(at, "@%107s", name);
    }
    if (list) fclose(list);
    if (!found) return -1;
    size_t length = strlen(name);
    memcpy(to.sun_path + 1, name, length);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    int fd = open_socket(AF_UNIX);
    if (connect(fd, (struct sockaddr *)&to, size) == 0) return fd;
    close(fd);
    return -1;
}

static void say(int fd, const void *data, size_t size) {
    ssize_t ignored = send(fd, data, size, MSG_NOSIGNAL);
    (void)ignored;
}

static void say_garbage(int fd, size_t size) {
    uint8_t bytes[4096];
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)draw(256);
    say(fd, bytes, size);
}

/* A message with the right head and a body that no rank would send. */
static void say_message(int fd, hy_wire_kind kind, uint32_t size) {
    uint8_t body[ANSWER_BODY] = {0};
    hy_wire_head head = {.magic = HY_WIRE_MAGIC, .kind = (uint16_t)kind, .size = size};
    for (uint32_t i = 0; i < size; i++) body[i] = (uint8_t)(draw(2) ? draw(256) : draw(3));
    say(fd, &head, sizeof head);
    say(fd, body, size);
}

static void act(stranger *s) {
    if (s->kind == 1) say_garbage(s->fd, 1 + draw(4096));
    if (s->kind == 2) say_garbage(s->fd, 1);
    if (s->kind == 3) say_message(s->fd, HY_WIRE_HELLO, ANSWER_BODY);
    if (s->kind == 4) say_message(s->fd, (hy_wire_kind)draw(12), draw(ANSWER_BODY));
    if (s->left-- > 0) return;
    close(s->fd);
    s->fd = -1;
}

/* Greets whoever connects to the port that rank 0 would have taken. */
static void greet(int listener) {
    int fd = listener >= 0 ? accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;
    if (fd < 0) return;
    if (draw(2))
        say_message(fd, HY_WIRE_GREETING, GREETING_BODY);
    else
        say_garbage(fd, 1 + draw(300));
    close(fd);
}

int main(int count, char **arguments) {
    static stranger all[STRANGERS];
    if (count != 3) return 2;
    state = strtoull(arguments[1], NULL, 10);
    int port = atoi(arguments[2]), listener = -1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (draw(3) == 0) {
        struct sockaddr_in at = at_port(port);
        listener = open_socket(AF_INET);
        if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 9) != 0) {
            close(listener);
            listener = -1;
        }
    }
    for (int i = 0; i < STRANGERS; i++) all[i].fd = -1;
    for (;;) {
        greet(listener);
        for (int i = 0; i < STRANGERS; i++) {
            stranger *s = &all[i];
            if (s->fd >= 0)
                act(s);
            else
                *s = (stranger){.fd = draw(4) ? call_port(port + (int)draw(PORTS)) : call_name(),
                                .kind = (int)draw(5),
                                .left = (int)draw(40)};
        }
        poll(NULL, 0, 10);
    }
}
