/* fake_generator.c: a generator without a model, for hybrid-serve until the real one is there.
 *
 * Tokens are bytes. An answer repeats a sentence, one token every HYBRID_FAKE_DELAY milliseconds
 * (default 1), until max_tokens; it ends by itself after the prompt "end". */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/sized.h"
#include "hybrid_generate.h"

static const char sentence[] = "Gr\xC3\xBC\xC3\x9F"
                               "e \xE2\x82\xAC ";

typedef struct request {
    struct request *next;
    hy_request it;
    int64_t id;
    int32_t prompt_tokens, done, from;
    bool is_cancelled, ends;
    char *prompt;
} request;

struct hy_generator {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    request *first;
    int64_t next;
    int32_t streams, waiting;
    bool stops;
    int64_t finished;
};

hy_status hy_generator_open_sized(const hy_config *config, const hy_generator_options *o,
                                  size_t size, const hy_observer *observer, hy_generator **out) {
    (void)config, (void)size, (void)observer;
    hy_generator *g = calloc(1, sizeof *g);
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->streams = o->streams ? o->streams : 16;
    g->waiting = o->waiting;
    *out = g;
    return HY_OK;
}

static void free_request(request *r) {
    free(r->prompt);
    free(r);
}

void hy_generator_close(hy_generator *g) {
    while (g->first) {
        request *next = g->first->next;
        free_request(g->first);
        g->first = next;
    }
    pthread_mutex_destroy(&g->mutex);
    pthread_cond_destroy(&g->changed);
    free(g);
}

void hy_generator_describe_sized(const hy_generator *g, hy_generator_facts *out, size_t size) {
    hy_generator_facts facts = {.model = "fake",
                                .weights = "fake",
                                .device = "none",
                                .tokenizer = "bytes",
                                .chat_template = "plain",
                                .message_format = "plain",
                                .context = 4096,
                                .streams = g->streams,
                                .vocab = 256};
    hy_copy_sized(out, size, &facts, sizeof facts);
}

hy_status hy_generator_decode(const hy_generator *g, const int32_t *ids, size_t count, char **text,
                              size_t *size) {
    (void)g;
    *text = malloc(count + 1);
    *size = count;
    for (size_t i = 0; i < count; i++) (*text)[i] = (char)ids[i];
    (*text)[count] = '\0';
    return HY_OK;
}

hy_status hy_generator_add_sized(hy_generator *g, const hy_request *it, size_t size, int64_t *id) {
    (void)size;
    size_t prompt = it->text ? it->text_size : it->tokens ? it->token_count : it->messages_size;
    int32_t waiting = 0;
    HY_FAIL_IF(prompt > 4095, HY_ERR_INPUT, "the prompt has %zu tokens; accepted: at most 4095",
               prompt);
    request *r = calloc(1, sizeof *r), **at;
    r->it = *it;
    r->prompt_tokens = (int32_t)prompt;
    r->prompt = calloc(1, prompt + 1);
    for (size_t i = 0; i < prompt; i++)
        r->prompt[i] = it->text ? it->text[i] : it->tokens ? (char)it->tokens[i] : 'm';
    r->ends = strcmp(r->prompt, "end") == 0;
    if (r->it.max_tokens == 0) r->it.max_tokens = 4096 - r->prompt_tokens;
    pthread_mutex_lock(&g->mutex);
    for (at = &g->first; *at; at = &(*at)->next) waiting++;
    waiting -= g->streams;
    if (waiting >= g->waiting) {
        pthread_mutex_unlock(&g->mutex);
        free_request(r);
        return hy_fail(HY_ERR_STATE, "%d requests wait; accepted: at most %d", waiting, g->waiting);
    }
    r->id = ++g->next;
    if (id) *id = r->id;
    *at = r;
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->mutex);
    return HY_OK;
}

bool hy_generator_cancel(hy_generator *g, int64_t id) {
    bool found = false;
    pthread_mutex_lock(&g->mutex);
    for (request *r = g->first; r; r = r->next) {
        if (r->id == id) found = r->is_cancelled = true;
    }
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->mutex);
    return found;
}

static void give_prompt(request *r) {
    hy_token_score tops[2] = {{'p', -0.5f}, {'q', -1.5f}};
    hy_scored_token *all = calloc((size_t)r->prompt_tokens, sizeof *all);
    for (int32_t i = 0; i < r->prompt_tokens; i++)
        all[i] = (hy_scored_token){.chosen = {(uint8_t)r->prompt[i], i == 0 ? NAN : -1.0f},
                                   .top = tops,
                                   .top_count = i == 0 ? 0 : 2};
    hy_piece piece = {.request = r->id,
                      .is_prompt = true,
                      .text = "",
                      .tokens = all,
                      .token_count = r->prompt_tokens};
    r->it.on_piece(r->it.user, &piece);
    free(all);
}

/* One token of each answer. Returns whether the request has ended. */
static bool advance(request *r) {
    int32_t answers = r->it.answers ? r->it.answers : 1, i = r->done, from = r->from;
    const int32_t length = (int32_t)sizeof sentence - 1;
    if (r->done == 0 && r->it.wants_prompt_logprobs && !r->is_cancelled) give_prompt(r);
    bool ends_itself = r->ends && i == 4;
    hy_scored_token tokens[8], end = {.chosen = {0, -0.25f}};
    hy_token_score tops[3] = {
        {(uint8_t)sentence[i % length], -0.25f}, {'x', -2.f}, {'y', -INFINITY}};
    int32_t last = (i + 1) % length;
    bool is_cut = last != 0 && (sentence[last] & 0xC0) == 0x80;
    bool is_last = r->is_cancelled || ends_itself || i + 1 == r->it.max_tokens;
    char text[8];
    int32_t count = 0;
    if (!r->is_cancelled && !ends_itself && (!is_cut || is_last))
        for (int32_t k = from; k <= i; k++) {
            tops[0].token = (uint8_t)sentence[k % length];
            tokens[count] =
                (hy_scored_token){.chosen = tops[0],
                                  .top = tops,
                                  .top_count = r->it.top_logprobs < 3 ? r->it.top_logprobs : 3};
            text[count++] = sentence[k % length];
        }
    if (count) r->from = i + 1;
    for (int32_t a = 0; a < answers; a++) {
        hy_piece piece = {.request = r->id,
                          .answer = a,
                          .text = text,
                          .text_size = is_cut ? 0 : (size_t)count,
                          .tokens = tokens,
                          .token_count = r->it.wants_logprobs ? count : 0,
                          .is_last = is_last,
                          .end = r->is_cancelled ? HY_END_STOPPED
                                 : ends_itself   ? HY_END_MODEL
                                                 : HY_END_MAX_TOKENS,
                          .prompt_tokens = r->prompt_tokens,
                          .answer_tokens = i + 1,
                          .end_token = ends_itself ? &end : NULL};
        r->it.on_piece(r->it.user, &piece);
    }
    r->done++;
    return is_last;
}

hy_status hy_generator_serve(hy_generator *g) {
    const char *text = getenv("HYBRID_FAKE_DELAY");
    double delay = text ? atof(text) : 1;
    pthread_mutex_lock(&g->mutex);
    while (!g->stops) {
        if (!g->first) {
            pthread_cond_wait(&g->changed, &g->mutex);
            continue;
        }
        request *run[1024];
        int32_t count = 0;
        for (request *r = g->first; r; r = r->next)
            if (r->is_cancelled || count < g->streams) run[count++] = r;
        pthread_mutex_unlock(&g->mutex);
        struct timespec pause = {.tv_nsec = (long)(delay * 1e6)};
        nanosleep(&pause, NULL);
        for (int32_t i = 0; i < count; i++) {
            if (!advance(run[i])) continue;
            pthread_mutex_lock(&g->mutex);
            request **at = &g->first;
            while (*at != run[i]) at = &(*at)->next;
            *at = run[i]->next;
            g->finished++;
            pthread_mutex_unlock(&g->mutex);
            free_request(run[i]);
        }
        pthread_mutex_lock(&g->mutex);
    }
    pthread_mutex_unlock(&g->mutex);
    return HY_STOPPED;
}

void hy_generator_request_stop(hy_generator *g) {
    pthread_mutex_lock(&g->mutex);
    g->stops = true;
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->mutex);
}

void hy_generator_now_sized(const hy_generator *generator, hy_generator_state *out, size_t size) {
    hy_generator *g = (hy_generator *)generator;
    hy_generator_state now = {0};
    pthread_mutex_lock(&g->mutex);
    for (request *r = g->first; r; r = r->next) now.running++;
    now.waiting = now.running > g->streams ? now.running - g->streams : 0;
    now.running -= now.waiting;
    now.finished = g->finished;
    pthread_mutex_unlock(&g->mutex);
    hy_copy_sized(out, size, &now, sizeof now);
}
