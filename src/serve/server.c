/* server.c: listens, hands requests to calls, and ends in order. See serve.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/thread.h"
#include "serve/call.h"
#include "serve/page.h"

#define READERS 8 /* bodies that are parsed at once */
#define STACK_BYTES ((size_t)2 << 20)
#define BACKLOG 256

/* ---- libmicrohttpd's callbacks --------------------------------------------------------------- */

static void on_connection(void *user, struct MHD_Connection *connection, void **link,
                          enum MHD_ConnectionNotificationCode what) {
    hy_server *server = user;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        hy_link_close(*link);
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    *link = info ? hy_link_open(server->links, info->connect_fd) : NULL;
}

/* Called when the headers are there, for each part of the body, and at its end. */
static hy_mhd on_request(void *user, struct MHD_Connection *connection, const char *url,
                         const char *method, const char *version, const char *data, size_t *size,
                         void **state) {
    hy_call *call = *state;
    (void)version;
    if (!call) {
        call = *state = hy_call_create(user, connection, method, url);
        if (!call) return MHD_NO;
        return hy_call_is_refused_early(call) ? hy_call_answer(call) : MHD_YES;
    }
    if (*size == 0) return hy_call_answer(call);
    size_t part = *size;
    *size = 0;
    return hy_call_take(call, data, part);
}

static void on_end(void *user, struct MHD_Connection *connection, void **state,
                   enum MHD_RequestTerminationCode why) {
    (void)user, (void)connection, (void)why;
    if (*state) hy_call_destroy(*state);
    *state = NULL;
}

/* ---- the socket ------------------------------------------------------------------------------ */

static hy_status find_address(const char *host, int port, struct addrinfo **out) {
    char service[16];
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                             .ai_socktype = SOCK_STREAM};
    const char *numeric = strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    snprintf(service, sizeof service, "%d", port);
    HY_FAIL_IF(
        getaddrinfo(numeric, service, &hints, out) != 0, HY_ERR_INPUT,
        "--host is \"%s\"; accepted: localhost, or an address such as 127.0.0.1, 0.0.0.0, ::1",
        host);
    return HY_OK;
}

static hy_status take_port(hy_server *server) {
    const hy_server_options *o = server->options;
    struct addrinfo *address;
    int on = 1;
    HY_TRY(find_address(o->host, o->port, &address));
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool is_open = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                   bind(fd, address->ai_addr, address->ai_addrlen) == 0;
    int error = errno;
    freeaddrinfo(address);
    if (!is_open && fd >= 0) close(fd);
    HY_FAIL_IF(!is_open, HY_ERR_IO, "cannot listen on %s, port %d: %s", o->host, o->port,
               strerror(error));
    server->listening = fd;
    return HY_OK;
}

int hy_server_port(const hy_server *server) {
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    if (getsockname(server->listening, (struct sockaddr *)&address, &size) != 0) return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

/* ---- generating ------------------------------------------------------------------------------ */

static void *generate(void *argument) {
    hy_server *server = argument;
    hy_status status = hy_generator_serve(server->generator);
    if (status == HY_STOPPED || status == HY_OK) return NULL;
    hy_error_save(&server->failure, status);
    atomic_store(&server->has_failed, true);
    sem_post(server->options->woken);
    return NULL;
}

hy_status hy_server_failure(const hy_server *server) {
    return atomic_load(&server->has_failed) ? hy_error_restore(&server->failure) : HY_OK;
}

/* ---- start ----------------------------------------------------------------------------------- */

static hy_status check(const hy_guard *guard) {
    HY_FAIL_IF(!guard->is_loopback && !guard->key, HY_ERR_INPUT,
               "--host %s reaches other machines and needs --api-key or HYBRID_API_KEY; without a "
               "key, accepted: localhost, 127.0.0.1, ::1",
               guard->host);
    HY_FAIL_IF(guard->key && guard->key[0] == '\0', HY_ERR_INPUT,
               "the API key is empty; accepted: a text of at least one character");
    return HY_OK;
}

hy_status hy_server_create(const hy_server_options *options, hy_server **out) {
    hy_server *server = calloc(1, sizeof *server);
    HY_FAIL_IF(!server, HY_ERR_MEMORY, "out of memory for a server");
    *server = (hy_server){.options = options,
                          .guard = {.host = options->host,
                                    .is_loopback = hy_is_loopback(options->host),
                                    .key = options->api_key},
                          .listening = -1};
    sem_init(&server->readers, 0, READERS);
    hy_serve_page(&server->page);
    hy_serve_page_policy(&server->page_policy);
    hy_status status = check(&server->guard);
    if (status == HY_OK) status = hy_text_status(&server->page);
    if (status == HY_OK) status = hy_text_status(&server->page_policy);
    if (status == HY_OK) status = take_port(server);
    if (status != HY_OK) hy_server_destroy(server);
    *out = status == HY_OK ? server : NULL;
    return status;
}

hy_status hy_server_start(hy_server *server, hy_generator *generator) {
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                     MHD_USE_POLL | MHD_USE_ITC;
    server->generator = generator;
    server->started = (int64_t)time(NULL);
    HY_TRY(hy_links_create(server->options->patience, &server->links));
    server->has_thread = hy_thread_start(&server->thread, "hy-generate", generate, server) == 0;
    HY_FAIL_IF(!server->has_thread, HY_ERR_MEMORY, "no thread can be started to generate");
    HY_FAIL_IF(listen(server->listening, BACKLOG) != 0, HY_ERR_IO, "cannot listen on %s: %s",
               server->options->host, strerror(errno));
    server->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, server, MHD_OPTION_LISTEN_SOCKET, server->listening,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_NOTIFY_COMPLETED, on_end,
        server, MHD_OPTION_CONNECTION_LIMIT, (unsigned)server->options->max_connections,
        MHD_OPTION_THREAD_STACK_SIZE, STACK_BYTES, MHD_OPTION_END);
    HY_FAIL_IF(!server->daemon, HY_ERR_IO, "the HTTP server cannot be started");
    return HY_OK;
}

/* ---- stop ------------------------------------------------------------------------------------ */

static void wait_a_moment(void) {
    struct timespec moment = {.tv_nsec = 10000000};
    nanosleep(&moment, NULL);
}

void hy_server_close(hy_server *server) {
    if (atomic_exchange(&server->is_closing, true)) return;
    MHD_quiesce_daemon(server->daemon);
    close(server->listening);
    server->listening = -1;
    hy_links_cut_idle(server->links);
}

int hy_server_busy(hy_server *server) { return hy_links_busy(server->links); }

/* Clients read why their answers ended, and the generator ends what was cancelled. */
static void end_calls(hy_server *server) {
    enum { MOMENTS = 100 };
    atomic_store(&server->is_closing, true);
    atomic_store(&server->is_ending, true);
    hy_links_stop_jobs(server->links);
    for (int i = 0; i < MOMENTS && hy_server_busy(server) > 0; i++) wait_a_moment();
    MHD_stop_daemon(server->daemon);
    for (int i = 0; i < MOMENTS && atomic_load(&server->jobs) > 0; i++) {
        if (atomic_load(&server->has_failed)) break;
        wait_a_moment();
    }
}

void hy_server_destroy(hy_server *server) {
    if (!server) return;
    if (server->daemon) end_calls(server);
    if (server->has_thread) {
        hy_generator_request_stop(server->generator);
        pthread_join(server->thread, NULL);
    }
    hy_links_destroy(server->links);
    if (server->listening >= 0 && !server->daemon) close(server->listening);
    sem_destroy(&server->readers);
    hy_text_free(&server->page);
    hy_text_free(&server->page_policy);
    free(server);
}
