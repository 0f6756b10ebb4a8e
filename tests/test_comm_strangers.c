/* test_comm_strangers.c: processes that are no ranks neither join, nor end, nor delay a job. */
#include "comm_rig.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "comm/link.h"
#include "comm/pending.h"
#include "comm/wire.h"
#include "hybrid.h"

#define NOBODY 65534
#define SETTINGS 5

/* What rank 1 would answer to rank 0's greeting, as control_open.c lays it out. */
typedef struct said_hello {
    uint32_t protocol;
    int32_t rank, count, pid;
    uint64_t agreed, machine;
    char version[32], host[64];
} said_hello;

typedef struct said_answer {
    hy_wire_head head;
    uint8_t nonce[32];
    said_hello hello;
    uint8_t tag[32];
} said_answer;

#define GREETING_BYTES 96

static said_hello rank_1(int count, uint64_t agreed) {
    return (said_hello){.protocol = HY_WIRE_PROTOCOL,
                        .rank = 1,
                        .count = count,
                        .pid = 77,
                        .agreed = agreed,
                        .version = HYBRID_VERSION,
                        .host = "stranger"};
}

/* The messages of a rank's opening, counted, and the first one kept. */
static void keep_message(void *user, hy_message_level level, const char *text) {
    rig_result *mine = user;
    if (level != HY_WARNING) return;
    if (mine->number++ == 0) snprintf(mine->message, sizeof mine->message, "%s", text);
}

/* Rank 1 comes after `user` seconds. */
static void meet(const hy_ranks *ranks, rig_result *mine, const void *user) {
    hy_control *c;
    hy_control_options options = {.timeout = 10,
                                  .open_timeout = 20,
                                  .agreed = SETTINGS,
                                  .observer = {.user = mine, .on_message = keep_message}};
    if (ranks->rank == 1) rig_sleep(*(const double *)user);
    double began = hy_clock();
    require(hy_control_open(ranks, &options, &c) == HY_OK);
    mine->seconds = hy_clock() - began;
    require(hy_control_member(c, 1)->pid != 77);
    require(hy_control_barrier(c) == HY_OK);
    hy_control_close(c);
}

static void must_meet(rig *it) {
    rig_wait(it);
    for (int r = 0; r < it->count; r++) ck_assert_int_eq(it->codes[r], 0);
}

static int reach(const char *address, uint16_t port) {
    int fd = -1;
    double deadline = hy_clock() + 60;
    while (hy_net_connect(address, port, hy_clock() + 1, &fd) != HY_OK && hy_clock() < deadline)
        rig_sleep(0.01);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static void must_be_dropped(int fd) {
    char byte;
    ck_assert(!hy_net_receive(fd, &byte, 1, hy_clock() + 2));
    close(fd);
}

/* ---- during the rendezvous ------------------------------------------------------------------- */

START_TEST(a_hello_without_the_secret_counts_for_nothing) {
    static const double late = 0.6;
    static const struct {
        int count;
        uint64_t agreed;
    } cases[] = {{3, SETTINGS}, {2, SETTINGS + 1}, {2, SETTINGS}};
    rig it = rig_start(2, meet, &late);
    uint8_t greeting[GREETING_BYTES];
    said_answer a = {.head = {.magic = HY_WIRE_MAGIC, .kind = HY_WIRE_HELLO},
                     .hello = rank_1(cases[_i / 2].count, cases[_i / 2].agreed)};
    int fd = reach("127.0.0.1", it.ranks.port);
    if (_i % 2) { /* the hello of older versions, which knew no secret */
        struct {
            hy_wire_head head;
            said_hello hello;
        } old = {.head = a.head, .hello = a.hello};
        old.head.size = sizeof old.hello;
        ck_assert(hy_net_send(fd, &old, sizeof old, hy_clock() + 30));
        shutdown(fd, SHUT_WR);
    } else {
        a.head.size = sizeof a - sizeof a.head;
        ck_assert(hy_net_receive(fd, greeting, sizeof greeting, hy_clock() + 30));
        ck_assert(hy_net_send(fd, &a, sizeof a, hy_clock() + 30));
        must_be_dropped(fd);
    }
    must_meet(&it);
    ck_assert_int_eq(it.results[0].number, 1);
    ck_assert_msg(strstr(it.results[0].message, "dropped a connection from 127.0.0.1: it "), "%s",
                  it.results[0].message);
    if (_i % 2) close(fd);
    rig_free(&it);
}
END_TEST

/* Garbage, silence, a part of an answer; more of them than rank 0 has places for. */
START_TEST(hundreds_of_strangers_delay_nobody) {
    enum { STRANGERS = 300 };
    static const double late = 0.8;
    static const size_t sizes[] = {0, 1, 50, sizeof(said_answer), 100000};
    int fds[STRANGERS];
    rig it = rig_start(2, meet, &late);
    char *garbage = malloc(100000);
    memset(garbage, 'x', 100000);
    close(reach("127.0.0.1", it.ranks.port));
    for (int i = 0; i < STRANGERS; i++) {
        must(hy_net_connect("127.0.0.1", it.ranks.port, hy_clock() + 30, &fds[i]));
        (void)hy_net_send(fds[i], garbage, sizes[i % 5], hy_clock() + 0.05);
    }
    must_meet(&it);
    ck_assert_msg(it.results[1].seconds < 1, "rank 1 needed %.2f s", it.results[1].seconds);
    ck_assert_int_eq(it.results[0].number, 1); /* named once */
    for (int i = 0; i < STRANGERS; i++) close(fds[i]);
    free(garbage);
    rig_free(&it);
}
END_TEST

START_TEST(a_greeting_says_nothing_to_strangers) {
    static const double late = 0.5;
    rig it = rig_start(2, meet, &late);
    uint8_t all[2][GREETING_BYTES];
    for (int i = 0; i < 2; i++) {
        int fd = reach("127.0.0.1", it.ranks.port);
        ck_assert(hy_net_receive(fd, all[i], sizeof all[i], hy_clock() + 30));
        ck_assert_ptr_null(memmem(all[i], sizeof all[i], &it.ranks.job, sizeof it.ranks.job));
        close(fd);
    }
    /* Nothing of one is in the other but the kind of message and the protocol. */
    ck_assert_mem_eq(all[0], all[1], 32);
    for (int i = 32; i < GREETING_BYTES; i += 32) ck_assert_mem_ne(all[0] + i, all[1] + i, 32);
    must_meet(&it);
    ck_assert_int_eq(it.results[0].number, 0); /* who leaves without a word is not worth one */
    rig_free(&it);
}
END_TEST

/* ---- before the rendezvous ------------------------------------------------------------------- */

/* A stranger has rank 0's port and greets rank 1 there: with garbage, or as another job would. */
START_TEST(a_false_rank_0_learns_nothing) {
    static const double late = 0;
    int fd, guest = -1;
    bool is_taken;
    uint8_t greeting[GREETING_BYTES] = {0}, byte;
    hy_wire_head head = {.magic = HY_WIRE_MAGIC, .kind = HY_WIRE_GREETING, .size = 72};
    uint16_t port = rig_port();
    must(hy_net_listen("127.0.0.1", port, &fd, &is_taken));
    if (_i) memcpy(greeting, &head, sizeof head);
    rig it = {.count = 2, .ranks = rig_ranks(2)};
    it.ranks.port = port;
    it = rig_start_as(&it.ranks, meet, &late);
    for (int i = 0; i < 500 && (guest = hy_net_accept(fd)) < 0; i++) rig_sleep(0.01);
    ck_assert_int_ge(guest, 0);
    ck_assert(hy_net_send(guest, greeting, sizeof greeting, hy_clock() + 30));
    ck_assert(!hy_net_receive(guest, &byte, 1, hy_clock() + 2));
    must_meet(&it);
    close(guest);
    close(fd);
    rig_free(&it);
}
END_TEST

static void open_with_other_secret(const hy_ranks *ranks, rig_result *mine, const void *user) {
    hy_ranks said = *ranks;
    hy_control *c;
    hy_control_options options = {.timeout = 5, .open_timeout = 1};
    (void)user;
    if (ranks->rank == 1) said.secret.bytes[0] ^= 1;
    rig_keep(mine, hy_control_open(&said, &options, &c));
}

START_TEST(ranks_with_different_secrets_say_so) {
    rig it = rig_start(2, open_with_other_secret, NULL);
    must_meet(&it);
    must_mention(&it, 0, "do all ranks have the secret of rank 0?");
    must_mention(&it, 1, "another secret than the one from the rig");
    rig_free(&it);
}
END_TEST

/* ---- where rank 0 listens -------------------------------------------------------------------- */

static bool find_own_address(char *out, size_t size) {
    struct ifaddrs *all;
    bool is_found = false;
    if (getifaddrs(&all) != 0) return false;
    for (struct ifaddrs *a = all; a && !is_found; a = a->ifa_next) {
        is_found = a->ifa_addr && a->ifa_addr->sa_family == AF_INET &&
                   !(a->ifa_flags & IFF_LOOPBACK) && (a->ifa_flags & IFF_UP);
        if (is_found)
            inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)a->ifa_addr)->sin_addr, out,
                      (socklen_t)size);
    }
    freeifaddrs(all);
    return is_found;
}

START_TEST(only_the_address_that_was_asked_for_is_bound) {
    static const double late = 0.7;
    rig it = {.count = 2, .ranks = rig_ranks(2)};
    int fd;
    snprintf(it.ranks.address, sizeof it.ranks.address, "127.0.0.2");
    if (_i == 1 && !find_own_address(it.ranks.address, sizeof it.ranks.address)) return;
    it = rig_start_as(&it.ranks, meet, &late);
    close(reach(it.ranks.address, it.ranks.port));
    ck_assert(hy_net_connect("127.0.0.1", it.ranks.port, hy_clock() + 1, &fd) != HY_OK);
    must_meet(&it);
    rig_free(&it);
}
END_TEST

START_TEST(ranks_without_a_secret_do_not_listen_on_a_port) {
    static const double late = 0.5;
    hy_control *c;
    int fd;
    rig it = {.count = 2, .ranks = rig_ranks(2)};
    it.ranks.secret = (hy_secret){0};
    it = rig_start_as(&it.ranks, meet, &late);
    rig_sleep(0.3);
    for (int i = 0; i < HY_PORTS; i++) {
        ck_assert(hy_net_connect("127.0.0.1", (uint16_t)(it.ranks.port + i), hy_clock() + 1, &fd) !=
                  HY_OK);
    }
    must_meet(&it);
    rig_free(&it);
    snprintf(it.ranks.address, sizeof it.ranks.address, "10.0.0.1");
    must_fail(hy_control_open(&it.ranks, NULL, &c), HY_ERR_INPUT, "HYBRID_SECRET");
}
END_TEST

/* ---- Unix sockets ---------------------------------------------------------------------------- */

START_TEST(a_message_about_a_unix_socket_names_no_port) {
    hy_ranks ranks = rig_ranks(2);
    hy_control_options options = {.open_timeout = 0.2};
    hy_control *c;
    ranks.secret = (hy_secret){0};
    ranks.rank = ranks.local_rank = 1;
    must_fail(hy_control_open(&ranks, &options, &c), HY_ERR_IO,
              "rank 1 found no rank 0 at Unix socket hybrid-train-");
    ck_assert_ptr_null(strstr(hy_error_message(), "port"));
}
END_TEST

/* Calls `body` as another user; its exit code. */
static int as_nobody(int (*body)(const char *name), const char *name) {
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) _exit(setuid(NOBODY) == 0 ? body(name) : 98);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

static int connect_plainly(const char *name) {
    int fd;
    bool is_refused = hy_net_connect_here(name, &fd) == HY_ERR_IO;
    return is_refused && strstr(hy_error_message(), "user 0 listens") ? 0 : 1;
}

START_TEST(another_user_is_refused_on_unix_sockets) {
    rig_result mine = {0};
    hy_observer observer = {.user = &mine, .on_message = keep_message};
    hy_pending pending;
    int listener;
    bool is_taken;
    if (geteuid() != 0) return; /* needs two users */
    must(hy_pending_init(&pending, 40, &observer));
    must(hy_net_listen_here("hybrid-train-test-strangers", &listener, &is_taken));
    ck_assert_int_eq(as_nobody(connect_plainly, "hybrid-train-test-strangers"), 0);
    ck_assert_ptr_null(hy_pending_accept(&pending, listener));
    ck_assert_int_eq(pending.strangers, 1);
    ck_assert_msg(strstr(mine.message, "from user 65534"), "%s", mine.message);
    int fd;
    must(hy_net_connect_here("hybrid-train-test-strangers", &fd));
    ck_assert_ptr_nonnull(hy_pending_accept(&pending, listener));
    close(fd);
    close(listener);
    hy_pending_fini(&pending);
}
END_TEST

/* Rank 2 opens its link late: the sockets of the others wait for it meanwhile. */
static void open_link_late(const hy_ranks *ranks, rig_result *mine, const void *user) {
    hy_link *link;
    hy_control *c;
    hy_control_options options = {
        .timeout = 10, .open_timeout = 20, .observer = {.user = mine, .on_message = keep_message}};
    require(hy_control_open(ranks, &options, &c) == HY_OK);
    atomic_store(&mine->stage, 1);
    if (ranks->rank == 2) rig_sleep(*(const double *)user);
    require(hy_link_open_sockets(c, NULL, &link) == HY_OK);
    uint8_t out = (uint8_t)ranks->rank, in = 99;
    int next = (ranks->rank + 1) % 3, last = (ranks->rank + 2) % 3;
    require(hy_link_exchange(link, &(hy_transfer){next, &out, 1}, 1, &(hy_transfer){last, &in, 1},
                             1) == HY_OK);
    require(in == last);
    require(hy_control_barrier(c) == HY_OK);
    hy_link_destroy(link);
    hy_control_close(c);
}

/* Connects to a socket of a link by the name that everybody can read, and says that it is rank 2:
 * with 16 bytes as older versions did, with the secret that was part of the name, else as now. */
static int call_by_name(const char *name, uint8_t *said, size_t size) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    memcpy(address.sun_path + 1, name, length);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    if (connect(fd, (struct sockaddr *)&address, bytes) != 0) ck_abort_msg("%s", name);
    unsigned long long number = strtoull(strrchr(name, '-') + 1, NULL, 16);
    int32_t rank = 2;
    if (size == 16) memcpy(said, &number, sizeof number);
    memcpy(said + (size == 16 ? 8 : 0), &rank, sizeof rank);
    ck_assert_int_eq(send(fd, said, size, MSG_NOSIGNAL), (ssize_t)size);
    return fd;
}

START_TEST(the_name_of_a_link_does_not_open_it) {
    static const double late = 1;
    int fds[64], count = 0;
    char line[512], name[108], start[64];
    rig it = rig_start(3, open_link_late, &late);
    for (int r = 0; r < 3; r++) rig_wait_for_stage(&it, r, 1);
    rig_sleep(0.3);
    FILE *list = fopen("/proc/net/unix", "r");
    ck_assert_ptr_nonnull(list);
    while (fgets(line, sizeof line, list)) {
        for (int r = 0; r < 2; r++) {
            uint8_t said[200] = {0};
            snprintf(start, sizeof start, "@hybrid-train-link-%d-", (int)it.pids[r]);
            const char *at = strstr(line, start);
            if (!at || sscanf(at, "@%107s", name) != 1) continue;
            for (int k = 0; k < 20; k++) fds[count++] = call_by_name(name, said, k < 10 ? 16 : 200);
        }
    }
    fclose(list);
    ck_assert_int_eq(count, 40);
    must_meet(&it);
    for (int i = 0; i < count; i++) close(fds[i]);
    ck_assert_int_eq(it.results[1].number, 1);
    rig_free(&it);
}
END_TEST

/* ---- secrets --------------------------------------------------------------------------------- */

START_TEST(a_secret_file_is_for_its_owner_alone) {
    char folder[] = "/tmp/hybrid-secret-XXXXXX", path[64];
    hy_secret made, again, other;
    struct stat info;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/secret", folder);
    unsetenv("HYBRID_SECRET");
    umask(0);
    must(hy_secret_find_given(path, &made));
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(info.st_mode & 07777, 0600);
    must(hy_secret_find_given(path, &again));
    ck_assert_mem_eq(made.bytes, again.bytes, sizeof made.bytes);
    chmod(path, 0640);
    must_fail(hy_secret_find_given(path, &again), HY_ERR_INPUT, "chmod 600");
    FILE *file = fopen(path, "w");
    fputs("too short\n", file);
    fclose(file);
    chmod(path, 0600);
    must_fail(hy_secret_find_given(path, &again), HY_ERR_INPUT, "expected 16 to");
    must_fail(hy_secret_find_given(folder, &again), HY_ERR_INPUT, "not a regular file");
    setenv("HYBRID_SECRET", "0123456789abcdef", 1);
    must(hy_secret_find_given(path, &other));
    ck_assert_str_eq(other.from, "HYBRID_SECRET");
    ck_assert_mem_ne(made.bytes, other.bytes, sizeof made.bytes);
    unsetenv("HYBRID_SECRET");
    must(hy_secret_find_given("", &other));
    ck_assert_str_eq(other.from, "");
    unlink(path);
    rmdir(folder);
}
END_TEST

START_TEST(the_users_own_secret_is_made_once) {
    char folder[] = "/tmp/hybrid-secret-XXXXXX", path[96], command[64];
    hy_secret made, again;
    struct stat info;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("XDG_CONFIG_HOME", folder, 1);
    must(hy_secret_find_own(&made));
    must(hy_secret_find_own(&again));
    ck_assert_mem_eq(made.bytes, again.bytes, sizeof made.bytes);
    snprintf(path, sizeof path, "%s/hybrid-train/rank-secret", folder);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_int_eq(info.st_mode & 07777, 0600);
    unsetenv("XDG_CONFIG_HOME");
    unsetenv("HOME");
    must_fail(hy_secret_find_own(&made), HY_ERR_INPUT, "set HYBRID_SECRET or --rank-secret-file");
    snprintf(command, sizeof command, "rm -r %s", folder);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("comm_strangers");
    TCase *c = tcase_create("strangers");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, a_hello_without_the_secret_counts_for_nothing, 0, 6);
    tcase_add_test(c, hundreds_of_strangers_delay_nobody);
    tcase_add_test(c, a_greeting_says_nothing_to_strangers);
    tcase_add_loop_test(c, a_false_rank_0_learns_nothing, 0, 2);
    tcase_add_test(c, ranks_with_different_secrets_say_so);
    tcase_add_loop_test(c, only_the_address_that_was_asked_for_is_bound, 0, 2);
    tcase_add_test(c, ranks_without_a_secret_do_not_listen_on_a_port);
    tcase_add_test(c, a_message_about_a_unix_socket_names_no_port);
    tcase_add_test(c, another_user_is_refused_on_unix_sockets);
    tcase_add_test(c, the_name_of_a_link_does_not_open_it);
    tcase_add_test(c, a_secret_file_is_for_its_owner_alone);
    tcase_add_test(c, the_users_own_secret_is_made_once);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
