/* test_memory_disk.c: the disk tier's file, through both engines.
 *
 * Most tests run once for each engine; where io_uring is forbidden its turn is skipped with a line.
 * Faults come through the options (disk.h), through hy_fault_arm for the calls that make and remove
 * the file, through a limit on the size of files and, for io_uring, a system call filter. */
#include "harness.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/rng.h"
#include "memory/disk.h"

#define BLOCK ((size_t)HY_SPILL_BLOCK)
#define MIB ((uint64_t)1 << 20)

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) {
    hy_fault_disarm();
    remove_folder(folder);
}

static const hy_spill_path paths[] = {HY_SPILL_URING, HY_SPILL_THREADS};
#define PATHS 2

static bool uring_works(void) {
    static int answer = -1;
    if (answer >= 0) return answer;
    hy_spill *s = NULL;
    char place[256];
    temp_folder(place);
    answer = hy_spill_open(place, BLOCK, &(hy_spill_options){.path = HY_SPILL_URING}, &s) == HY_OK;
    if (!answer) printf("skipped: tests through io_uring: %s\n", hy_error_message());
    must(hy_spill_close(s));
    remove_folder(place);
    return answer;
}

/* False: this engine is not to be had here. */
static bool path_works(int i) { return paths[i] != HY_SPILL_URING || uring_works(); }

static hy_spill *open_spill(uint64_t bytes, hy_spill_options options) {
    hy_spill *s;
    must(hy_spill_open(folder, bytes, &options, &s));
    if (options.path != HY_SPILL_AUTO) ck_assert_int_eq(hy_spill_path_used(s), options.path);
    return s;
}

static void *take(size_t bytes) {
    void *p = aligned_alloc(BLOCK, (bytes + BLOCK - 1) / BLOCK * BLOCK);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* Bytes that tell where they belong. */
static void paint(char *data, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (char)((i * 31 + (i >> 12) * 7 + seed * 101) ^ (i >> 8));
    }
}

static size_t names_in_folder(void) {
    char **names;
    size_t count;
    must(hy_dir_list(folder, &names, &count));
    hy_dir_list_free(names, count);
    return count;
}

static void write_now(hy_spill *s, uint64_t offset, uint64_t bytes, const void *data) {
    hy_spill_ticket ticket;
    must(hy_spill_write(s, offset, bytes, data, &ticket));
    must(hy_spill_wait(s, ticket));
}

static void read_now(hy_spill *s, uint64_t offset, uint64_t bytes, void *data) {
    hy_spill_ticket ticket;
    must(hy_spill_read(s, offset, bytes, data, &ticket));
    must(hy_spill_wait(s, ticket));
}

/* ---- bytes come back ------------------------------------------------------------------------- */

/* Writes blocks of random sizes one behind the other, all in flight, and reads them in a random
 * order, all in flight. */
static void round_trip(hy_spill_options options) {
    enum { COUNT = 60 };
    uint64_t offset[COUNT + 1] = {0}, size[COUNT];
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t blocks = hy_rng_below(1, HY_RNG_TEST, i, 40);
        uint64_t odd = i % 3 == 0 ? hy_rng_below(2, HY_RNG_TEST, i, BLOCK) : 0;
        size[i] = blocks * BLOCK + odd + (blocks == 0);
        offset[i + 1] = offset[i] + hy_spill_room(size[i]);
    }
    uint64_t total = offset[COUNT];
    char *written = take(total), *read = take(total);
    paint(written, total, 1);
    memset(read, 0x55, total);
    hy_spill *s = open_spill(total, options);
    hy_spill_ticket tickets[COUNT];
    for (int i = 0; i < COUNT; i++) {
        must(hy_spill_write(s, offset[i], size[i], written + offset[i], &tickets[i]));
    }
    for (int i = 0; i < COUNT; i++) must(hy_spill_wait(s, tickets[i]));
    for (uint64_t n = 0; n < COUNT; n++) {
        uint64_t i = hy_rng_permute(3, HY_RNG_TEST, COUNT, n);
        must(hy_spill_read(s, offset[i], size[i], read + offset[i], &tickets[i]));
    }
    for (int i = COUNT; i-- > 0;) must(hy_spill_wait(s, tickets[i]));
    for (int i = 0; i < COUNT; i++) {
        ck_assert_msg(memcmp(written + offset[i], read + offset[i], size[i]) == 0,
                      "block %d of %llu bytes came back changed", i, (unsigned long long)size[i]);
        bool is_kept = true;
        for (uint64_t b = offset[i] + size[i]; b < offset[i + 1]; b++) is_kept &= read[b] == 0x55;
        ck_assert_msg(is_kept, "block %d changed bytes behind its buffer", i);
    }
    hy_spill_stats stats;
    hy_spill_get_stats(s, &stats);
    uint64_t sum = 0;
    for (int i = 0; i < COUNT; i++) sum += size[i];
    ck_assert_uint_eq(stats.bytes_written, sum);
    ck_assert_uint_eq(stats.bytes_read, sum);
    must(hy_spill_close(s));
    free(written);
    free(read);
}

START_TEST(blocks_of_any_size_come_back_through_each_engine) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        round_trip((hy_spill_options){.path = paths[i]});
        round_trip((hy_spill_options){.path = paths[i], .chunk_bytes = 3 * BLOCK, .depth = 5});
        round_trip((hy_spill_options){.path = paths[i], .chunk_bytes = BLOCK, .depth = 1});
        round_trip((hy_spill_options){.path = paths[i], .chunk_bytes = 2 * BLOCK, .transfers = 3});
        round_trip((hy_spill_options){.path = paths[i], .fault.lacks = HY_SPILL_LACKS_DIRECT});
        round_trip((hy_spill_options){.path = paths[i], .fault.lacks = HY_SPILL_LACKS_RESERVE});
    }
}
END_TEST

START_TEST(the_last_block_is_filled_with_zeros_and_the_unwritten_reads_as_zeros) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        /* One request at a time: what it holds of an earlier block must not show. */
        hy_spill *s = open_spill(4 * BLOCK, (hy_spill_options){.path = paths[i], .depth = 1});
        char *data = take(4 * BLOCK), *zeros = calloc(4, BLOCK);
        paint(data, 2 * BLOCK, 2);
        write_now(s, 0, 2 * BLOCK - 1, data);
        write_now(s, 0, BLOCK + 10, data);
        memset(data, 0x55, 4 * BLOCK);
        read_now(s, BLOCK, 3 * BLOCK, data);
        ck_assert_int_ne(data[0], 0x55);
        ck_assert_mem_eq(data + 10, zeros, 3 * BLOCK - 10);
        must(hy_spill_close(s));
        free(data);
        free(zeros);
    }
}
END_TEST

START_TEST(a_size_that_is_no_multiple_of_the_block_is_rounded_up) {
    hy_spill *s = open_spill(BLOCK + 1, (hy_spill_options){0});
    char *data = take(2 * BLOCK);
    memset(data, 1, 2 * BLOCK);
    write_now(s, 0, 2 * BLOCK, data);
    hy_spill_ticket ticket = 7;
    must(hy_spill_write(s, 2 * BLOCK, 0, data, &ticket)); /* nothing, at the end */
    ck_assert_uint_eq(ticket, 0);
    ck_assert(hy_spill_is_done(s, ticket));
    must(hy_spill_wait(s, ticket));
    must_fail(hy_spill_write(s, 2 * BLOCK, 1, data, &ticket), HY_ERR_INTERNAL, "a file of 8192");
    must_fail(hy_spill_read(s, BLOCK, BLOCK + 1, data, &ticket), HY_ERR_INTERNAL, "4097 bytes");
    must_fail(hy_spill_read(s, UINT64_MAX - BLOCK + 1, 2 * BLOCK, data, &ticket), HY_ERR_INTERNAL,
              "a file of 8192");
    must(hy_spill_close(s));
    free(data);
}
END_TEST

START_TEST(what_is_not_aligned_is_refused_in_words) {
    hy_spill *s = open_spill(4 * BLOCK, (hy_spill_options){0});
    char *data = take(2 * BLOCK);
    hy_spill_ticket ticket;
    must_fail(hy_spill_read(s, 512, BLOCK, data, &ticket), HY_ERR_INTERNAL,
              "cannot read at byte 512");
    must_fail(hy_spill_write(s, 0, BLOCK, data + 256, &ticket), HY_ERR_INTERNAL,
              "must be multiples of 4096");
    must(hy_spill_close(s));
    hy_spill_options wrong[] = {{.chunk_bytes = 1000}, {.depth = -1}, {.transfers = 1 << 20}};
    for (int i = 0; i < 3; i++) {
        must_fail(hy_spill_open(folder, BLOCK, &wrong[i], &s), HY_ERR_INTERNAL, "1 to 1024");
    }
    must_fail(hy_spill_open(folder, 0, NULL, &s), HY_ERR_INTERNAL, "0 bytes");
    ck_assert_uint_eq(names_in_folder(), 0);
    free(data);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

/* One thread begins transfers, another waits for them. */
typedef struct relay {
    hy_spill *spill;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    hy_spill_ticket tickets[64];
    int begun, failed;
} relay;

static void *wait_for_all(void *argument) {
    relay *r = argument;
    for (int i = 0; i < 64; i++) {
        pthread_mutex_lock(&r->lock);
        while (r->begun <= i) pthread_cond_wait(&r->changed, &r->lock);
        hy_spill_ticket ticket = r->tickets[i];
        pthread_mutex_unlock(&r->lock);
        if (hy_spill_wait(r->spill, ticket) != HY_OK || !hy_spill_is_done(r->spill, ticket)) {
            r->failed++;
        }
    }
    return NULL;
}

START_TEST(another_thread_may_wait) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        char *data = take(64 * BLOCK), *back = take(64 * BLOCK);
        paint(data, 64 * BLOCK, 4);
        relay r = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
        /* Fewer transfers than are begun: the one who begins has to wait for room too. */
        r.spill = open_spill(64 * BLOCK, (hy_spill_options){.path = paths[i], .transfers = 4});
        pthread_t waiter;
        ck_assert_int_eq(pthread_create(&waiter, NULL, wait_for_all, &r), 0);
        for (uint64_t n = 0; n < 64; n++) {
            hy_spill_ticket ticket;
            must(hy_spill_write(r.spill, n * BLOCK, BLOCK, data + n * BLOCK, &ticket));
            pthread_mutex_lock(&r.lock);
            r.tickets[r.begun++] = ticket;
            pthread_cond_signal(&r.changed);
            pthread_mutex_unlock(&r.lock);
        }
        pthread_join(waiter, NULL);
        ck_assert_int_eq(r.failed, 0);
        read_now(r.spill, 0, 64 * BLOCK, back);
        ck_assert_mem_eq(data, back, 64 * BLOCK);
        must(hy_spill_close(r.spill));
        free(data);
        free(back);
    }
}
END_TEST

/* Several threads, each over its own part of the file. */
typedef struct lane {
    hy_spill *spill;
    uint64_t number;
    bool is_wrong;
} lane;

#define LANE_BYTES (24 * BLOCK)

static void *run_lane(void *argument) {
    lane *l = argument;
    char *data = aligned_alloc(BLOCK, LANE_BYTES), *back = aligned_alloc(BLOCK, LANE_BYTES);
    l->is_wrong = !data || !back;
    for (uint64_t round = 0; round < 20 && !l->is_wrong; round++) {
        hy_spill_ticket ticket;
        uint64_t at = l->number * LANE_BYTES, bytes = LANE_BYTES - round * 100;
        paint(data, LANE_BYTES, l->number * 100 + round);
        memset(back, 0, LANE_BYTES);
        l->is_wrong |= hy_spill_write(l->spill, at, bytes, data, &ticket) != HY_OK;
        l->is_wrong |= hy_spill_wait(l->spill, ticket) != HY_OK;
        l->is_wrong |= hy_spill_read(l->spill, at, bytes, back, &ticket) != HY_OK;
        while (!hy_spill_is_done(l->spill, ticket)) sched_yield();
        l->is_wrong |= hy_spill_wait(l->spill, ticket) != HY_OK || memcmp(data, back, bytes) != 0;
    }
    free(data);
    free(back);
    return NULL;
}

START_TEST(several_threads_use_one_file) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        hy_spill_options options = {.path = paths[i], .chunk_bytes = 5 * BLOCK, .depth = 4};
        hy_spill *s = open_spill(4 * LANE_BYTES, options);
        lane lanes[4];
        pthread_t threads[4];
        for (uint64_t n = 0; n < 4; n++) {
            lanes[n] = (lane){.spill = s, .number = n};
            ck_assert_int_eq(pthread_create(&threads[n], NULL, run_lane, &lanes[n]), 0);
        }
        for (int n = 0; n < 4; n++) {
            pthread_join(threads[n], NULL);
            ck_assert_msg(!lanes[n].is_wrong, "lane %d, %s", n, hy_spill_describe(s));
        }
        must(hy_spill_close(s));
    }
}
END_TEST

START_TEST(closing_waits_for_what_is_in_flight) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        hy_spill *s = open_spill(8 * MIB, (hy_spill_options){.path = paths[i]});
        char *data = take(8 * MIB);
        hy_spill_ticket ticket;
        paint(data, 8 * MIB, 5);
        must(hy_spill_write(s, 0, 8 * MIB, data, &ticket));
        must(hy_spill_close(s)); /* address and thread sanitizer see a use after this */
        free(data);
    }
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

START_TEST(an_error_in_the_middle_names_folder_place_and_reason) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        hy_spill_options options = {
            .path = paths[i], .chunk_bytes = BLOCK, .depth = 1, .fault = {.at = 3, .error = EIO}};
        hy_spill *s = open_spill(8 * BLOCK, options);
        char *data = take(8 * BLOCK), *back = take(8 * BLOCK);
        paint(data, 8 * BLOCK, 6);
        hy_spill_ticket bad, good;
        must(hy_spill_write(s, 0, 8 * BLOCK, data, &bad));
        must_fail(hy_spill_wait(s, bad), HY_ERR_IO, folder);
        must_fail(hy_spill_wait(s, bad), HY_ERR_IO, "writing 4.0 KiB failed at byte 8192");
        must_fail(hy_spill_wait(s, bad), HY_ERR_IO, "Input/output error");
        ck_assert(hy_spill_is_done(s, bad));
        hy_spill_stats stats;
        hy_spill_get_stats(s, &stats);
        ck_assert_uint_eq(stats.requests, 3); /* the rest of the transfer was let go */
        ck_assert_uint_eq(stats.bytes_written, 2 * BLOCK);
        must(hy_spill_write(s, 0, 8 * BLOCK, data, &good)); /* the file is as good as before */
        must(hy_spill_wait(s, good));
        read_now(s, 0, 8 * BLOCK, back);
        ck_assert_mem_eq(data, back, 8 * BLOCK);
        must_fail(hy_spill_wait(s, bad), HY_ERR_IO, "byte 8192");
        must(hy_spill_close(s)); /* the failure was heard */
        free(data);
        free(back);
    }
}
END_TEST

/* Whichever request fails, with many in flight: the transfers it hits say so, the others are
 * whole. */
START_TEST(each_request_may_fail_and_only_its_transfer_does) {
    char *data = take(12 * BLOCK), *back = take(12 * BLOCK);
    paint(data, 12 * BLOCK, 7);
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        for (int at = 1; at <= 24; at++) {
            hy_spill_options options = {
                .path = paths[i], .chunk_bytes = BLOCK, .fault = {.at = at, .error = EIO}};
            hy_spill *s = open_spill(12 * BLOCK, options);
            hy_spill_ticket tickets[8];
            int failed = 0;
            for (int n = 0; n < 4; n++) {
                must(
                    hy_spill_write(s, n * 3 * BLOCK, 3 * BLOCK, data + n * 3 * BLOCK, &tickets[n]));
            }
            for (int n = 0; n < 4; n++) failed += hy_spill_wait(s, tickets[n]) != HY_OK;
            int writes_failed = failed;
            memset(back, 0, 12 * BLOCK);
            for (int n = 0; n < 4; n++) {
                char *to = back + n * 3 * BLOCK;
                must(hy_spill_read(s, n * 3 * BLOCK, 3 * BLOCK, to, &tickets[4 + n]));
            }
            for (int n = 0; n < 4; n++) {
                bool is_read = hy_spill_wait(s, tickets[4 + n]) == HY_OK;
                failed += !is_read;
                bool is_whole = is_read && hy_spill_wait(s, tickets[n]) == HY_OK;
                const char *from = data + n * 3 * BLOCK;
                if (is_whole) ck_assert_mem_eq(from, back + n * 3 * BLOCK, 3 * BLOCK);
            }
            ck_assert_msg(failed == 1 || (at > 21 && failed == 0), "request %d: %d failures", at,
                          failed);
            if (at <= 12) ck_assert_int_eq(writes_failed, 1);
            must(hy_spill_close(s));
        }
    }
    free(data);
    free(back);
}
END_TEST

START_TEST(a_failure_that_no_call_waited_for_is_reported_at_the_end) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        hy_spill_options options = {.path = paths[i], .fault = {.at = 2, .error = ENOSPC}};
        hy_spill *s = open_spill(4 * BLOCK, options);
        char *data = take(BLOCK);
        hy_spill_ticket ticket;
        memset(data, 0, BLOCK);
        write_now(s, 0, BLOCK, data);
        must(hy_spill_write(s, BLOCK, BLOCK, data, &ticket));
        hy_spill_settle(s);
        for (int n = 0; n < 5; n++) write_now(s, 0, BLOCK, data);
        must_fail(hy_spill_close(s), HY_ERR_IO, "at byte 4096 of the file: No space left");
        ck_assert_uint_eq(names_in_folder(), 0);
        free(data);
    }
}
END_TEST

START_TEST(when_all_have_failed_unheard_the_next_is_refused) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        hy_spill_options options = {
            .path = paths[i], .transfers = 3, .fault = {.at = 1, .error = EIO, .is_lasting = true}};
        hy_spill *s = open_spill(4 * BLOCK, options);
        char *data = take(BLOCK);
        hy_spill_ticket tickets[3], more;
        for (uint64_t n = 0; n < 3; n++) {
            must(hy_spill_read(s, n * BLOCK, BLOCK, data, &tickets[n]));
        }
        must_fail(hy_spill_read(s, 0, BLOCK, data, &more), HY_ERR_IO, "3 transfers have failed");
        must_fail(hy_spill_wait(s, tickets[1]), HY_ERR_IO, "reading 4.0 KiB failed at byte 4096");
        must(hy_spill_read(s, 0, BLOCK, data, &more)); /* heard: its place is free */
        must_fail(hy_spill_wait(s, more), HY_ERR_IO, "byte 0");
        must_fail(hy_spill_close(s), HY_ERR_IO, "byte 0");
        free(data);
    }
}
END_TEST

START_TEST(short_and_interrupted_requests_go_on) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        hy_spill_options options = {.path = paths[i], .chunk_bytes = 8 * BLOCK};
        options.fault = (hy_spill_fault){.short_every = 2};
        round_trip(options);
        options.fault = (hy_spill_fault){.short_every = 3, .short_bytes = BLOCK};
        round_trip(options);
        /* Less than a block moves nothing that counts; 5000 bytes count as one block. */
        for (int n = 0; n < 4; n++) {
            options.fault = (hy_spill_fault){.short_every = 2,
                                             .short_bytes = n % 2 ? 5000 : 100,
                                             .lacks = n / 2 ? HY_SPILL_LACKS_DIRECT : 0};
            round_trip(options);
        }
        for (int at = 1; at < 20; at += 5) {
            static const int passing[] = {EAGAIN, EINTR, ENOMEM};
            options.fault = (hy_spill_fault){.at = at, .error = passing[at % 3]};
            round_trip(options);
        }
    }
}
END_TEST

START_TEST(what_never_moves_is_given_up) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        hy_spill_options options = {.path = paths[i],
                                    .fault = {.at = 1, .error = EINTR, .is_lasting = true}};
        hy_spill *s = open_spill(BLOCK, options);
        char *data = take(BLOCK);
        hy_spill_ticket ticket;
        must(hy_spill_read(s, 0, BLOCK, data, &ticket));
        must_fail(hy_spill_wait(s, ticket), HY_ERR_IO, "Interrupted");
        must(hy_spill_close(s));
        free(data);
    }
}
END_TEST

START_TEST(a_folder_that_cannot_be_used_is_named) {
    hy_spill *s;
    char path[512];
    must(hy_path_join(path, sizeof path, folder, "missing"));
    must_fail(hy_spill_open(path, BLOCK, NULL, &s), HY_ERR_INPUT, path);
    must_fail(hy_spill_open(path, BLOCK, NULL, &s), HY_ERR_INPUT, "No such file or directory");
    must(hy_path_join(path, sizeof path, folder, "file"));
    must(hy_file_write_atomic(path, "x", 1));
    must_fail(hy_spill_open(path, BLOCK, NULL, &s), HY_ERR_INPUT, "is not a folder");

    /* Root may write anywhere: become nobody, for whom the folder is read-only. */
    bool is_root = geteuid() == 0;
    ck_assert_int_eq(chmod(folder, 0555), 0);
    if (is_root) ck_assert_int_eq(seteuid(65534), 0);
    must_fail(hy_spill_open(folder, BLOCK, NULL, &s), HY_ERR_INPUT, "Permission denied");
    double rate;
    must_fail(hy_spill_measure(folder, &rate, &rate), HY_ERR_INPUT, folder);
    hy_spill_options named = {.fault.lacks = HY_SPILL_LACKS_NAMELESS};
    must_fail(hy_spill_open(folder, BLOCK, &named, &s), HY_ERR_INPUT, folder);
    if (is_root) ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(chmod(folder, 0755), 0);

    hy_fault_arm(0, EROFS, false);
    must_fail(hy_spill_open(folder, BLOCK, NULL, &s), HY_ERR_INPUT, "Read-only file system");
    ck_assert_uint_eq(names_in_folder(), 1);
}
END_TEST

START_TEST(a_disk_without_room_is_found_at_creation) {
    hy_spill *s;
    uint64_t much = (uint64_t)1 << 56; /* 64 PiB */
    must_fail(hy_spill_open(folder, much, NULL, &s), HY_ERR_IO, folder);
    must_fail(hy_spill_open(folder, much, NULL, &s), HY_ERR_IO, "(free: ");
    must_fail(hy_spill_open(folder, much, NULL, &s), HY_ERR_IO, "No space left on device");
    struct rlimit old, small;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = MIB;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    hy_status over = hy_spill_open(folder, 2 * MIB, NULL, &s);
    bool is_said = strstr(hy_error_message(), "ulimit -f") != NULL;
    hy_status within = hy_spill_open(folder, MIB, NULL, &s);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert_int_eq(over, HY_ERR_IO);
    ck_assert(is_said);
    ck_assert_int_eq(within, HY_OK);
    must(hy_spill_close(s));
    ck_assert_uint_eq(names_in_folder(), 0);
}
END_TEST

/* ---- the file leaves no trace ---------------------------------------------------------------- */

START_TEST(the_file_has_no_name_or_loses_it) {
    hy_spill *s = open_spill(MIB, (hy_spill_options){0});
    ck_assert_uint_eq(names_in_folder(), 0);
    must(hy_spill_close(s));
    hy_spill_options named = {.fault.lacks = HY_SPILL_LACKS_NAMELESS};
    s = open_spill(MIB, named);
    ck_assert_uint_eq(names_in_folder(), 0);
    must(hy_spill_close(s));
    /* Where an open file cannot be unlinked (the second call here), it goes at the end. */
    hy_fault_arm(1, EBUSY, false);
    s = open_spill(MIB, named);
    hy_fault_disarm();
    ck_assert_uint_eq(names_in_folder(), 1);
    ck_assert_ptr_nonnull(strstr(hy_spill_describe(s), "removed at the end"));
    hy_fault_arm(2, EBUSY, false); /* a second one finds the name taken and uses another */
    hy_spill *second = open_spill(MIB, named);
    hy_fault_disarm();
    ck_assert_uint_eq(names_in_folder(), 2);
    must(hy_spill_close(second));
    ck_assert_uint_eq(names_in_folder(), 1);
    must(hy_spill_close(s));
    ck_assert_uint_eq(names_in_folder(), 0);
}
END_TEST

/* The child tells when it is in the middle of its work, and waits to be killed. */
static void work_until_killed(int tell_fd, hy_spill_options options) {
    hy_spill *s;
    char *data = aligned_alloc(BLOCK, 4 * MIB);
    hy_spill_ticket ticket;
    if (!data || hy_spill_open(folder, 8 * MIB, &options, &s) != HY_OK) _exit(1);
    memset(data, 1, 4 * MIB);
    if (hy_spill_write(s, 0, 4 * MIB, data, &ticket) != HY_OK) _exit(1);
    if (write(tell_fd, "x", 1) != 1) _exit(1);
    while (true) pause();
}

START_TEST(a_killed_process_leaves_nothing_behind) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        for (unsigned lacks = 0; lacks <= HY_SPILL_LACKS_NAMELESS; lacks++) {
            int ends[2];
            char byte;
            ck_assert_int_eq(pipe(ends), 0);
            pid_t child = fork();
            ck_assert_int_ge(child, 0);
            if (child == 0) {
                work_until_killed(ends[1],
                                  (hy_spill_options){.path = paths[i], .fault.lacks = lacks});
            }
            close(ends[1]);
            ck_assert_int_eq(read(ends[0], &byte, 1), 1);
            ck_assert_int_eq(kill(child, SIGKILL), 0);
            int status;
            ck_assert_int_eq(waitpid(child, &status, 0), child);
            ck_assert(WIFSIGNALED(status));
            ck_assert_uint_eq(names_in_folder(), 0);
            close(ends[0]);
        }
    }
}
END_TEST

/* ---- the choice ------------------------------------------------------------------------------ */

START_TEST(the_choice_is_described) {
    hy_spill *s = open_spill(MIB, (hy_spill_options){.path = HY_SPILL_THREADS, .depth = 3});
    ck_assert_msg(strstr(hy_spill_describe(s), "threads, ") == hy_spill_describe(s), "%s",
                  hy_spill_describe(s));
    ck_assert_ptr_nonnull(strstr(hy_spill_describe(s), "3 at a time"));
    must(hy_spill_close(s));
    s = open_spill(MIB, (hy_spill_options){.fault.lacks = HY_SPILL_LACKS_DIRECT});
    ck_assert(!hy_spill_is_direct(s));
    ck_assert_int_eq(hy_spill_path_used(s), HY_SPILL_THREADS);
    ck_assert_ptr_nonnull(strstr(hy_spill_describe(s), "does not support O_DIRECT"));
    must(hy_spill_close(s));
    s = open_spill(MIB, (hy_spill_options){.fault.lacks = HY_SPILL_LACKS_RESERVE});
    ck_assert_ptr_nonnull(strstr(hy_spill_describe(s), "not reserved"));
    bool is_uring = uring_works() && hy_spill_is_direct(s);
    ck_assert_int_eq(hy_spill_path_used(s), is_uring ? HY_SPILL_URING : HY_SPILL_THREADS);
    must(hy_spill_close(s));
}
END_TEST

/* Forbids the calling thread, and those it starts, one system call, as a container does. */
static bool forbid(unsigned call) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {.len = 4, .filter = program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

typedef struct forbidden {
    unsigned call;
    bool is_forbidden, is_refused, is_served;
    char refusal[HY_ERROR_MESSAGE_MAX], description[512];
} forbidden;

static void *open_forbidden(void *argument) {
    forbidden *f = argument;
    hy_spill *s = NULL;
    char *data = aligned_alloc(BLOCK, BLOCK);
    hy_spill_ticket ticket;
    f->is_forbidden = data && forbid(f->call);
    if (!f->is_forbidden) goto out;
    memset(data, 3, BLOCK);
    hy_spill_options asked = {.path = HY_SPILL_URING};
    f->is_refused = hy_spill_open(folder, BLOCK, &asked, &s) == HY_ERR_INPUT;
    snprintf(f->refusal, sizeof f->refusal, "%s", hy_error_message());
    if (!f->is_refused || hy_spill_open(folder, BLOCK, NULL, &s) != HY_OK) goto out;
    f->is_served = hy_spill_path_used(s) == HY_SPILL_THREADS &&
                   hy_spill_write(s, 0, BLOCK, data, &ticket) == HY_OK &&
                   hy_spill_wait(s, ticket) == HY_OK;
    snprintf(f->description, sizeof f->description, "%s", hy_spill_describe(s));
    f->is_served &= hy_spill_close(s) == HY_OK;
out:
    free(data);
    return NULL;
}

START_TEST(where_io_uring_is_forbidden_threads_take_over) {
    unsigned calls[] = {__NR_io_uring_setup, __NR_io_uring_enter};
    const char *names[] = {"io_uring_setup", "io_uring_enter"};
    if (!uring_works()) return;
    for (int i = 0; i < 2; i++) {
        forbidden f = {.call = calls[i]};
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, open_forbidden, &f), 0);
        pthread_join(thread, NULL);
        if (!f.is_forbidden) {
            printf("skipped: system calls cannot be filtered here\n");
            return;
        }
        ck_assert_msg(f.is_refused && strstr(f.refusal, names[i]), "%s", f.refusal);
        ck_assert_ptr_nonnull(strstr(f.refusal, folder));
        ck_assert_msg(f.is_served, "%s", f.description);
        ck_assert_msg(strstr(f.description, "Operation not permitted") ||
                          strstr(f.description, "does not support O_DIRECT"),
                      "%s", f.description);
        ck_assert_uint_eq(names_in_folder(), 0);
    }
}
END_TEST

/* ---- figures --------------------------------------------------------------------------------- */

START_TEST(statistics_count_bytes_and_requests) {
    for (int i = 0; i < PATHS; i++) {
        if (!path_works(i)) continue;
        hy_spill_options options = {.path = paths[i], .chunk_bytes = MIB};
        hy_spill *s = open_spill(8 * MIB, options);
        char *data = take(8 * MIB);
        memset(data, 9, 8 * MIB);
        hy_spill_stats before, after;
        hy_spill_get_stats(s, &before);
        ck_assert_uint_eq(before.requests + before.bytes_read + before.bytes_written, 0);
        write_now(s, 0, 8 * MIB, data);
        read_now(s, 0, 4 * MIB + 1, data);
        hy_spill_get_stats(s, &after);
        ck_assert_uint_eq(after.bytes_written, 8 * MIB);
        ck_assert_uint_eq(after.bytes_read, 4 * MIB + 1);
        ck_assert_uint_eq(after.requests, 8 + 5);
        must(hy_spill_close(s));
        free(data);
    }
}
END_TEST

START_TEST(measuring_a_folder_gives_rates_and_leaves_nothing) {
    double read_rate = 0, write_rate = 0;
    must(hy_spill_measure(folder, &read_rate, &write_rate));
    ck_assert_double_gt(read_rate, 1e5);
    ck_assert_double_gt(write_rate, 1e5);
    ck_assert_double_lt(read_rate, 1e12);
    ck_assert_uint_eq(names_in_folder(), 0);
}
END_TEST

static Suite *disk_suite(void) {
    Suite *suite = suite_create("memory: disk");
    TCase *tests = tcase_create("disk");
    tcase_add_checked_fixture(tests, make_folder, drop_folder);
    tcase_add_test(tests, blocks_of_any_size_come_back_through_each_engine);
    tcase_add_test(tests, the_last_block_is_filled_with_zeros_and_the_unwritten_reads_as_zeros);
    tcase_add_test(tests, a_size_that_is_no_multiple_of_the_block_is_rounded_up);
    tcase_add_test(tests, what_is_not_aligned_is_refused_in_words);
    tcase_add_test(tests, another_thread_may_wait);
    tcase_add_test(tests, several_threads_use_one_file);
    tcase_add_test(tests, closing_waits_for_what_is_in_flight);
    tcase_add_test(tests, an_error_in_the_middle_names_folder_place_and_reason);
    tcase_add_test(tests, each_request_may_fail_and_only_its_transfer_does);
    tcase_add_test(tests, a_failure_that_no_call_waited_for_is_reported_at_the_end);
    tcase_add_test(tests, when_all_have_failed_unheard_the_next_is_refused);
    tcase_add_test(tests, short_and_interrupted_requests_go_on);
    tcase_add_test(tests, what_never_moves_is_given_up);
    tcase_add_test(tests, a_folder_that_cannot_be_used_is_named);
    tcase_add_test(tests, a_disk_without_room_is_found_at_creation);
    tcase_add_test(tests, the_file_has_no_name_or_loses_it);
    tcase_add_test(tests, a_killed_process_leaves_nothing_behind);
    tcase_add_test(tests, the_choice_is_described);
    tcase_add_test(tests, where_io_uring_is_forbidden_threads_take_over);
    tcase_add_test(tests, statistics_count_bytes_and_requests);
    tcase_add_test(tests, measuring_a_folder_gives_rates_and_leaves_nothing);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(disk_suite)
