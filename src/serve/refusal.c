/* refusal.c: errors as JSON. See refusal.h. */
#include "serve/refusal.h"

#include <stdio.h>

void hy_refuse(hy_refusal *out, unsigned status, const char *code, const char *format, ...) {
    va_list list;
    *out = (hy_refusal){.status = status, .code = code};
    va_start(list, format);
    vsnprintf(out->message, sizeof out->message, format, list);
    va_end(list);
}

unsigned hy_refusal_status(hy_status status) {
    switch (status) {
    case HY_ERR_INPUT: return 400;
    case HY_ERR_STATE: return 429;
    case HY_ERR_MEMORY:
    case HY_STOPPED: return 503;
    default: return 500;
    }
}

static const char *type_of(unsigned status) {
    return status == 429   ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

void hy_refusal_write(const hy_refusal *refusal, hy_text *out) {
    hy_json_writer w;
    hy_json_begin(&w, out, false);
    hy_json_open_object(&w, NULL);
    hy_json_open_object(&w, "error");
    hy_json_put_string(&w, "message", refusal->message);
    hy_json_put_string(&w, "type", type_of(refusal->status));
    hy_json_put_string(&w, "param", refusal->param[0] != '\0' ? refusal->param : NULL);
    hy_json_put_string(&w, "code", refusal->code);
    hy_json_close_object(&w);
    hy_json_close_object(&w);
}
