/* guard.h: who may ask: checks of the headers Host, Origin and Authorization.
 *
 * A server on this machine's own address has no key by default, so a page of another site in the
 * user's browser must not reach it: neither under a name of its own that it lets point here (DNS
 * rebinding: the header Host) nor directly (the header Origin). */
#pragma once

#include "serve/refusal.h"

typedef struct hy_guard {
    const char *host; /* the address that is served, as it was given */
    bool is_loopback;
    const char *key; /* NULL: none is needed */
} hy_guard;

/* Whether an address reaches only this machine. */
bool hy_is_loopback(const char *host);

/* Headers: NULL if absent. */
void hy_guard_check_origin(const hy_guard *guard, const char *host, const char *origin,
                           hy_refusal *out);
void hy_guard_check_key(const hy_guard *guard, const char *authorization, hy_refusal *out);
