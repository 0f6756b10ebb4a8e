/* test_memory_store_disk.c: stores backed by the disk: the same numbers, bounded memory, failing
 * disks. */
#include "store_walks.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static const int64_t untied[] = {3000, 900, 1000, 1000, 950, 1000, 1000, 3100};
static const int64_t tied[] = {3000, 1000, 1000, 1000, 1000, 1000, 1000, 40};
#define UNITS 8

static char folder[256];
static rig_machine machine;
static hy_spill *spill;
static hy_arena staging;

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

typedef struct setup {
    const int64_t *sizes;
    int32_t depth, resident, buffers;
    int delay;
    hy_spill_options spill;
} setup;

static void open_disks(store_rig *rigs, int count, const setup *s) {
    hy_layout layout;
    rig_layout(&layout, s->sizes, UNITS);
    hy_ring_plan plan = hy_store_plan_ring(&layout, s->depth, s->resident);
    uint64_t pinned = hy_store_staging_bytes(&plan, s->buffers), disk = plan.disk_bytes;
    hy_layout_fini(&layout);
    rig_machine_open(&machine, s->delay, 7, 0, (uint64_t)count * plan.bytes);
    must(hy_arena_init(&staging, machine.backend, &machine.ledger, HY_PINNED,
                       (uint64_t)count * hy_align(pinned), "a test"));
    memset(staging.data, 0xff, staging.size);
    must(hy_spill_open(folder, (uint64_t)count * disk, &s->spill, &spill));
    for (int i = 0; i < count; i++) {
        hy_ring_options ring = {
            .depth = s->depth, .resident = s->resident, .copies = {machine.up, machine.down}};
        hy_disk_backing backing = {.spill = spill,
                                   .offset = (uint64_t)i * disk,
                                   .staging = &staging,
                                   .buffers = s->buffers};
        rig_layout(&rigs[i].layout, s->sizes, UNITS);
        must(hy_store_init_disk(&rigs[i].store, &backing, &machine.device, HY_OPTIM,
                                &rigs[i].layout, &ring));
        rig_begin(&rigs[i], &machine, i * RIG_READS / count, RIG_READS / count);
    }
    ck_assert_uint_eq(machine.device.used, machine.device.size);
    ck_assert_uint_eq(staging.used, staging.size);
}

static void close_disks(store_rig *rigs, int count) {
    for (int i = 0; i < count; i++) rig_end(&rigs[i]);
    (void)hy_spill_close(spill); /* tests of failures leave some behind */
    hy_arena_fini(&staging);
    rig_machine_close(&machine);
}

START_TEST(training_walks_over_disk_give_the_same_numbers) {
    for (int32_t depth = 2; depth <= 4; depth++) {
        for (int32_t buffers = 2; buffers <= 4; buffers++) {
            store_rig r[2];
            bool is_tied = (depth + buffers) % 2 == 0;
            setup s = {.sizes = is_tied ? tied : untied,
                       .depth = depth,
                       .resident = buffers - 2,
                       .buffers = buffers,
                       .delay = 60};
            open_disks(r, 2, &s);
            walk_steps(&r[0], &r[1], is_tied);
            close_disks(r, 2);
        }
    }
}
END_TEST

START_TEST(any_walk_over_disk_ends_with_what_a_plain_store_would_hold) {
    static const hy_spill_path paths[] = {HY_SPILL_AUTO, HY_SPILL_THREADS};
    for (int i = 0; i < 6; i++) {
        store_rig r[2];
        setup s = {.sizes = i % 2 ? tied : untied,
                   .depth = 2 + i % 3,
                   .resident = i,
                   .buffers = 2 + i % 2,
                   .delay = 40,
                   .spill = {.path = paths[i % 2], .fault = {.short_every = 3}}};
        open_disks(r, 2, &s);
        rig_fill(&r[0]);
        rig_fill(&r[1]);
        for (int part = 0; part < 3; part++) {
            stray(&r[0], (uint64_t)(i * 10 + part), 60);
            stray(&r[1], (uint64_t)(500 + i * 10 + part), 60);
        }
        close_disks(r, 2);
    }
}
END_TEST

START_TEST(resident_units_have_no_room_in_the_file) {
    store_rig r;
    hy_spill_stats stats;
    uint64_t before = 0;
    for (int32_t resident = 0; resident <= 6; resident += 2) {
        open_disks(&r, 1, &(setup){.sizes = tied, .depth = 2, .resident = resident, .buffers = 2});
        uint64_t disk = r.store.ring.disk_bytes, room = hy_spill_room(r.layout.unit_bytes[1]);
        ck_assert_int_eq(r.store.ring.resident, resident);
        if (resident > 0) ck_assert_uint_eq(disk, before - 2 * room);
        before = disk;
        rig_fill(&r);
        rig_check_backing(&r);
        hy_spill_get_stats(spill, &stats);
        ck_assert_uint_eq(stats.bytes_written, r.layout.bytes - r.store.ring.resident_bytes);
        close_disks(&r, 1);
    }
}
END_TEST

START_TEST(what_was_never_written_is_zero) {
    store_rig r;
    open_disks(&r, 1, &(setup){.sizes = untied, .depth = 2, .buffers = 2});
    for (int32_t u = 0; u < UNITS; u++) rig_visit(&r, u);
    rig_check_backing(&r);
    close_disks(&r, 1);
}
END_TEST

START_TEST(a_unit_that_is_still_staged_is_not_read_again) {
    store_rig r;
    hy_spill_stats before, after;
    open_disks(&r, 1, &(setup){.sizes = tied, .depth = 2, .buffers = 3});
    rig_fill(&r);
    rig_check_backing(&r);
    rig_change(&r, 3, 1);
    rig_visit(&r, 4);
    rig_visit(&r, 5);
    must(hy_store_settle(&r.store));
    hy_spill_get_stats(spill, &before);
    hy_store_forget(&r.store);
    rig_visit(&r, 5);
    hy_spill_get_stats(spill, &after);
    ck_assert_uint_eq(before.bytes_read, after.bytes_read);
    rig_check_reads(&r);
    close_disks(&r, 1);
}
END_TEST

START_TEST(reading_ahead_begins_with_gather) {
    store_rig r;
    hy_spill_stats before, after;
    open_disks(&r, 1, &(setup){.sizes = tied, .depth = 2, .buffers = 3});
    rig_fill(&r);
    rig_check_backing(&r);
    hy_spill_get_stats(spill, &before);
    must(hy_store_prefetch(&r.store, 2));
    must(hy_store_prefetch(&r.store, 1));
    hy_spill_settle(spill);
    hy_spill_get_stats(spill, &after);
    ck_assert_uint_gt(after.bytes_read, before.bytes_read);
    rig_visit(&r, 2);
    rig_visit(&r, 1);
    hy_spill_get_stats(spill, &before);
    ck_assert_uint_eq(before.bytes_read, after.bytes_read); /* both were there */
    rig_check_backing(&r);
    close_disks(&r, 1);
}
END_TEST

/* The stage of a unit whose copy to the device is held back is given to one that is written
 * back. */
START_TEST(a_stage_is_not_filled_while_it_is_copied_from) {
    store_rig r;
    hy_stream *brake;
    hy_event *event;
    static float room[4];
    open_disks(&r, 1, &(setup){.sizes = tied, .depth = 3, .buffers = 2, .delay = 100});
    must(machine.backend->stream_create(machine.backend, "brake", &brake));
    must(machine.backend->event_create(machine.backend, &event));
    rig_fill(&r);
    for (int round = 0; round < 4; round++) {
        rig_check_backing(&r);
        hy_store_forget(&r.store);
        hy_op_call fill = {.kind = HY_OP_FILL};
        fill.t[HY_FILL_DST] = hy_tensor_1d(room, HY_F32, 4);
        for (int i = 0; i < 60; i++) must(machine.backend->enqueue(brake, &fill));
        must(machine.backend->event_record(event, brake));
        must(machine.backend->stream_wait(machine.up, event));
        uint64_t before = r.store.bytes_up;
        while (r.store.bytes_up == before) must(hy_store_prefetch(&r.store, 1));
        rig_renew(&r, 2, 2);
        rig_renew(&r, 3, 3);
        rig_visit(&r, 1);
    }
    rig_check_backing(&r);
    machine.backend->stream_destroy(brake);
    machine.backend->event_destroy(event);
    close_disks(&r, 1);
}
END_TEST

START_TEST(parts_of_a_class_are_read_and_written_across_units) {
    store_rig r;
    char *all, *copy;
    open_disks(&r, 1, &(setup){.sizes = untied, .depth = 2, .resident = _i, .buffers = 2});
    size_t bytes = r.layout.bytes;
    all = malloc(bytes);
    copy = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) all[i] = (char)(i * 7 + i / 1000);
    for (size_t at = 0; at < bytes; at += 5000) {
        size_t part = bytes - at < 5000 ? bytes - at : 5000;
        must(hy_store_write(&r.store, machine.compute, at, all + at, part));
    }
    hy_spill_stats stats;
    must(hy_store_settle(&r.store));
    hy_spill_get_stats(spill, &stats);
    /* Each unit that travels once, not once for each part. */
    ck_assert_uint_eq(stats.bytes_written, r.store.ring.backing_bytes);
    must(hy_store_read(&r.store, machine.compute, 0, copy, bytes));
    ck_assert_mem_eq(all, copy, bytes);
    must(hy_store_read(&r.store, machine.compute, 3333, copy, bytes - 3333));
    ck_assert_mem_eq(all + 3333, copy, bytes - 3333);
    must(hy_store_zero(&r.store, machine.compute));
    must(machine.backend->stream_sync(machine.compute));
    must(hy_store_read(&r.store, machine.compute, 0, copy, bytes));
    for (size_t i = 0; i < bytes; i++) ck_assert_int_eq(copy[i], 0);
    free(all);
    free(copy);
    close_disks(&r, 1);
}
END_TEST

START_TEST(a_class_is_copied_from_any_place_to_any_other) {
    static const int64_t coarse[] = {640, 1280, 64};
    hy_layout layouts[2];
    hy_store stores[3];
    char *in, *out;
    rig_layout(&layouts[0], coarse, 3);
    uint64_t bytes = layouts[0].bytes; /* the other cuts as many bytes elsewhere */
    hy_layout_item items[] = {{.unit = 0, .dtype = HY_U8, .count = 1024},
                              {.unit = 1, .dtype = HY_U8, .count = (int64_t)bytes - 1024 - 512},
                              {.unit = 2, .dtype = HY_U8, .count = 512}};
    must(hy_layout_init(&layouts[1], items, 3, 3));
    ck_assert_uint_eq(layouts[1].bytes, bytes);
    rig_machine_open(&machine, 0, 1, bytes, bytes + (1 << 20));
    hy_ring_plan plan = hy_store_plan_ring(&layouts[1], 2, 0);
    uint64_t pinned = hy_store_staging_bytes(&plan, 2);
    must(hy_arena_init(&staging, machine.backend, &machine.ledger, HY_PINNED, pinned, "a test"));
    must(hy_spill_open(folder, plan.disk_bytes, NULL, &spill));
    hy_ring_options ring = {.depth = 2, .copies = {machine.up, machine.down}};
    hy_disk_backing backing = {.spill = spill, .staging = &staging, .buffers = 2};
    must(hy_store_init(&stores[0], &machine.device, HY_WEIGHTS, &layouts[0]));
    must(hy_store_init_ring(&stores[1], &machine.backing, &machine.device, HY_SNAPSHOT, &layouts[0],
                            &ring));
    must(
        hy_store_init_disk(&stores[2], &backing, &machine.device, HY_SNAPSHOT, &layouts[1], &ring));
    in = malloc(bytes);
    out = malloc(bytes);
    for (int from = 0; from < 3; from++) {
        for (int to = 0; to < 3; to++) {
            if (from == to) continue;
            for (size_t i = 0; i < bytes; i++) in[i] = (char)(i * 11 + (size_t)(from * 3 + to));
            must(hy_store_write(&stores[from], machine.compute, 0, in, bytes));
            must(hy_store_copy(&stores[to], &stores[from], machine.compute));
            must(hy_store_read(&stores[to], machine.compute, 0, out, bytes));
            ck_assert_mem_eq(in, out, bytes);
        }
    }
    must(hy_store_get(&stores[1], machine.compute, 0));
    must_fail(hy_store_copy(&stores[0], &stores[1], machine.compute), HY_ERR_INTERNAL, "in use");
    must(hy_store_release(&stores[1], machine.compute, 0));
    free(in);
    free(out);
    for (int i = 0; i < 3; i++) hy_store_fini(&stores[i]);
    for (int i = 0; i < 2; i++) hy_layout_fini(&layouts[i]);
    must(hy_spill_close(spill));
    hy_arena_fini(&staging);
    rig_machine_close(&machine);
}
END_TEST

/* ---- failing disks --------------------------------------------------------------------------- */

/* Continues until a call fails; which one it is depends on when the disk answers. */
static hy_status walk_until_failure(store_rig *r) {
    hy_stream *stream = machine.compute;
    for (int round = 0; round < 4; round++) {
        for (int32_t u = 0; u < UNITS; u++) {
            if (u + 1 < UNITS) HY_TRY(hy_store_prefetch(&r->store, u + 1));
            HY_TRY(hy_store_get(&r->store, stream, u));
            HY_TRY(hy_store_release_changed(&r->store, stream, u));
        }
        HY_TRY(hy_store_settle(&r->store));
    }
    return HY_OK;
}

static void expect_failure(setup s, const char *words) {
    store_rig r;
    open_disks(&r, 1, &s);
    must_fail(walk_until_failure(&r), HY_ERR_IO, folder);
    ck_assert_msg(strstr(hy_error_message(), words) != NULL, "the message lacks \"%s\": %s", words,
                  hy_error_message());
    must_fail(hy_store_settle(&r.store), HY_ERR_IO, folder); /* and again: the run has to end */
    must_fail(hy_store_get(&r.store, machine.compute, 3), HY_ERR_IO, "could not be");
    close_disks(&r, 1);
}

START_TEST(a_failing_disk_is_reported_with_its_folder_and_nothing_hangs) {
    static const hy_spill_path paths[] = {HY_SPILL_AUTO, HY_SPILL_THREADS};
    for (int i = 0; i < 2; i++) {
        for (int64_t at = 1; at <= 40; at += 3) {
            setup s = {.sizes = untied,
                       .depth = 2,
                       .buffers = 2,
                       .delay = 10,
                       .spill = {.path = paths[i], .fault = {.at = at, .error = EIO}}};
            s.spill.fault.is_lasting = at % 2;
            expect_failure(s, "could not be");
        }
    }
}
END_TEST

START_TEST(a_full_disk_is_reported) {
    setup s = {.sizes = tied,
               .depth = 3,
               .buffers = 2,
               .spill = {.fault = {.at = 12, .error = ENOSPC, .is_lasting = true}}};
    expect_failure(s, strerror(ENOSPC));
}
END_TEST

START_TEST(a_killed_process_leaves_nothing_in_the_folder) {
    pid_t child = fork();
    if (child == 0) {
        store_rig r;
        open_disks(&r, 1, &(setup){.sizes = untied, .depth = 2, .buffers = 2});
        rig_fill(&r);
        kill(getpid(), SIGKILL);
    }
    int state;
    ck_assert_int_eq(waitpid(child, &state, 0), child);
    ck_assert(WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL);
    char **names;
    size_t count;
    must(hy_dir_list(folder, &names, &count));
    hy_dir_list_free(names, count);
    ck_assert_uint_eq(count, 0);
}
END_TEST

static Suite *disk_suite(void) {
    Suite *suite = suite_create("memory store on disk");
    TCase *tests = tcase_create("disk");
    tcase_set_timeout(tests, 180);
    tcase_add_checked_fixture(tests, make_folder, drop_folder);
    tcase_add_test(tests, training_walks_over_disk_give_the_same_numbers);
    tcase_add_test(tests, any_walk_over_disk_ends_with_what_a_plain_store_would_hold);
    tcase_add_test(tests, resident_units_have_no_room_in_the_file);
    tcase_add_test(tests, what_was_never_written_is_zero);
    tcase_add_test(tests, a_unit_that_is_still_staged_is_not_read_again);
    tcase_add_test(tests, reading_ahead_begins_with_gather);
    tcase_add_test(tests, a_stage_is_not_filled_while_it_is_copied_from);
    tcase_add_loop_test(tests, parts_of_a_class_are_read_and_written_across_units, 0, 3);
    tcase_add_test(tests, a_class_is_copied_from_any_place_to_any_other);
    tcase_add_test(tests, a_failing_disk_is_reported_with_its_folder_and_nothing_hangs);
    tcase_add_test(tests, a_full_disk_is_reported);
    tcase_add_test(tests, a_killed_process_leaves_nothing_in_the_folder);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(disk_suite)
