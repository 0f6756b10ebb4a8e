/* test_config.c: configuration values: the table of keys, checking, the order of origins, printing.
 * */
#include "base/text.h"
#include "config/builtin.h"
#include "config/derived.h"
#include "config_fixture.h"

/* ---- the table ---------------------------------------------------------------------------------
 * */

START_TEST(names_are_unique_and_flags_follow_from_them) {
    hy_text names = {0}; /* "|name|name|" */
    hy_text_add(&names, "|");
    char needle[128];
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const hy_setting *s = hy_setting_at(i);
        snprintf(needle, sizeof needle, "|%s|", hy_setting_leaf(s));
        ck_assert_msg(!strstr(hy_text_string(&names), needle), "%s is there twice", needle);
        hy_text_add(&names, needle + 1);
        snprintf(needle, sizeof needle, "--%s", hy_setting_leaf(s));
        for (char *c = needle; *c; c++) *c = *c == '_' ? '-' : *c;
        ck_assert_str_eq(s->info.flag, needle);
    }
    for (size_t i = 0; hy_setting_alias_at(i); i++) {
        snprintf(needle, sizeof needle, "|%s|", hy_setting_alias_at(i)->name);
        ck_assert_msg(!strstr(hy_text_string(&names), needle), "%s is there twice", needle);
        hy_text_add(&names, needle + 1);
    }
    hy_text_free(&names);
}
END_TEST

START_TEST(every_row_is_complete_and_listed_with_its_group) {
    size_t group = 0;
    bool is_top = true;
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const hy_config_key_info *info = hy_config_key(i);
        ck_assert(info->type && info->accepted && info->fallback && info->help);
        ck_assert_int_eq(info->help[strlen(info->help) - 1], '.');
        const char *dot = strchr(info->key, '.');
        if (!dot) {
            ck_assert_msg(is_top, "%s stands behind a group", info->key);
            continue;
        }
        size_t size = (size_t)(dot - info->key);
        if (is_top) {
            is_top = false;
        } else if (strncmp(hy_setting_group_at(group), info->key, size)) {
            group++;
        }
        ck_assert_msg(hy_setting_group_at(group) &&
                          !strncmp(hy_setting_group_at(group), info->key, size),
                      "%s is out of its group's place", info->key);
    }
    ck_assert_ptr_null(hy_setting_group_at(group + 1));
    ck_assert_ptr_null(hy_config_key(hy_setting_count()));
}
END_TEST

START_TEST(fields_do_not_overlap) {
    static const size_t sizes[] = {[HY_VALUE_INTEGER] = sizeof(int64_t),
                                   [HY_VALUE_NUMBER] = sizeof(double),
                                   [HY_VALUE_SWITCH] = sizeof(bool),
                                   [HY_VALUE_CHOICE] = sizeof(int),
                                   [HY_VALUE_BYTES] = sizeof(int64_t)};
    static unsigned char used[sizeof(hy_settings)];
    memset(used + offsetof(hy_settings, kept), 1, sizeof(hy_kept_origin)); /* what a run keeps */
    memset(used + offsetof(hy_settings, adapter_said), 1,
           sizeof(hy_adapter_said)); /* who says it */
    used[offsetof(hy_settings, phases.was_ema)] = 1;
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const hy_setting *s = hy_setting_at(i);
        bool is_text = s->type == HY_VALUE_TEXT;
        ck_assert_msg(is_text ? s->size <= HY_VALUE_MAX : s->size == sizes[s->type],
                      "%s has another type than its field", s->info.key);
        for (size_t b = 0; b < s->size; b++) {
            ck_assert_msg(!used[s->offset + b]++, "%s shares its field", s->info.key);
        }
    }
    /* What no key covers may only be padding around switches and choices. */
    size_t unused = 0;
    for (size_t b = 0; b < sizeof used; b++) unused += !used[b];
    ck_assert_uint_lt(unused, 11 * 8);
}
END_TEST

START_TEST(every_word_of_a_choice_has_a_distinct_value_and_is_found_again) {
    size_t choices = 0;
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const hy_setting *s = hy_setting_at(i);
        hy_text words = {0};
        if (s->type != HY_VALUE_CHOICE) continue;
        for (const hy_named_value *c = s->choices; c->name; c++) {
            int value;
            hy_text_addf(&words, "%s%s", c == s->choices ? "" : ", ", c->name);
            ck_assert_str_eq(hy_choice_name(s->info.key, c->value), c->name);
            if (strstr(c->name, ":N")) continue;
            ck_assert(hy_choice_value(s->info.key, c->name, &value));
            ck_assert_int_eq(value, c->value);
            choices++;
        }
        ck_assert_str_eq(s->info.accepted, hy_text_string(&words));
        hy_text_free(&words);
    }
    ck_assert_uint_gt(choices, 100);
}
END_TEST

/* A value goes through its field to its text and back, whatever the type. */
START_TEST(what_a_field_holds_is_written_as_its_canonical_text) {
    hy_settings filled = {0};
    char text[HY_VALUE_MAX];
    for (size_t i = 0; i < hy_setting_count(); i++) {
        const hy_setting *s = hy_setting_at(i);
        hy_setting_store(s, value_of(s->info.key), &filled);
        ck_assert_str_eq(hy_setting_format(s, &filled, text), value_of(s->info.key));
    }
    ck_assert_mem_eq(&filled, hy_config_settings(config), sizeof filled);
    const hy_setting *device = hy_setting_find("device", NULL);
    hy_setting_store(device, "cuda:12", &filled);
    ck_assert_int_eq(filled.device, HY_USE_CARD + 12);
    ck_assert_str_eq(hy_setting_format(device, &filled, text), "cuda:12");
}
END_TEST

START_TEST(names_can_be_full_bare_flags_or_dashed) {
    const char *names[] = {"train.batch_size",      "batch_size",
                           "--batch-size",          "batch-size",
                           "micro_batch_size",      "--per-device-train-batch-size",
                           "train.micro_batch_size"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ck_assert_ptr_nonnull(hy_config_find(names[i]));
        ck_assert_str_eq(hy_config_find(names[i])->key, "train.batch_size");
        char text[16];
        snprintf(text, sizeof text, "%zu", i + 1);
        set(names[i], text, HY_FROM_SET);
        is_value("batch_size", text);
    }
    ck_assert_ptr_null(hy_config_find("optimizer.batch_size"));
    ck_assert_ptr_null(hy_config_find("shape.micro_batch_size"));
    ck_assert_ptr_null(hy_config_find(""));
    ck_assert_ptr_null(hy_config_find("train."));
    ck_assert_ptr_null(hy_config_find(NULL));
}
END_TEST

START_TEST(every_alias_reaches_its_key) {
    for (size_t i = 0; hy_setting_alias_at(i); i++) {
        const hy_setting_alias *alias = hy_setting_alias_at(i);
        const hy_setting *setting = hy_setting_find(alias->name, NULL);
        ck_assert_ptr_nonnull(setting);
        ck_assert_str_eq(setting->info.key, alias->key);
        ck_assert_ptr_eq(setting, hy_setting_find(alias->key, NULL));
    }
    set("learning_rate", "0.5", HY_FROM_FLAG);
    is_value("optimizer.lr", "0.5");
    is_origin("optimizer.lr", "flag --learning-rate");
}
END_TEST

START_TEST(switch_aliases_choose_what_is_recomputed) {
    ck_assert_str_eq(hy_config_find("--checkpoint-every-layer")->type, "switch");
    set("checkpoint_every_layer", "true", HY_FROM_FLAG);
    is_value("recompute", "all");
    is_origin("recompute", "flag --checkpoint-every-layer");
    set("--no-checkpointing", "1", HY_FROM_FLAG);
    is_value("recompute", "none");
    set("gradient_checkpointing", "yes", HY_FROM_FLAG);
    is_value("recompute", "all");
    must_refuse(hy_config_set(config, "no_checkpointing", "maybe", HY_FROM_SET), "--set",
                "no_checkpointing = maybe", "true, false");
}
END_TEST

START_TEST(names_and_values_of_other_trainers_are_read) {
    static const char *const rows[][4] = {
        {"max-seq-length", "512", "train.seq_len", "512"},
        {"target_modules", "all-linear", "lora.lora_targets", "all"},
        {"optim", "paged_adamw_8bit", "optimizer.optimizer", "paged_adamw8bit"},
        {"optimizer", "adamw_8bit", "optimizer.optimizer", "adamw8bit"},
        {"mixed_precision", "bfloat16", "train.precision", "bf16"},
        {"--use-fp16", "true", "train.precision", "fp16"},
        {"target_utilization", "0.5", "memory.target_usage", "0.5"},
        {"sample_packing", "true", "input.packing", "on"},
        {"train_on_inputs", "false", "input.loss_on", "answers"},
        {"lr_scheduler_type", "constant_with_warmup", "optimizer.schedule", "constant"},
        {"resume_from_checkpoint", "True", "save.resume", "auto"},
        {"load_in_4bit", "true", "train.frozen_dtype", "nf4"},
        {"num_train_epochs", "3", "train.epochs", "3"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        set(rows[i][0], rows[i][1], HY_FROM_FLAG);
        is_value(rows[i][2], rows[i][3]);
    }
    set("bf16", "true", HY_FROM_FLAG);
    set("fp16", "false", HY_FROM_FLAG); /* changes nothing */
    is_value("train.precision", "bf16");
    must_refuse(hy_config_set(config, "device-map", "auto", HY_FROM_SET), "device-map",
                "--weights-place", "--plan");
    ck_assert_ptr_nonnull(strstr(hy_config_hint("--report_to"), "metrics.jsonl"));
    ck_assert_ptr_null(hy_config_hint("lr"));
}
END_TEST

/* Configuration files of older runs have these keys. */
START_TEST(the_removed_predictor_ema_is_read_as_outer) {
    ck_assert(!hy_config_settings(config)->phases.was_ema);
    set("predictor", "none", HY_FROM_FILE);
    set("predictor", "ema", HY_FROM_SET);
    is_value("predictor", "outer");
    ck_assert(hy_config_settings(config)->phases.was_ema);
    set("--predictor", "line", HY_FROM_FLAG);
    ck_assert(!hy_config_settings(config)->phases.was_ema);
    set("phases.ema_beta", "0.5", HY_FROM_FILE);
    set("--ema-gamma", "0.9", HY_FROM_FLAG);
    is_value("predictor", "line");
    ck_assert_str_eq(hy_config_find("--ema-beta")->key, "ema_beta");
    must_refuse(hy_config_get(config, "ema_beta", NULL, NULL), "unknown key", "ema_beta");
}
END_TEST

/* ---- values ------------------------------------------------------------------------------------
 * */

START_TEST(values_have_one_canonical_spelling) {
    static const struct {
        const char *key, *text, *canonical;
    } cases[] = {
        {"steps", "10k", "10000"},
        {"steps", "0", "0"},
        {"steps", "007", "7"},
        {"tokens", "1e9", "1000000000"},
        {"tokens", "1.5G", "1500000000"},
        {"tokens", "2Ki", "2048"},
        {"lr", "3e-4", "0.0003"},
        {"lr", "+.5", "0.5"},
        {"lr", "1E-2", "0.01"},
        {"lr", "-0", "0"},
        {"beta2", "0.999", "0.999"},
        {"rope_theta", "1000000", "1000000"},
        {"shuffle", "off", "false"},
        {"shuffle", "YES", "true"},
        {"shuffle", "0", "false"},
        {"shuffle", "on", "true"},
        {"precision", "BF16", "bf16"},
        {"device", "CUDA", "cuda"},
        {"device", "Cuda:07", "cuda:7"},
        {"max_gpu_mem", "8GiB", "8GiB"},
        {"max_gpu_mem", "8192MiB", "8GiB"},
        {"max_gpu_mem", "500M", "500M"},
        {"max_gpu_mem", "1.5GiB", "1536MiB"},
        {"max_gpu_mem", "12345", "12345"},
        {"max_gpu_mem", "1024TiB", "1024TiB"},
        {"prompt", " a  b ", " a  b "},
        {"seed", "9007199254740991", "9007199254740991"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set(cases[i].key, cases[i].text, HY_FROM_SET);
        is_value(cases[i].key, cases[i].canonical);
        set(cases[i].key, cases[i].canonical, HY_FROM_SET);
        is_value(cases[i].key, cases[i].canonical);
    }
    const hy_settings *s = hy_config_settings(config);
    ck_assert_int_eq(s->memory.max_gpu_mem, INT64_C(1) << 50);
    ck_assert_int_eq(s->train.tokens, 2048);
    ck_assert(s->optimizer.beta2 == 0.999);
    ck_assert(s->input.shuffle);
    ck_assert_int_eq(s->train.precision, HY_DTYPE_BF16);
    ck_assert_str_eq(s->eval.prompt, " a  b ");
}
END_TEST

START_TEST(wrong_values_are_refused_with_key_value_range_and_origin) {
    static const struct {
        const char *key, *text, *full_key, *accepted;
    } cases[] = {
        {"batch_size", "-4", "train.batch_size = -4", "1 to 65536"},
        {"batch_size", "0", "train.batch_size = 0", "1 to 65536"},
        {"batch_size", "65537", "train.batch_size = 65537", "1 to 65536"},
        {"batch_size", "4.5", "train.batch_size = 4.5", "1 to 65536"},
        {"batch_size", "four", "train.batch_size = four", "1 to 65536"},
        {"batch_size", "", "train.batch_size = \"\"", "1 to 65536"},
        {"batch_size", " 4", "train.batch_size =  4", "1 to 65536"},
        {"batch_size", "99999999999999999999", "train.batch_size = 9999", "1 to 65536"},
        {"seq_len", "2M", "train.seq_len = 2M", "1 to 1048576"},
        {"layers", "1025", "shape.layers = 1025", "1 to 1024"},
        {"width", "65537", "shape.width = 65537", "1 to 65536"},
        {"heads", "-1", "shape.heads = -1", "1 to"},
        {"vocab", "1", "shape.vocab = 1", "2 to"},
        {"steps", "-1", "train.steps = -1", "0 to 1000000000"},
        {"tokens", "1e300", "train.tokens = 1e300", "0 to"},
        {"lr", "-0.001", "optimizer.lr = -0.001", "0 to 10"},
        {"lr", "10.1", "optimizer.lr = 10.1", "0 to 10"},
        {"lr", "nan", "optimizer.lr = nan", "0 to 10"},
        {"lr", "inf", "optimizer.lr = inf", "0 to 10"},
        {"lr", "-inf", "optimizer.lr = -inf", "0 to 10"},
        {"lr", "1e999", "optimizer.lr = 1e999", "0 to 10"},
        {"lr", "0x1p-3", "optimizer.lr = 0x1p-3", "0 to 10"},
        {"lr", "0,001", "optimizer.lr = 0,001", "0 to 10"},
        {"lr", "1e-3x", "optimizer.lr = 1e-3x", "0 to 10"},
        {"beta1", "1", "optimizer.beta1 = 1", "0 to below 1"},
        {"beta2", "-0.1", "optimizer.beta2 = -0.1", "0 to below 1"},
        {"norm_eps", "0", "shape.norm_eps = 0", "1e-12 to 0.1"},
        {"val_fraction", "0.6", "input.val_fraction = 0.6", "0 to 0.5"},
        {"shuffle", "maybe", "input.shuffle = maybe", "true, false"},
        {"shuffle", "2", "input.shuffle = 2", "true, false"},
        {"precision", "fp64", "train.precision = fp64", "auto, fp32, bf16"},
        {"device", "cuda:", "device = cuda:", "auto, cpu, cuda, cuda:N"},
        {"device", "cuda:N", "device = cuda:N", "auto, cpu, cuda, cuda:N"},
        {"device", "cuda:1x", "device = cuda:1x", "auto, cpu, cuda, cuda:N"},
        {"device", "cuda:1000", "device = cuda:1000", "auto, cpu, cuda, cuda:N"},
        {"schedule", "cosin", "optimizer.schedule = cosin", "did you mean cosine?"},
        {"predictor", "lsq", "phases.predictor = lsq", "outer, line, none"},
        {"profile", "agressive", "profile = agressive", "did you mean aggressive?"},
        {"profile", "", "profile = \"\"", "conservative, balanced, aggressive"},
        {"max_gpu_mem", "-1", "memory.max_gpu_mem = -1", "0, or 1k to 1024TiB"},
        {"max_gpu_mem", "1025TiB", "memory.max_gpu_mem = 1025TiB", "0, or 1k to 1024TiB"},
        {"max_gpu_mem", "8GB extra", "memory.max_gpu_mem = 8GB extra", "8GiB"},
        {"cpu_mem", "32", "memory.cpu_mem = 32 is not accepted", "did you mean 32GiB?"},
        {"max_gpu_mem", "7.5", "memory.max_gpu_mem = 7.5", "did you mean 7.5GiB?"},
        {"offload_size", "500", "memory.offload_size = 500", "did you mean 500GiB?"},
        {"builtin_bytes", "1k", "input.builtin_bytes = 1k", "4KiB to 16GiB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        must_refuse(hy_config_set(config, cases[i].key, cases[i].text, HY_FROM_SET),
                    "--set: ", cases[i].full_key, cases[i].accepted);
    }
    must_refuse(hy_config_set(config, "batch_size", "0", HY_FROM_FLAG), "flag --batch-size: ");
    must_refuse(hy_config_set(config, "batch_size", "0", HY_FROM_CALLER), "caller: ");
}
END_TEST

START_TEST(texts_longer_than_their_field_are_refused) {
    char text[HY_TEXT_MAX + 1];
    memset(text, 'x', sizeof text);
    text[HY_TEXT_MAX] = '\0';
    must_refuse(hy_config_set(config, "prompt", text, HY_FROM_SET), "eval.prompt", "512", "511");
    must_refuse(hy_config_set(config, "schedule", text, HY_FROM_SET), "xxx...", "constant, linear");
    text[HY_TEXT_MAX - 1] = '\0';
    set("prompt", text, HY_FROM_SET);
    is_value("prompt", text);
}
END_TEST

START_TEST(unknown_keys_are_refused_with_the_nearest) {
    must_refuse(hy_config_set(config, "bach_size", "4", HY_FROM_SET),
                "--set: unknown key bach_size; did you mean train.batch_size?");
    must_refuse(hy_config_set(config, "--bach-size", "4", HY_FROM_FLAG),
                "unknown flag --bach-size; did you mean --batch-size?");
    must_refuse(hy_config_set(config, "optimizer.batch_size", "4", HY_FROM_CALLER),
                "unknown key optimizer.batch_size; did you mean train.batch_size?");
    must_refuse(hy_config_set(config, "learnin_rate", "4", HY_FROM_FLAG), "did you mean --lr?");
    must_refuse(hy_config_set(config, "qwertyuiop", "4", HY_FROM_SET), "unknown key qwertyuiop");
    ck_assert_ptr_null(strstr(hy_error_message(), "did you mean"));
    must_refuse(hy_config_set(config, NULL, "4", HY_FROM_SET), "NULL");
    must_refuse(hy_config_set(config, "lr", NULL, HY_FROM_SET), "NULL");
    must_refuse(hy_config_set(config, "lr", "1", (hy_origin)7), "unknown origin 7");
    must_fail(hy_config_get(config, "batchsize", NULL, NULL), HY_ERR_INPUT, "train.batch_size");
}
END_TEST

/* ---- origins -----------------------------------------------------------------------------------
 * */

START_TEST(the_stronger_origin_wins_whatever_the_order) {
    for (int weak = HY_FROM_DEFAULT; weak <= HY_FROM_FLAG; weak++) {
        for (int strong = weak + 1; strong <= HY_FROM_CALLER; strong++) {
            if (weak == HY_FROM_FLAG) continue; /* a caller is as strong as a flag */
            for (int is_strong_first = 0; is_strong_first < 2; is_strong_first++) {
                hy_config *c;
                const char *text;
                must(hy_config_create(&c));
                int first = is_strong_first ? strong : weak, second = strong + weak - first;
                must(hy_config_set(c, "keep", first == strong ? "8" : "7", (hy_origin)first));
                must(hy_config_set(c, "keep", second == strong ? "8" : "7", (hy_origin)second));
                must(hy_config_get(c, "keep", &text, NULL));
                ck_assert_msg(!strcmp(text, "8"), "%d over %d", strong, weak);
                ck_assert_int_eq(hy_config_origin(c, "keep"),
                                 strong == HY_FROM_CALLER ? HY_FROM_FLAG : strong);
                ck_assert_int_eq(hy_config_origin(c, "keeper"), HY_FROM_DEFAULT);
                hy_config_destroy(c);
            }
        }
    }
}
END_TEST

START_TEST(within_one_origin_the_later_call_wins) {
    for (int origin = HY_FROM_DEFAULT; origin <= HY_FROM_FLAG; origin++) {
        set("keep", "7", (hy_origin)origin);
        set("keep", "9", (hy_origin)origin);
        is_value("keep", "9");
    }
    set("keep", "10", HY_FROM_CALLER);
    is_value("keep", "10");
    set("keep", "11", HY_FROM_FLAG);
    is_value("keep", "11");
}
END_TEST

START_TEST(origins_are_described_in_words) {
    is_origin("keep", "default");
    is_origin("layers", "preset nano");
    is_origin("grad_accum_steps", "profile balanced");
    const char *path = file_with("my.cfg", "\n\nkeep = 3;\n");
    char expected[600];
    snprintf(expected, sizeof expected, "%s:3", path);
    must(hy_config_load(config, path));
    is_origin("keep", expected);
    must(hy_config_load(config, "rtx5080"));
    ck_assert_int_eq(strncmp(origin_of("max_gpu_mem"), "gpu/rtx5080:", 12), 0);
    set("keep", "4", HY_FROM_SET);
    is_origin("keep", "--set");
    set("save.keep", "5", HY_FROM_FLAG);
    is_origin("keep", "flag --keep");
    set("keep", "6", HY_FROM_CALLER);
    is_origin("keep", "caller");
}
END_TEST

START_TEST(flag_beats_set_beats_file_beats_profile_beats_preset) {
    must(hy_config_load(config, file_with("m.cfg", "shape: { layers = 2; };\n"
                                                   "batch_size = 3; grad_accum_steps = 3;")));
    set("grad_accum_steps", "5", HY_FROM_FLAG);
    set("grad_accum_steps", "4", HY_FROM_SET);
    set("profile", "aggressive", HY_FROM_FLAG);
    is_value("grad_accum_steps", "5");
    is_value("layers", "2");     /* file over preset */
    is_value("batch_size", "3"); /* file over preset */
    is_value("width", "128");    /* preset */
    const char *mine = file_with("mine.cfg", "shape: { width = 64; }; grad_accum_steps = 9;");
    hy_config *c;
    must(hy_config_create(&c));
    must(hy_config_set(c, "model", mine, HY_FROM_FLAG));
    ck_assert_int_eq(hy_config_settings(c)->train.grad_accum_steps, 2); /* profile over preset */
    ck_assert_int_eq(hy_config_settings(c)->shape.width, 64);
    hy_config_destroy(c);
}
END_TEST

START_TEST(another_profile_or_model_replaces_what_the_first_one_brought) {
    set("model", "qwen3-0.6b", HY_FROM_SET);
    is_value("qk_norm", "true");
    is_value("head_size", "128");
    is_origin("lr", "preset qwen3-0.6b");
    set("model", "gpt2-124m", HY_FROM_SET);
    is_value("qk_norm", "false");
    is_origin("qk_norm", "default");
    is_value("head_size", "0");
    is_value("positions", "learned");

    set("profile", "conservative", HY_FROM_FILE);
    is_value("precision", "fp32");
    is_value("grad_accum_steps", "1");
    set("profile", "aggressive", HY_FROM_FLAG);
    is_value("precision", "auto");
    is_value("grad_accum_steps", "4");
    is_origin("grad_accum_steps", "profile aggressive");
    set("profile", "conservative", HY_FROM_SET); /* weaker: changes nothing */
    is_value("grad_accum_steps", "4");
}
END_TEST

START_TEST(a_file_may_name_model_and_profile_and_a_flag_overrides_them) {
    const char *path = file_with("job.cfg", "model = \"gpt2-350m\";\nprofile = \"aggressive\";\n"
                                            "shape: { layers = 2; };");
    must(hy_config_load(config, path));
    is_value("width", "1024");
    is_value("grad_accum_steps", "4");
    set("model", "gpt2-124m", HY_FROM_FLAG);
    is_value("width", "768");
    is_value("layers", "2");
    is_origin("width", "preset gpt2-124m");
}
END_TEST

START_TEST(the_length_given_by_the_strongest_origin_counts) {
    is_value("steps", "500");
    set("tokens", "1M", HY_FROM_FLAG);
    is_value("steps", "0");
    is_origin("steps", "replaced by train.tokens");
    is_value("tokens", "1000000");
    ck_assert_int_eq(hy_config_settings(config)->train.steps, 0);
    ck_assert_int_eq(hy_config_settings(config)->train.tokens, 1000000);
    set("epochs", "2.5", HY_FROM_SET);
    is_value("epochs", "0");
    is_origin("epochs", "replaced by train.tokens");
    set("steps", "50", HY_FROM_FLAG); /* the same origin: both stand, the trainer judges */
    is_value("steps", "50");
    is_value("tokens", "1000000");
    set("steps", "0", HY_FROM_FLAG);
    set("tokens", "0", HY_FROM_FLAG);
    is_value("epochs", "2.5");
    is_value("steps", "0");
}
END_TEST

START_TEST(an_optimizer_brings_its_rate_unless_somebody_says_otherwise) {
    set("model", "gpt2-124m", HY_FROM_FLAG);
    is_origin("lr", "preset gpt2-124m");
    set("optimizer", "sgd", HY_FROM_FLAG);
    is_value("lr", "0.1");
    is_origin("lr", "default of the optimizer");
    is_value("weight_decay", "0.0001");
    ck_assert_double_eq(hy_config_settings(config)->optimizer.lr, 0.1);
    must(hy_config_load(config, file_with("rate.cfg", "optimizer = { lr = 0.02; };")));
    is_value("lr", "0.02");
    is_value("weight_decay", "0.0001");
    set("optimizer", "adamw8bit", HY_FROM_FLAG);
    is_value("lr", "0.02");
    is_origin("weight_decay", "preset gpt2-124m");
}
END_TEST

START_TEST(an_architecture_brings_what_its_models_have_unless_somebody_says_otherwise) {
    is_value("qk_norm", "false");
    set("architecture", "gpt_neox", HY_FROM_FLAG);
    is_value("norm", "layernorm");
    is_origin("norm", "set by architecture");
    is_value("positions", "rope");
    is_value("activation", "gelu");
    is_value("qkv_bias", "true");
    is_value("proj_bias", "true");
    set("architecture", "olmo2", HY_FROM_FLAG);
    is_value("qk_norm", "true");
    is_value("norm", "rmsnorm");
    is_value("qkv_bias", "false");
    set("qk_norm", "false", HY_FROM_FLAG);
    is_value("qk_norm", "false");
    set("architecture", "auto", HY_FROM_FLAG);
    is_origin("norm", "preset nano");
}
END_TEST

START_TEST(options_of_an_architecture_follow_from_the_shape_unless_somebody_says_otherwise) {
    set("architecture", "gemma3_text", HY_FROM_FLAG); /* of nano: 128 / 4 */
    is_value("arch_options", "{\"query_pre_attn_scalar\": 32}");
    is_origin("arch_options", "set by architecture");
    set("head_size", "16", HY_FROM_FLAG);
    set("arch_options", "{\"rope_local_base_freq\": 5000}", HY_FROM_FLAG);
    is_value("arch_options", "{\"query_pre_attn_scalar\": 16, \"rope_local_base_freq\": 5000}");
    set("arch_options", "{\"query_pre_attn_scalar\": 24}", HY_FROM_FLAG);
    is_value("arch_options", "{\"query_pre_attn_scalar\": 24}");
    set("arch_options", "{}", HY_FROM_FLAG);
    set("architecture", "granite", HY_FROM_FLAG);
    is_value("arch_options", "{\"attention_multiplier\": 0.0625}");
    set("arch_options", "", HY_FROM_FLAG); /* the defaults of the class */
    is_value("arch_options", "");
    set("architecture", "olmo2", HY_FROM_FLAG);
    is_value("arch_options", "");
}
END_TEST

START_TEST(a_limit_of_a_cards_file_is_not_the_users) {
    must(hy_config_load(config, "rtx5080-safe"));
    ck_assert(!hy_config_settings(config)->is_cpu_mem_own);
    must(hy_config_load(config, file_with("m.cfg", "memory: { cpu_mem = \"1TiB\"; };")));
    ck_assert(hy_config_settings(config)->is_cpu_mem_own);
    must(hy_config_load(config, "a100-80-safe"));
    ck_assert(!hy_config_settings(config)->is_cpu_mem_own);
    set("cpu_mem", "1TiB", HY_FROM_FLAG);
    ck_assert(hy_config_settings(config)->is_cpu_mem_own);
}
END_TEST

#define OF_RUN(rest) "init_from = \"\"; shape: { architecture = \"gemma3_text\"; " rest "};"

/* Programs before this one did not derive options; those before arch_options do not name them. */
START_TEST(a_model_that_has_weights_keeps_its_options) {
    set("architecture", "gemma3_text", HY_FROM_FLAG);
    set("layers", "12", HY_FROM_FLAG);
    set("sliding_window", "32", HY_FROM_FLAG);
    set("init_from", folder, HY_FROM_FLAG); /* weights alone */
    is_value("arch_options", "");
    is_value("sliding_layers", "all");
    set("init_from", "", HY_FROM_FLAG);
    is_value("arch_options", "{\"query_pre_attn_scalar\": 32}");
    is_value("sliding_layers", "sssssf");
    file_with("config.cfg", OF_RUN("arch_options = \"{\\\"query_pre_attn_scalar\\\": 48}\"; "
                                   "sliding_layers = \"sf\"; width = 96;"));
    set("init_from", folder, HY_FROM_FLAG);
    set("profile", "aggressive", HY_FROM_FLAG);
    is_value("arch_options", "{\"query_pre_attn_scalar\": 48}");
    is_value("sliding_layers", "sf");
    is_value("width", "128");
    set("sliding_layers", "all", HY_FROM_FLAG);
    is_value("sliding_layers", "all");
    set("init_from", "", HY_FROM_FLAG);
    is_value("arch_options", "{\"query_pre_attn_scalar\": 32}");
    hy_config_destroy(config);
    must(hy_config_create(&config));
    must(hy_config_load(config, file_with("config.cfg", OF_RUN(""))));
    is_value("arch_options", "");
}
END_TEST

START_TEST(a_preset_has_the_options_of_its_heads) {
    set("model", "gemma-3-1b", HY_FROM_FLAG);
    is_value("arch_options", ""); /* the class's 256 is its head size */
    set("head_size", "64", HY_FROM_FLAG);
    is_value("arch_options", "{\"query_pre_attn_scalar\": 64}");
    set("model", "granite-3.3-2b", HY_FROM_FLAG); /* names its own */
    is_origin("arch_options", "preset granite-3.3-2b");
}
END_TEST

START_TEST(a_window_is_in_the_layers_of_the_family_unless_somebody_says_otherwise) {
    set("sliding_window", "32", HY_FROM_FLAG);
    set("layers", "12", HY_FROM_FLAG);
    is_value("sliding_layers", "all");
    set("architecture", "gemma3_text", HY_FROM_FLAG);
    is_value("sliding_layers", "sssssf");
    set("layers", "4", HY_FROM_FLAG); /* the sixth has none */
    is_value("sliding_layers", "all");
    set("architecture", "gemma2", HY_FROM_FLAG);
    is_value("sliding_layers", "sf");
    set("architecture", "olmo3", HY_FROM_FLAG);
    is_value("sliding_layers", "sssf");
    set("sliding_layers", "all", HY_FROM_FLAG);
    is_value("sliding_layers", "all");
    set("architecture", "mistral", HY_FROM_FLAG);
    is_value("sliding_layers", "all");
}
END_TEST

/* From scratch: muon where its matmuls are a small part of a step, at four times AdamW's rate. */
START_TEST(auto_is_muon_where_that_pays) {
    is_value("schedule", "cosine"); /* nano says so */
    set("profile", "aggressive", HY_FROM_FLAG);
    is_value("optimizer", "adamw"); /* steps of nano are too small */
    is_origin("optimizer", "auto");
    set("model", "gpt2-124m", HY_FROM_FLAG);
    is_value("optimizer", "muon");
    is_value("lr", "0.0024");
    is_value("beta2", "0.99");
    is_value("schedule", "wsd");
    is_value("min_lr_ratio", "0");
    is_origin("min_lr_ratio", "default of the schedule");
    ck_assert_int_eq(hy_config_settings(config)->optimizer.optimizer, HY_MUON);
    ck_assert_int_eq(hy_config_settings(config)->optimizer.schedule, HY_SCHEDULE_WSD);
    set("model", "qwen2.5-7b", HY_FROM_FLAG);
    set("step_tokens", "65536", HY_FROM_FLAG); /* 17 %: too much for what it brings a large model */
    is_value("optimizer", "adamw");
    set("step_tokens", "262144", HY_FROM_FLAG);
    is_value("optimizer", "muon");
    set("step_tokens", "0", HY_FROM_FLAG);
    set("model", "gpt2-124m", HY_FROM_FLAG);
    set("batch_size", "1", HY_FROM_FLAG); /* a step of few tokens: what it costs stays */
    is_value("optimizer", "adamw");
    is_origin("lr", "preset gpt2-124m");
    set("batch_size", "16", HY_FROM_FLAG);
    is_value("optimizer", "muon");
    set("lr", "0.003", HY_FROM_FLAG);
    set("min_lr_ratio", "0.2", HY_FROM_FLAG);
    is_value("lr", "0.003");
    is_value("min_lr_ratio", "0.2");
    set("schedule", "linear", HY_FROM_FLAG);
    set("profile", "balanced", HY_FROM_FLAG);
    is_value("optimizer", "adamw");
    is_value("schedule", "linear");
}
END_TEST

START_TEST(jumps_end_where_the_rate_begins_to_fall) {
    is_value("schedule", "cosine");
    is_value("predict_until", "0.75");
    set("schedule", "wsd", HY_FROM_FLAG);
    is_value("predict_until", "0.6");
    is_origin("predict_until", "default of the schedule");
    ck_assert_double_eq(hy_rules_from_settings(hy_config_settings(config), 0).predict_until, 0.6);
    set("cooldown", "0.1", HY_FROM_FLAG);
    is_value("predict_until", "0.75");
    set("cooldown", "0.5", HY_FROM_FLAG);
    set("predict_until", "0.9", HY_FROM_FLAG); /* who says it means it */
    is_value("predict_until", "0.9");
}
END_TEST

/* A run of a program that did not know a key continues without what it does. */
START_TEST(a_runs_file_of_before_goes_on_as_it_was) {
    const hy_kept_origin nothing = {0};
    set("optimizer", "muon", HY_FROM_FLAG);
    is_value("muon_momentum_warmup", "1000");
    const char *old = file_with("old.cfg", "optimizer = { muon_momentum = 0.95; };");
    must(hy_config_load_kept(config, old, &nothing));
    is_value("muon_momentum_warmup", "0");
    const char *new = file_with("new.cfg", "optimizer = { muon_momentum_warmup = 40; };");
    must(hy_config_load_kept(config, new, &nothing));
    is_value("muon_momentum_warmup", "40");
}
END_TEST

START_TEST(auto_is_adamw_where_weights_are_loaded) {
    set("profile", "aggressive", HY_FROM_FLAG);
    set("model", "gpt2-124m", HY_FROM_FLAG);
    is_value("optimizer", "muon");
    set("init_from", "runs/before", HY_FROM_FLAG);
    is_value("optimizer", "adamw");
    is_value("schedule", "cosine");
    is_value("min_lr_ratio", "0.1");
    set("init_from", "", HY_FROM_FLAG);
    is_value("optimizer", "muon");
    set("predictor_dtype", "8bit", HY_FROM_FLAG); /* which goes with AdamW alone */
    is_value("optimizer", "adamw");
    set("predictor_dtype", "auto", HY_FROM_FLAG);
    must(hy_config_use_own(config)); /* of a loop of the caller nothing was measured */
    is_value("optimizer", "adamw");
    is_value("schedule", "cosine");
    set("optimizer", "muon", HY_FROM_FLAG);
    is_value("lr", "0.001");
}
END_TEST

/* docs/prediction.md, "By default". */
START_TEST(auto_predicts_only_where_that_was_measured_to_pay) {
    static const struct {
        const char *key, *value, *predictor;
    } changes[] = {{"steps", "3000", "none"},
                   {"step_tokens", "32768", "outer"},
                   {"steps", "2999", "none"},
                   {"tokens", "98304000", "outer"},
                   {"tokens", "98303999", "none"},
                   {"tokens", "0", "none"},
                   {"steps", "5000", "outer"},
                   {"optimizer", "muon", "none"},
                   {"optimizer", "adamw8bit", "outer"},
                   {"lora", "true", "none"},
                   {"lora", "false", "outer"},
                   {"init_from", "runs/before", "none"},
                   {"init_from", "", "outer"},
                   {"profile", "aggressive", "outer"},
                   {"steps", "10", "outer"},
                   {"lora", "true", "line"},
                   {"profile", "balanced", "none"},
                   {"predictor", "outer", "outer"}};
    is_value("predictor", "none");
    is_origin("predictor", "auto");
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        set(changes[i].key, changes[i].value, HY_FROM_FLAG);
        ck_assert_msg(!strcmp(value_of("predictor"), changes[i].predictor), "%s = %s",
                      changes[i].key, changes[i].value);
    }
    set("predictor", "auto", HY_FROM_FLAG);
    set("lora", "false", HY_FROM_FLAG);
    set("steps", "5000", HY_FROM_FLAG);
    is_value("predictor", "outer");
    must(hy_config_use_own(config));
    is_value("predictor", "none");
}
END_TEST

START_TEST(lion_brings_its_betas_too) {
    set("model", "gpt2-124m", HY_FROM_FLAG);
    set("optimizer", "paged_lion8bit", HY_FROM_FLAG);
    is_value("lr", "6e-05"); /* a tenth of the preset's */
    is_origin("lr", "default of the optimizer");
    is_value("weight_decay", "1");
    is_value("beta1", "0.9");
    is_value("beta2", "0.99");
    is_origin("beta2", "default of the optimizer");
    must(hy_config_load(config, file_with("beta.cfg", "optimizer = { beta2 = 0.98; };")));
    is_value("beta2", "0.98");
    set("optimizer", "adafactor", HY_FROM_FLAG);
    is_value("lr", "0.01");
    is_value("weight_decay", "0");
    set("adafactor_relative", "off", HY_FROM_FLAG); /* a rate as AdamW has it */
    is_origin("lr", "preset gpt2-124m");
    is_origin("weight_decay", "preset gpt2-124m");
    set("optimizer", "adamw", HY_FROM_FLAG);
    is_origin("lr", "preset gpt2-124m");
}
END_TEST

/* Presets say how many tokens a step has; who writes the numbers wants the step cut like that. */
START_TEST(the_cut_of_a_step_is_open_until_somebody_says_it) {
    set("model", "gpt2-124m", HY_FROM_FLAG);
    is_value("micro_batch", "open");
    must(hy_config_load(config, file_with("cut.cfg", "train = { batch_size = 4; };")));
    is_value("micro_batch", "given");
    must(hy_config_load(config, file_with("cut.cfg", "train = { batch_size = 4; "
                                                     "micro_batch = \"open\"; };")));
    is_value("micro_batch", "open"); /* as a printed configuration says both */
    set("grad_accum_steps", "2", HY_FROM_FLAG);
    is_value("micro_batch", "given"); /* stronger than the file */
    set("micro_batch", "open", HY_FROM_FLAG);
    is_value("micro_batch", "open");
    ck_assert_int_eq(hy_config_settings(config)->train.micro_batch, HY_MICRO_OPEN);
}
END_TEST

/* A preset's warm-up is a third of a short run at the most; who says steps, or a share, gets what
 * they say. */
START_TEST(warm_up_is_a_share_unless_somebody_says_steps) {
    set("model", "gpt2-124m", HY_FROM_FLAG);
    const hy_settings *s = hy_config_settings(config);
    is_value("lr_warmup_steps", "100");
    is_value("lr_warmup_ratio", "0.33");
    ck_assert_int_eq(hy_schedule_from_settings(s, 60).warmup, 20);
    ck_assert_int_eq(hy_schedule_from_settings(s, 304).warmup, 100);
    ck_assert_int_eq(hy_schedule_from_settings(s, 5000).warmup, 100);
    char *text; /* printed and read again it is the same */
    must(hy_config_print(config, &text));
    hy_config_destroy(config);
    must(hy_config_create(&config));
    must(hy_config_load(config, file_with("printed.cfg", text)));
    hy_free(text);
    ck_assert_int_eq(hy_schedule_from_settings(hy_config_settings(config), 60).warmup, 20);
    ck_assert_int_eq(hy_schedule_from_settings(hy_config_settings(config), 5000).warmup, 100);
    hy_config_destroy(config);
    must(hy_config_create(&config));
    set("model", "gpt2-124m", HY_FROM_FLAG);
    must(hy_config_load(config, file_with("steps.cfg", "lr_warmup_steps = 40;")));
    ck_assert_int_eq(hy_schedule_from_settings(hy_config_settings(config), 60).warmup, 40);
    hy_config_destroy(config);
    must(hy_config_create(&config));
    is_value("lr_warmup_ratio", "0.33"); /* nano is a preset */
    set("model", "gpt2-124m", HY_FROM_FLAG);
    set("lr_warmup_ratio", "0.03", HY_FROM_FLAG);
    is_value("lr_warmup_steps", "-1");
    ck_assert_int_eq(hy_schedule_from_settings(hy_config_settings(config), 5000).warmup, 150);
    hy_config_destroy(config);
    must(hy_config_create(&config));
    must(hy_config_load(config, file_with("warm.cfg", "optimizer = { lr_warmup_steps = 40; "
                                                      "lr_warmup_ratio = 0.1; };")));
    ck_assert_int_eq(hy_schedule_from_settings(hy_config_settings(config), 60).warmup, 6);
    set("lr_warmup_steps", "40", HY_FROM_FLAG);
    is_value("lr_warmup_ratio", "1");
    ck_assert_int_eq(hy_schedule_from_settings(hy_config_settings(config), 60).warmup, 40);
    ck_assert_int_eq(hy_schedule_from_settings(hy_config_settings(config), 30).warmup, 30);
    set("lr_warmup_steps", "0", HY_FROM_FLAG);
    ck_assert_int_eq(hy_schedule_from_settings(hy_config_settings(config), 60).warmup, 0);
}
END_TEST

/* ---- printing ----------------------------------------------------------------------------------
 * */

/* Printed, loaded into a fresh configuration and compared field by field. */
static void check_round_trip(void) {
    char *text = printed(config);
    hy_config *c;
    must(hy_config_create(&c));
    must(hy_config_load(c, file_with("printed.cfg", text)));
    for (size_t i = 0; hy_config_key(i); i++) {
        const char *theirs;
        must(hy_config_get(c, hy_config_key(i)->key, &theirs, NULL));
        ck_assert_str_eq(theirs, value_of(hy_config_key(i)->key));
    }
    ck_assert_mem_eq(hy_config_settings(c), hy_config_settings(config), sizeof(hy_settings));
    hy_config_destroy(c);
    hy_free(text);
}

START_TEST(the_printed_configuration_loads_back_to_the_same_values) {
    check_round_trip();
    set("prompt",
        "quote \" backslash \\ line\nreturn\r tab\t bell\a del\x7f umlaut \xc3\xa4 # no // no",
        HY_FROM_FLAG);
    set("lr", "0.1234567890123456789", HY_FROM_FLAG);
    set("adam_eps", "1.1e-16", HY_FROM_FLAG);
    set("seed", "9007199254740991", HY_FROM_FLAG);
    set("tokens", "12345678901", HY_FROM_FLAG);
    set("max_gpu_mem", "15GiB", HY_FROM_FLAG);
    set("cpu_mem", "123456789012", HY_FROM_FLAG);
    set("shuffle", "false", HY_FROM_FLAG);
    check_round_trip();
    for (size_t i = 0; hy_builtin_name("model", i); i++) {
        set("model", hy_builtin_name("model", i), HY_FROM_FLAG);
        check_round_trip();
    }
}
END_TEST

START_TEST(the_printed_configuration_shows_origins) {
    set("batch_size", "16", HY_FROM_FLAG);
    char *text = printed(config);
    ck_assert_ptr_nonnull(strstr(text, "\nmodel = \"nano\";  # default\n"));
    ck_assert_ptr_nonnull(strstr(text, "\ntrain: {\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  batch_size = 16;  # flag --batch-size\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  grad_accum_steps = 2;  # profile balanced\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n  layers = 4;  # preset nano\n"));
    hy_free(text);
}
END_TEST

/* Ranks may have devices, threads and memory of their own; whatever else is another makes it
 * another run. */
START_TEST(what_ranks_must_have_alike_is_all_but_what_a_machine_has) {
    static const struct {
        const char *key, *value;
    } local[] = {{"device", "cuda:3"},
                 {"threads", "5"},
                 {"tune_cache", "none"},
                 {"num_workers", "2"},
                 {"cpu_mem", "5GiB"},
                 {"max_gpu_mem", "8GiB"},
                 {"offload_folder", "/fast"},
                 {"offload_size", "9GiB"},
                 {"host_reserve", "1GiB"},
                 {"buffer_size", "1MiB"},
                 {"rank_secret_file", "/etc/secret"},
                 {"reward_program", "./score"},
                 {"reward_seconds", "5"},
                 {"rollout_streams", "7"}};
    static const char *const alike[][2] = {
        {"seed", "2"},        {"lr", "0.5"},        {"data", "x.txt"},
        {"zero_stage", "2"},  {"transport", "mpi"}, {"out", "y"},
        {"recompute", "all"}, {"prompt", "Once"},   {"shuffle", "false"}};
    uint64_t first = hy_settings_agreed(hy_config_settings(config));
    size_t locals = 0;
    for (size_t i = 0; i < hy_setting_count(); i++) locals += hy_setting_at(i)->is_local;
    ck_assert_uint_eq(locals, sizeof local / sizeof local[0]);
    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++)
        set(local[i].key, local[i].value, HY_FROM_FLAG);
    set("steps", value_of("steps"), HY_FROM_FLAG); /* where a value came from does not count */
    ck_assert_uint_eq(hy_settings_agreed(hy_config_settings(config)), first);
    for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++) {
        uint64_t before = hy_settings_agreed(hy_config_settings(config));
        set(alike[i][0], alike[i][1], HY_FROM_FLAG);
        ck_assert_msg(hy_settings_agreed(hy_config_settings(config)) != before, "%s", alike[i][0]);
    }
}
END_TEST

START_TEST(how_ranks_work_together_is_set_like_any_key) {
    is_value("ranks.zero_stage", "auto");
    ck_assert_int_eq(hy_config_settings(config)->ranks.zero_stage, HY_ZERO_AUTO);
    must(hy_config_load(config,
                        file_with("ranks.cfg", "ranks: { zero_stage = 3; transport = \"sockets\"; "
                                               "rank_timeout = 7; };\n")));
    const hy_settings *s = hy_config_settings(config);
    ck_assert_int_eq(s->ranks.zero_stage, HY_ZERO_WEIGHTS);
    ck_assert_int_eq(s->ranks.transport, HY_LINK_SOCKETS);
    ck_assert(s->ranks.rank_timeout == 7);
    set("--zero-stage", "1", HY_FROM_FLAG);
    ck_assert_int_eq(hy_config_settings(config)->ranks.zero_stage, HY_ZERO_OPTIMIZER);
    must_refuse(hy_config_set(config, "zero_stage", "4", HY_FROM_FLAG), "ranks.zero_stage",
                "auto, 0, 1, 2, 3");
    must_refuse(hy_config_set(config, "rank_timeout", "0", HY_FROM_FLAG), "1 to 86400");
    check_round_trip();
}
END_TEST

static Suite *config_suite(void) {
    Suite *suite = suite_create("config");
    TCase *tests = tcase_create("config");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, names_are_unique_and_flags_follow_from_them);
    tcase_add_test(tests, every_row_is_complete_and_listed_with_its_group);
    tcase_add_test(tests, fields_do_not_overlap);
    tcase_add_test(tests, every_word_of_a_choice_has_a_distinct_value_and_is_found_again);
    tcase_add_test(tests, what_a_field_holds_is_written_as_its_canonical_text);
    tcase_add_test(tests, names_can_be_full_bare_flags_or_dashed);
    tcase_add_test(tests, every_alias_reaches_its_key);
    tcase_add_test(tests, switch_aliases_choose_what_is_recomputed);
    tcase_add_test(tests, names_and_values_of_other_trainers_are_read);
    tcase_add_test(tests, the_removed_predictor_ema_is_read_as_outer);
    tcase_add_test(tests, values_have_one_canonical_spelling);
    tcase_add_test(tests, wrong_values_are_refused_with_key_value_range_and_origin);
    tcase_add_test(tests, texts_longer_than_their_field_are_refused);
    tcase_add_test(tests, unknown_keys_are_refused_with_the_nearest);
    tcase_add_test(tests, the_stronger_origin_wins_whatever_the_order);
    tcase_add_test(tests, within_one_origin_the_later_call_wins);
    tcase_add_test(tests, origins_are_described_in_words);
    tcase_add_test(tests, flag_beats_set_beats_file_beats_profile_beats_preset);
    tcase_add_test(tests, another_profile_or_model_replaces_what_the_first_one_brought);
    tcase_add_test(tests, a_file_may_name_model_and_profile_and_a_flag_overrides_them);
    tcase_add_test(tests, the_length_given_by_the_strongest_origin_counts);
    tcase_add_test(tests,
                   an_architecture_brings_what_its_models_have_unless_somebody_says_otherwise);
    tcase_add_test(tests,
                   options_of_an_architecture_follow_from_the_shape_unless_somebody_says_otherwise);
    tcase_add_test(tests, a_model_that_has_weights_keeps_its_options);
    tcase_add_test(tests, a_limit_of_a_cards_file_is_not_the_users);
    tcase_add_test(tests, a_preset_has_the_options_of_its_heads);
    tcase_add_test(tests, a_window_is_in_the_layers_of_the_family_unless_somebody_says_otherwise);
    tcase_add_test(tests, an_optimizer_brings_its_rate_unless_somebody_says_otherwise);
    tcase_add_test(tests, auto_is_muon_where_that_pays);
    tcase_add_test(tests, auto_is_adamw_where_weights_are_loaded);
    tcase_add_test(tests, auto_predicts_only_where_that_was_measured_to_pay);
    tcase_add_test(tests, jumps_end_where_the_rate_begins_to_fall);
    tcase_add_test(tests, a_runs_file_of_before_goes_on_as_it_was);
    tcase_add_test(tests, lion_brings_its_betas_too);
    tcase_add_test(tests, warm_up_is_a_share_unless_somebody_says_steps);
    tcase_add_test(tests, the_cut_of_a_step_is_open_until_somebody_says_it);
    tcase_add_test(tests, the_printed_configuration_loads_back_to_the_same_values);
    tcase_add_test(tests, the_printed_configuration_shows_origins);
    tcase_add_test(tests, what_ranks_must_have_alike_is_all_but_what_a_machine_has);
    tcase_add_test(tests, how_ranks_work_together_is_set_like_any_key);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(config_suite)
