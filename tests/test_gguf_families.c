/* test_gguf_families.c: GGUF files of every model family as models, compared with transformers.
 *
 * Each folder of tests/golden/families that llama.cpp can run is written as a GGUF file and read
 * again as a run reads it. HYBRID_GGUF=DIR reads DIR/CASE.gguf instead, made by llama.cpp's
 * converter, and prints distances: the converter leaves out what llama.cpp cannot compute. */
#include "golden/families.h"
#include "hub/gguf_export.h"
#include "hub/gguf_names.h"

#define BOUND 1e-5
#define FUNCTION_BOUND 1e-3 /* files do not say which form of gelu a model has */

/* The form of gelu is compared, too: the reader takes that of the family. */
static void count_warning(void *user, hy_message_level level, const char *text) {
    *(int *)user += level == HY_WARNING && !strstr(text, "gelu");
}

static void count_gelu(void *user, hy_message_level level, const char *text) {
    *(int *)user += level == HY_WARNING && strstr(text, "computes gelu");
}

/* Writes the model of a folder as a file; false: llama.cpp cannot run it, or not all of it. */
static bool write_file(const golden *g, const char *path, const char *type) {
    int warnings = 0;
    hy_observer observer = {.on_message = count_warning, .user = &warnings};
    store_of of = {g, (hy_store *)&g->weights};
    hy_status status = hy_gguf_write(&(hy_hf_writing){.folder = path,
                                                      .shape = &g->model->shape,
                                                      .params = &g->model->params,
                                                      .type = type,
                                                      .dtype = HY_F32,
                                                      .read = read_store,
                                                      .context = &of,
                                                      .is_gguf = true,
                                                      .observer = &observer});
    bool is_refused = status == HY_ERR_INPUT && strstr(hy_error_message(), "llama.cpp cannot run");
    ck_assert_msg(status == HY_OK || is_refused, "%s: %s", g->name, hy_error_message());
    return status == HY_OK && warnings == 0;
}

START_TEST(a_gguf_file_has_the_logits_of_the_folder_that_it_was_made_of) {
    golden g;
    char folder[256], path[300];
    open_family(&g, cases[_i], folder_of(cases[_i]));
    snprintf(path, sizeof path, "%s/model.gguf", temp_folder(folder));
    bool is_written = write_file(&g, path, "f32");
    hy_mlp_function function = hy_shape_family(&g.model->shape)->base->more.function;
    bool is_usual = g.model->shape.more.function == function;
    close_golden(&g);
    if (is_written) {
        open_family(&g, cases[_i], path);
        double far = logits_far(&g), bound = is_usual ? BOUND : FUNCTION_BOUND;
        ck_assert_msg(far <= bound, "%s: the logits are off by %.2e", g.name, far);
        close_golden(&g);
    }
    remove_folder(folder);
}
END_TEST

START_TEST(most_families_have_a_file_and_an_exact_gelu_is_warned_of) {
    int files = 0, exact = 0, warned = 0;
    const hy_observer observer = {.on_message = count_gelu, .user = &warned};
    for (size_t i = 0; i < case_count; i++) {
        hy_shape shape;
        must(find_shape(folder_of(cases[i]), 8, &shape));
        bool is_file = hy_gguf_check(&shape, &observer) == HY_OK;
        files += is_file;
        exact += is_file && !shape.is_gated && shape.more.function == HY_MLP_GELU;
    }
    ck_assert_int_ge(files, 15);
    ck_assert_int_ge(exact, 1);
    ck_assert_int_eq(warned, exact);
}
END_TEST

static Suite *gguf_families_suite(void) {
    Suite *suite = suite_create("gguf_families");
    TCase *tc = tcase_create("models");
    int count;
    if (hy_dir_list(folder_of(""), &cases, &case_count) != HY_OK) exit(EXIT_FAILURE);
    count = (int)case_count;
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, a_gguf_file_has_the_logits_of_the_folder_that_it_was_made_of, 0, count);
    tcase_add_test(tc, most_families_have_a_file_and_an_exact_gelu_is_warned_of);
    suite_add_tcase(suite, tc);
    return suite;
}

HY_TEST_MAIN(gguf_families_suite)
