/* row_stream.c: windows of rows, their order, and the thread that encodes them. See row_stream.h.
 *
 * The lock protects the list of windows, the cache, the request and the counts. Only the reader
 * thread (and, before it starts, the thread that opens the stream) uses the open file and its
 * buffer. A cached window in use is never replaced. */
#include "data/row_stream.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/thread.h"
#include "data/growing.h"

#define AHEAD 2 /* windows that are encoded before they are needed */
#define HEAD_BYTES ((size_t)64 << 10)
#define MOST_BEYOND (4 * HY_ROW_MOST) /* bytes of a row, or of blank space, beyond a window */
#define WARNINGS_SHOWN 5
#define MOST_COUNT ((int64_t)1 << 50) /* of anything that a checkpoint counts */
#define NO_WINDOW UINT64_MAX
#define WINDOW_SALT UINT64_C(0x9E3779B97F4A7C15)

/* Where a window begins. */
typedef struct position {
    uint64_t file, offset, line;
} position;

typedef struct window {
    position begin;
    uint64_t rows, bad_rows, cut, dropped;
    uint64_t sequences;
    uint64_t first; /* sequences of all windows before it */
    uint64_t hash;  /* of its text */
    hy_unknown_text unknown;
} window;

typedef struct cached {
    uint64_t number; /* of the window; NO_WINDOW: none */
    hy_examples examples;
    hy_packing packing;
    int32_t users; /* calls that read it, or the reader that fills it */
    uint64_t used; /* when it was last used */
} cached;

/* A window in the endless order. */
typedef struct turn {
    uint64_t epoch, place, number;
    uint64_t index; /* the sequence in the window */
} turn;

/* The file that is being read. */
typedef struct open_file {
    uint64_t number; /* NO_WINDOW: none is open */
    hy_growing *text;
    hy_row_file rows;
    size_t first;        /* offset of its first row, */
    uint64_t first_line; /* and the line of that row */
    char *buffer;
    size_t room;
} open_file;

struct hy_row_stream {
    hy_file_list list;
    hy_dataset_options options; /* the strings are not valid after opening */
    hy_encoding encoding;
    uint64_t size, first_size; /* bytes of text, estimated (0: not known); of the first window */
    open_file open;
    const hy_packing *first;

    pthread_mutex_t lock;
    pthread_cond_t has_changed;
    pthread_t reader;
    bool has_reader;
    atomic_bool is_stopping;
    window *windows;
    size_t count, capacity;
    position next; /* where the window after the last known one begins */
    turn wanted;   /* the last request */
    cached cache[HY_STREAM_CACHED];
    struct {
        uint64_t window; /* that cannot be encoded; NO_WINDOW: none */
        hy_error error;
    } failed;
    struct {
        hy_examples rows; /* of all known windows; without tokens */
        hy_text warnings;
        int warned;
        bool has_much_unknown; /* and a warning has said so */
        uint64_t uses;
    } counts;
};

static bool is_complete(const hy_row_stream *s) { return s->next.file == s->list.count; }

/* ---- reading text ---------------------------------------------------------------------------- */

static hy_status reserve(open_file *o, size_t size) {
    if (size <= o->room) return HY_OK;
    char *more = realloc(o->buffer, size);
    HY_FAIL_IF(!more, HY_ERR_MEMORY, "not enough memory for %zu bytes of rows", size);
    o->buffer = more;
    o->room = size;
    return HY_OK;
}

static void close_file(open_file *o) {
    hy_row_file_close(&o->rows);
    hy_growing_close(o->text);
    o->text = NULL;
    o->number = NO_WINDOW;
}

/* Adds text at `offset` to the `have` bytes in the buffer, at least `least` in all, and more that
 * is already there. */
static hy_status read_more(hy_row_stream *s, uint64_t offset, size_t least, size_t *have,
                           bool *is_end) {
    open_file *o = &s->open;
    size_t got, more = *have / 2 > HEAD_BYTES ? *have / 2 : HEAD_BYTES;
    HY_TRY(reserve(o, least + more));
    hy_growing_place place = {.offset = offset + *have,
                              .least = least - *have,
                              .size = o->room - *have,
                              .is_stopped = &s->is_stopping};
    HY_TRY(hy_growing_read(o->text, &place, o->buffer + *have, &got, is_end));
    *have += got;
    return HY_OK;
}

/* Whole lines at the beginning of a text that may continue; an array may have no lines. */
static size_t whole_lines(const char *text, size_t size) {
    size_t blank = 0;
    while (blank < size && strchr(" \t\r\n\xEF\xBB\xBF", text[blank])) blank++;
    const char *last = memrchr(text, '\n', size);
    return blank < size && text[blank] == '[' ? size : last ? (size_t)(last - text) : 0;
}

/* Opens a file and finds the kind of its rows in its first bytes: in few bytes if possible, because
 * a pipe may be slow. */
static hy_status open_rows(hy_row_stream *s, uint64_t number) {
    open_file *o = &s->open;
    const hy_input_file *file = &s->list.files[number];
    size_t have = 0;
    bool is_end = false;
    if (o->number == number) return HY_OK;
    close_file(o);
    HY_TRY(hy_growing_open(file, &o->text));
    for (hy_status status = HY_ERR_INPUT; status != HY_OK;) {
        HY_TRY(read_more(s, 0, have + 1, &have, &is_end));
        size_t size = is_end ? have : whole_lines(o->buffer, have);
        hy_row_file_close(&o->rows);
        status = hy_row_file_open(file, &s->encoding, o->buffer, size, &o->rows);
        bool may_help = status == HY_ERR_INPUT && !is_end && have <= HY_ROW_MOST;
        if (status != HY_OK && !may_help) return status;
    }
    o->number = number;
    o->first = (size_t)(o->rows.scan.at - o->buffer);
    o->first_line = o->rows.scan.line;
    return HY_OK;
}

/* A part of a file: rows in the buffer. */
typedef struct piece {
    hy_row_scan scan;
    size_t size;
    uint64_t line; /* after the piece */
    bool is_end;   /* the file has no more rows */
} piece;

/* Where the rows of the buffer begin. */
static hy_row_scan scan_from(const hy_row_stream *s, position at, size_t have) {
    const open_file *o = &s->open;
    hy_row_scan scan = o->rows.scan;
    scan.at = o->buffer;
    scan.end = o->buffer + have;
    scan.line = at.line;
    if (at.offset == 0) {
        scan.at += o->first;
        scan.line = o->first_line;
    }
    return scan;
}

/* Finds the first row with which the piece has `least` bytes; its size ends with a row, so it does
 * not depend on how much text was there. False: more text is needed. */
static bool find_end(piece *p, const char *begin, size_t least, bool is_end) {
    hy_row_scan scan = p->scan;
    hy_row row;
    for (;;) {
        bool has_row = hy_rows_next(&scan, &row);
        if (scan.at == scan.end && !is_end) return false; /* this row may continue */
        p->is_end = !has_row;
        if (p->is_end) break;
        p->size = (size_t)(scan.at - begin);
        p->line = scan.line;
        /* The bracket that ends an array belongs to its last row. */
        bool is_last = scan.is_array && scan.at < scan.end && *scan.at == ']';
        if (p->size >= least && !is_last && !scan.is_over) break;
    }
    if (!p->is_end) p->scan.end = begin + p->size;
    return true;
}

static hy_status read_piece(hy_row_stream *s, position at, size_t least, piece *p) {
    size_t have = 0;
    bool is_end;
    for (size_t wanted = least;; wanted = have + 1) {
        HY_TRY(read_more(s, at.offset, wanted, &have, &is_end));
        *p = (piece){.scan = scan_from(s, at, have)};
        bool is_found = find_end(p, s->open.buffer, least, is_end);
        size_t size = is_found ? p->size : have;
        HY_FAIL_IF(size > least + MOST_BEYOND, HY_ERR_INPUT,
                   "%s:%llu: from this line on, a row or blank space has more than %zu MiB",
                   s->list.files[at.file].path, (unsigned long long)at.line, MOST_BEYOND >> 20);
        if (is_found) return HY_OK;
    }
}

/* ---- encoding a window ----------------------------------------------------------------------- */

/* Encodes the window at *at, and moves *at behind it. */
static hy_status encode_text(hy_row_stream *s, position *at, hy_examples *x, uint64_t *size,
                             uint64_t *hash) {
    uint64_t least = (uint64_t)s->options.stream_window;
    hy_hash text;
    hy_hash_init(&text, 0);
    *size = 0;
    while (*size < least && at->file < s->list.count) {
        piece p = {0};
        HY_TRY(open_rows(s, at->file));
        HY_TRY(read_piece(s, *at, (size_t)(least - *size), &p));
        hy_hash_add(&text, s->open.buffer, p.size);
        HY_TRY(hy_examples_add(x, &s->encoding, &s->open.rows, p.scan, p.is_end));
        *size += p.size;
        at->offset += p.size;
        at->line = p.line;
        if (p.is_end) *at = (position){.file = at->file + 1, .line = 1};
    }
    *hash = hy_hash_value(&text);
    return hy_examples_end(x);
}

static hy_status pack(hy_row_stream *s, uint64_t number, cached *c) {
    const hy_dataset_options *o = &s->options;
    hy_packing_options options = {.count = c->examples.count,
                                  .seq = o->seq,
                                  .pairs = o->pairs,
                                  .packs = o->packs,
                                  .shuffles = o->shuffle,
                                  .seed = o->seed + number * WINDOW_SALT};
    if (options.count == 0) return HY_OK;
    return hy_packing_make(&c->examples, &options, &c->packing);
}

static void empty(cached *c) {
    hy_packing_close(&c->packing);
    hy_examples_close(&c->examples);
    c->number = NO_WINDOW;
}

static void add_counts(hy_examples *sum, const window *w) {
    sum->rows += w->rows;
    sum->bad_rows += w->bad_rows;
    sum->cut += w->cut;
    sum->dropped += w->dropped;
    hy_unknown_text_add(&sum->unknown, &w->unknown);
}

/* Warns of text that the tokenizer cannot spell: of the first, and when there is much of it. */
static void warn_of_unknown(hy_row_stream *s, const hy_unknown_text *before) {
    const hy_unknown_text *now = &s->counts.rows.unknown;
    bool is_first = before->count == 0 && now->count > 0;
    bool was_much = s->counts.has_much_unknown || hy_unknown_text_is_much(before);
    s->counts.has_much_unknown = was_much || hy_unknown_text_is_much(now);
    if (!is_first && s->counts.has_much_unknown == was_much) return;
    hy_unknown_text_describe(now, s->encoding.tokenizer, &s->counts.warnings);
    hy_text_add(&s->counts.warnings, "\n");
}

/* Adds a window that was encoded for the first time, and checks the rows so far. */
static hy_status add_window(hy_row_stream *s, window w, const hy_examples *x, position next) {
    hy_dataset_options silent = s->options;
    silent.on_warning = NULL;
    HY_TRY(hy_array_reserve(&s->windows, &s->capacity, s->count + 1, sizeof w, "windows of rows"));
    if (s->count > 0) w.first = s->windows[s->count - 1].first + s->windows[s->count - 1].sequences;
    w.rows = x->rows;
    w.bad_rows = x->bad_rows;
    w.cut = x->cut;
    w.dropped = x->dropped;
    w.unknown = x->unknown;
    hy_examples *sum = &s->counts.rows;
    hy_unknown_text before = sum->unknown;
    add_counts(sum, &w);
    if (s->count > 0) warn_of_unknown(s, &before);
    hy_row_losses_join(&sum->losses, &x->losses);
    for (int i = 0; i < 2; i++) hy_row_losses_join(&sum->ignored[i], &x->ignored[i]);
    if (s->count > 0) HY_TRY(hy_examples_check_dropped(sum, &silent));
    s->windows[s->count++] = w;
    s->next = next;
    return HY_OK;
}

/* Called without the lock: encodes window `number`, which begins at `begin`, into the slot. */
static hy_status encode_window(hy_row_stream *s, uint64_t number, position begin, cached *c) {
    window w = {.begin = begin};
    uint64_t size;
    HY_TRY(hy_examples_begin(&c->examples));
    HY_TRY(encode_text(s, &begin, &c->examples, &size, &w.hash));
    HY_TRY(pack(s, number, c));
    w.sequences = c->packing.sequences;
    pthread_mutex_lock(&s->lock);
    hy_status status = HY_OK;
    const window *known = number < s->count ? &s->windows[number] : NULL;
    if (!known && c->examples.rows == 0)
        s->next = begin; /* the last window was the last */
    else if (!known)
        status = add_window(s, w, &c->examples, begin);
    else if (known->hash != w.hash || known->sequences != w.sequences)
        status = hy_fail(HY_ERR_INPUT,
                         "%s:%llu: the rows from here on have changed since the run read them",
                         s->list.files[w.begin.file].path, (unsigned long long)w.begin.line);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- order ----------------------------------------------------------------------------------- */

static uint64_t total(const hy_row_stream *s) {
    const window *last = &s->windows[s->count - 1];
    return last->first + last->sequences;
}

/* The window that is number `place` of an epoch. */
static uint64_t number_at(const hy_row_stream *s, uint64_t epoch, uint64_t place) {
    if (epoch == 0 || !s->options.shuffle) return place;
    uint64_t seed = hy_rng_u64(s->options.seed + WINDOW_SALT, HY_RNG_SHUFFLE, epoch);
    return hy_rng_permute(seed, HY_RNG_SHUFFLE, s->count, place);
}

/* Finds sequence n. Until the end is reached, a sequence beyond the known windows is in the next
 * one. */
static turn find_turn(const hy_row_stream *s, uint64_t n) {
    bool is_beyond = n >= total(s);
    if (is_beyond && !is_complete(s)) return (turn){.place = s->count, .number = s->count};
    turn t = {.epoch = n / total(s)};
    uint64_t left = n % total(s);
    for (;; t.place++) {
        t.number = number_at(s, t.epoch, t.place);
        if (left < s->windows[t.number].sequences) break;
        left -= s->windows[t.number].sequences;
    }
    t.index = left;
    if (!s->options.shuffle) return t;
    uint64_t seed = hy_rng_u64(s->options.seed + t.number * WINDOW_SALT, HY_RNG_SHUFFLE, t.epoch);
    t.index = hy_rng_permute(seed, HY_RNG_SHUFFLE, s->windows[t.number].sequences, left);
    return t;
}

/* The window `ahead` places after the wanted one, as far as that is known. */
static uint64_t number_ahead(const hy_row_stream *s, uint64_t ahead) {
    uint64_t place = s->wanted.place + ahead, epoch = s->wanted.epoch;
    if (!is_complete(s)) return place < s->count ? place : s->count;
    return number_at(s, epoch + place / s->count, place % s->count);
}

/* ---- the reader thread ----------------------------------------------------------------------- */

static cached *find_cached(hy_row_stream *s, uint64_t number) {
    for (cached *c = s->cache; c < s->cache + HY_STREAM_CACHED; c++) {
        if (c->number == number) return c;
    }
    return NULL;
}

/* The next window to encode, or NO_WINDOW. */
static uint64_t choose_window(hy_row_stream *s) {
    for (uint64_t ahead = 0; ahead <= AHEAD; ahead++) {
        uint64_t number = number_ahead(s, ahead);
        if (number == s->failed.window) return NO_WINDOW;
        if (number > 0 && !find_cached(s, number)) return number;
    }
    return NO_WINDOW;
}

/* The slot for it: the least recently used one that is not needed soon; NULL: all are in use. */
static cached *choose_slot(hy_row_stream *s) {
    cached *best = NULL;
    for (cached *c = s->cache; c < s->cache + HY_STREAM_CACHED; c++) {
        bool is_needed = c->users > 0;
        for (uint64_t ahead = 0; ahead <= AHEAD && c->number != NO_WINDOW; ahead++)
            is_needed |= number_ahead(s, ahead) == c->number;
        if (!is_needed && (!best || c->used < best->used)) best = c;
    }
    return best;
}

/* The caller of hy_row_stream_count reports warnings: only its thread may talk to the user. */
static void remember_warning(void *user, const char *text) {
    hy_row_stream *s = user;
    pthread_mutex_lock(&s->lock);
    if (s->counts.warned++ < WARNINGS_SHOWN) hy_text_addf(&s->counts.warnings, "%s\n", text);
    pthread_mutex_unlock(&s->lock);
}

static void *read_windows(void *argument) {
    hy_row_stream *s = argument;
    pthread_mutex_lock(&s->lock);
    while (!atomic_load(&s->is_stopping)) {
        uint64_t number = choose_window(s);
        cached *c = number == NO_WINDOW ? NULL : choose_slot(s);
        if (!c) {
            pthread_cond_wait(&s->has_changed, &s->lock);
            continue;
        }
        bool is_new = number == s->count;
        position begin = is_new ? s->next : s->windows[number].begin;
        empty(c);
        c->users = 1;
        s->options.on_warning = is_new ? remember_warning : NULL;
        pthread_mutex_unlock(&s->lock);
        hy_status status = encode_window(s, number, begin, c);
        pthread_mutex_lock(&s->lock);
        c->users = 0;
        c->used = ++s->counts.uses;
        c->number = number;
        if (status != HY_OK || number >= s->count) empty(c);
        if (status != HY_OK) {
            s->failed.window = number;
            hy_error_save(&s->failed.error, status);
        }
        pthread_cond_broadcast(&s->has_changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status open_stream(hy_row_stream *s, const hy_encoding *e, hy_examples *first) {
    position at = {.line = 1}, begin = at;
    window w = {.begin = begin};
    s->options = *e->options;
    s->encoding = *e;
    s->encoding.options = &s->options;
    HY_TRY(hy_examples_begin(first));
    HY_TRY(encode_text(s, &at, first, &s->first_size, &w.hash));
    if (first->count == 0) return hy_examples_fail_unused(first, e, s->list.files[0].path);
    HY_TRY(hy_examples_report(first, e->options));
    s->counts.warned = first->bad_rows < WARNINGS_SHOWN ? (int)first->bad_rows : WARNINGS_SHOWN;
    /* Later windows are encoded while the run computes: with fewer threads, and without talk. */
    s->encoding.workers = e->workers > 4 ? e->workers / 4 : 1;
    s->options.user = s;
    s->options.on_progress = NULL;
    return add_window(s, w, first, at);
}

hy_status hy_row_stream_open(hy_file_list *list, uint64_t size, const hy_encoding *e,
                             hy_examples *first, hy_row_stream **out) {
    *out = NULL;
    hy_row_stream *s = calloc(1, sizeof *s);
    if (!s) {
        hy_file_list_free(list);
        return hy_fail(HY_ERR_MEMORY, "not enough memory to stream rows");
    }
    s->list = *list;
    *list = (hy_file_list){0};
    s->size = size;
    s->open.number = s->failed.window = NO_WINDOW;
    for (cached *c = s->cache; c < s->cache + HY_STREAM_CACHED; c++) c->number = NO_WINDOW;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->has_changed, NULL);
    hy_status status = open_stream(s, e, first);
    if (status == HY_OK) *out = s;
    if (status != HY_OK) hy_row_stream_close(s);
    return status;
}

hy_status hy_row_stream_begin(hy_row_stream *s, const hy_packing *first) {
    HY_FAIL_IF(first->sequences == 0, HY_ERR_INPUT,
               "the first %" PRIu64 " bytes of rows contain nothing to train on", s->first_size);
    s->first = first;
    s->windows[0].sequences = first->sequences;
    return HY_OK;
}

void hy_row_stream_stop(hy_row_stream *s) {
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->is_stopping, true);
    pthread_cond_broadcast(&s->has_changed);
    pthread_mutex_unlock(&s->lock);
}

void hy_row_stream_close(hy_row_stream *s) {
    if (!s) return;
    hy_row_stream_stop(s);
    if (s->has_reader) pthread_join(s->reader, NULL);
    for (cached *c = s->cache; c < s->cache + HY_STREAM_CACHED; c++) empty(c);
    close_file(&s->open);
    free(s->open.buffer);
    free(s->windows);
    hy_text_free(&s->counts.warnings);
    hy_file_list_free(&s->list);
    pthread_cond_destroy(&s->has_changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- filling --------------------------------------------------------------------------------- */

/* Called with the lock. Returns the packing of the wanted window, or NULL with an error. */
static const hy_packing *await(hy_row_stream *s, uint64_t n, turn *t, cached **used) {
    *used = NULL;
    if (!s->has_reader) {
        int error = hy_thread_start(&s->reader, "hybrid-rows", read_windows, s);
        s->has_reader = error == 0;
        if (error) hy_fail(HY_ERR_MEMORY, "cannot start the reader of rows: %s", strerror(error));
        if (error) return NULL;
    }
    for (;;) {
        *t = find_turn(s, n);
        s->wanted = *t;
        pthread_cond_broadcast(&s->has_changed); /* the reader looks what it should encode */
        if (t->number == 0) return s->first;
        *used = find_cached(s, t->number);
        if (*used) break;
        if (t->number == s->failed.window) {
            hy_error_restore(&s->failed.error);
            return NULL;
        }
        if (atomic_load(&s->is_stopping)) {
            hy_fail(HY_STOPPED, "the run was stopped while it waited for rows");
            return NULL;
        }
        pthread_cond_wait(&s->has_changed, &s->lock);
    }
    (*used)->users++;
    (*used)->used = ++s->counts.uses;
    return &(*used)->packing;
}

int64_t hy_row_stream_fill(hy_row_stream *s, uint64_t n, int32_t seq, int32_t *tokens,
                           int32_t *targets, int32_t *doc_starts) {
    turn t;
    cached *used;
    pthread_mutex_lock(&s->lock);
    const hy_packing *packing = await(s, n, &t, &used);
    pthread_mutex_unlock(&s->lock);
    if (!packing) return -1;
    int64_t counted = hy_packing_fill(packing, t.index, seq, tokens, targets, doc_starts);
    pthread_mutex_lock(&s->lock);
    if (used) used->users--;
    pthread_mutex_unlock(&s->lock);
    return counted;
}

/* ---- facts ----------------------------------------------------------------------------------- */

double hy_row_stream_scale(const hy_row_stream *s) {
    if (s->count == 1 && is_complete(s)) return 1;
    return (double)s->size / (double)s->first_size;
}

double hy_row_stream_epochs(hy_row_stream *s, uint64_t n, double estimate) {
    pthread_mutex_lock(&s->lock);
    bool is_later = is_complete(s) && n >= total(s);
    double exact = (double)n / (double)total(s);
    pthread_mutex_unlock(&s->lock);
    if (is_later) return exact;
    return estimate > 0 ? fmin((double)n / estimate, nextafter(1, 0)) : NAN;
}

void hy_row_stream_count(hy_row_stream *s, hy_examples *counts, hy_text *warnings) {
    pthread_mutex_lock(&s->lock);
    const hy_examples *sum = &s->counts.rows;
    counts->rows = sum->rows;
    counts->bad_rows = sum->bad_rows;
    counts->cut = sum->cut;
    counts->dropped = sum->dropped;
    counts->losses = sum->losses;
    counts->unknown = sum->unknown;
    memcpy(counts->ignored, sum->ignored, sizeof counts->ignored);
    hy_text_add(warnings, hy_text_string(&s->counts.warnings));
    hy_text_free(&s->counts.warnings);
    pthread_mutex_unlock(&s->lock);
    if (hy_is_standard_input(s->list.files[0].path)) hy_standard_input_report(warnings);
}

bool hy_row_stream_awaits_input(const hy_row_stream *s) {
    uint64_t size;
    bool is_whole;
    return hy_is_standard_input(s->list.files[0].path) &&
           hy_standard_input_copy(0, &size, &is_whole) == HY_OK && !is_whole;
}

hy_status hy_row_stream_keep(const hy_row_stream *s, const char *folder) {
    const hy_input_file *file = &s->list.files[0];
    char path[4096];
    if (!hy_is_standard_input(file->path)) return HY_OK;
    HY_TRY(hy_path_join(path, sizeof path, folder, hy_standard_input_name(file->is_csv)));
    return hy_standard_input_keep(path);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* A window is a list of numbers, then its hash: the fields of `window` without `first`. Then come
 * its unknown tokens and all tokens, which older checkpoints do not have. */
enum { NUMBERS = 8 };

static void list_numbers(window *w, uint64_t *out[NUMBERS]) {
    uint64_t *all[NUMBERS] = {&w->begin.file, &w->begin.offset, &w->begin.line, &w->rows,
                              &w->bad_rows,   &w->cut,          &w->dropped,    &w->sequences};
    memcpy(out, all, sizeof all);
}

void hy_row_stream_write(hy_row_stream *s, hy_json_writer *w) {
    pthread_mutex_lock(&s->lock);
    hy_json_open_object(w, NULL);
    hy_json_put_int(w, "window", s->options.stream_window);
    hy_json_put_int(w, "next_file", (int64_t)s->next.file);
    hy_json_put_int(w, "next_offset", (int64_t)s->next.offset);
    hy_json_put_int(w, "next_line", (int64_t)s->next.line);
    hy_json_open_array(w, "windows");
    for (size_t i = 0; i < s->count; i++) {
        char hash[17];
        uint64_t *numbers[NUMBERS];
        list_numbers(&s->windows[i], numbers);
        snprintf(hash, sizeof hash, "%016" PRIx64, s->windows[i].hash);
        hy_json_open_array(w, NULL);
        for (int k = 0; k < NUMBERS; k++) hy_json_put_int(w, NULL, (int64_t)*numbers[k]);
        hy_json_put_string(w, NULL, hash);
        hy_json_put_int(w, NULL, (int64_t)s->windows[i].unknown.count);
        hy_json_put_int(w, NULL, (int64_t)s->windows[i].unknown.tokens);
        hy_json_close_array(w);
    }
    hy_json_close_array(w);
    hy_json_close_object(w);
    pthread_mutex_unlock(&s->lock);
}

static bool read_count(const hy_json_node *node, uint64_t *out) {
    int64_t value;
    if (!hy_json_as_int(node, &value) || value < 0 || value > MOST_COUNT) return false;
    *out = (uint64_t)value;
    return true;
}

static bool read_window(const hy_row_stream *s, const hy_json_node *node, window *w) {
    const hy_json_node *at = hy_json_first(node);
    const char *hash;
    uint64_t *numbers[NUMBERS];
    *w = (window){0};
    list_numbers(w, numbers);
    for (int i = 0; i < NUMBERS; i++, at = at ? hy_json_next(at) : NULL) {
        if (!read_count(at, numbers[i])) return false;
    }
    if (!hy_json_as_string(at, &hash, NULL)) return false;
    w->hash = strtoull(hash, NULL, 16);
    const hy_json_node *unknown = hy_json_next(at);
    w->unknown.is_partial = !unknown;
    if (unknown && (!read_count(unknown, &w->unknown.count) ||
                    !read_count(hy_json_next(unknown), &w->unknown.tokens)))
        return false;
    return w->begin.file < s->list.count;
}

static bool read_windows_of(hy_row_stream *s, const hy_json_node *node) {
    const hy_json_node *at = hy_json_first(hy_json_get(node, "windows"));
    window w;
    bool is_valid = at && read_window(s, at, &w) && w.hash == s->windows[0].hash &&
                    w.sequences == s->windows[0].sequences;
    for (at = at ? hy_json_next(at) : NULL; at && is_valid; at = hy_json_next(at)) {
        hy_status status =
            hy_array_reserve(&s->windows, &s->capacity, s->count + 1, sizeof w, "windows of rows");
        is_valid = status == HY_OK && read_window(s, at, &w);
        if (!is_valid) break;
        w.first = total(s);
        add_counts(&s->counts.rows, &w);
        s->windows[s->count++] = w;
    }
    position *next = &s->next;
    return is_valid && read_count(hy_json_get(node, "next_file"), &next->file) &&
           read_count(hy_json_get(node, "next_offset"), &next->offset) &&
           read_count(hy_json_get(node, "next_line"), &next->line) && next->file <= s->list.count;
}

hy_status hy_row_stream_read(hy_row_stream *s, const hy_json_node *node) {
    HY_FAIL_IF(!read_windows_of(s, node), HY_ERR_INPUT,
               "the rows of %s are not those that the run was trained on, or the checkpoint is "
               "damaged",
               s->list.files[0].path);
    return HY_OK;
}
