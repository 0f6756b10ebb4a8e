/* test_trainer_state.c: checkpoints of runs whose state has other types and lies in other places. */
#include "small_run.h"

#include "formats/safetensors.h"
#include "kernels/half.h"
#include "trainer/trainer.h"

#define PLAIN "predictor", "none"
#define IN_FP32 PLAIN, "precision", "bf16", "master_dtype", "fp32"
#define IN_BF16 PLAIN, "precision", "bf16", "master_dtype", "bf16"

/* A parameter of a run, in fp32 whatever the run keeps. */
static float *values_of(hy_trainer *t, int32_t item) {
    const hy_param *param = &t->engine.model->params.list[item];
    hy_dtype dtype = hy_store_of(&t->engine, HY_ROW_MASTER)->layout.items[item].dtype;
    size_t count = (size_t)param->count;
    float *out = malloc(count * sizeof *out);
    uint16_t *half = malloc(count * sizeof *half);
    must(hy_store_read(hy_store_of(&t->engine, HY_ROW_MASTER), t->engine.compute,
                       hy_store_offset(hy_store_of(&t->engine, HY_ROW_MASTER), item),
                       dtype == HY_F32 ? (void *)out : (void *)half, count * hy_dtype_size(dtype)));
    for (size_t i = 0; dtype != HY_F32 && i < count; i++) out[i] = hy_bf16_to_f32(half[i]);
    free(half);
    return out;
}

static void save_after(const char *folder, const char *const *pairs, int steps) {
    double losses[16];
    hy_trainer *t = small_trainer(SMALL_RUN, folder, NULL, pairs);
    next_losses(t, steps, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
}

static hy_dtype dtype_in_file(const char *folder, const char *file, const char *tensor) {
    char path[512];
    hy_safetensors *st;
    snprintf(path, sizeof path, "%s/checkpoint-3/%s", folder, file);
    must(hy_safetensors_open(path, &st));
    const hy_safetensors_entry *entry = hy_safetensors_find(st, tensor);
    ck_assert_ptr_nonnull(entry);
    hy_dtype dtype = entry->dtype;
    hy_safetensors_close(st);
    return dtype;
}

static const char *first_name(void) {
    static char name[HY_PARAM_NAME_MAX];
    hy_trainer *t = small_trainer(SMALL_RUN, "none", NULL, PAIRS(PLAIN));
    snprintf(name, sizeof name, "%s", t->engine.model->params.list[0].name);
    hy_trainer_destroy(t);
    return name;
}

START_TEST(a_bf16_master_is_saved_as_bf16_and_resumes_to_the_same_bits) {
    char folder[256];
    temp_folder(folder);
    save_after(folder, PAIRS(IN_BF16), 3);
    ck_assert_int_eq(dtype_in_file(folder, "weights.safetensors", first_name()), HY_BF16);
    remove_folder(folder);
    check_resume(SMALL_RUN, NULL, PAIRS(IN_BF16), 3, 5);
    check_resume(SMALL_RUN, NULL, PAIRS(IN_BF16, "optimizer", "adamw8bit", "grad_dtype", "bf16"), 3,
                 5);
}
END_TEST

/* The checkpoint is gone on with in the other type; weights are held against those of the same. */
static void move_between(const char *const *from, const char *const *to, bool is_rounded) {
    char folder[256], words[1024];
    temp_folder(folder);
    save_after(folder, from, 3);
    snprintf(words, sizeof words, SMALL_RUN "resume %s ", folder);
    hy_trainer *same = small_trainer(words, "none", NULL, from); /* a folder has one owner */
    hy_trainer *other = small_trainer(words, folder, NULL, to);
    ck_assert_int_ne(hy_store_of(&same->engine, HY_ROW_MASTER)->layout.items[0].dtype,
                     hy_store_of(&other->engine, HY_ROW_MASTER)->layout.items[0].dtype);
    for (int32_t i = 0; i < same->engine.model->params.count; i++) {
        float *a = values_of(same, i), *b = values_of(other, i);
        for (int64_t k = 0; k < same->engine.model->params.list[i].count; k++) {
            float expected = is_rounded ? hy_bf16_to_f32(hy_f32_to_bf16(a[k])) : a[k];
            ck_assert_msg(b[k] == expected, "%s[%lld] is %g, expected %g",
                          same->engine.model->params.list[i].name, (long long)k, (double)b[k],
                          (double)expected);
        }
        free(a);
        free(b);
    }
    double losses[3];
    next_losses(other, 3, losses); /* and it goes on */
    hy_trainer_destroy(same);
    hy_trainer_destroy(other);
    remove_folder(folder);
}

START_TEST(a_checkpoint_moves_between_fp32_and_bf16) {
    move_between(PAIRS(IN_FP32), PAIRS(IN_BF16), true);
    move_between(PAIRS(IN_BF16), PAIRS(IN_FP32), false);
}
END_TEST

START_TEST(eight_bit_state_is_not_taken_for_another_type) {
    char folder[256];
    hy_trainer *t;
    temp_folder(folder);
    save_after(folder, PAIRS(PLAIN, "optimizer", "adamw8bit", "width", "64", "mlp_width", "128"),
               3);
    hy_config *config = small_run(SMALL_RUN "resume auto ", folder,
                                  PAIRS(PLAIN, "width", "64", "mlp_width", "128"));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "expected");
    hy_config_destroy(config);
    remove_folder(folder);
}
END_TEST

/* Saved in one place, gone on with in another: where bytes lie changes nothing. */
START_TEST(a_checkpoint_moves_between_places) {
    const char *const *here = PAIRS(IN_BF16, "optimizer", "adamw8bit");
    const char *const *there =
        PAIRS(IN_BF16, "optimizer", "adamw8bit", "weights_place", "pinned", "grads_place", "pinned",
              "optim_place", "pinned", "resident_units", "1", "ring_depth", "3");
    const char *const *pairs[] = {here, there};
    double losses[4][5];
    for (int i = 0; i < 4; i++) {
        char folder[256];
        temp_folder(folder);
        save_after(folder, pairs[i / 2], 3);
        hy_trainer *t = small_trainer(SMALL_RUN "resume auto ", folder, NULL, pairs[i % 2]);
        next_losses(t, 5, losses[i]);
        hy_trainer_destroy(t);
        remove_folder(folder);
    }
    for (int i = 1; i < 4; i++) ck_assert_mem_eq(losses[0], losses[i], sizeof losses[0]);
}
END_TEST

START_TEST(new_weights_are_the_same_in_every_place_and_rounded_in_bf16) {
    char folder[256];
    temp_folder(folder);
    const char *const *pairs[] = {PAIRS(IN_BF16),
                                  PAIRS(IN_BF16, "weights_place", "pinned", "threads", "1"),
                                  PAIRS(IN_BF16, "weights_place", "disk", "offload_folder", folder),
                                  PAIRS(IN_FP32, "master_place", "disk", "offload_folder", folder)};
    hy_trainer *plain = small_trainer(SMALL_RUN, "none", NULL, PAIRS(IN_FP32));
    for (int p = 0; p < 4; p++) {
        hy_trainer *other = small_trainer(SMALL_RUN, "none", NULL, pairs[p]);
        for (int32_t i = 0; i < plain->engine.model->params.count; i++) {
            float *a = values_of(plain, i), *b = values_of(other, i);
            for (int64_t k = 0; k < plain->engine.model->params.list[i].count; k++) {
                float expected = p < 3 ? hy_bf16_to_f32(hy_f32_to_bf16(a[k])) : a[k];
                ck_assert_msg(b[k] == expected, "run %d: %s[%lld] is %g, expected %g", p,
                              plain->engine.model->params.list[i].name, (long long)k, (double)b[k],
                              (double)expected);
            }
            free(a);
            free(b);
        }
        hy_trainer_destroy(other);
    }
    hy_trainer_destroy(plain);
    remove_folder(folder);
}
END_TEST

static Suite *state_suite(void) {
    Suite *suite = suite_create("trainer state");
    TCase *tests = tcase_create("state");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, a_bf16_master_is_saved_as_bf16_and_resumes_to_the_same_bits);
    tcase_add_test(tests, a_checkpoint_moves_between_fp32_and_bf16);
    tcase_add_test(tests, eight_bit_state_is_not_taken_for_another_type);
    tcase_add_test(tests, a_checkpoint_moves_between_places);
    tcase_add_test(tests, new_weights_are_the_same_in_every_place_and_rounded_in_bf16);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(state_suite)
