/* stream.cu: streams and events, based on CUDA's.
 *
 * The time that a stream waits for an event is measured on the card: a pair of timed events around
 * each wait, read after both have passed. A wait for an event that is already done needs no pair.
 * Pairs come from a small ring; if it is full, the oldest is read first, waiting for it if
 * necessary.
 *
 * Host functions run on a thread of the driver, with records from a ring as well. The first failure
 * leaves status and message on the stream; later functions are skipped until sync reports it. Other
 * enqueued work runs anyway, because the card already has it. */
#include "kernels/cuda/backend.cuh"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WAIT_PAIRS 256 /* a streamed step of a large model waits about 200 times */

#define HOST_CALLS 1024 /* host functions in flight; a caller that finds it full waits */

typedef struct wait_pair {
    cudaEvent_t before, after;
} wait_pair;

typedef struct host_call {
    hy_stream *stream;
    hy_status (*function)(void *argument);
    void *argument;
} host_call;

struct hy_stream {
    hy_cuda *cuda;
    cudaStream_t handle;
    wait_pair pairs[WAIT_PAIRS];
    int first, count; /* of the pairs in use */
    double waited;
    bool is_adopted; /* owned by the caller: not destroyed here, and its waits are not measured */
    host_call calls[HOST_CALLS];
    uint64_t asked;       /* functions enqueued so far */
    pthread_mutex_t lock; /* for the following members, which the driver's thread writes */
    uint64_t called;      /* functions that are done or were skipped */
    hy_status failure;
    char message[HY_ERROR_MESSAGE_MAX];
};

struct hy_event {
    hy_cuda *cuda;
    cudaEvent_t handle;
    bool was_recorded;
};

void *hy_cuda_stream_driver(hy_stream *s) { return (void *)s->handle; }
hy_cuda *hy_cuda_stream_owner(hy_stream *s) { return s->cuda; }

/* ---- events ---------------------------------------------------------------------------------- */

static hy_status event_create(hy_backend *b, hy_event **out) {
    hy_cuda *cuda = (hy_cuda *)b->self;
    *out = NULL;
    hy_event *e = (hy_event *)calloc(1, sizeof *e);
    if (!e) return hy_cuda_fail(cuda, HY_ERR_MEMORY, "not enough memory for an event");
    e->cuda = cuda;
    hy_status status = hy_cuda_check(
        cuda, cudaEventCreateWithFlags(&e->handle, cudaEventDisableTiming), "making an event");
    if (status != HY_OK) {
        free(e);
        return status;
    }
    *out = e;
    return HY_OK;
}

static void event_destroy(hy_event *e) {
    if (!e) return;
    cudaEventDestroy(e->handle);
    free(e);
}

static hy_status event_record(hy_event *e, hy_stream *s) {
    HY_TRY(hy_cuda_check(e->cuda, cudaEventRecord(e->handle, s->handle), "recording an event"));
    e->was_recorded = true;
    return HY_OK;
}

static hy_status event_sync(hy_event *e) {
    if (!e->was_recorded) return HY_OK;
    return hy_cuda_check(e->cuda, cudaEventSynchronize(e->handle), "waiting for an event");
}

static bool event_is_done(hy_event *e) {
    if (!e->was_recorded) return true;
    cudaError_t state = cudaEventQuery(e->handle);
    if (state == cudaErrorNotReady) cudaGetLastError();
    return state == cudaSuccess;
}

/* ---- streams --------------------------------------------------------------------------------- */

static hy_stream *new_stream(hy_cuda *cuda) {
    hy_stream *s = (hy_stream *)calloc(1, sizeof *s);
    if (!s) return NULL;
    s->cuda = cuda;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

static void free_stream(hy_stream *s) {
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* Functions in flight use the memory of the stream. */
static bool has_calls(hy_stream *s) {
    pthread_mutex_lock(&s->lock);
    bool is_so = s->called < s->asked;
    pthread_mutex_unlock(&s->lock);
    return is_so;
}

static void stream_destroy(hy_stream *s) {
    if (!s) return;
    if (s->is_adopted) {
        if (has_calls(s)) cudaStreamSynchronize(s->handle);
        free_stream(s);
        return;
    }
    if (s->handle) cudaStreamSynchronize(s->handle);
    for (int i = 0; i < WAIT_PAIRS; i++) {
        if (s->pairs[i].before) cudaEventDestroy(s->pairs[i].before);
        if (s->pairs[i].after) cudaEventDestroy(s->pairs[i].after);
    }
    if (s->handle) cudaStreamDestroy(s->handle);
    free_stream(s);
}

static hy_status stream_create(hy_backend *b, const char *name, hy_stream **out) {
    (void)name;
    hy_cuda *cuda = (hy_cuda *)b->self;
    *out = NULL;
    hy_stream *s = new_stream(cuda);
    if (!s) return hy_cuda_fail(cuda, HY_ERR_MEMORY, "not enough memory for a stream");
    cudaError_t error = cudaStreamCreateWithFlags(&s->handle, cudaStreamNonBlocking);
    for (int i = 0; i < 2 * WAIT_PAIRS && error == cudaSuccess; i++) {
        wait_pair *pair = &s->pairs[i / 2];
        error = cudaEventCreate(i % 2 ? &pair->after : &pair->before);
    }
    hy_status status = hy_cuda_check(cuda, error, "making a stream");
    if (status != HY_OK) {
        stream_destroy(s);
        return status;
    }
    *out = s;
    return HY_OK;
}

static hy_status stream_adopt(hy_backend *b, void *handle, hy_stream **out) {
    hy_cuda *cuda = (hy_cuda *)b->self;
    unsigned flags;
    *out = NULL;
    /* An invalid handle is detected here, not in the first step. */
    HY_TRY(hy_cuda_check(cuda, cudaStreamGetFlags((cudaStream_t)handle, &flags),
                         "querying the caller's stream"));
    hy_stream *s = new_stream(cuda);
    if (!s) return hy_cuda_fail(cuda, HY_ERR_MEMORY, "not enough memory for a stream");
    s->handle = (cudaStream_t)handle;
    s->is_adopted = true;
    *out = s;
    return HY_OK;
}

static void read_oldest_wait(hy_stream *s) {
    wait_pair *pair = &s->pairs[s->first];
    float milliseconds = 0;
    cudaEventSynchronize(pair->after);
    if (cudaEventElapsedTime(&milliseconds, pair->before, pair->after) == cudaSuccess) {
        s->waited += (double)milliseconds * 1e-3;
    } else {
        cudaGetLastError(); /* an unknown time is not a failure of the next launch */
    }
    s->first = (s->first + 1) % WAIT_PAIRS;
    s->count--;
}

/* Reports the failure of a host function; called when all of them are done. */
static hy_status report_failure(hy_stream *s) {
    pthread_mutex_lock(&s->lock);
    hy_status failure = s->failure;
    if (failure != HY_OK) hy_cuda_fail(s->cuda, failure, "%s", s->message);
    s->failure = HY_OK;
    pthread_mutex_unlock(&s->lock);
    return failure;
}

static hy_status stream_sync(hy_stream *s) {
    HY_TRY(hy_cuda_check(s->cuda, cudaStreamSynchronize(s->handle), "waiting for the card"));
    while (s->count > 0) read_oldest_wait(s);
    return report_failure(s);
}

static double stream_waited(hy_stream *s) {
    while (s->count > 0 && cudaEventQuery(s->pairs[s->first].after) == cudaSuccess) {
        read_oldest_wait(s);
    }
    cudaGetLastError(); /* "not ready" */
    return s->waited;
}

/* ---- host functions -------------------------------------------------------------------------- */

/* Runs on a thread of the driver, in stream order. */
static void CUDART_CB run_call(void *argument) {
    const host_call *c = (const host_call *)argument;
    hy_stream *s = c->stream;
    pthread_mutex_lock(&s->lock);
    bool is_failed = s->failure != HY_OK;
    pthread_mutex_unlock(&s->lock);
    hy_status status = is_failed ? HY_OK : c->function(c->argument);
    pthread_mutex_lock(&s->lock);
    if (status != HY_OK) {
        s->failure = status;
        snprintf(s->message, sizeof s->message, "%s", s->cuda->host.error_message());
    }
    s->called++;
    pthread_mutex_unlock(&s->lock);
}

/* A card that has failed calls no functions any more, so the stream is checked, too. */
static hy_status await_room(hy_stream *s) {
    for (;;) {
        pthread_mutex_lock(&s->lock);
        bool has_room = s->asked - s->called < HOST_CALLS;
        pthread_mutex_unlock(&s->lock);
        if (has_room) return HY_OK;
        cudaError_t state = cudaStreamQuery(s->handle);
        if (state != cudaErrorNotReady) {
            HY_TRY(hy_cuda_check(s->cuda, state, "waiting for host functions"));
        }
        cudaGetLastError(); /* "not ready" */
        usleep(100);
    }
}

static hy_status stream_call(hy_stream *s, hy_status (*function)(void *argument), void *argument) {
    HY_TRY(await_room(s));
    host_call *c = &s->calls[s->asked % HOST_CALLS];
    *c = host_call{s, function, argument};
    HY_TRY(hy_cuda_check(s->cuda, cudaLaunchHostFunc(s->handle, run_call, c),
                         "enqueueing a host function"));
    s->asked++;
    return HY_OK;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The card's copy engine does one copy after another, from whatever stream: the tokens of a batch
 * would wait for gigabytes of state in the same direction. A kernel copies small amounts, which
 * needs no copy engine, if the card can access the host memory directly. */
#define LITTLE ((size_t)256 << 10)
#define LITTLE_THREADS 256

static __global__ void copy_words(uint32_t *dst, const uint32_t *src, int count) {
    int i = blockIdx.x * LITTLE_THREADS + threadIdx.x;
    if (i < count) dst[i] = src[i];
}

/* The address for a kernel; NULL: pageable memory. */
static void *seen_by_card(const void *p, bool *is_host) {
    cudaPointerAttributes a;
    if (cudaPointerGetAttributes(&a, p) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    *is_host = a.type == cudaMemoryTypeHost;
    return a.type == cudaMemoryTypeUnregistered ? NULL : a.devicePointer;
}

static bool copy_little(hy_stream *s, void *dst, const void *src, size_t bytes) {
    bool is_to_host = false, is_from_host = false;
    if (bytes > LITTLE || bytes % 4 != 0) return false;
    void *to = seen_by_card(dst, &is_to_host), *from = seen_by_card(src, &is_from_host);
    if (!to || !from || is_to_host == is_from_host) return false;
    int count = (int)(bytes / 4);
    copy_words<<<(count + LITTLE_THREADS - 1) / LITTLE_THREADS, LITTLE_THREADS, 0, s->handle>>>(
        (uint32_t *)to, (const uint32_t *)from, count);
    return cudaGetLastError() == cudaSuccess;
}

static hy_status stream_copy(hy_stream *s, void *dst, const void *src, size_t bytes) {
    if (bytes == 0 || dst == src || copy_little(s, dst, src, bytes)) return HY_OK;
    return hy_cuda_check(s->cuda, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->handle),
                         "copying");
}

static hy_status stream_wait(hy_stream *s, hy_event *e) {
    if (!e->was_recorded || event_is_done(e)) return HY_OK;
    if (s->is_adopted) {
        return hy_cuda_check(s->cuda, cudaStreamWaitEvent(s->handle, e->handle, 0),
                             "making the caller's stream wait");
    }
    if (s->count == WAIT_PAIRS) read_oldest_wait(s);
    wait_pair *pair = &s->pairs[(s->first + s->count) % WAIT_PAIRS];
    HY_TRY(hy_cuda_check(s->cuda, cudaEventRecord(pair->before, s->handle), "timing a wait"));
    HY_TRY(hy_cuda_check(s->cuda, cudaStreamWaitEvent(s->handle, e->handle, 0),
                         "waiting for an event"));
    HY_TRY(hy_cuda_check(s->cuda, cudaEventRecord(pair->after, s->handle), "timing a wait"));
    s->count++;
    return HY_OK;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

struct hy_graph {
    cudaGraphExec_t handle;
};

static hy_status capture_begin(hy_stream *s) {
    HY_TRY(hy_cuda_check(s->cuda,
                         cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal),
                         "beginning a graph capture"));
    s->cuda->captures++;
    return HY_OK;
}

/* Ends the capture in any case, so that the stream can be used again. */
static hy_status capture_end(hy_stream *s, hy_graph **out) {
    cudaGraph_t captured = NULL;
    *out = NULL;
    hy_graph *graph = (hy_graph *)calloc(1, sizeof *graph);
    cudaError_t error = cudaStreamEndCapture(s->handle, &captured);
    if (s->cuda->captures > 0) s->cuda->captures--;
    if (error == cudaSuccess && graph) error = cudaGraphInstantiate(&graph->handle, captured, 0);
    if (captured) cudaGraphDestroy(captured);
    if (!graph) return hy_cuda_fail(s->cuda, HY_ERR_MEMORY, "not enough memory for a graph");
    if (error != cudaSuccess) {
        free(graph);
        return hy_cuda_check(s->cuda, error, "capturing a graph");
    }
    *out = graph;
    return HY_OK;
}

static hy_status replay(hy_stream *s, hy_graph *graph) {
    return hy_cuda_check(s->cuda, cudaGraphLaunch(graph->handle, s->handle), "replaying a graph");
}

static void graph_destroy(hy_graph *graph) {
    if (!graph) return;
    cudaGraphExecDestroy(graph->handle);
    free(graph);
}

void hy_cuda_add_streams(hy_backend *b) {
    b->stream_create = stream_create;
    b->stream_adopt = stream_adopt;
    b->stream_handle = hy_cuda_stream_driver;
    b->stream_destroy = stream_destroy;
    b->stream_sync = stream_sync;
    b->stream_waited = stream_waited;
    b->stream_wait = stream_wait;
    b->event_create = event_create;
    b->event_destroy = event_destroy;
    b->event_record = event_record;
    b->event_sync = event_sync;
    b->event_is_done = event_is_done;
    b->copy = stream_copy;
    b->call = stream_call;
    b->capture_begin = capture_begin;
    b->capture_end = capture_end;
    b->replay = replay;
    b->graph_destroy = graph_destroy;
}
