/* hf_load.c: reads a model's weights into a store. See hf_load.h.
 *
 * The work is cut into jobs, some rows of a part each; threads take them in order. A thread reads
 * its rows into its own buffer (part_read.c) and writes them in their final form to their place:
 * one copy, while other threads' reads are under way. A backing store that the host does not reach
 * gets them one thread at a time. Matrices that become quantised values follow, one after the other
 * (model/coding.h). */
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

typedef struct job {
    const hy_weight_part *part;
    int64_t first, rows; /* of the part */
} job;

typedef struct loading {
    const hy_model *model;
    hy_store *store;
    hy_stream *stream;
    const hy_load_options *options;
    job *jobs;
    int64_t count, next;
    int64_t largest;      /* elements of a job */
    int64_t elements;     /* that the store receives, including those that are quantised */
    atomic_llong done;    /* elements written so far */
    pthread_mutex_t gate; /* one thread at a time copies to the store */
} loading;

/* A thread's job, and its buffers: rows as in the file, and as in the store. */
typedef struct worker {
    const job *job;
    hy_part_room room;
    bool tells; /* the calling thread reports progress */
} worker;

/* ---- the list of jobs ------------------------------------------------------------------------ */

/* A head is not divided if its rows are reordered. */
static int64_t rows_of_job(const loading *l, const hy_weight_part *part) {
    bool is_chosen = !l->options || l->options->piece == 0;
    int64_t rows = (is_chosen ? JOB_ELEMENTS : l->options->piece) / part->cols, unit = 1;
    if (part->order == HY_PART_PAIRED) unit = part->head_size;
    rows -= rows % unit;
    if (rows < unit) rows = unit;
    return rows < part->rows ? rows : part->rows;
}

/* Quantised values of the file that the store takes as they are; their scales follow in
 * quantise_all. */
static bool is_kept(const hy_weight_part *part, hy_dtype wanted) {
    return part->coded && part->dtype == HY_NF4 && wanted == HY_NF4;
}

/* Makes a list of jobs for all parts, except those that quantise_all handles. */
static hy_status cut(loading *l, const hy_weight_files *files) {
    int64_t count = 0;
    for (int32_t i = 0; i < files->count; i++) {
        int64_t rows = rows_of_job(l, &files->parts[i]);
        count += (files->parts[i].rows + rows - 1) / rows;
    }
    l->jobs = calloc((size_t)count + 1, sizeof *l->jobs);
    if (!l->jobs) return hy_fail(HY_ERR_MEMORY, "not enough memory to read weights");
    for (int32_t i = 0; i < files->count; i++) {
        const hy_weight_part *part = &files->parts[i];
        int64_t most = rows_of_job(l, part);
        int32_t item = hy_store_item_of(l->store, part->param);
        if (item < 0 || !hy_store_has_item(l->store, item)) continue; /* it is in another store */
        l->elements += part->rows * part->cols;
        hy_dtype wanted = l->store->layout.items[item].dtype;
        if (hy_is_coded(wanted) && !is_kept(part, wanted)) continue; /* quantise_all does it */
        for (int64_t first = 0; first < part->rows; first += most) {
            int64_t rows = part->rows - first < most ? part->rows - first : most;
            l->jobs[l->count++] = (job){part, first, rows};
            if (rows * part->cols > l->largest) l->largest = rows * part->cols;
        }
    }
    return HY_OK;
}

/* ---- one job --------------------------------------------------------------------------------- */

static hy_status do_job(loading *l, worker *w) {
    const job *j = w->job;
    const hy_weight_part *p = j->part;
    int32_t item = hy_store_item_of(l->store, p->param);
    const hy_layout_item *entry = &l->store->layout.items[item];
    hy_dtype wanted = entry->dtype;
    int64_t elements = j->rows * p->cols, first = (p->row + j->first) * p->cols;
    uint64_t at = hy_store_offset(l->store, item) + hy_dtype_bytes(wanted, first);
    uint64_t bytes = hy_dtype_bytes(wanted, elements);
    const char *data;
    if (is_kept(p, wanted)) {
        HY_TRY(hy_part_fetch(p, j->first, j->rows, &w->room, NULL, &data));
        pthread_mutex_lock(&l->gate);
        hy_status status = hy_store_write(l->store, l->stream, at, data, bytes);
        pthread_mutex_unlock(&l->gate);
        return status;
    }
    /* Other ranks may have some or all of these numbers. */
    bool has_none = first + elements <= entry->begin || first >= entry->begin + entry->count;
    bool has_all = first >= entry->begin && first + elements <= entry->begin + entry->count;
    bool is_elsewhere = l->store->layout.part_begin && !hy_store_clip(l->store, &at, &bytes);
    if (has_none || is_elsewhere) return HY_OK;
    bool is_as_wanted = p->order == HY_PART_PLAIN && p->dtype == wanted && !p->is_decoded;
    char *backing = hy_store_host(l->store, item); /* NULL: the host cannot access it */
    if (!has_all) backing = NULL;
    if (backing) backing += hy_dtype_bytes(wanted, first - entry->begin);
    hy_dtype from = p->coded ? HY_F32 : p->dtype;
    if (p->coded) {
        float *decoded = (float *)(void *)w->room.raw;
        HY_TRY(hy_part_read(p, j->first * p->cols, elements, decoded));
        data = w->room.raw;
    } else {
        char *place = is_as_wanted ? backing : NULL;
        HY_TRY(hy_part_fetch(p, j->first, j->rows, &w->room, place, &data));
    }
    if (data == backing && backing) return HY_OK;
    char *to = backing ? backing : w->room.made;
    hy_convert(data, from, elements, to, wanted);
    if (backing) return HY_OK;
    pthread_mutex_lock(&l->gate);
    hy_status status = hy_store_put(l->store, l->stream, item, first, elements, to);
    pthread_mutex_unlock(&l->gate);
    return status;
}

/* ---- all jobs -------------------------------------------------------------------------------- */

static bool next_job(void *context, void *slot) {
    loading *l = context;
    worker *w = slot;
    if (l->next == l->count) return false;
    w->job = &l->jobs[l->next++];
    return true;
}

/* Counts finished elements; the calling thread reports progress. */
static void count_done(loading *l, int64_t elements, bool tells) {
    double done = (double)(atomic_fetch_add(&l->done, elements) + elements);
    if (tells && l->options && l->options->on_progress) {
        l->options->on_progress(l->options->user, done / (double)l->elements);
    }
}

static hy_status work(void *context, void *slot) {
    loading *l = context;
    worker *w = slot;
    HY_TRY(hy_part_room_init(&w->room, l->largest));
    HY_TRY(do_job(l, w));
    count_done(l, w->job->rows * w->job->part->cols, w->tells);
    return HY_OK;
}

static int thread_count(const loading *l) {
    int asked = l->options && l->options->threads > 0 ? l->options->threads : hy_machine_threads();
    int most = asked < MOST_THREADS ? asked : MOST_THREADS;
    return most < LEAST_THREADS ? LEAST_THREADS : most;
}

static hy_status run_jobs(loading *l) {
    worker workers[MOST_THREADS] = {{.tells = true}};
    int most = thread_count(l);
    if (l->count < most) most = (int)l->count;
    hy_in_order jobs = {.context = l,
                        .next = next_job,
                        .work = work,
                        .slots = workers,
                        .slot_size = sizeof *workers,
                        .workers = most < 1 ? 1 : most};
    hy_status status = hy_in_order_run(&jobs);
    for (worker *w = workers; w < workers + MOST_THREADS; w++) hy_part_room_fini(&w->room);
    return status;
}

typedef struct matrix {
    const hy_weight_files *files;
    int32_t param;
} matrix;

static hy_status read_matrix(void *context, int64_t first, int64_t count, float *out) {
    const matrix *m = context;
    return hy_weight_files_read(m->files, m->param, first, count, out);
}

/* Copies the scales of the parts that keep their codes, and quantises the other parts. */
static hy_status keep_scales(const hy_weight_files *files, const matrix *m, hy_coding *coding,
                             const hy_coding_source *from, const hy_coding_target *to) {
    for (int32_t i = 0; i < files->count; i++) {
        const hy_weight_part *p = &files->parts[i];
        int64_t first = p->row * p->cols;
        if (p->param != m->param) continue;
        HY_TRY(p->coded ? hy_bnb_put_scales(p->coded, first / coding->item.block, coding)
                        : hy_coding_fill(coding, first, p->rows * p->cols, from, to));
    }
    return hy_coding_put_scales(coding, to);
}

static hy_status quantise(loading *l, const hy_weight_files *files, int32_t index, int32_t item) {
    const hy_param *param = &l->model->params.list[index];
    const hy_layout_item *entry = &l->store->layout.items[item];
    matrix m = {files, index};
    hy_coding_source from = {&m, read_matrix, thread_count(l)};
    hy_coding_target to = {.store = l->store, .stream = l->stream, .item = item};
    if (!files->keeps_codes || entry->dtype != HY_NF4)
        return hy_coding_run(param, entry, &from, &to);
    hy_coding coding;
    hy_status status = hy_coding_begin(&coding, param, entry);
    if (status == HY_OK) status = keep_scales(files, &m, &coding, &from, &to);
    hy_coding_end(&coding);
    return status;
}

/* Quantises the store's quantised matrices one after the other. */
static hy_status quantise_all(loading *l, const hy_weight_files *files) {
    for (int32_t i = 0; i < l->model->params.count; i++) {
        int32_t item = hy_store_item_of(l->store, i);
        if (item < 0 || !hy_store_has_item(l->store, item)) continue;
        hy_dtype dtype = l->store->layout.items[item].dtype;
        if (!hy_is_coded(dtype)) continue;
        HY_TRY(quantise(l, files, i, item));
        bool is_counted =
            files->keeps_codes && dtype == HY_NF4; /* by the jobs that copied its codes */
        if (!is_counted) count_done(l, l->model->params.list[i].stored, true);
    }
    return HY_OK;
}

/* Zeros the rows after the vocabulary; the scales of quantised rows are already written. */
static hy_status zero_padding(loading *l) {
    char zeros[4096];
    for (int32_t i = 0; i < l->model->params.count; i++) {
        const hy_param *param = &l->model->params.list[i];
        int32_t item = hy_store_item_of(l->store, i);
        if (item < 0) continue;
        hy_dtype dtype = l->store->layout.items[item].dtype;
        const hy_layout_item *entry = &l->store->layout.items[item];
        int64_t stored = param->stored - entry->begin; /* elements of it in this store */
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
        if (item < 0 || part->tensor_row > 0) continue; /* each tensor is counted once */
        bool has_codes = l->store->layout.items[item].dtype == part->dtype;
        if (part->coded) {
            counts->kept += has_codes;
            counts->decoded += !has_codes;
        } else {
            const hy_param *param = &l->model->params.list[part->param];
            counts->real += param->stays_real && hy_linear_bit(param->kind);
        }
    }
}

static hy_status load(loading *l, const hy_weight_files *files) {
    bool counts = files->coded && l->options && l->options->counts;
    if (counts) count_parts(l, files, l->options->counts);
    HY_TRY(cut(l, files));
    HY_TRY(hy_store_settle(l->store));
    HY_TRY(run_jobs(l));
    hy_store_forget(l->store); /* its caches are outdated: jobs wrote to the backing store */
    HY_TRY(quantise_all(l, files));
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
    free(l.jobs);
    hy_weight_files_close(&files);
    return status;
}
