/* job.h: the prompts of one HTTP request in the generator, and the pieces of their answers on the
 * way from the generator's thread to the thread of the connection.
 *
 * The generator calls back until every answer has ended, also after a client has left. So a job
 * lives until the connection has released it and its last answer has ended. At most `most` bytes of
 * pieces wait in a job behind the first, which may be a prompt of any length with its
 * log-probabilities; a client that does not read them in time ends it. */
#pragma once

#include <stdbool.h>

#include "hybrid_generate.h"

typedef enum hy_job_state {
    HY_JOB_RUNS,
    HY_JOB_LEFT,   /* the client has left */
    HY_JOB_SLOW,   /* the client reads too slowly */
    HY_JOB_STOPPED /* the server stops, or memory is short */
} hy_job_state;

/* A copy of a hy_piece. */
typedef struct hy_note {
    struct hy_note *next;
    int32_t choice; /* prompt x answers + answer */
    bool is_prompt, is_last;
    hy_end end;
    int32_t prompt_tokens, reused_tokens, answer_tokens;
    const char *text;
    size_t text_size, bytes; /* bytes: of the whole note */
    hy_scored_token *tokens;
    int32_t token_count;
    hy_scored_token ended; /* by this token; token -1: by none, or not known */
} hy_note;

void hy_notes_free(hy_note *first);

typedef struct hy_job hy_job;

/* `living` is the number of jobs that exist. With keeps_tokens, notes have tokens. */
hy_status hy_job_create(hy_generator *generator, size_t prompts, int32_t answers, bool keeps_tokens,
                        size_t most, _Atomic int *living, hy_job **out);

/* Adds the next prompt; sets the request's callback. As hy_generator_add. */
hy_status hy_job_add(hy_job *job, hy_request *request);

/* Waits for notes, and returns those that are there; the caller frees them. NULL: there will be no
 * more, because all answers have ended or the state is another than HY_JOB_RUNS. */
hy_note *hy_job_wait(hy_job *job);

hy_job_state hy_job_now(hy_job *job);
/* Ends a job that runs; hy_job_wait returns. A job whose answers have all ended stays as it is.
 * From any thread. */
void hy_job_end(hy_job *job, hy_job_state why);
/* Cancels what still runs. The job must not be used afterwards. */
void hy_job_release(hy_job *job);
