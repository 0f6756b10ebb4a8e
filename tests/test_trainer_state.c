/* test_trainer_state.c: checkpoints of runs whose state has other types and places. */
#include "run_facts.h"
#include "small_run.h"

#include "kernels/half.h"

#define PLAIN "predictor", "none"
#define IN_FP32 PLAIN, "precision", "bf16", "master_dtype", "fp32"
#define IN_BF16 PLAIN, "precision", "bf16", "master_dtype", "bf16"

/* A tensor in fp32, whatever the file has. */
static float *values_of(const hy_safetensors *file, const char *name, int64_t *count) {
    uint64_t bytes;
    void *data = read_tensor(file, name, &bytes);
    bool is_half = hy_safetensors_find(file, name)->dtype == HY_BF16;
    *count = (int64_t)(bytes / (is_half ? 2 : 4));
    if (!is_half) return data;
    float *out = malloc((size_t)*count * sizeof *out);
    for (int64_t i = 0; i < *count; i++) out[i] = hy_bf16_to_f32(((uint16_t *)data)[i]);
    free(data);
    return out;
}

/* The weights of a run's newest checkpoint are those of another's, rounded where it says so. */
static void must_be_weights_of(const char *found, const char *expected, bool is_rounded,
                               hy_dtype type) {
    hy_safetensors *now = open_saved(found, "weights.safetensors");
    hy_safetensors *then = open_saved(expected, "weights.safetensors");
    ck_assert_uint_eq(hy_safetensors_count(now), hy_safetensors_count(then));
    for (size_t i = 0; i < hy_safetensors_count(then); i++) {
        const hy_safetensors_entry *e = hy_safetensors_at(then, i);
        ck_assert_int_eq(hy_safetensors_find(now, e->name)->dtype, type);
        int64_t count;
        float *a = values_of(then, e->name, &count), *b = values_of(now, e->name, &count);
        for (int64_t k = 0; k < count; k++) {
            float wanted = is_rounded ? hy_bf16_to_f32(hy_f32_to_bf16(a[k])) : a[k];
            ck_assert_msg(b[k] == wanted, "%s[%lld] is %g, expected %g", e->name, (long long)k,
                          (double)b[k], (double)wanted);
        }
        free(a);
        free(b);
    }
    hy_safetensors_close(now);
    hy_safetensors_close(then);
}

static void save_after(const char *folder, const char *const *pairs, int steps) {
    double losses[16];
    hy_trainer *t = small_trainer(SMALL_RUN, folder, NULL, pairs);
    next_losses(t, steps, losses);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
}

static hy_dtype dtype_in_file(const char *folder, const char *file, const char *tensor) {
    hy_safetensors *st = open_saved(folder, file);
    const hy_safetensors_entry *entry = hy_safetensors_find(st, tensor);
    ck_assert_ptr_nonnull(entry);
    hy_dtype dtype = entry->dtype;
    hy_safetensors_close(st);
    return dtype;
}

START_TEST(a_bf16_master_is_saved_as_bf16_and_resumes_to_the_same_bits) {
    char folder[256];
    temp_folder(folder);
    save_after(folder, PAIRS(IN_BF16), 3);
    ck_assert_int_eq(dtype_in_file(folder, "weights.safetensors", "embed.tokens.weight"), HY_BF16);
    remove_folder(folder);
    check_resume(SMALL_RUN, NULL, PAIRS(IN_BF16), 3, 5);
    check_resume(SMALL_RUN, NULL, PAIRS(IN_BF16, "optimizer", "adamw8bit", "grad_dtype", "bf16"), 3,
                 5);
}
END_TEST

/* The checkpoint is gone on with in the other type; weights are held against those of the same. */
static void move_between(const char *const *from, const char *const *to, bool is_rounded,
                         hy_dtype type) {
    char folder[256], other[256], words[1024];
    double losses[3];
    temp_folder(folder);
    temp_folder(other);
    save_after(folder, from, 3);
    snprintf(words, sizeof words, SMALL_RUN "resume %s ", folder);
    hy_trainer *t = small_trainer(words, other, NULL, to);
    must(hy_trainer_save(t));
    must_be_weights_of(other, folder, is_rounded, type);
    next_losses(t, 3, losses); /* and it continues */
    hy_trainer_destroy(t);
    remove_folder(folder);
    remove_folder(other);
}

START_TEST(a_checkpoint_moves_between_fp32_and_bf16) {
    move_between(PAIRS(IN_FP32), PAIRS(IN_BF16), true, HY_BF16);
    move_between(PAIRS(IN_BF16), PAIRS(IN_FP32), false, HY_F32);
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
    char plain[300], other[300];
    snprintf(plain, sizeof plain, "%s/plain", folder);
    save_after(plain, PAIRS(IN_FP32), 0);
    for (int p = 0; p < 4; p++) {
        snprintf(other, sizeof other, "%s/%d", folder, p);
        save_after(other, pairs[p], 0);
        must_be_weights_of(other, plain, p < 3, p < 3 ? HY_BF16 : HY_F32);
    }
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
