/* http.c: requests through libcurl. See http.h.
 *
 * The library is opened at run time, like OpenBLAS and NVML, with the few declarations below:
 * the numbers of its options have not changed since version 7. */
#include "hub/http.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "hybrid.h"

enum {
    OPT_URL = 10002,
    OPT_WRITE_DATA = 10001,
    OPT_ERROR_BUFFER = 10010,
    OPT_USER_AGENT = 10018,
    OPT_HEADERS = 10023,
    OPT_HEADER_DATA = 10029,
    OPT_WRITE_FUNCTION = 20011,
    OPT_HEADER_FUNCTION = 20079,
    OPT_LOW_SPEED_LIMIT = 19,
    OPT_LOW_SPEED_TIME = 20,
    OPT_CONNECT_TIMEOUT = 78,
    OPT_NO_SIGNAL = 99,
    OPT_PROTOCOLS = 181,
    INFO_STATUS = 0x200002,
    IS_OK = 0,
    BAD_CERTIFICATE = 60,
    BAD_CA_FILE = 77,
    HTTP_AND_HTTPS = 1 | 2,
    ERROR_BYTES = 256, /* libcurl writes at most this much */
    URL_BYTES = 8192,
    MOST_HOPS = 8
};

typedef struct header_list header_list;

struct hy_http {
    void *library, *handle;
    void *(*create)(void);
    int (*set)(void *handle, int option, ...);
    int (*perform)(void *handle);
    int (*info)(void *handle, int what, ...);
    void (*destroy)(void *handle);
    header_list *(*add_header)(header_list *list, const char *line);
    void (*free_headers)(header_list *list);
    char error[ERROR_BYTES];
};

/* One running request to one address. */
typedef struct exchange {
    hy_http *http;
    const hy_http_request *request;
    hy_http_answer *answer;
    unsigned long long first; /* the offset in a partial answer */
    bool is_ranged;           /* the answer has a Content-Range */
    uint64_t got;             /* bytes so far */
    hy_status failure;
    char location[URL_BYTES]; /* target of a redirect; "": none */
} exchange;

/* ---- the library ----------------------------------------------------------------------------- */

hy_status hy_http_open(hy_http **out) {
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"};
    *out = NULL;
    hy_http *http = calloc(1, sizeof *http);
    if (!http) return hy_fail(HY_ERR_MEMORY, "not enough memory for a connection");
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !http->library; i++)
        http->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void *slot;
    } wanted[] = {
        {"curl_easy_init", &http->create},           {"curl_easy_setopt", &http->set},
        {"curl_easy_perform", &http->perform},       {"curl_easy_getinfo", &http->info},
        {"curl_easy_cleanup", &http->destroy},       {"curl_slist_append", &http->add_header},
        {"curl_slist_free_all", &http->free_headers}};
    bool has_all = http->library;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && has_all; i++) {
        void *found = dlsym(http->library, wanted[i].name);
        memcpy(wanted[i].slot, &found, sizeof found);
        has_all = found;
    }
    if (has_all) http->handle = http->create();
    if (http->handle) {
        *out = http;
        return HY_OK;
    }
    hy_http_close(http);
    return hy_fail(HY_ERR_DEVICE, has_all ? "libcurl failed to start"
                                          : "downloads need libcurl, which is not installed: sudo "
                                            "apt-get install libcurl4 (Debian and Ubuntu)");
}

/* The library stays open: its dependencies may not survive unloading. */
void hy_http_close(hy_http *http) {
    if (!http) return;
    if (http->handle) http->destroy(http->handle);
    free(http);
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* The length of "https://host:port" at the start; 0: it does not start like that. */
static size_t origin_size(const char *url) {
    size_t scheme = strncasecmp(url, "https://", 8) == 0  ? 8
                    : strncasecmp(url, "http://", 7) == 0 ? 7
                                                          : 0;
    size_t host = scheme ? strcspn(url + scheme, "/?#") : 0;
    return host ? scheme + host : 0;
}

/* In "http://user@host" the host is easy to misread, so such an address never gets the token. */
static bool has_same_origin(const char *a, const char *b) {
    size_t size = origin_size(a);
    return size && size == origin_size(b) && strncasecmp(a, b, size) == 0 && !memchr(a, '@', size);
}

/* The target of `location` in an answer from `url`: a full address, or a path on the same host. */
static hy_status follow(char url[URL_BYTES], const char *location) {
    char next[URL_BYTES];
    bool is_path = location[0] == '/' && location[1] != '/';
    int origin = is_path ? (int)origin_size(url) : 0;
    int size = snprintf(next, sizeof next, "%.*s%s", origin, url, location);
    bool leaves_https = strncasecmp(url, "https:", 6) == 0 && strncasecmp(next, "https:", 6) != 0;
    HY_FAIL_IF(size >= (int)sizeof next || !origin_size(next) || leaves_https, HY_ERR_IO,
               "%.300s redirects to %.300s, which is not followed", url, location);
    memcpy(url, next, (size_t)size + 1);
    return HY_OK;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The value of "Name: value" if `line` is that header; NULL: another header. */
static const char *value_of(const char *line, const char *name) {
    size_t size = strlen(name);
    if (strncasecmp(line, name, size) != 0 || line[size] != ':') return NULL;
    return line + size + 1 + strspn(line + size + 1, " \t");
}

static void take(const char *value, char *out, size_t size) {
    size_t length = 0;
    if (!value) return;
    while (isgraph((unsigned char)value[length])) length++;
    if (length < size) snprintf(out, size, "%.*s", (int)length, value);
}

static size_t on_header(char *data, size_t one, size_t count, void *user) {
    exchange *e = user;
    char line[URL_BYTES + 64];
    size_t size = one * count;
    if (size >= sizeof line) return size; /* no header that we read is that long */
    memcpy(line, data, size);
    line[size] = 0;
    const char *range = value_of(line, "Content-Range");
    take(value_of(line, "Location"), e->location, sizeof e->location);
    take(value_of(line, "X-Error-Code"), e->answer->error_code, sizeof e->answer->error_code);
    if (range) e->is_ranged = sscanf(range, "bytes %llu-", &e->first) == 1;
    return size;
}

static size_t on_body(char *data, size_t one, size_t count, void *user) {
    exchange *e = user;
    size_t size = one * count;
    long status = 0;
    e->http->info(e->http->handle, INFO_STATUS, &status);
    if (status != 200 && status != 206) return size; /* an error page */
    uint64_t offset = (status == 206 ? e->first : 0) + e->got;
    e->failure =
        status == 206 && !e->is_ranged
            ? hy_fail(HY_ERR_IO, "%.300s: the server sent a part of the file without its offset",
                      e->request->url)
            : e->request->on_data(e->request->user, offset, data, size);
    e->got += size;
    return e->failure == HY_OK ? size : 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

static header_list *make_headers(hy_http *http, const hy_http_request *request, bool gets_token) {
    char line[4096 + 64];
    header_list *list = NULL;
    if (request->from) {
        snprintf(line, sizeof line, "Range: bytes=%llu-", (unsigned long long)request->from);
        list = http->add_header(list, line);
    }
    if (gets_token) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", request->token);
        list = http->add_header(list, line);
    }
    return list;
}

/* One exchange with one host. */
static hy_status ask(exchange *e, const char *url) {
    hy_http *http = e->http;
    bool gets_token = e->request->token[0] && has_same_origin(url, e->request->url);
    header_list *headers = make_headers(http, e->request, gets_token);
    e->location[0] = 0;
    http->error[0] = 0;
    http->set(http->handle, OPT_URL, url);
    http->set(http->handle, OPT_HEADERS, headers);
    http->set(http->handle, OPT_WRITE_FUNCTION, on_body);
    http->set(http->handle, OPT_WRITE_DATA, e);
    http->set(http->handle, OPT_HEADER_FUNCTION, on_header);
    http->set(http->handle, OPT_HEADER_DATA, e);
    http->set(http->handle, OPT_ERROR_BUFFER, http->error);
    http->set(http->handle, OPT_USER_AGENT, "hybrid-train/" HYBRID_VERSION);
    http->set(http->handle, OPT_PROTOCOLS, (long)HTTP_AND_HTTPS);
    http->set(http->handle, OPT_CONNECT_TIMEOUT, 30L);
    /* give up after a minute without a byte */
    http->set(http->handle, OPT_LOW_SPEED_LIMIT, 1L);
    http->set(http->handle, OPT_LOW_SPEED_TIME, 60L);
    http->set(http->handle, OPT_NO_SIGNAL, 1L);
    int result = http->perform(http->handle);
    http->info(http->handle, INFO_STATUS, &e->answer->status);
    http->set(http->handle, OPT_HEADERS, NULL);
    http->free_headers(headers);
    HY_TRY(e->failure);
    if (result == IS_OK) return HY_OK;
    bool is_certificate = result == BAD_CERTIFICATE || result == BAD_CA_FILE;
    e->answer->may_be_retried = !is_certificate;
    return hy_fail(
        HY_ERR_IO, "%.300s: %s%s", url, http->error[0] ? http->error : "the connection failed",
        is_certificate ? "; if the system has no certificates: sudo apt-get install ca-certificates"
                       : "");
}

hy_status hy_http_get(hy_http *http, const hy_http_request *request, hy_http_answer *answer) {
    char url[URL_BYTES];
    *answer = (hy_http_answer){0};
    HY_FAIL_IF((size_t)snprintf(url, sizeof url, "%s", request->url) >= sizeof url, HY_ERR_INPUT,
               "the address %.200s... is too long", request->url);
    HY_FAIL_IF(!origin_size(url), HY_ERR_INPUT,
               "%.300s is not an address; accepted: https://host/..., http://host/...", url);
    for (int hop = 0; hop < MOST_HOPS; hop++) {
        *answer = (hy_http_answer){0};
        exchange e = {.http = http, .request = request, .answer = answer};
        HY_TRY(ask(&e, url));
        long status = answer->status;
        answer->may_be_retried = status == 408 || status == 429 || status >= 500;
        if (status < 300 || status >= 400) return HY_OK;
        HY_TRY(follow(url, e.location));
    }
    return hy_fail(HY_ERR_IO, "%.300s redirects too many times", request->url);
}
