/* test_base.c: texts, near names, written numbers, hashes, random numbers, errors and names. */
#include "harness.h"

#include <limits.h>
#include <locale.h>
#include <math.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/number.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/utf8.h"
#include "hybrid.h"

/* ---- texts ----------------------------------------------------------------------------------- */

START_TEST(an_array_grows_and_keeps_what_it_holds) {
    int *list = NULL;
    size_t room = 0;
    for (int i = 0; i < 1000; i++) {
        must(hy_array_reserve(&list, &room, (size_t)i + 1, sizeof *list, "numbers"));
        ck_assert_uint_ge(room, (size_t)i + 1);
        list[i] = i;
    }
    for (int i = 0; i < 1000; i++) ck_assert_int_eq(list[i], i);
    ck_assert_uint_le(room, 2000);
    int *before = list;
    must_fail(hy_array_reserve(&list, &room, SIZE_MAX / 2, sizeof *list, "numbers"), HY_ERR_MEMORY,
              "numbers");
    must_fail(hy_array_reserve(&list, &room, SIZE_MAX, sizeof *list, "numbers"), HY_ERR_MEMORY,
              "numbers");
    ck_assert_ptr_eq(list, before);
    free(list);
}
END_TEST

START_TEST(a_text_grows_and_stays_terminated) {
    hy_text text = {0};
    ck_assert_str_eq(hy_text_string(&text), "");
    for (int i = 0; i < 1000; i++) hy_text_addf(&text, "%d,", i);
    hy_text_add(&text, "end");
    hy_text_add_bytes(&text, "\0x", 2);
    must(hy_text_status(&text));
    ck_assert_uint_eq(text.size, 3890 + 3 + 2);
    ck_assert_int_eq(text.data[text.size], 0);
    ck_assert(strncmp(text.data, "0,1,2,", 6) == 0);
    ck_assert_mem_eq(text.data + text.size - 6, ",end\0x", 6);
    hy_text_clear(&text);
    ck_assert_str_eq(hy_text_string(&text), "");
    hy_text_add_bytes(&text, NULL, 0);
    ck_assert_uint_eq(text.size, 0);
    hy_text_free(&text);
}
END_TEST

START_TEST(a_text_that_cannot_grow_says_so_at_the_end) {
    hy_text text = {0};
    hy_text_add(&text, "kept");
    hy_text_add_bytes(&text, "x", SIZE_MAX - 2);
    hy_text_add(&text, "ignored");
    ck_assert_str_eq(hy_text_string(&text), "kept");
    must_fail(hy_text_status(&text), HY_ERR_MEMORY, "4 bytes");
    hy_text_free(&text);
}
END_TEST

/* ---- near names ------------------------------------------------------------------------------ */

static const char *nearest(const char *word) {
    static const char *const keys[] = {"batch_size",       "seq_len", "steps", "lr",
                                       "grad_accum_steps", "seed",    "k"};
    const char *found = hy_nearest_word(word, keys, sizeof keys / sizeof keys[0]);
    return found ? found : "(none)";
}

START_TEST(the_nearest_word_is_a_likely_slip) {
    ck_assert_str_eq(nearest("batch_size"), "batch_size");
    ck_assert_str_eq(nearest("Batch-Size"), "batch_size");
    ck_assert_str_eq(nearest("batchsize"), "batch_size");
    ck_assert_str_eq(nearest("btach_size"), "batch_size"); /* swapped neighbours are one edit */
    ck_assert_str_eq(nearest("sequ_lenn"), "seq_len");
    ck_assert_str_eq(nearest("step"), "steps");
    ck_assert_str_eq(nearest("rl"), "lr");
    ck_assert_str_eq(nearest("sede"), "seed");
    ck_assert_str_eq(nearest("grad-acum-step"), "grad_accum_steps");
}
END_TEST

START_TEST(a_word_far_from_all_has_no_nearest) {
    ck_assert_str_eq(nearest(""), "(none)");
    ck_assert_str_eq(nearest("x"), "(none)"); /* one edit away from "k", but nothing in common */
    ck_assert_str_eq(nearest("temperature"), "(none)");
    ck_assert_str_eq(nearest("abcde"), "(none)");
    char endless[500];
    memset(endless, 'b', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    ck_assert_str_eq(nearest(endless), "(none)");
    ck_assert_ptr_null(hy_nearest_word("lr", NULL, 0));
}
END_TEST

START_TEST(the_threshold_is_a_third_of_the_letters_and_at_most_four) {
    const char *const nine[] = {"abcdefghi"}, *const long_word[] = {"abcdefghijklmnopqrst"};
    ck_assert_ptr_nonnull(hy_nearest_word("abcdefxyz", nine, 1));
    ck_assert_ptr_null(hy_nearest_word("abcdewxyz", nine, 1));
    ck_assert_ptr_nonnull(hy_nearest_word("abcdefghijklmnop....", long_word, 1));
    ck_assert_ptr_null(hy_nearest_word("abcdefghijklmno.....", long_word, 1));
}
END_TEST

/* ---- numbers as people write them ------------------------------------------------------------ */

START_TEST(counts_are_read_with_their_suffixes) {
    static const struct {
        const char *text;
        int64_t value;
    } rows[] = {{"0", 0},
                {"42", 42},
                {"-7", -7},
                {"3k", 3000},
                {"3K", 3000},
                {"3kB", 3000},
                {"2M", 2000000},
                {"15G", 15000000000},
                {"15GB", 15000000000},
                {"1T", 1000000000000},
                {"1Ki", 1024},
                {"1KiB", 1024},
                {"16GiB", (int64_t)16 << 30},
                {"16 GiB", (int64_t)16 << 30},
                {"2Ti", (int64_t)2 << 40},
                {"007", 7},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t value = -1;
        ck_assert_msg(hy_parse_count(rows[i].text, &value), "%s was refused", rows[i].text);
        ck_assert_msg(value == rows[i].value, "%s gave %lld", rows[i].text, (long long)value);
    }
}
END_TEST

START_TEST(what_is_no_count_is_refused) {
    static const char *const rows[] = {"",
                                       " ",
                                       "-",
                                       "k",
                                       "1.5G",
                                       "1e6",
                                       "12x",
                                       "1GG",
                                       "1Gib ",
                                       "1 ",
                                       " 1",
                                       "+1",
                                       "1B",
                                       "1iB",
                                       "0x10",
                                       "1  G",
                                       "1K i",
                                       "1KiBB",
                                       "9223372036854775808",
                                       "-9223372036854775809",
                                       "9223372036854776k",
                                       "99999999999999999999T"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t value = 123;
        ck_assert_msg(!hy_parse_count(rows[i], &value), "\"%s\" was taken", rows[i]);
        ck_assert_int_eq(value, 123);
    }
}
END_TEST

START_TEST(bytes_are_written_for_people) {
    static const struct {
        double bytes;
        const char *text;
    } rows[] = {{0, "0 B"},
                {1023, "1023 B"},
                {1024, "1.0 KiB"},
                {812 * 1024.0, "812 KiB"},
                {1.9 * 1024 * 1024 * 1024, "1.9 GiB"},
                {15.9 * 1024 * 1024 * 1024, "15.9 GiB"},
                {1048575, "1.0 MiB"}, /* not 1024 KiB */
                {99.96 * 1024, "100 KiB"},
                {-2048, "-2.0 KiB"},
                {5e21, "4337 EiB"},
                {NAN, "?"}};
    char buffer[32];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ck_assert_str_eq(hy_format_bytes(rows[i].bytes, buffer, sizeof buffer), rows[i].text);
    }
}
END_TEST

START_TEST(durations_are_written_for_people) {
    static const struct {
        double seconds;
        const char *text;
    } rows[] = {{0, "0 s"},        {45.2, "45 s"},     {59.7, "1 m 00 s"},
                {200, "3 m 20 s"}, {7500, "2 h 05 m"}, {273600, "3 d 04 h"},
                {-1, "?"},         {NAN, "?"},         {INFINITY, "?"}};
    char buffer[32];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ck_assert_str_eq(hy_format_duration(rows[i].seconds, buffer, sizeof buffer), rows[i].text);
    }
}
END_TEST

/* ---- doubles --------------------------------------------------------------------------------- */

static double bits_to_double(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void check_round_trip(double value) {
    char text[HY_NUMBER_MAX];
    double back = 0;
    hy_number_format(value, text);
    ck_assert_msg(hy_number_parse(text, strlen(text), &back), "%s was refused", text);
    ck_assert_msg(memcmp(&value, &back, sizeof value) == 0, "%s became %a", text, back);
}

START_TEST(doubles_read_back_to_the_same_bits) {
    static const double special[] = {0.0,
                                     -0.0,
                                     1e22,
                                     1e23,
                                     5e-324,
                                     -2.2250738585072014e-308,
                                     1.7976931348623157e308,
                                     0.1,
                                     1.0 / 3,
                                     123456789012345678.0};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) check_round_trip(special[i]);
    for (uint64_t i = 0; i < 20000; i++) {
        double any = bits_to_double(hy_rng_u64(1, HY_RNG_TEST, i));
        if (isfinite(any)) check_round_trip(any);
        check_round_trip((double)(float)hy_rng_normal(2, HY_RNG_TEST, i));
        check_round_trip((double)(hy_rng_u64(3, HY_RNG_TEST, i) >> 20) / 1000);
    }
}
END_TEST

START_TEST(doubles_are_written_short_where_short_is_exact) {
    char text[HY_NUMBER_MAX];
    ck_assert_str_eq(hy_number_format(0.1, text), "0.1");
    ck_assert_str_eq(hy_number_format(3e-4, text), "0.0003");
    ck_assert_str_eq(hy_number_format(-1234567.25, text), "-1234567.25");
    ck_assert_str_eq(hy_number_format(100000, text), "100000");
    ck_assert_str_eq(hy_number_format(1.0 / 3, text), "0.3333333333333333");
    ck_assert_str_eq(hy_number_format(INFINITY, text), "inf");
}
END_TEST

START_TEST(short_and_long_numbers_agree_with_the_c_library) {
    for (uint64_t i = 0; i < 20000; i++) {
        char text[64];
        uint64_t r = hy_rng_u64(4, HY_RNG_TEST, i);
        snprintf(text, sizeof text, "%s%llu.%llue%d", r & 1 ? "-" : "",
                 (unsigned long long)(r >> (8 + r % 50)), (unsigned long long)(r >> 40),
                 (int)(r >> 1 & 63) - 32);
        double ours = 0;
        ck_assert_msg(hy_number_parse(text, strlen(text), &ours), "%s was refused", text);
        ck_assert_msg(ours == strtod(text, NULL), "%s became %a", text, ours);
    }
}
END_TEST

START_TEST(what_is_no_number_is_refused) {
    static const char *const rows[] = {"",     "-",   ".",   "e5",    "1e",     "1e+", "1.5x",
                                       "0x10", "inf", "nan", "1e999", "-1e999", "1,5", " 1"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double value;
        ck_assert_msg(!hy_number_parse(rows[i], strlen(rows[i]), &value), "%s was taken", rows[i]);
    }
}
END_TEST

START_TEST(numbers_do_not_follow_the_locale) {
    static const char *const commas[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8", "de_DE"};
    for (size_t i = 0; i < sizeof commas / sizeof commas[0]; i++) {
        if (setlocale(LC_NUMERIC, commas[i])) break;
    }
    char text[HY_NUMBER_MAX];
    double value = 0;
    hy_number_format(0.1234567890123456, text);
    bool is_read = hy_number_parse("1.2345678901234567890", 21, &value);
    setlocale(LC_NUMERIC, "C");
    ck_assert_str_eq(text, "0.1234567890123456");
    ck_assert(is_read && value == 1.2345678901234567890);
}
END_TEST

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

static int utf8_length(const char *bytes) {
    return hy_utf8_length((const uint8_t *)bytes, strlen(bytes));
}

START_TEST(utf8_accepts_characters_and_nothing_else) {
    ck_assert_int_eq(utf8_length("a"), 1);
    ck_assert_int_eq(utf8_length("\xC3\xA9"), 2);
    ck_assert_int_eq(utf8_length("\xE2\x82\xAC"), 3);
    ck_assert_int_eq(utf8_length("\xEF\xBF\xBF"), 3);
    ck_assert_int_eq(utf8_length("\xF0\x9F\x98\x80"), 4);
    ck_assert_int_eq(utf8_length("\xF4\x8F\xBF\xBF"), 4);
    static const char *const bad[] = {"\x80",
                                      "\xBF",
                                      "\xC0\xAF",
                                      "\xC1\xBF",
                                      "\xC3",
                                      "\xC3(",
                                      "\xE0\x9F\xBF",
                                      "\xED\xA0\x80",
                                      "\xE2\x82",
                                      "\xF0\x8F\xBF\xBF",
                                      "\xF4\x90\x80\x80",
                                      "\xF5\x80\x80\x80",
                                      "\xFE",
                                      "\xFF"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(utf8_length(bad[i]), 0);
    }
}
END_TEST

START_TEST(every_code_point_is_written_as_one_character) {
    for (uint32_t code = 1; code < 0x110000; code += code < 0x1000 ? 1 : 61) {
        if (code >= 0xD800 && code < 0xE000) continue;
        char bytes[5] = {0};
        int length = hy_utf8_encode(code, bytes);
        ck_assert_int_eq(utf8_length(bytes), length);
        ck_assert_uint_eq(strlen(bytes), (size_t)length);
    }
}
END_TEST

/* ---- hashes ---------------------------------------------------------------------------------- */

START_TEST(xxh64_gives_the_published_values) {
    const char *spam = "Nobody inspects the spammish repetition";
    ck_assert_uint_eq(hy_hash_bytes("", 0, 0), 0xEF46DB3751D8E999u);
    ck_assert_uint_eq(hy_hash_bytes(NULL, 0, 2654435761u), 0xAC75FDA2929B17EFu);
    ck_assert_uint_eq(hy_hash_bytes("a", 1, 0), 0xD24EC4F1A98C6E5Bu);
    ck_assert_uint_eq(hy_hash_bytes("abc", 3, 0), 0x44BC2CF5AD770999u);
    ck_assert_uint_eq(hy_hash_bytes(spam, strlen(spam), 0), 0xFBCEA83C8A378BF1u);
}
END_TEST

START_TEST(a_hash_does_not_depend_on_how_the_bytes_are_cut) {
    uint8_t data[300];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)hy_rng_u64(5, HY_RNG_TEST, i);
    for (size_t size = 0; size <= sizeof data; size += size < 70 ? 1 : 23) {
        uint64_t whole = hy_hash_bytes(data, size, 9);
        for (size_t step = 1; step <= 67; step += 3) {
            hy_hash h;
            hy_hash_init(&h, 9);
            for (size_t at = 0; at < size; at += step) {
                hy_hash_add(&h, data + at, size - at < step ? size - at : step);
            }
            ck_assert_uint_eq(hy_hash_value(&h), whole);
            ck_assert_uint_eq(h.total, size);
        }
    }
}
END_TEST

START_TEST(a_hash_notices_every_single_bit) {
    uint8_t data[100] = {0};
    uint64_t clean = hy_hash_bytes(data, sizeof data, 0);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_uint_ne(hy_hash_bytes(data, sizeof data, 0), clean);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}
END_TEST

/* ---- random numbers -------------------------------------------------------------------------- */

START_TEST(philox_gives_the_published_values) {
    /* Known answers of the Random123 distribution for philox4x32-10. */
    static const struct {
        uint64_t seed, stream, index;
        uint32_t out[4];
    } rows[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x0370734413198a2e,
         0x85a308d3243f6a88,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t out[4];
        hy_philox(rows[i].seed, rows[i].stream, rows[i].index, out);
        ck_assert_mem_eq(out, rows[i].out, sizeof out);
    }
}
END_TEST

START_TEST(streams_and_seeds_give_other_numbers) {
    for (uint64_t i = 0; i < 100; i++) {
        uint64_t x = hy_rng_u64(1, HY_RNG_INIT, i);
        ck_assert_uint_eq(hy_rng_u64(1, HY_RNG_INIT, i), x);
        ck_assert_uint_ne(hy_rng_u64(1, HY_RNG_SHUFFLE, i), x);
        ck_assert_uint_ne(hy_rng_u64(2, HY_RNG_INIT, i), x);
        ck_assert_uint_ne(hy_rng_u64(1, HY_RNG_INIT, i + 1), x);
    }
}
END_TEST

START_TEST(uniforms_fill_their_interval_evenly) {
    enum { N = 100000, BINS = 50 };
    int bins[BINS] = {0};
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = hy_rng_uniform(11, HY_RNG_TEST, i);
        ck_assert(u >= 0 && u < 1);
        bins[(int)(u * BINS)]++;
        sum += u;
        squares += u * u;
    }
    ck_assert_double_eq_tol(sum / N, 0.5, 5 * sqrt(1.0 / 12 / N));
    ck_assert_double_eq_tol(squares / N, 1.0 / 3, 5 * sqrt(4.0 / 45 / N));
    double chi = 0; /* 49 degrees of freedom: 99.99 % lie below 95 */
    for (int i = 0; i < BINS; i++) chi += pow(bins[i] - N / BINS, 2) / (N / BINS);
    ck_assert_double_lt(chi, 95);
}
END_TEST

START_TEST(normals_have_the_moments_of_normals) {
    enum { N = 200000 };
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    int beyond = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = hy_rng_normal(12, HY_RNG_TEST, i);
        ck_assert(isfinite(x));
        m1 += x;
        m2 += x * x;
        m3 += x * x * x;
        m4 += x * x * x * x;
        beyond += fabs(x) > 1.959963985;
    }
    /* Five standard errors: the variances of x, x^2, x^3, x^4 are 1, 2, 15, 96. */
    ck_assert_double_eq_tol(m1 / N, 0, 5 * sqrt(1.0 / N));
    ck_assert_double_eq_tol(m2 / N, 1, 5 * sqrt(2.0 / N));
    ck_assert_double_eq_tol(m3 / N, 0, 5 * sqrt(15.0 / N));
    ck_assert_double_eq_tol(m4 / N, 3, 5 * sqrt(96.0 / N));
    ck_assert_double_eq_tol((double)beyond / N, 0.05, 5 * sqrt(0.05 * 0.95 / N));
}
END_TEST

START_TEST(below_stays_below_and_reaches_all) {
    for (uint64_t n = 1; n < 40; n++) {
        uint64_t seen = 0;
        for (uint64_t i = 0; i < 2000; i++) {
            uint64_t x = hy_rng_below(13, HY_RNG_TEST, i, n);
            ck_assert_uint_lt(x, n);
            seen |= (uint64_t)1 << x;
        }
        ck_assert_uint_eq(seen, ((uint64_t)1 << n) - 1);
    }
    ck_assert_uint_gt(hy_rng_below(13, HY_RNG_TEST, 0, UINT64_MAX), UINT32_MAX);
}
END_TEST

static void check_permutation(uint64_t seed, uint64_t n) {
    uint8_t *seen = calloc(n, 1);
    ck_assert_ptr_nonnull(seen);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t image = hy_rng_permute(seed, HY_RNG_SHUFFLE, n, i);
        ck_assert_uint_lt(image, n);
        ck_assert_msg(!seen[image], "n = %llu: %llu comes twice", (unsigned long long)n,
                      (unsigned long long)image);
        seen[image] = 1;
    }
    free(seen);
}

START_TEST(a_permutation_takes_every_place_once) {
    for (uint64_t n = 1; n <= 130; n++) check_permutation(n * 7, n);
    static const uint64_t sizes[] = {255, 256, 257, 1000, 1023, 1024, 1025, 4095, 4097, 20011};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) check_permutation(i, sizes[i]);
    /* Far too many to visit: the images must still lie inside and differ. */
    uint64_t huge = UINT64_MAX - 5;
    uint64_t a = hy_rng_permute(1, HY_RNG_SHUFFLE, huge, 0);
    uint64_t b = hy_rng_permute(1, HY_RNG_SHUFFLE, huge, huge - 1);
    ck_assert(a < huge && b < huge && a != b);
}
END_TEST

START_TEST(a_permutation_shuffles_and_changes_with_the_seed) {
    enum { N = 1000 };
    int fixed = 0, neighbours = 0, equal = 0;
    uint64_t before = N;
    for (uint64_t i = 0; i < N; i++) {
        uint64_t image = hy_rng_permute(3, HY_RNG_SHUFFLE, N, i);
        fixed += image == i;
        neighbours += image == before + 1;
        equal += image == hy_rng_permute(4, HY_RNG_SHUFFLE, N, i);
        before = image;
    }
    /* Each is Poisson with mean 1 for a random permutation. */
    ck_assert_int_lt(fixed, 9);
    ck_assert_int_lt(neighbours, 9);
    ck_assert_int_lt(equal, 9);
}
END_TEST

/* ---- errors and names ------------------------------------------------------------------------ */

START_TEST(a_message_gains_context_and_never_overflows) {
    must_fail(hy_fail(HY_ERR_INPUT, "value %d", 7), HY_ERR_INPUT, "value 7");
    must_fail(hy_fail_context(HY_ERR_INPUT, "file %s", "a.cfg"), HY_ERR_INPUT,
              "file a.cfg: value 7");
    char endless[3000];
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    hy_fail(HY_ERR_IO, "%s", endless);
    ck_assert_uint_eq(strlen(hy_error_message()), HY_ERROR_MESSAGE_MAX - 1);
    hy_fail_context(HY_ERR_IO, "front");
    ck_assert_uint_eq(strlen(hy_error_message()), HY_ERROR_MESSAGE_MAX - 1);
    ck_assert(strncmp(hy_error_message(), "front: xxx", 10) == 0);
    hy_fail_hint(HY_ERR_IO, "try again");
    ck_assert_uint_eq(strlen(hy_error_message()), HY_ERROR_MESSAGE_MAX - 1);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "xxx; try again"));
}
END_TEST

START_TEST(an_error_keeps_its_origin_until_the_next_one) {
    hy_error kept;
    hy_fail_agreed(HY_ERR_MEMORY, "rank 1: no memory");
    hy_fail_context(HY_ERR_MEMORY, "step 3");
    hy_fail_hint(HY_ERR_MEMORY, "close a program");
    ck_assert_int_eq(hy_error_origin_of(HY_ERR_MEMORY), HY_ERROR_AGREED);
    /* A call that returns another status without an error of its own agreed on nothing. */
    ck_assert_int_eq(hy_error_origin_of(HY_ERR_IO), HY_ERROR_LOCAL);
    hy_error_save(&kept, HY_ERR_MEMORY);
    hy_fail(HY_ERR_MEMORY, "%s, again", hy_error_message());
    ck_assert_int_eq(hy_error_origin_of(HY_ERR_MEMORY), HY_ERROR_LOCAL);
    ck_assert_str_eq(hy_error_message(), "step 3: rank 1: no memory; close a program, again");
    must_fail(hy_error_restore(&kept), HY_ERR_MEMORY, "step 3: rank 1: no memory; close a program");
    ck_assert_int_eq(hy_error_origin_of(HY_ERR_MEMORY), HY_ERROR_AGREED);
    hy_error_save(&kept, HY_OK);
    ck_assert_int_eq(hy_error_restore(&kept), HY_OK);
    ck_assert_str_eq(hy_error_last()->text, "step 3: rank 1: no memory; close a program");
}
END_TEST

START_TEST(the_library_says_what_it_is) {
    ck_assert_str_eq(hy_version(), HYBRID_VERSION);
    ck_assert_int_eq(hy_abi(), HYBRID_ABI);
}
END_TEST

START_TEST(every_shared_word_has_a_name_and_wrong_values_have_none) {
    for (int i = 0; i < HY_DTYPE_COUNT; i++) {
        ck_assert_str_ne(hy_dtype_name((hy_dtype)i), "?");
        ck_assert_uint_gt(hy_dtype_size((hy_dtype)i), 0);
    }
    for (int i = 0; i < HY_CLASS_COUNT; i++) ck_assert_str_ne(hy_class_name((hy_class)i), "?");
    for (int i = 0; i < HY_PHASE_COUNT; i++) ck_assert_str_ne(hy_phase_name((hy_phase)i), "?");
    for (int i = 0; i < HY_PLACE_COUNT; i++) ck_assert_str_ne(hy_place_name((hy_place)i), "?");
    ck_assert_str_eq(hy_status_name(HY_STOPPED), "stopped");
    ck_assert_str_eq(hy_status_name((hy_status)99), "?");
    ck_assert_uint_eq(hy_dtype_size(HY_DTYPE_COUNT), 0);
    ck_assert_uint_eq(hy_dtype_size(HY_BF16), 2);
}
END_TEST

static Suite *base_suite(void) {
    Suite *suite = suite_create("base");
    TCase *texts = tcase_create("texts");
    tcase_add_test(texts, an_array_grows_and_keeps_what_it_holds);
    tcase_add_test(texts, a_text_grows_and_stays_terminated);
    tcase_add_test(texts, a_text_that_cannot_grow_says_so_at_the_end);
    tcase_add_test(texts, the_nearest_word_is_a_likely_slip);
    tcase_add_test(texts, a_word_far_from_all_has_no_nearest);
    tcase_add_test(texts, the_threshold_is_a_third_of_the_letters_and_at_most_four);
    tcase_add_test(texts, counts_are_read_with_their_suffixes);
    tcase_add_test(texts, what_is_no_count_is_refused);
    tcase_add_test(texts, bytes_are_written_for_people);
    tcase_add_test(texts, durations_are_written_for_people);
    tcase_add_test(texts, doubles_read_back_to_the_same_bits);
    tcase_add_test(texts, doubles_are_written_short_where_short_is_exact);
    tcase_add_test(texts, short_and_long_numbers_agree_with_the_c_library);
    tcase_add_test(texts, what_is_no_number_is_refused);
    tcase_add_test(texts, numbers_do_not_follow_the_locale);
    tcase_add_test(texts, utf8_accepts_characters_and_nothing_else);
    tcase_add_test(texts, every_code_point_is_written_as_one_character);
    suite_add_tcase(suite, texts);

    TCase *hashes = tcase_create("hashes");
    tcase_add_test(hashes, xxh64_gives_the_published_values);
    tcase_add_test(hashes, a_hash_does_not_depend_on_how_the_bytes_are_cut);
    tcase_add_test(hashes, a_hash_notices_every_single_bit);
    suite_add_tcase(suite, hashes);

    TCase *random = tcase_create("random numbers");
    tcase_add_test(random, philox_gives_the_published_values);
    tcase_add_test(random, streams_and_seeds_give_other_numbers);
    tcase_add_test(random, uniforms_fill_their_interval_evenly);
    tcase_add_test(random, normals_have_the_moments_of_normals);
    tcase_add_test(random, below_stays_below_and_reaches_all);
    tcase_add_test(random, a_permutation_takes_every_place_once);
    tcase_add_test(random, a_permutation_shuffles_and_changes_with_the_seed);
    suite_add_tcase(suite, random);

    TCase *words = tcase_create("errors and names");
    tcase_add_test(words, a_message_gains_context_and_never_overflows);
    tcase_add_test(words, an_error_keeps_its_origin_until_the_next_one);
    tcase_add_test(words, the_library_says_what_it_is);
    tcase_add_test(words, every_shared_word_has_a_name_and_wrong_values_have_none);
    suite_add_tcase(suite, words);
    return suite;
}

HY_TEST_MAIN(base_suite)
