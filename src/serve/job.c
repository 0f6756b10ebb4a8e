/* job.c: hands the pieces of answers to the connection's thread. See job.h.
 *
 * No function of the generator is called while the mutex is held. */
#include "serve/job.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* What the generator's callback gets. */
typedef struct prompt {
    hy_job *job;
    int32_t number;
    int64_t id;
} prompt;

struct hy_job {
    hy_generator *generator;
    atomic_int *living;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int32_t answers; /* of a prompt */
    bool keeps_tokens, is_released;
    hy_job_state state;
    int64_t open; /* answers that have not ended */
    hy_note *first, **last;
    size_t bytes, most; /* of the notes behind the first */
    size_t count;       /* prompts that were added */
    prompt prompts[];
};

void hy_notes_free(hy_note *first) {
    while (first) {
        hy_note *next = first->next;
        free(first);
        first = next;
    }
}

hy_status hy_job_create(hy_generator *generator, size_t prompts, int32_t answers, bool keeps_tokens,
                        size_t most, atomic_int *living, hy_job **out) {
    hy_job *job = calloc(1, sizeof *job + prompts * sizeof job->prompts[0]);
    HY_FAIL_IF(!job, HY_ERR_MEMORY, "out of memory for a request of %zu prompts", prompts);
    job->generator = generator;
    job->living = living;
    job->answers = answers;
    job->keeps_tokens = keeps_tokens;
    job->most = most;
    job->last = &job->first;
    pthread_mutex_init(&job->mutex, NULL);
    pthread_cond_init(&job->changed, NULL);
    atomic_fetch_add(living, 1);
    *out = job;
    return HY_OK;
}

static void destroy(hy_job *job) {
    atomic_fetch_sub(job->living, 1);
    hy_notes_free(job->first);
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->mutex);
    free(job);
}

/* ---- the generator's thread ------------------------------------------------------------------ */

static void copy_token(hy_scored_token *to, const hy_scored_token *from, hy_token_score **tops) {
    *to = *from;
    to->top = *tops;
    if (from->top_count > 0) memcpy(*tops, from->top, (size_t)from->top_count * sizeof *from->top);
    *tops += from->top_count;
}

/* NULL: out of memory. Tokens, their candidates and the text follow the note. */
static hy_note *copy_piece(const hy_job *job, const hy_piece *piece, int32_t choice) {
    size_t tokens = job->keeps_tokens ? (size_t)piece->token_count : 0, tops = 0;
    bool has_ended = job->keeps_tokens && piece->end_token != NULL;
    for (size_t i = 0; i < tokens; i++) tops += (size_t)piece->tokens[i].top_count;
    if (has_ended) tops += (size_t)piece->end_token->top_count;
    size_t bytes = sizeof(hy_note) + tokens * sizeof(hy_scored_token) +
                   tops * sizeof(hy_token_score) + piece->text_size;
    hy_note *note = malloc(bytes);
    if (!note) return NULL;
    *note = (hy_note){.choice = choice,
                      .is_prompt = piece->is_prompt,
                      .is_last = piece->is_last,
                      .end = piece->end,
                      .prompt_tokens = piece->prompt_tokens,
                      .reused_tokens = piece->reused_tokens,
                      .answer_tokens = piece->answer_tokens,
                      .text_size = piece->text_size,
                      .bytes = bytes,
                      .tokens = (hy_scored_token *)(note + 1),
                      .token_count = (int32_t)tokens,
                      .ended = {.chosen.token = -1}};
    hy_token_score *at = (hy_token_score *)(note->tokens + tokens);
    for (size_t i = 0; i < tokens; i++) copy_token(&note->tokens[i], &piece->tokens[i], &at);
    if (has_ended) copy_token(&note->ended, piece->end_token, &at);
    note->text = memcpy(at, piece->text_size > 0 ? piece->text : "", piece->text_size);
    return note;
}

static void append(hy_job *job, hy_note *note) {
    if (job->first) job->bytes += note->bytes;
    *job->last = note;
    job->last = &note->next;
    if (job->bytes > job->most) job->state = HY_JOB_SLOW;
}

static void on_piece(void *user, const hy_piece *piece) {
    const prompt *it = user;
    hy_job *job = it->job;
    hy_note *note = copy_piece(job, piece, it->number * job->answers + piece->answer);
    pthread_mutex_lock(&job->mutex);
    bool was_running = job->state == HY_JOB_RUNS;
    if (note && was_running)
        append(job, note);
    else
        free(note);
    if (!note && was_running) job->state = HY_JOB_STOPPED;
    if (piece->is_last) job->open--;
    bool is_slow = was_running && job->state != HY_JOB_RUNS;
    bool is_done = job->open == 0 && job->is_released;
    pthread_cond_signal(&job->changed);
    pthread_mutex_unlock(&job->mutex);
    if (is_done)
        destroy(job);
    else if (is_slow && !piece->is_last) /* its thread waits for the client */
        hy_generator_cancel(job->generator, piece->request);
}

/* ---- the connection's thread ----------------------------------------------------------------- */

static void expect_answers(hy_job *job, int32_t count) {
    pthread_mutex_lock(&job->mutex);
    job->open += count;
    pthread_mutex_unlock(&job->mutex);
}

hy_status hy_job_add(hy_job *job, hy_request *request) {
    prompt *it = &job->prompts[job->count];
    *it = (prompt){.job = job, .number = (int32_t)job->count};
    request->on_piece = on_piece;
    request->user = it;
    expect_answers(job, job->answers);
    hy_status status = hy_generator_add(job->generator, request, &it->id);
    if (status == HY_OK)
        job->count++;
    else
        expect_answers(job, -job->answers);
    return status;
}

hy_note *hy_job_wait(hy_job *job) {
    pthread_mutex_lock(&job->mutex);
    while (!job->first && job->open > 0 && job->state == HY_JOB_RUNS)
        pthread_cond_wait(&job->changed, &job->mutex);
    hy_note *notes = job->state == HY_JOB_RUNS ? job->first : NULL;
    if (notes) {
        job->first = NULL;
        job->last = &job->first;
        job->bytes = 0;
    }
    pthread_mutex_unlock(&job->mutex);
    return notes;
}

hy_job_state hy_job_now(hy_job *job) {
    pthread_mutex_lock(&job->mutex);
    hy_job_state state = job->state;
    pthread_mutex_unlock(&job->mutex);
    return state;
}

void hy_job_end(hy_job *job, hy_job_state why) {
    pthread_mutex_lock(&job->mutex);
    if (job->state == HY_JOB_RUNS && job->open > 0) job->state = why;
    pthread_cond_signal(&job->changed);
    pthread_mutex_unlock(&job->mutex);
}

void hy_job_release(hy_job *job) {
    for (size_t i = 0; i < job->count; i++) hy_generator_cancel(job->generator, job->prompts[i].id);
    pthread_mutex_lock(&job->mutex);
    job->is_released = true;
    bool is_done = job->open == 0;
    pthread_mutex_unlock(&job->mutex);
    if (is_done) destroy(job);
}
