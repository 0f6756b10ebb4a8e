/* hybrid_tokenize.c: hybrid-tokenize: text to token ids and back, and text files to shards.
 *
 * Exit codes: 0 done, 1 it failed, 2 wrong usage or input. What people read goes to standard error,
 * so that ids and text on standard output are nothing but that. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bar.h"
#include "cli/exit_code.h"
#include "cli/figures.h"
#include "cli/program.h"
#include "cli/terminal.h"
#include "hybrid.h"

static const char help[] =
    "Usage: hybrid-tokenize --tokenizer FILE --ids < text          ids of a text\n"
    "       hybrid-tokenize --tokenizer FILE --decode < ids        text of ids\n"
    "       hybrid-tokenize --tokenizer FILE --out DIR TEXT ...    files to token shards\n"
    "\n"
    "Turns text into the token ids of a model and back, as the model's own tokenizer.json says.\n"
    "Shards are what hybrid-train reads fastest: the text is encoded once, not in every run.\n"
    "\n"
    "Examples\n"
    "  What does a model see?\n"
    "    echo 'Hello world' | hybrid-tokenize --tokenizer Llama-3-8B/ --ids\n"
    "  And back\n"
    "    echo '15496 995' | hybrid-tokenize --tokenizer gpt2/tokenizer.json --decode\n"
    "  A folder of text becomes shards, one document in fifty held out; then train on them\n"
    "    hybrid-tokenize --tokenizer gpt2/ --out tokens --val-fraction 0.02 corpus/\n"
    "    hybrid-train --model gpt2-124m --data tokens/train --val-data tokens/val\n"
    "\n"
    "What to do\n"
    "  --tokenizer FILE    a tokenizer.json, or the folder of a model that has one\n"
    "  --ids               print the ids of standard input, byte for byte as given, on one line\n"
    "  --decode            print the text of the ids (numbers apart by blanks) on standard input\n"
    "  --out DIR           write DIR/train/000000.bin and so on; TEXT are files and folders.\n"
    "                      A file is a document, and where the eos token's text stands in it\n"
    "                      another one begins; an eos ends each\n"
    "\n"
    "How\n"
    "  --special           --ids: add bos and eos as the model's template does;\n"
    "                      --decode: leave special tokens out\n"
    "  --plain             special tokens spelled out in the text are plain text\n"
    "  --val-fraction F    part of the text, from its end, for DIR/val: 0 (default) to 0.5\n"
    "  --shard-tokens N    tokens of a shard: 33554432 (default), 100M\n"
    "  --threads N         threads; 0 (default): one per core. The shards are the same\n"
    "  --quiet             say nothing but errors\n"
    "  --help, --version\n"
    "\n"
    "Known are byte-level BPE (GPT-2, Llama 3, Qwen, and split patterns of others) and\n"
    "SentencePiece-style BPE (Llama 2, Mistral). What a file asks for beyond that is refused by\n"
    "name. Exit codes: 0 done, 1 failed, 2 wrong usage or input.\n";

/* For the shells: see completion.h. */
static const hy_cli_completion rows[] = {
    {"--tokenizer", "path", "", "A tokenizer.json, or the folder of a model that has one."},
    {"--ids", "action", "", "Print the ids of standard input."},
    {"--decode", "action", "", "Print the text of the ids on standard input."},
    {"--out", "folder", "", "Write token shards there."},
    {"--special", "action", "", "Add special tokens, or leave them out."},
    {"--plain", "action", "", "Special tokens in the text are plain text."},
    {"--val-fraction", "number", "0 to 0.5", "Part of the text that is held out."},
    {"--shard-tokens", "integer", "1024 to 4294967296", "Tokens of a shard."},
    {"--threads", "integer", "0 to 256", "Threads; 0: one per core."},
    {"--quiet", "action", "", "Say nothing but errors."},
    {"--help", "action", "", "Show help."},
    {"--version", "action", "", "Print the version."},
    {"TEXT", "path", "", "Text files and folders."},
};

static const hy_cli_program program = {"hybrid-tokenize", help, rows, sizeof rows / sizeof rows[0]};

typedef enum action { NOTHING, IDS, DECODE, SHARDS } action;

typedef struct options {
    action action;
    const char *tokenizer, *out;
    bool wants_special, is_plain, is_quiet;
    double val_fraction;
    int64_t shard_tokens, threads;
    const char **paths;
    size_t path_count;
} options;

static int fail_on(const char *what) {
    hy_cli_error("%s: %s", what, strerror(errno));
    return HY_EXIT_FAILED;
}

/* ---- command line ---------------------------------------------------------------------------- */

static bool complain(const char *what, const char *value, const char *expected) {
    hy_cli_error("%s \"%s\": expected %s; \"hybrid-tokenize --help\" tells more", what, value,
                 expected);
    return false;
}

static bool set_action(options *o, action wanted) {
    if (o->action != NOTHING && o->action != wanted) {
        hy_cli_error("--ids, --decode and --out exclude each other");
        return false;
    }
    o->action = wanted;
    return true;
}

static bool parse_fraction(const char *value, double *out) {
    char *end;
    errno = 0;
    *out = strtod(value, &end);
    bool is_good = errno == 0 && end != value && *end == '\0' && *out >= 0 && *out <= 0.5;
    return is_good || complain("--val-fraction", value, "a number from 0 to 0.5");
}

static bool parse_number(const char *flag, const char *value, int64_t least, int64_t most,
                         int64_t *out) {
    char *end;
    errno = 0;
    *out = strtoll(value, &end, 10);
    bool is_number = errno == 0 && end != value && *end == 0;
    if (is_number && *out >= least && *out <= most) return true;
    char expected[96];
    snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)least,
             (long long)most);
    return complain(flag, value, expected);
}

static bool take_switch(options *o, const char *flag, bool *is_taken) {
    *is_taken = true;
    if (strcmp(flag, "--ids") == 0) return set_action(o, IDS);
    if (strcmp(flag, "--decode") == 0) return set_action(o, DECODE);
    if (strcmp(flag, "--special") == 0) return o->wants_special = true;
    if (strcmp(flag, "--plain") == 0) return o->is_plain = true;
    if (strcmp(flag, "--quiet") == 0 || strcmp(flag, "-q") == 0) return o->is_quiet = true;
    *is_taken = false;
    return true;
}

static bool take_value(options *o, const char *flag, const char *value) {
    static const char *const names[] = {"--tokenizer", "--out", "--val-fraction", "--shard-tokens",
                                        "--threads"};
    size_t which = 0;
    while (which < 5 && strcmp(flag, names[which]) != 0) which++;
    if (which == 5) {
        return complain("option", flag, "one that --help lists");
    }
    if (!value) return complain("option", flag, "a value after it");
    switch (which) {
    case 0: o->tokenizer = value; return true;
    case 1: o->out = value; return set_action(o, SHARDS);
    case 2: return parse_fraction(value, &o->val_fraction);
    case 3: return parse_number(flag, value, 1024, (int64_t)1 << 32, &o->shard_tokens);
    default: return parse_number(flag, value, 0, 256, &o->threads);
    }
}

static bool check(const options *o) {
    if (!o->tokenizer) {
        return complain("--tokenizer", "", "a tokenizer.json or a folder with one");
    }
    if (o->action == NOTHING) {
        hy_cli_error("nothing to do: --ids, --decode or --out DIR; \"hybrid-tokenize --help\" "
                     "tells more");
        return false;
    }
    if (o->action == SHARDS && o->path_count == 0) {
        hy_cli_error("--out needs text: files or folders after the options");
        return false;
    }
    if (o->action != SHARDS && o->path_count > 0) {
        return complain("argument", o->paths[0], "text on standard input with --ids and --decode");
    }
    return true;
}

static bool parse(options *o, int argc, char **argv) {
    bool ends_options = false;
    for (int i = 1; i < argc; i++) {
        bool is_taken = false;
        if (ends_options || argv[i][0] != '-') {
            o->paths[o->path_count++] = argv[i];
            continue;
        }
        if (strcmp(argv[i], "--") == 0) {
            ends_options = true;
            continue;
        }
        if (!take_switch(o, argv[i], &is_taken)) return false;
        if (is_taken) continue;
        char flag[64];
        const char *equals = strchr(argv[i], '=');
        snprintf(flag, sizeof flag, "%.*s", equals ? (int)(equals - argv[i]) : (int)sizeof flag - 1,
                 argv[i]);
        const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!take_value(o, flag, value)) return false;
    }
    return check(o);
}

/* ---- ids and text ---------------------------------------------------------------------------- */

/* All of standard input with a zero behind it; NULL when it cannot be had. */
static char *read_input(size_t *size) {
    size_t room = 1 << 16, got;
    char *text = malloc(room);
    *size = 0;
    while (text && (got = fread(text + *size, 1, room - *size - 1, stdin)) > 0) {
        *size += got;
        if (room - *size > 1) continue;
        char *larger = realloc(text, room *= 2);
        if (!larger) free(text);
        text = larger;
    }
    if (!text || ferror(stdin)) {
        free(text);
        return NULL;
    }
    text[*size] = 0;
    return text;
}

static int print_ids(const options *o, const hy_tokenizer *t) {
    int flags = (o->wants_special ? HY_TOKENS_SPECIAL : 0) | (o->is_plain ? HY_TOKENS_PLAIN : 0);
    size_t size, count;
    int32_t *ids;
    char *text = read_input(&size);
    if (!text) return fail_on("standard input");
    hy_status status = hy_tokenize(t, text, size, flags, &ids, &count);
    free(text);
    if (status != HY_OK) return hy_cli_fail(status);
    for (size_t i = 0; i < count; i++) printf("%s%d", i ? " " : "", (int)ids[i]);
    putchar('\n');
    hy_free(ids);
    return fflush(stdout) == 0 && !ferror(stdout) ? HY_EXIT_DONE : fail_on("standard output");
}

/* Numbers apart by blanks, commas or brackets, as they are printed by others. There is room for as many
 * ids as the text has characters. False: it has said what is wrong. */
static bool parse_ids(const char *text, int32_t *ids, size_t *count) {
    static const char between[] = " \t\r\n,[]";
    *count = 0;
    for (text += strspn(text, between); *text; text += strspn(text, between)) {
        char *end;
        errno = 0;
        long id = strtol(text, &end, 10);
        if (end == text || errno || id < 0 || id > INT_MAX || (*end && !strchr(between, *end))) {
            hy_cli_error("standard input: \"%.20s\" is no token id", text);
            return false;
        }
        ids[(*count)++] = (int32_t)id;
        text = end;
    }
    return true;
}

static int write_text(const options *o, const hy_tokenizer *t, const int32_t *ids, size_t count) {
    char *text;
    size_t size;
    hy_status status =
        hy_untokenize(t, ids, count, o->wants_special ? HY_TOKENS_SKIP_SPECIAL : 0, &text, &size);
    if (status != HY_OK) return hy_cli_fail(status);
    bool is_done = fwrite(text, 1, size, stdout) == size && fflush(stdout) == 0;
    hy_free(text);
    return is_done ? HY_EXIT_DONE : fail_on("standard output");
}

static int print_text(const options *o, const hy_tokenizer *t) {
    size_t size, count;
    char *input = read_input(&size);
    int32_t *ids = input ? malloc((size + 1) * sizeof *ids) : NULL;
    int code = HY_EXIT_FAILED;
    if (!ids) {
        fail_on("standard input");
    } else if (!parse_ids(input, ids, &count)) {
        code = HY_EXIT_USAGE;
    } else {
        code = write_text(o, t, ids, count);
    }
    free(input);
    free(ids);
    return code;
}

/* ---- shards ---------------------------------------------------------------------------------- */

typedef struct drawing {
    hy_cli_terminal terminal;
    int columns; /* of the line that stands there */
} drawing;

static bool tell(void *user, const hy_tokenize_progress *p) {
    drawing *d = user;
    char line[HY_CLI_LINE_BYTES], what[64];
    if (!d->terminal.is_tty || d->terminal.is_quiet) return true;
    snprintf(what, sizeof what, "%.1f M tokens", (double)p->tokens / 1e6);
    double fraction = (double)p->bytes_done / (double)p->bytes_total;
    int width = hy_cli_terminal_columns(&d->terminal) - 1;
    int columns = hy_cli_bar_of_work(&d->terminal, what, fraction, width, line);
    int stale = d->columns > columns ? d->columns - columns : 0;
    fprintf(d->terminal.out, "\r%s%*s", line, stale, "");
    fflush(d->terminal.out);
    d->columns = columns;
    return true;
}

static void sum_up(const drawing *d, const options *o, const hy_tokenize_result *r) {
    static const char *const names[] = {"train", "val"};
    FILE *out = d->terminal.out;
    if (d->terminal.is_quiet) return;
    if (d->columns) fprintf(out, "\r%*s\r", d->columns, "");
    uint64_t tokens = r->tokens[0] + r->tokens[1];
    fprintf(out, "%s in %llu files, %llu documents: %llu tokens, %.2f bytes each, %.1f MB/s\n",
            hy_cli_bytes(r->bytes).text, (unsigned long long)r->files,
            (unsigned long long)r->documents, (unsigned long long)tokens,
            tokens ? (double)r->bytes / (double)tokens : 0.0,
            r->seconds > 0 ? (double)r->bytes / r->seconds / 1e6 : 0.0);
    if (r->skipped)
        fprintf(out, "%llu files were left out: hidden, empty or not text\n",
                (unsigned long long)r->skipped);
    for (int i = 0; i < 2; i++) {
        if (r->shards[i] == 0) continue;
        fprintf(out, "%s/%s: %llu tokens in %llu shards\n", o->out, names[i],
                (unsigned long long)r->tokens[i], (unsigned long long)r->shards[i]);
    }
    if (o->val_fraction > 0 && r->shards[1] == 0) {
        hy_cli_warning("nothing was held out: no document begins in the last part of the text");
    }
}

static int write_shards(const options *o, const hy_tokenizer *t) {
    drawing d = {.columns = 0};
    hy_tokenize_result result;
    hy_cli_terminal_init(&d.terminal, stderr, o->is_quiet, false);
    hy_tokenize_options job = {.tokenizer = t,
                               .paths = o->paths,
                               .path_count = o->path_count,
                               .out = o->out,
                               .val_fraction = o->val_fraction,
                               .shard_tokens = (uint64_t)o->shard_tokens,
                               .threads = (int)o->threads,
                               .is_plain = o->is_plain,
                               .tell = tell,
                               .user = &d};
    if (hy_tokenizer_eos(t) < 0 && !o->is_quiet) {
        hy_cli_warning("%s names no eos token: nothing will stand between documents", o->tokenizer);
    }
    hy_status status = hy_tokenize_files(&job, &result);
    if (status != HY_OK) return hy_cli_fail(status);
    sum_up(&d, o, &result);
    return HY_EXIT_DONE;
}

/* ---- main ------------------------------------------------------------------------------------ */

static int act(const options *o) {
    hy_tokenizer *t = NULL;
    hy_status status = hy_tokenizer_open(o->tokenizer, &t);
    int code;
    if (status != HY_OK) return hy_cli_fail(status);
    switch (o->action) {
    case IDS: code = print_ids(o, t); break;
    case DECODE: code = print_text(o, t); break;
    default: code = write_shards(o, t); break;
    }
    hy_tokenizer_close(t);
    return code;
}

int main(int argc, char **argv) {
    options o = {0};
    hy_cli_name_program(program.name);
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (hy_cli_answers(&program, argv[i])) return hy_cli_flushed(HY_EXIT_DONE);
    }
    o.paths = calloc((size_t)argc + 1, sizeof *o.paths);
    if (!o.paths) {
        hy_cli_error("out of memory");
        return HY_EXIT_FAILED;
    }
    int code = parse(&o, argc, argv) ? act(&o) : HY_EXIT_USAGE;
    free(o.paths);
    return code;
}
