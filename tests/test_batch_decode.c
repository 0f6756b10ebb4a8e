/* test_batch_decode.c: a batched decoder gives the log-probabilities of a pass over whole
 * sequences, and each sequence the same bits alone and among others.
 *
 * Models of every kind of position and attention, with keys and values and with states; sequences longer than a chunk and longer than
 * what is kept of a window; chunks of one length and chunks that grow; blocks in shuffled order;
 * weights on the device and passing through a ring. Steps force the tokens of a text, so that every
 * position has a known answer. */
#include "model_rig.h"

#include <math.h>

#include "base/rng.h"
#include "infer/solo.h"
#include "model/batch_decode.h"

enum { SEQ = 560, VOCAB = 61, STREAMS = 9, TEXTS = 4, CHUNK = 256, TOP = 3 };
enum { LONG = 1300, GROWN = 1024 }; /* contexts and longest chunks where chunks grow */
enum { SNAPSHOTS = 3 };

/* LINEAR: linear attention in two of three layers; STATES: in all. */
enum { GPT2, LLAMA, QWEN3, LINEAR, STATES, WINDOW, MIXED, CAPPED, SPARSE, SHAPES };

static hy_shape shape_of(int kind) {
    hy_shape s = {.layers = 3,
                  .width = 32,
                  .heads = 4,
                  .kv_heads = 4,
                  .mlp_width = 48,
                  .vocab = VOCAB,
                  .context = LONG,
                  .norm_eps = 1e-5,
                  .rope_theta = 10000,
                  .init_std = 0.1};
    if (kind == GPT2) {
        s.has_qkv_bias = s.has_proj_bias = s.has_tied_head = true;
        return s;
    }
    s.is_rms = s.has_rope = s.is_gated = true;
    if (kind >= QWEN3) s.kv_heads = 2;
    if (kind == QWEN3) s.has_qk_norm = true;
    if (kind == QWEN3) s.head_size = 12;
    if (kind == LINEAR || kind == STATES) {
        s.arch = HY_ARCH_QWEN35;
        s.has_qk_norm = s.more.has_gates = true;
        s.more.norm_offset = 1;
        s.more.linear = (hy_linear_options){
            .key_heads = 2, .heads = 4, .key_dim = 7, .value_dim = 5, .taps = 3};
        strcpy(s.more.linear.layers, kind == LINEAR ? "lfl" : "l");
        return s;
    }
    if (kind == SPARSE) s.sparse_local = 2, s.sparse_global = 1;
    if (kind >= WINDOW && kind < SPARSE) s.sliding_window = 37;
    if (kind >= MIXED) strcpy(s.sliding_layers, "fs");
    if (kind == CAPPED) s.more.attention_softcap = s.more.logit_softcap = 5;
    if (kind == CAPPED) s.more.logit_divisor = 2, s.more.rope.local_theta = 100;
    return s;
}

typedef struct decode_rig {
    model_rig model;
    int32_t context, chunk;
    float expected[TEXTS][LONG]; /* log-probability of the token after each position */
    int32_t texts[TEXTS][LONG + 1];
    hy_batch_decoder *decoder;
    void *memory;
    int32_t used[HY_CACHE_KINDS];   /* blocks handed out */
    float logprobs[TEXTS][LONG];    /* as the decoder gave them */
    int32_t snapshot_at[SNAPSHOTS]; /* take_rest takes one of each position */
} decode_rig;

/* Texts are windows of one random sequence. */
static void make_texts(decode_rig *rig) {
    size_t bytes = (size_t)rig->context * sizeof(int32_t);
    for (int t = 0; t < TEXTS; t++) {
        for (int i = 0; i <= rig->context; i++)
            rig->texts[t][i] =
                (int32_t)hy_rng_below(5, HY_RNG_TEST, (uint64_t)(t * 1000 + i), VOCAB);
        memcpy(rig->model.tokens, rig->texts[t], bytes);
        memcpy(rig->model.targets, rig->texts[t] + 1, bytes);
        hy_batch_input input = rig_input(&rig->model, 1, false);
        must(hy_batch_evaluate(rig->model.plan, &input));
        rig_sync(&rig->model);
        for (int i = 0; i < rig->context; i++) rig->expected[t][i] = -rig->model.losses[i];
    }
}

static void decode_open_with(decode_rig *rig, int kind, const hy_batch_decoder_options *decoding) {
    hy_shape shape = shape_of(kind);
    hy_batch_options options = {
        .batch = 1, .seq = decoding->context, .dtype = HY_F32, .grad_dtype = HY_F32};
    *rig = (decode_rig){.context = decoding->context, .chunk = decoding->chunk};
    rig_open(&rig->model, &shape, &options, 3);
    make_texts(rig);
    hy_backend *b = rig->model.backend;
    must(hy_batch_decoder_create(rig->model.model, b, decoding, &rig->decoder));
    uint64_t bytes = hy_batch_decoder_bytes(rig->decoder);
    must(b->alloc(b, HY_DEVICE, bytes, &rig->memory));
    memset(rig->memory, 0xff, bytes); /* NaN: what is read must have been written */
    must(hy_batch_decoder_place(rig->decoder, rig->model.stream, rig->memory, &rig->model.weights,
                                NULL));
}

static void decode_open_sized(decode_rig *rig, int kind, int32_t context, int32_t chunk) {
    decode_open_with(rig, kind,
                     &(hy_batch_decoder_options){.context = context,
                                                 .streams = STREAMS,
                                                 .chunk = chunk,
                                                 .top = TOP,
                                                 .snapshots = SNAPSHOTS,
                                                 .has_seen = true,
                                                 .dtype = HY_F32});
}

static void decode_open(decode_rig *rig, int kind) { decode_open_sized(rig, kind, SEQ, CHUNK); }

static void decode_close(decode_rig *rig) {
    rig_sync(&rig->model);
    hy_batch_decoder_destroy(rig->decoder);
    rig->model.backend->release(rig->model.backend, HY_DEVICE, rig->memory, 0);
    rig_close(&rig->model);
}

/* The n-th block that is handed out: they come from all over the pool. */
static int32_t block_at(const hy_cache_kind *kind, int32_t n) {
    return (int32_t)hy_rng_permute(7, HY_RNG_TEST, (uint64_t)kind->blocks, (uint64_t)n);
}

static void seat(decode_rig *rig, int32_t slot) {
    const hy_cache_kind *kinds;
    static int32_t ids[HY_CACHE_KINDS][LONG];
    const int32_t *lists[HY_CACHE_KINDS] = {ids[0], ids[1]};
    int32_t counts[HY_CACHE_KINDS];
    int32_t count = hy_batch_decoder_kinds(rig->decoder, &kinds);
    for (int32_t k = 0; k < count; k++) {
        counts[k] = kinds[k].most;
        for (int32_t i = 0; i < counts[k]; i++) {
            ck_assert_int_lt(rig->used[k], kinds[k].blocks);
            ids[k][i] = block_at(&kinds[k], rig->used[k]++);
        }
    }
    must(hy_batch_decoder_seat(rig->decoder, slot, lists, counts));
}

static hy_status copy_state(const decode_rig *rig, int32_t from, int32_t to) {
    return hy_batch_decoder_copy_state(rig->decoder, from, to);
}

static void take_snapshots(const decode_rig *rig, int32_t slot, int32_t position) {
    for (int32_t i = 0; i < SNAPSHOTS; i++) {
        if (rig->snapshot_at[i] == position) must(copy_state(rig, slot, STREAMS + i));
    }
}

static hy_sampling forced(int32_t token) { return (hy_sampling){.forced = token}; }

/* A prompt of `count` tokens of a text, of which the cache has `first`; its next token is that of
 * the text. */
static void take_rest(decode_rig *rig, int32_t slot, int text, int32_t first, int32_t count,
                      bool scores) {
    const int32_t *tokens = rig->texts[text];
    hy_step_tokens result;
    for (int32_t rows; first < count; first += rows) {
        rows = hy_chunk_length(first, rig->chunk);
        if (rows > count - first) rows = count - first;
        bool is_last = first + rows == count;
        hy_sampling next = forced(tokens[count]);
        must(hy_batch_decoder_chunk(rig->decoder, slot, tokens + first, first, rows,
                                    is_last ? &next : NULL));
        take_snapshots(rig, slot, first + rows);
        if (is_last) {
            must(hy_batch_decoder_read(rig->decoder, &result));
            ck_assert_int_eq(result.tokens[slot], tokens[count]);
            rig->logprobs[text][count - 1] = result.logprobs[slot];
        }
        for (int32_t row = 0; scores && row < rows; row += STREAMS) {
            int32_t some = rows - row < STREAMS ? rows - row : STREAMS;
            must(hy_batch_decoder_score(rig->decoder, row, tokens + first + row + 1, some));
            must(hy_batch_decoder_read(rig->decoder, &result));
            memcpy(rig->logprobs[text] + first + row, result.logprobs,
                   (size_t)some * sizeof(float));
        }
    }
}

static void take_prompt(decode_rig *rig, int32_t slot, int text, int32_t count, bool scores) {
    take_rest(rig, slot, text, 0, count, scores);
}

static void compare(const decode_rig *rig, int text, int32_t from, int32_t to) {
    for (int32_t i = from; i < to; i++) {
        float got = rig->logprobs[text][i], expected = rig->expected[text][i];
        ck_assert_msg(fabsf(got - expected) <= 1e-5f * fmaxf(1, fabsf(expected)),
                      "text %d, position %d: log-probability %g, expected %g", text, i, (double)got,
                      (double)expected);
    }
}

/* Slots with a text, and how far they are. */
typedef struct seats {
    int text[STREAMS]; /* -1: idle */
    int32_t at[STREAMS];
} seats;

static void step(decode_rig *rig, seats *s, int32_t rows) {
    int32_t first[STREAMS];
    hy_sampling sampling[STREAMS];
    hy_step_tokens result;
    for (int32_t i = 0; i < rows; i++) {
        bool is_idle = s->text[i] < 0;
        first[i] = is_idle ? -1 : s->at[i];
        sampling[i] = forced(is_idle ? 0 : rig->texts[s->text[i]][s->at[i] + 1]);
    }
    must(hy_batch_decoder_step(rig->decoder, rows, first, sampling));
    must(hy_batch_decoder_read(rig->decoder, &result));
    for (int32_t i = 0; i < rows; i++) {
        if (s->text[i] < 0) continue;
        rig->logprobs[s->text[i]][s->at[i]] = result.logprobs[i];
        s->at[i]++;
    }
}

START_TEST(prompts_and_steps_equal_passes_over_whole_sequences) {
    static const int32_t prompts[TEXTS] = {300, 256, 1, 511};
    decode_rig *rig = calloc(1, sizeof *rig);
    decode_open(rig, _i);
    seats s = {.text = {-1, -1, -1, -1, -1, -1, -1, -1, -1}};
    for (int t = 0; t < TEXTS; t++) {
        int32_t slot = t * 2 + 1;
        seat(rig, slot);
        take_prompt(rig, slot, t, prompts[t], true);
        compare(rig, t, 0, prompts[t]);
        s.text[slot] = t;
        s.at[slot] = prompts[t];
    }
    for (int i = 0; i < SEQ - 511; i++) step(rig, &s, STREAMS);
    for (int t = 0; t < TEXTS; t++) compare(rig, t, prompts[t] - 1, s.at[2 * t + 1]);
    /* One goes on alone to the end of the context. */
    s.text[1] = s.text[3] = s.text[7] = -1;
    while (s.at[5] < SEQ) step(rig, &s, 6);
    compare(rig, 2, 0, SEQ);
    decode_close(rig);
    free(rig);
}
END_TEST

START_TEST(chunks_of_a_long_prompt_grow) {
    static const int32_t prompts[TEXTS] = {1100, 513, 1024, 1025};
    decode_rig *rig = calloc(1, sizeof *rig);
    decode_open_sized(rig, _i, LONG, GROWN);
    seats s = {.text = {-1, -1, -1, -1, -1, -1, -1, -1, -1}};
    for (int t = 0; t < TEXTS; t++) {
        seat(rig, t);
        take_prompt(rig, t, t, prompts[t], true);
        s.text[t] = t;
        s.at[t] = prompts[t];
    }
    for (int i = 0; i < 30; i++) step(rig, &s, STREAMS);
    for (int t = 0; t < TEXTS; t++) compare(rig, t, 0, s.at[t]);
    decode_close(rig);
    free(rig);
}
END_TEST

/* A chunk beyond the window would only need more blocks. */
START_TEST(on_a_gpu_the_longest_chunk_is_about_a_window) {
    static const int32_t windows[] = {0, 40, 256, 600, 1024, 5000},
                         chunks[] = {2048, 256, 256, 1024, 1024, 2048};
    for (int i = 0; i < 6; i++) {
        hy_shape shape = shape_of(LLAMA);
        hy_batch_options options = {.batch = 1, .seq = 8, .dtype = HY_F32, .grad_dtype = HY_F32};
        hy_batch_decoder_options decoding = {
            .context = 3000, .streams = 2, .dtype = HY_F32, .is_unprepared = true};
        hy_batch_decoder *decoder;
        model_rig rig;
        shape.context = 6000;
        shape.sliding_window = windows[i];
        rig_open(&rig, &shape, &options, 3);
        rig.backend->facts.is_gpu = true;
        hy_status status = hy_batch_decoder_create(rig.model, rig.backend, &decoding, &decoder);
        rig.backend->facts.is_gpu = false;
        must(status);
        ck_assert_int_eq(hy_batch_decoder_facts(decoder)->chunk, chunks[i]);
        hy_batch_decoder_destroy(decoder);
        rig_close(&rig);
    }
}
END_TEST

/* Copies what the first seat has before `count` to the seat whose blocks begin with number `to`. */
static void copy_prefix(const decode_rig *rig, const int32_t *to, int32_t count) {
    const hy_cache_kind *kinds;
    int32_t kind_count = hy_batch_decoder_kinds(rig->decoder, &kinds);
    for (int32_t k = 0; k < kind_count; k++) {
        for (int32_t i = 0; i < count / HY_DECODE_BLOCK; i++) {
            must(hy_batch_decoder_copy_block(rig->decoder, k, block_at(&kinds[k], i),
                                             block_at(&kinds[k], to[k] + i)));
        }
    }
}

START_TEST(a_prompt_has_the_same_bits_with_a_reused_beginning) {
    static const int32_t beginnings[] = {256, 512, 1024};
    enum { PROMPT = 1100 };
    decode_rig *rig = calloc(1, sizeof *rig);
    static float whole[PROMPT];
    decode_open_sized(rig, _i, LONG, GROWN);
    seat(rig, 0);
    memcpy(rig->snapshot_at, beginnings, sizeof beginnings);
    take_prompt(rig, 0, 0, PROMPT, true);
    memcpy(whole, rig->logprobs[0], sizeof whole);
    memset(rig->snapshot_at, 0, sizeof beginnings);
    for (int32_t i = 0; i < 3; i++) {
        int32_t first = beginnings[i], used[HY_CACHE_KINDS];
        memcpy(used, rig->used, sizeof used);
        seat(rig, 1 + i);
        copy_prefix(rig, used, first);
        must(copy_state(rig, STREAMS + i, 1 + i));
        memset(rig->logprobs[0], 0, sizeof whole);
        take_rest(rig, 1 + i, 0, first, PROMPT, true);
        ck_assert_mem_eq(rig->logprobs[0] + first, whole + first,
                         (PROMPT - (size_t)first) * sizeof *whole);
    }
    decode_close(rig);
    free(rig);
}
END_TEST

/* A sequence goes back to any position, also one that a window no longer sees, and on in chunks that
 * begin anywhere and in steps with given tokens. */
START_TEST(a_sequence_goes_back_and_takes_another_text) {
    static const int32_t kept[] = {300, 17, 0, 515}, taken[] = {350, 90, 519, 520};
    decode_rig *rig = calloc(1, sizeof *rig);
    hy_step_tokens result;
    decode_open_with(
        rig, _i,
        &(hy_batch_decoder_options){
            .context = SEQ, .streams = 1, .chunk = CHUNK, .goes_back = true, .dtype = HY_F32});
    seat(rig, 0);
    take_prompt(rig, 0, 1, 513, false);
    for (int i = 0; i < 4; i++) {
        int text = i < 3 ? 0 : 2;
        if (text == 2) take_prompt(rig, 0, 2, kept[i], false);
        if (i == 0) take_prompt(rig, 0, 0, kept[i], false);
        for (int32_t first = kept[i], rows; first < taken[i]; first += rows) {
            rows = taken[i] - first < CHUNK ? taken[i] - first : CHUNK;
            hy_sampling next = forced(rig->texts[text][first + rows]);
            must(hy_batch_decoder_chunk(rig->decoder, 0, rig->texts[text] + first, first, rows,
                                        &next));
            must(hy_batch_decoder_read(rig->decoder, &result));
            rig->logprobs[text][first + rows - 1] = result.logprobs[0];
            compare(rig, text, first + rows - 1, first + rows);
        }
        must(hy_batch_decoder_give(rig->decoder, 0, rig->texts[text][taken[i]]));
        hy_sampling next = forced(rig->texts[text][taken[i] + 1]);
        must(hy_batch_decoder_step(rig->decoder, 1, &taken[i], &next));
        must(hy_batch_decoder_read(rig->decoder, &result));
        rig->logprobs[text][taken[i]] = result.logprobs[0];
        compare(rig, text, taken[i], taken[i] + 1);
    }
    must_fail(hy_batch_decoder_give(rig->decoder, 0, VOCAB), HY_ERR_INPUT, "expected 0 to 60");
    must_fail(hy_batch_decoder_chunk(rig->decoder, 0, &(int32_t){-1}, 30, 1, NULL), HY_ERR_INPUT,
              "token 30 is -1, expected 0 to 60");
    decode_close(rig);
    free(rig);
}
END_TEST

/* The text of a chat or of a sample: any number of tokens at a time. */
START_TEST(a_sequence_alone_takes_any_number_of_tokens) {
    static const int32_t counts[] = {600, 1, 1, 1, 30, 400};
    decode_rig *rig = calloc(1, sizeof *rig);
    decode_open_with(
        rig, _i,
        &(hy_batch_decoder_options){
            .context = LONG, .streams = 1, .chunk = CHUNK, .goes_back = true, .dtype = HY_F32});
    hy_solo solo = {.decoder = rig->decoder};
    must(hy_solo_place(&solo, rig->model.stream, rig->memory, &rig->model.weights, NULL));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 6; i++) {
            int32_t last = solo.length + counts[i];
            hy_sampling next = forced(rig->texts[round][last]);
            if (i == 2) next = forced((next.forced + 1) % VOCAB); /* another than what follows */
            must(hy_solo_take(&solo, rig->texts[round] + solo.length, counts[i], &next));
            must(hy_solo_read(&solo));
            ck_assert_int_eq(solo.length, last);
            ck_assert_int_eq(solo.next, next.forced);
            rig->logprobs[round][last - 1] = solo.logprob;
            if (i != 2) compare(rig, round, last - 1, last);
        }
        must(hy_solo_go_back(&solo, 0));
    }
    decode_close(rig);
    free(rig);
}
END_TEST

static void solo_take(decode_rig *rig, hy_solo *solo, int text, int32_t to) {
    int32_t count = to - solo->length;
    hy_sampling next = forced(rig->texts[text][to]);
    must(hy_solo_take(solo, rig->texts[text] + solo->length, count, &next));
    must(hy_solo_read(solo));
    ck_assert_int_eq(solo->length, to);
    rig->logprobs[text][to - 1] = solo->logprob;
}

/* A conversation: prompts, an answer of single tokens, and earlier positions. Without states it goes
 * back to them, with states to the nearest snapshot before: where a chunk began, or 16 tokens before
 * the end of a prompt. */
START_TEST(a_sequence_alone_goes_back_and_goes_on) {
    static const struct {
        int32_t back, to, with_states; /* where it goes back to, with states, and the new end */
    } turns[] = {{0, 620, 0},     {620, 621, 620}, {621, 622, 621}, {600, 650, 512},
                 {645, 655, 634}, {650, 990, 639}, {989, 990, 974}, {960, 970, 639},
                 {200, 260, 0},   {255, 256, 244}, {100, 130, 0},   {130, 131, 130}};
    bool has_states = _i == LINEAR || _i == STATES;
    decode_rig *rig = calloc(1, sizeof *rig);
    decode_open_with(rig, _i,
                     &(hy_batch_decoder_options){.context = LONG,
                                                 .streams = 1,
                                                 .chunk = CHUNK,
                                                 .goes_back = true,
                                                 .dtype = HY_F32,
                                                 .snapshots = HY_SOLO_SNAPSHOTS});
    hy_solo solo = {.decoder = rig->decoder};
    must(hy_solo_place(&solo, rig->model.stream, rig->memory, &rig->model.weights, NULL));
    for (int i = 0; i < 12; i++) {
        must(hy_solo_go_back(&solo, turns[i].back));
        ck_assert_int_eq(solo.length, has_states ? turns[i].with_states : turns[i].back);
        solo_take(rig, &solo, 0, turns[i].to);
        compare(rig, 0, turns[i].to - 1, turns[i].to);
    }
    /* Another text from the beginning: nothing of this one is used. */
    must(hy_solo_go_back(&solo, 0));
    for (int32_t i = 0; i < 3; i++) {
        solo_take(rig, &solo, 1, 300 + i);
        compare(rig, 1, 299 + i, 300 + i);
    }
    decode_close(rig);
    free(rig);
}
END_TEST

/* Of too many snapshots those stay that are far from each other. */
START_TEST(going_back_costs_few_tokens_after_a_long_prompt) {
    static const int32_t back[] = {1290, 1283, 1100, 1024, 600, 256, 255},
                         nearest[] = {1284, 1024, 1024, 1024, 512, 0, 0};
    decode_rig *rig = calloc(1, sizeof *rig);
    decode_open_with(rig, LINEAR,
                     &(hy_batch_decoder_options){.context = LONG,
                                                 .streams = 1,
                                                 .chunk = CHUNK,
                                                 .goes_back = true,
                                                 .dtype = HY_F32,
                                                 .snapshots = HY_SOLO_SNAPSHOTS});
    hy_solo solo = {.decoder = rig->decoder};
    for (int i = 0; i < 7; i++) {
        must(hy_solo_place(&solo, rig->model.stream, rig->memory, &rig->model.weights, NULL));
        solo_take(rig, &solo, 0, LONG);
        must(hy_solo_go_back(&solo, back[i]));
        ck_assert_int_eq(solo.length, nearest[i]);
    }
    decode_close(rig);
    free(rig);
}
END_TEST

static const hy_states *states_of(const decode_rig *rig) {
    return hy_batch_decoder_states(rig->decoder);
}

START_TEST(states_are_counted_and_layers_with_a_state_have_no_blocks) {
    static const int32_t full[] = {3, 1, 0};
    for (int i = 0; i < 3; i++) {
        decode_rig *rig = calloc(1, sizeof *rig);
        decode_open(rig, i == 0 ? LLAMA : i == 1 ? LINEAR : STATES);
        const hy_cache_kind *kinds;
        ck_assert_int_eq(hy_batch_decoder_kinds(rig->decoder, &kinds), 1);
        ck_assert_int_eq(kinds[0].layers, full[i]);
        const hy_states *s = states_of(rig);
        int32_t layers = 3 - full[i], kept = (3 - 1) * (2 * 2 * 7 + 4 * 5), delta = 4 * 7 * 5;
        ck_assert_int_eq(s->layers, layers);
        ck_assert_int_eq(s->count, layers > 0 ? STREAMS + SNAPSHOTS : 0);
        ck_assert_uint_eq(s->each, (uint64_t)(layers * (kept + delta)) * sizeof(float));
        ck_assert_uint_eq(s->bytes, s->each * (uint64_t)s->count);
        uint64_t all = hy_batch_decoder_cache_bytes(rig->decoder) + s->bytes;
        ck_assert_uint_ge(hy_batch_decoder_bytes(rig->decoder), all);
        if (full[i] == 0) ck_assert_uint_eq(hy_batch_decoder_cache_bytes(rig->decoder), 0);
        decode_close(rig);
        free(rig);
    }
}
END_TEST

START_TEST(snapshots_are_as_many_as_wanted) {
    static const int32_t wanted[] = {0, -1, 7}, streams[] = {16, 16, 1}, found[] = {3, 0, 7};
    decode_rig *rig = calloc(1, sizeof *rig);
    decode_open(rig, LINEAR);
    for (int i = 0; i < 3; i++) {
        hy_batch_decoder_options options = {
            .context = SEQ, .streams = streams[i], .snapshots = wanted[i], .dtype = HY_F32};
        hy_batch_decoder *decoder;
        must(hy_batch_decoder_create(rig->model.model, rig->model.backend, &options, &decoder));
        ck_assert_int_eq(hy_batch_decoder_states(decoder)->snapshots, found[i]);
        ck_assert_int_eq(hy_batch_decoder_states(decoder)->count, streams[i] + found[i]);
        hy_batch_decoder_destroy(decoder);
    }
    decode_close(rig);
    free(rig);
}
END_TEST

/* Steps from a snapshot, in its slot and in another, have the bits that they had before. */
START_TEST(a_snapshot_is_returned_to_at_any_time) {
    enum { AT = 40, MORE = 12 };
    decode_rig *rig = calloc(1, sizeof *rig);
    float before[MORE];
    decode_open(rig, STATES);
    seats s = {.text = {-1, -1, -1, -1, -1, -1, -1, -1, -1}};
    seat(rig, 2);
    take_prompt(rig, 2, 0, AT - 3, false);
    s.text[2] = 0, s.at[2] = AT - 3;
    for (int i = 0; i < 3; i++) step(rig, &s, STREAMS);
    must(copy_state(rig, 2, STREAMS + 1));
    for (int i = 0; i < MORE; i++) step(rig, &s, STREAMS);
    memcpy(before, rig->logprobs[0] + AT, sizeof before);
    compare(rig, 0, AT, AT + MORE);
    for (int32_t slot = 2; slot < 8; slot += 5) {
        memset(rig->logprobs[0] + AT, 0, sizeof before);
        s.text[2] = -1, s.text[slot] = 0, s.at[slot] = AT;
        must(copy_state(rig, STREAMS + 1, slot));
        must(hy_batch_decoder_give(rig->decoder, slot, rig->texts[0][AT]));
        for (int i = 0; i < MORE; i++) step(rig, &s, STREAMS);
        ck_assert_mem_eq(before, rig->logprobs[0] + AT, sizeof before);
    }
    decode_close(rig);
    free(rig);
}
END_TEST

START_TEST(a_state_is_not_continued_at_another_position) {
    decode_rig *rig = calloc(1, sizeof *rig);
    int32_t first[] = {100, 99};
    hy_sampling next[] = {forced(1), forced(1)};
    decode_open(rig, LINEAR);
    for (int32_t slot = 0; slot < 2; slot++) {
        seat(rig, slot);
        must(hy_batch_decoder_chunk(rig->decoder, slot, rig->texts[0], 0, 100, NULL));
    }
    must_fail(hy_batch_decoder_step(rig->decoder, 2, first, next), HY_ERR_INTERNAL,
              "slot 1 is to continue at position 99, but its state is that of position 100");
    must_fail(hy_batch_decoder_chunk(rig->decoder, 0, rig->texts[0], CHUNK, 3, NULL),
              HY_ERR_INTERNAL, "slot 0 is to continue at position 256");
    must_fail(copy_state(rig, 0, STREAMS + SNAPSHOTS), HY_ERR_INTERNAL,
              "a copy of state 0 to 12 in a decoder with 12");
    must_fail(copy_state(rig, -1, 0), HY_ERR_INTERNAL, "a copy of state -1");
    decode_close(rig);
    free(rig);
}
END_TEST

START_TEST(a_context_is_halved_until_it_fits) {
    static const struct {
        uint64_t limit;
        int32_t shortest, context;
    } cases[] = {{UINT64_MAX, 0, LONG}, {0, LONG, LONG}, {0, 200, 162}, {1, 163, 162}, {0, 0, 0}};
    decode_rig *rig = calloc(1, sizeof *rig);
    hy_batch_decoder *decoder;
    uint64_t half;
    decode_open(rig, LLAMA);
    hy_batch_decoder_options options = {.context = LONG / 2, .dtype = HY_F32};
    must(hy_solo_create(rig->model.model, rig->model.backend, &options, 0, LONG, &decoder));
    half = hy_batch_decoder_bytes(decoder);
    hy_batch_decoder_destroy(decoder);
    for (int i = 0; i < 5; i++) {
        bool is_half = cases[i].context == 0;
        options.context = LONG;
        must(hy_solo_create(rig->model.model, rig->model.backend, &options,
                            is_half ? half : cases[i].limit, cases[i].shortest, &decoder));
        ck_assert_int_eq(options.context, is_half ? LONG / 2 : cases[i].context);
        ck_assert_int_eq(hy_batch_decoder_facts(decoder)->context, options.context);
        hy_batch_decoder_destroy(decoder);
    }
    decode_close(rig);
    free(rig);
}
END_TEST

START_TEST(only_tokens_below_the_given_vocabulary_are_chosen) {
    enum { FEW = 5, TRIES = 200 };
    decode_rig *rig = calloc(1, sizeof *rig);
    hy_step_tokens result;
    int seen[FEW] = {0};
    decode_open_with(
        rig, LLAMA,
        &(hy_batch_decoder_options){.context = SEQ, .streams = 1, .vocab = FEW, .dtype = HY_F32});
    seat(rig, 0);
    must(hy_batch_decoder_chunk(rig->decoder, 0, rig->texts[0], 0, 20, NULL));
    for (int i = 0; i < TRIES; i++) {
        hy_sampling sampling = {.temperature = 5, .forced = -1, .position = (uint64_t)i};
        must(hy_batch_decoder_choose(rig->decoder, 0, &sampling));
        must(hy_batch_decoder_read(rig->decoder, &result));
        ck_assert_int_lt(result.tokens[0], FEW);
        seen[result.tokens[0]]++;
    }
    for (int i = 0; i < FEW; i++) ck_assert_int_gt(seen[i], 0);
    decode_close(rig);
    free(rig);
}
END_TEST

START_TEST(a_chunk_begins_where_the_one_before_ends) {
    decode_rig *rig = calloc(1, sizeof *rig);
    decode_open_sized(rig, LLAMA, LONG, GROWN);
    seat(rig, 0);
    must_fail(hy_batch_decoder_chunk(rig->decoder, 0, rig->texts[0], 768, 1, NULL), HY_ERR_INTERNAL,
              "1 tokens at position 768");
    must_fail(hy_batch_decoder_chunk(rig->decoder, 0, rig->texts[0], 0, 257, NULL), HY_ERR_INTERNAL,
              "257 tokens at position 0");
    must_fail(hy_batch_decoder_chunk(rig->decoder, 0, rig->texts[0], -1, 1, NULL), HY_ERR_INTERNAL,
              "position -1");
    decode_close(rig);
    free(rig);
}
END_TEST

/* Bits of one text from the end of a prompt on, alone in a slot or with others that come and go. */
static void run_text(int kind, bool grows, bool alone, float *out) {
    decode_rig *rig = calloc(1, sizeof *rig);
    int32_t prompt = grows ? 1030 : 262;
    decode_open_sized(rig, kind, grows ? LONG : SEQ, grows ? GROWN : CHUNK);
    seats s = {.text = {-1, -1, -1, -1, -1, -1, -1, -1, -1}};
    int32_t slot = alone ? 0 : 5;
    if (!alone) seat(rig, 2), take_prompt(rig, 2, 1, 270, false), s.text[2] = 1, s.at[2] = 270;
    seat(rig, slot);
    take_prompt(rig, slot, 0, prompt, false);
    s.text[slot] = 0;
    s.at[slot] = prompt;
    for (int i = 0; i < 20; i++) {
        if (!alone && i == 4)
            seat(rig, 8), take_prompt(rig, 8, 2, 17, false), s.text[8] = 2, s.at[8] = 17;
        if (!alone && i == 11) s.text[2] = -1;
        step(rig, &s, alone ? 1 : STREAMS);
    }
    memcpy(out, rig->logprobs[0] + prompt - 1, 21 * sizeof *out);
    decode_close(rig);
    free(rig);
}

START_TEST(a_sequence_has_the_same_bits_alone_and_among_others) {
    float alone[21], among[21];
    run_text(_i / 2, _i % 2, true, alone);
    run_text(_i / 2, _i % 2, false, among);
    ck_assert_mem_eq(alone, among, sizeof alone);
}
END_TEST

/* Sampled tokens follow from the seed alone; the likeliest tokens come with them. */
START_TEST(tokens_are_chosen_on_the_device_and_taken_in_the_next_step) {
    decode_rig *rig = calloc(1, sizeof *rig);
    hy_step_tokens result;
    decode_open(rig, QWEN3);
    int32_t chosen[2][12];
    for (int round = 0; round < 2; round++) {
        int32_t slot = round * 4, first[STREAMS];
        hy_sampling sampling[STREAMS];
        for (int i = 0; i < STREAMS; i++) first[i] = -1;
        seat(rig, slot);
        must(hy_batch_decoder_see(rig->decoder, slot, rig->texts[0], 10));
        for (int i = 0; i < 12; i++) {
            sampling[slot] = (hy_sampling){
                .temperature = 1, .top_p = 0.9f, .penalty = 1.2f, .forced = -1, .seed = 9};
            sampling[slot].position = (uint64_t)(10 + i);
            first[slot] = 9 + i;
            if (i == 0)
                must(hy_batch_decoder_chunk(rig->decoder, slot, rig->texts[0], 0, 10,
                                            &sampling[slot]));
            else
                must(hy_batch_decoder_step(rig->decoder, slot + 1, first, sampling));
            must(hy_batch_decoder_read(rig->decoder, &result));
            chosen[round][i] = result.tokens[slot];
            const float *top = result.top_logprobs + slot * TOP;
            ck_assert(top[0] >= top[1] && top[1] >= top[2] && top[0] <= 0);
            ck_assert(result.logprobs[slot] <= top[0]);
        }
    }
    ck_assert_mem_eq(chosen[0], chosen[1], sizeof chosen[0]);
    /* The cache has these tokens: taken as a text they have the same log-probabilities. */
    decode_close(rig);
    free(rig);
}
END_TEST

START_TEST(one_prompt_serves_several_answers) {
    decode_rig *rig = calloc(1, sizeof *rig);
    hy_step_tokens result;
    decode_open(rig, MIXED);
    int32_t first[STREAMS] = {100, 100};
    float logprobs[2];
    seat(rig, 0);
    hy_sampling next[STREAMS] = {forced(7), forced(8)};
    must(hy_batch_decoder_chunk(rig->decoder, 0, rig->texts[0], 0, 100, &next[0]));
    must(hy_batch_decoder_choose(rig->decoder, 1, &next[1]));
    for (int i = 0; i < 2; i++) {
        must(hy_batch_decoder_read(rig->decoder, &result));
        ck_assert_int_eq(result.tokens[i], 7 + i);
        logprobs[i] = result.logprobs[i];
    }
    ck_assert(logprobs[0] != logprobs[1]);
    /* Slot 1 has copies of the blocks: position 100 of both begins with the same past. */
    const hy_cache_kind *kinds;
    int32_t count = hy_batch_decoder_kinds(rig->decoder, &kinds);
    int32_t before[HY_CACHE_KINDS] = {rig->used[0], rig->used[1]};
    seat(rig, 1);
    for (int32_t k = 0; k < count; k++) {
        int32_t blocks = 101 / HY_DECODE_BLOCK + 1;
        for (int32_t i = 0; i < blocks && i < kinds[k].most; i++) {
            must(hy_batch_decoder_copy_block(rig->decoder, k, block_at(&kinds[k], i),
                                             block_at(&kinds[k], before[k] + i)));
        }
    }
    next[0] = next[1] = forced(3);
    must(hy_batch_decoder_chunk(rig->decoder, 0, rig->texts[0], 0, 100, &next[0]));
    must(hy_batch_decoder_choose(rig->decoder, 1, &next[1]));
    must(hy_batch_decoder_read(rig->decoder, &result));
    must(hy_batch_decoder_read(rig->decoder, &result));
    must(hy_batch_decoder_step(rig->decoder, 2, first, next));
    must(hy_batch_decoder_read(rig->decoder, &result));
    ck_assert_mem_eq(&result.logprobs[0], &result.logprobs[1], sizeof(float));
    decode_close(rig);
    free(rig);
}
END_TEST

/* Scores use the memory of the logits that a choice needs, so these are computed again. */
START_TEST(a_choice_after_scores_is_that_of_the_chunk) {
    decode_rig *rig = calloc(1, sizeof *rig);
    hy_step_tokens result;
    hy_sampling sampling = {.temperature = 1, .forced = -1, .seed = 3};
    decode_open(rig, MIXED);
    seat(rig, 2);
    must(hy_batch_decoder_chunk(rig->decoder, 2, rig->texts[0], 0, 70, &sampling));
    must(hy_batch_decoder_read(rig->decoder, &result));
    int32_t token = result.tokens[2];
    float logprob = result.logprobs[2];
    must(hy_batch_decoder_chunk(rig->decoder, 2, rig->texts[0], 0, 70, NULL));
    for (int again = 0; again < 2; again++) {
        must(hy_batch_decoder_score(rig->decoder, 5, rig->texts[0] + 6, 4));
        must(hy_batch_decoder_choose(rig->decoder, 2, &sampling));
        must(hy_batch_decoder_read(rig->decoder, &result));
        must(hy_batch_decoder_read(rig->decoder, &result));
        ck_assert_int_eq(result.tokens[2], token);
        ck_assert_mem_eq(&result.logprobs[2], &logprob, sizeof logprob);
    }
    decode_close(rig);
    free(rig);
}
END_TEST

/* A slot gets other blocks while its chunk waits behind another: the chunk uses those it had. */
START_TEST(a_slot_is_given_away_while_its_passes_wait) {
    decode_rig *rig = calloc(1, sizeof *rig);
    hy_step_tokens result;
    int32_t first[STREAMS], used[HY_CACHE_KINDS];
    hy_sampling sampling[STREAMS];
    decode_open(rig, QWEN3);
    seat(rig, 0);
    must(hy_batch_decoder_chunk(rig->decoder, 0, rig->texts[1], 0, CHUNK, NULL));
    memcpy(used, rig->used, sizeof used);
    seat(rig, 3);
    must(hy_batch_decoder_chunk(rig->decoder, 3, rig->texts[0], 0, 100, NULL));
    seat(rig, 3);
    must(hy_batch_decoder_chunk(rig->decoder, 3, rig->texts[2], 0, 100, NULL));
    memcpy(rig->used, used, sizeof used);
    seat(rig, 5); /* the blocks that slot 3 had */
    for (int i = 0; i < STREAMS; i++) first[i] = i == 5 ? 100 : -1;
    sampling[5] = forced(rig->texts[0][100]);
    must(hy_batch_decoder_choose(rig->decoder, 5, &sampling[5]));
    sampling[5] = forced(rig->texts[0][101]);
    must(hy_batch_decoder_step(rig->decoder, STREAMS, first, sampling));
    must(hy_batch_decoder_read(rig->decoder, &result));
    must(hy_batch_decoder_read(rig->decoder, &result));
    rig->logprobs[0][100] = result.logprobs[5];
    compare(rig, 0, 100, 101);
    decode_close(rig);
    free(rig);
}
END_TEST

/* The weights are backed by the host; units pass through a ring of two buffers. */
START_TEST(weights_may_pass_through_a_ring) {
    decode_rig *rig = calloc(1, sizeof *rig);
    decode_open(rig, _i);
    hy_backend *b = rig->model.backend;
    hy_layout layout;
    hy_arena backing, device;
    hy_ledger ledger = {0};
    hy_store streamed = {0};
    hy_copies copies;
    must(b->stream_create(b, "up", &copies.up));
    must(b->stream_create(b, "down", &copies.down));
    must(hy_params_layout(&rig->model.model->params, HY_SET_ALL, HY_F32, &layout));
    must(hy_arena_init(&backing, b, &ledger, HY_PINNED, layout.bytes, "a test"));
    must(hy_arena_init(&device, b, &ledger, HY_DEVICE, hy_store_ring_bytes(&layout, 2), "a test"));
    must(hy_store_init_streamed(&streamed, &backing, &device, HY_WEIGHTS, &layout, 2, &copies));
    must(hy_store_copy(&streamed, &rig->model.weights, rig->model.stream));
    must(hy_batch_decoder_place(rig->decoder, rig->model.stream, rig->memory, &streamed, NULL));
    seat(rig, 0);
    take_prompt(rig, 0, 0, 40, true);
    seats s = {.text = {0}, .at = {40}};
    for (int i = 0; i < 6; i++) step(rig, &s, 1);
    compare(rig, 0, 0, 46);
    rig_sync(&rig->model);
    hy_store_fini(&streamed);
    hy_arena_fini(&backing);
    hy_arena_fini(&device);
    hy_layout_fini(&layout);
    b->stream_destroy(copies.up);
    b->stream_destroy(copies.down);
    decode_close(rig);
    free(rig);
}
END_TEST

static void refuse(const model_rig *rig, hy_batch_decoder_options options, const char *message) {
    hy_batch_decoder *decoder;
    options.dtype = HY_F32;
    must_fail(hy_batch_decoder_create(rig->model, rig->backend, &options, &decoder), HY_ERR_INPUT,
              message);
    ck_assert_ptr_null(decoder);
}

START_TEST(options_out_of_range_are_refused) {
    decode_rig *rig = calloc(1, sizeof *rig);
    decode_open(rig, LLAMA);
    hy_batch_decoder_options good = {.context = SEQ, .streams = 2}, wrong = good;
    wrong.context = LONG + 1;
    refuse(&rig->model, wrong, "accepted: 1 to 1300");
    wrong = good, wrong.streams = 0;
    refuse(&rig->model, wrong, "accepted: 1 to 1024");
    wrong = good, wrong.chunk = 100;
    refuse(&rig->model, wrong, "accepted: multiples of 256");
    wrong = good, wrong.top = 21;
    refuse(&rig->model, wrong, "accepted: 0 to 20");
    wrong = good, wrong.tokens = 100;
    refuse(&rig->model, wrong, "too small for a sequence of 560");
    decode_close(rig);
    free(rig);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("batch decode");
    TCase *all = tcase_create("batch decode");
    tcase_add_loop_test(all, prompts_and_steps_equal_passes_over_whole_sequences, 0, SHAPES);
    tcase_add_loop_test(all, chunks_of_a_long_prompt_grow, 0, SHAPES);
    /* Sequences with a window use blocks in turn, so they reuse nothing. */
    tcase_add_loop_test(all, a_prompt_has_the_same_bits_with_a_reused_beginning, 0, WINDOW);
    tcase_add_test(all, on_a_gpu_the_longest_chunk_is_about_a_window);
    tcase_add_loop_test(all, a_sequence_goes_back_and_takes_another_text, 0, LINEAR);
    tcase_add_loop_test(all, a_sequence_goes_back_and_takes_another_text, WINDOW, SHAPES);
    tcase_add_loop_test(all, a_sequence_alone_takes_any_number_of_tokens, 0, SHAPES);
    tcase_add_loop_test(all, a_sequence_alone_goes_back_and_goes_on, 0, SHAPES);
    tcase_add_test(all, going_back_costs_few_tokens_after_a_long_prompt);
    tcase_add_test(all, states_are_counted_and_layers_with_a_state_have_no_blocks);
    tcase_add_test(all, snapshots_are_as_many_as_wanted);
    tcase_add_test(all, a_snapshot_is_returned_to_at_any_time);
    tcase_add_test(all, a_state_is_not_continued_at_another_position);
    tcase_add_test(all, a_context_is_halved_until_it_fits);
    tcase_add_test(all, only_tokens_below_the_given_vocabulary_are_chosen);
    tcase_add_test(all, a_chunk_begins_where_the_one_before_ends);
    tcase_add_loop_test(all, a_sequence_has_the_same_bits_alone_and_among_others, 0, 2 * SHAPES);
    tcase_add_test(all, tokens_are_chosen_on_the_device_and_taken_in_the_next_step);
    tcase_add_test(all, one_prompt_serves_several_answers);
    tcase_add_test(all, a_choice_after_scores_is_that_of_the_chunk);
    tcase_add_test(all, a_slot_is_given_away_while_its_passes_wait);
    tcase_add_loop_test(all, weights_may_pass_through_a_ring, 0, SHAPES);
    tcase_add_test(all, options_out_of_range_are_refused);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
