/* test_model_sets.c: models with frozen parameters: which are chosen, how much memory and time that
 * saves, and that it changes no bit of the trained ones. */
#include "linear_shape.h"
#include "sets_rig.h"

#include "infer/solo.h"
#include "kernels/half.h"
#include "model/batch_memory.h"
#include "update_all.h"

/* Layernorm, learned positions, biases, tied head. */
static hy_shape gpt2_shape(void) {
    return (hy_shape){.layers = 4,
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

/* Grouped heads, rope, gate, qk-norm, windows in some layers, a head of its own. */
static hy_shape rich_shape(void) {
    return (hy_shape){.layers = 4,
                      .width = 16,
                      .heads = 4,
                      .kv_heads = 2,
                      .mlp_width = 24,
                      .vocab = 701,
                      .context = 12,
                      .is_rms = true,
                      .has_rope = true,
                      .is_gated = true,
                      .has_qk_norm = true,
                      .norm_eps = 1e-6,
                      .rope_theta = 10000,
                      .sliding_window = 4,
                      .sliding_layers = "sf",
                      .init_std = 0.1};
}

static hy_shape shape_at(int i) {
    hy_shape shape = i == 0 ? gpt2_shape() : i == 3 ? linear_shape() : rich_shape();
    shape.has_tied_head = i != 1;
    if (i == 3) {
        shape.context = 12;
        strcpy(shape.more.linear.layers, "lff");
    }
    return shape;
}
enum { SHAPES = 4 };

/* ---- choosing -------------------------------------------------------------------------------- */

static void check_selection(const hy_shape *shape, const char *names, int32_t count,
                            const char *trained, const char *frozen) {
    hy_model *model;
    int32_t found = 0;
    must(hy_model_create(shape, &model));
    must(hy_model_select(model, names, HY_F32));
    for (int32_t i = 0; i < model->params.count; i++) {
        const hy_param *p = &model->params.list[i];
        found += p->is_trainable;
        if (strcmp(p->name, trained) == 0) ck_assert(p->is_trainable);
        if (strcmp(p->name, frozen) == 0) ck_assert(!p->is_trainable);
    }
    ck_assert_int_eq(found, count);
    hy_model_destroy(model);
}

START_TEST(names_choose_what_is_trained) {
    hy_shape gpt2 = gpt2_shape(), rich = rich_shape();
    hy_model *model;
    check_selection(&gpt2, "blocks.2.attn.*", 4, "blocks.2.attn.out.bias",
                    "blocks.1.attn.out.bias");
    check_selection(&gpt2, "blocks.?.norm1.weight", 4, "blocks.0.norm1.weight",
                    "final_norm.weight");
    check_selection(&gpt2, "*norm*", 18, "final_norm.bias", "blocks.0.mlp.up.bias");
    check_selection(&gpt2, "embed.positions.weight,blocks.3.mlp.up.bias", 2,
                    "embed.positions.weight", "embed.tokens.weight");
    check_selection(&gpt2, "all", 52, "embed.tokens.weight", "");
    /* A tied head is the embedding's table, which the last blocks do without. */
    check_selection(&gpt2, "last:1", 14, "blocks.3.norm1.weight", "embed.tokens.weight");
    check_selection(&rich, "last:1", 10, "head.weight", "blocks.2.norm1.weight");
    check_selection(&rich, "last:0", 2, "head.weight", "blocks.3.norm1.weight");
    check_selection(&rich, "last:4", 34, "blocks.0.norm1.weight", "embed.tokens.weight");
    must(hy_model_create(&rich, &model));
    must(hy_model_select(model, "last:2", HY_F32));
    must_fail(hy_model_select(model, "blocks.9.*", HY_F32), HY_ERR_INPUT,
              "\"blocks.9.*\" matches no");
    must_fail(hy_model_select(model, "last:1,wrong", HY_F32), HY_ERR_INPUT, "\"wrong\" matches no");
    must_fail(hy_model_select(model, "", HY_F32), HY_ERR_INPUT, "matches no");
    must_fail(hy_model_select(model, "last:5", HY_F32), HY_ERR_INPUT, "last:0 to last:4");
    must_fail(hy_model_select(model, "last:x", HY_F32), HY_ERR_INPUT, "last:0 to last:4");
    ck_assert_int_eq(model->lowest_trained, 3); /* as before */
    hy_model_destroy(model);
}
END_TEST

/* Worked out by hand: a block has 512 + 256 + 768 + 384 weights, the head 701 * 16; with 12 tokens
 * an attention of 16 numbers looks back at 4 or, on average, at 6. */
START_TEST(operations_that_no_gradient_needs_do_not_count) {
    hy_shape rich = rich_shape();
    hy_model *model;
    must(hy_model_create(&rich, &model));
    double all = 6 * (4 * 1920 + 11216) + 12 * 16 * (4 + 6 + 4 + 6);
    ck_assert_double_eq(hy_model_flops_per_token(model, 12), all);
    must(hy_model_select(model, "last:1", HY_F32));
    double forward = 2 * 3 * 1920 + 4 * 16 * (4 + 6 + 4);
    double last = 4 * 512 + 6 * (256 + 768 + 384) + 12 * 16 * 6 + 6 * 11216;
    ck_assert_double_eq(hy_model_flops_per_token(model, 12), forward + last);
    hy_model_destroy(model);
}
END_TEST

START_TEST(the_two_sets_have_the_bytes_of_all) {
    hy_shape shape = rich_shape();
    hy_model *model;
    hy_layout all, trained, frozen;
    must(hy_model_create(&shape, &model));
    must(hy_model_select(model, "last:1,blocks.1.attn.qkv.weight", HY_F32));
    must(hy_params_layout(&model->params, HY_SET_ALL, HY_BF16, &all));
    must(hy_params_layout(&model->params, HY_SET_TRAINABLE, HY_BF16, &trained));
    must(hy_params_layout(&model->params, HY_SET_FROZEN, HY_BF16, &frozen));
    ck_assert_uint_eq(trained.bytes + frozen.bytes, all.bytes);
    for (int32_t u = 0; u < model->params.units; u++) {
        ck_assert_uint_eq(trained.unit_bytes[u] + frozen.unit_bytes[u], all.unit_bytes[u]);
    }
    ck_assert_uint_eq(trained.unit_bytes[0], 0);
    ck_assert_uint_eq(frozen.unit_bytes[4], 0);
    for (int32_t i = 0; i < model->params.count; i++) {
        bool is_trained = model->params.list[i].is_trainable;
        const hy_layout *has = is_trained ? &trained : &frozen,
                        *lacks = is_trained ? &frozen : &trained;
        ck_assert_int_eq(lacks->item_of[i], -1);
        ck_assert_int_eq(has->items[has->item_of[i]].count, model->params.list[i].count);
        ck_assert(!all.item_of || all.item_of[i] == i);
    }
    hy_layout_fini(&all);
    hy_layout_fini(&trained);
    hy_layout_fini(&frozen);
    hy_model_destroy(model);
}
END_TEST

/* ---- the same bits --------------------------------------------------------------------------- */

static const char *const selections[] = {"last:0",
                                         "last:1",
                                         "last:3",
                                         "embed.*",
                                         "embed.tokens.weight",
                                         "final_norm.weight",
                                         "*norm*",
                                         "blocks.1.*",
                                         "blocks.0.mlp.down.weight",
                                         "blocks.2.attn.qkv.weight",
                                         "blocks.2.attn.out.weight,blocks.1.norm2.weight",
                                         "blocks.3.mlp.*,blocks.1.attn.*",
                                         "*.weight"};
enum { SELECTIONS = sizeof selections / sizeof selections[0] };

START_TEST(what_is_trained_has_the_gradients_of_a_full_backward) {
    static const struct {
        int recompute;
        int32_t layers;
    } kept[] = {{0, 0}, {HY_KEEP_ALL, 0}, {HY_KEEP_CHEAP | HY_KEEP_ATTENTION, 3}};
    sets_choice choice = {.shape = shape_at(_i)};
    sets_rig full, some;
    sets_open(&full, &choice);
    sets_train(&full);
    for (int k = 0; k < 3; k++) {
        choice.options.recompute = kept[k].recompute;
        choice.options.recompute_layers = kept[k].layers;
        for (int s = 0; s < SELECTIONS; s++) {
            choice.trained = selections[s];
            if (_i == 3 && s == 8)
                choice.trained = "blocks.0.linear.a_log,blocks.3.linear.conv.weight";
            sets_open(&some, &choice);
            sets_train(&some);
            sets_compare(&full, &some, selections[s]);
            sets_close(&some);
        }
    }
    choice.trained = "embed.positions.weight"; /* beside a tied table that is frozen */
    if (!choice.shape.has_rope) {
        sets_open(&some, &choice);
        sets_train(&some);
        sets_compare(&full, &some, choice.trained);
        sets_close(&some);
    }
    sets_close(&full);
}
END_TEST

/* Weights, frozen weights and gradients on the device, in pinned memory, on disk: every
 * combination. */
START_TEST(the_places_of_the_two_stores_change_no_bit) {
    static const hy_place places[] = {HY_DEVICE, HY_PINNED, HY_DISK};
    static const char *const trained[] = {"last:1,blocks.1.attn.*", "*norm*,embed.tokens.weight",
                                          "*.weight"};
    sets_choice choice = {.shape = shape_at(_i)};
    sets_rig full, some;
    sets_open(&full, &choice);
    sets_train(&full);
    choice.delay = 20;
    for (int k = 0; k < 27; k++) {
        choice.place[SETS_WEIGHTS] = places[k % 3];
        choice.place[SETS_FROZEN] = places[k / 3 % 3];
        choice.place[SETS_GRADS] = places[k / 9];
        choice.trained = trained[k % 2 + (_i == 0 && k > 20)];
        sets_open(&some, &choice);
        sets_train(&some);
        sets_compare(&full, &some, choice.trained);
        sets_close(&some);
    }
    sets_close(&full);
}
END_TEST

START_TEST(offloaded_activations_change_no_bit) {
    static const char *const trained[] = {"last:0", "last:1", "last:3", "blocks.0.mlp.*",
                                          "embed.*"};
    sets_choice choice = {.shape = shape_at(_i)};
    sets_rig full, some;
    sets_open(&full, &choice);
    sets_train(&full);
    for (int s = 0; s < 5; s++) {
        choice.trained = trained[s];
        choice.options.offloads = true;
        choice.place[SETS_FROZEN] = HY_PINNED;
        sets_open(&some, &choice);
        sets_train(&some);
        sets_compare(&full, &some, trained[s]);
        sets_close(&some);
    }
    sets_close(&full);
}
END_TEST

START_TEST(evaluation_and_decoding_read_both_stores) {
    sets_choice choice = {.shape = shape_at(_i)};
    hy_batch_decoder_options options = {.context = SETS_SEQ, .dtype = HY_F32};
    hy_sampling likeliest = {.forced = -1};
    float losses[2][SETS_ROWS], logprobs[2][2];
    for (int k = 0; k < 2; k++) {
        sets_rig r;
        hy_solo solo = {0};
        void *memory;
        sets_open(&r, &choice);
        hy_batch_input input = sets_input(&r, 0, false);
        must(hy_batch_evaluate(r.plan, &input));
        must(r.backend->stream_sync(r.compute));
        memcpy(losses[k], r.losses, sizeof losses[k]);
        must(hy_solo_create(r.model, r.backend, &options, UINT64_MAX, 0, &solo.decoder));
        size_t bytes = (size_t)hy_batch_decoder_bytes(solo.decoder);
        must(r.backend->alloc(r.backend, HY_DEVICE, bytes, &memory));
        must(hy_solo_place(&solo, r.compute, memory, input.weights, input.frozen));
        for (int i = 0; i < 2; i++) { /* a chunk and a step */
            must(hy_solo_take(&solo, r.tokens + solo.length, i == 0 ? 7 : 1, &likeliest));
            must(hy_solo_read(&solo));
            logprobs[k][i] = solo.logprob;
        }
        hy_batch_decoder_destroy(solo.decoder);
        r.backend->release(r.backend, HY_DEVICE, memory, 0);
        sets_close(&r);
        choice.trained = "blocks.1.*,final_norm.weight";
        choice.place[SETS_WEIGHTS] = HY_DISK;
        choice.place[SETS_FROZEN] = HY_PINNED;
    }
    ck_assert_mem_eq(losses[0], losses[1], sizeof losses[0]);
    ck_assert_mem_eq(logprobs[0], logprobs[1], sizeof logprobs[0]);
}
END_TEST

/* ---- codes ----------------------------------------------------------------------------------- */

/* Rows that codes of 4 bits can have. */
static hy_shape wide_shape_at(int i) {
    hy_shape shape = shape_at(i);
    shape.width = 64;
    if (shape.mlp_width) shape.mlp_width = 192;
    return shape;
}

static void check_codes(const hy_shape *shape, hy_dtype codes) {
    static const hy_dtype types[] = {HY_F32, HY_BF16, HY_F16};
    static const hy_place places[] = {HY_DEVICE, HY_PINNED, HY_DISK};
    static const char *const trained[] = {"last:1", "*norm*", "blocks.1.attn.*,head.weight",
                                          "blocks.0.mlp.down.weight,final_norm.weight"};
    for (int k = 0; k < 12; k++) {
        sets_choice choice = {.shape = *shape, .trained = trained[k % 4]};
        sets_rig plain, small;
        if (choice.shape.has_tied_head && k % 4 == 2) choice.trained = "blocks.1.attn.*";
        choice.options.dtype = types[k / 4];
        choice.options.recompute = k % 2 ? HY_KEEP_ALL : 0;
        choice.rounded = codes;
        sets_open(&plain, &choice);
        choice.rounded = HY_F32;
        choice.codes = codes;
        choice.place[SETS_FROZEN] = places[k % 3];
        sets_open(&small, &choice);
        sets_train(&plain);
        sets_train(&small);
        sets_compare(&plain, &small, choice.trained);
        uint64_t before = plain.stores[SETS_FROZEN].layout.bytes;
        uint64_t after = small.stores[SETS_FROZEN].layout.bytes;
        ck_assert_uint_lt(after, before);
        hy_batch_input a = sets_input(&plain, 1, false), b = sets_input(&small, 1, false);
        must(hy_batch_evaluate(plain.plan, &a));
        must(hy_batch_evaluate(small.plan, &b));
        must(plain.backend->stream_sync(plain.compute));
        must(small.backend->stream_sync(small.compute));
        ck_assert_mem_eq(plain.losses, small.losses, SETS_ROWS * sizeof(float));
        sets_close(&plain);
        sets_close(&small);
    }
}

START_TEST(frozen_weights_in_int8_give_the_bits_of_their_decoded_numbers) {
    hy_shape shape = shape_at(_i);
    check_codes(&shape, HY_I8);
}
END_TEST

START_TEST(frozen_weights_in_nf4_give_the_bits_of_their_decoded_numbers) {
    hy_shape shape = wide_shape_at(_i);
    check_codes(&shape, HY_NF4);
}
END_TEST

START_TEST(frozen_weights_in_fp8_give_the_bits_of_their_decoded_numbers) {
    hy_shape shape = shape_at(_i);
    check_codes(&shape, HY_E4M3);
}
END_TEST

/* Passes in fp32 may read frozen weights that are stored in 16 bits: the same numbers, in fp32. */
START_TEST(frozen_weights_may_be_stored_in_another_type) {
    sets_choice choice = {.shape = shape_at(_i), .trained = "last:2"};
    sets_rig narrow, wide;
    choice.frozen_dtype = HY_BF16;
    sets_open(&narrow, &choice);
    choice.frozen_dtype = HY_F32;
    sets_open(&wide, &choice);
    for (int32_t i = 0; i < wide.model->params.count; i++) { /* what bf16 leaves of them */
        const hy_param *p = &wide.model->params.list[i];
        hy_store *store = &wide.stores[SETS_FROZEN];
        int32_t item = hy_store_item_of(store, i);
        float *x = item < 0 ? NULL : hy_store_backing(store, item);
        for (int64_t k = 0; x && k < p->count; k++) x[k] = hy_bf16_to_f32(hy_f32_to_bf16(x[k]));
    }
    sets_train(&narrow);
    sets_train(&wide);
    for (int i = 0; i < SETS_ROWS; i++) {
        ck_assert_float_eq_tol(narrow.losses[i], wide.losses[i], 1e-5f);
    }
    sets_close(&narrow);
    sets_close(&wide);
}
END_TEST

START_TEST(matrices_are_int8_and_the_rest_is_not) {
    hy_shape shape = shape_at(_i);
    hy_model *model;
    hy_layout layout;
    must(hy_model_create(&shape, &model));
    must(hy_model_select(model, "blocks.1.*", HY_I8));
    must(hy_params_layout(&model->params, HY_SET_FROZEN, HY_BF16, &layout));
    for (int32_t i = 0; i < model->params.count; i++) {
        const hy_param *p = &model->params.list[i];
        bool is_matrix =
            strstr(p->name, "attn.qkv.weight") || strstr(p->name, "attn.out.weight") ||
            strstr(p->name, "mlp.up.weight") || strstr(p->name, "mlp.gate_up.weight") ||
            strstr(p->name, "mlp.down.weight") || strstr(p->name, "linear.qkv.weight") ||
            strstr(p->name, "linear.z.weight") || strstr(p->name, "linear.out.weight");
        bool is_table = strcmp(p->name, "embed.tokens.weight") == 0 && !shape.has_tied_head;
        bool is_coded = p->unit != 2 && (is_matrix || is_table);
        ck_assert_int_eq(hy_params_stored(&model->params, i, HY_BF16), is_coded ? HY_I8 : HY_BF16);
        if (p->unit == 2) continue;
        const hy_layout_item *item = &layout.items[layout.item_of[i]];
        ck_assert_int_eq(item->dtype, is_matrix || is_table ? HY_I8 : HY_BF16);
        ck_assert_int_eq(item->block, is_matrix || is_table ? p->shape[1] : 0);
    }
    hy_layout_fini(&layout);
    hy_model_destroy(model);
}
END_TEST

static const hy_layout_item *item_named(const hy_model *model, const hy_layout *layout,
                                        const char *name) {
    for (int32_t i = 0; i < model->params.count; i++) {
        if (strcmp(model->params.list[i].name, name) == 0)
            return &layout->items[layout->item_of[i]];
    }
    ck_abort_msg("no %s", name);
    return NULL;
}

/* Heads of 16, in fours and pairs: q has 64 rows of two blocks each, k and v 32; gate and up 192;
 * down has rows of 192 that are three blocks, and the table 704. */
START_TEST(groups_of_nf4_end_where_matrices_do) {
    static const struct {
        const char *name;
        int64_t blocks;
        int32_t group;
    } expected[] = {{"blocks.0.attn.qkv.weight", 256, 64},
                    {"blocks.0.attn.out.weight", 128, 128},
                    {"blocks.0.mlp.gate_up.weight", 768, 128},
                    {"blocks.0.mlp.down.weight", 384, 128}};
    hy_shape shape = rich_shape();
    hy_model *model;
    hy_layout layout;
    shape.width = 128, shape.mlp_width = 192, shape.head_size = 16;
    must(hy_model_create(&shape, &model));
    must(hy_model_select(model, "last:1", HY_NF4));
    must(hy_params_layout(&model->params, HY_SET_FROZEN, HY_BF16, &layout));
    ck_assert_int_eq(item_named(model, &layout, "embed.tokens.weight")->dtype, HY_BF16);
    for (int i = 0; i < 4; i++) {
        const hy_layout_item *item = item_named(model, &layout, expected[i].name);
        int64_t blocks = expected[i].blocks, group = expected[i].group;
        ck_assert_int_eq(item->dtype, HY_NF4);
        ck_assert_int_eq(item->count, 64 * blocks);
        ck_assert_int_eq(item->block, 64);
        ck_assert_int_eq(item->group, group);
        uint64_t scales = (uint64_t)(blocks + 8 * blocks / group);
        ck_assert_uint_eq(hy_layout_scales_at(item), hy_align((uint64_t)(32 * blocks)));
        ck_assert_uint_eq(hy_layout_scale_bytes(item), scales);
        ck_assert_uint_eq(hy_layout_item_bytes(item), hy_layout_scales_at(item) + hy_align(scales));
    }
    hy_layout_fini(&layout);
    hy_model_destroy(model);
}
END_TEST

START_TEST(rows_that_nf4_cannot_have_stay_in_16_bits) {
    hy_shape shape = rich_shape();
    hy_model *model;
    hy_layout layout;
    shape.width = 64, shape.mlp_width = 160;
    must(hy_model_create(&shape, &model));
    must(hy_model_select(model, "last:1", HY_NF4));
    must(hy_params_layout(&model->params, HY_SET_FROZEN, HY_BF16, &layout));
    ck_assert_int_eq(item_named(model, &layout, "blocks.0.mlp.gate_up.weight")->dtype, HY_NF4);
    const hy_layout_item *down = item_named(model, &layout, "blocks.0.mlp.down.weight");
    ck_assert_int_eq(down->dtype, HY_BF16);
    ck_assert_int_eq(down->block + down->group, 0);
    hy_layout_fini(&layout);
    hy_model_destroy(model);
}
END_TEST

/* ---- what it saves --------------------------------------------------------------------------- */

START_TEST(backward_ends_at_the_lowest_unit_that_is_trained) {
    sets_choice choice = {.shape = rich_shape()};
    sets_rig full, some;
    sets_open(&full, &choice);
    choice.trained = "last:1";
    choice.place[SETS_FROZEN] = HY_PINNED;
    sets_open(&some, &choice);
    for (int32_t unit = 0; unit <= 3; unit++) {
        ck_assert_int_eq(hy_batch_unit(some.plan, unit)->pass[HY_PASS_BACKWARD].op_count, 0);
        ck_assert_uint_eq(hy_batch_unit(some.plan, unit)->kept_bytes, 0);
    }
    uint64_t kept = hy_batch_unit(full.plan, 3)->kept_bytes;
    uint64_t saved = full.plan->bytes.activations - some.plan->bytes.activations;
    /* What three layers keep, and one residual: two of three take turns. */
    ck_assert_uint_ge(saved, 3 * kept + some.plan->residual_bytes);
    /* The block that is trained whole begins with no gradient of what enters it. */
    const hy_pass_plan *lowest = &hy_batch_unit(some.plan, 4)->pass[HY_PASS_BACKWARD];
    const hy_pass_plan *whole = &hy_batch_unit(full.plan, 4)->pass[HY_PASS_BACKWARD];
    ck_assert_int_eq(lowest->op_count,
                     whole->op_count); /* its first norm's weight is trained too */
    sets_train(&some);
    uint64_t frozen = some.stores[SETS_FROZEN].layout.bytes;
    ck_assert_uint_le(some.stores[SETS_FROZEN].bytes_up, SETS_MICRO_BATCHES * frozen);
    ck_assert_uint_eq(some.stores[SETS_FROZEN].bytes_down, 0);
    sets_close(&some);
    sets_close(&full);
}
END_TEST

static int32_t count_ops(const hy_batch_plan *plan, int32_t unit, hy_op_kind kind) {
    const hy_pass_plan *pass = &hy_batch_unit(plan, unit)->pass[HY_PASS_BACKWARD];
    int32_t count = 0;
    for (int32_t i = 0; i < pass->op_count; i++) count += pass->ops[i]->kind == kind;
    return count;
}

START_TEST(a_unit_runs_only_what_its_trained_parameters_want) {
    sets_choice choice = {.shape = gpt2_shape(),
                          .trained = "blocks.1.mlp.down.*,final_norm.weight"};
    sets_choice all = {.shape = gpt2_shape()};
    sets_rig r, full;
    sets_open(&full, &all);
    sets_open(&r, &choice);
    /* Its weight and bias from the residual's gradient: nothing continues through the block. */
    ck_assert_int_eq(hy_batch_unit(r.plan, 2)->pass[HY_PASS_BACKWARD].op_count, 2);
    ck_assert_int_eq(count_ops(r.plan, 2, HY_OP_MATMUL), 1);
    ck_assert_int_eq(count_ops(r.plan, 2, HY_OP_BIAS_GRAD), 1);
    /* Above it gradients pass through: four matmuls by weights, none for weights. */
    ck_assert_int_eq(count_ops(r.plan, 3, HY_OP_MATMUL), 4);
    ck_assert_int_eq(count_ops(r.plan, 3, HY_OP_BIAS_GRAD), 0);
    ck_assert_int_eq(count_ops(r.plan, 3, HY_OP_ATTENTION_BWD), 1);
    ck_assert_uint_lt(hy_batch_unit(r.plan, 3)->kept_bytes,
                      hy_batch_unit(full.plan, 3)->kept_bytes);
    /* The head: logits and the gradient of what is normed, no gradient of the table. */
    ck_assert_int_eq(count_ops(r.plan, 5, HY_OP_MATMUL), 2);
    sets_close(&r);
    choice.shape = rich_shape();
    choice.trained = "head.weight";
    sets_open(&r, &choice);
    ck_assert_int_eq(count_ops(r.plan, 5, HY_OP_MATMUL), 2);
    ck_assert_int_eq(count_ops(r.plan, 5, HY_OP_NORM_BWD), 0);
    sets_close(&r);
    sets_close(&full);
}
END_TEST

START_TEST(a_model_without_trained_parameters_cannot_train) {
    sets_choice choice = {.shape = rich_shape()};
    sets_rig r;
    sets_open(&r, &choice);
    hy_batch_input input = sets_input(&r, 0, false);
    for (int32_t i = 0; i < r.model->params.count; i++) {
        r.model->params.list[i].is_trainable = false;
    }
    r.model->lowest_trained = r.model->params.units;
    must_fail(hy_batch_train(r.plan, &input), HY_ERR_STATE, "no parameter to train");
    sets_close(&r);
}
END_TEST

/* ---- the optimizer --------------------------------------------------------------------------- */

/* One AdamW update of what `r` trains, after sets_train. */
static void update(sets_rig *r) {
    hy_optimizer optimizer = {.kind = hy_optimizer_kind_of(HY_ADAMW),
                              .weight_decay = 0.1,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8};
    hy_ledger ledger = {0};
    hy_arena arena;
    hy_store arrays[2];
    void *work;
    hy_layout layout;
    must(hy_params_layout(&r->model->params, HY_SET_TRAINABLE, HY_F32, &layout));
    uint64_t workspace =
        hy_optimizer_workspace(&optimizer, &r->model->params, r->backend, HY_F32) + 256;
    must(hy_arena_init(&arena, r->backend, &ledger, HY_DEVICE, 2 * layout.bytes + workspace + 1024,
                       "a test"));
    hy_optimizer_state state = {.optimizer = &optimizer,
                                .params = &r->model->params,
                                .backend = r->backend,
                                .weights = &r->stores[SETS_WEIGHTS],
                                .grads = &r->stores[SETS_GRADS]};
    for (int i = 0; i < 2; i++) {
        must(hy_store_init(&arrays[i], &arena, HY_OPTIM, &layout));
        must(hy_store_zero(&arrays[i], r->compute));
        state.arrays[i] = &arrays[i];
    }
    must(hy_arena_push(&arena, HY_WORKSPACE, workspace, &work));
    must(hy_arena_push(&arena, HY_DATA, 8, (void **)&state.square_sum));
    must(hy_arena_push(&arena, HY_DATA, 8, (void **)&state.clip));
    state.workspace = hy_tensor_1d(work, HY_U8, (int64_t)workspace);
    must(hy_optimizer_clip(&state, r->compute, 1));
    update_all(&state, r->compute, (hy_optimizer_step){.lr = 0.01, .seed = 4});
    must(r->backend->stream_sync(r->compute));
    must(hy_store_settle(&r->stores[SETS_WEIGHTS]));
    for (int i = 0; i < 2; i++) hy_store_fini(&arrays[i]);
    hy_layout_fini(&layout);
    hy_arena_fini(&arena);
}

START_TEST(an_update_changes_what_is_trained_as_a_full_one_does) {
    sets_choice choice = {.shape = shape_at(_i)};
    sets_rig full, some;
    sets_open(&full, &choice);
    sets_train(&full);
    update(&full);
    choice.trained = "blocks.1.attn.*,last:1";
    choice.place[SETS_WEIGHTS] = choice.place[SETS_FROZEN] = choice.place[SETS_GRADS] = HY_PINNED;
    sets_open(&some, &choice);
    sets_train(&some);
    update(&some);
    for (int32_t i = 0; i < some.model->params.count; i++) {
        const hy_param *p = &some.model->params.list[i];
        size_t bytes = (size_t)p->count * sizeof(float);
        float *a = sets_read(&full, SETS_WEIGHTS, i);
        float *b = sets_read(&some, p->is_trainable ? SETS_WEIGHTS : SETS_FROZEN, i);
        if (!p->is_trainable) hy_param_initial(p, 3, 0, p->count, a);
        ck_assert_msg(memcmp(a, b, bytes) == 0, "%s", p->name);
        free(a);
        free(b);
    }
    sets_close(&full);
    sets_close(&some);
}
END_TEST

static Suite *sets_suite(void) {
    Suite *suite = suite_create("parameter sets");
    TCase *tests = tcase_create("sets");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, names_choose_what_is_trained);
    tcase_add_test(tests, operations_that_no_gradient_needs_do_not_count);
    tcase_add_test(tests, the_two_sets_have_the_bytes_of_all);
    tcase_add_loop_test(tests, what_is_trained_has_the_gradients_of_a_full_backward, 0, SHAPES);
    tcase_add_loop_test(tests, the_places_of_the_two_stores_change_no_bit, 0, SHAPES);
    tcase_add_loop_test(tests, offloaded_activations_change_no_bit, 0, SHAPES);
    tcase_add_loop_test(tests, evaluation_and_decoding_read_both_stores, 0, SHAPES);
    tcase_add_loop_test(tests, frozen_weights_in_int8_give_the_bits_of_their_decoded_numbers, 0,
                        SHAPES);
    tcase_add_loop_test(tests, frozen_weights_in_fp8_give_the_bits_of_their_decoded_numbers, 0,
                        SHAPES);
    tcase_add_loop_test(tests, frozen_weights_may_be_stored_in_another_type, 0, SHAPES);
    tcase_add_loop_test(tests, frozen_weights_in_nf4_give_the_bits_of_their_decoded_numbers, 0,
                        SHAPES);
    tcase_add_loop_test(tests, matrices_are_int8_and_the_rest_is_not, 0, SHAPES);
    tcase_add_test(tests, groups_of_nf4_end_where_matrices_do);
    tcase_add_test(tests, rows_that_nf4_cannot_have_stay_in_16_bits);
    tcase_add_test(tests, backward_ends_at_the_lowest_unit_that_is_trained);
    tcase_add_test(tests, a_unit_runs_only_what_its_trained_parameters_want);
    tcase_add_test(tests, a_model_without_trained_parameters_cannot_train);
    tcase_add_loop_test(tests, an_update_changes_what_is_trained_as_a_full_one_does, 0, SHAPES);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(sets_suite)
