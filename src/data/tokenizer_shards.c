/* tokenizer_shards.c: encodes text files and rows of text into shards of token ids, on all cores.
 * See hybrid_tokenizer.h.
 *
 * The text is cut into units, at the ends of documents and at places where a cut does not change
 * the tokens. Threads encode the units and deliver them in order (in_order.h), so the result does
 * not depend on the number of threads. Memory: the ids of one unit per thread, and one shard. */
#include "base/sized.h"
#include "tokenizer/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/in_order.h"
#include "data/csv_rows.h"
#include "data/examples.h"
#include "data/input.h"
#include "formats/shard.h"

#define UNIT_BYTES ((size_t)1 << 19) /* a unit ends at the first good place after this */
#define SHARD_TOKENS ((uint64_t)32 << 20)

/* A part of a document, or several rows, encoded at once. */
typedef struct unit {
    const char *text;
    size_t size;
    hy_row_scan rows; /* positioned before the first row */
    size_t row_count; /* 0: the unit is text */
    bool ends_document, is_val;
    hy_ids ids;
} unit;

/* The shards of a split; ids are collected until a shard is full. */
typedef struct shard_row {
    const char *name; /* "train", "val" */
    hy_ids ids;
    uint64_t shards, tokens;
} shard_row;

typedef struct job {
    const hy_tokenize_options *options;
    hy_tokenize_result *result;
    hy_tokenize_progress progress;
    unit units[HY_MOST_WORKERS]; /* units that are being encoded */
    shard_row rows[2];
    hy_unknown_text unknown;
    uint64_t val_from; /* in bytes; documents that begin here or later are held out */
    bool is_val;
    const char *eos; /* spelling of the end token; NULL: files are not cut into documents */
    size_t eos_size;

    /* The current file, its offset among all bytes, and the current document in it, or its rows. */
    const hy_input_file *file;
    hy_row_scan scan;
    hy_csv csv;
    const char *text;
    size_t size;
    uint64_t place;
    size_t begin, at, end; /* the current document; the next unit begins at `at` */
    size_t following;      /* where the next document begins */
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

/* Takes rows of one split. */
static bool next_rows(job *j, unit *u) {
    hy_row_scan before = u->rows = j->scan;
    hy_row row;
    u->size = u->row_count = u->ids.count = 0;
    u->ends_document = false;
    while (u->size < UNIT_BYTES && hy_rows_next(&j->scan, &row)) {
        bool is_val = j->is_val || j->place + (uint64_t)(row.data - j->text) >= j->val_from;
        if (u->row_count > 0 && is_val != j->is_val) { /* this row begins another unit */
            j->scan = before;
            break;
        }
        j->is_val = is_val;
        u->row_count++;
        u->size = (size_t)(j->scan.at - u->rows.at);
        before = j->scan;
    }
    u->is_val = j->is_val;
    j->result->documents += u->row_count;
    return u->row_count > 0;
}

static bool next_unit(void *context, void *slot) {
    job *j = context;
    unit *u = slot;
    if (j->file->kind == HY_DATA_ROWS) return next_rows(j, u);
    u->row_count = 0;
    while (j->at == j->end) { /* move to the next document; skip empty ones */
        if (j->following >= j->size) return false;
        j->begin = j->at = j->following;
        const char *rest = j->text + j->at;
        const char *hit = j->eos ? memmem(rest, j->size - j->at, j->eos, j->eos_size) : NULL;
        j->end = hit ? (size_t)(hit - j->text) : j->size;
        j->following = hit ? j->end + j->eos_size : j->size;
        if (j->at == j->end) continue;
        j->result->documents++;
        j->is_val |= j->place + j->at >= j->val_from; /* all later documents, too */
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

/* Encodes the document of a row and its end token. */
static hy_status encode_row(const job *j, const hy_row *row, hy_ids *ids) {
    const char *text;
    size_t size;
    hy_json *json;
    int32_t eos = hy_tokenizer_eos(j->options->tokenizer);
    HY_TRY(hy_row_parse(row, &json));
    hy_status status = HY_OK;
    if (!hy_json_as_string(hy_json_get(hy_json_root(json), "text"), &text, &size)) {
        status = hy_fail(HY_ERR_INPUT, "the row needs a string \"text\"");
    } else {
        int flags = j->options->is_plain ? HY_TOKENS_PLAIN : 0;
        status = hy_tokenizer_encode(j->options->tokenizer, text, size, flags, ids);
    }
    hy_json_free(json);
    HY_TRY(status);
    return eos >= 0 ? hy_ids_append(ids, &eos, 1) : HY_OK;
}

static hy_status encode_unit(void *context, void *slot) {
    const job *j = context;
    unit *u = slot;
    hy_row row;
    hy_row_scan scan = u->rows;
    int flags = j->options->is_plain ? HY_TOKENS_PLAIN : 0;
    if (u->row_count == 0) {
        return hy_tokenizer_encode(j->options->tokenizer, u->text, u->size, flags, &u->ids);
    }
    for (size_t i = 0; i < u->row_count && hy_rows_next(&scan, &row); i++) {
        hy_status status = encode_row(j, &row, &u->ids);
        if (status != HY_OK) {
            return hy_fail_context(status, "%s:%llu", j->file->path, (unsigned long long)row.line);
        }
    }
    return HY_OK;
}

static hy_status report_progress(const job *j) {
    const hy_tokenize_options *o = j->options;
    bool (*call)(void *, const hy_tokenize_progress *) = o->on_progress ? o->on_progress : o->tell;
    return !call || call(o->user, &j->progress) ? HY_OK : hy_fail(HY_STOPPED, "stopped");
}

static hy_status add_unit(void *context, void *slot, bool is_caller) {
    job *j = context;
    unit *u = slot;
    shard_row *row = &j->rows[u->is_val];
    int32_t eos = hy_tokenizer_eos(j->options->tokenizer);
    HY_TRY(add_ids(j, row, u->ids.data, u->ids.count));
    hy_unknown_text_move(&j->unknown, &u->ids.unknown);
    if (u->ends_document && eos >= 0) HY_TRY(add_ids(j, row, &eos, 1));
    j->progress.bytes_done += u->size;
    return is_caller ? report_progress(j) : HY_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Shards cannot mark answers, so rows with questions and answers are rejected. */
static hy_status begin_rows(job *j) {
    hy_row_kind kind = HY_ROWS_TEXT;
    hy_row row;
    hy_status status = HY_OK;
    hy_rows_begin(&j->scan, j->text, j->size);
    if (j->file->is_csv) {
        status = hy_csv_begin(&j->scan, j->text, j->size, NULL, &j->csv, &kind);
    } else if (hy_rows_next(&j->scan, &row)) {
        status = hy_row_kind_of(&row, NULL, &kind);
        hy_rows_begin(&j->scan, j->text, j->size);
    }
    if (status != HY_OK) return hy_fail_context(status, "%s", j->file->path);
    HY_FAIL_IF(kind != HY_ROWS_TEXT, HY_ERR_INPUT,
               "%s has questions and answers, but shards cannot mark answers; pass the file to "
               "hybrid-train directly",
               j->file->path);
    return HY_OK;
}

static hy_status add_file(job *j, const hy_input_file *file) {
    hy_input input;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    long threads = j->options->threads > 0 ? j->options->threads : cores > 0 ? cores : 1;
    HY_TRY(hy_input_open(file, &input));
    if ((uint64_t)threads > input.size / UNIT_BYTES + 1) {
        threads = (long)(input.size / UNIT_BYTES + 1);
    }
    if (threads > HY_MOST_WORKERS) threads = HY_MOST_WORKERS;
    j->file = file;
    j->text = input.data;
    j->size = input.size;
    j->begin = j->at = j->end = j->following = 0;
    hy_in_order work = {.context = j,
                        .next = next_unit,
                        .work = encode_unit,
                        .done = add_unit,
                        .slots = j->units,
                        .slot_size = sizeof *j->units,
                        .workers = (int32_t)threads};
    hy_status status = file->kind == HY_DATA_ROWS ? begin_rows(j) : HY_OK;
    if (status == HY_OK) status = hy_in_order_run(&work);
    j->place += input.size;
    j->result->files++;
    hy_csv_close(&j->csv);
    hy_input_close(&input);
    return status == HY_OK ? report_progress(j) : status;
}

/* ---- the whole job --------------------------------------------------------------------------- */

static hy_status measure(const hy_tokenize_options *o, hy_file_list *lists, uint64_t *bytes) {
    *bytes = 0;
    for (size_t p = 0; p < o->path_count; p++) {
        hy_file_kind kind;
        HY_TRY(hy_file_list_find(o->paths[p], HY_FORMAT_AUTO, &lists[p]));
        HY_TRY(hy_file_list_kind(o->paths[p], &lists[p], &kind));
        for (size_t i = 0; i < lists[p].count; i++) {
            uint64_t size;
            HY_FAIL_IF(kind == HY_DATA_SHARDS, HY_ERR_INPUT,
                       "%s is already a shard of tokens; expected text", lists[p].files[i].path);
            HY_TRY(hy_input_measure(&lists[p].files[i], &size));
            *bytes += size;
        }
    }
    if (*bytes == 0) return hy_fail(HY_ERR_INPUT, "the input contains no text");
    return HY_OK;
}

static hy_status check_out(const hy_tokenize_options *o) {
    static const char *const first[] = {"train/000000.bin", "val/000000.bin"};
    for (int i = 0; i < 2; i++) {
        char path[4096];
        HY_TRY(hy_path_join(path, sizeof path, o->out, first[i]));
        HY_FAIL_IF(hy_path_exists(path), HY_ERR_INPUT, "%s already exists; choose another folder",
                   path);
    }
    return HY_OK;
}

static hy_status run(job *j, const hy_file_list *lists) {
    for (size_t p = 0; p < j->options->path_count; p++) {
        for (size_t i = 0; i < lists[p].count; i++) HY_TRY(add_file(j, &lists[p].files[i]));
        j->result->skipped += lists[p].skipped;
    }
    for (int i = 0; i < 2; i++) {
        shard_row *row = &j->rows[i];
        if (row->ids.count) HY_TRY(write_shard(j, row, row->ids.count));
        j->result->tokens[i] = row->tokens;
        j->result->shards[i] = row->shards;
    }
    hy_text text = {0};
    hy_unknown_text_describe(&j->unknown, j->options->tokenizer, &text);
    j->result->unknown_tokens = j->unknown.count;
    snprintf(j->result->unknown_text, sizeof j->result->unknown_text, "%s", hy_text_string(&text));
    hy_text_free(&text);
    return HY_OK;
}

static hy_status tokenize_files(const hy_tokenize_options *options, hy_tokenize_result *result) {
    double began = hy_clock();
    hy_file_list *lists = calloc(options->path_count + 1, sizeof *lists);
    job *j = calloc(1, sizeof *j);
    hy_status status = HY_ERR_MEMORY;
    if (!lists || !j) {
        hy_fail(HY_ERR_MEMORY, "not enough memory to encode files");
        goto done;
    }
    *j = (job){.options = options,
               .result = result,
               .progress = {.size = sizeof j->progress},
               .rows = {{.name = "train"}, {.name = "val"}}};
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

hy_status hy_tokenize_files_sized(const hy_tokenize_options *options, hy_tokenize_result *result,
                                  size_t size) {
    hy_tokenize_result all = {0};
    hy_status status = tokenize_files(options, &all);
    hy_copy_sized(result, size, &all, sizeof all);
    return status;
}
