/* net.c: TCP and Unix sockets. See net.h. */
#include "comm/net.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"

#define BACKLOG 1024

void hy_net_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static int new_socket(int family) {
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1;
    if (fd >= 0 && family != AF_UNIX) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

/* Waits until the socket is ready for `events`; false when the deadline has passed. */
static bool wait_for(int fd, short events, double deadline) {
    struct pollfd item = {.fd = fd, .events = events};
    for (;;) {
        double left = deadline - hy_clock();
        int ready = poll(&item, 1, left > 0 ? (int)(1e3 * left) + 1 : 0);
        if (ready > 0) return true;
        if (ready == 0 && left <= 0) return false;
        if (ready < 0 && errno != EINTR) return false;
    }
}

/* ---- listening ------------------------------------------------------------------------------- */

bool hy_net_is_loopback(const char *address) {
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strcmp(address, "localhost") == 0;
}

static int bind_to(const struct sockaddr *address, socklen_t size) {
    int fd = new_socket(address->sa_family), yes = 1, no = 0;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (address->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (bind(fd, address, size) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

hy_status hy_net_listen(const char *address, uint16_t port, int *fd, bool *is_taken) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    bool is_local = hy_net_is_loopback(address), is_v6 = !is_local || strchr(address, ':');
    v4.sin_addr.s_addr = htonl(is_local ? INADDR_LOOPBACK : INADDR_ANY);
    v6.sin6_addr = is_local ? in6addr_loopback : in6addr_any;
    *fd = is_v6 ? bind_to((struct sockaddr *)&v6, sizeof v6) : -1;
    /* Without IPv6, or for an IPv4 address; otherwise the IPv6 socket serves both. */
    if (*fd < 0 && !(is_v6 && errno == EADDRINUSE))
        *fd = bind_to((struct sockaddr *)&v4, sizeof v4);
    *is_taken = *fd < 0 && (errno == EADDRINUSE || errno == EACCES);
    HY_FAIL_IF(*fd < 0, HY_ERR_IO, "cannot listen on port %d: %s", port, strerror(errno));
    return HY_OK;
}

uint16_t hy_net_port(int fd) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } name = {0};
    socklen_t size = sizeof name;
    if (getsockname(fd, &name.any, &size) != 0) return 0;
    return ntohs(name.any.sa_family == AF_INET6 ? name.v6.sin6_port : name.v4.sin_port);
}

/* Linux's abstract names: the first byte is zero, and the length counts. */
static socklen_t unix_name(const char *name, struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t length = strnlen(name, sizeof out->sun_path - 1);
    memcpy(out->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

hy_status hy_net_listen_here(const char *name, int *fd) {
    struct sockaddr_un address;
    socklen_t size = unix_name(name, &address);
    *fd = bind_to((struct sockaddr *)&address, size);
    HY_FAIL_IF(*fd < 0, HY_ERR_IO, "cannot listen as \"%s\": %s", name, strerror(errno));
    return HY_OK;
}

int hy_net_accept(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), yes = 1;
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes); /* fails for Unix sockets */
    return fd;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static int connect_to(const struct sockaddr *address, socklen_t size, double deadline) {
    int fd = new_socket(address->sa_family), error = 0;
    socklen_t bytes = sizeof error;
    if (fd < 0) return -1;
    if (connect(fd, address, size) == 0) return fd;
    error = errno;
    if (error == EINPROGRESS) {
        if (!wait_for(fd, POLLOUT, deadline))
            error = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error == 0)
            return fd;
    }
    close(fd);
    errno = error;
    return -1;
}

hy_status hy_net_connect(const char *address, uint16_t port, double deadline, int *fd) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
    char service[8];
    *fd = -1;
    snprintf(service, sizeof service, "%d", port);
    int error = getaddrinfo(address, service, &wanted, &found);
    HY_FAIL_IF(error != 0, HY_ERR_INPUT, "the host \"%s\" has no address: %s", address,
               gai_strerror(error));
    for (struct addrinfo *a = found; a && *fd < 0; a = a->ai_next)
        *fd = connect_to(a->ai_addr, a->ai_addrlen, deadline);
    error = errno;
    freeaddrinfo(found);
    HY_FAIL_IF(*fd < 0, HY_ERR_IO, "cannot connect to %s, port %d: %s", address, port,
               strerror(error));
    return HY_OK;
}

hy_status hy_net_connect_here(const char *name, int *fd) {
    struct sockaddr_un address;
    socklen_t size = unix_name(name, &address);
    *fd = connect_to((struct sockaddr *)&address, size, 0);
    HY_FAIL_IF(*fd < 0, HY_ERR_IO, "cannot connect to \"%s\": %s", name, strerror(errno));
    return HY_OK;
}

/* ---- whole messages -------------------------------------------------------------------------- */

bool hy_net_send(int fd, const void *data, size_t size, double deadline) {
    for (size_t done = 0; done < size;) {
        ssize_t n = send(fd, (const char *)data + done, size - done, MSG_NOSIGNAL);
        bool is_broken = n < 0 && errno != EAGAIN && errno != EINTR;
        if (n > 0) done += (size_t)n;
        if (is_broken || (n <= 0 && !wait_for(fd, POLLOUT, deadline))) return false;
    }
    return true;
}

bool hy_net_receive(int fd, void *data, size_t size, double deadline) {
    for (size_t done = 0; done < size;) {
        ssize_t n = recv(fd, (char *)data + done, size - done, 0);
        bool is_broken = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
        if (n > 0) done += (size_t)n;
        if (is_broken || (n < 0 && !wait_for(fd, POLLIN, deadline))) return false;
    }
    return true;
}

/* ---- who is where ---------------------------------------------------------------------------- */

void hy_net_peer(int fd, char *out, size_t size) {
    struct sockaddr_storage name = {0};
    socklen_t bytes = sizeof name;
    out[0] = 0;
    if (getpeername(fd, (struct sockaddr *)&name, &bytes) != 0 || name.ss_family == AF_UNIX) return;
    if (getnameinfo((struct sockaddr *)&name, bytes, out, (socklen_t)size, NULL, 0,
                    NI_NUMERICHOST) != 0)
        out[0] = 0;
    /* A socket for both versions shows IPv4 addresses in this form. */
    if (strncmp(out, "::ffff:", 7) == 0) memmove(out, out + 7, strlen(out + 7) + 1);
}

uint64_t hy_net_machine(void) {
    char text[256] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t used = file ? fread(text, 1, 64, file) : 0;
    if (file) fclose(file);
    ssize_t more = readlink("/proc/self/ns/net", text + used, sizeof text - used);
    if (more > 0) used += (size_t)more;
    if (used == 0 && gethostname(text, sizeof text) == 0) used = strnlen(text, sizeof text);
    return hy_hash_bytes(text, used, 0);
}
