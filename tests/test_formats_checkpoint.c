/* test_formats_checkpoint.c: a checkpoint is never left incomplete.
 *
 * A "generation" is a number written into both files of a checkpoint, so that old, new and mixed
 * checkpoints can be distinguished. Saves are disturbed at every call that changes the disk: by one
 * error, by a lasting error, by the end of the process; for each way in which a checkpoint can get
 * its name. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "mutate.h"

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) {
    hy_fault_disarm();
    hy_fault_lack_exchange(false);
    remove_folder(folder);
}

static const char *in_folder(const char *name) {
    static char paths[8][PATH_MAX];
    static int next;
    char *path = paths[next++ % 8];
    must(hy_path_join(path, PATH_MAX, folder, name));
    return path;
}

/* ---- saving and loading one ------------------------------------------------------------------ */

static hy_status write_weights(hy_checkpoint *c, int32_t generation) {
    hy_safetensors_entry entry = {.name = "w", .dtype = HY_I32, .ndim = 1, .shape = {1000}};
    hy_safetensors_writer *w;
    uint64_t hash, size;
    int32_t values[1000];
    for (int i = 0; i < 1000; i++) values[i] = generation;
    HY_TRY(hy_safetensors_create(hy_checkpoint_path(c, "w.safetensors"), &entry, 1, NULL, &w));
    hy_status status = hy_safetensors_put(w, values, sizeof values);
    if (status != HY_OK) {
        hy_safetensors_abandon(w);
        return status;
    }
    HY_TRY(hy_safetensors_finish(w, &hash, &size));
    return hy_checkpoint_add(c, "w.safetensors", hash, size);
}

static hy_status save(int64_t step, int32_t generation) {
    hy_checkpoint *c;
    char state[64];
    HY_TRY(hy_checkpoint_begin(folder, step, &c));
    hy_status status = write_weights(c, generation);
    snprintf(state, sizeof state, "{\"generation\": %d}", generation);
    if (status == HY_OK) status = hy_checkpoint_put(c, "state.json", state, strlen(state));
    if (status != HY_OK) {
        char message[HY_ERROR_MESSAGE_MAX];
        snprintf(message, sizeof message, "%s", hy_error_message());
        hy_checkpoint_abort(c);
        return hy_fail(status, "%s", message);
    }
    return hy_checkpoint_commit(c);
}

/* The generation of a checkpoint, which must be the same in both files. */
static int64_t load(const char *path) {
    char file_path[PATH_MAX];
    hy_safetensors *file;
    hy_json *state;
    int32_t values[1000];
    int64_t generation = -1;
    must(hy_path_join(file_path, sizeof file_path, path, "w.safetensors"));
    must(hy_safetensors_open(file_path, &file));
    must(hy_safetensors_read(file, hy_safetensors_find(file, "w"), 0, values, sizeof values));
    hy_safetensors_close(file);
    must(hy_path_join(file_path, sizeof file_path, path, "state.json"));
    must(hy_json_read_file(file_path, &state));
    must(hy_json_int(state, hy_json_root(state), "generation", &generation));
    hy_json_free(state);
    for (int i = 0; i < 1000; i++) ck_assert_int_eq(values[i], generation);
    return generation;
}

/* The newest checkpoint, with nothing damaged in sight. Returns its generation. */
static int64_t load_latest(int64_t *step) {
    char path[PATH_MAX];
    hy_text notes = {0};
    must(hy_checkpoint_latest(folder, path, sizeof path, step, &notes));
    ck_assert_msg(notes.size == 0, "damaged: %s", hy_text_string(&notes));
    hy_text_free(&notes);
    must(hy_checkpoint_verify(path, true));
    return load(path);
}

/* How many names in the folder begin with a dot: what a finished save must not leave. */
static int count_leftovers(void) {
    char **names;
    size_t count;
    int leftovers = 0;
    must(hy_dir_list(folder, &names, &count));
    for (size_t i = 0; i < count; i++) leftovers += names[i][0] == '.';
    hy_dir_list_free(names, count);
    return leftovers;
}

START_TEST(a_checkpoint_is_found_verified_and_loaded) {
    int64_t step = -1;
    must(save(0, 10));
    ck_assert_int_eq(load_latest(&step), 10);
    ck_assert_int_eq(step, 0);
    must(save(9, 11));
    must(save(10, 12)); /* newer by number, not by letters */
    ck_assert_int_eq(load_latest(&step), 12);
    ck_assert_int_eq(step, 10);
    must(hy_checkpoint_verify(in_folder("checkpoint-9"), false));
    must(hy_checkpoint_verify(in_folder("checkpoint-9/"), true));
    ck_assert_int_eq(count_leftovers(), 0);
    must(hy_checkpoint_latest(folder, (char[PATH_MAX]){0}, PATH_MAX, NULL, NULL));
    char small[8];
    must_fail(hy_checkpoint_latest(folder, small, sizeof small, &step, NULL), HY_ERR_INPUT,
              "too long");
}
END_TEST

START_TEST(a_checkpoint_of_the_same_step_is_replaced) {
    int64_t step;
    for (int lacks = 0; lacks < 2; lacks++) {
        hy_fault_lack_exchange(lacks);
        must(save(5, 1));
        must(save(5, 2));
        ck_assert_int_eq(load_latest(&step), 2);
        ck_assert_int_eq(count_leftovers(), 0);
    }
}
END_TEST

START_TEST(an_aborted_checkpoint_leaves_nothing) {
    hy_checkpoint *c;
    must(hy_checkpoint_begin(folder, 3, &c));
    must(hy_checkpoint_put(c, "a", "x", 1));
    ck_assert_int_eq(count_leftovers(), 1);
    hy_checkpoint_abort(c);
    hy_checkpoint_abort(NULL);
    ck_assert_int_eq(count_leftovers(), 0);
    int64_t step;
    char path[PATH_MAX];
    must_fail(hy_checkpoint_latest(folder, path, sizeof path, &step, NULL), HY_ERR_INPUT,
              "no checkpoint in");
}
END_TEST

START_TEST(wrong_use_is_refused_with_names) {
    hy_checkpoint *c;
    must_fail(hy_checkpoint_begin(in_folder("none"), 1, &c), HY_ERR_INPUT, in_folder("none"));
    must_fail(hy_checkpoint_begin(folder, -1, &c), HY_ERR_INPUT, "-1 is negative");
    must(hy_file_write_atomic(in_folder("checkpoint-4"), "x", 1));
    must_fail(hy_checkpoint_begin(folder, 4, &c), HY_ERR_INPUT, "a file with that name exists");

    must(hy_checkpoint_begin(folder, 1, &c));
    static const char *const bad[] = {"", ".", "..", "a/b", "/a", "manifest.json"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        must_fail(hy_checkpoint_put(c, bad[i], "x", 1), HY_ERR_INPUT, "cannot be the name");
        must_fail(hy_checkpoint_add(c, bad[i], 0, 1), HY_ERR_INPUT, "cannot be the name");
    }
    must(hy_checkpoint_put(c, "a", "x", 1));
    must_fail(hy_checkpoint_add(c, "a", 0, 1), HY_ERR_STATE, "added twice");
    must_fail(hy_checkpoint_add(c, "b", 0, 1), HY_ERR_INPUT, "No such file");
    must(hy_file_write_atomic(hy_checkpoint_path(c, "b"), "xyz", 3));
    must_fail(hy_checkpoint_add(c, "b", 0, 1), HY_ERR_STATE,
              "added with 1 bytes, but the file has 3");
    char endless[PATH_MAX];
    memset(endless, 'n', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    ck_assert_str_eq(hy_checkpoint_path(c, endless), "");
    must_fail(hy_checkpoint_put(c, endless, "x", 1), HY_ERR_INPUT, "cannot be the name");
    must(hy_checkpoint_commit(c));
    must(hy_checkpoint_verify(in_folder("checkpoint-1"), true));
}
END_TEST

/* ---- the order of things on the disk --------------------------------------------------------- */

/* The calls the library makes are seen on their way to the system: fsync and both renames. What was
 * synced is remembered with its state at that moment. */
typedef struct synced {
    ino_t inode;
    off_t size;
    struct timespec changed;
} synced;
static synced synced_list[256];
static int synced_count, publish_count, parent_syncs_after_publish;
static bool is_watching;

int fsync(int fd) {
    struct stat info, parent;
    if (is_watching && fstat(fd, &info) == 0 && synced_count < 256) {
        synced_list[synced_count++] =
            (synced){.inode = info.st_ino, .size = info.st_size, .changed = info.st_mtim};
        bool is_parent = stat(folder, &parent) == 0 && parent.st_ino == info.st_ino;
        if (is_parent && publish_count > 0) parent_syncs_after_publish++;
    }
    return 0; /* the disk itself need not wait: no test can see the difference */
}

static bool was_synced_as_it_is(const char *path) {
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    for (int i = 0; i < synced_count; i++) {
        const synced *s = &synced_list[i];
        if (s->inode == info.st_ino && s->size == info.st_size &&
            s->changed.tv_sec == info.st_mtim.tv_sec &&
            s->changed.tv_nsec == info.st_mtim.tv_nsec) {
            return true;
        }
    }
    return false;
}

/* Called at the moment a partial folder gets its final name. */
static void check_everything_is_synced(const char *partial) {
    char **names;
    size_t count;
    must(hy_dir_list(partial, &names, &count));
    ck_assert_uint_eq(count, 3);
    for (size_t i = 0; i < count; i++) {
        char path[PATH_MAX];
        must(hy_path_join(path, sizeof path, partial, names[i]));
        ck_assert_msg(was_synced_as_it_is(path), "%s gets its name before it is synced", path);
    }
    ck_assert_msg(was_synced_as_it_is(partial), "the folder gets its name before it is synced");
    hy_dir_list_free(names, count);
    publish_count++;
}

static bool is_publishing(const char *from, const char *to) {
    const char *name = strrchr(to, '/');
    return is_watching && strstr(from, ".partial") && name && name[1] == 'c';
}

int rename(const char *from, const char *to) {
    if (is_publishing(from, to)) check_everything_is_synced(from);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    if (is_publishing(from, to)) check_everything_is_synced(from);
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

START_TEST(everything_is_synced_before_the_name_and_the_name_after) {
    for (int lacks = 0; lacks < 2; lacks++) {
        hy_fault_lack_exchange(lacks);
        for (int again = 0; again < 2; again++) { /* a free name, then one that is taken */
            synced_count = publish_count = parent_syncs_after_publish = 0;
            is_watching = true;
            hy_status status = save(lacks, again);
            is_watching = false;
            must(status);
            ck_assert_int_eq(publish_count, 1);
            ck_assert_int_ge(parent_syncs_after_publish, 1);
        }
    }
}
END_TEST

/* ---- disturbed saves ------------------------------------------------------------------------- */

/* The three ways a checkpoint takes its name. */
typedef struct scenario {
    int64_t step;        /* of the new one; the old one has step 100 */
    bool lacks_exchange; /* of the file system */
} scenario;
static const scenario scenarios[] = {{200, false}, {100, false}, {100, true}};
enum { SCENARIOS = 3 };

/* Step 50 and step 100, generations 1 and 2; the disturbed save is generation 3. */
static void start_over(const scenario *s) {
    must(hy_dir_remove(folder));
    must(hy_dir_make(folder));
    hy_fault_lack_exchange(s->lacks_exchange);
    must(save(50, 1));
    must(save(100, 2));
}

/* After a disturbed save: old or new, nothing mixed, nothing lost, and the next save works. */
static int64_t check_after(const scenario *s) {
    int64_t step, generation = load_latest(&step);
    ck_assert_int_eq(load(in_folder("checkpoint-50")), 1);
    if (generation == 2) {
        ck_assert_int_eq(step, 100);
    } else {
        ck_assert_int_eq(generation, 3);
        ck_assert_int_eq(step, s->step);
    }
    if (s->step != 100) ck_assert_int_eq(load(in_folder("checkpoint-100")), 2);
    must(save(s->step, 4));
    ck_assert_int_eq(count_leftovers(), 0);
    ck_assert_int_eq(load_latest(&step), 4);
    return generation;
}

static void disturb_with_errors(const scenario *s, int error_number, bool is_lasting) {
    for (long at = 0;; at++) {
        ck_assert_int_lt(at, 200);
        start_over(s);
        hy_fault_arm(at, error_number, is_lasting);
        hy_status status = save(s->step, 3);
        long calls = hy_fault_disarm();
        char message[HY_ERROR_MESSAGE_MAX];
        snprintf(message, sizeof message, "%s", hy_error_message());
        /* Without anyone healing it, too: a single error is taken back at once. */
        if (!is_lasting) must(hy_checkpoint_verify(in_folder("checkpoint-100"), true));
        int64_t generation = check_after(s);
        if (status == HY_OK) ck_assert_int_eq(generation, 3);
        if (calls <= at) {
            must(status);
            ck_assert_int_ge(at, 12);
            return;
        }
        if (status == HY_OK) continue; /* it struck while the old one was cleared away */
        ck_assert_int_eq(status, HY_ERR_IO);
        ck_assert_msg(strstr(message, folder) != NULL, "no path: %s", message);
        ck_assert_msg(strstr(message, strerror(error_number)) != NULL, "no reason: %s", message);
        /* A single error is always taken back; when all fails, the new one may have its name. */
        if (!is_lasting) ck_assert_int_eq(generation, 2);
    }
}

START_TEST(an_error_at_any_call_leaves_the_previous_checkpoint) {
    disturb_with_errors(&scenarios[_i], ENOSPC, false);
}
END_TEST

START_TEST(errors_from_any_call_on_leave_the_previous_checkpoint) {
    disturb_with_errors(&scenarios[_i], EIO, true);
}
END_TEST

/* Runs `work` in a child that ends at call `at`; true when it came to its end. */
static bool survives_kill(long at, hy_status (*work)(const scenario *), const scenario *s) {
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        hy_fault_arm_kill(at, 99);
        _exit(work(s) == HY_OK ? 0 : 1);
    }
    int result;
    ck_assert_int_eq(waitpid(child, &result, 0), child);
    ck_assert(WIFEXITED(result) && (WEXITSTATUS(result) == 0 || WEXITSTATUS(result) == 99));
    return WEXITSTATUS(result) == 0;
}

static hy_status save_third(const scenario *s) { return save(s->step, 3); }

START_TEST(a_kill_at_any_call_leaves_old_or_new) {
    const scenario *s = &scenarios[_i];
    bool is_done = false;
    int seen[4] = {0};
    for (long at = 0; !is_done; at++) {
        ck_assert_int_lt(at, 200);
        start_over(s);
        is_done = survives_kill(at, save_third, s);
        seen[check_after(s)]++;
    }
    ck_assert_int_ge(seen[2], 10); /* both outcomes were met */
    ck_assert_int_ge(seen[3], 2);
}
END_TEST

/* A second kill while the leftovers of the first are cleared must not lose anything either. */
START_TEST(a_kill_during_the_clearing_of_leftovers_loses_nothing) {
    const scenario *s = &scenarios[_i];
    for (long first = 10; first <= 16; first += 6) { /* with half a manifest; between two renames */
        bool is_done = false;
        for (long at = 0; !is_done; at++) {
            ck_assert_int_lt(at, 200);
            start_over(s);
            if (survives_kill(first, save_third, s)) break;
            is_done = survives_kill(at, save_third, s);
            check_after(s);
        }
    }
}
END_TEST

START_TEST(a_crash_between_two_renames_is_healed) {
    /* The fallback without an exchange, stopped when nothing has the name. */
    must(save(7, 1));
    must(hy_path_rename(in_folder("checkpoint-7"), in_folder(".checkpoint-7.old")));
    must(hy_dir_make(in_folder(".checkpoint-7.partial")));
    int64_t step;
    ck_assert_int_eq(load_latest(&step), 1); /* reading heals it */
    ck_assert_int_eq(step, 7);

    must(hy_path_rename(in_folder("checkpoint-7"), in_folder(".checkpoint-7.old")));
    hy_checkpoint *c;
    must(hy_checkpoint_begin(folder, 8, &c)); /* and so does the next save */
    hy_checkpoint_abort(c);
    ck_assert_int_eq(load_latest(&step), 1);
    ck_assert_int_eq(count_leftovers(), 0);
}
END_TEST

START_TEST(a_partial_folder_is_never_taken_for_a_checkpoint) {
    must(save(7, 1));
    must(hy_path_rename(in_folder("checkpoint-7"), in_folder(".checkpoint-9.partial")));
    int64_t step;
    char path[PATH_MAX];
    must_fail(hy_checkpoint_latest(folder, path, sizeof path, &step, NULL), HY_ERR_INPUT,
              "no checkpoint in");
}
END_TEST

/* ---- damaged checkpoints --------------------------------------------------------------------- */

static void damage(const char *name, const char *content) {
    must(hy_file_write_atomic(in_folder(name), content, strlen(content)));
}

START_TEST(a_damaged_file_is_named_with_the_reason) {
    const char *one = in_folder("checkpoint-1");
    must(save(1, 1));
    damage("checkpoint-1/state.json", "{\"generation\": 7}");
    must(hy_checkpoint_verify(one, false)); /* same size: only the hash tells */
    must_fail(hy_checkpoint_verify(one, true), HY_ERR_INPUT, "checkpoint-1/state.json is damaged");
    damage("checkpoint-1/state.json", "{}");
    must_fail(hy_checkpoint_verify(one, false), HY_ERR_INPUT,
              "state.json has 2 bytes, but the manifest says 17");
    ck_assert_int_eq(remove(in_folder("checkpoint-1/state.json")), 0);
    must_fail(hy_checkpoint_verify(one, false), HY_ERR_INPUT, "checkpoint-1/state.json is missing");
    must(hy_dir_make(in_folder("checkpoint-1/state.json")));
    must_fail(hy_checkpoint_verify(one, false), HY_ERR_INPUT, "not a regular file");
    must_fail(hy_checkpoint_verify(in_folder("none"), true), HY_ERR_INPUT, "is not a checkpoint");
    must_fail(hy_checkpoint_verify(folder, true), HY_ERR_INPUT, "it has no manifest.json");

    must(save(2, 2));
    must(hy_file_write_atomic(in_folder("checkpoint-2/README"), "mine", 4));
    must(hy_checkpoint_verify(in_folder("checkpoint-2"), true)); /* other files do not matter */
    must(hy_path_rename(in_folder("checkpoint-2"), in_folder("best")));
    must(hy_checkpoint_verify(in_folder("best"), true));
    must(hy_path_rename(in_folder("best"), in_folder("checkpoint-3")));
    must_fail(hy_checkpoint_verify(in_folder("checkpoint-3"), true), HY_ERR_INPUT,
              "the manifest is of step 2");
}
END_TEST

START_TEST(a_wrong_manifest_is_refused) {
#define HEAD "{\"format\":\"hybrid-train checkpoint\",\"version\":1,\"step\":1,\"files\":"
    static const struct {
        const char *manifest, *message;
    } rows[] = {
        {"", "manifest.json:1:1"},
        {"{}", "\"format\" is missing"},
        {"[]", "\"format\" is missing"},
        {"{\"format\":\"other\",\"version\":1,\"step\":1,\"files\":[]}",
         "format \"other\" version 1"},
        {"{\"format\":\"hybrid-train checkpoint\",\"version\":2,\"step\":1}",
         "version 2, expected"},
        {HEAD "{}}", "\"files\" is missing or not an array"},
        {HEAD "[1]}", "\"name\" is missing"},
        {HEAD "[{\"name\":\"../x\",\"bytes\":1,\"xxh64\":\"0123456789abcdef\"}]}",
         "\"../x\" is not a file name"},
        {HEAD "[{\"name\":\"a\\u0000\",\"bytes\":1,\"xxh64\":\"0123456789abcdef\"}]}",
         "is not a file name"},
        {HEAD "[{\"name\":\"a\",\"bytes\":-1,\"xxh64\":\"0123456789abcdef\"}]}", "malformed"},
        {HEAD "[{\"name\":\"a\",\"bytes\":1,\"xxh64\":\"0123456789abcde\"}]}", "malformed"},
        {HEAD "[{\"name\":\"a\",\"bytes\":1,\"xxh64\":\"0x23456789abcdef\"}]}", "malformed"},
        {HEAD "[{\"name\":\"a\",\"bytes\":1,\"xxh64\":5}]}", "\"xxh64\" is a number"},
        {HEAD "[{\"name\":\"a\",\"bytes\":1,\"xxh64\":\"0123456789abcdef\"}]}", "a is missing"},
    };
#undef HEAD
    must(save(1, 1));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        damage("checkpoint-1/manifest.json", rows[i].manifest);
        must_fail(hy_checkpoint_verify(in_folder("checkpoint-1"), true), HY_ERR_INPUT,
                  rows[i].message);
        must_fail(hy_checkpoint_verify(in_folder("checkpoint-1"), true), HY_ERR_INPUT, folder);
    }
}
END_TEST

START_TEST(the_newest_whole_checkpoint_is_found_behind_damaged_ones) {
    must(save(1, 1));
    must(save(2, 2));
    must(save(3, 3));
    must(hy_dir_make(in_folder("checkpoint-4")));
    damage("checkpoint-5", "a file");
    damage("checkpoint-3/state.json", "{\"generation\": 9}");
    static const char *const other[] = {"checkpoint-",   "checkpoint-07",
                                        "checkpoint-9x", "checkpoint--9",
                                        "xcheckpoint-9", "checkpoint-9999999999999999999"};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        must(hy_dir_make(in_folder(other[i])));
    char path[PATH_MAX];
    int64_t step;
    hy_text notes = {0};
    must(hy_checkpoint_latest(folder, path, sizeof path, &step, &notes));
    ck_assert_int_eq(step, 2);
    ck_assert_str_eq(path, in_folder("checkpoint-2"));
    ck_assert_ptr_nonnull(strstr(notes.data, "checkpoint-5 is not a checkpoint"));
    ck_assert_ptr_nonnull(
        strstr(notes.data, "checkpoint-4 is not a checkpoint: it has no manifest"));
    ck_assert_ptr_nonnull(strstr(notes.data, "checkpoint-3/state.json is damaged"));
    ck_assert_ptr_null(strstr(notes.data, "9x"));
    hy_text_free(&notes);

    must(hy_dir_remove(in_folder("checkpoint-2")));
    damage("checkpoint-1/w.safetensors", "");
    must_fail(hy_checkpoint_latest(folder, path, sizeof path, &step, NULL), HY_ERR_INPUT,
              "none of the 4 checkpoints");
    must_fail(hy_checkpoint_latest(in_folder("none"), path, sizeof path, &step, NULL), HY_ERR_INPUT,
              "No such file");
}
END_TEST

START_TEST(damaged_manifests_are_read_or_refused_and_never_crash) {
    char *data, path[PATH_MAX];
    size_t size, accepted = 0;
    must(save(1, 1));
    snprintf(path, sizeof path, "%s", in_folder("checkpoint-1/manifest.json"));
    must(hy_file_read(path, &data, &size));
    uint8_t *copy = malloc(size + MUTATION_GROWTH);
    ck_assert_ptr_nonnull(copy);
    for (uint64_t i = 0; i < 2000; i++) {
        size_t mutated = mutate(data, size, copy, i);
        remove(path);
        FILE *file = fopen(path, "wb");
        ck_assert_ptr_nonnull(file);
        ck_assert_uint_eq(fwrite(copy, 1, mutated, file), mutated);
        ck_assert_int_eq(fclose(file), 0);
        hy_status status = hy_checkpoint_verify(in_folder("checkpoint-1"), true);
        ck_assert_msg(status == HY_OK || status == HY_ERR_INPUT, "mutation %llu: %s",
                      (unsigned long long)i, hy_error_message());
        accepted += status == HY_OK;
    }
    ck_assert_uint_gt(accepted, 10); /* white space */
    ck_assert_uint_lt(accepted, 500);
    free(copy);
    free(data);
}
END_TEST

/* ---- pruning --------------------------------------------------------------------------------- */

static bool has_step(int step) {
    char name[32];
    snprintf(name, sizeof name, "checkpoint-%d", step);
    return hy_path_exists(in_folder(name));
}

/* Dates a checkpoint: saves within one tick of the clock would look equally old. */
static void save_at(int step, time_t seconds) {
    char name[64];
    struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    must(save(step, step));
    snprintf(name, sizeof name, "checkpoint-%d/manifest.json", step);
    ck_assert_int_eq(utimensat(AT_FDCWD, in_folder(name), times, 0), 0);
}

START_TEST(pruning_keeps_the_newest) {
    for (int step = 8; step <= 12; step++) save_at(step, 1000 + step);
    must(hy_dir_make(in_folder("checkpoint-best")));
    must(hy_checkpoint_prune(folder, 0, -1));
    ck_assert(has_step(8));
    must(hy_checkpoint_prune(folder, 9, -1));
    ck_assert(has_step(8));
    must(hy_checkpoint_prune(folder, 2, -1));
    ck_assert(!has_step(8) && !has_step(9) && !has_step(10) && has_step(11) && has_step(12));
    ck_assert(hy_path_exists(in_folder("checkpoint-best")));
    ck_assert_int_eq(count_leftovers(), 0);
    must_fail(hy_checkpoint_prune(in_folder("none"), 1, -1), HY_ERR_INPUT, in_folder("none"));
}
END_TEST

START_TEST(pruning_never_removes_what_was_written_last) {
    /* A run resumed from 100, because 200 and 300 were damaged, and has just saved 150. */
    save_at(100, 1000);
    save_at(200, 1001);
    save_at(300, 1002);
    save_at(150, 1003);
    must(hy_checkpoint_prune(folder, 1, -1));
    ck_assert(has_step(150) && has_step(300) && !has_step(100) && !has_step(200));
}
END_TEST

START_TEST(pruning_spares_the_best) {
    bool is_there;
    for (int step = 8; step <= 12; step++) save_at(step, 1000 + step);
    must(hy_checkpoint_put_best(folder, 9));
    uint64_t three, two, none;
    must(hy_checkpoint_prunable(folder, 2, -1, &three)); /* 8, 9, 10: each as large */
    must(hy_checkpoint_prunable(folder, 2, 9, &two));
    must(hy_checkpoint_prunable(folder, 9, -1, &none));
    ck_assert(two > 0 && three == two / 2 * 3 && none == 0);
    must(hy_checkpoint_prune(folder, 2, 9));
    ck_assert(!has_step(8) && has_step(9) && !has_step(10) && has_step(11) && has_step(12));
    must(hy_checkpoint_verify(in_folder("best"), true));
    must(hy_checkpoint_is_current(folder, 9, &is_there));
    ck_assert(is_there);
    int64_t step;
    ck_assert_int_eq(load_latest(&step), 12);
    /* Given up for room: the link goes too. */
    must(hy_checkpoint_prune(folder, 1, -1));
    must(hy_checkpoint_is_current(folder, 9, &is_there));
    ck_assert(!is_there);
    must(hy_checkpoint_put_best(folder, -1));
    ck_assert(!hy_path_is_link(in_folder("best")));
}
END_TEST

static hy_status prune_to_one(const scenario *s) {
    (void)s;
    return hy_checkpoint_prune(folder, 1, -1);
}

START_TEST(a_kill_while_pruning_shows_no_half_checkpoint) {
    bool is_done = false;
    for (long at = 0; !is_done; at++) {
        ck_assert_int_lt(at, 100);
        start_over(&scenarios[0]);
        must(save(150, 3));
        is_done = survives_kill(at, prune_to_one, NULL);
        int64_t step;
        ck_assert_int_eq(load_latest(&step), 3);
        if (has_step(50)) ck_assert_int_eq(load(in_folder("checkpoint-50")), 1);
        if (has_step(100)) ck_assert_int_eq(load(in_folder("checkpoint-100")), 2);
        must(hy_checkpoint_prune(folder, 1, -1));
        ck_assert(!has_step(50) && !has_step(100));
        must(save(151, 4));
        ck_assert_int_eq(count_leftovers(), 0);
    }
}
END_TEST

START_TEST(an_error_while_pruning_is_reported) {
    for (long at = 0;; at++) {
        start_over(&scenarios[0]);
        hy_fault_arm(at, EIO, false);
        hy_status status = hy_checkpoint_prune(folder, 1, -1);
        if (hy_fault_disarm() <= at) {
            must(status);
            break;
        }
        ck_assert_int_eq(status, HY_ERR_IO);
        ck_assert_ptr_nonnull(strstr(hy_error_message(), folder));
        int64_t step;
        ck_assert_int_eq(load_latest(&step), 2);
    }
    ck_assert(!has_step(50));
}
END_TEST

/* ---- branches -------------------------------------------------------------------------------- */

/* Goes back to this step; gives the names of the checkpoints that are left. */
static const char *go_back(int step) {
    static char left[256];
    char name[32];
    hy_text names = {0};
    snprintf(name, sizeof name, "checkpoint-%d", step);
    must(hy_checkpoint_go_on(folder, in_folder(name), step, &names));
    snprintf(left, sizeof left, "%s", hy_text_string(&names));
    hy_text_free(&names);
    return left;
}

static int64_t latest_step(void) {
    char path[PATH_MAX];
    int64_t step;
    must(hy_checkpoint_latest(folder, path, sizeof path, &step, NULL));
    return step;
}

START_TEST(a_run_that_went_back_continues_from_its_branch) {
    for (int step = 10; step <= 50; step += 10) must(save(step, step));
    ck_assert_str_eq(go_back(50), ""); /* the newest: nothing is left */
    ck_assert_str_eq(go_back(20), "checkpoint-50, checkpoint-40, checkpoint-30");
    ck_assert_int_eq(latest_step(), 20);
    ck_assert_str_eq(go_back(20), "");
    must(save(23, 23));
    ck_assert_int_eq(latest_step(), 23);
    must(hy_checkpoint_prune(folder, 2,
                             -1)); /* those that were left neither go nor push others out */
    ck_assert(!has_step(10) && has_step(20) && has_step(23));
    ck_assert(has_step(30) && has_step(40) && has_step(50));
    must(save(30, 31)); /* a step that the other branch had saved, too */
    ck_assert_int_eq(load(in_folder("checkpoint-30")), 31);
    ck_assert_int_eq(load(in_folder("checkpoint-30.branch-0")), 30);
    ck_assert_int_eq(latest_step(), 30);
    ck_assert_str_eq(go_back(40), "checkpoint-30, checkpoint-23"); /* what was left comes back */
    ck_assert_int_eq(latest_step(), 40);
    must(save(60, 60));
    ck_assert_str_eq(go_back(20), "checkpoint-60, checkpoint-40");
    ck_assert_int_eq(latest_step(), 20);
}
END_TEST

START_TEST(a_checkpoint_of_another_folder_begins_a_new_branch) {
    hy_text left = {0};
    char path[PATH_MAX];
    int64_t step;
    must(save(10, 1));
    must(hy_dir_make(in_folder("other")));
    must(hy_path_rename(in_folder("checkpoint-10"), in_folder("other/checkpoint-10")));
    must(save(40, 4));
    must(hy_checkpoint_go_on(folder, in_folder("other/checkpoint-10"), 10, &left));
    ck_assert_str_eq(hy_text_string(&left), "checkpoint-40");
    must_fail(hy_checkpoint_latest(folder, path, sizeof path, &step, NULL), HY_ERR_INPUT,
              "no checkpoint of the current branch");
    must(save(12, 2));
    ck_assert_int_eq(latest_step(), 12);
    hy_text_free(&left);
}
END_TEST

static hy_status go_back_to_50(const scenario *s) {
    hy_text left = {0};
    (void)s;
    hy_status status = hy_checkpoint_go_on(folder, in_folder("checkpoint-50"), 50, &left);
    hy_text_free(&left);
    return status;
}

START_TEST(a_kill_while_going_back_leaves_the_old_branch_or_the_new_one) {
    bool is_done = false;
    for (long at = 0; !is_done; at++) {
        ck_assert_int_lt(at, 100);
        start_over(&scenarios[0]);
        must(hy_dir_remove(in_folder("branches.json")));
        is_done = survives_kill(at, go_back_to_50, NULL);
        ck_assert(has_step(50) && has_step(100));
        ck_assert_int_eq(latest_step(), hy_path_exists(in_folder("branches.json")) ? 50 : 100);
        ck_assert(!is_done || latest_step() == 50);
    }
}
END_TEST

/* It became a branch without checkpoints: nothing was left to resume from. */
START_TEST(what_a_run_goes_on_from_is_known_or_nothing_is_changed) {
    hy_text left = {0};
    must(save(10, 1));
    must(hy_path_rename(in_folder("checkpoint-10/manifest.json"), in_folder("away")));
    must_fail(hy_checkpoint_go_on(folder, in_folder("checkpoint-10"), 10, &left), HY_ERR_INPUT,
              "manifest.json");
    ck_assert(!hy_path_exists(in_folder("branches.json")));
    must(hy_path_rename(in_folder("away"), in_folder("checkpoint-10/manifest.json")));
    ck_assert_str_eq(go_back(10), "");
    ck_assert_int_eq(latest_step(), 10);
    hy_text_free(&left);
}
END_TEST

START_TEST(a_damaged_list_of_branches_is_refused) {
    static const char *const wrong[] = {
        "{", "{\"current\": 1, \"branches\": []}", "{\"current\": 0}",
        "{\"current\": 1, \"branches\": [{\"parent\": 1, \"from\": 5}]}"};
    char path[PATH_MAX];
    int64_t step;
    must(save(10, 1));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        must(hy_file_write_atomic(in_folder("branches.json"), wrong[i], strlen(wrong[i])));
        must_fail(hy_checkpoint_latest(folder, path, sizeof path, &step, NULL), HY_ERR_INPUT,
                  "branches.json");
    }
}
END_TEST

static Suite *checkpoint_suite(void) {
    Suite *suite = suite_create("formats: checkpoints");
    TCase *plain = tcase_create("checkpoints");
    tcase_add_checked_fixture(plain, make_folder, drop_folder);
    tcase_add_test(plain, a_run_that_went_back_continues_from_its_branch);
    tcase_add_test(plain, a_checkpoint_of_another_folder_begins_a_new_branch);
    tcase_add_test(plain, a_kill_while_going_back_leaves_the_old_branch_or_the_new_one);
    tcase_add_test(plain, what_a_run_goes_on_from_is_known_or_nothing_is_changed);
    tcase_add_test(plain, a_damaged_list_of_branches_is_refused);
    tcase_add_test(plain, a_checkpoint_is_found_verified_and_loaded);
    tcase_add_test(plain, a_checkpoint_of_the_same_step_is_replaced);
    tcase_add_test(plain, an_aborted_checkpoint_leaves_nothing);
    tcase_add_test(plain, wrong_use_is_refused_with_names);
    tcase_add_test(plain, everything_is_synced_before_the_name_and_the_name_after);
    tcase_add_test(plain, a_crash_between_two_renames_is_healed);
    tcase_add_test(plain, a_partial_folder_is_never_taken_for_a_checkpoint);
    tcase_add_test(plain, a_damaged_file_is_named_with_the_reason);
    tcase_add_test(plain, a_wrong_manifest_is_refused);
    tcase_add_test(plain, the_newest_whole_checkpoint_is_found_behind_damaged_ones);
    tcase_add_test(plain, damaged_manifests_are_read_or_refused_and_never_crash);
    tcase_add_test(plain, pruning_keeps_the_newest);
    tcase_add_test(plain, pruning_spares_the_best);
    tcase_add_test(plain, pruning_never_removes_what_was_written_last);
    suite_add_tcase(suite, plain);
    TCase *disturbed = tcase_create("disturbed");
    tcase_set_timeout(disturbed, 120);
    tcase_add_checked_fixture(disturbed, make_folder, drop_folder);
    tcase_add_loop_test(disturbed, an_error_at_any_call_leaves_the_previous_checkpoint, 0,
                        SCENARIOS);
    tcase_add_loop_test(disturbed, errors_from_any_call_on_leave_the_previous_checkpoint, 0,
                        SCENARIOS);
    tcase_add_loop_test(disturbed, a_kill_at_any_call_leaves_old_or_new, 0, SCENARIOS);
    tcase_add_loop_test(disturbed, a_kill_during_the_clearing_of_leftovers_loses_nothing, 0,
                        SCENARIOS);
    tcase_add_test(disturbed, a_kill_while_pruning_shows_no_half_checkpoint);
    tcase_add_test(disturbed, an_error_while_pruning_is_reported);
    suite_add_tcase(suite, disturbed);
    return suite;
}

HY_TEST_MAIN(checkpoint_suite)
