/* tokenizer_shards.c: text files become shards of token ids, on all cores. See hybrid_tokenizer.h.
 *
 * The text is cut into units at documents' ends and at places where a cut changes nothing. Threads
 * encode a round of units, each into its own row of ids; then the rows are put into the shards in
 * order, so the result does not depend on the number of threads. Memory is a round's ids and one
 * shard. */
#include "tokenizer/tokenizer.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "data/source.h"
#include "formats/shard.h"

#define UNIT_BYTES ((size_t)1 << 19) /* a unit is cut at the first good place after this */
#define ROUND_UNITS 64
#define SHARD_TOKENS ((uint64_t)32 << 20)
#define THREADS_MAX 256

typedef struct unit {
    const char *text;
    size_t size;
    bool ends_document;
    hy_ids ids;
} unit;

typedef struct round_of_units {
    const hy_tokenize_options *options;
    unit units[ROUND_UNITS];
    int count;
    atomic_int next;
    atomic_int status;
    char message[HY_ERROR_MESSAGE_MAX]; /* of the unit that failed first */
    pthread_mutex_t lock;
} round_of_units;

/* A split's shards; ids wait until there are enough for one. */
typedef struct shard_row {
    const char *name; /* "train", "val" */
    hy_ids ids;
    uint64_t shards, tokens;
} shard_row;

typedef struct job {
    const hy_tokenize_options *options;
    hy_tokenize_result *result;
    hy_tokenize_progress progress;
    round_of_units round;
    shard_row rows[2];
    uint64_t val_from; /* bytes; documents that begin there or later are held out */
    bool is_val;
    const char *eos; /* its text; NULL: files are not cut */
    size_t eos_size;
} job;

/* ---- shards ---------------------------------------------------------------------------------- */

static hy_status write_shard(job *j, shard_row *row, size_t count) {
    char folder[4096], name[32], path[4096];
    const hy_tokenizer *t = j->options->tokenizer;
    uint32_t vocab = (uint32_t)hy_tokenizer_vocab(t);
    HY_TRY(hy_path_join(folder, sizeof folder, j->options->out, row->name));
    snprintf(name, sizeof name, "%06llu.bin", (unsigned long long)row->shards);
    HY_TRY(hy_path_join(path, sizeof path, folder, name));
    if (row->shards == 0) HY_TRY(hy_dir_make(folder));
    HY_TRY(hy_shard_write(path, row->ids.data, count, vocab, vocab <= 65536 ? 2 : 4));
    row->ids.count -= count;
    memmove(row->ids.data, row->ids.data + count, row->ids.count * sizeof *row->ids.data);
    row->shards++;
    return HY_OK;
}

static hy_status add_ids(job *j, shard_row *row, const int32_t *ids, size_t count) {
    uint64_t most = j->options->shard_tokens ? j->options->shard_tokens : SHARD_TOKENS;
    row->tokens += count;
    j->progress.tokens += count;
    while (count > 0) {
        size_t room = (size_t)(most - row->ids.count), here = count < room ? count : room;
        size_t more = row->ids.count + here;
        if (more > row->ids.room) {
            size_t grown = more * 2 < most ? more * 2 : (size_t)most;
            int32_t *data = realloc(row->ids.data, grown * sizeof *data);
            if (!data) return hy_fail(HY_ERR_MEMORY, "out of memory for a shard of %zu ids", grown);
            row->ids.data = data;
            row->ids.room = grown;
        }
        memcpy(row->ids.data + row->ids.count, ids, here * sizeof *ids);
        row->ids.count = more;
        ids += here;
        count -= here;
        if (more == most) HY_TRY(write_shard(j, row, more));
    }
    return HY_OK;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static void *work(void *user) {
    round_of_units *r = user;
    int flags = r->options->is_plain ? HY_TOKENS_PLAIN : 0;
    for (int i; (i = atomic_fetch_add(&r->next, 1)) < r->count;) {
        unit *u = &r->units[i];
        hy_status status =
            hy_tokenizer_encode(r->options->tokenizer, u->text, u->size, flags, &u->ids);
        if (status == HY_OK) continue;
        pthread_mutex_lock(&r->lock);
        if (atomic_exchange(&r->status, (int)status) == HY_OK) {
            snprintf(r->message, sizeof r->message, "%s", hy_error_message());
        }
        pthread_mutex_unlock(&r->lock);
    }
    return NULL;
}

static hy_status encode_round(round_of_units *r) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = r->options->threads > 0 ? r->options->threads : cores > 0 ? (int)cores : 1;
    pthread_t others[THREADS_MAX];
    int started = 0;
    if (threads > r->count) threads = r->count;
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    atomic_store(&r->next, 0);
    while (started < threads - 1 && pthread_create(&others[started], NULL, work, r) == 0) started++;
    work(r); /* with fewer threads than wished it only takes longer */
    for (int i = 0; i < started; i++) pthread_join(others[i], NULL);
    hy_status status = (hy_status)atomic_load(&r->status);
    return status == HY_OK ? HY_OK : hy_fail(status, "%s", r->message);
}

static hy_status finish_round(job *j) {
    round_of_units *r = &j->round;
    int32_t eos = hy_tokenizer_eos(j->options->tokenizer);
    if (r->count == 0) return HY_OK;
    HY_TRY(encode_round(r));
    for (int i = 0; i < r->count; i++) {
        unit *u = &r->units[i];
        shard_row *row = &j->rows[j->is_val];
        HY_TRY(add_ids(j, row, u->ids.data, u->ids.count));
        if (u->ends_document && eos >= 0) HY_TRY(add_ids(j, row, &eos, 1));
        j->progress.bytes_done += u->size;
        u->ids.count = 0;
    }
    r->count = 0;
    if (j->options->tell && !j->options->tell(j->options->user, &j->progress)) {
        return hy_fail(HY_STOPPED, "stopped");
    }
    return HY_OK;
}

static hy_status add_unit(job *j, const char *text, size_t size, bool ends_document) {
    unit *u = &j->round.units[j->round.count++];
    u->text = text;
    u->size = size;
    u->ends_document = ends_document;
    return j->round.count == ROUND_UNITS ? finish_round(j) : HY_OK;
}

/* ---- documents and files --------------------------------------------------------------------- */

static hy_status add_document(job *j, const char *text, size_t size, uint64_t place) {
    if (size == 0) return HY_OK; /* two separators in a row */
    j->result->documents++;
    if (!j->is_val && place >= j->val_from) {
        /* The rest of the documents goes to the other split from here on. */
        HY_TRY(finish_round(j));
        j->is_val = true;
    }
    for (size_t at = 0; at < size;) {
        size_t end = size - at > UNIT_BYTES
                         ? hy_tokenizer_cut(j->options->tokenizer, text, size, at + UNIT_BYTES)
                         : size;
        HY_TRY(add_unit(j, text + at, end - at, end == size));
        at = end;
    }
    return HY_OK;
}

static hy_status add_text(job *j, const char *text, size_t size, uint64_t place) {
    size_t at = 0;
    while (at < size) {
        const char *hit = j->eos ? memmem(text + at, size - at, j->eos, j->eos_size) : NULL;
        size_t end = hit ? (size_t)(hit - text) : size;
        HY_TRY(add_document(j, text + at, end - at, place + at));
        at = hit ? end + j->eos_size : size;
    }
    return HY_OK;
}

static hy_status add_file(job *j, const char *path, uint64_t place) {
    hy_file_map map;
    HY_TRY(hy_file_map_open(path, &map));
    hy_status status = add_text(j, (const char *)map.data, map.size, place);
    if (status == HY_OK) status = finish_round(j); /* units point into the map */
    hy_file_map_close(&map);
    return status;
}

static hy_status size_of(const char *path, uint64_t *size) {
    hy_reader *reader;
    if (hy_source_is_shard(path)) {
        return hy_fail(HY_ERR_INPUT, "%s is a shard of tokens already; text is wanted", path);
    }
    HY_TRY(hy_reader_open(path, &reader));
    *size = hy_reader_size(reader);
    hy_reader_close(reader);
    return HY_OK;
}

static hy_status add_list(job *j, const hy_file_list *list, uint64_t *place) {
    for (size_t i = 0; i < list->count; i++) {
        uint64_t size = 0;
        HY_TRY(size_of(list->paths[i], &size));
        HY_TRY(add_file(j, list->paths[i], *place));
        *place += size;
        j->result->files++;
    }
    j->result->skipped += list->skipped;
    return HY_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static hy_status measure(const hy_tokenize_options *o, hy_file_list *lists, uint64_t *bytes) {
    *bytes = 0;
    for (size_t p = 0; p < o->path_count; p++) {
        HY_TRY(hy_file_list_find(o->paths[p], &lists[p]));
        for (size_t i = 0; i < lists[p].count; i++) {
            uint64_t size = 0;
            HY_TRY(size_of(lists[p].paths[i], &size));
            *bytes += size;
        }
    }
    if (*bytes == 0) return hy_fail(HY_ERR_INPUT, "there is no text in what was given");
    return HY_OK;
}

static hy_status check_out(const hy_tokenize_options *o) {
    static const char *const first[] = {"train/000000.bin", "val/000000.bin"};
    for (int i = 0; i < 2; i++) {
        char path[4096];
        HY_TRY(hy_path_join(path, sizeof path, o->out, first[i]));
        if (hy_path_exists(path)) {
            return hy_fail(HY_ERR_INPUT, "%s is there already: name another folder", path);
        }
    }
    return HY_OK;
}

static hy_status run(job *j, const hy_file_list *lists) {
    uint64_t place = 0;
    for (size_t p = 0; p < j->options->path_count; p++) HY_TRY(add_list(j, &lists[p], &place));
    for (int i = 0; i < 2; i++) {
        shard_row *row = &j->rows[i];
        if (row->ids.count) HY_TRY(write_shard(j, row, row->ids.count));
        j->result->tokens[i] = row->tokens;
        j->result->shards[i] = row->shards;
    }
    return HY_OK;
}

hy_status hy_tokenize_files(const hy_tokenize_options *options, hy_tokenize_result *result) {
    double began = hy_clock();
    *result = (hy_tokenize_result){0};
    hy_file_list *lists = calloc(options->path_count + 1, sizeof *lists);
    job *j = calloc(1, sizeof *j);
    hy_status status = HY_ERR_MEMORY;
    if (!lists || !j) {
        hy_fail(HY_ERR_MEMORY, "out of memory for encoding files");
        goto done;
    }
    *j = (job){.options = options, .result = result, .rows = {{.name = "train"}, {.name = "val"}}};
    j->round.options = options;
    pthread_mutex_init(&j->round.lock, NULL);
    int32_t eos = hy_tokenizer_eos(j->options->tokenizer);
    if (eos >= 0 && !j->options->is_plain) {
        j->eos = hy_tokenizer_token(j->options->tokenizer, eos, &j->eos_size);
    }
    HY_TRY_TO(done, status, check_out(options));
    HY_TRY_TO(done, status, measure(options, lists, &j->progress.bytes_total));
    result->bytes = j->progress.bytes_total;
    double kept = (1 - options->val_fraction) * (double)result->bytes;
    j->val_from = options->val_fraction > 0 ? (uint64_t)ceil(kept) : UINT64_MAX;
    HY_TRY_TO(done, status, run(j, lists));
done:
    result->seconds = hy_clock() - began;
    for (size_t p = 0; lists && p < options->path_count; p++) hy_file_list_free(&lists[p]);
    for (int i = 0; j && i < ROUND_UNITS; i++) hy_ids_free(&j->round.units[i].ids);
    for (int i = 0; j && i < 2; i++) hy_ids_free(&j->rows[i].ids);
    free(lists);
    free(j);
    return status;
}
