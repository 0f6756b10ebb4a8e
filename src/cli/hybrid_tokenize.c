/* hybrid_tokenize.c: the program hybrid-tokenize: text to token ids and back, and text files to
 * shards.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage or input. Messages go to standard error, so that
 * standard output holds only ids or text. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli/program.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "hybrid.h"

typedef struct options {
    const char *tokenizer, *out;
    bool wants_ids, wants_text, wants_special, is_plain, is_quiet;
    double val_fraction;
    uint64_t shard_tokens, threads;
} options;

#define AT(member) .offset = offsetof(options, member)

static const hy_cli_row rows[] = {
    {"--tokenizer", "FILE", HY_CLI_TEXT, AT(tokenizer),
     "A tokenizer.json, tokenizer.model or GGUF file, or a model folder that contains one."},
    {"--ids", NULL, HY_CLI_SWITCH, AT(wants_ids),
     "Read text from standard input and print its token ids on one line."},
    {"--decode", NULL, HY_CLI_SWITCH, AT(wants_text),
     "Read token ids from standard input, separated by blanks, and print their text."},
    {"--out", "FOLDER", HY_CLI_TEXT, AT(out),
     "Write token shards to FOLDER/train/000000.bin and so on. Each file is a document; the text "
     "of the eos token also ends a document. An eos token is written after each document."},
    {"--special", NULL, HY_CLI_SWITCH, AT(wants_special),
     "--ids: add bos and eos as the tokenizer's template does; --decode: skip special tokens."},
    {"--plain", NULL, HY_CLI_SWITCH, AT(is_plain),
     "Treat special tokens in the text as plain text."},
    {"--val-fraction", "F", HY_CLI_NUMBER, AT(val_fraction),
     "Share of the text, from its end, that is written to FOLDER/val: 0 (default) to 0.5.",
     "numbers from 0 to 0.5", 0, 0.5},
    {"--shard-tokens", "N", HY_CLI_COUNT, AT(shard_tokens), "Tokens per shard: 33554432 (default).",
     "whole numbers from 1024 to 4294967296", 1024, 0x1p32},
    {"--threads", "N", HY_CLI_COUNT, AT(threads),
     "Threads; 0 (default): one per core. The result does not depend on it.",
     "whole numbers from 0 to 256", 0, 256},
    {"--quiet", NULL, HY_CLI_SWITCH, AT(is_quiet), "Print only errors."},
};

static const hy_cli_program program = {
    .name = "hybrid-tokenize",
    .before =
        "Usage: hybrid-tokenize --tokenizer FILE --ids < text             text to token ids\n"
        "       hybrid-tokenize --tokenizer FILE --decode < ids           token ids to text\n"
        "       hybrid-tokenize --tokenizer FILE --out FOLDER TEXT ...    files to token shards\n\n"
        "Converts text to token ids and back with the tokenizer of a model. hybrid-train "
        "reads\n"
        "shards fastest, because the text is tokenized once and not in every run.\n\n"
        "Examples\n"
        "  Show the tokens of a text\n"
        "    echo 'Hello world' | hybrid-tokenize --tokenizer Llama-3-8B/ --ids\n"
        "  Convert token ids back to text\n"
        "    echo '15496 995' | hybrid-tokenize --tokenizer gpt2/tokenizer.json --decode\n"
        "  Write a folder of text as shards, hold out the last 2 %, then train on them\n"
        "    hybrid-tokenize --tokenizer gpt2/ --out tokens --val-fraction 0.02 corpus/\n"
        "    hybrid-train --model gpt2-124m --data tokens/train --val-data tokens/val\n\n",
    .after = "\n"
             "Supported: byte-level BPE (GPT-2, Llama 3, Qwen, and other split patterns) and\n"
             "SentencePiece-style BPE (Llama 2, Mistral). For anything else, the error message "
             "names the\n"
             "unsupported feature. Exit codes: 0 done, 1 failed, 2 wrong usage or input.\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof rows[0],
    .word = "TEXT",
    .word_type = "path",
    .word_help = "Text files and folders, with --out.",
};

static int fail_on(const char *what) {
    return hy_cli_refuse(HY_EXIT_FAILED, "%s: %s", what, strerror(errno));
}

/* ---- ids and text ---------------------------------------------------------------------------- */

enum { INPUT_MOST = 256 << 20 };

/* Reads all of standard input; NULL: it cannot be read. */
static char *read_input(size_t *size) {
    char *text = hy_cli_read_all(stdin, INPUT_MOST, size);
    if (text || errno != EFBIG) return text;
    hy_cli_error("standard input has more than %d MiB; use --out to tokenize files",
                 INPUT_MOST >> 20);
    exit(HY_EXIT_USAGE);
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
    size_t unknown = 0;
    for (size_t i = 0; i < count; i++) {
        printf("%s%d", i ? " " : "", (int)ids[i]);
        unknown += ids[i] == hy_tokenizer_unknown(t);
    }
    putchar('\n');
    if (unknown > 0 && !o->is_quiet)
        hy_cli_warning("%zu of %zu tokens are the unknown token %d", unknown, count,
                       (int)hy_tokenizer_unknown(t));
    hy_free(ids);
    return fflush(stdout) == 0 && !ferror(stdout) ? HY_EXIT_DONE : fail_on("standard output");
}

/* Reads numbers separated by blanks, commas or brackets. `ids` has room for one id per character of
 * the text. False: the text is wrong, which has been reported. */
static bool parse_ids(const char *text, int32_t *ids, size_t *count) {
    static const char between[] = " \t\r\n,[]";
    *count = 0;
    for (text += strspn(text, between); *text; text += strspn(text, between)) {
        char *end;
        errno = 0;
        long id = strtol(text, &end, 10);
        if (end == text || errno || id < 0 || id > INT_MAX || (*end && !strchr(between, *end)))
            return hy_cli_refuse(false, "standard input: \"%.20s\" is not a token id", text);
        ids[(*count)++] = (int32_t)id;
        text = end;
    }
    return true;
}

static int print_text(const options *o, const hy_tokenizer *t) {
    int flags = o->wants_special ? HY_TOKENS_SKIP_SPECIAL : 0, code = HY_EXIT_DONE;
    size_t size, count;
    char *input = read_input(&size), *text = NULL;
    int32_t *ids = input ? malloc((size + 1) * sizeof *ids) : NULL;
    hy_status status;
    if (!ids)
        code = fail_on("standard input");
    else if (!parse_ids(input, ids, &count))
        code = HY_EXIT_USAGE;
    else if ((status = hy_untokenize(t, ids, count, flags, &text, &size)) != HY_OK)
        code = hy_cli_fail(status);
    else if (fwrite(text, 1, size, stdout) != size || fflush(stdout) != 0)
        code = fail_on("standard output");
    free(input);
    free(ids);
    hy_free(text);
    return code;
}

/* ---- shards ---------------------------------------------------------------------------------- */

static bool on_progress(void *user, const hy_tokenize_progress *p) {
    hy_cli_progress *progress = user;
    char what[64];
    if (!progress->terminal->is_tty || progress->terminal->is_quiet) return true;
    snprintf(what, sizeof what, "%.1f M tokens", (double)p->tokens / 1e6);
    hy_cli_draw_work(progress, what, (double)p->bytes_done / (double)p->bytes_total);
    return true;
}

static int write_shards(const options *o, const hy_tokenizer *t, const char *const *paths,
                        int count) {
    hy_cli_terminal terminal;
    hy_cli_progress progress;
    hy_tokenize_result result;
    hy_cli_terminal_init(&terminal, stderr, o->is_quiet, false);
    hy_cli_progress_init(&progress, &terminal);
    hy_tokenize_options job = {.tokenizer = t,
                               .paths = paths,
                               .path_count = (size_t)count,
                               .out = o->out,
                               .val_fraction = o->val_fraction,
                               .shard_tokens = o->shard_tokens,
                               .threads = (int)o->threads,
                               .is_plain = o->is_plain,
                               .on_progress = on_progress,
                               .user = &progress};
    if (hy_tokenizer_eos(t) < 0 && !o->is_quiet)
        hy_cli_warning("%s has no eos token: documents will not be separated", o->tokenizer);
    hy_status status = hy_tokenize_files(&job, &result);
    if (status != HY_OK) return hy_cli_fail(status);
    static const char *const names[] = {"train", "val"};
    FILE *out = terminal.out;
    if (!o->is_quiet) {
        hy_cli_progress_finish(&progress);
        uint64_t tokens = result.tokens[0] + result.tokens[1];
        fprintf(out,
                "%s in %llu files, %llu documents: %llu tokens, %.2f bytes per token, %.1f MB/s\n",
                hy_cli_bytes(result.bytes).text, (unsigned long long)result.files,
                (unsigned long long)result.documents, (unsigned long long)tokens,
                tokens ? (double)result.bytes / (double)tokens : 0.0,
                result.seconds > 0 ? (double)result.bytes / result.seconds / 1e6 : 0.0);
        if (result.skipped)
            fprintf(out, "skipped %llu files: hidden, empty or not text\n",
                    (unsigned long long)result.skipped);
        for (int i = 0; i < 2; i++) {
            if (result.shards[i] == 0) continue;
            hy_cli_printf(out, "%s/%s: %llu tokens in %llu shards\n", o->out, names[i],
                          (unsigned long long)result.tokens[i],
                          (unsigned long long)result.shards[i]);
        }
        if (result.unknown_tokens > 0) hy_cli_warning("%s", result.unknown_text);
        if (o->val_fraction > 0 && result.shards[1] == 0)
            hy_cli_warning("nothing was held out: no document starts in the last part of the text");
    }
    return HY_EXIT_DONE;
}

/* ---- main ------------------------------------------------------------------------------------ */

/* HY_EXIT_DONE if exactly one action is requested and its arguments are complete. */
static int check(const options *o, int words, const char *first) {
    int actions = o->wants_ids + o->wants_text + (o->out != NULL);
    if (!o->tokenizer) return hy_cli_wrong_usage("--tokenizer FILE is missing", "");
    if (actions == 0)
        return hy_cli_wrong_usage("nothing to do: add --ids, --decode or --out FOLDER", "");
    if (actions > 1) return hy_cli_wrong_usage("--ids, --decode and --out cannot be combined", "");
    if (o->out && words == 0)
        return hy_cli_wrong_usage("--out needs text: add files or folders after the options", "");
    if (!o->out && words > 0)
        return hy_cli_wrong_usage("--ids and --decode read standard input; unexpected argument ",
                                  first);
    return HY_EXIT_DONE;
}

int main(int argc, char **argv) {
    options o = {0};
    hy_tokenizer *t = NULL;
    int code = hy_cli_parse(&program, &argc, argv, &o);
    if (code != HY_CLI_GO_ON) return code;
    code = check(&o, argc - 1, argv[1]);
    if (code != HY_EXIT_DONE) return code;
    hy_status status = hy_tokenizer_open(o.tokenizer, &t);
    if (status != HY_OK) return hy_cli_fail(status);
    code = o.wants_ids    ? print_ids(&o, t)
           : o.wants_text ? print_text(&o, t)
                          : write_shards(&o, t, (const char *const *)argv + 1, argc - 1);
    hy_tokenizer_close(t);
    return code;
}
