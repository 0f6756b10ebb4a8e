/* test_generate_schedule.c: the schedule of a generator, with a decoder that has no model.
 *
 * Every answer must be the one that its prompt has alone, whatever shares slots, blocks and prompts
 * with it: requests that join and leave, are cancelled, wait for room, and have several answers. */
#include "fake_decoder.h"

#include <math.h>

#include "base/rng.h"
#include "generate/schedule.h"

enum { MOST_TASKS = 120, MOST_ANSWERS = 5 };

/* What a listener has heard of an answer. */
typedef struct heard {
    int32_t *tokens;
    float *logprobs;
    int32_t count, ends;
    hy_end end;
    hy_piece last;
} heard;

/* A request and what should come of it. */
typedef struct asked {
    hy_request request;
    int64_t id;
    int32_t *prompt, prompt_count;
    heard answers[MOST_ANSWERS];
    float *prompt_logprobs;
    int32_t prompt_heard, first_heard; /* pieces of prompts; when its first token came */
} asked;

typedef struct bench {
    hy_batch_decoder *decoder;
    hy_codec codec; /* bytes */
    hy_queue *queue;
    hy_schedule *schedule;
    asked tasks[MOST_TASKS];
    int count;
    int32_t clock; /* pieces heard so far */
    uint64_t drawn;
} bench;

static bench *open_bench(int sort, int32_t blocks, int32_t waiting) {
    bench *b = calloc(1, sizeof *b);
    b->codec.vocab = FAKE_VOCAB;
    b->decoder = fake_open(sort, blocks);
    must(hy_queue_create(waiting, &b->queue));
    must(hy_schedule_create(b->decoder, &b->codec, b->queue, &b->schedule));
    return b;
}

static void close_bench(bench *b) {
    hy_schedule_destroy(b->schedule);
    hy_queue_destroy(b->queue);
    free(b->decoder);
    for (int i = 0; i < b->count; i++) {
        free(b->tasks[i].prompt);
        free(b->tasks[i].prompt_logprobs);
        for (int k = 0; k < MOST_ANSWERS; k++) {
            free(b->tasks[i].answers[k].tokens);
            free(b->tasks[i].answers[k].logprobs);
        }
    }
    free(b);
}

static uint64_t draw(bench *b, uint64_t below) {
    return hy_rng_below(11, HY_RNG_TEST, b->drawn++, below);
}

/* ---- asking and hearing ---------------------------------------------------------------------- */

static bench *hearing; /* callbacks get the task, and its clock is here */

static void hear_prompt(asked *a, const hy_piece *piece) {
    a->prompt_heard++;
    ck_assert_int_eq(piece->token_count, a->prompt_count);
    ck_assert_int_eq(a->answers[0].count, 0);
    a->prompt_logprobs = calloc((size_t)piece->token_count, sizeof(float));
    for (int32_t i = 0; i < piece->token_count; i++) {
        ck_assert_int_eq(piece->tokens[i].chosen.token, a->prompt[i]);
        ck_assert_int_eq(piece->tokens[i].top_count, i > 0 ? a->request.top_logprobs : 0);
        a->prompt_logprobs[i] = piece->tokens[i].chosen.logprob;
    }
}

static void hear(void *user, const hy_piece *piece) {
    asked *a = user;
    if (piece->is_prompt) {
        hear_prompt(a, piece);
        return;
    }
    heard *h = &a->answers[piece->answer];
    ck_assert_int_eq(piece->request, a->id);
    ck_assert_int_eq(h->ends, 0);
    if (a->first_heard == 0) a->first_heard = ++hearing->clock;
    int32_t room = FAKE_CONTEXT;
    if (!h->tokens) h->tokens = calloc((size_t)room, sizeof *h->tokens);
    if (!h->logprobs) h->logprobs = calloc((size_t)room, sizeof *h->logprobs);
    for (int32_t i = 0; i < piece->token_count; i++) {
        h->tokens[h->count] = piece->tokens[i].chosen.token;
        h->logprobs[h->count++] = piece->tokens[i].chosen.logprob;
    }
    h->ends += piece->is_last;
    h->end = piece->end;
    h->last = *piece;
}

static hy_status try_to_ask(bench *b, const int32_t *prompt, int32_t count, hy_request request) {
    hy_task_limits limits = {
        .context = FAKE_CONTEXT, .vocab = FAKE_VOCAB, .top_logprobs = FAKE_TOP};
    asked *a = &b->tasks[b->count];
    hy_ids ids = {0};
    hy_task *task;
    *a = (asked){.request = request, .prompt_count = count};
    a->prompt = malloc((size_t)count * sizeof *prompt);
    memcpy(a->prompt, prompt, (size_t)count * sizeof *prompt);
    a->request.user = a;
    a->request.on_piece = hear;
    a->request.wants_logprobs = true;
    hearing = b;
    must(hy_ids_append(&ids, prompt, (size_t)count));
    must(hy_task_create(&a->request, &limits, &ids, &task));
    hy_status status = hy_queue_add(b->queue, task, &a->id);
    if (status != HY_OK) hy_task_destroy(task);
    if (status != HY_OK) free(a->prompt);
    if (status == HY_OK) b->count++;
    return status;
}

static asked *ask(bench *b, const int32_t *prompt, int32_t count, hy_request request) {
    must(try_to_ask(b, prompt, count, request));
    return &b->tasks[b->count - 1];
}

static void run(bench *b) {
    for (bool is_idle = false; !is_idle;) must(hy_schedule_round(b->schedule, &is_idle));
}

/* ---- what should come ------------------------------------------------------------------------ */

static void check_answer(const bench *b, const asked *a, int32_t number, bool is_cut) {
    static int32_t tokens[FAKE_CONTEXT + 1];
    const heard *h = &a->answers[number];
    int32_t most = a->request.max_tokens, room = FAKE_CONTEXT - a->prompt_count;
    bool is_limited = most > 0 && most <= room;
    if (!is_limited) most = room;
    memcpy(tokens, a->prompt, (size_t)a->prompt_count * sizeof *tokens);
    ck_assert_int_eq(h->ends, 1);
    for (int32_t i = 0; i < most; i++) {
        uint64_t logits;
        int32_t at = a->prompt_count + i;
        tokens[at] =
            fake_expected(b->decoder, tokens, at, a->request.seed + (uint64_t)number, &logits);
        if (is_cut && i == h->count) return;
        if (tokens[at] == 0 && !a->request.ignores_end) {
            ck_assert_int_eq(h->end, HY_END_MODEL);
            ck_assert_int_eq(h->count, i);
            ck_assert_int_eq(h->last.answer_tokens, i + 1);
            return;
        }
        ck_assert_int_lt(i, h->count);
        ck_assert_int_eq(h->tokens[i], tokens[at]);
        ck_assert_float_eq(h->logprobs[i], fake_logprob(logits, tokens[at]));
    }
    ck_assert_int_eq(h->end, is_limited ? HY_END_MAX_TOKENS : HY_END_CONTEXT);
    ck_assert_int_eq(h->count, most);
}

static void check_prompt(const bench *b, const asked *a) {
    const int32_t *lists[HY_CACHE_KINDS] = {a->prompt, a->prompt};
    ck_assert_int_eq(a->prompt_heard, a->request.wants_prompt_logprobs);
    for (int32_t i = 0; i < a->prompt_count && a->prompt_heard; i++) {
        if (i == 0) ck_assert(isnan(a->prompt_logprobs[0]));
        if (i == 0) continue;
        float expected = fake_logprob(fake_logits(b->decoder, lists, i - 1), a->prompt[i]);
        ck_assert_float_eq(a->prompt_logprobs[i], expected);
    }
}

static void check_task(const bench *b, const asked *a) {
    int32_t answers = a->request.answers > 0 ? a->request.answers : 1;
    check_prompt(b, a);
    for (int32_t i = 0; i < answers; i++) check_answer(b, a, i, false);
}

static void check_empty(const bench *b, int64_t finished) {
    hy_generator_state now;
    hy_queue_read(b->queue, &now);
    ck_assert_int_eq(now.running, 0);
    ck_assert_int_eq(now.waiting, 0);
    ck_assert_int_eq(now.finished, finished);
    ck_assert_int_eq(now.cache_tokens_used, 0);
}

/* Prompts begin with one of three texts, so they share chunks. */
static asked *ask_at_random(bench *b) {
    static int32_t prompt[FAKE_CONTEXT];
    int32_t count = (int32_t)draw(b, 3) ? 1 + (int32_t)draw(b, 60) : 1 + (int32_t)draw(b, 1150);
    uint64_t text = draw(b, 3);
    int32_t own = (int32_t)draw(b, (uint64_t)count + 1);
    for (int32_t i = 0; i < count; i++) {
        uint64_t stream = i < count - own ? text : 100 + b->drawn;
        prompt[i] = (int32_t)hy_rng_below(stream, HY_RNG_TEST, (uint64_t)i, FAKE_VOCAB);
    }
    hy_request request = {.answers = (int32_t)draw(b, MOST_ANSWERS + 1),
                          .max_tokens = (int32_t)draw(b, 90),
                          .seed = draw(b, 1000),
                          .repetition_penalty = draw(b, 2) ? 1.2 : 0,
                          .ignores_end = draw(b, 2),
                          .wants_prompt_logprobs = draw(b, 4) == 0,
                          .top_logprobs = (int32_t)draw(b, FAKE_TOP + 1)};
    return ask(b, prompt, count, request);
}

/* ---- the tests ------------------------------------------------------------------------------- */

/* The pool has room for one long sequence, or for all slots. */
START_TEST(every_answer_is_the_one_that_its_prompt_has_alone) {
    for (int32_t blocks = FAKE_WIDTH; blocks <= FAKE_BLOCKS; blocks += FAKE_BLOCKS - FAKE_WIDTH) {
        bench *b = open_bench(_i, blocks, 0);
        for (int i = 0; i < 60; i++) {
            bool is_idle;
            ask_at_random(b);
            for (uint64_t k = draw(b, 12); k > 0; k--) {
                must(hy_schedule_round(b->schedule, &is_idle));
            }
        }
        run(b);
        for (int i = 0; i < b->count; i++) check_task(b, &b->tasks[i]);
        check_empty(b, 60);
        close_bench(b);
    }
}
END_TEST

START_TEST(cancelling_ends_a_request_and_no_other) {
    bool was_cancelled[MOST_TASKS] = {0}, is_idle;
    int cancelled = 0;
    bench *b = open_bench(_i, 90, 0);
    for (int i = 0; i < 100; i++) {
        ask_at_random(b);
        for (uint64_t k = draw(b, 6); k > 0; k--) must(hy_schedule_round(b->schedule, &is_idle));
        int other = (int)draw(b, (uint64_t)b->count);
        was_cancelled[other] |= hy_queue_cancel(b->queue, b->tasks[other].id);
    }
    run(b);
    for (int i = 0; i < b->count; i++) {
        asked *a = &b->tasks[i];
        ck_assert(!hy_queue_cancel(b->queue, a->id));
        if (!was_cancelled[i]) check_task(b, a);
        for (int32_t k = 0; was_cancelled[i] && k < (a->request.answers ? a->request.answers : 1);
             k++) {
            bool is_cut = a->answers[k].end == HY_END_STOPPED;
            check_answer(b, a, k, is_cut);
            cancelled += is_cut;
        }
    }
    ck_assert_int_gt(cancelled, 20); /* else nothing was tested */
    check_empty(b, 100);
    close_bench(b);
}
END_TEST

START_TEST(requests_begin_in_the_order_of_their_arrival) {
    bench *b = open_bench(FAKE_FULL, FAKE_WIDTH, 0);
    int32_t prompt[1000];
    for (int i = 0; i < 1000; i++) prompt[i] = i % 50;
    for (int i = 0; i < 40; i++) { /* every third needs nearly all blocks */
        int32_t count = i % 3 == 1 ? 900 : 5;
        ask(b, prompt, count, (hy_request){.max_tokens = 200, .seed = (uint64_t)i});
    }
    run(b);
    for (int i = 1; i < b->count; i++) {
        ck_assert_int_lt(b->tasks[i - 1].first_heard, b->tasks[i].first_heard);
        check_task(b, &b->tasks[i]);
    }
    close_bench(b);
}
END_TEST

START_TEST(no_step_is_wasted_when_max_tokens_ends_an_answer) {
    bench *b = open_bench(FAKE_FULL, FAKE_BLOCKS, 0);
    int32_t prompt[] = {1, 2, 3}, expected = 0;
    for (int i = 1; i < 30; i++) {
        ask(b, prompt, 3, (hy_request){.max_tokens = i, .ignores_end = true});
        expected += i - 1;
    }
    run(b);
    ck_assert_int_eq(b->decoder->rows, expected);
    ck_assert_int_eq(b->decoder->chunks, 29);
    for (int i = 0; i < b->count; i++) check_task(b, &b->tasks[i]);
    close_bench(b);
}
END_TEST

START_TEST(a_prompt_that_begins_like_another_reuses_its_chunks) {
    bench *b = open_bench(FAKE_FULL, FAKE_BLOCKS, 0);
    int32_t prompt[700];
    for (int i = 0; i < 700; i++) prompt[i] = i % 50;
    hy_request request = {.max_tokens = 20};
    asked *first = ask(b, prompt, 700, request), *again = ask(b, prompt, 700, request);
    asked *shorter = ask(b, prompt, 512, request);
    prompt[300] = 77;
    asked *other = ask(b, prompt, 700, request);
    run(b);
    asked *later = ask(b, prompt, 700, request);
    request.wants_prompt_logprobs = true;
    asked *scored = ask(b, prompt, 700, request);
    run(b);
    ck_assert_int_eq(first->answers[0].last.reused_tokens, 0);
    ck_assert_int_eq(again->answers[0].last.reused_tokens, 512);
    ck_assert_int_eq(shorter->answers[0].last.reused_tokens, 256); /* its last chunk has logits */
    ck_assert_int_eq(other->answers[0].last.reused_tokens, 256);
    ck_assert_int_eq(later->answers[0].last.reused_tokens, 512);
    ck_assert_int_eq(scored->answers[0].last.reused_tokens, 0);
    ck_assert_int_eq(b->decoder->chunks, 3 + 1 + 1 + 2 + 1 + 3);
    for (int i = 0; i < b->count; i++) check_task(b, &b->tasks[i]);
    check_empty(b, 6);
    close_bench(b);
}
END_TEST

/* Chunks begin at 0, 256, 512 and 1024. */
START_TEST(chunks_that_grow_are_reused) {
    bench *b = open_bench(FAKE_GROWING, FAKE_BLOCKS, 0);
    static const int32_t counts[] = {1024, 1025, 700, 512, 257, 256},
                         reused[] = {512, 1024, 512, 256, 256, 0};
    int32_t prompt[1100];
    for (int i = 0; i < 1100; i++) prompt[i] = i % 50;
    hy_request request = {.max_tokens = 20};
    ask(b, prompt, 1100, request);
    for (int i = 0; i < 6; i++) ask(b, prompt, counts[i], request);
    prompt[1023] = 77; /* in the third chunk */
    asked *other = ask(b, prompt, 1100, request);
    run(b);
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(b->tasks[1 + i].answers[0].last.reused_tokens, reused[i]);
    }
    ck_assert_int_eq(other->answers[0].last.reused_tokens, 512);
    ck_assert_int_eq(b->decoder->chunks, 4 + 6 + 2);
    for (int i = 0; i < b->count; i++) check_task(b, &b->tasks[i]);
    check_empty(b, 8);
    close_bench(b);
}
END_TEST

START_TEST(between_two_steps_prompts_have_no_more_tokens_than_the_longest_chunk) {
    bench *b = open_bench(FAKE_GROWING, FAKE_BLOCKS, 0);
    static const int32_t counts[] = {3, 250, 250, 1100, 200, 900, 90, 256};
    int32_t prompt[1100];
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 1100; k++) prompt[k] = 1 + (k + i) % 50;
        ask(b, prompt, counts[i], (hy_request){.max_tokens = 100, .ignores_end = true});
    }
    run(b);
    int32_t longest = hy_batch_decoder_facts(b->decoder)->chunk;
    ck_assert_int_gt(b->decoder->most_filled, longest / 2);
    ck_assert_int_le(b->decoder->most_filled, longest);
    for (int i = 0; i < b->count; i++) check_task(b, &b->tasks[i]);
    close_bench(b);
}
END_TEST

/* The pool has 75 blocks: after the second long prompt, the chunks of the first are gone. */
START_TEST(chunks_are_kept_until_their_blocks_are_needed) {
    bench *b = open_bench(FAKE_FULL, FAKE_WIDTH, 0);
    int32_t prompt[1100];
    for (int i = 0; i < 1100; i++) prompt[i] = i % 50;
    hy_request request = {.max_tokens = 10};
    ask(b, prompt, 600, request);
    run(b);
    asked *kept = ask(b, prompt, 600, request);
    run(b);
    ck_assert_int_eq(kept->answers[0].last.reused_tokens, 512);
    prompt[0] = 99;
    ask(b, prompt, 1100, request);
    run(b);
    prompt[0] = 0;
    asked *gone = ask(b, prompt, 600, request);
    run(b);
    ck_assert_int_eq(gone->answers[0].last.reused_tokens, 0);
    for (int i = 0; i < b->count; i++) check_task(b, &b->tasks[i]);
    close_bench(b);
}
END_TEST

/* Sequences that use their blocks in turn share nothing with other requests. */
START_TEST(with_a_window_only_short_sequences_reuse_chunks) {
    bench *b = open_bench(FAKE_MIXED, FAKE_BLOCKS, 0);
    int32_t prompt[400];
    for (int i = 0; i < 400; i++) prompt[i] = i % 50;
    hy_request request = {.max_tokens = 10};
    ask(b, prompt, 300, request); /* 309 positions; 20 blocks have 320 */
    asked *few = ask(b, prompt, 300, request), *many = ask(b, prompt, 400, request);
    run(b);
    ck_assert_int_eq(few->answers[0].last.reused_tokens, 256);
    ck_assert_int_eq(many->answers[0].last.reused_tokens, 0);
    for (int i = 0; i < b->count; i++) check_task(b, &b->tasks[i]);
    close_bench(b);
}
END_TEST

/* There are three snapshots: at 256, 512 and 1024 after the first prompt, because 768 gave its own
 * away. A shorter prompt begins at 512 and computes 768 again, which now gets the one that was not
 * used for longest. */
START_TEST(with_states_a_prompt_begins_where_a_snapshot_is) {
    bench *b = open_bench(FAKE_STATES, FAKE_BLOCKS, 0);
    static const int32_t counts[] = {1100, 1100, 1000, 1000, 1100, 300, 256},
                         reused[] = {0, 1024, 512, 768, 768, 256, 0};
    int32_t prompt[1100];
    for (int i = 0; i < 1100; i++) prompt[i] = i % 50;
    for (int i = 0; i < 7; i++) {
        asked *a = ask(b, prompt, counts[i], (hy_request){.max_tokens = 20});
        run(b);
        ck_assert_int_eq(a->answers[0].last.reused_tokens, reused[i]);
        check_task(b, a);
    }
    /* Another text has two: one goes along with its chunks. The first chunk keeps its own. */
    static const int32_t firsts[] = {99, 99, 0}, reused_then[] = {0, 1024, 256};
    for (int i = 0; i < 3; i++) {
        prompt[0] = firsts[i];
        asked *a = ask(b, prompt, 1100, (hy_request){.max_tokens = 20});
        run(b);
        ck_assert_int_eq(a->answers[0].last.reused_tokens, reused_then[i]);
    }
    for (int i = 0; i < b->count; i++) check_task(b, &b->tasks[i]);
    check_empty(b, 10);
    close_bench(b);
}
END_TEST

/* A prompt without a full chunk: the other answers get the state at its end. */
START_TEST(answers_of_one_prompt_begin_with_its_state) {
    bench *b = open_bench(FAKE_STATES, FAKE_BLOCKS, 0);
    int32_t prompt[] = {5, 6, 7};
    asked *a = ask(b, prompt, 3, (hy_request){.answers = 5, .max_tokens = 30});
    run(b);
    ck_assert_int_eq(b->decoder->copies, 4);
    ck_assert_int_eq(b->decoder->chunks, 1);
    check_task(b, a);
    close_bench(b);
}
END_TEST

START_TEST(answers_of_one_request_share_its_prompt) {
    bench *b = open_bench(_i, FAKE_BLOCKS, 0);
    int32_t prompt[500];
    for (int i = 0; i < 500; i++) prompt[i] = i % 50;
    hy_generator_state now;
    bool is_idle;
    asked *a =
        ask(b, prompt, 500, (hy_request){.answers = 5, .max_tokens = 30, .ignores_end = true});
    must(hy_schedule_round(b->schedule, &is_idle));
    hy_queue_read(b->queue, &now);
    ck_assert_int_eq(now.running, 5);
    /* 31 blocks of the prompt are full; an answer has two of its own: 529 positions */
    if (_i != FAKE_WINDOW) {
        ck_assert_int_eq(now.cache_tokens_used, (34 + 4 * 3) * HY_DECODE_BLOCK);
    }
    run(b);
    ck_assert_int_eq(b->decoder->chunks, 2);
    check_task(b, a);
    ck_assert_int_ne(memcmp(a->answers[0].tokens, a->answers[1].tokens, 30 * sizeof(int32_t)), 0);
    check_empty(b, 1);
    close_bench(b);
}
END_TEST

START_TEST(more_answers_than_slots_begin_later) {
    bench *b = open_bench(_i, FAKE_BLOCKS, 0);
    int32_t prompt[300];
    for (int i = 0; i < 300; i++) prompt[i] = i % 50;
    for (int i = 0; i < 4; i++) {
        ask(b, prompt, 300,
            (hy_request){.answers = 5, .max_tokens = 20, .seed = (uint64_t)i * 100});
    }
    run(b);
    for (int i = 0; i < b->count; i++) check_task(b, &b->tasks[i]);
    check_empty(b, 4);
    close_bench(b);
}
END_TEST

START_TEST(a_full_queue_refuses) {
    bench *b = open_bench(FAKE_FULL, FAKE_BLOCKS, 3);
    int32_t prompt[] = {1, 2, 3};
    hy_request request = {.max_tokens = 5};
    for (int i = 0; i < 3; i++) ask(b, prompt, 3, request);
    must_fail(try_to_ask(b, prompt, 3, request), HY_ERR_STATE, "3 requests wait already");
    run(b);
    ask(b, prompt, 3, request);
    run(b);
    for (int i = 0; i < b->count; i++) check_task(b, &b->tasks[i]);
    check_empty(b, 4);
    close_bench(b);
}
END_TEST

/* What has begun ends; what waits is answered afterwards. */
START_TEST(after_a_failure_the_rest_is_answered) {
    bench *b = open_bench(FAKE_MIXED, FAKE_WIDTH, 0);
    hy_status status = HY_OK;
    int stopped = 0;
    for (int i = 0; i < 30; i++) ask_at_random(b);
    b->decoder->fails_at = 10;
    for (bool is_idle = false; status == HY_OK && !is_idle;) {
        status = hy_schedule_round(b->schedule, &is_idle);
    }
    ck_assert_int_eq(status, HY_ERR_DEVICE);
    hy_schedule_abandon(b->schedule);
    b->decoder->enqueued = b->decoder->read = 0;
    run(b);
    for (int i = 0; i < b->count; i++) {
        bool has_ended = b->tasks[i].answers[0].end == HY_END_STOPPED;
        stopped += has_ended;
        if (!has_ended) check_task(b, &b->tasks[i]);
    }
    ck_assert_int_gt(stopped, 0);
    ck_assert_int_lt(stopped, 20);
    check_empty(b, 30);
    close_bench(b);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("generate: schedule");
    TCase *all = tcase_create("schedule");
    tcase_add_loop_test(all, every_answer_is_the_one_that_its_prompt_has_alone, 0, FAKE_SORTS);
    tcase_add_loop_test(all, cancelling_ends_a_request_and_no_other, 0, FAKE_SORTS);
    tcase_add_test(all, requests_begin_in_the_order_of_their_arrival);
    tcase_add_test(all, no_step_is_wasted_when_max_tokens_ends_an_answer);
    tcase_add_test(all, a_prompt_that_begins_like_another_reuses_its_chunks);
    tcase_add_test(all, chunks_that_grow_are_reused);
    tcase_add_test(all, between_two_steps_prompts_have_no_more_tokens_than_the_longest_chunk);
    tcase_add_test(all, chunks_are_kept_until_their_blocks_are_needed);
    tcase_add_test(all, with_a_window_only_short_sequences_reuse_chunks);
    tcase_add_test(all, with_states_a_prompt_begins_where_a_snapshot_is);
    tcase_add_test(all, answers_of_one_prompt_begin_with_its_state);
    tcase_add_loop_test(all, answers_of_one_request_share_its_prompt, 0, FAKE_SORTS);
    tcase_add_loop_test(all, more_answers_than_slots_begin_later, 0, FAKE_SORTS);
    tcase_add_test(all, a_full_queue_refuses);
    tcase_add_test(all, after_a_failure_the_rest_is_answered);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
