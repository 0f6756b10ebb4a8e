/* cost.c: estimates the seconds of an optimizer step for a choice. See plan.h.
 *
 * A step is a series of walks over all units: forward and backward of each micro-batch, and the
 * update, which is a walk at the end or part of the first forward. In a walk, compute, upload,
 * download and disk overlap, and the slowest determines its time; the share of copies that a
 * ring cannot hide is added. With several ranks, the link between them overlaps as well:
 * gradients of a unit are sent while backward computes the next, and weights while passes reach
 * them; exchanges that overlap with nothing are added. Every figure grows with the bytes moved, so
 * keeping more on the device never looks slower. */
#include "plan/plan.h"

/* A margin while plans are compared: the share of copying that a ring of this depth may fail to
 * hide. With two buffers a copy waits until the unit before the last is finished; with more buffers
 * it waits only between large and small units. Measured plans on an H200 hid all of it. */
static const double bare_share[] = {
    [2] = 0.25, [3] = 0.06, [4] = 0.03, [5] = 0.02, [6] = 0.02, [7] = 0.02, [8] = 0.02};

/* The share of compute that streaming costs even if all copies are hidden: events are waited
 * for, and passes cannot be replayed from a captured graph. */
#define STREAMING_SHARE 0.01
#define LATE_SHARE 0.35 /* share of activation copies that is not hidden; a safe estimate */
/* Share of the device's bandwidth that kernels reach which alternate reads and writes. */
#define UPDATE_EFFICIENCY 0.8
/* Share of the matmul rate that an update reaches: 0.45 was measured with the matrices of GPT-2
 * 124M on an H200, in batches; large matrices reach more. */
#define UPDATE_MATMULS 0.6

/* What happens in one walk over the units. */
typedef struct walk {
    double compute;
    double up, down;    /* between host and device */
    double read, write; /* disk */
    /* activations, also counted in up and down; their copies start late */
    double late;
    double wire; /* seconds between ranks */
} walk;

static double larger(double a, double b) { return a > b ? a : b; }

static double disk_seconds(const hy_rates *r, double read, double write) {
    if (read + write == 0) return 0;
    return read / r->disk_read + write / r->disk_write;
}

/* Seconds of copies, or of the disk if that takes longer. */
static double moving_seconds(const hy_plan_problem *p, const walk *w) {
    /* The two directions slow each other down only while both are active; host memory has its
     * own limit. */
    double both = w->up < w->down ? w->up : w->down;
    double pcie = both / p->rates.copy_both + (w->up - both) / p->rates.copy_up +
                  (w->down - both) / p->rates.copy_down;
    double copies = larger(pcie, (w->up + w->down) / p->rates.host_bandwidth);
    return larger(copies, disk_seconds(&p->rates, w->read, w->write));
}

static double walk_seconds(const hy_plan_problem *p, const hy_plan_choice *c, const walk *w) {
    int depth = c->ring_depth < 2 ? 2 : c->ring_depth > 8 ? 8 : c->ring_depth;
    double moving = moving_seconds(p, w);
    bool is_one_way = p->net.wire && p->net.wire->is_bus; /* copies and ranks take turns */
    double beside = is_one_way ? moving + w->wire : larger(moving, w->wire);
    /* Every byte that is moved also uses the bandwidth of device memory. */
    double compute = w->compute + (w->up + w->down) / p->rates.device_bandwidth;
    double late = LATE_SHARE * w->late / p->rates.copy_both;
    double bare = p->is_estimate ? 0 : bare_share[depth] * moving;
    return larger(compute, beside) + bare + late;
}

/* ---- what passes ----------------------------------------------------------------------------- */

static void bring(walk *w, const hy_plan_choice *c, const hy_plan_state *s, int cls) {
    w->up += (double)s->streamed[cls];
    if (c->state[cls] == HY_DISK) w->read += (double)s->streamed[cls];
}

/* The weights that a pass reads; for blocks possibly their quantised values. */
static void bring_weights(const hy_plan_problem *p, walk *w, const hy_plan_choice *c,
                          const hy_plan_state *s) {
    double blocks = p->is_fp8 ? (double)s->fp8_streamed - (double)s->blocks_streamed : 0;
    bring(w, c, s, HY_PLAN_WEIGHTS);
    w->up += blocks;
    if (c->state[HY_PLAN_WEIGHTS] == HY_DISK) w->read += blocks;
}

static void send(walk *w, const hy_plan_choice *c, const hy_plan_state *s, int cls) {
    w->down += (double)s->streamed[cls];
    if (c->state[cls] == HY_DISK) w->write += (double)s->streamed[cls];
}

/* Weights from other ranks are quantised in each pass: two reads of 2 bytes and one write of 1 byte
 * per value. */
static double encoding_seconds(const hy_plan_problem *p, const hy_plan_state *s) {
    return 5 * (double)s->fp8_gathered / (UPDATE_EFFICIENCY * p->rates.device_bandwidth);
}

/* is_first: the first micro-batch of a step starts the gradient sum, so it reads no gradients. */
static walk backward_walk(const hy_plan_problem *p, const hy_plan_choice *c,
                          const hy_plan_work *work, const hy_plan_state *state, bool is_first) {
    walk w = {.compute = work->backward + encoding_seconds(p, state)};
    bring_weights(p, &w, c, state);
    w.up -= (double)state->forward_only;
    if (c->state[HY_PLAN_WEIGHTS] == HY_DISK) w.read -= (double)state->forward_only;
    if (!is_first) bring(&w, c, state, HY_PLAN_GRADS);
    send(&w, c, state, HY_PLAN_GRADS);
    if (c->activations != HY_DEVICE) w.up += w.late = (double)work->train.host;
    return w;
}

/* Gradients are read, everything else is read and written; with a master, the working copy is
 * only written. */
static void add_update(const hy_plan_problem *p, const hy_plan_choice *c,
                       const hy_plan_state *state, walk *w) {
    hy_plan_state trained = *state;
    trained.bytes[HY_PLAN_WEIGHTS] -= state->frozen;
    trained.streamed[HY_PLAN_WEIGHTS] -= state->frozen_streamed;
    const hy_plan_state *s = &trained;
    double bytes = (double)s->bytes[HY_PLAN_GRADS];
    for (int cls = 0; cls < HY_PLAN_STATES; cls++) {
        if (cls == HY_PLAN_GRADS) continue;
        bool is_only_written = cls == HY_PLAN_WEIGHTS && p->has_master;
        bytes += (is_only_written ? 1 : 2) * (double)s->bytes[cls];
        if (!is_only_written) bring(w, c, s, cls);
        send(w, c, s, cls);
    }
    bring(w, c, s, HY_PLAN_GRADS);
    /* The fp8 copy: two reads of 2 bytes and one write of 1 byte per value. */
    bytes += 5 * (double)s->fp8;
    w->down += (double)s->fp8_streamed;
    if (c->state[HY_PLAN_WEIGHTS] == HY_DISK) w->write += (double)s->fp8_streamed;
    w->compute += bytes / (UPDATE_EFFICIENCY * p->rates.device_bandwidth);
    w->compute += p->update_flops / (UPDATE_MATMULS * p->rates.gemm_flops);
}

static void add_walk(const hy_plan_problem *p, const hy_plan_choice *c, const walk *w, double times,
                     hy_plan_cost *cost) {
    cost->seconds += times * walk_seconds(p, c, w);
    cost->compute += times * w->compute;
    cost->bus += times * moving_seconds(p, w);
    cost->link += times * w->wire;
    cost->up += (uint64_t)(times * w->up);
    cost->down += (uint64_t)(times * w->down);
    cost->disk_read += (uint64_t)(times * w->read);
    cost->disk_written += (uint64_t)(times * w->write);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static double wire_seconds(const hy_plan_problem *p, const hy_plan_load *load) {
    return hy_plan_load_seconds(p->net.wire, p->net.staging, load);
}

/* The walks of a step. */
typedef struct step_walks {
    walk update, forward[2], backward[2]; /* [0]: of the first micro-batch */
} step_walks;

/* Gradients of the last unit of backward are sent during the next micro-batch's forward, and
 * updated weights during the next step's forward, unless they leave the device after the update.
 * Then they overlap with no compute, like the last gradients and the sums that all ranks wait
 * for. */
static void add_wire(const hy_plan_problem *p, const hy_plan_choice *c, step_walks *w,
                     hy_plan_cost *cost) {
    const hy_plan_traffic *t = &p->net.traffic;
    if (!p->net.wire) return;
    bool is_beside = c->state[HY_PLAN_WEIGHTS] == HY_DEVICE || c->keeps_update_pending;
    double last = wire_seconds(p, &t->last), given = wire_seconds(p, &t->grads) - last;
    double updated = wire_seconds(p, &t->updated);
    w->forward[0].wire = wire_seconds(p, &t->first[HY_GOES_FORWARD]) + (is_beside ? updated : 0);
    w->forward[1].wire = wire_seconds(p, &t->other[HY_GOES_FORWARD]) + last;
    w->backward[0].wire = wire_seconds(p, &t->first[HY_GOES_BACKWARD]) + given;
    w->backward[1].wire = wire_seconds(p, &t->other[HY_GOES_BACKWARD]) + given;
    cost->link = last + wire_seconds(p, &t->grad_sums) + wire_seconds(p, &t->summed) +
                 (is_beside ? 0 : updated);
    cost->seconds = cost->link;
    cost->sent_grads = hy_plan_sent_grads(t, c->accum);
    cost->sent_weights = hy_plan_sent_weights(t, c->accum);
    cost->sent = hy_plan_sent(t, c->accum);
}

/* ---- a step ---------------------------------------------------------------------------------- */

void hy_plan_cost_of(const hy_plan_problem *p, const hy_plan_choice *c, const hy_plan_work *work,
                     const hy_plan_state *state, hy_plan_cost *out) {
    walk forward = {.compute = work->forward + encoding_seconds(p, state)};
    bring_weights(p, &forward, c, state);
    if (c->activations != HY_DEVICE) forward.down += forward.late = (double)work->train.host;
    step_walks w = {.forward = {forward, forward},
                    .backward = {backward_walk(p, c, work, state, true),
                                 backward_walk(p, c, work, state, false)}};
    *out = (hy_plan_cost){0};
    add_wire(p, c, &w, out);
    if (c->keeps_update_pending) {
        /* This walk uploads what the update reads, instead of the forward's weights. */
        walk with_update = w.forward[0];
        with_update.up = p->has_master ? 0 : (double)state->frozen_streamed;
        with_update.read = c->state[HY_PLAN_WEIGHTS] == HY_DISK ? with_update.up : 0;
        if (p->has_master) bring(&with_update, c, state, HY_PLAN_WEIGHTS);
        add_update(p, c, state, &with_update);
        add_walk(p, c, &with_update, 1, out);
        out->update = walk_seconds(p, c, &with_update) - walk_seconds(p, c, &w.forward[0]);
    } else {
        add_update(p, c, state, &w.update);
        add_walk(p, c, &w.update, 1, out);
        add_walk(p, c, &w.forward[0], 1, out);
        out->update = walk_seconds(p, c, &w.update);
    }
    add_walk(p, c, &w.forward[1], c->accum - 1, out);
    if (p->has_reference_pass) add_walk(p, c, &w.forward[1], c->accum, out);
    add_walk(p, c, &w.backward[0], 1, out);
    add_walk(p, c, &w.backward[1], c->accum - 1, out);
    /* Every jump reads and writes the predictor's state once. On disk this takes extra time. */
    if (c->predictor == HY_DISK && p->window_steps >= 1 && state->kept != 0) {
        double bytes = (double)state->kept / (double)p->window_steps;
        out->seconds += disk_seconds(&p->rates, bytes, bytes);
        out->disk_read += (uint64_t)bytes;
        out->disk_written += (uint64_t)bytes;
    }
    /* If the gradient norm is not computed during backward, gradients are read once more. */
    double norm =
        (double)state->bytes[HY_PLAN_GRADS] / (UPDATE_EFFICIENCY * p->rates.device_bandwidth);
    out->seconds += norm;
    out->compute += norm;
    if (out->up + out->down > 0) out->seconds += STREAMING_SHARE * out->compute;
    out->wait = out->seconds - out->compute;
    double tokens = (double)c->batch * c->accum * p->seq * (p->net.ranks > 1 ? p->net.ranks : 1);
    out->tokens_per_second = tokens / (out->seconds > 0 ? out->seconds : 1e-12);
}
