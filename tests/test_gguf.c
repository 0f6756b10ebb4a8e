/* test_gguf.c: the reader of GGUF files: what it reads, and hostile files that it refuses. */
#include "harness.h"

#include "base/text.h"
#include "formats/gguf.h"
#include "gguf_fields.h"

static char folder[256], path[300];

static void make_folder(void) {
    temp_folder(folder);
    must(hy_path_join(path, sizeof path, folder, "file.gguf"));
}

static void drop_folder(void) { remove_folder(folder); }

static void write_raw(const void *data, size_t size) {
    remove(path);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

/* ---- files made by hand ---------------------------------------------------------------------- */

static void put(hy_text *t, uint64_t value, size_t size) { hy_text_add_bytes(t, &value, size); }

static void put_bytes(hy_text *t, const char *bytes, size_t size) {
    put(t, size, 8);
    hy_text_add_bytes(t, bytes, size);
}

static void put_text(hy_text *t, const char *text) { put_bytes(t, text, strlen(text)); }

static void begin(hy_text *t, uint32_t version, uint64_t tensors, uint64_t keys) {
    *t = (hy_text){0};
    hy_text_add(t, "GGUF");
    put(t, version, 4);
    put(t, tensors, 8);
    put(t, keys, 8);
}

/* A key with a value of one number. */
static void put_key(hy_text *t, const char *key, hy_gguf_kind kind, uint64_t value, size_t size) {
    put_text(t, key);
    put(t, kind, 4);
    put(t, value, size);
}

/* A tensor of one or two dimensions, the fastest first; the second is 0: none. */
static void put_tensor(hy_text *t, const char *name, uint64_t fast, uint64_t slow, uint32_t type,
                       uint64_t offset) {
    put_text(t, name);
    put(t, slow ? 2 : 1, 4);
    put(t, fast, 8);
    if (slow) put(t, slow, 8);
    put(t, type, 4);
    put(t, offset, 8);
}

static void pad(hy_text *t, size_t alignment, size_t data) {
    while (t->size % alignment != 0) put(t, 0, 1);
    for (size_t i = 0; i < data; i++) put(t, i, 1);
}

/* All kinds of values, and three tensors of 24, 64 and 34 bytes. */
static void make_sample(hy_text *t) {
    begin(t, 3, 3, 16);
    put_key(t, "u8", HY_GGUF_U8, 200, 1);
    put_key(t, "i8", HY_GGUF_I8, (uint64_t)-3, 1);
    put_key(t, "u16", HY_GGUF_U16, 60000, 2);
    put_key(t, "i16", HY_GGUF_I16, (uint64_t)-300, 2);
    put_key(t, "u32", HY_GGUF_U32, 4000000000u, 4);
    put_key(t, "i32", HY_GGUF_I32, (uint64_t)-70000, 4);
    put_key(t, "u64", HY_GGUF_U64, (uint64_t)1 << 40, 8);
    put_key(t, "huge", HY_GGUF_U64, UINT64_MAX, 8);
    put_key(t, "i64", HY_GGUF_I64, (uint64_t)-9, 8);
    put_key(t, "f32", HY_GGUF_F32, 0x3FC00000, 4);
    put_key(t, "f64", HY_GGUF_F64, 0x4004000000000000, 8);
    put_key(t, "yes", HY_GGUF_BOOL, 1, 1);
    put_text(t, "text");
    put(t, HY_GGUF_STRING, 4);
    put_bytes(t, "a\0\xFF", 3);
    put_text(t, "words");
    put(t, HY_GGUF_ARRAY, 4);
    put(t, HY_GGUF_STRING, 4);
    put(t, 3, 8);
    put_text(t, "one");
    put_text(t, "");
    put_text(t, "\xC3\xA9");
    put_text(t, "ids");
    put(t, HY_GGUF_ARRAY, 4);
    put(t, HY_GGUF_I16, 4);
    put(t, 2, 8);
    put(t, 5, 2);
    put(t, 0xFFFF, 2);
    put_text(t, "none");
    put(t, HY_GGUF_ARRAY, 4);
    put(t, HY_GGUF_F32, 4);
    put(t, 0, 8);
    put_tensor(t, "b.weight", 3, 2, HY_BLOCK_F32, 0);
    put_tensor(t, "a.weight", 32, 0, HY_BLOCK_F16, 32);
    put_tensor(t, "c.weight", 32, 1, HY_BLOCK_Q8_0, 96);
    pad(t, 32, 96 + 34);
}

START_TEST(values_of_every_kind_are_read) {
    hy_text t;
    hy_gguf *file;
    int64_t whole;
    double real;
    bool truth;
    const char *text;
    size_t size;
    make_sample(&t);
    write_raw(t.data, t.size);
    must(hy_gguf_open(path, &file));
    static const struct {
        const char *key;
        int64_t value;
    } whole_values[] = {{"u8", 200},     {"i8", -3},          {"u16", 60000},     {"i16", -300},
                        {"i32", -70000}, {"u32", 4000000000}, {"u64", 1LL << 40}, {"i64", -9}};
    for (size_t i = 0; i < sizeof whole_values / sizeof whole_values[0]; i++) {
        const hy_gguf_value *value = hy_gguf_get(file, whole_values[i].key);
        ck_assert(hy_gguf_as_int(value, 0, &whole) && hy_gguf_as_real(value, 0, &real));
        ck_assert_int_eq(whole, whole_values[i].value);
        ck_assert_double_eq(real, (double)whole);
        ck_assert(!hy_gguf_as_bool(value, 0, &truth) && !hy_gguf_is_array(value));
        ck_assert(!hy_gguf_as_int(value, 1, &whole));
    }
    ck_assert(!hy_gguf_as_int(hy_gguf_get(file, "huge"), 0, &whole));
    ck_assert(hy_gguf_as_real(hy_gguf_get(file, "f32"), 0, &real) && real == 1.5);
    ck_assert(hy_gguf_as_real(hy_gguf_get(file, "f64"), 0, &real) && real == 2.5);
    ck_assert(!hy_gguf_as_int(hy_gguf_get(file, "f64"), 0, &whole));
    ck_assert(hy_gguf_as_bool(hy_gguf_get(file, "yes"), 0, &truth) && truth);
    ck_assert(hy_gguf_as_string(hy_gguf_get(file, "text"), 0, &text, &size));
    ck_assert_uint_eq(size, 3);
    ck_assert_mem_eq(text, "a\0\xFF", 4);
    const hy_gguf_value *words = hy_gguf_get(file, "words"), *ids = hy_gguf_get(file, "ids");
    ck_assert(hy_gguf_is_array(words) && hy_gguf_kind_of(words) == HY_GGUF_STRING);
    ck_assert_uint_eq(hy_gguf_size(words), 3);
    ck_assert(hy_gguf_as_string(words, 2, &text, NULL) && strcmp(text, "\xC3\xA9") == 0);
    ck_assert(hy_gguf_as_string(words, 0, &text, NULL) && strcmp(text, "one") == 0);
    ck_assert(hy_gguf_as_int(ids, 1, &whole) && whole == -1);
    ck_assert(hy_gguf_is_array(hy_gguf_get(file, "none")));
    ck_assert_uint_eq(hy_gguf_size(hy_gguf_get(file, "none")), 0);
    ck_assert_ptr_null(hy_gguf_get(file, "absent"));
    ck_assert(!hy_gguf_as_string(NULL, 0, &text, NULL) && hy_gguf_size(NULL) == 0);
    hy_gguf_close(file);
    hy_text_free(&t);
}
END_TEST

START_TEST(tensors_have_our_order_of_dimensions_and_their_place) {
    hy_text t;
    hy_gguf *file;
    uint64_t offset;
    uint8_t byte;
    make_sample(&t);
    write_raw(t.data, t.size);
    ck_assert(hy_gguf_is_file(path));
    must(hy_gguf_open(path, &file));
    ck_assert_uint_eq(hy_gguf_count(file), 3);
    const hy_gguf_tensor *b = hy_gguf_find(file, "b.weight"), *c = hy_gguf_find(file, "c.weight");
    ck_assert_ptr_eq(b, hy_gguf_at(file, 0));
    ck_assert(b->ndim == 2 && b->shape[0] == 2 && b->shape[1] == 3 && b->bytes == 24);
    ck_assert(c->type == HY_BLOCK_Q8_0 && c->bytes == 34);
    const hy_reader *reader = hy_gguf_place(file, c, &offset);
    must(hy_reader_get(reader, offset, &byte, 1));
    ck_assert_uint_eq(byte, 96);
    ck_assert_ptr_null(hy_gguf_find(file, "d.weight"));
    hy_gguf_close(file);
    hy_text_free(&t);
}
END_TEST

START_TEST(a_file_that_ends_early_is_refused_at_every_byte) {
    hy_text t;
    hy_gguf *file;
    make_sample(&t);
    for (size_t size = 0; size < t.size; size++) {
        write_raw(t.data, size);
        ck_assert_int_eq(hy_gguf_open(path, &file), HY_ERR_INPUT);
        ck_assert_ptr_nonnull(strstr(hy_error_message(), "file.gguf"));
    }
    hy_text_free(&t);
}
END_TEST

START_TEST(hostile_numbers_at_every_place_never_crash) {
    static gguf_field fields[256];
    hy_text t;
    hy_gguf *file;
    size_t opened = 0;
    make_sample(&t);
    size_t count = gguf_fields((uint8_t *)t.data, t.size, fields, 256);
    ck_assert_uint_gt(count, 60);
    uint8_t *copy = malloc(t.size);
    ck_assert_ptr_nonnull(copy);
    for (size_t i = 0; i < count * GGUF_ODD; i++) {
        memcpy(copy, t.data, t.size);
        gguf_put_odd(copy, fields[i / GGUF_ODD], i);
        write_raw(copy, t.size);
        hy_status status = hy_gguf_open(path, &file);
        ck_assert(status == HY_OK || status == HY_ERR_INPUT);
        if (status != HY_OK) continue;
        opened++;
        hy_gguf_close(file);
    }
    ck_assert_uint_lt(opened, count * GGUF_ODD / 2); /* values of keys may be anything */
    free(copy);
    hy_text_free(&t);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static void refuse(hy_text *t, const char *fragment) {
    hy_gguf *file;
    pad(t, 32, 256);
    write_raw(t->data, t->size);
    must_fail(hy_gguf_open(path, &file), HY_ERR_INPUT, fragment);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "file.gguf"));
    hy_text_free(t);
}

START_TEST(other_formats_and_versions_are_refused_with_the_accepted_ones) {
    hy_text t = {0};
    hy_text_add(&t, "GGML and more bytes than a header has");
    refuse(&t, "is not a GGUF file");
    begin(&t, 1, 0, 0);
    refuse(&t, "version 1; accepted: 2 and 3");
    begin(&t, 4, 0, 0);
    refuse(&t, "version 4; accepted: 2 and 3");
    begin(&t, 0x03000000, 0, 0);
    refuse(&t, "big-endian");
    begin(&t, 3, 0, 2);
    put_key(&t, "split.no", HY_GGUF_U16, 1, 2);
    put_key(&t, "split.count", HY_GGUF_U16, 3, 2);
    refuse(&t, "part 2 of 3");
}
END_TEST

START_TEST(wrong_keys_are_refused_by_name) {
    hy_text t;
    begin(&t, 3, 0, UINT64_MAX);
    refuse(&t, "18446744073709551615 keys");
    begin(&t, 3, 0, 1);
    put_text(&t, "");
    refuse(&t, "0 bytes, expected 1 to 65535");
    begin(&t, 3, 0, 1);
    put_bytes(&t, "a\0b", 3);
    refuse(&t, "not UTF-8 text without zeros");
    begin(&t, 3, 0, 1);
    put_text(&t, "a\xC3(");
    refuse(&t, "not UTF-8 text without zeros");
    begin(&t, 3, 0, 1);
    put_key(&t, "odd.kind", (hy_gguf_kind)13, 0, 8);
    refuse(&t, "\"odd.kind\" has a value of kind 13");
    begin(&t, 3, 0, 1);
    put_key(&t, "odd.bool", HY_GGUF_BOOL, 2, 1);
    refuse(&t, "\"odd.bool\" has the bool 2");
    begin(&t, 3, 0, 2);
    put_key(&t, "twice", HY_GGUF_U8, 2, 1);
    put_key(&t, "twice", HY_GGUF_U8, 2, 1);
    refuse(&t, "two keys are named \"twice\"");
    begin(&t, 3, 0, 1);
    put_text(&t, "nest");
    put(&t, HY_GGUF_ARRAY, 4);
    put(&t, HY_GGUF_ARRAY, 4);
    refuse(&t, "\"nest\" is an array of arrays");
    begin(&t, 3, 0, 1);
    put_text(&t, "many");
    put(&t, HY_GGUF_ARRAY, 4);
    put(&t, HY_GGUF_U64, 4);
    put(&t, (uint64_t)1 << 61, 8);
    refuse(&t, "\"many\" has 2305843009213693952 items");
    begin(&t, 3, 0, 1);
    put_text(&t, "long");
    put(&t, HY_GGUF_STRING, 4);
    put(&t, UINT64_MAX, 8);
    refuse(&t, "ends within its header");
}
END_TEST

START_TEST(a_wrong_alignment_is_refused) {
    hy_text t;
    static const uint64_t wrong[] = {0, 3, 33, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        begin(&t, 3, 0, 1);
        put_key(&t, "general.alignment", HY_GGUF_U32, wrong[i], 4);
        refuse(&t, "expected a power of 2");
    }
    begin(&t, 3, 0, 1);
    put_key(&t, "general.alignment", HY_GGUF_U64, 32, 8);
    refuse(&t, "kind u32");
    begin(&t, 3, 2, 1);
    put_key(&t, "general.alignment", HY_GGUF_U32, 64, 4);
    put_tensor(&t, "a", 1, 0, HY_BLOCK_F32, 0);
    put_tensor(&t, "b", 1, 0, HY_BLOCK_F32, 32);
    refuse(&t, "\"b\": its data begins at 32, expected 64: tensors overlap");
    begin(&t, 3, 1, 1);
    put_key(&t, "general.alignment", HY_GGUF_U32, 1u << 31, 4);
    put_tensor(&t, "a", 1, 0, HY_BLOCK_F32, 0);
    refuse(&t, "ends before its tensors");
}
END_TEST

START_TEST(wrong_tensors_are_refused_by_name) {
    hy_text t;
    char name[80];
    memset(name, 'n', sizeof name);
    name[64] = 0;
    begin(&t, 3, (uint64_t)1 << 60, 0);
    refuse(&t, "1152921504606846976 tensors");
    begin(&t, 3, 1, 0);
    put_tensor(&t, name, 1, 0, HY_BLOCK_F32, 0);
    refuse(&t, "64 bytes, expected 1 to 63");
    begin(&t, 3, 1, 0);
    put_text(&t, "flat");
    put(&t, 0, 4);
    refuse(&t, "\"flat\": 0 dimensions, expected 1 to 4");
    begin(&t, 3, 1, 0);
    put_text(&t, "deep");
    put(&t, 5, 4);
    refuse(&t, "\"deep\": 5 dimensions");
    begin(&t, 3, 1, 0);
    put_tensor(&t, "x", 0, 4, HY_BLOCK_F32, 0);
    refuse(&t, "\"x\": dimension 1 has the size 0");
    begin(&t, 3, 1, 0);
    put_tensor(&t, "x", UINT64_MAX, 4, HY_BLOCK_F32, 0);
    refuse(&t, "has the size -1");
    begin(&t, 3, 1, 0);
    put_tensor(&t, "x", (uint64_t)1 << 40, (uint64_t)1 << 40, HY_BLOCK_F32, 0);
    refuse(&t, "\"x\": it is larger than the file");
    begin(&t, 3, 1, 0);
    put_tensor(&t, "x", 32, 0, 99, 0);
    refuse(&t, "type 99 is unknown; readable types: f32, f16");
    begin(&t, 3, 1, 0);
    put_tensor(&t, "x", 33, 2, HY_BLOCK_Q8_0, 0);
    refuse(&t, "rows of 33 numbers cannot be in blocks of 32 (type q8_0)");
    begin(&t, 3, 2, 0);
    put_tensor(&t, "same", 1, 0, HY_BLOCK_F32, 0);
    put_tensor(&t, "same", 1, 0, HY_BLOCK_F32, 32);
    refuse(&t, "two tensors are named \"same\"");
    begin(&t, 3, 2, 0);
    put_tensor(&t, "a", 16, 0, HY_BLOCK_F32, 0);
    put_tensor(&t, "b", 1, 0, HY_BLOCK_F32, 32);
    refuse(&t, "\"b\": its data begins at 32, expected 64: tensors overlap");
    begin(&t, 3, 2, 0);
    put_tensor(&t, "a", 1, 0, HY_BLOCK_F32, 0);
    put_tensor(&t, "b", 1, 0, HY_BLOCK_F32, 64);
    refuse(&t, "\"b\": its data begins at 64, expected 32: there is a gap");
    begin(&t, 3, 1, 0);
    put_tensor(&t, "a", 1, 0, HY_BLOCK_F32, (uint64_t)1 << 63);
    refuse(&t, "there is a gap");
    begin(&t, 3, 1, 0);
    put_tensor(&t, "a", 70, 0, HY_BLOCK_F32, 0);
    refuse(&t, "\"a\": it ends behind the end of the file");
}
END_TEST

static Suite *gguf_suite(void) {
    Suite *suite = suite_create("gguf");
    TCase *reader = tcase_create("reader");
    tcase_set_timeout(reader, 60);
    tcase_add_checked_fixture(reader, make_folder, drop_folder);
    tcase_add_test(reader, values_of_every_kind_are_read);
    tcase_add_test(reader, tensors_have_our_order_of_dimensions_and_their_place);
    tcase_add_test(reader, a_file_that_ends_early_is_refused_at_every_byte);
    tcase_add_test(reader, hostile_numbers_at_every_place_never_crash);
    tcase_add_test(reader, other_formats_and_versions_are_refused_with_the_accepted_ones);
    tcase_add_test(reader, wrong_keys_are_refused_by_name);
    tcase_add_test(reader, a_wrong_alignment_is_refused);
    tcase_add_test(reader, wrong_tensors_are_refused_by_name);
    suite_add_tcase(suite, reader);
    return suite;
}

HY_TEST_MAIN(gguf_suite)
