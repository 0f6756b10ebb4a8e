/* tokenizer_shards.c: text files become shards of token ids, on all cores. See hybrid_tokenizer.h.
 *
 * The text is cut into units at documents' ends and at places where a cut changes nothing. Threads
 * encode them and hand them in in order (in_order.h), so the result does not depend on the number of
 * threads. Memory is a unit's ids for each thread and one shard. */
#include "tokenizer/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "data/in_order.h"
#include "data/source.h"
#include "formats/shard.h"

#define UNIT_BYTES ((size_t)1 << 19) /* a unit is cut at the first good place after this */
#define SHARD_TOKENS ((uint64_t)32 << 20)

/* A part of a document that is encoded in one go. */
typedef struct unit {
    const char *text;
    size_t size;
    bool ends_document, is_val;
    hy_ids ids;
} unit;

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
    unit units[HY_MOST_WORKERS]; /* in work */
    shard_row rows[2];
    uint64_t val_from; /* bytes; documents that begin there or later are held out */
    bool is_val;
    const char *eos; /* its text; NULL: files are not cut */
    size_t eos_size;

    /* The file in hand, where it begins among all bytes, and the document in it. */
    const char *text;
    size_t size;
    uint64_t place;
    size_t begin, at, end; /* of the document; the next unit begins at `at` */
    size_t following;      /* the next document */
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
        HY_TRY(hy_ids_append(&row->ids, ids, here));
        ids += here;
        count -= here;
        if (here == room) HY_TRY(write_shard(j, row, row->ids.count));
    }
    return HY_OK;
}

/* ---- units ----------------------------------------------------------------------------------- */

static bool next_unit(void *context, void *slot) {
    job *j = context;
    unit *u = slot;
    while (j->at == j->end) { /* to the next document; between two separators there is none */
        if (j->following >= j->size) return false;
        j->begin = j->at = j->following;
        const char *rest = j->text + j->at;
        const char *hit = j->eos ? memmem(rest, j->size - j->at, j->eos, j->eos_size) : NULL;
        j->end = hit ? (size_t)(hit - j->text) : j->size;
        j->following = hit ? j->end + j->eos_size : j->size;
        if (j->at == j->end) continue;
        j->result->documents++;
        j->is_val |= j->place + j->at >= j->val_from; /* and all after it */
    }
    size_t end = j->end;
    if (end - j->at > UNIT_BYTES) {
        end = j->begin + hy_tokenizer_cut(j->options->tokenizer, j->text + j->begin, end - j->begin,
                                          j->at - j->begin + UNIT_BYTES);
    }
    u->text = j->text + j->at;
    u->size = end - j->at;
    u->ends_document = end == j->end;
    u->is_val = j->is_val;
    u->ids.count = 0;
    j->at = end;
    return true;
}

static hy_status encode_unit(void *context, void *slot) {
    const job *j = context;
    unit *u = slot;
    int flags = j->options->is_plain ? HY_TOKENS_PLAIN : 0;
    return hy_tokenizer_encode(j->options->tokenizer, u->text, u->size, flags, &u->ids);
}

static hy_status tell(const job *j) {
    const hy_tokenize_options *o = j->options;
    return !o->tell || o->tell(o->user, &j->progress) ? HY_OK : hy_fail(HY_STOPPED, "stopped");
}

static hy_status add_unit(void *context, void *slot, bool is_caller) {
    job *j = context;
    unit *u = slot;
    shard_row *row = &j->rows[u->is_val];
    int32_t eos = hy_tokenizer_eos(j->options->tokenizer);
    HY_TRY(add_ids(j, row, u->ids.data, u->ids.count));
    if (u->ends_document && eos >= 0) HY_TRY(add_ids(j, row, &eos, 1));
    j->progress.bytes_done += u->size;
    return is_caller ? tell(j) : HY_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static hy_status add_file(job *j, const char *path) {
    hy_file_map map;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    long threads = j->options->threads > 0 ? j->options->threads : cores > 0 ? cores : 1;
    HY_TRY(hy_file_map_open(path, &map));
    if ((uint64_t)threads > map.size / UNIT_BYTES + 1) threads = (long)(map.size / UNIT_BYTES + 1);
    if (threads > HY_MOST_WORKERS) threads = HY_MOST_WORKERS;
    j->text = (const char *)map.data;
    j->size = map.size;
    j->begin = j->at = j->end = j->following = 0;
    hy_in_order work = {.context = j,
                        .next = next_unit,
                        .work = encode_unit,
                        .done = add_unit,
                        .slots = j->units,
                        .slot_size = sizeof *j->units,
                        .workers = (int32_t)threads};
    hy_status status = hy_in_order_run(&work);
    j->place += map.size;
    j->result->files++;
    hy_file_map_close(&map);
    return status == HY_OK ? tell(j) : status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static hy_status measure(const hy_tokenize_options *o, hy_file_list *lists, uint64_t *bytes) {
    *bytes = 0;
    for (size_t p = 0; p < o->path_count; p++) {
        HY_TRY(hy_file_list_find(o->paths[p], &lists[p]));
        for (size_t i = 0; i < lists[p].count; i++) {
            const char *path = lists[p].paths[i];
            hy_reader *reader;
            HY_FAIL_IF(hy_source_is_shard(path), HY_ERR_INPUT,
                       "%s is a shard of tokens already; text is wanted", path);
            HY_TRY(hy_reader_open(path, &reader));
            *bytes += hy_reader_size(reader);
            hy_reader_close(reader);
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
        HY_FAIL_IF(hy_path_exists(path), HY_ERR_INPUT, "%s is there already: name another folder",
                   path);
    }
    return HY_OK;
}

static hy_status run(job *j, const hy_file_list *lists) {
    for (size_t p = 0; p < j->options->path_count; p++) {
        for (size_t i = 0; i < lists[p].count; i++) HY_TRY(add_file(j, lists[p].paths[i]));
        j->result->skipped += lists[p].skipped;
    }
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
    for (int i = 0; j && i < HY_MOST_WORKERS; i++) hy_ids_free(&j->units[i].ids);
    for (int i = 0; j && i < 2; i++) hy_ids_free(&j->rows[i].ids);
    free(lists);
    free(j);
    return status;
}
