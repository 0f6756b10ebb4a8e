/* solo.c: one sequence in slot 0, which has all blocks of the pool in order. See solo.h.
 *
 * Snapshots of states are taken where chunks begin, and a few tokens before the end of what is given
 * at once: there the next turn of a conversation most likely differs, because templates write an
 * answer otherwise than the beginning of one. */
#include "infer/solo.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define TAIL 16 /* tokens after the last snapshot of a prompt */

/* ---- the decoder ----------------------------------------------------------------------------- */

hy_status hy_solo_create(hy_model *model, hy_backend *backend, hy_batch_decoder_options *options,
                         uint64_t limit, int32_t shortest, hy_batch_decoder **out) {
    options->streams = 1;
    options->snapshots = options->goes_back ? HY_SOLO_SNAPSHOTS : -1;
    for (;; options->context /= 2) {
        HY_TRY(hy_batch_decoder_create(model, backend, options, out));
        if (hy_batch_decoder_bytes(*out) <= limit || options->context <= shortest) return HY_OK;
        hy_batch_decoder_destroy(*out);
        *out = NULL;
    }
}

static hy_status seat(hy_batch_decoder *decoder) {
    const hy_cache_kind *kinds;
    const int32_t *lists[HY_CACHE_KINDS];
    int32_t counts[HY_CACHE_KINDS], most = 0;
    int32_t count = hy_batch_decoder_kinds(decoder, &kinds);
    for (int32_t i = 0; i < count; i++) most = kinds[i].most > most ? kinds[i].most : most;
    int32_t *ids = malloc((size_t)most * sizeof *ids);
    HY_FAIL_IF(!ids, HY_ERR_MEMORY, "not enough memory for a decoder");
    for (int32_t i = 0; i < most; i++) ids[i] = i;
    for (int32_t i = 0; i < count; i++) lists[i] = ids, counts[i] = kinds[i].most;
    hy_status status = hy_batch_decoder_seat(decoder, 0, lists, counts);
    free(ids);
    return status;
}

hy_status hy_solo_place(hy_solo *solo, hy_stream *stream, void *memory, hy_store *weights,
                        hy_store *frozen) {
    solo->length = solo->kept_count = 0;
    for (int32_t i = 0; i < HY_SOLO_SNAPSHOTS; i++) solo->kept[i].state = 1 + i; /* after slot 0 */
    solo->next = -1;
    HY_TRY(hy_batch_decoder_place(solo->decoder, stream, memory, weights, frozen));
    return seat(solo->decoder);
}

/* ---- states ---------------------------------------------------------------------------------- */

hy_status hy_solo_go_back(hy_solo *solo, int32_t length) {
    int32_t *count = &solo->kept_count;
    if (length >= solo->length) return HY_OK;
    solo->length = length;
    while (*count > 0 && solo->kept[*count - 1].position > length) --*count;
    if (hy_batch_decoder_states(solo->decoder)->layers == 0) return HY_OK;
    const hy_snapshot *last = *count > 0 ? &solo->kept[*count - 1] : NULL;
    solo->length = last ? last->position : 0;
    return last ? hy_batch_decoder_copy_state(solo->decoder, last->state, 0) : HY_OK;
}

/* The snapshot that is missed least: without it the gap between its neighbours is the smallest. */
static int32_t least_missed(const hy_solo *solo) {
    int32_t found = 0, least = INT32_MAX;
    for (int32_t i = 0; i < solo->kept_count; i++) {
        int32_t before = i > 0 ? solo->kept[i - 1].position : 0;
        int32_t after = i + 1 < solo->kept_count ? solo->kept[i + 1].position : solo->length;
        if (after - before >= least) continue;
        least = after - before;
        found = i;
    }
    return found;
}

/* A snapshot behind those that are kept; if there are too many, one of them. */
static hy_snapshot *next_snapshot(hy_solo *solo, int32_t most) {
    hy_snapshot *kept = solo->kept, *end = &kept[most - 1];
    if (solo->kept_count < most) return &kept[solo->kept_count++];
    int32_t at = least_missed(solo);
    hy_snapshot found = kept[at];
    memmove(&kept[at], &kept[at + 1], (size_t)(most - 1 - at) * sizeof *kept);
    *end = found;
    return end;
}

/* Keeps the state of the present position. */
static hy_status keep_state(hy_solo *solo) {
    int32_t count = solo->kept_count;
    int32_t most = hy_batch_decoder_states(solo->decoder)->snapshots;
    bool is_kept = count > 0 && solo->kept[count - 1].position == solo->length;
    if (most == 0 || solo->length == 0 || is_kept) return HY_OK;
    hy_snapshot *next = next_snapshot(solo, most < HY_SOLO_SNAPSHOTS ? most : HY_SOLO_SNAPSHOTS);
    next->position = solo->length;
    return hy_batch_decoder_copy_state(solo->decoder, 0, next->state);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Values outside their range count as 0; what is small but not 0 stays so as a float. */
static float narrow(double value) {
    float narrowed = (float)value;
    return value > 0 ? (narrowed > 0 ? narrowed : FLT_MIN) : 0;
}

hy_sampling hy_solo_sampling(const hy_generate_options *options, uint64_t position) {
    return (hy_sampling){.temperature = narrow(options->temperature),
                         .top_p = options->top_p < 1 ? narrow(options->top_p) : 0,
                         .top_k = options->top_k > 0 ? options->top_k : 0,
                         .forced = -1,
                         .seed = options->seed,
                         .position = position};
}

/* Every chunk ends with a choice, because a pass over all units ends with the head. */
static hy_status take_chunks(hy_solo *solo, const int32_t *tokens, int32_t count,
                             const hy_sampling *sampling) {
    int32_t chunk = hy_batch_decoder_facts(solo->decoder)->chunk, rows;
    bool keeps = hy_batch_decoder_states(solo->decoder)->snapshots > 0;
    for (; count > 0; count -= rows, tokens += rows) {
        HY_TRY(keep_state(solo));
        rows = hy_chunk_length(solo->length, chunk);
        if (rows > count) rows = count;
        if (keeps && count > TAIL && rows > count - TAIL) rows = count - TAIL;
        HY_TRY(hy_batch_decoder_chunk(solo->decoder, 0, tokens, solo->length, rows, sampling));
        solo->length += rows;
        if (rows < count) HY_TRY(hy_solo_read(solo));
    }
    return HY_OK;
}

hy_status hy_solo_take(hy_solo *solo, const int32_t *tokens, int32_t count,
                       const hy_sampling *sampling) {
    if (count > 1 || solo->length == 0) return take_chunks(solo, tokens, count, sampling);
    if (tokens[0] != solo->next) HY_TRY(hy_batch_decoder_give(solo->decoder, 0, tokens[0]));
    return hy_batch_decoder_step(solo->decoder, 1, &(int32_t){solo->length++}, sampling);
}

hy_status hy_solo_read(hy_solo *solo) {
    hy_step_tokens found;
    HY_TRY(hy_batch_decoder_read(solo->decoder, &found));
    solo->next = found.tokens[0];
    solo->logprob = found.logprobs[0];
    return HY_OK;
}
