/* test_blocks.c: number types of GGUF files, byte for byte against the `gguf` package and llama.cpp
 * (golden/make_blocks.py), and the mixes of types in files of llama.cpp. */
#include "harness.h"

#include <ctype.h>
#include <math.h>

#include "formats/blocks.h"
#include "formats/safetensors.h"
#include "hub/gguf_mix.h"

/* ---- golden files ---------------------------------------------------------------------------- */

static hy_safetensors *golden;

static void open_golden(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/gguf/blocks.safetensors", HY_SOURCE_DIR);
    must(hy_safetensors_open(path, &golden));
}

static void close_golden(void) { hy_safetensors_close(golden); }

static void *read_tensor(const hy_safetensors_entry *entry) {
    void *data = malloc(entry->bytes);
    ck_assert_ptr_nonnull(data);
    must(hy_safetensors_read(golden, entry, 0, data, entry->bytes));
    return data;
}

static void *read_named(const char *name, const char *suffix, const hy_safetensors_entry **entry) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    *entry = hy_safetensors_find(golden, full);
    ck_assert_msg(*entry != NULL, "%s is missing", full);
    return read_tensor(*entry);
}

/* The type by a name of any case; -1: there is none. */
static int type_of(const char *name, size_t length) {
    for (int type = 0; type < HY_BLOCK_TYPES; type++) {
        const hy_block_traits *traits = hy_block_traits_of((uint32_t)type);
        if (traits && strlen(traits->name) == length && !strncasecmp(traits->name, name, length)) {
            return type;
        }
    }
    return -1;
}

/* One expected tensor, CASE.TYPE or CASE.TYPE.w; false: another kind of tensor. */
static bool check_encoded(const hy_safetensors_entry *expected) {
    const hy_safetensors_entry *numbers, *weights;
    const char *dot = strchr(expected->name, '.'), *end = strchr(dot + 1, '.');
    int type = type_of(dot + 1, end ? (size_t)(end - dot - 1) : strlen(dot + 1));
    if (type < 0 || strncmp(expected->name, "decode.", 7) == 0) return false;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(dot - expected->name), expected->name);
    float *x = read_named(name, ".x", &numbers), *importance = read_named(name, ".w", &weights);
    uint8_t *want = read_tensor(expected), *out = malloc(expected->bytes);
    ck_assert_uint_eq(hy_blocks_bytes(type, numbers->shape[0] * numbers->shape[1]),
                      expected->bytes);
    hy_blocks_encode(type, x, numbers->shape[0], numbers->shape[1], end ? importance : NULL, out);
    for (uint64_t i = 0; i < expected->bytes; i++) {
        ck_assert_msg(out[i] == want[i], "%s: byte %llu is %d instead of %d", expected->name,
                      (unsigned long long)i, out[i], want[i]);
    }
    free(x);
    free(importance);
    free(want);
    free(out);
    return true;
}

START_TEST(encoded_bytes_equal_those_of_gguf_and_llama_cpp) {
    int count = 0;
    for (size_t i = 0; i < hy_safetensors_count(golden); i++) {
        count += check_encoded(hy_safetensors_at(golden, i));
    }
    ck_assert_int_eq(count, 12 * 15 + 9 + 4);
}
END_TEST

START_TEST(decoded_numbers_equal_those_of_gguf) {
    int count = 0;
    for (int type = 0; type < HY_BLOCK_TYPES; type++) {
        const hy_block_traits *traits = hy_block_traits_of((uint32_t)type);
        if (!traits || !traits->can_decode || type == HY_BLOCK_F32) continue;
        const hy_safetensors_entry *coded, *numbers;
        char name[64] = "decode.";
        for (size_t i = 0; traits->name[i]; i++) name[7 + i] = (char)toupper(traits->name[i]);
        uint8_t *blocks = read_named(name, "", &coded);
        float *want = read_named(name, ".x", &numbers), *out = malloc(numbers->bytes);
        hy_blocks_decode(type, blocks, numbers->shape[0], out);
        for (int64_t i = 0; i < numbers->shape[0]; i++) {
            ck_assert_msg(!memcmp(&out[i], &want[i], 4) || (isnan(out[i]) && isnan(want[i])),
                          "%s: number %d is %g instead of %g", name, (int)i, out[i], want[i]);
        }
        free(blocks);
        free(want);
        free(out);
        count++;
    }
    ck_assert_int_eq(count, 15);
}
END_TEST

/* ---- without golden files -------------------------------------------------------------------- */

START_TEST(sizes_are_known_for_all_types_and_others_are_not_types) {
    static const uint32_t removed[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 44, 0xffffffff};
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++) {
        ck_assert_ptr_null(hy_block_traits_of(removed[i]));
    }
    const hy_block_traits *codebook = hy_block_traits_of(16);
    ck_assert_str_eq(codebook->name, "iq2_xxs");
    ck_assert(!codebook->can_decode && !codebook->can_encode);
    ck_assert_int_eq(codebook->bytes, 66);
    ck_assert_uint_eq(hy_blocks_bytes(HY_BLOCK_Q4_K, (int64_t)1 << 40), ((uint64_t)144 << 32));
}
END_TEST

START_TEST(whole_numbers_survive_q8_0_and_ties_round_away_from_zero) {
    float x[32] = {127, -126, 0.5f, -0.5f, 1.5f, -1.5f, 2.4999998f, 0.49999997f}, again[32];
    static const float want[32] = {127, -126, 1, -1, 2, -2, 2, 0};
    uint8_t out[34];
    hy_blocks_encode(HY_BLOCK_Q8_0, x, 1, 32, NULL, out);
    hy_blocks_decode(HY_BLOCK_Q8_0, out, 32, again);
    for (int i = 0; i < 32; i++) ck_assert_float_eq(again[i], want[i]);
}
END_TEST

/* The last error of a type, relative to the largest number of a normal row. */
START_TEST(more_bits_have_a_smaller_error) {
    static const hy_block_type by_size[] = {HY_BLOCK_Q4_0, HY_BLOCK_Q4_K, HY_BLOCK_Q5_K,
                                            HY_BLOCK_Q6_K, HY_BLOCK_Q8_0, HY_BLOCK_BF16,
                                            HY_BLOCK_F16,  HY_BLOCK_F32};
    float x[512], again[512];
    uint8_t out[2048];
    for (int i = 0; i < 512; i++) x[i] = sinf((float)(i * i)) * 0.02f;
    double last = INFINITY;
    for (size_t t = 0; t < sizeof by_size / sizeof *by_size; t++) {
        double error = 0;
        hy_blocks_encode(by_size[t], x, 1, 512, NULL, out);
        hy_blocks_decode(by_size[t], out, 512, again);
        for (int i = 0; i < 512; i++) error += (x[i] - again[i]) * (double)(x[i] - again[i]);
        ck_assert_double_lt(error, last);
        last = error;
    }
    ck_assert_double_eq(last, 0);
}
END_TEST

START_TEST(importance_moves_the_error_to_columns_that_do_not_matter) {
    static const hy_block_type types[] = {HY_BLOCK_Q4_0, HY_BLOCK_Q4_1, HY_BLOCK_Q5_0,
                                          HY_BLOCK_Q5_1, HY_BLOCK_Q4_K, HY_BLOCK_Q5_K,
                                          HY_BLOCK_Q6_K};
    float x[512], importance[512], again[512];
    uint8_t out[2048];
    for (int i = 0; i < 512; i++) {
        x[i] = sinf((float)(i * i));
        importance[i] = i % 4 ? 1e-4f : 1;
    }
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        double error[2] = {0};
        for (int is_weighted = 0; is_weighted < 2; is_weighted++) {
            hy_blocks_encode(types[t], x, 1, 512, is_weighted ? importance : NULL, out);
            hy_blocks_decode(types[t], out, 512, again);
            for (int i = 0; i < 512; i += 4) {
                error[is_weighted] += (x[i] - again[i]) * (double)(x[i] - again[i]);
            }
        }
        ck_assert_double_lt(error[1], 0.9 * error[0]);
    }
}
END_TEST

/* All bytes equal, and a sequence that visits every value of every byte. */
START_TEST(any_bytes_decode) {
    float out[256];
    for (int type = 0; type < HY_BLOCK_TYPES; type++) {
        const hy_block_traits *traits = hy_block_traits_of((uint32_t)type);
        if (!traits || !traits->can_decode) continue;
        size_t bytes = hy_blocks_bytes(type, 256);
        uint8_t *memory = malloc(bytes + 1), *blocks = memory + 1; /* not aligned */
        for (int value = 0; value < 512; value++) {
            for (size_t i = 0; i < bytes; i++) {
                blocks[i] = (uint8_t)(value < 256 ? value : value + (int)i * (value | 1));
            }
            hy_blocks_decode(type, blocks, 256, out);
        }
        free(memory);
    }
}
END_TEST

START_TEST(numbers_that_a_scale_cannot_hold_are_found) {
    static const hy_block_type types[] = {HY_BLOCK_F16,  HY_BLOCK_Q4_0, HY_BLOCK_Q5_1,
                                          HY_BLOCK_Q8_0, HY_BLOCK_Q4_K, HY_BLOCK_Q6_K};
    uint8_t out[2048];
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        float x[512];
        for (int i = 0; i < 512; i++) x[i] = (float)(i % 7) - 3;
        hy_blocks_encode(types[t], x, 1, 512, NULL, out);
        ck_assert(hy_blocks_are_finite(types[t], out, 512));
        static const float wrong[] = {1e10f, -1e12f, 3e38f, INFINITY, NAN};
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            x[300] = wrong[i];
            hy_blocks_encode(types[t], x, 1, 512, NULL, out);
            if (i < 2) ck_assert(!hy_blocks_are_finite(types[t], out, 512));
        }
    }
    float special[] = {1, INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(hy_blocks_are_finite(HY_BLOCK_F32, special + i, 1), i == 0);
    }
}
END_TEST

/* ---- mixes ----------------------------------------------------------------------------------- */

static hy_block_type type_of_letter(char letter) {
    static const struct {
        char letter;
        hy_block_type type;
    } letters[] = {{'f', HY_BLOCK_F32},  {'h', HY_BLOCK_F16},  {'b', HY_BLOCK_BF16},
                   {'4', HY_BLOCK_Q4_0}, {'a', HY_BLOCK_Q4_1}, {'5', HY_BLOCK_Q5_0},
                   {'c', HY_BLOCK_Q5_1}, {'8', HY_BLOCK_Q8_0}, {'k', HY_BLOCK_Q4_K},
                   {'l', HY_BLOCK_Q5_K}, {'m', HY_BLOCK_Q6_K}};
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++) {
        if (letters[i].letter == letter) return letters[i].type;
    }
    ck_abort_msg("unknown letter %c", letter);
}

/* The tensor of every layer; make_blocks.py describes the line. Returns how many. */
static int check_mix_line(const char *line) {
    char arch[32], mix_name[16], pattern[64], letters[128], name[96];
    int layers, heads, kv_heads, is_tied;
    long long rows, cols;
    int read = sscanf(line, "%31s %d %d %d %d %15s %63s %lld %lld %127s", arch, &layers, &heads,
                      &kv_heads, &is_tied, mix_name, pattern, &rows, &cols, letters);
    ck_assert_msg(read == 10, "%s", line);
    const hy_gguf_mix *mix = hy_gguf_mix_find(mix_name);
    ck_assert_ptr_nonnull(mix);
    hy_gguf_mix_model model = {arch, layers, heads, kv_heads, is_tied};
    int layer = 0;
    for (; letters[layer]; layer++) {
        char *mark = strchr(pattern, '#');
        snprintf(name, sizeof name, "%s", pattern);
        if (mark) {
            snprintf(name, sizeof name, "%.*s%d%s", (int)(mark - pattern), pattern, layer,
                     mark + 1);
        }
        hy_block_type got = hy_gguf_mix_type(mix, &model, name, rows, cols);
        hy_block_type want = type_of_letter(letters[layer]);
        ck_assert_msg(got == want, "layer %d is %s instead of %s: %s", layer,
                      hy_block_traits_of(got)->name, hy_block_traits_of(want)->name, line);
    }
    return layer;
}

/* HYBRID_MIX_CASES names another file of such lines. */
START_TEST(every_tensor_has_the_type_that_llama_cpp_gives_it) {
    char path[512], line[512];
    const char *other = getenv("HYBRID_MIX_CASES");
    snprintf(path, sizeof path, "%s/tests/golden/gguf/mixes.txt", HY_SOURCE_DIR);
    FILE *file = fopen(other ? other : path, "r");
    ck_assert_ptr_nonnull(file);
    int tensors = 0;
    while (fgets(line, sizeof line, file)) tensors += check_mix_line(line);
    fclose(file);
    if (other) printf("%d tensors have llama.cpp's type\n", tensors);
    ck_assert_int_gt(tensors, 1000);
}
END_TEST

START_TEST(mixes_are_found_by_name) {
    size_t count = 0;
    for (const hy_gguf_mix *mix; (mix = hy_gguf_mix_at(count)); count++) {
        ck_assert_ptr_eq(hy_gguf_mix_find(mix->name), mix);
        ck_assert(hy_block_traits_of(mix->type)->can_encode);
    }
    ck_assert_uint_eq(count, 9);
    ck_assert_ptr_null(hy_gguf_mix_find("q4_k"));
    ck_assert_ptr_null(hy_gguf_mix_find(""));
    ck_assert_uint_eq(hy_gguf_mix_find("q4_k_m")->file_type, 15);
}
END_TEST

/* A tensor of 1024 blocks of 32 numbers, with an error of so many thousandths. */
static hy_tensor_cost cost_of(hy_block_type type, double thousandths) {
    return (hy_tensor_cost){type, 32768, {thousandths / 1000, thousandths > 0}};
}

START_TEST(the_tensors_that_lose_most_get_larger_types_within_the_room) {
    hy_tensor_cost list[] = {cost_of(HY_BLOCK_Q4_0, 2), cost_of(HY_BLOCK_Q4_0, 9),
                             cost_of(HY_BLOCK_Q4_0, 0), cost_of(HY_BLOCK_Q8_0, 9),
                             cost_of(HY_BLOCK_Q4_K, 3), cost_of(HY_BLOCK_Q4_0, 1)};
    hy_tensor_costs costs = {list, sizeof list / sizeof *list};
    ck_assert_int_eq(hy_gguf_raise(&costs, 4095), 0); /* one bit of each number is 4096 bytes */
    ck_assert_int_eq(hy_gguf_raise(&costs, 2 * 4096), 2);
    hy_block_type larger[] = {HY_BLOCK_Q4_0, HY_BLOCK_Q5_0, HY_BLOCK_Q4_0,
                              HY_BLOCK_Q8_0, HY_BLOCK_Q5_K, HY_BLOCK_Q4_0};
    for (int i = 0; i < costs.count; i++) ck_assert_int_eq(list[i].type, larger[i]);
    ck_assert_int_eq(hy_gguf_raise(&costs, 1 << 20), 7); /* to the end */
    for (int i = 0; i < costs.count; i++)
        ck_assert_int_eq(list[i].type, i == 2 ? HY_BLOCK_Q4_0 : HY_BLOCK_Q8_0);
}
END_TEST

static Suite *blocks_suite(void) {
    Suite *suite = suite_create("blocks");
    TCase *made = tcase_create("golden");
    tcase_add_checked_fixture(made, open_golden, close_golden);
    tcase_add_test(made, encoded_bytes_equal_those_of_gguf_and_llama_cpp);
    tcase_add_test(made, decoded_numbers_equal_those_of_gguf);
    suite_add_tcase(suite, made);
    TCase *alone = tcase_create("blocks");
    tcase_add_test(alone, sizes_are_known_for_all_types_and_others_are_not_types);
    tcase_add_test(alone, whole_numbers_survive_q8_0_and_ties_round_away_from_zero);
    tcase_add_test(alone, more_bits_have_a_smaller_error);
    tcase_add_test(alone, importance_moves_the_error_to_columns_that_do_not_matter);
    tcase_add_test(alone, any_bytes_decode);
    tcase_add_test(alone, numbers_that_a_scale_cannot_hold_are_found);
    suite_add_tcase(suite, alone);
    TCase *mixes = tcase_create("mixes");
    tcase_add_test(mixes, every_tensor_has_the_type_that_llama_cpp_gives_it);
    tcase_add_test(mixes, mixes_are_found_by_name);
    tcase_add_test(mixes, the_tensors_that_lose_most_get_larger_types_within_the_room);
    suite_add_tcase(suite, mixes);
    return suite;
}

HY_TEST_MAIN(blocks_suite)
