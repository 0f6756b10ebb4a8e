/* collectives.c: operations of all ranks, as sends and receives of one op. See collectives.h. */
#include "comm/collectives.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"

/* The number of ranks that this rank exchanges with: those 1 .. peers(net) places before and after
 * it. A team of one is its own peer. */
static int32_t peers(const hy_exchange *net) {
    return net->count > 1 ? net->count - 1 : net->count;
}
static int32_t rank_behind(const hy_exchange *net, int32_t places) {
    return (net->rank + places) % net->count;
}
static int32_t rank_before(const hy_exchange *net, int32_t places) {
    return (net->rank + net->count - places) % net->count;
}

hy_status hy_all_gather(hy_exchange *net, hy_stream *after, const char *own, char *whole,
                        const hy_comm_part *parts, hy_comm_op **out) {
    *out = NULL;
    if (peers(net) == 0) return HY_OK;
    HY_TRY(hy_comm_begin(net, out));
    for (int32_t i = 1; i <= peers(net); i++) {
        int32_t from = rank_before(net, i);
        hy_comm_send(*out, rank_behind(net, i), own, parts[net->rank].bytes);
        hy_comm_receive(*out, from, whole + parts[from].begin, parts[from].bytes);
    }
    return hy_comm_start(*out, after);
}

/* ---- reduce-scatter -------------------------------------------------------------------------- */

hy_status hy_reduce_scatter(hy_exchange *net, hy_stream *after, char *whole,
                            const hy_comm_part *parts, char *arriving, hy_reduction *out) {
    hy_comm_part own = net->count > 0 ? parts[net->rank] : (hy_comm_part){0};
    *out = (hy_reduction){
        .net = net, .own = whole + own.begin, .arriving = arriving, .bytes = own.bytes};
    if (peers(net) == 0) return HY_OK;
    HY_TRY(hy_comm_begin(net, &out->op));
    if (net->count == 1 && arriving) out->own = arriving; /* a team of one sends to itself */
    char *to = net->count > 1 ? arriving : out->own;
    for (int32_t i = 1; i <= peers(net); i++) {
        int32_t peer = rank_behind(net, i), from = rank_before(net, i);
        uint64_t place = (uint64_t)(from > net->rank ? from - 1 : from) * own.bytes;
        hy_comm_send(out->op, peer, whole + parts[peer].begin, parts[peer].bytes);
        hy_comm_receive(out->op, from, to + place, own.bytes);
    }
    return hy_comm_start(out->op, after);
}

hy_status hy_reduce_scatter_end(const hy_reduction *r, hy_stream *stream, hy_dtype dtype,
                                bool accumulates, char *out) {
    const hy_exchange *net = r->net;
    HY_TRY(hy_comm_wait(r->op, stream));
    if (r->bytes == 0 || out == r->own) return HY_OK;
    int64_t count = (int64_t)(r->bytes / hy_dtype_size(dtype));
    hy_op_call add = {
        .kind = HY_OP_ADD_PARTS,
        .attr = {.accumulate = accumulates,
                 .add_parts = {.count = net->count, .rank = net->rank, .stride = count}}};
    add.t[HY_ADD_PARTS_OWN] = hy_tensor_1d(r->own, dtype, count);
    if (net->count > 1) {
        add.t[HY_ADD_PARTS_PARTS] = hy_tensor_1d(r->arriving, dtype, count * (net->count - 1));
    }
    add.t[HY_ADD_PARTS_OUT] = hy_tensor_1d(out, dtype, count);
    return net->backend->enqueue(stream, &add);
}

/* ---- broadcast ------------------------------------------------------------------------------- */

hy_status hy_broadcast(hy_exchange *net, hy_stream *after, int32_t root, void *data, uint64_t bytes,
                       hy_comm_op **out) {
    *out = NULL;
    if (net->count <= 1) return HY_OK;
    HY_TRY(hy_comm_begin(net, out));
    for (int32_t to = 0; net->rank == root && to < net->count; to++) {
        if (to != root) hy_comm_send(*out, to, data, bytes);
    }
    if (net->rank != root) hy_comm_receive(*out, root, data, bytes);
    return hy_comm_start(*out, after);
}

/* ---- all-reduce ------------------------------------------------------------------------------ */

/* (ranks, count): the numbers of all ranks, after this rank's own. */
static double *all(const hy_exchange *net) { return net->numbers + HY_EXCHANGE_NUMBERS; }

/* Runs in the order of the stream. */
static hy_status add_up(void *argument) {
    const hy_comm_op *op = argument;
    const hy_exchange *net = op->net;
    double *mine = net->numbers, *of_all = all(net);
    int32_t n = op->numbers;
    memcpy(of_all + (int64_t)net->rank * n, mine, (size_t)n * sizeof *mine);
    HY_TRY(hy_comm_exchange(argument));
    for (int32_t i = 0; i < n; i++) {
        mine[i] = of_all[i];
        for (int32_t r = 1; r < net->count; r++) mine[i] += of_all[(int64_t)r * n + i];
    }
    return HY_OK;
}

/* The numbers pass through pinned memory and the team's link, even if NCCL moves everything
 * else. */
hy_status hy_all_reduce(hy_exchange *net, hy_stream *stream, double *const *numbers,
                        int32_t count) {
    hy_backend *b = net->backend;
    uint64_t bytes = (uint64_t)count * sizeof(double);
    hy_comm_op *op;
    assert(count <= HY_EXCHANGE_NUMBERS);
    if (net->count <= 1) return HY_OK;
    HY_TRY(hy_comm_begin(net, &op));
    op->numbers = count;
    for (int32_t i = 1; i <= peers(net); i++) {
        int32_t from = rank_before(net, i);
        hy_comm_send(op, rank_behind(net, i), net->numbers, bytes);
        if (!net->is_dry) hy_comm_receive(op, from, all(net) + (int64_t)from * count, bytes);
    }
    if (net->is_dry) return hy_comm_start(op, stream);
    HY_TRY(b->event_record(op->is_ready, stream));
    HY_TRY(b->stream_wait(net->stream, op->is_ready));
    for (int32_t i = 0; i < count; i++) {
        HY_TRY(b->copy(net->stream, net->numbers + i, numbers[i], sizeof(double)));
    }
    HY_TRY(b->call(net->stream, add_up, op));
    for (int32_t i = 0; i < count; i++) {
        HY_TRY(b->copy(net->stream, numbers[i], net->numbers + i, sizeof(double)));
    }
    op->was_started = true;
    HY_TRY(b->event_record(op->is_done, net->stream));
    return hy_comm_wait(op, stream);
}
