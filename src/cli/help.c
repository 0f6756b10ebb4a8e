/* help.c: --help: examples first, then the most used flags; all flags on request.
 *
 * The texts of single flags come from the flag list (options.h); only the examples and the list of
 * most used flags are here. A name in that list that is no longer a flag is skipped. */
#include <ctype.h>
#include <string.h>

#include "cli/inspect.h"
#include "cli/options.h"
#include "cli/program.h"

#define NAME_COLUMNS 28

/* ---- the short page -------------------------------------------------------------------------- */

typedef struct example {
    const char *what, *command;
} example;

static const example examples[] = {
    {"Train the built-in example: a small model on text of known entropy",
     "hybrid-train --profile aggressive"},
    {"Train on your own text, a file or a folder", "hybrid-train --data book.txt"},
    {"Train a larger model for 2,000 steps and write to a chosen folder",
     "hybrid-train --model gpt2-124m --data corpus/ --steps 2000 --out runs/corpus"},
    {"Stop with Ctrl-C (the current step is finished and saved), then continue",
     "hybrid-train --resume runs/corpus"},
    {"Download a model from the Hugging Face hub; --model Qwen/Qwen2.5-0.5B then finds it",
     "hybrid-train --download Qwen/Qwen2.5-0.5B"},
    {"Train adapters for a frozen model (LoRA), here quantised to 4 bits (QLoRA)",
     "hybrid-train --model Qwen/Qwen3-8B --data rows.jsonl --qlora"},
    {"Prefer one answer to another (DPO), from rows with prompt, chosen and rejected",
     "hybrid-train --model runs/mine --data pairs.jsonl --task dpo"},
    {"Train on several GPUs of this machine; see \"--help ranks\" for several machines",
     "hybrid-train --gpus 4 --model gpt2-124m --data corpus/"},
    {"Measure loss and perplexity of a model on any data",
     "hybrid-train --eval-only --model runs/corpus --data other.txt"},
    {"Show every setting and its origin, without running",
     "hybrid-train --profile aggressive --lr 2e-3 --print-config"},
    {"Keep settings in a file; flags override it", "hybrid-train --config my.cfg --batch-size 8"},
    {"Use the built-in settings for a card or a CPU",
     "hybrid-train --config rtx5080 --data corpus/"},
    {"Show where a run would keep its state, and whether it fits",
     "hybrid-train --model gpt2-124m --batch-size 16 --plan"},
    {"Check whether a model fits on a card that is not in this machine",
     "hybrid-train --model qwen2.5-7b --qlora --card rtx5080 --cpu-mem 28GiB --plan"},
    {"Show what this machine can train: all parameters, LoRA or QLoRA", "hybrid-train --doctor"},
};

#define RANK_FLAGS                                                                                 \
    "--gpus --ranks --zero-stage --transport --link --rank-timeout --rank-secret-file --restarts"

static const struct {
    const char *title, *flags;
} most_used[] = {
    {"What to train", "--model --data --profile --config --set"},
    {"Length and size", "--steps --batch-size --grad-accum-steps --seq-len --lr"},
    {"What to write", "--out --resume --overwrite --save-every --save-minutes --keep --eval-every"},
    {"Several GPUs and machines", RANK_FLAGS},
    {"Memory", "--max-gpu-mem --cpu-mem --checkpoint-every-layer --no-checkpointing"},
    {"Inspecting and printing",
     "--show-rows --eval-only --download --print-config --plan --plan-shapes --doctor --selftest "
     "--list-models --json "
     "--quiet --verbose --no-color --version --help"},
};

static int page_columns(const hy_cli_terminal *terminal) {
    int columns = terminal->is_tty ? hy_cli_terminal_columns(terminal) : 80;
    return columns < 60 ? 60 : columns > 100 ? 100 : columns;
}

static void write_flag(const hy_cli_terminal *terminal, const hy_cli_flag *flag) {
    char name[96];
    /* "--batch-size INTEGER", "-q, --quiet", "--resume [DIR]". */
    char value[24] = "";
    if (flag->takes != HY_CLI_NO_VALUE) {
        size_t length = strlen(flag->type) < sizeof value - 1 ? strlen(flag->type) : 0;
        for (size_t i = 0; i < length; i++) value[i] = (char)toupper((unsigned char)flag->type[i]);
    }
    bool is_optional = flag->takes == HY_CLI_OPTIONAL_VALUE;
    char letter[8] = "";
    if (flag->letter != '\0') snprintf(letter, sizeof letter, "-%c, ", flag->letter);
    snprintf(name, sizeof name, "%s%s%s%s%s%s", letter, flag->flag, value[0] != '\0' ? " " : "",
             is_optional ? "[" : "", value, is_optional ? "]" : "");
    fprintf(terminal->out, "  %-*s", NAME_COLUMNS, name);
    if (strlen(name) >= NAME_COLUMNS) fprintf(terminal->out, "\n%*s", NAME_COLUMNS + 2, "");
    hy_cli_write_wrapped(terminal->out, flag->help, NAME_COLUMNS + 2, page_columns(terminal));
}

static void write_examples(const hy_cli_terminal *terminal, const example *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        fprintf(terminal->out,
                "%s\n"
                "  %s%s%s\n\n",
                list[i].what, hy_cli_colour_code(terminal, HY_CLI_GREEN), list[i].command,
                hy_cli_colour_code(terminal, HY_CLI_PLAIN));
}

/* `names` are separated by blanks. */
static void write_flags(const hy_cli_terminal *terminal, const char *names,
                        void (*write)(const hy_cli_terminal *, const hy_cli_flag *)) {
    hy_cli_flag flag;
    for (size_t length; *names != '\0'; names += length + strspn(names + length, " ")) {
        length = strcspn(names, " ");
        if (hy_cli_flag_find(names, length, &flag)) write(terminal, &flag);
    }
}

static void write_short_page(const hy_cli_terminal *terminal) {
    FILE *out = terminal->out;
    fputs("hybrid-train " HYBRID_VERSION
          ": trains transformer language models on one or more ordinary machines,\n"
          "all of their parameters or adapters\n\n",
          out);
    write_examples(terminal, examples, sizeof examples / sizeof examples[0]);
    for (size_t i = 0; i < sizeof most_used / sizeof most_used[0]; i++) {
        if (i > 0) fputc('\n', out);
        hy_cli_heading(terminal, most_used[i].title);
        write_flags(terminal, most_used[i].flags, write_flag);
    }
    fputs("\n"
          "\"--help all\" shows every flag; \"--help lr\" shows one flag and its accepted values.\n"
          "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 the loss diverged, 75 stopped "
          "by a\n"
          "signal; the run is saved if it has a folder.\n",
          out);
}

/* ---- groups and all -------------------------------------------------------------------------- */

/* "train" for "train.batch_size", "run" for keys outside groups, "program" for other flags. */
static void find_group(const hy_cli_flag *flag, char *group, size_t size) {
    bool is_key = flag->meaning == HY_CLI_IS_KEY;
    const char *dot = is_key ? strchr(flag->key, '.') : NULL;
    const char *name = dot ? flag->key : is_key ? "run" : "program";
    snprintf(group, size, "%.*s", dot ? (int)(dot - name) : (int)strlen(name), name);
}

static void write_details(const hy_cli_terminal *terminal, const hy_cli_flag *flag) {
    char accepts[512];
    write_flag(terminal, flag);
    if (flag->takes == HY_CLI_NO_VALUE && flag->meaning != HY_CLI_IS_KEY) return;
    fprintf(terminal->out, "%*s%s", NAME_COLUMNS + 2, "", hy_cli_colour_code(terminal, HY_CLI_DIM));
    size_t length = (size_t)snprintf(accepts, sizeof accepts, "accepts: %s", flag->accepted);
    if (flag->fallback != NULL && flag->fallback[0] != '\0' && length < sizeof accepts)
        snprintf(accepts + length, sizeof accepts - length, "; default: %s", flag->fallback);
    hy_cli_write_wrapped(terminal->out, accepts, NAME_COLUMNS + 2, page_columns(terminal));
    fputs(hy_cli_colour_code(terminal, HY_CLI_PLAIN), terminal->out);
}

/* Prints all flags of one group, or of every group with a heading; returns their number. */
static size_t write_groups(const hy_cli_terminal *terminal, const char *wanted) {
    hy_cli_flag flag;
    char group[32], current[32] = "";
    size_t written = 0;
    for (size_t i = 0; hy_cli_flag_at(i, &flag); i++) {
        find_group(&flag, group, sizeof group);
        if (flag.is_hidden || (wanted != NULL && strcmp(group, wanted) != 0)) continue;
        if (strcmp(group, current) != 0) {
            if (written > 0) fputc('\n', terminal->out);
            hy_cli_heading(terminal, group);
            snprintf(current, sizeof current, "%s", group);
        }
        write_details(terminal, &flag);
        written++;
    }
    return written;
}

/* ---- several GPUs and machines --------------------------------------------------------------- */

static const example launches[] = {
    {"Use four GPUs of this machine; one process, called a rank, is started for each",
     "hybrid-train --gpus 4 --data corpus/ --out runs/corpus"},
    {"Use two ranks on the CPU; without --device cpu, they share a GPU if there is one",
     "hybrid-train --ranks 2 --device cpu"},
    {"Use two machines with four GPUs each, with MPI",
     "mpirun -n 8 --host a:4,b:4 hybrid-train --data corpus/ --out runs/corpus"},
    {"The same with Slurm", "srun -N 2 --ntasks-per-node 4 --gpus-per-node 4 \\\n"
                            "      hybrid-train --data corpus/ --out runs/corpus"},
    {"The same with torchrun, started on each machine; the ranks do not need Python",
     "torchrun --no-python --nnodes 2 --nproc-per-node 4 \\\n"
     "      --rdzv-backend c10d --rdzv-endpoint a:29400 \\\n"
     "      hybrid-train --data corpus/ --out runs/corpus"},
    {"Test whether these GPUs work together; writes report/selftest.txt",
     "hybrid-train --selftest --gpus 4 --out report"},
    {"Show the memory and traffic of each rank, for a machine that is not here",
     "hybrid-train --plan --gpus 8 --card h100-80 --link nvlink \\\n"
     "      --model qwen2.5-7b --batch-size 64"},
    {"Continue from the last checkpoint after a rank was lost and all others stopped",
     "hybrid-train --gpus 4 --resume runs/corpus"},
};

static void write_ranks_page(const hy_cli_terminal *terminal) {
    write_examples(terminal, launches, sizeof launches / sizeof launches[0]);
    fputs("All ranks have the same settings and read the same files. Rank 0 prints the\n"
          "output and writes the run folder; other ranks print only errors. With --gpus or\n"
          "a launcher, each rank uses its own card. Ctrl-C saves once and stops all ranks.\n"
          "\n",
          terminal->out);
    write_flags(terminal, RANK_FLAGS, write_details);
}

/* ---- one topic ------------------------------------------------------------------------------- */

/* "lr", "--lr", "optimizer.lr" and "batch_size" are all names of flags. */
static bool find_topic(const char *topic, hy_cli_flag *flag) {
    char name[64];
    const char *dot = strrchr(topic, '.');
    if (topic[0] == '-' && strlen(topic) == 2) return hy_cli_flag_find(topic, 2, flag);
    if (strncmp(topic, "--", 2) == 0) topic += 2;
    snprintf(name, sizeof name, "--%s", dot != NULL ? dot + 1 : topic);
    return hy_cli_flag_find(name, strlen(name), flag);
}

static void write_topic(const hy_cli_terminal *terminal, const hy_cli_flag *flag) {
    const char *name;
    write_details(terminal, flag);
    if (flag->meaning == HY_CLI_IS_KEY)
        fprintf(terminal->out, "%*sin a file: %s = ...\n", NAME_COLUMNS + 2, "", flag->key);
    if (flag->builtin == NULL) return;
    bool is_model = strcmp(flag->builtin, "model") == 0;
    fprintf(terminal->out, "\nbuilt in%s:\n",
            is_model ? " (--list-models shows their shapes)" : "");
    for (size_t i = 0; (name = hy_builtin_name(flag->builtin, i)) != NULL; i++)
        fprintf(terminal->out, "  %s\n", name);
}

static int fail_unknown_topic(const char *topic) {
    char name[64];
    snprintf(name, sizeof name, "--%s", topic + strspn(topic, "-"));
    const char *nearest = hy_cli_nearest_flag(name, strlen(name));
    if (nearest != NULL)
        hy_cli_error("no help for \"%s\"; did you mean %s?", topic, nearest + 2);
    else
        hy_cli_error("no help for \"%s\"; \"hybrid-train --help all\" lists every flag", topic);
    return 2;
}

int hy_cli_help(const hy_cli_terminal *terminal, const char *topic) {
    hy_cli_flag flag;
    const char *name = topic != NULL ? topic + strspn(topic, "-") : "";
    if (topic == NULL || topic[0] == '\0')
        write_short_page(terminal);
    else if (strcmp(topic, "all") == 0)
        write_groups(terminal, NULL);
    else if (strcmp(name, "ranks") == 0 || strcmp(name, "gpus") == 0)
        write_ranks_page(terminal);
    else if (find_topic(topic, &flag))
        write_topic(terminal, &flag);
    else if (write_groups(terminal, topic) == 0)
        return fail_unknown_topic(topic);
    return 0;
}
