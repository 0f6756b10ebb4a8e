/* test_data.c: datasets: windows, splits, order, files of both kinds, and everything refused. */
#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "data/dataset.h"
#include "data/grammar.h"
#include "data_rig.h"
#include "formats/shard.h"
#include "harness.h"

static hy_dataset_options options_of(const char *path, int32_t seq) {
    return (hy_dataset_options){.path = path,
                                .val_fraction = 0.1,
                                .builtin_bytes = 20000,
                                .seq = seq,
                                .vocab = 256,
                                .seed = 1,
                                .shuffle = true};
}

/* ---- files to read --------------------------------------------------------------------------- */

static char folder[256];

static void make_folder(void) { temp_folder(folder); }
static void drop_folder(void) { remove_folder(folder); }

static const char *path_of(const char *name) {
    static char paths[32][512]; /* more than one test needs */
    static int next;
    char *path = paths[next++ % 32];
    snprintf(path, 512, "%s/%s", folder, name);
    return path;
}

static const char *write_bytes(const char *name, const void *bytes, size_t size) {
    const char *path = path_of(name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

static const char *write_text(const char *name, const char *text) {
    return write_bytes(name, text, strlen(text));
}

/* Bytes that tell where they are from: from, from + 1, ... */
static const char *write_run(const char *name, int from, size_t count) {
    uint8_t bytes[4096];
    ck_assert_uint_le(count, sizeof bytes);
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)(1 + (from + (int)i) % 120);
    return write_bytes(name, bytes, count);
}

static const char *write_shard(const char *name, int from, int count, int bytes_per_token) {
    int32_t tokens[4096];
    ck_assert_int_le(count, 4096);
    for (int i = 0; i < count; i++) tokens[i] = from + i;
    const char *path = path_of(name);
    must(hy_shard_write(path, tokens, (uint64_t)count, 0, bytes_per_token));
    return path;
}

static const char *write_llmc_shard(const char *name, int from, int count) {
    int32_t header[256] = {20240520, 1, count};
    uint8_t file[1024 + 2 * 4096];
    ck_assert_int_le(count, 4096);
    memcpy(file, header, sizeof header);
    for (int i = 0; i < count; i++) {
        uint16_t token = (uint16_t)(from + i);
        memcpy(file + 1024 + 2 * i, &token, 2);
    }
    return write_bytes(name, file, 1024 + 2 * (size_t)count);
}

/* All tokens of a split that windows reach, in order: each window continues the one before. */
static int32_t *read_split(hy_dataset *data, hy_split split, uint64_t *count) {
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    uint64_t seq = (uint64_t)facts->seq, windows = facts->sequences[split];
    int32_t *all = malloc((windows * seq + 1) * sizeof *all), *targets = malloc(seq * sizeof *all);
    for (uint64_t w = 0; w < windows; w++) {
        int32_t *tokens = all + w * seq;
        int32_t expected = tokens[0];
        ck_assert_int_eq(hy_dataset_fill(data, split, w, tokens, targets, NULL), facts->seq);
        if (w > 0) ck_assert_int_eq(tokens[0], expected);
        ck_assert_mem_eq(targets, tokens + 1, (seq - 1) * sizeof *all);
        tokens[seq] = targets[seq - 1];
    }
    free(targets);
    *count = windows * seq + 1;
    return all;
}

/* The caller frees them. */
static uint8_t *bytes_of(const hy_dataset *data, hy_split split, uint64_t *size) {
    uint8_t *bytes;
    must(hy_dataset_bytes(data, split, UINT64_MAX, &bytes, size));
    return bytes;
}

/* ---- windows and order ----------------------------------------------------------------------- */

START_TEST(windows_of_a_text_are_its_bytes_and_the_targets_follow_by_one) {
    write_text("a.txt", "The quick brown fox jumps over the lazy dog.");
    hy_dataset_options options = options_of(path_of("a.txt"), 5);
    options.shuffle = false;
    hy_dataset *data = open_data(options);
    int32_t tokens[5], targets[5];
    ck_assert_int_eq(hy_dataset_fill(data, HY_TRAIN, 1, tokens, targets, NULL), 5);
    for (int i = 0; i < 5; i++) ck_assert_int_eq(tokens[i], "uick "[i]);
    for (int i = 0; i < 5; i++) ck_assert_int_eq(targets[i], "ick b"[i]);
    hy_dataset_close(data);
}
END_TEST

/* 44 bytes, a tenth held out would be 4: it is a whole window with its target instead. */
START_TEST(each_split_has_at_least_one_window) {
    write_text("a.txt", "The quick brown fox jumps over the lazy dog.");
    hy_dataset *data = open_data(options_of(path_of("a.txt"), 10));
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    ck_assert_uint_eq(facts->tokens[HY_TRAIN], 33);
    ck_assert_uint_eq(facts->tokens[HY_VAL], 11);
    ck_assert_uint_eq(facts->sequences[HY_TRAIN], 3);
    ck_assert_uint_eq(facts->sequences[HY_VAL], 1);
    int32_t tokens[10], targets[10];
    hy_dataset_fill(data, HY_VAL, 0, tokens, targets, NULL);
    for (int i = 0; i < 10; i++) ck_assert_int_eq(tokens[i], "e lazy dog."[i]);
    for (int i = 0; i < 10; i++) ck_assert_int_eq(targets[i], " lazy dog."[i]);
    hy_dataset_close(data);
}
END_TEST

/* Which window of the text a sequence is: texts of write_run say so themselves. */
static uint64_t window_at(hy_dataset *data, uint64_t p, int32_t seq) {
    int32_t tokens[64], targets[64];
    hy_dataset_fill(data, HY_TRAIN, p, tokens, targets, NULL);
    return (uint64_t)(tokens[0] / seq);
}

START_TEST(every_window_comes_once_an_epoch_and_epochs_differ_in_order) {
    enum { SEQ = 7, TOKENS = 4000 };
    write_shard("a.bin", 0, TOKENS, 2);
    hy_dataset_options options = options_of(path_of("a.bin"), SEQ);
    options.vocab = TOKENS;
    hy_dataset *data = open_data(options);
    uint64_t windows = hy_dataset_describe(data)->sequences[HY_TRAIN];
    ck_assert_uint_eq(windows, (3600 - 1) / SEQ);
    uint64_t same_place = 0, in_order = 0;
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        uint8_t seen[TOKENS] = {0};
        for (uint64_t i = 0; i < windows; i++) {
            uint64_t w = window_at(data, epoch * windows + i, SEQ);
            ck_assert_uint_lt(w, windows);
            ck_assert_int_eq(seen[w], 0);
            seen[w] = 1;
            same_place += epoch > 0 && w == window_at(data, i, SEQ);
            in_order += w == i;
        }
    }
    ck_assert_uint_lt(same_place, windows / 20);
    ck_assert_uint_lt(in_order, windows / 20);
    hy_dataset_close(data);
}
END_TEST

START_TEST(the_order_follows_from_the_seed) {
    write_shard("a.bin", 0, 1000, 2);
    hy_dataset_options options = options_of(path_of("a.bin"), 4);
    options.vocab = 1000;
    hy_dataset *a = open_data(options), *b = open_data(options);
    options.seed = 2;
    hy_dataset *c = open_data(options);
    options.shuffle = false;
    hy_dataset *d = open_data(options);
    int different = 0;
    for (uint64_t p = 0; p < 500; p++) {
        ck_assert_uint_eq(window_at(a, p, 4), window_at(b, p, 4));
        different += window_at(a, p, 4) != window_at(c, p, 4);
        ck_assert_uint_eq(window_at(d, p, 4), p % hy_dataset_describe(d)->sequences[HY_TRAIN]);
    }
    ck_assert_int_gt(different, 450);
    hy_dataset_close(a);
    hy_dataset_close(b);
    hy_dataset_close(c);
    hy_dataset_close(d);
}
END_TEST

START_TEST(held_out_tokens_are_not_trained_on) {
    write_shard("a.bin", 0, 3000, 2);
    hy_dataset_options options = options_of(path_of("a.bin"), 16);
    options.vocab = 3000;
    options.val_fraction = 0.25;
    hy_dataset *data = open_data(options);
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    ck_assert_uint_eq(facts->tokens[HY_TRAIN], 2250);
    ck_assert_uint_eq(facts->tokens[HY_VAL], 750);
    int32_t tokens[16], targets[16];
    for (uint64_t p = 0; p < facts->sequences[HY_TRAIN]; p++) {
        hy_dataset_fill(data, HY_TRAIN, p, tokens, targets, NULL);
        ck_assert_int_lt(targets[15], 2250);
    }
    for (uint64_t p = 0; p < facts->sequences[HY_VAL]; p++) {
        hy_dataset_fill(data, HY_VAL, p, tokens, targets, NULL);
        ck_assert_int_eq(tokens[0], 2250 + 16 * (int32_t)p);
        ck_assert_int_eq(targets[15], 2250 + 16 * (int32_t)p + 16);
    }
    hy_dataset_close(data);
}
END_TEST

/* ---- the built-in text ----------------------------------------------------------------------- */

START_TEST(the_built_in_text_knows_its_entropy) {
    for (int i = 0; i < 3; i++) {
        hy_dataset_options options = options_of((const char *[]){NULL, "", "builtin"}[i], 64);
        options.builtin_bytes = 2000000;
        hy_dataset *data = open_data(options);
        const hy_dataset_facts *facts = hy_dataset_describe(data);
        ck_assert_str_eq(facts->description, "built-in grammar, 2.0 MB");
        ck_assert_uint_eq(facts->tokens[HY_TRAIN], 1800000);
        ck_assert_uint_eq(facts->tokens[HY_VAL], 200000);
        ck_assert(facts->is_bytes && facts->knows_entropy);
        ck_assert_double_eq(facts->entropy, hy_grammar_entropy());
        ck_assert_double_eq_tol(facts->val_optimum, facts->entropy, 0.01);
        ck_assert_double_ne(facts->val_optimum, facts->entropy);
        hy_dataset_close(data);
    }
}
END_TEST

/* Window by window against the text itself, and the optimum over exactly the targets that count. */
START_TEST(the_built_in_splits_are_texts_of_the_grammar) {
    hy_dataset *data = open_data(options_of("builtin", 64));
    uint64_t size, train_size;
    uint8_t *train = bytes_of(data, HY_TRAIN, &train_size);
    uint8_t *expected = malloc(train_size);
    hy_grammar_generate(1, expected, NULL, train_size);
    ck_assert_mem_eq(train, expected, train_size);
    free(expected);

    uint8_t *val = bytes_of(data, HY_VAL, &size);
    ck_assert_uint_eq(size, 2000);
    for (uint64_t i = 0; i + 60 < train_size; i++) {
        ck_assert_int_ne(memcmp(train + i, val, 60), 0); /* its first document is a new one */
    }
    uint64_t count;
    int32_t *tokens = read_split(data, HY_VAL, &count);
    ck_assert_uint_eq(count, 1999 / 64 * 64 + 1);
    for (uint64_t i = 0; i < count; i++) ck_assert_int_eq(tokens[i], val[i]);
    free(tokens);

    uint8_t text[2000];
    float nats[2000];
    double sum = 0;
    hy_grammar_generate(hy_rng_u64(1, HY_RNG_GRAMMAR, UINT64_MAX), text, nats, size);
    ck_assert_mem_eq(val, text, size);
    for (uint64_t i = 1; i < count; i++) sum += (double)nats[i];
    double optimum = hy_dataset_describe(data)->val_optimum;
    ck_assert_double_eq_tol(optimum, sum / (double)(count - 1), 1e-12);
    free(train);
    free(val);
    hy_dataset_close(data);
}
END_TEST

START_TEST(another_seed_is_another_text) {
    hy_dataset_options options = options_of("builtin", 64);
    hy_dataset *a = open_data(options);
    options.seed = 9;
    hy_dataset *b = open_data(options);
    for (int split = 0; split < 2; split++) {
        uint64_t size;
        uint8_t *of_a = bytes_of(a, (hy_split)split, &size);
        uint8_t *of_b = bytes_of(b, (hy_split)split, &size);
        ck_assert_mem_ne(of_a, of_b, 60);
        free(of_a);
        free(of_b);
    }
    hy_dataset_close(a);
    hy_dataset_close(b);
}
END_TEST

/* ---- files that others change ---------------------------------------------------------------- */

static int64_t fill_last(const hy_dataset *data) {
    int32_t tokens[64], targets[64];
    return hy_dataset_fill(data, HY_VAL, hy_dataset_describe(data)->sequences[HY_VAL] - 1, tokens,
                           targets, NULL);
}

START_TEST(a_file_that_became_shorter_is_an_error_that_names_it) {
    for (int kind = 0; kind < 3; kind++) {
        const char *path = kind == 0 ? write_run("a.txt", 0, 4096)
                                     : write_shard("a.bin", 0, 4096, kind == 1 ? 2 : 4);
        hy_dataset_options options = options_of(path, 16);
        options.vocab = 4096;
        hy_dataset *data = open_data(options);
        ck_assert_int_eq(fill_last(data), 16);
        ck_assert(!hy_dataset_has_failed(data));
        ck_assert_int_eq(truncate(path, 2000), 0);
        ck_assert_int_eq(fill_last(data), -1);
        ck_assert(hy_dataset_has_failed(data));
        ck_assert_ptr_nonnull(strstr(hy_error_message(), path));
        ck_assert_ptr_nonnull(strstr(hy_error_message(), "has become shorter"));
        hy_dataset_close(data);
    }
}
END_TEST

START_TEST(ids_written_over_a_shard_later_are_an_error) {
    const char *path = write_shard("a.bin", 0, 1000, 2);
    hy_dataset_options options = options_of(path, 16);
    options.vocab = 1000;
    hy_dataset *data = open_data(options);
    FILE *file = fopen(path, "r+b");
    uint16_t large[1000];
    for (int i = 0; i < 1000; i++) large[i] = 60000;
    ck_assert_int_eq(fseek(file, 1024, SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(large, 2, 1000, file), 1000);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(fill_last(data), -1);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "a.bin has changed since it was opened"));
    hy_dataset_close(data);
}
END_TEST

/* More files than descriptors are held: they are read all the same, and known when they come
 * again. */
START_TEST(hundreds_of_shards_need_few_descriptors_and_must_stay_the_same) {
    enum { SHARDS = 200 };
    char name[32];
    struct rlimit before, few;
    for (int i = 0; i < SHARDS; i++) {
        snprintf(name, sizeof name, "%03d.bin", i);
        write_shard(name, i * 20, 20, 2);
    }
    hy_dataset_options options = options_of(folder, 10);
    options.vocab = 4096;
    options.shuffle = false;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){100, before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    hy_dataset *data = open_data(options);
    uint64_t count;
    int32_t *tokens = read_split(data, HY_TRAIN, &count);
    for (uint64_t i = 0; i < count; i++) ck_assert_int_eq(tokens[i], (int32_t)i);
    free(tokens);
    ck_assert_int_eq(fill_last(data), 10);
    write_shard("other", 0, 20, 2);
    ck_assert_int_eq(rename(path_of("other"), path_of("199.bin")), 0);
    ck_assert_int_eq(fill_last(data), -1);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "199.bin was replaced by another file"));
    hy_dataset_close(data);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

static void check_run(hy_dataset_options options, int32_t first, uint64_t at_least) {
    options.shuffle = false;
    hy_dataset *data = open_data(options);
    uint64_t count;
    int32_t *tokens = read_split(data, HY_TRAIN, &count);
    ck_assert_uint_ge(count, at_least);
    for (uint64_t i = 0; i < count; i++) ck_assert_int_eq(tokens[i], first + (int32_t)i);
    free(tokens);
    hy_dataset_close(data);
}

START_TEST(shards_of_both_formats_are_read_across_their_borders) {
    write_shard("a.bin", 0, 100, 2);
    write_llmc_shard("b.bin", 100, 37);
    write_shard("c.bin", 137, 0, 2); /* empty ones are no hole */
    write_shard("d.bin", 137, 1, 4);
    write_shard("e.bin", 138, 500, 4);
    hy_dataset_options options = options_of(folder, 9);
    options.vocab = 638;
    check_run(options, 0, 500);
    hy_dataset *data = open_data(options);
    ck_assert_str_eq(hy_dataset_describe(data)->description, "5 shards, 638 tokens");
    ck_assert(!hy_dataset_describe(data)->is_bytes && !hy_dataset_describe(data)->knows_entropy);
    uint64_t size;
    ck_assert_ptr_null(bytes_of(data, HY_TRAIN, &size));
    hy_dataset_close(data);
}
END_TEST

START_TEST(a_shard_needs_no_name_of_a_shard) {
    write_shard("tokens", 0, 400, 2);
    hy_dataset_options options = options_of(path_of("tokens"), 9);
    options.vocab = 400;
    check_run(options, 0, 300);
}
END_TEST

START_TEST(texts_of_a_folder_are_joined_at_line_ends_in_the_order_of_their_names) {
    ck_assert_int_eq(mkdir(path_of("b"), 0700), 0);
    write_text("c.txt", "last one is long enough to be held out, whatever the fraction\n");
    write_text("a.txt", "first\n");
    write_text("b/2.md", "third");
    write_text("b/1.md", "second");
    write_text(".hidden", "not this");
    write_bytes("b/picture.png", "\x89PNG\0\0\0", 7);
    write_text("empty.txt", "");
    hy_dataset_options options = options_of(folder, 3);
    hy_dataset *data = open_data(options);
    const char *expected = "first\nsecond\nthird\nlast one";
    uint64_t size;
    uint8_t *text = bytes_of(data, HY_TRAIN, &size);
    ck_assert_ptr_nonnull(text);
    ck_assert_mem_eq(text, expected, strlen(expected));
    ck_assert_str_eq(hy_dataset_describe(data)->description,
                     "4 text files, 81 B (3 other files skipped)");
    free(text);
    hy_dataset_close(data);
}
END_TEST

START_TEST(large_files_are_read_across_their_borders_too) {
    size_t large = 300000; /* above what is gathered in memory */
    uint8_t *bytes = malloc(large);
    for (size_t i = 0; i < large; i++) bytes[i] = (uint8_t)('a' + i % 26);
    write_text("1.txt", "small");
    write_bytes("2.txt", bytes, large);
    write_text("3.txt", "small\n");
    write_bytes("4.txt", bytes, large);
    hy_dataset_options options = options_of(folder, 1000);
    options.shuffle = false;
    hy_dataset *data = open_data(options);
    uint64_t count;
    int32_t *tokens = read_split(data, HY_TRAIN, &count);
    for (size_t i = 0; i < 6; i++) ck_assert_int_eq(tokens[i], "small\n"[i]);
    for (size_t i = 0; i < large; i++) ck_assert_int_eq(tokens[6 + i], bytes[i]);
    for (size_t i = 0; i < 7; i++) ck_assert_int_eq(tokens[6 + large + i], "\nsmall\n"[i]);
    for (size_t i = 0; i < 1000; i++) ck_assert_int_eq(tokens[13 + large + i], bytes[i]);
    uint64_t size;
    ck_assert_ptr_null(bytes_of(data, HY_TRAIN, &size)); /* in pieces */
    uint8_t *val = bytes_of(data, HY_VAL, &size);
    ck_assert_ptr_nonnull(val);
    ck_assert_mem_eq(val, bytes + large - size, size);
    free(val);
    must(hy_dataset_bytes(data, HY_VAL, size - 1, &val, &size)); /* more than is wanted */
    ck_assert_ptr_null(val);
    free(tokens);
    free(bytes);
    hy_dataset_close(data);
}
END_TEST

START_TEST(held_out_data_can_be_a_separate_path) {
    write_run("train.txt", 0, 500);
    write_run("val.txt", 100, 40);
    hy_dataset_options options = options_of(path_of("train.txt"), 20);
    options.val_path = path_of("val.txt");
    options.val_fraction = 0; /* not asked for */
    hy_dataset *data = open_data(options);
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    ck_assert_uint_eq(facts->tokens[HY_TRAIN], 500);
    ck_assert_uint_eq(facts->tokens[HY_VAL], 40);
    ck_assert_uint_eq(facts->sequences[HY_VAL], 1);
    int32_t tokens[20], targets[20];
    hy_dataset_fill(data, HY_VAL, 0, tokens, targets, NULL);
    ck_assert_int_eq(tokens[0], 101);
    hy_dataset_close(data);

    options.path = "builtin";
    data = open_data(options);
    ck_assert(!hy_dataset_describe(data)->knows_entropy); /* not of what is held out */
    ck_assert_uint_eq(hy_dataset_describe(data)->tokens[HY_TRAIN], 20000);
    hy_dataset_close(data);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

START_TEST(missing_empty_and_unreadable_files_are_named) {
    must_refuse(options_of(path_of("nothing.txt"), 8), "nothing.txt");
    write_text("empty.txt", "");
    must_refuse(options_of(path_of("empty.txt"), 8), "empty.txt is empty");
    ck_assert_int_eq(symlink("loop", path_of("loop")), 0);
    must_refuse(options_of(path_of("loop"), 8), "loop");
    ck_assert_int_eq(mkfifo(path_of("pipe"), 0600), 0);
    must_refuse(options_of(path_of("pipe"), 8), "pipe is neither a file nor a folder");
}
END_TEST

START_TEST(a_folder_without_usable_files_is_named) {
    must_refuse(options_of(folder, 8), "contains no text, rows or token shards (0 other");
    write_text(".hidden", "text that does not count");
    write_bytes("picture", "a\0b", 3);
    must_refuse(options_of(folder, 8), "(2 other files were skipped)");
    must_refuse(options_of(folder, 8), folder);
}
END_TEST

START_TEST(a_folder_with_both_kinds_names_one_of_each) {
    write_shard("tokens.bin", 0, 300, 2);
    write_run("words.txt", 0, 300);
    must_refuse(options_of(folder, 8), "tokens.bin");
    must_refuse(options_of(folder, 8), "words.txt");
    must_refuse(options_of(folder, 8), "both token shards");
}
END_TEST

START_TEST(too_few_tokens_are_reported_with_the_counts) {
    write_run("short.txt", 0, 100);
    must_refuse(options_of(path_of("short.txt"), 256),
                "short.txt has 100 tokens; a sequence needs 257");
    must_refuse(options_of(path_of("short.txt"), 50), "102 in total");
    hy_dataset_close(open_data(options_of(path_of("short.txt"), 49)));

    hy_dataset_options options = options_of(path_of("short.txt"), 99);
    options.val_path = path_of("val.txt");
    write_run("val.txt", 0, 99);
    must_refuse(options, "val.txt has 99 tokens; a sequence needs 100");
    write_run("val.txt", 0, 100);
    hy_dataset_close(open_data(options));
    options.seq = 100;
    write_run("val.txt", 0, 101);
    must_refuse(options, "short.txt has 100 tokens; a sequence needs 101");

    options = options_of("builtin", 256);
    options.builtin_bytes = 513;
    must_refuse(options, "built-in text has 513 tokens");
    options.builtin_bytes = 514;
    hy_dataset_close(open_data(options));
}
END_TEST

START_TEST(ids_beyond_the_vocabulary_are_reported_with_their_position) {
    write_shard("a.bin", 0, 300, 2);
    write_shard("b.bin", 300, 300, 2);
    hy_dataset_options options = options_of(folder, 8);
    options.vocab = 599;
    must_refuse(
        options,
        "b.bin: the token at position 299 is 599, but the model's vocabulary has the ids 0 to 598");
    options.vocab = 600;
    hy_dataset_close(open_data(options));
    write_run("text", 0, 300);
    options.path = path_of("text");
    options.vocab = 255;
    must_refuse(options, "text is read as bytes 0 to 255");
    options.path = "builtin";
    must_refuse(options, "vocabulary has only 255");
}
END_TEST

START_TEST(damaged_shards_are_refused) {
    write_llmc_shard("cut.bin", 0, 300);
    ck_assert_int_eq(truncate(path_of("cut.bin"), 1024 + 599), 0);
    must_refuse(options_of(path_of("cut.bin"), 8), "cut.bin");
    write_text("other.bin", "this is no shard, whatever its name says, and not taken for text");
    must_refuse(options_of(path_of("other.bin"), 8), "other.bin: not a token file");
}
END_TEST

START_TEST(held_out_data_of_another_kind_is_refused) {
    write_run("train.txt", 0, 300);
    write_shard("val.bin", 0, 100, 2);
    hy_dataset_options options = options_of(path_of("train.txt"), 8);
    options.val_path = path_of("val.bin");
    must_refuse(options, "the training data is text, but the held-out data");
    options.val_path = path_of("nothing");
    must_refuse(options, "nothing");
}
END_TEST

START_TEST(absurd_numbers_are_refused) {
    hy_dataset_options options = options_of("builtin", 0);
    must_refuse(options, "sequence length is 0");
    options = options_of("builtin", 8);
    options.vocab = 0;
    must_refuse(options, "the vocabulary size is 0");
    const double fractions[] = {-1e-9, -0.1, 0.51, NAN};
    for (int i = 0; i < 4; i++) {
        options = options_of("builtin", 8);
        options.val_fraction = fractions[i];
        must_refuse(options, "held-out fraction");
    }
    const int64_t sizes[] = {0, -5, INT64_MAX};
    for (int i = 0; i < 3; i++) {
        options = options_of("builtin", 8);
        options.builtin_bytes = sizes[i];
        must_refuse(options, "the built-in text has");
    }
}
END_TEST

static TCase *case_of(Suite *suite, const char *name) {
    TCase *tests = tcase_create(name);
    tcase_add_checked_fixture(tests, make_folder, drop_folder);
    suite_add_tcase(suite, tests);
    return tests;
}

static Suite *make_suite(void) {
    Suite *suite = suite_create("data");
    TCase *windows = case_of(suite, "windows");
    tcase_add_test(windows, windows_of_a_text_are_its_bytes_and_the_targets_follow_by_one);
    tcase_add_test(windows, each_split_has_at_least_one_window);
    tcase_add_test(windows, every_window_comes_once_an_epoch_and_epochs_differ_in_order);
    tcase_add_test(windows, the_order_follows_from_the_seed);
    tcase_add_test(windows, held_out_tokens_are_not_trained_on);
    TCase *builtin = case_of(suite, "built-in text");
    tcase_add_test(builtin, the_built_in_text_knows_its_entropy);
    tcase_add_test(builtin, the_built_in_splits_are_texts_of_the_grammar);
    tcase_add_test(builtin, another_seed_is_another_text);
    TCase *files = case_of(suite, "files");
    tcase_add_test(files, shards_of_both_formats_are_read_across_their_borders);
    tcase_add_test(files, a_shard_needs_no_name_of_a_shard);
    tcase_add_test(files, a_file_that_became_shorter_is_an_error_that_names_it);
    tcase_add_test(files, ids_written_over_a_shard_later_are_an_error);
    tcase_add_test(files, hundreds_of_shards_need_few_descriptors_and_must_stay_the_same);
    tcase_add_test(files, texts_of_a_folder_are_joined_at_line_ends_in_the_order_of_their_names);
    tcase_add_test(files, large_files_are_read_across_their_borders_too);
    tcase_add_test(files, held_out_data_can_be_a_separate_path);
    TCase *refused = case_of(suite, "refused");
    tcase_add_test(refused, missing_empty_and_unreadable_files_are_named);
    tcase_add_test(refused, a_folder_without_usable_files_is_named);
    tcase_add_test(refused, a_folder_with_both_kinds_names_one_of_each);
    tcase_add_test(refused, too_few_tokens_are_reported_with_the_counts);
    tcase_add_test(refused, ids_beyond_the_vocabulary_are_reported_with_their_position);
    tcase_add_test(refused, damaged_shards_are_refused);
    tcase_add_test(refused, held_out_data_of_another_kind_is_refused);
    tcase_add_test(refused, absurd_numbers_are_refused);
    return suite;
}

HY_TEST_MAIN(make_suite)
