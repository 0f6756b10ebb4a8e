/* test_monitor.c: when memory counts as short, and how much memory a machine has left.
 *
 * Thresholds and budgets are tested by tables and by random walks; /proc and control groups by
 * simulated machines, and by this one, whose figures must agree with other sources. */
#include "made_machine.h"

#include "base/host_memory.h"
#include "base/rng.h"
#include "memory/monitor.h"
#include "process_figures.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static const hy_memory_thresholds balanced = {0.90, 0.92, 0.95, 0.97};

/* ---- status ---------------------------------------------------------------------------------- */

START_TEST(a_share_has_the_status_of_the_highest_threshold_it_reaches) {
    const struct {
        double share, planned;
        hy_memory_status status;
    } rows[] = {{0, 0, HY_MEMORY_NORMAL},
                {0.91, 0, HY_MEMORY_NORMAL},
                {0.92, 0, HY_MEMORY_WARNING},
                {0.949, 0, HY_MEMORY_WARNING},
                {0.95, 0, HY_MEMORY_CRITICAL},
                {0.969, 0, HY_MEMORY_CRITICAL},
                {0.97, 0, HY_MEMORY_EMERGENCY},
                {2, 0, HY_MEMORY_EMERGENCY},
                /* what was planned is normal, what is beyond it is not */
                {0.96, 0.96, HY_MEMORY_NORMAL},
                {1, 1, HY_MEMORY_NORMAL},
                {0.94, 0.93, HY_MEMORY_WARNING},
                {0.96, 0.95, HY_MEMORY_CRITICAL},
                {1.02, 1, HY_MEMORY_EMERGENCY},
                {0.5, 0.99, HY_MEMORY_NORMAL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hy_memory_status got = hy_memory_status_of(&balanced, rows[i].share, rows[i].planned);
        ck_assert_msg(got == rows[i].status, "%g of %g: %s", rows[i].share, rows[i].planned,
                      hy_memory_status_name(got));
    }
    ck_assert_str_eq(hy_memory_status_name(HY_MEMORY_EMERGENCY), "emergency");
}
END_TEST

static int looks_until_change(hy_memory_gauge *g, double share, bool may_fall, int most) {
    for (int i = 1; i <= most; i++) {
        if (hy_gauge_look(g, &balanced, share, 0, may_fall)) return i;
    }
    return 0;
}

START_TEST(a_status_rises_at_once_and_falls_step_by_step) {
    hy_memory_gauge g = {0};
    ck_assert(hy_gauge_look(&g, &balanced, 0.98, 0, true));
    ck_assert_int_eq(g.status, HY_MEMORY_EMERGENCY);
    ck_assert_int_eq(looks_until_change(&g, 0.5, true, 100), HY_GAUGE_CALM);
    ck_assert_int_eq(g.status, HY_MEMORY_CRITICAL);
    ck_assert_int_eq(looks_until_change(&g, 0.5, true, 100), HY_GAUGE_CALM);
    ck_assert_int_eq(looks_until_change(&g, 0.5, true, 100), HY_GAUGE_CALM);
    ck_assert_int_eq(g.status, HY_MEMORY_NORMAL);
    ck_assert_int_eq(looks_until_change(&g, 0.5, true, 100), 0);
}
END_TEST

START_TEST(a_status_stays_while_its_threshold_is_near) {
    hy_memory_gauge g = {0};
    ck_assert(hy_gauge_look(&g, &balanced, 0.925, 0, true));
    ck_assert_int_eq(looks_until_change(&g, 0.92 - HY_GAUGE_MARGIN / 2, true, 100), 0);
    ck_assert_int_eq(g.status, HY_MEMORY_WARNING);
    ck_assert_int_eq(looks_until_change(&g, 0.92 - 1.5 * HY_GAUGE_MARGIN, true, 100),
                     HY_GAUGE_CALM);
}
END_TEST

START_TEST(looks_that_may_not_lower_a_status_do_not) {
    hy_memory_gauge g = {.status = HY_MEMORY_CRITICAL};
    ck_assert_int_eq(looks_until_change(&g, 0.1, false, 100), 0);
    ck_assert_int_eq(looks_until_change(&g, 0.96, false, 100), 0);
    ck_assert_int_eq(looks_until_change(&g, 0.98, false, 1), 1);
    ck_assert_int_eq(g.status, HY_MEMORY_EMERGENCY);
}
END_TEST

static double unit(uint64_t seed, uint64_t i) { return hy_rng_uniform(seed, HY_RNG_TEST, i); }

/* Noise around a threshold gives one rise and no more. */
START_TEST(noise_does_not_make_it_flap) {
    for (uint64_t seed = 0; seed < 50; seed++) {
        hy_memory_gauge g = {0};
        int changes = 0;
        for (uint64_t i = 0; i < 2000; i++) {
            double share = 0.95 + HY_GAUGE_MARGIN * (unit(seed, i) - 0.5);
            changes += hy_gauge_look(&g, &balanced, share, 0, true);
        }
        ck_assert_int_le(changes, 2); /* to warning by the first look, then to critical */
        ck_assert_int_eq(g.status, HY_MEMORY_CRITICAL);
    }
}
END_TEST

/* Never below what the share says, never down by more than one, never down without a calm before
 * it. */
START_TEST(random_walks_keep_the_rules) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        hy_memory_gauge g = {0};
        double share = 0.9, highest[HY_GAUGE_CALM] = {9, 9, 9, 9, 9};
        for (uint64_t i = 0; i < 1000; i++) {
            hy_memory_status was = g.status;
            share += 0.03 * (unit(seed, i) - 0.5);
            share = share < 0.8 ? 0.8 : share > 1.1 ? 1.1 : share;
            highest[i % HY_GAUGE_CALM] = share;
            bool is_changed = hy_gauge_look(&g, &balanced, share, 0, true);
            ck_assert_int_ge(g.status, hy_memory_status_of(&balanced, share, 0));
            ck_assert_int_eq(is_changed, g.status != was);
            ck_assert_int_ge(g.status, (int)was - 1);
            for (int k = 0; g.status < was && k < HY_GAUGE_CALM; k++) {
                double held = highest[k] + HY_GAUGE_MARGIN;
                ck_assert_int_lt(hy_memory_status_of(&balanced, held, 0), was);
            }
        }
    }
}
END_TEST

/* ---- budgets --------------------------------------------------------------------------------- */

START_TEST(shares_and_fragmentation) {
    ck_assert_double_eq(hy_memory_share(3, 4), 0.75);
    ck_assert_double_eq(hy_memory_share(3, 0), 0);
    ck_assert_double_eq(hy_memory_fragmentation(100, 75), 0.25);
    ck_assert_double_eq(hy_memory_fragmentation(100, 100), 0);
    ck_assert_double_eq(hy_memory_fragmentation(0, 0), 0);
}
END_TEST

/* Free at the start 16 GiB, 256 MiB of it left alone. */
START_TEST(a_card_gives_less_when_others_take_of_it) {
    const struct {
        uint64_t free_now, reserved, budget; /* MiB */
    } rows[] = {
        {16384, 0, 16128},                          /* nothing taken yet */
        {6384, 10000, 16128},                       /* all that is gone is ours */
        {6284, 10000, 16128},                       /* code that was loaded */
        {6128, 10000, 16128},                       /* as much as was left alone */
        {5128, 10000, 15128},                       /* a gibibyte less for us */
        {0, 10000, 10000},    {7384, 10000, 17128}, /* somebody has ended */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t got =
            hy_card_budget(16384 * MIB, rows[i].free_now * MIB, rows[i].reserved * MIB, 256 * MIB);
        ck_assert_uint_eq(got / MIB, rows[i].budget);
    }
    ck_assert_uint_gt(hy_card_budget(0, 0, 0, 256 * MIB), 0);
}
END_TEST

START_TEST(a_reserve_is_a_sixteenth_and_two_gibibytes_at_most) {
    ck_assert_uint_eq(hy_host_reserve(16 * GIB, 0), GIB);
    ck_assert_uint_eq(hy_host_reserve(512 * GIB, 0), 2 * GIB);
    ck_assert_uint_eq(hy_host_reserve(512 * GIB, 5 << 20), 5 * MIB);
    ck_assert_uint_eq(hy_host_reserve(0, 0), 0);
}
END_TEST

START_TEST(pressure_says_how_near_the_machine_is_to_trouble) {
    hy_host_memory host = {.total = 64 * GIB, .available = 32 * GIB};
    ck_assert_uint_eq(hy_host_budget(&host, 0, 0, 2 * GIB), 30 * GIB);
    ck_assert_uint_eq(hy_host_budget(&host, 10 * GIB, 0, 2 * GIB), 40 * GIB);
    ck_assert_uint_eq(hy_host_budget(&host, 10 * GIB, 20 * GIB, 2 * GIB), 20 * GIB);
    ck_assert_double_eq(hy_host_pressure(&host, 10 * GIB, 0, 2 * GIB), 0.25);
    ck_assert_double_eq(hy_host_pressure(&host, 10 * GIB, 20 * GIB, 2 * GIB), 0.5);
    host.available = 2 * GIB; /* all but the reserve is used */
    ck_assert_double_eq(hy_host_pressure(&host, 10 * GIB, 0, 2 * GIB), 1);
    host.available = GIB; /* half of the reserve, too */
    ck_assert_double_eq(hy_host_pressure(&host, MIB, 0, 2 * GIB), 1.5);
    host = (hy_host_memory){.total = 64 * GIB, .available = 7 * GIB, .stalled = 0.2};
    ck_assert_double_eq(hy_host_pressure(&host, GIB, 0, 2 * GIB), 1);
    host.available = 9 * GIB; /* with more than an eighth left it is not for want of memory */
    ck_assert_double_lt(hy_host_pressure(&host, GIB, 0, 2 * GIB), 0.2);
    host = (hy_host_memory){0}; /* nothing is known */
    ck_assert_double_eq(hy_host_pressure(&host, GIB, 0, 0), 0);
    ck_assert_double_eq(hy_host_pressure(&host, GIB, 2 * GIB, 0), 0.5);
}
END_TEST

/* ---- made-up machines ------------------------------------------------------------------------ */

static void write_computer(void) {
    write_file(proc, "meminfo",
               "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   62914560 kB\n");
    write_file(proc, "self/statm", "90000 4096 2000 10 0 80000 0\n");
}

static hy_host_memory read_machine(void) {
    hy_host_memory host;
    hy_host_memory_read(proc, sys, &host);
    return host;
}

START_TEST(a_plain_computer) {
    write_computer();
    hy_host_memory h = read_machine();
    ck_assert_uint_eq(h.total, 64 * GIB);
    ck_assert_uint_eq(h.available, 60 * GIB);
    ck_assert_uint_eq(h.group_limit, HY_HOST_NO_LIMIT);
    ck_assert_uint_eq(h.resident, 4096 * (uint64_t)sysconf(_SC_PAGESIZE));
    ck_assert_double_eq(h.stalled, 0);
}
END_TEST

START_TEST(groups_of_version_2_limit_from_any_level) {
    write_computer();
    write_file(proc, "self/cgroup", "0::/a/b/c\n");
    write_file(sys, "fs/cgroup/a/b/c/memory.max", "max\n");
    write_file(sys, "fs/cgroup/a/b/memory.max", "8589934592\n");
    write_file(sys, "fs/cgroup/a/b/memory.current", "6442450944\n");
    write_file(sys, "fs/cgroup/a/b/memory.stat",
               "anon 1\nfile 3221225472\ninactive_file 1073741824\nactive_file 2147483648\n");
    hy_host_memory h = read_machine();
    ck_assert_uint_eq(h.total, 8 * GIB);
    ck_assert_uint_eq(h.group_left, 3 * GIB); /* 6 used, of them 1 is files that give way */
    ck_assert_uint_eq(h.available, 3 * GIB);
    write_file(sys, "fs/cgroup/a/memory.max", "4294967296\n"); /* and nothing in use there */
    ck_assert_uint_eq(read_machine().total, 8 * GIB);
    write_file(sys, "fs/cgroup/a/memory.current", "4294967296\n");
    h = read_machine();
    ck_assert_uint_eq(h.total, 4 * GIB);
    ck_assert_uint_eq(h.available, 0);
}
END_TEST

/* In a container the names that /proc gives do not exist below /sys. */
START_TEST(a_container_finds_its_limit_at_the_root) {
    write_computer();
    write_file(proc, "self/cgroup", "0::/docker/0123456789abcdef\n");
    write_file(sys, "fs/cgroup/memory.max", "2147483648\n");
    write_file(sys, "fs/cgroup/memory.current", "1073741824\n");
    ck_assert_uint_eq(read_machine().available, GIB);
    write_file(proc, "self/cgroup", "0::/\n");
    ck_assert_uint_eq(read_machine().available, GIB);
}
END_TEST

START_TEST(groups_of_version_1_limit_too) {
    write_computer();
    write_file(proc, "self/cgroup", "12:pids:/x\n9:memory:/job/7\n1:name=systemd:/y\n");
    write_file(sys, "fs/cgroup/memory/job/7/memory.limit_in_bytes", "17179869184\n");
    write_file(sys, "fs/cgroup/memory/job/7/memory.usage_in_bytes", "4294967296\n");
    write_file(sys, "fs/cgroup/memory/job/7/memory.stat",
               "inactive_file 5\ntotal_inactive_file 2147483648\n");
    write_file(sys, "fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    hy_host_memory h = read_machine();
    ck_assert_uint_eq(h.total, 16 * GIB);
    ck_assert_uint_eq(h.available, 14 * GIB);
}
END_TEST

START_TEST(a_limit_above_the_machine_is_none) {
    write_computer();
    write_file(proc, "self/cgroup", "0::/\n");
    write_file(sys, "fs/cgroup/memory.max", "1099511627776\n");
    write_file(sys, "fs/cgroup/memory.current", "1073741824\n");
    hy_host_memory h = read_machine();
    ck_assert_uint_eq(h.total, 64 * GIB);
    ck_assert_uint_eq(h.available, 60 * GIB);
}
END_TEST

START_TEST(time_lost_for_want_of_memory_is_read) {
    write_computer();
    write_file(proc, "pressure/memory",
               "some avg10=31.25 avg60=2.00 avg300=0.10 total=123\n"
               "full avg10=12.50 avg60=1.00 avg300=0.05 total=99\n");
    ck_assert_double_eq(read_machine().stalled, 0.125);
}
END_TEST

START_TEST(what_cannot_be_read_limits_nothing) {
    static const char *const odd[] = {
        "", "\n", "MemTotal", "MemTotal: -\nMemAvailable: x\n", "full avg10=\n", "::::\n", "0::\n"};
    hy_host_memory h = read_machine(); /* no file at all */
    ck_assert_uint_eq(h.total, 0);
    ck_assert_uint_eq(h.available, 0);
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        write_file(proc, "meminfo", odd[i]);
        write_file(proc, "self/statm", odd[i]);
        write_file(proc, "self/cgroup", odd[i]);
        write_file(proc, "pressure/memory", odd[i]);
        write_file(sys, "fs/cgroup/memory.max", odd[i]);
        h = read_machine();
        ck_assert_uint_eq(h.total, 0);
        ck_assert_uint_eq(h.resident, 0);
        ck_assert_uint_eq(h.group_limit, HY_HOST_NO_LIMIT);
        ck_assert_double_eq(h.stalled, 0);
    }
}
END_TEST

/* ---- the watch ------------------------------------------------------------------------------- */

/* In place, as the kernel's files change: a watch keeps them open. */
static void rewrite(const char *root, const char *name, const char *text) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(a_watch_sees_what_changes_and_does_not_look_too_often) {
    write_computer();
    write_file(proc, "self/cgroup", "0::/\n");
    write_file(sys, "fs/cgroup/memory.max", "max\n");
    write_file(sys, "fs/cgroup/memory.current", "1073741824\n");
    hy_host_watch *w = hy_host_watch_open(proc, sys);
    ck_assert_uint_eq(hy_host_watch_look(w)->available, 60 * GIB);
    rewrite(proc, "meminfo", "MemTotal: 67108864 kB\nMemAvailable: 1048576 kB\n");
    ck_assert_uint_eq(hy_host_watch_look(w)->available, 60 * GIB); /* a moment ago is near enough */
    ck_assert_uint_eq(hy_host_watch_read(w)->available, GIB);
    rewrite(sys, "fs/cgroup/memory.max", "1342177280\n"); /* a limit that is set later */
    ck_assert_uint_eq(hy_host_watch_read(w)->available, GIB / 4);
    for (int i = 0; i < 200 && hy_host_watch_look(w)->available != 2 * GIB; i++) {
        rewrite(proc, "meminfo", "MemTotal: 67108864 kB\nMemAvailable: 2097152 kB\n");
        rewrite(sys, "fs/cgroup/memory.max", "max\n");
        usleep(20000);
    }
    ck_assert_uint_eq(hy_host_watch_look(w)->available, 2 * GIB);
    hy_host_watch_close(w);
    hy_host_watch_close(NULL);
    ck_assert_uint_eq(hy_host_watch_look(NULL)->total, 0);
}
END_TEST

START_TEST(a_watch_closes_its_files) {
    int before = count_open_files();
    hy_host_memory host;
    hy_host_watch *w = hy_host_watch_open("/proc", "/sys");
    ck_assert_int_gt(count_open_files(), before);
    hy_host_watch_close(w);
    hy_host_memory_read("/proc", "/sys", &host);
    ck_assert_int_eq(count_open_files(), before);
}
END_TEST

/* ---- this machine ---------------------------------------------------------------------------- */

static void check_resident(hy_host_watch *w) {
    double told = (double)hy_host_watch_read(w)->resident, status = (double)status_bytes("VmRSS");
    ck_assert_msg(told > 0.99 * status && told < 1.01 * status, "%.0f told, %.0f by status", told,
                  status);
}

START_TEST(resident_memory_is_what_the_system_says_elsewhere) {
    hy_host_watch *w = hy_host_watch_open("/proc", "/sys");
    uint64_t before = hy_host_watch_read(w)->resident;
    check_resident(w);
    char *block = malloc(64 * MIB);
    ck_assert_ptr_nonnull(block);
    memset(block, 1, 64 * MIB);
    check_resident(w);
    uint64_t grown = hy_host_watch_read(w)->resident - before;
    ck_assert_uint_gt(grown, 63 * MIB);
#ifndef __SANITIZE_THREAD__ /* which keeps its own notes of every byte */
    ck_assert_uint_lt(grown, 66 * MIB);
#endif
    ck_assert_int_eq(block[12345], 1);
    free(block);
    ck_assert_uint_gt(hy_host_watch_read(w)->available, 0);
    ck_assert_uint_ge(hy_host_watch_read(w)->total, hy_host_watch_read(w)->available);
    hy_host_watch_close(w);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("memory monitor");
    TCase *rules = tcase_create("rules"), *machines = tcase_create("machines");
    tcase_add_test(rules, a_share_has_the_status_of_the_highest_threshold_it_reaches);
    tcase_add_test(rules, a_status_rises_at_once_and_falls_step_by_step);
    tcase_add_test(rules, a_status_stays_while_its_threshold_is_near);
    tcase_add_test(rules, looks_that_may_not_lower_a_status_do_not);
    tcase_add_test(rules, noise_does_not_make_it_flap);
    tcase_add_test(rules, random_walks_keep_the_rules);
    tcase_add_test(rules, shares_and_fragmentation);
    tcase_add_test(rules, a_card_gives_less_when_others_take_of_it);
    tcase_add_test(rules, a_reserve_is_a_sixteenth_and_two_gibibytes_at_most);
    tcase_add_test(rules, pressure_says_how_near_the_machine_is_to_trouble);
    tcase_add_test(rules, resident_memory_is_what_the_system_says_elsewhere);
    tcase_add_checked_fixture(machines, make_machine, drop_machine);
    tcase_add_test(machines, a_plain_computer);
    tcase_add_test(machines, groups_of_version_2_limit_from_any_level);
    tcase_add_test(machines, a_container_finds_its_limit_at_the_root);
    tcase_add_test(machines, groups_of_version_1_limit_too);
    tcase_add_test(machines, a_limit_above_the_machine_is_none);
    tcase_add_test(machines, time_lost_for_want_of_memory_is_read);
    tcase_add_test(machines, what_cannot_be_read_limits_nothing);
    tcase_add_test(machines, a_watch_sees_what_changes_and_does_not_look_too_often);
    tcase_add_test(machines, a_watch_closes_its_files);
    suite_add_tcase(suite, rules);
    suite_add_tcase(suite, machines);
    return suite;
}

HY_TEST_MAIN(make_suite)
