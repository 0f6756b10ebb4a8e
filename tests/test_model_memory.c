/* test_model_memory.c: layouts, arenas, the ledger and stores. */
#include "harness.h"

#include "memory/store.h"
#include "model/model.h"

static hy_backend *backend;

static void open_backend(void) {
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &backend));
}
static void close_backend(void) { backend->destroy(backend); }

START_TEST(tensors_lie_aligned_inside_contiguous_units) {
    hy_layout_item items[] = {{.unit = 0, .dtype = HY_F32, .count = 3},
                              {.unit = 0, .dtype = HY_BF16, .count = 129},
                              {.unit = 2, .dtype = HY_F32, .count = 64}};
    hy_layout layout;
    must(hy_layout_init(&layout, items, 3, 3));
    ck_assert_uint_eq(layout.items[0].offset, 0);
    ck_assert_uint_eq(layout.items[1].offset, 256);
    ck_assert_uint_eq(layout.unit_bytes[0], 256 + 512);
    ck_assert_uint_eq(layout.unit_bytes[1], 0);
    ck_assert_uint_eq(layout.unit_offset[2], 768);
    ck_assert_uint_eq(layout.bytes, 768 + 256);
    hy_layout_fini(&layout);
}
END_TEST

START_TEST(an_arena_counts_what_is_live_and_refuses_what_was_not_planned) {
    hy_ledger ledger = {0};
    hy_arena arena;
    void *a, *b, *c;
    hy_ledger_plan(&ledger, HY_GRADS, HY_FULL, HY_DEVICE, HY_F32, 512);
    hy_ledger_enter(&ledger, HY_FULL);
    must(hy_arena_init(&arena, backend, &ledger, HY_DEVICE, 1024, "a test"));
    must(hy_arena_push(&arena, HY_GRADS, 500, &a));
    must(hy_arena_push(&arena, HY_OPTIM, 200, &b));
    ck_assert_ptr_eq((char *)a + 512, b);
    ck_assert_uint_eq(ledger.live[HY_GRADS][HY_DEVICE], 512);
    ck_assert_uint_eq(ledger.live_in[HY_DEVICE], 768);
    must_fail(hy_arena_push(&arena, HY_OPTIM, 300, &c), HY_ERR_INTERNAL, "optim");
    hy_arena_clear(&arena);
    must(hy_arena_push(&arena, HY_GRADS, 500, &a));
    hy_ledger_enter(&ledger, HY_PREDICT);
    ck_assert_uint_eq(ledger.live_in[HY_DEVICE], 512);
    ck_assert_uint_eq(ledger.phase_peak[HY_FULL], 768);
    ck_assert_uint_eq(ledger.phase_peak[HY_PREDICT], 512);
    ck_assert_uint_eq(ledger.cell[HY_GRADS][HY_FULL].measured, 512);
    ck_assert_uint_eq(ledger.peak_in[HY_DEVICE], 768);
    hy_arena_fini(&arena);
}
END_TEST

START_TEST(an_arena_that_cannot_be_had_says_what_it_was_for) {
    hy_ledger ledger = {0};
    hy_arena arena;
    must_fail(hy_arena_init(&arena, backend, &ledger, HY_DEVICE, (uint64_t)1 << 60, "the moon"),
              HY_ERR_MEMORY, "the moon");
    hy_arena_fini(&arena);
}
END_TEST

START_TEST(a_store_gives_each_tensor_its_place) {
    hy_ledger ledger = {0};
    hy_arena arena;
    hy_store store;
    hy_layout layout;
    hy_layout_item items[] = {{.unit = 0, .dtype = HY_F32, .count = 5},
                              {.unit = 1, .dtype = HY_F32, .count = 7}};
    must(hy_layout_init(&layout, items, 2, 2));
    must(hy_arena_init(&arena, backend, &ledger, HY_DEVICE, layout.bytes, "a store"));
    must(hy_store_init(&store, &arena, HY_WEIGHTS, &layout));
    must(hy_store_prefetch(&store, 0));
    must(hy_store_get(&store, NULL, 0));
    ck_assert_ptr_eq(hy_store_device(&store, 0), arena.data);
    must(hy_store_release(&store, NULL, 0));
    ck_assert_ptr_eq(hy_store_backing(&store, 1), arena.data + 256);
    ck_assert_uint_eq(ledger.live[HY_WEIGHTS][HY_DEVICE], layout.bytes);
    hy_store_fini(&store);
    hy_arena_fini(&arena);
    hy_layout_fini(&layout);
}
END_TEST

/* A model whose weights and gradients live on the host and pass through rings, under random
 * delays. */
typedef struct streamed_rig {
    hy_backend *backend;
    hy_stream *compute, *copies, *returns;
    hy_ledger ledger;
    hy_arena host, device;
    hy_model *model;
    hy_batch_plan *plan;
    hy_store weights, grads;
    int32_t *tokens, *targets;
    float *losses;
} streamed_rig;

static void take_store(streamed_rig *r, hy_store *store, hy_class cls, const hy_layout *layout,
                       int32_t depth) {
    if (depth) {
        must(hy_store_init_streamed(store, &r->host, &r->device, cls, layout, depth,
                                    &(hy_copies){r->copies, r->returns}));
    } else {
        must(hy_store_init(store, &r->device, cls, layout));
    }
}

static void streamed_open(streamed_rig *r, int32_t depth, int delay) {
    hy_shape shape = {.layers = 5,
                      .width = 16,
                      .heads = 2,
                      .vocab = 31,
                      .context = 8,
                      .has_qkv_bias = true,
                      .has_proj_bias = true,
                      .has_tied_head = true,
                      .norm_eps = 1e-5,
                      .init_std = 0.1};
    hy_batch_options options = {
        .batch = 2, .seq = 8, .chunks = 2, .is_training = true, .recompute = HY_KEEP_CHEAP};
    hy_layout layout;
    void *memory[2];
    *r = (streamed_rig){0};
    hy_cpu_options cpu = {.threads = 1, .delay_microseconds = delay, .delay_seed = 9};
    must(hy_cpu_backend_create(&cpu, &r->backend));
    must(r->backend->stream_create(r->backend, "compute", &r->compute));
    must(r->backend->stream_create(r->backend, "copies", &r->copies));
    must(r->backend->stream_create(r->backend, "returns", &r->returns));
    must(hy_model_create(&shape, &r->model));
    must(hy_batch_plan_create(r->model, r->backend, &options, &r->plan));
    must(hy_params_layout(&r->model->params, HY_SET_ALL, HY_F32, &layout));
    const hy_batch_bytes *b = &r->plan->bytes;
    uint64_t size = 2 * layout.bytes + 2 * hy_store_ring_bytes(&layout, 4) + b->activations +
                    b->workspace + 8192;
    must(hy_arena_init(&r->device, r->backend, &r->ledger, HY_DEVICE, size, "a test"));
    must(hy_arena_init(&r->host, r->backend, &r->ledger, HY_PINNED, 2 * layout.bytes, "a test"));
    memset(r->device.data, 0xff, size);
    take_store(r, &r->weights, HY_WEIGHTS, &layout, depth);
    take_store(r, &r->grads, HY_GRADS, &layout, depth);
    uint64_t sizes[] = {b->activations, b->workspace};
    for (int i = 0; i < 2; i++) {
        must(hy_arena_push(&r->device, HY_WORKSPACE, sizes[i], &memory[i]));
    }
    hy_batch_plan_place(r->plan, memory[0], memory[1]);
    must(hy_arena_push(&r->device, HY_DATA, 64, (void **)&r->tokens));
    must(hy_arena_push(&r->device, HY_DATA, 64, (void **)&r->targets));
    must(hy_arena_push(&r->device, HY_DATA, 64, (void **)&r->losses));
    for (int i = 0; i < 16; i++) {
        r->tokens[i] = (i * 7) % 31;
        r->targets[i] = (i * 5 + 3) % 31;
    }
    for (int32_t i = 0; i < r->model->params.count; i++) {
        const hy_param *p = &r->model->params.list[i];
        hy_param_initial(p, 3, 0, p->count, hy_store_backing(&r->weights, i));
    }
    hy_layout_fini(&layout);
}

static void streamed_train(streamed_rig *r) {
    for (int micro = 0; micro < 3; micro++) {
        hy_batch_input input = {.stream = r->compute,
                                .weights = &r->weights,
                                .grads = &r->grads,
                                .tokens = r->tokens,
                                .targets = r->targets,
                                .losses = r->losses,
                                .loss_scale = 1.0f / 48,
                                .accumulate = micro > 0};
        must(hy_batch_train(r->plan, &input));
    }
    must(r->backend->stream_sync(r->compute));
    must(hy_store_settle(&r->grads));
}

static void streamed_close(streamed_rig *r) {
    hy_store_fini(&r->weights);
    hy_store_fini(&r->grads);
    r->backend->stream_destroy(r->compute);
    r->backend->stream_destroy(r->copies);
    r->backend->stream_destroy(r->returns);
    hy_batch_plan_destroy(r->plan);
    hy_model_destroy(r->model);
    hy_arena_fini(&r->device);
    hy_arena_fini(&r->host);
    r->backend->destroy(r->backend);
}

START_TEST(units_that_pass_through_a_ring_give_the_same_bits) {
    streamed_rig plain, streamed;
    streamed_open(&plain, 0, 0);
    streamed_train(&plain);
    for (int32_t depth = 3; depth <= 4; depth++) {
        streamed_open(&streamed, depth, 200);
        streamed_train(&streamed);
        ck_assert_mem_eq(plain.losses, streamed.losses, 64);
        for (int32_t i = 0; i < plain.model->params.count; i++) {
            const hy_param *p = &plain.model->params.list[i];
            ck_assert_msg(memcmp(hy_store_backing(&plain.grads, i),
                                 hy_store_backing(&streamed.grads, i),
                                 (size_t)p->count * sizeof(float)) == 0,
                          "depth %d changes the gradient of %s", depth, p->name);
        }
        ck_assert_uint_gt(streamed.weights.bytes_moved, 0);
        streamed_close(&streamed);
    }
    streamed_close(&plain);
}
END_TEST

START_TEST(a_ring_that_is_too_short_says_so) {
    streamed_rig r;
    streamed_open(&r, 2, 0);
    must(hy_store_get(&r.weights, r.compute, 0));
    must(hy_store_get(&r.weights, r.compute, 1));
    must_fail(hy_store_get(&r.weights, r.compute, 2), HY_ERR_INTERNAL, "ring buffers");
    r.weights.held--;
    must(hy_store_release(&r.weights, r.compute, 0));
    must(hy_store_get(&r.weights, r.compute, 2));
    must(hy_store_release(&r.weights, r.compute, 2));
    must(hy_store_release(&r.weights, r.compute, 1));
    streamed_close(&r);
}
END_TEST

static Suite *memory_suite(void) {
    Suite *suite = suite_create("memory");
    TCase *tests = tcase_create("memory");
    tcase_add_checked_fixture(tests, open_backend, close_backend);
    tcase_add_test(tests, tensors_lie_aligned_inside_contiguous_units);
    tcase_add_test(tests, an_arena_counts_what_is_live_and_refuses_what_was_not_planned);
    tcase_add_test(tests, an_arena_that_cannot_be_had_says_what_it_was_for);
    tcase_add_test(tests, a_store_gives_each_tensor_its_place);
    tcase_add_test(tests, units_that_pass_through_a_ring_give_the_same_bits);
    tcase_add_test(tests, a_ring_that_is_too_short_says_so);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(memory_suite)
