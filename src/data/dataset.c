/* dataset.c: the parts of a dataset, their mixture, and sequences by number.
 *
 * Parts without weights form one list of sequences, shuffled as a whole. Parts with weights take
 * turns (mixture.c), and each is shuffled on its own. An epoch has as many sequences as all parts
 * together. Held-out parts follow one another in order, with or without weights. Nothing changes
 * after opening. */
#include "data/dataset.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/in_order.h"
#include "base/rng.h"
#include "data/grammar.h"
#include "data/mixture.h"
#include "data/part.h"

#define BUFFER_BYTES ((int64_t)16 << 20)
#define STREAM_WINDOW ((int64_t)16 << 20)

/* The parts of a split, in order. */
typedef struct part_list {
    hy_part *parts;
    size_t count;
} part_list;

struct hy_dataset {
    hy_tokenizer *tokenizer;
    hy_encoding encoding;
    part_list main, held_out; /* held_out is empty if the data itself is split */
    const part_list *splits[2];
    hy_cycle cycle;
    bool has_weights;
    uint64_t seed;
    bool shuffle;
    hy_dataset_facts facts;
    const double (*reference)[2]; /* see hy_dataset_set_reference */
    atomic_bool has_failed;       /* a file could not be read */
};

static bool is_builtin(const char *path) {
    return !path || path[0] == '\0' || strcmp(path, "builtin") == 0;
}

static bool is_given(const char *text) { return text && text[0]; }

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status open_grammar(hy_dataset *d, const hy_dataset_options *o, hy_part_use use) {
    HY_FAIL_IF(d->tokenizer, HY_ERR_INPUT,
               "the built-in text consists of bytes and needs no tokenizer; name other data, or "
               "omit the tokenizer");
    d->main.parts = calloc(1, sizeof *d->main.parts);
    if (!d->main.parts) return hy_fail(HY_ERR_MEMORY, "not enough memory for data");
    HY_TRY(hy_part_open_grammar(use, o, d->main.parts));
    d->main.count = 1;
    if (use != HY_PART_DOES_BOTH || o->val_fraction == 0) return HY_OK;
    d->facts.knows_entropy = true;
    d->facts.entropy = hy_grammar_entropy();
    d->facts.val_optimum = d->main.parts[0].val_optimum;
    return HY_OK;
}

static hy_status open_parts(hy_dataset *d, const hy_mixture *mixture, hy_part_use use,
                            part_list *out) {
    out->parts = calloc(mixture->count, sizeof *out->parts);
    if (!out->parts) return hy_fail(HY_ERR_MEMORY, "not enough memory for data");
    for (size_t i = 0; i < mixture->count; i++) {
        hy_part *part = &out->parts[i];
        HY_TRY(hy_part_open(mixture->parts[i].path, use, &d->encoding, part));
        out->count++;
        part->weight = mixture->parts[i].weight;
        HY_FAIL_IF(part->is_bytes != out->parts[0].is_bytes, HY_ERR_INPUT,
                   "%s is %s, but %s is %s; set a tokenizer to use both", out->parts[0].name,
                   out->parts[0].is_bytes ? "text" : "tokens", part->name,
                   part->is_bytes ? "text" : "tokens");
    }
    return HY_OK;
}

static hy_status open_path(hy_dataset *d, const char *path, hy_part_use use, part_list *out) {
    hy_mixture mixture;
    HY_TRY(hy_mixture_parse(path, &mixture));
    /* Without weights, streamed parts take turns by their sizes. */
    d->encoding.needs_size =
        d->encoding.options->needs_size || (mixture.count > 1 && !mixture.has_weights);
    hy_status status = open_parts(d, &mixture, use, out);
    if (status == HY_OK && out == &d->main) {
        double weights[HY_MOST_PARTS];
        bool has_stream = false;
        for (size_t i = 0; i < out->count; i++) has_stream |= out->parts[i].stream != NULL;
        d->has_weights = (mixture.has_weights || has_stream) && mixture.count > 1;
        for (size_t i = 0; i < mixture.count; i++) {
            weights[i] = mixture.has_weights ? mixture.parts[i].weight : out->parts[i].epoch;
        }
        if (d->has_weights) hy_cycle_make(weights, mixture.count, &d->cycle);
    }
    hy_mixture_free(&mixture);
    return status;
}

/* Opens tokenizer, columns and chat template. */
static hy_status open_encoding(hy_dataset *d, const hy_dataset_options *o) {
    if (is_given(o->tokenizer)) HY_TRY(hy_tokenizer_open(o->tokenizer, &d->tokenizer));
    long workers = o->workers > 0 ? o->workers : sysconf(_SC_NPROCESSORS_ONLN);
    if (workers < 1) workers = 1;
    d->encoding = (hy_encoding){
        .options = o,
        .tokenizer = d->tokenizer,
        .workers = workers > HY_MOST_WORKERS ? HY_MOST_WORKERS : (int32_t)workers,
        .buffer = (size_t)(o->buffer_bytes > 0 ? o->buffer_bytes : BUFFER_BYTES),
    };
    hy_status status = hy_columns_parse(o->columns, &d->encoding.columns);
    if (status != HY_OK) return hy_fail_context(status, "columns");
    d->encoding.columns.scores = o->prompts ? HY_SCORES_NONE : o->scores;
    d->encoding.columns.pairs = o->pairs != HY_NO_PAIRS;
    d->encoding.columns.prompts = o->prompts;
    HY_TRY(
        hy_chat_template_open(o->chat_template, d->tokenizer, o->model_folder, &d->encoding.chat));
    d->encoding.chat.ignores_answers = o->counts_all;
    return HY_OK;
}

static hy_status check_prompts(const hy_dataset_options *o) {
    if (!o->prompts) return HY_OK;
    assert(!o->pairs);
    HY_FAIL_IF(is_builtin(o->path), HY_ERR_INPUT,
               "the built-in text has no prompts; name rows with prompt or question with --data");
    HY_FAIL_IF(o->counts_all, HY_ERR_INPUT,
               "loss_on is all, but the loss of a prompt is that of the model's answers; expected "
               "answers");
    HY_FAIL_IF(o->streams == HY_STREAM_ON, HY_ERR_INPUT,
               "stream_rows is on, but prompts are read before the run begins; expected auto or "
               "off");
    HY_FAIL_IF(o->prompt_most < 1, HY_ERR_INPUT,
               "a prompt may have at most %d tokens; expected 1 or more", o->prompt_most);
    return HY_OK;
}

static hy_status open_all(hy_dataset *d, const hy_dataset_options *o) {
    bool is_same = is_given(o->val_path) && !is_builtin(o->path) && !strcmp(o->path, o->val_path);
    hy_part_use use = is_given(o->val_path) ? HY_PART_TRAINS : HY_PART_DOES_BOTH;
    if (is_same) use = HY_PART_IS_BOTH;
    HY_FAIL_IF(
        o->pairs && is_builtin(o->path), HY_ERR_INPUT,
        "the built-in text has no pairs of answers; name rows with prompt, chosen and rejected "
        "with --data");
    HY_FAIL_IF(o->pairs && o->counts_all, HY_ERR_INPUT,
               "loss_on is all, but the loss of a pair is that of its answers; expected answers");
    HY_TRY(check_prompts(o));
    HY_TRY(open_encoding(d, o));
    HY_TRY(is_builtin(o->path) ? open_grammar(d, o, use) : open_path(d, o->path, use, &d->main));
    bool is_bytes = d->main.parts[0].is_bytes;
    if (is_given(o->val_path) && !is_same) {
        HY_TRY(open_path(d, o->val_path, HY_PART_HOLDS_OUT, &d->held_out));
        HY_FAIL_IF(is_bytes != d->held_out.parts[0].is_bytes, HY_ERR_INPUT,
                   "the training data is %s, but the held-out data %s is %s",
                   is_bytes ? "text" : "token shards", o->val_path,
                   is_bytes ? "token shards" : "text");
    }
    d->splits[HY_TRAIN] = &d->main;
    d->splits[HY_VAL] = d->held_out.count ? &d->held_out : &d->main;
    return HY_OK;
}

/* ---- showing rows ---------------------------------------------------------------------------- */

static hy_status show_path(const hy_dataset *d, const char *path, uint64_t most, hy_show_row show,
                           void *user) {
    hy_file_list list;
    hy_file_kind kind;
    HY_TRY(hy_file_list_find(path, d->encoding.options->format, &list));
    hy_status status = hy_file_list_kind(path, &list, &kind);
    if (status == HY_OK && kind != HY_DATA_ROWS)
        status =
            hy_fail(HY_ERR_INPUT, "%s has no rows to show: it is %s, and every token of it counts",
                    path, kind == HY_DATA_SHARDS ? "a file of tokens" : "text");
    if (status == HY_OK && !d->tokenizer && d->encoding.options->no_bytes)
        status = hy_fail(HY_ERR_INPUT, "%s", d->encoding.options->no_bytes);
    if (status == HY_OK) status = hy_examples_show(&list, &d->encoding, most, show, user);
    hy_file_list_free(&list);
    return status;
}

hy_status hy_dataset_show_rows(const hy_dataset_options *o, uint64_t most, hy_show_row show,
                               void *user) {
    hy_dataset d = {0};
    hy_mixture mixture = {0};
    HY_FAIL_IF(is_builtin(o->path), HY_ERR_INPUT,
               "the built-in text has no rows to show; name a file of rows with --data");
    hy_status status = open_encoding(&d, o);
    if (status == HY_OK) status = hy_mixture_parse(o->path, &mixture);
    for (size_t i = 0; status == HY_OK && i < mixture.count; i++)
        status = show_path(&d, mixture.parts[i].path, most, show, user);
    hy_mixture_free(&mixture);
    hy_chat_template_close(&d.encoding.chat);
    hy_tokenizer_close(d.tokenizer);
    return status;
}

/* ---- describing ------------------------------------------------------------------------------ */

/* Examples: "4.0 MB", "120.5 M tokens", "95 tokens". */
static void format_size(double count, bool is_bytes, char *out, size_t size) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T"};
    int i = 0;
    for (; count >= 999.5 && i < 4; i++) count /= 1000;
    const char *between = is_bytes || i == 0 ? "" : " ";
    snprintf(out, size, "%.*f %s%s%s", i > 0, count, prefixes[i], between,
             is_bytes ? "B" : "tokens");
}

/* Says why rows were dropped or cut: "2 of 90 rows dropped (2: ...), 3 cut". */
static void add_losses(hy_dataset_facts *facts, const hy_examples *x) {
    uint64_t dropped = x->bad_rows + x->dropped;
    size_t used = strlen(facts->row_losses), room = sizeof facts->row_losses - used;
    hy_text why = {0};
    if (dropped == 0 && x->cut == 0) return;
    if (dropped > 0) hy_text_add(&why, " (");
    hy_row_losses_describe(&x->losses, &why);
    if (dropped > 0) hy_text_add(&why, ")");
    snprintf(facts->row_losses + used, room, "%s%llu of %llu rows dropped%.400s, %llu cut",
             used ? "; " : "", (unsigned long long)dropped, (unsigned long long)x->rows,
             hy_text_string(&why), (unsigned long long)x->cut);
    hy_text_free(&why);
}

/* Adds what the tokenizer could not spell. */
static void add_unknown(hy_dataset *d) {
    hy_dataset_facts *facts = &d->facts;
    size_t used = strlen(facts->row_losses);
    hy_text text = {0};
    hy_unknown_text_describe(&facts->unknown, d->tokenizer, &text);
    snprintf(facts->row_losses + used, sizeof facts->row_losses - used, "%s%s",
             used && text.size ? "; " : "", hy_text_string(&text));
    hy_text_free(&text);
}

/* Adds up the rows and unknown tokens of a list of parts. */
static void count_rows(hy_dataset_facts *facts, const part_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        const hy_part *part = &list->parts[i];
        hy_unknown_text_add(&facts->unknown, &part->source.unknown);
        for (size_t k = 0; k < part->source.piece_count; k++) {
            facts->disk_bytes += part->source.pieces[k].spool.size;
        }
        if (!part->examples) continue;
        hy_unknown_text_add(&facts->unknown, &part->examples->unknown);
        facts->rows += part->examples->rows;
        facts->scored += part->examples->scored.count;
        facts->bad_rows += part->examples->bad_rows;
        facts->cut_rows += part->examples->cut;
        facts->dropped_rows += part->examples->bad_rows + part->examples->dropped;
        if (!facts->row_format[0]) {
            hy_examples_describe(part->examples, facts->row_format, sizeof facts->row_format);
        }
        hy_prompt_format_join(&facts->prompt, part->examples->prompt);
        add_losses(facts, part->examples);
        uint64_t disk = part->examples->tokens.size + part->examples->ends.size +
                        part->examples->texts.size + part->examples->text_ends.size;
        for (int s = 0; s < 2; s++) disk += part->packs[s].members.size + part->packs[s].ends.size;
        facts->disk_bytes += part->stream ? (1 + HY_STREAM_CACHED) * disk : disk;
    }
}

/* The pairs of a list of parts, up to but not including the part `end` (NULL: all). */
static uint64_t count_pairs(const part_list *list, const hy_part *end) {
    uint64_t count = 0;
    for (const hy_part *part = list->parts; part < list->parts + list->count && part != end; part++)
        count += part->examples->count / hy_packing_unit(HY_PAIRS);
    return count;
}

static void count_all(hy_dataset *d) {
    hy_dataset_facts *facts = &d->facts;
    facts->scored = 0;
    facts->rows = facts->bad_rows = facts->cut_rows = facts->dropped_rows = facts->disk_bytes = 0;
    facts->row_losses[0] = facts->row_format[0] = 0;
    facts->unknown = (hy_unknown_text){0};
    count_rows(facts, &d->main);
    count_rows(facts, &d->held_out);
    add_unknown(d);
}

static void describe(hy_dataset *d, const hy_dataset_options *o) {
    hy_dataset_facts *facts = &d->facts;
    facts->seq = o->seq;
    facts->is_bytes = d->main.parts[0].is_bytes;
    for (int s = 0; s < 2; s++) {
        const part_list *list = d->splits[s];
        for (const hy_part *part = list->parts; part < list->parts + list->count; part++) {
            facts->tokens[s] += part->tokens[s];
            facts->sequences[s] += part->sequences[s];
            facts->targets[s] += part->targets[s];
        }
    }
    bool is_known = true;
    for (const hy_part *part = d->main.parts; part < d->main.parts + d->main.count; part++) {
        if (part->stream) facts->stream_window = (uint64_t)o->stream_window;
        facts->epoch_sequences += part->epoch;
        is_known = is_known && part->epoch > 0;
    }
    if (!is_known) facts->epoch_sequences = 0;
    count_all(d);
    facts->has_doc_starts = facts->rows > 0 && (o->packs || o->pairs);
    if (o->pairs && !facts->stream_window)
        facts->pair_count = count_pairs(&d->main, NULL) + count_pairs(&d->held_out, NULL);
    bool is_divided = !is_given(o->val_path);
    uint64_t all = facts->tokens[HY_TRAIN] + (is_divided ? facts->tokens[HY_VAL] : 0);
    char count[32], skipped[64] = "", rows[96] = "", name[160];
    snprintf(name, sizeof name, "%s", d->main.parts[0].name);
    if (d->main.count > 1) snprintf(name, sizeof name, "%zu paths", d->main.count);
    format_size((double)all, facts->is_bytes, count, sizeof count);
    uint64_t sequences = 0, places = 0;
    for (size_t i = 0; i < d->main.count; i++) {
        for (int s = 0; s < (is_divided ? 2 : 1); s++) {
            places += d->main.parts[i].places[s];
            sequences += d->main.parts[i].sequences[s];
        }
    }
    if (facts->rows) { /* example: "; packed into 912 sequences, 97.1 % full" */
        snprintf(rows, sizeof rows, "; %s %llu sequences, %.1f %% full",
                 o->packs ? "packed into" : "in", (unsigned long long)sequences,
                 100.0 * (double)places / (double)(sequences * (uint64_t)facts->seq));
    }
    if (o->prompts) snprintf(rows, sizeof rows, "; %llu prompts", (unsigned long long)sequences);
    if (facts->stream_window) {
        char about[64] = "";
        if (facts->epoch_sequences > 0)
            snprintf(about, sizeof about, ", about %.0f sequences in an epoch",
                     facts->epoch_sequences);
        snprintf(count, sizeof count, "streamed");
        snprintf(rows, sizeof rows, " in windows of %s%s",
                 hy_bytes_as_text(facts->stream_window).text, about);
    }
    if (d->main.parts[0].source.skipped) {
        snprintf(skipped, sizeof skipped, " (%zu other files skipped)",
                 d->main.parts[0].source.skipped);
    }
    snprintf(facts->description, sizeof facts->description, "%s, %s%s%s", name, count, skipped,
             rows);
}

/* Rows for evaluation are all of the data, or none of it. */
static hy_status check_scored(const hy_dataset *d, const hy_dataset_options *o) {
    const part_list *list = d->splits[HY_VAL];
    for (const hy_part *part = list->parts; part < list->parts + list->count; part++) {
        const hy_examples *x = part->examples;
        bool is_scored = x && x->scored.count == x->count;
        HY_FAIL_IF(
            d->facts.scored > 0 && !is_scored, HY_ERR_INPUT,
            "%s mixes rows for evaluation (prompt, choices and answer, or prompt and answer) "
            "with other data, such as %s; evaluate them one after the other",
            o->val_path, part->name);
    }
    return HY_OK;
}

hy_status hy_dataset_open(const hy_dataset_options *given, hy_dataset **out) {
    hy_dataset_options with_window = *given, *options = &with_window;
    *out = NULL;
    if (options->stream_window <= 0) options->stream_window = STREAM_WINDOW;
    if (options->prompts) options->packs = false;
    if (options->prompts && options->streams == HY_STREAM_AUTO) options->streams = HY_STREAM_OFF;
    HY_FAIL_IF(options->seq < 1, HY_ERR_INPUT, "the sequence length is %d; expected 1 or more",
               options->seq);
    HY_FAIL_IF(options->vocab < 1, HY_ERR_INPUT, "the vocabulary size is %d; expected 1 or more",
               options->vocab);
    bool is_fraction =
        options->val_fraction >= 0 && options->val_fraction <= 0.5; /* also false for NaN */
    HY_FAIL_IF(!is_given(options->val_path) && !is_fraction, HY_ERR_INPUT,
               "the held-out fraction is %g; expected 0 to 0.5", options->val_fraction);
    hy_dataset *d = calloc(1, sizeof *d);
    if (!d) return hy_fail(HY_ERR_MEMORY, "not enough memory for a dataset");
    d->seed = options->seed;
    d->shuffle = options->shuffle;
    hy_status status = open_all(d, options);
    if (status == HY_OK) describe(d, options);
    if (status == HY_OK) status = check_scored(d, options);
    if (status == HY_OK) {
        *out = d;
    } else {
        hy_dataset_close(d);
    }
    return status;
}

static void close_parts(part_list *list) {
    for (size_t i = 0; i < list->count; i++) hy_part_close(&list->parts[i]);
    free(list->parts);
}

void hy_dataset_close(hy_dataset *d) {
    if (!d) return;
    close_parts(&d->main);
    close_parts(&d->held_out);
    hy_chat_template_close(&d->encoding.chat);
    hy_tokenizer_close(d->tokenizer);
    free(d);
}

const hy_dataset_facts *hy_dataset_describe(const hy_dataset *d) { return &d->facts; }

void hy_dataset_refresh(hy_dataset *d, void (*warn)(void *user, const char *text), void *user) {
    if (d->facts.stream_window == 0) return;
    hy_text warnings = {0};
    for (hy_part *part = d->main.parts; part < d->main.parts + d->main.count; part++) {
        if (part->stream) hy_row_stream_count(part->stream, part->examples, &warnings);
    }
    count_all(d);
    for (char *line = warnings.data, *end; line && *line; line = end + 1) {
        end = strchr(line, '\n');
        *end = 0;
        warn(user, line);
    }
    hy_text_free(&warnings);
}

double hy_dataset_epochs(const hy_dataset *d, uint64_t sequences) {
    const hy_dataset_facts *facts = &d->facts;
    hy_row_stream *only = d->main.count == 1 ? d->main.parts[0].stream : NULL;
    if (only) return hy_row_stream_epochs(only, sequences, facts->epoch_sequences);
    return facts->epoch_sequences > 0 ? (double)sequences / facts->epoch_sequences : NAN;
}

void hy_dataset_stop(hy_dataset *d) {
    for (size_t i = 0; d && i < d->main.count; i++) {
        if (d->main.parts[i].stream) hy_row_stream_stop(d->main.parts[i].stream);
    }
}

bool hy_dataset_awaits_input(const hy_dataset *d) {
    for (size_t i = 0; i < d->main.count; i++) {
        hy_row_stream *stream = d->main.parts[i].stream;
        if (stream && hy_row_stream_awaits_input(stream)) return true;
    }
    return false;
}

hy_status hy_dataset_keep_input(const hy_dataset *d, const char *folder) {
    for (size_t i = 0; i < d->main.count; i++) {
        if (d->main.parts[i].stream) HY_TRY(hy_row_stream_keep(d->main.parts[i].stream, folder));
    }
    return HY_OK;
}

void hy_dataset_write_streams(const hy_dataset *d, hy_json_writer *w) {
    if (d->facts.stream_window == 0) return;
    hy_json_open_array(w, "streams");
    for (size_t i = 0; i < d->main.count; i++) {
        hy_row_stream *stream = d->main.parts[i].stream;
        if (stream) hy_row_stream_write(stream, w);
    }
    hy_json_close_array(w);
}

hy_status hy_dataset_read_streams(const hy_dataset *d, const hy_json_node *data) {
    const hy_json_node *at = hy_json_first(hy_json_get(data, "streams"));
    for (size_t i = 0; i < d->main.count; i++) {
        hy_row_stream *stream = d->main.parts[i].stream;
        if (stream) HY_TRY(hy_row_stream_read(stream, at));
        if (stream && at) at = hy_json_next(at);
    }
    return HY_OK;
}

const hy_tokenizer *hy_dataset_tokenizer(const hy_dataset *d) { return d->tokenizer; }

/* ---- reading --------------------------------------------------------------------------------- */

/* The sequence (of `count`) that is number p of the endless training order. */
static uint64_t shuffled(const hy_dataset *d, uint64_t p, uint64_t count, uint64_t salt) {
    if (!d->shuffle) return p % count;
    uint64_t epoch_seed = hy_rng_u64(d->seed + salt, HY_RNG_SHUFFLE, p / count);
    return hy_rng_permute(epoch_seed, HY_RNG_SHUFFLE, count, p % count);
}

/* The part with sequence p of a split, and the sequence's number within the part. */
static const hy_part *find_part(const hy_dataset *d, hy_split split, uint64_t p, uint64_t *at) {
    assert(split == HY_TRAIN || p < d->facts.sequences[HY_VAL]);
    const hy_part *part = d->splits[split]->parts;
    *at = p;
    if (split == HY_TRAIN && d->has_weights) {
        size_t which;
        hy_cycle_find(&d->cycle, p, &which, at);
        part += which; /* each part has its own order: its number is part of the seed */
        if (!part->stream) *at = shuffled(d, *at, part->sequences[HY_TRAIN], (uint64_t)which << 32);
    } else if (split == HY_VAL || !part->stream) {
        if (split == HY_TRAIN) *at = shuffled(d, p, d->facts.sequences[HY_TRAIN], 0);
        for (; *at >= part->sequences[split]; part++) *at -= part->sequences[split];
    }
    return part;
}

int64_t hy_dataset_fill(const hy_dataset *d, hy_split split, uint64_t p, int32_t *tokens,
                        int32_t *targets, int32_t *doc_starts) {
    uint64_t at;
    const hy_part *part = find_part(d, split, p, &at);
    int64_t counted = hy_part_fill(part, split, at, d->facts.seq, tokens, targets, doc_starts);
    /* all other members are read-only */
    if (counted < 0) atomic_store((atomic_bool *)&d->has_failed, true);
    return counted;
}

hy_status hy_dataset_pairs_in(const hy_dataset *d, hy_split split, uint64_t p, uint64_t *numbers,
                              int32_t *count) {
    *count = 0;
    HY_FAIL_IF(
        d->facts.stream_window > 0, HY_ERR_INPUT,
        "the pairs of streamed rows have no numbers; --stream-rows off reads all rows before "
        "the run begins");
    HY_FAIL_IF(d->facts.pair_count == 0, HY_ERR_INPUT, "%s: the rows are not pairs of answers",
               d->facts.description);
    uint64_t at;
    const hy_part *part = find_part(d, split, p, &at);
    const part_list *list = d->splits[split];
    uint64_t before = count_pairs(list, part);
    if (list == &d->held_out) before += count_pairs(&d->main, NULL);
    const uint64_t *ends = part->packs[split].ends.data, *members = part->packs[split].members.data;
    const uint64_t each = hy_packing_unit(HY_PAIRS);
    for (uint64_t m = at ? ends[at - 1] : 0; m < ends[at]; m += each)
        numbers[(*count)++] = before + members[m] / each;
    return HY_OK;
}

hy_status hy_dataset_prompt(const hy_dataset *d, hy_split split, uint64_t p, hy_prompt_row *out) {
    uint64_t at;
    const hy_part *part = find_part(d, split, p, &at);
    *out = (hy_prompt_row){0};
    HY_FAIL_IF(!part->examples || !part->examples->has_prompts, HY_ERR_INPUT,
               "%s: the rows were not read as prompts", d->facts.description);
    const uint64_t *members = part->packs[split].members.data;
    hy_examples_prompt(part->examples, members[at], out);
    return HY_OK;
}

void hy_dataset_set_reference(hy_dataset *d, const double (*sums)[2]) { d->reference = sums; }

const double (*hy_dataset_reference(const hy_dataset *d))[2] { return d->reference; }

const hy_scored *hy_dataset_scored(const hy_dataset *d, uint64_t i) {
    const hy_part *part = d->splits[HY_VAL]->parts;
    for (; i >= part->examples->scored.count; part++) i -= part->examples->scored.count;
    return &part->examples->scored.data[i];
}

uint64_t hy_dataset_example_in(const hy_dataset *d, uint64_t p, uint64_t k) {
    const hy_part *part = d->splits[HY_VAL]->parts;
    uint64_t before = 0;
    for (; p >= part->sequences[HY_VAL]; part++) {
        p -= part->sequences[HY_VAL];
        before += part->examples->count;
    }
    const uint64_t *ends = part->packs[HY_VAL].ends.data,
                   *members = part->packs[HY_VAL].members.data;
    return before + members[(p ? ends[p - 1] : 0) + k];
}

/* Appends the tokens of an example from `at` on whose sign is as given. */
static hy_status take_run(const int32_t *tokens, uint32_t count, uint32_t *at, bool counts,
                          hy_ids *out) {
    for (; *at < count && (tokens[*at] < 0) == counts; ++*at) {
        int32_t id = tokens[*at] & ~HY_COUNTS;
        HY_TRY(hy_ids_append(out, &id, 1));
    }
    return HY_OK;
}

/* Appends the tokens of a prompt, and those of its expected answer with the token that ends it; nothing
 * if none is expected. */
static hy_status take_prompt(const hy_dataset *d, const hy_part *part, uint64_t example,
                             hy_ids *question, hy_ids *answer) {
    hy_prompt_row row;
    hy_chat_template chat = d->encoding.chat;
    hy_examples_prompt(part->examples, example, &row);
    if (!row.expected) return HY_OK;
    chat.kind = d->facts.prompt.chat;
    int32_t end = hy_chat_template_end(&chat);
    HY_TRY(hy_ids_append(question, row.tokens, (size_t)row.count));
    HY_TRY(hy_encode_text(d->tokenizer, row.expected, row.expected_size, 0, answer));
    return end >= 0 ? hy_ids_append(answer, &end, 1) : HY_OK;
}

hy_status hy_dataset_held_out_row(const hy_dataset *d, hy_ids *question, hy_ids *answer) {
    const part_list *list = d->splits[HY_VAL];
    for (const hy_part *part = list->parts; part < list->parts + list->count; part++) {
        const hy_spool *members = &part->packs[HY_VAL].members;
        const uint64_t each = hy_packing_unit(part->packs[HY_VAL].pairs);
        for (size_t i = 0; part->examples && i < members->size / sizeof(uint64_t); i += each) {
            uint32_t count, at = 0;
            const uint64_t example = ((const uint64_t *)members->data)[i];
            const int32_t *tokens = hy_examples_get(part->examples, example, &count);
            if (part->examples->has_prompts) {
                HY_TRY(take_prompt(d, part, example, question, answer));
                if (answer->count > 0) return HY_OK;
                continue;
            }
            /* A text counts from its second token on. */
            if (count > (uint32_t)d->facts.seq || tokens[1] < 0) continue;
            HY_TRY(take_run(tokens, count, &at, false, question));
            return take_run(tokens, count, &at, true, answer);
        }
    }
    return HY_OK;
}

hy_status hy_dataset_encode_question(const hy_dataset *d, const char *question, hy_ids *ids,
                                     int32_t *end) {
    hy_chat_template chat = d->encoding.chat;
    hy_turn turn = {.role = HY_ROLE_USER, .text = question, .size = strlen(question)};
    hy_conversation one = {.turns = &turn, .count = 1};
    hy_rendered rendered = {0};
    hy_flags answers = {0};
    chat.kind = d->facts.prompt.chat;
    if (chat.kind == HY_CHAT_AUTO) return HY_OK;
    *end = hy_chat_template_end(&chat);
    hy_status status = hy_chat_render(&chat, &one, true, &rendered);
    if (status == HY_OK) status = hy_rendered_encode(&rendered, d->tokenizer, ids, &answers);
    hy_rendered_free(&rendered);
    hy_flags_free(&answers);
    return status;
}

bool hy_dataset_has_failed(const hy_dataset *d) { return atomic_load(&d->has_failed); }

hy_status hy_dataset_bytes(const hy_dataset *d, hy_split split, uint64_t most, uint8_t **out,
                           uint64_t *size) {
    const part_list *list = d->splits[split];
    const hy_token_range *range = &list->parts[0].ranges[split];
    *size = range->count;
    *out = NULL;
    if (list->count != 1 || !range->source || range->count > most || range->count == 0)
        return HY_OK;
    return hy_source_bytes(range->source, range->first, range->count, out);
}
