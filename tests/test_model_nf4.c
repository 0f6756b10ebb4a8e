/* test_model_nf4.c: NF4 values and their scales: compared with numbers worked out by hand, and bit
 * for bit with those of bitsandbytes for the same matrices (golden/make_nf4.py).
 *
 * HYBRID_NF4_CASES names another file of such cases (tests/nf4/run.sh). */
#include "harness.h"

#include <math.h>

#include "formats/safetensors.h"
#include "kernels/coded.h"
#include "kernels/half.h"
#include "model/coding.h"

/* ---- by hand --------------------------------------------------------------------------------- */

START_TEST(levels_map_to_themselves_and_even_elements_use_the_high_bits) {
    static const float levels[16] = {HY_NF4_LEVELS};
    float x[HY_NF4_BLOCK], again[HY_NF4_BLOCK], scale;
    uint8_t codes[HY_NF4_BLOCK / 2];
    for (int i = 0; i < HY_NF4_BLOCK; i++) x[i] = 4 * levels[i % 16];
    scale = hy_nf4_encode(x, codes);
    ck_assert_float_eq(scale, 4);
    for (int i = 0; i < HY_NF4_BLOCK / 2; i++) ck_assert_uint_eq(codes[i], 0x01 + i % 8 * 0x22);
    hy_nf4_decode(codes, 0, HY_NF4_BLOCK, &scale, again);
    ck_assert_mem_eq(x, again, sizeof x);
    hy_nf4_decode(codes + 3, 6, 11, &scale, again); /* some of them, an odd number */
    ck_assert_mem_eq(x + 6, again, 11 * sizeof *x);
    ck_assert_float_eq(again[11], x[11]);
}
END_TEST

START_TEST(a_number_between_two_levels_goes_to_the_nearer_and_a_tie_to_the_lower) {
    static const float levels[16] = {HY_NF4_LEVELS};
    float x[HY_NF4_BLOCK] = {1};
    uint8_t codes[HY_NF4_BLOCK / 2];
    for (int i = 0; i < 15; i++) {
        float middle = (levels[i] + levels[i + 1]) / 2;
        x[2 + 2 * i] = middle;
        x[3 + 2 * i] = nextafterf(middle, 2);
    }
    ck_assert_float_eq(hy_nf4_encode(x, codes), 1);
    ck_assert_uint_eq(codes[0], 0xf7);
    for (int i = 0; i < 15; i++) ck_assert_uint_eq(codes[1 + i], i << 4 | (i + 1));
}
END_TEST

START_TEST(zeros_stay_zeros_whatever_their_scale) {
    float x[HY_NF4_BLOCK] = {0}, again[HY_NF4_BLOCK], scale = 3;
    uint8_t codes[HY_NF4_BLOCK / 2];
    ck_assert_float_eq(hy_nf4_encode(x, codes), 0);
    for (int i = 0; i < HY_NF4_BLOCK / 2; i++) ck_assert_uint_eq(codes[i], HY_NF4_ZERO);
    hy_nf4_decode(codes, 0, HY_NF4_BLOCK, &scale, again);
    ck_assert_mem_eq(x, again, sizeof x);
}
END_TEST

/* 1, 2, 3, 4: their mean is 2.5, the largest distance from it 1.5; shares of that are -1, -1/3, 1/3
 * and 1, and the nearest numbers of the map -0.99296874, -0.33203125, 0.33203125 and 1. */
START_TEST(scales_have_eight_bits_around_their_mean) {
    float scales[4] = {1, 2, 3, 4}, pairs[4];
    uint8_t codes[4];
    ck_assert_float_eq(hy_nf4_offset(scales, 4), 2.5f);
    hy_nf4_put_scales(scales, 4, 2.5f, 2, pairs, codes);
    for (int i = 0; i < 4; i++) ck_assert_float_eq(pairs[i], i % 2 ? 2.5f : 1.5f);
    ck_assert_float_eq(hy_nf4_scale(pairs, codes[0]), 2.5f - 0.99296874f * 1.5f);
    ck_assert_float_eq(hy_nf4_scale(pairs, codes[1]), 2.5f - 0.33203125f * 1.5f);
    ck_assert_float_eq(hy_nf4_scale(pairs + 2, codes[2]), 2.5f + 0.33203125f * 1.5f);
    ck_assert_float_eq(hy_nf4_scale(pairs + 2, codes[3]), 4);
    ck_assert_uint_eq(codes[0], 0);
    ck_assert_uint_eq(codes[3], 255);
    ck_assert_uint_eq(codes[1] + codes[2], 254); /* mirrored around 127, which is 0 */
    hy_nf4_put_scales(scales, 1, 1, 1, pairs, codes);
    ck_assert_uint_eq(codes[0], 0); /* nothing is left beside the mean */
    ck_assert_float_eq(hy_nf4_scale(pairs, codes[0]), 1);
}
END_TEST

/* Numbers near a border of the map, whose codes are those of the nearest step of the grid:
 * bitsandbytes has these, and the number nearest to each is the other neighbour. */
START_TEST(codes_of_scales_are_looked_up_on_a_grid) {
    static const float scales[] = {
        1, 0.080315754f, -0.0021278337f, 0.606243f, -0.09436625f, 0.38125324f, -8.865477e-05f};
    static const uint8_t expected[] = {255, 183, 110, 227, 65, 210, 121};
    uint8_t codes[7];
    hy_nf4_put_scales(scales, 7, 0, 1, (float[14]){0}, codes);
    ck_assert_mem_eq(codes, expected, sizeof codes);
}
END_TEST

/* The span of some blocks, and scales opened from it, are those of all. */
START_TEST(scales_of_some_blocks_are_found_among_all) {
    enum { BLOCKS = 24, GROUP = 4 };
    float scales[BLOCKS], all[BLOCKS], some[BLOCKS];
    _Alignas(float) char stored[BLOCKS / GROUP * 8 + BLOCKS];
    _Alignas(float) char held[sizeof stored];
    for (int i = 0; i < BLOCKS; i++) scales[i] = (float)(i * i % 17);
    uint8_t *codes = (uint8_t *)stored + BLOCKS / GROUP * 8;
    hy_nf4_put_scales(scales, BLOCKS, 8, GROUP, (float *)(void *)stored, codes);
    ck_assert_uint_eq(hy_scale_bytes(BLOCKS, GROUP), sizeof stored);
    hy_coded_open_scales(GROUP, 0, BLOCKS, stored, all);
    for (int first = 0; first < BLOCKS; first++) {
        for (int count = 1; first + count <= BLOCKS; count++) {
            hy_scale_span span = hy_coded_span(BLOCKS, GROUP, first, count);
            memcpy(held, stored + span.pairs_at, span.pairs_bytes);
            memcpy(held + span.pairs_bytes, stored + span.rest_at, span.rest_bytes);
            hy_coded_open_scales(GROUP, first, count, held, some);
            ck_assert_mem_eq(some, all + first, (size_t)count * sizeof *some);
        }
    }
}
END_TEST

static hy_status read_numbers(void *context, int64_t first, int64_t count, float *out) {
    (void)context;
    for (int64_t i = 0; i < count; i++) out[i] = cosf((float)(first + i));
    return HY_OK;
}

/* Experts are (E, out, in): their rows are those of one matrix (E out, in). */
START_TEST(a_stack_of_matrices_is_quantised_as_the_matrix_of_its_rows) {
    enum { E = 3, OUT = 8, IN = 128 };
    static const hy_dtype types[] = {HY_NF4, HY_I8, HY_E4M3};
    const hy_param
        stack = {.ndim = 3, .shape = {E, OUT, IN}, .count = E * OUT * IN, .stored = E * OUT * IN},
        matrix = {.ndim = 2, .shape = {E * OUT, IN}, .count = E * OUT * IN, .stored = E * OUT * IN};
    ck_assert_int_eq(hy_param_stored_rows(&stack), E * OUT);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const hy_param *both[] = {&stack, &matrix};
        char codes[2][E * OUT * IN * 2];
        memset(codes, 0, sizeof codes);
        for (int k = 0; k < 2; k++) {
            hy_layout_item item = {.dtype = types[i], .count = stack.count};
            item.block = hy_param_block(both[k], types[i]);
            item.group = hy_param_group(both[k], types[i]);
            hy_coding_target to = {.memory = codes[k]};
            must(hy_coding_run(both[k], &item, &(hy_coding_source){.read = read_numbers}, &to));
        }
        ck_assert_mem_eq(codes[0], codes[1], sizeof codes[0]);
        ck_assert_int_ne(codes[0][0], 0);
        ck_assert_int_eq(hy_param_block(&stack, types[i]), hy_param_block(&matrix, types[i]));
    }
}
END_TEST

/* ---- against bitsandbytes -------------------------------------------------------------------- */

typedef struct made_case {
    const hy_safetensors *file;
    int index;
    hy_param param;
    hy_layout_item item;
    float *x;
    uint8_t *codes;    /* ours, */
    float *scales;     /* in fp32, */
    const void *store; /* and as a store has them */
} made_case;

/* A tensor of a case, to be freed; NULL: the file has none. */
static void *tensor_of(const made_case *c, int piece, const char *word, uint64_t *bytes) {
    char name[64];
    snprintf(name, sizeof name, "%d.%d.%s", c->index, piece, word);
    const hy_safetensors_entry *entry = hy_safetensors_find(c->file, name);
    if (!entry) return NULL;
    void *data = malloc(entry->bytes);
    must(hy_safetensors_read(c->file, entry, 0, data, entry->bytes));
    *bytes = entry->bytes;
    return data;
}

/* The case's numbers in fp32, and the pieces that they are. False: there is no such case. */
static bool open_case(made_case *c) {
    char name[64];
    uint64_t bytes;
    snprintf(name, sizeof name, "%d.x", c->index);
    const hy_safetensors_entry *entry = hy_safetensors_find(c->file, name);
    if (!entry) return false;
    hy_param *p = &c->param;
    *p = (hy_param){.ndim = 2, .shape = {entry->shape[0], entry->shape[1]}};
    p->count = entry->shape[0] * entry->shape[1];
    c->x = malloc((size_t)p->count * sizeof *c->x);
    uint16_t *raw = malloc(entry->bytes);
    must(hy_safetensors_read(c->file, entry, 0, raw, entry->bytes));
    if (entry->dtype == HY_F32) memcpy(c->x, raw, entry->bytes);
    for (int64_t i = 0; entry->dtype == HY_BF16 && i < p->count; i++)
        c->x[i] = hy_bf16_to_f32(raw[i]);
    free(raw);
    for (void *codes; p->pieces < HY_PARAM_PIECES; p->pieces++) {
        if (!(codes = tensor_of(c, p->pieces, "codes", &bytes))) break;
        p->piece_rows[p->pieces] = 2 * (int64_t)bytes / p->shape[1];
        free(codes);
    }
    c->item = (hy_layout_item){.dtype = HY_NF4,
                               .count = p->count,
                               .block = hy_param_block(p, HY_NF4),
                               .group = hy_param_group(p, HY_NF4)};
    return true;
}

/* The numbers that a piece's codes stand for are theirs, in every type that the file has. */
static void check_numbers(const made_case *c, int piece, int64_t first, int64_t count,
                          const float *scales) {
    uint64_t bytes;
    float *x = malloc((size_t)count * sizeof *x);
    hy_nf4_decode(c->codes + first / 2, first, count, scales, x);
    float *exact = tensor_of(c, piece, "fp32", &bytes);
    uint16_t *bf16 = tensor_of(c, piece, "bf16", &bytes),
             *f16 = tensor_of(c, piece, "fp16", &bytes);
    for (int64_t i = 0; i < count; i++) {
        if (exact) ck_assert_mem_eq(&exact[i], &x[i], sizeof *x);
        if (bf16) ck_assert_uint_eq(bf16[i], hy_f32_to_bf16(x[i]));
        if (f16) ck_assert_uint_eq(f16[i], hy_f32_to_f16(x[i]));
    }
    free(exact);
    free(bf16);
    free(f16);
    free(x);
}

/* Scales by their offset: with its last bit the rest is theirs. */
static void check_scales(const made_case *c, int piece, int64_t first, int64_t blocks,
                         float offset) {
    uint64_t bytes;
    float *pairs = malloc((size_t)blocks * 2 * sizeof *pairs), *opened = malloc((size_t)blocks * 4);
    uint8_t *codes = malloc((size_t)blocks), *theirs = tensor_of(c, piece, "scales", &bytes);
    ck_assert_int_eq((int64_t)bytes, blocks);
    hy_nf4_put_scales(c->scales + first, blocks, offset, 1, pairs, codes);
    ck_assert_mem_eq(theirs, codes, (size_t)blocks);
    float *nested = tensor_of(c, piece, "nested", &bytes);
    for (int64_t i = 0; i < blocks; i++) {
        ck_assert_mem_eq(&nested[i / HY_NF4_NESTED], &pairs[2 * i], sizeof *nested);
        opened[i] = hy_nf4_scale(pairs + 2 * i, codes[i]);
    }
    check_numbers(c, piece, first * HY_NF4_BLOCK, blocks * HY_NF4_BLOCK, opened);
    free(pairs);
    free(opened);
    free(codes);
    free(theirs);
    free(nested);
}

/* What a store has for a piece: ours where the mean is theirs to the last bit. */
static void check_stored(const made_case *c, int piece, int64_t first, int64_t blocks) {
    uint64_t bytes;
    int64_t all = c->param.count / HY_NF4_BLOCK;
    int32_t group = c->item.group;
    const float *pairs = c->store;
    const uint8_t *codes = (const uint8_t *)(pairs + all / group * 2);
    uint8_t *theirs = tensor_of(c, piece, "scales", &bytes);
    float *nested = tensor_of(c, piece, "nested", &bytes);
    ck_assert_mem_eq(theirs, codes + first, (size_t)blocks);
    for (int64_t i = 0; i < blocks; i++) {
        ck_assert_mem_eq(&nested[i / HY_NF4_NESTED], &pairs[(first + i) / group * 2],
                         sizeof *nested);
    }
    free(theirs);
    free(nested);
}

/* Returns whether the offset has their last bit too. */
static bool check_piece(const made_case *c, int piece, int64_t first) {
    uint64_t bytes;
    int64_t count = c->param.piece_rows[piece] * c->param.shape[1], block = first / HY_NF4_BLOCK;
    uint8_t *codes = tensor_of(c, piece, "codes", &bytes);
    float *offset = tensor_of(c, piece, "offset", &bytes);
    ck_assert_mem_eq(codes, c->codes + first / 2, (size_t)count / 2);
    float ours = ((const float *)c->store)[block / c->item.group * 2 + 1];
    ck_assert_msg(fabsf(ours - *offset) <= 3e-7f * fabsf(ours) + 3e-45f,
                  "case %d: offset %a, theirs %a", c->index, (double)ours, (double)*offset);
    bool is_equal = ours == *offset;
    check_scales(c, piece, block, count / HY_NF4_BLOCK, *offset);
    if (is_equal) check_stored(c, piece, block, count / HY_NF4_BLOCK);
    free(codes);
    free(offset);
    return is_equal;
}

/* Rows are given from the last on, a few at a time. */
static void code_case(made_case *c, hy_coding *coding) {
    int64_t cols = c->param.shape[1];
    c->codes = malloc((size_t)c->param.count / 2);
    must(hy_coding_begin(coding, &c->param, &c->item));
    for (int64_t end = c->param.shape[0]; end > 0;) {
        int64_t rows = end < 7 ? end : 7, at = (end - rows) * cols;
        hy_coding_rows(coding, c->x + at, at, rows * cols, c->codes + at / 2);
        end -= rows;
    }
    c->scales = coding->scales;
    c->store = hy_coding_scales(coding);
}

START_TEST(codes_scales_and_numbers_are_those_of_bitsandbytes) {
    const char *other = getenv("HYBRID_NF4_CASES");
    char path[512];
    int pieces = 0, equal = 0;
    hy_safetensors *file;
    snprintf(path, sizeof path, "%s/tests/golden/nf4.safetensors", HY_SOURCE_DIR);
    must(hy_safetensors_open(other ? other : path, &file));
    made_case c = {.file = file};
    for (; open_case(&c); c.index++) {
        hy_coding coding;
        code_case(&c, &coding);
        int64_t first = 0;
        for (int32_t i = 0; i < c.param.pieces; i++, pieces++) {
            equal += check_piece(&c, i, first);
            first += c.param.piece_rows[i] * c.param.shape[1];
        }
        ck_assert_int_eq(first, c.param.count);
        hy_coding_end(&coding);
        free(c.codes);
        free(c.x);
    }
    ck_assert_int_ge(c.index, 9);
    ck_assert_int_gt(equal, 0);
    if (other) printf("%d of %d offsets are equal to the last bit\n", equal, pieces);
    hy_safetensors_close(file);
}
END_TEST

static Suite *nf4_suite(void) {
    Suite *suite = suite_create("nf4");
    TCase *tests = tcase_create("nf4");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, levels_map_to_themselves_and_even_elements_use_the_high_bits);
    tcase_add_test(tests, a_number_between_two_levels_goes_to_the_nearer_and_a_tie_to_the_lower);
    tcase_add_test(tests, zeros_stay_zeros_whatever_their_scale);
    tcase_add_test(tests, scales_have_eight_bits_around_their_mean);
    tcase_add_test(tests, codes_of_scales_are_looked_up_on_a_grid);
    tcase_add_test(tests, scales_of_some_blocks_are_found_among_all);
    tcase_add_test(tests, a_stack_of_matrices_is_quantised_as_the_matrix_of_its_rows);
    tcase_add_test(tests, codes_scales_and_numbers_are_those_of_bitsandbytes);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(nf4_suite)
