/* encoding.h: how text of any kind becomes tokens, and who is told on the way.
 *
 * What examples and tokenised text have in common. Everything pointed to belongs to the dataset and
 * outlives what is made with it. */
#pragma once

#include "data/chat_template.h"

typedef struct hy_encoding {
    const hy_tokenizer *tokenizer; /* NULL: bytes */
    hy_chat_template chat;
    bool names_template; /* it was asked for: also for rows that do without */
    bool counts_all;     /* the loss is of all tokens, not of answers alone */
    bool stops_at_bad;   /* a malformed row is an error, not a warning */
    int32_t seq, vocab;
    int32_t workers;
    size_t buffer; /* bytes of rows that are in work at a time, all workers together */
    void *user;
    void (*on_progress)(void *user, const char *what, double share); /* or NULL */
    void (*on_warning)(void *user, const char *text);                /* or NULL */
} hy_encoding;
