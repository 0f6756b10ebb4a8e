/* refusal.h: an answer that is an error, written as OpenAI's servers write it.
 *
 *     {"error": {"message": .., "type": .., "param": .., "code": ..}}
 *
 * The type follows from the status. */
#pragma once

#include "base/error.h"
#include "base/json.h"

typedef struct hy_refusal {
    unsigned status;  /* of HTTP; 0: nothing is refused */
    const char *code; /* "model_not_found"; NULL: none */
    char param[64];   /* the field of the request; "": none */
    char message[HY_ERROR_MESSAGE_MAX];
} hy_refusal;

void hy_refuse(hy_refusal *out, unsigned status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The status for a failed call of the library. */
unsigned hy_refusal_status(hy_status status);

void hy_refusal_write(const hy_refusal *refusal, hy_text *out);
