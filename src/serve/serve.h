/* serve.h: an HTTP server with OpenAI's interface over a generator. Only hybrid-serve uses it.
 *
 * Each connection has a thread of libmicrohttpd, which reads the request and waits for its answer;
 * one thread generates; one watches the connections (links.h). */
#pragma once

#include <semaphore.h>

#include "hybrid_generate.h"

typedef struct hy_server_options {
    const char *host;    /* an address; "localhost" */
    int32_t port;        /* 0: any that is free */
    const char *api_key; /* NULL: none; needed unless the host is a loopback address */
    const char *model;   /* the name under which the model is served */
    uint64_t max_body;   /* bytes of a request */
    int32_t max_connections;
    double patience;     /* seconds: see links.h */
    int32_t max_waiting; /* prompts of a request; the generator limits all of them */
    bool is_quiet;       /* no line for each request on standard error */
    sem_t *woken;        /* posted if generating ends by itself */
} hy_server_options;

typedef struct hy_server hy_server;

/* Checks the options, which must live as long as the server, and takes the port. HY_ERR_INPUT: an
 * address that is no address, or a missing key; HY_ERR_IO: the port is taken. */
hy_status hy_server_create(const hy_server_options *options, hy_server **out);
int hy_server_port(const hy_server *server);

hy_status hy_server_start(hy_server *server, hy_generator *generator);
/* HY_OK while the generator runs, else its failure. */
hy_status hy_server_failure(const hy_server *server);

/* Accepts no more connections, and answers further requests with status 503. */
void hy_server_close(hy_server *server);
int hy_server_busy(hy_server *server); /* requests in progress */

/* Ends what still runs, and all threads. The generator is the caller's. */
void hy_server_destroy(hy_server *server);
