/* test_model_tiles.c: mlps that run in tiles of rows: the same losses and gradients but for the
 * order of sums, and less memory.
 *
 * Bits are not compared: OpenBLAS may sum a row in another order if a matrix has few rows. */
#define SETS_SEQ 11 /* a prime number, so tiles can have different sizes */
#include "sets_rig.h"

#include "model/batch_memory.h"

/* Layernorm, learned positions, biases, gelu, tied head. */
static hy_shape gpt2_shape(void) {
    return (hy_shape){.layers = 3,
                      .width = 16,
                      .heads = 2,
                      .vocab = 61,
                      .context = 12,
                      .has_qkv_bias = true,
                      .has_proj_bias = true,
                      .has_tied_head = true,
                      .norm_eps = 1e-5,
                      .init_std = 0.1};
}

static hy_shape gated_shape(hy_arch arch) {
    return (hy_shape){.layers = 3,
                      .width = 16,
                      .heads = 4,
                      .kv_heads = 2,
                      .mlp_width = 24,
                      .vocab = 61,
                      .context = 12,
                      .is_rms = true,
                      .has_rope = true,
                      .is_gated = true,
                      .norm_eps = 1e-6,
                      .rope_theta = 10000,
                      .init_std = 0.1,
                      .arch = arch};
}

/* Every way in which a block uses its mlp: norm before, before and after, only after, and beside
 * attention; and adapters, with dropout. */
static hy_shape shape_at(int i) {
    hy_shape shape = gated_shape(i == 2 ? HY_ARCH_GEMMA2 : i == 3 ? HY_ARCH_OLMO2 : HY_ARCH_LLAMA);
    if (i == 2) shape.more.norm_offset = 1, shape.more.function = HY_MLP_GELU_TANH;
    if (i == 3) shape.has_qk_norm = shape.more.has_whole_qk_norm = true;
    if (i == 0 || i == 4 || i == 6) shape = gpt2_shape();
    if (i == 4) {
        shape.arch = HY_ARCH_NEOX;
        shape.has_rope = true;
        shape.rope_theta = 10000;
        shape.has_tied_head = false;
    }
    if (i >= 5) {
        shape.adapter = (hy_adapter){.rank = 2, .scale = 2, .alpha = 4, .dropout = 0.25};
        shape.adapter.parts = i == 5 ? HY_ADAPT_ALL : HY_ADAPT_UP | HY_ADAPT_DOWN;
    }
    return shape;
}
enum { SHAPES = 7 };

static sets_choice choice_at(int i) {
    return (sets_choice){.shape = shape_at(i), .trained = i >= 5 ? "*.lora_?" : NULL};
}

static double far_from(const float *a, const float *b, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / (size > 0 ? size : 1));
}

#define BOUND 3e-6

static void compare_losses(const float *whole, const float *tiled, const char *what) {
    double far = far_from(tiled, whole, SETS_ROWS);
    ck_assert_msg(far < BOUND, "the losses are off by %.1e: %s", far, what);
}

static void compare(sets_rig *whole, sets_rig *tiled, const char *what) {
    compare_losses(whole->losses, tiled->losses, what);
    for (int32_t i = 0; i < whole->model->params.count; i++) {
        const hy_param *p = &whole->model->params.list[i];
        if (!p->is_trainable) continue;
        float *a = sets_read(whole, SETS_GRADS, i), *b = sets_read(tiled, SETS_GRADS, i);
        double far = far_from(b, a, p->count);
        ck_assert_msg(far < BOUND, "the gradient of %s is off by %.1e: %s", p->name, far, what);
        free(a);
        free(b);
    }
}

START_TEST(tiles_change_only_the_order_of_sums) {
    static const int groups[] = {0, HY_KEEP_CHEAP, HY_KEEP_CHEAP | HY_KEEP_MLP, HY_KEEP_RESIDUAL,
                                 HY_KEEP_ALL};
    static const int32_t tiles[] = {2, 5, SETS_ROWS}; /* 5: the last one is shorter */
    sets_choice choice = choice_at(_i);
    sets_rig whole, tiled;
    char what[80];
    sets_open(&whole, &choice);
    sets_train(&whole);
    for (int n = 0; n < 15; n++) {
        choice.options.recompute = groups[n % 5];
        choice.options.mlp_chunks = tiles[n / 5];
        choice.options.chunks = tiles[n % 3];
        choice.options.recompute_layers = n % 2;
        snprintf(what, sizeof what, "shape %d, recompute %d, %d tiles", _i, groups[n % 5],
                 tiles[n / 5]);
        sets_open(&tiled, &choice);
        sets_train(&tiled);
        compare(&whole, &tiled, what);
        sets_close(&tiled);
    }
    sets_close(&whole);
}
END_TEST

/* The same in memory that moves: every other layer recomputes, or what is kept leaves the device;
 * and with frozen matrices, which a tile decodes for itself. */
START_TEST(tiles_work_with_offloaded_activations_and_quantised_weights) {
    sets_choice choice = choice_at(_i);
    sets_rig whole, tiled;
    choice.trained = _i >= 5 ? "*.lora_?" : "*norm*,blocks.1.mlp.*";
    choice.codes = HY_I8;
    sets_open(&whole, &choice);
    sets_train(&whole);
    choice.options.mlp_chunks = 3;
    choice.options.offloads = true;
    choice.options.recompute = _i % 2 ? HY_KEEP_CHEAP : 0;
    for (int i = 0; i < SETS_STORES; i++) choice.place[i] = HY_PINNED;
    choice.delay = 20;
    sets_open(&tiled, &choice);
    sets_train(&tiled);
    compare(&whole, &tiled, "activations are offloaded");
    sets_close(&tiled);
    sets_close(&whole);
}
END_TEST

START_TEST(evaluation_in_tiles_gives_the_losses_of_whole_mlps) {
    sets_choice choice = choice_at(_i);
    float losses[SETS_ROWS];
    for (int32_t tiles = 0; tiles <= 6; tiles += 3) {
        sets_rig r;
        choice.options.mlp_chunks = tiles;
        sets_open(&r, &choice);
        hy_batch_input input = sets_input(&r, 0, false);
        must(hy_batch_evaluate(r.plan, &input));
        must(r.backend->stream_sync(r.compute));
        if (tiles == 0) memcpy(losses, r.losses, sizeof losses);
        compare_losses(losses, r.losses, "evaluation");
        sets_close(&r);
    }
}
END_TEST

static hy_batch_plan *sized(hy_model *model, hy_backend *backend, int32_t tiles, int recompute) {
    hy_batch_options options = {.batch = 4,
                                .seq = 1024,
                                .chunks = 64,
                                .mlp_chunks = tiles,
                                .recompute = recompute,
                                .is_training = true,
                                .is_sizing = true};
    hy_batch_plan *plan;
    must(hy_batch_plan_create(model, backend, &options, &plan));
    return plan;
}

/* Kept: gate and up. At the same time in backward: gate and up, which become their gradients, and
 * the gradient of the result, whole or of one tile. */
START_TEST(only_a_tile_of_the_wide_activations_exists) {
    enum { ROWS = 4096, WIDTH = 64, WIDE = 1024, LAYERS = 3, TILES = 16 };
    hy_shape shape = gated_shape(HY_ARCH_LLAMA);
    hy_backend *backend;
    hy_model *model;
    shape.width = WIDTH;
    shape.mlp_width = WIDE;
    shape.context = 1024;
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &backend));
    must(hy_model_create(&shape, &model));
    hy_batch_plan *whole = sized(model, backend, 1, 0), *tiled = sized(model, backend, TILES, 0);
    ck_assert_uint_eq(whole->bytes.activations - tiled->bytes.activations,
                      (uint64_t)LAYERS * ROWS * 2 * WIDE * sizeof(float));
    hy_batch_plan_destroy(whole);
    hy_batch_plan_destroy(tiled);
    whole = sized(model, backend, 1, HY_KEEP_ALL);
    tiled = sized(model, backend, TILES, HY_KEEP_ALL);
    ck_assert_uint_eq(whole->bytes.activations, tiled->bytes.activations);
    const hy_pass_plan *in_whole = &hy_batch_unit(whole, 1)->pass[HY_PASS_BACKWARD];
    const hy_pass_plan *in_tiles = &hy_batch_unit(tiled, 1)->pass[HY_PASS_BACKWARD];
    uint64_t wide = (uint64_t)ROWS * 3 * WIDE * sizeof(float);
    ck_assert_uint_ge(in_whole->scratch_bytes, wide);
    /* besides the tile: the residual inside the block, the norm's output and its gradient */
    ck_assert_uint_le(in_tiles->scratch_bytes,
                      wide / TILES + (uint64_t)ROWS * 8 * WIDTH * sizeof(float));
    hy_batch_plan_destroy(whole);
    hy_batch_plan_destroy(tiled);
    hy_model_destroy(model);
    backend->destroy(backend);
}
END_TEST

/* Reads only B, so one run serves all tiles. */
START_TEST(adapters_are_spread_once_for_all_tiles) {
    sets_choice choice = choice_at(5);
    sets_rig r;
    int spreads = 0;
    choice.options.mlp_chunks = 4;
    sets_open(&r, &choice);
    const hy_unit_plan *unit = hy_batch_unit(r.plan, 1);
    for (int pass = 0; pass < HY_PASS_COUNT; pass++) {
        for (int32_t i = 0; i < unit->pass[pass].op_count; i++) {
            const hy_unit_op *op = unit->pass[pass].ops[i];
            if (op->kind != HY_OP_SPREAD || op->range != HY_RANGE_MLP) continue;
            ck_assert_int_eq(hy_unit_op_tiles(unit, op), 1);
            spreads++;
        }
    }
    ck_assert_int_gt(spreads, 0);
    sets_close(&r);
}
END_TEST

/* A batch-invariant matmul reads b while the op before runs, unless it is told not to. */
START_TEST(a_forward_matmul_by_a_matrix_that_was_computed_says_so) {
    sets_choice choice = choice_at(5);
    sets_rig r;
    int computed = 0;
    sets_open(&r, &choice);
    const hy_unit_plan *unit = hy_batch_unit(r.plan, 1);
    const hy_pass_plan *pass = &unit->pass[HY_PASS_EVAL];
    for (int32_t i = 0; i < pass->op_count; i++) {
        const hy_unit_op *op = pass->ops[i];
        if (op->kind != HY_OP_MATMUL) continue;
        bool is_param = unit->unit->slots[op->slot[HY_MATMUL_B]].role == HY_SLOT_PARAM;
        ck_assert_int_eq(op->attr.matmul.has_computed_b, !is_param);
        computed += !is_param;
    }
    ck_assert_int_gt(computed, 0);
    sets_close(&r);
}
END_TEST

START_TEST(tiles_of_rows_without_divisors_are_at_most_as_many_as_wanted_and_aligned) {
    static const struct {
        int64_t rows, wanted;
        int32_t tiles;
    } cases[] = {{8192, 7, 8}, {8192, 0, 1},   {24, 5, 6},         {4099, 2, 2},
                 {8198, 3, 3}, {4099, 64, 57}, {4099, 9999, 4099}, {22, 9, 11},
                 {23, 9, 3},   {2047, 2, 2},   {1, 5, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t tiles = hy_batch_divide(cases[i].rows, cases[i].wanted);
        ck_assert_msg(tiles == cases[i].tiles, "%lld rows in %lld tiles become %d",
                      (long long)cases[i].rows, (long long)cases[i].wanted, tiles);
        ck_assert_int_eq(hy_batch_divide(cases[i].rows, tiles), tiles);
    }
    for (int64_t rows = 1; rows < 300; rows++) {
        for (int64_t wanted = 1; wanted <= rows; wanted++) {
            int32_t tiles = hy_batch_divide(rows, wanted);
            ck_assert_int_eq(hy_batch_divide(rows, tiles), tiles);
        }
    }
}
END_TEST

/* So that the last tile begins at a multiple of 16 bytes, which matmuls of a card need. */
START_TEST(uneven_tiles_have_a_multiple_of_8_rows) {
    sets_choice choice = choice_at(0);
    sets_rig r;
    choice.options.mlp_chunks = 4;
    sets_open(&r, &choice);
    int32_t rows = r.plan->size.tile_rows[HY_RANGE_MLP];
    ck_assert_int_ne(SETS_ROWS % rows, 0);
    ck_assert_int_eq(rows % 8, 0);
    ck_assert_int_eq(hy_unit_tiles(hy_batch_unit(r.plan, 1), HY_RANGE_MLP),
                     hy_batch_divide(SETS_ROWS, 4));
    sets_close(&r);
}
END_TEST

START_TEST(an_mlp_in_fp8_cannot_run_in_tiles) {
    hy_shape shape = gated_shape(HY_ARCH_LLAMA);
    hy_backend *backend;
    hy_model *model;
    hy_batch_plan *plan;
    hy_batch_options options = {.batch = 2,
                                .seq = 8,
                                .mlp_chunks = 2,
                                .dtype = HY_BF16,
                                .grad_dtype = HY_F32,
                                .is_training = true,
                                .is_sizing = true,
                                .fp8 = {.weights = hy_linear_bit(HY_P_UP), .gradient = HY_E4M3}};
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &backend));
    must(hy_model_create(&shape, &model));
    must_fail(hy_batch_plan_create(model, backend, &options, &plan), HY_ERR_STATE,
              "2 chunks has no matmuls in fp8");
    options.fp8.weights = hy_linear_bit(HY_P_QKV);
    must(hy_batch_plan_create(model, backend, &options, &plan));
    hy_batch_plan_destroy(plan);
    hy_model_destroy(model);
    backend->destroy(backend);
}
END_TEST

static Suite *tiles_suite(void) {
    Suite *suite = suite_create("model: tiles of rows");
    TCase *same = tcase_create("same");
    tcase_set_timeout(same, 120);
    tcase_add_loop_test(same, tiles_change_only_the_order_of_sums, 0, SHAPES);
    tcase_add_loop_test(same, tiles_work_with_offloaded_activations_and_quantised_weights, 0,
                        SHAPES);
    tcase_add_loop_test(same, evaluation_in_tiles_gives_the_losses_of_whole_mlps, 0, SHAPES);
    tcase_add_test(same, only_a_tile_of_the_wide_activations_exists);
    tcase_add_test(same, uneven_tiles_have_a_multiple_of_8_rows);
    tcase_add_test(same, tiles_of_rows_without_divisors_are_at_most_as_many_as_wanted_and_aligned);
    tcase_add_test(same, adapters_are_spread_once_for_all_tiles);
    tcase_add_test(same, a_forward_matmul_by_a_matrix_that_was_computed_says_so);
    tcase_add_test(same, an_mlp_in_fp8_cannot_run_in_tiles);
    suite_add_tcase(suite, same);
    return suite;
}

HY_TEST_MAIN(tiles_suite)
