/* test_base_json.c: the JSON reader's grammar, errors and limits, and the writer. */
#include "harness.h"

#include <math.h>

#include "base/json.h"
#include "base/rng.h"
#include "mutate.h"

static hy_status parse(const char *text, hy_json **out) {
    return hy_json_parse(text, strlen(text), "t", out);
}

static hy_json *parsed(const char *text) {
    hy_json *json;
    must(parse(text, &json));
    return json;
}

/* ---- what is accepted ------------------------------------------------------------------------ */

START_TEST(a_tree_is_walked_in_the_order_of_the_text) {
    hy_json *json = parsed(" { \"a\" : [1, [], {}, \"x\"] , \"b\":{\"c\":null},\"d\" :true\n} ");
    const hy_json_node *root = hy_json_root(json), *m = hy_json_first(root);
    ck_assert_int_eq(hy_json_type_of(root), HY_JSON_OBJECT);
    ck_assert_uint_eq(hy_json_size(root), 3);
    ck_assert_ptr_null(hy_json_key(root));
    ck_assert_ptr_null(hy_json_next(root));
    ck_assert_str_eq(hy_json_key(m), "a");
    ck_assert_uint_eq(hy_json_size(m), 4);
    const hy_json_node *e = hy_json_first(m);
    ck_assert_int_eq(hy_json_type_of(e), HY_JSON_NUMBER);
    ck_assert_uint_eq(hy_json_size(e), 0);
    ck_assert_ptr_null(hy_json_key(e));
    e = hy_json_next(e);
    ck_assert_int_eq(hy_json_type_of(e), HY_JSON_ARRAY);
    ck_assert_ptr_null(hy_json_first(e));
    e = hy_json_next(e);
    ck_assert_int_eq(hy_json_type_of(e), HY_JSON_OBJECT);
    ck_assert_ptr_null(hy_json_first(e));
    e = hy_json_next(e);
    ck_assert_int_eq(hy_json_type_of(e), HY_JSON_STRING);
    ck_assert_ptr_null(hy_json_first(e));
    ck_assert_ptr_null(hy_json_next(e));
    m = hy_json_next(m);
    ck_assert_str_eq(hy_json_key(m), "b");
    ck_assert_int_eq(hy_json_type_of(hy_json_get(m, "c")), HY_JSON_NULL);
    m = hy_json_next(m);
    ck_assert_str_eq(hy_json_key(m), "d");
    ck_assert_int_eq(hy_json_type_of(m), HY_JSON_BOOL);
    ck_assert_ptr_null(hy_json_next(m));
    ck_assert_ptr_null(hy_json_get(root, "e"));
    ck_assert_ptr_null(hy_json_get(m, "a"));
    ck_assert_ptr_null(hy_json_get(NULL, "a"));
    hy_json_free(json);
    hy_json_free(NULL);
}
END_TEST

START_TEST(any_value_may_be_at_the_top_level) {
    static const char *const texts[] = {"null",  "true", "false", "0",     "-1.5e3",
                                        "\"s\"", "[]",   "{}",    " [ ] ", "\t\r\n{ }"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) hy_json_free(parsed(texts[i]));
}
END_TEST

START_TEST(whole_numbers_keep_all_their_digits) {
    static const struct {
        const char *text;
        bool is_int;
        int64_t value;
        double number;
    } rows[] = {{"0", true, 0, 0},
                {"-0", true, 0, -0.0},
                {"9223372036854775807", true, INT64_MAX, 9223372036854775807.0},
                {"-9223372036854775808", true, INT64_MIN, -9223372036854775808.0},
                {"9223372036854775808", false, 0, 9223372036854775808.0},
                {"9007199254740993", true, 9007199254740993, 9007199254740992.0},
                {"1e3", true, 1000, 1000},
                {"5.0", true, 5, 5},
                {"1e17", false, 0, 1e17},
                {"0.5", false, 0, 0.5},
                {"-1.25E-2", false, 0, -0.0125},
                {"123456789012345678901234567890", false, 0, 123456789012345678901234567890.0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hy_json *json = parsed(rows[i].text);
        int64_t value = 0;
        double number = 1;
        ck_assert_int_eq(hy_json_as_int(hy_json_root(json), &value), rows[i].is_int);
        if (rows[i].is_int) ck_assert_int_eq(value, rows[i].value);
        ck_assert(hy_json_as_double(hy_json_root(json), &number));
        ck_assert_double_eq(number, rows[i].number);
        ck_assert_int_eq(!signbit(number), !signbit(rows[i].number));
        hy_json_free(json);
    }
}
END_TEST

START_TEST(strings_are_decoded) {
    static const struct {
        const char *text, *value;
        size_t size;
    } rows[] = {{"\"\"", "", 0},
                {"\"plain\"", "plain", 5},
                {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8},
                {"\"\\u0041\\u00e9\\u20AC\"", "A\xC3\xA9\xE2\x82\xAC", 6},
                {"\"\\ud83d\\uDE00!\"", "\xF0\x9F\x98\x80!", 5},
                {"\"\\uDBFF\\uDFFF\"", "\xF4\x8F\xBF\xBF", 4},
                {"\"\xE2\x82\xAC\\n\xF0\x9F\x98\x80\"", "\xE2\x82\xAC\n\xF0\x9F\x98\x80", 8},
                {"\"a\\u0000b\"", "a\0b", 3},
                {"\"\x7F\"", "\x7F", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hy_json *json = parsed(rows[i].text);
        const char *value;
        size_t size;
        ck_assert(hy_json_as_string(hy_json_root(json), &value, &size));
        ck_assert_uint_eq(size, rows[i].size);
        ck_assert_mem_eq(value, rows[i].value, size + 1);
        hy_json_free(json);
    }
}
END_TEST

START_TEST(keys_are_decoded_and_compared_with_their_zeros) {
    hy_json *json = parsed("{\"\\u0061\":1,\"a\\u0000b\":2,\"\":3}");
    const hy_json_node *root = hy_json_root(json);
    int64_t value;
    must(hy_json_int(json, root, "a", &value));
    ck_assert_int_eq(value, 1);
    must(hy_json_int(json, root, "", &value));
    ck_assert_int_eq(value, 3);
    ck_assert_uint_eq(hy_json_key_size(hy_json_next(hy_json_first(root))), 3);
    ck_assert_uint_eq(hy_json_key_size(root), 0);
    hy_json_free(json);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

START_TEST(what_is_no_json_is_refused_with_line_and_column) {
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"", "t:1:1: expected a value, found the end of the text"},
        {"  \n ", "t:2:2: expected a value, found the end of the text"},
        {"[1,\n 2,\n 3 4]", "t:3:4: expected ',' or ']', found '4'"},
        {"[1,]", "t:1:4: expected a value, found ']'"},
        {"[,1]", "t:1:2: expected a value, found ','"},
        {"[1", "t:1:3: expected ',' or ']', found the end of the text"},
        {"[1}", "t:1:3: expected ',' or ']', found '}'"},
        {"{\"a\":1,}", "t:1:8: expected a key in double quotes, found '}'"},
        {"{a:1}", "t:1:2: expected a key in double quotes, found 'a'"},
        {"{\"a\" 1}", "t:1:6: expected ':' after the key, found '1'"},
        {"{\"a\":}", "t:1:6: expected a value, found '}'"},
        {"{\"a\":1 \"b\":2}", "t:1:8: expected ',' or '}', found '\"'"},
        {"{\"a\":1", "found the end of the text"},
        {"{", "t:1:2: expected a key in double quotes, found the end of the text"},
        {"1 2", "t:1:3: expected the end of the text, found '2'"},
        {"{} x", "expected the end of the text"},
        {"]", "t:1:1: expected a value, found ']'"},
        {"tru", "expected a value, found 't'"},
        {"nulL", "expected a value"},
        {"truex", "expected the end of the text, found 'x'"},
        {"NaN", "expected a value, found 'N'"},
        {"01", "a number must not begin with 0"},
        {"-01", "a number must not begin with 0"},
        {"-", "a minus sign must be followed by a digit"},
        {"+1", "expected a value, found '+'"},
        {".5", "expected a value, found '.'"},
        {"1.", "t:1:3: a decimal point must be followed by a digit"},
        {"1.e5", "a decimal point must be followed by a digit"},
        {"1e", "an exponent must have a digit"},
        {"1e+", "an exponent must have a digit"},
        {"0x10", "expected the end of the text, found 'x'"},
        {"1e999", "number 1e999 is too large"},
        {"\"abc", "t:1:1: this string has no closing quote"},
        {"\"\\", "unknown escape"},
        {"\"\\x\"", "t:1:2: unknown escape"},
        {"\"\\u12\"", "\\u needs four hexadecimal digits"},
        {"\"\\u12G4\"", "\\u needs four hexadecimal digits"},
        {"\"\\ud83d\"", "\\uD83D is half of a surrogate pair"},
        {"\"\\ud83d\\n\"", "\\uD83D is half of a surrogate pair"},
        {"\"\\ud83d\\ud83d\"", "\\uD83D is half of a surrogate pair"},
        {"\"a\\ude00\"", "t:1:3: \\uDE00 is half of a surrogate pair"},
        {"\"a\nb\"", "t:1:3: control character 0x0A in a string must be escaped"},
        {"\"\x1F\"", "control character 0x1F"},
        {"\"\xC3\"", "byte 0xC3 is not valid UTF-8"},
        {"\"\xED\xA0\x80\"", "byte 0xED is not valid UTF-8"},
        {"\"ok\xFF\"", "t:1:4: byte 0xFF is not valid UTF-8"},
        {"[\xC3\xA9]", "expected a value, found byte 0xC3"},
        {"\xEF\xBB\xBF{}", "byte order mark"},
        {"'a'", "expected a value, found '''"},
        {"/* c */ 1", "expected a value, found '/'"},
        {"{\"a\":1,\n \"b\":2,\n \"a\":3}", "t:3:2: duplicate key \"a\""},
        {"{\"x\":{\"a\":1,\"\\u0061\":2}}", "duplicate key \"a\""},
        {"[\"\\n\\n\\n\",\n\"\\n\", x]", "t:2:7: expected a value, found 'x'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        hy_json *json = NULL;
        must_fail(parse(rows[i].text, &json), HY_ERR_INPUT, rows[i].message);
        ck_assert_ptr_null(json);
    }
}
END_TEST

START_TEST(a_zero_byte_is_not_the_end_of_the_text) {
    hy_json *json;
    must_fail(hy_json_parse("1\0", 2, "t", &json), HY_ERR_INPUT, "found byte 0x00");
    must_fail(hy_json_parse("\"a\0b\"", 5, "t", &json), HY_ERR_INPUT, "control character 0x00");
    must_fail(hy_json_parse("[1]", 2, "t", &json), HY_ERR_INPUT, "found the end of the text");
    must_fail(hy_json_parse(NULL, 0, "t", &json), HY_ERR_INPUT, "found the end of the text");
}
END_TEST

START_TEST(nesting_ends_at_128_levels) {
    enum { MANY = 1000000 };
    char *text = malloc(MANY);
    ck_assert_ptr_nonnull(text);
    hy_json *json;
    memset(text, '[', 128);
    memset(text + 128, ']', 128);
    must(hy_json_parse(text, 256, "t", &json));
    hy_json_free(json);
    memset(text, '[', 129);
    memset(text + 129, ']', 129);
    must_fail(hy_json_parse(text, 258, "t", &json), HY_ERR_INPUT,
              "t:1:129: nested deeper than 128");
    memset(text, '[', MANY);
    must_fail(hy_json_parse(text, MANY, "t", &json), HY_ERR_INPUT, "nested deeper");
    for (size_t i = 0; i + 5 <= MANY; i += 5) memcpy(text + i, "{\"\":[", 5);
    must_fail(hy_json_parse(text, MANY, "t", &json), HY_ERR_INPUT, "nested deeper");
    free(text);
}
END_TEST

/* ---- large objects --------------------------------------------------------------------------- */

static void add_members(hy_text *text, int count) {
    hy_text_add(text, "{");
    for (int i = 0; i < count; i++) {
        hy_text_addf(text, "%s\"key %d\": {\"v\": %d}", i ? ",\n" : "", i, i);
    }
}

START_TEST(members_are_found_in_objects_of_every_size) {
    for (int count = 0; count <= 70; count++) {
        hy_text text = {0};
        add_members(&text, count);
        hy_text_add(&text, "}");
        hy_json *json = parsed(hy_text_string(&text));
        const hy_json_node *root = hy_json_root(json);
        for (int i = -1; i <= count; i++) {
            char key[32];
            snprintf(key, sizeof key, "key %d", i);
            const hy_json_node *member = hy_json_get(root, key);
            bool is_there = i >= 0 && i < count;
            ck_assert_int_eq(member != NULL, is_there);
            int64_t value = -1;
            if (is_there) must(hy_json_int(json, member, "v", &value));
            if (is_there) ck_assert_int_eq(value, i);
        }
        hy_json_free(json);
        hy_text_free(&text);
    }
}
END_TEST

START_TEST(duplicates_are_found_in_objects_of_every_size) {
    for (int count = 1; count <= 70; count += 3) {
        for (int twice = 0; twice < count; twice += 1 + count / 5) {
            hy_text text = {0};
            char expected[64];
            hy_json *json;
            add_members(&text, count);
            hy_text_addf(&text, ",\n\"key %d\": 0}", twice);
            snprintf(expected, sizeof expected, "t:%d:1: duplicate key \"key %d\"", count + 1,
                     twice);
            must_fail(parse(hy_text_string(&text), &json), HY_ERR_INPUT, expected);
            hy_text_free(&text);
        }
    }
}
END_TEST

START_TEST(an_object_of_a_vocabularys_size_is_no_trouble) {
    /* The shape of a tokenizer: 128k keys in one object. Anything quadratic would run for hours. */
    enum { COUNT = 128000 };
    hy_text text = {0};
    hy_text_add(&text, "{\"model\":{\"vocab\":{");
    for (int i = 0; i < COUNT; i++)
        hy_text_addf(&text, "%s\"\\u0120tok%x\":%d", i ? "," : "", i, i);
    hy_text_add(&text, "}}}");
    must(hy_text_status(&text));
    hy_json *json = parsed(hy_text_string(&text));
    const hy_json_node *vocab = hy_json_get(hy_json_get(hy_json_root(json), "model"), "vocab");
    ck_assert_uint_eq(hy_json_size(vocab), COUNT);
    for (int i = 0; i < COUNT; i++) {
        char key[32];
        int64_t id = -1;
        snprintf(key, sizeof key, "\xC4\xA0tok%x", i);
        must(hy_json_int(json, vocab, key, &id));
        ck_assert_int_eq(id, i);
    }
    hy_json_free(json);
    hy_text_free(&text);
}
END_TEST

/* ---- typed access and files ------------------------------------------------------------------ */

START_TEST(a_wrong_member_is_named_with_its_source) {
    hy_json *json =
        parsed("{\"i\":1,\"d\":0.5,\"s\":\"x\",\"b\":true,\"n\":null,\"a\":[],\"o\":{}}");
    const hy_json_node *root = hy_json_root(json);
    int64_t i;
    double d;
    bool b;
    const char *s;
    must_fail(hy_json_int(json, root, "z", &i), HY_ERR_INPUT, "t: \"z\" is missing");
    must_fail(hy_json_int(json, root, "s", &i), HY_ERR_INPUT,
              "t: \"s\" is a string; expected a whole number");
    must_fail(hy_json_int(json, root, "d", &i), HY_ERR_INPUT, "a number with a fraction");
    must_fail(hy_json_double(json, root, "n", &d), HY_ERR_INPUT,
              "\"n\" is null; expected a number");
    must_fail(hy_json_bool(json, root, "i", &b), HY_ERR_INPUT,
              "is a number; expected true or false");
    must_fail(hy_json_bool(json, root, "z", &b), HY_ERR_INPUT, "\"z\" is missing");
    must_fail(hy_json_string(json, root, "a", &s, NULL), HY_ERR_INPUT, "is an array; expected");
    must_fail(hy_json_string(json, root, "o", &s, NULL), HY_ERR_INPUT, "is an object; expected");
    must_fail(hy_json_string(json, root, "b", &s, NULL), HY_ERR_INPUT,
              "is true or false; expected");
    must_fail(hy_json_int(json, NULL, "i", &i), HY_ERR_INPUT, "\"i\" is missing");
    must(hy_json_double(json, root, "i", &d));
    must(hy_json_bool(json, root, "b", &b));
    must(hy_json_string(json, root, "s", &s, NULL));
    ck_assert(d == 1.0 && b && strcmp(s, "x") == 0);
    hy_json_free(json);
}
END_TEST

START_TEST(a_file_is_named_in_its_errors) {
    char folder[256], path[300], expected[400];
    temp_folder(folder);
    must(hy_path_join(path, sizeof path, folder, "x.json"));
    hy_json *json;
    must_fail(hy_json_read_file(path, &json), HY_ERR_INPUT, path);
    must(hy_file_write_atomic(path, "{\"a\":\n oops}", 12));
    snprintf(expected, sizeof expected, "%s:2:2: expected a value, found 'o'", path);
    must_fail(hy_json_read_file(path, &json), HY_ERR_INPUT, expected);
    must(hy_file_write_atomic(path, "{\"a\":\n 1}", 9));
    must(hy_json_read_file(path, &json));
    hy_json_free(json);
    remove_folder(folder);
}
END_TEST

/* ---- writing --------------------------------------------------------------------------------- */

static void write_sample(hy_text *text, bool is_pretty) {
    hy_json_writer w;
    hy_json_begin(&w, text, is_pretty);
    hy_json_open_object(&w, NULL);
    hy_json_put_int(&w, "int", INT64_MIN);
    hy_json_put_double(&w, "double", 0.1);
    hy_json_put_double(&w, "nan", NAN);
    hy_json_put_bool(&w, "bool", true);
    hy_json_put_string(&w, "string", "a\"\\\n\x01\xC3\xA9");
    hy_json_put_string(&w, "none", NULL);
    hy_json_open_array(&w, "array");
    hy_json_put_null(&w, NULL);
    hy_json_open_object(&w, NULL);
    hy_json_close_object(&w);
    hy_json_open_array(&w, NULL);
    hy_json_close_array(&w);
    hy_json_put_bool(&w, NULL, false);
    hy_json_close_array(&w);
    hy_json_close_object(&w);
    must(hy_text_status(text));
}

START_TEST(what_is_written_is_what_was_meant) {
    hy_text text = {0};
    write_sample(&text, false);
    ck_assert_str_eq(text.data,
                     "{\"int\":-9223372036854775808,\"double\":0.1,\"nan\":null,\"bool\":true,"
                     "\"string\":\"a\\\"\\\\\\n\\u0001\xC3\xA9\",\"none\":null,"
                     "\"array\":[null,{},[],false]}");
    hy_text_clear(&text);
    write_sample(&text, true);
    ck_assert_str_eq(text.data,
                     "{\n  \"int\": -9223372036854775808,\n  \"double\": 0.1,\n"
                     "  \"nan\": null,\n  \"bool\": true,\n"
                     "  \"string\": \"a\\\"\\\\\\n\\u0001\xC3\xA9\",\n  \"none\": null,\n"
                     "  \"array\": [\n    null,\n    {},\n    [],\n    false\n  ]\n}");
    hy_json_free(parsed(text.data));
    hy_text_free(&text);
}
END_TEST

START_TEST(strings_of_any_bytes_are_written_as_valid_json) {
    for (uint64_t i = 0; i < 3000; i++) {
        char bytes[24] = {0};
        for (uint64_t j = 0; j < sizeof bytes - 1; j++) {
            bytes[j] = (char)mutation_byte(hy_rng_u64(i, HY_RNG_TEST, j));
        }
        hy_text text = {0};
        hy_json_writer w;
        hy_json_begin(&w, &text, false);
        hy_json_put_string(&w, NULL, bytes);
        hy_json *json = parsed(hy_text_string(&text));
        const char *back;
        ck_assert(hy_json_as_string(hy_json_root(json), &back, NULL));
        if (!strstr(back, "\xEF\xBF\xBD")) ck_assert_str_eq(back, bytes);
        hy_json_free(json);
        hy_text_free(&text);
    }
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, false);
    hy_json_put_string(&w, NULL, "a\xFFz\xE2\x82");
    ck_assert_str_eq(text.data, "\"a\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\"");
    hy_text_free(&text);
}
END_TEST

START_TEST(numbers_come_back_with_the_same_bits) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, false);
    hy_json_open_array(&w, NULL);
    for (uint64_t i = 0; i < 5000; i++) {
        hy_json_put_double(&w, NULL,
                           hy_rng_normal(1, HY_RNG_TEST, i) * pow(10, (double)(i % 60) - 30));
        hy_json_put_int(&w, NULL, (int64_t)hy_rng_u64(2, HY_RNG_TEST, i) >> (i % 60));
    }
    hy_json_close_array(&w);
    hy_json *json = parsed(hy_text_string(&text));
    const hy_json_node *node = hy_json_first(hy_json_root(json));
    for (uint64_t i = 0; i < 5000; i++) {
        double number = 0;
        int64_t value = 0;
        ck_assert(hy_json_as_double(node, &number));
        ck_assert(number == hy_rng_normal(1, HY_RNG_TEST, i) * pow(10, (double)(i % 60) - 30));
        node = hy_json_next(node);
        ck_assert(hy_json_as_int(node, &value));
        ck_assert_int_eq(value, (int64_t)hy_rng_u64(2, HY_RNG_TEST, i) >> (i % 60));
        node = hy_json_next(node);
    }
    ck_assert_ptr_null(node);
    hy_json_free(json);
    hy_text_free(&text);
}
END_TEST

/* ---- damage ---------------------------------------------------------------------------------- */

/* Visits everything, so that sanitizers and counts notice a tree with a wrong link. */
static size_t visit(const hy_json_node *node) {
    size_t visited = 1, children = 0;
    const char *string;
    size_t size;
    if (hy_json_as_string(node, &string, &size)) ck_assert_int_eq(string[size], 0);
    for (const hy_json_node *c = hy_json_first(node); c; c = hy_json_next(c)) {
        children++;
        visited += visit(c);
        if (hy_json_type_of(node) == HY_JSON_OBJECT &&
            strlen(hy_json_key(c)) == hy_json_key_size(c)) {
            ck_assert_ptr_eq(hy_json_get(node, hy_json_key(c)), c);
        }
    }
    ck_assert_uint_eq(children, hy_json_size(node));
    return visited;
}

START_TEST(damaged_texts_are_read_or_refused_and_never_crash) {
    hy_text text = {0};
    write_sample(&text, true);
    text.size--; /* another member after the sample's */
    hy_text_add(&text, ",\"vocab\":");
    add_members(&text, 20);
    hy_text_add(&text,
                "},\"s\":\"\\ud83d\\ude00 \xF0\x9F\x98\x80 \\u00e9\",\"n\":[-1.5e-7,0.25,1e22]}");
    hy_json *undamaged = parsed(text.data);
    ck_assert_uint_gt(visit(hy_json_root(undamaged)), 40);
    hy_json_free(undamaged);
    size_t accepted = 0;
    for (uint64_t i = 0; i < 6000; i++) {
        /* An exact allocation, so that one byte read too far is seen. */
        uint8_t room[2048 + MUTATION_GROWTH];
        ck_assert_uint_le(text.size, 2048);
        size_t size = mutate(text.data, text.size, room, i);
        char *exact = malloc(size ? size : 1);
        ck_assert_ptr_nonnull(exact);
        memcpy(exact, room, size);
        hy_json *json;
        hy_status status = hy_json_parse(exact, size, "t", &json);
        ck_assert_msg(status == HY_OK || status == HY_ERR_INPUT, "mutation %llu: %s",
                      (unsigned long long)i, hy_error_message());
        if (status == HY_OK) {
            accepted++;
            visit(hy_json_root(json));
        }
        hy_json_free(status == HY_OK ? json : NULL);
        free(exact);
    }
    /* Both must happen often, or the damage is too mild or too hard to find anything. */
    ck_assert_uint_gt(accepted, 100);
    ck_assert_uint_lt(accepted, 5000);
    hy_text_free(&text);
}
END_TEST

static Suite *json_suite(void) {
    Suite *suite = suite_create("base: json");
    TCase *reading = tcase_create("reading");
    tcase_add_test(reading, a_tree_is_walked_in_the_order_of_the_text);
    tcase_add_test(reading, any_value_may_be_at_the_top_level);
    tcase_add_test(reading, whole_numbers_keep_all_their_digits);
    tcase_add_test(reading, strings_are_decoded);
    tcase_add_test(reading, keys_are_decoded_and_compared_with_their_zeros);
    tcase_add_test(reading, what_is_no_json_is_refused_with_line_and_column);
    tcase_add_test(reading, a_zero_byte_is_not_the_end_of_the_text);
    tcase_add_test(reading, nesting_ends_at_128_levels);
    tcase_add_test(reading, members_are_found_in_objects_of_every_size);
    tcase_add_test(reading, duplicates_are_found_in_objects_of_every_size);
    tcase_add_test(reading, an_object_of_a_vocabularys_size_is_no_trouble);
    tcase_add_test(reading, a_wrong_member_is_named_with_its_source);
    tcase_add_test(reading, a_file_is_named_in_its_errors);
    tcase_add_test(reading, damaged_texts_are_read_or_refused_and_never_crash);
    suite_add_tcase(suite, reading);
    TCase *writing = tcase_create("writing");
    tcase_add_test(writing, what_is_written_is_what_was_meant);
    tcase_add_test(writing, strings_of_any_bytes_are_written_as_valid_json);
    tcase_add_test(writing, numbers_come_back_with_the_same_bits);
    suite_add_tcase(suite, writing);
    return suite;
}

HY_TEST_MAIN(json_suite)
