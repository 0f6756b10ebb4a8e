/* join.c: adjusts the settings of a rank that shares its machine. See join.h.
 *
 * Each rank gets its card and its share of the cores. Nothing here changes the results of a run. */
#include "trainer/join.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/input.h"
#include "kernels/cpu/machine.h"
#include "kernels/kernels.h"

/* ---- cards and cores ------------------------------------------------------------------------- */

void hy_rank_fit(hy_settings *s, const hy_rank_place *place) {
    bool is_open = s->device == HY_USE_ANY || s->device == HY_USE_CUDA;
    int64_t share = place->cores / (place->core_sharers > 0 ? place->core_sharers : 1);
    if (is_open && place->cards > 0)
        s->device = (hy_device_choice)(HY_USE_CARD + place->local_rank % place->cards);
    if (share < 1) share = 1;
    if (s->threads == 0) s->threads = share;
    if (s->input.num_workers == 0) s->input.num_workers = share;
}

void hy_rank_settle(hy_settings *s, const hy_team *team) {
    /* device = cuda counts cards even if the backend is missing: that is reported later. With auto,
     * cards count only if the CUDA backend is installed. */
    bool uses_cuda = s->device == HY_USE_CUDA || (s->device == HY_USE_ANY && hy_cuda_has_backend());
    hy_rank_fit(s, &(hy_rank_place){.local_rank = team->who.local_rank,
                                    .core_sharers = team->core_sharers,
                                    .cores = hy_machine_threads(),
                                    .cards = uses_cuda ? hy_cuda_card_count() : 0});
}

void hy_rank_plan(hy_settings *s, int32_t count) {
    hy_rank_fit(s, &(hy_rank_place){.core_sharers = count, .cores = hy_machine_threads()});
}

/* ---- data ------------------------------------------------------------------------------------ */

hy_status hy_rank_check(const hy_settings *s) {
    bool is_data = hy_reads_input(s->data), is_held_out = hy_reads_input(s->val_data);
    HY_FAIL_IF(is_data || is_held_out || hy_reads_input(s->eval.eval_rows), HY_ERR_INPUT,
               "%s is standard input (-), which only one process can read, but there are several "
               "ranks: use a file or folder that all ranks can read",
               is_data       ? "data"
               : is_held_out ? "val_data"
                             : "eval.eval_rows");
    return HY_OK;
}

/* ---- other ranks ----------------------------------------------------------------------------- */

hy_status hy_rank_count(hy_team *team, int card, hy_rank_sharers *out) {
    int32_t count = team->who.count;
    double own = card, *all = calloc((size_t)count, sizeof *all);
    HY_FAIL_IF(!all, HY_ERR_MEMORY, "not enough memory for the answers of %d ranks", count);
    hy_status status = hy_control_gather(team->control, &own, 1, all);
    uint64_t here = hy_control_member(team->control, team->who.rank)->machine;
    *out = (hy_rank_sharers){.has_cards = true};
    for (int32_t r = 0; r < count && status == HY_OK; r++) {
        bool is_here = hy_control_member(team->control, r)->machine == here;
        out->machine += is_here;
        out->card += is_here && all[r] == own;
        out->has_cards &= all[r] >= 0;
    }
    free(all);
    return status;
}

#define TEST_NCCL "HYBRID_TEST_NCCL"

hy_status hy_rank_look_for_nccl(const hy_rank_sharers *sharers, bool is_gpu, hy_nccl_library *out) {
    HY_FAIL_IF(!is_gpu && !getenv(TEST_NCCL), HY_ERR_INPUT,
               "NCCL needs a card, but this rank computes on the CPU");
    HY_FAIL_IF(is_gpu && sharers->card > 1, HY_ERR_INPUT,
               "NCCL needs one card per rank, but %d ranks share this one", sharers->card);
    return hy_nccl_look(out);
}
