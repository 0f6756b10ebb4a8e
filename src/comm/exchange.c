/* exchange.c: ops between ranks on a stream. See exchange.h. */
#include "comm/exchange.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status make_ops(hy_exchange *net, int32_t count) {
    int32_t ranks = net->count;
    net->ops = calloc((size_t)count, sizeof *net->ops);
    net->transfers = calloc((size_t)count * 2 * (size_t)ranks, sizeof *net->transfers);
    HY_FAIL_IF(!net->ops || !net->transfers, HY_ERR_MEMORY,
               "no memory for exchanges between ranks");
    for (int32_t i = 0; i < count; i++) {
        hy_comm_op *op = &net->ops[i];
        net->op_count = i + 1; /* closing frees it, even if the next line fails */
        op->net = net;
        op->sends = net->transfers + (int64_t)i * 2 * ranks;
        op->receives = op->sends + ranks;
        HY_TRY(net->backend->event_create(net->backend, &op->is_ready));
        HY_TRY(net->backend->event_create(net->backend, &op->is_done));
    }
    return HY_OK;
}

hy_status hy_exchange_open(hy_exchange *net, hy_team *team, hy_backend *backend, int32_t ops) {
    *net = (hy_exchange){
        .rank = team->who.rank, .count = team->who.count, .team = team, .backend = backend};
    size_t bytes = HY_EXCHANGE_NUMBERS * ((size_t)team->who.count + 1) * sizeof *net->numbers;
    HY_TRY(backend->stream_create(backend, "ranks", &net->stream));
    HY_TRY(backend->alloc(backend, HY_PINNED, bytes, (void **)&net->numbers));
    return make_ops(net, ops);
}

void hy_exchange_open_dry(hy_exchange *net, int32_t rank, int32_t count) {
    *net = (hy_exchange){.rank = rank, .count = count, .is_dry = true, .dry_op.net = net};
}

hy_status hy_exchange_connect(hy_exchange *net) {
    bool uses_nccl = net->count > 0 && net->team->uses_nccl;
    return uses_nccl ? hy_nccl_open(net->team->control, &net->nccl) : HY_OK;
}

void hy_exchange_close(hy_exchange *net) {
    hy_backend *b = net->backend;
    if (net->stream) (void)b->stream_sync(net->stream); /* its failures were reported before */
    hy_nccl_close(net->nccl);
    for (int32_t i = 0; i < net->op_count; i++) {
        if (net->ops[i].is_ready) b->event_destroy(net->ops[i].is_ready);
        if (net->ops[i].is_done) b->event_destroy(net->ops[i].is_done);
    }
    if (net->numbers) b->release(b, HY_PINNED, net->numbers, 0);
    if (net->stream) b->stream_destroy(net->stream);
    free(net->ops);
    free(net->transfers);
    *net = (hy_exchange){0};
}

/* ---- calls in the order of the stream -------------------------------------------------------- */

/* A failure is sent to the other ranks at once: they may wait for this rank. */
static hy_status run_transfers(const hy_comm_op *op, hy_nccl *nccl, void *stream) {
    hy_exchange *net = op->net;
    double begin = hy_clock();
    hy_status status = nccl ? hy_nccl_exchange(nccl, op->sends, op->send_count, op->receives,
                                               op->receive_count, stream)
                            : hy_link_exchange(net->team->link, op->sends, op->send_count,
                                               op->receives, op->receive_count);
    atomic_fetch_add(&net->busy, (uint64_t)((hy_clock() - begin) * 1e9));
    return hy_team_fail(net->team, status);
}

hy_status hy_comm_exchange(void *op) { return run_transfers(op, NULL, NULL); }

/* A stand-in for NCCL without a card, for tests. */
static hy_status call_nccl(void *argument) {
    const hy_comm_op *op = argument;
    return run_transfers(op, op->net->nccl, NULL);
}

/* ---- ops ------------------------------------------------------------------------------------- */

hy_status hy_comm_begin(hy_exchange *net, hy_comm_op **out) {
    *out = &net->dry_op;
    if (net->is_dry) return HY_OK;
    hy_comm_op *op = &net->ops[net->next];
    /* hy_exchange_connect was called; otherwise the op would silently use the link */
    assert(net->nccl || !net->team->uses_nccl);
    net->next = (net->next + 1) % net->op_count;
    if (op->was_started) HY_TRY(net->backend->event_sync(op->is_done));
    op->send_count = op->receive_count = op->numbers = 0;
    *out = op;
    return HY_OK;
}

void hy_comm_send(hy_comm_op *op, int32_t peer, const void *data, uint64_t bytes) {
    if (op->net->is_dry && peer != op->net->rank) op->net->dry_bytes += bytes;
    if (bytes == 0 || op->net->is_dry) return;
    assert(op->send_count < op->net->team->who.count);
    op->sends[op->send_count++] =
        (hy_transfer){.peer = peer, .data = (void *)(uintptr_t)data, .bytes = bytes};
}

void hy_comm_receive(hy_comm_op *op, int32_t peer, void *data, uint64_t bytes) {
    if (bytes == 0 || op->net->is_dry) return;
    assert(op->receive_count < op->net->team->who.count);
    op->receives[op->receive_count++] = (hy_transfer){.peer = peer, .data = data, .bytes = bytes};
}

/* Copies from the card to pinned memory, in the order of transfers; data for several ranks is
 * copied once. */
static hy_status stage_sends(hy_comm_op *op, uint64_t *used) {
    hy_exchange *net = op->net;
    const void *last = NULL;
    for (int32_t i = 0; i < op->send_count; i++) {
        hy_transfer *p = &op->sends[i];
        if (p->data == last) {
            p->data = op->sends[i - 1].data;
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

static hy_status run_staged(hy_comm_op *op) {
    hy_exchange *net = op->net;
    uint64_t used = 0, first;
    HY_TRY(stage_sends(op, &used));
    first = used;
    char *device[HY_RANKS_MOST] = {0};
    for (int32_t i = 0; i < op->receive_count; i++) {
        hy_transfer *p = &op->receives[i];
        assert(used + p->bytes <= net->staging_bytes);
        device[i] = p->data;
        p->data = net->staging + used;
        used += p->bytes;
    }
    HY_TRY(net->backend->call(net->stream, hy_comm_exchange, op));
    for (int32_t i = 0; i < op->receive_count; i++) {
        uint64_t bytes = op->receives[i].bytes;
        HY_TRY(net->backend->copy(net->stream, device[i], net->staging + first, bytes));
        first += bytes;
    }
    return HY_OK;
}

/* NCCL's exchanges run on the card; the host does not see their begin or end. */
static bool runs_on_card(const hy_exchange *net) {
    return net->nccl && net->backend->stream_handle;
}

static hy_status run(hy_comm_op *op) {
    hy_exchange *net = op->net;
    hy_backend *b = net->backend;
    if (runs_on_card(net)) return run_transfers(op, net->nccl, b->stream_handle(net->stream));
    if (net->nccl) return b->call(net->stream, call_nccl, op);
    return net->staging ? run_staged(op) : b->call(net->stream, hy_comm_exchange, op);
}

hy_status hy_comm_start(hy_comm_op *op, hy_stream *after) {
    hy_exchange *net = op->net;
    hy_backend *b = net->backend;
    net->dry_ops += net->is_dry;
    if (net->is_dry) return HY_OK;
    HY_TRY(b->event_record(op->is_ready, after));
    HY_TRY(b->stream_wait(net->stream, op->is_ready));
    HY_TRY(run(op));
    op->was_started = true;
    return b->event_record(op->is_done, net->stream);
}

hy_status hy_comm_wait(const hy_comm_op *op, hy_stream *stream) {
    bool is_done = !op || op->net->is_dry;
    return is_done ? HY_OK : op->net->backend->stream_wait(stream, op->is_done);
}

double hy_exchange_seconds(hy_exchange *net) {
    return runs_on_card(net) ? NAN : (double)atomic_load(&net->busy) * 1e-9;
}

uint64_t hy_exchange_sent(const hy_exchange *net) {
    return hy_link_bytes_sent(net->team->link) + (net->nccl ? hy_nccl_bytes_sent(net->nccl) : 0);
}

hy_status hy_exchange_check(hy_exchange *net) {
    if (net->count == 0) return HY_OK;
    HY_TRY(hy_control_check(net->team->control));
    return net->nccl ? hy_team_fail(net->team, hy_nccl_check(net->nccl)) : HY_OK;
}
