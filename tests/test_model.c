/* test_model.c: shapes, parameters, kept and recomputed activations, passes. Golden files are in
 * test_golden.c. */
#include "linear_shape.h"
#include "model_rig.h"

#include <math.h>

#include "base/rng.h"
#include "batch_logits.h"
#include "kernels/half.h"

static hy_shape gpt2_shape(void) {
    return (hy_shape){.layers = 3,
                      .width = 32,
                      .heads = 4,
                      .vocab = 61,
                      .context = 24,
                      .has_qkv_bias = true,
                      .has_proj_bias = true,
                      .has_tied_head = true,
                      .norm_eps = 1e-5,
                      .init_std = 0.1};
}

/* Everything a block can have at once. */
static hy_shape rich_shape(void) {
    return (hy_shape){.layers = 2,
                      .width = 32,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_size = 12,
                      .mlp_width = 40,
                      .vocab = 61,
                      .context = 24,
                      .is_rms = true,
                      .has_rope = true,
                      .is_gated = true,
                      .has_qkv_bias = true,
                      .has_qk_norm = true,
                      .norm_eps = 1e-6,
                      .rope_theta = 10000,
                      .rope_scaling = HY_ROPE_SCALED_LLAMA3,
                      .rope_factor = 8,
                      .rope_low_freq = 1,
                      .rope_high_freq = 4,
                      .rope_original_context = 16,
                      .sliding_window = 9,
                      .init_std = 0.1};
}

/* Two kinds of block, in a pattern that does not come out even. */
static hy_shape mixed_shape(void) {
    hy_shape shape = rich_shape();
    shape.layers = 5;
    strcpy(shape.sliding_layers, "sfs");
    return shape;
}

/* Shapes with the options of other families. Their weights are far from the usual ones, so that every
 * option matters. */
static hy_shape gemma_shape(void) {
    hy_shape s = mixed_shape();
    s.arch = HY_ARCH_GEMMA3;
    s.has_qkv_bias = false;
    s.rope_scaling = HY_ROPE_SCALED_LINEAR;
    s.more = (hy_shape_options){.rope = {.local_theta = 100, .scales_full_only = true},
                                .function = HY_MLP_GELU_TANH,
                                .norm_offset = 1,
                                .attention_scale = 0.5,
                                .attention_softcap = 1.5,
                                .logit_softcap = 2,
                                .embed_scale = 5.6,
                                .logit_divisor = 0.77};
    return s;
}

static hy_shape olmo_shape(void) {
    hy_shape s = rich_shape();
    s.arch = HY_ARCH_OLMO2;
    s.rope_scaling = HY_ROPE_SCALED_YARN;
    s.more = (hy_shape_options){.rope = {.share = 2.0 / 3, .query_beta = 0.3, .layers = "rn"},
                                .has_whole_qk_norm = true,
                                .has_sinks = true,
                                .residual_scale = 0.7};
    return s;
}

static hy_shape neox_shape(void) {
    hy_shape s = gpt2_shape();
    s.arch = HY_ARCH_NEOX;
    s.has_rope = true;
    s.rope_theta = 100;
    s.has_tied_head = false;
    s.more = (hy_shape_options){.rope = {.share = 0.5}, .function = HY_MLP_GELU};
    return s;
}

static hy_batch_options options_of(int32_t batch, int32_t seq) {
    return (hy_batch_options){.batch = batch,
                              .seq = seq,
                              .chunks = 1,
                              .dtype = HY_F32,
                              .grad_dtype = HY_F32,
                              .is_training = true};
}

static void fill_tokens(model_rig *rig, uint64_t first) {
    int64_t rows = (int64_t)rig->plan->size.batch * rig->plan->size.seq;
    uint64_t vocab = (uint64_t)rig->model->shape.vocab;
    for (int64_t i = 0; i < rows; i++) {
        uint64_t at = first + (uint64_t)i;
        rig->tokens[i] = (int32_t)hy_rng_below(5, HY_RNG_TEST, at, vocab);
        rig->targets[i] = at % 11 == 3 ? -1 : (int32_t)hy_rng_below(6, HY_RNG_TEST, at, vocab);
    }
}

static void train_once(model_rig *rig, float scale) {
    hy_batch_input input = rig_input(rig, scale, false);
    must(hy_batch_train(rig->plan, &input));
    rig_sync(rig);
}

START_TEST(a_wrong_shape_names_the_key) {
    hy_shape s = gpt2_shape();
    s.heads = 5;
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "shape.heads is 5");
    s = gpt2_shape();
    s.layers = 0;
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "shape.layers");
    s = rich_shape();
    s.kv_heads = 3;
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "shape.kv_heads is 3");
    s = rich_shape();
    s.head_size = 7;
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "even");
    s = rich_shape();
    s.head_size = 512;
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "at most 256");
    s = gpt2_shape();
    s.norm_eps = 0;
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "norm_eps");
    s = rich_shape();
    s.rope_low_freq = 5;
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "low_freq");
    s = mixed_shape();
    strcpy(s.sliding_layers, "sfx");
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "shape.sliding_layers is sfx");
    strcpy(s.sliding_layers, "sfsfsf");
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "5 layers or fewer");
}
END_TEST

START_TEST(wrong_linear_attention_is_named) {
    static const struct {
        size_t at;
        int32_t value;
        const char *message;
    } wrong[] = {{offsetof(hy_linear_options, key_heads), 0, "0 key heads and 6 value heads"},
                 {offsetof(hy_linear_options, key_heads), 4, "must be a multiple"},
                 {offsetof(hy_linear_options, heads), 0, "3 key heads and 0 value heads"},
                 {offsetof(hy_linear_options, key_dim), 257, "key heads of 257"},
                 {offsetof(hy_linear_options, value_dim), 0,
                  "value heads of 0 numbers; supported: 1 to 256"},
                 {offsetof(hy_linear_options, taps), 1, "sees 1 tokens; supported: 2 to 8"},
                 {offsetof(hy_linear_options, taps), 9, "sees 9 tokens"}};
    hy_shape s = linear_shape();
    must(hy_shape_complete(&s));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        s = linear_shape();
        *(int32_t *)(void *)((char *)&s.more.linear + wrong[i].at) = wrong[i].value;
        must_fail(hy_shape_complete(&s), HY_ERR_INPUT, wrong[i].message);
    }
    s = linear_shape();
    strcpy(s.more.linear.layers, "lls");
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "the layers with linear attention are lls");
    strcpy(s.more.linear.layers, "llfllf");
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "5 layers or fewer");
    s = linear_shape();
    s.has_qk_norm = false;
    must_fail(hy_shape_complete(&s), HY_ERR_INPUT, "need qk-norm");
}
END_TEST

START_TEST(what_is_open_follows_from_the_rest) {
    hy_shape s = gpt2_shape();
    must(hy_shape_complete(&s));
    ck_assert_int_eq(s.kv_heads, 4);
    ck_assert_int_eq(s.head_size, 8);
    ck_assert_int_eq(s.mlp_width, 128);
}
END_TEST

START_TEST(layers_with_and_without_a_window_are_two_kinds) {
    hy_shape shape = mixed_shape(), plain = rich_shape();
    hy_model *model, *uniform;
    must(hy_model_create(&shape, &model));
    must(hy_model_create(&plain, &uniform));
    ck_assert_int_eq(uniform->kind_count, 3);
    ck_assert_int_eq(model->kind_count, 4);
    static const int32_t windows[] = {9, 0, 9, 9, 0};
    for (int32_t l = 0; l < 5; l++) {
        const hy_unit *kind = &model->kinds[model->kind_of[l + 1]];
        ck_assert_int_eq(hy_shape_window(&model->shape, l), windows[l]);
        ck_assert_int_eq(kind->traits.window, windows[l]);
        for (int i = 0; i < kind->backward_count; i++) {
            bool is_attention = kind->backward[i].kind == HY_OP_ATTENTION_BWD;
            if (is_attention) ck_assert_int_eq(kind->backward[i].attr.heads.window, windows[l]);
        }
    }
    ck_assert_int_eq(model->kind_of[1], model->kind_of[4]);
    ck_assert_int_ne(model->kind_of[1], model->kind_of[2]);
    hy_model_destroy(model);
    hy_model_destroy(uniform);
}
END_TEST

static bool has_op(const hy_unit *unit, hy_op_kind kind) {
    bool is_there = false;
    for (int i = 0; i < unit->forward_count; i++) is_there |= unit->forward[i].kind == kind;
    return is_there;
}

START_TEST(layers_with_linear_attention_have_its_parameters_and_no_others) {
    static const hy_param_kind of_linear[] = {HY_P_LINEAR_QKV,  HY_P_LINEAR_Z,  HY_P_LINEAR_BA,
                                              HY_P_CONV,        HY_P_A_LOG,     HY_P_DT_BIAS,
                                              HY_P_LINEAR_NORM, HY_P_LINEAR_OUT};
    static const hy_param_kind of_full[] = {HY_P_QKV, HY_P_Q_NORM, HY_P_K_NORM, HY_P_OUT};
    hy_shape shape = linear_shape();
    hy_model *model;
    must(hy_model_create(&shape, &model));
    ck_assert_int_eq(model->kind_count, 4);
    for (int32_t l = 0; l < 5; l++) {
        const hy_unit *kind = &model->kinds[model->kind_of[l + 1]];
        bool is_linear = l != 2;
        ck_assert_int_eq(hy_shape_is_linear(&model->shape, l), is_linear);
        ck_assert_int_eq(has_op(kind, HY_OP_DELTA), is_linear);
        ck_assert_int_eq(has_op(kind, HY_OP_ATTENTION), !is_linear);
        for (int i = 0; i < 8; i++)
            ck_assert_int_eq(hy_params_find(&model->params, l + 1, of_linear[i]) >= 0, is_linear);
        for (int i = 0; i < 4; i++)
            ck_assert_int_eq(hy_params_find(&model->params, l + 1, of_full[i]) >= 0, !is_linear);
    }
    /* 2 x 3 x 7 + 6 x 5 columns of q, k and v */
    const hy_param *conv = &model->params.list[hy_params_find(&model->params, 1, HY_P_CONV)];
    ck_assert_str_eq(conv->name, "blocks.0.linear.conv.weight");
    ck_assert(conv->shape[0] == 72 && conv->shape[1] == 3 && conv->has_decay);
    const hy_param *rate = &model->params.list[hy_params_find(&model->params, 1, HY_P_A_LOG)];
    float values[6];
    ck_assert(rate->count == 6 && !rate->has_decay);
    hy_param_initial(rate, 5, 0, 6, values);
    for (int i = 0; i < 6; i++)
        ck_assert(exp((double)values[i]) >= 0.0099 && exp((double)values[i]) <= 16.01);
    ck_assert_float_ne(values[0], values[1]);
    /* q heads with their gates, then k and v: (2 x 4 + 2 x 2) x 8 */
    const hy_param *qkv = &model->params.list[hy_params_find(&model->params, 3, HY_P_QKV)];
    ck_assert_int_eq(qkv->shape[0], 96);
    ck_assert_int_eq(qkv->piece_rows[0], 64);
    hy_model_destroy(model);
}
END_TEST

START_TEST(an_interval_is_limited_by_the_length_of_a_pattern) {
    hy_shape s = linear_shape();
    s.layers = HY_INTERVAL_MAX + 1;
    ck_assert(hy_shape_set_interval(&s, HY_INTERVAL_MAX));
    ck_assert_int_eq(hy_shape_interval(&s), HY_INTERVAL_MAX);
    ck_assert(hy_shape_is_linear(&s, 0) && !hy_shape_is_linear(&s, HY_INTERVAL_MAX - 1));
    ck_assert(!hy_shape_set_interval(&s, HY_INTERVAL_MAX + 1));
    ck_assert(hy_shape_set_interval(&s, HY_INTERVAL_MAX + 2)); /* more than layers: all linear */
    ck_assert_int_eq(hy_shape_interval(&s), HY_INTERVAL_MAX + 2);
}
END_TEST

START_TEST(a_tied_head_has_no_weight) {
    hy_shape s = gpt2_shape();
    hy_params tied, separate;
    must(hy_shape_complete(&s));
    must(hy_params_init(&tied, &s));
    s.has_tied_head = false;
    must(hy_params_init(&separate, &s));
    ck_assert_int_eq(separate.elements - tied.elements, 61 * 32);
    ck_assert_int_eq(hy_params_find(&tied, s.layers + 1, HY_P_HEAD), 0);
    ck_assert_str_eq(tied.list[hy_params_find(&tied, 2, HY_P_QKV)].name,
                     "blocks.1.attn.qkv.weight");
    hy_params_fini(&tied);
    hy_params_fini(&separate);
}
END_TEST

START_TEST(initial_values_do_not_depend_on_how_they_are_asked_for) {
    hy_shape s = gpt2_shape();
    hy_params p;
    float whole[3072], part[100];
    must(hy_shape_complete(&s));
    must(hy_params_init(&p, &s));
    const hy_param *qkv = &p.list[hy_params_find(&p, 1, HY_P_QKV)];
    hy_param_initial(qkv, 7, 0, qkv->count, whole);
    hy_param_initial(qkv, 7, 500, 100, part);
    ck_assert_mem_eq(whole + 500, part, sizeof part);
    double square = 0;
    for (int64_t i = 0; i < qkv->count; i++) square += (double)whole[i] * whole[i];
    ck_assert_double_eq_tol(sqrt(square / (double)qkv->count), 0.1, 0.005);
    hy_params_fini(&p);
}
END_TEST

/* Gradients and losses of the same batch under other choices of what is kept. */
static void compare_recompute(hy_shape shape) {
    static const int groups[] = {HY_KEEP_CHEAP,
                                 HY_KEEP_CHEAP | HY_KEEP_ATTENTION,
                                 HY_KEEP_CHEAP | HY_KEEP_MLP,
                                 HY_KEEP_ATTENTION,
                                 HY_KEEP_MLP,
                                 HY_KEEP_RESIDUAL,
                                 HY_KEEP_ALL};
    hy_batch_options options = options_of(2, 17);
    model_rig plain, other;
    rig_open(&plain, &shape, &options, 3);
    fill_tokens(&plain, 0);
    train_once(&plain, 1.0f / 31);
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        options.recompute = groups[g];
        rig_open(&other, &shape, &options, 3);
        fill_tokens(&other, 0);
        train_once(&other, 1.0f / 31);
        ck_assert_uint_lt(other.plan->bytes.activations, plain.plan->bytes.activations);
        ck_assert_mem_eq(plain.losses, other.losses, 34 * sizeof(float));
        for (int32_t i = 0; i < plain.model->params.count; i++) {
            const hy_param *p = &plain.model->params.list[i];
            ck_assert_msg(memcmp(hy_store_backing(&plain.grads, i),
                                 hy_store_backing(&other.grads, i),
                                 (size_t)p->count * sizeof(float)) == 0,
                          "recompute %d changes the gradient of %s", groups[g], p->name);
        }
        rig_close(&other);
    }
    rig_close(&plain);
}

START_TEST(recomputation_changes_no_bit) {
    compare_recompute(gpt2_shape());
    compare_recompute(rich_shape());
    compare_recompute(mixed_shape());
    compare_recompute(linear_shape());
}
END_TEST

START_TEST(recomputing_all_keeps_only_the_stream_and_skips_the_last_matmul) {
    hy_shape shape = gpt2_shape();
    hy_unit_plan plan;
    hy_unit unit;
    hy_batch_size size = {.batch = 2,
                          .seq = 8,
                          .tile_rows = {[HY_RANGE_LOSS] = 16},
                          .dtype = HY_F32,
                          .recompute = HY_KEEP_ALL};
    must(hy_shape_complete(&shape));
    hy_unit_init(
        &unit, &shape,
        &(hy_unit_traits){.part = HY_PART_BLOCK, .trained = UINT32_MAX, .passes_back = true});
    hy_unit_plan_init(&plan, &unit, &size);
    ck_assert_uint_eq(plan.kept_bytes, 0);
    const hy_pass_plan *back = &plan.pass[HY_PASS_BACKWARD];
    int again = back->op_count - unit.backward_count;
    /* The down-projection is not needed again, and each norm is made twice rather than held. */
    ck_assert_int_eq(again, unit.forward_count - 1 + 2);
    for (int i = 0; i < back->op_count; i++) {
        for (int k = 0; k < HY_OP_TENSORS; k++) {
            ck_assert_int_ne(unit.slots[(int)back->ops[i]->slot[k]].role, HY_SLOT_RESIDUAL_OUT);
        }
        for (int k = 0; k < i; k++) {
            ck_assert(back->ops[i] != back->ops[k] || back->ops[i]->kind == HY_OP_NORM);
        }
    }
    size.recompute = 0;
    hy_unit_plan_init(&plan, &unit, &size);
    ck_assert_int_eq(plan.pass[HY_PASS_BACKWARD].op_count, unit.backward_count);
}
END_TEST

START_TEST(evaluation_gives_the_losses_of_training) {
    hy_shape shape = _i ? linear_shape() : rich_shape();
    hy_batch_options options = options_of(3, 20);
    model_rig rig;
    float trained[60];
    rig_open(&rig, &shape, &options, 9);
    fill_tokens(&rig, 100);
    train_once(&rig, 1);
    memcpy(trained, rig.losses, sizeof trained);
    hy_batch_input input = rig_input(&rig, 1, false);
    must(hy_batch_evaluate(rig.plan, &input));
    rig_sync(&rig);
    ck_assert_mem_eq(trained, rig.losses, sizeof trained);
    rig_close(&rig);
}
END_TEST

static double relative_difference(const float *a, const float *b, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / (size > 0 ? size : 1));
}

START_TEST(chunks_of_the_loss_and_micro_batches_change_only_the_order_of_sums) {
    hy_shape shape = gpt2_shape();
    hy_batch_options options = options_of(4, 12);
    model_rig whole, split;
    rig_open(&whole, &shape, &options, 3);
    fill_tokens(&whole, 0);
    train_once(&whole, 1.0f / 44);
    options.batch = 2;
    options.chunks = 5; /* rounded up to 6, a divisor of 24 */
    rig_open(&split, &shape, &options, 3);
    ck_assert_int_eq(split.plan->size.tile_rows[HY_RANGE_LOSS], 24 / 6);
    for (int half = 0; half < 2; half++) {
        fill_tokens(&split, (uint64_t)half * 24);
        hy_batch_input input = rig_input(&split, 1.0f / 44, half > 0);
        must(hy_batch_train(split.plan, &input));
        rig_sync(&split);
    }
    for (int32_t i = 0; i < whole.model->params.count; i++) {
        double error = relative_difference(hy_store_backing(&split.grads, i),
                                           hy_store_backing(&whole.grads, i),
                                           whole.model->params.list[i].count);
        ck_assert_msg(error < 2e-6, "%s differs by %g", whole.model->params.list[i].name, error);
    }
    rig_close(&whole);
    rig_close(&split);
}
END_TEST

static double loss_along(model_rig *rig, const float *direction, double step) {
    int64_t at = 0;
    for (int32_t i = 0; i < rig->model->params.count; i++) {
        float *w = hy_store_backing(&rig->weights, i);
        for (int64_t k = 0; k < rig->model->params.list[i].count; k++) {
            w[k] += (float)(step * direction[at++]);
        }
    }
    hy_batch_input input = rig_input(rig, 1, false);
    must(hy_batch_evaluate(rig->plan, &input));
    rig_sync(rig);
    return rig_loss_sum(rig);
}

START_TEST(the_gradient_is_the_slope_of_the_loss) {
    hy_shape shapes[] = {gpt2_shape(), rich_shape(), mixed_shape(), gemma_shape(),
                         olmo_shape(), neox_shape(), linear_shape()};
    hy_batch_options options = options_of(2, 15);
    for (int s = 0; s < 7; s++) {
        model_rig rig;
        rig_open(&rig, &shapes[s], &options, 21);
        fill_tokens(&rig, 7);
        train_once(&rig, 1);
        int64_t n = rig.model->params.elements, at = 0;
        float *direction = malloc((size_t)n * sizeof *direction);
        double slope = 0, h = 3e-4;
        for (int32_t i = 0; i < rig.model->params.count; i++) {
            const float *g = hy_store_backing(&rig.grads, i);
            for (int64_t k = 0; k < rig.model->params.list[i].count; k++, at++) {
                direction[at] = (float)hy_rng_normal(3, HY_RNG_TEST, (uint64_t)at) * 0.1f;
                slope += (double)direction[at] * g[k];
            }
        }
        double up = loss_along(&rig, direction, h);
        double down = loss_along(&rig, direction, -2 * h);
        ck_assert_double_eq_tol((up - down) / (2 * h), slope, 2e-3 * fabs(slope) + 1e-2);
        free(direction);
        rig_close(&rig);
    }
}
END_TEST

START_TEST(bf16_stays_near_fp32) {
    hy_shape shape = _i ? linear_shape() : rich_shape();
    hy_batch_options options = options_of(2, 16);
    model_rig full, half;
    rig_open(&full, &shape, &options, 8);
    options.dtype = HY_BF16;
    rig_open(&half, &shape, &options, 8);
    for (int32_t i = 0; i < full.model->params.count; i++) {
        float *w = hy_store_backing(&full.weights, i);
        uint16_t *h = hy_store_backing(&half.weights, i);
        for (int64_t k = 0; k < full.model->params.list[i].count; k++) h[k] = hy_f32_to_bf16(w[k]);
    }
    fill_tokens(&full, 0);
    fill_tokens(&half, 0);
    train_once(&full, 1.0f / 29);
    train_once(&half, 1.0f / 29);
    double a = rig_loss_sum(&full), b = rig_loss_sum(&half);
    ck_assert_double_eq_tol(b / a, 1, 0.01);
    for (int32_t i = 0; i < full.model->params.count; i++) {
        double error =
            relative_difference(hy_store_backing(&half.grads, i), hy_store_backing(&full.grads, i),
                                full.model->params.list[i].count);
        /* linear attention: rates of few heads are sums of numbers that nearly cancel */
        ck_assert_msg(error < (_i ? 0.1 : 0.06), "%s differs by %g",
                      full.model->params.list[i].name, error);
    }
    rig_close(&full);
    rig_close(&half);
}
END_TEST

START_TEST(logits_of_one_row_are_those_of_the_whole) {
    hy_shape shape = gpt2_shape();
    hy_batch_options options = options_of(1, 10);
    model_rig rig;
    float all[10 * 61], one[61];
    rig_open(&rig, &shape, &options, 2);
    fill_tokens(&rig, 0);
    hy_batch_input input = rig_input(&rig, 1, false);
    must(batch_logits(rig.plan, &input, 0, 10));
    rig_sync(&rig);
    memcpy(all, rig.plan->logits, sizeof all);
    must(batch_logits(rig.plan, &input, 6, 1));
    rig_sync(&rig);
    memcpy(one, rig.plan->logits, sizeof one);
    ck_assert_double_lt(relative_difference(one, all + 6 * 61, 61), 1e-6);
    must_fail(batch_logits(rig.plan, &input, 0, 11), HY_ERR_STATE, "11 rows");
    rig_close(&rig);
}
END_TEST

START_TEST(a_sequence_beyond_the_context_is_refused) {
    hy_shape shape = gpt2_shape();
    hy_batch_options options = options_of(1, 25);
    hy_backend *backend;
    hy_model *model;
    hy_batch_plan *plan;
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &backend));
    must(hy_model_create(&shape, &model));
    must_fail(hy_batch_plan_create(model, backend, &options, &plan), HY_ERR_INPUT, "context of 24");
    hy_model_destroy(model);
    backend->destroy(backend);
}
END_TEST

/* A large vocabulary is rounded up in memory. The rows beyond it are nobody's: whatever stands in
 * them changes no loss and no gradient, and their own gradient is zero. */
START_TEST(the_padding_of_a_vocabulary_means_nothing) {
    hy_shape shape = gpt2_shape();
    hy_batch_options options = options_of(2, 8);
    model_rig plain, spoilt;
    shape.vocab = 1030;
    rig_open(&plain, &shape, &options, 3);
    rig_open(&spoilt, &shape, &options, 3);
    const hy_params *params = &plain.model->params;
    int32_t item = hy_params_find(params, 0, HY_P_TOKENS);
    const hy_param *tokens = &params->list[item];
    ck_assert_int_eq(tokens->shape[0], 1088);
    ck_assert_int_eq(tokens->stored, 1030 * 32);
    ck_assert_int_eq(hy_param_stored_rows(tokens), 1030);
    ck_assert_int_eq(params->list[item + 1].first, 1030 * 32);
    float *table = hy_store_backing(&plain.weights, item);
    float *other = hy_store_backing(&spoilt.weights, item);
    for (int64_t i = tokens->stored; i < tokens->count; i++) {
        ck_assert_float_eq(table[i], 0);
        other[i] = 7;
    }
    fill_tokens(&plain, 0);
    fill_tokens(&spoilt, 0);
    train_once(&plain, 1);
    train_once(&spoilt, 1);
    ck_assert_mem_eq(plain.losses, spoilt.losses, 16 * sizeof(float));
    ck_assert_mem_eq(plain.grads.data, spoilt.grads.data, plain.grads.layout.bytes);
    const float *grad = hy_store_backing(&plain.grads, item);
    for (int64_t i = tokens->stored; i < tokens->count; i++) ck_assert_float_eq(grad[i], 0);
    rig_close(&plain);
    rig_close(&spoilt);
}
END_TEST

static Suite *model_suite(void) {
    Suite *suite = suite_create("model");
    TCase *tests = tcase_create("model");
    tcase_add_test(tests, a_wrong_shape_names_the_key);
    tcase_add_test(tests, wrong_linear_attention_is_named);
    tcase_add_test(tests, layers_with_linear_attention_have_its_parameters_and_no_others);
    tcase_add_test(tests, what_is_open_follows_from_the_rest);
    tcase_add_test(tests, layers_with_and_without_a_window_are_two_kinds);
    tcase_add_test(tests, an_interval_is_limited_by_the_length_of_a_pattern);
    tcase_add_test(tests, a_tied_head_has_no_weight);
    tcase_add_test(tests, initial_values_do_not_depend_on_how_they_are_asked_for);
    tcase_add_test(tests, recomputation_changes_no_bit);
    tcase_add_test(tests, recomputing_all_keeps_only_the_stream_and_skips_the_last_matmul);
    tcase_add_loop_test(tests, evaluation_gives_the_losses_of_training, 0, 2);
    tcase_add_test(tests, chunks_of_the_loss_and_micro_batches_change_only_the_order_of_sums);
    tcase_add_test(tests, the_gradient_is_the_slope_of_the_loss);
    tcase_add_loop_test(tests, bf16_stays_near_fp32, 0, 2);
    tcase_add_test(tests, logits_of_one_row_are_those_of_the_whole);
    tcase_add_test(tests, a_sequence_beyond_the_context_is_refused);
    tcase_add_test(tests, the_padding_of_a_vocabulary_means_nothing);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(model_suite)
