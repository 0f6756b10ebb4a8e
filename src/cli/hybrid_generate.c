/* hybrid_generate.c: the program hybrid-generate: answers a file of prompts.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 the model's logits are not finite, 75
 * stopped by a signal. Answers go to a file or to standard output, everything else to standard
 * error. The program uses only hybrid_generate.h. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/program.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "hybrid_generate.h"

typedef struct options {
    const char *model, *adapter, *base, *frozen_dtype;
    hy_generate_file_options file;
    hy_request each;
    hy_cli_texts stop;
    hy_generator_options generator;
    bool is_quiet;
    /* keys of the configuration; NULL: unchanged */
    const char *device, *precision, *threads, *max_gpu_mem;
} options;

#define AT(member) .offset = offsetof(options, member)
#define FROM_0 "whole numbers from 0 to 2147483647"
#define FROM_1 "whole numbers from 1 to 2147483647"

static const hy_cli_row rows[] = {
    {"--model", "FOLDER", HY_CLI_TEXT, AT(model),
     "The model: a run folder, a checkpoint, a model folder (config.json, safetensors, "
     "tokenizer.json), a GGUF file, or a model name in the hub cache. Default: the newest run in "
     "runs/."},
    {"--adapter", "FOLDER", HY_CLI_TEXT, AT(adapter),
     "LoRA adapter for this model: a folder saved by PEFT, or a run with adapters."},
    {"--base", "FOLDER", HY_CLI_TEXT, AT(base),
     "For a run with adapters: the new location of its base model if that has moved."},
    {"--frozen-dtype", "TYPE", HY_CLI_TEXT, AT(frozen_dtype),
     "Number type of the base model's weights. Default: as in training if --model is a run with "
     "adapters, else as stored in the folder. auto: the type of --precision.",
     "auto, fp8, int8, nf4, nf4_single"},
    {"--data", "FILE", HY_CLI_TEXT, AT(file.data),
     "The prompts: rows as JSON lines, a JSON array or CSV; -: lines of JSON from standard input. "
     "A row has prompt, messages, or the other keys of training rows; text is continued as it is; "
     "tokens are token ids."},
    {"--out", "FILE", HY_CLI_TEXT, AT(file.out),
     "The answers: each row with text and end, in the order of the prompts; -: standard output. If "
     "the program is interrupted, the same command continues the file."},
    {"--overwrite", NULL, HY_CLI_SWITCH, AT(file.starts_over),
     "Replace --out, and start over if an interrupted command has written a part of it."},
    {"--columns", "LIST", HY_CLI_TEXT, AT(file.columns),
     "Other names of keys in the rows: prompt=question,system=context."},
    {"--skip-bad", NULL, HY_CLI_SWITCH, AT(file.skips_bad),
     "Write a malformed row, or a prompt that is too long, with error instead of an answer."},
    {"--system", "TEXT", HY_CLI_TEXT, AT(file.system),
     "System message of rows with messages or a prompt that have none."},
    {"--max-tokens", "N", HY_CLI_INT32, AT(each.max_tokens),
     "Longest answer in tokens; 0: until the context is full. Default 256.", FROM_0, 0, INT32_MAX},
    {"--temperature", "T", HY_CLI_NUMBER, AT(each.temperature),
     "Sampling temperature; 0: always the most likely token. Default 0.7.", "numbers from 0 to 100",
     0, 100},
    {"--top-p", "P", HY_CLI_NUMBER, AT(each.top_p),
     "Sample from the most likely tokens with this total probability; 1: from all. Default 0.95.",
     "numbers from 0 to 1", 0, 1},
    {"--top-k", "K", HY_CLI_INT32, AT(each.top_k),
     "Sample from the K most likely tokens; 0: from all. Default 0.", FROM_0, 0, INT32_MAX},
    {"--min-p", "P", HY_CLI_NUMBER, AT(each.min_p),
     "Sample only tokens with at least this share of the most likely token's probability. Default "
     "0: all.",
     "numbers from 0 to 1", 0, 1},
    {"--repetition-penalty", "R", HY_CLI_NUMBER, AT(each.repetition_penalty),
     "Above 1: tokens that the prompt or the answer already has become less likely. Default 1.",
     "numbers from 0 to 100", 0, 100},
    {"--seed", "N", HY_CLI_COUNT, AT(each.seed),
     "Random seed. The first row has this seed, each answer after it the next. Default 1.",
     "whole numbers from 0"},
    {"--stop", "TEXT", HY_CLI_TEXTS, AT(stop),
     "End an answer before this text. The flag can be given several times."},
    {"--answers", "N", HY_CLI_INT32, AT(each.answers),
     "Different answers to each row, as lists texts and ends. Default 1.", FROM_1, 1, INT32_MAX},
    {"--logprobs", NULL, HY_CLI_SWITCH, AT(each.wants_logprobs),
     "Write logprobs: each token of an answer with its log-probability."},
    {"--top-logprobs", "N", HY_CLI_INT32, AT(each.top_logprobs),
     "Write also the N most likely tokens at each position.", "whole numbers from 0 to 20", 0, 20},
    {"--streams", "N", HY_CLI_INT32, AT(generator.streams),
     "Answers that are generated at once. The answers do not depend on it. Default: 64 on a GPU, "
     "16 on a CPU, or as many as memory allows.",
     FROM_1, 1, INT32_MAX},
    {"--context", "N", HY_CLI_INT32, AT(generator.context),
     "Context length in tokens. Default: the model's context, at most 8192.", FROM_1, 1, INT32_MAX},
    {"--tokenizer", "FILE", HY_CLI_TEXT, AT(generator.tokenizer),
     "A tokenizer.json or tokenizer.model, or its folder; none: tokens are bytes. Default: the one "
     "in the model folder, else bytes."},
    {"--chat-template", "NAME", HY_CLI_TEXT, AT(generator.chat_template),
     "Format of messages and prompts. auto: as in the rows that a run was trained on, or the "
     "template in the model folder; plain: as they are; lines: a line end after each question.",
     "auto, plain, lines, chatml, llama2, llama3, mistral, alpaca"},
    {"--no-think", NULL, HY_CLI_SWITCH, AT(generator.without_thinking),
     "Pass enable_thinking = false to the chat template; Qwen3 then answers without thinking."},
    {"--device", "NAME", HY_CLI_TEXT, AT(device), "Device: auto, cpu, cuda, cuda:1. Default auto.",
     "auto, cpu, cuda"},
    {"--precision", "TYPE", HY_CLI_TEXT, AT(precision),
     "Precision: auto, fp32, bf16. Default auto: bf16 on a GPU, fp32 on a CPU.",
     "auto, fp32, bf16"},
    {"--threads", "N", HY_CLI_TEXT, AT(threads), "Worker threads; 0: all cores."},
    {"--max-gpu-mem", "BYTES", HY_CLI_TEXT, AT(max_gpu_mem),
     "Use at most this much GPU memory; weights that do not fit are streamed from host memory."},
    {"--quiet", NULL, HY_CLI_SWITCH, AT(is_quiet), "Print only errors."},
};

static const hy_cli_program program = {
    .name = "hybrid-generate",
    .before = "hybrid-generate " HYBRID_VERSION ": answer a file of prompts\n\n"
              "Answer each row of a file\n"
              "  hybrid-generate --model runs/mine --data prompts.jsonl --out answers.jsonl\n\n"
              "Eight answers to each row, with the log-probabilities of their tokens\n"
              "  hybrid-generate --model runs/mine --data prompts.jsonl --out answers.jsonl \\\n"
              "      --answers 8 --temperature 1 --logprobs\n\n"
              "Rows whose question has another name\n"
              "  hybrid-generate --model runs/mine --data rows.csv --columns prompt=problem \\\n"
              "      --out answers.jsonl\n\n"
              "In a pipe\n"
              "  hybrid-generate --model runs/mine --data - --out - < prompts.jsonl\n\n",
    .after = "\n"
             "A row's own keys max_tokens, temperature, top_p, top_k, seed and stop replace\n"
             "the flags. If the program is interrupted, the same command continues, and the\n"
             "file gets the same bytes.\n"
             "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 the model's logits are\n"
             "not finite, 75 stopped by a signal.\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof rows[0],
};

/* ---- signals --------------------------------------------------------------------------------- */

static _Atomic(hy_generator *) generating;

static void on_signal(int number) {
    (void)number;
    hy_generator *generator = atomic_load(&generating);
    if (generator != NULL) hy_generator_request_stop(generator);
}

/* ---- progress -------------------------------------------------------------------------------- */

#define PLAIN_SECONDS 10.0  /* lines that are not redrawn: at least so many seconds apart, */
#define PLAIN_SHARE 0.02    /* and this share of the rows, */
#define PLAIN_SILENCE 300.0 /* but at most so many seconds apart */
enum { LINE_BYTES = 512 };

typedef struct display {
    hy_cli_terminal terminal;
    int drawn; /* columns of the line on the screen */
    double printed_at, printed_share;
} display;

/* Replaces the line on the screen; "" removes it. */
static void draw(display *d, const char *line) {
    int columns = hy_cli_terminal_columns(&d->terminal) - 1, length = (int)strlen(line);
    if (length > columns) length = columns;
    fprintf(d->terminal.out, "\r%.*s%*s%s", length, line, d->drawn > length ? d->drawn - length : 0,
            "", length == 0 ? "\r" : "");
    fflush(d->terminal.out);
    d->drawn = length;
}

static double per_second(int64_t count, double seconds) {
    return seconds > 0 ? (double)count / seconds : 0;
}

static void describe(const hy_generate_file_state *s, char line[LINE_BYTES]) {
    int64_t now = s->done - s->resumed;
    int used = snprintf(line, LINE_BYTES, "%s", hy_cli_count(s->done).text);
    if (s->rows >= 0)
        used +=
            snprintf(line + used, LINE_BYTES - (size_t)used, " of %s", hy_cli_count(s->rows).text);
    used += snprintf(line + used, LINE_BYTES - (size_t)used,
                     " rows, answers %s tok/s, prompts %s tok/s, %d running, %d waiting",
                     hy_cli_short_count(per_second(s->answer_tokens, s->seconds)).text,
                     hy_cli_short_count(per_second(s->prompt_tokens, s->seconds)).text, s->running,
                     s->waiting);
    if (s->rows >= 0 && now > 0)
        snprintf(line + used, LINE_BYTES - (size_t)used, ", %s left",
                 hy_cli_duration((double)(s->rows - s->done) * s->seconds / (double)now).text);
}

static void on_progress(void *user, const hy_generate_file_state *s) {
    display *d = user;
    char line[LINE_BYTES];
    double share = s->rows > 0 ? (double)s->done / (double)s->rows : d->printed_share + PLAIN_SHARE;
    double silence = s->seconds - d->printed_at;
    if (s->is_checking) {
        snprintf(line, sizeof line, "checking rows: %.0f %%", 100 * s->checked);
        if (d->terminal.is_tty) draw(d, line);
        return;
    }
    describe(s, line);
    if (d->terminal.is_tty) {
        draw(d, line);
    } else if ((silence >= PLAIN_SECONDS && share >= d->printed_share + PLAIN_SHARE) ||
               silence >= PLAIN_SILENCE) {
        fprintf(d->terminal.out, "%s\n", line);
        d->printed_at = s->seconds;
        d->printed_share = share;
    }
}

/* ---- the model ------------------------------------------------------------------------------- */

static void on_message(void *user, hy_message_level level, const char *text) {
    (void)user;
    if (level == HY_WARNING) hy_cli_warning("%s", text);
}

static void on_loading(void *user, const char *what, double fraction) {
    display *d = user;
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "%.60s: %.0f %%", what, 100 * fraction);
    if (d->terminal.is_tty) draw(d, fraction < 1 ? line : "");
}

static hy_status configure(const options *o, hy_config *config) {
    const char *const pairs[][2] = {{"device", o->device},
                                    {"precision", o->precision},
                                    {"threads", o->threads},
                                    {"max_gpu_mem", o->max_gpu_mem},
                                    {"frozen_dtype", o->frozen_dtype},
                                    {"adapter", o->adapter},
                                    {"base", o->base}};
    hy_status status = HY_OK;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0] && status == HY_OK; i++)
        if (pairs[i][1] != NULL)
            status = hy_config_set(config, pairs[i][0], pairs[i][1], HY_FROM_FLAG);
    const char *run = "";
    if (status == HY_OK) status = hy_config_use_model(config, o->model);
    if (status == HY_OK) status = hy_config_get(config, "init_from", &run, NULL);
    if (status == HY_OK && o->base != NULL && run[0] == '\0') {
        hy_cli_error("--base is only for a run with adapters; --model %s is not one", o->model);
        exit(HY_EXIT_USAGE);
    }
    return status;
}

static hy_status open_model(const options *o, display *d, hy_generator **out) {
    hy_config *config = NULL;
    hy_observer observer = {.user = d,
                            .on_message = o->is_quiet ? NULL : on_message,
                            .on_progress = o->is_quiet ? NULL : on_loading};
    hy_generator_options how = o->generator;
    how.top_logprobs = o->each.top_logprobs;
    hy_status status = hy_config_create(&config);
    if (status == HY_OK) status = configure(o, config);
    if (status == HY_OK) status = hy_generator_open(config, &how, &observer, out);
    hy_config_destroy(config);
    return status;
}

/* ---- what is said ---------------------------------------------------------------------------- */

static void greet(const display *d, const hy_generator *generator) {
    FILE *out = d->terminal.out;
    hy_generator_facts facts;
    if (d->terminal.is_quiet) return;
    hy_generator_describe(generator, &facts);
    hy_cli_printf(out, "%s: %s parameters, %s on %s%s\n", facts.weights,
                  hy_cli_count(facts.parameters).text, hy_dtype_name(facts.dtype), facts.device,
                  facts.weights_place == HY_DEVICE ? ""
                                                   : ", weights are streamed from host memory");
    hy_cli_printf(out, "%d streams, context of %d tokens, tokenizer %s\n", facts.streams,
                  facts.context, facts.tokenizer);
    hy_cli_printf(out, "format of messages: %s\n", facts.message_format);
}

static void tell_result(const options *o, const display *d, const hy_generate_file_state *s) {
    if (o->is_quiet) return;
    hy_cli_printf(d->terminal.out, "%s%s%s rows", strcmp(o->file.out, "-") == 0 ? "" : o->file.out,
                  strcmp(o->file.out, "-") == 0 ? "" : ": ", hy_cli_count(s->done).text);
    if (s->resumed > 0)
        fprintf(d->terminal.out, ", of these %s before", hy_cli_count(s->resumed).text);
    fprintf(d->terminal.out, "; %s tokens of answers, %s of prompts, %s, %.1f tokens/s",
            hy_cli_count(s->answer_tokens).text, hy_cli_count(s->prompt_tokens).text,
            hy_cli_duration(s->seconds).text, per_second(s->answer_tokens, s->seconds));
    fprintf(d->terminal.out, "; %s of %s answers ended by length", hy_cli_count(s->cut).text,
            hy_cli_count(s->answers).text);
    if (s->bad > 0) fprintf(d->terminal.out, "; %s bad rows", hy_cli_count(s->bad).text);
    fputc('\n', d->terminal.out);
}

static void tell_stop(const options *o, const hy_generate_file_state *s) {
    bool continues = strcmp(o->file.data, "-") != 0 && strcmp(o->file.out, "-") != 0;
    if (o->is_quiet) return;
    hy_cli_note("stopped after %s rows%s", hy_cli_count(s->done).text,
                continues && s->done > 0 ? "; the same command continues" : "");
}

static int generate(const options *o, display *d, hy_generator *generator) {
    hy_generate_file_options file = o->file;
    hy_generate_file_state state;
    hy_request each = o->each;
    each.stop = o->stop.list;
    each.stop_count = o->stop.count;
    file.on_progress = o->is_quiet ? NULL : on_progress;
    file.user = d;
    hy_status status = hy_generate_file(generator, &each, &file, &state);
    if (d->drawn > 0) draw(d, "");
    if (status == HY_OK)
        tell_result(o, d, &state);
    else if (status == HY_STOPPED)
        tell_stop(o, &state);
    else
        return hy_cli_fail(status);
    return hy_cli_exit_code(status);
}

/* Mistakes that need no model to be noticed. */
static int check(const options *o) {
    if (!o->file.data) return hy_cli_wrong_usage("--data FILE is missing", "");
    if (!o->file.out) return hy_cli_wrong_usage("--out FILE is missing", "");
    bool is_input = strcmp(o->file.data, "-") == 0, is_output = strcmp(o->file.out, "-") == 0;
    if (!is_input && access(o->file.data, R_OK) != 0)
        return hy_cli_refuse(HY_EXIT_USAGE, "cannot read %s: %s", o->file.data, strerror(errno));
    if (!is_output && !o->file.starts_over && access(o->file.out, F_OK) == 0)
        return hy_cli_refuse(HY_EXIT_USAGE, "%s exists already; --overwrite replaces it",
                             o->file.out);
    return HY_EXIT_DONE;
}

int main(int argc, char **argv) {
    options o = {.each = {.max_tokens = 256, .temperature = 0.7, .top_p = 0.95, .seed = 1}};
    display d = {0};
    hy_generator *generator = NULL;
    char newest[HY_CLI_RUN_BYTES];
    int code = hy_cli_parse(&program, &argc, argv, &o);
    if (code != HY_CLI_GO_ON) return code;
    code = check(&o);
    if (code != HY_EXIT_DONE) return code;
    if (o.model == NULL) {
        code = hy_cli_take_newest(newest, o.is_quiet);
        if (code != HY_EXIT_DONE) return code;
        o.model = newest;
    }
    hy_cli_terminal_init(&d.terminal, stderr, o.is_quiet, true);
    hy_status status = open_model(&o, &d, &generator);
    if (status != HY_OK) return hy_cli_fail(status);
    atomic_store(&generating, generator);
    hy_cli_handle(SIGINT, on_signal, SA_RESTART);
    hy_cli_handle(SIGTERM, on_signal, SA_RESTART);
    greet(&d, generator);
    code = generate(&o, &d, generator);
    atomic_store(&generating, NULL);
    hy_generator_close(generator);
    return hy_cli_flushed(code);
}
