/* hf_load.c: reads a model's weights into a store. See hf_load.h.
 *
 * The work is cut into jobs, some rows of a part each; threads take them in order. What has to come from
 * the disk comes past the page cache into the thread's buffer, and from there in its final form to its
 * place: one copy, which the processor makes while other threads' reads are under way. What the cache has
 * is read from there, straight into place where type and order are right. A backing store that the host
 * does not reach is sent to, one thread at a time. */
#include <pthread.h>
#include <stdatomic.h>

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/in_order.h"
#include "hub/hf_load.h"
#include "kernels/coded.h"
#include "kernels/cpu/machine.h"
#include "model/coding.h"

#define JOB_ELEMENTS (2 << 20)
#define MOST_THREADS 8
#define LEAST_THREADS 4 /* some wait for the disk while others convert */
#define WIDEST 4        /* bytes of an element, at most */

typedef struct job {
    const hy_weight_part *part;
    int64_t first, rows; /* of the part */
} job;

/* A parameter that becomes codes: from its first job to its last. */
typedef struct coded_item {
    hy_coding coding;
    bool has_begun;
    int64_t jobs_left;
} coded_item;

typedef struct loading {
    const hy_model *model;
    hy_store *store;
    hy_stream *stream;
    const hy_load_options *options;
    job *jobs;
    int64_t count, next;
    int64_t looks;     /* jobs whose rows are looked at before any is coded */
    bool is_looking;   /* a first pass over these */
    int64_t largest;   /* elements of a job */
    coded_item *coded; /* for each item of the store */
    atomic_llong done;
    pthread_mutex_t gate; /* around sending, and around `coded` */
} loading;

/* A thread's job and its own memory: what the file has, and the same as the store wants it. */
typedef struct worker {
    const job *job;
    char *raw, *made;
    bool tells; /* the calling thread's */
} worker;

/* ---- cutting ----------------------------------------------------------------------------------- */

/* Heads stay whole where their rows change places. */
static int64_t rows_of_job(const loading *l, const hy_weight_part *part) {
    bool is_chosen = !l->options || l->options->piece == 0;
    int64_t rows = (is_chosen ? JOB_ELEMENTS : l->options->piece) / part->cols, unit = 1;
    if (part->order == HY_PART_PAIRED) unit = part->head_size;
    rows -= rows % unit;
    if (rows < unit) rows = unit;
    return rows < part->rows ? rows : part->rows;
}

static hy_status cut(loading *l, const hy_weight_files *files) {
    int64_t count = 0;
    for (int32_t i = 0; i < files->count; i++) {
        int64_t rows = rows_of_job(l, &files->parts[i]);
        count += (files->parts[i].rows + rows - 1) / rows;
    }
    l->jobs = calloc((size_t)count + 1, sizeof *l->jobs);
    l->coded = calloc((size_t)l->store->layout.item_count + 1, sizeof *l->coded);
    if (!l->jobs || !l->coded) return hy_fail(HY_ERR_MEMORY, "no memory to read weights");
    for (int32_t i = 0; i < files->count; i++) {
        const hy_weight_part *part = &files->parts[i];
        int64_t most = rows_of_job(l, part);
        int32_t item = hy_store_item_of(l->store, part->param);
        if (item < 0 || !hy_store_has_item(l->store, item)) continue; /* another store's */
        for (int64_t first = 0; first < part->rows; first += most) {
            l->coded[item].jobs_left++;
            l->looks += hy_coded_as_one(l->store->layout.items[item].dtype);
            int64_t rows = part->rows - first < most ? part->rows - first : most;
            l->jobs[l->count++] = (job){part, first, rows};
            if (rows * part->cols > l->largest) l->largest = rows * part->cols;
        }
    }
    return HY_OK;
}

/* ---- one job ----------------------------------------------------------------------------------- */

static uint64_t row_bytes(const hy_weight_part *p) { return hy_dtype_bytes(p->dtype, p->cols); }

/* A job's rows are columns of a transposed part: a strip of each of its rows. */
static hy_status read_strips(const job *j, char *raw) {
    const hy_weight_part *p = j->part;
    uint64_t size = hy_dtype_size(p->dtype), strip = (uint64_t)j->rows * size;
    for (int64_t c = 0; c < p->cols; c++) {
        uint64_t at = p->offset + (uint64_t)(c * p->rows + j->first) * size;
        HY_TRY(hy_reader_get(p->reader, at, raw + (uint64_t)c * strip, strip));
    }
    return HY_OK;
}

/* Reads a job into `raw`, or into `place` where it may go there at once; *data is where it is. */
static hy_status read_job(const job *j, char *raw, char *place, char **data) {
    const hy_reader *reader = j->part->reader;
    uint64_t bytes = (uint64_t)j->rows * row_bytes(j->part);
    uint64_t offset = j->part->offset + (uint64_t)j->first * row_bytes(j->part);
    *data = raw;
    bool is_whole = j->part->order != HY_PART_TRANSPOSED || j->rows == j->part->rows;
    if (!is_whole) return read_strips(j, raw);

    if (hy_reader_is_cold(reader, offset, bytes)) {
        return hy_reader_get_direct(reader, offset, bytes, raw, data);
    }
    if (place) *data = place;
    return hy_reader_get(reader, offset, *data, bytes);
}

/* Rows 2i and 2i+1 of a head become its rows i and i + D/2. */
static void unpair(const char *raw, int64_t rows, size_t row_bytes, int32_t head, char *out) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t in_head = r % head, begin = r - in_head;
        int64_t to = begin + in_head / 2 + (in_head % 2 ? head / 2 : 0);
        memcpy(out + (size_t)to * row_bytes, raw + (size_t)r * row_bytes, row_bytes);
    }
}

/* In the store's order, still of the file's type: as it is, or in the other buffer, which changes places
 * with the first. */
static const char *put_in_order(const char *data, worker *b) {
    const job *j = b->job;
    const hy_weight_part *p = j->part;
    if (p->order == HY_PART_PLAIN) return data;
    if (p->order == HY_PART_TRANSPOSED) {
        hy_transpose(data, j->rows, p->cols, hy_dtype_size(p->dtype), b->made);
    } else {
        unpair(data, j->rows, (size_t)row_bytes(p), p->head_size, b->made);
    }
    char *ordered = b->made;
    b->made = b->raw;
    b->raw = ordered;
    return ordered;
}

static hy_status send_bytes(loading *l, uint64_t at, const void *data, uint64_t bytes) {
    pthread_mutex_lock(&l->gate);
    hy_status status = hy_store_write(l->store, l->stream, at, data, bytes);
    pthread_mutex_unlock(&l->gate);
    return status;
}

/* The coding of an item, which its first job begins. */
static hy_status coding_of(loading *l, int32_t item, int32_t param, hy_coding **out) {
    coded_item *c = &l->coded[item];
    hy_status status = HY_OK;
    pthread_mutex_lock(&l->gate);
    if (!c->has_begun) {
        status = hy_coding_begin(&c->coding, &l->model->params.list[param],
                                 &l->store->layout.items[item]);
        c->has_begun = status == HY_OK;
        if (status != HY_OK) hy_coding_end(&c->coding);
    }
    pthread_mutex_unlock(&l->gate);
    *out = &c->coding;
    return status;
}

/* The last job of an item brings its scales to their place. */
static hy_status end_coded_job(loading *l, int32_t item) {
    coded_item *c = &l->coded[item];
    const hy_layout_item *entry = &l->store->layout.items[item];
    pthread_mutex_lock(&l->gate);
    bool is_last = --c->jobs_left == 0;
    pthread_mutex_unlock(&l->gate);
    if (!is_last) return HY_OK;
    uint64_t behind = hy_store_offset(l->store, item) + hy_layout_scales_at(entry);
    HY_TRY(send_bytes(l, behind, hy_coding_scales(&c->coding), hy_layout_scale_bytes(entry)));
    hy_coding_end(&c->coding);
    return HY_OK;
}

/* A job's numbers in `made`, as fp32. */
static hy_status read_numbers(worker *b) {
    const job *j = b->job;
    const hy_weight_part *p = j->part;
    int64_t count = j->rows * p->cols;
    char *data;
    if (p->coded) {
        return hy_bnb_read(p->coded, j->first * p->cols, count, (float *)(void *)b->made);
    }
    HY_TRY(read_job(j, b->raw, NULL, &data));
    const char *ordered = put_in_order(data, b);
    hy_convert(ordered, p->dtype, count, b->made, HY_F32);
    return HY_OK;
}

/* Codes of the file that are the store's: they go there as they are, and all scales with the first of them. */
static hy_status keep_codes(loading *l, hy_coding *coding, uint64_t at, worker *b) {
    const job *j = b->job;
    const hy_weight_part *p = j->part;
    char *data;
    if (j->first == 0) {
        HY_TRY(hy_bnb_put_scales(p->coded, p->row * p->cols / coding->item.block, coding));
    }
    HY_TRY(read_job(j, b->raw, NULL, &data));
    return send_bytes(l, at, data, hy_dtype_bytes(HY_NF4, j->rows * p->cols));
}

/* Rows become codes, at `at` of the store, unless they are; scales follow behind all codes of the item. */
static hy_status do_coded(loading *l, int32_t item, uint64_t at, worker *b) {
    const job *j = b->job;
    const hy_weight_part *p = j->part;
    int64_t count = j->rows * p->cols, before = (p->row + j->first) * p->cols;
    hy_coding *coding;
    HY_TRY(coding_of(l, item, p->param, &coding));
    if (p->coded && coding->item.dtype == HY_NF4) {
        HY_TRY(keep_codes(l, coding, at, b));
        return end_coded_job(l, item);
    }
    HY_TRY(read_numbers(b));
    const float *numbers = (const float *)(const void *)b->made;
    if (l->is_looking) {
        hy_coding_look(coding, numbers, count);
        return HY_OK;
    }
    hy_coding_rows(coding, numbers, before, count, b->raw);
    HY_TRY(send_bytes(l, at, b->raw, hy_dtype_bytes(coding->item.dtype, count)));
    return end_coded_job(l, item);
}

/* The numbers of a job; of several ranks this one may have some of them. */
static hy_status send_numbers(loading *l, int32_t item, const job *j, const char *data) {
    int64_t first = (j->part->row + j->first) * j->part->cols, count = j->rows * j->part->cols;
    pthread_mutex_lock(&l->gate);
    hy_status status = hy_store_put(l->store, l->stream, item, first, count, data);
    pthread_mutex_unlock(&l->gate);
    return status;
}

/* Whether the store has all of the numbers of a job, or none. */
static bool has_all(const hy_layout_item *entry, int64_t first, int64_t count) {
    return first >= entry->begin && first + count <= entry->begin + entry->count;
}
static bool has_none(const hy_layout_item *entry, int64_t first, int64_t count) {
    return first + count <= entry->begin || first >= entry->begin + entry->count;
}

/* The same where another rank has bytes of the whole: of what is not coded each number lies by itself. */
static bool is_elsewhere(const loading *l, int32_t item, int64_t first, int64_t count) {
    const hy_layout_item *entry = &l->store->layout.items[item];
    uint64_t at = hy_store_offset(l->store, item) + hy_dtype_bytes(entry->dtype, first);
    uint64_t bytes = hy_dtype_bytes(entry->dtype, count);
    return l->store->layout.part_begin && !hy_store_clip(l->store, &at, &bytes);
}

/* Codes of the file become numbers: in `raw`, or where the store has them if the host reaches that. */
static hy_status do_decoded(loading *l, hy_dtype wanted, char *backing, int32_t item, worker *b) {
    int64_t count = b->job->rows * b->job->part->cols;
    char *to = backing ? backing : b->raw;
    HY_TRY(read_numbers(b));
    hy_convert(b->made, HY_F32, count, to, wanted);
    return backing ? HY_OK : send_numbers(l, item, b->job, to);
}

static hy_status do_job(loading *l, worker *b) {
    const job *j = b->job;
    const hy_weight_part *p = j->part;
    int32_t item = hy_store_item_of(l->store, p->param);
    hy_dtype wanted = l->store->layout.items[item].dtype;
    const hy_layout_item *entry = &l->store->layout.items[item];
    int64_t elements = j->rows * p->cols, first = (p->row + j->first) * p->cols;
    if (hy_is_coded(wanted)) { /* all of it is here */
        uint64_t before = hy_dtype_bytes(wanted, first);
        return do_coded(l, item, hy_store_offset(l->store, item) + before, b);
    }
    if (has_none(entry, first, elements) || is_elsewhere(l, item, first, elements)) return HY_OK;
    bool is_as_wanted = p->order == HY_PART_PLAIN && p->dtype == wanted;
    char *data, *backing = hy_store_host(l->store, item); /* NULL: the host does not reach it */
    if (!has_all(entry, first, elements)) backing = NULL;
    if (backing) backing += hy_dtype_bytes(wanted, first - entry->begin);
    if (p->coded) return do_decoded(l, wanted, backing, item, b);
    HY_TRY(read_job(j, b->raw, is_as_wanted ? backing : NULL, &data));
    if (data == backing && backing) return HY_OK;
    const char *ordered = put_in_order(data, b);
    char *to = backing ? backing : b->made;
    hy_convert(ordered, p->dtype, elements, to, wanted);
    return backing ? HY_OK : send_numbers(l, item, j, to);
}

/* ---- all of them ------------------------------------------------------------------------------- */

static bool next_job(void *context, void *slot) {
    loading *l = context;
    worker *w = slot;
    while (l->next < l->count) {
        w->job = &l->jobs[l->next++];
        int32_t item = hy_store_item_of(l->store, w->job->part->param);
        if (!l->is_looking || hy_coded_as_one(l->store->layout.items[item].dtype)) return true;
    }
    return false;
}

static hy_status work(void *context, void *slot) {
    loading *l = context;
    worker *w = slot;
    size_t bytes = HY_DIRECT_ROOM(l->largest * WIDEST + HY_ALIGNMENT);
    if (!w->raw) w->raw = aligned_alloc(HY_DIRECT, bytes);
    if (!w->made) w->made = aligned_alloc(HY_DIRECT, bytes);
    HY_FAIL_IF(!w->raw || !w->made, HY_ERR_MEMORY, "no memory to read weights");
    HY_TRY(do_job(l, w));
    double done = (double)atomic_fetch_add(&l->done, 1) + 1;
    if (w->tells && l->options && l->options->on_progress) {
        l->options->on_progress(l->options->user, done / (double)(l->count + l->looks));
    }
    return HY_OK;
}

static hy_status run_jobs(loading *l) {
    worker workers[MOST_THREADS] = {{.tells = true}};
    int asked = l->options && l->options->threads > 0 ? l->options->threads : hy_machine_threads();
    int most = asked < MOST_THREADS ? asked : MOST_THREADS;
    if (most < LEAST_THREADS) most = LEAST_THREADS;
    if (l->count < most) most = (int)l->count;
    hy_in_order jobs = {.context = l,
                        .next = next_job,
                        .work = work,
                        .slots = workers,
                        .slot_size = sizeof *workers,
                        .workers = most < 1 ? 1 : most};
    hy_status status = hy_in_order_run(&jobs);
    for (worker *w = workers; w < workers + MOST_THREADS; w++) {
        free(w->raw);
        free(w->made);
    }
    return status;
}

/* Rows behind the vocabulary; scales of theirs are there with the others. */
static hy_status zero_padding(loading *l) {
    char zeros[4096];
    for (int32_t i = 0; i < l->model->params.count; i++) {
        const hy_param *param = &l->model->params.list[i];
        int32_t item = hy_store_item_of(l->store, i);
        if (item < 0) continue;
        hy_dtype dtype = l->store->layout.items[item].dtype;
        const hy_layout_item *entry = &l->store->layout.items[item];
        int64_t stored = param->stored - entry->begin; /* of what is here */
        if (stored < 0) stored = 0;
        if (stored > entry->count) stored = entry->count;
        uint64_t begin = hy_store_offset(l->store, item);
        uint64_t at = begin + hy_dtype_bytes(dtype, stored);
        uint64_t end = begin + hy_dtype_bytes(dtype, entry->count);
        memset(zeros, hy_coded_zero(dtype), sizeof zeros);
        for (; at < end; at += sizeof zeros) {
            uint64_t bytes = end - at < sizeof zeros ? end - at : sizeof zeros;
            HY_TRY(hy_store_write(l->store, l->stream, at, zeros, bytes));
        }
    }
    return HY_OK;
}

static void count_parts(const loading *l, const hy_weight_files *files, hy_load_counts *counts) {
    for (int32_t i = 0; i < files->count; i++) {
        const hy_weight_part *part = &files->parts[i];
        int32_t item = hy_store_item_of(l->store, part->param);
        if (item < 0) continue;
        bool is_kept = l->store->layout.items[item].dtype == HY_NF4;
        if (part->coded) {
            counts->kept += is_kept;
            counts->decoded += !is_kept;
        } else {
            counts->real += l->model->params.list[part->param].stays_real;
        }
    }
}

static hy_status load(loading *l, const hy_weight_files *files) {
    bool counts = files->coded && l->options && l->options->counts;
    if (counts) count_parts(l, files, l->options->counts);
    HY_TRY(cut(l, files));
    HY_TRY(hy_store_settle(l->store));
    if (l->looks >
        0) { /* the files are read twice: one scale for all rows comes before the codes */
        l->is_looking = true;
        HY_TRY(run_jobs(l));
        l->is_looking = false;
        l->next = 0;
    }
    HY_TRY(run_jobs(l));
    hy_store_forget(l->store); /* what was put in place past it */
    HY_TRY(zero_padding(l));
    return hy_store_settle(l->store);
}

hy_status hy_hf_load_weights(const char *name, const hy_model *model, hy_store *store,
                             hy_stream *stream, const hy_load_options *options) {
    hy_weight_files files;
    loading l = {.model = model, .store = store, .stream = stream, .options = options};
    HY_TRY(hy_weight_files_open(name, model, &files));
    pthread_mutex_init(&l.gate, NULL);
    hy_status status = load(&l, &files);
    pthread_mutex_destroy(&l.gate);
    for (int32_t i = 0; l.coded && i < store->layout.item_count; i++) {
        hy_coding_end(&l.coded[i].coding);
    }
    free(l.coded);
    free(l.jobs);
    hy_weight_files_close(&files);
    return status;
}
