/* hybrid_chat.c: the program hybrid-chat: a conversation with a model in the terminal, or one
 * answer.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 the weights are not finite, 75
 * stopped by a signal. Answers go to standard output; a file or pipe gets them byte for byte.
 * Everything else goes to standard error. The program uses only hybrid.h. */
#include <errno.h>
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
#include "cli/used_model.h"
#include "hybrid.h"

typedef struct options {
    hy_cli_used_model used;
    const char *prompt; /* NULL: start a conversation */
    const char *system;
    const char *messages; /* file with earlier messages; NULL: none */
    hy_inference_options inference;
    hy_generate_options generate;
    bool is_quiet, without_colour;
} options;

#define AT(member) .offset = offsetof(options, member)
#define FROM_0 "whole numbers from 0 to 2147483647"

static const hy_cli_row rows[] = {
    HY_CLI_MODEL_FLAG,
    {"--adapter", "FOLDER", HY_CLI_TEXT, AT(used.adapter),
     "LoRA adapter for this model: a folder saved by PEFT, or a run with adapters. With a "
     "comma-separated list, /adapter switches between them."},
    HY_CLI_BASE_FLAGS,
    {"--prompt", "TEXT", HY_CLI_TEXT, AT(prompt),
     "Answer this once and exit. With a chat template it is a message; without one, a text to "
     "continue."},
    {"--system", "TEXT", HY_CLI_TEXT, AT(system),
     "System message at the start of the conversation."},
    {"--messages", "FILE", HY_CLI_TEXT, AT(messages),
     "Earlier messages as JSON: a list of objects with role (system, user, assistant, tool) and "
     "content, or an object with messages and tools. The model answers the last message."},
    {"--max-tokens", "N", HY_CLI_INT32, AT(generate.max_tokens),
     "Longest answer in tokens; 0: no limit. Default 512.", FROM_0, 0, INT32_MAX},
    {"--temperature", "T", HY_CLI_NUMBER, AT(generate.temperature),
     "Sampling temperature; 0: always the most likely token. Default 0.7.", "numbers from 0 to 100",
     0, 100},
    {"--top-k", "K", HY_CLI_INT32, AT(generate.top_k),
     "Sample from the K most likely tokens; 0: from all. Default 0.", FROM_0, 0, INT32_MAX},
    {"--top-p", "P", HY_CLI_NUMBER, AT(generate.top_p),
     "Sample from the most likely tokens with this total probability; 1: from all. Default 0.95.",
     "numbers from 0 to 1", 0, 1},
    {"--seed", "N", HY_CLI_COUNT, AT(generate.seed),
     "Random seed. The same seed and the same input give the same answer. Default 1.",
     "whole numbers from 0"},
    {"--context", "N", HY_CLI_INT32, AT(inference.context),
     "Context length in tokens. Default: the model's context, at most 8192.",
     "whole numbers from 1 to 2147483647", 1, INT32_MAX},
    {"--tokenizer", "FILE", HY_CLI_TEXT, AT(inference.tokenizer),
     "A tokenizer.json or tokenizer.model, or its folder; none: tokens are bytes. Default: the one "
     "in the model "
     "folder, else bytes."},
    {"--chat-template", "NAME", HY_CLI_TEXT, AT(inference.chat_template),
     "Format of a conversation. auto: as in the rows that a run was trained on, or the template in "
     "the model folder; plain: the messages without markers; lines: a line end after each "
     "question.",
     "auto, plain, lines, chatml, llama2, llama3, mistral, alpaca"},
    {"--no-think", NULL, HY_CLI_SWITCH, AT(inference.without_thinking),
     "Pass enable_thinking = false to the chat template; Qwen3 then answers without thinking."},
    HY_CLI_DEVICE_FLAGS,
    {"--quiet", NULL, HY_CLI_SWITCH, AT(is_quiet), "Print only answers and errors."},
    {"--no-color", NULL, HY_CLI_SWITCH, AT(without_colour),
     "Print without colours, as with the environment variable NO_COLOR."},
};

static const hy_cli_program program = {
    .name = "hybrid-chat",
    .before = "hybrid-chat " HYBRID_VERSION ": talk to a model in the terminal\n\n"
              "Talk to the model of a run\n"
              "  hybrid-chat --model runs/mine\n\n"
              "Talk to a model folder\n"
              "  hybrid-chat --model ~/models/Qwen2.5-0.5B-Instruct\n\n"
              "Answer once and exit\n"
              "  hybrid-chat --model runs/mine --prompt \"Once upon a time\" --max-tokens 100\n\n"
              "Always use the most likely token\n"
              "  hybrid-chat --model runs/mine --temperature 0\n\n"
              "Answer every line of a file\n"
              "  hybrid-chat --model runs/mine --quiet < questions.txt\n\n",
    .after = "\n"
             "In a conversation: /reset starts over, /adapter NAME switches the adapter, /help\n"
             "lists all commands, /exit (or Ctrl-D) ends the program. Ctrl-C stops an answer.\n"
             "A line that ends in \\ continues on the next line.\n"
             "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 the weights are not\n"
             "finite, 75 stopped by a signal.\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof rows[0],
};

typedef struct chat {
    const options *options;
    hy_cli_terminal terminal; /* stream for answers */
    bool is_talking;          /* a person types and reads the answers */
    hy_inference *model;
    char last; /* last byte of the answer; 0: none yet */
} chat;

/* ---- signals --------------------------------------------------------------------------------- */

static _Atomic(hy_inference *) answering; /* NULL: no answer is being generated */
static atomic_bool was_interrupted;

static void on_interrupt(int number) {
    (void)number;
    hy_inference *model = atomic_load(&answering);
    atomic_store(&was_interrupted, true);
    if (model != NULL) hy_inference_request_stop(model);
}

/* ---- answers --------------------------------------------------------------------------------- */

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
    static const char *const ends[] = {
        [HY_END_MODEL] = "",
        [HY_END_MAX_TOKENS] = ", stopped at --max-tokens",
        [HY_END_CONTEXT] = ", the context is full; /reset starts a new conversation",
        [HY_END_STOPPED] = ", stopped"};
    double rate = info->seconds > 0 ? info->tokens / info->seconds : 0;
    if (!it->is_talking || it->options->is_quiet) return;
    fprintf(it->terminal.out, "%s%d tokens, %.1f per second%s%s\n",
            hy_cli_colour_code(&it->terminal, HY_CLI_DIM), info->tokens, rate, ends[info->end],
            hy_cli_colour_code(&it->terminal, HY_CLI_PLAIN));
}

/* With is_text, `words` is a text to continue instead of a message. NULL: answer the earlier
 * messages. */
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

/* ---- talking --------------------------------------------------------------------------------- */

enum { MESSAGE_MOST = 16 << 20 };

/* Reads a line of standard input without its end; NULL at the end of input. `before` bytes of the
 * message are already there: a device that never ends must not fill the memory. */
static char *read_line(size_t before) {
    char *line = NULL;
    size_t size = 0, room = 0;
    int c;
    while ((c = getc(stdin)) != EOF) {
        if (size + 1 >= room) {
            char *longer =
                before + size < MESSAGE_MOST ? realloc(line, room = 2 * room + 256) : NULL;
            if (!longer) {
                hy_cli_error("the message has more than 16 MiB, or memory is short");
                exit(HY_EXIT_USAGE);
            }
            line = longer;
        }
        if (c == '\n') break;
        line[size++] = (char)c;
    }
    if (line) line[size] = '\0';
    return line;
}

/* Reads one message; false at the end of input. A line that ends in a backslash continues on the
 * next one. */
static bool read_message(chat *it, char **message) {
    bool can_edit = it->is_talking && hy_cli_can_edit(), goes_on = true;
    size_t size = 0;
    *message = NULL;
    while (goes_on) {
        const char *prompt = size > 0 ? ". " : "> ";
        if (it->is_talking && !can_edit) {
            fputs(prompt, it->terminal.out);
            fflush(it->terminal.out);
        }
        char *line = can_edit ? hy_cli_edit_line(prompt) : read_line(size);
        size_t more = line ? strlen(line) : 0;
        char *longer = line ? realloc(*message, size + more + 1) : NULL;
        goes_on = longer && more > 0 && line[more - 1] == '\\';
        if (longer) {
            *message = longer;
            memcpy(longer + size, line, more + 1);
            size += more;
            if (goes_on) longer[size - 1] = '\n';
        } else if (!line && atomic_load(&was_interrupted)) { /* Ctrl-C discards what was typed */
            free(*message);
            *message = NULL;
        }
        free(line);
    }
    return *message != NULL;
}

typedef enum command { NO_COMMAND, COMMAND_DONE, COMMAND_EXIT, COMMAND_WRONG } command;

/* A wrong name ends the program unless a person types: the next lines of a file or pipe would be
 * answered with the wrong adapter. */
__attribute__((format(printf, 2, 3))) static command refuse(const chat *it, const char *format,
                                                            ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    hy_cli_report(it->is_talking ? "warning" : "error", "%s", text);
    return it->is_talking ? COMMAND_DONE : COMMAND_WRONG;
}

/* "/adapter" lists the adapters and marks the one in use; "/adapter NAME" uses another. An unknown
 * name changes nothing. */
static command change_adapter(chat *it, const char *name) {
    FILE *out = it->terminal.out;
    const char *used = hy_inference_adapter_used(it->model), *listed;
    if (hy_inference_adapter(it->model, 0) == NULL)
        return refuse(
            it,
            "no adapters are loaded; start hybrid-chat with --adapter A,B to switch between them");
    if (name[0] == '\0') {
        for (size_t i = 0; (listed = hy_inference_adapter(it->model, i)) != NULL; i++)
            hy_cli_printf(out, "%c %s\n", strcmp(listed, used) == 0 ? '*' : ' ', listed);
        fprintf(out, "%c none\n", used[0] == '\0' ? '*' : ' ');
    } else if (hy_inference_use_adapter(it->model, name) != HY_OK) {
        return refuse(it, "%s", hy_error_message());
    } else if (it->is_talking) {
        hy_cli_printf(out, "adapter: %s; the conversation continues\n", name);
    }
    return COMMAND_DONE;
}

/* The argument of the command `word`, or NULL if the line is another command. */
static const char *words_of(const char *message, const char *word) {
    size_t length = strlen(word);
    bool is_it = strncmp(message, word, length) == 0;
    if (!is_it || (message[length] != '\0' && message[length] != ' ')) return NULL;
    return message + length + strspn(message + length, " ");
}

static command run_command(chat *it, const char *message) {
    if (message[0] != '/' || message[1] == '/') return NO_COMMAND;
    if (strcmp(message, "/exit") == 0 || strcmp(message, "/quit") == 0) return COMMAND_EXIT;
    if (strcmp(message, "/reset") == 0) {
        if (hy_inference_reset(it->model, it->options->system) != HY_OK) hy_cli_fail(HY_OK);
        if (it->is_talking) fputs("started a new conversation\n", it->terminal.out);
    } else if (words_of(message, "/adapter") != NULL) {
        return change_adapter(it, words_of(message, "/adapter"));
    } else if (strcmp(message, "/help") == 0) {
        fputs(
            "  /reset         start a new conversation\n"
            "  /adapter       list the adapters; /adapter NAME uses one, /adapter none uses none\n"
            "  /help          show this list\n"
            "  /exit          end the program, like Ctrl-D\n"
            "  Ctrl-C stops an answer. A line that ends in \\ continues on the next line. To "
            "begin\n"
            "  a message with /, write //.\n",
            it->terminal.out);
    } else {
        return refuse(it, "unknown command %s; the commands are /reset, /adapter, /help and /exit",
                      message);
    }
    return COMMAND_DONE;
}

/* Ctrl-C at the prompt shows how to leave. */
static bool goes_on_waiting(const chat *it) {
    if (!it->is_talking || feof(stdin) || !atomic_exchange(&was_interrupted, false)) return false;
    clearerr(stdin);
    fputs("\n(Ctrl-D or /exit ends the program)\n", it->terminal.out);
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
        command what = run_command(it, message);
        if (what == NO_COMMAND && message[0] != '\0') {
            hy_generated info;
            hy_status status = answer(it, message[0] == '/' ? message + 1 : message, false, &info);
            if (status != HY_OK) code = hy_cli_fail(status);
            /* a message that is too long does not end the conversation */
            if (status == HY_ERR_INPUT && it->is_talking) code = HY_EXIT_DONE;
        }
        free(message);
        if (what == COMMAND_WRONG) return HY_EXIT_USAGE;
        if (what == COMMAND_EXIT || code != HY_EXIT_DONE) return code;
        if (!it->is_talking && atomic_load(&was_interrupted)) return HY_EXIT_STOPPED;
    }
    if (it->is_talking) fputc('\n', it->terminal.out);
    return atomic_load(&was_interrupted) ? HY_EXIT_STOPPED : HY_EXIT_DONE;
}

/* Reads the earlier messages from their file. */
static hy_status load_messages(chat *it) {
    const char *path = it->options->messages;
    FILE *file = fopen(path, "rb");
    size_t size;
    char *text = file ? hy_cli_read_all(file, MESSAGE_MOST, &size) : NULL;
    if (!text) {
        hy_cli_error("cannot read %s: %s", path,
                     errno == EFBIG ? "the file is larger than 16 MiB" : strerror(errno));
        exit(HY_EXIT_USAGE);
    }
    fclose(file);
    hy_status status = hy_inference_set_messages(it->model, text, size);
    free(text);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void on_message(void *user, hy_message_level level, const char *text) {
    (void)user;
    if (level == HY_WARNING) hy_cli_warning("%s", text);
}

/* Draws a progress line, only on a terminal. */
static void on_progress(void *user, const char *what, double fraction) {
    const chat *it = user;
    if (!it->is_talking) return;
    fprintf(it->terminal.out, "\r%s: %3.0f %%%s", what, 100 * fraction,
            fraction >= 1 ? "\r                                        \r" : "");
    fflush(it->terminal.out);
}

static hy_status open_model(chat *it) {
    const options *o = it->options;
    hy_config *config = NULL;
    hy_observer observer = {
        .user = it, .on_message = o->is_quiet ? NULL : on_message, .on_progress = on_progress};
    hy_status status = hy_cli_configure_model(&o->used, &config);
    if (status == HY_OK) status = hy_inference_open(config, &o->inference, &observer, &it->model);
    if (status == HY_OK) status = hy_inference_reset(it->model, o->system);
    if (status == HY_OK && o->messages) status = load_messages(it);
    hy_config_destroy(config);
    return status;
}

static void greet(const chat *it) {
    hy_inference_facts facts;
    if (it->options->is_quiet) return;
    hy_inference_describe(it->model, &facts);
    if (!it->is_talking) { /* answers alone go to standard output */
        bool has_template = strcmp(facts.chat_template, "plain") != 0;
        if (facts.is_trained_format) hy_cli_note("format of messages: %s", facts.message_format);
        if (!facts.is_trained_format && !has_template && hy_inference_adapter_used(it->model)[0])
            hy_cli_note("the model has no chat template, so it continues the text as it is; "
                        "--chat-template sets one");
        return;
    }
    FILE *out = it->terminal.out;
    fputs(hy_cli_colour_code(&it->terminal, HY_CLI_DIM), out);
    hy_cli_printf(out, "%s: %s parameters, %s on %s%s\n", facts.weights,
                  hy_cli_count(facts.parameters).text, hy_dtype_name(facts.dtype), facts.device,
                  facts.weights_place == HY_DEVICE ? ""
                                                   : ", weights are streamed from host memory");
    hy_cli_printf(out, "context of %d tokens, tokenizer %s; /help lists the commands\n",
                  facts.context, facts.tokenizer);
    hy_cli_printf(out, "format of messages: %s\n", facts.message_format);
    const char *used = hy_inference_adapter_used(it->model);
    if (used[0] != '\0') {
        bool is_one = hy_inference_adapter(it->model, 1) == NULL;
        hy_cli_printf(out, "adapter %s%s\n", used, is_one ? "" : "; /adapter lists all");
    }
    fputs(hy_cli_colour_code(&it->terminal, HY_CLI_PLAIN), out);
}

int main(int argc, char **argv) {
    options o = {.generate = {.max_tokens = 512, .temperature = 0.7, .top_p = 0.95, .seed = 1}};
    chat it = {.options = &o};
    int code = hy_cli_parse(&program, &argc, argv, &o);
    if (code != HY_CLI_GO_ON) return code;
    if (o.system && o.messages)
        return hy_cli_refuse(
            HY_EXIT_USAGE,
            "--system cannot be used with --messages; put a system message into that file");
    char newest[HY_CLI_RUN_BYTES];
    if (o.used.model == NULL) {
        code = hy_cli_take_newest(newest, o.is_quiet);
        if (code != HY_EXIT_DONE) return code;
        o.used.model = newest;
    }
    hy_cli_terminal_init(&it.terminal, stdout, o.is_quiet, o.without_colour);
    it.is_talking = o.prompt == NULL && it.terminal.is_tty && isatty(STDIN_FILENO);
    hy_status status = open_model(&it);
    if (status != HY_OK) {
        code = hy_cli_fail(status);
    } else {
        /* Without SA_RESTART, so that a signal also ends waiting for a line. */
        hy_cli_handle(SIGINT, on_interrupt, 0);
        hy_cli_handle(SIGPIPE, SIG_IGN, 0);
        greet(&it);
        bool answers_first = o.prompt != NULL || o.messages != NULL;
        if (answers_first) {
            hy_generated info;
            hy_inference_facts facts;
            hy_inference_describe(it.model, &facts);
            bool is_text = strcmp(facts.chat_template, "plain") == 0 && !o.messages;
            status = answer(&it, o.prompt, is_text, &info);
            code = status != HY_OK              ? hy_cli_fail(status)
                   : info.end == HY_END_STOPPED ? HY_EXIT_STOPPED
                                                : HY_EXIT_DONE;
        }
        if (it.is_talking || !answers_first) code = talk(&it);
    }
    hy_inference_close(it.model);
    return hy_cli_flushed(code);
}
