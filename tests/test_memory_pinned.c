/* test_memory_pinned.c: limits of pinned memory, read from simulated machines.
 *
 * Each test writes the files of /proc and /sys that its machine has into a folder, and checks the
 * limit, its cause and the message of a refusal. */
#include "made_machine.h"

#include "memory/pinned.h"

#define GIB ((uint64_t)1 << 30)

/* A computer of 64 GiB with 60 free, without groups. */
static void write_computer(void) {
    write_file(proc, "meminfo",
               "MemTotal:       67108864 kB\n"
               "MemFree:         1048576 kB\n"
               "MemAvailable:   62914560 kB\n");
    write_file(proc, "version", "Linux version 6.8.0-31-generic (gcc) #31 SMP\n");
    write_file(proc, "self/limits",
               "Limit                     Soft Limit           Hard Limit           Units     \n"
               "Max locked memory         8388608              unlimited            bytes     \n");
}

static hy_pin_limits probe(void) {
    hy_pin_limits limits;
    hy_pin_probe(proc, sys, &limits);
    return limits;
}

START_TEST(free_memory_less_a_margin_is_the_limit) {
    write_computer();
    hy_pin_limits l = probe();
    ck_assert_uint_eq(l.ram_total, 64 * GIB);
    ck_assert_uint_eq(l.ram_available, 60 * GIB);
    ck_assert_uint_eq(l.cgroup_limit, HY_PIN_NO_LIMIT);
    ck_assert_uint_eq(l.likely_limit, 60 * GIB - 3 * GIB / 2);
    ck_assert_uint_eq(hy_pin_most(&l, 40 * GIB), 100 * GIB - 3 * GIB / 2); /* 40 are not free */
    ck_assert_int_eq(l.which, HY_PIN_RAM);
    ck_assert(!l.is_wsl2);
    must(hy_pin_allows(&l, l.likely_limit));
    must_fail(hy_pin_allows(&l, l.likely_limit + 1), HY_ERR_MEMORY, "the limit is 58.5 GiB");
    must_fail(hy_pin_allows(&l, 70 * GIB), HY_ERR_MEMORY, "cannot pin 70.0 GiB of memory");
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "free memory less 1.5 GiB"));
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "close other programs"));
    ck_assert_ptr_null(strchr(hy_error_message(), '\n'));
}
END_TEST

START_TEST(a_small_machine_leaves_a_small_margin) {
    write_file(proc, "meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
    ck_assert_uint_eq(probe().likely_limit, 4 * GIB - 8 * GIB / 20);
    write_file(proc, "meminfo", "MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n");
    ck_assert_uint_eq(probe().likely_limit, 0); /* and not less than nothing */
}
END_TEST

/* The limit on locked memory is 8 MiB on most computers and does not stop NVIDIA's driver. */
START_TEST(the_limit_on_locked_memory_is_reported_and_does_not_refuse) {
    write_computer();
    hy_pin_limits l = probe();
    ck_assert_uint_eq(l.memlock, 8 << 20);
    must(hy_pin_allows(&l, 40 * GIB));
    hy_fail(HY_ERR_MEMORY, "the driver said no");
    must_fail(hy_pin_refused(&l, HY_ERR_MEMORY, 40 * GIB), HY_ERR_MEMORY, "the driver said no; ");
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "8.0 MiB"));
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "ulimit -l unlimited"));
    write_file(proc, "self/limits", "Max locked memory         unlimited            unlimited\n");
    l = probe();
    ck_assert_uint_eq(l.memlock, HY_PIN_NO_LIMIT);
    hy_fail(HY_ERR_MEMORY, "the driver said no");
    must_fail(hy_pin_refused(&l, HY_ERR_DEVICE, 40 * GIB), HY_ERR_DEVICE, "the driver does not");
}
END_TEST

START_TEST(a_group_of_version_2_limits) {
    write_computer();
    write_file(proc, "self/cgroup", "0::/\n");
    write_file(sys, "fs/cgroup/memory.max", "34359738368\n"); /* 32 GiB */
    write_file(sys, "fs/cgroup/memory.current", "4294967296\n");
    write_file(sys, "fs/cgroup/memory.stat", "anon 1\ninactive_file 2147483648\nactive_file 5\n");
    hy_pin_limits l = probe();
    ck_assert_uint_eq(l.cgroup_limit, 32 * GIB);
    ck_assert_uint_eq(l.cgroup_left, 30 * GIB); /* 4 in use, 2 of them files in cache */
    ck_assert_uint_eq(l.likely_limit, 30 * GIB - 3 * GIB / 2);
    ck_assert_int_eq(l.which, HY_PIN_CGROUP);
    must_fail(hy_pin_allows(&l, 40 * GIB), HY_ERR_MEMORY, "control group's limit of 32.0 GiB");
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "docker run --memory"));
}
END_TEST

/* The closest limit may stand anywhere between the process's group and the root. */
START_TEST(a_limit_above_the_group_of_the_process_is_found) {
    write_computer();
    write_file(proc, "self/cgroup", "1:name=systemd:/x\n0::/user.slice/session.scope\n");
    write_file(sys, "fs/cgroup/user.slice/session.scope/memory.max", "max\n");
    write_file(sys, "fs/cgroup/user.slice/session.scope/memory.current", "1073741824\n");
    write_file(sys, "fs/cgroup/user.slice/memory.max", "21474836480\n"); /* 20 GiB */
    write_file(sys, "fs/cgroup/user.slice/memory.current", "0\n");
    write_file(sys, "fs/cgroup/other.slice/memory.max", "1\n");
    hy_pin_limits l = probe();
    ck_assert_uint_eq(l.cgroup_limit, 20 * GIB);
    ck_assert_uint_eq(l.cgroup_left, 20 * GIB);
    ck_assert_int_eq(l.which, HY_PIN_CGROUP);
}
END_TEST

/* A container of version 1: /proc names a group that its /sys does not show; the limit is at the
 * root. */
START_TEST(a_group_of_version_1_limits) {
    write_computer();
    write_file(proc, "self/cgroup", "11:cpu:/docker/abc\n9:memory:/docker/abc\n");
    write_file(sys, "fs/cgroup/memory/memory.limit_in_bytes", "17179869184\n"); /* 16 GiB */
    write_file(sys, "fs/cgroup/memory/memory.usage_in_bytes", "3221225472\n");
    write_file(sys, "fs/cgroup/memory/memory.stat",
               "inactive_file 7\ntotal_inactive_file 1073741824\n");
    hy_pin_limits l = probe();
    ck_assert_uint_eq(l.cgroup_limit, 16 * GIB);
    ck_assert_uint_eq(l.cgroup_left, 14 * GIB);
    ck_assert_int_eq(l.which, HY_PIN_CGROUP);
    write_file(sys, "fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    l = probe();
    ck_assert_uint_eq(l.cgroup_limit, HY_PIN_NO_LIMIT);
    ck_assert_int_eq(l.which, HY_PIN_RAM);
}
END_TEST

START_TEST(a_group_that_is_used_up_leaves_nothing) {
    write_computer();
    write_file(sys, "fs/cgroup/memory.max", "1073741824\n");
    write_file(sys, "fs/cgroup/memory.current", "2147483648\n");
    ck_assert_uint_eq(probe().likely_limit, 0);
}
END_TEST

START_TEST(wsl2_pins_half_of_its_memory) {
    write_computer();
    write_file(proc, "version", "Linux version 5.15.167.4-microsoft-standard-WSL2 (gcc) #1\n");
    hy_pin_limits l = probe();
    ck_assert(l.is_wsl2);
    ck_assert_uint_eq(l.likely_limit, 32 * GIB);
    ck_assert_uint_eq(hy_pin_most(&l, 8 * GIB), 32 * GIB); /* with all that is pinned already */
    ck_assert_int_eq(l.which, HY_PIN_WSL2);
    must(hy_pin_allows(&l, 32 * GIB));
    must_fail(hy_pin_allows(&l, 43 * GIB), HY_ERR_MEMORY, "WSL2 allows about half");
    ck_assert_ptr_nonnull(strstr(hy_error_message(), ".wslconfig"));
    hy_fail(HY_ERR_MEMORY, "the driver said no"); /* earlier than expected */
    must_fail(hy_pin_refused(&l, HY_ERR_MEMORY, 8 * GIB), HY_ERR_MEMORY, "Windows decides");
}
END_TEST

START_TEST(a_refusal_names_the_limit_that_was_passed) {
    write_computer();
    hy_pin_limits l = probe();
    hy_fail(HY_ERR_MEMORY, "the driver said no");
    must_fail(hy_pin_refused(&l, HY_ERR_MEMORY, 80 * GIB), HY_ERR_MEMORY,
              "the driver said no; cannot pin 80");
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "free memory"));
}
END_TEST

START_TEST(what_cannot_be_read_does_not_limit) {
    hy_pin_limits l = probe(); /* an empty machine */
    ck_assert_uint_eq(l.likely_limit, HY_PIN_NO_LIMIT);
    ck_assert_uint_eq(hy_pin_most(&l, GIB), HY_PIN_NO_LIMIT);
    ck_assert_int_eq(l.which, HY_PIN_UNKNOWN);
    must(hy_pin_allows(&l, UINT64_MAX));
    write_file(proc, "meminfo", "MemTotal:\nMemAvail\n");
    write_file(proc, "self/limits", "Max locked memory\n");
    write_file(proc, "self/cgroup", "nonsense\n0::\n");
    write_file(sys, "fs/cgroup/memory.max", "");
    ck_assert_uint_eq(probe().likely_limit, HY_PIN_NO_LIMIT);
}
END_TEST

START_TEST(this_machine_answers) {
    hy_pin_limits l;
    hy_pin_probe("/proc", "/sys", &l);
    ck_assert_uint_gt(l.ram_total, 0);
    ck_assert_uint_le(l.likely_limit, l.ram_total);
    must(hy_pin_check(4096));
    must_fail(hy_pin_check(l.ram_total + 1), HY_ERR_MEMORY, "cannot pin");
}
END_TEST

START_TEST(a_cpu_s_pinned_memory_is_ordinary_memory) {
    hy_backend *cpu;
    void *data;
    must(hy_cpu_backend_create(&(hy_cpu_options){.threads = 1}, &cpu));
    must(hy_pin_take(cpu, 100000, &data));
    memset(data, 3, 100000);
    cpu->release(cpu, HY_PINNED, data, 100000);
    cpu->destroy(cpu);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("memory: limits of pinned memory");
    TCase *all = tcase_create("limits");
    tcase_add_checked_fixture(all, make_machine, drop_machine);
    tcase_add_test(all, free_memory_less_a_margin_is_the_limit);
    tcase_add_test(all, a_small_machine_leaves_a_small_margin);
    tcase_add_test(all, the_limit_on_locked_memory_is_reported_and_does_not_refuse);
    tcase_add_test(all, a_group_of_version_2_limits);
    tcase_add_test(all, a_limit_above_the_group_of_the_process_is_found);
    tcase_add_test(all, a_group_of_version_1_limits);
    tcase_add_test(all, a_group_that_is_used_up_leaves_nothing);
    tcase_add_test(all, wsl2_pins_half_of_its_memory);
    tcase_add_test(all, a_refusal_names_the_limit_that_was_passed);
    tcase_add_test(all, what_cannot_be_read_does_not_limit);
    tcase_add_test(all, this_machine_answers);
    tcase_add_test(all, a_cpu_s_pinned_memory_is_ordinary_memory);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
