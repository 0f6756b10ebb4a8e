/* test_adapter_sets.c: several adapters share one loaded base: each computes the same as alone,
 * whatever ranks, scales and modules the others have, and a conversation can switch between
 * them. */
#include <math.h>

#include "small_run.h"

#include "base/file.h"
#include "formats/safetensors.h"
#include "hub/hf_tensors.h"
#include "hub/peft_set.h"

#define RUN                                                                                        \
    "model nano tied_head false layers 2 width 64 heads 4 mlp_width 128 seq_len 32 batch_size 4 "  \
    "grad_accum_steps 1 builtin_bytes 60000 lr_warmup_steps 0 eval_batches 1 predictor none "      \
    "sample_tokens 0 threads 2 device cpu precision fp32 tail_share 0 "
#define TOLERANCE 1e-6

static char folder[256], base[300];

/* Different in everything in which they may be. */
static const struct {
    const char *name, *words;
} made[] = {{"small", "lora true lora_rank 2 lora_alpha 3 lora_targets k_proj,up_proj "},
            {"wide", "lora true lora_rank 9 rslora true lora_targets q_proj,v_proj,down_proj "},
            {"whole", "lora true lora_rank 4 lora_targets all lora_modules embed,norm "},
            {"normed", "lora true lora_rank 1 lora_targets o_proj lora_modules *.norm2.* "}};
enum { MADE = sizeof made / sizeof made[0] };

static void path_of(int i, char out[400]) {
    snprintf(out, 400, "%s/%s/adapter", folder, made[i].name);
}

static void train(const char *words, const char *out, const char *from) {
    hy_config *config = small_run(words, out, from ? PAIRS("init_from", from) : NULL);
    hy_trainer *t;
    must(hy_trainer_create(config, NULL, &t));
    must(hy_trainer_run(t));
    hy_trainer_destroy(t);
    hy_config_destroy(config);
}

static void make_adapters(void) {
    char words[1000], out[400];
    temp_folder(folder);
    snprintf(base, sizeof base, "%s/base", folder);
    train(RUN "steps 4 lr 3e-3 ", base, NULL);
    for (int i = 0; i < MADE; i++) {
        snprintf(words, sizeof words, RUN "steps 4 lr 2e-2 seed %d %s", i + 2, made[i].words);
        snprintf(out, sizeof out, "%s/%s", folder, made[i].name);
        train(words, out, base);
    }
}

static void drop_adapters(void) { remove_folder(folder); }

/* ---- losses ---------------------------------------------------------------------------------- */

static hy_config *config_for(const char *adapters, const char *words) {
    char text[600];
    snprintf(text, sizeof text, "%s", words);
    hy_config *config;
    must(hy_config_create(&config));
    for (char *rest = text, *key; (key = strtok_r(rest, " ", &rest)) != NULL;) {
        must(hy_config_set(config, key, strtok_r(rest, " ", &rest), HY_FROM_FLAG));
    }
    if (adapters) must(hy_config_set(config, "adapter", adapters, HY_FROM_FLAG));
    must(hy_config_use_model(config, base));
    return config;
}

static double loss_of(const char *adapter, const char *words) {
    hy_config *config = config_for(adapter, words);
    hy_evaluation found;
    must(hy_evaluate(config, NULL, &found));
    hy_config_destroy(config);
    return found.loss;
}

static void check_order(const int *order, int count, const char *words) {
    char names[2000] = "", path[400];
    hy_evaluation *found;
    size_t results;
    for (int i = 0; i < count; i++) {
        path_of(order[i], path);
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? "," : "", path);
    }
    hy_config *config = config_for(names, words);
    must(hy_evaluate_each(config, NULL, &found, &results));
    ck_assert_uint_eq(results, (size_t)count + 1);
    ck_assert_str_eq(found[0].adapter, "");
    ck_assert_double_eq_tol(found[0].loss, loss_of(NULL, words), TOLERANCE);
    for (int i = 0; i < count; i++) {
        path_of(order[i], path);
        double alone = loss_of(path, words);
        ck_assert_str_eq(found[i + 1].adapter, made[order[i]].name);
        ck_assert_msg(fabs(found[i + 1].loss - alone) < TOLERANCE, "%s, %s: %.9f, alone %.9f",
                      words, made[order[i]].name, found[i + 1].loss, alone);
        ck_assert_double_gt(fabs(alone - found[0].loss), 1e-4); /* it does something */
    }
    hy_free(found);
    hy_config_destroy(config);
}

START_TEST(each_has_the_loss_that_it_has_alone) {
    static const char *const ways[] = {
        "threads 2 ", "threads 2 weights_place pinned ", "threads 2 frozen_dtype nf4 ",
        "threads 2 frozen_dtype int8 ", "threads 2 frozen_dtype fp8 "};
    bool has_coded_table = strstr(ways[_i], "int8") != NULL;
    if (!has_coded_table) check_order((int[]){0, 1, 2, 3}, MADE, ways[_i]);
    if (!has_coded_table) check_order((int[]){2, 1, 0}, 3, ways[_i]);
    check_order((int[]){3, 1, 0}, 3, ways[_i]);
}
END_TEST

START_TEST(one_is_looked_at_by_itself_and_named) {
    char path[400], *json;
    hy_evaluation *found;
    size_t results;
    path_of(1, path);
    hy_config *config = config_for(path, "threads 2 frozen_dtype nf4 ");
    must(hy_evaluate_each(config, NULL, &found, &results));
    ck_assert_uint_eq(results, 1);
    must(hy_evaluation_json(found, &json));
    ck_assert_ptr_nonnull(strstr(json, "\"adapter\": \"wide\""));
    ck_assert_ptr_nonnull(strstr(json, "\"frozen_dtype\": \"nf4\""));
    hy_free(json);
    hy_free(found);
    hy_config_destroy(config);
}
END_TEST

/* ---- conversations --------------------------------------------------------------------------- */

static const hy_generate_options few = {.max_tokens = 12};

static void keep_text(void *user, const char *text, size_t size) { strncat(user, text, size); }

static hy_inference *open_with(const char *adapters) {
    hy_config *config = config_for(adapters, "threads 2 ");
    hy_inference *in;
    must(hy_inference_open(config, NULL, NULL, &in));
    hy_config_destroy(config);
    return in;
}

static void say(hy_inference *in, const char *words, char out[600], hy_generated *info) {
    out[0] = 0;
    must(hy_inference_say(in, words, &few, keep_text, out, info));
}

START_TEST(a_conversation_goes_on_with_another_adapter) {
    char both[900], one[400], other[400], first[600], second[600], third[600], again[600];
    char said[3000];
    hy_generated info;
    path_of(1, one);
    path_of(2, other);
    snprintf(both, sizeof both, "%s,%s", one, other);
    hy_inference *in = open_with(both);
    ck_assert_str_eq(hy_inference_adapter_used(in), "wide");
    say(in, "Nina", first, &info);
    must(hy_inference_use_adapter(in, "whole"));
    say(in, " kept", second, &info);
    ck_assert_int_eq(info.reused_tokens, 0); /* what the other one left is of no use */
    must(hy_inference_use_adapter(in, "none"));
    ck_assert_str_eq(hy_inference_adapter_used(in), "");
    say(in, ".", third, &info);
    ck_assert_int_eq(info.reused_tokens, 0);
    must(hy_inference_use_adapter(in, "none"));
    hy_inference_close(in);

    in = open_with(one);
    say(in, "Nina", again, &info);
    ck_assert_str_eq(again, first);
    hy_inference_close(in);
    in = open_with(other);
    snprintf(said, sizeof said, "Nina%s kept", first);
    again[0] = 0;
    must(hy_inference_complete(in, said, &few, keep_text, again, &info));
    ck_assert_str_eq(again, second);
    hy_inference_close(in);
    in = open_with(NULL);
    snprintf(said, sizeof said, "Nina%s kept%s.", first, second);
    again[0] = 0;
    must(hy_inference_complete(in, said, &few, keep_text, again, &info));
    ck_assert_str_eq(again, third);
    must_fail(hy_inference_use_adapter(in, "whole"), HY_ERR_INPUT, "no adapter is loaded");
    hy_inference_close(in);
}
END_TEST

START_TEST(an_unknown_name_changes_nothing) {
    char both[900], one[400], other[400], text[600];
    hy_generated info;
    path_of(0, one);
    path_of(1, other);
    snprintf(both, sizeof both, "%s,%s", one, other);
    hy_inference *in = open_with(both);
    ck_assert_str_eq(hy_inference_adapter(in, 0), "small");
    ck_assert_str_eq(hy_inference_adapter(in, 1), "wide");
    ck_assert_ptr_null(hy_inference_adapter(in, 2));
    must_fail(hy_inference_use_adapter(in, "other"), HY_ERR_INPUT, "small, wide, none");
    ck_assert_str_eq(hy_inference_adapter_used(in), "small");
    say(in, "Nina", text, &info);
    must(hy_inference_use_adapter(in, "small")); /* it is in use: all is known still */
    say(in, " kept", text, &info);
    ck_assert_int_gt(info.reused_tokens, 4);
    hy_inference_close(in);
}
END_TEST

/* ---- names and refusals ---------------------------------------------------------------------- */

static void copy_adapter(const char *to) {
    char command[1200], path[400];
    path_of(0, path);
    snprintf(command, sizeof command, "mkdir -p %s/%s && cp %s/* %s/%s", folder, to, path, folder,
             to);
    ck_assert_int_eq(system(command), 0);
}

START_TEST(names_are_the_shortest_distinct_ones) {
    static const char *const folders[] = {"a/mine/adapter", "b/mine", "plain", "a/none",
                                          "small/adapter"};
    static const char *const names[] = {"a/mine", "b/mine", "plain", "a/none", "small"};
    char all[2000] = "";
    hy_peft_set set;
    for (int i = 0; i < 5; i++) {
        if (i < 4) copy_adapter(folders[i]);
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s/%s%s", i ? "," : "", folder,
                 folders[i], i == 2 ? "/" : "");
    }
    must(hy_peft_set_read(all, &set));
    ck_assert_int_eq(set.count, 5);
    for (int i = 0; i < 5; i++) ck_assert_str_eq(set.list[i].name, names[i]);
    hy_peft_set_free(&set);
    copy_adapter("with,comma");
    snprintf(all, sizeof all, "%s/with,comma", folder);
    must(hy_peft_set_read(all, &set));
    ck_assert_int_eq(set.count, 1);
    hy_peft_set_free(&set);
}
END_TEST

static void check_refused(const char *adapters, const char *fragment) {
    hy_config *config;
    hy_evaluation *found;
    size_t results;
    must(hy_config_create(&config));
    hy_status status = hy_config_set(config, "adapter", adapters, HY_FROM_FLAG);
    if (status == HY_OK) status = hy_config_use_model(config, base);
    if (status == HY_OK) status = hy_evaluate_each(config, NULL, &found, &results);
    must_fail(status, HY_ERR_INPUT, fragment);
    hy_config_destroy(config);
}

START_TEST(what_is_no_adapter_of_this_base_is_refused_by_name) {
    char one[400], both[900];
    path_of(0, one);
    snprintf(both, sizeof both, "%s,%s", one, one);
    check_refused(both, "named twice");
    snprintf(both, sizeof both, "%s,%s/../adapter", one, one);
    check_refused(both, "named twice");
    snprintf(both, sizeof both, "%s,%s/nothing", one, folder);
    check_refused(both, "nothing was not found");
    snprintf(both, sizeof both, "%s,", one);
    check_refused(both, "empty");
    snprintf(both, sizeof both, "%s,%s", one, folder);
    check_refused(both, "adapter_config.json");
}
END_TEST

START_TEST(an_adapter_of_another_shape_or_cut_off_is_refused) {
    char one[400], both[900], out[400];
    path_of(0, one);
    snprintf(out, sizeof out, "%s/narrow", folder);
    train(RUN "width 32 steps 1 lr 1e-3 lora true lora_rank 2 ", out, NULL);
    snprintf(both, sizeof both, "%s,%s/adapter", one, out);
    check_refused(both, "narrow/adapter: ");
    copy_adapter("cut");
    snprintf(out, sizeof out, "%s/cut/adapter_model.safetensors", folder);
    must(hy_file_write_atomic(out, "short", 5));
    snprintf(both, sizeof both, "%s,%s/cut", one, folder);
    check_refused(both, "cut");
}
END_TEST

/* Alone its table is real numbers; beside others, and for the base alone, it would have to be
 * codes. */
START_TEST(a_table_that_one_trains_whole_is_not_codes_for_another) {
    char one[400], other[400], both[900];
    hy_evaluation *found;
    size_t results;
    path_of(0, one);
    path_of(2, other);
    snprintf(both, sizeof both, "%s,%s", one, other);
    hy_config *config = config_for(both, "threads 2 frozen_dtype int8 ");
    must_fail(hy_evaluate_each(config, NULL, &found, &results), HY_ERR_INPUT,
              "embed.tokens.weight");
    hy_config_destroy(config);
}
END_TEST

START_TEST(training_and_runs_with_adapters_take_no_list) {
    char one[400], other[400], both[900], run[400];
    hy_trainer *t;
    hy_evaluation found;
    path_of(0, one);
    path_of(1, other);
    snprintf(both, sizeof both, "%s,%s", one, other);
    hy_config *config =
        small_run(RUN "steps 1 ", "none", PAIRS("init_from", base, "adapter", both));
    must_fail(hy_trainer_create(config, NULL, &t), HY_ERR_INPUT,
              "training starts from one adapter");
    hy_config_destroy(config);
    config = config_for(both, "threads 2 ");
    must_fail(hy_evaluate(config, NULL, &found), HY_ERR_INPUT, "takes one");
    hy_config_destroy(config);
    snprintf(run, sizeof run, "%s/wide", folder);
    must(hy_config_create(&config));
    must(hy_config_set(config, "adapter", one, HY_FROM_FLAG));
    must(hy_config_use_model(config, run));
    must_fail(hy_evaluate(config, NULL, &found), HY_ERR_INPUT,
              "holds adapters; name their base model");
    hy_config_destroy(config);
}
END_TEST

/* ---- merging --------------------------------------------------------------------------------- */

#define LARGE_TABLE RUN "width 96 vocab 12000 architecture llama "

/* A table of more than 2^20 numbers is written in pieces, which begin inside of rows. */
START_TEST(a_table_trained_whole_is_merged_as_it_is) {
    char run[300], adapter[400], model[400], one[300], other[300];
    hy_hf_tensors *merged, *exported;
    snprintf(base, sizeof base, "%s/table", folder);
    snprintf(run, sizeof run, "%s/run", folder);
    snprintf(adapter, sizeof adapter, "%s/adapter", run);
    snprintf(model, sizeof model, "%s/model", base);
    snprintf(one, sizeof one, "%s/one", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    train(LARGE_TABLE "steps 1 ", base, NULL);
    train(LARGE_TABLE "steps 1 lr 2e-2 lora true lora_modules embed ", run, base);
    must(hy_merge_adapter(adapter, &(hy_export_options){.out = one, .base = model, .dtype = "fp32"},
                          NULL));
    must(hy_export(run, &(hy_export_options){.out = other, .merge = true, .dtype = "fp32"}, NULL));
    must(hy_hf_tensors_open(one, &merged));
    must(hy_hf_tensors_open(other, &exported));
    ck_assert_uint_eq(hy_hf_tensors_count(merged), hy_hf_tensors_count(exported));
    for (size_t i = 0; i < hy_hf_tensors_count(merged); i++) {
        hy_hf_found a = hy_hf_tensors_at(merged, i), b = hy_hf_tensors_at(exported, i);
        bool is_same;
        must(hy_safetensors_compare(a.file, a.entry, b.file, b.entry, &is_same));
        ck_assert_msg(is_same, "%s", a.entry->name);
    }
    hy_hf_tensors_close(merged);
    hy_hf_tensors_close(exported);
}
END_TEST

static Suite *adapter_sets_suite(void) {
    Suite *suite = suite_create("adapters side by side");
    TCase *tests = tcase_create("sets");
    tcase_set_timeout(tests, 120);
    tcase_add_unchecked_fixture(tests, make_adapters, drop_adapters);
    tcase_add_loop_test(tests, each_has_the_loss_that_it_has_alone, 0, 5);
    tcase_add_test(tests, one_is_looked_at_by_itself_and_named);
    tcase_add_test(tests, a_conversation_goes_on_with_another_adapter);
    tcase_add_test(tests, an_unknown_name_changes_nothing);
    tcase_add_test(tests, names_are_the_shortest_distinct_ones);
    tcase_add_test(tests, what_is_no_adapter_of_this_base_is_refused_by_name);
    tcase_add_test(tests, an_adapter_of_another_shape_or_cut_off_is_refused);
    tcase_add_test(tests, a_table_that_one_trains_whole_is_not_codes_for_another);
    tcase_add_test(tests, training_and_runs_with_adapters_take_no_list);
    tcase_add_test(tests, a_table_trained_whole_is_merged_as_it_is);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(adapter_sets_suite)
