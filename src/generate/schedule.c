/* schedule.c: rounds. See schedule.h. */
#include "generate/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

#define RESULTS (HY_STEPS_AHEAD + 1)

/* A request waits until this share of the slots is free, or as many as it wants: so the prompt of
 * many answers is not computed for each of them again. */
#define GROUP_SHARE 8

#define ROUND_CHUNKS 8 /* most chunks of prompts before a step */

/* A result that was enqueued and not read: tokens, or scores of a prompt. */
typedef struct pending {
    hy_sequence **of; /* (streams) whose token is in this row; NULL: nobody's */
    hy_task *scored;  /* NULL: nobody's, or the result is of tokens */
    int32_t rows;
} pending;

/* The request whose prompt is computed. */
typedef struct filling {
    hy_task *task;       /* NULL: none */
    hy_sequence **group; /* (streams) its answers; the first computes the prompt */
    int32_t count;
    hy_start start;  /* what need not be computed */
    int32_t next;    /* position */
    bool has_scores; /* the prompt is scored: with its first answers */
} filling;

struct hy_schedule {
    hy_batch_decoder *decoder;
    const hy_codec *codec;
    hy_queue *queue;
    hy_pool *pool;
    int32_t streams, chunk, top;
    hy_sequence **slots; /* (streams) NULL: free */
    int32_t taken;       /* slots that are not free */
    filling fill;
    bool has_no_room;      /* for the request in front, until an answer ends */
    int32_t *first;        /* (streams) of a step */
    hy_sampling *sampling; /* (streams) */
    pending results[RESULTS];
    uint64_t enqueued, read;
    hy_generator_state counted; /* since the queue was told */
};

/* ---- creating -------------------------------------------------------------------------------- */

static bool allocate(hy_schedule *s) {
    size_t streams = (size_t)s->streams;
    s->slots = calloc(streams, sizeof *s->slots);
    s->fill.group = calloc(streams, sizeof *s->fill.group);
    s->first = calloc(streams, sizeof *s->first);
    s->sampling = calloc(streams, sizeof *s->sampling);
    bool is_there = s->slots && s->fill.group && s->first && s->sampling;
    for (int i = 0; i < RESULTS; i++) {
        s->results[i].of = calloc(streams, sizeof *s->results[i].of);
        is_there = is_there && s->results[i].of;
    }
    return is_there;
}

hy_status hy_schedule_create(hy_batch_decoder *decoder, const hy_codec *codec, hy_queue *queue,
                             hy_schedule **out) {
    const hy_batch_decoder_options *o = hy_batch_decoder_facts(decoder);
    const hy_cache_kind *kinds;
    hy_schedule *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return hy_fail(HY_ERR_MEMORY, "not enough memory for a schedule");
    s->decoder = decoder;
    s->codec = codec;
    s->queue = queue;
    s->streams = o->streams;
    s->chunk = o->chunk;
    s->top = o->top;
    int32_t count = hy_batch_decoder_kinds(decoder, &kinds);
    const hy_states *states = hy_batch_decoder_states(decoder);
    hy_status status = hy_pool_create(kinds, count, states, s->chunk, &s->pool);
    if (status == HY_OK && !allocate(s)) {
        status = hy_fail(HY_ERR_MEMORY, "not enough memory for a schedule");
    }
    if (status == HY_OK)
        *out = s;
    else
        hy_schedule_destroy(s);
    return status;
}

void hy_schedule_destroy(hy_schedule *s) {
    if (!s) return;
    for (int32_t i = 0; s->slots && i < s->streams; i++) {
        if (!s->slots[i]) continue;
        hy_pool_give(s->pool, &s->slots[i]->blocks);
        hy_sequence_destroy(s->slots[i]);
    }
    for (int i = 0; i < RESULTS; i++) free(s->results[i].of);
    hy_pool_destroy(s->pool);
    free(s->slots);
    free(s->fill.group);
    free(s->first);
    free(s->sampling);
    free(s);
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* Frees a sequence's slot and blocks. A step that was enqueued may still write to them, but before
 * anything that is enqueued from now on. */
static void vacate(hy_schedule *s, hy_sequence *sequence) {
    s->slots[sequence->slot] = NULL;
    s->taken--;
    s->has_no_room = false;
    hy_pool_give(s->pool, &sequence->blocks);
    for (int i = 0; i < RESULTS; i++) {
        hy_sequence **of = &s->results[i].of[sequence->slot];
        if (*of == sequence) *of = NULL;
    }
}

/* When the listener has been told, the answer does not exist any more, nor, with its last answer,
 * the request. sequence NULL: the answer never began. */
static hy_status end_answer(hy_schedule *s, hy_task *t, int32_t number, hy_sequence *sequence,
                            hy_end end) {
    if (sequence) vacate(s, sequence);
    bool is_over = ++t->ended == t->answers;
    if (is_over) hy_queue_remove(s->queue, t);
    hy_status status = hy_tell_end(t, number, sequence, end);
    hy_sequence_destroy(sequence);
    if (is_over) hy_task_destroy(t);
    return status;
}

/* Ends all answers of a request, also those that have not begun. */
static hy_status end_request(hy_schedule *s, hy_task *t) {
    hy_status status = HY_OK, now;
    int32_t left = t->answers - t->ended, next = t->begun;
    t->begun = t->answers;
    s->has_no_room = false;
    if (s->fill.task == t) s->fill.task = NULL;
    for (int i = 0; i < RESULTS; i++) {
        if (s->results[i].scored == t) s->results[i].scored = NULL;
    }
    for (int32_t slot = 0; slot < s->streams; slot++) {
        hy_sequence *sequence = s->slots[slot];
        if (left == 0 || !sequence || sequence->task != t) continue;
        left--;
        now = end_answer(s, t, sequence->number, sequence, HY_END_STOPPED);
        if (status == HY_OK) status = now;
    }
    for (; left > 0; left--, next++) {
        now = end_answer(s, t, next, NULL, HY_END_STOPPED);
        if (status == HY_OK) status = now;
    }
    return status;
}

static hy_status end_cancelled(hy_schedule *s) {
    hy_task *t;
    while ((t = hy_queue_next_cancelled(s->queue)) != NULL) HY_TRY(end_request(s, t));
    return HY_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static hy_chosen row_of(const hy_schedule *s, const hy_step_tokens *r, int32_t row) {
    size_t top = (size_t)row * (size_t)s->top;
    return (hy_chosen){.token = r->tokens[row],
                       .logprob = r->logprobs[row],
                       .top_tokens = r->top_tokens + top,
                       .top_logprobs = r->top_logprobs + top};
}

static hy_status read_token(hy_schedule *s, hy_sequence *sequence, const hy_chosen *chosen) {
    hy_task *t = sequence->task;
    bool is_over;
    hy_end end;
    s->counted.tokens++;
    if (t->first == 0) t->first = hy_clock();
    if (t->wants_prompt_logprobs && !t->has_told_prompt) HY_TRY(hy_tell_prompt(t));
    HY_TRY(hy_sequence_take(sequence, chosen, &is_over, &end));
    return is_over ? end_answer(s, t, sequence->number, sequence, end) : HY_OK;
}

static hy_status read_result(hy_schedule *s) {
    hy_step_tokens r;
    HY_TRY(hy_batch_decoder_read(s->decoder, &r));
    pending *p = &s->results[s->read++ % RESULTS];
    for (int32_t i = 0; i < p->rows; i++) {
        hy_chosen chosen = row_of(s, &r, i);
        if (p->scored) HY_TRY(hy_score_prompt(p->scored, &chosen));
        if (p->of[i]) HY_TRY(read_token(s, p->of[i], &chosen));
    }
    return HY_OK;
}

/* Reads until at most so many results wait. */
static hy_status read_all_but(hy_schedule *s, uint64_t most) {
    while (s->enqueued - s->read > most) HY_TRY(read_result(s));
    return HY_OK;
}

/* A result of `rows` rows that is about to be enqueued; nobody's yet. */
static hy_status next_result(hy_schedule *s, int32_t rows, pending **out) {
    HY_TRY(read_all_but(s, HY_STEPS_AHEAD));
    pending *p = &s->results[s->enqueued++ % RESULTS];
    memset(p->of, 0, (size_t)s->streams * sizeof(hy_sequence *));
    p->scored = NULL;
    p->rows = rows;
    *out = p;
    return HY_OK;
}

/* ---- beginning ------------------------------------------------------------------------------- */

static hy_claim claim_of(const hy_task *t) {
    return (hy_claim){.prompt = t->prompt.data,
                      .prompt_count = (int32_t)t->prompt.count,
                      .positions = hy_task_positions(t),
                      .is_whole = t->wants_prompt_logprobs && t->begun == 0};
}

/* Adds an answer with its blocks to the group. *is_taken false: there is no room for it. */
static hy_status add_answer(hy_schedule *s, hy_task *t, bool *is_taken) {
    filling *f = &s->fill;
    hy_claim claim = claim_of(t);
    hy_sequence *q;
    HY_TRY(hy_sequence_create(t, t->begun + f->count, s->codec, &q));
    hy_status status =
        f->count == 0 ? hy_pool_take(s->pool, &claim, &q->blocks, &f->start, is_taken)
                      : hy_pool_share(s->pool, &claim, &f->group[0]->blocks, &q->blocks, is_taken);
    if (status == HY_OK && *is_taken) {
        f->group[f->count++] = q;
    } else {
        hy_sequence_destroy(q);
    }
    return status;
}

static void give_group(hy_schedule *s) {
    filling *f = &s->fill;
    while (f->count > 0) {
        hy_sequence *q = f->group[--f->count];
        hy_pool_give(s->pool, &q->blocks);
        hy_sequence_destroy(q);
    }
}

/* The lowest free slots: so a step has few rows. */
static hy_status seat_group(hy_schedule *s) {
    filling *f = &s->fill;
    for (int32_t i = 0, slot = 0; i < f->count; i++) {
        hy_sequence *q = f->group[i];
        while (s->slots[slot]) slot++;
        q->slot = slot;
        s->slots[slot] = q;
        s->taken++;
    }
    for (int32_t i = 0; i < f->count; i++) {
        const hy_sequence *q = f->group[i];
        HY_TRY(hy_batch_decoder_seat(s->decoder, q->slot, (const int32_t *const *)q->blocks.ids,
                                     q->blocks.counts));
    }
    f->next = f->start.position;
    if (f->start.state == HY_NO_STATE) return HY_OK;
    return hy_batch_decoder_copy_state(s->decoder, f->start.state, f->group[0]->slot);
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* How many answers must begin together. */
static int32_t least_group(const hy_schedule *s, int32_t left) {
    int32_t share = s->streams / GROUP_SHARE;
    return least(left, s->taken == 0 || share < 1 ? 1 : share);
}

/* As many answers as have room now, or none if that are too few. */
static hy_status take_group(hy_schedule *s, hy_task *t) {
    filling *f = &s->fill;
    int32_t left = t->answers - t->begun, most = least(left, s->streams - s->taken);
    int32_t needed = least_group(s, left);
    bool is_taken = true;
    hy_status status = HY_OK;
    f->count = 0;
    while (f->count < most && most >= needed && is_taken && status == HY_OK) {
        status = add_answer(s, t, &is_taken);
    }
    if (status != HY_OK || f->count < needed) give_group(s);
    return status;
}

/* Tells the queue what was counted, and what runs now. */
static void count(hy_schedule *s) {
    s->counted.running = s->taken;
    s->counted.cache_tokens_used = hy_pool_used(s->pool);
    hy_queue_count(s->queue, &s->counted);
    s->counted = (hy_generator_state){0};
}

/* A request counts as running before it ceases to wait, so at no moment it does neither; and
 * whoever has its first token sees that it runs. */
static hy_status begin_request(hy_schedule *s) {
    filling *f = &s->fill;
    hy_task *t = f->task || s->has_no_room ? NULL : hy_queue_front(s->queue);
    if (!t) return HY_OK;
    HY_TRY(take_group(s, t));
    HY_FAIL_IF(f->count == 0 && s->taken == 0, HY_ERR_INTERNAL,
               "a request of %d positions finds no room in an empty cache", hy_task_positions(t));
    s->has_no_room = f->count == 0;
    if (s->has_no_room) return HY_OK;
    f->task = t;
    f->has_scores = t->wants_prompt_logprobs && t->begun == 0;
    if (t->begun == 0) {
        t->began = hy_clock();
        t->reused = f->start.position;
    }
    t->begun += f->count;
    HY_TRY(seat_group(s));
    count(s);
    hy_queue_begin(s->queue, t);
    return HY_OK;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Scores the tokens after rows [0, count) of the chunk at `first`. */
static hy_status score_chunk(hy_schedule *s, int32_t first, int32_t count) {
    hy_task *t = s->fill.task;
    const int32_t *after = t->prompt.data + first + 1;
    if (first == 0) {
        hy_chosen start = {.token = t->prompt.data[0], .logprob = (float)NAN};
        HY_TRY(hy_score_prompt(t, &start));
    }
    for (int32_t row = 0, rows; row < count; row += rows) {
        pending *p;
        rows = least(count - row, s->streams);
        HY_TRY(next_result(s, rows, &p));
        p->scored = t;
        HY_TRY(hy_batch_decoder_score(s->decoder, row, after + row, rows));
    }
    return HY_OK;
}

static hy_status copy_prompt(hy_schedule *s, const hy_sequence *of, const hy_sequence *q) {
    int32_t prompt = (int32_t)s->fill.task->prompt.count;
    const hy_blocks *from = &of->blocks, *to = &q->blocks;
    for (int32_t kind = 0; kind < HY_CACHE_KINDS; kind++) {
        for (int32_t i = 0; i < to->counts[kind]; i++) {
            if (!hy_pool_needs_copy(from, to, kind, i, prompt)) continue;
            HY_TRY(hy_batch_decoder_copy_block(s->decoder, kind, from->ids[kind][i],
                                               to->ids[kind][i]));
        }
    }
    return hy_batch_decoder_copy_state(s->decoder, of->slot, q->slot);
}

/* A step marks the tokens of idle slots as seen, so the prompt's are marked only now. */
static hy_status see_prompt(hy_schedule *s, const hy_sequence *q) {
    const hy_ids *prompt = &q->task->prompt;
    float penalty = q->task->sampling.penalty;
    if (penalty == 0 || penalty == 1) return HY_OK;
    return hy_batch_decoder_see(s->decoder, q->slot, prompt->data, (int32_t)prompt->count);
}

static hy_status choose_first(hy_schedule *s, hy_sequence *q) {
    hy_sampling sampling = hy_task_sampling(q->task, q->number, 0);
    pending *p;
    HY_TRY(next_result(s, q->slot + 1, &p));
    p->of[q->slot] = q;
    q->chosen = 1;
    return hy_batch_decoder_choose(s->decoder, q->slot, &sampling);
}

/* The prompt is computed: all answers of the group have their first token now. All copies come
 * first, because an answer may end before the next one's first token is chosen. */
static hy_status choose_group(hy_schedule *s) {
    filling *f = &s->fill;
    if (f->group[0]->number == 0) s->counted.prompt_tokens += (int64_t)f->task->prompt.count;
    for (int32_t i = 0; i < f->count; i++) {
        HY_TRY(copy_prompt(s, f->group[0], f->group[i]));
        HY_TRY(see_prompt(s, f->group[i]));
    }
    for (int32_t i = 0; i < f->count; i++) HY_TRY(choose_first(s, f->group[i]));
    f->task = NULL;
    return HY_OK;
}

/* The chunk at `first` is full, and may serve other prompts. */
static hy_status keep_chunk(hy_schedule *s, int32_t first) {
    const hy_sequence *q = s->fill.group[0];
    hy_claim claim = claim_of(s->fill.task);
    int32_t state;
    HY_TRY(hy_pool_keep(s->pool, &claim, first, &q->blocks, &state));
    return state == HY_NO_STATE ? HY_OK : hy_batch_decoder_copy_state(s->decoder, q->slot, state);
}

static hy_status fill_chunk(hy_schedule *s) {
    filling *f = &s->fill;
    hy_task *t = f->task;
    if (!t) return HY_OK;
    int32_t first = f->next, all = (int32_t)t->prompt.count;
    int32_t length = hy_chunk_length(first, s->chunk), tokens = least(all - first, length);
    bool is_last = first + tokens == all;
    HY_TRY(hy_batch_decoder_chunk(s->decoder, f->group[0]->slot, t->prompt.data + first, first,
                                  tokens, NULL));
    f->next += tokens;
    if (tokens == length) HY_TRY(keep_chunk(s, first));
    if (f->has_scores) HY_TRY(score_chunk(s, first, tokens - is_last));
    return is_last ? choose_group(s) : HY_OK;
}

/* Chunks of prompts before the next step: several of short prompts, so that many requests begin
 * soon, and no more tokens than one of the longest has. */
static hy_status fill_chunks(hy_schedule *s) {
    filling *f = &s->fill;
    int32_t tokens = 0;
    for (int i = 0; i < ROUND_CHUNKS; i++) {
        HY_TRY(read_all_but(s, HY_STEPS_AHEAD)); /* answers may end here */
        HY_TRY(begin_request(s));
        if (!f->task) break;
        tokens +=
            least((int32_t)f->task->prompt.count - f->next, hy_chunk_length(f->next, s->chunk));
        if (i > 0 && tokens > s->chunk) break;
        HY_TRY(fill_chunk(s));
    }
    return HY_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static bool is_running(const hy_sequence *q) {
    return q && q->chosen > 0 && q->chosen < q->task->most;
}

static hy_status step(hy_schedule *s) {
    int32_t rows = 0;
    pending *p;
    HY_TRY(read_all_but(s, HY_STEPS_AHEAD)); /* answers may end here */
    for (int32_t slot = 0; slot < s->streams; slot++) {
        if (is_running(s->slots[slot])) rows = slot + 1;
    }
    if (rows == 0) return HY_OK;
    HY_TRY(next_result(s, rows, &p));
    for (int32_t slot = 0; slot < rows; slot++) {
        hy_sequence *q = s->slots[slot];
        s->first[slot] = -1;
        if (!is_running(q)) continue;
        s->first[slot] = (int32_t)q->task->prompt.count + q->chosen - 1;
        s->sampling[slot] = hy_task_sampling(q->task, q->number, q->chosen++);
        p->of[slot] = q;
    }
    return hy_batch_decoder_step(s->decoder, rows, s->first, s->sampling);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static void report(hy_schedule *s, double begin) {
    s->counted.busy_seconds = hy_clock() - begin;
    count(s);
}

hy_status hy_schedule_round(hy_schedule *s, bool *is_idle) {
    double begin = hy_clock();
    HY_TRY(end_cancelled(s));
    uint64_t before = s->enqueued;
    HY_TRY(fill_chunks(s));
    HY_TRY(step(s));
    HY_TRY(read_all_but(s, s->enqueued > before));
    *is_idle = s->taken == 0 && s->enqueued == s->read && !hy_queue_front(s->queue);
    report(s, begin);
    return HY_OK;
}

hy_status hy_schedule_drain(hy_schedule *s) {
    HY_TRY(read_all_but(s, 0));
    report(s, hy_clock());
    return HY_OK;
}

void hy_schedule_abandon(hy_schedule *s) {
    for (int32_t slot = 0; slot < s->streams; slot++) {
        if (s->slots[slot]) (void)end_request(s, s->slots[slot]->task); /* one failure is enough */
    }
    hy_pool_forget(s->pool);
    s->enqueued = s->read = 0;
    s->has_no_room = false;
    report(s, hy_clock());
}
