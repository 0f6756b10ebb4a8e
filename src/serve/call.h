/* call.h: one HTTP request, from its headers to the end of its answer.
 *
 * server.c makes a call for each request and hands it to libmicrohttpd; call.c reads it, runs it
 * and answers. */
#pragma once

#include <microhttpd.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "serve/guard.h"
#include "serve/links.h"
#include "serve/reply.h"
#include "serve/serve.h"

typedef enum MHD_Result hy_mhd;

struct hy_server {
    hy_generator *generator;
    const hy_server_options *options;
    hy_guard guard;
    hy_text page, page_policy;
    int64_t started; /* seconds since 1970 */
    struct MHD_Daemon *daemon;
    int listening; /* -1: no longer */
    hy_links *links;
    sem_t readers;        /* limits how many bodies are parsed at once, because that takes memory */
    atomic_int jobs;      /* that exist */
    _Atomic uint64_t ids; /* of answers */
    atomic_bool is_closing, is_ending;
    pthread_t thread; /* generates */
    bool has_thread;
    atomic_bool has_failed;
    hy_error failure;
};

typedef struct hy_route hy_route;

typedef struct hy_call {
    hy_server *server;
    struct MHD_Connection *connection;
    hy_link *link;
    const hy_route *route;     /* NULL: there is none */
    char method[8], path[128]; /* printable, perhaps shortened */
    bool names_model;          /* the path ends with the model's name */
    hy_refusal refusal;        /* known before the body has arrived */
    hy_text body;
    uint64_t received; /* bytes of the body */
    double began;
    unsigned status; /* 0: not answered */

    hy_job *job;
    hy_reply reply;
    hy_text out;               /* the answer, or events of a stream that wait to be sent */
    size_t sent;               /* of the events */
    bool has_begun, has_ended; /* the stream */
} hy_call;

/* NULL: out of memory. */
hy_call *hy_call_create(hy_server *server, struct MHD_Connection *connection, const char *method,
                        const char *path);
/* Logs and frees. */
void hy_call_destroy(hy_call *call);

/* Whether the call is refused and its client waits to be asked for the body. */
bool hy_call_is_refused_early(const hy_call *call);
/* Takes a part of the body; MHD_NO: it is far too large. */
hy_mhd hy_call_take(hy_call *call, const char *data, size_t size);
/* Answers, once the body is there. */
hy_mhd hy_call_answer(hy_call *call);
