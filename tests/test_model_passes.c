/* test_model_passes.c: keeping, recomputing or offloading activations, and rings of any depth,
 * change no bit; bytes are as planned; hooks are called in order. */
#include "pass_rig.h"

#include "model/batch_memory.h"

static const int groups[] = {0,
                             HY_KEEP_CHEAP,
                             HY_KEEP_CHEAP | HY_KEEP_ATTENTION,
                             HY_KEEP_CHEAP | HY_KEEP_MLP,
                             HY_KEEP_RESIDUAL,
                             HY_KEEP_ALL};
#define GROUPS ((int)(sizeof groups / sizeof groups[0]))

static void compare_with_plain(const pass_rig *plain, const pass_choice *c) {
    pass_rig other;
    char what[160];
    snprintf(what, sizeof what,
             "recompute %d in %d layers, offload %d with %d buffers, rings of %d", c->recompute,
             c->recompute_layers, c->offloads, c->offload_depth, c->state_depth);
    pass_open(&other, c);
    pass_step(&other, 0, NULL);
    pass_settle(&other);
    pass_compare(plain, &other, what);
    pass_close(&other);
}

static void open_plain(pass_rig *r, const pass_choice *c) {
    pass_open(
        r, &(pass_choice){.is_tied = c->is_tied, .is_rich = c->is_rich, .is_linear = c->is_linear});
    pass_step(r, 0, NULL);
    pass_settle(r);
}

/* The six models: _i is tied + 2 rich + 4 linear. */
#define MODEL_AT(i) .is_tied = (i) % 2, .is_rich = (i) / 2 == 1, .is_linear = (i) / 4
enum { MODELS = 6 };

START_TEST(recomputing_in_some_layers_changes_no_bit) {
    pass_rig plain;
    pass_choice c = {MODEL_AT(_i)};
    open_plain(&plain, &c);
    for (int g = 0; g < GROUPS; g++) {
        for (int32_t layers = 0; layers <= 5; layers++) {
            c.recompute = groups[g];
            c.recompute_layers = layers;
            compare_with_plain(&plain, &c);
        }
    }
    pass_close(&plain);
}
END_TEST

START_TEST(offloading_what_layers_keep_changes_no_bit) {
    pass_rig plain;
    pass_choice c = {MODEL_AT(_i), .offloads = true, .delay = 60};
    open_plain(&plain, &c);
    for (int g = 0; g < GROUPS; g++) {
        c.recompute = groups[g];
        c.offload_depth = 2 + g % 3;
        for (int32_t layers = 0; layers <= 4; layers += 2) {
            c.recompute_layers = layers;
            compare_with_plain(&plain, &c);
        }
    }
    pass_close(&plain);
}
END_TEST

START_TEST(weights_gradients_and_activations_in_rings_change_no_bit) {
    pass_rig plain;
    pass_choice c = {MODEL_AT(_i), .delay = 60};
    open_plain(&plain, &c);
    for (int32_t depth = 2; depth <= 4; depth++) {
        c.state_depth = depth;
        c.resident = depth - 2;
        c.recompute = groups[(depth + _i) % GROUPS];
        c.recompute_layers = depth;
        c.offloads = false;
        compare_with_plain(&plain, &c);
        c.offloads = true;
        compare_with_plain(&plain, &c);
    }
    pass_close(&plain);
}
END_TEST

/* The store of the plan that keeps most serves one that keeps less, in turn with it. */
START_TEST(plans_may_share_what_they_offload_to) {
    pass_rig plain, other;
    pass_choice c = {.is_rich = true, .offloads = true, .delay = 60};
    hy_batch_options lean = pass_options(&c);
    hy_batch_plan *plans[2];
    open_plain(&plain, &c);
    pass_open(&other, &c);
    lean.recompute = HY_KEEP_ALL;
    plans[0] = other.plan;
    must(hy_batch_plan_create(other.model, other.backend, &lean, &plans[1]));
    ck_assert_uint_lt(plans[1]->bytes.host, plans[0]->bytes.host);
    void *workspace; /* its own: recomputation needs more of it */
    must(other.backend->alloc(other.backend, HY_DEVICE, plans[1]->bytes.workspace, &workspace));
    hy_batch_plan_place(plans[1], plans[0]->activations, workspace);
    must_fail(hy_batch_train(plans[1], &(hy_batch_input){0}), HY_ERR_STATE, "no store");
    hy_batch_plan_offload(plans[1], &other.activations);
    for (int turn = 0; turn < 4; turn++) {
        other.plan = plans[turn % 2];
        pass_step(&other, 0, NULL);
        pass_settle(&other);
        pass_compare(&plain, &other, turn % 2 ? "the lean plan" : "the plan that keeps all");
    }
    other.backend->release(other.backend, HY_DEVICE, workspace, plans[1]->bytes.workspace);
    hy_batch_plan_destroy(plans[1]);
    other.plan = plans[0];
    pass_close(&plain);
    pass_close(&other);
}
END_TEST

/* ---- bytes ----------------------------------------------------------------------------------- */

static void sizes_of(const pass_choice *c, hy_batch_plan **plan, hy_model **model) {
    hy_shape shape = pass_shape(c);
    hy_batch_options options = pass_options(c);
    static hy_backend *backend;
    if (!backend) must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &backend));
    options.is_sizing = true;
    must(hy_model_create(&shape, model));
    must(hy_batch_plan_create(*model, backend, &options, plan));
}

static hy_batch_bytes bytes_of(pass_choice c) {
    hy_batch_plan *plan;
    hy_model *model;
    sizes_of(&c, &plan, &model);
    hy_batch_bytes bytes = plan->bytes;
    hy_batch_plan_destroy(plan);
    hy_model_destroy(model);
    return bytes;
}

START_TEST(bytes_grow_with_the_layers_that_keep_all) {
    for (int g = 1; g < GROUPS; g++) {
        pass_choice c = {.is_rich = true, .recompute = groups[g]};
        uint64_t all = bytes_of(c).activations, before = all;
        uint64_t none = bytes_of((pass_choice){.is_rich = true}).activations;
        for (int32_t layers = 5; layers >= 1; layers--) {
            c.recompute_layers = layers;
            uint64_t bytes = bytes_of(c).activations;
            ck_assert_uint_eq(bytes - before, layers == 5 ? 0 : (none - all) / 5);
            before = bytes;
        }
    }
}
END_TEST

START_TEST(what_is_offloaded_leaves_the_device) {
    pass_choice c = {.is_rich = true, .recompute = HY_KEEP_CHEAP};
    hy_batch_bytes here = bytes_of(c);
    c.offloads = true;
    hy_batch_bytes away = bytes_of(c);
    uint64_t grad = PASS_ROWS * 16 * 4; /* the stream's gradient stays */
    ck_assert_uint_eq(here.host + here.ring, 0);
    ck_assert_uint_eq(away.host, here.activations - grad);
    ck_assert_uint_eq(away.ring, away.host / 5 * HY_OFFLOAD_DEPTH);
    ck_assert_uint_eq(away.activations, grad + away.ring);
    ck_assert_uint_eq(away.workspace, here.workspace);
}
END_TEST

/* A card that is shared, or held to a part of its memory, cuts the loss into more pieces. */
START_TEST(pieces_of_the_loss_follow_the_budget) {
    hy_shape shape = {.layers = 1, .width = 64, .heads = 1, .vocab = 152064, .context = 1024};
    hy_batch_options o = {.batch = 16, .seq = 1024, .dtype = HY_BF16};
    hy_backend *cpu;
    hy_model *model;
    shape.norm_eps = 1e-5;
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &cpu));
    must(hy_model_create(&shape, &model));
    hy_backend card = *cpu;
    card.facts.is_gpu = true;
    card.facts.memory_total = (uint64_t)140 << 30;
    ck_assert_int_eq(hy_batch_chunks(model, cpu, &o), 128); /* 64 MiB on a CPU */
    ck_assert_int_eq(hy_batch_chunks(model, &card, &o), 8); /* at most 1 GiB */
    o.budget = (uint64_t)8 << 30;
    ck_assert_int_eq(hy_batch_chunks(model, &card, &o), 16); /* at most 512 MiB */
    o.chunks = 3;
    ck_assert_int_eq(hy_batch_chunks(model, &card, &o), 4);
    hy_model_destroy(model);
    cpu->destroy(cpu);
}
END_TEST

START_TEST(layers_that_recompute_are_spread_evenly) {
    static const char *const expected[] = {"rrrrr", "....r", "..r.r", ".r.rr", ".rrrr", "rrrrr"};
    for (int32_t n = 0; n <= 5; n++) {
        hy_batch_plan *plan;
        hy_model *model;
        char seen[6] = "";
        sizes_of(&(pass_choice){.recompute = HY_KEEP_ALL, .recompute_layers = n}, &plan, &model);
        for (int32_t l = 0; l < 5; l++) seen[l] = hy_batch_recomputes(plan, l) ? 'r' : '.';
        ck_assert_str_eq(seen, expected[n]);
        hy_batch_plan_destroy(plan);
        hy_model_destroy(model);
    }
}
END_TEST

START_TEST(more_layers_than_there_are_cannot_recompute) {
    pass_choice c = {.recompute_layers = 6};
    hy_shape shape = pass_shape(&c);
    hy_batch_options options = pass_options(&c);
    hy_backend *backend;
    hy_model *model;
    hy_batch_plan *plan;
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &backend));
    must(hy_model_create(&shape, &model));
    must_fail(hy_batch_plan_create(model, backend, &options, &plan), HY_ERR_INPUT, "0 (all) to 5");
    hy_model_destroy(model);
    backend->destroy(backend);
}
END_TEST

START_TEST(a_plan_for_figures_cannot_run_and_one_that_offloads_cannot_evaluate) {
    hy_batch_plan *plan;
    hy_model *model;
    hy_batch_input input = {0};
    sizes_of(&(pass_choice){0}, &plan, &model);
    must_fail(hy_batch_train(plan, &input), HY_ERR_STATE, "computing sizes");
    must_fail(hy_batch_evaluate(plan, &input), HY_ERR_STATE, "computing sizes");
    hy_batch_plan_destroy(plan);
    hy_model_destroy(model);
    pass_rig r;
    pass_open(&r, &(pass_choice){.offloads = true});
    must_fail(hy_batch_evaluate(r.plan, &input), HY_ERR_STATE, "offloaded activations");
    pass_close(&r);
}
END_TEST

/* ---- traffic --------------------------------------------------------------------------------- */

static uint64_t unit_bytes(const hy_store *store, int32_t unit) {
    return store->layout.unit_bytes[unit];
}

START_TEST(gradients_that_begin_anew_are_not_fetched) {
    for (int is_tied = 0; is_tied < 2; is_tied++) {
        pass_rig r;
        pass_open(&r, &(pass_choice){.is_tied = is_tied, .state_depth = 3});
        pass_new_tokens(&r, 0);
        hy_batch_input input = {.stream = r.compute,
                                .weights = &r.weights,
                                .grads = &r.grads,
                                .tokens = r.tokens,
                                .targets = r.targets,
                                .losses = r.losses,
                                .loss_scale = 1};
        must(hy_batch_train(r.plan, &input));
        pass_settle(&r);
        ck_assert_uint_eq(r.grads.bytes_up, 0); /* a tied head's sum is still on the device */
        uint64_t twice = is_tied ? unit_bytes(&r.grads, 0) : 0;
        ck_assert_uint_eq(r.grads.bytes_down, r.grads.layout.bytes + twice);
        input.accumulate = true;
        must(hy_batch_train(r.plan, &input));
        pass_settle(&r);
        ck_assert_uint_gt(r.grads.bytes_up, 0);
        pass_close(&r);
    }
}
END_TEST

START_TEST(the_embeddings_backward_wants_no_weights) {
    hy_batch_plan *plan;
    hy_model *model;
    sizes_of(&(pass_choice){.is_rich = true}, &plan, &model);
    ck_assert(hy_batch_unit(plan, 0)->pass[HY_PASS_FORWARD].uses_params);
    ck_assert(!hy_batch_unit(plan, 0)->pass[HY_PASS_BACKWARD].uses_params);
    ck_assert(hy_batch_unit(plan, 1)->pass[HY_PASS_BACKWARD].uses_params);
    ck_assert(hy_batch_unit(plan, 6)->pass[HY_PASS_BACKWARD].uses_params);
    hy_batch_plan_destroy(plan);
    hy_model_destroy(model);
}
END_TEST

/* ---- hooks ----------------------------------------------------------------------------------- */

typedef struct teller {
    pass_rig *rig;
    char told[256];
    bool has_update; /* a step's gradients wait to be applied */
    int32_t units_told;
} teller;

static void note(teller *t, char what, int32_t unit) {
    size_t length = strlen(t->told);
    snprintf(t->told + length, sizeof t->told - length, "%c%d ", what, unit);
}

/* weight -= gradient / 8, for all parameters of a unit. */
static hy_status apply(pass_rig *r, hy_stream *stream, int32_t unit) {
    HY_TRY(hy_store_get(&r->weights, stream, unit));
    HY_TRY(hy_store_get(&r->grads, stream, unit));
    for (int32_t i = 0; i < r->model->params.count; i++) {
        const hy_param *p = &r->model->params.list[i];
        if (p->unit != unit) continue;
        hy_tensor w = hy_tensor_1d(hy_store_device(&r->weights, i), HY_F32, p->count);
        hy_tensor g = hy_tensor_1d(hy_store_device(&r->grads, i), HY_F32, p->count);
        hy_op_call call = {.kind = HY_OP_COMBINE,
                           .attr.combine = {.coefficient = {1, -0.125f}},
                           .t = {[HY_COMBINE_OUT] = w, [HY_COMBINE_X0] = w, [HY_COMBINE_X1] = g}};
        HY_TRY(r->backend->enqueue(stream, &call));
    }
    HY_TRY(hy_store_release(&r->grads, stream, unit));
    return hy_store_release_changed(&r->weights, stream, unit);
}

static hy_status before(void *context, hy_stream *stream, int32_t unit) {
    teller *t = context;
    note(t, 'b', unit);
    if (!t->has_update) return HY_OK;
    if (++t->units_told == t->rig->model->params.units) t->has_update = false;
    return apply(t->rig, stream, unit);
}

static hy_status ahead(void *context, int32_t unit) {
    teller *t = context;
    note(t, 'g', unit);
    return t->has_update ? hy_store_prefetch(&t->rig->grads, unit) : HY_OK;
}

static hy_status after(void *context, hy_stream *stream, int32_t unit) {
    teller *t = context;
    (void)stream;
    note(t, 'a', unit);
    for (int32_t i = 0; i < t->rig->model->params.count; i++) { /* still held: this asserts it */
        if (t->rig->model->params.list[i].unit == unit) {
            ck_assert_ptr_nonnull(hy_store_device(&t->rig->grads, i));
        }
    }
    return HY_OK;
}

START_TEST(a_hook_is_called_in_order) {
    pass_rig r;
    pass_open(&r, &(pass_choice){.is_tied = _i, .state_depth = 3});
    teller t = {.rig = &r};
    hy_unit_hook hook = {.context = &t, .before = before, .ahead = ahead, .after = after};
    pass_new_tokens(&r, 0);
    hy_batch_input input = {.stream = r.compute,
                            .weights = &r.weights,
                            .grads = &r.grads,
                            .tokens = r.tokens,
                            .targets = r.targets,
                            .losses = r.losses,
                            .loss_scale = 1,
                            .hook = &hook};
    must(hy_batch_train(r.plan, &input));
    ck_assert_str_eq(t.told, "g0 g1 b0 g2 b1 g3 b2 g4 b3 g5 b4 g6 b5 b6 a6 a5 a4 a3 a2 a1 a0 ");
    t.told[0] = 0;
    hy_unit_hook deaf = {.context = &t};
    input.hook = &deaf;
    must(hy_batch_train(r.plan, &input));
    input.hook = &hook;
    must(hy_batch_evaluate(r.plan, &input));
    ck_assert_str_eq(t.told, _i ? "b0 b1 b2 b3 b4 b5 b0 b6 " : "b0 b1 b2 b3 b4 b5 b6 ");
    must(r.backend->stream_sync(r.compute));
    pass_close(&r);
}
END_TEST

/* An update that is applied as the next step's forward comes to each unit gives the bits of one
 * that is applied at once. */
START_TEST(updates_on_gather_change_no_bit) {
    pass_rig plain, other;
    pass_choice c = {MODEL_AT(_i)};
    pass_open(&plain, &c);
    c.delay = 60;
    c.state_depth = 3;
    c.offloads = true;
    c.recompute = HY_KEEP_ALL;
    c.recompute_layers = 3;
    pass_open(&other, &c);
    teller t = {.rig = &other};
    hy_unit_hook hook = {.context = &t, .before = before, .ahead = ahead, .after = after};
    for (uint64_t step = 0; step < 3; step++) {
        pass_step(&plain, step, NULL);
        pass_step(&other, step, &hook);
        t = (teller){.rig = &other, .has_update = true};
        if (step == 2) break; /* the last stays pending: both compare before it */
        for (int32_t unit = 0; unit < plain.model->params.units; unit++) {
            must(apply(&plain, plain.compute, unit));
        }
    }
    pass_settle(&plain);
    pass_settle(&other);
    pass_compare(&plain, &other, "updates on gather");
    pass_close(&plain);
    pass_close(&other);
}
END_TEST

/* ---- slices ---------------------------------------------------------------------------------- */

#define SLICES 3

static int count_units(const char *told) {
    int count = 0;
    for (; *told; told++) count += *told == 'b';
    return count;
}

/* Several batches go through each unit while its weights are held: every loss has the bits of its
 * batch alone, the memory is what was planned, and each unit is visited once. */
START_TEST(slices_of_a_forward_pass_change_no_bit) {
    pass_rig r;
    pass_open(&r, &(pass_choice){MODEL_AT(_i), .state_depth = 3, .delay = 60});
    hy_batch_options options = pass_options(&(pass_choice){0});
    hy_batch_plan *one, *all;
    options.is_training = false;
    must(hy_batch_plan_create(r.model, r.backend, &options, &one));
    options.slices = SLICES;
    must(hy_batch_plan_create(r.model, r.backend, &options, &all));
    ck_assert_int_eq(hy_batch_sequences(all), SLICES * hy_batch_sequences(one));
    ck_assert_uint_eq(all->bytes.workspace, one->bytes.workspace);
    ck_assert_uint_eq(all->bytes.activations, SLICES * one->bytes.activations);
    int32_t tokens[SLICES * PASS_ROWS], targets[SLICES * PASS_ROWS];
    float alone[SLICES * PASS_ROWS], together[SLICES * PASS_ROWS];
    for (uint64_t i = 0; i < SLICES * PASS_ROWS; i++) {
        tokens[i] = (int32_t)hy_rng_below(5, HY_RNG_TEST, i, 701);
        targets[i] = (int32_t)hy_rng_below(6, HY_RNG_TEST, i, 701);
    }
    char *memory = malloc(all->bytes.activations + all->bytes.workspace + 2 * HY_ALIGNMENT);
    char *at = memory + HY_ALIGNMENT - (uintptr_t)memory % HY_ALIGNMENT;
    teller t = {.rig = &r};
    hy_unit_hook hook = {.context = &t, .before = before};
    hy_batch_input input = {.stream = r.compute,
                            .weights = &r.weights,
                            .rope = r.model->shape.has_rope ? r.rope : NULL,
                            .loss_scale = 1,
                            .hook = &hook};
    for (int i = 0; i < SLICES; i++) {
        memset(at, 0xff, one->bytes.activations + one->bytes.workspace);
        hy_batch_plan_place(one, at, at + one->bytes.activations);
        input.tokens = tokens + i * PASS_ROWS;
        input.targets = targets + i * PASS_ROWS;
        input.losses = alone + i * PASS_ROWS;
        must(hy_batch_evaluate(one, &input));
        must(r.backend->stream_sync(r.compute));
    }
    int visits = count_units(t.told);
    t.told[0] = 0;
    memset(at, 0xff, all->bytes.activations + all->bytes.workspace);
    hy_batch_plan_place(all, at, at + all->bytes.activations);
    input.tokens = tokens;
    input.targets = targets;
    input.losses = together;
    must(hy_batch_evaluate(all, &input));
    must(r.backend->stream_sync(r.compute));
    ck_assert_mem_eq(alone, together, sizeof alone);
    ck_assert_int_eq(visits, SLICES * count_units(t.told));
    free(memory);
    hy_batch_plan_destroy(one);
    hy_batch_plan_destroy(all);
    pass_close(&r);
}
END_TEST

static Suite *passes_suite(void) {
    Suite *suite = suite_create("passes");
    TCase *tests = tcase_create("passes");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, recomputing_in_some_layers_changes_no_bit, 0, MODELS);
    tcase_add_loop_test(tests, offloading_what_layers_keep_changes_no_bit, 0, MODELS);
    tcase_add_loop_test(tests, weights_gradients_and_activations_in_rings_change_no_bit, 0, MODELS);
    tcase_add_loop_test(tests, slices_of_a_forward_pass_change_no_bit, 0, MODELS);
    tcase_add_test(tests, plans_may_share_what_they_offload_to);
    tcase_add_test(tests, pieces_of_the_loss_follow_the_budget);
    tcase_add_test(tests, bytes_grow_with_the_layers_that_keep_all);
    tcase_add_test(tests, what_is_offloaded_leaves_the_device);
    tcase_add_test(tests, layers_that_recompute_are_spread_evenly);
    tcase_add_test(tests, more_layers_than_there_are_cannot_recompute);
    tcase_add_test(tests, a_plan_for_figures_cannot_run_and_one_that_offloads_cannot_evaluate);
    tcase_add_test(tests, gradients_that_begin_anew_are_not_fetched);
    tcase_add_test(tests, the_embeddings_backward_wants_no_weights);
    tcase_add_loop_test(tests, a_hook_is_called_in_order, 0, 2);
    tcase_add_loop_test(tests, updates_on_gather_change_no_bit, 0, MODELS);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(passes_suite)
