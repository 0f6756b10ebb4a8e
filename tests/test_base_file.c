/* test_base_file.c: reading, writing and replacing files, folders, and faults at every call. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/lock.h"
#include "base/rng.h"

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) {
    hy_fault_disarm();
    remove_folder(folder);
}

/* A path inside the test's folder; good until eight more were asked for. */
static const char *in_folder(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    must(hy_path_join(path, sizeof paths[0], folder, name));
    return path;
}

static void write_text(const char *path, const char *text) {
    must(hy_file_write_atomic(path, text, strlen(text)));
}

static void check_text(const char *path, const char *expected) {
    char *data;
    size_t size;
    must(hy_file_read(path, &data, &size));
    ck_assert_str_eq(data, expected);
    ck_assert_uint_eq(size, strlen(expected));
    free(data);
}

/* Runs code as someone without rights: root may do everything, so it becomes nobody meanwhile. */
#define AS_NOBODY(code)                                                                            \
    do {                                                                                           \
        bool is_root = geteuid() == 0;                                                             \
        if (is_root) ck_assert_int_eq(seteuid(65534), 0);                                          \
        code;                                                                                      \
        if (is_root) ck_assert_int_eq(seteuid(0), 0);                                              \
    } while (0)

/* ---- reading --------------------------------------------------------------------------------- */

START_TEST(a_file_is_read_whole_with_a_zero_behind_it) {
    char *data;
    size_t size;
    must(hy_file_write_atomic(in_folder("f"), "a\0b", 3));
    must(hy_file_read(in_folder("f"), &data, &size));
    ck_assert_uint_eq(size, 3);
    ck_assert_mem_eq(data, "a\0b", 4);
    free(data);
    must(hy_file_write_atomic(in_folder("f"), NULL, 0));
    must(hy_file_read(in_folder("f"), &data, &size));
    ck_assert_uint_eq(size, 0);
    ck_assert_str_eq(data, "");
    free(data);
    must(hy_file_read("/proc/self/status", &data, &size)); /* says size 0, holds more */
    ck_assert_uint_gt(size, 100);
    free(data);
}
END_TEST

START_TEST(a_wrong_path_is_named_with_the_reason) {
    char *data;
    size_t size;
    uint64_t hash;
    hy_file_map map;
    hy_reader *reader;
    const char *missing = in_folder("missing");
    must_fail(hy_file_read(missing, &data, &size), HY_ERR_INPUT, missing);
    must_fail(hy_file_read(missing, &data, &size), HY_ERR_INPUT, "No such file or directory");
    must_fail(hy_file_map_open(missing, &map), HY_ERR_INPUT, missing);
    must_fail(hy_reader_open(missing, &reader), HY_ERR_INPUT, missing);
    must_fail(hy_file_hash(missing, &hash, NULL), HY_ERR_INPUT, missing);

    must_fail(hy_file_read(folder, &data, &size), HY_ERR_INPUT, "Is a directory");
    must_fail(hy_file_map_open(folder, &map), HY_ERR_INPUT, folder);
    must_fail(hy_reader_open(folder, &reader), HY_ERR_INPUT, "Is a directory");
    must_fail(hy_file_hash(folder, &hash, NULL), HY_ERR_INPUT, folder);
    must_fail(hy_file_map_open("/dev/null", &map), HY_ERR_INPUT, "not a regular file");
    must_fail(hy_file_read("/dev/zero", &data, &size), HY_ERR_INPUT, "not a regular file");
    must_fail(hy_file_hash("/dev/zero", &hash, NULL), HY_ERR_INPUT, "not a regular file");
    ck_assert_int_eq(mkfifo(in_folder("pipe"), 0600), 0); /* nobody writes there */
    must_fail(hy_file_read(in_folder("pipe"), &data, &size), HY_ERR_INPUT, "not a regular file");
    must_fail(hy_file_map_open(in_folder("pipe"), &map), HY_ERR_INPUT, "not a regular file");
    must_fail(hy_reader_open(in_folder("pipe"), &reader), HY_ERR_INPUT, "not a regular file");
    write_text(in_folder("endless"), "");
    ck_assert_int_eq(truncate(in_folder("endless"), INT64_C(1) << 40), 0); /* all holes */
    must_fail(hy_file_read(in_folder("endless"), &data, &size), HY_ERR_INPUT, "larger than 64 MiB");

    write_text(in_folder("file"), "x");
    must_fail(hy_file_read(in_folder("file/below"), &data, &size), HY_ERR_INPUT, "Not a directory");
}
END_TEST

START_TEST(a_map_shows_the_file_and_an_empty_one_is_null) {
    hy_file_map map;
    write_text(in_folder("f"), "mapped");
    must(hy_file_map_open(in_folder("f"), &map));
    ck_assert_uint_eq(map.size, 6);
    ck_assert_mem_eq(map.data, "mapped", 6);
    hy_file_map_close(&map);
    ck_assert_ptr_null(map.data);
    write_text(in_folder("f"), "");
    must(hy_file_map_open(in_folder("f"), &map));
    ck_assert_ptr_null(map.data);
    ck_assert_uint_eq(map.size, 0);
    hy_file_map_close(&map);
}
END_TEST

START_TEST(a_reader_gives_any_piece_and_notices_a_shrunk_file) {
    hy_reader *reader;
    char piece[8] = {0};
    write_text(in_folder("f"), "0123456789");
    must(hy_reader_open(in_folder("f"), &reader));
    ck_assert_uint_eq(hy_reader_size(reader), 10);
    must(hy_reader_get(reader, 3, piece, 4));
    ck_assert_str_eq(piece, "3456");
    ck_assert_int_eq(truncate(in_folder("f"), 5), 0);
    must_fail(hy_reader_get(reader, 3, piece, 4), HY_ERR_IO, "ends at byte 5, expected 7 bytes");
    hy_reader_close(reader);
    hy_reader_close(NULL);
}
END_TEST

/* A file system that cannot read past its cache gives the bytes all the same. */
START_TEST(a_piece_read_past_the_cache_is_the_same) {
    enum { SIZE = 1000003 };
    uint8_t *bytes = malloc(SIZE);
    char *buffer = aligned_alloc(HY_DIRECT, HY_DIRECT_ROOM(SIZE)), *data;
    hy_reader *reader;
    ck_assert(bytes && buffer);
    for (uint64_t i = 0; i < SIZE; i++) bytes[i] = (uint8_t)hy_rng_u64(3, HY_RNG_TEST, i / 5);
    must(hy_file_write_atomic(in_folder("f"), bytes, SIZE)); /* synced */
    int fd = open(in_folder("f"), O_RDONLY);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    must(hy_reader_open(in_folder("f"), &reader));
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t offset = i < 20 ? i % 3 * 4096 + i / 3 : hy_rng_below(1, HY_RNG_TEST, i, SIZE);
        uint64_t size = i % 5 ? hy_rng_below(2, HY_RNG_TEST, i, 9000) : SIZE - offset;
        if (size > SIZE - offset) size = SIZE - offset;
        (void)hy_reader_is_cold(reader, offset, size);
        must(hy_reader_get_direct(reader, offset, size, buffer, &data));
        ck_assert(data >= buffer && data + size <= buffer + HY_DIRECT_ROOM(size));
        if (memcmp(data, bytes + offset, size) != 0) ck_abort_msg("piece %d", (int)i);
    }
    ck_assert(!hy_reader_is_cold(reader, SIZE - 1, 2));
    must_fail(hy_reader_get_direct(reader, SIZE - 1, 2, buffer, &data), HY_ERR_IO, "it ends at");
    must(hy_reader_get(reader, 0, buffer, SIZE));
    ck_assert(!hy_reader_is_cold(reader, 0, SIZE)); /* it is in the cache now */
    hy_reader_close(reader);
    free(bytes);
    free(buffer);
}
END_TEST

/* ---- writing --------------------------------------------------------------------------------- */

START_TEST(a_writer_keeps_every_byte_and_their_hash) {
    enum { SIZE = 1 << 20 };
    uint8_t *bytes = malloc(SIZE);
    ck_assert_ptr_nonnull(bytes);
    for (uint64_t i = 0; i < SIZE / 8; i++) {
        uint64_t word = hy_rng_u64(1, HY_RNG_TEST, i);
        memcpy(bytes + 8 * i, &word, 8);
    }
    hy_writer *w;
    must(hy_writer_create(in_folder("f"), &w));
    size_t at = 0;
    for (uint64_t i = 0; at < SIZE; i++) { /* pieces below, at and beyond the buffer's size */
        size_t piece = hy_rng_below(2, HY_RNG_TEST, i, i % 5 == 0 ? 200000 : 3000);
        if (piece > SIZE - at) piece = SIZE - at;
        must(hy_writer_put(w, bytes + at, piece));
        at += piece;
        if (i % 7 == 0) must(hy_writer_flush(w));
    }
    uint64_t expected = hy_hash_bytes(bytes, SIZE, 0), hash = 0, size = 0;
    ck_assert_uint_eq(hy_writer_size(w), SIZE);
    ck_assert_uint_eq(hy_writer_hash(w), expected);
    must(hy_writer_close(w, true));
    must(hy_file_hash(in_folder("f"), &hash, &size));
    ck_assert_uint_eq(hash, expected);
    ck_assert_uint_eq(size, SIZE);
    free(bytes);
}
END_TEST

START_TEST(create_truncates_and_put_at_adds) {
    hy_writer *w;
    write_text(in_folder("f"), "something longer");
    must(hy_writer_create(in_folder("f"), &w));
    must(hy_writer_put(w, "one,", 4));
    must(hy_writer_close(w, false));
    uint64_t end = HY_FILE_END, begin = 0;
    must(hy_file_put_at(in_folder("f"), &end, "two", 3));
    check_text(in_folder("f"), "one,two");
    ck_assert_uint_eq(end, 7);
    hy_fault_arm(1, ENOSPC, false); /* half of it is there, and written over */
    must_fail(hy_file_put_at(in_folder("f"), &end, ",three", 6), HY_ERR_IO, "No space left");
    hy_fault_disarm();
    check_text(in_folder("f"), "one,two,th");
    ck_assert_uint_eq(end, 7);
    must(hy_file_put_at(in_folder("f"), &end, ",three,four", 11));
    check_text(in_folder("f"), "one,two,three,four");
    end = HY_FILE_END;
    hy_fault_arm(1, ENOSPC, false); /* the end is where it was before the half */
    must_fail(hy_file_put_at(in_folder("f"), &end, ",five", 5), HY_ERR_IO, "No space left");
    hy_fault_disarm();
    must(hy_file_put_at(in_folder("f"), &end, ",five", 5));
    check_text(in_folder("f"), "one,two,three,four,five");
    write_text(in_folder("f"), "emptied,"); /* by someone: no hole */
    must(hy_file_put_at(in_folder("f"), &end, "five", 4));
    check_text(in_folder("f"), "emptied,five");
    must(hy_file_put_at(in_folder("new"), &begin, "", 0));
    check_text(in_folder("new"), "");
    must(hy_writer_close(NULL, true));
    hy_writer_abandon(NULL);
}
END_TEST

/* Whoever may put names into a folder must not reach other files by them. */
START_TEST(planted_links_are_never_written_through) {
    hy_writer *w;
    uint64_t at = 0;
    char secret[300], there[300];
    snprintf(secret, sizeof secret, "%s", in_folder("secret"));
    snprintf(there, sizeof there, "%s", in_folder("there"));
    write_text(secret, "mine");
    ck_assert_int_eq(symlink(secret, in_folder(".f.partial")), 0);
    write_text(in_folder("f"), "page");
    check_text(in_folder("f"), "page");
    ck_assert_int_eq(symlink(secret, in_folder("g")), 0);
    must(hy_writer_create(in_folder("g"), &w));
    must(hy_writer_put(w, "new", 3));
    must(hy_writer_close(w, false));
    check_text(in_folder("g"), "new");
    ck_assert_int_eq(symlink(there, in_folder("h")),
                     0); /* to nothing: it must not be made either */
    must(hy_writer_create(in_folder("h"), &w));
    must(hy_writer_close(w, false));
    ck_assert_int_eq(symlink(there, in_folder(".i.partial")), 0);
    write_text(in_folder("i"), "page");
    ck_assert_int_eq(link(secret, in_folder("hard")), 0);
    must(hy_writer_create(in_folder("hard"), &w));
    must(hy_writer_close(w, false));
    ck_assert_int_eq(symlink(secret, in_folder("j")), 0);
    must_fail(hy_file_put_at(in_folder("j"), &at, "x", 1), HY_ERR_INPUT,
              "j: it is not a regular file");
    ck_assert_int_eq(symlink(there, in_folder("k")), 0);
    must_fail(hy_file_put_at(in_folder("k"), &at, "x", 1), HY_ERR_INPUT,
              "k: it is not a regular file");
    ck_assert_int_eq(mkfifo(in_folder("l"), 0600), 0); /* opening one waits for a reader */
    must_fail(hy_file_put_at(in_folder("l"), &at, "x", 1), HY_ERR_INPUT,
              "l: it is not a regular file");
    ck_assert_int_eq(mkfifo(in_folder(".l.partial"), 0600), 0);
    write_text(in_folder("l"), "page");
    check_text(in_folder("l"), "page");
    check_text(secret, "mine");
    ck_assert(!hy_path_exists(there));
    must(hy_dir_make(in_folder(".m.partial"))); /* no name of ours: it stays */
    must_fail(hy_file_write_atomic(in_folder("m"), "x", 1), HY_ERR_INPUT, "Is a directory");
}
END_TEST

START_TEST(a_replaced_file_changes_only_when_it_is_closed) {
    hy_writer *w;
    write_text(in_folder("f"), "old");
    must(hy_writer_replace(in_folder("f"), &w));
    must(hy_writer_put(w, "new", 3));
    must(hy_writer_flush(w));
    check_text(in_folder("f"), "old");
    must(hy_writer_close(w, false));
    check_text(in_folder("f"), "new");
    must(hy_writer_replace(in_folder("f"), &w));
    must(hy_writer_put(w, "never", 5));
    hy_writer_abandon(w);
    check_text(in_folder("f"), "new");
    ck_assert(!hy_path_exists(in_folder(".f.partial")));
}
END_TEST

/* The first to end gave the name to what the other had not yet written. */
START_TEST(of_two_that_replace_a_file_the_later_one_does) {
    hy_writer *first, *second;
    write_text(in_folder("f"), "old");
    for (int is_abandoned = 0; is_abandoned < 2; is_abandoned++) {
        must(hy_writer_replace(in_folder("f"), &first));
        must(hy_writer_put(first, "first", 5));
        must(hy_writer_replace(in_folder("f"), &second));
        must(hy_writer_put(second, "sec", 3));
        if (is_abandoned) {
            hy_writer_abandon(first);
        } else {
            must_fail(hy_writer_close(first, true), HY_ERR_IO, "cannot replace");
            check_text(in_folder("f"), "old");
        }
        must(hy_writer_put(second, "ond", 3));
        must(hy_writer_close(second, true));
        check_text(in_folder("f"), "second");
    }
}
END_TEST

START_TEST(writing_where_it_cannot_be_names_the_path) {
    hy_writer *w;
    const char *below = in_folder("no/such/folder/f");
    must_fail(hy_writer_create(below, &w), HY_ERR_INPUT, below);
    uint64_t at = 0;
    must_fail(hy_file_put_at(below, &at, "x", 1), HY_ERR_INPUT, "No such file or directory");
    must_fail(hy_file_write_atomic(below, "x", 1), HY_ERR_INPUT, below);
    must_fail(hy_writer_create(folder, &w), HY_ERR_INPUT, "Is a directory");
    must_fail(hy_file_write_atomic(folder, "x", 1), HY_ERR_INPUT, "Is a directory");
    ck_assert_ptr_null(w);

    must(hy_dir_make(in_folder("locked")));
    ck_assert_int_eq(chmod(in_folder("locked"), 0555), 0);
    ck_assert_int_eq(chmod(folder, 0755), 0);
    AS_NOBODY(must_fail(hy_file_write_atomic(in_folder("locked/f"), "x", 1), HY_ERR_INPUT,
                        "Permission denied"));
    AS_NOBODY(must_fail(hy_dir_make(in_folder("locked/d")), HY_ERR_INPUT, in_folder("locked/d")));
    ck_assert_int_eq(chmod(in_folder("locked"), 0755), 0);
}
END_TEST

START_TEST(a_full_disk_is_reported_by_every_later_call) {
    hy_writer *w;
    if (!hy_path_exists("/dev/full")) return; /* Linux has it; the fault tests cover the rest */
    must(hy_writer_create("/dev/full", &w));
    must(hy_writer_put(w, "small", 5));
    must_fail(hy_writer_flush(w), HY_ERR_IO, "/dev/full: No space left on device");
    must_fail(hy_writer_put(w, "more", 4), HY_ERR_IO, "No space left");
    must_fail(hy_writer_close(w, true), HY_ERR_IO, "No space left");
}
END_TEST

/* ---- folders --------------------------------------------------------------------------------- */

START_TEST(folders_are_made_with_parents_and_removed_with_all_inside) {
    must(hy_dir_make(in_folder("a/b//c/")));
    must(hy_dir_make(in_folder("a/b/c")));
    ck_assert(hy_path_is_dir(in_folder("a/b/c")));
    write_text(in_folder("a/b/f"), "x");
    write_text(in_folder("outside"), "stays");
    ck_assert_int_eq(symlink("../outside", in_folder("a/link")), 0);
    ck_assert_int_eq(symlink("..", in_folder("a/up")), 0);
    must(hy_dir_remove(in_folder("a")));
    ck_assert(!hy_path_exists(in_folder("a")));
    check_text(in_folder("outside"), "stays");
    must(hy_dir_remove(in_folder("a"))); /* absent is fine */

    must(hy_dir_make(in_folder("real")));
    ck_assert_int_eq(symlink("real", in_folder("alias")), 0);
    must(hy_dir_remove(in_folder("alias")));
    ck_assert(hy_path_is_dir(in_folder("real")));
    ck_assert(!hy_path_exists(in_folder("alias")));
}
END_TEST

START_TEST(a_folder_is_made_durably_or_not_at_all) {
    for (long at = 0;; at++) {
        must(hy_dir_remove(in_folder("x")));
        hy_fault_arm(at, EIO, false);
        hy_status status = hy_dir_make(in_folder("x/y"));
        long calls = hy_fault_disarm();
        if (calls <= at) {
            must(status);
            ck_assert_int_eq(at, 4); /* two folders made, two names synced */
            break;
        }
        ck_assert_int_eq(status, HY_ERR_IO);
        ck_assert_ptr_nonnull(strstr(hy_error_message(), folder));
    }
    ck_assert(hy_path_is_dir(in_folder("x/y")));
}
END_TEST

START_TEST(a_file_in_the_place_of_a_folder_is_named) {
    write_text(in_folder("f"), "x");
    must_fail(hy_dir_make(in_folder("f")), HY_ERR_INPUT, "a file with that name exists");
    must_fail(hy_dir_make(in_folder("f/below")), HY_ERR_INPUT, in_folder("f"));
    must_fail(hy_dir_remove(in_folder("f")), HY_ERR_INPUT, "Not a directory");
    must_fail(hy_dir_sync(in_folder("f")), HY_ERR_INPUT, in_folder("f"));
    check_text(in_folder("f"), "x");
    ck_assert(hy_path_exists(in_folder("f")) && !hy_path_is_dir(in_folder("f")));
}
END_TEST

START_TEST(a_listing_is_sorted_and_complete) {
    char **names;
    size_t count;
    must(hy_dir_list(folder, &names, &count));
    ck_assert_uint_eq(count, 0);
    hy_dir_list_free(names, count);
    char name[16], before[16] = "";
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "n%d", (i * 37) % 100);
        write_text(in_folder(name), "");
    }
    must(hy_dir_list(folder, &names, &count));
    ck_assert_uint_eq(count, 100);
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_lt(strcmp(before, names[i]), 0);
        snprintf(before, sizeof before, "%s", names[i]);
    }
    hy_dir_list_free(names, count);
    must_fail(hy_dir_list(in_folder("none"), &names, &count), HY_ERR_INPUT, in_folder("none"));
}
END_TEST

START_TEST(names_move_and_swap) {
    write_text(in_folder("a"), "A");
    write_text(in_folder("b"), "B");
    must(hy_path_rename(in_folder("a"), in_folder("c")));
    check_text(in_folder("c"), "A");
    must_fail(hy_path_rename(in_folder("a"), in_folder("d")), HY_ERR_INPUT, in_folder("d"));
    hy_status swapped = hy_path_exchange(in_folder("b"), in_folder("c"));
    if (swapped == HY_OK) { /* some file systems have no swap; then nothing has moved */
        check_text(in_folder("b"), "A");
        check_text(in_folder("c"), "B");
    } else {
        check_text(in_folder("c"), "A");
    }
    hy_fault_lack_exchange(true);
    hy_status lacking = hy_path_exchange(in_folder("b"), in_folder("c"));
    hy_fault_lack_exchange(false);
    ck_assert_int_eq(lacking, HY_ERR_IO);
    must(hy_dir_sync(folder));
}
END_TEST

static void check_link(const char *expected) {
    char target[64] = "";
    ck_assert_int_gt(readlink(in_folder("link"), target, sizeof target - 1), 0);
    ck_assert_str_eq(target, expected);
}

START_TEST(a_link_leads_to_the_old_target_or_the_new_one) {
    for (long at = 0;; at++) {
        must(hy_link_put(in_folder("link"), "old"));
        check_link("old");
        hy_fault_arm(at, EIO, false);
        hy_status status = hy_link_put(in_folder("link"), "new");
        bool is_done = hy_fault_disarm() <= at;
        char target[64] = "";
        ck_assert_int_eq(readlink(in_folder("link"), target, sizeof target - 1), 3);
        ck_assert(strcmp(target, "old") == 0 || strcmp(target, "new") == 0);
        ck_assert(!hy_path_is_link(in_folder(".link.partial")));
        if (!is_done) ck_assert_int_eq(status, HY_ERR_IO);
        if (!is_done) continue;
        must(status);
        check_link("new");
        break;
    }
    write_text(in_folder("file"), "mine");
    must_fail(hy_link_put(in_folder("file"), "new"), HY_ERR_INPUT, "is not a link");
    check_text(in_folder("file"), "mine");
}
END_TEST

START_TEST(paths_are_joined_and_split) {
    static const struct {
        const char *path, *parent;
    } rows[] = {{"a", "."},    {"a/b", "a"}, {"/a", "/"},        {"/", "/"},  {"a/b/", "a"},
                {"a//b", "a"}, {"", "."},    {"/a/b/c", "/a/b"}, {"//a", "/"}};
    char out[16];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        must(hy_path_parent(out, sizeof out, rows[i].path));
        ck_assert_msg(strcmp(out, rows[i].parent) == 0, "parent of %s is %s", rows[i].path, out);
    }
    must(hy_path_join(out, sizeof out, "dir", "name"));
    ck_assert_str_eq(out, "dir/name");
    must(hy_path_join(out, sizeof out, "dir/", "name"));
    ck_assert_str_eq(out, "dir/name");
    must(hy_path_join(out, sizeof out, "", "name"));
    ck_assert_str_eq(out, "name");
    must_fail(hy_path_join(out, sizeof out, "a-long-folder", "name"), HY_ERR_INPUT,
              "a-long-folder/name is too long");
    must_fail(hy_path_parent(out, 4, "abcdef/x"), HY_ERR_INPUT, "too long");
}
END_TEST

/* ---- faults ---------------------------------------------------------------------------------- */

/* Replaces a file while call number `at` fails. True when no call was left to fail. */
static bool replace_under_fault(long at, int error_number, bool is_lasting) {
    write_text(in_folder("f"), "old");
    hy_fault_arm(at, error_number, is_lasting);
    hy_status status = hy_file_write_atomic(in_folder("f"), "new text", 8);
    long calls = hy_fault_disarm();
    if (calls <= at) {
        must(status);
        return true;
    }
    ck_assert_msg(status != HY_OK, "call %ld failed and nobody noticed", at);
    ck_assert_int_eq(status, HY_ERR_IO);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), folder));
    ck_assert_ptr_nonnull(strstr(hy_error_message(), strerror(error_number)));
    return false;
}

START_TEST(a_fault_at_any_call_leaves_the_old_file_or_the_new_one) {
    int errors[] = {ENOSPC, EIO};
    for (int lasting = 0; lasting < 2; lasting++) {
        long at = 0;
        while (!replace_under_fault(at, errors[lasting], lasting)) {
            char *data;
            size_t size;
            must(hy_file_read(in_folder("f"), &data, &size));
            ck_assert_msg(!strcmp(data, "old") || !strcmp(data, "new text"), "half: %s", data);
            free(data);
            at++;
        }
        ck_assert_int_eq(at, 6); /* open, write, sync, close, rename, sync of the folder */
        check_text(in_folder("f"), "new text");
        ck_assert(!hy_path_exists(in_folder(".f.partial")));
    }
}
END_TEST

START_TEST(a_killed_writer_leaves_the_old_file_or_the_new_one) {
    for (long at = 0;; at++) {
        write_text(in_folder("f"), "old");
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            hy_fault_arm_kill(at, 99);
            hy_status status = hy_file_write_atomic(in_folder("f"), "new text", 8);
            _exit(status == HY_OK ? 0 : 1);
        }
        int result;
        ck_assert_int_eq(waitpid(child, &result, 0), child);
        ck_assert(WIFEXITED(result));
        char *data;
        size_t size;
        must(hy_file_read(in_folder("f"), &data, &size));
        ck_assert_msg(!strcmp(data, "old") || !strcmp(data, "new text"), "half: %s", data);
        free(data);
        if (WEXITSTATUS(result) == 0) break;
        ck_assert_int_eq(WEXITSTATUS(result), 99);
        ck_assert_int_lt(at, 100);
    }
    check_text(in_folder("f"), "new text");
}
END_TEST

START_TEST(a_failing_write_leaves_half_like_a_full_disk) {
    hy_writer *w;
    must(hy_writer_create(in_folder("f"), &w));
    must(hy_writer_put(w, "12345678", 8));
    hy_fault_arm(0, ENOSPC, false);
    must_fail(hy_writer_flush(w), HY_ERR_IO, "No space left on device");
    ck_assert_int_eq(hy_fault_disarm(), 1);
    must_fail(hy_writer_put(w, "9", 1), HY_ERR_IO, in_folder("f"));
    must_fail(hy_writer_close(w, false), HY_ERR_IO, in_folder("f"));
    check_text(in_folder("f"), "1234"); /* nothing after the hole */
    ck_assert_int_eq(hy_fault_disarm(), 0);
}
END_TEST

/* ---- large files ----------------------------------------------------------------------------- */

/* Writes `size` bytes in pieces of odd sizes; what was put is in *hash. */
static hy_status write_large(const char *path, uint64_t size, uint64_t *hash) {
    enum { PIECE = (3 << 20) + 517 };
    hy_writer *w;
    char *piece = malloc(PIECE);
    ck_assert_ptr_nonnull(piece);
    hy_status status = hy_writer_create(path, &w);
    if (status == HY_OK) status = hy_writer_expect(w, size);
    for (uint64_t at = 0; at < size && status == HY_OK;) {
        uint64_t some = at % 7 == 0 ? 13 : PIECE; /* some that are buffered, some that are not */
        if (some > size - at) some = size - at;
        for (uint64_t i = 0; i < some; i += 509) piece[i] = (char)(at + i);
        memset(piece, (int)(at >> 12), some < 500 ? some : 500);
        status = hy_writer_put(w, piece, some);
        at += some;
    }
    free(piece);
    if (!w) return status;
    *hash = hy_writer_hash(w);
    hy_status closed = hy_writer_close(w, true);
    return status != HY_OK ? status : closed;
}

START_TEST(a_large_file_has_every_byte_in_its_place) {
    uint64_t sizes[] = {HY_BULK_LEAST, HY_BULK_LEAST + 1, HY_BULK_LEAST + (8 << 20) - 1,
                        HY_BULK_LEAST + 3 * (8 << 20) + 4097};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t put, found, size;
        must(write_large(in_folder("large"), sizes[i], &put));
        must(hy_file_hash(in_folder("large"), &found, &size));
        ck_assert_uint_eq(size, sizes[i]);
        ck_assert_uint_eq(found, put);
    }
}
END_TEST

START_TEST(a_fault_at_any_call_of_a_large_file_is_noticed) {
    uint64_t hash;
    long at = 0;
    for (;; at++) {
        (void)unlink(
            in_folder("large")); /* or it would be unlinked by the writer: two calls more */
        hy_fault_arm(at, at % 2 ? EIO : ENOSPC, false);
        hy_status status = write_large(in_folder("large"), HY_BULK_LEAST + 5, &hash);
        if (hy_fault_disarm() <= at) {
            must(status);
            break;
        }
        ck_assert_int_eq(status, HY_ERR_IO);
        ck_assert_ptr_nonnull(strstr(hy_error_message(), in_folder("large")));
    }
    ck_assert_int_eq(at, 13); /* open, reserve, eight blocks and the rest, sync, close */
}
END_TEST

START_TEST(a_disk_without_room_is_known_before_anything_is_put) {
    hy_writer *w;
    must(hy_writer_create(in_folder("large"), &w));
    hy_fault_arm(0, ENOSPC, false);
    must_fail(hy_writer_expect(w, HY_BULK_LEAST), HY_ERR_IO, "No space left on device");
    hy_fault_disarm();
    must_fail(hy_writer_put(w, "1", 1), HY_ERR_IO, "No space left on device");
    hy_writer_abandon(w);
    must(hy_writer_create(in_folder("large"), &w)); /* given up on the way */
    must(hy_writer_expect(w, HY_BULK_LEAST));
    must(hy_writer_put(w, "1", 1));
    hy_writer_abandon(w);
}
END_TEST

START_TEST(a_lock_lets_one_in_and_names_it_to_the_others) {
    hy_lock *lock, *second;
    char me[32];
    snprintf(me, sizeof me, "process %ld on host ", (long)getpid());
    must(hy_lock_take(folder, &lock));
    must_fail(hy_lock_take(folder, &second), HY_ERR_INPUT, me);
    ck_assert_ptr_null(second);
    ck_assert(hy_lock_is_there(lock));
    hy_lock_release(lock);
    ck_assert(!hy_path_exists(in_folder(HY_LOCK_FILE)));
    must(hy_lock_take(folder, &second));
    ck_assert_int_eq(unlink(in_folder(HY_LOCK_FILE)), 0);
    ck_assert(!hy_lock_is_there(second));
    must(hy_lock_take(folder, &lock)); /* the name is free, so the folder was made again */
    hy_lock_release(second);
    ck_assert(
        hy_path_exists(in_folder(HY_LOCK_FILE))); /* which is not the second one's to remove */
    hy_lock_release(lock);
}
END_TEST

START_TEST(the_lock_of_a_killed_process_keeps_nobody_out) {
    hy_lock *lock;
    int status;
    pid_t child = fork();
    if (child == 0) {
        hy_lock *theirs;
        if (hy_lock_take(folder, &theirs) != HY_OK) _exit(2);
        kill(getpid(), SIGKILL);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
    ck_assert(hy_path_exists(in_folder(HY_LOCK_FILE)));
    must(hy_lock_take(folder, &lock));
    hy_lock_release(lock);
}
END_TEST

START_TEST(a_lock_follows_no_link_and_believes_no_stranger) {
    hy_lock *lock, *second;
    write_text(in_folder("precious"), "as it was");
    ck_assert_int_eq(symlink("precious", in_folder(HY_LOCK_FILE)), 0);
    must_fail(hy_lock_take(folder, &lock), HY_ERR_INPUT, HY_LOCK_FILE);
    check_text(in_folder("precious"), "as it was");
    ck_assert_int_eq(unlink(in_folder(HY_LOCK_FILE)), 0);
    must(hy_lock_take(folder, &lock));
    FILE *file = fopen(in_folder(HY_LOCK_FILE), "w"); /* in place: the lock stays */
    fputs("12 evil\033[2J\n", file);
    fclose(file);
    must_fail(hy_lock_take(folder, &second), HY_ERR_INPUT, "in use by another process");
    hy_lock_release(lock);
}
END_TEST

static Suite *file_suite(void) {
    Suite *suite = suite_create("base: files");
    TCase *files = tcase_create("files");
    tcase_add_checked_fixture(files, make_folder, drop_folder);
    tcase_add_test(files, a_file_is_read_whole_with_a_zero_behind_it);
    tcase_add_test(files, a_wrong_path_is_named_with_the_reason);
    tcase_add_test(files, a_map_shows_the_file_and_an_empty_one_is_null);
    tcase_add_test(files, a_reader_gives_any_piece_and_notices_a_shrunk_file);
    tcase_add_test(files, a_piece_read_past_the_cache_is_the_same);
    tcase_add_test(files, a_writer_keeps_every_byte_and_their_hash);
    tcase_add_test(files, create_truncates_and_put_at_adds);
    tcase_add_test(files, planted_links_are_never_written_through);
    tcase_add_test(files, a_replaced_file_changes_only_when_it_is_closed);
    tcase_add_test(files, of_two_that_replace_a_file_the_later_one_does);
    tcase_add_test(files, writing_where_it_cannot_be_names_the_path);
    tcase_add_test(files, a_full_disk_is_reported_by_every_later_call);
    tcase_add_test(files, folders_are_made_with_parents_and_removed_with_all_inside);
    tcase_add_test(files, a_folder_is_made_durably_or_not_at_all);
    tcase_add_test(files, a_file_in_the_place_of_a_folder_is_named);
    tcase_add_test(files, a_listing_is_sorted_and_complete);
    tcase_add_test(files, names_move_and_swap);
    tcase_add_test(files, a_link_leads_to_the_old_target_or_the_new_one);
    tcase_add_test(files, paths_are_joined_and_split);
    tcase_add_test(files, a_fault_at_any_call_leaves_the_old_file_or_the_new_one);
    tcase_add_test(files, a_killed_writer_leaves_the_old_file_or_the_new_one);
    tcase_add_test(files, a_failing_write_leaves_half_like_a_full_disk);
    tcase_add_test(files, a_large_file_has_every_byte_in_its_place);
    tcase_add_test(files, a_fault_at_any_call_of_a_large_file_is_noticed);
    tcase_add_test(files, a_disk_without_room_is_known_before_anything_is_put);
    tcase_add_test(files, a_lock_lets_one_in_and_names_it_to_the_others);
    tcase_add_test(files, the_lock_of_a_killed_process_keeps_nobody_out);
    tcase_add_test(files, a_lock_follows_no_link_and_believes_no_stranger);
    suite_add_tcase(suite, files);
    return suite;
}

HY_TEST_MAIN(file_suite)
