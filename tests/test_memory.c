/* test_memory.c: layouts, arenas, the ledger and stores. */
#include "harness.h"

#include "memory/store.h"

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
    hy_arena_pop(&arena, HY_OPTIM, 200);
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
    must(hy_store_gather(&store, 0));
    must(hy_store_get(&store, NULL, 0));
    ck_assert_ptr_eq(hy_store_device(&store, 0), arena.data);
    must(hy_store_release(&store, NULL, 0));
    ck_assert_ptr_eq(hy_store_home(&store, 1), arena.data + 256);
    ck_assert_uint_eq(ledger.live[HY_WEIGHTS][HY_DEVICE], layout.bytes);
    hy_store_fini(&store);
    hy_arena_fini(&arena);
    hy_layout_fini(&layout);
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
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(memory_suite)
