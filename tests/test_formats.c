/* test_formats.c: safetensors and token shards: what is read, what is refused, what is written. */
#include "harness.h"

#include <errno.h>
#include <inttypes.h>

#include "base/rng.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "formats/shard.h"
#include "mutate.h"

static char folder[256], path[300];

static void make_folder(void) {
    temp_folder(folder);
    must(hy_path_join(path, sizeof path, folder, "file"));
}

static void drop_folder(void) {
    hy_fault_disarm();
    remove_folder(folder);
}

/* Writes a file as it is, without the library. A new file each time: overwriting one in place makes
 * some file systems write it out at once. */
static void write_raw(const void *data, size_t size) {
    remove(path);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

/* ---- safetensors: writing and reading back --------------------------------------------------- */

static const hy_safetensors_entry sample[] = {
    {.name = "wte.weight", .dtype = HY_F32, .ndim = 2, .shape = {3, 5}},
    {.name = "empty", .dtype = HY_BF16, .ndim = 3, .shape = {4, 0, 2}},
    {.name = "scalar", .dtype = HY_F64, .ndim = 0},
    {.name = "half \"quoted\" \xC3\xA9", .dtype = HY_F16, .ndim = 1, .shape = {3}},
    {.name = "ids", .dtype = HY_I32, .ndim = 1, .shape = {2}},
    {.name = "u16", .dtype = HY_U16, .ndim = 1, .shape = {1}},
    {.name = "bytes", .dtype = HY_U8, .ndim = 8, .shape = {1, 1, 1, 1, 1, 1, 1, 7}}};
static const uint64_t sample_bytes[] = {60, 0, 8, 6, 8, 2, 7};
enum { SAMPLE = sizeof sample / sizeof sample[0], SAMPLE_DATA = 91 };
static const char *const sample_metadata[] = {"format", "pt", "note", "a \"b\"\n", NULL};

static uint8_t sample_byte(uint64_t i) { return (uint8_t)(i * 37 + 11); }

static void write_sample(uint64_t *hash, uint64_t *size) {
    hy_safetensors_writer *w;
    must(hy_safetensors_create(path, sample, SAMPLE, sample_metadata, &w));
    for (uint64_t i = 0; i < SAMPLE_DATA; i++) { /* pieces need not follow the tensors */
        uint8_t byte = sample_byte(i);
        must(hy_safetensors_put(w, &byte, 1));
    }
    must(hy_safetensors_finish(w, hash, size));
}

START_TEST(safetensors_come_back_as_they_were_written) {
    uint64_t hash, size, real_hash, real_size;
    write_sample(&hash, &size);
    must(hy_file_hash(path, &real_hash, &real_size));
    ck_assert_uint_eq(hash, real_hash);
    ck_assert_uint_eq(size, real_size);

    hy_safetensors *file;
    must(hy_safetensors_open(path, &file));
    ck_assert_uint_eq(hy_safetensors_count(file), SAMPLE);
    uint64_t offset = 0;
    for (size_t i = 0; i < SAMPLE; i++) {
        const hy_safetensors_entry *entry = hy_safetensors_find(file, sample[i].name);
        ck_assert_ptr_nonnull(entry);
        ck_assert_str_eq(entry->name, sample[i].name);
        ck_assert_int_eq(entry->dtype, sample[i].dtype);
        ck_assert_int_eq(entry->ndim, sample[i].ndim);
        ck_assert_mem_eq(entry->shape, sample[i].shape, sizeof entry->shape);
        ck_assert_uint_eq(entry->offset, offset);
        ck_assert_uint_eq(entry->bytes, sample_bytes[i]);
        uint8_t bytes[64];
        must(hy_safetensors_read(file, entry, 0, bytes, entry->bytes));
        for (uint64_t j = 0; j < entry->bytes; j++) {
            ck_assert_uint_eq(bytes[j], sample_byte(offset + j));
        }
        offset += entry->bytes;
    }
    ck_assert_ptr_null(hy_safetensors_find(file, "absent"));
    ck_assert_ptr_null(hy_safetensors_at(file, SAMPLE));
    ck_assert_str_eq(hy_safetensors_metadata(file, "note"), "a \"b\"\n");
    ck_assert_ptr_null(hy_safetensors_metadata(file, "absent"));
    hy_safetensors_close(file);
    hy_safetensors_close(NULL);
}
END_TEST

START_TEST(every_type_has_a_name_in_files) {
    for (int i = 0; i < HY_DTYPE_COUNT; i++) {
        hy_safetensors_entry one = {.name = "x", .dtype = (hy_dtype)i, .ndim = 1, .shape = {0}};
        hy_safetensors_writer *w;
        hy_safetensors *file;
        must(hy_safetensors_create(path, &one, 1, NULL, &w));
        must(hy_safetensors_finish(w, NULL, NULL));
        must(hy_safetensors_open(path, &file));
        ck_assert_int_eq(hy_safetensors_find(file, "x")->dtype, i);
        hy_safetensors_close(file);
    }
}
END_TEST

START_TEST(the_data_begin_at_a_multiple_of_64) {
    char name[80] = "";
    for (int i = 0; i < 70; i += 3) {
        name[i] = name[i + 1] = name[i + 2] = 'n';
        hy_safetensors_entry entry = {.name = name, .dtype = HY_U8, .ndim = 1, .shape = {1}};
        hy_safetensors_writer *w;
        uint64_t size;
        must(hy_safetensors_create(path, &entry, 1, NULL, &w));
        must(hy_safetensors_put(w, "x", 1));
        must(hy_safetensors_finish(w, NULL, &size));
        ck_assert_uint_eq((size - 1) % 64, 0);
        hy_safetensors *file;
        must(hy_safetensors_open(path, &file));
        hy_safetensors_close(file);
    }
}
END_TEST

START_TEST(pieces_of_a_tensor_are_read_and_no_byte_beyond) {
    write_sample(NULL, NULL);
    hy_safetensors *file;
    must(hy_safetensors_open(path, &file));
    const hy_safetensors_entry *entry = hy_safetensors_find(file, "half \"quoted\" \xC3\xA9");
    uint8_t bytes[8];
    must(hy_safetensors_read(file, entry, 2, bytes, 3));
    for (int i = 0; i < 3; i++) ck_assert_uint_eq(bytes[i], sample_byte(60 + 8 + 2 + i));
    must(hy_safetensors_read(file, entry, 6, bytes, 0));
    must_fail(hy_safetensors_read(file, entry, 4, bytes, 3), HY_ERR_INPUT, "half");
    must_fail(hy_safetensors_read(file, entry, 7, bytes, 0), HY_ERR_INPUT, "it has 6");
    must_fail(hy_safetensors_read(file, entry, 1, bytes, UINT64_MAX), HY_ERR_INPUT, path);
    ck_assert_int_eq(truncate(path, 100), 0);
    must_fail(hy_safetensors_read(file, entry, 0, bytes, 6), HY_ERR_IO, path);
    hy_safetensors_close(file);
}
END_TEST

START_TEST(a_writer_given_too_few_or_too_many_bytes_fails) {
    hy_safetensors_writer *w;
    uint8_t bytes[SAMPLE_DATA + 1] = {0};
    must(hy_safetensors_create(path, sample, SAMPLE, NULL, &w));
    must(hy_safetensors_put(w, bytes, SAMPLE_DATA - 1));
    must_fail(hy_safetensors_finish(w, NULL, NULL), HY_ERR_STATE, "90 bytes of data were put");
    must(hy_safetensors_create(path, sample, SAMPLE, NULL, &w));
    must_fail(hy_safetensors_put(w, bytes, SAMPLE_DATA + 1), HY_ERR_STATE, "the header says 91");
    must(hy_safetensors_put(w, bytes, SAMPLE_DATA));
    must_fail(hy_safetensors_put(w, bytes, 1), HY_ERR_STATE, path);
    hy_safetensors_abandon(w);
    hy_safetensors_abandon(NULL);
}
END_TEST

START_TEST(a_writer_refuses_what_no_reader_would_take) {
    hy_safetensors_writer *w;
    hy_safetensors_entry e[2] = {{.name = "a", .ndim = 1, .shape = {1}},
                                 {.name = "a", .ndim = 1, .shape = {1}}};
    must_fail(hy_safetensors_create(path, e, 2, NULL, &w), HY_ERR_INPUT,
              "two tensors are named \"a\"");
    e[1].name = "__metadata__";
    must_fail(hy_safetensors_create(path, e, 2, NULL, &w), HY_ERR_INPUT, "__metadata__");
    e[1].name = "bad \xFF";
    must_fail(hy_safetensors_create(path, e, 2, NULL, &w), HY_ERR_INPUT, "cannot be the name");
    e[1] = (hy_safetensors_entry){.name = "b", .ndim = 9};
    must_fail(hy_safetensors_create(path, e, 2, NULL, &w), HY_ERR_INPUT, "9 dimensions");
    e[1] = (hy_safetensors_entry){.name = "b", .dtype = HY_DTYPE_COUNT};
    must_fail(hy_safetensors_create(path, e, 2, NULL, &w), HY_ERR_INPUT, "unknown dtype");
    e[1] = (hy_safetensors_entry){.name = "b", .ndim = 1, .shape = {-1}};
    must_fail(hy_safetensors_create(path, e, 2, NULL, &w), HY_ERR_INPUT, "negative");
    e[1] = (hy_safetensors_entry){.name = "b", .ndim = 2, .shape = {INT64_MAX, INT64_MAX}};
    must_fail(hy_safetensors_create(path, e, 2, NULL, &w), HY_ERR_INPUT, "too large");
    e[1] = (hy_safetensors_entry){.name = "b", .ndim = 1, .shape = {INT64_MAX / 4 + 1}};
    must_fail(hy_safetensors_create(path, e, 2, NULL, &w), HY_ERR_INPUT, "more than 2^63");
    ck_assert(!hy_path_exists(path)); /* all of this is known before the file is touched */
}
END_TEST

/* ---- safetensors: malformed files ------------------------------------------------------------ */

static hy_status open_and_close(void) {
    hy_safetensors *file;
    hy_status status = hy_safetensors_open(path, &file);
    if (status == HY_OK) hy_safetensors_close(file);
    return status;
}

/* A file of this header and `data` bytes of zeros behind it. */
static void write_header(const char *header, size_t size, size_t data) {
    static const uint8_t zeros[64];
    hy_text text = {0};
    for (int i = 0; i < 8; i++) hy_text_add_bytes(&text, &(uint8_t){(uint8_t)(size >> 8 * i)}, 1);
    hy_text_add_bytes(&text, header, size);
    hy_text_add_bytes(&text, zeros, data);
    must(hy_text_status(&text));
    write_raw(text.data, text.size);
    hy_text_free(&text);
}

START_TEST(malformed_headers_are_refused_with_file_and_tensor) {
#define T(dtype, shape, offsets)                                                                   \
    "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } rows[] = {
        {"{}", 1, "the tensors end at byte 0 of the data, but the file ends at byte 1"},
        {" {}", 0, "begins with byte 0x20, expected '{'"},
        {"[]", 0, "begins with byte 0x5B"},
        {"{} x", 0, "header:1:4: expected the end of the text"},
        {"{\"t\":", 0, "header:1:6: expected a value"},
        {"{\"t\xFF\":1}", 0, "not valid UTF-8"},
        {"{\"t\":1}", 0, "tensor \"t\": its description is not an object"},
        {"{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\" is missing"},
        {"{\"t\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\" is missing"},
        {T("I64", "[1]", "[0,4]"), 4, "tensor \"t\": shape and dtype need 8 bytes"},
        {T("BOOL", "[1]", "[0,2]"), 2, "shape and dtype need 1 bytes"},
        {T("I128", "[1]", "[0,16]"), 16, "tensor \"t\": dtype I128 is unknown"},
        {T("f32", "[1]", "[0,4]"), 4, "dtype f32 is unknown"},
        {"{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"shape\" is missing"},
        {T("F32", "4", "[0,4]"), 4, "\"shape\" is missing or not an array"},
        {T("F32", "[-1]", "[0,4]"), 4, "dimension 0 is not a whole number"},
        {T("F32", "[1,0.5]", "[0,4]"), 4, "dimension 1 is not a whole number"},
        {T("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "9 dimensions, at most 8"},
        {T("F32", "[4294967296,4294967296]", "[0,4]"), 4, "more than 2^64 bytes"},
        {T("F32", "[4294967296,4294967296,0]", "[0,0]"), 0, "more than 2^64 bytes"},
        {T("F64", "[2305843009213693952]", "[0,0]"), 0, "more than 2^64 bytes"},
        {T("F32", "[99999999999999999999]", "[0,4]"), 4, "dimension 0"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"data_offsets\" is not [begin, end]"},
        {T("F32", "[1]", "[0]"), 4, "\"data_offsets\" is not"},
        {T("F32", "[1]", "[0,4,8]"), 4, "\"data_offsets\" is not"},
        {T("F32", "[1]", "[4,0]"), 4, "\"data_offsets\" is not"},
        {T("F32", "[1]", "[-4,0]"), 4, "\"data_offsets\" is not"},
        {T("F32", "[1]", "[\"0\",4]"), 4, "\"data_offsets\" is not"},
        {T("F32", "[1]", "[0,8]"), 4, "its data ends at byte 8, but the file has only 4"},
        {T("F32", "[2]", "[0,4]"), 4, "shape and dtype need 8 bytes, but data_offsets has 4"},
        {T("F32", "[1]", "[4,8]"), 8, "its data begins at 4, expected 0: there is a gap"},
        {T("F32", "[1]", "[0,4]"), 5,
         "the tensors end at byte 4 of the data, but the file ends at byte 5"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
         12, "tensor \"b\": its data begins at 4, expected 8: tensors overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, "duplicate key \"a\""},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "zero byte"},
        {"{\"__metadata__\":1}", 0, "\"__metadata__\" is not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "the value of \"a\" is not a string"},
    };
#undef T
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_header(rows[i].header, strlen(rows[i].header), rows[i].data);
        must_fail(open_and_close(), HY_ERR_INPUT, rows[i].message);
        must_fail(open_and_close(), HY_ERR_INPUT, path);
    }
}
END_TEST

START_TEST(unusual_but_valid_headers_are_read) {
    static const struct {
        const char *header;
        size_t data;
    } rows[] = {{"{}", 0},
                {"{}      ", 0},
                {"{\"__metadata__\":{}}", 0},
                {"{\"z\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]},"
                 "\"a\":{\"data_offsets\":[0,4],\"shape\":[1,1],\"dtype\":\"F32\"}}",
                 8},
                {"{\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},"
                 "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                 "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]}}",
                 6}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_header(rows[i].header, strlen(rows[i].header), rows[i].data);
        must(open_and_close());
    }
}
END_TEST

START_TEST(tensors_of_other_types_are_listed_by_name) {
    static const char header[] =
        "{\"mask\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]},"
        "\"ids\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[3,19]}}";
    hy_safetensors *file;
    char bytes[16];
    write_header(header, sizeof header - 1, 19);
    must(hy_safetensors_open(path, &file));
    const hy_safetensors_entry *ids = hy_safetensors_find(file, "ids");
    ck_assert_int_eq(ids->dtype, HY_DTYPE_COUNT);
    ck_assert_str_eq(hy_safetensors_type(ids), "I64");
    ck_assert_str_eq(hy_safetensors_type(hy_safetensors_find(file, "mask")), "BOOL");
    must(hy_safetensors_read(file, ids, 0, bytes, sizeof bytes));
    hy_safetensors_close(file);
}
END_TEST

START_TEST(header_lengths_that_cannot_be_are_refused) {
    write_raw("", 0);
    must_fail(open_and_close(), HY_ERR_INPUT, "0 bytes are too few");
    write_raw("1234567", 7);
    must_fail(open_and_close(), HY_ERR_INPUT, "7 bytes are too few");
    static const uint64_t lengths[] = {
        0, 1, 3, 100000001, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint8_t bytes[10] = "12345678{}";
        for (int j = 0; j < 8; j++) bytes[j] = (uint8_t)(lengths[i] >> 8 * j);
        char expected[64];
        snprintf(expected, sizeof expected, "header length %" PRIu64 " is wrong", lengths[i]);
        write_raw(bytes, sizeof bytes);
        must_fail(open_and_close(), HY_ERR_INPUT, expected);
    }
    must_fail((remove(path), open_and_close()), HY_ERR_INPUT, "No such file");
}
END_TEST

/* Reads everything an opened file offers. */
static void read_all(const hy_safetensors *file) {
    uint8_t bytes[4096];
    for (size_t i = 0; i < hy_safetensors_count(file); i++) {
        const hy_safetensors_entry *entry = hy_safetensors_at(file, i);
        ck_assert_ptr_eq(hy_safetensors_find(file, entry->name), entry);
        ck_assert_uint_le(entry->bytes, sizeof bytes);
        must(hy_safetensors_read(file, entry, 0, bytes, entry->bytes));
    }
    hy_safetensors_metadata(file, "format");
}

START_TEST(damaged_safetensors_are_read_or_refused_and_never_crash) {
    char *data;
    size_t size, accepted = 0;
    write_sample(NULL, NULL);
    must(hy_file_read(path, &data, &size));
    uint8_t *copy = malloc(size + MUTATION_GROWTH);
    ck_assert_ptr_nonnull(copy);
    for (uint64_t i = 0; i < 4000; i++) {
        write_raw(copy, mutate(data, size, copy, i));
        hy_safetensors *file;
        hy_status status = hy_safetensors_open(path, &file);
        ck_assert_msg(status == HY_OK || status == HY_ERR_INPUT, "mutation %llu: %s",
                      (unsigned long long)i, hy_error_message());
        if (status != HY_OK) continue;
        accepted++;
        read_all(file);
        hy_safetensors_close(file);
    }
    ck_assert_uint_gt(accepted, 40); /* flips in the data and in names */
    ck_assert_uint_lt(accepted, 3000);
    free(copy);
    free(data);
}
END_TEST

/* ---- shards ---------------------------------------------------------------------------------- */

static void check_tokens(const int32_t *expected, uint64_t count, uint32_t vocab) {
    hy_shard *shard;
    must(hy_shard_open(path, &shard));
    ck_assert(hy_shard_has_magic(path));
    ck_assert_uint_eq(hy_shard_count(shard), count);
    ck_assert_uint_eq(hy_shard_vocab(shard), vocab);
    int32_t *tokens = calloc(count + 1, sizeof *tokens);
    ck_assert_ptr_nonnull(tokens);
    must(hy_shard_read(shard, 0, count, tokens));
    ck_assert_mem_eq(tokens, expected, count * sizeof *tokens);
    if (count > 10) {
        must(hy_shard_read(shard, 7, 3, tokens));
        ck_assert_mem_eq(tokens, expected + 7, 3 * sizeof *tokens);
    }
    free(tokens);
    hy_shard_close(shard);
}

START_TEST(a_shard_comes_back_as_it_was_written) {
    enum { COUNT = 10000 };
    static int32_t tokens[COUNT];
    for (uint64_t i = 0; i < COUNT; i++) {
        tokens[i] = (int32_t)hy_rng_below(1, HY_RNG_TEST, i, 65536);
    }
    must(hy_shard_write(path, tokens, COUNT, 65536, 2));
    check_tokens(tokens, COUNT, 65536);
    tokens[5] = INT32_MAX;
    must(hy_shard_write(path, tokens, COUNT, 0, 4));
    check_tokens(tokens, COUNT, 0);
    must(hy_shard_write(path, NULL, 0, 10, 2));
    check_tokens(tokens, 0, 10);
    hy_shard_close(NULL);
}
END_TEST

START_TEST(the_largest_token_is_found_at_its_first_position) {
    int32_t largest;
    enum { COUNT = 40000 }; /* more than two pieces of the scan */
    static int32_t tokens[COUNT];
    for (int i = 0; i < COUNT; i++) tokens[i] = i % 100;
    tokens[20000] = tokens[39999] = 1234;
    for (int bytes = 2; bytes <= 4; bytes += 2) {
        hy_shard *shard;
        uint64_t where = 0;
        must(hy_shard_write(path, tokens, COUNT, 0, bytes));
        must(hy_shard_open(path, &shard));
        must(hy_shard_max_token(shard, &largest, &where));
        ck_assert_int_eq(largest, 1234);
        ck_assert_uint_eq(where, 20000);
        must(hy_shard_max_token(shard, &largest, NULL));
        ck_assert_int_eq(largest, 1234);
        hy_shard_close(shard);
    }
    hy_shard *empty;
    must(hy_shard_write(path, NULL, 0, 0, 2));
    must(hy_shard_open(path, &empty));
    must(hy_shard_max_token(empty, &largest, NULL));
    ck_assert_int_eq(largest, -1);
    hy_shard_close(empty);
}
END_TEST

START_TEST(a_shard_with_ids_that_do_not_fit_is_not_written) {
    int32_t tokens[] = {1, 2, 70000};
    must_fail(hy_shard_write(path, tokens, 3, 0, 2), HY_ERR_INPUT,
              "token 2 is 70000, expected 0 to 65535");
    must_fail(hy_shard_write(path, tokens, 3, 70000, 4), HY_ERR_INPUT, "expected 0 to 69999");
    tokens[1] = -1;
    must_fail(hy_shard_write(path, tokens, 3, 0, 4), HY_ERR_INPUT, "token 1 is -1");
    must_fail(hy_shard_write(path, tokens, 3, 0, 3), HY_ERR_INPUT, "3 bytes per token");
    ck_assert(!hy_path_exists(path));
}
END_TEST

/* A header of 1024 bytes from 32-bit words, and `tail` bytes of zeros behind it. */
static void write_words(const uint32_t *words, size_t count, size_t tail) {
    uint8_t bytes[2048] = {0};
    memcpy(bytes, words, count * sizeof *words);
    ck_assert_uint_le(1024 + tail, sizeof bytes);
    write_raw(bytes, 1024 + tail);
}

#define HYTO 0x4F545948u /* "HYTO", "KENS" as words of the file */
#define KENS 0x534E454Bu
#define LLMC 20240520u

START_TEST(llm_c_shards_are_read) {
    uint16_t file[512 + 3] = {0};
    uint32_t words[] = {LLMC, 1, 3};
    memcpy(file, words, sizeof words);
    file[512] = 50256;
    file[513] = 7;
    file[514] = 65535;
    write_raw(file, sizeof file);
    check_tokens((int32_t[]){50256, 7, 65535}, 3, 0);
}
END_TEST

START_TEST(a_wrong_shard_is_refused_with_path_and_numbers) {
    static const struct {
        uint32_t words[7];
        size_t tail;
        const char *message;
    } rows[] = {
        {{0}, 6, "begins neither with \"HYTOKENS\" nor with 20240520 (its first number is 0)"},
        {{20240801, 7, 3}, 6, "its first number is 20240801"},
        {{HYTO, KENS + 1, 1, 2, 3}, 6, "not a token file"},
        {{LLMC, 2, 3}, 6, "llm.c token file of version 2; only version 1"},
        {{LLMC, 1, 0xFFFFFFFF}, 6, "the header counts -1 tokens"},
        {{LLMC, 1, 4}, 6, "counts 4 tokens of 2 bytes, but 6 bytes follow it: the file is cut off"},
        {{LLMC, 1, 3}, 5, "counts 3 tokens of 2 bytes, but 5 bytes follow it: the file is cut off"},
        {{LLMC, 1, 3}, 7, "the file continues after the last token"},
        {{LLMC, 1, 2}, 6, "the file continues after the last token"},
        {{HYTO, KENS, 2, 2, 3}, 6, "token file of version 2; only version 1 is supported"},
        {{HYTO, KENS, 0, 2, 3}, 6, "token file of version 0"},
        {{HYTO, KENS, 1, 3, 2}, 6, "3 bytes per token, expected 2 or 4"},
        {{HYTO, KENS, 1, 0, 0}, 0, "0 bytes per token"},
        {{HYTO, KENS, 1, 2, 4}, 6, "the file is cut off"},
        {{HYTO, KENS, 1, 4, 3}, 13, "the file continues after the last token"},
        {{HYTO, KENS, 1, 4, 3}, 11, "counts 3 tokens of 4 bytes, but 11 bytes follow it: the file"},
        {{HYTO, KENS, 1, 2, 3, 0x80000000}, 6, "the file is cut off"}, /* 2 x count overflows */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hy_shard *shard;
        write_words(rows[i].words, 7, rows[i].tail);
        must_fail(hy_shard_open(path, &shard), HY_ERR_INPUT, rows[i].message);
        must_fail(hy_shard_open(path, &shard), HY_ERR_INPUT, path);
        ck_assert_ptr_null(shard);
    }
    hy_shard *shard;
    uint32_t reserved[10] = {HYTO, KENS, 1, 2, 3, 0, 0, 0, 9};
    write_words(reserved, 10, 6);
    must_fail(hy_shard_open(path, &shard), HY_ERR_INPUT, "header byte 32 is 0x09, expected 0");
}
END_TEST

START_TEST(a_shard_without_a_header_is_refused) {
    hy_shard *shard;
    write_raw("", 0);
    must_fail(hy_shard_open(path, &shard), HY_ERR_INPUT, "it is empty");
    ck_assert(!hy_shard_has_magic(path));
    write_raw("HYTOKENS", 8);
    must_fail(hy_shard_open(path, &shard), HY_ERR_INPUT, "8 bytes are too few");
    ck_assert(hy_shard_has_magic(path));
    write_raw("abc", 3);
    must_fail(hy_shard_open(path, &shard), HY_ERR_INPUT, "not a token file");
    ck_assert(!hy_shard_has_magic(path));
    must_fail(hy_shard_open(folder, &shard), HY_ERR_INPUT, "Is a directory");
    ck_assert(!hy_shard_has_magic(folder));
    remove(path);
    must_fail(hy_shard_open(path, &shard), HY_ERR_INPUT, "No such file");
    ck_assert(!hy_shard_has_magic(path));
}
END_TEST

START_TEST(ids_beyond_int32_never_become_negative) {
    uint32_t file[256 + 3] = {HYTO, KENS, 1, 4, 3};
    file[256] = 5;
    file[257] = 0x80000000u;
    file[258] = 0xFFFFFFFFu;
    write_raw(file, sizeof file);
    check_tokens((int32_t[]){5, INT32_MAX, INT32_MAX}, 3, 0);
    hy_shard *shard;
    uint64_t where;
    int32_t largest;
    must(hy_shard_open(path, &shard));
    must(hy_shard_max_token(shard, &largest, &where));
    ck_assert_int_eq(largest, INT32_MAX);
    ck_assert_uint_eq(where, 1);
    hy_shard_close(shard);
}
END_TEST

START_TEST(a_fault_at_any_call_leaves_the_old_shard_or_the_new_one) {
    int32_t old_tokens[] = {1, 2, 3}, new_tokens[] = {4, 5, 6, 7};
    long at = 0;
    for (;; at++) {
        must(hy_shard_write(path, old_tokens, 3, 0, 2));
        hy_fault_arm(at, ENOSPC, false);
        hy_status status = hy_shard_write(path, new_tokens, 4, 0, 2);
        if (hy_fault_disarm() <= at) break;
        ck_assert_int_eq(status, HY_ERR_IO);
        ck_assert_ptr_nonnull(strstr(hy_error_message(), "No space left on device"));
        ck_assert_ptr_nonnull(strstr(hy_error_message(), folder));
        hy_shard *shard;
        must(hy_shard_open(path, &shard));
        ck_assert(hy_shard_count(shard) == 3 || hy_shard_count(shard) == 4);
        hy_shard_close(shard);
    }
    ck_assert_int_ge(at, 5);
    check_tokens(new_tokens, 4, 0);
}
END_TEST

START_TEST(damaged_shards_are_read_or_refused_and_never_crash) {
    int32_t tokens[40];
    for (int i = 0; i < 40; i++) tokens[i] = i * 1000;
    for (int bytes = 2; bytes <= 4; bytes += 2) {
        char *data;
        size_t size, accepted = 0;
        must(hy_shard_write(path, tokens, 40, 50000, bytes));
        must(hy_file_read(path, &data, &size));
        uint8_t *copy = malloc(size + MUTATION_GROWTH);
        ck_assert_ptr_nonnull(copy);
        for (uint64_t i = 0; i < 2000; i++) {
            hy_shard *shard;
            write_raw(copy, mutate(data, size, copy, i));
            hy_status status = hy_shard_open(path, &shard);
            ck_assert(status == HY_OK || status == HY_ERR_INPUT);
            if (status != HY_OK) continue;
            accepted++;
            int32_t out[64], largest;
            ck_assert_uint_le(hy_shard_count(shard), 64);
            must(hy_shard_read(shard, 0, hy_shard_count(shard), out));
            must(hy_shard_max_token(shard, &largest, NULL));
            ck_assert_int_ge(largest, 0);
            hy_shard_close(shard);
        }
        ck_assert_uint_gt(accepted, 10);
        ck_assert_uint_lt(accepted, 1500);
        free(copy);
        free(data);
    }
}
END_TEST

static Suite *formats_suite(void) {
    Suite *suite = suite_create("formats");
    TCase *tensors = tcase_create("safetensors");
    tcase_add_checked_fixture(tensors, make_folder, drop_folder);
    tcase_add_test(tensors, safetensors_come_back_as_they_were_written);
    tcase_add_test(tensors, every_type_has_a_name_in_files);
    tcase_add_test(tensors, the_data_begin_at_a_multiple_of_64);
    tcase_add_test(tensors, pieces_of_a_tensor_are_read_and_no_byte_beyond);
    tcase_add_test(tensors, a_writer_given_too_few_or_too_many_bytes_fails);
    tcase_add_test(tensors, a_writer_refuses_what_no_reader_would_take);
    tcase_add_test(tensors, malformed_headers_are_refused_with_file_and_tensor);
    tcase_add_test(tensors, unusual_but_valid_headers_are_read);
    tcase_add_test(tensors, header_lengths_that_cannot_be_are_refused);
    tcase_add_test(tensors, tensors_of_other_types_are_listed_by_name);
    tcase_add_test(tensors, damaged_safetensors_are_read_or_refused_and_never_crash);
    suite_add_tcase(suite, tensors);
    TCase *shards = tcase_create("shards");
    tcase_add_checked_fixture(shards, make_folder, drop_folder);
    tcase_add_test(shards, a_shard_comes_back_as_it_was_written);
    tcase_add_test(shards, the_largest_token_is_found_at_its_first_position);
    tcase_add_test(shards, a_shard_with_ids_that_do_not_fit_is_not_written);
    tcase_add_test(shards, llm_c_shards_are_read);
    tcase_add_test(shards, a_wrong_shard_is_refused_with_path_and_numbers);
    tcase_add_test(shards, a_shard_without_a_header_is_refused);
    tcase_add_test(shards, ids_beyond_int32_never_become_negative);
    tcase_add_test(shards, a_fault_at_any_call_leaves_the_old_shard_or_the_new_one);
    tcase_add_test(shards, damaged_shards_are_read_or_refused_and_never_crash);
    suite_add_tcase(suite, shards);
    return suite;
}

HY_TEST_MAIN(formats_suite)
