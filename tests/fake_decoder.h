/* fake_decoder.h: a batched decoder without a model, for tests of what schedules it.
 *
 * It stands in for model/batch_decode.c in the programs that include it. Its cache holds tokens
 * instead of keys and values, in the same blocks. The next token is a hash of the tokens that the
 * cache has for the sequence (within the window, for a kind with one), of seed and position: so a
 * block that is shared, copied, overwritten or given away wrongly changes the answer. With states the
 * next token is also a hash of the slot's state, which is a hash of all tokens that it has taken. */
#ifndef HY_TESTS_FAKE_DECODER_H
#define HY_TESTS_FAKE_DECODER_H

#include "harness.h"

#include "base/hash.h"
#include "model/batch_decode.h"

enum { FAKE_STREAMS = 9, FAKE_CONTEXT = 1200, FAKE_VOCAB = 256, FAKE_TOP = 3 };
enum { FAKE_SNAPSHOTS = 3, FAKE_STATES_COUNT = FAKE_STREAMS + FAKE_SNAPSHOTS };
enum { FAKE_WIDTH = FAKE_CONTEXT / HY_DECODE_BLOCK, FAKE_BLOCKS = 1000 };

typedef struct fake_result {
    int32_t tokens[FAKE_STREAMS], top_tokens[FAKE_STREAMS * FAKE_TOP];
    float logprobs[FAKE_STREAMS], top_logprobs[FAKE_STREAMS * FAKE_TOP];
} fake_result;

struct hy_batch_decoder {
    hy_batch_decoder_options options;
    hy_cache_kind kinds[HY_CACHE_KINDS];
    int32_t kind_count;
    int32_t cache[HY_CACHE_KINDS][FAKE_BLOCKS][HY_DECODE_BLOCK];
    int32_t blocks[FAKE_STREAMS][HY_CACHE_KINDS][FAKE_WIDTH], counts[FAKE_STREAMS][HY_CACHE_KINDS];
    int32_t next[FAKE_STREAMS], seen[FAKE_STREAMS];
    hy_states states;
    uint64_t state[FAKE_STATES_COUNT];
    uint64_t trail[FAKE_CONTEXT];                 /* the state after each row of the last chunk */
    int64_t copies;                               /* of states, so far */
    int32_t chunk_slot, chunk_first, chunk_count; /* count 0: a step followed */
    fake_result results[HY_STEPS_AHEAD + 1];
    uint64_t enqueued, read;
    int64_t chunks, rows, steps; /* so far; rows: of steps, without idle ones */
    int64_t filled, most_filled; /* prompt tokens since the last step, and at most between two */
    int64_t fails_at;            /* this step fails; 0: none */
};

/* ---- the model ------------------------------------------------------------------------------- */

static inline int32_t fake_at(const hy_batch_decoder *d, int32_t slot, int32_t kind, int32_t at) {
    int32_t i = at / HY_DECODE_BLOCK % d->counts[slot][kind];
    return d->cache[kind][d->blocks[slot][kind][i]][at % HY_DECODE_BLOCK];
}

static inline void fake_write(hy_batch_decoder *d, int32_t slot, int32_t at, int32_t token) {
    for (int32_t kind = 0; kind < d->kind_count; kind++) {
        int32_t i = at / HY_DECODE_BLOCK % d->counts[slot][kind];
        ck_assert_int_lt(at / HY_DECODE_BLOCK, d->counts[slot][kind] == d->kinds[kind].most
                                                   ? FAKE_WIDTH
                                                   : d->counts[slot][kind]);
        d->cache[kind][d->blocks[slot][kind][i]][at % HY_DECODE_BLOCK] = token;
    }
}

/* A hash of what a kind's layers see at position `last`. */
static inline uint64_t fake_hash(const int32_t *tokens, int32_t last, int32_t window) {
    int32_t first = window > 0 && last >= window ? last - window + 1 : 0;
    return hy_hash_bytes(tokens + first, (size_t)(last + 1 - first) * sizeof *tokens, 0);
}

static inline uint64_t fake_turn(const hy_batch_decoder *d, uint64_t state, int32_t at,
                                 int32_t token) {
    uint64_t pair[] = {at > 0 ? state : 0, (uint64_t)token};
    return d->states.layers > 0 ? hy_hash_bytes(pair, sizeof pair, 0) : 0;
}

/* What follows the tokens up to position `last`, as each kind's layers see them, and this state. */
static inline uint64_t fake_logits_of(const hy_batch_decoder *d, const int32_t *const *tokens,
                                      int32_t last, uint64_t state) {
    uint64_t hash = 1 + state;
    for (int32_t kind = 0; kind < d->kind_count; kind++) {
        hash = hash * 31 + fake_hash(tokens[kind], last, d->kinds[kind].window);
    }
    return hash;
}

/* The same, with the state of a sequence that has taken the first kind's tokens. */
static inline uint64_t fake_logits(const hy_batch_decoder *d, const int32_t *const *tokens,
                                   int32_t last) {
    uint64_t state = 0;
    for (int32_t i = 0; i <= last; i++) state = fake_turn(d, state, i, tokens[0][i]);
    return fake_logits_of(d, tokens, last, state);
}

/* Tokens are below 40, so about one in 40 is token 0, the end of an answer. */
static inline int32_t fake_choice(uint64_t logits, const hy_sampling *sampling) {
    uint64_t key[3] = {logits, sampling->seed, sampling->position};
    return (int32_t)(hy_hash_bytes(key, sizeof key, 0) % 40);
}

static inline float fake_logprob(uint64_t logits, int32_t token) {
    return -(float)((logits ^ (uint64_t)token) % 1000) / 100;
}

/* The logits after position `last` of a slot, whose state was then this. */
static inline uint64_t fake_look(const hy_batch_decoder *d, int32_t slot, int32_t last,
                                 uint64_t state) {
    static int32_t tokens[HY_CACHE_KINDS][FAKE_CONTEXT];
    const int32_t *lists[HY_CACHE_KINDS] = {tokens[0], tokens[1]};
    for (int32_t kind = 0; kind < d->kind_count; kind++) {
        for (int32_t i = 0; i <= last; i++) tokens[kind][i] = fake_at(d, slot, kind, i);
    }
    return fake_logits_of(d, lists, last, state);
}

/* The same after a row of the last chunk. */
static inline uint64_t fake_look_back(const hy_batch_decoder *d, int32_t row) {
    return fake_look(d, d->chunk_slot, d->chunk_first + row, d->trail[row]);
}

/* ---- the interface --------------------------------------------------------------------------- */

/* Schedules are given a decoder; others make them. */
hy_status hy_batch_decoder_create(hy_model *model, hy_backend *backend,
                                  const hy_batch_decoder_options *options, hy_batch_decoder **out) {
    (void)model, (void)backend, (void)options, (void)out;
    return hy_fail(HY_ERR_INTERNAL, "a fake decoder is made by hand");
}
void hy_batch_decoder_destroy(hy_batch_decoder *d) { (void)d; }
uint64_t hy_batch_decoder_bytes(const hy_batch_decoder *d) { return (void)d, 0; }
uint64_t hy_batch_decoder_cache_bytes(const hy_batch_decoder *d) { return (void)d, 0; }

const hy_states *hy_batch_decoder_states(const hy_batch_decoder *d) { return &d->states; }

const hy_batch_decoder_options *hy_batch_decoder_facts(const hy_batch_decoder *d) {
    return &d->options;
}

int32_t hy_batch_decoder_kinds(const hy_batch_decoder *d, const hy_cache_kind **kinds) {
    *kinds = d->kinds;
    return d->kind_count;
}

hy_status hy_batch_decoder_seat(hy_batch_decoder *d, int32_t slot, const int32_t *const *blocks,
                                const int32_t *counts) {
    for (int32_t kind = 0; kind < d->kind_count; kind++) {
        d->counts[slot][kind] = counts[kind];
        memcpy(d->blocks[slot][kind], blocks[kind], (size_t)counts[kind] * sizeof(int32_t));
    }
    return HY_OK;
}

hy_status hy_batch_decoder_see(hy_batch_decoder *d, int32_t slot, const int32_t *tokens,
                               int32_t count) {
    (void)tokens;
    d->seen[slot] = count;
    return HY_OK;
}

hy_status hy_batch_decoder_copy_block(hy_batch_decoder *d, int32_t kind, int32_t from, int32_t to) {
    memcpy(d->cache[kind][to], d->cache[kind][from], sizeof d->cache[kind][to]);
    return HY_OK;
}

hy_status hy_batch_decoder_copy_state(hy_batch_decoder *d, int32_t from, int32_t to) {
    if (d->states.layers == 0 || from == to) return HY_OK;
    ck_assert(from >= 0 && from < d->states.count && to >= 0 && to < d->states.count);
    d->state[to] = d->state[from];
    d->copies++;
    return HY_OK;
}

static inline fake_result *fake_next(hy_batch_decoder *d) {
    ck_assert_uint_le(d->enqueued - d->read, HY_STEPS_AHEAD);
    fake_result *r = &d->results[d->enqueued++ % (HY_STEPS_AHEAD + 1)];
    memset(r, 0xff, sizeof *r);
    return r;
}

static inline void fake_put(fake_result *r, int32_t row, uint64_t logits, int32_t token) {
    r->tokens[row] = token;
    r->logprobs[row] = fake_logprob(logits, token);
    for (int i = 0; i < FAKE_TOP; i++) {
        r->top_tokens[row * FAKE_TOP + i] = (token + i) % FAKE_VOCAB;
        r->top_logprobs[row * FAKE_TOP + i] = r->logprobs[row] - (float)i;
    }
}

hy_status hy_batch_decoder_chunk(hy_batch_decoder *d, int32_t slot, const int32_t *tokens,
                                 int32_t first, int32_t count, const hy_sampling *sampling) {
    int32_t begin = 0;
    while (begin < first) begin += hy_chunk_length(begin, d->options.chunk);
    ck_assert_int_eq(begin, first);
    ck_assert(count >= 1 && count <= hy_chunk_length(first, d->options.chunk));
    ck_assert_ptr_null(sampling); /* the schedule chooses apart */
    for (int32_t i = 0; i < count; i++) {
        fake_write(d, slot, first + i, tokens[i]);
        d->state[slot] = d->trail[i] = fake_turn(d, d->state[slot], first + i, tokens[i]);
    }
    d->chunk_slot = slot;
    d->chunk_first = first;
    d->chunk_count = count;
    d->chunks++;
    d->filled += count;
    return HY_OK;
}

hy_status hy_batch_decoder_choose(hy_batch_decoder *d, int32_t slot, const hy_sampling *sampling) {
    ck_assert_int_gt(d->chunk_count, 0);
    uint64_t logits = fake_look_back(d, d->chunk_count - 1);
    d->next[slot] = fake_choice(logits, sampling);
    fake_put(fake_next(d), slot, logits, d->next[slot]);
    bool has_penalty = sampling->penalty > 0 && sampling->penalty != 1;
    if (has_penalty) ck_assert_int_eq(d->seen[slot], d->chunk_first + d->chunk_count);
    d->seen[slot]++;
    return HY_OK;
}

hy_status hy_batch_decoder_score(hy_batch_decoder *d, int32_t row, const int32_t *tokens,
                                 int32_t count) {
    ck_assert(row + count <= d->chunk_count && count <= d->options.streams);
    fake_result *r = fake_next(d);
    for (int32_t i = 0; i < count; i++) {
        fake_put(r, i, fake_look_back(d, row + i), tokens[i]);
    }
    return HY_OK;
}

hy_status hy_batch_decoder_step(hy_batch_decoder *d, int32_t rows, const int32_t *first,
                                const hy_sampling *sampling) {
    if (++d->steps == d->fails_at) return hy_fail(HY_ERR_DEVICE, "this step fails");
    fake_result *r = fake_next(d);
    d->chunk_count = 0;
    if (d->filled > d->most_filled) d->most_filled = d->filled;
    d->filled = 0;
    for (int32_t slot = 0; slot < rows; slot++) {
        d->seen[slot]++; /* of an idle slot too */
        if (first[slot] < 0) continue;
        fake_write(d, slot, first[slot], d->next[slot]);
        d->state[slot] = fake_turn(d, d->state[slot], first[slot], d->next[slot]);
        uint64_t logits = fake_look(d, slot, first[slot], d->state[slot]);
        d->next[slot] = fake_choice(logits, &sampling[slot]);
        fake_put(r, slot, logits, d->next[slot]);
        d->rows++;
    }
    return HY_OK;
}

hy_status hy_batch_decoder_read(hy_batch_decoder *d, hy_step_tokens *out) {
    ck_assert_uint_lt(d->read, d->enqueued);
    const fake_result *r = &d->results[d->read++ % (HY_STEPS_AHEAD + 1)];
    *out = (hy_step_tokens){.tokens = r->tokens,
                            .logprobs = r->logprobs,
                            .top_tokens = r->top_tokens,
                            .top_logprobs = r->top_logprobs};
    return HY_OK;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

enum {
    FAKE_FULL,
    FAKE_MIXED,
    FAKE_WINDOW,
    FAKE_STATES,
    FAKE_GROWING,
    FAKE_GROWING_MIXED,
    FAKE_GROWING_STATES,
    FAKE_SORTS
};

/* A pool of so many blocks of each kind; `sort` says which windows the layers have, whether they have
 * states, and whether chunks grow. */
static inline hy_batch_decoder *fake_open(int sort, int32_t blocks) {
    hy_batch_decoder *d = calloc(1, sizeof *d);
    ck_assert_ptr_nonnull(d);
    int32_t chunk = sort >= FAKE_GROWING ? 512 : 256;
    int32_t window = 37, in_turn = (window + chunk) / HY_DECODE_BLOCK + 2;
    d->options = (hy_batch_decoder_options){.streams = FAKE_STREAMS,
                                            .context = FAKE_CONTEXT,
                                            .chunk = chunk,
                                            .top = FAKE_TOP,
                                            .has_seen = true};
    hy_cache_kind full = {.most = FAKE_WIDTH, .blocks = blocks};
    hy_cache_kind turns = {.window = window, .most = in_turn, .blocks = blocks};
    d->kinds[0] = sort == FAKE_WINDOW ? turns : full;
    d->kinds[1] = turns;
    d->kind_count = sort == FAKE_MIXED || sort == FAKE_GROWING_MIXED ? 2 : 1;
    d->options.tokens = (int64_t)blocks * HY_DECODE_BLOCK;
    memset(d->cache, 0xff, sizeof d->cache);
    memset(d->state, 0xff, sizeof d->state);
    if (sort == FAKE_STATES || sort == FAKE_GROWING_STATES)
        d->states = (hy_states){
            .layers = 2, .count = FAKE_STATES_COUNT, .snapshots = FAKE_SNAPSHOTS, .each = 8};
    return d;
}

/* The token that an answer has after `count` tokens (prompt and answer so far). */
static inline int32_t fake_expected(const hy_batch_decoder *d, const int32_t *tokens, int32_t count,
                                    uint64_t seed, uint64_t *logits) {
    const int32_t *lists[HY_CACHE_KINDS] = {tokens, tokens};
    hy_sampling sampling = {.seed = seed, .position = (uint64_t)count};
    *logits = fake_logits(d, lists, count - 1);
    return fake_choice(*logits, &sampling);
}

#endif
