/* encoding.h: how text becomes tokens, and the callbacks during encoding.
 *
 * Examples and tokenised text share these settings. The dataset owns everything the struct points
 * to and outlives all users of it. */
#pragma once

#include "data/chat_template.h"

typedef struct hy_encoding {
    const hy_tokenizer *tokenizer; /* NULL: bytes */
    hy_chat_template chat;
    bool names_template; /* chosen by name: use it for rows that do not need one, too */
    bool counts_all;     /* all tokens count in the loss, not only answers */
    bool stops_at_bad;   /* a malformed row is an error, not a warning */
    int32_t seq, vocab;
    int32_t workers;
    size_t buffer; /* bytes of rows that are being encoded at a time, for all workers */
    void *user;
    void (*on_progress)(void *user, const char *what, double share); /* may be NULL */
    void (*on_warning)(void *user, const char *text);                /* may be NULL */
} hy_encoding;
