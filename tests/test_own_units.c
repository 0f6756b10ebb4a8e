/* test_own_units.c: custom loops with weights and gradients that the library keeps, in units. */
#include "own_config.h"

#include <math.h>

#include "base/file.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "kernels/half.h"
#include "trainer/trainer.h"

#define UNITS 6
#define PARAMETERS (2 * UNITS)

static char folder[256];
static void set_up(void) { temp_folder(folder); }
static void tear_down(void) { remove_folder(folder); }

/* Unit u has a matrix and a vector; two are larger, as embeddings are, and one is small. */
static int64_t columns(int unit) {
    return unit == 1 || unit == UNITS - 1 ? 640 : unit == 0 ? 8 : 96;
}
static int64_t elements(int parameter) {
    return parameter % 2 ? columns(parameter / 2) : 16 * columns(parameter / 2);
}
static int64_t most_elements(void) { return elements(2); }

static const int32_t unit_of[PARAMETERS] = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5};

/* ---- a model: every weight follows a target that depends on the batch ------------------------ */

static float target(int64_t batch, int parameter, int64_t i) {
    uint64_t at = (uint64_t)(parameter * 100000 + i);
    double noise = hy_rng_uniform(2, HY_RNG_TEST, (uint64_t)batch * 2000003 + at);
    return (float)(hy_rng_uniform(1, HY_RNG_TEST, at) + 0.1 * noise);
}

static float first_weight(int parameter, int64_t i) {
    return (float)hy_rng_uniform(3, HY_RNG_TEST, (uint64_t)(parameter * 100000 + i)) - 0.5f;
}

typedef struct numbers {
    hy_dtype dtype;
    float (*get)(const void *at, int64_t i);
    void (*put)(void *at, int64_t i, float x);
} numbers;

static float get_f32(const void *at, int64_t i) { return ((const float *)at)[i]; }
static void put_f32(void *at, int64_t i, float x) { ((float *)at)[i] = x; }
static float get_bf16(const void *at, int64_t i) {
    return hy_bf16_to_f32(((const uint16_t *)at)[i]);
}
static void put_bf16(void *at, int64_t i, float x) { ((uint16_t *)at)[i] = hy_f32_to_bf16(x); }
static const numbers kinds[] = {{HY_F32, get_f32, put_f32}, {HY_BF16, get_bf16, put_bf16}};

/* Adds a parameter's part of the loss; `grads` may be NULL. */
static double visit(const numbers *n, int parameter, int64_t batch, const void *weights,
                    void *grads) {
    double sum = 0;
    for (int64_t i = 0; i < elements(parameter); i++) {
        float error = n->get(weights, i) - target(batch, parameter, i);
        sum += (double)error * error;
        if (grads) n->put(grads, i, error / 1024);
    }
    return sum / 2048;
}

/* ---- loops ----------------------------------------------------------------------------------- */

static void list_parameters(hy_parameter list[PARAMETERS], char names[PARAMETERS][16]) {
    for (int i = 0; i < PARAMETERS; i++) {
        snprintf(names[i], sizeof names[i], "%d.%s", i / 2, i % 2 ? "bias" : "weight");
        list[i] = (hy_parameter){.name = names[i], .ndim = i % 2 ? 1 : 2};
        list[i].shape[0] = i % 2 ? columns(i / 2) : 16;
        list[i].shape[1] = i % 2 ? 0 : columns(i / 2);
    }
}

static int64_t tokens_of(int64_t batch) { return 1 + batch % 3; }

/* The weights at the end, one parameter after another. */
typedef struct result {
    float weights[PARAMETERS][16 * 640];
    double loss;
} result;

/* In the caller's memory: what the others are compared with. */
static void train_outside(const numbers *n, const char *const *keys, result *out) {
    hy_parameter list[PARAMETERS];
    char names[PARAMETERS][16];
    hy_loop_options options = {.parameters = {.list = list,
                                              .count = PARAMETERS,
                                              .dtype = n->dtype,
                                              .grad_dtype = n->dtype,
                                              .sums_gradients = true}};
    hy_config *config = config_with(keys);
    hy_loop *loop;
    list_parameters(list, names);
    for (int i = 0; i < PARAMETERS; i++) {
        list[i].weights = calloc((size_t)elements(i), sizeof(float));
        list[i].grads = calloc((size_t)elements(i), sizeof(float));
        for (int64_t k = 0; k < elements(i); k++) n->put(list[i].weights, k, first_weight(i, k));
    }
    must(hy_loop_create(config, &options, NULL, &loop));
    for (hy_loop_step step; hy_loop_next(loop, &step) == HY_OK && !step.is_over;) {
        double loss = 0;
        for (int i = 0; i < PARAMETERS; i++) {
            bool wants = step.todo == HY_DO_GRADIENTS;
            loss += visit(n, i, step.batch, list[i].weights, wants ? list[i].grads : NULL);
        }
        must(hy_loop_answer(loop, loss, tokens_of(step.batch)));
        out->loss = loss;
    }
    hy_loop_destroy(loop);
    hy_config_destroy(config);
    for (int i = 0; i < PARAMETERS; i++) {
        for (int64_t k = 0; k < elements(i); k++) out->weights[i][k] = n->get(list[i].weights, k);
        free(list[i].weights);
        free(list[i].grads);
    }
}

static int64_t caller_bytes; /* of new loops */

static hy_loop *new_loop(const numbers *n, const char *const *keys) {
    hy_parameter list[PARAMETERS];
    char names[PARAMETERS][16];
    hy_loop_options options = {.parameters = {.list = list,
                                              .count = PARAMETERS,
                                              .dtype = n->dtype,
                                              .grad_dtype = n->dtype},
                               .unit_of = unit_of,
                               .caller_bytes = caller_bytes};
    hy_config *config = config_with(keys);
    hy_loop *loop;
    list_parameters(list, names);
    must(hy_loop_create(config, &options, NULL, &loop));
    hy_config_destroy(config);
    return loop;
}

static void write_weights(hy_loop *loop, const numbers *n) {
    void *buffer = calloc((size_t)most_elements(), sizeof(float));
    for (int i = 0; i < PARAMETERS; i++) {
        int64_t half = elements(i) / 2; /* in two pieces */
        size_t bytes = (size_t)half * (n->dtype == HY_F32 ? 4 : 2);
        for (int64_t k = 0; k < elements(i); k++) n->put(buffer, k, first_weight(i, k));
        must(hy_loop_write_weights(loop, i, half, elements(i) - half, (char *)buffer + bytes));
        must(hy_loop_write_weights(loop, i, 0, half, buffer));
    }
    free(buffer);
}

static void read_weights(hy_loop *loop, const numbers *n, result *out) {
    void *buffer = calloc((size_t)most_elements(), sizeof(float));
    for (int i = 0; i < PARAMETERS; i++) {
        must(hy_loop_read_weights(loop, i, 0, elements(i), buffer));
        for (int64_t k = 0; k < elements(i); k++) out->weights[i][k] = n->get(buffer, k);
    }
    free(buffer);
}

/* Forward: every unit is held once; backward: in the reverse order, and gradients are added. The
 * memory of gradients is the same for all units: it is overwritten after each call. */
static double answer_of(hy_loop *loop, const numbers *n, const hy_loop_step *step) {
    void *weights[2], *grads[2] = {calloc((size_t)most_elements(), sizeof(float)),
                                   calloc((size_t)most_elements(), sizeof(float))};
    double parts[PARAMETERS], loss = 0;
    void *small[2];
    must(hy_loop_hold(loop, 0, small)); /* during the whole pass */
    for (int unit = 0; unit < UNITS; unit++) {
        if (unit + 1 < UNITS) must(hy_loop_fetch(loop, unit + 1));
        must(hy_loop_hold(loop, unit, weights));
        for (int k = 0; k < 2; k++) {
            parts[2 * unit + k] = visit(n, 2 * unit + k, step->batch, weights[k], NULL);
        }
        must(hy_loop_release(loop, unit));
    }
    for (int unit = UNITS - 1; unit >= 0 && step->todo == HY_DO_GRADIENTS; unit--) {
        must(hy_loop_hold(loop, unit, weights));
        for (int k = 0; k < 2; k++) visit(n, 2 * unit + k, step->batch, weights[k], grads[k]);
        must(hy_loop_add_gradients(loop, unit, tokens_of(step->batch), grads));
        must(hy_loop_release(loop, unit));
    }
    must(hy_loop_release(loop, 0));
    for (int i = 0; i < PARAMETERS; i++) loss += parts[i];
    free(grads[0]);
    free(grads[1]);
    return loss;
}

static void answer(hy_loop *loop, const numbers *n, const hy_loop_step *step, result *out) {
    out->loss = answer_of(loop, n, step);
    must(hy_loop_answer(loop, out->loss, tokens_of(step->batch)));
}

static void run_on(hy_loop *loop, const numbers *n, result *out) {
    for (hy_loop_step step; hy_loop_next(loop, &step) == HY_OK && !step.is_over;) {
        answer(loop, n, &step, out);
    }
    read_weights(loop, n, out);
}

static void must_be_equal(const result *a, const result *b) {
    ck_assert_double_eq(a->loss, b->loss);
    for (int i = 0; i < PARAMETERS; i++) {
        ck_assert_mem_eq(a->weights[i], b->weights[i], (size_t)elements(i) * sizeof(float));
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Prediction is possible from the first step, whose weights the program writes in its question. */
#define COMMON                                                                                     \
    "predict_from", "0", "lr_warmup_steps", "0", "steps", "40", "lr", "0.02", "grad_accum_steps",  \
        "2", "grad_dtype", "fp32"

/* All classes of state at one place; nothing stays on the device. */
static const char *const *keys_of(int place, const char *predictor) {
    static const char *const places[] = {"device", "pinned", "disk"};
    static const char *keys[60];
    const char *const made[] = {COMMON,
                                "predictor",
                                predictor,
                                "weights_place",
                                places[place],
                                "grads_place",
                                places[place],
                                "optim_place",
                                places[place],
                                "cpu_mem",
                                "1GiB",
                                "max_gpu_mem",
                                "64MiB",
                                "resident_units",
                                "0",
                                "offload_folder",
                                folder,
                                "update",
                                place ? "gather" : "auto",
                                NULL};
    memcpy(keys, made, sizeof made);
    return keys;
}

static result wanted, found;

START_TEST(units_train_to_the_bits_of_weights_in_the_callers_memory) {
    const numbers *n = &kinds[_i % 2];
    int place = _i / 2 % 3;
    const char *predictor = _i / 6 ? "outer" : "none";
    train_outside(n, KEYS(COMMON, "predictor", predictor), &wanted);
    hy_loop *loop = new_loop(n, keys_of(place, predictor));
    write_weights(loop, n);
    run_on(loop, n, &found);
    must_be_equal(&wanted, &found);
    hy_loop_destroy(loop);
}
END_TEST

/* A plan of the stopped run, without its program, streams its weights, too. */
static void must_be_planned_in_units(const char *run) {
    hy_config *config = config_with(
        KEYS("resume", run, "weights_place", "pinned", "max_gpu_mem", "64MiB", "cpu_mem", "1GiB"));
    hy_trainer *plan;
    char *json;
    must(hy_trainer_plan(config, NULL, &plan));
    must(hy_trainer_plan_json(plan, &json));
    ck_assert_ptr_nonnull(strstr(json, "\"weights_place\": \"pinned\""));
    hy_free(json);
    hy_trainer_destroy(plan);
    hy_config_destroy(config);
}

START_TEST(a_stopped_run_continues_to_the_same_bits) {
    const numbers *n = &kinds[_i % 2];
    char out[300];
    snprintf(out, sizeof out, "%s/run", folder);
    hy_loop *loop = new_loop(n, KEYS(COMMON, "predictor", "none"));
    ck_assert(!hy_loop_is_resumed(loop));
    write_weights(loop, n);
    run_on(loop, n, &wanted);
    hy_loop_destroy(loop);
    loop = new_loop(n, KEYS(COMMON, "predictor", "none", "out", out));
    write_weights(loop, n);
    for (int i = 0; i < 33; i++) {
        hy_loop_step step;
        must(hy_loop_next(loop, &step));
        answer(loop, n, &step, &found);
    }
    must(hy_loop_stop(loop));
    hy_loop_destroy(loop);
    must_be_planned_in_units(out);
    loop = new_loop(n, KEYS(COMMON, "predictor", "none", "resume", out));
    ck_assert(hy_loop_is_resumed(loop));
    run_on(loop, n, &found);
    must_be_equal(&wanted, &found);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_unit_may_be_used_twice_or_not_at_all) {
    const numbers *n = &kinds[0];
    hy_loop *loop = new_loop(n, keys_of(1, "none"));
    void *weights[2], *again[2], *grads[2] = {calloc((size_t)most_elements(), 4), NULL};
    hy_loop_step step;
    write_weights(loop, n);
    read_weights(loop, n, &wanted);
    for (int i = 0; i < 2; i++) { /* both micro-batches of a step */
        must(hy_loop_next(loop, &step));
        must(hy_loop_hold(loop, 2, weights));
        must(hy_loop_hold(loop, 2, again));
        ck_assert_ptr_eq(weights[0], again[0]);
        for (int64_t k = 0; k < elements(4); k++) n->put(grads[0], k, 1);
        must(hy_loop_add_gradients(loop, 2, 1, grads)); /* the vector's are NULL: zero */
        must(hy_loop_release(loop, 2));
        must(hy_loop_add_gradients(loop, 2, 1, grads));
        must(hy_loop_release(loop, 2));
        must(hy_loop_answer(loop, 1, 1));
    }
    read_weights(loop, n, &found);
    for (int i = 0; i < PARAMETERS; i++) {
        bool has_changed = memcmp(wanted.weights[i], found.weights[i], 4) != 0;
        bool decays = i % 2 == 0;
        ck_assert_msg(i == 4 || decays || !has_changed, "parameter %d has changed", i);
    }
    ck_assert_float_lt(found.weights[4][0], wanted.weights[4][0] - 0.001f);
    free(grads[0]);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(wrong_use_is_refused) {
    const numbers *n = &kinds[0];
    hy_loop *loop = new_loop(n, KEYS(COMMON, "predictor", "none"));
    void *weights[2], *grads[2] = {NULL, NULL};
    float number = 0;
    write_weights(loop, n);
    must_fail(hy_loop_hold(loop, UNITS, weights), HY_ERR_INPUT, "unit 6 does not exist");
    must_fail(hy_loop_release(loop, 0), HY_ERR_STATE, "not held");
    must(hy_loop_hold(loop, 0, weights));
    must_fail(hy_loop_answer(loop, 1, 1), HY_ERR_STATE, "are held");
    must_fail(hy_loop_release(loop, 1), HY_ERR_STATE, "unit 1 is released, but not held");
    must_fail(hy_loop_save(loop), HY_ERR_STATE, "are held");
    must_fail(hy_loop_write_weights(loop, 0, 0, 1, &number), HY_ERR_STATE, "is held");
    must(hy_loop_release(loop, 0));
    must_fail(hy_loop_read_weights(loop, 0, elements(0), 1, &number), HY_ERR_INPUT, "do not exist");
    must(hy_loop_add_gradients(loop, 0, 2, grads));
    must_fail(hy_loop_add_gradients(loop, 1, 3, grads), HY_ERR_INPUT, "same number");
    must_fail(hy_loop_answer(loop, 1, 3), HY_ERR_INPUT, "added for 2");
    hy_loop_destroy(loop);
}
END_TEST

/* Large units share a buffer; afterwards everything works as before. */
START_TEST(two_large_units_cannot_be_held_together) {
    const numbers *n = &kinds[0];
    hy_loop *loop = new_loop(n, keys_of(1, "none"));
    void *weights[2];
    hy_loop_step step;
    write_weights(loop, n);
    must(hy_loop_hold(loop, 1, weights));
    must_fail(hy_loop_hold(loop, UNITS - 1, weights), HY_ERR_STATE, "release one of them");
    must(hy_loop_release(loop, 1));
    must(hy_loop_hold(loop, UNITS - 1, weights));
    must(hy_loop_release(loop, UNITS - 1));
    must(hy_loop_next(loop, &step));
    answer(loop, n, &step, &found);
    hy_loop_destroy(loop);
}
END_TEST

/* Also in a loop that was over when it was created. */
START_TEST(weights_can_be_held_after_the_run) {
    const numbers *n = &kinds[_i % 2];
    char out[300];
    snprintf(out, sizeof out, "%s/run", folder);
    hy_loop *loop = new_loop(n, KEYS(COMMON, "predictor", "none", "weights_place",
                                     _i < 2 ? "device" : "pinned", "out", out));
    write_weights(loop, n);
    run_on(loop, n, &wanted);
    for (int again = 0; again < 2; again++) {
        void *weights[2], *grads[2] = {NULL, NULL};
        for (int unit = 0; unit < UNITS; unit++) {
            must(hy_loop_hold(loop, unit, weights));
            for (int64_t k = 0; k < elements(2 * unit); k++)
                ck_assert_float_eq(n->get(weights[0], k), wanted.weights[2 * unit][k]);
            must_fail(hy_loop_add_gradients(loop, unit, 1, grads), HY_ERR_STATE, "the run is over");
            must(hy_loop_release(loop, unit));
        }
        hy_loop_destroy(loop);
        if (!again) loop = new_loop(n, KEYS(COMMON, "predictor", "none", "resume", out));
    }
}
END_TEST

START_TEST(a_plan_without_memory_is_that_of_the_loop) {
    const char *const *keys = KEYS(COMMON, "predictor", "none", "weights_place", "pinned",
                                   "max_gpu_mem", "64MiB", "cpu_mem", "1GiB");
    hy_parameter list[PARAMETERS];
    char names[PARAMETERS][16], *planned, *made;
    hy_loop_options options = {.parameters = {.list = list, .count = PARAMETERS},
                               .unit_of = unit_of};
    hy_config *config = config_with(keys);
    hy_trainer *plan;
    list_parameters(list, names);
    must_fail(hy_loop_plan(config, NULL, NULL, &plan), HY_ERR_INPUT, "one is NULL");
    must(hy_loop_plan(config, &options, NULL, &plan));
    must(hy_trainer_plan_json(plan, &planned));
    hy_trainer_destroy(plan);
    hy_loop *loop = new_loop(&kinds[0], keys);
    must(hy_trainer_plan_json(hy_loop_trainer(loop), &made));
    ck_assert_ptr_nonnull(strstr(planned, "\"weights_place\": \"pinned\""));
    ck_assert_str_eq(planned, made);
    hy_free(planned);
    hy_free(made);
    hy_loop_destroy(loop);
    hy_config_destroy(config);
}
END_TEST

START_TEST(wrong_units_are_refused) {
    static const int32_t lists[][2] = {{1, 1}, {0, 2}, {-1, 0}, {0, -1}};
    hy_parameter list[] = {{.name = "a", .ndim = 1, .shape = {4}},
                           {.name = "b", .ndim = 1, .shape = {4}}};
    hy_loop_options options = {.parameters = {.list = list, .count = 2}};
    hy_config *config = config_with(KEYS(COMMON, "predictor", "none"));
    float memory[4];
    hy_loop *loop;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        options.unit_of = lists[i];
        must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT,
                  "units count from 0");
    }
    options.unit_of = (const int32_t[]){0, 0};
    list[1].weights = memory;
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT, "must be NULL");
    hy_config_destroy(config);
}
END_TEST

/* ---- a caller's part of the device ----------------------------------------------------------- */

#define CARD (1 << 20)
#define ON_A_CARD COMMON, "predictor", "none", "max_gpu_mem", "1MiB", "cpu_mem", "1GiB"

static hy_plan_facts facts_of(hy_loop *loop) {
    hy_plan_facts facts;
    hy_trainer_plan_facts(hy_loop_trainer(loop), &facts);
    return facts;
}

/* All of a plan: the sum of the placement table, the budget, the reasons. */
static void must_be_whole(hy_loop *loop, uint64_t caller) {
    hy_plan_facts facts = facts_of(loop);
    hy_summary summary;
    bool has_reason = false;
    hy_trainer_summary(hy_loop_trainer(loop), &summary);
    const hy_phase_summary *full = &summary.phases[HY_FULL];
    ck_assert_uint_eq(facts.caller_bytes, caller);
    ck_assert_uint_eq(full->memory[HY_ACTIVATIONS].planned_bytes, caller);
    ck_assert_uint_eq(full->vram_planned_bytes, facts.vram_bytes);
    ck_assert_uint_le(facts.vram_bytes, CARD);
    for (int i = 0; i < facts.reason_count; i++) {
        has_reason |= strstr(facts.reasons[i], "the caller's passes") != NULL;
    }
    ck_assert(has_reason);
}

START_TEST(plans_that_change_during_a_run_keep_all_bits) {
    const numbers *n = &kinds[_i];
    static const int64_t needs[] = {600 << 10, 300 << 10, 700 << 10, -1, 500 << 10};
    hy_loop *loop = new_loop(n, keys_of(0, "none"));
    uint64_t before = 0;
    write_weights(loop, n);
    run_on(loop, n, &wanted);
    hy_loop_destroy(loop);
    caller_bytes = -1;
    loop = new_loop(n, KEYS(ON_A_CARD));
    must_be_whole(loop, 0);
    uint64_t lean = facts_of(loop).vram_bytes;
    write_weights(loop, n);
    for (hy_loop_step step; hy_loop_next(loop, &step) == HY_OK && !step.is_over;) {
        int64_t need = needs[step.step % 5];
        if (step.batch % 2 == 0 && step.step > 0) {
            must(hy_loop_plan_again(loop, need, 0));
            must_be_whole(loop, need < 0 ? 0 : (uint64_t)(need + need / 32));
            hy_plan_facts facts = facts_of(loop);
            uint64_t ours = facts.vram_bytes - facts.caller_bytes;
            ck_assert_uint_ge(ours, lean);
            if (need < 0) ck_assert_uint_eq(ours, lean);
            if (need == 300 << 10) ck_assert_uint_gt(ours, before);
            before = ours;
        }
        answer(loop, n, &step, &found);
    }
    read_weights(loop, n, &found);
    must_be_equal(&wanted, &found);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_plan_without_memory_counts_the_caller) {
    hy_parameter list[PARAMETERS];
    char names[PARAMETERS][16];
    hy_loop_options options = {.parameters = {.list = list, .count = PARAMETERS},
                               .unit_of = unit_of,
                               .caller_bytes = 320 << 10};
    hy_config *config = config_with(KEYS(ON_A_CARD));
    hy_trainer *plan;
    hy_plan_facts facts;
    list_parameters(list, names);
    must(hy_loop_plan(config, &options, NULL, &plan));
    hy_trainer_plan_facts(plan, &facts);
    ck_assert_uint_eq(facts.caller_bytes, 330 << 10);
    ck_assert_uint_le(facts.vram_bytes, CARD);
    hy_trainer_destroy(plan);
    options.caller_bytes = -2;
    must_fail(hy_loop_plan(config, &options, NULL, &plan), HY_ERR_INPUT, "caller_bytes is -2");
    hy_config_destroy(config);
}
END_TEST

START_TEST(a_measured_need_is_compared_with_the_plan) {
    const numbers *n = &kinds[0];
    caller_bytes = -1;
    hy_loop *loop = new_loop(n, KEYS(ON_A_CARD));
    hy_memory_state memory;
    hy_loop_step step;
    write_weights(loop, n);
    must(hy_loop_plan_again(loop, 320 << 10, 0));
    must(hy_loop_plan_again(loop, 325 << 10, 0)); /* within the margin: only noted */
    must_be_whole(loop, 330 << 10);
    must(hy_loop_next(loop, &step));
    answer(loop, n, &step, &found);
    must(hy_trainer_memory(hy_loop_trainer(loop), &memory));
    ck_assert_uint_eq(memory.classes[HY_ACTIVATIONS].planned, 330 << 10);
    ck_assert_uint_eq(memory.classes[HY_ACTIVATIONS].live[HY_DEVICE], 325 << 10);
    ck_assert_uint_le(memory.device.used, memory.device.planned);
    ck_assert_uint_ge(memory.device.used, memory.device.planned / 20 * 19);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_need_without_a_plan_leaves_the_loop_as_it_was) {
    const numbers *n = &kinds[_i];
    hy_loop *loop = new_loop(n, keys_of(0, "none"));
    write_weights(loop, n);
    run_on(loop, n, &wanted);
    hy_loop_destroy(loop);
    caller_bytes = 400 << 10;
    loop = new_loop(n, KEYS(ON_A_CARD));
    uint64_t was = facts_of(loop).vram_bytes;
    write_weights(loop, n);
    must_fail(hy_loop_plan_again(loop, CARD, 0), HY_ERR_MEMORY, "no plan fits beside");
    must_fail(hy_loop_plan_again(loop, CARD, 0), HY_ERR_MEMORY, "but max_gpu_mem is 1.0 MiB");
    ck_assert_uint_eq(facts_of(loop).vram_bytes, was);
    run_on(loop, n, &found);
    must_be_equal(&wanted, &found);
    must_fail(hy_loop_plan_again(loop, 0, 0), HY_ERR_STATE, "the run is over");
    hy_loop_destroy(loop);
}
END_TEST

/* ---- memory that is refused during a move ---------------------------------------------------- */

static struct {
    hy_status (*alloc)(hy_backend *, hy_place, uint64_t, void **);
    int until; /* the allocation that is refused */
} refusal;

static hy_status refuse_one(hy_backend *b, hy_place place, uint64_t bytes, void **out) {
    if (--refusal.until == 0) return hy_fail(HY_ERR_MEMORY, "refused by the test");
    return refusal.alloc(b, place, bytes, out);
}

/* Rows that have moved before the refusal move back, and a copy in 16 bits is made again. */
START_TEST(memory_that_is_refused_during_a_move_leaves_the_loop_as_it_was) {
    const numbers *n = &kinds[_i];
    hy_loop *loop = new_loop(n, keys_of(0, "none"));
    int refused = 0;
    write_weights(loop, n);
    run_on(loop, n, &wanted);
    hy_loop_destroy(loop);
    caller_bytes = -1;
    loop = new_loop(n, KEYS(ON_A_CARD, "recovery_tries", "0"));
    write_weights(loop, n);
    hy_backend *backend = hy_loop_trainer(loop)->engine->device.backend;
    uint64_t was = facts_of(loop).vram_bytes;
    refusal.alloc = backend->alloc;
    for (hy_loop_step step; hy_loop_next(loop, &step) == HY_OK && !step.is_over;) {
        if (step.batch % 2 == 0 && facts_of(loop).vram_bytes == was) {
            refusal.until = refused + 1;
            backend->alloc = refuse_one;
            hy_status status = hy_loop_plan_again(loop, 300 << 10, 0);
            backend->alloc = refusal.alloc;
            if (status != HY_OK) must_fail(status, HY_ERR_MEMORY, "refused by the test");
            refused += status != HY_OK;
            ck_assert_uint_eq(facts_of(loop).vram_bytes == was, status != HY_OK);
        }
        answer(loop, n, &step, &found);
    }
    ck_assert_int_ge(refused, 4);
    ck_assert_uint_ne(facts_of(loop).vram_bytes, was);
    read_weights(loop, n, &found);
    must_be_equal(&wanted, &found);
    hy_loop_destroy(loop);
}
END_TEST

/* The smallest limit that the run itself fits into leaves no room for two copies of a row. */
START_TEST(a_move_that_needs_more_host_memory_than_allowed_is_refused) {
    const numbers *n = &kinds[0];
    caller_bytes = -1;
    hy_loop *loop = new_loop(n, KEYS(ON_A_CARD));
    hy_plan_facts facts = facts_of(loop);
    hy_loop_destroy(loop);
    char limit[32];
    snprintf(limit, sizeof limit, "%llu",
             (unsigned long long)(facts.vram_bytes + facts.host_pinned_bytes + (16 << 10)));
    loop = new_loop(n, KEYS(ON_A_CARD, "cpu_mem", limit));
    write_weights(loop, n);
    facts = facts_of(loop);
    must_fail(hy_loop_plan_again(loop, 1 << 10, 0), HY_ERR_MEMORY, "of host memory for a while");
    ck_assert_uint_eq(facts_of(loop).vram_bytes, facts.vram_bytes);
    run_on(loop, n, &found);
    hy_loop_destroy(loop);
}
END_TEST

/* Rows of the old plan are not counted together with the caller's bytes in the new one. */
START_TEST(a_changed_plan_has_no_peak_that_never_was) {
    const numbers *n = &kinds[0];
    caller_bytes = 100 << 10;
    hy_loop *loop = new_loop(n, KEYS(ON_A_CARD));
    hy_memory_state memory;
    write_weights(loop, n);
    must(hy_loop_plan_again(loop, 700 << 10, 0));
    must(hy_trainer_memory(hy_loop_trainer(loop), &memory));
    ck_assert_uint_le(memory.device.peak, CARD);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_loop_with_a_held_unit_is_not_stopped) {
    const numbers *n = &kinds[0];
    char out[300];
    void *weights[2];
    hy_loop_step step;
    snprintf(out, sizeof out, "%s/run", folder);
    caller_bytes = 0;
    hy_loop *loop = new_loop(n, KEYS(COMMON, "predictor", "none", "out", out));
    write_weights(loop, n);
    while (hy_loop_next(loop, &step) == HY_OK && step.step == 0) answer(loop, n, &step, &found);
    must(hy_loop_hold(loop, 1, weights));
    must_fail(hy_loop_stop(loop), HY_ERR_STATE, "cannot stop while 1 unit(s) are held");
    must(hy_loop_release(loop, 1));
    must(hy_loop_stop(loop));
    hy_loop_destroy(loop);
    loop = new_loop(n, KEYS(COMMON, "predictor", "none", "resume", out));
    must(hy_loop_next(loop, &step));
    ck_assert_int_eq(step.step, 1);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_plan_changes_only_before_the_gradients_of_a_step) {
    const numbers *n = &kinds[0];
    void *weights[2], *grads[2] = {NULL, NULL};
    caller_bytes = -1;
    hy_loop *loop = new_loop(n, KEYS(ON_A_CARD));
    hy_loop_step step;
    write_weights(loop, n);
    must_fail(hy_loop_plan_again(loop, -2, 0), HY_ERR_INPUT, "-1");
    must(hy_loop_hold(loop, 0, weights));
    must_fail(hy_loop_plan_again(loop, 1, 0), HY_ERR_STATE, "are held");
    must(hy_loop_release(loop, 0));
    must(hy_loop_add_gradients(loop, 0, 1, grads));
    must_fail(hy_loop_plan_again(loop, 1, 0), HY_ERR_STATE, "gradients of the step");
    must(hy_loop_answer(loop, 1, 1));
    must_fail(hy_loop_plan_again(loop, 1, 0), HY_ERR_STATE, "gradients of the step");
    must(hy_loop_next(loop, &step));
    must(hy_loop_answer(loop, 1, 1));
    must(hy_loop_plan_again(loop, 1, 0));
    hy_loop_destroy(loop);
}
END_TEST

static void stop_after_a_step(hy_loop *loop) {
    hy_loop_step step;
    while (hy_loop_next(loop, &step) == HY_OK && step.step == 0) {
        answer(loop, &kinds[0], &step, &found);
    }
    must(hy_loop_stop(loop));
    hy_loop_destroy(loop);
}

START_TEST(a_resumed_run_begins_with_the_measured_plan) {
    const numbers *n = &kinds[0];
    char out[300];
    snprintf(out, sizeof out, "%s/run", folder);
    caller_bytes = -1;
    hy_loop *loop = new_loop(n, KEYS(ON_A_CARD, "out", out));
    write_weights(loop, n);
    must(hy_loop_plan_again(loop, 320 << 10, 0));
    uint64_t planned = facts_of(loop).vram_bytes;
    stop_after_a_step(loop);
    loop = new_loop(n, KEYS(ON_A_CARD, "resume", out));
    must_be_whole(loop, 330 << 10);
    ck_assert_uint_eq(facts_of(loop).vram_bytes, planned);
    hy_loop_destroy(loop);
    /* A smaller card has no room for it: its passes are measured again. */
    loop = new_loop(n, KEYS(ON_A_CARD, "max_gpu_mem", "500KiB", "resume", out));
    must_be_whole(loop, 0);
    hy_loop_destroy(loop);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("own_units");
    TCase *tests = tcase_create("own_units");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_loop_test(tests, units_train_to_the_bits_of_weights_in_the_callers_memory, 0, 12);
    tcase_add_loop_test(tests, a_stopped_run_continues_to_the_same_bits, 0, 2);
    tcase_add_test(tests, a_unit_may_be_used_twice_or_not_at_all);
    tcase_add_test(tests, wrong_use_is_refused);
    tcase_add_test(tests, two_large_units_cannot_be_held_together);
    tcase_add_loop_test(tests, weights_can_be_held_after_the_run, 0, 4);
    tcase_add_test(tests, a_plan_without_memory_is_that_of_the_loop);
    tcase_add_test(tests, wrong_units_are_refused);
    tcase_add_loop_test(tests, plans_that_change_during_a_run_keep_all_bits, 0, 2);
    tcase_add_test(tests, a_plan_without_memory_counts_the_caller);
    tcase_add_test(tests, a_measured_need_is_compared_with_the_plan);
    tcase_add_loop_test(tests, a_need_without_a_plan_leaves_the_loop_as_it_was, 0, 2);
    tcase_add_loop_test(tests, memory_that_is_refused_during_a_move_leaves_the_loop_as_it_was, 0,
                        2);
    tcase_add_test(tests, a_move_that_needs_more_host_memory_than_allowed_is_refused);
    tcase_add_test(tests, a_changed_plan_has_no_peak_that_never_was);
    tcase_add_test(tests, a_loop_with_a_held_unit_is_not_stopped);
    tcase_add_test(tests, a_plan_changes_only_before_the_gradients_of_a_step);
    tcase_add_test(tests, a_resumed_run_begins_with_the_measured_plan);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
