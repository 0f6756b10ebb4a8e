/* test_hf.c: models in Hugging Face's format, in and out.
 *
 * tests/golden/hf holds small random models as transformers saves them (make_hf.py there), with the logits
 * it computes. Here they are read, run and compared, written and read again. The rest turns every file
 * wrong in every way that was thought of and demands a message that names it. */
#include <math.h>

#include "hf_rig.h"

/* ---- against transformers ---------------------------------------------------------------------- */

START_TEST(logits_are_those_of_transformers) {
    hf_rig rig;
    open_hf(&rig, golden_folder(hf_cases[_i]), HY_F32);
    double far = logits_distance(&rig, golden_folder(hf_cases[_i]));
    ck_assert_msg(far <= 1e-4, "%s: the logits are off by %.2e", hf_cases[_i], far);
    close_hf(&rig);
}
END_TEST

/* Irregular: a norm takes away what is the same everywhere. */
static float change_of(int64_t k) { return 0.05f * (float)((uint32_t)k * 2654435761u >> 30); }

START_TEST(one_wrong_weight_is_seen) {
    hf_rig rig;
    open_hf(&rig, golden_folder(hf_cases[_i]), HY_F32);
    for (int32_t i = 0; i < rig.m.model->params.count; i++) {
        float *weight = hy_store_home(&rig.m.weights, i);
        int64_t count = rig.m.model->params.list[i].stored;
        for (int64_t k = 0; k < count; k++) weight[k] += change_of(k);
        double far = logits_distance(&rig, golden_folder(hf_cases[_i]));
        ck_assert_msg(far > 1e-3, "%s: the logits do not feel %s", hf_cases[_i],
                      rig.m.model->params.list[i].name);
        for (int64_t k = 0; k < count; k++) weight[k] -= change_of(k);
    }
    close_hf(&rig);
}
END_TEST

static Suite *hf_suite(void) {
    Suite *suite = suite_create("hf");
    TCase *tc = tcase_create("transformers");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, logits_are_those_of_transformers, 0, HF_CASES);
    tcase_add_loop_test(tc, one_wrong_weight_is_seen, 0, HF_CASES);
    suite_add_tcase(suite, tc);
    return suite;
}

HY_TEST_MAIN(hf_suite)
