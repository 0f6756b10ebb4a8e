/* test_trainer_sets.c: runs that train some parameters: what they save, which parameters stay
 * unchanged, and what they write to files. test_engine_exact.c tests that places change no bit. */
#include "run_facts.h"
#include "small_run.h"

#include "kernels/coded.h"
#include "memory/layout.h"
#include "record/state_files.h"

#define SETS_RUN SMALL_RUN "layers 4 predictor none tail_share 0 fork_budget 0 loss_chunks 1 "

static char one[256], other[256];

static void make_folders(void) {
    temp_folder(one);
    temp_folder(other);
}

static void drop_folders(void) {
    remove_folder(one);
    remove_folder(other);
}

static uint64_t planned(const hy_trainer *t, hy_class cls) {
    return cell_of(t, cls, HY_FULL).planned_bytes;
}

/* All of a class, and the trained share of it; `some` is saved in `one`, in fp32. */
static void check_class(const hy_trainer *full, const hy_trainer *some, hy_class cls) {
    char path[512];
    hy_json *json;
    double all = 0, trained = 0;
    hy_safetensors *weights = open_saved(one, "weights.safetensors");
    must(hy_json_read_file(saved_path(one, "trainer.json", path), &json));
    const hy_json_node *frozen = hy_json_get(hy_json_root(json), "frozen");
    for (size_t i = 0; i < hy_safetensors_count(weights); i++) {
        const hy_safetensors_entry *p = hy_safetensors_at(weights, i);
        double bytes = (double)hy_align(p->bytes);
        all += bytes;
        trained += hy_json_get(frozen, p->name) ? 0 : bytes;
    }
    hy_json_free(json);
    hy_safetensors_close(weights);
    ck_assert(trained > 0 && trained < all);
    double share = (double)planned(some, cls) / (double)planned(full, cls);
    ck_assert_msg(share == trained / all, "%s: %g of its bytes, expected %g", hy_class_name(cls),
                  share, trained / all);
}

/* Rows that codes of 4 bits can have; down's 96 it cannot, so that it stays as it is. */
#define NF4_RUN "width 64 mlp_width 96 frozen_dtype nf4 "

/* All that is planned is taken, and no more; 4 bits are a quarter of 16, and little beside. */
START_TEST(frozen_weights_in_nf4_take_what_is_planned) {
    double losses[3];
    const char *const *wide = PAIRS("width", "128", "mlp_width", "256", "precision", "bf16",
                                    "tied_head", "false", "master_dtype", "bf16");
    hy_trainer *half = small_trainer(SETS_RUN "train *norm* ", "none", NULL, wide);
    hy_trainer *small =
        small_trainer(SETS_RUN "train *norm* frozen_dtype nf4 ", "none", NULL, wide);
    uint64_t head = 2 * 256 * 128; /* stays in 16 bits */
    double before = (double)(planned(half, HY_WEIGHTS) - head);
    double after = (double)(planned(small, HY_WEIGHTS) - head);
    ck_assert_double_gt(after, 0.25 * before);
    ck_assert_double_lt(after, 0.30 * before);
    next_losses(small, 3, losses);
    hy_summary summary;
    hy_trainer_summary(small, &summary);
    ck_assert_uint_eq(summary.phases[HY_WARMUP].vram_peak_bytes,
                      summary.phases[HY_WARMUP].vram_planned_bytes);
    hy_trainer_destroy(half);
    hy_trainer_destroy(small);
}
END_TEST

/* fp32 scales: 4 bytes for 64 elements where there was one and a little. */
START_TEST(single_quantisation_is_planned_with_its_scales) {
    double losses[3];
    const char *words = SETS_RUN "train *norm* tied_head false precision bf16 master_dtype bf16 ";
    const char *const *wide = PAIRS("width", "128", "mlp_width", "256", "frozen_dtype", "nf4");
    const char *const *single =
        PAIRS("width", "128", "mlp_width", "256", "frozen_dtype", "nf4_single");
    hy_trainer *two_levels = small_trainer(words, "none", NULL, wide);
    hy_trainer *plain = small_trainer(words, "none", NULL, single);
    double matrices = 4 * (4 * 128 * 128 + 3 * 128 * 256); /* of four blocks */
    double more = (double)(planned(plain, HY_WEIGHTS) - planned(two_levels, HY_WEIGHTS));
    double scales = matrices / 64;
    ck_assert_double_gt(more, 2.5 * scales); /* less pairs, and what is rounded up to 256 bytes */
    ck_assert_double_lt(more, 3.0 * scales);
    next_losses(plain, 3, losses);
    hy_trainer_destroy(two_levels);
    hy_trainer_destroy(plain);
}
END_TEST

START_TEST(state_exists_for_trained_parameters_alone) {
    double losses[3];
    const char *const *pairs = PAIRS("precision", "fp32");
    hy_trainer *full = small_trainer(SETS_RUN, "none", NULL, pairs);
    hy_trainer *some = small_trainer(SETS_RUN "train last:1 ", one, NULL, pairs);
    must(hy_trainer_save(some));
    check_class(full, some, HY_GRADS);
    check_class(full, some, HY_OPTIM);
    ck_assert_uint_eq(planned(some, HY_WEIGHTS), planned(full, HY_WEIGHTS));
    ck_assert_uint_lt(planned(some, HY_ACTIVATIONS), planned(full, HY_ACTIVATIONS));
    next_losses(some, 3, losses);
    hy_summary summary;
    hy_trainer_summary(some, &summary);
    ck_assert_uint_eq(summary.phases[HY_WARMUP].vram_peak_bytes,
                      summary.phases[HY_WARMUP].vram_planned_bytes);
    hy_trainer_destroy(some);
    /* bf16: a master for what is trained, and one copy of the rest; int8 halves that, nearly. */
    pairs = PAIRS("precision", "bf16");
    hy_trainer *half = small_trainer(SETS_RUN "train last:1 ", "none", NULL, pairs);
    hy_trainer *small =
        small_trainer(SETS_RUN "train last:1 frozen_dtype int8 ", "none", NULL, pairs);
    ck_assert_uint_eq(planned(half, HY_MASTER), planned(small, HY_MASTER));
    ck_assert_uint_eq(planned(half, HY_MASTER), planned(half, HY_GRADS));
    ck_assert_uint_lt(planned(small, HY_WEIGHTS), planned(half, HY_WEIGHTS));
    hy_trainer_destroy(half);
    hy_trainer_destroy(small);
    hy_trainer_destroy(full);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

static hy_safetensors *open_weights(const char *out) {
    return open_saved(out, "weights.safetensors");
}

static bool is_same_tensor(const hy_safetensors *a, const hy_safetensors *b, const char *name) {
    uint64_t bytes, others;
    char *x = read_tensor(a, name, &bytes), *y = read_tensor(b, name, &others);
    bool is_same = bytes == others && memcmp(x, y, bytes) == 0;
    free(x);
    free(y);
    return is_same;
}

START_TEST(frozen_weights_stay_as_they_were_and_the_others_do_not) {
    double losses[3];
    hy_trainer *t = small_trainer(SETS_RUN "train blocks.2.* ", one, NULL, NULL);
    must(hy_trainer_save(t));
    hy_safetensors *before = open_weights(one);
    next_losses(t, 3, losses);
    must(hy_trainer_save(t));
    hy_safetensors *after = open_weights(one);
    for (size_t i = 0; i < hy_safetensors_count(before); i++) {
        const char *name = hy_safetensors_at(before, i)->name;
        bool is_trained = strncmp(name, "blocks.2.", 9) == 0;
        ck_assert_msg(is_same_tensor(before, after, name) == !is_trained, "%s", name);
    }
    hy_safetensors_close(before);
    hy_safetensors_close(after);
    hy_trainer_destroy(t);
}
END_TEST

START_TEST(runs_that_train_some_parameters_resume_to_the_same_bits) {
    static const char *const how[] = {"train last:1 ",
                                      "train *norm* precision bf16 ",
                                      "train last:2 frozen_dtype int8 precision bf16 ",
                                      "train blocks.1.attn.*,embed.* frozen_dtype int8 ",
                                      NF4_RUN "train last:1 precision bf16 ",
                                      NF4_RUN "train *norm* tied_head false vocab 301 "};
    char words[1024];
    snprintf(words, sizeof words, "%s%s", SETS_RUN, how[_i]);
    check_resume(words, NULL, NULL, 4, 5);
}
END_TEST

/* A model written from the run and one written from its checkpoint are the same, whole. Returns the
 * first, open, with the checkpoint's weights; they are to be closed. */
static hy_safetensors *check_written(const char *const *pairs, hy_safetensors **weights) {
    char folder[300], path[400];
    hy_trainer *t = small_trainer(SETS_RUN, one, NULL, pairs);
    must(hy_trainer_run(t));
    snprintf(folder, sizeof folder, "%s/saved", other);
    must(hy_export(one, &(hy_export_options){.out = folder}, NULL));
    hy_safetensors *run, *saved;
    snprintf(path, sizeof path, "%s/model/model.safetensors", one);
    must(hy_safetensors_open(path, &run));
    snprintf(path, sizeof path, "%s/saved/model.safetensors", other);
    must(hy_safetensors_open(path, &saved));
    ck_assert_uint_eq(hy_safetensors_count(run), hy_safetensors_count(saved));
    for (size_t i = 0; i < hy_safetensors_count(run); i++) {
        ck_assert(is_same_tensor(run, saved, hy_safetensors_at(run, i)->name));
    }
    *weights = open_weights(one);
    hy_safetensors_close(saved);
    hy_trainer_destroy(t);
    return run;
}

/* What int8 stands for is in them. */
START_TEST(a_model_of_both_kinds_of_weights_is_written_whole) {
    uint64_t bytes;
    const char *const *pairs = PAIRS("train", "last:1", "frozen_dtype", "int8", "tied_head",
                                     "false", "save_model", "true", "steps", "2");
    hy_safetensors *weights, *run = check_written(pairs, &weights);
    int8_t *codes = read_tensor(weights, "blocks.0.mlp.down.weight", &bytes);
    float *scales = read_tensor(weights, "blocks.0.mlp.down.weight.scale", &bytes);
    float *made = read_tensor(run, "model.layers.0.mlp.down_proj.weight", &bytes);
    int64_t width = 48;
    for (int64_t i = 0; i < 32 * width; i++) {
        ck_assert_float_eq(made[i], scales[i / width] * (float)codes[i]);
    }
    free(codes);
    free(scales);
    free(made);
    hy_safetensors_close(run);
    hy_safetensors_close(weights);
}
END_TEST

/* ... and what nf4 does: v, behind q and k of four heads of 16 each, has pairs and codes of its
 * own. */
START_TEST(a_model_with_weights_in_nf4_is_written_whole) {
    static const float levels[] = {HY_NF4_LEVELS};
    uint64_t bytes;
    const char *const *pairs =
        PAIRS("train", "last:1", "frozen_dtype", "nf4", "width", "64", "mlp_width", "96",
              "kv_heads", "4", "save_model", "true", "steps", "2");
    hy_safetensors *weights, *run = check_written(pairs, &weights);
    uint8_t *codes = read_tensor(weights, "blocks.0.attn.qkv.weight", &bytes);
    ck_assert_uint_eq(bytes, 3 * 64 * 32);
    char *scales = read_tensor(weights, "blocks.0.attn.qkv.weight.scale", &bytes);
    ck_assert_uint_eq(bytes, 3 * 64 + 3 * 8); /* groups of 64 */
    float *made = read_tensor(run, "model.layers.0.self_attn.v_proj.weight", &bytes);
    for (int64_t i = 0; i < 64 * 64; i++) {
        int64_t at = 2 * 64 * 64 + i, block = at / 64;
        int level = codes[at / 2] >> (at % 2 ? 0 : 4) & 15;
        float scale = hy_nf4_scale((float *)(void *)scales + 2 * 2, (uint8_t)scales[24 + block]);
        ck_assert_float_eq(made[i], levels[level] * scale);
    }
    ck_assert_float_ne(((float *)(void *)scales)[1], ((float *)(void *)scales)[5]);
    free(codes);
    free(scales);
    free(made);
    hy_safetensors_close(run);
    hy_safetensors_close(weights);
}
END_TEST

static double held_out(hy_trainer *t) {
    hy_eval_info info;
    must(hy_trainer_evaluate(t, &info));
    return info.loss;
}

/* A checkpoint with int8 in it serves a run that keeps none, with the same numbers; and the other
 * way the numbers are rounded as those of a model's files. */
static void check_moves(const char *shape, const char *codes, double allowed) {
    double losses[2];
    char plainly[512], coded[1024];
    snprintf(plainly, sizeof plainly, "%s%sprecision fp32 ", SETS_RUN, shape);
    snprintf(coded, sizeof coded, "%strain last:1 frozen_dtype %s ", plainly, codes);
    hy_trainer *small = small_trainer(coded, one, NULL, NULL);
    next_losses(small, 2, losses);
    must(hy_trainer_save(small));
    hy_trainer *plain = small_trainer(plainly, other, NULL, PAIRS("init_from", one));
    ck_assert_double_eq(held_out(small), held_out(plain));
    must(hy_trainer_save(plain));
    hy_trainer_destroy(plain);
    hy_trainer *again = small_trainer(coded, "none", NULL, PAIRS("init_from", other));
    ck_assert_double_eq_tol(held_out(small), held_out(again), allowed);
    hy_trainer_destroy(again);
    hy_trainer_destroy(small);
}

START_TEST(weights_move_between_int8_and_others) { check_moves("", "int8", 1e-5); }
END_TEST

/* A scale is a power of two: what codes stand for has the same codes. */
START_TEST(weights_move_between_fp8_and_others) { check_moves("", "fp8", 1e-12); }
END_TEST

/* The scales of 8 bits are not found again to the bit, as those of fp32 nearly are. */
START_TEST(weights_move_between_nf4_and_others) {
    check_moves("width 64 mlp_width 128 tied_head false vocab 301 ", "nf4", 1e-2);
}
END_TEST

START_TEST(weights_move_between_nf4_with_fp32_scales_and_others) {
    check_moves("width 64 mlp_width 128 tied_head false vocab 301 ", "nf4_single", 1e-5);
}
END_TEST

/* From one kind of codes to the other, with the numbers between them: those of int8. */
START_TEST(weights_move_from_nf4_to_int8) {
    const char *words = SETS_RUN "width 64 mlp_width 128 train last:1 precision fp32 ";
    hy_trainer *small = small_trainer(words, one, NULL, PAIRS("frozen_dtype", "nf4"));
    must(hy_trainer_save(small));
    const char *const *pairs = PAIRS("init_from", one, "frozen_dtype", "int8");
    hy_trainer *other_codes = small_trainer(words, "none", NULL, pairs);
    ck_assert_double_eq_tol(held_out(small), held_out(other_codes), 1e-3);
    ck_assert_double_ne(held_out(small), held_out(other_codes));
    hy_trainer_destroy(small);
    hy_trainer_destroy(other_codes);
}
END_TEST

/* Codes mean nothing without their scales: those that are there must not be taken for theirs. */
START_TEST(codes_without_their_scales_are_refused) {
    const char *words = SETS_RUN "train last:1 frozen_dtype int8 ";
    hy_trainer *t = small_trainer(words, one, NULL, NULL);
    must(hy_trainer_save(t));
    hy_safetensors *weights = open_weights(one);
    hy_safetensors_entry *kept = calloc(hy_safetensors_count(weights), sizeof *kept);
    size_t count = 0;
    for (size_t i = 0; i < hy_safetensors_count(weights); i++) {
        const hy_safetensors_entry *entry = hy_safetensors_at(weights, i);
        if (!strstr(entry->name, ".scale")) kept[count++] = *entry;
    }
    ck_assert_uint_lt(count, hy_safetensors_count(weights));
    hy_checkpoint *c;
    hy_safetensors_writer *writer;
    uint64_t hash, size;
    must(hy_checkpoint_begin(other, 1, &c));
    must(hy_safetensors_create(hy_checkpoint_path(c, "weights.safetensors"), kept, count, NULL,
                               &writer));
    for (size_t i = 0; i < count; i++) {
        char *data = read_tensor(weights, kept[i].name, &size);
        must(hy_safetensors_put(writer, data, size));
        free(data);
    }
    must(hy_safetensors_finish(writer, &hash, &size));
    must(hy_checkpoint_add(c, "weights.safetensors", hash, size));
    must(hy_checkpoint_commit(c));
    hy_config *config = small_run(words, "none", PAIRS("init_from", other));
    hy_trainer *again;
    must_fail(hy_trainer_create(config, NULL, &again), HY_ERR_INPUT, "qkv.weight.scale");
    hy_config_destroy(config);
    free(kept);
    hy_safetensors_close(weights);
    hy_trainer_destroy(t);
}
END_TEST

/* A checkpoint of these tensors, a number each, and of this trainer.json. */
static bool lacks_base(const char *progress, const char *const *names, size_t count) {
    hy_safetensors_entry entries[8] = {0};
    hy_safetensors_writer *writer;
    char path[400];
    bool lacks;
    for (size_t i = 0; i < count; i++) {
        entries[i] = (hy_safetensors_entry){.name = names[i], .ndim = 1, .shape = {1}};
    }
    snprintf(path, sizeof path, "%s/weights.safetensors", one);
    must(hy_safetensors_create(path, entries, count, NULL, &writer));
    for (size_t i = 0; i < count; i++) must(hy_safetensors_put(writer, &(float){1}, 4));
    must(hy_safetensors_finish(writer, NULL, NULL));
    snprintf(path, sizeof path, "%s/trainer.json", one);
    must(hy_file_write_atomic(path, progress, strlen(progress)));
    must(hy_checkpoint_lacks_base(one, &lacks));
    return lacks;
}

START_TEST(a_checkpoint_says_whether_it_lacks_its_base) {
    static const char *const names[] = {"blocks.0.attn.out.lora_a", "embed.tokens.weight",
                                        "blocks.0.norm1.weight",    "blocks.0.attn.qkv.weight",
                                        "blocks.0.attn.out.weight", "blocks.0.mlp.down.weight",
                                        "final_norm.weight"};
    /* older ones do not say it, and are gone by their names */
    ck_assert(!lacks_base("{}", names, 7));
    ck_assert(lacks_base("{}", names, 6));
    ck_assert(!lacks_base("{}", names + 1, 6));
    ck_assert(lacks_base("{\"lacks_base\": true}", names, 7));
    ck_assert(!lacks_base("{\"lacks_base\": false}", names, 6));
}
END_TEST

START_TEST(what_cannot_be_trained_is_refused_by_name) {
    hy_config *config = small_run(SETS_RUN, "none", PAIRS("train", "blocks.7.*"));
    hy_trainer *t;
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT, "blocks.7.*");
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "train.train"));
    hy_config_destroy(config);
}
END_TEST

static Suite *sets_suite(void) {
    Suite *suite = suite_create("runs that train some parameters");
    TCase *tests = tcase_create("sets");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, make_folders, drop_folders);
    tcase_add_test(tests, state_exists_for_trained_parameters_alone);
    tcase_add_test(tests, frozen_weights_in_nf4_take_what_is_planned);
    tcase_add_test(tests, single_quantisation_is_planned_with_its_scales);
    tcase_add_test(tests, frozen_weights_stay_as_they_were_and_the_others_do_not);
    tcase_add_loop_test(tests, runs_that_train_some_parameters_resume_to_the_same_bits, 0, 6);
    tcase_add_test(tests, a_model_of_both_kinds_of_weights_is_written_whole);
    tcase_add_test(tests, a_model_with_weights_in_nf4_is_written_whole);
    tcase_add_test(tests, weights_move_between_int8_and_others);
    tcase_add_test(tests, weights_move_between_fp8_and_others);
    tcase_add_test(tests, weights_move_between_nf4_and_others);
    tcase_add_test(tests, weights_move_between_nf4_with_fp32_scales_and_others);
    tcase_add_test(tests, weights_move_from_nf4_to_int8);
    tcase_add_test(tests, codes_without_their_scales_are_refused);
    tcase_add_test(tests, a_checkpoint_says_whether_it_lacks_its_base);
    tcase_add_test(tests, what_cannot_be_trained_is_refused_by_name);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(sets_suite)
