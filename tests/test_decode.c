/* test_decode.c: a decoder's logits are those of a pass over the whole sequence.
 *
 * Models of every kind (GPT-2, Llama, Qwen3, grouped heads, sliding window), prompts taken whole
 * and in pieces, tokens one by one, weights on the device and passing through a ring. */
#include "model_rig.h"

#include <math.h>

#include "base/rng.h"
#include "batch_logits.h"
#include "model/decode.h"

#define SEQ 40

static hy_shape base_shape(void) {
    return (hy_shape){.layers = 3,
                      .width = 32,
                      .heads = 4,
                      .kv_heads = 4,
                      .mlp_width = 48,
                      .vocab = 61,
                      .context = SEQ,
                      .norm_eps = 1e-5,
                      .rope_theta = 10000,
                      .init_std = 0.1};
}

enum { GPT2, LLAMA, QWEN2, QWEN3, WINDOW, MIXED, SHAPES };

static hy_shape shape_of(int kind) {
    hy_shape s = base_shape();
    if (kind == GPT2) {
        s.has_qkv_bias = s.has_proj_bias = s.has_tied_head = true;
        return s;
    }
    s.is_rms = s.has_rope = s.is_gated = true;
    if (kind >= QWEN2) s.kv_heads = 2;
    if (kind == QWEN2) s.has_qkv_bias = s.has_tied_head = true;
    if (kind == QWEN3) s.has_qk_norm = true;
    if (kind == QWEN3) s.head_size = 12;
    if (kind >= WINDOW) s.sliding_window = 7;
    if (kind == MIXED) strcpy(s.sliding_layers, "fs");
    return s;
}

/* A model, and the logits of a pass over the whole sequence for every position. */
typedef struct decode_rig {
    model_rig model;
    float expected[SEQ * 61];
    hy_decoder *decoder;
    void *memory;
} decode_rig;

static void note_expected(decode_rig *rig) {
    hy_batch_input input = rig_input(&rig->model, 1, false);
    int32_t vocab = rig->model.model->shape.vocab;
    for (int32_t i = 0; i < SEQ; i++) {
        must(batch_logits(rig->model.plan, &input, i, 1));
        rig_sync(&rig->model);
        memcpy(rig->expected + i * vocab, rig->model.plan->logits, (size_t)vocab * sizeof(float));
    }
}

static void decode_open(decode_rig *rig, int kind, int32_t rows) {
    hy_shape shape = shape_of(kind);
    hy_batch_options options = {
        .batch = 1, .seq = SEQ, .chunks = SEQ, .dtype = HY_F32, .grad_dtype = HY_F32};
    hy_decoder_options decoding = {.context = SEQ, .rows = rows, .dtype = HY_F32};
    hy_backend *b;
    rig_open(&rig->model, &shape, &options, 3);
    for (int32_t i = 0; i < SEQ; i++) {
        rig->model.tokens[i] = (int32_t)hy_rng_below(5, HY_RNG_TEST, (uint64_t)i, 61);
    }
    note_expected(rig);
    b = rig->model.backend;
    must(hy_decoder_create(rig->model.model, b, &decoding, &rig->decoder));
    must(b->alloc(b, HY_DEVICE, rig->decoder->bytes, &rig->memory));
    memset(rig->memory, 0xff, rig->decoder->bytes); /* NaN: what is read must have been written */
    must(hy_decoder_place(rig->decoder, rig->model.stream, rig->memory));
}

static void decode_close(decode_rig *rig) {
    hy_decoder_destroy(rig->decoder);
    rig->model.backend->release(rig->model.backend, HY_DEVICE, rig->memory, 0);
    rig_close(&rig->model);
}

/* Takes the next `count` tokens; their last must have the logits it has in the whole sequence. */
static void take_and_check(decode_rig *rig, hy_store *weights, int32_t count) {
    float logits[61];
    int32_t first = rig->decoder->length;
    must(hy_decoder_take(rig->decoder, rig->model.stream, weights, NULL, rig->model.tokens + first,
                         count, logits));
    ck_assert_int_eq(rig->decoder->length, first + count);
    const float *expected = rig->expected + (first + count - 1) * 61;
    for (int i = 0; i < 61; i++) {
        ck_assert_msg(fabsf(logits[i] - expected[i]) <= 1e-5f * fmaxf(1, fabsf(expected[i])),
                      "position %d, token %d: %g, expected %g", first + count - 1, i,
                      (double)logits[i], (double)expected[i]);
    }
}

START_TEST(token_by_token_equals_a_pass_over_everything) {
    decode_rig rig;
    decode_open(&rig, _i, 0);
    for (int i = 0; i < SEQ; i++) take_and_check(&rig, &rig.model.weights, 1);
    decode_close(&rig);
}
END_TEST

START_TEST(a_prompt_and_what_follows_equal_a_pass_over_everything) {
    static const int32_t parts[] = {13, 1, 1, 9, 1, 2, 13};
    decode_rig rig;
    for (int rows = 0; rows <= 5; rows += 5) { /* taken whole, and five rows at a time */
        decode_open(&rig, _i, rows);
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            take_and_check(&rig, &rig.model.weights, parts[i]);
        }
        ck_assert_int_eq(rig.decoder->length, SEQ);
        decode_close(&rig);
    }
}
END_TEST

START_TEST(what_is_rewound_can_be_taken_again) {
    decode_rig rig;
    decode_open(&rig, _i, 0);
    int32_t other[SEQ] = {1, 2, 3};
    float logits[61];
    take_and_check(&rig, &rig.model.weights, 10);
    must(hy_decoder_take(rig.decoder, rig.model.stream, &rig.model.weights, NULL, other, 20,
                         logits));
    hy_decoder_rewind(rig.decoder, 10);
    take_and_check(&rig, &rig.model.weights, 5);
    hy_decoder_rewind(rig.decoder, 0);
    take_and_check(&rig, &rig.model.weights, 17);
    decode_close(&rig);
}
END_TEST

/* The weights are backed by the host; units pass through a ring of two buffers. */
START_TEST(weights_may_pass_through_a_ring) {
    decode_rig rig;
    decode_open(&rig, _i, 8);
    hy_backend *b = rig.model.backend;
    hy_layout layout;
    hy_arena backing, device;
    hy_ledger ledger = {0};
    hy_store streamed = {0};
    hy_copies copies;
    must(b->stream_create(b, "up", &copies.up));
    must(b->stream_create(b, "down", &copies.down));
    must(hy_params_layout(&rig.model.model->params, HY_SET_ALL, HY_F32, &layout));
    must(hy_arena_init(&backing, b, &ledger, HY_PINNED, layout.bytes, "a test"));
    must(hy_arena_init(&device, b, &ledger, HY_DEVICE, hy_store_ring_bytes(&layout, 2), "a test"));
    must(hy_store_init_streamed(&streamed, &backing, &device, HY_WEIGHTS, &layout, 2, &copies));
    must(hy_store_copy(&streamed, &rig.model.weights, rig.model.stream));
    take_and_check(&rig, &streamed, 21);
    for (int i = 0; i < 6; i++) take_and_check(&rig, &streamed, 1);
    hy_store_fini(&streamed);
    hy_arena_fini(&backing);
    hy_arena_fini(&device);
    hy_layout_fini(&layout);
    b->stream_destroy(copies.up);
    b->stream_destroy(copies.down);
    decode_close(&rig);
}
END_TEST

START_TEST(wrong_tokens_are_refused_and_change_nothing) {
    decode_rig rig;
    float logits[61];
    int32_t wrong[] = {3, 61};
    decode_open(&rig, LLAMA, 0);
    take_and_check(&rig, &rig.model.weights, 30);
    must_fail(
        hy_decoder_take(rig.decoder, rig.model.stream, &rig.model.weights, NULL, wrong, 2, logits),
        HY_ERR_INPUT, "token 1 is 61, expected 0 to 60");
    must_fail(hy_decoder_take(rig.decoder, rig.model.stream, &rig.model.weights, NULL,
                              rig.model.tokens, 11, logits),
              HY_ERR_INPUT, "accepted: 1 to 10");
    take_and_check(&rig, &rig.model.weights, 10);
    decode_close(&rig);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("decode");
    TCase *all = tcase_create("decode");
    tcase_add_loop_test(all, token_by_token_equals_a_pass_over_everything, 0, SHAPES);
    tcase_add_loop_test(all, a_prompt_and_what_follows_equal_a_pass_over_everything, 0, SHAPES);
    tcase_add_loop_test(all, what_is_rewound_can_be_taken_again, 0, SHAPES);
    tcase_add_loop_test(all, weights_may_pass_through_a_ring, 0, SHAPES);
    tcase_add_test(all, wrong_tokens_are_refused_and_change_nothing);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
