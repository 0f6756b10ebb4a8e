/* memory_plan.c: what the run keeps, where, in which phase, and taking it. See memory_plan.h.
 *
 * The plan is made before anything is taken: batch plans say what passes need, layouts what the state
 * needs. It is written into the ledger, held against the budget, and then taken: on the device the state
 * or the rings it passes through, and the work area of passes; on the host what lives there. The
 * predictor's rings lie in the work area, where training's activations are: who trains has to be done
 * with them (hy_trainer_return_rings). */
#include "trainer/memory_plan.h"

#include <stdio.h>

#include "base/error.h"
#include "trainer/planner_run.h"

#define TILE_RING_DEPTH 3 /* one comes, one is used, one is written back */
#define CANDIDATE_DEPTH 3 /* a tied head holds two units while the next is made */

/* ---- counting -------------------------------------------------------------------------------- */

static bool needs_candidate(const hy_trainer *t) {
    return hy_predictor_slots(t->engine.predictor.kind) > 0 || t->engine.has_average;
}

/* One store of what the predictor keeps. */
static void count_tiled(hy_trainer *t, hy_memory_needs *need, const hy_layout *layout) {
    bool is_disk = need->kept_place == HY_DISK;
    need->kept += layout->bytes;
    need->disk += is_disk ? hy_store_disk_bytes(layout) : 0;
    need->staging += is_disk ? hy_store_staging_bytes(layout, HY_DISK_BUFFERS) : 0;
    need->host += is_disk ? 0 : layout->bytes;
    t->engine.work.ring_bytes += hy_store_ring_bytes(layout, TILE_RING_DEPTH);
}

/* What the predictor keeps, and the rings it passes through. */
static void count_predictor(hy_trainer *t, hy_memory_needs *need) {
    const hy_state_layouts *l = &t->engine.state.layouts;
    bool is_disk = t->settings.memory.predictor_place == HY_DISK;
    need->kept_place = is_disk ? HY_DISK : HY_PINNED;
    t->engine.work.ring_bytes = 0;
    for (int i = 0; i < hy_predictor_slots(t->engine.predictor.kind); i++)
        count_tiled(t, need, &l->slot);
    if (t->engine.has_snapshot) count_tiled(t, need, &l->snapshot);
    if (t->engine.has_average) count_tiled(t, need, &l->tail);
    if (needs_candidate(t))
        t->engine.work.ring_bytes += hy_store_ring_bytes(&l->candidate, CANDIDATE_DEPTH);
}

/* ---- taking ---------------------------------------------------------------------------------- */

static hy_status take_tiled(hy_trainer *t, const hy_memory_needs *need, hy_store *store,
                            hy_class cls, const hy_layout *layout) {
    hy_ring_options ring = {.depth = TILE_RING_DEPTH,
                            .copies = {t->engine.copies, t->engine.returns}};
    return hy_state_take_class(t, store, cls, need->kept_place, layout, &t->engine.state.kept,
                               &t->engine.work.ring_arena, &ring);
}

/* The rings lie behind what evaluation uses of the work area. */
static hy_status take_predictor(hy_trainer *t, const hy_memory_needs *need) {
    const hy_state_layouts *l = &t->engine.state.layouts;
    int slots = hy_predictor_slots(t->engine.predictor.kind);
    uint64_t host = need->kept_place == HY_DISK ? 0 : need->kept;
    HY_TRY(hy_arena_init(&t->engine.state.kept, t->engine.backend, &t->engine.ledger, HY_PINNED,
                         host, "what the predictor keeps"));
    t->engine.work.ring_arena = (hy_arena){.backend = t->engine.backend,
                                           .ledger = &t->engine.ring_ledger,
                                           .place = HY_DEVICE,
                                           .data = hy_predictor_rings(t),
                                           .size = t->engine.work.ring_bytes};
    for (int i = 0; i < slots; i++) {
        HY_TRY(
            take_tiled(t, need, hy_store_of(&t->engine, HY_ROW_SLOW + i), HY_PREDICTOR, &l->slot));
    }
    if (t->engine.has_snapshot)
        HY_TRY(take_tiled(t, need, hy_store_of(&t->engine, HY_ROW_SNAPSHOT), HY_SNAPSHOT,
                          &l->snapshot));
    if (t->engine.has_average)
        HY_TRY(
            take_tiled(t, need, hy_store_of(&t->engine, HY_ROW_AVERAGE), HY_PREDICTOR, &l->tail));
    if (!needs_candidate(t)) return HY_OK;
    return hy_store_init_made(hy_store_of(&t->engine, HY_ROW_CANDIDATE), &t->engine.work.ring_arena,
                              HY_WORKSPACE, &l->candidate, CANDIDATE_DEPTH, hy_candidate_maker, t);
}

/* One file for everything on disk, and the pinned buffers on the way there. */
static hy_status take_disk(hy_trainer *t, const hy_memory_needs *need) {
    const char *folder = t->settings.memory.offload_folder;
    if (need->disk == 0) return HY_OK;
    HY_TRY(hy_arena_init(&t->engine.state.staging, t->engine.backend, &t->engine.ledger, HY_PINNED,
                         need->staging, "what comes from disk"));
    HY_TRY(hy_spill_open(folder, need->disk, NULL, &t->engine.state.spill));
    hy_say(t, HY_NOTE, "%s", hy_spill_describe(t->engine.state.spill));
    return HY_OK;
}

hy_status hy_trainer_return_rings(hy_trainer *t) {
    hy_store *stores[] = {
        hy_store_of(&t->engine, HY_ROW_SLOW + 0), hy_store_of(&t->engine, HY_ROW_SLOW + 1),
        hy_store_of(&t->engine, HY_ROW_SNAPSHOT), hy_store_of(&t->engine, HY_ROW_AVERAGE),
        hy_store_of(&t->engine, HY_ROW_CANDIDATE)};
    if (!t->engine.work.rings_are_used) return HY_OK;
    t->engine.work.rings_are_used = false;
    HY_TRY(t->engine.backend->stream_sync(t->engine.compute));
    double begin = hy_clock();
    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) {
        HY_TRY(hy_store_settle(stores[i]));
        hy_store_forget(stores[i]);
    }
    t->engine.host_waited += hy_clock() - begin;
    return HY_OK;
}

static hy_status take_offload(hy_trainer *t) {
    uint64_t bytes = t->engine.optim.bytes;
    if (t->engine.optim.strategy != HY_OFFLOAD_CPU && t->engine.optim.strategy != HY_OFFLOAD_PINNED)
        return HY_OK;
    hy_place place = t->engine.optim.strategy == HY_OFFLOAD_CPU ? HY_HOST : HY_PINNED;
    return t->engine.backend->alloc(t->engine.backend, place, bytes,
                                    (void **)&t->engine.optim.host);
}

static hy_status take_all(hy_trainer *t, const hy_memory_needs *need) {
    HY_TRY(take_disk(t, need));
    HY_TRY(hy_state_take(t, &need->choice, &need->state));
    HY_TRY(hy_take_work(t));
    HY_TRY(take_predictor(t, need));
    return take_offload(t);
}

/* ---- the whole --------------------------------------------------------------------------------- */

static uint64_t checkpoint_bytes(const hy_trainer *t) {
    const hy_state_layouts *l = &t->engine.state.layouts;
    return l->master.bytes + t->engine.optim.bytes + t->engine.has_average * l->tail.bytes +
           (uint64_t)hy_predictor_slots(t->engine.predictor.kind) * l->slot.bytes;
}

static hy_status check_and_take(hy_trainer *t, const hy_memory_needs *need) {
    uint64_t work = need->activations + need->workspace + need->data;
    bool moves =
        t->engine.optim.strategy == HY_OFFLOAD_CPU || t->engine.optim.strategy == HY_OFFLOAD_PINNED;
    uint64_t moved = moves ? t->engine.optim.bytes : 0;
    uint64_t device = need->state.device + need->state.rings + work;
    uint64_t host = need->host + need->staging;
    hy_status status = hy_trainer_check_budget(t, device, host, moved);
    if (status == HY_OK) status = hy_trainer_check_disk(t, need->disk);
    t->engine.host_bytes = host + moved;
    t->plan.fits = status == HY_OK;
    t->plan.vram_bytes = device;
    t->plan.disk_bytes = need->disk;
    t->plan.host_fork_bytes = hy_fork_plan_bytes(t);
    hy_trainer_plan_data(t, &t->plan);
    t->plan.host_pinned_bytes = host + (t->engine.optim.strategy == HY_OFFLOAD_PINNED ? moved : 0);
    if (!t->life.is_plan) {
        HY_TRY(status);
        return take_all(t, need);
    }
    if (status != HY_OK)
        snprintf(t->plan_problem, sizeof t->plan_problem, "%s", hy_error_message());
    t->checkpoint_bytes = checkpoint_bytes(t);
    return HY_OK;
}

/* Updates wait for the next step where something has to be brought for them. */
static bool chooses_gather(const hy_trainer *t, const hy_state_choice *c) {
    hy_update_when asked = t->settings.memory.update;
    if (asked != HY_UPDATE_AUTO) return asked == HY_UPDATE_ON_GATHER;
    bool has_low = t->engine.types.has_low;
    return c->weights != HY_DEVICE || c->grads != HY_DEVICE || c->optim != HY_DEVICE ||
           (has_low && c->master != HY_DEVICE);
}

hy_status hy_trainer_take_memory(hy_trainer *t) {
    hy_memory_needs *need = &t->engine.needs;
    *need = (hy_memory_needs){0};
    if (!t->engine.chunk_budget) t->engine.chunk_budget = hy_trainer_device_limit(t);
    hy_state_resolve_paging(&t->settings);
    HY_TRY(hy_state_lay_out(t));
    t->engine.optim.bytes = 0;
    for (int i = 0; i < hy_optim_arrays(&t->engine); i++) {
        t->engine.optim.bytes += t->engine.state.layouts.optim[i].bytes;
    }
    HY_TRY(hy_trainer_choose_plan(t));
    HY_TRY(hy_make_batch_plans(t));
    HY_TRY(hy_offload_check(t));
    need->choice = hy_state_choice_of(&t->settings);
    t->engine.update.is_on_gather = chooses_gather(t, &need->choice);
    hy_state_count(t, &need->choice, &need->state);
    need->disk = need->state.disk;
    need->staging = need->state.staging;
    need->host = need->state.pinned + t->engine.work.train_bytes.host;
    count_predictor(t, need);
    hy_count_work(t);
    hy_write_placement(t);
    return check_and_take(t, need);
}

/* One line where something does not simply lie on the device; --plan has the reasons. */
void hy_trainer_tell_plan(const hy_trainer *t) {
    const hy_settings *s = &t->settings;
    hy_state_choice c = hy_state_choice_of(s);
    bool is_plain = c.weights == HY_DEVICE && c.grads == HY_DEVICE && c.optim == HY_DEVICE &&
                    (!t->engine.types.has_low || c.master == HY_DEVICE) &&
                    t->engine.work.train_bytes.host == 0;
    if (is_plain) return;
    hy_say(t, HY_NOTE,
           "plan: weights on %s, gradients on %s, optimizer state on %s, activations on %s; "
           "micro-batches of "
           "%lld x %lld, %lld in a step; recompute %s; about %.0f tokens/s (--plan says why)",
           hy_place_name(c.weights), hy_place_name(c.grads), hy_place_name(c.optim),
           hy_place_name(t->engine.work.column.place), (long long)s->train.batch_size,
           (long long)s->train.seq_len, (long long)s->train.grad_accum_steps,
           hy_choice_name("recompute", s->train.recompute), t->plan.tokens_per_second);
}
