/* hybrid_export.c: hybrid-export: a checkpoint becomes a folder that transformers loads.
 *
 * Exit codes: 0 done, 1 it failed, 2 wrong usage or input. Everything the program knows of models it has
 * from hybrid.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli/program.h"
#include "cli/terminal.h"
#include "hybrid.h"

typedef struct options {
    hy_export_options export;
    const char *adapter; /* in place of a checkpoint; NULL: there is one */
    const char *max_shard_size;
    hy_merge_options losses;
    uint64_t eval_batches; /* UINT64_MAX: not said */
    bool is_quiet;
} options;

#define AT(member) .offset = offsetof(options, member)

static const hy_cli_row rows[] = {
    {"--out", "FOLDER", HY_CLI_TEXT, AT(export.out),
     "Folder to write; it appears when it is complete."},
    {"--dtype", "TYPE", HY_CLI_TEXT, AT(export.dtype),
     "Type of the weights; auto (default): as in the folder the model came from, or as in the "
     "checkpoint.",
     "auto, fp32, bf16, fp16"},
    {"--max-shard-size", "SIZE", HY_CLI_TEXT, AT(max_shard_size),
     "Most bytes of a file of weights: 5GB (default), 2GiB, 500M."},
    {"--base", "FOLDER", HY_CLI_TEXT, AT(export.base),
     "The model that the run began as, where it is now: to merge adapters when it has moved, and "
     "for runs that did not keep what lay beside its weights; with --adapter the model to merge "
     "it into."},
    {"--merge", NULL, HY_CLI_SWITCH, AT(export.merge),
     "Of a run with adapters (lora): add them to the weights they were trained beside and write a "
     "whole model; without it they are written alone, as PEFT loads them."},
    {"--adapter", "FOLDER", HY_CLI_TEXT, AT(adapter),
     "In place of CHECKPOINT: merge this adapter, as PEFT saves it, into the weights of --base; "
     "without that of the model that the adapter names. No run is needed."},
    {"--merge-onto", "WHAT", HY_CLI_TEXT, AT(export.onto),
     "Merge onto the base as it was trained, quantised where the run had it so (trained, the "
     "default), or onto the weights of the model's folder (folder).",
     "trained, folder"},
    {"--eval-batches", "N", HY_CLI_COUNT, AT(eval_batches),
     "After a merge, show the held-out loss beside either base, on the first N micro-batches of "
     "what the run's validations look at, or of --data; 0: on all of it.",
     "whole numbers from 0 on"},
    {"--data", "FILE", HY_CLI_TEXT, AT(losses.data),
     "Held-out text for that; without --eval-batches all of it."},
    {"--device", "NAME", HY_CLI_TEXT, AT(losses.device),
     "Where that is computed: auto, cpu, cuda, cuda:1. Default: as the run says.",
     "auto, cpu, cuda"},
    {"--overwrite", NULL, HY_CLI_SWITCH, AT(export.overwrite),
     "Replace the folder where it exists."},
    {"--quiet", NULL, HY_CLI_SWITCH, AT(is_quiet), "Say nothing but errors."},
};

static const hy_cli_program program = {
    .name = "hybrid-export",
    .before =
        "Usage: hybrid-export CHECKPOINT --out FOLDER [options]\n"
        "       hybrid-export --merge --adapter FOLDER [--base FOLDER] --out FOLDER [options]\n"
        "\n"
        "Writes the weights of a checkpoint as a folder that transformers and every tool that\n"
        "reads its format load: config.json, model.safetensors (or shards with an index), and\n"
        "the tokenizer files that lay beside the weights the model began with.\n"
        "\n",
    .after =
        "\n"
        "Examples: hybrid-export runs/mine --out mine-bf16 --dtype bf16\n"
        "          hybrid-export runs/lora --out merged --merge --eval-batches 50\n"
        "          hybrid-export --merge --adapter downloaded --base ~/models/Qwen3-8B --out "
        "merged\n"
        "\n"
        "A run writes OUT/model by itself when it ends; this is for checkpoints on the way and\n"
        "for other types. Exit codes: 0 done, 1 failed, 2 wrong usage or input.\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof rows[0],
    .word = "CHECKPOINT",
    .word_type = "folder",
    .word_help = "A folder OUT/checkpoint-N, or OUT: its newest checkpoint.",
};

/* "5GB", "2GiB", "500M"; 0 when it is none of that. */
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

static void tell(void *user, hy_message_level level, const char *text) {
    const options *o = user;
    if (level == HY_WARNING)
        hy_cli_warning("%s", text);
    else if (!o->is_quiet)
        hy_cli_note("%s", text);
}

/* While losses are taken: on a terminal alone, a line that is drawn over itself. */
static void draw_progress(void *user, const char *what, double fraction) {
    const options *o = user;
    if (o->is_quiet || !isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%s: %3.0f %%%s", what, 100 * fraction,
            fraction >= 1 ? "\r                                        \r" : "");
}

/* ---- losses ------------------------------------------------------------------------------------ */

static void print_losses(const hy_merge_losses *l) {
    const hy_evaluation *t = &l->trained;
    double apart = 100 * (l->folder.loss / t->loss - 1);
    if (l->has_folder)
        printf("held-out loss: onto the base as trained (%s) %.4f, onto the folder's weights %.4f "
               "(%+.2f %%)",
               t->frozen_dtype, t->loss, l->folder.loss, apart);
    else
        printf("held-out loss: %.4f", t->loss);
    hy_cli_printf(stdout, "; %lld tokens of %s\n", (long long)t->tokens, t->data);
}

/* How far the two bases are apart. */
static int compare(const options *o, const char *checkpoint) {
    hy_merge_options how = o->losses;
    hy_observer observer = {.user = (void *)o, .on_message = NULL, .on_progress = draw_progress};
    hy_merge_losses found;
    how.base = o->export.base;
    how.eval_batches = o->eval_batches == UINT64_MAX ? 0 : (int64_t)o->eval_batches;
    hy_status status = hy_merge_evaluate(checkpoint, &how, &observer, &found);
    if (status != HY_OK) {
        hy_cli_warning("the folder is written, but its held-out loss could not be taken");
        return hy_cli_fail(status);
    }
    print_losses(&found);
    return HY_EXIT_DONE;
}

static bool wants_losses(const options *o) {
    return o->eval_batches != UINT64_MAX || o->losses.data != NULL;
}

/* An adapter stands in place of a checkpoint, and all that is known of its base is a folder. */
static int check_adapter(const options *o, int argc, char **argv) {
    if (argc > 1)
        return hy_cli_wrong_usage("--adapter stands in place of a checkpoint; unexpected argument ",
                                  argv[1]);
    if (!o->export.merge)
        return hy_cli_wrong_usage("--adapter is for --merge, which is missing", "");
    if (o->export.onto != NULL && strcmp(o->export.onto, "folder") != 0)
        return hy_cli_wrong_usage("an adapter without its run is merged onto the folder, not onto ",
                                  o->export.onto);
    if (wants_losses(o) || o->losses.device != NULL)
        return hy_cli_wrong_usage(
            "--eval-batches, --data and --device need a run; \"hybrid-train --eval-only\" looks at "
            "a model with --adapter",
            "");
    return 0;
}

/* What the line says that cannot be; 0: nothing. */
static int check_options(options *o, int argc, char **argv) {
    bool is_merge = o->export.merge || o->export.onto != NULL;
    int code = o->adapter != NULL ? check_adapter(o, argc, argv) : 0;
    if (code != 0) return code;
    if (argc < 2 && o->adapter == NULL) return hy_cli_wrong_usage("a checkpoint is missing", "");
    if (argc > 2)
        return hy_cli_wrong_usage("only one checkpoint at a time; unexpected argument ", argv[2]);
    if (o->export.out == NULL || !*o->export.out)
        return hy_cli_wrong_usage("--out FOLDER is missing", "");
    if ((wants_losses(o) || o->losses.device) && !is_merge)
        return hy_cli_wrong_usage("--eval-batches, --data and --device are for --merge", "");
    const char *onto = o->export.onto;
    if (onto != NULL && strcmp(onto, "trained") != 0 && strcmp(onto, "folder") != 0)
        return hy_cli_wrong_usage("--merge-onto needs trained or folder, but got ", onto);
    if (o->max_shard_size != NULL) o->export.max_shard_size = parse_size(o->max_shard_size);
    if (o->max_shard_size != NULL && o->export.max_shard_size == 0)
        return hy_cli_wrong_usage("--max-shard-size needs bytes such as 5GB or 500M, but got ",
                                  o->max_shard_size);
    return 0;
}

int main(int argc, char **argv) {
    options o = {.eval_batches = UINT64_MAX};
    hy_observer observer = {.user = &o, .on_message = tell};
    int code = hy_cli_parse(&program, &argc, argv, &o);
    if (code != HY_CLI_GO_ON) return code;
    code = check_options(&o, argc, argv);
    if (code != 0) return code;
    hy_status status = o.adapter != NULL ? hy_merge_adapter(o.adapter, &o.export, &observer)
                                         : hy_export(argv[1], &o.export, &observer);
    if (status != HY_OK) return hy_cli_fail(status);
    if (!o.is_quiet) hy_cli_printf(stdout, "wrote %s\n", o.export.out);
    return wants_losses(&o) ? hy_cli_flushed(compare(&o, argv[1])) : HY_EXIT_DONE;
}
