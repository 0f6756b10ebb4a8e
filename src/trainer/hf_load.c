/* hf_load.c: reads a model's weights into a store. See hf_load.h.
 *
 * The work is cut into jobs, some rows of a part each; threads take them in order. Where the host reaches
 * the store's home a job ends there: rows of equal type are read straight into place. Else its thread
 * converts them in a buffer of its own and sends them, one thread at a time. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cpu/machine.h"
#include "trainer/hf_load.h"

#define JOB_ELEMENTS (2 << 20)
#define MOST_THREADS 8
#define WIDEST 4 /* bytes of an element, at most */

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
    int64_t count;
    int64_t largest; /* elements of a job */
    char *home;      /* NULL where the host cannot reach it */
    atomic_llong next, done;
    atomic_bool has_failed;
    pthread_mutex_t gate; /* around sending, and the message */
    hy_status status;
    char message[HY_ERROR_MESSAGE_MAX];
} loading;

/* A thread's own memory: what the file has, and the same as the store wants it. */
typedef struct buffers {
    char *raw, *made;
} buffers;

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
    if (!l->jobs) return hy_fail(HY_ERR_MEMORY, "no memory to read weights");
    for (int32_t i = 0; i < files->count; i++) {
        const hy_weight_part *part = &files->parts[i];
        int64_t most = rows_of_job(l, part);
        for (int64_t first = 0; first < part->rows; first += most) {
            int64_t rows = part->rows - first < most ? part->rows - first : most;
            l->jobs[l->count++] = (job){part, first, rows};
            if (rows * part->cols > l->largest) l->largest = rows * part->cols;
        }
    }
    return HY_OK;
}

/* ---- one job ----------------------------------------------------------------------------------- */

static hy_status read_bytes(const hy_weight_part *part, uint64_t first, void *out, uint64_t bytes) {
    if (part->reader) return hy_reader_get(part->reader, part->offset + first, out, bytes);
    return hy_safetensors_read(part->tensor.file, part->tensor.entry, first, out, bytes);
}

/* A job's rows are columns of a transposed part: together they are all of it, or a strip of each of its
 * rows. */
static hy_status read_job(const job *j, char *raw) {
    const hy_weight_part *p = j->part;
    uint64_t size = hy_dtype_size(p->dtype), strip = (uint64_t)j->rows * size;
    if (p->order != HY_PART_TRANSPOSED || j->rows == p->rows) {
        uint64_t row = (uint64_t)p->cols * size;
        return read_bytes(p, (uint64_t)j->first * row, raw, (uint64_t)j->rows * row);
    }
    for (int64_t c = 0; c < p->cols; c++) {
        uint64_t at = (uint64_t)(c * p->rows + j->first) * size;
        HY_TRY(read_bytes(p, at, raw + (uint64_t)c * strip, strip));
    }
    return HY_OK;
}

/* Rows 2i and 2i+1 of a head become its rows i and i + D/2. */
static void unpair(const char *raw, int64_t rows, size_t row_bytes, int32_t head, char *out) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t in_head = r % head, begin = r - in_head;
        int64_t to = begin + in_head / 2 + (in_head % 2 ? head / 2 : 0);
        memcpy(out + (size_t)to * row_bytes, raw + (size_t)r * row_bytes, row_bytes);
    }
}

/* In the store's order, still of the file's type; may use the other buffer. */
static char *in_order(const job *j, buffers *b) {
    const hy_weight_part *p = j->part;
    size_t size = hy_dtype_size(p->dtype);
    if (p->order == HY_PART_PLAIN) return b->raw;
    if (p->order == HY_PART_TRANSPOSED) {
        hy_transpose(b->raw, j->rows, p->cols, size, b->made);
    } else {
        unpair(b->raw, j->rows, (size_t)p->cols * size, p->head_size, b->made);
    }
    char *ordered = b->made;
    b->made = b->raw;
    b->raw = ordered;
    return ordered;
}

static hy_status send_home(loading *l, uint64_t at, const char *data, uint64_t bytes) {
    pthread_mutex_lock(&l->gate);
    hy_status status = hy_store_write_home(l->store, l->stream, at, data, bytes);
    pthread_mutex_unlock(&l->gate);
    return status;
}

static hy_status do_job(loading *l, const job *j, buffers *b) {
    const hy_weight_part *p = j->part;
    hy_dtype wanted = l->store->layout.items[p->param].dtype;
    int64_t elements = j->rows * p->cols;
    uint64_t size = hy_dtype_size(wanted);
    uint64_t at = hy_store_offset(l->store, p->param) +
                  (uint64_t)(p->row + j->first) * (uint64_t)p->cols * size;
    if (l->home && p->order == HY_PART_PLAIN && p->dtype == wanted) {
        return read_job(j, l->home + at);
    }
    HY_TRY(read_job(j, b->raw));
    const char *ordered = in_order(j, b);
    char *to = l->home ? l->home + at : b->made;
    hy_convert(ordered, p->dtype, elements, to, wanted);
    return l->home ? HY_OK : send_home(l, at, to, (uint64_t)elements * size);
}

/* ---- all of them ------------------------------------------------------------------------------- */

static void keep_failure(loading *l, hy_status status) {
    pthread_mutex_lock(&l->gate);
    if (l->status == HY_OK) {
        l->status = status;
        snprintf(l->message, sizeof l->message, "%s", hy_error_message());
    }
    atomic_store(&l->has_failed, true);
    pthread_mutex_unlock(&l->gate);
}

static void work(loading *l, bool tells) {
    buffers b = {.raw = malloc((size_t)l->largest * WIDEST),
                 .made = malloc((size_t)l->largest * WIDEST)};
    hy_status status =
        b.raw && b.made ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory to read weights");
    while (status == HY_OK && !atomic_load(&l->has_failed)) {
        int64_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->count) break;
        status = do_job(l, &l->jobs[i], &b);
        double done = (double)atomic_fetch_add(&l->done, 1) + 1;
        if (tells && l->options && l->options->on_progress) {
            l->options->on_progress(l->options->user, done / (double)l->count);
        }
    }
    if (status != HY_OK) keep_failure(l, status);
    free(b.raw);
    free(b.made);
}

static void *work_beside(void *argument) {
    work(argument, false);
    return NULL;
}

static hy_status run_jobs(loading *l) {
    pthread_t thread[MOST_THREADS];
    int asked = l->options && l->options->threads > 0 ? l->options->threads : hy_machine_threads();
    int threads = 0, most = asked < MOST_THREADS ? asked : MOST_THREADS;
    if (l->count < most) most = (int)l->count;
    while (threads < most - 1 && pthread_create(&thread[threads], NULL, work_beside, l) == 0) {
        threads++;
    }
    work(l, true);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    return l->status == HY_OK ? HY_OK : hy_fail(l->status, "%s", l->message);
}

/* Rows behind the vocabulary. */
static hy_status zero_padding(loading *l) {
    static const char zeros[4096];
    for (int32_t i = 0; i < l->model->params.count; i++) {
        const hy_param *param = &l->model->params.list[i];
        uint64_t size = hy_dtype_size(l->store->layout.items[i].dtype);
        uint64_t begin = hy_store_offset(l->store, i), end = begin + (uint64_t)param->count * size;
        for (uint64_t at = begin + (uint64_t)param->stored * size; at < end; at += sizeof zeros) {
            uint64_t bytes = end - at < sizeof zeros ? end - at : sizeof zeros;
            HY_TRY(hy_store_write_home(l->store, l->stream, at, zeros, bytes));
        }
    }
    return HY_OK;
}

static hy_status load(loading *l, const hy_weight_files *files) {
    HY_TRY(cut(l, files));
    HY_TRY(hy_store_settle(l->store));
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
    if (hy_store_is_host(store) && store->data) l.home = store->data;
    pthread_mutex_init(&l.gate, NULL);
    hy_status status = load(&l, &files);
    pthread_mutex_destroy(&l.gate);
    free(l.jobs);
    hy_weight_files_close(&files);
    return status;
}
