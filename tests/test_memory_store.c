/* test_memory_store.c: stores whose units pass through rings: every depth, sizes, resident
 * units. */
#include "store_walks.h"

static const int64_t untied[] = {3000, 900,  1000, 1000,
                                 950,  1000, 1000, 3100}; /* embedding .. head */
static const int64_t tied[] = {3000, 1000, 1000, 1000, 1000, 1000, 1000, 40};
static const int64_t even[] = {1000, 1000, 900, 1000, 1000, 1000, 1000, 1000};
#define UNITS 8

static rig_machine machine;

static void open_rings(store_rig *rigs, int count, const int64_t *sizes, int32_t depth,
                       int32_t resident, int delay, uint64_t seed) {
    hy_layout layout;
    rig_layout(&layout, sizes, UNITS);
    hy_ring_plan plan = hy_store_plan_ring(&layout, depth, resident);
    rig_machine_open(&machine, delay, seed, (uint64_t)count * plan.backing_bytes,
                     (uint64_t)count * plan.bytes);
    hy_layout_fini(&layout);
    for (int i = 0; i < count; i++) {
        hy_ring_options ring = {
            .depth = depth, .resident = resident, .copies = {machine.up, machine.down}};
        rig_layout(&rigs[i].layout, sizes, UNITS);
        must(hy_store_init_ring(&rigs[i].store, &machine.backing, &machine.device, HY_GRADS,
                                &rigs[i].layout, &ring));
        rig_begin(&rigs[i], &machine, i * RIG_READS / count, RIG_READS / count);
    }
    ck_assert_uint_eq(machine.device.used, machine.device.size); /* exactly as planned */
    ck_assert_uint_eq(machine.backing.used, machine.backing.size);
}

static void close_rings(store_rig *rigs, int count) {
    for (int i = 0; i < count; i++) rig_end(&rigs[i]);
    rig_machine_close(&machine);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

START_TEST(large_units_share_one_buffer_and_do_not_size_the_others) {
    store_rig r;
    hy_layout layout;
    rig_layout(&layout, untied, UNITS);
    uint64_t block = layout.unit_bytes[2], head = layout.unit_bytes[7];
    hy_ring_plan plan = hy_store_plan_ring(&layout, 3, 0);
    ck_assert_uint_eq(plan.buffer_bytes, block);
    ck_assert_uint_eq(plan.large_bytes, head);
    ck_assert_uint_eq(plan.bytes, 3 * block + head);
    ck_assert_uint_eq(hy_store_ring_bytes(&layout, 3), plan.bytes);
    hy_layout_fini(&layout);
    rig_layout(&layout, tied, UNITS);
    plan = hy_store_plan_ring(&layout, 3, 0);
    ck_assert_uint_eq(plan.bytes, 3 * layout.unit_bytes[1] + layout.unit_bytes[0]);
    hy_layout_fini(&layout);
    rig_layout(&layout, even, UNITS);
    plan = hy_store_plan_ring(&layout, 3, 0);
    ck_assert_uint_eq(plan.large_bytes, 0);
    ck_assert_uint_eq(plan.bytes, 3 * layout.unit_bytes[0]);
    hy_layout_fini(&layout);

    open_rings(&r, 1, untied, 2, 2, 0, 1);
    int own = 0;
    for (int32_t u = 1; u < UNITS - 1; u++) own += hy_store_has_own_buffer(&r.store, u);
    ck_assert_int_eq(own, 2);
    ck_assert(hy_store_has_own_buffer(&r.store, 0) && hy_store_has_own_buffer(&r.store, UNITS - 1));
    close_rings(&r, 1);
}
END_TEST

START_TEST(neighbours_and_even_layouts_have_no_large_buffer) {
    static const int64_t mixed[] = {10, 3000, 3000, 10, 10, 10, 10, 10};
    hy_layout layout;
    rig_layout(&layout, mixed, UNITS);
    hy_ring_plan plan = hy_store_plan_ring(&layout, 2, 0);
    ck_assert_uint_eq(plan.large_bytes, 0);
    ck_assert_uint_eq(plan.bytes, 2 * layout.unit_bytes[1]);
    hy_layout_fini(&layout);
    rig_layout(&layout, untied, UNITS);
    layout.is_even = true; /* asked for */
    plan = hy_store_plan_ring(&layout, 2, 0);
    ck_assert_uint_eq(plan.large_bytes, 0);
    ck_assert_uint_eq(plan.bytes, 2 * layout.unit_bytes[UNITS - 1]);
    hy_layout_fini(&layout);
}
END_TEST

START_TEST(small_units_have_buffers_of_their_size_where_asked_for) {
    static const int64_t ends[] = {10, 3000, 3000, 3000, 3000, 3000, 3000, 700};
    static const int64_t close[] = {3000, 3000, 3000, 3000, 3000, 3000, 3000, 1200};
    static const int64_t many[] = {10, 3000, 10, 3000, 10, 3000, 3000, 3000};
    hy_layout layout;
    rig_layout(&layout, ends, UNITS);
    uint64_t block = layout.unit_bytes[1], head = layout.unit_bytes[UNITS - 1];
    ck_assert_uint_eq(hy_store_plan_ring(&layout, 3, 0).bytes, 3 * block);
    layout.has_small = true;
    hy_ring_plan plan = hy_store_plan_ring(&layout, 3, 0);
    ck_assert_int_eq(plan.small_count, 2);
    ck_assert_uint_eq(plan.small_bytes, head);
    ck_assert_uint_eq(plan.bytes, 3 * block + 2 * head);
    hy_layout_fini(&layout);
    rig_layout(&layout, close, UNITS); /* more than a quarter of a block */
    layout.has_small = true;
    ck_assert_int_eq(hy_store_plan_ring(&layout, 3, 0).small_count, 0);
    hy_layout_fini(&layout);
    rig_layout(&layout, many, UNITS);
    layout.has_small = true;
    ck_assert_int_eq(hy_store_plan_ring(&layout, 2, 0).small_count, 2);
    hy_layout_fini(&layout);
}
END_TEST

START_TEST(resident_units_are_blocks_spread_evenly) {
    store_rig r;
    open_rings(&r, 1, tied, 2, 1, 0, 1);
    for (int32_t u = 1; u < UNITS; u++)
        ck_assert_int_eq(hy_store_has_own_buffer(&r.store, u), u == 3);
    close_rings(&r, 1);
    open_rings(&r, 1, tied, 2, 3, 0, 1);
    for (int32_t u = 1; u < UNITS - 1; u++) {
        ck_assert_int_eq(hy_store_has_own_buffer(&r.store, u), u % 2 == 1);
    }
    close_rings(&r, 1);
    open_rings(&r, 1, tied, 2, 1000, 0, 1); /* all blocks: the buffers serve the last, small unit */
    ck_assert_uint_eq(r.store.ring.buffer_bytes, r.layout.unit_bytes[UNITS - 1]);
    ck_assert(!hy_store_has_own_buffer(&r.store, UNITS - 1));
    close_rings(&r, 1);
}
END_TEST

/* ---- walks ----------------------------------------------------------------------------------- */

static void walk(const int64_t *sizes, bool is_tied, int32_t depth, int32_t resident, int delay) {
    store_rig r[2];
    open_rings(r, 2, sizes, depth, resident, delay, (uint64_t)(depth * 10 + resident));
    walk_steps(&r[0], &r[1], is_tied);
    ck_assert_uint_eq(r[1].store.bytes_moved, r[1].store.bytes_up + r[1].store.bytes_down);
    close_rings(r, 2);
}

START_TEST(training_walks_give_the_same_numbers_at_every_depth) {
    const int64_t *sizes[] = {untied, tied, even};
    for (int s = 0; s < 3; s++) {
        for (int32_t depth = 2; depth <= 5; depth++) {
            walk(sizes[s], sizes[s] == tied, depth, 0, 60);
        }
        walk(sizes[s], sizes[s] == tied, HY_RING_MAX, 0, 60);
    }
}
END_TEST

START_TEST(training_walks_give_the_same_numbers_with_resident_units) {
    for (int32_t resident = 1; resident <= 6; resident++) {
        walk(untied, false, 2, resident, 60);
        walk(tied, true, 3, resident, 60);
    }
}
END_TEST

START_TEST(any_walk_ends_with_what_a_plain_store_would_hold) {
    const int64_t *sizes[] = {untied, tied, even};
    for (int32_t depth = 2; depth <= 4; depth++) {
        for (int32_t resident = 0; resident <= 4; resident += 2) {
            store_rig r[2];
            uint64_t seed = (uint64_t)(depth * 100 + resident);
            open_rings(r, 2, sizes[(depth + resident / 2) % 3], depth, resident, 40, seed);
            rig_fill(&r[0]);
            rig_fill(&r[1]);
            for (int part = 0; part < 4; part++) {
                stray(&r[0], seed + (uint64_t)part, 50);
                stray(&r[1], seed + 50 + (uint64_t)part, 50);
            }
            close_rings(r, 2);
        }
    }
}
END_TEST

/* ---- copies that come late ------------------------------------------------------------------- */

/* Holds a copy stream back for some milliseconds, while the others continue. */
static void hold_back(hy_stream *stream, hy_stream *brake, hy_event *event) {
    static float room[4];
    hy_op_call fill = {.kind = HY_OP_FILL};
    fill.t[HY_FILL_DST] = hy_tensor_1d(room, HY_F32, 4);
    for (int i = 0; i < 40; i++) must(machine.backend->enqueue(brake, &fill));
    must(machine.backend->event_record(event, brake));
    must(machine.backend->stream_wait(stream, event));
}

/* The buffer that a change was written back from is taken by a unit that is got new: only compute
 * has waited for the change then, and the way up has to do so itself before it brings the changed
 * unit again. */
static void return_late(store_rig *r, hy_stream *brake, hy_event *event) {
    rig_visit(r, 4);
    rig_visit(r, 5);
    hold_back(machine.down, brake, event);
    rig_change(r, 1, 1);
    rig_visit(r, 2);
    rig_renew(r, 3, 2);
    rig_visit(r, 1);
    rig_check_backing(r);
}

/* A unit is gathered, thrown out unused and written anew: the backing store is not changed while it
 * is being read. */
static void read_late(store_rig *r, hy_stream *brake, hy_event *event) {
    hy_store_forget(&r->store);
    must(hy_store_prefetch(&r->store, 2));
    hold_back(machine.up, brake, event);
    must(hy_store_prefetch(&r->store, 1));
    rig_visit(r, 2);
    must(hy_store_prefetch(&r->store, 3));
    rig_renew(r, 1, 3);
    rig_check_backing(r);
}

START_TEST(a_copy_that_is_held_back_is_waited_for) {
    store_rig r;
    hy_stream *brake;
    hy_event *event;
    open_rings(&r, 1, even, 2, 0, 100, 5);
    must(machine.backend->stream_create(machine.backend, "brake", &brake));
    must(machine.backend->event_create(machine.backend, &event));
    rig_fill(&r);
    for (int i = 0; i < 4; i++) {
        return_late(&r, brake, event);
        read_late(&r, brake, event);
    }
    machine.backend->stream_destroy(brake);
    machine.backend->event_destroy(event);
    close_rings(&r, 1);
}
END_TEST

/* ---- what is copied -------------------------------------------------------------------------- */

START_TEST(a_unit_that_is_got_new_is_not_brought) {
    store_rig r;
    open_rings(&r, 1, untied, 3, 0, 0, 1);
    rig_fill(&r);
    ck_assert_uint_eq(r.store.bytes_up, 0);
    ck_assert_uint_eq(r.store.bytes_down, r.layout.bytes);
    rig_check_backing(&r);
    hy_store_forget(&r.store);
    rig_visit(&r, 2);
    ck_assert_uint_eq(r.store.bytes_up, r.layout.unit_bytes[2]);
    rig_renew(&r, 2, 5); /* it is here: nothing to bring, and what was here is overwritten */
    ck_assert_uint_eq(r.store.bytes_up, r.layout.unit_bytes[2]);
    rig_check_backing(&r);
    close_rings(&r, 1);
}
END_TEST

/* ---- resident units -------------------------------------------------------------------------- */

START_TEST(resident_units_take_no_room_in_the_backing_store) {
    hy_layout layout;
    rig_layout(&layout, tied, UNITS);
    for (int32_t resident = 0; resident <= 6; resident++) {
        hy_ring_plan plan = hy_store_plan_ring(&layout, 2, resident);
        uint64_t stay = (uint64_t)resident * layout.unit_bytes[1];
        ck_assert_uint_eq(plan.resident_bytes, stay);
        ck_assert_uint_eq(plan.backing_bytes, layout.bytes - stay);
    }
    hy_layout_fini(&layout);
}
END_TEST

START_TEST(a_resident_unit_never_travels) {
    store_rig r;
    open_rings(&r, 1, tied, 2, 1, 20, 1);
    uint64_t others = r.layout.bytes - r.layout.unit_bytes[3];
    rig_fill(&r);
    ck_assert_uint_eq(r.store.bytes_down, others);
    rig_check_backing(&r);
    hy_store_forget(&r.store);
    for (int i = 0; i < 5; i++) rig_change(&r, 3, 1);
    rig_renew(&r, 3, 2);
    rig_check_backing(&r);
    ck_assert_uint_eq(r.store.bytes_up, 0);
    ck_assert_uint_eq(r.store.bytes_down, others);
    close_rings(&r, 1);
}
END_TEST

/* A walk that breaks off forgets what was on its way, and nothing of what lives here. */
START_TEST(a_resident_unit_outlives_a_walk_that_broke_off) {
    store_rig r;
    open_rings(&r, 1, tied, 2, 3, 20, 1);
    rig_fill(&r);
    for (int32_t u = 1; u < 3; u++) must(hy_store_get(&r.store, machine.compute, u));
    must(machine.backend->stream_sync(machine.compute));
    hy_store_abandon(&r.store);
    for (int32_t u = 0; u < UNITS; u++) rig_visit(&r, u);
    rig_check_backing(&r);
    close_rings(&r, 1);
}
END_TEST

/* Another number of them, any to any other; and from ring to ring where the backing store is
 * shared. */
START_TEST(a_class_is_copied_between_stores_with_other_resident_units) {
    enum { STORES = 3 };
    static const int32_t resident[STORES] = {0, 2, 6};
    hy_layout layout;
    hy_store stores[STORES], other;
    uint64_t backing = 0, device = 0;
    rig_layout(&layout, tied, UNITS);
    for (int i = 0; i < STORES; i++) {
        backing += hy_store_plan_ring(&layout, 2, resident[i]).backing_bytes;
        device += hy_store_plan_ring(&layout, 2, resident[i]).bytes;
    }
    device += hy_store_plan_ring(&layout, 4, 2).bytes;
    rig_machine_open(&machine, 20, 4, backing, device);
    char *in = malloc(layout.bytes), *out = malloc(layout.bytes);
    for (int i = 0; i < STORES; i++) {
        hy_ring_options ring = {
            .depth = 2, .resident = resident[i], .copies = {machine.up, machine.down}};
        must(hy_store_init_ring(&stores[i], &machine.backing, &machine.device, HY_OPTIM, &layout,
                                &ring));
    }
    for (int k = 0; k < STORES * STORES; k++) {
        hy_store *from = &stores[k / STORES], *to = &stores[k % STORES];
        if (from == to) continue;
        for (size_t i = 0; i < layout.bytes; i++) in[i] = (char)(i * 13 + (size_t)k);
        must(hy_store_write(from, machine.compute, 0, in, layout.bytes));
        must(hy_store_copy(to, from, machine.compute));
        must(hy_store_read(to, machine.compute, 0, out, layout.bytes));
        ck_assert_mem_eq(in, out, layout.bytes);
    }
    hy_arena shared = machine.backing;
    shared.data = stores[1].data;
    shared.used = 0;
    shared.ledger = NULL;
    hy_ring_options deeper = {.depth = 4, .resident = 2, .copies = {machine.up, machine.down}};
    must(hy_store_settle(&stores[1]));
    must(hy_store_init_ring(&other, &shared, &machine.device, HY_OPTIM, &layout, &deeper));
    must(hy_store_copy_resident(&other, &stores[1], machine.compute));
    must(hy_store_read(&stores[1], machine.compute, 0, in, layout.bytes));
    must(hy_store_read(&other, machine.compute, 0, out, layout.bytes));
    ck_assert_mem_eq(in, out, layout.bytes);
    hy_store_fini(&other);
    for (int i = 0; i < STORES; i++) hy_store_fini(&stores[i]);
    free(in);
    free(out);
    hy_layout_fini(&layout);
    rig_machine_close(&machine);
}
END_TEST

START_TEST(a_forgotten_resident_unit_is_still_there) {
    store_rig r;
    open_rings(&r, 1, even, 2, 8, 0, 1);
    ck_assert_uint_eq(machine.backing.size, 0);
    rig_fill(&r);
    rig_check_backing(&r);
    for (int32_t i = 0; i < r.layout.item_count; i++) {
        float *backing = hy_store_backing(&r.store, i);
        for (int64_t k = 0; k < r.layout.items[i].count; k++) backing[k] = r.expected[i][k] = 7;
    }
    hy_store_forget(&r.store);
    for (int32_t u = 0; u < UNITS; u++) rig_visit(&r, u);
    rig_check_reads(&r);
    close_rings(&r, 1);
}
END_TEST

/* ---- and the end ----------------------------------------------------------------------------- */

START_TEST(what_is_on_its_way_back_arrives_before_the_end) {
    store_rig r;
    float copy[RIG_MOST];
    open_rings(&r, 1, even, 2, 4, 200, 1);
    rig_fill(&r);
    rig_check_reads(&r);
    int32_t item = 2 * (UNITS - 1); /* of the last unit to leave, or the one before */
    if (hy_store_has_own_buffer(&r.store, UNITS - 1)) item -= 2;
    float *backing = hy_store_backing(&r.store, item);
    hy_store_fini(&r.store);
    memcpy(copy, backing, 1000 * sizeof(float));
    ck_assert_mem_eq(copy, r.expected[item], 1000 * sizeof(float));
    close_rings(&r, 1);
}
END_TEST

START_TEST(a_large_unit_comes_in_pieces_when_asked_along_the_way) {
    store_rig r;
    open_rings(&r, 1, untied, 2, 0, 0, 1);
    rig_fill(&r);
    rig_check_backing(&r);
    hy_store_forget(&r.store);
    must(hy_store_prefetch_chunk(&r.store, UNITS - 1));
    uint64_t piece = r.store.bytes_up;
    ck_assert_uint_gt(piece, 0);
    ck_assert_uint_le(piece, r.store.ring.buffer_bytes / 4 + HY_ALIGNMENT);
    must(hy_store_prefetch_chunk(&r.store, UNITS - 1));
    ck_assert_uint_eq(r.store.bytes_up, 2 * piece);
    rig_visit(&r, UNITS - 1);
    ck_assert_uint_eq(r.store.bytes_up, r.layout.unit_bytes[UNITS - 1]);
    must(hy_store_prefetch_chunk(&r.store, 0)); /* begun, then thrown out by the other large unit */
    rig_visit(&r, UNITS - 1);
    rig_visit(&r, 0);
    rig_check_backing(&r);
    close_rings(&r, 1);
}
END_TEST

START_TEST(large_units_cannot_be_held_together) {
    store_rig r;
    open_rings(&r, 1, untied, 4, 0, 0, 1);
    must(hy_store_get(&r.store, machine.compute, 0));
    must_fail(hy_store_get(&r.store, machine.compute, UNITS - 1), HY_ERR_INTERNAL, "ring buffers");
    r.store.held--;
    must(hy_store_release(&r.store, machine.compute, 0));
    close_rings(&r, 1);
}
END_TEST

/* ---- made units ------------------------------------------------------------------------------ */

static void make_unit(hy_store *store, int32_t unit) {
    hy_op_call fill = {.kind = HY_OP_FILL, .attr.fill.value = (float)unit};
    if (hy_store_touch(store, unit)) return;
    must(hy_store_get_new(store, machine.compute, unit));
    for (int32_t i = 0; i < store->layout.item_count; i++) {
        if (store->layout.items[i].unit != unit) continue;
        fill.t[HY_FILL_DST] = hy_store_tensor(store, i, hy_store_device(store, i));
        must(machine.backend->enqueue(machine.compute, &fill));
    }
    must(hy_store_release_changed(store, machine.compute, unit));
}

START_TEST(units_that_are_made_have_a_large_buffer_too) {
    store_rig r;
    hy_layout layout;
    rig_layout(&layout, untied, UNITS);
    rig_machine_open(&machine, 20, 3, 0, hy_store_ring_bytes(&layout, 2));
    rig_layout(&r.layout, untied, UNITS);
    must(hy_store_init_made(&r.store, &machine.device, HY_WORKSPACE, &layout, 2));
    ck_assert_uint_eq(machine.device.used, machine.device.size);
    rig_begin(&r, &machine, 0, RIG_READS);
    for (int32_t i = 0; i < r.layout.item_count; i++) {
        for (int64_t k = 0; k < r.layout.items[i].count; k++) {
            r.expected[i][k] = (float)r.layout.items[i].unit;
        }
    }
    for (int round = 0; round < 2; round++) {
        for (int32_t u = 0; u < UNITS; u++) {
            must(hy_store_prefetch(&r.store, u));
            make_unit(&r.store, u);
            rig_visit(&r, u);
        }
    }
    rig_check_reads(&r);
    ck_assert(!hy_store_touch(&r.store, 1)); /* others took its buffer: it was kept nowhere */
    must_fail(hy_store_get(&r.store, machine.compute, 1), HY_ERR_INTERNAL, "unit 1");
    r.store.held--;
    hy_layout_fini(&layout);
    close_rings(&r, 1);
}
END_TEST

static Suite *store_suite(void) {
    Suite *suite = suite_create("memory store");
    TCase *tests = tcase_create("store");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, large_units_share_one_buffer_and_do_not_size_the_others);
    tcase_add_test(tests, neighbours_and_even_layouts_have_no_large_buffer);
    tcase_add_test(tests, small_units_have_buffers_of_their_size_where_asked_for);
    tcase_add_test(tests, resident_units_are_blocks_spread_evenly);
    tcase_add_test(tests, training_walks_give_the_same_numbers_at_every_depth);
    tcase_add_test(tests, training_walks_give_the_same_numbers_with_resident_units);
    tcase_add_test(tests, any_walk_ends_with_what_a_plain_store_would_hold);
    tcase_add_test(tests, a_copy_that_is_held_back_is_waited_for);
    tcase_add_test(tests, a_unit_that_is_got_new_is_not_brought);
    tcase_add_test(tests, resident_units_take_no_room_in_the_backing_store);
    tcase_add_test(tests, a_resident_unit_never_travels);
    tcase_add_test(tests, a_resident_unit_outlives_a_walk_that_broke_off);
    tcase_add_test(tests, a_class_is_copied_between_stores_with_other_resident_units);
    tcase_add_test(tests, a_forgotten_resident_unit_is_still_there);
    tcase_add_test(tests, what_is_on_its_way_back_arrives_before_the_end);
    tcase_add_test(tests, a_large_unit_comes_in_pieces_when_asked_along_the_way);
    tcase_add_test(tests, large_units_cannot_be_held_together);
    tcase_add_test(tests, units_that_are_made_have_a_large_buffer_too);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(store_suite)
