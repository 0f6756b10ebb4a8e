/* hybrid_export.c: the program hybrid-export: writes a checkpoint as a folder for transformers, or
 * as a file for llama.cpp.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 the weights are not finite. The program
 * uses only hybrid.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/program.h"
#include "cli/scale.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "hybrid.h"

typedef struct options {
    hy_export_options export;
    const char *adapter; /* used instead of a checkpoint; NULL: none */
    const char *max_shard_size;
    const char *scale; /* NULL: as trained */
    hy_merge_options losses;
    uint64_t eval_batches; /* UINT64_MAX: not set */
    bool is_quiet;
} options;

#define AT(member) .offset = offsetof(options, member)

static const hy_cli_row rows[] = {
    {"--out", "FOLDER", HY_CLI_TEXT, AT(export.out),
     "Folder to write. It appears only when it is complete."},
    {"--gguf", "FILE", HY_CLI_TEXT, AT(export.gguf),
     "Instead of a folder, write one file for llama.cpp and the programs that use it, with "
     "tokenizer and chat template."},
    {"--type", "TYPE", HY_CLI_TEXT, AT(export.type),
     "Numbers in that file. f32, f16, bf16: as they are (default: as in the model); q8_0: half the "
     "size of f16; q4_k_m: a third, the usual choice; q5_k_m, q6_k: larger, closer to the "
     "original; q4_0, q5_0: older types. In a folder: how bitsandbytes quantises the matrices of "
     "the blocks (norms, embeddings and head have --dtype). nf4: 4 bits; nf4_single: with fp32 "
     "scales; int8: 8 bits. Default: not quantised.",
     "f32, f16, bf16, q8_0, q4_0, q5_0, q4_k_m, q5_k_m, q6_k, nf4, nf4_single, int8"},
    {"--calibrate", "FILE", HY_CLI_TEXT, AT(export.calibrate),
     "Text like the model's own. Numbers are rounded so that errors cancel for its inputs; with "
     "--gguf, the matrices that lose most may get a larger type (at most 5 % more bytes). "
     "hybrid-export measures the held-out loss of each file or folder, and keeps the best."},
    {"--dtype", "TYPE", HY_CLI_TEXT, AT(export.dtype),
     "Number type of the weights in a folder. auto (default): as in the original model folder, or "
     "as in the checkpoint; with --type, bf16 instead of fp32.",
     "auto, fp32, bf16, fp16"},
    {"--max-shard-size", "SIZE", HY_CLI_TEXT, AT(max_shard_size),
     "Largest size of one weight file: 5GB (default), 2GiB, 500M."},
    {"--base", "FOLDER", HY_CLI_TEXT, AT(export.base),
     "Current location of the model that the run started from. Needed to merge adapters if it has "
     "moved, and for runs that did not store its tokenizer files. With --adapter: the model to "
     "merge into."},
    {"--merge", NULL, HY_CLI_SWITCH, AT(export.merge),
     "For a run with adapters: add them to the base weights and write a full model. Without it, "
     "only the adapters are written, in PEFT's format, or with --gguf as an adapter of llama.cpp."},
    {"--adapter", "FOLDER", HY_CLI_TEXT, AT(adapter),
     "Merge this PEFT adapter into the weights of --base instead of exporting a checkpoint. "
     "Without --base: into the model that the adapter names. No run is needed. With --gguf and "
     "without --merge: write the adapter itself for llama.cpp."},
    {"--merge-onto", "WHAT", HY_CLI_TEXT, AT(export.onto),
     "Weights to merge the adapters into. trained (default): the base as in training, quantised if "
     "the run quantised it; folder: the original weights of the model folder.",
     "trained, folder"},
    {"--scale", "X", HY_CLI_TEXT, AT(scale),
     "Write start + X times (trained - start), where start is what the run began with. 1: as "
     "trained; more goes further, less goes back. auto: the scale that is best on the run's "
     "held-out data.",
     "auto, or a number"},
    {"--eval-batches", "N", HY_CLI_COUNT, AT(eval_batches),
     "Show the validation loss of a file for llama.cpp or a folder with --type and of the model "
     "before, or after a merge with both bases. N: number of micro-batches, of the run's "
     "validation data or of --data; 0: all.",
     "whole numbers from 0"},
    {"--data", "FILE", HY_CLI_TEXT, AT(losses.data),
     "Validation text for this comparison; without --eval-batches, all of it is used."},
    {"--device", "NAME", HY_CLI_TEXT, AT(losses.device),
     "Device for this comparison: auto, cpu, cuda, cuda:1. Default: the run's setting.",
     "auto, cpu, cuda"},
    {"--overwrite", NULL, HY_CLI_SWITCH, AT(export.overwrite),
     "Replace the folder or file if it exists."},
    {"--quiet", NULL, HY_CLI_SWITCH, AT(is_quiet), "Print only errors."},
};

static const hy_cli_program program = {
    .name = "hybrid-export",
    .before =
        "Usage: hybrid-export [CHECKPOINT] --out FOLDER [options]\n"
        "       hybrid-export [CHECKPOINT] --gguf FILE [--type TYPE] [options]\n"
        "       hybrid-export --merge --adapter FOLDER [--base FOLDER] --out FOLDER [options]\n\n"
        "Writes the weights of a checkpoint as a folder that transformers and compatible tools\n"
        "can load: config.json, model.safetensors (or shards with an index), and the tokenizer\n"
        "files of the model that the run started from. With --type, its matrices are quantised\n"
        "for bitsandbytes. With --gguf, writes one file for llama.cpp instead.\n\n",
    .after =
        "\n"
        "Examples: hybrid-export runs/mine --out mine-bf16 --dtype bf16\n"
        "          hybrid-export runs/mine --gguf mine.gguf --type q4_k_m\n"
        "          hybrid-export runs/mine --out mine-nf4 --type nf4 --eval-batches 50\n"
        "          hybrid-export runs/lora --out merged --merge --eval-batches 50\n"
        "          hybrid-export runs/dpo --out further --scale auto\n"
        "          hybrid-export --merge --adapter downloaded --base ~/models/Qwen3-8B --out "
        "merged\n"
        "\n"
        "A run writes OUT/model when it ends. Use this program for earlier checkpoints or other\n"
        "number types. Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 the weights are\n"
        "not finite.\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof rows[0],
    .word = "CHECKPOINT",
    .word_type = "folder",
    .word_help = "A folder OUT/checkpoint-N, or OUT for its newest checkpoint; or a model folder "
                 "that transformers loads. Default: the newest run in runs/.",
};

/* Parses "5GB", "2GiB", "500M"; 0 if the text is not a size. */
static uint64_t parse_size(const char *text) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},     {"k", 1e3},      {"kb", 1e3},    {"kib", 0x1p10}, {"m", 1e6},
                 {"mb", 1e6}, {"mib", 0x1p20}, {"g", 1e9},     {"gb", 1e9},     {"gib", 0x1p30},
                 {"t", 1e12}, {"tb", 1e12},    {"tib", 0x1p40}};
    char *end;
    if (text[0] < '0' || text[0] > '9') return 0;
    double number = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        double bytes = number * units[i].bytes;
        if (strcasecmp(end, units[i].name) == 0)
            return bytes >= 1 && bytes < 1e18 ? (uint64_t)bytes : 0;
    }
    return 0;
}

static void on_message(void *user, hy_message_level level, const char *text) {
    const options *o = user;
    if (level == HY_WARNING)
        hy_cli_warning("%s", text);
    else if (!o->is_quiet)
        hy_cli_note("%s", text);
}

/* Draws a progress line while losses are computed or a file is written, only on a terminal. */
static void draw_progress(void *user, const char *what, double fraction) {
    const options *o = user;
    if (o->is_quiet || !isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%s: %3.0f %%%s", what, 100 * fraction,
            fraction >= 1 ? "\r                                        \r" : "");
}

/* ---- losses ---------------------------------------------------------------------------------- */

static bool is_merge(const options *o) { return o->export.merge || o->export.onto != NULL; }

static bool is_onto(const options *o, const char *what) {
    return o->export.onto != NULL && strcmp(o->export.onto, what) == 0;
}

/* Which weights the adapters were merged into, and which are better. folder: NULL: not there. */
static void name_better(const options *o, const hy_evaluation *trained,
                        const hy_evaluation *folder) {
    if (!trained->frozen_dtype[0] || !is_merge(o)) return; /* both are the same, or nothing is */
    bool is_onto_folder = is_onto(o, "folder");
    bool is_folder_better = folder && folder->loss < trained->loss;
    printf(is_onto_folder ? "merged into the original weights"
                          : "merged into the base as trained (%s)",
           trained->frozen_dtype);
    printf(!folder                              ? "; its original weights are not at hand\n"
           : is_onto_folder == is_folder_better ? ", which gives the lower loss\n"
           : is_folder_better                   ? "; --merge-onto folder gives a lower loss\n"
                                                : "; --merge-onto trained gives a lower loss\n");
}

/* Compares the validation losses of both bases. */
static int compare(const options *o, const char *checkpoint) {
    hy_merge_options how = o->losses;
    hy_observer observer = {.user = (void *)o, .on_message = NULL, .on_progress = draw_progress};
    hy_merge_losses found;
    how.base = o->export.base;
    how.eval_batches = o->eval_batches == UINT64_MAX ? 0 : (int64_t)o->eval_batches;
    hy_status status = hy_merge_evaluate(checkpoint, &how, &observer, &found);
    if (status != HY_OK) {
        hy_cli_warning("the model was written, but its held-out loss could not be computed");
        return hy_cli_fail(status);
    }
    const hy_evaluation *t = &found.trained;
    if (found.has_folder)
        printf("held-out loss: merged into the base as trained (%s) %.4f, into the original "
               "weights %.4f (%+.2f %%)",
               t->frozen_dtype, t->loss, found.folder.loss,
               100 * (found.folder.loss / t->loss - 1));
    else
        printf("held-out loss: %.4f", t->loss);
    hy_cli_printf(stdout, "; %lld tokens of %s\n", (long long)t->tokens, t->data);
    name_better(o, t, found.has_folder ? &found.folder : NULL);
    return HY_EXIT_DONE;
}

static const char *written(const options *o) {
    return o->export.gguf ? o->export.gguf : o->export.out;
}

static void print_trials(const options *o, const hy_evaluation *list, size_t count) {
    hy_cli_table table;
    hy_cli_terminal terminal;
    const hy_evaluation *other = list[1].bytes == 0 ? &list[1] : NULL; /* a base has no file */
    const hy_evaluation *source = other != NULL && is_onto(o, "folder") ? other : list;
    hy_cli_terminal_init(&terminal, stdout, false, false);
    hy_cli_table_begin(&table, "lrrrl");
    hy_cli_table_row(&table, "rounding", "size", "held-out loss", "increase", "", NULL);
    for (size_t i = 0; i < count; i++) {
        const hy_evaluation *e = &list[i];
        char change[24] = "";
        if (e != source) snprintf(change, sizeof change, "%+.4f", e->loss - source->loss);
        hy_cli_table_row(&table, i > 0 ? e->rounding : "before",
                         e->bytes > 0 ? hy_cli_bytes(e->bytes).text : "", hy_cli_loss(e->loss).text,
                         change, e->is_written ? "written" : "", NULL);
    }
    hy_cli_table_print(&table, &terminal, true);
    hy_cli_printf(stdout, "%lld tokens of %s\n", (long long)list[0].tokens, list[0].data);
    name_better(o, &list[0], other);
    hy_cli_printf(stdout, "wrote %s\n", written(o));
}

/* A file for llama.cpp or a quantised folder: what its number types cost. */
static int write_measured(const options *o, const char *checkpoint, const hy_observer *observer) {
    hy_merge_options how = o->losses;
    hy_evaluation *list;
    size_t count;
    how.eval_batches = o->eval_batches == UINT64_MAX ? 0 : (int64_t)o->eval_batches;
    hy_status status = hy_export_evaluate(checkpoint, &o->export, &how, observer, &list, &count);
    if (status != HY_OK) return hy_cli_fail(status);
    if (!o->is_quiet) print_trials(o, list, count);
    hy_free(list);
    return HY_EXIT_DONE;
}

static bool wants_losses(const options *o) {
    return o->eval_batches != UINT64_MAX || o->losses.data != NULL;
}

/* --adapter replaces the checkpoint; its base is always a model folder. */
static int check_adapter(const options *o, int argc, char **argv) {
    if (argc > 1)
        return hy_cli_wrong_usage(
            "--adapter replaces the checkpoint argument; unexpected argument ", argv[1]);
    if (!o->export.merge && !o->export.gguf)
        return hy_cli_wrong_usage("--adapter needs --merge, or --gguf FILE", "");
    if (o->export.onto != NULL && !is_onto(o, "folder"))
        return hy_cli_wrong_usage(
            "with --adapter, --merge-onto accepts only \"folder\", because there is no run; got ",
            o->export.onto);
    if (wants_losses(o) || o->losses.device != NULL)
        return hy_cli_wrong_usage("--eval-batches, --data and --device need a run; use "
                                  "\"hybrid-train --eval-only\" to evaluate a model with --adapter",
                                  "");
    return 0;
}

/* Reports a combination of arguments that is not allowed; returns 0 if there is none. */
static int check_options(options *o, int argc, char **argv) {
    int code = o->adapter != NULL ? check_adapter(o, argc, argv) : 0;
    if (code != 0) return code;
    if (argc > 2)
        return hy_cli_wrong_usage("only one checkpoint is allowed; unexpected argument ", argv[2]);
    bool has_out = o->export.out != NULL && *o->export.out;
    if (!has_out && o->export.gguf == NULL)
        return hy_cli_wrong_usage("--out FOLDER or --gguf FILE is missing", "");
    bool is_measured = o->export.gguf != NULL || o->export.type != NULL;
    bool is_auto = o->scale != NULL && strcmp(o->scale, "auto") == 0;
    if (o->losses.data != NULL && is_auto)
        return hy_cli_wrong_usage("--scale auto measures the run's own held-out data, not --data ",
                                  o->losses.data);
    if (o->scale != NULL && (o->export.calibrate != NULL || (wants_losses(o) && !is_auto)))
        return hy_cli_wrong_usage("losses and calibration are of the run as trained: export with "
                                  "--scale to a folder, and measure or calibrate that",
                                  "");
    if ((wants_losses(o) || o->losses.device) && !is_merge(o) && !is_measured && !is_auto)
        return hy_cli_wrong_usage(
            "--eval-batches, --data and --device need --merge, --gguf, --type or --scale auto", "");
    if (o->export.calibrate != NULL && !is_measured)
        return hy_cli_wrong_usage("--calibrate needs --gguf FILE or --type", "");
    if (o->losses.device != NULL && !wants_losses(o) && o->export.calibrate == NULL && !is_auto)
        return hy_cli_wrong_usage("--device is for measuring losses: add --eval-batches N, --data "
                                  "FILE or --calibrate FILE",
                                  "");
    if (o->export.onto != NULL && !is_onto(o, "trained") && !is_onto(o, "folder"))
        return hy_cli_wrong_usage("--merge-onto accepts trained or folder, but got ",
                                  o->export.onto);
    if (o->max_shard_size != NULL) o->export.max_shard_size = parse_size(o->max_shard_size);
    if (o->max_shard_size != NULL && o->export.max_shard_size == 0)
        return hy_cli_wrong_usage("--max-shard-size needs a size such as 5GB or 500M, but got ",
                                  o->max_shard_size);
    return 0;
}

/* Sets the scale of the export. */
static int choose_scale(options *o, const char *checkpoint, const hy_observer *observer) {
    bool has_batches = o->eval_batches != UINT64_MAX;
    hy_cli_scale_request request = {.checkpoint = checkpoint,
                                    .device = o->losses.device,
                                    .base = o->export.base,
                                    .eval_batches = has_batches ? (int64_t)o->eval_batches : -1,
                                    .observer = observer,
                                    .is_quiet = o->is_quiet};
    if (o->adapter != NULL)
        return hy_cli_wrong_usage("--scale is for runs; an adapter of PEFT is scaled by lora_alpha "
                                  "in its adapter_config.json, so it does not go with --adapter ",
                                  o->adapter);
    return hy_cli_choose_scale(o->scale, &request, &o->export.scale);
}

int main(int argc, char **argv) {
    options o = {.eval_batches = UINT64_MAX};
    hy_observer observer = {.user = &o, .on_message = on_message, .on_progress = draw_progress};
    int code = hy_cli_parse(&program, &argc, argv, &o);
    if (code != HY_CLI_GO_ON) return code;
    code = check_options(&o, argc, argv);
    if (code != 0) return code;
    char newest[HY_CLI_RUN_BYTES];
    const char *checkpoint = argc > 1 ? argv[1] : newest;
    if (argc < 2 && o.adapter == NULL) {
        code = hy_cli_take_newest(newest, o.is_quiet);
        if (code != HY_EXIT_DONE) return code;
    }
    if (o.scale != NULL) code = choose_scale(&o, checkpoint, &observer);
    if (code != HY_EXIT_DONE) return code;
    bool has_losses = wants_losses(&o) && o.scale == NULL; /* they chose the scale */
    bool is_measured = o.export.calibrate || has_losses;
    if (is_measured && (o.export.gguf || o.export.type) && o.adapter == NULL)
        return hy_cli_flushed(write_measured(&o, checkpoint, &observer));
    hy_status status = o.adapter != NULL ? hy_merge_adapter(o.adapter, &o.export, &observer)
                                         : hy_export(checkpoint, &o.export, &observer);
    if (status != HY_OK) return hy_cli_fail(status);
    if (!o.is_quiet) hy_cli_printf(stdout, "wrote %s\n", written(&o));
    bool compares = has_losses && is_merge(&o);
    return compares ? hy_cli_flushed(compare(&o, checkpoint)) : HY_EXIT_DONE;
}
