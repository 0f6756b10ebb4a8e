/* call.c: routes, and how a request is answered. See call.h. */
#include "serve/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"

#define JSON "application/json"
#define BLOCK ((size_t)16 << 10)            /* bytes of an answer that are sent at once */
#define PIECES_MOST ((size_t)1 << 20)       /* bytes of an answer that wait for a slow client */
#define SWALLOWED_MOST ((uint64_t)64 << 20) /* of a body that is too large, before it is cut off */

struct hy_route {
    const char *path;
    bool is_prefix, is_post, is_open; /* open: without a key */
    hy_mhd (*answer)(hy_call *call);
};

/* ---- responses ------------------------------------------------------------------------------- */

static hy_mhd queue(hy_call *call, unsigned status, const char *type,
                    struct MHD_Response *response) {
    if (!response) return MHD_NO;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (atomic_load(&call->server->is_closing))
        MHD_add_response_header(response, "Connection", "close");
    if (status == 429 || status == 503) MHD_add_response_header(response, "Retry-After", "1");
    if (status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (status == 405)
        MHD_add_response_header(response, "Allow", call->route->is_post ? "POST" : "GET, HEAD");
    hy_mhd result = MHD_queue_response(call->connection, status, response);
    MHD_destroy_response(response);
    call->status = status;
    return result;
}

/* Every block that a client takes gives it time for the next one. */
static ssize_t read_whole(void *user, uint64_t position, char *to, size_t most) {
    const hy_call *call = user;
    size_t left = call->out.size - (size_t)position, size = left < most ? left : most;
    memcpy(to, call->out.data + position, size);
    hy_link_reads(call->link, NULL);
    return (ssize_t)size;
}

/* Takes the text. */
static hy_mhd send_text(hy_call *call, unsigned status, const char *type, hy_text *text) {
    hy_text whole = *text;
    *text = (hy_text){0};
    hy_text_free(&call->out);
    call->out = whole;
    if (hy_text_status(&whole) != HY_OK) return MHD_NO;
    hy_link_reads(call->link, NULL);
    return queue(call, status, type,
                 MHD_create_response_from_callback(whole.size, BLOCK, read_whole, call, NULL));
}

static hy_mhd send_refusal(hy_call *call, const hy_refusal *refusal) {
    hy_text text = {0};
    hy_refusal_write(refusal, &text);
    return send_text(call, refusal->status, JSON, &text);
}

/* ---- small routes ---------------------------------------------------------------------------- */

static hy_mhd answer_page(hy_call *call) {
    const hy_text *page = &call->server->page;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(page->size, page->data, MHD_RESPMEM_PERSISTENT);
    if (!response) return MHD_NO;
    MHD_add_response_header(response, "Content-Security-Policy",
                            hy_text_string(&call->server->page_policy));
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    hy_link_reads(call->link, NULL);
    return queue(call, 200, "text/html; charset=utf-8", response);
}

static hy_mhd answer_health(hy_call *call) {
    hy_text text = {0};
    hy_json_writer w;
    hy_generator_state now;
    bool is_closing = atomic_load(&call->server->is_closing);
    hy_generator_now(call->server->generator, &now);
    hy_json_begin(&w, &text, false);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "status", is_closing ? "stopping" : "ok");
    hy_json_put_int(&w, "running", now.running);
    hy_json_put_int(&w, "waiting", now.waiting);
    hy_json_close_object(&w);
    return send_text(call, is_closing ? 503 : 200, JSON, &text);
}

static void put_model(const hy_call *call, hy_json_writer *w) {
    const hy_server *server = call->server;
    hy_generator_facts facts;
    hy_generator_describe(server->generator, &facts);
    hy_json_open_object(w, NULL);
    hy_json_put_string(w, "id", server->options->model);
    hy_json_put_string(w, "object", "model");
    hy_json_put_int(w, "created", server->started);
    hy_json_put_string(w, "owned_by", "hybrid-train");
    hy_json_put_int(w, "max_model_len", facts.context);
    hy_json_put_string(w, "chat_template", facts.chat_template);
    hy_json_close_object(w);
}

static hy_mhd answer_models(hy_call *call) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, false);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "object", "list");
    hy_json_open_array(&w, "data");
    put_model(call, &w);
    hy_json_close_array(&w);
    hy_json_close_object(&w);
    return send_text(call, 200, JSON, &text);
}

/* Whether this is the model's name; NULL: none is named. */
static bool is_our_model(const hy_call *call, const char *name, hy_refusal *out) {
    const char *model = call->server->options->model;
    if (!name || strcmp(name, model) == 0) return true;
    hy_refuse(out, 404, "model_not_found", "the model \"%.200s\" is not served; accepted: %s", name,
              model);
    return false;
}

static hy_mhd answer_model(hy_call *call) {
    hy_text text = {0};
    hy_json_writer w;
    hy_refusal refusal;
    if (!call->names_model && !is_our_model(call, call->path + strlen("/v1/models/"), &refusal))
        return send_refusal(call, &refusal);
    hy_json_begin(&w, &text, false);
    put_model(call, &w);
    return send_text(call, 200, JSON, &text);
}

/* ---- answers of the model -------------------------------------------------------------------- */

static hy_status add_prompts(hy_call *call, const hy_ask *ask) {
    hy_request request = ask->request;
    if (!ask->has_seed && getrandom(&request.seed, sizeof request.seed, 0) < 0)
        return hy_fail(HY_ERR_IO, "the system has no random numbers for a seed");
    for (size_t i = 0; i < ask->prompt_count; i++) {
        request.text = ask->prompts[i].text;
        request.text_size = ask->prompts[i].size;
        request.tokens = ask->prompts[i].tokens;
        request.token_count = ask->prompts[i].count;
        HY_TRY(hy_job_add(call->job, &request));
    }
    return HY_OK;
}

/* Built-in formats of conversations have no place for tools. */
static hy_status check_tools(const hy_call *call, const hy_ask *ask) {
    hy_generator_facts facts;
    hy_generator_describe(call->server->generator, &facts);
    bool has_place = strcmp(facts.chat_template, "its own") == 0;
    HY_FAIL_IF(
        ask->has_tools && !has_place, HY_ERR_INPUT,
        "\"tools\" cannot be shown to this model, because its chat template is %s; accepted: "
        "no tools",
        facts.chat_template);
    return HY_OK;
}

static hy_status begin_job(hy_call *call, hy_ask *ask, hy_ask_kind kind, const char **field) {
    hy_server *server = call->server;
    size_t most = (size_t)server->options->max_waiting;
    HY_TRY(hy_ask_read(ask, kind, hy_text_string(&call->body), call->body.size, field));
    *field = "model";
    if (!is_our_model(call, ask->model, &call->refusal)) return HY_ERR_INPUT;
    *field = "tools";
    HY_TRY(check_tools(call, ask));
    *field = kind == HY_ASK_CHAT ? "messages" : "prompt";
    HY_FAIL_IF(ask->prompt_count > most, HY_ERR_INPUT,
               "\"prompt\" has %zu prompts; accepted: at most %zu in a request", ask->prompt_count,
               most);
    HY_TRY(hy_reply_init(&call->reply, server->generator, server->options->model, ask,
                         atomic_fetch_add(&server->ids, 1)));
    HY_TRY(hy_job_create(server->generator, ask->prompt_count, ask->request.answers,
                         ask->request.wants_logprobs, PIECES_MOST, &server->jobs, &call->job));
    return add_prompts(call, ask);
}

/* Reads the body and hands its prompts to the generator, or sets call->refusal. */
static void begin(hy_call *call, hy_ask_kind kind) {
    hy_ask ask = {0};
    const char *field = "";
    while (sem_wait(&call->server->readers) != 0) {}
    hy_status status = begin_job(call, &ask, kind, &field);
    hy_refusal *refusal = &call->refusal;
    if (status != HY_OK && refusal->status == 0)
        hy_refuse(refusal, hy_refusal_status(status), status == HY_ERR_STATE ? "queue_full" : NULL,
                  "%s", hy_error_message());
    if (status == HY_ERR_INPUT) snprintf(refusal->param, sizeof refusal->param, "%s", field);
    hy_ask_free(&ask);
    hy_text_free(&call->body);
    sem_post(&call->server->readers);
}

/* Watches for a client that leaves; at the server's end, also what began too late for its list. */
static void wait_for_generator(hy_call *call) {
    hy_link_waits(call->link, call->job);
    if (atomic_load(&call->server->is_ending)) hy_job_end(call->job, HY_JOB_STOPPED);
}

/* Why there are no more notes: sets call->refusal if the server stops. False: nobody reads. */
static bool ends_well(hy_call *call) {
    hy_job_state state = hy_job_now(call->job);
    if (state == HY_JOB_STOPPED) hy_refuse(&call->refusal, 503, NULL, "the server is stopping");
    return state == HY_JOB_RUNS || state == HY_JOB_STOPPED;
}

static hy_mhd send_whole(hy_call *call) {
    hy_reply *reply = &call->reply;
    hy_note *notes;
    wait_for_generator(call);
    hy_reply_begin(reply, &call->out);
    while (reply->refusal.status == 0 && (notes = hy_job_wait(call->job)) != NULL)
        hy_reply_add(reply, notes, &call->out);
    if (!ends_well(call)) return MHD_NO;
    if (reply->refusal.status != 0) call->refusal = reply->refusal;
    if (call->refusal.status != 0) return send_refusal(call, &call->refusal);
    hy_reply_end(reply, &call->out);
    return send_text(call, 200, JSON, &call->out);
}

/* Adds the events of the next notes, or those at the end. False: nobody reads. */
static bool add_events(hy_call *call) {
    hy_reply *reply = &call->reply;
    hy_note *notes = hy_job_wait(call->job);
    if (notes)
        hy_reply_add(reply, notes, &call->out);
    else if (!ends_well(call))
        return false;
    if (reply->refusal.status != 0) call->refusal = reply->refusal;
    bool has_failed = call->refusal.status != 0;
    call->has_ended = !notes || has_failed;
    if (has_failed)
        hy_reply_fail(&call->refusal, &call->out);
    else if (call->has_ended)
        hy_reply_end(reply, &call->out);
    return true;
}

/* Fills call->out with events; false: the stream is broken off. */
static bool fill(hy_call *call) {
    hy_text_clear(&call->out);
    call->sent = 0;
    wait_for_generator(call);
    if (!call->has_begun) hy_reply_begin(&call->reply, &call->out);
    call->has_begun = true;
    while (call->out.size == 0 && !call->has_ended)
        if (!add_events(call)) return false;
    return hy_text_status(&call->out) == HY_OK;
}

static ssize_t read_stream(void *user, uint64_t position, char *to, size_t most) {
    hy_call *call = user;
    (void)position;
    if (call->sent == call->out.size) {
        if (call->has_ended) return MHD_CONTENT_READER_END_OF_STREAM;
        if (!fill(call)) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t left = call->out.size - call->sent, size = left < most ? left : most;
    memcpy(to, call->out.data + call->sent, size);
    call->sent += size;
    hy_link_reads(call->link, call->job);
    return (ssize_t)size;
}

static hy_mhd send_stream(hy_call *call) {
    hy_link_waits(call->link, call->job);
    return queue(
        call, 200, "text/event-stream; charset=utf-8",
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_stream, call, NULL));
}

/* From here on the connection is busy: it is not cut as an idle one while the body is read. */
static hy_mhd answer_ask(hy_call *call, hy_ask_kind kind) {
    hy_link_waits(call->link, NULL);
    if (atomic_load(&call->server->is_closing))
        hy_refuse(&call->refusal, 503, NULL, "the server is stopping");
    else
        begin(call, kind);
    if (call->refusal.status != 0) return send_refusal(call, &call->refusal);
    return call->reply.is_stream ? send_stream(call) : send_whole(call);
}

static hy_mhd answer_text(hy_call *call) { return answer_ask(call, HY_ASK_TEXT); }
static hy_mhd answer_chat(hy_call *call) { return answer_ask(call, HY_ASK_CHAT); }

static const hy_route routes[] = {
    {"/", .is_open = true, .answer = answer_page},
    {"/health", .is_open = true, .answer = answer_health},
    {"/v1/models", .answer = answer_models},
    {"/v1/models/", .is_prefix = true, .answer = answer_model},
    {"/v1/completions", .is_post = true, .answer = answer_text},
    {"/v1/chat/completions", .is_post = true, .answer = answer_chat},
};

static const hy_route *find_route(const char *path) {
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const hy_route *it = &routes[i];
        if (it->is_prefix ? strncmp(path, it->path, strlen(it->path)) == 0
                          : strcmp(path, it->path) == 0)
            return it;
    }
    return NULL;
}

/* ---- a request ------------------------------------------------------------------------------- */

static const char *header(const hy_call *call, const char *name) {
    return MHD_lookup_connection_value(call->connection, MHD_HEADER_KIND, name);
}

static bool is_method_of(const hy_route *route, const char *method) {
    if (route->is_post) return strcmp(method, "POST") == 0;
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

/* The limit of a body; a larger one is read and thrown away, so that its client reads why. */
static void check_size(hy_call *call, uint64_t size) {
    uint64_t most = call->server->options->max_body;
    if (size > most && call->refusal.status == 0)
        hy_refuse(&call->refusal, 413, NULL, "the body has more than %llu bytes",
                  (unsigned long long)most);
}

static void check_headers(hy_call *call) {
    const hy_guard *guard = &call->server->guard;
    hy_refusal *refusal = &call->refusal;
    const char *length = header(call, "Content-Length");
    hy_guard_check_origin(guard, header(call, "Host"), header(call, "Origin"), refusal);
    if (refusal->status == 0 && !(call->route && call->route->is_open))
        hy_guard_check_key(guard, header(call, "Authorization"), refusal);
    if (refusal->status == 0 && !call->route)
        hy_refuse(refusal, 404, NULL,
                  "there is no route %.100s; accepted: /v1/models, "
                  "/v1/completions, /v1/chat/completions, /health, /",
                  call->path);
    if (refusal->status == 0 && !is_method_of(call->route, call->method))
        hy_refuse(refusal, 405, NULL, "the method of %s is %s; accepted: %s", call->route->path,
                  call->method, call->route->is_post ? "POST" : "GET, HEAD");
    check_size(call, length ? strtoull(length, NULL, 10) : 0);
}

/* What a stranger sent is printed, so only printable ASCII is kept. */
static void copy_printable(char *to, size_t size, const char *from) {
    size_t i = 0;
    for (; from[i] != '\0' && i + 1 < size; i++)
        to[i] = from[i] > ' ' && from[i] < 0x7F ? from[i] : '?';
    to[i] = '\0';
}

/* The path that is kept is for people. */
static bool names_model(const hy_server *server, const char *path) {
    static const char before[] = "/v1/models/";
    return strncmp(path, before, sizeof before - 1) == 0 &&
           strcmp(path + sizeof before - 1, server->options->model) == 0;
}

hy_call *hy_call_create(hy_server *server, struct MHD_Connection *connection, const char *method,
                        const char *path) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    hy_call *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    *call = (hy_call){.server = server,
                      .connection = connection,
                      .link = info ? info->socket_context : NULL,
                      .route = find_route(path),
                      .names_model = names_model(server, path),
                      .began = hy_clock()};
    copy_printable(call->method, sizeof call->method, method);
    copy_printable(call->path, sizeof call->path, path);
    check_headers(call);
    return call;
}

bool hy_call_is_refused_early(const hy_call *call) {
    return call->refusal.status != 0 && header(call, "Expect") != NULL;
}

hy_mhd hy_call_take(hy_call *call, const char *data, size_t size) {
    call->received += size;
    check_size(call, call->received);
    if (call->refusal.status == 0)
        hy_text_add_bytes(&call->body, data, size);
    else
        hy_text_free(&call->body);
    return call->received > call->server->options->max_body + SWALLOWED_MOST ? MHD_NO : MHD_YES;
}

hy_mhd hy_call_answer(hy_call *call) {
    if (call->refusal.status != 0) return send_refusal(call, &call->refusal);
    if (hy_text_status(&call->body) != HY_OK) return MHD_NO;
    return call->route->answer(call);
}

/* "2026-11-17 12:00:00  POST /v1/completions  200  12 + 100 tokens  1.24 s" */
static void log_call(const hy_call *call) {
    char when[32], status[16] = "left", tokens[64] = "";
    time_t now = time(NULL);
    struct tm local;
    if (call->server->options->is_quiet) return;
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
    bool has_left = call->status == 0 || (call->job && !call->has_ended && call->reply.is_stream);
    if (!has_left) snprintf(status, sizeof status, "%u", call->status);
    if (call->job)
        snprintf(tokens, sizeof tokens, "  %lld + %lld tokens",
                 (long long)call->reply.prompt_tokens, (long long)call->reply.answer_tokens);
    fprintf(stderr, "%s  %s %s  %s%s  %.2f s\n", when, call->method, call->path, status, tokens,
            hy_clock() - call->began);
}

void hy_call_destroy(hy_call *call) {
    hy_link_expects_request(call->link);
    log_call(call);
    if (call->job) hy_job_release(call->job);
    hy_reply_fini(&call->reply);
    hy_text_free(&call->out);
    hy_text_free(&call->body);
    free(call);
}
