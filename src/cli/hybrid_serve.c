/* hybrid_serve.c: the program hybrid-serve: a server with OpenAI's interface for one model.
 *
 * Exit codes: 0 ended by a signal, 1 failed, 2 wrong usage or input, 3 the weights are not finite.
 * Everything that it prints goes to standard error. The first SIGINT or SIGTERM lets running
 * answers finish, the second ends them. */
#include <malloc.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/program.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "hybrid.h"
#include "hybrid_generate.h"
#include "serve/serve.h"

typedef struct options {
    const char *model, *name, *adapter, *base, *frozen_dtype;
    hy_generator_options generator;
    hy_server_options server;
    double grace; /* seconds */
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
    {"--name", "NAME", HY_CLI_TEXT, AT(name),
     "The name of the model for clients. Default: the last part of --model."},
    {"--adapter", "FOLDER", HY_CLI_TEXT, AT(adapter),
     "LoRA adapter for this model: a folder saved by PEFT, or a run with adapters."},
    {"--base", "FOLDER", HY_CLI_TEXT, AT(base),
     "For a run with adapters: the new location of its base model if that has moved."},
    {"--frozen-dtype", "TYPE", HY_CLI_TEXT, AT(frozen_dtype),
     "Number type of the base model's weights. Default: as in training if --model is a run with "
     "adapters, else as stored in the folder. auto: the type of --precision.",
     "auto, fp8, int8, nf4, nf4_single"},
    {"--host", "ADDRESS", HY_CLI_TEXT, AT(server.host),
     "Address to listen on. Default 127.0.0.1, which only this machine reaches; other addresses "
     "need --api-key."},
    {"--port", "N", HY_CLI_INT32, AT(server.port),
     "Port to listen on; 0: any that is free. Default 8000.", "whole numbers from 0 to 65535", 0,
     65535},
    {"--api-key", "KEY", HY_CLI_TEXT, AT(server.api_key),
     "Clients must send this key. Other users of this machine can read it in the command line; the "
     "environment variable HYBRID_API_KEY is safer."},
    {"--streams", "N", HY_CLI_INT32, AT(generator.streams),
     "Answers that are generated at once; 0: 64 on a GPU, 16 on a CPU, or as many as memory "
     "allows. Default 0.",
     FROM_0, 0, INT32_MAX},
    {"--context", "N", HY_CLI_INT32, AT(generator.context),
     "Most tokens of a prompt and its answer. Default: the model's context, at most 8192.", FROM_1,
     1, INT32_MAX},
    {"--max-waiting", "N", HY_CLI_INT32, AT(generator.waiting),
     "Prompts that may wait; further requests are refused with status 429. Default 256.", FROM_1, 1,
     INT32_MAX},
    {"--max-body", "BYTES", HY_CLI_COUNT, AT(server.max_body),
     "Largest request in bytes. Default 4194304.", "whole numbers from 0"},
    {"--max-connections", "N", HY_CLI_INT32, AT(server.max_connections),
     "Open connections; further ones are closed at once. Default 512.", FROM_1, 1, INT32_MAX},
    {"--timeout", "SECONDS", HY_CLI_NUMBER, AT(server.patience),
     "Time for a request to arrive, for a client to take more of its answer, and for an idle "
     "connection. Default 60.",
     "numbers from 0.1 to 86400", 0.1, 86400},
    {"--grace", "SECONDS", HY_CLI_NUMBER, AT(grace),
     "After a signal, time for running answers to finish. Default 30.", "numbers from 0 to 86400",
     0, 86400},
    {"--top-logprobs", "N", HY_CLI_INT32, AT(generator.top_logprobs),
     "Most likeliest tokens for which a request may ask log-probabilities. Default 20.",
     "whole numbers from 0 to 20", 0, 20},
    {"--tokenizer", "FILE", HY_CLI_TEXT, AT(generator.tokenizer),
     "A tokenizer.json or tokenizer.model, or its folder; none: tokens are bytes. Default: the one "
     "in the model folder, else bytes."},
    {"--chat-template", "NAME", HY_CLI_TEXT, AT(generator.chat_template),
     "Format of a conversation. auto: as in the rows that a run was trained on, or the template in "
     "the model folder; plain: the messages without markers; lines: a line end after each "
     "question.",
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
    .name = "hybrid-serve",
    .before =
        "hybrid-serve " HYBRID_VERSION ": serve a model over HTTP, with OpenAI's interface\n\n"
        "Serve the model of a run to this machine\n"
        "  hybrid-serve --model runs/mine\n\n"
        "Talk to it in a browser: http://127.0.0.1:8000/, or with curl\n"
        "  curl http://127.0.0.1:8000/v1/completions -d '{\"prompt\": \"Once upon a time\"}'\n\n"
        "Serve a model folder to other machines, for clients that know the key\n"
        "  HYBRID_API_KEY=secret hybrid-serve --model ~/models/Qwen2.5-0.5B-Instruct "
        "--host 0.0.0.0\n\n",
    .after = "\n"
             "SIGTERM and Ctrl-C let running answers finish; a second signal ends them.\n"
             "Exit codes: 0 ended by a signal, 1 failed, 2 wrong usage or input, 3 the weights\n"
             "are not finite.\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof rows[0],
};

/* ---- signals --------------------------------------------------------------------------------- */

static atomic_int signals; /* that have come */
static sem_t woken;

static void on_signal(int number) {
    (void)number;
    atomic_fetch_add(&signals, 1);
    sem_post(&woken);
}

/* Waits for a signal or a failure, at most so long. */
static void wait_at_most(double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(seconds * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)sem_timedwait(&woken, &until);
}

/* ---- opening --------------------------------------------------------------------------------- */

static void on_message(void *user, hy_message_level level, const char *text) {
    (void)user;
    if (level == HY_WARNING) hy_cli_warning("%s", text);
}

static hy_status open_model(const options *o, hy_generator **out) {
    const char *const pairs[][2] = {{"device", o->device},
                                    {"precision", o->precision},
                                    {"threads", o->threads},
                                    {"max_gpu_mem", o->max_gpu_mem},
                                    {"frozen_dtype", o->frozen_dtype},
                                    {"adapter", o->adapter},
                                    {"base", o->base}};
    hy_config *config = NULL;
    hy_observer observer = {.on_message = o->is_quiet ? NULL : on_message};
    hy_status status = hy_config_create(&config);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0] && status == HY_OK; i++)
        if (pairs[i][1] != NULL)
            status = hy_config_set(config, pairs[i][0], pairs[i][1], HY_FROM_FLAG);
    if (status == HY_OK) status = hy_config_use_model(config, o->model);
    if (status == HY_OK) status = hy_generator_open(config, &o->generator, &observer, out);
    hy_config_destroy(config);
    return status;
}

/* The last part of a path, without slashes at its end. The caller frees it. */
static char *last_part(const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t first = end;
    while (first > 0 && path[first - 1] != '/') first--;
    return strndup(path + first, end - first);
}

static void greet(const options *o, const hy_generator *generator, const hy_server *server) {
    hy_generator_facts facts;
    bool is_six = strchr(o->server.host, ':') != NULL;
    if (o->is_quiet) return;
    hy_generator_describe(generator, &facts);
    hy_cli_printf(stderr, "%s: %s parameters, %s on %s; %d streams, context of %d tokens\n",
                  facts.weights, hy_cli_count(facts.parameters).text, hy_dtype_name(facts.dtype),
                  facts.device, facts.streams, facts.context);
    hy_cli_printf(stderr, "format of messages: %s\n", facts.message_format);
    hy_cli_printf(stderr, "serving %s at http://%s%s%s:%d/\n", o->server.model, is_six ? "[" : "",
                  o->server.host, is_six ? "]" : "", hy_server_port(server));
}

/* ---- serving --------------------------------------------------------------------------------- */

/* Until a signal and the end of what runs then. Returns the exit code. */
static int serve(const options *o, hy_server *server) {
    while (atomic_load(&signals) == 0 && hy_server_failure(server) == HY_OK)
        while (sem_wait(&woken) != 0) {}
    hy_server_close(server);
    if (!o->is_quiet && hy_server_busy(server) > 0)
        hy_cli_note("finishing %d requests; a second signal ends them", hy_server_busy(server));
    for (double left = o->grace, step = 0.05;
         left > 0 && atomic_load(&signals) < 2 && hy_server_failure(server) == HY_OK &&
         hy_server_busy(server) > 0;
         left -= step)
        wait_at_most(step);
    hy_status status = hy_server_failure(server);
    return status == HY_OK ? HY_EXIT_DONE : hy_cli_fail(status);
}

static int run(const options *o) {
    hy_generator *generator = NULL;
    hy_server *server = NULL;
    int code = HY_EXIT_DONE;
    hy_status status = hy_server_create(&o->server, &server);
    if (status == HY_OK) status = open_model(o, &generator);
    if (status == HY_OK) {
        hy_cli_handle(SIGINT, on_signal, SA_RESTART);
        hy_cli_handle(SIGTERM, on_signal, SA_RESTART);
        hy_cli_handle(SIGPIPE, SIG_IGN, 0);
        status = hy_server_start(server, generator);
    }
    if (status == HY_OK) {
        greet(o, generator, server);
        code = serve(o, server);
    } else {
        code = hy_cli_fail(status);
    }
    hy_server_destroy(server);
    if (generator) hy_generator_close(generator);
    return code;
}

int main(int argc, char **argv) {
    options o = {.generator = {.waiting = 256, .top_logprobs = 20},
                 .server = {.host = "127.0.0.1",
                            .port = 8000,
                            .api_key = getenv("HYBRID_API_KEY"),
                            .max_body = 4 << 20,
                            .max_connections = 512,
                            .patience = 60,
                            .woken = &woken},
                 .grace = 30};
    int code = hy_cli_parse(&program, &argc, argv, &o);
    if (code != HY_CLI_GO_ON) return code;
    char newest[HY_CLI_RUN_BYTES];
    if (o.model == NULL) {
        code = hy_cli_take_newest(newest, o.is_quiet);
        if (code != HY_EXIT_DONE) return code;
        o.model = newest;
    }
    char *name = last_part(o.name ? o.name : o.model);
    o.server.model = o.name ? o.name : name;
    o.server.max_waiting = o.generator.waiting;
    o.server.is_quiet = o.is_quiet;
    /* Large bodies and answers go back to the system at once, whichever thread had them. */
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    sem_init(&woken, 0, 0);
    code = name ? run(&o) : hy_cli_refuse(HY_EXIT_FAILED, "out of memory");
    sem_destroy(&woken);
    free(name);
    return hy_cli_flushed(code);
}
