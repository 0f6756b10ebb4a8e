/* uses.c: uses of the library other than training. See uses.h.
 *
 * Each does all of its work and records numbers that show whether the result is correct: hashes of
 * texts and of files. A failure is reported, and everything that was opened is closed. */
#include "uses.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "hybrid_report.h"
#include "kernels/half.h"
#include "record/record.h"
#include "tokenizer/tokenizer.h"

char oom_prepared[300];

#define GOLDEN HY_SOURCE_DIR "/tests/golden/rows/"

/* ---- noting ---------------------------------------------------------------------------------- */

static void note_number(outcome *out, double value) {
    if (out->steps < TRIAL_LOSSES) out->loss[out->steps++] = value;
}

/* As many bits of a hash as a double holds. */
static void note_bytes(outcome *out, const void *bytes, size_t size) {
    note_number(out, (double)(hy_hash_bytes(bytes, size, 0) >> 12));
}

static const char *inside(const char *folder, const char *name) {
    static char path[4][700];
    static int next;
    char *made = path[next++ % 4];
    snprintf(made, sizeof path[0], "%s/%s", folder, name);
    return made;
}

/* ---- configurations -------------------------------------------------------------------------- */

hy_status use_configuration(const char *folder, outcome *out) {
    hy_config *config = NULL;
    char *text = NULL;
    trial_arm();
    hy_status status =
        use_config("profile aggressive model gpt2-124m batch_size 3", folder, &config);
    if (status == HY_OK) status = hy_config_print(config, &text);
    if (status == HY_OK) note_number(out, (double)strlen(text));
    if (status == HY_OK) status = hy_file_write_atomic(inside(folder, "c.cfg"), text, strlen(text));
    if (status == HY_OK) status = hy_config_load(config, inside(folder, "c.cfg"));
    hy_free(text);
    hy_config_destroy(config);
    return status;
}

/* ---- plans ----------------------------------------------------------------------------------- */

hy_status use_plan(const char *folder, outcome *out) {
    hy_config *config = NULL;
    hy_trainer *plan = NULL;
    char *text = NULL;
    hy_plan_facts facts;
    hy_status status =
        use_config("model gpt2-124m device cpu threads 1 max_gpu_mem 1GiB builtin_bytes 60000 "
                   "predictor outer batch_size 4 seq_len 64",
                   folder, &config);
    trial_arm();
    if (status == HY_OK) status = hy_trainer_plan(config, NULL, &plan);
    if (status == HY_OK) {
        hy_trainer_plan_facts(plan, &facts);
        note_number(out, (double)facts.vram_bytes);
        status = hy_trainer_plan_json(plan, &text);
    }
    hy_free(text);
    hy_trainer_destroy(plan);
    hy_config_destroy(config);
    return status;
}

/* ---- a model that is used -------------------------------------------------------------------- */

/* A short run whose model the next ones use; and one of rows with a tokenizer. */
#define SMALL                                                                                      \
    "layers 2 width 16 heads 2 mlp_width 24 seq_len 32 batch_size 2 grad_accum_steps 1 steps 3 "   \
    "lr_warmup_steps 1 eval_batches 1 threads 1 device cpu predictor none "
#define ROWS                                                                                       \
    "model nano vocab 704 " SMALL "data " GOLDEN "chats.jsonl tokenizer " GOLDEN "tokenizer.json " \
    "chat_template chatml val_fraction 0.3 "

void prepare_run(const char *folder) {
    outcome unused = {0};
    if (use_training("model nano " SMALL "builtin_bytes 20000 ", folder, &unused) == HY_OK) return;
    printf("the run that others use failed: %s\n", hy_error_message());
    _Exit(1);
}

static void add_text(void *user, const char *text, size_t size) { note_bytes(user, text, size); }

static hy_status talk(hy_inference *model, outcome *out) {
    hy_generate_options options = {.max_tokens = 4, .temperature = 0.7, .seed = 3};
    int32_t *ids = NULL;
    size_t count = 0, size = 0;
    char *text = NULL;
    hy_status status = hy_inference_complete(model, "ab", &options, add_text, out, NULL);
    if (status == HY_OK) status = hy_inference_reset(model, "be short");
    if (status == HY_OK) status = hy_inference_say(model, "hello", &options, add_text, out, NULL);
    if (status == HY_OK) status = hy_inference_say(model, "again", &options, add_text, out, NULL);
    if (status == HY_OK) status = hy_inference_encode(model, "some text", 9, &ids, &count);
    if (status == HY_OK) status = hy_inference_decode(model, ids, count, &text, &size);
    if (status == HY_OK) note_bytes(out, text, size);
    hy_free(ids);
    hy_free(text);
    return status;
}

hy_status use_inference(const char *folder, outcome *out) {
    hy_config *config = NULL;
    hy_inference *model = NULL;
    hy_inference_options options = {.tokenizer = "none", .context = 64};
    hy_status status = use_config("device cpu threads 1", folder, &config);
    trial_arm();
    if (status == HY_OK) status = hy_config_use_model(config, inside(oom_prepared, "run"));
    if (status == HY_OK) status = hy_inference_open(config, &options, NULL, &model);
    if (status == HY_OK) status = talk(model, out);
    hy_inference_close(model);
    hy_config_destroy(config);
    return status;
}

hy_status use_evaluation(const char *folder, outcome *out) {
    hy_config *config = NULL;
    hy_evaluation result = {0};
    char *text = NULL;
    hy_status status = use_config("device cpu threads 1", folder, &config);
    trial_arm();
    if (status == HY_OK) status = hy_config_use_model(config, inside(oom_prepared, "run"));
    if (status == HY_OK) status = hy_config_set(config, "builtin_bytes", "8KiB", HY_FROM_CALLER);
    if (status == HY_OK) status = hy_evaluate(config, NULL, &result);
    if (status == HY_OK) note_number(out, result.loss);
    if (status == HY_OK) status = hy_evaluation_json(&result, &text);
    hy_free(text);
    hy_config_destroy(config);
    return status;
}

/* What it makes is whole or not there. */
static hy_status export_as(const char *type, const char *folder, outcome *out) {
    char made[700];
    hy_export_options options = {.out = made, .type = type, .max_shard_size = 6000};
    char **names = NULL;
    size_t count = 0;
    snprintf(made, sizeof made, "%s/model", folder);
    trial_arm();
    hy_status status = hy_export(inside(oom_prepared, "run"), &options, NULL);
    fault_spare();
    bool is_there = hy_path_exists(options.out);
    if (status != HY_OK) {
        out->is_spoiled = is_there; /* half of a model is worse than none */
        return status;
    }
    if (hy_dir_list(options.out, &names, &count) != HY_OK) return HY_ERR_INTERNAL;
    for (size_t i = 0; i < count; i++) {
        uint64_t hash = 0, size = 0;
        hy_file_hash(inside(options.out, names[i]), &hash, &size);
        note_number(out, (double)(hash >> 12));
    }
    hy_dir_list_free(names, count);
    return HY_OK;
}

hy_status use_export(const char *folder, outcome *out) { return export_as(NULL, folder, out); }

hy_status use_quantised(const char *folder, outcome *out) { return export_as("nf4", folder, out); }

/* The same for a file of llama.cpp. */
hy_status use_gguf(const char *folder, outcome *out) {
    char made[700];
    uint64_t hash = 0, size = 0;
    hy_export_options options = {.gguf = made, .type = "q8_0"};
    snprintf(made, sizeof made, "%s/model.gguf", folder);
    trial_arm();
    hy_status status = hy_export(inside(oom_prepared, "run"), &options, NULL);
    fault_spare();
    if (status != HY_OK) {
        out->is_spoiled = hy_path_exists(made);
        return status;
    }
    if (hy_file_hash(made, &hash, &size) != HY_OK) return HY_ERR_INTERNAL;
    note_number(out, (double)(hash >> 12));
    return HY_OK;
}

/* A model's folder as transformers has it, trained on rows: packing, template, tokenizer. */
hy_status use_rows(const char *folder, outcome *out) { return use_training(ROWS, folder, out); }

/* A run that answers prompts itself. After another split of a step other answers would follow, so a
 * micro-batch has one sequence. */
#define REWARDS                                                                                    \
    "model nano layers 1 width 16 heads 2 mlp_width 24 seq_len 16 batch_size 1 dynamic_batch off " \
    "lr 3e-3 lr_warmup_steps 2 threads 1 device cpu eval_every 4 save_every 3 keep 2 steps 6 "     \
    "predictor none val_fraction 0.3 task grpo reward regex:[a-m] answer_tokens 4 prompts 2 "      \
    "samples 4 iterations 2 "

hy_status use_rewards(const char *folder, outcome *out) {
    static const char rows[] = "{\"prompt\": \"a\"}\n{\"prompt\": \"bb\"}\n{\"prompt\": \"c\"}\n"
                               "{\"prompt\": \"dd\"}\n{\"prompt\": \"e\"}\n{\"prompt\": \"ff\"}\n";
    char path[700], words[2048];
    snprintf(path, sizeof path, "%s/prompts.jsonl", folder);
    hy_status status = hy_file_write_atomic(path, rows, sizeof rows - 1);
    if (status != HY_OK) return status;
    snprintf(words, sizeof words, REWARDS "data %s", path);
    return use_training(words, folder, out);
}

/* ---- tokenizers ------------------------------------------------------------------------------ */

static hy_status encode_and_back(const hy_tokenizer *t, outcome *out) {
    static const char text[] = "The caf\xC3\xA9 isn't   open,\n1234 \xE6\x97\xA5 e\xCC\x81 </s> x";
    int32_t *ids = NULL;
    size_t count = 0, size = 0;
    char *back = NULL;
    hy_status status = hy_tokenize(t, text, sizeof text - 1, 0, &ids, &count);
    if (status == HY_OK) note_bytes(out, ids, count * sizeof *ids);
    if (status == HY_OK) status = hy_untokenize(t, ids, count, 0, &back, &size);
    if (status == HY_OK) note_bytes(out, back, size);
    hy_free(ids);
    hy_free(back);
    return status;
}

static hy_status write_shards(const hy_tokenizer *t, const char *folder, outcome *out) {
    /* Text, a packed one, and rows of CSV. */
    static const char *const paths[] = {HY_SOURCE_DIR "/tests/golden/make_rows.py",
                                        HY_SOURCE_DIR "/tests/fuzz/seeds/unpack/members",
                                        HY_SOURCE_DIR "/tests/fuzz/seeds/rows/documents.csv"};
    hy_tokenize_options options = {.tokenizer = t,
                                   .paths = paths,
                                   .path_count = sizeof paths / sizeof paths[0],
                                   .out = inside(folder, "shards"),
                                   .val_fraction = 0.2,
                                   .threads = 2};
    hy_tokenize_result result;
    hy_status status = hy_tokenize_files(&options, &result);
    if (status == HY_OK) note_number(out, (double)result.tokens[0]);
    return status;
}

/* Seeds are a tokenizer.json, a zero byte and a text. */
static hy_status use_seed(const char *name, outcome *out) {
    hy_tokenizer *t = NULL;
    char *data = NULL;
    size_t size = 0;
    hy_status status =
        hy_file_read(inside(HY_SOURCE_DIR "/tests/fuzz/seeds/tokenizer", name), &data, &size);
    if (status == HY_OK) status = hy_tokenizer_parse(data, strlen(data), name, &t);
    if (status == HY_OK) status = encode_and_back(t, out);
    hy_tokenizer_close(t);
    free(data);
    return status;
}

hy_status use_tokenizers(const char *folder, outcome *out) {
    static const char *const seeds[] = {"gpt2", "llama2", "llama3", "metaspace", "pattern"};
    hy_status status = HY_OK;
    hy_tokenizer *t = NULL;
    trial_arm();
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0] && status == HY_OK; i++) {
        status = use_seed(seeds[i], out);
    }
    if (status == HY_OK) status = hy_tokenizer_open(GOLDEN "tokenizer.json", &t);
    if (status == HY_OK) status = encode_and_back(t, out);
    if (status == HY_OK) status = write_shards(t, folder, out);
    hy_tokenizer_close(t);
    return status;
}

/* ---- loops of the caller --------------------------------------------------------------------- */

#define NUMBERS 6

static hy_status own_backward(void *user, int64_t batch, double scale, double *sum,
                              int64_t *counted) {
    const hy_parameter *p = user;
    const float *weights = p->weights;
    float *grads = p->grads;
    *sum = 0;
    *counted = 1;
    for (int i = 0; i < NUMBERS; i++) {
        double off = (double)weights[i] - 0.1 * (double)(i + batch % 3);
        *sum += off * off;
        grads[i] += (float)(2 * scale * off);
    }
    return HY_OK;
}

static hy_status own_forward(void *user, int64_t batch, double *sum, int64_t *counted) {
    float kept[NUMBERS];
    hy_parameter *p = user;
    memcpy(kept, p->grads, sizeof kept);
    hy_status status = own_backward(user, batch, 0, sum, counted);
    memcpy(p->grads, kept, sizeof kept);
    return status;
}

hy_status use_own(const char *folder, outcome *out) {
    float weights[NUMBERS] = {0}, grads[NUMBERS] = {0};
    hy_parameter parameter = {
        .name = "numbers", .weights = weights, .grads = grads, .ndim = 2, .shape = {1, NUMBERS}};
    hy_own_model model = {.parameters = {.list = &parameter, .count = 1},
                          .user = &parameter,
                          .forward = own_forward,
                          .backward = own_backward};
    hy_config *config = NULL;
    hy_trainer *trainer = NULL;
    hy_summary summary;
    hy_status status = use_config("steps 30 lr 0.05 full_steps 4 correct_steps 2 predict_from 0 "
                                  "predict_until 1 lr_warmup_steps 2 precision bf16 "
                                  "offload_strategy pinned confidence_threshold 0.5",
                                  folder, &config);
    trial_arm();
    if (status == HY_OK) status = hy_trainer_create_own(config, &model, NULL, &trainer);
    if (status == HY_OK) status = hy_trainer_run(trainer);
    if (status == HY_OK) {
        hy_trainer_summary(trainer, &summary);
        note_number(out, summary.final_loss);
    }
    hy_trainer_destroy(trainer);
    if (status == HY_OK) note_bytes(out, weights, sizeof weights);
    hy_config_destroy(config);
    return status;
}

/* The same numbers of 16 bits, in a loop; a master copy and the rest lie behind it. */
static double look(const uint16_t *weights, uint16_t *grads, const hy_loop_step *step) {
    double sum = 0;
    for (int i = 0; i < NUMBERS; i++) {
        double off = hy_bf16_to_f32(weights[i]) - 0.1 * (double)(i + step->batch % 3);
        sum += off * off;
        if (step->todo == HY_DO_GRADIENTS) grads[i] = hy_f32_to_bf16((float)(2 * off));
    }
    return sum;
}

static hy_status answer_all(hy_loop *loop, const uint16_t *weights, uint16_t *grads) {
    hy_loop_step step;
    hy_status status;
    while ((status = hy_loop_next(loop, &step)) == HY_OK && !step.is_over) {
        status = hy_loop_answer(loop, look(weights, grads, &step), 1);
        if (status != HY_OK) break;
    }
    return status;
}

#define LOOP                                                                                       \
    "steps 60 lr 0.05 full_steps 4 correct_steps 2 predict_from 0 predict_until 1 "                \
    "lr_warmup_steps 2 precision fp32 device cpu threads 1 grad_accum_steps 2 eval_every 7 "       \
    "tail_share 0.3 "

static hy_status run_loop(const char *words, bool sums, const char *folder, outcome *out) {
    uint16_t weights[NUMBERS] = {0}, grads[NUMBERS] = {0};
    hy_parameter parameter = {
        .name = "numbers", .weights = weights, .grads = grads, .ndim = 2, .shape = {1, NUMBERS}};
    hy_loop_options options = {.parameters = {.list = &parameter,
                                              .count = 1,
                                              .dtype = HY_BF16,
                                              .grad_dtype = HY_BF16,
                                              .sums_gradients = sums},
                               .can_evaluate = true,
                               .can_rewind = true};
    hy_config *config = NULL;
    hy_loop *loop = NULL;
    hy_status status = use_config(words, folder, &config);
    trial_arm();
    if (status == HY_OK) status = hy_loop_create(config, &options, NULL, &loop);
    if (status == HY_OK) status = answer_all(loop, weights, grads);
    hy_loop_destroy(loop);
    if (status == HY_OK) note_bytes(out, weights, sizeof weights);
    hy_config_destroy(config);
    return status;
}

hy_status use_loop(const char *folder, outcome *out) {
    return run_loop(LOOP "optim_place pinned master_place pinned grads_place pinned "
                         "max_gpu_mem 64MiB confidence_threshold 0.5",
                    true, folder, out);
}

hy_status use_loop_forks(const char *folder, outcome *out) {
    return run_loop(LOOP "regime fine-tuning fork_budget 0.5 confidence_threshold 0.5 "
                         "offload_strategy pinned",
                    false, folder, out);
}

/* The same numbers in three units that the library keeps, each with a frozen matrix in NF4. After a
 * refusal in the middle of a pass the trained weights can still be read. */
#define UNITS 3
#define FROZEN 64

static hy_status pass_over_units(hy_loop *loop, const hy_loop_step *step, double *loss) {
    uint16_t grads[NUMBERS];
    *loss = 0;
    for (int turn = 0; turn < (step->todo == HY_DO_GRADIENTS ? 2 : 1); turn++) {
        for (int32_t i = 0; i < UNITS; i++) {
            int32_t unit = turn ? UNITS - 1 - i : i;
            void *weights[2], *given[2] = {grads};
            hy_status status = hy_loop_hold(loop, unit, weights);
            if (status != HY_OK) return status;
            double one = look(weights[0], grads, step);
            for (int k = 0; k < FROZEN; k++) one += hy_bf16_to_f32(((uint16_t *)weights[1])[k]);
            if (turn == 0) *loss += one;
            if (turn == 1) status = hy_loop_add_gradients(loop, unit, 1, given);
            if (status != HY_OK) return status;
            if ((status = hy_loop_release(loop, unit)) != HY_OK) return status;
        }
    }
    return HY_OK;
}

static hy_status train_units(hy_loop *loop) {
    uint16_t zeros[NUMBERS] = {0}, frozen[FROZEN];
    hy_loop_step step;
    hy_status status = HY_OK;
    double loss;
    for (int i = 0; i < FROZEN; i++) frozen[i] = hy_f32_to_bf16(0.01f * (float)i);
    for (int32_t i = 0; i < UNITS && status == HY_OK; i++) {
        status = hy_loop_write_weights(loop, 2 * i, 0, NUMBERS, zeros);
        if (status == HY_OK) status = hy_loop_write_weights(loop, 2 * i + 1, 0, FROZEN, frozen);
    }
    while (status == HY_OK && (status = hy_loop_next(loop, &step)) == HY_OK && !step.is_over) {
        status = pass_over_units(loop, &step, &loss);
        if (status == HY_OK) status = hy_loop_answer(loop, loss, 1);
    }
    return status;
}

static hy_status use_units(const char *folder, outcome *out) {
    static const int32_t unit_of[2 * UNITS] = {0, 0, 1, 1, 2, 2};
    static const char *const names[2 * UNITS] = {"a", "a.base", "b", "b.base", "c", "c.base"};
    hy_parameter list[2 * UNITS] = {0};
    uint16_t weights[UNITS][NUMBERS];
    hy_loop_options options = {
        .parameters = {.list = list, .count = 2 * UNITS, .dtype = HY_BF16, .grad_dtype = HY_BF16},
        .unit_of = unit_of};
    hy_config *config = NULL;
    hy_loop *loop = NULL;
    for (int i = 0; i < 2 * UNITS; i++) {
        bool is_frozen = i % 2;
        list[i] = (hy_parameter){.name = names[i],
                                 .ndim = 2,
                                 .shape = {1, is_frozen ? FROZEN : NUMBERS},
                                 .is_frozen = is_frozen,
                                 .dtype = HY_BF16};
    }
    hy_status status = use_config(
        LOOP "weights_place pinned optim_place pinned master_place pinned grads_place pinned "
             "resident_units 0 max_gpu_mem 64MiB confidence_threshold 0.5 frozen_dtype nf4",
        folder, &config);
    trial_arm();
    if (status == HY_OK) status = hy_loop_create(config, &options, NULL, &loop);
    if (status == HY_OK) status = train_units(loop);
    fault_spare();
    for (int32_t i = 0; loop && i < UNITS; i++) {
        hy_status is_read = hy_loop_read_weights(loop, 2 * i, 0, NUMBERS, weights[i]);
        out->is_spoiled |= is_read != HY_OK;
    }
    hy_loop_destroy(loop);
    if (status == HY_OK) note_bytes(out, weights, sizeof weights);
    hy_config_destroy(config);
    return status;
}

/* ---- reports --------------------------------------------------------------------------------- */

hy_status use_report(const char *folder, outcome *out) {
    hy_run *run = NULL;
    bool has_changed = false;
    trial_arm();
    hy_status status = hy_run_open(inside(oom_prepared, "run"), &run);
    if (status == HY_OK) status = hy_run_refresh(run, &has_changed);
    if (status == HY_OK) note_number(out, (double)hy_run_points(run));
    if (status == HY_OK) {
        const hy_run *const runs[] = {run};
        status = hy_report_write(runs, 1, inside(folder, "report.html"));
    }
    hy_run_close(run);
    fault_spare();
    if (status != HY_OK) out->is_spoiled = hy_path_exists(inside(folder, "report.html"));
    return status;
}

/* ---- records --------------------------------------------------------------------------------- */

#define KEPT_LINE "{\"step\":1,\"spent\":1}\n"
#define LATER_LINE "{\"step\":3,\"spent\":3}\n"

/* A run that continues drops the lines past its checkpoint, and no other. */
static hy_status use_record(const char *folder, outcome *out) {
    static const char before[] = KEPT_LINE KEPT_LINE LATER_LINE KEPT_LINE;
    hy_record record = {0};
    hy_start_line start = {.resumed = "checkpoint-2"};
    hy_settings settings = {0};
    char *text = NULL;
    size_t size;
    const char *path = inside(folder, "metrics.jsonl");
    snprintf(record.out, sizeof record.out, "%s", folder);
    hy_status status = hy_file_write_atomic(path, before, sizeof before - 1);
    trial_arm();
    if (status == HY_OK) {
        status = hy_record_open(&record, &settings, &start, &(hy_moment){.step = 2, .spent = 2});
    }
    fault_spare();
    hy_record_release(&record);
    hy_status is_read = hy_file_read(path, &text, &size);
    const char *wanted = status == HY_OK ? KEPT_LINE KEPT_LINE KEPT_LINE "{\"event\"" : before;
    out->is_spoiled = is_read != HY_OK || strncmp(text, wanted, strlen(wanted)) != 0;
    if (status == HY_OK) note_number(out, out->is_spoiled);
    free(text);
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

const scenario oom_scenarios[] = {
    {.name = "a run with moves", .work = use_moves, .is_training = true},
    {.name = "a predictor in 8 bits", .work = use_8bit, .is_training = true},
    {.name = "a run with forks", .work = use_forks, .is_training = true},
    {.name = "a run through rings", .work = use_rings, .is_training = true},
    {.name = "a run with muon in fp8", .work = use_muon, .is_training = true},
    {.name = "a run with state on disk", .work = use_disk, .is_training = true},
    {.name = "a run planned anew", .work = use_replan, .is_training = true},
    {.name = "a run on rows of JSON", .work = use_rows, .is_training = true},
    {.name = "a run with rewards", .work = use_rewards, .is_training = true},
    {.name = "a configuration", .work = use_configuration},
    {.name = "a plan", .work = use_plan},
    {.name = "talking to a model", .work = use_inference},
    {.name = "evaluating a model", .work = use_evaluation},
    {.name = "exporting a model", .work = use_export},
    {.name = "exporting a quantised model", .work = use_quantised},
    {.name = "exporting a file for llama.cpp", .work = use_gguf},
    {.name = "tokenizers", .work = use_tokenizers},
    {.name = "a model of one's own", .work = use_own},
    {.name = "a loop of one's own", .work = use_loop},
    {.name = "a loop with forks", .work = use_loop_forks},
    {.name = "a loop with units", .work = use_units},
    {.name = "a report", .work = use_report},
    {.name = "a record that goes on", .work = use_record},
};
const int oom_scenario_count = (int)(sizeof oom_scenarios / sizeof oom_scenarios[0]);
