/* http.h: downloads over HTTP and HTTPS with libcurl, which is opened when it is needed.
 *
 * There is one request at a time. This module follows redirects itself: the token goes only to
 * the first host, and HTTPS never redirects to HTTP or another protocol. libcurl handles
 * certificates, proxies (https_proxy etc.) and speed. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_http hy_http;

/* HY_ERR_DEVICE with the package to install if libcurl is missing. */
hy_status hy_http_open(hy_http **out);
void hy_http_close(hy_http *http); /* http may be NULL */

typedef struct hy_http_request {
    const char *url;
    const char *token; /* sent only to the host of `url`; "": none */
    uint64_t from;     /* the first byte that is wanted */
    /* Bytes of an answer with status 200 or 206, and their offset in the file, which is 0 if the
     * server sends all of it again. A failure ends the request with its status. */
    hy_status (*on_data)(void *user, uint64_t offset, const void *data, size_t size);
    void *user;
} hy_http_request;

typedef struct hy_http_answer {
    long status;         /* 200, 404, ...; 0: no answer */
    bool may_be_retried; /* the connection or the server failed */
    char error_code[64]; /* the hub's error code: GatedRepo, RepoNotFound, ... */
} hy_http_answer;

/* HY_OK for every HTTP status; HY_ERR_IO if the answer is incomplete. */
hy_status hy_http_get(hy_http *http, const hy_http_request *request, hy_http_answer *answer);
