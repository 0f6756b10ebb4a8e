/* gather.h: gathers whole units from the parts of all ranks.
 *
 * Weights that are sharded over ranks (ZeRO stage 3) are gathered unit by unit into a ring of
 * buffers during a pass: fetch starts the all-gather of a unit, await makes the stream wait for
 * it. A unit that is still in the ring is not gathered again. The engine uses it in training. The
 * planner runs it dry, with a ring without memory and an exchange that only counts bytes. */
#pragma once

#include "comm/collectives.h"
#include "memory/store.h"
#include "model/shard.h"

/* A unit on its way. */
typedef struct hy_gathering {
    bool is_begun; /* and not awaited yet */
    hy_comm_op *op;
    hy_store *held; /* released when the unit has arrived; NULL: none */
} hy_gathering;

typedef struct hy_gather {
    hy_exchange *net;
    const hy_params *params;
    const hy_shard *shard;
    bool is_cut;         /* parts are ranges of a unit's bytes, not slices of its parameters */
    hy_store *from;      /* this rank's parts; NULL in a dry run */
    hy_store *whole;     /* the ring */
    hy_gathering *units; /* (units), the owner's */
} hy_gather;

/* The bytes of a unit that each rank has: slices of its parameters. (shard->count) */
void hy_unit_parts(const hy_shard *shard, const hy_params *params, const hy_layout *whole,
                   int32_t unit, hy_comm_part *out);

/* The unit is needed soon. *has_begun: this call started the transfer; may be NULL. */
hy_status hy_gather_fetch(const hy_gather *gather, hy_stream *stream, int32_t unit,
                          bool *has_begun);
/* The unit is needed now: the stream waits for it. It may have left the ring meanwhile. */
hy_status hy_gather_await(const hy_gather *gather, hy_stream *stream, int32_t unit);
/* As above, for a unit that was sent in another way. */
hy_status hy_gathering_end(hy_gathering *on_its_way, hy_stream *stream, int32_t unit);
