/* traffic.h: the traffic between ranks in an optimizer step, and how long the wire needs.
 *
 * The planner needs it before memory is allocated: it runs the collectives, the ring of gathered
 * weights and the walk over units dry, and counts bytes. Each micro-batch has a reduce-scatter
 * of every unit's gradients. An all-gather follows: of the sums (stage 0) or of the updated
 * weights (stages 1 and 2) once a step, or of a unit's weights whenever a pass reaches a unit
 * that is not in the ring (stage 3). docs/ranks.md explains this. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "config/choices.h"

struct hy_rows;
struct hy_model;
struct hy_types;

/* The connection of one rank to all others. */
typedef struct hy_plan_wire {
    const char *name;
    /* in one direction, as measured by programs; both directions work at the same time */
    double bytes_per_second;
    double latency; /* seconds of an empty exchange */
    bool is_bus;    /* host and device also copy over it */
} hy_plan_wire;

/* As requested. By default cards are treated as PCIe 4, and traffic through the host as sockets. */
const hy_plan_wire *hy_plan_wire_of(hy_wire_choice asked, bool is_between_cards);

/* What one rank sends. */
typedef struct hy_plan_load {
    uint64_t bytes;
    int64_t exchanges;
} hy_plan_load;

typedef struct hy_plan_traffic {
    hy_plan_load grads;     /* gradients of a micro-batch */
    hy_plan_load last;      /* the part of `grads` for the last unit of backward */
    hy_plan_load grad_sums; /* once per step: sums of gradients */
    hy_plan_load updated;   /* once per step: updated weights */
    hy_plan_load summed;    /* once per step: norm and loss */
    /* Weights for the first micro-batch of a step and for each other one, forward and backward. */
    hy_plan_load first[2], other[2];
} hy_plan_traffic;

enum { HY_GOES_FORWARD, HY_GOES_BACKWARD };

/* The traffic of the rank that these rows belong to, in a step of Full. */
hy_status hy_plan_traffic_of(const struct hy_rows *rows, const struct hy_model *model,
                             const struct hy_types *types, int stage, hy_plan_traffic *out);

/* Adapts `traffic` to a run that reduces gradients once per step, after the last micro-batch. */
void hy_plan_reduce_once(hy_plan_traffic *traffic);

/* Bytes sent in a step of this many micro-batches. */
static inline uint64_t hy_plan_sent_grads(const hy_plan_traffic *t, int64_t accum) {
    return (uint64_t)accum * t->grads.bytes + t->grad_sums.bytes;
}
static inline uint64_t hy_plan_sent_weights(const hy_plan_traffic *t, int64_t accum) {
    uint64_t first = t->first[0].bytes + t->first[1].bytes;
    uint64_t other = t->other[0].bytes + t->other[1].bytes;
    return t->updated.bytes + first + (uint64_t)(accum - 1) * other;
}
static inline uint64_t hy_plan_sent(const hy_plan_traffic *t, int64_t accum) {
    return hy_plan_sent_grads(t, accum) + hy_plan_sent_weights(t, accum) + t->summed.bytes;
}

/* Seconds that a load takes. staging: bytes per second of copies through pinned memory, before and
 * after the transfer; 0: no such copies. */
double hy_plan_load_seconds(const hy_plan_wire *wire, double staging, const hy_plan_load *load);
