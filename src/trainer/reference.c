/* reference.c: see reference.h.
 *
 * The file has a header, two numbers for each pair (data/pair_reference.h) and a hash of all this.
 * The header names the data by hash, and the sequence length, because it decides where answers are
 * cut. */
#include "trainer/reference.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "trainer/ranks.h"
#include "trainer/recovery.h"
#include "trainer/throughput.h"

#define FILE_NAME "reference.bin"

typedef struct header {
    char name[8];
    uint64_t pairs, seq, data_hash, val_hash;
} header;

static header header_of(const hy_trainer *t) {
    return (header){.name = "hyref 1",
                    .pairs = hy_trainer_data(t)->pair_count,
                    .seq = (uint64_t)t->settings->train.seq_len,
                    .data_hash = t->data.hash,
                    .val_hash = t->data.val_hash};
}

static bool is_needed(const hy_trainer *t) {
    return t->data.set && hy_preference_has_reference(t->settings->task) &&
           !hy_settings_reference_is_inline(t->settings);
}

static size_t sums_bytes(const hy_trainer *t) {
    return (size_t)hy_trainer_data(t)->pair_count * sizeof *t->data.reference;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static hy_status measure(hy_trainer *t, hy_split split) {
    uint64_t count = hy_trainer_data(t)->sequences[split];
    hy_status status;
    if (count == 0) return HY_OK;
    do {
        hy_probe probe = {.data = t->data.set,
                          .split = split,
                          .count = count,
                          .dtype = t->engine->plan->types.of[HY_FULL],
                          .pair_sums = t->data.reference,
                          .what = "computing the reference",
                          .stop = &t->status.stop_requested};
        hy_batch_plan *plan = t->engine->work->eval[hy_plan_index(probe.dtype)];
        status = hy_engine_probe(t->engine, plan, &probe);
        if (status != HY_OK) HY_TRY(hy_trainer_prepare_retry(t, status));
    } while (status != HY_OK);
    t->engine->retries.in_a_row = 0;
    return HY_OK;
}

/* Both splits, in the phase Reference. */
static hy_status measure_all(hy_trainer *t) {
    const hy_phase_row *before = hy_engine_phase(t->engine);
    hy_account account;
    hy_account_open(t, &account);
    HY_TRY(hy_engine_enter_phase(t->engine, &hy_phase_table[HY_REFERENCE]));
    hy_status status = measure(t, HY_TRAIN);
    if (status == HY_OK) status = measure(t, HY_VAL);
    if (status == HY_OK) t->progress->phases.steps[HY_REFERENCE]++;
    hy_account_close(t, &account);
    hy_status left = hy_engine_enter_phase(t->engine, before);
    return status != HY_OK ? status : left;
}

/* ---- the file -------------------------------------------------------------------------------- */

static hy_status read_sums(hy_trainer *t, const char *path) {
    size_t bytes = sums_bytes(t), size;
    header expected = header_of(t), found;
    uint64_t hash;
    char *data;
    HY_TRY(hy_file_read(path, &data, &size));
    bool is_whole = size == sizeof found + bytes + sizeof hash;
    if (is_whole) {
        memcpy(&found, data, sizeof found);
        memcpy(&hash, data + sizeof found + bytes, sizeof hash);
        memcpy(t->data.reference, data + sizeof found, bytes);
        is_whole = hash == hy_hash_bytes(data, sizeof found + bytes, 0);
    }
    free(data);
    HY_FAIL_IF(!is_whole, HY_ERR_INPUT, "%s is damaged, or is not of this run", path);
    HY_FAIL_IF(memcmp(&found, &expected, sizeof found) != 0, HY_ERR_INPUT,
               "%s was computed for other data or another sequence length", path);
    return HY_OK;
}

/* Beside the checkpoint that the run goes on from. */
static hy_status read_resumed(hy_trainer *t) {
    char run[HY_PATH_MAX], path[HY_PATH_MAX];
    HY_TRY(hy_path_parent(run, sizeof run, t->resumed));
    HY_TRY(hy_path_join(path, sizeof path, run, FILE_NAME));
    hy_status status = read_sums(t, path);
    if (status == HY_OK) return HY_OK;
    return hy_fail_context(status,
                           "a resumed run needs the log-probabilities that the model had before "
                           "training");
}

hy_status hy_reference_keep(hy_trainer *t) {
    header head = header_of(t);
    char path[HY_PATH_MAX];
    hy_writer *out;
    if (!t->data.reference || !t->record->out[0]) return HY_OK;
    HY_TRY(hy_path_join(path, sizeof path, t->record->out, FILE_NAME));
    HY_TRY(hy_writer_replace(path, &out));
    hy_status status = hy_writer_put(out, &head, sizeof head);
    if (status == HY_OK) status = hy_writer_put(out, t->data.reference, sums_bytes(t));
    hy_hash hash;
    hy_hash_init(&hash, 0);
    hy_hash_add(&hash, &head, sizeof head);
    hy_hash_add(&hash, t->data.reference, sums_bytes(t));
    uint64_t value = hy_hash_value(&hash);
    if (status == HY_OK) status = hy_writer_put(out, &value, sizeof value);
    if (status == HY_OK) return hy_writer_close(out, true);
    hy_writer_abandon(out);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

hy_status hy_reference_take(hy_trainer *t) {
    const hy_dataset_facts *facts = t->data.set ? hy_dataset_describe(t->data.set) : NULL;
    if (!is_needed(t)) return HY_OK;
    if (t->team)
        return hy_ranks_agree(
            t, hy_fail(HY_ERR_INPUT,
                       "task %s with several ranks needs adapters and --reference inline: a "
                       "reference that is computed once is not shared between ranks",
                       hy_choice_name("task", (int)t->settings->task)));
    HY_FAIL_IF(facts->pair_count == 0, HY_ERR_INPUT,
               "the reference of streamed rows cannot be computed once; read them whole "
               "(--stream-rows off), or train adapters with --reference inline");
    t->data.reference = calloc((size_t)facts->pair_count, sizeof *t->data.reference);
    HY_FAIL_IF(!t->data.reference, HY_ERR_MEMORY,
               "not enough memory for the reference of %llu pairs",
               (unsigned long long)facts->pair_count);
    HY_TRY(t->resumed[0] ? read_resumed(t) : measure_all(t));
    hy_dataset_set_reference(t->data.set, (const float(*)[2])t->data.reference);
    return HY_OK;
}

void hy_reference_release(hy_trainer *t) {
    free(t->data.reference);
    t->data.reference = NULL;
}
