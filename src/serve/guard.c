/* guard.c: checks of headers. See guard.h. */
#include "serve/guard.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

bool hy_is_loopback(const char *host) {
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

/* Whether a Host header, with or without a port, names this host. */
static bool names(const char *header, const char *host) {
    size_t size = strlen(host);
    return strncasecmp(header, host, size) == 0 && (header[size] == '\0' || header[size] == ':');
}

static bool is_our_host(const hy_guard *guard, const char *header) {
    static const char *const loopback[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < sizeof loopback / sizeof loopback[0]; i++)
        if (names(header, loopback[i])) return true;
    return names(header, guard->host);
}

/* Whether a page of this origin was served under this Host header. */
static bool is_same_origin(const char *origin, const char *host) {
    const char *name = strstr(origin, "://");
    return host && name && strcasecmp(name + 3, host) == 0;
}

void hy_guard_check_origin(const hy_guard *guard, const char *host, const char *origin,
                           hy_refusal *out) {
    if (guard->is_loopback && (!host || !is_our_host(guard, host)))
        hy_refuse(out, 403, "host_not_allowed",
                  "the header Host is \"%.100s\"; accepted: localhost, 127.0.0.1, [::1]",
                  host ? host : "");
    else if (origin && !is_same_origin(origin, host))
        hy_refuse(out, 403, "origin_not_allowed",
                  "the header Origin is \"%.100s\"; accepted: no Origin, or that of the page of "
                  "this server",
                  origin);
}

/* Compares all bytes in any case, so that the time does not tell how many were right. */
static bool is_key(const char *key, const char *given) {
    size_t size = strlen(key), given_size = strlen(given);
    volatile unsigned char difference = size != given_size;
    for (size_t i = 0; i < given_size; i++)
        difference = (unsigned char)(difference | (given[i] ^ key[i % (size + 1)]));
    return difference == 0;
}

void hy_guard_check_key(const hy_guard *guard, const char *authorization, hy_refusal *out) {
    static const char scheme[] = "Bearer ";
    if (!guard->key) return;
    bool has_key = authorization && strncasecmp(authorization, scheme, strlen(scheme)) == 0;
    if (!has_key)
        hy_refuse(out, 401, "invalid_api_key",
                  "this server needs an API key; accepted: the header Authorization: Bearer KEY");
    else if (!is_key(guard->key, authorization + strlen(scheme)))
        hy_refuse(out, 401, "invalid_api_key", "the API key is wrong");
}
