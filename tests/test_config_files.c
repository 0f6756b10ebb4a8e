/* test_config_files.c: configuration files: models, errors with their lines, the built-in files,
 * and the reference page.
 *
 * With HYBRID_UPDATE_DOCS=1 in the environment the tables of docs/configuration.md are written anew
 * instead of compared. */
#include <libgen.h>
#include <limits.h>

#include "base/rng.h"
#include "base/text.h"
#include "config/builtin.h"
#include "config/derived.h"
#include "config_fixture.h"

/* ---- models ------------------------------------------------------------------------------------
 * */

START_TEST(a_model_can_be_a_file_with_a_shape) {
    const char *path = file_with("mine.cfg", "shape: { layers = 3; width = 96; };\n"
                                             "optimizer: { lr = 0.01; };");
    char expected[600];
    snprintf(expected, sizeof expected, "preset %s", path);
    set("model", path, HY_FROM_FLAG);
    is_value("layers", "3");
    is_value("lr", "0.01");
    is_origin("lr", expected);
    is_value("steps", "0"); /* nano's job is gone */
}
END_TEST

START_TEST(wrong_models_are_refused) {
    must_refuse(hy_config_set(config, "model", "gpt2-12m", HY_FROM_FLAG), "flag --model",
                "unknown model gpt2-12m", "did you mean gpt2-124m?", "nano", "llama-3.1-8b",
                ".cfg");
    must_refuse(hy_config_set(config, "model", "", HY_FROM_SET), "--set: unknown model \"\"");
    must_refuse(hy_config_set(config, "model", folder, HY_FROM_SET), "has no config.json",
                "config.json");
    must_refuse(hy_config_set(config, "model", file_with("a.cfg", "lr = 0.1;"), HY_FROM_SET),
                "a.cfg: no group \"shape\"");
    must_refuse(hy_config_set(config, "model", file_with("b.cfg", "shape: {};\nmodel = \"nano\";"),
                              HY_FROM_SET),
                "b.cfg:2: model cannot be set in a preset");
    must_refuse(hy_config_set(config, "model", file_with("c.cfg", "shape: {\n layers = 0; };"),
                              HY_FROM_SET),
                "c.cfg:2: shape.layers = 0", "1 to 1024");
    must_refuse(hy_config_set(config, "model", "nano", HY_FROM_PRESET), "preset or profile");
    must_refuse(hy_config_set(config, "model", "/none/of/it", HY_FROM_FLAG),
                "model = /none/of/it: no such file or folder");
    char below[700], there[700];
    snprintf(below, sizeof below, "%s/models/Qwen", folder);
    snprintf(there, sizeof there, "(%s exists)", folder);
    must_refuse(hy_config_set(config, "model", below, HY_FROM_FLAG), "no such file or folder",
                there);
    must_refuse(hy_config_load(config, file_with("d.cfg", "\nmodel = \"nono\";")),
                "d.cfg:2: unknown model nono", "did you mean nano?");
}
END_TEST

static int64_t parameters(const hy_settings *s) {
    hy_shape shape;
    hy_params params;
    int64_t count = 0;
    must(hy_shape_from_settings(s, &shape));
    must(hy_params_init(&params, &shape));
    for (int32_t i = 0; i < params.count; i++) count += params.list[i].stored;
    hy_params_fini(&params);
    return count;
}

START_TEST(presets_have_the_known_parameter_counts_and_say_so) {
    static const struct {
        const char *name;
        int64_t count;
    } known[] = {
        {"gpt2-124m", 124439808},       {"gpt2-350m", 354823168},
        {"gpt2-774m", 774030080},       {"gpt2-1558m", 1557611200},
        {"llama-3.2-1b", 1235814400},   {"qwen2.5-0.5b", 494032768},
        {"qwen2.5-1.5b", 1543714304},   {"qwen2.5-3b", 3085938688},
        {"qwen2.5-7b", 7615616512},     {"llama-2-7b", 6738415616},
        {"llama-3.1-8b", 8030261248},   {"qwen3-0.6b", 596049920},
        {"qwen3-8b", 8190735360},       {"qwen2.5-32b", 32763876352},
        {"mistral-7b", 7241732096},     {"nano", 787584},
        {"tiny-llama", 5869824},        {"tiny-gpt2", 6646272},
        {"llama-2-13b", 13015864320},   {"qwen2.5-14b", 14770033664},
        {"gemma-2-2b", 2614341888},     {"gemma-2-9b", 9241705984},
        {"gemma-3-270m", 268098176},    {"gemma-3-1b", 999885952},
        {"gemma-3-4b", 3880263168},     {"gemma-3-12b", 11766034176},
        {"phi-3-mini-4k", 3821079552},  {"phi-4", 14659507200},
        {"phi-4-mini", 3836021760},     {"olmo-2-1b", 1484916736},
        {"olmo-2-7b", 7298617344},      {"olmo-3-7b", 7298011136},
        {"smollm3-3b", 3075098624},     {"granite-3.3-2b", 2533539840},
        {"granite-3.3-8b", 8170864640}, {"granite-4.0-350m", 352379904},
        {"granite-4.0-1b", 1631750144}, {"granite-4.0-micro", 3402836480},
        {"ministral-3-3b", 3429006336}, {"ministral-3-8b", 8489553920},
        {"pythia-70m", 70426624},       {"pythia-160m", 162322944},
        {"pythia-410m", 405334016},     {"pythia-1b", 1011781632},
        {"pythia-1.4b", 1414647808},    {"pythia-2.8b", 2775208960},
        {"pythia-6.9b", 6857302016},    {"starcoder2-3b", 3030371328},
        {"starcoder2-7b", 7173923840},  {"qwen3.5-0.8b", 752393024},
        {"qwen3.5-2b", 1881825088},     {"qwen3.5-4b", 4205751296},
        {"qwen3.5-9b", 8953803264},     {"qwen3.5-27b", 26895998464},
    };
    size_t count = sizeof known / sizeof known[0];
    for (size_t i = 0; i < count; i++) {
        set("model", known[i].name, HY_FROM_FLAG);
        ck_assert_int_eq(parameters(hy_config_settings(config)), known[i].count);
        char digits[32], said[40] = "";
        snprintf(digits, sizeof digits, "%lld", (long long)known[i].count);
        for (size_t d = 0, n = strlen(digits); d < n; d++) {
            size_t used = strlen(said);
            snprintf(said + used, sizeof said - used, "%s%c", d && (n - d) % 3 == 0 ? "," : "",
                     digits[d]);
        }
        strcat(said, " parameters");
        ck_assert_msg(strstr(hy_builtin_text("model", known[i].name), said) != NULL,
                      "%s does not say \"%s\"", known[i].name, said);
    }
    ck_assert_ptr_null(hy_builtin_name("model", count));
}
END_TEST

START_TEST(presets_say_all_that_a_shape_needs) {
    static const char *const needed[] = {"layers",     "width",     "heads",    "mlp_width",
                                         "vocab",      "context",   "norm",     "positions",
                                         "activation", "tied_head", "norm_eps", "steps",
                                         "batch_size", "seq_len",   "lr",       "lr_warmup_steps"};
    for (size_t m = 0; hy_builtin_name("model", m); m++) {
        set("model", hy_builtin_name("model", m), HY_FROM_FLAG);
        for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
            ck_assert_msg(!strncmp(origin_of(needed[i]), "preset ", 7), "%s does not say %s",
                          hy_builtin_name("model", m), needed[i]);
        }
        const hy_settings *s = hy_config_settings(config);
        ck_assert_int_le(s->train.seq_len, s->shape.context);
        ck_assert_int_lt(s->optimizer.lr_warmup_steps, s->train.steps);
        if (!s->shape.head_size) ck_assert_int_eq(s->shape.width % s->shape.heads, 0);
        if (s->shape.kv_heads) ck_assert_int_eq(s->shape.heads % s->shape.kv_heads, 0);
    }
}
END_TEST

/* ---- files -------------------------------------------------------------------------------------
 * */

START_TEST(all_kinds_of_libconfig_values_are_taken) {
    must(hy_config_load(
        config,
        file_with("a.cfg",
                  "// one\n# two\n/* 99999999999999999999999 \" */\n"
                  "batch_size = \"2k\"; tokens = 5000000000; seed = 0x1FFFFFFFF;\n"
                  "optimizer: { lr = 1; beta1 = .5; beta2 = 5e-1 }\n"
                  "train: { scale-lr = true, normalize = 0; steps = 1e3; max_grad_norm = 2; };\n"
                  "memory: { max_gpu_mem = 6000000000L; cpu_mem = \"1GiB\"; };\n"
                  "prompt = \"a\" \"b\\n5000000000\\\"c@include\";\n")));
    is_value("batch_size", "2000");
    is_value("tokens", "5000000000");
    is_value("seed", "8589934591");
    is_value("lr", "1");
    is_value("beta1", "0.5");
    is_value("beta2", "0.5");
    is_value("scale_lr", "true");
    is_value("normalize", "false");
    is_value("steps", "1000");
    is_value("grad_clip", "2");
    is_value("max_gpu_mem", "6G");
    is_value("cpu_mem", "1GiB");
    is_value("prompt", "ab\n5000000000\"c@include");
    must(hy_config_load(config, file_with("b.cfg", "optimizer = \"ADAMW\";\n")));
    is_value("optimizer", "adamw");
    must(hy_config_load(config, file_with("c.cfg", "")));
}
END_TEST

START_TEST(separators_escapes_and_comments_are_read_as_libconfig_does) {
    must(hy_config_load(config,
                        file_with("a.cfg",
                                  "prompt = /* one */ \"\\x41\\t\\q\" // two\n # three\n \"\\\\\", "
                                  "shuffle : TRUE keep = +3 optimizer : {lr=1.e-2,nesterov=False}\n"
                                  "seed = 0xFFL; steps = 12LL;")));
    is_value("prompt", "A\t\\q\\");
    is_value("shuffle", "true");
    is_value("keep", "3");
    is_value("lr", "0.01");
    is_value("nesterov", "false");
    is_value("seed", "255");
    is_value("steps", "12");
    static const char *const wrong[] = {
        "keep = 1;;",   "keep = ;",      "= 1;",         "keep 1;", "keep = 1 }", "{}",
        "keep = -;",    "keep = 1.2.3;", "keep = 0x;",   "_a = 1;", "keep",       "keep = 1x;",
        "keep = -0x5;", "\xff = 1;",     "keep = 1LLL;", "\x01"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        must_refuse(hy_config_load(config, file_with("x.cfg", wrong[i])), "x.cfg:1: syntax error");
    }
    must_refuse(hy_config_load(config, file_with("x.cfg", "save: { keep = 1; };\nsave: {};")),
                "x.cfg:2: duplicate setting name");
    must_refuse(hy_config_load(config, file_with("x.cfg", "prompt = \"\\x00\";")), "zero byte");
    must_refuse(hy_config_load(config, file_with("x.cfg", "lr = .;")),
                "x.cfg:1: this number has no");
}
END_TEST

START_TEST(whole_numbers_have_64_bits_however_they_are_written) {
    static const struct {
        const char *text, *value;
    } cases[] = {
        {"tokens = 2147483647;", "2147483647"},  {"tokens = 2147483648;", "2147483648"},
        {"tokens = 4294967296L;", "4294967296"}, {"tokens = 4294967296LL;", "4294967296"},
        {"tokens = 0xFFFFFFFF;", "4294967295"},  {"tokens = 0X1ffffffffL;", "8589934591"},
        {"tokens = +5000000000;", "5000000000"}, {"tokens=5000000000keep=3", "5000000000"},
        {"tokens=0005000000000;", "5000000000"}, {"tokens=[];", NULL},
        {"tokens = 9223372036854775808;", NULL}, {"tokens = 99999999999999999999L;", NULL},
        {"tokens = 0x1FFFFFFFFFFFFFFFF;", NULL}, {"tokens = -5000000000;", NULL},
        {"tokens = 0xFFFFFFFFFFFFFFFFL;", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *path = file_with("x.cfg", cases[i].text);
        if (cases[i].value) {
            must(hy_config_load(config, path));
            is_value("tokens", cases[i].value);
        } else {
            must_refuse(hy_config_load(config, path), "x.cfg:1: ", "accepted: ");
        }
    }
}
END_TEST

/* libconfig would open the file that is named, and ends the process in some versions. */
START_TEST(an_include_is_refused_and_harmless_in_strings_and_comments) {
    static const char *const refused[] = {"\n@include \"y.cfg\"",
                                          "\n \t@include \"y.cfg\"\n",
                                          "keep = 1;\nlr = 1; @include \"y.cfg\"",
                                          "/**/\n/**/@include \"y.cfg\"",
                                          "prompt = \"\\\\\";\n@include \"y.cfg\"",
                                          "save: {\n@include \"y.cfg\"\n}",
                                          "prompt = \"#\";\n@include \"y.cfg\"",
                                          "keep = 1; # \"\n@include \"y.cfg\" # \"",
                                          "\n@"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        must_refuse(hy_config_load(config, file_with("x.cfg", refused[i])),
                    "x.cfg:2: @ is not accepted here; there is no @include");
    }
    must(hy_config_load(config, file_with("x.cfg", "prompt = \"a\n@include \\\"y.cfg\\\"\n\\@\";\n"
                                                   "/*\n@include \"y.cfg\"\n*/ keep = 7;\n"
                                                   "// @include \"y.cfg\"\n# @include \"y.cfg\"")));
    is_value("prompt", "a\n@include \"y.cfg\"\n\\@");
    is_value("keep", "7");
    char line[300];
    snprintf(line, sizeof line, "%s/x.cfg:6", folder);
    is_origin("keep", line);
}
END_TEST

/* libconfig compares each key with all before it and keeps a stack for nested groups. */
START_TEST(size_nesting_and_number_of_settings_are_bounded) {
    hy_text text = {0};
    hy_text_add(&text, "keep = 7;\n");
    while (text.size < 256 << 10) hy_text_add(&text, "#");
    must(hy_config_load(config, file_with("x.cfg", text.data)));
    is_value("keep", "7");
    hy_text_add(&text, "#");
    must_refuse(hy_config_load(config, file_with("x.cfg", text.data)),
                "x.cfg is too large: 262145 bytes; a configuration file can have at most 262144");
    hy_text_clear(&text);
    for (int i = 0; i < 1024; i++) hy_text_addf(&text, "key_%d = %d;\n", i, i);
    must_refuse(hy_config_load(config, file_with("x.cfg", text.data)), "x.cfg:1: unknown key");
    hy_text_add(&text, "last = 1;\n");
    must_refuse(hy_config_load(config, file_with("x.cfg", text.data)),
                "x.cfg:1025: the file has more than 1024");
    must_refuse(hy_config_load(config, file_with("x.cfg", "keep =\n((((((((1))))))));")),
                "x.cfg:1: save.keep takes one value");
    for (const char *c = "([{"; *c; c++) {
        hy_text_clear(&text);
        hy_text_add(&text, "keep =\n");
        for (int i = 0; i < 80000; i++) hy_text_addf(&text, *c == '{' ? "a={" : "%c", *c);
        must_refuse(hy_config_load(config, file_with("x.cfg", text.data)),
                    "x.cfg:2: groups or lists");
    }
    hy_text_clear(&text);
    hy_text_add(&text, "keep = [1");
    for (int i = 0; i < 130000; i++) hy_text_add(&text, ",1");
    hy_text_add(&text, "];");
    must_refuse(hy_config_load(config, file_with("x.cfg", text.data)), "save.keep takes one value");
    hy_text_free(&text);
}
END_TEST

START_TEST(wrong_files_are_refused_with_file_line_and_what_is_accepted) {
    static const struct {
        const char *text, *fragments[3];
    } cases[] = {
        {"\n\ntrain: {\n  bach_size = 4;\n};",
         {"x.cfg:4: unknown key train.bach_size; did you mean train.batch_size?", "", ""}},
        {"bach_size = 4;",
         {"x.cfg:1: unknown key bach_size; did you mean train.batch_size?", "", ""}},
        {"optimizer: {\n batch_size = 4; };",
         {"x.cfg:2: unknown key optimizer.batch_size; did you mean train.batch_size?", "", ""}},
        {"\ntrian: { steps = 1; };",
         {"x.cfg:2: unknown group trian", "shape, train, lora, optimizer", "did you mean train?"}},
        {"train: {\n inner: { steps = 1; }; };", {"x.cfg:2: unknown key train.inner", "", ""}},
        {"memory = 4;", {"x.cfg:1: memory is a group", "", ""}},
        {"steps: { a = 1; };", {"x.cfg:1: train.steps takes one value", "", ""}},
        {"steps = [1, 2];", {"x.cfg:1: train.steps takes one value", "0 to 1000000000", ""}},
        {"steps = (1, 2);", {"x.cfg:1: train.steps takes one value", "", ""}},
        {"\nbatch_size = 0;", {"x.cfg:2: train.batch_size = 0", "1 to 65536", ""}},
        {"\nbatch_size = true;", {"x.cfg:2: train.batch_size = true", "1 to 65536", ""}},
        {"\nbatch_size = 4.5;", {"x.cfg:2: train.batch_size = 4.5", "1 to 65536", ""}},
        {"\nbatch_size = 4294967297;", {"x.cfg:2: train.batch_size = 4294967297", "65536", ""}},
        {"\nsteps = 99999999999999999999;", {"x.cfg:2: 99999999999999999999 is too large", "", ""}},
        {"\nlr = 1e999;", {"x.cfg:2: optimizer.lr = inf", "0 to 10", ""}},
        {"\nlr = false;", {"x.cfg:2: optimizer.lr = false", "a number, 0 to 10", ""}},
        {"\nshuffle = 3;", {"x.cfg:2: input.shuffle = 3", "true, false", ""}},
        {"\nprecision = 16;", {"x.cfg:2: train.precision = 16", "auto, fp32, bf16", ""}},
        {"\ndata = 16;", {"x.cfg:2: data = 16 is not text", "in quotes", ""}},
        {"\nprecision = bf16;", {"x.cfg:2: syntax error", "quotes", ""}},
        {"lr = 1;\nlr = 2;", {"x.cfg:2: duplicate", "", ""}},
        {"train: {\n steps = 5;", {"x.cfg:", "syntax error", ""}},
        {"\nprompt = \"open;\n", {"x.cfg:2: the string that starts here is not closed", "", ""}},
        {"\nprompt \"x\";", {"x.cfg:2: this string has no KEY = before", "", ""}},
        {"\ndata = [\"a\", \"b\"];", {"x.cfg:2: this string has no KEY =", "lists are not", ""}},
        {"keep = 1,\n\"a\";", {"x.cfg:2: this string has no KEY =", "", ""}},
        {"keep = [1, 2.0];", {"x.cfg:1: mismatched element type in array", "", ""}},
        {"\n\n/* open", {"x.cfg:3: the comment that starts here is not closed", "", ""}},
        {"\n @include \"y.cfg\"\n", {"x.cfg:2: @ is not accepted here", "", ""}},
        {"profile = \"balancd\";", {"x.cfg:1: profile = balancd", "did you mean balanced?", ""}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        must_refuse(hy_config_load(config, file_with("x.cfg", cases[i].text)),
                    cases[i].fragments[0], cases[i].fragments[1], cases[i].fragments[2]);
    }
    const char *path = file_with("x.cfg", "");
    must(hy_file_write_atomic(path, "steps = 5;\n\0lr = 1;", 20));
    must_refuse(hy_config_load(config, path), "x.cfg:2: the file contains a zero byte");
}
END_TEST

START_TEST(of_a_wrong_file_nothing_is_taken) {
    must_refuse(hy_config_load(config, file_with("x.cfg", "model = \"gpt2-124m\";\nkeep = 9;\n"
                                                          "profile = \"aggressive\";\nlr = 99;\n")),
                "x.cfg:4: optimizer.lr = 99");
    is_value("model", "nano");
    is_value("keep", "2");
}
END_TEST

/* The same key and value by flag and by file, in every format. */
static hy_status give(int way, const char *name, const char *text) {
    char line[256];
    if (way == 0) return hy_config_set(config, name, text, HY_FROM_FLAG);
    if (way == 1) return hy_config_set(config, name, text, HY_FROM_SET);
    snprintf(line, sizeof line,
             way == 2   ? "%s = \"%s\";"
             : way == 3 ? "%s: %s\n"
                        : "{\"%s\": \"%s\"}",
             name, text);
    const char *file = way == 2 ? "a.cfg" : way == 3 ? "a.yaml" : "a.json";
    return hy_config_load(config, file_with(file, line));
}

static void with_dashes(const char *name, char out[64]) {
    snprintf(out, 64, "%s", name);
    for (char *c = out; *c; c++)
        if (*c == '_') *c = '-';
}

START_TEST(names_of_other_trainers_work_in_flags_and_in_files) {
    static const char *const accepted[][4] = {
        {"use_bf16", "true", "precision", "bf16"},
        {"use_fp16", "true", "precision", "fp16"},
        {"bf16", "auto", "precision", "auto"},
        {"synthetic", "true", "data", "builtin"},
        {"max_seq_length", "64", "seq_len", "64"},
        {"target_modules", "q_proj", "lora_targets", "q_proj"},
        {"optim", "adamw_8bit", "optimizer", "adamw8bit"},
        {"mixed_precision", "bf16", "precision", "bf16"},
        {"use_flash_attention", "true", "attention", "auto"},
        {"target_utilization", "0.5", "target_usage", "0.5"},
        {"gradient_accumulation_steps", "3", "grad_accum_steps", "3"},
        {"micro_batch_size", "2", "batch_size", "2"},
        {"num_epochs", "2", "epochs", "2"},
        {"lora_r", "4", "lora_rank", "4"},
        {"r", "4", "lora_rank", "4"},
        {"val_set_size", "0.1", "val_fraction", "0.1"},
        {"output_dir", "x", "out", "x"},
        {"load_in_4bit", "true", "frozen_dtype", "nf4"},
        {"quantization_bit", "8", "frozen_dtype", "int8"},
        {"finetuning_type", "lora", "lora", "true"},
        {"use_gradient_checkpointing", "unsloth", "recompute", "all"},
        {"adapter", "lora", "lora", "true"},
        {"adapter", "QLoRA", "qlora", "true"},
        {"random_state", "7", "seed", "7"},
        {"dataset_num_proc", "3", "num_workers", "3"},
        {"cosine_min_lr_ratio", "0.2", "min_lr_ratio", "0.2"},
    };
    static const char *const hinted[][2] = {
        {"device_map", "--weights-place"},
        {"num_gpus", "--gpus"},
        {"datasets", "use data: FILE"},
        {"lora_target_linear", "--lora-targets all"},
        {"wandb_project", "follow_metrics.py"},
        {"deepspeed", "--zero-stage"},
        {"fsdp_config", "--gpus N"},
        {"flash_attn", "attention never stores its matrix"},
        {"logging_steps", "metrics.jsonl"},
        {"evals_per_epoch", "--eval-every"},
        {"bias", "--lora-modules"},
        {"trust_remote_code", "not needed"},
    };
    char dashed[64];
    for (int way = 0; way < 10; way++) {
        for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
            const char *const *row = accepted[i];
            hy_config_destroy(config);
            must(hy_config_create(&config));
            with_dashes(row[0], dashed);
            must(give(way / 2, way % 2 ? dashed : row[0], row[1]));
            is_value(row[2], row[3]);
        }
        for (size_t i = 0; i < sizeof hinted / sizeof hinted[0]; i++) {
            with_dashes(hinted[i][0], dashed);
            must_refuse(give(way / 2, way % 2 ? dashed : hinted[i][0], "x"), "unknown ",
                        hinted[i][1]);
        }
    }
}
END_TEST

START_TEST(missing_files_are_refused_with_the_built_in_names) {
    must_refuse(hy_config_load(config, "no/such.cfg"), "no/such.cfg: configuration file not found",
                "rtx5080, rtx5080-safe");
    must_refuse(hy_config_load(config, "rtx580"), "did you mean rtx5080?");
    must_refuse(hy_config_load(config, "gpt2-124m"), "--model gpt2-124m");
    must_refuse(hy_config_load(config, "balanced"), "--profile balanced");
    must_refuse(hy_config_load(config, folder), "is a folder");
    must_refuse(hy_config_load(config, ""), "file is empty");
    must_refuse(hy_config_load(config, NULL), "file is empty");
}
END_TEST

START_TEST(a_later_file_wins_over_an_earlier_one) {
    must(hy_config_load(config, file_with("a.cfg", "keep = 3; lr = 0.5;")));
    must(hy_config_load(config, file_with("b.cfg", "keep = 4;")));
    is_value("keep", "4");
    is_value("lr", "0.5");
}
END_TEST

START_TEST(a_file_in_the_way_wins_over_a_built_in_card_file) {
    char before[PATH_MAX];
    ck_assert_ptr_nonnull(getcwd(before, sizeof before));
    file_with("rtx5080", "keep = 33;");
    ck_assert_int_eq(chdir(folder), 0);
    must(hy_config_load(config, "rtx5080"));
    is_value("keep", "33");
    is_value("max_gpu_mem", "0");
    must(hy_config_load(config, "gpu/rtx5080"));
    is_value("max_gpu_mem", "15GiB");
    ck_assert_int_eq(chdir(before), 0);
}
END_TEST

/* A damaged text must fail with a message or load; run under the sanitizers this finds the rest. */
static void load_damaged(const char *text, size_t size) {
    hy_config *c;
    must(hy_config_create(&c));
    static char path[512];
    snprintf(path, sizeof path, "%s/damaged.cfg", folder);
    must(hy_file_write_atomic(path, text, size));
    hy_status status = hy_config_load(c, path);
    ck_assert_msg(status == HY_OK || status == HY_ERR_INPUT, "%s", hy_error_message());
    if (status != HY_OK) ck_assert_ptr_nonnull(strstr(hy_error_message(), "damaged.cfg:"));
    hy_config_destroy(c);
}

START_TEST(damaged_files_fail_cleanly) {
    const char *whole = hy_builtin_text("model", "llama-3.2-1b");
    size_t size = strlen(whole);
    for (size_t cut = 0; cut < size; cut += 3) load_damaged(whole, cut);
    char text[4096];
    for (uint64_t round = 0; round < 300; round++) {
        memcpy(text, whole, size);
        for (uint64_t i = 0; i < 3; i++) {
            uint64_t r = hy_rng_u64(1, HY_RNG_TEST, round * 3 + i);
            text[r % size] = (char)(r >> 32);
        }
        load_damaged(text, size);
    }
}
END_TEST

/* ---- built-in files ----------------------------------------------------------------------------
 * */

START_TEST(the_accepted_profiles_are_the_built_in_ones) {
    const char *accepted = hy_config_find("profile")->accepted;
    size_t count = 0;
    for (; hy_builtin_name("profile", count); count++) {
        ck_assert_ptr_nonnull(strstr(accepted, hy_builtin_name("profile", count)));
        set("profile", hy_builtin_name("profile", count), HY_FROM_FLAG);
    }
    ck_assert_uint_eq(count, 3);
    ck_assert_ptr_null(hy_builtin_name("nothing", 0));
    ck_assert_ptr_null(hy_builtin_name(NULL, 0));
    ck_assert_ptr_null(hy_builtin_text("profile", "nothing"));
    ck_assert_ptr_null(hy_builtin_text("profile", NULL));
}
END_TEST

START_TEST(every_card_file_and_profile_loads_over_every_model) {
    for (size_t m = 0; hy_builtin_name("model", m); m++) {
        for (size_t p = 0; hy_builtin_name("profile", p); p++) {
            hy_config *c;
            must(hy_config_create(&c));
            must(hy_config_set(c, "model", hy_builtin_name("model", m), HY_FROM_FLAG));
            must(hy_config_set(c, "profile", hy_builtin_name("profile", p), HY_FROM_FLAG));
            for (size_t g = 0; hy_builtin_name("gpu", g); g++) {
                must(hy_config_load(c, hy_builtin_name("gpu", g)));
            }
            hy_config_destroy(c);
        }
    }
}
END_TEST

START_TEST(a_safe_card_file_has_the_same_tokens_per_step_in_less_memory) {
    size_t pairs = 0;
    for (size_t g = 0; hy_builtin_name("gpu", g); g++) {
        const char *name = hy_builtin_name("gpu", g);
        if (strstr(name, "-safe")) continue;
        char safe_name[64];
        snprintf(safe_name, sizeof safe_name, "%s-safe", name);
        hy_config *c;
        must(hy_config_create(&c));
        must(hy_config_load(c, name));
        hy_settings full = *hy_config_settings(c);
        hy_config_destroy(c);
        must(hy_config_create(&c));
        must(hy_config_load(c, safe_name));
        const hy_settings *safe = hy_config_settings(c);
        ck_assert_int_eq(full.train.batch_size * full.train.grad_accum_steps,
                         safe->train.batch_size * safe->train.grad_accum_steps);
        ck_assert_int_lt(safe->train.batch_size, full.train.batch_size);
        ck_assert_int_eq(safe->train.recompute, HY_RECOMPUTE_ALL);
        ck_assert_int_gt(safe->memory.cpu_mem, 0);
        if (strcmp(name, "cpu"))
            ck_assert_int_lt(safe->memory.max_gpu_mem, full.memory.max_gpu_mem);
        hy_config_destroy(c);
        pairs++;
    }
    ck_assert_uint_eq(pairs, 8);
}
END_TEST

/* ---- the reference page ------------------------------------------------------------------------
 * */

/* Looks for a file of the source tree above `start`. */
static bool find_above(const char *start, const char *file, char *path, size_t size) {
    char at[PATH_MAX];
    snprintf(at, sizeof at, "%s", start);
    for (int depth = 0; depth < 32; depth++) {
        if ((size_t)snprintf(path, size, "%s/%s", at, file) < size && hy_path_exists(path))
            return true;
        if (!strcmp(at, "/") || !strcmp(at, ".")) return false;
        memmove(at, dirname(at), strlen(dirname(at)) + 1);
    }
    return false;
}

static void source_file(const char *file, char *path, size_t size) {
    char self[PATH_MAX] = "", cwd[PATH_MAX] = "";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length > 0) self[length] = '\0';
    ck_assert_ptr_nonnull(getcwd(cwd, sizeof cwd));
    bool is_found = find_above(__FILE__, file, path, size) || find_above(self, file, path, size) ||
                    find_above(cwd, file, path, size);
    ck_assert_msg(is_found, "%s lies above neither this program nor the current folder", file);
}

START_TEST(built_in_texts_are_the_files_byte_for_byte) {
    static const char *const folders[][2] = {
        {"profile", "configs"}, {"model", "configs/models"}, {"gpu", "configs/gpu"}};
    for (size_t k = 0; k < 3; k++) {
        for (size_t i = 0; hy_builtin_name(folders[k][0], i); i++) {
            const char *name = hy_builtin_name(folders[k][0], i);
            char relative[256], path[PATH_MAX], *text;
            size_t size;
            snprintf(relative, sizeof relative, "%s/%s.cfg", folders[k][1], name);
            source_file(relative, path, sizeof path);
            must(hy_file_read(path, &text, &size));
            ck_assert_str_eq(hy_builtin_text(folders[k][0], name), text);
            free(text);
        }
    }
}
END_TEST

static void describe_keys(hy_text *out) {
    hy_text_add(out, "| key | accepted | default | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; hy_config_key(i); i++) {
        const hy_config_key_info *k = hy_config_key(i);
        const char *tick = *k->fallback ? "`" : "";
        bool is_range =
            !strcmp(k->type, "integer") || !strcmp(k->type, "number") || !strcmp(k->type, "bytes");
        hy_text_addf(out, "| `%s` | %s%s%s | %s%s%s | %s |\n", k->key, is_range ? k->type : "",
                     is_range ? " " : "", k->accepted, tick, k->fallback, tick, k->help);
    }
}

static bool means_the_same(const hy_setting_alias *a, const hy_setting_alias *b) {
    if (a->is_removed || b->is_removed) return a->is_removed == b->is_removed;
    const char *x = a->when_true ? a->when_true : "", *y = b->when_true ? b->when_true : "";
    return !strcmp(a->key, b->key) && !strcmp(x, y);
}

/* One row for each meaning, at the place of its first name. */
static void describe_aliases(hy_text *out) {
    hy_text_add(out, "| means | names |\n|---|---|\n");
    for (size_t i = 0; hy_setting_alias_at(i); i++) {
        const hy_setting_alias *a = hy_setting_alias_at(i), *other;
        size_t first = 0;
        while (!means_the_same(hy_setting_alias_at(first), a)) first++;
        if (first < i) continue;
        if (a->is_removed) {
            hy_text_add(out, "| ignored: removed |");
        } else {
            hy_text_addf(out, "| `%s`%s%s%s |", a->key, a->when_true ? " = `" : "",
                         a->when_true ? a->when_true : "", a->when_true ? "`" : "");
        }
        for (size_t k = i; (other = hy_setting_alias_at(k)); k++) {
            if (means_the_same(a, other))
                hy_text_addf(out, "%s`%s`", k == i ? " " : ", ", other->name);
        }
        hy_text_add(out, " |\n");
    }
}

/* Replaces what stands between the markers "<!-- NAME: begin -->" and "<!-- NAME: end -->". */
static void replace_section(hy_text *page, const char *name, void (*describe)(hy_text *)) {
    char begin[64], end[64];
    snprintf(begin, sizeof begin, "<!-- %s: begin -->\n", name);
    snprintf(end, sizeof end, "<!-- %s: end -->\n", name);
    const char *text = hy_text_string(page);
    const char *from = strstr(text, begin), *to = strstr(text, end);
    ck_assert_msg(from && to && from < to, "the page lacks the markers of %s", name);
    hy_text fresh = {0};
    hy_text_add_bytes(&fresh, text, (size_t)(from - text) + strlen(begin));
    describe(&fresh);
    hy_text_add(&fresh, to);
    hy_text_free(page);
    *page = fresh;
}

START_TEST(the_reference_page_has_every_key_as_the_table_says) {
    char path[PATH_MAX], *text;
    size_t size;
    source_file("docs/configuration.md", path, sizeof path);
    must(hy_file_read(path, &text, &size));
    hy_text page = {0};
    hy_text_add(&page, text);
    replace_section(&page, "keys", describe_keys);
    replace_section(&page, "aliases", describe_aliases);
    must(hy_text_status(&page));
    if (getenv("HYBRID_UPDATE_DOCS")) {
        must(hy_file_write_atomic(path, page.data, page.size));
    } else {
        ck_assert_msg(!strcmp(text, page.data),
                      "%s is behind the table; run this test with "
                      "HYBRID_UPDATE_DOCS=1 to write it anew",
                      path);
    }
    for (size_t k = 0; k < 3; k++) {
        const char *kind = ((const char *const[]){"profile", "model", "gpu"})[k];
        for (size_t i = 0; hy_builtin_name(kind, i); i++) {
            char quoted[64];
            snprintf(quoted, sizeof quoted, "`%s`", hy_builtin_name(kind, i));
            bool is_safe = strstr(quoted, "-safe") != NULL; /* named once for all */
            ck_assert_msg(is_safe || strstr(text, quoted), "the page does not name %s", quoted);
        }
    }
    hy_text_free(&page);
    free(text);
}
END_TEST

static Suite *config_files_suite(void) {
    Suite *suite = suite_create("config_files");
    TCase *tests = tcase_create("config_files");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_model_can_be_a_file_with_a_shape);
    tcase_add_test(tests, wrong_models_are_refused);
    tcase_add_test(tests, presets_have_the_known_parameter_counts_and_say_so);
    tcase_add_test(tests, presets_say_all_that_a_shape_needs);
    tcase_add_test(tests, all_kinds_of_libconfig_values_are_taken);
    tcase_add_test(tests, separators_escapes_and_comments_are_read_as_libconfig_does);
    tcase_add_test(tests, whole_numbers_have_64_bits_however_they_are_written);
    tcase_add_test(tests, an_include_is_refused_and_harmless_in_strings_and_comments);
    tcase_add_test(tests, size_nesting_and_number_of_settings_are_bounded);
    tcase_add_test(tests, wrong_files_are_refused_with_file_line_and_what_is_accepted);
    tcase_add_test(tests, of_a_wrong_file_nothing_is_taken);
    tcase_add_test(tests, names_of_other_trainers_work_in_flags_and_in_files);
    tcase_add_test(tests, missing_files_are_refused_with_the_built_in_names);
    tcase_add_test(tests, a_later_file_wins_over_an_earlier_one);
    tcase_add_test(tests, a_file_in_the_way_wins_over_a_built_in_card_file);
    tcase_add_test(tests, damaged_files_fail_cleanly);
    tcase_add_test(tests, the_accepted_profiles_are_the_built_in_ones);
    tcase_add_test(tests, every_card_file_and_profile_loads_over_every_model);
    tcase_add_test(tests, a_safe_card_file_has_the_same_tokens_per_step_in_less_memory);
    tcase_add_test(tests, built_in_texts_are_the_files_byte_for_byte);
    tcase_add_test(tests, the_reference_page_has_every_key_as_the_table_says);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(config_files_suite)
