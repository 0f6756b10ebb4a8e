/* test_own_frozen.c: custom loops with frozen parameters that the library keeps, plain or quantised.
 *
 * Every trained weight follows a frozen one, so each bit of the frozen weights is in the results. The
 * reference is a loop over the trained parameters alone, in the caller's memory; its frozen numbers
 * are arrays here, which are quantised and decoded by the functions for models of ours. */
#include "own_config.h"

#include "base/rng.h"
#include "kernels/coded.h"
#include "kernels/half.h"
#include "model/coding.h"

#define WIDTH 128
#define ROWS 24
#define COUNT 10
#define UNITS 5
#define TABLE_ROWS 160

static char folder[256];
static void set_up(void) { temp_folder(folder); }
static void tear_down(void) { remove_folder(folder); }

/* Unit 0 is frozen as a whole and large, unit 2 is a frozen block, unit 4 is trained. */
static const struct {
    const char *name;
    int32_t unit, rows; /* 0 rows: a vector */
    bool is_frozen;
} parts[COUNT] = {{"embed.weight", 0, TABLE_ROWS, true},
                  {"1.weight", 1, ROWS, true},
                  {"1.norm", 1, 0, true},
                  {"1.lora", 1, ROWS, false},
                  {"2.weight", 2, ROWS, true},
                  {"2.norm", 2, 0, true},
                  {"3.lora", 3, ROWS, false},
                  {"3.weight", 3, ROWS, true},
                  {"3.norm", 3, 0, true},
                  {"tail", 4, 0, false}};

static int64_t elements(int i) { return (parts[i].rows ? parts[i].rows : 1) * WIDTH; }
static bool is_matrix(int i) { return parts[i].is_frozen && parts[i].rows == ROWS; }

/* ---- numbers --------------------------------------------------------------------------------- */

static float get(hy_dtype dtype, const void *at, int64_t i) {
    return dtype == HY_F32 ? ((const float *)at)[i] : hy_bf16_to_f32(((const uint16_t *)at)[i]);
}
static void put(hy_dtype dtype, void *at, int64_t i, float x) {
    if (dtype == HY_F32) {
        ((float *)at)[i] = x;
    } else {
        ((uint16_t *)at)[i] = hy_f32_to_bf16(x);
    }
}

static float first_weight(int parameter, int64_t i) {
    return (float)hy_rng_uniform(3, HY_RNG_TEST, (uint64_t)(parameter * 100000 + i)) - 0.5f;
}

typedef struct types {
    hy_dtype trained, frozen;
    const char *stored; /* frozen_dtype */
    hy_dtype codes;
    bool has_plain_scales;
} types;

static hy_status read_given(void *context, int64_t first, int64_t count, float *out) {
    memcpy(out, (const float *)context + first, (size_t)count * sizeof *out);
    return HY_OK;
}

/* What passes read of a frozen parameter: quantised, decoded and rounded to the caller's type. */
static void expect_frozen(const types *t, int parameter, float *out) {
    hy_param param = {
        .ndim = 2, .shape = {ROWS, WIDTH}, .count = ROWS * WIDTH, .stored = ROWS * WIDTH};
    hy_params params = {.list = &param, .count = 1, .has_plain_scales = t->has_plain_scales};
    for (int64_t i = 0; i < elements(parameter); i++) {
        put(t->frozen, out, i, first_weight(parameter, i));
    }
    for (int64_t i = elements(parameter) - 1; i >= 0; i--) out[i] = get(t->frozen, out, i);
    if (t->codes == HY_F32 || !is_matrix(parameter)) return;
    hy_layout_item item = hy_params_item(&params, 0, t->codes);
    char *memory = malloc(hy_layout_item_bytes(&item));
    hy_coding_source from = {.context = out, .read = read_given};
    must(hy_coding_run(&param, &item, &from, &(hy_coding_target){.memory = memory}));
    hy_tensor tensor = hy_tensor_1d(memory, t->codes, param.count);
    tensor.quant.block = item.block;
    tensor.quant.group = item.group;
    tensor.quant.scale = (float *)(void *)(memory + hy_layout_scales_at(&item));
    for (int64_t at = 0; at < param.count; at += item.block) {
        float scale = hy_coded_scale_at(&tensor, at / item.block), *block = out + at;
        const char *codes = memory + hy_dtype_bytes(t->codes, at);
        hy_coded_decode(t->codes, codes, 0, item.block, item.block, &scale, block);
        for (int64_t i = 0; i < item.block && t->frozen != HY_F32; i++) {
            block[i] = hy_bf16_to_f32(hy_f32_to_bf16(block[i]));
        }
    }
    free(memory);
}

/* ---- a model --------------------------------------------------------------------------------- */

/* Every trained weight follows the sum of one weight of each frozen parameter. */
static double visit(const types *t, int parameter, int64_t batch, const void *weights,
                    const float *goal, void *grads) {
    double sum = 0;
    for (int64_t i = 0; i < elements(parameter); i++) {
        double noise = hy_rng_uniform(2, HY_RNG_TEST, (uint64_t)(batch * 20011 + i));
        float error = get(t->trained, weights, i) - goal[i % (ROWS * WIDTH)] - (float)noise * 0.1f;
        sum += (double)error * error;
        if (grads) put(t->trained, grads, i, error / 64);
    }
    return sum / 2048;
}

static void add_frozen(hy_dtype dtype, int parameter, const void *weights, float *goal) {
    for (int64_t i = 0; i < ROWS * WIDTH; i++) {
        goal[i] += get(dtype, weights, i % elements(parameter));
    }
}

typedef struct result {
    float weights[COUNT][TABLE_ROWS * WIDTH];
    double loss;
} result;
static result wanted, found;

#define COMMON                                                                                     \
    "predictor", "none", "lr_warmup_steps", "0", "steps", "6", "lr", "0.02", "grad_dtype", "fp32"

/* ---- loops ----------------------------------------------------------------------------------- */

static int list_parameters(const types *t, bool has_frozen, hy_parameter list[COUNT]) {
    int count = 0;
    for (int i = 0; i < COUNT; i++) {
        if (parts[i].is_frozen && !has_frozen) continue;
        hy_parameter *p = &list[count++];
        *p = (hy_parameter){.name = parts[i].name, .ndim = parts[i].rows ? 2 : 1};
        p->shape[0] = parts[i].rows ? parts[i].rows : WIDTH;
        p->shape[1] = WIDTH;
        p->is_frozen = parts[i].is_frozen;
        p->dtype = t->frozen;
    }
    return count;
}

static void train_outside(const types *t) {
    hy_parameter list[COUNT];
    hy_loop_options options = {
        .parameters = {
            .list = list, .dtype = t->trained, .grad_dtype = t->trained, .sums_gradients = true}};
    hy_config *config = config_with(KEYS(COMMON));
    float goal[ROWS * WIDTH] = {0};
    hy_loop *loop;
    int count = options.parameters.count = list_parameters(t, false, list);
    for (int i = 0, k = 0; i < COUNT; i++) {
        if (parts[i].is_frozen) {
            expect_frozen(t, i, wanted.weights[i]);
            add_frozen(HY_F32, i, wanted.weights[i], goal);
            continue;
        }
        list[k].weights = calloc((size_t)elements(i), sizeof(float));
        list[k].grads = calloc((size_t)elements(i), sizeof(float));
        for (int64_t j = 0; j < elements(i); j++)
            put(t->trained, list[k].weights, j, first_weight(i, j));
        k++;
    }
    must(hy_loop_create(config, &options, NULL, &loop));
    for (hy_loop_step step; hy_loop_next(loop, &step) == HY_OK && !step.is_over;) {
        wanted.loss = 0;
        for (int i = 0, k = 0; i < COUNT; i++) {
            if (parts[i].is_frozen) continue;
            wanted.loss += visit(t, i, step.batch, list[k].weights, goal, list[k].grads);
            k++;
        }
        must(hy_loop_answer(loop, wanted.loss, 1));
    }
    hy_loop_destroy(loop);
    hy_config_destroy(config);
    for (int i = 0, k = 0; i < COUNT && k < count; i++) {
        if (parts[i].is_frozen) continue;
        for (int64_t j = 0; j < elements(i); j++)
            wanted.weights[i][j] = get(t->trained, list[k].weights, j);
        free(list[k].weights);
        free(list[k].grads);
        k++;
    }
}

static hy_status try_loop(const types *t, const char *const *keys, hy_loop **out) {
    static int32_t unit_of[COUNT];
    hy_parameter list[COUNT];
    hy_loop_options options = {
        .parameters = {.list = list, .dtype = t->trained, .grad_dtype = t->trained},
        .unit_of = unit_of};
    hy_config *config = config_with(keys);
    options.parameters.count = list_parameters(t, true, list);
    for (int i = 0; i < COUNT; i++) unit_of[i] = parts[i].unit;
    hy_status status = hy_loop_create(config, &options, NULL, out);
    hy_config_destroy(config);
    return status;
}

static hy_loop *new_loop(const types *t, const char *const *keys) {
    hy_loop *loop;
    must(try_loop(t, keys, &loop));
    return loop;
}

static void write_weights(hy_loop *loop, const types *t, bool only_frozen) {
    static float buffer[TABLE_ROWS * WIDTH];
    for (int i = 0; i < COUNT; i++) {
        hy_dtype dtype = parts[i].is_frozen ? t->frozen : t->trained;
        int64_t half = is_matrix(i) ? elements(i) : elements(i) / 2; /* others in two pieces */
        size_t bytes = (size_t)half * (dtype == HY_F32 ? 4 : 2);
        if (only_frozen && !parts[i].is_frozen) continue;
        for (int64_t k = 0; k < elements(i); k++) put(dtype, buffer, k, first_weight(i, k));
        must(hy_loop_write_weights(loop, i, 0, half, buffer));
        if (half == elements(i)) continue;
        must(hy_loop_write_weights(loop, i, half, elements(i) - half, (char *)buffer + bytes));
    }
}

static void read_weights(hy_loop *loop, const types *t) {
    static float buffer[TABLE_ROWS * WIDTH];
    for (int i = 0; i < COUNT; i++) {
        hy_dtype dtype = parts[i].is_frozen ? t->frozen : t->trained;
        int64_t half = elements(i) / 2;
        size_t bytes = (size_t)half * (dtype == HY_F32 ? 4 : 2);
        must(hy_loop_read_weights(loop, i, 0, half, buffer));
        must(hy_loop_read_weights(loop, i, half, elements(i) - half, (char *)buffer + bytes));
        for (int64_t k = 0; k < elements(i); k++) found.weights[i][k] = get(dtype, buffer, k);
    }
}

/* Forward reads the frozen weights, backward the trained ones, one unit at a time. */
static void answer(hy_loop *loop, const types *t, const hy_loop_step *step) {
    static float grads[3][ROWS * WIDTH];
    float goal[ROWS * WIDTH] = {0};
    double losses[COUNT] = {0};
    void *weights[3], *given[3] = {grads[0], grads[1], grads[2]};
    int i = 0;
    for (int unit = 0; unit < UNITS; unit++) {
        if (unit + 1 < UNITS) must(hy_loop_fetch(loop, unit + 1));
        must(hy_loop_hold(loop, unit, weights));
        for (int k = 0; i < COUNT && parts[i].unit == unit; i++, k++) {
            if (parts[i].is_frozen) add_frozen(t->frozen, i, weights[k], goal);
        }
        must(hy_loop_release(loop, unit));
    }
    for (int unit = UNITS - 1; unit >= 0; unit--) {
        must(hy_loop_hold(loop, unit, weights));
        while (i > 0 && parts[i - 1].unit == unit) i--;
        for (int k = 0; i + k < COUNT && parts[i + k].unit == unit; k++) {
            if (parts[i + k].is_frozen) continue; /* its entry is not read */
            losses[i + k] = visit(t, i + k, step->batch, weights[k], goal, grads[k]);
        }
        must(hy_loop_add_gradients(loop, unit, 1, given));
        must(hy_loop_release(loop, unit));
    }
    found.loss = 0;
    for (i = 0; i < COUNT; i++) found.loss += losses[i];
    must(hy_loop_answer(loop, found.loss, 1));
}

static void run_on(hy_loop *loop, const types *t) {
    for (hy_loop_step step; hy_loop_next(loop, &step) == HY_OK && !step.is_over;)
        answer(loop, t, &step);
    read_weights(loop, t);
}

static void must_be_equal(void) {
    ck_assert_double_eq(wanted.loss, found.loss);
    for (int i = 0; i < COUNT; i++) {
        ck_assert_msg(
            memcmp(wanted.weights[i], found.weights[i], (size_t)elements(i) * sizeof(float)) == 0,
            "%s has other bits", parts[i].name);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const types kinds[] = {
    {HY_F32, HY_F32, "auto", HY_F32, false},      {HY_F32, HY_F32, "int8", HY_I8, false},
    {HY_F32, HY_F32, "nf4", HY_NF4, false},       {HY_F32, HY_F32, "fp8", HY_E4M3, false},
    {HY_F32, HY_F32, "nf4_single", HY_NF4, true}, {HY_BF16, HY_BF16, "auto", HY_F32, false},
    {HY_BF16, HY_BF16, "nf4", HY_NF4, false},     {HY_F32, HY_BF16, "auto", HY_F32, false},
    {HY_F32, HY_BF16, "int8", HY_I8, false},      {HY_F32, HY_BF16, "nf4", HY_NF4, false}};
#define KINDS ((int)(sizeof kinds / sizeof kinds[0]))

static const char *const *keys_of(const types *t, int place) {
    static const char *const places[] = {"device", "pinned", "disk"};
    static const char *keys[40];
    const char *where = places[place];
    const char *const made[] = {
        COMMON,  "frozen_dtype",   t->stored, "weights_place",  where,  "grads_place",
        where,   "optim_place",    where,     "cpu_mem",        "1GiB", "max_gpu_mem",
        "64MiB", "resident_units", "0",       "offload_folder", folder, NULL};
    memcpy(keys, made, sizeof made);
    return keys;
}

START_TEST(frozen_parameters_give_the_bits_of_their_decoded_values_at_every_place) {
    const types *t = &kinds[_i / 3];
    train_outside(t);
    hy_loop *loop = new_loop(t, keys_of(t, _i % 3));
    write_weights(loop, t, false);
    run_on(loop, t);
    must_be_equal();
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_resumed_run_gets_its_frozen_weights_from_the_caller) {
    const types *t = &kinds[_i ? 2 : 0];
    char out[300];
    void *weights[3];
    hy_trainer *plan;
    snprintf(out, sizeof out, "%s/run", folder);
    train_outside(t);
    hy_loop *loop = new_loop(t, KEYS(COMMON, "frozen_dtype", t->stored, "out", out));
    write_weights(loop, t, false);
    for (int i = 0; i < 3; i++) {
        hy_loop_step step;
        must(hy_loop_next(loop, &step));
        answer(loop, t, &step);
    }
    must(hy_loop_stop(loop));
    hy_loop_destroy(loop);
    hy_config *config = config_with(KEYS("resume", out));
    must_fail(hy_trainer_plan(config, NULL, &plan), HY_ERR_INPUT, "frozen parameters");
    hy_config_destroy(config);
    loop = new_loop(t, KEYS(COMMON, "frozen_dtype", t->stored, "resume", out));
    ck_assert(hy_loop_is_resumed(loop));
    must_fail(hy_loop_hold(loop, 0, weights), HY_ERR_STATE, "embed.weight has no weights");
    write_weights(loop, t, true);
    run_on(loop, t);
    must_be_equal();
    hy_loop_destroy(loop);
}
END_TEST

/* Another type of frozen weights is another function. */
START_TEST(a_run_does_not_continue_with_another_type_of_frozen_weights) {
    static const struct {
        types now;
        const char *message;
    } others[] = {{{HY_F32, HY_F32, "int8", HY_I8, false}, "1.weight was stored in nf4 of fp32"},
                  {{HY_F32, HY_F32, "nf4_single", HY_NF4, true}, "and in nf4_single of fp32 now"},
                  {{HY_F32, HY_BF16, "nf4", HY_NF4, false}, "embed.weight was stored in fp32"}};
    const types *t = &kinds[2];
    char out[300];
    hy_loop_step step;
    snprintf(out, sizeof out, "%s/run", folder);
    hy_loop *loop = new_loop(t, KEYS(COMMON, "frozen_dtype", t->stored, "out", out));
    write_weights(loop, t, false);
    must(hy_loop_next(loop, &step));
    answer(loop, t, &step);
    must(hy_loop_stop(loop));
    hy_loop_destroy(loop);
    for (int i = 0; i < 3; i++) {
        const types *now = &others[i].now;
        must_fail(try_loop(now, KEYS(COMMON, "frozen_dtype", now->stored, "resume", out), &loop),
                  HY_ERR_INPUT, others[i].message);
    }
}
END_TEST

START_TEST(weights_that_were_written_in_part_are_not_used) {
    const types *t = &kinds[2];
    float numbers[ROWS * WIDTH] = {0};
    void *weights[3];
    hy_loop *loop = new_loop(t, keys_of(t, 0));
    for (int i = 0; i < 2; i++) /* the same half twice is not the whole */
        must(hy_loop_write_weights(loop, 2, 0, WIDTH / 2, numbers));
    must_fail(hy_loop_write_weights(loop, 2, WIDTH - 1, 1, numbers), HY_ERR_INPUT,
              "the first 64 are all that was written");
    must_fail(hy_loop_read_weights(loop, 2, 0, 1, numbers), HY_ERR_STATE, "1.norm has no weights");
    write_weights(loop, t, false);
    must_fail(hy_loop_write_weights(loop, 1, 0, WIDTH, numbers), HY_ERR_INPUT, "in one call");
    must(hy_loop_hold(loop, 1, weights)); /* nothing was written */
    must(hy_loop_release(loop, 1));
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(new_frozen_weights_replace_the_decoded_ones) {
    const types *t = &kinds[2];
    static float buffer[TABLE_ROWS * WIDTH];
    hy_loop *loop = new_loop(t, keys_of(t, 1));
    write_weights(loop, t, false);
    read_weights(loop, t);
    must(hy_loop_write_weights(loop, 1, 0, elements(1), buffer)); /* zeros */
    read_weights(loop, t);
    for (int64_t k = 0; k < elements(1); k++) ck_assert_float_eq(found.weights[1][k], 0);
    ck_assert_float_ne(found.weights[4][0] + found.weights[4][2], 0);
    hy_loop_destroy(loop);
}
END_TEST

/* The plan counts frozen weights once, in their storage type, and buffers for decoded units. */
START_TEST(the_plan_has_the_bytes_of_frozen_weights) {
    uint64_t pinned[2];
    for (int i = 0; i < 2; i++) {
        const types *t = &kinds[i ? 2 : 0];
        hy_loop *loop = new_loop(t, keys_of(t, 1));
        hy_plan_facts facts;
        hy_trainer_plan_facts(hy_loop_trainer(loop), &facts);
        pinned[i] = facts.host_pinned_bytes;
        hy_memory_state memory;
        must(hy_trainer_memory(hy_loop_trainer(loop), &memory));
        ck_assert_uint_eq(memory.device.reserved, facts.vram_bytes); /* as planned */
        ck_assert_uint_eq(memory.host_pinned, facts.host_pinned_bytes);
        hy_loop_destroy(loop);
    }
    uint64_t saved = 3 * ROWS * WIDTH * 4 * 7 / 8; /* nf4 takes an eighth, and its scales */
    ck_assert_uint_lt(pinned[1], pinned[0] - saved * 9 / 10);
}
END_TEST

static void keep_warning(void *user, hy_message_level level, const char *text) {
    if (level == HY_WARNING) snprintf(user, 300, "%s", text);
}

START_TEST(a_type_that_no_parameter_has_is_reported) {
    char warning[300] = "";
    hy_parameter list[] = {{.name = "a", .ndim = 1, .shape = {64}, .is_frozen = true},
                           {.name = "b", .ndim = 1, .shape = {4}}};
    hy_loop_options options = {.parameters = {.list = list, .count = 2},
                               .unit_of = (const int32_t[]){0, 0}};
    hy_observer observer = {.user = warning, .on_message = keep_warning};
    hy_config *config = config_with(KEYS(COMMON, "frozen_dtype", "nf4"));
    hy_loop *loop;
    must(hy_loop_create(config, &options, &observer, &loop));
    ck_assert_ptr_nonnull(strstr(warning, "frozen_dtype is nf4, but no parameter"));
    hy_loop_destroy(loop);
    hy_config_destroy(config);
}
END_TEST

START_TEST(wrong_use_is_refused) {
    const types *t = &kinds[2];
    hy_parameter list[] = {{.name = "a", .ndim = 1, .shape = {4}, .is_frozen = true},
                           {.name = "b", .ndim = 1, .shape = {4}}};
    hy_loop_options options = {.parameters = {.list = list, .count = 2}};
    hy_config *config = config_with(KEYS(COMMON));
    float numbers[ROWS * WIDTH] = {0}, memory[2][4];
    void *weights[3];
    hy_loop *loop;
    for (int i = 0; i < 2; i++) list[i].weights = list[i].grads = memory[i];
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT, "a is frozen; without");
    for (int i = 0; i < 2; i++) list[i].weights = list[i].grads = NULL;
    options.unit_of = (const int32_t[]){0, 0};
    list[0].dtype = HY_I8;
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT, "type of a has");
    list[0].dtype = HY_F32;
    list[1].is_frozen = true;
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT, "all parameters are");
    hy_config_destroy(config);
    loop = new_loop(t, keys_of(t, 0));
    must_fail(hy_loop_hold(loop, 1, weights), HY_ERR_STATE, "1.weight has no weights");
    must_fail(hy_loop_read_weights(loop, 1, 0, 1, numbers), HY_ERR_STATE, "has no weights");
    must_fail(hy_loop_write_weights(loop, 1, 0, WIDTH, numbers), HY_ERR_INPUT,
              "stored in nf4; write all its 3072 elements");
    write_weights(loop, t, false);
    ck_assert(hy_loop_stays(loop, 0) && hy_loop_stays(loop, 4));
    ck_assert(!hy_loop_stays(loop, 1)); /* on the device, but decoded in a ring */
    must(hy_loop_hold(loop, 1, weights));
    must(hy_loop_hold(loop, 2, weights));
    must_fail(hy_loop_hold(loop, 3, weights), HY_ERR_STATE, "release one of them");
    must(hy_loop_release(loop, 1));
    must(hy_loop_hold(loop, 3, weights));
    hy_loop_destroy(loop);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("own_frozen");
    TCase *tests = tcase_create("own_frozen");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_loop_test(tests,
                        frozen_parameters_give_the_bits_of_their_decoded_values_at_every_place, 0,
                        3 * KINDS);
    tcase_add_loop_test(tests, a_resumed_run_gets_its_frozen_weights_from_the_caller, 0, 2);
    tcase_add_test(tests, a_run_does_not_continue_with_another_type_of_frozen_weights);
    tcase_add_test(tests, weights_that_were_written_in_part_are_not_used);
    tcase_add_test(tests, new_frozen_weights_replace_the_decoded_ones);
    tcase_add_test(tests, the_plan_has_the_bytes_of_frozen_weights);
    tcase_add_test(tests, a_type_that_no_parameter_has_is_reported);
    tcase_add_test(tests, wrong_use_is_refused);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
