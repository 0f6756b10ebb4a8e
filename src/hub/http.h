/* http.h: fetching over HTTP and HTTPS with libcurl, which is opened when it is needed.
 *
 * One request at a time. Redirects are followed here, not by libcurl: the token goes to the host
 * that was asked first and to no other, and nothing leads from HTTPS to HTTP or to another
 * protocol. Certificates, proxies (https_proxy and its like) and speed are libcurl's own affair. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef struct hy_http hy_http;

/* HY_ERR_DEVICE with the package to install where libcurl is not here. */
hy_status hy_http_open(hy_http **out);
void hy_http_close(hy_http *http); /* NULL is fine */

typedef struct hy_http_request {
    const char *url;
    const char *token; /* for url's host alone; "": none */
    uint64_t from;     /* the first byte that is wanted */
    /* Bytes of an answer with status 200 or 206, and where in the whole they stand: not where they
     * were asked from when the server gives all of it again. A failure ends the request with its
     * status. */
    hy_status (*on_data)(void *user, uint64_t offset, const void *data, size_t size);
    void *user;
} hy_http_request;

typedef struct hy_http_answer {
    long status;         /* 200, 404, ...; 0: none came */
    bool may_be_retried; /* the connection or the server was the trouble */
    char error_code[64]; /* what the hub says beside the status: GatedRepo, RepoNotFound, ... */
} hy_http_answer;

/* HY_OK whatever the status is; HY_ERR_IO when no whole answer came. */
hy_status hy_http_get(hy_http *http, const hy_http_request *request, hy_http_answer *answer);
