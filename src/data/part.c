/* part.c: opens a path as sequences and splits it. See part.h.
 *
 * Splits share no token and no example. For windows, the last part of the tokens is held out; for
 * rows, the last rows. The held-out text of the grammar is generated with its own seed. */
#include "data/part.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "data/grammar.h"
#include "data/growing.h"

#define FIRST_BYTES 4096 /* of standard input, to find out what it is */

typedef unsigned long long ull; /* what %llu prints */

/* ---- splitting into training and held-out data ----------------------------------------------- */

static hy_status check_window(const hy_dataset_options *o, const char *name, uint64_t tokens) {
    uint64_t least = o->keeps_rest ? 2 : (uint64_t)o->seq + 1;
    HY_FAIL_IF(tokens < least, HY_ERR_INPUT,
               "%s has %llu tokens; a sequence needs %llu. Use a shorter sequence or more data",
               name, (ull)tokens, (ull)least);
    return HY_OK;
}

/* How many of `tokens` are held out: none for a fraction of 0, else the fraction, but at least one
 * window for each split. */
static hy_status choose_held_out(const hy_dataset_options *o, const char *name, uint64_t tokens,
                                 uint64_t *held_out) {
    uint64_t window = (uint64_t)o->seq + 1; /* one more for the last target */
    *held_out = 0;
    if (o->val_fraction == 0) return check_window(o, name, tokens);
    HY_FAIL_IF(tokens < 2 * window, HY_ERR_INPUT,
               "%s has %llu tokens; a sequence needs %llu, and training and held-out data need one "
               "each: %llu in total. Use a shorter sequence or more data",
               name, (ull)tokens, (ull)window, (ull)(2 * window));
    uint64_t count = (uint64_t)llround((double)tokens * o->val_fraction);
    if (count < window) count = window;
    if (count > tokens - window) count = tokens - window;
    *held_out = count;
    return HY_OK;
}

static void set_range(hy_part *part, hy_split split, hy_token_range range,
                      const hy_dataset_options *o) {
    uint64_t seq = (uint64_t)o->seq, targets = range.count ? range.count - 1 : 0;
    bool keeps_rest = o->keeps_rest && split == HY_VAL;
    part->ranges[split] = range;
    part->tokens[split] = range.count;
    part->sequences[split] = (keeps_rest ? targets + seq - 1 : targets) / seq;
    part->targets[split] = keeps_rest ? targets : part->sequences[split] * seq;
    part->places[split] = part->targets[split];
    if (split == HY_TRAIN) part->epoch = (double)part->sequences[split];
}

/* ---- rows ------------------------------------------------------------------------------------ */

static hy_status pack_split(hy_part *part, hy_split split, uint64_t first, uint64_t count,
                            const hy_dataset_options *o) {
    hy_packing_options options = {.first = first,
                                  .count = count,
                                  .seq = o->seq,
                                  .pairs = o->pairs,
                                  .prompts = o->prompts,
                                  .packs = o->packs,
                                  .shuffles = split == HY_TRAIN && o->shuffle,
                                  .seed = o->seed};
    if (count == 0) return HY_OK;
    HY_TRY(hy_packing_make(part->examples, &options, &part->packs[split]));
    part->sequences[split] = part->packs[split].sequences;
    part->places[split] = part->packs[split].places;
    part->targets[split] = part->packs[split].targets;
    part->tokens[split] = part->packs[split].places + count;
    return HY_OK;
}

/* Whether rows are streamed, and the estimated bytes of their text; 0: not known. */
static hy_status choose_stream(const hy_file_list *list, hy_part_use use,
                               const hy_dataset_options *o, bool *streams, uint64_t *size) {
    *streams = false;
    *size = 0;
    if (o->streams == HY_STREAM_OFF || use == HY_PART_HOLDS_OUT || o->scores) return HY_OK;
    for (size_t i = 0; i < list->count; i++) {
        uint64_t here = 0;
        bool is_whole = true;
        if (hy_is_standard_input(list->files[i].path))
            HY_TRY(hy_standard_input_copy(0, &here, &is_whole));
        if (!is_whole) { /* at least HY_STREAM_LEAST, if that matters */
            *streams = true;
            *size = 0;
            return HY_OK;
        }
        HY_TRY(hy_input_estimate(&list->files[i], &here));
        *size += here;
    }
    *streams = o->streams == HY_STREAM_ON || *size >= HY_STREAM_LEAST;
    return HY_OK;
}

static hy_status read_rows(hy_part *part, hy_file_list *list, hy_part_use use,
                           const hy_encoding *encoding) {
    bool streams;
    uint64_t size;
    part->examples = calloc(1, sizeof *part->examples);
    if (!part->examples) return hy_fail(HY_ERR_MEMORY, "not enough memory for examples");
    HY_TRY(choose_stream(list, use, encoding->options, &streams, &size));
    if (streams) return hy_row_stream_open(list, size, encoding, part->examples, &part->stream);
    return hy_examples_open(list, encoding, part->examples);
}

static hy_status open_rows(hy_part *part, const char *path, hy_file_list *list, hy_part_use use,
                           const hy_encoding *encoding) {
    const hy_dataset_options *o = encoding->options;
    HY_TRY(read_rows(part, list, use, encoding));
    part->is_bytes = !encoding->tokenizer;
    const uint64_t each = hy_packing_unit(o->pairs); /* examples; all counts are of these units */
    uint64_t count = part->examples->count / each, held_out = 0;
    if (use == HY_PART_HOLDS_OUT || use == HY_PART_IS_BOTH) held_out = count;
    if (use == HY_PART_DOES_BOTH && o->val_fraction > 0) {
        HY_FAIL_IF(count < 2, HY_ERR_INPUT,
                   "%s has only one %s; training and held-out data need one each", path,
                   o->pairs     ? "pair of answers"
                   : o->prompts ? "prompt"
                                : "example");
        held_out = (uint64_t)llround((double)count * o->val_fraction);
        if (held_out < 1) held_out = 1;
    }
    uint64_t trained = use == HY_PART_IS_BOTH ? count : count - held_out;
    HY_TRY(pack_split(part, HY_TRAIN, 0, trained * each, o));
    HY_TRY(pack_split(part, HY_VAL, (count - held_out) * each, held_out * each, o));
    part->epoch = (double)part->sequences[HY_TRAIN];
    if (!part->stream) return HY_OK;
    /* Later windows hold out nothing. */
    double others = (double)count * (hy_row_stream_scale(part->stream) - 1);
    double per_example = part->epoch / (double)trained;
    part->epoch = hy_row_stream_scale(part->stream) > 0 ? part->epoch + others * per_example : 0;
    return hy_row_stream_begin(part->stream, &part->packs[HY_TRAIN]);
}

/* Warns of text that the tokenizer cannot spell. */
static hy_status warn_of_unknown(const char *path, const hy_unknown_text *unknown,
                                 const hy_encoding *encoding) {
    const hy_dataset_options *o = encoding->options;
    hy_text text = {0};
    if (unknown->count == 0 || !o->on_warning) return HY_OK;
    hy_text_addf(&text, "%s: ", path);
    hy_unknown_text_describe(unknown, encoding->tokenizer, &text);
    hy_status status = hy_text_status(&text);
    if (status == HY_OK) o->on_warning(o->user, text.data);
    hy_text_free(&text);
    return status;
}

/* Rows in a file of another name would be trained with their braces and keys. */
static void warn_of_rows(const hy_file_list *list, const hy_dataset_options *o) {
    char text[4096 + 256];
    size_t i = 0;
    while (i < list->count && !list->files[i].looks_like_rows) i++;
    if (i == list->count || !o->on_warning) return;
    snprintf(text, sizeof text,
             "%.4000s is trained as text, with its braces, keys or separators, but it looks like "
             "rows of JSON or CSV: name it .jsonl or .csv to train rows, or add --data-format text "
             "if it is text",
             list->files[i].path);
    o->on_warning(o->user, text);
}

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status open_files(hy_part *part, const char *path, hy_file_list *list, hy_part_use use,
                            const hy_encoding *encoding) {
    const hy_dataset_options *o = encoding->options;
    hy_file_kind kind;
    HY_TRY(hy_file_list_kind(path, list, &kind));
    /* The part's name without its size: "notes.txt", "3 shards". */
    static const char *const plurals[] = {"text files", "shards", "files of rows"};
    const char *slash = strrchr(path, '/');
    if (list->count == 1)
        snprintf(part->name, sizeof part->name, "%.100s", slash && slash[1] ? slash + 1 : path);
    else
        snprintf(part->name, sizeof part->name, "%zu %s", list->count, plurals[kind]);
    bool is_bytes = !encoding->tokenizer && kind != HY_DATA_SHARDS && o->format != HY_FORMAT_BYTES;
    HY_FAIL_IF(is_bytes && o->no_bytes, HY_ERR_INPUT, "%s", o->no_bytes);
    if (kind == HY_DATA_ROWS) {
        HY_TRY(open_rows(part, path, list, use, encoding));
        return warn_of_unknown(path, &part->examples->unknown, encoding);
    }
    HY_FAIL_IF(o->pairs, HY_ERR_INPUT,
               "%s is %s, but the task learns from pairs of answers; expected rows of JSON or CSV "
               "with prompt, chosen and rejected",
               path, kind == HY_DATA_SHARDS ? "a file of tokens" : "text");
    HY_FAIL_IF(o->prompts, HY_ERR_INPUT,
               "%s is %s, but the task learns from the model's own answers to prompts; expected "
               "rows of JSON or CSV with prompt or question, and their answers if the rewards need "
               "them",
               path, kind == HY_DATA_SHARDS ? "a file of tokens" : "text");
    warn_of_rows(list, o);
    if (hy_is_standard_input(path)) { /* only rows are streamed */
        bool is_whole;
        uint64_t size;
        HY_TRY(hy_standard_input_copy(UINT64_MAX, &size, &is_whole));
    }
    HY_TRY(hy_source_open(path, list, kind, encoding, &part->source));
    HY_TRY(warn_of_unknown(path, &part->source.unknown, encoding));
    part->is_bytes = part->source.is_bytes;
    /* Cut the source into windows, for one split or for both. */
    uint64_t tokens = part->source.tokens, held_out = 0;
    if (use == HY_PART_DOES_BOTH)
        HY_TRY(choose_held_out(o, path, tokens, &held_out));
    else
        HY_TRY(check_window(o, path, tokens));
    if (use == HY_PART_HOLDS_OUT || use == HY_PART_IS_BOTH) held_out = tokens;
    uint64_t train = use == HY_PART_IS_BOTH ? tokens : tokens - held_out;
    set_range(part, HY_TRAIN, (hy_token_range){&part->source, 0, train}, o);
    set_range(part, HY_VAL, (hy_token_range){&part->source, tokens - held_out, held_out}, o);
    return HY_OK;
}

hy_status hy_part_open(const char *path, hy_part_use use, const hy_encoding *encoding,
                       hy_part *part) {
    const hy_dataset_options *o = encoding->options;
    bool may_stream = o->streams != HY_STREAM_OFF && use != HY_PART_HOLDS_OUT && !o->scores &&
                      !encoding->needs_size;
    uint64_t least = o->streams == HY_STREAM_ON ? FIRST_BYTES : HY_STREAM_LEAST;
    hy_file_list list;
    HY_TRY(hy_file_list_find_soon(path, o->format, may_stream ? least : UINT64_MAX, &list));
    hy_status status = open_files(part, path, &list, use, encoding);
    hy_file_list_free(&list);
    if (status != HY_OK) hy_part_close(part);
    return status;
}

void hy_part_close(hy_part *part) {
    hy_row_stream_close(part->stream); /* uses the packs */
    for (int s = 0; s < 2; s++) {
        if (part->packs[s].examples) hy_packing_close(&part->packs[s]);
    }
    if (part->examples) hy_examples_close(part->examples);
    free(part->examples);
    hy_source_close(&part->source);
    hy_source_close(&part->held_out);
    *part = (hy_part){0};
}

/* ---- the grammar ----------------------------------------------------------------------------- */

static hy_status generate(hy_source *source, uint64_t seed, float *nats, uint64_t size) {
    uint8_t *text = malloc(size);
    if (!text)
        return hy_fail(HY_ERR_MEMORY, "not enough memory for %llu bytes of grammar text",
                       (ull)size);
    hy_grammar_generate(seed, text, nats, size);
    *source = (hy_source){.is_bytes = true};
    return hy_source_add_block(source, text, size);
}

/* Held-out windows of the grammar are complete, because their optimum is known. */
static hy_status make_grammar(hy_part_use use, const hy_dataset_options *options, hy_part *part) {
    hy_dataset_options whole = *options, *o = &whole;
    whole.keeps_rest = false;
    static const char name[] = "the built-in text";
    const uint64_t most = (uint64_t)1 << 40;
    HY_FAIL_IF(o->builtin_bytes < 1 || (uint64_t)o->builtin_bytes > most, HY_ERR_INPUT,
               "the built-in text has %lld bytes; expected 1 to %llu", (long long)o->builtin_bytes,
               (ull)most);
    HY_FAIL_IF(
        o->vocab < 256, HY_ERR_INPUT,
        "the built-in text uses the bytes 0 to 255, but the model's vocabulary has only %d ids",
        o->vocab);
    uint64_t size = (uint64_t)o->builtin_bytes, held_out = 0;
    if (use == HY_PART_DOES_BOTH) HY_TRY(choose_held_out(o, name, size, &held_out));
    if (held_out > 0) {
        /* The held-out text, and the loss of the true source on its targets. */
        assert(held_out > (uint64_t)o->seq); /* guaranteed by choose_held_out */
        float *nats = calloc(held_out, sizeof *nats);
        HY_FAIL_IF(!nats, HY_ERR_MEMORY, "not enough memory for %llu bytes of held-out text",
                   (ull)held_out);
        /* The last index of the random stream; the text itself counts from the first. */
        uint64_t seed = hy_rng_u64(o->seed, HY_RNG_GRAMMAR, UINT64_MAX);
        hy_status status = generate(&part->held_out, seed, nats, held_out);
        uint64_t targets = (held_out - 1) / (uint64_t)o->seq * (uint64_t)o->seq;
        double sum = 0;
        for (uint64_t i = 1; status == HY_OK && i <= targets; i++) sum += (double)nats[i];
        free(nats);
        part->val_optimum = sum / (double)targets;
        HY_TRY(status);
    }
    HY_TRY(generate(&part->source, o->seed, NULL, size - held_out));
    HY_TRY(check_window(o, name, part->source.tokens));
    set_range(part, HY_TRAIN, (hy_token_range){&part->source, 0, size - held_out}, o);
    set_range(part, HY_VAL, (hy_token_range){&part->held_out, 0, held_out}, o);
    return HY_OK;
}

hy_status hy_part_open_grammar(hy_part_use use, const hy_dataset_options *o, hy_part *part) {
    snprintf(part->name, sizeof part->name, "built-in grammar");
    part->is_bytes = true;
    hy_status status = make_grammar(use, o, part);
    if (status != HY_OK) hy_part_close(part);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

int64_t hy_part_fill(const hy_part *part, hy_split split, uint64_t i, int32_t seq, int32_t *tokens,
                     int32_t *targets, int32_t *doc_starts) {
    if (part->stream && split == HY_TRAIN)
        return hy_row_stream_fill(part->stream, i, seq, tokens, targets, doc_starts);
    assert(i < part->sequences[split]);
    if (part->examples) {
        return hy_packing_fill(&part->packs[split], i, seq, tokens, targets, doc_starts);
    }
    const hy_token_range *range = &part->ranges[split];
    uint64_t size = (uint64_t)seq, left = range->count - 1 - size * i;
    uint64_t here = left < size ? left : size; /* the last window may be shorter */
    uint64_t first = range->first + size * i;
    bool is_read = hy_source_read(range->source, first, 1, tokens) == HY_OK &&
                   hy_source_read(range->source, first + 1, here, targets) == HY_OK;
    if (!is_read) return -1;
    memcpy(tokens + 1, targets, (here - 1) * sizeof *tokens);
    for (uint64_t k = here; k < size; k++) {
        tokens[k] = 0; /* no earlier token attends to it */
        targets[k] = -1;
    }
    if (doc_starts) memset(doc_starts, 0, size * sizeof *doc_starts);
    return (int64_t)here;
}
