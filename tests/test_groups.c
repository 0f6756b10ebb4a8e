/* test_groups.c: groups of parameters by patterns: the syntax, their effect on a step, plans,
 * checkpoints, and custom models. */
#include "linear_shape.h"
#include "own_rig.h"
#include "run_facts.h"
#include "small_run.h"

#include <time.h>

#include "model/param_list.h"
#include "optim/groups.h"
#include "optim/optimizer.h"

#define RUN SMALL_RUN "weight_decay 0.1 "
#define PLAIN "predictor", "none"
#define MIXED                                                                                      \
    "embed.*: optimizer sgd, lr_scale 10; *norm*: decay 0.3; blocks.0.mlp.*: frozen; "             \
    "blocks.1.*: optimizer sgd, decay 0"

#define BY_NAME                                                                                    \
    "embed.*: optim_dtype fp32, place pinned; blocks.0.*: frozen, frozen_dtype int8; "             \
    "blocks.1.*: optim_dtype bf16"

/* ---- the text -------------------------------------------------------------------------------- */

START_TEST(a_text_is_read_as_it_is_written) {
    const char *at =
        " embed.*,  head.weight :lr_scale 0.1 , decay=0;last:2: optimizer = sgd,frozen;"
        "a:b: frozen false; ";
    hy_group g = {0};
    bool is_there;
    must(hy_groups_next(&at, &g, &is_there));
    ck_assert(is_there && g.has_lr_scale && g.has_decay && !g.has_optimizer && !g.has_frozen);
    ck_assert_int_eq(g.number, 1);
    ck_assert_str_eq(g.names, "embed.*,  head.weight");
    ck_assert_double_eq(g.lr_scale, 0.1);
    ck_assert_double_eq(g.decay, 0);
    must(hy_groups_next(&at, &g, &is_there));
    ck_assert(is_there && !g.has_lr_scale && !g.has_decay && g.has_optimizer && g.is_frozen);
    ck_assert_str_eq(g.names, "last:2");
    ck_assert_int_eq(g.optimizer, HY_SGD);
    must(hy_groups_next(&at, &g, &is_there));
    ck_assert(is_there && g.has_frozen && !g.is_frozen);
    ck_assert_str_eq(g.names, "a:b");
    must(hy_groups_next(&at, &g, &is_there));
    ck_assert(!is_there);
    must(hy_groups_check(""));
    must(hy_groups_check("   "));
}
END_TEST

START_TEST(a_wrong_text_names_the_group_the_word_and_what_is_accepted) {
    static const char *const wrong[][2] = {
        {"embed.*", "group 1 (embed.*) has no colon; expected: NAMES: lr_scale X, decay X"},
        {"*: decay 0; head", "group 2 (head) has no colon"},
        {";", "group 1 is empty"},
        {"*: decay 0;; *: decay 0", "group 2 is empty"},
        {":", "group 1 names no parameters"},
        {" : frozen", "group 1 names no parameters"},
        {"*:", "group 1 (*) has no settings after the colon; accepted: lr_scale X"},
        {"*: ,", "\"\" is unknown"},
        {"*: decay 0,",
         "\"\" is unknown; accepted: lr_scale X, decay X, optimizer NAME, frozen, place P"},
        {"*: lr 0.1", "\"lr\" is unknown"},
        {"*: Decay 0", "\"Decay\" is unknown"},
        {"*: decay", "decay \"\" is not accepted; accepted: a number, 0 to 10"},
        {"*: decay = ", "decay \"\" is not accepted"},
        {"*: decay 0 1", "decay \"0 1\" is not accepted"},
        {"*: decay nan", "decay \"nan\" is not accepted"},
        {"*: decay inf", "decay \"inf\" is not accepted"},
        {"*: decay 1e999", "decay \"1e999\" is not accepted"},
        {"*: decay -0.1", "decay \"-0.1\" is not accepted"},
        {"*: decay 11", "decay \"11\" is not accepted"},
        {"*: lr_scale -1", "lr_scale \"-1\" is not accepted; accepted: a number, 0 to 1000"},
        {"*: lr_scale nan", "lr_scale \"nan\" is not accepted"},
        {"*: lr_scale 1001", "lr_scale \"1001\" is not accepted"},
        {"*: decay 0, decay 0", "group 1 sets decay twice"},
        {"*: decay 0, weight_decay 0", "group 1 sets weight_decay twice"},
        {"*: frozen, frozen", "group 1 sets frozen twice"},
        {"*: frozen maybe", "frozen \"maybe\" is not accepted; accepted: true, false, or no value"},
        {"*: optimizer", "optimizer \"\" is not accepted; accepted: adamw, sgd"},
        {"*: optimizer adamw8bit", "optim_dtype and optim_place of the run apply to its state"},
        {"*: optimizer paged_adamw", "is not accepted"},
        {"last:1", "\"1\" is unknown"},
        {"*: place", "group 1: place \"\" is not accepted; accepted: device, pinned, disk"},
        {"*: place host", "place \"host\" is not accepted; accepted: device, pinned, disk"},
        {"*: optim_place gpu0", "optim_place \"gpu0\" is not accepted"},
        {"*: place disk, place disk", "group 1 sets place twice"},
        {"*: optim_dtype fp16", "accepted: fp32, bf16, 8bit"},
        {"*: frozen_dtype fp8", "accepted: auto, int8, nf4"},
        {"*: precision fp32", "precision \"fp32\" is not accepted; accepted: bf16, fp8"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        must_fail(hy_groups_check(wrong[i][0]), HY_ERR_INPUT, wrong[i][1]);
    }
    hy_config *config;
    must(hy_config_create(&config));
    must_fail(hy_config_set(config, "groups", "*: decay x", HY_FROM_FLAG), HY_ERR_INPUT,
              "flag --groups: optimizer.groups: group 1: decay \"x\"");
    hy_config_destroy(config);
}
END_TEST

START_TEST(long_texts_are_refused) {
    enum { LONG = 100000 };
    char *text = malloc(LONG + 1);
    hy_config *config;
    ck_assert_ptr_nonnull(text);
    must(hy_config_create(&config));
    for (int kind = 0; kind < 3; kind++) {
        memset(text, kind == 0 ? 'x' : kind == 1 ? ';' : ',', LONG);
        text[LONG] = 0;
        memcpy(text + LONG - 9, ": decay 0", kind == 0 ? 9 : 0);
        memcpy(text, "*: decay ", kind == 2 ? 9 : 0);
        must_fail(hy_groups_check(text), HY_ERR_INPUT, "group 1");
        must_fail(hy_config_set(config, "groups", text, HY_FROM_FLAG), HY_ERR_INPUT, "at most 511");
    }
    memset(text, '9', LONG);
    memcpy(text, "*: decay ", 9);
    must_fail(hy_groups_check(text), HY_ERR_INPUT, "decay \"9999");
    hy_config_destroy(config);
    free(text);
}
END_TEST

/* ---- which parameters ------------------------------------------------------------------------ */

static const hy_shape small_shape = {.layers = 3,
                                     .width = 16,
                                     .heads = 2,
                                     .mlp_width = 24,
                                     .vocab = 64,
                                     .context = 16,
                                     .is_rms = true,
                                     .has_rope = true,
                                     .is_gated = true,
                                     .has_tied_head = true,
                                     .norm_eps = 1e-5,
                                     .rope_theta = 10000,
                                     .init_std = 0.02};

static hy_params small_params(void) {
    hy_shape shape = small_shape;
    hy_params params;
    must(hy_shape_complete(&shape));
    must(hy_params_init(&params, &shape));
    return params;
}

static const hy_param *named(const hy_params *params, const char *name) {
    for (int32_t i = 0; i < params->count; i++) {
        if (strcmp(params->list[i].name, name) == 0) return &params->list[i];
    }
    ck_abort_msg("no parameter %s", name);
}

START_TEST(later_groups_win_for_what_they_say) {
    hy_params params = small_params();
    must(hy_params_select(&params, "last:2,embed.*"));
    must(hy_groups_apply("*: lr_scale 0.5, decay 0; *.attn.*: decay 0.2; blocks.?.mlp.*: frozen, "
                         "optimizer sgd; blocks.0.*, blocks.1.mlp.down.weight: frozen false",
                         &params));
    const hy_param *qkv = named(&params, "blocks.2.attn.qkv.weight");
    ck_assert_double_eq(qkv->lr_scale, 0.5);
    ck_assert_double_eq(qkv->own_decay, 0.2);
    ck_assert_int_eq(qkv->own_optimizer, 0);
    ck_assert_double_eq(named(&params, "final_norm.weight")->own_decay, 0);
    ck_assert(!named(&params, "blocks.2.mlp.down.weight")->is_trainable);
    ck_assert_int_eq(named(&params, "blocks.2.mlp.down.weight")->own_optimizer, 1 + HY_SGD);
    ck_assert(named(&params, "blocks.1.mlp.down.weight")->is_trainable);
    ck_assert(!named(&params, "blocks.1.mlp.gate_up.weight")->is_trainable);
    ck_assert(!named(&params, "blocks.0.mlp.down.weight")->is_trainable); /* train leaves it out */
    hy_params_fini(&params);
}
END_TEST

START_TEST(names_that_match_nothing_are_refused_with_names_that_are_there) {
    hy_params params = small_params();
    must_fail(hy_groups_apply("*: decay 0; block.*: frozen", &params), HY_ERR_INPUT,
              "group 2: \"block.*\" matches no parameter; the names are embed.tokens.weight, "
              "blocks.1.");
    must_fail(hy_groups_apply("embed.*,: decay 0", &params), HY_ERR_INPUT, "\"\" matches no");
    must_fail(hy_groups_apply("last:4: decay 0", &params), HY_ERR_INPUT, "last:0 to last:3");
    must_fail(hy_groups_apply("*: frozen", &params), HY_ERR_INPUT, "all parameters are frozen");
    hy_params_fini(&params);
    params = small_params();
    must(hy_params_select(&params, "last:1"));
    must_fail(hy_groups_apply("last:2: frozen", &params), HY_ERR_INPUT, "all parameters are");
    char text[400] = "";
    for (int i = 0; i < 200; i++) text[i] = 'x';
    strcat(text, ": decay 0");
    must_fail(hy_groups_apply(text, &params), HY_ERR_INPUT, "at most 159");
    hy_params_fini(&params);
}
END_TEST

START_TEST(numbers_may_be_ranges) {
    hy_params params = small_params();
    must(hy_groups_apply("blocks.1-10.attn.*: decay 0.5", &params));
    ck_assert_double_lt(named(&params, "blocks.0.attn.qkv.weight")->own_decay, 0);
    ck_assert_double_eq(named(&params, "blocks.1.attn.qkv.weight")->own_decay, 0.5);
    ck_assert_double_eq(named(&params, "blocks.2.attn.qkv.weight")->own_decay, 0.5);
    ck_assert_double_lt(named(&params, "blocks.2.mlp.down.weight")->own_decay, 0);
    must_fail(hy_groups_apply("blocks.3-9.*: decay 0", &params), HY_ERR_INPUT, "matches no");
    must_fail(hy_groups_apply("blocks.2-1.*: decay 0", &params), HY_ERR_INPUT, "matches no");
    hy_params_fini(&params);
}
END_TEST

START_TEST(places_are_for_whole_layers) {
    static const char *const wrong[][2] = {
        {"*.attn.*: place pinned",
         "group 1: weights_place of blocks.0.attn.qkv.weight is pinned, but that of "
         "blocks.0.mlp.gate_up.weight in the same layer is not set, and a layer moves as one "
         "piece; accepted: names of whole layers"},
        {"blocks.0.*: place disk; *.mlp.*: optim_place device",
         "group 2: optim_place of blocks.0.mlp.gate_up.weight is device, but that of "
         "blocks.0.attn.qkv.weight in the same layer is disk"},
        {"embed.*: place disk; *: frozen false; blocks.0.*: weights_place cpu",
         "group 3: weights_place of blocks.0.norm1.weight is pinned, but group 1 sets disk for "
         "embed.tokens.weight, and only one place besides the device is possible"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        hy_params params = small_params();
        must_fail(hy_groups_apply(wrong[i][0], &params), HY_ERR_INPUT, wrong[i][1]);
        hy_params_fini(&params);
    }
    hy_params params = small_params();
    must(hy_groups_apply("blocks.*.weight: place pinned; *norm*: decay 0; blocks.1.*: optim_place "
                         "device; embed.*: place gpu",
                         &params));
    ck_assert_int_eq(named(&params, "blocks.0.norm1.weight")->own.place[HY_OPTIM], HY_PINNED);
    ck_assert_int_eq(named(&params, "blocks.1.norm1.weight")->own.place[HY_OPTIM], HY_DEVICE);
    ck_assert_int_eq(named(&params, "blocks.1.norm1.weight")->own.place[HY_GRADS], HY_PINNED);
    ck_assert_int_eq(named(&params, "final_norm.weight")->own.place[HY_WEIGHTS], HY_NOWHERE);
    hy_params_fini(&params);
}
END_TEST

START_TEST(types_that_a_matrix_cannot_have_are_refused_by_its_name) {
    static const char *const wrong[][2] = {
        {"blocks.0.*: frozen_dtype int8", "frozen_dtype is for frozen weights, but "
                                          "blocks.0.attn.qkv.weight is trained"},
        {"blocks.0.*: frozen, frozen_dtype nf4", "group 1: frozen_dtype nf4 is not possible for "
                                                 "blocks.0.attn.qkv.weight; accepted: int8 for"},
        {"embed.*: frozen, frozen_dtype int8", "not possible for embed.tokens.weight"},
        {"*: precision fp8", "precision fp8 is not possible for embed.tokens.weight"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        hy_params params = small_params();
        must_fail(hy_groups_apply(wrong[i][0], &params), HY_ERR_INPUT, wrong[i][1]);
        hy_params_fini(&params);
    }
}
END_TEST

static hy_params linear_params(void) {
    hy_shape shape = linear_shape();
    hy_params params;
    shape.width = shape.mlp_width = 64;
    shape.head_size = 16;
    shape.more.linear = (hy_linear_options){
        .key_heads = 2, .heads = 4, .key_dim = 16, .value_dim = 16, .taps = 3, .layers = "llf"};
    must(hy_shape_complete(&shape));
    must(hy_params_init(&params, &shape));
    return params;
}

START_TEST(linear_attention_keeps_b_a_and_conv_whatever_a_group_of_blocks_says) {
    static const char *const wrong[][2] = {
        {"blocks.*.linear.ba.weight: frozen, frozen_dtype nf4",
         "group 1: frozen_dtype is not possible for blocks.0.linear.ba.weight, which is neither "
         "quantised nor in fp8; accepted: frozen_dtype auto, and names of other matrices"},
        {"*: decay 0; blocks.1.linear.conv.*: frozen, frozen_dtype int8",
         "group 2: frozen_dtype is not possible for blocks.1.linear.conv.weight"},
        {"blocks.*.linear.ba.*, *.conv.weight: precision fp8",
         "group 1: precision fp8 is not possible for blocks.0.linear.ba.weight"},
    };
    static const char *const right[] = {
        "blocks.*: frozen, frozen_dtype nf4", "blocks.*: frozen, frozen_dtype int8",
        "blocks.*: precision fp8", "blocks.*.linear.ba.weight: frozen, frozen_dtype auto",
        "blocks.*.linear.conv.weight: precision bf16"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        hy_params params = linear_params();
        must_fail(hy_groups_apply(wrong[i][0], &params), HY_ERR_INPUT, wrong[i][1]);
        hy_params_fini(&params);
    }
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        hy_params params = linear_params();
        must(hy_groups_apply(right[i], &params));
        int32_t qkv = hy_params_find(&params, 1, HY_P_LINEAR_QKV);
        hy_dtype expected = i == 0 ? HY_NF4 : i == 1 ? HY_I8 : HY_BF16;
        ck_assert_int_eq(hy_params_stored(&params, qkv, HY_BF16), expected);
        for (int32_t p = 0; p < params.count; p++) {
            if (!hy_kind_stays_real(params.list[p].kind)) continue;
            ck_assert_int_eq(hy_params_stored(&params, p, HY_BF16), HY_BF16);
            ck_assert(hy_param_in_16_bits(&params.list[p]));
        }
        hy_params_fini(&params);
    }
}
END_TEST

/* Stars are not tried in all combinations. */
START_TEST(no_pattern_takes_long) {
    char name[HY_PARAM_NAME_MAX], text[HY_PARAM_NAME_MAX + 16] = "";
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    for (int i = 0; i < 70; i++) strcat(text, "*a");
    strcat(text, "b: decay 0");
    hy_param_spec spec = {.name = name, .ndim = 0, .lr_scale = 1, .decay = -1};
    hy_params params;
    must(hy_params_init_list(&params, &spec, 1, NULL));
    clock_t begin = clock();
    must_fail(hy_groups_apply(text, &params), HY_ERR_INPUT, "matches no parameter");
    ck_assert_double_lt((double)(clock() - begin) / CLOCKS_PER_SEC, 1);
    text[strlen(text) - strlen("b: decay 0")] = 0;
    strcat(text, ": decay 0");
    must(hy_groups_apply(text, &params));
    ck_assert_double_eq(params.list[0].own_decay, 0);
    hy_params_fini(&params);
}
END_TEST

/* ---- steps ----------------------------------------------------------------------------------- */

/* A parameter's weights after some steps; the caller frees them. */
static float *weights_after(int steps, const char *name, const char *const *pairs, size_t *bytes) {
    double losses[16];
    char folder[256];
    hy_trainer *t = small_trainer(RUN, temp_folder(folder), NULL, pairs);
    next_losses(t, steps, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    float *copy = saved_tensor(folder, "weights.safetensors", name, bytes);
    remove_folder(folder);
    return copy;
}

#define DOWN "blocks.1.mlp.down.weight"
#define NORM "blocks.0.norm1.weight"

/* Whether a parameter is the same, bit for bit, after `steps` of two runs. */
static bool are_same(int steps, const char *name, const char *const *one, const char *const *two) {
    size_t bytes, others;
    float *a = weights_after(steps, name, one, &bytes),
          *b = weights_after(steps, name, two, &others);
    ck_assert_uint_eq(bytes, others);
    bool is_same = memcmp(a, b, bytes) == 0;
    free(a);
    free(b);
    return is_same;
}

START_TEST(a_rate_of_zero_moves_nothing) {
    size_t bytes;
    const char *const *still = PAIRS(PLAIN, "groups", DOWN ": lr_scale 0");
    float *first = weights_after(0, DOWN, still, &bytes),
          *last = weights_after(4, DOWN, still, &bytes);
    ck_assert_mem_eq(first, last, bytes);
    ck_assert(!are_same(4, DOWN, still, PAIRS(PLAIN)));
    ck_assert(are_same(1, NORM, still, PAIRS(PLAIN)));
    free(first);
    free(last);
}
END_TEST

START_TEST(rate_and_decay_of_a_group_are_those_of_a_run_that_has_them) {
    ck_assert(are_same(1, DOWN, PAIRS(PLAIN, "groups", DOWN ": decay 0"),
                       PAIRS(PLAIN, "weight_decay", "0")));
    ck_assert(!are_same(1, DOWN, PAIRS(PLAIN, "groups", DOWN ": decay 0"), PAIRS(PLAIN)));
    ck_assert(are_same(1, DOWN, PAIRS(PLAIN, "groups", DOWN ": lr_scale 0.5"),
                       PAIRS(PLAIN, "lr", "1.5e-3")));
    /* Vectors decay only where somebody says so. */
    ck_assert(are_same(1, NORM, PAIRS(PLAIN, "groups", NORM ": decay 0"), PAIRS(PLAIN)));
    ck_assert(!are_same(1, NORM, PAIRS(PLAIN, "groups", NORM ": decay 0.3"), PAIRS(PLAIN)));
    ck_assert(are_same(1, DOWN, PAIRS(PLAIN, "groups", NORM ": decay 0.3"), PAIRS(PLAIN)));
}
END_TEST

START_TEST(an_optimizer_of_a_group_makes_its_step) {
    const char *const *mixed = PAIRS(PLAIN, "groups", DOWN ": optimizer sgd");
    ck_assert(are_same(1, DOWN, mixed, PAIRS(PLAIN, "optimizer", "sgd")));
    ck_assert(!are_same(1, DOWN, mixed, PAIRS(PLAIN)));
    ck_assert(are_same(1, NORM, mixed, PAIRS(PLAIN)));
    /* And the other way round, which gives an array that SGD has not. */
    const char *const *other = PAIRS(PLAIN, "optimizer", "sgd", "groups", DOWN ": optimizer adamw");
    ck_assert(are_same(1, DOWN, other, PAIRS(PLAIN)));
    ck_assert(are_same(1, NORM, other, PAIRS(PLAIN, "optimizer", "sgd")));
}
END_TEST

/* What lies where, and when, changes no bit, whatever arrays a unit has. */
START_TEST(places_change_no_bit) {
    char folder[256];
    const char *const places[][6] = {
        {"optim_place", "pinned"},
        {"optim_place", "pinned", "weights_place", "pinned", "grads_place", "pinned"},
        {"optim_place", "disk", "offload_folder", folder},
        {"offload_strategy", "cpu"},
        {"update", "gather"}};
    const char *pairs[32] = {"groups",        MIXED, "predictor",    "outer", "full_steps", "4",
                             "correct_steps", "2",   "predict_from", "0",     "steps",      "30"};
    double here[20], there[20];
    temp_folder(folder);
    hy_trainer *t = small_trainer(RUN, "none", NULL, pairs);
    next_losses(t, 20, here);
    hy_trainer_destroy(t);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        memcpy(pairs + 12, places[i], sizeof places[i]);
        t = small_trainer(RUN, "none", NULL, pairs);
        next_losses(t, 20, there);
        ck_assert_msg(memcmp(here, there, sizeof here) == 0, "%s %s", places[i][0], places[i][1]);
        hy_trainer_destroy(t);
    }
    remove_folder(folder);
}
END_TEST

/* Groups place layers; measured bytes are the planned ones. */
START_TEST(places_by_name_change_no_bit) {
    char folder[256];
    static const char *const groups[] = {
        "blocks.0.*: place pinned",
        "embed.*: place cpu",
        "blocks.*: place pinned; blocks.1.*: optim_place device",
        "blocks.1.*: place disk",
        "*: weights_place pinned; final_norm.*, embed.*: weights_place device",
        "embed.*: optim_place pinned; blocks.0.*: grads_place disk",
        "*: place device",
    };
    const char *pairs[32] = {"precision",      "bf16",
                             "predictor",      "outer",
                             "full_steps",     "4",
                             "correct_steps",  "2",
                             "predict_from",   "0",
                             "steps",          "30",
                             "offload_folder", temp_folder(folder)};
    const char *const budgets[] = {"0", "6MiB"};
    double here[20], there[20];
    hy_trainer *t = small_trainer(RUN, "none", NULL, pairs);
    next_losses(t, 20, here);
    hy_trainer_destroy(t);
    for (size_t i = 0; i < 2 * sizeof groups / sizeof groups[0]; i++) {
        hy_summary summary;
        pairs[14] = "groups";
        pairs[15] = groups[i / 2];
        pairs[16] = "max_gpu_mem";
        pairs[17] = budgets[i % 2];
        t = small_trainer(RUN, "none", NULL, pairs);
        next_losses(t, 20, there);
        ck_assert_msg(memcmp(here, there, sizeof here) == 0, "%s", groups[i / 2]);
        hy_trainer_summary(t, &summary);
        for (int cls = HY_WEIGHTS; cls <= HY_OPTIM; cls++) {
            const hy_memory_cell *cell = &summary.phases[HY_FULL].memory[cls];
            ck_assert_msg(cell->planned_bytes == cell->measured_bytes, "%s: %s", groups[i / 2],
                          hy_class_name((hy_class)cls));
        }
        hy_trainer_destroy(t);
    }
    remove_folder(folder);
}
END_TEST

static void losses_of(const char *const *pairs, double out[5]) {
    hy_trainer *t = small_trainer(RUN, "none", NULL, pairs);
    next_losses(t, 5, out);
    hy_trainer_destroy(t);
}

/* A type by name for everything is the type of the run. */
START_TEST(types_by_name_are_those_of_a_run_that_has_them) {
    static const struct {
        const char *run[8], *named[10];
    } same[] = {
        {{PLAIN, "optim_dtype", "8bit"}, {PLAIN, "groups", "*: optim_dtype 8bit"}},
        {{PLAIN, "optim_dtype", "bf16"},
         {PLAIN, "optim_dtype", "8bit", "groups", "*: optim_dtype bf16"}},
        {{PLAIN, "train", "last:1", "frozen_dtype", "int8"},
         {PLAIN, "train", "last:1", "groups", "blocks.0.*: frozen_dtype int8"}},
        {{PLAIN, "train", "last:1"},
         {PLAIN, "train", "last:1", "frozen_dtype", "int8", "groups",
          "blocks.0.*: frozen_dtype auto"}},
        {{PLAIN, "precision", "bf16"},
         {PLAIN, "precision", "fp8", "groups", "blocks.*: precision bf16"}},
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        double run[5], named_ones[5];
        losses_of(same[i].run, run);
        losses_of(same[i].named, named_ones);
        ck_assert_msg(memcmp(run, named_ones, sizeof run) == 0, "case %zu", i);
    }
    double fp8[5], bf16[5], part[5];
    losses_of(PAIRS(PLAIN, "precision", "fp8"), fp8);
    losses_of(PAIRS(PLAIN, "precision", "bf16"), bf16);
    losses_of(PAIRS(PLAIN, "precision", "fp8", "groups", "blocks.0.*: precision bf16"), part);
    ck_assert_mem_ne(part, fp8, sizeof part);
    ck_assert_mem_ne(part, bf16, sizeof part);
}
END_TEST

START_TEST(places_and_types_that_the_run_cannot_have_are_refused) {
    static const char *const wrong[][6] = {
        {"optim_place", "pinned", "optim_place disk",
         "group 1 sets optim_place disk for blocks.0.norm1.weight, but optim_place of the run is "
         "pinned"},
        {"optimizer", "adafactor", "optim_dtype 8bit", "adafactor is always fp32; accepted: fp32"},
        {"precision", "fp32", "precision bf16", "but the run computes in fp32"},
        {"precision", "bf16", "precision fp8", "no matmul of the run uses fp8; accepted: bf16"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char groups[64];
        hy_trainer *t;
        snprintf(groups, sizeof groups, "blocks.0.*: %s", wrong[i][2]);
        hy_config *config =
            small_run(RUN, "none", PAIRS(PLAIN, wrong[i][0], wrong[i][1], "groups", groups));
        must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, wrong[i][3]);
        hy_config_destroy(config);
    }
}
END_TEST

START_TEST(frozen_is_what_train_leaves_out) {
    static const char *const types[] = {"auto", "int8"};
    for (int i = 0; i < 2; i++) {
        double frozen[6], left_out[6];
        hy_trainer *t = small_trainer(
            RUN, "none", NULL,
            PAIRS(PLAIN, "frozen_dtype", types[i], "groups", "embed.*, blocks.0.*: frozen"));
        next_losses(t, 6, frozen);
        hy_trainer_destroy(t);
        t = small_trainer(RUN, "none", NULL,
                          PAIRS(PLAIN, "frozen_dtype", types[i], "train", "last:1"));
        next_losses(t, 6, left_out);
        hy_trainer_destroy(t);
        ck_assert_mem_eq(frozen, left_out, sizeof frozen);
    }
}
END_TEST

/* ---- plans ----------------------------------------------------------------------------------- */

static uint64_t planned(hy_class cls, const char *const *pairs) {
    hy_trainer *t = plan_words(RUN, pairs);
    hy_summary summary;
    hy_trainer_summary(t, &summary);
    hy_trainer_destroy(t);
    return summary.phases[HY_FULL].memory[cls].planned_bytes;
}

START_TEST(plans_count_the_arrays_that_groups_have) {
    uint64_t all = planned(HY_OPTIM, PAIRS(PLAIN)), table = 256 * 32 * sizeof(float);
    ck_assert_uint_eq(planned(HY_OPTIM, PAIRS(PLAIN, "groups", "embed.*: optimizer sgd")),
                      all - table);
    ck_assert_uint_eq(planned(HY_OPTIM, PAIRS(PLAIN, "groups", "embed.*: frozen")),
                      all - 2 * table);
    ck_assert_uint_eq(planned(HY_GRADS, PAIRS(PLAIN, "groups", "embed.*: frozen")),
                      all / 2 - table);
    ck_assert_uint_eq(planned(HY_OPTIM, PAIRS(PLAIN, "groups", "*: optimizer sgd")), all / 2);
    ck_assert_uint_eq(
        planned(HY_OPTIM, PAIRS(PLAIN, "momentum", "0", "groups", "*: optimizer sgd")), 0);
    ck_assert_uint_eq(planned(HY_OPTIM, PAIRS(PLAIN, "groups", "*: lr_scale 2, decay 0")), all);
    ck_assert_uint_eq(planned(HY_OPTIM, PAIRS(PLAIN, "groups", "embed.*: optim_dtype bf16")),
                      all - table);
    ck_assert_uint_eq(planned(HY_OPTIM, PAIRS(PLAIN, "groups", "embed.*: place pinned")),
                      2 * table);
}
END_TEST

START_TEST(what_is_taken_is_what_was_planned) {
    double losses[2];
    hy_summary summary;
    hy_trainer *t = small_trainer(RUN, "none", NULL, PAIRS(PLAIN, "groups", MIXED));
    next_losses(t, 2, losses);
    hy_trainer_summary(t, &summary);
    for (int cls = HY_WEIGHTS; cls <= HY_OPTIM; cls++) {
        const hy_memory_cell *cell = &summary.phases[HY_WARMUP].memory[cls];
        ck_assert_uint_eq(cell->planned_bytes, cell->measured_bytes);
    }
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(a_plan_says_what_each_group_covers) {
    hy_trainer *t =
        plan_words(RUN, PAIRS("groups", "embed.*: decay 0, lr_scale 0.5; *norm*: frozen"));
    hy_group_info group;
    char *json;
    ck_assert(hy_trainer_group(t, 0, &group));
    ck_assert_str_eq(group.names, "embed.*");
    ck_assert_str_eq(group.changes, "lr_scale 0.5, decay 0");
    ck_assert_int_eq(group.parameters, 1);
    ck_assert_int_eq(group.elements, 256 * 32);
    ck_assert(hy_trainer_group(t, 1, &group));
    ck_assert_str_eq(group.changes, "frozen");
    ck_assert_int_eq(group.parameters, 5);
    ck_assert(!hy_trainer_group(t, 2, &group) && !hy_trainer_group(t, -1, &group));
    must(hy_trainer_plan_json(t, &json));
    ck_assert_ptr_nonnull(strstr(json, "\"names\": \"*norm*\""));
    hy_free(json);
    hy_trainer_destroy(t);
    t = plan_words(RUN, PAIRS(PLAIN));
    ck_assert(!hy_trainer_group(t, 0, &group));
    hy_trainer_destroy(t);
}
END_TEST

/* Slow weights in 8 bits are differences of bounded size. */
START_TEST(slow_weights_in_8_bits_know_the_groups) {
#define SMALL                                                                                      \
    "precision", "bf16", "precision_correct", "same", "master_dtype", "bf16", "predictor_dtype",   \
        "8bit"
    hy_trainer *t;
    hy_config *config = small_run(RUN, "none", PAIRS(SMALL, "groups", "embed.*: optimizer sgd"));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT,
              "the optimizer of embed.tokens.weight is sgd");
    hy_config_destroy(config);
    char folder[256];
    double exponent[2], losses[5];
    for (int i = 0; i < 2; i++) {
        t = small_trainer(RUN, temp_folder(folder), NULL,
                          PAIRS(SMALL, "groups", i ? "embed.*: lr_scale 8" : ""));
        next_losses(t, 5, losses);
        must(hy_trainer_save(t));
        exponent[i] = saved_number(folder, "slow_exponent");
        hy_trainer_destroy(t);
        remove_folder(folder);
    }
    ck_assert_double_lt(exponent[0], 0);
    ck_assert_double_eq(exponent[1], exponent[0] + 3);
}
END_TEST

START_TEST(state_that_is_divided_by_is_not_compressed) {
    hy_trainer *t;
    hy_config *config = small_run(RUN, "none",
                                  PAIRS("predictor", "outer", "offload_strategy", "compress",
                                        "groups", "blocks.0.*: optimizer adafactor"));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT,
              "uses adafactor, whose state stays fp32");
    hy_config_destroy(config);
}
END_TEST

/* ---- checkpoints ----------------------------------------------------------------------------- */

START_TEST(runs_with_groups_resume_to_the_same_bits) {
    check_resume(RUN, NULL, PAIRS(PLAIN, "groups", MIXED), 3, 5);
    check_resume(RUN, NULL, PAIRS(PLAIN, "groups", MIXED, "optim_dtype", "8bit"), 3, 5);
    check_resume(RUN, NULL, PAIRS(PLAIN, "groups", "embed.*: optimizer adamw", "optimizer", "sgd"),
                 3, 5);
    check_resume(RUN, NULL, PAIRS(PLAIN, "groups", BY_NAME, "optim_dtype", "8bit"), 3, 5);
    /* Each of these pairs has an array that the other has not. */
    static const char *const pairs[][2] = {{"adafactor", "embed.*: optimizer adamw"},
                                           {"adamw", "blocks.*: optimizer adafactor"},
                                           {"lion", "blocks.*: optimizer muon"},
                                           {"muon", "embed.*: optimizer adafactor"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        check_resume(RUN, NULL, PAIRS(PLAIN, "groups", pairs[i][1], "optimizer", pairs[i][0]), 3,
                     5);
    }
    check_resume(RUN, NULL,
                 PAIRS("groups", MIXED, "predictor", "outer", "full_steps", "4", "correct_steps",
                       "2", "predict_from", "0", "steps", "30"),
                 9, 15);
}
END_TEST

/* A run of three steps with some groups is gone on with by others. */
static void check_going_on(const char *before, const char *after, const char *words) {
    char folder[256];
    double losses[3];
    hy_trainer *t;
    temp_folder(folder);
    t = small_trainer(RUN, folder, NULL, PAIRS(PLAIN, "groups", before));
    next_losses(t, 3, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
    hy_config *config = small_run(RUN "resume auto ", folder, PAIRS(PLAIN, "groups", after));
    if (words) {
        must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, words);
    } else {
        must(hy_trainer_create(config, NULL, &t));
        next_losses(t, 2, losses);
        hy_trainer_destroy(t);
    }
    hy_config_destroy(config);
    remove_folder(folder);
}

START_TEST(rates_and_decays_may_change_and_state_may_not) {
    check_going_on("", "*: lr_scale 0.5, decay 0", NULL);
    check_going_on("embed.*: decay 0, optimizer sgd", "embed.*: optimizer sgd, lr_scale 3", NULL);
    check_going_on("", "embed.*: optimizer adamw", NULL); /* the run's */
    check_going_on("", "embed.*: optimizer sgd",
                   "the optimizer of embed.tokens.weight was adamw when this was saved and is sgd");
    check_going_on("embed.*: optimizer sgd", "", "was sgd when this was saved and is adamw now");
    check_going_on("", "embed.*: frozen",
                   "embed.tokens.weight was trained when this was saved and is frozen now");
    check_going_on("", "blocks.*: place pinned", NULL);
    check_going_on("blocks.0.*: place pinned", "embed.*: weights_place pinned", NULL);
    check_going_on("embed.*: frozen", "", "was frozen when this was saved and is trained now");
}
END_TEST

/* ---- models of the caller -------------------------------------------------------------------- */

/* The weights after some answers of a loop with these groups. */
static logistic own_after(int steps, const char *groups) {
    hy_config *config =
        config_with(KEYS("predictor", "none", "lr_warmup_steps", "0", "groups", groups));
    hy_loop_options options = {.parameters = {.list = parameters, .count = 2}};
    hy_loop *loop;
    learned = (logistic){{1, 1, 1, 1}, {1}};
    must(hy_loop_create(config, &options, NULL, &loop));
    for (int i = 0; i < steps; i++) {
        hy_loop_step step;
        must(hy_loop_next(loop, &step));
        gradient = nothing;
        double loss = loss_sum(&learned, 8 * step.batch, 8, step.loss_scale / 8, &gradient) / 8;
        must(hy_loop_answer(loop, loss, 8));
    }
    hy_loop_destroy(loop);
    hy_config_destroy(config);
    return learned;
}

START_TEST(custom_parameters_have_groups_by_their_names) {
    logistic plain = own_after(3, ""), still = own_after(3, "bi*: lr_scale 0");
    ck_assert_float_eq(still.bias[0], 1);
    ck_assert_float_ne(plain.bias[0], 1);
    ck_assert_float_ne(still.weights[0], 1);
    plain = own_after(1, "");
    logistic mixed = own_after(1, "weights: optimizer sgd, lr_scale 0.5");
    ck_assert_float_eq(mixed.bias[0], plain.bias[0]);
    ck_assert_float_ne(mixed.weights[0], plain.weights[0]);
    logistic all = own_after(1, "all: decay 0.5");
    ck_assert_float_ne(all.bias[0], plain.bias[0]);
    all = own_after(3, "all: optim_dtype bf16");
    plain = own_after(3, "");
    ck_assert_float_ne(all.weights[0], plain.weights[0]);
    plain = own_after(1, "");
    all = own_after(100, "bias: lr_scale 0.5; weights: decay 0.1");
    ck_assert_double_lt(held_out_loss(&all), held_out_loss(&plain));
}
END_TEST

START_TEST(unsupported_groups_of_custom_parameters_are_refused) {
    static const char *const wrong[][2] = {
        {"bias: frozen", "use lr_scale 0 to keep them unchanged"},
        {"embed.*: decay 0", "\"embed.*\" matches no parameter; the names are weights, bias"},
        {"last:1: decay 0", "\"last:1\" matches no parameter"},
        {"bias: place pinned", "group 1: place is not accepted for a custom model"},
        {"bias: precision bf16", "precision is not accepted for a custom model"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        hy_config *config = config_with(KEYS("groups", wrong[i][0]));
        hy_loop_options options = {.parameters = {.list = parameters, .count = 2}};
        hy_loop *loop;
        must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT, wrong[i][1]);
        hy_config_destroy(config);
    }
}
END_TEST

static Suite *groups_suite(void) {
    Suite *suite = suite_create("groups of parameters");
    TCase *tests = tcase_create("groups of parameters");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, a_text_is_read_as_it_is_written);
    tcase_add_test(tests, a_wrong_text_names_the_group_the_word_and_what_is_accepted);
    tcase_add_test(tests, long_texts_are_refused);
    tcase_add_test(tests, later_groups_win_for_what_they_say);
    tcase_add_test(tests, names_that_match_nothing_are_refused_with_names_that_are_there);
    tcase_add_test(tests, no_pattern_takes_long);
    tcase_add_test(tests, numbers_may_be_ranges);
    tcase_add_test(tests, places_are_for_whole_layers);
    tcase_add_test(tests, types_that_a_matrix_cannot_have_are_refused_by_its_name);
    tcase_add_test(tests, linear_attention_keeps_b_a_and_conv_whatever_a_group_of_blocks_says);
    tcase_add_test(tests, a_rate_of_zero_moves_nothing);
    tcase_add_test(tests, rate_and_decay_of_a_group_are_those_of_a_run_that_has_them);
    tcase_add_test(tests, an_optimizer_of_a_group_makes_its_step);
    tcase_add_test(tests, places_change_no_bit);
    tcase_add_test(tests, places_by_name_change_no_bit);
    tcase_add_test(tests, types_by_name_are_those_of_a_run_that_has_them);
    tcase_add_test(tests, places_and_types_that_the_run_cannot_have_are_refused);
    tcase_add_test(tests, frozen_is_what_train_leaves_out);
    tcase_add_test(tests, plans_count_the_arrays_that_groups_have);
    tcase_add_test(tests, what_is_taken_is_what_was_planned);
    tcase_add_test(tests, a_plan_says_what_each_group_covers);
    tcase_add_test(tests, state_that_is_divided_by_is_not_compressed);
    tcase_add_test(tests, slow_weights_in_8_bits_know_the_groups);
    tcase_add_test(tests, runs_with_groups_resume_to_the_same_bits);
    tcase_add_test(tests, rates_and_decays_may_change_and_state_may_not);
    tcase_add_test(tests, custom_parameters_have_groups_by_their_names);
    tcase_add_test(tests, unsupported_groups_of_custom_parameters_are_refused);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(groups_suite)
