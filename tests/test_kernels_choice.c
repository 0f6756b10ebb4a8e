/* test_kernels_choice.c: the choice of attention kernels for a shape, as lines in tables and
 * caches. */
#include "harness.h"

#include "kernels/attention_choice.h"

#define CARD "NVIDIA_H200/sm_90/132"
#define FORWARD CARD "/cudnn-91900 attention-forward/64x1024/12-4x64/bf16 cudnn 377.0 301.2\n"
#define BACKWARD CARD "/cudnn-91900 attention-backward/8x2048/16-16x128/fp16 own 900.5 1000.0\n"
/* A matmul's line, as it stands before them. */
#define MATMUL CARD "/cublasLt-130100 8x8x8/nn/bf16-bf16/16 fast 12.0 00ff\n"

static hy_attention_key forward_key(void) {
    return (hy_attention_key){
        .kind = HY_OP_ATTENTION, .dtype = HY_BF16, .B = 64, .T = 1024, .H = 12, .K = 4, .D = 64};
}

/* What a table of this text says of the forward pass above: 1 cuDNN, 0 our own, -1 nothing. */
static int said(const char *text, const char *card, int version) {
    hy_attention_entries entries = {0};
    hy_attention_entry like = {.version = version, .key = forward_key()};
    snprintf(like.card, sizeof like.card, "%s", card);
    ck_assert(hy_attention_read_table(&entries, text, card, version));
    const hy_attention_entry *found = hy_attention_find(&entries, &like);
    int answer = found ? found->is_cudnn : -1;
    hy_attention_clear(&entries);
    return answer;
}

START_TEST(a_line_is_read_as_it_was_written) {
    static const char *const lines[] = {FORWARD, BACKWARD};
    for (int i = 0; i < 2; i++) {
        hy_attention_entry e;
        char again[HY_ATTENTION_LINE];
        ck_assert(hy_attention_read(lines[i], &e));
        ck_assert_str_eq(e.card, CARD);
        ck_assert_int_eq(e.version, 91900);
        ck_assert_int_eq(e.is_cudnn, i == 0);
        hy_attention_print(&e, again, sizeof again);
        ck_assert_str_eq(again, lines[i]);
    }
    hy_attention_entry e;
    hy_attention_key key = forward_key();
    ck_assert(hy_attention_read(FORWARD, &e) && hy_attention_key_equal(&e.key, &key));
    ck_assert(hy_attention_read(BACKWARD, &e) && !hy_attention_key_equal(&e.key, &key));
    ck_assert(e.key.kind == HY_OP_ATTENTION_BWD && e.key.dtype == HY_F16 && e.key.D == 128);
}
END_TEST

START_TEST(a_damaged_line_is_passed_over) {
    static const char *const damaged[] = {
        "",
        "\n",
        "attention",
        MATMUL,
        CARD "/cudnn-91900 attention-forward/64x1024/12-4x64/bf16 cudnn 377.0\n",
        CARD "/cudnn-91900 attention-forward/64x1024/12-4x64/bf16 cudnn 377.0 301.2 more\n",
        CARD "/cudnn-91900 attention-forward/64x1024/12-4x64/bf16 theirs 377.0 301.2\n",
        CARD "/cudnn-91900 attention-sideways/64x1024/12-4x64/bf16 cudnn 377.0 301.2\n",
        CARD "/cudnn-91900 attention-forward/64x1024/12-4x64/fp32 cudnn 377.0 301.2\n",
        CARD "/cudnn-91900 attention-forward/0x1024/12-4x64/bf16 cudnn 377.0 301.2\n",
        CARD "/cudnn-91900 attention-forward/64x99999999999/12-4x64/bf16 cudnn 377.0 301.2\n",
        CARD "/cudnn-91900 attention-forward/64x1024/12-4x64/bf16 cudnn -1 301.2\n",
        CARD "/cudnn-91900 attention-forward/64x1024/12-4x64/bf16 cudnn nan 301.2\n",
        CARD "/cudnn-919b0 attention-forward/64x1024/12-4x64/bf16 cudnn 377.0 301.2\n",
        CARD "/cudnn--1 attention-forward/64x1024/12-4x64/bf16 cudnn 377.0 301.2\n",
        "/cudnn-91900 attention-forward/64x1024/12-4x64/bf16 cudnn 377.0 301.2\n",
        "card attention-forward/64x1024/12-4x64/bf16 cudnn 377.0 301.2\n",
    };
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        hy_attention_entry e;
        char text[1024];
        ck_assert_msg(!hy_attention_read(damaged[i], &e), "%s", damaged[i]);
        snprintf(text, sizeof text, "%s\n" FORWARD, damaged[i]);
        ck_assert_int_eq(said(text, CARD, 91900), 1);
    }
}
END_TEST

START_TEST(a_table_is_read_among_lines_of_matmuls_and_without_a_last_newline) {
    char text[1024], longer[2048];
    snprintf(text, sizeof text, MATMUL BACKWARD MATMUL FORWARD);
    ck_assert_int_eq(said(text, CARD, 91900), 1);
    text[strlen(text) - 1] = 0;
    ck_assert_int_eq(said(text, CARD, 91900), 1);
    ck_assert_int_eq(said(MATMUL BACKWARD, CARD, 91900), -1);
    ck_assert_int_eq(said("", CARD, 91900), -1);
    memset(longer, 'x', 500); /* a line that is too long, then a good one */
    snprintf(longer + 500, sizeof longer - 500, "\n%s", text);
    ck_assert_int_eq(said(longer, CARD, 91900), 1);
    ck_assert_int_eq(said(FORWARD, "NVIDIA_H100/sm_90/132", 91900), -1);
    ck_assert_int_eq(said(FORWARD, "NVIDIA_H200/sm_90/13", 91900), -1);
    hy_attention_entries entries = {0};
    ck_assert(hy_attention_read_table(&entries, text, "NVIDIA_H100/sm_90/132", 91900));
    ck_assert_int_eq(entries.count, 0); /* nothing of another card is kept */
}
END_TEST

/* cuDNN's results are those of one version; our own are the same whichever cuDNN there is, or
 * none. */
START_TEST(a_cudnn_choice_is_kept_only_for_the_same_version_and_our_kernels_for_any) {
    static const char own[] =
        CARD "/cudnn-91900 attention-forward/64x1024/12-4x64/bf16 own 301.2 377.0\n";
    ck_assert_int_eq(said(FORWARD, CARD, 91901), -1);
    ck_assert_int_eq(said(FORWARD, CARD, 0), -1);
    ck_assert_int_eq(said(own, CARD, 91900), 0);
    ck_assert_int_eq(said(own, CARD, 91901), 0);
    ck_assert_int_eq(said(own, CARD, 0), 0);
}
END_TEST

START_TEST(a_later_choice_takes_the_place_of_an_earlier_one_of_its_shape_alone) {
    hy_attention_entries entries = {0};
    hy_attention_entry e;
    ck_assert(hy_attention_read(FORWARD, &e));
    for (int seq = 1; seq <= 100; seq++) {
        e.key.T = seq;
        e.is_cudnn = seq % 2;
        ck_assert(hy_attention_put(&entries, &e));
    }
    e.is_cudnn = true;
    ck_assert(hy_attention_put(&entries, &e));
    ck_assert_int_eq(entries.count, 100);
    ck_assert(hy_attention_find(&entries, &e)->is_cudnn);
    e.key.T = 50;
    ck_assert(!hy_attention_find(&entries, &e)->is_cudnn);
    e.version++; /* the cache keeps what was timed with another cuDNN */
    ck_assert_ptr_null(hy_attention_find(&entries, &e));
    hy_attention_clear(&entries);
}
END_TEST

static Suite *choice_suite(void) {
    Suite *suite = suite_create("kernels: whose attention");
    TCase *tests = tcase_create("choice");
    tcase_add_test(tests, a_line_is_read_as_it_was_written);
    tcase_add_test(tests, a_damaged_line_is_passed_over);
    tcase_add_test(tests, a_table_is_read_among_lines_of_matmuls_and_without_a_last_newline);
    tcase_add_test(tests, a_cudnn_choice_is_kept_only_for_the_same_version_and_our_kernels_for_any);
    tcase_add_test(tests, a_later_choice_takes_the_place_of_an_earlier_one_of_its_shape_alone);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(choice_suite)
