/* chat_options.c: the flags of hybrid-chat as a table: parsing, help and completion read it. */
#include "cli/chat_options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/completion.h"
#include "cli/flag_names.h"
#include "cli/terminal.h"

#define DEFAULT_TEMPERATURE 0.7
#define DEFAULT_TOP_P 0.95
#define DEFAULT_MAX_TOKENS 512

typedef enum flag_kind {
    TEXT,    /* a string at `offset` */
    NUMBER,  /* a double there, from `low` to `high` */
    WHOLE,   /* an int32_t */
    SEED,    /* a uint64_t */
    SETTING, /* a value of the configuration */
    SWITCH,  /* a bool */
    ACTION   /* what to do instead of talking */
} flag_kind;

typedef struct chat_flag {
    const char *name, *value; /* "--top-p", "P" */
    flag_kind kind;
    size_t offset;
    double low, high;
    const char *key; /* of a setting */
    hy_cli_chat_action action;
    const char *help;  /* NULL: for programs, not for people */
    const char *words; /* that complete the value; NULL: any */
} chat_flag;

#define AT(member) .offset = offsetof(hy_cli_chat_options, member)

static const chat_flag flags[] = {
    {"--model", "FOLDER", TEXT, AT(model),
     .help =
         "What to talk to: a run's folder, one of its checkpoints, a model's folder (config.json, "
         "safetensors, tokenizer.json) or its name in the hub's cache."},
    {"--prompt", "TEXT", TEXT, AT(prompt),
     .help = "Answer this once and exit. With a chat template it is a message, without one a text "
             "to be continued."},
    {"--system", "TEXT", TEXT, AT(system),
     .help = "What the model is told before the conversation."},
    {"--max-tokens", "N", WHOLE, AT(generate.max_tokens), .low = 0, .high = INT32_MAX,
     .help = "Longest answer, in tokens; 0: as long as the model likes. Default 512."},
    {"--temperature", "T", NUMBER, AT(generate.temperature), .low = 0, .high = 100,
     .help = "How freely tokens are drawn; 0: always the likeliest. Default 0.7."},
    {"--top-k", "K", WHOLE, AT(generate.top_k), .low = 0, .high = INT32_MAX,
     .help = "Draw from the K likeliest tokens; 0: from all. Default 0."},
    {"--top-p", "P", NUMBER, AT(generate.top_p), .low = 0, .high = 1,
     .help = "Draw from the likeliest tokens that make up this share; 1: from all. Default 0.95."},
    {"--seed", "N", SEED, AT(generate.seed),
     .help = "The same seed and the same words give the same answer. Default 1."},
    {"--context", "N", WHOLE, AT(inference.context), .low = 1, .high = INT32_MAX,
     .help = "Tokens that are remembered; default: what the model can, at most 8192."},
    {"--tokenizer", "FILE", TEXT, AT(inference.tokenizer),
     .help =
         "tokenizer.json or its folder; none: tokens are bytes. Default: beside the model, else "
         "bytes."},
    {"--chat-template", "NAME", TEXT, AT(inference.chat_template),
     .words = "auto, plain, chatml, llama2, llama3, mistral, alpaca",
     .help =
         "chatml, llama2, llama3, mistral, alpaca; plain: texts simply follow each other; auto: "
         "as the model's folder says."},
    {"--no-think", NULL, SWITCH, AT(inference.without_thinking),
     .help = "Answer at once, where the model's template has a place for thinking (Qwen3)."},
    {"--device", "NAME", SETTING, .key = "device", .words = "auto, cpu, cuda",
     .help = "auto, cpu, cuda, cuda:1. Default auto."},
    {"--precision", "TYPE", SETTING, .key = "precision", .words = "auto, fp32, bf16",
     .help = "auto, fp32, bf16. Default auto: bf16 on a GPU, fp32 on a CPU."},
    {"--threads", "N", SETTING, .key = "threads", .help = "Worker threads; 0: all cores."},
    {"--max-gpu-mem", "BYTES", SETTING, .key = "max_gpu_mem",
     .help = "Use no more of the card; weights that do not fit pass through it."},
    {"--quiet", NULL, SWITCH, AT(is_quiet), .help = "Nothing but answers and errors."},
    {"--no-color", NULL, SWITCH, AT(without_colour),
     .help = "No colours; so does the variable NO_COLOR."},
    {"--version", NULL, ACTION, .action = HY_CLI_CHAT_VERSION, .help = "Print the version."},
    {"--help", NULL, ACTION, .action = HY_CLI_CHAT_HELP, .help = "Show this page."},
    {"--complete", NULL, ACTION, .action = HY_CLI_CHAT_COMPLETE},
};

enum { FLAGS = sizeof flags / sizeof flags[0] };

/* ---- help -------------------------------------------------------------------------------------- */

static void write_flag(const chat_flag *flag) {
    char name[40];
    int column = 0;
    snprintf(name, sizeof name, "%s%s%s", flag->name, flag->value ? " " : "",
             flag->value ? flag->value : "");
    printf("  %-24s", name);
    for (const char *at = flag->help; *at;) {
        int length = (int)strcspn(at, " ");
        if (column > 0 && column + 1 + length > 52) {
            printf("\n%26s", "");
            column = 0;
        }
        column += printf("%s%.*s", column > 0 ? " " : "", length, at);
        at += length;
        at += strspn(at, " ");
    }
    putchar('\n');
}

void hy_cli_chat_help(void) {
    fputs(
        "hybrid-chat " HYBRID_VERSION ": talk to a model in the terminal\n\n"
        "Talk to what a run has made\n  hybrid-chat --model runs/mine\n\n"
        "Talk to a model's folder\n  hybrid-chat --model ~/models/Qwen2.5-0.5B-Instruct\n\n"
        "Answer once and exit\n"
        "  hybrid-chat --model runs/mine --prompt \"Once upon a time\" --max-tokens 100\n\n"
        "The likeliest words instead of drawn ones\n"
        "  hybrid-chat --model runs/mine --temperature 0\n\n"
        "Answer every line of a file\n  hybrid-chat --model runs/mine --quiet < questions.txt\n\n",
        stdout);
    for (int i = 0; i < FLAGS; i++)
        if (flags[i].help != NULL) write_flag(&flags[i]);
    fputs("\nWhile talking: /reset begins anew, /help shows what can be typed, /exit (or\n"
          "Ctrl-D) ends; Ctrl-C stops an answer; a line that ends in \\ goes on in the next.\n"
          "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 75 stopped by a signal.\n",
          stdout);
}

/* ---- completion -------------------------------------------------------------------------------- */

static const char *completion_type(const chat_flag *flag) {
    if (flag->value == NULL) return "action";
    if (flag->words != NULL) return "choice";
    if (strcmp(flag->value, "FOLDER") == 0) return "folder";
    return strcmp(flag->value, "FILE") == 0 ? "path" : "text";
}

void hy_cli_chat_complete(FILE *out) {
    for (int i = 0; i < FLAGS; i++) {
        hy_cli_completion row = {flags[i].name, completion_type(&flags[i]),
                                 flags[i].words != NULL ? flags[i].words : "", flags[i].help};
        if (flags[i].help != NULL) hy_cli_complete_rows(out, &row, 1);
    }
}

/* ---- values ------------------------------------------------------------------------------------ */

static bool say_wrong_number(const chat_flag *flag, const char *value) {
    if (flag->kind == SEED)
        hy_cli_error("%s is \"%s\"; accepted are whole numbers from 0 on", flag->name, value);
    else
        hy_cli_error("%s is \"%s\"; accepted are %snumbers from %.0f to %.0f", flag->name, value,
                     flag->kind == WHOLE ? "whole " : "", flag->low, flag->high);
    return false;
}

static bool take_seed(const chat_flag *flag, const char *value, uint64_t *out) {
    char *end;
    errno = 0;
    *out = strtoull(value, &end, 10);
    bool is_right = errno == 0 && end != value && *end == '\0' && strchr("0123456789", value[0]);
    return is_right || say_wrong_number(flag, value);
}

static bool take_number(const chat_flag *flag, const char *value, double *out) {
    char *end;
    double number = strtod(value, &end);
    bool is_whole = flag->kind != WHOLE || number == floor(number);
    bool is_in_range = number >= flag->low && number <= flag->high; /* false for NaN */
    if (end == value || *end != '\0' || !is_whole || !is_in_range)
        return say_wrong_number(flag, value);
    *out = number;
    return true;
}

static bool take_value(const chat_flag *flag, const char *value, hy_cli_chat_options *o) {
    char *at = (char *)o + flag->offset;
    double number;
    switch (flag->kind) {
    case TEXT: *(const char **)(void *)at = value; return true;
    case SETTING:
        if (o->setting_count == HY_CLI_CHAT_SETTINGS) {
            hy_cli_error("%s is given too often", flag->name);
            return false;
        }
        o->settings[o->setting_count++] = (hy_cli_chat_setting){flag->key, value};
        return true;
    case SEED: return take_seed(flag, value, (uint64_t *)(void *)at);
    case WHOLE:
        if (!take_number(flag, value, &number)) return false;
        *(int32_t *)(void *)at = (int32_t)number;
        return true;
    default: return take_number(flag, value, (double *)(void *)at);
    }
}

/* ---- the whole line ---------------------------------------------------------------------------- */

static hy_cli_flag_name name_of(size_t i) {
    if (i >= FLAGS) return (hy_cli_flag_name){0};
    return (hy_cli_flag_name){flags[i].name, .is_hidden = flags[i].help == NULL};
}

static bool say_unknown(const char *argument, size_t length) {
    if (argument[0] != '-')
        hy_cli_error("unexpected argument \"%s\"; every value follows a flag: --model %s", argument,
                     argument);
    else
        hy_cli_unknown_flag(name_of, argument, length, "\"hybrid-chat --help\" lists them");
    return false;
}

/* `argv[*i]` is the argument in hand; a value that follows it is taken along. */
static bool take_argument(int argc, char *const *argv, int *i, hy_cli_chat_options *o) {
    const char *argument = argv[*i];
    size_t length = strcspn(argument, "=");
    int found = hy_cli_find_flag(name_of, argument, length);
    const char *value = argument[length] == '=' ? argument + length + 1 : NULL;
    if (found < 0) return say_unknown(argument, length);
    const chat_flag *flag = &flags[found];
    if (flag->value == NULL) {
        if (value != NULL) {
            hy_cli_error("%s takes no value, but got \"%s\"", flag->name, value);
            return false;
        }
        if (flag->kind == ACTION)
            o->action = flag->action;
        else
            *(bool *)((char *)o + flag->offset) = true;
        return true;
    }
    if (value == NULL && *i + 1 < argc) value = argv[++*i];
    if (value == NULL) {
        hy_cli_error("%s needs a value: %s", flag->name, flag->value);
        return false;
    }
    return take_value(flag, value, o);
}

bool hy_cli_chat_parse(int argc, char *const *argv, hy_cli_chat_options *options) {
    *options = (hy_cli_chat_options){.generate = {.max_tokens = DEFAULT_MAX_TOKENS,
                                                  .temperature = DEFAULT_TEMPERATURE,
                                                  .top_p = DEFAULT_TOP_P,
                                                  .seed = 1}};
    for (int i = 1; i < argc; i++) {
        if (!take_argument(argc, argv, &i, options)) return false;
        if (options->action != HY_CLI_CHAT_TALKS) return true;
    }
    if (options->model != NULL) return true;
    hy_cli_error("which model? --model FOLDER names a run, a checkpoint or a model's folder; "
                 "\"hybrid-chat --help\" shows examples");
    return false;
}
