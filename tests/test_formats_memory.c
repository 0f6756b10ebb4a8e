/* test_formats_memory.c: every allocation in the modules base and formats may fail.
 *
 * The allocator is replaced by one that refuses the n-th request, for every n until the work
 * succeeds. Each time the work must end with HY_ERR_MEMORY (or do without the memory), free
 * everything and leave the files on disk complete. Sanitizers have their own allocators, so the
 * suite is empty there. */
#include "harness.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || !defined __GLIBC__
#define HAS_OWN_ALLOCATOR 0
#else
#define HAS_OWN_ALLOCATOR 1
#endif

#if HAS_OWN_ALLOCATOR

#include <errno.h>
#include <limits.h>

#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "formats/shard.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void __libc_free(void *block);

static bool is_armed;
static long requests, refused, live;

/* Counts a request; false when it is its turn to be refused. */
static bool is_granted(void) {
    if (!is_armed) return true;
    bool is_refused = requests++ == refused;
    if (is_refused) errno = ENOMEM;
    return !is_refused;
}

void *malloc(size_t size) {
    void *block = is_granted() ? __libc_malloc(size) : NULL;
    live += is_armed && block;
    return block;
}

void *calloc(size_t count, size_t size) {
    void *block = is_granted() ? __libc_calloc(count, size) : NULL;
    live += is_armed && block;
    return block;
}

void *realloc(void *block, size_t size) {
    if (!is_granted()) return NULL;
    void *grown = __libc_realloc(block, size);
    live += is_armed && !block && grown;
    return grown;
}

void free(void *block) {
    live -= is_armed && block;
    __libc_free(block);
}

/* The disk need not wait for each of hundreds of saves. */
int fsync(int fd) {
    (void)fd;
    return 0;
}

/* ---- the work -------------------------------------------------------------------------------- */

static char folder[256], file[300];

static void make_folder(void) {
    temp_folder(folder);
    must(hy_path_join(file, sizeof file, folder, "file"));
}
static void drop_folder(void) { remove_folder(folder); }

static hy_status write_and_parse_json(void) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json *json = NULL;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    for (int i = 0; i < 100; i++) {
        char key[16];
        snprintf(key, sizeof key, "key %d", i);
        hy_json_put_double(&w, key, 0.123456789012345678 * i);
    }
    hy_json_close_object(&w);
    hy_status status = hy_text_status(&text);
    if (status == HY_OK) status = hy_json_parse(text.data, text.size, "t", &json);
    hy_text_free(&text);
    hy_json_free(json);
    return status;
}

static hy_status write_and_read_safetensors(void) {
    hy_safetensors_entry entries[40];
    char names[40][16];
    for (int i = 0; i < 40; i++) {
        snprintf(names[i], sizeof names[i], "tensor %d", i);
        entries[i] = (hy_safetensors_entry){.name = names[i], .ndim = 1, .shape = {1}};
    }
    hy_safetensors_writer *w;
    HY_TRY(hy_safetensors_create(file, entries, 40, NULL, &w));
    hy_status status = hy_safetensors_put(w, (float[40]){0}, 160);
    if (status != HY_OK) {
        hy_safetensors_abandon(w);
        return status;
    }
    HY_TRY(hy_safetensors_finish(w, NULL, NULL));
    hy_safetensors *reader;
    HY_TRY(hy_safetensors_open(file, &reader));
    status = hy_safetensors_find(reader, "tensor 7") ? HY_OK : HY_ERR_INTERNAL;
    hy_safetensors_close(reader);
    return status;
}

static hy_status write_and_open_shard(void) {
    hy_shard *shard;
    uint64_t hash;
    HY_TRY(hy_shard_write(file, (int32_t[]){1, 2, 3}, 3, 0, 2));
    HY_TRY(hy_shard_open(file, &shard));
    hy_shard_close(shard);
    return hy_file_hash(file, &hash, NULL);
}

static hy_status save_and_find_checkpoint(void) {
    hy_checkpoint *c;
    char path[PATH_MAX];
    int64_t step;
    HY_TRY(hy_checkpoint_begin(folder, 2, &c));
    hy_status status = HY_OK;
    for (int i = 0; i < 10 && status == HY_OK; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%d", i);
        status = hy_checkpoint_put(c, name, "x", 1);
    }
    if (status != HY_OK) {
        hy_checkpoint_abort(c);
        return status;
    }
    HY_TRY(hy_checkpoint_commit(c));
    HY_TRY(hy_checkpoint_latest(folder, path, sizeof path, &step, NULL));
    return hy_checkpoint_prune(folder, 1, -1);
}

static hy_status make_list_and_remove_folders(void) {
    char path[300], **names, *data;
    size_t count, size;
    HY_TRY(hy_path_join(path, sizeof path, folder, "a/b/c"));
    HY_TRY(hy_dir_make(path));
    HY_TRY(hy_file_write_atomic(file, "x", 1));
    HY_TRY(hy_file_read(file, &data, &size));
    free(data);
    HY_TRY(hy_dir_list(folder, &names, &count));
    hy_dir_list_free(names, count);
    HY_TRY(hy_path_join(path, sizeof path, folder, "a"));
    return hy_dir_remove(path);
}

static const struct {
    const char *name;
    hy_status (*run)(void);
    bool keeps_checkpoint;
} works[] = {{"json", write_and_parse_json, false},
             {"safetensors", write_and_read_safetensors, false},
             {"shard", write_and_open_shard, false},
             {"checkpoint", save_and_find_checkpoint, true},
             {"folders", make_list_and_remove_folders, false}};
enum { WORKS = sizeof works / sizeof works[0] };

static void put_first_checkpoint(void) {
    hy_checkpoint *c;
    must(hy_checkpoint_begin(folder, 1, &c));
    must(hy_checkpoint_put(c, "a", "x", 1));
    must(hy_checkpoint_commit(c));
}

START_TEST(a_refused_allocation_is_reported_and_nothing_leaks) {
    must(works[_i].run()); /* what the C library takes once and keeps is taken now */
    for (long n = 0;; n++) {
        ck_assert_int_lt(n, 1000);
        if (works[_i].keeps_checkpoint) put_first_checkpoint();
        requests = live = 0;
        refused = n;
        is_armed = true;
        hy_status status = works[_i].run();
        is_armed = false;
        ck_assert_msg(live == 0, "%s: %ld blocks leaked after refusal %ld", works[_i].name, live,
                      n);
        ck_assert_msg(status == HY_OK || status == HY_ERR_MEMORY, "%s, refusal %ld: %s: %s",
                      works[_i].name, n, hy_status_name(status), hy_error_message());
        if (works[_i].keeps_checkpoint) {
            char path[PATH_MAX];
            int64_t step;
            must(hy_checkpoint_latest(folder, path, sizeof path, &step, NULL));
        }
        if (requests <= n) {
            must(status);
            ck_assert_int_ge(n, 4);
            return;
        }
    }
}
END_TEST

#endif

static Suite *memory_suite(void) {
    Suite *suite = suite_create("formats: memory");
#if HAS_OWN_ALLOCATOR
    TCase *refusals = tcase_create("refusals");
    tcase_add_checked_fixture(refusals, make_folder, drop_folder);
    tcase_add_loop_test(refusals, a_refused_allocation_is_reported_and_nothing_leaks, 0, WORKS);
    suite_add_tcase(suite, refusals);
#endif
    return suite;
}

HY_TEST_MAIN(memory_suite)
