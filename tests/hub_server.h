/* hub_server.h: a small hub in a thread of the test, on a port of this machine.
 *
 * It answers the requests of hy_download: the list of files with checksums, and the files, whole or
 * from a byte on. It can also simulate faults. It serves one connection at a time, with one request
 * each. */
#ifndef HY_TESTS_HUB_SERVER_H
#define HY_TESTS_HUB_SERVER_H

#include "harness.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

#include "base/sha.h"
#include "base/text.h"

#define HUB_COMMIT "0123456789abcdef0123456789abcdef01234567"

typedef struct hub_file {
    const char *name, *data;
    size_t size;
    bool is_large;       /* listed with a SHA-256, else as git does */
    const char *instead; /* what is sent, where it is not what is listed */
} hub_file;

typedef struct hub_server {
    hub_file files[16];
    int file_count;
    const char *commit;
    /* How it misbehaves. */
    size_t cut_at;         /* bytes of a large file, after which it hangs up; 0: it does not */
    size_t other_cut_at;   /* every second time after these instead; 0: always the same */
    int cuts;              /* how often */
    int status_after_cuts; /* of requests for files then; 0: all is well */
    bool has_no_ranges;    /* always sends files whole */
    int list_status, file_status; /* other than 200 */
    const char *error_code;       /* beside them */
    const char *sends_to;         /* large files are at this address, followed by their name */
    /* What it saw. */
    int requests;
    size_t bytes_sent;       /* of files */
    char token[256];         /* of the latest request; "": none came */
    char target[1024];       /* what it asked for */
    unsigned long long from; /* and from where */
    int socket;
    char url[64];
    pthread_t thread;
} hub_server;

static inline void hub_send(int to, const void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t sent = send(to, (const char *)data + done, size - done, MSG_NOSIGNAL);
        if (sent <= 0) return; /* the other side has had enough */
        done += (size_t)sent;
    }
}

static inline void hub_answer(int to, int status, const char *headers, size_t length) {
    char head[2048];
    int size = snprintf(head, sizeof head,
                        "HTTP/1.1 %d Words\r\n%sContent-Length: %zu\r\nConnection: close\r\n\r\n",
                        status, headers, length);
    hub_send(to, head, (size_t)size);
}

static inline void hub_hash(const hub_file *file, char out[HY_SHA_HEX]) {
    hy_sha sha;
    char head[64];
    int size = snprintf(head, sizeof head, "blob %zu", file->size);
    hy_sha_init(&sha, file->is_large ? HY_SHA256 : HY_SHA1);
    if (!file->is_large) hy_sha_add(&sha, head, (size_t)size + 1);
    hy_sha_add(&sha, file->data, file->size);
    hy_sha_text(&sha, out);
}

static inline void hub_send_list(hub_server *s, int to) {
    hy_text list = {0};
    hy_text_addf(&list, "{\"id\": \"x\", \"sha\": \"%s\", \"siblings\": [", s->commit);
    for (int i = 0; i < s->file_count; i++) {
        const hub_file *f = &s->files[i];
        char hash[HY_SHA_HEX];
        hub_hash(f, hash);
        hy_text_addf(&list, "%s{\"rfilename\": \"%s\", \"size\": %zu, ", i ? ", " : "", f->name,
                     f->size);
        hy_text_addf(&list,
                     f->is_large
                         ? "\"blobId\": \"00\", \"lfs\": {\"sha256\": \"%s\", \"size\": %zu}}"
                         : "\"blobId\": \"%s\"}",
                     hash, f->size);
    }
    hy_text_add(&list, "]}");
    hub_answer(to, 200, "Content-Type: application/json\r\n", list.size);
    hub_send(to, list.data, list.size);
    hy_text_free(&list);
}

static inline void hub_send_file(hub_server *s, int to, const hub_file *f) {
    char headers[256] = "";
    const char *data = f->instead ? f->instead : f->data;
    size_t all = f->instead ? strlen(f->instead) : f->size;
    size_t from = s->has_no_ranges ? 0 : (size_t)s->from;
    if (from && from >= all) {
        hub_answer(to, 416, "", 0);
        return;
    }
    if (from)
        snprintf(headers, sizeof headers, "Content-Range: bytes %zu-%zu/%zu\r\n", from, all - 1,
                 all);
    hub_answer(to, from ? 206 : 200, headers, all - from);
    size_t cut_at = s->other_cut_at && s->cuts % 2 ? s->other_cut_at : s->cut_at;
    bool is_cut = f->is_large && s->cuts > 0 && cut_at < all - from;
    size_t size = is_cut ? cut_at : all - from;
    if (is_cut && --s->cuts == 0 && s->status_after_cuts) s->file_status = s->status_after_cuts;
    hub_send(to, data + from, size);
    s->bytes_sent += size;
}

static inline void hub_respond(hub_server *s, int to) {
    char headers[2048] = "";
    const char *name = strrchr(s->target, '/');
    const hub_file *file = NULL;
    bool is_list = strncmp(s->target, "/api/", 5) == 0;
    int status = is_list ? s->list_status : s->file_status;
    for (int i = 0; i < s->file_count; i++)
        if (name && strcmp(name + 1, s->files[i].name) == 0) file = &s->files[i];
    if (s->error_code) snprintf(headers, sizeof headers, "X-Error-Code: %s\r\n", s->error_code);
    if (status) {
        hub_answer(to, status, headers, 0);
    } else if (is_list) {
        hub_send_list(s, to);
    } else if (!file) {
        hub_answer(to, 404, "", 0);
    } else if (file->is_large && s->sends_to) {
        snprintf(headers, sizeof headers, "Location: %s/%s\r\n", s->sends_to, file->name);
        hub_answer(to, 302, headers, 0);
    } else {
        hub_send_file(s, to, file);
    }
}

static inline void *hub_serve(void *user) {
    hub_server *s = user;
    for (;;) {
        char request[8192];
        size_t size = 0;
        int to = accept(s->socket, NULL, NULL);
        if (to < 0) return NULL; /* it was shut down */
        ssize_t got = 1;
        while (size < sizeof request - 1 && got > 0) {
            got = recv(to, request + size, sizeof request - 1 - size, 0);
            if (got > 0) size += (size_t)got;
            request[size] = 0;
            if (strstr(request, "\r\n\r\n")) break;
        }
        s->token[0] = s->target[0] = 0;
        s->from = 0;
        s->requests++;
        sscanf(request, "GET %1023s", s->target);
        const char *token = strstr(request, "\r\nAuthorization: Bearer ");
        const char *range = strstr(request, "\r\nRange: bytes=");
        if (token) sscanf(token, "\r\nAuthorization: Bearer %255s", s->token);
        if (range) sscanf(range, "\r\nRange: bytes=%llu-", &s->from);
        hub_respond(s, to);
        close(to);
    }
}

static inline void hub_start(hub_server *s) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    *s = (hub_server){.commit = HUB_COMMIT, .socket = socket(AF_INET, SOCK_STREAM, 0)};
    ck_assert_int_eq(bind(s->socket, (struct sockaddr *)&at, size), 0);
    ck_assert_int_eq(listen(s->socket, 8), 0);
    ck_assert_int_eq(getsockname(s->socket, (struct sockaddr *)&at, &size), 0);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d", ntohs(at.sin_port));
    ck_assert_int_eq(pthread_create(&s->thread, NULL, hub_serve, s), 0);
}

static inline void hub_stop(hub_server *s) {
    shutdown(s->socket, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->socket);
}

static inline hub_file *hub_add(hub_server *s, const char *name, const char *data, size_t size) {
    hub_file *file = &s->files[s->file_count++];
    *file = (hub_file){.name = name, .data = data, .size = size};
    return file;
}

#endif
