/* hybrid_export.c: hybrid-export: a checkpoint becomes a folder that transformers loads.
 *
 * Exit codes: 0 done, 1 it failed, 2 wrong usage or input. Everything the program knows of models it has
 * from hybrid.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/exit_code.h"
#include "cli/program.h"
#include "cli/terminal.h"
#include "hybrid.h"

static const char help[] =
    "Usage: hybrid-export CHECKPOINT --out DIR [options]\n"
    "\n"
    "Writes the weights of a checkpoint as a folder that transformers and every tool that\n"
    "reads its format load: config.json, model.safetensors (or shards with an index), and\n"
    "the tokenizer files that lay beside the weights the model began with.\n"
    "\n"
    "  CHECKPOINT             a folder OUT/checkpoint-N, or OUT: its newest checkpoint\n"
    "  --out DIR              folder to write; it appears when it is complete\n"
    "  --dtype TYPE           fp32, bf16, fp16; auto (default): as in the folder the model\n"
    "                         came from, or as in the checkpoint\n"
    "  --max-shard-size SIZE  most bytes of a file of weights: 5GB (default), 2GiB, 500M\n"
    "  --overwrite            replace DIR where it exists\n"
    "  --quiet                say nothing but errors\n"
    "  --help, --version\n"
    "\n"
    "Example: hybrid-export runs/mine --out mine-bf16 --dtype bf16\n"
    "\n"
    "A run writes OUT/model by itself when it ends; this is for checkpoints on the way and\n"
    "for other types. Exit codes: 0 done, 1 failed, 2 wrong usage or input.\n";

/* For the shells: see completion.h. */
static const hy_cli_completion rows[] = {
    {"--out", "folder", "", "Folder to write."},
    {"--dtype", "choice", "auto, fp32, bf16, fp16", "Type of the weights."},
    {"--max-shard-size", "bytes", "5GB, 2GiB, 500M", "Most bytes of a file of weights."},
    {"--overwrite", "action", "", "Replace the folder where it exists."},
    {"--quiet", "action", "", "Say nothing but errors."},
    {"--help", "action", "", "Show help."},
    {"--version", "action", "", "Print the version."},
    {"CHECKPOINT", "folder", "", "A run or one of its checkpoints."},
};

static const hy_cli_program program = {"hybrid-export", help, rows, sizeof rows / sizeof rows[0]};

typedef struct options {
    const char *checkpoint;
    hy_export_options export;
    bool is_quiet;
} options;

/* "5GB", "2GiB", "500M"; 0 when it is none of that. */
static uint64_t parse_size(const char *text) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},     {"k", 1e3},      {"kb", 1e3},    {"kib", 0x1p10}, {"m", 1e6},
                 {"mb", 1e6}, {"mib", 0x1p20}, {"g", 1e9},     {"gb", 1e9},     {"gib", 0x1p30},
                 {"t", 1e12}, {"tb", 1e12},    {"tib", 0x1p40}};
    char *end;
    char unit[8] = "";
    if (text[0] < '0' || text[0] > '9') return 0;
    double number = strtod(text, &end);
    if (strlen(end) >= sizeof unit) return 0;
    for (size_t i = 0; end[i] != '\0'; i++) {
        unit[i] = (char)(end[i] >= 'A' && end[i] <= 'Z' ? end[i] - 'A' + 'a' : end[i]);
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        double bytes = number * units[i].bytes;
        if (strcmp(unit, units[i].name) == 0)
            return bytes >= 1 && bytes < 1e18 ? (uint64_t)bytes : 0;
    }
    return 0;
}

static int take_value(int argc, char **argv, int *i, options *out, bool *is_taken) {
    const char *value;
    *is_taken = true;
    if ((value = hy_cli_value_of("--out", argc, argv, i)) != NULL) {
        out->export.out = value;
        return *value != '\0' ? HY_EXIT_DONE : hy_cli_wrong_usage("--out needs a folder", "");
    }
    if ((value = hy_cli_value_of("--dtype", argc, argv, i)) != NULL) {
        out->export.dtype = value;
        return *value != '\0' ? HY_EXIT_DONE
                              : hy_cli_wrong_usage("--dtype needs fp32, bf16, fp16 or auto", "");
    }
    if ((value = hy_cli_value_of("--max-shard-size", argc, argv, i)) != NULL) {
        out->export.max_shard_size = parse_size(value);
        if (out->export.max_shard_size > 0) return HY_EXIT_DONE;
        return hy_cli_wrong_usage("--max-shard-size needs bytes such as 5GB or 500M, but got ",
                                  value);
    }
    *is_taken = false;
    return HY_EXIT_DONE;
}

static int take_argument(int argc, char **argv, int *i, options *out) {
    const char *argument = argv[*i];
    bool is_taken;
    int code = take_value(argc, argv, i, out, &is_taken);
    if (is_taken) return code;
    if (strcmp(argument, "--overwrite") == 0) {
        out->export.overwrite = true;
    } else if (strcmp(argument, "--quiet") == 0 || strcmp(argument, "-q") == 0) {
        out->is_quiet = true;
    } else if (argument[0] == '-') {
        return hy_cli_wrong_usage("unknown flag ", argument);
    } else if (out->checkpoint != NULL) {
        return hy_cli_wrong_usage("only one checkpoint at a time; unexpected argument ", argument);
    } else {
        out->checkpoint = argument;
    }
    return HY_EXIT_DONE;
}

static void tell(void *user, hy_message_level level, const char *text) {
    (void)user;
    fprintf(stderr, "%s: %s: %s\n", program.name, level == HY_WARNING ? "warning" : "note", text);
}

static int export_checkpoint(const options *o) {
    hy_observer observer = {.on_message = tell};
    hy_status status = hy_export(o->checkpoint, &o->export, &observer);
    if (status != HY_OK) return hy_cli_fail(status);
    if (!o->is_quiet) printf("wrote %s\n", o->export.out);
    return HY_EXIT_DONE;
}

int main(int argc, char **argv) {
    options o = {0};
    hy_cli_name_program(program.name);
    for (int i = 1; i < argc; i++) {
        if (hy_cli_answers(&program, argv[i])) return hy_cli_flushed(HY_EXIT_DONE);
        int code = take_argument(argc, argv, &i, &o);
        if (code != HY_EXIT_DONE) return code;
    }
    if (o.checkpoint == NULL) return hy_cli_wrong_usage("a checkpoint is missing", "");
    if (o.export.out == NULL) return hy_cli_wrong_usage("--out DIR is missing", "");
    return export_checkpoint(&o);
}
