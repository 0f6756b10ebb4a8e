/* hybrid_chat.c: the program: talks to a model in the terminal, or answers once.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage or input, 75 stopped by a signal. Answers go to standard
 * output, to a file or pipe byte for byte as the model writes them; everything else goes to standard
 * error. All it knows of models it has from hybrid.h. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat_options.h"
#include "cli/exit_code.h"
#include "cli/figures.h"
#include "cli/safe_text.h"
#include "cli/terminal.h"

typedef struct chat {
    const hy_cli_chat_options *options;
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

/* Without SA_RESTART, so that waiting for a line ends, too. */
static void catch_interrupts(void) {
    struct sigaction action = {0};
    action.sa_handler = on_interrupt;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
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

static const char *end_in_words(hy_end end) {
    switch (end) {
    case HY_END_MAX_TOKENS: return ", cut by --max-tokens";
    case HY_END_CONTEXT: return ", the context is full: /reset begins anew";
    case HY_END_STOPPED: return ", stopped";
    default: return "";
    }
}

static void write_figures(const chat *it, const hy_generated *info) {
    double rate = info->seconds > 0 ? info->tokens / info->seconds : 0;
    if (!it->is_talking || it->options->is_quiet) return;
    fprintf(it->terminal.out, "%s%d tokens, %.1f a second%s%s\n",
            hy_cli_colour_code(&it->terminal, HY_CLI_DIM), info->tokens, rate,
            end_in_words(info->end), hy_cli_colour_code(&it->terminal, HY_CLI_PLAIN));
}

/* is_text: a text to be continued, no message. */
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

static bool has_template(const chat *it) {
    hy_inference_facts facts;
    hy_inference_describe(it->model, &facts);
    return strcmp(facts.chat_template, "plain") != 0;
}

static int answer_once(chat *it) {
    hy_generated info;
    hy_status status = answer(it, it->options->prompt, !has_template(it), &info);
    if (status != HY_OK) return hy_cli_fail(status);
    return info.end == HY_END_STOPPED ? HY_EXIT_STOPPED : HY_EXIT_DONE;
}

/* ---- talking ----------------------------------------------------------------------------------- */

/* One message; false at the end. Lines that end in a backslash go on in the next. */
static bool read_message(chat *it, char **message) {
    char *line = NULL;
    size_t room = 0, size = 0;
    *message = NULL;
    for (bool goes_on = true; goes_on;) {
        if (it->is_talking) {
            fputs(size == 0 ? "> " : ". ", it->terminal.out);
            fflush(it->terminal.out);
        }
        ssize_t length = getline(&line, &room, stdin);
        if (length < 0) break;
        if (line[length - 1] == '\n') length--;
        goes_on = length > 0 && line[length - 1] == '\\';
        if (goes_on) line[length - 1] = '\n';
        char *longer = realloc(*message, size + (size_t)length + 1);
        if (longer == NULL) break;
        memcpy(longer + size, line, (size_t)length);
        size += (size_t)length;
        longer[size] = '\0';
        *message = longer;
    }
    free(line);
    return *message != NULL;
}

static void show_commands(const chat *it) {
    fputs("  /reset   begin a new conversation\n"
          "  /help    this list\n"
          "  /exit    end; so does Ctrl-D\n"
          "  Ctrl-C stops an answer. A line that ends in \\ goes on in the next. A message that\n"
          "  begins with / is written with // in front.\n",
          it->terminal.out);
}

typedef enum command { NO_COMMAND, COMMAND_DONE, COMMAND_EXIT } command;

static command obey(chat *it, const char *message) {
    if (message[0] != '/' || message[1] == '/') return NO_COMMAND;
    if (strcmp(message, "/exit") == 0 || strcmp(message, "/quit") == 0) return COMMAND_EXIT;
    if (strcmp(message, "/reset") == 0) {
        if (hy_inference_reset(it->model, it->options->system) != HY_OK) hy_cli_fail(HY_OK);
        if (it->is_talking) fputs("a new conversation\n", it->terminal.out);
    } else if (strcmp(message, "/help") == 0) {
        show_commands(it);
    } else {
        hy_cli_warning("unknown command %s; known are /reset, /help and /exit", message);
    }
    return COMMAND_DONE;
}

/* A message that cannot be answered (too long) is told and does not end the conversation. */
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
        if (what == COMMAND_EXIT || code != HY_EXIT_DONE) return code;
        if (!it->is_talking && atomic_load(&was_interrupted)) return HY_EXIT_STOPPED;
    }
    if (it->is_talking) fputc('\n', it->terminal.out);
    return atomic_load(&was_interrupted) ? HY_EXIT_STOPPED : HY_EXIT_DONE;
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

static hy_status configure(const hy_cli_chat_options *options, hy_config *config) {
    for (size_t i = 0; i < options->setting_count; i++) {
        const hy_cli_chat_setting *s = &options->settings[i];
        hy_status status = hy_config_set(config, s->key, s->value, HY_FROM_FLAG);
        if (status != HY_OK) return status;
    }
    return hy_config_use_model(config, options->model);
}

static hy_status open_model(chat *it) {
    hy_config *config = NULL;
    hy_observer observer = {.user = it,
                            .on_message = it->options->is_quiet ? NULL : on_message,
                            .on_progress = on_progress};
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = configure(it->options, config);
    if (status == HY_OK)
        status = hy_inference_open(config, &it->options->inference, &observer, &it->model);
    if (status == HY_OK) status = hy_inference_reset(it->model, it->options->system);
    hy_config_destroy(config);
    return status;
}

static void greet(const chat *it) {
    hy_inference_facts facts;
    if (!it->is_talking || it->options->is_quiet) return;
    hy_inference_describe(it->model, &facts);
    fprintf(it->terminal.out, "%s%s: %s parameters, %s on %s%s\n",
            hy_cli_colour_code(&it->terminal, HY_CLI_DIM), facts.weights,
            hy_cli_count(facts.parameters).text, hy_dtype_name(facts.dtype), facts.device,
            facts.weights_place == HY_DEVICE ? "" : ", weights pass through from host memory");
    fprintf(it->terminal.out, "%d tokens of context, tokenizer %s, template %s; /help\n%s",
            facts.context, facts.tokenizer, facts.chat_template,
            hy_cli_colour_code(&it->terminal, HY_CLI_PLAIN));
}

static int run(const hy_cli_chat_options *options) {
    chat it = {.options = options};
    hy_cli_terminal_init(&it.terminal, stdout, options->is_quiet, options->without_colour);
    it.is_talking = options->prompt == NULL && it.terminal.is_tty && isatty(STDIN_FILENO);
    hy_status status = open_model(&it);
    int code = HY_EXIT_DONE;
    if (status != HY_OK) {
        code = hy_cli_fail(status);
    } else {
        catch_interrupts();
        greet(&it);
        code = options->prompt != NULL ? answer_once(&it) : talk(&it);
    }
    hy_inference_close(it.model);
    return code;
}

int main(int argc, char **argv) {
    hy_cli_chat_options options;
    hy_cli_name_program("hybrid-chat");
    if (!hy_cli_chat_parse(argc, argv, &options)) return HY_EXIT_USAGE;
    switch (options.action) {
    case HY_CLI_CHAT_HELP: hy_cli_chat_help(); return hy_cli_flushed(HY_EXIT_DONE);
    case HY_CLI_CHAT_VERSION:
        puts("hybrid-chat " HYBRID_VERSION);
        return hy_cli_flushed(HY_EXIT_DONE);
    case HY_CLI_CHAT_COMPLETE: hy_cli_chat_complete(stdout); return hy_cli_flushed(HY_EXIT_DONE);
    default: return hy_cli_flushed(run(&options));
    }
}
