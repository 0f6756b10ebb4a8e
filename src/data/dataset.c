/* dataset.c: windows of tokens, cut from a source and shuffled by number.
 *
 * A split is a range of a source. Its window w holds tokens w T .. w T + T, the last one only as a
 * target, so windows of a split share no target and splits share no token. The grammar's held-out
 * text is drawn with a seed of its own; other data gives its last part, or a second path. Nothing
 * changes after opening. */
#include "data/dataset.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "data/grammar.h"
#include "data/source.h"

typedef unsigned long long ull; /* what %llu prints */

typedef struct token_range {
    const hy_source *source;
    uint64_t first, count; /* its tokens in the source */
} token_range;

struct hy_dataset {
    hy_source main, held_out; /* held_out is empty when the data itself is divided */
    token_range splits[2];
    int32_t seq;
    uint64_t seed;
    bool shuffle;
    hy_dataset_facts facts;
};

static bool is_builtin(const char *path) {
    return !path || path[0] == '\0' || strcmp(path, "builtin") == 0;
}

static bool has_val_path(const hy_dataset_options *o) { return o->val_path && o->val_path[0]; }

static hy_status check_options(const hy_dataset_options *o) {
    if (o->seq < 1)
        return hy_fail(HY_ERR_INPUT, "sequence length is %d; expected 1 or more", o->seq);
    if (o->vocab < 1)
        return hy_fail(HY_ERR_INPUT, "vocabulary of %d; expected 1 or more", o->vocab);
    bool is_fraction = o->val_fraction > 0 && o->val_fraction <= 0.5; /* false for NaN too */
    if (!has_val_path(o) && !is_fraction) {
        return hy_fail(HY_ERR_INPUT, "held-out fraction is %g; expected above 0 and at most 0.5",
                       o->val_fraction);
    }
    return HY_OK;
}

/* ---- dividing -------------------------------------------------------------------------------- */

/* Tokens that the smallest split needs: one window and the target after it. */
static uint64_t window_tokens(const hy_dataset_options *o) { return (uint64_t)o->seq + 1; }

/* How many of `tokens` are held out: the fraction, but at least a window, and one left to train. */
static hy_status choose_held_out(const hy_dataset_options *o, const char *name, uint64_t tokens,
                                 uint64_t *held_out) {
    uint64_t window = window_tokens(o);
    if (tokens < 2 * window) {
        return hy_fail(
            HY_ERR_INPUT,
            "%s holds %llu tokens; a sequence needs %llu, and training and held-out data "
            "one each: %llu in all. A shorter sequence or more data would do",
            name, (ull)tokens, (ull)window, (ull)(2 * window));
    }
    uint64_t count = (uint64_t)llround((double)tokens * o->val_fraction);
    if (count < window) count = window;
    if (count > tokens - window) count = tokens - window;
    *held_out = count;
    return HY_OK;
}

static hy_status check_window(const hy_dataset_options *o, const char *name, uint64_t tokens) {
    uint64_t window = window_tokens(o);
    if (tokens >= window) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "%s holds %llu tokens; a sequence needs %llu. A shorter sequence or more data "
                   "would do",
                   name, (ull)tokens, (ull)window);
}

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status generate(hy_source *source, uint64_t seed, float *nats, uint64_t size) {
    uint8_t *text = malloc(size);
    if (!text) return hy_fail(HY_ERR_MEMORY, "no memory for %llu bytes of grammar text", (ull)size);
    hy_grammar_generate(seed, text, nats, size);
    *source = (hy_source){.is_bytes = true, .file_count = 1};
    return hy_source_add_block(source, text, size);
}

/* The held-out text, and what the true source itself loses on the targets in it. */
static hy_status generate_held_out(hy_dataset *d, uint64_t size) {
    assert(size > (uint64_t)d->seq); /* choose_held_out leaves a window */
    float *nats = calloc(size, sizeof *nats);
    if (!nats)
        return hy_fail(HY_ERR_MEMORY, "no memory for %llu bytes of held-out text", (ull)size);
    /* The last index of the stream: the text itself counts from the first. */
    uint64_t seed = hy_rng_u64(d->seed, HY_RNG_GRAMMAR, UINT64_MAX);
    hy_status status = generate(&d->held_out, seed, nats, size);
    uint64_t targets = (size - 1) / (uint64_t)d->seq * (uint64_t)d->seq;
    double sum = 0;
    for (uint64_t i = 1; status == HY_OK && i <= targets; i++) sum += (double)nats[i];
    free(nats);
    d->facts.knows_entropy = true;
    d->facts.entropy = hy_grammar_entropy();
    d->facts.val_optimum = sum / (double)targets;
    return status;
}

static hy_status open_grammar(hy_dataset *d, const hy_dataset_options *o) {
    const uint64_t most = (uint64_t)1 << 40;
    if (o->builtin_bytes < 1 || (uint64_t)o->builtin_bytes > most) {
        return hy_fail(HY_ERR_INPUT, "built-in text of %lld bytes; expected 1 to %llu",
                       (long long)o->builtin_bytes, (ull)most);
    }
    if (o->vocab < 256) {
        return hy_fail(
            HY_ERR_INPUT,
            "the built-in text is bytes 0 to 255, but the model's vocabulary has only %d "
            "ids",
            o->vocab);
    }
    uint64_t size = (uint64_t)o->builtin_bytes, held_out = 0;
    if (!has_val_path(o)) {
        HY_TRY(choose_held_out(o, "the built-in text", size, &held_out));
        HY_TRY(generate_held_out(d, held_out));
    }
    return generate(&d->main, o->seed, NULL, size - held_out);
}

static hy_status open_held_out(hy_dataset *d, const hy_dataset_options *o) {
    HY_TRY(hy_source_open(o->val_path, o->vocab, &d->held_out));
    if (d->main.is_bytes != d->held_out.is_bytes) {
        return hy_fail(HY_ERR_INPUT, "training data is %s, but held-out data %s is %s",
                       d->main.is_bytes ? "text" : "token shards", o->val_path,
                       d->held_out.is_bytes ? "text" : "token shards");
    }
    return check_window(o, o->val_path, d->held_out.tokens);
}

static hy_status open_sources(hy_dataset *d, const hy_dataset_options *o) {
    if (is_builtin(o->path))
        HY_TRY(open_grammar(d, o));
    else
        HY_TRY(hy_source_open(o->path, o->vocab, &d->main));
    if (has_val_path(o)) HY_TRY(open_held_out(d, o));

    d->splits[HY_TRAIN] = (token_range){&d->main, 0, d->main.tokens};
    d->splits[HY_VAL] = (token_range){&d->held_out, 0, d->held_out.tokens};
    const char *name = is_builtin(o->path) ? "the built-in text" : o->path;
    if (d->held_out.tokens > 0) return check_window(o, name, d->main.tokens);

    uint64_t held_out = 0;
    HY_TRY(choose_held_out(o, name, d->main.tokens, &held_out));
    d->splits[HY_TRAIN].count -= held_out;
    d->splits[HY_VAL] = (token_range){&d->main, d->splits[HY_TRAIN].count, held_out};
    return HY_OK;
}

/* ---- describing ------------------------------------------------------------------------------ */

/* "4.0 MB", "120.5 M tokens", "95 tokens". */
static void format_size(double count, bool is_bytes, char *out, size_t size) {
    static const char *const prefixes[] = {"", "k", "M", "G", "T"};
    int i = 0;
    for (; count >= 999.5 && i < 4; i++) count /= 1000;
    const char *between = is_bytes || i == 0 ? "" : " ";
    snprintf(out, size, "%.*f %s%s%s", i > 0, count, prefixes[i], between,
             is_bytes ? "B" : "tokens");
}

/* What the main source is, without its size: "built-in grammar", "notes.txt", "3 shards". */
static void name_source(const hy_source *source, const char *path, char *out, size_t size) {
    if (is_builtin(path)) {
        snprintf(out, size, "built-in grammar");
    } else if (source->file_count == 1) {
        const char *slash = strrchr(path, '/');
        snprintf(out, size, "%.100s", slash && slash[1] ? slash + 1 : path);
    } else {
        snprintf(out, size, "%zu %s", source->file_count,
                 source->is_bytes ? "text files" : "shards");
    }
}

static void describe(hy_dataset *d, const hy_dataset_options *o) {
    hy_dataset_facts *facts = &d->facts;
    facts->seq = d->seq;
    facts->is_bytes = d->main.is_bytes;
    for (int s = 0; s < 2; s++) {
        facts->tokens[s] = d->splits[s].count;
        facts->sequences[s] = (d->splits[s].count - 1) / (uint64_t)d->seq;
    }
    char name[128], count[32], skipped[64] = "";
    name_source(&d->main, o->path, name, sizeof name);
    uint64_t all = is_builtin(o->path) ? d->main.tokens + d->held_out.tokens : d->main.tokens;
    format_size((double)all, facts->is_bytes, count, sizeof count);
    if (d->main.skipped) {
        snprintf(skipped, sizeof skipped, " (%zu other files skipped)", d->main.skipped);
    }
    snprintf(facts->description, sizeof facts->description, "%s, %s%s", name, count, skipped);
}

hy_status hy_dataset_open(const hy_dataset_options *options, hy_dataset **out) {
    *out = NULL;
    HY_TRY(check_options(options));
    hy_dataset *d = calloc(1, sizeof *d);
    if (!d) return hy_fail(HY_ERR_MEMORY, "no memory for a dataset");
    d->seq = options->seq;
    d->seed = options->seed;
    d->shuffle = options->shuffle;
    hy_status status = open_sources(d, options);
    if (status != HY_OK) {
        hy_dataset_close(d);
        return status;
    }
    describe(d, options);
    *out = d;
    return HY_OK;
}

void hy_dataset_close(hy_dataset *d) {
    if (!d) return;
    hy_source_close(&d->main);
    hy_source_close(&d->held_out);
    free(d);
}

const hy_dataset_facts *hy_dataset_describe(const hy_dataset *d) { return &d->facts; }

/* ---- reading --------------------------------------------------------------------------------- */

/* Which window is sequence number p of the endless row. */
static uint64_t window_of(const hy_dataset *d, uint64_t p) {
    uint64_t windows = d->facts.sequences[HY_TRAIN];
    if (!d->shuffle) return p % windows;
    uint64_t epoch_seed = hy_rng_u64(d->seed, HY_RNG_SHUFFLE, p / windows);
    return hy_rng_permute(epoch_seed, HY_RNG_SHUFFLE, windows, p % windows);
}

int64_t hy_dataset_fill(const hy_dataset *d, hy_split split, uint64_t p, int32_t *tokens,
                        int32_t *targets) {
    assert(split == HY_TRAIN || p < d->facts.sequences[HY_VAL]);
    const token_range *s = &d->splits[split];
    uint64_t seq = (uint64_t)d->seq;
    uint64_t first = s->first + seq * (split == HY_TRAIN ? window_of(d, p) : p);
    hy_source_read(s->source, first, seq, tokens);
    memcpy(targets, tokens + 1, (seq - 1) * sizeof *targets);
    hy_source_read(s->source, first + seq, 1, targets + seq - 1);
    return d->seq;
}

const uint8_t *hy_dataset_bytes(const hy_dataset *d, hy_split split, uint64_t *size) {
    const token_range *s = &d->splits[split];
    *size = s->count;
    return hy_source_bytes(s->source, s->first, s->count);
}
