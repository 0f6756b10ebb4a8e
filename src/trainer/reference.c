/* reference.c: see reference.h.
 *
 * The file has a header, two numbers for each pair (data/pair_reference.h) and a hash of all this.
 * The header has a hash of all tokens and targets that were measured, so that numbers are never
 * used for other rows, other columns or rows that are cut elsewhere. */
#include "trainer/reference.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "trainer/provider.h"
#include "trainer/ranks.h"
#include "trainer/recovery.h"
#include "trainer/throughput.h"

#define FILE_NAME "reference.bin"

typedef struct header {
    char name[8];
    uint64_t pairs, seq, data; /* data: hash of tokens and targets */
} header;

/* Sequences that have each pair of both splits at least once. */
typedef struct measured {
    uint64_t *list[2];
    size_t count[2], room[2];
    uint64_t hash;
} measured;

static bool is_needed(const hy_trainer *t) {
    return t->data.set && hy_preference_has_reference(t->settings->task) &&
           !hy_settings_reference_is_inline(t->settings);
}

static size_t sums_bytes(const hy_trainer *t) {
    return (size_t)hy_trainer_data(t)->pair_count * sizeof *t->data.reference;
}

/* ---- which sequences ------------------------------------------------------------------------- */

static void free_measured(measured *m) {
    free(m->list[0]);
    free(m->list[1]);
}

/* In a mixture with weights, some pairs come often before others come once. */
static hy_status list_split(const hy_dataset *data, hy_split split, bool *seen, measured *m) {
    const hy_dataset_facts *facts = hy_dataset_describe(data);
    uint64_t left = facts->targets[split], *numbers = malloc((size_t)facts->seq * sizeof *numbers);
    hy_status status = numbers ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for pairs");
    for (uint64_t p = 0; left > 0 && status == HY_OK; p++) {
        if (split == HY_VAL && p == facts->sequences[split]) break;
        int32_t count;
        uint64_t before = left;
        status = hy_dataset_pairs_in(data, split, p, numbers, &count);
        for (int32_t i = 0; status == HY_OK && i < count; i++) {
            left -= !seen[numbers[i]];
            seen[numbers[i]] = true;
        }
        if (status != HY_OK || left == before) continue;
        status = hy_array_reserve(&m->list[split], &m->room[split], m->count[split] + 1, sizeof p,
                                  "sequences");
        if (status == HY_OK) m->list[split][m->count[split]++] = p;
    }
    free(numbers);
    return status;
}

static hy_status add_hash(const hy_dataset *data, hy_split split, const measured *m,
                          hy_hash *hash) {
    size_t seq = (size_t)hy_dataset_describe(data)->seq;
    int32_t *arrays = malloc(2 * seq * sizeof *arrays);
    HY_FAIL_IF(!arrays, HY_ERR_MEMORY, "not enough memory for a sequence");
    hy_status status = HY_OK;
    for (size_t i = 0; i < m->count[split] && status == HY_OK; i++) {
        uint64_t p = m->list[split][i];
        if (hy_dataset_fill(data, split, p, arrays, arrays + seq, NULL) < 0) status = HY_ERR_IO;
        hy_hash_add(hash, arrays, 2 * seq * sizeof *arrays);
    }
    free(arrays);
    return status;
}

static hy_status find_sequences(const hy_trainer *t, measured *m) {
    const hy_dataset *data = t->data.set;
    bool *seen = calloc((size_t)hy_dataset_describe(data)->pair_count, sizeof *seen);
    hy_hash hash;
    hy_hash_init(&hash, 0);
    hy_status status = seen ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for pairs");
    for (hy_split split = HY_TRAIN; split <= HY_VAL && status == HY_OK; split++) {
        status = list_split(data, split, seen, m);
        if (status == HY_OK) status = add_hash(data, split, m, &hash);
    }
    m->hash = hy_hash_value(&hash);
    free(seen);
    return status;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static hy_status measure(hy_trainer *t, hy_split split, const measured *m) {
    hy_status status;
    if (m->count[split] == 0) return HY_OK;
    do {
        hy_probe probe = {.data = t->data.set,
                          .split = split,
                          .list = m->list[split],
                          .count = m->count[split],
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
static hy_status measure_all(hy_trainer *t, const measured *m) {
    const hy_phase_row *before = hy_engine_phase(t->engine);
    hy_account account;
    hy_account_open(t, &account);
    HY_TRY(hy_engine_enter_phase(t->engine, &hy_phase_table[HY_REFERENCE]));
    hy_status status = measure(t, HY_TRAIN, m);
    if (status == HY_OK) status = measure(t, HY_VAL, m);
    if (status == HY_OK) t->progress->phases.steps[HY_REFERENCE]++;
    hy_account_close(t, &account);
    hy_status left = hy_engine_enter_phase(t->engine, before);
    return status != HY_OK ? status : left;
}

/* ---- the file -------------------------------------------------------------------------------- */

static header header_of(const hy_trainer *t, const measured *m) {
    return (header){.name = "hyref 3",
                    .pairs = hy_trainer_data(t)->pair_count,
                    .seq = (uint64_t)t->settings->train.seq_len,
                    .data = m->hash};
}

/* Reads the file of the run that this one goes on from. */
static hy_status read_sums(hy_trainer *t, const char *path, const measured *m) {
    size_t bytes = sums_bytes(t), size;
    header expected = header_of(t, m), found = {0};
    uint64_t hash = 0;
    char *data;
    HY_TRY(hy_file_read(path, &data, &size));
    memcpy(&found, data, size < sizeof found ? size : sizeof found);
    bool is_ours = memcmp(&found, &expected, sizeof found) == 0;
    bool is_whole = is_ours && size == sizeof found + bytes + sizeof hash;
    if (is_whole) memcpy(&hash, data + sizeof found + bytes, sizeof hash);
    is_whole = is_whole && hash == hy_hash_bytes(data, sizeof found + bytes, 0);
    if (is_whole) memcpy(t->data.reference, data + sizeof found, bytes);
    free(data);
    bool is_named = memcmp(found.name, expected.name, sizeof found.name) == 0;
    HY_FAIL_IF(is_named && !is_ours, HY_ERR_INPUT,
               "%s is of other rows: training and held-out rows, columns, template, seq_len and "
               "packing must be those of the beginning",
               path);
    HY_FAIL_IF(!is_whole, HY_ERR_INPUT, "%s is damaged", path);
    return HY_OK;
}

static hy_status write_sums(const hy_trainer *t, const measured *m) {
    header head = header_of(t, m);
    char path[HY_PATH_MAX];
    hy_writer *out;
    if (!t->record->out[0]) return HY_OK;
    HY_TRY(hy_path_join(path, sizeof path, t->record->out, FILE_NAME));
    HY_TRY(hy_writer_replace(path, &out));
    hy_status status = hy_writer_put(out, &head, sizeof head);
    if (status == HY_OK) status = hy_writer_put(out, t->data.reference, sums_bytes(t));
    uint64_t hash = hy_writer_hash(out);
    if (status == HY_OK) status = hy_writer_put(out, &hash, sizeof hash);
    if (status == HY_OK) return hy_writer_close(out, true);
    hy_writer_abandon(out);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void give_to_data(hy_trainer *t) {
    hy_dataset_set_reference(t->data.set, (const double(*)[2])t->data.reference);
}

/* A run that stopped before its first step still has the model before training. */
static hy_status read_resumed(hy_trainer *t) {
    char run[HY_PATH_MAX], path[HY_PATH_MAX];
    measured m = {0};
    HY_TRY(hy_path_parent(run, sizeof run, t->resumed));
    HY_TRY(hy_path_join(path, sizeof path, run, FILE_NAME));
    if (!hy_path_exists(path) && t->progress->step == 0) return HY_OK;
    HY_FAIL_IF(!hy_path_exists(path), HY_ERR_INPUT,
               "%s is missing: it has what the model before training says of the pairs, and that "
               "model is not there any more; copy the file beside the checkpoint%s",
               path, t->settings->lora.lora ? ", or use --reference inline" : "");
    hy_status status = find_sequences(t, &m);
    if (status == HY_OK) status = read_sums(t, path, &m);
    free_measured(&m);
    if (status == HY_OK) give_to_data(t);
    return status;
}

static hy_status refuse_ranks(hy_trainer *t) {
    return hy_ranks_agree(
        t, hy_fail(HY_ERR_INPUT,
                   "task %s with several ranks needs adapters and --reference inline: a "
                   "reference that is computed once is not shared between ranks",
                   hy_choice_name("task", (int)t->settings->task)));
}

hy_status hy_reference_open(hy_trainer *t) {
    if (!is_needed(t)) return HY_OK;
    if (t->team) return refuse_ranks(t);
    uint64_t pairs = hy_trainer_data(t)->pair_count;
    HY_FAIL_IF(pairs == 0, HY_ERR_INPUT,
               "the reference of streamed rows cannot be computed once; read them whole "
               "(--stream-rows off), or train adapters with --reference inline");
    t->data.reference = calloc((size_t)pairs, sizeof *t->data.reference);
    HY_FAIL_IF(!t->data.reference, HY_ERR_MEMORY,
               "not enough memory for the reference of %llu pairs", (unsigned long long)pairs);
    return t->resumed[0] ? read_resumed(t) : HY_OK;
}

hy_status hy_reference_measure(hy_trainer *t) {
    measured m = {0};
    if (!t->data.reference || hy_dataset_reference(t->data.set)) return HY_OK;
    hy_status status = find_sequences(t, &m);
    if (status == HY_OK) status = measure_all(t, &m);
    if (status == HY_OK) status = write_sums(t, &m);
    free_measured(&m);
    HY_TRY(status);
    give_to_data(t);
    return hy_trainer_start_loader(t); /* that has read batches without it */
}

void hy_reference_release(hy_trainer *t) {
    free(t->data.reference);
    t->data.reference = NULL;
}
