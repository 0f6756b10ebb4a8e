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

/* Finds addresses, IPv4 first: rank 0 and the others must choose the same one. */
static hy_status find_addresses(const char *host, uint16_t port, struct addrinfo **out) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *later = NULL, **v4 = out, **v6 = &later;
    char service[8];
    snprintf(service, sizeof service, "%d", port);
    int error = getaddrinfo(host, service, &wanted, out);
    HY_FAIL_IF(error != 0, HY_ERR_INPUT, "the host \"%s\" has no address: %s", host,
               gai_strerror(error));
    for (struct addrinfo *a = *out; a; a = a->ai_next) {
        struct addrinfo ***end = a->ai_family == AF_INET ? &v4 : &v6;
        **end = a;
        *end = &a->ai_next;
    }
    *v6 = NULL;
    *v4 = later;
    return HY_OK;
}

static bool name_address(const struct sockaddr *address, socklen_t size, char *out, size_t room) {
    char text[NI_MAXHOST] = "";
    bool is_named = getnameinfo(address, size, text, sizeof text, NULL, 0, NI_NUMERICHOST) == 0;
    /* A socket for both versions shows IPv4 addresses in this form. */
    bool is_mapped = is_named && strncmp(text, "::ffff:", 7) == 0;
    snprintf(out, room, "%s", text + (is_mapped ? 7 : 0));
    return is_named;
}

hy_status hy_net_find_own(const char *host, char *out, size_t size) {
    struct addrinfo *found;
    char one[INET6_ADDRSTRLEN + 32];
    out[0] = 0;
    HY_TRY(find_addresses(host, 0, &found));
    for (struct addrinfo *a = found; a; a = a->ai_next) {
        int fd = bind_to(a->ai_addr, a->ai_addrlen);
        bool is_better = fd >= 0 && name_address(a->ai_addr, a->ai_addrlen, one, sizeof one) &&
                         (!out[0] || (hy_net_is_loopback(out) && !hy_net_is_loopback(one)));
        if (is_better) snprintf(out, size, "%s", one);
        hy_net_close(&fd);
    }
    freeaddrinfo(found);
    return HY_OK;
}

hy_status hy_net_listen(const char *address, uint16_t port, int *fd, bool *is_taken) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct addrinfo *found = NULL;
    *fd = -1;
    *is_taken = false;
    if (address[0]) {
        HY_TRY(find_addresses(address, port, &found));
        *fd = bind_to(found->ai_addr, found->ai_addrlen);
    } else {
        /* The IPv6 socket serves both versions. */
        *fd = bind_to((struct sockaddr *)&v6, sizeof v6);
        if (*fd < 0 && errno != EADDRINUSE) *fd = bind_to((struct sockaddr *)&v4, sizeof v4);
    }
    int error = errno;
    if (found) freeaddrinfo(found);
    *is_taken = *fd < 0 && (error == EADDRINUSE || error == EACCES);
    HY_FAIL_IF(*fd < 0, HY_ERR_IO, "cannot listen on port %d%s%s: %s", port,
               address[0] ? " of " : "", address, strerror(error));
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

hy_status hy_net_listen_here(const char *name, int *fd, bool *is_taken) {
    struct sockaddr_un address;
    socklen_t size = unix_name(name, &address);
    *fd = bind_to((struct sockaddr *)&address, size);
    *is_taken = *fd < 0 && errno == EADDRINUSE;
    HY_FAIL_IF(*fd < 0, HY_ERR_IO, "cannot listen at Unix socket %s: %s", name, strerror(errno));
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
    struct addrinfo *found;
    *fd = -1;
    HY_TRY(find_addresses(address, port, &found));
    for (struct addrinfo *a = found; a && *fd < 0; a = a->ai_next)
        *fd = connect_to(a->ai_addr, a->ai_addrlen, deadline);
    int error = errno;
    freeaddrinfo(found);
    HY_FAIL_IF(*fd < 0, HY_ERR_IO, "cannot connect to %s, port %d: %s", address, port,
               strerror(error));
    return HY_OK;
}

hy_status hy_net_connect_here(const char *name, int *fd) {
    struct sockaddr_un address;
    socklen_t size = unix_name(name, &address);
    int user;
    *fd = connect_to((struct sockaddr *)&address, size, 0);
    HY_FAIL_IF(*fd < 0, HY_ERR_IO, "cannot connect to Unix socket %s: %s", name, strerror(errno));
    bool is_own = hy_net_is_own_user(*fd, &user);
    if (!is_own) hy_net_close(fd);
    HY_FAIL_IF(!is_own, HY_ERR_IO,
               "user %d listens at Unix socket %s: expected the user of this rank", user, name);
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

static void name_end(int fd, int (*get)(int, struct sockaddr *, socklen_t *), char *out,
                     size_t size) {
    struct sockaddr_storage name = {0};
    socklen_t bytes = sizeof name;
    out[0] = 0;
    if (get(fd, (struct sockaddr *)&name, &bytes) == 0 && name.ss_family != AF_UNIX)
        name_address((struct sockaddr *)&name, bytes, out, size);
}

void hy_net_peer(int fd, char *out, size_t size) { name_end(fd, getpeername, out, size); }
void hy_net_own(int fd, char *out, size_t size) { name_end(fd, getsockname, out, size); }

bool hy_net_is_unix(int fd) {
    int family = 0;
    socklen_t size = sizeof family;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 && family == AF_UNIX;
}

bool hy_net_is_own_user(int fd, int *user) {
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t size = sizeof peer;
    if (!hy_net_is_unix(fd)) return true;
    bool is_known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
    *user = (int)peer.uid;
    return is_known && peer.uid == geteuid();
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
