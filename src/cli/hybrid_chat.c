/* hybrid_chat.c: the program: talks to a model in the terminal, or answers once.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage or input, 75 stopped by a signal. Answers go to standard
 * output, to a file or pipe byte for byte as the model writes them; everything else goes to standard
 * error. All it knows of models it has from hybrid.h. */
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/line_edit.h"
#include "cli/program.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "hybrid.h"

typedef struct options {
    const char *model, *adapter, *base, *frozen_dtype;
    const char *prompt; /* NULL: talk */
    const char *system;
    const char *messages; /* a file; NULL: nothing was said before */
    hy_inference_options inference;
    hy_generate_options generate;
    bool is_quiet, without_colour;
    const char *device, *precision, *threads,
        *max_gpu_mem; /* of the configuration; NULL: as it is */
} options;

#define AT(member) .offset = offsetof(options, member)
#define FROM_0 "whole numbers from 0 to 2147483647"

static const hy_cli_row rows[] = {
    {"--model", "FOLDER", HY_CLI_TEXT, AT(model),
     "What to talk to: a run's folder, one of its checkpoints, a model's folder (config.json, "
     "safetensors, tokenizer.json) or its name in the hub's cache."},
    {"--adapter", "FOLDER", HY_CLI_TEXT, AT(adapter),
     "An adapter that was trained beside this model (LoRA), as PEFT saves it, or the run that "
     "left one. Several with commas between: /adapter changes over."},
    {"--base", "FOLDER", HY_CLI_TEXT, AT(base),
     "Of a run with adapters: where the model that they stand beside is now, if it has moved."},
    {"--frozen-dtype", "TYPE", HY_CLI_TEXT, AT(frozen_dtype),
     "Storage of the weights that adapters stand beside; without it as the run was trained where "
     "--model is one, else as in the folder; auto: that of passes.",
     "auto, fp8, int8, nf4, nf4_single"},
    {"--prompt", "TEXT", HY_CLI_TEXT, AT(prompt),
     "Answer this once and exit. With a chat template it is a message, without one a text to be "
     "continued."},
    {"--system", "TEXT", HY_CLI_TEXT, AT(system),
     "What the model is told before the conversation."},
    {"--messages", "FILE", HY_CLI_TEXT, AT(messages),
     "What was said before, as JSON: a list of messages, each with role (system, user, assistant, "
     "tool) and content, or an object with messages and tools. The last one is answered."},
    {"--max-tokens", "N", HY_CLI_INT32, AT(generate.max_tokens),
     "Longest answer, in tokens; 0: as long as the model likes. Default 512.", FROM_0, 0,
     INT32_MAX},
    {"--temperature", "T", HY_CLI_NUMBER, AT(generate.temperature),
     "How freely tokens are drawn; 0: always the likeliest. Default 0.7.", "numbers from 0 to 100",
     0, 100},
    {"--top-k", "K", HY_CLI_INT32, AT(generate.top_k),
     "Draw from the K likeliest tokens; 0: from all. Default 0.", FROM_0, 0, INT32_MAX},
    {"--top-p", "P", HY_CLI_NUMBER, AT(generate.top_p),
     "Draw from the likeliest tokens that make up this share; 1: from all. Default 0.95.",
     "numbers from 0 to 1", 0, 1},
    {"--seed", "N", HY_CLI_COUNT, AT(generate.seed),
     "The same seed and the same words give the same answer. Default 1.",
     "whole numbers from 0 on"},
    {"--context", "N", HY_CLI_INT32, AT(inference.context),
     "Tokens that are remembered; default: what the model can, at most 8192.",
     "whole numbers from 1 to 2147483647", 1, INT32_MAX},
    {"--tokenizer", "FILE", HY_CLI_TEXT, AT(inference.tokenizer),
     "tokenizer.json or its folder; none: tokens are bytes. Default: beside the model, else "
     "bytes."},
    {"--chat-template", "NAME", HY_CLI_TEXT, AT(inference.chat_template),
     "How a conversation is written; plain: texts simply follow each other; auto: as the model's "
     "folder says.",
     "auto, plain, chatml, llama2, llama3, mistral, alpaca"},
    {"--no-think", NULL, HY_CLI_SWITCH, AT(inference.without_thinking),
     "Tell the model's template enable_thinking = false: Qwen3 then answers at once."},
    {"--device", "NAME", HY_CLI_TEXT, AT(device), "auto, cpu, cuda, cuda:1. Default auto.",
     "auto, cpu, cuda"},
    {"--precision", "TYPE", HY_CLI_TEXT, AT(precision),
     "auto, fp32, bf16. Default auto: bf16 on a GPU, fp32 on a CPU.", "auto, fp32, bf16"},
    {"--threads", "N", HY_CLI_TEXT, AT(threads), "Worker threads; 0: all cores."},
    {"--max-gpu-mem", "BYTES", HY_CLI_TEXT, AT(max_gpu_mem),
     "Use no more of the card; weights that do not fit pass through it."},
    {"--quiet", NULL, HY_CLI_SWITCH, AT(is_quiet), "Nothing but answers and errors."},
    {"--no-color", NULL, HY_CLI_SWITCH, AT(without_colour),
     "No colours; so does the variable NO_COLOR."},
};

static const hy_cli_program program = {
    .name = "hybrid-chat",
    .before =
        "hybrid-chat " HYBRID_VERSION ": talk to a model in the terminal\n\n"
        "Talk to what a run has made\n  hybrid-chat --model runs/mine\n\n"
        "Talk to a model's folder\n  hybrid-chat --model ~/models/Qwen2.5-0.5B-Instruct\n\n"
        "Answer once and exit\n"
        "  hybrid-chat --model runs/mine --prompt \"Once upon a time\" --max-tokens 100\n\n"
        "The likeliest words instead of drawn ones\n"
        "  hybrid-chat --model runs/mine --temperature 0\n\n"
        "Answer every line of a file\n  hybrid-chat --model runs/mine --quiet < questions.txt\n\n",
    .after = "\nWhile talking: /reset begins anew, /adapter NAME changes the adapter, /help\n"
             "shows what can be typed, /exit (or Ctrl-D) ends; Ctrl-C stops an answer; a line\n"
             "that ends in \\ goes on in the next.\n"
             "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 75 stopped by a signal.\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof rows[0],
};

typedef struct chat {
    const options *options;
    hy_cli_terminal terminal; /* where answers go */
    bool is_talking;          /* a person types and reads */
    hy_inference *model;
    char last; /* byte of the answer; 0: none yet */
} chat;

/* ---- signals ----------------------------------------------------------------------------------- */

static _Atomic(hy_inference *) answering; /* NULL: nobody is */
static atomic_bool was_interrupted;

static void on_interrupt(int number) {
    (void)number;
    hy_inference *model = atomic_load(&answering);
    atomic_store(&was_interrupted, true);
    if (model != NULL) hy_inference_request_stop(model);
}

/* ---- answers ----------------------------------------------------------------------------------- */

static void on_text(void *user, const char *text, size_t size) {
    chat *it = user;
    FILE *out = it->terminal.out;
    if (it->terminal.is_tty)
        hy_cli_write_safely(out, text, size, it->terminal.is_utf8);
    else
        fwrite(text, 1, size, out);
    fflush(out);
    if (size > 0) it->last = text[size - 1];
}

static void write_figures(const chat *it, const hy_generated *info) {
    static const char *const ends[] = {[HY_END_MODEL] = "",
                                       [HY_END_MAX_TOKENS] = ", cut by --max-tokens",
                                       [HY_END_CONTEXT] =
                                           ", the context is full: /reset begins anew",
                                       [HY_END_STOPPED] = ", stopped"};
    double rate = info->seconds > 0 ? info->tokens / info->seconds : 0;
    if (!it->is_talking || it->options->is_quiet) return;
    fprintf(it->terminal.out, "%s%d tokens, %.1f a second%s%s\n",
            hy_cli_colour_code(&it->terminal, HY_CLI_DIM), info->tokens, rate, ends[info->end],
            hy_cli_colour_code(&it->terminal, HY_CLI_PLAIN));
}

/* is_text: a text to be continued, no message; words NULL: what was said before. */
static hy_status answer(chat *it, const char *words, bool is_text, hy_generated *info) {
    const hy_generate_options *how = &it->options->generate;
    it->last = 0;
    atomic_store(&was_interrupted, false);
    atomic_store(&answering, it->model);
    hy_status status = is_text ? hy_inference_complete(it->model, words, how, on_text, it, info)
                               : hy_inference_say(it->model, words, how, on_text, it, info);
    atomic_store(&answering, NULL);
    if (status == HY_OK && it->last != '\n') fputc('\n', it->terminal.out);
    if (status == HY_OK) write_figures(it, info);
    fflush(it->terminal.out);
    return status;
}

static int answer_once(chat *it) {
    hy_generated info;
    hy_inference_facts facts;
    hy_inference_describe(it->model, &facts);
    bool is_message = strcmp(facts.chat_template, "plain") != 0 || it->options->messages;
    hy_status status = answer(it, it->options->prompt, !is_message, &info);
    if (status != HY_OK) return hy_cli_fail(status);
    return info.end == HY_END_STOPPED ? HY_EXIT_STOPPED : HY_EXIT_DONE;
}

/* ---- talking ----------------------------------------------------------------------------------- */

enum { MESSAGE_MOST = 16 << 20 };

/* The same on a terminal, with libedit. */
static bool edit_message(char **message) {
    size_t size = 0;
    *message = NULL;
    for (bool goes_on = true; goes_on;) {
        char *line = hy_cli_edit_line(*message ? ". " : "> ");
        size_t more = line ? strlen(line) : 0;
        char *longer = line ? realloc(*message, size + more + 1) : NULL;
        /* What was typed of it before Ctrl-C is not meant any more. */
        if (!line && atomic_load(&was_interrupted)) {
            free(*message);
            *message = NULL;
        }
        if (!longer) {
            free(line);
            break;
        }
        *message = longer;
        memcpy(*message + size, line, more + 1);
        size += more;
        goes_on = more > 0 && line[more - 1] == '\\';
        if (goes_on) (*message)[size - 1] = '\n';
        free(line);
    }
    return *message != NULL;
}

/* One message; false at the end. Lines that end in a backslash go on in the next. */
static bool read_message(chat *it, char **message) {
    size_t room = 0, size = 0;
    if (it->is_talking && hy_cli_can_edit()) return edit_message(message);
    int c = 0;
    *message = NULL;
    for (bool goes_on = true; goes_on && c != EOF;) {
        if (it->is_talking) {
            fputs(size == 0 ? "> " : ". ", it->terminal.out);
            fflush(it->terminal.out);
        }
        size_t begin = size;
        while ((c = getc(stdin)) != EOF) {
            if (size + 1 >= room) {
                char *longer =
                    size < MESSAGE_MOST ? realloc(*message, room = 2 * room + 256) : NULL;
                if (!longer) {
                    hy_cli_error("a message has more than %zu bytes", size);
                    exit(HY_EXIT_USAGE);
                }
                *message = longer;
            }
            if (c == '\n') break;
            (*message)[size++] = (char)c;
        }
        goes_on = size > begin && (*message)[size - 1] == '\\';
        if (goes_on) (*message)[size - 1] = '\n';
    }
    if (*message) (*message)[size] = '\0';
    return *message != NULL;
}

/* What can be changed to, with a mark at what is used. */
static void list_adapters(const chat *it) {
    const char *used = hy_inference_adapter_used(it->model), *name;
    for (size_t i = 0; (name = hy_inference_adapter(it->model, i)) != NULL; i++) {
        hy_cli_printf(it->terminal.out, "%c %s\n", strcmp(name, used) == 0 ? '*' : ' ', name);
    }
    fprintf(it->terminal.out, "%c none\n", used[0] == '\0' ? '*' : ' ');
}

typedef enum command { NO_COMMAND, COMMAND_DONE, COMMAND_EXIT, COMMAND_WRONG } command;

/* A person is told and types it again; what lines of a file or pipe ask for next would be answered by another model
 * than they mean, so they end here. */
__attribute__((format(printf, 2, 3))) static command refuse(const chat *it, const char *format,
                                                            ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (it->is_talking)
        hy_cli_warning("%s", text);
    else
        hy_cli_error("%s", text);
    return it->is_talking ? COMMAND_DONE : COMMAND_WRONG;
}

/* "/adapter", "/adapter NAME". What is unknown changes nothing. */
static command change_adapter(chat *it, const char *name) {
    if (hy_inference_adapter(it->model, 0) == NULL)
        return refuse(it, "no adapters were named: --adapter A,B loads some to change between");
    if (name[0] == '\0')
        list_adapters(it);
    else if (hy_inference_use_adapter(it->model, name) != HY_OK)
        return refuse(it, "%s", hy_error_message());
    else if (it->is_talking)
        hy_cli_printf(it->terminal.out, "adapter: %s; the conversation goes on\n", name);
    return COMMAND_DONE;
}

/* What follows the word of a command, or NULL: it is another. */
static const char *words_of(const char *message, const char *word) {
    size_t length = strlen(word);
    bool is_it = strncmp(message, word, length) == 0;
    if (!is_it || (message[length] != '\0' && message[length] != ' ')) return NULL;
    return message + length + strspn(message + length, " ");
}

static command obey(chat *it, const char *message) {
    if (message[0] != '/' || message[1] == '/') return NO_COMMAND;
    if (strcmp(message, "/exit") == 0 || strcmp(message, "/quit") == 0) return COMMAND_EXIT;
    if (strcmp(message, "/reset") == 0) {
        if (hy_inference_reset(it->model, it->options->system) != HY_OK) hy_cli_fail(HY_OK);
        if (it->is_talking) fputs("a new conversation\n", it->terminal.out);
    } else if (words_of(message, "/adapter") != NULL) {
        return change_adapter(it, words_of(message, "/adapter"));
    } else if (strcmp(message, "/help") == 0) {
        fputs(
            "  /reset         begin a new conversation\n"
            "  /adapter       the adapters there are; /adapter NAME uses one, /adapter none none\n"
            "  /help          this list\n"
            "  /exit          end; so does Ctrl-D\n"
            "  Ctrl-C stops an answer. A line that ends in \\ goes on in the next. A message that\n"
            "  begins with / is written with // in front.\n",
            it->terminal.out);
    } else {
        return refuse(it, "unknown command %s; known are /reset, /adapter, /help and /exit",
                      message);
    }
    return COMMAND_DONE;
}

/* A message that cannot be answered (too long) is reported and does not end the conversation. */
static int talk_about(chat *it, const char *message) {
    hy_generated info;
    if (message[0] == '\0') return HY_EXIT_DONE;
    hy_status status = answer(it, message[0] == '/' ? message + 1 : message, false, &info);
    if (status == HY_OK) return HY_EXIT_DONE;
    int code = hy_cli_fail(status);
    return status == HY_ERR_INPUT && it->is_talking ? HY_EXIT_DONE : code;
}

/* Ctrl-C while a line is awaited: say how to leave, and go on. */
static bool goes_on_waiting(const chat *it) {
    if (!it->is_talking || feof(stdin) || !atomic_exchange(&was_interrupted, false)) return false;
    clearerr(stdin);
    fputs("\n(Ctrl-D or /exit ends)\n", it->terminal.out);
    return true;
}

static int talk(chat *it) {
    char *message;
    int code = HY_EXIT_DONE;
    for (;;) {
        if (!read_message(it, &message)) {
            if (goes_on_waiting(it)) continue;
            break;
        }
        command what = obey(it, message);
        if (what == NO_COMMAND) code = talk_about(it, message);
        free(message);
        if (what == COMMAND_WRONG) return HY_EXIT_USAGE;
        if (what == COMMAND_EXIT || code != HY_EXIT_DONE) return code;
        if (!it->is_talking && atomic_load(&was_interrupted)) return HY_EXIT_STOPPED;
    }
    if (it->is_talking) fputc('\n', it->terminal.out);
    return atomic_load(&was_interrupted) ? HY_EXIT_STOPPED : HY_EXIT_DONE;
}

/* What was said before, from its file. */
static hy_status load_messages(chat *it) {
    const char *path = it->options->messages;
    FILE *file = fopen(path, "rb");
    char *text = NULL, *longer;
    size_t size = 0, room = 0, more = 1;
    while (file && more > 0 && size < MESSAGE_MOST) {
        if (!(longer = realloc(text, room = 2 * size + 4096))) break;
        text = longer;
        more = fread(text + size, 1, room - size, file);
        size += more;
    }
    bool is_read = file && more == 0 && !ferror(file);
    if (file) fclose(file);
    if (!is_read) {
        hy_cli_error("%s cannot be read, or has more than %d MiB", path, MESSAGE_MOST >> 20);
        exit(HY_EXIT_USAGE);
    }
    hy_status status = hy_inference_set_messages(it->model, text, size);
    free(text);
    return status;
}

/* ---- opening ----------------------------------------------------------------------------------- */

static void on_message(void *user, hy_message_level level, const char *text) {
    (void)user;
    if (level == HY_WARNING) hy_cli_warning("%s", text);
}

/* On a terminal alone: a line that is drawn over itself. */
static void on_progress(void *user, const char *what, double fraction) {
    const chat *it = user;
    if (!it->is_talking) return;
    fprintf(it->terminal.out, "\r%s: %3.0f %%%s", what, 100 * fraction,
            fraction >= 1 ? "\r                                        \r" : "");
    fflush(it->terminal.out);
}

static hy_status open_model(chat *it) {
    const options *o = it->options;
    const char *const pairs[][2] = {{"device", o->device},
                                    {"precision", o->precision},
                                    {"threads", o->threads},
                                    {"max_gpu_mem", o->max_gpu_mem},
                                    {"frozen_dtype", o->frozen_dtype},
                                    {"adapter", o->adapter},
                                    {"base", o->base}};
    hy_config *config = NULL;
    hy_observer observer = {
        .user = it, .on_message = o->is_quiet ? NULL : on_message, .on_progress = on_progress};
    hy_status status = hy_config_create(&config);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0] && status == HY_OK; i++)
        if (pairs[i][1] != NULL)
            status = hy_config_set(config, pairs[i][0], pairs[i][1], HY_FROM_FLAG);
    if (status == HY_OK) status = hy_config_use_model(config, o->model);
    const char *run = "";
    if (status == HY_OK) status = hy_config_get(config, "init_from", &run, NULL);
    if (status == HY_OK && o->base != NULL && run[0] == '\0') {
        hy_cli_error("--base is for a run with adapters, and --model %s is none", o->model);
        exit(HY_EXIT_USAGE);
    }
    if (status == HY_OK) status = hy_inference_open(config, &o->inference, &observer, &it->model);
    if (status == HY_OK) status = hy_inference_reset(it->model, o->system);
    if (status == HY_OK && o->messages) status = load_messages(it);
    hy_config_destroy(config);
    return status;
}

static void greet(const chat *it) {
    hy_inference_facts facts;
    if (!it->is_talking || it->options->is_quiet) return;
    hy_inference_describe(it->model, &facts);
    FILE *out = it->terminal.out;
    fputs(hy_cli_colour_code(&it->terminal, HY_CLI_DIM), out);
    hy_cli_printf(out, "%s: %s parameters, %s on %s%s\n", facts.weights,
                  hy_cli_count(facts.parameters).text, hy_dtype_name(facts.dtype), facts.device,
                  facts.weights_place == HY_DEVICE ? ""
                                                   : ", weights pass through from host memory");
    hy_cli_printf(out, "%d tokens of context, tokenizer %s, template %s; /help\n", facts.context,
                  facts.tokenizer, facts.chat_template);
    const char *used = hy_inference_adapter_used(it->model);
    if (used[0] != '\0') {
        bool is_one = hy_inference_adapter(it->model, 1) == NULL;
        hy_cli_printf(out, "adapter %s%s\n", used, is_one ? "" : "; /adapter shows the others");
    }
    fputs(hy_cli_colour_code(&it->terminal, HY_CLI_PLAIN), out);
}

int main(int argc, char **argv) {
    options o = {.generate = {.max_tokens = 512, .temperature = 0.7, .top_p = 0.95, .seed = 1}};
    chat it = {.options = &o};
    int code = hy_cli_parse(&program, &argc, argv, &o);
    if (code != HY_CLI_GO_ON) return code;
    if (o.model == NULL) {
        hy_cli_error("which model? --model FOLDER names a run, a checkpoint or a model's folder; "
                     "\"hybrid-chat --help\" shows examples");
        return HY_EXIT_USAGE;
    }
    if (o.system && o.messages) {
        hy_cli_error(
            "--system stands before a new conversation: with --messages it is a message of "
            "its file");
        return HY_EXIT_USAGE;
    }
    hy_cli_terminal_init(&it.terminal, stdout, o.is_quiet, o.without_colour);
    it.is_talking = o.prompt == NULL && it.terminal.is_tty && isatty(STDIN_FILENO);
    hy_status status = open_model(&it);
    if (status != HY_OK) {
        code = hy_cli_fail(status);
    } else {
        /* Without SA_RESTART, so that waiting for a line ends, too. */
        hy_cli_handle(SIGINT, on_interrupt, 0);
        hy_cli_handle(SIGPIPE, SIG_IGN, 0);
        greet(&it);
        bool answers_first = o.prompt != NULL || o.messages != NULL;
        code = answers_first ? answer_once(&it) : HY_EXIT_DONE;
        if (it.is_talking || !answers_first) code = talk(&it);
    }
    hy_inference_close(it.model);
    return hy_cli_flushed(code);
}
