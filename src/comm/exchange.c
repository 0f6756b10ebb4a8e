/* exchange.c: jobs between ranks on a stream. See exchange.h. */
#include "comm/exchange.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

/* ---- opening ----------------------------------------------------------------------------------------- */

static hy_status make_jobs(hy_exchange *net, int32_t count) {
    int32_t ranks = net->team->who.count;
    net->jobs = calloc((size_t)count, sizeof *net->jobs);
    net->pieces = calloc((size_t)count * 2 * (size_t)ranks, sizeof *net->pieces);
    HY_FAIL_IF(!net->jobs || !net->pieces, HY_ERR_MEMORY, "no memory for exchanges between ranks");
    for (int32_t i = 0; i < count; i++) {
        hy_job *job = &net->jobs[i];
        net->job_count = i + 1; /* closing frees what it has, also where the next line fails */
        job->net = net;
        job->sends = net->pieces + (int64_t)i * 2 * ranks;
        job->receives = job->sends + ranks;
        HY_TRY(net->backend->event_create(net->backend, &job->is_ready));
        HY_TRY(net->backend->event_create(net->backend, &job->is_done));
    }
    return HY_OK;
}

hy_status hy_exchange_open(hy_exchange *net, hy_team *team, hy_backend *backend, int32_t jobs) {
    *net = (hy_exchange){.team = team, .backend = backend};
    size_t bytes = HY_EXCHANGE_NUMBERS * ((size_t)team->who.count + 1) * sizeof *net->numbers;
    HY_TRY(backend->stream_create(backend, "ranks", &net->stream));
    HY_TRY(backend->alloc(backend, HY_PINNED, bytes, (void **)&net->numbers));
    return make_jobs(net, jobs);
}

hy_status hy_exchange_connect(hy_exchange *net) {
    return net->team->uses_nccl ? hy_nccl_open(net->team->control, &net->nccl) : HY_OK;
}

void hy_exchange_close(hy_exchange *net) {
    hy_backend *b = net->backend;
    if (net->stream) (void)b->stream_sync(net->stream); /* a failure was told */
    hy_nccl_close(net->nccl);
    for (int32_t i = 0; i < net->job_count; i++) {
        if (net->jobs[i].is_ready) b->event_destroy(net->jobs[i].is_ready);
        if (net->jobs[i].is_done) b->event_destroy(net->jobs[i].is_done);
    }
    if (net->numbers) b->release(b, HY_PINNED, net->numbers, 0);
    if (net->stream) b->stream_destroy(net->stream);
    free(net->jobs);
    free(net->pieces);
    *net = (hy_exchange){0};
}

/* ---- what runs in the stream's order ----------------------------------------------------------------- */

/* The others learn of it at once: they may wait for this rank. */
static hy_status tell(hy_exchange *net, hy_status status) {
    return status == HY_OK ? HY_OK : hy_team_fail(net->team, status);
}

static void count_since(hy_exchange *net, double begin) {
    atomic_fetch_add(&net->busy, (uint64_t)((hy_clock() - begin) * 1e9));
}

static hy_status exchange(void *argument) {
    const hy_job *job = argument;
    double begin = hy_clock();
    hy_status status = hy_link_exchange(job->net->team->link, job->sends, job->send_count,
                                        job->receives, job->receive_count);
    count_since(job->net, begin);
    return tell(job->net, status);
}

static hy_status add_up(void *argument) {
    const hy_job *job = argument;
    const hy_ranks *who = &job->net->team->who;
    double *mine = job->net->numbers, *all = mine + HY_EXCHANGE_NUMBERS;
    int32_t n = job->numbers;
    memcpy(all + (int64_t)who->rank * n, mine, (size_t)n * sizeof *mine);
    HY_TRY(exchange(argument));
    for (int32_t i = 0; i < n; i++) {
        mine[i] = all[i];
        for (int32_t r = 1; r < who->count; r++) mine[i] += all[(int64_t)r * n + i];
    }
    return HY_OK;
}

/* ---- jobs -------------------------------------------------------------------------------------------- */

hy_status hy_job_begin(hy_exchange *net, hy_job **out) {
    hy_job *job = &net->jobs[net->next];
    assert(net->nccl || !net->team->uses_nccl); /* connected, or it would go over the link unseen */
    net->next = (net->next + 1) % net->job_count;
    if (job->is_sent) HY_TRY(net->backend->event_sync(job->is_done));
    job->send_count = job->receive_count = job->numbers = 0;
    *out = job;
    return HY_OK;
}

void hy_job_send(hy_job *job, int32_t peer, const void *data, uint64_t bytes) {
    if (bytes == 0) return;
    assert(job->send_count < job->net->team->who.count);
    job->sends[job->send_count++] =
        (hy_piece){.peer = peer, .data = (void *)(uintptr_t)data, .bytes = bytes};
}

void hy_job_receive(hy_job *job, int32_t peer, void *data, uint64_t bytes) {
    if (bytes == 0) return;
    assert(job->receive_count < job->net->team->who.count);
    job->receives[job->receive_count++] = (hy_piece){.peer = peer, .data = data, .bytes = bytes};
}

/* From the card to pinned memory, in the order of pieces; what goes to several ranks goes down once. */
static hy_status stage_sends(hy_job *job, uint64_t *used) {
    hy_exchange *net = job->net;
    const void *last = NULL;
    for (int32_t i = 0; i < job->send_count; i++) {
        hy_piece *p = &job->sends[i];
        if (p->data == last) {
            p->data = job->sends[i - 1].data;
            continue;
        }
        last = p->data;
        assert(*used + p->bytes <= net->staging_bytes);
        HY_TRY(net->backend->copy(net->stream, net->staging + *used, p->data, p->bytes));
        p->data = net->staging + *used;
        *used += p->bytes;
    }
    return HY_OK;
}

static hy_status run_staged(hy_job *job) {
    hy_exchange *net = job->net;
    uint64_t used = 0, first;
    HY_TRY(stage_sends(job, &used));
    first = used;
    char *device[HY_RANKS_MOST];
    for (int32_t i = 0; i < job->receive_count; i++) {
        hy_piece *p = &job->receives[i];
        assert(used + p->bytes <= net->staging_bytes);
        device[i] = p->data;
        p->data = net->staging + used;
        used += p->bytes;
    }
    HY_TRY(net->backend->call(net->stream, exchange, job));
    for (int32_t i = 0; i < job->receive_count; i++) {
        uint64_t bytes = job->receives[i].bytes;
        HY_TRY(net->backend->copy(net->stream, device[i], net->staging + first, bytes));
        first += bytes;
    }
    return HY_OK;
}

static hy_status enqueue_nccl(hy_job *job, void *stream) {
    hy_exchange *net = job->net;
    return tell(net, hy_nccl_exchange(net->nccl, job->sends, job->send_count, job->receives,
                                      job->receive_count, stream));
}

/* A library that stands in for NCCL, where there is no card: in the order of the stream, too. */
static hy_status call_nccl(void *argument) {
    hy_job *job = argument;
    double begin = hy_clock();
    hy_status status = enqueue_nccl(job, NULL);
    count_since(job->net, begin);
    return status;
}

/* NCCL's exchanges are work of the card, which the host does not see begin or end. */
static bool runs_on_card(const hy_exchange *net) {
    return net->nccl && net->backend->stream_handle;
}

static hy_status run(hy_job *job) {
    hy_exchange *net = job->net;
    hy_backend *b = net->backend;
    if (runs_on_card(net)) return enqueue_nccl(job, b->stream_handle(net->stream));
    if (net->nccl) return b->call(net->stream, call_nccl, job);
    return net->staging ? run_staged(job) : b->call(net->stream, exchange, job);
}

hy_status hy_job_go(hy_job *job, hy_stream *after) {
    hy_exchange *net = job->net;
    hy_backend *b = net->backend;
    HY_TRY(b->event_record(job->is_ready, after));
    HY_TRY(b->stream_wait(net->stream, job->is_ready));
    HY_TRY(run(job));
    job->is_sent = true;
    return b->event_record(job->is_done, net->stream);
}

hy_status hy_job_await(const hy_job *job, hy_stream *stream) {
    return job->net->backend->stream_wait(stream, job->is_done);
}

hy_status hy_exchange_sum(hy_exchange *net, hy_stream *stream, double *const *numbers,
                          int32_t count) {
    hy_backend *b = net->backend;
    const hy_ranks *who = &net->team->who;
    double *all = net->numbers + HY_EXCHANGE_NUMBERS;
    uint64_t bytes = (uint64_t)count * sizeof(double);
    hy_job *job;
    assert(count <= HY_EXCHANGE_NUMBERS);
    HY_TRY(hy_job_begin(net, &job));
    job->numbers = count;
    for (int32_t i = 1; i < who->count; i++) {
        int32_t to = (who->rank + i) % who->count, from = (who->rank + who->count - i) % who->count;
        hy_job_send(job, to, net->numbers, bytes);
        hy_job_receive(job, from, all + (int64_t)from * count, bytes);
    }
    HY_TRY(b->event_record(job->is_ready, stream));
    HY_TRY(b->stream_wait(net->stream, job->is_ready));
    for (int32_t i = 0; i < count; i++) {
        HY_TRY(b->copy(net->stream, net->numbers + i, numbers[i], sizeof(double)));
    }
    HY_TRY(b->call(net->stream, add_up, job));
    for (int32_t i = 0; i < count; i++) {
        HY_TRY(b->copy(net->stream, numbers[i], net->numbers + i, sizeof(double)));
    }
    job->is_sent = true;
    HY_TRY(b->event_record(job->is_done, net->stream));
    return hy_job_await(job, stream);
}

double hy_exchange_seconds(hy_exchange *net) {
    return runs_on_card(net) ? NAN : (double)atomic_load(&net->busy) * 1e-9;
}

uint64_t hy_exchange_sent(const hy_exchange *net) {
    return hy_link_bytes_sent(net->team->link) + (net->nccl ? hy_nccl_bytes_sent(net->nccl) : 0);
}

hy_status hy_exchange_check(hy_exchange *net) {
    HY_TRY(hy_control_check(net->team->control));
    return net->nccl ? tell(net, hy_nccl_check(net->nccl)) : HY_OK;
}
